//! ALTER TABLE and what it changes in our options.

use super::{
    class, databases, elements, hold, is_our_method, members, name_of, ours, relid, take_ours, text, Call, Element,
};
use crate::access::altered;
use crate::admin::options::{self, Apply, Options};
use crate::paths::tableam::{cluster, relation};
use crate::pg::compat;
use crate::pg::errors::{complain, must_be_writable, refuse};
use crate::state::{rel, save, shmem};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, AlterTableType, Oid};
use pgrx::prelude::*;

extern "C-unwind" {
    fn RangeVarCallbackOwnsRelation(rv: *const pg_sys::RangeVar, oid: Oid, old: Oid, arg: *mut core::ffi::c_void);
}

/// Checks the owner before a lock is taken.
pub(super) const OWNS: pg_sys::RangeVarGetRelidCallback = Some(RangeVarCallbackOwnsRelation);

type Cmds = pgrx::PgList<pg_sys::AlterTableCmd>;

/// Sets an option as SQL gives it.
pub fn set(o: &mut Options, e: &Element) {
    let Some(value) = &e.value else {
        complain(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            &format!("option \"mixedcc.{}\" needs a value", e.name),
            "Write mixedcc.option = 'value'.",
        )
    };
    o.set(&e.name, value, &[',']);
}

fn commands(s: &pg_sys::AlterTableStmt) -> Cmds {
    // SAFETY: `cmds` of an ALTER TABLE is a list of `AlterTableCmd`s (parsenodes.h).
    unsafe { Cmds::from_pg(s.cmds) }
}

fn command<'a>(c: *mut pg_sys::AlterTableCmd) -> &'a pg_sys::AlterTableCmd {
    // SAFETY: `c` is an element of `commands`: a command that lives as long as the statement.
    unsafe { &*c }
}

fn is_options(c: &pg_sys::AlterTableCmd) -> bool {
    matches!(c.subtype, AlterTableType::AT_SetRelOptions | AlterTableType::AT_ResetRelOptions)
}

/// What ALTER TABLE asks of our options: set (true) or reset.
fn wishes(s: &pg_sys::AlterTableStmt) -> Vec<(bool, Element)> {
    // SAFETY: commands of a valid statement; those of options have a list of them.
    let list = commands(s);
    let all = list.iter_ptr().map(command).filter(|c| is_options(c)).flat_map(|c| {
        let set = c.subtype == AlterTableType::AT_SetRelOptions;
        elements(c.def.cast()).into_iter().filter(Element::is_ours).map(move |e| (set, e)).collect::<Vec<_>>()
    });
    all.collect()
}

/// Takes our options out of a statement that we may change.
fn strip(s: &mut pg_sys::AlterTableStmt) {
    let mut rest = std::ptr::null_mut();
    for c in commands(s).iter_ptr() {
        // SAFETY: `c` is an element of `commands`, of a statement that we may change; no reference
        // to it is in use.
        unsafe {
            if is_options(&*c) {
                let (list, taken) = take_ours((*c).def.cast());
                if !taken.is_empty() && list.is_null() {
                    continue;
                }
                (*c).def = list.cast();
            }
            rest = pg_sys::lappend(rest, c.cast());
        }
    }
    s.cmds = rest;
}

/// The access method that the statement sets.
fn new_method(s: &pg_sys::AlterTableStmt) -> Option<String> {
    // SAFETY: commands of a valid statement.
    let list = commands(s);
    let mut all = list
        .iter_ptr()
        .map(command)
        .filter(|c| c.subtype == AlterTableType::AT_SetAccessMethod)
        .map(|c| text(c.name))
        .collect::<Vec<_>>();
    all.pop().flatten()
}

/// Refuses what mixedcc cannot do.
fn check(s: &pg_sys::AlterTableStmt, oid: Oid) {
    let Some(c) = class(oid) else { return };
    let to = new_method(s);
    let becomes = to.as_deref().is_some_and(is_our_method);
    if becomes && ours(oid).is_none() {
        match (c.kind, c.persistence) {
            (pg_sys::RELKIND_MATVIEW, _) => {
                refuse("mixedcc does not support materialized views", "Keep the materialized view in heap.")
            }
            (_, pg_sys::RELPERSISTENCE_TEMP) => {
                refuse("mixedcc does not support temporary tables", "Keep the temporary table in heap.")
            }
            _ => {}
        }
    }
}

/// The storage of a table before the command, if it is ours.
struct Before {
    oid: Oid,
    storage: Option<[u32; 4]>,
    /// Did its options fit it?
    fitted: bool,
}

/// The storages of a table and its descendants.
fn storages(oid: Oid, am: Oid) -> Vec<Before> {
    let is_ours = |c: &super::Class| c.am == am;
    let storage = |oid| class(oid).filter(is_ours).map(|c| c.storage_key());
    let before = |oid| {
        let storage = storage(oid);
        Before { oid, storage, fitted: storage.is_none() || options::fits(oid) }
    };
    members(oid).into_iter().map(before).collect()
}

/// After a command: options follow the table's definition.
fn follow(oid: Oid, before: &[Before], mut apply: Apply) {
    let old = before.iter().find(|b| b.oid == oid);
    match ours(oid) {
        Some(c) => {
            let fresh = old.is_some_and(|b| b.storage != Some(c.storage_key()));
            // The old storage is there until the transaction ends.
            let replaced = old.filter(|_| fresh && !apply.protocol).and_then(|b| b.storage).and_then(shmem::find);
            if fresh {
                apply = Apply::ALL;
            }
            if fresh && old.is_some_and(|b| b.storage.is_none()) {
                let mut o = Options::of(oid);
                o.keep_defaults();
                if o.label().is_some() {
                    o.store(oid);
                }
            }
            // What a command breaks is its error; what was broken before does not keep it from
            // running.
            apply.lenient = old.is_some_and(|b| !b.fitted);
            options::sync(oid, apply);
            if let Some(table) = replaced {
                options::inherit(oid, table.map());
            }
        }
        None => {
            if old.is_some_and(|b| b.storage.is_some()) && options::label_of(options::relation(oid)).is_some() {
                options::store_label(options::relation(oid), None);
            }
        }
    }
}

fn change(o: &mut Options, wishes: &[(bool, Element)]) {
    for (is_set, e) in wishes {
        if *is_set {
            set(o, e);
        } else {
            o.reset(&e.name);
        }
    }
}

/// Applies wishes to a table's options.
fn grant(oid: Oid, name: &str, wishes: &[(bool, Element)]) -> Apply {
    if ours(oid).is_none() {
        complain(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            &format!("option \"mixedcc.{}\" is for tables of the access method mixedcc", wishes[0].1.name),
            &format!("Use ALTER TABLE {name} SET ACCESS METHOD mixedcc first."),
        );
    }
    let mut o = Options::of(oid);
    change(&mut o, wishes);
    options::check_table(oid, &o);
    o.store(oid);
    let named = |n: &str| wishes.iter().any(|(_, e)| e.name == n);
    Apply { protocol: named("protocol"), policy: named("waiting_policy"), ..Apply::default() }
}

/// Locks the table for a statement with options of ours. What its name means now is what is checked
/// and changed: another session may give the name to another table until then. `None`: it does not
/// exist.
fn lock(s: &pg_sys::AlterTableStmt) -> Option<Oid> {
    let flags = if s.missing_ok { pg_sys::RVROption::RVR_MISSING_OK } else { 0 };
    // SAFETY: the statement has a range variable. The callback checks the owner before the lock is
    // taken.
    let oid = unsafe {
        pg_sys::RangeVarGetRelidExtended(
            s.relation,
            pg_sys::AccessExclusiveLock as i32,
            flags,
            Some(RangeVarCallbackOwnsRelation),
            std::ptr::null_mut(),
        )
    };
    if oid == pg_sys::InvalidOid {
        ErrorReport::new(
            PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION,
            format!("relation \"{}\" does not exist, skipping", name_of(s.relation)),
            "mixedcc",
        )
        .report(PgLogLevel::NOTICE);
        return None;
    }
    Some(oid)
}

/// Locks a table that is of ours, or has descendants of ours, as the command will: its storage
/// stays the same until the command changes it. Returns the table that the name means now.
fn lock_as_it_will(s: &pg_sys::AlterTableStmt, oid: Oid) -> Option<Oid> {
    if !members(oid).into_iter().any(|oid| ours(oid).is_some()) {
        return Some(oid);
    }
    // SAFETY: a valid statement of ALTER TABLE, which both functions only read. They are those
    // that ProcessUtility calls, in this order; the second one checks the rights first.
    let oid = unsafe {
        let mode = pg_sys::AlterTableGetLockLevel(s.cmds);
        pg_sys::AlterTableLookupRelation(std::ptr::from_ref(s).cast_mut(), mode)
    };
    (oid != pg_sys::InvalidOid).then_some(oid)
}

/// ALTER TABLE; ALTER FOREIGN TABLE, which may have descendants of ours; ALTER TYPE of the
/// attributes of a composite type, which may change tables of the type.
pub fn table(call: Call) {
    use pg_sys::ObjectType::{OBJECT_FOREIGN_TABLE, OBJECT_MATVIEW, OBJECT_TABLE, OBJECT_TYPE};
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let s = unsafe { &*call.node::<pg_sys::AlterTableStmt>() };
    let tables = matches!(s.objtype, OBJECT_TABLE | OBJECT_MATVIEW | OBJECT_FOREIGN_TABLE | OBJECT_TYPE);
    let Some(am) = our_am_if(tables) else {
        return call.run();
    };
    let found = relid(s.relation);
    if let Some(oid) = found {
        check(s, oid);
    }
    let wishes = hold(wishes(s));
    // Wrong values are found before anything is done.
    change(&mut Options::default(), wishes);
    let rv = s.relation;
    let (call, locked) = if wishes.is_empty() { (call, None) } else { prepare(call) };
    if !wishes.is_empty() && locked.is_none() {
        return;
    }
    let found = locked.or_else(|| found.and_then(|oid| lock_as_it_will(s, oid)));
    let before: &Vec<Before> = hold(found.map_or(Vec::new(), |oid| storages(oid, am)));
    // SAFETY: the node is an `AlterTableStmt`: that of the call that is run.
    let method = new_method(unsafe { &*call.node::<pg_sys::AlterTableStmt>() });
    relation::expect_conversion(found.zip(method.and_then(|m| method_of(&m))));
    found.map_or(Vec::new(), members).into_iter().for_each(load_first);
    altered::begin();
    // Also where nothing is left of it: for its event triggers, and the hooks of other libraries.
    call.run();
    altered::end();
    relation::expect_conversion(None);
    let Some(oid) = found.or_else(|| relid(rv)) else {
        return;
    };
    if class(oid).is_none() {
        return;
    }
    let apply = if wishes.is_empty() { Apply::default() } else { grant(oid, &name_of(rv), wishes) };
    for member in members(oid) {
        follow(member, before, if member == oid { apply } else { Apply::default() });
    }
}

/// Runs a command that writes a table anew, if it is there, and that the user may do: what we keep
/// of the table follows.
pub fn rewriting(oid: Oid, run: impl FnOnce()) {
    // SAFETY: any OID can be locked; a table that is dropped meanwhile has no class.
    unsafe { pg_sys::LockRelationOid(oid, pg_sys::AccessExclusiveLock as i32) };
    let Some(am) = super::our_am() else { return run() };
    let before: &Vec<Before> = hold(storages(oid, am));
    load_first(oid);
    cluster::expect(oid, run);
    if class(oid).is_some() {
        follow(oid, before, Apply::default());
    }
}

/// Loads the rows of a permanent table that the command may change: they cannot be loaded in the
/// middle of it, when the key is another one. An unlogged table that starts empty is made for the
/// key as it was committed. What the user may not do, or what is too large, the command itself
/// finds.
pub(super) fn load_first(oid: Oid) {
    // SAFETY: a variable of shared memory; and catalog look-ups, in which any OID is answered. The
    // relation is open, and keeps its lock while it is loaded. ERRORs unwind.
    unsafe {
        let user = pg_sys::GetUserId();
        let may = || compat::owns_relation(oid, user) || compat::may_maintain(oid, user);
        if pg_sys::RecoveryInProgress() || ours(oid).is_none() || !may() {
            return;
        }
        let rel = pg_sys::try_relation_open(oid, pg_sys::AccessShareLock as i32);
        if rel.is_null() {
            return;
        }
        if rel::is_ours(rel) {
            if compat::is_permanent(rel) {
                let _ = rel::table_if_it_fits(rel);
            } else if !save::is_missing(rel) {
                rel::info(rel);
            }
        }
        pg_sys::relation_close(rel, pg_sys::AccessShareLock as i32);
    }
}

/// The OID of an access method. `None`: there is none of this name, as the command will say.
fn method_of(name: &str) -> Option<Oid> {
    let name = crate::pg::text::write(name);
    // SAFETY: catalog look-up: any name is answered, as it may be missing.
    let oid = unsafe { pg_sys::get_am_oid(name.as_ptr(), true) };
    (oid != pg_sys::InvalidOid).then_some(oid)
}

fn our_am_if(wanted: bool) -> Option<Oid> {
    if wanted {
        super::our_am()
    } else {
        None
    }
}

/// The call without our options, and the table, which is locked here.
fn prepare(call: Call) -> (Call, Option<Oid>) {
    must_be_writable(c"ALTER TABLE");
    let call = call.writable();
    // SAFETY: the node is an `AlterTableStmt` of a `writable` call, which we may change.
    let s = unsafe { &mut *call.node::<pg_sys::AlterTableStmt>() };
    let locked = lock(s);
    if let Some(oid) = locked {
        check(s, oid);
    }
    strip(s);
    (call, locked)
}

/// ALTER TABLE ... RENAME COLUMN, ALTER TYPE ... RENAME ATTRIBUTE: the partition key follows. ALTER
/// DATABASE ... RENAME: its loaders leave.
pub fn rename(call: Call) {
    use pg_sys::ObjectType::{OBJECT_ATTRIBUTE, OBJECT_COLUMN, OBJECT_DATABASE};
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let s = unsafe { &*call.node::<pg_sys::RenameStmt>() };
    if s.renameType == OBJECT_DATABASE {
        databases::rename(&text(s.subname).unwrap_or_default());
    }
    let column = matches!(s.renameType, OBJECT_COLUMN | OBJECT_ATTRIBUTE);
    if our_am_if(column).is_none() {
        return call.run();
    }
    call.run();
    // Its own lock keeps the name from others from now on.
    let found = relid(s.relation);
    let (Some(oid), Some(from), Some(to)) = (found, text(s.subname), text(s.newname)) else {
        return;
    };
    // SAFETY: the command has run in this transaction; its new name is seen from the next command
    // on.
    unsafe { pg_sys::CommandCounterIncrement() };
    for member in members(oid) {
        if ours(member).is_none() {
            continue;
        }
        let mut o = Options::of(member);
        let key = o.partition_by.iter_mut().flatten().find(|c| **c == from);
        if let Some(c) = key {
            *c = to.clone();
            o.store(member);
        }
    }
}
