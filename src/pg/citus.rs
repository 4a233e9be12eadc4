//! Citus's executor hooks: are they the only ones before ours, and would they see a statement?
//!
//! Citus must be the first library, so its hooks are always below ours. Around a statement that is
//! none of its own they count how deep executors are nested, which matters only to functions that
//! the statement calls, and count tenants. A statement that says its tenant begins with a comment
//! for that. (Citus 13: `CitusExecutorStart`, `CitusExecutorRun`, `CitusAttributeToEnd`.)

use super::libraries;
use pgrx::pg_sys;
use std::ffi::{c_char, c_void, CStr};

/// How the coordinator's comments begin (`ATTRIBUTE_PREFIX` of Citus).
const TENANT: &[u8] = b"/*{\"cId\":";

/// Are these hooks Citus's, and was no library loaded before it, whose hooks it would call?
pub fn has_all(hooks: &[*const c_void]) -> bool {
    is_first() && hooks.iter().all(|hook| is_its(*hook))
}

fn is_its(hook: *const c_void) -> bool {
    libraries::is_in(hook, b"/citus.so")
}

/// Is it the first of the preloaded libraries?
fn is_first() -> bool {
    // SAFETY: the setting is null or a C string, and no statement runs that could change it.
    unsafe {
        let list = pg_sys::shared_preload_libraries_string;
        !list.is_null() && first_of(CStr::from_ptr(list).to_bytes()) == b"citus"
    }
}

fn first_of(list: &[u8]) -> &[u8] {
    let first = list.split(|c| *c == b',').next().unwrap_or(list);
    let first = first.trim_ascii();
    let first = first.strip_prefix(b"\"").and_then(|f| f.strip_suffix(b"\"")).unwrap_or(first);
    first.strip_prefix(b"$libdir/").unwrap_or(first)
}

/// Would Citus count the statement for a tenant, if `citus.stat_tenants_track` says so?
///
/// # Safety
/// Null or a C string.
#[inline]
pub unsafe fn counts(text: *const c_char) -> bool {
    // SAFETY: a C string (contract of this function): each byte is read only behind equal ones,
    // none of which is its end.
    unsafe { !text.is_null() && TENANT.iter().enumerate().all(|(i, c)| *text.add(i) as u8 == *c) }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn first_library() {
        for list in ["citus", "citus,mixedcc", " citus , mixedcc", "\"citus\",x", "$libdir/citus,x"] {
            assert_eq!(first_of(list.as_bytes()), b"citus", "{list}");
        }
        for list in ["", "mixedcc", "auto_explain,citus,mixedcc", "citus_columnar"] {
            assert_ne!(first_of(list.as_bytes()), b"citus", "{list}");
        }
    }

    #[test]
    fn statements_with_a_tenant() {
        // SAFETY: C strings.
        let is = |text: &CStr| unsafe { counts(text.as_ptr()) };
        assert!(is(c"/*{\"cId\":1,\"tId\":\"1\"}*/SELECT"));
        assert!(!is(c"/*{\"cId") && !is(c"") && !is(c"SELECT 1") && !is(c"/* x */"));
        // SAFETY: null is allowed.
        assert!(!unsafe { counts(std::ptr::null()) });
    }
}
