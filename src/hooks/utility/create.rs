//! CREATE TABLE, CREATE TABLE AS, SELECT INTO, CREATE MATERIALIZED VIEW.

use super::{hold, is_our_method, relid, take_ours, text, Call, Element};
use crate::admin::options::{self, Apply, Options};
use crate::pg::errors::{complain, refuse};
use crate::pg::guc::{ExtensionTables, EXTENSION_TABLES};
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

/// Will a relation of this USING clause be ours?
fn will_be_ours(using: *const core::ffi::c_char) -> bool {
    if !using.is_null() {
        return text(using).is_some_and(|n| is_our_method(&n));
    }
    // SAFETY: a setting of PostgreSQL's with a default: never null, and a C string.
    text(unsafe { pg_sys::default_table_access_method }).is_some_and(|n| is_our_method(&n))
}

/// Why an option is refused in an extension's script, and what helps.
const OF_EXTENSION: (&str, &str) =
    ("is for tables of the access method mixedcc", "Add USING mixedcc, or set mixedcc.extension_tables to default.");

/// Does an extension's script make a relation without USING, which would be ours, but shall be
/// heap's? What extensions keep in their tables must outlive a crash.
fn is_of_extension(using: *const core::ffi::c_char) -> bool {
    // SAFETY: a variable of this process, which only its one thread writes.
    let in_script = unsafe { pg_sys::creating_extension };
    using.is_null() && in_script && EXTENSION_TABLES.get() == ExtensionTables::Heap && will_be_ours(using)
}

fn not_ours(given: &[Element], why: &str, hint: &str) {
    if let Some(e) = given.first() {
        complain(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            &format!("option \"mixedcc.{}\" {why}", e.name),
            hint,
        );
    }
}

/// The options in WITH.
fn parse(given: &[Element]) -> Options {
    let mut o = Options::default();
    for e in given {
        super::alter::set(&mut o, e);
    }
    o
}

/// Is a new relation temporary, by its name?
fn is_temp(rv: *const pg_sys::RangeVar) -> bool {
    // SAFETY: `rv` is a range variable of a parse tree, as each caller passes it. The look-up
    // raises the same ERROR as the command would.
    unsafe {
        (*rv).relpersistence as u8 == pg_sys::RELPERSISTENCE_TEMP
            || text((*rv).schemaname).is_some_and(|s| s == "pg_temp")
            || pg_sys::isTempNamespace(pg_sys::RangeVarGetCreationNamespace(rv))
    }
}

/// Where a new relation will be, and whether there is one of that name already.
fn place(rv: *const pg_sys::RangeVar) -> (Oid, bool) {
    // SAFETY: `rv` is a range variable of a parse tree, as each caller passes it.
    unsafe {
        let space = pg_sys::RangeVarGetCreationNamespace(rv);
        (space, pg_sys::get_relname_relid((*rv).relname, space) != pg_sys::InvalidOid)
    }
}

/// Has this transaction made the relation? With IF NOT EXISTS another session may have made one of
/// that name since we have looked.
fn is_new(oid: Oid) -> bool {
    // SAFETY: any OID is answered; an entry is closed after its last use.
    unsafe {
        let r = pg_sys::RelationIdGetRelation(oid);
        if r.is_null() {
            return false;
        }
        let is_new = (*r).rd_createSubid != 0;
        pg_sys::RelationClose(r);
        is_new
    }
}

/// Gives a new table its options.
fn finish(rv: *const pg_sys::RangeVar, space: Oid, given: &Options) {
    // SAFETY: `rv` is a range variable of a parse tree, as each caller passes it. Catalog look-up:
    // any name is answered.
    let oid = unsafe {
        let found = pg_sys::get_relname_relid((*rv).relname, space);
        if found == pg_sys::InvalidOid {
            relid(rv).unwrap_or(found)
        } else {
            found
        }
    };
    if super::ours(oid).is_none() || !is_new(oid) {
        return;
    }
    let mut o = given.clone();
    o.keep_defaults();
    options::check_table(oid, &o);
    if o.label().is_some() {
        o.store(oid);
    }
    options::sync(oid, Apply::ALL);
}

/// CREATE TABLE.
pub fn table(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let s = unsafe { &*call.node::<pg_sys::CreateStmt>() };
    let given = hold(take_ours(s.options).1);
    if !s.partspec.is_null() {
        not_ours(given, "is not for partitioned tables", "Give the options to the partitions.");
        return call.run();
    }
    if !will_be_ours(s.accessMethod) {
        not_ours(given, "is for tables of the access method mixedcc", "Add USING mixedcc.");
        return call.run();
    }
    let of_extension = is_of_extension(s.accessMethod);
    let call = call.writable();
    // SAFETY: the same node of a `writable` call, which we may change; `s` from before is not used
    // any more.
    let s = unsafe { &mut *call.node::<pg_sys::CreateStmt>() };
    if of_extension {
        not_ours(given, OF_EXTENSION.0, OF_EXTENSION.1);
        s.accessMethod = heap();
        return call.run();
    }
    if is_temp(s.relation) {
        if !s.accessMethod.is_null() {
            refuse("mixedcc does not support temporary tables", "Create the temporary table USING heap.");
        }
        not_ours(given, "is not for temporary tables", "Temporary tables use heap.");
        s.accessMethod = heap();
        return call.run();
    }
    let o = hold(parse(given));
    let (space, exists) = place(s.relation);
    s.options = take_ours(s.options).0;
    if exists {
        return call.run();
    }
    let rv = s.relation;
    call.run();
    finish(rv, space, o);
}

fn heap() -> *mut core::ffi::c_char {
    // SAFETY: `pstrdup` copies a C string into the current context, that of the statement.
    unsafe { pg_sys::pstrdup(c"heap".as_ptr()) }
}

/// The CREATE TABLE AS, or the like, that an EXPLAIN is about.
pub fn explained(call: &Call) -> Option<*mut pg_sys::CreateTableAsStmt> {
    // SAFETY: the node is an `ExplainStmt`: the dispatch has looked at its tag. Parse analysis has
    // made the query, whose own tag is looked at here.
    unsafe {
        let q = (*call.node::<pg_sys::ExplainStmt>()).query;
        if q.is_null() || (*q).type_ != pg_sys::NodeTag::T_Query {
            return None;
        }
        let u = (*q.cast::<pg_sys::Query>()).utilityStmt;
        (!u.is_null() && (*u).type_ == pg_sys::NodeTag::T_CreateTableAsStmt).then_some(u.cast())
    }
}

/// CREATE TABLE AS, SELECT INTO, CREATE MATERIALIZED VIEW: the statement that `node` finds.
pub fn table_as(call: Call, node: fn(&Call) -> *mut pg_sys::CreateTableAsStmt) {
    // SAFETY: `node` finds the `CreateTableAsStmt` of this call: the dispatch has looked at the
    // tag.
    let s = unsafe { &*node(&call) };
    // SAFETY: a `CreateTableAsStmt` has a target (gram.y).
    let into = unsafe { &*s.into };
    let given = hold(take_ours(into.options).1);
    if !will_be_ours(into.accessMethod) {
        not_ours(given, "is for tables of the access method mixedcc", "Add USING mixedcc.");
        return call.run();
    }
    let view = s.objtype == pg_sys::ObjectType::OBJECT_MATVIEW;
    let of_extension = is_of_extension(into.accessMethod);
    let call = call.writable();
    // SAFETY: the same nodes of a `writable` call, which we may change; `into` from before is not
    // used any more.
    let into = unsafe { &mut *(*node(&call)).into };
    if of_extension {
        not_ours(given, OF_EXTENSION.0, OF_EXTENSION.1);
        into.accessMethod = heap();
        return call.run();
    }
    if view || is_temp(into.rel) {
        let what = if view { "materialized views" } else { "temporary tables" };
        if !into.accessMethod.is_null() {
            refuse(&format!("mixedcc does not support {what}"), "Create it USING heap.");
        }
        not_ours(given, &format!("is not for {what}"), "They use heap.");
        into.accessMethod = heap();
        return call.run();
    }
    let o = hold(parse(given));
    let (space, exists) = place(into.rel);
    into.options = take_ours(into.options).0;
    if exists {
        return call.run();
    }
    let rv = into.rel;
    call.run();
    // EXPLAIN without ANALYZE makes no table.
    if place(rv).1 {
        finish(rv, space, o);
    }
}
