//! Statements with parallel workers: workers read tables of ours if the transaction has a snapshot,
//! and has written no row of ours. Otherwise the leader runs the plan alone.

use crate::access::altered;
use crate::pg::{compat, isolation, raw};
use crate::state::xact::parallel;
use crate::state::{platform, rel, shmem};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// May a statement have workers, or is this one?
///
/// # Safety
/// A statement of ExecutorStart_hook or ExecutorEnd_hook.
#[inline]
pub unsafe fn concerns(q: *mut pg_sys::QueryDesc) -> bool {
    // SAFETY: a statement of the executor's hooks has a plan.
    unsafe { (*(*q).plannedstmt).parallelModeNeeded || parallel::is_worker() }
}

/// A statement that [`concerns`] us is about to start.
///
/// # Safety
/// A statement of ExecutorStart_hook. An ERROR jumps over the caller's frame.
#[pg_guard]
#[cold]
pub unsafe extern "C-unwind" fn before_start(q: *mut pg_sys::QueryDesc) {
    // SAFETY: `q` is a statement that is about to start (contract of this function): its snapshot
    // is null or valid, and it has a plan.
    unsafe {
        let s = (*q).snapshot;
        let mvcc = !s.is_null() && (*s).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC;
        if !mvcc || !shmem::is_up() || !platform::is_outside() || !pg_sys::IsTransactionState() {
            return;
        }
        if parallel::is_worker() {
            parallel::join(s);
        } else if !compat::in_recovery() && !altered::any() && parallel::may_share() {
            parallel::share_snapshot(q as usize, s);
        } else if isolation::is_asked() || uses_ours((*q).plannedstmt) {
            // Workers do not know what was asked for, and a function may use any table.
            (*q).plannedstmt = without_workers((*q).plannedstmt);
        }
    }
}

/// Does the statement name a table of ours?
///
/// # Safety
/// A plan of the executor, whose tables are locked.
pub unsafe fn uses_ours(stmt: *mut pg_sys::PlannedStmt) -> bool {
    // SAFETY: `stmt` is a plan of the executor; the tables of its range table are locked.
    unsafe {
        pgrx::PgList::<pg_sys::RangeTblEntry>::from_pg((*stmt).rtable).iter_ptr().any(|rte| {
            if (*rte).rtekind != pg_sys::RTEKind::RTE_RELATION {
                return false;
            }
            let r = pg_sys::RelationIdGetRelation((*rte).relid);
            let ours = !r.is_null() && rel::is_ours(r);
            if !r.is_null() {
                raw::RelationClose(r);
            }
            ours
        })
    }
}

/// The same plan, for the leader alone. The caller's memory context lasts as long as the statement.
unsafe fn without_workers(stmt: *mut pg_sys::PlannedStmt) -> *mut pg_sys::PlannedStmt {
    // SAFETY: `stmt` is a plan, which may be kept for others. The copy has the same parts.
    unsafe {
        let copy = pg_sys::palloc(std::mem::size_of::<pg_sys::PlannedStmt>()).cast::<pg_sys::PlannedStmt>();
        copy.copy_from_nonoverlapping(stmt, 1);
        (*copy).parallelModeNeeded = false;
        copy
    }
}
