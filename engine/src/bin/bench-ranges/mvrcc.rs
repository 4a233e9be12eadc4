//! A model of MVRCC (Deuteronomy): timestamp order by the start of transactions, over ranges.
//!
//! A write registers in its range when it is made, and aborts if a younger transaction has read the
//! range. A scan looks at the whole list of each range that it touches. An older, undecided writer
//! makes it abort; otherwise the scan leaves its timestamp there. Ranges at the edges count as read
//! completely. Records have timestamps of their own for reads and writes of single keys. The model
//! keeps no data, only conflicts and work.

use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq)]
enum Outcome {
    Open,
    Over,
}

#[derive(Clone, Copy)]
struct Entry {
    ts: u64,
    key: u64,
    outcome: Outcome,
}

#[derive(Default)]
struct Range {
    entries: Vec<Entry>,
    next: usize,
    /// The youngest transaction that has read the range, and the keys that it read.
    read_ts: u64,
    read: (u64, u64),
}

/// The reason of an abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// A conflict in a range, about a key that was really read or written.
    Range,
    /// A conflict in a range, although no key is in both.
    FalseRange,
    /// A conflict about a record.
    Record,
}

pub struct Model {
    last_ts: u64,
    boundaries: Vec<u64>,
    ranges: Vec<Range>,
    list_size: usize,
    /// By key: the youngest committed writer and the youngest reader.
    records: HashMap<u64, (u64, u64)>,
    /// Counts of entries checked by the last scan, of lists, and of registrations.
    pub entries: u64,
    pub lists: u64,
}

/// A transaction.
#[derive(Default)]
pub struct Txn {
    pub ts: u64,
    /// The range and place of each registration.
    places: Vec<(usize, usize)>,
    keys: Vec<u64>,
}

impl Model {
    pub fn new(boundaries: Vec<u64>, list_size: usize) -> Model {
        let ranges = (0..=boundaries.len()).map(|_| Range::default()).collect();
        Model { last_ts: 0, boundaries, ranges, list_size, records: HashMap::new(), entries: 0, lists: 0 }
    }
    fn locate(&self, key: u64) -> usize {
        self.boundaries.partition_point(|b| *b <= key)
    }
    pub fn begin(&mut self) -> Txn {
        self.last_ts += 1;
        Txn { ts: self.last_ts, ..Txn::default() }
    }
    pub fn read(&mut self, t: &Txn, key: u64) {
        let r = self.records.entry(key).or_default();
        r.1 = r.1.max(t.ts);
    }
    pub fn write(&mut self, t: &mut Txn, key: u64) -> Result<(), Conflict> {
        let &(written, read) = self.records.get(&key).unwrap_or(&(0, 0));
        if written > t.ts || read > t.ts {
            return Err(Conflict::Record);
        }
        let no = self.locate(key);
        let (size, r) = (self.list_size, &mut self.ranges[no]);
        if r.read_ts > t.ts {
            let within = (r.read.0..r.read.1).contains(&key);
            return Err(if within { Conflict::Range } else { Conflict::FalseRange });
        }
        let e = Entry { ts: t.ts, key, outcome: Outcome::Open };
        let place = r.next % size;
        if r.entries.len() < size {
            r.entries.push(e);
        } else {
            r.entries[place] = e;
        }
        r.next += 1;
        t.places.push((no, place));
        t.keys.push(key);
        Ok(())
    }
    pub fn scan(&mut self, t: &Txn, low: u64, high: u64) -> Result<(), Conflict> {
        for no in self.locate(low)..=self.locate(high - 1) {
            self.lists += 1;
            let r = &mut self.ranges[no];
            self.entries += r.entries.len() as u64;
            let older = |e: &&Entry| e.outcome == Outcome::Open && e.ts < t.ts;
            if r.entries.iter().any(|e| older(&e)) {
                let real = r.entries.iter().filter(older).any(|e| (low..high).contains(&e.key));
                return Err(if real { Conflict::Range } else { Conflict::FalseRange });
            }
            if t.ts > r.read_ts {
                (r.read_ts, r.read) = (t.ts, (low, high));
            }
        }
        Ok(())
    }
    pub fn end(&mut self, t: &Txn, committed: bool) {
        for &(no, place) in &t.places {
            if self.ranges[no].entries[place].ts == t.ts {
                self.ranges[no].entries[place].outcome = Outcome::Over;
            }
        }
        if committed {
            for &key in &t.keys {
                let r = self.records.entry(key).or_default();
                r.0 = r.0.max(t.ts);
            }
        }
    }
}
