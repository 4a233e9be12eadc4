//! Makes the graph's nodes and edges from the events. On the way it judges each single read:
//! aborted, intermediate, garbage or missing.

use super::graph::{kind, Edge};
use super::history::{Event, Image, Key, Level, Payload, Predicate, Seen, Transaction, Write, WriteKind};
use super::index::{Index, Named, NONE};
use super::order::{Order, Orders};
use super::verdict::{AnomalyKind, Verdict};
use super::Options;
use hashbrown::{HashMap, HashSet};
use std::rc::Rc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// A serializable transaction, or the commit of another one.
    Commit,
    /// The snapshot of a repeatable read transaction.
    Snapshot,
    /// The snapshot of a read committed statement.
    Statement(u32),
    /// A moment between the commits before it and the begins after it.
    Moment,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub txn: u32,
    pub part: Part,
}

/// A read that fits several stretches of its key's versions.
pub(super) struct Ambiguous {
    pub node: u32,
    pub key: u32,
    /// For each stretch: the transaction that the reader follows, and the one that it precedes.
    /// `NONE`: no transaction.
    pub stretches: Vec<(u32, u32)>,
}

pub(super) struct Builder<'a, 'h> {
    pub index: &'a Index<'h>,
    pub orders: &'a Orders,
    pub options: &'a Options,
    pub verdict: &'a mut Verdict,
    pub nodes: Vec<Node>,
    pub edges: Vec<Edge>,
    pub ambiguous: Vec<Ambiguous>,
    /// The first node of each transaction.
    pub first: Vec<u32>,
    /// Of each key that a read has not seen.
    absences: HashMap<u32, Rc<Absences>>,
    own: HashMap<u32, Own>,
}

/// The stretches of a key without a row, in their order. Most of them are at other times than a
/// reader: those that may be its own are found by bisection.
struct Absences {
    stretches: Vec<(u32, u32)>,
    /// For each stretch: the latest time at which it or an earlier one has ended.
    ended: Vec<u64>,
    /// The earliest time at which it or a later one may have begun.
    begun: Vec<u64>,
}

impl Absences {
    fn new(index: &Index<'_>, stretches: Vec<(u32, u32)>) -> Self {
        let transactions = &index.history.transactions;
        let of = |txn: u32| (txn != NONE).then(|| &transactions[txn as usize]);
        let mut latest = 0;
        let ended = stretches.iter().map(|&(_, before)| {
            latest = of(before).and_then(|txn| txn.commit).unwrap_or(u64::MAX).max(latest);
            latest
        });
        let ended = ended.collect();
        let mut earliest = u64::MAX;
        let begun = stretches.iter().rev().map(|&(after, _)| {
            earliest = of(after).and_then(|txn| txn.earliest_end()).unwrap_or(0).min(earliest);
            earliest
        });
        let mut begun: Vec<u64> = begun.collect();
        begun.reverse();
        Self { stretches, ended, begun }
    }

    /// Those that a reader may have met; all of them, if none fits.
    fn of(&self, transactions: &[Transaction], reader: &Transaction) -> Vec<(u32, u32)> {
        let from = reader.begin.map_or(0, |begin| self.ended.partition_point(|&end| end < begin));
        let begun = |commit| self.begun.partition_point(|&begin| begin <= commit);
        let to = reader.commit.map_or(self.begun.len(), begun);
        let near = self.stretches.get(from..to).unwrap_or_default().iter().copied();
        let met: Vec<_> = near.filter(|&stretch| may_meet(transactions, reader, stretch)).collect();
        if met.is_empty() {
            self.stretches.clone()
        } else {
            met
        }
    }
}

/// Do the times allow that a reader has met this stretch?
pub(super) fn may_meet(transactions: &[Transaction], reader: &Transaction, (after, before): (u32, u32)) -> bool {
    let starts_later = after != NONE
        && match (reader.commit, transactions[after as usize].earliest_end()) {
            (Some(commit), Some(end)) => end > commit,
            _ => false,
        };
    let ended_before = before != NONE
        && match (transactions[before as usize].commit, reader.begin) {
            (Some(commit), Some(begin)) => commit < begin,
            _ => false,
        };
    !starts_later && !ended_before
}

/// A transaction's own writes to a key.
struct Own {
    live: bool,
    payload: Payload,
    /// Some were undone, so their visibility is not judged.
    undone: bool,
}

impl<'a, 'h> Builder<'a, 'h> {
    pub fn new(index: &'a Index<'h>, orders: &'a Orders, options: &'a Options, verdict: &'a mut Verdict) -> Self {
        let count = index.history.transactions.len() as u32;
        Self {
            index,
            orders,
            options,
            verdict,
            nodes: (0..count).map(|txn| Node { txn, part: Part::Commit }).collect(),
            edges: Vec::new(),
            ambiguous: Vec::new(),
            first: (0..count).collect(),
            absences: HashMap::new(),
            own: HashMap::new(),
        }
    }

    pub fn run(&mut self) {
        self.write_edges();
        for txn in 0..self.index.history.transactions.len() as u32 {
            if self.index.effective[txn as usize] {
                self.transaction(txn);
            }
        }
    }

    pub fn edge(&mut self, from: u32, to: u32, kind: u16, key: u32) {
        if from != to {
            self.edges.push(Edge { from, to, key, kind });
        }
    }

    pub fn report(&mut self, kind: AnomalyKind, txns: &[u32], text: String) {
        let ids = txns.iter().map(|&txn| self.index.id(txn)).collect();
        self.verdict.report(self.options.limit, kind, ids, text);
    }

    fn write_edges(&mut self) {
        let orders = self.orders;
        for (key, order) in orders.of_key.iter().enumerate() {
            for pair in order.versions.windows(2) {
                self.edge(pair[0].txn, pair[1].txn, kind::WW, key as u32);
            }
            if let Some(last) = order.versions.last() {
                for later in &order.tail {
                    self.edge(last.txn, later.txn, kind::WW, key as u32);
                }
            }
        }
    }

    fn transaction(&mut self, txn: u32) {
        self.own.clear();
        let index = self.index;
        let transaction = &index.history.transactions[txn as usize];
        let mut node = txn;
        let mut last_statement = None;
        for event in &transaction.events {
            let statement = match event {
                Event::Read { statement, .. } | Event::Scan { statement, .. } => *statement,
                Event::Write(write) => {
                    self.write(txn, write);
                    continue;
                }
            };
            let part = match transaction.level {
                Level::Snapshot => Part::Snapshot,
                Level::ReadCommitted => Part::Statement(statement),
                Level::Serializable | Level::SerializableReadOnly => Part::Commit,
            };
            if part != Part::Commit && last_statement != Some(part) {
                let fresh = self.nodes.len() as u32;
                self.nodes.push(Node { txn, part });
                if node == txn {
                    self.first[txn as usize] = fresh;
                } else {
                    self.edge(node, fresh, kind::PROGRAM, NONE);
                }
                node = fresh;
                last_statement = Some(part);
            }
            match event {
                Event::Read { key, seen, locked, .. } => {
                    let newest = *locked && transaction.level == Level::ReadCommitted;
                    self.read(txn, node, self.index.key_of[key], seen, newest);
                }
                Event::Scan { predicate, rows, .. } => self.scan(txn, node, predicate, rows),
                Event::Write(_) => {}
            }
        }
        if node != txn {
            self.edge(node, txn, kind::PROGRAM, NONE);
        }
        if transaction.last {
            self.check_last(txn);
        }
    }

    fn write(&mut self, txn: u32, write: &Write) {
        let key = self.index.key_of[&write.key];
        if let (Some(saw), false) = (&write.saw, write.undone) {
            self.check_replaced(txn, key, saw);
        }
        let entry = self.own.entry(key).or_insert(Own { live: false, payload: Payload::Opaque, undone: false });
        entry.undone |= write.undone;
        if !write.undone {
            entry.live = write.kind != WriteKind::Delete;
            entry.payload = write.payload;
        }
    }

    /// Checks the version that a write's RETURNING named: no other version may lie between the two.
    fn check_replaced(&mut self, txn: u32, key: u32, saw: &Seen) {
        let index = self.index;
        if self.own.contains_key(&key) {
            return;
        }
        let trimmed;
        let saw = match saw {
            Seen::List(list) => {
                trimmed = Seen::List(index.without_own(txn, key, list).to_vec());
                &trimmed
            }
            other => other,
        };
        let Some(position) = self.position(txn, key, saw) else {
            return;
        };
        let Some((_, own)) = self.own_position(txn, key) else {
            return;
        };
        if own != position + 1 {
            let between = self.orders.of_key[key as usize].versions.get(position).map(|v| v.txn);
            let mut txns = vec![txn];
            txns.extend(between.filter(|&other| other != txn));
            let text = format!(
                "T{} replaced a version of {} that was no longer the newest",
                index.id(txn),
                index.describe(key)
            );
            self.report(AnomalyKind::LostUpdate, &txns, text);
        }
    }

    /// The transaction's first write of the key that has a place in the order.
    fn own_position(&self, txn: u32, key: u32) -> Option<(u32, usize)> {
        let mut write = self.index.first_write(txn, key)?;
        while write != NONE {
            let position = self.orders.position[write as usize];
            if position != NONE {
                return Some((write, position as usize));
            }
            write = self.index.writes[write as usize].next_same;
        }
        None
    }

    /// The position of the version that was seen. Reports reads that are not allowed. `None`: the
    /// version is the reader's own, absent, unordered or wrong.
    fn position(&mut self, txn: u32, key: u32, seen: &Seen) -> Option<usize> {
        let index = self.index;
        let name = || index.describe(key);
        let reader = index.id(txn);
        let write = match index.named(key, seen) {
            Named::Absent => return None,
            Named::Initial => return Some(0),
            Named::Unwritten => {
                let text = format!("T{reader} read {seen:?} of {}, which no transaction wrote", name());
                self.report(AnomalyKind::GarbageRead, &[txn], text);
                return None;
            }
            Named::Write(write) => write,
        };
        let info = &index.writes[write as usize];
        if info.txn == txn {
            return None;
        }
        let writer = index.id(info.txn);
        if !index.stays(write) {
            let text = format!("T{reader} read {} from T{writer}, which rolled that back", name());
            self.report(AnomalyKind::G1a, &[txn, info.txn], text);
            return None;
        }
        if !info.last {
            let text = format!("T{reader} read {} as T{writer} had it before its last write", name());
            self.report(AnomalyKind::G1b, &[txn, info.txn], text);
            return None;
        }
        match self.orders.position[write as usize] {
            NONE => None,
            position => Some(position as usize),
        }
    }

    fn read(&mut self, txn: u32, node: u32, key: u32, seen: &Seen, newest: bool) {
        if self.is_own(txn, key, seen) {
            return;
        }
        if *seen == Seen::Absent {
            if !newest {
                self.without(txn, node, key, None);
            }
            return;
        }
        if let Some(position) = self.position(txn, key, seen) {
            if newest {
                return;
            }
            self.item_edges(txn, node, key, position);
            return;
        }
        if let (Named::Write(write), false) = (self.index.named(key, seen), newest) {
            let info = &self.index.writes[write as usize];
            if info.txn != txn && self.index.stays(write) && info.last {
                self.edge(info.txn, node, kind::WR, key);
            }
        }
    }

    fn item_edges(&mut self, txn: u32, node: u32, key: u32, position: usize) {
        let order = &self.orders.of_key[key as usize];
        if let Some(version) = order.at(position) {
            self.edge(version.txn, node, kind::WR, key);
        }
        match order.versions.get(position) {
            Some(next) if next.txn != txn => {
                self.edge(node, next.txn, kind::RW, key);
                let level = self.index.history.transactions[txn as usize].level;
                if level == Level::Snapshot && self.own_position(txn, key).is_some() {
                    let text = format!(
                        "T{} wrote {} although T{} had replaced the version in its snapshot",
                        self.index.id(txn),
                        self.index.describe(key),
                        self.index.id(next.txn)
                    );
                    self.report(AnomalyKind::LostUpdate, &[txn, next.txn], text);
                }
            }
            Some(_) => {}
            None => {
                for later in &order.tail {
                    if later.txn != txn {
                        self.edge(node, later.txn, kind::RW, key);
                    }
                }
            }
        }
    }

    /// Has the transaction written the key before? If so, judges what it sees of its own write.
    fn is_own(&mut self, txn: u32, key: u32, seen: &Seen) -> bool {
        let Some(own) = self.own.get(&key) else {
            return false;
        };
        if own.undone {
            let named = self.index.named(key, seen);
            let own_version = matches!(named, Named::Write(write)
                if self.index.writes[write as usize].txn == txn);
            return own_version || *seen == Seen::Absent;
        }
        let right = match (own.live, seen, own.payload) {
            (live, Seen::Absent, _) => !live,
            (false, _, _) => false,
            (true, Seen::List(list), Payload::Append(id)) => list.last() == Some(&id),
            (true, Seen::Value(value), Payload::Value(own)) => *value == own,
            (true, Seen::Count(value), Payload::Count(own)) => *value == own,
            (true, Seen::Version { txn: writer, .. }, _) => *writer == self.index.id(txn),
            (true, Seen::Initial, _) => false,
            (true, ..) => true,
        };
        if !right {
            let text =
                format!("T{} saw {} as {seen:?} after its own write", self.index.id(txn), self.index.describe(key));
            self.report(AnomalyKind::OwnWrite, &[txn], text);
        }
        true
    }

    fn scan(&mut self, txn: u32, node: u32, predicate: &Predicate, rows: &[(Key, Seen)]) {
        let index = self.index;
        let mut returned = HashSet::new();
        for (key, seen) in rows {
            let number = index.key_of[key];
            if !returned.insert(number) {
                let text = format!("a scan of T{} returned {} twice", index.id(txn), index.describe(number));
                self.report(AnomalyKind::Duplicate, &[txn], text);
            }
            if !predicate.covers(*key) {
                let text = format!(
                    "a scan of T{} returned {}, which it did not ask for",
                    index.id(txn),
                    index.describe(number)
                );
                self.report(AnomalyKind::GarbageRead, &[txn], text);
            }
            self.read(txn, node, number, seen, false);
        }
        for &(_, key) in index.range(predicate.table, predicate.low, predicate.high) {
            if returned.contains(&key) {
                continue;
            }
            if !self.own.contains_key(&key) {
                self.without(txn, node, key, Some(predicate));
            } else if predicate.filter.is_none() {
                self.is_own(txn, key, &Seen::Absent);
            }
        }
    }

    /// Handles a key of which the reader saw no row (that satisfies the predicate).
    fn without(&mut self, txn: u32, node: u32, key: u32, predicate: Option<&Predicate>) {
        let order = &self.orders.of_key[key as usize];
        if order.tail.iter().any(|version| version.dead) {
            self.verdict.ambiguous_reads += 1;
            return;
        }
        let filtered = predicate.and_then(|predicate| predicate.filter.as_ref());
        if filtered.is_some() && !order.tail.is_empty() {
            self.verdict.ambiguous_reads += 1;
            return;
        }
        let live = |position| match order.at(position) {
            Some(version) => !version.dead,
            None => order.exists,
        };
        let mut stretches = if let Some(filter) = filtered {
            self.stretches(key, order, |position| {
                let mut list = Vec::new();
                live(position) && filter(self.index.keys[key as usize].key, self.image(key, position, &mut list))
            })
        } else {
            let known = self.absences.get(&key).cloned();
            let absences = known.unwrap_or_else(|| {
                let made = Rc::new(Absences::new(self.index, self.stretches(key, order, live)));
                self.absences.insert(key, Rc::clone(&made));
                made
            });
            let transactions = &self.index.history.transactions;
            absences.of(transactions, &transactions[txn as usize])
        };
        // The read came before the transaction's own write of the key.
        stretches.retain(|&(after, _)| after != txn);
        for (_, before) in &mut stretches {
            if *before == txn {
                *before = NONE;
            }
        }
        match stretches[..] {
            [] => {
                let text = format!(
                    "T{} did not see {}, which no transaction deleted",
                    self.index.id(txn),
                    self.index.describe(key)
                );
                self.report(AnomalyKind::MissingRow, &[txn], text);
            }
            [(after, before)] => {
                self.absent_edges(node, key, after, before);
            }
            [(after, _), .., (_, before)] => {
                self.absent_edges(node, key, after, NONE);
                self.absent_edges(node, key, NONE, before);
                self.ambiguous.push(Ambiguous { node, key, stretches });
            }
        }
    }

    pub fn absent_edges(&mut self, node: u32, key: u32, after: u32, before: u32) {
        if after != NONE {
            self.edge(after, node, kind::WR_PREDICATE, key);
        }
        if before != NONE {
            self.edge(node, before, kind::RW_PREDICATE, key);
        }
    }

    /// The stretches of versions that the reader would not have seen, each with the transactions
    /// that began and ended it.
    fn stretches(&self, key: u32, order: &Order, visible: impl Fn(usize) -> bool) -> Vec<(u32, u32)> {
        let mut stretches = Vec::new();
        let mut open: Option<u32> = None;
        for position in 0..=order.versions.len() {
            let version = order.at(position);
            if version.is_some_and(|version| !version.last) {
                continue;
            }
            let txn = version.map_or(NONE, |version| version.txn);
            if !visible(position) {
                open = open.or(Some(txn));
            } else if let Some(after) = open.take() {
                stretches.push((after, txn));
            }
        }
        if let Some(after) = open {
            // All later versions of unknown order are visible.
            let tail = &self.orders.of_key[key as usize].tail;
            let before = if tail.len() == 1 { tail[0].txn } else { NONE };
            stretches.push((after, before));
        }
        stretches
    }

    fn image<'l>(&self, key: u32, position: usize, list: &'l mut Vec<u64>) -> Image<'l> {
        let order = &self.orders.of_key[key as usize];
        let Some(version) = order.at(position) else {
            return Image::Initial;
        };
        let info = &self.index.writes[version.write as usize];
        match info.payload {
            Payload::Opaque => Image::Opaque { txn: self.index.id(info.txn), nth: info.nth },
            Payload::Value(value) => Image::Value(value),
            Payload::Count(count) => Image::Count(count),
            Payload::Append(_) => {
                for version in &order.versions[..position] {
                    let info = &self.index.writes[version.write as usize];
                    if info.kind != WriteKind::Update {
                        list.clear();
                    }
                    if let (false, Payload::Append(id)) = (version.dead, info.payload) {
                        list.push(id);
                    }
                }
                Image::List(list)
            }
        }
    }
}
