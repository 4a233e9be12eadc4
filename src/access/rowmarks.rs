//! Rows that a statement joins but does not lock. EvalPlanQual fetches them again by TID, into the
//! slots of the plan that it runs again. It expects them as the statement's snapshot sees them,
//! even where the statement has locked a newer version of the same row under another name.

use crate::pg::local::Local;
use crate::state::rel;
use pgrx::pg_sys;

/// EvalPlanQual states of the running statements that have such rows. Of statements: they go with
/// their memory.
static STATES: Local<Vec<*mut pg_sys::EPQState>> = Local::new(Vec::new());

/// The snapshot by which a row that is fetched into this slot must be seen, if EvalPlanQual fetches
/// a row that is not locked.
#[inline]
pub fn snapshot_of(slot: *mut pg_sys::TupleTableSlot) -> Option<pg_sys::Snapshot> {
    // SAFETY: a process has one thread. States leave the list before their memory goes (see
    // `forget`), and that of the recheck lives in the same context.
    unsafe {
        STATES.get_mut().iter().find_map(|e| {
            let recheck = (**e).recheckestate;
            let fetches = !recheck.is_null() && pg_sys::list_member_ptr((*recheck).es_tupleTable, slot.cast());
            fetches.then(|| (*(**e).parentestate).es_snapshot)
        })
    }
}

/// Notes a statement that has started, if EvalPlanQual may fetch rows of ours for it.
///
/// # Safety
/// `q` has been started by the executor and has not ended.
pub unsafe fn note(q: *mut pg_sys::QueryDesc) {
    // SAFETY: `q` has been started (contract of this function). `es_rowmarks` is null or has an
    // entry for each relation of the range table (execnodes.h). The callback lives in the context
    // that calls it.
    unsafe {
        let estate = (*q).estate;
        let marks = (*estate).es_rowmarks;
        let fetches = |i| {
            let m: *mut pg_sys::ExecRowMark = *marks.add(i);
            !m.is_null() && (*m).markType == pg_sys::RowMarkType::ROW_MARK_REFERENCE && rel::is_ours((*m).relation)
        };
        if marks.is_null() || !(0..(*estate).es_range_table_size as usize).any(fetches) {
            return;
        }
        let size = std::mem::size_of::<pg_sys::MemoryContextCallback>();
        let callback = pg_sys::MemoryContextAllocZero((*estate).es_query_cxt, size).cast();
        *callback = pg_sys::MemoryContextCallback { func: Some(forget), arg: estate.cast(), ..*callback };
        pg_sys::MemoryContextRegisterResetCallback((*estate).es_query_cxt, callback);
        visit((*q).planstate, std::ptr::null_mut());
    }
}

/// The memory of a statement's state goes away.
unsafe extern "C-unwind" fn forget(estate: *mut core::ffi::c_void) {
    // SAFETY: a process has one thread. The callback runs before the memory of the statement's
    // context is freed, so `e` can still be read.
    unsafe { STATES.get_mut().retain(|e| !std::ptr::addr_eq((**e).parentestate, estate)) };
}

unsafe extern "C-unwind" fn visit(ps: *mut pg_sys::PlanState, context: *mut core::ffi::c_void) -> bool {
    // SAFETY: `ps` is null or a node of a plan's state (planstate_tree_walker), which is cast as
    // its tag says. A process has one thread; `states` is not used after the walk goes on.
    unsafe {
        if ps.is_null() {
            return false;
        }
        let states = STATES.get_mut();
        match (*ps).type_ {
            pg_sys::NodeTag::T_LockRowsState => states.push(&raw mut (*ps.cast::<pg_sys::LockRowsState>()).lr_epqstate),
            pg_sys::NodeTag::T_ModifyTableState => {
                states.push(&raw mut (*ps.cast::<pg_sys::ModifyTableState>()).mt_epqstate)
            }
            _ => {}
        }
        crate::pg::compat::walk_children(ps, visit, context)
    }
}
