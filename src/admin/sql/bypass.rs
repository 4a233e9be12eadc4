//! The source of the view `mixedcc.bypass`.

use crate::paths::bypass::counts;
use crate::pg::errors::complain;
use pgrx::iter::TableIterator;
use pgrx::prelude::*;

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn bypass_rows(
) -> TableIterator<'static, (name!(statement, Option<&'static str>), name!(reason, Option<&'static str>), name!(n, i64))>
{
    TableIterator::new(counts::all())
}

#[pg_extern(sql = false)]
fn reset_bypass() {
    // SAFETY: `superuser` is a look-up of the current user, as any OID is answered.
    if !unsafe { pg_sys::superuser() } {
        complain(
            PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
            "must be superuser to reset the bypass's counters",
            "",
        );
    }
    crate::state::counters::reset();
}
