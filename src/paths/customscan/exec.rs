//! The node: a look-up of one key, or a scan of ranges of keys, in either direction.

use super::EXEC;
use crate::access::lookup::{self, Use};
use crate::access::range::plan::{self, cell};
use crate::access::range::{self, At, RangeScan, Row};
use crate::access::{looked, statements, tuple};
use crate::pg::{compat, expr, relations, Tid};
use crate::state::rel;
use crate::state::xact::{self, Mode};
use mixedcc_engine::range::Columns;
use mixedcc_engine::record::Version;
use pgrx::pg_sys::{self, Datum, NodeTag, Oid};
use pgrx::prelude::*;
use std::ptr::NonNull;

mod raw {
    use pgrx::pg_sys;
    extern "C-unwind" {
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
        pub fn ProcessInterrupts();
        pub fn MemoryContextReset(context: pg_sys::MemoryContext);
        pub fn ExecScan(
            node: *mut pg_sys::ScanState,
            access: unsafe extern "C-unwind" fn(*mut pg_sys::ScanState) -> *mut pg_sys::TupleTableSlot,
            recheck: unsafe extern "C-unwind" fn(*mut pg_sys::ScanState, *mut pg_sys::TupleTableSlot) -> bool,
        ) -> *mut pg_sys::TupleTableSlot;
    }
}

/// The node's state, as `create` makes it: all zero, which is `At::Start` too.
#[repr(C)]
pub struct State {
    css: pg_sys::CustomScanState,
    /// The index of the PRIMARY KEY. Not locked: it exists while its table is locked.
    index: pg_sys::Relation,
    /// The scan; null for look-ups of the whole key.
    range: *mut RangeScan,
    /// The values of the whole key, and their types.
    values: *mut *mut pg_sys::ExprState,
    types: *const Oid,
    n_values: usize,
    /// The index conditions; null if nothing tests them.
    conditions: *mut pg_sys::ExprState,
    backward: bool,
    /// The row of a look-up; null: there is none, or it was not looked up.
    found: *mut Version,
    /// The number of its record.
    found_no: u64,
    /// Was it looked up?
    looked: bool,
    /// Is that row skipped if it is locked (INV-SKIP)?
    skips: bool,
    /// The columns of the row that the statement looks at; null before that is asked.
    columns: *const Columns,
    /// Where the look-up stands.
    at: At,
}

/// `CreateCustomScanState`. Not guarded: it fails only in PostgreSQL's code.
///
/// # Safety
/// CreateCustomScanState of extensible.h: the plan is one of ours, and the result is a new state.
pub unsafe extern "C-unwind" fn create(_plan: *mut pg_sys::CustomScan) -> *mut pg_sys::Node {
    // SAFETY: zeroed memory of the size of `State` is a valid one; this frame owns nothing.
    unsafe {
        let s = crate::pg::raw::palloc0(std::mem::size_of::<State>()).cast::<State>();
        (*s).css.ss.ps.type_ = NodeTag::T_CustomScanState;
        (*s).css.methods = &EXEC.0;
        s.cast()
    }
}

/// `BeginCustomScan`.
///
/// # Safety
/// BeginCustomScan of extensible.h: `create` has made `node`, and ExecInitCustomScan has filled it.
#[pg_guard]
pub unsafe extern "C-unwind" fn begin(node: *mut pg_sys::CustomScanState, estate: *mut pg_sys::EState, eflags: i32) {
    // SAFETY: `create` has made `node`, and ExecInitCustomScan has opened its table (extensible.h).
    // The index exists while its table is locked. An ERROR of an unguarded call jumps over frames
    // that own nothing.
    unsafe {
        let s = node.cast::<State>();
        let ss = &raw mut (*s).css.ss;
        let plan: *mut pg_sys::CustomScan = (*ss).ps.plan.cast();
        // Our rows are heap tuples, and not taken apart before somebody asks for a column.
        raw::ExecInitScanTupleSlot(estate, ss, (*(*ss).ss_currentRelation).rd_att, &raw const pg_sys::TTSOpsHeapTuple);
        raw::ExecAssignScanProjectionInfo(ss);
        if !(*plan).scan.plan.qual.is_null() {
            (*ss).ps.qual = raw::ExecInitQual((*plan).scan.plan.qual, ss.cast());
        }
        (*s).backward = plan::is_backward(plan);
        (*s).at = start_of(s);
        if eflags & pg_sys::EXEC_FLAG_EXPLAIN_ONLY as i32 != 0 {
            return;
        }
        (*s).index = relations::entry_unguarded(plan::index_of(plan));
        let types = plan::key_types(plan);
        if types.is_null() {
            (*s).range = range::prepare(plan, ss.cast(), (*ss).ss_currentRelation, (*s).index, (*ss).ss_ScanTupleSlot);
        } else {
            begin_look_up(s, plan::expressions(plan), types);
        }
        let exact = (*s).range.is_null() || (*(*s).range).is_exact();
        if !exact || !(*estate).es_epq_active.is_null() {
            (*s).conditions = raw::ExecInitQual(plan::conditions(plan), ss.cast());
        }
        if !(*s).range.is_null() {
            (*(*s).range).conditions = (*s).conditions;
        }
    }
}

/// Where a scan stands before its first row.
unsafe fn start_of(s: *const State) -> At {
    // SAFETY: `create` has made `s`, and `begin` has set `backward`.
    if unsafe { (*s).backward } {
        At::End
    } else {
        At::Start
    }
}

/// The values of a key.
unsafe fn begin_look_up(s: *mut State, exprs: *mut pg_sys::List, types: *mut pg_sys::List) {
    // SAFETY: `begin` has a state of ours and its plan, with as many types as expressions
    // (`plan::make`). The memory has room for `n` of both.
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
    }
}

/// `ExecCustomScan`: the next row that passes the qualification, as the plan wants it. What runs
/// below is guarded where it is ours, and not where it is PostgreSQL's.
///
/// # Safety
/// ExecCustomScan of extensible.h: `begin` has prepared `node`, which was not ended.
pub unsafe extern "C-unwind" fn run(node: *mut pg_sys::CustomScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: `begin` has prepared `node`: extensible.h gives what `create` made. This frame owns
    // nothing.
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
    // SAFETY: `run` has given its node to ExecScan, which hands it on, and a slot of its row type.
    // `begin` has made the conditions, as `es_epq_active` is set.
    unsafe {
        let s = node.cast::<State>();
        let context = (*s).css.ss.ps.ps_ExprContext;
        (*context).ecxt_scantuple = slot;
        expr::passes((*s).conditions, context)
    }
}

/// The next row, in the direction of plan and executor. Guarded only where something can fail.
unsafe extern "C-unwind" fn access(node: *mut pg_sys::ScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: `run` has a node that `begin` has prepared. This frame owns nothing, and unguarded
    // calls neither fail nor unwind.
    unsafe {
        let s = node.cast::<State>();
        if !(*s).range.is_null() {
            if let Some(row) = range::at_hand((*s).range, goes_up(s)) {
                return hand_out(s, row);
            }
        }
        guarded_access(node)
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn guarded_access(node: *mut pg_sys::ScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: `access` has a node that `begin` has prepared, and its range was not ended.
    unsafe {
        let s = node.cast::<State>();
        let up = goes_up(s);
        let found = if (*s).range.is_null() {
            look_up(s, up)
        } else {
            let found = range::step((*s).range, up);
            range::count_rows((*s).range);
            found
        };
        match found {
            Some(row) => hand_out(s, row),
            None => {
                expr::clear((*s).css.ss.ss_ScanTupleSlot);
                std::ptr::null_mut()
            }
        }
    }
}

unsafe fn goes_up(s: *mut State) -> bool {
    // SAFETY: `access` has a node that `begin` has prepared; the executor's state outlives its
    // nodes.
    let forward = unsafe { (*(*s).css.ss.ps.state).es_direction >= 0 };
    // SAFETY: the node is one that `begin` has prepared.
    forward != unsafe { (*s).backward }
}

#[inline]
unsafe fn hand_out(s: *mut State, (no, v): Row) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: `access` has a node that `begin` has prepared, with its slot. Our pin keeps the
    // version `v` longer than the slot shows it (INV-RETIRE).
    unsafe {
        let slot = (*s).css.ss.ss_ScanTupleSlot;
        tuple::store(slot, (*(*s).css.ss.ss_currentRelation).rd_id, Tid::Record(no), v.as_ptr());
        slot
    }
}

/// A scan of one row: the row, or nothing behind it.
unsafe fn look_up(s: *mut State, up: bool) -> Option<Row> {
    // SAFETY: `guarded_access` has a node that `begin` has prepared for a look-up. `found` is null
    // or a version that our pin keeps (INV-RETIRE).
    unsafe {
        if !(*s).looked {
            (*s).looked = true;
            let found = find_row(s);
            (*s).found = found.map_or(std::ptr::null_mut(), |(_, v)| v.as_ptr());
            (*s).found_no = found.map_or(0, |(no, _)| no);
        }
        let to = if up { At::End } else { At::Start };
        if (*s).at == to {
            return None;
        }
        let row = NonNull::new((*s).found).filter(|_| (*s).at != At::Row);
        (*s).at = if row.is_some() { At::Row } else { to };
        compat::count_fetched_rows((*s).css.ss.ss_currentRelation, (*s).index, u32::from(row.is_some()));
        row.map(|v| ((*s).found_no, v))
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

unsafe fn find_row(s: *mut State) -> Option<Row> {
    // SAFETY: `guarded_access` has a node that `begin` has prepared, with `n_values` values and
    // types. Its table and index are open. Values are in memory that is reset with the next row.
    unsafe {
        let rel = (*s).css.ss.ss_currentRelation;
        let info = rel::info(rel);
        let key = range::key_of(rel, (*s).index);
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
        let snapshot = (*(*s).css.ss.ps.state).es_snapshot;
        let to = match xact::mode() == Mode::Serializable {
            true if (*s).skips => Use::Offer,
            true if statements::will_write(snapshot, info.oid) => Use::Write,
            true => Use::Look(columns_of(s, info)),
            false => Use::Look(Columns::ALL),
        };
        let Some(found) = lookup::by_key(rel, info, key, &Values(values, types), snapshot, to) else {
            error!("mixedcc cannot make the key of a look-up that it has planned")
        };
        found.map(|found| (found.r.no, found.version))
    }
}

/// The columns of its row that the node hands on or asks for. Found once, in memory of the node.
unsafe fn columns_of(s: *mut State, info: &rel::RelInfo) -> Columns {
    // SAFETY: `find_row` has a state of ours with a plan of ours, whose table has this info. The
    // memory is of the statement, as the node is.
    unsafe {
        if (*s).columns.is_null() {
            let ss = &raw mut (*s).css.ss;
            let memory = (*(*ss).ps.state).es_query_cxt;
            let room = pg_sys::MemoryContextAlloc(memory, std::mem::size_of::<Columns>()).cast::<Columns>();
            room.write(looked::by_look_up(info, (*ss).ps.plan.cast()));
            (*s).columns = room;
        }
        *(*s).columns
    }
}

/// The statement skips the rows of this node that are locked (INV-SKIP).
///
/// # Safety
/// A started node of ours.
pub unsafe fn skips(node: *mut pg_sys::CustomScanState) {
    // SAFETY: `begin` has prepared `node` (contract of this function).
    unsafe {
        let s = node.cast::<State>();
        (*s).skips = true;
        if !(*s).range.is_null() {
            (*(*s).range).skips = true;
        }
    }
}

/// `ReScanCustomScan`.
///
/// # Safety
/// ReScanCustomScan of extensible.h: `begin` has prepared `node`, which was not ended.
#[pg_guard]
pub unsafe extern "C-unwind" fn rescan(node: *mut pg_sys::CustomScanState) {
    // SAFETY: `begin` has prepared `node` (extensible.h), and its range is null or was not ended.
    unsafe {
        let s = node.cast::<State>();
        ((*s).looked, (*s).found, (*s).at) = (false, std::ptr::null_mut(), start_of(s));
        if !(*s).range.is_null() {
            range::rescan((*s).range);
        }
        pg_sys::ExecScanReScan(&raw mut (*node).ss);
    }
}

/// `EndCustomScan`.
///
/// # Safety
/// EndCustomScan of extensible.h: `begin` has prepared `node`, which was not ended.
#[pg_guard]
pub unsafe extern "C-unwind" fn end(node: *mut pg_sys::CustomScanState) {
    // SAFETY: `begin` has prepared `node` (extensible.h). The index has the reference that `begin`
    // took, and the pointers are cleared.
    unsafe {
        let s = node.cast::<State>();
        if !(*s).range.is_null() {
            range::end((*s).range);
            (*s).range = std::ptr::null_mut();
        }
        if !(*s).index.is_null() {
            crate::pg::raw::RelationClose((*s).index);
            (*s).index = std::ptr::null_mut();
        }
    }
}
