//! A transaction that repeats one that has failed takes the locks of that one first, in canonical
//! order (INV-FIRST).

use crate::client::{Client, Mood};
use crate::world::World;
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::platform::StopEvent;
use mixedcc_engine::txn::How;
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Rows of one partition, in canonical order, and one that is not listed.
const LOW: i64 = 0;
const HIGH: i64 = 2;
const OTHER: i64 = 4;

fn world(protocol: Protocol, policy: Policy) -> World {
    World::new(&[ProtocolSet::of(protocol)], policy, 6)
}

fn mode(c: &Client, key: i64) -> Option<Mode> {
    let found = c.w.scan(key, key).first().expect("the row is there").1;
    found.rec.lock.held_by(c.id).map(|h| h.mode)
}

fn modes(c: &Client) -> [Option<Mode>; 3] {
    [LOW, HIGH, OTHER].map(|key| mode(c, key))
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::yield_now();
    }
}

/// The client has a row, wants the other one, and fails for a deadlock.
fn deadlocks<'w>(w: &'w World, recorder: &Recorder) -> Client<'w> {
    let ready = &AtomicU64::new(0);
    let both = || {
        ready.fetch_add(1, Ordering::SeqCst);
        until("both have a row", || ready.load(Ordering::SeqCst) == 2);
    };
    std::thread::scope(|s| {
        let mut loser = Client::new(w, 0, recorder.session(), 5);
        let session = recorder.session();
        let winner = s.spawn(move || {
            let mut c = Client::new(w, 1, session, 7);
            c.begin(Mood::Serializable);
            c.update(LOW, false)?;
            both();
            c.update(HIGH, false)?;
            c.commit()
        });
        loser.begin(Mood::Serializable);
        loser.update(HIGH, false).expect("nobody is in the way");
        ready.fetch_add(1, Ordering::SeqCst);
        until("the other sleeps", || w.e.asleep() > 0);
        assert_eq!(loser.update(LOW, false), Err(Error::Deadlock));
        loser.abort();
        winner.join().expect("a thread").expect("the other gave way");
        loser
    })
}

/// The locks of a repetition that looks up one row.
fn locks_after(c: &mut Client, key: i64, fault: Option<Fault>) -> [Option<Mode>; 3] {
    faults::set(fault);
    c.begin(Mood::Serializable);
    c.get(key).expect("nobody is in the way");
    let found = modes(c);
    c.abort();
    faults::set(None);
    found
}

#[test]
fn who_failed_for_a_deadlock_takes_all_its_locks_at_the_first_of_these_rows() {
    let (write, read) = (Some(Mode::NoKeyUpdate), Some(Mode::Share));
    for (key, fault, wanted) in [
        (HIGH, Some(Fault::ListUnused), [None, write, None]),
        (HIGH, None, [write, write, None]),
        (LOW, None, [write, write, None]),
        (OTHER, None, [None, None, read]), // it is not listed
    ] {
        let (w, recorder) = (world(Protocol::TwoPhase, Policy::Wait), Recorder::new());
        let mut c = deadlocks(&w, &recorder);
        assert_eq!(locks_after(&mut c, key, fault), wanted, "{key}, {fault:?}");
        // It has ended without a failure: the next one repeats nothing.
        assert_eq!(locks_after(&mut c, HIGH, None)[0], None, "{key}, {fault:?}");
        assert!(w.records(0).iter().all(|r| r.rec.lock.is_free()));
    }
}

#[test]
fn who_has_committed_repeats_nothing() {
    let (w, recorder) = (world(Protocol::TwoPhase, Policy::Wait), Recorder::new());
    let mut c = deadlocks(&w, &recorder);
    c.begin(Mood::Serializable);
    c.update(OTHER, false).expect("nobody is in the way");
    c.commit().expect("nobody is in the way");
    assert_eq!(locks_after(&mut c, HIGH, None)[0], None);
}

/// The next transaction of a client that failed for a deadlock, and one that has its first row.
fn beside_a_holder<'w>(w: &'w World, recorder: &Recorder) -> (Client<'w>, Client<'w>) {
    let mut c = deadlocks(w, recorder);
    let mut holder = Client::new(w, 2, recorder.session(), 9);
    holder.begin(Mood::Serializable);
    holder.update(LOW, false).expect("nobody is in the way");
    c.begin(Mood::Serializable);
    (c, holder)
}

/// NOWAIT and SKIP LOCKED: a transaction that has locked a row without waiting does not wait for
/// another one when it reads the row.
#[test]
fn who_must_not_wait_takes_nothing_first() {
    let (w, recorder) = (world(Protocol::TwoPhase, Policy::Wait), Recorder::new());
    let (mut c, mut holder) = beside_a_holder(&w, &recorder);
    let row = |key| w.scan(key, key).first().expect("the row is there").1;
    assert_eq!(c.t.lock_row(&c.p, row(LOW), Mode::Update, How::Try), Err(Error::WouldBlock));
    c.t.lock_row(&c.p, row(HIGH), Mode::Update, How::Try).expect("nobody is in the way");
    c.p.threads.fail_at.set(Some(StopEvent::LockWait));
    c.get(HIGH).expect("it waits for nobody");
    c.p.threads.fail_at.set(None);
    c.commit().expect("it has locked a row");
    holder.commit().expect("nobody is in the way");
}

/// It waits for the first row, and does not have the others meanwhile.
#[test]
fn the_locks_are_taken_in_canonical_order() {
    let (w, recorder) = (world(Protocol::TwoPhase, Policy::Wait), Recorder::new());
    let (mut c, mut holder) = beside_a_holder(&w, &recorder);
    c.p.threads.fail_at.set(Some(StopEvent::LockWait));
    assert_eq!(c.get(HIGH).map(|_| ()), Err(Error::Injected), "it waits");
    assert_eq!(modes(&c), [None; 3]);
    c.p.threads.fail_at.set(None);
    c.abort();
    holder.commit().expect("nobody is in the way");
}

/// A listed lock that would close a circle is left out, and no transaction fails.
#[test]
fn a_listed_lock_that_would_close_a_circle_is_left_out() {
    let (w, recorder) = (&world(Protocol::TwoPhase, Policy::Wait), Recorder::new());
    let mut c = deadlocks(w, &recorder);
    c.begin(Mood::Serializable);
    c.get(OTHER).expect("nobody is in the way");
    let ready = &AtomicU64::new(0);
    std::thread::scope(|s| {
        let session = recorder.session();
        let other = s.spawn(move || {
            let mut other = Client::new(w, 1, session, 7);
            other.begin(Mood::Serializable);
            other.update(LOW, false)?;
            ready.store(1, Ordering::SeqCst);
            other.update(OTHER, false)?;
            other.commit()
        });
        until("it has a row", || ready.load(Ordering::SeqCst) == 1);
        until("it sleeps", || w.e.asleep() > 0);
        c.get(HIGH).expect("one row less is locked");
        assert_eq!(modes(&c), [None, Some(Mode::NoKeyUpdate), Some(Mode::Share)]);
        c.commit().expect("it has only read");
        other.join().expect("a thread").expect("it was not disturbed");
    });
}

/// The client fails under `mocc`: a row that it has read has changed. It has written another one.
fn fails_under_mocc<'w>(w: &'w World, recorder: &Recorder) -> Client<'w> {
    let [mut c, mut winner] = [0, 1].map(|slot| Client::new(w, slot, recorder.session(), 5));
    c.begin(Mood::Serializable);
    c.get(HIGH).expect("nobody is in the way");
    c.update(LOW, false).expect("nobody is in the way");
    winner.begin(Mood::Serializable);
    winner.update(HIGH, false).expect("nobody is in the way");
    winner.commit().expect("nobody is in the way");
    let got = c.commit();
    assert!(matches!(got, Err(Error::Abort { reason: AbortReason::ReadChanged, .. })), "{got:?}");
    c.abort();
    c
}

/// The row that has failed the transaction is taken first, and so is the one that it has written;
/// not where transactions do not wait.
#[test]
fn who_failed_under_mocc_takes_its_locks_first() {
    let (write, read) = (Some(Mode::NoKeyUpdate), Some(Mode::Share));
    for (policy, fault, of_low) in
        [(Policy::Wait, None, write), (Policy::Wait, Some(Fault::ListUnused), None), (Policy::NoWait, None, None)]
    {
        let (w, recorder) = (world(Protocol::Mocc, policy), Recorder::new());
        let mut c = fails_under_mocc(&w, &recorder);
        assert_eq!(locks_after(&mut c, HIGH, fault), [of_low, read, None], "{policy:?}, {fault:?}");
    }
}
