//! Rows of a sequential scan that were found ahead (INV-GLANCE of the engine), and how they are
//! handed out: without a guard, because nothing there can fail.
//!
//! **INV-HANDED**: The rows that are left are those of the records from the scan's `next` up to
//! `to`, in ascending order, all of them. A step backward, a new start and other bounds forget
//! them. The snapshot of the scan keeps their versions as it keeps the version in the slot
//! (INV-RETIRE, INV-RESTS).

use super::scan::Scan;
use crate::access::prefix::Prefix;
use crate::access::quick::Passes;
use crate::access::{altered, tuple};
use crate::pg::{compat, Tid};
use crate::state::platform;
use mixedcc_engine::record::Record;
use mixedcc_engine::txn::Found;
use mixedcc_engine::Txn;
use pgrx::pg_sys;

/// So many records are looked at together. The transaction may rest between them (INV-RESTS).
pub const RUN: usize = 64;

/// See the module. All-zero: none.
#[repr(C)]
pub struct Ahead {
    rows: [Found; RUN],
    /// How many there are.
    n: u32,
    /// Which is the next one.
    at: u32,
    /// The first record that was not looked at.
    to: u64,
    /// Records from there on, and how many: their rows are fetched while these are handed out.
    coming: *const Record,
    n_coming: u32,
    /// Of the rows' type.
    prefix: Prefix,
}

impl Ahead {
    /// Is there a row?
    #[inline]
    pub fn has_row(&self) -> bool {
        self.at < self.n
    }

    /// Forgets the rows that are left.
    #[inline]
    pub fn forget(&mut self) {
        (self.n, self.at, self.n_coming) = (0, 0, 0);
    }

    /// Fetches the row of a coming record: of that with the number of the row that is next.
    ///
    /// # Safety
    /// The scan has not ended.
    #[inline(always)]
    unsafe fn fetch_coming(&self) {
        if self.at < self.n_coming {
            // SAFETY: INV-DIR: there are so many records there, as long as the table is locked
            // (contract of this function).
            unsafe { (*self.coming.add(self.at as usize)).prefetch_row() };
        }
    }

    /// All rows are handed out: the record at which the scan goes on, if there were any.
    #[inline]
    pub fn end(&mut self) -> Option<u64> {
        let to = (self.n > 0).then_some(self.to);
        self.forget();
        to
    }
}

/// Puts the next row into the slot.
///
/// # Safety
/// `s` was made by `scan::begin`, and has a row ahead; `slot` is one of `slot_callbacks`, with a
/// descriptor that stored rows fit (INV-LAYOUT).
#[inline]
pub unsafe fn hand_out(s: *mut Scan, slot: *mut pg_sys::TupleTableSlot) {
    // SAFETY: `s` has a row ahead, and `slot` is of its rows' type (contract of this function). The
    // transaction's pin keeps the version (INV-HANDED).
    unsafe {
        let a = &mut (*s).ahead;
        let found = a.rows[a.at as usize % RUN];
        a.fetch_coming();
        a.at += 1;
        (*s).next = found.no + 1;
        store(s, slot, found);
        compat::count_returned_rows_of(&*(*s).base.rs_rd, 1);
    }
}

/// Puts a row into the slot, with its first columns (INV-PREFIX).
///
/// # Safety
/// `s` was made by `scan::begin`, and `found` is a row of its table, which a pin keeps. `slot` is
/// one of `slot_callbacks`, with a descriptor that stored rows fit (INV-LAYOUT).
#[inline]
pub unsafe fn store(s: *mut Scan, slot: *mut pg_sys::TupleTableSlot, found: Found) {
    // SAFETY: the arguments belong together (contract of this function).
    unsafe {
        let prefix = &mut (*s).ahead.prefix;
        prefix.fit(slot);
        prefix.note(slot);
        tuple::store(slot, (*(*s).base.rs_rd).rd_id, Tid::Record(found.no), found.version);
        prefix.take_apart(slot, tuple::header(found.version));
    }
}

/// Passes over rows for which the filter of the scan is not true, by their bytes. Returns how many,
/// and what its filter says of the next row; `No`: there is none left.
///
/// # Safety
/// `s` was made by `scan::begin`, and its next row is at hand ([`is_at_hand`]).
#[inline]
pub unsafe fn skip(s: *mut Scan) -> (u32, Passes) {
    // SAFETY: `s` was made by `scan::begin` (contract of this function). Its versions are kept
    // (INV-HANDED), and the prefix fits their type, for which the filter was looked at.
    unsafe {
        let a = &mut (*s).ahead;
        let first = a.at;
        let mut passes = Passes::No;
        while a.has_row() {
            let found = a.rows[a.at as usize % RUN];
            passes = (*s).quick.passes(tuple::header(found.version), &a.prefix);
            if passes != Passes::No {
                break;
            }
            a.fetch_coming();
            a.at += 1;
        }
        let skipped = a.at - first;
        if skipped > 0 {
            (*s).next = a.rows[(a.at as usize - 1) % RUN].no + 1;
            compat::count_returned_rows_of(&*(*s).base.rs_rd, skipped);
        }
        (skipped, passes)
    }
}

/// Looks at the filter of the scan's node.
///
/// # Safety
/// `s` was made by `scan::begin`, for a node with this slot and filter that runs in `estate`. An
/// ERROR unwinds.
pub unsafe fn learn_filter(
    s: *mut Scan,
    slot: *mut pg_sys::TupleTableSlot,
    quals: *mut pg_sys::List,
    estate: *mut pg_sys::EState,
) {
    // SAFETY: the arguments belong together (contract of this function).
    unsafe {
        (*s).ahead.prefix.fit(slot);
        (*s).quick.learn(quals, estate, &(*s).ahead.prefix);
    }
}

/// Can the next row be handed out at once? Neither fails nor unwinds.
///
/// # Safety
/// `s` was made by `scan::begin`.
#[inline]
pub unsafe fn is_at_hand(s: *const Scan) -> bool {
    // SAFETY: `s` was made by `scan::begin` (contract of this function), and its relation is open.
    unsafe {
        (*s).ahead.has_row()
            && !altered::any()
            && platform::is_outside()
            && compat::counts_rows_at_once(&*(*s).base.rs_rd)
    }
}

/// Looks at the next records of a scan that goes forward, and has no row left. True: there is one,
/// or the scan has come further. False: the next record needs more than a look.
///
/// # Safety
/// `s` was made by `scan::begin`; its next record is below its end. The transaction is running.
pub unsafe fn look(s: *mut Scan, t: &mut Txn) -> bool {
    // SAFETY: `s` was made by `scan::begin` (contract of this function). The snapshot is the
    // executor's, which keeps it as long as the scan.
    unsafe {
        let Some(look) = super::scan::look(s, t) else { return false };
        let from = (*s).next;
        let end = (*s).end.min((from / RUN as u64 + 1) * RUN as u64);
        let a = &mut (*s).ahead;
        let looked = t.look_ahead((*(*s).info).table, (from, end), look, &mut a.rows);
        (a.n, a.at, a.to) = (looked.rows as u32, 0, looked.next);
        let coming = (*(*s).info).table.records_from(looked.next, (*s).end.min(looked.next + RUN as u64));
        (a.coming, a.n_coming) = (coming.as_ptr(), coming.len() as u32);
        if looked.rows == 0 {
            (*s).next = looked.next;
        }
        looked.next > from
    }
}
