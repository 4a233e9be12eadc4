//! Native calls that need nothing but a look, and updates that need nothing but a look and memory
//! for a version.
//!
//! **INV-QUICK**: From the beginning of the command on nothing here fails or unwinds, and nothing
//! of PostgreSQL's runs that could wait, process an invalidation or change the transaction. So
//! these calls need no guard, and the table needs no pin. A call that needs more returns `None`,
//! and the guarded way begins again. What was done until then is done again without harm.
//!
//! Between the look and the write of an update a function may run, the caller's or an operator's.
//! Its ERROR jumps over frames that own nothing. The function may change anything, so
//! `Target::replace` checks again after it what the write relies on: the table, its definition, the
//! rights, the transaction, and whether the row's newest version is still the one that was found.
//!
//! Updates are of SERIALIZABLE transactions, because writers at other levels lock the row at once.
//! A new version is a copy of the old one with other bytes in columns of fixed width
//! (`tuple::patch`).

use super::access::{Access, SIMPLE};
use super::interface::Modify;
use super::row;
use super::table::{self, Table};
use super::{moment, Call, Column};
use crate::access::lookup::{self, Found, Key, Use};
use crate::access::{changes, looked, mixture, primary, ranges, tuple};
use crate::pg::{self, compat};
use crate::state::{rel, xact};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::range;
use pgrx::pg_sys::{self, Datum};
use std::ffi::c_void;

/// A row that was found, of this relation.
struct Row {
    rel: pg_sys::Relation,
    found: Found,
}

#[inline]
unsafe fn find<K: Key + ?Sized>(table: &Table, key: &K, snapshot: pg_sys::Snapshot) -> Option<Row> {
    let rel = table.peek().filter(|_| mixture::is_checked())?;
    // SAFETY: INV-QUICK: `peek` gives an open relation, and nothing closes it before the look is
    // over. `snapshot` is of a command that has begun (`begin_quickly`).
    unsafe {
        let info = rel::known(rel)?;
        let found =
            lookup::peek(rel, info, primary::known_declared(info)?, key, snapshot, Use::Look(range::Columns::ALL))?;
        Some(Row { rel, found })
    }
}

impl Row {
    /// A column, if the row has it.
    #[inline]
    unsafe fn column(&self, at: usize) -> Option<(Datum, bool)> {
        // SAFETY: the version is reached under the transaction's pin (INV-RETIRE), and of a row of
        // `rel`, whose descriptor this is.
        unsafe {
            if let Some(d) = tuple::value_at_place(self.found.version, (*self.rel).rd_att, at) {
                return Some((d, false));
            }
            let mut t = tuple::as_tuple(self.found.version.as_ptr(), pg::Tid::Invalid, (*self.rel).rd_id);
            // Else it was added later, and the catalog tells its value.
            ((at as i32) < tuple::columns(&t)).then(|| tuple::column(&mut t, (*self.rel).rd_att, at))
        }
    }
}

/// `get` of the interface. `None`: the guarded way tells.
///
/// # Safety
/// The header's contract. An ERROR at the beginning of the command jumps over this frame.
#[inline]
pub unsafe fn get(a: &Access, key: *const Datum, values: *mut Datum, nulls: *mut bool) -> Option<()> {
    // SAFETY: the arrays have an entry for each column of key and access (mixedcc.h: get).
    // INV-TYPED: `compared` has the types checked. INV-QUICK: the relation stays.
    unsafe {
        let snapshot = moment::begin_quickly()?;
        let row = find(a.compared()?, &a.key(key), snapshot)?;
        for (i, c) in a.columns.iter().enumerate() {
            (*values.add(i), *nulls.add(i)) = row.column(c.at())?;
        }
        Some(())
    }
}

/// `get_value`: a value that is not NULL, of a type that is passed by value. `None`: the guarded
/// way tells.
///
/// # Safety
/// PostgreSQL's contract of function calls, of one that was made before at this place.
#[inline]
pub unsafe fn get_value(call: &Call) -> Option<Datum> {
    // SAFETY: `call` was made before at this place, so its arguments are known: contract of this
    // function. INV-QUICK: the relation stays.
    unsafe {
        let snapshot = moment::begin_quickly()?;
        let (table, column): (&Table, &Column) = call.known_column(2)?;
        let key = call.key_quickly(3)?;
        let row = find(table, &key, snapshot)?;
        let att = compat::attribute((*row.rel).rd_att, column.at);
        let fits = att.attbyval && att.atttypid == call.arg_type(0);
        let (d, null) = row.column(column.at).filter(|_| fits)?;
        (!null).then_some(d)
    }
}

/// A row that is to be updated.
struct Target<'a> {
    table: &'a Table,
    /// The definition by which the columns are known.
    definition: u64,
    row: Row,
}

/// Begins the command of a write.
#[inline]
unsafe fn begin_to_write() -> Option<pg_sys::Snapshot> {
    xact::running_to_write()?;
    // SAFETY: `running_to_write` says that a transaction is on; an ERROR jumps over frames that own
    // nothing.
    unsafe { moment::begin_quickly() }
}

#[inline]
unsafe fn find_to_update<'a, K: Key + ?Sized>(
    table: &'a Table,
    key: &K,
    snapshot: pg_sys::Snapshot,
) -> Option<Target<'a>> {
    let rel = table.peek_to_update().filter(|_| mixture::is_checked())?;
    // SAFETY: INV-QUICK: `peek_to_update` gives an open relation, and nothing closes it before the
    // look is over. `snapshot` is of a command that has begun (`begin_quickly`).
    unsafe {
        let info = rel::known(rel)?;
        let found = lookup::peek(rel, info, primary::known_declared(info)?, key, snapshot, Use::Write)?;
        Some(Target { table, definition: table.definition(), row: Row { rel, found } })
    }
}

impl Target<'_> {
    /// Replaces the version by a copy with other values, none of them NULL, in these columns (from
    /// 0), for which they are of the right types. What makes this more than a look is asked again:
    /// a function may have run since the row was found.
    #[inline]
    unsafe fn replace(&self, values: &[(usize, Datum)]) -> Option<()> {
        let rel = self.table.peek_to_update().filter(|_| self.table.definition() == self.definition)?;
        let t = xact::running_to_write()?;
        let Found { r, version: old } = self.row.found;
        // SAFETY: `peek_to_update` gives an open relation with the same definition. The pin keeps
        // `old` (INV-RETIRE). `values` are of the columns' types: contract of this function.
        // Between the two looks and the end PostgreSQL does nothing but the statistics' memory,
        // behind the write.
        unsafe {
            let info = rel::known(rel)?;
            let moves = values.iter().any(|v| info.moving[v.0]);
            if moves
                || changes::are_logged(rel)
                || !ranges::nothing_to_note(info)
                || t.last_write(r).is_some()
                || t.peek_to_write(r, Mode::NoKeyUpdate) != Some(old)
            {
                return None;
            }
            let desc = (*rel).rd_att;
            if !tuple::can_patch(old, desc, values) {
                return None;
            }
            let new = t.version_at_hand(r.table.partition_no(r.rec), old.as_ref().len as usize)?;
            let cid = pg::raw::GetCurrentCommandId(true);
            tuple::patch(old, new, desc, values, tuple::Author::of(t, cid, false));
            let n = t.update(r, Some(old), new, cid);
            t.note_changed(n, looked::of_numbers(values.iter().map(|v| v.0 as u32 + 1)));
            compat::count_update(rel, true);
            Some(())
        }
    }
}

/// The columns of a `simple` access.
pub struct Columns {
    /// Their values.
    pub values: [Datum; SIMPLE],
    /// Are they NULL?
    pub nulls: [bool; SIMPLE],
}

/// What [`modify`] has done.
pub enum Modified {
    /// All.
    Done,
    /// The caller's function has run: the columns' new values.
    Values,
    /// It has written the row itself.
    Written,
}

impl Columns {
    /// Room for them.
    #[inline]
    pub fn new() -> Columns {
        Columns { values: [Datum::from(0); SIMPLE], nulls: [false; SIMPLE] }
    }

    #[inline]
    fn room() -> [(usize, Datum); SIMPLE] {
        [(0, Datum::from(0)); SIMPLE]
    }

    /// The new values by column, if none is NULL, in the room for them.
    #[inline]
    fn changes<'a>(&self, a: &Access, room: &'a mut [(usize, Datum); SIMPLE]) -> Option<&'a [(usize, Datum)]> {
        for (i, c) in a.columns.iter().enumerate() {
            if self.nulls[i] {
                return None;
            }
            room[i] = (c.at(), self.values[i]);
        }
        Some(&room[..a.columns.len()])
    }
}

/// `modify` of the interface. `None`: the guarded way does it, and nothing was done.
///
/// # Safety
/// The header's contract. An ERROR of the caller's function, or at the beginning of the command,
/// jumps over this frame.
#[inline]
pub unsafe fn modify(
    a: &Access,
    key: *const Datum,
    f: Modify,
    arg: *mut c_void,
    columns: &mut Columns,
) -> Option<Modified> {
    if !a.is_simple() {
        return None;
    }
    // SAFETY: `key` has a value for each column, and `f` takes `arg` (mixedcc.h: modify).
    // INV-TYPED: `compared` has the types checked. INV-ENTRY: the entry is pinned while `f` runs;
    // `replace` looks again after it (INV-QUICK).
    unsafe {
        let snapshot = begin_to_write()?;
        let target = find_to_update(a.compared()?, &a.key(key), snapshot)?;
        for (i, c) in a.columns.iter().enumerate() {
            (columns.values[i], columns.nulls[i]) = target.row.column(c.at())?;
        }
        let r = target.row.found.r;
        let before = xact::running()?.last_write(r);
        let pin = table::pin(target.row.rel);
        let changes = f(arg, columns.values.as_mut_ptr(), columns.nulls.as_mut_ptr());
        table::unpin(pin);
        if !changes {
            return Some(Modified::Done);
        }
        if row::is_written_since(r, before) {
            return Some(Modified::Written);
        }
        let mut room = Columns::room();
        let done = columns.changes(a, &mut room).and_then(|changes| target.replace(changes));
        Some(if done.is_some() { Modified::Done } else { Modified::Values })
    }
}

/// `update` of the interface. `None`: the guarded way does it.
///
/// # Safety
/// The header's contract. An ERROR at the beginning of the command jumps over this frame.
#[inline]
pub unsafe fn update(a: &Access, key: *const Datum, values: *const Datum, nulls: *const bool) -> Option<()> {
    if !a.is_simple() {
        return None;
    }
    // SAFETY: the arrays have an entry for each column of key and access (mixedcc.h: update).
    // INV-TYPED: `compared` has the types checked. INV-QUICK: the relation stays.
    unsafe {
        let snapshot = begin_to_write()?;
        let target = find_to_update(a.compared()?, &a.key(key), snapshot)?;
        let (mut columns, mut room) = (Columns::new(), Columns::room());
        for i in 0..a.columns.len() {
            (columns.values[i], columns.nulls[i]) = (*values.add(i), *nulls.add(i));
        }
        target.replace(columns.changes(a, &mut room)?)
    }
}

/// The row of a call `(row, column, value, key ...)`, the column (from 0), and the value, which is
/// not NULL, with its type. `None`: the guarded way tells.
#[inline]
unsafe fn to_change(call: &Call) -> Option<(Target<'_>, &Column, Datum, pg_sys::Oid)> {
    // SAFETY: `call` was made before at this place: contract of `set` and `add`. INV-QUICK: the
    // relation stays.
    unsafe {
        let snapshot = begin_to_write()?;
        let (table, column): (&Table, &Column) = call.known_column(1)?;
        let (d, null, typid) = call.arg(2);
        let key = call.key_quickly(3).filter(|_| !null)?;
        let target = find_to_update(table, &key, snapshot)?;
        let att = compat::attribute((*target.row.rel).rd_att, column.at);
        // A value for a column with a modifier may have to be cut or refused, one for an identity
        // column is.
        let identity = att.attidentity as u8 == pg_sys::ATTRIBUTE_IDENTITY_ALWAYS;
        (att.atttypmod < 0 && !identity).then_some((target, column, d, typid))
    }
}

/// `set`. `None`: the guarded way does it.
///
/// # Safety
/// As for [`get_value`].
#[inline]
pub unsafe fn set(call: &Call) -> Option<()> {
    // SAFETY: `call` was made before at this place: contract of this function. The value has the
    // column's type, as `replace` asks. INV-QUICK: the relation stays.
    unsafe {
        let (target, column, d, typid) = to_change(call)?;
        let same = compat::attribute((*target.row.rel).rd_att, column.at).atttypid == typid;
        if !same {
            return None;
        }
        target.replace(&[(column.at, d)])
    }
}

/// `add`. `None`: the guarded way does it.
///
/// # Safety
/// As for [`get_value`]. An ERROR of the operator jumps over this frame.
#[inline]
pub unsafe fn add(call: &Call) -> Option<()> {
    // SAFETY: `call` was made before at this place: contract of this function. `plus` is
    // PostgreSQL's own function, whose result has the column's type. `replace` looks again after it
    // (INV-QUICK).
    unsafe {
        let (target, column, d, _) = to_change(call)?;
        let (at, plus) = (column.at, column.plus);
        let att = compat::attribute((*target.row.rel).rd_att, at);
        if plus.is_null() || !att.attbyval {
            return None;
        }
        let (old, null) = target.row.column(at)?;
        if null {
            return None;
        }
        target.replace(&[(at, pg::raw::FunctionCall2Coll(plus, att.attcollation, old, d))])
    }
}
