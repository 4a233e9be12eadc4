//! A table with an index, as an SQL engine would keep them, and the platform of the tests.

use crate::spans::DOWNWARDS;
use mixedcc_engine::checker::{Key, Seen};
use mixedcc_engine::csn::{Csn, SlotId};
use mixedcc_engine::open;
use mixedcc_engine::platform::{Napped, Platform, Queue, StopEvent, WaitFor};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::record::{Version, REC_VACUUM};
use mixedcc_engine::retire::RetireQueue;
use mixedcc_engine::threads::{Block, Threads, Waits};
use mixedcc_engine::{Engine, Error, Level, Policy, ProtocolSet, RecordRef, Table, Txn};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

/// Partitions of the table.
pub const PARTITIONS: u32 = 4;
/// Keys of a partition: `partition * WIDTH ..`.
pub const WIDTH: i64 = 1000;
/// Keys of a partition that clients share; half of them exist at the start.
pub const SHARED: i64 = 6;

/// A condition of a scan is the bound of its keys; from here on: the least value of its rows.
pub const VALUE: u32 = 1 << 20;

/// The payload of a version.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub key: i64,
    /// Id of the writer in the recorded history, 0 at the start.
    pub txn: u64,
    /// Which write of this key by that transaction.
    pub nth: u64,
    pub value: i64,
}

impl Row {
    pub fn read(v: NonNull<Version>) -> Row {
        // SAFETY: all versions but tombstones of these tests have a `Row` as payload, and the
        // reader is pinned.
        unsafe {
            assert_eq!(v.as_ref().len as usize, std::mem::size_of::<Row>(), "a version that was freed");
            Version::payload(v.as_ptr()).cast::<Row>().read_unaligned()
        }
    }
    pub fn seen(self) -> Seen {
        if self.txn == 0 {
            Seen::Initial
        } else {
            Seen::Version { txn: self.txn, nth: Some(self.nth as u32) }
        }
    }
}

/// A small generator: tests must be repeatable from a printed seed.
pub struct Rng(u64);
impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }
}

/// Threads, with yields at stop events and before reads, so that two cores interleave well.
pub struct Jitter {
    pub threads: Threads,
    rng: Cell<u64>,
    /// Percent of stop events at which the core is given away.
    pub yields: Cell<u64>,
    /// Unwind at this event or call, once.
    pub panic_at: Cell<Option<PanicAt>>,
    /// How it sleeps for other transactions, if not in short naps.
    pub sleeps: RefCell<Option<Box<dyn Fn(WaitFor)>>>,
    /// Must its statements not sleep for locks?
    pub hurries: Cell<bool>,
    /// The step of its last short wait.
    pub paused: Cell<u32>,
}

/// Where a platform call unwinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanicAt {
    Event(StopEvent),
    Compare,
    WaitFor,
    StandBack,
    Pause,
    EnterQueue,
}

impl Jitter {
    pub fn new(w: &World, slot: SlotId, seed: u64) -> Jitter {
        Self::of(w.e, w.waits.clone(), slot, seed)
    }
    pub fn of(e: Engine, waits: Arc<Waits>, slot: SlotId, seed: u64) -> Jitter {
        Jitter {
            threads: Threads::new(e, slot, waits),
            rng: Cell::new(seed | 1),
            yields: Cell::new(0),
            panic_at: Cell::new(None),
            sleeps: RefCell::default(),
            hurries: Cell::new(false),
            paused: Cell::new(0),
        }
    }
    fn panic_if(&self, at: PanicAt) {
        if self.panic_at.get() == Some(at) {
            self.panic_at.set(None);
            std::panic::panic_any(at);
        }
    }
    pub fn jitter(&self) {
        let mut r = Rng(self.rng.get());
        let percent = self.yields.get();
        if percent > 0 && r.percent(percent) {
            std::thread::yield_now();
        }
        self.rng.set(r.0);
    }
}

impl Platform for Jitter {
    fn wait_for(&self, who: WaitFor) -> Result<(), Error> {
        self.panic_if(PanicAt::WaitFor);
        if let Some(sleeps) = &*self.sleeps.borrow() {
            sleeps(who);
            return Ok(());
        }
        self.threads.wait_for(who)
    }
    fn enter_queue(&self, q: Queue) -> Result<(), Error> {
        self.panic_if(PanicAt::EnterQueue);
        self.threads.enter_queue(q)
    }
    fn may_sleep(&self, _: Queue) -> bool {
        !self.hurries.get()
    }
    fn leave_queue(&self, q: Queue) {
        self.threads.leave_queue(q);
    }
    fn stand_back(&self, q: Queue, n: u32) -> Result<Napped, Error> {
        self.panic_if(PanicAt::StandBack);
        assert!(n < 100_000, "it stays behind for ever");
        self.threads.stand_back(q, n)
    }
    fn nudge(&self, slot: SlotId) {
        self.threads.nudge(slot);
    }
    fn pause(&self, n: u32) -> Result<(), Error> {
        self.panic_if(PanicAt::Pause);
        self.paused.set(n);
        self.threads.pause(n)
    }
    fn lock_tag(&self) -> u32 {
        self.threads.lock_tag()
    }
    fn take_tag(&self, bit: u32) -> Result<u32, Error> {
        self.threads.take_tag(bit)
    }
    fn give_up(&self, tag: u32) {
        self.threads.give_up(tag);
    }
    fn quiescent(&self, slot: SlotId) -> bool {
        self.threads.quiescent(slot)
    }
    fn meets(&self, condition: u32, row: NonNull<Version>) -> bool {
        let row = Row::read(row);
        match condition.checked_sub(VALUE) {
            Some(least) => row.value >= least as i64,
            None => row.key < condition as i64,
        }
    }
    fn has_written(&self) -> bool {
        self.threads.has_written()
    }
    fn freezes_readers(&self) -> bool {
        self.threads.freezes_readers()
    }
    fn compare_keys(&self, order: u32, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        self.panic_if(PanicAt::Compare);
        match order {
            DOWNWARDS => b.cmp(a),
            _ => a.cmp(b),
        }
    }
    fn stop_event(&self, e: StopEvent) -> Result<(), Error> {
        self.panic_if(PanicAt::Event(e));
        self.jitter();
        self.threads.stop_event(e)
    }
}

/// Everything that the threads of a test share.
pub struct World {
    pub e: Engine,
    pub table: &'static Table,
    /// Records by key; entries stay until VACUUM.
    index: Mutex<BTreeMap<i64, Vec<u64>>>,
    pub waits: Arc<Waits>,
    next_ident: AtomicU64,
    next_tag: AtomicU32,
    pub slots: u16,
    // Last: the engine's memory.
    _block: Block,
}

/// The partition of a key.
pub fn partition_of(key: i64) -> u32 {
    (key / WIDTH) as u32
}
/// A key in the checker's terms.
pub fn checked(key: i64) -> Key {
    Key::new(0, key)
}
/// The shared keys that exist at the start.
pub fn initial_keys() -> impl Iterator<Item = i64> {
    (0..PARTITIONS as i64).flat_map(|p| (0..SHARED / 2).map(move |i| p * WIDTH + 2 * i))
}

impl World {
    /// A table whose partition `i` has protocols `sets[i % len]`; `slots` threads and one for the
    /// test itself.
    pub fn new(sets: &[ProtocolSet], policy: Policy, slots: u16) -> World {
        let block = Block::new(8 << 20, slots as usize + 1).expect("memory for a block");
        World::within(block, sets, policy, slots)
    }

    /// The same in a block that has a slot more.
    pub fn within(block: Block, sets: &[ProtocolSet], policy: Policy, slots: u16) -> World {
        let e = block.engine;
        let map = Table::new_map(&e, slots, PARTITIONS, 0, b"", sets[0], policy).expect("a map");
        let table = Table::create(&e, slots, [1, 2, 3, 4], map).expect("a table");
        for (i, p) in table.map().partitions().iter().enumerate() {
            p.put(&e, sets[i % sets.len()], None).unwrap();
        }
        let w = World {
            e,
            table,
            index: Mutex::default(),
            waits: Arc::default(),
            next_ident: AtomicU64::new(1),
            next_tag: AtomicU32::new(1),
            slots,
            _block: block,
        };
        w.load(initial_keys().map(|key| Row { key, txn: 0, nth: 0, value: 100 }));
        w
    }

    /// Commits rows in the test's own slot.
    pub fn load(&self, rows: impl Iterator<Item = Row>) {
        let p = Jitter::new(self, self.slots, 1);
        let mut t = Txn::new(self.e, self.slots);
        t.begin(Level::Snapshot, self.ident());
        for row in rows {
            self.insert(&mut t, &p, row, 0).expect("room for the first rows");
        }
        t.prepare(&p, &|_, _| {}).expect("a first commit");
        t.publish(&p);
    }

    pub fn ident(&self) -> u64 {
        self.next_ident.fetch_add(1, Ordering::SeqCst)
    }
    pub fn tag(&self) -> u32 {
        self.next_tag.fetch_add(1, Ordering::SeqCst)
    }
    pub fn touch(&self, partition: u32) -> Touch {
        Touch { table: self.table, no: partition }
    }

    /// Records that an index look-up finds.
    pub fn records(&self, key: i64) -> Vec<RecordRef> {
        let index = self.index.lock().unwrap();
        let found = index.get(&key).map(Vec::as_slice).unwrap_or_default();
        found.iter().filter_map(|&n| RecordRef::find(self.table, n)).collect()
    }
    /// Records that an index scan finds, keys from `low` to `high`.
    pub fn scan(&self, low: i64, high: i64) -> Vec<(i64, RecordRef)> {
        let index = self.index.lock().unwrap();
        let all = index.range(low..=high).flat_map(|(&k, v)| v.iter().map(move |&n| (k, n)));
        all.filter_map(|(k, n)| Some((k, RecordRef::find(self.table, n)?))).collect()
    }
    pub fn index_entries(&self) -> usize {
        self.index.lock().unwrap().values().map(Vec::len).sum()
    }

    /// A version with a row, not handed over yet.
    pub fn version(&self, t: &mut Txn, row: Row) -> Result<NonNull<Version>, Error> {
        let v = t.new_version(partition_of(row.key), std::mem::size_of::<Row>(), 0)?;
        // SAFETY: fresh, and that large.
        unsafe { Version::payload(v.as_ptr()).cast::<Row>().write_unaligned(row) };
        Ok(v)
    }

    /// Inserts a row and its index entry.
    pub fn insert(&self, t: &mut Txn, p: &dyn Platform, row: Row, cid: u32) -> Result<RecordRef, Error> {
        let v = self.version(t, row)?;
        let part = partition_of(row.key) as u16;
        match t.insert(p, self.table, [part, 0], v, cid, 0) {
            Ok(r) => {
                self.index.lock().unwrap().entry(row.key).or_default().push(r.no);
                let n = t.newest_write().expect("written just now");
                self.note(t, p, n, row.key)?;
                Ok(r)
            }
            Err(e) => {
                t.discard(v);
                Err(e)
            }
        }
    }

    /// VACUUM by the owner of `slot`: returns how many records it gave back.
    pub fn vacuum(&self, p: &dyn Platform, slot: SlotId) -> usize {
        let e = &self.e;
        e.pin(slot);
        let min = e.refresh_min_floor(p);
        let mut dead = Vec::new();
        for no in 0..self.table.len() {
            let Some(r) = self.table.record(no) else { continue };
            if self.table.is_dead(r, min) {
                r.state.store(REC_VACUUM, Ordering::Release);
                dead.push(no);
            }
        }
        self.index.lock().unwrap().retain(|_, records| {
            records.retain(|no| !dead.contains(no));
            !records.is_empty()
        });
        for &no in &dead {
            let r = self.table.record(no).expect("it was found");
            let tombstone = NonNull::new(r.head());
            RetireQueue::reserve(e, slot, 1).expect("memory for a retired version");
            self.table.give_back(no, e.now());
            if let Some(v) = tombstone {
                RetireQueue::push(e, slot, v.cast(), e.now());
            }
        }
        self.table.dead.fetch_sub(dead.len() as u64, Ordering::SeqCst);
        e.unpin(slot);
        let min = e.refresh_min_pin(p);
        RetireQueue::drain(e, slot, min, usize::MAX);
        dead.len()
    }

    /// What a snapshot at `csn` shows, sorted by key. The transaction is pinned.
    pub fn snapshot(&self, t: &mut Txn, p: &dyn Platform, csn: Csn, low: i64, high: i64) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        for (key, r) in self.scan(low, high) {
            if let Some(v) = t.read_snapshot(p, r, open::Seen::prefix(csn))? {
                let row = Row::read(v);
                if row.key == key {
                    rows.push(row);
                }
            }
        }
        rows.sort_by_key(|r| r.key);
        Ok(rows)
    }
}
