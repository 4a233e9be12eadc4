//! The functions that the view `mixedcc.advice` needs beside `partition_stats`. None takes a lock,
//! so that a reader of the view never waits.

use super::visible_tables;
use mixedcc_engine::choice::Status;
use mixedcc_engine::partition::Partition;
use mixedcc_engine::{Protocol, ProtocolSet};
use pgrx::iter::TableIterator;
use pgrx::pg_sys::Oid;
use pgrx::prelude::*;

fn per(n: u64, of: u64) -> Option<f64> {
    (of != 0).then(|| n as f64 / of as f64)
}

/// What rows of one transaction have in common, by places in the primary key, whether there are
/// columns or not.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn key_rows() -> TableIterator<
    'static,
    (
        name!(table, Oid),
        name!(place, i32),
        name!(sampled, i64),
        name!(spread_share, Option<f64>),
        name!(common_share, Option<f64>),
        name!(varied_share, Option<f64>),
    ),
> {
    let mut out = Vec::new();
    for (oid, t) in visible_tables() {
        let c = t.together.get();
        for (i, (common, varied)) in c.columns.into_iter().enumerate() {
            let spread = per(c.spread, c.txns);
            out.push((oid, i as i32 + 1, c.txns as i64, spread, per(common, c.txns), per(varied, common)));
        }
    }
    TableIterator::new(out)
}

/// The protocols that lock partitions; with them the partitions' number and key matter most.
fn partition_locking() -> ProtocolSet {
    Protocol::ALL.into_iter().filter(|p| ProtocolSet::of(*p).locks_partitions()).collect()
}

/// The predicted cost under the protocol in use over that under the best protocol that locks
/// partitions, with what was learned; `None`: one of them is not predicted.
fn partition_locks_gain(p: &Partition) -> Option<f64> {
    let d = p.decided.read().decision;
    let score = |p: Protocol| d.known.has(p).then(|| d.scores[p.index()]);
    let now = score(p.protocols().single()?)?;
    let best = partition_locking().iter().filter_map(score).min_by(f64::total_cmp)?;
    (d.load.txns > 0).then_some((now - best).exp())
}

/// What keeps the coordinator from a protocol that locks partitions.
fn partition_locks_obstacle(p: &Partition) -> &'static str {
    let d = p.decided.read().decision;
    let of_interest = partition_locking();
    if p.protocols().meets(of_interest) {
        "it is in use"
    } else if p.switch.view().pinned {
        "the protocol is pinned (mixedcc.unpin)"
    } else if d.status == Status::Off {
        "the table is not adaptive: its options say so or name a protocol, or mixedcc.adaptive is off"
    } else if d.load.txns == 0 {
        "too few transactions were sampled"
    } else if d.allowed.meets(of_interest) {
        "the coordinator has not chosen it yet"
    } else if !d.known.meets(of_interest) {
        "the model (mixedcc.model_file) does not know it"
    } else {
        "it is no candidate (mixedcc.candidates, mixedcc.adaptive_candidates), or mixedcc.partcc_max_share forbids it"
    }
}

/// What the coordinator thinks of locks on partitions, partition by partition. The function's name
/// in SQL is that of the one protocol that has them today.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn partcc_rows() -> TableIterator<
    'static,
    (name!(table, Oid), name!(partition, i32), name!(gain, Option<f64>), name!(obstacle, &'static str)),
> {
    let mut out = Vec::new();
    for (oid, t) in visible_tables() {
        for (no, p) in t.map().partitions().iter().enumerate() {
            out.push((oid, no as i32, partition_locks_gain(p), partition_locks_obstacle(p)));
        }
    }
    TableIterator::new(out)
}
