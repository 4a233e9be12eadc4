//! The source of the view `mixedcc.standby`.

use super::switches::seconds;
use crate::pg::compat;
use crate::state::{shmem, standby, xact};
use mixedcc_engine::primitive::Ordering;
use pgrx::iter::TableIterator;
use pgrx::prelude::*;

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn standby_row() -> TableIterator<
    'static,
    (
        name!(csn, Option<i64>),
        name!(lsn, Option<String>),
        name!(replayed_at, Option<f64>),
        name!(tables, i32),
        name!(conflicts, i64),
    ),
> {
    if !compat::in_recovery() {
        return TableIterator::empty();
    }
    // The pin of the transaction keeps the tables (INV-TABLE).
    xact::txn();
    let shared = &shmem::engine().shared.standby;
    let shown = Some(shared.shown_at()).filter(|shown| shown.csn != 0);
    let tables = shmem::all(None).into_iter().filter(|t| t.durable().is_some() && !standby::is_gone(t));
    TableIterator::once((
        shown.map(|shown| shown.csn as i64),
        shown.map(|shown| format!("{:X}/{:X}", shown.at >> 32, shown.at as u32)),
        shown.and_then(|shown| seconds(shown.time)),
        tables.count() as i32,
        shared.conflicts.load(Ordering::Relaxed) as i64,
    ))
}
