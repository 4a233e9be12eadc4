//! Deadlocks are found by the engine, at once (INV-CYCLE): the platform of these tests finds none.

use crate::client::{Client, Mood};
use crate::spans::{borrowed, encode};
use crate::steps::begin_scan;
use crate::world::{Jitter, PanicAt, Rng, World, PARTITIONS, WIDTH};
use mixedcc_engine::checker::{Recorder, Session};
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::range::Looked;
use mixedcc_engine::txn::{OpenEnd, Scan};
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use std::ops::Bound;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn world() -> World {
    World::new(&[ProtocolSet::of(Protocol::TwoPhase)], Policy::Wait, 4)
}

/// A client whose platform knows its own waits only.
fn client(w: &World, slot: u16, session: Session) -> Client<'_> {
    let mut c = Client::new(w, slot, session, 7 + slot as u64);
    c.p = Jitter::of(w.e, Arc::default(), slot, 11 + slot as u64);
    c
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::yield_now();
    }
}

/// Clients lock their first records; all but the last then ask for their second ones, in turn, and
/// sleep. What does the last one get? `Err(None)`: it fell asleep.
fn last_of(plan: &[(i64, i64)], fault: Option<Fault>) -> Result<(), Option<Error>> {
    let (w, recorder, ready) = (&world(), Recorder::new(), &AtomicU64::new(0));
    let (&(first, second), others) = plan.split_last().expect("a client");
    std::thread::scope(|s| {
        let mut sleepers = Vec::new();
        for (i, &(first, second)) in others.iter().enumerate() {
            let session = recorder.session();
            sleepers.push(s.spawn(move || {
                let mut c = client(w, i as u16, session);
                c.begin(Mood::Serializable);
                c.update(first, false).expect("nobody has it");
                ready.fetch_add(1, Ordering::SeqCst);
                until("all have their first", || ready.load(Ordering::SeqCst) as usize == plan.len());
                until("those before it sleep", || w.e.asleep() >= i);
                c.update(second, false)
            }));
        }
        let mut last = client(w, others.len() as u16, recorder.session());
        last.begin(Mood::Serializable);
        last.update(first, false).expect("nobody has it");
        ready.fetch_add(1, Ordering::SeqCst);
        until("the others sleep", || w.e.asleep() >= others.len());
        last.p.panic_at.set(Some(PanicAt::WaitFor));
        faults::set(fault);
        let got = catch_unwind(AssertUnwindSafe(|| last.update(second, false)));
        faults::set(None);
        last.abort();
        for s in sleepers {
            let went_on = s.join().expect("a thread");
            // With the fault it is one of them that finds the deadlock, if it looks before the last
            // has given up.
            assert!(went_on.is_ok() || fault.is_some(), "the others go on: {went_on:?}");
        }
        got.map_err(|_| None)?.map(|_| ()).map_err(Some)
    })
}

/// With the fault the last client falls asleep. It goes on without sleep if one of the others looks
/// again just before that, finds the deadlock, and fails.
fn is_overlooked(got: Result<(), Option<Error>>) -> bool {
    matches!(got, Err(None) | Ok(()))
}

#[test]
fn the_last_to_wait_fails() {
    let deadlock = Err(Some(Error::Deadlock));
    // A ring of two, of three, and one beside which somebody else waits for the last.
    for plan in [&[(0, 2), (2, 0)][..], &[(0, 2), (2, 4), (4, 0)], &[(4, 0), (2, 0), (0, 2)]] {
        assert_eq!(last_of(plan, None), deadlock, "{plan:?}");
        let got = last_of(plan, Some(Fault::OverlooksCycles));
        assert!(is_overlooked(got), "{plan:?}: the fault: {got:?}");
    }
}

/// Two have scanned a range and write the same row of it: one has the row, and waits for the
/// other's lock of the range.
#[test]
fn a_cycle_of_a_row_and_a_range_is_found() {
    let (w, recorder) = (&world(), Recorder::new());
    let p = Jitter::new(w, w.slots, 1);
    w.activate(&p, w.slots, 0, &[3 * WIDTH], 64).expect("room for ranges");
    let scan = |c: &mut Client| {
        c.statement();
        let at: Vec<_> = (0..PARTITIONS).map(|p| c.w.touch(p)).collect();
        let hi = Bound::Excluded(encode(0, 3 * WIDTH));
        let s = Scan {
            at: &at,
            lo: Bound::Unbounded,
            hi: borrowed(&hi),
            open: OpenEnd::No,
            snapshot: None,
            looked: Looked::ALL,
        };
        c.t.begin_scan(&c.p, c.w.index_ranges(0).expect("active ranges"), &s).map(|_| ())
    };
    std::thread::scope(|s| {
        let mut b = client(w, 1, recorder.session());
        b.begin(Mood::Serializable);
        scan(&mut b).expect("nobody writes");
        let session = recorder.session();
        let first = s.spawn(move || {
            let mut a = client(w, 0, session);
            a.begin(Mood::Serializable);
            scan(&mut a).expect("nobody writes");
            a.update(0, false)?;
            a.commit()
        });
        until("the first sleeps", || w.e.asleep() > 0);
        assert_eq!(b.update(0, false), Err(Error::Deadlock));
        b.abort();
        first.join().expect("a thread").expect("the other gave way");
    });
}

/// Range 1 of the boundaries before a rebuild, for which one waits, and range 1 of those after it
/// have two locks: a transaction that waits for this one does not queue behind the other one.
#[test]
fn ranges_of_two_sets_of_boundaries_have_queues_of_their_own() {
    let (w, recorder) = (&world(), Recorder::new());
    let p = Jitter::new(w, w.slots, 1);
    w.activate(&p, w.slots, 0, &[10, 20], 64).expect("room for ranges");
    std::thread::scope(|s| {
        let [mut holder, mut other] = [0, 1].map(|slot| client(w, slot, recorder.session()));
        holder.begin(Mood::ReadCommitted);
        assert_eq!(holder.insert(15), Ok(true));
        let session = recorder.session();
        let waiter = s.spawn(move || {
            let mut c = client(w, 2, session);
            c.begin(Mood::Serializable);
            begin_scan(&mut c, 0, Bound::Included(10), Bound::Excluded(20), OpenEnd::No)?;
            c.commit()
        });
        until("one sleeps", || w.e.asleep() > 0);
        assert_eq!(w.rebuild(&p, w.slots, 0, &[100, 200], 64), Ok(true));
        other.begin(Mood::Serializable);
        begin_scan(&mut other, 0, Bound::Included(100), Bound::Excluded(200), OpenEnd::No)
            .expect("nobody writes there");
        holder.p.panic_at.set(Some(PanicAt::WaitFor));
        let got = catch_unwind(AssertUnwindSafe(|| holder.insert(105)));
        // A third set would need the place of the first, which the sleeper keeps.
        assert_eq!(w.rebuild(&p, w.slots, 0, &[1000], 64), Ok(false));
        other.abort();
        holder.abort();
        assert_eq!(waiter.join().expect("a thread"), Ok(()));
        assert!(got.is_err(), "it sleeps, and there is no circle: {got:?}");
    });
}

/// What a client does: something before the others wait, and something that waits.
type Steps = (Mood, fn(&mut Client) -> Result<(), Error>, fn(&mut Client) -> Result<(), Error>);

/// A serializable transaction scans the keys from 1 to 5: a part of the first range.
fn scan_part(c: &mut Client) -> Result<(), Error> {
    c.statement();
    let at: Vec<_> = (0..PARTITIONS).map(|p| c.w.touch(p)).collect();
    let (lo, hi) = (encode(0, 1), encode(0, 5));
    let (lo, hi) = (Bound::Included(&lo[..]), Bound::Included(&hi[..]));
    let s = Scan { at: &at, lo, hi, open: OpenEnd::No, snapshot: None, looked: Looked::ALL };
    c.t.begin_scan(&c.p, c.w.index_ranges(0).expect("active ranges"), &s).map(|_| ())
}

/// Both take their first steps, then `sleeper` its second one, for which it sleeps, then `last` its
/// own. What does `last` get? `Err(None)`: it fell asleep.
fn last_gets(sleeper: Steps, last: Steps, fault: Option<Fault>) -> Result<(), Option<Error>> {
    let (w, recorder, ready) = (&world(), Recorder::new(), &AtomicU64::new(0));
    let p = Jitter::new(w, w.slots, 1);
    w.activate(&p, w.slots, 0, &[3 * WIDTH], 64).expect("room for ranges");
    std::thread::scope(|s| {
        let session = recorder.session();
        let waits = s.spawn(move || {
            let mut c = client(w, 0, session);
            c.begin(sleeper.0);
            sleeper.1(&mut c).expect("nobody is in its way");
            ready.fetch_add(1, Ordering::SeqCst);
            until("both are ready", || ready.load(Ordering::SeqCst) == 2);
            sleeper.2(&mut c).and_then(|()| c.commit())
        });
        let mut c = client(w, 1, recorder.session());
        c.begin(last.0);
        last.1(&mut c).expect("nobody is in its way");
        ready.fetch_add(1, Ordering::SeqCst);
        until("the other sleeps", || w.e.asleep() > 0);
        c.p.panic_at.set(Some(PanicAt::WaitFor));
        faults::set(fault);
        let got = catch_unwind(AssertUnwindSafe(|| last.2(&mut c)));
        faults::set(None);
        c.abort();
        let went_on = waits.join().expect("a thread");
        // With the fault it may be the sleeper that finds the deadlock, if it looks before the
        // other has given up.
        assert!(went_on.is_ok() || fault.is_some(), "the other goes on: {went_on:?}");
        let set = w.index_ranges(0).expect("active ranges").current();
        assert!(
            (0..set.len()).all(|no| set.range(no).parts.load(Ordering::SeqCst) == 0 && set.range(no).lock.is_free())
        );
        assert!((0..w.e.slots.len() as u16).all(|slot| !w.e.is_pinned(slot)));
        got.map_err(|_| None)?.map_err(Some)
    })
}

fn scans_and(then: fn(&mut Client) -> Result<(), Error>) -> Steps {
    (Mood::Serializable, scan_part, then)
}

/// Cycles that lead through a scan: of a part of a range and a row, in either order of the
/// requests, and of two parts. A serializable writer that would have to wait for a part fails like
/// a reader of a phantom.
#[test]
fn cycles_of_parts_are_found() {
    let update = |c: &mut Client| c.update(WIDTH, false).map(|_| ());
    let insert = |c: &mut Client| c.insert(3).map(|_| ());
    for mood in [Mood::Serializable, Mood::ReadCommitted] {
        let writes: Steps = (mood, update, insert);
        let scans_and_updates = scans_and(update);
        assert_eq!(last_gets(writes, scans_and_updates, None), Err(Some(Error::Deadlock)));
        let got = last_gets(writes, scans_and_updates, Some(Fault::OverlooksCycles));
        assert!(is_overlooked(got), "the fault: {got:?}");
        let got = last_gets(scans_and_updates, writes, None);
        let phantom = matches!(got, Err(Some(Error::Abort { reason: AbortReason::UpgradeConflict, .. })));
        assert!(if mood == Mood::Serializable { phantom } else { got == Err(Some(Error::Deadlock)) }, "{got:?}");
        let got = last_gets(scans_and_updates, writes, Some(Fault::OverlooksCycles));
        assert!(is_overlooked(got), "the fault: {got:?}");
    }
    let got = last_gets(scans_and(insert), scans_and(|c| c.insert(5).map(|_| ())), None);
    assert!(matches!(got, Err(Some(Error::Abort { reason: AbortReason::UpgradeConflict, .. }))), "{got:?}");
}

/// Threads update rows until they have committed; in order no cycle comes up, else all of them end.
fn deadlocks_of(in_order: bool) -> u64 {
    let (w, recorder) = (&world(), Recorder::new());
    let found = AtomicU64::new(0);
    std::thread::scope(|s| {
        for slot in 0..4 {
            let (session, found) = (recorder.session(), &found);
            s.spawn(move || {
                let mut c = client(w, slot, session);
                let mut rng = Rng::new(slot as u64 + 1);
                c.p.yields.set(60);
                for _ in 0..300 {
                    let mut keys = [0, 2, 4, WIDTH, WIDTH + 2];
                    for i in (1..keys.len()).rev().filter(|_| !in_order) {
                        keys.swap(i, rng.below(i as u64 + 1) as usize);
                    }
                    loop {
                        c.begin(Mood::Serializable);
                        let done =
                            keys.iter().try_for_each(|&k| c.update(k, false).map(|_| ())).and_then(|_| c.commit());
                        let Err(e) = done else { break };
                        assert_eq!(e, Error::Deadlock, "only deadlocks make them fail");
                        found.fetch_add(1, Ordering::Relaxed);
                        c.abort();
                    }
                }
            });
        }
    });
    assert!(w.records(0).iter().all(|r| r.rec.lock.is_free()));
    found.into_inner()
}

/// Updates two rows, waits, says that it will commit, and does.
fn updates_slowly(w: &World, session: Session, rows: [i64; 2], committing: &AtomicBool) -> Result<(), Error> {
    let mut c = client(w, 0, session);
    c.begin(Mood::Serializable);
    for row in rows {
        c.update(row, false)?;
    }
    std::thread::sleep(Duration::from_millis(50));
    committing.store(true, Ordering::SeqCst);
    c.commit()
}

/// The loser of a deadlock waits before it tries again. It goes on when the winner has ended, not
/// before, and waits once.
#[test]
fn who_lost_a_deadlock_awaits_the_winner() {
    let (w, recorder, committing) = (&world(), Recorder::new(), &AtomicBool::new(false));
    std::thread::scope(|s| {
        let mut loser = client(w, 1, recorder.session());
        loser.begin(Mood::Serializable);
        loser.update(2, false).expect("nobody has it");
        let session = recorder.session();
        let winner = s.spawn(move || updates_slowly(w, session, [0, 2], committing));
        until("the winner sleeps", || w.e.asleep() > 0);
        assert_eq!(loser.update(0, false), Err(Error::Deadlock));
        loser.abort();
        loser.t.await_winner(&loser.p).expect("a wait without locks");
        assert!(committing.load(Ordering::SeqCst), "it did not wait");
        winner.join().expect("a thread").expect("the other gave way");
        // Nothing is lost, in whatever order they run.
        let mut other = client(w, 0, recorder.session());
        other.begin(Mood::Serializable);
        loser.p.panic_at.set(Some(PanicAt::WaitFor));
        loser.t.await_winner(&loser.p).expect("nothing to wait for");
        loser.p.panic_at.set(None);
        other.abort();
    });
}

/// A loser of a place in a queue waits for the queue's first, which waits for the lock's holder.
#[test]
fn who_lost_a_place_in_a_queue_awaits_its_first() {
    let (w, recorder, committing) = (&world(), Recorder::new(), &AtomicBool::new(false));
    std::thread::scope(|s| {
        let mut loser = client(w, 1, recorder.session());
        loser.begin(Mood::Serializable);
        loser.update(4, false).expect("nobody has it");
        let sessions = [recorder.session(), recorder.session()];
        let [holds, waits] = sessions;
        let holder = s.spawn(move || updates_slowly(w, holds, [0, 4], committing));
        until("the holder sleeps", || w.e.asleep() > 0);
        let first = s.spawn(move || {
            let mut first = client(w, 2, waits);
            first.begin(Mood::Serializable);
            first.update(0, false)?;
            first.commit()
        });
        until("the first sleeps", || w.e.asleep() > 1);
        assert_eq!(loser.update(0, false), Err(Error::Deadlock));
        loser.abort();
        loser.t.await_winner(&loser.p).expect("a wait without locks");
        assert!(committing.load(Ordering::SeqCst), "it did not wait");
        holder.join().expect("a thread").expect("the other gave way");
        first.join().expect("a thread").expect("the lock is free");
    });
}

/// A winner that gives up is through as well. A transaction that lost in a savepoint and commits
/// all the same waits for no other.
#[test]
fn nobody_awaits_a_winner_in_vain() {
    for commits in [false, true] {
        let (w, recorder) = (&world(), Recorder::new());
        let (gives_up, done) = (&AtomicBool::new(false), &AtomicBool::new(false));
        std::thread::scope(|s| {
            let mut loser = client(w, 1, recorder.session());
            loser.begin(Mood::Serializable);
            loser.update(2, false).expect("nobody has it");
            loser.savepoint();
            let session = recorder.session();
            let winner = s.spawn(move || {
                let mut winner = client(w, 0, session);
                winner.begin(Mood::Serializable);
                winner.update(0, false).and_then(|_| winner.update(2, false)).expect("the other gives way");
                std::thread::sleep(Duration::from_millis(20));
                until("the other is through", || !commits || done.load(Ordering::SeqCst));
                gives_up.store(true, Ordering::SeqCst);
                winner.abort();
            });
            until("the winner sleeps", || w.e.asleep() > 0);
            assert_eq!(loser.update(0, false), Err(Error::Deadlock));
            if commits {
                loser.end_savepoint(false);
                loser.commit().expect("what is left of it");
                loser.p.panic_at.set(Some(PanicAt::WaitFor));
            } else {
                loser.abort();
            }
            loser.t.await_winner(&loser.p).expect("a wait without locks");
            assert_eq!(gives_up.load(Ordering::SeqCst), !commits);
            done.store(true, Ordering::SeqCst);
            winner.join().expect("a thread");
        });
    }
}

#[test]
fn there_are_deadlocks_where_there_are_circles_and_nowhere_else() {
    assert_eq!(deadlocks_of(true), 0);
    assert!(deadlocks_of(false) > 0);
}

/// A scan to an end of the index locks its rows one by one, also in ranges that it has read whole:
/// an update of one, which it has waited for or seen, is no conflict; an insert is.
#[test]
fn rows_that_were_locked_in_whole_ranges_are_no_conflicts() {
    let (w, recorder) = (&world(), Recorder::new());
    let p = Jitter::new(w, w.slots, 1);
    w.activate(&p, w.slots, 0, &[3, 3 * WIDTH], 64).expect("room for ranges");
    let (mut reader, mut writer) = (client(w, 0, recorder.session()), client(w, 1, recorder.session()));
    reader.p.threads.freezes.set(false);
    let mut run = |write: &dyn Fn(&mut Client) -> bool| {
        reader.begin(Mood::Serializable);
        reader.statement();
        let at: Vec<_> = (0..PARTITIONS).map(|p| w.touch(p)).collect();
        let (lo, hi) = (Bound::Unbounded, Bound::Unbounded);
        let s = Scan { at: &at, lo, hi, open: OpenEnd::High, snapshot: None, looked: Looked::ALL };
        let id = reader.t.begin_scan(&reader.p, w.index_ranges(0).expect("active ranges"), &s).expect("nobody writes");
        writer.begin(Mood::Serializable);
        assert!(write(&mut writer));
        writer.commit().expect("nothing is locked");
        for (_, r) in w.scan(0, 5) {
            reader.look_scanned(r, false, id).expect("nobody has locked it");
        }
        reader.t.narrow_scan(&reader.p, id, None, Some(Bound::Included(&encode(0, 4))));
        let end = reader.commit();
        reader.abort();
        end
    };
    assert_eq!(run(&|c| c.update(0, false).expect("nobody has it")), Ok(()), "in the range that was read whole");
    assert_eq!(run(&|c| c.update(4, false).expect("nobody has it")), Ok(()), "in the last one");
    assert_eq!(run(&|c| c.delete(0, false, false).expect("nobody has it")), Ok(()));
    assert!(matches!(run(&|c| c.insert(1).expect("room")), Err(Error::Abort { .. })), "it was not there");
}
