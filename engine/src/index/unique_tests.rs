//! Of two inserts of one key one finds the other, in each index of a table. Nodes have 6 entries
//! here, so that the entries of a key lie in several leaves.

use crate::csn::{Csn, SlotId};
use crate::error::{AbortReason, Error};
use crate::faults::{self, Fault, Moment};
use crate::index::tests::{check_tree, set_races};
use crate::index::{Primary, Reuse, Unique};
use crate::lock::Mode;
use crate::platform::Platform;
use crate::primitive::Ordering;
use crate::record::{Keys, Successor, Version, INDEXES};
use crate::retire::RetireQueue;
use crate::threads::{Block, Threads, Waits};
use crate::txn::{Entered, How, Rival};
use crate::{Engine, Level, Policy, Protocol, ProtocolSet, RecordRef, Table, Txn};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SLOTS: u16 = 6;

struct World {
    e: Engine,
    table: &'static Table,
    /// The number of the table's indexes.
    indexes: usize,
    waits: Arc<Waits>,
    /// Ids of transactions.
    last_id: AtomicU32,
    live_before: usize,
    _block: Block,
}

fn live(e: &Engine) -> usize {
    e.region.usage().classes.iter().map(|c| c.live).sum()
}

/// A key of the number: short, or long with first bytes that others have too.
fn key(n: u64) -> Vec<u8> {
    match n % 3 {
        0 => n.to_be_bytes().to_vec(),
        1 => [b"one pref", &n.to_be_bytes()[..]].concat(),
        _ => [&n.to_be_bytes()[..], &[b'x'; 40]].concat(),
    }
}

/// Rows of a table with several indexes have a number for each, and are one number together.
const PART: u32 = 8;

/// The number of a row in an index.
fn part(row: u64, nth: usize) -> u64 {
    row >> (PART * nth as u32) & ((1 << PART) - 1)
}

/// The same row with another number in an index.
fn with_part(row: u64, nth: usize, n: u64) -> u64 {
    row & !(((1 << PART) - 1) << (PART * nth as u32)) | n << (PART * nth as u32)
}

/// The key of a row in an index.
fn key_in(row: u64, nth: usize, indexes: usize) -> Vec<u8> {
    key(if indexes == 1 { row } else { part(row, nth) })
}

impl World {
    fn new(set: ProtocolSet, order: u32, reuse: Reuse, size: usize) -> World {
        World::with(set, &[order], reuse, size)
    }
    /// With an index of each of these orders.
    fn with(set: ProtocolSet, orders: &[u32], reuse: Reuse, size: usize) -> World {
        let block = Block::new(size, SLOTS as usize).expect("a block");
        let e = block.engine;
        let live_before = live(&e);
        let map = Table::new_map(&e, 0, 1, 0, b"", set, Policy::Wait).expect("a map");
        let table = Table::create(&e, 0, [1; 4], map).expect("a table");
        for (nth, &order) in orders.iter().enumerate() {
            table.set_unique(nth, Primary::create(&e, 0, order, reuse, b"keys").expect("an index"));
        }
        let (indexes, last_id) = (orders.len(), AtomicU32::new(1));
        World { e, table, indexes, waits: Arc::default(), last_id, live_before, _block: block }
    }
    fn small() -> World {
        World::new(ProtocolSet::of(Protocol::Occ), 0, Reuse::AtOnce, 16 << 20)
    }
    fn platform(&self, slot: SlotId) -> Threads {
        Threads::new(self.e, slot, self.waits.clone())
    }
    fn client(&self, slot: SlotId) -> Client {
        let (t, p) = (Txn::new(self.e, slot), self.platform(slot));
        Client { table: self.table, indexes: self.indexes, t, p, id: 0 }
    }
    fn begin(&self, slot: SlotId, level: Level) -> Client {
        let mut c = self.client(slot);
        c.begin(level, self.id());
        c
    }
    fn id(&self) -> u32 {
        self.last_id.fetch_add(1, Ordering::SeqCst) + 1
    }
    fn primary(&self) -> &'static Primary {
        self.table.primary().expect("an index")
    }
    fn find(&self, n: u64) -> Vec<u64> {
        let mut found = Vec::new();
        self.e.pin(SLOTS - 1);
        self.primary().index.get(&self.platform(SLOTS - 1), &key(n), &mut found);
        self.e.unpin(SLOTS - 1);
        found
    }
    /// A row that was inserted and deleted, whose entry is there as long as a pin is.
    fn dead_row(&self, n: u64) -> u64 {
        let mut c = self.begin(0, Level::Snapshot);
        let r = c.insert(n).expect("memory");
        assert!(matches!(c.enter(r, n), Ok(Entered::Free)));
        c.commit().expect("a commit");
        c.begin(Level::Snapshot, self.id());
        c.delete(r, n).expect("a lock");
        c.commit().expect("a commit");
        r.no
    }
    fn end(self) {
        for slot in 0..SLOTS {
            let min = self.e.tick();
            RetireQueue::drain(&self.e, slot, min, usize::MAX);
            RetireQueue::free_all(&self.e, slot);
        }
        // SAFETY: INV-TABLE: all other users have ended.
        unsafe { self.table.destroy(&self.e, 0) };
        assert_eq!(live(&self.e), self.live_before, "memory is left");
    }
}

/// A session and its transaction.
struct Client {
    table: &'static Table,
    indexes: usize,
    t: Txn,
    p: Threads,
    id: u32,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.t.abort(); // a test that fails must not leave the other threads waiting
    }
}

impl Client {
    fn begin(&mut self, level: Level, id: u32) {
        self.id = id;
        self.t.begin(level, id as u64);
    }
    /// Inserts a row whose payload is the number, without an entry.
    fn insert(&mut self, n: u64) -> Result<RecordRef, Error> {
        let v = self.t.new_version(0, size_of::<u64>(), 0)?;
        // SAFETY: INV-VERSION: a fresh version with 8 bytes of payload, not yet linked.
        unsafe { Version::payload(v.as_ptr()).cast::<u64>().write_unaligned(n) };
        self.t.insert(&self.p, self.table, [0, 0], v, 0, self.id).inspect_err(|_| self.t.discard(v))
    }
    /// Enters a row in all indexes in which it has no entry, up to a rival.
    fn enter(&mut self, r: RecordRef, n: u64) -> Result<Entered, Error> {
        for nth in self.next_index(r).unwrap_or(self.indexes)..self.indexes {
            let key = key_in(n, nth, self.indexes);
            match self.t.enter_in(&self.p, r, nth, &key, Unique::Check)? {
                Entered::Free => {}
                taken => return Ok(taken),
            }
        }
        Ok(Entered::Free)
    }
    /// The first index in which a row has no entry yet.
    fn next_index(&self, r: RecordRef) -> Option<usize> {
        (0..self.indexes).find(|nth| !self.t.has_entry(r, *nth))
    }
    /// Inserts a row with its entry, if its key is free. Otherwise the row is undone.
    fn try_insert(&mut self, n: u64) -> Result<Option<Rival>, Error> {
        let r = self.insert(n)?;
        match self.enter(r, n)? {
            Entered::Free => Ok(None),
            Entered::Taken(rival) => {
                assert!(self.t.undo_insert(r));
                Ok(Some(rival))
            }
        }
    }
    /// Deletes a row. False: it has no row with this key any more.
    fn delete(&mut self, r: RecordRef, n: u64) -> Result<bool, Error> {
        let id = self.id;
        if let Some(w) = self.t.last_write(r).and_then(|n| self.t.write(n)) {
            let tombstone = self.t.new_tombstone(Successor { record: 0 }, None)?;
            assert!(w.base.is_none(), "an own insert");
            self.t.delete(r, None, tombstone, 1, 0);
            return Ok(true);
        }
        let newest = self.t.lock_for_write(&self.p, r, Mode::Update, How::Wait, true)?;
        let row = newest.filter(|(v, _)| {
            // SAFETY: INV-RETIRE: versions reached under our pin. All but tombstones have 8 bytes.
            unsafe { !v.as_ref().is_tombstone() && Version::payload(v.as_ptr()).cast::<u64>().read_unaligned() == n }
        });
        let Some((base, _)) = row else { return Ok(false) };
        let all: Vec<Vec<u8>> = (0..self.indexes).map(|nth| key_in(n, nth, self.indexes)).collect();
        let mut keys = Keys::default();
        all.iter().zip(&mut keys.0).for_each(|(key, to)| *to = Some(key));
        let tombstone = self.t.new_tombstone_of(Successor { record: 0 }, &keys)?;
        self.t.delete(r, Some(base), tombstone, 1, id);
        Ok(true)
    }
    fn commit(&mut self) -> Result<Csn, Error> {
        let csn = Cell::new(0);
        self.t.prepare(&self.p, &|_, at| csn.set(at))?;
        self.t.publish(&self.p);
        Ok(csn.get())
    }
    fn abort(&mut self) {
        self.t.abort();
    }
}

#[test]
fn the_later_insert_finds_the_earlier_one() {
    for (order, level) in [(0, Level::Snapshot), (0, Level::Serializable), (1, Level::Snapshot)] {
        let w = World::new(ProtocolSet::of(Protocol::Occ), order, Reuse::AtOnce, 16 << 20);
        for n in 0..3 {
            let (mut a, mut b) = (w.begin(0, level), w.begin(1, level));
            let ra = a.insert(n).expect("memory");
            assert!(matches!(a.enter(ra, n), Ok(Entered::Free)));
            let rb = b.insert(n).expect("memory");
            assert!(
                matches!(b.enter(rb, n), Ok(Entered::Taken(Rival::Coming(r, _, id))) if r.no == ra.no && id == a.id)
            );
            assert_eq!(w.find(n), [ra.no], "it has added nothing");
            a.abort();
            assert!(matches!(b.enter(rb, n), Ok(Entered::Free)));
            assert!(matches!(b.try_insert(n), Ok(Some(Rival::Own(r))) if r.no == rb.no));
            b.commit().expect("a commit");

            a.begin(level, w.id());
            assert!(matches!(a.try_insert(n), Ok(Some(Rival::Row(r, _))) if r.no == rb.no));
            b.begin(level, w.id());
            assert_eq!(b.delete(rb, n), Ok(true));
            assert!(matches!(a.try_insert(n), Ok(Some(Rival::Leaving(r, _, id))) if r.no == rb.no && id == b.id));
            assert!(matches!(b.try_insert(n), Ok(None)), "an own delete is out of the way");
            b.abort();
            assert!(matches!(a.try_insert(n), Ok(Some(Rival::Row(r, _))) if r.no == rb.no));
            a.abort();
            b.begin(level, w.id());
            assert_eq!(b.delete(rb, n), Ok(true));
            b.commit().expect("a commit");
            a.begin(level, w.id());
            assert!(matches!(a.try_insert(n), Ok(None)));
            a.abort();
        }
        w.end();
    }
}

#[test]
fn a_partial_check_adds_the_entry_and_tells() {
    let w = World::small();
    let (mut a, mut b) = (w.begin(0, Level::Snapshot), w.begin(1, Level::Snapshot));
    let (ra, rb) = (a.insert(4).expect("memory"), b.insert(4).expect("memory"));
    assert!(matches!(a.t.enter(&a.p, ra, &key(4), Unique::Partial), Ok(Entered::Free)));
    let told = b.t.enter(&b.p, rb, &key(4), Unique::Partial);
    assert!(matches!(told, Ok(Entered::Taken(Rival::Coming(r, _, id))) if r.no == ra.no && id == a.id));
    assert_eq!(w.find(4).len(), 2);
    assert!(matches!(a.try_insert(4), Ok(Some(Rival::Own(_) | Rival::Coming(..)))));
    assert!(b.t.undo_insert(rb));
    assert_eq!(w.find(4), [ra.no]);
    a.commit().expect("a commit");
    b.commit().expect("a commit");
    w.end();
}

#[test]
fn a_savepoint_brings_back_what_was_deleted() {
    let w = World::small();
    let mut a = w.begin(0, Level::Snapshot);
    let r = a.insert(5).expect("memory");
    assert!(matches!(a.enter(r, 5), Ok(Entered::Free)));
    a.commit().expect("a commit");
    a.begin(Level::Snapshot, w.id());
    a.t.set_depth(2);
    assert_eq!(a.delete(r, 5), Ok(true));
    assert!(matches!(a.try_insert(5), Ok(None)));
    a.t.abort_sub(2);
    assert_eq!(w.find(5), [r.no], "its insert was undone with the delete");
    assert!(matches!(a.try_insert(5), Ok(Some(Rival::Row(at, _))) if at.no == r.no));
    a.commit().expect("a commit");
    w.end();
}

#[test]
fn a_failed_check_is_a_read() {
    let w = World::small();
    let mut a = w.begin(0, Level::Snapshot);
    let r = a.insert(5).expect("memory");
    assert!(matches!(a.enter(r, 5), Ok(Entered::Free)));
    a.commit().expect("a commit");
    let (mut reader, mut other) = (w.begin(0, Level::Serializable), w.begin(1, Level::Snapshot));
    assert!(matches!(reader.try_insert(5), Ok(Some(Rival::Row(..)))));
    assert_eq!(reader.t.remembered_reads(), 1);
    assert_eq!(other.delete(r, 5), Ok(true));
    other.commit().expect("a commit");
    let rc = reader.insert(6).expect("memory");
    assert!(matches!(reader.enter(rc, 6), Ok(Entered::Free)));
    assert!(matches!(reader.commit(), Err(Error::Abort { reason: AbortReason::ReadChanged, .. })));
    reader.abort();
    w.end();
}

/// Two inserts of one key, the second one when the first one has judged the records of the key, of
/// which there are `dead` between theirs. How many of the keys were free.
fn two_inserts(fault: Option<Fault>, dead: u64, n: u64) -> usize {
    let w = World::small();
    w.e.pin(4);
    let a = Rc::new(RefCell::new(w.begin(1, Level::Snapshot)));
    let ra = a.borrow_mut().insert(n).expect("memory");
    let numbers: Vec<u64> = (0..dead).map(|_| w.dead_row(n)).collect();
    assert_eq!(w.find(n), numbers, "a pin keeps the entries");
    let b = Rc::new(RefCell::new(w.begin(2, Level::Snapshot)));
    let rb = b.borrow_mut().insert(n).expect("memory");
    assert!(dead == 0 || ra.no < numbers[0] && rb.no > numbers[dead as usize - 1]);
    let second = Rc::new(Cell::new(None));
    faults::set(fault);
    {
        let (b, second) = (b.clone(), second.clone());
        faults::at(Moment::Judged, move || second.set(Some(b.borrow_mut().enter(rb, n).expect("memory"))));
    }
    let first = a.borrow_mut().enter(ra, n).expect("memory");
    faults::set(None);
    let second = second.take().expect("it was judged");
    let free = [first, second].iter().filter(|e| matches!(e, Entered::Free)).count();
    if fault.is_none() {
        assert!(matches!(second, Entered::Free), "it was the first one to add its entry");
        assert!(matches!(first, Entered::Taken(Rival::Coming(r, ..)) if r.no == rb.no));
    }
    check_tree(&w.primary().index, &w.platform(3));
    a.borrow_mut().abort();
    b.borrow_mut().abort();
    w.e.unpin(4);
    free
}

#[test]
fn an_insert_behind_the_judgement_is_not_missed() {
    for n in 0..3 {
        for dead in [1, 2, 5, 20] {
            assert_eq!(two_inserts(None, dead, n), 1, "{dead} dead rows, key {n}");
            assert_eq!(two_inserts(Some(Fault::VerdictStays), dead, n), 2, "the fault was not found");
        }
    }
}

/// The entries of the two inserts go into different leaves.
#[test]
fn an_insert_into_another_leaf_is_not_missed() {
    for n in 0..3 {
        assert_eq!(two_inserts(Some(Fault::OneLeafCounts), 20, n), 2, "the fault was not found");
    }
}

/// A row dies, or comes back, when it was judged.
#[test]
fn a_verdict_that_forbids_is_one_of_its_moment() {
    let w = World::small();
    w.e.pin(4);
    w.dead_row(7);
    let (mut a, mut b) = (w.begin(1, Level::Snapshot), w.begin(2, Level::Snapshot));
    let ra = a.insert(7).expect("memory");
    assert!(matches!(b.try_insert(7), Ok(None)));
    let b = Rc::new(RefCell::new(b));
    {
        let b = b.clone();
        faults::at(Moment::Judged, move || b.borrow_mut().abort());
    }
    // The entry of the insert that was undone has gone: it is judged again.
    assert!(matches!(a.enter(ra, 7), Ok(Entered::Free)));
    a.abort();
    w.e.unpin(4);
    drop(b);
    w.end();
}

#[test]
fn without_memory_nothing_is_half_done() {
    for unique in [Unique::Check, Unique::Partial] {
        let w = World::new(ProtocolSet::of(Protocol::Occ), 0, Reuse::AtOnce, 4 << 20);
        for round in 0..3 {
            let mut c = w.begin(1, Level::Snapshot);
            let done = (0..).map(|i| 3 * i + 2).try_for_each(|n| {
                let r = c.insert(n)?;
                c.t.enter(&c.p, r, &key(n), unique).map(|e| assert!(matches!(e, Entered::Free)))
            });
            assert_eq!(done, Err(Error::OutOfMemory), "round {round}");
            c.abort();
            for _ in 0..10 {
                w.e.tick();
                c.t.collect(&c.p);
                c.begin(Level::Snapshot, w.id());
                w.e.refresh_min_pin(&c.p);
                let _ = c.t.purge_marked(&c.p, w.table);
                while c.t.sweep(&c.p, w.table, 64) > 0 {}
                c.abort();
            }
            assert_eq!((w.primary().index.len(), w.table.dead_entries()), (0, 0), "round {round}");
        }
        w.end();
    }
}

/// Two transactions insert a row each, which they enter index by index in these orders. Do they
/// wait for each other, whichever keys the rows share, and whoever makes the next step?
fn wait_for_each_other(orders: [[usize; 3]; 2]) -> bool {
    let w = World::with(ProtocolSet::of(Protocol::Occ), &[0; 3], Reuse::AtOnce, 16 << 20);
    let row = |shared: u64| (0..3).fold(0, |row, nth| with_part(row, nth, 1 + (shared >> nth & 1)));
    let mut both = false;
    for (shared, steps) in (0..8).flat_map(|shared| (0..1u32 << 8).map(move |steps| (shared, steps))) {
        let rows = [row(7), row(shared)];
        let mut clients = [0, 1].map(|slot| w.begin(slot, Level::Snapshot));
        let records = [0, 1].map(|i| clients[i].insert(rows[i]).expect("memory"));
        let mut waits = [false; 2];
        for i in (0..8).map(|n| (steps >> n & 1) as usize) {
            let c = &mut clients[i];
            let Some(&nth) = orders[i].iter().find(|nth| !c.t.has_entry(records[i], **nth)) else { continue };
            let key = key_in(rows[i], nth, 3);
            waits[i] = match c.t.enter_in(&c.p, records[i], nth, &key, Unique::Check).expect("memory") {
                Entered::Free => false,
                Entered::Taken(Rival::Coming(r, ..)) => r.no == records[1 - i].no,
                Entered::Taken(rival) => panic!("{rival:?}"),
            };
            both |= waits == [true; 2];
        }
        clients.iter_mut().for_each(Client::abort);
    }
    w.end();
    both
}

#[test]
fn inserts_in_one_order_of_the_indexes_do_not_wait_for_each_other() {
    assert!(!wait_for_each_other([[0, 1, 2]; 2]));
    assert!(!wait_for_each_other([[2, 0, 1]; 2]));
    assert!(wait_for_each_other([[0, 1, 2], [0, 2, 1]]), "other orders would");
}

/// A change of a key's row by a committed transaction, in the order of its operations.
struct Event {
    key: u64,
    csn: Csn,
    nth: usize,
    comes: bool,
}

/// A verdict that a committed row was in the way, between two values of the clock.
struct Verdict {
    key: u64,
    from: Csn,
    to: Csn,
}

#[derive(Default)]
struct History {
    events: Vec<Event>,
    verdicts: Vec<Verdict>,
    waits: u64,
    wrong: Option<String>,
}

impl History {
    fn add(&mut self, other: History) {
        self.events.extend(other.events);
        self.verdicts.extend(other.verdicts);
        self.waits += other.waits;
        self.wrong = self.wrong.take().or(other.wrong);
    }

    /// Had each key one row at most, at any CSN? Was there a row where a verdict says so? Returns
    /// how many rows there are at the end.
    fn judge(&mut self, keys: u64) -> Result<u64, String> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        self.events.sort_by_key(|e| (e.key, e.csn, e.nth));
        let mut left = 0;
        for key in 0..keys {
            let mut rows: Vec<(Csn, Csn)> = Vec::new();
            for e in self.events.iter().filter(|e| e.key == key) {
                let is = rows.last().is_some_and(|(_, end)| *end == Csn::MAX);
                match (e.comes, rows.last_mut()) {
                    (true, _) if !is => rows.push((e.csn, Csn::MAX)),
                    (false, Some(last)) if is => last.1 = e.csn,
                    _ => return Err(format!("key {key} at {}: comes {}, is {is}", e.csn, e.comes)),
                }
            }
            left += u64::from(rows.last().is_some_and(|r| r.1 == Csn::MAX));
            for v in self.verdicts.iter().filter(|v| v.key == key) {
                if !rows.iter().any(|(comes, goes)| *comes <= v.to && *goes > v.from) {
                    return Err(format!("key {key} from {} to {}: no row was in the way", v.from, v.to));
                }
            }
        }
        Ok(left)
    }
}

#[derive(Clone, Copy, Debug)]
struct Load {
    set: ProtocolSet,
    /// Of each index.
    orders: &'static [u32],
    reuse: Reuse,
    /// Of each index.
    keys: u64,
    seed: u64,
    fault: Option<Fault>,
}

/// A thread of the load.
struct Worker<'w> {
    w: &'w World,
    l: Load,
    c: Client,
    random: u64,
    /// What its transaction has done so far: rows that have come and gone.
    done: Vec<(u64, bool)>,
    history: History,
}

impl Worker<'_> {
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) % below
    }

    /// A row.
    fn any_row(&mut self) -> u64 {
        (0..self.w.indexes).fold(0, |row, nth| with_part(row, nth, self.random(self.l.keys)))
    }

    /// The name of a key in the history, which tells of all indexes.
    fn name(&self, row: u64, nth: usize) -> u64 {
        nth as u64 * self.l.keys + part(row, nth)
    }

    /// The rows with a key in an index, dead ones among them.
    fn found(&self, row: u64, nth: usize) -> Vec<RecordRef> {
        let mut found = Vec::new();
        let index = &self.w.table.unique(nth).expect("an index").index;
        index.get(&self.c.p, &key_in(row, nth, self.w.indexes), &mut found);
        found.into_iter().filter_map(|no| RecordRef::find(self.w.table, no)).collect()
    }

    /// Inserts a row, and waits for rivals some time. False: it has given up.
    fn insert(&mut self, row: u64) -> Result<bool, Error> {
        let r = self.c.insert(row)?;
        for i in 0..50 {
            let from = self.w.e.now();
            let rival = match self.c.enter(r, row)? {
                Entered::Free => {
                    self.done.push((row, true));
                    return Ok(true);
                }
                Entered::Taken(rival) => rival,
            };
            let nth = self.c.next_index(r).expect("it has stopped at an index");
            match rival {
                Rival::Own(own) => {
                    let is_same = |other: u64| part(other, nth) == part(row, nth);
                    let is = self.done.iter().rfind(|(other, _)| is_same(*other)).is_some_and(|(_, comes)| *comes);
                    if !is {
                        self.history.wrong = Some(format!("record {} is no own row of {row}", own.no));
                    }
                    break;
                }
                Rival::Row(..) => {
                    let key = self.name(row, nth);
                    self.history.verdicts.push(Verdict { key, from, to: self.w.e.now() });
                    break;
                }
                Rival::Leaving(_, _, id) | Rival::Coming(_, _, id) => {
                    assert!(id != 0 && id != self.c.id);
                    self.history.waits += 1;
                    self.c.p.pause(i * 8)?;
                }
            }
        }
        assert!(self.c.t.undo_insert(r));
        Ok(false)
    }

    /// Deletes the row that has the same key in an index. Which one it was.
    fn delete(&mut self, row: u64, nth: usize) -> Result<Option<u64>, Error> {
        for r in self.found(row, nth) {
            let version = match self.c.t.last_write(r).and_then(|n| self.c.t.write(n)) {
                Some(w) => (w.kind != crate::txn::WriteKind::Delete).then_some(w.version),
                None => match self.c.t.present(&self.c.p, r)? {
                    Some(crate::txn::Present::Row(v, ..)) => Some(v),
                    _ => None,
                },
            };
            let Some(version) = version else { continue };
            // SAFETY: INV-RETIRE: a version with a row, reached under our pin. It has 8 bytes.
            let there = unsafe { Version::payload(version.as_ptr()).cast::<u64>().read_unaligned() };
            if part(there, nth) != part(row, nth) {
                self.history.wrong = Some(format!("the row {there} is found by a key of {row} in index {nth}"));
            }
            if self.c.delete(r, there)? {
                self.done.push((there, false));
                return Ok(Some(there));
            }
        }
        Ok(None)
    }

    fn step(&mut self) -> Result<(), Error> {
        let (row, nth) = (self.any_row(), self.random(self.w.indexes as u64) as usize);
        match self.random(10) {
            0..=4 => self.insert(row).map(drop),
            5..=7 => self.delete(row, nth).map(drop),
            // A row moves: deleted and inserted by one statement. One of its keys changes, or none.
            _ => {
                if let Some(there) = self.delete(row, nth)? {
                    let other = self.random(self.w.indexes as u64) as usize;
                    let n = self.random(self.l.keys);
                    let stays = self.random(2) == 0;
                    self.insert(if stays { there } else { with_part(there, other, n) })?;
                }
                Ok(())
            }
        }
    }

    fn transaction(&mut self) -> Result<(), Error> {
        for _ in 0..1 + self.random(4) {
            if self.random(4) > 0 {
                self.step()?;
                continue;
            }
            let before = self.done.len();
            self.c.t.set_depth(2);
            let done = self.step().and_then(|()| self.step());
            if done.is_err() || self.random(2) == 0 {
                self.c.t.abort_sub(2);
                self.done.truncate(before);
                done?;
            } else {
                self.c.t.commit_sub(2);
            }
        }
        if self.random(5) == 0 {
            return Err(Error::Injected);
        }
        let csn = self.c.commit()?;
        for (nth, (row, comes)) in std::mem::take(&mut self.done).into_iter().enumerate() {
            let event = |index| Event { key: self.name(row, index), csn, nth, comes };
            let events: Vec<Event> = (0..self.w.indexes).map(event).collect();
            self.history.events.extend(events);
        }
        Ok(())
    }

    fn run(&mut self, rounds: u64, deadline: Instant) {
        let level = if self.random(2) == 0 { Level::Snapshot } else { Level::Serializable };
        for _ in 0..rounds {
            if Instant::now() > deadline {
                break;
            }
            let id = self.w.id();
            self.c.begin(level, id);
            match self.transaction() {
                Ok(()) => {}
                Err(Error::Injected | Error::Abort { .. } | Error::Deadlock) => self.c.abort(),
                Err(e) => panic!("{:?}: {e:?}", self.l),
            }
            self.done.clear();
        }
    }
}

/// Threads insert, delete and undo rows of few keys. Returns the first error of the history.
fn churn(l: Load) -> Result<History, String> {
    let w = World::with(l.set, l.orders, l.reuse, 32 << 20);
    let deadline = Instant::now() + Duration::from_secs(20);
    let work = |slot: SlotId| {
        faults::set(l.fault);
        set_races(6, slot as u32 + l.seed as u32);
        let random = 88_172_645_463_325_252 ^ (slot as u64) << 20 ^ l.seed << 40;
        let (c, done) = (w.client(slot), Vec::new());
        let mut worker = Worker { w: &w, l, c, random, done, history: History::default() };
        worker.run(1500 / w.indexes as u64, deadline);
        set_races(0, 1);
        faults::set(None);
        std::mem::take(&mut worker.history)
    };
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut history = History::default();
    std::thread::scope(|s| {
        let (work, w, stop) = (&work, &w, &stop);
        // A reader that is pinned for a while keeps the entries of dead rows.
        let reader = s.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                w.e.pin(4);
                std::thread::sleep(Duration::from_millis(3));
                w.e.unpin(4);
            }
        });
        let threads: Vec<_> = (0..4).map(|slot| s.spawn(move || work(slot))).collect();
        let ends: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        stop.store(true, Ordering::Relaxed);
        reader.join().expect("a thread");
        ends.into_iter().for_each(|h| history.add(h.unwrap_or_else(|p| std::panic::resume_unwind(p))));
    });
    let left = history.judge(l.keys * w.indexes as u64)? / w.indexes as u64;
    if left != w.table.rows() {
        return Err(format!("{left} rows by the history, {} in the table", w.table.rows()));
    }
    let mut c = w.client(0);
    w.e.tick(); // Behind all commits so far.
    c.begin(Level::Snapshot, w.id());
    w.e.refresh_min_pin(&c.p);
    c.t.purge_marked(&c.p, w.table).expect("memory");
    while c.t.sweep(&c.p, w.table, 64) > 0 {}
    c.abort();
    drop(c);
    for (nth, index) in w.table.uniques() {
        check_tree(&index.index, &w.platform(0));
        if index.index.len() != left {
            return Err(format!("{} entries of {left} rows in index {nth}", index.index.len()));
        }
    }
    w.end();
    Ok(history)
}

/// One index, and two of the same or different orders.
const ONE: [(&[u32], Reuse); 3] = [(&[0], Reuse::AtOnce), (&[1], Reuse::AtOnce), (&[0], Reuse::Vacuum)];
const SEVERAL: [(&[u32], Reuse); 4] =
    [(&[0, 0], Reuse::AtOnce), (&[0, 1], Reuse::AtOnce), (&[1, 0], Reuse::Vacuum), (&[0; INDEXES], Reuse::AtOnce)];

#[test]
fn a_key_has_one_row_at_a_time() {
    let sets = [Protocol::Occ, Protocol::TwoPhase, Protocol::PartCc].map(ProtocolSet::of);
    for (i, set) in sets.into_iter().enumerate() {
        let several = SEVERAL.into_iter().take(if i == 0 { SEVERAL.len() } else { 1 });
        for (orders, reuse) in ONE.into_iter().chain(several) {
            let l = Load { set, orders, reuse, keys: 6, seed: 7 + i as u64, fault: None };
            let h = churn(l).unwrap_or_else(|e| panic!("{l:?}: {e}"));
            assert!(h.events.len() > 300 && !h.verdicts.is_empty(), "{l:?}: {} events", h.events.len());
        }
    }
}

/// Shows that the test above finds the errors.
#[test]
fn unique_checks_that_miss_a_row_are_found() {
    for fault in [Fault::VerdictStays, Fault::OneLeafCounts] {
        let l = |seed| Load {
            set: ProtocolSet::of(Protocol::Occ),
            orders: &[0],
            reuse: Reuse::AtOnce,
            keys: 1,
            seed,
            fault: Some(fault),
        };
        assert!((0..20).any(|seed| churn(l(seed)).is_err()), "{fault:?} was not found");
    }
}

/// The same for entries that stay in one of several indexes.
#[test]
fn entries_that_stay_in_an_index_are_found() {
    for fault in [Fault::SweepsOneIndex, Fault::UndoesOneEntry] {
        let (set, orders, reuse) = (ProtocolSet::of(Protocol::Occ), &[0, 0], Reuse::AtOnce);
        let l = |seed| Load { set, orders, reuse, keys: 6, seed, fault: Some(fault) };
        assert!((0..3).any(|seed| churn(l(seed)).is_err()), "{fault:?} was not found");
    }
}
