//! Many keys in one call.

use super::entry::{change, function, get};
use super::moment::{self, Room};
use super::row::Change;
use super::table::Access;
use super::{Call, Value};
use crate::pg;
use crate::pg::errors::complain;
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::*;

/// The elements of an array, in the memory context in which it was taken apart. Nothing of them has
/// to be dropped: an ERROR of a function that runs for an element jumps over the call's frame.
#[derive(Clone, Copy)]
struct Elements {
    values: *const Datum,
    nulls: *const bool,
    n: usize,
    typid: Oid,
}

impl Elements {
    fn len(&self) -> usize {
        self.n
    }
    /// Element `i`, with NULL and type.
    fn get(&self, i: usize) -> Value {
        assert!(i < self.n, "an element of the array");
        // SAFETY: `elements` made this of arrays with `n` entries, in the memory of the call.
        unsafe { (*self.values.add(i), *self.nulls.add(i), self.typid) }
    }
}

/// Takes an array apart. NULL has no elements.
///
/// # Safety
/// A value of its type. The current memory context outlives the use of what this returns.
unsafe fn elements((d, null, typid): Value) -> Elements {
    if null {
        return Elements { values: std::ptr::null(), nulls: std::ptr::null(), n: 0, typid };
    }
    // SAFETY: `d` is not NULL and of type `typid` (contract of this function); it is read only if
    // that is an array. deconstruct_array makes `n` entries.
    unsafe {
        let element: Oid = pg_sys::get_element_type(typid);
        if element == pg_sys::InvalidOid {
            complain(PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH, "an array is expected", "Write ARRAY[...].");
        }
        let (mut len, mut byval, mut align) = (0, false, 0);
        pg_sys::get_typlenbyvalalign(element, &mut len, &mut byval, &mut align);
        let (mut datums, mut nulls, mut n) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        let array = pg_sys::pg_detoast_datum(d.cast_mut_ptr()).cast();
        pg_sys::deconstruct_array(array, element, len as i32, byval, align, &mut datums, &mut nulls, &mut n);
        Elements { values: datums, nulls, n: n as usize, typid: element }
    }
}

/// Memory for one element after the other: of calls of many keys, that of one is kept. It goes with
/// the context in which it was made.
struct Each {
    call: pg_sys::MemoryContext,
    element: pg_sys::MemoryContext,
}

impl Each {
    fn new() -> Each {
        // SAFETY: a new context in the current one.
        unsafe {
            let call = pg_sys::CurrentMemoryContext;
            let element = pg_sys::AllocSetContextCreateInternal(
                call,
                c"mixedcc element".as_ptr(),
                pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            );
            Each { call, element }
        }
    }

    /// Runs `f` for one element.
    ///
    /// # Safety
    /// What `f` allocates in the current context it uses alone. An ERROR jumps over this frame.
    #[inline]
    unsafe fn run<T>(&self, f: impl FnOnce() -> T) -> T {
        // SAFETY: both contexts live as long as the call. No value in `element` is used after `f`
        // (contract of this function).
        unsafe {
            pg_sys::MemoryContextSwitchTo(self.element);
            let result = f();
            pg_sys::MemoryContextSwitchTo(self.call);
            pg::raw::MemoryContextReset(self.element);
            result
        }
    }
}

function!(pg_finfo_mixedcc_get_each, mixedcc_get_each);
/// `get_each("row" anyelement, keys "any")`: rows in the order of the keys; keys without a row are
/// left out.
///
/// # Safety
/// PostgreSQL's contract of set-returning functions.
#[no_mangle]
#[pg_guard]
pub unsafe extern "C-unwind" fn mixedcc_get_each(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: `info` is a call of this function (fmgr.h), with the arguments of its SQL
    // declaration. InitMaterializedSRF sets `resultinfo`. `must_expect` compares its row type with
    // the table's.
    unsafe {
        let call = Call::new(info, 0);
        pg_sys::InitMaterializedSRF(info, pg_sys::MAT_SRF_USE_EXPECTED_DESC);
        let result = (*info).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        let mut room = Room::uninit();
        let snapshot = moment::begin(room.as_mut_ptr());
        let table = call.open(Access::Read);
        crate::pg::relations::must_expect((*result).setDesc, table.rel);
        let (keys, each) = (elements(call.arg(1)), Each::new());
        for k in (0..keys.len()).map(|i| keys.get(i)).filter(|k| !k.1) {
            each.run(|| {
                let Some(d) = get(&table, snapshot, &[k][..]) else { return };
                call.check(Some(d));
                // A short row that a statement has returned has a short header.
                let row = pg_sys::pg_detoast_datum(d.cast_mut_ptr()).cast::<pg_sys::HeapTupleHeaderData>();
                let mut t = pg_sys::HeapTupleData { t_len: pgrx::varsize_any(row.cast()) as u32, ..Default::default() };
                t.t_data = row;
                pg_sys::tuplestore_puttuple((*result).setResult, &mut t);
            });
            pg_sys::check_for_interrupts!();
        }
        (*info).isnull = true;
        Datum::from(0)
    }
}

function!(pg_finfo_mixedcc_add_each, mixedcc_add_each);
/// `add_each("row" anyelement, "column" name, "values" "any", keys "any")`: how many rows there
/// were.
///
/// # Safety
/// PostgreSQL's contract of function calls.
#[no_mangle]
#[pg_guard]
pub unsafe extern "C-unwind" fn mixedcc_add_each(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: `info` is a call of this function (fmgr.h), with the arguments of its SQL
    // declaration. Each key has a command and a snapshot of its own.
    unsafe {
        (*info).isnull = false;
        let call = Call::new(info, 0);
        let (deltas, keys) = (elements(call.arg(2)), elements(call.arg(3)));
        if deltas.len() != keys.len() {
            complain(
                PgSqlErrorCode::ERRCODE_ARRAY_ELEMENT_ERROR,
                &format!("values: {}; keys: {}", deltas.len(), keys.len()),
                "Give a value for each key.",
            );
        }
        let mut room = Room::uninit();
        let mut snapshot = moment::begin(room.as_mut_ptr());
        let table = call.open(Access::Write);
        let mut done = 0i64;
        if deltas.len() > 0 {
            let (column, each) = (call.column(&table, 1, Some(deltas.typid)), Each::new());
            for (delta, k) in (0..keys.len()).map(|i| (deltas.get(i), keys.get(i))).filter(|(_, k)| !k.1) {
                done += i64::from(each.run(|| change(&table, snapshot, &[k][..], &Change::Add(column, delta))));
                pg_sys::check_for_interrupts!();
                snapshot = moment::begin(room.as_mut_ptr());
            }
        }
        Datum::from(done)
    }
}
