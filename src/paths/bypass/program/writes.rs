//! What a program writes: the new row of INSERT and UPDATE, and what it must fulfil.

use super::{copied, zeroed, Program};
use crate::access::{deferred, looked};
use crate::paths::bypass::plan::{self, Shape};
use crate::paths::bypass::Reason;
use crate::pg::compat::{attribute, is_enforced};
use crate::state::rel;
use mixedcc_engine::range::Columns;
use pgrx::pg_sys::{self, CmdType, List, NodeTag};
use pgrx::PgList;

/// What INSERT and UPDATE need: the new row, and what it must fulfil.
///
/// # Safety
/// `table` is open and `desc` is its row type. `compile` makes `p`, which has its expression
/// context.
pub unsafe fn new_row(
    p: *mut Program,
    table: pg_sys::Relation,
    desc: pg_sys::TupleDesc,
    shape: &Shape,
) -> Result<(), Reason> {
    // SAFETY: `table` is open, `desc` is its row type, and `p` is being made: contract of this
    // function. `constr` has `num_check` constraints.
    unsafe {
        let null = std::ptr::null_mut();
        let slot = pg_sys::MakeTupleTableSlot(desc, &raw const pg_sys::TTSOpsVirtual);
        if shape.op == CmdType::CMD_UPDATE {
            let sets: Vec<i16> = PgList::<i32>::from_pg(shape.columns).iter_int().map(|c| c as i16).collect();
            (*p).n_sets = sets.len();
            (*p).sets = copied(&sets);
            (*p).sets_of = looked::of_numbers(sets.iter().map(|c| *c as u32));
            if moves(p, rel::info(table)) {
                return Err(Reason::Moves);
            }
            (*p).new =
                pg_sys::ExecBuildUpdateProjection(shape.list, true, shape.columns, desc, (*p).econtext, slot, null);
            let t = (*table).trigdesc;
            (*p).own_rows = !t.is_null() && ((*t).trig_update_after_row || (*t).trig_insert_after_row);
            // A row that was written before sends the statement to the executor: the first one
            // must tell.
            if (*p).own_rows && !(*p).range.is_null() {
                return Err(Reason::Triggers);
            }
            additions(p, table, shape);
        } else {
            fits(shape.list, desc)?;
            rows(p, &shape.rows);
            (*p).new = pg_sys::ExecBuildProjectionInfo(shape.list, (*p).econtext, slot, null, null.cast());
        }
        let columns = (0..(*desc).natts as usize).filter(|i| attribute(desc, *i).attnotnull);
        let not_null: Vec<i16> = columns.map(|i| i as i16 + 1).collect();
        (*p).n_not_null = not_null.len();
        (*p).not_null = copied(&not_null);
        let constr = (*desc).constr;
        if constr.is_null() {
            return Ok(());
        }
        if (*constr).has_generated_stored {
            return Err(Reason::Constraints);
        }
        let n = (*constr).num_check as usize;
        (*p).checks = zeroed(n);
        for check in (0..n).map(|i| &*(*constr).check.add(i)).filter(|c| is_enforced(c)) {
            let node = pg_sys::stringToNode(check.ccbin).cast::<pg_sys::Node>();
            if plan::calls_foreign(node) {
                return Err(Reason::Constraints); // the planner would run it, though no row may come
            }
            let expr = pg_sys::expression_planner(node.cast());
            plan::check(expr.cast(), 1, null.cast()).map_err(|_| Reason::Constraints)?;
            *(*p).checks.add((*p).n_checks) = pg_sys::ExecInitExpr(expr, null.cast());
            (*p).n_checks += 1;
        }
        Ok(())
    }
}

/// May the UPDATE be deferred? It adds to columns of the row of a key, and returns no column that
/// it changes. Its row triggers, if any, are foreign keys' whose columns stay (`triggers::queues`
/// says so of the referencing columns, and `moves` of the others, which are in an index). They ask
/// of rows that this transaction has written, and such rows are not deferred (`deferred::find`).
unsafe fn additions(p: *mut Program, table: pg_sys::Relation, shape: &Shape) {
    // SAFETY: `new_row` makes `p`, with its conditions, and `table` is open. `shape` has copies of
    // valid lists.
    unsafe {
        let constr = (*(*table).rd_att).constr;
        let n = if constr.is_null() { 0 } else { (*constr).num_check as usize };
        // A condition that depends on settings may have another answer at the end. So may one that
        // calls a user's function, of which the end would take the body in anew: with the
        // search_path and the rights of then. (`new_row` has looked at what the planner made of
        // it.)
        let mut checks = (0..n).map(|i| pg_sys::stringToNode((*(*constr).check.add(i)).ccbin));
        let varies = checks.any(|c| pg_sys::contain_mutable_functions(c.cast()) || plan::calls_foreign(c.cast()));
        // What is added is computed at the statement, and again if that cannot be deferred.
        let is_volatile = pg_sys::contain_volatile_functions(shape.list.cast());
        let plain = (*p).range.is_null() && (*p).rest.is_null() && !is_volatile;
        if !plain || varies || !deferred::shape::is_addition(shape.list, shape.columns) {
            return;
        }
        let returned = if shape.returning.is_null() {
            Columns::NONE
        } else {
            looked::returned(rel::info(table), shape.rti, &[shape.returning])
        };
        if returned.meet((*p).sets_of) {
            return;
        }
        ((*p).added, (*p).added_to, (*p).returned) = (shape.list, shape.columns, returned);
    }
}

/// The rows of VALUES, if there are several: each is computed into a slot, from which the table's
/// row is made.
unsafe fn rows(p: *mut Program, rows: &[*mut List]) {
    // SAFETY: `new_row` makes `p`. The planner has given all rows of VALUES the same number of
    // columns and types.
    unsafe {
        let Some(first) = rows.first() else { return };
        let desc = pg_sys::ExecTypeFromExprList(*first);
        (*p).value_row = pg_sys::MakeTupleTableSlot(desc, &raw const pg_sys::TTSOpsVirtual);
        let null = std::ptr::null_mut();
        let made = rows.iter().map(|row| {
            let mut list = null;
            for (i, e) in PgList::<pg_sys::Expr>::from_pg(*row).iter_ptr().enumerate() {
                list = pg_sys::lappend(list, pg_sys::makeTargetEntry(e, i as i16 + 1, null.cast(), false).cast());
            }
            pg_sys::ExecBuildProjectionInfo(list, (*p).econtext, (*p).value_row, null.cast(), null.cast())
        });
        let made: Vec<_> = made.collect();
        ((*p).values, (*p).n_values) = (copied(&made), made.len());
    }
}

/// An INSERT's values must be a row of the table, column by column (the executor's
/// ExecCheckPlanOutput says what is wrong).
unsafe fn fits(list: *mut List, desc: pg_sys::TupleDesc) -> Result<(), Reason> {
    // SAFETY: `new_row` has a target list of the plan and the row type of the table. The lengths
    // are equal before a column is read.
    unsafe {
        let entries = PgList::<pg_sys::TargetEntry>::from_pg(list);
        let same = |(i, e): (usize, *mut pg_sys::TargetEntry)| {
            let a = attribute(desc, i);
            (*e).resno as usize == i + 1
                && if a.attisdropped {
                    (*(*e).expr).type_ == NodeTag::T_Const && (*(*e).expr.cast::<pg_sys::Const>()).constisnull
                } else {
                    pg_sys::exprType((*e).expr.cast()) == a.atttypid
                }
        };
        let all = entries.len() == (*desc).natts as usize && entries.iter_ptr().enumerate().all(same);
        all.then_some(()).ok_or(Reason::Plan)
    }
}

/// Does the UPDATE set a column that moves rows?
unsafe fn moves(p: *const Program, info: &rel::RelInfo) -> bool {
    // SAFETY: `new_row` has made `sets` with `n_sets` columns, as `p` is of an UPDATE: it
    // has just done so.
    unsafe {
        let sets = std::slice::from_raw_parts((*p).sets, (*p).n_sets);
        sets.iter().any(|c| info.moving.get(*c as usize - 1).is_none_or(|m| *m))
    }
}
