//! Changes of definitions that a prepared transaction keeps: tables that it has made, truncated or
//! dropped, and their maps and indexes in memory.
//!
//! The process that finishes the transaction makes them, or undoes them. PostgreSQL has removed
//! files by then, and has given up its lock of the table.
//!
//! **INV-REDEFINED**: A table of which a prepared transaction keeps a change says so in its word
//! (`Table::kept`), from before the transaction is prepared until the change is made or undone.
//! Each process looks at the word when it begins to use the table, which is after it has got
//! PostgreSQL's lock, and ends decided transactions first. So it never uses an index that is
//! about to go, or a map, nor writes in a table that rounds pass over.
//!
//! A table that the transaction has made needs no such word. A process that comes to know it ends
//! decided transactions in any case.

use super::pending::{self, Pending};
use super::{backend, prepared};
use crate::pg::faults::{self, Fault};
use crate::state::{rounds, shmem, stop, worker};
use mixedcc_engine::csn::{Csn, SlotId};
use mixedcc_engine::partition::PartitionMap;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::txn::KeptChange;
use mixedcc_engine::{Engine, Table};
use std::ptr::NonNull;

/// What the transaction has changed in definitions, as a prepared transaction keeps it. `None`: it
/// has changed the partitions of a table more than once, and only this process has the first ones.
pub(super) fn changes() -> Option<Vec<KeptChange>> {
    let all = &backend().pending;
    let is_made = |key| all.iter().any(|(_, p)| matches!(p, Pending::Created(k) if *k == key));
    let is_dropped = |key| all.iter().any(|(_, p)| matches!(p, Pending::Dropped(k) if *k == key));
    let mut kept = Vec::with_capacity(all.len());
    for (_, p) in all {
        kept.push(match p {
            Pending::Created(key) if is_dropped(*key) => KeptChange::Gone(shmem::find(*key)?),
            Pending::Created(key) => KeptChange::Made(shmem::find(*key)?),
            Pending::Dropped(key) if is_made(*key) => continue,
            Pending::Dropped(key) => match shmem::find(*key) {
                Some(table) => KeptChange::Dropped(table),
                // Its rows are not in memory, and the transaction's lock keeps loads away.
                None => continue,
            },
            Pending::Orphan(table) => KeptChange::Gone(table),
            Pending::Unique { table, nth, old } => KeptChange::Unique(table, *nth, *old),
            Pending::Map { parts: Some(_), .. } => return None,
            Pending::Map { table, old, new, .. } => KeptChange::Map(table, *old, *new),
            Pending::OldMap(map) => KeptChange::OldMap(*map),
        });
    }
    Some(kept)
}

/// Before the transaction is prepared: the tables that it may drop are leaving (INV-LEAVING), and
/// all of which it keeps a change say so. May wait for the companion, and may raise.
pub(super) fn begin(changes: &[KeptChange]) {
    #[cfg(feature = "faults")]
    faults::begin();
    for change in changes {
        match *change {
            KeptChange::Dropped(table) => {
                leave(table);
                table.kept.store(1, Ordering::SeqCst);
            }
            KeptChange::Unique(table, ..) | KeptChange::Map(table, ..) => table.kept.store(1, Ordering::SeqCst),
            KeptChange::Made(_) | KeptChange::Gone(_) | KeptChange::OldMap(_) => {}
        }
    }
}

fn leave(table: &'static Table) {
    let Some(durable) = table.durable() else { return };
    // One that has written here makes its rows dirty when it is finished.
    prepared::finish_decided();
    // Also if the table is not flagged: a round that is under way has taken the flag before it has
    // written all rows, and would pass over the rest from then on.
    if !faults::on(Fault::LeavesDirty) {
        rounds::round_of(durable, true);
    }
    pending::wait_for_batch(|pause| durable.words().mark_leaving(pause));
    stop::reach("table-leaving");
}

/// Nothing of the table waits for a prepared transaction, and it does not go.
pub(super) fn stays(table: &Table) {
    if let Some(durable) = table.durable() {
        durable.words().stays();
    }
    table.kept.store(0, Ordering::SeqCst);
}

/// Must a process that begins to use the table end decided transactions first (INV-REDEFINED)?
#[inline]
pub fn is_kept(table: &Table) -> bool {
    table.kept.load(Ordering::SeqCst) != 0 && !faults::on(Fault::KeptIgnored)
}

/// A prepared transaction has ended: makes its changes, or undoes them. PostgreSQL has removed the
/// files of tables that go. No round has written to them: a new table has no dirty rows (INV-NEW),
/// and the others were leaving. The slot is that of the transaction.
pub(super) fn end(changes: &[KeptChange], of: (&Engine, SlotId), commit: bool) {
    // The last change first, and while all tables are there.
    for change in changes.iter().rev() {
        match *change {
            // SAFETY: `old` is what `replace_unique` returned. A process that begins to use the
            // table waits for this function (INV-REDEFINED).
            KeptChange::Unique(table, nth, old) => unsafe { pending::end_unique(of, table, (nth, old), commit) },
            KeptChange::Map(table, old, new) => end_map(of, table, (old, new), commit),
            KeptChange::OldMap(map) => pending::free_map_of(of, map),
            KeptChange::Made(_) | KeptChange::Gone(_) | KeptChange::Dropped(_) => {}
        }
    }
    for change in changes {
        match *change {
            KeptChange::Made(table) if commit => begins(table, of.0.now()),
            KeptChange::Dropped(table) if !commit => stays(table),
            KeptChange::Unique(table, ..) | KeptChange::Map(table, ..) => table.kept.store(0, Ordering::SeqCst),
            KeptChange::Made(_) | KeptChange::Gone(_) | KeptChange::Dropped(_) | KeptChange::OldMap(_) => {}
        }
    }
    // At last: from then on they may be freed.
    for change in changes {
        match *change {
            KeptChange::Made(table) if !commit => throw_away(table),
            KeptChange::Dropped(table) if commit => throw_away(table),
            KeptChange::Gone(table) => throw_away(table),
            _ => {}
        }
    }
    if !changes.is_empty() {
        worker::see_to_dropped(true);
    }
}

/// A change of a map stays, or is undone. Of several changes of one table the last one comes first.
fn end_map(
    of: (&Engine, SlotId),
    table: &Table,
    (old, new): (NonNull<PartitionMap>, NonNull<PartitionMap>),
    commit: bool,
) {
    if commit {
        table.map().begins(of.0.now());
        pending::free_map_of(of, old);
    } else {
        pending::restore_map(table, old, &None);
        pending::free_map_of(of, new);
    }
}

/// The transaction that has made a table commits.
pub(super) fn begins(table: &Table, now: Csn) {
    table.map().begins(now);
    if let Some(durable) = table.durable() {
        durable.begins();
    }
}

fn throw_away(table: &'static Table) {
    // Another one may have its key: it was thrown out before.
    if shmem::find(table.key).is_some_and(|found| std::ptr::eq(found, table)) {
        pending::out_of_hash(table.key);
    }
    table.retire(&shmem::engine());
}
