//! The executor's start and end: which tables and indexes a statement uses, and how.

use crate::access::indexscan::wrap;
use crate::access::statements::{self, Statement};
use crate::access::{altered, seqscan};
use crate::paths::bypass::{self, Reason};
use crate::pg::guc::{Mixed, MIXED_SERIALIZABLE};
use crate::state::rel;
use crate::state::xact::{self, Mode};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

static mut PREV_START: pg_sys::ExecutorStart_hook_type = None;
static mut PREV_END: pg_sys::ExecutorEnd_hook_type = None;

/// Installs the hooks.
pub fn init() {
    // SAFETY: `_PG_init` runs alone.
    unsafe {
        PREV_START = pg_sys::ExecutorStart_hook;
        pg_sys::ExecutorStart_hook = Some(start);
        PREV_END = pg_sys::ExecutorEnd_hook;
        pg_sys::ExecutorEnd_hook = Some(end);
        bypass::init((*(&raw const PREV_START)).is_some() || (*(&raw const PREV_END)).is_some());
    }
}

/// The hook. PostgreSQL's own part runs without a Rust frame that would catch its errors: they
/// keep their context lines.
unsafe extern "C-unwind" fn start(q: *mut pg_sys::QueryDesc, eflags: i32) {
    // SAFETY: the hook's contract; nothing here needs to be dropped.
    unsafe {
        if altered::any() {
            check_rows(q);
        }
        if wants_snapshot((*q).snapshot) {
            before(q);
        }
        if let Some(why) = bypass::start(q, eflags) {
            start_executor(q, eflags, why);
        }
    }
}

/// Refuses a statement of a function that an ALTER TABLE calls, if it would read rows that are no rows of its table now.
#[pg_guard]
#[cold]
unsafe extern "C-unwind" fn check_rows(q: *mut pg_sys::QueryDesc) {
    // SAFETY: the hook's contract.
    unsafe { altered::check_statement((*q).plannedstmt) }
}

/// Starts a statement in the executor, because the bypass does not run it.
///
/// # Safety
/// The contract of `ExecutorStart`.
pub unsafe fn start_executor(q: *mut pg_sys::QueryDesc, eflags: i32, why: Reason) {
    // SAFETY: the caller's; nothing here needs to be dropped.
    unsafe {
        match PREV_START {
            Some(prev) => prev(q, eflags),
            None => crate::pg::raw::standard_ExecutorStart(q, eflags),
        }
        inspect(q, eflags, why);
    }
}

unsafe fn is_worker() -> bool {
    // SAFETY: a plain read.
    unsafe { pg_sys::ParallelWorkerNumber >= 0 || !crate::state::shmem::is_up() }
}

/// Is there something for `before` to do?
unsafe fn wants_snapshot(s: pg_sys::Snapshot) -> bool {
    // SAFETY: null or a valid snapshot.
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
    // SAFETY: the hook's contract.
    unsafe {
        let s = (*q).snapshot;
        if is_worker() || !pg_sys::IsTransactionState() {
            return;
        }
        if xact::mode() != Mode::Serializable {
            xact::snapshot_csn(s);
        }
    }
}

/// Looks at the tables of a statement that is about to run.
#[pg_guard]
unsafe extern "C-unwind" fn inspect(q: *mut pg_sys::QueryDesc, eflags: i32, why: Reason) {
    // SAFETY: the executor's state after its start.
    unsafe {
        let estate = (*q).estate;
        if estate.is_null() || is_worker() {
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
        if ours {
            xact::note_statement();
            bypass::counts::refused(why);
        } else {
            xact::note_moment((*q).snapshot);
        }
        if crate::pg::is_serializable() {
            check_mixture(ours, rels);
            if !(*(*q).plannedstmt).resultRelations.is_null() {
                note_routing(rels);
            }
        }
        if crate::pg::is_serializable() && xact::mode() == Mode::Serializable {
            crate::admin::annotate::at_statement(q);
        }
        if ours {
            crate::access::rowmarks::note(q);
            let of = Statement { snapshot: (*estate).es_snapshot as usize, owner: estate as usize };
            let mut walk = Walk { of, serializable: crate::pg::is_serializable() };
            visit((*q).planstate, (&raw mut walk).cast());
        }
    }
}

unsafe extern "C-unwind" fn end(q: *mut pg_sys::QueryDesc) {
    // SAFETY: the hook's contract.
    unsafe {
        if bypass::end(q) {
            return;
        }
        if !(*q).estate.is_null() {
            statements::end_statement((*q).estate as usize);
        }
        match PREV_END {
            Some(prev) => prev(q),
            None => crate::pg::raw::standard_ExecutorEnd(q),
        }
        xact::note_end_of_statement();
    }
}

/// A table of another access method that takes part in transactions: no catalog, not temporary.
unsafe fn is_other(r: pg_sys::Relation) -> bool {
    // SAFETY: null or an open relation.
    unsafe {
        if r.is_null() || rel::is_ours(r) || (*r).rd_tableam.is_null() {
            return false;
        }
        let form = (*r).rd_rel;
        let kind = (*form).relkind as u8;
        (kind == pg_sys::RELKIND_RELATION || kind == pg_sys::RELKIND_MATVIEW)
            && (*form).relpersistence as u8 != pg_sys::RELPERSISTENCE_TEMP
            && (*r).rd_id.to_u32() >= pg_sys::FirstNormalObjectId
    }
}

unsafe fn is_foreign_table(r: pg_sys::Relation) -> bool {
    // SAFETY: null or an open relation.
    unsafe { !r.is_null() && (*(*r).rd_rel).relkind as u8 == pg_sys::RELKIND_FOREIGN_TABLE }
}

/// A statement writes these tables. Rows of partitioned ones go to partitions that no range table
/// lists. Some may be foreign tables, so the transaction counts as one that uses foreign tables.
///
/// # Safety
/// The relations are null or open.
pub unsafe fn note_routing(rels: &[pg_sys::Relation]) {
    // SAFETY: null or an open relation, by this function's contract.
    let partitioned = |r: &pg_sys::Relation| unsafe {
        !r.is_null() && (*(**r).rd_rel).relkind as u8 == pg_sys::RELKIND_PARTITIONED_TABLE
    };
    xact::touched().foreign |= rels.iter().any(partitioned);
}

/// Notes what a serializable transaction uses, and refuses a mixture as the setting says.
///
/// # Safety
/// The relations are null or open.
pub unsafe fn check_mixture(ours: bool, rels: &[pg_sys::Relation]) {
    let t = xact::touched();
    t.ours |= ours;
    // SAFETY: as in `inspect`.
    t.others = t.others || rels.iter().any(|r| unsafe { is_other(*r) });
    // SAFETY: as above.
    t.foreign = t.foreign || rels.iter().any(|r| unsafe { is_foreign_table(*r) });
    if !(t.ours && t.others) || t.warned || MIXED_SERIALIZABLE.get() == Mixed::Allow {
        return;
    }
    let e = ErrorReport::new(
        PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
        "a SERIALIZABLE transaction uses both mixedcc tables and tables of another access method",
        "mixedcc",
    )
    .set_detail("It is atomic, but neither side alone guarantees that it is serializable.")
    .set_hint("Use tables of one access method, or set mixedcc.mixed_serializable to warning or allow.");
    if MIXED_SERIALIZABLE.get() == Mixed::Error {
        e.report(PgLogLevel::ERROR);
    } else {
        t.warned = true;
        e.report(PgLogLevel::WARNING);
    }
}

struct Walk {
    of: Statement,
    serializable: bool,
}

unsafe extern "C-unwind" fn visit(ps: *mut pg_sys::PlanState, context: *mut core::ffi::c_void) -> bool {
    // SAFETY: the walker's contract.
    unsafe {
        if ps.is_null() {
            return false;
        }
        let walk = &*context.cast::<Walk>();
        match (*ps).type_ {
            pg_sys::NodeTag::T_IndexScanState => {
                let s = ps.cast::<pg_sys::IndexScanState>();
                wrap((*s).ss.ss_currentRelation, (*s).iss_RelationDesc);
            }
            pg_sys::NodeTag::T_IndexOnlyScanState => {
                let s = ps.cast::<pg_sys::IndexOnlyScanState>();
                wrap((*s).ss.ss_currentRelation, (*s).ioss_RelationDesc);
            }
            pg_sys::NodeTag::T_BitmapHeapScanState => {
                let s = ps.cast::<pg_sys::BitmapHeapScanState>();
                if rel::is_ours((*s).ss.ss_currentRelation) {
                    crate::pg::compat::without_prefetch(s);
                }
            }
            pg_sys::NodeTag::T_BitmapIndexScanState => {
                let index = (*ps.cast::<pg_sys::BitmapIndexScanState>()).biss_RelationDesc;
                if !index.is_null() {
                    let heap = pg_sys::RelationIdGetRelation((*(*index).rd_index).indrelid);
                    wrap(heap, index);
                    if rel::is_ours(heap) && xact::known_mode() == Some(Mode::Serializable) {
                        let scan = (*ps.cast::<pg_sys::BitmapIndexScanState>()).biss_ScanDesc;
                        statements::bitmap(walk.of, (*heap).rd_id, scan);
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
        crate::pg::compat::walk_children(ps, visit, context)
    }
}

unsafe fn note_writes(m: *mut pg_sys::ModifyTableState, of: Statement) {
    // SAFETY: a valid node.
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
    // SAFETY: a valid node.
    unsafe {
        for a in pgrx::PgList::<pg_sys::ExecAuxRowMark>::from_pg((*l).lr_arowMarks).iter_ptr() {
            let erm = (*a).rowmark;
            if (*erm).markType <= pg_sys::RowMarkType::ROW_MARK_NOKEYEXCLUSIVE && rel::is_ours((*erm).relation) {
                statements::writes(of, (*erm).relid);
            }
        }
    }
}
