//! Attributes of row types, columns of indexes, ownership and rights.

use pgrx::pg_sys::{self, Oid};

/// A column of a row type, counted from 0.
///
/// # Safety
/// A valid descriptor that has the column, and lives as long as the result is used.
#[inline]
pub unsafe fn attribute<'a>(desc: pg_sys::TupleDesc, i: usize) -> &'a pg_sys::FormData_pg_attribute {
    // SAFETY: the caller's.
    unsafe { &(*desc).attrs.as_slice((*desc).natts as usize)[i] }
}

/// Where a column is in every row without NULLs before it, if that is known (bytes from the data's
/// start).
///
/// # Safety
/// As for [`attribute`].
#[inline]
pub unsafe fn cached_offset(desc: pg_sys::TupleDesc, i: usize) -> Option<usize> {
    // SAFETY: the caller's.
    usize::try_from(unsafe { attribute(desc, i) }.attcacheoff).ok()
}

/// Columns that an update may not change in place, because an index has them (in a key, included,
/// in an expression or a predicate): numbers minus `FirstLowInvalidHeapAttributeNumber`. The
/// caller's to free.
///
/// # Safety
/// An open relation.
pub unsafe fn indexed_columns(rel: pg_sys::Relation) -> *mut pg_sys::Bitmapset {
    // SAFETY: the caller's.
    unsafe { pg_sys::RelationGetIndexAttrBitmap(rel, pg_sys::IndexAttrBitmapKind::INDEX_ATTR_BITMAP_ALL) }
}

/// Columns that foreign keys may refer to, as above.
///
/// # Safety
/// An open relation.
pub unsafe fn key_columns(rel: pg_sys::Relation) -> *mut pg_sys::Bitmapset {
    // SAFETY: the caller's.
    unsafe { pg_sys::RelationGetIndexAttrBitmap(rel, pg_sys::IndexAttrBitmapKind::INDEX_ATTR_BITMAP_KEY) }
}

/// Does a role own a relation, which exists?
pub fn owns_relation(oid: Oid, role: Oid) -> bool {
    // SAFETY: a catalog look-up.
    unsafe { pg_sys::pg_class_ownercheck(oid, role) }
}

/// Does a role own a schema, or the database if there is none?
pub fn owns_schema_or_database(schema: Option<Oid>, role: Oid) -> bool {
    // SAFETY: catalog look-ups.
    unsafe {
        match schema {
            Some(oid) => oid != pg_sys::InvalidOid && pg_sys::pg_namespace_ownercheck(oid, role),
            None => pg_sys::pg_database_ownercheck(pg_sys::MyDatabaseId, role),
        }
    }
}

/// Does a role own a function, which exists?
pub fn owns_function(oid: Oid, role: Oid) -> bool {
    // SAFETY: a catalog look-up.
    unsafe { pg_sys::pg_proc_ownercheck(oid, role) }
}

/// May a role call a function, which exists?
pub fn may_call(oid: Oid, role: Oid) -> bool {
    // SAFETY: a catalog look-up.
    unsafe {
        pg_sys::pg_proc_aclcheck(oid, role, pg_sys::ACL_EXECUTE as pg_sys::AclMode) == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Has a role any of these rights (`ACL_SELECT` ...) on a relation, which exists?
pub fn relation_rights(oid: Oid, role: Oid, any_of: u32) -> bool {
    // SAFETY: a catalog look-up.
    unsafe { pg_sys::pg_class_aclcheck(oid, role, any_of as pg_sys::AclMode) == pg_sys::AclResult::ACLCHECK_OK }
}
