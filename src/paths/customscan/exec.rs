//! The node: a look-up of one key, or a scan of intervals of keys, in either direction.
//!
//! At SERIALIZABLE a scan is protected as one of the nbtree index would be, by the same code (access/protect.rs): it is
//! shown a scan descriptor with the keys. Conditions that the intervals do not express are tested on whatever version a
//! record has, before the row is read through the protocols: all versions have the same key.

use super::EXEC;
use crate::access::fetch::Fetch;
use crate::access::{index_lookup, lookup, primary, protect, statements, tuple, visible};
use crate::keys::bounds::{self, Exact, Interval};
use crate::pg::{compat, expr, Tid};
use crate::state::platform::PG;
use crate::state::rel::{self, RelInfo};
use crate::state::stop;
use crate::state::xact::{self, Mode};
use mixedcc_engine::index::{Direction, Primary, Records};
use mixedcc_engine::record::Version;
use mixedcc_engine::txn::{Look, ScanId, Txn};
use mixedcc_engine::{RecordRef, Table};
use pgrx::pg_sys::{self, Datum, NodeTag, Oid};
use pgrx::prelude::*;
use std::ops::Bound;
use std::ptr::NonNull;

pub mod bare;
mod walk;

use walk::step;

mod raw {
    use pgrx::pg_sys;
    extern "C-unwind" {
        // Not in the bindings (executor/nodeIndexscan.h).
        #[allow(clippy::too_many_arguments)]
        pub fn ExecIndexBuildScanKeys(
            planstate: *mut pg_sys::PlanState,
            index: pg_sys::Relation,
            quals: *mut pg_sys::List,
            isorderby: bool,
            keys: *mut pg_sys::ScanKey,
            nkeys: *mut i32,
            runtime: *mut *mut pg_sys::IndexRuntimeKeyInfo,
            nruntime: *mut i32,
            arrays: *mut *mut core::ffi::c_void,
            narrays: *mut i32,
        );
        pub fn ExecIndexEvalRuntimeKeys(
            context: *mut pg_sys::ExprContext,
            keys: *mut pg_sys::IndexRuntimeKeyInfo,
            n: i32,
        );
        // Without the bindings' guard.
        pub fn ExecInitScanTupleSlot(
            estate: *mut pg_sys::EState,
            node: *mut pg_sys::ScanState,
            desc: pg_sys::TupleDesc,
            ops: *const pg_sys::TupleTableSlotOps,
        );
        pub fn ExecAssignScanProjectionInfo(node: *mut pg_sys::ScanState);
        pub fn ExecInitQual(qual: *mut pg_sys::List, parent: *mut pg_sys::PlanState) -> *mut pg_sys::ExprState;
        pub fn ExecInitExpr(e: *mut pg_sys::Expr, parent: *mut pg_sys::PlanState) -> *mut pg_sys::ExprState;
        pub fn MemoryContextRegisterResetCallback(
            context: pg_sys::MemoryContext,
            callback: *mut pg_sys::MemoryContextCallback,
        );
        pub fn ProcessInterrupts();
        pub fn MemoryContextReset(context: pg_sys::MemoryContext);
        pub fn ExecScan(
            node: *mut pg_sys::ScanState,
            access: unsafe extern "C-unwind" fn(*mut pg_sys::ScanState) -> *mut pg_sys::TupleTableSlot,
            recheck: unsafe extern "C-unwind" fn(*mut pg_sys::ScanState, *mut pg_sys::TupleTableSlot) -> bool,
        ) -> *mut pg_sys::TupleTableSlot;
    }
}

/// Intervals that a scan reads one by one; more become one that holds them all, with a test of each row.
const MANY: usize = 1 << 16;
/// The node's state.
#[repr(C)]
pub struct State {
    css: pg_sys::CustomScanState,
    /// The index of the PRIMARY KEY. Not locked: it exists while its table is locked.
    index: pg_sys::Relation,
    /// What the scan would be in nbtree; null for look-ups of the whole key.
    scan: *mut pg_sys::IndexScanDescData,
    runtime: *mut pg_sys::IndexRuntimeKeyInfo,
    n_runtime: i32,
    /// Where the keys that are computed at run time are.
    context: *mut pg_sys::ExprContext,
    /// The values of the whole key, and their types.
    values: *mut *mut pg_sys::ExprState,
    types: *const Oid,
    n_values: usize,
    /// The index conditions; null if the intervals express them exactly, and nobody tests other rows.
    recheck: *mut pg_sys::ExprState,
    backward: bool,
    inner: *mut Inner,
}

/// Where the scan stands, in the order of the index.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum At {
    /// In front of the first row.
    #[default]
    Start,
    /// On a row.
    Row,
    /// Behind the last row.
    End,
}

/// An index, and the table whose records it names.
type Source = (&'static Primary, &'static Table);

/// What is dropped with the statement's memory.
#[derive(Default)]
struct Inner {
    /// Were keys computed since the last rescan?
    started: bool,
    at: At,
    /// The row of a look-up; `None`: not looked up, or there is none.
    row: Option<(u64, NonNull<Version>)>,
    looked: bool,
    intervals: Vec<Interval>,
    /// The interval of the cursor.
    interval: usize,
    cursor: Option<Box<(Records, Direction)>>,
    /// The index that is read, and its table, once the scan has started.
    source: Option<Source>,
    /// How a row can be had that needs nothing but a look at its newest version; `None`: not so.
    look: Option<Look>,
    /// Rows that were handed out, and not told to the statistics.
    uncounted: u32,
    /// Does each entry need the test of `recheck`?
    filters: bool,
    /// Do the intervals express the conditions, if there are not too many?
    exact: bool,
}

impl State {
    /// The index of the PRIMARY KEY that a plan scans.
    pub unsafe fn index_of(plan: *mut pg_sys::CustomScan) -> Oid {
        // SAFETY: made by plan.rs.
        unsafe { (*cell(private(plan, 0), 0)).oid_value }
    }
    /// Does a plan scan it backward?
    pub unsafe fn is_backward(plan: *mut pg_sys::CustomScan) -> bool {
        // SAFETY: as above.
        unsafe { (*cell(private(plan, 1), 0)).int_value < 0 }
    }
    unsafe fn slot(&self) -> *mut pg_sys::TupleTableSlot {
        self.css.ss.ss_ScanTupleSlot
    }
    unsafe fn snapshot(&self) -> pg_sys::Snapshot {
        // SAFETY: a node that runs.
        unsafe { (*self.css.ss.ps.state).es_snapshot }
    }
    unsafe fn fetch(&self) -> *mut Fetch {
        // SAFETY: a scan has one.
        unsafe { (*self.scan).xs_heapfetch.cast() }
    }
}

/// An element of a list (list_nth_cell, without the bindings' guard).
unsafe fn cell(list: *mut pg_sys::List, n: usize) -> *mut pg_sys::ListCell {
    // SAFETY: the caller's: the list has it.
    unsafe { (*list).elements.add(n) }
}

/// One of the lists of `custom_private`.
unsafe fn private(plan: *mut pg_sys::CustomScan, n: usize) -> *mut pg_sys::List {
    // SAFETY: made by plan.rs.
    unsafe { (*cell((*plan).custom_private, n)).ptr_value.cast() }
}

/// One of the lists of `custom_exprs`.
unsafe fn expressions(plan: *mut pg_sys::CustomScan, n: usize) -> *mut pg_sys::List {
    // SAFETY: made by plan.rs.
    unsafe { (*cell((*plan).custom_exprs, n)).ptr_value.cast() }
}

/// `CreateCustomScanState`. Guarded by nobody: it fails only in PostgreSQL's code.
pub unsafe extern "C-unwind" fn create(_plan: *mut pg_sys::CustomScan) -> *mut pg_sys::Node {
    // SAFETY: zeroed memory of that size; this frame owns nothing.
    unsafe {
        let s = crate::pg::raw::palloc0(std::mem::size_of::<State>()).cast::<State>();
        (*s).css.ss.ps.type_ = NodeTag::T_CustomScanState;
        (*s).css.methods = &EXEC.0;
        s.cast()
    }
}

/// A new `Inner`, in the current memory context, and dropped with it.
unsafe fn make_inner() -> *mut Inner {
    #[repr(C)]
    struct Kept {
        callback: pg_sys::MemoryContextCallback,
        inner: Inner,
    }
    // Dropping it frees memory, and cannot fail.
    unsafe extern "C-unwind" fn gone(inner: *mut core::ffi::c_void) {
        // SAFETY: called once, with what was registered.
        unsafe { std::ptr::drop_in_place(inner.cast::<Inner>()) };
    }
    // SAFETY: as large as needed, and aligned for anything; the callback lies in the same memory. Nothing fails between.
    unsafe {
        let k = crate::pg::raw::palloc(std::mem::size_of::<Kept>()).cast::<Kept>();
        let inner = &raw mut (*k).inner;
        inner.write(Inner::default());
        (&raw mut (*k).callback).write(pg_sys::MemoryContextCallback {
            func: Some(gone),
            arg: inner.cast(),
            next: std::ptr::null_mut(),
        });
        raw::MemoryContextRegisterResetCallback(pg_sys::CurrentMemoryContext, &raw mut (*k).callback);
        inner
    }
}

/// `BeginCustomScan`.
#[pg_guard]
pub unsafe extern "C-unwind" fn begin(node: *mut pg_sys::CustomScanState, estate: *mut pg_sys::EState, eflags: i32) {
    // SAFETY: a state of ours, as ExecInitCustomScan leaves it. An ERROR of what is not guarded jumps over frames that own
    // nothing.
    unsafe {
        let s = node.cast::<State>();
        let ss = &raw mut (*s).css.ss;
        let plan = (*ss).ps.plan.cast::<pg_sys::CustomScan>();
        // Our rows are heap tuples, and not taken apart before somebody asks for a column.
        raw::ExecInitScanTupleSlot(estate, ss, (*(*ss).ss_currentRelation).rd_att, &raw const pg_sys::TTSOpsHeapTuple);
        raw::ExecAssignScanProjectionInfo(ss);
        if !(*plan).scan.plan.qual.is_null() {
            (*ss).ps.qual = raw::ExecInitQual((*plan).scan.plan.qual, ss.cast());
        }
        (*s).backward = State::is_backward(plan);
        if eflags & pg_sys::EXEC_FLAG_EXPLAIN_ONLY as i32 != 0 {
            return;
        }
        (*s).inner = make_inner();
        (*s).index = crate::pg::raw::RelationIdGetRelation(State::index_of(plan));
        if (*s).index.is_null() {
            error!("mixedcc has lost the index of a primary key");
        }
        let (exprs, types) = (expressions(plan, 0), private(plan, 2));
        let exact = if types.is_null() { begin_scan(s, estate, exprs) } else { begin_look_up(s, exprs, types) };
        if exact != Exact::Always || !(*estate).es_epq_active.is_null() {
            (*s).recheck = raw::ExecInitQual(expressions(plan, 1), ss.cast());
        }
        (*(*s).inner).exact = exact != Exact::Never;
        (*(*s).inner).at = if (*s).backward { At::End } else { At::Start };
    }
}

/// The values of a key.
unsafe fn begin_look_up(s: *mut State, exprs: *mut pg_sys::List, types: *mut pg_sys::List) -> Exact {
    // SAFETY: as in `begin`.
    unsafe {
        let n = (*exprs).length as usize;
        let room = n * (std::mem::size_of::<*mut pg_sys::ExprState>() + std::mem::size_of::<Oid>());
        (*s).values = crate::pg::raw::palloc(room).cast();
        let t = (*s).values.add(n).cast::<Oid>();
        for i in 0..n {
            let e = (*cell(exprs, i)).ptr_value.cast();
            *(*s).values.add(i) = raw::ExecInitExpr(e, &raw mut (*s).css.ss.ps);
            *t.add(i) = (*cell(types, i)).oid_value;
        }
        ((*s).types, (*s).n_values) = (t, n);
        Exact::Always
    }
}

/// The keys of a scan, as nbtree would get them.
unsafe fn begin_scan(s: *mut State, estate: *mut pg_sys::EState, exprs: *mut pg_sys::List) -> Exact {
    // SAFETY: as in `begin`; the fetch is a chunk of its own, which protect.rs watches.
    unsafe {
        let ps = &raw mut (*s).css.ss.ps;
        let d = pg_sys::palloc0(std::mem::size_of::<pg_sys::IndexScanDescData>()).cast::<pg_sys::IndexScanDescData>();
        let mut arrays = std::ptr::null_mut();
        let mut n_arrays = 0;
        raw::ExecIndexBuildScanKeys(
            ps,
            (*s).index,
            exprs,
            false,
            &mut (*d).keyData,
            &mut (*d).numberOfKeys,
            &mut (*s).runtime,
            &mut (*s).n_runtime,
            &raw mut arrays,
            &mut n_arrays,
        );
        if n_arrays > 0 {
            error!("mixedcc does not know arrays that nbtree does not search");
        }
        if (*s).n_runtime > 0 {
            let usual = (*ps).ps_ExprContext;
            pg_sys::ExecAssignExprContext(estate, ps);
            (*s).context = (*ps).ps_ExprContext;
            (*ps).ps_ExprContext = usual;
        }
        let rel = (*s).css.ss.ss_currentRelation;
        let f = Fetch::new(rel);
        (*d).heapRelation = rel;
        (*d).indexRelation = (*s).index;
        (*d).xs_snapshot = (*estate).es_snapshot;
        (*d).xs_heapfetch = f.cast();
        (*s).scan = d;
        let codec = key_of(s).codec;
        bounds::is_exact(codec, keys(d))
    }
}

unsafe fn keys<'a>(d: *mut pg_sys::IndexScanDescData) -> &'a [pg_sys::ScanKeyData] {
    // SAFETY: `keyData` has `numberOfKeys` entries.
    unsafe {
        match (*d).numberOfKeys as usize {
            0 => &[],
            n => std::slice::from_raw_parts((*d).keyData, n),
        }
    }
}

/// The primary key of the scanned table. A plan is made again when the table's definition changes.
unsafe fn key_of(s: *mut State) -> &'static primary::PrimaryKey {
    // SAFETY: the node's table is open and locked.
    unsafe {
        let rel = (*s).css.ss.ss_currentRelation;
        match primary::key(rel, rel::info(rel)) {
            Some(key) if key.index == (*(*s).index).rd_id => key,
            _ => error!("mixedcc has lost the primary index of a table that is scanned"),
        }
    }
}

/// `ExecCustomScan`: the next row that passes the qualification, as the plan wants it. What runs below is guarded where
/// it is ours, and not where it is PostgreSQL's.
pub unsafe extern "C-unwind" fn run(node: *mut pg_sys::CustomScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: a state of ours; this frame owns nothing.
    unsafe {
        let ss = &raw mut (*node).ss;
        let ps = &(*ss).ps;
        if !(*ps.state).es_epq_active.is_null() {
            return raw::ExecScan(ss, access, recheck);
        }
        let (qual, projection, context) = (ps.qual, ps.ps_ProjInfo, ps.ps_ExprContext);
        loop {
            if pg_sys::InterruptPending != 0 {
                raw::ProcessInterrupts();
            }
            let per_tuple = (*context).ecxt_per_tuple_memory;
            if !(*per_tuple).isReset || !(*per_tuple).firstchild.is_null() {
                raw::MemoryContextReset(per_tuple);
            }
            let slot = access(ss);
            if slot.is_null() || (*slot).tts_flags & pg_sys::TTS_FLAG_EMPTY as u16 != 0 {
                if projection.is_null() {
                    return slot;
                }
                let result = (*projection).pi_state.resultslot;
                expr::clear(result);
                return result;
            }
            (*context).ecxt_scantuple = slot;
            if expr::passes(qual, context) {
                return if projection.is_null() { slot } else { expr::project(projection) };
            }
            if let Some(i) = (*ss).ps.instrument.as_mut() {
                i.nfiltered1 += 1.0;
            }
        }
    }
}

/// Does a row that the scan did not find meet its conditions? (EvalPlanQual)
#[pg_guard]
unsafe extern "C-unwind" fn recheck(node: *mut pg_sys::ScanState, slot: *mut pg_sys::TupleTableSlot) -> bool {
    // SAFETY: a state of ours.
    unsafe {
        let s = node.cast::<State>();
        passes(s, slot)
    }
}

unsafe fn passes(s: *mut State, slot: *mut pg_sys::TupleTableSlot) -> bool {
    // SAFETY: a prepared qualification; the slot holds a row of the table.
    unsafe {
        let context = (*s).css.ss.ps.ps_ExprContext;
        (*context).ecxt_scantuple = slot;
        expr::passes((*s).recheck, context)
    }
}

/// The next row, in the direction of plan and executor. Guarded only where something can fail.
unsafe extern "C-unwind" fn access(node: *mut pg_sys::ScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: a state of ours; this frame owns nothing, and what is not guarded neither fails nor unwinds.
    unsafe {
        let s = node.cast::<State>();
        match at_hand(s) {
            Some((no, v)) => {
                (*(*s).inner).uncounted += 1;
                hand_out(s, no, v)
            }
            None => guarded_access(node),
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn guarded_access(node: *mut pg_sys::ScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: a state of ours.
    unsafe {
        let s = node.cast::<State>();
        let up = goes_up(s);
        let found = if (*s).scan.is_null() { look_up(s, up) } else { step(s, up) };
        match found {
            Some((no, v)) => {
                (*(*s).inner).uncounted += 1;
                count_rows(s);
                hand_out(s, no, v)
            }
            None => {
                count_rows(s);
                expr::clear((*s).slot());
                std::ptr::null_mut()
            }
        }
    }
}

unsafe fn goes_up(s: *mut State) -> bool {
    // SAFETY: a node that runs.
    let forward = unsafe { (*(*s).css.ss.ps.state).es_direction >= 0 };
    // SAFETY: as above.
    forward != unsafe { (*s).backward }
}

#[inline]
unsafe fn hand_out(s: *mut State, no: u64, v: NonNull<Version>) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: as in `access`.
    unsafe {
        let slot = (*s).slot();
        tuple::store(slot, (*(*s).css.ss.ss_currentRelation).rd_id, Tid::Record(no), v.as_ptr());
        slot
    }
}

/// Tells the statistics of the rows that were handed out.
unsafe fn count_rows(s: *mut State) {
    // SAFETY: as in `access`.
    unsafe {
        let n = std::mem::take(&mut (*(*s).inner).uncounted);
        compat::count_fetched_rows((*s).css.ss.ss_currentRelation, (*s).index, n);
    }
}

/// The next row of a scan that goes on in its direction, if its record was found already and a look at the newest
/// version tells what is seen of it. Most rows are such. Neither fails nor unwinds.
#[inline]
unsafe fn at_hand(s: *mut State) -> Option<(u64, NonNull<Version>)> {
    // SAFETY: as in `access`.
    unsafe {
        let (t, cursor, look) = looked_for(s)?;
        while let Some(r) = cursor.next_copied() {
            let seen = match look {
                _ if t.last_write(r).is_some() => None,
                Look::Scan(id) => t.peek_scanned(r, id),
                Look::Snapshot(csn) => t.peek_snapshot(r, csn),
            };
            match seen {
                Some(Some(v)) => {
                    (*(*s).fetch()).last = v.as_ptr();
                    return Some((r.no, v));
                }
                Some(None) => {}
                None => {
                    cursor.put_back();
                    return None;
                }
            }
        }
        None
    }
}

/// As [`at_hand`], of all rows that are, as many as `to` has room for, for a statement that takes them all; how many.
unsafe fn all_at_hand(s: *mut State, to: &mut [NonNull<Version>]) -> usize {
    // SAFETY: as in `access`.
    unsafe {
        let Some((t, cursor, look)) = looked_for(s) else { return 0 };
        let n = t.peek_run(cursor, look, to);
        if let Some(last) = n.checked_sub(1) {
            (*(*s).fetch()).last = to[last].as_ptr();
        }
        n
    }
}

/// What the next row is to be had from by a look, if it can be.
#[inline]
unsafe fn looked_for<'a>(s: *mut State) -> Option<(&'a mut Txn, &'a mut Records, Look)> {
    // SAFETY: as in `access`; the cursor is the state's, which nobody else uses.
    unsafe {
        let inner = (*s).inner.as_mut()?;
        let look = inner.look?;
        let (cursor, way) = inner.cursor.as_deref_mut()?;
        let same_way = goes_up(s) == (*way == Direction::Forward);
        if inner.at != At::Row || !same_way || pg_sys::InterruptPending != 0 || stop::is_on() {
            return None;
        }
        Some((xact::running()?, cursor, look))
    }
}

/// A scan of one row: the row, or nothing behind it.
unsafe fn look_up(s: *mut State, up: bool) -> Option<(u64, NonNull<Version>)> {
    // SAFETY: as in `access`.
    unsafe {
        let inner = &mut *(*s).inner;
        if !inner.looked {
            inner.looked = true;
            inner.row = find_row(s);
        }
        let to = if up { At::End } else { At::Start };
        if inner.at == to {
            return None;
        }
        inner.at = if inner.at == At::Row || inner.row.is_none() { to } else { At::Row };
        inner.row.filter(|_| inner.at == At::Row)
    }
}

/// The values of a key, computed for a look-up, and their types.
struct Values<'a>(&'a [Datum], &'a [Oid]);

impl lookup::Key for Values<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn value(&self, i: usize) -> (Datum, Oid) {
        (self.0[i], self.1[i])
    }
}

unsafe fn find_row(s: *mut State) -> Option<(u64, NonNull<Version>)> {
    // SAFETY: as in `access`. Values are in memory that is reset with the next row.
    unsafe {
        let rel = (*s).css.ss.ss_currentRelation;
        let info = rel::info(rel);
        let key = key_of(s);
        compat::count_scan((*s).index);
        let mut values = [Datum::from(0); lookup::MOST_COLUMNS];
        let values = &mut values[..(*s).n_values];
        for (i, v) in values.iter_mut().enumerate() {
            let null;
            (*v, null) = expr::evaluate(*(*s).values.add(i), (*s).css.ss.ps.ps_ExprContext);
            if null {
                return None; // operators are strict
            }
        }
        let types = std::slice::from_raw_parts((*s).types, (*s).n_values);
        let snapshot = (*s).snapshot();
        let for_write = xact::mode() == Mode::Serializable && statements::will_write(snapshot, info.oid);
        let Some(found) = lookup::by_key(rel, info, key, &Values(values, types), snapshot, for_write) else {
            error!("mixedcc cannot make the key of a look-up that it has planned")
        };
        found.map(|found| (found.r.no, found.version))
    }
}

/// `ReScanCustomScan`.
#[pg_guard]
pub unsafe extern "C-unwind" fn rescan(node: *mut pg_sys::CustomScanState) {
    // SAFETY: a state of ours.
    unsafe {
        let s = node.cast::<State>();
        if !(*s).inner.is_null() {
            count_rows(s);
            let inner = &mut *(*s).inner;
            (inner.started, inner.looked, inner.row, inner.cursor) = (false, false, None, None);
            inner.at = if (*s).backward { At::End } else { At::Start };
            inner.interval = 0;
            if !(*s).scan.is_null() {
                // What it protects is known now; the next start protects anew.
                protect::settle((*s).fetch());
            }
        }
        pg_sys::ExecScanReScan(&raw mut (*node).ss);
    }
}

/// `EndCustomScan`.
#[pg_guard]
pub unsafe extern "C-unwind" fn end(node: *mut pg_sys::CustomScanState) {
    // SAFETY: a state of ours.
    unsafe {
        let s = node.cast::<State>();
        if !(*s).scan.is_null() {
            protect::close((*s).fetch());
            (*s).scan = std::ptr::null_mut();
        }
        if !(*s).inner.is_null() && !(*s).index.is_null() {
            count_rows(s);
            (*(*s).inner).cursor = None;
        }
        if !(*s).index.is_null() {
            crate::pg::raw::RelationClose((*s).index);
            (*s).index = std::ptr::null_mut();
        }
    }
}
