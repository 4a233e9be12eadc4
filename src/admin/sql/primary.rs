//! `mixedcc.primary_index` and `mixedcc.check_primary_index`: the indexes of a table in memory.

use super::{may_use, must_select, open};
use crate::access::primary;
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
    let row = |kept| {
        // SAFETY: `heap` is an open relation of ours, with its info, and `kept` one of its indexes.
        let key = unsafe { primary::key_by(heap.0, info, kept) };
        let p = kept.index;
        let (entries, dead, bytes) = (p.index.len() as i64, info.table.dead_entries() as i64, p.bytes() as i64);
        (key.map(|k| k.index), key.is_some_and(primary::is_usable), entries, dead, bytes)
    };
    TableIterator::new(info.uniques.all().iter().map(row).collect::<Vec<_>>())
}

/// Compares rows and entries; returns the number of rows.
#[pg_extern(sql = false)]
fn check_primary_index(table: Oid) -> i64 {
    may_use(table);
    must_select(table);
    let heap = open(table, pg_sys::AccessShareLock);
    let info = heap.info();
    let mut rows = 0;
    for kept in info.uniques.all() {
        // SAFETY: `heap` is an open relation of ours, with its info, and `kept` one of its indexes.
        let Some(key) = (unsafe { primary::key_by(heap.0, info, kept) }) else { continue };
        // SAFETY: `heap` is open, and `info` and `key` are those of its table.
        rows = unsafe { primary::check::check(heap.0, info, key) as i64 };
    }
    rows
}
