//! Index scans of our tables in SERIALIZABLE transactions.
//!
//! They must be protected before they read the index: the access method's `amrescan` is wrapped (in
//! the relation cache's private copy of its routine), where the keys are known. There the scan also
//! gets a snapshot of another kind, which keeps PostgreSQL's own predicate locks out of it. Access
//! methods of other extensions do not get it, because they may insist on an MVCC snapshot.

use super::{hollow, index_lookup, primary, protect};
use crate::access::fetch::Fetch;
use crate::pg::local::Local;
use crate::pg::{compat, raw, MAX_BLOCKS, ROWS};
use crate::state::rel::{self, RelInfo};
use crate::state::xact::{self, parallel, Mode};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// The snapshot that protected scans carry: not an MVCC snapshot. Of the process, written when the
/// library is loaded.
// SAFETY: `SnapshotData` is a struct of numbers and of pointers and functions that may be null:
// zeros are valid.
static OURS: Local<pg_sys::SnapshotData> = Local::new(unsafe { std::mem::zeroed() });

/// Does a scan carry our snapshot in place of the executor's?
#[inline]
pub fn is_ours(s: pg_sys::Snapshot) -> bool {
    std::ptr::eq(s, OURS.as_ptr())
}

/// Our snapshot.
pub fn ours() -> pg_sys::Snapshot {
    OURS.as_ptr()
}

/// Does the access method of an index get by with whatever snapshot? PostgreSQL's own do. Others
/// may insist on an MVCC snapshot (pgvector's do), and keep the executor's: their keys are not
/// protected, so partitions and rows are.
///
/// # Safety
/// An open index.
pub unsafe fn takes_any_snapshot(index: pg_sys::Relation) -> bool {
    use pg_sys::{BRIN_AM_OID, BTREE_AM_OID, GIN_AM_OID, GIST_AM_OID, HASH_AM_OID, SPGIST_AM_OID};
    // SAFETY: `index` is open (contract of this function), so its pg_class row is there.
    let am = unsafe { (*(*index).rd_rel).relam.to_u32() };
    let own = [BTREE_AM_OID, HASH_AM_OID, GIST_AM_OID, GIN_AM_OID, SPGIST_AM_OID, BRIN_AM_OID];
    own.iter().any(|o| o.to_u32() == am)
}

/// May several processes share a scan of an index? They share nbtree's pages. A hollow index has
/// none: each process would return all of its rows.
///
/// # Safety
/// An open relation of ours, and its info.
pub unsafe fn takes_workers(info: &RelInfo, heap: pg_sys::Relation, index: pg_sys::Oid, am: pg_sys::Oid) -> bool {
    // SAFETY: `heap` is open and of ours, and `info` is its info (contract of this function).
    am.to_u32() == pg_sys::BTREE_AM_OID.to_u32() && unsafe { primary::hollow_key(heap, info, index) }.is_none()
}

/// Prepares the snapshot.
pub fn init() {
    // SAFETY: `_PG_init` runs alone, so no scan has the snapshot yet.
    unsafe { OURS.get_mut().snapshot_type = pg_sys::SnapshotType::SNAPSHOT_ANY };
}

/// The routine of an index access method that we have wrapped, as its handler returns it.
struct Wrapped {
    handler: pg_sys::Oid,
    routine: pg_sys::IndexAmRoutine,
}
/// Of the process: entries are added, and stay.
static WRAPPED: Local<Vec<Wrapped>> = Local::new(Vec::new());

/// The routine of an index's access method, as its handler returns it.
///
/// # Safety
/// An open index that [`wrap`] has wrapped. The reference is used before the next [`wrap`].
pub unsafe fn stock(index: pg_sys::Relation) -> &'static pg_sys::IndexAmRoutine {
    // SAFETY: a process has one thread. Entries of `WRAPPED` are read here and pushed by `wrap`; a
    // reference is used before the next push (contract of this function).
    unsafe {
        let handler = (*index).rd_amhandler;
        match WRAPPED.get_mut().iter().find(|w| w.handler == handler) {
            Some(w) => &w.routine,
            None => error!("mixedcc has lost the callbacks of an index access method"),
        }
    }
}

/// Wraps the scan callbacks of an index of ours, in its relation cache entry.
///
/// # Safety
/// Open relations, or no index.
pub unsafe fn wrap(heap: pg_sys::Relation, index: pg_sys::Relation) {
    // SAFETY: `heap` is open, `index` open or null (contract of this function). `rd_indam` is a
    // private copy of the routine (relcache.c), ours to change. One thread uses `WRAPPED`.
    unsafe {
        if !rel::is_ours(heap) || index.is_null() {
            return;
        }
        rel::info(heap);
        let am = (*index).rd_indam;
        if (*am).amrescan.map(|f| f as usize) == Some(rescan as *const () as usize) {
            return;
        }
        let all = WRAPPED.get_mut();
        if !all.iter().any(|w| w.handler == (*index).rd_amhandler) {
            all.push(Wrapped { handler: (*index).rd_amhandler, routine: *am });
        }
        (*am).amrescan = Some(rescan);
        // Else PostgreSQL takes a predicate lock of its own on the whole index for each scan with
        // the executor's snapshot.
        (*am).ampredlocks = true;
        if (*am).amgettuple.is_some() {
            (*am).amgettuple = Some(gettuple);
        }
        if (*am).amgetbitmap.is_some() {
            (*am).amgetbitmap = Some(getbitmap);
        }
        if (*am).amrestrpos.is_some() {
            (*am).ammarkpos = Some(markpos);
            (*am).amrestrpos = Some(restrpos);
        }
    }
}

unsafe extern "C-unwind" fn rescan(
    scan: pg_sys::IndexScanDesc,
    keys: pg_sys::ScanKey,
    nkeys: i32,
    orderbys: pg_sys::ScanKey,
    norderbys: i32,
) {
    // SAFETY: PostgreSQL calls this as amrescan of an index that `wrap` has wrapped (amapi.h). The
    // arguments are passed on. An ERROR jumps over this frame, which owns nothing.
    unsafe {
        // Of a hollow index too: nbtree's looks at no page, and keeps the keys for both.
        if let Some(f) = stock((*scan).indexRelation).amrescan {
            f(scan, keys, nkeys, orderbys, norderbys);
        }
        let f = fetch_of(scan);
        if !f.is_null() {
            let is_hollow = hollow::scan::begin(scan, f);
            if !(*scan).parallel_scan.is_null() {
                begin_shared(scan, is_hollow);
            }
            let stock = stock((*scan).indexRelation).amgettuple;
            (*f).gettuple = if is_hollow { Some(hollow::scan::gettuple) } else { stock };
        }
        if protects() && is_of_ours(scan) {
            guarded_protect(scan);
        }
    }
}

/// A process starts its part of a parallel scan, with a copy of the statement's snapshot that was
/// restored from shared memory.
#[pg_guard]
unsafe extern "C-unwind" fn begin_shared(scan: pg_sys::IndexScanDesc, is_hollow: bool) {
    if is_hollow {
        error!("mixedcc scans no hollow index in several processes");
    }
    // SAFETY: `scan` is that of `rescan`, and no row was fetched by its snapshot yet.
    unsafe { parallel::mark_restored((*scan).xs_snapshot) }
}

/// Are index scans of the transaction protected? Does not fail where its mode is known.
fn protects() -> bool {
    matches!(xact::mode(), Mode::Serializable | Mode::SerializableReadOnly)
}

/// Is a scan one of an index of ours? Not if the transaction has given its table another access
/// method: the index's relation cache entry may be the old one.
unsafe fn is_of_ours(scan: pg_sys::IndexScanDesc) -> bool {
    // SAFETY: `scan` is of an open index, whose table is locked: the look-up by OID finds it. An
    // ERROR jumps over this frame, which owns nothing.
    unsafe {
        if !(*scan).heapRelation.is_null() {
            return rel::is_ours((*scan).heapRelation);
        }
        let heap = raw::RelationIdGetRelation((*(*(*scan).indexRelation).rd_index).indrelid);
        let is_ours = rel::is_ours(heap);
        raw::RelationClose(heap);
        is_ours
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn guarded_protect(scan: pg_sys::IndexScanDesc) {
    // SAFETY: `scan` has got its keys from the access method: `rescan` and `getbitmap` call this
    // after that.
    unsafe { protect::index_scan(scan) }
}

#[pg_guard]
unsafe extern "C-unwind" fn guarded_missed(scan: pg_sys::IndexScanDesc, f: *mut Fetch) -> bool {
    // SAFETY: `scan` and `f`, its fetch, are those of `gettuple`, whose look-up has found nothing.
    unsafe { index_lookup::found_nothing(scan, f) }
}

/// Our part of a scan.
///
/// # Safety
/// A scan. Null: it has none of ours (bitmaps, scans of other tables).
pub unsafe fn fetch_of(scan: pg_sys::IndexScanDesc) -> *mut Fetch {
    // SAFETY: `scan` is valid (contract of this function). The fetch of a scan of our table was
    // made by our index_fetch_begin.
    unsafe {
        if rel::is_ours((*scan).heapRelation) {
            (*scan).xs_heapfetch.cast()
        } else {
            std::ptr::null_mut()
        }
    }
}

unsafe extern "C-unwind" fn gettuple(scan: pg_sys::IndexScanDesc, direction: pg_sys::ScanDirection::Type) -> bool {
    // SAFETY: PostgreSQL calls this as amgettuple of an index that `wrap` has wrapped (amapi.h). An
    // ERROR of the method jumps over this frame, which owns nothing.
    unsafe {
        let f = fetch_of(scan);
        if f.is_null() {
            return stock((*scan).indexRelation).amgettuple.is_some_and(|g| g(scan, direction));
        }
        let own = (*f).gettuple.or_else(|| stock((*scan).indexRelation).amgettuple);
        let found = if (*scan).xs_temp_snap && protects() {
            step_unnoticed(scan, own, direction)
        } else {
            own.is_some_and(|g| g(scan, direction))
        };
        (*f).seen.step(direction, found);
        if !found && (*f).look && guarded_missed(scan, f) {
            return look_again(scan, direction);
        }
        found
    }
}

/// A step of a parallel scan at SERIALIZABLE READ ONLY. It has our snapshot for the step only, so
/// that PostgreSQL takes no predicate locks: the scan's end releases the snapshot that it has.
unsafe fn step_unnoticed(
    scan: pg_sys::IndexScanDesc,
    own: pg_sys::amgettuple_function,
    direction: pg_sys::ScanDirection::Type,
) -> bool {
    // SAFETY: `scan` is that of `gettuple`. An ERROR of the method jumps over this frame, and ends
    // the scan without its snapshot, which the transaction's resources hold.
    unsafe {
        let given = std::mem::replace(&mut (*scan).xs_snapshot, ours());
        let found = own.is_some_and(|g| g(scan, direction));
        (*scan).xs_snapshot = given;
        found
    }
}

/// A look-up that found nothing starts anew, with the same keys.
#[cold]
unsafe fn look_again(scan: pg_sys::IndexScanDesc, direction: pg_sys::ScanDirection::Type) -> bool {
    // SAFETY: `scan` is that of `gettuple`. An amrescan with null for its keys keeps those that are
    // there (indexam.c).
    unsafe {
        (*scan).kill_prior_tuple = false;
        if let Some(f) = stock((*scan).indexRelation).amrescan {
            f(scan, std::ptr::null_mut(), 0, std::ptr::null_mut(), 0);
        }
        hollow::scan::restart(fetch_of(scan));
        gettuple(scan, direction)
    }
}

unsafe extern "C-unwind" fn markpos(scan: pg_sys::IndexScanDesc) {
    // SAFETY: PostgreSQL calls this as ammarkpos of an index that `wrap` has wrapped (amapi.h). An
    // ERROR of the method jumps over this frame, which owns nothing.
    unsafe {
        let f = fetch_of(scan);
        if !f.is_null() && hollow::scan::mark(f) {
            return;
        }
        if let Some(f) = stock((*scan).indexRelation).ammarkpos {
            f(scan);
        }
    }
}

unsafe extern "C-unwind" fn restrpos(scan: pg_sys::IndexScanDesc) {
    // SAFETY: PostgreSQL calls this as amrestrpos of an index that `wrap` has wrapped (amapi.h). An
    // ERROR of the method jumps over this frame, which owns nothing.
    unsafe {
        let f = fetch_of(scan);
        if f.is_null() || !hollow::scan::restore(f) {
            if let Some(f) = stock((*scan).indexRelation).amrestrpos {
                f(scan);
            }
        }
        if !f.is_null() {
            (*f).seen.rewound = true;
        }
    }
}

unsafe extern "C-unwind" fn getbitmap(scan: pg_sys::IndexScanDesc, tbm: *mut pg_sys::TIDBitmap) -> i64 {
    // SAFETY: PostgreSQL calls this as amgetbitmap of an index that `wrap` has wrapped (amapi.h).
    // An ERROR of the method jumps over this frame, which owns nothing.
    unsafe {
        // The executor's start gives a bitmap scan its keys before we have wrapped the index.
        if protects() && !is_ours((*scan).xs_snapshot) && is_of_ours(scan) {
            guarded_protect(scan);
        }
        match hollow::scan::bitmap(scan, tbm) {
            n if n >= 0 => n,
            _ => {
                let n = stock((*scan).indexRelation).amgetbitmap.map_or(0, |f| f(scan, tbm));
                let am = (*(*(*scan).indexRelation).rd_rel).relam;
                let others = am.to_u32() == pg_sys::BRIN_AM_OID.to_u32();
                n + if others { add_unreported(scan, tbm) } else { 0 }
            }
        }
    }
}

/// BRIN takes the table to have as many blocks as are reported ([`MAX_BLOCKS`]): adds the others to
/// the bitmap, whatever they contain. Returns their number of rows, at most.
#[pg_guard]
unsafe extern "C-unwind" fn add_unreported(scan: pg_sys::IndexScanDesc, tbm: *mut pg_sys::TIDBitmap) -> i64 {
    // SAFETY: `scan` is of an open index, whose table is locked: the look-up by OID finds it, and
    // an ERROR's clean-up closes it. `tbm` is valid (amapi.h: amgetbitmap).
    unsafe {
        let heap = pg_sys::RelationIdGetRelation((*(*(*scan).indexRelation).rd_index).indrelid);
        let blocks = if rel::is_ours(heap) { rel::info(heap).table.len().div_ceil(ROWS) } else { 0 };
        pg_sys::RelationClose(heap);
        for block in MAX_BLOCKS..blocks {
            pgrx::check_for_interrupts!();
            compat::add_block_to_bitmap(tbm, block as pg_sys::BlockNumber);
        }
        (blocks.saturating_sub(MAX_BLOCKS) * ROWS) as i64
    }
}
