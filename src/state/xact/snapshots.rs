//! What PostgreSQL's snapshots see of our tables, in fields that MVCC snapshots do not use.

use super::{backend, copies, lists, mixed, mode, prepared, rests, txn, Mode};
use crate::pg::compat;
use crate::pg::faults::{self, Fault};
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::standby;
use crate::state::stop::reach;
use mixedcc_engine::csn::{Csn, SlotId};
use mixedcc_engine::open::{Kept, Seen, SHORT};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::shared::Adopter;
use mixedcc_engine::Engine;
use pgrx::pg_sys;

/// Fixes the snapshot of a transaction that has one for all statements: at its first query on any
/// table. `snapshot`: the statement's copy.
///
/// # Safety
/// A valid snapshot of this backend.
unsafe fn fix_snapshot(snapshot: pg_sys::Snapshot) {
    if !matches!(mode(), Mode::RepeatableRead | Mode::SerializableReadOnly) || backend().read_csn != 0 {
        return;
    }
    // SAFETY: `snapshot` is valid (contract of this function).
    unsafe {
        let kept = copies::take(snapshot, txn()).unwrap_or_else(|| take(snapshot));
        if mode() == Mode::SerializableReadOnly {
            backend().cut = mixed::cut(snapshot, kept.upto);
        }
        adopt_snapshot(kept);
        lists::share(pg_sys::GetTransactionSnapshot(), snapshot);
    }
}

/// Takes a snapshot with that of PostgreSQL.
///
/// # Safety
/// A valid MVCC snapshot of this backend.
unsafe fn take(s: pg_sys::Snapshot) -> Kept {
    let mut list = Vec::new();
    let t = txn();
    if compat::in_recovery() {
        t.take_seen(&mut list); // It pins.
                                // SAFETY: the contract of this function.
        let csn = unsafe { standby::take(s) };
        t.note_snapshot(csn);
        return Kept { upto: csn, floor: csn, excluded: Vec::new() };
    }
    if matches!(mode(), Mode::ReadCommitted) {
        // INV-RELEASED
        ok(t.await_depends(&PG));
    }
    loop {
        let (upto, floor) = match mode() {
            Mode::SerializableReadOnly => t.take_prefix(&mut list),
            _ => t.take_seen(&mut list),
        };
        if !list.is_empty() {
            reach("snapshot-listed");
        }
        // SAFETY: `s` is valid (contract of this function).
        if let Some(excluded) = unsafe { left_out(&t.e, &list, s) } {
            return Kept { upto, floor, excluded };
        }
        list.clear();
    }
}

/// The commits of a list that a snapshot leaves out: they are not done, and have not ended for that
/// of PostgreSQL. If they have, PostgreSQL shows what they have written in other tables, so we do,
/// too. `None`: one is done by now, and its id cannot be told any more. Then it is not in the next
/// list.
///
/// # Safety
/// A valid MVCC snapshot of this backend.
unsafe fn left_out(e: &Engine, list: &[(Csn, SlotId)], s: pg_sys::Snapshot) -> Option<Vec<Csn>> {
    let mut excluded = Vec::with_capacity(list.len());
    for &(csn, slot) in list {
        let xid = e.slots[slot as usize].xid.load(Ordering::SeqCst);
        if e.open_commit(slot) != csn && !faults::on(Fault::HalfShown) {
            return None;
        }
        // SAFETY: `s` is valid (contract of this function). The commit is open still, so the id was
        // its own.
        if xid == 0 || unsafe { pg_sys::XidInMVCCSnapshot(pg_sys::TransactionId::from(xid as u32), s) } {
            excluded.push(csn);
        }
    }
    if excluded.len() > SHORT {
        excluded.sort_unstable();
    }
    Some(excluded)
}

/// Makes this the transaction's snapshot.
pub fn adopt_snapshot(kept: Kept) {
    let b = backend();
    (b.read_csn, b.read_floor) = (kept.upto, kept.floor);
    if compat::in_recovery() {
        standby::adopt(kept.upto);
    }
    // What a copy leaves out was done before its clock, at which an importer would pin.
    if !copies::has_begun() {
        b.txn.e.show(b.txn.slot, kept.seen(), Adopter::Importer);
    }
    let kept = match mode() {
        Mode::SerializableReadOnly => Kept { excluded: Vec::new(), ..kept },
        _ => kept,
    };
    // SAFETY: a transaction with one snapshot is running. `GetTransactionSnapshot` returns its
    // registered first one, whose copies keep the fields.
    unsafe { lists::put(pg_sys::GetTransactionSnapshot(), lists::TRANSACTION, kept) };
}

/// What a snapshot sees; taken at its first use. Valid as long as the snapshot.
///
/// # Safety
/// A valid MVCC snapshot of this backend.
#[inline]
pub unsafe fn snapshot_seen(s: pg_sys::Snapshot) -> Seen<'static> {
    // SAFETY: `s` is valid (contract of this function).
    unsafe { known_seen(s).unwrap_or_else(|| first_use(s)) }
}

/// The same, if it was taken.
///
/// # Safety
/// As for [`snapshot_seen`].
#[inline]
pub unsafe fn known_seen(s: pg_sys::Snapshot) -> Option<Seen<'static>> {
    // SAFETY: `s` is valid (contract of this function).
    unsafe { lists::get(s) }
}

/// A statement without tables of ours starts: a function that it calls may compare one of them with
/// an index, as of now or later (see [`moment`]). `s`: its snapshot, or null.
///
/// # Safety
/// Null, or a valid snapshot of this backend.
pub unsafe fn note_moment(s: pg_sys::Snapshot) {
    // SAFETY: `s` is null or valid (contract of this function), and its kind is looked at first.
    let seen = unsafe {
        let mvcc = !s.is_null() && (*s).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC;
        mvcc.then(|| known_seen(s)).flatten()
    };
    let b = backend();
    b.moment = seen.map_or_else(|| b.txn.e.now(), |seen| seen.upto);
}

/// A moment of this transaction that is past: what was committed by then was in all indexes of its
/// table when the running statement began.
pub fn moment() -> Option<Csn> {
    Some(backend().moment).filter(|m| *m != 0)
}

/// # Safety
/// As for [`snapshot_seen`].
#[inline(never)]
unsafe fn first_use(s: pg_sys::Snapshot) -> Seen<'static> {
    // INV-DECIDED: PostgreSQL's snapshot was taken before.
    prepared::finish_decided();
    standby::check_reader();
    // SAFETY: `s` is valid (contract of this function).
    unsafe {
        if matches!(mode(), Mode::ReadCommitted) && !lists::has_csn(s) && !standby::is_reader() {
            if let Some(now) = txn().take_quiet() {
                return lists::put_prefix(s, now);
            }
        }
        first_use_slowly(s)
    }
}

#[cold]
unsafe fn first_use_slowly(s: pg_sys::Snapshot) -> Seen<'static> {
    // SAFETY: `s` is valid (contract of this function).
    unsafe {
        if lists::has_csn(s) {
            lists::is_stale();
        }
        fix_snapshot(s);
        if let Some(seen) = known_seen(s) {
            return seen;
        }
        rests::stay_awake(); // INV-RESTS: another snapshot than the transaction's own
        let kept = take(s);
        lists::put(s, s as usize, kept)
    }
}
