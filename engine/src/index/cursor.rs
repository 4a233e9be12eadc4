//! Scans: a cursor copies a leaf and then returns its entries.

use super::descend::{Direction, Path};
use super::key::{Entry, Key, Position};
use super::node::CAPACITY;
use super::Index;
use crate::platform::Platform;
use std::ops::Bound;

/// The number of entries copied from the first leaf. It is small, as many scans read few.
const FIRST: usize = if CAPACITY < 8 { 3 } else { 8 };

/// A scan of a part of an index in one direction.
///
/// It returns every entry that exists throughout the scan exactly once and in order. Of the entries
/// that are added or removed meanwhile it returns some. It holds neither a latch nor a place in the
/// tree, but continues behind the last entry. The caller stays pinned.
pub struct Cursor {
    index: &'static Index,
    way: Direction,
    /// The position behind the copied entries. `None`: there are no more.
    next: Option<Position>,
    /// The bounds of the scan; `None`: the first and the last entry of the index.
    low: Option<Position>,
    high: Option<Position>,
    /// The entry that was returned last before the copied ones.
    before: Option<Entry>,
    copied: [Entry; CAPACITY],
    /// Entries `at..len` of the copy have not been returned yet.
    at: usize,
    len: usize,
    most: usize,
}

/// A place in a scan, right behind an entry that it has returned, or before its first one. It is
/// valid for this scan as long as the pin under which it was made.
#[derive(Clone, Copy)]
pub struct Mark {
    last: Option<Entry>,
    way: Direction,
    /// The place in the copy at that time.
    at: usize,
}

/// The position in front of the first key within a lower bound.
fn low_end(b: Bound<&[u8]>) -> Option<Position> {
    match b {
        Bound::Included(k) => Some(Position::of_key(k, false)),
        Bound::Excluded(k) => Some(Position::of_key(k, true)),
        Bound::Unbounded => None,
    }
}

/// The position behind the last key within an upper bound.
fn high_end(b: Bound<&[u8]>) -> Option<Position> {
    match b {
        Bound::Included(k) => Some(Position::of_key(k, true)),
        Bound::Excluded(k) => Some(Position::of_key(k, false)),
        Bound::Unbounded => None,
    }
}

impl Index {
    /// A scan of the keys within the bounds, which are copied.
    pub fn scan(&'static self, low: Bound<&[u8]>, high: Bound<&[u8]>, way: Direction) -> Cursor {
        let (low, high) = (low_end(low), high_end(high));
        let copied = [Entry::LOW; CAPACITY];
        let mut scan =
            Cursor { index: self, way, next: None, low, high, before: None, copied, at: 0, len: 0, most: FIRST };
        scan.go_on_from(None);
        scan
    }
}

impl Cursor {
    /// The next entry: its key and record number. May unwind if a comparison does; the cursor is
    /// then unchanged.
    #[inline]
    pub fn next(&mut self, p: &dyn Platform) -> Option<(Key<'_>, u64)> {
        while self.at == self.len {
            self.fill(p)?;
        }
        let e = self.copied[self.at];
        self.at += 1;
        Some((e.key(), e.record as u64))
    }

    /// The next copied entry: its place in the copy and its record number.
    #[inline]
    pub(super) fn take(&mut self) -> Option<(usize, u64)> {
        if self.at >= self.len {
            return None;
        }
        let at = self.at;
        self.at += 1;
        self.copied.get(at).map(|e| (at, e.record as u64))
    }

    /// Makes the entry that was returned last the next one again.
    #[inline]
    pub(super) fn put_back(&mut self) {
        self.at = self.at.saturating_sub(1);
    }

    /// The record numbers of the copied entries.
    pub(super) fn copied(&self) -> impl Iterator<Item = u64> + '_ {
        self.copied[..self.len].iter().map(|e| e.record as u64)
    }

    /// The direction of the scan.
    pub fn way(&self) -> Direction {
        self.way
    }

    /// Turns the scan: the next entry is the one before the entry that was returned last. A scan
    /// that has ended, or has returned nothing, begins at its other end.
    pub fn turn(&mut self) {
        let last = self.last_entry();
        self.way = match self.way {
            Direction::Forward => Direction::Backward,
            Direction::Backward => Direction::Forward,
        };
        self.go_on_from(last);
    }

    /// Marks the place behind the entry that was returned last. If the scan has ended, or has
    /// returned nothing, that is the place before its first entry.
    pub fn mark(&self) -> Mark {
        Mark { last: self.last_entry(), way: self.way, at: self.at }
    }

    /// Goes back to a mark of this scan: the next entry is the one behind it.
    pub fn restore(&mut self, mark: &Mark) {
        let same = mark.last.is_some() && self.way == mark.way && mark.at <= self.len;
        if same && mark.at.checked_sub(1).map(|i| self.copied[i]) == mark.last {
            self.at = mark.at;
            return;
        }
        self.way = mark.way;
        self.go_on_from(mark.last);
    }

    /// The entry that was returned last, if the scan has not ended.
    fn last_entry(&self) -> Option<Entry> {
        self.at.checked_sub(1).map_or(self.before, |i| Some(self.copied[i]))
    }

    /// Continues behind an entry, or at the beginning.
    fn go_on_from(&mut self, last: Option<Entry>) {
        self.next = Some(match (last, self.way) {
            (Some(last), Direction::Forward) => Position::behind(last),
            (Some(last), Direction::Backward) => Position::before(last),
            (None, Direction::Forward) => self.low.clone().unwrap_or_else(Position::lowest),
            (None, Direction::Backward) => self.high.clone().unwrap_or_else(Position::highest),
        });
        self.before = last;
        (self.at, self.len, self.most) = (0, 0, FIRST);
    }

    /// The key that `next` returned last. `None` if it has returned none, or the scan has ended.
    pub fn last(&self) -> Option<Key<'_>> {
        self.last_entry().map(|e| e.key())
    }

    /// Copies the next entries from one leaf. `None`: there are none.
    pub(super) fn fill(&mut self, p: &dyn Platform) -> Option<()> {
        self.before = self.last_entry().filter(|_| self.next.is_some());
        (self.at, self.len) = (0, 0);
        let start = self.next.as_ref()?;
        let mut path = Path::new();
        let (n, rest) = loop {
            self.index.descend(p, start, self.way, 0, &mut path);
            let leaf = path.last();
            let ahead = if self.way == Direction::Forward { leaf.count - leaf.at } else { leaf.at };
            let n = ahead.min(self.most);
            for (i, to) in self.copied[..n].iter_mut().enumerate() {
                *to = leaf.node.words(if self.way == Direction::Forward { leaf.at + i } else { leaf.at - 1 - i });
            }
            if leaf.node.check(leaf.version).is_ok() {
                break (n, ahead - n);
            }
        };
        let batch = &self.copied[..n];
        let mut next = self.go_on(p, &path, batch, rest);
        let end = match self.way {
            Direction::Forward => &self.high,
            Direction::Backward => &self.low,
        };
        if let Some(end) = end {
            let len = self.within(p, end, batch);
            if len < n {
                next = None;
            }
            self.len = len;
        } else {
            self.len = n;
        }
        self.next = next;
        self.most = CAPACITY;
        Some(())
    }

    /// The position behind a batch, after which `rest` entries of the leaf are left. The leaf may
    /// have covered more than the path says; then the position behind its last entry counts.
    pub(super) fn go_on(&self, p: &dyn Platform, path: &Path, batch: &[Entry], rest: usize) -> Option<Position> {
        let behind = batch.last().map(|&e| match self.way {
            Direction::Forward => Position::behind(e),
            Direction::Backward => Position::before(e),
        });
        let edge = match self.way {
            Direction::Forward => path.upper,
            Direction::Backward => path.lower,
        };
        if rest > 0 {
            return behind;
        }
        let edge = edge?;
        let Some(behind) = behind else { return Some(Position::before(edge)) };
        let edge_is_farther = match self.way {
            Direction::Forward => behind.compare(self.index, p, &edge).is_gt(),
            Direction::Backward => behind.compare(self.index, p, &edge).is_lt(),
        };
        Some(if edge_is_farther { Position::before(edge) } else { behind })
    }

    /// The number of the batch's entries that are within the end.
    fn within(&self, p: &dyn Platform, end: &Position, batch: &[Entry]) -> usize {
        let inside = |e: &Entry| match self.way {
            Direction::Forward => end.compare(self.index, p, e).is_lt(),
            Direction::Backward => end.compare(self.index, p, e).is_ge(),
        };
        if batch.last().is_none_or(inside) {
            return batch.len();
        }
        batch.partition_point(inside)
    }
}

#[cfg(all(test, not(loom)))]
#[path = "cursor_tests.rs"]
mod tests;
