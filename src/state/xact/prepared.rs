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
//! * before it frees or changes a table, or makes an index: PostgreSQL's lock on the table ends
//!   with the decision.
//!
//! The process that has run COMMIT PREPARED or ROLLBACK PREPARED does it too, and the coordinator,
//! so that others rarely find anything. All of it costs one load while nothing is prepared.
//!
//! One process at a time ends them, under a lock. So the id that it has looked up is that of the
//! transaction that it ends, and not of the next one of the slot.

use super::{backend, has_backend, mixed, order, Mode};
use crate::pg::errors::{complain, unsupported};
use crate::pg::{compat, wal};
use crate::state::errors::raise;
use crate::state::platform::PG;
use crate::state::{rel, shmem, slots};
use mixedcc_engine::csn::SlotId;
use mixedcc_engine::{Engine, Level, Txn};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// PREPARE TRANSACTION begins: validates the transaction. An ERROR aborts it.
pub fn before() {
    order::begin_commit();
    if has_backend() {
        refuse();
        let t = &mut backend().txn;
        if is_kept(t) {
            take_spare();
            if let Err(e) = t.prepare_ahead(&PG) {
                raise(e);
            }
        }
    }
    order::begin_prepare();
}

/// Is there anything to keep of the transaction? Below SERIALIZABLE what it has read is not.
fn is_kept(t: &Txn) -> bool {
    t.is_active() && (t.level() == Level::Serializable || !t.is_untouched())
}

fn refuse() {
    if mixed::is_mixed(backend()) {
        unsupported(
            "cannot PREPARE a SERIALIZABLE transaction that has used mixedcc tables and tables of another access method",
            "Use COMMIT, or set mixedcc.mixed_serializable to warning or allow.",
        );
    }
    if rel::has_used_permanent() {
        unsupported(
            "cannot PREPARE a transaction that has used permanent mixedcc tables",
            "Use COMMIT, or make the tables UNLOGGED.",
        );
    }
    if rel::has_made_index() || !backend().pending.is_empty() {
        unsupported(
            "cannot PREPARE a transaction that has changed the definition of mixedcc tables",
            "Use COMMIT, or do it in a transaction of its own.",
        );
    }
    if backend().mode == Some(Mode::SerializableReadOnly) && backend().read_csn != 0 {
        unsupported(
            "cannot PREPARE a SERIALIZABLE READ ONLY transaction that has used mixedcc tables",
            "Use COMMIT: it has changed nothing. Or start it READ WRITE.",
        );
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
    let t = &mut backend().txn;
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
    if shmem::engine().has_prepared() {
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
    if e.kept_slots().any(|slot| is_decided(slot)) {
        shmem::finishing(|| {
            let decided = e.kept_slots().filter(|slot| is_decided(*slot));
            decided.for_each(|slot| finish(e, slot));
        });
    }
}

fn is_decided(slot: SlotId) -> bool {
    let xid = pg_sys::TransactionId::from(slots::prepared_xid(slot));
    // SAFETY: looks at the list of running transactions, with no lock of it held.
    unsafe { !pg_sys::TransactionIdIsInProgress(xid) }
}

/// Ends a decided transaction. The caller has the lock.
fn finish(e: Engine, slot: SlotId) {
    let xid = pg_sys::TransactionId::from(slots::prepared_xid(slot));
    // SAFETY: a look at the commit log.
    let committed = unsafe { pg_sys::TransactionIdDidCommit(xid) };
    let Some(mut t) = Txn::take_over(e, slot) else { return };
    // Its tables may be dropped as soon as its guards have ended (INV-TABLE).
    e.pin(slot);
    wal::critical(|| {
        if committed {
            t.decide_prepared();
            t.publish(&PG);
        } else {
            t.abort();
        }
        e.region.flush_slot(slot as usize);
    });
    slots::make_spare(slot);
}
