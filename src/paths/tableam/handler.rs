//! The access method's handler: wires the callbacks, and nothing else.

use crate::access::{deferred, write};
use crate::paths::tableam::{
    analyze, cluster, dml, fetch, index, relation, sample, scan, shared_scan, tablespace, vacuum,
};
use crate::pg::{compat, Tid};
use pgrx::pg_sys;
use std::sync::OnceLock;

struct Routine(pg_sys::TableAmRoutine);
// SAFETY: a table of function pointers, never changed.
unsafe impl Sync for Routine {}
// SAFETY: a table of function pointers, never changed: any thread may have it.
unsafe impl Send for Routine {}

static ROUTINE: OnceLock<Routine> = OnceLock::new();

/// The table of callbacks (tableam.h).
pub fn routine() -> &'static pg_sys::TableAmRoutine {
    &ROUTINE.get_or_init(|| Routine(make())).0
}

struct Method;

impl compat::Callbacks for Method {
    unsafe fn set_new_storage(rel: pg_sys::Relation, storage: &compat::Storage, persistence: core::ffi::c_char) {
        // SAFETY: `rel` and `storage` are those of tableam.h's callback: contract of
        // `Callbacks::set_new_storage`.
        unsafe { relation::set_new_storage(rel, storage, persistence) }
    }
    unsafe fn copy_data(rel: pg_sys::Relation, storage: &compat::Storage) {
        // SAFETY: `rel` and `storage` are those of tableam.h's callback: contract of
        // `Callbacks::copy_data`.
        unsafe { tablespace::copy_data(rel, storage) }
    }
    unsafe fn update(
        rel: pg_sys::Relation,
        tid: pg_sys::ItemPointer,
        slot: *mut pg_sys::TupleTableSlot,
        cid: pg_sys::CommandId,
        snapshot: pg_sys::Snapshot,
        crosscheck: pg_sys::Snapshot,
        tmfd: *mut pg_sys::TM_FailureData,
        lockmode: *mut pg_sys::LockTupleMode::Type,
        moved: &mut bool,
    ) -> pg_sys::TM_Result::Type {
        // SAFETY: the arguments are those of tuple_update in tableam.h: contract of
        // `Callbacks::update`.
        unsafe {
            deferred::before_look((*rel).rd_id);
            write::update(rel, Tid::read(&*tid), slot, cid, snapshot, crosscheck, tmfd, lockmode, moved)
        }
    }
    unsafe fn sample_block(scan: pg_sys::TableScanDesc, block: pg_sys::BlockNumber) -> bool {
        // SAFETY: a scan of the access method was made by `scan::begin`: contract of
        // `Callbacks::sample_block`.
        unsafe { analyze::sample_block(scan.cast(), block) }
    }
    unsafe fn set_page(
        scan: pg_sys::TableScanDesc,
        block: pg_sys::BlockNumber,
        offsets: Option<&[pg_sys::OffsetNumber]>,
    ) -> bool {
        // SAFETY: a scan of the access method was made by `scan::begin`: contract of
        // `Callbacks::set_page`.
        unsafe { scan::set_page(scan.cast(), block, offsets) }
    }
    unsafe fn next_of_block(scan: pg_sys::TableScanDesc, slot: *mut pg_sys::TupleTableSlot) -> bool {
        // SAFETY: a scan of the access method was made by `scan::begin`: contract of
        // `Callbacks::next_of_block`.
        unsafe { scan::next_of_block(scan.cast(), slot) }
    }
}

fn make() -> pg_sys::TableAmRoutine {
    pg_sys::TableAmRoutine {
        slot_callbacks: Some(relation::slot_callbacks),
        scan_begin: Some(scan::begin),
        scan_end: Some(scan::end),
        scan_rescan: Some(scan::rescan),
        scan_getnextslot: Some(scan::next),
        scan_set_tidrange: Some(scan::set_tidrange),
        scan_getnextslot_tidrange: Some(scan::next_in_tidrange),
        parallelscan_estimate: Some(shared_scan::estimate),
        parallelscan_initialize: Some(shared_scan::initialize),
        parallelscan_reinitialize: Some(shared_scan::reinitialize),
        index_fetch_begin: Some(fetch::begin),
        index_fetch_reset: Some(fetch::reset),
        index_fetch_end: Some(fetch::end),
        index_fetch_tuple: Some(fetch::tuple),
        tuple_fetch_row_version: Some(fetch::row_version),
        tuple_tid_valid: Some(fetch::tid_valid),
        tuple_get_latest_tid: Some(fetch::latest_tid),
        tuple_satisfies_snapshot: Some(fetch::satisfies),
        index_delete_tuples: Some(vacuum::index_delete_tuples),
        tuple_insert: Some(dml::insert),
        tuple_insert_speculative: Some(dml::insert_speculative),
        tuple_complete_speculative: Some(dml::complete_speculative),
        multi_insert: Some(dml::multi_insert),
        tuple_delete: Some(dml::delete),
        tuple_lock: Some(dml::tuple_lock),
        finish_bulk_insert: None,
        relation_nontransactional_truncate: Some(relation::nontransactional_truncate),
        relation_copy_for_cluster: Some(cluster::copy_for_cluster),
        relation_vacuum: Some(vacuum::vacuum),
        scan_analyze_next_tuple: Some(analyze::next_tuple),
        index_build_range_scan: Some(index::build_range_scan),
        index_validate_scan: Some(index::validate_scan),
        relation_size: Some(relation::size),
        relation_needs_toast_table: Some(relation::needs_toast_table),
        relation_toast_am: Some(relation::toast_method),
        relation_fetch_toast_slice: None,
        relation_estimate_size: Some(relation::estimate_size),
        scan_sample_next_block: Some(sample::next_block),
        scan_sample_next_tuple: Some(sample::next_tuple),
        ..compat::routine::<Method>()
    }
}

/// `mixedcc.handler(internal)`.
#[no_mangle]
pub extern "C-unwind" fn mixedcc_handler(_: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    pg_sys::Datum::from(std::ptr::from_ref(routine()))
}

/// The calling convention of the above.
#[no_mangle]
pub extern "C" fn pg_finfo_mixedcc_handler() -> &'static pg_sys::Pg_finfo_record {
    const INFO: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &INFO
}
