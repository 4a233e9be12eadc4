//! `pg_prewarm` of a table of ours: it loads the rows of a permanent table, and reads its file.
//!
//! The function asks the access method for the size of the table, and reads so many blocks of the
//! file. But the size that all others get counts rows in memory ([`relation::size`]). So while the
//! function runs, the size is that of the file.

use crate::paths::tableam::relation;
use crate::pg::previous::PREVIOUS;
use crate::pg::text;
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::*;

/// Installs the hooks.
pub fn init() {
    // SAFETY: `_PG_init` runs alone, so the hooks have no caller yet.
    unsafe {
        PREVIOUS.get_mut().needs_call = pg_sys::needs_fmgr_hook;
        pg_sys::needs_fmgr_hook = Some(needs_call);
        PREVIOUS.get_mut().call = pg_sys::fmgr_hook;
        pg_sys::fmgr_hook = Some(called);
    }
}

/// Are the calls of a function told to hooks? Asked once a statement, not for built-in functions.
#[pg_guard]
unsafe extern "C-unwind" fn needs_call(function: Oid) -> bool {
    // SAFETY: PostgreSQL calls this with a function that it has just looked up; the hook before
    // ours gets the same.
    unsafe { PREVIOUS.get().needs_call.is_some_and(|prev| prev(function)) || is_prewarm(function) }
}

#[pg_guard]
unsafe extern "C-unwind" fn called(
    event: pg_sys::FmgrHookEventType::Type,
    function: *mut pg_sys::FmgrInfo,
    arg: *mut Datum,
) {
    use pg_sys::FmgrHookEventType::FHET_START;
    // SAFETY: `function` is what PostgreSQL calls (fmgr.h: fmgr_hook). `arg` is of the hook before
    // ours: this one keeps nothing there.
    unsafe {
        if let Some(prev) = PREVIOUS.get().call {
            prev(event, function, arg);
        }
        relation::count_file(event == FHET_START && is_prewarm((*function).fn_oid));
    }
}

/// Is it the function of the extension pg_prewarm, by whatever name? Only a superuser can make
/// another one of its library.
fn is_prewarm(function: Oid) -> bool {
    // SAFETY: catalog look-up in a transaction. The tuple is used before it is released. What a
    // function in C is linked to is in these columns, of type text (pg_proc.h).
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::PROCOID as i32, function.into());
        if tuple.is_null() {
            return false;
        }
        let form = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_proc>();
        let found = form.prolang == C_LANGUAGE && {
            let library = linked(tuple, pg_sys::Anum_pg_proc_probin);
            let file = library.rsplit('/').next().unwrap_or_default();
            file.trim_end_matches(".so") == "pg_prewarm" && linked(tuple, pg_sys::Anum_pg_proc_prosrc) == "pg_prewarm"
        };
        pg_sys::ReleaseSysCache(tuple);
        found
    }
}

/// The language C (`ClanguageId` of pg_language.dat).
const C_LANGUAGE: Oid = Oid::from_u32(13);

/// A text of a row of pg_proc; empty for NULL.
///
/// # Safety
/// Such a row, and the number of a column of type text.
unsafe fn linked(tuple: pg_sys::HeapTuple, column: u32) -> String {
    let mut null = false;
    // SAFETY: contract of this function. The copy is this function's.
    unsafe {
        let procedure = pg_sys::SysCacheIdentifier::PROCOID as i32;
        let d = pg_sys::SysCacheGetAttr(procedure, tuple, column as i16, &mut null);
        if null {
            return String::new();
        }
        let copy = pg_sys::text_to_cstring(d.cast_mut_ptr());
        let read = text::read(copy);
        pg_sys::pfree(copy.cast());
        read
    }
}
