//! `aminsert` of a hollow index.
//!
//! The table access method has made the entries of the row already, with the unique checks, when it
//! inserted the row (`primary::enter`). So here is nothing to do but for a row whose entry was not
//! made because another row has the key, or may come to have it; or because another row has that of
//! an index in front of this one. Its check is made again, as nbtree does it: it fails, or waits
//! for the other transaction and starts over. PostgreSQL comes to the indexes in the order of their
//! OIDs, as `primary::enter` does.
//!
//! **INV-MADE**: Each number in [`MADE`] is that of a record that this transaction has inserted
//! into that storage, and has not undone since. Its entries in these indexes were made then. For
//! each insert goes into it, or empties it ([`note`]), and each end of a transaction or
//! subtransaction empties it. So `aminsert`, which comes for the same rows in the same order, need
//! not ask the engine. It comes for all indexes of a row in turn, or for all rows of an index: each
//! index has its own place in the list.

use crate::access::{indexscan, primary};
use crate::pg::errors::{duplicate_key, Met};
use crate::pg::local::Local;
use crate::pg::{compat, Tid};
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::rel::{self, RelInfo};
use crate::state::xact;
use mixedcc_engine::index::Unique;
use mixedcc_engine::record::{Version, INDEXES};
use mixedcc_engine::txn::{Entered, Rival};
use mixedcc_engine::RecordRef;
use pgrx::pg_sys::{self, Datum, IndexUniqueCheck, TransactionId};
use pgrx::prelude::*;
use std::ptr::NonNull;

/// What is to be done for a row.
#[derive(Clone, Copy)]
#[repr(C)]
enum Verdict {
    /// The index is not hollow, or not of a table of ours: nbtree's.
    NotOurs,
    /// The entry is made.
    Free,
    /// Another row has the key, and the caller wants to know no more.
    Taken,
    /// Another row has the key.
    Duplicate,
    /// Another transaction decides: its id, and its token if it inserts speculatively.
    Wait(TransactionId, u32),
}

/// The row and its key, as PostgreSQL gives them.
#[derive(Clone, Copy)]
#[repr(C)]
struct Row {
    index: pg_sys::Relation,
    values: *mut Datum,
    nulls: *mut bool,
    tid: pg_sys::ItemPointer,
    heap: pg_sys::Relation,
    check: IndexUniqueCheck::Type,
}

/// # Safety
/// amapi.h's contract of `aminsert`.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe extern "C-unwind" fn insert(
    index: pg_sys::Relation,
    values: *mut Datum,
    nulls: *mut bool,
    tid: pg_sys::ItemPointer,
    heap: pg_sys::Relation,
    check: IndexUniqueCheck::Type,
    unchanged: bool,
    info: *mut pg_sys::IndexInfo,
) -> bool {
    let row = Row { index, values, nulls, tid, heap, check };
    // SAFETY: the arguments are those of aminsert (amapi.h): `index` and `heap` are open, and the
    // arrays have a value for each column. An ERROR jumps over this frame, which owns nothing.
    unsafe {
        if take_made(&row) || is_entered(&row) {
            return true;
        }
        loop {
            let mut verdict = Verdict::NotOurs;
            enter(&raw const row, &raw mut verdict);
            match verdict {
                Verdict::NotOurs => {
                    let stock = indexscan::stock(index).aminsert;
                    return stock.is_some_and(|f| f(index, values, nulls, tid, heap, check, unchanged, info));
                }
                Verdict::Free => return true,
                Verdict::Taken => return false,
                Verdict::Duplicate => duplicate_key(heap, index, values, nulls, Met::ByInsert),
                Verdict::Wait(xid, 0) => {
                    raw::XactLockTableWait(xid, index, tid, pg_sys::XLTW_Oper::XLTW_InsertIndex);
                }
                Verdict::Wait(xid, token) => raw::SpeculativeInsertionWait(xid, token),
            }
        }
    }
}

/// Numbers of records, up to `end`, in the order of their inserts.
struct Made {
    /// The number of the table's storage.
    storage: u32,
    /// Its hollow indexes, by their OIDs; 0: no more.
    indexes: [u32; INDEXES],
    /// The record for which `aminsert` of each comes next.
    next: [u64; INDEXES],
    end: u64,
}

/// Of the transaction: rows whose entries are made, and for which `aminsert` has not come yet
/// (INV-MADE). It never comes for some, such as those of a rewrite.
static MADE: Local<Made> = Local::new(Made { storage: 0, indexes: [0; INDEXES], next: [0; INDEXES], end: 0 });

/// A row was inserted into a table with these hollow indexes, and zeros behind them. Were all of
/// its entries made, too?
#[inline]
pub fn note(info: &RelInfo, indexes: [u32; INDEXES], no: u64, is_made: bool) {
    // SAFETY: a process has one thread, and no other reference to `MADE` is in use.
    let made = unsafe { MADE.get_mut() };
    let storage = info.key[2];
    if !is_made {
        forget();
    } else if made.end == no && made.storage == storage && made.indexes == indexes {
        made.end = no + 1;
    } else {
        *made = Made { storage, indexes, next: [no; INDEXES], end: no + 1 };
    }
}

/// A transaction or subtransaction has ended.
pub fn forget() {
    // SAFETY: as in `note`. Without an end there is no next record.
    unsafe { MADE.get_mut() }.end = 0;
}

/// Is this the next one of those rows? Then it is taken out.
///
/// # Safety
/// The index and the table are open, and `tid` is readable.
#[inline]
unsafe fn take_made(row: &Row) -> bool {
    // SAFETY: a process has one thread, and no other reference to `MADE` is in use. The contract of
    // this function.
    unsafe {
        let made = MADE.get_mut();
        let index = (*row.index).rd_id.to_u32();
        let Some(i) = made.indexes.iter().position(|oid| *oid == index) else { return false };
        let is_next = made.next[i] < made.end
            && Tid::read(&*row.tid) == Tid::Record(made.next[i])
            && made.storage == compat::storage_number(row.heap);
        made.next[i] += u64::from(is_next);
        is_next
    }
}

mod raw {
    use super::*;
    extern "C-unwind" {
        // Without the guard of the bindings.
        pub fn XactLockTableWait(
            xid: TransactionId,
            rel: pg_sys::Relation,
            tid: pg_sys::ItemPointer,
            oper: pg_sys::XLTW_Oper::Type,
        );
        pub fn SpeculativeInsertionWait(xid: TransactionId, token: u32);
    }
}

/// Is the row's entry made, as that of nearly all rows? Neither fails nor unwinds; false: perhaps.
#[inline]
unsafe fn is_entered(row: &Row) -> bool {
    // SAFETY: `heap` and `index` are open, and `tid` is readable: contract of `insert`.
    unsafe {
        if !rel::is_ours(row.heap) {
            return false;
        }
        let Some(info) = rel::known(row.heap) else { return false };
        let keys = info.uniques.all().iter().filter_map(|k| k.known_key());
        let Some(key) = keys.filter(|k| k.hollow).find(|k| k.index == (*row.index).rd_id) else { return false };
        let Tid::Record(no) = Tid::read(&*row.tid) else { return false };
        let (Some(t), Some(r)) = (xact::running(), RecordRef::find(info.table, no)) else { return false };
        t.has_entry(r, key.nth)
    }
}

/// Makes the row's entry, if that is possible now.
#[pg_guard]
unsafe extern "C-unwind" fn enter(row: *const Row, verdict: *mut Verdict) {
    // SAFETY: `heap` and `index` are open, `tid` is readable, and the arrays have a value for each
    // column of the index: contract of `insert`. The codec is of that index. `verdict` is that of
    // `insert`.
    unsafe {
        let row = &*row;
        if !rel::is_ours(row.heap) {
            return;
        }
        let info = rel::info(row.heap);
        let Some(key) = primary::hollow_key(row.heap, info, (*row.index).rd_id) else { return };
        let t = xact::writing();
        let found = match Tid::read(&*row.tid) {
            Tid::Record(no) => RecordRef::find(info.table, no),
            _ => None,
        };
        let Some(r) = found else { error!("mixedcc does not know the row of a new index entry") };
        if t.has_entry(r, key.nth) {
            *verdict = Verdict::Free;
            return;
        }
        xact::renew_pin();
        let mut bytes = Vec::new();
        let value = |i: usize| (!*row.nulls.add(i)).then(|| *row.values.add(i));
        if key.codec.key(&mut bytes, value).is_none() {
            error!("mixedcc: a row without a key");
        }
        let partial = row.check == IndexUniqueCheck::UNIQUE_CHECK_PARTIAL;
        let unique = if partial { Unique::Partial } else { Unique::Check };
        *verdict = match ok(t.enter_in(&PG, r, key.nth, &bytes, unique)) {
            Entered::Free => Verdict::Free,
            Entered::Taken(_) if partial => Verdict::Taken,
            Entered::Taken(Rival::Own(_) | Rival::Row(..)) => Verdict::Duplicate,
            Entered::Taken(Rival::Leaving(_, _, xid)) => Verdict::Wait(TransactionId::from(xid), 0),
            Entered::Taken(Rival::Coming(_, v, xid)) => Verdict::Wait(TransactionId::from(xid), token_of(v)),
        };
    }
}

/// The token of a speculative insert; 0: it is none.
unsafe fn token_of(v: NonNull<Version>) -> u32 {
    // SAFETY: `v` is reached under our pin (INV-RETIRE): `enter`.
    unsafe { crate::access::tuple::speculative_token(v.as_ptr()).unwrap_or(0) }
}
