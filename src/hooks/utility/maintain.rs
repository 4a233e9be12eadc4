//! Maintenance commands that mixedcc does not support.

use super::{each_class, elements, family, name_of, our_am, ours, relid, Call};
use crate::options::refuse;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

/// Is a table, or one of its partitions, ours?
fn any_ours(oid: Oid) -> bool {
    family(oid).into_iter().any(|o| ours(o).is_some())
}

/// CREATE INDEX.
pub fn index(call: Call) {
    // SAFETY: the node's tag was looked at.
    let s = unsafe { &*call.node::<pg_sys::IndexStmt>() };
    if s.concurrent && relid(s.relation).is_some_and(|oid| ours(oid).is_some()) {
        refuse(
            &format!("mixedcc table \"{}\" does not support CREATE INDEX CONCURRENTLY", name_of(s.relation)),
            "Use CREATE INDEX, which blocks writers while it runs.",
        );
    }
    call.run();
}

/// CREATE RULE: one for SELECT makes an empty table a view, and drops its storage in a way that nobody is told of.
pub fn rule(call: Call) {
    // SAFETY: the node's tag was looked at.
    let s = unsafe { &*call.node::<pg_sys::RuleStmt>() };
    if s.event == pg_sys::CmdType::CMD_SELECT && relid(s.relation).is_some_and(|oid| ours(oid).is_some()) {
        refuse(
            &format!("mixedcc table \"{}\" cannot be made a view", name_of(s.relation)),
            "Drop the table, and use CREATE VIEW.",
        );
    }
    call.run();
}

/// The table of an index.
fn table_of(index: Oid) -> Option<Oid> {
    // SAFETY: a catalog look-up.
    let oid = unsafe { pg_sys::IndexGetRelation(index, true) };
    (oid != pg_sys::InvalidOid).then_some(oid)
}

/// Is a flag of a list of options set?
fn flag(list: *mut pg_sys::List, name: &str) -> bool {
    // SAFETY: a list of `DefElem`s.
    let all = unsafe { pgrx::PgList::<pg_sys::DefElem>::from_pg(list) };
    let mut on = false;
    for (d, e) in all.iter_ptr().zip(elements(list)) {
        if e.name == name {
            // SAFETY: an element of the list.
            on = unsafe { pg_sys::defGetBoolean(d) };
        }
    }
    on
}

/// REINDEX.
pub fn reindex(call: Call) {
    // SAFETY: the node's tag was looked at.
    let s = unsafe { &*call.node::<pg_sys::ReindexStmt>() };
    if our_am().is_some() && flag(s.params, "concurrently") {
        let found = if s.relation.is_null() { None } else { relid(s.relation) };
        let table = found.and_then(|oid| table_of(oid).or(found));
        if table.is_some_and(any_ours) {
            refuse(
                &format!(
                    "\"{}\" belongs to a mixedcc table, which does not support REINDEX CONCURRENTLY",
                    name_of(s.relation)
                ),
                "Use REINDEX, which blocks writers while it runs.",
            );
        }
        if s.relation.is_null() && tables(in_schema(s)).ours > 0 {
            refuse(
                "mixedcc tables do not support REINDEX CONCURRENTLY",
                "Use REINDEX TABLE CONCURRENTLY for each of the other tables, or REINDEX without CONCURRENTLY.",
            );
        }
    }
    call.run();
}

/// The schema that REINDEX SCHEMA names.
fn in_schema(s: &pg_sys::ReindexStmt) -> Option<Oid> {
    if s.kind != pg_sys::ReindexObjectType::REINDEX_OBJECT_SCHEMA {
        return None;
    }
    // SAFETY: a catalog look-up; the name of a schema is there.
    Some(unsafe { pg_sys::get_namespace_oid(s.name, true) })
}

/// Tables and materialized views of the database, or of a schema.
struct Tables {
    /// How many are ours.
    ours: usize,
    /// A list of `VacuumRelation`s of the others.
    others: *mut pg_sys::List,
}

fn tables(schema: Option<Oid>) -> Tables {
    let am = our_am();
    let mut out = Tables { ours: 0, others: std::ptr::null_mut() };
    each_class(|form| {
        let kind = matches!(form.relkind as u8, pg_sys::RELKIND_RELATION | pg_sys::RELKIND_MATVIEW);
        if !kind || schema.is_some_and(|s| s != form.relnamespace) {
            return;
        }
        if Some(form.relam) == am {
            out.ours += 1;
            return;
        }
        // SAFETY: a list of nodes, which lives as long as the statement.
        unsafe {
            let r = pg_sys::makeVacuumRelation(std::ptr::null_mut(), form.oid, std::ptr::null_mut());
            out.others = pg_sys::lappend(out.others, r.cast());
        }
    });
    out
}

/// CLUSTER.
pub fn cluster(call: Call) {
    // SAFETY: the node's tag was looked at.
    let s = unsafe { &*call.node::<pg_sys::ClusterStmt>() };
    if !s.relation.is_null() && relid(s.relation).is_some_and(any_ours) {
        refuse(
            &format!("mixedcc table \"{}\" does not support CLUSTER", name_of(s.relation)),
            "The rows are in memory: their order does not matter.",
        );
    }
    call.run();
}

/// VACUUM: FULL passes over our tables.
pub fn vacuum(call: Call) {
    // SAFETY: the node's tag was looked at.
    let s = unsafe { &*call.node::<pg_sys::VacuumStmt>() };
    if !s.is_vacuumcmd || our_am().is_none() || !flag(s.options, "full") {
        return call.run();
    }
    if s.rels.is_null() {
        return vacuum_others(call);
    }
    refuse_full(s.rels);
    call.run();
}

fn refuse_full(rels: *mut pg_sys::List) {
    // SAFETY: a list of `VacuumRelation`s.
    let rels = unsafe { pgrx::PgList::<pg_sys::VacuumRelation>::from_pg(rels) };
    for r in rels.iter_ptr() {
        // SAFETY: an element of the list.
        let rv = unsafe { (*r).relation };
        if !rv.is_null() && relid(rv).is_some_and(any_ours) {
            refuse(
                &format!("mixedcc table \"{}\" does not support VACUUM FULL", name_of(rv)),
                "Use VACUUM: it gives the memory of deleted rows back.",
            );
        }
    }
}

/// VACUUM FULL of the database, without our tables.
fn vacuum_others(call: Call) {
    let call = call.writable();
    let all = tables(None);
    if all.ours > 0 {
        let message = format!("VACUUM FULL skips {} mixedcc tables", all.ours);
        ErrorReport::new(PgSqlErrorCode::ERRCODE_WARNING, message, "mixedcc")
            .set_hint("Use VACUUM for them.")
            .report(PgLogLevel::WARNING);
        // SAFETY: the node is ours to change.
        unsafe { (*call.node::<pg_sys::VacuumStmt>()).rels = all.others };
    }
    call.run();
}
