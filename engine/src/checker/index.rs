//! The history with everything numbered, and the writer of each version.

use super::history::{Event, History, Key, Payload, Seen, Status, TxnId, Write, WriteKind};
use super::verdict::{AnomalyKind, Verdict};
use super::Options;
use hashbrown::HashMap;

pub(super) const NONE: u32 = u32::MAX;

pub(super) struct WriteInfo {
    pub txn: u32,
    pub key: u32,
    /// The number of this write among those of this key by this transaction, from 1.
    pub nth: u32,
    pub kind: WriteKind,
    pub payload: Payload,
    pub undone: bool,
    /// No later write of this key by this transaction takes effect.
    pub last: bool,
    pub event: u32,
    /// The transaction's next write of the same key.
    pub next_same: u32,
}

pub(super) struct Index<'h> {
    pub history: &'h History,
    pub keys: Vec<Key>,
    pub key_of: HashMap<Key, u32>,
    pub writes: Vec<WriteInfo>,
    pub by_key: Vec<Vec<u32>>,
    by_payload: HashMap<(u32, Payload), u32>,
    first_write: HashMap<(u32, u32), u32>,
    txn_of: HashMap<TxnId, u32>,
    /// Transactions whose writes count: committed, or of unknown outcome and seen by another one.
    pub effective: Vec<bool>,
    /// The keys of each table in their order, for predicates.
    tables: HashMap<u32, Vec<(i64, u32)>>,
}

/// The version that a read names, before version orders are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Named {
    Absent,
    Initial,
    Write(u32),
    Unwritten,
}

impl<'h> Index<'h> {
    pub fn build(history: &'h History, options: &Options, verdict: &mut Verdict) -> Self {
        let mut index = Self {
            history,
            keys: Vec::new(),
            key_of: HashMap::new(),
            writes: Vec::new(),
            by_key: Vec::new(),
            by_payload: HashMap::new(),
            first_write: HashMap::new(),
            txn_of: HashMap::new(),
            effective: Vec::new(),
            tables: HashMap::new(),
        };
        for &key in history.initial.keys() {
            index.number(key);
        }
        for (number, txn) in history.transactions.iter().enumerate() {
            if index.txn_of.insert(txn.id, number as u32).is_some() {
                let text = format!("two transactions have the id {}", txn.id);
                verdict.report(options.limit, AnomalyKind::Malformed, vec![txn.id], text);
            }
            index.effective.push(txn.status == Status::Committed);
            index.add_events(number as u32, options, verdict);
        }
        index.sort_tables();
        index.promote_unknown();
        if options.real_time {
            index.promote_deleters();
        }
        index
    }

    fn number(&mut self, key: Key) -> u32 {
        let fresh = self.keys.len() as u32;
        let number = *self.key_of.entry(key).or_insert(fresh);
        if number == fresh {
            self.keys.push(key);
            self.by_key.push(Vec::new());
        }
        number
    }

    fn add_events(&mut self, txn: u32, options: &Options, verdict: &mut Verdict) {
        let mut last: HashMap<u32, u32> = HashMap::new();
        let events = &self.history.transactions[txn as usize].events;
        for (event, what) in events.iter().enumerate() {
            match what {
                Event::Read { key, .. } => {
                    self.number(*key);
                }
                Event::Scan { rows, .. } => {
                    for (key, _) in rows {
                        self.number(*key);
                    }
                }
                Event::Write(write) => {
                    let key = self.number(write.key);
                    let before = last.get(&key).copied().unwrap_or(NONE);
                    let number = self.add_write(txn, key, before, event as u32, write);
                    last.insert(key, number);
                    self.note_payload(number, options, verdict);
                }
            }
        }
        for mut number in last.into_values() {
            // The last write that takes effect: walks back over undone ones.
            while self.writes[number as usize].undone {
                let info = &self.writes[number as usize];
                let before = info.nth - 1;
                if before == 0 {
                    break;
                }
                number = self.nth_write(txn, info.key, Some(before));
            }
            let info = &mut self.writes[number as usize];
            info.last = !info.undone;
        }
    }

    fn add_write(&mut self, txn: u32, key: u32, before: u32, event: u32, write: &Write) -> u32 {
        let number = self.writes.len() as u32;
        let mut nth = 1;
        if before == NONE {
            self.first_write.insert((txn, key), number);
        } else {
            nth = self.writes[before as usize].nth + 1;
            self.writes[before as usize].next_same = number;
        }
        self.writes.push(WriteInfo {
            txn,
            key,
            nth,
            kind: write.kind,
            payload: write.payload,
            undone: write.undone,
            last: false,
            event,
            next_same: NONE,
        });
        self.by_key[key as usize].push(number);
        number
    }

    fn note_payload(&mut self, number: u32, options: &Options, verdict: &mut Verdict) {
        let info = &self.writes[number as usize];
        if info.payload == Payload::Opaque {
            return;
        }
        let Some(&other) = self.by_payload.get(&(info.key, info.payload)) else {
            self.by_payload.insert((info.key, info.payload), number);
            return;
        };
        let (mine, other) = (self.id(info.txn), self.id(self.writes[other as usize].txn));
        let status = |id: TxnId| self.txn_of.get(&id).map(|&txn| self.history.transactions[txn as usize].status);
        let counter = matches!(info.payload, Payload::Count(_));
        if counter && status(other) != Some(Status::Committed) {
            // The same step of a counter is taken again after a rollback.
            self.by_payload.insert((info.key, info.payload), number);
        } else if !counter || (status(mine) == Some(Status::Committed) && !info.undone) {
            let kind = if counter { AnomalyKind::LostUpdate } else { AnomalyKind::Malformed };
            let text =
                format!("{} was written as {:?} by both T{other} and T{mine}", self.describe(info.key), info.payload);
            verdict.report(options.limit, kind, vec![other, mine], text);
        }
    }

    fn sort_tables(&mut self) {
        for (number, key) in self.keys.iter().enumerate() {
            self.tables.entry(key.table).or_default().push((key.key, number as u32));
        }
        for keys in self.tables.values_mut() {
            keys.sort_unstable();
        }
    }

    /// A transaction of unknown outcome counts as committed if its write was seen.
    fn promote_unknown(&mut self) {
        let transactions = &self.history.transactions;
        if transactions.iter().all(|txn| txn.status != Status::Unknown) {
            return;
        }
        let mut seen_txns = Vec::new();
        for (reader, txn) in transactions.iter().enumerate() {
            if txn.status != Status::Committed {
                continue;
            }
            let mut note = |key: Key, seen: &Seen| {
                for number in self.all_named(self.key_of[&key], seen) {
                    let info = &self.writes[number as usize];
                    let unknown = transactions[info.txn as usize].status == Status::Unknown;
                    if unknown && info.txn != reader as u32 {
                        seen_txns.push(info.txn);
                    }
                }
            };
            for event in &txn.events {
                match event {
                    Event::Read { key, seen, .. } => note(*key, seen),
                    Event::Scan { rows, .. } => rows.iter().for_each(|(key, seen)| note(*key, seen)),
                    Event::Write(write) => {
                        if let Some(saw) = &write.saw {
                            note(write.key, saw);
                        }
                    }
                }
            }
        }
        for txn in seen_txns {
            self.effective[txn as usize] = true;
        }
    }

    /// The insert of the row that a delete has seen; `None`: it does not tell.
    fn row_of(&self, delete: &WriteInfo) -> Option<u32> {
        let Event::Write(write) = &self.history.transactions[delete.txn as usize].events[delete.event as usize] else {
            return None;
        };
        let Some(Seen::List(list)) = &write.saw else { return None };
        list.first().and_then(|&id| self.appended(delete.key, id))
    }

    /// A delete of unknown outcome counts as committed if nothing else can have deleted a row: a
    /// transaction that began later has inserted its key again. The row was there when the deleter
    /// began.
    fn promote_deleters(&mut self) {
        let mut found = Vec::new();
        for all in &self.by_key {
            let infos = || all.iter().map(|&number| &self.writes[number as usize]).filter(|info| !info.undone);
            let deletes: Vec<_> = infos().filter(|info| info.kind == WriteKind::Delete).collect();
            let counts = |info: &&WriteInfo| self.effective[info.txn as usize];
            let of = |info: &WriteInfo| &self.history.transactions[info.txn as usize];
            for &delete in deletes.iter().filter(|info| of(info).status == Status::Unknown && !counts(info)) {
                let (Some(row), Some(began)) = (self.row_of(delete), of(delete).begin) else { continue };
                let insert = &self.writes[row as usize];
                let was_there = counts(&insert) && of(insert).commit.is_some_and(|at| at < began);
                let may = |info: &&WriteInfo| self.row_of(info).is_none_or(|other| other == row);
                let rivals = deletes.iter().filter(|info| info.txn != delete.txn && may(info));
                let alone = rivals.count() == 0;
                let again = |info: &WriteInfo| info.kind == WriteKind::Insert && of(info).begin > Some(began);
                if was_there && alone && infos().filter(counts).any(again) {
                    found.push(delete.txn);
                }
            }
        }
        for txn in found {
            self.effective[txn as usize] = true;
        }
    }

    fn all_named(&self, key: u32, seen: &Seen) -> Vec<u32> {
        if let Seen::List(list) = seen {
            return list.iter().filter_map(|&id| self.appended(key, id)).collect();
        }
        match self.named(key, seen) {
            Named::Write(number) => vec![number],
            _ => Vec::new(),
        }
    }

    pub fn appended(&self, key: u32, id: u64) -> Option<u32> {
        self.by_payload.get(&(key, Payload::Append(id))).copied()
    }

    pub fn named_payload(&self, key: u32, payload: Payload) -> Option<u32> {
        self.by_payload.get(&(key, payload)).copied()
    }

    pub fn id(&self, txn: u32) -> TxnId {
        self.history.transactions[txn as usize].id
    }

    pub fn describe(&self, key: u32) -> String {
        self.history.describe(self.keys[key as usize])
    }

    pub fn first_write(&self, txn: u32, key: u32) -> Option<u32> {
        self.first_write.get(&(txn, key)).copied()
    }

    /// The `nth` write of `key` by `txn`; without a number its last one that takes effect.
    fn nth_write(&self, txn: u32, key: u32, nth: Option<u32>) -> u32 {
        let mut number = self.first_write(txn, key).unwrap_or(NONE);
        let mut found = NONE;
        while number != NONE {
            let info = &self.writes[number as usize];
            match nth {
                Some(nth) if nth == info.nth => return number,
                None if !info.undone || found == NONE => found = number,
                _ => {}
            }
            number = info.next_same;
        }
        found
    }

    pub fn named(&self, key: u32, seen: &Seen) -> Named {
        let number = match seen {
            Seen::Absent => return Named::Absent,
            Seen::Initial => return Named::Initial,
            Seen::List(list) => match list.last() {
                None => return Named::Initial,
                Some(&id) => self.appended(key, id),
            },
            Seen::Version { txn, nth } => {
                let txn = self.txn_of.get(txn);
                txn.map(|&txn| self.nth_write(txn, key, *nth)).filter(|&number| number != NONE)
            }
            Seen::Value(value) => self.register(key, Payload::Value(*value), *value),
            Seen::Count(count) => self.register(key, Payload::Count(*count), *count),
        };
        match (number, seen) {
            (Some(NONE), _) => Named::Initial,
            (Some(number), _) => Named::Write(number),
            (None, _) => Named::Unwritten,
        }
    }

    /// The write of a register's value. `Some(NONE)` is the initial value.
    fn register(&self, key: u32, payload: Payload, value: i64) -> Option<u32> {
        let written = self.by_payload.get(&(key, payload)).copied();
        written.or_else(|| {
            let initial = self.history.initial.get(&self.keys[key as usize]);
            (initial.copied().unwrap_or(0) == value).then_some(NONE)
        })
    }

    /// Did the write take effect: did its transaction commit, and was it not undone?
    pub fn stays(&self, number: u32) -> bool {
        let info = &self.writes[number as usize];
        self.effective[info.txn as usize] && !info.undone
    }

    /// The known keys of a table between two bounds.
    pub fn range(&self, table: u32, low: Option<i64>, high: Option<i64>) -> &[(i64, u32)] {
        let Some(keys) = self.tables.get(&table) else {
            return &[];
        };
        let from = low.map_or(0, |low| keys.partition_point(|&(key, _)| key < low));
        let to = high.map_or(keys.len(), |high| keys.partition_point(|&(key, _)| key <= high));
        &keys[from..to.max(from)]
    }

    /// A list without the ids at its end that `txn` appended itself.
    pub fn without_own<'l>(&self, txn: u32, key: u32, list: &'l [u64]) -> &'l [u64] {
        self.trim(list, |info| info.txn == txn, key)
    }

    /// A list without the ids at its end that `txn` appended and then undid.
    pub fn without_undone<'l>(&self, txn: u32, key: u32, list: &'l [u64]) -> &'l [u64] {
        self.trim(list, |info| info.txn == txn && info.undone, key)
    }

    fn trim<'l>(&self, list: &'l [u64], own: impl Fn(&WriteInfo) -> bool, key: u32) -> &'l [u64] {
        let mut end = list.len();
        while end > 0 {
            match self.appended(key, list[end - 1]) {
                Some(number) if own(&self.writes[number as usize]) => end -= 1,
                _ => break,
            }
        }
        &list[..end]
    }
}
