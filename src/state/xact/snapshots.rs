//! The read CSN of PostgreSQL's snapshots, in a field that MVCC snapshots do not use.

use super::{backend, mode, txn, Mode};
use mixedcc_engine::csn::Csn;
use pgrx::pg_sys;

/// Fixes the snapshot of a transaction that has one for all statements: at its first query on any
/// table. `snapshot`: the statement's copy.
///
/// # Safety
/// Null, or a valid snapshot of this backend.
unsafe fn fix_snapshot(snapshot: pg_sys::Snapshot) {
    if !matches!(mode(), Mode::RepeatableRead | Mode::SerializableReadOnly) || backend().read_csn != 0 {
        return;
    }
    let t = txn();
    t.e.pin(t.slot);
    let csn = t.e.now();
    adopt_snapshot(csn);
    if !snapshot.is_null() {
        // SAFETY: `snapshot` is valid (contract of this function).
        unsafe { put_csn(snapshot, csn) };
    }
}

/// Makes `csn` the read CSN of the transaction's snapshot.
pub fn adopt_snapshot(csn: Csn) {
    let b = backend();
    b.read_csn = csn;
    let slot = &b.txn.e.slots[b.txn.slot as usize];
    slot.read_csn.store(csn, mixedcc_engine::primitive::Ordering::SeqCst);
    // SAFETY: a transaction with one snapshot is running. `GetTransactionSnapshot` returns its
    // registered first one, whose copies keep the field.
    unsafe { put_csn(pg_sys::GetTransactionSnapshot(), csn) };
}

/// MVCC snapshots do not use `vistest`; copies of a snapshot keep it.
///
/// # Safety
/// A valid snapshot of this backend.
unsafe fn put_csn(s: pg_sys::Snapshot, csn: Csn) {
    // SAFETY: `s` is valid (contract of this function). Only a copy, which is this backend's own,
    // is written.
    unsafe {
        if (*s).copied {
            (*s).vistest = ((csn << 1) | 1) as *mut _;
        }
    }
}

/// The read CSN of a snapshot; taken at its first use.
///
/// # Safety
/// A valid MVCC snapshot of this backend.
#[inline]
pub unsafe fn snapshot_csn(s: pg_sys::Snapshot) -> Csn {
    // SAFETY: `s` is valid (contract of this function).
    unsafe { known_csn(s).unwrap_or_else(|| first_use(s)) }
}

/// The same, if it has one.
///
/// # Safety
/// As for [`snapshot_csn`].
#[inline]
pub unsafe fn known_csn(s: pg_sys::Snapshot) -> Option<Csn> {
    // SAFETY: `s` is valid (contract of this function). The field is read as a number only.
    let v = unsafe { (*s).vistest } as u64;
    (v & 1 == 1).then_some(v >> 1)
}

/// A statement without tables of ours starts: a function that it calls may compare one of them with
/// an index, as of now or later (see [`moment`]). `s`: its snapshot, or null.
///
/// # Safety
/// Null, or a valid snapshot of this backend.
pub unsafe fn note_moment(s: pg_sys::Snapshot) {
    // SAFETY: `s` is null or valid (contract of this function), and its kind is looked at first.
    let csn = unsafe {
        let mvcc = !s.is_null() && (*s).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC;
        mvcc.then(|| known_csn(s)).flatten()
    };
    let b = backend();
    b.moment = csn.unwrap_or_else(|| b.txn.e.now());
}

/// A moment of this transaction that is past: what was committed by then was in all indexes of its
/// table when the running statement began.
pub fn moment() -> Option<Csn> {
    Some(backend().moment).filter(|m| *m != 0)
}

/// # Safety
/// As for [`snapshot_csn`].
#[cold]
unsafe fn first_use(s: pg_sys::Snapshot) -> Csn {
    // SAFETY: `s` is valid (contract of this function).
    unsafe {
        fix_snapshot(s);
        if let Some(csn) = known_csn(s) {
            return csn;
        }
        let t = txn();
        t.e.pin(t.slot);
        let csn = t.e.now();
        put_csn(s, csn);
        csn
    }
}
