//! A client: random transactions over the two tables, and what they saw.

use crate::random::Random;
use crate::steps::{prepare, Level, Step, OURS, TABLES};
use crate::wire::{Failure, Server, Session};
use crate::Load;
use mixedcc_engine::checker::{Event, Key, Status, Transaction, WriteKind};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// A client goes on until it has committed so many transactions, and one of each of these kinds.
const LEAST: u64 = 20;
const KINDS: [&str; 9] = [
    "serializable",
    "serializable read only",
    "read committed",
    "both tables, serializable",
    "both tables, serializable read only",
    "insert",
    "update",
    "delete",
    "scan",
];

/// What all clients share.
pub struct Run<'a> {
    pub load: &'a Load,
    pub server: &'a Server,
    pub start: Instant,
    pub stop: AtomicBool,
    /// Committed transactions over both tables.
    pub both: AtomicU64,
    /// Clients that have committed some transactions, and one of each kind.
    pub enough: AtomicU64,
}

impl Run<'_> {
    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    pub fn stopped(&self) -> bool {
        // Relaxed: nothing else depends on it.
        self.stop.load(Ordering::Relaxed)
    }
}

pub struct Client<'a> {
    run: &'a Run<'a>,
    number: u64,
    session: Session,
    random: Random,
    next: u64,
    pub transactions: Vec<Transaction>,
    pub done: BTreeMap<String, u64>,
    enough: bool,
    pub problems: Vec<String>,
}

/// How far a transaction has come.
#[derive(Default)]
struct State {
    events: Vec<Event>,
    statement: u32,
    /// Where the events of the savepoint begin.
    savepoint: usize,
    /// What `Get` has read.
    seen: Option<Vec<u64>>,
    sent: Vec<Step>,
    /// The latest time that was noted.
    now: u64,
    /// When the statements before those of its end had returned.
    ending: Option<u64>,
}

impl<'a> Client<'a> {
    pub fn open(run: &'a Run<'a>, number: u64, options: &str) -> io::Result<Self> {
        let mut session = Session::open(run.server, options)?;
        if let Some(failure) = prepare(&mut session)? {
            return Err(io::Error::other(failure));
        }
        let random = Random::new(run.load.seed << 8 | number);
        let (transactions, done, problems) = (Vec::new(), BTreeMap::new(), Vec::new());
        Ok(Self { run, number, session, random, next: 0, transactions, done, enough: false, problems })
    }

    pub const fn pid(&self) -> i32 {
        self.session.pid
    }

    /// Until all have done enough.
    pub fn work(&mut self) {
        while !self.run.stopped() && self.problems.len() < 5 {
            if let Err(error) = self.transaction() {
                self.problems.push(format!("session {}: {error}", self.number));
                return;
            }
        }
    }

    fn count(&mut self, what: &str) {
        if let Some(count) = self.done.get_mut(what) {
            *count += 1;
        } else {
            self.done.insert(what.to_owned(), 1);
        }
    }

    /// A number that no other transaction or write has.
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next * 256 + self.number
    }

    // --- the plan of a transaction ---

    fn key(&mut self, table: u32) -> Key {
        let keys = self.run.load.keys;
        // Some keys are hotter than others.
        Key::new(table, self.random.below(keys).min(self.random.below(keys)) as i64)
    }

    fn operation(&mut self, table: u32, level: Level, nested: bool, steps: &mut Vec<Step>) {
        let draw = self.random.below(100);
        let key = self.key(table);
        let native = table == OURS && self.random.chance(300);
        if level.reads_only() {
            return steps.push(match draw {
                0..25 if native => Step::Get(key),
                0..25 => Step::Read(key),
                25..70 => Step::Scan(key, key.key + self.random.below(4) as i64),
                _ => Step::ScanAll(table),
            });
        }
        // The interface changes what a read before has seen, which READ COMMITTED does not protect.
        let native_write = native && level != Level::ReadCommitted;
        let id = self.fresh();
        match draw {
            0..34 if native => steps.push(Step::Get(key)),
            0..34 => steps.push(Step::Read(key)),
            34..44 => steps.push(Step::Scan(key, key.key + self.random.below(4) as i64)),
            44..47 => steps.push(Step::ScanAll(table)),
            47..50 => steps.push(Step::Lock(key, self.random.below(4) as usize)),
            50..72 if native_write => steps.extend([Step::Get(key), Step::Set(key, id)]),
            50..72 => steps.push(Step::Update(key, id)),
            72..80 => steps.push(Step::Upsert(key, id)),
            80..87 => steps.push(Step::Insert(key, id)),
            87..94 if native_write => steps.extend([Step::Get(key), Step::Remove(key)]),
            _ if draw < 94 || nested => steps.push(Step::Delete(key)),
            _ => {
                steps.push(Step::Savepoint);
                for _ in 0..=self.random.below(2) {
                    self.operation(table, level, true, steps);
                }
                steps.push(if self.random.chance(500) { Step::RollbackTo } else { Step::Release });
            }
        }
    }

    fn plan(&mut self, level: Level) -> Vec<Step> {
        let mut steps = vec![Step::Begin(level)];
        // Which tables it uses: both, or one of them. Heap's isolation does not see READ COMMITTED.
        let only = match self.random.below(10) {
            _ if level == Level::ReadCommitted => Some(OURS),
            0 => Some(0),
            1 => Some(1),
            _ => None,
        };
        let mut table = self.random.below(2) as u32;
        let count = 1 + u64::from(only.is_none()) + self.random.below(4);
        for number in 0..count {
            // The second operation is on the other table than the first.
            table = only.unwrap_or(if number == 1 { 1 - table } else { self.random.below(2) as u32 });
            self.operation(table, level, false, &mut steps);
        }
        steps.push(if self.random.chance(50) { Step::Rollback } else { Step::Commit });
        steps
    }

    // --- running it ---

    fn level(&mut self) -> Level {
        let weights = self.run.load.levels;
        let mut draw = self.random.below(weights.iter().sum());
        for (level, weight) in Level::ALL.into_iter().zip(weights) {
            if draw < weight {
                return level;
            }
            draw -= weight;
        }
        Level::Serializable
    }

    fn transaction(&mut self) -> io::Result<()> {
        let level = self.level();
        let steps = self.plan(level);
        let id = self.fresh();
        let mut transaction = Transaction::new(id, of_checker(level)).with_client(self.number);
        let mut state = State::default();
        self.count("transactions");
        transaction.begin = Some(self.run.now());
        let wanted = matches!(steps.last(), Some(Step::Commit));
        let failure = self.steps(level, &steps, &mut state)?;
        transaction.commit = Some(self.run.now());
        transaction.ending = state.ending.filter(|_| wanted);
        transaction.events = state.events;
        transaction.status = if wanted && failure.is_none() { Status::Committed } else { Status::Aborted };
        if let Some(failure) = failure {
            self.failed(level, &failure)?;
        } else if wanted {
            self.committed(level, &transaction.events);
        } else {
            self.count("rolled back");
        }
        self.transactions.push(transaction);
        Ok(())
    }

    fn steps(&mut self, level: Level, steps: &[Step], state: &mut State) -> io::Result<Option<Failure>> {
        for (number, &step) in steps.iter().enumerate() {
            if let Step::Set(..) = step {
                // What it sets is made of the row that a read has seen.
                if let Some(failure) = self.send(level, state)? {
                    return Ok(Some(failure));
                }
                if state.seen.is_none() {
                    continue;
                }
            }
            if matches!(step, Step::Commit) {
                // The checker orders the lives of a row by these times.
                if state.sent.iter().any(|sent| sent.begins_or_ends_rows()) || self.random.chance(500) {
                    if let Some(failure) = self.send(level, state)? {
                        return Ok(Some(failure));
                    }
                }
            }
            step.add(&mut self.session, state.seen.as_deref().unwrap_or_default());
            state.sent.push(step);
            if number + 1 < steps.len() && self.random.chance(self.run.load.cut) {
                if let Some(failure) = self.send(level, state)? {
                    return Ok(Some(failure));
                }
            }
            if number + 1 < steps.len() && self.random.chance(self.run.load.pauses) {
                Step::Pause.add(&mut self.session, &[]);
                state.sent.push(Step::Pause);
            }
        }
        self.send(level, state)
    }

    /// Sends what was added, and notes what it saw.
    fn send(&mut self, level: Level, state: &mut State) -> io::Result<Option<Failure>> {
        if state.sent.is_empty() {
            return Ok(None);
        }
        let (answers, failure) = self.session.run()?;
        let ends = matches!(state.sent.last(), Some(Step::Commit));
        for (step, answer) in state.sent.drain(..).zip(&answers) {
            state.statement += 1;
            match step {
                Step::Savepoint => state.savepoint = state.events.len(),
                Step::RollbackTo => {
                    for event in &mut state.events[state.savepoint..] {
                        if let Event::Write(write) = event {
                            write.undone = true;
                        }
                    }
                }
                _ => match step.event(&self.session, answer, level, state.statement, &mut state.seen) {
                    Ok(Some(Event::Write(mut write))) => {
                        state.now = self.run.now().max(state.now + 1);
                        write.at = Some(state.now);
                        state.events.push(Event::Write(write));
                    }
                    Ok(event) => state.events.extend(event),
                    Err(problem) => self.problems.push(problem),
                },
            }
        }
        if !ends {
            state.ending = Some(self.run.now().max(state.now + 1));
        }
        Ok(failure)
    }

    fn committed(&mut self, level: Level, events: &[Event]) {
        let mut used = [false; TABLES.len()];
        let mut kinds = [""; 5];
        for event in events {
            let (table, at, kind) = match event {
                Event::Read { key, .. } => (key.table, 0, "read"),
                Event::Scan { predicate, .. } => (predicate.table, 1, "scan"),
                Event::Write(write) => {
                    let (at, kind) = match write.kind {
                        WriteKind::Insert => (2, "insert"),
                        WriteKind::Update => (3, "update"),
                        WriteKind::Delete => (4, "delete"),
                    };
                    (write.key.table, at, if write.undone { "undone" } else { kind })
                }
            };
            used[table as usize] = true;
            kinds[at] = kind;
        }
        for what in ["commits", level.name()].into_iter().chain(kinds).filter(|kind| !kind.is_empty()) {
            self.count(what);
        }
        if used == [true; TABLES.len()] {
            self.count(&format!("both tables, {}", level.name()));
            // Relaxed: it only says when to stop.
            self.run.both.fetch_add(1, Ordering::Relaxed);
        }
        if !self.enough && self.done["commits"] >= LEAST && KINDS.iter().all(|&kind| self.done.contains_key(kind)) {
            self.enough = true;
            self.run.enough.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn failed(&mut self, level: Level, failure: &Failure) -> io::Result<()> {
        self.count(&failure.code);
        let allowed = match failure.code.as_str() {
            "40P01" | "23505" => true,
            "40001" => level != Level::ReadCommitted,
            "57014" => self.run.load.cancels > 0,
            _ => false,
        };
        if !allowed {
            self.problems.push(format!("{}: {} {}", level.name(), failure.code, failure.message));
        }
        self.session.add("rollback", &[]);
        // A cancel may come as late as this.
        while self.session.run()?.1.is_some_and(|failure| failure.code == "57014") {
            self.session.add("rollback", &[]);
        }
        Ok(())
    }
}

const fn of_checker(level: Level) -> mixedcc_engine::checker::Level {
    use mixedcc_engine::checker::Level as Theirs;
    match level {
        Level::Serializable => Theirs::Serializable,
        Level::ReadOnly | Level::Deferrable => Theirs::SerializableReadOnly,
        Level::ReadCommitted => Theirs::ReadCommitted,
    }
}
