//! A scan of ranges of the primary index, for the custom scan and the bypass.
//!
//! Its keys are those that an index scan would have; `keys/bounds.rs` makes intervals of them. At
//! SERIALIZABLE it is protected as a scan of the nbtree index would be, by the same code
//! (`access/protect.rs`): that is shown a scan descriptor with the keys. Conditions that the
//! intervals do not express are tested on any version of a record before the row is read through
//! the protocols, because all versions have the same key.

use crate::access::fetch::Fetch;
use crate::access::{deferred, index_lookup, looked, primary, protect, tuple, visible};
use crate::keys::bounds::{self, Exact, Interval};
use crate::pg::{compat, expr, relations, Tid};
use crate::state::platform::{self, PG};
use crate::state::rel::{self, RelInfo};
use crate::state::stop;
use crate::state::xact::rests::Busy;
use crate::state::xact::{self, Mode};
use mixedcc_engine::index::{Direction, Primary, Records};
use mixedcc_engine::range::Looked;
use mixedcc_engine::record::Version;
use mixedcc_engine::txn::{Look, ScanId, Txn};
use mixedcc_engine::{RecordRef, Table};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ops::Bound;
use std::ptr::NonNull;

pub mod plan;
mod walk;

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
        pub fn MemoryContextRegisterResetCallback(
            context: pg_sys::MemoryContext,
            callback: *mut pg_sys::MemoryContextCallback,
        );
    }
}

/// Intervals that a scan reads one by one; more become one that holds them all, with a test of each
/// row.
pub(super) const MANY: usize = 1 << 16;
/// Rows that [`each`] asks for at once.
const RUN: usize = 32;

/// A row: the number of its record, and the version that is seen.
pub type Row = (u64, NonNull<Version>);

/// Where a scan stands, in the order of the index.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum At {
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

/// A scan. It lives as long as the memory context in which it was made.
pub struct RangeScan {
    rel: pg_sys::Relation,
    /// The slot in which rows are tested, and in which [`next`] gives them.
    slot: *mut pg_sys::TupleTableSlot,
    /// The context in which rows are tested.
    context: *mut pg_sys::ExprContext,
    snapshot: pg_sys::Snapshot,
    /// The index of the PRIMARY KEY. Not locked: it exists while its table is locked.
    index: pg_sys::Relation,
    /// What the scan would be in nbtree.
    desc: *mut pg_sys::IndexScanDescData,
    runtime: *mut pg_sys::IndexRuntimeKeyInfo,
    n_runtime: i32,
    /// Where the keys are that are computed at run time; null if there are none.
    runtime_context: *mut pg_sys::ExprContext,
    /// The index conditions; null if the intervals express them exactly.
    pub conditions: *mut pg_sys::ExprState,
    /// Does it begin behind the last row?
    backward: bool,
    /// Were keys computed since the last rescan?
    started: bool,
    at: At,
    intervals: Vec<Interval>,
    /// The interval of the cursor.
    interval: usize,
    cursor: Option<Box<(Records, Direction)>>,
    /// The index that is read, and its table, once the scan has started.
    source: Option<Source>,
    /// How a row can be had that needs nothing but a look at its newest version; `None`: not so.
    look: Option<Look<'static>>,
    /// Rows that were handed out, and not told to the statistics.
    uncounted: u32,
    /// Does each entry need the test of `conditions`?
    filters: bool,
    exact: Exact,
    /// The columns that the plan looks at.
    looked: Looked,
    /// Does the statement skip the rows that are locked (INV-SKIP)?
    pub skips: bool,
}

/// Puts a scan into the current memory context, with which it is dropped.
unsafe fn keep(scan: RangeScan) -> *mut RangeScan {
    #[repr(C)]
    struct Kept {
        callback: pg_sys::MemoryContextCallback,
        scan: RangeScan,
    }
    // Dropping it frees memory, and cannot fail.
    unsafe extern "C-unwind" fn gone(scan: *mut core::ffi::c_void) {
        // SAFETY: the context calls this once, with the scan that `keep` has registered, before it
        // frees the memory.
        unsafe { std::ptr::drop_in_place(scan.cast::<RangeScan>()) };
    }
    // SAFETY: palloc gives as many bytes, aligned for any type, or raises. The callback lies in the
    // same memory as the scan. An ERROR for want of memory jumps over a scan that has allocated
    // nothing yet.
    unsafe {
        let k = crate::pg::raw::palloc(std::mem::size_of::<Kept>()).cast::<Kept>();
        let s = &raw mut (*k).scan;
        s.write(scan);
        (&raw mut (*k).callback).write(pg_sys::MemoryContextCallback {
            func: Some(gone),
            arg: s.cast(),
            next: std::ptr::null_mut(),
        });
        raw::MemoryContextRegisterResetCallback(pg_sys::CurrentMemoryContext, &raw mut (*k).callback);
        s
    }
}

/// Prepares the scan of a node, which has begun when this returns; in the current memory context.
///
/// # Safety
/// A plan of ours that scans a range. `ps`: its node's, with the executor's state and a context of
/// expressions. Its table and index are open; the slot is that of its rows.
pub unsafe fn prepare(
    plan: *mut pg_sys::CustomScan,
    ps: *mut pg_sys::PlanState,
    rel: pg_sys::Relation,
    index: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
) -> *mut RangeScan {
    // SAFETY: `plan`, `ps`, `rel`, `index` and `slot` belong together (contract of this function).
    // `s` lives as long as the current context. The fetch is a chunk of its own, which protect.rs
    // watches.
    unsafe {
        let s = keep(RangeScan {
            rel,
            slot,
            context: (*ps).ps_ExprContext,
            snapshot: (*(*ps).state).es_snapshot,
            index,
            desc: pg_sys::palloc0(std::mem::size_of::<pg_sys::IndexScanDescData>()).cast(),
            runtime: std::ptr::null_mut(),
            n_runtime: 0,
            runtime_context: std::ptr::null_mut(),
            conditions: std::ptr::null_mut(),
            backward: plan::is_backward(plan),
            started: false,
            at: At::Start,
            intervals: Vec::new(),
            interval: 0,
            cursor: None,
            source: None,
            look: None,
            uncounted: 0,
            filters: false,
            exact: Exact::Never,
            looked: looked::by_custom_scan(rel::info(rel), plan),
            skips: false,
        });
        build_keys(s, ps, plan::expressions(plan));
        (*s).begin(Fetch::new(rel));
        (*s).exact = bounds::is_exact(key_of(rel, index).codec, keys((*s).desc));
        s
    }
}

/// The keys of a scan, as nbtree would get them.
unsafe fn build_keys(s: *mut RangeScan, ps: *mut pg_sys::PlanState, exprs: *mut pg_sys::List) {
    // SAFETY: `s` was made by `prepare`; `ps` has the executor's state and a context, and its index
    // is open: contract of `prepare`. ExecIndexBuildScanKeys fills the out parameters.
    unsafe {
        let d = (*s).desc;
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
            pg_sys::ExecAssignExprContext((*ps).state, ps);
            (*s).runtime_context = (*ps).ps_ExprContext;
            (*ps).ps_ExprContext = usual;
        }
    }
}

/// Prepares a scan that has no node and is executed again and again ([`open`], [`close`]). It is in
/// the current memory context.
///
/// # Safety
/// A plan of ours that scans a range, its table, which is open, and the slot and context of the
/// rows.
pub unsafe fn prepare_alone(
    plan: *mut pg_sys::CustomScan,
    rel: pg_sys::Relation,
    context: *mut pg_sys::ExprContext,
    slot: *mut pg_sys::TupleTableSlot,
) -> *mut RangeScan {
    // SAFETY: `plan` is ours, `rel` open, and `slot` and `context` are of its rows (contract of
    // this function). Expressions are prepared with a node and the executor's state. These are only
    // pointed to, and give the context. The index exists while its table is locked.
    unsafe {
        let estate = pg_sys::palloc0(std::mem::size_of::<pg_sys::EState>()).cast::<pg_sys::EState>();
        (*estate).type_ = pg_sys::NodeTag::T_EState;
        (*estate).es_query_cxt = pg_sys::CurrentMemoryContext;
        let node = pg_sys::palloc0(std::mem::size_of::<pg_sys::CustomScanState>());
        let ps = node.cast::<pg_sys::PlanState>();
        (*ps).type_ = pg_sys::NodeTag::T_CustomScanState;
        (*ps).state = estate;
        (*ps).ps_ExprContext = context;
        let index = relations::entry(plan::index_of(plan));
        let s = prepare(plan, ps, rel, index, slot);
        pg_sys::RelationClose(index);
        (*s).index = std::ptr::null_mut();
        if !(*s).is_exact() {
            (*s).conditions = pg_sys::ExecInitQual(plan::conditions(plan), std::ptr::null_mut());
        }
        s
    }
}

unsafe fn keys<'a>(d: *mut pg_sys::IndexScanDescData) -> &'a [pg_sys::ScanKeyData] {
    // SAFETY: `keyData` of a scan's descriptor has `numberOfKeys` entries (relscan.h), which stay
    // as long as the scan.
    unsafe {
        match (*d).numberOfKeys as usize {
            0 => &[],
            n => std::slice::from_raw_parts((*d).keyData, n),
        }
    }
}

/// The key of a table that is scanned. A plan is made again when the table's definition changes.
///
/// # Safety
/// An open relation of ours, locked since the plan was made, and the index of one of its keys.
pub unsafe fn key_of(rel: pg_sys::Relation, index: pg_sys::Relation) -> &'static rel::PrimaryKey {
    // SAFETY: `rel` is open and of ours, and `index` is open (contract of this function).
    unsafe {
        let Some(key) = primary::key_of_index(rel, rel::info(rel), (*index).rd_id) else {
            error!("mixedcc has lost the index in memory of a table that is scanned")
        };
        key
    }
}

impl RangeScan {
    /// Do the intervals express the conditions, whatever the values are?
    pub fn is_exact(&self) -> bool {
        self.exact == Exact::Always
    }

    fn fetch(&self) -> *mut Fetch {
        // SAFETY: `desc` was allocated by `prepare`, and lives as long as the scan.
        unsafe { (*self.desc).xs_heapfetch.cast() }
    }

    /// Stands in front of the first row of an execution.
    unsafe fn begin(&mut self, f: *mut Fetch) {
        // SAFETY: `desc` was allocated by `prepare`, and lives as long as the scan.
        unsafe {
            let d = self.desc;
            (*d).heapRelation = self.rel;
            (*d).indexRelation = self.index;
            (*d).xs_snapshot = self.snapshot;
            (*d).xs_heapfetch = f.cast();
            (*f).looked = self.looked;
        }
        self.rewind();
    }

    fn rewind(&mut self) {
        (self.started, self.interval, self.cursor) = (false, 0, None);
        self.at = if self.backward { At::End } else { At::Start };
    }
}

/// Begins an execution. What belongs to it is allocated in the current context: its end, in
/// whatever way, ends the scan.
///
/// # Safety
/// A scan of [`prepare_alone`] that is not running, its table, which is open, the index, and the
/// state of the execution. An ERROR jumps over this frame.
pub unsafe fn open(s: *mut RangeScan, rel: pg_sys::Relation, index: pg_sys::Oid, estate: *mut pg_sys::EState) {
    // SAFETY: `s` was made by `prepare_alone` and does not run; `rel` is open, and `estate` is the
    // execution's (contract of this function). The index exists while its table is locked.
    unsafe {
        deferred::before_look((*rel).rd_id);
        let s = &mut *s;
        (s.rel, s.snapshot, s.uncounted) = (rel, (*estate).es_snapshot, 0);
        s.index = relations::entry_unguarded(index);
        if !s.runtime_context.is_null() {
            (*s.runtime_context).ecxt_param_list_info = (*estate).es_param_list_info;
        }
        s.begin(Fetch::new(rel));
    }
}

/// Puts the next row, in the direction of the plan, into the slot.
///
/// # Safety
/// A scan that is open. An ERROR jumps over this frame.
pub unsafe fn next(s: *mut RangeScan) -> bool {
    // SAFETY: `s` is open (contract of this function): so its table and slot are. The transaction's
    // pin keeps the version (INV-RETIRE).
    unsafe {
        let up = !(*s).backward;
        let found = match at_hand(s, up) {
            None => step(s, up),
            at_hand => at_hand,
        };
        let Some((no, v)) = found else { return false };
        tuple::store((*s).slot, (*(*s).rel).rd_id, Tid::Record(no), v.as_ptr());
        true
    }
}

/// Gives all rows to `take`, in the order of the plan, for callers that need no slot. They stay as
/// long as rows in the slot would.
///
/// # Safety
/// A scan that is open, from its first row on. `take` does not touch the scan, nor tables of ours.
/// An ERROR jumps over this frame.
pub unsafe fn each(s: *mut RangeScan, mut take: impl FnMut(NonNull<Version>)) {
    // SAFETY: `s` is open (contract of this function), and `take` does not touch it. The
    // transaction's pin keeps the versions (INV-RETIRE).
    unsafe {
        let up = !(*s).backward;
        let mut run = [NonNull::dangling(); RUN];
        loop {
            let n = all_at_hand(s, up, &mut run);
            run[..n].iter().for_each(|v| take(*v));
            if n == RUN {
                continue;
            }
            let Some((_, v)) = step(s, up) else { return };
            take(v);
        }
    }
}

/// Ends an execution: what the scan protects is known now.
///
/// # Safety
/// A scan that is open.
pub unsafe fn close(s: *mut RangeScan) {
    // SAFETY: `s` is open (contract of this function): `index` is the reference that `open` has
    // taken.
    unsafe {
        end(s);
        pg_sys::RelationClose((*s).index);
        (*s).index = std::ptr::null_mut();
    }
}

/// Ends the scan of a node: what it protects is known now. The index stays open.
///
/// # Safety
/// A scan that was begun and not ended.
pub unsafe fn end(s: *mut RangeScan) {
    // SAFETY: `s` was begun and not ended (contract of this function): its fetch is alive.
    unsafe {
        protect::close((*s).fetch());
        count_rows(s);
        (*s).cursor = None;
    }
}

/// The scan starts anew, with other values of its keys.
///
/// # Safety
/// A scan that was begun and not ended.
pub unsafe fn rescan(s: *mut RangeScan) {
    // SAFETY: `s` was begun and not ended (contract of this function): its fetch is alive.
    unsafe {
        count_rows(s);
        (*s).rewind();
        // What it protects is known now; the next start protects anew.
        protect::settle((*s).fetch());
    }
}

/// Tells the statistics of the rows that were handed out.
///
/// # Safety
/// A scan that was begun and not ended.
pub unsafe fn count_rows(s: *mut RangeScan) {
    // SAFETY: `s` was begun and not ended (contract of this function): its table and index are
    // open.
    unsafe {
        let n = std::mem::take(&mut (*s).uncounted);
        compat::count_fetched_rows((*s).rel, (*s).index, n);
    }
}

/// The next row of a scan that goes on in its direction. `None` unless its record was found already
/// and a look at the newest version is enough, as for most rows. Neither fails nor unwinds.
///
/// # Safety
/// A scan that was begun and not ended.
#[inline]
pub unsafe fn at_hand(s: *mut RangeScan, up: bool) -> Option<Row> {
    // SAFETY: `s` was begun and not ended (contract of this function). A look sees a settled
    // version (INV-SETTLED), which the pin keeps (INV-RETIRE).
    unsafe {
        let (t, cursor, look) = looked_for(s, up)?;
        while let Some(r) = cursor.next_copied() {
            let seen = match look {
                _ if t.last_write(r).is_some() => None,
                Look::Scan(id) => t.peek_scanned(r, id),
                Look::Snapshot(seen) => t.peek_snapshot(r, seen),
            };
            match seen {
                Some(Some(v)) => {
                    (*(*s).fetch()).last = v.as_ptr();
                    (*s).uncounted += 1;
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

/// As [`at_hand`], of all rows that are, as many as `to` has room for, for a statement that takes
/// them all; how many.
unsafe fn all_at_hand(s: *mut RangeScan, up: bool, to: &mut [NonNull<Version>]) -> usize {
    // SAFETY: `s` is that of `each`: it is open. A look sees settled versions (INV-SETTLED), which
    // the pin keeps (INV-RETIRE).
    unsafe {
        let Some((t, cursor, look)) = looked_for(s, up) else { return 0 };
        let n = t.peek_run(cursor, look, to);
        if let Some(last) = n.checked_sub(1) {
            (*(*s).fetch()).last = to[last].as_ptr();
        }
        (*s).uncounted += n as u32;
        n
    }
}

/// What the next row is to be had from by a look, if it can be.
#[inline]
unsafe fn looked_for<'a>(s: *mut RangeScan, up: bool) -> Option<(&'a mut Txn, &'a mut Records, Look<'a>)> {
    // SAFETY: `s` was begun and not ended: contract of `at_hand` and `each`. The cursor is the
    // scan's, which nothing else uses while the result is used.
    unsafe {
        let look = (*s).look?;
        let (cursor, way) = (&mut *(&raw mut (*s).cursor)).as_deref_mut()?;
        let same_way = up == (*way == Direction::Forward);
        if (*s).at != At::Row || !same_way || pg_sys::InterruptPending != 0 || stop::is_on() {
            return None;
        }
        Some((xact::running()?, cursor, look))
    }
}

/// The next row in the order of the index, or in the opposite one.
///
/// # Safety
/// A scan that was begun and not ended. An ERROR jumps over this frame.
pub unsafe fn step(s: *mut RangeScan, up: bool) -> Option<Row> {
    // SAFETY: `s` was begun and not ended, and no other reference to it is in use (contract of this
    // function).
    unsafe { walk::step(&mut *s, up).inspect(|_| (*s).uncounted += 1) }
}
