//! A database whose SQL objects are of another version than the library: its sessions are told
//! what to do.

use crate::pg::local::Local;
use crate::pg::text;
use pgrx::pg_sys::{self, panic::ErrorReport, Datum};
use pgrx::prelude::*;

/// The version that CREATE EXTENSION installs with this library.
const LIBRARY: &str = env!("CARGO_PKG_VERSION");

/// Of the process: it has compared the versions.
static COMPARED: Local<bool> = Local::new(false);

/// At the first statement of a session that uses a table of ours: a WARNING if CREATE EXTENSION or
/// ALTER EXTENSION UPDATE of another version has made the SQL objects.
#[inline]
pub fn compare_once() {
    if !COMPARED.replace(true) {
        compare();
    }
}

#[cold]
fn compare() {
    let Some(objects) = installed() else { return };
    if objects == LIBRARY {
        return;
    }
    let message = format!("the SQL objects of mixedcc are of version {objects}, its library is of version {LIBRARY}");
    let hint = if is_older(&objects) {
        "Run ALTER EXTENSION mixedcc UPDATE in this database."
    } else {
        "Install the library of the newer version, and restart the server."
    };
    ErrorReport::new(PgSqlErrorCode::ERRCODE_WARNING, text::shown(&message), "mixedcc")
        .set_hint(hint)
        .report(PgLogLevel::WARNING);
}

/// Is a version older than the library? Versions are numbers with dots between them.
fn is_older(objects: &str) -> bool {
    let numbers = |v: &str| v.split('.').map(|n| n.parse::<u32>().unwrap_or(0)).collect::<Vec<_>>();
    numbers(objects) < numbers(LIBRARY)
}

/// The version of the extension in this database; none: it is not installed here.
fn installed() -> Option<String> {
    // SAFETY: a transaction is under way, as statements are planned in one. `catalog` and `scan`
    // are open until their last use, and `tup` lasts until the next one is asked for. The arrays
    // have an entry for each column of pg_extension. An ERROR leaves both to the resource owner.
    unsafe {
        let none = std::ptr::null_mut();
        let catalog = pg_sys::table_open(pg_sys::ExtensionRelationId, pg_sys::AccessShareLock as i32);
        let scan = pg_sys::systable_beginscan(catalog, pg_sys::InvalidOid, false, none, 0, std::ptr::null_mut());
        let mut values = [Datum::from(0usize); pg_sys::Natts_pg_extension as usize];
        let mut nulls = [false; pg_sys::Natts_pg_extension as usize];
        let mut found = None;
        loop {
            let tup = pg_sys::systable_getnext(scan);
            if tup.is_null() {
                break;
            }
            pg_sys::heap_deform_tuple(tup, (*catalog).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
            let name = values[pg_sys::Anum_pg_extension_extname as usize - 1].cast_mut_ptr::<pg_sys::NameData>();
            if std::ffi::CStr::from_ptr((*name).data.as_ptr()) == c"mixedcc" {
                found = Some(text::of_datum(values[pg_sys::Anum_pg_extension_extversion as usize - 1]));
                break;
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(catalog, pg_sys::AccessShareLock as i32);
        found
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn versions_are_compared_by_numbers() {
        assert!(is_older("0.1.0") && is_older("0.1.10"));
        assert!(!is_older(LIBRARY) && !is_older("10.0.0") && !is_older("0.20.0"));
    }
}
