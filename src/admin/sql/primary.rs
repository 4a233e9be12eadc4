//! `mixedcc.primary_index` and `mixedcc.check_primary_index`: the engine's primary index of a
//! table.

use super::{may_use, must_select, open};
use crate::access::{primary, primary_check};
use pgrx::iter::TableIterator;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn primary_index(
    table: Oid,
) -> TableIterator<
    'static,
    (name!(index, Option<Oid>), name!(usable, bool), name!(entries, i64), name!(dead, i64), name!(bytes, i64)),
> {
    may_use(table);
    let heap = open(table, pg_sys::AccessShareLock);
    let info = heap.info();
    let row = info.primary.as_ref().map(|kept| {
        // SAFETY: `heap` is an open relation of ours, and `info` its info.
        let (key, now) = unsafe { (primary::key(heap.0, info), primary::usable(heap.0, info)) };
        let p = kept.index;
        let (entries, dead, bytes) = (p.index.len() as i64, info.table.dead_entries() as i64, p.bytes() as i64);
        (key.map(|k| k.index), now.is_some(), entries, dead, bytes)
    });
    TableIterator::new(row.into_iter().collect::<Vec<_>>())
}

/// Compares rows and entries; returns the number of rows.
#[pg_extern(sql = false)]
fn check_primary_index(table: Oid) -> i64 {
    may_use(table);
    must_select(table);
    let heap = open(table, pg_sys::AccessShareLock);
    let info = heap.info();
    // SAFETY: `heap` is an open relation of ours, and `info` its info.
    let Some(key) = (unsafe { primary::key(heap.0, info) }) else { return 0 };
    // SAFETY: `heap` is open, and `info` and `key` are those of its table.
    unsafe { primary_check::check(heap.0, info, key) as i64 }
}
