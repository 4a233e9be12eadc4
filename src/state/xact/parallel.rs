//! Parallel statements and index builds: the leader shows what its statement's snapshot sees, and
//! the workers adopt it.
//!
//! **INV-WORKER**: A worker reads by the snapshot of its leader's statement, which the leader shows
//! from before its workers start until all of them have ended (execParallel.c waits for them). The
//! leader's transaction has written no row of ours, so no worker must know a row that is not
//! committed; and no worker writes one. Snapshots that PostgreSQL restores from shared memory have
//! rubbish in the fields that name what a snapshot sees. So each process marks its copies before
//! their first use.
//!
//! The workers of an index build do the same with the snapshot that was active in the leader. No
//! session writes in its table, or (CONCURRENTLY) they index what that snapshot sees. Each worker
//! finds the oldest snapshot by itself, later than its leader: older ones have ended since then.

use super::{adopt_snapshot, backend, import, lists, mode, running, snapshot_seen, txn, Mode};
use crate::pg::isolation;
use crate::pg::local::Local;
use crate::state::{shmem, slots};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::shared::Adopter;
use pgrx::pg_sys;

/// The statement that has workers.
#[derive(Clone, Copy)]
struct Shared {
    /// Its name in the leader; 0 in a worker.
    of: usize,
    /// What copies of its snapshot are marked with.
    mark: lists::Mark,
}

/// Of the transaction.
static SHARED: Local<Option<Shared>> = Local::new(None);

/// May workers read tables of ours by a statement's snapshot, as the transaction is now?
pub fn may_share() -> bool {
    if mode() == Mode::Serializable || isolation::is_ours_alone() || import::is_unknown() || SHARED.get().is_some() {
        return false;
    }
    backend().pending.is_empty() && running().is_none_or(|t| !t.has_writes())
}

/// Shows the snapshot of a statement that is about to run, and may have workers. `of` names it.
///
/// # Safety
/// A valid MVCC snapshot of this backend, which lasts as long as the statement. [`may_share`].
pub unsafe fn share_snapshot(of: usize, s: pg_sys::Snapshot) {
    // SAFETY: `s` is valid (contract of this function).
    let (seen, mark) = unsafe { (snapshot_seen(s), lists::mark_of(s)) };
    if mode() == Mode::ReadCommitted {
        let b = backend();
        b.txn.e.show(b.txn.slot, seen, Adopter::Worker);
    }
    SHARED.set(Some(Shared { of, mark }));
}

/// The name of an index build, which is no statement of the executor.
const BUILD: usize = 1;

/// May workers build an index of a table of ours, as the transaction is now?
pub fn may_share_build() -> bool {
    end_build(); // the one before in the same command
                 // SAFETY: variables of this process.
    unsafe { pg_sys::ActiveSnapshotSet() && !is_worker() && may_share() }
}

/// Shows the active snapshot for a build whose workers are about to start; false: they may not
/// read tables of ours.
pub fn share_build() -> bool {
    let may = may_share_build();
    if may {
        // SAFETY: there is an active snapshot, which lasts as long as the command that builds.
        unsafe { share_snapshot(BUILD, pg_sys::GetActiveSnapshot()) };
    }
    may
}

/// A command has ended, and with it the builds of its indexes. If it is one of a function that an
/// index calls, the build goes on, in PostgreSQL's parallel mode.
pub fn end_build() {
    // SAFETY: a variable of this process.
    if !unsafe { pg_sys::IsInParallelMode() } {
        end_statement(BUILD);
    }
}

/// Does a statement of the executor run that has workers?
pub fn is_sharing_statement() -> bool {
    SHARED.get().is_some_and(|shared| shared.of != BUILD)
}

/// A statement has ended, and its workers with it.
pub fn end_statement(of: usize) {
    if SHARED.get().is_some_and(|shared| shared.of == of) {
        end_sharing();
    }
}

/// No statement runs any more that has workers.
pub fn end_sharing() {
    if SHARED.replace(None).is_some() && mode() == Mode::ReadCommitted {
        let b = backend();
        b.txn.e.hide(b.txn.slot);
    }
}

/// The transaction has ended: the engine shows nothing for it any more.
pub fn end_transaction() {
    SHARED.set(None);
}

/// A worker starts its statement: it adopts what its leader shows. If that is nothing, it can use
/// no table of ours.
///
/// # Safety
/// A valid MVCC snapshot of this worker, which was restored: that of its statement.
pub unsafe fn join(s: pg_sys::Snapshot) {
    if has_joined() {
        return;
    }
    let e = shmem::engine();
    let leader = slots::leader_slot();
    let ident = e.slots[leader as usize].ident.load(Ordering::SeqCst);
    let Some(kept) = e.adopt_pin(shmem::my_slot(), leader, ident, Adopter::Worker) else { return };
    backend().mode = Some(worker_mode());
    // SAFETY: `s` is valid (contract of this function). The list lasts as long as the transaction.
    unsafe {
        lists::put(s, lists::TRANSACTION, kept.clone());
        SHARED.set(Some(Shared { of: 0, mark: lists::mark_of(s) }));
    }
    txn().adopt_seen(kept.seen(), mode() == Mode::SerializableReadOnly);
    if mode() != Mode::ReadCommitted {
        adopt_snapshot(kept);
        // SAFETY: as above; `adopt_snapshot` has replaced the list.
        unsafe { lists::share(pg_sys::GetTransactionSnapshot(), s) };
        // SAFETY: as above.
        SHARED.set(Some(Shared { of: 0, mark: unsafe { lists::mark_of(s) } }));
    }
}

/// The leader has a snapshot: see [`may_share`].
fn worker_mode() -> Mode {
    if isolation::is_at_serializable() {
        Mode::SerializableReadOnly
    } else if crate::pg::uses_xact_snapshot() {
        Mode::RepeatableRead
    } else {
        Mode::ReadCommitted
    }
}

/// Is this process a parallel worker?
#[inline]
pub fn is_worker() -> bool {
    // SAFETY: a variable of this process, which its one thread writes when it starts.
    unsafe { pg_sys::ParallelWorkerNumber >= 0 }
}

/// Has this worker adopted the snapshot of its leader?
pub fn has_joined() -> bool {
    SHARED.get().is_some()
}

/// Marks a copy of the statement's snapshot that was restored from shared memory (INV-WORKER).
///
/// # Safety
/// A valid snapshot of this process, which no other code uses yet.
pub unsafe fn mark_restored(s: pg_sys::Snapshot) {
    if let Some(shared) = SHARED.get() {
        // SAFETY: the contract of this function. The list of the mark lasts as long as the
        // statement.
        unsafe { lists::put_mark(s, shared.mark) };
    }
}
