//! Changing loads. Every phase has another workload, under one protocol, under the hybrid, or with
//! the coordinator choosing. The modes take turns in each phase, so that other load of the machine
//! affects all of them.

use crate::store::{Store, Worker};
use crate::workload::{Keys, Program, Rng, Skew, Workload};
use mixedcc_engine::choice::{Chooser, Load, Model, Reading, Settings, NAMES};
use mixedcc_engine::clock::thread_cpu_ns;
use mixedcc_engine::primitive::processor_ticks;
use mixedcc_engine::{Engine, Protocol, ProtocolSet, Table};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// The number of keys in each partition that the hybrid locks.
const HOT: u64 = 16;
const PARTITIONS: u64 = 8;
pub const THREADS: u64 = 8;
const PROGRAMS: usize = 256;
/// The shares of [`Kind::Across`], by phase.
const ACROSS: [u64; 8] = [0, 5, 10, 20, 40, 60, 80, 100];
/// The time of each mode before the first phase.
const WARM_UP: Duration = Duration::from_millis(200);
/// The time within which a transaction ends.
const PATIENCE: Duration = Duration::from_secs(20);

/// A changing load: the threads' work in each phase.
pub trait Phased: Sync {
    /// The tables of a mode.
    type Site: Site;
    fn phases(&self) -> u64;
    /// Makes tables for a mode, under its protocols. `adaptive` begins with `occ`.
    fn site(&self, mode: &str) -> Self::Site;
    /// A thread's work with them. Each call is one attempt of a transaction of a phase, and returns
    /// whether it has committed.
    fn worker<'a>(&'a self, site: &'a Self::Site, thread: u64) -> Box<dyn FnMut(u64) -> bool + 'a>;
}

/// The tables of a mode.
pub trait Site: Sync {
    fn engine(&self) -> Engine;
    fn tables(&self) -> &[&'static Table];
    /// The name of a table, if there are several.
    fn name(&self, table: usize) -> &str;
    /// Checks that everything committed is there. No thread is at work any more.
    fn check(&self) -> Result<(), String>;
}

/// The models by which modes choose.
pub struct Models {
    /// The model of the mode `adaptive`.
    pub adaptive: Model,
    /// The model of the mode `wrong`, which is wrong on purpose.
    pub wrong: Option<Model>,
}

impl Models {
    /// The model of a mode, without its part from a tilde on. `None`: the mode does not choose.
    fn of(&self, mode: &str) -> Option<&Model> {
        match mode {
            "adaptive" => Some(&self.adaptive),
            "wrong" => Some(self.wrong.as_ref().expect("the mode needs --wrong FILE")),
            _ => None,
        }
    }
}

/// The way in which a synthesized load changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// At random: CormCC, section 6.4.
    Varied,
    /// In every phase half of the partitions are partitionable and half are contended. All are
    /// declared.
    Half,
    /// As `Half`, but transactions over several partitions declare none.
    Undeclared,
    /// Table 1 of ACC: WL1 to WL6.
    Table1,
    /// Figure 13 of CormCC: in more and more partitions transactions touch several partitions.
    Figure13,
    /// Figure 14 of CormCC: that holds for half of the partitions, and more and more are only read.
    Figure14,
    /// Figure 7 of ACC: half of the partitions are partitionable and half are contended; more and
    /// more transactions touch both.
    Across,
}

impl Kind {
    pub const ALL: [(&'static str, Kind); 7] = [
        ("varied", Kind::Varied),
        ("half", Kind::Half),
        ("undeclared", Kind::Undeclared),
        ("table1", Kind::Table1),
        ("figure13", Kind::Figure13),
        ("figure14", Kind::Figure14),
        ("across", Kind::Across),
    ];
    /// The kind with a name without `_home`; see [`Synthesized::new`].
    pub fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.0 == name).map(|k| k.1)
    }
    /// The number of phases of a figure. Random loads have as many as requested.
    fn phases(self) -> Option<u64> {
        match self {
            Kind::Varied | Kind::Half | Kind::Undeclared => None,
            Kind::Table1 => Some(6),
            Kind::Figure13 | Kind::Figure14 => Some(PARTITIONS + 1),
            Kind::Across => Some(ACROSS.len() as u64),
        }
    }
}

pub struct Plan {
    pub seed: u64,
    /// The number of phases of random loads. Figures have their own.
    pub phases: u64,
    pub intervals: u64,
    pub interval_s: f64,
    /// Print decisions to the standard error.
    pub explain: bool,
    /// Print each partition's features and the cost of the phase, instead of intervals, as training
    /// data.
    pub features: bool,
}

/// A phase of a kind. With `home` each thread has a partition of its own, as in H-Store, at which
/// its transactions begin; otherwise they begin at any partition. There are 8 partitions instead of
/// the papers' 32.
fn phase(kind: Kind, home: bool, seed: u64, no: u64) -> Workload {
    let mut r = Rng::new(seed * 1000 + no);
    let common = Workload {
        threads: THREADS,
        partitions: PARTITIONS,
        rows: 2000,
        skew: Skew::Zipf(1.0),
        reads: 80,
        read_only: 0,
        ops: 20,
        crossed: 0,
        cross: 100,
        across: 0,
        home,
        declared: true,
        declared_crossed: true,
        ordered: false,
        yields: 1,
        work_ns: 0,
    };
    match kind {
        Kind::Varied => Workload {
            reads: r.of(&[50, 80, 100]),
            skew: Skew::Zipf(r.of(&[0.0, 0.5, 1.0, 1.5])),
            ops: r.of(&[15, 25]),
            crossed: r.below(PARTITIONS + 1),
            cross: 50 + r.below(51),
            ..common
        },
        Kind::Half | Kind::Undeclared => Workload {
            reads: r.of(&[50, 80]),
            skew: Skew::Zipf(r.of(&[1.0, 1.2])),
            ops: r.of(&[15, 25]),
            crossed: PARTITIONS / 2,
            declared_crossed: kind == Kind::Half,
            ..common
        },
        Kind::Table1 => Workload { reads: [50, 100][no as usize % 2], crossed: no / 2 * PARTITIONS / 2, ..common },
        Kind::Figure13 => Workload { skew: Skew::Zipf(1.5), crossed: no, ..common },
        Kind::Figure14 => Workload { skew: Skew::Zipf(1.5), crossed: PARTITIONS / 2, read_only: no, ..common },
        Kind::Across => Workload { reads: 50, crossed: PARTITIONS / 2, across: ACROSS[no as usize], ..common },
    }
}

/// A synthesized load: every phase has another workload. All modes run the same transactions.
pub struct Synthesized {
    workloads: Vec<Workload>,
    /// Programs by thread and phase.
    programs: Vec<Vec<Vec<Program>>>,
}

impl Synthesized {
    /// See [`phase`] for `home`.
    pub fn new(kind: Kind, home: bool, p: &Plan) -> Synthesized {
        let phases = kind.phases().unwrap_or(p.phases);
        let workloads: Vec<Workload> = (0..phases).map(|n| phase(kind, home, p.seed, n)).collect();
        let keys: Vec<Keys> = workloads.iter().map(|w| Keys::new(w.rows, w.skew)).collect();
        let of_phase = |thread: u64, n: usize| -> Vec<Program> {
            let mut rng = Rng::new(p.seed * 10_000 + n as u64 * 100 + thread);
            (0..PROGRAMS).map(|_| workloads[n].program(thread, &keys[n], &mut rng)).collect()
        };
        let of_thread = |thread: u64| -> Vec<Vec<Program>> { (0..keys.len()).map(|n| of_phase(thread, n)).collect() };
        let programs = (0..THREADS).map(of_thread).collect();
        Synthesized { workloads, programs }
    }
}

impl Phased for Synthesized {
    type Site = Store;
    fn phases(&self) -> u64 {
        self.workloads.len() as u64
    }
    fn site(&self, mode: &str) -> Store {
        let store = Store::new(PARTITIONS, 2000, if mode == "hybrid" { HOT } else { 0 });
        set(&store, mode);
        store
    }
    fn worker<'a>(&'a self, store: &'a Store, thread: u64) -> Box<dyn FnMut(u64) -> bool + 'a> {
        let mut me = Worker::new(store, thread as u16 + 1);
        let mut i = 0;
        Box::new(move |phase| {
            let w = &self.workloads[phase as usize];
            let program = &self.programs[thread as usize][phase as usize][i % PROGRAMS];
            (me.yields, me.work_ns) = (w.yields, w.work_ns);
            me.declared = w.declared && (w.declared_crossed || program.touched.len() == 1);
            let done = me.run(program);
            i += done as usize;
            done
        })
    }
}

impl Site for Store {
    fn engine(&self) -> Engine {
        self.e
    }
    fn tables(&self) -> &[&'static Table] {
        std::slice::from_ref(&self.table)
    }
    fn name(&self, _: usize) -> &str {
        ""
    }
    fn check(&self) -> Result<(), String> {
        Ok(()) // Programs do not say which result they leave.
    }
}

/// The counts of one thread.
#[derive(Default)]
pub struct Counts {
    pub commits: AtomicU64,
    pub attempts: AtomicU64,
    pub cpu_ns: AtomicU64,
}

/// The sums of all threads' commits, attempts and nanoseconds.
pub fn totals(all: &[Counts]) -> [u64; 3] {
    let sum = |f: fn(&Counts) -> &AtomicU64| all.iter().map(|c| f(c).load(Ordering::Relaxed)).sum();
    [sum(|c| &c.commits), sum(|c| &c.attempts), sum(|c| &c.cpu_ns)]
}

/// Lets the workers of a contestant run only in its turn. They stop between two transactions, when
/// they hold no lock.
#[derive(Default)]
struct Gate {
    open: AtomicBool,
    over: AtomicBool,
    parked: AtomicU64,
    lock: Mutex<()>,
    turn: Condvar,
}

impl Gate {
    /// A worker waits here for its turn. Returns false if there are no more turns.
    fn pass(&self) -> bool {
        if self.open.load(Ordering::Relaxed) {
            return true;
        }
        let mut held = self.lock.lock().unwrap_or_else(|e| e.into_inner());
        self.parked.fetch_add(1, Ordering::SeqCst);
        while !self.open.load(Ordering::SeqCst) && !self.over.load(Ordering::SeqCst) {
            held = self.turn.wait(held).unwrap_or_else(|e| e.into_inner());
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
        !self.over.load(Ordering::SeqCst)
    }
    fn wake(&self, flag: &AtomicBool) {
        let held = self.lock.lock().unwrap_or_else(|e| e.into_inner());
        flag.store(true, Ordering::SeqCst);
        drop(held);
        self.turn.notify_all();
    }
    /// Returns when all workers wait.
    fn close(&self) {
        self.open.store(false, Ordering::SeqCst);
        let begun = Instant::now();
        while self.parked.load(Ordering::SeqCst) < THREADS {
            std::thread::sleep(Duration::from_micros(100));
            if begun.elapsed() > PATIENCE {
                eprintln!("a worker does not come back");
                std::process::exit(1); // Otherwise the program would wait for the other threads.
            }
        }
    }
}

/// Puts a mode into effect.
fn set(store: &Store, mode: &str) {
    store.set(match mode {
        "hybrid" => None,
        "adaptive" => Some(Protocol::DEFAULT),
        // One protocol in the first half of the partitions, and another in the second: the best
        // possible choice.
        mixed if mixed.contains('/') => {
            let parts = store.table.map().partitions();
            for (p, name) in parts.chunks(PARTITIONS as usize / 2).zip(mixed.split('/')) {
                let set = ProtocolSet::of(Protocol::parse(name).expect("a protocol"));
                p.iter().for_each(|p| p.put(&store.e, set, None).expect("the platform sees deadlocks"));
            }
            return;
        }
        name => Some(Protocol::parse(name).expect("a protocol")),
    });
}

/// Prints the decisions about each partition with their reasons.
fn explain(site: &impl Site, interval: u64) {
    for (n, table) in site.tables().iter().enumerate() {
        for (no, part) in table.map().partitions().iter().enumerate() {
            let d = part.decided.read().decision;
            let features: Vec<_> = NAMES.iter().zip(d.load.features).map(|(n, f)| format!("{n} {f:.3}")).collect();
            eprintln!(
                "{interval} {}{no} {} | {} | cost {:.1} before {:.1} lost {:.2} own {:.3} slept {:.2} own {:.3} txns {} | predicted {:.2?} learned {:.2?} x {:.2?} | {}",
                site.name(n),
                part.protocols().name(),
                d.status.text(),
                d.load.cost_us,
                d.before_us,
                d.load.lost,
                d.load.own_lost,
                d.load.slept,
                d.load.own_slept,
                d.load.txns,
                d.predicted,
                d.learned.add,
                d.learned.weight,
                features.join(" ")
            );
        }
    }
}

/// The protocols of all partitions.
fn in_use(site: &impl Site) -> String {
    let of_table = |t: &&'static Table| {
        let names: Vec<_> = t.map().partitions().iter().map(|p| p.protocols().name()).collect();
        names.join(" ")
    };
    site.tables().iter().map(of_table).collect::<Vec<_>>().join("; ")
}

/// A mode, with tables and workers of its own.
struct Contestant<'l, L: Phased> {
    mode: String,
    load: &'l L,
    site: L::Site,
    /// The model of its coordinator, if it has one.
    model: Option<Model>,
    /// The phase, which the workers read.
    phase: AtomicU64,
    counts: Vec<Counts>,
    gate: Gate,
}

impl<'l, L: Phased> Contestant<'l, L> {
    fn new(load: &'l L, mode: &str, models: &Models) -> Contestant<'l, L> {
        // The part from a tilde on distinguishes runs of the same mode.
        let name = mode.split('~').next().unwrap_or(mode);
        let model = models.of(name).cloned();
        let site = load.site(if model.is_some() { "adaptive" } else { name });
        site.engine().shared.sample_every.set(4);
        let counts = (0..THREADS).map(|_| Counts::default()).collect();
        Contestant {
            mode: mode.to_string(),
            load,
            site,
            model,
            phase: AtomicU64::new(0),
            counts,
            gate: Gate::default(),
        }
    }

    /// A worker: repeats the transactions of the phase.
    fn work(&self, thread: u64) {
        let mut attempt = self.load.worker(&self.site, thread);
        let mine = &self.counts[thread as usize];
        while self.gate.pass() {
            let done = attempt(self.phase.load(Ordering::Relaxed));
            mine.attempts.fetch_add(1, Ordering::Relaxed);
            mine.commits.fetch_add(done as u64, Ordering::Relaxed);
            mine.cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
        }
    }
}

/// A contestant's coordinator. Its clock stops during the turns of others.
struct Turns<'a, L: Phased> {
    c: &'a Contestant<'a, L>,
    chooser: Chooser,
    settings: Settings,
    us: u64,
}

impl<'a, L: Phased> Turns<'a, L> {
    fn new(c: &'a Contestant<'a, L>, p: &Plan) -> Turns<'a, L> {
        let settings = Settings { forget_us: (600.0 * p.interval_s * 1e6) as u64, ..Settings::default() };
        let model = c.model.clone().unwrap_or_else(Model::built_in);
        Turns { c, chooser: Chooser::new(&c.site.engine(), model), settings, us: 0 }
    }

    /// Advances switches until `end`, then the coordinator examines the interval. Returns how many
    /// switches it has requested.
    fn interval(&mut self, end: Duration, begun: Instant, base: u64) -> usize {
        let (e, tables) = (self.c.site.engine(), self.c.site.tables());
        e.pin(0);
        while begun.elapsed() < end {
            e.advance_switches(tables, base + begun.elapsed().as_micros() as u64, false);
            std::thread::sleep(Duration::from_millis(2));
        }
        self.us = base + begun.elapsed().as_micros() as u64;
        let asked = match self.c.model {
            Some(_) => self.chooser.pass(&e, tables, self.us, true, &self.settings).len(),
            None => 0,
        };
        e.unpin(0);
        for part in tables.iter().flat_map(|t| t.map().partitions()) {
            part.stats.sampled.clear_marks();
        }
        asked
    }

    /// A turn with the load of a phase that is not counted. It fills caches and gives the
    /// coordinator its first reading.
    fn warm_up(&mut self) {
        self.c.gate.close();
        self.c.gate.wake(&self.c.gate.open);
        self.interval(WARM_UP, Instant::now(), 0);
        self.c.gate.close();
    }

    /// Prints a phase's features, over its intervals without the first one.
    fn learn(&mut self, p: &Plan, no: u64, base: u64, begun: Instant) {
        let c = self.c;
        self.interval(Duration::from_secs_f64(p.interval_s), begun, base);
        let (before, readings, at) = (totals(&c.counts), self.readings(), begun.elapsed());
        self.interval(Duration::from_secs_f64(p.intervals as f64 * p.interval_s), begun, base);
        let (now, elapsed) = (totals(&c.counts), begun.elapsed() - at);
        let counted = (now[0] - before[0], (now[2] - before[2]) as f64 / 1e9, elapsed.as_secs_f64());
        let number = p.seed * 1000 + no;
        print_features(&c.site, &format!("{number},0,{}", c.mode), &readings, &self.readings(), counted);
    }

    /// The counters of all partitions, by table.
    fn readings(&self) -> Vec<Vec<Reading>> {
        let ticks = processor_ticks();
        let of = |t: &&'static Table| t.map().partitions().iter().map(|p| Reading::of(p, self.us, ticks)).collect();
        self.c.site.tables().iter().map(of).collect()
    }

    /// A turn: prints a line for each interval.
    fn phase(&mut self, p: &Plan, no: u64) {
        let c = self.c;
        c.phase.store(no, Ordering::Relaxed);
        c.gate.wake(&c.gate.open);
        let (begun, base) = (Instant::now(), self.us);
        let (mut before, mut at) = (totals(&c.counts), begun.elapsed());
        if p.features {
            self.learn(p, no, base, begun);
            return c.gate.close();
        }
        for n in 0..p.intervals {
            let asked = self.interval(Duration::from_secs_f64((n + 1) as f64 * p.interval_s), begun, base);
            let interval = no * p.intervals + n;
            if c.model.is_some() && p.explain {
                explain(&c.site, interval);
            }
            let (now, to) = (totals(&c.counts), begun.elapsed());
            let [commits, attempts, cpu_ns]: [u64; 3] = std::array::from_fn(|i| now[i] - before[i]);
            println!(
                "{},{},{interval},{no},{:.4},{commits},{attempts},{:.4},{asked},{}",
                p.seed,
                c.mode,
                (to - at).as_secs_f64(),
                cpu_ns as f64 / 1e9,
                in_use(&c.site)
            );
            (before, at) = (now, to);
        }
        c.gate.close();
    }
}

/// Prints the features of the counts between two moments, and the cost of a transaction of the
/// whole load. The features are those of the first and the last partition of each table with
/// several.
fn print_features<S: Site>(
    site: &S,
    name: &str,
    before: &[Vec<Reading>],
    after: &[Vec<Reading>],
    counted: (u64, f64, f64),
) {
    let (commits, cpu_s, elapsed_s) = counted;
    let per = 1e6 / commits.max(1) as f64;
    let cost_us = (cpu_s * per * elapsed_s * THREADS as f64 * per).sqrt();
    for (table, (before, after)) in before.iter().zip(after).enumerate().filter(|(_, (b, _))| b.len() > 1) {
        for no in [0, before.len() - 1] {
            let Some(load) = Load::between(&before[no], &after[no]) else { continue };
            let features: Vec<_> = load.features.iter().map(|f| format!("{f:.5}")).collect();
            let here = after[no].commits - before[no].commits;
            println!("{name},{}{no},0,{},{here},{cost_us:.3}", site.name(table), features.join(","));
        }
    }
}

/// Runs a load under each mode, all modes in turns in each phase. Prints a line for each interval.
/// Ends the program if committed data is missing.
pub fn run<L: Phased>(load: &L, p: &Plan, modes: &[&str], models: &Models) {
    let all: Vec<Contestant<L>> = modes.iter().map(|m| Contestant::new(load, m, models)).collect();
    std::thread::scope(|sc| {
        for c in &all {
            for thread in 0..THREADS {
                sc.spawn(move || c.work(thread));
            }
        }
        let mut turns: Vec<Turns<L>> = all.iter().map(|c| Turns::new(c, p)).collect();
        turns.iter_mut().for_each(Turns::warm_up);
        let n = turns.len();
        for no in 0..load.phases() {
            for i in 0..n {
                turns[(no as usize + i) % n].phase(p, no);
            }
        }
        for c in &all {
            c.gate.wake(&c.gate.over);
        }
    });
    for c in &all {
        if let Err(wrong) = c.site.check() {
            eprintln!("{}: {wrong}", c.mode);
            std::process::exit(1);
        }
    }
}
