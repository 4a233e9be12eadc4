//! Building indexes.
//!
//! **CREATE INDEX CONCURRENTLY** has two scans of its own (index.c: `validate_index`), beside
//! writers. Before each it waits for all transactions that have locked the table.
//!
//! * From the first wait on every writer knows the new index, so an update of one of its columns
//!   moves the row to a new record: a record has one key. The first scan indexes what its snapshot
//!   sees.
//! * From the second wait on every writer makes its own entries. So what is missing was committed
//!   before. The second scan fixes its snapshot, and then collects the TIDs of the index. A row
//!   that the snapshot sees, and whose writer has made its entry, is found among them.
//! * An entry stands for the record that it was made for: only VACUUM gives records to new rows,
//!   and the command's lock excludes it.
//! * A transaction with an older snapshot does not see what the index says. The command waits for
//!   these before it makes the index valid.

use super::shared_scan;
use crate::access::visible::{self, ToIndex};
use crate::access::{hollow, primary, tuple};
use crate::pg::errors::{duplicate_key, unsupported, Met};
use crate::pg::{compat, expr, raw, Tid, ROWS};
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::rel;
use crate::state::xact::{self, parallel};
use mixedcc_engine::csn::Csn;
use mixedcc_engine::record::Version;
use mixedcc_engine::shared::Oldest;
use mixedcc_engine::{RecordRef, Table, Txn};
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;
use pgrx::prelude::*;
use std::ptr::NonNull;

/// Which rows a scan for an index is for.
enum Wanted {
    /// A new index: whatever a snapshot of now, the oldest one, can see.
    Build(Oldest),
    /// A new index beside writers: what this snapshot sees.
    Seen(pg_sys::Snapshot),
    /// A comparison with an index: the rows of now, because no session writes.
    Present,
    /// A comparison while others write: rows that were there at this moment, when it had not read
    /// the index yet, and still are.
    Since(Csn),
}

impl Wanted {
    /// Parallel builds hand over a scan, which carries their snapshot if they are concurrent. So
    /// does amcheck, for an index that is not hollow. It asks for the rows of its snapshot after it
    /// has read the index. That snapshot of PostgreSQL has no CSN before, so the rows are those of
    /// the statement's start. Keys do not change in place: the newest version of a row has those
    /// that the index had then.
    unsafe fn of(rel: pg_sys::Relation, scan: pg_sys::TableScanDesc, concurrent: bool) -> Wanted {
        // SAFETY: `scan` is null, or valid and of `rel` (tableam.h: index_build_range_scan).
        let parallel = unsafe { is_shared(scan) };
        if concurrent && (scan.is_null() || parallel) {
            // SAFETY: as above; else the command has made a snapshot active (indexcmds.c:
            // DefineIndex, ReindexRelationConcurrently).
            return Wanted::Seen(unsafe {
                if parallel {
                    (*scan).rs_snapshot
                } else {
                    raw::GetActiveSnapshot()
                }
            });
        }
        if scan.is_null() || parallel {
            let t = xact::txn();
            xact::renew_pin();
            xact::rests::stay_awake();
            return Wanted::Build(t.e.pin_oldest(t.slot));
        }
        // SAFETY: `rel` is open (tableam.h: index_build_range_scan).
        let locked = unsafe { pg_sys::CheckRelationLockedByMe(rel, pg_sys::ShareLock as i32, true) };
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
                Wanted::Seen(snapshot) => seen_by(t, r, snapshot).map(ToIndex::alive),
                Wanted::Present => visible::to_index(t, r, None).filter(|e| e.alive),
                Wanted::Since(moment) => {
                    let row = match t.last_write(r) {
                        Some(n) => visible::own_version(t, n),
                        None => ok(t.row_since(&PG, r.rec, moment)),
                    };
                    row.map(ToIndex::alive)
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
    progress: bool,
    start: pg_sys::BlockNumber,
    numblocks: pg_sys::BlockNumber,
    callback: pg_sys::IndexBuildCallback,
    state: *mut core::ffi::c_void,
    scan: pg_sys::TableScanDesc,
) -> f64 {
    // INV-DECIDED
    xact::prepared::finish_decided();
    // SAFETY: `rel`, `index` and `info` are open and belong together; `scan` is null or ours to end
    // (tableam.h: index_build_range_scan). Stored rows fit the descriptor (INV-LAYOUT). The pin
    // keeps the versions (INV-RETIRE). Executor state and slot are made and freed here.
    unsafe {
        crate::access::altered::must_fit(rel, (*rel).rd_att);
        if (scan.is_null() || is_shared(scan)) && is_hollow_build(rel, index) {
            return build_hollow_once(rel, index, info, scan);
        }
        if let Some(rows) = compare_hollow(rel, index, scan) {
            return rows;
        }
        let wanted = Wanted::of(rel, scan, (*info).ii_Concurrent);
        let table = rel::info(rel).table;
        let former = Former::new(rel, info);
        let mut part = Part::first(table, start, numblocks, scan);
        announce(part.all, progress);
        let t = xact::txn();
        // A function of the index may run statements; the transaction must not rest at their end.
        xact::rests::stay_awake();
        let mut rows = 0.0;
        while part.next < part.end || part.take(scan) {
            let n = part.next;
            part.next += 1;
            pause(n - part.from, progress);
            let Some(r) = RecordRef::find(table, n) else { continue };
            let Some(e) = wanted.entry(t, r) else { continue };
            (*info).ii_BrokenHotChain |= e.has_past;
            let Some(version) = e.version else { continue };
            let Some((mut values, mut nulls)) = former.form(n, version) else { continue };
            let mut tid = Tid::Record(n).item();
            if let Some(f) = callback {
                f(index, &mut tid, values.as_mut_ptr(), nulls.as_mut_ptr(), e.alive, state);
            }
            rows += e.alive as u8 as f64;
        }
        former.end();
        if !scan.is_null() {
            super::scan::end(scan);
        }
        rows
    }
}

/// Does a scan belong to a parallel build?
unsafe fn is_shared(scan: pg_sys::TableScanDesc) -> bool {
    // SAFETY: `scan` is null or valid (tableam.h: index_build_range_scan).
    unsafe { !scan.is_null() && !(*scan).rs_parallel.is_null() }
}

/// The records that a scan has to look at: all of it, or its process's part.
struct Part {
    /// The next one.
    next: u64,
    /// The one after the last.
    end: u64,
    /// The first of the whole scan.
    from: u64,
    /// How many the whole scan has.
    all: u64,
}

impl Part {
    /// All blocks that are asked for; of a shared scan nothing yet.
    unsafe fn first(
        table: &Table,
        start: pg_sys::BlockNumber,
        numblocks: pg_sys::BlockNumber,
        scan: pg_sys::TableScanDesc,
    ) -> Part {
        let from = start as u64 * ROWS;
        let end = match numblocks {
            pg_sys::InvalidBlockNumber => table.len(),
            n => (from + n as u64 * ROWS).min(table.len()),
        };
        // SAFETY: the contract of `is_shared`.
        let mine = if unsafe { is_shared(scan) } { from } else { end };
        Part { next: from, end: mine, from, all: end.saturating_sub(from) }
    }

    /// The process takes its next records of a shared scan; false: there are none.
    unsafe fn take(&mut self, scan: pg_sys::TableScanDesc) -> bool {
        // SAFETY: the contract of `is_shared`; `rs_parallel` is what `shared_scan` has filled in.
        unsafe {
            if is_shared(scan) {
                (self.next, self.end) = shared_scan::take((*scan).rs_parallel);
            }
        }
        self.next < self.end
    }
}

/// Before a scan: how much progress there will be.
unsafe fn announce(all: u64, progress: bool) {
    if progress {
        // SAFETY: an entry of this process.
        unsafe {
            pg_sys::pgstat_progress_update_param(pg_sys::PROGRESS_SCAN_BLOCKS_TOTAL as i32, all.div_ceil(ROWS) as i64)
        };
    }
}

/// Between two records of a scan: interrupts, and the command's progress.
unsafe fn pause(done: u64, progress: bool) {
    if done % ROWS != 0 {
        return;
    }
    // SAFETY: variables of this process; an interrupt may raise. Progress is an entry of this
    // process.
    unsafe {
        if pg_sys::InterruptPending != 0 {
            pg_sys::ProcessInterrupts();
        }
        if progress {
            pg_sys::pgstat_progress_update_param(pg_sys::PROGRESS_SCAN_BLOCKS_DONE as i32, (done / ROWS) as i64);
        }
    }
}

/// The committed row that a snapshot sees. It is no read of the transaction.
///
/// # Safety
/// A valid MVCC snapshot of this backend, in a transaction that has not written the row.
unsafe fn seen_by(t: &mut Txn, r: RecordRef, snapshot: pg_sys::Snapshot) -> Option<NonNull<Version>> {
    // SAFETY: the snapshot is valid (contract of this function), and its first use has renewed the
    // pin (INV-RETIRE).
    unsafe {
        let seen = xact::snapshot_seen(snapshot);
        visible::live(ok(t.at_snapshot(&PG, r.rec, seen)).map(|v| v.0))
    }
}

/// What makes the values of an index from rows.
struct Former {
    rel: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    estate: *mut pg_sys::EState,
    econtext: *mut pg_sys::ExprContext,
    slot: *mut pg_sys::TupleTableSlot,
    predicate: *mut pg_sys::ExprState,
}

/// The values of an index for a row, and which are NULL.
type Values = ([Datum; pg_sys::INDEX_MAX_KEYS as usize], [bool; pg_sys::INDEX_MAX_KEYS as usize]);

impl Former {
    /// # Safety
    /// An open relation whose rows fit its descriptor, and what describes an index of it. An ERROR
    /// frees what this makes.
    unsafe fn new(rel: pg_sys::Relation, info: *mut pg_sys::IndexInfo) -> Former {
        // SAFETY: `rel` is open and `info` of an index of it (contract of this function). The
        // executor state is new.
        unsafe {
            let estate = pg_sys::CreateExecutorState();
            let econtext = if (*estate).es_per_tuple_exprcontext.is_null() {
                pg_sys::MakePerTupleExprContext(estate)
            } else {
                (*estate).es_per_tuple_exprcontext
            };
            let slot = pg_sys::table_slot_create(rel, std::ptr::null_mut());
            (*econtext).ecxt_scantuple = slot;
            let predicate = pg_sys::ExecPrepareQual((*info).ii_Predicate, estate);
            Former { rel, info, estate, econtext, slot, predicate }
        }
    }

    /// The values of record `n`'s row, whose datums live until the next row; `None`: the index has
    /// none for it.
    ///
    /// # Safety
    /// A version of the record, reached under our pin (INV-RETIRE).
    unsafe fn form(&self, n: u64, version: NonNull<Version>) -> Option<Values> {
        // SAFETY: the parts belong together (`new`), and the version is there (contract of this
        // function).
        unsafe {
            pg_sys::MemoryContextReset((*self.econtext).ecxt_per_tuple_memory);
            tuple::store(self.slot, (*self.rel).rd_id, Tid::Record(n), version.as_ptr());
            if !expr::passes(self.predicate, self.econtext) {
                return None;
            }
            let mut values = [Datum::from(0); pg_sys::INDEX_MAX_KEYS as usize];
            let mut nulls = [false; pg_sys::INDEX_MAX_KEYS as usize];
            pg_sys::FormIndexDatum(self.info, self.slot, self.estate, values.as_mut_ptr(), nulls.as_mut_ptr());
            Some((values, nulls))
        }
    }

    /// Frees what `new` has made.
    unsafe fn end(self) {
        // SAFETY: slot and executor state are of `new`, and end once: `self` is taken.
        unsafe {
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::FreeExecutorState(self.estate);
            (*self.info).ii_ExpressionsState = std::ptr::null_mut();
            (*self.info).ii_PredicateState = std::ptr::null_mut();
        }
    }
}

/// Is the index that is being built a hollow one? A worker of a parallel build may take it for one
/// that its leader fills: then it has no rows, and the leader has all.
unsafe fn is_hollow_build(rel: pg_sys::Relation, index: pg_sys::Relation) -> bool {
    // SAFETY: `rel` and `index` are open, and the table is locked against writers: contract of
    // `build_range_scan`.
    unsafe {
        if parallel::is_worker() {
            return primary::is_to_be_hollow(rel, index);
        }
        primary::begins_hollow(rel, index)
    }
}

/// The leader of a parallel build of a hollow index does it alone: PostgreSQL starts workers before
/// it asks us.
unsafe fn build_hollow_once(
    rel: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    scan: pg_sys::TableScanDesc,
) -> f64 {
    // SAFETY: the contract of `build_range_scan`; `scan` is null or ours to end.
    unsafe {
        let rows = if parallel::is_worker() {
            0.0
        } else {
            hollow::begin_build(rel, index);
            build_hollow(rel, index, info)
        };
        if !scan.is_null() {
            super::scan::end(scan);
        }
        rows
    }
}

/// The build of a hollow index gets no row: what nbtree would do with the rows, the index in memory
/// has done. Returns how many there are. An ERROR for two rows with one key jumps over the frame.
unsafe fn build_hollow(rel: pg_sys::Relation, index: pg_sys::Relation, info: *mut pg_sys::IndexInfo) -> f64 {
    // SAFETY: `rel`, `index` and `info` are open and belong together: contract of
    // `build_range_scan`. The pin keeps the versions (INV-RETIRE), and stored rows fit the
    // descriptor (INV-LAYOUT).
    unsafe {
        let built = primary::build_key(rel, index);
        (*info).ii_BrokenHotChain |= built.has_past;
        let table = rel::info(rel).table;
        let wanted = Wanted::of(rel, std::ptr::null_mut(), false);
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
            if no % 4096 == 0 {
                pgrx::check_for_interrupts!();
            }
            let row = RecordRef::find(table, *no).and_then(|r| wanted.entry(t, r));
            row.is_some_and(|e| e.alive)
        };
        (0..table.len()).filter(alive).count() as f64
    }
}

/// amcheck asks for the rows of a hollow index, whose entries it has not found in the file. So this
/// compares the rows with the one in memory, and hands out none. Returns their number; `None`: it
/// is not amcheck, or the index is not hollow. An ERROR for a difference jumps over the frame.
unsafe fn compare_hollow(rel: pg_sys::Relation, index: pg_sys::Relation, scan: pg_sys::TableScanDesc) -> Option<f64> {
    // SAFETY: `rel` and `index` are open, and `scan` is null or ours to end: contract of
    // `build_range_scan`. `info` and `key` are those of `rel`.
    unsafe {
        if scan.is_null() || !(*scan).rs_parallel.is_null() {
            return None;
        }
        let info = rel::info(rel);
        let key = primary::hollow_key(rel, info, (*index).rd_id)?;
        let rows = primary::check::check(rel, info, key);
        super::scan::end(scan);
        Some(rows as f64)
    }
}

/// The records that an index has entries of: a bit for each.
struct Entries(Vec<u64>);

impl Entries {
    /// # Safety
    /// An open table of ours with `rows` records, and an index of it.
    unsafe fn of(rel: pg_sys::Relation, index: pg_sys::Relation, rows: u64) -> Entries {
        let mut found = Entries(vec![0; rows.div_ceil(64) as usize]);
        // SAFETY: both relations are open (contract of this function). `note_entry` gets `found`,
        // which outlives the call, and has no entry removed.
        unsafe {
            let mut how = compat::index_vacuum_info(rel, index, rows as f64, std::ptr::null_mut());
            let state = (&raw mut found).cast();
            pg_sys::index_bulk_delete(&mut how, std::ptr::null_mut(), Some(note_entry), state);
        }
        found
    }

    fn has(&self, n: u64) -> bool {
        self.0[(n / 64) as usize] & 1 << (n % 64) != 0
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn note_entry(tid: pg_sys::ItemPointer, state: *mut core::ffi::c_void) -> bool {
    // SAFETY: `tid` is an entry's, and `state` what `Entries::of` passes (genam.h:
    // index_bulk_delete).
    unsafe {
        if let Tid::Record(n) = Tid::read(&*tid) {
            let entries = &mut *state.cast::<Entries>();
            if let Some(word) = entries.0.get_mut((n / 64) as usize) {
                *word |= 1 << (n % 64);
            }
        }
    }
    false
}

/// The second scan of CREATE INDEX CONCURRENTLY (see the top). PostgreSQL's own list of the index's
/// TIDs is not used: it was made before the snapshot's first use here.
///
/// # Safety
/// tableam.h's contract of `index_validate_scan`.
#[pg_guard]
pub unsafe extern "C-unwind" fn validate_scan(
    rel: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    snapshot: pg_sys::Snapshot,
    state: *mut pg_sys::ValidateIndexState,
) {
    // INV-DECIDED
    xact::prepared::finish_decided();
    // SAFETY: `rel`, `index` and `info` are open and belong together, and the snapshot is
    // registered (tableam.h: index_validate_scan). Stored rows fit the descriptor (INV-LAYOUT).
    unsafe {
        crate::access::altered::must_fit(rel, (*rel).rd_att);
        let table = rel::info(rel).table;
        xact::snapshot_seen(snapshot);
        let len = table.len();
        let entries = Entries::of(rel, index, len);
        let former = Former::new(rel, info);
        let check = if (*info).ii_Unique {
            pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES
        } else {
            pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO
        };
        announce(len, true);
        for n in 0..len {
            pause(n, true);
            let Some(r) = RecordRef::find(table, n) else { continue };
            let Some(version) = seen_by(xact::txn(), r, snapshot) else { continue };
            (*state).htups += 1.0;
            if entries.has(n) {
                continue;
            }
            let Some((mut values, mut nulls)) = former.form(n, version) else { continue };
            let mut tid = Tid::Record(n).item();
            pg_sys::index_insert(index, values.as_mut_ptr(), nulls.as_mut_ptr(), &mut tid, rel, check, false, info);
            (*state).tups_inserted += 1.0;
        }
        former.end();
    }
}
