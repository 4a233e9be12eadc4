//! Random transactions of many clients, and the verdict on their history.

use crate::client::{Client, Mood, Pool};
use crate::spans::Span;
use crate::world::{checked, initial_keys, Rng, World, PARTITIONS, SHARED, WIDTH};
use mixedcc_engine::checker::{check, History, Options, Recorder, Verdict};
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::{Error, Policy, ProtocolSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The waiting policies that make a difference under these protocols.
pub fn policies(set: ProtocolSet) -> &'static [Policy] {
    if set.locks_writes() {
        &Policy::ALL
    } else {
        &[Policy::Wait]
    }
}

/// Slots for prepared transactions.
const SPARE: u16 = 3;

/// What a test runs.
pub struct Load {
    pub sets: Vec<ProtocolSet>,
    pub policy: Policy,
    /// What each thread runs.
    pub moods: Vec<Mood>,
    /// Transactions that all threads together should commit.
    pub commits: u64,
    pub seed: u64,
    pub fault: Option<Fault>,
    /// Some fault is on, here or elsewhere: what is wrong is the checker's to find.
    pub faulty: bool,
    /// A thread vacuums meanwhile.
    pub vacuum: bool,
    /// Percent of stop events and reads with a yield.
    pub yields: u64,
    /// Statements of a transaction at most.
    pub statements: u64,
    /// Percent of the writes that insert, delete or move.
    pub churn: u64,
    /// Percent of the writes that lock their record at once under every protocol.
    pub at_once: u64,
    /// Percent of the statements that scan a key range through an index.
    pub spans: u64,
    /// Do look-ups by key that find nothing keep predicates in ranges?
    pub keyed: bool,
    /// Percent of the commits that are held for some time.
    pub holds: u64,
    /// Do these give up locks before they are done?
    pub releases: bool,
    /// Percent of the transactions that are prepared, and finished some time after.
    pub prepares: u64,
    /// Are some of these finished by another thread?
    pub leaves: bool,
    /// So many threads, the first ones, only read, and must not fail.
    pub readers: u16,
    /// Percent of the serializable transactions that are frozen from their beginning.
    pub from_start: u64,
    /// Percent of the statements of snapshots before which they have rested.
    pub rests: u64,
    /// Statements of a read-only transaction, if not as of the others.
    pub long: u64,
}

/// A number of the environment, for longer runs: `CONFORMANCE_SEED` is added to all seeds,
/// `CONFORMANCE_FACTOR` multiplies the transactions.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

impl Load {
    pub fn new(sets: &[ProtocolSet], policy: Policy, seed: u64) -> Load {
        use Mood::*;
        let seed = seed + setting("CONFORMANCE_SEED", 0);
        Load {
            sets: sets.to_vec(),
            policy,
            moods: vec![
                Serializable,
                Serializable,
                Serializable,
                Serializable,
                ReadCommitted,
                RepeatableRead,
                ReadOnly,
            ],
            commits: 2500 * setting("CONFORMANCE_FACTOR", 1),
            seed,
            fault: None,
            faulty: false,
            vacuum: true,
            yields: 30,
            statements: 5,
            churn: 40,
            at_once: 30,
            spans: 0,
            keyed: true,
            holds: 0,
            releases: false,
            prepares: 0,
            leaves: false,
            readers: 0,
            from_start: 0,
            rests: 0,
            long: 0,
        }
    }
    /// Slots that the load needs.
    pub fn slots(&self) -> u16 {
        self.moods.len() as u16 + 1 + if self.leaves { SPARE } else { 0 }
    }
    pub fn serializable_only(mut self) -> Load {
        self.moods = vec![Mood::Serializable; 5];
        self
    }
}

/// What a run was.
#[derive(Debug, Default)]
pub struct Counts {
    pub commits: u64,
    /// Those of serializable transactions that may write.
    pub serializable: u64,
    #[allow(dead_code)] // printed with the seed
    pub retries: u64,
    #[allow(dead_code)] // as above
    pub vacuumed: u64,
}

struct Control {
    commits: AtomicU64,
    serializable: AtomicU64,
    retries: AtomicU64,
    vacuumed: AtomicU64,
    stop: AtomicBool,
    /// Something else has to happen before the load may end.
    waits: AtomicBool,
    deadline: Instant,
}

impl Control {
    /// Is the load over for a client? Serializable ones go on alone until they have committed a
    /// tenth of the transactions, in case those of weaker levels were in their way.
    fn over(&self, wanted: u64, mood: Mood) -> bool {
        let enough = mood != Mood::Serializable || self.serializable.load(Ordering::Relaxed) >= wanted / 10;
        self.stop.load(Ordering::Relaxed)
            || (enough && self.commits.load(Ordering::Relaxed) >= wanted && !self.waits.load(Ordering::Relaxed))
            || Instant::now() > self.deadline
    }
}

/// Runs a load in a new world.
pub fn run(l: &Load) -> (History, Counts) {
    let w = World::new(&l.sets, l.policy, l.slots());
    run_in(&w, l, |_, enough| enough())
}

/// Runs a load; `meanwhile` runs in a thread of its own, is told when the load is over, and tells
/// when it may be over.
pub fn run_in(w: &World, l: &Load, meanwhile: impl FnOnce(&AtomicBool, &dyn Fn()) + Send) -> (History, Counts) {
    eprintln!("seed {}: {:?} {:?}", l.seed, l.sets.iter().map(|s| s.name()).collect::<Vec<_>>(), l.policy);
    let recorder = Recorder::new();
    let c = Control {
        commits: AtomicU64::new(0),
        serializable: AtomicU64::new(0),
        retries: AtomicU64::new(0),
        vacuumed: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        waits: AtomicBool::new(true),
        deadline: Instant::now() + Duration::from_secs(20),
    };
    let pool = Pool::default();
    let last = l.moods.len() as u16 + 1;
    pool.spare.lock().unwrap().extend(last + 1..=w.slots);
    std::thread::scope(|s| {
        let finisher = s.spawn(|| finish_loop(w, &pool, &c));
        let others = s.spawn(|| meanwhile(&c.stop, &|| c.waits.store(false, Ordering::Relaxed)));
        let cleaner = s.spawn(|| vacuum_loop(w, l, &c));
        let threads: Vec<_> = l
            .moods
            .iter()
            .enumerate()
            .map(|(slot, &mood)| {
                let (c, session, pool) = (&c, recorder.session(), l.leaves.then_some(&pool));
                s.spawn(move || {
                    let mut client = Client::new(w, slot as u16, session, l.seed ^ (slot as u64 + 7) << 20);
                    client.pool = pool;
                    client_loop(w, l, c, client, mood)
                })
            })
            .collect();
        let ends: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        c.stop.store(true, Ordering::SeqCst);
        let ends = ends.into_iter().chain([others.join(), cleaner.join(), finisher.join()]);
        if let Some(panic) = ends.filter_map(Result::err).next() {
            std::panic::resume_unwind(panic);
        }
    });
    faults::set(None);
    let mut last = Client::new(w, last, recorder.session(), 1);
    last.begin(Mood::ReadOnly);
    for p in 0..PARTITIONS {
        last.scan(p).expect("a read of the last state");
    }
    last.commit().expect("a read-only commit");
    let mut h = recorder.history();
    h.initial.extend(initial_keys().map(|k| (checked(k), 0)));
    let counts = Counts {
        commits: c.commits.into_inner(),
        serializable: c.serializable.into_inner(),
        retries: c.retries.into_inner(),
        vacuumed: c.vacuumed.into_inner(),
    };
    eprintln!("{counts:?}");
    (h, counts)
}

fn vacuum_loop(w: &World, l: &Load, c: &Control) {
    let slot = l.moods.len() as u16;
    let p = crate::world::Jitter::new(w, slot, 1);
    while l.vacuum && !c.stop.load(Ordering::Relaxed) {
        c.vacuumed.fetch_add(w.vacuum(&p, slot) as u64, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn finish_loop(w: &World, pool: &Pool, c: &Control) {
    loop {
        let ended = c.stop.load(Ordering::SeqCst);
        if !pool.finish(w) {
            if ended {
                return;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

fn client_loop(w: &World, l: &Load, c: &Control, mut client: Client, mood: Mood) {
    faults::set(l.fault);
    let mut rng = Rng::new(l.seed ^ ((client.t.slot as u64 + 1) << 32));
    client.p.yields.set(l.yields);
    client.faulty = l.faulty || l.fault.is_some();
    client.keyed = l.keyed;
    client.holds = l.holds;
    client.releases = l.releases;
    client.prepares = l.prepares;
    client.rests = l.rests;
    let reads = client.id < l.readers;
    while !c.over(l.commits, mood) {
        client.begin(mood);
        if mood == Mood::Serializable && rng.percent(l.from_start) {
            client.t.freeze_from_start();
        }
        match transaction(&mut client, l, &mut rng, mood) {
            Ok(true) => {
                c.commits.fetch_add(1, Ordering::Relaxed);
                if mood == Mood::Serializable {
                    c.serializable.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(false) => client.abort(),
            Err(e @ (Error::Abort { .. } | Error::Deadlock)) => {
                assert!(mood != Mood::ReadOnly, "a read-only transaction was aborted");
                assert!(!reads, "seed {}: a transaction that only reads: {e:?}", l.seed);
                client.abort();
                c.retries.fetch_add(1, Ordering::Relaxed);
            }
            Err(e) => panic!("seed {}: {e:?}", l.seed),
        }
    }
    faults::set(None);
    client.abort();
    w.e.region.flush_slot(client.t.slot as usize);
}

/// One transaction; true if it committed.
fn transaction(c: &mut Client, l: &Load, rng: &mut Rng, mood: Mood) -> Result<bool, Error> {
    if mood == Mood::Serializable && rng.percent(20) {
        for p in 0..PARTITIONS {
            if rng.percent(40) {
                c.t.declare(&c.p, c.w.touch(p))?;
            }
        }
    }
    let mut nested = 0;
    let long = mood == Mood::ReadOnly && l.long > 0;
    for _ in 0..if long { l.long } else { 1 + rng.below(l.statements) } {
        if mood != Mood::ReadOnly && nested < 2 && rng.percent(12) {
            c.savepoint();
            nested += 1;
        }
        statement(c, l, rng, mood)?;
        if nested > 0 && rng.percent(40) {
            c.end_savepoint(rng.percent(50));
            nested -= 1;
        }
    }
    for _ in 0..nested {
        c.end_savepoint(true);
    }
    if rng.percent(4) {
        if rng.percent(l.prepares) {
            c.prepare()?;
            c.leave(false);
        }
        return Ok(false);
    }
    c.commit()?;
    Ok(true)
}

fn statement(c: &mut Client, l: &Load, rng: &mut Rng, mood: Mood) -> Result<(), Error> {
    let partition = rng.below(PARTITIONS as u64) as u32;
    let shared = |rng: &mut Rng| partition as i64 * WIDTH + rng.below(SHARED as u64) as i64;
    let key = shared(rng);
    let dice = rng.below(100);
    let reads = c.id < l.readers;
    if mood == Mood::Serializable && rng.percent(l.spans) {
        let span = Span::random(rng);
        c.span(Span { update: span.update && !reads, ..span }, rng)?;
        return Ok(());
    }
    if mood == Mood::ReadOnly || reads || dice < 40 {
        if rng.percent(25) {
            let some = rng.percent(50);
            let _ = if some { c.scan_some(partition)? } else { c.scan(partition)? };
        } else {
            c.get(key)?;
        }
        return Ok(());
    }
    let at_once = rng.percent(l.at_once);
    if !rng.percent(l.churn) {
        c.update(key, at_once)?;
        return Ok(());
    }
    // Unique checks of weaker levels are the platform's affair: they insert keys of their own.
    let target = if mood == Mood::Serializable && rng.percent(70) {
        shared(rng)
    } else {
        c.private_key(partition, rng.below(4) as i64)
    };
    match rng.below(3) {
        0 => c.delete(key, at_once, false)?,
        1 if mood == Mood::Serializable => c.relocate(key, target, at_once)?,
        _ => c.insert(target)?,
    };
    Ok(())
}

/// Judges a history and fails on an anomaly.
pub fn assert_serializable(h: &History, counts: &Counts, seed: u64) {
    let v = check(h, &Options::strict());
    assert!(v.accepts(), "seed {seed}: {v}");
    assert!(counts.commits > 200, "seed {seed}: too few commits to say anything: {counts:?}");
    // Weaker levels alone, and readers, would show nothing of validation and of read locks.
    assert!(counts.serializable > 100, "seed {seed}: too few serializable commits: {counts:?}");
    assert!(v.edges as u64 > counts.commits, "seed {seed}: hardly any dependencies: {v}");
}

/// Runs loads with different seeds until the checker rejects one.
pub fn find_anomaly(l: impl Fn(u64) -> Load, times: u64) -> Option<Verdict> {
    find_anomaly_in(times, |i| run(&l(1000 + i)).0)
}

/// Makes histories until the checker rejects one.
pub fn find_anomaly_in(times: u64, history: impl Fn(u64) -> History) -> Option<Verdict> {
    (0..times).find_map(|i| {
        let v = check(&history(i), &Options::strict());
        (!v.accepts()).then_some(v)
    })
}
