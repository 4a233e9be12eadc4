//! Range reads, filters, inserts and deletes.

use super::*;
use crate::checker::Image;
use std::sync::Arc;

fn insert(id: u64, key: Key) -> Transaction {
    txn(id).write(key, WriteKind::Insert, Payload::Append(id))
}

fn everything() -> Predicate {
    Predicate::table(0)
}

#[test]
fn a_phantom_is_g2() {
    let skew = |id: u64, key| txn(id).scan(everything(), vec![]).write(key, WriteKind::Insert, Payload::Append(id));
    only(&judge(vec![skew(1, X), skew(2, Y)]), AnomalyKind::G2);
    // Each write is in a range that the other did not scan: no conflict.
    let apart = |id: u64, key: Key| {
        txn(id).scan(Predicate::range(0, key.key, key.key), vec![]).write(key, WriteKind::Insert, Payload::Append(id))
    };
    accepted(&judge(vec![apart(1, X), apart(2, Y)]));
}

#[test]
fn a_scan_that_changes_is_read_skew() {
    let reader = txn(2).scan(everything(), vec![]).scan(everything(), vec![(X, list(&[1]))]);
    only(&judge(vec![insert(1, X), reader]), AnomalyKind::GSingle);
}

#[test]
fn a_scan_sees_all_or_nothing_of_a_commit() {
    let writer = || insert(1, X).write(Y, WriteKind::Insert, Payload::Append(2));
    let half = |level| at(3, level).scan(everything(), vec![(X, list(&[1]))]);
    for level in [Level::Snapshot, Level::ReadCommitted] {
        only(&judge(vec![writer(), half(level)]), AnomalyKind::FracturedSnapshot);
    }
    only(&judge(vec![writer(), half(SER)]), AnomalyKind::GSingle);
    let whole = vec![(X, list(&[1])), (Y, list(&[2]))];
    accepted(&judge(vec![writer(), at(3, Level::Snapshot).scan(everything(), whole)]));
}

#[test]
fn a_missing_and_a_doubled_row() {
    let mut history = History::default();
    history.initial.insert(X, 0);
    history.transactions = vec![txn(1).scan(everything(), vec![])];
    only(&check(&history, &Options::default()), AnomalyKind::MissingRow);
    history.transactions = vec![txn(1).scan(everything(), vec![(X, list(&[])), (X, list(&[]))])];
    only(&check(&history, &Options::default()), AnomalyKind::Duplicate);
    let outside = Predicate::range(0, 5, 9);
    history.transactions = vec![txn(1).scan(outside, vec![(X, list(&[]))])];
    only(&check(&history, &Options::default()), AnomalyKind::GarbageRead);
}

#[test]
fn a_scan_sees_own_inserts_and_deletes() {
    let own = |rows| insert(1, X).scan(everything(), rows);
    accepted(&judge(vec![own(vec![(X, list(&[1]))])]));
    only(&judge(vec![own(vec![])]), AnomalyKind::OwnWrite);
}

#[test]
fn a_filter_counts_changes_of_the_match_only() {
    // Rows with at least two elements.
    let long: crate::checker::Filter = Arc::new(|_, image| matches!(image, Image::List(list) if list.len() >= 2));
    let predicate = Predicate { filter: Some(long), ..everything() };
    let history = |seen: &[u64]| {
        vec![
            txn(1).append(X, 1).append(Y, 10),
            txn(2).append(X, 2).append(Y, 20),
            txn(3).read(X, list(&[1, 2])).read(Y, list(&[10, 20])),
            txn(4).scan(predicate.clone(), vec![(Y, list(&[10, 20]))]).read(Y, list(&[10, 20])),
            txn(5).scan(Predicate { low: Some(1), high: Some(1), ..predicate.clone() }, vec![]).read(Y, list(seen)),
        ]
    };
    let mut good = history(&[10]);
    good.remove(3);
    accepted(&judge(good));
    let mut bad = history(&[10, 20]);
    bad.remove(3);
    only(&judge(bad), AnomalyKind::GSingle);
    let mut other = history(&[10]);
    other.pop();
    only(&judge(other), AnomalyKind::GSingle);
}

#[test]
fn absence_before_the_insert_or_after_the_delete() {
    let delete = || txn(2).read(X, list(&[1])).write(X, WriteKind::Delete, Payload::Opaque);
    let life = || vec![insert(1, X).append(Y, 10), delete().append(Y, 20)];
    let with = |seen: &[u64]| {
        let mut all = life();
        all.push(txn(3).read(X, Seen::Absent).read(Y, list(seen)));
        judge(all)
    };
    accepted(&with(&[]));
    accepted(&with(&[10, 20]));
    // Y shows that X was alive, in every order.
    let verdict = with(&[10]);
    assert!(!verdict.accepts(), "{verdict}");
}

#[test]
fn an_undecided_absence_is_not_held_against_anybody() {
    let delete = txn(2).read(X, list(&[1])).write(X, WriteKind::Delete, Payload::Opaque);
    let verdict = judge(vec![insert(1, X), delete, txn(3).read(X, Seen::Absent)]);
    accepted(&verdict);
    assert_eq!(verdict.ambiguous_reads, 1);
}
