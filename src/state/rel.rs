//! What a backend knows of a relation of ours: its table, key, indexed columns.

use crate::keys::partkey::PartKey;
use crate::pg::local::Local;
use crate::pg::{compat, guc, text};
use crate::state::above::above;
use crate::state::errors::ok;
use crate::state::making::Making;
use crate::state::{shmem, standby, xact};
use mixedcc_engine::index::{Primary, Reuse};
use mixedcc_engine::memory::OutOfMemory;
use mixedcc_engine::partition::{Partition, PartitionMap};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::range::Columns;
use mixedcc_engine::{ProtocolSet, Table};
use pgrx::pg_sys;
use std::cell::Cell;
use std::ops::Range;
use std::ptr::NonNull;

mod attach;
mod indexes;
pub use attach::{catch_up, create_anew, known_table_of, load_if_free, make_anew, table_if_it_fits, table_of};
pub use indexes::{Active, Kept, PrimaryKey, Uniques};

/// Private knowledge of a relation, rebuilt when its relation cache entry is.
pub struct RelInfo {
    /// The table.
    pub table: &'static Table,
    /// Its map when this was built.
    pub map: *const PartitionMap,
    /// Where that has its partitions.
    partitions: Range<*const Partition>,
    /// Name of the storage.
    pub key: [u32; 4],
    /// OID of the relation.
    pub oid: pg_sys::Oid,
    /// Its name, and its table's id: what an error says, without a look at a catalog.
    pub name: String,
    id: u64,
    /// How rows map to partitions.
    pub partkey: PartKey,
    /// Columns (by number - 1) in an index or the partition key: an update of them moves the row.
    pub moving: Vec<bool>,
    /// Must inserts, deletes and moves take a transaction id?
    pub needs_xid: bool,
    /// Its indexes that have ranges.
    pub active: Active,
    /// Its indexes in memory.
    pub uniques: Uniques,
    /// The era of the table, if it is one of a standby; else 0.
    era: u64,
    /// So many tables of the standby had been given up when this one was there.
    given_up: Cell<u64>,
    /// Is it in the list of the permanent tables that the transaction has used?
    used: Cell<bool>,
}

impl RelInfo {
    /// Is the table of a standby there, and of use? Any session may give it up, and no invalidation
    /// tells of that. If it is there, the pin of the transaction keeps it.
    fn is_there(&self) -> bool {
        let standby = &shmem::engine().shared.standby;
        if self.era != standby.era() {
            return false;
        }
        attach::pin_to_read(); // INV-TABLE
        let given_up = standby.given_up();
        if given_up == self.given_up.get() {
            return true;
        }
        let is_there = attach::is_there(self.key, self.table);
        if is_there {
            self.given_up.set(given_up);
        }
        is_there
    }

    fn is_current(&self) -> bool {
        (self.era == 0 || self.is_there())
            && std::ptr::eq(self.map, self.table.map())
            && self.uniques.generation == self.table.index_generation()
    }
}

#[repr(C)]
struct AmCache {
    info: *const RelInfo,
}

/// The infos of this process.
struct Infos {
    /// Of the process: one for each relation that it has used, as it was last built.
    live: Vec<Box<RelInfo>>,
    /// Of the transaction: those that were replaced in it. Scans may hold them.
    old: Vec<Box<RelInfo>>,
}

static INFOS: Local<Infos> = Local::new(Infos { live: Vec::new(), old: Vec::new() });

/// Frees what was replaced.
pub fn end_transaction() {
    // SAFETY: a process has one thread, and no other reference to `INFOS` is in use (contract of
    // `get_mut`). No scan outlives its transaction, so the replaced infos have no user.
    unsafe { INFOS.get_mut().old.clear() };
}

/// Is the relation one of ours?
///
/// # Safety
/// Null, or an open relation.
#[inline]
pub unsafe fn is_ours(rel: pg_sys::Relation) -> bool {
    // SAFETY: `rel` is null or open (contract of this function); the pointers are only compared.
    unsafe { !rel.is_null() && std::ptr::eq((*rel).rd_tableam, above().routine) }
}

/// Of the transaction: the permanent tables of ours that it has used, in whatever way. Some may be
/// there more than once.
static USED_PERMANENT: Local<Vec<&'static RelInfo>> = Local::new(Vec::new());

/// The permanent tables of ours that the transaction has used. Also if nothing is left of that, as
/// after ROLLBACK TO. The caller opens no relation while it keeps the iterator.
pub fn used_permanent() -> impl Iterator<Item = &'static RelInfo> {
    // SAFETY: a process has one thread, and no other reference to the list is in use (contract of
    // this function).
    unsafe { USED_PERMANENT.get_mut() }.iter().copied()
}

impl RelInfo {
    /// Has the transaction used this permanent table?
    pub fn is_used(&self) -> bool {
        self.used.get()
    }
}

#[cold]
fn note_used(info: &'static RelInfo) {
    xact::copies::check_table(info.table, || info.name.clone());
    info.used.set(true);
    // SAFETY: a process has one thread, and no other reference to the list is in use.
    unsafe { USED_PERMANENT.get_mut() }.push(info);
}

/// The transaction has ended.
pub fn forget_use() {
    // SAFETY: a process has one thread, and no other reference to the list is in use. Infos that
    // were replaced are freed after this.
    unsafe { USED_PERMANENT.get_mut() }.drain(..).for_each(|info| info.used.set(false));
}

/// The knowledge of a relation. Valid until the transaction ends. Every use of a table comes here
/// at its begin.
///
/// # Safety
/// An open relation of ours. An ERROR unwinds.
#[inline]
pub unsafe fn info(rel: pg_sys::Relation) -> &'static RelInfo {
    // SAFETY: `rel` is open and of ours (contract of this function).
    let mut info = unsafe { known_any(rel).unwrap_or_else(|| build(rel)) };
    if xact::is_kept(info.table) {
        // SAFETY: as above.
        info = unsafe { after_decided(rel) };
    }
    if info.table.recovered.load(Ordering::SeqCst) != 0 {
        xact::recovered::await_recovered(info);
    }
    if info.era != 0 {
        // SAFETY: `rel` is open, and this its table (contract of this function).
        unsafe { standby::make_ready(rel, info.table) };
    }
    if !info.used.get() && info.table.durable().is_some() {
        note_used(info);
    }
    info
}

/// The same, behind the changes of decided transactions (INV-REDEFINED).
///
/// # Safety
/// As for [`info`].
#[cold]
unsafe fn after_decided(rel: pg_sys::Relation) -> &'static RelInfo {
    xact::prepared::finish_decided();
    // SAFETY: the contract of this function.
    unsafe { known_any(rel).unwrap_or_else(|| build(rel)) }
}

/// A permanent table of a standby, as a transaction has used it. It may be gone by now.
pub struct Used {
    /// The relation.
    pub oid: pg_sys::Oid,
    /// Its storage then.
    pub key: [u32; 4],
    /// The era of the table.
    pub era: u64,
    /// The table, to be compared only.
    pub table: *const Table,
}

/// The permanent tables of a standby that the transaction has used.
pub fn used_live() -> Vec<Used> {
    // SAFETY: a process has one thread, and no other reference to the list is in use.
    let used = unsafe { USED_PERMANENT.get_mut() };
    let live = used.iter().filter(|info| info.era != 0);
    live.map(|info| Used { oid: info.oid, key: info.key, era: info.era, table: info.table }).collect()
}

/// The same, if it is known already, and can be used at once. A table of a standby may have to be
/// made ready, and one with recovered rows may have to be awaited (INV-AWAKE). Does not fail.
///
/// # Safety
/// A valid relation of ours.
#[inline]
pub unsafe fn known(rel: pg_sys::Relation) -> Option<&'static RelInfo> {
    // SAFETY: the contract of this function.
    unsafe { cached(rel) }.filter(|info| {
        let is_ready = info.era == 0 && info.is_current() && xact::recovered::lets_all_rows_go(info.table);
        is_ready && (info.used.get() || !xact::copies::has_begun())
    })
}

/// # Safety
/// A valid relation of ours.
#[inline]
unsafe fn known_any(rel: pg_sys::Relation) -> Option<&'static RelInfo> {
    // SAFETY: the contract of this function.
    unsafe { cached(rel) }.filter(|info| info.is_current())
}

/// The knowledge of before, of the relation's storage. It may not be current.
///
/// # Safety
/// A valid relation of ours.
#[inline]
unsafe fn cached(rel: pg_sys::Relation) -> Option<&'static RelInfo> {
    // SAFETY: `rel` is an open relation of ours (contract of this function). `rd_amcache` is null
    // or made by `remember`; its info lives in `INFOS` until the transaction ends, at least.
    unsafe {
        let c = (*rel).rd_amcache.cast::<AmCache>();
        let i: &RelInfo = &*c.as_ref()?.info;
        (i.key[2] == compat::storage_number(rel)).then_some(i)
    }
}

/// # Safety
/// An open relation of ours.
#[cold]
unsafe fn build(rel: pg_sys::Relation) -> &'static RelInfo {
    // INV-DECIDED: a prepared transaction may have made the table. Each process comes here after
    // that has committed, and before it writes in the table.
    xact::prepared::finish_decided();
    // SAFETY: `rel` is open and of ours (contract of this function). A column of an index has a
    // number up to `natts`, and the set is freed once, after its last use.
    unsafe {
        let key = compat::storage_key(&compat::storage_of(rel));
        let given_up = Cell::new(shmem::engine().shared.standby.given_up());
        let mut table = table_of(rel);
        if attach::give_up_other_key(rel, table) {
            table = table_of(rel);
        }
        xact::copies::check_table(table, || crate::pg::text::read((*(*rel).rd_rel).relname.data.as_ptr()));
        let era = table.durable().map_or(0, |d| d.live.era.load(Ordering::SeqCst));
        if era == 0 {
            standby::make_ready(rel, table);
        }
        note_name(rel, table);
        let natts = (*(*rel).rd_att).natts as usize;
        let partkey = PartKey::parse(rel, table.map());
        let mut moving = vec![false; natts];
        let indexed = compat::indexed_columns(rel);
        let mut a = -1;
        loop {
            a = pg_sys::bms_next_member(indexed, a);
            if a < 0 {
                break;
            }
            let no = a + pg_sys::FirstLowInvalidHeapAttributeNumber;
            if no == 0 {
                moving.iter_mut().for_each(|m| *m = true); // a whole-row reference
            } else if no > 0 {
                moving[no as usize - 1] = true;
            }
        }
        pg_sys::bms_free(indexed);
        let uniques = Uniques::of(table, || compat::primary_key_index(rel));
        for c in partkey.columns().chain(uniques.all().iter().flat_map(|k| k.columns())) {
            moving[c as usize - 1] = true;
        }
        let of = |moves: bool| (1..).zip(&moving).filter(move |(_, m)| **m == moves).map(|(no, _)| Columns::of(no));
        let [fixed, others] = [true, false].map(|moves| of(moves).fold(Columns::NONE, Columns::and));
        table.changing.set_fixed(fixed, others);
        let info = Box::new(RelInfo {
            table,
            map: table.map(),
            partitions: table.map().partitions().as_ptr_range(),
            key,
            oid: (*rel).rd_id,
            name: crate::pg::text::read((*(*rel).rd_rel).relname.data.as_ptr()),
            id: table.id,
            partkey,
            moving,
            needs_xid: needs_xid(rel),
            active: Default::default(),
            uniques,
            era,
            given_up,
            used: Cell::new(false),
        });
        remember(rel, info)
    }
}

/// Tells processes without catalogs the name of the table: by the last session that has come to
/// know it.
///
/// # Safety
/// An open relation.
unsafe fn note_name(rel: pg_sys::Relation, table: &Table) {
    // SAFETY: `rel` is open (contract of this function). Catalog look-ups: any OID is answered, by
    // null or a C string.
    unsafe {
        let (space, name) = ((*(*rel).rd_rel).relnamespace, (*(*rel).rd_rel).relname.data.as_ptr());
        let (database, space) = (pg_sys::get_database_name(pg_sys::MyDatabaseId), pg_sys::get_namespace_name(space));
        if !database.is_null() && !space.is_null() {
            // Read by processes without a database.
            let [database, space, name] = [database, space, name].map(|p| text::shown(&text::read(p)));
            table.name.set(&format!("{database}.{space}.{name}"));
        }
    }
}

/// A table in a message of a process that has no catalogs.
pub fn called(table: Option<&Table>, key: [u32; 4]) -> String {
    called_by(table.and_then(|t| t.name.get()), key)
}

/// The same, by the name that was noted for it.
pub fn called_by(name: Option<String>, key: [u32; 4]) -> String {
    match name {
        Some(name) => format!("table \"{name}\""),
        None => format!("the table in file {} of database {}", key[2], key[1]),
    }
}

/// # Safety
/// An open relation of ours, and the info that was built for it.
unsafe fn remember(rel: pg_sys::Relation, info: Box<RelInfo>) -> &'static RelInfo {
    // SAFETY: a process has one thread, and no other reference to `INFOS` is in use (contract of
    // `get_mut`). A box has a stable address, and is freed at the end of a transaction after it was
    // replaced. `rd_amcache` is null or made here, with room for an `AmCache`.
    unsafe {
        let Infos { live, old } = INFOS.get_mut();
        if let Some(i) = live.iter().position(|i| i.oid == info.oid) {
            old.push(live.swap_remove(i));
        }
        let p: *const RelInfo = &*info;
        live.push(info);
        if (*rel).rd_amcache.is_null() {
            (*rel).rd_amcache =
                pg_sys::MemoryContextAllocZero(pg_sys::CacheMemoryContext, std::mem::size_of::<AmCache>());
        }
        (*(*rel).rd_amcache.cast::<AmCache>()).info = p;
        &*p
    }
}

/// The info of a relation that a statement has opened before, by OID.
pub fn by_oid(oid: pg_sys::Oid) -> Option<&'static RelInfo> {
    // SAFETY: a process has one thread, and no other reference to `INFOS` is in use (contract of
    // `get_mut`). The box outlives the transaction, also if it is replaced in it.
    unsafe { INFOS.get_mut().live.iter().find(|i| i.oid == oid).map(|b| &*(&**b as *const RelInfo)) }
}

/// The info of a table that the running transaction has used, by the table's id. Takes no lock.
pub fn by_table_id(id: u64) -> Option<&'static RelInfo> {
    // SAFETY: a process has one thread, and no other reference to `INFOS` is in use (contract of
    // `get_mut`). Only the id is looked at: the tables of others may be gone.
    unsafe {
        let Infos { live, old } = INFOS.get_mut();
        live.iter().chain(old.iter()).find(|i| i.id == id).map(|b| &*(&**b as *const RelInfo))
    }
}

/// The relations whose partitions these are, which the running transaction has used. Others may be
/// among them: only addresses are looked at, because the tables of others may be gone.
pub fn of_partitions(all: impl Iterator<Item = &'static Partition> + Clone) -> impl Iterator<Item = pg_sys::Oid> {
    // SAFETY: a process has one thread, and no other reference to `INFOS` is in use (contract of
    // `get_mut`). The caller keeps the iterator only while no relation is opened.
    let Infos { live, old } = unsafe { INFOS.get_mut() };
    let infos = live.iter().chain(old.iter());
    infos.filter(move |i| all.clone().any(|p| i.partitions.contains(&std::ptr::from_ref(p)))).map(|i| i.oid)
}

/// Unique and exclusion checks wait for other transactions by their id; foreign keys ask by it
/// whether a row was written by this transaction.
///
/// # Safety
/// An open relation.
unsafe fn needs_xid(rel: pg_sys::Relation) -> bool {
    // SAFETY: `rel` is open (contract of this function). A row of the catalog is released after its
    // last use, and the list is a copy, freed once.
    unsafe {
        if !(*rel).trigdesc.is_null() {
            return true;
        }
        let list = pg_sys::RelationGetIndexList(rel);
        let mut needs = false;
        for oid in pgrx::PgList::<pg_sys::Oid>::from_pg(list).iter_oid() {
            let tup = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::INDEXRELID as i32, oid.into());
            if tup.is_null() {
                continue;
            }
            let form = pg_sys::GETSTRUCT(tup).cast::<pg_sys::FormData_pg_index>();
            needs |= (*form).indisunique || (*form).indisexclusion;
            pg_sys::ReleaseSysCache(tup);
        }
        pg_sys::list_free(list);
        needs
    }
}

/// An operation that needs memory; again after a failure, when unused memory was freed.
pub fn with_memory<T, E>(make: impl Fn() -> Result<T, E>) -> Result<T, E> {
    make().or_else(|_| {
        shmem::engine().reclaim(shmem::my_slot());
        make()
    })
}

/// A map with one partition and the default protocol.
pub fn default_map() -> NonNull<PartitionMap> {
    let (e, set) = (shmem::engine(), ProtocolSet::of(guc::default_protocol()));
    ok(with_memory(|| Table::new_map(&e, shmem::my_slot(), 1, 0, &[], set, guc::default_policy())))
}

/// Makes and registers the table of a storage that this transaction makes. `like`: take over this
/// table's map and indexes in memory. `permanent`: the table's rows shall survive a crash.
pub fn create_table(key: [u32; 4], like: Option<&Table>, permanent: bool) -> &'static Table {
    let specs: Vec<Vec<u8>> = like.iter().flat_map(|t| t.uniques()).map(|(_, index)| index.spec().into()).collect();
    let map = like.map_or_else(default_map, |t| copy_map(t.map()).done());
    let t = create_table_with(key, map, &specs, permanent);
    if let Some(name) = like.and_then(|t| t.name.get()) {
        t.name.set(&name);
    }
    t
}

/// Makes and registers the table of a storage, with a map of its own. `specs`: of its indexes in
/// memory, which get the numbers from 0 on.
fn create_table_with(key: [u32; 4], map: NonNull<PartitionMap>, specs: &[Vec<u8>], permanent: bool) -> &'static Table {
    let (e, slot) = (shmem::engine(), shmem::my_slot());
    let t = make(key, map, specs, permanent).unwrap_or_else(|x| crate::state::errors::raise(x.into()));
    match shmem::register(t) {
        Some(true) => {}
        Some(false) => {
            // A storage of this name that was not unregistered: its number was reused.
            if let Some(old) = shmem::unregister(key) {
                old.retire(&e);
            }
            shmem::register(t);
        }
        None => {
            // SAFETY: `t` was made above, and was not registered: no other process can reach it
            // (INV-TABLE).
            unsafe { t.destroy(&e, slot) };
            crate::state::errors::raise(mixedcc_engine::Error::OutOfMemory);
        }
    }
    t
}

/// Makes the table of a storage to which the rows of another table move: with the same map, and the
/// indexes that the relation wants. Permanent as the other one is. No other process can find
/// it yet.
///
/// # Safety
/// A valid relation of ours, and its table.
pub unsafe fn make_like(rel: pg_sys::Relation, key: [u32; 4], old: &Table) -> Result<&'static Table, OutOfMemory> {
    // SAFETY: `rel` is an open relation of ours (contract of this function).
    let specs = unsafe { (above().index_specs)(rel) };
    let t = make(key, copy_map(old.map()).done(), &specs, old.durable().is_some())?;
    if let Some(name) = old.name.get() {
        t.name.set(&name);
    }
    Ok(t)
}

/// Makes the table of a storage, with a map of its own. No other process can find it yet.
fn make(
    key: [u32; 4],
    map: NonNull<PartitionMap>,
    specs: &[Vec<u8>],
    permanent: bool,
) -> Result<&'static Table, OutOfMemory> {
    let (e, slot) = (shmem::engine(), shmem::my_slot());
    let t = with_memory(|| Table::create(&e, slot, key, map)).inspect_err(|_| {
        // SAFETY: `map` was made for this table, and no table or process has it.
        unsafe { e.region.free(slot as usize, map.cast()) };
    })?;
    xact::anchors::note_table();
    complete(t, specs, permanent).inspect_err(|_| {
        // SAFETY: `t` was made above, and is not registered: no other process can reach it
        // (INV-TABLE).
        unsafe { t.destroy(&e, slot) };
    })?;
    Ok(t)
}

/// Gives a new table its indexes, and what a permanent one has beside its records.
fn complete(t: &'static Table, specs: &[Vec<u8>], permanent: bool) -> Result<(), OutOfMemory> {
    let (e, slot) = (shmem::engine(), shmem::my_slot());
    for (nth, spec) in specs.iter().enumerate() {
        t.set_unique(nth, with_memory(|| Primary::create(&e, slot, 0, Reuse::Vacuum, spec))?);
    }
    if permanent {
        with_memory(|| t.make_durable(&e, slot, true))?;
    }
    Ok(())
}

/// A copy of a map without its partitions' counters. Switches under way are over in it.
pub fn copy_map(m: &PartitionMap) -> Making<NonNull<PartitionMap>> {
    let e = shmem::engine();
    let first = &m.partitions()[0];
    let mut new = ok(Table::new_map(&e, shmem::my_slot(), m.n, m.field, m.spec(), first.protocols(), first.policy()));
    // SAFETY: `new` was made above (INV-MAP): no other process can reach it, and no other reference
    // is in use.
    unsafe {
        new.as_mut().set_tuning(&m.tuning());
        new.as_mut().set_declared(m.declared());
    }
    let new = Making::map(new);
    // SAFETY: `new` was made above (INV-MAP), and the exclusive reference is over.
    let parts = unsafe { new.as_ref() }.partitions();
    for (n, o) in parts.iter().zip(m.partitions()) {
        let v = o.switch.view();
        ok(n.put(&e, v.wanted, Some(v.pinned)));
        ok(n.set_policy(&e, o.policy()));
    }
    new
}

/// The protocols of a table's partitions have changed: the next round keeps them in its meta page.
pub fn keep_rules(table: &Table) {
    if let Some(durable) = table.durable() {
        durable.set_flag();
    }
}

/// Notes that the transaction uses a table of ours (see `mixedcc.mixed_serializable`).
pub fn note_use() {
    xact::touched().ours = true;
}
