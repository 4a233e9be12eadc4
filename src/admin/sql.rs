//! Functions of the schema `mixedcc`. Their SQL declarations are in `admin/sql/objects.sql`.

use crate::admin::annotate;
use crate::pg::errors::complain;
use crate::pg::values::{fit, fit_quietly, Value};
use crate::pg::{compat, guc, relations, text};
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::rel::{self, RelInfo};
use crate::state::{shmem, stop, xact};
use mixedcc_engine::partition::{Partition, WaitReason};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::{AbortReason, Table};
use pgrx::iter::TableIterator;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

mod advice;
mod bypass;
mod choice;
mod durability;
mod estimate;
mod groups;
mod loads;
mod memory;
mod primary;
pub mod range_scan;
pub mod ranges;
mod standby;
mod stats;
mod switches;
mod tables;

/// A relation that is open until this is dropped, and the lock that is given up then (`NoLock`: it
/// stays to the end of the transaction).
struct Open(pg_sys::Relation, u32);

impl Open {
    /// What this process knows of the table.
    fn info(&self) -> &'static RelInfo {
        // SAFETY: the relation is open until this is dropped, and of ours: what opens it sees to
        // that.
        unsafe { rel::info(self.0) }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: `open_until` or `quietly` has opened the relation, and this closes it once. When
        // an error unwinds, the resource owner closes it instead.
        unsafe {
            if !std::thread::panicking() {
                pg_sys::relation_close(self.0, self.1 as i32);
            }
        }
    }
}

/// An argument, or the error that NULL is.
fn given<T>(argument: Option<T>, what: &str) -> T {
    match argument {
        Some(v) => v,
        None => complain(PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED, &format!("the {what} must not be null"), ""),
    }
}

/// Opens a table of ours, or raises an error. Its lock stays to the end of the transaction.
fn open(oid: Oid, lock: u32) -> Open {
    open_until(oid, lock, pg_sys::NoLock)
}

/// Opens a table of ours for a user who may have no right on it, as `pg_relation_size` does: it is
/// locked only as long as it is open.
fn open_briefly(oid: Oid) -> Open {
    open_until(oid, pg_sys::AccessShareLock, pg_sys::AccessShareLock)
}

fn open_until(oid: Oid, lock: u32, unlock: u32) -> Open {
    // SAFETY: any OID is answered, by null if there is no such relation. `Open` closes it.
    let r = unsafe { pg_sys::try_relation_open(oid, lock as i32) };
    if r.is_null() {
        relations::no_such(oid);
    }
    let open = Open(r, unlock);
    // SAFETY: `r` is open until `open` is dropped.
    if !unsafe { rel::is_ours(r) } {
        complain(
            PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
            &format!("\"{}\" is not a mixedcc table", relations::name(oid)),
            "Name a table that was created USING mixedcc.",
        );
    }
    // SAFETY: `r` is open until `open` is dropped.
    unsafe { crate::access::altered::must_fit(r, (*r).rd_att) };
    open
}

/// Is the user a member of `mixedcc.admin_role`?
fn is_admin() -> bool {
    let admin = guc::ADMIN_ROLE.get().filter(|r| !r.is_empty());
    // SAFETY: `role` is a C string. The look-ups answer `InvalidOid` for a role that is not there.
    admin.is_some_and(|role| unsafe {
        let role = pg_sys::get_role_oid(role.as_ptr(), true);
        role != pg_sys::InvalidOid && pg_sys::has_privs_of_role(pg_sys::GetUserId(), role)
    })
}

/// Raises an error unless the user owns the table or is a member of `mixedcc.admin_role`. Before it
/// is locked: strangers must not lock it.
fn must_control(oid: Oid) {
    if is_admin() {
        return;
    }
    // SAFETY: catalog look-ups of a relation that was there just now. If it was dropped since, they
    // raise an ERROR, or give a null name, which aclcheck_error takes.
    unsafe {
        let kind = pg_sys::get_rel_relkind(oid);
        if kind != 0 && !compat::owns_relation(oid, pg_sys::GetUserId()) {
            let kind = pg_sys::get_relkind_objtype(kind);
            pg_sys::aclcheck_error(pg_sys::AclResult::ACLCHECK_NOT_OWNER, kind, pg_sys::get_rel_name(oid));
        }
    }
}

#[pg_extern(sql = false)]
fn table_size(table: Oid) -> i64 {
    let rel = open_briefly(table);
    rel.info().table.bytes() as i64
}

#[pg_extern(sql = false)]
fn set_stop_event(name: &str, action: &str) {
    // SAFETY: `superuser` looks at the current user's row, and answers any OID.
    if !unsafe { pg_sys::superuser() } {
        complain(PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE, "must be superuser to set stop events", "");
    }
    if !guc::STOP_EVENTS.get() {
        complain(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "stop events are off",
            "Set mixedcc.stop_events to on.",
        );
    }
    let act = match action.split_once(' ') {
        None if action == "off" => Some(stop::Action::Off),
        None if action == "error" => Some(stop::Action::Error),
        None if action == "panic" => Some(stop::Action::Panic),
        Some(("wait", key)) => key.trim().parse().ok().map(stop::Action::Wait),
        _ => None,
    };
    let Some(act) = act else {
        complain(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            &format!("unknown action \"{action}\""),
            "Actions: off, error, panic, or \"wait KEY\" with the key of an advisory lock.",
        )
    };
    if !stop::set(name, act) {
        let all: Vec<_> = stop::names().collect();
        complain(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            &format!("unknown stop event \"{name}\""),
            &format!("Events: {}.", all.join(", ")),
        );
    }
}

/// Tables of this database that this transaction can see.
fn visible_tables() -> Vec<(Oid, &'static Table)> {
    // The pin of the transaction keeps the tables (INV-TABLE).
    xact::txn();
    // SAFETY: within a transaction that can look at catalogs: an SQL function of this module calls
    // it. The pin keeps the tables (INV-TABLE).
    unsafe {
        let all = shmem::all(Some(pg_sys::MyDatabaseId.to_u32()));
        let named = all.into_iter().map(|t| (compat::relation_of(t.key), t));
        named.filter(|(oid, _)| *oid != pg_sys::InvalidOid).collect()
    }
}

/// A name as SQL writes it: `ReadChanged` is `read_changed`.
pub fn snake(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// Counters by reason, as JSON text; reasons that never happened are left out.
fn by_reason<R: std::fmt::Debug>(counters: impl Iterator<Item = (R, u64)>) -> String {
    let items: Vec<_> = counters.filter(|(_, n)| *n != 0).map(|(r, n)| (snake(&format!("{r:?}")), n)).collect();
    let items: Vec<_> = items.iter().map(|(r, n)| format!("\"{r}\": {n}")).collect();
    format!("{{{}}}", items.join(", "))
}

fn aborts(p: &Partition) -> String {
    by_reason(AbortReason::ALL.iter().zip(&p.stats.aborts).map(|(r, n)| (r, n.load(Ordering::Relaxed))))
}

fn waits(p: &Partition) -> String {
    by_reason(WaitReason::ALL.iter().map(|r| (r, p.stats.waits.of(*r))))
}

type PartitionRow = (Oid, i32, String, String, i64, i64, i64, i64, i64, i64, String, String, bool, i64, i64);

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn partition_rows() -> TableIterator<
    'static,
    (
        name!(table, Oid),
        name!(partition, i32),
        name!(protocol, String),
        name!(waiting_policy, String),
        name!(rows, i64),
        name!(versions, i64),
        name!(bytes, i64),
        name!(reads, i64),
        name!(writes, i64),
        name!(commits, i64),
        name!(waits, String),
        name!(aborts, String),
        name!(pinned, bool),
        name!(frozen, i64),
        name!(failed_thaws, i64),
    ),
> {
    let mut out: Vec<PartitionRow> = Vec::new();
    for (oid, table) in visible_tables() {
        for (no, p) in table.map().partitions().iter().enumerate() {
            let s = &p.stats;
            let words = (p.protocols().name(), p.policy().name().to_owned());
            let sizes = (s.sum(|s| &s.rows) as i64, s.sum(|s| &s.versions) as i64, s.sum(|s| &s.bytes) as i64);
            let reads = s.sum(|s| &s.reads) as i64;
            let (writes, commits) = (s.sum(|s| &s.writes) as i64, s.sum(|s| &s.commits) as i64);
            out.push((
                oid,
                no as i32,
                words.0,
                words.1,
                sizes.0,
                sizes.1,
                sizes.2,
                reads,
                writes,
                commits,
                waits(p),
                aborts(p),
                p.switch.view().pinned,
                s.frozen.load(Ordering::Relaxed) as i64,
                s.failed_thaws.load(Ordering::Relaxed) as i64,
            ));
        }
    }
    TableIterator::new(out)
}

#[pg_extern(sql = false)]
fn reset_stats(table: Option<Oid>) {
    if let Some(oid) = table {
        must_control(oid);
        drop(open(oid, pg_sys::AccessShareLock));
    }
    let admin = is_admin();
    // SAFETY: catalog look-ups: any OID is answered; after the first one the table is known.
    let owns = |oid| unsafe { pg_sys::get_rel_relkind(oid) != 0 && compat::owns_relation(oid, pg_sys::GetUserId()) };
    for (oid, t) in visible_tables() {
        let wanted = table.map_or_else(|| admin || owns(oid), |want| want == oid);
        if !wanted {
            continue;
        }
        for p in t.map().partitions() {
            p.reset_counts();
        }
        t.together.clear();
    }
}

#[pg_extern(sql = false)]
fn memory_usage() -> TableIterator<
    'static,
    (name!(total_bytes, i64), name!(used_bytes, i64), name!(free_bytes, i64), name!(live_bytes, i64)),
> {
    let u = shmem::engine().region.usage();
    let live: usize = u.classes.iter().map(|c| c.object_bytes * c.live).sum::<usize>() + u.run_bytes;
    TableIterator::once((u.total_bytes as i64, u.used_page_bytes as i64, u.free_page_bytes as i64, live as i64))
}

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn memory_node_rows() -> TableIterator<
    'static,
    (
        name!(node, i32),
        name!(system_node, i32),
        name!(total_bytes, i64),
        name!(used_bytes, i64),
        name!(free_bytes, i64),
    ),
> {
    let region = shmem::engine().region;
    let rows = shmem::nodes().iter().enumerate().map(move |(n, &system)| {
        let u = region.node_usage(n);
        (n as i32, system, region.node_range(n).len() as i64, u.used_page_bytes as i64, u.free_page_bytes as i64)
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}

#[pg_extern(sql = false)]
fn label_items(
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<'static, (name!(option, String), name!(value, Vec<u8>))> {
    // SAFETY: `fcinfo` is a call of this function (fmgr.h). Its SQL declaration has one text, and
    // is STRICT.
    let label = unsafe { text::of_datum((*fcinfo).args.as_slice(1)[0].value) };
    let items = crate::admin::options::Options::parse(&label).items();
    // A text has the layout of a bytea: these are bytes in the database's encoding.
    TableIterator::new(items.into_iter().map(|(n, v)| (n.to_owned(), text::bytes(&v))).collect::<Vec<_>>())
}

/// `declare_partition(regclass, VARIADIC "any")`.
#[pg_extern(sql = false)]
fn declare_partition(table: Option<Oid>, fcinfo: pg_sys::FunctionCallInfo) {
    let table = given(table, "table");
    // SAFETY: `fcinfo` is a call of this function (fmgr.h), with `nargs` arguments and the types
    // that its expression tells.
    let key: Vec<Value> = unsafe {
        let info = (*fcinfo).flinfo;
        if pg_sys::get_fn_expr_variadic(info) {
            crate::pg::errors::unsupported(
                "declare_partition does not take a VARIADIC array",
                "Give the values of the key one by one.",
            );
        }
        let n = (*fcinfo).nargs as usize;
        let args = (*fcinfo).args.as_slice(n);
        (1..n).map(|i| (args[i].value, args[i].isnull, pg_sys::get_fn_expr_argtype(info, i as i32))).collect()
    };
    let at = locate(table, &key);
    ok(xact::txn().declare(&PG, at));
}

/// The partition of a key, of a table that the user may use. Values may be of other types than the
/// key's columns, where these compare; unknown literals are read as the columns' types.
pub fn locate(table: Oid, key: &[Value]) -> Touch {
    may_use(table);
    let rel = open(table, pg_sys::AccessShareLock);
    rel::note_use();
    let info = rel.info();
    let columns: Vec<i16> = info.partkey.columns().collect();
    if info.table.map().n == 1 {
        return Touch { table: info.table, no: 0 };
    }
    if columns.len() != key.len() {
        complain(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            &format!(
                "the partition key of \"{}\" has columns: {}; values given: {}",
                relations::name(table),
                columns.len(),
                key.len()
            ),
            "Give a value for each column of the partition key, in its order.",
        );
    }
    // SAFETY: `rel` is open, and has the columns of its partition key. Values are of their types.
    let key: Vec<_> = columns.iter().zip(key).map(|(&c, &k)| unsafe { fit(rel.0, c, k) }).collect();
    // SAFETY: `fit` has made values of the types that they name. Equality is that of the columns'
    // default operator classes under their own collations.
    let Some(no) = (unsafe { info.partkey.partition_of_key(&key) }) else {
        complain(
            PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
            &format!("a value does not have the type of the partition key of \"{}\"", relations::name(table)),
            "Cast the values to the types of the partition key's columns.",
        )
    };
    Touch { table: info.table, no: no as u32 }
}

/// As `locate`, for an annotation that `owner` guarantees for: `None` where it does not fit the
/// table as it is now (then its partitions are locked when they are touched).
pub fn locate_for(table: Oid, key: &[Value], owner: Oid) -> Option<Touch> {
    if !has_rights(table, owner) {
        return None;
    }
    let rel = quietly(table)?;
    let info = rel.info();
    if info.table.map().n == 1 {
        return Some(Touch { table: info.table, no: 0 });
    }
    if info.partkey.columns().count() != key.len() {
        return None;
    }
    // SAFETY: `rel` is open, and has the columns of its partition key. Values are of their types.
    let fitted = |(c, k): (i16, &Value)| unsafe { fit_quietly(rel.0, c, *k) };
    let key = info.partkey.columns().zip(key).map(fitted).collect::<Option<Vec<_>>>()?;
    // SAFETY: `fit_quietly` has made values of the types that they name. Equality is that of the
    // columns' default operator classes under their own collations.
    let no = unsafe { info.partkey.partition_of_key(&key) }?;
    Some(Touch { table: info.table, no: no as u32 })
}

/// A partition that was located in an earlier transaction, if it is still there.
pub fn locate_again(table: Oid, id: u64, no: u32) -> Option<Touch> {
    let rel = quietly(table)?;
    let t = rel.info().table;
    (t.id == id && no < t.map().n).then_some(Touch { table: t, no })
}

/// Opens a table if it is ours.
fn quietly(table: Oid) -> Option<Open> {
    // SAFETY: any OID is answered, by null if there is no such relation. `Open` closes it.
    let r = unsafe { pg_sys::try_relation_open(table, pg_sys::AccessShareLock as i32) };
    if r.is_null() {
        return None;
    }
    // SAFETY: `r` is open until its `Open` is dropped.
    Some(Open(r, pg_sys::NoLock)).filter(|o| unsafe { rel::is_ours(o.0) })
}

fn has_rights(table: Oid, role: Oid) -> bool {
    let rights = pg_sys::ACL_SELECT | pg_sys::ACL_INSERT | pg_sys::ACL_UPDATE | pg_sys::ACL_DELETE;
    // SAFETY: catalog look-up: any OID is answered.
    unsafe { pg_sys::get_rel_relkind(table) != 0 && compat::relation_rights(table, role, rights) }
}

/// Raises an error unless the user has some right on the table's rows.
fn must_select(table: Oid) {
    // SAFETY: catalog look-ups of a relation that was there just now. If it was dropped since, they
    // raise an ERROR, or give a null name, which aclcheck_error takes.
    unsafe {
        let kind = pg_sys::get_rel_relkind(table);
        if kind != 0 && !compat::relation_rights(table, pg_sys::GetUserId(), pg_sys::ACL_SELECT) {
            let name = pg_sys::get_rel_name(table);
            pg_sys::aclcheck_error(pg_sys::AclResult::ACLCHECK_NO_PRIV, pg_sys::get_relkind_objtype(kind), name);
        }
    }
}

fn may_use(table: Oid) {
    // SAFETY: catalog look-ups of a relation that was there just now. If it was dropped since, they
    // raise an ERROR, or give a null name, which aclcheck_error takes.
    unsafe {
        let kind = pg_sys::get_rel_relkind(table);
        if kind != 0 && !has_rights(table, pg_sys::GetUserId()) {
            pg_sys::aclcheck_error(
                pg_sys::AclResult::ACLCHECK_NO_PRIV,
                pg_sys::get_relkind_objtype(kind),
                pg_sys::get_rel_name(table),
            );
        }
    }
}

/// `declaring(anyelement, oid, int)`: returns its first argument.
#[pg_extern(sql = false)]
fn declaring(fcinfo: pg_sys::FunctionCallInfo) -> Option<pgrx::AnyElement> {
    // SAFETY: `fcinfo` is a call of this function (fmgr.h), whose SQL declaration has three
    // arguments; the last two are read as their types only if they are not NULL.
    unsafe {
        let args = (*fcinfo).args.as_slice(3);
        let typid = pg_sys::get_fn_expr_argtype((*fcinfo).flinfo, 0);
        if !args[1].isnull && !args[2].isnull {
            let value = (args[0].value, args[0].isnull, pg_sys::getBaseType(typid));
            annotate::at_argument(Oid::from(args[1].value.value() as u32), args[2].value.value(), value);
        }
        pgrx::AnyElement::from_polymorphic_datum(args[0].value, args[0].isnull, typid)
    }
}

#[pg_extern(sql = false)]
fn annotate_function(function: Oid, table: Oid, fcinfo: pg_sys::FunctionCallInfo) {
    // SAFETY: `fcinfo` is a call of this function (fmgr.h). Its SQL declaration has three
    // arguments, is STRICT, and the last one is an array of texts.
    let arguments = unsafe { text::of_array((*fcinfo).args.as_slice(3)[2].value) };
    let arguments: Vec<_> = arguments.into_iter().map(|a| given(a, "name of an argument")).collect();
    annotate::add(function, table, &arguments);
}

#[pg_extern(sql = false)]
fn unannotate_function(function: Oid) {
    annotate::remove(function);
}

#[pg_extern(sql = false)]
fn annotation_items(
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<'static, (name!(table, Vec<u8>), name!(arguments, Vec<u8>))> {
    // SAFETY: `fcinfo` is a call of this function (fmgr.h). Its SQL declaration has one text, and
    // is STRICT.
    let label = unsafe { text::of_datum((*fcinfo).args.as_slice(1)[0].value) };
    // A superuser may write unchecked labels into the catalog: one wrong label must not hide the
    // others.
    let items = annotate::read_label(&label).unwrap_or_else(|why| {
        warning!("ignored a security label of a function: {}", text::shown(why.trim_end_matches('.')));
        annotate::Label::default()
    });
    // As in `label_items`.
    let of = |a: annotate::Annotation| (text::bytes(&a.table), text::bytes(&a.arguments.join(", ")));
    TableIterator::new(items.partitions.into_iter().map(of).collect::<Vec<_>>())
}
