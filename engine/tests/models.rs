//! Models of the engine's words for the model checker, which tries all interleavings:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p mixedcc-engine --test models`.
//!
//! The ring, with two entries, the lock word and the other words are the engine's own. Slots and
//! versions are modelled with the engine's encodings, because the region, in which the engine has
//! them, cannot hold the model checker's atomics. Each model has a broken variant in which the
//! checker must find the error.
#![cfg(loom)]

#[path = "models/durable.rs"]
mod durable;
#[path = "models/locks.rs"]
mod locks;
#[path = "models/open.rs"]
mod open;
#[path = "models/prepared.rs"]
mod prepared;
#[path = "models/pruning.rs"]
mod pruning;
#[path = "models/ranges.rs"]
mod ranges;
#[path = "models/switching.rs"]
mod switching;
#[path = "models/unique.rs"]
mod unique;

use loom::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release, SeqCst},
};
use loom::sync::Arc;
use loom::thread;
use mixedcc_engine::csn::{Csn, SlotWord, Stamp, State};
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::index::{KeyLeaves, VersionWord};
use mixedcc_engine::range::{Entry, List, Position, Ring, Verdict};
use mixedcc_engine::shared::Fate;

fn model(f: impl Fn() + Sync + Send + 'static) {
    model_within(3, f);
}

/// All interleavings with so many preemptions, or as many as the environment says.
fn model_within(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut b = loom::model::Builder::new();
    b.preemption_bound = b.preemption_bound.or(Some(preemptions));
    b.check(f);
}

/// Does the model checker find a failure?
fn fails(f: impl Fn() + Sync + Send + 'static) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model(f))).is_err()
}

/// Does it find one in the engine with this fault?
fn fails_with(fault: Fault, f: impl Fn() + Sync + Send + 'static) -> bool {
    faults::set(Some(fault));
    let found = fails(f);
    faults::set(None);
    found
}

/// A clock and two slots.
struct World {
    clock: AtomicU64,
    words: [AtomicU64; 2],
}

impl World {
    fn new() -> World {
        let active = || AtomicU64::new(SlotWord::new(0, 0, State::Active).0);
        World { clock: AtomicU64::new(1), words: [active(), active()] }
    }
    fn set(&self, slot: usize, serial: u16, state: State, csn: Csn) {
        self.words[slot].store(SlotWord::new(serial, csn, state).0, SeqCst);
    }
    fn take_csn(&self, slot: usize) -> Csn {
        self.set(slot, 0, State::Preparing, 0);
        let csn = self.clock.fetch_add(1, SeqCst) + 1;
        self.set(slot, 0, State::Committing, csn);
        csn
    }
    /// As `Engine::fate`; `reread: false` leaves the second look at the stamp out.
    fn fate(&self, stamp: Stamp, still: impl FnOnce() -> bool) -> Option<Fate> {
        if !stamp.is_tag() {
            return Some(if stamp == Stamp::ABORTED { Fate::Aborted } else { Fate::Committed(stamp.0) });
        }
        let w = SlotWord(self.words[stamp.slot() as usize].load(SeqCst));
        if !still() {
            return None;
        }
        Some(match w.state() {
            State::Idle | State::Active => Fate::Active,
            State::Preparing => Fate::Preparing,
            State::Committing => Fate::Committing(w.csn()),
            State::Committed => Fate::Committed(w.csn()),
            State::Aborted => Fate::Aborted,
        })
    }
}

/// A record with an old version, committed at 1, and at most one new version.
struct Record {
    head_is_new: AtomicU64,
    stamp: AtomicU64,
}

impl Record {
    fn new() -> Record {
        Record { head_is_new: AtomicU64::new(0), stamp: AtomicU64::new(0) }
    }
    fn link(&self, tag: Stamp) {
        self.stamp.store(tag.0, SeqCst);
        self.head_is_new.store(1, SeqCst);
    }
    fn unlink(&self) {
        self.head_is_new.store(0, SeqCst);
        self.stamp.store(Stamp::ABORTED.0, SeqCst);
    }
    /// Is the new version committed at or before `csn`? Waits where the engine waits.
    fn is_new_at(&self, w: &World, csn: Csn, reread: bool) -> bool {
        if self.head_is_new.load(SeqCst) == 0 {
            return false;
        }
        loop {
            let s = Stamp(self.stamp.load(SeqCst));
            let fate = w.fate(s, || !reread || self.stamp.load(SeqCst) == s.0);
            match fate {
                Some(Fate::Committed(c)) => return c <= csn,
                Some(Fate::Active | Fate::Aborted) => return false,
                Some(Fate::Committing(c)) if c > csn => return false,
                Some(Fate::Preparing | Fate::Committing(_)) | None => thread::yield_now(),
            }
        }
    }
}

/// A writer commits and its slot goes on to the next transaction; a snapshot sees all or nothing.
fn snapshot_reader(prepares: bool, reread: bool) {
    let w = Arc::new((World::new(), [Record::new(), Record::new()]));
    let writer = {
        let w = w.clone();
        thread::spawn(move || {
            let (world, records) = &*w;
            let tag = Stamp::tag(0, 0);
            records.iter().for_each(|r| r.link(tag));
            let csn = if prepares {
                world.take_csn(0)
            } else {
                let csn = world.clock.fetch_add(1, SeqCst) + 1;
                world.set(0, 0, State::Committing, csn);
                csn
            };
            world.set(0, 0, State::Committed, csn);
            records.iter().for_each(|r| r.stamp.store(Stamp::csn(csn).0, SeqCst));
            world.set(0, 1, State::Active, 0); // the next transaction of the slot
        })
    };
    let (world, records) = &*w;
    let csn = world.clock.load(SeqCst);
    for r in records {
        assert_eq!(r.is_new_at(world, csn, reread), csn >= 2, "a snapshot at {csn}");
    }
    writer.join().unwrap();
}

#[test]
fn a_snapshot_sees_all_or_nothing() {
    model(|| snapshot_reader(true, true));
}
#[test]
fn without_preparing_it_does_not() {
    assert!(fails(|| snapshot_reader(false, true)));
}
#[test]
fn without_a_second_look_it_does_not() {
    assert!(fails(|| snapshot_reader(true, false)));
}

/// Each transaction reads one record and writes the other; returns how many commit.
fn write_skew(late_csn: bool) {
    let w = Arc::new((World::new(), [Record::new(), Record::new()]));
    let transaction = |me: usize| {
        let w = w.clone();
        thread::spawn(move || {
            let (world, records) = &*w;
            let (read, write) = (&records[me], &records[1 - me]);
            write.link(Stamp::tag(me as u16, 0));
            let valid = if late_csn {
                let valid = !read.is_new_at(world, world.clock.load(SeqCst), true);
                world.take_csn(me);
                valid
            } else {
                let csn = world.take_csn(me);
                !read.is_new_at(world, csn, true)
            };
            if valid {
                let csn = SlotWord(world.words[me].load(SeqCst)).csn();
                world.set(me, 0, State::Committed, csn);
                write.stamp.store(Stamp::csn(csn).0, SeqCst);
            } else {
                world.set(me, 0, State::Aborted, 0);
                write.unlink();
            }
            valid
        })
    };
    let (a, b) = (transaction(0), transaction(1));
    let commits = [a.join().unwrap(), b.join().unwrap()];
    assert!(!(commits[0] && commits[1]), "write skew");
    assert!(commits[0] || commits[1], "the smaller CSN commits");
}

#[test]
fn write_skew_does_not_commit() {
    model(|| write_skew(false));
}
#[test]
fn with_the_csn_after_validation_it_does() {
    assert!(fails(|| write_skew(true)));
}

/// A writer inserts a row while another transaction scans and commits.
fn phantom(position_is_tail: bool, laps: u64) {
    let w = Arc::new((World::new(), Record::new(), Ring::model()));
    let writer = {
        let w = w.clone();
        thread::spawn(move || {
            let (world, row, ring) = &*w;
            let tag = Stamp::tag(0, 0);
            let (pos, _) = ring.list().register(tag, |_| ());
            row.link(tag);
            let csn = world.take_csn(0);
            world.set(0, 0, State::Committed, csn);
            row.stamp.store(Stamp::csn(csn).0, SeqCst);
            ring.list().finish(pos, tag, Stamp::csn(csn));
            world.set(0, 1, State::Active, 0);
            csn
        })
    };
    let (world, row, ring) = &*w;
    let me = Stamp::tag(1, 0);
    let tail = position_is_tail.then(|| ring_end(ring));
    let start = tail.unwrap_or_else(|| ring.list().position());
    let seen = row.is_new_at(world, Csn::MAX >> 16, true);
    for _ in 0..laps {
        // Others that abort overwrite the ring.
        let (pos, _) = ring.list().register(me, |_| ());
        ring.list().finish(pos, me, Stamp::ABORTED);
    }
    let csn = world.take_csn(1);
    let valid = validate(world, ring, start, me, csn);
    let theirs = writer.join().unwrap();
    if valid {
        assert_eq!(seen, theirs < csn, "a phantom: seen {seen}, their CSN {theirs}, ours {csn}");
    }
}

/// The ring's end, whatever is open.
fn ring_end(ring: &Ring) -> Position {
    let tag = Stamp::tag(1, 5);
    let (pos, _) = ring.list().register(tag, |_| ());
    ring.list().finish(pos, tag, Stamp::ABORTED);
    Position::from_low(pos + 1)
}

/// As the validation of a predicate in the engine.
fn validate(world: &World, ring: &Ring, start: Position, me: Stamp, csn: Csn) -> bool {
    validate_list(world, ring.list(), start, me, csn)
}

fn validate_list<E: Entry>(world: &World, ring: List<'_, E>, start: Position, me: Stamp, csn: Csn) -> bool {
    let mut from = start.low();
    loop {
        let (stamp, next) = match ring.look(&start, from, me, csn) {
            Verdict::Valid => return true,
            Verdict::Wrapped => return false,
            Verdict::Look(stamp, next) => (stamp, next),
        };
        from = next - 1;
        match world.fate(stamp, || ring.still(next - 1, stamp)) {
            Some(Fate::Committed(c)) if c <= csn => return false,
            Some(Fate::Committing(c)) if c > csn => from = next,
            None | Some(Fate::Preparing | Fate::Committing(_)) => thread::yield_now(),
            Some(_) => from = next,
        }
    }
}

#[test]
fn phantoms_are_found() {
    model(|| phantom(false, 0));
}
#[test]
fn phantoms_are_found_in_a_ring_that_wraps() {
    model(|| phantom(false, 2));
}
#[test]
fn from_the_rings_end_they_are_not() {
    assert!(fails(|| phantom(true, 0)));
}

/// What a part of the index's protocol is left out of.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// The look at the leaf's version after its entries were read.
    Check,
    /// The second look at the parent's version, after the child's was read.
    Coupling,
    /// The comparison of the version when the latch is taken.
    Latch,
}

/// A leaf with two entries at most.
#[derive(Default)]
struct Leaf {
    version: VersionWord,
    count: AtomicU64,
    keys: [AtomicU64; 2],
}

impl Leaf {
    fn read(&self) -> Vec<u64> {
        let n = self.count.load(Acquire).min(2) as usize;
        self.keys[..n].iter().map(|k| k.load(Acquire)).collect()
    }
    fn set(&self, i: usize, key: u64) {
        self.keys[i].store(key, Release);
    }
    fn latch(&self, version: u64, w: Without) -> bool {
        self.version.latch(if w == Without::Latch { self.version.read() } else { version })
    }
}

/// A root with one leaf, `[2]`, or two: keys from `separator` on (0: none) are in the second.
#[derive(Default)]
struct Tree {
    version: VersionWord,
    separator: AtomicU64,
    leaves: [Leaf; 2],
}

impl Tree {
    fn new() -> Tree {
        let t = Tree::default();
        t.leaves[0].set(0, 2);
        t.leaves[0].count.store(1, Release);
        t
    }
    /// As `Index::try_descend`: the leaf of a key, its version, the root's.
    fn descend(&self, key: u64, w: Without) -> Option<(&Leaf, u64, u64)> {
        let root = self.version.read();
        let separator = self.separator.load(Acquire);
        let leaf = &self.leaves[usize::from(separator != 0 && key >= separator)];
        self.version.is(root).then_some(())?;
        let version = leaf.version.read();
        (w == Without::Coupling || self.version.is(root)).then_some((leaf, version, root))
    }
    fn find(&self, key: u64, w: Without) -> bool {
        loop {
            if let Some((leaf, version, _)) = self.descend(key, w) {
                let keys = leaf.read();
                if w == Without::Check || leaf.version.is(version) {
                    return keys.contains(&key);
                }
            }
            thread::yield_now();
        }
    }
    /// As `Index::insert_entry` and `Index::split`.
    fn insert(&self, key: u64, w: Without) {
        loop {
            if let Some((leaf, version, root)) = self.descend(key, w) {
                let mut keys = leaf.read();
                if leaf.version.is(version) && keys.len() == 2 {
                    self.split(leaf, version, root);
                } else if leaf.latch(version, w) {
                    keys.push(key);
                    keys.sort_unstable();
                    keys.iter().enumerate().rev().for_each(|(i, k)| leaf.set(i, *k));
                    leaf.count.store(keys.len() as u64, Release);
                    leaf.version.release(version);
                    return;
                }
            }
            thread::yield_now();
        }
    }
    fn split(&self, leaf: &Leaf, version: u64, root: u64) {
        if !self.version.latch(root) {
            return;
        }
        if !leaf.version.latch(version) {
            self.version.release_unchanged(root);
            return;
        }
        let key = leaf.keys[1].load(Acquire);
        self.leaves[1].set(0, key);
        self.leaves[1].count.store(1, Release);
        leaf.count.store(1, Release);
        self.separator.store(key, Release);
        leaf.version.release(version);
        self.version.release(root);
    }
}

/// An inserter that splits the leaf, and a reader of a key that is always there. The reader is the
/// spawned thread: the model checker forgets a load when the storing thread has loaded the same
/// word itself, so that it must find the stores first.
fn index(w: Without) {
    let t = Arc::new(Tree::new());
    let reader = {
        let t = t.clone();
        thread::spawn(move || assert!(t.find(2, w), "a key that is there was not found"))
    };
    // The second one splits.
    [1, 3].iter().for_each(|key| t.insert(*key, w));
    reader.join().unwrap();
    assert!((1..=3).all(|key| t.find(key, Without::Nothing)));
}

/// Two inserts into one leaf, of which the second splits it.
fn inserts(w: Without) {
    let t = Arc::new(Tree::new());
    let other = {
        let t = t.clone();
        thread::spawn(move || t.insert(3, w))
    };
    t.insert(1, w);
    other.join().unwrap();
    assert!((1..=3).all(|key| t.find(key, Without::Nothing)), "a key is lost");
}

#[test]
fn the_index_finds_what_is_there() {
    model(|| index(Without::Nothing));
}
#[test]
fn two_inserts_into_one_leaf_are_both_kept() {
    model(|| inserts(Without::Nothing));
}
#[test]
fn without_a_check_it_does_not() {
    assert!(fails(|| index(Without::Check)));
}
#[test]
fn without_coupling_it_does_not() {
    assert!(fails(|| index(Without::Coupling)));
}
#[test]
fn with_a_latch_at_any_version_an_insert_is_lost() {
    assert!(fails(|| inserts(Without::Latch)));
}
