//! Changes of storages, maps and indexes in memory that depend on the outcome of the transaction.

use super::{backend, depth, kept, prepared, txn, Parts};
use crate::pg::compat;
use crate::pg::faults::{self, Fault};
use crate::state::errors::ok;
use crate::state::making::Making;
use crate::state::platform::PG;
use crate::state::{shmem, stop, worker};
use mixedcc_engine::csn::{Csn, SlotId};
use mixedcc_engine::index::Primary;
use mixedcc_engine::partition::PartitionMap;
use mixedcc_engine::retire::RetireQueue;
use mixedcc_engine::{Engine, Table, Txn};
use pgrx::pg_sys;
use std::ptr::NonNull;

/// A change of storage that depends on the outcome of the transaction.
pub(super) enum Pending {
    Created([u32; 4]),
    Dropped([u32; 4]),
    /// Thrown out of the hash already.
    Orphan(&'static Table),
    /// In no table any more.
    OldMap(NonNull<PartitionMap>),
    /// The table has got another index of a number, or none.
    Unique {
        table: &'static Table,
        nth: usize,
        old: Option<&'static Primary>,
    },
    /// The table has got another map, or is about to.
    Map {
        table: &'static Table,
        old: NonNull<PartitionMap>,
        new: NonNull<PartitionMap>,
        /// What the new map's partitions overwrite.
        parts: Option<Parts>,
    },
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
fn is_remapped(table: &'static Table) -> bool {
    backend().pending.iter().any(|p| matches!(p.1, Pending::Map { table: t, .. } if std::ptr::eq(t, table)))
}

/// The transaction is about to give the table, which it has locked exclusively, another map: what
/// it has read and written so far is validated now. If it aborts from now on, in whatever way, the
/// table has the old map, and the records' partitions are what they were (INV-TWO-MAPS). The caller
/// has called [`before_change`], and puts the map in use.
pub fn begin_map(table: &'static Table, new: Making<NonNull<PartitionMap>>) {
    ok(txn().settle_table(&PG, table));
    let old = table.map();
    // SAFETY: INV-MAP: `new` is in no table yet, and nothing changes it meanwhile.
    let field = unsafe { new.as_ref() }.field;
    let overwrites = field != old.field && is_remapped(table) && !faults::on(Fault::PartsForgotten);
    let parts = overwrites.then(|| Parts::of(table, field));
    let (old, new) = (NonNull::from(old), new.done());
    backend().pending.push((depth(), Pending::Map { table, old, new, parts }));
}

/// The transaction, which has locked the table exclusively, gives it another index of a number, or
/// none.
pub fn replace_unique(table: &'static Table, nth: usize, new: Option<Making<&'static Primary>>) {
    prepared::finish_decided();
    let b = backend();
    ok(txn().make_room(Txn::room_of_changes(b.pending.len() + 1)).map_err(Into::into));
    b.pending.reserve(1);
    let old = table.replace_unique(nth, new.map(Making::done));
    b.pending.push((depth(), Pending::Unique { table, nth, old }));
}

/// The transaction has locked a table exclusively and is about to make another map for it.
pub fn before_change() {
    prepared::finish_decided();
    ok(txn().make_room(Txn::room_of_changes(backend().pending.len() + 1)).map_err(Into::into));
}

/// The permanent tables whose storages the transaction has made, and has not dropped again: their
/// rows are in no commit's record (INV-NEW).
#[inline]
pub fn made() -> Vec<&'static Table> {
    if !super::has_backend() || backend().pending.is_empty() {
        return Vec::new();
    }
    made_of_pending()
}

#[cold]
fn made_of_pending() -> Vec<&'static Table> {
    let all = &backend().pending;
    let is_dropped = |key| all.iter().any(|(_, p)| matches!(p, Pending::Dropped(k) if *k == key));
    let keys = all.iter().filter_map(|(_, p)| match p {
        Pending::Created(k) if !is_dropped(*k) => Some(*k),
        _ => None,
    });
    keys.filter_map(shmem::find).filter(|t| t.durable().is_some_and(|d| d.is_new())).collect()
}

/// The transaction is prepared, and keeps its changes (`kept.rs`).
pub(super) fn hand_over() {
    backend().pending.clear();
}

/// Takes a storage's table out of the hash. From then on no round writes to its files, which
/// PostgreSQL is about to remove (INV-BUSY). It can neither fail nor be cancelled.
pub fn take_out(key: [u32; 4]) -> Option<&'static Table> {
    prepared::finish_decided(); // INV-DECIDED
    out_of_hash(key)
}

pub(super) fn out_of_hash(key: [u32; 4]) -> Option<&'static Table> {
    if let Some(durable) = shmem::find(key).and_then(Table::durable) {
        wait_for_batch(|pause| durable.words().mark_dropped(pause));
        stop::reach("drop-marked");
    }
    shmem::unregister(key)
}

/// Marks a table, and waits for the batch of it in which the companion is.
pub(super) fn wait_for_batch(mark: impl FnOnce(fn(u32))) {
    mark(|_| compat::nap(BATCH_US));
}

/// A look at a batch under way of the companion, and the next one, µs.
const BATCH_US: core::ffi::c_long = 100;

fn throw_away(key: [u32; 4]) {
    if let Some(t) = take_out(key) {
        t.retire(&shmem::engine());
    }
}

fn free_map(m: NonNull<PartitionMap>) {
    let t = &backend().txn;
    free_map_of((&t.e, t.slot), m);
}

/// A map that no table has is freed. The slot is that of the transaction.
pub(super) fn free_map_of((e, slot): (&Engine, SlotId), m: NonNull<PartitionMap>) {
    // Views look at maps without a lock of the table, but pinned. `before_change` has made room.
    RetireQueue::push_large(e, slot, m.cast(), e.now());
}

/// A change of a table's index of a number stays, or is undone. The slot is that of the
/// transaction.
///
/// # Safety
/// `old` was the index of this number before. No process uses the table but for sizes of the index.
pub(super) unsafe fn end_unique(
    (e, slot): (&Engine, SlotId),
    table: &'static Table,
    (nth, old): (usize, Option<&'static Primary>),
    commit: bool,
) {
    // SAFETY: the contract of this function.
    unsafe {
        if !commit {
            table.restore_unique(e, slot, nth, old);
            return;
        }
        table.keep_unique(e, slot, old);
    }
    if let Some(index) = table.unique(nth).filter(|i| i.complete_from() == Csn::MAX) {
        index.set_complete_from(e.now());
    }
}

fn end_own_unique(table: &'static Table, nth: usize, old: Option<&'static Primary>, commit: bool) {
    let t = &backend().txn;
    // SAFETY: `old` is what `replace_unique` returned. The transaction holds the table's exclusive
    // lock, and a process without one looks only at sizes of the index.
    unsafe { end_unique((&t.e, t.slot), table, (nth, old), commit) }
}

/// Ends what depends on the outcome of the transaction.
pub(super) fn end(commit: bool) {
    if !backend().pending.is_empty() {
        prepared::finish_decided(); // INV-DECIDED
    }
    // First, while all tables are there: those that were thrown out may be freed from then on.
    let all = std::mem::take(&mut backend().pending);
    let now = || backend().txn.e.now();
    for (_, p) in all.iter().rev() {
        if let Pending::Unique { table, .. } | Pending::Map { table, .. } = p {
            kept::stays(table);
        }
        match p {
            Pending::Unique { table, nth, old } => end_own_unique(table, *nth, *old, commit),
            Pending::Created(k) if commit => {
                if let Some(t) = shmem::find(*k) {
                    kept::begins(t, now());
                }
            }
            Pending::Dropped(k) if !commit => {
                if let Some(t) = shmem::find(*k) {
                    kept::stays(t);
                }
            }
            Pending::Map { table, old, .. } if commit => {
                table.map().begins(now());
                free_map(*old);
            }
            Pending::Map { table, old, new, parts } => {
                if undo_map(table, *old, *new, parts) {
                    free_map(*new);
                }
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

/// A change of a table's map is undone in the process that has made it. Was the new map in use? If
/// it was not, as its making has failed, no other process has reached it: it is freed at once.
fn undo_map(table: &Table, old: NonNull<PartitionMap>, new: NonNull<PartitionMap>, parts: &Option<Parts>) -> bool {
    let was_used = std::ptr::eq(table.map(), new.as_ptr());
    restore_map(table, old, parts);
    if !was_used {
        let t = &backend().txn;
        // SAFETY: INV-MAP: no table has ever had it, and the change leaves the list.
        unsafe { t.e.region.free(t.slot as usize, new.cast()) }
    }
    was_used
}

/// A change of a table's map is undone.
pub(super) fn restore_map(table: &Table, old: NonNull<PartitionMap>, parts: &Option<Parts>) {
    if let Some(parts) = parts {
        parts.restore();
    }
    table.replace_map(old);
    // Switches under way in it go on.
    worker::nudge();
}

/// The (sub)transaction at `level` aborts: if it made a storage, its abort record is made durable
/// before PostgreSQL removes the files, which it does next.
///
/// An abort is not flushed otherwise. A crash before the WAL writer comes would leave a main fork
/// without its init fork. Recovery would make the init fork again and fail to copy it over the
/// main fork ("File exists"), so that the server would not start. (Heap's unlogged tables have
/// this gap.)
pub(super) fn flush_abort(level: u32) {
    let made = backend().pending.iter().any(|p| p.0 >= level && matches!(p.1, Pending::Created(_)));
    // SAFETY: `ProcLastRecPtr` is where our last WAL record begins: that of the abort, or a later
    // one. A failure to write WAL is a PANIC.
    unsafe {
        if made && pg_sys::ProcLastRecPtr != 0 {
            raw::XLogFlush(pg_sys::ProcLastRecPtr + 1);
        }
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
pub(super) fn undo(level: u32) {
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
            Pending::Created(k) => b.pending.extend(take_out(k).map(|t| (0, Pending::Orphan(t)))),
            Pending::Map { table, old, new, parts } => {
                if undo_map(table, old, new, &parts) {
                    b.pending.push((0, Pending::OldMap(new)));
                }
            }
            Pending::Dropped(_) => {}
            Pending::Unique { table, nth, old } => end_own_unique(table, nth, old, false),
            p @ (Pending::Orphan(_) | Pending::OldMap(_)) => b.pending.push((l, p)),
        }
    }
}
