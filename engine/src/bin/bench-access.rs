//! The cost of an access in the engine alone, without PostgreSQL. `bench/access` runs it.
//!
//! A transaction makes 16 accesses by primary key (the engine's B+tree) to rows of 100 bytes, zipf
//! 0.9, half of them read-modify-write; options change each of these. There are one or two threads,
//! and partitions under each protocol and under a mix of all. An aborted transaction is retried.
//! Prints CSV. The sum of the rows' counters is checked at the end. `--memory MB` measures instead
//! how long the machine waits for memory.

#[path = "bench-access/memory.rs"]
mod memory;
#[path = "bench-ranges/workload.rs"]
#[allow(dead_code)]
mod workload;

use mixedcc_engine::csn::SlotId;
use mixedcc_engine::index::Reuse;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::record::Version;
use mixedcc_engine::threads::{Block, Threads, Waits};
use mixedcc_engine::txn::Row;
use mixedcc_engine::{Engine, Error, Level, Policy, Protocol, ProtocolSet, Table, Txn};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use workload::{Rng, Zipf};

/// What the transactions do.
struct Load {
    rows: u64,
    /// The accesses of a transaction.
    accesses: usize,
    /// The bytes of a row. A counter is in the first four.
    payload: usize,
    /// The percentage of the accesses that read and write. `None`: every other one does.
    writes: Option<u64>,
    /// The number of a thread's transactions, drawn before the measurement, then repeated.
    programs: usize,
    zipf: Zipf,
}

impl Load {
    fn new(options: &Options) -> Load {
        let rows = options.number("--rows", 1e6) as u64;
        let load = Load {
            rows,
            accesses: options.number("--accesses", 16.0) as usize,
            payload: options.number("--payload", 100.0) as usize,
            writes: options.0.iter().any(|o| o == "--writes").then(|| options.number("--writes", 0.0) as u64),
            programs: options.number("--programs", f64::from(1 << 14)) as usize,
            zipf: Zipf::new(rows, options.number("--skew", 0.9)),
        };
        assert!(load.payload >= size_of::<u32>(), "--payload: the counter of a row has 4 bytes");
        assert!(load.accesses > 0 && load.programs > 0 && rows > 0, "nothing to do");
        load
    }

    /// Draws the transactions of a thread, one after the other.
    fn draw(&self, seed: u64) -> Vec<Access> {
        let mut rng = Rng::new(seed);
        let accesses = (0..self.programs * self.accesses).map(|i| {
            let key = self.zipf.draw(&mut rng);
            // Each transaction has as many writes where every other access is one.
            let write = self.writes.map_or(i % self.accesses % 2 == 1, |percent| rng.percent(percent));
            Access { key, write }
        });
        accesses.collect()
    }
}

/// A read, or a read and a write, of a row.
#[derive(Clone, Copy)]
struct Access {
    key: u64,
    write: bool,
}

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

extern "C" {
    fn clock_gettime(clock: i32, to: *mut Timespec) -> i32;
}

/// CPU time of this thread in ns.
fn cpu_ns() -> u64 {
    const THREAD_CPU: i32 = 3;
    let mut t = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the C library's function on Linux. `t` has the layout of its `timespec` on 64-bit
    // machines.
    let failed = unsafe { clock_gettime(THREAD_CPU, &raw mut t) } != 0;
    assert!(!failed, "no clock of CPU time");
    t.seconds as u64 * 1_000_000_000 + t.nanoseconds as u64
}

struct Layout {
    name: &'static str,
    /// The protocols of the partitions, which take the keys in turn.
    protocols: Vec<Protocol>,
}

/// Each protocol by itself, and all of them together.
fn layouts() -> Vec<Layout> {
    let each = Protocol::ALL.map(|p| Layout { name: p.name(), protocols: vec![p] });
    let mixed = Layout { name: "mixed", protocols: Protocol::ALL.to_vec() };
    each.into_iter().chain([mixed]).collect()
}

/// The way to find a row by its key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Find {
    /// By the engine's B+tree.
    Tree,
    /// By its record number. Rows are loaded in the order of their keys, so that the table's
    /// directory of records is an array of them.
    Array,
}

/// The variant that is measured.
#[derive(Clone, Copy)]
struct Way {
    find: Find,
    /// Does a transaction announce its keys before the first access?
    announced: bool,
    /// Is the memory in pages of 2 MB?
    huge: bool,
    threads: usize,
}

struct Store {
    e: Engine,
    table: &'static Table,
    partitions: u32,
    payload: usize,
    waits: Arc<Waits>,
    _block: Block,
}

impl Store {
    fn new(load: &Load, layout: &Layout, huge: bool, slots: usize) -> Store {
        let make = if huge { Block::huge } else { Block::new };
        let block = make(load.rows as usize * (220 + load.payload) + (512 << 20), slots).expect("memory for the table");
        let e = block.engine;
        let partitions = layout.protocols.len() as u32;
        let set = ProtocolSet::of(Protocol::DEFAULT);
        let map = Table::new_map(&e, 0, partitions, 0, b"", set, Policy::Wait).expect("memory");
        let table = Table::create(&e, 0, [1; 4], map).expect("memory");
        table.create_primary(&e, 0, 0, Reuse::AtOnce).expect("memory");
        let store = Store { e, table, partitions, payload: load.payload, waits: Arc::default(), _block: block };
        for (no, &protocol) in layout.protocols.iter().enumerate() {
            let at = Touch { table, no: no as u32 };
            at.partition().put(&e, ProtocolSet::of(protocol), None).expect("a protocol");
        }
        store.load(load.rows);
        store
    }

    fn load(&self, rows: u64) {
        let (mut t, p) = (Txn::new(self.e, 0), Threads::new(self.e, 0, self.waits.clone()));
        for first in (0..rows).step_by(1000) {
            t.begin(Level::Serializable, 1);
            for key in first..rows.min(first + 1000) {
                let v = version(&mut t, self.payload, 0).expect("memory");
                t.insert_row(&p, self.at(key), &key.to_be_bytes(), v, 0).expect("memory");
            }
            t.prepare(&p, &|_, _| {}).expect("a first commit");
            t.publish(&p);
        }
    }

    fn at(&self, key: u64) -> Touch {
        Touch { table: self.table, no: (key % u64::from(self.partitions)) as u32 }
    }

    /// The sum of the counters of all rows.
    fn sum(&self, rows: u64) -> u64 {
        let (mut t, p) = (Txn::new(self.e, 0), Threads::new(self.e, 0, self.waits.clone()));
        let mut sum = 0;
        t.begin(Level::Serializable, 1);
        for key in 0..rows {
            let row = t.find_row(&p, self.at(key), &key.to_be_bytes(), false, None).expect("a read").expect("a row");
            sum += u64::from(counter(row.version));
        }
        t.prepare(&p, &|_, _| {}).expect("no other transaction runs");
        t.publish(&p);
        sum
    }
}

/// Makes a new version of a row with this counter.
fn version(t: &mut Txn, payload: usize, count: u32) -> Result<NonNull<Version>, Error> {
    let v = t.new_version(0, payload, 0)?;
    // SAFETY: INV-VERSION: fresh memory with `payload` bytes, which are at least 4 (`Load::new`).
    unsafe {
        Version::payload(v.as_ptr()).write_bytes(0, payload);
        Version::payload(v.as_ptr()).cast::<u32>().write_unaligned(count);
    }
    Ok(v)
}

fn counter(v: NonNull<Version>) -> u32 {
    // SAFETY: INV-VERSION, INV-RETIRE: found by a pinned transaction. Payloads begin with the
    // counter's 4 bytes.
    unsafe { Version::payload(v.as_ptr()).cast::<u32>().read_unaligned() }
}

#[derive(Clone, Copy, Default)]
struct Sums {
    commits: u64,
    aborts: u64,
    deadlocks: u64,
    /// Updates that committed.
    updates: u64,
    cpu_ns: u64,
}

struct Worker<'s> {
    s: &'s Store,
    way: Way,
    slot: SlotId,
    /// The number of transactions begun.
    began: u64,
    /// The keys of a transaction that announces them.
    keys: Vec<[u8; 8]>,
    t: Txn,
    p: Threads,
}

impl Worker<'_> {
    #[inline]
    fn find(&mut self, key: u64, write: bool) -> Result<Row, Error> {
        let at = self.s.at(key);
        let found = match self.way.find {
            Find::Tree => self.t.find_row(&self.p, at, &key.to_be_bytes(), write, None)?,
            Find::Array => self.t.find_record(&self.p, at, key, write)?,
        };
        Ok(found.expect("a row that is never deleted"))
    }

    fn announce(&mut self, accesses: &[Access]) {
        match self.way.find {
            Find::Tree => {
                self.keys.clear();
                self.keys.extend(accesses.iter().map(|a| a.key.to_be_bytes()));
                self.t.announce_rows(self.s.table, self.keys.iter().map(|k| &k[..]));
            }
            Find::Array => self.t.announce_records(self.s.table, accesses.iter().map(|a| a.key)),
        }
    }

    /// Runs a transaction. Returns the number of its updates.
    fn attempt(&mut self, accesses: &[Access]) -> Result<u64, Error> {
        // Each transaction has an identifier of its own. Otherwise waiters would take a retry for
        // the transaction that they wait for.
        self.began += 1;
        self.t.begin(Level::Serializable, self.began << 16 | u64::from(self.slot));
        if self.way.announced {
            self.announce(accesses);
        }
        let mut updates = 0;
        for &Access { key, write } in accesses {
            let row = self.find(key, write)?;
            let count = counter(row.version);
            if write {
                let v = version(&mut self.t, self.s.payload, count + 1)?;
                self.t.update_row(&self.p, &row, &key.to_be_bytes(), v, 0)?;
                updates += 1;
            } else {
                std::hint::black_box(count);
            }
        }
        self.t.prepare(&self.p, &|_, _| {})?;
        self.t.publish(&self.p);
        Ok(updates)
    }

    fn run(&mut self, programs: &[Access], each: usize, stop: &AtomicBool) -> Sums {
        let mut s = Sums::default();
        let start = cpu_ns();
        for accesses in programs.chunks_exact(each).cycle() {
            s.updates += loop {
                let error = match self.attempt(accesses) {
                    Ok(updates) => break updates,
                    Err(error) => error,
                };
                self.t.abort();
                match error {
                    Error::Abort { .. } => s.aborts += 1,
                    Error::Deadlock => s.deadlocks += 1,
                    other => panic!("{other:?}"),
                }
                self.t.await_winner(&self.p).expect("a wait without locks");
            };
            s.commits += 1;
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        s.cpu_ns = cpu_ns() - start;
        s
    }
}

/// Runs all threads for this time. Returns their sums.
fn round(store: &Store, load: &Load, way: Way, seconds: f64, seed: u64) -> (Sums, f64) {
    let stop = AtomicBool::new(false);
    let all: Vec<_> = (0..way.threads as u64).map(|n| load.draw(seed * 100 + n)).collect();
    let began = Instant::now();
    let sums = std::thread::scope(|scope| {
        let stop = &stop;
        let workers = all.iter().enumerate().map(|(n, mine)| {
            scope.spawn(move || {
                let slot = n as SlotId + 1;
                let (t, p) = (Txn::new(store.e, slot), Threads::new(store.e, slot, store.waits.clone()));
                let mut worker = Worker { s: store, way, slot, began: 0, keys: Vec::new(), t, p };
                worker.run(mine, load.accesses, stop)
            })
        });
        let workers: Vec<_> = workers.collect();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().map(|w| w.join().expect("a worker")).fold(Sums::default(), |a, b| Sums {
            commits: a.commits + b.commits,
            aborts: a.aborts + b.aborts,
            deadlocks: a.deadlocks + b.deadlocks,
            updates: a.updates + b.updates,
            cpu_ns: a.cpu_ns + b.cpu_ns,
        })
    });
    (sums, began.elapsed().as_secs_f64())
}

/// The options on the command line: `--name value`.
struct Options(Vec<String>);

impl Options {
    fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        let at = self.0.iter().position(|a| a == name);
        at.and_then(|i| self.0.get(i + 1)).map_or(default, |v| v)
    }
    fn number(&self, name: &str, default: f64) -> f64 {
        self.0.iter().position(|a| a == name).map_or(default, |_| self.text(name, "").parse().expect("a number"))
    }
    fn has(&self, name: &str, default: &str, word: &str) -> bool {
        self.text(name, default).split(',').any(|w| w == word)
    }
    /// All requested variants.
    fn ways(&self, threads: usize, huge: bool) -> Vec<Way> {
        let finds = [(Find::Tree, "tree"), (Find::Array, "array")];
        let finds = finds.into_iter().filter(|(_, name)| self.has("--index", "tree,array", name));
        let announced = [(false, "no"), (true, "yes")].into_iter();
        let announced = announced.filter(|(_, name)| self.has("--announced", "no,yes", name));
        finds.flat_map(|f| announced.clone().map(move |a| Way { find: f.0, announced: a.0, huge, threads })).collect()
    }
}

impl Way {
    /// The columns of a row of the output that identify it.
    fn columns(&self) -> String {
        let find = if self.find == Find::Tree { "tree" } else { "array" };
        let (announced, pages) = (if self.announced { "yes" } else { "no" }, if self.huge { "2M" } else { "4K" });
        format!("{find},{announced},{pages},{}", self.threads)
    }
}

/// Runs all rounds of one layout and page size, in all variants. Prints a line for each.
fn measure(options: &Options, load: &Load, threads: usize, huge: bool) {
    let (rounds, seconds) = (options.number("--rounds", 5.0) as u64, options.number("--seconds", 1.0));
    let seed = options.number("--seed", 1.0) as u64;
    let ways = options.ways(threads, huge);
    let all = layouts();
    let names = all.iter().map(|l| l.name).collect::<Vec<_>>().join(",");
    let layouts = all.iter().filter(|l| options.has("--layouts", &names, l.name));
    let stores: Vec<_> = layouts.map(|l| (l, Store::new(load, l, huge, threads + 1))).collect();
    let mut updates = vec![0; stores.len()];
    // Round 0 warms up.
    for n in 0..=rounds {
        for &way in &ways {
            for (i, (layout, store)) in stores.iter().enumerate() {
                let (s, wall) = round(store, load, way, seconds, seed + n);
                updates[i] += s.updates;
                let ns = s.cpu_ns as f64 / (s.commits * load.accesses as u64) as f64;
                if n > 0 {
                    let (tps, way) = (s.commits as f64 / wall, way.columns());
                    let Sums { commits, aborts, deadlocks, .. } = s;
                    println!("{},{way},{n},{commits},{aborts},{deadlocks},{ns:.2},{tps:.0}", layout.name);
                }
            }
        }
    }
    for ((layout, store), wanted) in stores.iter().zip(updates) {
        let sum = store.sum(load.rows);
        assert!(sum == wanted, "wrong result of {}: {sum} updates, not {wanted}", layout.name);
    }
}

fn main() {
    let options = Options(std::env::args().collect());
    let megabytes = options.number("--memory", 0.0) as usize;
    if megabytes > 0 {
        return memory::measure(megabytes << 20, options.number("--seed", 1.0) as u64);
    }
    let load = Load::new(&options);
    println!("layout,index,announced,pages,threads,round,commits,aborts,deadlocks,ns_per_access,tps");
    for (threads, name) in [(1, "1"), (2, "2")] {
        for (huge, pages) in [(false, "4K"), (true, "2M")] {
            if options.has("--threads", "1,2", name) && options.has("--pages", "4K,2M", pages) {
                measure(&options, &load, threads, huge);
            }
        }
    }
}
