//! Ranges in the test world: two indexes, one in each direction, and scans of key ranges through
//! them.

use crate::client::{Client, Mood};
use crate::world::{checked, partition_of, Rng, Row, World, PARTITIONS, SHARED, WIDTH};
use mixedcc_engine::checker::Predicate;
use mixedcc_engine::csn::SlotId;
use mixedcc_engine::platform::Platform;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::range::{IndexRanges, Looked};
use mixedcc_engine::txn::{OpenEnd, Scan};
use mixedcc_engine::{Error, Txn};
use std::ops::Bound;

/// Names of the indexes. The first has short keys that compare as bytes; the second long ones, in
/// the platform's order, which is downwards.
pub const INDEXES: [u64; 2] = [11, 22];
/// The order of the second index.
pub const DOWNWARDS: u32 = 7;

/// A key as the index `i` has it.
pub fn encode(i: usize, key: i64) -> Vec<u8> {
    let mut k = if i == 0 { Vec::new() } else { vec![9; 44] };
    k.extend_from_slice(&(key as u64 ^ 1 << 63).to_be_bytes());
    k
}

/// Boundaries at these keys, in the index's order.
fn boundaries(i: usize, cuts: &[i64]) -> Vec<Vec<u8>> {
    let mut cuts = cuts.to_vec();
    cuts.sort_unstable();
    if i == 1 {
        cuts.reverse();
    }
    cuts.into_iter().map(|c| encode(i, c)).collect()
}

/// Some keys at which ranges could be cut.
pub fn cuts(rng: &mut Rng) -> Vec<i64> {
    let span = SHARED as u64 + 20;
    (0..2 + rng.below(10)).map(|_| (rng.below(PARTITIONS as u64) * WIDTH as u64 + rng.below(span)) as i64).collect()
}

impl World {
    /// Gives an index ranges.
    pub fn activate(&self, p: &dyn Platform, slot: SlotId, i: usize, cuts: &[i64], list: u32) -> Result<(), Error> {
        let (keys, order) = (boundaries(i, cuts), [0, DOWNWARDS][i]);
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        self.table.activate_ranges(&self.e, slot, p, INDEXES[i], order, &keys, list)?;
        Ok(())
    }

    /// Gives an index other ranges.
    pub fn rebuild(&self, p: &dyn Platform, slot: SlotId, i: usize, cuts: &[i64], list: u32) -> Result<bool, Error> {
        let keys = boundaries(i, cuts);
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let Some(r) = self.table.ranges(INDEXES[i]) else { return Ok(false) };
        r.rebuild(&self.e, slot, p, &keys, list)
    }

    pub fn index_ranges(&self, i: usize) -> Option<&'static IndexRanges> {
        self.table.ranges(INDEXES[i])
    }

    /// Notes the key of a write in all indexes that have ranges.
    pub fn note(&self, t: &mut Txn, p: &dyn Platform, write: u32, key: i64) -> Result<(), Error> {
        for r in self.table.all_ranges().filter(|r| !r.is_dormant()) {
            let i = INDEXES.iter().position(|&x| x == r.index).expect("one of the two");
            t.note_key(p, write, r, Some(&encode(i, key)))?;
        }
        Ok(())
    }
}

/// A scan: what, how far, what for.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Which index.
    pub index: usize,
    pub low: i64,
    pub high: i64,
    /// Read upwards?
    pub up: bool,
    /// Rows at most.
    pub limit: Option<usize>,
    /// Update what was found?
    pub update: bool,
}

impl Span {
    pub fn random(rng: &mut Rng) -> Span {
        let from = rng.below(PARTITIONS as u64) as i64 * WIDTH + rng.below(SHARED as u64 + 2) as i64;
        let wide = if rng.percent(20) { WIDTH } else { rng.below(6) as i64 };
        let limit = rng.percent(35).then(|| rng.below(4) as usize);
        let index = rng.below(2) as usize;
        Span { index, low: from, high: from + wide, up: rng.percent(50), limit, update: rng.percent(15) }
    }

    /// The bounds in the index's terms, inclusive ones or not.
    fn bounds(&self, rng: &mut Rng) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let e = |key| encode(self.index, key);
        let (low, high) = if self.index == 0 { (self.low, self.high) } else { (self.high, self.low) };
        let step = if self.index == 0 { 1 } else { -1 };
        let lo = if rng.percent(50) { Bound::Included(e(low)) } else { Bound::Excluded(e(low - step)) };
        let hi = if rng.percent(50) { Bound::Included(e(high)) } else { Bound::Excluded(e(high + step)) };
        (lo, hi)
    }
}

pub fn borrowed(b: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    b.as_ref().map(Vec::as_slice)
}

impl Client<'_> {
    /// SELECT of a key range, through an index if it has ranges; then perhaps UPDATE of the rows
    /// found.
    pub fn span(&mut self, s: Span, rng: &mut Rng) -> Result<Vec<Row>, Error> {
        self.statement();
        let (mut low, mut high) = (s.low, s.high);
        let ranges = self.w.index_ranges(s.index).filter(|_| self.mood == Mood::Serializable);
        let last = partition_of(high).min(PARTITIONS - 1);
        let at: Vec<Touch> = (partition_of(low)..=last).map(|p| self.w.touch(p)).collect();
        let Some(ranges) = ranges else {
            for p in 0..at.len() as u32 {
                self.scan(partition_of(low) + p)?;
            }
            return Ok(Vec::new());
        };
        let open = match (s.limit, s.up == (s.index == 0)) {
            (None, _) => OpenEnd::No,
            (_, true) => OpenEnd::High,
            (_, false) => OpenEnd::Low,
        };
        let (lo, hi) = s.bounds(rng);
        let scan = Scan { at: &at, lo: borrowed(&lo), hi: borrowed(&hi), open, snapshot: None, looked: Looked::ALL };
        let id = self.t.begin_scan(&self.p, ranges, &scan)?;
        let mut entries = self.w.scan(low, high);
        if !s.up {
            entries.reverse();
        }
        let mut rows: Vec<Row> = Vec::new();
        let mut ended = false;
        for (key, r) in entries {
            // All of the last key, or none: several records may have it.
            if s.limit.is_some_and(|n| rows.len() >= n) && rows.last().is_none_or(|l| l.key != key) {
                ended = true;
                break;
            }
            if let Some(f) = self.look_scanned(r, s.update, id)?.filter(|f| f.row.key == key) {
                rows.push(f.row);
            }
            if open != OpenEnd::No && rng.percent(30) {
                self.t.scan_reached(id, &encode(s.index, key));
            }
        }
        if let (true, Some(l)) = (ended, rows.last()) {
            let end = encode(s.index, l.key);
            let end = Some(Bound::Included(end.as_slice()));
            let (lo, hi) = if open == OpenEnd::High { (None, end) } else { (end, None) };
            self.t.narrow_scan(&self.p, id, lo, hi);
            (low, high) = if s.up { (low, l.key) } else { (l.key, high) };
        } else if ended {
            self.t.cancel_scan(&self.p, id);
            return Ok(rows);
        } else if rng.percent(50) {
            self.t.narrow_scan(&self.p, id, None, None);
        }
        let seen = rows.iter().map(|r| (checked(r.key), r.seen())).collect();
        self.log().scan(Predicate::range(0, low, high), seen);
        if s.update {
            for r in &rows {
                self.update(r.key, false)?;
            }
        }
        Ok(rows)
    }
}
