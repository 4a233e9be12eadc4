//! The planner must not make parallel plans over our tables.

use crate::state::{rel, xact};
use pgrx::pg_sys;
use pgrx::prelude::*;

static mut PREV: pg_sys::get_relation_info_hook_type = None;

/// Installs the hook.
pub fn init() {
    // SAFETY: `_PG_init` runs alone.
    unsafe {
        PREV = pg_sys::get_relation_info_hook;
        pg_sys::get_relation_info_hook = Some(relation_info);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn relation_info(
    root: *mut pg_sys::PlannerInfo,
    oid: pg_sys::Oid,
    inhparent: bool,
    info: *mut pg_sys::RelOptInfo,
) {
    // SAFETY: the hook's contract; the relation is open and locked.
    unsafe {
        if let Some(prev) = PREV {
            prev(root, oid, inhparent, info);
        }
        // `inhparent` is set for index builds too.
        let r = pg_sys::RelationIdGetRelation(oid);
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
