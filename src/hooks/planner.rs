//! The planner's hooks: which parallel plans there are over our tables, and generic plans that the
//! bypass can run.

use crate::access::{altered, indexscan, primary};
use crate::admin::versions;
use crate::paths::bypass;
use crate::pg::previous::PREVIOUS;
use crate::pg::{self, raw, relations};
use crate::state::rel;
use crate::state::xact::{self, parallel};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// Entries of an nbtree leaf, and children of a page above, for small keys: from these the planner
/// gets the levels of a hollow index.
const FIRST_LEAF: u64 = 367;
const CHILDREN: u64 = 285;

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
        let r = relations::entry(oid);
        if rel::is_ours(r) {
            versions::compare_once();
            xact::renew_pin(); // estimates may look up the extreme keys of an index
            size_hollow(r, info);
            if is_build(root, inhparent) {
                if altered::any() || !parallel::may_share_build() {
                    (*info).rel_parallel_workers = 0;
                }
            } else if inhparent || !may_have_workers(root, info) {
                (*info).rel_parallel_workers = 0;
                if !(*root).glob.is_null() {
                    (*(*root).glob).parallelModeOK = false;
                }
            }
            for i in pgrx::PgList::<pg_sys::IndexOptInfo>::from_pg((*info).indexlist).iter_ptr() {
                (*i).amcanparallel &= indexscan::takes_workers(rel::info(r), r, (*i).indexoid, (*i).relam);
            }
        }
        pg_sys::RelationClose(r);
    }
}

/// Is a query none, but the size of a table that an index is about to be built for
/// (plan_create_index_workers)? Such a query has no FROM.
unsafe fn is_build(root: *mut pg_sys::PlannerInfo, inhparent: bool) -> bool {
    // SAFETY: `relation_info` has a valid structure of the planner, with its query.
    unsafe { inhparent && (*(*root).parse).jointree.is_null() }
}

/// Is it worth looking at parallel plans? They read by a snapshot (`hooks/parallel.rs`). A
/// statement over one small table has none, and need not be looked at.
unsafe fn may_have_workers(root: *mut pg_sys::PlannerInfo, info: *mut pg_sys::RelOptInfo) -> bool {
    // SAFETY: `relation_info` has valid structures of the planner; the settings are plain reads.
    unsafe {
        let alone = (*root).simple_rel_array_size <= 2;
        let small = (*info).pages < pg_sys::min_parallel_table_scan_size as u32;
        let may = !pg::is_serializable() || pg_sys::XactReadOnly;
        // The list of what a copy leaves out may be too long for workers.
        may && !(alone && small) && !xact::copies::has_begun()
    }
}

/// Tells the planner the sizes of hollow indexes, whose files say nothing: as nbtree's would be.
unsafe fn size_hollow(rel: pg_sys::Relation, info: *mut pg_sys::RelOptInfo) {
    // SAFETY: `rel` is open and of ours, and `info` has a list of its indexes: `relation_info`. The
    // transaction is pinned while it looks at the indexes in memory.
    unsafe {
        if (*info).indexlist.is_null() {
            // As for a build of an index: other sessions may build others, and have their locks.
            return;
        }
        for i in pgrx::PgList::<pg_sys::IndexOptInfo>::from_pg((*info).indexlist).iter_ptr() {
            let Some(key) = primary::hollow_key(rel, rel::info(rel), (*i).indexoid) else { continue };
            let index = &key.primary.index;
            let pages = if index.is_empty() { 0 } else { index.bytes().div_ceil(pg_sys::BLCKSZ as u64) };
            (*i).pages = 1 + pages.min(u32::MAX as u64 / 2) as u32;
            (*i).tree_height = match index.len() {
                0..=FIRST_LEAF => 0,
                n => 1 + i32::from(n > FIRST_LEAF * CHILDREN),
            };
        }
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
