//! Statistics of partitions: the source of the view `mixedcc.partition_stats`.

use super::visible_tables;
use mixedcc_engine::partition::{Partition, Sample};
use pgrx::iter::TableIterator;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;
use std::collections::HashMap;

/// A share or average; `None` where nothing was counted.
fn per(n: u64, of: u64) -> Option<f64> {
    (of != 0).then(|| n as f64 / of as f64)
}

/// Text as a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A table as regclass shows it: with its schema and in double quotes where it needs them.
fn regclass_text(table: Oid) -> String {
    // SAFETY: regclassout takes any OID: one of no relation is shown as a number.
    let text = unsafe { pg_sys::OidOutputFunctionCall(Oid::from(pg_sys::F_REGCLASSOUT), pg_sys::Datum::from(table)) };
    // SAFETY: output functions make C strings.
    unsafe { crate::pg::text::read(text) }
}

type Names = HashMap<u64, (Oid, u32)>;

/// What is touched together with a partition, most frequent first, as JSON text, in the database's
/// encoding (see `label_items`).
fn partners(p: &Partition, names: &Names) -> Vec<u8> {
    let all = p.stats.sampled.partners().into_iter().filter_map(|(who, n)| Some((names.get(&who)?, n)));
    let items: Vec<_> = all
        .map(|((oid, no), n)| {
            let table = quoted(&regclass_text(*oid));
            format!("{{\"table\": {table}, \"partition\": {no}, \"transactions\": {n}}}")
        })
        .collect();
    crate::pg::text::bytes(&format!("[{}]", items.join(", ")))
}

type Share = Option<f64>;
#[rustfmt::skip]
type Row = (Oid, i32, i64, Share, Share, Share, Share, Vec<u8>, Share, Share, Share, Share, Share, Share, Share, i64, i64, f64, Share, Share, Share, Share);

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn partition_stat_rows() -> TableIterator<
    'static,
    (
        name!(table, Oid),
        name!(partition, i32),
        name!(sampled, i64),
        name!(read_share, Option<f64>),
        name!(records, Option<f64>),
        name!(multi_share, Option<f64>),
        name!(partitions, Option<f64>),
        name!(partners, Vec<u8>),
        name!(conflict_rate, Option<f64>),
        name!(serializable_share, Option<f64>),
        name!(weak_writer_share, Option<f64>),
        name!(duration_ms, Option<f64>),
        name!(round_trips, Option<f64>),
        name!(idle_share, Option<f64>),
        name!(retry_share, Option<f64>),
        name!(aborts, i64),
        name!(waits, i64),
        name!(wait_ms, f64),
        name!(cpu_ms, Option<f64>),
        name!(lost_share, Option<f64>),
        name!(declared_share, Option<f64>),
        name!(ordered_share, Option<f64>),
    ),
> {
    let tables = visible_tables();
    let mut names = Names::new();
    for (oid, t) in &tables {
        for (no, p) in t.map().partitions().iter().enumerate() {
            names.insert(std::ptr::from_ref(p) as u64, (*oid, no as u32));
        }
    }
    let mut out: Vec<Row> = Vec::new();
    for (oid, t) in &tables {
        for (no, p) in t.map().partitions().iter().enumerate() {
            let s: Sample = p.stats.sampled.get();
            let of = |n| per(n, s.txns);
            out.push((
                *oid,
                no as i32,
                s.txns as i64,
                per(s.reads, s.reads + s.writes),
                of(s.reads + s.writes),
                of(s.multi),
                of(s.partitions),
                partners(p, &names),
                per(s.conflicts, s.looks),
                of(s.serializable),
                of(s.weak_writers),
                of(s.duration_ns).map(|ns| ns / 1e6),
                of(s.round_trips),
                of(s.idle),
                of(s.retries),
                p.stats.all_aborts() as i64,
                p.stats.waits.all() as i64,
                p.stats.waits.us() as f64 / 1000.0,
                of(s.cpu_ns).map(|ns| ns / 1e6),
                per(s.lost_ns, s.lost_ns + s.duration_ns),
                of(s.declared),
                of(s.ordered),
            ));
        }
    }
    TableIterator::new(out)
}
