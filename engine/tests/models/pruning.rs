//! Pruning between snapshots, as `docs/design/pruning.md` has it. That is not built: the chain and
//! the pruner are this file's own. Pins, floors, snapshots and the look at them are the engine's.

use crate::{fails, model};
use loom::sync::atomic::{fence, AtomicU64, Ordering::SeqCst};
use loom::sync::Arc;
use loom::thread;
use mixedcc_engine::csn::Csn;
use mixedcc_engine::open::{Opens, Seen, Words};
use mixedcc_engine::shared::{take_pin, Oldest, UNPINNED};

/// The step that is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Breaks {
    Nothing,
    /// The walk begins after the newest version is loaded.
    WalksLate,
    /// The pruner has looked at the walks before it unlinks.
    FreesByThePast,
    /// A pruner takes no latch.
    Unlatched,
    /// A pruner keeps what it looks at, and does not make others look anew.
    NotAdopted,
    /// A point is compared by its clock, and not by its floor.
    ByClock,
    /// A reader has a point before it has read the clock.
    PointFirst,
}
use Breaks::*;

const LAST: usize = 5;
/// Neither a pin at 0 nor none: the tag is 1.
const TAKEN: u64 = 1;

/// Sequentially consistent accesses, for which the model checker needs fences.
trait Word {
    fn read(&self) -> u64;
    fn put(&self, x: u64);
    fn add(&self) -> u64;
}

impl Word for AtomicU64 {
    fn read(&self) -> u64 {
        fence(SeqCst);
        self.load(SeqCst)
    }
    fn put(&self, x: u64) {
        self.store(x, SeqCst);
        fence(SeqCst);
    }
    fn add(&self) -> u64 {
        fence(SeqCst);
        let old = self.fetch_add(1, SeqCst);
        fence(SeqCst);
        old
    }
}

/// A row, whose versions are numbers. 0: none.
struct World {
    breaks: Breaks,
    all: Opens,
    open: [AtomicU64; 1],
    clock: AtomicU64,
    adoptions: AtomicU64,
    latch: AtomicU64,
    head: AtomicU64,
    older: [AtomicU64; LAST],
    /// 0: pending.
    stamps: [AtomicU64; LAST],
    freed: [AtomicU64; LAST],
    /// Of the pruner's slot and of the reader's.
    pins: [AtomicU64; 2],
    floors: [AtomicU64; 2],
    /// Of the reader: the clock of its point (0: its pin is full), and its walk.
    upto: AtomicU64,
    walk: AtomicU64,
}

impl World {
    /// Version *n* is committed at 10 *n*, up to `newest`, and no one has a pin.
    fn new(newest: u64, breaks: Breaks) -> Arc<World> {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        let w = World {
            breaks,
            all: Opens::default(),
            open: [AtomicU64::new(0)],
            clock: AtomicU64::new(10 * newest),
            adoptions: AtomicU64::new(0),
            latch: AtomicU64::new(0),
            head: AtomicU64::new(newest),
            older: zeros(),
            stamps: zeros(),
            freed: zeros(),
            pins: std::array::from_fn(|_| AtomicU64::new(UNPINNED)),
            floors: std::array::from_fn(|_| AtomicU64::new(0)),
            upto: AtomicU64::new(0),
            walk: AtomicU64::new(UNPINNED),
        };
        for n in 1..=newest {
            w.older[n as usize].put(n - 1);
            w.stamps[n as usize].put(10 * n);
        }
        Arc::new(w)
    }
    /// The reader has a point at the present clock, which moves on by `ticks` versions.
    fn with_point(at: u64, newest: u64, breaks: Breaks) -> Arc<World> {
        let w = World::new(at, breaks);
        take_pin(&w.pins[1], &w.floors[1], w.words(), TAKEN);
        w.upto.put(w.clock.read());
        for n in at + 1..=newest {
            w.older[n as usize].put(n - 1);
            w.stamps[n as usize].put(10 * n);
        }
        w.clock.put(10 * newest);
        w.head.put(newest);
        w
    }
    fn words(&self) -> Words<'_> {
        Words { all: &self.all, slots: &self.open, clock: &self.clock }
    }
    /// A commit links its version, which is pending.
    fn link(&self, v: u64) {
        self.older[v as usize].put(v - 1);
        self.head.put(v);
    }
    /// A version is used.
    fn touch(&self, v: u64) -> Csn {
        assert_eq!(self.freed[v as usize].read(), 0, "a freed version is used");
        self.stamps[v as usize].read()
    }
    fn below(&self, v: u64) -> u64 {
        self.touch(v);
        self.older[v as usize].read()
    }
    /// The version that a snapshot sees, by a walk.
    fn reads(&self, seen: Seen<'_>) -> u64 {
        let early = (self.breaks == WalksLate).then(|| self.head.read());
        self.walk.put(self.clock.read());
        let mut v = early.unwrap_or_else(|| self.head.read());
        while v != 0 {
            let csn = self.touch(v);
            if csn != 0 && seen.sees(csn) {
                break;
            }
            v = self.below(v);
        }
        self.walk.put(UNPINNED);
        v
    }
    /// The oldest pin of all.
    fn look(&self) -> Oldest {
        loop {
            let adoptions = self.adoptions.read();
            let oldest = Oldest::look(self.words(), self.pins.iter().zip(&self.floors), |_, _| false);
            if self.adoptions.read() == adoptions {
                return oldest;
            }
        }
    }
    /// May this version be unlinked, whose successor was committed at `d`? Asked by a pruner that
    /// keeps everything.
    fn is_prunable(&self, v: u64, d: Csn) -> bool {
        let done = self.words().done_upto().1;
        let pin = self.pins[1].read();
        let (upto, floor) = (self.upto.read(), self.floors[1].read());
        let unneeded = match pin {
            UNPINNED => true,
            _ if upto == 0 => pin > TAKEN && d <= floor,
            _ => self.touch(v) > upto || d <= if self.breaks == ByClock { upto } else { floor },
        };
        d <= done && unneeded
    }
    /// The successor of `v` in the chain.
    fn above(&self, v: u64) -> Option<u64> {
        let mut w = self.head.read();
        while w != 0 && self.below(w) != v {
            w = self.below(w);
        }
        (w != 0).then_some(w)
    }
    /// Unlinks a version that was retired after the reader had pinned, and frees it, if it may.
    fn prune(&self, v: u64) {
        self.pins[0].put(TAKEN); // keeps everything
        if self.breaks != NotAdopted {
            self.adoptions.add();
        }
        let held = self.breaks != Unlatched;
        if self.pins[1].read() == UNPINNED || held && self.latch.swap(1, SeqCst) == 1 {
            return self.pins[0].put(UNPINNED);
        }
        let past = self.walk.read();
        let above = self.above(v).filter(|w| self.touch(*w) != 0 && self.is_prunable(v, self.touch(*w)));
        if let Some(w) = above {
            self.older[w as usize].put(self.below(v));
        }
        if held {
            self.latch.put(0);
        }
        self.pins[0].put(UNPINNED);
        let Some(_) = above else { return };
        let at = self.clock.add();
        let walk = if self.breaks == FreesByThePast { past } else { self.walk.read() };
        if walk > at {
            self.freed[v as usize].put(1);
        }
    }
}

/// A reader with a point, beside a commit and the pruning of what that has replaced.
fn walk_beside_a_pruner(breaks: Breaks) {
    let w = World::with_point(1, 2, breaks);
    let others = thread::spawn({
        let w = w.clone();
        move || {
            w.link(3);
            w.stamps[3].put(w.clock.add() + 1);
            w.prune(2);
        }
    });
    assert_eq!(w.reads(Seen::prefix(10)), 1);
    others.join().unwrap();
    assert_eq!((w.reads(Seen::prefix(10)), w.older[3].read()), (1, 1));
}

#[test]
fn a_walk_keeps_what_is_pruned() {
    model(|| walk_beside_a_pruner(Nothing));
}
#[test]
fn it_does_not_if_it_begins_after_the_newest_version_is_loaded() {
    assert!(fails(|| walk_beside_a_pruner(WalksLate)));
}
#[test]
fn it_does_not_if_the_pruner_looks_at_walks_before_it_unlinks() {
    assert!(fails(|| walk_beside_a_pruner(FreesByThePast)));
}

/// Two pruners of neighbours. The reader comes afterwards.
fn two_pruners(breaks: Breaks) {
    let w = World::with_point(1, 4, breaks);
    let other = thread::spawn({
        let w = w.clone();
        move || w.prune(3)
    });
    w.prune(2);
    other.join().unwrap();
    assert_eq!(w.reads(Seen::prefix(10)), 1);
}

#[test]
fn pruners_of_one_row_exclude_each_other() {
    model(|| two_pruners(Nothing));
}
#[test]
fn without_a_latch_one_brings_back_what_the_other_has_freed() {
    assert!(fails(|| two_pruners(Unlatched)));
}

/// The point ends, and what it has kept is freed, while a pruner looks at it.
fn a_point_that_ends(breaks: Breaks) {
    let w = World::with_point(1, 3, breaks);
    w.clock.add(); // It was at 30 when version 2 was retired.
    let reader = thread::spawn({
        let w = w.clone();
        move || w.pins[1].put(UNPINNED)
    });
    let pruner = thread::spawn({
        let w = w.clone();
        move || w.prune(2)
    });
    if w.look().pin > 30 {
        w.freed[2].put(1);
    }
    reader.join().unwrap();
    pruner.join().unwrap();
}

#[test]
fn a_pruner_keeps_what_the_point_kept() {
    model(|| a_point_that_ends(Nothing));
}
#[test]
fn it_does_not_if_others_need_not_look_anew() {
    assert!(fails(|| a_point_that_ends(NotAdopted)));
}

/// A snapshot is taken beside a commit that is held, and a pruner.
fn a_snapshot_beside_a_commit(breaks: Breaks) {
    let w = World::new(2, breaks);
    let others = thread::spawn({
        let w = w.clone();
        move || {
            w.link(3);
            w.words().begin(0);
            let csn = w.clock.add() + 1;
            w.words().took(0, csn);
            w.stamps[3].put(csn);
            w.words().end(0, false);
            w.prune(2);
        }
    });
    let mut list = Vec::new();
    let take = || take_pin(&w.pins[1], &w.floors[1], w.words(), TAKEN);
    if breaks == PointFirst {
        w.floors[1].put(w.clock.read());
        w.upto.put(w.clock.read());
        w.pins[1].put(w.clock.read() << 16 | TAKEN);
    } else {
        take();
    }
    let (upto, floor) = w.words().look(&mut list);
    w.upto.put(upto);
    let excluded: Vec<Csn> = list.into_iter().map(|(csn, _)| csn).collect();
    let found = w.reads(Seen { upto, floor, excluded: &excluded });
    assert_eq!(found, if upto >= 21 && excluded.is_empty() { 3 } else { 2 });
    others.join().unwrap();
}

#[test]
fn a_new_snapshot_finds_its_version() {
    model(|| a_snapshot_beside_a_commit(Nothing));
}
#[test]
fn it_does_not_if_its_point_is_compared_by_the_clock() {
    assert!(fails(|| a_snapshot_beside_a_commit(ByClock)));
}
#[test]
fn it_does_not_if_it_has_a_point_before_it_has_read_the_clock() {
    assert!(fails(|| a_snapshot_beside_a_commit(PointFirst)));
}
