//! EXPLAIN (VERBOSE): the partitions and protocols of the statement's tables. EXPLAIN (ANALYZE) in
//! a SERIALIZABLE transaction: the keys that are protected, too.

use crate::pg::previous::PREVIOUS;
use crate::state::{rel, xact};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::CStr;

/// Installs the hook.
pub fn init() {
    // SAFETY: `_PG_init` runs alone, so the hooks have no caller yet.
    unsafe {
        PREVIOUS.get_mut().explain = pg_sys::ExplainOneQuery_hook;
        pg_sys::ExplainOneQuery_hook = Some(explain);
    }
}

/// The hook: plans, explains, and adds our lines. The times of planning are measured as
/// PostgreSQL does it (ExplainOneQuery).
#[pg_guard]
unsafe extern "C-unwind" fn explain(
    query: *mut pg_sys::Query,
    options: i32,
    into: *mut pg_sys::IntoClause,
    es: *mut pg_sys::ExplainState,
    text: *const core::ffi::c_char,
    params: pg_sys::ParamListInfo,
    env: *mut pg_sys::QueryEnvironment,
) {
    // SAFETY: the arguments are those of ExplainOneQuery_hook, and are passed on unchanged.
    unsafe {
        let tables = if (*es).verbose || (*es).analyze { tables_of(query) } else { Vec::new() };
        let before = predicates();
        match PREVIOUS.get().explain {
            Some(prev) => prev(query, options, into, es, text, params, env),
            None => crate::pg::compat::explain_query(query, options, into, es, text, params, env),
        }
        let protects = predicates() > before;
        if crate::pg::guc::EXPLAIN.get() && (protects || (*es).verbose && !tables.is_empty()) {
            add(es, &tables, before);
        }
    }
}

fn predicates() -> usize {
    xact::known_mode().map_or(0, |_| xact::txn().range_predicates().count())
}

/// The tables of ours that a query names, views and rules expanded.
unsafe fn tables_of(query: *mut pg_sys::Query) -> Vec<pg_sys::Oid> {
    let mut found = Vec::new();
    // SAFETY: `query` is a rewritten query, whose tables are locked (ExplainOneQuery_hook). `walk`
    // gets the vector that it wants.
    unsafe { walk(query.cast(), (&raw mut found).cast()) };
    found
}

#[pg_guard]
unsafe extern "C-unwind" fn walk(node: *mut pg_sys::Node, context: *mut core::ffi::c_void) -> bool {
    // SAFETY: `node` is null or a valid node, and `context` is the vector of `tables_of`
    // (query_tree_walker).
    unsafe {
        if node.is_null() {
            return false;
        }
        match (*node).type_ {
            pg_sys::NodeTag::T_Query => {
                pg_sys::query_tree_walker(node.cast(), Some(walk), context, pg_sys::QTW_EXAMINE_RTES_BEFORE as i32)
            }
            pg_sys::NodeTag::T_RangeTblEntry => {
                let rte = node.cast::<pg_sys::RangeTblEntry>();
                if (*rte).rtekind == pg_sys::RTEKind::RTE_RELATION {
                    add_table((*rte).relid, &mut *context.cast::<Vec<pg_sys::Oid>>());
                }
                false
            }
            _ => pg_sys::expression_tree_walker(node, Some(walk), context),
        }
    }
}

unsafe fn add_table(oid: pg_sys::Oid, found: &mut Vec<pg_sys::Oid>) {
    // SAFETY: `oid` is a table that the query has locked; its entry is closed after its last use.
    unsafe {
        let r = pg_sys::RelationIdGetRelation(oid);
        if !r.is_null() {
            if rel::is_ours(r) && !found.contains(&oid) {
                found.push(oid);
            }
            pg_sys::RelationClose(r);
        }
    }
}

/// Opens the group of the query again, which PostgreSQL has closed just before: what follows
/// belongs to that query. In JSON and YAML a group after it would be another query. False, and
/// nothing is changed, if the text does not end with the group (another library has added
/// something).
unsafe fn reopen(es: *mut pg_sys::ExplainState) -> bool {
    use pg_sys::ExplainFormat::*;
    // SAFETY: `es` is an EXPLAIN that is being written; its buffer holds `len` bytes and a NUL
    // (stringinfo.h).
    unsafe {
        let out = &mut *(*es).str_;
        let text = std::slice::from_raw_parts(out.data.cast::<u8>(), out.len as usize);
        let indent = " ".repeat(2 * (*es).indent as usize);
        let closing = match (*es).format {
            EXPLAIN_FORMAT_JSON => format!("\n{indent}}}"),
            EXPLAIN_FORMAT_XML => format!("{indent}</Query>\n"),
            _ => String::new(),
        };
        let Some(rest) = text.strip_suffix(closing.as_bytes()) else { return false };
        out.len = rest.len() as i32;
        *out.data.add(rest.len()) = 0;
        match (*es).format {
            EXPLAIN_FORMAT_TEXT => return true,
            // Not the first of its group: a separator comes before it.
            EXPLAIN_FORMAT_JSON | EXPLAIN_FORMAT_YAML => {
                (*es).grouping_stack = pg_sys::lcons_int(1, (*es).grouping_stack);
            }
            _ => {}
        }
        (*es).indent += 1;
        true
    }
}

unsafe fn add(es: *mut pg_sys::ExplainState, tables: &[pg_sys::Oid], before: usize) {
    // SAFETY: `es` is an EXPLAIN that is being written, as the hook got it.
    unsafe {
        if !reopen(es) {
            return;
        }
        let mut shown = Vec::new();
        for &oid in tables {
            let r = pg_sys::RelationIdGetRelation(oid);
            if r.is_null() {
                continue;
            }
            let map = rel::info(r).table.map();
            let mut protocols: Vec<_> = map.partitions().iter().map(|p| p.protocols().name()).collect();
            protocols.sort();
            protocols.dedup();
            let n = map.n;
            let partitions = if n == 1 { "1 partition".into() } else { format!("{n} partitions") };
            pg_sys::RelationClose(r);
            shown.push(format!("{}: {partitions}, {}", name(oid), protocols.join(" and ")));
        }
        put(es, c"mixedcc Table", &shown);
        shown.clear();
        if xact::known_mode().is_some() {
            for d in crate::admin::sql::ranges::described(before) {
                let ranges = if d.ranges == 1 { "1 range".into() } else { format!("{} ranges", d.ranges) };
                shown.push(format!(
                    "{} from {} to {} in {ranges}, {} covered",
                    name(d.index),
                    d.lower,
                    d.upper,
                    d.covered
                ));
            }
        }
        put(es, c"mixedcc Protected Keys", &shown);
        pg_sys::ExplainCloseGroup(c"Query".as_ptr(), std::ptr::null(), true, es);
    }
}

/// A line for each value; in the formats for programs one list.
unsafe fn put(es: *mut pg_sys::ExplainState, label: &CStr, values: &[String]) {
    // SAFETY: `es` is an EXPLAIN that is being written, as the hook got it; the texts are C
    // strings.
    unsafe {
        let values = values.iter().map(|v| crate::pg::text::write(v));
        if (*es).format == pg_sys::ExplainFormat::EXPLAIN_FORMAT_TEXT {
            values.for_each(|v| pg_sys::ExplainPropertyText(label.as_ptr(), v.as_ptr(), es));
            return;
        }
        let list = values.fold(std::ptr::null_mut(), |l, v| pg_sys::lappend(l, pg_sys::pstrdup(v.as_ptr()).cast()));
        if !list.is_null() {
            pg_sys::ExplainPropertyList(label.as_ptr(), list, es);
        }
    }
}

unsafe fn name(oid: pg_sys::Oid) -> String {
    // SAFETY: catalog look-up: any OID is answered, by a C string or null.
    unsafe {
        let p = pg_sys::get_rel_name(oid);
        if p.is_null() {
            oid.to_u32().to_string()
        } else {
            crate::pg::text::read(p)
        }
    }
}
