//! The files of a permanent table, as a load and absorption read them.

use super::journal;
use crate::pg::errors::complain;
use crate::pg::{compat, text, wal};
use crate::state::{slots, xact};
use mixedcc_engine::durable::merge::{Fork, Outcome};
use mixedcc_engine::durable::{Malformed, Meta, Page, PAGE};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// The files of a relation.
pub struct Files {
    /// The storage.
    pub key: [u32; 4],
    name: String,
    /// The commit log has the transactions from this full id on. Before it, decided entries have
    /// replaced the pending ones (D-XID).
    horizon: u64,
}

impl Files {
    /// # Safety
    /// An open permanent relation of ours, in a transaction.
    pub unsafe fn of(rel: pg_sys::Relation) -> Files {
        // SAFETY: `rel` is open (contract of this function); its name is a C string.
        unsafe {
            let form = (*rel).rd_rel;
            Files {
                key: compat::storage_key(&compat::storage_of(rel)),
                name: text::read((*form).relname.data.as_ptr()),
                horizon: full_id((*form).relfrozenxid.into()),
            }
        }
    }

    /// How the transaction of a pending entry has ended.
    pub fn outcome(&self, xid: u64) -> Outcome {
        if xid < self.horizon {
            return Outcome::Older;
        }
        let id = pg_sys::TransactionId::from(xid as u32);
        // SAFETY: the commit log has this id, because `relfrozenxid` is at or below it (D-XID).
        unsafe {
            if xid >= pg_sys::ReadNextFullTransactionId().value || wal::is_running(xid as u32) {
                return Outcome::Open;
            }
            // INV-AWAKE: one that has ended with tables in memory has a CSN there, which its rows
            // get here. It is decided, so that it has ended after this.
            xact::prepared::finish_decided();
            if slots::end_of(xid).is_some() {
                Outcome::Open
            } else if pg_sys::TransactionIdDidCommit(id) {
                Outcome::Committed
            } else {
                Outcome::Aborted
            }
        }
    }

    /// The meta page, and the blocks of the main fork. A file without a block is an empty table.
    pub fn meta(&self) -> Meta {
        let Some(bytes) = journal::meta_page(self.key) else { return Meta::default() };
        match Page::read(&bytes, 0) {
            Ok(Some(page)) => Meta::read(&page).unwrap_or_else(|why| self.refuse_block(Fork::Main, 0, why)),
            Ok(None) => self.refuse_block(Fork::Main, 0, Malformed("it is empty")),
            Err(why) => self.refuse_block(Fork::Main, 0, why),
        }
    }

    /// The page in a block that was read. `None`: it is new.
    pub fn page<'a>(&self, fork: Fork, block: u32, bytes: &'a [u8; PAGE]) -> Option<Page<'a>> {
        Page::read(bytes, block).unwrap_or_else(|why| self.refuse_block(fork, block, why))
    }

    /// A block is damaged: the table is not loaded, and nothing is changed.
    #[cold]
    pub fn refuse_block(&self, fork: Fork, block: u32, why: Malformed) -> ! {
        let file = if fork == Fork::Main { "main file" } else { "journal" };
        self.refuse(&format!("block {block} of its {file}: {why}"))
    }

    /// The files are damaged.
    #[cold]
    pub fn refuse(&self, what: &str) -> ! {
        complain(
            PgSqlErrorCode::ERRCODE_DATA_CORRUPTED,
            &format!("mixedcc table \"{}\" is damaged: {what}", self.name),
            "Restore the table from a backup or a standby. Nothing of its files was overwritten.",
        )
    }

    /// This process has no memory.
    #[cold]
    pub fn refuse_memory(&self) -> ! {
        complain(
            PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
            &format!("out of memory while the rows of mixedcc table \"{}\" are loaded", self.name),
            "",
        )
    }
}

/// A transaction id with its epoch. 0: it is none.
fn full_id(xid: u32) -> u64 {
    if xid < pg_sys::FirstNormalTransactionId.into() {
        return 0;
    }
    // SAFETY: reads a variable of shared memory, and raises nothing.
    let next = unsafe { pg_sys::ReadNextFullTransactionId() }.value;
    next.saturating_sub((next as u32).wrapping_sub(xid).into())
}
