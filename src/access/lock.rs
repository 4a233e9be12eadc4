//! Row locks: SELECT FOR ..., EvalPlanQual, ON CONFLICT, BEFORE triggers.
//!
//! **INV-SKIP**: A SERIALIZABLE scan whose locked rows are skipped has no predicate, and remembers
//! no row. A row of it counts once it is locked for writing. Then its newest version is read as any
//! other, and tested again, unless it is the version that the statement's only such scan has shown
//! last.
//!
//! **INV-BASED**: At READ COMMITTED the executor may write a row only if its work is based on the
//! newest version. That is so if the statement's snapshot sees it, or if `tuple_lock` has handed it
//! out for that work. The TID tells which: a lock that EvalPlanQual, a trigger or ON CONFLICT takes
//! answers with a TID of its own (`Tid::Locked`), as heap's TID is that of the newer version. The
//! TID of a scan stays that of the record. Other locks that the statement, or a trigger of it,
//! takes of the row do not count. Such a TID is in no slot of a query, which so cannot see it.

use super::write::{already_replaced, based_on, failure, first_command, gone};
use crate::access::visible::{self, Seen};
use crate::access::{statements, tuple};
use crate::pg::Tid;
use crate::state::errors::{ok, raise};
use crate::state::platform::PG;
use crate::state::rel;
use crate::state::xact::{self, HandedOut, Mode};
use mixedcc_engine::error::Error;
use mixedcc_engine::lock::Mode as LockMode;
use mixedcc_engine::record::Version;
use mixedcc_engine::txn::{How, WriteKind};
use mixedcc_engine::{RecordRef, Txn};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::TM_Result::{self, *};
use pgrx::prelude::*;
use std::ptr::NonNull;

fn mode_of(m: pg_sys::LockTupleMode::Type) -> LockMode {
    use pg_sys::LockTupleMode;
    match m {
        LockTupleMode::LockTupleKeyShare => LockMode::KeyShare,
        LockTupleMode::LockTupleShare => LockMode::Share,
        LockTupleMode::LockTupleNoKeyExclusive => LockMode::NoKeyUpdate,
        _ => LockMode::Update,
    }
}

struct Want {
    mode: LockMode,
    /// Is nothing but the key of the row looked at (INV-EXISTS of the engine)?
    alone: bool,
    policy: pg_sys::LockWaitPolicy::Type,
    snapshot: pg_sys::Snapshot,
    cid: u32,
    follow: bool,
    /// A statement's own row locks, not those that EvalPlanQual and triggers take.
    for_share_or_update: bool,
    /// From how many scans without protection may the row come (INV-SKIP)?
    skipping: usize,
}

/// Locks a row (`tuple_lock`). `mode`: with it, does the caller use nothing of the row but its key?
///
/// # Safety
/// tableam.h's contract for `tuple_lock`.
#[allow(clippy::too_many_arguments)]
pub unsafe fn lock(
    rel: pg_sys::Relation,
    tid: pg_sys::ItemPointer,
    snapshot: pg_sys::Snapshot,
    slot: *mut pg_sys::TupleTableSlot,
    cid: pg_sys::CommandId,
    (mode, alone): (pg_sys::LockTupleMode::Type, bool),
    policy: pg_sys::LockWaitPolicy::Type,
    flags: u8,
    tmfd: *mut pg_sys::TM_FailureData,
) -> pg_sys::TM_Result::Type {
    // SAFETY: `rel` is open, `slot` of its row type, `tid` and `tmfd` valid for writes (tableam.h:
    // tuple_lock). Versions are reached under our pin, or are own writes' (INV-RETIRE).
    unsafe {
        let info = rel::info(rel);
        let t = xact::writing();
        let follow = flags & pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION as u8 != 0;
        let for_share_or_update = flags & pg_sys::TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS as u8 != 0;
        let may_skip = policy == pg_sys::LockWaitPolicy::LockWaitSkip && xact::mode() == Mode::Serializable;
        let skipping = if may_skip { statements::skipping_scans(snapshot, info.oid) } else { 0 };
        let mode = mode_of(mode);
        let want = Want { mode, alone, policy, snapshot, cid, follow, for_share_or_update, skipping };
        let mut at = Tid::read(&*tid);
        // The apply worker has searched for a row, and locks what it has found (execReplication.c).
        // It goes on only if that is the newest version: else it searches again.
        let found =
            (!follow && std::ptr::eq(tid, &raw const (*slot).tts_tid)).then(|| tuple::shown_xmin(slot)).flatten();
        let mut traversed = false;
        loop {
            let Some(r) = visible::record_of(t, info.table, at) else {
                error!("attempted to lock a row that does not exist")
            };
            match lock_one(rel, t, (at, r), &want, tmfd) {
                Err(f @ (TM_Result::TM_Invisible | TM_Result::TM_SelfModified)) => {
                    if let Some(w) = t.last_write(r).and_then(|n| t.write(n)).filter(|w| w.kind != WriteKind::Delete) {
                        let (at, v) = (Tid::Record(r.no), w.version.as_ptr());
                        if f == TM_Invisible {
                            tuple::store_as_own(slot, info.oid, at, v); // the executor asks whose row it is
                        } else {
                            tuple::store(slot, info.oid, at, v);
                        }
                    }
                    return f;
                }
                Ok((v, _))
                    if found.is_some_and(|xmin| t.last_write(r).is_none() && xmin != tuple::xmin(v.as_ptr())) =>
                {
                    return gone(t, tmfd, r, Some(v));
                }
                Ok((v, newer)) => {
                    tuple::store(slot, info.oid, Tid::Record(r.no), v.as_ptr());
                    let (row, depth) = ((r.table.id, r.no), xact::depth());
                    xact::note_locked(row, depth);
                    let is_worked_on = !for_share_or_update && xact::mode() == Mode::ReadCommitted;
                    let number = match is_worked_on && t.last_write(r).is_none() {
                        true => xact::hand_out(HandedOut { row, depth, version: v }),
                        false => None,
                    };
                    *tid = number.map_or(Tid::Record(r.no), Tid::Locked).item();
                    (*tmfd).ctid = *tid; // MERGE goes on with this one
                    (*tmfd).traversed = traversed || newer;
                    return TM_Ok;
                }
                Err(TM_Result::TM_Updated) if follow => {
                    if (*tmfd).ctid.ip_posid == pg_sys::MovedPartitionsOffsetNumber as u16 {
                        moved_away();
                    }
                    at = Tid::read(&(*tmfd).ctid);
                    *tid = (*tmfd).ctid;
                    traversed = true;
                }
                Err(f) => return f,
            }
        }
    }
}

fn moved_away() -> ! {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
        "tuple to be locked was already moved to another partition due to concurrent update",
        "tuple_lock",
    )
    .report(PgLogLevel::ERROR);
    unreachable!()
}

/// Locks the record of a TID. The version that the caller gets, and whether it is newer than what
/// the snapshot sees; or PostgreSQL's result.
unsafe fn lock_one(
    rel: pg_sys::Relation,
    t: &mut Txn,
    (tid, r): (Tid, RecordRef),
    want: &Want,
    tmfd: *mut pg_sys::TM_FailureData,
) -> Result<(NonNull<Version>, bool), pg_sys::TM_Result::Type> {
    // SAFETY: `rel` is open, and `tmfd` and the snapshot are those of `lock` (tableam.h:
    // tuple_lock). Versions are reached under our pin (INV-RETIRE).
    unsafe {
        if let Some(n) = t.last_write(r) {
            let w = t.write(n).expect("a number of ours");
            if w.cid >= want.cid {
                let xid = pg_sys::GetCurrentTransactionId();
                failure(tmfd, Tid::Record(r.no), xid, first_command(t, n, want.cid));
                // ON CONFLICT DO UPDATE meets a row that it has updated.
                let again = w.kind == WriteKind::Update && !want.follow && visible::take_conflict(r, n);
                return Err(if again || w.kind == WriteKind::Insert { TM_Invisible } else { TM_SelfModified });
            }
            if w.kind == WriteKind::Delete {
                return Err(gone(t, tmfd, r, Some(w.version)));
            }
            if w.base.is_some() {
                take(rel, t, r, want)?;
            }
            return Ok((w.version, false));
        }
        if want.mode != LockMode::KeyShare {
            if let Some(newest) = already_replaced(t, (tid, r), want.mode, want.snapshot) {
                return Err(gone(t, tmfd, r, newest));
            }
        }
        take(rel, t, r, want)?;
        let found = ok(t.newest(&PG, r.rec));
        if xact::mode() != Mode::Serializable {
            t.note_newest(found);
        }
        let newest = found.map(|v| v.0);
        let Some(v) = newest.filter(|v| !v.as_ref().is_tombstone()) else {
            if let Some(old) = same_key(rel, t, r, want)? {
                return Ok((old, false));
            }
            if want.skipping > 0 {
                return Err(TM_WouldBlock); // as if its writer had still held it
            }
            if xact::mode() == Mode::Serializable {
                raise(t.write_conflict(r, found));
            }
            return Err(gone(t, tmfd, r, newest));
        };
        match xact::mode() {
            Mode::Serializable => {
                let read = match want.mode {
                    LockMode::KeyShare => t.read_locked_key(&PG, r, want.alone),
                    _ => t.read(&PG, r, false),
                };
                let v = ok(read).unwrap_or(v);
                let tested = want.skipping == 1 && visible::is_offered(want.snapshot, r, v);
                Ok((v, want.skipping > 0 && !tested))
            }
            Mode::ReadCommitted => {
                if !want.follow {
                    return Ok((v, false));
                }
                if !want.for_share_or_update {
                    // A row that this command has locked before is not newer than its work.
                    return Ok((v, !based_on(t, (tid, r), want.snapshot, v)));
                }
                if sees(t, r, want.snapshot, v) {
                    return Ok((v, false));
                }
                Ok(still_has_its_key(t, r, want).map_or((v, true), |old| (old, false)))
            }
            _ => {
                if sees(t, r, want.snapshot, v) {
                    return Ok((v, false));
                }
                still_has_its_key(t, r, want).map(|old| (old, false)).ok_or_else(|| gone(t, tmfd, r, newest))
            }
        }
    }
}

/// For KEY SHARE a row may have been updated: keys do not change in place, so that what the
/// snapshot sees is good enough, as in heap.
unsafe fn still_has_its_key(t: &mut Txn, r: RecordRef, want: &Want) -> Option<NonNull<Version>> {
    if want.mode != LockMode::KeyShare {
        return None;
    }
    // SAFETY: the snapshot is that of `lock` (tableam.h: tuple_lock), and an MVCC snapshot: `sees`
    // has found that it does not see the row.
    let seen = unsafe { xact::snapshot_seen(want.snapshot) };
    ok(t.read_snapshot(&PG, r, seen))
}

/// KEY SHARE at REPEATABLE READ of a row that has moved with its key unchanged: the lock is taken
/// on the row where it went, and the caller goes on with the version that its snapshot sees.
unsafe fn same_key(
    rel: pg_sys::Relation,
    t: &mut Txn,
    r: RecordRef,
    want: &Want,
) -> Result<Seen, pg_sys::TM_Result::Type> {
    if xact::mode() != Mode::RepeatableRead || want.mode != LockMode::KeyShare || want.snapshot.is_null() {
        return Ok(None);
    }
    // SAFETY: `rel` is open, and the snapshot is valid, as it is not null here (tableam.h:
    // tuple_lock). Versions are reached under our pin (INV-RETIRE); the successor is asked only of
    // a tombstone.
    unsafe {
        let seen = xact::snapshot_seen(want.snapshot);
        let Some(old) = ok(t.read_snapshot(&PG, r, seen)) else { return Ok(None) };
        let mut at = r;
        loop {
            let Some(v) = ok(t.newest(&PG, at.rec)).map(|v| v.0) else { return Ok(None) };
            if !v.as_ref().is_tombstone() {
                return Ok(Some(old).filter(|_| tuple::same_key(rel, old.as_ptr(), v.as_ptr())));
            }
            let to = Version::successor(v.as_ptr()).record;
            if to == 0 || to == u64::MAX {
                return Ok(None);
            }
            let Some(next) = RecordRef::find(r.table, to - 1) else { return Ok(None) };
            at = next;
            take(rel, t, at, want)?;
        }
    }
}

unsafe fn sees(t: &mut Txn, r: RecordRef, s: pg_sys::Snapshot, v: NonNull<Version>) -> bool {
    // SAFETY: `s` is null or valid: the snapshot of `lock` (tableam.h: tuple_lock).
    let seen = unsafe {
        if s.is_null() || (*s).snapshot_type != pg_sys::SnapshotType::SNAPSHOT_MVCC {
            return true;
        }
        xact::snapshot_seen(s)
    };
    ok(t.at_snapshot(&PG, r.rec, seen)).is_some_and(|x| x.0 == v)
}

/// Takes the partition's lock where `partcc` runs it, and the record's.
unsafe fn take(rel: pg_sys::Relation, t: &mut Txn, r: RecordRef, want: &Want) -> Result<(), pg_sys::TM_Result::Type> {
    use pg_sys::LockWaitPolicy::*;
    let how = if want.policy == LockWaitBlock { How::Wait } else { How::Try };
    // SAFETY: `rel` is open (tableam.h: tuple_lock).
    let oid = unsafe { (*rel).rd_id };
    let is_kept = !xact::recovered::await_rows(oid, r.table, want.mode, how == How::Wait);
    let got = if is_kept { Err(Error::WouldBlock) } else { t.lock_row(&PG, r, want.mode, how) };
    match got {
        Ok(()) => Ok(()),
        Err(Error::WouldBlock) if want.policy == LockWaitSkip => Err(TM_WouldBlock),
        Err(Error::WouldBlock) => {
            // SAFETY: `rel` is open (tableam.h: tuple_lock), so its pg_class row is there; the name
            // is a C string.
            let name = unsafe { crate::pg::text::read((*(*rel).rd_rel).relname.data.as_ptr()) };
            ErrorReport::new(
                PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE,
                format!("could not obtain lock on row in relation \"{}\"", crate::pg::text::shown(&name)),
                "tuple_lock",
            )
            .report(PgLogLevel::ERROR);
            unreachable!()
        }
        Err(e) => raise(e),
    }
}
