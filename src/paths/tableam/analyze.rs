//! ANALYZE: samples blocks of 256 records.
//!
//! It passes over a permanent table that does not fit into memory, with a warning: it goes on with
//! the next table. What it knows of the table's size and content stays.

use super::scan::{Scan, FETCH_AHEAD};
use super::vacuum;
use crate::access::{tuple, visible};
use crate::pg::{compat, Tid, ROWS};
use crate::state::{rel, xact};
use mixedcc_engine::RecordRef;
use pgrx::pg_sys;
use pgrx::prelude::*;

/// Is this a table that does not fit into memory? Says so.
///
/// # Safety
/// An open relation of ours, locked as ANALYZE does.
pub unsafe fn passes_over(rel: pg_sys::Relation) -> bool {
    // SAFETY: `rel` is open and locked (contract of this function).
    unsafe {
        if !compat::is_permanent(rel) {
            return false;
        }
        match rel::table_if_it_fits(rel) {
            Ok(_) => false,
            Err(x) => {
                vacuum::pass_over_large("ANALYZE", rel, x);
                true
            }
        }
    }
}

/// The rows of each block of a table that is passed over, so that their number stays.
unsafe fn rows_of_block(rel: pg_sys::Relation) -> f64 {
    // SAFETY: `rel` is open: the only caller has a scan of it.
    let form = unsafe { &*(*rel).rd_rel };
    f64::from(form.reltuples.max(0.0)) / f64::from(form.relpages.max(1))
}

/// A block that is reported stands for so many. (The last reported ones may stand for none.)
fn stride(s: &Scan) -> u64 {
    s.all.div_ceil(ROWS).div_ceil(crate::pg::MAX_BLOCKS).max(1)
}

/// Makes a block that ANALYZE has chosen the current one; false if there is none.
///
/// # Safety
/// `s` was made by `scan::begin`, and has not ended.
pub unsafe fn sample_block(s: *mut Scan, block: pg_sys::BlockNumber) -> bool {
    // SAFETY: `s` was made by `scan::begin`: contract of this function. Tables of more blocks than
    // are reported are sampled with a stride.
    unsafe {
        if (*s).info.is_null() {
            return true;
        }
        (*s).block = block as u64 * stride(&*s);
        (*s).at = 0;
        (*s).block < (*s).all.div_ceil(ROWS)
    }
}

/// # Safety
/// tableam.h's contract of `scan_analyze_next_tuple`.
#[pg_guard]
pub unsafe extern "C-unwind" fn next_tuple(
    scan: pg_sys::TableScanDesc,
    _oldest: pg_sys::TransactionId,
    live: *mut f64,
    dead: *mut f64,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: `scan` was made by `scan::begin`; counters and slot are ANALYZE's (tableam.h:
    // scan_analyze_next_tuple). The pin keeps the version that is stored (INV-RETIRE).
    unsafe {
        let s = scan.cast::<Scan>();
        let Some(info) = (*s).info.as_ref() else {
            *live += rows_of_block((*s).base.rs_rd);
            return false;
        };
        let t = xact::txn();
        while ((*s).at as u64) < ROWS {
            let n = (*s).block * ROWS + (*s).at as u64;
            if (*s).at == 0 {
                t.fetch_ahead(info.table, n, n + FETCH_AHEAD as u64);
            }
            if let Some(rec) = info.table.record(n + FETCH_AHEAD as u64) {
                rec.prefetch_row();
            }
            (*s).at += 1;
            let Some(r) = RecordRef::find(info.table, n) else { break };
            if let Some(v) = visible::newest(t, r) {
                *live += stride(&*s) as f64;
                tuple::store(slot, info.oid, Tid::Record(n), v.as_ptr());
                return true;
            }
            if !r.rec.head().is_null() || visible::is_dead(t, r) {
                *dead += stride(&*s) as f64;
            }
        }
        crate::pg::expr::clear(slot);
        false
    }
}
