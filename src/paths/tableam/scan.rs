//! Sequential, TID range and bitmap scans.

use super::ahead::{self, Ahead};
use super::{analyze, shared_scan};
use crate::access::quick::Quick;
use crate::access::seqscan::{self, Wanted};
use crate::access::visible::Why;
use crate::access::{altered, deferred, hollow, partitions, statements, tuple, visible};
use crate::pg::errors;
use crate::pg::{compat, expr, tid_bound, Tid, ROWS};
use crate::state::rel::{self, RelInfo};
use crate::state::xact::{self, parallel, Mode};
use mixedcc_engine::primitive::prefetch;
use mixedcc_engine::record::Record;
use mixedcc_engine::txn::{Found, Look, ScanId};
use mixedcc_engine::{RecordRef, Txn};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// Our scan descriptor.
#[repr(C)]
pub struct Scan {
    /// PostgreSQL's part.
    pub base: pg_sys::TableScanDescData,
    /// The relation; null if it does not fit into memory, and ANALYZE passes over it.
    pub info: *const RelInfo,
    /// Will the rows be written next?
    pub for_write: bool,
    /// Next record to look at, forward; backward it is the one after.
    pub next: u64,
    /// Records of the scan: `first..end`.
    pub first: u64,
    /// See `first`.
    pub end: u64,
    /// Records looked at, in all.
    pub all: u64,
    /// Current block of a bitmap, sample or ANALYZE scan.
    pub block: u64,
    /// Entries of the block that are to be returned.
    pub offsets: [u16; ROWS as usize],
    /// How many.
    pub n_offsets: u32,
    /// Which is next.
    pub at: u32,
    /// The predicate that protects the rows.
    pub id: ScanId,
    /// Was a sequential scan protected already?
    pub protected: bool,
    /// The only partition whose rows it wants, plus 1; 0: all.
    pub partition: u32,
    /// The last descriptor that the stored rows were found to fit while their table is being
    /// altered (INV-LAYOUT).
    pub fits: pg_sys::TupleDesc,
    /// The rows that it wants, which `2pl` locks; null: all. Dropped with the memory of the scan.
    pub wanted: *const Wanted,
    /// Rows that were found ahead.
    pub ahead: Ahead,
    /// Conditions of its node's filter.
    pub quick: Quick,
    /// Does its node return the rows' TIDs and nothing else, as below a DELETE?
    pub gives_tids: bool,
}

/// Flags of `scan_begin` for scans that read rows of the table in general.
const READS: u32 = pg_sys::ScanOptions::SO_TYPE_SEQSCAN
    | pg_sys::ScanOptions::SO_TYPE_SAMPLESCAN
    | pg_sys::ScanOptions::SO_TYPE_TIDRANGESCAN;

/// Between so many rows of a sequential scan the transaction may rest for a moment (INV-RESTS).
const RESTS_EACH: u64 = 64;

/// Protects a scan of the whole table at SERIALIZABLE.
pub fn protect_all(info: &RelInfo) {
    if xact::mode() != Mode::Serializable {
        return;
    }
    partitions::protect(info, None);
}

unsafe fn is_mvcc(s: pg_sys::Snapshot) -> bool {
    // SAFETY: `s` is null or a snapshot that the executor holds for the scan (tableam.h:
    // scan_begin).
    unsafe { !s.is_null() && (*s).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC }
}

/// # Safety
/// tableam.h's contract of `scan_begin`.
#[pg_guard]
pub unsafe extern "C-unwind" fn begin(
    rel: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    nkeys: i32,
    key: *mut pg_sys::ScanKeyData,
    pscan: pg_sys::ParallelTableScanDesc,
    flags: u32,
) -> pg_sys::TableScanDesc {
    // SAFETY: `rel` is open and locked (tableam.h: scan_begin). The palloc0 makes a whole `Scan`,
    // for which all-zero is a value. Its reference to `rel` keeps the relation's entry until `end`.
    unsafe {
        if nkeys > 0 {
            errors::unsupported("mixedcc tables do not support scan keys", "");
        }
        crate::state::platform::outside();
        deferred::before_look((*rel).rd_id);
        if !pscan.is_null() {
            shared_scan::attach(pscan);
            if is_mvcc(snapshot) {
                parallel::mark_restored(snapshot);
            }
        }
        if flags & pg_sys::ScanOptions::SO_TYPE_SEQSCAN == 0 {
            altered::must_fit(rel, (*rel).rd_att);
        }
        if flags & pg_sys::ScanOptions::SO_TYPE_ANALYZE != 0 && analyze::passes_over(rel) {
            let s = make(rel, flags);
            (*s).base.rs_snapshot = snapshot;
            return s.cast();
        }
        let info = rel::info(rel);
        if compat::in_recovery() && is_mvcc(snapshot) {
            // COPY has not taken it. It brings the table to its moment, before the last row is
            // looked for.
            xact::snapshot_seen(snapshot);
        }
        if flags & pg_sys::ScanOptions::SO_TYPE_BITMAPSCAN != 0 {
            hollow::serve(rel, info);
        }
        let s = make(rel, flags);
        (*s).base.rs_snapshot = snapshot;
        (*s).base.rs_nkeys = nkeys;
        (*s).base.rs_key = key;
        (*s).base.rs_parallel = pscan;
        (*s).info = info;
        (*s).for_write = xact::mode() == Mode::Serializable && statements::will_write(snapshot, info.oid);
        start(s);
        if flags & pg_sys::ScanOptions::SO_TYPE_SEQSCAN != 0 {
            compat::count_scan(rel);
        }
        s.cast()
    }
}

/// An empty descriptor, which has a reference to the relation.
///
/// # Safety
/// An open relation.
unsafe fn make(rel: pg_sys::Relation, flags: u32) -> *mut Scan {
    // SAFETY: `rel` is open (contract of this function). The palloc0 makes a whole `Scan`, for
    // which all-zero is a value.
    unsafe {
        pg_sys::RelationIncrementReferenceCount(rel);
        let s = pg_sys::palloc0(std::mem::size_of::<Scan>()).cast::<Scan>();
        (*s).base.rs_rd = rel;
        (*s).base.rs_flags = flags;
        s
    }
}

/// Protects a scan before its first row. What it starts again is protected since the first time.
unsafe fn protect(s: *mut Scan) {
    // SAFETY: `s` was made by `begin`, and its reference keeps the relation's entry. `wanted` is
    // dropped when the memory context of the scan is deleted.
    unsafe {
        let info = &*(*s).info;
        if (*s).base.rs_flags & pg_sys::ScanOptions::SO_TYPE_SEQSCAN == 0 {
            protect_all(info);
        } else if !(*s).protected {
            let p = seqscan::protect((*s).base.rs_rd, info, (*s).base.rs_snapshot);
            (*s).id = p.id;
            if let Some(wanted) = p.wanted {
                (*s).wanted = pgrx::PgMemoryContexts::For(pg_sys::GetMemoryChunkContext(s.cast()))
                    .leak_and_drop_on_delete(wanted);
            }
            (*s).partition = p.partition.map_or(0, |p| p as u32 + 1);
            (*s).protected = true;
        }
    }
}

unsafe fn start(s: *mut Scan) {
    // SAFETY: `s` was made by `begin`, which has set its relation and info.
    unsafe {
        let info = &*(*s).info;
        if (*s).base.rs_flags & READS != 0 && is_mvcc((*s).base.rs_snapshot) {
            protect(s);
        }
        xact::txn();
        (*s).all = info.table.len();
        (*s).first = 0;
        (*s).end = if (*s).base.rs_parallel.is_null() { (*s).all } else { 0 };
        (*s).next = 0;
        (*s).ahead.forget();
        (*s).block = u64::MAX;
        (*s).n_offsets = 0;
        (*s).at = 0;
    }
}

/// # Safety
/// tableam.h's contract of `scan_end`.
#[pg_guard]
pub unsafe extern "C-unwind" fn end(scan: pg_sys::TableScanDesc) {
    // SAFETY: `scan` was made by `begin`, which took the reference. PostgreSQL ends a scan once
    // (tableam.h: scan_end).
    unsafe {
        pg_sys::RelationDecrementReferenceCount((*scan).rs_rd);
        if (*scan).rs_flags & pg_sys::ScanOptions::SO_TEMP_SNAPSHOT != 0 {
            pg_sys::UnregisterSnapshot((*scan).rs_snapshot);
        }
        pg_sys::pfree(scan.cast());
    }
}

/// # Safety
/// tableam.h's contract of `scan_rescan`.
#[pg_guard]
pub unsafe extern "C-unwind" fn rescan(
    scan: pg_sys::TableScanDesc,
    _key: *mut pg_sys::ScanKeyData,
    _params: bool,
    _strat: bool,
    _sync: bool,
    _pagemode: bool,
) {
    // SAFETY: `scan` was made by `begin` (tableam.h: scan callbacks get what scan_begin returned).
    unsafe { start(scan.cast()) }
}

/// Is the record in the partition that the scan wants? One without a row has no partition yet: it
/// may get one, and reading it finds nothing.
unsafe fn wanted(s: *const Scan, r: RecordRef) -> bool {
    // SAFETY: `s` was made by `begin`. The record is of the scan's table, which the transaction's
    // pin keeps (INV-TABLE).
    unsafe { (*s).partition == 0 || r.rec.head().is_null() || (*s).partition == r.touch().no + 1 }
}

/// The predicate to read a record with, and whether it is read to be written: of the rows that a
/// filter does not let through none is locked.
unsafe fn way(s: *const Scan, t: &Txn, r: RecordRef) -> (ScanId, bool) {
    // SAFETY: `s` was made by `begin`; `wanted` lives as long as the memory context of the scan
    // (`protect`).
    unsafe {
        let id = (*s).id;
        if (*s).wanted.is_null() || t.locks_rows(id) && (*(*s).wanted).has((*s).base.rs_rd, r) {
            return (id, (*s).for_write);
        }
        (id.outside(), false)
    }
}

/// A parallel scan takes its next records. False: there are none, or the scan is not parallel.
#[cold]
unsafe fn next_part(s: *mut Scan) -> bool {
    // SAFETY: `s` was made by `begin`; a parallel scan has the memory of its leader.
    unsafe {
        if (*s).base.rs_parallel.is_null() {
            return false;
        }
        let (first, end) = shared_scan::take((*s).base.rs_parallel);
        ((*s).first, (*s).next, (*s).end) = (first, first, end);
        first < end
    }
}

/// How the rows of a scan can be looked at together; `None`: they cannot. Those of one partition
/// only, and rows that are locked, are read one by one.
///
/// # Safety
/// `s` was made by `begin`, and has not ended.
pub unsafe fn look(s: *const Scan, t: &Txn) -> Option<Look<'static>> {
    // SAFETY: `s` was made by `begin` (contract of this function), with a snapshot that the
    // executor keeps.
    unsafe {
        let id = match (*s).wanted.is_null() {
            true => (*s).id,
            false if t.locks_rows((*s).id) => return None,
            false => (*s).id.outside(),
        };
        if (*s).partition != 0 || (*s).base.rs_snapshot.is_null() {
            return None;
        }
        visible::look((*s).base.rs_snapshot, (*s).for_write && (*s).wanted.is_null(), id)
    }
}

/// The next visible record in `first..end`, in a direction.
unsafe fn advance(s: *mut Scan, direction: pg_sys::ScanDirection::Type, slot: *mut pg_sys::TupleTableSlot) -> bool {
    // SAFETY: `s` was made by `begin`; the slot is one of `slot_callbacks`. The transaction's pin
    // keeps the version that is stored (INV-RETIRE).
    unsafe {
        if direction < 0 {
            (*s).ahead.forget();
            return step_back(s, slot);
        }
        if (*s).ahead.has_row() {
            compat::ready_to_count((*s).base.rs_rd);
            ahead::hand_out(s, slot);
            return true;
        }
        if let Some(next) = (*s).ahead.end() {
            (*s).next = next;
        }
        step(s, slot)
    }
}

/// A scan forward that has no row left goes on.
unsafe fn step(s: *mut Scan, slot: *mut pg_sys::TupleTableSlot) -> bool {
    // SAFETY: as for `advance`.
    unsafe {
        let info = &*(*s).info;
        compat::ready_to_count((*s).base.rs_rd);
        loop {
            if (*s).next >= (*s).end && !next_part(s) {
                (*s).next = (*s).end + 1; // a backward step returns the last row
                break;
            }
            if (*s).next.is_multiple_of(RESTS_EACH) {
                between_rows((*s).next);
            }
            let t = xact::txn();
            if ahead::look(s, t) {
                if (*s).ahead.has_row() {
                    ahead::hand_out(s, slot);
                    return true;
                }
                continue;
            }
            let n = (*s).next;
            (*s).next += 1;
            if store_if_seen(s, t, info, n, slot) {
                return true;
            }
        }
        expr::clear(slot);
        false
    }
}

/// A scan goes one row backward.
unsafe fn step_back(s: *mut Scan, slot: *mut pg_sys::TupleTableSlot) -> bool {
    // SAFETY: as for `advance`.
    unsafe {
        let info = &*(*s).info;
        if (*s).next.is_multiple_of(RESTS_EACH) {
            xact::rests::between_rows();
        }
        let t = xact::txn();
        loop {
            if (*s).next <= (*s).first + 1 {
                (*s).next = (*s).first;
                break;
            }
            (*s).next -= 1;
            let n = (*s).next - 1;
            if n % 1024 == 0 && pg_sys::InterruptPending != 0 {
                pg_sys::ProcessInterrupts();
            }
            if store_if_seen(s, t, info, n, slot) {
                return true;
            }
        }
        expr::clear(slot);
        false
    }
}

/// Between two rows of a scan forward: the transaction may rest, and the statement be cancelled.
unsafe fn between_rows(next: u64) {
    xact::rests::between_rows();
    // SAFETY: nothing that needs a drop is alive in the callers' frames: an ERROR unwinds.
    unsafe {
        if next.is_multiple_of(1024) && pg_sys::InterruptPending != 0 {
            pg_sys::ProcessInterrupts();
        }
    }
}

/// Puts the row of a record into the slot, if it is seen.
unsafe fn store_if_seen(s: *mut Scan, t: &mut Txn, info: &RelInfo, n: u64, slot: *mut pg_sys::TupleTableSlot) -> bool {
    // SAFETY: as for `advance`.
    unsafe {
        let Some(r) = RecordRef::find(info.table, n).filter(|r| wanted(s, *r)) else { return false };
        let (id, for_write) = way(s, t, r);
        let Some(v) = visible::by_scan(t, r, (*s).base.rs_snapshot, Why::whole(for_write, id)) else { return false };
        tuple::store(slot, info.oid, Tid::Record(n), v.as_ptr());
        compat::count_returned_row((*s).base.rs_rd);
        true
    }
}

/// `scan_getnextslot`. Guarded only where something can fail.
///
/// # Safety
/// tableam.h's contract of `scan_getnextslot`.
pub unsafe extern "C-unwind" fn next(
    scan: pg_sys::TableScanDesc,
    direction: pg_sys::ScanDirection::Type,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: `scan` was made by `begin`, and `slot` is of its rows' type (tableam.h:
    // scan_getnextslot). This frame owns nothing.
    unsafe {
        let s = scan.cast::<Scan>();
        if direction >= 0 && ahead::is_at_hand(s) {
            ahead::hand_out(s, slot);
            return true;
        }
        guarded_next(scan, direction, slot)
    }
}

/// [`next`], which may fail.
///
/// # Safety
/// As for [`next`].
#[pg_guard]
pub unsafe extern "C-unwind" fn guarded_next(
    scan: pg_sys::TableScanDesc,
    direction: pg_sys::ScanDirection::Type,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: `scan` was made by `begin`, and `slot` has a descriptor that stored rows fit
    // (INV-LAYOUT). A backward scan starts after the last record.
    unsafe {
        let s = scan.cast::<Scan>();
        if altered::any() && (*slot).tts_tupleDescriptor != (*s).fits {
            altered::must_fit((*s).base.rs_rd, (*slot).tts_tupleDescriptor);
            (*s).fits = (*slot).tts_tupleDescriptor;
        }
        if direction < 0 && (*s).next == 0 && (*s).block == u64::MAX {
            (*s).next = (*s).end + 1;
        }
        (*s).block = 0;
        advance(s, direction, slot)
    }
}

/// # Safety
/// tableam.h's contract of `scan_set_tidrange`.
#[pg_guard]
pub unsafe extern "C-unwind" fn set_tidrange(
    scan: pg_sys::TableScanDesc,
    min: pg_sys::ItemPointer,
    max: pg_sys::ItemPointer,
) {
    // SAFETY: `scan` was made by `begin`; both TIDs are valid (tableam.h: scan_set_tidrange). Their
    // offsets may be 0 or 0xFFFF.
    unsafe {
        let s = scan.cast::<Scan>();
        let (b, o) = tid_bound(&*min);
        (*s).first = (b * ROWS + o.saturating_sub(1)).min((*s).all);
        let (b, o) = tid_bound(&*max);
        (*s).end = (b * ROWS + o.min(ROWS)).min((*s).all).max((*s).first);
        (*s).next = (*s).first;
        (*s).ahead.forget();
        (*s).block = u64::MAX;
        compat::set_tid_bounds(scan, *min, *max);
    }
}

/// # Safety
/// tableam.h's contract of `scan_getnextslot_tidrange`.
#[pg_guard]
pub unsafe extern "C-unwind" fn next_in_tidrange(
    scan: pg_sys::TableScanDesc,
    direction: pg_sys::ScanDirection::Type,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: `scan` was made by `begin`; the slot is one of `slot_callbacks` (tableam.h:
    // scan_getnextslot_tidrange).
    unsafe {
        let s = scan.cast::<Scan>();
        if direction < 0 && (*s).block == u64::MAX {
            (*s).next = (*s).end + 1;
        }
        (*s).block = 0;
        advance(s, direction, slot)
    }
}

/// Makes a block the current one of a bitmap scan: with these offsets, or (a lossy page) all.
///
/// # Safety
/// `s` was made by `begin`, and has not ended.
pub unsafe fn set_page(s: *mut Scan, block: pg_sys::BlockNumber, offsets: Option<&[pg_sys::OffsetNumber]>) -> bool {
    // SAFETY: `s` was made by `begin`: contract of this function. At most `ROWS` offsets are
    // stored, and the array has that many.
    unsafe {
        (*s).at = 0;
        (*s).n_offsets = 0;
        (*s).block = block as u64;
        // A worker's, which it has got since the scan began (table_scan_update_snapshot).
        if (*s).base.rs_flags & pg_sys::ScanOptions::SO_TEMP_SNAPSHOT != 0 {
            parallel::mark_restored((*s).base.rs_snapshot);
        }
        // The scan began before the statement was looked at.
        let info = &*(*s).info;
        if xact::mode() == Mode::Serializable {
            (*s).for_write = statements::will_write((*s).base.rs_snapshot, info.oid);
            (*s).id = statements::bitmap_rows((*s).base.rs_snapshot, info.oid);
        }
        match offsets {
            None => {
                for o in 1..=ROWS {
                    (*s).offsets[o as usize - 1] = o as u16;
                }
                (*s).n_offsets = ROWS as u32;
            }
            Some(list) => {
                for &o in list.iter().take(ROWS as usize) {
                    (*s).offsets[(*s).n_offsets as usize] = o;
                    (*s).n_offsets += 1;
                }
            }
        }
        fetch_first(s);
        (*s).n_offsets > 0
    }
}

/// Rows of a bitmap or a sample are fetched so many before they are read.
pub const FETCH_AHEAD: usize = 16;

/// Fetches a row that will be read soon, if there is such an offset.
#[inline]
fn fetch_offset(info: &RelInfo, block: u64, offset: Option<&u16>) {
    let n = offset.and_then(|o| (block * ROWS + *o as u64).checked_sub(1));
    if let Some(rec) = n.and_then(|n| info.table.record(n)) {
        rec.prefetch_row();
    }
}

/// Fetches the first rows of a block's offsets: their records first, and then, together, what these
/// point to.
///
/// # Safety
/// As for [`next_of_block`].
unsafe fn fetch_first(s: *const Scan) {
    // SAFETY: `s` was made by `begin` (contract of this function).
    unsafe {
        let (info, from) = (&*(*s).info, (*s).block * ROWS);
        let first = &(&(*s).offsets)[..FETCH_AHEAD.min((*s).n_offsets as usize)];
        let records = first.iter().filter_map(|o| info.table.record((from + u64::from(*o)).checked_sub(1)?));
        records.clone().for_each(|rec| prefetch(rec));
        records.for_each(Record::prefetch_row);
    }
}

/// The next visible row among the block's offsets.
///
/// # Safety
/// `s` was made by `begin`, and has not ended; `slot` is one of `slot_callbacks`. The offsets of
/// the block begin at 1.
pub unsafe fn next_of_block(s: *mut Scan, slot: *mut pg_sys::TupleTableSlot) -> bool {
    // SAFETY: `s` was made by `begin`: contract of this function. Offsets begin at 1. The
    // transaction's pin keeps the version that is stored (INV-RETIRE).
    unsafe {
        let info = &*(*s).info;
        let rel = (*s).base.rs_rd;
        let t = xact::txn();
        while (*s).at < (*s).n_offsets {
            let o = (*s).offsets[(*s).at as usize];
            let n = (*s).block * ROWS + o as u64 - 1;
            if (*s).n_offsets > 1 {
                fetch_offset(info, (*s).block, (*s).offsets.get((*s).at as usize + FETCH_AHEAD));
            } else if n.is_multiple_of(FETCH_AHEAD as u64) {
                t.fetch_ahead(info.table, n, n + FETCH_AHEAD as u64); // of a sample
            }
            (*s).at += 1;
            let Some(r) = RecordRef::find(info.table, n) else { continue };
            if let Some(v) = visible::by_scan(t, r, (*s).base.rs_snapshot, Why::whole((*s).for_write, (*s).id)) {
                // Begun with a descriptor that stored rows fit.
                ahead::store(s, slot, Found { no: n, version: v.as_ptr() });
                // The tables' statistics count rows of bitmaps as those of indexes
                // (heapam_scan_bitmap_next_tuple).
                if (*s).base.rs_flags & pg_sys::ScanOptions::SO_TYPE_BITMAPSCAN != 0 {
                    compat::count_fetched(rel);
                } else {
                    compat::count_returned_row(rel);
                }
                return true;
            }
        }
        expr::clear(slot);
        false
    }
}
