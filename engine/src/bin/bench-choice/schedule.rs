//! Loads that change: every phase another workload, under one protocol, under the hybrid, or with the coordinator choosing.

use crate::store::{Store, Worker};
use crate::workload::{Keys, Program, Rng, Skew, Workload};
use mixedcc_engine::choice::{Chooser, Model, Settings};
use mixedcc_engine::primitive::thread_cpu_ns;
use mixedcc_engine::Protocol;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Keys of each partition that the hybrid locks.
const HOT: u64 = 16;
const PARTITIONS: u64 = 8;
const THREADS: u64 = 8;
const PROGRAMS: usize = 256;

pub struct Plan {
    pub seed: u64,
    pub phases: u64,
    pub intervals: u64,
    pub interval_s: f64,
    /// Half of the partitions partitionable, half contended, in every phase.
    pub half: bool,
}

/// CormCC, section 6.4, with 8 partitions instead of 32.
fn phase(p: &Plan, no: u64) -> Workload {
    let mut r = Rng::new(p.seed * 1000 + no);
    let reads = if p.half { r.of(&[50, 80]) } else { r.of(&[50, 80, 100]) };
    let theta = if p.half { r.of(&[1.0, 1.2]) } else { r.of(&[0.0, 0.5, 1.0, 1.5]) };
    Workload {
        threads: THREADS,
        partitions: PARTITIONS,
        rows: 2000,
        skew: Skew::Zipf(theta),
        reads,
        cross_reads: reads,
        ops: r.of(&[15, 25]),
        crossed: if p.half { PARTITIONS / 2 } else { r.below(PARTITIONS + 1) },
        cross: if p.half { 100 } else { 50 + r.below(51) },
        home: false,
        declared: true,
        ordered: false,
        yields: 1,
        work_ns: 0,
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
        name => Some(Protocol::parse(name).expect("a protocol")),
    });
    mode == "adaptive"
}

/// Runs the plan and prints a line an interval.
pub fn run(p: &Plan, mode: &str, model: Option<Model>) {
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
            let done = me.run(&all[n][i % PROGRAMS]);
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
