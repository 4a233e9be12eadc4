//! CLUSTER: the rows of a table in the order of an index, in new storage.

use crate::pg::compat;
use crate::pg::errors::unsupported;
use crate::pg::local::Local;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

/// The table whose options follow when it has new storage, and the transaction: other extensions
/// may call PostgreSQL's function by themselves.
static EXPECTED: Local<Option<(Oid, u32)>> = Local::new(None);

/// The rows copied between two reports of progress.
const REPORT: u64 = 1024;

/// Runs `f`, which may cluster this table.
pub fn expect(oid: Oid, f: impl FnOnce()) {
    EXPECTED.set(Some((oid, compat::my_lxid())));
    f();
    EXPECTED.set(None);
}

/// Copies the rows of a table into one that has its new storage, in the order of an index. The
/// table is locked: ACCESS EXCLUSIVE.
///
/// # Safety
/// tableam.h's contract of `relation_copy_for_cluster`.
#[pg_guard]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C-unwind" fn copy_for_cluster(
    old: pg_sys::Relation,
    new: pg_sys::Relation,
    index: pg_sys::Relation,
    _sort: bool,
    _oldest: pg_sys::TransactionId,
    _frozen: *mut pg_sys::TransactionId,
    _multi: *mut pg_sys::MultiXactId,
    rows: *mut f64,
    vacuumed: *mut f64,
    recently_dead: *mut f64,
) {
    // SAFETY: the relations are open, and the pointers are of variables of the caller (tableam.h:
    // relation_copy_for_cluster).
    unsafe {
        if index.is_null() || EXPECTED.get() != Some(((*old).rd_id, compat::my_lxid())) {
            unsupported(
                "mixedcc tables support neither CLUSTER nor VACUUM FULL",
                "Use VACUUM: it frees the memory of dead rows.",
            )
        }
        report(pg_sys::PROGRESS_CLUSTER_PHASE, pg_sys::PROGRESS_CLUSTER_PHASE_INDEX_SCAN_HEAP as u64);
        report(pg_sys::PROGRESS_CLUSTER_INDEX_RELID, (*index).rd_id.to_u32().into());
        (*rows, *vacuumed, *recently_dead) = (copy(old, new, index) as f64, 0.0, 0.0);
    }
}

/// So many rows were read, and as many written.
fn copied(rows: u64) {
    report(pg_sys::PROGRESS_CLUSTER_HEAP_TUPLES_SCANNED, rows);
    report(pg_sys::PROGRESS_CLUSTER_HEAP_TUPLES_WRITTEN, rows);
}

fn report(number: u32, value: u64) {
    // SAFETY: stores a value in shared memory, and raises nothing.
    unsafe { pg_sys::pgstat_progress_update_param(number as i32, value as i64) }
}

/// Returns the number of rows. Nothing in this frame needs a drop, so an ERROR may jump over it.
///
/// # Safety
/// A table, a table for its rows, and an index of the first one, all open and locked.
unsafe fn copy(old: pg_sys::Relation, new: pg_sys::Relation, index: pg_sys::Relation) -> u64 {
    // SAFETY: the relations are open (contract of this function). `from` holds a row of the old
    // table when it is read, and `to` is of the same row type: CLUSTER gives the new table a copy
    // of the descriptor, with its dropped columns.
    unsafe {
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        let from = pg_sys::table_slot_create(old, std::ptr::null_mut());
        let to = pg_sys::MakeSingleTupleTableSlot((*new).rd_att, &raw const pg_sys::TTSOpsVirtual);
        let scan = compat::begin_index_scan(old, index, snapshot, 0);
        pg_sys::index_rescan(scan, std::ptr::null_mut(), 0, std::ptr::null_mut(), 0);
        let cid = pg_sys::GetCurrentCommandId(true);
        let mut rows = 0;
        while pg_sys::index_getnext_slot(scan, pg_sys::ScanDirection::ForwardScanDirection, from) {
            pgrx::check_for_interrupts!();
            fill(from, to);
            crate::access::write::rewrite(new, to, cid);
            rows += 1;
            if rows % REPORT == 0 {
                copied(rows);
            }
        }
        copied(rows);
        pg_sys::index_endscan(scan);
        pg_sys::ExecDropSingleTupleTableSlot(to);
        pg_sys::ExecDropSingleTupleTableSlot(from);
        pg_sys::UnregisterSnapshot(snapshot);
        rows
    }
}

/// The row of a slot, with nulls for dropped columns.
///
/// # Safety
/// Two slots of the same columns; the first one holds a row, and the second one is virtual.
unsafe fn fill(from: *mut pg_sys::TupleTableSlot, to: *mut pg_sys::TupleTableSlot) {
    // SAFETY: the slots have room for each column of their descriptors (contract of this function).
    unsafe {
        pg_sys::ExecClearTuple(to);
        pg_sys::slot_getallattrs(from);
        let desc = (*to).tts_tupleDescriptor;
        for i in 0..(*desc).natts as usize {
            let dropped = compat::attribute(desc, i).attisdropped;
            *(*to).tts_isnull.add(i) = dropped || *(*from).tts_isnull.add(i);
            *(*to).tts_values.add(i) = if dropped { pg_sys::Datum::from(0) } else { *(*from).tts_values.add(i) };
        }
        pg_sys::ExecStoreVirtualTuple(to);
    }
}
