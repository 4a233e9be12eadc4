//! Sequential scans: rows of records that lie side by side, looked at together.
//!
//! **INV-GLANCE**: Rows that were looked at ahead are those that a look at each of them would find
//! when the scan comes to it. A snapshot sees the same version of a row for as long as it lives,
//! and no row that the transaction has written is among them. At SERIALIZABLE they count as read
//! at the look: a predicate that covers all of them protects them from then on.

use super::{Look, RecordRef, Txn};
use crate::csn::Csn;
use crate::faults::{self, Fault};
use crate::range::Columns;
use crate::record::{Record, Version};
use crate::table::Table;
use std::ptr::NonNull;

/// A row that was found. All-zero is a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Found {
    /// The number of its record.
    pub no: u64,
    /// The version that the transaction sees of it.
    pub version: *mut Version,
}

/// So many records are looked at together, at most.
pub const MOST: usize = 64;

/// The distance, in records, between one that is looked at and one whose version is prefetched.
const VERSION_AHEAD: usize = 8;

/// What a look ahead has come to.
pub struct Looked {
    /// How many rows were found.
    pub rows: usize,
    /// The first record that was not looked at: the end, or one that needs more than a look.
    pub next: u64,
}

impl Txn {
    /// Looks at records from `from` on, and puts their rows into `to`, which has room for all
    /// records up to `end`. It stops at a record that we have written, and at one of which
    /// [`Txn::peek_scanned`] or [`Txn::peek_snapshot`] cannot tell what we see. It may stop
    /// earlier. It neither fails nor unwinds, and does not call the platform.
    ///
    /// INV-GLANCE: the caller reads all rows by this snapshot, or in this scan.
    pub fn look_ahead(
        &mut self,
        table: &'static Table,
        (from, end): (u64, u64),
        look: Look<'_>,
        to: &mut [Found],
    ) -> Looked {
        let end = end.min(from + to.len().min(MOST) as u64);
        let records = (from, table.records_from(from, end));
        if !self.is_sampled() && table.map().n == 1 {
            let unwritten = self.unwritten(table, records);
            if let Some(plain) = (unwritten > 0).then(|| self.plain_of(table, look)).flatten() {
                return self.look_at_plain(table, (from, &records.1[..unwritten]), (plain, look), to);
            }
        }
        match look {
            Look::Scan(id) if self.is_frozen() => {
                self.look_while(table, records, to, |t, r| t.peek_frozen(r, (id.number() == 0).then_some(Columns::ALL)))
            }
            Look::Scan(_) if !self.following => Looked { rows: 0, next: from },
            Look::Scan(id) => {
                let way = self.scans.ranged.way(id);
                self.look_while(table, records, to, |t, r| t.peek_by(r, way))
            }
            Look::Snapshot(seen) => {
                let plain = self.plain_in(&seen);
                self.look_while(table, records, to, move |t, r| t.peek_seen(r, &seen, plain))
            }
        }
    }

    /// The CSN up to which versions are seen by a look and nothing else, in a table of one
    /// partition. `None`: more is to be done for each row, or nothing can be told.
    fn plain_of(&mut self, table: &'static Table, look: Look<'_>) -> Option<Csn> {
        let partition = &table.map().partitions()[0];
        match look {
            Look::Snapshot(_) if faults::on(Fault::AheadOfSnapshot) => Some(self.e.now()),
            Look::Snapshot(seen) => Some(self.plain_in(&seen)),
            // As in `peek_frozen`, where a predicate protects the rows.
            Look::Scan(id) if self.is_frozen() => {
                (id.number() != 0 && partition.since() <= self.valid).then(|| self.plain())
            }
            Look::Scan(_) if !self.following => None,
            // INV-PEEK: the transaction follows the protocols before it looks at the rows.
            Look::Scan(id) => {
                let (way, plain) = (self.scans.ranged.way(id), self.plain());
                let t = self.follow_also(partition);
                let free = t.locked || !t.set.locks_partitions();
                (free && way.needs_no_row_locks(t.set)).then_some(plain)
            }
        }
    }

    /// Fetches the newest versions of records that lie side by side, which will be looked at one by
    /// one soon. At most [`MOST`].
    pub fn fetch_ahead(&self, table: &'static Table, from: u64, end: u64) {
        debug_assert!(self.e.is_pinned(self.slot));
        let records = table.records_from(from, end.min(from + MOST as u64));
        map_early(records);
        for rec in records {
            rec.prefetch_row();
        }
    }

    fn may_have_written(&self) -> bool {
        !self.writes.is_empty() && !faults::on(Fault::AheadOfOwnWrites)
    }

    /// So many of these records, from the first one on, are known not to be written by us.
    fn unwritten(&self, table: &Table, (from, records): (u64, &[Record])) -> usize {
        if !self.may_have_written() || self.writes.is_behind_all(table, from) {
            return records.len();
        }
        let mut all = records.iter().zip(from..);
        all.position(|(rec, no)| !self.is_surely_unwritten(table, no, rec)).unwrap_or(records.len())
    }

    #[inline(always)]
    fn look_while(
        &mut self,
        table: &'static Table,
        (from, records): (u64, &'static [Record]),
        to: &mut [Found],
        mut peek: impl FnMut(&mut Txn, RecordRef) -> Option<Option<NonNull<Version>>>,
    ) -> Looked {
        let mut rows = 0;
        for (i, rec) in records.iter().enumerate() {
            prefetch_version(records, i);
            if rec.head().is_null() {
                continue; // a free or dead record
            }
            let r = RecordRef { table, no: from + i as u64, rec };
            let is_own = self.may_have_written() && self.last_write(r).is_some();
            let seen = if is_own { None } else { peek(self, r) };
            match seen {
                Some(Some(v)) => {
                    to[rows] = Found { no: r.no, version: v.as_ptr() };
                    rows += 1;
                }
                Some(None) => {}
                None => return Looked { rows, next: r.no },
            }
        }
        Looked { rows, next: from + records.len() as u64 }
    }

    /// The same for a table with one partition and records that we have not written. `plain`: what
    /// [`Txn::plain_of`] has told.
    fn look_at_plain(
        &mut self,
        table: &'static Table,
        (from, records): (u64, &'static [Record]),
        (plain, look): (Csn, Look<'_>),
        to: &mut [Found],
    ) -> Looked {
        map_early(records);
        let mut heads = [std::ptr::null_mut::<Version>(); MOST];
        let heads = &mut heads[..records.len()];
        for (rec, head) in records.iter().zip(heads.iter_mut()) {
            *head = rec.head();
            rec.prefetch_row();
        }
        let to = &mut to[..records.len()];
        let (mut at, mut rows, mut reads) = (0, 0, 0);
        while at < heads.len() {
            let run = settled_run(&heads[at..], from + at as u64, plain, &mut to[rows..]);
            (at, rows, reads) = (at + run.records, rows + run.rows, reads + run.reads);
            let Some(&head) = heads.get(at) else { break };
            let r = RecordRef { table, no: from + at as u64, rec: &records[at] };
            let Some(has_row) = self.look_at_newer(r, head, look) else { break };
            to[rows] = Found { no: r.no, version: head };
            (at, rows, reads) = (at + 1, rows + usize::from(has_row), reads + 1);
        }
        if reads > 0 {
            self.touch(&table.map().partitions()[0]).reads += reads;
        }
        Looked { rows, next: from + at as u64 }
    }

    /// Do we see a row of a record whose newest version is newer? `None`: a look does not tell, or
    /// it is another version.
    #[cold]
    fn look_at_newer(&mut self, r: RecordRef, head: *mut Version, look: Look<'_>) -> Option<bool> {
        match look {
            Look::Snapshot(seen) => match self.peek_newer(r, &seen)? {
                Some(v) if v.as_ptr() != head => None,
                found => Some(found.is_some()),
            },
            Look::Scan(_) => None,
        }
    }
}

/// What a run of records is, all of which are settled.
struct Run {
    records: usize,
    rows: usize,
    reads: u32,
}

/// Looks at newest versions that the caller has reached under its pin, up to the first one that is
/// not settled at `plain` (INV-SETTLED). `from`: the number of the first one's record.
#[inline(never)]
fn settled_run(heads: &[*mut Version], from: u64, plain: Csn, to: &mut [Found]) -> Run {
    let (mut rows, mut free, mut no) = (0, 0, from);
    for head in heads {
        // SAFETY: INV-RETIRE: the caller is pinned, and has reached the version under that pin.
        match unsafe { head.as_ref() } {
            Some(v) if v.stamp().0 <= plain => {
                let Some(place) = to.get_mut(rows) else { break };
                *place = Found { no, version: *head };
                rows += usize::from(!v.is_tombstone());
            }
            Some(_) => break,
            None => free += 1, // a free or dead record
        }
        no += 1;
    }
    let records = (no - from) as usize;
    Run { records, rows, reads: (records - free) as u32 }
}

/// A process maps the pages of the region at its first touch of each, several side by side. A
/// prefetch maps none, and is lost then. So the last version is touched before the first prefetch:
/// rows that were loaded in order lie in order.
#[inline(always)]
fn map_early(records: &[Record]) {
    if let Some(rec) = records.last() {
        // SAFETY: INV-RETIRE: the caller is pinned, and reaches the version under that pin.
        std::hint::black_box(unsafe { rec.head().as_ref() }.map(Version::stamp));
    }
}

/// Fetches what a scan will look at soon: of a version the header, and the begin of its row.
#[inline(always)]
fn prefetch_version(records: &[Record], i: usize) {
    if let Some(rec) = records.get(i + VERSION_AHEAD) {
        rec.prefetch_row();
    }
}
