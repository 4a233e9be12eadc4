//! A history: transactions, their events, and the versions that they saw.

use hashbrown::HashMap;
use std::fmt;
use std::sync::Arc;

/// Identifies a transaction in a history. It is unique, and chosen by the test.
pub type TxnId = u64;

/// The key of a row: an integer in a table. Tables are numbered by [`History::table`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key {
    pub table: u32,
    pub key: i64,
}

impl Key {
    pub const fn new(table: u32, key: i64) -> Self {
        Self { table, key }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Committed,
    Aborted,
    /// The outcome was not reported, as the connection was lost during COMMIT. Counts as committed
    /// if another transaction saw one of its writes, or inserted again a key that nothing else can
    /// have deleted; else as aborted.
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    Serializable,
    /// Repeatable read: all reads from one snapshot.
    Snapshot,
    /// One snapshot for each statement.
    ReadCommitted,
    /// A snapshot that must be a prefix of the serial order.
    SerializableReadOnly,
}

impl Level {
    pub const fn is_serializable(self) -> bool {
        matches!(self, Self::Serializable | Self::SerializableReadOnly)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serializable => "serializable",
            Self::Snapshot => "repeatable read",
            Self::ReadCommitted => "read committed",
            Self::SerializableReadOnly => "serializable read only",
        })
    }
}

/// The version of one key that a read saw.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// No row: before its insert or after its delete.
    Absent,
    /// The row as it was before the history began.
    Initial,
    /// The version that `txn` installed with its `nth` write of this key, counted from 1. `None` is
    /// its last one.
    Version { txn: TxnId, nth: Option<u32> },
    /// A register, whose written values are unique for each key.
    Value(i64),
    /// A counter that only grows, so that its value tells its place in the order.
    Count(i64),
    /// A list. Every write appends an id that is unique for each key.
    List(Vec<u64>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteKind {
    Insert,
    Update,
    /// Installs a dead version.
    Delete,
}

/// The content that a write left in the row, as far as reads can tell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Payload {
    /// Reads name the version by its installer.
    Opaque,
    Append(u64),
    Value(i64),
    Count(i64),
}

#[derive(Clone, Debug)]
pub struct Write {
    pub key: Key,
    pub kind: WriteKind,
    pub payload: Payload,
    /// The version that this write replaced, if the statement told (RETURNING). A list may end with
    /// the id that this write appended.
    pub saw: Option<Seen>,
    /// Rolled back with a savepoint: no other transaction may ever see it.
    pub undone: bool,
    /// The time when the statement had returned, on the clock of the transactions.
    pub at: Option<u64>,
}

/// The row image that a predicate's filter gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Image<'a> {
    Initial,
    Opaque { txn: TxnId, nth: u32 },
    Value(i64),
    Count(i64),
    List(&'a [u64]),
}

/// Decides by key and image whether a live row satisfies the predicate.
pub type Filter = Arc<dyn Fn(i64, Image<'_>) -> bool + Send + Sync>;

/// The rows of `table` with `low <= key <= high` that pass the filter. A missing bound is no limit.
#[derive(Clone)]
pub struct Predicate {
    pub table: u32,
    pub low: Option<i64>,
    pub high: Option<i64>,
    pub filter: Option<Filter>,
}

impl Predicate {
    pub const fn table(table: u32) -> Self {
        Self { table, low: None, high: None, filter: None }
    }

    pub const fn range(table: u32, low: i64, high: i64) -> Self {
        Self { table, low: Some(low), high: Some(high), filter: None }
    }

    pub fn covers(&self, key: Key) -> bool {
        key.table == self.table
            && self.low.is_none_or(|low| low <= key.key)
            && self.high.is_none_or(|high| key.key <= high)
    }
}

impl fmt::Debug for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filtered = if self.filter.is_some() { " filtered" } else { "" };
        write!(f, "table {} {:?}..={:?}{filtered}", self.table, self.low, self.high)
    }
}

#[derive(Clone, Debug)]
pub enum Event {
    Read {
        key: Key,
        seen: Seen,
        /// The number of the statement. It matters at read committed only.
        statement: u32,
        /// A locking read, such as SELECT FOR UPDATE. At read committed it returns the newest
        /// version instead of that of the snapshot.
        locked: bool,
    },
    Write(Write),
    /// A predicate read. It returned *all* rows that satisfied the predicate.
    Scan {
        predicate: Predicate,
        rows: Vec<(Key, Seen)>,
        statement: u32,
    },
}

#[derive(Clone, Debug)]
pub struct Transaction {
    pub id: TxnId,
    /// The session. The history has the transactions of a session in their order.
    pub client: Option<u64>,
    pub status: Status,
    pub level: Level,
    pub csn: Option<u64>,
    /// The time before BEGIN was sent, on a clock that all clients share.
    pub begin: Option<u64>,
    /// The time after COMMIT returned, on the same clock.
    pub commit: Option<u64>,
    /// A time before COMMIT was sent, when all inserts and deletes had returned.
    pub ending: Option<u64>,
    /// It reads the state after all other transactions: a write missing there is lost.
    pub last: bool,
    pub events: Vec<Event>,
}

impl Transaction {
    pub const fn new(id: TxnId, level: Level) -> Self {
        Self {
            id,
            client: None,
            status: Status::Committed,
            level,
            csn: None,
            begin: None,
            commit: None,
            ending: None,
            last: false,
            events: Vec::new(),
        }
    }

    /// A time before its end.
    pub fn earliest_end(&self) -> Option<u64> {
        self.ending.or(self.begin)
    }

    #[must_use]
    pub const fn with_csn(mut self, csn: u64) -> Self {
        self.csn = Some(csn);
        self
    }

    #[must_use]
    pub const fn with_status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }

    #[must_use]
    pub const fn with_client(mut self, client: u64) -> Self {
        self.client = Some(client);
        self
    }

    #[must_use]
    pub const fn with_times(mut self, begin: u64, commit: u64) -> Self {
        self.begin = Some(begin);
        self.commit = Some(commit);
        self
    }

    #[must_use]
    pub fn read(mut self, key: Key, seen: Seen) -> Self {
        let statement = self.next_statement();
        self.events.push(Event::Read { key, seen, statement, locked: false });
        self
    }

    /// Adds a read in the same statement as the event before.
    #[must_use]
    pub fn and_read(mut self, key: Key, seen: Seen) -> Self {
        let statement = self.next_statement() - 1;
        self.events.push(Event::Read { key, seen, statement, locked: false });
        self
    }

    #[must_use]
    pub fn scan(mut self, predicate: Predicate, rows: Vec<(Key, Seen)>) -> Self {
        let statement = self.next_statement();
        self.events.push(Event::Scan { predicate, rows, statement });
        self
    }

    #[must_use]
    pub fn write(mut self, key: Key, kind: WriteKind, payload: Payload) -> Self {
        self.events.push(Event::Write(Write { key, kind, payload, saw: None, undone: false, at: None }));
        self
    }

    #[must_use]
    pub fn append(self, key: Key, id: u64) -> Self {
        self.write(key, WriteKind::Update, Payload::Append(id))
    }

    fn next_statement(&self) -> u32 {
        let numbers = self.events.iter().filter_map(|event| match event {
            Event::Read { statement, .. } | Event::Scan { statement, .. } => Some(*statement),
            Event::Write(_) => None,
        });
        numbers.max().unwrap_or(0) + 1
    }
}

#[derive(Clone, Default, Debug)]
pub struct History {
    pub tables: Vec<String>,
    /// The rows before the first transaction, with the value of a register or counter (else 0).
    pub initial: HashMap<Key, i64>,
    pub transactions: Vec<Transaction>,
}

impl History {
    /// The number of the table called `name`. A new name gets a new number.
    pub fn table(&mut self, name: &str) -> u32 {
        if let Some(found) = self.tables.iter().position(|table| table == name) {
            return found as u32;
        }
        self.tables.push(name.to_owned());
        (self.tables.len() - 1) as u32
    }

    pub fn describe(&self, key: Key) -> String {
        match self.tables.get(key.table as usize).map(String::as_str) {
            Some("") => format!("{}", key.key),
            Some(name) => format!("{name}:{}", key.key),
            None => format!("{}:{}", key.table, key.key),
        }
    }
}
