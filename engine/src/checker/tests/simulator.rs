//! A tiny multi-version store with optimistic validation, driven by a seed, with faults that can be
//! switched on. Correct executions are accepted, and wrong ones rejected.

use super::*;
use crate::checker::{Event, Write};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// Commits without validating reads.
    NoValidation,
    /// Scans are not validated.
    PhantomUnchecked,
    /// Read-only serializable transactions mix two snapshots.
    StaleSnapshot,
    /// An update installs the list that it had read, even if the list has changed since.
    LostUpdate,
    /// Reads see buffered writes, also those of transactions that abort later.
    DirtyRead,
    /// Each read takes a new snapshot.
    MovingSnapshot,
}

/// The versions of a key, each with its CSN. `None` is a dead version.
type Versions = Vec<(u64, Option<Vec<u64>>)>;

#[derive(Clone)]
enum Change {
    Append(u64),
    Insert(u64),
    Delete,
}

struct Running {
    log: Transaction,
    snapshot: u64,
    reads: Vec<(i64, u64)>,
    /// Keys for which a scan found no row, with the CSN of the version that it saw.
    empty: Vec<(i64, u64)>,
    writes: BTreeMap<i64, (Change, Option<Vec<u64>>)>,
    steps: u64,
    writes_allowed: bool,
}

struct Simulator {
    random: Random,
    fault: Fault,
    clock: u64,
    now: u64,
    next_id: u64,
    keys: BTreeMap<i64, Versions>,
    done: Vec<Transaction>,
    running: Vec<Option<Running>>,
}

const KEYS: u64 = 6;

impl Simulator {
    fn new(seed: u64, fault: Fault, sessions: usize) -> Self {
        let running = (0..sessions).map(|_| None).collect();
        let (random, keys) = (Random(seed), BTreeMap::new());
        Self { random, fault, clock: 0, now: 0, next_id: 0, keys, done: Vec::new(), running }
    }

    fn run(mut self, transactions: usize) -> Vec<Transaction> {
        while self.done.len() < transactions {
            let session = self.random.below(self.running.len() as u64) as usize;
            self.now += 1;
            match self.running[session].take() {
                None => self.running[session] = Some(self.begin(session as u64)),
                Some(txn) if txn.steps == 0 => self.finish(txn),
                Some(txn) => self.running[session] = Some(self.step(txn)),
            }
        }
        self.done
    }

    fn begin(&mut self, client: u64) -> Running {
        let level = match self.random.below(6) {
            0 => Level::Snapshot,
            1 => Level::ReadCommitted,
            2 => Level::SerializableReadOnly,
            _ => SER,
        };
        self.next_id += 1;
        let mut log = at(self.next_id, level).with_client(client);
        log.begin = Some(self.now);
        Running {
            log,
            snapshot: self.clock,
            reads: Vec::new(),
            empty: Vec::new(),
            writes: BTreeMap::new(),
            steps: 2 + self.random.below(4),
            writes_allowed: level != Level::SerializableReadOnly,
        }
    }

    fn step(&mut self, mut txn: Running) -> Running {
        txn.steps -= 1;
        let key = self.random.below(KEYS) as i64;
        let level = txn.log.level;
        let moving = self.fault == Fault::MovingSnapshot && level == Level::Snapshot;
        let stale = self.fault == Fault::StaleSnapshot && level == Level::SerializableReadOnly;
        let csn = match level {
            Level::Serializable | Level::ReadCommitted => self.clock,
            _ if moving => self.clock,
            _ if stale => txn.snapshot.saturating_sub(self.random.below(6)),
            _ => txn.snapshot,
        };
        match self.random.below(if txn.writes_allowed { 5 } else { 3 }) {
            0 | 1 => self.read(&mut txn, key, csn),
            2 => self.scan(&mut txn, key, key + 2, csn),
            _ => self.write(&mut txn, key, csn),
        }
        txn
    }

    /// The version of a key at a CSN, and the CSN of that version.
    fn version(&self, key: i64, csn: u64) -> (u64, Option<Vec<u64>>) {
        let versions = self.keys.get(&key).map_or(&[][..], Vec::as_slice);
        let found = versions.iter().rev().find(|(at, _)| *at <= csn);
        found.cloned().unwrap_or((0, None))
    }

    fn visible(&self, txn: &Running, key: i64, csn: u64) -> Option<Vec<u64>> {
        if let Some((change, _)) = txn.writes.get(&key) {
            return Self::apply(change, txn.log.id, self.version(key, self.clock).1);
        }
        let dirty = self.running.iter().flatten().find_map(|other| other.writes.get(&key));
        match dirty {
            Some((change, _)) if self.fault == Fault::DirtyRead => {
                Self::apply(change, 0, self.version(key, self.clock).1)
            }
            _ => self.version(key, csn).1,
        }
    }

    fn apply(change: &Change, _txn: u64, before: Option<Vec<u64>>) -> Option<Vec<u64>> {
        match change {
            Change::Append(id) => {
                let mut list = before.unwrap_or_default();
                list.push(*id);
                Some(list)
            }
            Change::Insert(id) => Some(vec![*id]),
            Change::Delete => None,
        }
    }

    fn read(&mut self, txn: &mut Running, key: i64, csn: u64) {
        let own = txn.writes.contains_key(&key);
        let seen = self.visible(txn, key, csn).map_or(Seen::Absent, Seen::List);
        if !own {
            txn.reads.push((key, self.version(key, csn).0));
            txn.log = txn.log.clone().read(Key::new(0, key), seen);
        }
    }

    fn scan(&mut self, txn: &mut Running, low: i64, high: i64, csn: u64) {
        if (low..=high).any(|key| txn.writes.contains_key(&key)) {
            return;
        }
        let rows = (low..=high).filter_map(|key| Some((Key::new(0, key), Seen::List(self.visible(txn, key, csn)?))));
        let rows: Vec<_> = rows.collect();
        for key in low..=high {
            let seen = (key, self.version(key, csn).0);
            let found = rows.iter().any(|(row, _)| row.key == key);
            if found {
                txn.reads.push(seen)
            } else {
                txn.empty.push(seen)
            }
        }
        txn.log = txn.log.clone().scan(Predicate::range(0, low, high), rows);
    }

    /// Buffers one change. The key's newest version must stay unchanged until the commit, unless
    /// the fault says otherwise.
    fn write(&mut self, txn: &mut Running, key: i64, csn: u64) {
        if txn.writes.contains_key(&key) {
            return;
        }
        let (version, before) = self.version(key, csn);
        if txn.log.level == Level::ReadCommitted {
            // A statement of its own on the newest version: no read is logged.
        } else if self.fault != Fault::LostUpdate {
            let seen = before.clone().map_or(Seen::Absent, Seen::List);
            txn.log = txn.log.clone().read(Key::new(0, key), seen);
        }
        txn.reads.push((key, version));
        let id = txn.log.id * 100 + txn.writes.len() as u64;
        let (change, kind, payload) = match &before {
            None => (Change::Insert(id), WriteKind::Insert, Payload::Append(id)),
            Some(_) if self.random.below(3) == 0 => (Change::Delete, WriteKind::Delete, Payload::Opaque),
            Some(_) => (Change::Append(id), WriteKind::Update, Payload::Append(id)),
        };
        let saw = match kind {
            WriteKind::Delete => before.clone().map(Seen::List),
            _ => None,
        };
        let key_of = Key::new(0, key);
        txn.log.events.push(Event::Write(Write { key: key_of, kind, payload, saw, undone: false, at: None }));
        txn.writes.insert(key, (change, before));
    }

    fn valid(&self, txn: &Running) -> bool {
        let snapshot = txn.log.level == Level::Snapshot || txn.log.level == Level::ReadCommitted;
        let read_only = txn.log.level == Level::SerializableReadOnly;
        let current = |key: i64| self.version(key, self.clock).0;
        let writes_valid = self.fault == Fault::LostUpdate
            || txn.reads.iter().all(|&(key, csn)| !txn.writes.contains_key(&key) || current(key) == csn);
        let serial = read_only || snapshot || self.fault == Fault::NoValidation;
        let reads_valid = serial
            || txn.reads.iter().all(|&(key, csn)| {
                current(key) == csn || (self.fault == Fault::LostUpdate && txn.writes.contains_key(&key))
            });
        let unchecked = serial || self.fault == Fault::PhantomUnchecked;
        let scans_valid = unchecked || txn.empty.iter().all(|&(key, csn)| current(key) == csn);
        writes_valid && reads_valid && scans_valid
    }

    fn finish(&mut self, mut txn: Running) {
        let unlucky = self.random.below(10) == 0;
        if unlucky || !self.valid(&txn) {
            txn.log.status = Status::Aborted;
            self.done.push(txn.log);
            return;
        }
        if !txn.writes.is_empty() {
            self.clock += 1;
            if matches!(self.fault, Fault::None | Fault::PhantomUnchecked) {
                txn.log.csn = Some(self.clock);
            }
        }
        for (key, (change, before)) in &txn.writes {
            let newest = self.version(*key, self.clock).1;
            let base = if self.fault == Fault::LostUpdate { before.clone() } else { newest };
            let after = Self::apply(change, txn.log.id, base);
            self.keys.entry(*key).or_default().push((self.clock, after));
        }
        txn.log.commit = Some(self.now);
        self.done.push(txn.log);
    }
}

fn without_csn(mut transactions: Vec<Transaction>) -> Vec<Transaction> {
    transactions.iter_mut().for_each(|txn| txn.csn = None);
    transactions
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn serial_executions_are_accepted(seed: u64) {
        let history = Simulator::new(seed, Fault::None, 1).run(200);
        let verdict = judge_with(history.clone(), &Options::strict());
        prop_assert!(verdict.accepts(), "{}", verdict);
        let verdict = judge_with(without_csn(history), &Options { real_time: true, ..Options::default() });
        prop_assert!(verdict.accepts(), "{}", verdict);
    }

    #[test]
    fn validated_concurrent_executions_are_accepted(seed: u64) {
        let history = Simulator::new(seed, Fault::None, 5).run(300);
        let verdict = judge_with(history.clone(), &Options::strict());
        prop_assert!(verdict.accepts(), "{}", verdict);
        let verdict = judge_with(without_csn(history), &Options::default());
        prop_assert!(verdict.accepts(), "{}", verdict);
    }
}

#[track_caller]
fn rejected_for_every_seed(fault: Fault, kinds: &[AnomalyKind]) {
    let mut found = Vec::new();
    for seed in 0..20 {
        let verdict = judge(Simulator::new(seed, fault, 6).run(2000));
        assert!(!verdict.accepts(), "{fault:?} with seed {seed}:\n{verdict}");
        found.extend(verdict.anomalies.iter().map(|anomaly| anomaly.kind));
    }
    for kind in kinds {
        assert!(found.contains(kind), "{fault:?} never showed {kind}, but {found:?}");
    }
}

#[test]
fn missing_validation_is_caught() {
    use AnomalyKind::{GSingle, G2};
    rejected_for_every_seed(Fault::NoValidation, &[GSingle, G2]);
}

#[test]
fn unchecked_phantoms_are_caught() {
    rejected_for_every_seed(Fault::PhantomUnchecked, &[]);
}

#[test]
fn stale_snapshots_are_caught() {
    rejected_for_every_seed(Fault::StaleSnapshot, &[AnomalyKind::GSingle]);
}

#[test]
fn lost_updates_are_caught() {
    rejected_for_every_seed(Fault::LostUpdate, &[AnomalyKind::LostUpdate]);
}

#[test]
fn dirty_reads_are_caught() {
    rejected_for_every_seed(Fault::DirtyRead, &[AnomalyKind::G1a]);
}

#[test]
fn moving_snapshots_are_caught() {
    rejected_for_every_seed(Fault::MovingSnapshot, &[AnomalyKind::FracturedSnapshot]);
}

/// Reads and appends of random keys in sequential transactions. Every `stale`th one misses the last
/// append of each list that it reads.
fn large_history(count: u64, stale: u64) -> Vec<Transaction> {
    let mut random = Random(7);
    let mut lists: Vec<Vec<u64>> = vec![Vec::new(); count as usize / 5];
    let mut transactions = Vec::new();
    for id in 1..=count {
        let mut transaction = txn(id).with_client(id % 16).with_times(id * 2, id * 2 + 1);
        for number in 0..5 {
            let key = random.below(lists.len() as u64) as usize;
            let missing = usize::from(id.is_multiple_of(stale));
            let seen = &lists[key][..lists[key].len().saturating_sub(missing)];
            if lists[key].last().is_none_or(|last| last / 8 != id) {
                transaction = transaction.read(Key::new(0, key as i64), list(seen));
            }
            let key = random.below(lists.len() as u64) as usize;
            lists[key].push(id * 8 + number);
            transaction = transaction.append(Key::new(0, key as i64), id * 8 + number);
        }
        transactions.push(transaction);
    }
    transactions
}

/// The size that tests with processes need. A debug build takes a tenth of it.
#[test]
fn a_hundred_thousand_transactions_take_seconds() {
    let count = if cfg!(debug_assertions) { 10_000 } else { 100_000 };
    for stale in [u64::MAX, 1000, 2] {
        let transactions = large_history(count, stale);
        let start = std::time::Instant::now();
        let options = Options { real_time: true, ..Options::default() };
        let verdict = judge_with(transactions, &options);
        assert_eq!(verdict.accepts(), stale == u64::MAX, "{verdict}");
        let seconds = start.elapsed().as_secs_f64();
        println!("{seconds:.2} s for {count} transactions and {} edges", verdict.edges);
        assert!(seconds < 60.0, "took {seconds} s");
    }
}
