//! The backend's transaction: when it starts, what isolation it has, and PostgreSQL's callbacks.

use crate::pg;
use crate::pg::errors::unsupported;
use crate::state::errors::{ok, raise, refuse_prepare};
use crate::state::platform::{self, PG};
use crate::state::{rel, shmem, worker};
use mixedcc_engine::csn::Csn;
use mixedcc_engine::index::Primary;
use mixedcc_engine::partition::PartitionMap;
use mixedcc_engine::retire::RetireQueue;
use mixedcc_engine::{Level, Table, Txn};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::collections::HashMap;
use std::ptr::NonNull;

mod held;
mod import;
mod order;
mod parts;
mod rows;
mod snapshots;
mod tags;
mod together;
pub use import::{import_snapshot, is_unknown as is_snapshot_unknown};
pub use order::note_end_of_statement;
pub use parts::Parts;
pub use rows::{last_locked, last_write, locked, note_locked, LastWrite, Locked};
pub use snapshots::{adopt_snapshot, known_csn, moment, note_moment, snapshot_csn};
pub use tags::{early_lock_tag, give_up, subxact_lock_tag};

/// Isolation of the PostgreSQL transaction, decided at its first use of our tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// READ COMMITTED: a snapshot a statement.
    ReadCommitted,
    /// REPEATABLE READ: one snapshot.
    RepeatableRead,
    /// SERIALIZABLE: through the protocols.
    Serializable,
    /// SERIALIZABLE READ ONLY: one snapshot, which is a serial prefix.
    SerializableReadOnly,
}

/// A change of storage that depends on the outcome of the transaction.
enum Pending {
    Created([u32; 4]),
    Dropped([u32; 4]),
    /// Thrown out of the hash already.
    Orphan(&'static Table),
    /// In no table any more.
    OldMap(NonNull<PartitionMap>),
    /// The table has got another primary index, or none.
    Primary {
        table: &'static Table,
        old: Option<&'static Primary>,
    },
    Map {
        table: &'static Table,
        old: NonNull<PartitionMap>,
        new: NonNull<PartitionMap>,
        /// What the new map's partitions have overwritten.
        parts: Option<Parts>,
    },
}

struct Backend {
    txn: Txn,
    last_write: Option<LastWrite>,
    /// Decided for this transaction.
    mode: Option<Mode>,
    /// The read CSN of the transaction snapshot, 0 until it is fixed.
    read_csn: Csn,
    /// When a statement without tables of ours has started, 0 before the first one.
    moment: Csn,
    pending: Vec<(u32, Pending)>,
    locked: HashMap<(u64, u64), Locked>,
    last_locked: Option<(u64, u64)>,
    /// So many of the partitions that it has touched are of tables whose locks the top transaction
    /// holds (INV-HELD).
    held: usize,
    mixed: Touched,
    /// Of a transaction that is sampled: statements of the client that used tables of ours, and
    /// when the last one came.
    round_trips: u32,
    statement_at: pg_sys::TimestampTz,
}

/// Kinds of tables that a serializable transaction has touched.
#[derive(Default)]
pub struct Touched {
    /// Ours.
    pub ours: bool,
    /// Those of another access method.
    pub others: bool,
    /// Foreign ones, in which it may have written without a transaction id.
    pub foreign: bool,
    /// It was said.
    pub warned: bool,
}

static mut BACKEND: Option<Backend> = None;

#[inline]
fn backend() -> &'static mut Backend {
    // SAFETY: a backend has one thread, and callers keep no reference across a call that may come
    // back here (the engine calls the platform only, which uses `tags`).
    unsafe {
        match &mut *(&raw mut BACKEND) {
            Some(b) => b,
            None => new_backend(),
        }
    }
}

#[cold]
fn new_backend() -> &'static mut Backend {
    // SAFETY: as in `backend`.
    unsafe {
        pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::from(0));
        (*(&raw mut BACKEND)).insert(Backend {
            txn: Txn::new(shmem::engine(), shmem::my_slot()),
            last_write: None,
            mode: None,
            read_csn: 0,
            moment: 0,
            pending: Vec::new(),
            locked: HashMap::new(),
            last_locked: None,
            held: 0,
            mixed: Touched::default(),
            round_trips: 0,
            statement_at: 0,
        })
    }
}

/// Was the top transaction READ ONLY when its present savepoint was set?
static mut TOP_READ_ONLY: bool = false;

fn top_is_read_only() -> bool {
    // SAFETY: one thread.
    unsafe { TOP_READ_ONLY }
}

fn has_backend() -> bool {
    // SAFETY: as above.
    unsafe { (*(&raw const BACKEND)).is_some() }
}

/// Registers the callbacks.
pub fn init() {
    order::init();
    // SAFETY: `_PG_init` runs alone.
    unsafe { pg_sys::RegisterSubXactCallback(Some(on_subxact), std::ptr::null_mut()) };
}

#[pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: i32, _arg: pg_sys::Datum) {
    if has_backend() {
        let b = backend();
        b.txn.abort();
        b.txn.e.region.flush_slot(b.txn.slot as usize);
    }
}

/// The running transaction; starts it if need be.
#[inline]
pub fn txn() -> &'static mut Txn {
    let b = backend();
    if !b.txn.is_active() {
        start(b);
    }
    &mut b.txn
}

/// The running transaction, if there is one. Does not fail.
#[inline]
pub fn running() -> Option<&'static mut Txn> {
    // SAFETY: one thread; see `backend`.
    unsafe { (*(&raw mut BACKEND)).as_mut().map(|b| &mut b.txn).filter(|t| t.is_active()) }
}

/// The running transaction, if it is SERIALIZABLE and may be written with: [`writing`] without its
/// errors and its start.
#[inline]
pub fn running_to_write() -> Option<&'static mut Txn> {
    // SAFETY: one thread; see `backend`.
    let b = unsafe { (*(&raw mut BACKEND)).as_mut() }?;
    let may = b.mode == Some(Mode::Serializable) && b.txn.is_active() && !order::is_committing();
    may.then_some(&mut b.txn)
}

/// The running transaction, to write with it: not after its commit has begun.
pub fn writing() -> &'static mut Txn {
    platform::outside();
    let t = txn();
    if order::is_committing() {
        unsupported(
            "mixedcc tables cannot be changed while the transaction commits",
            "Another extension's commit callback does it.",
        );
    }
    if mode() == Mode::SerializableReadOnly {
        unsupported(
            "mixedcc tables cannot be changed by a SERIALIZABLE transaction that was READ ONLY at its first query",
            "Start the transaction READ WRITE.",
        );
    }
    t
}

#[cold]
fn start(b: &mut Backend) {
    // SAFETY: plain reads of backend-local state.
    unsafe {
        if pg_sys::ParallelWorkerNumber >= 0 {
            unsupported(
                "mixedcc tables cannot be accessed by parallel workers",
                "Set max_parallel_workers_per_gather to 0.",
            );
        }
        import::check();
        order::go_in_front();
        let level = if mode() == Mode::Serializable { Level::Serializable } else { Level::Snapshot };
        if level == Level::Serializable && b.txn.running_winner().is_some() {
            platform::let_pass(|| b.txn.running_winner().is_none());
        }
        b.txn.begin(level, platform::my_ident());
        b.txn.set_depth(pg_sys::GetCurrentTransactionNestLevel() as u32);
    }
}

/// The isolation of this transaction, if it was decided.
pub fn known_mode() -> Option<Mode> {
    // SAFETY: one thread.
    unsafe { (*(&raw const BACKEND)).as_ref().and_then(|b| b.mode) }
}

/// The isolation of this transaction.
#[inline]
pub fn mode() -> Mode {
    let b = backend();
    match b.mode {
        Some(m) => m,
        None => {
            #[cfg(feature = "faults")]
            crate::pg::faults::begin();
            // SAFETY: plain reads of backend-local state.
            let read_only = if depth() == 1 { unsafe { pg_sys::XactReadOnly } } else { top_is_read_only() };
            let m = if pg::is_serializable() {
                if read_only {
                    Mode::SerializableReadOnly
                } else {
                    Mode::Serializable
                }
            } else if pg::uses_xact_snapshot() {
                Mode::RepeatableRead
            } else {
                Mode::ReadCommitted
            };
            b.mode = Some(m);
            m
        }
    }
}

/// Takes the pin again, which may have been ended while the session held no snapshot (see
/// `Platform::quiescent`). For what looks at versions without a snapshot's CSN; the session holds a
/// snapshot now.
pub fn renew_pin() {
    // SAFETY: one thread.
    if let Some(b) = unsafe { (*(&raw const BACKEND)).as_ref() }.filter(|b| b.txn.is_active()) {
        b.txn.e.pin(b.txn.slot);
    }
}

/// The executor starts on tables of ours: is it for another statement of the client?
pub fn note_statement() {
    let b = backend();
    if b.txn.is_active() && !b.txn.is_sampled() && !Txn::has_steps() {
        return; // neither the statistics nor a protocol asks
    }
    // SAFETY: a plain read of a static.
    let at = unsafe { pg::raw::GetCurrentStatementStartTimestamp() };
    if at != b.statement_at {
        b.statement_at = at;
        b.round_trips += 1;
        b.txn.next_step();
    }
}

/// What a serializable transaction has touched.
pub fn touched() -> &'static mut Touched {
    &mut backend().mixed
}

/// Nesting depth of the current subtransaction; 1 is the top transaction.
#[inline]
pub fn depth() -> u32 {
    // SAFETY: a plain read.
    unsafe { pg::raw::GetCurrentTransactionNestLevel() as u32 }
}

/// A storage was made by this transaction: dropped if it aborts.
pub fn created(key: [u32; 4]) {
    backend().pending.push((depth(), Pending::Created(key)));
}
/// A storage goes away if this transaction commits.
pub fn dropped(key: [u32; 4]) {
    backend().pending.push((depth(), Pending::Dropped(key)));
}
/// A table was thrown out; freed when the transaction ends.
pub fn orphaned(t: &'static Table) {
    backend().pending.push((0, Pending::Orphan(t)));
}
/// Has the transaction given the table another map?
pub fn is_remapped(table: &'static Table) -> bool {
    backend().pending.iter().any(|p| matches!(p.1, Pending::Map { table: t, .. } if std::ptr::eq(t, table)))
}

/// A table got another map; it goes back to the old one if the transaction aborts, and to what the
/// records' partitions were before.
pub fn remapped(table: &'static Table, old: NonNull<PartitionMap>, new: NonNull<PartitionMap>, parts: Option<Parts>) {
    backend().pending.push((depth(), Pending::Map { table, old, new, parts }));
}

/// The transaction, which has locked the table exclusively, gives it another primary index, or
/// none.
pub fn replace_primary(table: &'static Table, new: Option<&'static Primary>) {
    let b = backend();
    let changes = b.pending.len() as u64;
    ok(txn().make_room(2 * changes + 2).map_err(Into::into));
    b.pending.reserve(1);
    let old = table.replace_primary(new);
    b.pending.push((depth(), Pending::Primary { table, old }));
}

/// The transaction has locked the table exclusively and is about to change its partitions or
/// their protocols: what it has read and written so far is validated now.
pub fn before_change(table: &'static Table) {
    let t = txn();
    ok(t.settle_table(&PG, table));
    let maps = backend().pending.len() as u64;
    ok(t.make_room(2 * maps + 2).map_err(Into::into));
}

fn throw_away(key: [u32; 4]) {
    if let Some(t) = shmem::unregister(key) {
        t.retire(&shmem::engine());
    }
}

fn free_map(m: NonNull<PartitionMap>) {
    let b = backend();
    // Views look at maps without a lock of the table, but pinned. `remapped` has made room.
    RetireQueue::push(&b.txn.e, b.txn.slot, m.cast(), b.txn.e.now());
}

/// A change of a table's primary index stays, or is undone. The transaction has the table's
/// exclusive lock still.
fn end_primary(table: &'static Table, old: Option<&'static Primary>, commit: bool) {
    let b = backend();
    let (e, slot) = (b.txn.e, b.txn.slot);
    // SAFETY: the lock; what looks at the index without one looks at its sizes only.
    unsafe {
        if !commit {
            table.restore_primary(&e, slot, old);
            return;
        }
        table.keep_primary(&e, slot, old);
    }
    if let Some(primary) = table.primary().filter(|p| p.complete_from() == Csn::MAX) {
        primary.set_complete_from(e.now());
    }
}

/// Ends what depends on the outcome of the transaction.
fn end_pending(commit: bool) {
    // First, while all tables are there: those that were thrown out may be freed from then on.
    let all = std::mem::take(&mut backend().pending);
    let now = || backend().txn.e.now();
    for (_, p) in all.iter().rev() {
        match p {
            Pending::Primary { table, old } => end_primary(table, *old, commit),
            Pending::Created(k) if commit => {
                if let Some(t) = shmem::find(*k) {
                    t.map().begins(now());
                }
            }
            Pending::Map { table, old, .. } if commit => {
                table.map().begins(now());
                free_map(*old);
            }
            Pending::Map { table, old, new, parts } => {
                restore_map(table, *old, parts);
                free_map(*new);
            }
            _ => {}
        }
    }
    backend().pending = all;
    while let Some((_, p)) = backend().pending.pop() {
        match p {
            Pending::Created(k) if !commit => throw_away(k),
            Pending::Dropped(k) if commit => throw_away(k),
            Pending::Orphan(t) => t.retire(&shmem::engine()),
            Pending::OldMap(m) => free_map(m),
            _ => {}
        }
    }
}

/// A change of a table's map is undone.
fn restore_map(table: &Table, old: NonNull<PartitionMap>, parts: &Option<Parts>) {
    if let Some(parts) = parts {
        parts.restore();
    }
    table.replace_map(old);
    // Switches under way in it go on.
    worker::nudge();
}

/// The (sub)transaction at `level` aborts: if it made a storage, its abort record is made durable
/// before PostgreSQL removes the files, which it does next. An abort is not flushed otherwise, and
/// a crash before the WAL writer comes would leave a main fork without its init fork, while
/// recovery makes the init fork again and then fails to copy it over the main fork ("File exists"):
/// the server would not start. (Heap's unlogged tables have this gap.)
fn flush_abort(level: u32) {
    let made = backend().pending.iter().any(|p| p.0 >= level && matches!(p.1, Pending::Created(_)));
    // SAFETY: our last WAL record is that of the abort, or a later one; a failure to write WAL is a
    // PANIC.
    unsafe {
        if made && pg_sys::ProcLastRecPtr != 0 {
            raw::XLogFlush(pg_sys::ProcLastRecPtr + 1);
        }
    }
}

fn note_deadlock(b: &mut Backend) {
    if platform::take_deadlock() {
        b.txn.note_deadlock();
    }
}

mod raw {
    extern "C-unwind" {
        // Without the guard of the bindings: it raises no ERROR.
        pub fn XLogFlush(upto: pgrx::pg_sys::XLogRecPtr);
    }
}

/// Undoes what the subtransaction at `level` did. Its tables and maps are freed when the
/// transaction ends: it may hold locks in them, and counts what it did in them.
fn undo_pending(level: u32) {
    let b = backend();
    let Some(first) = b.pending.iter().position(|p| p.0 >= level) else { return };
    let undone = b.pending.split_off(first);
    let is_new = |key| undone.iter().any(|(_, p)| matches!(p, Pending::Created(k) if *k == key));
    for (_, p) in &undone {
        if let Pending::Map { table, .. } = p {
            if !is_new(table.key) {
                b.txn.unsettle_table(table);
            }
        }
    }
    for (l, p) in undone.into_iter().rev() {
        match p {
            Pending::Created(k) => b.pending.extend(shmem::unregister(k).map(|t| (0, Pending::Orphan(t)))),
            Pending::Map { table, old, new, parts } => {
                restore_map(table, old, &parts);
                b.pending.push((0, Pending::OldMap(new)));
            }
            Pending::Dropped(_) => {}
            Pending::Primary { table, old } => end_primary(table, old, false),
            p @ (Pending::Orphan(_) | Pending::OldMap(_)) => b.pending.push((l, p)),
        }
    }
}

fn end_transaction(b: &mut Backend) {
    b.mode = None;
    (b.round_trips, b.statement_at) = (0, 0);
    (b.read_csn, b.moment) = (0, 0);
    b.held = 0;
    if b.locked.capacity() > 1024 {
        b.locked = HashMap::new();
    } else if !b.locked.is_empty() {
        b.locked.clear();
    }
    (b.last_write, b.last_locked) = (None, None);
    b.mixed = Touched::default();
    tags::end_transaction();
    import::end_transaction();
    rel::end_transaction();
    crate::hooks::end_transaction();
}

#[pg_guard]
unsafe extern "C-unwind" fn on_xact(event: pg_sys::XactEvent::Type, arg: *mut core::ffi::c_void) {
    use pg_sys::XactEvent::*;
    if !order::comes_first(arg) {
        return;
    }
    if event == XACT_EVENT_PRE_COMMIT {
        order::begin_commit();
    } else if event != XACT_EVENT_PRE_PREPARE {
        order::end_transaction();
        rel::forget_use();
    } else if rel::is_used() {
        refuse_prepare();
    }
    if !has_backend() {
        return;
    }
    let b = backend();
    match event {
        XACT_EVENT_PRE_COMMIT => {
            b.txn.set_round_trips(b.round_trips);
            if !b.txn.sampled_records().is_empty() {
                together::note(&b.txn);
            }
            if b.mixed.foreign {
                b.txn.validate_at_commit();
            }
            if let Err(e) = b.txn.prepare(&PG, &|_, _| {}) {
                raise(e);
            }
        }
        XACT_EVENT_COMMIT => {
            b.txn.publish(&PG);
            let drops = !b.pending.is_empty();
            end_pending(true);
            end_transaction(b);
            worker::see_to_dropped(&b.txn.e, drops);
        }
        XACT_EVENT_ABORT => {
            flush_abort(1);
            note_deadlock(b);
            b.txn.abort();
            let drops = !b.pending.is_empty();
            end_pending(false);
            end_transaction(b);
            worker::see_to_dropped(&b.txn.e, drops);
        }
        XACT_EVENT_PRE_PREPARE => {
            if !b.txn.is_untouched() || !b.pending.is_empty() {
                refuse_prepare();
            }
        }
        XACT_EVENT_PREPARE => {
            // It has looked at the clock at most: nothing of ours goes on with it.
            b.txn.abort();
            end_transaction(b);
        }
        _ => {}
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_subxact(
    event: pg_sys::SubXactEvent::Type,
    _sub: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _a: *mut core::ffi::c_void,
) {
    use pg_sys::SubXactEvent::*;
    let level = depth();
    if event == SUBXACT_EVENT_START_SUB && level == 2 {
        // SAFETY: plain accesses of backend-local state; a subtransaction starts as its parent is.
        unsafe { TOP_READ_ONLY = pg_sys::XactReadOnly };
    }
    if !has_backend() {
        return;
    }
    let b = backend();
    match event {
        SUBXACT_EVENT_START_SUB => {
            if b.txn.is_active() {
                b.txn.set_depth(level);
            }
        }
        SUBXACT_EVENT_COMMIT_SUB => {
            tags::hand_to_parent(&mut b.txn, level);
            b.txn.commit_sub(level);
            crate::hooks::commit_subtransaction(level);
            for p in b.pending.iter_mut().filter(|p| p.0 >= level) {
                p.0 = level - 1;
            }
            for l in b.locked.values_mut().filter(|l| l.depth >= level) {
                l.depth = level - 1;
            }
        }
        SUBXACT_EVENT_ABORT_SUB => {
            // First: after an ERROR (no memory) PostgreSQL aborts the subtransaction again.
            if b.txn.is_active() {
                held::keep_tables(&b.txn, b.mode, &mut b.held);
                held::keep_changed_tables(b, level);
            }
            flush_abort(level);
            note_deadlock(b);
            b.txn.keep_scanned(&PG, level);
            b.txn.abort_sub(level);
            undo_pending(level);
            b.locked.retain(|_, l| l.depth < level);
            tags::drop_from(level);
            crate::hooks::abort_subtransactions(level);
        }
        _ => {}
    }
}

/// Table, partition and protocol of an error, as words. Takes no lock and looks at no catalog: the
/// caller may hold the page of an index (a unique check that fails is a read, and may find the
/// transaction doomed).
pub fn describe_partition(table: u64, partition: u32) -> String {
    let Some(info) = rel::by_table_id(table) else { return format!("Partition {partition}") };
    // The transaction has used the table: its pin keeps it (INV-TABLE).
    let protocol = info.table.map().partitions().get(partition as usize).map(|p| p.protocols().name());
    format!("Table \"{}\", partition {partition}, protocol {}", info.name, protocol.unwrap_or_default())
}
