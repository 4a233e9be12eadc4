//! A run: threads that repeat a workload's transactions for some time.

use crate::store::{Store, Worker};
use crate::workload::{Keys, Program, Rng, Workload};
use mixedcc_engine::choice::{Load, Reading};
use mixedcc_engine::clock::thread_cpu_ns;
use mixedcc_engine::partition::Sample;
use mixedcc_engine::primitive::processor_ticks;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
extern "C" {
    fn sched_setaffinity(thread: i32, bytes: usize, cores: *const u64) -> i32;
}

/// Binds this thread to a core, in turns over the threads of a run. The system's own placement
/// changes from run to run. A thread alone on its core yields to no other thread, which can make a
/// run half as fast again. Does nothing if binding fails.
#[cfg(target_os = "linux")]
pub fn bind(thread: usize) {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get()).min(64);
    let mask = 1u64 << (thread % cores);
    // SAFETY: the C library's function, which reads 8 bytes at the mask. 0 is the calling thread.
    unsafe { sched_setaffinity(0, size_of::<u64>(), &raw const mask) };
}

#[cfg(not(target_os = "linux"))]
pub fn bind(_: usize) {}

/// The number of a thread's programs, which it repeats.
const PROGRAMS: usize = 1024;

pub fn programs(w: &Workload, seed: u64) -> Vec<Vec<Program>> {
    let keys = Keys::new(w.rows, w.skew);
    let one = |thread: u64| {
        let mut rng = Rng::new(seed * 1000 + thread);
        (0..PROGRAMS).map(|_| w.program(thread, &keys, &mut rng)).collect()
    };
    (0..w.threads).map(one).collect()
}

/// The result of a run.
pub struct Result {
    pub commits: u64,
    pub attempts: u64,
    pub cpu_s: f64,
    pub elapsed_s: f64,
    pub load: Option<Load>,
}

impl Result {
    /// Microseconds of a transaction; see [`Load::cost_us`]. Computed from the total time of the
    /// processors and that of the threads.
    pub fn cost_us(&self, threads: u64) -> f64 {
        let per = 1e6 / self.commits.max(1) as f64;
        (self.cpu_s * per * self.elapsed_s * threads as f64 * per).sqrt()
    }
}

/// The counters of all partitions.
fn readings(store: &Store, at_us: u64) -> Vec<Reading> {
    let ticks = processor_ticks();
    store.table.map().partitions().iter().map(|p| Reading::of(p, at_us, ticks)).collect()
}

/// The load of one of the partitions in use, which are all alike, from the counters of all
/// together. It is the load that the coordinator would see, with less noise.
fn mean_load(before: &[Reading], after: &[Reading]) -> Option<Load> {
    let (mut all, mut used) = (Load::default(), 0.0);
    let (mut s, mut commits, mut busy_ns) = (Sample::default(), 0, 0);
    for (b, a) in before.iter().zip(after).filter(|(b, a)| a.commits > b.commits) {
        s = sum(&s, &a.sample.since(&b.sample));
        commits += a.commits - b.commits;
        busy_ns += a.busy_ns - b.busy_ns;
        used += 1.0;
        all = Load::between(b, a).unwrap_or(all);
    }
    let (b, a) = (before.first()?, after.first()?);
    let seconds = (a.at_us - b.at_us) as f64 / 1e6;
    Load::of(&s, commits as f64, busy_ns as f64, seconds * used, all.busy)
}

fn sum(a: &Sample, b: &Sample) -> Sample {
    Sample {
        txns: a.txns + b.txns,
        reads: a.reads + b.reads,
        writes: a.writes + b.writes,
        serializable: a.serializable + b.serializable,
        weak_writers: a.weak_writers + b.weak_writers,
        multi: a.multi + b.multi,
        partitions: a.partitions + b.partitions,
        duration_ns: a.duration_ns + b.duration_ns,
        lost: a.lost + b.lost,
        lost_ns: a.lost_ns + b.lost_ns,
        cpu_ns: a.cpu_ns + b.cpu_ns,
        lost_cpu_ns: a.lost_cpu_ns + b.lost_cpu_ns,
        slept_ns: a.slept_ns + b.slept_ns,
        stretch: a.stretch + b.stretch,
        declared: a.declared + b.declared,
        ordered: a.ordered + b.ordered,
        round_trips: a.round_trips + b.round_trips,
        idle: a.idle + b.idle,
        retries: a.retries + b.retries,
        turns: a.turns + b.turns,
        looks: a.looks + b.looks,
        conflicts: a.conflicts + b.conflicts,
    }
}

/// Runs a workload for this time. A warm-up of a quarter of it is not counted.
pub fn run(store: &Store, w: &Workload, all: &[Vec<Program>], seconds: f64) -> Result {
    let (stop, counted) = (AtomicBool::new(false), AtomicBool::new(false));
    let sums: [AtomicU64; 3] = Default::default();
    for p in store.table.map().partitions() {
        p.reset_counts();
    }
    let work = |thread: usize| {
        bind(thread);
        let mut me = Worker::new(store, thread as u16 + 1);
        (me.yields, me.work_ns, me.declared) = (w.yields, w.work_ns, w.declared);
        let (mut commits, mut attempts, mut from) = (0u64, 0u64, None);
        'all: for program in all[thread].iter().cycle() {
            loop {
                if stop.load(Ordering::Relaxed) {
                    break 'all;
                }
                if from.is_none() && counted.load(Ordering::Relaxed) {
                    (from, commits, attempts) = (Some(thread_cpu_ns()), 0, 0);
                }
                attempts += 1;
                if me.run(program) {
                    commits += 1;
                    break;
                }
            }
        }
        let cpu = thread_cpu_ns() - from.unwrap_or_else(thread_cpu_ns);
        if from.is_some() {
            for (to, n) in sums.iter().zip([commits, attempts, cpu]) {
                to.fetch_add(n, Ordering::Relaxed);
            }
        }
    };
    let begun = Instant::now();
    let at = || begun.elapsed().as_micros() as u64;
    let mut load = None;
    let mut elapsed_s = 0.0;
    std::thread::scope(|sc| {
        let work = &work;
        for i in 0..w.threads as usize {
            sc.spawn(move || work(i));
        }
        std::thread::sleep(Duration::from_secs_f64(seconds * 0.25));
        let before = readings(store, at());
        counted.store(true, Ordering::Relaxed);
        let start = Instant::now();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        load = mean_load(&before, &readings(store, at()));
        stop.store(true, Ordering::Relaxed);
        elapsed_s = start.elapsed().as_secs_f64();
    });
    let [commits, attempts, cpu] = sums.map(|s| s.into_inner());
    Result { commits, attempts, cpu_s: cpu as f64 / 1e9, elapsed_s, load }
}
