//! Writes of rows: insert, update and delete, with what the isolation level asks of them.

use crate::access::ranges::rows::Row;
use crate::access::tuple::{self, Author, Fresh};
use crate::access::{changes, hollow, looked, primary, ranges, visible};
use crate::pg::faults::{self, Fault};
use crate::pg::Tid;
use crate::state::durable;
use crate::state::errors::{ok, raise};
use crate::state::platform::PG;
use crate::state::rel::{self, RelInfo};
use crate::state::stop;
use crate::state::xact::{self, Mode};
use mixedcc_engine::lock::Mode as LockMode;
use mixedcc_engine::range::Columns;
use mixedcc_engine::record::{Successor, Version};
use mixedcc_engine::txn::{How, Write, WriteKind};
use mixedcc_engine::{RecordRef, Txn};
use pgrx::pg_sys;
use pgrx::pg_sys::TM_Result::*;
use pgrx::prelude::*;
use std::ptr::NonNull;

/// The transaction id that this relation's writes need. An ERROR jumps over the caller's frame.
unsafe fn xid_for(info: &RelInfo) -> pg_sys::TransactionId {
    // SAFETY: both read the transaction's state, and the first may raise. Nothing that needs a drop
    // is alive in this frame.
    unsafe {
        if info.needs_xid {
            crate::pg::raw::GetCurrentTransactionId()
        } else {
            crate::pg::raw::GetCurrentTransactionIdIfAny()
        }
    }
}

/// The partition of the row in a slot, as a record keeps it. An ERROR jumps as from
/// `PartKey::partition_of_slot`: the caller's frame must not own a version.
unsafe fn partition_of(info: &RelInfo, slot: *mut pg_sys::TupleTableSlot) -> [u16; 2] {
    let mut part = [0; 2];
    // SAFETY: `slot` is valid and of the row type: contract of `insert` and of `update`, which
    // alone come here.
    part[info.table.map().field as usize] = unsafe { info.partkey.partition_of_slot(slot) };
    part
}

/// The number of a partition that a record keeps.
#[inline]
fn number(info: &RelInfo, part: [u16; 2]) -> u32 {
    part[info.table.map().field as usize].into()
}

/// Inserts the rows of slots, and counts them.
///
/// # Safety
/// An open relation of ours, and valid slots of its row type, or of one that tableam.h's contract
/// allows.
pub unsafe fn insert(rel: pg_sys::Relation, slots: &[*mut pg_sys::TupleTableSlot], cid: pg_sys::CommandId) {
    // SAFETY: `rel` is open and of ours; the slots are valid and of its row type (contract of this
    // function).
    unsafe {
        for slot in slots {
            changes::inserted(rel, insert_slot(rel, *slot, cid, 0)); // INV-CHANGES
        }
        crate::pg::raw::pgstat_count_heap_insert(rel, slots.len() as i64);
    }
}

/// Inserts the row of a slot into a table that will take another one's place. The row itself does
/// not change, so logical decoding does not see it.
///
/// # Safety
/// As for [`insert`].
pub unsafe fn rewrite(rel: pg_sys::Relation, slot: *mut pg_sys::TupleTableSlot, cid: pg_sys::CommandId) {
    // SAFETY: the contract of this function.
    unsafe {
        insert_slot(rel, slot, cid, 0);
        crate::pg::raw::pgstat_count_heap_insert(rel, 1);
    }
}

/// Inserts the row of a slot under a token, until [`complete_speculative`] confirms it or takes it
/// back.
///
/// # Safety
/// As for [`insert`].
pub unsafe fn insert_speculative(
    rel: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    cid: pg_sys::CommandId,
    token: u32,
) {
    // SAFETY: `rel` is open and of ours; `slot` is valid and of its row type (contract of this
    // function).
    unsafe {
        insert_slot(rel, slot, cid, token);
        crate::pg::raw::pgstat_count_heap_insert(rel, 1);
    }
}

/// Inserts the row of a slot. `token`: of a speculative insert, or 0.
unsafe fn insert_slot(
    rel: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    cid: u32,
    token: u32,
) -> NonNull<Version> {
    // SAFETY: `rel` is open and of ours, and `slot` of its row type: contract of `insert`. The
    // version is ours alone until `t.insert` has it (INV-SIGNED). From then on our own write keeps
    // it.
    unsafe {
        let info = rel::info(rel);
        hollow::serve(rel, info);
        let t = xact::writing();
        let xid = xid_for(info);
        let part = partition_of(info, slot);
        let short = primary::announce(info, slot);
        let by = Author::of(t, cid, false);
        let f = tuple::form(t, number(info, part), rel, slot, None, by);
        let td = tuple::header(f.version().as_ptr());
        if token != 0 {
            (*td).t_ctid = pg_sys::ItemPointerData {
                ip_blkid: pg_sys::BlockIdData { bi_hi: (token >> 16) as u16, bi_lo: token as u16 },
                ip_posid: pg_sys::SpecTokenOffsetNumber as u16,
            };
        }
        let version = f.version();
        let r = ok(t.insert(&PG, info.table, part, version, cid, xid.into_inner()));
        f.taken();
        let n = t.newest_write().expect("the insert");
        primary::enter(rel, info, t, r, n, slot, short);
        note_absent(rel, info, r, slot);
        durable::reserve(info.table, r.no);
        (*slot).tts_tid = Tid::Record(r.no).item();
        (*slot).tts_tableOid = (*rel).rd_id;
        tuple::show(slot, version.as_ptr());
        version
    }
}

/// A row is in a new record. Its unique checks are reads, which stay if a savepoint undoes it.
///
/// # Safety
/// An open relation of ours with its `info`; the slot has the row of the record.
unsafe fn note_absent(rel: pg_sys::Relation, info: &RelInfo, r: RecordRef, slot: *mut pg_sys::TupleTableSlot) {
    if xact::depth() > 1 && xact::mode() == Mode::Serializable {
        // SAFETY: the same (contract of this function).
        unsafe { ranges::note_absent(rel, info, r.touch(), Row::Slot(slot)) }
    }
}

/// The row of a speculative insert stays, or goes.
///
/// # Safety
/// An open relation of ours; the slot carries the TID of the insert.
pub unsafe fn complete_speculative(rel: pg_sys::Relation, slot: *mut pg_sys::TupleTableSlot, succeeded: bool) {
    // SAFETY: `rel` is open and of ours, and `slot` has the TID of the insert (contract of this
    // function). A pending version of our own is in the write list, which keeps it.
    unsafe {
        let info = rel::info(rel);
        let t = xact::writing();
        let Some(r) = visible::record(info.table, Tid::read(&(*slot).tts_tid)) else { return };
        if succeeded {
            if let Some(w) = t.last_write(r).and_then(|n| t.write(n)) {
                let none = pg_sys::ItemPointerData::default();
                (*tuple::header(w.version.as_ptr())).t_ctid = none;
                changes::inserted(rel, w.version);
            }
        } else if !t.undo_insert(r) {
            let tomb = ok(t.new_tombstone(Successor { record: 0 }, None));
            t.delete(r, None, tomb, pg_sys::GetCurrentCommandId(true), 0);
        }
    }
}

/// What a write of a row has to replace.
enum Target {
    /// A committed version, locked or to be validated; the row is ours to write.
    Committed(NonNull<Version>),
    /// An own version, of this write.
    Own(u32),
    /// PostgreSQL's result; the failure data is filled in.
    Fail(TmResult),
}
type TmResult = pg_sys::TM_Result::Type;

/// Fills in why a row could not be written.
///
/// # Safety
/// `tmfd` is valid for writes: the out parameter of a callback of tableam.h.
pub(super) unsafe fn failure(tmfd: *mut pg_sys::TM_FailureData, tid: Tid, xmax: pg_sys::TransactionId, cmax: u32) {
    // SAFETY: `tmfd` is valid for writes (contract of this function).
    unsafe {
        (*tmfd).ctid = tid.item();
        (*tmfd).xmax = xmax;
        (*tmfd).cmax = cmax;
        (*tmfd).traversed = false;
    }
}

/// A row that somebody else has replaced or deleted: where it went.
///
/// # Safety
/// `tmfd` is valid for writes. `newest` is the record's newest version, reached under the
/// transaction's pin.
pub(super) unsafe fn gone(
    t: &mut Txn,
    tmfd: *mut pg_sys::TM_FailureData,
    r: RecordRef,
    newest: Option<NonNull<Version>>,
) -> TmResult {
    if xact::mode() == Mode::RepeatableRead {
        // SAFETY: `newest` is reached under our pin (INV-RETIRE).
        let found = newest.and_then(|v| unsafe { v.as_ref() }.csn().map(|csn| (v, csn)));
        t.write_conflict(r, found); // for the counters: the caller raises the error
    }
    // SAFETY: `newest` is reached under our pin (INV-RETIRE), and is read as a tombstone only if it
    // is one. `tmfd` is valid for writes (contract of this function).
    unsafe {
        let (tid, result) = match newest {
            Some(v) if !v.as_ref().is_tombstone() => (Tid::Record(r.no), TM_Updated),
            Some(v) => match Version::successor(v.as_ptr()).record {
                0 => (Tid::Record(r.no), TM_Deleted),
                u64::MAX => {
                    failure(tmfd, Tid::Invalid, pg_sys::InvalidTransactionId, u32::MAX);
                    (*tmfd).ctid.ip_posid = pg_sys::MovedPartitionsOffsetNumber as u16;
                    return TM_Updated;
                }
                n => (Tid::Record(n - 1), TM_Updated),
            },
            None => (Tid::Record(r.no), TM_Deleted),
        };
        failure(tmfd, tid, pg_sys::InvalidTransactionId, u32::MAX);
        result
    }
}

/// Is the executor's work on the row of this TID based on its newest version (INV-BASED)? It is
/// what its scan saw, or what it locked since.
///
/// # Safety
/// `snapshot` is null or a valid snapshot of this backend.
pub(super) unsafe fn based_on(
    t: &mut Txn,
    (tid, r): (Tid, RecordRef),
    snapshot: pg_sys::Snapshot,
    newest: NonNull<Version>,
) -> bool {
    if let Some(l) = visible::handed_out(r.table, tid) {
        return l.version == newest;
    }
    // SAFETY: `snapshot` is null or valid (contract of this function).
    let seen = unsafe {
        if snapshot.is_null() || (*snapshot).snapshot_type != pg_sys::SnapshotType::SNAPSHOT_MVCC {
            return true;
        }
        xact::snapshot_seen(snapshot)
    };
    ok(t.at_snapshot(&PG, r.rec, seen)).is_some_and(|(v, _)| v == newest)
}

/// At REPEATABLE READ a row that another transaction has replaced or deleted since the snapshot,
/// and that a third one has locked: the caller fails whatever that one does, and so does not wait
/// for it. Returns the newest version. The look at the lock is a hint: without it the row is locked
/// first.
///
/// # Safety
/// As for [`based_on`].
pub(super) unsafe fn already_replaced(
    t: &mut Txn,
    at: (Tid, RecordRef),
    mode: LockMode,
    snapshot: pg_sys::Snapshot,
) -> Option<visible::Seen> {
    if xact::mode() != Mode::RepeatableRead || !t.is_locked_by_others(at.1, mode) {
        return None;
    }
    let newest = ok(t.newest(&PG, at.1.rec)).map(|v| v.0);
    // SAFETY: the contract of this function; versions are reached under our pin (INV-RETIRE).
    let is_based = unsafe { visible::live(newest).is_some_and(|v| based_on(t, at, snapshot, v)) };
    (!is_based).then_some(newest)
}

/// Locks a row in order to write it, by level and protocol.
#[allow(clippy::too_many_arguments)]
unsafe fn target(
    t: &mut Txn,
    (tid, r): (Tid, RecordRef),
    mode: LockMode,
    at_once: bool,
    snapshot: pg_sys::Snapshot,
    crosscheck: pg_sys::Snapshot,
    cid: u32,
    tmfd: *mut pg_sys::TM_FailureData,
) -> Target {
    // SAFETY: `tmfd` and the snapshots are those of tuple_update or tuple_delete (tableam.h),
    // `crosscheck` null or valid. Versions of `lock_for_write` are reached under our pin
    // (INV-RETIRE).
    unsafe {
        if let Some(n) = t.last_write(r) {
            let w = t.write(n).expect("a number of ours");
            if w.cid >= cid {
                // The executor asks whether it is ours.
                let xid = pg_sys::GetCurrentTransactionId();
                failure(tmfd, Tid::Record(r.no), xid, first_command(t, n, cid));
                return Target::Fail(if w.kind == WriteKind::Insert { TM_Invisible } else { TM_SelfModified });
            }
            if w.kind == WriteKind::Delete {
                failure(tmfd, Tid::Record(r.no), pg_sys::InvalidTransactionId, u32::MAX);
                return Target::Fail(TM_Deleted);
            }
            if mode == LockMode::Update && w.base.is_some() {
                ok(t.lock_for_write(&PG, r, mode, How::Wait, at_once));
            }
            return Target::Own(n);
        }
        if let Some(newest) = already_replaced(t, (tid, r), mode, snapshot) {
            return Target::Fail(gone(t, tmfd, r, newest));
        }
        let found = ok(t.lock_for_write(&PG, r, mode, How::Wait, at_once));
        let newest = found.map(|v| v.0);
        let Some(v) = newest.filter(|v| !v.as_ref().is_tombstone()) else {
            if xact::mode() == Mode::Serializable {
                raise(t.write_conflict(r, found));
            }
            return Target::Fail(gone(t, tmfd, r, newest));
        };
        if xact::mode() == Mode::Serializable {
            return Target::Committed(v);
        }
        if !based_on(t, (tid, r), snapshot, v) {
            return Target::Fail(gone(t, tmfd, r, newest));
        }
        if !crosscheck.is_null() {
            let seen = xact::snapshot_seen(crosscheck);
            if ok(t.at_snapshot(&PG, r.rec, seen)).map(|x| x.0) != Some(v) {
                return Target::Fail(gone(t, tmfd, r, newest));
            }
        }
        Target::Committed(v)
    }
}

fn base_and_version(t: &Txn, target: &Target) -> (Option<NonNull<Version>>, NonNull<Version>) {
    match target {
        Target::Committed(v) => (Some(*v), *v),
        Target::Own(n) => {
            let w = t.write(*n).expect("a number of ours");
            (w.base, w.version)
        }
        Target::Fail(_) => unreachable!("handled before"),
    }
}

/// Deletes a row (`tuple_delete`). `changing_part`: it moves to another table.
///
/// # Safety
/// tableam.h's contract for `tuple_delete`.
#[allow(clippy::too_many_arguments)]
pub unsafe fn delete(
    rel: pg_sys::Relation,
    tid: Tid,
    cid: pg_sys::CommandId,
    snapshot: pg_sys::Snapshot,
    crosscheck: pg_sys::Snapshot,
    tmfd: *mut pg_sys::TM_FailureData,
    changing_part: bool,
) -> TmResult {
    // SAFETY: `rel` is open and of ours, and `tmfd` and the snapshots are valid (tableam.h:
    // tuple_delete). `old` is an own write's, or the record's, reached under our pin (INV-RETIRE).
    unsafe {
        let info = rel::info(rel);
        let t = xact::writing();
        let Some(r) = visible::record_of(t, info.table, tid) else {
            error!("attempted to delete a row that does not exist")
        };
        xact::recovered::await_keys(info.oid, info.table, true);
        let xid = if info.needs_xid { crate::pg::raw::GetCurrentTransactionId().into_inner() } else { 0 };
        let is_simple = crosscheck.is_null() && !changing_part;
        let (n, old) = match is_simple.then(|| delete_seen(rel, info, t, r, snapshot, cid, xid)).flatten() {
            Some(done) => done,
            None => {
                let target = target(t, (tid, r), LockMode::Update, info.needs_xid, snapshot, crosscheck, cid, tmfd);
                if let Target::Fail(f) = target {
                    return f;
                }
                let (base, old) = base_and_version(t, &target);
                let to = Successor { record: if changing_part { u64::MAX } else { 0 } };
                let tomb = primary::tombstone(rel, info, t, to, base.map(|_| old));
                (t.delete(r, base, tomb, cid, xid), old)
            }
        };
        ranges::note(rel, info, n, Row::Version(old.as_ptr()));
        crate::pg::raw::pgstat_count_heap_delete(rel);
        changes::deleted(rel, old);
        TM_Ok
    }
}

/// Deletes a committed row that the snapshot of a statement sees, where a look at it is enough
/// ([`Txn::delete_seen`]). Returns the write, and the version that it deletes.
#[inline]
unsafe fn delete_seen(
    rel: pg_sys::Relation,
    info: &RelInfo,
    t: &mut Txn,
    r: RecordRef,
    snapshot: pg_sys::Snapshot,
    cid: pg_sys::CommandId,
    xid: u32,
) -> Option<(u32, NonNull<Version>)> {
    // SAFETY: `rel` is open, with its `info`, and `snapshot` is null or valid: contract of
    // `delete`. `old` is the newest version of a record, reached under our pin (INV-RETIRE).
    unsafe {
        let is_mvcc = !snapshot.is_null() && (*snapshot).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC;
        if !is_mvcc || stop::is_on() {
            return None;
        }
        ok(t.begin_following(&PG));
        let seen = xact::known_seen(snapshot)?;
        let old = t.newest_seen(r, &seen)?;
        let key = primary::short_key_of_entry(rel, info, old)?;
        t.delete_seen(r, (&seen, old), key, cid, xid).map(|n| (n, old))
    }
}

/// The row as the executor's scan saw it, to tell which columns change.
unsafe fn seen(t: &mut Txn, (tid, r): (Tid, RecordRef), snapshot: pg_sys::Snapshot) -> Option<NonNull<Version>> {
    if let Some(n) = t.last_write(r) {
        return visible::own_version(t, n);
    }
    if let Some(l) = visible::handed_out(r.table, tid) {
        return Some(l.version);
    }
    let newest = ok(t.newest(&PG, r.rec)).map(|v| v.0);
    // SAFETY: `snapshot` is that of `update`: null or valid (tableam.h: tuple_update). Versions are
    // reached under our pin (INV-RETIRE).
    unsafe {
        let by_snapshot = xact::mode() != Mode::Serializable
            && !snapshot.is_null()
            && (*snapshot).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC;
        if by_snapshot {
            let seen = xact::snapshot_seen(snapshot);
            return visible::live(ok(t.at_snapshot(&PG, r.rec, seen)).map(|v| v.0));
        }
        visible::live(newest)
    }
}

/// Rows that this transaction has put into a new record keep their version for AFTER triggers,
/// which refetch them by TID: an update of such a row moves it. They are rows that it has inserted,
/// and those that an update has moved.
unsafe fn must_move(rel: pg_sys::Relation, t: &Txn, r: RecordRef) -> bool {
    // SAFETY: `rel` is open: contract of `update`. `trigdesc` is null or that of the cache entry,
    // which an open relation keeps.
    let (inserts, updates) = unsafe {
        match (*rel).trigdesc.as_ref() {
            Some(trig) => (trig.trig_insert_after_row, trig.trig_update_after_row),
            None => return false,
        }
    };
    if !inserts && !updates {
        return false;
    }
    let Some(n) = t.last_write(r).filter(|n| t.write(*n).is_some_and(|w| w.base.is_none())) else { return false };
    inserts || updates && has_come(t, r, n)
}

/// Has an update moved the row into this record, with the own write `n`? The next one deletes the
/// old record (`move_row`).
fn has_come(t: &Txn, r: RecordRef, n: u32) -> bool {
    let is_its = |d: &Write| d.kind == WriteKind::Delete && d.r.table.id == r.table.id;
    // SAFETY: a version of kind Delete is a tombstone, and an own write's version lives while the
    // write is in the list.
    t.write(n + 1).filter(is_its).is_some_and(|d| unsafe { Version::successor(d.version.as_ptr()) }.record == r.no + 1)
}

/// The first command from `cid` on that has written a row, whose last own write is `n`. PostgreSQL
/// asks whether it was the current one: heap has the command that replaced the version of the TID.
pub(super) fn first_command(t: &Txn, n: u32, cid: u32) -> u32 {
    let (mut first, mut at) = (cid, t.write(n));
    while let Some(w) = at.filter(|w| w.cid >= cid) {
        first = w.cid;
        at = w.previous().and_then(|n| t.write(n));
    }
    first
}

/// Has a statement of this transaction locked the row?
#[inline]
fn is_locked(r: RecordRef) -> bool {
    xact::is_locked((r.table.id, r.no))
}

/// Updates a row (`tuple_update`). `moved`: is the row a new record now, which all indexes must
/// get?
///
/// # Safety
/// tableam.h's contract for `tuple_update`.
#[inline]
#[allow(clippy::too_many_arguments)]
pub unsafe fn update(
    rel: pg_sys::Relation,
    tid: Tid,
    slot: *mut pg_sys::TupleTableSlot,
    cid: pg_sys::CommandId,
    snapshot: pg_sys::Snapshot,
    crosscheck: pg_sys::Snapshot,
    tmfd: *mut pg_sys::TM_FailureData,
    lockmode: *mut pg_sys::LockTupleMode::Type,
    moved: &mut bool,
) -> TmResult {
    // SAFETY: `rel` is open and of ours, `slot` of its row type, the out parameters valid
    // (tableam.h: tuple_update). `old` is an own write's, or the record's, reached under our pin
    // (INV-RETIRE).
    unsafe {
        let info = rel::info(rel);
        let t = xact::writing();
        *moved = false;
        let Some(r) = visible::record_of(t, info.table, tid) else {
            error!("attempted to update a row that does not exist")
        };
        let moves = must_move(rel, t, r)
            || match seen(t, (tid, r), snapshot) {
                Some(old) => tuple::differs(rel, old.as_ptr(), slot, &info.moving),
                None => true,
            };
        let mode = if moves { LockMode::Update } else { LockMode::NoKeyUpdate };
        *lockmode = if moves {
            pg_sys::LockTupleMode::LockTupleExclusive
        } else {
            pg_sys::LockTupleMode::LockTupleNoKeyExclusive
        };
        // Unique checks wait by it.
        let xid = if moves { xid_for(info) } else { pg_sys::InvalidTransactionId };
        if moves {
            xact::recovered::await_keys(info.oid, info.table, true);
            hollow::serve(rel, info);
        }
        let target = target(t, (tid, r), mode, moves && info.needs_xid, snapshot, crosscheck, cid, tmfd);
        if let Target::Fail(f) = target {
            return f;
        }
        let (base, old) = base_and_version(t, &target);
        let part = if moves { partition_of(info, slot) } else { [0; 2] };
        let short = if moves { primary::announce(info, slot) } else { None };
        let place = if moves { number(info, part) } else { tuple::place_of(t.e.region.nodes(), info, slot) };
        let by = Author::of(t, cid, is_locked(r));
        let f = tuple::form(t, place, rel, slot, Some(old), by);
        let version = f.version();
        if moves {
            move_row(rel, info, t, r, base, old, (f, part), (slot, short), cid, xid);
            *moved = true;
        } else {
            let n = put_in_place(rel, info, t, r, (base, old), f, slot, cid, None);
            let trig = (*rel).trigdesc;
            let pseudo = !trig.is_null() && (*trig).trig_update_after_row;
            (*slot).tts_tid = if pseudo { Tid::New(n) } else { Tid::Record(r.no) }.item();
        }
        (*slot).tts_tableOid = (*rel).rd_id;
        tuple::show(slot, version.as_ptr());
        crate::pg::compat::count_update(rel, !moves);
        changes::updated(rel, old, version);
        TM_Ok
    }
}

/// Buffers a new version of the same record. Its number among the writes. `sets`: the columns that
/// the statement sets, if nothing else can differ from the version that is replaced.
#[inline]
#[allow(clippy::too_many_arguments)]
unsafe fn put_in_place(
    rel: pg_sys::Relation,
    info: &RelInfo,
    t: &mut Txn,
    r: RecordRef,
    (base, old): (Option<NonNull<Version>>, NonNull<Version>),
    f: Fresh,
    slot: *mut pg_sys::TupleTableSlot,
    cid: u32,
    sets: Option<Columns>,
) -> u32 {
    // SAFETY: `rel` and `slot` are those of `update` or `update_in_place`, by their contract. `f`
    // is a version of `form`, which the engine has from `t.update` on. It replaces `old`, an own
    // write's version or the record's, reached under our pin (INV-RETIRE).
    unsafe {
        let version = f.version();
        let n = t.update(r, base, version, cid);
        f.taken();
        // By their bytes, where scans of ranges make that worth its time.
        if !ranges::nothing_to_note(info) || sets.is_none() && info.table.is_read_by_column() {
            t.note_changed(n, looked::changed(rel, old.as_ptr(), version.as_ptr()));
        } else if let Some(sets) = sets {
            t.note_changed(n, if faults::on(Fault::SetsForgotten) { Columns::NONE } else { sets });
        }
        ranges::note(rel, info, n, Row::Slot(slot));
        n
    }
}

/// `tuple_update` where the caller knows that no column changes that is in an index or the
/// partition key, and that no trigger will look at the row by its TID. `sets`: the only columns in
/// which the new row differs from the one that the caller has read; `None`: it may differ in any.
///
/// # Safety
/// tableam.h's contract for `tuple_update`.
#[inline]
#[allow(clippy::too_many_arguments)]
pub unsafe fn update_in_place(
    rel: pg_sys::Relation,
    info: &RelInfo,
    tid: Tid,
    slot: *mut pg_sys::TupleTableSlot,
    cid: pg_sys::CommandId,
    snapshot: pg_sys::Snapshot,
    crosscheck: pg_sys::Snapshot,
    tmfd: *mut pg_sys::TM_FailureData,
    sets: Option<Columns>,
) -> TmResult {
    // SAFETY: `rel` is open and of ours, with its `info`; `slot` is of its row type, `tmfd` valid
    // (contract of this function). No trigger and no index looks at the row by its TID.
    unsafe {
        let t = xact::writing();
        let Some(r) = visible::record_of(t, info.table, tid) else {
            error!("attempted to update a row that does not exist")
        };
        let target = target(t, (tid, r), LockMode::NoKeyUpdate, false, snapshot, crosscheck, cid, tmfd);
        if let Target::Fail(f) = target {
            return f;
        }
        let replaced = base_and_version(t, &target);
        let place = tuple::place_of(t.e.region.nodes(), info, slot);
        let by = Author::of(t, cid, is_locked(r));
        let f = tuple::form(t, place, rel, slot, Some(replaced.1), by);
        let version = f.version();
        put_in_place(rel, info, t, r, replaced, f, slot, cid, sets);
        (*slot).tts_tid = Tid::Record(r.no).item();
        (*slot).tts_tableOid = (*rel).rd_id;
        crate::pg::compat::count_update(rel, true);
        changes::updated(rel, replaced.1, version);
        TM_Ok
    }
}

/// An update in place of a row as it is at last, whatever the transaction has seen of it: `make`
/// makes its new row from the version that it replaces. False: another transaction has deleted the
/// row in this record, or moved it.
///
/// # Safety
/// An open relation of ours with its `info`, and a record of it. `make` returns a slot of its row
/// type, and changes these columns alone. No trigger and no index looks at them.
pub unsafe fn update_anew(
    rel: pg_sys::Relation,
    info: &RelInfo,
    r: RecordRef,
    cid: pg_sys::CommandId,
    sets: Columns,
    make: &mut dyn FnMut(NonNull<Version>) -> *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: `rel` is open and of ours, with its `info` (contract of this function). The version
    // that is replaced is an own write's, or the record's, reached under our pin (INV-RETIRE).
    unsafe {
        let t = xact::writing();
        let null = std::ptr::null_mut();
        let mut failed = pg_sys::TM_FailureData::default();
        let mode = LockMode::NoKeyUpdate;
        let target = if t.last_write(r).is_none() {
            if xact::depth() > 1 && !faults::on(Fault::UndoneForgotten) {
                // A savepoint may undo the write. But the statements that see it have seen the row.
                ok(t.read(&PG, r, true));
            }
            let found = ok(t.lock_for_write(&PG, r, mode, How::Wait, false));
            let Some((v, _)) = found.filter(|(v, _)| !v.as_ref().is_tombstone()) else { return false };
            Target::Committed(v)
        } else {
            target(t, (Tid::Record(r.no), r), mode, false, null, null, cid, &mut failed)
        };
        if let Target::Fail(f) = target {
            error!("unexpected status of a deferred write: {f}");
        }
        let replaced = base_and_version(t, &target);
        let slot = make(replaced.1);
        let place = tuple::place_of(t.e.region.nodes(), info, slot);
        let by = Author::of(t, cid, is_locked(r));
        let f = tuple::form(t, place, rel, slot, Some(replaced.1), by);
        let version = f.version();
        put_in_place(rel, info, t, r, replaced, f, slot, cid, Some(sets));
        crate::pg::compat::count_update(rel, true);
        changes::updated(rel, replaced.1, version);
        true
    }
}

/// An update that changes an index or the partition: a new record, and a tombstone that names it.
#[allow(clippy::too_many_arguments)]
unsafe fn move_row(
    rel: pg_sys::Relation,
    info: &RelInfo,
    t: &mut Txn,
    r: RecordRef,
    base: Option<NonNull<Version>>,
    old: NonNull<Version>,
    (f, part): (Fresh, [u16; 2]),
    (slot, short): (*mut pg_sys::TupleTableSlot, primary::ShortKey),
    cid: u32,
    xid: pg_sys::TransactionId,
) -> u32 {
    // SAFETY: `rel` is open and of ours, and `slot` of its row type: contract of `update`. `old` is
    // an own write's, or the record's, reached under our pin (INV-RETIRE).
    unsafe {
        let to = ok(t.insert(&PG, info.table, part, f.version(), cid, xid.into_inner()));
        f.taken();
        let inserted = t.newest_write().expect("the insert");
        let to_record = Successor { record: to.no + 1 };
        let tomb = primary::tombstone(rel, info, t, to_record, base.map(|_| old));
        let n = t.delete(r, base, tomb, cid, if info.needs_xid { xid.into_inner() } else { 0 });
        // The row may keep its key: its unique check comes when the old row is gone.
        primary::enter(rel, info, t, to, inserted, slot, short);
        note_absent(rel, info, to, slot);
        ranges::note(rel, info, n, Row::Version(old.as_ptr()));
        durable::reserve(info.table, to.no);
        (*slot).tts_tid = Tid::Record(to.no).item();
        (*slot).tts_tableOid = (*rel).rd_id;
        n
    }
}
