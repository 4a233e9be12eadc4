//! Records in words, for pg_walinspect and for the messages of recovery.

use crate::pg::wal::record_data;
use mixedcc_engine::durable::wal;
use pgrx::pg_sys;
use pgrx::prelude::*;

/// The content of a record (`rm_desc`).
#[pg_guard]
pub unsafe extern "C-unwind" fn describe(to: pg_sys::StringInfo, reader: *mut pg_sys::XLogReaderState) {
    // SAFETY: PostgreSQL calls it with a string, and with a reader that has a record of ours
    // (contract of rm_desc). The bytes are copied.
    unsafe {
        let (info, data) = record_data(reader);
        let text = wal::describe(info, data);
        pg_sys::appendBinaryStringInfo(to, text.as_ptr().cast(), text.len() as i32);
    }
}

/// The name of a record (`rm_identify`); null if there is none.
#[pg_guard]
pub unsafe extern "C-unwind" fn identify(info: u8) -> *const core::ffi::c_char {
    wal::identify(info).map_or(std::ptr::null(), |name| name.as_ptr())
}
