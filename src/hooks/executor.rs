//! The executor's hooks. A statement goes to the bypass, if that takes it; else to the executor,
//! and its tables and indexes are looked at.

use super::{parallel, reports};
use crate::access::indexscan::wrap;
use crate::access::statements::{self, Statement};
use crate::access::{altered, deferred, looked, mixture, range, seqscan};
use crate::admin::annotate;
use crate::paths::bypass::{self, Reason, Run};
use crate::paths::customscan;
use crate::paths::tableam::node;
use crate::pg::previous::PREVIOUS;
use crate::pg::{compat, is_serializable, isolation, raw, relations};
use crate::state::xact::{self, Mode};
use crate::state::{platform, rel, standby};
use mixedcc_engine::range::Looked;
use pgrx::pg_sys;
use pgrx::prelude::*;

/// Installs the hooks.
pub fn init() {
    // SAFETY: `_PG_init` runs alone, so the hooks have no caller yet.
    unsafe {
        PREVIOUS.get_mut().start = pg_sys::ExecutorStart_hook;
        pg_sys::ExecutorStart_hook = Some(start);
        PREVIOUS.get_mut().end = pg_sys::ExecutorEnd_hook;
        pg_sys::ExecutorEnd_hook = Some(end);
        PREVIOUS.get_mut().finish = pg_sys::ExecutorFinish_hook;
        pg_sys::ExecutorFinish_hook = Some(finish);
        let before = PREVIOUS.get();
        let others = [
            before.start.map(|f| f as *const _),
            before.end.map(|f| f as *const _),
            before.finish.map(|f| f as *const _),
            compat::init_run(run, (xact::rests::begin_run, xact::rests::end_run)),
        ];
        bypass::init(&others.into_iter().flatten().collect::<Vec<_>>());
    }
}

/// The hook. PostgreSQL's own part runs without a Rust frame that would catch its errors: they
/// keep their context lines.
unsafe extern "C-unwind" fn start(q: *mut pg_sys::QueryDesc, eflags: i32) {
    // SAFETY: `q` is a statement that is about to start (contract of ExecutorStart_hook). The calls
    // may raise: nothing that needs a drop is alive in this frame.
    unsafe {
        if altered::any() {
            check_rows(q);
        }
        // A snapshot may begin the transaction.
        xact::groups::note_statement((*(*q).plannedstmt).queryId as u64);
        annotate::note_group((*q).plannedstmt);
        if parallel::concerns(q) {
            parallel::before_start(q);
        }
        if wants_snapshot((*q).snapshot) {
            before(q);
        }
        reports::note_start(q, eflags);
        match bypass::start(q, eflags) {
            None => taken(),
            Some(why) => start_executor(q, eflags, why),
        }
    }
}

/// The bypass has started a statement, on a table of ours.
#[pg_guard]
unsafe extern "C-unwind" fn taken() {
    // Not by `mode` alone: `before` decides that on a standby, also where it takes no snapshot yet.
    standby::check_as_asked();
    xact::note_statement();
    if is_serializable() {
        mixture::check();
        if xact::mode() == Mode::Serializable {
            annotate::redeclare();
        }
    }
}

/// Runs a statement that the bypass has started; false: the executor runs it.
unsafe fn run(q: *mut pg_sys::QueryDesc, direction: pg_sys::ScanDirection::Type, count: u64, once: bool) -> bool {
    // SAFETY: `q` is a started statement (contract of ExecutorRun_hook). The calls may raise:
    // nothing that needs a drop is alive in this frame.
    unsafe {
        match bypass::run(q, direction, count, once) {
            Run::Done => true,
            Run::NotOurs => false,
            Run::Refused(why) => {
                let given_up = bypass::give_up(q);
                start_executor(q, given_up.eflags(), why);
                let portal = pg_sys::ActivePortal;
                if !portal.is_null() && (*portal).queryDesc == q {
                    (*portal).tupDesc = (*q).tupDesc; // was the program's, which may go
                }
                given_up.replaced_by((*q).estate);
                false
            }
        }
    }
}

unsafe extern "C-unwind" fn finish(q: *mut pg_sys::QueryDesc) {
    // SAFETY: `q` is a statement that has run (contract of ExecutorFinish_hook).
    unsafe {
        if bypass::finish(q) {
            return;
        }
        match PREVIOUS.get().finish {
            Some(prev) => prev(q),
            None => raw::standard_ExecutorFinish(q),
        }
        if !(*q).estate.is_null() && !(*(*q).estate).es_tuple_routing_result_relations.is_null() {
            note_routed((*q).estate);
        }
    }
}

/// Notes the partitions to which a statement has routed rows: no range table lists them.
#[pg_guard]
#[cold]
unsafe extern "C-unwind" fn note_routed(estate: *mut pg_sys::EState) {
    if !is_serializable() {
        return;
    }
    // SAFETY: the state of a statement that has run and has not ended: its result relations are
    // open.
    unsafe {
        let routed = pgrx::PgList::<pg_sys::ResultRelInfo>::from_pg((*estate).es_tuple_routing_result_relations);
        let rels: Vec<_> = routed.iter_ptr().map(|info| (*info).ri_RelationDesc).collect();
        mixture::check_tables(rels.iter().any(|r| rel::is_ours(*r)), &rels);
    }
}

/// Refuses a statement of a function that an ALTER TABLE calls, if it would read rows that are no
/// rows of its table now.
#[pg_guard]
#[cold]
unsafe extern "C-unwind" fn check_rows(q: *mut pg_sys::QueryDesc) {
    // SAFETY: `q` is a statement of the executor's hooks, which has a plan.
    unsafe { altered::check_statement((*q).plannedstmt) }
}

/// Starts a statement in the executor, because the bypass does not run it.
unsafe fn start_executor(q: *mut pg_sys::QueryDesc, eflags: i32, why: Reason) {
    // SAFETY: `q` is a statement that is about to start (contract of ExecutorStart_hook). The calls
    // may raise: nothing that needs a drop is alive in this frame.
    unsafe {
        deferred::before_plan((*q).plannedstmt);
        match PREVIOUS.get().start {
            Some(prev) => prev(q, eflags),
            None => raw::standard_ExecutorStart(q, eflags),
        }
        inspect(q, eflags, why);
    }
}

unsafe fn is_worker() -> bool {
    // SAFETY: a variable of this process, which its one thread writes when it starts.
    unsafe { pg_sys::ParallelWorkerNumber >= 0 || !crate::state::shmem::is_up() }
}

/// Is there something for `before` to do?
unsafe fn wants_snapshot(s: pg_sys::Snapshot) -> bool {
    // SAFETY: `s` is null or the valid snapshot of a statement.
    unsafe {
        !s.is_null()
            && (*s).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC
            && xact::known_mode() != Some(Mode::Serializable)
            && !xact::is_snapshot_unknown()
            && (*s).vistest.is_null()
    }
}

/// A statement's snapshot is taken when it starts: it may wait, or be a cursor, before it first
/// looks at a table of ours.
#[pg_guard]
unsafe extern "C-unwind" fn before(q: *mut pg_sys::QueryDesc) {
    // SAFETY: `q` is a statement that is about to start (contract of ExecutorStart_hook).
    unsafe {
        let s = (*q).snapshot;
        // In the middle of a call of the engine no statement may read tables of ours (INV-OUTSIDE).
        if is_worker() || !pg_sys::IsTransactionState() || !platform::is_outside() {
            return;
        }
        // On a standby replay may wait for it, and it may not be known yet what may be shown.
        let wants = || standby::is_known() && !xact::is_statement_wise() || parallel::uses_ours((*q).plannedstmt);
        if xact::mode() == Mode::Serializable {
            return;
        }
        if !compat::in_recovery() || wants() {
            xact::snapshot_seen(s);
        } else if xact::is_statement_wise() && compat::is_only_snapshot(s) {
            standby::forget_older();
        }
    }
}

/// A command runs without the executor, as TRUNCATE or DO. At REPEATABLE READ its snapshot is that
/// of the transaction, whatever it does: later statements see what was committed before it. On a
/// standby the snapshot is taken when it is used.
///
/// # Safety
/// The utility hook's.
pub unsafe fn before_command() {
    // SAFETY: GetActiveSnapshot is called only where ActiveSnapshotSet says that there is one. The
    // last call may raise: nothing that needs a drop is alive in this frame.
    unsafe {
        if pg_sys::XactIsoLevel as u32 != pg_sys::XACT_REPEATABLE_READ || is_worker() || !raw::ActiveSnapshotSet() {
            return;
        }
        let s = raw::GetActiveSnapshot();
        if wants_snapshot(s) && xact::known_seen(s).is_none() {
            take_snapshot(s);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn take_snapshot(s: pg_sys::Snapshot) {
    // SAFETY: `s` is the active snapshot, an MVCC one (`before_command`).
    unsafe {
        let may = pg_sys::IsTransactionState() && platform::is_outside() && !compat::in_recovery();
        if may && xact::mode() != Mode::Serializable {
            xact::snapshot_seen(s);
        }
    }
}

/// Looks at the tables of a statement that is about to run.
#[pg_guard]
unsafe extern "C-unwind" fn inspect(q: *mut pg_sys::QueryDesc, eflags: i32, why: Reason) {
    // SAFETY: the executor has started `q`: its state is null or valid.
    unsafe {
        let estate = (*q).estate;
        if estate.is_null() || !crate::state::shmem::is_up() {
            return;
        }
        let n = (*estate).es_range_table_size as usize;
        let rels = if (*estate).es_relations.is_null() {
            &[][..]
        } else {
            std::slice::from_raw_parts((*estate).es_relations, n)
        };
        let ours = rels.iter().any(|r| rel::is_ours(*r));
        let explain_only = eflags & pg_sys::EXEC_FLAG_EXPLAIN_ONLY as i32 != 0;
        if explain_only {
            return;
        }
        if isolation::is_asked() {
            mixture::check_as_asked(rels, names_foreign((*q).plannedstmt));
        }
        if is_worker() {
            if xact::mixed::is_wanted() {
                mixture::check_tables(ours, rels);
            }
            if ours {
                ready_all((*q).planstate, std::ptr::null_mut());
            }
            return;
        }
        if ours {
            xact::note_statement();
            bypass::counts::refused(why);
        } else {
            xact::note_moment((*q).snapshot);
        }
        if is_serializable() {
            xact::touched().foreign |= xact::mixed::is_wanted() && names_foreign((*q).plannedstmt);
            mixture::check_tables(ours, rels);
            if !(*(*q).plannedstmt).resultRelations.is_null() {
                mixture::note_routing(rels);
            }
        }
        if is_serializable() && xact::mode() == Mode::Serializable {
            annotate::at_statement(q);
        }
        if ours {
            crate::access::rowmarks::note(q);
            let of = Statement { snapshot: (*estate).es_snapshot as usize, owner: estate as usize };
            let mut walk = Walk { of, serializable: is_serializable(), bitmaps: Looked::ALL };
            visit((*q).planstate, (&raw mut walk).cast());
        }
    }
}

/// Does the statement name a foreign table? One whose scan the foreign server joins or aggregates
/// is not opened.
unsafe fn names_foreign(stmt: *mut pg_sys::PlannedStmt) -> bool {
    // SAFETY: `stmt` is a plan of the executor.
    let tables = unsafe { pgrx::PgList::<pg_sys::RangeTblEntry>::from_pg((*stmt).rtable) };
    // SAFETY: the elements of a range table.
    let found = tables.iter_ptr().any(|rte| unsafe { (*rte).relkind as u8 == pg_sys::RELKIND_FOREIGN_TABLE });
    found
}

unsafe extern "C-unwind" fn end(q: *mut pg_sys::QueryDesc) {
    // SAFETY: `q` is a statement that has run (contract of ExecutorEnd_hook).
    unsafe {
        if bypass::end(q) {
            return xact::rests::between_statements();
        }
        let shared = parallel::concerns(q);
        if !(*q).estate.is_null() {
            statements::end_statement((*q).estate as usize);
        }
        match PREVIOUS.get().end {
            Some(prev) => prev(q),
            None => raw::standard_ExecutorEnd(q),
        }
        if shared {
            xact::parallel::end_statement(q as usize);
        }
        xact::note_end_of_statement();
        xact::rests::between_statements();
    }
}

struct Walk {
    of: Statement,
    serializable: bool,
    /// What the scan looks at to whose bitmaps the walk goes down.
    bitmaps: Looked,
}

/// Prepares a scan of a table of ours, in each process that runs it.
unsafe fn ready(ps: *mut pg_sys::PlanState) {
    // SAFETY: `ps` is a started node, with the type that its tag tells. The table of an index is
    // locked; its entry is closed again, or by an ERROR's clean-up.
    unsafe {
        match (*ps).type_ {
            pg_sys::NodeTag::T_IndexScanState => {
                let s = ps.cast::<pg_sys::IndexScanState>();
                wrap((*s).ss.ss_currentRelation, (*s).iss_RelationDesc);
            }
            pg_sys::NodeTag::T_IndexOnlyScanState => {
                let s = ps.cast::<pg_sys::IndexOnlyScanState>();
                wrap((*s).ss.ss_currentRelation, (*s).ioss_RelationDesc);
            }
            pg_sys::NodeTag::T_SeqScanState => node::take_over(ps.cast()),
            pg_sys::NodeTag::T_BitmapHeapScanState => {
                let s = ps.cast::<pg_sys::BitmapHeapScanState>();
                if rel::is_ours((*s).ss.ss_currentRelation) {
                    compat::without_prefetch(s);
                }
            }
            pg_sys::NodeTag::T_BitmapIndexScanState => {
                let index = (*ps.cast::<pg_sys::BitmapIndexScanState>()).biss_RelationDesc;
                if !index.is_null() {
                    let heap = relations::entry((*(*index).rd_index).indrelid);
                    wrap(heap, index);
                    pg_sys::RelationClose(heap);
                }
            }
            _ => {}
        }
    }
}

/// The same for all scans of a worker's plan.
unsafe extern "C-unwind" fn ready_all(ps: *mut pg_sys::PlanState, context: *mut core::ffi::c_void) -> bool {
    // SAFETY: `ps` is null or a valid state (planstate_tree_walker).
    unsafe {
        if ps.is_null() {
            return false;
        }
        ready(ps);
        compat::walk_children(ps, ready_all, context)
    }
}

unsafe extern "C-unwind" fn visit(ps: *mut pg_sys::PlanState, context: *mut core::ffi::c_void) -> bool {
    // SAFETY: `ps` is null or a valid state, and `context` is the `Walk` of `inspect`
    // (planstate_tree_walker).
    unsafe {
        if ps.is_null() {
            return false;
        }
        let walk = &mut *context.cast::<Walk>();
        let above = walk.bitmaps;
        ready(ps);
        match (*ps).type_ {
            pg_sys::NodeTag::T_IndexScanState if walk.serializable => note_columns(ps.cast(), walk.of),
            pg_sys::NodeTag::T_BitmapHeapScanState => {
                let s = ps.cast::<pg_sys::BitmapHeapScanState>();
                if rel::is_ours((*s).ss.ss_currentRelation) {
                    walk.bitmaps = looked::by_bitmap_scan(rel::info((*s).ss.ss_currentRelation), (*ps).plan.cast());
                }
            }
            pg_sys::NodeTag::T_BitmapIndexScanState => {
                let index = (*ps.cast::<pg_sys::BitmapIndexScanState>()).biss_RelationDesc;
                if !index.is_null() && xact::known_mode() == Some(Mode::Serializable) {
                    let heap = relations::entry((*(*index).rd_index).indrelid);
                    if rel::is_ours(heap) {
                        let scan = (*ps.cast::<pg_sys::BitmapIndexScanState>()).biss_ScanDesc;
                        statements::bitmap(walk.of, (*heap).rd_id, scan, walk.bitmaps);
                    }
                    pg_sys::RelationClose(heap);
                }
            }
            pg_sys::NodeTag::T_SeqScanState if xact::known_mode() == Some(Mode::Serializable) => {
                seqscan::inspect(ps.cast(), walk.of);
            }
            pg_sys::NodeTag::T_ModifyTableState => {
                super::insert::take_rows_of_plan(ps.cast());
                if walk.serializable {
                    note_writes(ps.cast(), walk.of);
                }
            }
            pg_sys::NodeTag::T_LockRowsState if walk.serializable => note_locks(ps.cast(), walk.of),
            _ => {}
        }
        let stop = compat::walk_children(ps, visit, context);
        (*context.cast::<Walk>()).bitmaps = above;
        stop
    }
}

/// Notes which columns an index scan looks at.
unsafe fn note_columns(s: *mut pg_sys::IndexScanState, of: Statement) {
    // SAFETY: `s` is a started node: `visit` has looked at its tag. It lives in the memory of its
    // statement's state.
    unsafe {
        let rel = (*s).ss.ss_currentRelation;
        if !rel::is_ours(rel) || xact::known_mode() != Some(Mode::Serializable) {
            return;
        }
        let at = looked::by_index_scan(rel::info(rel), (*s).ss.ps.plan.cast());
        if at != Looked::ALL {
            statements::looks(of, (*rel).rd_id, s, at);
        }
    }
}

unsafe fn note_writes(m: *mut pg_sys::ModifyTableState, of: Statement) {
    // SAFETY: `m` is a started node: `visit` has looked at its tag. It has `mt_nrels` result
    // relations.
    unsafe {
        if !matches!((*m).operation, pg_sys::CmdType::CMD_UPDATE | pg_sys::CmdType::CMD_DELETE) {
            return;
        }
        for i in 0..(*m).mt_nrels as usize {
            let r = (*(*m).resultRelInfo.add(i)).ri_RelationDesc;
            if rel::is_ours(r) {
                statements::writes(of, (*r).rd_id);
            }
        }
    }
}

unsafe fn note_locks(l: *mut pg_sys::LockRowsState, of: Statement) {
    // SAFETY: `l` is a started node: `visit` has looked at its tag. Its marks are
    // `ExecAuxRowMark`s.
    unsafe {
        for a in pgrx::PgList::<pg_sys::ExecAuxRowMark>::from_pg((*l).lr_arowMarks).iter_ptr() {
            let erm = (*a).rowmark;
            if (*erm).markType <= pg_sys::RowMarkType::ROW_MARK_NOKEYEXCLUSIVE && rel::is_ours((*erm).relation) {
                statements::writes(of, (*erm).relid);
            }
            let nowait = (*erm).waitPolicy == pg_sys::LockWaitPolicy::LockWaitError;
            if nowait && rel::is_ours((*erm).relation) {
                statements::hurries(of, rel::info((*erm).relation));
            }
        }
        note_skips(l, of);
    }
}

/// Notes that a statement skips the locked rows of one scan (INV-SKIP): its row locks are right
/// above the scan, or above a sort of its rows, and exclude other writers of the row.
unsafe fn note_skips(l: *mut pg_sys::LockRowsState, of: Statement) {
    // SAFETY: `l` is a started node with marks: contract of `note_locks`. The children are nodes
    // with the tags that are looked at, and live as long as `l`.
    unsafe {
        let marks = pgrx::PgList::<pg_sys::ExecAuxRowMark>::from_pg((*l).lr_arowMarks);
        let [mark] = marks.iter_ptr().collect::<Vec<_>>()[..] else { return };
        let erm = (*mark).rowmark;
        if (*erm).waitPolicy != pg_sys::LockWaitPolicy::LockWaitSkip
            || (*erm).markType > pg_sys::RowMarkType::ROW_MARK_NOKEYEXCLUSIVE
            || !rel::is_ours((*erm).relation)
        {
            return;
        }
        let mut ps = (*l).ps.lefttree;
        while matches!((*ps).type_, pg_sys::NodeTag::T_SortState | pg_sys::NodeTag::T_IncrementalSortState) {
            ps = (*ps).lefttree;
        }
        match (*ps).type_ {
            pg_sys::NodeTag::T_IndexScanState => statements::skips(of, (*erm).relid, ps.cast()),
            pg_sys::NodeTag::T_CustomScanState if range::plan::is_ours((*ps).plan) => {
                customscan::skips(ps.cast());
                statements::skips(of, (*erm).relid, std::ptr::null());
            }
            _ => {}
        }
    }
}
