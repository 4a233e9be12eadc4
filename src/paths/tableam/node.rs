//! What a plan's sequential scan of a table of ours runs in place of nodeSeqscan.c: rows that a
//! look ahead has found go to the plan, and their bytes decide the filter's first conditions.
//!
//! **INV-NODE**: A node that was taken over returns the rows that its own function would, in the
//! same order. Where that would do something else (a recheck of EvalPlanQual, a step backward) its
//! own function runs.

use super::ahead;
use super::scan::{self, Scan};
use crate::access::quick::Passes;
use crate::pg::local::Local;
use crate::pg::{expr, raw};
use crate::state::rel;
use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::PgList;

/// The executor's own functions for nodes without and with a filter and a projection: one on
/// version 15, several on newer ones. Of the process, from the first such node on.
static OWN: Local<[pg_sys::ExecProcNodeMtd; 4]> = Local::new([None; 4]);

unsafe fn kind(ps: *const pg_sys::PlanState) -> usize {
    // SAFETY: `ps` is a started node: contract of the callers.
    unsafe { usize::from(!(*ps).qual.is_null()) * 2 + usize::from(!(*ps).ps_ProjInfo.is_null()) }
}

/// Takes a node over (INV-NODE), if its table is ours.
///
/// # Safety
/// A node of a sequential scan that the executor has started, and that has not run.
pub unsafe fn take_over(s: *mut pg_sys::SeqScanState) {
    // SAFETY: `s` is a started node (contract of this function). A process has one thread.
    unsafe {
        let ps = &raw mut (*s).ss.ps;
        let own = (*ps).ExecProcNodeReal;
        let is_other = |f: &unsafe extern "C-unwind" fn(*mut pg_sys::PlanState) -> *mut pg_sys::TupleTableSlot| {
            *f as usize != run as *const () as usize
        };
        if !rel::is_ours((*s).ss.ss_currentRelation) || !own.as_ref().is_some_and(is_other) {
            return;
        }
        let known = &mut OWN.get_mut()[kind(ps)];
        if known.is_none() {
            *known = own;
        }
        // Another extension's function stays.
        if known.map(|f| f as usize) == own.map(|f| f as usize) {
            (*ps).ExecProcNodeReal = Some(run);
        }
    }
}

/// Runs a node that was taken over. It has no guard: an ERROR jumps over this frame, which owns
/// nothing.
unsafe extern "C-unwind" fn run(ps: *mut pg_sys::PlanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: the executor calls this for a node that `take_over` has seen. The scan is of a table
    // of ours, so `scan::begin` has made it. As ExecScan and its parts.
    unsafe {
        let n = ps.cast::<pg_sys::SeqScanState>();
        let mut s = (*n).ss.ss_currentScanDesc.cast::<Scan>();
        let estate = (*ps).state;
        let forward = (*estate).es_direction == pg_sys::ScanDirection::ForwardScanDirection;
        if !forward || !(*estate).es_epq_active.is_null() {
            return match OWN.get_mut()[kind(ps)] {
                Some(own) => own(ps),
                None => std::ptr::null_mut(),
            };
        }
        if s.is_null() || !(*s).quick.is_known() {
            s = begin(n);
        }
        let (slot, context) = ((*n).ss.ss_ScanTupleSlot, (*ps).ps_ExprContext);
        loop {
            if pg_sys::InterruptPending != 0 {
                raw::ProcessInterrupts();
            }
            reset((*context).ecxt_per_tuple_memory);
            let mut passes = Passes::Perhaps;
            if ahead::is_at_hand(s) {
                if (*s).quick.is_any() {
                    let (skipped, next) = ahead::skip(s);
                    count_filtered(ps, skipped);
                    if next == Passes::No {
                        continue; // there is no row left
                    }
                    passes = next;
                }
                ahead::hand_out(s, slot);
            } else if !scan::guarded_next(s.cast(), pg_sys::ScanDirection::ForwardScanDirection, slot) {
                return match (*ps).ps_ProjInfo.as_mut() {
                    Some(p) => {
                        expr::clear(p.pi_state.resultslot);
                        p.pi_state.resultslot
                    }
                    None => slot,
                };
            }
            (*context).ecxt_scantuple = slot;
            if passes != Passes::Yes && !expr::passes((*ps).qual, context) {
                count_filtered(ps, 1);
                continue;
            }
            if (*ps).ps_ProjInfo.is_null() {
                return slot;
            }
            if (*s).gives_tids {
                return give_tid((*ps).ps_ProjInfo, slot);
            }
            return expr::project((*ps).ps_ProjInfo);
        }
    }
}

/// Begins the scan of a node, if it was not begun (SeqNext, table_beginscan), and looks at its
/// filter.
#[pg_guard]
#[cold]
unsafe extern "C-unwind" fn begin(n: *mut pg_sys::SeqScanState) -> *mut Scan {
    use pg_sys::ScanOptions::{SO_ALLOW_PAGEMODE, SO_ALLOW_STRAT, SO_ALLOW_SYNC, SO_TYPE_SEQSCAN};
    // SAFETY: `n` is a node that runs: contract of `run`. Its relation is open and of ours.
    unsafe {
        let ss = &mut (*n).ss;
        if ss.ss_currentScanDesc.is_null() {
            let flags = SO_TYPE_SEQSCAN | SO_ALLOW_STRAT | SO_ALLOW_SYNC | SO_ALLOW_PAGEMODE;
            let (rel, none) = (ss.ss_currentRelation, std::ptr::null_mut());
            ss.ss_currentScanDesc = scan::begin(rel, (*ss.ps.state).es_snapshot, 0, std::ptr::null_mut(), none, flags);
        }
        let s = ss.ss_currentScanDesc.cast::<Scan>();
        ahead::learn_filter(s, ss.ss_ScanTupleSlot, (*ss.ps.plan).qual, ss.ps.state);
        (*s).gives_tids = gives_tids(ss.ps.plan.cast());
        s
    }
}

/// Does a scan return the rows' TIDs and nothing else?
unsafe fn gives_tids(plan: *mut pg_sys::Scan) -> bool {
    // SAFETY: `plan` is that of a node that runs: contract of `run`. A node is what its tag says.
    unsafe {
        let list = PgList::<pg_sys::TargetEntry>::from_pg((*plan).plan.targetlist);
        let Some(entry) = list.get_ptr(0).filter(|_| list.len() == 1) else { return false };
        let column = (*entry).expr.cast::<pg_sys::Var>();
        (*column).xpr.type_ == pg_sys::NodeTag::T_Var
            && (*column).varno == (*plan).scanrelid as i32
            && i32::from((*column).varattno) == pg_sys::SelfItemPointerAttributeNumber
    }
}

/// Makes the row of the projection of a scan that [`gives_tids`], as the evaluation of its only
/// expression does: the value points into the scan's slot.
#[inline(always)]
unsafe fn give_tid(p: *mut pg_sys::ProjectionInfo, row: *mut pg_sys::TupleTableSlot) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: `p` is the projection of a node that runs, into a virtual slot of one column, and
    // `row` its scan's slot, which has a row: contract of `run`.
    unsafe {
        let slot = (*p).pi_state.resultslot;
        expr::clear(slot);
        *(*slot).tts_values = pg_sys::Datum::from(&raw mut (*row).tts_tid);
        *(*slot).tts_isnull = false;
        expr::store_virtual(slot);
        slot
    }
}

/// ResetExprContext, where something was allocated.
#[inline(always)]
unsafe fn reset(context: pg_sys::MemoryContext) {
    // SAFETY: `context` is valid: that of a node's expressions.
    unsafe {
        if !(*context).isReset || !(*context).firstchild.is_null() {
            raw::MemoryContextReset(context);
        }
    }
}

/// InstrCountFiltered1.
#[inline(always)]
unsafe fn count_filtered(ps: *mut pg_sys::PlanState, rows: u32) {
    // SAFETY: `ps` is a node that runs, whose instrument is null or lives as long.
    unsafe {
        if let Some(i) = (*ps).instrument.as_mut() {
            i.nfiltered1 += f64::from(rows);
        }
    }
}
