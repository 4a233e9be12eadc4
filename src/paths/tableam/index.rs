//! Building indexes.

use crate::access::visible::{self, ToIndex};
use crate::access::{hollow, primary, primary_check, tuple};
use crate::pg::errors::{duplicate_key, unsupported, Met};
use crate::pg::{expr, Tid};
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::{rel, xact};
use mixedcc_engine::csn::Csn;
use mixedcc_engine::shared::Oldest;
use mixedcc_engine::{RecordRef, Txn};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// Which rows a scan for an index is for.
enum Wanted {
    /// A new index: whatever a snapshot of now, the oldest one, can see.
    Build(Oldest),
    /// A comparison with an index: the rows of now, because no session writes.
    Present,
    /// A comparison while others write: rows that were there at this moment, when it had not read
    /// the index yet, and still are.
    Since(Csn),
}

impl Wanted {
    /// Parallel builds hand over a scan. So does amcheck, for an index that is not hollow. It asks
    /// for the rows of its snapshot after it has read the index. That snapshot of PostgreSQL has no
    /// CSN before, so the rows are those of the statement's start. Keys do not change in place: the
    /// newest version of a row has those that the index had then.
    unsafe fn of(rel: pg_sys::Relation, scan: pg_sys::TableScanDesc) -> Wanted {
        if scan.is_null() {
            let t = xact::txn();
            xact::renew_pin();
            return Wanted::Build(t.e.pin_oldest(t.slot));
        }
        // SAFETY: `rel` is open; `scan` is not null, and of `rel` (tableam.h:
        // index_build_range_scan).
        let (parallel, locked) = unsafe {
            (!(*scan).rs_parallel.is_null(), pg_sys::CheckRelationLockedByMe(rel, pg_sys::ShareLock as i32, true))
        };
        if parallel {
            unsupported(
                "mixedcc tables do not support parallel index builds",
                "Set max_parallel_maintenance_workers to 0.",
            );
        }
        let moment = if locked { None } else { xact::moment() };
        xact::txn();
        xact::renew_pin();
        match moment {
            Some(moment) => Wanted::Since(moment),
            None if locked => Wanted::Present,
            None => unsupported(
                "mixedcc tables cannot be compared with an index outside of a statement while others write",
                "Use bt_index_parent_check, or LOCK TABLE ... IN SHARE MODE before.",
            ),
        }
    }

    unsafe fn entry(&self, t: &mut Txn, r: RecordRef) -> Option<ToIndex> {
        // SAFETY: versions are reached under the pin that `of` has renewed (INV-RETIRE): what
        // `to_index` asks for.
        unsafe {
            match *self {
                Wanted::Build(oldest) => visible::to_index(t, r, Some(oldest)),
                Wanted::Present => visible::to_index(t, r, None).filter(|e| e.alive),
                Wanted::Since(moment) => {
                    let row = match t.last_write(r) {
                        Some(n) => visible::own_version(t, n),
                        None => ok(t.row_since(&PG, r.rec, moment)),
                    };
                    row.map(|version| ToIndex { version: Some(version), alive: true, has_past: false })
                }
            }
        }
    }
}

/// # Safety
/// tableam.h's contract of `index_build_range_scan`.
#[pg_guard]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C-unwind" fn build_range_scan(
    rel: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    _allow_sync: bool,
    _anyvisible: bool,
    _progress: bool,
    start: pg_sys::BlockNumber,
    numblocks: pg_sys::BlockNumber,
    callback: pg_sys::IndexBuildCallback,
    state: *mut core::ffi::c_void,
    scan: pg_sys::TableScanDesc,
) -> f64 {
    // SAFETY: `rel`, `index` and `info` are open and belong together; `scan` is null or ours to end
    // (tableam.h: index_build_range_scan). Stored rows fit the descriptor (INV-LAYOUT). The pin
    // keeps the versions (INV-RETIRE). Executor state and slot are made and freed here.
    unsafe {
        crate::access::altered::must_fit(rel, (*rel).rd_att);
        if scan.is_null() && hollow::begin_build(rel, index) {
            return build_hollow(rel, index, info);
        }
        if let Some(rows) = compare_hollow(rel, index, scan) {
            return rows;
        }
        let wanted = Wanted::of(rel, scan);
        let table = rel::info(rel).table;
        let estate = pg_sys::CreateExecutorState();
        let econtext = if (*estate).es_per_tuple_exprcontext.is_null() {
            pg_sys::MakePerTupleExprContext(estate)
        } else {
            (*estate).es_per_tuple_exprcontext
        };
        let slot = pg_sys::table_slot_create(rel, std::ptr::null_mut());
        (*econtext).ecxt_scantuple = slot;
        let predicate = pg_sys::ExecPrepareQual((*info).ii_Predicate, estate);
        let first = start as u64 * crate::pg::ROWS;
        let last = if numblocks == pg_sys::InvalidBlockNumber {
            table.len()
        } else {
            (first + numblocks as u64 * crate::pg::ROWS).min(table.len())
        };
        let t = xact::txn();
        let mut rows = 0.0;
        for n in first..last {
            if n % 256 == 0 && pg_sys::InterruptPending != 0 {
                pg_sys::ProcessInterrupts();
            }
            let Some(r) = RecordRef::find(table, n) else { continue };
            let Some(e) = wanted.entry(t, r) else { continue };
            (*info).ii_BrokenHotChain |= e.has_past;
            let Some(version) = e.version else { continue };
            pg_sys::MemoryContextReset((*econtext).ecxt_per_tuple_memory);
            tuple::store(slot, (*rel).rd_id, Tid::Record(n), version.as_ptr());
            if !expr::passes(predicate, econtext) {
                continue;
            }
            let mut values = [pg_sys::Datum::from(0); pg_sys::INDEX_MAX_KEYS as usize];
            let mut nulls = [false; pg_sys::INDEX_MAX_KEYS as usize];
            pg_sys::FormIndexDatum(info, slot, estate, values.as_mut_ptr(), nulls.as_mut_ptr());
            let mut tid = Tid::Record(n).item();
            if let Some(f) = callback {
                f(index, &mut tid, values.as_mut_ptr(), nulls.as_mut_ptr(), e.alive, state);
            }
            rows += e.alive as u8 as f64;
        }
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        pg_sys::FreeExecutorState(estate);
        if !scan.is_null() {
            super::scan::end(scan);
        }
        (*info).ii_ExpressionsState = std::ptr::null_mut();
        (*info).ii_PredicateState = std::ptr::null_mut();
        rows
    }
}

/// The build of a hollow index gets no row: what nbtree would do with the rows, the primary index
/// has done. Returns how many there are. An ERROR for two rows with one key jumps over the frame.
unsafe fn build_hollow(rel: pg_sys::Relation, index: pg_sys::Relation, info: *mut pg_sys::IndexInfo) -> f64 {
    // SAFETY: `rel`, `index` and `info` are open and belong together: contract of
    // `build_range_scan`. The pin keeps the versions (INV-RETIRE), and stored rows fit the
    // descriptor (INV-LAYOUT).
    unsafe {
        let built = primary::build_key(rel, index);
        (*info).ii_BrokenHotChain |= built.has_past;
        let table = rel::info(rel).table;
        let wanted = Wanted::of(rel, std::ptr::null_mut());
        let t = xact::txn();
        if let Some((_, no)) = built.duplicate {
            let row = RecordRef::find(table, no).and_then(|r| wanted.entry(t, r));
            let row = row.and_then(|e| e.version);
            let Some(version) = row else { error!("mixedcc has lost a row that has the key of another") };
            let mut values = [pg_sys::Datum::from(0); pg_sys::INDEX_MAX_KEYS as usize];
            let mut nulls = [false; pg_sys::INDEX_MAX_KEYS as usize];
            let slot = pg_sys::table_slot_create(rel, std::ptr::null_mut());
            tuple::store(slot, (*rel).rd_id, Tid::Record(no), version.as_ptr());
            pg_sys::FormIndexDatum(info, slot, std::ptr::null_mut(), values.as_mut_ptr(), nulls.as_mut_ptr());
            duplicate_key(rel, index, values.as_mut_ptr(), nulls.as_mut_ptr(), Met::ByBuild);
        }
        let alive = |no: &u64| {
            let row = RecordRef::find(table, *no).and_then(|r| wanted.entry(t, r));
            row.is_some_and(|e| e.alive)
        };
        (0..table.len()).filter(alive).count() as f64
    }
}

/// amcheck asks for the rows of a hollow index, whose entries it has not found in the file. So this
/// compares the rows with the primary index, and hands out none. Returns their number; `None`: it
/// is not amcheck, or the index is not hollow. An ERROR for a difference jumps over the frame.
unsafe fn compare_hollow(rel: pg_sys::Relation, index: pg_sys::Relation, scan: pg_sys::TableScanDesc) -> Option<f64> {
    // SAFETY: `rel` and `index` are open, and `scan` is null or ours to end: contract of
    // `build_range_scan`. `info` and `key` are those of `rel`.
    unsafe {
        if scan.is_null() || !(*scan).rs_parallel.is_null() {
            return None;
        }
        let info = rel::info(rel);
        let key = primary::key(rel, info).filter(|k| k.hollow && k.index == (*index).rd_id)?;
        let rows = primary_check::check(rel, info, key);
        super::scan::end(scan);
        Some(rows as f64)
    }
}

/// # Safety
/// tableam.h's contract of `index_validate_scan`.
#[pg_guard]
pub unsafe extern "C-unwind" fn validate_scan(
    _a: pg_sys::Relation,
    _b: pg_sys::Relation,
    _c: *mut pg_sys::IndexInfo,
    _d: pg_sys::Snapshot,
    _e: *mut pg_sys::ValidateIndexState,
) {
    unsupported("mixedcc tables do not support CREATE INDEX CONCURRENTLY", "Use CREATE INDEX.")
}
