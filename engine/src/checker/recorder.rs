//! Records a history from many threads. Each transaction is logged without shared data, and handed
//! over when it ends.

use super::history::{
    Event, History, Key, Level, Payload, Predicate, Seen, Status, Transaction, TxnId, Write, WriteKind,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

struct Shared {
    start: Instant,
    next_txn: AtomicU64,
    next_client: AtomicU64,
    finished: Mutex<Vec<Transaction>>,
}

impl Shared {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    pub fn new() -> Self {
        let shared = Shared {
            start: Instant::now(),
            next_txn: AtomicU64::new(1),
            next_client: AtomicU64::new(0),
            finished: Mutex::new(Vec::new()),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A session for one thread, whose transactions run in sequence.
    pub fn session(&self) -> Session {
        // Relaxed: only uniqueness matters.
        let client = self.shared.next_client.fetch_add(1, Ordering::Relaxed);
        Session { shared: Arc::clone(&self.shared), client }
    }

    /// All transactions that have ended so far. The caller adds tables and initial rows.
    pub fn history(&self) -> History {
        let finished = self.shared.finished.lock().unwrap_or_else(PoisonError::into_inner);
        History { transactions: finished.clone(), ..History::default() }
    }
}

pub struct Session {
    shared: Arc<Shared>,
    client: u64,
}

impl Session {
    /// Starts a log. Call it before the transaction begins.
    pub fn begin(&mut self, level: Level) -> Log {
        // Relaxed: only uniqueness matters.
        let id = self.shared.next_txn.fetch_add(1, Ordering::Relaxed);
        let mut txn = Transaction::new(id, level).with_client(self.client);
        txn.status = Status::Unknown;
        txn.begin = Some(self.shared.now_ns());
        Log { shared: Arc::clone(&self.shared), txn: Some(txn), statement: 0 }
    }
}

/// The log of one running transaction. If it is dropped without `commit` or `abort`, by a panic,
/// the outcome of the transaction is unknown.
pub struct Log {
    shared: Arc<Shared>,
    txn: Option<Transaction>,
    statement: u32,
}

/// A place in a log, for a savepoint.
#[derive(Clone, Copy, Debug)]
pub struct Savepoint(usize);

impl Log {
    pub fn id(&self) -> TxnId {
        self.txn.as_ref().map_or(0, |txn| txn.id)
    }

    /// The transaction will be finished elsewhere: its end has no place among those of its session.
    pub fn leave_session(&mut self) {
        if let Some(txn) = &mut self.txn {
            txn.client = None;
        }
    }

    /// Starts a new statement at read committed, to which the following reads belong.
    pub fn statement(&mut self) {
        self.statement += 1;
    }

    pub fn read(&mut self, key: Key, seen: Seen) {
        let statement = self.statement;
        self.push(Event::Read { key, seen, statement, locked: false });
    }

    pub fn scan(&mut self, predicate: Predicate, rows: Vec<(Key, Seen)>) {
        let statement = self.statement;
        self.push(Event::Scan { predicate, rows, statement });
    }

    /// Logs a write. Returns its number among the writes of this key, from 1. Together with `id()`
    /// it is the version that readers should name.
    pub fn write(&mut self, key: Key, kind: WriteKind, payload: Payload) -> u32 {
        self.push(Event::Write(Write { key, kind, payload, saw: None, undone: false, at: None }));
        let events = self.txn.as_ref().map_or(&[][..], |txn| &txn.events);
        let same_key = |event: &&Event| matches!(event, Event::Write(write) if write.key == key);
        events.iter().filter(same_key).count() as u32
    }

    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.txn.as_ref().map_or(0, |txn| txn.events.len()))
    }

    /// Marks the writes since the savepoint as undone. Reads stay.
    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        let Some(txn) = self.txn.as_mut() else { return };
        for event in txn.events.iter_mut().skip(savepoint.0) {
            if let Event::Write(write) = event {
                write.undone = true;
            }
        }
    }

    /// Logs the commit. Call it after the commit returned.
    pub fn commit(mut self, csn: Option<u64>) {
        self.finish(Status::Committed, csn);
    }

    pub fn abort(mut self) {
        self.finish(Status::Aborted, None);
    }

    fn push(&mut self, event: Event) {
        if let Some(txn) = self.txn.as_mut() {
            txn.events.push(event);
        }
    }

    fn finish(&mut self, status: Status, csn: Option<u64>) {
        let Some(mut txn) = self.txn.take() else {
            return;
        };
        txn.status = status;
        txn.csn = csn;
        if status == Status::Committed {
            txn.commit = Some(self.shared.now_ns());
        }
        let mut finished = self.shared.finished.lock().unwrap_or_else(PoisonError::into_inner);
        finished.push(txn);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.finish(Status::Unknown, None);
    }
}
