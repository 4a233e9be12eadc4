//! The functions as SQL calls them. (Declared by hand: the bindings' own wrappers cost more than a
//! look-up.)

use super::moment::{self, Room};
use super::row::{self, all_of, Change};
use super::table::{Access, Open};
use super::{quick, statement, Arguments, Call, Column, Statement};
use crate::access::lookup::Key;
use crate::pg::{self, compat};
use crate::state::xact;
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
    // SAFETY: `info` is the call in progress of the function that calls this.
    unsafe { (*info).isnull = true };
    Datum::from(0)
}

function!(pg_finfo_mixedcc_get, mixedcc_get);
/// `get("row" anyelement, VARIADIC key "any")`.
///
/// # Safety
/// PostgreSQL's contract of function calls.
#[no_mangle]
#[pg_guard]
pub unsafe extern "C-unwind" fn mixedcc_get(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: `info` is a call of this function (fmgr.h: PG_FUNCTION_ARGS), with the arguments of
    // its SQL declaration. A command has begun when the table is opened.
    unsafe {
        (*info).isnull = false;
        let call = Call::new(info, 0);
        let mut room = Room::uninit();
        let snapshot = moment::begin(room.as_mut_ptr());
        let table = call.open(Access::Read);
        let found = call.key(1).and_then(|key| get(&table, snapshot, &key));
        call.check(found);
        found.unwrap_or_else(|| null(info))
    }
}

function!(pg_finfo_mixedcc_get_value, mixedcc_get_value);
/// `get_value("type" anyelement, "row" "any", "column" name, VARIADIC key "any")`.
///
/// # Safety
/// PostgreSQL's contract of function calls.
#[no_mangle]
pub unsafe extern "C-unwind" fn mixedcc_get_value(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: `info` is a call of this function (fmgr.h: PG_FUNCTION_ARGS), with the arguments of
    // its SQL declaration. INV-QUICK: `quick` needs no guard.
    unsafe {
        (*info).isnull = false;
        match Call::again(info).and_then(|call| quick::get_value(&call)) {
            Some(value) => value,
            None => get_value_guarded(info),
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn get_value_guarded(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: `info` is a call of this function (fmgr.h: PG_FUNCTION_ARGS), with the arguments of
    // its SQL declaration. `column` names a column of the open table (INV-ENTRY).
    unsafe {
        let call = Call::new(info, 1);
        let mut room = Room::uninit();
        let snapshot = moment::begin(room.as_mut_ptr());
        let table = call.open(Access::Read);
        let column = call.column(&table, 2, None);
        let att = compat::attribute((*table.rel).rd_att, column.at);
        if att.atttypid != call.arg(0).2 {
            wrong_type(att);
        }
        let found = call.key(3).and_then(|key| get_column(&table, snapshot, &key, column));
        found.unwrap_or_else(|| null(info))
    }
}

#[cold]
fn wrong_type(att: &pg_sys::FormData_pg_attribute) -> ! {
    // SAFETY: `att` is of an open relation, so its name ends with a zero byte; format_type_be
    // answers any OID.
    let (name, typ) = unsafe {
        let typ = crate::pg::text::read(pg_sys::format_type_be(att.atttypid));
        (crate::pg::text::read(att.attname.data.as_ptr()), typ)
    };
    crate::pg::errors::complain(
        PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
        &format!("column \"{name}\" is of type {typ}"),
        "The first argument is a NULL of the column's type.",
    )
}

/// The row with a key.
///
/// # Safety
/// `table` is open, and `snapshot` is of a command that has begun.
#[inline]
pub(super) unsafe fn get<K: Key + ?Sized>(table: &Open, snapshot: pg_sys::Snapshot, key: &K) -> Option<Datum> {
    // SAFETY: `table` is open (INV-ENTRY) and `snapshot` is of a command that has begun: contract
    // of this function.
    unsafe {
        match table.reads_plainly().and_then(|()| row::find(table, snapshot, key, false)) {
            Ok(found) => found.map(|found| row::as_datum(table, found)),
            Err(Statement) => statement::get(table.rel, &all_of(key)),
        }
    }
}

/// A column of the row with a key; `None`: there is no row, or it is NULL.
#[inline]
unsafe fn get_column(table: &Open, snapshot: pg_sys::Snapshot, key: &Arguments, column: &Column) -> Option<Datum> {
    // SAFETY: `table` is open (INV-ENTRY), and `snapshot` is of the command that has begun. The
    // value lies in the row, which the pin keeps while the snapshot lives: it is copied.
    unsafe {
        match table.reads_plainly().and_then(|()| row::find(table, snapshot, key, false)) {
            Ok(found) => {
                let (d, null) = row::column(table, found?.version, column.at);
                let att = compat::attribute((*table.rel).rd_att, column.at);
                (!null).then(|| pg::raw::datumCopy(d, att.attbyval, att.attlen as i32))
            }
            Err(Statement) => statement::get_column(table.rel, &all_of(key), column.at),
        }
    }
}

/// Changes the row with a key.
///
/// # Safety
/// `table` is open and locked for writing; `snapshot` is of a command that has begun.
#[inline]
pub(super) unsafe fn change<K: Key + ?Sized>(table: &Open, snapshot: pg_sys::Snapshot, key: &K, what: &Change) -> bool {
    // SAFETY: `table` is open and locked for writing, and `snapshot` is of a command that has
    // begun: contract of this function.
    unsafe {
        row::change(table, snapshot, key, what)
            .unwrap_or_else(|Statement| statement::change(table.rel, &all_of(key), what))
    }
}

#[inline]
unsafe fn change_by<'a>(
    info: pg_sys::FunctionCallInfo,
    from: usize,
    what: impl FnOnce(&'a Call, &Open) -> Change<'a>,
    call: &'a Call,
) -> Datum {
    // SAFETY: `info` is the call from which `call` was made; both are the guarded functions' below.
    // `moment::begin` comes before the table is opened.
    unsafe {
        (*info).isnull = false;
        let mut room = Room::uninit();
        let snapshot = moment::begin(room.as_mut_ptr());
        let table = call.open(Access::Write);
        let what = what(call, &table);
        if xact::running_to_write().is_some() && table.updates_plainly().is_ok() {
            // Now the table is open for writing, and the column and the rights are known.
            let done = match what {
                Change::Add(..) => quick::add(call),
                Change::Set(..) => quick::set(call),
                Change::Remove => None,
            };
            if done.is_some() {
                return boolean(true);
            }
        }
        boolean(call.key(from).is_some_and(|key| change(&table, snapshot, &key, &what)))
    }
}

function!(pg_finfo_mixedcc_set, mixedcc_set);
/// `set("row" anyelement, "column" name, value "any", VARIADIC key "any")`.
///
/// # Safety
/// PostgreSQL's contract of function calls.
#[no_mangle]
pub unsafe extern "C-unwind" fn mixedcc_set(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: `info` is a call of this function (fmgr.h: PG_FUNCTION_ARGS), with the arguments of
    // its SQL declaration. INV-QUICK: `quick` needs no guard.
    unsafe {
        (*info).isnull = false;
        match Call::again(info).and_then(|call| quick::set(&call)) {
            Some(()) => boolean(true),
            None => set_guarded(info),
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn set_guarded(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: `info` is a call of this function (fmgr.h: PG_FUNCTION_ARGS), with the arguments of
    // its SQL declaration. `arg` checks the number of arguments.
    unsafe {
        let call = Call::new(info, 0);
        change_by(info, 3, |call, t| Change::Set(call.column(t, 1, None), call.arg(2)), &call)
    }
}

function!(pg_finfo_mixedcc_add, mixedcc_add);
/// `add("row" anyelement, "column" name, value "any", VARIADIC key "any")`.
///
/// # Safety
/// PostgreSQL's contract of function calls.
#[no_mangle]
pub unsafe extern "C-unwind" fn mixedcc_add(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: `info` is a call of this function (fmgr.h: PG_FUNCTION_ARGS), with the arguments of
    // its SQL declaration. INV-QUICK: `quick` needs no guard.
    unsafe {
        (*info).isnull = false;
        match Call::again(info).and_then(|call| quick::add(&call)) {
            Some(()) => boolean(true),
            None => add_guarded(info),
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn add_guarded(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: `info` is a call of this function (fmgr.h: PG_FUNCTION_ARGS), with the arguments of
    // its SQL declaration. `arg` checks the number of arguments.
    unsafe {
        let call = Call::new(info, 0);
        change_by(info, 3, |call, t| Change::Add(call.column(t, 1, Some(call.arg(2).2)), call.arg(2)), &call)
    }
}

function!(pg_finfo_mixedcc_remove, mixedcc_remove);
/// `remove("row" anyelement, VARIADIC key "any")`.
///
/// # Safety
/// PostgreSQL's contract of function calls.
#[no_mangle]
#[pg_guard]
pub unsafe extern "C-unwind" fn mixedcc_remove(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: `info` is a call of this function (fmgr.h: PG_FUNCTION_ARGS), with the arguments of
    // its SQL declaration.
    unsafe {
        let call = Call::new(info, 0);
        change_by(info, 1, |_, _| Change::Remove, &call)
    }
}

function!(pg_finfo_mixedcc_put, mixedcc_put);
/// `put("row" anyelement)`.
///
/// # Safety
/// PostgreSQL's contract of function calls.
#[no_mangle]
#[pg_guard]
pub unsafe extern "C-unwind" fn mixedcc_put(info: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: `info` is a call of this function (fmgr.h: PG_FUNCTION_ARGS), with the arguments of
    // its SQL declaration. A command begins before the table is opened, which serves to make the
    // text of a statement, which SPI runs.
    unsafe {
        (*info).isnull = false;
        let call = Call::new(info, 0);
        let mut room = Room::uninit();
        moment::begin(room.as_mut_ptr());
        let (table, row) = (call.open(Access::Write), call.arg(0));
        boolean(statement::put(table.rel, row))
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
    // SAFETY: `info` is a call of this function (fmgr.h: PG_FUNCTION_ARGS), with the arguments of
    // its SQL declaration. A command begins before the table is opened, which serves to make the
    // text of a statement, which SPI runs.
    unsafe {
        let call = Call::new(info, 0);
        let mut room = Room::uninit();
        moment::begin(room.as_mut_ptr());
        let (table, row) = (call.open(Access::Write), call.arg(0));
        statement::insert(table.rel, row);
        null(info)
    }
}
