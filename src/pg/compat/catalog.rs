//! Attributes of row types, columns of indexes, ownership and rights.

use pgrx::pg_sys::{self, Oid};

/// A column of a row type, counted from 0.
///
/// # Safety
/// A valid descriptor that has the column, and lives as long as the result is used.
#[inline]
pub unsafe fn attribute<'a>(desc: pg_sys::TupleDesc, i: usize) -> &'a pg_sys::FormData_pg_attribute {
    // SAFETY: `desc` is valid and outlives the result (contract of this function); the slice checks
    // `i`.
    unsafe { &columns(desc)[i] }
}

/// # Safety
/// A valid descriptor that lives as long as the result is used.
#[cfg(not(feature = "pg18"))]
#[inline]
unsafe fn columns<'a>(desc: pg_sys::TupleDesc) -> &'a [pg_sys::FormData_pg_attribute] {
    // SAFETY: `desc` is valid (contract of this function), and `attrs` has `natts` elements
    // (tupdesc.h).
    unsafe { (*desc).attrs.as_slice((*desc).natts as usize) }
}

/// From 18 on the attributes lie behind the compact ones (TupleDescAttrAddress in tupdesc.h).
///
/// # Safety
/// A valid descriptor that lives as long as the result is used.
#[cfg(feature = "pg18")]
#[inline]
unsafe fn columns<'a>(desc: pg_sys::TupleDesc) -> &'a [pg_sys::FormData_pg_attribute] {
    // SAFETY: `desc` is valid (contract of this function), and has `natts` elements in both arrays
    // (tupdesc.h).
    unsafe {
        let n = (*desc).natts as usize;
        let first = (*desc).compact_attrs.as_ptr().add(n).cast::<pg_sys::FormData_pg_attribute>();
        std::slice::from_raw_parts(first, n)
    }
}

/// Where a column is in every row without NULLs before it, if that is known (bytes from the data's
/// start).
///
/// # Safety
/// As for [`attribute`].
#[inline]
pub unsafe fn cached_offset(desc: pg_sys::TupleDesc, i: usize) -> Option<usize> {
    // SAFETY: `desc` is valid and has column `i` (contract of this function).
    #[cfg(not(feature = "pg18"))]
    let offset = unsafe { attribute(desc, i) }.attcacheoff;
    // SAFETY: `desc` is valid (contract of this function), and has `natts` compact attributes
    // (tupdesc.h).
    #[cfg(feature = "pg18")]
    let offset = unsafe { (*desc).compact_attrs.as_slice((*desc).natts as usize)[i].attcacheoff };
    usize::try_from(offset).ok()
}

/// Has a row columns that are computed when they are read? Its tuples have NULL in their places.
///
/// # Safety
/// A valid descriptor.
#[inline]
pub unsafe fn has_virtual_columns(desc: pg_sys::TupleDesc) -> bool {
    #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
    {
        let _ = desc;
        false
    }
    #[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17")))]
    // SAFETY: `desc` is valid: contract of this function. It points to its constraints, if there
    // are some.
    unsafe {
        (*desc).constr.as_ref().is_some_and(|c| c.has_generated_virtual)
    }
}

/// May a row have NULL in a column that is NOT NULL? Since 18 it may, where the constraint was not
/// validated.
///
/// # Safety
/// A valid descriptor of a table.
pub unsafe fn may_break_not_null(desc: pg_sys::TupleDesc) -> bool {
    #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
    {
        let _ = desc;
        false
    }
    // SAFETY: `desc` is valid (contract of this function), and has `natts` compact attributes
    // (tupdesc.h).
    #[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17")))]
    unsafe {
        let all = (*desc).compact_attrs.as_slice((*desc).natts as usize);
        all.iter().any(|a| a.attnullability as u8 == pg_sys::ATTNULLABLE_INVALID)
    }
}

/// Has no row NULL in a column, by a constraint that is validated? `i` counts from 0.
///
/// # Safety
/// A valid descriptor of a table, which has the column.
pub unsafe fn is_never_null(desc: pg_sys::TupleDesc, i: usize) -> bool {
    // SAFETY: `desc` is valid (contract of this function). Since 18 it has `natts` compact
    // attributes, too (tupdesc.h); the slice checks `i`.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
        let validated = true;
        #[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17")))]
        let validated = {
            let all = (*desc).compact_attrs.as_slice((*desc).natts as usize);
            all[i].attnullability as u8 == pg_sys::ATTNULLABLE_VALID
        };
        attribute(desc, i).attnotnull && validated
    }
}

/// Is a CHECK constraint enforced? Since 18 it need not be.
#[inline]
pub fn is_enforced(check: &pg_sys::ConstrCheck) -> bool {
    #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
    {
        let _ = check;
        true
    }
    #[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17")))]
    {
        check.ccenforced
    }
}

/// The columns of the index that is a table's replica identity, as [`indexed_columns`] has them. A
/// copy; empty if there is none.
///
/// # Safety
/// An open relation.
pub unsafe fn identity_columns(rel: pg_sys::Relation) -> *mut pg_sys::Bitmapset {
    let kind = pg_sys::IndexAttrBitmapKind::INDEX_ATTR_BITMAP_IDENTITY_KEY;
    // SAFETY: `rel` is open (contract of this function).
    unsafe { pg_sys::RelationGetIndexAttrBitmap(rel, kind) }
}

/// Columns that an update may not change in place, because an index has them (in a key, included,
/// in an expression or a predicate): numbers minus `FirstLowInvalidHeapAttributeNumber`. The
/// caller's to free. PostgreSQL's `RelationGetIndexAttrBitmap` says the same, but it locks the
/// indexes: two sessions that each rebuild one would wait for each other here.
///
/// # Safety
/// An open relation.
pub unsafe fn indexed_columns(rel: pg_sys::Relation) -> *mut pg_sys::Bitmapset {
    // SAFETY: `rel` is open (contract of this function). The lists are copies, each freed once, and
    // a set that is not returned is freed.
    unsafe {
        let mut list = pg_sys::RelationGetIndexList(rel);
        loop {
            let mut columns = std::ptr::null_mut();
            for oid in pgrx::PgList::<Oid>::from_pg(list).iter_oid() {
                add_columns(oid, &mut columns);
            }
            // The catalog may have changed while its rows were looked up.
            let now = pg_sys::RelationGetIndexList(rel);
            let is_same = pg_sys::equal(list.cast(), now.cast());
            pg_sys::list_free(std::mem::replace(&mut list, now));
            if is_same {
                pg_sys::list_free(list);
                return columns;
            }
            pg_sys::bms_free(columns);
        }
    }
}

/// Adds the columns of an index; one that is gone by now has none.
///
/// # Safety
/// Null, or a set of the current memory context.
unsafe fn add_columns(index: Oid, columns: &mut *mut pg_sys::Bitmapset) {
    use pg_sys::SysCacheIdentifier::INDEXRELID;
    // SAFETY: catalog look-up: any OID is answered, by a row or null, which is released after its
    // last use. `indkey` has `indnatts` numbers, and the texts are those of expressions over the
    // table, which is number 1 there (pg_index.h).
    unsafe {
        let row = pg_sys::SearchSysCache1(INDEXRELID as i32, index.into());
        if row.is_null() {
            return;
        }
        let form = pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_index>();
        for no in (*form).indkey.values.as_slice((*form).indnatts as usize).iter().filter(|no| **no != 0) {
            *columns = pg_sys::bms_add_member(*columns, *no as i32 - pg_sys::FirstLowInvalidHeapAttributeNumber);
        }
        for part in [pg_sys::Anum_pg_index_indexprs, pg_sys::Anum_pg_index_indpred] {
            let mut null = false;
            let text = pg_sys::SysCacheGetAttr(INDEXRELID as i32, row, part as i16, &mut null);
            if !null {
                let expressions = pg_sys::stringToNode(pg_sys::text_to_cstring(text.cast_mut_ptr()));
                pg_sys::pull_varattnos(expressions.cast(), 1, columns);
            }
        }
        pg_sys::ReleaseSysCache(row);
    }
}

/// Columns that foreign keys may refer to, as above.
///
/// # Safety
/// An open relation.
pub unsafe fn key_columns(rel: pg_sys::Relation) -> *mut pg_sys::Bitmapset {
    // SAFETY: `rel` is open (contract of this function).
    unsafe { pg_sys::RelationGetIndexAttrBitmap(rel, pg_sys::IndexAttrBitmapKind::INDEX_ATTR_BITMAP_KEY) }
}

/// Does a role own a relation, which exists?
pub fn owns_relation(oid: Oid, role: Oid) -> bool {
    owns(pg_sys::RelationRelationId, oid, role)
}

/// May a role run maintenance commands on a table, which exists? Its owner may; since 17 that is a
/// right of its own.
pub fn may_maintain(table: Oid, role: Oid) -> bool {
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    {
        owns_relation(table, role)
    }
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    {
        relation_rights(table, role, pg_sys::ACL_MAINTAIN)
    }
}

/// May a role run maintenance commands on all tables of a schema, or of the database? Its owner
/// may; since 17 the members of pg_maintain may, too.
pub fn may_maintain_all(schema: Option<Oid>, role: Oid) -> bool {
    let exists = schema != Some(pg_sys::InvalidOid);
    exists && (owns_schema_or_database(schema, role) || maintains(role))
}

/// May a role vacuum a table, which exists? The database's owner may vacuum all tables but those
/// that all databases share (`is_shared`).
pub fn may_vacuum(table: Oid, is_shared: bool, role: Oid) -> bool {
    (!is_shared && owns_schema_or_database(None, role)) || may_maintain(table, role)
}

/// Has a role the rights of pg_maintain?
fn maintains(role: Oid) -> bool {
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    {
        let _ = role;
        false
    }
    // SAFETY: catalog look-ups: any OIDs are answered.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    unsafe {
        pg_sys::has_privs_of_role(role, Oid::from(pg_sys::ROLE_PG_MAINTAIN))
    }
}

/// Does a role own a schema, or the database if there is none?
fn owns_schema_or_database(schema: Option<Oid>, role: Oid) -> bool {
    match schema {
        Some(oid) => oid != pg_sys::InvalidOid && owns(pg_sys::NamespaceRelationId, oid, role),
        // SAFETY: a variable of this process, which its one thread writes when it connects to a
        // database.
        None => owns(pg_sys::DatabaseRelationId, unsafe { pg_sys::MyDatabaseId }, role),
    }
}

/// May a role drop a relation of a schema, which both exist? The owner of either may.
pub fn may_drop(oid: Oid, schema: Oid, role: Oid) -> bool {
    owns_relation(oid, role) || owns_schema_or_database(Some(schema), role)
}

/// Does a role own a database, which exists?
pub fn owns_database(oid: Oid, role: Oid) -> bool {
    owns(pg_sys::DatabaseRelationId, oid, role)
}

mod raw {
    extern "C-unwind" {
        pub fn CountDBSubscriptions(database: pgrx::pg_sys::Oid) -> core::ffi::c_int;
    }
}

/// What pg_database says of a database, if it is there.
fn of_database<T>(oid: Oid, f: impl FnOnce(&pg_sys::FormData_pg_database) -> T) -> Option<T> {
    // SAFETY: catalog look-up: any OID is answered, by a row or null. The row is released after its
    // last use.
    unsafe {
        let row = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::DATABASEOID as i32, oid.into());
        if row.is_null() {
            return None;
        }
        let found = f(&*pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_database>());
        pg_sys::ReleaseSysCache(row);
        Some(found)
    }
}

/// Is a database, if it is there, one that all who may create databases may copy?
pub fn is_template(oid: Oid) -> bool {
    of_database(oid, |form| form.datistemplate).unwrap_or(false)
}

/// The tablespace of a database, if it is there.
pub fn tablespace_of(oid: Oid) -> Option<Oid> {
    of_database(oid, |form| form.dattablespace)
}

/// How many logical replication slots of a database have a user.
pub fn active_slots(oid: Oid) -> i32 {
    let (mut slots, mut active) = (0, 0);
    // SAFETY: any OID is answered; the numbers are of this frame.
    unsafe { pg_sys::ReplicationSlotsCountDBSlots(oid, &mut slots, &mut active) };
    active
}

/// How many subscriptions a database has.
pub fn subscriptions(oid: Oid) -> i32 {
    // SAFETY: any OID is answered. An ERROR of the read of the catalog unwinds.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| raw::CountDBSubscriptions(oid)) }
}

/// May a role put something into a tablespace, which exists?
pub fn tablespace_rights(oid: Oid, role: Oid) -> pg_sys::AclResult::Type {
    let mode = pg_sys::ACL_CREATE as pg_sys::AclMode;
    // SAFETY: catalog look-up of a tablespace that exists (documentation of this function). For
    // another OID PostgreSQL raises an ERROR, which unwinds.
    #[cfg(feature = "pg15")]
    unsafe {
        pg_sys::pg_tablespace_aclcheck(oid, role, mode)
    }
    // SAFETY: as above.
    #[cfg(not(feature = "pg15"))]
    unsafe {
        pg_sys::object_aclcheck(pg_sys::TableSpaceRelationId, oid, role, mode)
    }
}

/// May a role create databases?
pub fn may_create_databases(role: Oid) -> bool {
    // SAFETY: catalog look-ups: any OID is answered, by a row or null. The row is released after
    // its last use.
    unsafe {
        if pg_sys::superuser_arg(role) {
            return true;
        }
        let tup = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::AUTHOID as i32, role.into());
        if tup.is_null() {
            return false;
        }
        let may = (*pg_sys::GETSTRUCT(tup).cast::<pg_sys::FormData_pg_authid>()).rolcreatedb;
        pg_sys::ReleaseSysCache(tup);
        may
    }
}

/// Does a role own a function, which exists?
pub fn owns_function(oid: Oid, role: Oid) -> bool {
    owns(pg_sys::ProcedureRelationId, oid, role)
}

/// May a role call a function, which exists?
pub fn may_call(oid: Oid, role: Oid) -> bool {
    let mode = pg_sys::ACL_EXECUTE as pg_sys::AclMode;
    // SAFETY: catalog look-up of a function that exists (documentation of this function). For
    // another OID PostgreSQL raises an ERROR, which unwinds.
    #[cfg(feature = "pg15")]
    let result = unsafe { pg_sys::pg_proc_aclcheck(oid, role, mode) };
    // SAFETY: catalog look-up of a function that exists (documentation of this function). For
    // another OID PostgreSQL raises an ERROR, which unwinds.
    #[cfg(not(feature = "pg15"))]
    let result = unsafe { pg_sys::object_aclcheck(pg_sys::ProcedureRelationId, oid, role, mode) };
    result == pg_sys::AclResult::ACLCHECK_OK
}

/// Does a role own an object of a catalog, which exists?
#[cfg(feature = "pg15")]
fn owns(catalog: Oid, oid: Oid, role: Oid) -> bool {
    // SAFETY: catalog look-up of an object that exists (documentation of this function). For
    // another OID PostgreSQL raises an ERROR, which unwinds.
    unsafe {
        match catalog {
            pg_sys::RelationRelationId => pg_sys::pg_class_ownercheck(oid, role),
            pg_sys::NamespaceRelationId => pg_sys::pg_namespace_ownercheck(oid, role),
            pg_sys::DatabaseRelationId => pg_sys::pg_database_ownercheck(oid, role),
            _ => pg_sys::pg_proc_ownercheck(oid, role),
        }
    }
}
#[cfg(not(feature = "pg15"))]
fn owns(catalog: Oid, oid: Oid, role: Oid) -> bool {
    // SAFETY: catalog look-up of an object that exists (documentation of this function). For
    // another OID PostgreSQL raises an ERROR, which unwinds.
    unsafe { pg_sys::object_ownercheck(catalog, oid, role) }
}

/// Has a role any of these rights (`ACL_SELECT` ...) on a relation, which exists?
pub fn relation_rights(oid: Oid, role: Oid, any_of: u32) -> bool {
    // SAFETY: catalog look-up of a relation that exists (documentation of this function). For
    // another OID PostgreSQL raises an ERROR, which unwinds.
    unsafe { pg_sys::pg_class_aclcheck(oid, role, any_of as pg_sys::AclMode) == pg_sys::AclResult::ACLCHECK_OK }
}

/// Has a role any of these rights on some column of a relation, which exists?
pub fn column_rights(oid: Oid, role: Oid, any_of: u32) -> bool {
    let how = pg_sys::AclMaskHow::ACLMASK_ANY;
    // SAFETY: catalog look-up of a relation that exists (documentation of this function): any OID
    // is answered.
    let result = unsafe { pg_sys::pg_attribute_aclcheck_all(oid, role, any_of as pg_sys::AclMode, how) };
    result == pg_sys::AclResult::ACLCHECK_OK
}

/// The index of a relation's primary key, or `InvalidOid`. A deferrable key is none.
///
/// # Safety
/// An open relation.
pub unsafe fn primary_key_index(rel: pg_sys::Relation) -> Oid {
    // SAFETY: `rel` is open (contract of this function).
    #[cfg(not(feature = "pg18"))]
    unsafe {
        pg_sys::RelationGetPrimaryKeyIndex(rel)
    }
    // SAFETY: `rel` is open (contract of this function).
    #[cfg(feature = "pg18")]
    unsafe {
        pg_sys::RelationGetPrimaryKeyIndex(rel, false)
    }
}

/// May all call the function, because its rights are those that it was made with?
pub fn all_may_call(function: Oid) -> bool {
    // SAFETY: catalog look-up: any OID is answered. The row is released after its last use.
    unsafe {
        let procedure = pg_sys::SysCacheIdentifier::PROCOID as i32;
        let row = pg_sys::SearchSysCache1(procedure, function.into());
        if row.is_null() {
            return false;
        }
        let mut has_default = false;
        pg_sys::SysCacheGetAttr(procedure, row, pg_sys::Anum_pg_proc_proacl as i16, &mut has_default);
        pg_sys::ReleaseSysCache(row);
        has_default
    }
}
