//! Relations in messages, and the row type that a statement expects of one.

use crate::pg::compat;
use crate::pg::errors::complain;
use crate::pg::text;
use pgrx::pg_sys::{self, Oid};
use pgrx::PgSqlErrorCode;

/// No relation has this OID.
#[cold]
pub fn no_such(oid: Oid) -> ! {
    complain(PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE, &format!("relation with OID {} does not exist", oid.to_u32()), "")
}

/// The relation cache's entry of a relation, with a reference. An error if there is no such
/// relation: PostgreSQL returns null then.
///
/// # Safety
/// The transaction has the relation locked. An ERROR unwinds.
pub unsafe fn entry(oid: Oid) -> pg_sys::Relation {
    // SAFETY: the relation is locked (contract of this function); any OID is answered.
    let rel = unsafe { pg_sys::RelationIdGetRelation(oid) };
    if rel.is_null() {
        no_such(oid);
    }
    rel
}

/// The same without the bindings' guard.
///
/// # Safety
/// As for [`entry`], but an ERROR of PostgreSQL jumps over this frame and the caller's.
#[inline]
pub unsafe fn entry_unguarded(oid: Oid) -> pg_sys::Relation {
    // SAFETY: the relation is locked (contract of this function); any OID is answered. Nothing that
    // needs a drop is alive in this frame.
    let rel = unsafe { crate::pg::raw::RelationIdGetRelation(oid) };
    if rel.is_null() {
        no_such(oid);
    }
    rel
}

/// Its name, or its OID if there is none.
pub fn name(oid: Oid) -> String {
    // SAFETY: catalog look-up: any OID is answered, by a name or null.
    let p = unsafe { pg_sys::get_rel_name(oid) };
    if p.is_null() {
        oid.to_u32().to_string()
    } else {
        // SAFETY: `get_rel_name` returned a C string, which is not null here.
        unsafe { text::read(p) }
    }
}

/// Raises an error unless a statement expects rows of the table as it is now: a cursor may have
/// begun before the table got another definition.
///
/// # Safety
/// A valid descriptor and an open relation. An ERROR unwinds.
pub unsafe fn must_expect(expected: pg_sys::TupleDesc, rel: pg_sys::Relation) {
    // SAFETY: `expected` is valid, and `rel` is open (contract of this function). Columns are
    // compared only where both have as many.
    unsafe {
        let now = (*rel).rd_att;
        let same = |i: usize| {
            let (a, b) = (compat::attribute(expected, i), compat::attribute(now, i));
            a.attisdropped == b.attisdropped
                && (a.attisdropped || a.atttypid == b.atttypid)
                && a.attlen == b.attlen
                && a.attalign == b.attalign
        };
        if (*expected).natts != (*now).natts || !(0..(*now).natts as usize).all(same) {
            complain(
                PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
                &format!("table \"{}\" has changed since the statement began", name((*rel).rd_id)),
                "Run the statement again.",
            );
        }
    }
}
