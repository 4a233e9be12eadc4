//! The planner's hooks: no parallel plans over our tables, and generic plans that the bypass can
//! run.

use crate::paths::bypass;
use crate::pg::previous::PREVIOUS;
use crate::pg::{raw, relations};
use crate::state::{rel, xact};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// Installs the hooks.
pub fn init() {
    // SAFETY: `_PG_init` runs alone, so the hooks have no caller yet.
    unsafe {
        PREVIOUS.get_mut().relation_info = pg_sys::get_relation_info_hook;
        pg_sys::get_relation_info_hook = Some(relation_info);
        PREVIOUS.get_mut().planner_of_generic_plans = pg_sys::planner_hook;
        pg_sys::planner_hook = Some(planner);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn relation_info(
    root: *mut pg_sys::PlannerInfo,
    oid: pg_sys::Oid,
    inhparent: bool,
    info: *mut pg_sys::RelOptInfo,
) {
    // SAFETY: `oid` is a relation that the planner has opened and locked (contract of
    // get_relation_info_hook).
    unsafe {
        if let Some(prev) = PREVIOUS.get().relation_info {
            prev(root, oid, inhparent, info);
        }
        // `inhparent` is set for index builds too.
        let r = relations::entry(oid);
        if rel::is_ours(r) {
            xact::renew_pin(); // estimates may look up the extreme keys of an index
            (*info).rel_parallel_workers = 0;
            if !(*root).glob.is_null() {
                (*(*root).glob).parallelModeOK = false;
            }
        }
        pg_sys::RelationClose(r);
    }
}

unsafe extern "C-unwind" fn planner(
    query: *mut pg_sys::Query,
    text: *const core::ffi::c_char,
    options: core::ffi::c_int,
    params: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    // SAFETY: the arguments are those of planner_hook, and are passed on unchanged.
    unsafe {
        let stmt = match PREVIOUS.get().planner_of_generic_plans {
            Some(prev) => prev(query, text, options, params),
            None => raw::standard_planner(query, text, options, params),
        };
        // Without values: a generic plan, or one of a statement without parameters, or one that
        // says so.
        if params.is_null() {
            bypass::generic::consider(stmt);
        }
        stmt
    }
}
