//! Statements that tell whether their SERIALIZABLE transaction will only read: it is frozen from
//! its beginning, or thaws (INV-FROZEN of the engine).

use crate::pg;
use crate::pg::guc::FREEZE_READERS;
use crate::state::shmem;
use crate::state::xact::{self, Mode};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// From this cost on, by the planner's estimate, a statement is a long one.
const LONG: f64 = 100.0;

/// A statement is about to start.
///
/// # Safety
/// A statement of ExecutorStart_hook. An ERROR jumps over this frame.
#[inline]
pub unsafe fn note_start(q: *mut pg_sys::QueryDesc, eflags: i32) {
    // SAFETY: `q` is a statement that is about to start (contract of this function): it has a plan.
    unsafe {
        let stmt = (*q).plannedstmt;
        if (*q).operation == pg_sys::CmdType::CMD_SELECT {
            if is_long((*stmt).planTree) {
                long_statement(q);
            }
            if (*stmt).rowMarks.is_null() && !(*stmt).hasModifyingCTE {
                return;
            }
        }
        if xact::is_frozen() && eflags & pg_sys::EXEC_FLAG_EXPLAIN_ONLY as i32 == 0 {
            thaw();
        }
    }
}

/// Is the plan costly? The cost of its top may be the one that `bypass::generic` gives to plans
/// that fit all parameters. It leaves the estimates of rows, and the nodes below, as they are.
#[inline]
unsafe fn is_long(top: *mut pg_sys::Plan) -> bool {
    let mut plan = top;
    // SAFETY: `top` is null or the plan of a statement; the nodes below it are plans.
    unsafe {
        while !plan.is_null() {
            if (*plan).total_cost.max((*plan).plan_rows * pg_sys::cpu_tuple_cost) >= LONG {
                return true;
            }
            plan = (*plan).lefttree;
        }
    }
    false
}

#[pg_guard]
#[cold]
unsafe extern "C-unwind" fn thaw() {
    xact::thaw();
}

/// A long SELECT starts. It is probably all that its transaction will do if the client sent it
/// outside of a transaction block. It must call no function that could write, as far as is easily
/// seen.
#[pg_guard]
#[cold]
unsafe extern "C-unwind" fn long_statement(q: *mut pg_sys::QueryDesc) {
    // SAFETY: `q` is a statement that is about to start, and has a plan: contract of `note_start`.
    // The portal is null or the one that runs; its list has the plans of its statements.
    unsafe {
        let portal = pg_sys::ActivePortal;
        if !pg::is_serializable() || !FREEZE_READERS.get() || !shmem::is_up() {
            return;
        }
        if portal.is_null() || pg_sys::IsTransactionBlock() {
            return;
        }
        let stmt = (*q).plannedstmt;
        let is_only = (*portal).strategy == pg_sys::PortalStrategy::PORTAL_ONE_SELECT
            && pgrx::PgList::<pg_sys::PlannedStmt>::from_pg((*portal).stmts).head() == Some(stmt);
        if !is_only || !(*stmt).rowMarks.is_null() || may_write((*stmt).planTree) {
            return;
        }
        if xact::mode() == Mode::Serializable {
            xact::expect_report();
        }
    }
}

/// Does the plan call a volatile function, in the nodes of its trunk?
unsafe fn may_write(plan: *mut pg_sys::Plan) -> bool {
    // SAFETY: `plan` is null or a plan of `long_statement`: lists of expressions, and the nodes
    // below.
    unsafe {
        !plan.is_null()
            && (pg_sys::contain_volatile_functions((*plan).targetlist.cast())
                || pg_sys::contain_volatile_functions((*plan).qual.cast())
                || may_write((*plan).lefttree)
                || may_write((*plan).righttree))
    }
}
