//! A load that shifts (MOCC, section 5.5 and figure 8). Each transaction has one operation on a row
//! that all use, and then 20 reads of other rows. In every other phase the operation is a read, in
//! the others a read-modify-write. A row of the paper's is used in all phases; here several rows
//! may take turns, so that a threshold has to be reached again.

use crate::run::bind;
use crate::store::{Store, Worker, THREADS};
use crate::workload::{Op, Program, Rng};
use mixedcc_engine::partition::set_threshold;
use mixedcc_engine::Protocol;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The reads of a transaction beside its operation on the shared row.
const READS: usize = 20;
/// The partition of the rows that are only read, and of the shared ones.
const LARGE: u32 = 0;
const SMALL: u32 = 1;

/// A protocol, and the threshold of heat if it is `mocc`.
pub struct Mode {
    name: String,
    protocol: Protocol,
    threshold: Option<u8>,
}

impl Mode {
    /// `occ`, or `mocc:10`.
    pub fn parse(name: &str) -> Mode {
        let (protocol, threshold) = name.split_once(':').map_or((name, None), |(p, h)| (p, Some(h)));
        let protocol = Protocol::parse(protocol).expect("a protocol");
        let threshold = threshold.map(|h| h.parse().expect("a threshold"));
        Mode { name: name.into(), protocol, threshold }
    }
}

pub struct Plan {
    pub modes: Vec<Mode>,
    pub seed: u64,
    pub rounds: u64,
    pub threads: u64,
    /// The rows of each partition.
    pub rows: u64,
    /// The number of shared rows. Two phases have the same one.
    pub records: u64,
    pub phases: u64,
    /// The lines of the output for a phase, and the time of each in seconds.
    pub buckets: u64,
    pub bucket_s: f64,
    pub yields: u64,
}

impl Plan {
    fn writes(phase: u64) -> bool {
        phase % 2 == 1
    }

    fn shared(&self, phase: u64) -> u32 {
        (phase / 2 % self.records) as u32
    }

    fn program(&self, phase: u64, rng: &mut Rng) -> Program {
        let shared = Op { partition: SMALL, rank: self.shared(phase), write: Plan::writes(phase) };
        let reads = (0..READS).map(|_| Op { partition: LARGE, rank: rng.below(self.rows) as u32, write: false });
        Program { touched: vec![LARGE, SMALL], ops: std::iter::once(shared).chain(reads).collect() }
    }
}

/// What the threads have done so far.
#[derive(Default)]
struct Counts {
    commits: AtomicU64,
    attempts: AtomicU64,
    /// Commits of transactions that wrote.
    writes: AtomicU64,
}

/// Runs all rounds. The modes take turns in each.
pub fn run(plan: &Plan) {
    assert!(plan.threads <= THREADS as u64 && plan.records > 0 && plan.records <= plan.rows, "too many");
    println!("mode,round,bucket,phase,writes,seconds,commits,attempts");
    for round in 0..plan.rounds {
        for turn in 0..plan.modes.len() {
            timeline(plan, &plan.modes[(turn + round as usize) % plan.modes.len()], round);
        }
    }
}

/// All phases under one mode, on new tables, in which nothing is hot yet.
fn timeline(plan: &Plan, mode: &Mode, round: u64) {
    let store = Store::new(2, plan.rows, 0);
    store.set(Some(mode.protocol));
    if let Some(threshold) = mode.threshold {
        set_threshold(threshold);
    }
    let (stop, now, counts) = (AtomicBool::new(false), AtomicU64::new(0), Counts::default());
    std::thread::scope(|scope| {
        for thread in 0..plan.threads {
            let (store, stop, now, counts) = (&store, &stop, &now, &counts);
            scope.spawn(move || work(plan, store, thread, round, stop, now, counts));
        }
        let before = || (counts.commits.load(Ordering::Relaxed), counts.attempts.load(Ordering::Relaxed));
        let (mut last, mut at) = (before(), Instant::now());
        for bucket in 0..plan.phases * plan.buckets {
            let phase = bucket / plan.buckets;
            now.store(phase, Ordering::Relaxed);
            std::thread::sleep(Duration::from_secs_f64(plan.bucket_s));
            let (new, seconds) = (before(), at.elapsed().as_secs_f64());
            let (commits, attempts) = (new.0 - last.0, new.1 - last.1);
            let writes = u8::from(Plan::writes(phase));
            println!("{},{round},{bucket},{phase},{writes},{seconds:.5},{commits},{attempts}", mode.name);
            (last, at) = (new, Instant::now());
        }
        stop.store(true, Ordering::Relaxed);
    });
    let sum: u64 = (0..plan.records).map(|rank| store.value(SMALL, rank as u32)).sum();
    let wanted = counts.writes.into_inner();
    assert!(sum == wanted, "wrong result of {}: {sum} updates, not {wanted}", mode.name);
}

/// The work of a thread: transactions of the present phase, each until it has committed.
fn work(plan: &Plan, store: &Store, thread: u64, round: u64, stop: &AtomicBool, now: &AtomicU64, counts: &Counts) {
    bind(thread as usize);
    let mut rng = Rng::new(plan.seed * 1000 + round * 100 + thread);
    let mut me = Worker::new(store, thread as u16 + 1);
    me.yields = plan.yields;
    while !stop.load(Ordering::Relaxed) {
        let phase = now.load(Ordering::Relaxed);
        let program = plan.program(phase, &mut rng);
        // A transaction that cannot commit any more in its phase is given up at the end of it.
        while !stop.load(Ordering::Relaxed) && now.load(Ordering::Relaxed) == phase {
            counts.attempts.fetch_add(1, Ordering::Relaxed);
            if me.run(&program) {
                counts.commits.fetch_add(1, Ordering::Relaxed);
                counts.writes.fetch_add(u64::from(Plan::writes(phase)), Ordering::Relaxed);
                break;
            }
        }
    }
}
