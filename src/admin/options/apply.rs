//! Puts a table's options in use: repartitions it in place where the wanted map differs.

use super::{Method, Options, BUILT_IN_POLICY, BUILT_IN_PROTOCOL};
use crate::access::tuple;
use crate::keys::partkey::{self, PartKey};
use crate::pg::attempt::attempt;
use crate::pg::errors::complain;
use crate::pg::owner::as_owner;
use crate::pg::{compat, text};
use crate::state::errors::ok;
use crate::state::making::Making;
use crate::state::xact;
use crate::state::{rel, shmem, stop};
use mixedcc_engine::partition::{Partition, PartitionMap, Tuning};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::record::{Version, REC_USED};
use mixedcc_engine::{Policy, Protocol, ProtocolSet, RecordRef, Table};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::*;
use std::ptr::NonNull;

/// Most columns of a partition key.
const MAX_COLUMNS: usize = 32;

/// What `sync` changes besides the map: the initial protocol and policy count only when the table
/// is new or rewritten, or when they were set just now, for `mixedcc.set_protocol` may have changed
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Apply {
    /// Put all partitions under the initial protocol.
    pub protocol: bool,
    /// Give all partitions the initial waiting policy.
    pub policy: bool,
    /// Make no index in memory that nbtree can answer: a command that drops one must not need
    /// memory.
    pub drops: bool,
    /// If the options do not fit the table any more, it gets one partition. Else that is an error.
    pub lenient: bool,
}

impl Apply {
    /// Both.
    pub const ALL: Apply = Apply { protocol: true, policy: true, drops: false, lenient: false };
    /// An index was dropped, or a column.
    pub const DROPS: Apply = Apply { protocol: false, policy: false, drops: true, lenient: true };
}

/// What the options ask for.
struct Wanted {
    n: u32,
    spec: Vec<u8>,
    protocol: Protocol,
    policy: Policy,
    tuning: Tuning,
}

/// Refuses options that do not fit the table.
pub fn check_table(relid: Oid, o: &Options) {
    // SAFETY: the relation is open while the closure runs.
    with_relation(relid, |rel| unsafe {
        must_be_ours(rel);
        as_owner(rel, || wanted(rel, o));
    });
}

/// Refuses relations that are no tables of ours. For users who may have no right on it: it is
/// locked for this moment only.
pub fn check_is_ours(relid: Oid) {
    // SAFETY: the relation is open while `must_be_ours` runs.
    let check = |rel| unsafe { must_be_ours(rel) };
    if with_relation_until(relid, pg_sys::AccessShareLock, check).is_none() {
        crate::pg::relations::no_such(relid);
    }
}

/// # Safety
/// An open relation.
unsafe fn must_be_ours(rel: pg_sys::Relation) {
    // SAFETY: `rel` is open (contract of this function).
    let other = unsafe { (!rel::is_ours(rel)).then(|| name_of(rel)) };
    if let Some(name) = other {
        complain(
            PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
            &format!("\"{name}\" is not a mixedcc table"),
            "Create the table USING mixedcc, or use ALTER TABLE ... SET ACCESS METHOD mixedcc.",
        );
    }
}

/// Runs `f` with a relation, whose lock stays until the transaction ends. `None`: there is no such
/// relation.
fn with_relation<R>(relid: Oid, f: impl FnOnce(pg_sys::Relation) -> R) -> Option<R> {
    with_relation_until(relid, pg_sys::NoLock, f)
}

/// The same. `unlock`: the lock that is given up behind `f`.
fn with_relation_until<R>(relid: Oid, unlock: u32, f: impl FnOnce(pg_sys::Relation) -> R) -> Option<R> {
    // SAFETY: the relation is closed here, or by the resource owner after an ERROR; `f` gets it
    // open.
    unsafe {
        let rel = pg_sys::try_relation_open(relid, pg_sys::AccessShareLock as i32);
        if rel.is_null() {
            return None;
        }
        let r = f(rel);
        pg_sys::relation_close(rel, unlock as i32);
        Some(r)
    }
}

/// # Safety
/// An open relation.
unsafe fn name_of(rel: pg_sys::Relation) -> String {
    // SAFETY: `rel` is open (contract of this function); its name is a C string.
    unsafe { text::read((*(*rel).rd_rel).relname.data.as_ptr()) }
}

/// Columns of the primary key, in its order.
///
/// # Safety
/// An open relation.
unsafe fn primary_key(rel: pg_sys::Relation) -> Vec<i16> {
    let mut out = Vec::new();
    // SAFETY: `rel` is open (contract of this function). The list is a copy, freed once. A row of
    // the catalog is released after its last use.
    unsafe {
        let list = pg_sys::RelationGetIndexList(rel);
        for oid in pgrx::PgList::<core::ffi::c_void>::from_pg(list).iter_oid() {
            let tup = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::INDEXRELID as i32, oid.into());
            if tup.is_null() {
                continue;
            }
            let form = pg_sys::GETSTRUCT(tup).cast::<pg_sys::FormData_pg_index>();
            if (*form).indisprimary && (*form).indisvalid {
                out = (*form).indkey.values.as_slice((*form).indnkeyatts as usize).to_vec();
            }
            pg_sys::ReleaseSysCache(tup);
        }
        pg_sys::list_free(list);
    }
    out
}

/// Numbers of named columns.
///
/// # Safety
/// An open relation.
unsafe fn columns(rel: pg_sys::Relation, names: &[String]) -> Vec<i16> {
    let mut out: Vec<i16> = Vec::new();
    // SAFETY: `rel` is open (contract of this function), and keeps its descriptor.
    let desc = unsafe { (*rel).rd_att };
    // SAFETY: `desc` is the descriptor of an open relation, with `natts` columns.
    let atts = || unsafe { (0..(*desc).natts as usize).map(|i| compat::attribute(desc, i)) };
    for name in names {
        let found = atts().find(|a| {
            // SAFETY: names in a descriptor end with a zero byte.
            !a.attisdropped && unsafe { text::read(a.attname.data.as_ptr()) } == *name
        });
        let Some(a) = found else {
            complain(
                PgSqlErrorCode::ERRCODE_UNDEFINED_COLUMN,
                // SAFETY: `rel` is open (contract of this function).
                &format!("column \"{name}\" of the partition key of \"{}\" does not exist", unsafe { name_of(rel) }),
                "Name columns of the table in mixedcc.partition_by.",
            )
        };
        if out.contains(&a.attnum) {
            complain(
                PgSqlErrorCode::ERRCODE_DUPLICATE_COLUMN,
                &format!("column \"{name}\" appears twice in mixedcc.partition_by"),
                "",
            );
        }
        out.push(a.attnum);
    }
    if out.len() > MAX_COLUMNS {
        complain(
            PgSqlErrorCode::ERRCODE_TOO_MANY_COLUMNS,
            &format!("a partition key has at most {MAX_COLUMNS} columns"),
            "",
        );
    }
    out
}

/// A column of a partition key.
pub struct KeyColumn {
    /// Its name.
    pub name: String,
    /// Its type.
    pub typid: Oid,
}

/// What the rows of a table are partitioned by, or would be if it had several partitions.
pub struct Key {
    /// Hash or range.
    pub method: Method,
    /// In order.
    pub columns: Vec<KeyColumn>,
}

/// The partition key of a table of ours; `None` as long as it has none. Locks as [`check_is_ours`]
/// does.
pub fn partition_key(relid: Oid) -> Option<Key> {
    with_relation_until(relid, pg_sys::AccessShareLock, |rel| {
        let o = Options::of(relid);
        let method = method_of(&o);
        let column = |n: i16| {
            // SAFETY: `rel` is open while this closure runs, and `n` a column of it, as `key_of`
            // says. Its name ends with a zero byte.
            unsafe {
                let a = compat::attribute((*rel).rd_att, n as usize - 1);
                let name = text::read(a.attname.data.as_ptr());
                KeyColumn { name, typid: a.atttypid }
            }
        };
        // SAFETY: `rel` is open while this closure runs.
        let columns: Vec<_> = unsafe { key_of(rel, &o, method) }.into_iter().map(column).collect();
        (!columns.is_empty()).then_some(Key { method, columns })
    })?
}

fn method_of(o: &Options) -> Method {
    o.method.unwrap_or(if o.bounds.is_some() { Method::Range } else { Method::Hash })
}

/// Numbers of the key's columns: those that the options name, or the primary key's as far as the
/// method can use them.
///
/// # Safety
/// An open relation.
unsafe fn key_of(rel: pg_sys::Relation, o: &Options, method: Method) -> Vec<i16> {
    // SAFETY: `rel` is open (contract of this function), and keeps its descriptor. The numbers of
    // the primary key are those of columns of it.
    unsafe {
        let type_of = |a: i16| compat::attribute((*rel).rd_att, a as usize - 1).atttypid;
        let fits = |a: &i16| method == Method::Range || can_hash(type_of(*a));
        match &o.partition_by {
            Some(names) => columns(rel, names),
            None => primary_key(rel).into_iter().filter(fits).collect(),
        }
    }
}

fn base(o: &Options, n: u32, spec: Vec<u8>) -> Wanted {
    Wanted {
        n,
        spec,
        protocol: o.protocol.unwrap_or(BUILT_IN_PROTOCOL),
        policy: o.policy.unwrap_or(BUILT_IN_POLICY),
        tuning: o.tuning(),
    }
}

/// What the options mean for the table as it is now. Raises errors for what cannot be. This runs
/// code of the table's owner (INV-OWNER).
///
/// # Safety
/// An open relation.
unsafe fn wanted(rel: pg_sys::Relation, o: &Options) -> Wanted {
    let base = |n, spec| base(o, n, spec);
    let invalid = |m: &str, hint: &str| -> ! { complain(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, m, hint) };
    let method = method_of(o);
    // SAFETY: `rel` is open (contract of this function), and keeps its descriptor.
    let (desc, key) = unsafe { ((*rel).rd_att, key_of(rel, o, method)) };
    if method == Method::Hash {
        if o.bounds.is_some() {
            invalid(
                "mixedcc.bounds are for partition_method range",
                "Set mixedcc.partition_method = 'range', or reset mixedcc.bounds.",
            );
        }
        let n = o.partitions.unwrap_or(1);
        if key.is_empty() {
            return base(1, Vec::new());
        }
        // SAFETY: `desc` is the descriptor of an open relation.
        let spec = unsafe { PartKey::encode_hash(desc, &key) };
        return if n == 1 { base(1, Vec::new()) } else { base(n, spec) };
    }
    let Some(bounds) = &o.bounds else {
        invalid(
            "partition_method range needs mixedcc.bounds",
            "Example: mixedcc.bounds = '100, 200' makes three partitions.",
        )
    };
    let n = bounds.len() as u32 + 1;
    if o.partitions.is_some_and(|p| p != n) {
        invalid(
            &format!("{} bounds make {n} partitions, not {}", bounds.len(), o.partitions.unwrap_or(n)),
            "Leave out mixedcc.partitions.",
        );
    }
    match key.as_slice() {
        [] => base(1, Vec::new()),
        // SAFETY: `desc` is the descriptor of an open relation.
        [a] => base(n, unsafe { PartKey::encode_range(desc, *a, bounds) }),
        _ => invalid("partition_method range needs a key of one column", "Name the column in mixedcc.partition_by."),
    }
}

/// The same, for a table that has its options, and perhaps rows: what these cannot be any more is
/// one partition, with a warning. Commands that know nothing of options change the types of a key,
/// or drop its columns with them. The rows stay reachable.
///
/// # Safety
/// An open relation.
unsafe fn wanted_if_it_fits(rel: pg_sys::Relation, o: &Options) -> Wanted {
    // SAFETY: `rel` is open (contract of this function).
    match unsafe { attempt(|| wanted(rel, o)) } {
        Ok(wanted) => wanted,
        Err(why) => {
            // SAFETY: as above.
            let name = text::shown(&unsafe { name_of(rel) });
            let message = format!("mixedcc table \"{name}\" gets one partition: its options do not fit it any more");
            ErrorReport::new(why.sql_error_code(), message, "mixedcc")
                .set_detail(text::shown(why.message()))
                .set_hint("Use ALTER TABLE ... SET or RESET (mixedcc.partition_by, mixedcc.bounds).")
                .report(PgLogLevel::WARNING);
            base(o, 1, Vec::new())
        }
    }
}

/// Do the options of a table fit it? For a moment only it is locked.
pub fn fits(relid: Oid) -> bool {
    // SAFETY: the relation is open while the closure runs.
    let fits =
        |rel| unsafe { !rel::is_ours(rel) || as_owner(rel, || attempt(|| wanted(rel, &Options::of(relid)))).is_ok() };
    with_relation_until(relid, pg_sys::AccessShareLock, fits).unwrap_or(true)
}

/// Has the type a hash function, so that its columns can be in a hashed partition key?
pub fn can_hash(typid: Oid) -> bool {
    // SAFETY: a catalog look-up, which raises an ERROR for an unknown type; the entry lives as long
    // as the process.
    unsafe {
        let cache = pg_sys::lookup_type_cache(typid, (pg_sys::TYPECACHE_HASH_EXTENDED_PROC) as i32);
        (*cache).hash_extended_proc != pg_sys::InvalidOid && partkey::is_fixed(typid)
    }
}

fn new_map(w: &Wanted, field: u32) -> Making<NonNull<PartitionMap>> {
    let (e, slot, set) = (shmem::engine(), shmem::my_slot(), ProtocolSet::of(w.protocol));
    let mut map = ok(Table::new_map(&e, slot, w.n, field, &w.spec, set, w.policy));
    // SAFETY: INV-MAP: the map was made above. It is in no table yet, so there is no other
    // reference to it.
    unsafe { map.as_mut() }.set_tuning(&w.tuning);
    Making::map(map)
}

fn differs(map: &PartitionMap, w: &Wanted) -> bool {
    map.n != w.n || map.spec() != w.spec.as_slice()
}

/// Brings a table in line with its options and its primary key: after commands that may have
/// changed either.
pub fn sync(relid: Oid, apply: Apply) {
    // SAFETY: the relation is open while the closure runs.
    with_relation(relid, |rel| unsafe {
        if rel::is_ours(rel) {
            as_owner(rel, || bring_in_line(rel, apply));
        }
    });
}

/// Gives the partitions of a table that this transaction has written anew the protocols and pins of
/// those of its old storage. If they are of another number, then what all of those had in common.
pub fn inherit(relid: Oid, old: &PartitionMap) {
    // SAFETY: the relation is open while the closure runs, and of ours. This transaction has made
    // its storage and holds it exclusively.
    with_relation(relid, |rel| unsafe {
        let table = rel::info(rel).table;
        let map = table.map();
        let of = |p: &Partition| (p.switch.view().wanted, p.switch.view().pinned);
        let first = of(&old.partitions()[0]);
        if old.n != map.n && old.partitions().iter().any(|p| of(p) != first) {
            return;
        }
        for (i, p) in map.partitions().iter().enumerate() {
            let (wanted, pinned) = if old.n == map.n { of(&old.partitions()[i]) } else { first };
            ok(p.put(&shmem::engine(), wanted, Some(pinned)));
        }
        rel::keep_rules(table);
    });
}

/// # Safety
/// An open relation of ours.
unsafe fn bring_in_line(rel: pg_sys::Relation, apply: Apply) {
    // SAFETY: `rel` is open and of ours (contract of this function). With the lock no other
    // transaction is in the middle, and other backends forget what they know of the map.
    unsafe {
        let relid = (*rel).rd_id;
        let wanted = if apply.lenient { wanted_if_it_fits } else { wanted };
        let w = wanted(rel, &Options::of(relid));
        let map = rel::info(rel).table.map();
        let other = map.partitions().iter().any(|p| {
            (apply.protocol && p.switch.view().wanted != ProtocolSet::of(w.protocol))
                || (apply.policy && p.policy() != w.policy)
        }) || map.tuning() != w.tuning;
        if !other && !differs(map, &w) {
            return crate::access::primary::sync(rel, apply.drops);
        }
        pg_sys::LockRelationOid(relid, pg_sys::AccessExclusiveLock as i32);
        // A scan of this session goes on by the map that it has begun with.
        pg_sys::CheckTableNotInUse(rel, c"ALTER TABLE".as_ptr());
        xact::before_change();
        let table = rel::info(rel).table;
        if differs(table.map(), &w) {
            repartition(rel, table, &w, apply);
        } else {
            let new = rel::copy_map(table.map());
            set_all(*new, &w, apply);
            keep_counters(table.map(), *new);
            exchange(table, new, |_| {});
        }
        pg_sys::CacheInvalidateRelcacheByRelid(relid);
        crate::access::primary::sync(rel, apply.drops);
    }
}

fn set_all(mut map: NonNull<PartitionMap>, w: &Wanted, apply: Apply) {
    let e = shmem::engine();
    // SAFETY: INV-MAP: the map is a copy that is in no table yet, so there is no other reference to
    // it.
    unsafe {
        map.as_mut().set_tuning(&w.tuning);
        if apply.protocol {
            map.as_mut().set_declared(ProtocolSet::of(w.protocol));
        }
    }
    // SAFETY: INV-MAP: the map is a copy that is in no table yet; the exclusive reference is over.
    for p in unsafe { map.as_ref() }.partitions() {
        if apply.protocol {
            ok(p.put(&e, ProtocolSet::of(w.protocol), None));
        }
        if apply.policy {
            ok(p.set_policy(&e, w.policy));
        }
    }
}

/// The counters of a map's copy.
fn keep_counters(old: &PartitionMap, new: NonNull<PartitionMap>) {
    // SAFETY: INV-MAP: the map is a copy that is in no table yet.
    for (n, o) in unsafe { new.as_ref() }.partitions().iter().zip(old.partitions()) {
        n.stats.copy_from(&o.stats);
    }
}

/// Puts a map in use behind `fill`; an abort from then on goes back to the old one.
fn exchange(table: &'static Table, new: Making<NonNull<PartitionMap>>, fill: impl FnOnce(&PartitionMap)) {
    let map = *new;
    xact::begin_map(table, new);
    // SAFETY: INV-MAP: the transaction has the map, to its end.
    fill(unsafe { map.as_ref() });
    table.replace_map(map);
    rel::keep_rules(table);
}

/// Computes every record's partition in a new map.
///
/// # Safety
/// An open relation of ours, which the transaction holds exclusively, and its table.
unsafe fn repartition(rel: pg_sys::Relation, table: &'static Table, w: &Wanted, apply: Apply) {
    let old = table.map();
    let new = new_map(w, 1 - old.field);
    let first = &old.partitions()[0];
    // What all partitions have in common stays.
    let wanted = |p: &Partition| (p.switch.view().wanted, p.switch.view().pinned);
    let (protocol, pinned) = wanted(first);
    let same_protocol = old.partitions().iter().all(|p| wanted(p) == (protocol, pinned));
    let same_policy = old.partitions().iter().all(|p| p.policy() == first.policy());
    let e = shmem::engine();
    // SAFETY: INV-MAP: the map was made above, and lives as long as `new`.
    for p in unsafe { new.as_ref() }.partitions() {
        if same_protocol && !apply.protocol {
            ok(p.put(&e, protocol, Some(pinned)));
        }
        if same_policy && !apply.policy {
            ok(p.set_policy(&e, first.policy()));
        }
    }
    // SAFETY: `rel` is open, and held exclusively (contract of this function).
    exchange(table, new, |map| unsafe { fill(rel, table, map) });
}

/// Computes every record's partition in a map that is about to be in use.
///
/// # Safety
/// As for [`repartition`].
unsafe fn fill(rel: pg_sys::Relation, table: &'static Table, map: &PartitionMap) {
    // SAFETY: `rel` is open (contract of this function).
    let (key, natts) = unsafe { (PartKey::parse(rel, map), (*(*rel).rd_att).natts as usize) };
    let mut values = vec![Datum::from(0usize); natts];
    let mut nulls = vec![true; natts];
    for no in 0..table.len() {
        if no % 1024 == 0 {
            stop::reach("repartition-row");
            pgrx::check_for_interrupts!();
        }
        let Some(r) = RecordRef::find(table, no) else {
            continue;
        };
        let mut part = 0;
        if let Some(v) = row_of(r) {
            // SAFETY: the table is held exclusively (contract of this function), so no other
            // process changes or frees the version. The arrays have all columns. An ERROR aborts
            // the change.
            unsafe {
                tuple::deform(rel, v, values.as_mut_ptr(), nulls.as_mut_ptr());
                part = key.partition(values.as_ptr(), nulls.as_ptr());
            }
        }
        r.rec.part[map.field as usize].store(part, Ordering::Relaxed);
        count(r, map, part);
    }
}

/// The row of a record: our newest, or the newest committed one. `None`: there is none.
fn row_of(r: RecordRef) -> Option<*const Version> {
    if r.rec.state.load(Ordering::Acquire) != REC_USED {
        return None;
    }
    let txn = xact::txn();
    let own = txn.last_write(r).and_then(|n| txn.write(n)).map(|w| w.version.as_ptr().cast_const());
    // SAFETY: versions of used records are not freed under the exclusive lock of their table.
    own.into_iter().chain([r.rec.head().cast_const()]).find(|&v| !v.is_null() && unsafe { !(*v).is_tombstone() })
}

/// Adds a record's committed version to a partition's counters; what this transaction has written
/// is added when it commits.
fn count(r: RecordRef, map: &PartitionMap, part: u16) {
    let v = r.rec.head();
    if r.rec.state.load(Ordering::Acquire) != REC_USED || v.is_null() {
        return;
    }
    // SAFETY: `row_of` has the same table: versions of used records are not freed under the
    // exclusive lock of their table.
    if unsafe { (*v).csn() }.is_none() {
        return;
    }
    let s = map.partitions()[part as usize].stats.stripe(0);
    // SAFETY: the version is not freed, as above. It is not null, and allocated in the region.
    unsafe {
        s.rows.fetch_add(!(*v).is_tombstone() as u64, Ordering::Relaxed);
        s.versions.fetch_add(1, Ordering::Relaxed);
        let size = shmem::engine().region.usable_size(NonNull::new_unchecked(v.cast()));
        s.bytes.fetch_add(size as u64, Ordering::Relaxed);
    }
}

/// The map of a table that is registered at first use: as its options say.
///
/// # Safety
/// An open relation.
pub unsafe fn initial_map(rel: pg_sys::Relation) -> NonNull<PartitionMap> {
    // SAFETY: `rel` is open (contract of this function).
    let wanted = unsafe { as_owner(rel, || wanted_if_it_fits(rel, &Options::of((*rel).rd_id))) };
    new_map(&wanted, 0).done()
}
