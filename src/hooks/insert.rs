//! INSERT ... SELECT takes its rows as the plan below makes them.
//!
//! nodeModifyTable.c copies a row into a slot of the table's kind, unless the plan's slot is of
//! that kind already. It forms a heap tuple, and takes it apart again for the constraints, before
//! the row gets here. A version can be made of any slot.
//!
//! **INV-PLAN-SLOT**: What ExecInitInsertProjection would find out at the first row is so: there
//! are no junk columns, and the plan's columns are the table's. A virtual slot's values are its own
//! once ExecInsert has materialized it, and the plan's node clears the slot before it makes the
//! next row.

use crate::pg::compat::attribute;
use crate::state::rel;
use pgrx::pg_sys;

/// Makes an INSERT do without that copy, if its plan's rows come in virtual slots, and only the
/// constraints, the indexes and `tuple_insert` look at them: no trigger, RETURNING, ON CONFLICT,
/// policy or generated column.
///
/// # Safety
/// A node that the executor has started, and that has not run.
pub unsafe fn take_rows_of_plan(m: *mut pg_sys::ModifyTableState) {
    // SAFETY: `m` is a started node that has not run (contract of this function). So it has its
    // plan, one result relation at least, and the state of the plan below.
    unsafe {
        let node = &*(*m).ps.plan.cast::<pg_sys::ModifyTable>();
        let (below, info) = ((*m).ps.lefttree, &mut *(*m).resultRelInfo);
        let asks_more = !node.returningLists.is_null()
            || !node.withCheckOptionLists.is_null()
            || node.onConflictAction != pg_sys::OnConflictAction::ONCONFLICT_NONE
            || !(*m).mt_partition_tuple_routing.is_null()
            || !(*m).mt_transition_capture.is_null()
            || !info.ri_RootResultRelInfo.is_null()
            || !info.ri_TrigDesc.is_null();
        if (*m).operation != pg_sys::CmdType::CMD_INSERT
            || (*m).mt_nrels != 1
            || asks_more
            || info.ri_projectNewInfoValid
            || below.is_null()
            || !rel::is_ours(info.ri_RelationDesc)
            || !is_virtual(below)
            || !same_columns(info.ri_RelationDesc, below)
        {
            return;
        }
        let desc = (*info.ri_RelationDesc).rd_att;
        // The statement's memory, not that of its caller, which may live on (`fmgr_sql`).
        let before = pg_sys::MemoryContextSwitchTo((*(*m).ps.state).es_query_cxt);
        info.ri_newTupleSlot = pg_sys::ExecInitExtraTupleSlot((*m).ps.state, desc, &raw const pg_sys::TTSOpsVirtual);
        pg_sys::MemoryContextSwitchTo(before);
        info.ri_projectNewInfoValid = true;
    }
}

/// Do all rows of a node come in virtual slots?
unsafe fn is_virtual(ps: *mut pg_sys::PlanState) -> bool {
    let mut fixed = false;
    // SAFETY: `ps` is a started node: the state of the plan below `take_rows_of_plan`'s.
    let ops = unsafe { pg_sys::ExecGetResultSlotOps(ps, &mut fixed) };
    fixed && std::ptr::eq(ops, &raw const pg_sys::TTSOpsVirtual)
}

/// Are the columns of a node's rows those of a table, none of which is dropped or generated?
unsafe fn same_columns(table: pg_sys::Relation, ps: *mut pg_sys::PlanState) -> bool {
    // SAFETY: `table` is open and `ps` is started: those of `take_rows_of_plan`. Both descriptors
    // have their attributes, and a column is read only where both have as many.
    unsafe {
        let targets = pgrx::PgList::<pg_sys::TargetEntry>::from_pg((*(*ps).plan).targetlist);
        let (to, from) = ((*table).rd_att, pg_sys::ExecGetResultType(ps));
        !targets.iter_ptr().any(|t| (*t).resjunk)
            && !from.is_null()
            && (*to).natts == (*from).natts
            && ((*to).constr.is_null() || !(*(*to).constr).has_generated_stored)
            && (0..(*to).natts as usize).all(|i| {
                let (a, b) = (attribute(to, i), attribute(from, i));
                !a.attisdropped && a.atttypid == b.atttypid
            })
    }
}
