//! A table of the engine, and one worker's transactions on it.

use crate::hybrid;
use crate::outside::{Dormitory, Outside};
use crate::workload::{Op, Program};
use mixedcc_engine::csn::SlotId;
use mixedcc_engine::index::Reuse;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::record::Version;
use mixedcc_engine::threads::Block;
use mixedcc_engine::{Engine, Error, Level, Policy, Protocol, ProtocolSet, Table, Txn};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The size of a row in bytes.
const ROW: usize = 100;
/// The largest number of threads. The loader and the coordinator use slot 0.
pub const THREADS: usize = 16;

pub struct Store {
    pub e: Engine,
    pub table: &'static Table,
    pub partitions: u64,
    /// Keys up to this rank are in a second partition each (the hybrid). 0: none.
    pub hot: u64,
    dormitory: Arc<Dormitory>,
    _block: Block,
}

fn key(partition: u32, rank: u32) -> [u8; 8] {
    ((partition as u64) << 32 | rank as u64).to_be_bytes()
}

fn version(t: &mut Txn, value: u64) -> Result<NonNull<Version>, Error> {
    let v = t.new_version(0, ROW, 0)?;
    // SAFETY: INV-VERSION: fresh memory with `ROW` bytes of payload.
    unsafe {
        Version::payload(v.as_ptr()).write_bytes(0, ROW);
        Version::payload(v.as_ptr()).cast::<u64>().write_unaligned(value);
    }
    Ok(v)
}

/// The number in a row that the calling transaction has found.
fn value(v: NonNull<Version>) -> u64 {
    // SAFETY: INV-VERSION, INV-RETIRE: found under the caller's pin, and rows begin with 8 bytes.
    unsafe { Version::payload(v.as_ptr()).cast::<u64>().read_unaligned() }
}

impl Store {
    pub fn new(partitions: u64, rows: u64, hot: u64) -> Store {
        Store::with_spare(partitions, rows, hot, 192 << 20)
    }

    /// Makes a store with `spare` bytes for versions beside the rows. An open transaction keeps all
    /// versions that are replaced after it began.
    pub fn with_spare(partitions: u64, rows: u64, hot: u64, spare: usize) -> Store {
        Store::make(partitions, rows, hot, spare, Policy::Wait)
    }

    /// Makes a store of one partition, with a waiting policy.
    #[cfg(feature = "thresholds")]
    pub fn under(rows: u64, policy: Policy) -> Store {
        Store::make(1, rows, 0, 192 << 20, policy)
    }

    fn make(partitions: u64, rows: u64, hot: u64, spare: usize, policy: Policy) -> Store {
        let block = Block::new((partitions * rows) as usize * 400 + spare, THREADS + 1).expect("memory");
        let e = block.engine;
        let n = if hot > 0 { 2 * partitions } else { partitions } as u32;
        let set = ProtocolSet::of(Protocol::DEFAULT);
        let map = Table::new_map(&e, 0, n, 0, b"", set, policy).expect("memory");
        let table = Table::create(&e, 0, [1; 4], map).expect("memory");
        table.create_primary(&e, 0, 0, Reuse::AtOnce).expect("memory");
        let store = Store { e, table, partitions, hot, dormitory: Dormitory::new(THREADS + 1), _block: block };
        let p = store.platform(0);
        let mut t = Txn::new(e, 0);
        for partition in 0..partitions as u32 {
            t.begin(Level::Serializable, 1);
            for rank in 0..rows as u32 {
                let v = version(&mut t, 0).expect("memory");
                t.insert_row(&p, store.at(partition, rank), &key(partition, rank), v, 0).expect("memory");
            }
            t.prepare(&p, &|_, _| {}).expect("a first commit");
            t.publish(&p);
        }
        store
    }

    /// Makes another table, of one row and one partition; see [`Store::hold`].
    pub fn side_table(&self) -> &'static Table {
        let (e, set) = (self.e, ProtocolSet::of(Protocol::DEFAULT));
        let map = Table::new_map(&e, 0, 1, 0, b"", set, Policy::Wait).expect("memory");
        let table = Table::create(&e, 0, [2; 4], map).expect("memory");
        table.create_primary(&e, 0, 0, Reuse::AtOnce).expect("memory");
        let p = self.platform(0);
        let mut t = Txn::new(e, 0);
        t.begin(Level::Serializable, 2);
        let v = version(&mut t, 0).expect("memory");
        t.insert_row(&p, Touch { table, no: 0 }, &key(0, 0), v, 0).expect("memory");
        t.prepare(&p, &|_, _| {}).expect("a first commit");
        t.publish(&p);
        table
    }

    /// Runs a transaction that writes the row of a side table, which no other transaction uses. It
    /// calls `begun` and stays open for `length` after that.
    pub fn hold(&self, table: &'static Table, slot: SlotId, ident: u64, length: Duration, begun: impl FnOnce()) {
        let p = self.platform(slot);
        let mut t = Txn::new(self.e, slot);
        t.begin(Level::Serializable, ident);
        let row = t.find_row(&p, Touch { table, no: 0 }, &key(0, 0), true, None).expect("alone").expect("the row");
        let v = version(&mut t, ident).expect("memory");
        t.update_row(&p, &row, &key(0, 0), v, 0).expect("alone");
        begun();
        std::thread::sleep(length);
        t.prepare(&p, &|_, _| {}).expect("alone");
        t.publish(&p);
        p.ended();
    }

    /// Puts all partitions under one protocol; `None`: under the two of the hybrid.
    pub fn set(&self, p: Option<Protocol>) {
        for (no, part) in self.table.map().partitions().iter().enumerate() {
            let hybrid = if no as u64 >= self.partitions { hybrid::HOT } else { hybrid::COLD };
            part.put(&self.e, ProtocolSet::of(p.unwrap_or(hybrid)), None).expect("the platform sees deadlocks");
        }
    }

    /// The number of updates of a row. No thread is at work.
    #[cfg(feature = "thresholds")]
    pub fn value(&self, partition: u32, rank: u32) -> u64 {
        let (p, mut t) = (self.platform(0), Txn::new(self.e, 0));
        t.begin(Level::Serializable, 3);
        let found = t.find_row(&p, self.at(partition, rank), &key(partition, rank), false, None);
        let value = value(found.expect("alone").expect("rows are never deleted").version);
        t.abort();
        p.ended();
        value
    }

    pub fn platform(&self, slot: SlotId) -> Outside {
        Outside::new(self.e, slot, self.dormitory.clone())
    }

    pub fn at(&self, partition: u32, rank: u32) -> Touch {
        let hot = (rank as u64) < self.hot;
        Touch { table: self.table, no: partition + if hot { self.partitions as u32 } else { 0 } }
    }
}

/// A worker: a slot and its transaction.
pub struct Worker<'s> {
    s: &'s Store,
    t: Txn,
    p: Outside,
    ident: u64,
    pub yields: u64,
    pub work_ns: u64,
    pub declared: bool,
}

impl<'s> Worker<'s> {
    pub fn new(s: &'s Store, slot: SlotId) -> Worker<'s> {
        let ident = (slot as u64) << 40;
        Worker { s, t: Txn::new(s.e, slot), p: s.platform(slot), ident, yields: 0, work_ns: 0, declared: false }
    }

    fn work(&self) {
        if self.work_ns > 0 {
            let start = Instant::now();
            while (start.elapsed().as_nanos() as u64) < self.work_ns {
                std::hint::spin_loop();
            }
        }
    }

    fn op(&mut self, op: Op) -> Result<(), Error> {
        let at = self.s.at(op.partition, op.rank);
        let found = self.t.find_row(&self.p, at, &key(op.partition, op.rank), op.write, None)?;
        let row = found.expect("rows are never deleted");
        let value = value(row.version);
        self.work();
        if op.write {
            let v = version(&mut self.t, value + 1)?;
            self.t.update_row(&self.p, &row, &key(op.partition, op.rank), v, 0)?;
        }
        std::hint::black_box(value);
        Ok(())
    }

    fn attempt(&mut self, program: &Program) -> Result<(), Error> {
        if self.declared {
            for &partition in &program.touched {
                // The hybrid is never `partcc`, and its cold half stands for both halves.
                self.t.declare(&self.p, Touch { table: self.s.table, no: partition })?;
            }
        }
        for (i, &op) in program.ops.iter().enumerate() {
            self.op(op)?;
            if self.yields > 0 && (i as u64 + 1).is_multiple_of(self.yields) {
                std::thread::yield_now();
            }
        }
        self.t.prepare(&self.p, &|_, _| {})?;
        self.t.publish(&self.p);
        Ok(())
    }

    /// Makes one attempt. Returns true if it committed.
    pub fn run(&mut self, program: &Program) -> bool {
        self.ident += 1;
        self.t.begin(Level::Serializable, self.ident);
        let done = self.attempt(program);
        match done {
            Ok(()) => {}
            Err(Error::Abort { .. } | Error::Deadlock) => self.t.abort(),
            Err(e) => panic!("{e:?}"),
        }
        self.p.ended();
        done.is_ok()
    }
}
