//! INSERT, UPDATE, DELETE and row locks.

use crate::access::{deferred, lock, write};
use crate::pg::Tid;
use pgrx::pg_sys;
use pgrx::prelude::*;

/// # Safety
/// tableam.h's contract of `tuple_insert`.
#[pg_guard]
pub unsafe extern "C-unwind" fn insert(
    rel: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    cid: pg_sys::CommandId,
    _options: i32,
    _a: *mut pg_sys::BulkInsertStateData,
) {
    // SAFETY: `rel` is open and locked, and `slot` holds a row of its type (tableam.h:
    // tuple_insert).
    unsafe { write::insert(rel, &[slot], cid) }
}

/// # Safety
/// tableam.h's contract of `multi_insert`.
#[pg_guard]
pub unsafe extern "C-unwind" fn multi_insert(
    rel: pg_sys::Relation,
    slots: *mut *mut pg_sys::TupleTableSlot,
    n: i32,
    cid: pg_sys::CommandId,
    _options: i32,
    _a: *mut pg_sys::BulkInsertStateData,
) {
    // SAFETY: `slots` is an array of `n` slots with rows of `rel`'s type (tableam.h: multi_insert).
    unsafe { write::insert(rel, std::slice::from_raw_parts(slots, n as usize), cid) }
}

/// # Safety
/// tableam.h's contract of `tuple_insert_speculative`.
#[pg_guard]
pub unsafe extern "C-unwind" fn insert_speculative(
    rel: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    cid: pg_sys::CommandId,
    _options: i32,
    _a: *mut pg_sys::BulkInsertStateData,
    token: u32,
) {
    // SAFETY: `rel` is open and locked, and `slot` holds a row of its type (tableam.h:
    // tuple_insert_speculative).
    unsafe { write::insert_speculative(rel, slot, cid, token) }
}

/// # Safety
/// tableam.h's contract of `tuple_complete_speculative`.
#[pg_guard]
pub unsafe extern "C-unwind" fn complete_speculative(
    rel: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    _token: u32,
    succeeded: bool,
) {
    // SAFETY: `slot` still has the TID that `insert_speculative` gave it (tableam.h:
    // tuple_complete_speculative).
    unsafe { write::complete_speculative(rel, slot, succeeded) }
}

/// # Safety
/// tableam.h's contract of `tuple_delete`.
#[pg_guard]
pub unsafe extern "C-unwind" fn delete(
    rel: pg_sys::Relation,
    tid: pg_sys::ItemPointer,
    cid: pg_sys::CommandId,
    snapshot: pg_sys::Snapshot,
    crosscheck: pg_sys::Snapshot,
    _wait: bool,
    tmfd: *mut pg_sys::TM_FailureData,
    changing_part: bool,
) -> pg_sys::TM_Result::Type {
    // SAFETY: `rel` is open and locked, `tid` readable, `tmfd` writable (tableam.h: tuple_delete).
    unsafe {
        deferred::before_look((*rel).rd_id);
        write::delete(rel, Tid::read(&*tid), cid, snapshot, crosscheck, tmfd, changing_part)
    }
}

/// # Safety
/// tableam.h's contract of `tuple_lock`.
#[pg_guard]
pub unsafe extern "C-unwind" fn tuple_lock(
    rel: pg_sys::Relation,
    tid: pg_sys::ItemPointer,
    snapshot: pg_sys::Snapshot,
    slot: *mut pg_sys::TupleTableSlot,
    cid: pg_sys::CommandId,
    mode: pg_sys::LockTupleMode::Type,
    policy: pg_sys::LockWaitPolicy::Type,
    flags: u8,
    tmfd: *mut pg_sys::TM_FailureData,
) -> pg_sys::TM_Result::Type {
    // SAFETY: `rel` is open and locked, `slot` one of `slot_callbacks`, `tmfd` writable (tableam.h:
    // tuple_lock).
    unsafe {
        deferred::before_look((*rel).rd_id);
        lock::lock(rel, tid, snapshot, slot, cid, (mode, false), policy, flags, tmfd)
    }
}
