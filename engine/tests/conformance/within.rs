//! Locks that lie within writes (INV-WITHIN), and writes that are not searched for
//! (INV-UNWRITTEN). After each step of random transactions each row is locked and was written as a
//! simple model says. After their ends none is locked.

use crate::invariants::assert_quiet;
use crate::world::{Jitter, Rng, Row, World};
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::open::Seen;
use mixedcc_engine::record::Successor;
use mixedcc_engine::txn::{How, WriteKind};
use mixedcc_engine::{Level, Policy, Protocol, ProtocolSet, RecordRef, Txn};

const FINE: &str = "nobody is in the way";
const STEPS: usize = 60;

/// What the transaction has done with a row.
#[derive(Default)]
struct Held {
    /// Depth and mode of each lock that it took, the later ones stronger. 1: to its end.
    locks: Vec<(u32, Mode)>,
    /// Depth, kind and number of each write.
    writes: Vec<(u32, WriteKind, u32)>,
    /// Did the transaction insert the row? `Some(0)`: not any more.
    inserted: Option<u32>,
}

impl Held {
    fn lock(&mut self, depth: u32, mode: Mode) {
        if self.locks.last().is_none_or(|l| !l.1.covers(mode)) {
            self.locks.push((depth, mode));
        }
    }
    fn is_gone(&self) -> bool {
        self.inserted == Some(0) || self.writes.last().is_some_and(|w| w.1 == WriteKind::Delete)
    }
    fn abort(&mut self, depth: u32) {
        self.locks.retain(|l| l.0 < depth);
        self.writes.retain(|w| w.0 < depth);
        self.inserted = self.inserted.map(|d| if d < depth { d } else { 0 });
    }
    fn merge(&mut self, depth: u32) {
        self.locks.iter_mut().map(|l| &mut l.0).for_each(|d| *d = (*d).min(depth - 1));
        self.writes.iter_mut().map(|w| &mut w.0).for_each(|d| *d = (*d).min(depth - 1));
        self.inserted = self.inserted.map(|d| d.min(depth - 1));
    }
}

struct Walk<'w> {
    w: &'w World,
    p: Jitter,
    t: Txn,
    rng: Rng,
    rows: Vec<(RecordRef, Held)>,
    depth: u32,
    /// Deletes by a look.
    at_hand: u32,
}

impl Walk<'_> {
    /// Locks a row in a mode, and writes it if `kind` says how.
    fn touch(&mut self, at: usize, mode: Mode, kind: Option<WriteKind>) {
        let (r, held) = &mut self.rows[at];
        let t = &mut self.t;
        let Some(kind) = kind else {
            t.lock_row(&self.p, *r, mode, How::Wait).expect(FINE);
            return held.lock(self.depth, mode);
        };
        let seen = Seen::prefix(self.w.e.now());
        if let Some(old) = t.newest_seen(*r, &seen).filter(|_| kind == WriteKind::Delete && self.rng.percent(70)) {
            if let Some(n) = t.delete_seen(*r, (&seen, old), None, 0, 7) {
                held.lock(self.depth, mode);
                self.at_hand += 1;
                return held.writes.push((self.depth, kind, n));
            }
        }
        let base = if held.inserted.is_none() {
            held.lock(self.depth, mode);
            let found = t.lock_for_write(&self.p, *r, mode, How::Wait, true).expect(FINE);
            found.map(|v| v.0)
        } else {
            None
        };
        let n = if kind == WriteKind::Delete {
            let tombstone = t.new_tombstone(Successor { record: 0 }, None).expect("memory");
            t.delete(*r, base, tombstone, 0, 7)
        } else {
            let row = Row { key: r.no as i64, txn: 1, nth: 0, value: self.depth as i64 };
            let v = self.w.version(t, row).expect("memory");
            t.update(*r, base, v, 0)
        };
        held.writes.push((self.depth, kind, n));
    }

    fn insert(&mut self) {
        let row = Row { key: 1000 + self.rows.len() as i64, txn: 1, nth: 0, value: 0 };
        let r = self.w.insert(&mut self.t, &self.p, row, 0).expect("memory");
        let n = self.t.last_write(r).expect("the insert");
        let writes = vec![(self.depth, WriteKind::Insert, n)];
        self.rows.push((r, Held { writes, inserted: Some(self.depth), ..Held::default() }));
    }

    fn step(&mut self) {
        let at = self.rng.below(self.rows.len() as u64) as usize;
        let modes = [Mode::KeyShare, Mode::Share, Mode::NoKeyUpdate, Mode::Update];
        let mode = modes[self.rng.below(4) as usize];
        match self.rng.below(14) {
            12..=13 => self.insert(),
            0..=7 if self.rows[at].1.is_gone() => {}
            0..=1 => self.touch(at, mode, None),
            2..=4 => self.touch(at, Mode::NoKeyUpdate, Some(WriteKind::Update)),
            5 => self.touch(at, Mode::Update, Some(WriteKind::Update)),
            6..=7 => self.touch(at, Mode::Update, Some(WriteKind::Delete)),
            8..=9 => {
                self.depth += 1;
                self.p.threads.tag.set(self.w.tag());
                self.t.set_depth(self.depth);
            }
            n if self.depth > 1 => {
                let end: (fn(&mut Txn, u32), fn(&mut Held, u32)) =
                    if n == 10 { (Txn::abort_sub, Held::abort) } else { (Txn::commit_sub, Held::merge) };
                end.0(&mut self.t, self.depth);
                self.rows.iter_mut().for_each(|r| end.1(&mut r.1, self.depth));
                self.depth -= 1;
            }
            _ => {}
        }
    }

    fn check(&self, when: &str) {
        for (r, held) in &self.rows {
            let mode = r.rec.lock.held_by(0).map(|h| h.mode);
            assert_eq!(mode, held.locks.last().map(|l| l.1), "record {} {when}", r.no);
        }
    }

    fn check_writes(&self) {
        for (r, held) in &self.rows {
            assert_eq!(self.t.last_write(*r), held.writes.last().map(|w| w.2), "record {}", r.no);
            let previous = held.writes.len().checked_sub(2).map(|n| held.writes[n].2);
            let found = self.t.last_write(*r).and_then(|n| self.t.write(n)).and_then(|w| w.previous());
            assert_eq!(found, previous, "record {}", r.no);
        }
    }

    /// The locks are held until the transaction has ended in one of the ways.
    fn end(&mut self, way: u64) {
        let w = self.w;
        match way {
            0 => self.t.abort(),
            1 => {
                self.t.prepare(&self.p, &|_, _| {}).expect(FINE);
                self.check("before the publication");
                self.t.publish(&self.p);
            }
            2 | 3 => {
                self.t.prepare_ahead(&self.p).expect(FINE);
                self.check("when it is prepared");
                self.t.hand_over(2);
                let mut t = Txn::take_over(w.e, 0).expect("the transaction");
                if way == 2 {
                    t.decide_prepared();
                    t.publish(&self.p);
                } else {
                    t.abort();
                }
            }
            _ => self.release_early(),
        }
    }

    fn release_early(&mut self) {
        self.t.prepare_locks(&self.p).expect(FINE);
        self.t.prepare_decide(&self.p, true, &|_, _| {}).expect(FINE);
        self.t.let_go_early();
        self.t.mark_committed();
        self.t.settle();
        self.t.rest();
        self.check("before they are released");
        self.t.release_written(&self.p);
        for (_, held) in self.rows.iter_mut().filter(|r| !r.1.writes.is_empty()) {
            held.locks.clear();
        }
        self.check("when those of its writes are released");
        self.t.done();
        self.t.finish(&self.p);
    }
}

#[test]
fn rows_are_locked_as_long_as_they_should_be() {
    walk(0..200, STEPS);
}

/// The same of transactions that write more than a commit gives up together.
#[test]
fn many_rows_are_locked_as_long_as_they_should_be() {
    walk(0..20, 12 * STEPS);
}

fn walk(seeds: std::ops::Range<u64>, steps: usize) {
    let (mut at_hand, n) = (0, seeds.end);
    for seed in seeds {
        let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 3);
        let p = Jitter::new(&w, 0, seed);
        let mut t = Txn::new(w.e, 0);
        t.begin(Level::Snapshot, w.ident());
        if seed % 5 == 4 {
            t.release_before_done();
        }
        t.set_depth(1);
        let rows = w.scan(0, i64::MAX).into_iter().take(12).map(|(_, r)| (r, Held::default())).collect();
        let mut walk = Walk { w: &w, p, t, rng: Rng::new(seed + 1), rows, depth: 1, at_hand: 0 };
        for _ in 0..steps {
            walk.step();
            walk.check("after a step");
            if seed % 3 > 0 || walk.rng.percent(10) {
                walk.check_writes();
            }
        }
        let depth = walk.depth;
        for depth in (2..=depth).rev() {
            walk.t.commit_sub(depth);
            walk.rows.iter_mut().for_each(|r| r.1.merge(depth));
        }
        walk.check("outside of savepoints");
        walk.end(seed % 5);
        at_hand += walk.at_hand;
        drop(walk);
        w.e.region.flush_slot(0);
        assert_quiet(&w, &format!("seed {seed}"));
    }
    assert!(u64::from(at_hand) > n / 4, "{at_hand} deletes by a look alone");
}

/// A SERIALIZABLE transaction has locked a row for its update when it read it, in a savepoint. It
/// keeps that lock to its end, also if the savepoint's update is rolled back.
#[test]
fn a_lock_of_a_read_outlives_the_update_of_a_savepoint() {
    let w = World::new(&[ProtocolSet::of(Protocol::TwoPhase)], Policy::Wait, 3);
    let p = Jitter::new(&w, 0, 1);
    let mut t = Txn::new(w.e, 0);
    for commits in [false, true] {
        t.begin(Level::Serializable, w.ident());
        let r = w.scan(0, i64::MAX)[0].1;
        let held = || r.rec.lock.held_by(0).map(|h| h.mode);
        for depth in 1..=3 {
            t.set_depth(depth);
        }
        t.lock_record(&p, r, Mode::NoKeyUpdate, How::Wait, true).expect(FINE);
        for depth in (1..=3).rev() {
            let base = t.lock_for_write(&p, r, Mode::NoKeyUpdate, How::Wait, false).expect(FINE).map(|v| v.0);
            let row = Row { key: r.no as i64, txn: 1, nth: 0, value: depth as i64 };
            let v = w.version(&mut t, row).expect("memory");
            t.update(r, base, v, 0);
            if depth > 1 {
                t.abort_sub(depth);
                assert_eq!((held(), t.last_write(r)), (Some(Mode::NoKeyUpdate), None), "depth {depth}");
            }
        }
        if commits {
            t.prepare(&p, &|_, _| {}).expect(FINE);
            t.publish(&p);
        } else {
            t.abort();
        }
        assert_eq!(held(), None);
    }
    w.e.region.flush_slot(0);
    assert_quiet(&w, "a lock of a read");
}

/// Another transaction replaces a row between the look at it and its lock. Is the row deleted all
/// the same? If it is not, it stays locked, and is found when it is deleted in the usual way.
fn deletes_what_is_replaced(fault: Option<Fault>) -> bool {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 3);
    let (p, other) = (Jitter::new(&w, 0, 1), Jitter::new(&w, 1, 1));
    let (mut t, mut u) = (Txn::new(w.e, 0), Txn::new(w.e, 1));
    let r = w.scan(0, i64::MAX)[0].1;
    t.begin(Level::Snapshot, w.ident());
    t.begin_following(&p).expect(FINE);
    let seen = Seen::prefix(w.e.now());
    let old = t.newest_seen(r, &seen).expect("a row");
    u.begin(Level::Snapshot, w.ident());
    let base = u.lock_for_write(&other, r, Mode::NoKeyUpdate, How::Wait, true).expect(FINE).map(|v| v.0);
    assert_eq!(base, Some(old));
    assert_eq!(t.delete_seen(r, (&seen, old), None, 0, 7), None, "another transaction has locked the row");
    assert!(r.rec.lock.held_by(0).is_none());
    let v = w.version(&mut u, Row { key: r.no as i64, txn: 1, nth: 0, value: 1 }).expect("memory");
    u.update(r, base, v, 0);
    u.prepare(&other, &|_, _| {}).expect(FINE);
    u.publish(&other);
    faults::set(fault);
    let done = t.delete_seen(r, (&seen, old), None, 0, 7);
    faults::set(None);
    assert_eq!(r.rec.lock.held_by(0).map(|h| h.mode), Some(Mode::Update));
    if done.is_none() {
        let newest = t.lock_for_write(&p, r, Mode::Update, How::Wait, true).expect(FINE).map(|v| v.0);
        assert_eq!(newest, Some(v));
        assert_eq!(t.last_write(r), None);
    }
    t.abort();
    assert!(r.rec.lock.is_free());
    done.is_some()
}

#[test]
fn a_delete_by_a_look_finds_what_has_replaced_the_row() {
    assert!(!deletes_what_is_replaced(None));
    assert!(deletes_what_is_replaced(Some(Fault::DeletesUnlooked)), "the fault was not found");
}
