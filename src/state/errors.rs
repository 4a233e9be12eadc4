//! Errors of the engine as errors of PostgreSQL.

use crate::pg::{guc, text};
use crate::state::{platform, rel, xact};
use mixedcc_engine::error::Error;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

/// Raises an engine's error. Serialization failures are 40001, deadlocks 40P01, a full region
/// 53200, a clock at its end 54000.
#[cold]
pub fn raise(e: Error) -> ! {
    let report = match e {
        Error::Abort { reason, table, partition } => ErrorReport::new(
            PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
            "could not serialize access due to concurrent transactions",
            "mixedcc",
        )
        .set_detail(format!("{}: {}.", xact::describe_partition(table, partition), reason.text()))
        .set_hint("The transaction might succeed if retried."),
        Error::Deadlock => {
            ErrorReport::new(PgSqlErrorCode::ERRCODE_T_R_DEADLOCK_DETECTED, "deadlock detected", "mixedcc")
                .set_detail("Transactions wait for locks that the others hold.")
                .set_hint("The transaction might succeed if retried.")
        }
        Error::WouldBlock => {
            let refused = rel::by_table_id(platform::refused_table());
            let of = refused.map(|info| format!(" in relation \"{}\"", text::shown(&info.name))).unwrap_or_default();
            let message = format!("could not obtain lock on row{of}");
            ErrorReport::new(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE, message, "mixedcc")
        }
        Error::OutOfMemory => {
            ErrorReport::new(PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY, "out of memory for mixedcc tables", "mixedcc")
                .set_detail(format!("All {} MB of mixedcc.memory are in use.", guc::MEMORY_MB.get()))
                .set_hint("Delete rows and VACUUM, drop tables, end long transactions, or increase mixedcc.memory.")
        }
        Error::ClockExhausted => ErrorReport::new(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            "mixedcc has no commit sequence numbers left",
            "mixedcc",
        )
        .set_detail("Transactions that only read can go on.")
        .set_hint("Dump the database with pg_dump, and restore it in a new cluster."),
        // PostgreSQL's detector sees all waits of ours.
        Error::WaitingPhases => ErrorReport::new(
            PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
            "these protocols cannot be in use together without a deadlock detector",
            "mixedcc",
        ),
        Error::Injected => {
            ErrorReport::new(PgSqlErrorCode::ERRCODE_INTERNAL_ERROR, "stop event failed the transaction", "mixedcc")
        }
    };
    report.report(PgLogLevel::ERROR);
    unreachable!()
}

/// The value, or the error raised.
#[inline]
pub fn ok<T>(r: Result<T, Error>) -> T {
    match r {
        Ok(v) => v,
        Err(e) => raise(e),
    }
}
