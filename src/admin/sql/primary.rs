//! `mixedcc.primary_index` and `mixedcc.check_primary_index`: the engine's primary index of a
//! table.

use super::{may_use, must_select, open};
use crate::access::ranges::rows::{self, Row};
use crate::access::{primary, visible};
use crate::pg::errors::complain;
use crate::state::platform::PG;
use crate::state::rel::{self, RelInfo};
use crate::state::xact;
use mixedcc_engine::index::Direction;
use mixedcc_engine::record::Version;
use mixedcc_engine::RecordRef;
use pgrx::iter::TableIterator;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;
use std::ops::Bound;
use std::ptr::NonNull;

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
    xact::txn();
    xact::renew_pin();
    let mut n = 0;
    for no in 0..info.table.len() {
        if no % 1024 == 0 {
            pgrx::check_for_interrupts!();
        }
        // SAFETY: `heap` is open, and `info` and `key` are those of its table.
        n += unsafe { check_row(heap.0, info, key, no) } as i64;
    }
    // SAFETY: `heap` is open, and `info` and `key` are those of its table.
    unsafe { check_entries(heap.0, info, key) };
    n
}

fn damaged(no: u64, what: &str) -> ! {
    complain(PgSqlErrorCode::ERRCODE_INDEX_CORRUPTED, &format!("record {no} of the primary index {what}"), "");
}

/// Does a record have a row? Its entry must be there.
unsafe fn check_row(rel: pg_sys::Relation, info: &RelInfo, key: &rel::PrimaryKey, no: u64) -> bool {
    let Some(r) = RecordRef::find(info.table, no) else { return false };
    let Some(v) = visible::newest(xact::txn(), r) else { return false };
    let mut bytes = Vec::new();
    // SAFETY: `rel` is open, and `key` is of its primary index. The version is reached under our
    // pin (INV-RETIRE).
    if unsafe { rows::plain(rel, key.codec, Row::Version(v.as_ptr()), &mut bytes) }.is_none() {
        return false;
    }
    if !key.primary.has(&PG, &bytes, no) {
        damaged(no, "is not found by its key");
    }
    true
}

/// Entries ascend, and each is its record's.
unsafe fn check_entries(rel: pg_sys::Relation, info: &RelInfo, key: &rel::PrimaryKey) {
    let mut all = key.primary.index.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    let mut last: Option<(Vec<u8>, u64)> = None;
    let codec = key.codec;
    while let Some((key, no)) = all.next(&PG) {
        let this = (key.bytes().to_vec(), no);
        if last.as_ref().is_some_and(|l| *l >= this) {
            damaged(no, "is out of order");
        }
        let Some(r) = RecordRef::find(info.table, no) else { damaged(no, "does not exist") };
        // An insert that is under way, or an entry that is being removed, has no row to compare.
        let live = visible::newest(xact::txn(), r);
        let mut bytes = Vec::new();
        // SAFETY: `rel` is open, and `codec` is of its primary index. The version is reached under
        // our pin (INV-RETIRE).
        let mut of_row = |v: NonNull<Version>| unsafe { rows::plain(rel, codec, Row::Version(v.as_ptr()), &mut bytes) };
        if live.is_some_and(|v| of_row(v).is_none()) || live.is_some() && bytes != this.0 {
            damaged(no, "has an entry of another key");
        }
        last = Some(this);
    }
}
