//! The checker's verdict on a history.

use super::history::TxnId;
use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AnomalyKind {
    /// The history contradicts itself by a repeated id or CSN: an error of the recorder.
    Malformed,
    /// A cycle of write dependencies.
    G0,
    /// A read of a write that was rolled back.
    G1a,
    /// A read of a version that its writer replaced itself.
    G1b,
    /// A cycle of write and read dependencies.
    G1c,
    /// A value that no transaction wrote, or a row outside the predicate.
    GarbageRead,
    /// A row is absent, although it exists and no transaction deleted it.
    MissingRow,
    /// A scan returned one key twice, or a list contains one id twice.
    Duplicate,
    /// A transaction does not see its own write.
    OwnWrite,
    /// A committed write is missing in the state after it.
    LostWrite,
    /// Two transactions replaced the same version.
    LostUpdate,
    /// Two reads of one list contradict each other about its order.
    IncompatibleOrder,
    /// The reads of one snapshot belong to no single point: a part of a commit is missing. A
    /// snapshot is a repeatable read transaction, or a statement at read committed.
    FracturedSnapshot,
    /// A cycle with exactly one anti-dependency (read skew).
    GSingle,
    /// A cycle with several anti-dependencies, all on rows that were read (write skew).
    G2Item,
    /// A cycle with several anti-dependencies, at least one of a predicate (phantom).
    G2,
    /// Serializable, but not in the order of a session's transactions.
    SessionOrder,
    /// Serializable, but not in real-time order (not strictly serializable).
    RealTimeOrder,
    /// The CSN order is not a serial order of this history.
    CsnOrder,
}

impl fmt::Display for AnomalyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "malformed history",
            Self::G0 => "G0 (dirty write)",
            Self::G1a => "G1a (aborted read)",
            Self::G1b => "G1b (intermediate read)",
            Self::G1c => "G1c (circular information flow)",
            Self::GarbageRead => "garbage read",
            Self::MissingRow => "missing row",
            Self::Duplicate => "duplicate",
            Self::OwnWrite => "own write not seen",
            Self::LostWrite => "lost write",
            Self::LostUpdate => "lost update",
            Self::IncompatibleOrder => "incompatible version orders",
            Self::FracturedSnapshot => "fractured snapshot",
            Self::GSingle => "G-single (read skew)",
            Self::G2Item => "G2-item (write skew)",
            Self::G2 => "G2 (anti-dependency cycle with a predicate)",
            Self::SessionOrder => "session order violated",
            Self::RealTimeOrder => "real-time order violated",
            Self::CsnOrder => "CSN order violated",
        })
    }
}

#[derive(Clone, Debug)]
pub struct Anomaly {
    pub kind: AnomalyKind,
    /// The transactions of the anomaly; those of a cycle in its order.
    pub transactions: Vec<TxnId>,
    /// A text for people. A cycle has one line for each edge.
    pub explanation: String,
}

/// The result. A history without anomalies is accepted.
#[derive(Clone, Default, Debug)]
pub struct Verdict {
    pub anomalies: Vec<Anomaly>,
    /// Anomalies that were found but not listed (see `Options::limit`).
    pub unlisted: usize,
    pub transactions: usize,
    pub edges: usize,
    /// Keys whose version order the history tells only in part. They were checked with fewer edges,
    /// so an anomaly may be missed there.
    pub unordered_keys: usize,
    /// Reads of absence that fit several stretches and were left out.
    pub ambiguous_reads: usize,
}

impl Verdict {
    pub fn accepts(&self) -> bool {
        self.anomalies.is_empty()
    }

    pub fn has(&self, kind: AnomalyKind) -> bool {
        self.anomalies.iter().any(|anomaly| anomaly.kind == kind)
    }

    pub(super) fn report(&mut self, limit: usize, kind: AnomalyKind, transactions: Vec<TxnId>, explanation: String) {
        let same_kind = self.anomalies.iter().filter(|anomaly| anomaly.kind == kind).count();
        if same_kind < limit {
            self.anomalies.push(Anomaly { kind, transactions, explanation });
        } else {
            self.unlisted += 1;
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for anomaly in &self.anomalies {
            writeln!(f, "{}: transactions {:?}", anomaly.kind, anomaly.transactions)?;
            for line in anomaly.explanation.lines() {
                writeln!(f, "    {line}")?;
            }
        }
        writeln!(
            f,
            "{}: {} transactions, {} edges, {} anomalies ({} more not listed), \
             {} keys without a full order, {} ambiguous reads",
            if self.accepts() { "accepted" } else { "REJECTED" },
            self.transactions,
            self.edges,
            self.anomalies.len(),
            self.unlisted,
            self.unordered_keys,
            self.ambiguous_reads,
        )
    }
}
