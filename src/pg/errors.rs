//! Errors with a hint.

use crate::pg::text;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

/// Raises `feature_not_supported`.
#[cold]
pub fn unsupported(what: &'static str, hint: &'static str) -> ! {
    ErrorReport::new(PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED, what, "mixedcc")
        .set_hint(hint)
        .report(PgLogLevel::ERROR);
    unreachable!()
}

/// Raises an error.
#[cold]
pub fn complain(code: PgSqlErrorCode, message: &str, hint: &str) -> ! {
    let report = ErrorReport::new(code, text::shown(message), "mixedcc");
    let report = if hint.is_empty() { report } else { report.set_hint(text::shown(hint)) };
    report.report(PgLogLevel::ERROR);
    unreachable!()
}

/// Raises `feature_not_supported`.
#[cold]
pub fn refuse(message: &str, hint: &str) -> ! {
    complain(PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED, message, hint)
}
