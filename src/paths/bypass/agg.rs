//! Aggregates over all rows of a statement, as nodeAgg.c computes them without groups.
//!
//! Only PostgreSQL's own aggregates with plain arguments are taken: their functions are built in
//! and ask of their caller only where their state lives (`AggCheckCallContext`).

use super::column::Column;
use super::Reason;
use crate::pg::{compat, expr, raw};
use mixedcc_engine::record::Version;
use pgrx::pg_sys::{self, Aggref, Datum, NodeTag, Oid, SysCacheIdentifier::*};
use pgrx::PgList;

/// Columns of pg_aggregate.
const KIND: i16 = 2;
const TRANSITION: i16 = 4;
const FINAL: i16 = 5;
const FINAL_EXTRA: i16 = 12;
const STATE_TYPE: i16 = 17;
const INITIAL: i16 = 21;
/// `count(any)`.
const COUNT_ANY: u32 = 2147;

/// One aggregate.
#[repr(C)]
pub struct Aggregate {
    call: *mut pg_sys::FunctionCallInfoBaseData,
    finish: *mut pg_sys::FunctionCallInfoBaseData,
    args: *mut *mut pg_sys::ExprState,
    n_args: usize,
    /// The arguments, if all are columns; else null.
    columns: *mut Column,
    /// The state's type.
    len: i16,
    by_value: bool,
    initial: Datum,
    no_initial: bool,
    /// The state.
    value: Datum,
    null: bool,
    /// Is the first argument to become the state?
    none_yet: bool,
}

/// The aggregates of a statement.
#[repr(C)]
pub struct Aggregates {
    all: *mut Aggregate,
    n: usize,
    /// Are all arguments columns of the table?
    of_columns: bool,
    /// Where states live, until the next execution.
    states: *mut pg_sys::ExprContext,
    /// The row of results.
    results: *mut pg_sys::TupleTableSlot,
}

/// A column of a catalog's row; `None`: NULL.
unsafe fn attribute(cache: pg_sys::SysCacheIdentifier::Type, row: pg_sys::HeapTuple, n: i16) -> Option<Datum> {
    let mut null = false;
    // SAFETY: `row` is a row of that cache, and the caller's number is a column of it; `null` is
    // ours.
    let d = unsafe { pg_sys::SysCacheGetAttr(cache as i32, row, n, &mut null) };
    (!null).then_some(d)
}

unsafe fn alloc<T>(n: usize) -> *mut T {
    // SAFETY: `palloc0` gives zeroed memory of that size or raises; nothing that needs a drop is
    // alive here.
    unsafe { pg_sys::palloc0(n.max(1) * std::mem::size_of::<T>()).cast() }
}

/// Prepares the aggregates of a statement over rows of this type. Its state is allocated in the
/// current memory context.
///
/// # Safety
/// Valid aggregates with arguments that `plan` has checked; `rows` is the type of the table's rows.
pub unsafe fn prepare(found: &[*mut Aggref], rows: pg_sys::TupleDesc) -> Result<*mut Aggregates, Reason> {
    // SAFETY: the aggregates and `rows` are valid: contract of this function. `alloc` gave room for
    // as many.
    unsafe {
        let a = alloc::<Aggregates>(1);
        (*a).n = found.len();
        (*a).all = alloc(found.len());
        (*a).states = pg_sys::CreateStandaloneExprContext();
        let node = alloc::<pg_sys::AggState>(1);
        (*node).ss.ps.type_ = NodeTag::T_AggState;
        (*node).curaggcontext = (*a).states;
        let desc = pg_sys::CreateTemplateTupleDesc(found.len() as i32);
        for (i, r) in found.iter().enumerate() {
            let name = std::ptr::null();
            pg_sys::TupleDescInitEntry(desc, i as i16 + 1, name, (**r).aggtype, -1, 0);
            pg_sys::TupleDescInitEntryCollation(desc, i as i16 + 1, (**r).aggcollid);
            one(&mut *(*a).all.add(i), &**r, node, rows)?;
        }
        (*a).of_columns = (0..found.len()).all(|i| !(*(*a).all.add(i)).columns.is_null());
        (*a).results = pg_sys::MakeTupleTableSlot(desc, &raw const pg_sys::TTSOpsVirtual);
        Ok(a)
    }
}

unsafe fn one(
    a: &mut Aggregate,
    r: &Aggref,
    node: *mut pg_sys::AggState,
    rows: pg_sys::TupleDesc,
) -> Result<(), Reason> {
    // SAFETY: `r` and `rows` are valid (contract of `prepare`). `SearchSysCache1` pins `row` until
    // its release. The functions and types that pg_aggregate names exist, as the aggregate depends
    // on them.
    unsafe {
        let simple = r.aggdirectargs.is_null()
            && r.aggorder.is_null()
            && r.aggdistinct.is_null()
            && r.aggfilter.is_null()
            && !r.aggvariadic
            && r.agglevelsup == 0
            && r.aggsplit == pg_sys::AggSplit::AGGSPLIT_SIMPLE;
        let pinned = r.aggfnoid.to_u32() < pg_sys::FirstUnpinnedObjectId;
        if !simple || !pinned || is_polymorphic(r) {
            return Err(Reason::Expression);
        }
        if !compat::may_call(r.aggfnoid, pg_sys::GetUserId()) {
            return Err(Reason::Rights);
        }
        let row = pg_sys::SearchSysCache1(AGGFNOID as i32, r.aggfnoid.into());
        if row.is_null() {
            return Err(Reason::Expression);
        }
        let column = |n| attribute(AGGFNOID, row, n);
        let kind = column(KIND).map_or(0, |d| d.value() as u8);
        let extra = column(FINAL_EXTRA).is_none_or(|d| d.value() != 0);
        let oid = |n| column(n).map_or(pg_sys::InvalidOid, |d| Oid::from(d.value() as u32));
        let (transition, finish, state) = (oid(TRANSITION), oid(FINAL), oid(STATE_TYPE));
        let initial = column(INITIAL).map(|d| pg_sys::text_to_cstring(d.cast_mut_ptr()));
        pg_sys::ReleaseSysCache(row);
        let has_finish = finish != pg_sys::InvalidOid;
        let null = std::ptr::null_mut();
        if kind != b'n' || extra || expr::is_foreign(transition, null) || has_finish && expr::is_foreign(finish, null) {
            return Err(Reason::Expression);
        }
        pg_sys::get_typlenbyval(state, &mut a.len, &mut a.by_value);
        a.no_initial = initial.is_none();
        if let Some(text) = initial {
            let (mut input, mut param) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
            pg_sys::getTypeInputInfo(state, &mut input, &mut param);
            a.initial = pg_sys::OidInputFunctionCall(input, text, param, -1);
        }
        let args: Vec<_> = PgList::<pg_sys::TargetEntry>::from_pg(r.args).iter_ptr().collect();
        a.n_args = args.len();
        a.args = alloc(args.len());
        for (i, e) in args.iter().enumerate() {
            *a.args.add(i) = pg_sys::ExecInitExpr((**e).expr, std::ptr::null_mut());
        }
        let columns: Option<Vec<_>> = args.iter().map(|e| Column::of((**e).expr.cast(), rows)).collect();
        if let Some(columns) = columns {
            a.columns = alloc(columns.len());
            std::ptr::copy_nonoverlapping(columns.as_ptr(), a.columns, columns.len());
        }
        a.call = call_of(transition, args.len() + 1, r.inputcollid, node);
        if has_finish {
            a.finish = call_of(finish, 1, r.inputcollid, node);
        }
        Ok(())
    }
}

/// Does it ask for the types of its arguments?
unsafe fn is_polymorphic(r: &Aggref) -> bool {
    // SAFETY: `r` is a valid node (contract of `prepare`). pg_proc has its function, and
    // `get_func_signature` gives `n` types.
    unsafe {
        let mut types: *mut Oid = std::ptr::null_mut();
        let mut n = 0;
        pg_sys::get_func_signature(r.aggfnoid, &mut types, &mut n);
        (0..n as usize).map(|i| *types.add(i)).any(|t| {
            let pseudo = pg_sys::get_typtype(t) as u8 == pg_sys::TYPTYPE_PSEUDO;
            pseudo && !(t == pg_sys::ANYOID && r.aggfnoid.to_u32() == COUNT_ANY)
        })
    }
}

/// A call of a function with room for its arguments.
unsafe fn call_of(
    f: Oid,
    n: usize,
    collation: Oid,
    node: *mut pg_sys::AggState,
) -> *mut pg_sys::FunctionCallInfoBaseData {
    // SAFETY: `one` has found a built-in function `f`, with `n` arguments. The zeroed memory has
    // room for so many behind the struct.
    unsafe {
        let info = alloc::<pg_sys::FmgrInfo>(1);
        pg_sys::fmgr_info_cxt(f, info, pg_sys::CurrentMemoryContext);
        let size =
            std::mem::size_of::<pg_sys::FunctionCallInfoBaseData>() + n * std::mem::size_of::<pg_sys::NullableDatum>();
        let c = pg_sys::palloc0(size).cast::<pg_sys::FunctionCallInfoBaseData>();
        (*c).flinfo = info;
        (*c).context = node.cast();
        (*c).fncollation = collation;
        (*c).nargs = n as i16;
        c
    }
}

unsafe fn arg<'a>(c: *mut pg_sys::FunctionCallInfoBaseData, i: usize) -> &'a mut pg_sys::NullableDatum {
    // SAFETY: `call_of` has made `c` with room for more than `i` arguments. The caller keeps no
    // other reference to this one.
    unsafe { &mut *(*c).args.as_mut_ptr().add(i) }
}

unsafe fn call(c: *mut pg_sys::FunctionCallInfoBaseData) -> (Datum, bool) {
    // SAFETY: `call_of` has made `c`, and the caller has filled its arguments. The function may
    // raise: nothing that needs a drop is alive in this frame.
    unsafe {
        (*c).isnull = false;
        let d = (*(*c).flinfo).fn_addr.map_or(Datum::from(0), |f| f(c));
        (d, (*c).isnull)
    }
}

/// Begins: no row was seen.
///
/// # Safety
/// Prepared aggregates. An ERROR jumps over this frame.
pub unsafe fn start(a: *mut Aggregates) {
    // SAFETY: `prepare` has made `a` (contract of this function). The program runs once at a time,
    // so nothing else uses the states (INV-BYPASS-ONCE).
    unsafe {
        raw::MemoryContextReset((*(*a).states).ecxt_per_tuple_memory);
        for i in 0..(*a).n {
            let one = &mut *(*a).all.add(i);
            (one.null, one.none_yet) = (one.no_initial, one.no_initial);
            one.value = if one.no_initial { Datum::from(0) } else { kept(a, one, one.initial) };
        }
    }
}

/// The result was given, or will not be: the memory of the states is not needed any more.
///
/// # Safety
/// Prepared aggregates, which no statement runs.
pub unsafe fn end(a: *mut Aggregates) {
    // SAFETY: `prepare` has made `a` (contract of this function). `start` makes all states anew.
    unsafe { raw::MemoryContextReset((*(*a).states).ecxt_per_tuple_memory) };
}

/// A value in the memory of the states.
unsafe fn kept(a: *mut Aggregates, one: &Aggregate, d: Datum) -> Datum {
    // SAFETY: `d` is a value of the state's type, of which `one.len` is the length. `prepare` has
    // made the context of the states.
    unsafe {
        if one.by_value {
            return d;
        }
        let old = pg_sys::MemoryContextSwitchTo((*(*a).states).ecxt_per_tuple_memory);
        let d = raw::datumCopy(d, false, one.len as i32);
        pg_sys::MemoryContextSwitchTo(old);
        d
    }
}

/// Takes the row in the context's scan slot in.
///
/// # Safety
/// Aggregates that were started. An ERROR jumps over this frame.
pub unsafe fn add(a: *mut Aggregates, c: *mut pg_sys::ExprContext) {
    // SAFETY: `start` has begun `a`, and `c` has the row: contract of this function. Only this
    // execution uses them (INV-BYPASS-ONCE).
    unsafe {
        for i in 0..(*a).n {
            let one = &mut *(*a).all.add(i);
            let mut missing = false;
            for n in 0..one.n_args {
                let at = arg(one.call, n + 1);
                (at.value, at.isnull) = expr::evaluate(*one.args.add(n), c);
                missing = missing || at.isnull;
            }
            advance(a, one, c, missing);
        }
    }
}

/// Are all arguments columns of the table, so that [`add_version`] will do?
///
/// # Safety
/// Prepared aggregates.
pub unsafe fn of_columns(a: *const Aggregates) -> bool {
    // SAFETY: `prepare` has made `a`: contract of this function.
    unsafe { (*a).of_columns }
}

/// Takes a row in, without a slot.
///
/// # Safety
/// Aggregates of columns that were started; a reachable version with a row of the type that they
/// were prepared for. An ERROR jumps over this frame.
#[inline]
pub unsafe fn add_version(a: *mut Aggregates, c: *mut pg_sys::ExprContext, v: *const Version, rows: pg_sys::TupleDesc) {
    // SAFETY: `v` is reachable and of the row type of `rows`, and all arguments are columns:
    // contract of this function. Only this execution uses `a` (INV-BYPASS-ONCE).
    unsafe {
        for i in 0..(*a).n {
            let one = &mut *(*a).all.add(i);
            let mut missing = false;
            for n in 0..one.n_args {
                let at = arg(one.call, n + 1);
                (*one.columns.add(n)).read(v, rows, at);
                missing = missing || at.isnull;
            }
            advance(a, one, c, missing);
        }
    }
}

/// The arguments of a row are there; is one of them NULL? (advance_transition_function)
#[inline]
unsafe fn advance(a: *mut Aggregates, one: &mut Aggregate, c: *mut pg_sys::ExprContext, missing: bool) {
    // SAFETY: `add` or `add_version` has filled the arguments of `one.call`. `one` is an aggregate
    // of `a`, which was started.
    unsafe {
        if !(*(*one.call).flinfo).fn_strict {
            transit(a, one, c);
        } else if missing || one.null && !one.none_yet {
            // The state stays.
        } else if one.none_yet {
            one.value = kept(a, one, arg(one.call, 1).value);
            (one.null, one.none_yet) = (false, false);
        } else {
            transit(a, one, c);
        }
    }
}

#[inline]
unsafe fn transit(a: *mut Aggregates, one: &mut Aggregate, c: *mut pg_sys::ExprContext) {
    // SAFETY: `advance` has found the arguments good for the function. `one.value` is in the memory
    // of the states if it is not by value and not NULL.
    unsafe {
        let state = arg(one.call, 0);
        (state.value, state.isnull) = (one.value, one.null);
        let old = pg_sys::MemoryContextSwitchTo((*c).ecxt_per_tuple_memory);
        let (mut d, null) = call(one.call);
        pg_sys::MemoryContextSwitchTo(old);
        if !one.by_value && d.value() != one.value.value() {
            if !null {
                d = kept(a, one, d);
            }
            if !one.null {
                raw::pfree(one.value.cast_mut_ptr());
            }
        }
        (one.value, one.null) = (d, null);
    }
}

/// The row of results, in the context's outer slot.
///
/// # Safety
/// Aggregates that were started; `c` is the context of the program. An ERROR jumps over this frame.
pub unsafe fn results(a: *mut Aggregates, c: *mut pg_sys::ExprContext) {
    // SAFETY: `a` was started and `c` is the program's context: contract of this function. The slot
    // has `n` columns (`prepare`).
    unsafe {
        let slot = (*a).results;
        expr::clear(slot);
        let old = pg_sys::MemoryContextSwitchTo((*c).ecxt_per_tuple_memory);
        for i in 0..(*a).n {
            let one = &mut *(*a).all.add(i);
            let (mut d, mut null) = (one.value, one.null);
            if !one.finish.is_null() {
                let state = arg(one.finish, 0);
                (state.value, state.isnull) = (d, null);
                (d, null) =
                    if null && (*(*one.finish).flinfo).fn_strict { (Datum::from(0), true) } else { call(one.finish) };
            }
            *(*slot).tts_values.add(i) = d;
            *(*slot).tts_isnull.add(i) = null;
        }
        pg_sys::MemoryContextSwitchTo(old);
        expr::store_virtual(slot);
        (*c).ecxt_outertuple = slot;
    }
}

/// The row of results' type.
///
/// # Safety
/// Prepared aggregates.
pub unsafe fn row_type(a: *const Aggregates) -> pg_sys::TupleDesc {
    // SAFETY: `prepare` has made `a`: contract of this function.
    unsafe { (*(*a).results).tts_tupleDescriptor }
}
