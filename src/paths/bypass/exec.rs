//! States of executions: what stands in for the executor's state.

use super::agg;
use super::cache;
use super::indexes;
use super::program::Program;
use crate::pg::local::Local;
use crate::pg::{self, compat};
use crate::state::xact;
use pgrx::pg_sys::{self, CmdType, EState, NodeTag, PlanState};

/// The state of an execution. A program keeps one that is not in use.
#[repr(C)]
pub struct Exec {
    /// What callers see of the executor's state (row count), and other libraries' hooks.
    pub estate: EState,
    /// What others see as the tree of plan nodes' states: nodes of the right kinds that have
    /// nothing in them. The program.
    pub program: *mut Program,
    /// The tree.
    tree: *mut PlanState,
    /// Nesting depth of the subtransaction to which it belongs.
    level: u32,
    /// Has it run?
    pub done: bool,
    /// Does its receiver wait to be started, until the statement is sure to run here?
    pub waits: bool,
    /// Has it a query level of triggers (INV-BYPASS-QUEUE)?
    pub queues: bool,
    /// The table's cache entry, which has a reference that no resource owner knows while the
    /// statement runs, and before, if a portal has started it; or null.
    pinned: pg_sys::Relation,
}

/// Of statements: states that are in use.
static USED: Local<Vec<*mut Exec>> = Local::new(Vec::new());

fn used() -> &'static mut Vec<*mut Exec> {
    // SAFETY: one thread, and no caller keeps the reference over a call that may come back here.
    unsafe { USED.get_mut() }
}

/// What `ExecProcNode` of our nodes is: it tells them from the executor's.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn not_a_node(_ps: *mut PlanState) -> *mut pg_sys::TupleTableSlot {
    pgrx::error!("a statement that mixedcc runs without the executor's nodes was run by them")
}

/// The state of a statement that the bypass has started.
///
/// # Safety
/// A valid query descriptor.
#[inline]
pub unsafe fn of(q: *mut pg_sys::QueryDesc) -> Option<*mut Exec> {
    // SAFETY: `q` is valid: contract of this function. Only `make` sets `not_a_node` in a tree, and
    // `begin` stores that tree together with the state of ours.
    unsafe {
        let ps = (*q).planstate;
        let ours = !ps.is_null() && (*ps).ExecProcNode.map(|f| f as usize) == Some(not_a_node as *const () as usize);
        ours.then(|| (*q).estate.cast())
    }
}

/// A context for what others allocate for a statement.
unsafe fn make_context(p: *mut Program) -> pg_sys::MemoryContext {
    // SAFETY: the program lives (INV-BYPASS-PROGRAM), and so does its context.
    unsafe {
        pg_sys::AllocSetContextCreateInternal(
            (*p).context,
            c"mixedcc statement".as_ptr(),
            pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
            pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
        )
    }
}

/// Makes a state in the program's memory.
unsafe fn make(q: *mut pg_sys::QueryDesc, p: *mut Program) -> *mut Exec {
    // SAFETY: `q` has the plan of the program `p` (contract of `begin`). The memory is zeroed and
    // of the size of `Exec`; the new context is the state's alone.
    unsafe {
        let x = pg_sys::MemoryContextAllocZero((*p).context, std::mem::size_of::<Exec>()).cast::<Exec>();
        (*x).program = p;
        (*x).estate.type_ = NodeTag::T_EState;
        (*x).estate.es_query_cxt = make_context(p);
        let old = pg_sys::MemoryContextSwitchTo((*p).context);
        (*x).tree = tree((*(*q).plannedstmt).planTree, &raw mut (*x).estate, (*p).rti);
        pg_sys::MemoryContextSwitchTo(old);
        x
    }
}

/// States of the nodes of a plan: enough to print the plan (auto_explain), no more.
unsafe fn tree(plan: *mut pg_sys::Plan, estate: *mut EState, rti: u32) -> *mut PlanState {
    // SAFETY: `plan` is null or a valid node of a shape that `plan::read` has accepted. `SIZE` is
    // asserted to be enough for the largest of these nodes.
    unsafe {
        use NodeTag::*;
        if plan.is_null() {
            return std::ptr::null_mut();
        }
        let tag = match (*plan).type_ {
            T_ModifyTable => T_ModifyTableState,
            T_Result => T_ResultState,
            T_Limit => T_LimitState,
            T_SeqScan => T_SeqScanState,
            T_IndexScan => T_IndexScanState,
            T_IndexOnlyScan => T_IndexOnlyScanState,
            T_BitmapHeapScan => T_BitmapHeapScanState,
            T_BitmapIndexScan => T_BitmapIndexScanState,
            T_CustomScan => T_CustomScanState,
            T_Agg => T_AggState,
            T_LockRows => T_LockRowsState,
            T_SubqueryScan => T_SubqueryScanState,
            T_ValuesScan => T_ValuesScanState,
            _ => T_ScanState,
        };
        const SIZE: usize = 1024;
        const _: () = assert!(std::mem::size_of::<pg_sys::ModifyTableState>() <= SIZE);
        const _: () = assert!(std::mem::size_of::<pg_sys::BitmapHeapScanState>() <= SIZE);
        const _: () = assert!(std::mem::size_of::<pg_sys::IndexOnlyScanState>() <= SIZE);
        const _: () = assert!(std::mem::size_of::<pg_sys::AggState>() <= SIZE);
        const _: () = assert!(std::mem::size_of::<pg_sys::LockRowsState>() <= SIZE);
        let ps = match tag {
            // It has the callbacks, of which EXPLAIN is one.
            T_CustomScanState => customscan_state(plan),
            _ => pg_sys::palloc0(SIZE).cast::<PlanState>(),
        };
        (*ps).type_ = tag;
        (*ps).plan = plan;
        (*ps).state = estate;
        (*ps).ExecProcNode = Some(not_a_node);
        (*ps).lefttree = tree((*plan).lefttree, estate, rti);
        if tag == T_SubqueryScanState {
            let below = (*plan.cast::<pg_sys::SubqueryScan>()).subplan;
            (*ps.cast::<pg_sys::SubqueryScanState>()).subplan = tree(below, estate, rti);
        }
        if tag == T_ModifyTableState {
            let m = ps.cast::<pg_sys::ModifyTableState>();
            let r = pg_sys::palloc0(std::mem::size_of::<pg_sys::ResultRelInfo>()).cast::<pg_sys::ResultRelInfo>();
            (*r).type_ = T_ResultRelInfo;
            (*r).ri_RangeTableIndex = rti;
            (*m).operation = (*plan.cast::<pg_sys::ModifyTable>()).operation;
            (*m).resultRelInfo = r;
            (*m).rootResultRelInfo = r;
            (*m).mt_nrels = 1;
        }
        ps
    }
}

/// The state of a custom scan, as its plan makes it.
unsafe fn customscan_state(plan: *mut pg_sys::Plan) -> *mut PlanState {
    // SAFETY: a custom scan has methods with this function, which makes its state (extensible.h).
    unsafe {
        let create = (*(*plan.cast::<pg_sys::CustomScan>()).methods).CreateCustomScanState;
        create.map_or(std::ptr::null_mut(), |create| create(plan.cast())).cast()
    }
}

/// Starts a statement.
///
/// # Safety
/// A statement of this program that has not started.
#[inline]
pub unsafe fn begin(q: *mut pg_sys::QueryDesc, eflags: i32, p: *mut Program) -> *mut Exec {
    // SAFETY: `q` has a plan with the program `p`, and was not started: contract of this function.
    // `idle` is null or a state that was given back (INV-BYPASS-EXEC).
    unsafe {
        let x = match (*p).idle {
            x if x.is_null() => make(q, p),
            x => x,
        };
        (*p).idle = std::ptr::null_mut();
        (*x).level = xact::depth();
        (*x).done = false;
        used().push(x);
        let e = &mut (*x).estate;
        e.es_snapshot = (*q).snapshot;
        e.es_crosscheck_snapshot = (*q).crosscheck_snapshot;
        e.es_range_table = (*p).tables.rtable;
        e.es_plannedstmt = (*q).plannedstmt;
        e.es_sourceText = (*q).sourceText;
        e.es_param_list_info = (*q).params;
        e.es_queryEnv = (*q).queryEnv;
        e.es_top_eflags = eflags;
        compat::clear_processed(e);
        e.es_finished = false;
        let reads = (*p).op == CmdType::CMD_SELECT && !(*p).locks;
        e.es_output_cid = if reads { 0 } else { pg::raw::GetCurrentCommandId(true) };
        e.es_direction = pg_sys::ScanDirection::ForwardScanDirection;
        (*q).estate = e;
        (*q).planstate = (*x).tree;
        (*q).tupDesc = (*p).out_desc;
        x
    }
}

/// The state runs in the present subtransaction. Returns what [`leave`] is to be given.
///
/// # Safety
/// A state of ours that is in use.
#[inline]
pub unsafe fn enter(x: *mut Exec) -> u32 {
    // SAFETY: `x` is valid: contract of this function.
    unsafe { std::mem::replace(&mut (*x).level, xact::depth()) }
}

/// The run has ended, without an ERROR: the state is of the subtransaction that has begun it.
///
/// # Safety
/// A state of ours that is in use.
#[inline]
pub unsafe fn leave(x: *mut Exec, began: u32) {
    // SAFETY: `x` is valid: contract of this function.
    unsafe { (*x).level = began };
}

/// Takes a state out of the list of those that are in use.
fn not_in_use(x: *mut Exec) {
    if let Some(i) = used().iter().rposition(|u| *u == x) {
        used().remove(i);
    }
}

/// The statement's table, pinned until `unpin` or the abort of the statement's subtransaction.
///
/// # Safety
/// A statement of this program, whose plan's locks are held. An ERROR jumps over this frame.
#[inline]
pub unsafe fn pin(p: *mut Program, x: *mut Exec) -> pg_sys::Relation {
    // SAFETY: `x` is a state of `p` and the plan's locks are held: contract of this function. So
    // `p.rel` is right if `open_in` says so, else it is looked up (INV-BYPASS-RELATION).
    unsafe {
        if !(*x).pinned.is_null() {
            return (*x).pinned;
        }
        let now = compat::my_lxid();
        if (*p).open_in != now || now == 0 {
            let rel = pg::relations::entry_unguarded((*p).table);
            pg::raw::RelationClose(rel);
            ((*p).rel, (*p).open_in) = (rel, now);
        }
        let rel = (*p).rel;
        (*rel).rd_refcnt += 1;
        (*x).pinned = rel;
        rel
    }
}

/// Ends what `pin` began.
///
/// # Safety
/// A state of ours.
#[inline]
pub unsafe fn unpin(x: *mut Exec) {
    // SAFETY: `x` is a state of ours: contract of this function. A pinned entry of the relation
    // cache stays in place (INV-BYPASS-RELATION).
    unsafe {
        if !(*x).pinned.is_null() {
            (*(*x).pinned).rd_refcnt -= 1;
            (*x).pinned = std::ptr::null_mut();
        }
    }
}

/// Makes a state ready to be used again.
unsafe fn give_back(x: *mut Exec) {
    // SAFETY: `x` was just taken out of `USED`, so nothing else gives it back (INV-BYPASS-EXEC).
    // Its program lives, since `forget` takes the states of others out (INV-BYPASS-PROGRAM).
    unsafe {
        let p = (*x).program;
        unpin(x); // after an error
        if (*p).running == x {
            indexes::unpin((*p).indexes);
            (*p).running = std::ptr::null_mut();
            (*p).broken = true;
            if !(*p).aggregates.is_null() {
                agg::end((*p).aggregates);
            }
        }
        (*(*x).tree).instrument = std::ptr::null_mut(); // of the statement's memory
        let e = &mut (*x).estate;
        e.es_per_tuple_exprcontext = std::ptr::null_mut();
        e.es_exprcontexts = std::ptr::null_mut();
        pg::raw::MemoryContextReset(e.es_query_cxt);
        if (*p).once {
            cache::free(p);
        } else if (*p).idle.is_null() {
            (*p).idle = x;
        } else {
            pg_sys::MemoryContextDelete(e.es_query_cxt);
            pg_sys::pfree((*x).tree.cast());
            pg_sys::pfree(x.cast());
        }
    }
}

/// Ends a statement.
///
/// # Safety
/// The bypass has started the statement of `q`, and `x` is its state.
#[inline]
pub unsafe fn end(q: *mut pg_sys::QueryDesc, x: *mut Exec) {
    // SAFETY: `x` is the state of `q`, and is in use: contract of this function (INV-BYPASS-EXEC).
    // Its program lives (INV-BYPASS-PROGRAM).
    unsafe {
        (*q).tupDesc = std::ptr::null_mut();
        (*q).estate = std::ptr::null_mut();
        (*q).planstate = std::ptr::null_mut();
        (*q).totaltime = std::ptr::null_mut();
        not_in_use(x);
        give_back(x);
    }
}

/// Is an execution of the program under way?
pub fn is_used(p: *mut Program) -> bool {
    // SAFETY: states are valid while they are in the list (INV-BYPASS-EXEC).
    used().iter().any(|x| unsafe { (**x).program } == p)
}

/// The executor takes over: what the statement's start has allocated goes with the executor's
/// state.
///
/// # Safety
/// `x` was taken off its statement (`run::give_up`), and `by` is the executor's state of it.
pub unsafe fn replace(x: *mut Exec, by: *mut EState) {
    // SAFETY: `x` is in use and off its statement, and `by` is valid: contract of this function.
    // The program of `x` lives (INV-BYPASS-PROGRAM).
    unsafe {
        let context = (*x).estate.es_query_cxt;
        pg_sys::MemoryContextSetParent(context, (*by).es_query_cxt);
        let fresh = make_context((*x).program);
        (*x).estate.es_query_cxt = fresh;
        not_in_use(x);
        give_back(x);
    }
}

/// The programs that are in use.
pub fn used_programs() -> impl Iterator<Item = *mut Program> {
    // SAFETY: states are valid while they are in the list (INV-BYPASS-EXEC). So are their programs:
    // `forget` removes the states of a program that goes.
    used().iter().map(|x| unsafe { (**x).program })
}

/// The program goes: no statement goes on with its states. (After an ERROR a plan may go before its
/// statements' states are given back.)
pub fn forget(p: *mut Program) {
    used().retain(|x| {
        // SAFETY: states are valid while they are in the list (INV-BYPASS-EXEC). The caller frees
        // `p` only after this.
        unsafe {
            let other = (**x).program != p;
            if !other {
                unpin(*x);
                indexes::unpin((*p).indexes);
            }
            other
        }
    });
}

/// Statements of aborted subtransactions have not ended, and never will.
pub fn abort_subtransactions(level: u32) {
    // SAFETY: states are valid while they are in the list (INV-BYPASS-EXEC).
    while let Some(i) = used().iter().position(|x| unsafe { (**x).level } >= level) {
        let x = used().remove(i);
        // SAFETY: the subtransaction of its statement was aborted, so no statement goes on with it.
        // It was in the list, so its program lives.
        unsafe { give_back(x) };
    }
}

/// What began in the subtransaction at `level` belongs to its parent now.
pub fn commit_subtransaction(level: u32) {
    // SAFETY: states are valid while they are in the list (INV-BYPASS-EXEC).
    unsafe { used().iter().filter(|x| (***x).level >= level).for_each(|x| (**x).level = level - 1) };
}
