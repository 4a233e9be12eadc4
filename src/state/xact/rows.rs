//! Rows that the executor, or what stands for it, has locked and written last.

use super::backend;
use std::collections::HashMap;

/// A row that `tuple_lock` returned: which version, for whom.
#[derive(Clone, Copy)]
pub struct Locked {
    /// The executor's snapshot.
    pub snapshot: usize,
    /// The command of that snapshot.
    pub curcid: u32,
    /// The command that the lock is for.
    pub cid: u32,
    /// Depth of the subtransaction: its rollback gives the lock up.
    pub depth: u32,
    /// The version.
    pub version: *mut mixedcc_engine::record::Version,
}

/// The last update or delete, by whom: the executor refetches the row as it was before, for
/// triggers and RETURNING.
#[derive(Clone, Copy)]
pub struct LastWrite {
    /// Table and record.
    pub row: (u64, u64),
    /// The executor's snapshot, and its command when the write was made.
    pub snapshot: usize,
    /// See `snapshot`.
    pub curcid: u32,
    /// Number of the write.
    pub write: u32,
}

/// Rows that were locked for the executor in this transaction.
pub fn locked() -> &'static mut HashMap<(u64, u64), Locked> {
    &mut backend().locked
}

/// A row is locked for the executor: table and record.
pub fn note_locked(row: (u64, u64), l: Locked) {
    let b = backend();
    b.locked.insert(row, l);
    b.last_locked = Some(row);
}

/// The row that the executor has locked last: table and record. It may be locked no more, or gone.
pub fn last_locked() -> Option<(u64, u64)> {
    backend().last_locked
}

/// The last update or delete of this transaction.
pub fn last_write() -> &'static mut Option<LastWrite> {
    &mut backend().last_write
}
