//! The order of each key's versions: from CSNs, lists, counters, or chains of read-modify-writes.

use super::evidence::{life_of, Evidence};
use super::history::{Event, Key, Payload, Seen, Write, WriteKind};
use super::index::{Index, Named, NONE};
use super::verdict::{AnomalyKind, Verdict};
use super::Options;
use hashbrown::HashMap;

#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    pub write: u32,
    pub txn: u32,
    pub dead: bool,
    /// The transaction's last version of this key.
    pub last: bool,
}

#[derive(Default)]
pub(super) struct Order {
    /// The row exists initially.
    pub exists: bool,
    /// Position `p` is `versions[p - 1]`; position 0 is the initial state.
    pub versions: Vec<Version>,
    /// Versions later than all of `versions`, in an order that the history does not tell.
    pub tail: Vec<Version>,
}

impl Order {
    pub fn at(&self, position: usize) -> Option<&Version> {
        position.checked_sub(1).and_then(|number| self.versions.get(number))
    }
}

pub(super) struct Orders {
    pub of_key: Vec<Order>,
    /// The position of each write. `NONE` if it is in a tail or took no effect.
    pub position: Vec<u32>,
}

pub(super) fn recover(index: &Index<'_>, evidence: &Evidence<'_>, options: &Options, verdict: &mut Verdict) -> Orders {
    let mut orders = Orders { of_key: Vec::new(), position: vec![NONE; index.writes.len()] };
    for key in 0..index.keys.len() as u32 {
        let mut build = Build { index, evidence, options, verdict: &mut *verdict, key };
        let (ordered, tail) = build.order();
        let order = Order {
            exists: evidence.initial.contains(&key),
            versions: ordered.iter().map(|&write| version(index, write)).collect(),
            tail: tail.iter().map(|&write| version(index, write)).collect(),
        };
        for (number, &write) in ordered.iter().enumerate() {
            orders.position[write as usize] = number as u32 + 1;
        }
        if order.tail.iter().any(|version| version.txn != order.tail[0].txn) {
            verdict.unordered_keys += 1;
        }
        orders.of_key.push(order);
    }
    orders
}

fn version(index: &Index<'_>, write: u32) -> Version {
    let info = &index.writes[write as usize];
    Version { write, txn: info.txn, dead: info.kind == WriteKind::Delete, last: info.last }
}

struct LifeOrder {
    inserter: Option<u32>,
    elements: Vec<u32>,
    deleter: Option<u32>,
}

/// Writes in their order, and those of unknown order after them.
type Ordered = (Vec<u32>, Vec<u32>);

struct Build<'a, 'h> {
    index: &'a Index<'h>,
    evidence: &'a Evidence<'h>,
    options: &'a Options,
    verdict: &'a mut Verdict,
    key: u32,
}

impl Build<'_, '_> {
    fn order(&mut self) -> Ordered {
        let index = self.index;
        let all = &index.by_key[self.key as usize];
        let writes: Vec<u32> = all.iter().copied().filter(|&write| index.stays(write)).collect();
        let Some(&first) = writes.first() else {
            return (writes, Vec::new());
        };
        let txn_of = |write: u32| index.writes[write as usize].txn;
        if writes.iter().all(|&write| txn_of(write) == txn_of(first)) {
            return (writes, Vec::new());
        }
        let csn = |write: u32| index.history.transactions[txn_of(write) as usize].csn;
        if writes.iter().all(|&write| csn(write).is_some()) {
            return self.by_csn(writes);
        }
        let all_are = |wanted: fn(&Payload) -> bool| {
            writes.iter().all(|&write| {
                let info = &index.writes[write as usize];
                info.kind == WriteKind::Delete || wanted(&info.payload)
            })
        };
        let deletes = writes.iter().any(|&write| index.writes[write as usize].kind == WriteKind::Delete);
        if all_are(|payload| matches!(payload, Payload::Append(_))) {
            self.by_lists(&writes)
        } else if !deletes && all_are(|payload| matches!(payload, Payload::Count(_))) {
            let mut writes = writes;
            writes.sort_by_key(|&write| match index.writes[write as usize].payload {
                Payload::Count(count) => count,
                _ => i64::MIN,
            });
            (writes, Vec::new())
        } else if !deletes && all_are(|payload| matches!(payload, Payload::Value(_))) {
            self.by_chain(&writes)
        } else {
            (Vec::new(), writes)
        }
    }

    fn report(&mut self, kind: AnomalyKind, writes: &[u32], text: String) {
        let ids = writes.iter().map(|&write| self.index.id(self.index.writes[write as usize].txn));
        self.verdict.report(self.options.limit, kind, ids.collect(), text);
    }

    fn by_csn(&mut self, mut writes: Vec<u32>) -> Ordered {
        let index = self.index;
        let name = index.describe(self.key);
        let place = |write: u32| {
            let info = &index.writes[write as usize];
            (index.history.transactions[info.txn as usize].csn, info.txn, info.nth)
        };
        writes.sort_by_key(|&write| place(write));
        for pair in writes.windows(2) {
            let (one, other) = (place(pair[0]), place(pair[1]));
            if one.0 == other.0 && one.1 != other.1 {
                let text = format!("two writers of {name} have the CSN {:?}", one.0);
                self.report(AnomalyKind::Malformed, pair, text);
            }
        }
        let place_in_order: HashMap<u32, usize> =
            writes.iter().enumerate().map(|(place, &write)| (write, place)).collect();
        let inserts = writes.iter().filter_map(|&write| {
            let info = &index.writes[write as usize];
            match (info.kind, info.payload) {
                (WriteKind::Insert, Payload::Append(id)) => Some(Some(id)),
                _ => None,
            }
        });
        let lives = std::iter::once(None).chain(inserts);
        let lists: Vec<&[u64]> =
            lives.filter_map(|life| self.evidence.longest.get(&(self.key, life)).copied()).collect();
        for list in lists {
            self.compare_with_csn(list, &writes, &place_in_order);
        }
        (writes, Vec::new())
    }

    /// A list must contain the appends of its life in the order of their CSNs.
    fn compare_with_csn(&mut self, list: &[u64], writes: &[u32], places: &HashMap<u32, usize>) {
        let elements: Vec<u32> = list.iter().filter_map(|&id| self.index.appended(self.key, id)).collect();
        let elements: Vec<u32> = elements.into_iter().filter(|write| places.contains_key(write)).collect();
        let listed: hashbrown::HashSet<u32> = elements.iter().copied().collect();
        let name = self.index.describe(self.key);
        for pair in elements.windows(2) {
            if places[&pair[0]] > places[&pair[1]] {
                let text = format!("the list {name} is {list:?}, which is not the order of the CSNs");
                self.report(AnomalyKind::IncompatibleOrder, pair, text);
                return;
            }
        }
        let (Some(first), Some(last)) = (elements.first(), elements.last()) else {
            return;
        };
        for &write in &writes[places[first]..places[last]] {
            let info = &self.index.writes[write as usize];
            if info.kind == WriteKind::Update && !listed.contains(&write) {
                let text = format!(
                    "{:?} of T{} is missing in the list {name}: {list:?}",
                    info.payload,
                    self.index.id(info.txn)
                );
                self.report(AnomalyKind::LostWrite, &[write, *last], text);
            }
        }
    }

    fn by_lists(&mut self, writes: &[u32]) -> Ordered {
        let mut lives = self.lives(writes);
        let unassigned = self.assign(writes, &mut lives);
        let Some(unseen) = unassigned else {
            return (Vec::new(), writes.to_vec());
        };
        if !self.sort_lives(&mut lives) {
            return (Vec::new(), writes.to_vec());
        }
        let flat = lives
            .iter()
            .flat_map(|(_, life)| life.inserter.into_iter().chain(life.elements.iter().copied()).chain(life.deleter));
        let ordered: Vec<u32> = flat.collect();
        if unseen.len() == 1 {
            let mut ordered = ordered;
            ordered.extend(unseen);
            return (ordered, Vec::new());
        }
        (ordered, unseen)
    }

    /// The lives of the row, each with the content of its longest list.
    fn lives(&self, writes: &[u32]) -> Vec<(Option<u64>, LifeOrder)> {
        let mut lives = vec![(None, LifeOrder { inserter: None, elements: Vec::new(), deleter: None })];
        for &write in writes {
            let info = &self.index.writes[write as usize];
            if let (WriteKind::Insert, Payload::Append(id)) = (info.kind, info.payload) {
                let life = LifeOrder { inserter: Some(write), elements: Vec::new(), deleter: None };
                lives.push((Some(id), life));
            }
        }
        for (name, life) in &mut lives {
            let Some(list) = self.evidence.longest.get(&(self.key, *name)) else {
                continue;
            };
            let elements = list.iter().filter_map(|&id| self.index.appended(self.key, id));
            let mut seen = hashbrown::HashSet::new();
            life.elements = elements
                .filter(|&write| self.index.stays(write))
                .filter(|&write| Some(write) != life.inserter && seen.insert(write))
                .collect();
        }
        lives
    }

    /// Assigns deletes to lives. Returns the appends that no read saw, all of which come last.
    /// `None` if the place of a write is not known.
    fn assign(&mut self, writes: &[u32], lives: &mut [(Option<u64>, LifeOrder)]) -> Option<Vec<u32>> {
        let placed: hashbrown::HashSet<u32> =
            lives.iter().flat_map(|(_, life)| life.elements.iter().copied()).collect();
        let initial_is_dead = !self.evidence.initial.contains(&self.key);
        let candidates = lives.len() - usize::from(initial_is_dead);
        let places: HashMap<Option<u64>, usize> = lives.iter().enumerate().map(|(at, (name, _))| (*name, at)).collect();
        let mut unseen = Vec::new();
        let mut deletes = 0;
        for &write in writes {
            match self.index.writes[write as usize].kind {
                WriteKind::Insert => {}
                WriteKind::Update if placed.contains(&write) => {}
                WriteKind::Update => unseen.push(write),
                WriteKind::Delete => {
                    deletes += 1;
                    let life = match self.life_before(write) {
                        Some(name) => *places.get(&name)?,
                        None if candidates == 1 => lives.len() - 1,
                        None => return None,
                    };
                    if let Some(other) = lives[life].1.deleter.replace(write) {
                        let text = format!("two transactions deleted the same row {}", self.index.describe(self.key));
                        self.report(AnomalyKind::LostUpdate, &[other, write], text);
                        return None;
                    }
                }
            }
        }
        // An unseen append to a deleted row stands somewhere before the delete.
        (unseen.is_empty() || (deletes == 0 && candidates == 1)).then_some(unseen)
    }

    /// The life that a delete ended, by the last version that it or its transaction saw.
    fn life_before(&self, write: u32) -> Option<Option<u64>> {
        let info = &self.index.writes[write as usize];
        let events = &self.index.history.transactions[info.txn as usize].events;
        let key = self.index.keys[self.key as usize];
        let level = self.index.history.transactions[info.txn as usize].level;
        let mut life = None;
        for event in &events[..=info.event as usize] {
            let seen = match event {
                Event::Read { key: read, seen, .. } if *read == key => seen,
                Event::Write(Write { key: written, saw: Some(seen), undone: false, .. }) if *written == key => seen,
                Event::Write(Write {
                    key: written,
                    kind: WriteKind::Insert,
                    payload: Payload::Append(id),
                    undone: false,
                    ..
                }) if *written == key => {
                    life = Some(Some(*id));
                    continue;
                }
                _ => continue,
            };
            let own_statement = matches!(event, Event::Write(_));
            let trusted = own_statement || level != super::history::Level::ReadCommitted;
            if let (Seen::List(list), true) = (seen, trusted) {
                life = Some(life_of(self.index, self.key, list));
            }
        }
        life
    }

    fn write(&self, write: u32) -> &Write {
        let info = &self.index.writes[write as usize];
        match &self.index.history.transactions[info.txn as usize].events[info.event as usize] {
            Event::Write(write) => write,
            _ => unreachable!("the event of a write is a write"),
        }
    }

    /// Sorts the lives. Returns false if their order is not certain.
    fn sort_lives(&self, lives: &mut [(Option<u64>, LifeOrder)]) -> bool {
        let transactions = &self.index.history.transactions;
        let txn = |write: u32| &transactions[self.index.writes[write as usize].txn as usize];
        // The latest time at which a write was made, and the earliest one at which it was
        // committed. A row is there when its insert has returned. It goes at its deleter's COMMIT
        // at the earliest.
        let made = |write: u32| self.write(write).at.or(txn(write).commit);
        let committed = |write: u32| txn(write).earliest_end();
        let time = |life: &LifeOrder| life.inserter.and_then(made).unwrap_or(0);
        lives[1..].sort_by_key(|(_, life)| (life.deleter.is_none(), time(life)));
        let certain = |one: &LifeOrder, other: &LifeOrder| {
            // `other` cannot come first if it never ended, or if it ended after `one` existed.
            let Some(end) = other.deleter else {
                return true;
            };
            match (one.deleter, one.inserter, other.inserter) {
                (Some(deleter), _, Some(inserter)) if txn(deleter).id == txn(inserter).id => true,
                (_, Some(inserter), _) if txn(end).id == txn(inserter).id => false,
                (_, Some(inserter), _) => match (committed(end), made(inserter)) {
                    (Some(committed), Some(made)) => committed > made,
                    _ => false,
                },
                _ => false,
            }
        };
        lives[1..].windows(2).all(|pair| certain(&pair[0].1, &pair[1].1))
    }

    /// Orders the versions of a register: each update names the version that it replaced, or its
    /// transaction has read it.
    fn by_chain(&mut self, writes: &[u32]) -> Ordered {
        let mut next: HashMap<u32, u32> = HashMap::new();
        for &write in writes {
            let Some(before) = self.replaced(write) else {
                continue;
            };
            if let Some(other) = next.insert(before, write) {
                let text = format!("both replaced the same version of {}", self.index.describe(self.key));
                self.report(AnomalyKind::LostUpdate, &[other, write], text);
                return (Vec::new(), writes.to_vec());
            }
        }
        let mut ordered = Vec::new();
        let mut at = NONE;
        while let Some(write) = next.remove(&at) {
            ordered.push(write);
            at = write;
        }
        let placed: hashbrown::HashSet<u32> = ordered.iter().copied().collect();
        let tail: Vec<u32> = writes.iter().copied().filter(|write| !placed.contains(write)).collect();
        if tail.len() == 1 && ordered.len() + 1 == writes.len() {
            ordered.extend(tail);
            return (ordered, Vec::new());
        }
        (ordered, tail)
    }

    /// The write that a register's update replaced. `Some(NONE)` is the initial version.
    fn replaced(&self, write: u32) -> Option<u32> {
        let info = &self.index.writes[write as usize];
        let transaction = &self.index.history.transactions[info.txn as usize];
        let key: Key = self.index.keys[self.key as usize];
        let mut before = None;
        for event in &transaction.events[..=info.event as usize] {
            let seen = match event {
                Event::Read { key: read, seen, .. } if *read == key => seen,
                Event::Write(written) if written.key == key && !written.undone => {
                    let own = self.index.named_payload(self.key, written.payload);
                    if own == Some(write) {
                        if let Some(seen) = &written.saw {
                            before = self.as_write(seen);
                        }
                        return before;
                    }
                    before = own;
                    continue;
                }
                _ => continue,
            };
            if transaction.level != super::history::Level::ReadCommitted {
                before = self.as_write(seen);
            }
        }
        before
    }

    fn as_write(&self, seen: &Seen) -> Option<u32> {
        match self.index.named(self.key, seen) {
            Named::Initial | Named::Absent => Some(NONE),
            Named::Write(write) if self.index.stays(write) => Some(write),
            Named::Write(_) | Named::Unwritten => None,
        }
    }
}
