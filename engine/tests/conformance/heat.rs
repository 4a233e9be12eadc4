//! Rows that fail transactions become hot, and look-ups of hot rows lock them (INV-HEAT).

use crate::client::{Client, Mood};
use crate::load::{find_anomaly, Load};
use crate::world::World;
use mixedcc_engine::checker::{AnomalyKind, Recorder};
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::platform::StopEvent;
use mixedcc_engine::range::Columns;
use mixedcc_engine::txn::How;
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use std::time::{Duration, Instant};

const KEY: i64 = 0;
const OTHER: i64 = 2;
const THIRD: i64 = 4;

fn world(policy: Policy) -> World {
    World::new(&[ProtocolSet::of(Protocol::Mocc)], policy, 4)
}

fn mode(c: &Client, key: i64) -> Option<Mode> {
    let found = c.w.scan(key, key).first().expect("the row is there").1;
    found.rec.lock.held_by(c.id).map(|h| h.mode)
}

/// The mode in which a look-up by this client locks the row, while no other one is in its way.
fn mode_of_read(c: &mut Client, key: i64) -> Option<Mode> {
    c.begin(Mood::Serializable);
    c.get(key).expect("nobody is in the way");
    let mode = mode(c, key);
    c.abort();
    mode
}

fn updates(c: &mut Client, key: i64) {
    c.begin(Mood::Serializable);
    c.update(key, false).expect("nobody is in the way");
    c.commit().expect("nobody is in the way");
}

/// `loser` reads the row, `winner` changes it, and so the loser fails: because of what it has read,
/// or where `writes` of what it has written.
fn fails(loser: &mut Client, winner: &mut Client, key: i64, writes: bool) {
    loser.begin(Mood::Serializable);
    loser.update(OTHER, false).expect("nobody is in the way");
    loser.get(key).expect("nobody is in the way");
    if writes {
        loser.update(key, false).expect("nobody is in the way");
    }
    updates(winner, key);
    let wanted = if writes { AbortReason::WriteConflict } else { AbortReason::ReadChanged };
    let got = loser.commit();
    assert!(matches!(got, Err(Error::Abort { reason, .. }) if reason == wanted), "{got:?}");
    loser.abort();
}

/// A commit, after which the slot knows of no failure any more. It meets no hot row.
fn commits(c: &mut Client) {
    updates(c, THIRD);
}

/// Makes the row hot for all. Returns after how many failures.
fn heats(loser: &mut Client, winner: &mut Client, writes: bool) -> usize {
    for n in 1..1000 {
        fails(loser, winner, KEY, writes);
        commits(loser);
        if mode_of_read(winner, KEY).is_some() {
            return n;
        }
    }
    panic!("the row does not become hot");
}

#[test]
fn a_row_that_fails_many_is_locked_at_the_read_and_others_are_not() {
    for writes in [false, true] {
        let w = world(Policy::Wait);
        let recorder = Recorder::new();
        let [mut a, mut b] = [0, 1].map(|slot| Client::new(&w, slot, recorder.session(), 5));
        assert_eq!(mode_of_read(&mut a, KEY), None, "nothing is known yet");
        let n = heats(&mut a, &mut b, writes);
        assert!(n >= 3, "after {n} failures");
        // A client that fails because of a write should have locked the row for that at its read.
        let wanted = if writes { Mode::NoKeyUpdate } else { Mode::Share };
        assert_eq!(mode_of_read(&mut a, KEY), Some(wanted));
        assert_eq!(mode_of_read(&mut a, OTHER), None, "another row");
        assert!(w.records(0).iter().all(|r| r.rec.lock.is_free()));
    }
}

/// Locks that are free cool a row.
#[test]
fn a_hot_row_cools() {
    let w = world(Policy::Wait);
    let recorder = Recorder::new();
    let [mut a, mut b] = [0, 1].map(|slot| Client::new(&w, slot, recorder.session(), 5));
    heats(&mut a, &mut b, false);
    assert!((0..100_000).any(|_| mode_of_read(&mut a, KEY).is_none()), "it stays hot");
}

#[test]
fn a_retry_locks_what_has_failed_and_what_it_has_written_until_it_commits() {
    let w = world(Policy::Wait);
    let recorder = Recorder::new();
    let [mut a, mut b] = [0, 1].map(|slot| Client::new(&w, slot, recorder.session(), 5));
    fails(&mut a, &mut b, KEY, false);
    a.begin(Mood::Serializable);
    for key in [KEY, OTHER, THIRD] {
        a.get(key).expect("nobody is in the way");
    }
    assert_eq!([KEY, OTHER, THIRD].map(|key| mode(&a, key)), [Some(Mode::Share), Some(Mode::NoKeyUpdate), None]);
    assert_eq!(mode_of_read(&mut b, KEY), None, "the list is the slot's");
    a.update(OTHER, false).expect("nobody is in the way");
    a.commit().expect("nobody is in the way");
    assert_eq!(mode_of_read(&mut a, KEY), None, "it has committed");
}

const A: Columns = Columns::of(1);
const B: Columns = Columns::of(2);

/// The mode in which a look at these columns locks the row, while no other one is in its way.
fn mode_of_look(c: &mut Client, looked: Columns) -> Option<Mode> {
    c.begin(Mood::Serializable);
    c.t.read_columns(&c.p, c.w.records(KEY)[0], looked).expect("nobody is in the way");
    let mode = mode(c, KEY);
    c.abort();
    mode
}

/// A transaction of its own changes these columns of the hot row.
fn changes(c: &mut Client, columns: Columns) {
    c.changes = columns;
    updates(c, KEY);
    c.changes = Columns::ALL;
}

#[test]
fn looks_at_columns_that_do_not_change_leave_a_hot_row_alone() {
    let w = world(Policy::Wait);
    let recorder = Recorder::new();
    let [mut a, mut b] = [0, 1].map(|slot| Client::new(&w, slot, recorder.session(), 5));
    heats(&mut a, &mut b, false);
    w.table.changing.forget();
    assert_eq!(mode_of_look(&mut a, A), Some(Mode::Share), "nothing is known of its columns");
    w.table.changing.guess_none();
    assert_eq!(mode_of_look(&mut a, A), None);
    assert_eq!(mode_of_read(&mut a, KEY), Some(Mode::Share), "a look at the whole row");
    changes(&mut b, A);
    assert_eq!([A, B].map(|looked| mode_of_look(&mut a, looked)), [Some(Mode::Share), None], "one changes now");
    // A wrong guess costs a failure. The retry locks the row, whatever is guessed.
    w.table.changing.guess_none();
    a.begin(Mood::Serializable);
    a.t.read_columns(&a.p, w.records(KEY)[0], A).expect("nobody is in the way");
    a.update(OTHER, false).expect("nobody is in the way");
    changes(&mut b, A);
    let got = a.commit();
    assert!(matches!(got, Err(Error::Abort { reason: AbortReason::ReadChanged, .. })), "{got:?}");
    a.abort();
    w.table.changing.guess_none();
    assert_eq!([mode_of_look(&mut a, A), mode_of_look(&mut b, A)], [Some(Mode::Share), None], "the slot's retry");
    commits(&mut a);
    w.table.changing.guess_none();
    assert_eq!(mode_of_look(&mut a, A), None, "it has committed");
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::yield_now();
    }
}

/// A writer that waits at its read finds what the one before it has committed: neither fails.
#[test]
fn who_waits_for_a_hot_row_reads_its_newest_version() {
    let w = &world(Policy::Wait);
    let recorder = Recorder::new();
    let [mut a, mut b] = [0, 1].map(|slot| Client::new(w, slot, recorder.session(), 5));
    heats(&mut a, &mut b, true);
    a.begin(Mood::Serializable);
    a.get(KEY).expect("nobody is in the way");
    assert_eq!(mode(&a, KEY), Some(Mode::NoKeyUpdate));
    std::thread::scope(|s| {
        let session = recorder.session();
        let waiter = s.spawn(move || {
            let mut c = Client::new(w, 2, session, 5);
            c.begin(Mood::Serializable);
            c.update(OTHER, false)?;
            c.get(KEY)?;
            c.update(KEY, false)?;
            c.commit()
        });
        until("the other one sleeps", || w.e.asleep() > 0);
        a.update(KEY, false).expect("nobody is in the way");
        a.commit().expect("it has the lock");
        waiter.join().expect("its thread").expect("it has waited");
    });
}

/// The lock of a hot row is not worth a deadlock: a read goes on without it.
#[test]
fn a_read_whose_wait_would_close_a_circle_goes_on() {
    let w = &world(Policy::Wait);
    let recorder = Recorder::new();
    let [mut a, mut b] = [0, 1].map(|slot| Client::new(w, slot, recorder.session(), 5));
    heats(&mut a, &mut b, true);
    a.begin(Mood::Serializable);
    let other = w.scan(OTHER, OTHER).first().expect("the row is there").1;
    a.t.lock_row(&a.p, other, Mode::NoKeyUpdate, How::Wait).expect("nobody is in the way");
    std::thread::scope(|s| {
        let session = recorder.session();
        let sleeper = s.spawn(move || {
            let mut c = Client::new(w, 2, session, 5);
            c.begin(Mood::Serializable);
            c.get(KEY)?; // hot: it has the lock
            c.update(OTHER, false)?;
            c.commit()
        });
        until("the other one sleeps", || w.e.asleep() > 0);
        a.get(KEY).expect("no deadlock");
        assert_eq!(mode(&a, KEY), None);
        a.commit().expect("it has only read and locked, and nobody has changed the row");
        sleeper.join().expect("its thread").expect("it has waited for the lock of the other row");
    });
}

/// Nor is it worth the failure of a transaction that has locked the row's key, for which the row's
/// writer waits.
#[test]
fn a_read_whose_lock_of_the_key_is_waited_for_goes_on() {
    let w = &world(Policy::Wait);
    let recorder = Recorder::new();
    let row = w.records(KEY)[0];
    std::thread::scope(|s| {
        // Here, so that they end before the other one is waited for, should the test fail.
        let [mut a, mut b] = [0, 1].map(|slot| Client::new(w, slot, recorder.session(), 5));
        heats(&mut a, &mut b, false);
        a.begin(Mood::Serializable);
        a.t.lock_row(&a.p, row, Mode::KeyShare, How::Wait).expect("nobody is in the way");
        let session = recorder.session();
        let sleeper = s.spawn(move || {
            let mut c = Client::new(w, 2, session, 5);
            c.begin(Mood::Serializable);
            c.t.lock_row(&c.p, row, Mode::NoKeyUpdate, How::Wait)?;
            c.t.lock_row(&c.p, row, Mode::Update, How::Wait)?;
            c.commit()
        });
        until("the other one sleeps", || w.e.asleep() > 0);
        a.get(KEY).expect("it goes on without the lock");
        assert_eq!(mode(&a, KEY), Some(Mode::KeyShare));
        a.commit().expect("it has only read and locked, and nobody has changed the row");
        sleeper.join().expect("its thread").expect("it has waited for the key");
    });
    assert!(row.rec.lock.is_free());
}

/// A savepoint that is rolled back gives up the lock of the key that it took, and not what a read
/// has made of it.
#[test]
fn a_read_under_a_lock_that_is_undone_keeps_its_own() {
    for (fault, wanted) in [(None, Some(Mode::Share)), (Some(Fault::LoweredTooFar), None)] {
        let w = world(Policy::Wait);
        let recorder = Recorder::new();
        let [mut a, mut b] = [0, 1].map(|slot| Client::new(&w, slot, recorder.session(), 5));
        heats(&mut a, &mut b, false);
        let row = w.records(KEY)[0];
        a.begin(Mood::Serializable);
        a.savepoint();
        a.t.lock_row(&a.p, row, Mode::KeyShare, How::Wait).expect("nobody is in the way");
        a.get(KEY).expect("nobody is in the way");
        assert_eq!(mode(&a, KEY), Some(Mode::Share));
        faults::set(fault);
        a.end_savepoint(false);
        faults::set(None);
        assert_eq!(mode(&a, KEY), wanted);
        a.commit().expect("nobody is in the way");
        assert!(row.rec.lock.is_free());
    }
}

/// Under the other policies no transaction waits at a read, or fails because a row is hot.
#[test]
fn policies_that_do_not_wait_leave_the_lock_out() {
    for policy in [Policy::NoWait, Policy::WaitDie] {
        let w = world(policy);
        let recorder = Recorder::new();
        let [mut a, mut b] = [0, 1].map(|slot| Client::new(&w, slot, recorder.session(), 5));
        heats(&mut a, &mut b, true);
        a.begin(Mood::Serializable);
        a.get(KEY).expect("nobody is in the way");
        assert_eq!(mode(&a, KEY), Some(Mode::NoKeyUpdate));
        b.begin(Mood::Serializable);
        b.p.threads.fail_at.set(Some(StopEvent::LockWait));
        b.get(KEY).expect("it goes on without the lock");
        assert_eq!(mode(&b, KEY), None);
        a.update(KEY, false).expect("it has the lock");
        a.commit().expect("it has the lock");
        b.p.threads.fail_at.set(None);
        b.abort();
    }
}

/// All tests of a process share the setting. So this one is alone:
/// `cargo test --features faults,thresholds --test conformance a_lock_out_of_order`.
#[cfg(feature = "thresholds")]
#[test]
fn a_lock_out_of_order_is_tried_once_where_a_benchmark_wants_that() {
    use mixedcc_engine::partition::set_ordered;
    let w = world(Policy::Wait);
    let recorder = Recorder::new();
    let [mut a, mut b] = [0, 1].map(|slot| Client::new(&w, slot, recorder.session(), 5));
    heats(&mut a, &mut b, true);
    let [first, second] = [KEY, OTHER].map(|key| w.scan(key, key).first().expect("the row is there").1);
    assert!(first.no < second.no);
    a.begin(Mood::Serializable);
    a.get(KEY).expect("nobody is in the way");
    for (ordered, later) in [(true, true), (true, false), (false, true)] {
        set_ordered(ordered);
        b.begin(Mood::Serializable);
        if later {
            b.t.lock_row(&b.p, second, Mode::Share, How::Wait).expect("nobody is in the way");
        }
        b.p.threads.fail_at.set(Some(StopEvent::LockWait));
        assert_eq!(b.get(KEY).is_ok(), ordered && later, "{ordered}, {later}: it waits else");
        b.p.threads.fail_at.set(None);
        b.abort();
    }
    set_ordered(false);
}

/// INV-HEAT: reads of hot rows are validated whether or not they have got the lock.
#[test]
fn the_heat_is_not_trusted() {
    let load = |policy, fault| {
        move |seed| {
            let mut l = Load::new(&[ProtocolSet::of(Protocol::Mocc)], policy, seed).serializable_only();
            (l.fault, l.commits, l.churn) = (fault, 1000, 0);
            l
        }
    };
    for policy in Policy::ALL {
        let found = find_anomaly(load(policy, None), 2);
        assert!(found.is_none(), "{policy:?}: {}", found.expect("an anomaly"));
    }
    let v = find_anomaly(load(Policy::NoWait, Some(Fault::TrustsHeat)), 40).expect("the fault was not found");
    assert!(!v.has(AnomalyKind::Malformed), "the record of the history is at fault: {v}");
}
