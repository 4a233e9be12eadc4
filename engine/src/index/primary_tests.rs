//! Entries are added with records and removed with them.

use super::{Direction, Primary, Reuse, Unique};
use crate::csn::SlotId;
use crate::error::Error;
use crate::open::Seen;
use crate::platform::{Platform, Queue, WaitFor};
use crate::primitive::Ordering;
use crate::record::{Successor, REC_DEAD, REC_FREE};
use crate::retire::RetireQueue;
use crate::threads::{Block, Threads, Waits};
use crate::{Engine, Level, Policy, Protocol, ProtocolSet, RecordRef, Table, Txn};
use std::cell::Cell;
use std::ops::Bound;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// A thread's platform whose comparisons unwind after this many calls (0: never).
struct Fused {
    threads: Threads,
    fuse: Cell<u32>,
}

impl Platform for Fused {
    fn wait_for(&self, who: WaitFor) -> Result<(), Error> {
        self.threads.wait_for(who)
    }
    fn enter_queue(&self, q: Queue) -> Result<(), Error> {
        self.threads.enter_queue(q)
    }
    fn leave_queue(&self, q: Queue) {
        self.threads.leave_queue(q);
    }
    fn pause(&self, n: u32) -> Result<(), Error> {
        self.threads.pause(n)
    }
    fn lock_tag(&self) -> u32 {
        0
    }
    fn quiescent(&self, _: SlotId) -> bool {
        false
    }
    fn compare_keys(&self, _: u32, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        match self.fuse.get() {
            0 => {}
            1 => {
                self.fuse.set(0);
                std::panic::resume_unwind(Box::new(()));
            }
            n => self.fuse.set(n - 1),
        }
        a.cmp(b)
    }
}

struct World {
    e: Engine,
    table: &'static Table,
    p: Fused,
    live_before: usize,
    _block: Block,
}

const SLOTS: usize = 3;

fn live(e: &Engine) -> usize {
    e.region.usage().classes.iter().map(|c| c.live).sum()
}

fn new_table(e: &Engine, order: u32, reuse: Reuse) -> &'static Table {
    let set = ProtocolSet::of(Protocol::Occ);
    let map = Table::new_map(e, 0, 1, 0, b"", set, Policy::Wait).expect("a map");
    let table = Table::create(e, 0, [1; 4], map).expect("a table");
    table.create_primary(e, 0, order, reuse).expect("an index");
    table
}

impl World {
    fn new(order: u32, reuse: Reuse) -> World {
        let block = Block::new(16 << 20, SLOTS).expect("a block");
        let e = block.engine;
        let live_before = live(&e);
        let table = new_table(&e, order, reuse);
        let p = Fused { threads: Threads::new(e, 0, Waits::default().into()), fuse: Cell::new(0) };
        World { e, table, p, live_before, _block: block }
    }
    fn primary(&self) -> &'static Primary {
        self.table.primary().expect("an index")
    }
    fn begin(&self, slot: SlotId) -> Txn {
        let mut t = Txn::new(self.e, slot);
        t.begin(Level::Serializable, 1 + slot as u64);
        t
    }
    fn commit(&self, t: &mut Txn) {
        t.prepare(&self.p, &|_, _| {}).expect("a commit");
        t.publish(&self.p);
    }
    fn insert(&self, t: &mut Txn, n: u64) -> Result<RecordRef, Error> {
        self.insert_into(t, self.table, n)
    }
    fn insert_into(&self, t: &mut Txn, table: &'static Table, n: u64) -> Result<RecordRef, Error> {
        let v = t.new_version(0, 0, 0)?;
        let r = t.insert(&self.p, table, [0, 0], v, 0, 0)?;
        t.enter(&self.p, r, &key(n), Unique::Unchecked)?;
        Ok(r)
    }
    /// Deletes the row with the key of `n`.
    fn delete(&self, t: &mut Txn, r: RecordRef, n: u64) {
        let lock = crate::lock::Mode::Update;
        let base = t.lock_for_write(&self.p, r, lock, crate::txn::How::Wait, true).expect("a lock");
        let tombstone = t.new_tombstone(Successor { record: 0 }, Some(&key(n))).expect("memory");
        t.delete(r, base.map(|(v, _)| v), tombstone, 0, 0);
    }
    fn find(&self, n: u64) -> Vec<u64> {
        let mut found = Vec::new();
        self.e.pin(2);
        self.primary().index.get(&self.p, &key(n), &mut found);
        self.e.unpin(2);
        found
    }
    /// Runs a transaction that removes the entries that it may.
    fn sweep(&self) -> usize {
        // Behind all commits so far.
        self.e.tick();
        let mut t = self.begin(0);
        let mut n = 0;
        self.e.refresh_min_pin(&self.p);
        n += t.purge_marked(&self.p, self.table).expect("memory");
        while self.table.dead_entries() > 0 {
            match t.sweep(&self.p, self.table, 16) {
                0 => break,
                m => n += m,
            }
        }
        self.commit(&mut t);
        n
    }
    fn end(self) {
        for slot in 0..SLOTS as SlotId {
            let min = self.e.tick();
            RetireQueue::drain(&self.e, slot, min, usize::MAX);
            RetireQueue::free_all(&self.e, slot);
        }
        // SAFETY: INV-TABLE: all other users have ended.
        unsafe { self.table.destroy(&self.e, 0) };
        assert_eq!(live(&self.e), self.live_before, "memory is left");
    }
}

/// Half of the keys are long.
fn key(n: u64) -> Vec<u8> {
    if n.is_multiple_of(2) {
        n.to_be_bytes().to_vec()
    } else {
        [&n.to_be_bytes()[..], b" and more"].concat()
    }
}

#[test]
fn an_aborted_insert_leaves_nothing() {
    let w = World::new(0, Reuse::AtOnce);
    for _ in 0..3 {
        let mut t = w.begin(0);
        let numbers: Vec<u64> = (0..20).map(|n| w.insert(&mut t, n).expect("memory").no).collect();
        assert_eq!(w.find(7).len(), 1);
        t.abort();
        assert_eq!((w.table.dead_entries(), w.primary().index.len()), (20, 0), "entries go at once");
        assert!(w.find(7).is_empty());
        assert_eq!(w.sweep(), 20);
        for no in numbers {
            assert_eq!(w.table.record(no).unwrap().state.load(Ordering::SeqCst), REC_FREE);
        }
        assert_eq!(w.table.dead.load(Ordering::SeqCst), 0);
        // Present pins are larger than the clock was when the records were freed.
        w.e.tick();
        w.e.refresh_min_pin(&w.p);
        assert_eq!(w.table.len(), 20, "numbers are used again");
    }
    w.end();
}

#[test]
fn a_deleted_row_is_found_by_those_who_may_see_it() {
    let w = World::new(0, Reuse::AtOnce);
    let mut t = w.begin(0);
    let r = w.insert(&mut t, 1).expect("memory");
    w.commit(&mut t);
    let mut old = Txn::new(w.e, 1);
    old.begin(Level::Snapshot, 9);
    let at = w.e.now();
    let mut t = w.begin(0);
    w.delete(&mut t, r, 1);
    w.commit(&mut t);
    assert_eq!(w.sweep(), 0, "a pin holds it");
    assert_eq!(w.find(1), [r.no]);
    assert!(old.read_snapshot(&w.p, r, Seen::prefix(at)).expect("a read").is_some());
    old.abort();
    assert_eq!(w.sweep(), 1);
    assert!(w.find(1).is_empty() && w.primary().index.is_empty());
    assert_eq!(r.rec.state.load(Ordering::SeqCst), REC_FREE);
    w.end();
}

/// They are enqueued together, table by table, and removed by leaves.
#[test]
fn many_deletes_of_two_tables_in_one_transaction_are_all_swept() {
    for (reuse, step) in [(Reuse::Vacuum, 2), (Reuse::AtOnce, 2), (Reuse::Vacuum, 1)] {
        let w = World::new(0, reuse);
        let tables = [w.table, new_table(&w.e, 0, reuse)];
        let mut t = w.begin(0);
        let of = |n: u64| tables[(n / 7 % 2) as usize];
        let rows: Vec<_> =
            (0..300).map(|n| (n * step, w.insert_into(&mut t, of(n), n * step).expect("memory"))).collect();
        w.commit(&mut t);
        let stay = |i: usize| i % 5 == 0;
        let mut t = w.begin(0);
        rows.iter().enumerate().filter(|(i, _)| !stay(*i)).for_each(|(_, (n, r))| w.delete(&mut t, *r, *n));
        w.commit(&mut t);
        assert_eq!(tables.map(Table::dead_entries).iter().sum::<u64>(), 240);
        w.e.tick();
        let mut t = w.begin(0);
        w.e.refresh_min_pin(&w.p);
        for table in tables {
            while t.sweep(&w.p, table, 100) > 0 {}
            assert_eq!(table.dead_entries(), 0);
        }
        for (i, (n, r)) in rows.iter().enumerate() {
            let mut found = Vec::new();
            r.table.primary().expect("an index").index.get(&w.p, &key(*n), &mut found);
            assert_eq!(found, if stay(i) { vec![r.no] } else { vec![] }, "row {i}");
            assert!(stay(i) || r.rec.next_free.load(Ordering::SeqCst) == 0 || reuse == Reuse::AtOnce);
        }
        w.commit(&mut t);
        // SAFETY: INV-TABLE: there are no other users.
        unsafe { tables[1].destroy(&w.e, 0) };
        w.end();
    }
}

#[test]
fn a_locked_record_stays_until_it_is_released() {
    let w = World::new(0, Reuse::AtOnce);
    let mut t = w.begin(0);
    let r = w.insert(&mut t, 1).expect("memory");
    w.commit(&mut t);
    let mut t = w.begin(0);
    w.delete(&mut t, r, 1);
    w.commit(&mut t);
    w.e.tick();
    let mut other = w.begin(1);
    other.lock_record(&w.p, r, crate::lock::Mode::Share, crate::txn::How::Wait, true).expect("a lock");
    assert_eq!((w.sweep(), w.table.dead_entries()), (0, 1));
    other.abort();
    assert_eq!((w.sweep(), w.table.dead_entries()), (1, 0));
    w.end();
}

#[test]
fn undone_and_superseded_inserts_vanish_too() {
    let w = World::new(0, Reuse::AtOnce);
    let mut t = w.begin(0);
    let kept = w.insert(&mut t, 1).expect("memory");
    t.set_depth(2);
    w.insert(&mut t, 2).expect("memory");
    t.abort_sub(2);
    let gone = w.insert(&mut t, 3).expect("memory");
    let tombstone = t.new_tombstone(Successor { record: 0 }, Some(&key(3))).expect("memory");
    t.delete(gone, None, tombstone, 1, 0);
    w.commit(&mut t);
    // An insert removes entries that are dead before it.
    w.sweep();
    assert_eq!((w.table.dead_entries(), w.primary().index.len()), (0, 1));
    assert_eq!((w.find(1), w.find(2), w.find(3)), (vec![kept.no], vec![], vec![]));
    w.end();
}

#[test]
fn vacuum_waits_for_the_entry_where_other_indexes_remain() {
    // If the platform compares the keys, the entry of an undone insert is searched for later.
    for order in [0, 1] {
        let w = World::new(order, Reuse::Vacuum);
        let mut t = w.begin(0);
        let (undone, deleted) = (w.insert(&mut t, 1).expect("memory"), w.insert(&mut t, 2).expect("memory"));
        t.abort();
        assert_eq!(w.table.is_indexed(undone.no), order == 1);
        assert_eq!(w.primary().index.len(), 2 * order as u64);
        assert!(w.table.is_dead(undone.rec, 0));
        assert_eq!(w.sweep(), 2 * order as usize);
        assert!(!w.table.is_indexed(undone.no) && w.primary().index.is_empty());
        assert_eq!(undone.rec.state.load(Ordering::SeqCst), REC_DEAD, "VACUUM gives it back");
        w.table.give_back(deleted.no, w.e.now());

        let mut t = w.begin(0);
        let r = w.insert(&mut t, 3).expect("memory");
        w.commit(&mut t);
        let mut t = w.begin(0);
        w.delete(&mut t, r, 3);
        w.commit(&mut t);
        assert!(w.table.is_indexed(r.no) && w.find(3) == [r.no]);
        assert_eq!((w.sweep(), w.table.is_indexed(r.no), w.table.dead_entries()), (1, false, 0));
        assert!(w.primary().index.is_empty());
        w.end();
    }
}

/// Without room to retire memory, an abort marks the records whose entries it cannot remove. There
/// is room in any case for the memory that it retires.
#[test]
fn an_abort_without_room_leaves_marks() {
    let w = World::new(0, Reuse::Vacuum);
    let mut marked = 0;
    for round in 0..40u64 {
        let mut t = w.begin(0);
        let n = 100 + 13 * round;
        for k in 0..n {
            w.insert(&mut t, 2 * k + 1).expect("memory");
        }
        // Retired memory of other users takes the room that is left.
        let left = RetireQueue::room(&w.e, 0) - (n + 8);
        for _ in 0..left {
            let memory = w.e.region.alloc(0, 64).expect("memory");
            RetireQueue::push(&w.e, 0, memory, w.e.now());
        }
        t.abort();
        marked += w.table.dead_entries();
        assert_eq!(w.table.dead_entries(), w.primary().index.len(), "each entry that is left is of a marked record");
        assert_eq!(w.sweep() as u64 + w.primary().index.len(), n.min(w.sweep() as u64 + n));
        assert_eq!((w.table.dead_entries(), w.primary().index.len()), (0, 0));
        for no in 0..w.table.len() {
            if w.table.record(no).is_some_and(|r| r.state.load(Ordering::SeqCst) == REC_DEAD) {
                w.table.give_back(no, w.e.now());
            }
        }
        w.e.tick();
        w.e.refresh_min_pin(&w.p);
    }
    assert!(marked > 1000, "{marked} marks: the test is about nothing");
    w.end();
}

#[test]
fn nothing_grows_under_churn() {
    for window in [1, 50] {
        let w = World::new(0, Reuse::AtOnce);
        let mut rows = std::collections::VecDeque::new();
        let mut bytes = 0;
        for n in 0..5000u64 {
            let mut t = w.begin(0);
            rows.push_back((w.insert(&mut t, n).expect("memory"), n));
            if rows.len() > window {
                let (r, n) = rows.pop_front().unwrap();
                w.delete(&mut t, r, n);
            }
            if n % 7 == 3 {
                // The insert of another transaction is aborted.
                let mut other = w.begin(1);
                w.insert(&mut other, n + 1_000_000).expect("memory");
                other.abort();
            }
            w.commit(&mut t);
            if n == 1000 {
                bytes = w.primary().bytes();
            }
        }
        assert!(w.table.len() < 400, "{} numbers for {window} rows", w.table.len());
        assert!(w.primary().bytes() <= 2 * bytes, "{bytes} became {}", w.primary().bytes());
        assert!(w.table.dead_entries() < 200, "{} dead entries", w.table.dead_entries());
        w.end();
    }
}

#[test]
fn comparisons_that_unwind_lose_nothing() {
    let w = World::new(1, Reuse::AtOnce);
    let mut unwound = [0; 2];
    for n in 0..400u64 {
        let mut t = w.begin(0);
        w.p.fuse.set((n % 23) as u32);
        let done = catch_unwind(AssertUnwindSafe(|| w.insert(&mut t, n % 40)));
        unwound[0] += u32::from(done.is_err());
        w.p.fuse.set(0);
        match done {
            Ok(_) if n.is_multiple_of(3) => w.commit(&mut t),
            _ => t.abort(),
        }
        w.p.fuse.set((n % 5) as u32);
        w.e.tick();
        let mut t = w.begin(0);
        let done = catch_unwind(AssertUnwindSafe(|| {
            t.sweep(&w.p, w.table, 1).max(t.purge_marked(&w.p, w.table).expect("memory"))
        }));
        unwound[1] += u32::from(done.is_err());
        w.p.fuse.set(0);
        t.abort();
    }
    assert!(unwound.iter().all(|n| *n > 20), "{unwound:?}");
    w.sweep();
    assert_eq!(w.table.dead_entries(), 0);
    let rows = w.table.rows();
    assert_eq!(w.primary().index.len(), rows);
    w.e.pin(2);
    let mut c = w.primary().index.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    let mut n = 0;
    while let Some((_, no)) = c.next(&w.p) {
        assert!(!w.table.record(no).unwrap().head().is_null());
        n += 1;
    }
    w.e.unpin(2);
    assert_eq!(n, rows);
    w.end();
}

#[test]
fn an_index_of_a_table_with_dead_rows_takes_them_over() {
    let w = World::new(0, Reuse::Vacuum);
    let mut t = w.begin(0);
    let rows: Vec<RecordRef> = (0..5).map(|n| w.insert(&mut t, n).expect("memory")).collect();
    w.commit(&mut t);
    let mut t = w.begin(0);
    w.delete(&mut t, rows[0], 0);
    w.commit(&mut t);
    let mut t = w.begin(0);
    w.insert(&mut t, 9).expect("memory");
    t.abort();
    // SAFETY: INV-TABLE: there are no other users of the table.
    unsafe { w.table.drop_unique(&w.e, 0, 0) };
    let primary = w.table.create_primary(&w.e, 0, 0, Reuse::AtOnce).expect("memory");
    assert_eq!(w.table.dead_entries(), 2);
    w.e.pin(0);
    for r in &rows[1..] {
        primary.enter(&w.e, 0, &w.p, r.no, &key(r.no), None).expect("memory");
    }
    w.e.unpin(0);
    assert_eq!((w.sweep(), primary.index.len()), (2, 4));
    // SAFETY: INV-TABLE: there are no other users of the table.
    unsafe { w.table.clear(&w.e, 0) };
    assert_eq!((primary.index.len(), w.table.dead_entries()), (0, 0));
    let mut t = w.begin(0);
    w.insert(&mut t, 3).expect("memory");
    w.commit(&mut t);
    assert_eq!(w.find(3).len(), 1);
    w.end();
}

/// A transaction that excludes all others gives the table another index, and then a third one. No
/// entry is missing, however the two changes end.
#[test]
fn an_index_is_replaced_or_comes_back() {
    for (keeps_first, keeps_second) in [(false, false), (true, false), (true, true)] {
        let w = World::new(0, Reuse::Vacuum);
        let mut t = w.begin(0);
        let rows: Vec<RecordRef> = (0..600).map(|n| w.insert(&mut t, n).expect("memory")).collect();
        w.commit(&mut t);
        let mut t = w.begin(0);
        let before = w.insert(&mut t, 700).expect("memory");
        let of = |key_of: &dyn Fn(u64) -> u64, from: usize, extra: &[RecordRef]| {
            let new = Primary::create(&w.e, 0, 0, Reuse::Vacuum, b"other").expect("memory");
            for r in rows[from..].iter().chain([&before]).chain(extra) {
                new.enter(&w.e, 0, &w.p, r.no, &key(key_of(r.no)), None).expect("memory");
            }
            new
        };
        let second = of(&|no| 10_000 - no, 0, &[]);
        t.make_room(8).expect("memory");
        let first = w.table.replace_unique(0, Some(second)).expect("the first");
        // More records than the first index knows, undone inserts, and deletes.
        let new: Vec<RecordRef> = (0..700).map(|n| w.insert(&mut t, 20_000 + n).expect("memory")).collect();
        (0..300).for_each(|n| w.delete(&mut t, rows[n], 10_000 - n as u64));
        t.set_depth(2);
        let third = of(&|no| 30_000 + no, 300, &new);
        assert!(w.table.replace_unique(0, Some(third)).is_some_and(|i| std::ptr::eq(i, second)));
        for n in 0..50 {
            w.insert(&mut t, 40_000 + n).expect("memory");
        }
        (300..400).for_each(|n| w.delete(&mut t, rows[n], 30_000 + n as u64));
        assert_eq!(t.sweep(&w.p, w.table, 100), 0, "nothing is swept while a change can be undone");
        // SAFETY: INV-TABLE: there are no other users of the table.
        unsafe {
            if keeps_second {
                t.commit_sub(2);
            } else {
                t.abort_sub(2);
                w.table.restore_unique(&w.e, 0, 0, Some(second));
            }
            if keeps_first {
                w.commit(&mut t);
                if keeps_second {
                    w.table.keep_unique(&w.e, 0, Some(second));
                }
                w.table.keep_unique(&w.e, 0, Some(first));
            } else {
                t.abort();
                w.table.restore_unique(&w.e, 0, 0, Some(first));
            }
        }
        let (kept, left) = match (keeps_first, keeps_second) {
            (false, _) => (first, 600),
            (true, false) => (second, 600 - 300 + 1 + 700),
            (true, true) => (third, 600 - 400 + 1 + 700 + 50),
        };
        assert!(std::ptr::eq(w.primary(), kept));
        w.sweep();
        assert_eq!((w.primary().index.len(), w.table.dead_entries()), (left, 0));
        assert_eq!(w.find(10).len() + w.find(590).len(), if keeps_first { 0 } else { 2 });
        assert!((0..w.table.len()).all(|no| !w.table.is_indexed(no)));
        w.end();
    }
}
