//! The statement that a native call stands for, through SPI.

use super::row::Change;
use super::{kept, Value};
use crate::pg::errors;
use crate::pg::errors::complain;
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::*;
use std::ffi::CString;

/// nbtree's strategy of equal keys.
pub const EQUAL: u32 = pg_sys::BTEqualStrategyNumber;

/// What comes of a statement: a value of its first row and column, and how many rows it had.
pub struct Done {
    /// The value, in the caller's memory.
    pub value: Option<Datum>,
    /// Rows.
    pub rows: u64,
}

/// Runs a statement with parameters as a statement of a volatile function, with a snapshot of its
/// own.
///
/// # Safety
/// Values of their types. An ERROR's clean-up ends SPI.
unsafe fn run(sql: &str, values: &[Value], reads: bool) -> Done {
    let mut datums: Vec<Datum> = values.iter().map(|v| v.0).collect();
    let nulls: Vec<std::ffi::c_char> = values.iter().map(|v| if v.1 { b'n' } else { b' ' } as _).collect();
    // SAFETY: `datums` and `nulls` have an entry for each parameter, and `values` are of their
    // types: contract of this function. `table` and its rows live until SPI_finish.
    unsafe {
        if pg_sys::SPI_connect() != pg_sys::SPI_OK_CONNECT as i32 {
            error!("SPI_connect failed");
        }
        let plan = kept::begin(sql, values);
        let rc = pg_sys::SPI_execute_plan(plan.0, datums.as_mut_ptr(), nulls.as_ptr(), false, 0);
        if rc < 0 {
            error!("a statement of mixedcc failed: SPI error {rc}");
        }
        let rows = pg_sys::SPI_processed;
        let mut value = None;
        if reads && rows > 0 {
            let table = pg_sys::SPI_tuptable;
            let mut null = false;
            let d = pg_sys::SPI_getbinval(*(*table).vals, (*table).tupdesc, 1, &mut null);
            let att = crate::pg::compat::attribute((*table).tupdesc, 0);
            value = (!null).then(|| pg_sys::SPI_datumTransfer(d, att.attbyval, att.attlen as i32));
        }
        pg_sys::SPI_finish();
        Done { value, rows }
    }
}

/// Runs a statement as `run` does, and visits its rows; how many there were. The arrays last for
/// the visit.
///
/// # Safety
/// As [`run`]. `limit`: of rows; 0: none.
pub unsafe fn each(
    sql: &str,
    values: &[Value],
    limit: u64,
    visit: &mut dyn FnMut(*const Datum, *const bool) -> bool,
) -> u64 {
    let mut datums: Vec<Datum> = values.iter().map(|v| v.0).collect();
    let nulls: Vec<std::ffi::c_char> = values.iter().map(|v| if v.1 { b'n' } else { b' ' } as _).collect();
    // SAFETY: `datums` and `nulls` have an entry for each parameter, `row` and `null` for each
    // column. `table` lives until SPI_finish. The visit runs in the memory of the caller.
    unsafe {
        let outer = pg_sys::CurrentMemoryContext;
        if pg_sys::SPI_connect() != pg_sys::SPI_OK_CONNECT as i32 {
            error!("SPI_connect failed");
        }
        let plan = kept::begin(sql, values);
        let limit = i64::try_from(limit).unwrap_or(0);
        let rc = pg_sys::SPI_execute_plan(plan.0, datums.as_mut_ptr(), nulls.as_ptr(), false, limit);
        if rc < 0 {
            error!("a statement of mixedcc failed: SPI error {rc}");
        }
        let (rows, table) = (pg_sys::SPI_processed, pg_sys::SPI_tuptable);
        let mut visited = rows;
        if !table.is_null() {
            let desc = (*table).tupdesc;
            let n = (*desc).natts as usize;
            let (mut row, mut null) = (vec![Datum::from(0); n], vec![false; n]);
            visited = 0;
            for i in 0..rows as usize {
                pg_sys::heap_deform_tuple(*(*table).vals.add(i), desc, row.as_mut_ptr(), null.as_mut_ptr());
                let inner = pg_sys::MemoryContextSwitchTo(outer);
                let goes_on = visit(row.as_ptr(), null.as_ptr());
                pg_sys::MemoryContextSwitchTo(inner);
                visited += 1;
                if !goes_on {
                    break;
                }
            }
        }
        pg_sys::SPI_finish();
        visited
    }
}

/// Prepares a statement, until SPI ends.
///
/// # Safety
/// SPI is connected, and each value has its type.
pub(super) unsafe fn prepare(sql: &str, values: &[Value]) -> pg_sys::SPIPlanPtr {
    let text = crate::pg::text::write(sql);
    let mut types: Vec<Oid> = values.iter().map(|v| v.2).collect();
    // SAFETY: SPI is connected: contract of this function. `types` has an entry for each parameter.
    let plan = unsafe { pg_sys::SPI_prepare(text.as_ptr(), values.len() as i32, types.as_mut_ptr()) };
    if plan.is_null() {
        error!("a statement of mixedcc could not be prepared");
    }
    plan
}

/// `schema.table`, quoted.
///
/// # Safety
/// `r` is open.
pub unsafe fn name(r: pg_sys::Relation) -> String {
    // SAFETY: `r` is open: contract of this function. Its name ends with a zero byte.
    unsafe {
        let schema = schema((*(*r).rd_rel).relnamespace);
        format!("{schema}.{}", quoted((*(*r).rd_rel).relname.data.as_ptr()))
    }
}

/// The quoted name of a schema.
///
/// # Safety
/// It exists.
unsafe fn schema(oid: Oid) -> String {
    // SAFETY: the schema exists (contract of this function). The copy of its name is this
    // function's.
    unsafe {
        let copy = pg_sys::get_namespace_name(oid);
        let name = quoted(copy);
        pg_sys::pfree(copy.cast());
        name
    }
}

/// A name, quoted where that is needed. It leaves nothing in the memory context: a caller may ask
/// for each of many keys.
///
/// # Safety
/// A C string.
unsafe fn quoted(name: *const std::ffi::c_char) -> String {
    // SAFETY: `name` is a C string (contract of this function). What comes back is `name`, or a
    // copy that is this function's.
    unsafe {
        let q = pg_sys::quote_identifier(name);
        let text = crate::pg::text::read(q);
        if q != name {
            pg_sys::pfree(q.cast_mut().cast());
        }
        text
    }
}

/// The quoted name of a column, by its number from 1.
///
/// # Safety
/// `r` is open, and has the column.
pub unsafe fn column(r: pg_sys::Relation, no: i16) -> String {
    // SAFETY: `r` is open, and has column `no`: contract of this function.
    unsafe { quoted(crate::pg::compat::attribute((*r).rd_att, no as usize - 1).attname.data.as_ptr()) }
}

/// The columns of the primary key, in its order, by number from 1.
///
/// # Safety
/// `r` is open and locked.
pub unsafe fn key(r: pg_sys::Relation) -> Vec<i16> {
    // SAFETY: `r` is open and locked: contract of this function. So its index exists, and can be
    // opened.
    unsafe {
        let index = crate::pg::compat::primary_key_index(r);
        if index == pg_sys::InvalidOid {
            no_key(r);
        }
        let i = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
        let form = (*i).rd_index;
        let n = (*form).indnkeyatts as usize;
        let columns = (*form).indkey.values.as_slice(n).to_vec();
        pg_sys::index_close(i, pg_sys::NoLock as i32);
        columns
    }
}

/// The operator of a column of the primary key (from 0) for a strategy of nbtree, as a statement
/// names it: that of the key's index, whatever the search path has.
///
/// # Safety
/// `r` is open and locked, and its key has the column.
pub unsafe fn operator(r: pg_sys::Relation, column: usize, strategy: u32) -> String {
    // SAFETY: `r` is open and locked, and its key has the column: contract of this function. The
    // operator exists, as the index depends on it: its row is released after its last use.
    unsafe {
        let i = pg_sys::index_open(crate::pg::compat::primary_key_index(r), pg_sys::AccessShareLock as i32);
        let (family, typid) = (*(*i).rd_opfamily.add(column), *(*i).rd_opcintype.add(column));
        pg_sys::index_close(i, pg_sys::NoLock as i32);
        let op = pg_sys::get_opfamily_member(family, typid, typid, strategy as i16);
        let row = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::OPEROID as i32, op.into());
        if row.is_null() {
            error!("the operator of a key's index does not exist");
        }
        let form = &*pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_operator>();
        let (schema, name) = (schema(form.oprnamespace), crate::pg::text::read(form.oprname.data.as_ptr()));
        pg_sys::ReleaseSysCache(row);
        format!("OPERATOR({schema}.{name})")
    }
}

/// There is no primary key that is checked at once.
#[cold]
unsafe fn no_key(r: pg_sys::Relation) -> ! {
    // SAFETY: `r` is open and locked (`key`'s contract), so its indexes exist. Catalog look-ups
    // answer any OID.
    let (deferrable, table) = unsafe {
        let all = pgrx::PgList::<pg_sys::Oid>::from_pg(pg_sys::RelationGetIndexList(r));
        let is_primary = |index| {
            let i = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
            let primary = (*(*i).rd_index).indisprimary;
            pg_sys::index_close(i, pg_sys::NoLock as i32);
            primary
        };
        let deferrable = all.iter_oid().any(is_primary);
        (deferrable, crate::pg::relations::name((*r).rd_id))
    };
    let (message, hint) = if deferrable {
        let hint = "Native access needs a primary key that is NOT DEFERRABLE.";
        (format!("the primary key of table \"{table}\" is deferrable"), hint)
    } else {
        (format!("table \"{table}\" has no primary key"), "Native access is by the primary key.")
    };
    complain(PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, &message, hint)
}

/// ` WHERE k1 = $from AND ...`, and the values as the columns' types.
unsafe fn by_key(r: pg_sys::Relation, given: &[Value], from: usize, values: &mut Vec<Value>) -> String {
    // SAFETY: `r` is open: each caller passes its own relation on. `key` has given columns of `r`.
    unsafe {
        let columns = key(r);
        if columns.len() != given.len() {
            complain(
                PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                &format!("values of the key: {}; columns of the primary key: {}", given.len(), columns.len()),
                "Give a value for each column of the primary key, in its order.",
            );
        }
        let mut all = Vec::new();
        for (i, (&c, &v)) in columns.iter().zip(given).enumerate() {
            values.push(crate::pg::values::fit(r, c, v));
            all.push(format!("{} {} ${}", column(r, c), operator(r, i, EQUAL), from + i));
        }
        format!(" WHERE {}", all.join(" AND "))
    }
}

/// A name for the table that is not one of its columns: in a list of a SELECT it means the whole
/// row.
unsafe fn row_name(r: pg_sys::Relation) -> String {
    let is_free = |name: &String| {
        let name = CString::new(name.as_str()).expect("no zero byte");
        // SAFETY: `r` is open: `get` passes its own relation on. `name` ends with a zero byte; the
        // look-up answers any name.
        unsafe { pg_sys::get_attnum((*r).rd_id, name.as_ptr()) == pg_sys::InvalidAttrNumber as i16 }
    };
    (0..).map(|n| format!("mixedcc_row_{n}")).find(is_free).expect("a table has not so many columns")
}

/// `SELECT t FROM t WHERE key`.
///
/// # Safety
/// An open relation; values of their types.
pub unsafe fn get(r: pg_sys::Relation, given: &[Value]) -> Option<Datum> {
    let mut values = Vec::new();
    // SAFETY: `r` is open, and `given` are values of their types: contract of this function.
    unsafe {
        let (condition, row) = (by_key(r, given, 1, &mut values), row_name(r));
        run(&format!("SELECT {row} FROM ONLY {} {row}{condition}", name(r)), &values, true).value
    }
}

/// `SELECT column FROM t WHERE key`. `at`: the column, from 0.
///
/// # Safety
/// As [`get`]; the table has the column.
pub unsafe fn get_column(r: pg_sys::Relation, given: &[Value], at: usize) -> Option<Datum> {
    let mut values = Vec::new();
    // SAFETY: `r` is open and has column `at`, and `given` are values of their types: contract of
    // this function.
    unsafe {
        let condition = by_key(r, given, 1, &mut values);
        let sql = format!("SELECT {} FROM ONLY {}{condition}", column(r, at as i16 + 1), name(r));
        run(&sql, &values, true).value
    }
}

/// `UPDATE t SET column = value WHERE key`, `SET column = column + value`, or `DELETE FROM t WHERE
/// key`. False: there is no such row.
///
/// # Safety
/// As [`get`].
pub unsafe fn change(r: pg_sys::Relation, given: &[Value], change: &Change) -> bool {
    // SAFETY: `r` is open, and `given` and the change's value are of their types: contract of this
    // function.
    unsafe {
        let mut values = Vec::new();
        let what = match change {
            Change::Remove => format!("DELETE FROM ONLY {}", name(r)),
            Change::Set(c, v) | Change::Add(c, v) => {
                let no = c.at as i16 + 1;
                values.push(assigned(r, no, *v));
                let column = column(r, no);
                let sum = if matches!(change, Change::Add(..)) { format!("{column} + ") } else { String::new() };
                format!("UPDATE ONLY {} SET {column} = {sum}$1", name(r))
            }
        };
        let condition = by_key(r, given, values.len() + 1, &mut values);
        run(&(what + &condition), &values, false).rows > 0
    }
}

/// An unknown literal as the column's type; everything else as it is, for the statement to convert.
unsafe fn assigned(r: pg_sys::Relation, no: i16, v: Value) -> Value {
    if v.2 != pg_sys::UNKNOWNOID {
        return v;
    }
    // SAFETY: `r` is open and has the column, and `v` is of its type: `change` passes its own on.
    unsafe { crate::pg::values::fit(r, no, v) }
}

/// Columns of a row value that an INSERT or UPDATE may name: not dropped, not generated.
unsafe fn columns(r: pg_sys::Relation) -> Vec<i16> {
    // SAFETY: `r` is open: `insert` and `put` pass their own relation on.
    unsafe {
        let desc = (*r).rd_att;
        let plain = |i: &usize| {
            let a = crate::pg::compat::attribute(desc, *i);
            !a.attisdropped && a.attgenerated == 0
        };
        (0..(*desc).natts as usize).filter(plain).map(|i| i as i16 + 1).collect()
    }
}

/// `INSERT INTO t VALUES (row's columns)`.
///
/// # Safety
/// As [`get`]; `row` is of the table's row type.
pub unsafe fn insert(r: pg_sys::Relation, row: Value) {
    // SAFETY: `r` is open, and `row` is of its row type: contract of this function.
    unsafe {
        not_null(row);
        let names: Vec<String> = columns(r).into_iter().map(|c| column(r, c)).collect();
        let fields: Vec<String> = names.iter().map(|n| format!("($1).{n}")).collect();
        let sql = format!("INSERT INTO {} ({}) VALUES ({})", name(r), names.join(", "), fields.join(", "));
        run(&sql, &[row], false);
    }
}

/// `UPDATE t SET (all columns) = row WHERE key = the row's key`. False: there is no such row.
///
/// # Safety
/// As [`insert`].
pub unsafe fn put(r: pg_sys::Relation, row: Value) -> bool {
    // SAFETY: `r` is open, and `row` is of its row type: contract of this function.
    unsafe {
        not_null(row);
        let key = key(r);
        let set = |c: i16| format!("{0} = ($1).{0}", column(r, c));
        let sets: Vec<String> = columns(r).into_iter().filter(|c| !key.contains(c)).map(set).collect();
        if sets.is_empty() {
            errors::unsupported("put changes the columns beside the primary key, and the table has none", "");
        }
        let same = |(i, c)| format!("{0} {1} ($1).{0}", column(r, c), operator(r, i, EQUAL));
        let conditions: Vec<String> = key.into_iter().enumerate().map(same).collect();
        let sql = format!("UPDATE ONLY {} SET {} WHERE {}", name(r), sets.join(", "), conditions.join(" AND "));
        run(&sql, &[row], false).rows > 0
    }
}

fn not_null(row: Value) {
    if row.1 {
        complain(PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED, "the row must not be null", "");
    }
}
