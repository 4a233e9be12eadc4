//! The shared block, and the hash from storage to tables.

pub use super::slots::{count as slots, my_slot};
use crate::pg::local::Local;
use crate::pg::previous::PREVIOUS;
use crate::pg::{compat, guc, machine, numa};
use crate::state::save;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::{Engine, Table};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

const TRANCHE: &core::ffi::CStr = c"mixedcc";
/// Tables for which the hash has entries from the start on, and for which it has room. It may take
/// more, from the slack of shared memory.
const TABLES: (i64, i64) = (4096, 16384);

struct Handles {
    engine: Engine,
    tables: *mut pg_sys::HTAB,
    lock: *mut pg_sys::LWLock,
    /// Of those that end prepared transactions.
    finishing: *mut pg_sys::LWLock,
    /// Of the snapshots of mixed transactions.
    cutting: *mut pg_sys::LWLock,
    /// The system's numbers of the memory nodes.
    nodes: Vec<i32>,
}
// SAFETY: a backend has one thread; the pointers are to shared memory, which lives as long as the
// process uses it.
unsafe impl Send for Handles {}
// SAFETY: a backend has one thread; the pointers are to shared memory, which lives as long as the
// process uses it.
unsafe impl Sync for Handles {}

/// Of the process. The postmaster writes it when it makes shared memory; its children inherit it.
static CURRENT: Local<Option<&'static Handles>> = Local::new(None);

/// Why the table of a storage, whose rows are in a file, was not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Absence {
    /// It did not fit into `mixedcc.memory`.
    Memory,
    /// The rule on waiting phases refuses its protocols.
    WaitingPhases,
    /// The table is permanent, and its rows did not fit when it was used.
    TooLarge,
    /// The same on a standby, which does not absorb journals.
    Standby,
}

/// A storage: its table, or why there is none.
#[repr(C)]
struct Entry {
    key: [u32; 3],
    why: Absence,
    /// Null: it was not loaded.
    table: *const Table,
    /// Bytes that it would need, about.
    need: u64,
    /// On a standby: in which state its files were then.
    since: u64,
}

impl Entry {
    /// The table, if it is there.
    fn table(&self) -> Option<&'static Table> {
        // SAFETY: `table` is null or a registered table. It lives until it is unregistered, and
        // then as long as a pin keeps it (INV-TABLE).
        unsafe { self.table.as_ref() }
    }
}

fn block_size() -> usize {
    (guc::MEMORY_MB.get() as usize) << 20
}

/// Installs the hooks.
pub fn init() {
    // SAFETY: `_PG_init` runs alone, so the hooks have no caller yet.
    unsafe {
        PREVIOUS.get_mut().shmem_request = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request);
        PREVIOUS.get_mut().shmem_startup = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn request() {
    // SAFETY: the postmaster calls the hook before shared memory exists (shmem_request_hook): the
    // time at which requests are allowed.
    unsafe {
        if let Some(prev) = PREVIOUS.get().shmem_request {
            prev();
        }
        let needed = Engine::min_size_on(slots(), numa::nodes().len());
        if block_size() < needed {
            ErrorReport::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, "mixedcc.memory is too small", "mixedcc")
                .set_detail(format!(
                    "{} MB are set; {} backends need at least {} MB.",
                    guc::MEMORY_MB.get(),
                    slots(),
                    (needed >> 20) + 1
                ))
                .set_hint("Increase mixedcc.memory.")
                .report(PgLogLevel::FATAL);
        }
        compare_with_machine();
        pg_sys::RequestAddinShmemSpace(block_size() + (1 << 16));
        pg_sys::RequestAddinShmemSpace(pg_sys::hash_estimate_size(TABLES.1, std::mem::size_of::<Entry>()));
        pg_sys::RequestAddinShmemSpace(crate::state::slots::size());
        pg_sys::RequestAddinShmemSpace(crate::state::counters::size());
        pg_sys::RequestAddinShmemSpace(crate::state::xact::mixed::size());
        pg_sys::RequestAddinShmemSpace(crate::state::xact::copies::size());
        pg_sys::RequestAddinShmemSpace(crate::state::stop::size());
        pg_sys::RequestNamedLWLockTranche(TRANCHE.as_ptr(), 3);
    }
}

/// Warns if the machine, or a control group, has less memory than the region may come to need.
fn compare_with_machine() {
    let Some(limit) = machine::memory() else { return };
    // SAFETY: a variable of this process, which its settings have set.
    let buffers = (unsafe { pg_sys::NBuffers }) as usize * pg_sys::BLCKSZ as usize;
    if (block_size() + buffers) as u64 <= limit.bytes {
        return;
    }
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_WARNING,
        "mixedcc.memory and shared_buffers are more than the memory that there is",
        "mixedcc",
    )
    .set_detail(format!(
        "mixedcc.memory is {} MB, shared_buffers {} MB, and {} has {} MB.",
        guc::MEMORY_MB.get(),
        buffers >> 20,
        limit.of,
        limit.bytes >> 20
    ))
    .set_hint(
        "Decrease mixedcc.memory: when memory runs out, the system kills the server, which empties unlogged mixedcc tables.",
    )
    .report(PgLogLevel::WARNING);
}

#[pg_guard]
unsafe extern "C-unwind" fn startup() {
    // SAFETY: the postmaster or a backend calls the hook (shmem_startup_hook). AddinShmemInitLock
    // is held until the block is formatted, so no other process uses it. `base` is aligned within
    // the block, which has 64 kB to spare.
    unsafe {
        if let Some(prev) = PREVIOUS.get().shmem_startup {
            prev();
        }
        compat::name_waits();
        let lock = compat::addin_shmem_lock();
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let mut found = false;
        let p = pg_sys::ShmemInitStruct(c"mixedcc region".as_ptr(), block_size() + (1 << 16), &mut found);
        let base = p.cast::<u8>();
        let base = base.wrapping_add(base.align_offset(1 << 16));
        let nodes = numa::nodes();
        let engine = if found {
            Engine::attach(base)
        } else {
            numa::bind(&nodes, Engine::node_ranges(base, block_size(), slots(), nodes.len()));
            // Shared memory is fresh from the operating system or not: it must be zero.
            if *base != 0 {
                base.write_bytes(0, block_size());
            }
            Engine::create_on(base, block_size(), slots(), nodes.len()).ok()
        };
        let mut ctl = pg_sys::HASHCTL { keysize: 12, entrysize: std::mem::size_of::<Entry>(), ..Default::default() };
        let tables = pg_sys::ShmemInitHash(
            c"mixedcc tables".as_ptr(),
            TABLES.0,
            TABLES.1,
            &mut ctl,
            (pg_sys::HASH_ELEM | pg_sys::HASH_BLOBS) as i32,
        );
        crate::state::slots::startup();
        crate::state::counters::startup();
        crate::state::xact::mixed::startup();
        crate::state::xact::copies::startup();
        crate::state::stop::startup();
        pg_sys::LWLockRelease(lock);
        let Some(engine) = engine else { error!("mixedcc could not set up its shared memory") };
        let named = pg_sys::GetNamedLWLockTranche(TRANCHE.as_ptr());
        // The postmaster runs this again after a crash, with new memory.
        let [lock, finishing, cutting] = [0, 1, 2].map(|n| &raw mut (*named.add(n)).lock);
        let h: &'static Handles = Box::leak(Box::new(Handles { engine, tables, lock, finishing, cutting, nodes }));
        CURRENT.set(Some(h));
        if !found {
            engine.shared.sample_every.set(guc::SAMPLE_EVERY.get() as u32);
            save::at_start(&engine);
        }
    }
}

fn handles() -> &'static Handles {
    match CURRENT.get() {
        Some(h) => h,
        None => error!("mixedcc has no shared memory"),
    }
}

/// The engine.
pub fn engine() -> Engine {
    handles().engine
}

/// The system's numbers of the engine's memory nodes.
pub fn nodes() -> &'static [i32] {
    &handles().nodes
}

/// Was shared memory set up?
pub fn is_up() -> bool {
    CURRENT.get().is_some()
}

/// Holds the lock of the hash of tables. Released by `release`, or by PostgreSQL on an error.
fn with_lock<R>(mode: pg_sys::LWLockMode::Type, f: impl FnOnce(*mut pg_sys::HTAB) -> R) -> R {
    let h = handles();
    // SAFETY: `lock` is in the main array of locks, which exists as long as shared memory.
    unsafe { pg_sys::LWLockAcquire(h.lock, mode) };
    let r = f(h.tables);
    // SAFETY: `lock` was acquired above; after an ERROR PostgreSQL releases it instead.
    unsafe { pg_sys::LWLockRelease(h.lock) };
    r
}

/// Runs `f` while no other process runs a function so.
pub fn exclusively(f: impl FnOnce()) {
    with_lock(pg_sys::LWLockMode::LW_EXCLUSIVE, |_| f());
}

/// Runs `f`, which ends prepared transactions, while no other process does.
pub fn finishing(f: impl FnOnce()) {
    alone(handles().finishing, f);
}

/// Runs `f`, which looks at the snapshots of mixed transactions, while no other process does.
pub fn cutting<R>(f: impl FnOnce() -> R) -> R {
    alone(handles().cutting, f)
}

fn alone<R>(lock: *mut pg_sys::LWLock, f: impl FnOnce() -> R) -> R {
    // SAFETY: `lock` is one of ours, which exists as long as shared memory.
    unsafe { pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE) };
    let r = f();
    // SAFETY: `lock` was acquired above; after an ERROR PostgreSQL releases it instead.
    unsafe { pg_sys::LWLockRelease(lock) };
    r
}

fn search(h: *mut pg_sys::HTAB, key: [u32; 4], action: pg_sys::HASHACTION::Type) -> (*mut Entry, bool) {
    let k = [key[0], key[1], key[2]];
    let mut found = false;
    // SAFETY: `k` has the hash's key size of 12 bytes. All callers are closures of `with_lock`, so
    // the lock is held.
    let e = unsafe { pg_sys::hash_search(h, k.as_ptr().cast(), action, &mut found) };
    (e.cast(), found)
}

/// The table of a storage, if it is registered in this incarnation of shared memory.
pub fn find(key: [u32; 4]) -> Option<&'static Table> {
    with_lock(pg_sys::LWLockMode::LW_SHARED, |h| {
        let (e, found) = search(h, key, pg_sys::HASHACTION::HASH_FIND);
        // SAFETY: `found` says that `e` is an entry, and the lock is held: it is not removed
        // meanwhile.
        unsafe { found.then(|| (*e).table()).flatten() }
    })
}

/// Why the table of a storage was not loaded, and the bytes that it needs; `None` if it was, or is
/// not known.
pub fn absent(key: [u32; 4]) -> Option<(Absence, u64)> {
    with_lock(pg_sys::LWLockMode::LW_SHARED, |h| {
        let (e, found) = search(h, key, pg_sys::HASHACTION::HASH_FIND);
        // SAFETY: `found` says that `e` is an entry, and the lock is held: it is not removed
        // meanwhile.
        unsafe { (found && (*e).table.is_null()).then(|| ((*e).why, (*e).need)) }
    })
}

/// The number for the state of the files in which a table does not fit into the memory of this
/// standby; `None`: no such state is known.
pub fn absent_since(key: [u32; 4]) -> Option<u64> {
    with_lock(pg_sys::LWLockMode::LW_SHARED, |h| {
        let (e, found) = search(h, key, pg_sys::HASHACTION::HASH_FIND);
        // SAFETY: `found` says that `e` is an entry, and the lock is held: it is not removed
        // meanwhile.
        unsafe { (found && (*e).table.is_null() && (*e).why == Absence::Standby).then(|| (*e).since) }
    })
}

/// Is it known what a storage holds, also if that was not loaded?
pub fn is_known(key: [u32; 4]) -> bool {
    with_lock(pg_sys::LWLockMode::LW_SHARED, |h| search(h, key, pg_sys::HASHACTION::HASH_FIND).1)
}

/// Adds an entry. False if its storage has one already; `None` if there is no room.
fn add(key: [u32; 4], table: *const Table, why: Absence, need: u64, since: u64) -> Option<bool> {
    with_lock(pg_sys::LWLockMode::LW_EXCLUSIVE, |h| {
        let (e, found) = search(h, key, pg_sys::HASHACTION::HASH_ENTER_NULL);
        if e.is_null() {
            return None;
        }
        if !found {
            // SAFETY: `e` is a new entry, which is not null. The lock is held exclusively, and the
            // hash has written its key.
            unsafe { ((*e).table, (*e).why, (*e).need, (*e).since) = (table, why, need, since) };
        }
        Some(!found)
    })
}

/// Registers a table. False if its storage is registered already; `None` if there is no room.
pub fn register(t: &'static Table) -> Option<bool> {
    add(t.key, t, Absence::Memory, 0, 0)
}

/// Registers that the table of a storage was not loaded; results as of [`register`].
pub fn register_absent(key: [u32; 4], why: Absence, need: u64) -> Option<bool> {
    register_absent_since(key, why, need, 0)
}

/// The same, with a number for the state that its files are in.
pub fn register_absent_since(key: [u32; 4], why: Absence, need: u64, since: u64) -> Option<bool> {
    add(key, std::ptr::null(), why, need, since)
}

/// Takes a storage out of the hash; returns its table, if it was there.
pub fn unregister(key: [u32; 4]) -> Option<&'static Table> {
    with_lock(pg_sys::LWLockMode::LW_EXCLUSIVE, |h| {
        let (e, found) = search(h, key, pg_sys::HASHACTION::HASH_FIND);
        if !found {
            return None;
        }
        // SAFETY: `found` says that `e` is an entry, and the lock is held exclusively.
        let t = unsafe { (*e).table() };
        search(h, key, pg_sys::HASHACTION::HASH_REMOVE);
        if t.and_then(|t| t.durable()).is_some_and(|d| d.live.era.load(Ordering::SeqCst) != 0) {
            engine().shared.standby.note_given_up();
        }
        t
    })
}

/// The storages of a database, also those whose tables were not loaded.
pub fn storages(db: u32) -> Vec<[u32; 4]> {
    let mut out = Vec::new();
    with_lock(pg_sys::LWLockMode::LW_SHARED, |h| each(h, |e| out.push([e.key[0], e.key[1], e.key[2], 0])));
    out.retain(|key| key[1] == db);
    out
}

/// The storages of all databases of which it is known that their tables do not fit into the memory
/// of this standby.
pub fn absent_on_standby() -> Vec<[u32; 4]> {
    let mut out = Vec::new();
    with_lock(pg_sys::LWLockMode::LW_SHARED, |h| {
        each(h, |e| {
            if e.table.is_null() && e.why == Absence::Standby {
                out.push([e.key[0], e.key[1], e.key[2], 0]);
            }
        });
    });
    out
}

/// Bytes that the tables need which did not fit.
pub fn absent_bytes() -> u64 {
    let mut sum = 0;
    with_lock(pg_sys::LWLockMode::LW_SHARED, |h| {
        each(h, |e| sum += if e.table.is_null() && e.why == Absence::Memory { e.need } else { 0 });
    });
    sum
}

/// A pin, which keeps tables that are found under it (INV-TABLE): the slot's, or one that ends with
/// this.
pub struct Pinned {
    ends: bool,
}

impl Pinned {
    /// The slot is pinned from now on.
    pub fn new() -> Pinned {
        let (e, slot) = (engine(), my_slot());
        let ends = !e.is_pinned(slot);
        e.pin(slot);
        Pinned { ends }
    }

    /// The pin has become that of the transaction.
    pub fn stays(mut self) {
        self.ends = false;
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.ends {
            engine().unpin(my_slot());
        }
    }
}

/// Runs `f` under such a pin.
pub fn pinned<R>(f: impl FnOnce() -> R) -> R {
    let _pin = Pinned::new();
    f()
}

/// All tables of this database, or of all (`None`).
pub fn all(db: Option<u32>) -> Vec<&'static Table> {
    let mut out = with_lock(pg_sys::LWLockMode::LW_SHARED, entries);
    out.retain(|t| db.is_none_or(|d| d == t.key[1]));
    out
}

/// All tables, when no other process exists that could change the hash.
pub fn all_unlocked() -> Vec<&'static Table> {
    entries(handles().tables)
}

/// The tables in the hash. The caller sees to it that no process changes it.
fn entries(h: *mut pg_sys::HTAB) -> Vec<&'static Table> {
    let mut out = Vec::new();
    each(h, |e| out.extend(e.table()));
    out
}

/// Calls `f`, which must not unwind, for each entry. The caller sees to it that no process changes
/// the hash.
fn each(h: *mut pg_sys::HTAB, mut f: impl FnMut(&Entry)) {
    // SAFETY: `h` is the hash, and no process changes it (documentation of this function). `f` does
    // not unwind, so the scan runs to its end, as dynahash wants.
    unsafe {
        let mut seq = pg_sys::HASH_SEQ_STATUS::default();
        pg_sys::hash_seq_init(&mut seq, h);
        loop {
            let e = pg_sys::hash_seq_search(&mut seq).cast::<Entry>();
            if e.is_null() {
                return;
            }
            f(&*e);
        }
    }
}
