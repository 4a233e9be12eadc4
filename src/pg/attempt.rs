//! Work of which an ERROR does not end the transaction.

use pgrx::pg_sys;
use pgrx::pg_sys::panic::{CaughtError, ErrorReportWithLevel};
use pgrx::{PgSqlErrorCode, PgTryBuilder};
use std::panic::AssertUnwindSafe;

/// Says an ERROR nothing about what was attempted? The session shall end, or be canceled; there is
/// no room, or a conflict with another transaction; or the server has a fault.
fn passes(code: PgSqlErrorCode) -> bool {
    use PgSqlErrorCode::*;
    let class = |code: PgSqlErrorCode| code as i32 & 0xFFF;
    let classes = [
        ERRCODE_TRANSACTION_ROLLBACK,
        ERRCODE_INSUFFICIENT_RESOURCES,
        ERRCODE_PROGRAM_LIMIT_EXCEEDED,
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        ERRCODE_OPERATOR_INTERVENTION,
        ERRCODE_SYSTEM_ERROR,
        ERRCODE_INTERNAL_ERROR,
    ];
    classes.into_iter().any(|c| class(c) == class(code))
}

/// Runs `f` in a subtransaction, as PL/pgSQL does it with a block that has EXCEPTION; an ERROR that
/// says something about `f` undoes it, and is returned. PostgreSQL begins no subtransaction in the
/// middle of a parallel query: each ERROR unwinds there.
///
/// # Safety
/// In a transaction. An ERROR unwinds.
pub unsafe fn attempt<R>(f: impl FnOnce() -> R) -> Result<R, Box<ErrorReportWithLevel>> {
    // SAFETY: in a transaction (contract of this function). The subtransaction that begins here
    // ends here. The context of before lives as long as its caller needs it.
    unsafe {
        if pg_sys::IsInParallelMode() {
            return Ok(f());
        }
        let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let result = PgTryBuilder::new(AssertUnwindSafe(|| Ok(f()))).catch_others(|e| Err(Box::new(e))).execute();
        match result {
            Ok(_) => pg_sys::ReleaseCurrentSubTransaction(),
            Err(_) => pg_sys::RollbackAndReleaseCurrentSubTransaction(),
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        result.map_err(|error| match *error {
            CaughtError::PostgresError(report) | CaughtError::ErrorReport(report)
                if !passes(report.sql_error_code()) =>
            {
                Box::new(report)
            }
            error => error.rethrow(),
        })
    }
}
