//! The read CSN of PostgreSQL's snapshots, in a field that MVCC snapshots do not use.

use super::{backend, mode, txn, Mode};
use mixedcc_engine::csn::Csn;
use pgrx::pg_sys;

/// Fixes the snapshot of a transaction that has one for all statements: at its first query on any
/// table. `snapshot`: the statement's copy.
fn fix_snapshot(snapshot: pg_sys::Snapshot) {
    if !matches!(mode(), Mode::RepeatableRead | Mode::SerializableReadOnly) || backend().read_csn != 0 {
        return;
    }
    let t = txn();
    t.e.pin(t.slot);
    let csn = t.e.now();
    adopt_snapshot(csn);
    if !snapshot.is_null() {
        put_csn(snapshot, csn);
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
fn put_csn(s: pg_sys::Snapshot, csn: Csn) {
    // SAFETY: `s` is a valid snapshot of this backend, as each caller has it from PostgreSQL. Only
    // a copy, which is this backend's own, is written.
    unsafe {
        if (*s).copied {
            (*s).vistest = ((csn << 1) | 1) as *mut _;
        }
    }
}

/// The read CSN of a snapshot; taken at its first use.
#[inline]
pub fn snapshot_csn(s: pg_sys::Snapshot) -> Csn {
    // SAFETY: `s` is a valid MVCC snapshot of this backend, as each caller has it from PostgreSQL.
    // The field is read as a number only.
    let v = unsafe { (*s).vistest } as u64;
    if v & 1 == 1 {
        return v >> 1;
    }
    first_use(s)
}

/// The same, if it has one.
#[inline]
pub fn known_csn(s: pg_sys::Snapshot) -> Option<Csn> {
    // SAFETY: `s` is a valid MVCC snapshot of this backend, as each caller has it from PostgreSQL.
    // The field is read as a number only.
    let v = unsafe { (*s).vistest } as u64;
    (v & 1 == 1).then_some(v >> 1)
}

/// A statement without tables of ours starts: a function that it calls may compare one of them with
/// an index, as of now or later (see [`moment`]). `s`: its snapshot, or null.
pub fn note_moment(s: pg_sys::Snapshot) {
    // SAFETY: `s` is null or a valid snapshot of this backend (documentation of this function).
    let mvcc = unsafe { !s.is_null() && (*s).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC };
    let b = backend();
    b.moment = mvcc.then(|| known_csn(s)).flatten().unwrap_or_else(|| b.txn.e.now());
}

/// A moment of this transaction that is past: what was committed by then was in all indexes of its
/// table when the running statement began.
pub fn moment() -> Option<Csn> {
    Some(backend().moment).filter(|m| *m != 0)
}

#[cold]
fn first_use(s: pg_sys::Snapshot) -> Csn {
    fix_snapshot(s);
    // SAFETY: `s` is the valid MVCC snapshot that `snapshot_csn` got. The field is read as a number
    // only.
    let v = unsafe { (*s).vistest } as u64;
    if v & 1 == 1 {
        return v >> 1;
    }
    let t = txn();
    t.e.pin(t.slot);
    let csn = t.e.now();
    put_csn(s, csn);
    csn
}
