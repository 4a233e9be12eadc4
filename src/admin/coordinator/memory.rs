//! Warnings in the server's log when the region becomes full.

use super::now;
use crate::pg::guc;
use mixedcc_engine::Engine;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

/// Compares the use of the region with the thresholds: a few loads, once a pass.
pub fn watch(e: &Engine) {
    let (used, total) = e.region.pages_used();
    let Some(w) = e.shared.pressure.look(used, total, now()) else { return };
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_WARNING,
        format!("mixedcc tables use more than {} % of mixedcc.memory", w.percent),
        "mixedcc",
    )
    .set_detail(format!(
        "{} MB of {} MB are in use. When it is full, statements fail with SQLSTATE 53200.",
        w.used_bytes >> 20,
        w.total_bytes >> 20
    ))
    .set_hint(format!(
        "Delete rows and VACUUM, end long transactions (mixedcc.horizon), or raise mixedcc.memory, which is {} MB, and restart.",
        guc::MEMORY_MB.get()
    ))
    .report(PgLogLevel::WARNING);
}
