//! Callbacks of the access method whose arguments differ, on top of version-neutral ones.

use super::Storage;
use pgrx::pg_sys;
use pgrx::prelude::*;

/// The callbacks that differ between versions, with arguments that do not.
pub trait Callbacks {
    /// A relation gets a storage.
    ///
    /// # Safety
    /// The contract of tableam.h.
    unsafe fn set_new_storage(rel: pg_sys::Relation, storage: &Storage, persistence: core::ffi::c_char);
    /// The rows of a relation move into a storage in another tablespace.
    ///
    /// # Safety
    /// The contract of tableam.h.
    unsafe fn copy_data(rel: pg_sys::Relation, storage: &Storage);
    /// A row is updated. `moved`: it needs entries in all indexes.
    ///
    /// # Safety
    /// The contract of tableam.h.
    #[allow(clippy::too_many_arguments)]
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
    ) -> pg_sys::TM_Result::Type;
    /// ANALYZE looks at a block; false: there is none.
    ///
    /// # Safety
    /// A scan of the access method.
    unsafe fn sample_block(scan: pg_sys::TableScanDesc, block: pg_sys::BlockNumber) -> bool;
    /// A bitmap scan comes to a block, of which it wants rows at these offsets, or all of them.
    ///
    /// # Safety
    /// A scan of the access method.
    unsafe fn set_page(
        scan: pg_sys::TableScanDesc,
        block: pg_sys::BlockNumber,
        offsets: Option<&[pg_sys::OffsetNumber]>,
    ) -> bool;
    /// The next row of that block.
    ///
    /// # Safety
    /// A scan of the access method.
    unsafe fn next_of_block(scan: pg_sys::TableScanDesc, slot: *mut pg_sys::TupleTableSlot) -> bool;
}

/// What an update says of the indexes.
#[cfg(feature = "pg15")]
type UpdateIndexes = bool;
#[cfg(not(feature = "pg15"))]
type UpdateIndexes = pg_sys::TU_UpdateIndexes::Type;

/// The access method's routine with the callbacks that differ; the others are to be added.
pub fn routine<C: Callbacks>() -> pg_sys::TableAmRoutine {
    pg_sys::TableAmRoutine {
        type_: pg_sys::NodeTag::T_TableAmRoutine,
        #[cfg(feature = "pg15")]
        relation_set_new_filenode: Some(set_new_storage::<C>),
        #[cfg(not(feature = "pg15"))]
        relation_set_new_filelocator: Some(set_new_storage::<C>),
        relation_copy_data: Some(copy_data::<C>),
        tuple_update: Some(tuple_update::<C>),
        scan_analyze_next_block: Some(analyze_next_block::<C>),
        #[cfg(not(feature = "pg18"))]
        scan_bitmap_next_block: Some(bitmap_next_block::<C>),
        scan_bitmap_next_tuple: Some(bitmap_next_tuple::<C>),
        ..Default::default()
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn set_new_storage<C: Callbacks>(
    rel: pg_sys::Relation,
    storage: *const Storage,
    persistence: core::ffi::c_char,
    freeze_xid: *mut pg_sys::TransactionId,
    minmulti: *mut pg_sys::MultiXactId,
) {
    // SAFETY: `rel` is open, and the other pointers are the caller's variables (tableam.h). Rows of
    // ours hold no transaction ids, but pg_class needs some that age, as heap's do: those that are
    // invalid count as infinitely old wherever ages are watched.
    unsafe {
        *freeze_xid = pg_sys::RecentXmin;
        *minmulti = pg_sys::GetOldestMultiXactId();
        C::set_new_storage(rel, &*storage, persistence);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn copy_data<C: Callbacks>(rel: pg_sys::Relation, storage: *const Storage) {
    // SAFETY: `rel` is open and locked exclusively, and the storage is the caller's (tableam.h:
    // relation_copy_data).
    unsafe { C::copy_data(rel, &*storage) }
}

#[pg_guard]
#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn tuple_update<C: Callbacks>(
    rel: pg_sys::Relation,
    tid: pg_sys::ItemPointer,
    slot: *mut pg_sys::TupleTableSlot,
    cid: pg_sys::CommandId,
    snapshot: pg_sys::Snapshot,
    crosscheck: pg_sys::Snapshot,
    _wait: bool,
    tmfd: *mut pg_sys::TM_FailureData,
    lockmode: *mut pg_sys::LockTupleMode::Type,
    update_indexes: *mut UpdateIndexes,
) -> pg_sys::TM_Result::Type {
    // SAFETY: `rel` is open, `slot` has the new row, and the other pointers are the caller's
    // variables (tableam.h: tuple_update). `C::update` gets them unchanged.
    unsafe {
        let mut moved = false;
        let result = C::update(rel, tid, slot, cid, snapshot, crosscheck, tmfd, lockmode, &mut moved);
        #[cfg(feature = "pg15")]
        {
            *update_indexes = moved;
        }
        // A row that stays in place has changed no column of any index, summarizing ones included.
        #[cfg(not(feature = "pg15"))]
        {
            use pg_sys::TU_UpdateIndexes::{TU_All, TU_None};
            *update_indexes = if moved { TU_All } else { TU_None };
        }
        result
    }
}

#[cfg(any(feature = "pg15", feature = "pg16"))]
#[pg_guard]
unsafe extern "C-unwind" fn analyze_next_block<C: Callbacks>(
    scan: pg_sys::TableScanDesc,
    block: pg_sys::BlockNumber,
    _strategy: pg_sys::BufferAccessStrategy,
) -> bool {
    // SAFETY: `scan` is what our scan_begin returned (tableam.h). False passes over the block.
    unsafe { C::sample_block(scan, block) }
}

/// From 17 on false ends ANALYZE. `read_stream_next_block` only names a block: it reads nothing.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
#[pg_guard]
unsafe extern "C-unwind" fn analyze_next_block<C: Callbacks>(
    scan: pg_sys::TableScanDesc,
    stream: *mut pg_sys::ReadStream,
) -> bool {
    // SAFETY: `scan` is what our scan_begin returned (tableam.h), and `stream` is ANALYZE's.
    unsafe {
        loop {
            let mut strategy = std::ptr::null_mut();
            let block = pg_sys::read_stream_next_block(stream, &mut strategy);
            if block == pg_sys::InvalidBlockNumber {
                return false;
            }
            if C::sample_block(scan, block) {
                return true;
            }
        }
    }
}

#[cfg(not(feature = "pg18"))]
#[pg_guard]
unsafe extern "C-unwind" fn bitmap_next_block<C: Callbacks>(
    scan: pg_sys::TableScanDesc,
    page: *mut pg_sys::TBMIterateResult,
) -> bool {
    // SAFETY: `scan` is what our scan_begin returned (tableam.h). The page has `ntuples` offsets,
    // or is lossy (tidbitmap.h).
    unsafe {
        let n = (*page).ntuples;
        let offsets = if n < 0 { None } else { Some((*page).offsets.as_slice(n as usize)) };
        C::set_page(scan, (*page).blockno, offsets)
    }
}

#[cfg(not(feature = "pg18"))]
#[pg_guard]
unsafe extern "C-unwind" fn bitmap_next_tuple<C: Callbacks>(
    scan: pg_sys::TableScanDesc,
    _page: *mut pg_sys::TBMIterateResult,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: `scan` is what our scan_begin returned (tableam.h), and `slot` one of its table.
    unsafe { C::next_of_block(scan, slot) }
}

/// From 18 on the access method takes the pages of the bitmap itself, and counts them for EXPLAIN.
#[cfg(feature = "pg18")]
#[pg_guard]
unsafe extern "C-unwind" fn bitmap_next_tuple<C: Callbacks>(
    scan: pg_sys::TableScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
    recheck: *mut bool,
    lossy_pages: *mut u64,
    exact_pages: *mut u64,
) -> bool {
    // SAFETY: `scan` is what our scan_begin returned (tableam.h), and the executor has begun its
    // iterator. The buffer has room for as many offsets as are asked for.
    unsafe {
        loop {
            if C::next_of_block(scan, slot) {
                return true;
            }
            let mut page = pg_sys::TBMIterateResult::default();
            if !pg_sys::tbm_iterate(&raw mut (*scan).st.rs_tbmiterator, &mut page) {
                return false;
            }
            *recheck = page.recheck;
            if page.lossy {
                *lossy_pages += 1;
                C::set_page(scan, page.blockno, None);
            } else {
                *exact_pages += 1;
                let mut offsets = [0; pg_sys::BLCKSZ as usize / 16];
                let n = pg_sys::tbm_extract_page_tuple(&mut page, offsets.as_mut_ptr(), offsets.len() as u32);
                C::set_page(scan, page.blockno, Some(&offsets[..n as usize]));
            }
        }
    }
}

/// What EXPLAIN does with a query when no hook is there: ExplainOneQuery in explain.c.
///
/// # Safety
/// The contract of `ExplainOneQuery_hook`.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
pub unsafe fn explain_query(
    query: *mut pg_sys::Query,
    options: i32,
    into: *mut pg_sys::IntoClause,
    es: *mut pg_sys::ExplainState,
    text: *const core::ffi::c_char,
    params: pg_sys::ParamListInfo,
    env: *mut pg_sys::QueryEnvironment,
) {
    // SAFETY: the arguments are those of ExplainOneQuery_hook (contract of this function).
    unsafe { pg_sys::standard_ExplainOneQuery(query, options, into, es, text, params, env) }
}

/// What EXPLAIN does with a query when no hook is there: ExplainOneQuery in explain.c.
///
/// # Safety
/// The contract of `ExplainOneQuery_hook`.
#[cfg(any(feature = "pg15", feature = "pg16"))]
pub unsafe fn explain_query(
    query: *mut pg_sys::Query,
    options: i32,
    into: *mut pg_sys::IntoClause,
    es: *mut pg_sys::ExplainState,
    text: *const core::ffi::c_char,
    params: pg_sys::ParamListInfo,
    env: *mut pg_sys::QueryEnvironment,
) {
    // SAFETY: the arguments are those of ExplainOneQuery_hook (contract of this function).
    unsafe {
        let before = pg_sys::pgBufferUsage;
        let start = std::time::Instant::now();
        let plan = pg_sys::pg_plan_query(query, text, options, params);
        let spent = start.elapsed();
        #[cfg(feature = "pg16")]
        let spent = pg_sys::instr_time { ticks: spent.as_nanos() as i64 };
        #[cfg(feature = "pg15")]
        let spent = pg_sys::instr_time { tv_sec: spent.as_secs() as i64, tv_nsec: spent.subsec_nanos() as i64 };
        let mut buffers = pg_sys::BufferUsage::default();
        pg_sys::BufferUsageAccumDiff(&mut buffers, &raw const pg_sys::pgBufferUsage, &before);
        let buffers = if (*es).buffers { &raw const buffers } else { std::ptr::null() };
        pg_sys::ExplainOnePlan(plan, into, es, text, params, env, &spent, buffers);
    }
}

/// Notes the bounds of a TID range scan where PostgreSQL expects them.
///
/// # Safety
/// A scan descriptor.
pub unsafe fn set_tid_bounds(scan: pg_sys::TableScanDesc, min: pg_sys::ItemPointerData, max: pg_sys::ItemPointerData) {
    // SAFETY: `scan` is a scan descriptor (contract of this function).
    #[cfg(not(feature = "pg18"))]
    unsafe {
        (*scan).rs_mintid = min;
        (*scan).rs_maxtid = max;
    }
    // SAFETY: `scan` is a scan descriptor (contract of this function); a scan of TIDs uses this
    // part of `st`.
    #[cfg(feature = "pg18")]
    unsafe {
        (*scan).st.tidrange.rs_mintid = min;
        (*scan).st.tidrange.rs_maxtid = max;
    }
}

/// Adds a row to the bitmap of an index scan, which has met the scan's keys.
///
/// # Safety
/// A valid bitmap.
pub unsafe fn add_to_bitmap(bitmap: *mut pg_sys::TIDBitmap, mut tid: pg_sys::ItemPointerData) {
    // SAFETY: `bitmap` is valid (contract of this function).
    unsafe { pg_sys::tbm_add_tuples(bitmap, &mut tid, 1, false) }
}

/// Adds a block to the bitmap of an index scan: its rows are to be looked at again.
///
/// # Safety
/// A valid bitmap.
pub unsafe fn add_block_to_bitmap(bitmap: *mut pg_sys::TIDBitmap, block: pg_sys::BlockNumber) {
    // SAFETY: `bitmap` is valid (contract of this function).
    unsafe { pg_sys::tbm_add_page(bitmap, block) }
}

/// Keeps a bitmap scan from prefetching blocks: ours are not in a file. From 18 on the access
/// method alone would prefetch.
///
/// # Safety
/// A node whose scan has not read anything.
pub unsafe fn without_prefetch(scan: *mut pg_sys::BitmapHeapScanState) {
    // SAFETY: `scan` is a node of the executor whose scan has read nothing (contract of this
    // function).
    #[cfg(not(feature = "pg18"))]
    unsafe {
        (*scan).prefetch_maximum = 0
    };
    #[cfg(feature = "pg18")]
    let _ = scan;
}
