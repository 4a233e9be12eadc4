//! Commits while all partitions are switched from one protocol to another and a long transaction
//! delays the switch (CormCC, section 6.6).

use crate::schedule::{totals, Counts};
use crate::store::{Store, Worker, THREADS};
use crate::workload::{Keys, Program, Rng, Skew, Workload};
use mixedcc_engine::clock::thread_cpu_ns;
use mixedcc_engine::switch::Why;
use mixedcc_engine::{Protocol, Table};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PROGRAMS: usize = 1024;
/// The time in seconds that a line of the output covers.
const BUCKET: f64 = 0.1;
/// The longest time that a switch under short transactions takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// The bytes for versions that a long transaction keeps.
const SPARE: usize = 3 << 30;

pub struct Plan {
    pub seed: u64,
    /// The old and the new protocol. If they are equal, no switch is requested, which shows the
    /// effect of the long transaction by itself.
    pub pairs: Vec<(Protocol, Protocol)>,
    /// The duration of the long transaction in seconds.
    pub lengths: Vec<f64>,
    /// The time before the request, and after the long transaction, in seconds.
    pub seconds: f64,
    /// Also switch by the stop-all method, right after each mediated switch?
    pub stop_all: bool,
    pub yields: u64,
}

/// Ends the program with a message unless `is` holds. A panic would wait for the workers.
fn must(is: bool, what: &str) {
    if !is {
        eprintln!("{what}");
        std::process::exit(1);
    }
}

/// CormCC's short transactions: 10 reads and 10 read-modify-writes, uniform, each transaction in
/// one partition here.
fn workload(p: &Plan) -> Workload {
    Workload {
        threads: 8,
        partitions: 8,
        rows: 10_000,
        skew: Skew::Zipf(0.0),
        reads: 50,
        read_only: 0,
        ops: 20,
        crossed: 0,
        cross: 0,
        across: 0,
        home: false,
        declared: true,
        declared_crossed: true,
        ordered: false,
        yields: p.yields,
        work_ns: 0,
    }
}

struct Bench<'a> {
    p: &'a Plan,
    store: &'a Store,
    side: &'static Table,
    counts: &'a [Counts],
    begun: Instant,
}

impl Bench<'_> {
    fn work(&self, thread: usize, w: &Workload, programs: &[Program], stop: &AtomicBool) {
        let mut me = Worker::new(self.store, thread as u16 + 1);
        (me.yields, me.work_ns, me.declared) = (w.yields, w.work_ns, w.declared);
        let mine = &self.counts[thread];
        let mut i = 0;
        while !stop.load(Ordering::Relaxed) {
            let done = me.run(&programs[i % PROGRAMS]);
            i += done as usize;
            mine.attempts.fetch_add(1, Ordering::Relaxed);
            mine.commits.fetch_add(done as u64, Ordering::Relaxed);
            mine.cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
        }
    }

    /// Runs a pass of the coordinator. Returns the number of switches still under way.
    fn advance(&self, stop_all: bool) -> u64 {
        let e = &self.store.e;
        e.pin(0);
        let now = self.begun.elapsed().as_micros() as u64;
        let made = e.advance_switches(&[self.store.table], now, stop_all);
        e.unpin(0);
        std::thread::sleep(Duration::from_millis(1));
        made.under_way
    }

    /// Requests a protocol for all partitions.
    fn ask(&self, to: Protocol) {
        let now = self.begun.elapsed().as_micros() as u64;
        for part in self.store.table.map().partitions() {
            must(part.choose(&self.store.e, to, Why::Chosen, now), "a switch was under way");
        }
    }

    /// Runs passes until no switch is under way.
    fn settle(&self, to: Protocol, stop_all: bool) {
        let begun = Instant::now();
        while self.advance(stop_all) > 0 {
            must(begun.elapsed() < PATIENCE, "a switch does not end");
        }
        let parts = self.store.table.map().partitions();
        must(parts.iter().all(|p| p.protocols().single() == Some(to)), "the switch was lost");
    }

    /// Makes one switch and prints lines of a tenth of a second. `at_s` is the time since the
    /// request.
    fn switch(&self, (old, new): (Protocol, Protocol), length: f64, stop_all: bool, serial: u64) {
        if self.store.table.map().partitions()[0].protocols().single() != Some(old) {
            self.ask(old);
        }
        self.settle(old, false);
        let buckets = |s: f64| (s / BUCKET).round() as i64;
        let (before, after) = (buckets(self.p.seconds), buckets(length + self.p.seconds));
        let slot = THREADS as u16;
        let begun = AtomicBool::new(false);
        std::thread::scope(|sc| {
            let start = Instant::now();
            let (mut counted, mut at) = (totals(self.counts), start.elapsed());
            for bucket in -before..after {
                if bucket == 0 {
                    let (begun, length) = (&begun, Duration::from_secs_f64(length));
                    let ident = (slot as u64) << 40 | serial;
                    sc.spawn(move || {
                        self.store.hold(self.side, slot, ident, length, || begun.store(true, Ordering::SeqCst))
                    });
                    while !begun.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    if old != new {
                        self.ask(new);
                    }
                }
                let end = Duration::from_secs_f64((bucket + before + 1) as f64 * BUCKET);
                while start.elapsed() < end {
                    self.advance(stop_all);
                }
                let (now, to) = (totals(self.counts), start.elapsed());
                let [commits, attempts, cpu_ns]: [u64; 3] = std::array::from_fn(|i| now[i] - counted[i]);
                println!(
                    "engine,{},{},{},{},{length},{:.1},{:.4},{commits},{attempts},{:.4}",
                    self.p.seed,
                    if stop_all { "stop_all" } else { "mediated" },
                    old.name(),
                    new.name(),
                    bucket as f64 * BUCKET,
                    (to - at).as_secs_f64(),
                    cpu_ns as f64 / 1e9
                );
                (counted, at) = (now, to);
            }
        });
        self.settle(new, stop_all);
    }
}

/// Runs the plan.
pub fn run(p: &Plan) {
    let w = workload(p);
    let keys = Keys::new(w.rows, w.skew);
    let programs = |thread: u64| -> Vec<Program> {
        let mut rng = Rng::new(p.seed * 1000 + thread);
        (0..PROGRAMS).map(|_| w.program(thread, &keys, &mut rng)).collect()
    };
    let programs: Vec<Vec<Program>> = (0..w.threads).map(programs).collect();
    let store = Store::with_spare(w.partitions, w.rows, 0, SPARE);
    let counts: Vec<Counts> = (0..w.threads).map(|_| Counts::default()).collect();
    let b = Bench { p, side: store.side_table(), store: &store, counts: &counts, begun: Instant::now() };
    let stop = AtomicBool::new(false);
    println!("source,seed,method,old,new,long_s,at_s,seconds,commits,attempts,cpu_s");
    std::thread::scope(|sc| {
        for (thread, programs) in programs.iter().enumerate() {
            let (b, w, stop) = (&b, &w, &stop);
            sc.spawn(move || b.work(thread, w, programs, stop));
        }
        std::thread::sleep(Duration::from_millis(300));
        let mut serial = 1;
        for &length in &p.lengths {
            for &pair in &p.pairs {
                let methods: &[bool] = if p.stop_all && pair.0 != pair.1 { &[false, true] } else { &[false] };
                for &stop_all in methods {
                    b.switch(pair, length, stop_all, serial);
                    serial += 1;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
