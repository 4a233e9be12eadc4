//! Making records in WAL. The names are the same in all versions; the arguments differ in signs and
//! in `const`.

use pgrx::pg_sys;

mod raw {
    use core::ffi::c_char;
    extern "C-unwind" {
        // In a critical section these raise nothing but PANIC, which does not return.
        pub fn XLogBeginInsert();
        pub fn XLogRegisterData(data: *const c_char, len: u32);
        pub fn XLogSetRecordFlags(flags: u8);
        pub fn XLogInsert(manager: u8, info: u8) -> u64;
    }
}

/// Begins a record. Its buffers are registered next, if it has some, and then its data.
///
/// # Safety
/// In a critical section, or under the bindings' guard. No other record is begun.
#[inline]
pub unsafe fn begin_record() {
    // SAFETY: the contract of this function.
    unsafe { raw::XLogBeginInsert() };
}

/// Adds main data to the record. PostgreSQL has room for 20 parts.
///
/// # Safety
/// In a critical section, or under the bindings' guard, with a record begun. The data stays where
/// it is until the record is inserted.
#[inline]
pub unsafe fn register_data(data: &[u8]) {
    // SAFETY: the contract of this function. A record is below 1 GB, so its length fits.
    unsafe { raw::XLogRegisterData(data.as_ptr().cast(), data.len() as u32) };
}

/// Inserts the record. Returns where it ends. Allocates nothing in a critical section.
///
/// # Safety
/// In a critical section, or under the bindings' guard, with a record begun.
#[inline]
pub unsafe fn insert_record(manager: u8, info: u8, flags: u8) -> pg_sys::XLogRecPtr {
    // SAFETY: the contract of this function.
    unsafe {
        raw::XLogSetRecordFlags(flags);
        raw::XLogInsert(manager, info)
    }
}
