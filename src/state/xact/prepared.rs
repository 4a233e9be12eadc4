//! PREPARE TRANSACTION, and the end of prepared transactions.
//!
//! **INV-DECIDED**: PostgreSQL calls no extension when it ends a prepared transaction: the commit
//! log is the truth. A transaction is *decided* when its id is not in progress any more. A process
//! that relies on the outcome ends all decided transactions of the engine first, which can neither
//! fail nor be undone. It does so
//!
//! * when it takes a snapshot, or begins a transaction: rows of other tables show the outcome;
//! * when its wait for a lock ends, and while it waits for a guard: PostgreSQL's wait ends as soon
//!   as the holder is decided;
//! * in a unique check, which may meet a row of a prepared transaction;
//! * before it frees or changes a table, makes an index, or comes to know a table: PostgreSQL's
//!   lock on the table ends with the decision;
//! * in VACUUM, which waits for the marks of commits.
//!
//! The process that has run COMMIT PREPARED or ROLLBACK PREPARED does it too, and the coordinator,
//! so that others rarely find anything. All of it costs one load while nothing is prepared.
//!
//! **INV-ASLEEP**: What a prepared transaction has locked, and what it has read, must be in the way
//! of others until it is finished, also after a restart or promotion. Then no process has its locks
//! and guards in memory. So PREPARE takes a lock of PostgreSQL's for each permanent table that it
//! keeps in this way. PostgreSQL's two-phase state brings these locks back before it lets anyone
//! in. Some tell what others may do with the table meanwhile (INV-AWAKE, INV-DOZING). The lock of a
//! transaction that has changed the table's definition does not: a load waits for it, outside of
//! the lock of INV-ATTACH, so the whole table sleeps. When it is loaded, that transaction is
//! decided. While the server runs, the table is in memory, and no process waits for these locks.
//!
//! **INV-MAKERS**: A process that brings a table into memory counts on an index that a transaction
//! of before the start of the server may have made. Until that is finished the catalogs show the
//! index to no other process. It may have entries of records without a row: an older snapshot has
//! seen rows that were deleted, or a savepoint has undone inserts. The transaction's lock of the
//! table, as CREATE INDEX takes it, keeps writers and VACUUM away, but not readers. So the process
//! looks for such locks, and then for the indexes: that of a transaction which has ended by then is
//! seen there. If there is a lock, numbers without a row are not free (INV-SAVE): the next VACUUM,
//! which comes after the end, removes their entries first. An unlogged table that begins empty
//! behind a clean shutdown does so after the end, and all its indexes are reset then (INV-ATTACH).
//! Behind a crash PostgreSQL has reset them.
//!
//! A process that finds another one at it waits for that: what has been taken out of its slot is
//! not published yet, and a table that it has made has not begun.
//!
//! One process at a time ends them, under a lock. So the id that it has looked up is that of the
//! transaction that it ends, and not of the next one of the slot.

use super::tags::owned_by;
use super::{backend, copies, has_backend, kept, mixed, order, pending, Mode};
use crate::pg::errors::{complain, unsupported};
use crate::pg::faults::{self, Fault};
use crate::pg::{compat, wal};
use crate::state::durable::commit;
use crate::state::errors::raise;
use crate::state::platform::{
    lock_tag, PG, TAGS_WRITTEN, TAG_KEYS, TAG_ONLY_READ, TAG_PREPARED, TAG_WRITTEN, TAG_WRITTEN_STRONGER,
};
use crate::state::stop::reach;
use crate::state::{rel, shmem, slots};
use mixedcc_engine::csn::SlotId;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::txn::{KeptChange, Protects};
use mixedcc_engine::{Engine, Level, Txn};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// PREPARE TRANSACTION begins: validates the transaction. An ERROR aborts it.
pub fn before() {
    if has_backend() {
        let changes = refuse();
        if !changes.is_empty() {
            kept::begin(&changes);
            super::txn().keep_changes(changes);
        }
        let b = backend();
        if is_kept(&b.txn) {
            take_spare();
            if let Err(e) = b.commit.before_prepare(&mut b.txn, keep_tables) {
                raise(e);
            }
        }
    }
    order::begin_prepare();
}

/// Is there anything to keep of the transaction? Below SERIALIZABLE what it has read is not.
fn is_kept(t: &Txn) -> bool {
    t.is_active() && (t.level() == Level::Serializable || !t.is_untouched() || !t.kept_changes().is_empty())
}

/// Raises an error if it cannot be prepared. Returns what it has changed in definitions.
fn refuse() -> Vec<KeptChange> {
    if mixed::is_mixed(backend()) {
        unsupported(
            "cannot PREPARE a SERIALIZABLE transaction that has used mixedcc tables and tables of another access method",
            "Use COMMIT, or set mixedcc.mixed_serializable to warning or allow.",
        );
    }
    if backend().mode == Some(Mode::SerializableReadOnly) && backend().read_csn != 0 {
        unsupported(
            "cannot PREPARE a SERIALIZABLE READ ONLY transaction that has used mixedcc tables",
            "Use COMMIT: it has changed nothing. Or start it READ WRITE.",
        );
    }
    kept::changes().unwrap_or_else(|| {
        unsupported(
            "cannot PREPARE a transaction that has changed the partitions of a mixedcc table more than once",
            "Use COMMIT, or change them once.",
        )
    })
}

/// The permanent tables whose rows it has written or locked, and those that it has read if what it
/// has read must stay: what a load of them must know before it is finished (INV-ASLEEP, INV-AWAKE,
/// INV-DOZING).
fn keep_tables(t: &Txn) {
    if faults::on(Fault::NotAsleep) {
        return;
    }
    for info in rel::used_permanent() {
        let holds =
            |from: i32| (from..=pg_sys::AccessExclusiveLock as i32).any(|m| compat::holds_relation(info.oid, m));
        // First: a savepoint that was rolled back has given its locks up, and keeps no table.
        // Others may have dropped or emptied it since (INV-TABLE).
        let is_there = || shmem::find(info.key).is_some_and(|there| std::ptr::eq(there, info.table));
        if !holds(pg_sys::AccessShareLock as i32) || !is_there() {
            continue;
        }
        if !t.guards_reads(info.table) && !holds(pg_sys::RowShareLock as i32) {
            continue;
        }
        // It has defined something, or has locked the table as commands do that define.
        let defines = holds(pg_sys::ShareUpdateExclusiveLock as i32);
        let kinds = kinds_of(defines, t.protects(info.table));
        for kind in kinds.into_iter().flatten() {
            if !TAGS_WRITTEN.contains(&kind) {
                refuse_to_apply();
            }
            let tag = tag_of(info.oid, kind);
            // SAFETY: a transaction is running, so it has an owner. Any tag can be locked. An ERROR
            // unwinds, and the transaction is undone.
            unsafe {
                owned_by(pg_sys::TopTransactionResourceOwner, || {
                    pg_sys::LockAcquire(&tag, pg_sys::ShareLock as i32, false, false);
                });
            }
        }
    }
}

/// The kinds of locks that a prepared transaction takes for a table.
fn kinds_of(defines: bool, protects: Protects) -> [Option<u16>; 2] {
    let written = if protects.stronger { TAG_WRITTEN_STRONGER } else { TAG_WRITTEN };
    match protects {
        _ if defines => [Some(TAG_PREPARED), None],
        Protects { any_rows: true, .. } => [Some(TAG_ONLY_READ), None],
        Protects { keys, .. } => [Some(written), keys.then_some(TAG_KEYS)],
    }
}

/// A subscription with two_phase prepares what it applies, and goes on to apply others. It would
/// wait for itself, at once or after a restart, where what it has prepared keeps more than rows.
fn refuse_to_apply() {
    // SAFETY: reads a variable of this process.
    if unsafe { pg_sys::IsLogicalWorker() } {
        unsupported(
            "a subscription cannot prepare a transaction that keeps more of a mixedcc table than the rows that it has written",
            "Let it apply at READ COMMITTED, into tables whose protocol locks no partitions, without triggers that lock rows; or create it with two_phase = off.",
        );
    }
}

/// Stands for what prepared transactions keep of a relation of this database.
pub(super) fn tag_of(oid: pg_sys::Oid, kind: u16) -> pg_sys::LOCKTAG {
    // SAFETY: reads a variable of this process.
    lock_tag(unsafe { pg_sys::MyDatabaseId }.to_u32(), oid.to_u32(), 0, kind)
}

/// Waits until a transaction that was prepared before the start of the server is finished.
pub(super) fn await_end(xid: u32) {
    // SAFETY: a transaction is running. An ERROR unwinds.
    unsafe { compat::wait_for_end(compat::ident_of_recovered(xid)) };
    finish_decided();
}

/// A permanent relation of this database is about to be loaded: waits until the transactions are
/// finished that were prepared before the server has started, and that have used it (INV-ASLEEP).
/// False: the caller does not wait, and there is one.
pub fn await_prepared(oid: pg_sys::Oid, waits: bool) -> bool {
    let (tag, mode) = (tag_of(oid, TAG_PREPARED), pg_sys::ExclusiveLock as i32);
    // SAFETY: any tag can be locked. An ERROR unwinds and releases the lock.
    unsafe {
        if pg_sys::LockAcquire(&tag, mode, false, !waits) == pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL {
            return false;
        }
        pg_sys::LockRelease(&tag, mode, false);
    }
    true
}

/// The transactions of before the start that may have made an index of a relation (INV-MAKERS).
fn makers(oid: pg_sys::Oid) -> Vec<u32> {
    if faults::on(Fault::MakersForgotten) {
        return Vec::new();
    }
    // SAFETY: an ERROR unwinds.
    unsafe { compat::recovered_holders(&compat::relation_tag(oid), pg_sys::RowExclusiveLock as i32) }
}

/// May a relation of this database have an index that the catalogs do not show yet
/// (INV-MAKERS)? Asked before a look at them.
pub fn may_be_indexed(oid: pg_sys::Oid) -> bool {
    !makers(oid).is_empty()
}

/// Waits until a relation of this database has no such index.
pub fn await_makers(oid: pg_sys::Oid) {
    while let Some(xid) = makers(oid).last() {
        await_end(*xid);
    }
}

/// Takes the slot that this process will have, if PostgreSQL can prepare transactions at all.
fn take_spare() {
    if compat::max_prepared_transactions() == 0 || slots::take_spare() {
        return; // the first one is an error of PostgreSQL's, which comes later
    }
    finish_decided();
    if !slots::take_spare() {
        complain(
            PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
            "maximum number of prepared transactions reached",
            "Increase max_prepared_transactions, or finish prepared transactions.",
        );
    }
}

/// The transaction is prepared. PostgreSQL has taken its name from this process, and lets others
/// finish it soon. Allocates nothing and cannot fail.
pub fn hand_over() {
    let b = backend();
    b.commit.prepared();
    pending::hand_over();
    let t = &mut b.txn;
    if !t.is_prepared() {
        t.abort(); // it has looked at the clock at most
        slots::give_spare_back();
        return;
    }
    // SAFETY: reads a variable of this process, and raises nothing.
    let xid = unsafe { crate::pg::raw::GetTopTransactionIdIfAny() };
    if let Some(to) = slots::move_to_spare(u32::from(xid)) {
        t.hand_over(to);
    }
}

/// Ends the transactions that PostgreSQL has decided (INV-DECIDED).
#[inline]
pub fn finish_decided() {
    if shmem::engine().has_prepared() || slots::is_finishing() {
        finish_all();
    }
}

/// The same, called from a frame that catches no panic.
#[pg_guard]
pub unsafe extern "C-unwind" fn finish_after_command() {
    finish_decided();
}

#[cold]
fn finish_all() {
    let e = shmem::engine();
    // In this order: a process that has taken a transaction out of its slot has said so before.
    if e.kept_slots().any(|slot| is_decided(slot)) || slots::is_finishing() {
        #[cfg(feature = "faults")]
        faults::begin();
        shmem::finishing(|| finish_locked(e));
    }
}

/// The same for a caller that has the lock.
pub(super) fn finish_locked(e: Engine) {
    let _finishing = slots::Finishing::begin();
    let decided = e.kept_slots().filter(|slot| is_decided(*slot));
    decided.for_each(|slot| finish(e, slot));
}

fn is_decided(slot: SlotId) -> bool {
    !wal::is_running(slots::prepared_xid(slot))
}

/// Ends a decided transaction. The caller has the lock.
fn finish(e: Engine, slot: SlotId) {
    let xid = pg_sys::TransactionId::from(slots::prepared_xid(slot));
    // SAFETY: a look at the commit log.
    let committed = unsafe { pg_sys::TransactionIdDidCommit(xid) };
    let Some(mut t) = Txn::take_over(e, slot) else { return };
    let changes = t.kept_changes().to_vec();
    reach("prepared-taken");
    let recovered = compat::is_recovered(e.slots[slot as usize].ident.load(Ordering::SeqCst));
    // Its tables may be dropped as soon as its guards have ended (INV-TABLE).
    e.pin(slot);
    wal::critical(|| {
        if committed {
            t.decide_prepared();
            if recovered && !faults::on(Fault::EndForgotten) {
                slots::note_end(e.slots[slot as usize].xid.load(Ordering::SeqCst), t.csn());
            }
            copies::note_commit(t.csn(), u32::from(xid).into());
            commit::mark_prepared(&t, slot);
            t.publish(&PG);
        } else {
            t.abort();
        }
        e.region.flush_slot(slot as usize);
    });
    e.slots[slot as usize].xid.store(0, Ordering::SeqCst);
    reach("prepared-published");
    kept::end(&changes, (&e, slot), committed);
    slots::make_spare(slot);
}
