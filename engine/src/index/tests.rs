//! Unit tests. Nodes have 6 entries here, so that trees are high.

use super::descend::Path;
use super::key::{Entry, Position};
use super::node::{NodeRef, CAPACITY};
use super::*;
use crate::csn::Csn;
use crate::error::Error;
use crate::platform::{Queue, WaitFor};
use crate::retire::RetireQueue;
use crate::threads::Block;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Order 1 is descending. A comparison may unwind.
#[derive(Default)]
pub(super) struct Comparer {
    /// The number of comparisons until one unwinds. 0: none does.
    fuse: Cell<u32>,
    pub calls: Cell<u64>,
}

struct Blown;

thread_local! {
    /// One in this many races switches threads. 0: none.
    static RACES: Cell<u32> = const { Cell::new(0) };
    static SEED: Cell<u32> = const { Cell::new(1) };
}

/// From now on one in `n` races of this thread switches threads.
pub(super) fn set_races(n: u32, seed: u32) {
    (RACES.set(n), SEED.set(seed));
}

pub(super) fn race() {
    let n = RACES.get();
    if n > 0 {
        let seed = SEED.get().wrapping_mul(1664525).wrapping_add(1013904223);
        SEED.set(seed);
        if (seed >> 8).is_multiple_of(n) {
            std::thread::yield_now();
        }
    }
}

impl Platform for Comparer {
    fn wait_for(&self, _: WaitFor) -> Result<(), Error> {
        unreachable!("no locks here")
    }
    fn enter_queue(&self, _: Queue) -> Result<(), Error> {
        Ok(())
    }
    fn leave_queue(&self, _: Queue) {}
    fn pause(&self, _: u32) -> Result<(), Error> {
        Ok(())
    }
    fn lock_tag(&self) -> u32 {
        0
    }
    fn quiescent(&self, _: SlotId) -> bool {
        false
    }
    fn compare_keys(&self, order: u32, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        self.calls.set(self.calls.get() + 1);
        if self.fuse.get() > 0 {
            self.fuse.set(self.fuse.get() - 1);
            if self.fuse.get() == 0 {
                std::panic::resume_unwind(Box::new(Blown));
            }
        }
        assert_eq!(order, 1);
        b.cmp(a)
    }
}

pub(super) struct World {
    pub e: Engine,
    pub index: &'static Index,
    live_before: usize,
    _block: Block,
}

fn live(e: &Engine) -> usize {
    e.region.usage().classes.iter().map(|c| c.live).sum()
}

impl World {
    pub fn new(len: usize, slots: usize, order: u32) -> World {
        let block = Block::new(len, slots).expect("a block");
        let e = block.engine;
        let live_before = live(&e);
        let index = Index::create(&e, 0, order).expect("an index");
        World { e, index, live_before, _block: block }
    }

    /// Runs `f` as a transaction of slot `slot` does.
    pub fn pinned<R>(&self, slot: SlotId, f: impl FnOnce() -> R) -> R {
        self.e.pin(slot);
        RetireQueue::reserve(&self.e, slot, Index::ROOM).expect("room");
        let r = catch_unwind(AssertUnwindSafe(f));
        self.e.unpin(slot);
        let now = self.e.tick();
        self.drain(slot, now.min(self.e.min_pin_of(|_| false)), 64);
        r.unwrap_or_else(|p| std::panic::resume_unwind(p))
    }

    fn drain(&self, slot: SlotId, min: Csn, budget: usize) {
        RetireQueue::drain(&self.e, slot, min, budget);
    }

    /// Frees everything, and checks that no memory is left.
    fn end(self) {
        for slot in 0..self.e.slots.len() as u16 {
            let min = self.e.tick();
            self.drain(slot, min, usize::MAX);
            RetireQueue::free_all(&self.e, slot);
        }
        // SAFETY: INV-RETIRE: all other users have ended.
        unsafe { self.index.destroy(&self.e, 0, true) };
        assert_eq!(live(&self.e), self.live_before, "memory is left");
    }

    fn all(&self, p: &dyn Platform, way: Direction) -> Vec<(Vec<u8>, u64)> {
        collect(self.index.scan(Bound::Unbounded, Bound::Unbounded, way), p)
    }
}

fn collect(mut c: Cursor, p: &dyn Platform) -> Vec<(Vec<u8>, u64)> {
    let mut all = Vec::new();
    while let Some((k, r)) = c.next(p) {
        all.push((k.to_vec(), r));
    }
    all
}

/// Checks that the tree is sorted within the bounds of its nodes and that its counters are right.
/// No thread changes the tree meanwhile.
pub(super) fn check_tree(index: &Index, p: &dyn Platform) {
    let mut seen = (0, 0);
    check_node(index, p, index.root(), None, None, &mut seen);
    assert_eq!(index.len(), seen.0, "entries");
    assert_eq!(index.bytes(), seen.1, "bytes");
}

fn check_node(
    index: &Index,
    p: &dyn Platform,
    node: NodeRef,
    low: Option<Entry>,
    high: Option<Entry>,
    seen: &mut (u64, u64),
) {
    seen.1 += NodeRef::bytes(node.level()) as u64;
    let n = node.count();
    assert!(node == index.root() || n > 0, "an empty node");
    let first = usize::from(node.level() > 0);
    for i in 0..n {
        let e = node.words(i);
        seen.1 += e.blob_bytes();
        let own = Position::before(e);
        if i >= first {
            assert!(low.is_none_or(|l| own.compare(index, p, &l).is_le()), "below its node");
            assert!(high.is_none_or(|h| own.compare(index, p, &h).is_gt()), "above its node");
        }
        if i > first {
            assert!(own.compare(index, p, &node.words(i - 1)).is_lt(), "not sorted");
        }
        if node.level() == 0 {
            seen.0 += 1;
        } else {
            let child = node.child(i).expect("a child");
            assert_eq!(child.level() + 1, node.level());
            let low = if i > 0 { Some(e) } else { low };
            let high = if i + 1 < n { Some(node.words(i + 1)) } else { high };
            check_node(index, p, child, low, high, seen);
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(Vec<u8>, u64),
    Remove(Vec<u8>, u64),
    RemoveSome(Vec<(Vec<u8>, u64)>, bool),
    Scan(Bound<Vec<u8>>, Bound<Vec<u8>>, bool),
}

/// Keys that share prefixes, with lengths around that of inline keys, and with zero bytes.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0u8), Just(1), Just(255)];
    (prop_oneof![Just(0usize), Just(7), Just(8), Just(9), Just(20)], prop::collection::vec(byte, 0..4)).prop_map(
        |(n, tail)| {
            let mut k = vec![7; n];
            k.extend(tail);
            k
        },
    )
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![key().prop_map(Bound::Included), key().prop_map(Bound::Excluded), Just(Bound::Unbounded)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (key(), 0..4u64).prop_map(|(k, r)| Op::Insert(k, r)),
        3 => (key(), 0..4u64).prop_map(|(k, r)| Op::Remove(k, r)),
        1 => (prop::collection::vec((key(), 0..4u64), 1..20), any::<bool>()).prop_map(|(a, s)| Op::RemoveSome(a, s)),
        1 => (bound(), bound(), any::<bool>()).prop_map(|(l, h, b)| Op::Scan(l, h, b)),
    ]
}

/// A key of the model in the order of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ordered(u32, Vec<u8>);
impl Ord for Ordered {
    fn cmp(&self, o: &Self) -> std::cmp::Ordering {
        if self.0 == 0 {
            self.1.cmp(&o.1)
        } else {
            o.1.cmp(&self.1)
        }
    }
}
impl PartialOrd for Ordered {
    fn partial_cmp(&self, o: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(o))
    }
}

fn slice(b: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    b.as_ref().map(Vec::as_slice)
}

type Model = BTreeSet<(Ordered, u64)>;

fn expected(model: &Model, order: u32, low: &Bound<Vec<u8>>, high: &Bound<Vec<u8>>) -> Vec<(Vec<u8>, u64)> {
    let own = |k: &Vec<u8>| Ordered(order, k.clone());
    let above = |k: &Ordered| match low {
        Bound::Included(l) => *k >= own(l),
        Bound::Excluded(l) => *k > own(l),
        Bound::Unbounded => true,
    };
    let below = |k: &Ordered| match high {
        Bound::Included(h) => *k <= own(h),
        Bound::Excluded(h) => *k < own(h),
        Bound::Unbounded => true,
    };
    model.iter().filter(|(k, _)| above(k) && below(k)).map(|(k, r)| (k.1.clone(), *r)).collect()
}

/// Runs the operations and compares with a sorted set. With `fuses`, operation `i` unwinds at
/// comparison `fuses[i]`, if it makes that many; then it must have changed nothing.
fn against_model(order: u32, ops: &[Op], fuses: &[u32]) {
    let w = World::new(4 << 20, 1, order);
    let p = Comparer::default();
    let mut model = Model::new();
    for (i, op) in ops.iter().enumerate() {
        p.fuse.set(fuses.get(i).copied().unwrap_or(0));
        let done = catch_unwind(AssertUnwindSafe(|| w.pinned(0, || run(&w, &p, order, op, &mut model))));
        p.fuse.set(0);
        if let Err(unwound) = done {
            if !unwound.is::<Blown>() {
                std::panic::resume_unwind(unwound);
            }
        }
        if i % 16 == 0 || !fuses.is_empty() {
            w.pinned(0, || check_tree(w.index, &p));
        }
    }
    w.pinned(0, || check_tree(w.index, &p));
    let everything = expected(&model, order, &Bound::Unbounded, &Bound::Unbounded);
    assert_eq!(w.pinned(0, || w.all(&p, Direction::Forward)), everything);
    w.end();
}

/// Compares a look-up of one key, which may be there or not.
fn same_records(w: &World, p: &Comparer, model: &Model, k: &[u8]) {
    let mut found = Vec::new();
    w.index.get(p, k, &mut found);
    let own = model.iter().filter(|(m, _)| m.1 == *k).map(|(_, r)| *r);
    assert_eq!(found, own.collect::<Vec<_>>());
}

fn run(w: &World, p: &Comparer, order: u32, op: &Op, model: &mut Model) {
    match op {
        Op::Insert(k, r) => {
            let added = w.index.insert(&w.e, 0, p, k, *r).expect("memory");
            assert_eq!(added, model.insert((Ordered(order, k.clone()), *r)));
            same_records(w, p, model, k);
        }
        Op::Remove(k, r) => {
            let removed = w.index.remove(&w.e, 0, p, k, *r);
            assert_eq!(removed, model.remove(&(Ordered(order, k.clone()), *r)));
            same_records(w, p, model, k);
        }
        Op::RemoveSome(all, sorted) => {
            let mut all: Vec<(&[u8], u64)> = all.iter().map(|(k, r)| (&k[..], *r)).collect();
            if *sorted {
                all.sort();
            }
            let mut done = 0;
            while done < all.len() {
                let n = w.index.remove_some(&w.e, 0, p, &all[done..]);
                assert!(n > 0);
                for (k, r) in &all[done..done + n] {
                    model.remove(&(Ordered(order, k.to_vec()), *r));
                }
                done += n;
            }
            all.iter().for_each(|(k, _)| same_records(w, p, model, k));
        }
        Op::Scan(low, high, forward) => {
            let way = if *forward { Direction::Forward } else { Direction::Backward };
            let mut want = expected(model, order, low, high);
            if !forward {
                want.reverse();
            }
            assert_eq!(collect(w.index.scan(slice(low), slice(high), way), p), want);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn it_is_a_sorted_set(ops in prop::collection::vec(op(), 1..400)) {
        against_model(0, &ops, &[]);
    }
    #[test]
    fn it_is_a_sorted_set_in_the_platforms_order(ops in prop::collection::vec(op(), 1..400)) {
        against_model(1, &ops, &[]);
    }
    #[test]
    fn a_comparison_that_unwinds_changes_nothing(
        ops in prop::collection::vec(op(), 1..150),
        fuses in prop::collection::vec(0..12u32, 150),
    ) {
        against_model(1, &ops, &fuses);
    }
}

fn number(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}
/// A key that is not inline.
fn long(n: u64) -> Vec<u8> {
    format!("a key longer than eight bytes {n:08}").into_bytes()
}

#[test]
fn it_grows_and_shrinks_and_frees_all_memory() {
    for shape in 0..4u64 {
        let w = World::new(16 << 20, 1, 0);
        let p = Comparer::default();
        let n = 3000;
        let place = |i: u64| match shape {
            0 => i,
            1 => n - 1 - i,
            _ => (i * 1237) % n,
        };
        let key = |i: u64| if shape == 3 { long(i) } else { number(i).to_vec() };
        for i in 0..n {
            w.pinned(0, || assert!(w.index.insert(&w.e, 0, &p, &key(place(i)), i).unwrap()));
        }
        w.pinned(0, || check_tree(w.index, &p));
        if shape == 0 {
            let leaves = w.index.bytes() as usize / NodeRef::bytes(0);
            assert!(leaves < n as usize / CAPACITY * 2, "ascending keys fill the leaves: {leaves}");
        }
        for i in 0..n {
            w.pinned(0, || assert!(w.index.remove(&w.e, 0, &p, &key(place(i)), i)));
            if i % 64 == 0 {
                w.pinned(0, || check_tree(w.index, &p));
            }
        }
        assert!(w.index.is_empty());
        let mut path = Path::new();
        w.pinned(0, || w.index.descend(&p, &Position::lowest(), Direction::Forward, 0, &mut path));
        let nodes = (0..path.len()).map(|i| path.step(i).node);
        let first = |n: NodeRef| if n.level() > 0 { n.words(0).blob_bytes() } else { 0 };
        let chain: u64 = nodes.map(|n| NodeRef::bytes(n.level()) as u64 + first(n)).sum();
        assert_eq!(w.index.bytes(), chain, "one node a level");
        w.end();
    }
}

#[test]
fn a_full_region_is_an_error_and_changes_nothing() {
    let w = World::new(Engine::min_size(1), 1, 0);
    let p = Comparer::default();
    let mut model = BTreeSet::new();
    let mut failed = 0;
    for i in 0..40_000u64 {
        let k = long((i * 7919) % 40_009);
        match w.pinned(0, || w.index.insert(&w.e, 0, &p, &k, i)) {
            Ok(true) => {
                model.insert((k, i));
            }
            Ok(false) => panic!("it was not there"),
            Err(e) => {
                assert_eq!(e, Error::OutOfMemory);
                failed += 1;
                if failed == 50 {
                    break;
                }
            }
        }
    }
    assert!(failed == 50 && model.len() > 1000);
    w.pinned(0, || check_tree(w.index, &p));
    assert_eq!(w.pinned(0, || w.all(&p, Direction::Forward)), model.into_iter().collect::<Vec<_>>());
    w.end();
}

#[test]
fn what_a_pinned_reader_may_hold_is_not_freed() {
    let w = World::new(4 << 20, 2, 0);
    let p = Comparer::default();
    let fill = |i: u64| w.pinned(0, || w.index.insert(&w.e, 0, &p, &long(i), i).unwrap());
    (0..100).for_each(|i| assert!(fill(i)));
    w.e.pin(1);
    let mut c = w.index.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    let first = c.next(&p).map(|(k, r)| (k.to_vec(), r));
    assert_eq!(first, Some((long(0), 0)));
    let copied: Vec<Entry> = (0..100).map(|i| entry_of(w.index, &p, i)).collect();
    let before = live(&w.e);
    for i in 0..100 {
        assert!(w.pinned(0, || w.index.remove(&w.e, 0, &p, &long(i), i)));
    }
    assert!(live(&w.e) >= before, "blobs and nodes wait for the pin");
    for (i, e) in copied.iter().enumerate() {
        assert_eq!(e.key().bytes(), long(i as u64));
    }
    while c.next(&p).is_some() {}
    w.e.unpin(1);
    w.end();
}

fn entry_of(index: &'static Index, p: &dyn Platform, i: u64) -> Entry {
    let mut path = Path::new();
    index.descend(p, &Position::of_key(&long(i), false), Direction::Forward, 0, &mut path);
    path.last().node.words(path.last().at)
}

/// Ascending keys, some with equal first bytes, with others between them. Entries are removed, also
/// the last ones.
fn last_ones(order: u32) {
    let w = World::new(64 << 20, 1, order);
    let p = Comparer::default();
    let behind = |a: &(Vec<u8>, u64), b: &(Vec<u8>, u64)| {
        let keys = if order == 0 { a.0.cmp(&b.0) } else { b.0.cmp(&a.0) };
        keys.then(a.1.cmp(&b.1))
    };
    let (mut all, mut seen): (Vec<(Vec<u8>, u64)>, [u32; 2]) = Default::default();
    let mut seed = 12345u64;
    for i in 0..4000 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let way = (seed >> 33) % 10;
        let at = if order == 0 { 10_000 + i } else { 10_000 - i };
        let new = match way {
            0..=4 => (number(at).to_vec(), i),
            5 => (number((seed >> 40) % 20_000).to_vec(), i),
            6 => ([&number(at)[..], b"more"].concat(), i),
            7 => ([&number(at + 1)[..], b"more"].concat(), (seed >> 40) % 3),
            _ => (number(77).to_vec(), (seed >> 40) % 50),
        };
        let want = !all.contains(&new);
        let added = w.pinned(0, || w.index.insert(&w.e, 0, &p, &new.0, new.1).expect("memory"));
        assert!(added == want, "order {order}, entry {i}: {new:?}");
        seen[usize::from(want)] += 1;
        if want {
            all.push(new);
        }
        // Some of the last ones, so that the last leaf goes, or any.
        for _ in 0..if i % 50 == 49 { 20 } else { u32::from(i % 7 == 0) } {
            all.sort_by(behind);
            let n = if i % 50 == 49 { all.len() - 1 } else { (seed >> 35) as usize % all.len() };
            let (key, record) = all.remove(n);
            assert!(w.pinned(0, || w.index.remove(&w.e, 0, &p, &key, record)));
        }
    }
    assert!(seen.iter().all(|n| *n > 50), "{seen:?}");
    w.end();
}

#[test]
fn an_insert_tells_whether_its_entry_was_there() {
    last_ones(0);
    last_ones(1);
}

#[test]
fn samples_cut_into_equal_parts() {
    let w = World::new(64 << 20, 1, 0);
    let p = Comparer::default();
    let n = 20_000u64;
    for i in 0..n {
        w.pinned(0, || w.index.insert(&w.e, 0, &p, &number((i * 7919) % n), i).unwrap());
    }
    for parts in [0, 1, 2, 16, 100] {
        let cuts = w.pinned(0, || w.index.sample(&p, parts));
        assert_eq!(cuts.len(), parts.max(1) - 1);
        let at: Vec<u64> = cuts.iter().map(|c| u64::from_be_bytes(c[..].try_into().unwrap())).collect();
        let ends = std::iter::once(0).chain(at.iter().copied()).zip(at.iter().copied().chain([n]));
        for (low, high) in ends {
            let share = (high - low) * parts.max(1) as u64 * 100 / n;
            assert!((50..200).contains(&share), "{parts} parts: {low} to {high} is {share} % of a part");
        }
    }
    // Many records with one key: a key is a boundary only once.
    for i in 0..3000 {
        w.pinned(0, || w.index.insert(&w.e, 0, &p, &number(77), n + i).unwrap());
    }
    let cuts = w.pinned(0, || w.index.sample(&p, 64));
    assert!(cuts.is_sorted_by(|a, b| a < b) && !cuts.is_empty());
    w.end();
}

/// Threads insert and remove keys of their own while others scan. Keys that no thread removes are
/// found always, once, in order and in both directions. One in `races` places lets other threads
/// run.
fn with_threads(keys: impl Fn(u64) -> Vec<u8> + Sync, order: u32, rounds: u64, races: u32) {
    const WRITERS: u64 = 3;
    let w = World::new(64 << 20, WRITERS as usize + 2, order);
    let p = Comparer::default();
    // Numbers divisible by 4 stay; the others belong to writer `n % 4 - 1`.
    for i in (0..rounds).step_by(4) {
        w.pinned(0, || w.index.insert(&w.e, 0, &p, &keys(i), i).unwrap());
    }
    let running = crate::primitive::AtomicU64::new(WRITERS);
    let work = |writer: u64| {
        let _ends = Ends(&running);
        let (w, p) = (&w, Comparer::default());
        (RACES.set(races), SEED.set(writer as u32));
        let slot = writer as SlotId + 2;
        let mut seed = 0x9E37_79B9_7F4A_7C15u64 + writer;
        let mut mine = BTreeMap::new();
        for _ in 0..rounds.max(400) * 6 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let n = (seed >> 33) % (rounds / 4) * 4 + 1 + writer;
            let there = mine.get(&n).copied().unwrap_or(false);
            w.pinned(slot, || {
                if there && seed & 1 << 20 == 0 {
                    assert!(w.index.remove(&w.e, slot, &p, &keys(n), n), "removed by another thread");
                    mine.insert(n, false);
                } else if there {
                    let all: Vec<_> = mine.range(n..).filter(|m| *m.1).take(5).map(|m| (keys(*m.0), *m.0)).collect();
                    let of: Vec<_> = all.iter().map(|(k, n)| (&k[..], *n)).collect();
                    let removed = w.index.remove_some(&w.e, slot, &p, &of);
                    assert!(removed > 0 && removed <= of.len());
                    mine.extend(of[..removed].iter().map(|(_, n)| (*n, false)));
                } else {
                    assert!(w.index.insert(&w.e, slot, &p, &keys(n), n).unwrap(), "there already");
                    mine.insert(n, true);
                }
            });
            // No other thread touches this key or the one in front of it.
            for (n, there) in [(n, !there), (n - 1 - writer, true)] {
                let mut found = Vec::new();
                w.pinned(slot, || w.index.get(&p, &keys(n), &mut found));
                assert_eq!(found, if there { vec![n] } else { vec![] }, "a look-up of one key");
            }
        }
        mine
    };
    let scan = |slot: SlotId, way: Direction| {
        let p = Comparer::default();
        (RACES.set(races), SEED.set(slot as u32 + 77));
        let mut scans = 0;
        while running.load(Ordering::SeqCst) > 0 || scans < 3 {
            let all = w.pinned(slot, || w.all(&p, way));
            let sorted = |a: &(Vec<u8>, u64), b: &(Vec<u8>, u64)| {
                let o = if order == 0 { a.0.cmp(&b.0) } else { b.0.cmp(&a.0) }.then(a.1.cmp(&b.1));
                o == if way == Direction::Forward { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater }
            };
            assert!(all.is_sorted_by(sorted), "out of order, or twice");
            let stay: BTreeSet<u64> = all.iter().map(|(_, r)| *r).filter(|r| r % 4 == 0).collect();
            assert_eq!(stay.len() as u64, rounds.div_ceil(4), "an entry that stays was missed");
            assert!(all.iter().all(|(k, r)| *k == keys(*r)), "a key of another record");
            scans += 1;
        }
    };
    let left: Vec<_> = std::thread::scope(|s| {
        let writers: Vec<_> = (0..WRITERS).map(|i| s.spawn(move || work(i))).collect::<Vec<_>>();
        s.spawn(|| scan(0, Direction::Forward));
        s.spawn(|| scan(1, Direction::Backward));
        writers.into_iter().map(|t| t.join().expect("a writer")).collect()
    });
    w.pinned(0, || check_tree(w.index, &p));
    let mut want: Vec<u64> = left.into_iter().flatten().filter(|(_, there)| *there).map(|(n, _)| n).collect();
    want.extend((0..rounds).step_by(4));
    want.sort_unstable();
    let mut got: Vec<u64> = w.pinned(0, || w.all(&p, Direction::Forward)).into_iter().map(|(_, r)| r).collect();
    got.sort_unstable();
    assert_eq!(got, want);
    w.end();
}

#[test]
fn threads_with_short_keys() {
    with_threads(|n| number(n).to_vec(), 0, 1000, 100);
}
#[test]
fn threads_with_long_keys() {
    with_threads(long, 0, 1000, 100);
}
#[test]
fn threads_in_the_platforms_order() {
    with_threads(long, 1, 500, 100);
}
/// Few keys: leaves, and also the root, are added and removed all the time.
#[test]
fn threads_in_a_small_tree() {
    with_threads(|n| number(n).to_vec(), 0, 40, 20);
    with_threads(long, 0, 40, 20);
}

/// A writer that runs. It counts as ended when it fails, too: the others do not go on for ever.
struct Ends<'a>(&'a crate::primitive::AtomicU64);
impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Blocks of keys are added and removed, and inner nodes with them, while single keys move between
/// those that stay. A scan returns nothing twice.
#[test]
fn threads_that_empty_whole_subtrees() {
    const BLOCKS: u64 = 3;
    const BLOCK: u64 = 80;
    let w = World::new(64 << 20, BLOCKS as usize + 2, 0);
    let running = crate::primitive::AtomicU64::new(BLOCKS);
    let blocks = |writer: u64| {
        let _ends = Ends(&running);
        let (p, slot) = (Comparer::default(), writer as SlotId + 2);
        (RACES.set(10), SEED.set(writer as u32));
        for _ in 0..100 {
            // Even numbers belong to the block.
            for i in (0..BLOCK).map(|i| (writer * BLOCK + i) * 2) {
                w.pinned(slot, || assert!(w.index.insert(&w.e, slot, &p, &number(i), i).unwrap()));
            }
            for i in (0..BLOCK).rev().map(|i| (writer * BLOCK + i) * 2) {
                w.pinned(slot, || assert!(w.index.remove(&w.e, slot, &p, &number(i), i)));
            }
        }
    };
    let singles = |slot: SlotId| {
        let p = Comparer::default();
        (RACES.set(10), SEED.set(99));
        let mut i = 0;
        while running.load(Ordering::SeqCst) > 0 {
            i = (i + 37) % (BLOCKS * BLOCK);
            let n = 2 * i + 1;
            w.pinned(slot, || assert!(w.index.insert(&w.e, slot, &p, &number(n), n).unwrap()));
            w.pinned(slot, || assert!(w.index.remove(&w.e, slot, &p, &number(n), n)));
        }
    };
    std::thread::scope(|s| {
        let blocks = &blocks;
        for b in 0..BLOCKS {
            s.spawn(move || blocks(b));
        }
        s.spawn(|| singles(0));
        let p = Comparer::default();
        (RACES.set(5), SEED.set(1234));
        while running.load(Ordering::SeqCst) > 0 {
            let up = w.pinned(1, || w.all(&p, Direction::Forward));
            assert!(up.is_sorted_by(|a, b| a.1 < b.1), "out of order, or twice");
            let down = w.pinned(1, || w.all(&p, Direction::Backward));
            assert!(down.is_sorted_by(|a, b| a.1 > b.1), "out of order, or twice");
        }
        RACES.set(0);
    });
    w.pinned(0, || check_tree(w.index, &Comparer::default()));
    assert!(w.index.is_empty());
    w.end();
}

/// A root that is replaced by its last child can leave a chain of nodes with one child each.
#[test]
fn the_last_entry_below_a_chain_of_nodes() {
    let w = World::new(4 << 20, 1, 0);
    let p = Comparer::default();
    let keys = 6 * 6 * 2;
    for n in 0..keys {
        w.pinned(0, || assert!(w.index.insert(&w.e, 0, &p, &long(n), n).unwrap()));
    }
    assert_eq!(w.index.root().level(), 2);
    // First the first and the last leaf are left, then only the first, then nothing.
    for n in (1..keys - 1).chain([keys - 1]) {
        w.pinned(0, || assert!(w.index.remove(&w.e, 0, &p, &long(n), n)));
    }
    assert_eq!((w.index.root().level(), w.index.root().count()), (1, 1), "no chain: the test is about nothing");
    w.pinned(0, || assert!(w.index.remove(&w.e, 0, &p, &long(0), 0)));
    w.pinned(0, || check_tree(w.index, &p));
    assert_eq!(w.index.root().level(), 0);
    w.end();
}

/// A node can cover more than the path to it said, because neighbours of nodes above it have left
/// since. Threads meet this too rarely.
#[test]
fn a_scan_goes_on_behind_what_it_has_if_that_is_beyond_the_edge() {
    let w = World::new(4 << 20, 1, 0);
    let p = Comparer::default();
    let entry = |n: u64| Entry::new(w.e.region, 0, &number(n), 0).unwrap();
    let path = Path::with_edges(Some(entry(5)), Some(entry(5)));
    let up = w.index.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    let next = up.go_on(&p, &path, &[entry(4), entry(6)], 0).unwrap();
    assert!(next.compare(w.index, &p, &entry(6)).is_lt() && next.compare(w.index, &p, &entry(7)).is_gt());
    let next = up.go_on(&p, &path, &[entry(3), entry(4)], 0).unwrap();
    assert!(next.compare(w.index, &p, &entry(4)).is_lt() && next.compare(w.index, &p, &entry(5)).is_ge());
    let down = w.index.scan(Bound::Unbounded, Bound::Unbounded, Direction::Backward);
    let next = down.go_on(&p, &path, &[entry(6), entry(4)], 0).unwrap();
    assert!(next.compare(w.index, &p, &entry(4)).is_ge() && next.compare(w.index, &p, &entry(3)).is_lt());
    let next = down.go_on(&p, &path, &[entry(7), entry(6)], 0).unwrap();
    assert!(next.compare(w.index, &p, &entry(5)).is_ge() && next.compare(w.index, &p, &entry(4)).is_lt());
    w.end();
}
