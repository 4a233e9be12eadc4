mod anomalies;
mod brute;
mod order;
mod predicates;
mod simulator;
mod text;

use super::{
    check, AnomalyKind, History, Key, Level, Options, Payload, Predicate, Seen, Status, Transaction, Verdict, WriteKind,
};

const X: Key = Key::new(0, 1);
const Y: Key = Key::new(0, 2);
const SER: Level = Level::Serializable;

fn list(ids: &[u64]) -> Seen {
    Seen::List(ids.to_vec())
}

fn of(txn: u64) -> Seen {
    Seen::Version { txn, nth: None }
}

fn txn(id: u64) -> Transaction {
    Transaction::new(id, SER)
}

fn at(id: u64, level: Level) -> Transaction {
    Transaction::new(id, level)
}

fn judge(transactions: Vec<Transaction>) -> Verdict {
    judge_with(transactions, &Options::default())
}

fn judge_with(transactions: Vec<Transaction>, options: &Options) -> Verdict {
    let mut history = History { transactions, ..History::default() };
    history.table("t");
    check(&history, options)
}

/// The history has this anomaly and no other.
#[track_caller]
fn only(verdict: &Verdict, kind: AnomalyKind) {
    assert!(verdict.has(kind), "expected {kind}:\n{verdict}");
    let others = verdict.anomalies.iter().filter(|anomaly| anomaly.kind != kind).count();
    assert_eq!(others, 0, "only {kind} was expected:\n{verdict}");
}

#[track_caller]
fn accepted(verdict: &Verdict) {
    assert!(verdict.accepts(), "{verdict}");
}

/// A small, repeatable generator (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
