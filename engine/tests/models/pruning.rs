//! Pruning between snapshots (`shared/points.rs`, `retire/prune.rs`). The words of slots, pins,
//! points, snapshots and the looks at them are the engine's. The chain of versions is this file's,
//! as memory that is used after it was freed must be noticed.

use crate::{fails, model};
use loom::sync::atomic::{fence, AtomicU64, Ordering::SeqCst};
use loom::sync::Arc;
use loom::thread;
use mixedcc_engine::csn::Csn;
use mixedcc_engine::open::{Opens, Seen, Words};
use mixedcc_engine::shared::{take_pin, Needs, Oldest, PinWords, UNPINNED};

/// The step that is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Breaks {
    Nothing,
    /// The reader wakes after it has loaded the newest version.
    WakesLate,
    /// The reader wakes without keeping everything while it reads the clock.
    WakesBlindly,
    /// What was unlinked is freed by the look before that.
    FreesByThePast,
    /// A pruner takes no latch.
    Unlatched,
    /// A pruner keeps what it looks at, and does not make others look anew.
    NotAdopted,
    /// A point has its clock as its floor.
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
    /// Of the pruner's slot, of the reader's, and of one that rests to the end.
    pins: [AtomicU64; 3],
    floors: [AtomicU64; 3],
    upto: [AtomicU64; 3],
    works: [AtomicU64; 3],
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
            upto: std::array::from_fn(|_| AtomicU64::new(0)),
            works: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        for n in 1..=newest {
            w.older[n as usize].put(n - 1);
            w.stamps[n as usize].put(10 * n);
        }
        Arc::new(w)
    }
    /// The reader rests, with a point at the present clock. Then versions up to `newest` come.
    fn with_point(at: u64, newest: u64, breaks: Breaks) -> Arc<World> {
        let w = World::new(at, breaks);
        take_pin(&w.pins[1], &w.floors[1], w.words(), TAKEN);
        w.slot(1).rest(w.clock.read());
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
    fn slot(&self, i: usize) -> PinWords<'_> {
        PinWords { pin: &self.pins[i], floor: &self.floors[i], upto: &self.upto[i], works: &self.works[i] }
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
    fn wake(&self) {
        if self.breaks == WakesBlindly {
            return self.works[1].put(self.words().done_upto().1);
        }
        self.slot(1).wake(self.words());
    }
    /// The version that a snapshot sees. The reader wakes for it, and rests again.
    fn reads(&self, seen: Seen<'_>) -> u64 {
        let early = (self.breaks == WakesLate).then(|| self.head.read());
        self.wake();
        let v = self.walks(early.unwrap_or_else(|| self.head.read()), seen);
        self.slot(1).rest(self.upto[1].read());
        v
    }
    fn walks(&self, mut v: u64, seen: Seen<'_>) -> u64 {
        while v != 0 {
            let csn = self.touch(v);
            if csn != 0 && seen.sees(csn) {
                break;
            }
            v = self.below(v);
        }
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
    /// What all need. The pruner had no pin before.
    fn needs(&self) -> Needs {
        loop {
            let adoptions = self.adoptions.read();
            let needs = Needs::look(self.words(), (0..3).map(|i| self.slot(i)), 0, UNPINNED);
            if self.adoptions.read() == adoptions {
                return needs;
            }
        }
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
        let held = self.breaks != Unlatched;
        if held && self.latch.swap(1, SeqCst) == 1 {
            return;
        }
        self.pins[0].put(TAKEN); // keeps everything
        if self.breaks != NotAdopted {
            self.adoptions.add();
        }
        let needs = self.needs();
        let above = self.found_above(v, &needs);
        if let Some(w) = above {
            self.older[w as usize].put(self.below(v));
        }
        self.pins[0].put(UNPINNED);
        if held {
            self.latch.put(0);
        }
        let Some(_) = above else { return };
        let at = self.clock.read();
        let full = if self.breaks == FreesByThePast { needs.full } else { self.needs().full };
        if full > at {
            self.freed[v as usize].put(1);
        }
    }
    /// The version above `v`, if `v` may be unlinked from it.
    fn found_above(&self, v: u64, needs: &Needs) -> Option<u64> {
        // It was retired at the clock's value at which its successor was done.
        if !needs.has_points() || needs.oldest >= 10 * v {
            return None;
        }
        let w = self.above(v)?;
        let (c, d) = (self.touch(v), self.touch(w));
        (d != 0 && needs.is_unneeded(c, d)).then_some(w)
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
    assert_eq!(w.reads(Seen::prefix(10)), 1);
}

#[test]
fn who_wakes_keeps_what_is_pruned() {
    model(|| walk_beside_a_pruner(Nothing));
}
#[test]
fn it_does_not_if_it_wakes_after_the_newest_version_is_loaded() {
    assert!(fails(|| walk_beside_a_pruner(WakesLate)));
}
#[test]
fn it_does_not_if_the_pruner_frees_by_the_look_before() {
    assert!(fails(|| walk_beside_a_pruner(FreesByThePast)));
}

/// A reader that has woken has a full pin: it finds what was the newest version then.
fn wakes_beside_a_pruner(breaks: Breaks) {
    let w = World::with_point(1, 2, breaks);
    let others = thread::spawn({
        let w = w.clone();
        move || {
            w.link(3);
            w.stamps[3].put(w.clock.add() + 1);
            w.prune(2);
        }
    });
    w.wake();
    let at = w.works[1].read();
    others.join().unwrap();
    let found = w.walks(w.head.read(), Seen::prefix(at));
    assert_eq!(found, if at >= 21 { 3 } else { 2 });
}

#[test]
fn who_wakes_has_a_full_pin() {
    model(|| wakes_beside_a_pruner(Nothing));
}
#[test]
fn it_has_none_if_it_wakes_blindly() {
    assert!(fails(|| wakes_beside_a_pruner(WakesBlindly)));
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
    // What the oldest point may see is not touched at all.
    w.floors[2].put(10);
    w.slot(2).rest(10);
    w.pins[2].put(10 << 16 | TAKEN);
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
        w.slot(1).rest(w.clock.read());
        w.pins[1].put(w.clock.read() << 16 | TAKEN);
    } else {
        take();
    }
    let (upto, floor) = w.words().look(&mut list);
    if breaks == ByClock {
        w.floors[1].put(upto);
    }
    w.slot(1).rest(upto);
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
