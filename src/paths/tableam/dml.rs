//! INSERT, UPDATE, DELETE and row locks.

use crate::access::{lock, write};
use crate::pg::Tid;
use pgrx::pg_sys;
use pgrx::prelude::*;

#[pg_guard]
pub unsafe extern "C-unwind" fn insert(
    rel: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    cid: pg_sys::CommandId,
    _options: i32,
    _a: *mut pg_sys::BulkInsertStateData,
) {
    // SAFETY: tableam.h's contract.
    unsafe { write::insert(rel, &[slot], cid) }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn multi_insert(
    rel: pg_sys::Relation,
    slots: *mut *mut pg_sys::TupleTableSlot,
    n: i32,
    cid: pg_sys::CommandId,
    _options: i32,
    _a: *mut pg_sys::BulkInsertStateData,
) {
    // SAFETY: tableam.h's contract: an array of so many slots.
    unsafe { write::insert(rel, std::slice::from_raw_parts(slots, n as usize), cid) }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn insert_speculative(
    rel: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    cid: pg_sys::CommandId,
    _options: i32,
    _a: *mut pg_sys::BulkInsertStateData,
    token: u32,
) {
    // SAFETY: tableam.h's contract.
    unsafe { write::insert_speculative(rel, slot, cid, token) }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn complete_speculative(
    rel: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    _token: u32,
    succeeded: bool,
) {
    // SAFETY: tableam.h's contract.
    unsafe { write::complete_speculative(rel, slot, succeeded) }
}

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
    // SAFETY: tableam.h's contract.
    unsafe { write::delete(rel, Tid::read(&*tid), cid, snapshot, crosscheck, tmfd, changing_part) }
}

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
    // SAFETY: tableam.h's contract.
    unsafe { lock::lock(rel, tid, snapshot, slot, cid, mode, policy, flags, tmfd) }
}
