//! The executor's run hook, and how it knows tables and rights.

use crate::pg::local::Local;
use pgrx::pg_sys;

/// Runs a statement, or returns false: it is the executor's.
type Run = unsafe fn(*mut pg_sys::QueryDesc, pg_sys::ScanDirection::Type, u64, bool) -> bool;

/// Of the process, written when the library is loaded: what runs statements, and the hook before
/// ours.
static RUN: Local<(Option<Run>, pg_sys::ExecutorRun_hook_type)> = Local::new((None, None));
/// What to call before each run, and after it if there was no ERROR.
static AROUND: Local<Option<(fn(), fn())>> = Local::new(None);

mod raw {
    use pgrx::pg_sys;
    extern "C-unwind" {
        // Without a guard: an ERROR keeps its context lines.
        pub fn standard_ExecutorRun(
            q: *mut pg_sys::QueryDesc,
            direction: pg_sys::ScanDirection::Type,
            count: u64,
            #[cfg(not(feature = "pg18"))] execute_once: bool,
        );
        pub fn ExecInsertIndexTuples(
            info: *mut pg_sys::ResultRelInfo,
            slot: *mut pg_sys::TupleTableSlot,
            estate: *mut pg_sys::EState,
            update: bool,
            no_dup_err: bool,
            spec_conflict: *mut bool,
            arbiters: *mut pg_sys::List,
            #[cfg(not(feature = "pg15"))] only_summarizing: bool,
        ) -> *mut pg_sys::List;
        pub fn index_beginscan(
            heap: pg_sys::Relation,
            index: pg_sys::Relation,
            snapshot: pg_sys::Snapshot,
            #[cfg(feature = "pg18")] instrument: *mut core::ffi::c_void,
            nkeys: core::ffi::c_int,
            norderbys: core::ffi::c_int,
        ) -> pg_sys::IndexScanDesc;
    }
}

/// Installs the hook. Returns that of another library.
///
/// # Safety
/// `_PG_init` runs alone.
pub unsafe fn init_run(run: Run, around: (fn(), fn())) -> Option<*const core::ffi::c_void> {
    // SAFETY: `_PG_init` runs alone (contract of this function), so the hook has no caller yet.
    unsafe {
        AROUND.set(Some(around));
        RUN.set((Some(run), pg_sys::ExecutorRun_hook));
        pg_sys::ExecutorRun_hook = Some(hook);
        RUN.get().1.map(|f| f as *const _)
    }
}

fn around() -> (fn(), fn()) {
    AROUND.get().unwrap_or((|| (), || ()))
}

#[cfg(not(feature = "pg18"))]
unsafe extern "C-unwind" fn hook(
    q: *mut pg_sys::QueryDesc,
    direction: pg_sys::ScanDirection::Type,
    count: u64,
    execute_once: bool,
) {
    // SAFETY: `q` is a started statement (contract of ExecutorRun_hook). The calls may raise:
    // nothing that needs a drop is alive in this frame.
    unsafe {
        let (run, previous) = RUN.get();
        let (begin, end) = around();
        begin();
        if !run.is_some_and(|run| run(q, direction, count, execute_once)) {
            match previous {
                Some(prev) => prev(q, direction, count, execute_once),
                None => raw::standard_ExecutorRun(q, direction, count, execute_once),
            }
        }
        end();
    }
}

/// From 18 on a statement knows by itself whether it ran before (QueryDesc.already_executed).
#[cfg(feature = "pg18")]
unsafe extern "C-unwind" fn hook(q: *mut pg_sys::QueryDesc, direction: pg_sys::ScanDirection::Type, count: u64) {
    // SAFETY: `q` is a started statement (contract of ExecutorRun_hook). The calls may raise:
    // nothing that needs a drop is alive in this frame.
    unsafe {
        let (run, previous) = RUN.get();
        let (begin, end) = around();
        begin();
        if !run.is_some_and(|run| run(q, direction, count, false)) {
            match previous {
                Some(prev) => prev(q, direction, count),
                None => raw::standard_ExecutorRun(q, direction, count),
            }
        }
        end();
    }
}

/// Has the current user all rights that a statement needs?
///
/// # Safety
/// A planned statement.
pub unsafe fn has_rights(stmt: *mut pg_sys::PlannedStmt) -> bool {
    // SAFETY: `stmt` is a planned statement (contract of this function); its range table is a list.
    #[cfg(feature = "pg15")]
    unsafe {
        pg_sys::ExecCheckRTPerms((*stmt).rtable, false)
    }
    // SAFETY: `stmt` is a planned statement (contract of this function); its range table and rights
    // are lists.
    #[cfg(not(feature = "pg15"))]
    unsafe {
        pg_sys::ExecCheckPermissions((*stmt).rtable, (*stmt).permInfos, false)
    }
}

/// The tables of a statement, and the rights that it needs on them: two lists of the statement.
#[derive(Clone, Copy)]
pub struct Tables {
    /// The range table.
    pub rtable: *mut pg_sys::List,
    /// From 16 on; before, the range table itself says it. An error's DETAIL shows only columns
    /// that the user may see by these.
    #[cfg(not(feature = "pg15"))]
    permissions: *mut pg_sys::List,
}

impl Tables {
    /// Copies of a statement's lists, in the current memory context.
    ///
    /// # Safety
    /// A planned statement.
    pub unsafe fn copy_of(stmt: *mut pg_sys::PlannedStmt) -> Tables {
        // SAFETY: `stmt` is a planned statement (contract of this function), and its lists are of
        // nodes that can be copied.
        unsafe {
            Tables {
                rtable: pg_sys::copyObjectImpl((*stmt).rtable.cast()).cast(),
                #[cfg(not(feature = "pg15"))]
                permissions: pg_sys::copyObjectImpl((*stmt).permInfos.cast()).cast(),
            }
        }
    }
}

/// Gives an executor state the tables of a statement, all of which are used.
///
/// # Safety
/// A new state, and tables that outlive it. The user's rights are not checked.
unsafe fn init_range_table(estate: *mut pg_sys::EState, tables: Tables) {
    // SAFETY: `estate` is new, and `tables` outlives it (contract of this function).
    #[cfg(feature = "pg15")]
    unsafe {
        pg_sys::ExecInitRangeTable(estate, tables.rtable)
    }
    // SAFETY: `estate` is new, and `tables` outlives it (contract of this function).
    #[cfg(any(feature = "pg16", feature = "pg17"))]
    unsafe {
        pg_sys::ExecInitRangeTable(estate, tables.rtable, tables.permissions)
    }
    // SAFETY: `estate` is new, and `tables` outlives it (contract of this function); the set is a
    // new one.
    #[cfg(feature = "pg18")]
    unsafe {
        let n = pg_sys::list_length(tables.rtable);
        let all = if n == 0 { std::ptr::null_mut() } else { pg_sys::bms_add_range(std::ptr::null_mut(), 1, n) };
        pg_sys::ExecInitRangeTable(estate, tables.rtable, tables.permissions, all)
    }
}

/// Raises the error of a row that does not fulfil the constraints of its table.
///
/// # Safety
/// An open table, its number in the range table, and a row of it. An ERROR jumps over the caller's
/// frame.
pub unsafe fn check_constraints(rel: pg_sys::Relation, rti: u32, tables: Tables, slot: *mut pg_sys::TupleTableSlot) {
    // SAFETY: `rel` is open, `rti` is its number, and `slot` has a row of it (contract of this
    // function). `info` and `estate` outlive the check. `ExecConstraints` may raise: nothing that
    // needs a drop is alive in this frame.
    unsafe {
        let estate = pg_sys::CreateExecutorState();
        init_range_table(estate, tables);
        let mut info = pg_sys::ResultRelInfo { type_: pg_sys::NodeTag::T_ResultRelInfo, ..Default::default() };
        pg_sys::InitResultRelInfo(&mut info, rel, rti, std::ptr::null_mut(), 0);
        // An ERROR keeps the names of table and constraint.
        crate::pg::raw::ExecConstraints(&mut info, slot, estate);
        pg_sys::FreeExecutorState(estate);
    }
}

/// The same, of no statement. An error's DETAIL shows the columns that the user may see by the
/// rights on the whole table and its columns alone.
///
/// # Safety
/// As for [`check_constraints`].
pub unsafe fn check_constraints_alone(rel: pg_sys::Relation, slot: *mut pg_sys::TupleTableSlot) {
    // SAFETY: `rel` is open, and `slot` has a row of it (contract of this function). 0: it is in no
    // range table. Both outlive the check; nothing that needs a drop is alive in this frame.
    unsafe {
        let estate = pg_sys::CreateExecutorState();
        let mut info = pg_sys::ResultRelInfo { type_: pg_sys::NodeTag::T_ResultRelInfo, ..Default::default() };
        pg_sys::InitResultRelInfo(&mut info, rel, 0, std::ptr::null_mut(), 0);
        crate::pg::raw::ExecConstraints(&mut info, slot, estate);
        pg_sys::FreeExecutorState(estate);
    }
}

/// Makes the index entries of a row that was inserted. An ERROR jumps over the caller's frame.
///
/// # Safety
/// The row's TID is set; the indexes are open.
pub unsafe fn insert_index_entries(
    info: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    estate: *mut pg_sys::EState,
) {
    // SAFETY: the row's TID is set, and the indexes are open (contract of this function).
    // `ExecInsertIndexTuples` may raise: nothing that needs a drop is alive in this frame.
    unsafe {
        let (no_flag, no_list) = (std::ptr::null_mut(), std::ptr::null_mut());
        #[cfg(feature = "pg15")]
        raw::ExecInsertIndexTuples(info, slot, estate, false, false, no_flag, no_list);
        #[cfg(not(feature = "pg15"))]
        raw::ExecInsertIndexTuples(info, slot, estate, false, false, no_flag, no_list, false);
    }
}

/// Begins a scan of an index by so many keys. An ERROR jumps over the caller's frame.
///
/// # Safety
/// A table and an index of it, open, and a snapshot that lives as long as the scan.
pub unsafe fn begin_index_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    keys: i32,
) -> pg_sys::IndexScanDesc {
    // SAFETY: `table` and `index` are open, and `snapshot` outlives the scan (contract of this
    // function).
    #[cfg(not(feature = "pg18"))]
    unsafe {
        raw::index_beginscan(table, index, snapshot, keys, 0)
    }
    // SAFETY: `table` and `index` are open, and `snapshot` outlives the scan (contract of this
    // function). Null is no instrument: nothing counts the searches.
    #[cfg(feature = "pg18")]
    unsafe {
        raw::index_beginscan(table, index, snapshot, std::ptr::null_mut(), keys, 0)
    }
}

/// The same, but an ERROR unwinds: the caller's frame may own something.
///
/// # Safety
/// As for [`begin_index_scan`].
pub unsafe fn begin_guarded_index_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    keys: i32,
) -> pg_sys::IndexScanDesc {
    // SAFETY: `table` and `index` are open, and `snapshot` outlives the scan (contract of this
    // function).
    #[cfg(not(feature = "pg18"))]
    unsafe {
        pg_sys::index_beginscan(table, index, snapshot, keys, 0)
    }
    // SAFETY: `table` and `index` are open, and `snapshot` outlives the scan (contract of this
    // function). Null is no instrument: nothing counts the searches.
    #[cfg(feature = "pg18")]
    unsafe {
        pg_sys::index_beginscan(table, index, snapshot, std::ptr::null_mut(), keys, 0)
    }
}

/// A statement starts: no run has processed rows yet.
#[inline]
pub fn clear_processed(estate: &mut pg_sys::EState) {
    estate.es_processed = 0;
    #[cfg(not(feature = "pg15"))]
    {
        estate.es_total_processed = 0;
    }
}

/// A run of the statement has ended. Other libraries count the rows of all its runs.
#[inline]
#[cfg_attr(feature = "pg15", allow(unused_variables))]
pub fn add_processed(estate: &mut pg_sys::EState) {
    #[cfg(not(feature = "pg15"))]
    {
        estate.es_total_processed += estate.es_processed;
    }
}
