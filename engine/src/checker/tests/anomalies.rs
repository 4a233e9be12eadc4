//! Each anomaly, made by hand, is found and correctly named; correct histories have none.

use super::*;
use crate::checker::history::{Event, Write};

#[test]
fn a_serial_history_is_accepted() {
    accepted(&judge(vec![
        txn(1).append(X, 1).append(Y, 2),
        txn(2).read(X, list(&[1])).append(Y, 3),
        txn(3).read(X, list(&[1])).read(Y, list(&[2, 3])),
        txn(4).read(Y, list(&[2, 3])).append(X, 4).read(X, list(&[1, 4])),
    ]));
}

#[test]
fn g0_when_two_lists_have_opposite_orders() {
    only(
        &judge(vec![
            txn(1).append(X, 1).append(Y, 2),
            txn(2).append(X, 3).append(Y, 4),
            txn(3).read(X, list(&[1, 3])),
            txn(4).read(Y, list(&[4, 2])),
        ]),
        AnomalyKind::G0,
    );
}

#[test]
fn g0_when_writes_interleave_in_one_list() {
    let verdict = judge(vec![txn(1).append(X, 1).append(X, 3), txn(2).append(X, 2), txn(3).read(X, list(&[1, 2, 3]))]);
    only(&verdict, AnomalyKind::G0);
}

#[test]
fn g1a_when_an_aborted_write_is_read() {
    let aborted = txn(1).append(X, 1).with_status(Status::Aborted);
    only(&judge(vec![aborted, txn(2).read(X, list(&[1]))]), AnomalyKind::G1a);
}

#[test]
fn g1a_when_a_write_undone_by_a_savepoint_is_read() {
    let mut undone = txn(1).append(X, 1).append(Y, 2);
    if let super::super::Event::Write(write) = &mut undone.events[0] {
        write.undone = true;
    }
    let reader = |seen| txn(2).read(X, seen).read(Y, list(&[2]));
    only(&judge(vec![undone.clone(), reader(list(&[1]))]), AnomalyKind::G1a);
    accepted(&judge(vec![undone, reader(list(&[]))]));
}

#[test]
fn g1a_of_a_named_version() {
    let aborted = || txn(1).write(X, WriteKind::Update, Payload::Opaque).with_status(Status::Aborted);
    only(&judge(vec![aborted(), txn(2).read(X, of(1))]), AnomalyKind::G1a);
    accepted(&judge(vec![aborted(), txn(2).read(X, Seen::Initial)]));
}

#[test]
fn g1b_when_an_intermediate_version_is_read() {
    only(&judge(vec![txn(1).append(X, 1).append(X, 2), txn(2).read(X, list(&[1]))]), AnomalyKind::G1b);
    let twice = || txn(1).write(X, WriteKind::Update, Payload::Opaque).write(X, WriteKind::Update, Payload::Opaque);
    let seen = |nth| Seen::Version { txn: 1, nth: Some(nth) };
    only(&judge(vec![twice(), txn(2).read(X, seen(1))]), AnomalyKind::G1b);
    accepted(&judge(vec![twice(), txn(2).read(X, seen(2))]));
}

#[test]
fn g1c_when_two_read_from_each_other() {
    only(
        &judge(vec![txn(1).append(X, 1).read(Y, list(&[2])), txn(2).append(Y, 2).read(X, list(&[1]))]),
        AnomalyKind::G1c,
    );
}

#[test]
fn g1c_counts_at_read_committed_too() {
    let level = Level::ReadCommitted;
    only(
        &judge(vec![at(1, level).append(X, 1).read(Y, list(&[2])), at(2, level).append(Y, 2).read(X, list(&[1]))]),
        AnomalyKind::G1c,
    );
}

#[test]
fn g_single_is_read_skew() {
    only(
        &judge(vec![txn(1).append(X, 1).append(Y, 2), txn(2).read(X, list(&[])).read(Y, list(&[2]))]),
        AnomalyKind::GSingle,
    );
}

#[test]
fn write_skew_is_g2_item() {
    only(
        &judge(vec![
            txn(1).read(X, list(&[])).read(Y, list(&[])).append(X, 1),
            txn(2).read(X, list(&[])).read(Y, list(&[])).append(Y, 2),
        ]),
        AnomalyKind::G2Item,
    );
}

#[test]
fn write_skew_is_allowed_at_repeatable_read() {
    let level = Level::Snapshot;
    accepted(&judge(vec![
        at(1, level).read(X, list(&[])).read(Y, list(&[])).append(X, 1),
        at(2, level).read(X, list(&[])).read(Y, list(&[])).append(Y, 2),
    ]));
}

#[test]
fn three_way_write_skew_has_three_edges() {
    let z = Key::new(0, 3);
    let verdict = judge(vec![
        txn(1).read(X, list(&[])).append(Y, 1),
        txn(2).read(Y, list(&[])).append(z, 2),
        txn(3).read(z, list(&[])).append(X, 3),
    ]);
    only(&verdict, AnomalyKind::G2Item);
    assert_eq!(verdict.anomalies[0].transactions.len(), 3);
    assert_eq!(verdict.anomalies[0].explanation.lines().count(), 3);
    assert!(verdict.anomalies[0].explanation.contains("--rw-->"), "{verdict}");
}

#[test]
fn the_read_only_anomaly_is_found() {
    // Fekete, O'Neil, O'Neil: a batch that the report did not see any more.
    let report = at(3, Level::SerializableReadOnly).read(X, list(&[])).read(Y, list(&[2]));
    only(
        &judge(vec![
            txn(1).read(X, list(&[])).read(Y, list(&[])).append(X, 1),
            txn(2).read(Y, list(&[])).append(Y, 2),
            report,
        ]),
        AnomalyKind::G2Item,
    );
}

#[test]
fn lost_update_in_each_kind_of_history() {
    let register =
        |id: u64, value: i64| txn(id).read(X, Seen::Value(0)).write(X, WriteKind::Update, Payload::Value(value));
    only(&judge(vec![register(1, 10), register(2, 20)]), AnomalyKind::LostUpdate);
    let counter = |id: u64| txn(id).read(X, Seen::Count(0)).write(X, WriteKind::Update, Payload::Count(1));
    let verdict = judge(vec![counter(1), counter(2)]);
    assert!(verdict.has(AnomalyKind::LostUpdate), "{verdict}");
    let with_csn = |id: u64| txn(id).read(X, Seen::Initial).write(X, WriteKind::Update, Payload::Opaque).with_csn(id);
    only(&judge(vec![with_csn(1), with_csn(2)]), AnomalyKind::LostUpdate);
    only(
        &judge(vec![txn(1).append(X, 1).read(X, list(&[1])), txn(2).append(X, 2).read(X, list(&[2]))]),
        AnomalyKind::LostUpdate,
    );
}

#[test]
fn lost_update_at_repeatable_read_is_found_and_at_read_committed_allowed() {
    let history = |level| {
        vec![
            at(1, level).read(X, list(&[])).append(X, 1).with_csn(1),
            at(2, level).read(X, list(&[])).append(X, 2).with_csn(2),
        ]
    };
    only(&judge(history(Level::Snapshot)), AnomalyKind::LostUpdate);
    accepted(&judge(history(Level::ReadCommitted)));
}

#[test]
fn a_chain_of_registers_is_accepted_and_its_cycle_found() {
    let register = |id: u64, key, from: i64, to: i64| {
        txn(id).read(key, Seen::Value(from)).write(key, WriteKind::Update, Payload::Value(to))
    };
    accepted(&judge(vec![register(1, X, 0, 7), register(2, X, 7, 5), register(3, X, 5, 9)]));
    let skew =
        |id: u64, key, from: i64, to: i64, other, seen: i64| register(id, key, from, to).read(other, Seen::Value(seen));
    only(&judge(vec![skew(1, X, 0, 1, Y, 0), skew(2, Y, 0, 1, X, 0)]), AnomalyKind::G2Item);
}

#[test]
fn a_fractured_snapshot_at_repeatable_read() {
    let writer = || txn(1).append(X, 1).append(Y, 2);
    let torn = |level| at(2, level).read(X, list(&[])).read(Y, list(&[2]));
    only(&judge(vec![writer(), torn(Level::Snapshot)]), AnomalyKind::FracturedSnapshot);
    // Two statements may differ, one may not.
    accepted(&judge(vec![writer(), torn(Level::ReadCommitted)]));
    let statement = at(2, Level::ReadCommitted).read(X, list(&[])).and_read(Y, list(&[2]));
    only(&judge(vec![writer(), statement]), AnomalyKind::FracturedSnapshot);
    // But time does not run backwards from statement to statement.
    let backwards = at(2, Level::ReadCommitted).read(Y, list(&[2])).read(X, list(&[]));
    let verdict = judge(vec![writer(), backwards]);
    only(&verdict, AnomalyKind::FracturedSnapshot);
}

#[test]
fn two_snapshots_must_see_one_order() {
    // Long fork: each saw another writer first.
    let level = Level::Snapshot;
    only(
        &judge(vec![
            txn(1).append(X, 1),
            txn(2).append(Y, 2),
            at(3, level).read(X, list(&[1])).read(Y, list(&[])),
            at(4, level).read(X, list(&[])).read(Y, list(&[2])),
        ]),
        AnomalyKind::FracturedSnapshot,
    );
}

#[test]
fn snapshots_that_are_closed_and_no_prefix() {
    let closed = Options { prefixes: false, ..Options::default() };
    let judge_closed = |transactions| check(&History { transactions, ..History::default() }, &closed);
    for level in [Level::Snapshot, Level::ReadCommitted, Level::Serializable] {
        // The second writer replaced what the first one has read; the reader has it alone.
        let reader = at(3, level).read(X, list(&[])).and_read(Y, list(&[2]));
        let both = || vec![txn(1).read(Y, list(&[])).append(X, 1), txn(2).append(Y, 2), reader.clone()];
        assert!(!judge(both()).accepts());
        assert_eq!(judge_closed(both()).accepts(), level != Level::Serializable);
        // The second writer has read what the first one wrote, or replaced it.
        let depends = vec![txn(1).append(X, 1), txn(2).read(X, list(&[1])).append(Y, 2), reader.clone()];
        assert!(!judge_closed(depends).accepts());
    }
    // Half of a commit, and a long fork.
    let torn = at(2, Level::Snapshot).read(X, list(&[])).read(Y, list(&[2]));
    only(&judge_closed(vec![txn(1).append(X, 1).append(Y, 2), torn]), AnomalyKind::FracturedSnapshot);
    let one = at(3, Level::Snapshot).read(X, list(&[1])).read(Y, list(&[]));
    let other = at(4, Level::Snapshot).read(X, list(&[])).read(Y, list(&[2]));
    let fork = vec![txn(1).append(X, 1), txn(2).append(Y, 2), one, other];
    only(&judge_closed(fork), AnomalyKind::FracturedSnapshot);
    // Serializable transactions, as ever.
    let skew = vec![txn(1).read(X, list(&[])).append(Y, 1), txn(2).read(Y, list(&[])).append(X, 2)];
    only(&judge_closed(skew), AnomalyKind::G2Item);
}

#[test]
fn garbage_duplicates_and_contradictions() {
    only(&judge(vec![txn(1).read(X, list(&[9]))]), AnomalyKind::GarbageRead);
    only(&judge(vec![txn(1).append(X, 1), txn(2).read(X, list(&[1, 1]))]), AnomalyKind::Duplicate);
    let pair = || vec![txn(1).append(X, 1), txn(2).append(X, 2)];
    let mut orders = pair();
    orders.extend([txn(3).read(X, list(&[1, 2])), txn(4).read(X, list(&[2, 1]))]);
    let verdict = judge(orders);
    assert!(verdict.has(AnomalyKind::IncompatibleOrder), "{verdict}");
    only(&judge(vec![txn(7).append(X, 1), txn(7).append(X, 2)]), AnomalyKind::Malformed);
    only(&judge(vec![txn(1).append(X, 1), txn(2).append(X, 1)]), AnomalyKind::Malformed);
}

#[test]
fn a_transaction_sees_its_own_writes() {
    accepted(&judge(vec![txn(1).append(X, 1).read(X, list(&[1]))]));
    only(&judge(vec![txn(1).append(X, 1).read(X, list(&[]))]), AnomalyKind::OwnWrite);
    let deleted = |seen| {
        txn(1)
            .write(X, WriteKind::Insert, Payload::Append(1))
            .write(X, WriteKind::Delete, Payload::Opaque)
            .read(X, seen)
    };
    accepted(&judge(vec![deleted(Seen::Absent)]));
    only(&judge(vec![deleted(list(&[1]))]), AnomalyKind::OwnWrite);
}

#[test]
fn a_lost_write_shows_in_the_last_state() {
    let history = |seen| {
        let mut last = txn(3).read(X, seen);
        last.last = true;
        vec![txn(1).append(X, 1), txn(2).append(X, 2), last]
    };
    accepted(&judge(history(list(&[2, 1]))));
    let verdict = judge(history(list(&[2])));
    assert!(verdict.has(AnomalyKind::LostWrite), "{verdict}");
    assert!(verdict.anomalies.iter().any(|anomaly| anomaly.transactions == [1]), "{verdict}");
    // With CSNs a gap in the middle of a list is enough.
    let mut gap: Vec<Transaction> = (1..=3).map(|id| txn(id).append(X, id).with_csn(id)).collect();
    gap.push(txn(4).read(X, list(&[1, 3])));
    only(&judge(gap), AnomalyKind::LostWrite);
}

#[test]
fn unknown_outcomes_count_only_if_seen() {
    let unknown = || txn(1).append(X, 1).append(Y, 2).with_status(Status::Unknown);
    accepted(&judge(vec![unknown(), txn(2).read(X, list(&[]))]));
    accepted(&judge(vec![unknown(), txn(2).read(X, list(&[1])).read(Y, list(&[2]))]));
    only(&judge(vec![unknown(), txn(2).read(X, list(&[1])).read(Y, list(&[]))]), AnomalyKind::GSingle);
}

/// T2 deletes what T1 has inserted, and T3 inserts again: the delete has committed, although no
/// transaction has read it.
#[test]
fn a_delete_of_unknown_outcome_counts_if_the_key_is_inserted_again() {
    let insert = |id, key| txn(id).write(key, WriteKind::Insert, Payload::Append(id));
    let deleting = |mut t: Transaction, key, saw: &[u64]| {
        let (kind, payload, saw) = (WriteKind::Delete, Payload::Opaque, Some(list(saw)));
        t.events.push(Event::Write(Write { key, kind, payload, saw, undone: false, at: None }));
        t.with_status(Status::Unknown).with_times(30, 40)
    };
    let history = |y: Option<u64>, begin| {
        let deleter = deleting(deleting(txn(2), X, &[1]), Y, &[4]);
        let mut reader = txn(5).with_times(70, 80).read(X, list(&[3]));
        reader = reader.read(Y, y.map_or(Seen::Absent, |id| list(&[id])));
        vec![
            insert(1, X).with_times(1, 2),
            insert(4, Y).with_times(1, 3),
            deleter,
            insert(3, X).with_times(begin, 60),
            reader,
        ]
    };
    let real = Options { real_time: true, ..Options::default() };
    accepted(&judge_with(history(None, 50), &real));
    let verdict = judge_with(history(Some(4), 50), &real);
    assert!(!verdict.accepts(), "the other half of it is missing: {verdict}");
    // It began before the deleter, and may have inserted the key when it was free.
    accepted(&judge_with(history(Some(4), 20), &real));
}

#[test]
fn mixed_levels_protect_the_serializable_ones_only() {
    // T2 reads at read committed what T1 overwrites: no edge from it.
    let second = |level| at(2, level).read(Y, list(&[])).append(X, 2);
    let history = |level| vec![txn(1).read(X, list(&[])).append(Y, 1), second(level)];
    accepted(&judge(history(Level::ReadCommitted)));
    accepted(&judge(history(Level::Snapshot)));
    only(&judge(history(Level::Serializable)), AnomalyKind::G2Item);
    // But its write is one atomic point for a serializable reader.
    let writer = at(1, Level::ReadCommitted).append(X, 1).append(Y, 2);
    only(&judge(vec![writer, txn(2).read(X, list(&[1])).read(Y, list(&[]))]), AnomalyKind::GSingle);
}
