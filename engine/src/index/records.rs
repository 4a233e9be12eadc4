//! Scans that return records. The records of a leaf's entries are looked up and prefetched
//! together.

use super::cursor::{Cursor, Mark};
use super::descend::Direction;
use super::key::Key;
use super::node::CAPACITY;
use crate::platform::Platform;
use crate::primitive::prefetch;
use crate::record::Record;
use crate::table::Table;
use crate::txn::RecordRef;

/// The distance, in entries, between a returned record and one whose newest version is prefetched.
/// Rows lie anywhere in memory.
const VERSION_AHEAD: usize = 6;

/// A cursor, and the records of its copied entries.
pub struct Records {
    cursor: Cursor,
    table: &'static Table,
    /// The record of the entry at the same place in the cursor's copy.
    found: [Option<&'static Record>; CAPACITY],
}

impl Records {
    /// The records of `table` in the entries of a scan of its primary index.
    pub fn new(cursor: Cursor, table: &'static Table) -> Records {
        Records { cursor, table, found: [None; CAPACITY] }
    }

    /// The next record. May unwind if a comparison does; the scan is then unchanged.
    #[inline]
    pub fn next(&mut self, p: &dyn Platform) -> Option<RecordRef> {
        loop {
            if let Some(r) = self.next_copied() {
                return Some(r);
            }
            self.cursor.fill(p)?;
            self.find_records();
        }
    }

    /// The next record among those already found. Compares nothing and cannot fail.
    #[inline]
    pub fn next_copied(&mut self) -> Option<RecordRef> {
        while let Some((at, no)) = self.cursor.take() {
            if let Some(Some(rec)) = self.found.get(at + VERSION_AHEAD) {
                prefetch(rec.head());
            }
            if let Some(&Some(rec)) = self.found.get(at) {
                return Some(RecordRef { table: self.table, no, rec });
            }
        }
        None
    }

    /// Makes the record that was returned last the next one again.
    #[inline]
    pub fn put_back(&mut self) {
        self.cursor.put_back();
    }

    /// The direction of the scan.
    pub fn way(&self) -> Direction {
        self.cursor.way()
    }

    /// Turns the scan, as [`Cursor::turn`].
    pub fn turn(&mut self) {
        self.cursor.turn();
    }

    /// Marks the place behind the record that was returned last, as [`Cursor::mark`].
    pub fn mark(&self) -> Mark {
        self.cursor.mark()
    }

    /// Goes back to a mark of this scan, as [`Cursor::restore`].
    pub fn restore(&mut self, mark: &Mark) {
        self.cursor.restore(mark);
    }

    /// The key of the last record. `None` if there was none, or the scan has ended.
    pub fn last(&self) -> Option<Key<'_>> {
        self.cursor.last()
    }

    fn find_records(&mut self) {
        self.found = [None; CAPACITY];
        for (no, to) in self.cursor.copied().zip(&mut self.found) {
            *to = self.table.record(no);
            if let Some(rec) = to {
                prefetch(std::ptr::from_ref(*rec));
            }
        }
        self.found.iter().take(VERSION_AHEAD).flatten().for_each(|rec| prefetch(rec.head()));
    }
}
