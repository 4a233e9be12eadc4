//! Rows that the executor, or what stands for it, has locked.

use super::backend;
use mixedcc_engine::record::Version;
use std::ptr::NonNull;

/// A row that `tuple_lock` has handed out, in this version ([`crate::pg::Tid::Locked`]).
#[derive(Clone, Copy)]
pub struct HandedOut {
    /// Table and record.
    pub row: (u64, u64),
    /// Depth of the subtransaction: its rollback gives the lock up.
    pub depth: u32,
    /// The version. It lives while the command runs for which the row was locked: the
    /// transaction's pin keeps it, and other transactions cannot replace it.
    pub version: NonNull<Version>,
}

/// A row that is locked for the executor.
#[derive(Clone, Copy)]
pub struct Locked {
    /// Depth of the subtransaction that has locked it first: its rollback gives the lock up.
    pub depth: u32,
    /// The number under which it was handed out last. It may name another row by now.
    number: Option<u32>,
}

/// Is a row locked for the executor in this transaction? By table and record.
#[inline]
pub fn is_locked(row: (u64, u64)) -> bool {
    let rows = &backend().locked;
    !rows.is_empty() && rows.contains_key(&row)
}

/// A row is locked for the executor: table and record.
pub fn note_locked(row: (u64, u64), depth: u32) {
    let b = backend();
    b.locked.entry(row).or_insert(Locked { depth, number: None });
    b.last_locked = Some(row);
}

/// Hands out a row that was noted as locked. The number by which a TID names it; `None`: there are
/// too many. A row that is handed out again in the same version keeps its number.
pub fn hand_out(l: HandedOut) -> Option<u32> {
    let b = backend();
    let locked = b.locked.get_mut(&l.row)?;
    let is_same = |n: &u32| b.handed_out.get(*n as usize).is_some_and(|h| (h.row, h.version) == (l.row, l.version));
    if let Some(n) = locked.number.filter(is_same) {
        return Some(n);
    }
    let n = u32::try_from(b.handed_out.len()).ok()?;
    b.handed_out.push(l);
    locked.number = Some(n);
    Some(n)
}

/// The row of that number.
pub fn handed_out(n: u32) -> Option<HandedOut> {
    backend().handed_out.get(n as usize).copied()
}

/// The row that the executor has locked last: table and record. It may be locked no more, or gone.
pub fn last_locked() -> Option<(u64, u64)> {
    backend().last_locked
}
