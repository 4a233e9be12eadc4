//! What a commit logs: its writes in permanent tables.
//!
//! **INV-LOGGED**: A record of a commit has the last write of each record that the transaction has
//! written in a permanent table, but for three kinds. Rows in storages that it has made itself are
//! written as a whole before (INV-NEW). A row that it has inserted and deleted was never seen by
//! another transaction. What a prepared transaction has written in a table that it drops ends with
//! it, whatever becomes of it (INV-LEAVING).

use super::{Txn, Write, WriteKind};
use crate::csn::Csn;
use crate::durable::table::Durable;
use crate::durable::Kind;
use crate::record::Version;
use crate::table::Table;
use std::ptr::NonNull;

/// A write that the commit logs.
#[derive(Clone, Copy)]
pub struct LoggedWrite {
    /// The table.
    pub table: &'static Table,
    /// What it has beside its records.
    pub durable: &'static Durable,
    /// The number of the record.
    pub no: u64,
    /// The new version or tombstone.
    pub version: NonNull<Version>,
}

impl LoggedWrite {
    #[inline]
    fn of(w: &Write) -> Option<LoggedWrite> {
        let durable = w.r.table.durable()?;
        let came_and_went = w.base.is_none() && w.kind == WriteKind::Delete;
        let is_logged = !came_and_went && !durable.is_new() && !durable.is_leaving();
        is_logged.then_some(LoggedWrite { table: w.r.table, durable, no: w.r.no, version: w.version })
    }
    /// [`Kind::Row`] or [`Kind::Tomb`], and the row's bytes.
    ///
    /// # Safety
    /// The transaction that wrote it has not settled, and uses the bytes before it does.
    pub unsafe fn content<'a>(&self) -> (Kind, &'a [u8]) {
        // SAFETY: INV-VERSION: a version of a transaction that has not settled, so it is not
        // retired (contract of this function), and its `len` bytes do not change.
        unsafe {
            let version = self.version.as_ref();
            if version.is_tombstone() {
                return (Kind::Tomb, &[]);
            }
            let payload = Version::payload(self.version.as_ptr());
            (Kind::Row, std::slice::from_raw_parts(payload, version.len as usize))
        }
    }
}

impl Txn {
    /// What the commit logs (INV-LOGGED).
    pub fn durable_writes(&self) -> impl Iterator<Item = LoggedWrite> + use<'_> {
        self.writes.finals_durable().filter_map(LoggedWrite::of)
    }
    /// Does the commit log anything?
    pub fn logs(&self) -> bool {
        self.writes.permanent && self.durable_writes().next().is_some()
    }
    /// The CSN of its commit, once it has taken one.
    pub fn csn(&self) -> Csn {
        self.csn
    }
    /// Has it buffered writes?
    pub fn has_writes(&self) -> bool {
        !self.writes.is_empty()
    }
}
