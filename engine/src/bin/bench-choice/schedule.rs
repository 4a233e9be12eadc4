//! Loads that change: every phase another workload, under one protocol, under the hybrid, or with the coordinator choosing.

use crate::store::{Store, Worker};
use crate::workload::{Keys, Program, Rng, Skew, Workload};
use mixedcc_engine::choice::{Chooser, Model, Settings, NAMES};
use mixedcc_engine::primitive::thread_cpu_ns;
use mixedcc_engine::{Protocol, ProtocolSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Keys of each partition that the hybrid locks.
const HOT: u64 = 16;
const PARTITIONS: u64 = 8;
const THREADS: u64 = 8;
const PROGRAMS: usize = 256;

/// How the load changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// At random: CormCC, section 6.4.
    Varied,
    /// In every phase half of the partitions are partitionable and half are contended, all declared.
    Half,
    /// The same, but transactions over several partitions declare none.
    Undeclared,
    /// ACC's table 1: WL1 to WL6.
    Table1,
    /// CormCC's figure 13: more and more partitions have transactions over several.
    Figure13,
    /// CormCC's figure 14: half of the partitions have such, and more and more are only read.
    Figure14,
}

impl Kind {
    pub const ALL: [(&'static str, Kind); 6] = [
        ("varied", Kind::Varied),
        ("half", Kind::Half),
        ("undeclared", Kind::Undeclared),
        ("table1", Kind::Table1),
        ("figure13", Kind::Figure13),
        ("figure14", Kind::Figure14),
    ];
    pub fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.0 == name).map(|k| k.1)
    }
    /// Phases of the figures; of the random ones as many as are asked for.
    fn phases(self) -> Option<u64> {
        match self {
            Kind::Varied | Kind::Half | Kind::Undeclared => None,
            Kind::Table1 => Some(6),
            Kind::Figure13 | Kind::Figure14 => Some(PARTITIONS + 1),
        }
    }
}

pub struct Plan {
    pub kind: Kind,
    pub seed: u64,
    pub phases: u64,
    pub intervals: u64,
    pub interval_s: f64,
    /// Decisions are printed to the standard error.
    pub explain: bool,
}

/// With 8 partitions instead of the papers' 32.
fn phase(p: &Plan, no: u64) -> Workload {
    let mut r = Rng::new(p.seed * 1000 + no);
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
        home: false,
        declared: true,
        declared_crossed: true,
        ordered: false,
        yields: 1,
        work_ns: 0,
    };
    match p.kind {
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
            declared_crossed: p.kind == Kind::Half,
            ..common
        },
        Kind::Table1 => Workload { reads: [50, 100][no as usize % 2], crossed: no / 2 * PARTITIONS / 2, ..common },
        Kind::Figure13 => Workload { skew: Skew::Zipf(1.5), crossed: no, ..common },
        Kind::Figure14 => Workload { skew: Skew::Zipf(1.5), crossed: PARTITIONS / 2, read_only: no, ..common },
    }
}

#[derive(Default)]
struct Counts {
    commits: AtomicU64,
    cpu_ns: AtomicU64,
}

/// What is in charge.
fn set(store: &Store, mode: &str) -> bool {
    store.set(match mode {
        "hybrid" => None,
        "adaptive" => Some(Protocol::Occ),
        // One protocol in the first half of the partitions, another one in the second: the best that can be chosen.
        mixed if mixed.contains('/') => {
            let parts = store.table.map().partitions();
            for (p, name) in parts.chunks(PARTITIONS as usize / 2).zip(mixed.split('/')) {
                let set = ProtocolSet::of(Protocol::parse(name).expect("a protocol"));
                p.iter().for_each(|p| p.put(&store.e, set, None).expect("the platform sees deadlocks"));
            }
            return false;
        }
        name => Some(Protocol::parse(name).expect("a protocol")),
    });
    mode == "adaptive"
}

/// What was decided about each partition, and why.
fn explain(store: &Store, interval: u64) {
    for (no, part) in store.table.map().partitions().iter().enumerate() {
        let d = part.decided.read().decision;
        let features: Vec<_> = NAMES.iter().zip(d.load.features).map(|(n, f)| format!("{n} {f:.3}")).collect();
        eprintln!(
            "{interval} {no} {} | {} | cost {:.1} before {:.1} lost {:.2} txns {} | predicted {:.2?} learned {:.2?} x {:.2?} | {}",
            part.protocols().name(),
            d.status.text(),
            d.load.cost_us,
            d.before_us,
            d.load.lost,
            d.load.txns,
            d.predicted,
            d.learned.add,
            d.learned.weight,
            features.join(" ")
        );
    }
}

/// Runs the plan and prints a line an interval.
pub fn run(p: &Plan, mode: &str, model: Option<Model>) {
    let p = &Plan { phases: p.kind.phases().unwrap_or(p.phases), ..*p };
    let store = Store::new(PARTITIONS, 2000, if mode == "hybrid" { HOT } else { 0 });
    store.e.shared.sample_every.set(4);
    let adaptive = set(&store, mode);
    let workloads: Vec<Workload> = (0..p.phases).map(|n| phase(p, n)).collect();
    let keys: Vec<Keys> = workloads.iter().map(|w| Keys::new(w.rows, w.skew)).collect();
    let (stop, now_in) = (AtomicBool::new(false), AtomicUsize::new(0));
    let counts: Vec<Counts> = (0..THREADS).map(|_| Counts::default()).collect();
    let work = |thread: u64| {
        let all: Vec<Vec<Program>> = (0..p.phases as usize)
            .map(|n| {
                let mut rng = Rng::new(p.seed * 10_000 + n as u64 * 100 + thread);
                (0..PROGRAMS).map(|_| workloads[n].program(thread, &keys[n], &mut rng)).collect()
            })
            .collect();
        let mut me = Worker::new(&store, thread as u16 + 1);
        let mine = &counts[thread as usize];
        let mut i = 0;
        while !stop.load(Ordering::Relaxed) {
            let n = now_in.load(Ordering::Relaxed);
            (me.yields, me.work_ns, me.declared) = (workloads[n].yields, workloads[n].work_ns, workloads[n].declared);
            let program = &all[n][i % PROGRAMS];
            me.declared &= workloads[n].declared_crossed || program.touched.len() == 1;
            let done = me.run(program);
            i += done as usize;
            mine.commits.fetch_add(done as u64, Ordering::Relaxed);
            mine.cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
        }
    };
    let settings = Settings { forget_us: (600.0 * p.interval_s * 1e6) as u64, ..Settings::default() };
    let mut chooser = Chooser::new(&store.e, model.unwrap_or_else(Model::built_in));
    std::thread::scope(|sc| {
        let work = &work;
        for i in 0..THREADS {
            sc.spawn(move || work(i));
        }
        std::thread::sleep(Duration::from_millis(500)); // programs are made, caches filled
        let begun = Instant::now();
        let total = |f: fn(&Counts) -> &AtomicU64| counts.iter().map(|c| f(c).load(Ordering::Relaxed)).sum::<u64>();
        let (mut commits, mut cpu, mut at) = (total(|c| &c.commits), total(|c| &c.cpu_ns), 0.0);
        for n in 0..p.phases * p.intervals {
            now_in.store((n / p.intervals) as usize, Ordering::Relaxed);
            let end = (n + 1) as f64 * p.interval_s;
            store.e.pin(0);
            while begun.elapsed().as_secs_f64() < end {
                store.e.advance_switches(&[store.table], begun.elapsed().as_micros() as u64, false);
                std::thread::sleep(Duration::from_millis(2));
            }
            let us = begun.elapsed().as_micros() as u64;
            let asked = if adaptive { chooser.pass(&store.e, &[store.table], us, true, &settings).len() } else { 0 };
            if adaptive && p.explain {
                explain(&store, n);
            }
            store.e.unpin(0);
            for part in store.table.map().partitions() {
                part.stats.sampled.clear_marks();
            }
            let (c, k, t) = (total(|c| &c.commits), total(|c| &c.cpu_ns), us as f64 / 1e6);
            let in_use: Vec<_> = store.table.map().partitions().iter().map(|p| p.protocols().name()).collect();
            println!(
                "{},{mode},{n},{},{:.3},{},{:.4},{asked},{}",
                p.seed,
                n / p.intervals,
                t - at,
                c - commits,
                (k - cpu) as f64 / 1e9,
                in_use.join(" ")
            );
            (commits, cpu, at) = (c, k, t);
        }
        stop.store(true, Ordering::Relaxed);
    });
}
