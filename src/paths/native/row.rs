//! A row by its primary key, directly.

use super::table::{Open, Write};
use super::{Column, Statement, Value};
use crate::access::lookup::{self, Found, Key, Use};
use crate::access::{deferred, mixture, primary, tuple, write};
use crate::pg::{self, compat, Tid};
use crate::state::xact;
use mixedcc_engine::range;
use mixedcc_engine::record::Version;
use mixedcc_engine::RecordRef;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, Datum, NodeTag, Oid, TM_Result};
use pgrx::prelude::*;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// What a change makes of a row.
pub enum Change<'a> {
    /// A column gets a value.
    Set(&'a Column, Value),
    /// A value is added to a column.
    Add(&'a Column, Value),
    /// The row goes.
    Remove,
}

/// All values of a key.
pub fn all_of<K: Key + ?Sized>(key: &K) -> Vec<Value> {
    (0..key.len()).map(|i| (key.value(i).0, false, key.value(i).1)).collect()
}

impl Key for [Value] {
    fn len(&self) -> usize {
        <[Value]>::len(self)
    }
    fn value(&self, i: usize) -> (Datum, Oid) {
        (self[i].0, self[i].2)
    }
}

/// Finds the row with a key as the snapshot and the isolation level show it.
///
/// # Safety
/// An open table, the snapshot of a command that has begun.
#[inline]
pub unsafe fn find<K: Key + ?Sized>(
    t: &Open,
    snapshot: pg_sys::Snapshot,
    key: &K,
    for_write: bool,
) -> Result<Option<Found>, Statement> {
    // SAFETY: `t` is open, and `snapshot` is of a command that has begun: contract of this
    // function. `filter` makes sure that `key` has a value for each column.
    unsafe {
        mixture::check();
        let to = if for_write { Use::Write } else { Use::Look(range::Columns::ALL) };
        let usable = primary::usable_declared(t.rel, t.info).filter(|pk| pk.codec.attnums.len() == key.len());
        let found = usable.and_then(|pk| lookup::by_key(t.rel, t.info, pk, key, snapshot, to));
        found.ok_or(Statement)
    }
}

/// A row as a value of the table's row type.
///
/// # Safety
/// A row of the open table, which was found now.
#[inline]
pub unsafe fn as_datum(t: &Open, found: Found) -> Datum {
    // SAFETY: `found` was found now, so the transaction's pin keeps its version (INV-RETIRE). It is
    // of `t`, whose descriptor this is.
    unsafe {
        let desc = (*t.rel).rd_att;
        let mut row = tuple::as_tuple(found.version.as_ptr(), Tid::Record(found.r.no), (*t.rel).rd_id);
        if tuple::columns(&row) == (*desc).natts {
            return pg::raw::heap_copy_tuple_as_datum(&mut row, desc);
        }
        // Columns that were added later get their values.
        let n = (*desc).natts as usize;
        let (mut values, mut nulls) = (vec![Datum::from(0); n], vec![false; n]);
        pg_sys::heap_deform_tuple(&mut row, desc, values.as_mut_ptr(), nulls.as_mut_ptr());
        let whole = pg_sys::heap_form_tuple(desc, values.as_mut_ptr(), nulls.as_mut_ptr());
        pg_sys::heap_copy_tuple_as_datum(whole, desc)
    }
}

/// A column of a row that was found. The value is in the row.
///
/// # Safety
/// As `as_datum`; the table has the column, which counts from 0.
#[inline]
pub unsafe fn column(t: &Open, version: NonNull<Version>, at: usize) -> (Datum, bool) {
    // SAFETY: `version` was found now in `t`, which has column `at`: contract of this function.
    unsafe {
        let mut row = tuple::as_tuple(version.as_ptr(), Tid::Invalid, (*t.rel).rd_id);
        tuple::column(&mut row, (*t.rel).rd_att, at)
    }
}

/// Changes the row with a key. False: there is none.
///
/// # Safety
/// As `find`; the table is open for writing.
#[inline]
pub unsafe fn change<K: Key + ?Sized>(
    t: &Open,
    snapshot: pg_sys::Snapshot,
    key: &K,
    change: &Change,
) -> Result<bool, Statement> {
    // SAFETY: `t` is open for writing, and `snapshot` is of a command that has begun: contract of
    // this function. `new_value` gives values of the column's type; the closure's arrays have an
    // entry for each column.
    unsafe {
        let Some(new) = new_value(t, change)? else {
            t.writes_plainly(Write::Delete, pg_sys::ACL_SELECT | pg_sys::ACL_DELETE)?;
            return match find(t, snapshot, key, true)? {
                Some(found) => delete(t, snapshot, found),
                None => Ok(false),
            };
        };
        t.updates_plainly()?;
        let Some(found) = find(t, snapshot, key, true)? else { return Ok(false) };
        rewrite(t, snapshot, found, |values, nulls| {
            let (at, (value, null)) = match new {
                New::Is(at, d, null) => (at, (d, null)),
                New::Sum(c, d) => {
                    if *nulls.add(c.at) {
                        return Err(Statement);
                    }
                    let collation = compat::attribute((*t.rel).rd_att, c.at).attcollation;
                    (c.at, (pg::raw::FunctionCall2Coll(c.plus, collation, *values.add(c.at), d), false))
                }
            };
            (*values.add(at), *nulls.add(at)) = (value, null);
            Ok(())
        })
    }
}

/// What becomes of a column.
#[derive(Clone, Copy)]
enum New<'a> {
    Is(usize, Datum, bool),
    /// The column and this.
    Sum(&'a Column, Datum),
}

/// What becomes of the column that is changed, if nothing has to be done to the value; `None`: the
/// row goes.
unsafe fn new_value<'a>(t: &Open, change: &Change<'a>) -> Result<Option<New<'a>>, Statement> {
    let (c, (d, null, typid)) = match *change {
        Change::Remove => return Ok(None),
        Change::Set(c, v) | Change::Add(c, v) => (c, v),
    };
    // SAFETY: `t` is open, and has the column: contract of `change`, the only caller.
    let att = unsafe { compat::attribute((*t.rel).rd_att, c.at) };
    // A value for a column with a modifier may have to be cut or refused, one for an identity
    // column is.
    let identity = att.attidentity as u8 == pg_sys::ATTRIBUTE_IDENTITY_ALWAYS;
    if att.atttypmod >= 0 || identity || t.info.moving[c.at] || t.refers(c.at) {
        return Err(Statement);
    }
    match change {
        Change::Set(..) if typid == att.atttypid && !(null && att.attnotnull) => Ok(Some(New::Is(c.at, d, null))),
        Change::Add(..) if !c.plus.is_null() && !null => Ok(Some(New::Sum(c, d))),
        _ => Err(Statement),
    }
}

/// Replaces a row by one in which `change` has changed columns that are in no index and not in the
/// partition key.
///
/// # Safety
/// As `change`; the row was found for writing, and a statement would do nothing but write it.
/// `change` keeps the columns' types, modifiers and NOT NULL. An ERROR in it may jump over this
/// frame.
#[inline]
pub unsafe fn rewrite(
    t: &Open,
    snapshot: pg_sys::Snapshot,
    found: Found,
    change: impl FnOnce(*mut Datum, *mut bool) -> Result<(), Statement>,
) -> Result<bool, Statement> {
    // SAFETY: `found` was found for writing in `t`: contract of this function. The arrays have an
    // entry for each column. An ERROR leaves them to their memory context.
    unsafe {
        if t.is_checked(found.r) {
            return Err(Statement);
        }
        let desc = (*t.rel).rd_att;
        let n = (*desc).natts as usize;
        let mut few = Columns::few();
        let Columns { values, nulls, own } = Columns::of(n, &mut few);
        tuple::deform(t.rel, found.version.as_ptr(), values, nulls);
        if let Err(e) = change(values, nulls) {
            Columns::free(own);
            return Err(e);
        }
        let mut slot = virtual_slot(t.rel, values, nulls);
        let mut failed = pg_sys::TM_FailureData::default();
        let (cid, none) = (pg::raw::GetCurrentCommandId(true), std::ptr::null_mut());
        let at = Tid::Record(found.r.no);
        let result = write::update_in_place(t.rel, t.info, at, &mut slot, cid, snapshot, none, &mut failed, None);
        Columns::free(own);
        written(result)
    }
}

/// Room for the values of columns.
pub struct Columns {
    /// The values.
    pub values: *mut Datum,
    /// Are they NULL?
    pub nulls: *mut bool,
    /// The memory, if it has to be freed; an ERROR leaves it to its context.
    pub own: *mut core::ffi::c_void,
}

/// So many columns need no memory of their own.
const FEW: usize = 16;
/// Room for them.
pub type Few = MaybeUninit<([Datum; FEW], [bool; FEW])>;

impl Columns {
    /// Room in the caller's frame.
    #[inline]
    pub fn few() -> Few {
        MaybeUninit::uninit()
    }
    /// Room for `n` columns: in `few`, if they fit.
    #[inline]
    pub fn of(n: usize, few: &mut Few) -> Columns {
        // SAFETY: `few` has room for `FEW` columns, and what palloc returns for `n`. An ERROR for
        // want of memory jumps over this frame, which owns nothing.
        unsafe {
            if n <= FEW {
                let few = few.as_mut_ptr();
                let (values, nulls) = (&raw mut (*few).0, &raw mut (*few).1);
                return Columns { values: values.cast(), nulls: nulls.cast(), own: std::ptr::null_mut() };
            }
            let own = pg::raw::palloc(n * (size_of::<Datum>() + 1));
            Columns { values: own.cast(), nulls: own.cast::<Datum>().add(n).cast(), own }
        }
    }
    /// Gives the memory back.
    ///
    /// # Safety
    /// `own` of a `Columns`, once, after the last use of its arrays.
    #[inline]
    pub unsafe fn free(own: *mut core::ffi::c_void) {
        if !own.is_null() {
            // SAFETY: `own` is memory of `of`, which is freed once (contract of this function).
            unsafe { pg::raw::pfree(own) };
        }
    }
}

/// A slot for all columns of a row. It holds no reference to the descriptor, which is the open
/// table's.
///
/// # Safety
/// An open table, whose columns the arrays have.
pub unsafe fn virtual_slot(r: pg_sys::Relation, values: *mut Datum, nulls: *mut bool) -> pg_sys::TupleTableSlot {
    // SAFETY: `r` is open, and the arrays have its columns: contract of this function.
    unsafe {
        pg_sys::TupleTableSlot {
            type_: NodeTag::T_TupleTableSlot,
            tts_flags: pg_sys::TTS_FLAG_FIXED as u16,
            tts_nvalid: (*(*r).rd_att).natts as i16,
            tts_ops: &raw const pg_sys::TTSOpsVirtual,
            tts_tupleDescriptor: (*r).rd_att,
            tts_values: values,
            tts_isnull: nulls,
            tts_mcxt: pg_sys::CurrentMemoryContext,
            tts_tid: Tid::Invalid.item(),
            tts_tableOid: (*r).rd_id,
        }
    }
}

/// Deletes a row.
///
/// # Safety
/// As `rewrite`.
pub unsafe fn delete(t: &Open, snapshot: pg_sys::Snapshot, found: Found) -> Result<bool, Statement> {
    // SAFETY: `t` is open for writing, and `found` was found for writing in it: contract of this
    // function.
    unsafe {
        let mut failed = pg_sys::TM_FailureData::default();
        let (cid, none) = (pg::raw::GetCurrentCommandId(true), std::ptr::null_mut());
        let at = Tid::Record(found.r.no);
        written(write::delete(t.rel, at, cid, snapshot, none, &mut failed, false))
    }
}

/// Has the transaction written a row since its last write of it was `before`? Numbers of writes are
/// used again only for those of subtransactions that were rolled back, and `before` is none of
/// these.
#[inline]
pub fn is_written_since(r: RecordRef, before: Option<u32>) -> bool {
    let waits = || deferred::any() && deferred::waits((r.table.id, r.no));
    xact::running().is_some_and(|t| t.last_write(r) != before) || waits()
}

/// A caller's function has written the row that it was asked to change: its update would undo that.
#[cold]
pub fn written_meanwhile() -> ! {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION,
        "tuple to be updated was already modified by an operation triggered by the current command",
        "modify",
    )
    .set_hint("The function that modify calls must not write the row itself, but return its new values.")
    .report(PgLogLevel::ERROR);
    unreachable!()
}

/// Somebody else has changed the row: the statement waits, looks again, or fails, as the level
/// says.
fn written(result: TM_Result::Type) -> Result<bool, Statement> {
    if result == TM_Result::TM_Ok {
        Ok(true)
    } else {
        Err(Statement)
    }
}
