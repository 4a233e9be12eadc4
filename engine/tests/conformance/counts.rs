//! What partitions count of failures, sleeps and samples: each once, where it happened, also where
//! the platform unwinds.

use crate::client::{Client, Mood};
use crate::range_locks::until_asleep;
use crate::steps::*;
use crate::world::{PanicAt, World, WIDTH};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::error::AbortReason::{self, *};
use mixedcc_engine::partition::{Sample, WaitReason};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::{Error, Policy, Protocol};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::panic::{catch_unwind, AssertUnwindSafe};
use Mood::{ReadCommitted, Serializable};

/// A world in which every transaction is a sample.
fn sampled(p: Protocol, policy: Policy) -> World {
    let w = world(p, policy, &[3 * WIDTH], 8);
    w.e.shared.sample_every.set(1);
    w
}

/// A session whose next transactions are samples: the first ones of a slot may not be.
fn client<'w>(w: &'w World, r: &Recorder, slot: u16) -> Client<'w> {
    let mut c = session(w, r, slot);
    for _ in 0..8 {
        c.begin(Serializable);
        c.commit().expect("it does nothing");
    }
    c
}

fn aborts(w: &World, partition: u32) -> Vec<(AbortReason, u64)> {
    let stats = &w.touch(partition).partition().stats;
    let all = AbortReason::ALL.iter().zip(&stats.aborts).map(|(why, n)| (*why, n.load(Ordering::Relaxed)));
    all.filter(|(_, n)| *n != 0).collect()
}

fn waits(w: &World, partition: u32) -> Vec<(WaitReason, u64)> {
    let stats = &w.touch(partition).partition().stats;
    WaitReason::ALL.iter().map(|why| (*why, stats.waits.of(*why))).filter(|(_, n)| *n != 0).collect()
}

fn sample(w: &World, partition: u32) -> Sample {
    w.touch(partition).partition().stats.sampled.get()
}

/// One sleeps for what the other has written; what does it get when that goes on?
fn beside_a_sleeper<T>(w: &World, r: &Recorder, key: i64, then: impl FnOnce(&mut Client) -> T) -> T {
    let (mut holder, other) = (client(w, r, 0), r.session());
    holder.begin(Serializable);
    holder.update(0, false).expect("nobody has it");
    let before = w.touch(0).partition().stats.waits.all();
    std::thread::scope(|s| {
        let sleeper = s.spawn(move || {
            let mut c = Client::new(w, 1, other, 3);
            c.begin(Serializable);
            c.update(key, false).expect("nobody has it");
            c.update(0, false)?;
            c.commit()
        });
        until_asleep(w, before + 1);
        let got = then(&mut holder);
        holder.abort();
        sleeper.join().expect("a thread").expect("it has waited");
        got
    })
}

#[test]
fn a_deadlock_is_counted_where_its_victim_slept() {
    let (w, r) = (&sampled(Protocol::TwoPhase, Policy::Wait), Recorder::new());
    let got = beside_a_sleeper(w, &r, WIDTH, |c| c.update(WIDTH, false));
    assert_eq!(got, Err(Error::Deadlock));
    assert_eq!((aborts(w, 0), aborts(w, 1)), (vec![], vec![(Deadlock, 1)]));
    assert_eq!((waits(w, 0), waits(w, 1)), (vec![(WaitReason::Row, 1)], vec![(WaitReason::Row, 1)]));
    assert_eq!((sample(w, 0).lost, sample(w, 1).lost), (1, 1), "the victim's time is lost wherever it was");
    assert!(w.touch(0).partition().stats.waits.us() > 0);
}

#[test]
fn two_who_hold_a_row_below_serializable_and_want_more() {
    let (w, r) = (&sampled(Protocol::TwoPhase, Policy::Wait), Recorder::new());
    let row = w.records(0)[0];
    let lock = |c: &mut Client, mode| {
        let how = mixedcc_engine::txn::How::Wait;
        c.t.lock_for_write(&c.p, row, mode, how, false).map(|_| ())
    };
    use mixedcc_engine::lock::Mode::{NoKeyUpdate, Share};
    let mut b = client(w, &r, 1);
    b.begin(ReadCommitted);
    lock(&mut b, Share).expect("nobody has it");
    std::thread::scope(|s| {
        let session = r.session();
        let first = s.spawn(move || {
            let mut a = Client::new(w, 0, session, 3);
            a.begin(ReadCommitted);
            lock(&mut a, Share).expect("both may");
            lock(&mut a, NoKeyUpdate)?;
            a.commit()
        });
        until_asleep(w, 1);
        assert_eq!(lock(&mut b, NoKeyUpdate), Err(Error::Deadlock));
        b.abort();
        first.join().expect("a thread").expect("it has waited");
    });
    assert_eq!((aborts(w, 0), waits(w, 0)), (vec![(Deadlock, 1)], vec![(WaitReason::Row, 1)]));
}

#[test]
fn a_wait_is_given_up_where_the_platform_unwinds() {
    for (at, deadlock) in [(PanicAt::EnterQueue, false), (PanicAt::WaitFor, false), (PanicAt::WaitFor, true)] {
        let (w, r) = (&sampled(Protocol::TwoPhase, Policy::Wait), Recorder::new());
        let (mut holder, mut other) = (client(w, &r, 0), client(w, &r, 1));
        holder.begin(Serializable);
        holder.update(0, false).expect("nobody has it");
        other.begin(Serializable);
        other.update(WIDTH, false).expect("nobody has it");
        other.p.panic_at.set(Some(at));
        assert!(catch_unwind(AssertUnwindSafe(|| other.update(0, false))).is_err());
        if deadlock {
            other.t.note_deadlock();
        }
        assert_eq!(aborts(w, 0), vec![], "it has not ended");
        other.abort();
        let why = if deadlock { Deadlock } else { WaitGivenUp };
        assert_eq!((aborts(w, 0), aborts(w, 1)), (vec![(why, 1)], vec![]), "{at:?}");
        assert_eq!(waits(w, 0), vec![(WaitReason::Row, 1)]);
        assert_eq!((sample(w, 0).lost, sample(w, 1).lost), (1, 1));
        for (n, retries) in [(1, 1), (2, 1)] {
            other.begin(Serializable);
            other.update(WIDTH, false).expect("nobody has it");
            other.commit().expect("nobody disturbs it");
            assert_eq!((sample(w, 1).txns, sample(w, 1).retries), (n, retries), "the first one is a retry");
        }
    }
}

/// A failure that a savepoint has undone is none of a transaction that commits. Of one that fails
/// twice the last one counts.
#[test]
fn the_last_failure_of_a_transaction_that_fails_counts() {
    for commits in [true, false] {
        let (w, r) = (&sampled(Protocol::TwoPhase, Policy::Wait), Recorder::new());
        let (mut holder, mut other) = (client(w, &r, 0), client(w, &r, 1));
        holder.begin(Serializable);
        holder.update(0, false).expect("nobody has it");
        other.begin(Serializable);
        other.update(WIDTH, false).expect("nobody has it");
        other.savepoint();
        other.p.panic_at.set(Some(PanicAt::WaitFor));
        assert!(catch_unwind(AssertUnwindSafe(|| other.update(0, false))).is_err());
        other.end_savepoint(false);
        if commits {
            other.commit().expect("nothing is left of it");
        } else {
            other.t.fail(WriteConflict, w.touch(1));
            other.abort();
        }
        let last = if commits { vec![] } else { vec![(WriteConflict, 1)] };
        assert_eq!((aborts(w, 0), aborts(w, 1)), (vec![], last));
    }
}

#[test]
fn a_transaction_that_wants_to_end_has_not_failed() {
    let (w, r) = (&sampled(Protocol::TwoPhase, Policy::Wait), Recorder::new());
    let got = beside_a_sleeper(w, &r, WIDTH, |_| ());
    let mut c = client(w, &r, 2);
    c.begin(Serializable);
    c.update(2, false).expect("nobody has it");
    c.abort();
    c.begin(Serializable);
    c.update(2, false).expect("nobody has it");
    c.commit().expect("nobody disturbs it");
    assert_eq!((got, aborts(w, 0), sample(w, 0).lost, sample(w, 0).retries), ((), vec![], 0, 0));
    let stats = &w.touch(0).partition().stats;
    assert_eq!(
        (sample(w, 0).txns, stats.sum(|s| &s.commits) - 1),
        (1, 2),
        "the sleeper's is no sample, and one has made the rows"
    );
}

/// Sleeps are told apart: for a range that a scan has locked whole, for a reader of a part of it,
/// for a partition.
#[test]
fn sleeps_by_what_is_slept_for() {
    for why in [WaitReason::Range, WaitReason::Reader, WaitReason::Partition] {
        let protocol = if why == WaitReason::Partition { Protocol::PartCc } else { Protocol::TwoPhase };
        let (w, r) = (&sampled(protocol, Policy::Wait), Recorder::new());
        let (mut holder, mut other) = (client(w, &r, 0), client(w, &r, 1));
        holder.begin(Serializable);
        match why {
            WaitReason::Range => _ = scan(&mut holder, 0, Unbounded, Excluded(3 * WIDTH)),
            WaitReason::Reader => _ = scan(&mut holder, 0, Included(1), Included(5)),
            _ => _ = holder.update(0, false).expect("nobody has it"),
        }
        other.begin(Serializable);
        other.p.panic_at.set(Some(PanicAt::WaitFor));
        assert!(catch_unwind(AssertUnwindSafe(|| other.insert(3))).is_err(), "{why:?}");
        other.abort();
        assert_eq!((waits(w, 0), aborts(w, 0)), (vec![(why, 1)], vec![(WaitGivenUp, 1)]));
        holder.commit().expect("nobody disturbs it");
    }
}

/// What a sample tells of transactions over one and two partitions.
#[test]
fn samples_have_the_shape_of_their_transactions() {
    let (w, r) = (&sampled(Protocol::Occ, Policy::Wait), Recorder::new());
    let mut c = client(w, &r, 0);
    let before = [0, 1].map(|p| sample(w, p));
    c.begin(Serializable);
    c.t.set_round_trips(2);
    c.update(0, false).expect("nobody has it");
    c.update(WIDTH, false).expect("nobody has it");
    c.get(WIDTH + 2).expect("nobody has it");
    c.commit().expect("nobody disturbs it");
    c.begin(ReadCommitted);
    c.t.set_round_trips(1);
    c.update(WIDTH, false).expect("nobody has it");
    c.commit().expect("nobody disturbs it");
    let [a, b] = [0, 1].map(|p| sample(w, p as u32).since(&before[p]));
    let shape =
        |s: &Sample| [s.txns, s.multi, s.partitions, s.serializable, s.weak_writers, s.round_trips, s.idle, s.writes];
    assert_eq!((shape(&a), shape(&b)), ([1, 1, 2, 1, 0, 2, 1, 1], [2, 1, 3, 1, 1, 3, 1, 2]));
    let address = |p| std::ptr::from_ref(w.touch(p).partition()) as u64;
    let partners = |p: u32| w.touch(p).partition().stats.sampled.partners();
    assert_eq!((partners(0), partners(1)), (vec![(address(1), 1)], vec![(address(0), 1)]));
}
