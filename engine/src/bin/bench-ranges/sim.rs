//! Many workers on one thread, interleaved step by step in simulated time. Their work is counted.
//!
//! The unit of time is one cache line touched. A step is one operation, or 16 rows of a scan. The
//! engine (`mvrcc`: the model) does it at one instant; then the worker pauses for the step's time.
//! Validation of `lrv` and `gwv` takes its time before the commit. That of ranges and of the model
//! takes it after the commit, as its length is not known before.

use crate::mvrcc::{Conflict, Model, Txn as ModelTxn};
use crate::store::{Method, Store, Worker};
use crate::workload::{Op, Program, Rng, Workload};
use mixedcc_engine::counts;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::Error;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The lines of a look-up, read and write of one row: three levels of the index, record, version,
/// and new version.
const POINT: u64 = 14;
/// The lines of a scanned row: its part of a leaf, record and version.
const ROW: u64 = 2;
const STEP: u64 = 16;
/// The lines of the begin and end of a transaction.
const BEGIN: u64 = 4;

/// The counts of a run. They are of committed transactions unless said otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub commits: u64,
    pub scans: u64,
    /// Work of scan transactions before their commit: records read again, entries compared (of
    /// lists, or keys of write sets), and lists.
    pub records: u64,
    pub entries: u64,
    pub lists: u64,
    /// Lines touched by their validation.
    pub lines: u64,
    /// Lines touched by registration, of all transactions.
    pub register_lines: u64,
    pub time: u64,
    /// Time of committed scan transactions, from their last begin.
    pub scan_time: u64,
    /// Aborts because of scans; those among them without a conflict in a key; aborts because of
    /// points.
    pub scan_aborts: u64,
    pub false_aborts: u64,
    pub wraps: u64,
    pub point_aborts: u64,
    /// Programs given up after too many aborts.
    pub given_up: u64,
}

#[derive(Clone)]
pub struct Config<'a> {
    pub workload: &'a Workload,
    pub method: Method,
    pub workers: usize,
    pub transactions: u64,
    /// For the model: the boundaries and the size of its lists.
    pub boundaries: Vec<u64>,
    pub list_size: usize,
    pub seed: u64,
}

/// The next action of a worker.
enum At {
    Begin,
    Op(usize),
    Scanning(usize),
    Commit,
}

struct Logical<'s> {
    worker: Option<Worker<'s>>,
    model: ModelTxn,
    program: Program,
    at: At,
    serial: u64,
    rng: Rng,
    begun: u64,
    /// The number of commits before the scan began.
    scan_from: u64,
    work: counts::Work,
    rows: u64,
    tries: u32,
}

/// A program is given up after this many aborts: a scan of the hottest keys may never succeed.
const TRIES: u32 = 10;

/// The reason why a step failed.
enum Failed {
    Scan {
        wrapped: bool,
        known_false: bool,
    },
    /// A row read by a look-up or a scan.
    Row,
    Point,
}

struct Sim<'a, 's> {
    c: &'a Config<'a>,
    model: Model,
    total: Counts,
    /// The keys of recent commits, to tell false aborts from true ones.
    truth: VecDeque<Vec<u64>>,
    truth_first: u64,
    now: u64,
    workers: Vec<Logical<'s>>,
}

/// The number of commits remembered to judge aborts.
const TRUTH: usize = 1 << 16;

pub fn run(c: &Config<'_>, s: &Store) -> Counts {
    let workers = (0..c.workers).map(|i| {
        let mut rng = Rng::new(c.seed + i as u64);
        let worker = (c.method != Method::Mvrcc).then(|| Worker::new(s, i as u16 + 1, c.method));
        let program = c.workload.next(i as u64, 0, &mut rng);
        let (model, work) = (ModelTxn::default(), counts::Work::default());
        Logical {
            worker,
            model,
            program,
            at: At::Begin,
            serial: 0,
            rng,
            begun: 0,
            scan_from: u64::MAX,
            work,
            rows: 0,
            tries: 0,
        }
    });
    let mut sim = Sim {
        c,
        model: Model::new(c.boundaries.clone(), c.list_size),
        total: Counts::default(),
        truth: VecDeque::new(),
        truth_first: 0,
        now: 0,
        workers: workers.collect(),
    };
    let mut queue: BinaryHeap<Reverse<(u64, usize)>> = (0..c.workers).map(|i| Reverse((i as u64 * 7, i))).collect();
    while sim.total.commits < c.transactions {
        let Some(Reverse((time, i))) = queue.pop() else { break };
        sim.now = time;
        let cost = sim.step(i);
        queue.push(Reverse((time + cost.max(1), i)));
    }
    sim.total.time = sim.now;
    for w in sim.workers.iter_mut().filter_map(|w| w.worker.as_mut()) {
        w.abort();
    }
    sim.total
}

impl Sim<'_, '_> {
    /// Executes the worker's next step. Returns the step's time.
    fn step(&mut self, i: usize) -> u64 {
        counts::take();
        let done = match self.workers[i].at {
            At::Begin => Ok(self.begin(i)),
            At::Op(n) => self.op(i, n),
            At::Scanning(n) => self.scan_on(i, n),
            At::Commit => self.commit(i),
        };
        let done_now = counts::take();
        let w = &mut self.workers[i].work;
        w.records += done_now.records;
        w.entries += done_now.entries;
        w.lists += done_now.lists;
        w.registered += done_now.registered;
        done.unwrap_or_else(|why| self.abort(i, why))
    }

    fn begin(&mut self, i: usize) -> u64 {
        let l = &mut self.workers[i];
        (l.begun, l.work, l.rows, l.at) = (self.now, counts::Work::default(), 0, At::Op(0));
        match &mut l.worker {
            Some(w) => w.begin(),
            None => l.model = self.model.begin(),
        }
        BEGIN
    }

    fn op(&mut self, i: usize, n: usize) -> Result<u64, Failed> {
        let committed = self.truth_first + self.truth.len() as u64;
        let l = &mut self.workers[i];
        let Some(&op) = l.program.ops.get(n) else {
            l.at = At::Commit;
            return Ok(l.worker.as_ref().map_or(0, Worker::foreseen));
        };
        l.at = At::Op(n + 1);
        if let Op::Scan(low, high) = op {
            (l.at, l.scan_from) = (At::Scanning(n), committed);
            match &mut l.worker {
                Some(w) => w.begin_scan(low, high).map_err(|_| Failed::Point)?,
                None => {
                    (self.model.lists, self.model.entries) = (0, 0);
                    self.model.scan(&l.model, low, high).map_err(failed)?;
                    (l.work.lists, l.work.entries) = (self.model.lists, self.model.entries);
                }
            }
            return Ok(POINT);
        }
        match &mut l.worker {
            Some(w) => w.point(op).map_err(judge)?,
            None => match op {
                Op::Read(key) => self.model.read(&l.model, key),
                Op::Update(key) => {
                    self.model.write(&mut l.model, key).map_err(failed)?;
                    self.model.read(&l.model, key);
                }
                Op::Insert(key) => self.model.write(&mut l.model, key).map_err(failed)?,
                Op::Scan(..) => unreachable!("above"),
            },
        }
        Ok(POINT)
    }

    fn scan_on(&mut self, i: usize, n: usize) -> Result<u64, Failed> {
        let l = &mut self.workers[i];
        let (low, high) = l.program.scan().expect("a scan");
        let more = match &mut l.worker {
            Some(w) => w.scan_some(STEP).map_err(judge)?,
            None => l.rows + STEP < high - low,
        };
        l.rows += STEP;
        if !more {
            l.at = At::Op(n + 1);
        }
        Ok(STEP * ROW)
    }

    fn commit(&mut self, i: usize) -> Result<u64, Failed> {
        let l = &mut self.workers[i];
        counts::take();
        match &mut l.worker {
            Some(w) => w.commit().map_err(judge)?,
            None => self.model.end(&l.model, true),
        }
        let at_commit = counts::take();
        let method = self.c.method;
        let extra = l.worker.as_ref().map(|w| w.extra).unwrap_or_default();
        let keys: Vec<u64> = l
            .program
            .ops
            .iter()
            .filter_map(|op| if let Op::Update(k) | Op::Insert(k) = op { Some(*k) } else { None })
            .collect();
        let t = &mut self.total;
        t.commits += 1;
        let registered = match method {
            // The end of the list, the entry, and the end again when it is finished.
            Method::Rv => 3 * (l.work.registered + at_commit.registered),
            Method::Gwv => 2 * u64::from(!keys.is_empty()),
            Method::Mvrcc => 2 * keys.len() as u64,
            Method::Lrv | Method::Rescan => 0,
        };
        t.register_lines += registered;
        let mut after = 0;
        if l.program.scan().is_some() {
            let scanned = l.worker.as_ref().map_or(0, |w| w.scanned);
            t.scans += 1;
            // All methods read point reads again.
            let lines = match method {
                Method::Rv => {
                    let (lists, entries) = (l.work.lists + at_commit.lists, l.work.entries + at_commit.entries);
                    (t.lists, t.entries) = (t.lists + lists, t.entries + entries);
                    after = 2 * lists + entries;
                    after
                }
                Method::Lrv => {
                    t.records += scanned;
                    // Remembered during the scan (half a line) and read again (a line and a half).
                    2 * scanned
                }
                Method::Rescan => {
                    t.records += extra.reread;
                    // The copy is written (2), the row read again (2), and both are compared (2).
                    6 * scanned
                }
                Method::Gwv => {
                    (t.lists, t.entries) = (t.lists + extra.sets, t.entries + extra.keys);
                    extra.sets
                }
                Method::Mvrcc => {
                    (t.lists, t.entries) = (t.lists + l.work.lists, t.entries + l.work.entries);
                    // Four entries fill a line.
                    after = l.work.lists + l.work.entries / 4;
                    after
                }
            };
            t.lines += lines;
            t.scan_time += self.now + after + registered - l.begun;
        }
        if self.truth.len() == TRUTH {
            self.truth.pop_front();
            self.truth_first += 1;
        }
        self.truth.push_back(keys);
        self.next(i);
        Ok(after + registered + BEGIN)
    }

    /// Counts an abort. The same program is retried.
    fn abort(&mut self, i: usize, why: Failed) -> u64 {
        let l = &mut self.workers[i];
        match &mut l.worker {
            Some(w) => w.abort(),
            None => self.model.end(&l.model, false),
        }
        l.at = At::Begin;
        // A conflict is real if a key within the bounds was committed since the scan began.
        let from = l.scan_from.saturating_sub(self.truth_first) as usize;
        let since = self.truth.range(from.min(self.truth.len())..);
        let real = match l.program.scan() {
            Some((low, high)) if l.scan_from < u64::MAX => since.flatten().any(|k| (low..high).contains(k)),
            _ => false,
        };
        match why {
            Failed::Row if real => self.total.scan_aborts += 1,
            Failed::Point | Failed::Row => self.total.point_aborts += 1,
            Failed::Scan { wrapped, known_false } => {
                self.total.scan_aborts += 1;
                self.total.wraps += u64::from(wrapped);
                let real = if l.worker.is_some() { real } else { !known_false };
                self.total.false_aborts += u64::from(!real);
            }
        }
        l.scan_from = u64::MAX;
        l.tries += 1;
        if l.tries == TRIES {
            self.total.given_up += 1;
            self.next(i);
        }
        BEGIN + POINT
    }

    fn next(&mut self, i: usize) {
        let l = &mut self.workers[i];
        l.serial += 1;
        (l.tries, l.scan_from, l.at) = (0, u64::MAX, At::Begin);
        l.program = self.c.workload.next(i as u64, l.serial, &mut l.rng);
    }
}

fn failed(c: Conflict) -> Failed {
    match c {
        Conflict::Range => Failed::Scan { wrapped: false, known_false: false },
        Conflict::FalseRange => Failed::Scan { wrapped: false, known_false: true },
        Conflict::Record => Failed::Point,
    }
}

fn judge(e: Error) -> Failed {
    match e {
        Error::Abort { reason: AbortReason::Phantom, .. } => Failed::Scan { wrapped: false, known_false: false },
        Error::Abort { reason: AbortReason::PredicateWrapped, .. } => {
            Failed::Scan { wrapped: true, known_false: false }
        }
        Error::Abort { reason: AbortReason::ReadChanged, .. } => Failed::Row,
        Error::Abort { .. } | Error::Deadlock => Failed::Point,
        e => panic!("{e:?}"),
    }
}
