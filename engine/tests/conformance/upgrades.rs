//! The loser of an upgrade of a read lock that tries again does not overtake the winner
//! (INV-LOSER).

use crate::client::{Client, Mood};
use crate::spans::{borrowed, encode};
use crate::world::{Jitter, Row, World, PARTITIONS, WIDTH};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::platform::StopEvent;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::range::Looked;
use mixedcc_engine::txn::{How, OpenEnd, Scan};
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use std::ops::Bound::{self, Excluded, Included, Unbounded};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

fn world() -> World {
    let w = World::new(&[ProtocolSet::of(Protocol::TwoPhase)], Policy::Wait, 4);
    let p = Jitter::new(&w, w.slots, 1);
    for i in [0, 1] {
        w.activate(&p, w.slots, i, &[3 * WIDTH], 64).expect("room for ranges");
    }
    w
}

/// A scan through index 0, of rows of the first three partitions.
fn scan(c: &mut Client, lo: Bound<i64>, hi: Bound<i64>) -> Result<(), Error> {
    c.statement();
    let at: Vec<_> = (0..PARTITIONS).map(|p| c.w.touch(p)).collect();
    let (low, high) = (lo.map(|k| encode(0, k)), hi.map(|k| encode(0, k)));
    let s = Scan {
        at: &at,
        lo: borrowed(&low),
        hi: borrowed(&high),
        open: OpenEnd::No,
        snapshot: None,
        looked: Looked::ALL,
    };
    let id = c.t.begin_scan(&c.p, c.w.index_ranges(0).expect("active ranges"), &s)?;
    for (key, r) in c.w.scan(0, 3 * WIDTH - 1) {
        if std::ops::RangeBounds::contains(&(lo, hi), &key) {
            c.look_scanned(r, false, id)?;
        }
    }
    Ok(())
}

/// Takes a read lock: of record 0, or of the range that it is in.
fn read(c: &mut Client, ranges: bool) -> Result<(), Error> {
    if ranges {
        scan(c, Unbounded, Excluded(3 * WIDTH))
    } else {
        c.get(0).map(|_| ())
    }
}

fn failed_with(r: Result<(), Error>, reason: AbortReason) {
    assert!(matches!(r, Err(Error::Abort { reason: why, .. }) if why == reason), "{r:?}, not {reason:?}");
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::yield_now();
    }
}

/// What the loser of an upgrade gets when it reads again while the winner waits for a third reader.
fn read_again(ranges: bool, fault: Option<Fault>) -> Result<(), Error> {
    let w = &world();
    let recorder = Recorder::new();
    std::thread::scope(|s| {
        // Here, so that they end before the winner is waited for, should the test fail.
        let client = |slot| Client::new(w, slot, recorder.session(), 7);
        let (mut third, mut loser) = (client(1), client(2));
        for c in [&mut third, &mut loser] {
            c.begin(Mood::Serializable);
            read(c, ranges).expect("nobody writes");
        }
        let session = recorder.session();
        let winner = s.spawn(move || {
            let mut winner = Client::new(w, 0, session, 7);
            winner.begin(Mood::Serializable);
            read(&mut winner, ranges).expect("nobody writes");
            winner.update(0, false)?;
            winner.commit()
        });
        until("the winner sleeps", || w.e.asleep() > 0);
        // Of the range, another row: the winner has its own locked.
        let key = if ranges { 2 } else { 0 };
        failed_with(loser.update(key, false).map(|_| ()), AbortReason::UpgradeConflict);
        loser.abort();
        faults::set(fault);
        loser.begin(Mood::Serializable);
        loser.p.threads.fail_at.set(Some(StopEvent::LockWait));
        let again = read(&mut loser, ranges);
        loser.p.threads.fail_at.set(None);
        loser.abort();
        faults::set(None);
        third.commit().expect("it has only read");
        winner.join().expect("the winner's thread").expect("the winner is not disturbed");
        forgets(&mut loser, &mut third, ranges);
        again
    })
}

/// The loser commits in the end, and has forgotten the loss then: others may read beside it.
fn forgets<'w>(loser: &mut Client<'w>, third: &mut Client<'w>, ranges: bool) {
    loser.begin(Mood::Serializable);
    read(loser, ranges).expect("nobody is in the way");
    loser.update(0, false).expect("nobody is in the way");
    loser.commit().expect("nobody is in the way");
    faults::set(Some(Fault::IntentForgotten)); // what all have learned of the row is another matter
    for c in [&mut *loser, &mut *third] {
        c.begin(Mood::Serializable);
        c.p.threads.fail_at.set(Some(StopEvent::LockWait));
        read(c, ranges).expect("read locks do not exclude each other");
    }
    loser.commit().expect("it has only read");
    third.commit().expect("it has only read");
    faults::set(None);
    assert!(loser.w.records(0).iter().all(|r| r.rec.lock.is_free()));
}

#[test]
fn who_lost_an_upgrade_waits_for_the_winner() {
    for ranges in [false, true] {
        assert_eq!(read_again(ranges, None), Err(Error::Injected), "ranges {ranges}: it did not wait");
        assert_eq!(read_again(ranges, Some(Fault::ForgetsLosses)), Ok(()), "ranges {ranges}: the fault");
    }
}

/// Threads read two records and then write them; the most upgrades that one transaction lost until
/// it committed.
fn losses_of_one(fault: Option<Fault>, transactions: u64) -> u64 {
    let w = world();
    let recorder = Recorder::new();
    let most = AtomicU64::new(0);
    std::thread::scope(|s| {
        for slot in 0..4 {
            let (w, most, session) = (&w, &most, recorder.session());
            s.spawn(move || {
                let mut c = Client::new(w, slot, session, 90 + slot as u64);
                faults::set(fault);
                c.p.yields.set(60);
                for _ in 0..transactions {
                    let mut lost = 0;
                    while let Err(e) = read_and_write(&mut c) {
                        c.abort();
                        let upgrade = matches!(e, Error::Abort { reason: AbortReason::UpgradeConflict, .. });
                        assert!(upgrade || matches!(e, Error::Abort { .. } | Error::Deadlock), "{e:?}");
                        lost += u64::from(upgrade);
                        most.fetch_max(lost, Ordering::Relaxed);
                    }
                }
                faults::set(None);
            });
        }
    });
    most.into_inner()
}

fn read_and_write(c: &mut Client) -> Result<(), Error> {
    c.begin(Mood::Serializable);
    for key in [0, 2] {
        c.get(key)?;
    }
    for key in [0, 2] {
        c.update(key, false)?;
    }
    c.commit()
}

#[test]
fn a_transaction_loses_once_for_a_lock() {
    let most = losses_of_one(None, 300);
    assert!(most <= 2, "two records, and {most} upgrades lost by one transaction");
    assert!((0..50).any(|_| losses_of_one(Some(Fault::ForgetsLosses), 100) > 2), "the fault was not found");
}

/// A scan that would rather have locked its ranges does not wait for them: it is in no
/// transaction's way.
#[test]
fn a_scan_that_gives_up_its_upgrade_makes_nobody_fail() {
    let w = world();
    let recorder = Recorder::new();
    let (mut a, mut b) = (Client::new(&w, 0, recorder.session(), 1), Client::new(&w, 1, recorder.session(), 2));
    a.begin(Mood::Serializable);
    b.begin(Mood::Serializable);
    assert_eq!((a.insert(1), b.insert(WIDTH + 1)), (Ok(true), Ok(true)));
    let range = w.index_ranges(0).expect("active ranges").current().range(0);
    assert_eq!(range.lock.held_by(1).map(|h| h.mode), Some(Mode::Intent));
    scan(&mut a, Included(0), Included(5)).expect("rows that nobody writes");
    assert_eq!(range.lock.held_by(0).map(|h| h.mode), Some(Mode::Intent), "the range was not to be had");
    b.p.threads.fail_at.set(Some(StopEvent::LockWait));
    assert_eq!(scan(&mut b, Unbounded, Excluded(3 * WIDTH)), Err(Error::Injected), "it waits");
    b.abort();
    a.commit().expect("nobody is in the way");
    assert!(range.lock.is_free());
}

/// NOWAIT and SKIP LOCKED: a transaction that does not wait is in no cycle, whichever other one
/// waits for a stronger mode.
#[test]
fn who_does_not_wait_loses_no_upgrade() {
    for mood in [Mood::ReadCommitted, Mood::Serializable] {
        let w = &world();
        let recorder = Recorder::new();
        let r = w.records(0)[0];
        std::thread::scope(|s| {
            let mut hasty = Client::new(w, 1, recorder.session(), 7);
            hasty.begin(mood);
            hasty.t.lock_row(&hasty.p, r, Mode::Share, How::Wait).expect("nobody writes");
            let session = recorder.session();
            let patient = s.spawn(move || {
                let mut c = Client::new(w, 0, session, 7);
                c.begin(mood);
                c.t.lock_row(&c.p, r, Mode::Share, How::Wait)?;
                c.t.lock_row(&c.p, r, Mode::Update, How::Wait)?;
                c.commit()
            });
            until("the other one sleeps", || w.e.asleep() > 0);
            let got = hasty.t.lock_row(&hasty.p, r, Mode::Update, How::Try);
            assert_eq!(got, Err(Error::WouldBlock), "{mood:?}");
            hasty.commit().expect("it has locked a row");
            patient.join().expect("its thread").expect("it was not disturbed");
        });
        assert!(r.rec.lock.is_free());
    }
}

/// A record may be another row's by the time it is locked as strongly as it was lost: its pending
/// insert keeps the id by which unique checks wait for it (INV-WRITER).
#[test]
fn a_lock_that_is_stronger_than_needed_leaves_an_insert_its_id() {
    let w = &world();
    let recorder = Recorder::new();
    let r = w.records(0)[0];
    let mut loser = Client::new(w, 2, recorder.session(), 7);
    std::thread::scope(|s| {
        loser.begin(Mood::Serializable);
        loser.get(0).expect("nobody writes");
        let session = recorder.session();
        let winner = s.spawn(move || {
            let mut c = Client::new(w, 0, session, 7);
            c.begin(Mood::Serializable);
            c.get(0)?;
            c.delete(0, true, false)?;
            c.commit()
        });
        until("the winner sleeps", || w.e.asleep() > 0);
        let lost = loser.t.lock_row(&loser.p, r, Mode::Update, How::Wait);
        loser.abort();
        failed_with(lost, AbortReason::UpgradeConflict);
        winner.join().expect("its thread").expect("it was not disturbed");
    });
    let p = Jitter::new(w, w.slots, 1);
    w.e.tick(); // pins from now on are larger than the delete
    assert_eq!(w.vacuum(&p, w.slots), 1);
    w.e.tick();
    w.e.refresh_min_pin(&p);
    const ID: u32 = 4711;
    let mut inserter = Client::new(w, 1, recorder.session(), 7);
    inserter.begin(Mood::ReadCommitted);
    let v = w.version(&mut inserter.t, Row { key: 0, txn: 0, nth: 0, value: 1 }).expect("room");
    let new = inserter.t.insert(&inserter.p, w.table, [0, 0], v, 1, ID).expect("room");
    assert_eq!(new.no, r.no, "the record is used again");
    for commits in [true, false] {
        loser.begin(Mood::Serializable);
        assert_eq!(loser.t.read(&loser.p, r, false), Ok(None), "not committed yet");
        let held = r.rec.lock.held_by(2).map(|h| h.mode);
        if commits {
            loser.abort(); // nothing is forgotten
        } else {
            loser.commit().expect("it has only read");
        }
        assert_eq!(held, Some(Mode::Update), "as it was lost");
        assert_eq!(inserter.t.writer(r), ID, "the insert is pending still");
    }
    inserter.t.prepare(&inserter.p, &|_, _| {}).expect("nobody is in the way");
    inserter.t.publish(&inserter.p);
    assert_eq!(inserter.t.writer(r), 0);
}

/// A delete's id is there until its outcome is.
#[test]
fn a_delete_has_its_id_until_it_is_over() {
    let w = world();
    let recorder = Recorder::new();
    let r = w.records(2)[0];
    let mut c = Client::new(&w, 1, recorder.session(), 7);
    for end in 0..3 {
        c.begin(Mood::Serializable);
        c.savepoint();
        assert_eq!(c.delete(2, true, false), Ok(true));
        assert_ne!(c.t.writer(r), 0);
        match end {
            0 => c.end_savepoint(false),
            1 => c.abort(),
            _ => {
                c.end_savepoint(true);
                assert_ne!(c.t.writer(r), 0);
                c.commit().expect("nobody is in the way");
            }
        }
        assert_eq!(c.t.writer(r), 0, "{end}");
        c.abort();
    }
}
