//! `2pl`: locks of ranges that a scan gives up when it ends without having read them.

use crate::client::{Client, Mood::Serializable};
use crate::range_locks::until_asleep;
use crate::steps::*;
use crate::world::{Jitter, PanicAt, World};
use mixedcc_engine::checker::{Recorder, Session};
use mixedcc_engine::csn::State;
use mixedcc_engine::lock::{Holder, Mode};
use mixedcc_engine::platform::{WaitFor, EARLY};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::txn::{OpenEnd, ScanId};
use mixedcc_engine::{Error, Policy, Protocol};
use std::ops::Bound::{Excluded, Included};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);

fn early_world() -> World {
    world(Protocol::TwoPhase, Policy::Wait, &[10, 20, 30], 16)
}

/// A scan of the keys from 4 to 29, which locks the second and the third range.
fn begin(c: &mut Client) -> ScanId {
    begin_scan(c, 0, Included(4), Excluded(30), OpenEnd::High).expect("nobody writes")
}

/// It has read up to this key.
fn ends_at(c: &mut Client, id: ScanId, key: i64) {
    let hi = crate::spans::encode(0, key);
    c.t.narrow_scan(&c.p, id, None, Some(Included(&hi)));
}

/// What a session holds of the ranges.
fn held(w: &World, slot: u16) -> Vec<Option<Holder>> {
    let set = ranges(w, 0).current();
    (0..set.len()).map(|no| set.range(no).lock.held_by(slot)).collect()
}

/// Sleeps as PostgreSQL does: to the end of the transaction, or until somebody may have given up a
/// lock.
fn soundly(w: &World) -> Box<dyn Fn(WaitFor)> {
    let e = w.e;
    Box::new(move |who| {
        let start = Instant::now();
        let runs = || {
            e.slots[who.slot as usize].ident.load(Ordering::SeqCst) == who.ident
                && e.word(who.slot).state() != State::Idle
        };
        while who.tag == 0 && runs() && start.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(100));
    })
}

#[test]
fn who_waits_for_what_a_scan_turns_out_not_to_have_read_goes_on() {
    for cancelled in [false, true] {
        let (w, r, through) = (&early_world(), Recorder::new(), &AtomicBool::new(false));
        std::thread::scope(|s| {
            let (mut reader, other) = (session(w, &r, 0), r.session());
            reader.begin(Serializable);
            let id = begin(&mut reader);
            let waiting = s.spawn(move || {
                let mut writer = Client::new(w, 1, other, 77);
                *writer.p.sleeps.borrow_mut() = Some(soundly(w));
                writer.begin(Serializable);
                let done = writer.insert(15);
                through.store(true, Ordering::SeqCst);
                done?;
                writer.commit()
            });
            until_asleep(w, 1);
            std::thread::sleep(Duration::from_millis(20));
            assert!(!through.load(Ordering::SeqCst), "the scan may come there yet");
            if cancelled {
                reader.t.cancel_scan(&reader.p, id);
            } else {
                ends_at(&mut reader, id, 5);
            }
            let start = Instant::now();
            while !through.load(Ordering::SeqCst) && start.elapsed() < PATIENCE / 2 {
                std::thread::yield_now();
            }
            let went_on = through.load(Ordering::SeqCst);
            reader.commit().expect("what it has read is there");
            assert_eq!(waiting.join().expect("no panic"), Ok(()));
            assert!(went_on, "cancelled: {cancelled}");
        });
        let set = ranges(w, 0).current();
        assert!((0..set.len()).all(|no| set.range(no).lock.is_free()));
    }
}

/// A client whose platform finds no deadlocks.
fn client(w: &World, slot: u16, s: Session) -> Client<'_> {
    let mut c = Client::new(w, slot, s, 77);
    c.p = Jitter::of(w.e, Arc::default(), slot, 11);
    c
}

/// A scan under way has what it has locked, and a cycle through that is found at once. What it has
/// given up is in no cycle, though its waiter has not woken up yet.
#[test]
fn cycles_through_scans_under_way_are_found_and_no_others() {
    for given_up in [false, true] {
        let (w, r, wakes) = (&early_world(), Recorder::new(), Arc::new(AtomicBool::new(false)));
        std::thread::scope(|s| {
            let mut reader = client(w, 0, r.session());
            reader.begin(Serializable);
            let id = begin(&mut reader);
            let (other, until) = (r.session(), wakes.clone());
            let writes = s.spawn(move || {
                let mut writer = client(w, 1, other);
                *writer.p.sleeps.borrow_mut() = Some(Box::new(move |_| {
                    while !until.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                }));
                writer.begin(Serializable);
                writer.update(0, false).and_then(|_| writer.insert(15))?;
                writer.commit()
            });
            until_asleep(w, 1);
            if given_up {
                ends_at(&mut reader, id, 5);
            }
            reader.p.panic_at.set(Some(PanicAt::WaitFor));
            let got = catch_unwind(AssertUnwindSafe(|| reader.update(0, false)));
            match given_up {
                true => assert!(got.is_err(), "it does not sleep: {got:?}"),
                false => assert_eq!(got.expect("it sleeps"), Err(Error::Deadlock)),
            }
            reader.abort();
            wakes.store(true, Ordering::SeqCst);
            assert_eq!(writes.join().expect("no panic"), Ok(()));
        });
    }
}

#[test]
fn what_a_scan_has_read_is_locked_to_the_end_and_the_rest_is_free() {
    let (w, r) = (early_world(), Recorder::new());
    let mut c = session(&w, &r, 0);
    c.begin(Serializable);
    let id = begin(&mut c);
    let early = |h: &Option<Holder>| h.is_some_and(|h| h.mode == Mode::Share && h.tag & EARLY != 0);
    let to_the_end = |h: &Option<Holder>| h.is_some_and(|h| h.mode == Mode::Share && h.tag == 0);
    assert_eq!(held(&w, 0).iter().map(early).collect::<Vec<_>>(), [false, true, true, false]);
    ends_at(&mut c, id, 15);
    assert_eq!(held(&w, 0).iter().map(to_the_end).collect::<Vec<_>>(), [false, true, false, false]);
    assert!(held(&w, 0)[2].is_none());
    c.commit().expect("nobody wrote");
    // Of two that overlap, the scan that ends first leaves the common locks to the other.
    for second_reads in [false, true] {
        c.begin(Serializable);
        let (one, two) = (begin(&mut c), begin(&mut c));
        ends_at(&mut c, one, 5);
        assert!(early(&held(&w, 0)[1]) && early(&held(&w, 0)[2]));
        ends_at(&mut c, two, if second_reads { 25 } else { 5 });
        let left = held(&w, 0);
        assert!(left[1..3].iter().all(|h| to_the_end(h) == second_reads && h.is_some() == second_reads), "{left:?}");
        c.commit().expect("nobody wrote");
    }
    // What was locked for writing too stays, whatever was read.
    c.begin(Serializable);
    let id = begin(&mut c);
    assert_eq!(c.insert(15), Ok(true));
    ends_at(&mut c, id, 5);
    assert_eq!(held(&w, 0)[1].map(|h| (h.mode, h.tag)), Some((Mode::Update, 0)));
    c.abort();
    assert!(held(&w, 0).iter().all(Option::is_none));
}

#[test]
fn scans_of_undone_savepoints_keep_their_locks_to_the_end() {
    let (w, r) = (early_world(), Recorder::new());
    let mut c = session(&w, &r, 0);
    for kept in [false, true] {
        c.begin(Serializable);
        c.savepoint();
        c.savepoint();
        let id = begin(&mut c);
        c.end_savepoint(kept);
        let tags: Vec<_> = held(&w, 0)[1..3].iter().map(|h| h.expect("locked").tag & EARLY != 0).collect();
        assert_eq!(tags, [kept; 2]);
        c.end_savepoint(false);
        let tags: Vec<_> = held(&w, 0)[1..3].iter().map(|h| h.expect("locked").tag).collect();
        assert_eq!(tags, [0; 2], "kept: {kept}");
        // An older cursor may go on with it, and end: the waiter sleeps to our end by now, so
        // nothing is given up.
        ends_at(&mut c, id, 15);
        assert_eq!(held(&w, 0)[2].map(|h| h.tag), Some(0));
        c.commit().expect("nobody wrote");
    }
}

#[test]
fn a_range_is_given_up_only_with_the_tag_that_it_has() {
    let (w, r) = (early_world(), Recorder::new());
    let mut c = session(&w, &r, 0);
    let tag = |no: usize| held(&w, 0)[no].map(|h| h.tag);
    c.begin(Serializable);
    let first = begin(&mut c);
    let third = begin_scan(&mut c, 0, Included(4), Excluded(20), OpenEnd::High).expect("nobody writes");
    let (had, second) = (tag(2), begin(&mut c));
    assert_eq!(tag(2), had, "who came first has locked it");
    ends_at(&mut c, first, 15);
    let now = tag(2).expect("the second scan reads there");
    assert!(now != 0 && Some(now) != had);
    // Waiters sleep for the third scan's tag.
    ends_at(&mut c, second, 15);
    assert_eq!(tag(2), Some(now));
    ends_at(&mut c, third, 15);
    assert_eq!(tag(2), Some(0));
    c.commit().expect("nobody wrote");
}

#[test]
fn many_scans_at_a_time_keep_what_they_lock() {
    let (w, r) = (early_world(), Recorder::new());
    let mut c = session(&w, &r, 0);
    c.begin(Serializable);
    // Each covers the second range.
    let all: Vec<_> =
        (0..8).map(|_| begin_scan(&mut c, 0, Included(4), Excluded(20), OpenEnd::High).expect("alone")).collect();
    let last = begin(&mut c);
    assert_eq!(held(&w, 0)[2].map(|h| h.tag), Some(0), "eight tags are enough");
    ends_at(&mut c, last, 15);
    assert!(held(&w, 0)[2].is_some());
    all.into_iter().for_each(|id| ends_at(&mut c, id, 19));
    c.commit().expect("nobody wrote");
}
