//! A history recorder and serializability checker, independent of the engine: it judges what was
//! observed, not the mechanism. See README.md.
//!
//! ```
//! use mixedcc_engine::checker::{check, AnomalyKind, History, Key, Level, Options, Seen, Transaction};
//! let (x, y) = (Key::new(0, 1), Key::new(0, 2));
//! let mut history = History::default();
//! history.transactions = vec![
//!     Transaction::new(1, Level::Serializable).read(x, Seen::List(vec![])).append(y, 1),
//!     Transaction::new(2, Level::Serializable).read(y, Seen::List(vec![])).append(x, 2),
//! ];
//! let verdict = check(&history, &Options::default());
//! assert!(verdict.has(AnomalyKind::G2Item));
//! ```

#![allow(missing_docs, reason = "fields and variants whose names say it all")]

mod build;
mod classify;
mod evidence;
mod graph;
mod history;
mod index;
mod json;
mod last;
mod order;
mod recorder;
#[cfg(test)]
mod tests;
mod verdict;

pub use history::{
    Event, Filter, History, Image, Key, Level, Payload, Predicate, Seen, Status, Transaction, TxnId, Write, WriteKind,
};
pub use json::{read_lines, write_lines, ParseError};
pub use recorder::{Log, Recorder, Savepoint, Session};
pub use verdict::{Anomaly, AnomalyKind, Verdict};

#[derive(Clone, Debug)]
pub struct Options {
    /// Transactions of one session must appear in their order.
    pub session: bool,
    /// A transaction that began after another's commit must appear after it (strict
    /// serializability).
    pub real_time: bool,
    /// The order of the CSNs must be a serial order.
    pub csn_order: bool,
    /// Snapshots of repeatable read and read committed must be prefixes of the serial order. Else
    /// each must have, with a commit, those on which it depends: it may leave out a commit that
    /// has read what another one, which it has, replaced.
    pub prefixes: bool,
    /// The largest number of anomalies listed for each kind.
    pub limit: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { session: true, real_time: false, csn_order: false, prefixes: true, limit: 20 }
    }
}

impl Options {
    /// All that mixedcc promises: strict serializability in CSN order.
    pub fn strict() -> Self {
        Self { real_time: true, csn_order: true, ..Self::default() }
    }
}

/// Judges a history. Facts that the history does not tell are never held against it.
pub fn check(history: &History, options: &Options) -> Verdict {
    let mut verdict = Verdict { transactions: history.transactions.len(), ..Verdict::default() };
    let index = index::Index::build(history, options, &mut verdict);
    let evidence = evidence::collect(&index, options, &mut verdict);
    let orders = order::recover(&index, &evidence, options, &mut verdict);
    let mut builder = build::Builder::new(&index, &orders, options, &mut verdict);
    builder.run();
    classify::order_edges(&mut builder);
    classify::resolve_ambiguous(&mut builder);
    let (nodes, edges) = (builder.nodes, builder.edges);
    verdict.edges = edges.len();
    classify::cycles(&index, &nodes, &edges, options, &mut verdict);
    verdict
}
