//! Commits that are not done, and snapshots (INV-UNDONE, INV-FOLLOWERS, INV-FLOOR): the code is the
//! engine's. A commit is done at one store, and a row is dead at one.

use crate::{fails_with, model};
use loom::sync::atomic::{AtomicU64, Ordering::SeqCst};
use loom::sync::Arc;
use loom::thread;
use mixedcc_engine::csn::Csn;
use mixedcc_engine::faults::Fault;
use mixedcc_engine::open::{Opens, Seen, Words};
use mixedcc_engine::shared::{take_pin, Oldest, UNPINNED};

struct World {
    all: Opens,
    slots: [AtomicU64; 2],
    clock: AtomicU64,
    done: AtomicU64,
    dead: AtomicU64,
    pin: AtomicU64,
    floor: AtomicU64,
}

impl World {
    fn new(clock: Csn) -> Arc<World> {
        let zero = || AtomicU64::new(0);
        Arc::new(World {
            all: Opens::default(),
            slots: [zero(), zero()],
            clock: AtomicU64::new(clock),
            done: zero(),
            dead: zero(),
            pin: AtomicU64::new(UNPINNED),
            floor: zero(),
        })
    }
    fn words(&self) -> Words<'_> {
        Words { all: &self.all, slots: &self.slots, clock: &self.clock }
    }
    fn take_csn(&self, slot: u16) -> Csn {
        self.words().begin(slot);
        let csn = self.clock.fetch_add(1, SeqCst) + 1;
        self.words().took(slot, csn);
        csn
    }
    /// Does a snapshot that is taken now see these commits?
    fn sees<const N: usize>(&self, commits: [Csn; N]) -> [bool; N] {
        let mut list = Vec::new();
        let (upto, floor) = self.words().look(&mut list);
        let excluded: Vec<Csn> = list.into_iter().map(|(csn, _)| csn).collect();
        commits.map(|csn| Seen { upto, floor, excluded: &excluded }.sees(csn))
    }
}

/// A commit, and a snapshot.
fn done_before_it_is_seen() {
    let w = World::new(1);
    let committer = thread::spawn({
        let w = w.clone();
        move || {
            assert_eq!(w.take_csn(0), 2);
            w.done.store(1, SeqCst);
            w.words().end(0, false);
        }
    });
    let [sees] = w.sees([2]);
    assert!(!sees || w.done.load(SeqCst) == 1, "a snapshot shows what is not done");
    committer.join().unwrap();
    assert_eq!(w.sees([2]), [true]);
    assert!(w.words().is_quiet());
}

#[test]
fn a_snapshot_shows_only_what_is_done() {
    model(done_before_it_is_seen);
}
#[test]
fn it_shows_more_if_it_looks_at_slots_before_the_clock() {
    assert!(fails_with(Fault::LooksAtSlotsFirst, done_before_it_is_seen));
}

/// Two commits of a slot, and a snapshot that is taken if no commit is held.
fn done_when_it_is_quiet() {
    let w = World::new(1);
    let committer = thread::spawn({
        let w = w.clone();
        move || {
            for n in 1..=2 {
                assert_eq!(w.take_csn(0), n + 1);
                w.done.store(n, SeqCst);
                w.words().end(0, false);
            }
        }
    });
    if let Some(upto) = w.words().quiet_at() {
        assert!(upto <= w.done.load(SeqCst) + 1, "a snapshot shows what is not done");
    }
    committer.join().unwrap();
    assert_eq!(w.words().quiet_at(), Some(3));
}

#[test]
fn a_snapshot_that_finds_no_commit_held_shows_only_what_is_done() {
    model(done_when_it_is_quiet);
}
#[test]
fn it_shows_more_if_it_looks_whether_one_is_held_before_the_clock() {
    assert!(fails_with(Fault::LooksAtSlotsFirst, done_when_it_is_quiet));
}

/// *B* depends on *A*, which has its CSN.
fn closed() {
    let w = World::new(1);
    assert_eq!(w.take_csn(0), 2);
    let a = thread::spawn({
        let w = w.clone();
        move || w.words().end(0, false)
    });
    let b = thread::spawn({
        let w = w.clone();
        move || {
            assert_eq!(w.take_csn(1), 3);
            while w.words().is_open(2) {
                thread::yield_now();
            }
            w.words().end(1, true);
        }
    });
    let [sees_a, sees_b] = w.sees([2, 3]);
    assert!(sees_a || !sees_b, "a snapshot shows a commit without what it has read");
    a.join().unwrap();
    b.join().unwrap();
}

#[test]
fn a_snapshot_is_closed() {
    model(closed);
}
#[test]
fn it_is_not_without_the_count_of_followers() {
    assert!(fails_with(Fault::FollowersForgotten, closed));
}

/// The commit 2 has deleted a row. It is done; a reader takes its pin and its snapshot; a reclaimer
/// looks whether the row is dead.
fn pin_and_floor() {
    let w = World::new(1);
    assert_eq!(w.take_csn(0), 2);
    w.clock.store(3, SeqCst);
    let committer = thread::spawn({
        let w = w.clone();
        move || w.words().end(0, false)
    });
    let reclaimer = thread::spawn({
        let w = w.clone();
        move || {
            let oldest = Oldest::look(w.words(), [(&w.pin, &w.floor)].into_iter(), |_, _| false);
            assert!(oldest.floor <= oldest.pin);
            if 2 < oldest.floor {
                w.dead.store(1, SeqCst);
            }
        }
    });
    take_pin(&w.pin, &w.floor, w.words(), 1);
    let [sees] = w.sees([2]);
    assert!(sees || w.dead.load(SeqCst) == 0, "a row is dead that a snapshot shows");
    committer.join().unwrap();
    reclaimer.join().unwrap();
    assert!(sees || w.dead.load(SeqCst) == 0, "a row is dead that a snapshot shows");
}

#[test]
fn what_a_snapshot_shows_is_not_dead() {
    model(pin_and_floor);
}
#[test]
fn it_may_be_if_a_reclaimer_looks_at_floors_first() {
    assert!(fails_with(Fault::LooksAtDoneLast, pin_and_floor));
}
