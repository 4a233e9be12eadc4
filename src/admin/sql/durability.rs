//! The source of the view `mixedcc.durability`.

use super::switches::seconds;
use crate::pg::compat;
use crate::state::{shmem, slots, xact};
use mixedcc_engine::durable::report::Activity;
use mixedcc_engine::durable::wal::RoundKind;
use pgrx::iter::TableIterator;
use pgrx::prelude::*;

/// Why commits into permanent tables wait; `None`: they do not.
fn shut(activity: Activity) -> Option<&'static str> {
    if shmem::engine().shared.gate.is_open() {
        return None;
    }
    Some(match activity {
        Activity::None => "no companion runs",
        Activity::Closing => "the companion ends",
        _ => "the first or last round is not complete",
    })
}

/// The numbers of dirty tables and rows, of all databases.
fn dirty() -> (i64, i64) {
    // The pin of the transaction keeps the tables (INV-TABLE).
    xact::txn();
    let rows = shmem::all(None).into_iter().filter_map(|t| t.durable()).map(|d| d.dirty_records());
    rows.filter(|n| *n > 0).fold((0, 0), |(tables, all), n| (tables + 1, all + n as i64))
}

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn durability_row() -> TableIterator<
    'static,
    (
        name!(pid, Option<i32>),
        name!(activity, &'static str),
        name!(since, Option<f64>),
        name!(shut, Option<&'static str>),
        name!(held_since, Option<f64>),
        name!(released_at, Option<f64>),
        name!(round_kind, Option<&'static str>),
        name!(round_redo, Option<String>),
        name!(round_started_at, Option<f64>),
        name!(round_ended_at, Option<f64>),
        name!(round_rows, i64),
        name!(round_pages, i64),
        name!(round_wal_bytes, i64),
        name!(dirty_tables, i64),
        name!(dirty_rows, i64),
        name!(oldest_commit, Option<i32>),
        name!(rounds, i64),
        name!(rows, i64),
        name!(pages, i64),
        name!(wal_bytes, i64),
        name!(errors, i64),
        name!(reset_at, Option<f64>),
    ),
> {
    let e = shmem::engine();
    let report = &e.shared.rounds.report;
    let pid = e.shared.rounds.slot().and_then(slots::pid_of);
    // A companion that was killed has not said that it ends.
    let (activity, since) = report.activity();
    let activity = if pid.is_some() { activity } else { Activity::None };
    let ((held, released), last, totals) = (report.holds(), report.last(), report.totals());
    let made = last.ended != 0;
    let kind = RoundKind::ALL.iter().find(|k| **k as u64 == last.kind).filter(|_| made);
    let redo = made.then(|| format!("{:X}/{:X}", last.redo >> 32, last.redo as u32));
    let (tables, rows) = dirty();
    TableIterator::once((
        pid,
        activity.name(),
        seconds(since),
        shut(activity),
        seconds(held),
        seconds(released),
        kind.map(|k| k.name()),
        redo,
        seconds(last.begun),
        seconds(last.ended),
        last.written.rows as i64,
        last.written.pages as i64,
        last.written.bytes as i64,
        tables,
        rows,
        e.oldest_commit().and_then(|(_, slot)| slots::pid_of(slot)),
        totals.rounds as i64,
        totals.written.rows as i64,
        totals.written.pages as i64,
        totals.written.bytes as i64,
        totals.errors as i64,
        seconds(totals.reset),
    ))
}

/// Only a role that was given EXECUTE can call it.
#[pg_extern(sql = false)]
fn reset_durability() {
    shmem::engine().shared.rounds.report.reset(compat::now());
}
