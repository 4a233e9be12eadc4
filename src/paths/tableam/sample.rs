//! TABLESAMPLE.

use super::scan::{next_of_block, Scan};
use crate::pg::ROWS;
use pgrx::pg_sys;
use pgrx::prelude::*;

/// # Safety
/// tableam.h's contract of `scan_sample_next_block`.
#[pg_guard]
pub unsafe extern "C-unwind" fn next_block(scan: pg_sys::TableScanDesc, state: *mut pg_sys::SampleScanState) -> bool {
    // SAFETY: `scan` was made by `scan::begin`, and `state` has the sampling method's routine
    // (tableam.h: scan_sample_next_block). As heapam_scan_sample_next_block. An ERROR unwinds.
    unsafe {
        // The executor does not, between two sampled rows.
        if pg_sys::InterruptPending != 0 {
            pg_sys::ProcessInterrupts();
        }
        let s = scan.cast::<Scan>();
        let blocks = (*s).all.div_ceil(ROWS).min(u32::MAX as u64 - 1);
        let next = match (*(*state).tsmroutine).NextSampleBlock {
            Some(f) if blocks > 0 => f(state, blocks as u32) as u64,
            Some(_) => pg_sys::InvalidBlockNumber as u64,
            None => {
                let n = if (*s).block == u64::MAX { 0 } else { (*s).block + 1 };
                if n < blocks {
                    n
                } else {
                    pg_sys::InvalidBlockNumber as u64
                }
            }
        };
        (*s).block = next;
        if next == pg_sys::InvalidBlockNumber as u64 {
            (*s).block = u64::MAX;
            return false;
        }
        true
    }
}

/// # Safety
/// tableam.h's contract of `scan_sample_next_tuple`.
#[pg_guard]
pub unsafe extern "C-unwind" fn next_tuple(
    scan: pg_sys::TableScanDesc,
    state: *mut pg_sys::SampleScanState,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: `scan` was made by `scan::begin`, and `state` has the sampling method's routine
    // (tableam.h: scan_sample_next_tuple). `offsets` has room for one.
    unsafe {
        let s = scan.cast::<Scan>();
        let in_block = (*s).all.saturating_sub((*s).block * ROWS).min(ROWS) as u16;
        let Some(f) = (*(*state).tsmroutine).NextSampleTuple else { return false };
        loop {
            let o = f(state, (*s).block as u32, in_block);
            if o == pg_sys::InvalidOffsetNumber as u16 {
                crate::pg::expr::clear(slot);
                return false;
            }
            (*s).offsets[0] = o;
            (*s).n_offsets = 1;
            (*s).at = 0;
            if next_of_block(s, slot) {
                return true;
            }
        }
    }
}
