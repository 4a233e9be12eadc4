//! Reads of native calls that need nothing but a look.
//!
//! INV-QUICK: from the beginning of the command on nothing here fails or unwinds, and nothing of PostgreSQL's runs that could
//! wait, process an invalidation or change the transaction. So these calls need no guard, and the table no pin. Whatever
//! needs more is `None`, and the guarded way begins again; what was done until then is done again without harm.

use super::access::Access;
use super::row::{self, Key};
use super::table::Table;
use super::{moment, Call, Column};
use crate::fast::{find, primary};
use crate::{compat, pg, rel, tuple};
use pgrx::pg_sys::{self, Datum};

/// A row that was found, of this relation.
struct Row {
    rel: pg_sys::Relation,
    found: find::Found,
}

#[inline]
unsafe fn find<K: Key + ?Sized>(table: &Table, key: &K, snapshot: pg_sys::Snapshot) -> Option<Row> {
    let rel = table.peek().filter(|_| row::mixture_is_checked())?;
    // SAFETY: an open relation; a command has begun.
    unsafe {
        let info = rel::known(rel)?;
        let found = row::peek(info, primary::known(info)?, key, snapshot)?;
        Some(Row { rel, found })
    }
}

impl Row {
    /// A column, if the row has it.
    #[inline]
    unsafe fn column(&self, at: usize) -> Option<(Datum, bool)> {
        // SAFETY: the version is pinned; the descriptor is the table's.
        unsafe {
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
    // SAFETY: the caller's; INV-QUICK.
    unsafe {
        let snapshot = moment::begin_quickly()?;
        let row = find(a.compared()?, &a.key(key), snapshot)?;
        for (i, c) in a.columns.iter().enumerate() {
            (*values.add(i), *nulls.add(i)) = row.column(c.at)?;
        }
        Some(())
    }
}

/// `get_value`: a value that is not NULL, of a type that is passed by value. `None`: the guarded way tells.
///
/// # Safety
/// PostgreSQL's contract of function calls, of one that was made before at this place.
#[inline]
pub unsafe fn get_value(call: &Call) -> Option<Datum> {
    // SAFETY: the caller's; INV-QUICK.
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
