//! Errors with a hint.

use crate::pg::text;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::ffi::CStr;

/// Raises `feature_not_supported`.
#[cold]
pub fn unsupported(what: &'static str, hint: &'static str) -> ! {
    ErrorReport::new(PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED, what, "mixedcc")
        .set_hint(hint)
        .report(PgLogLevel::ERROR);
    unreachable!()
}

/// Raises an error.
#[cold]
pub fn complain(code: PgSqlErrorCode, message: &str, hint: &str) -> ! {
    let report = ErrorReport::new(code, text::shown(message), "mixedcc");
    let report = if hint.is_empty() { report } else { report.set_hint(text::shown(hint)) };
    report.report(PgLogLevel::ERROR);
    unreachable!()
}

/// Raises an error with a detail.
#[cold]
pub fn complain_with_detail(code: PgSqlErrorCode, message: &str, detail: &str, hint: &str) -> ! {
    let [message, detail, hint] = [message, detail, hint].map(text::shown);
    ErrorReport::new(code, message, "mixedcc").set_detail(detail).set_hint(hint).report(PgLogLevel::ERROR);
    unreachable!()
}

/// A command, or a function, is refused in a READ ONLY transaction: before it, as PostgreSQL does.
pub fn must_be_writable(command: &CStr) {
    // SAFETY: a variable of this process, and a C string. The ERROR unwinds.
    unsafe {
        if pg_sys::XactReadOnly {
            pg_sys::PreventCommandIfReadOnly(command.as_ptr());
        }
    }
}

/// Raises `feature_not_supported`.
#[cold]
pub fn refuse(message: &str, hint: &str) -> ! {
    complain(PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED, message, hint)
}

mod raw {
    use core::ffi::{c_char, c_int};
    use pgrx::pg_sys;
    extern "C-unwind" {
        // Without the guard of the bindings: an ERROR keeps the names of table and constraint.
        pub fn errstart(level: c_int, domain: *const c_char) -> bool;
        pub fn errfinish(file: *const c_char, line: c_int, function: *const c_char);
        pub fn errcode(code: c_int) -> c_int;
        pub fn errmsg(format: *const c_char, ...) -> c_int;
        pub fn errdetail(format: *const c_char, ...) -> c_int;
        pub fn errtableconstraint(rel: pg_sys::Relation, constraint: *const c_char) -> c_int;
        pub fn BuildIndexValueDescription(
            index: pg_sys::Relation,
            values: *mut pg_sys::Datum,
            nulls: *mut bool,
        ) -> *mut c_char;
    }
}

/// Where two rows with one key were met.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Met {
    /// By the insert of the second one.
    ByInsert,
    /// While the index was built.
    ByBuild,
}

/// Raises nbtree's `unique_violation`, in its words. The ERROR jumps over the caller's frame.
///
/// # Safety
/// An open table and an index of it, and a value for each of the index's columns.
#[cold]
pub unsafe fn duplicate_key(
    heap: pg_sys::Relation,
    index: pg_sys::Relation,
    values: *mut pg_sys::Datum,
    nulls: *mut bool,
    met: Met,
) -> ! {
    // SAFETY: `heap` and `index` are open, and `values` and `nulls` are a key of the index
    // (contract of this function). Formats and arguments are C strings that fit.
    unsafe {
        let key = raw::BuildIndexValueDescription(index, values, nulls);
        let name = (*(*index).rd_rel).relname.data.as_ptr();
        raw::errstart(PgLogLevel::ERROR as i32, std::ptr::null());
        raw::errcode(PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION as i32);
        raw::errmsg(
            match met {
                Met::ByInsert => c"duplicate key value violates unique constraint \"%s\"",
                Met::ByBuild => c"could not create unique index \"%s\"",
            }
            .as_ptr(),
            name,
        );
        match met {
            Met::ByInsert if key.is_null() => 0,
            Met::ByInsert => raw::errdetail(c"Key %s already exists.".as_ptr(), key),
            Met::ByBuild if key.is_null() => raw::errdetail(c"Duplicate keys exist.".as_ptr()),
            Met::ByBuild => raw::errdetail(c"Key %s is duplicated.".as_ptr(), key),
        };
        raw::errtableconstraint(heap, name);
        raw::errfinish(c"errors.rs".as_ptr(), line!() as i32, c"duplicate_key".as_ptr());
    }
    unreachable!("errfinish raises the ERROR")
}
