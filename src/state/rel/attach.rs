//! First use of a storage that this incarnation of shared memory does not know. That is so after a
//! crash, after a shutdown that could not save the rows, and in a database copied from a template.
//! If rows were saved and are not here, the use is an ERROR (`save/absent.rs`).
//!
//! The rows of a permanent table are loaded from its files instead, and its indexes stay.
//!
//! A prepared transaction of before the start may have made an index that the catalogs do not show
//! yet: INV-MAKERS.
//!
//! **INV-ATTACH**: A table is registered only when no index of it has entries from before. One
//! backend resets the indexes, under a lock. Every user of the table, or of an index of it, comes
//! through here first, and holds no page of an index then. An index that is not ready may have no
//! init fork: CREATE INDEX CONCURRENTLY was cut off before its build. Nothing reads it or writes it
//! until REINDEX gives it a new storage.

use super::{create_table_with, make};
use crate::pg::compat::{self, Storage};
use crate::pg::errors::{complain, complain_with_detail};
use crate::pg::faults::{self, Fault};
use crate::pg::local::Local;
use crate::pg::owner::as_owner;
use crate::pg::{guc, text};
use crate::state::above::{above, TooLarge};
use crate::state::platform::{lock_tag, TAG_ATTACH};
use crate::state::{shmem, standby, xact};
use mixedcc_engine::csn::Csn;
use mixedcc_engine::memory::OutOfMemory;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::Table;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

/// The table of a relation; made empty, with its indexes, if it is not known.
///
/// # Safety
/// An open relation of ours. The process holds no page of an index of it.
pub unsafe fn table_of(rel: pg_sys::Relation) -> &'static Table {
    // SAFETY: `rel` is open and of ours, and no page of an index is held (contract of this
    // function).
    unsafe {
        let key = compat::storage_key(&compat::storage_of(rel));
        let table = find_to_read(key).unwrap_or_else(|| attach(rel));
        if table.note.load(Ordering::Relaxed) != 0 {
            warn(rel, table);
        }
        table
    }
}

/// The table of a relation if it is known. For callers that may hold pages of its indexes.
///
/// # Safety
/// An open relation.
pub unsafe fn known_table_of(rel: pg_sys::Relation) -> Option<&'static Table> {
    // SAFETY: `rel` is open (contract of this function).
    find(compat::storage_key(&unsafe { compat::storage_of(rel) }))
}

/// The table of a storage, if it is of use.
fn find(key: [u32; 4]) -> Option<&'static Table> {
    shmem::find(key).filter(|table| !standby::is_gone(table))
}

/// The same for a use of it. On a standby the pin of the transaction keeps it from now on
/// (INV-TABLE): others may give it up, without a lock of the relation. If there is none, the
/// transaction does not begin: its pin would keep what a load gives up.
fn find_to_read(key: [u32; 4]) -> Option<&'static Table> {
    if !standby::is_reader() {
        return find(key);
    }
    let pin = shmem::Pinned::new();
    let table = find(key)?;
    pin_to_read();
    pin.stays();
    Some(table)
}

/// The transaction is pinned, although it may have no snapshot of ours yet.
pub(super) fn pin_to_read() {
    xact::txn();
    xact::renew_pin();
}

/// Is this the table of a storage, and of use? It is only compared: it may be gone.
pub(super) fn is_there(key: [u32; 4], table: *const Table) -> bool {
    find(key).is_some_and(|there| std::ptr::eq(there, table))
}

/// Gives up the table of a storage, if it is of no use any more. The lock of INV-ATTACH is held.
fn give_up(key: [u32; 4]) {
    if shmem::find(key).is_some_and(standby::is_gone) {
        if let Some(table) = shmem::unregister(key) {
            table.retire(&shmem::engine());
        }
    }
}

/// Of the process: the era of the standby, and how many tables had been given up, when it has
/// looked for others.
static LOOKED: Local<(u64, u64)> = Local::new((0, 0));

/// Gives up all tables of a standby that are of no use any more, as after a restart of its primary
/// or its promotion. Their users may never come again. Where another process has the lock of
/// INV-ATTACH, it sees to that. Called before a table is loaded, and before the transaction has a
/// pin, if it is its first one: the pin would keep their memory.
fn give_up_old() {
    let standby = &shmem::engine().shared.standby;
    let state = (standby.era(), standby.given_up());
    if LOOKED.get() == state {
        return;
    }
    shmem::pinned(|| {
        for table in shmem::all(None).into_iter().filter(|table| standby::is_gone(table)) {
            if let Some(lock) = lock_storage(table.key, false) {
                give_up(table.key);
                unlock_storage(lock);
            }
        }
    });
    LOOKED.set(state);
}

/// Gives up the table of a standby whose keys in memory are other ones by now.
///
/// # Safety
/// An open relation, and its table.
pub unsafe fn give_up_other_key(rel: pg_sys::Relation, table: &'static Table) -> bool {
    let is_live = table.durable().is_some_and(|d| d.live.era.load(Ordering::SeqCst) != 0);
    // SAFETY: `rel` is open (contract of this function).
    if !is_live || has_specs(table, &unsafe { (above().index_specs)(rel) }) {
        return false;
    }
    if let Some(lock) = lock_storage(table.key, true) {
        if shmem::find(table.key).is_some_and(|there| std::ptr::eq(there, table)) {
            shmem::unregister(table.key);
            table.retire(&shmem::engine());
        }
        unlock_storage(lock);
    }
    true
}

/// Are these the specs of a table's indexes in memory, in whatever order?
pub fn has_specs(table: &Table, specs: &[Vec<u8>]) -> bool {
    let mut present = table.uniques().map(|(_, index)| index.spec());
    table.uniques().count() == specs.len() && present.all(|spec| specs.iter().any(|s| s == spec))
}

/// Brings the table of a standby to a CSN that is stable.
///
/// # Safety
/// An open relation, and its table.
pub unsafe fn catch_up(rel: pg_sys::Relation, table: &'static Table, csn: Csn) {
    if let Some(lock) = lock_storage(table.key, true) {
        if !find(table.key).is_some_and(|there| std::ptr::eq(there, table)) {
            standby::refuse_old();
        }
        // SAFETY: `rel` is open (contract of this function), and the lock is held.
        unsafe { (above().catch_up)(rel, table, csn) };
        unlock_storage(lock);
    }
}

/// Says once, to somebody and not to autovacuum, that a table starts empty.
///
/// # Safety
/// An open relation.
#[cold]
unsafe fn warn(rel: pg_sys::Relation, table: &Table) {
    // SAFETY: `rel` is open (contract of this function); its name is a C string.
    unsafe {
        if pg_sys::MyBackendType != pg_sys::BackendType::B_BACKEND && pg_sys::IsUnderPostmaster
            || table.note.swap(0, Ordering::SeqCst) == 0
        {
            return;
        }
        let name = crate::pg::text::shown(&crate::pg::text::read((*(*rel).rd_rel).relname.data.as_ptr()));
        ErrorReport::new(PgSqlErrorCode::ERRCODE_WARNING, format!("mixedcc table \"{name}\" starts empty"), "mixedcc")
            .set_detail("Its rows were in memory and are gone: the server crashed, could not save them at its last shutdown, or the database was copied from a template.")
            .report(PgLogLevel::WARNING);
    }
}

/// The table of a permanent relation, loaded if it is not known. An error: it does not fit.
///
/// # Safety
/// As for [`table_of`].
pub unsafe fn table_if_it_fits(rel: pg_sys::Relation) -> Result<&'static Table, TooLarge> {
    // SAFETY: the contract of this function.
    unsafe { known_table_of(rel).map_or_else(|| attach_locked(rel), Ok) }
}

/// # Safety
/// An open relation of ours. The process holds no page of an index of it.
#[cold]
unsafe fn attach(rel: pg_sys::Relation) -> &'static Table {
    // SAFETY: the contract of this function.
    match unsafe { attach_locked(rel) } {
        Ok(table) => table,
        // SAFETY: `rel` is open (contract of this function); its name is a C string.
        Err(x) => refuse_large(&unsafe { text::read((*(*rel).rd_rel).relname.data.as_ptr()) }, x),
    }
}

fn refuse_large(name: &str, x: TooLarge) -> ! {
    const MB: u64 = 1 << 20;
    let free = shmem::engine().region.usage().free_page_bytes as u64;
    complain_with_detail(
        PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
        &format!("mixedcc table \"{name}\" needs about {} MB of memory", x.need.div_ceil(MB)),
        &format!("mixedcc.memory is {} MB, of which {} MB are free.", guc::MEMORY_MB.get(), free / MB),
        "Its rows are safe in its files. Increase mixedcc.memory and restart the server, or drop other mixedcc tables.",
    )
}

/// The mode of the lock of INV-ATTACH.
fn alone() -> i32 {
    let mode = if faults::on(Fault::LoadedTwice) { pg_sys::AccessShareLock } else { pg_sys::ExclusiveLock };
    mode as i32
}

/// Takes the lock of INV-ATTACH of a storage. `None`: another process has it, and the caller does
/// not wait.
fn lock_storage(key: [u32; 4], waits: bool) -> Option<pg_sys::LOCKTAG> {
    #[cfg(feature = "faults")]
    faults::begin();
    let tag = lock_tag(key[1], key[2], key[0], TAG_ATTACH);
    // SAFETY: any tag can be locked. An ERROR unwinds and releases the lock; the next user starts
    // over.
    let got = unsafe { pg_sys::LockAcquire(&tag, alone(), false, !waits) };
    (got != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL).then_some(tag)
}

fn unlock_storage(tag: pg_sys::LOCKTAG) {
    // SAFETY: the lock of `lock_storage`, which this process holds.
    unsafe { pg_sys::LockRelease(&tag, alone(), false) };
}

/// # Safety
/// As for [`attach`].
unsafe fn attach_locked(rel: pg_sys::Relation) -> Result<&'static Table, TooLarge> {
    // SAFETY: `rel` is open (contract of this function). The lock makes this backend the only one
    // that resets the indexes, or loads the rows (INV-ATTACH).
    unsafe {
        if compat::is_permanent(rel) {
            await_prepared(rel);
        } else if crate::state::save::follows_shutdown() {
            xact::prepared::await_makers((*rel).rd_id); // INV-MAKERS
        }
        give_up_old();
        let key = compat::storage_key(&compat::storage_of(rel));
        let lock = lock_storage(key, true);
        give_up(key);
        let table = match find_to_read(key) {
            Some(table) => Ok(table),
            None if compat::is_permanent(rel) => load(rel),
            None => Ok(begin_empty(rel, key)),
        };
        lock.map(unlock_storage);
        match table {
            Err(_) if faults::on(Fault::LargeIsEmpty) => {
                shmem::unregister(key);
                Ok(create_anew(rel, key, true))
            }
            table => table,
        }
    }
}

/// Waits for prepared transactions of before the start of the server (INV-ASLEEP). Autovacuum does
/// not: it goes on with other tables.
///
/// # Safety
/// An open permanent relation of ours.
unsafe fn await_prepared(rel: pg_sys::Relation) {
    // SAFETY: `rel` is open (contract of this function); its name is a C string.
    unsafe {
        let waits = !compat::is_autovacuum();
        if xact::prepared::await_prepared((*rel).rd_id, waits) {
            return;
        }
        let name = text::shown(&text::read((*(*rel).rd_rel).relname.data.as_ptr()));
        complain_with_detail(
            PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE,
            &format!("the rows of mixedcc table \"{name}\" cannot be loaded yet"),
            "A transaction that was prepared before the server has started has used the table.",
            "Finish the transactions of pg_prepared_xacts.",
        );
    }
}

/// Loads a permanent relation, if it is not known and no other process loads it. Returns whether it
/// did. An error: it does not fit.
///
/// # Safety
/// An open permanent relation of ours. The process holds no page of an index of it.
pub unsafe fn load_if_free(rel: pg_sys::Relation) -> Result<bool, TooLarge> {
    // SAFETY: as in `attach_locked`.
    unsafe {
        let key = compat::storage_key(&compat::storage_of(rel));
        if !xact::prepared::await_prepared((*rel).rd_id, false) {
            return Ok(false);
        }
        give_up_old();
        let Some(lock) = lock_storage(key, false) else { return Ok(false) };
        give_up(key);
        let loaded = if find(key).is_some() { Ok(false) } else { load(rel).map(|_| true) };
        unlock_storage(lock);
        loaded
    }
}

/// Registers an unlogged table, which starts empty.
///
/// # Safety
/// As for [`attach`], under the lock of TAG_ATTACH.
unsafe fn begin_empty(rel: pg_sys::Relation, key: [u32; 4]) -> &'static Table {
    // SAFETY: `rel` is open, and this backend is the only one that resets the indexes (contract of
    // this function).
    unsafe {
        crate::state::save::refuse(rel);
        let committed = committed_indexes(rel);
        for IndexFile { storage, is_ready } in &committed.storages {
            if *is_ready || compat::has_init_fork(*storage) {
                compat::empty_index(*storage);
            }
        }
        // After pg_upgrade the init forks may say so of other indexes (INV-HOLLOW).
        let committed = committed_indexes(rel);
        let t = create_as_committed(rel, key, &committed);
        t.note.store(1, Ordering::SeqCst);
        if has_other_key(rel, &committed) {
            // If the transaction aborts, the table is not that of the key.
            xact::created(key);
        }
        t
    }
}

/// Loads a permanent table, as its owner (INV-OWNER).
///
/// # Safety
/// As for [`attach`], under the lock of TAG_ATTACH.
unsafe fn load(rel: pg_sys::Relation) -> Result<&'static Table, TooLarge> {
    // SAFETY: `rel` is open, and the lock is held (contract of this function). The list is a copy.
    unsafe {
        let may_be_indexed = xact::prepared::may_be_indexed((*rel).rd_id); // INV-MAKERS: it comes first
        let committed = committed_indexes(rel);
        if has_other_key(rel, &committed) {
            // The primary index would be that of the new key, also after ROLLBACK.
            complain(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                "the rows of a mixedcc table cannot be loaded in the transaction that has changed its key",
                "Read a row of the table in another transaction first, which loads all of them.",
            );
        }
        let list = pg_sys::RelationGetIndexList(rel);
        let indexed = may_be_indexed || !list.is_null() || !committed.storages.is_empty();
        pg_sys::list_free(list);
        as_owner(rel, || (above().load)(rel, indexed))
    }
}

/// Has this transaction, which excludes all others, taken the key away or changed it?
///
/// # Safety
/// An open relation.
unsafe fn has_other_key(rel: pg_sys::Relation, committed: &Committed) -> bool {
    // SAFETY: `rel` is open (contract of this function).
    unsafe {
        let alone = pg_sys::CheckRelationLockedByMe(rel, pg_sys::AccessExclusiveLock as i32, true);
        if !alone {
            return false;
        }
        let list = pg_sys::RelationGetIndexList(rel);
        let is_lost = committed.hollow.iter().any(|k| !pg_sys::list_member_oid(list, *k));
        pg_sys::list_free(list);
        is_lost || committed.key.is_some_and(|k| k != compat::primary_key_index(rel))
    }
}

/// Makes the table of a permanent relation as its options and its keys say. No other process
/// can find it yet.
///
/// # Safety
/// A valid relation of ours.
pub unsafe fn make_anew(rel: pg_sys::Relation, key: [u32; 4]) -> Result<&'static Table, OutOfMemory> {
    // SAFETY: `rel` is an open relation of ours (contract of this function).
    let (specs, map) = unsafe {
        // An index that is hollow may be in the middle of its build.
        let committed = committed_indexes(rel);
        ((above().committed_specs)(rel, &committed.hollow), (above().initial_map)(rel))
    };
    make(key, map, &specs, false)
}

/// Makes and registers the unlogged table of a storage, as its options and its keys say.
unsafe fn create_as_committed(rel: pg_sys::Relation, key: [u32; 4], committed: &Committed) -> &'static Table {
    // SAFETY: `rel` is an open relation of ours: contract of `begin_empty`.
    let (specs, map) = unsafe { ((above().committed_specs)(rel, &committed.hollow), (above().initial_map)(rel)) };
    create_table_with(key, map, &specs, false)
}

/// Makes and registers the table of a storage, as its options and its keys say. `permanent`:
/// the storage is one that this transaction makes, and the rows shall survive a crash.
///
/// # Safety
/// A valid relation of ours.
pub unsafe fn create_anew(rel: pg_sys::Relation, key: [u32; 4], permanent: bool) -> &'static Table {
    // SAFETY: `rel` is an open relation of ours (contract of this function).
    let (specs, map) = unsafe { ((above().index_specs)(rel), (above().initial_map)(rel)) };
    create_table_with(key, map, &specs, permanent)
}

/// The indexes of a relation as they are committed: those that this transaction has dropped or
/// replaced come back if it aborts, and those that it has made are new and have no old entries.
struct Committed {
    storages: Vec<IndexFile>,
    /// That of a PRIMARY KEY which is checked at once.
    key: Option<Oid>,
    /// The hollow ones but that of a PRIMARY KEY.
    hollow: Vec<Oid>,
}

struct IndexFile {
    storage: Storage,
    /// Writers keep it up.
    is_ready: bool,
}

/// # Safety
/// An open relation, within a transaction.
unsafe fn committed_indexes(rel: pg_sys::Relation) -> Committed {
    // SAFETY: `rel` is open (contract of this function). The snapshot is registered, and only this
    // copy is changed. `scan` gives rows of the catalog whose type they are cast to.
    unsafe {
        pg_sys::AcceptInvalidationMessages();
        pg_sys::InvalidateCatalogSnapshot();
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetCatalogSnapshot(pg_sys::RelationRelationId));
        debug_assert!((*snapshot).copied);
        if !faults::on(Fault::FilesOfNow) {
            (*snapshot).curcid = 0;
        }
        let (mut indexes, mut key): (Vec<(Oid, bool, bool)>, _) = (Vec::new(), None);
        scan(
            pg_sys::IndexRelationId,
            pg_sys::IndexIndrelidIndexId,
            pg_sys::Anum_pg_index_indrelid,
            (*rel).rd_id,
            snapshot,
            |t| {
                let form = &*t.cast::<pg_sys::FormData_pg_index>();
                let is_unique = form.indisunique && form.indimmediate && !form.indisprimary;
                indexes.push((form.indexrelid, form.indisready, is_unique && form.indislive));
                let is_key = form.indisprimary && form.indisvalid && form.indimmediate;
                key = key.or(is_key.then_some(form.indexrelid));
            },
        );
        let (mut out, mut hollow) = (Vec::new(), Vec::new());
        let permanent = compat::is_permanent(rel);
        for (index, is_ready, may_be_hollow) in indexes {
            scan(
                pg_sys::RelationRelationId,
                pg_sys::ClassOidIndexId,
                pg_sys::Anum_pg_class_oid,
                index,
                snapshot,
                |t| {
                    let class = t.cast::<pg_sys::FormData_pg_class>();
                    let space = (*class).reltablespace;
                    // The index of a partitioned table has no storage.
                    if (*class).relfilenode != pg_sys::InvalidOid {
                        let space = if space == pg_sys::InvalidOid { pg_sys::MyDatabaseTableSpace } else { space };
                        let storage = compat::storage(space, pg_sys::MyDatabaseId, (*class).relfilenode);
                        let is_btree = (*class).relam == Oid::from(pg_sys::BTREE_AM_OID);
                        if is_ready && may_be_hollow && is_btree && compat::is_hollow_storage(storage, permanent) {
                            hollow.push(index);
                        }
                        out.push(IndexFile { storage, is_ready });
                    }
                },
            );
        }
        pg_sys::UnregisterSnapshot(snapshot);
        Committed { storages: out, key, hollow }
    }
}

/// Calls `f` with the fixed part of each row of a catalog whose column is `value`.
///
/// # Safety
/// `index` is one of `catalog` that begins with `column`, an OID; `snapshot` is registered.
unsafe fn scan(
    catalog: Oid,
    index: u32,
    column: u32,
    value: Oid,
    snapshot: pg_sys::Snapshot,
    mut f: impl FnMut(*mut core::ffi::c_void),
) {
    // SAFETY: `index`, `column` and `snapshot` fit the catalog (contract of this function). What is
    // opened here is closed here, or by an ERROR's clean-up; a tuple is valid until the next one.
    unsafe {
        let rel = pg_sys::table_open(catalog, pg_sys::AccessShareLock as i32);
        let mut key = pg_sys::ScanKeyData::default();
        pg_sys::ScanKeyInit(
            &mut key,
            column as i16,
            pg_sys::BTEqualStrategyNumber as u16,
            pg_sys::Oid::from(pg_sys::F_OIDEQ),
            value.into(),
        );
        let s = pg_sys::systable_beginscan(rel, Oid::from(index), true, snapshot, 1, &mut key);
        loop {
            let tuple = pg_sys::systable_getnext(s);
            if tuple.is_null() {
                break;
            }
            f(pg_sys::GETSTRUCT(tuple).cast());
        }
        pg_sys::systable_endscan(s);
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
    }
}
