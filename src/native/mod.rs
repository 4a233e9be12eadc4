//! Native access for procedures: functions that read and change rows by the primary key, without a statement.
//!
//! `mixedcc.get`, `set`, `add`, `remove`, `put` and `insert`, and `get_each`, `add_each` for many keys in one call. In
//! plpgsql they are simple expressions, which cost neither a plan nor an executor. A call sees and does what the SQL
//! statement would that its comment names, at every isolation level: it has that statement's command id and the
//! snapshot of the statement that calls it.
//!
//! Two ways: *directly* (`row`), by the engine's primary index and the access method's callbacks, where the statement
//! would do nothing besides (no trigger, constraint to check, other index to change, policy, partial right); else by this
//! very statement, through SPI (`statement`). So whatever is not known here is done by PostgreSQL.

use crate::options::complain;
use crate::{compat, pg, rel, xact};
use pgrx::memcxt::PgMemoryContexts;
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::*;

mod batch;
mod entry;
mod row;
mod statement;

/// A value of an argument: datum, NULL, type.
pub(super) type Value = (Datum, bool, Oid);

/// The arguments of a call, and what was found about it before (`fn_extra`).
pub(super) struct Call {
    info: pg_sys::FunctionCallInfo,
    known: *mut Known,
}

/// What does not change from call to call at one place of a statement.
pub(super) struct Known {
    /// The table.
    table: Oid,
    /// The arguments' types.
    types: Vec<Oid>,
    /// The column that was named last, and the operator that adds to it.
    column: Option<Column>,
    /// The statement that was run last.
    plan: Option<statement::Plan>,
}

/// A column of the table.
#[derive(Clone)]
pub(super) struct Column {
    name: Vec<u8>,
    /// Its number, from 0, when this was found.
    pub at: usize,
    /// `column + argument`, if there is such an operator with the column's type as result.
    pub plus: Option<Oid>,
}

impl Call {
    /// The call of a function whose first argument is `NULL::table`.
    ///
    /// # Safety
    /// PostgreSQL's contract of function calls.
    pub unsafe fn new(info: pg_sys::FunctionCallInfo) -> Call {
        // SAFETY: the caller's; `fn_extra` is ours, and lives as long as its context.
        unsafe {
            let f = (*info).flinfo;
            if (*f).fn_extra.is_null() {
                let known = Known::find(info);
                let mut context = PgMemoryContexts::For((*f).fn_mcxt);
                (*f).fn_extra = context.leak_and_drop_on_delete(known).cast();
            }
            Call { info, known: (*f).fn_extra.cast() }
        }
    }

    /// The table.
    pub fn table(&self) -> Oid {
        // SAFETY: made in `new`.
        unsafe { (*self.known).table }
    }

    /// Number of arguments.
    pub fn len(&self) -> usize {
        // SAFETY: a valid call.
        unsafe { (*self.info).nargs as usize }
    }

    /// Argument `i`.
    #[inline]
    pub fn arg(&self, i: usize) -> Value {
        // SAFETY: a valid call with more arguments than `i`.
        unsafe {
            let a = (*self.info).args.as_slice(self.len())[i];
            (a.value, a.isnull, (&(*self.known).types)[i])
        }
    }

    /// The statement that was run last from this place.
    pub fn plan(&mut self) -> &mut Option<statement::Plan> {
        // SAFETY: made in `new`; one call at a time uses it.
        unsafe { &mut (*self.known).plan }
    }

    /// The column that argument `i` names, in an open table; with the operator that adds a value of type `operand`.
    pub unsafe fn column(&mut self, rel: pg_sys::Relation, i: usize, operand: Option<Oid>) -> Column {
        let (name, null, _) = self.arg(i);
        if null {
            complain(PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED, "the column must not be null", "");
        }
        // SAFETY: an argument of type `name`; an open table.
        unsafe {
            let name = std::ffi::CStr::from_ptr(name.cast_mut_ptr::<std::ffi::c_char>());
            if let Some(c) = (*self.known).column.as_ref().filter(|c| c.name == name.to_bytes()) {
                if c.at < (*(*rel).rd_att).natts as usize {
                    let att = compat::attribute((*rel).rd_att, c.at);
                    if std::ffi::CStr::from_ptr(att.attname.data.as_ptr()) == name && !att.attisdropped {
                        return c.clone();
                    }
                }
            }
            let no = pg_sys::get_attnum((*rel).rd_id, name.as_ptr());
            if no <= 0 {
                complain(
                    PgSqlErrorCode::ERRCODE_UNDEFINED_COLUMN,
                    &format!("column \"{}\" of the table does not exist", name.to_string_lossy()),
                    "",
                );
            }
            let at = no as usize - 1;
            let plus = operand.and_then(|o| plus(compat::attribute((*rel).rd_att, at).atttypid, o));
            let c = Column { name: name.to_bytes().to_vec(), at, plus };
            (*self.known).column = Some(c.clone());
            c
        }
    }
}

/// The function of `a + b`, if its result is an `a`.
fn plus(a: Oid, b: Oid) -> Option<Oid> {
    // SAFETY: catalog look-ups.
    unsafe {
        let op = pg_sys::OpernameGetOprid(pg_sys::lappend(std::ptr::null_mut(), plus_name()), a, b);
        let function = if op == pg_sys::InvalidOid { op } else { pg_sys::get_opcode(op) };
        (function != pg_sys::InvalidOid && pg_sys::get_func_rettype(function) == a).then_some(function)
    }
}

/// A node of a list: the name `+`.
fn plus_name() -> *mut core::ffi::c_void {
    // SAFETY: a constant string.
    unsafe { pg_sys::makeString(pg_sys::pstrdup(c"+".as_ptr())).cast() }
}

impl Known {
    unsafe fn find(info: pg_sys::FunctionCallInfo) -> Known {
        // SAFETY: the caller's.
        unsafe {
            let f = (*info).flinfo;
            if pg_sys::get_fn_expr_variadic(f) {
                crate::errors::unsupported(
                    "the key cannot be a VARIADIC array",
                    "Give the values of the key one by one.",
                );
            }
            let types: Vec<Oid> = (0..(*info).nargs as i32).map(|i| pg_sys::get_fn_expr_argtype(f, i)).collect();
            let table = pg_sys::get_typ_typrelid(pg_sys::getBaseType(types[0]));
            if table == pg_sys::InvalidOid || pg_sys::get_rel_relkind(table) as u8 != pg_sys::RELKIND_RELATION {
                complain(
                    PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
                    "the first argument must be a row of a mixedcc table",
                    "Write NULL::table_name.",
                );
            }
            Known { table, types, column: None, plan: None }
        }
    }
}

/// A table that is open for a call.
pub(super) struct Table(pub pg_sys::Relation);

impl Table {
    /// Opens a table of ours, or raises an error. An ERROR's clean-up closes it.
    pub unsafe fn open(oid: Oid, lock: u32) -> Table {
        // SAFETY: a plain call.
        unsafe {
            let r = pg_sys::relation_open(oid, lock as i32);
            if !rel::is_ours(r) {
                complain(
                    PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
                    &format!("\"{}\" is not a mixedcc table", crate::sql::relation_name(oid)),
                    "Name a table that was created USING mixedcc.",
                );
            }
            Table(r)
        }
    }

    /// Closes it; the lock stays.
    pub fn close(self) {
        // SAFETY: opened by `open`.
        unsafe { pg_sys::relation_close(self.0, pg_sys::NoLock as i32) };
    }
}

/// The snapshot of a call: the active one, at the newest command id, so that it sees what this transaction has
/// written before the call, as a statement of a volatile function does.
pub(super) struct Moment {
    pushed: bool,
}

impl Moment {
    /// Begins a command.
    pub unsafe fn begin() -> Moment {
        // SAFETY: a function runs within a statement, which has an active snapshot; an ERROR's clean-up pops ours.
        unsafe {
            if !pg::raw::ActiveSnapshotSet() {
                complain(PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "there is no snapshot", "");
            }
            pg_sys::CommandCounterIncrement();
            let pushed = (*pg::raw::GetActiveSnapshot()).curcid != pg_sys::GetCurrentCommandId(false);
            if pushed {
                // It has the read CSN that the active one has; both are of one moment.
                xact::snapshot_csn(pg::raw::GetActiveSnapshot());
                pg_sys::PushCopiedSnapshot(pg::raw::GetActiveSnapshot());
                pg_sys::UpdateActiveSnapshotCommandId();
            }
            Moment { pushed }
        }
    }

    /// Ends it.
    pub fn end(self) {
        if self.pushed {
            // SAFETY: pushed in `begin`.
            unsafe { pg_sys::PopActiveSnapshot() };
        }
    }
}
