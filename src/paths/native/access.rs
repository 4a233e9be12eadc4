//! What the interface for extensions (`interface`) keeps of a table, its key and some of its
//! columns.
//!
//! **INV-TYPED**: Before a value is read as a column, or stored in it, the present definition of
//! the table has been compared with the types that the caller has named. `ready` compares them
//! whenever the number of the definition has changed.

use super::table::{self, Open, Table, Write};
use super::{moment, row, statement, Statement, Value};
use crate::access::lookup;
use crate::pg::errors::complain;
use crate::pg::{self, compat};
use mixedcc_engine::record::Version;
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::ptr::NonNull;

/// Most columns of an access that is `simple`.
pub const SIMPLE: usize = 4;

/// What a value needs before it can be stored in a column.
enum Fit {
    /// Nothing.
    As,
    /// The function that applies the column's modifier.
    Modifier(Box<pg_sys::FmgrInfo>, i32),
    /// A statement's assignment (domains, modifiers of types of users, identity columns, which
    /// refuse it).
    Assignment,
}

/// A column that the caller has named.
pub struct Named {
    /// Its name.
    pub name: Box<CStr>,
    /// Its type, as the caller has it.
    pub typid: Oid,
    at: Cell<usize>,
    not_null: Cell<bool>,
    fit: RefCell<Fit>,
}

impl Named {
    /// Its number, from 0.
    #[inline]
    pub fn at(&self) -> usize {
        self.at.get()
    }
}

/// A table as a caller uses it. Its address is the caller's handle, until it is released.
///
/// A call may begin in the middle of another one with the same handle: the functions that `modify`
/// and `scan` call may use the interface. So all that a call may change is in cells. No borrow of a
/// cell is held while PostgreSQL or a caller's function runs.
pub struct Access {
    table: &'static Table,
    /// The definition that was compared last; 0: none.
    definition: Cell<u64>,
    /// Types of the key's columns.
    key_types: Box<[Oid]>,
    /// The columns that are read and written.
    pub columns: Box<[Named]>,
    /// Can all of them be stored without a statement?
    fits: Cell<bool>,
    simple: Cell<bool>,
    /// Do they and NULLs make a row, as INSERT would make it?
    is_row: Cell<bool>,
}

/// The values of a key, of the types that the access names.
pub struct Given<'a> {
    values: *const Datum,
    types: &'a [Oid],
}

impl lookup::Key for Given<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.types.len()
    }
    #[inline]
    fn value(&self, i: usize) -> (Datum, Oid) {
        let typid = self.types[i];
        // SAFETY: `values` has an entry for each type (contract of `Access::key`), and `i` is the
        // number of a type, as it was looked at before.
        (unsafe { *self.values.add(i) }, typid)
    }
}

/// A call in progress: a command has begun, and the table is open.
pub struct Running {
    /// The table.
    pub open: Open,
    /// What the command sees.
    pub snapshot: pg_sys::Snapshot,
}

impl Running {
    /// Begins a command, and opens the table.
    ///
    /// # Safety
    /// Within a transaction; the room lives as long as what is returned. An ERROR jumps over this
    /// frame and the callers', which own nothing.
    #[inline]
    pub unsafe fn begin(table: &'static Table, access: table::Access, room: &mut moment::Room) -> Running {
        // SAFETY: within a transaction, and `room` lives as long as the result: contract of this
        // function. The command begins before the table is opened. This frame owns nothing where an
        // ERROR jumps.
        unsafe {
            if pg_sys::InterruptPending != 0 {
                pg::raw::ProcessInterrupts();
            }
            let snapshot = moment::begin(room.as_mut_ptr());
            Running { open: table.open(access), snapshot }
        }
    }
}

impl Access {
    /// What a caller wants of a table. Nothing is looked at yet.
    pub fn new(table: &'static Table, key_types: Box<[Oid]>, columns: Vec<(Box<CStr>, Oid)>) -> Access {
        let named = |(name, typid)| Named {
            name,
            typid,
            at: Cell::new(0),
            not_null: Cell::new(false),
            fit: RefCell::new(Fit::As),
        };
        Access {
            table,
            definition: Cell::new(0),
            key_types,
            columns: columns.into_iter().map(named).collect(),
            fits: Cell::new(false),
            simple: Cell::new(false),
            is_row: Cell::new(false),
        }
    }

    /// Begins a command, opens the table and compares its definition.
    ///
    /// # Safety
    /// As for [`Running::begin`].
    #[inline]
    pub unsafe fn ready(&self, access: table::Access, room: &mut moment::Room) -> Running {
        // SAFETY: contract of this function, which is that of `begin`. `open` pins the entry that
        // is compared (INV-ENTRY).
        unsafe {
            let running = Running::begin(self.table, access, room);
            if running.open.definition() != self.definition.get() {
                self.compare(&running.open);
            }
            running
        }
    }

    /// The table, if its definition is the one that was compared last.
    #[inline]
    pub fn compared(&self) -> Option<&'static Table> {
        Some(self.table).filter(|t| t.definition() == self.definition.get())
    }

    /// Are the columns few, and all stored as they are given, of types that are passed by value?
    #[inline]
    pub fn is_simple(&self) -> bool {
        self.simple.get()
    }

    /// A key's values.
    ///
    /// # Safety
    /// `values` has an entry for each column of the key, as long as what is returned is used.
    #[inline]
    pub unsafe fn key(&self, values: *const Datum) -> Given<'_> {
        Given { values, types: &self.key_types }
    }

    /// The same for a statement: the first `n` values.
    ///
    /// # Safety
    /// `values` has `n` entries.
    pub unsafe fn key_values(&self, values: *const Datum, n: usize) -> Vec<Value> {
        // SAFETY: `values` has `n` entries (contract of this function).
        (0..n).map(|i| (unsafe { *values.add(i) }, false, self.key_types[i])).collect()
    }

    /// The type of a column of the key.
    pub fn key_type(&self, i: usize) -> Oid {
        self.key_types[i]
    }

    /// Number of the key's columns.
    pub fn key_len(&self) -> usize {
        self.key_types.len()
    }

    /// Compares the table's present definition with what the caller believes. An ERROR unwinds.
    ///
    /// # Safety
    /// The access's table.
    #[cold]
    pub unsafe fn compare(&self, t: &Open) {
        // SAFETY: `t` is open: its entry is pinned (INV-ENTRY). Columns that a look-up has found
        // are in its descriptor.
        unsafe {
            self.definition.set(0);
            let desc = (*t.rel).rd_att;
            let key = statement::key(t.rel);
            if key.len() != self.key_types.len() {
                complain(
                    PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                    &format!("types of the key: {}; columns of the primary key: {}", self.key_types.len(), key.len()),
                    "Give a type for each column of the primary key, in its order.",
                );
            }
            for (&no, &typid) in key.iter().zip(&self.key_types) {
                same_type(compat::attribute(desc, no as usize - 1), typid);
            }
            for c in &self.columns {
                let no = pg_sys::get_attnum((*t.rel).rd_id, c.name.as_ptr());
                if no <= 0 {
                    let name = crate::pg::text::of_bytes(c.name.to_bytes());
                    complain(
                        PgSqlErrorCode::ERRCODE_UNDEFINED_COLUMN,
                        &format!("column \"{name}\" of the table does not exist"),
                        "",
                    );
                }
                c.at.set(no as usize - 1);
                let att = compat::attribute(desc, c.at());
                same_type(att, c.typid);
                c.not_null.set(att.attnotnull);
                let fit = fit(att);
                c.fit.replace(fit);
            }
            self.fits.set(self.columns.iter().all(|c| !matches!(*c.fit.borrow(), Fit::Assignment)));
            let by_value = |c: &Named| matches!(*c.fit.borrow(), Fit::As) && compat::attribute(desc, c.at()).attbyval;
            self.simple.set(self.columns.len() <= SIMPLE && self.columns.iter().all(by_value));
            self.is_row.set((0..(*desc).natts as usize).all(|i| {
                let a = compat::attribute(desc, i);
                a.attisdropped || self.columns.iter().any(|c| c.at() == i) || is_null_by_default(a)
            }));
            self.definition.set(t.definition());
        }
    }

    /// The columns of a version.
    ///
    /// # Safety
    /// A version of the open table; the arrays have an entry for each column of the access.
    #[inline]
    pub unsafe fn read(&self, t: &Open, v: NonNull<Version>, values: *mut Datum, nulls: *mut bool) {
        /// So many are read one by one.
        const FEW: usize = 3;
        // SAFETY: `v` is a version of the open table, and the arrays have an entry for each column:
        // contract of this function. INV-TYPED: `c` is a column of the present definition.
        unsafe {
            if self.columns.len() <= FEW {
                for (i, c) in self.columns.iter().enumerate() {
                    (*values.add(i), *nulls.add(i)) = row::column(t, v, c.at());
                }
                return;
            }
            let n = (*(*t.rel).rd_att).natts as usize;
            let mut few = row::Columns::few();
            let all = row::Columns::of(n, &mut few);
            crate::access::tuple::deform(t.rel, v.as_ptr(), all.values, all.nulls);
            self.pick(all.values, all.nulls, values, nulls);
            row::Columns::free(all.own);
        }
    }

    /// The columns of the access out of those of a row.
    ///
    /// # Safety
    /// Arrays of the row and of the access.
    #[inline]
    pub unsafe fn pick(&self, all: *const Datum, all_nulls: *const bool, values: *mut Datum, nulls: *mut bool) {
        for (i, c) in self.columns.iter().enumerate() {
            // SAFETY: `all` and `all_nulls` are of the whole row, the others of the access:
            // contract of this function. INV-TYPED: `c` is a column of the row.
            unsafe { (*values.add(i), *nulls.add(i)) = (*all.add(c.at()), *all_nulls.add(c.at())) };
        }
    }

    /// Puts the columns into a row, as an assignment does. A statement is needed where they do not
    /// fit.
    ///
    /// # Safety
    /// As `pick`. An ERROR jumps over this frame.
    #[inline]
    pub unsafe fn put(
        &self,
        t: &Open,
        values: *const Datum,
        nulls: *const bool,
        all: *mut Datum,
        all_nulls: *mut bool,
    ) -> Result<(), Statement> {
        // SAFETY: the arrays are of the row and of the access: contract of this function.
        // INV-TYPED: values have the columns' types, which the modifier's function takes. That is
        // PostgreSQL's own, so it makes no call that compares, and frees it.
        unsafe {
            for (i, c) in self.columns.iter().enumerate() {
                let null = *nulls.add(i);
                if null && c.not_null.get() {
                    return Err(Statement);
                }
                let mut d = *values.add(i);
                let modifier = match &mut *c.fit.borrow_mut() {
                    Fit::Modifier(f, modifier) if !null => Some((&raw mut **f, *modifier)),
                    _ => None,
                };
                if let Some((f, modifier)) = modifier {
                    let collation = compat::attribute((*t.rel).rd_att, c.at()).attcollation;
                    d = pg::raw::FunctionCall3Coll(f, collation, d, Datum::from(modifier), Datum::from(false));
                }
                (*all.add(c.at()), *all_nulls.add(c.at())) = (d, null);
            }
            Ok(())
        }
    }

    /// Would an UPDATE of the columns do nothing but replace the row's version?
    #[inline]
    pub fn updates_plainly(&self, t: &Open) -> Result<(), Statement> {
        let info = t.info;
        if !self.fits.get() || self.columns.iter().any(|c| info.moving[c.at()] || t.refers(c.at())) {
            return Err(Statement);
        }
        t.updates_plainly()
    }

    /// Would an INSERT of the columns do nothing but insert them?
    pub fn inserts_plainly(&self, t: &Open) -> Result<(), Statement> {
        if !self.fits.get() || !self.is_row.get() {
            return Err(Statement);
        }
        t.writes_plainly(Write::Insert, pg_sys::ACL_INSERT)
    }
}

/// Raises an error if a column has another type than the caller believes.
fn same_type(att: &pg_sys::FormData_pg_attribute, typid: Oid) {
    if att.atttypid == typid {
        return;
    }
    // SAFETY: `att` is of an open relation, so its name ends with a zero byte. format_type_be
    // answers any OID.
    let (name, [is, wanted]) = unsafe {
        let text = |t| crate::pg::text::read(pg_sys::format_type_be(t));
        (crate::pg::text::read(att.attname.data.as_ptr()), [text(att.atttypid), text(typid)])
    };
    complain(
        PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
        &format!("column \"{name}\" is of type {is}, and not {wanted}"),
        "The extension was made for another definition of the table.",
    )
}

fn is_domain(typid: Oid) -> bool {
    // SAFETY: a catalog look-up: any OID is answered.
    unsafe { pg_sys::get_typtype(typid) == pg_sys::TYPTYPE_DOMAIN as core::ffi::c_char }
}

/// Does an INSERT that does not name the column make it NULL? Types may have a default too, and
/// domains constraints.
fn is_null_by_default(a: &pg_sys::FormData_pg_attribute) -> bool {
    let plain = !a.atthasdef && a.attidentity == 0 && a.attgenerated == 0 && !a.attnotnull;
    // SAFETY: a catalog look-up: any OID of a type that a column has is answered.
    plain && !is_domain(a.atttypid) && unsafe { pg_sys::get_typdefault(a.atttypid) }.is_null()
}

/// What a value of the column's type needs.
unsafe fn fit(att: &pg_sys::FormData_pg_attribute) -> Fit {
    // SAFETY: catalog look-ups with the type of a column. `f` is boxed; what it keeps is in
    // TopMemoryContext. An ERROR unwinds, and frees the box.
    unsafe {
        let identity = att.attidentity as u8 == pg_sys::ATTRIBUTE_IDENTITY_ALWAYS;
        if identity || is_domain(att.atttypid) {
            return Fit::Assignment;
        }
        if att.atttypmod < 0 {
            return Fit::As;
        }
        let mut function = pg_sys::InvalidOid;
        let path = pg_sys::find_typmod_coercion_function(att.atttypid, &mut function);
        let is_known = function.to_u32() < pg_sys::FirstNormalObjectId && compat::all_may_call(function);
        if path != pg_sys::CoercionPathType::COERCION_PATH_FUNC || !is_known {
            return Fit::Assignment;
        }
        let mut f = Box::new(pg_sys::FmgrInfo::default());
        pg_sys::fmgr_info_cxt(function, &mut *f, pg_sys::TopMemoryContext);
        Fit::Modifier(f, att.atttypmod)
    }
}
