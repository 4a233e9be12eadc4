//! The source of the view `mixedcc.memory_warnings`.

use super::switches::seconds;
use crate::state::shmem;
use pgrx::iter::TableIterator;
use pgrx::prelude::*;

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn memory_warning_rows() -> TableIterator<
    'static,
    (
        name!(number, i64),
        name!(percent, i32),
        name!(used_bytes, i64),
        name!(total_bytes, i64),
        name!(passed_at, Option<f64>),
        name!(left_at, Option<f64>),
    ),
> {
    let rows = shmem::engine().shared.pressure.entries().into_iter().map(|w| {
        let (used, total) = (w.used_bytes as i64, w.total_bytes as i64);
        (w.number as i64, w.percent as i32, used, total, seconds(w.passed_at), seconds(w.left_at))
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}
