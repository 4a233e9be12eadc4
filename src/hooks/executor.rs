//! The executor's start and end, and the index scans of our tables.
//!
//! At SERIALIZABLE an index scan must be protected before it reads the index: the access method's
//! `amrescan` is wrapped (in the relation cache's private copy of its routine), where the keys are
//! known. There the scan also gets a snapshot of another kind, which keeps PostgreSQL's own
//! predicate locks out of it.

use crate::callbacks::fetch::{settle_lookup, Fetch, FEW};
use crate::errors::ok;
use crate::guc::{Mixed, MIXED_SERIALIZABLE};
use crate::platform::PG;
use crate::rel::{self, RelInfo};
use crate::xact::{self, Mode};
use mixedcc_engine::protocol::Touch;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

static mut PREV_START: pg_sys::ExecutorStart_hook_type = None;
static mut PREV_END: pg_sys::ExecutorEnd_hook_type = None;

/// Tables whose rows a running statement reads to write them: snapshot of the statement, OID.
static mut WRITES: Vec<(usize, pg_sys::Oid)> = Vec::new();

/// The snapshot that protected scans carry: not an MVCC snapshot.
// SAFETY: a struct of numbers and pointers that may be null.
static mut OURS: pg_sys::SnapshotData = unsafe { std::mem::zeroed() };

/// Does a scan carry our snapshot in place of the executor's?
#[inline]
pub fn is_ours(s: pg_sys::Snapshot) -> bool {
    std::ptr::eq(s, &raw const OURS)
}

/// Does the statement of this snapshot read the table in order to write it?
pub fn will_write(s: pg_sys::Snapshot, oid: pg_sys::Oid) -> bool {
    // SAFETY: one thread.
    unsafe { (*(&raw const WRITES)).contains(&(s as usize, oid)) }
}

/// Installs the hooks.
pub fn init() {
    // SAFETY: `_PG_init` runs alone.
    unsafe {
        OURS.snapshot_type = pg_sys::SnapshotType::SNAPSHOT_ANY;
        PREV_START = pg_sys::ExecutorStart_hook;
        pg_sys::ExecutorStart_hook = Some(start);
        PREV_END = pg_sys::ExecutorEnd_hook;
        pg_sys::ExecutorEnd_hook = Some(end);
    }
}

/// Forgets what belonged to the transaction.
pub fn end_transaction() {
    // SAFETY: one thread.
    unsafe { (*(&raw mut WRITES)).clear() };
}

/// The hook. PostgreSQL's own part runs without a Rust frame that would catch its errors: they
/// keep their context lines.
unsafe extern "C-unwind" fn start(q: *mut pg_sys::QueryDesc, eflags: i32) {
    // SAFETY: the hook's contract; nothing here needs to be dropped.
    unsafe {
        if wants_snapshot((*q).snapshot) {
            before(q);
        }
        match PREV_START {
            Some(prev) => prev(q, eflags),
            None => crate::pg::raw::standard_ExecutorStart(q, eflags),
        }
        inspect(q, eflags);
    }
}

unsafe fn is_worker() -> bool {
    // SAFETY: a plain read.
    unsafe { pg_sys::ParallelWorkerNumber >= 0 || !crate::shmem::is_up() }
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
unsafe extern "C-unwind" fn inspect(q: *mut pg_sys::QueryDesc, eflags: i32) {
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
        if crate::pg::is_serializable() {
            check_mixture(ours, rels);
        }
        if crate::pg::is_serializable() && xact::mode() == Mode::Serializable {
            crate::annotate::at_statement(q);
        }
        if ours {
            super::rowmarks::note(q);
            let mut walk =
                Walk { snapshot: (*estate).es_snapshot as usize, serializable: crate::pg::is_serializable() };
            visit((*q).planstate, (&raw mut walk).cast());
        }
    }
}

unsafe extern "C-unwind" fn end(q: *mut pg_sys::QueryDesc) {
    // SAFETY: the hook's contract.
    unsafe {
        let writes = &mut *(&raw mut WRITES);
        if !writes.is_empty() && !(*q).estate.is_null() {
            let s = (*(*q).estate).es_snapshot as usize;
            writes.retain(|w| w.0 != s);
        }
        match PREV_END {
            Some(prev) => prev(q),
            None => crate::pg::raw::standard_ExecutorEnd(q),
        }
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

/// Notes what a serializable transaction uses, and refuses a mixture as the setting says.
///
/// # Safety
/// The relations are null or open.
pub unsafe fn check_mixture(ours: bool, rels: &[pg_sys::Relation]) {
    let t = xact::touched();
    t.ours |= ours;
    // SAFETY: as in `inspect`.
    t.others = t.others || rels.iter().any(|r| unsafe { is_other(*r) });
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
    snapshot: usize,
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
                    crate::compat::without_prefetch(s);
                }
            }
            pg_sys::NodeTag::T_BitmapIndexScanState => {
                let index = (*ps.cast::<pg_sys::BitmapIndexScanState>()).biss_RelationDesc;
                if !index.is_null() {
                    let heap = pg_sys::RelationIdGetRelation((*(*index).rd_index).indrelid);
                    wrap(heap, index);
                    pg_sys::RelationClose(heap);
                }
            }
            pg_sys::NodeTag::T_ModifyTableState if walk.serializable => note_writes(ps.cast(), walk.snapshot),
            pg_sys::NodeTag::T_LockRowsState if walk.serializable => note_locks(ps.cast(), walk.snapshot),
            _ => {}
        }
        crate::pg::raw::planstate_tree_walker(ps, visit, context)
    }
}

unsafe fn note_writes(m: *mut pg_sys::ModifyTableState, snapshot: usize) {
    // SAFETY: a valid node.
    unsafe {
        if !matches!((*m).operation, pg_sys::CmdType::CMD_UPDATE | pg_sys::CmdType::CMD_DELETE) {
            return;
        }
        for i in 0..(*m).mt_nrels as usize {
            let r = (*(*m).resultRelInfo.add(i)).ri_RelationDesc;
            if rel::is_ours(r) {
                (*(&raw mut WRITES)).push((snapshot, (*r).rd_id));
            }
        }
    }
}

unsafe fn note_locks(l: *mut pg_sys::LockRowsState, snapshot: usize) {
    // SAFETY: a valid node.
    unsafe {
        for a in pgrx::PgList::<pg_sys::ExecAuxRowMark>::from_pg((*l).lr_arowMarks).iter_ptr() {
            let erm = (*a).rowmark;
            if (*erm).markType <= pg_sys::RowMarkType::ROW_MARK_NOKEYEXCLUSIVE && rel::is_ours((*erm).relation) {
                (*(&raw mut WRITES)).push((snapshot, (*erm).relid));
            }
        }
    }
}

/// The callbacks of an index access method that we have wrapped.
struct Wrapped {
    handler: pg_sys::Oid,
    rescan: pg_sys::amrescan_function,
    gettuple: pg_sys::amgettuple_function,
    getbitmap: pg_sys::amgetbitmap_function,
}
static mut WRAPPED: Vec<Wrapped> = Vec::new();

unsafe fn wrapped(index: pg_sys::Relation) -> &'static Wrapped {
    // SAFETY: one thread; `wrap` has put it in.
    unsafe {
        let handler = (*index).rd_amhandler;
        match (*(&raw const WRAPPED)).iter().find(|w| w.handler == handler) {
            Some(w) => w,
            None => error!("mixedcc has lost the callbacks of an index access method"),
        }
    }
}

/// Wraps the scan callbacks of an index of ours, in its relation cache entry.
unsafe fn wrap(heap: pg_sys::Relation, index: pg_sys::Relation) {
    // SAFETY: open relations; `rd_indam` is a private copy of the routine (relcache.c).
    unsafe {
        if !rel::is_ours(heap) || index.is_null() {
            return;
        }
        rel::info(heap);
        let am = (*index).rd_indam;
        if (*am).amrescan.map(|f| f as usize) == Some(rescan as *const () as usize) {
            return;
        }
        let all = &mut *(&raw mut WRAPPED);
        if !all.iter().any(|w| w.handler == (*index).rd_amhandler) {
            all.push(Wrapped {
                handler: (*index).rd_amhandler,
                rescan: (*am).amrescan,
                gettuple: (*am).amgettuple,
                getbitmap: (*am).amgetbitmap,
            });
        }
        (*am).amrescan = Some(rescan);
        if (*am).amgettuple.is_some() {
            (*am).amgettuple = Some(gettuple);
        }
        if (*am).amgetbitmap.is_some() {
            (*am).amgetbitmap = Some(getbitmap);
        }
    }
}

unsafe extern "C-unwind" fn rescan(
    scan: pg_sys::IndexScanDesc,
    keys: pg_sys::ScanKey,
    nkeys: i32,
    orderbys: pg_sys::ScanKey,
    norderbys: i32,
) {
    // SAFETY: the index access method's contract.
    unsafe {
        if let Some(f) = wrapped((*scan).indexRelation).rescan {
            f(scan, keys, nkeys, orderbys, norderbys);
        }
        if matches!(xact::mode(), Mode::Serializable | Mode::SerializableReadOnly) {
            guarded_protect(scan);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn guarded_protect(scan: pg_sys::IndexScanDesc) {
    // SAFETY: as in `rescan`.
    unsafe { protect(scan) }
}

unsafe fn fetch_of(scan: pg_sys::IndexScanDesc) -> *mut Fetch {
    // SAFETY: index scans of our tables have a fetch of ours, or (bitmaps) none.
    unsafe { (*scan).xs_heapfetch.cast() }
}

unsafe extern "C-unwind" fn gettuple(scan: pg_sys::IndexScanDesc, direction: pg_sys::ScanDirection::Type) -> bool {
    // SAFETY: as in `rescan`.
    unsafe {
        let found = wrapped((*scan).indexRelation).gettuple.is_some_and(|f| f(scan, direction));
        let f = fetch_of(scan);
        if !found && !f.is_null() && (*f).n_positions > 0 {
            settle_lookup(f);
        }
        found
    }
}

unsafe extern "C-unwind" fn getbitmap(scan: pg_sys::IndexScanDesc, tbm: *mut pg_sys::TIDBitmap) -> i64 {
    // SAFETY: as in `rescan`.
    unsafe {
        // The executor's start gives a bitmap scan its keys before we have wrapped the index.
        let protects = matches!(xact::mode(), Mode::Serializable | Mode::SerializableReadOnly);
        if protects && !is_ours((*scan).xs_snapshot) {
            guarded_protect(scan);
        }
        wrapped((*scan).indexRelation).getbitmap.map_or(0, |f| f(scan, tbm))
    }
}

/// What the keys of a scan say.
struct Keys {
    /// One key of a unique index: at most one row.
    one_row: bool,
    /// The only partition with such rows.
    partition: Option<u16>,
}

/// Protects an index scan of a serializable transaction, before it reads the index.
unsafe fn protect(scan: pg_sys::IndexScanDesc) {
    // SAFETY: a scan of an index of ours.
    unsafe {
        let index = (*scan).indexRelation;
        let Some(info) = rel::by_oid((*(*index).rd_index).indrelid) else {
            error!("mixedcc does not know the table of an index that is scanned")
        };
        let f = fetch_of(scan);
        if !f.is_null() {
            settle_lookup(f);
            let s = (*scan).xs_snapshot;
            if !is_ours(s) {
                (*f).snapshot = s;
                (*f).for_write = will_write(s, info.oid);
            }
        }
        if !is_mvcc((*scan).xs_snapshot) {
            return; // a unique check, or the planner: not reads of the transaction
        }
        (*scan).xs_snapshot = &raw mut OURS;
        if xact::mode() == Mode::SerializableReadOnly {
            return; // a snapshot is a serial prefix: nothing to protect
        }
        let keys = examine(scan, info);
        let t = xact::txn();
        let n = info.table.map().n;
        let (first, count) = keys.partition.map_or((0, n), |p| (p as u32, 1));
        let at = |no: u32| Touch { table: info.table, no };
        if !keys.one_row || f.is_null() {
            for i in 0..count {
                ok(t.scan(&PG, at(first + i)));
            }
            return;
        }
        if (*f).positions.is_null() {
            (*f).positions = if n as usize <= FEW {
                (*f).few.as_mut_ptr()
            } else {
                let size = n as usize * std::mem::size_of::<u64>();
                pg_sys::MemoryContextAlloc(pg_sys::GetMemoryChunkContext(f.cast()), size).cast()
            };
        }
        for i in 0..count {
            let p = ok(t.before_lookup(&PG, at(first + i)));
            *(*f).positions.add(i as usize) = p;
        }
        (*f).first_partition = first;
        (*f).n_positions = count;
    }
}

unsafe fn is_mvcc(s: pg_sys::Snapshot) -> bool {
    // SAFETY: null or a valid snapshot.
    unsafe { !s.is_null() && ((*s).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC || is_ours(s)) }
}

/// The value that a key of the scan fixes for a column of the index, and its type.
unsafe fn equal_to(scan: pg_sys::IndexScanDesc, column: usize) -> Option<(pg_sys::Datum, pg_sys::Oid)> {
    // SAFETY: `keyData` has `numberOfKeys` entries.
    unsafe {
        let index = (*scan).indexRelation;
        for i in 0..(*scan).numberOfKeys as usize {
            let k = &*(*scan).keyData.add(i);
            if k.sk_attno as usize == column + 1
                && k.sk_flags & 0xffff == 0
                && k.sk_strategy == pg_sys::BTEqualStrategyNumber as u16
            {
                let t =
                    if k.sk_subtype == pg_sys::InvalidOid { *(*index).rd_opcintype.add(column) } else { k.sk_subtype };
                return Some((k.sk_argument, t));
            }
        }
        None
    }
}

unsafe fn examine(scan: pg_sys::IndexScanDesc, info: &RelInfo) -> Keys {
    // SAFETY: an open index.
    unsafe {
        let index = (*scan).indexRelation;
        let form = (*index).rd_index;
        let one_partition = info.table.map().n == 1;
        if (*(*index).rd_rel).relam.to_u32() != pg_sys::BTREE_AM_OID.to_u32() {
            return Keys { one_row: false, partition: one_partition.then_some(0) };
        }
        let n = (*form).indnkeyatts as usize;
        let one_row = (*form).indisunique && (*form).indimmediate && (0..n).all(|c| equal_to(scan, c).is_some());
        let partition = if one_partition { Some(0) } else { partition_of(scan, info, n) };
        Keys { one_row, partition }
    }
}

unsafe fn partition_of(scan: pg_sys::IndexScanDesc, info: &RelInfo, n: usize) -> Option<u16> {
    // SAFETY: `indkey` has an entry for each column of the index.
    unsafe {
        let index = (*scan).indexRelation;
        let form = (*index).rd_index;
        let attnums = (*form).indkey.values.as_slice((*form).indnatts as usize);
        let mut key = Vec::new();
        for c in info.partkey.columns() {
            let at = attnums[..n].iter().position(|a| *a == c)?;
            if !info.partkey.agrees_with(index, at, c) {
                return None;
            }
            let (v, t) = equal_to(scan, at)?;
            key.push((v, false, t));
        }
        if key.is_empty() {
            return None;
        }
        info.partkey.partition_of_key(&key)
    }
}
