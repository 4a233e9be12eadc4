//! Generic plans of ranges of the primary key.
//!
//! The plan cache keeps a plan for all values of a statement's parameters (a generic plan) only if
//! it looks cheap (plancache.c, `choose_custom_plan`). It must look no dearer than plans made for
//! the values each time. Where a bound or a LIMIT is a parameter the planner guesses: half a
//! percent of the table for two bounds, a third for one, a tenth of the rows for a LIMIT. So a
//! statement that reads fifty rows is planned anew each time, which costs ten times what it does.
//!
//! The guess does not matter if all values give the same plan: then what a custom plan can save is
//! nothing, and it costs its planning. That is so for a scan of the primary index that `plan` can
//! read, under two conditions. Only its bounds depend on parameters, and no other index could serve
//! its other conditions. Such a generic plan gets a cost below that of any planning.
//! `plan_cache_mode` decides as ever.

use super::plan::{self, Shape};
use crate::access::range;
use crate::pg::guc;
use pgrx::pg_sys::{self, List, Node, NodeTag, Plan};
use pgrx::prelude::*;

/// Takes a plan that was made without values of parameters: a generic plan, or one of a statement
/// that has none. If it is the same for all values, it gets a cost that says so.
///
/// # Safety
/// A plan that was made just now, whose tables are locked.
pub unsafe fn consider(stmt: *mut pg_sys::PlannedStmt) {
    // SAFETY: `stmt` is a valid plan: contract of this function.
    unsafe {
        if guc::ENABLE_BYPASS.get() && scans_primary((*stmt).planTree) {
            cheapen(stmt);
        }
    }
}

/// Is it a plan above a scan of the primary index? A look, so that other tables' plans cost
/// nothing.
unsafe fn scans_primary(mut p: *mut Plan) -> bool {
    // SAFETY: `consider` has a valid plan, and the children of valid nodes are valid or null. Each
    // node is what its tag says.
    unsafe {
        while !p.is_null() {
            p = match (*p).type_ {
                NodeTag::T_Limit | NodeTag::T_LockRows | NodeTag::T_Agg | NodeTag::T_ModifyTable => (*p).lefttree,
                NodeTag::T_SubqueryScan => (*p.cast::<pg_sys::SubqueryScan>()).subplan,
                NodeTag::T_CustomScan => return range::plan::is_ours(p),
                _ => return false,
            };
        }
        false
    }
}

/// Less than the plan cache counts for any planning (`cached_plan_cost`).
fn below_planning() -> f64 {
    // SAFETY: a plain read of a setting.
    unsafe { 1000.0 * pg_sys::cpu_operator_cost }
}

/// Gives a plan that is the same for all parameters a cost that says so.
#[pg_guard]
unsafe extern "C-unwind" fn cheapen(stmt: *mut pg_sys::PlannedStmt) {
    // SAFETY: `consider` has a valid plan with locked tables, and `scans_primary` found its top not
    // null. Copies of expressions go with the context.
    unsafe {
        let top = (*stmt).planTree;
        if (*top).total_cost <= below_planning() {
            return;
        }
        let context = pg_sys::AllocSetContextCreateInternal(
            pg_sys::CurrentMemoryContext,
            c"mixedcc generic plan".as_ptr(),
            pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
            pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
        );
        let old = pg_sys::MemoryContextSwitchTo(context);
        let same = plan::read(stmt).is_ok_and(|shape| is_same_for_all(stmt, &shape));
        pg_sys::MemoryContextSwitchTo(old);
        pg_sys::MemoryContextDelete(context);
        if same {
            (*top).total_cost = below_planning();
            (*top).startup_cost = (*top).startup_cost.min((*top).total_cost);
        }
    }
}

/// Would values of the parameters change nothing of the plan?
unsafe fn is_same_for_all(stmt: *mut pg_sys::PlannedStmt, shape: &Shape) -> bool {
    // SAFETY: `cheapen` has a valid plan, and `plan::read` has made `shape` of it in the current
    // context.
    unsafe {
        // An INSERT has no scan.
        if shape.node.is_null() || (*shape.node).type_ != NodeTag::T_CustomScan {
            return false;
        }
        let (bounds, rest) = shape.quals.split_at(shape.n_index_quals);
        let depends = |n: &*mut Node| has_parameter(*n, std::ptr::null_mut());
        let asked = bounds.iter().any(depends) || shape.limit.iter().any(depends);
        asked && !rest.iter().any(depends) && (rest.is_empty() || has_one_index(stmt, shape.rti))
    }
}

/// A parameter of the statement anywhere in an expression.
#[pg_guard]
unsafe extern "C-unwind" fn has_parameter(node: *mut Node, context: *mut core::ffi::c_void) -> bool {
    // SAFETY: `expression_tree_walker` gives a valid node or null (nodeFuncs.h), and the node is
    // what its tag says.
    unsafe {
        if node.is_null() {
            return false;
        }
        if (*node).type_ == NodeTag::T_Param {
            return (*node.cast::<pg_sys::Param>()).paramkind == pg_sys::ParamKind::PARAM_EXTERN;
        }
        pg_sys::expression_tree_walker(node, Some(has_parameter), context)
    }
}

/// Is the primary key's index the table's only one?
unsafe fn has_one_index(stmt: *mut pg_sys::PlannedStmt, rti: u32) -> bool {
    // SAFETY: `consider` has a valid plan, whose tables are locked. The reference to `table` is
    // held until `RelationClose`.
    unsafe {
        let Some(entry) = super::plan::range_entry(stmt, rti) else { return false };
        let table = pg_sys::RelationIdGetRelation((*entry).relid);
        if table.is_null() {
            return false;
        }
        let indexes: *mut List = pg_sys::RelationGetIndexList(table);
        pg_sys::RelationClose(table);
        pg_sys::list_length(indexes) == 1
    }
}
