//! How far VACUUM moves `pg_class.relfrozenxid`. Rows of unlogged tables hold no transaction ids.
//!
//! **D-XID**: The `relfrozenxid` of a permanent table is at or below every transaction id that a
//! pending entry needs to be looked up. VACUUM takes the horizon first. Then it loads the table,
//! which resolves the pending entries from before. It waits until each commit below the horizon has
//! marked its rows, and then for a round of the table, which images them. So each entry of a
//! committed id below the horizon has a decided copy in an image.

use crate::pg::{compat, relations, text};
use crate::state::above::TooLarge;
use crate::state::shmem::{self, Absence};
use crate::state::{rel, xact};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::Table;
use pgrx::pg_sys;
use pgrx::prelude::*;

/// A look at commits under way, and the next one, µs.
const LOOK_US: core::ffi::c_long = 1000;

/// The table of a relation, and the oldest transaction id that is needed for it. A permanent table
/// that does not fit into memory is none. Its files need no transaction id then, unless a prepared
/// transaction has rows in them whose end was not known when its journal was absorbed (D-XID).
///
/// # Safety
/// An open relation of ours, locked as VACUUM does.
pub unsafe fn of(rel: pg_sys::Relation) -> (Result<&'static Table, TooLarge>, pg_sys::TransactionId) {
    // SAFETY: `rel` is open and of ours (contract of this function).
    unsafe {
        let oldest = pg_sys::GetOldestNonRemovableTransactionId(rel);
        if compat::is_permanent(rel) {
            if let Err(x) = rel::table_if_it_fits(rel) {
                let is_absorbed = shmem::absent(compat::storage_key(&compat::storage_of(rel)))
                    .is_some_and(|(why, _)| why != Absence::Standby);
                return (Err(x), if is_absorbed { oldest } else { (*(*rel).rd_rel).relfrozenxid });
            }
        }
        let table = rel::info(rel).table;
        if let Some(durable) = table.durable() {
            await_commits(full(oldest));
            if pg_sys::IsUnderPostmaster {
                // No session waits for autovacuum: its round is no burst.
                let urgent = pg_sys::MyBackendType != pg_sys::BackendType::B_AUTOVAC_WORKER;
                crate::state::rounds::round_of(durable, urgent);
            } else if durable.is_flagged() {
                // A single-user server makes no rounds. COMMIT PREPARED has rows here whose outcome
                // in the files is still that of the commit log.
                pgrx::ereport!(
                    PgLogLevel::WARNING,
                    PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                    format!("relfrozenxid of table \"{}\" stays as it is", text::shown(&relations::name((*rel).rd_id))),
                    "Prepared transactions that this server has ended have changed the table. End the single-user server, and run VACUUM in another one."
                );
                return (Ok(table), (*(*rel).rd_rel).relfrozenxid);
            }
        }
        (Ok(table), oldest)
    }
}

/// A recent transaction id with its epoch.
fn full(xid: pg_sys::TransactionId) -> u64 {
    // SAFETY: reads a variable of shared memory, and raises nothing.
    let next = unsafe { pg_sys::ReadNextFullTransactionId() }.value;
    let back = (next as u32).wrapping_sub(u32::from(xid));
    next.saturating_sub(back.into())
}

/// Waits until no commit with an id below `oldest` is between its record and its marks. Prepared
/// transactions that were decided get their marks here, if no process has finished them.
fn await_commits(oldest: u64) {
    let e = shmem::engine();
    let under_way = |xid: u64| xid != 0 && xid < oldest;
    while e.slots.iter().any(|s| under_way(s.xid.load(Ordering::SeqCst))) {
        pgrx::check_for_interrupts!();
        xact::prepared::finish_decided();
        compat::nap(LOOK_US);
    }
}
