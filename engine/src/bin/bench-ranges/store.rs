//! A table in the engine, and transactions on it under each way to validate scans.
//!
//! Point operations are the engine's (`occ`) in all of them. They differ in the protection of
//! scans:
//! * `Rv`: logical ranges, the engine's own.
//! * `Lrv`: the records of the scan are remembered and read again (Silo's read set, in a store with
//!   versions).
//! * `Rescan`: the scan is repeated after the CSN was taken, and compared with copies of its rows.
//!   This is the validation of Silo and Hekaton in a store that keeps one version: rows must be
//!   copied to be read consistently.
//! * `Gwv`: the write sets of all transactions that committed since the scan began (HyPer). One
//!   transaction at a time validates.

use crate::workload::{Op, Program, Workload, FIRST_ORDER};
use mixedcc_engine::csn::SlotId;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::index::{Direction, Index, Reuse};
use mixedcc_engine::open;
use mixedcc_engine::platform::{Napped, Platform, Queue, StopEvent, WaitFor};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::range::Looked;
use mixedcc_engine::record::Version;
use mixedcc_engine::threads::{Block, Threads, Waits};
use mixedcc_engine::txn::{OpenEnd, RowScan, Scan, PRIMARY};
use mixedcc_engine::{Engine, Error, Level, Policy, Protocol, ProtocolSet, Table, Txn};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Bound;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

/// The size of a row in bytes.
pub const ROW: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Rv,
    Lrv,
    Rescan,
    Gwv,
    Mvrcc,
}

impl Method {
    pub fn by_name(name: &str) -> Option<Method> {
        [Method::Rv, Method::Lrv, Method::Rescan, Method::Gwv].into_iter().find(|m| m.name() == name)
    }
    pub fn name(self) -> &'static str {
        match self {
            Method::Rv => "rv",
            Method::Lrv => "lrv",
            Method::Rescan => "lrv_rescan",
            Method::Gwv => "gwv",
            Method::Mvrcc => "mvrcc",
        }
    }
}

/// The list of recent write sets, for `Gwv`.
#[derive(Default)]
pub struct Commits {
    /// The number of the first one that is remembered.
    first: u64,
    sets: VecDeque<Vec<u64>>,
}

/// The number of write sets remembered.
const REMEMBERED: usize = 1 << 16;

impl Commits {
    pub fn end(&self) -> u64 {
        self.first + self.sets.len() as u64
    }
    pub fn push(&mut self, keys: Vec<u64>) {
        if self.sets.len() == REMEMBERED {
            self.sets.pop_front();
            self.first += 1;
        }
        self.sets.push_back(keys);
    }
    /// The number of transactions since `from`, the number of their keys compared, and whether one
    /// of the keys is within the bounds.
    pub fn look(&self, from: u64, low: u64, high: u64) -> (u64, u64, bool) {
        if from < self.first {
            return (0, 0, true);
        }
        let (mut sets, mut keys) = (0, 0);
        for set in self.sets.range((from - self.first) as usize..) {
            sets += 1;
            for key in set {
                keys += 1;
                if (low..high).contains(key) {
                    return (sets, keys, true);
                }
            }
        }
        (sets, keys, false)
    }
}

pub struct Store {
    pub e: Engine,
    pub table: &'static Table,
    pub commits: Mutex<Commits>,
    waits: Arc<Waits>,
    _block: Block,
}

impl Store {
    /// Loads the rows of a workload. The loader uses slot 0, and workers use slots from 1 on.
    pub fn new(w: &Workload, workers: usize) -> Store {
        let rows = w.keys().count();
        let block = Block::new(rows * 320 + (256 << 20), workers + 1).expect("memory for the table");
        let e = block.engine;
        let set = ProtocolSet::of(Protocol::Occ);
        let map = Table::new_map(&e, 0, 2, 0, b"", set, Policy::Wait).expect("memory");
        let table = Table::create(&e, 0, [1; 4], map).expect("memory");
        table.create_primary(&e, 0, 0, Reuse::AtOnce).expect("memory");
        let store = Store { e, table, commits: Mutex::default(), waits: Arc::default(), _block: block };
        let p = store.platform(0);
        let mut t = Txn::new(e, 0);
        let mut keys = w.keys().peekable();
        while keys.peek().is_some() {
            t.begin(Level::Serializable, 1);
            for key in keys.by_ref().take(1000) {
                let v = version(&mut t, key).expect("memory");
                t.insert_row(&p, store.at(key), &key.to_be_bytes(), v, 0).expect("memory");
            }
            t.prepare(&p, &|_, _| {}).expect("a first commit");
            t.publish(&p);
        }
        store
    }

    /// Gives the index `n` ranges, or none.
    pub fn set_ranges(&self, n: usize, list_size: u32) {
        let p = self.platform(0);
        if self.table.ranges(PRIMARY).is_some() {
            self.table.drop_ranges(&self.e, 0, PRIMARY);
        }
        self.e.tick();
        self.table.reap_ranges(&self.e, 0, self.e.refresh_min_pin(&p));
        if n > 0 {
            self.e.pin(0);
            self.table.primary_ranges(&self.e, 0, &p, n, list_size).expect("memory for ranges");
            self.e.unpin(0);
        }
    }

    /// Makes the ranges dormant, as if a scan had used them once, long ago. Slot 1 does it.
    pub fn fall_asleep(&self) {
        let ranges = self.table.ranges(PRIMARY).expect("ranges");
        let mut me = Worker::new(self, 1, Method::Rv);
        me.run(&Program { ops: vec![Op::Scan(0, 10)] });
        let after = self.e.shared.dormant_after_ns.swap(0, Ordering::SeqCst);
        // Commits check from time to time whether the ranges are needed.
        for _ in 0..10_000 {
            if ranges.is_dormant() {
                self.e.shared.dormant_after_ns.store(after, Ordering::SeqCst);
                return;
            }
            me.run(&Program { ops: vec![Op::Update(0)] });
        }
        panic!("unused ranges stay awake");
    }

    /// Changes the boundaries, following the writes so far.
    pub fn rebalance(&self, list_size: u32) {
        let Some(ranges) = self.table.ranges(PRIMARY) else { return };
        let p = self.platform(0);
        self.e.pin(0);
        let n = ranges.current().len() as usize;
        let cuts = ranges.balanced(&p, self.index().sample(&p, 4 * n).iter().map(|k| k.to_vec()).collect(), n);
        let cuts: Vec<&[u8]> = cuts.iter().map(|k| &k[..]).collect();
        assert!(
            ranges.rebuild(&self.e, 0, &p, &cuts, list_size).expect("memory for ranges"),
            "there is no other rebuild"
        );
        self.e.unpin(0);
        self.e.tick();
        self.table.reap_ranges(&self.e, 0, self.e.refresh_min_pin(&p));
    }

    pub fn platform(&self, slot: SlotId) -> Outside {
        Outside { threads: Threads::new(self.e, slot, self.waits.clone()), rescan: RefCell::default() }
    }

    /// Orders are in a partition of their own, so that inserts of orders do not meet scans of
    /// customers.
    pub fn at(&self, key: u64) -> Touch {
        Touch { table: self.table, no: (key >= FIRST_ORDER) as u32 }
    }

    pub fn index(&self) -> &'static Index {
        &self.table.primary().expect("an index").index
    }
}

/// Makes a new row of a key.
fn version(t: &mut Txn, key: u64) -> Result<NonNull<Version>, Error> {
    let v = t.new_version(0, ROW, 0)?;
    // SAFETY: INV-VERSION: fresh memory with `ROW` bytes of payload.
    unsafe {
        Version::payload(v.as_ptr()).write_bytes(0, ROW);
        Version::payload(v.as_ptr()).cast::<u64>().write_unaligned(key);
    }
    Ok(v)
}

/// The rows with which a repeated scan compares.
#[derive(Default)]
struct Rescan {
    bounds: Option<(u64, u64)>,
    index: Option<&'static Index>,
    table: Option<&'static Table>,
    seen: Vec<Seen>,
    /// A transaction's own writes are no conflicts.
    slot: SlotId,
    reread: u64,
}

struct Seen {
    version: NonNull<Version>,
    copy: [u8; ROW],
}

/// The platform of threads. When the CSN has been taken, a scan is repeated.
pub struct Outside {
    threads: Threads,
    rescan: RefCell<Rescan>,
}

impl Outside {
    fn repeat(&self) -> Result<(), Error> {
        let mut r = self.rescan.borrow_mut();
        let Some((low, high)) = r.bounds else { return Ok(()) };
        let (index, table) = (r.index.expect("an index"), r.table.expect("a table"));
        let failed = Err(Error::Abort { reason: AbortReason::ReadChanged, table: table.id, partition: 0 });
        let (low, high) = (low.to_be_bytes(), high.to_be_bytes());
        let mut again = index.scan(Bound::Included(&low), Bound::Excluded(&high), Direction::Forward);
        let mut n = 0;
        while let Some((_, no)) = again.next(self) {
            let Some(mut v) = table.record(no).and_then(|rec| NonNull::new(rec.head())) else { continue };
            // SAFETY: INV-RETIRE: the caller is pinned.
            let newest = unsafe { v.as_ref() };
            if newest.stamp().is_tag() && newest.stamp().slot() == r.slot {
                // If it was written after the scan, the version that it replaced counts. If it was
                // written before, it was not remembered.
                match NonNull::new(newest.older()) {
                    Some(older) if r.seen.get(n).is_some_and(|s| s.version == older) => v = older,
                    _ => continue,
                }
            }
            r.reread += 1;
            // SAFETY: INV-VERSION, INV-RETIRE: the versions of this program have `ROW` bytes.
            let row = unsafe { &*Version::payload(v.as_ptr()).cast::<[u8; ROW]>() };
            match r.seen.get(n) {
                Some(s) if s.version == v && s.copy == *row => n += 1,
                _ => return failed,
            }
        }
        if n == r.seen.len() {
            Ok(())
        } else {
            failed
        }
    }
}

impl Platform for Outside {
    fn wait_for(&self, who: WaitFor) -> Result<(), Error> {
        self.threads.wait_for(who)
    }
    fn enter_queue(&self, q: Queue) -> Result<(), Error> {
        self.threads.enter_queue(q)
    }
    fn leave_queue(&self, q: Queue) {
        self.threads.leave_queue(q);
    }
    fn stand_back(&self, q: Queue, n: u32) -> Result<Napped, Error> {
        self.threads.stand_back(q, n)
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
    fn stop_event(&self, e: StopEvent) -> Result<(), Error> {
        if e == StopEvent::CommitValidate {
            return self.repeat();
        }
        Ok(())
    }
}

/// The work of a transaction's validation, beyond the engine's counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra {
    pub sets: u64,
    pub keys: u64,
    pub reread: u64,
}

/// One worker: a slot and its transaction.
pub struct Worker<'s> {
    s: &'s Store,
    pub slot: SlotId,
    method: Method,
    t: Txn,
    p: Outside,
    scan: Option<RowScan>,
    bounds: Option<(u64, u64)>,
    gwv_from: u64,
    keys: Vec<u64>,
    pub scanned: u64,
    pub extra: Extra,
    /// The sum of all values read, so that the reads are not optimized away.
    pub sum: Cell<u64>,
}

impl<'s> Worker<'s> {
    pub fn new(s: &'s Store, slot: SlotId, method: Method) -> Worker<'s> {
        let (t, p) = (Txn::new(s.e, slot), s.platform(slot));
        let (keys, extra, sum) = (Vec::new(), Extra::default(), Cell::new(0));
        Worker { s, slot, method, t, p, scan: None, bounds: None, gwv_from: 0, keys, scanned: 0, extra, sum }
    }

    pub fn begin(&mut self) {
        self.t.begin(Level::Serializable, self.slot as u64);
        (self.scan, self.bounds, self.scanned, self.extra) = (None, None, 0, Extra::default());
        self.keys.clear();
        let mut r = self.p.rescan.borrow_mut();
        (r.bounds, r.slot, r.reread) = (None, self.slot, 0);
        r.seen.clear();
    }

    fn payload(&self, v: NonNull<Version>) -> *const u8 {
        Version::payload(v.as_ptr())
    }

    /// Executes one operation other than a scan.
    pub fn point(&mut self, op: Op) -> Result<(), Error> {
        let key = match op {
            Op::Read(key) | Op::Update(key) | Op::Insert(key) => key,
            Op::Scan(..) => unreachable!("scans go step by step"),
        };
        let (bytes, at) = (key.to_be_bytes(), self.s.at(key));
        let write = !matches!(op, Op::Read(_));
        let found = self.t.find_row(&self.p, at, &bytes, write, None)?;
        if let Some(row) = &found {
            // SAFETY: INV-VERSION, INV-RETIRE: found under our pin, and rows begin with 8 bytes.
            self.sum
                .set(self.sum.get().wrapping_add(unsafe { self.payload(row.version).cast::<u64>().read_unaligned() }));
        }
        if !write {
            return Ok(());
        }
        let v = version(&mut self.t, key)?;
        match found {
            Some(row) => self.t.update_row(&self.p, &row, &bytes, v, 0)?,
            None => drop(self.t.insert_row(&self.p, at, &bytes, v, 0)?),
        }
        self.keys.push(key);
        Ok(())
    }

    pub fn begin_scan(&mut self, low: u64, high: u64) -> Result<(), Error> {
        self.bounds = Some((low, high));
        let snapshot = match self.method {
            Method::Gwv => {
                let commits = self.s.commits.lock().unwrap_or_else(|e| e.into_inner());
                self.gwv_from = commits.end();
                Some(self.s.e.now())
            }
            Method::Rv => None,
            _ => Some(self.s.e.now()),
        };
        if self.method == Method::Rescan {
            let mut r = self.p.rescan.borrow_mut();
            (r.bounds, r.index, r.table) = (Some((low, high)), Some(self.s.index()), Some(self.s.table));
        }
        let at = [Touch { table: self.s.table, no: 0 }];
        let (low, high) = (low.to_be_bytes(), high.to_be_bytes());
        let (lo, hi) = (Bound::Included(&low[..]), Bound::Excluded(&high[..]));
        let scan = Scan {
            at: &at,
            lo,
            hi,
            open: OpenEnd::No,
            snapshot: snapshot.map(open::Seen::prefix),
            looked: Looked::ALL,
        };
        if self.method == Method::Lrv {
            // Inserts within the bounds are found by the partition's list, as by Silo's node
            // versions.
            self.t.scan(&self.p, at[0])?;
        }
        let protect = self.method == Method::Rv;
        self.scan = Some(self.t.scan_rows(&self.p, self.s.table, &scan, Direction::Forward, protect)?);
        Ok(())
    }

    /// Reads at most `rows` more rows. Returns false if the scan has ended.
    pub fn scan_some(&mut self, rows: u64) -> Result<bool, Error> {
        let Some(mut scan) = self.scan.take() else { return Ok(false) };
        for _ in 0..rows {
            let Some(row) = self.t.next_row(&self.p, &mut scan, false)? else {
                self.t.end_scan(&self.p, scan);
                return Ok(false);
            };
            self.scanned += 1;
            let at = self.payload(row.version);
            // SAFETY: INV-VERSION, INV-RETIRE: found under our pin, and rows begin with 8 bytes.
            self.sum.set(self.sum.get().wrapping_add(unsafe { at.cast::<u64>().read_unaligned() }));
            match self.method {
                // The snapshot is not older than `valid`, so there is nothing to validate now.
                Method::Lrv if !row.own => self.t.note_read(&self.p, row.r, row.version, 0)?,
                Method::Rescan if !row.own => {
                    // SAFETY: INV-VERSION, INV-RETIRE: as above, and rows have `ROW` bytes.
                    let copy = unsafe { *at.cast::<[u8; ROW]>() };
                    self.p.rescan.borrow_mut().seen.push(Seen { version: row.version, copy });
                }
                _ => {}
            }
        }
        self.scan = Some(scan);
        Ok(true)
    }

    pub fn commit(&mut self) -> Result<(), Error> {
        let held: Option<MutexGuard<'_, Commits>> =
            (self.method == Method::Gwv).then(|| self.s.commits.lock().unwrap_or_else(|e| e.into_inner()));
        if let (Some(commits), Some((low, high))) = (&held, self.bounds) {
            let (sets, keys, conflict) = commits.look(self.gwv_from, low, high);
            (self.extra.sets, self.extra.keys) = (sets, keys);
            if conflict {
                return Err(Error::Abort { reason: AbortReason::Phantom, table: self.s.table.id, partition: 0 });
            }
        }
        let prepared = self.t.prepare(&self.p, &|_, _| {});
        self.extra.reread = self.p.rescan.borrow().reread;
        prepared?;
        self.t.publish(&self.p);
        if let Some(mut commits) = held {
            if !self.keys.is_empty() {
                commits.push(std::mem::take(&mut self.keys));
            }
        }
        Ok(())
    }

    pub fn abort(&mut self) {
        self.scan = None;
        self.t.abort();
    }

    /// The work of a validation at this moment in cache lines, as far as it is known before.
    pub fn foreseen(&self) -> u64 {
        match (self.method, self.bounds) {
            (_, None) => 0,
            (Method::Gwv, Some(_)) => self.s.commits.lock().unwrap_or_else(|e| e.into_inner()).end() - self.gwv_from,
            (Method::Lrv, _) => self.scanned * 3 / 2,
            (Method::Rescan, _) => self.scanned * 4,
            _ => 0,
        }
    }

    /// Runs a whole transaction. Returns true if it committed.
    pub fn run(&mut self, program: &Program) -> bool {
        self.begin();
        let done = self.attempt(program);
        match done {
            Ok(()) => true,
            Err(Error::Abort { .. } | Error::Deadlock) => {
                self.abort();
                false
            }
            Err(e) => panic!("{e:?}"),
        }
    }

    fn attempt(&mut self, program: &Program) -> Result<(), Error> {
        for &op in &program.ops {
            match op {
                Op::Scan(low, high) => {
                    self.begin_scan(low, high)?;
                    while self.scan_some(u64::MAX)? {}
                }
                op => self.point(op)?,
            }
        }
        self.commit()
    }
}
