//! Rows by the key of the primary index: look-ups, scans, writes. For programs that keep their rows
//! in the engine alone. Every key has one row at most: serializable writers look before they
//! insert.

use super::versions::settled_in;
use super::{How, Level, OpenEnd, Own, RecordRef, Scan, ScanId, Txn, WriteKind};
use crate::csn::SlotId;
use crate::error::Error;
use crate::index::{prefetch_records, Direction, Primary, Records, Unique, FEW};
use crate::lock::Mode;
use crate::open::{Kept, Seen};
use crate::platform::Platform;
use crate::primitive::Ordering;
use crate::protocol::Touch;
use crate::range::IndexRanges;
use crate::record::{Keys, Successor, Version};
use crate::shared::Engine;
use crate::table::Table;
use std::ops::Bound;
use std::ptr::NonNull;

/// The name of the primary index among the indexes with logical ranges.
pub const PRIMARY: u64 = 0;

/// Rows between two looks of an open scan at how far it has come.
const REACHED: u32 = 64;

/// A row that was found.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its record.
    pub r: RecordRef,
    /// What we see of it.
    pub version: NonNull<Version>,
    /// Have we written it ourselves?
    pub own: bool,
}

/// A scan of the primary index under way.
pub struct RowScan {
    records: Records,
    way: Direction,
    /// Its predicate. `None`: the predicates of the partitions and the read set protect the scan,
    /// or it is not protected.
    id: Option<ScanId>,
    snapshot: Option<Kept>,
    /// May it end early?
    open: bool,
    read: u32,
    ended: bool,
    table: &'static Table,
    /// Which of a record's two partition numbers is its partition.
    field: usize,
    /// The partition of the last row at hand, + 1, and how many rows of it were not counted yet.
    at_hand: (u32, u32),
}

impl Table {
    /// Logical ranges of the primary index: `n` of about equal size, made at the first call, with
    /// so many registrations each. The caller is pinned.
    pub fn primary_ranges(
        &'static self,
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        n: usize,
        list_size: u32,
    ) -> Result<&'static IndexRanges, Error> {
        if let Some(ranges) = self.ranges(PRIMARY) {
            return Ok(ranges);
        }
        let index = &self.index().index;
        let keys = index.sample(p, n);
        let keys: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
        self.activate_ranges(e, slot, p, PRIMARY, index.order(), &keys, list_size)
    }

    fn index(&self) -> &'static Primary {
        self.primary().expect("a table with a primary index")
    }
}

impl Txn {
    /// A scan by key begins. With `scan.snapshot` it reads that snapshot, unprotected if `protect`
    /// is false.
    pub fn scan_rows(
        &mut self,
        p: &dyn Platform,
        table: &'static Table,
        scan: &Scan<'_>,
        way: Direction,
        protect: bool,
    ) -> Result<RowScan, Error> {
        debug_assert!(protect || scan.snapshot.is_some());
        let mut snapshot = scan.snapshot.map(|s| s.keep());
        let id = match table.ranges(PRIMARY).filter(|_| protect) {
            Some(ranges) => {
                let id = self.begin_scan(p, ranges, scan)?;
                snapshot = self.optimistic_snapshot(p, scan)?;
                Some(id)
            }
            None => None,
        };
        if id.is_none() && scan.snapshot.is_none() {
            for &at in scan.at {
                self.scan(p, at)?;
            }
        }
        let records = Records::new(table.index().index.scan(scan.lo, scan.hi, way), table);
        let open = scan.open != OpenEnd::No;
        let field = table.map().field as usize;
        Ok(RowScan { records, way, id, snapshot, open, read: 0, ended: false, table, field, at_hand: (0, 0) })
    }

    /// Where no partition of a scan locks reads, the scan reads a snapshot: at the CSN at which
    /// everything read so far is valid, which is now. So it needs no validation on the way. The
    /// positions of the predicate are older: it answers for all that the snapshot does not see.
    fn optimistic_snapshot(&mut self, p: &dyn Platform, scan: &Scan<'_>) -> Result<Option<Kept>, Error> {
        if scan.snapshot.is_some() || self.level != Level::Serializable {
            return Ok(scan.snapshot.map(|s| s.keep()));
        }
        if self.is_frozen() {
            return Ok(Some(self.valid_seen()));
        }
        for t in scan.at {
            if !self.follow(p, t.partition())?.only_validates_reads() {
                return Ok(None);
            }
        }
        match scan.at.first() {
            Some(&at) => {
                self.revalidate_read(p, at)?;
            }
            None => self.revalidate(p)?,
        }
        Ok((self.valid > 0).then(|| self.valid_seen()))
    }

    /// The next row of a scan. `for_write`: it will be written.
    #[inline]
    pub fn next_row(&mut self, p: &dyn Platform, s: &mut RowScan, for_write: bool) -> Result<Option<Row>, Error> {
        match self.next_at_hand(s) {
            None => self.next_row_found(p, s, for_write),
            row => Ok(row),
        }
    }

    /// The next row of a snapshot, if its record was found already and a look at the newest version
    /// is enough to know the row. Most are such.
    #[inline]
    fn next_at_hand(&mut self, s: &mut RowScan) -> Option<Row> {
        s.snapshot.as_ref()?;
        while !(s.open && (s.read + 1).is_multiple_of(REACHED)) {
            let r = s.records.next_copied()?;
            let snapshot = s.snapshot.as_ref().filter(|_| self.last_write(r).is_none());
            let Some((seen, csn)) = snapshot.and_then(|s| settled_in(r.rec.head(), &s.seen())) else {
                s.records.put_back();
                return None;
            };
            self.depends.note(csn);
            self.sample_access(r, false);
            // After the look at the head: a record's partition is set before its first version.
            let partition = r.rec.part[s.field].load(Ordering::Relaxed) as u32 + 1;
            if partition != s.at_hand.0 {
                self.count_at_hand(s);
                s.at_hand.0 = partition;
            }
            s.at_hand.1 += 1;
            s.read += 1;
            if let Some(version) = seen {
                return Some(Row { r, version, own: false });
            }
        }
        None
    }

    /// Counts the rows of one partition that were at hand.
    #[inline(never)]
    fn count_at_hand(&mut self, s: &mut RowScan) {
        let (partition, n) = std::mem::take(&mut s.at_hand);
        if let Some(no) = partition.checked_sub(1) {
            self.touch(Touch { table: s.table, no }.partition()).reads += n;
        }
    }

    fn next_row_found(&mut self, p: &dyn Platform, s: &mut RowScan, for_write: bool) -> Result<Option<Row>, Error> {
        self.count_at_hand(s);
        while let Some(r) = s.records.next(p) {
            s.read += 1;
            if let Some(id) = s.id.filter(|_| s.open && s.read.is_multiple_of(REACHED)) {
                if let Some(key) = s.records.last() {
                    self.scan_reached(id, &key);
                }
            }
            if let Some(row) = self.see(p, r, for_write, s.id, s.snapshot.as_ref().map(Kept::seen))? {
                return Ok(Some(row));
            }
        }
        s.ended = true;
        Ok(None)
    }

    /// The scan has ended, here. Keys that it has not read are not protected any more.
    pub fn end_scan(&mut self, p: &dyn Platform, mut s: RowScan) {
        self.count_at_hand(&mut s);
        let Some(id) = s.id else { return };
        let last = s.records.last().filter(|_| !s.ended);
        let edge = last.as_ref().map(|k| Bound::Included(k.bytes()));
        match (edge, s.way) {
            (None, _) if !s.ended => self.cancel_scan(p, id),
            (None, _) => self.narrow_scan(p, id, None, None),
            (edge, Direction::Forward) => self.narrow_scan(p, id, None, edge),
            (edge, Direction::Backward) => self.narrow_scan(p, id, edge, None),
        }
    }

    /// What we see of a record: our own write, or what the snapshot or the protocols give.
    fn see(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        for_write: bool,
        scan: Option<ScanId>,
        snapshot: Option<Seen<'_>>,
    ) -> Result<Option<Row>, Error> {
        if let Own::Write(n) = self.own(r, None) {
            let w = self.write(n).expect("an own write");
            return Ok((w.kind != WriteKind::Delete).then_some(Row { r, version: w.version, own: true }));
        }
        let version = match (snapshot, scan) {
            (Some(seen), _) => self.read_snapshot(p, r, seen)?,
            (None, Some(scan)) => self.read_scanned(p, r, for_write, scan)?,
            (None, None) => self.read(p, r, for_write)?,
        };
        Ok(version.map(|version| Row { r, version, own: false }))
    }

    /// Rows with these keys will be looked up soon: fetches what the look-ups read for all of them
    /// together. This is a hint: it protects nothing and cannot fail. It is worth it for two keys
    /// and more.
    pub fn announce_rows<'a>(&self, table: &'static Table, keys: impl Iterator<Item = &'a [u8]>) {
        debug_assert!(self.is_active());
        table.index().index.prefetch_keys(table, keys);
    }

    /// Records with these numbers will be read soon. As [`Txn::announce_rows`].
    pub fn announce_records(&self, table: &'static Table, numbers: impl Iterator<Item = u64>) {
        debug_assert!(self.is_active());
        prefetch_records(table, numbers);
    }

    /// The row with a key, which is or would be in the partition `at`.
    pub fn find_row(
        &mut self,
        p: &dyn Platform,
        at: Touch,
        key: &[u8],
        for_write: bool,
        snapshot: Option<Seen<'_>>,
    ) -> Result<Option<Row>, Error> {
        let start = if snapshot.is_none() { Some(self.before_lookup(p, at)?) } else { None };
        let found = self.look_for(p, at.table, key, for_write, snapshot)?;
        let Some(start) = start.filter(|_| found.is_none()) else { return Ok(found) };
        let Some(ranges) = at.table.ranges(PRIMARY) else {
            self.add_predicate(at, start);
            return self.look_once_more(p, at.table, key, for_write);
        };
        let look = self.look_position(p, at, ranges, key)?;
        if !at.partition().ring.list().is_quiet_since(start) {
            // Another transaction may have inserted the row between the look-up and the position.
            let found = self.look_for(p, at.table, key, for_write, snapshot)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        self.add_point_predicate(p, &look, key);
        self.look_once_more(p, at.table, key, for_write)
    }

    /// A look-up has found nothing, and this is known of its predicate now.
    fn look_once_more(
        &mut self,
        p: &dyn Platform,
        table: &'static Table,
        key: &[u8],
        for_write: bool,
    ) -> Result<Option<Row>, Error> {
        if self.looks_again(p)? {
            return self.look_for(p, table, key, for_write, None);
        }
        Ok(None)
    }

    /// The row of a record in the partition `at`, for a caller that knows its number without an
    /// index. The absence of the row is not protected.
    pub fn find_record(&mut self, p: &dyn Platform, at: Touch, no: u64, for_write: bool) -> Result<Option<Row>, Error> {
        self.before_scan(p, at)?;
        match RecordRef::find(at.table, no) {
            Some(r) => self.see(p, r, for_write, None, None),
            None => Ok(None),
        }
    }

    /// The row with a key that we see.
    fn look_for(
        &mut self,
        p: &dyn Platform,
        table: &'static Table,
        key: &[u8],
        for_write: bool,
        snapshot: Option<Seen<'_>>,
    ) -> Result<Option<Row>, Error> {
        let index = &table.index().index;
        let mut few = [0; FEW];
        if let Some(n) = index.few(key, &mut few) {
            for &no in &few[..n] {
                let Some(r) = RecordRef::find(table, no) else { continue };
                if let Some(row) = self.see(p, r, for_write, None, snapshot)? {
                    return Ok(Some(row));
                }
            }
            return Ok(None);
        }
        let mut all = index.scan(Bound::Included(key), Bound::Included(key), Direction::Forward);
        while let Some((_, no)) = all.next(p) {
            let Some(r) = RecordRef::find(table, no) else { continue };
            if let Some(row) = self.see(p, r, for_write, None, snapshot)? {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// Notes the key of a buffered write, so that it registers in its range only.
    fn note_row(&mut self, p: &dyn Platform, n: u32, key: &[u8]) -> Result<(), Error> {
        let Some(w) = self.write(n) else { return Ok(()) };
        match w.r.table.ranges(PRIMARY).filter(|r| !r.is_dormant()) {
            Some(ranges) => self.note_key(p, n, ranges, Some(key)),
            None => Ok(()),
        }
    }

    /// Inserts a row with its entry. On an error the version is freed with the transaction.
    pub fn insert_row(
        &mut self,
        p: &dyn Platform,
        at: Touch,
        key: &[u8],
        version: NonNull<Version>,
        cid: u32,
    ) -> Result<RecordRef, Error> {
        let r = match self.insert(p, at.table, [at.no as u16; 2], version, cid, 0) {
            Ok(r) => r,
            Err(e) => {
                self.discard(version);
                return Err(e);
            }
        };
        let n = self.newest_write().expect("the insert");
        self.enter(p, r, key, Unique::Unchecked)?;
        self.note_row(p, n, key)?;
        Ok(r)
    }

    /// The version that a write replaces, of a row that was found. Fails if it is not the newest
    /// any more.
    fn replaced(&mut self, p: &dyn Platform, row: &Row, mode: Mode) -> Result<Option<NonNull<Version>>, Error> {
        if let Some(n) = self.last_write(row.r) {
            return Ok(self.write(n).and_then(|w| w.base));
        }
        let how = How::Policy(row.r.partition().policy());
        let newest = self.lock_for_write(p, row.r, mode, how, false)?;
        if newest.map(|(v, _)| v) != Some(row.version) {
            return Err(self.write_conflict(row.r, newest));
        }
        Ok(Some(row.version))
    }

    /// Replaces a row that a serializable read has found by this key. On an error the version is
    /// freed.
    pub fn update_row(
        &mut self,
        p: &dyn Platform,
        row: &Row,
        key: &[u8],
        version: NonNull<Version>,
        cid: u32,
    ) -> Result<(), Error> {
        let base = self.replaced(p, row, Mode::NoKeyUpdate).inspect_err(|_| self.discard(version));
        let n = self.update(row.r, base?, version, cid);
        self.note_row(p, n, key)
    }

    /// Deletes a row that a serializable read has found by this key.
    pub fn delete_row(&mut self, p: &dyn Platform, row: &Row, key: &[u8], cid: u32) -> Result<(), Error> {
        self.delete_row_of(p, row, &Keys::primary(Some(key)), cid)
    }

    /// The same of a row with entries in several indexes.
    pub fn delete_row_of(&mut self, p: &dyn Platform, row: &Row, keys: &Keys<'_>, cid: u32) -> Result<(), Error> {
        let base = self.replaced(p, row, Mode::Update)?;
        let tombstone = self.new_tombstone_of(Successor { record: 0 }, keys)?;
        let n = self.delete(row.r, base, tombstone, cid, 0);
        // Without its key it would register as a write of an unknown one.
        keys.0[0].map_or(Ok(()), |key| self.note_row(p, n, key))
    }
}
