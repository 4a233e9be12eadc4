//! What views show of whole tables and of the cluster: for `mixedcc.metrics` and
//! `mixedcc.table_options`, and the sources of `mixedcc.horizon` and `mixedcc.snapshots`.

use super::visible_tables;
use crate::admin::options;
use crate::pg::compat;
use crate::state::platform::PG;
use crate::state::{shmem, slots};
use mixedcc_engine::csn::SlotId;
use mixedcc_engine::Table;
use pgrx::iter::TableIterator;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

/// The tables of this database: partitions, bytes in memory, or those that are missing because the
/// last start could not load the table. Opens no table, so that it waits for no lock.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn table_rows() -> TableIterator<
    'static,
    (name!(table, Oid), name!(partitions, Option<i32>), name!(bytes, Option<i64>), name!(missing_bytes, Option<i64>)),
> {
    let row = |(oid, t): (Oid, &Table)| (oid, Some(t.map().n as i32), Some(t.bytes() as i64), None);
    let there = visible_tables().into_iter().map(row);
    let mut rows: Vec<_> = there.collect();
    // SAFETY: a variable of this process, which its one thread writes when it connects to a
    // database.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    for key in shmem::storages(database) {
        let Some((_, need)) = shmem::absent(key) else { continue };
        // SAFETY: a catalog look-up, within a transaction.
        let oid = unsafe { compat::relation_of(key) };
        if oid != pg_sys::InvalidOid {
            rows.push((oid, None, None, Some(need as i64)));
        }
    }
    TableIterator::new(rows)
}

/// The cluster: commits, switches, the process with the oldest snapshot and the commits since it.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn cluster_row() -> TableIterator<
    'static,
    (
        name!(commits, i64),
        name!(switches, i64),
        name!(holder, Option<i32>),
        name!(held_commits, i64),
        name!(waiting, i64),
    ),
> {
    let e = shmem::engine();
    // Ends the pins of processes that have no snapshot any more.
    e.refresh_min_pin(&PG);
    let oldest = e.oldest_pin();
    let now = e.now();
    let holder = oldest.and_then(|(slot, _)| holder(slot));
    let held = oldest.map_or(0, |(_, csn)| now.saturating_sub(csn));
    let (switches, waiting) = (e.shared.switches.len() as i64, e.retired() as i64);
    TableIterator::once((now as i64, switches, holder, held as i64, waiting))
}

/// The process that keeps what the slot has pinned. Anchors are the companion's.
fn holder(slot: SlotId) -> Option<i32> {
    let keeper = slots::is_anchor(slot).then(|| shmem::engine().shared.rounds.slot()).flatten();
    slots::pid_of(keeper.unwrap_or(slot))
}

/// The processes that keep old versions, and the commits since their snapshots.
#[pg_extern(sql = false)]
fn snapshot_rows() -> TableIterator<'static, (name!(pid, i32), name!(commits, i64))> {
    let e = shmem::engine();
    e.refresh_min_pin(&PG);
    let pins: Vec<_> = e.pins().collect();
    let now = e.now();
    let row = |(slot, csn)| Some((holder(slot)?, now.saturating_sub(csn) as i64));
    TableIterator::new(pins.into_iter().filter_map(row).collect::<Vec<_>>())
}

/// Can a column of this type be in a hashed partition key?
#[pg_extern(sql = false)]
fn can_hash(type_: Oid) -> bool {
    options::can_hash(type_)
}
