//! Plans of SELECT: aggregates of, a limit of, locks on the rows of one scan.

use super::{check, column_of, fix_list, plain, scan, without_junk, Found, Reason, Shape};
use crate::pg::compat::mutated;
use pgrx::pg_sys::{self, CmdType, List, Node, NodeTag, Plan};
use pgrx::PgList;

/// Reads a plan. `marks`: all row locks of the statement.
///
/// # Safety
/// A valid plan of a SELECT and the row marks of its statement, or null.
pub unsafe fn read(mut p: *mut Plan, marks: *mut List) -> Found<Shape> {
    // SAFETY: `p` is a valid plan: contract of this function. Each node is what its tag says.
    unsafe {
        let mut above = None;
        if (*p).type_ == NodeTag::T_Agg {
            above = Some(p);
            p = one_row(p)?;
        }
        // What the aggregates see as their input: the list of the node below, or of a subquery.
        let mut input = (*p).targetlist;
        if above.is_some() && (*p).type_ == NodeTag::T_SubqueryScan {
            p = subquery(p)?;
        } else {
            input = std::ptr::null_mut();
        }
        let mut limit = [std::ptr::null_mut(); 2];
        if (*p).type_ == NodeTag::T_Limit {
            limit = limits(p)?;
            p = (*p).lefttree;
        }
        let mut lock = std::ptr::null_mut();
        if (*p).type_ == NodeTag::T_LockRows {
            lock = row_mark(p)?;
            p = (*p).lefttree;
        }
        let mut shape = scan(p, CmdType::CMD_SELECT)?;
        let locked = pg_sys::list_length(marks);
        if locked != i32::from(!lock.is_null()) || !lock.is_null() && (*lock).rti != shape.rti {
            return Err(Reason::Plan);
        }
        (shape.limit, shape.lock) = (limit, lock);
        match above {
            None => {
                shape.list = without_junk((*p).targetlist);
                fix_list(p, shape.list)?;
            }
            Some(agg) => aggregates(&mut shape, agg, input, p)?,
        }
        Ok(shape)
    }
}

/// An aggregation that is one row of all rows; what is below.
unsafe fn one_row(p: *mut Plan) -> Found<*mut Plan> {
    // SAFETY: `read` has a valid node with the tag of an `Agg`.
    unsafe {
        plain(p)?;
        let a = &*p.cast::<pg_sys::Agg>();
        let one = a.aggstrategy == pg_sys::AggStrategy::AGG_PLAIN
            && a.aggsplit == pg_sys::AggSplit::AGGSPLIT_SIMPLE
            && a.numCols == 0
            && a.groupingSets.is_null()
            && a.chain.is_null()
            && (*p).qual.is_null();
        one.then_some((*p).lefttree).ok_or(Reason::Plan)
    }
}

/// A subquery all of whose rows are read as they are; its plan.
unsafe fn subquery(p: *mut Plan) -> Found<*mut Plan> {
    // SAFETY: `read` has a valid node with the tag of a `SubqueryScan`.
    unsafe {
        plain(p)?;
        if !(*p).qual.is_null() || !(*p).lefttree.is_null() {
            return Err(Reason::Plan);
        }
        Ok((*p.cast::<pg_sys::SubqueryScan>()).subplan)
    }
}

/// The expressions of LIMIT and OFFSET.
unsafe fn limits(p: *mut Plan) -> Found<[*mut Node; 2]> {
    // SAFETY: `read` has a valid node with the tag of a `Limit`; its expressions are null or valid.
    unsafe {
        plain(p)?;
        let l = &*p.cast::<pg_sys::Limit>();
        if l.limitOption != pg_sys::LimitOption::LIMIT_OPTION_COUNT {
            return Err(Reason::Plan);
        }
        let mut found = [l.limitCount, l.limitOffset];
        for n in &mut found {
            *n = pg_sys::copyObjectImpl((*n).cast()).cast();
            check(*n, 0, std::ptr::null_mut())?;
        }
        Ok(found)
    }
}

/// The lock that is taken on each row, if it is on rows of one table.
unsafe fn row_mark(p: *mut Plan) -> Found<*mut pg_sys::PlanRowMark> {
    // SAFETY: `read` has a valid node with the tag of a `LockRows`; its list is of row marks.
    unsafe {
        plain(p)?;
        let marks = (*p.cast::<pg_sys::LockRows>()).rowMarks;
        if pg_sys::list_length(marks) != 1 {
            return Err(Reason::Plan);
        }
        let m = pg_sys::list_nth(marks, 0).cast::<pg_sys::PlanRowMark>();
        let own = !(*m).isParent && (*m).rti == (*m).prti && (*m).markType <= pg_sys::RowMarkType::ROW_MARK_KEYSHARE;
        own.then(|| pg_sys::copyObjectImpl(m.cast()).cast()).ok_or(Reason::Plan)
    }
}

/// What aggregates see of the rows.
struct Input {
    found: Vec<*mut pg_sys::Aggref>,
    /// The list of the subquery, or null.
    of_subquery: *mut List,
    /// The list of the scan.
    of_scan: *mut List,
    /// Does the aggregation's list name columns of the rows below outside of aggregates?
    has_columns: bool,
}

/// Reads the list of an aggregation: aggregates become columns of a row of their own, and their
/// arguments those of the table. (Where the rows below are more than columns, computing them may
/// fail: not here.)
unsafe fn aggregates(shape: &mut Shape, agg: *mut Plan, of_subquery: *mut List, scan: *mut Plan) -> Found<()> {
    // SAFETY: `read` has valid nodes: `agg` has the tag of an `Agg`, and `scan` one that `scan`
    // accepts. `input` lives longer than the walks that change it.
    unsafe {
        if (*scan).type_ == NodeTag::T_IndexOnlyScan {
            return Err(Reason::Plan);
        }
        let is_column = |e: *mut pg_sys::TargetEntry| (*(*e).expr).type_ == NodeTag::T_Var;
        if !PgList::<pg_sys::TargetEntry>::from_pg((*scan).targetlist).iter_ptr().all(is_column) {
            return Err(Reason::Plan);
        }
        let mut input = Input { found: Vec::new(), of_subquery, of_scan: (*scan).targetlist, has_columns: false };
        let list = mutated((*agg).targetlist.cast(), replaced, (&raw mut input).cast());
        let outer = pg_sys::OUTER_VAR as u32;
        check(list, outer, std::ptr::null_mut())?;
        if input.has_columns {
            return Err(Reason::Plan);
        }
        let found = std::mem::take(&mut input.found);
        if found.is_empty() {
            return Err(Reason::Plan); // all were folded away, and there is one row all the same
        }
        for a in &found {
            let args = (**a).args.cast::<Node>();
            let of_table = mutated(args, of_row, (&raw mut input).cast());
            check(of_table, shape.rti, std::ptr::null_mut())?;
            (**a).args = of_table.cast();
        }
        shape.list = list.cast();
        shape.aggregates = found;
        Ok(())
    }
}

/// A column of the row of aggregates in place of each.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn replaced(node: *mut Node, context: *mut core::ffi::c_void) -> *mut Node {
    // SAFETY: `expression_tree_mutator` gives a valid node or null (nodeFuncs.h). `aggregates`
    // gives its `Input` as the context, and uses it only after the walk.
    unsafe {
        if node.is_null() || (*node).type_ != NodeTag::T_Aggref {
            (*context.cast::<Input>()).has_columns |= !node.is_null() && (*node).type_ == NodeTag::T_Var;
            return mutated(node, replaced, context);
        }
        let input = &mut *context.cast::<Input>();
        let a = pg_sys::copyObjectImpl(node.cast()).cast::<pg_sys::Aggref>();
        input.found.push(a);
        let n = input.found.len() as i16;
        pg_sys::makeVar(pg_sys::OUTER_VAR, n, (*a).aggtype, -1, (*a).aggcollid, 0).cast()
    }
}

/// A column of the table in place of one of the rows below. One that is not known stays: `check`
/// refuses it.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn of_row(node: *mut Node, context: *mut core::ffi::c_void) -> *mut Node {
    // SAFETY: `expression_tree_mutator` gives a valid node or null (nodeFuncs.h). `aggregates`
    // gives its `Input` as the context; the lists in it are target lists of the plan.
    unsafe {
        if node.is_null() || (*node).type_ != NodeTag::T_Var {
            return mutated(node, of_row, context);
        }
        let input = &*context.cast::<Input>();
        let mut v = node.cast::<pg_sys::Var>();
        for list in [input.of_subquery, input.of_scan] {
            if list.is_null() {
                continue;
            }
            let Some(below) = column_of(list, (*v).varattno) else { return node };
            v = below;
        }
        pg_sys::copyObjectImpl(v.cast()).cast()
    }
}
