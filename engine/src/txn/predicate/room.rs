//! The room that predicates take. Neighbours are merged where there are too many, and room that is
//! not needed any more is given back.

use super::bounds::{looser, starts_before, Extent};
use super::{Key, New, Predicate, Predicates, MAX_PREDICATES};
use crate::platform::Platform;
use crate::range::{Position, RangeSet};
use std::ops::Bound;

/// Fewer bytes of keys and positions are not tidied.
const ROOM: usize = 1 << 16;

impl Predicates {
    /// Bytes of keys and positions, needed or not.
    fn room(&self) -> usize {
        self.keys.len() + self.positions.len() * std::mem::size_of::<Position>()
    }

    /// Gives back what predicates that were forgotten or narrowed have left behind, when that may
    /// be half of all.
    pub(super) fn tidy(&mut self) {
        if self.room() < self.tidy_at.max(ROOM) {
            return;
        }
        let Predicates { all, keys, positions, .. } = self;
        let (old_keys, old_positions) = (std::mem::take(keys), std::mem::take(positions));
        for q in all.iter_mut() {
            let mut keep = |b: Bound<Key>| {
                b.map(|(at, len)| {
                    keys.extend_from_slice(&old_keys[at..at + len]);
                    (keys.len() - len, len)
                })
            };
            (q.lo, q.hi) = (keep(q.lo), keep(q.hi));
            let (first, n) = (q.first, (q.last - q.first + 1) as usize);
            let mut keep = |starts: usize, base: u32| {
                let from = starts + (first - base) as usize;
                positions.extend_from_slice(&old_positions[from..from + n]);
                positions.len() - n
            };
            (q.starts, q.base) = (keep(q.starts, q.base), first);
            (q.escalated, q.escalated_from) = (q.escalated.map(|e| keep(e, q.escalated_from)), first);
        }
        self.tidy_at = 2 * self.room();
    }

    /// Merges neighbours if there are too many predicates: each pair of the same index becomes its
    /// hull. Open ones stay. No protection is lost: a hull protects what both protect, and the keys
    /// between them. Comparisons may unwind; then nothing has changed.
    pub fn make_room(&mut self, p: &dyn Platform) {
        if self.all.len() < MAX_PREDICATES {
            return;
        }
        let mut sorted: Vec<usize> = (0..self.all.len()).filter(|&i| !self.all[i].is_open()).collect();
        let place = |q: &Predicate| (q.ranges.table().id, q.ranges.index, q.set as *const RangeSet as usize);
        sorted.sort_by(|&a, &b| {
            let (a, b) = (&self.all[a], &self.all[b]);
            let (lo, other) = (self.bounds(a).0, self.bounds(b).0);
            place(a).cmp(&place(b)).then_with(|| starts_before(p, a.ranges.order, lo, other))
        });
        let locked_hulls = self.locked_hulls;
        let mut fewer = Predicates { last_id: self.last_id, locked_hulls, ..Predicates::default() };
        let mut at = 0;
        while at < sorted.len() {
            let a = sorted[at];
            let b = sorted.get(at + 1).copied().filter(|&b| place(&self.all[a]) == place(&self.all[b]));
            at += 1 + b.is_some() as usize;
            self.merge_into(p, &mut fewer, a, b.unwrap_or(a));
        }
        for i in (0..self.all.len()).filter(|&i| self.all[i].is_open()) {
            self.merge_into(p, &mut fewer, i, i);
        }
        fewer.all.sort_by_key(|q| q.id);
        *self = fewer;
    }

    /// The hull of two predicates, or one as it is, as a predicate of `to`.
    fn merge_into(&self, p: &dyn Platform, to: &mut Predicates, a: usize, b: usize) {
        let (a, b) = (&self.all[a], &self.all[b]);
        let ((lo_a, hi_a), (lo_b, hi_b)) = (self.bounds(a), self.bounds(b));
        let order = a.ranges.order;
        let bounds = (looser(p, order, lo_a, lo_b, false), looser(p, order, hi_a, hi_b, true));
        let Some(extent) = Extent::of(p, order, a.set, bounds) else { return };
        let of = |q: &Predicate, no: u32| (q.first..=q.last).contains(&no).then(|| self.start(q, no));
        let start = |no| match (of(a, no), of(b, no)) {
            (Some(x), Some(y)) => x.both(y),
            (Some(x), None) | (None, Some(x)) => x,
            (None, None) => a.set.list(no).position(),
        };
        let looked = a.looked.and(b.looked);
        let new = New { ranges: a.ranges, set: a.set, at: a.at, bounds, extent, open: a.open, looked };
        to.add(new, a.unknown.both(b.unknown), start);
        let q = to.all.last_mut().expect("added just now");
        if a.id == b.id {
            // A hull has an id of its own, which no scan has: it is not narrowed.
            (q.id, q.shared, q.reached) = (a.id, a.shared, a.reached.clone());
            (q.holds_writers, q.covered_locked) = (a.holds_writers, a.covered_locked);
        }
        q.rows_locked = a.rows_locked && b.rows_locked;
        q.by_key = a.by_key || b.by_key;
        to.locked_hulls |= q.rows_locked && a.id != b.id;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::protocol::Touch;
    use crate::range::{Columns, IndexRanges};
    use crate::shared::Engine;
    use crate::table::Table;
    use crate::threads::{Block, Threads};
    use crate::txn::{OpenEnd, ScanId};
    use crate::{Policy, Protocol, ProtocolSet};

    /// Ranges from each key of one byte on.
    fn ranges(e: &Engine, p: &Threads) -> (&'static Table, &'static IndexRanges) {
        let map = Table::new_map(e, 0, 1, 0, &[], ProtocolSet::of(Protocol::Occ), Policy::Wait).expect("memory");
        let table = Table::create(e, 0, [1; 4], map).expect("memory");
        let keys: Vec<[u8; 1]> = (1..=255).map(|k| [k]).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
        (table, table.activate_ranges(e, 0, p, 7, 0, &keys, 8).expect("memory"))
    }

    #[test]
    fn what_was_cancelled_or_narrowed_gives_its_room_back() {
        let block = Block::new(16 << 20, 1).expect("memory");
        let p = Threads::new(block.engine, 0, Default::default());
        let (table, ranges) = ranges(&block.engine, &p);
        let set = ranges.current();
        let add = |t: &mut Predicates, lo: &[u8], hi: &[u8]| -> ScanId {
            let bounds = (Bound::Included(lo), Bound::Included(hi));
            let extent = Extent::of(&p, 0, set, bounds).expect("keys between them");
            let (at, looked) = (Touch { table, no: 0 }, Columns::ALL);
            let new = New { ranges, set, at, bounds, extent, open: OpenEnd::High, looked };
            let id = t.add(new, Position::from_low(0), |no| Position::from_low(no as u64));
            t.id(id, false)
        };
        let mut t = Predicates::default();
        let kept = add(&mut t, &[10], &[200]);
        t.narrow(&p, kept, Some(Bound::Included(&[20])), Some(Bound::Included(&[30, 7])));
        let long = add(&mut t, &[100], &[110]);
        for n in 0..20_000 {
            let id = add(&mut t, &[40], &[240]);
            match n % 2 {
                0 => t.cancel(id),
                _ => t.narrow(&p, id, Some(Bound::Excluded(&[240])), None), // nothing is left
            }
            t.narrow(&p, long, Some(Bound::Included(&[100])), Some(Bound::Included(&[109])));
            assert!(t.room() < 2 * ROOM + 10_000, "{n}: {}", t.room());
        }
        assert_eq!(t.len(), 2);
        // The predicates that stay are what they were.
        let q = t.get(0);
        assert_eq!((q.first, q.last), (20, 30));
        assert_eq!(t.bounds(q), (Bound::Included(&[20][..]), Bound::Included(&[30, 7][..])));
        assert!((20..=30).all(|no| t.start(q, no) == Position::from_low(no as u64)));
        let q = t.get(1);
        assert_eq!(t.bounds(q), (Bound::Included(&[100][..]), Bound::Included(&[109][..])));
        assert!((100..=109).all(|no| t.start(q, no) == Position::from_low(no as u64)));
    }
}
