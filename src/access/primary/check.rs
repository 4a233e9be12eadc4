//! Compares an index in memory with the table's rows, while other sessions write: for
//! `mixedcc.check_primary_index`, and for amcheck if the key's index is hollow.
//!
//! Rows are those of the newest versions. Between two looks other sessions may commit, so a look
//! alone proves no damage. Each finding is made of two looks at a row, with a look at the index
//! between them. The check holds a pin, under which a record whose row was deleted keeps its entry
//! and its number (INV-DEAD). So a record that has a row in both looks had it between them.

use crate::access::ranges::rows::{self, Row};
use crate::access::visible;
use crate::pg::errors::complain;
use crate::state::platform::PG;
use crate::state::rel::{PrimaryKey, RelInfo};
use crate::state::xact;
use mixedcc_engine::index::Direction;
use mixedcc_engine::{RecordRef, Table};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ops::Bound;

struct Check<'a> {
    rel: pg_sys::Relation,
    table: &'static Table,
    key: &'a PrimaryKey,
}

/// Compares every row with its entry, every entry with its row, and entries with each other: they
/// ascend, and no two rows have one key. Raises `index_corrupted` at the first finding. Returns the
/// number of rows.
///
/// # Safety
/// An open relation of ours, its info, and its key.
pub unsafe fn check(rel: pg_sys::Relation, info: &RelInfo, key: &PrimaryKey) -> u64 {
    xact::txn();
    xact::renew_pin();
    let check = Check { rel, table: info.table, key };
    let mut n = 0;
    for no in 0..info.table.len() {
        interruptible(no);
        n += u64::from(check.has_row_with_entry(no));
    }
    check.entries();
    n
}

fn interruptible(n: u64) {
    if n.is_multiple_of(1024) {
        pgrx::check_for_interrupts!();
    }
}

fn damaged(no: u64, what: &str) -> ! {
    complain(PgSqlErrorCode::ERRCODE_INDEX_CORRUPTED, &format!("record {no} of the primary index {what}"), "");
}

impl Check<'_> {
    /// The key of a record's row; `None`: it has no row.
    fn row_key(&self, r: RecordRef) -> Option<Vec<u8>> {
        let v = visible::newest(xact::txn(), r)?;
        let mut bytes = Vec::new();
        // SAFETY: `rel` is open, and `key` is of its primary index (contract of `check`). The
        // version is reached under our pin (INV-RETIRE).
        unsafe { rows::plain(self.rel, self.key.codec, Row::Version(v.as_ptr()), &mut bytes) }?;
        Some(bytes)
    }

    fn has_key(&self, r: RecordRef, key: &[u8]) -> bool {
        self.row_key(r).is_some_and(|k| k == key)
    }

    fn has_entry(&self, r: RecordRef, key: &[u8]) -> bool {
        self.key.primary.has(&PG, key, r.no)
    }

    /// Has a record a row? Its entry must be there.
    fn has_row_with_entry(&self, no: u64) -> bool {
        let Some(r) = RecordRef::find(self.table, no) else { return false };
        let Some(key) = self.row_key(r) else { return false };
        if !self.has_entry(r, &key) && self.has_key(r, &key) && !self.has_entry(r, &key) {
            damaged(no, "is not found by its key");
        }
        true
    }

    /// Entries ascend, each is its record's, and of those with one key one has a row.
    fn entries(&self) {
        let mut all = self.key.primary.index.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
        let mut last: Option<(Vec<u8>, u64)> = None;
        let mut with_row: Option<RecordRef> = None; // of the entries with the last key
        let mut n = 0;
        while let Some((key, no)) = all.next(&PG) {
            let this = (key.bytes().to_vec(), no);
            interruptible(n);
            n += 1;
            if last.as_ref().is_some_and(|l| *l >= this) {
                damaged(no, "is out of order");
            }
            let Some(r) = RecordRef::find(self.table, no) else { damaged(no, "does not exist") };
            if last.is_some_and(|l| l.0 != this.0) {
                with_row = None;
            }
            if self.has_row_of(r, &this.0) {
                if with_row.is_some_and(|other| self.has_key(other, &this.0)) {
                    damaged(no, "has the key of another row");
                }
                with_row = Some(r);
            }
            last = Some(this);
        }
    }

    /// Has the record of an entry a row, with the entry's key? An insert that is under way, or an
    /// entry that is being removed, has no row to compare.
    fn has_row_of(&self, r: RecordRef, entry: &[u8]) -> bool {
        let Some(key) = self.row_key(r) else { return false };
        if key == entry {
            return true;
        }
        // The number may have been given to another row since the entry was met.
        if self.has_entry(r, entry) && self.has_key(r, &key) {
            damaged(r.no, "has an entry of another key");
        }
        false
    }
}
