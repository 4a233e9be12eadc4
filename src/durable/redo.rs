//! Replay of records.

use pgrx::pg_sys;
use pgrx::prelude::*;

/// Replays a record (`rm_redo`).
#[pg_guard]
pub unsafe extern "C-unwind" fn redo(_reader: *mut pg_sys::XLogReaderState) {
    error!("records of mixedcc tables cannot be replayed yet");
}

/// Replay begins (`rm_startup`).
#[pg_guard]
pub unsafe extern "C-unwind" fn startup() {}

/// Replay ends (`rm_cleanup`).
#[pg_guard]
pub unsafe extern "C-unwind" fn cleanup() {}
