//! The predicates of a transaction in ranges of indexes: the intervals of keys that it has scanned.

use super::parts::ReadPart;
use crate::faults::{self, Fault};
use crate::lock::Mode;
use crate::platform::Platform;
use crate::protocol::{ProtocolSet, Touch};
use crate::range::{compare, Against, Columns, EntryKey, IndexRanges, Position, RangeSet};
use std::ops::Bound;

mod bounds;
mod room;

pub(super) use bounds::Extent;
use bounds::{above, below, higher, lower};

/// With more predicates than this, neighbours are merged.
pub const MAX_PREDICATES: usize = if cfg!(test) { 64 } else { 4096 };

/// Which end of a scan is not known before it ends (LIMIT, cursors).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenEnd {
    /// None: the scan will read all between its bounds.
    No,
    /// It reads upwards, and may end before its upper bound.
    High,
    /// It reads downwards, and may end before its lower bound.
    Low,
}

/// A scan that a transaction has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanId {
    id: u32,
    /// Are whole ranges locked, so that rows need not be?
    pub(super) locked: bool,
}

impl ScanId {
    pub(super) fn is_locked(self) -> bool {
        self.locked
    }
    pub(super) fn locked(self) -> ScanId {
        ScanId { locked: true, ..self }
    }
    /// Number of the scan in its transaction, from 1.
    pub fn number(self) -> u32 {
        self.id
    }
    /// To read a row outside of the scan's bounds: it is not locked.
    pub fn outside(self) -> ScanId {
        self.locked()
    }
    /// No scan. All its bytes are zero.
    pub const NONE: ScanId = ScanId { id: 0, locked: false };
}

/// Bounds of keys.
pub type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// A piece of `Predicates::keys`.
type Key = (usize, usize);

pub(super) struct Predicate {
    id: u32,
    pub ranges: &'static IndexRanges,
    pub set: &'static RangeSet,
    pub at: Touch,
    lo: Bound<Key>,
    hi: Bound<Key>,
    /// The ranges that it reads now.
    pub first: u32,
    pub last: u32,
    whole_low: bool,
    whole_high: bool,
    /// The range whose position is `positions[starts]`.
    base: u32,
    starts: usize,
    pub unknown: Position,
    open: OpenEnd,
    /// The columns that it has looked at (INV-COLUMNS).
    looked: Columns,
    /// Does it lock keys alone, of rows or ranges? Then updates in place are conflicts also where
    /// its rows are locked, if they change what it has looked at.
    by_key: bool,
    /// Are its rows locked, each before it is read? Then only inserts are conflicts
    /// (INV-ROWS).
    pub rows_locked: bool,
    /// Do writers between its bounds wait, in ranges that are not locked (see `parts`)?
    pub holds_writers: bool,
    /// Are the ranges that it covers locked?
    covered_locked: bool,
    /// Are rows of other scans read with its id? Then its ranges are not locked in place of rows.
    shared: bool,
    /// Number of rows that it has locked one by one.
    locked_rows: u32,
    /// Its ranges are locked instead, since positions `positions[escalated..]`: later updates and
    /// deletes are conflicts.
    escalated: Option<usize>,
    /// The range of the first of these positions.
    escalated_from: u32,
    /// The extreme key that an open scan is known to have read.
    reached: Option<Vec<u8>>,
}

/// Where a key lies, seen from a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Outside,
    /// In what the scan has read.
    Read,
    /// In what an open scan may not have read yet.
    Unread,
}

/// A predicate as views show it.
pub struct PredicateView<'a> {
    /// The ranges.
    pub ranges: &'static IndexRanges,
    /// What the scan has read, or will read.
    pub bounds: Bounds<'a>,
    /// Number of ranges that it touches.
    pub touched: u32,
    /// Number of ranges that it reads as a whole.
    pub covered: u32,
    /// Is the scan under way, with an end that is not known?
    pub open: bool,
}

#[derive(Default)]
pub(super) struct Predicates {
    last_id: u32,
    /// By id.
    all: Vec<Predicate>,
    keys: Vec<u8>,
    positions: Vec<Position>,
    /// With so much room taken, room that is not needed any more is given back.
    tidy_at: usize,
    /// Is there a hull of scans whose rows are locked? A scan without a predicate of its own may be
    /// in it, and goes on to lock its rows.
    locked_hulls: bool,
}

/// How the rows of a scan are locked.
#[derive(Clone, Copy)]
pub(super) struct Way {
    /// Its ranges are locked instead.
    ranges_locked: bool,
    /// One by one (INV-ROWS).
    rows_locked: bool,
}

impl Way {
    /// May a row be read without a lock of its own, and without being remembered, if these
    /// protocols are followed in its partition?
    #[inline]
    pub fn needs_no_row_locks(self, all: ProtocolSet) -> bool {
        !self.rows_locked && (self.ranges_locked || !all.locks_reads())
    }
}

/// What a new predicate is made of.
pub(super) struct New<'a> {
    pub ranges: &'static IndexRanges,
    pub set: &'static RangeSet,
    pub at: Touch,
    pub bounds: Bounds<'a>,
    pub extent: Extent,
    pub open: OpenEnd,
    pub looked: Columns,
}

/// The ranges of a scan.
pub(super) struct Place {
    pub set: &'static RangeSet,
    pub first: u32,
    pub last: u32,
}

impl Predicate {
    fn extent(&self) -> Extent {
        Extent { first: self.first, last: self.last, whole_low: self.whole_low, whole_high: self.whole_high }
    }
    pub fn covers(&self, range: u32) -> bool {
        self.extent().covers(range)
    }
    /// Is any registration in a range that it covers a conflict, whatever it says?
    pub fn counts_all(&self) -> bool {
        !self.rows_locked && self.escalated.is_none() && self.looked == Columns::ALL
    }
    /// Does a registration not concern it, because an update in place has changed nothing that it
    /// has looked at? (INV-COLUMNS)
    pub fn passes_over(&self, key: &EntryKey) -> bool {
        key.changed().is_some_and(|c| !self.looked.meet(c) || faults::on(Fault::LooksAtNothing))
    }
    /// Is its end still open, for a validation in the middle of the transaction?
    pub fn is_open(&self) -> bool {
        self.open != OpenEnd::No
    }
}

impl Predicates {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
    pub fn len(&self) -> usize {
        self.all.len()
    }
    pub fn get(&self, i: usize) -> &Predicate {
        &self.all[i]
    }
    /// The position in range `no` of a predicate's set.
    pub fn start(&self, q: &Predicate, no: u32) -> Position {
        self.positions[q.starts + (no - q.base) as usize]
    }
    fn key(&self, k: Key) -> &[u8] {
        &self.keys[k.0..k.0 + k.1]
    }
    fn bounds(&self, q: &Predicate) -> Bounds<'_> {
        (q.lo.map(|k| self.key(k)), q.hi.map(|k| self.key(k)))
    }
    fn store(&mut self, b: Bound<&[u8]>) -> Bound<Key> {
        b.map(|k| {
            self.keys.extend_from_slice(k);
            (self.keys.len() - k.len(), k.len())
        })
    }

    /// A scan without anything to protect.
    pub fn nothing() -> ScanId {
        ScanId::NONE
    }

    /// Adds a predicate whose positions are taken now, or those given.
    pub fn add(&mut self, n: New, unknown: Position, start: impl Fn(u32) -> Position) -> u32 {
        self.tidy();
        let starts = self.positions.len();
        self.positions.extend((n.extent.first..=n.extent.last).map(start));
        let (lo, hi) = (self.store(n.bounds.0), self.store(n.bounds.1));
        self.last_id += 1;
        self.all.push(Predicate {
            id: self.last_id,
            ranges: n.ranges,
            set: n.set,
            at: n.at,
            lo,
            hi,
            first: n.extent.first,
            last: n.extent.last,
            whole_low: n.extent.whole_low,
            whole_high: n.extent.whole_high,
            base: n.extent.first,
            starts,
            unknown,
            open: n.open,
            looked: n.looked,
            by_key: false,
            rows_locked: false,
            holds_writers: false,
            covered_locked: false,
            shared: false,
            locked_rows: 0,
            escalated: None,
            escalated_from: 0,
            reached: None,
        });
        self.last_id
    }

    pub fn id(&self, id: u32, locked: bool) -> ScanId {
        ScanId { id, locked }
    }

    /// The predicate of a scan, if the scan still has one of its own.
    #[inline]
    fn find(&self, scan: ScanId) -> Option<usize> {
        match self.all.last() {
            Some(q) if q.id == scan.id => Some(self.all.len() - 1),
            _ => self.all.binary_search_by_key(&scan.id, |q| q.id).ok(),
        }
    }

    /// Where a key of range `no` lies; `None`: any key of it. `middle`: open scans have not read
    /// all.
    pub fn side(&self, p: &dyn Platform, q: &Predicate, no: u32, key: Option<&[u8]>, middle: bool) -> Side {
        let open = middle && q.is_open();
        if !open && q.covers(no) {
            return Side::Read;
        }
        let Some(key) = key else { return if open { Side::Unread } else { Side::Read } };
        let order = q.ranges.order;
        let (lo, hi) = self.bounds(q);
        if !above(p, order, key, lo) || !below(p, order, key, hi) {
            return Side::Outside;
        }
        if !open {
            return Side::Read;
        }
        let read = q.reached.as_ref().is_some_and(|r| match q.open {
            OpenEnd::Low => compare(p, order, key, r).is_ge(),
            _ => compare(p, order, key, r).is_le(),
        });
        if read {
            Side::Read
        } else {
            Side::Unread
        }
    }

    /// The ranges of a scan.
    pub fn place(&self, scan: ScanId) -> Option<Place> {
        let q = &self.all[self.find(scan)?];
        Some(Place { set: q.set, first: q.first, last: q.last })
    }
    /// Does a predicate read in this range?
    pub fn touches(&self, set: &RangeSet, no: u32) -> bool {
        self.all.iter().any(|q| std::ptr::eq(q.set, set) && (q.first..=q.last).contains(&no))
    }

    /// See [`super::Txn::narrow_scan`].
    pub fn narrow(&mut self, p: &dyn Platform, scan: ScanId, lo: Option<Bound<&[u8]>>, hi: Option<Bound<&[u8]>>) {
        let Some(i) = self.find(scan) else { return };
        let q = &self.all[i];
        let (order, (old_lo, old_hi)) = (q.ranges.order, self.bounds(q));
        let little = |b| match b {
            Bound::Included(k) if faults::on(Fault::LimitTooLittle) => Bound::Excluded(k),
            b => b,
        };
        let lo = lo.map_or(old_lo, |b| higher(p, order, old_lo, little(b)));
        let hi = hi.map_or(old_hi, |b| lower(p, order, old_hi, little(b)));
        let Some(x) = Extent::of(p, order, q.set, (lo, hi)) else {
            self.all.remove(i);
            return;
        };
        let copy = |b: Bound<&[u8]>| b.map(<[u8]>::to_vec);
        let (lo, hi) = (copy(lo), copy(hi));
        let lo = self.store(lo.as_ref().map(Vec::as_slice));
        let hi = self.store(hi.as_ref().map(Vec::as_slice));
        let q = &mut self.all[i];
        debug_assert!(x.first >= q.first && x.last <= q.last);
        (q.lo, q.hi, q.open, q.reached) = (lo, hi, OpenEnd::No, None);
        (q.first, q.last, q.whole_low, q.whole_high) = (x.first, x.last, x.whole_low, x.whole_high);
    }

    /// How the rows of a scan are locked now.
    #[inline]
    pub fn way(&self, scan: ScanId) -> Way {
        let q = self.find(scan).map(|i| &self.all[i]);
        Way {
            ranges_locked: scan.is_locked() || q.is_some_and(|q| q.escalated.is_some()),
            rows_locked: q.is_some_and(|q| q.rows_locked),
        }
    }

    /// Writers wait where the scan has read. `locked`: are the ranges locked that it
    /// covers?
    pub fn hold_writers(&mut self, scan: ScanId, locked: bool) {
        if let Some(i) = self.find(scan) {
            (self.all[i].holds_writers, self.all[i].covered_locked) = (true, locked);
        }
    }
    /// Is the end of a scan not known yet?
    pub fn is_open(&self, scan: ScanId) -> bool {
        self.find(scan).is_some_and(|i| self.all[i].is_open())
    }
    /// What a scan whose protocol locks ranges reads of the ranges that are not locked.
    pub fn parts_of(&self, scan: ScanId) -> Option<ReadPart<'_>> {
        let q = &self.all[self.find(scan)?];
        let (lo, hi) = self.bounds(q);
        let (set, order, extent) = (q.set, q.ranges.order, q.extent());
        let wanted = q.holds_writers && !q.is_open() && q.escalated.is_none();
        let against = match (q.rows_locked, q.by_key) {
            (true, _) => Against::Inserts,
            (false, true) => Against::Keys,
            (false, false) => Against::All,
        };
        wanted.then_some(ReadPart { set, order, extent, lo, hi, against, covered_locked: q.covered_locked })
    }
    /// The scan locks keys alone.
    pub fn lock_keys(&mut self, scan: ScanId) {
        match self.find(scan) {
            Some(i) => self.all[i].by_key = true,
            // It is not known in which hull the scan is.
            None if self.locked_hulls => self.all.iter_mut().for_each(|q| q.by_key = true),
            None => {}
        }
    }
    /// The mode in which it locks rows or ranges. A scan without a predicate of its own may be in a
    /// hull with others.
    pub fn mode(&self, scan: ScanId) -> Mode {
        match self.find(scan) {
            Some(i) if self.all[i].by_key => Mode::KeyShare,
            _ => Mode::Share,
        }
    }
    /// Are the rows of the scan locked one by one from now on?
    pub fn lock_rows(&mut self, scan: ScanId, yes: bool) {
        match self.find(scan) {
            Some(i) => self.all[i].rows_locked = yes,
            None if self.locked_hulls && !yes => {
                // It is not known in which hull the scan is. Rows that are locked protect
                // themselves still.
                self.all.iter_mut().for_each(|q| q.rows_locked = false);
                self.locked_hulls = false;
            }
            None => {}
        }
    }
    /// Are the rows of the scan locked one by one?
    pub fn locks_rows(&self, scan: ScanId) -> bool {
        match self.find(scan) {
            Some(i) => self.all[i].rows_locked,
            None => self.locked_hulls && scan.id != 0 && !scan.is_locked(),
        }
    }
    /// A row of the scan was locked; how many now?
    pub fn count_locked_row(&mut self, scan: ScanId) -> u32 {
        let Some(i) = self.find(scan).filter(|&i| self.all[i].rows_locked && !self.all[i].shared) else { return 0 };
        self.all[i].locked_rows += 1;
        self.all[i].locked_rows
    }
    /// See [`super::Txn::share_rows`].
    pub fn share(&mut self, scan: ScanId) {
        if let Some(i) = self.find(scan) {
            self.all[i].shared = true;
        }
    }
    /// The scan's ranges are locked from now on, its next rows are not.
    pub fn escalate(&mut self, scan: ScanId) {
        let Some(i) = self.find(scan) else { return };
        let q = &mut self.all[i];
        (q.rows_locked, q.escalated) = (false, Some(self.positions.len()));
        q.escalated_from = q.first;
        self.positions.extend((q.first..=q.last).map(|no| q.set.list(no).position()));
    }
    /// Are the ranges of the scan locked in place of its next rows?
    pub fn is_escalated(&self, scan: ScanId) -> bool {
        self.find(scan).is_some_and(|i| self.all[i].escalated.is_some())
    }
    /// Is a registered write no conflict, because its row was there and was locked before it was
    /// read? Or because the write was over when the ranges were locked? The lock of a row's key
    /// does not keep updates in place out.
    pub fn spares(&self, q: &Predicate, no: u32, pos: u64, key: &EntryKey) -> bool {
        let is_let_in = q.by_key && key.changed().is_some() && !faults::on(Fault::KeysAreRows);
        if !key.is_existing() || is_let_in {
            return false;
        }
        let before = |e: usize| !self.positions[e + (no - q.escalated_from) as usize].looks_at(pos);
        q.rows_locked || q.escalated.is_some_and(|e| before(e) || faults::on(Fault::EscalatesTooFar))
    }

    /// The platform may know how far an open scan is. Then conflicts in what it has read are
    /// distinguished from others.
    pub fn ask_reached(&mut self, p: &dyn Platform, i: usize) -> bool {
        let id = ScanId { id: self.all[i].id, ..ScanId::NONE };
        let Some((key, upwards)) = p.reached(id.id).filter(|_| self.all[i].is_open()) else { return false };
        self.all[i].open = if upwards { OpenEnd::High } else { OpenEnd::Low };
        self.reached(id, &key);
        true
    }

    /// See [`super::Txn::scan_reached`].
    pub fn reached(&mut self, scan: ScanId, key: &[u8]) {
        if let Some(i) = self.find(scan) {
            let q = &mut self.all[i];
            if q.is_open() {
                let r = q.reached.get_or_insert_default();
                r.clear();
                r.extend_from_slice(key);
            }
        }
    }

    /// Forgets a predicate.
    pub fn cancel(&mut self, scan: ScanId) {
        if let Some(i) = self.find(scan) {
            self.all.remove(i);
        }
    }

    /// Forgets the predicates that `f` does not want.
    pub fn retain(&mut self, f: impl Fn(&Predicate) -> bool) {
        self.all.retain(f);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        (self.last_id, self.tidy_at) = (0, 0);
        self.locked_hulls = false;
        super::clear_vec(&mut self.all);
        super::clear_vec(&mut self.keys);
        super::clear_vec(&mut self.positions);
    }

    /// For views.
    pub fn views(&self) -> impl Iterator<Item = PredicateView<'_>> {
        self.all.iter().map(|q| PredicateView {
            ranges: q.ranges,
            bounds: self.bounds(q),
            touched: q.last - q.first + 1,
            covered: q.extent().covered(),
            open: q.is_open(),
        })
    }
}
