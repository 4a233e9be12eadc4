//! `mixedcc.load`, and the source of the view `mixedcc.loads`.

use super::switches::seconds;
use super::{must_select, open};
use crate::state::{loads, rel};
use pgrx::iter::TableIterator;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

/// Loads a permanent table now. False: it was in memory, or is not permanent.
#[pg_extern(sql = false)]
fn load(table: Oid) -> bool {
    must_select(table);
    let r = open(table, pg_sys::AccessShareLock);
    // SAFETY: `r` is open. The function holds no page of an index.
    let known = unsafe { rel::known_table_of(r.0).is_some() };
    rel::note_use();
    r.info();
    // SAFETY: `r` is open.
    !known && unsafe { crate::pg::compat::is_permanent(r.0) }
}

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn load_rows() -> TableIterator<
    'static,
    (
        name!(pid, i32),
        name!(database, Oid),
        name!(relation, Oid),
        name!(phase, &'static str),
        name!(done, i64),
        name!(total, i64),
        name!(since, Option<f64>),
    ),
> {
    let rows = loads::under_way().into_iter().map(|(pid, l)| {
        let (database, relation) = (Oid::from(l.database), Oid::from(l.relation));
        (pid, database, relation, l.phase.name(), l.done.min(l.total) as i64, l.total as i64, seconds(l.since))
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}
