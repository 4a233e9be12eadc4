//! Native access for procedures: functions that read and change rows by the primary key, without a
//! statement.
//!
//! `mixedcc.get`, `set`, `add`, `remove`, `put` and `insert`, and `get_each`, `add_each` for many
//! keys in one call. In plpgsql they are simple expressions, which cost neither a plan nor an
//! executor. A call sees and does what the SQL statement would that its comment names, at every
//! isolation level: it has that statement's command id and the snapshot of the statement that calls
//! it.
//!
//! There are two ways. A call runs *directly* (`row`), by the engine's primary index and the
//! functions of `access`, where the statement would do nothing besides. Such a statement has no
//! trigger, constraint to check, other index to change, policy, or partial right. Otherwise this
//! very statement runs, through SPI (`statement`). So PostgreSQL does everything that is not known
//! here.

use crate::access::lookup;
use crate::pg::compat;
use crate::pg::errors::complain;
use crate::pg::values::Domain;
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::*;
use table::{Open, Table};

mod access;
mod batch;
mod by_sql;
mod entry;
mod interface;
mod kept;
mod moment;
mod quick;
mod range;
mod row;
mod statement;
mod table;

pub use table::{abort_subtransaction, abort_transaction, of_rowtype};

/// Registers callbacks, and shows the interface.
pub fn init() {
    table::init();
    interface::init();
}

/// A value of an argument: datum, NULL, type.
pub(super) type Value = (Datum, bool, Oid);

/// The statement has to be run.
pub(super) struct Statement;

/// The arguments of a call, and the findings of earlier calls (`fn_extra`).
#[derive(Clone, Copy)]
pub(super) struct Call {
    info: pg_sys::FunctionCallInfo,
    known: *mut Known,
}

/// What does not change from call to call at one place of a statement. In the memory of the place:
/// plpgsql makes its expressions anew for each transaction, so this is made often.
pub(super) struct Known {
    /// The table.
    table: &'static Table,
    /// The arguments' types.
    types: *const Oid,
    /// Of the rows that the call returns.
    domain: Domain,
    /// The column that was named last.
    column: Column,
}

/// A column of the table, and the operator that adds to it.
pub(super) struct Column {
    name: pg_sys::NameData,
    /// The table's definition when this was found; 0: never.
    definition: u64,
    /// Its number, from 0.
    pub at: usize,
    /// `column + argument`, if there is such an operator of PostgreSQL's with the column's type as
    /// result; else null.
    pub plus: *mut pg_sys::FmgrInfo,
    function: pg_sys::FmgrInfo,
}

/// Arguments from some number on: a key.
#[derive(Clone, Copy)]
pub(super) struct Arguments {
    values: *const pg_sys::NullableDatum,
    types: *const Oid,
    n: usize,
}

impl lookup::Key for Arguments {
    #[inline]
    fn len(&self) -> usize {
        self.n
    }
    #[inline]
    fn value(&self, i: usize) -> (Datum, Oid) {
        debug_assert!(i < self.n);
        // SAFETY: `Call::key` made this of `n` arguments of the call, and `lookup::Key` asks for
        // numbers below `len`.
        unsafe { ((*self.values.add(i)).value, *self.types.add(i)) }
    }
}

impl Call {
    /// The call of a function whose argument `of` is `NULL::table`.
    ///
    /// # Safety
    /// PostgreSQL's contract of function calls.
    #[inline]
    pub unsafe fn new(info: pg_sys::FunctionCallInfo, of: usize) -> Call {
        // SAFETY: `info` is a call of ours (fmgr.h): contract of this function. Only `Known::find`
        // sets `fn_extra`, in memory that lives as long as `flinfo`.
        unsafe {
            let f = (*info).flinfo;
            if (*f).fn_extra.is_null() {
                Known::find(info, of);
            }
            Call { info, known: (*f).fn_extra.cast() }
        }
    }

    /// Opens the table.
    ///
    /// # Safety
    /// As `Table::open`.
    #[inline]
    pub unsafe fn open(&self, access: table::Access) -> Open {
        // SAFETY: `known` was made by `Known::find`. The rest is the contract of this function,
        // which is `Table::open`'s.
        unsafe { (*self.known).table.open(access) }
    }

    /// Checks a row that the call returns, of the type that it was given.
    ///
    /// # Safety
    /// A row of the call's table. An ERROR jumps over the caller's frame, which owns nothing.
    #[inline]
    pub unsafe fn check(&self, row: Option<Datum>) {
        // SAFETY: `known` was made by `Known::find`. The rest is the contract of this function.
        unsafe { (*self.known).domain.check(row) }
    }

    /// Number of arguments.
    #[inline]
    pub fn len(&self) -> usize {
        // SAFETY: `info` is the call in progress, by the contract of `new` and `again`.
        unsafe { (*self.info).nargs as usize }
    }

    /// Argument `i`.
    #[inline]
    pub fn arg(&self, i: usize) -> Value {
        assert!(i < self.len(), "an argument of the call");
        // SAFETY: `i` was checked: the call has `nargs` arguments, and `Known::find` made as many
        // types.
        unsafe {
            let a = &*(*self.info).args.as_ptr().add(i);
            (a.value, a.isnull, *(*self.known).types.add(i))
        }
    }

    /// Arguments from `from` on. `None`: a value is NULL, which equals nothing.
    #[inline]
    pub fn key(&self, from: usize) -> Option<Arguments> {
        let n = self.len() - from;
        if n > pg_sys::INDEX_MAX_KEYS as usize {
            complain(
                PgSqlErrorCode::ERRCODE_TOO_MANY_ARGUMENTS,
                "too many values of a key",
                "Give a value for each column of the primary key, in its order.",
            );
        }
        // SAFETY: the call has `n` arguments from `from` on, and `Known::find` made a type for
        // each.
        unsafe {
            let values = (*self.info).args.as_ptr().add(from);
            if (0..n).any(|i| (*values.add(i)).isnull) {
                return None;
            }
            Some(Arguments { values, types: (*self.known).types.add(from), n })
        }
    }

    /// The type of argument `i`.
    #[inline]
    pub fn arg_type(&self, i: usize) -> Oid {
        debug_assert!(i < self.len());
        // SAFETY: `i` is the number of an argument: `Known::find` made a type for each.
        unsafe { *(*self.known).types.add(i) }
    }

    /// The same as `key`, without an error.
    #[inline]
    pub fn key_quickly(&self, from: usize) -> Option<Arguments> {
        (self.len() - from <= pg_sys::INDEX_MAX_KEYS as usize).then(|| self.key(from))?
    }

    /// The table, and the column that argument `i` names, if it is the one that was named last in
    /// the table's present definition.
    #[inline]
    pub fn known_column(&self, i: usize) -> Option<(&'static Table, &Column)> {
        debug_assert!(i < self.len());
        // SAFETY: the call has argument `i`, whose SQL type is `name`; it is read only if it is not
        // NULL. `known` was made by `Known::find`.
        unsafe {
            let known = &*self.known;
            let a = &*(*self.info).args.as_ptr().add(i);
            let (table, column) = (known.table, &known.column);
            let same = !a.isnull && column.name.data == (*a.value.cast_mut_ptr::<pg_sys::NameData>()).data;
            (same && column.definition == table.definition()).then_some((table, column))
        }
    }

    /// A call that was made before at this place.
    ///
    /// # Safety
    /// PostgreSQL's contract of function calls.
    #[inline]
    pub unsafe fn again(info: pg_sys::FunctionCallInfo) -> Option<Call> {
        // SAFETY: `info` is a call of ours (fmgr.h): contract of this function. Only `Known::find`
        // sets `fn_extra`.
        let known: *mut Known = unsafe { (*(*info).flinfo).fn_extra.cast() };
        (!known.is_null()).then_some(Call { info, known })
    }

    /// The column that argument `i` names, in an open table; with the operator that adds a value of
    /// type `operand`.
    ///
    /// # Safety
    /// The table is the call's.
    #[inline]
    pub unsafe fn column(&self, t: &Open, i: usize, operand: Option<Oid>) -> &Column {
        let (name, null, _) = self.arg(i);
        if null {
            complain(PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED, "the column must not be null", "");
        }
        // SAFETY: argument `i` has the SQL type `name`, and is not NULL. `known` was made by
        // `Known::find`; one call at a time uses the findings of a place.
        unsafe {
            let c = &mut (*self.known).column;
            let name = name.cast_mut_ptr::<pg_sys::NameData>();
            if c.definition != t.definition() || c.name.data != (*name).data {
                self.find_column(c, t, name, operand);
            }
            c
        }
    }

    #[cold]
    unsafe fn find_column(&self, c: &mut Column, t: &Open, name: *const pg_sys::NameData, operand: Option<Oid>) {
        // SAFETY: `t` is open and `name` is that of `column`'s argument. `fn_mcxt` lives as long as
        // `c`, which `fn_extra` holds in it.
        unsafe {
            c.definition = 0;
            let no = pg_sys::get_attnum((*t.rel).rd_id, (*name).data.as_ptr());
            if no <= 0 {
                let name = crate::pg::text::read((*name).data.as_ptr());
                complain(
                    PgSqlErrorCode::ERRCODE_UNDEFINED_COLUMN,
                    &format!("column \"{name}\" of the table does not exist"),
                    "",
                );
            }
            c.at = no as usize - 1;
            c.plus = std::ptr::null_mut();
            let typid = compat::attribute((*t.rel).rd_att, c.at).atttypid;
            if let Some(function) = operand.and_then(|o| plus(typid, o)) {
                pg_sys::fmgr_info_cxt(function, &mut c.function, (*(*self.info).flinfo).fn_mcxt);
                c.plus = &mut c.function;
            }
            c.name = *name;
            c.definition = t.definition();
        }
    }
}

/// The function of `a + b`, if it is PostgreSQL's own, all may call it, and its result is an `a`.
fn plus(a: Oid, b: Oid) -> Option<Oid> {
    // SAFETY: catalog look-ups: any OID is answered. The list of one name lives in the current
    // context.
    unsafe {
        let op = pg_sys::OpernameGetOprid(pg_sys::lappend(std::ptr::null_mut(), plus_name()), a, b);
        let function = if op == pg_sys::InvalidOid { op } else { pg_sys::get_opcode(op) };
        let known = function != pg_sys::InvalidOid && function.to_u32() < pg_sys::FirstNormalObjectId;
        (known && pg_sys::get_func_rettype(function) == a && compat::all_may_call(function)).then_some(function)
    }
}

/// A node of a list: the name `+`.
fn plus_name() -> *mut core::ffi::c_void {
    // SAFETY: the string is a constant that ends with a zero byte.
    unsafe { pg_sys::makeString(pg_sys::pstrdup(c"+".as_ptr())).cast() }
}

impl Known {
    /// Finds out what is to be known, and keeps it with the call's place.
    #[cold]
    unsafe fn find(info: pg_sys::FunctionCallInfo, of: usize) {
        // SAFETY: `info` is a call of ours (fmgr.h): `Call::new` passes its own. All-zero is a
        // `Known` without a column. The memory has room for `n` types behind it, aligned for them.
        unsafe {
            let f = (*info).flinfo;
            if pg_sys::get_fn_expr_variadic(f) {
                crate::pg::errors::unsupported(
                    "the key cannot be a VARIADIC array",
                    "Give the values of the key one by one.",
                );
            }
            let n = (*info).nargs as usize;
            let room = pg_sys::MemoryContextAllocZero((*f).fn_mcxt, size_of::<Known>() + n * size_of::<Oid>());
            let known = room.cast::<Known>();
            let types = known.add(1).cast::<Oid>();
            for i in 0..n {
                *types.add(i) = pg_sys::get_fn_expr_argtype(f, i as i32);
            }
            (*known).types = types;
            (*known).table = Table::of_rowtype(*types.add(of));
            (*known).domain = Domain::of(*types.add(of), (*f).fn_mcxt);
            (*f).fn_extra = known.cast();
        }
    }
}
