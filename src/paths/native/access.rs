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
    /// Its number, from 0.
    pub at: usize,
    not_null: bool,
    fit: Fit,
}

/// A table as a caller uses it. Its address is the caller's handle, until it is released.
pub struct Access {
    table: *mut Table,
    /// The definition that was compared last; 0: none.
    definition: u64,
    /// Types of the key's columns.
    key_types: Box<[Oid]>,
    /// The columns that are read and written.
    pub columns: Box<[Named]>,
    /// Can all of them be stored without a statement?
    fits: bool,
    /// Are they few, and all stored as they are given, of types that are passed by value?
    pub simple: bool,
    /// Do they and NULLs make a row, as INSERT would make it?
    is_row: bool,
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
        // SAFETY: `values` has an entry for each type (mixedcc.h), and `lookup::Key` asks for
        // numbers below `len`.
        (unsafe { *self.values.add(i) }, self.types[i])
    }
}

/// A call in progress: a command has begun, and the table is open.
pub struct Running {
    /// The table.
    pub open: Open,
    /// What the command sees.
    pub snapshot: pg_sys::Snapshot,
}

impl Access {
    /// What a caller wants of a table. Nothing is looked at yet.
    pub fn new(oid: Oid, key_types: Box<[Oid]>, columns: Vec<(Box<CStr>, Oid)>) -> Access {
        let named = |(name, typid)| Named { name, typid, at: 0, not_null: false, fit: Fit::As };
        Access {
            table: Table::of(oid),
            definition: 0,
            key_types,
            columns: columns.into_iter().map(named).collect(),
            fits: false,
            simple: false,
            is_row: false,
        }
    }

    /// Begins a command, opens the table and compares its definition.
    ///
    /// # Safety
    /// Within a transaction; the room lives as long as what is returned.
    #[inline]
    pub unsafe fn ready(&mut self, access: table::Access, room: &mut moment::Room) -> Running {
        // SAFETY: within a transaction, and `room` lives as long as the result: contract of this
        // function. The command begins before the table is opened. This frame owns nothing where an
        // ERROR jumps.
        unsafe {
            if pg_sys::InterruptPending != 0 {
                pg::raw::ProcessInterrupts();
            }
            let snapshot = moment::begin(room.as_mut_ptr());
            let open = Table::open(self.table, access);
            if open.definition() != self.definition {
                self.compare(&open);
            }
            Running { open, snapshot }
        }
    }

    /// The table, if its definition is the one that was compared last.
    #[inline]
    pub fn compared(&self) -> Option<&Table> {
        // SAFETY: `self.table` is of `Table::of`: tables are never freed.
        let t = unsafe { &*self.table };
        (t.definition == self.definition).then_some(t)
    }

    /// A key's values.
    #[inline]
    pub fn key(&self, values: *const Datum) -> Given<'_> {
        Given { values, types: &self.key_types }
    }

    /// The same for a statement.
    pub fn key_values(&self, values: *const Datum, n: usize) -> Vec<Value> {
        // SAFETY: `values` has an entry for each column of the key (mixedcc.h), and `n` is at most
        // their number.
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

    #[cold]
    unsafe fn compare(&mut self, t: &Open) {
        // SAFETY: `t` is open: its entry is pinned (INV-ENTRY). Columns that a look-up has found
        // are in its descriptor.
        unsafe {
            self.definition = 0;
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
            for c in &mut self.columns {
                let no = pg_sys::get_attnum((*t.rel).rd_id, c.name.as_ptr());
                if no <= 0 {
                    let name = crate::pg::text::of_bytes(c.name.to_bytes());
                    complain(
                        PgSqlErrorCode::ERRCODE_UNDEFINED_COLUMN,
                        &format!("column \"{name}\" of the table does not exist"),
                        "",
                    );
                }
                c.at = no as usize - 1;
                let att = compat::attribute(desc, c.at);
                same_type(att, c.typid);
                c.not_null = att.attnotnull;
                c.fit = fit(att);
            }
            self.fits = self.columns.iter().all(|c| !matches!(c.fit, Fit::Assignment));
            let by_value = |c: &Named| matches!(c.fit, Fit::As) && compat::attribute(desc, c.at).attbyval;
            self.simple = self.columns.len() <= SIMPLE && self.columns.iter().all(by_value);
            self.is_row = (0..(*desc).natts as usize).all(|i| {
                let a = compat::attribute(desc, i);
                a.attisdropped || self.columns.iter().any(|c| c.at == i) || is_null_by_default(a)
            });
            self.definition = t.definition();
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
        // contract of this function. INV-TYPED: `c.at` is a column of the present definition.
        unsafe {
            if self.columns.len() <= FEW {
                for (i, c) in self.columns.iter().enumerate() {
                    (*values.add(i), *nulls.add(i)) = row::column(t, v, c.at);
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
            // contract of this function. INV-TYPED: `c.at` is a column of the row.
            unsafe { (*values.add(i), *nulls.add(i)) = (*all.add(c.at), *all_nulls.add(c.at)) };
        }
    }

    /// Puts the columns into a row, as an assignment does. A statement is needed where they do not
    /// fit.
    ///
    /// # Safety
    /// As `pick`. An ERROR jumps over this frame.
    #[inline]
    pub unsafe fn put(
        &mut self,
        t: &Open,
        values: *const Datum,
        nulls: *const bool,
        all: *mut Datum,
        all_nulls: *mut bool,
    ) -> Result<(), Statement> {
        // SAFETY: the arrays are of the row and of the access: contract of this function.
        // INV-TYPED: values have the columns' types, which the modifier's function takes.
        unsafe {
            for (i, c) in self.columns.iter_mut().enumerate() {
                let null = *nulls.add(i);
                if null && c.not_null {
                    return Err(Statement);
                }
                let mut d = *values.add(i);
                if let (Fit::Modifier(f, modifier), false) = (&mut c.fit, null) {
                    let collation = compat::attribute((*t.rel).rd_att, c.at).attcollation;
                    let modifier = Datum::from(*modifier);
                    d = pg::raw::FunctionCall3Coll(&mut **f, collation, d, modifier, Datum::from(false));
                }
                (*all.add(c.at), *all_nulls.add(c.at)) = (d, null);
            }
            Ok(())
        }
    }

    /// Would an UPDATE of the columns do nothing but replace the row's version?
    #[inline]
    pub fn updates_plainly(&self, t: &Open) -> Result<(), Statement> {
        let info = t.info;
        if !self.fits || self.columns.iter().any(|c| info.moving[c.at] || t.refers(c.at)) {
            return Err(Statement);
        }
        t.updates_plainly()
    }

    /// Would an INSERT of the columns do nothing but insert them?
    pub fn inserts_plainly(&self, t: &Open) -> Result<(), Statement> {
        if !self.fits || !self.is_row {
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
    // TopMemoryContext. An ERROR may leak the box.
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
        if path != pg_sys::CoercionPathType::COERCION_PATH_FUNC || function.to_u32() >= pg_sys::FirstNormalObjectId {
            return Fit::Assignment;
        }
        let mut f = Box::new(pg_sys::FmgrInfo::default());
        pg_sys::fmgr_info_cxt(function, &mut *f, pg_sys::TopMemoryContext);
        Fit::Modifier(f, att.atttypmod)
    }
}
