//! Readers that freeze (INV-FROZEN): a serializable transaction that has only read goes on as a
//! snapshot where it would fail, or from its beginning. Its first write ends it, or thaws it.

use crate::client::{Client, Mood};
use crate::load::{assert_serializable, policies, run_in, Load};
use crate::spans::cuts;
use crate::steps::{begin_scan, failed_with, world};
use crate::world::{Jitter, Rng, World};
use mixedcc_engine::checker::{check, Options, Recorder, Verdict};
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::txn::{How, OpenEnd};
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet, RecordRef};
use std::ops::Bound::{Included, Unbounded};
use Mood::Serializable;

const X: i64 = 0;
const Y: i64 = 2;
const Z: i64 = 4;
const ABSENT: i64 = 1;
/// A key of another partition.
const FAR: i64 = 1000;

/// How a transaction reads what a writer changes next.
type Read = fn(&mut Client) -> Result<(), Error>;

fn row(c: &mut Client) -> Result<(), Error> {
    assert!(c.get(X)?.is_some());
    Ok(())
}
fn absence(c: &mut Client) -> Result<(), Error> {
    assert!(c.get(ABSENT)?.is_none());
    Ok(())
}
fn partition(c: &mut Client) -> Result<(), Error> {
    assert_eq!(c.scan(0)?.len(), 3);
    Ok(())
}
fn some(c: &mut Client) -> Result<(), Error> {
    c.scan_some(0).map(drop)
}
fn range(c: &mut Client) -> Result<(), Error> {
    let id = begin_scan(c, 0, Included(X), Unbounded, OpenEnd::No)?;
    for key in [X, Y] {
        let r = record(c.w, key);
        assert!(c.t.read_scanned(&c.p, r, false, id)?.is_some());
    }
    Ok(())
}
const READS: [Read; 4] = [row, absence, partition, range];

fn record(w: &World, key: i64) -> RecordRef {
    w.records(key)[0]
}

fn value(c: &mut Client, key: i64) -> Option<i64> {
    c.get(key).expect("a read that does not fail").map(|r| r.value)
}

fn judge(recorder: &Recorder) -> Verdict {
    check(&recorder.history(), &Options::strict())
}

/// Commits changes of X, Y, Z and ABSENT.
fn change(c: &mut Client) {
    c.begin(Serializable);
    let updates = [X, Y, Z].map(|key| c.update(key, false));
    assert_eq!((updates, c.insert(ABSENT)), ([Ok(true); 3], Ok(true)));
    c.commit().expect("nobody is in the way");
}

/// A transaction has read, another one has changed all that, and the first one has met a change.
fn meets<'w>(w: &'w World, recorder: &Recorder, read: Read) -> (Client<'w>, Client<'w>) {
    let mut a = Client::new(w, 0, recorder.session(), 77);
    let mut b = Client::new(w, 1, recorder.session(), 77);
    a.begin(Serializable);
    read(&mut a).expect("nobody is in the way");
    change(&mut b);
    assert_eq!(value(&mut a, Z), Some(100), "as it was");
    assert!(a.t.is_frozen());
    (a, b)
}

#[test]
fn who_only_reads_goes_on_where_its_reads_were_valid() {
    for read in READS {
        let w = world(Protocol::Occ, Policy::Wait, &[1, 3], 64);
        let recorder = Recorder::new();
        let (mut a, mut b) = meets(&w, &recorder, read);
        for again in READS.into_iter().chain([some as Read]) {
            again(&mut a).expect("what it has read stays");
        }
        change_again(&mut b);
        for key in [X, Y, Z] {
            assert_eq!(value(&mut a, key), Some(100));
        }
        assert_eq!(value(&mut a, ABSENT), None);
        assert_eq!(a.t.remembered_reads(), 0, "nothing of it is validated");
        a.commit().expect("a transaction that only reads");
        assert!(!a.t.is_frozen());
        let v = judge(&recorder);
        assert!(v.accepts(), "{v}");
        assert_eq!(counts(&w, 0), (1, 0));
    }
}

fn change_again(b: &mut Client) {
    b.begin(Serializable);
    assert_eq!((b.update(X, false), b.delete(Y, false, false)), (Ok(true), Ok(true)));
    b.commit().expect("nobody is in the way");
}

/// Transactions that ended frozen, and thaws that failed, by the counters of a partition.
fn counts(w: &World, partition: usize) -> (u64, u64) {
    let s = &w.table.map().partitions()[partition].stats;
    (s.frozen.load(Ordering::Relaxed), s.failed_thaws.load(Ordering::Relaxed))
}

/// What a transaction may do beside reading.
type Act = fn(&mut Client) -> Result<(), Error>;
const ACTS: [Act; 5] = [
    |c| c.update(FAR, false).map(drop),
    |c| c.update(FAR, true).map(drop),
    |c| c.delete(FAR, false, false).map(drop),
    |c| c.insert(FAR + 1).map(drop),
    |c| c.t.lock_row(&c.p, record(c.w, FAR), Mode::KeyShare, How::Wait),
];

#[test]
fn what_is_more_than_a_read_fails_as_the_read_would_have() {
    for act in ACTS {
        let w = world(Protocol::Occ, Policy::Wait, &[1, 3], 64);
        let recorder = Recorder::new();
        let (mut a, _b) = meets(&w, &recorder, row);
        for key in [X, Z] {
            a.savepoint();
            failed_with(act(&mut a), AbortReason::ReadChanged);
            a.end_savepoint(false);
            assert_eq!(value(&mut a, key), Some(100), "it can read on");
        }
        a.commit().expect("it has only read");
        assert_eq!(counts(&w, 0), (1, 2));
        assert!(judge(&recorder).accepts());
    }
}

#[test]
fn who_writes_elsewhere_after_it_has_frozen_fails_at_its_commit() {
    let w = world(Protocol::Occ, Policy::Wait, &[1, 3], 64);
    let recorder = Recorder::new();
    let (mut a, _b) = meets(&w, &recorder, row);
    a.p.threads.writers.set(true);
    failed_with(a.commit(), AbortReason::ReadChanged);
}

/// What keeps a transaction from freezing.
const BEFORE: [Act; 5] = [
    |c| {
        c.p.threads.writers.set(true);
        Ok(())
    },
    |c| {
        c.p.threads.freezes.set(false);
        Ok(())
    },
    |c| {
        c.t.validate_at_commit();
        Ok(())
    },
    |c| c.t.lock_row(&c.p, record(c.w, FAR), Mode::KeyShare, How::Wait),
    |c| {
        c.savepoint();
        let done = c.update(FAR, false).map(drop);
        c.end_savepoint(false);
        done
    },
];

#[test]
fn who_has_done_more_than_read_fails() {
    for before in BEFORE.into_iter().chain(ACTS) {
        let w = world(Protocol::Occ, Policy::Wait, &[1, 3], 64);
        let recorder = Recorder::new();
        let mut a = Client::new(&w, 0, recorder.session(), 77);
        let mut b = Client::new(&w, 1, recorder.session(), 77);
        a.begin(Serializable);
        before(&mut a).expect("nobody is in the way");
        row(&mut a).expect("nobody is in the way");
        change(&mut b);
        failed_with(a.get(Z).map(drop), AbortReason::ReadChanged);
    }
}

#[test]
fn a_savepoint_in_which_it_has_frozen_changes_nothing() {
    let w = world(Protocol::Occ, Policy::Wait, &[1, 3], 64);
    let recorder = Recorder::new();
    let mut a = Client::new(&w, 0, recorder.session(), 77);
    let mut b = Client::new(&w, 1, recorder.session(), 77);
    a.begin(Serializable);
    row(&mut a).expect("nobody is in the way");
    a.savepoint();
    change(&mut b);
    assert_eq!(value(&mut a, Z), Some(100));
    a.end_savepoint(false);
    assert!(a.t.is_frozen(), "what it has read in the savepoint counts");
    assert_eq!(value(&mut a, Y), Some(100));
    failed_with(a.update(FAR, false).map(drop), AbortReason::ReadChanged);
    a.commit().expect("it has only read");
    assert!(judge(&recorder).accepts());
}

/// Under `2pl` and `partcc` a reader that may not wait goes on, and gives up what it has locked.
#[test]
fn who_cannot_lock_goes_on_without_locks() {
    let cases =
        [(Protocol::TwoPhase, Policy::NoWait), (Protocol::TwoPhase, Policy::WaitDie), (Protocol::PartCc, Policy::Wait)];
    for (protocol, policy) in cases {
        let w = world(protocol, policy, &[1, 3], 64);
        let recorder = Recorder::new();
        let mut a = Client::new(&w, 0, recorder.session(), 77);
        let mut b = Client::new(&w, 1, recorder.session(), 77);
        b.begin(Serializable);
        assert_eq!(b.update(X, true), Ok(true));
        a.begin(Serializable);
        assert_eq!(value(&mut a, FAR), Some(100));
        assert_eq!(value(&mut a, X), Some(100), "{protocol:?}: it does not wait for the writer");
        assert!(a.t.is_frozen());
        assert_eq!(b.update(FAR, true), Ok(true), "{protocol:?}: nothing is locked any more");
        b.commit().expect("nobody is in the way");
        assert_eq!((value(&mut a, X), value(&mut a, FAR)), (Some(100), Some(100)));
        a.commit().expect("it has only read");
        let v = judge(&recorder);
        assert!(v.accepts(), "{v}");
    }
}

#[test]
fn who_is_frozen_from_its_beginning_locks_nothing() {
    for protocol in Protocol::ALL {
        let w = world(protocol, Policy::NoWait, &[1, 3], 64);
        let recorder = Recorder::new();
        let mut a = Client::new(&w, 0, recorder.session(), 77);
        let mut b = Client::new(&w, 1, recorder.session(), 77);
        a.begin(Serializable);
        a.t.freeze_from_start();
        a.t.declare(&a.p, w.touch(0)).expect("nothing to do");
        for read in READS.into_iter().chain([some as Read]) {
            read(&mut a).expect("a read");
        }
        change(&mut b);
        for read in READS.into_iter().chain([some as Read]) {
            read(&mut a).expect("a read");
        }
        for key in [X, Y, Z] {
            assert_eq!(value(&mut a, key), Some(100));
        }
        a.commit().expect("it has only read");
        let v = judge(&recorder);
        assert!(v.accepts(), "{v}");
        assert_eq!(counts(&w, 0), (1, 0));
    }
}

/// A transaction that is frozen from its beginning reads, another one changes something before that
/// or after it, and the first one writes. How does it end? The judge has the history.
fn thaws(protocol: Protocol, read: Read, changed: Option<bool>, fault: Option<Fault>) -> (Result<(), Error>, Verdict) {
    let w = world(protocol, Policy::Wait, &[1, 3], 64);
    let recorder = Recorder::new();
    let mut a = Client::new(&w, 0, recorder.session(), 77);
    let mut b = Client::new(&w, 1, recorder.session(), 77);
    a.begin(Serializable);
    a.t.freeze_from_start();
    if changed == Some(true) {
        change(&mut b);
    }
    faults::set(fault);
    read(&mut a).expect("a read");
    if changed == Some(false) {
        faults::set(None);
        change(&mut b);
        faults::set(fault);
    }
    let end = a.update(FAR, false).map(|done| assert!(done));
    assert_eq!(end.is_ok(), !a.t.is_frozen());
    let end = end.and_then(|()| a.commit());
    faults::set(None);
    a.abort();
    (end, judge(&recorder))
}

#[test]
fn a_write_thaws_what_still_holds() {
    for protocol in Protocol::ALL {
        for read in READS {
            let (end, v) = thaws(protocol, read, None, None);
            assert_eq!(end, Ok(()));
            assert!(v.accepts(), "{v}");
            for early in [true, false] {
                let (end, v) = thaws(protocol, read, Some(early), None);
                assert!(matches!(end, Err(Error::Abort { .. })), "{protocol:?} {early}: {end:?}");
                assert!(v.accepts(), "{v}");
            }
        }
    }
}

#[test]
fn a_transaction_that_forgets_what_it_read_frozen_is_found() {
    for fault in [Fault::FrozenForgets, Fault::ThawForgets] {
        // What the last one reads is not recorded.
        for read in &READS[..3] {
            for early in [true, false] {
                let (end, v) = thaws(Protocol::Occ, *read, Some(early), Some(fault));
                assert_eq!(end, Ok(()), "{fault:?}: the fault has no effect");
                assert!(!v.accepts(), "{fault:?} {early}");
            }
        }
    }
}

#[test]
fn a_writer_that_freezes_is_found() {
    let run = |fault| {
        let w = world(Protocol::Occ, Policy::Wait, &[1, 3], 64);
        let recorder = Recorder::new();
        let mut a = Client::new(&w, 0, recorder.session(), 77);
        let mut b = Client::new(&w, 1, recorder.session(), 77);
        a.begin(Serializable);
        assert_eq!(a.update(FAR, false), Ok(true));
        row(&mut a).expect("nobody is in the way");
        change(&mut b);
        faults::set(fault);
        let end = a.get(Z).and_then(|_| a.commit());
        faults::set(None);
        a.abort();
        (end.is_ok(), judge(&recorder).accepts())
    };
    assert_eq!(run(None), (false, true));
    assert_eq!(run(Some(Fault::WritersFreeze)), (true, false));
}

#[test]
fn a_reader_that_freezes_at_another_moment_is_found() {
    let run = |fault| {
        let w = world(Protocol::Occ, Policy::Wait, &[1, 3], 64);
        let recorder = Recorder::new();
        let mut a = Client::new(&w, 0, recorder.session(), 77);
        let mut b = Client::new(&w, 1, recorder.session(), 77);
        a.begin(Serializable);
        row(&mut a).expect("nobody is in the way");
        change(&mut b);
        faults::set(fault);
        let end = a.get(Z).and_then(|_| a.commit());
        faults::set(None);
        a.abort();
        (end.is_ok(), judge(&recorder).accepts())
    };
    assert_eq!(run(None), (true, true));
    assert_eq!(run(Some(Fault::FreezesNow)), (true, false));
}

/// TRUNCATE and rewrites show their new storage to all transactions at once.
#[test]
fn storage_that_is_newer_than_the_snapshot_is_not_read() {
    for (from_start, fault) in [(false, None), (true, None), (false, Some(Fault::FrozenSeesNewStorage))] {
        let w = world(Protocol::Occ, Policy::Wait, &[1, 3], 64);
        let recorder = Recorder::new();
        let (mut a, mut b) = if from_start {
            let mut a = Client::new(&w, 0, recorder.session(), 77);
            a.begin(Serializable);
            a.t.freeze_from_start();
            (a, Client::new(&w, 1, recorder.session(), 77))
        } else {
            meets(&w, &recorder, row)
        };
        change_far(&mut b);
        w.table.map().begins(w.e.now());
        faults::set(fault);
        let read = a.get(FAR).map(|r| r.map(|r| r.value));
        faults::set(None);
        match (from_start, fault) {
            (true, _) => {
                assert_eq!(read, Ok(Some(101)), "it has read nothing yet, and thaws");
                assert!(!a.t.is_frozen());
            }
            (false, None) => failed_with(read.map(drop), AbortReason::ReadChanged),
            (false, Some(_)) => assert_eq!(read, Ok(Some(100)), "the fault has no effect"),
        }
    }
}

fn change_far(b: &mut Client) {
    b.begin(Serializable);
    assert_eq!(b.update(FAR, false), Ok(true));
    b.commit().expect("nobody is in the way");
}

/// A slot whose transactions only read expects that of the next one, until one writes, or fails to
/// thaw.
#[test]
fn who_has_read_for_long_is_expected_to_read() {
    let w = world(Protocol::TwoPhase, Policy::Wait, &[1, 3], 64);
    let recorder = Recorder::new();
    let mut a = Client::new(&w, 0, recorder.session(), 77);
    let mut b = Client::new(&w, 1, recorder.session(), 77);
    let read_for_long = |a: &mut Client| {
        let mut n = 0;
        while !a.t.expects_to_read() {
            a.begin(Serializable);
            row(a).expect("a read");
            a.commit().expect("it has only read");
            n += 1;
        }
        n
    };
    assert_eq!(read_for_long(&mut a), 100);
    change_far(&mut a);
    assert_eq!(read_for_long(&mut a), 100);
    a.begin(Serializable);
    a.t.freeze_from_start();
    row(&mut a).expect("a read");
    change(&mut b);
    failed_with(a.update(FAR, false).map(drop), AbortReason::ReadChanged);
    a.abort();
    assert!(!a.t.expects_to_read());
    assert_eq!(read_for_long(&mut a), 100);
}

/// A scan is under way, and comes to a row that another transaction has replaced: it may have done
/// so before the scan began to read, for all that is known. Does the transaction freeze?
fn meets_doubt(a: &mut Client, b: &mut Client) -> bool {
    a.begin(Serializable);
    let id = begin_scan(a, 0, Included(X), Unbounded, OpenEnd::High).expect("nobody is in the way");
    let read = |a: &mut Client, key| a.t.read_scanned(&a.p, record(a.w, key), false, id).expect("a read").is_some();
    assert!(read(a, X));
    b.begin(Serializable);
    assert_eq!([Y, Z].map(|key| b.update(key, false)), [Ok(true); 2]);
    b.commit().expect("nobody is in the way");
    assert!(read(a, Y));
    a.t.is_frozen()
}

/// A transaction in doubt freezes, but not soon after one for which that was wrong. Another failure
/// to thaw says nothing about it.
#[test]
fn doubt_freezes_where_that_was_right_of_late() {
    let w = world(Protocol::Occ, Policy::Wait, &[1, 3], 64);
    let recorder = Recorder::new();
    let (mut a, mut b) = meets(&w, &recorder, row);
    failed_with(a.update(FAR, false).map(drop), AbortReason::ReadChanged);
    a.abort();
    assert!(meets_doubt(&mut a, &mut b), "a conflict had frozen the one that failed");
    a.commit().expect("it has only read");
    assert!(meets_doubt(&mut a, &mut b));
    failed_with(a.update(FAR, false).map(drop), AbortReason::Phantom);
    a.abort();
    for _ in 0..100 {
        assert!(!meets_doubt(&mut a, &mut b), "doubt had frozen the one that failed");
        a.abort();
        a.begin(Serializable);
        row(&mut a).expect("a read");
        a.commit().expect("nobody is in the way");
    }
    assert!(meets_doubt(&mut a, &mut b));
    a.commit().expect("it has only read");
}

/// Writers and readers of every kind. No transaction that only reads fails.
fn histories(sets: &[ProtocolSet], policy: Policy, seed: u64, from_start: u64) {
    let mut l = Load::new(sets, policy, seed);
    (l.readers, l.from_start, l.spans, l.commits, l.statements) = (2, from_start, 20, 1500, 8);
    l.holds = seed % 3 * 15;
    let w = World::new(sets, policy, l.moods.len() as u16 + 1);
    let mut rng = Rng::new(seed);
    let p = Jitter::new(&w, w.slots, 5);
    for i in [0, 1] {
        w.activate(&p, w.slots, i, &cuts(&mut rng), 32).expect("room for ranges");
    }
    let (h, counts) = run_in(&w, &l, |_, enough| enough());
    assert_serializable(&h, &counts, seed);
    let all = (0..w.table.map().n as usize).map(|i| self::counts(&w, i));
    let sum = all.fold((0, 0), |s, n| (s.0 + n.0, s.1 + n.1));
    eprintln!("{sum:?} frozen, thaws failed");
    // Readers under `2pl` seldom meet anything but waits.
    assert!(sum.0 > 0 || from_start == 0, "none froze");
}

#[test]
fn histories_with_readers_under_each_protocol() {
    for p in Protocol::ALL {
        for &policy in policies(ProtocolSet::of(p)) {
            let seed = 3000 + 20 * p.index() as u64 + policy as u64;
            histories(&[ProtocolSet::of(p)], policy, seed, 0);
            histories(&[ProtocolSet::of(p)], policy, seed + 10, 40);
        }
    }
}

#[test]
fn histories_with_readers_under_pairs() {
    for a in Protocol::ALL {
        for b in Protocol::ALL.into_iter().skip(a.index() + 1) {
            let seed = 3200 + 40 * a.index() as u64 + 4 * b.index() as u64;
            histories(&[ProtocolSet::of(a), ProtocolSet::of(b)], Policy::Wait, seed, 30);
            let both = ProtocolSet::mediated(a, b);
            histories(&[both, ProtocolSet::of(a), both, ProtocolSet::of(b)], Policy::Wait, seed + 1, 30);
        }
    }
}

/// The read-only anomaly of snapshot isolation: one transaction puts a receipt into the open batch,
/// another one closes the batch, and a report counts the receipts. The first two are serializable
/// as snapshots, and the report among them is not.
const RECEIPTS: [&[Act]; 3] = [
    &[|c| c.get(FAR).map(drop), |c| c.insert(ABSENT).map(drop), |c| c.commit()],
    &[|c| c.update(FAR, false).map(drop), |c| c.commit()],
    &[|c| c.get(FAR).map(drop), |c| c.scan(0).map(drop), |c| c.commit()],
];
/// The report among them.
const REPORT: usize = 2;

/// All orders of so many steps of three transactions.
fn orders(left: [usize; 3]) -> Vec<Vec<usize>> {
    if left == [0; 3] {
        return vec![vec![]];
    }
    let from = |first: usize| {
        let mut rest = left;
        rest[first] -= 1;
        orders(rest).into_iter().map(move |o| [vec![first], o].concat())
    };
    (0..3).filter(|&i| left[i] > 0).flat_map(from).collect()
}

/// Did the report freeze?
fn receipts(protocol: Protocol, policy: Policy, from_start: bool, order: &[usize]) -> bool {
    let w = world(protocol, policy, &[1, 3], 64);
    let recorder = Recorder::new();
    let mut clients: Vec<_> = (0..3).map(|slot| Client::new(&w, slot, recorder.session(), 77)).collect();
    let (mut done, mut froze) = ([0; 3], false);
    for &who in order {
        let (c, n) = (&mut clients[who], done[who]);
        done[who] += 1;
        if n == 0 {
            c.begin(Serializable);
            if who == REPORT && from_start {
                c.t.freeze_from_start();
            }
        }
        if !c.t.is_active() {
            continue; // it has failed
        }
        if let Err(e) = RECEIPTS[who][n](c) {
            assert_ne!(who, REPORT, "{e:?} in {order:?}");
            c.abort();
        }
        froze |= clients[REPORT].t.is_frozen();
    }
    let v = judge(&recorder);
    assert!(v.accepts(), "{order:?}: {v}");
    froze
}

#[test]
fn a_report_beside_receipts_never_fails() {
    for (protocol, policy) in [(Protocol::Occ, Policy::Wait), (Protocol::TwoPhase, Policy::NoWait)] {
        for from_start in [false, true] {
            let steps = RECEIPTS.map(<[Act]>::len);
            let all = orders(steps);
            let frozen = all.iter().filter(|order| receipts(protocol, policy, from_start, order)).count();
            assert!(frozen > 0 && (frozen == all.len()) == from_start, "{frozen} of {}", all.len());
        }
    }
}
