//! Fetching rows by TID: for index scans, triggers, the executor's refetches.

use crate::access::fetch::Fetch;
use crate::access::{deferred, hollow, indexscan, protect, rowmarks, tuple, visible};
use crate::pg::faults::{self, Fault};
use crate::pg::Tid;
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::xact::{self, Mode};
use crate::state::{rel, stop};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::record::{Version, REC_FREE};
use mixedcc_engine::txn::WriteKind;
use mixedcc_engine::RecordRef;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ptr::NonNull;

/// # Safety
/// tableam.h's contract of `index_fetch_begin`.
#[pg_guard]
pub unsafe extern "C-unwind" fn begin(rel: pg_sys::Relation) -> *mut pg_sys::IndexFetchTableData {
    // SAFETY: `rel` is open and locked (tableam.h: index_fetch_begin), longer than the fetch lives.
    unsafe {
        crate::state::platform::outside();
        deferred::before_look((*rel).rd_id);
        hollow::serve(rel, rel::info(rel));
        Fetch::new(rel).cast()
    }
}

/// # Safety
/// tableam.h's contract of `index_fetch_reset`.
pub unsafe extern "C-unwind" fn reset(_a: *mut pg_sys::IndexFetchTableData) {}

/// # Safety
/// tableam.h's contract of `index_fetch_end`.
#[pg_guard]
pub unsafe extern "C-unwind" fn end(f: *mut pg_sys::IndexFetchTableData) {
    // SAFETY: `f` was made by `begin`, and PostgreSQL ends it once (tableam.h: index_fetch_end).
    unsafe {
        protect::close(f.cast());
        hollow::scan::end(f.cast());
        crate::pg::raw::pfree(f.cast());
    }
}

/// `index_fetch_tuple`. Guarded only where something can fail.
///
/// # Safety
/// tableam.h's contract of `index_fetch_tuple`.
pub unsafe extern "C-unwind" fn tuple(
    scan: *mut pg_sys::IndexFetchTableData,
    tid: pg_sys::ItemPointer,
    snapshot: pg_sys::Snapshot,
    slot: *mut pg_sys::TupleTableSlot,
    call_again: *mut bool,
    all_dead: *mut bool,
) -> bool {
    // SAFETY: `scan` was made by `begin`, and the out parameters are the caller's (tableam.h:
    // index_fetch_tuple). The transaction's pin keeps the version (INV-RETIRE). This frame owns
    // nothing.
    unsafe {
        let f = scan.cast::<Fetch>();
        let at = Tid::read(&*tid);
        match peek(f, at, snapshot) {
            Some(v) => {
                *call_again = false;
                if !all_dead.is_null() {
                    *all_dead = false;
                }
                (*f).look = false; // found: the row itself is protected
                (*f).last = v.as_ptr();
                tuple::store(slot, (*(*f).info).oid, at, v.as_ptr());
                true
            }
            None => guarded_tuple(scan, tid, snapshot, slot, call_again, all_dead),
        }
    }
}

/// The row of a TID, where a look at its newest version tells that it is seen. Neither fails nor
/// unwinds.
#[inline]
unsafe fn peek(f: *mut Fetch, tid: Tid, snapshot: pg_sys::Snapshot) -> Option<NonNull<Version>> {
    // SAFETY: `f` was made by `begin`, whose relation is still open; `snapshot` is valid (`tuple`'s
    // caller, tableam.h: index_fetch_tuple).
    unsafe {
        let s = if indexscan::is_ours(snapshot) { (*f).snapshot } else { snapshot };
        if (*s).snapshot_type != pg_sys::SnapshotType::SNAPSHOT_MVCC {
            return None;
        }
        let r = visible::record((*(*f).info).table, tid)?;
        visible::peek(r, s, (*f).for_write, (*f).scan).flatten()
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn guarded_tuple(
    scan: *mut pg_sys::IndexFetchTableData,
    tid: pg_sys::ItemPointer,
    snapshot: pg_sys::Snapshot,
    slot: *mut pg_sys::TupleTableSlot,
    call_again: *mut bool,
    all_dead: *mut bool,
) -> bool {
    // SAFETY: `scan` was made by `begin`, and the out parameters are the caller's (tableam.h:
    // index_fetch_tuple). The transaction's pin keeps the version that is stored (INV-RETIRE).
    unsafe {
        let f = scan.cast::<Fetch>();
        let info = &*(*f).info;
        *call_again = false;
        if !all_dead.is_null() {
            *all_dead = false;
        }
        let tid = Tid::read(&*tid);
        let Some(r) = visible::record(info.table, tid) else { return false };
        let t = xact::txn();
        let s = if indexscan::is_ours(snapshot) { (*f).snapshot } else { snapshot };
        let is_mvcc = (*s).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC;
        let seen = match (*f).offers && is_mvcc {
            true => visible::offer(t, r, s),
            false => visible::by_scan(t, r, s, (*f).why()),
        };
        match seen {
            Some(v) => {
                (*f).look = false; // found: the row itself is protected
                (*f).last = v.as_ptr();
                tuple::store(slot, info.oid, tid, v.as_ptr());
                true
            }
            None => {
                if !all_dead.is_null() {
                    *all_dead = visible::may_be_marked_dead(t, r);
                }
                false
            }
        }
    }
}

/// The version of a record for `SnapshotAny`, and the TID that the slot shall carry.
unsafe fn any(
    rel: pg_sys::Relation,
    t: &mut mixedcc_engine::Txn,
    r: RecordRef,
) -> Option<(*mut mixedcc_engine::record::Version, Tid)> {
    // SAFETY: `rel` is open and of ours: `row_version`'s (tableam.h: tuple_fetch_row_version). Its
    // transaction uses the table.
    unsafe {
        let (v, old_of) = visible::any(t, xact::mode(), r)?;
        let tid = match old_of {
            Some(w) if !(*rel).trigdesc.is_null() => Tid::Old(w),
            _ => Tid::Record(r.no),
        };
        Some((v.as_ptr(), tid))
    }
}

/// The version that a TID names, for a snapshot; and the TID that the slot shall carry.
unsafe fn find(
    rel: pg_sys::Relation,
    tid: Tid,
    snapshot: pg_sys::Snapshot,
) -> Option<(*mut mixedcc_engine::record::Version, Tid)> {
    // SAFETY: `rel` is open and of ours, and `snapshot` is valid (`row_version`'s, tableam.h:
    // tuple_fetch_row_version).
    unsafe {
        let info = rel::info(rel);
        let t = xact::txn();
        let is_any = (*snapshot).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_ANY;
        let tid = if is_any { tid } else { visible::asked_for(t, info.table, tid) };
        let named = || visible::named_write(t, info.table, tid);
        match tid {
            Tid::Old(n) => named().and_then(|_| visible::before_image(t, n)).map(|v| (v.as_ptr(), tid)),
            Tid::New(_) => named().filter(|w| w.kind != WriteKind::Delete).map(|w| (w.version.as_ptr(), tid)),
            Tid::Invalid => None,
            Tid::Locked(_) => {
                let l = visible::handed_out(info.table, tid)?;
                let r = RecordRef::find(info.table, l.row.1)?;
                match t.last_write(r) {
                    None => Some((l.version.as_ptr(), Tid::Record(r.no))),
                    Some(_) => any(rel, t, r),
                }
            }
            Tid::Record(n) => {
                let look =
                    || RecordRef::find(info.table, n).filter(|r| r.rec.state.load(Ordering::Acquire) != REC_FREE);
                let mut r = look();
                if r.is_none() && (*snapshot).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC {
                    // The row of a later insert may get this TID, in any partition; or has got it
                    // before the protection.
                    stop::reach("tid-looked");
                    super::scan::protect_all(info);
                    r = look().filter(|_| !faults::on(Fault::TidLookedOnce));
                }
                let r = r?;
                if is_any {
                    return any(rel, t, r);
                }
                if xact::mode() != Mode::Serializable || t.last_write(r).is_some() {
                    return visible::by_snapshot(t, r, snapshot, false).map(|v| (v.as_ptr(), tid));
                }
                // A TID is a key: a row that is not there must not appear by an insert.
                let at = r.touch();
                let position = ok(t.before_lookup(&PG, at));
                let mut v = visible::by_snapshot(t, r, snapshot, false);
                if v.is_none() {
                    t.add_predicate(at, position);
                    if ok(t.looks_again(&PG)) {
                        v = visible::by_snapshot(t, r, snapshot, false);
                    }
                }
                v.map(|v| (v.as_ptr(), tid))
            }
        }
    }
}

/// Is this the old row of an update that replaced an own version? Foreign keys ask by its xmin
/// whether this transaction has made it (RI_FKey_fk_upd_check_required): then the check of the
/// insert does not count.
fn asks_whose(tid: Tid) -> bool {
    let Tid::Old(n) = tid else { return false };
    let Some(w) = xact::txn().write(n).filter(|w| w.previous().is_some()) else { return false };
    // SAFETY: a version of kind Delete is a tombstone, and an own write's version lives while the
    // write is in the list.
    w.kind != WriteKind::Delete || unsafe { Version::successor(w.version.as_ptr()) }.record != 0
}

/// # Safety
/// tableam.h's contract of `tuple_fetch_row_version`.
#[pg_guard]
pub unsafe extern "C-unwind" fn row_version(
    rel: pg_sys::Relation,
    tid: pg_sys::ItemPointer,
    snapshot: pg_sys::Snapshot,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: `rel` is open, `snapshot` valid, and `slot` of `slot_callbacks` (tableam.h:
    // tuple_fetch_row_version). The transaction's pin keeps the version that is stored
    // (INV-RETIRE).
    unsafe {
        crate::state::platform::outside();
        deferred::before_look((*rel).rd_id);
        let snapshot = rowmarks::snapshot_of(slot).unwrap_or(snapshot);
        match find(rel, Tid::read(&*tid), snapshot) {
            Some((v, tid)) if asks_whose(tid) => {
                tuple::store_as_own(slot, (*rel).rd_id, tid, v);
                true
            }
            Some((v, tid)) => {
                tuple::store(slot, (*rel).rd_id, tid, v);
                true
            }
            None => {
                crate::pg::expr::clear(slot);
                false
            }
        }
    }
}

/// # Safety
/// tableam.h's contract of `tuple_tid_valid`.
#[pg_guard]
pub unsafe extern "C-unwind" fn tid_valid(scan: pg_sys::TableScanDesc, tid: pg_sys::ItemPointer) -> bool {
    // SAFETY: `scan` was made by `scan::begin` and `tid` is readable (tableam.h: tuple_tid_valid).
    unsafe {
        let info = &*(*scan.cast::<super::scan::Scan>()).info;
        match Tid::read(&*tid) {
            Tid::Record(n) => {
                let is_there = || n / crate::pg::ROWS < info.table.len().div_ceil(crate::pg::ROWS);
                if is_there() {
                    return true;
                }
                stop::reach("tid-looked");
                super::scan::protect_all(info); // a later insert may get it
                is_there() && !faults::on(Fault::TidLookedOnce)
            }
            tid => visible::asked_for(xact::txn(), info.table, tid) != Tid::Invalid,
        }
    }
}

/// # Safety
/// tableam.h's contract of `tuple_get_latest_tid`.
#[pg_guard]
pub unsafe extern "C-unwind" fn latest_tid(scan: pg_sys::TableScanDesc, tid: pg_sys::ItemPointer) {
    // SAFETY: `scan` was made by `scan::begin` and `tid` is writable (tableam.h:
    // tuple_get_latest_tid). The transaction's pin keeps the versions (INV-RETIRE). Rows that moved
    // are followed.
    unsafe {
        // The functions `currtid` release the table's lock. The transaction has touched the table,
        // and so must keep it (INV-HELD, INV-TABLE).
        pg_sys::LockRelationOid((*(*scan).rs_rd).rd_id, pg_sys::AccessShareLock as i32);
        let info = &*(*scan.cast::<super::scan::Scan>()).info;
        let t = xact::txn();
        let snapshot = (*scan).rs_snapshot;
        let mut at = Tid::read(&*tid);
        if let Some(w) = visible::named_write(t, info.table, at) {
            at = Tid::Record(w.r.no);
            *tid = at.item();
        }
        while let Some(r) = visible::record(info.table, at) {
            if visible::by_snapshot(t, r, snapshot, false).is_some() {
                *tid = at.item();
                return;
            }
            let v = match t.last_write(r).and_then(|n| t.write(n)) {
                Some(w) => Some(w.version),
                None => ok(t.newest(&PG, r.rec)).map(|x| x.0),
            };
            let Some(v) = v.filter(|v| v.as_ref().is_tombstone()) else { return };
            let to = mixedcc_engine::record::Version::successor(v.as_ptr()).record;
            if to == 0 || to == u64::MAX {
                return;
            }
            at = Tid::Record(to - 1);
        }
    }
}

/// # Safety
/// tableam.h's contract of `tuple_satisfies_snapshot`.
#[pg_guard]
pub unsafe extern "C-unwind" fn satisfies(
    rel: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    snapshot: pg_sys::Snapshot,
) -> bool {
    // SAFETY: `rel` is open, `snapshot` valid, and `slot` holds a row of ours (tableam.h:
    // tuple_satisfies_snapshot).
    unsafe {
        let info = rel::info(rel);
        let t = xact::txn();
        let tid = Tid::read(&(*slot).tts_tid);
        match tid {
            Tid::New(n) => {
                // The row as this write left it: does it still stand?
                let Some(w) = visible::named_write(t, info.table, tid) else { return false };
                w.kind != WriteKind::Delete && t.last_write(w.r) == Some(n)
            }
            Tid::Old(_) | Tid::Locked(_) | Tid::Invalid => false,
            Tid::Record(n) => {
                let Some(r) = RecordRef::find(info.table, n) else { return false };
                // With such a snapshot ON CONFLICT asks whether it may pass over a row: if this
                // command has written it, too.
                let mvcc = (*snapshot).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC;
                let own = t.last_write(r).and_then(|n| t.write(n)).is_some_and(|w| w.kind != WriteKind::Delete);
                mvcc && own || visible::by_snapshot(t, r, snapshot, false).is_some()
            }
        }
    }
}
