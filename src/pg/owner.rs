//! Work on a table that any session may have to do, and that runs code of the table's owner: CHECKs
//! of domains, where the bounds of a partition key are read, and functions of the types of keys.
//!
//! **INV-OWNER**: Where a table's options are read, or its rows are loaded, caught up or placed
//! anew, code has the rights of the table's owner, and a safe search_path. For the user may be a
//! superuser that only reads a row.

use pgrx::pg_sys::{self, Oid};
use std::ffi::CStr;

/// Sets a setting up to the end of the level that `NewGUCNestLevel` has begun.
///
/// # Safety
/// There is such a level, and the value fits the setting. An ERROR unwinds.
pub unsafe fn set_on_level(name: &CStr, value: &CStr) {
    // SAFETY: both are C strings, which PostgreSQL copies.
    unsafe {
        pg_sys::set_config_option(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_SAVE,
            true,
            0,
            false,
        );
    }
}

/// Runs `f` with the rights of a relation's owner, as CLUSTER, REINDEX and VACUUM do (cluster.c).
/// The search_path is that of these commands since version 17. So the session, in turn, lends the
/// owner's code no functions, and a label means the same in each session.
///
/// # Safety
/// An open relation. An ERROR of `f` unwinds, up to the abort of its (sub)transaction, which gives
/// user and settings back.
pub unsafe fn as_owner<R>(rel: pg_sys::Relation, f: impl FnOnce() -> R) -> R {
    // SAFETY: `rel` is open (contract of this function). What is set here goes back at the end, or
    // in an abort.
    unsafe {
        let (mut user, mut context) = (Oid::INVALID, 0);
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        let restricted = context | pg_sys::SECURITY_RESTRICTED_OPERATION as i32;
        pg_sys::SetUserIdAndSecContext((*(*rel).rd_rel).relowner, restricted);
        let level = pg_sys::NewGUCNestLevel();
        set_on_level(c"search_path", c"pg_catalog, pg_temp");
        let result = f();
        pg_sys::AtEOXact_GUC(false, level);
        pg_sys::SetUserIdAndSecContext(user, context);
        result
    }
}
