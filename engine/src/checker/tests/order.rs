//! Session, real-time and CSN order; recovery of version orders; the recorder.

use super::*;
use crate::checker::{Event, Recorder, Write};

#[test]
fn a_session_reads_its_earlier_writes() {
    let history = || vec![txn(1).append(X, 1).with_client(5), txn(2).read(X, list(&[])).with_client(5)];
    only(&judge(history()), AnomalyKind::SessionOrder);
    accepted(&judge_with(history(), &Options { session: false, ..Options::default() }));
}

#[test]
fn a_stale_read_violates_real_time() {
    let history = |begin| {
        vec![
            txn(1).append(X, 1).with_times(10, 20),
            txn(2).append(Y, 2).with_times(12, 25),
            txn(3).read(X, list(&[])).with_times(begin, begin + 5),
        ]
    };
    let strict = Options { real_time: true, ..Options::default() };
    accepted(&judge(history(30)));
    accepted(&judge_with(history(15), &strict));
    let verdict = judge_with(history(30), &strict);
    only(&verdict, AnomalyKind::RealTimeOrder);
    let mut concerned = verdict.anomalies[0].transactions.clone();
    concerned.sort_unstable();
    assert_eq!(concerned, [1, 3]);
    assert!(verdict.anomalies[0].explanation.contains("T1 committed before T3 began"));
}

#[test]
fn the_csn_order_must_be_serial() {
    let history = || vec![txn(1).append(X, 1).with_csn(10), txn(2).read(X, list(&[1])).append(Y, 2).with_csn(5)];
    accepted(&judge(history()));
    let options = Options { csn_order: true, ..Options::default() };
    only(&judge_with(history(), &options), AnomalyKind::CsnOrder);
}

#[test]
fn a_list_must_follow_the_csns() {
    only(
        &judge(vec![txn(1).append(X, 1).with_csn(1), txn(2).append(X, 2).with_csn(2), txn(3).read(X, list(&[2, 1]))]),
        AnomalyKind::IncompatibleOrder,
    );
    only(&judge(vec![txn(1).append(X, 1).with_csn(1), txn(2).append(X, 2).with_csn(1)]), AnomalyKind::Malformed);
}

#[test]
fn unseen_appends_still_order_their_readers() {
    // No read saw the appends of 1 and 2 to X, but 3 read X without them.
    let verdict = judge(vec![
        txn(1).append(X, 1).append(Y, 10),
        txn(2).append(X, 2),
        txn(3).read(X, list(&[])).read(Y, list(&[10])),
    ]);
    only(&verdict, AnomalyKind::GSingle);
    assert_eq!(verdict.unordered_keys, 1);
}

#[test]
fn counters_are_ordered_by_their_value() {
    let step = |id: u64, to: i64| txn(id).write(X, WriteKind::Update, Payload::Count(to));
    let reader = |seen: i64| txn(9).read(X, Seen::Count(seen)).read(Y, list(&[5]));
    let history = |seen| vec![step(2, 2).append(Y, 5), step(1, 1), step(3, 3), reader(seen)];
    accepted(&judge(history(2)));
    accepted(&judge(history(3)));
    only(&judge(history(1)), AnomalyKind::GSingle);
}

#[test]
fn returning_shows_the_replaced_version() {
    let with_saw = |id: u64, saw: Seen| {
        let mut append = at(id, Level::ReadCommitted).append(X, id).with_csn(id);
        if let crate::checker::Event::Write(write) = &mut append.events[0] {
            write.saw = Some(saw);
        }
        append
    };
    accepted(&judge(vec![with_saw(1, list(&[1])), with_saw(2, list(&[1, 2]))]));
    let verdict = judge(vec![with_saw(1, list(&[1])), with_saw(2, list(&[2]))]);
    only(&verdict, AnomalyKind::LostUpdate);
}

#[test]
fn several_lives_of_a_row() {
    let insert = |id: u64| txn(id).write(X, WriteKind::Insert, Payload::Append(id));
    let delete = |id: u64, seen: &[u64]| txn(id).read(X, list(seen)).write(X, WriteKind::Delete, Payload::Opaque);
    let history = |torn: bool| {
        vec![
            insert(1).append(Y, 100).with_times(1, 2),
            delete(2, &[1]).append(Y, 200).with_times(3, 4),
            insert(3).append(Y, 300).with_times(5, 6),
            delete(4, &[3]).with_times(7, 8),
            txn(5).read(Y, list(&[100, 200, 300])).read(X, if torn { list(&[1]) } else { list(&[3]) }),
        ]
    };
    let verdict = judge(history(false));
    accepted(&verdict);
    assert_eq!(verdict.unordered_keys, 0);
    let verdict = judge(history(true));
    assert!(verdict.has(AnomalyKind::GSingle), "{verdict}");
}

#[test]
fn lives_that_overlap_are_ordered_by_the_times_of_their_statements() {
    let write = |mut txn: Transaction, kind, payload, saw: Option<Seen>, at| {
        txn.events.push(Event::Write(Write { key: X, kind, payload, saw, undone: false, at }));
        txn
    };
    let insert = |txn, id, at| write(txn, WriteKind::Insert, Payload::Append(id), None, at);
    let delete = |txn, id, at| write(txn, WriteKind::Delete, Payload::Opaque, Some(list(&[id])), at);
    // All four run at the same time. The last one sees Y as of before the second one, which deleted
    // the row whose successor it sees.
    let history = |timed: bool| {
        let ending = |mut txn: Transaction, at| {
            txn.ending = timed.then_some(at);
            txn.with_times(10, 100)
        };
        let at = |time| timed.then_some(time);
        vec![
            ending(insert(txn(1), 1, at(20)), 25),
            ending(delete(txn(2), 1, at(30)).append(Y, 9), 35),
            ending(insert(txn(3), 3, at(40)), 45),
            ending(delete(txn(4), 3, at(50)), 55),
            ending(insert(txn(5), 5, at(60)), 65),
            ending(txn(6).read(X, list(&[3])).read(Y, list(&[])), 70),
        ]
    };
    let verdict = judge(history(false));
    assert_eq!(verdict.unordered_keys, 1);
    accepted(&verdict);
    let verdict = judge(history(true));
    assert_eq!(verdict.unordered_keys, 0);
    only(&verdict, AnomalyKind::GSingle);
}

#[test]
fn a_row_deleted_twice_is_a_lost_update() {
    let delete = |id: u64| txn(id).read(X, list(&[1])).write(X, WriteKind::Delete, Payload::Opaque);
    let insert = txn(1).write(X, WriteKind::Insert, Payload::Append(1));
    let verdict = judge(vec![insert, delete(2), delete(3)]);
    assert!(verdict.has(AnomalyKind::LostUpdate), "{verdict}");
}

#[test]
fn the_recorder_collects_from_threads() {
    let recorder = Recorder::new();
    let threads: Vec<_> = (0..4_i64)
        .map(|thread| {
            let mut session = recorder.session();
            std::thread::spawn(move || {
                for round in 0..100 {
                    let mut log = session.begin(SER);
                    let key = Key::new(0, thread);
                    log.read(key, Seen::Value(round));
                    let savepoint = log.savepoint();
                    assert_eq!(log.write(key, WriteKind::Update, Payload::Opaque), 1);
                    log.rollback_to(savepoint);
                    log.write(key, WriteKind::Update, Payload::Value(round + 1));
                    log.commit(None);
                }
                drop(session.begin(SER));
                session.begin(SER).abort();
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a session thread"));
    let history = recorder.history();
    assert_eq!(history.transactions.len(), 4 * 102);
    let unknown = |txn: &&Transaction| txn.status == Status::Unknown;
    assert_eq!(history.transactions.iter().filter(unknown).count(), 4);
    accepted(&check(&history, &Options { real_time: true, ..Options::default() }));
}
