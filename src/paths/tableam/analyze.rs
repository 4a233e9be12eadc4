//! ANALYZE: samples blocks of 256 records.

use super::scan::Scan;
use crate::access::{tuple, visible};
use crate::pg::{Tid, ROWS};
use crate::state::xact;
use mixedcc_engine::RecordRef;
use pgrx::pg_sys;
use pgrx::prelude::*;

/// Makes a block that ANALYZE has chosen the current one; false if there is none.
///
/// # Safety
/// `s` was made by `scan::begin`, and has not ended.
pub unsafe fn sample_block(s: *mut Scan, block: pg_sys::BlockNumber) -> bool {
    // SAFETY: `s` was made by `scan::begin`: contract of this function. Tables of more blocks than
    // are reported are sampled with a stride.
    unsafe {
        let real = (*s).all.div_ceil(ROWS);
        let stride = real.div_ceil(super::relation::MAX_BLOCKS).max(1);
        (*s).block = block as u64 * stride;
        (*s).at = 0;
        (*s).block < real
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
        let info = &*(*s).info;
        let t = xact::txn();
        while ((*s).at as u64) < ROWS {
            let n = (*s).block * ROWS + (*s).at as u64;
            (*s).at += 1;
            let Some(r) = RecordRef::find(info.table, n) else { break };
            if let Some(v) = visible::newest(t, r) {
                *live += 1.0;
                tuple::store(slot, info.oid, Tid::Record(n), v.as_ptr());
                return true;
            }
            if !r.rec.head().is_null() || visible::is_dead(t, r) {
                *dead += 1.0;
            }
        }
        crate::pg::expr::clear(slot);
        false
    }
}
