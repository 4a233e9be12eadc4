//! Maintenance commands that mixedcc does not support, or not for all of its indexes.

use super::{
    alter, class, database, each_class, each_index, elements, family, flag, hold, name_of, our_am, ours, relid, text,
    Call,
};
use crate::access::primary;
use crate::admin::options::{self, Apply};
use crate::pg::compat;
use crate::pg::errors::refuse;
use crate::state::{rel, xact};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;
use std::ffi::CStr;

/// What a maintenance command does that names this table: the table, and all partitions of a
/// partitioned one. (Tables that inherit from it are none of its business.)
fn named(oid: Oid) -> Vec<Oid> {
    let partitioned = class(oid).is_some_and(|c| c.kind == pg_sys::RELKIND_PARTITIONED_TABLE);
    if partitioned {
        family(oid)
    } else {
        vec![oid]
    }
}

/// Is a table, or one of its partitions, ours?
fn any_ours(oid: Oid) -> bool {
    named(oid).into_iter().any(|o| ours(o).is_some())
}

/// CREATE RULE: one for SELECT makes an empty table a view, up to version 15. PostgreSQL drops its
/// file without a call of any hook, and leaves its options and its dependency on the access method.
pub fn rule(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let s = unsafe { &*call.node::<pg_sys::RuleStmt>() };
    let for_select = s.event == pg_sys::CmdType::CMD_SELECT;
    let table = relid(s.relation).filter(|_| for_select).and_then(|oid| Some((oid, ours(oid)?.storage_key())));
    call.run();
    let Some((oid, storage)) = table else { return };
    // SAFETY: the command has changed its catalogs, and holds nothing of them.
    unsafe { pg_sys::CommandCounterIncrement() };
    if !class(oid).is_some_and(|c| c.kind == pg_sys::RELKIND_VIEW) {
        return;
    }
    xact::dropped(storage);
    options::store_label(options::relation(oid), None);
    // SAFETY: a change of catalogs, for an object that the command has locked exclusively.
    unsafe {
        let (relations, methods) = (pg_sys::RelationRelationId, pg_sys::AccessMethodRelationId);
        let normal = pg_sys::DependencyType::DEPENDENCY_NORMAL as core::ffi::c_char;
        pg_sys::deleteDependencyRecordsForClass(relations, oid, methods, normal);
    }
}

/// The table of an index.
fn table_of(index: Oid) -> Option<Oid> {
    // SAFETY: catalog look-up: any OID is answered, as it may be missing.
    let oid = unsafe { pg_sys::IndexGetRelation(index, true) };
    (oid != pg_sys::InvalidOid).then_some(oid)
}

/// Says what a command does not do with tables of ours, and does with the others.
fn warn(command: &str, ours: &[Oid], instead: &str, hint: &str) {
    let tables = match ours {
        [one] => format!("mixedcc table \"{}\"", name_of_oid(*one)),
        _ => format!("{} mixedcc tables", ours.len()),
    };
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_WARNING,
        format!("{command} is not supported for {tables}, {instead}"),
        "mixedcc",
    )
    .set_hint(hint)
    .report(PgLogLevel::WARNING);
}

/// The name of a relation with its schema, quoted where that is needed.
fn full_name(oid: Oid) -> String {
    let Some(c) = class(oid) else { return oid.to_u32().to_string() };
    // SAFETY: catalog look-ups: any OID is answered, by a C string or null. The result is a C
    // string of the current memory context, and a name there is not null.
    unsafe {
        let (schema, name) = (pg_sys::get_namespace_name(c.schema), pg_sys::get_rel_name(oid));
        if name.is_null() {
            return oid.to_u32().to_string();
        }
        text(pg_sys::quote_qualified_identifier(schema, name)).unwrap_or_default()
    }
}

pub(super) fn name_of_oid(oid: Oid) -> String {
    // SAFETY: catalog look-up: any OID is answered, by a C string or null.
    text(unsafe { pg_sys::get_rel_name(oid) }).unwrap_or_else(|| oid.to_u32().to_string())
}

/// Is the command a client's, so that it may commit in the middle? An ERROR if it is not.
pub(super) fn must_be_alone(call: &Call, command: &CStr) {
    let top = call.context == pg_sys::ProcessUtilityContext::PROCESS_UTILITY_TOPLEVEL;
    // SAFETY: `command` is a C string; the ERROR of a block unwinds.
    unsafe { pg_sys::PreventInTransactionBlock(top, command.as_ptr()) };
}

/// Runs `f` for each of these in a transaction of its own, as the commands do it that take all
/// tables: what is gone by then is left out. `items` is the statement's memory, `f` owns nothing
/// when it calls PostgreSQL.
fn in_transactions<T>(items: &'static [T], f: impl Fn(&T)) {
    // SAFETY: `must_be_alone` was called, so the transaction may end here, and `items` is the
    // statement's memory. After an ERROR PostgreSQL goes on with the transaction that it finds.
    unsafe {
        pg_sys::PopActiveSnapshot();
        pg_sys::CommitTransactionCommand();
        for item in items {
            pg_sys::StartTransactionCommand();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            f(item);
            if pg_sys::ActiveSnapshotSet() {
                pg_sys::PopActiveSnapshot();
            }
            pg_sys::CommitTransactionCommand();
        }
        pg_sys::StartTransactionCommand();
    }
}

/// CREATE INDEX of a unique index that may come into memory: the command begins with the lock that
/// this needs, because it would wait for readers that wait for the command.
pub fn create_index(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let s = unsafe { &*call.node::<pg_sys::IndexStmt>() };
    let may = s.unique && !s.primary && !s.concurrent && !s.deferrable;
    let plain = s.whereClause.is_null() && s.excludeOpNames.is_null() && s.indexIncludingParams.is_null();
    let ours = may && plain && !s.relation.is_null() && our_am().is_some() && relid(s.relation).is_some_and(any_ours);
    if let Some(columns) = if ours { columns_of(s) } else { None } {
        // SAFETY: the statement has a range variable. The callback checks the owner. No lock is
        // taken: a transaction that has read the table would wait for it, and the command, later,
        // for that one. If the name is another table's by then, nbtree gets the entries.
        let oid = unsafe {
            let (mode, missing) = (pg_sys::NoLock as i32, pg_sys::RVROption::RVR_MISSING_OK);
            let owns = alter::OWNS;
            pg_sys::RangeVarGetRelidExtended(s.relation, mode, missing, owns, std::ptr::null_mut())
        };
        // SAFETY: the statement has a range variable. The relation is open while it is asked.
        let (deep, may) = unsafe { ((*s.relation).inh, |rel: pg_sys::Relation| primary::may_be_key(rel, &columns)) };
        if !class(oid).is_some_and(|c| c.kind == pg_sys::RELKIND_PARTITIONED_TABLE) {
            lock_for_unique(oid, may);
        } else if deep && lock_partitioned(oid, may) {
            named(oid).into_iter().for_each(|table| lock_for_unique(table, may));
        }
    }
    call.run();
}

/// Locks a partitioned table, before its partitions as all commands do, if `may` says so. Returns
/// that.
fn lock_partitioned(oid: Oid, may: impl FnOnce(pg_sys::Relation) -> bool) -> bool {
    // SAFETY: any OID can be locked. The relation is open while it is asked, and its lock is given
    // back before the other one is taken.
    unsafe {
        let rel = pg_sys::try_relation_open(oid, pg_sys::AccessShareLock as i32);
        if rel.is_null() {
            return false;
        }
        let takes = may(rel);
        pg_sys::relation_close(rel, pg_sys::AccessShareLock as i32);
        if takes {
            pg_sys::LockRelationOid(oid, pg_sys::AccessExclusiveLock as i32);
        }
        takes
    }
}

/// The columns of a new index; `None`: it has expressions, or names an order, an operator class or
/// a collation.
fn columns_of(s: &pg_sys::IndexStmt) -> Option<Vec<String>> {
    // SAFETY: the parameters of CREATE INDEX are a list of `IndexElem`s (parsenodes.h).
    unsafe {
        let all = pgrx::PgList::<pg_sys::IndexElem>::from_pg(s.indexParams);
        let is_plain = |e: &pg_sys::IndexElem| {
            let up = [pg_sys::SortByDir::SORTBY_DEFAULT, pg_sys::SortByDir::SORTBY_ASC].contains(&e.ordering);
            let first = e.nulls_ordering == pg_sys::SortByNulls::SORTBY_NULLS_FIRST;
            up && !first && e.opclass.is_null() && e.collation.is_null()
        };
        all.iter_ptr().map(|e| text((*e).name).filter(|_| is_plain(&*e))).collect()
    }
}

/// Locks a table exclusively, if it is one of ours for which `may` says so and the build of a
/// unique index would bring it into memory.
fn lock_for_unique(oid: Oid, may: impl FnOnce(pg_sys::Relation) -> bool) {
    if ours(oid).is_none() {
        return;
    }
    // SAFETY: any OID can be locked. The relation is open while it is asked. Its lock is given back
    // first, so that two commands do not wait for each other.
    unsafe {
        let rel = pg_sys::try_relation_open(oid, pg_sys::AccessShareLock as i32);
        if rel.is_null() {
            return;
        }
        primary::settle_files(rel);
        let takes = rel::is_ours(rel) && primary::is_open_to_unique(rel) && may(rel);
        pg_sys::relation_close(rel, pg_sys::AccessShareLock as i32);
        if takes {
            pg_sys::LockRelationOid(oid, pg_sys::AccessExclusiveLock as i32);
        }
    }
}

/// DROP INDEX: the rows are loaded first, while the index is there that says of which key the
/// primary index is. CONCURRENTLY has given up its locks when it ends, and its entries in memory go
/// all the same.
pub fn drop_index(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at. The
    // objects are lists of names (gram.y).
    let ends: &Vec<Oid> = unsafe {
        let s = &*call.node::<pg_sys::DropStmt>();
        let names = pgrx::PgList::<pg_sys::List>::from_pg(s.objects);
        let all = if our_am().is_some() { names.iter_ptr().collect() } else { Vec::new() };
        // The command itself refuses the others; until then nothing waits for their tables.
        let may = |index: &Oid| class(*index).is_some_and(|c| compat::may_drop(*index, c.schema, user()));
        let indexes = all.into_iter().filter_map(|name| relid(pg_sys::makeRangeVarFromNameList(name))).filter(may);
        let of: Vec<(Oid, Oid)> = indexes.filter_map(|index| Some((index, table_of(index)?))).collect();
        let tables: Vec<Oid> =
            of.iter().flat_map(|(_, table)| named(*table)).filter(|oid| ours(*oid).is_some()).collect();
        tables.iter().for_each(|oid| alter::load_first(*oid));
        let is_hollow = |(index, table): &&(Oid, Oid)| {
            s.concurrent && indexes_of(*table, primary::uniques_in_memory).contains(index)
        };
        hold(of.iter().filter(is_hollow).map(|(_, table)| *table).collect())
    };
    call.run();
    for oid in ends.iter() {
        // SAFETY: any OID can be locked; a table that was dropped meanwhile has no class.
        unsafe { pg_sys::LockRelationOid(*oid, pg_sys::AccessExclusiveLock as i32) };
        if ours(*oid).is_some() {
            options::sync(*oid, Apply::DROPS);
        }
    }
}

/// Some of the indexes of a table, if it is ours.
fn indexes_of(table: Oid, find: unsafe fn(pg_sys::Relation) -> Vec<Oid>) -> Vec<Oid> {
    // SAFETY: the relation is open while it is asked, and its lock is given back.
    unsafe {
        let rel = pg_sys::try_relation_open(table, pg_sys::AccessShareLock as i32);
        if rel.is_null() {
            return Vec::new();
        }
        primary::settle_files(rel);
        let found = if rel::is_ours(rel) { find(rel) } else { Vec::new() };
        pg_sys::relation_close(rel, pg_sys::AccessShareLock as i32);
        found
    }
}

/// REINDEX without CONCURRENTLY may make a unique index hollow.
fn lock_to_reindex(s: &pg_sys::ReindexStmt) {
    use pg_sys::ReindexObjectType::{REINDEX_OBJECT_INDEX, REINDEX_OBJECT_TABLE};
    let found = if s.relation.is_null() { None } else { relid(s.relation) };
    let table = match s.kind {
        REINDEX_OBJECT_INDEX => found.filter(|index| may_become_hollow(*index)).and_then(table_of),
        REINDEX_OBJECT_TABLE => found,
        _ => None,
    };
    let may = |oid: &Oid| class(*oid).is_some_and(|c| c.kind == pg_sys::RELKIND_RELATION);
    // That of a partitioned table reindexes each partition in a transaction of its own.
    let table = table.filter(may).filter(|oid| compat::may_maintain(*oid, user()));
    // SAFETY: the relation is open while it is asked.
    let has = |rel| unsafe { primary::has_fitting_unique(rel) };
    table.into_iter().for_each(|oid| lock_for_unique(oid, has));
}

/// Is an index unique, and no PRIMARY KEY?
fn may_become_hollow(index: Oid) -> bool {
    // SAFETY: catalog look-up: any OID is answered, by a row or null, which is released after its
    // last use.
    unsafe {
        let row = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::INDEXRELID as i32, index.into());
        if row.is_null() {
            return false;
        }
        let form = &*pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_index>();
        let may = form.indisunique && form.indimmediate && !form.indisprimary;
        pg_sys::ReleaseSysCache(row);
        may
    }
}

/// REINDEX: CONCURRENTLY leaves out hollow indexes.
pub fn reindex(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let s = unsafe { &*call.node::<pg_sys::ReindexStmt>() };
    if our_am().is_none() {
        return call.run();
    }
    if !flag(s.params, "concurrently") {
        lock_to_reindex(s);
        return call.run();
    }
    if s.relation.is_null() {
        return reindex_all(call, s);
    }
    let Some(found) = relid(s.relation) else { return call.run() };
    let table = table_of(found);
    let names_index = s.kind == pg_sys::ReindexObjectType::REINDEX_OBJECT_INDEX;
    if table.is_some() != names_index {
        return call.run(); // with its own ERROR
    }
    let named_table = table.unwrap_or(found);
    if !any_ours(named_table) || !compat::may_maintain(named_table, user()) {
        return call.run(); // with its own ERROR
    }
    match table {
        Some(_) => reindex_index(call, found),
        None => {
            let (mine, others): (Vec<Oid>, Vec<Oid>) = named(found).into_iter().partition(|o| ours(*o).is_some());
            let kind = |o: &Oid| class(*o).is_some_and(|c| c.kind == pg_sys::RELKIND_RELATION);
            let others = others.into_iter().filter(kind).collect();
            with_events(call, || {
                if reindex_each(call, &mine, others) == 0 {
                    let message =
                        format!("table \"{}\" has no indexes that can be reindexed concurrently", name_of_oid(found));
                    ErrorReport::new(PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION, message, "mixedcc")
                        .report(PgLogLevel::NOTICE);
                }
            });
        }
    }
}

/// REINDEX INDEX CONCURRENTLY of an index of ours, or of one that has partitions of ours.
fn reindex_index(call: Call, index: Oid) {
    let all_keys = Keys::of(|table| ours(table).is_some());
    let is_key = |index: &Oid| all_keys.has(*index);
    let partitioned = class(index).is_some_and(|c| c.kind == pg_sys::RELKIND_PARTITIONED_INDEX);
    if !partitioned && !is_key(&index) {
        return call.run();
    }
    let members = if partitioned { family(index) } else { vec![index] };
    let leaf = |o: &Oid| class(*o).is_some_and(|c| c.kind == pg_sys::RELKIND_INDEX);
    let (keys, others): (Vec<Oid>, Vec<Oid>) = members.into_iter().filter(leaf).partition(is_key);
    let items = others.into_iter().map(|o| (o, pg_sys::ReindexObjectType::REINDEX_OBJECT_INDEX)).collect();
    with_events(call, || {
        must_be_alone(&call, c"REINDEX CONCURRENTLY");
        leave_out(&keys);
        reindex_items(call, items);
    });
}

/// Runs `f` in the place of this REINDEX, with its event triggers.
fn with_events(call: Call, f: impl FnOnce()) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at. It lives
    // as long as the portal.
    unsafe { compat::with_reindex_events(call.node(), f) }
}

/// Says that hollow indexes are not rebuilt.
fn leave_out(keys: &[Oid]) {
    let is_unique = |key: &Oid| may_become_hollow(*key);
    let (kind, kinds, a_kind) = match keys.iter().any(is_unique) {
        true => ("unique index", "primary keys and unique indexes", "a primary key, or of this unique index,"),
        false => ("primary key", "primary keys", "a primary key"),
    };
    let what = match keys {
        [] => return,
        [one] => format!("{kind} \"{}\" of a mixedcc table", name_of_oid(*one)),
        _ => format!("{} {kinds} of mixedcc tables", keys.len()),
    };
    let message = format!("REINDEX CONCURRENTLY leaves out {what}");
    ErrorReport::new(PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION, message, "mixedcc")
        .set_detail(format!("mixedcc keeps the entries of {a_kind} in memory."))
        .set_hint("REINDEX without CONCURRENTLY rebuilds them.")
        .report(PgLogLevel::NOTICE);
}

fn user() -> Oid {
    // SAFETY: `GetUserId` reads a variable of this process.
    unsafe { pg_sys::GetUserId() }
}

/// REINDEX of a schema or database.
fn reindex_all(call: Call, s: &pg_sys::ReindexStmt) {
    use pg_sys::ReindexObjectType::*;
    let schema = match s.kind {
        // SAFETY: catalog look-up: any name is answered, as it may be missing. REINDEX SCHEMA
        // always has a name (gram.y).
        REINDEX_OBJECT_SCHEMA => Some(unsafe { pg_sys::get_namespace_oid(s.name, true) }),
        REINDEX_OBJECT_DATABASE => None,
        _ => return call.run(),
    };
    let here = schema.is_some() || text(s.name).is_none_or(|name| database(&name) == Some(my_database()));
    let tables = tables(schema);
    if tables.ours.is_empty() || !here || !compat::may_maintain_all(schema, user()) {
        return call.run(); // with its own ERROR
    }
    let (catalogs, others): (Vec<&Table>, Vec<&Table>) = tables.others.iter().partition(|t| t.is_catalog);
    if !catalogs.is_empty() {
        ErrorReport::new(
            PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
            "cannot reindex system catalogs concurrently, skipping all",
            "mixedcc",
        )
        .report(PgLogLevel::WARNING);
    }
    let can = |t: &&Table| t.has_indexes && t.kind != pg_sys::RELKIND_PARTITIONED_TABLE && !t.is_other_temp;
    let others = others.into_iter().filter(can).map(|t| t.oid).collect();
    with_events(call, || {
        reindex_each(call, &tables.ours, others);
    });
}

fn my_database() -> u32 {
    // SAFETY: a variable of this process, which its one thread writes when it connects to a
    // database.
    unsafe { pg_sys::MyDatabaseId }.to_u32()
}

/// REINDEX CONCURRENTLY of tables: all indexes of the others, and of ours those that are no primary
/// keys. Returns how many of the two there were.
fn reindex_each(call: Call, ours: &[Oid], others: Vec<Oid>) -> usize {
    use pg_sys::ReindexObjectType::*;
    must_be_alone(&call, c"REINDEX CONCURRENTLY");
    let indexes = Indexes::of(ours);
    for (skipped, what) in &indexes.skipped {
        let message = format!("cannot reindex {what} \"{}\" concurrently, skipping", full_name(*skipped));
        ErrorReport::new(PgSqlErrorCode::ERRCODE_WARNING, message, "mixedcc").report(PgLogLevel::WARNING);
    }
    leave_out(&indexes.keys);
    let ours = indexes.others.into_iter().map(|o| (o, REINDEX_OBJECT_INDEX));
    let items: Vec<_> = ours.chain(others.into_iter().map(|o| (o, REINDEX_OBJECT_TABLE))).collect();
    let found = items.len();
    reindex_items(call, items);
    found
}

/// The indexes of some tables of ours.
#[derive(Default)]
struct Indexes {
    /// Those of primary keys.
    keys: Vec<Oid>,
    /// Those that PostgreSQL leaves out, too, and what they are: an invalid one is what an
    /// interrupted command has left.
    skipped: Vec<(Oid, &'static str)>,
    others: Vec<Oid>,
}

impl Indexes {
    fn of(tables: &[Oid]) -> Indexes {
        let mut out = Indexes::default();
        let keys = Keys::of(|table| tables.contains(&table));
        each_index(|form| match () {
            () if !tables.contains(&form.indrelid) => {}
            () if keys.has(form.indexrelid) => out.keys.push(form.indexrelid),
            () if !form.indisvalid => out.skipped.push((form.indexrelid, "invalid index")),
            () if form.indisexclusion => out.skipped.push((form.indexrelid, "exclusion constraint index")),
            () => out.others.push(form.indexrelid),
        });
        out
    }
}

/// The indexes of tables of ours whose entries the engine has, as it may.
struct Keys(Vec<Oid>);

impl Keys {
    fn of(tables: impl Fn(Oid) -> bool) -> Keys {
        let (mut keys, mut others) = (Vec::new(), Vec::new());
        each_index(|form| {
            let may = form.indisunique && form.indimmediate;
            match form.indisprimary {
                _ if !may || !tables(form.indrelid) => {}
                true => keys.push(form.indexrelid),
                false if others.contains(&form.indrelid) => {}
                false => others.push(form.indrelid),
            }
        });
        // Looked at when no catalog is being read.
        keys.extend(others.into_iter().flat_map(|table| indexes_of(table, primary::hollow_uniques)));
        Keys(keys)
    }

    fn has(&self, index: Oid) -> bool {
        self.0.contains(&index)
    }
}

/// REINDEX CONCURRENTLY of these tables and indexes, each in transactions of its own.
fn reindex_items(call: Call, items: Vec<(Oid, pg_sys::ReindexObjectType::Type)>) {
    let call = call.writable();
    in_transactions(hold(items), |&(oid, kind)| {
        // SAFETY: the node is ours to change (`writable`). What it points to is the portal's
        // memory, which lives longer than the transactions that the command makes.
        unsafe {
            let Some(table) = table_of_item(oid, kind) else { return };
            if !compat::may_maintain(table, user()) {
                return skip_foreign(oid);
            }
            pg_sys::LockRelationOid(table, pg_sys::ShareUpdateExclusiveLock as i32);
            let Some(c) = class(oid) else { return };
            let old = pg_sys::MemoryContextSwitchTo(pg_sys::PortalContext);
            let s = call.node::<pg_sys::ReindexStmt>();
            let schema = pg_sys::get_namespace_name(c.schema);
            (*s).relation = pg_sys::makeRangeVar(schema, pg_sys::get_rel_name(oid), -1);
            (*s).kind = kind;
            (*s).name = std::ptr::null();
            pg_sys::MemoryContextSwitchTo(old);
            compat::reindex(s, call.query);
        }
    });
}

/// The table to be locked for an item; `None`: it is gone.
fn table_of_item(oid: Oid, kind: pg_sys::ReindexObjectType::Type) -> Option<Oid> {
    class(oid)?;
    match kind {
        pg_sys::ReindexObjectType::REINDEX_OBJECT_INDEX => table_of(oid),
        _ => Some(oid),
    }
}

fn skip_foreign(oid: Oid) {
    let message = format!("skipping \"{}\" --- only its owner can reindex it", name_of_oid(oid));
    ErrorReport::new(PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE, message, "mixedcc").report(PgLogLevel::WARNING);
}

/// A table or materialized view of another access method, or a partitioned table.
struct Table {
    oid: Oid,
    kind: u8,
    is_catalog: bool,
    is_other_temp: bool,
    /// Indexes of its own, or that of its TOAST table.
    has_indexes: bool,
}

/// Tables of the database, or of a schema.
#[derive(Default)]
struct Tables {
    ours: Vec<Oid>,
    others: Vec<Table>,
}

fn tables(schema: Option<Oid>) -> Tables {
    let am = our_am();
    let mut out = Tables::default();
    each_class(|form| {
        let kind = form.relkind as u8;
        let is_table =
            matches!(kind, pg_sys::RELKIND_RELATION | pg_sys::RELKIND_MATVIEW | pg_sys::RELKIND_PARTITIONED_TABLE);
        if !is_table || schema.is_some_and(|s| s != form.relnamespace) {
            return;
        }
        if Some(form.relam) == am {
            return out.ours.push(form.oid);
        }
        let temporary = form.relpersistence as u8 == pg_sys::RELPERSISTENCE_TEMP;
        // SAFETY: both compare OIDs with variables of this process: any OID is answered.
        let (is_catalog, mine) =
            unsafe { (pg_sys::IsCatalogRelationOid(form.oid), pg_sys::isTempNamespace(form.relnamespace)) };
        out.others.push(Table {
            oid: form.oid,
            kind,
            is_catalog,
            is_other_temp: temporary && !mine,
            has_indexes: form.relhasindex || form.reltoastrelid != pg_sys::InvalidOid,
        });
    });
    out
}

/// CLUSTER: what we keep of our tables follows them into their new storage.
pub fn cluster(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let s = unsafe { &*call.node::<pg_sys::ClusterStmt>() };
    if s.relation.is_null() {
        return cluster_all(call, s);
    }
    let Some(oid) = relid(s.relation).filter(|oid| any_ours(*oid)) else { return call.run() };
    if ours(oid).is_none() {
        refuse(
            &format!("cannot cluster partitioned table \"{}\" with mixedcc partitions", name_of(s.relation)),
            "Use CLUSTER for each partition.",
        );
    }
    if !compat::may_maintain(oid, user()) {
        return call.run(); // with its own ERROR
    }
    alter::rewriting(oid, || call.run());
}

/// CLUSTER of all tables that were clustered before and that the user may cluster.
fn cluster_all(call: Call, s: &pg_sys::ClusterStmt) {
    let mut all = Vec::new();
    each_index(|form| {
        if form.indisclustered {
            all.push((form.indrelid, form.indexrelid));
        }
    });
    let may = |pair: &(Oid, Oid)| compat::may_maintain(pair.0, user());
    let (marked, denied): (Vec<_>, Vec<_>) = all.into_iter().partition(may);
    if !marked.iter().any(|(table, _)| ours(*table).is_some()) {
        return call.run();
    }
    must_be_alone(&call, c"CLUSTER");
    for (table, _) in denied.iter().filter(|_| compat::CLUSTER_TELLS) {
        let message = format!("permission denied to cluster \"{}\", skipping it", name_of_oid(*table));
        ErrorReport::new(PgSqlErrorCode::ERRCODE_WARNING, message, "mixedcc").report(PgLogLevel::WARNING);
    }
    let verbose = flag(s.params, "verbose");
    in_transactions(hold(marked), |&(table, index)| match ours(table) {
        Some(_) => alter::rewriting(table, || compat::cluster(table, index, verbose)),
        None => compat::cluster(table, index, verbose),
    });
}

/// VACUUM: FULL is VACUUM for our tables, and FULL for the others.
pub fn vacuum(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let s = unsafe { &*call.node::<pg_sys::VacuumStmt>() };
    if !s.is_vacuumcmd || our_am().is_none() || !flag(s.options, "full") || contradicts_full(s.options) {
        return call.run();
    }
    let Split { mine, full, denied } = if s.rels.is_null() { split_all() } else { split(s.rels) };
    if mine.is_empty() {
        return call.run();
    }
    must_be_alone(&call, c"VACUUM");
    denied.into_iter().for_each(compat::tell_not_vacuumed);
    let oids: Vec<Oid> = mine.iter().map(|m| m.0).collect();
    warn("VACUUM FULL", &oids, "running VACUUM", "VACUUM gives the memory of deleted rows back.");
    let call = call.writable();
    let list = |all: Vec<*mut pg_sys::VacuumRelation>| {
        // SAFETY: a new list of nodes of the statement's memory, in the current context.
        all.into_iter().fold(std::ptr::null_mut(), |l, r| unsafe { pg_sys::lappend(l, r.cast()) })
    };
    let (mine, full) = (list(mine.into_iter().map(|m| m.1).collect()), list(full));
    drop(oids);
    // SAFETY: the node is ours to change (`writable`), and its tag was looked at; the lists are of
    // the statement's memory.
    unsafe {
        let s = call.node::<pg_sys::VacuumStmt>();
        let plain = pg_sys::copyObjectImpl(s.cast()).cast::<pg_sys::VacuumStmt>();
        (*plain).rels = mine;
        (*plain).options = without((*s).options, "full");
        if full.is_null() {
            // Seen by other libraries' hooks as the one statement that it is.
            (*s).rels = (*plain).rels;
            (*s).options = (*plain).options;
            return call.run();
        }
        (*s).rels = full;
        call.run();
        compat::vacuum(plain, call.query);
    }
}

/// Does PostgreSQL refuse FULL beside the other options, whatever the tables are?
fn contradicts_full(options: *mut pg_sys::List) -> bool {
    elements(options).iter().any(|e| match e.name.as_str() {
        "parallel" => e.value.as_deref() != Some("0"),
        "disable_page_skipping" => flag(options, &e.name),
        "process_toast" => !flag(options, &e.name),
        "buffer_usage_limit" => !flag(options, "analyze"),
        _ => false,
    })
}

/// A list of options without one.
fn without(list: *mut pg_sys::List, name: &str) -> *mut pg_sys::List {
    let names = elements(list);
    // SAFETY: `list` is null or a list of `DefElem`s of a parse tree, as each caller passes it.
    // `names` has an element for each.
    unsafe {
        let old = pgrx::PgList::<pg_sys::DefElem>::from_pg(list);
        let rest = old.iter_ptr().zip(&names).filter(|(_, e)| e.name != name);
        rest.fold(std::ptr::null_mut(), |l, (d, _)| pg_sys::lappend(l, d.cast()))
    }
}

/// Relations to be vacuumed.
#[derive(Default)]
struct Split {
    /// Ours, with their OIDs.
    mine: Vec<(Oid, *mut pg_sys::VacuumRelation)>,
    /// Others.
    full: Vec<*mut pg_sys::VacuumRelation>,
    /// Those that the user may not vacuum. They are left out here, as PostgreSQL leaves them out of
    /// its list of all tables. It would lock each table that it is given before it looks at rights.
    denied: Vec<Oid>,
}

impl Split {
    /// Adds a table that the command does not name itself.
    fn add(&mut self, oid: Oid, columns: *mut pg_sys::List) {
        let Some(c) = class(oid) else { return };
        match () {
            () if !compat::may_vacuum(oid, c.is_shared, user()) => self.denied.push(oid),
            () if ours(oid).is_some() => self.mine.push((oid, vacuum_relation(oid, columns))),
            () => self.full.push(vacuum_relation(oid, columns)),
        }
    }
}

fn vacuum_relation(oid: Oid, columns: *mut pg_sys::List) -> *mut pg_sys::VacuumRelation {
    // SAFETY: a new node in the current context; `columns` is null or a list of the statement.
    unsafe { pg_sys::makeVacuumRelation(std::ptr::null_mut(), oid, columns) }
}

fn split_all() -> Split {
    let (all, mut out) = (tables(None), Split::default());
    all.ours.into_iter().chain(all.others.iter().map(|t| t.oid)).for_each(|oid| out.add(oid, std::ptr::null_mut()));
    out
}

/// Partitions of named tables are named one by one where some of them are ours.
fn split(rels: *mut pg_sys::List) -> Split {
    let mut out = Split::default();
    // SAFETY: `rels` is a list of `VacuumRelation`s, of a VACUUM statement (parsenodes.h).
    for r in unsafe { pgrx::PgList::<pg_sys::VacuumRelation>::from_pg(rels) }.iter_ptr() {
        // SAFETY: `r` is an element of the list, a `VacuumRelation`.
        let (rv, columns) = unsafe { ((*r).relation, (*r).va_cols) };
        let found = if rv.is_null() { None } else { relid(rv) };
        // SAFETY: `rv` is the range variable whose relation was found, so it is not null.
        let members = found.map_or_else(Vec::new, |oid| vacuumed(oid, unsafe { (*rv).inh }));
        match members[..] {
            [oid] if ours(oid).is_some() => out.mine.push((oid, r)),
            _ if members.iter().any(|member| ours(*member).is_some()) => {
                members.into_iter().for_each(|member| out.add(member, columns));
            }
            _ => out.full.push(r),
        }
    }
    out
}

/// What VACUUM does that names this table. `inherits`: not ONLY.
fn vacuumed(oid: Oid, inherits: bool) -> Vec<Oid> {
    match (compat::VACUUM_DESCENDS, inherits) {
        (false, _) => named(oid),
        (true, true) => family(oid),
        (true, false) => vec![oid],
    }
}
