//! Scans of ranges of an index.
//!
//! **INV-ROWS**: Where the protocols of all partitions of a scan lock its rows one by one, each row
//! is locked before it is read. Then only inserts count against the predicate, also in ranges that
//! the scan covers. A scan may lock the keys of its rows alone (KEY SHARE). Then updates in place
//! count too, if they change what the scan has looked at (INV-COLUMNS).

use super::predicate::{Extent, New, OpenEnd, PredicateView, Predicates, ScanId, Way};
use super::range_locks::ESCALATE;
use super::versions::{is_tombstone, settled};
use super::{Level, RecordRef, Txn};
use crate::error::Error;
use crate::index::Records;
use crate::lock::Mode;
use crate::open::Seen;
use crate::platform::{Platform, StopEvent};
use crate::primitive::Ordering;
use crate::protocol::{Reading, Touch};
use crate::range::{Columns, Entry, IndexRanges, List, Looked, Position, RangeSet};
use crate::record::Version;
use std::ops::Bound;
use std::ptr::NonNull;

/// A scan that is about to begin.
#[derive(Clone, Copy)]
pub struct Scan<'a> {
    /// The partitions that rows between the bounds can be in.
    pub at: &'a [Touch],
    /// Exact lower bound.
    pub lo: Bound<&'a [u8]>,
    /// Exact upper bound.
    pub hi: Bound<&'a [u8]>,
    /// Which end may come early.
    pub open: OpenEnd,
    /// The snapshot that it reads; `None`: the newest committed versions.
    pub snapshot: Option<Seen<'a>>,
    /// The columns that the transaction looks at in the rows that it gets from this scan. It bases
    /// no write of such a row on it, unless these are all columns (INV-COLUMNS).
    pub looked: Looked,
}

/// Which version of a row is wanted, where a look at the newest version may be enough.
#[derive(Clone, Copy, Debug)]
pub enum Look<'a> {
    /// The newest committed version: a row of this scan.
    Scan(ScanId),
    /// The version of this snapshot.
    Snapshot(Seen<'a>),
}

/// What a look-up of one key has seen of the ranges before it looked.
#[derive(Clone, Copy)]
pub struct LookPosition {
    pub(super) ranges: &'static IndexRanges,
    pub(super) set: &'static RangeSet,
    pub(super) at: Touch,
    pub(super) no: u32,
    pub(super) start: Position,
    pub(super) unknown: Position,
}

/// The position of a scan that starts now, in a list of an index. Commits that a snapshot may leave
/// out count as later ones.
fn start<E: Entry>(ranges: &IndexRanges, list: List<'_, E>, snapshot: Option<Seen<'_>>) -> Position {
    match snapshot {
        None => list.position(),
        Some(seen) => ranges.position_at(seen.floor, || list.position_at(seen.floor)),
    }
}

impl Txn {
    /// A scan of a range of an index begins. Call it before the index is read; then read the rows
    /// with [`Txn::read_scanned`], or from the snapshot that `scan` names.
    ///
    /// Locks as the protocols of the partitions want: perhaps also the ranges that the scan
    /// covers. From now on writes of keys between the bounds are conflicts, whatever the level of
    /// this transaction.
    pub fn begin_scan(
        &mut self,
        p: &dyn Platform,
        ranges: &'static IndexRanges,
        scan: &Scan<'_>,
    ) -> Result<ScanId, Error> {
        debug_assert!(ranges.is_active());
        // INV-VALID: at this level everything is read as of `valid`, or later.
        debug_assert!(self.level == Level::Snapshot || scan.snapshot.is_none());
        if self.level == Level::Serializable {
            for &at in scan.at {
                self.before_scan(p, at)?;
            }
        }
        if self.needs_no_predicates() {
            return Ok(Predicates::nothing().locked());
        }
        let snapshot = scan.snapshot.or(self.frozen_at());
        self.hold();
        ranges.wake(&self.e, self.slot, p)?;
        let set = ranges.current();
        let bounds = (scan.lo, scan.hi);
        let Some(extent) = Extent::of(p, ranges.order, set, bounds) else { return Ok(Predicates::nothing()) };
        self.scans.ranged.make_room(p);
        // A scan to an end of the index that may stop early (for the first row, or the last one)
        // locks row by row. By locks of ranges it would exclude all writers in a part of the index
        // that it may never come to. Scans of this kind would exclude each other's writes.
        let endless =
            (extent.first == 0 && extent.covers(0)) || (extent.last + 1 == set.len() && extent.covers(extent.last));
        let by_rows = endless && scan.open != OpenEnd::No;
        let may_stop = scan.open != OpenEnd::No;
        let Looked { columns, keys } = scan.looked;
        let mode = if keys { Mode::KeyShare } else { Mode::Share };
        let locked = match by_rows {
            true => Ok(false),
            false => self.lock_covered(p, (ranges, set), extent, scan.at, (mode, may_stop)),
        };
        let locked = match locked {
            Ok(locked) => locked,
            Err(e) => {
                self.freeze(p, e)?;
                return Ok(Predicates::nothing().locked());
            }
        };
        let at = scan.at.first().copied().unwrap_or(Touch { table: ranges.table(), no: 0 });
        let new = New { ranges, set, at, bounds, extent, open: scan.open, looked: columns };
        let serializable = self.level == Level::Serializable;
        let locks_ranges = |t: &Touch| serializable && self.followed(t.partition()).locks_ranges();
        let locks_reads = |t: &Touch| serializable && self.followed(t.partition()).locks_reads();
        let holds_writers = scan.at.iter().any(locks_ranges);
        let rows_locked = !locked && !scan.at.is_empty() && scan.at.iter().all(locks_reads);
        let unknown = start(ranges, ranges.unknown().list(), snapshot);
        let id = self.scans.ranged.add(new, unknown, |no| {
            set.range(no).scans.fetch_add(1, Ordering::Relaxed);
            start(ranges, set.list(no), snapshot)
        });
        let id = self.scans.ranged.id(id, locked);
        self.locks.name_early(id);
        if keys {
            self.scans.ranged.lock_keys(id);
        }
        if rows_locked {
            self.scans.ranged.lock_rows(id, true);
        }
        if holds_writers {
            self.scans.ranged.hold_writers(id, locked);
            self.publish_parts(id);
        }
        Ok(id)
    }

    /// The scan has ended early: it has read nothing beyond these bounds. Bounds only ever shrink;
    /// `None` leaves one as it is. Call it with `None` for both where the scan has read all.
    pub fn narrow_scan(&mut self, p: &dyn Platform, scan: ScanId, lo: Option<Bound<&[u8]>>, hi: Option<Bound<&[u8]>>) {
        let before = self.scans.ranged.place(scan);
        let was_open = self.scans.ranged.is_open(scan);
        self.scans.ranged.narrow(p, scan, lo, hi);
        self.unlock_unread(p, before, scan);
        if was_open {
            self.publish_parts(scan);
        }
    }

    /// Are the rows of the scan locked one by one so far?
    pub fn locks_rows(&self, scan: ScanId) -> bool {
        self.scans.ranged.locks_rows(scan)
    }

    /// Rows of the scan will not be locked one by one: for a scan that meets rows that
    /// it does not want. Returns the id to read them with.
    pub fn without_row_locks(&mut self, scan: ScanId) -> ScanId {
        self.scans.ranged.lock_rows(scan, false);
        self.locks.widen_parts(&self.owner, scan);
        scan.locked()
    }

    /// The rows of these scans will be read with the id that is returned, because the caller does
    /// not know which of the scans a row belongs to. Either all rows are locked, or the
    /// scans rely on no lock of a row.
    pub fn share_rows(&mut self, scans: &mut [ScanId]) -> ScanId {
        let Some(&first) = scans.first() else { return ScanId::NONE };
        if scans.len() == 1 {
            return first;
        }
        // If one locks keys alone, the row of another one may be locked so.
        let by_key = |&id: &ScanId| self.scans.ranged.mode(id) == Mode::KeyShare;
        if scans.iter().any(by_key) {
            scans.iter().for_each(|&id| self.scans.ranged.lock_keys(id));
        }
        let whole = |t: &Txn, id: ScanId| id.is_locked() || t.scans.ranged.is_escalated(id);
        if scans.iter().any(|&id| whole(self, id)) {
            scans.iter_mut().for_each(|id| *id = self.without_row_locks(*id));
        } else {
            scans.iter().for_each(|&id| self.scans.ranged.share(id));
        }
        scans[0]
    }

    /// The scan has read nothing at all.
    pub fn cancel_scan(&mut self, p: &dyn Platform, scan: ScanId) {
        let before = self.scans.ranged.place(scan);
        self.scans.ranged.cancel(scan);
        self.unlock_unread(p, before, scan);
        self.locks.take_back_parts(&self.owner, Some(scan));
    }

    /// The extreme key that a scan with an open end has read so far. Until the scan tells it, a
    /// conflict in what it may not have read yet fails no transaction, but costs validations.
    pub fn scan_reached(&mut self, scan: ScanId, key: &[u8]) {
        self.scans.ranged.reached(scan, key);
    }

    /// As [`Txn::read`], of a row that a scan found. The scan's predicate protects the row, and
    /// nothing is remembered. Where protocols lock reads, the row is locked if it will be written,
    /// or if the scan covers no range. After many rows, under the policy `wait`, the ranges are
    /// locked instead.
    pub fn read_scanned(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        for_write: bool,
        scan: ScanId,
    ) -> Result<Option<NonNull<Version>>, Error> {
        p.stop_event(StopEvent::Read)?;
        if !self.following {
            if let Some(seen) = self.read_frozen_scanned(p, r, for_write, scan)? {
                return Ok(seen);
            }
            self.begin_following(p)?;
        }
        if !for_write {
            if let Some(seen) = self.peek_scanned(r, scan) {
                return Ok(seen);
            }
        }
        if r.rec.head().is_null() {
            return Ok(None);
        }
        if for_write {
            self.acts = true;
            return self.read_scanned_row(p, r, true, scan);
        }
        self.read_scanned_row(p, r, false, scan).or_else(|e| {
            self.freeze(p, e)?;
            self.read_frozen(p, r, Columns::ALL)
        })
    }

    /// What [`Txn::read_scanned`] would return of a row that will not be written, if a look at it
    /// is enough to know that; else `None`. It neither fails nor unwinds, and does not call the
    /// platform.
    #[inline]
    pub fn peek_scanned(&mut self, r: RecordRef, scan: ScanId) -> Option<Option<NonNull<Version>>> {
        if !self.following {
            return self.peek_frozen(r, (scan.number() == 0).then_some(Columns::ALL));
        }
        let way = self.scans.ranged.way(scan);
        self.peek_by(r, way)
    }

    #[inline(always)]
    pub(super) fn peek_by(&mut self, r: RecordRef, way: Way) -> Option<Option<NonNull<Version>>> {
        if r.rec.head().is_null() {
            return None;
        }
        // After the look at the head: a record's partition is set before its first version.
        let partition = r.partition();
        let plain = self.plain();
        let t = self.follow_also(partition);
        let free = t.locked || !t.set.locks_partitions();
        if !free || !way.needs_no_row_locks(t.set) {
            return None;
        }
        // The head again, after the check of the locks.
        let seen = settled(r.rec.head(), plain)?;
        t.reads += 1;
        Some(seen)
    }

    /// Puts the next rows into `to`, and returns how many. It stops at a row that we have written,
    /// and at a row of which [`Txn::peek_scanned`] or [`Txn::peek_snapshot`] cannot tell what we
    /// see. If fewer rows come than fit, the next row needs more than a look, or no record is at
    /// hand. The caller must take all of them: they count as read.
    pub fn peek_run(&mut self, rows: &mut Records, look: Look<'_>, to: &mut [NonNull<Version>]) -> usize {
        match look {
            Look::Scan(_) if self.is_frozen() => self.peek_while(rows, to, |t, r| t.peek_frozen(r, None)),
            Look::Scan(_) if !self.following => 0,
            Look::Scan(id) => {
                let way = self.scans.ranged.way(id);
                self.peek_while(rows, to, |t, r| t.peek_by(r, way))
            }
            Look::Snapshot(seen) => {
                let plain = self.plain_in(&seen);
                self.peek_while(rows, to, move |t, r| t.peek_seen(r, &seen, plain))
            }
        }
    }

    #[inline(always)]
    fn peek_while(
        &mut self,
        rows: &mut Records,
        to: &mut [NonNull<Version>],
        mut peek: impl FnMut(&mut Txn, RecordRef) -> Option<Option<NonNull<Version>>>,
    ) -> usize {
        let mut n = 0;
        while let Some(place) = to.get_mut(n) {
            let Some(r) = rows.next_copied() else { break };
            let seen = if self.last_write(r).is_some() { None } else { peek(self, r) };
            match seen {
                Some(Some(v)) => {
                    *place = v;
                    n += 1;
                }
                Some(None) => {}
                None => {
                    rows.put_back();
                    break;
                }
            }
        }
        n
    }

    #[inline(never)]
    fn read_scanned_row(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        for_write: bool,
        scan: ScanId,
    ) -> Result<Option<NonNull<Version>>, Error> {
        let partition = r.partition();
        let all = self.follow(p, partition)?;
        self.touch(partition).reads += 1;
        if self.is_gone(r) && !all.locks_partitions() {
            return Ok(None);
        }
        let for_write = for_write || self.retry.is_heir(r);
        let ranges_locked = scan.is_locked() || self.scans.ranged.is_escalated(scan);
        let why = match self.scans.ranged.mode(scan) {
            _ if for_write => Reading::ToWrite,
            _ if ranges_locked => Reading::RowInLockedRange,
            Mode::KeyShare => Reading::Key,
            _ => Reading::ScannedRow,
        };
        all.read(self, p, r, why)?;
        let locked = if ranges_locked { 0 } else { self.scans.ranged.count_locked_row(scan) };
        if locked > 0 && locked % ESCALATE == 0 {
            self.escalate(scan, r.touch());
        }
        let found = self.newest_settled(p, r)?;
        if !all.locks_reads() && self.scans.ranged.locks_rows(scan) {
            // A switch has taken row locks away since the scan began. The row is remembered
            // instead.
            if let Some((v, _)) = found {
                self.reads.add(r, v, Columns::ALL);
            }
        }
        if let Some((_, csn)) = found {
            let newer = csn > self.valid;
            let goes_on = match for_write {
                _ if !newer => true,
                true => self.revalidate(p).map(|()| true)?,
                false => self.revalidate_read(p, r.touch())?,
            };
            if !goes_on {
                return self.read_frozen(p, r, Columns::ALL);
            }
            self.depends.note(csn);
        }
        let seen = found.map_or(std::ptr::null_mut(), |(v, _)| v.as_ptr());
        let live = found.map(|(v, _)| v).filter(|v| !is_tombstone(*v));
        // VACUUM may have taken a deleted row.
        let gone = found.is_some() && live.is_none();
        if !gone && r.rec.head() != seen && self.is_committing_head(r) && !self.is_as_of_valid(p, r, seen)? {
            self.passed_over();
        }
        self.retry.note_scanned(r, live.is_some());
        Ok(live)
    }

    /// Was the row deleted before everything that was read was last found valid, by a commit that
    /// is done? It stays deleted, so there is nothing to lock. The predicate answers for new rows.
    fn is_gone(&self, r: RecordRef) -> bool {
        matches!(settled(r.rec.head(), self.plain()), Some(None))
    }

    /// A look-up of one full key in an index is about to be made. Returns the argument of
    /// [`Txn::add_point_predicate`], for a look-up that finds nothing. Locks nothing:
    /// [`Txn::before_lookup`] does.
    pub fn look_position(
        &mut self,
        p: &dyn Platform,
        at: Touch,
        ranges: &'static IndexRanges,
        key: &[u8],
    ) -> Result<LookPosition, Error> {
        self.hold();
        ranges.wake(&self.e, self.slot, p)?;
        let set = ranges.current();
        let no = set.locate(p, ranges.order, key);
        let snapshot = self.frozen_at();
        let unknown = start(ranges, ranges.unknown().list(), snapshot);
        Ok(LookPosition { ranges, set, at, no, start: start(ranges, set.list(no), snapshot), unknown })
    }

    /// The look-up found nothing: from its position on, writes of the key are conflicts. Afterwards
    /// ask [`Txn::looks_again`].
    pub fn add_point_predicate(&mut self, p: &dyn Platform, look: &LookPosition, key: &[u8]) {
        if self.needs_no_predicates() {
            return;
        }
        let bounds = (Bound::Included(key), Bound::Included(key));
        self.scans.ranged.make_room(p);
        let Some(extent) = Extent::of(p, look.ranges.order, look.set, bounds) else { return };
        debug_assert_eq!((extent.first, extent.last), (look.no, look.no));
        let (at, open, looked) = (look.at, OpenEnd::No, Columns::ALL);
        let new = New { ranges: look.ranges, set: look.set, at, bounds, extent, open, looked };
        self.scans.ranged.add(new, look.unknown, |_| look.start);
        look.set.range(look.no).scans.fetch_add(1, Ordering::Relaxed);
        // INV-VALID: a writer that registered since may have committed before `valid`, unseen by
        // the look-up.
        let same = look.set.list(look.no).is_unchanged(&look.start)
            && look.ranges.unknown().list().is_unchanged(&look.unknown);
        if !same && !self.is_frozen() {
            self.doubt_absence();
        }
    }

    /// The transaction inserts a row with this key in a subtransaction. It has found the key absent
    /// since `look`. If the insert is undone, the key must stay absent: the caller has learned that
    /// it was.
    pub fn note_absent(&mut self, look: LookPosition, key: &[u8]) {
        self.scans.add_absent(look, key, self.depth);
    }

    /// The same of a check that has no key: it looks for rows of these partitions, which are all of
    /// a table. If the insert is undone, others may have no new rows there. Call it before the
    /// check.
    pub fn note_absent_rows(&mut self, all: impl Iterator<Item = Touch>) {
        let mut all = all.peekable();
        if all.peek().is_none_or(|first| self.scans.has_absent_rows(*first, self.depth)) {
            return;
        }
        let now = self.e.now();
        for at in all {
            let start = at.partition().ring.list().position();
            self.scans.add_absent_rows(at, start, if start.is_quiet() { now } else { 0 }, self.depth);
        }
    }

    /// The predicates in ranges of indexes.
    pub fn range_predicates(&self) -> impl Iterator<Item = PredicateView<'_>> {
        self.scans.ranged.views()
    }
    /// The predicates on whole partitions: no row may be inserted into these.
    pub fn partition_predicates(&self) -> impl Iterator<Item = Touch> + '_ {
        self.scans.partitions()
    }

    /// From now on other slots do not end our pin: ranges that we hold on to stay (INV-HOLD).
    pub(super) fn hold(&mut self) {
        if !self.holds {
            self.holds = true;
            self.e.hold(self.slot);
        }
    }
}
