//! Scans that go on to the records: the records of a leaf's entries are found at once, and fetched ahead.

use super::cursor::Cursor;
use super::key::Key;
use super::node::CAPACITY;
use crate::platform::Platform;
use crate::primitive::prefetch;
use crate::record::Record;
use crate::table::Table;
use crate::txn::RecordRef;

/// Entries between a record that is handed out and one whose newest version is fetched for later: rows lie anywhere.
const VERSION_AHEAD: usize = 6;

/// A cursor, and the records that its copied entries name.
pub struct Records {
    cursor: Cursor,
    table: &'static Table,
    /// Of the entry at the same place in the cursor's copy.
    found: [Option<&'static Record>; CAPACITY],
}

impl Records {
    /// The records of `table` that the entries of a scan of its primary index name.
    pub fn new(cursor: Cursor, table: &'static Table) -> Records {
        Records { cursor, table, found: [None; CAPACITY] }
    }

    /// The next record. May unwind where a comparison does; the scan is then as before.
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

    /// The next record of those that were found already: compares nothing, and cannot fail.
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

    /// The record that was handed out last will be the next one again.
    #[inline]
    pub fn put_back(&mut self) {
        self.cursor.put_back();
    }

    /// The key that was handed out last; `None` if there was none, or the scan has ended.
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
