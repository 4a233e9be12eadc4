//! The executor's run hook, and how it knows tables and rights.

use pgrx::pg_sys;

/// Runs a statement, or returns false: it is the executor's.
type Run = unsafe fn(*mut pg_sys::QueryDesc, pg_sys::ScanDirection::Type, u64, bool) -> bool;

static mut PREV: pg_sys::ExecutorRun_hook_type = None;
static mut RUN: Option<Run> = None;

mod raw {
    use pgrx::pg_sys;
    extern "C-unwind" {
        // Without a guard: an ERROR keeps its context lines.
        pub fn standard_ExecutorRun(
            q: *mut pg_sys::QueryDesc,
            direction: pg_sys::ScanDirection::Type,
            count: u64,
            execute_once: bool,
        );
        pub fn ExecInsertIndexTuples(
            info: *mut pg_sys::ResultRelInfo,
            slot: *mut pg_sys::TupleTableSlot,
            estate: *mut pg_sys::EState,
            update: bool,
            no_dup_err: bool,
            spec_conflict: *mut bool,
            arbiters: *mut pg_sys::List,
        ) -> *mut pg_sys::List;
    }
}

/// Installs the hook. True if another library has one.
///
/// # Safety
/// `_PG_init` runs alone.
pub unsafe fn init_run(run: Run) -> bool {
    // SAFETY: the caller's.
    unsafe {
        PREV = pg_sys::ExecutorRun_hook;
        RUN = Some(run);
        pg_sys::ExecutorRun_hook = Some(hook);
        (*(&raw const PREV)).is_some()
    }
}

unsafe extern "C-unwind" fn hook(
    q: *mut pg_sys::QueryDesc,
    direction: pg_sys::ScanDirection::Type,
    count: u64,
    execute_once: bool,
) {
    // SAFETY: the hook's contract; nothing here needs to be dropped.
    unsafe {
        if RUN.is_some_and(|run| run(q, direction, count, execute_once)) {
            return;
        }
        match PREV {
            Some(prev) => prev(q, direction, count, execute_once),
            None => raw::standard_ExecutorRun(q, direction, count, execute_once),
        }
    }
}

/// Has the current user all rights that a statement needs?
///
/// # Safety
/// A range table.
pub unsafe fn has_rights(rtable: *mut pg_sys::List) -> bool {
    // SAFETY: the caller's.
    unsafe { pg_sys::ExecCheckRTPerms(rtable, false) }
}

/// Raises the error of a row that does not fulfil the constraints of its table.
///
/// # Safety
/// An open table, its number in the range table, and a row of it. An ERROR jumps over the caller's
/// frame.
pub unsafe fn check_constraints(
    rel: pg_sys::Relation,
    rti: u32,
    rtable: *mut pg_sys::List,
    slot: *mut pg_sys::TupleTableSlot,
) {
    // SAFETY: the caller's. The state is freed with the statement.
    unsafe {
        let estate = pg_sys::CreateExecutorState();
        pg_sys::ExecInitRangeTable(estate, rtable);
        let mut info = pg_sys::ResultRelInfo { type_: pg_sys::NodeTag::T_ResultRelInfo, ..Default::default() };
        pg_sys::InitResultRelInfo(&mut info, rel, rti, std::ptr::null_mut(), 0);
        // An ERROR keeps the names of table and constraint.
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
    // SAFETY: the caller's.
    unsafe {
        let (no_flag, no_list) = (std::ptr::null_mut(), std::ptr::null_mut());
        raw::ExecInsertIndexTuples(info, slot, estate, false, false, no_flag, no_list);
    }
}
