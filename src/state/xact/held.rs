//! Locks of tables over ROLLBACK TO.
//!
//! **INV-HELD**: Until a SERIALIZABLE transaction ends, it holds a lock on each table of which it
//! has touched a partition. That includes tables that only a rolled back subtransaction has
//! touched. What this subtransaction has read counts, and the protocols of the table's present
//! partitions protect it. A session that changes these, or empties the table, takes the table's
//! ACCESS EXCLUSIVE lock first, and so waits for all transactions that rely on them.
//!
//! A subtransaction that has changed a table's partitions excludes all other sessions from it. That
//! alone may protect what the transaction has read of the table, before or in it. Then the top
//! transaction keeps ACCESS EXCLUSIVE, and need not fail.
//!
//! Below SERIALIZABLE nothing remains of the reads of a subtransaction that was rolled back, but
//! for the predicates of `range_scan`: their tables' locks are kept. SERIALIZABLE READ ONLY reads a
//! snapshot, whatever becomes of the tables.
//!
//! PostgreSQL releases a subtransaction's locks when it aborts, after the callbacks. These take
//! each such lock once more by then, for the top transaction. It is held already, so this counts it
//! in the backend and never waits. Nothing is done before an abort, and nothing for partitions that
//! were touched by the time of an earlier one.

use super::tags::owned_by;
use super::{Backend, Mode, Pending};
use crate::pg::compat;
use crate::state::rel;
use mixedcc_engine::Txn;
use pgrx::pg_sys;

/// A subtransaction aborts, and has its locks yet. `held`: of so many of the touched partitions the
/// tables are seen to already. An ERROR (no memory) leaves it as it was.
pub fn keep_tables(txn: &Txn, mode: Option<Mode>, held: &mut usize) {
    match mode {
        Some(Mode::Serializable) => {
            let touched = txn.touched_partitions();
            let all = touched.clone().count();
            if all > *held {
                rel::of_partitions(touched.skip(*held)).for_each(keep);
                *held = all;
            }
        }
        Some(Mode::ReadCommitted | Mode::RepeatableRead) => {
            let mut last = None;
            for id in txn.range_predicates().map(|q| q.ranges.table().id) {
                if last.replace(id) != Some(id) {
                    rel::by_table_id(id).map(|info| info.oid).into_iter().for_each(keep);
                }
            }
        }
        Some(Mode::SerializableReadOnly) | None => {}
    }
}

/// The subtransaction at `level` is about to be undone: if it has changed the partitions of a
/// table, and the transaction relies on having that for itself, it keeps the lock (INV-HELD).
pub(super) fn keep_changed_tables(b: &Backend, level: u32) {
    for (_, p) in b.pending.iter().filter(|p| p.0 >= level) {
        let Pending::Map { table, new, .. } = p else { continue };
        // SAFETY: `new` is the table's map, or was until a later one of these changes: no map of
        // them is freed before they end (INV-MAP).
        if b.txn.relies_on_exclusion(table, unsafe { new.as_ref() }) {
            keep_exclusion(table.id);
        }
    }
}

/// A subtransaction aborts that has changed the table's partitions, and has its locks yet: the top
/// transaction keeps ACCESS EXCLUSIVE. As in [`keep_tables`], it has that already.
fn keep_exclusion(table: u64) {
    let Some(oid) = rel::by_table_id(table).map(|info| info.oid) else { return };
    if compat::holds_relation(oid, pg_sys::AccessExclusiveLock as i32) {
        take_for_top(oid, pg_sys::AccessExclusiveLock as i32);
    }
}

/// Takes a lock on a table that the transaction has locked, for the top transaction.
fn keep(oid: pg_sys::Oid) {
    let (weakest, strongest) = (pg_sys::AccessShareLock as i32, pg_sys::AccessExclusiveLock as i32);
    // None: a table of an earlier transaction, whose partitions were where these are.
    let Some(mode) = (weakest..=strongest).find(|&mode| compat::holds_relation(oid, mode)) else { return };
    // One that a SELECT, a row lock or a write has taken stays as it is. A stronger one alone is
    // one of a command, and would be in the way of others: the weakest is enough. It does not wait
    // for those that wait for the stronger one (ProcSleep), nor needs room in the shared table of
    // locks, where the stronger one has its entry.
    let mode = if mode <= pg_sys::RowExclusiveLock as i32 { mode } else { weakest };
    take_for_top(oid, mode);
}

fn take_for_top(oid: pg_sys::Oid, mode: i32) {
    // SAFETY: the callbacks of an abort run before the subtransaction's locks are released
    // (INV-HELD). The owner is the top transaction's; an ERROR ends the subtransaction, which sets
    // its owner again.
    unsafe {
        owned_by(pg_sys::TopTransactionResourceOwner, || {
            pg_sys::LockAcquire(&compat::relation_tag(oid), mode, false, false);
        });
    }
}
