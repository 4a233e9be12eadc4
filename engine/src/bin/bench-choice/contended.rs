//! A contended load (MOCC, section 5.4 and figures 2 and 7). Each transaction has ten accesses of
//! different records, of fifty, in random order. So many of them are read-modify-writes, the others
//! reads.

use crate::run::bind;
use crate::store::{Store, Worker, THREADS};
use crate::workload::{Op, Program, Rng};
use mixedcc_engine::clock::thread_cpu_ns;
use mixedcc_engine::partition::{set_ordered, set_threshold};
use mixedcc_engine::{Policy, Protocol};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The name that stands for a waiting policy, where locks out of the canonical order are tried
/// once.
const ORDERED: &str = "ordered";

/// A protocol, the threshold of heat if it has one, and a waiting policy.
pub struct Mode {
    name: String,
    protocol: Protocol,
    threshold: Option<u8>,
    policy: Policy,
    ordered: bool,
}

impl Mode {
    /// A protocol's name, perhaps with a colon and a threshold; then perhaps a slash and a policy.
    pub fn parse(name: &str) -> Mode {
        let (how, policy) = name.split_once('/').map_or((name, None), |(h, p)| (h, Some(p)));
        let (protocol, threshold) = how.split_once(':').map_or((how, None), |(p, h)| (p, Some(h)));
        let ordered = policy == Some(ORDERED);
        let policy = policy.filter(|_| !ordered).map(|p| Policy::parse(p).expect("a waiting policy"));
        Mode {
            name: name.into(),
            protocol: Protocol::parse(protocol).expect("a protocol"),
            threshold: threshold.map(|h| h.parse().expect("a threshold")),
            policy: policy.unwrap_or(Policy::Wait),
            ordered,
        }
    }
}

pub struct Plan {
    pub modes: Vec<Mode>,
    /// Read-modify-writes of a transaction: a run for each of these numbers.
    pub writes: Vec<usize>,
    pub seed: u64,
    pub rounds: u64,
    pub threads: u64,
    pub records: u64,
    pub accesses: usize,
    pub seconds: f64,
    pub yields: u64,
}

/// The first of the places have what was drawn, in random order.
fn draw<T>(from: &mut [T], n: usize, rng: &mut Rng) {
    for i in 0..n {
        let other = i + rng.below((from.len() - i) as u64) as usize;
        from.swap(i, other);
    }
}

impl Plan {
    fn program(&self, writes: usize, rng: &mut Rng) -> Program {
        let mut ranks: Vec<u32> = (0..self.records as u32).collect();
        draw(&mut ranks, self.accesses, rng);
        let mut places: Vec<usize> = (0..self.accesses).collect();
        draw(&mut places, writes, rng);
        let is_write = |at: usize| places[..writes].contains(&at);
        let op = |(at, &rank): (usize, &u32)| Op { partition: 0, rank, write: is_write(at) };
        Program { touched: vec![0], ops: ranks[..self.accesses].iter().enumerate().map(op).collect() }
    }
}

/// What the threads have done.
#[derive(Default)]
struct Counts {
    commits: AtomicU64,
    attempts: AtomicU64,
    cpu_ns: AtomicU64,
}

/// Runs all rounds. The modes take turns for each number of writes.
pub fn run(plan: &Plan) {
    let fits = plan.accesses as u64 <= plan.records && plan.writes.iter().all(|w| *w <= plan.accesses);
    assert!(plan.threads <= THREADS as u64 && fits, "too many");
    println!("mode,round,writes,seconds,commits,attempts,cpu_s");
    for round in 0..plan.rounds {
        for (at, &writes) in plan.writes.iter().enumerate() {
            for turn in 0..plan.modes.len() {
                let mode = &plan.modes[(turn + at + round as usize) % plan.modes.len()];
                measure(plan, mode, writes, round);
            }
        }
    }
}

/// One mode, on a new table, in which nothing is hot yet.
fn measure(plan: &Plan, mode: &Mode, writes: usize, round: u64) {
    let store = Store::under(plan.records, mode.policy);
    store.set(Some(mode.protocol));
    set_ordered(mode.ordered);
    if let Some(threshold) = mode.threshold {
        set_threshold(threshold);
    }
    let (stop, counts, begun) = (AtomicBool::new(false), Counts::default(), Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..plan.threads {
            let (store, stop, counts) = (&store, &stop, &counts);
            scope.spawn(move || work(plan, store, writes, (thread, round), stop, counts));
        }
        std::thread::sleep(Duration::from_secs_f64(plan.seconds));
        stop.store(true, Ordering::Relaxed);
    });
    let (seconds, commits) = (begun.elapsed().as_secs_f64(), counts.commits.into_inner());
    let (attempts, cpu_s) = (counts.attempts.into_inner(), counts.cpu_ns.into_inner() as f64 / 1e9);
    println!("{},{round},{writes},{seconds:.5},{commits},{attempts},{cpu_s:.5}", mode.name);
    let sum: u64 = (0..plan.records).map(|rank| store.value(0, rank as u32)).sum();
    let wanted = commits * writes as u64;
    assert!(sum == wanted, "wrong result of {}: {sum} updates, not {wanted}", mode.name);
}

/// The work of a thread: transactions, each until it has committed.
fn work(plan: &Plan, store: &Store, writes: usize, which: (u64, u64), stop: &AtomicBool, counts: &Counts) {
    let (thread, round) = which;
    bind(thread as usize);
    let mut rng = Rng::new(plan.seed * 1000 + round * 100 + thread);
    let mut me = Worker::new(store, thread as u16 + 1);
    me.yields = plan.yields;
    let from = thread_cpu_ns();
    while !stop.load(Ordering::Relaxed) {
        let program = plan.program(writes, &mut rng);
        while !stop.load(Ordering::Relaxed) {
            counts.attempts.fetch_add(1, Ordering::Relaxed);
            if me.run(&program) {
                counts.commits.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
    }
    counts.cpu_ns.fetch_add(thread_cpu_ns() - from, Ordering::Relaxed);
}
