//! How far VACUUM moves `pg_class.relfrozenxid`. Rows of unlogged tables hold no transaction ids.

use crate::state::rel;
use mixedcc_engine::Table;
use pgrx::pg_sys;

/// The table of a relation, and the oldest transaction id that is needed for it; 0: unknown.
///
/// # Safety
/// An open relation of ours, locked as VACUUM does.
pub unsafe fn of(rel: pg_sys::Relation) -> (&'static Table, pg_sys::TransactionId) {
    // SAFETY: `rel` is open and of ours (contract of this function).
    unsafe {
        let oldest = pg_sys::GetOldestNonRemovableTransactionId(rel);
        let table = rel::info(rel).table;
        (table, if table.durable().is_some() { pg_sys::InvalidTransactionId } else { oldest })
    }
}
