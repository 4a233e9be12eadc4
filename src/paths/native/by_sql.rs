//! The statements that calls of the interface stand for, where they cannot be done directly.

use super::access::{Access, Named};
use super::interface::{Modify, Visit};
use super::range::Range;
use super::statement::{self, each, name};
use super::{row, Value};
use crate::state::{rel, xact};
use mixedcc_engine::RecordRef;
use pgrx::pg_sys::{self, Datum};
use std::ffi::c_void;

/// The quoted columns of the access.
unsafe fn columns(a: &Access, r: pg_sys::Relation) -> Vec<String> {
    // SAFETY: `r` is open, and has the access's columns, which were compared with it (INV-TYPED).
    a.columns.iter().map(|c| unsafe { statement::column(r, c.at() as i16 + 1) }).collect()
}

/// ` WHERE k1 = $from AND ...`; the key's values are added to the others.
unsafe fn by_key(a: &Access, r: pg_sys::Relation, key: *const Datum, values: &mut Vec<Value>) -> String {
    // SAFETY: `r` is open, and `key` has a value for each column of the key (INV-TYPED: their
    // number was compared).
    unsafe {
        let from = values.len() + 1;
        let columns = statement::key(r);
        let one = |(i, &c): (usize, &i16)| {
            let (column, equals) = (statement::column(r, c), statement::operator(r, i, statement::EQUAL));
            format!("{column} {equals} ${}", from + i)
        };
        let all: Vec<String> = columns.iter().enumerate().map(one).collect();
        values.extend(a.key_values(key, columns.len()));
        format!(" WHERE {}", all.join(" AND "))
    }
}

/// The columns' values as parameters of a statement: domains as their base types, so that they are
/// checked.
unsafe fn parameters(a: &Access, values: *const Datum, nulls: *const bool) -> Vec<Value> {
    // SAFETY: the arrays have an entry for each column of the access (mixedcc.h). getBaseType
    // answers any type.
    let one = |(i, c): (usize, &Named)| unsafe { (*values.add(i), *nulls.add(i), pg_sys::getBaseType(c.typid)) };
    a.columns.iter().enumerate().map(one).collect()
}

/// `SELECT columns FROM t WHERE key tail`. The values are copied into the caller's memory.
///
/// # Safety
/// The header's contract, and an open relation: of all functions here.
pub unsafe fn get(
    a: &Access,
    r: pg_sys::Relation,
    key: *const Datum,
    tail: &str,
    out: *mut Datum,
    out_nulls: *mut bool,
) -> bool {
    // SAFETY: `r` is open, and `key` and the arrays have an entry for each column (mixedcc.h):
    // contract of this function. The statement returns a column for each of the access.
    unsafe {
        let mut values = Vec::new();
        let condition = by_key(a, r, key, &mut values);
        let mut list = columns(a, r);
        if list.is_empty() {
            list.push("1".to_owned());
        }
        let sql = format!("SELECT {} FROM ONLY {}{condition}{tail}", list.join(", "), name(r));
        let n = a.columns.len();
        let mut keep = |d: *const Datum, nulls: *const bool| {
            for i in 0..n {
                let att = crate::pg::compat::attribute((*r).rd_att, a.columns[i].at());
                *out_nulls.add(i) = *nulls.add(i);
                let given = |d| crate::pg::copy(d, att.attbyval, att.attlen as i32);
                *out.add(i) = if *nulls.add(i) { Datum::from(0) } else { given(*d.add(i)) };
            }
            false
        };
        each(&sql, &values, 1, &mut keep) > 0
    }
}

/// `UPDATE t SET columns = values WHERE key`.
///
/// # Safety
/// See [`get`].
pub unsafe fn update(
    a: &Access,
    r: pg_sys::Relation,
    key: *const Datum,
    values: *const Datum,
    nulls: *const bool,
) -> bool {
    // SAFETY: `r` is open, and `key` and the arrays have an entry for each column (mixedcc.h):
    // contract of this function.
    unsafe {
        let mut all = parameters(a, values, nulls);
        let sets: Vec<String> =
            columns(a, r).into_iter().enumerate().map(|(i, c)| format!("{c} = ${}", i + 1)).collect();
        let condition = by_key(a, r, key, &mut all);
        let sql = format!("UPDATE ONLY {} SET {}{condition}", name(r), sets.join(", "));
        each(&sql, &all, 0, &mut |_, _| true) > 0
    }
}

/// `SELECT columns FROM t WHERE key FOR NO KEY UPDATE`, the caller's function, and `UPDATE`.
///
/// # Safety
/// See [`get`].
pub unsafe fn modify(a: &Access, r: pg_sys::Relation, key: *const Datum, f: Modify, arg: *mut c_void) -> bool {
    let n = a.columns.len();
    let (mut values, mut nulls) = (vec![Datum::from(0); n], vec![false; n]);
    let (v, null) = (values.as_mut_ptr(), nulls.as_mut_ptr());
    // SAFETY: `r` is open, and `key` has a value for each column (mixedcc.h): contract of this
    // function. `f` takes `arg`, and arrays of `n` entries. It is guarded: its ERROR unwinds this
    // frame.
    unsafe {
        if !get(a, r, key, " FOR NO KEY UPDATE", v, null) {
            return false;
        }
        // The statement has locked its row last.
        let table = rel::info(r).table;
        let record = xact::last_locked().filter(|l| l.0 == table.id).and_then(|l| RecordRef::find(table, l.1));
        let before = record.and_then(|record| xact::txn().last_write(record));
        if !pg_sys::submodules::ffi::pg_guard_ffi_boundary(|| f(arg, v, null)) {
            return true;
        }
        if record.is_some_and(|record| row::is_written_since(record, before)) {
            row::written_meanwhile();
        }
        update(a, r, key, v, null)
    }
}

/// `INSERT INTO t (columns) VALUES (values)`.
///
/// # Safety
/// See [`get`].
pub unsafe fn insert(a: &Access, r: pg_sys::Relation, values: *const Datum, nulls: *const bool) {
    // SAFETY: `r` is open, and the arrays have an entry for each column (mixedcc.h): contract of
    // this function.
    unsafe {
        let all = parameters(a, values, nulls);
        let numbers: Vec<String> = (1..=all.len()).map(|i| format!("${i}")).collect();
        let sql = format!("INSERT INTO {} ({}) VALUES ({})", name(r), columns(a, r).join(", "), numbers.join(", "));
        each(&sql, &all, 0, &mut |_, _| true);
    }
}

/// `SELECT columns FROM t WHERE conditions ORDER BY key LIMIT limit`.
///
/// # Safety
/// See [`get`].
pub unsafe fn scan(a: &Access, r: pg_sys::Relation, range: &Range, f: Visit, arg: *mut c_void) -> u64 {
    // SAFETY: `r` is open: contract of this function. `interface::scan` has checked the range. `f`
    // takes `arg`, and is guarded: its ERROR unwinds this frame.
    unsafe {
        let key: Vec<String> = statement::key(r).into_iter().map(|c| statement::column(r, c)).collect();
        let mut values = Vec::new();
        let conditions: Vec<String> = range
            .conditions()
            .map(|(column, strategy, d)| {
                values.push((d, false, a.key_type(column)));
                format!("{} {} ${}", key[column], statement::operator(r, column, strategy), values.len())
            })
            .collect();
        let condition =
            if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
        let way = if range.is_descending() { " DESC" } else { "" };
        let order: Vec<String> = key.iter().map(|c| format!("{c}{way}")).collect();
        let mut list = columns(a, r);
        if list.is_empty() {
            list.push("1".to_owned());
        }
        let sql = format!("SELECT {} FROM ONLY {}{condition} ORDER BY {}", list.join(", "), name(r), order.join(", "));
        let mut visit = |d, nulls| pg_sys::submodules::ffi::pg_guard_ffi_boundary(|| f(arg, d, nulls));
        each(&sql, &values, range.limit(), &mut visit)
    }
}
