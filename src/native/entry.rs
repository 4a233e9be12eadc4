//! The functions as SQL calls them. (Declared by hand: the bindings' own wrappers cost more than a look-up.)

use super::row::{self, Change, Statement};
use super::{statement, Call, Moment, Table, Value};
use pgrx::pg_sys::{self, Datum};
use pgrx::prelude::*;

macro_rules! function {
    ($finfo:ident, $name:ident) => {
        /// PostgreSQL's description of the function.
        #[no_mangle]
        pub extern "C" fn $finfo() -> &'static pg_sys::Pg_finfo_record {
            const V1: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
            &V1
        }
    };
}
pub(super) use function;

fn boolean(b: bool) -> Datum {
    Datum::from(usize::from(b))
}

unsafe fn null(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: a valid call.
    unsafe { (*info).isnull = true };
    Datum::from(0)
}

/// Arguments from `from` on: a key. `None`: a value is NULL, which equals nothing.
fn key(call: &Call, from: usize) -> Option<([Value; pg_sys::INDEX_MAX_KEYS as usize], usize)> {
    let mut values = [(Datum::from(0), false, pg_sys::InvalidOid); pg_sys::INDEX_MAX_KEYS as usize];
    let n = call.len() - from;
    if n > values.len() {
        crate::options::complain(
            PgSqlErrorCode::ERRCODE_TOO_MANY_ARGUMENTS,
            "too many values of a key",
            "Give a value for each column of the primary key, in its order.",
        );
    }
    for (i, v) in values[..n].iter_mut().enumerate() {
        *v = call.arg(from + i);
        if v.1 {
            return None;
        }
    }
    Some((values, n))
}

function!(pg_finfo_mixedcc_get, mixedcc_get);
/// `get("row" anyelement, VARIADIC key "any")`.
///
/// # Safety
/// PostgreSQL's contract of function calls.
#[no_mangle]
#[pg_guard]
pub unsafe extern "C-unwind" fn mixedcc_get(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: the caller's.
    unsafe {
        (*info).isnull = false;
        let call = Call::new(info);
        let table = Table::open(call.table(), pg_sys::AccessShareLock);
        let found = key(&call, 1).and_then(|(k, n)| {
            let moment = Moment::begin();
            let found = get(table.0, &k[..n]);
            moment.end();
            found
        });
        table.close();
        found.unwrap_or_else(|| null(info))
    }
}

/// The row with a key.
pub(super) unsafe fn get(r: pg_sys::Relation, k: &[Value]) -> Option<Datum> {
    // SAFETY: an open relation of ours; a command has begun.
    unsafe { row::get(r, k).unwrap_or_else(|Statement| statement::get(r, k)) }
}

/// Changes the row with a key.
pub(super) unsafe fn change(r: pg_sys::Relation, k: &[Value], what: &Change) -> bool {
    // SAFETY: an open relation of ours, locked for writers; a command has begun.
    unsafe { row::change(r, k, what).unwrap_or_else(|Statement| statement::change(r, k, what)) }
}

unsafe fn change_by(
    info: pg_sys::FunctionCallInfo,
    from: usize,
    what: impl FnOnce(&mut Call, pg_sys::Relation) -> Change,
) -> Datum {
    // SAFETY: the caller's.
    unsafe {
        (*info).isnull = false;
        let mut call = Call::new(info);
        let table = Table::open(call.table(), pg_sys::RowExclusiveLock);
        let what = what(&mut call, table.0);
        let done = key(&call, from).is_some_and(|(k, n)| {
            let moment = Moment::begin();
            let done = change(table.0, &k[..n], &what);
            moment.end();
            done
        });
        table.close();
        boolean(done)
    }
}

function!(pg_finfo_mixedcc_set, mixedcc_set);
/// `set("row" anyelement, "column" name, value "any", VARIADIC key "any")`.
///
/// # Safety
/// PostgreSQL's contract of function calls.
#[no_mangle]
#[pg_guard]
pub unsafe extern "C-unwind" fn mixedcc_set(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: the caller's; the arguments are as many as it says.
    unsafe { change_by(info, 3, |call, r| Change::Set(call.column(r, 1, None), call.arg(2))) }
}

function!(pg_finfo_mixedcc_add, mixedcc_add);
/// `add("row" anyelement, "column" name, value "any", VARIADIC key "any")`.
///
/// # Safety
/// PostgreSQL's contract of function calls.
#[no_mangle]
#[pg_guard]
pub unsafe extern "C-unwind" fn mixedcc_add(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: as above.
    unsafe { change_by(info, 3, |call, r| Change::Add(call.column(r, 1, Some(call.arg(2).2)), call.arg(2))) }
}

function!(pg_finfo_mixedcc_remove, mixedcc_remove);
/// `remove("row" anyelement, VARIADIC key "any")`.
///
/// # Safety
/// PostgreSQL's contract of function calls.
#[no_mangle]
#[pg_guard]
pub unsafe extern "C-unwind" fn mixedcc_remove(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: as above.
    unsafe { change_by(info, 1, |_, _| Change::Remove) }
}

function!(pg_finfo_mixedcc_put, mixedcc_put);
/// `put("row" anyelement)`.
///
/// # Safety
/// PostgreSQL's contract of function calls.
#[no_mangle]
#[pg_guard]
pub unsafe extern "C-unwind" fn mixedcc_put(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: the caller's.
    unsafe {
        (*info).isnull = false;
        let mut call = Call::new(info);
        let table = Table::open(call.table(), pg_sys::RowExclusiveLock);
        let row = call.arg(0);
        let done = statement::put(table.0, call.plan(), row);
        table.close();
        boolean(done)
    }
}

function!(pg_finfo_mixedcc_insert, mixedcc_insert);
/// `insert("row" anyelement)`.
///
/// # Safety
/// PostgreSQL's contract of function calls.
#[no_mangle]
#[pg_guard]
pub unsafe extern "C-unwind" fn mixedcc_insert(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: the caller's.
    unsafe {
        let mut call = Call::new(info);
        let table = Table::open(call.table(), pg_sys::RowExclusiveLock);
        let row = call.arg(0);
        statement::insert(table.0, call.plan(), row);
        table.close();
        null(info)
    }
}
