//! SERIALIZABLE transactions that use tables of ours and of heap, where the setting
//! `mixedcc.mixed_serializable` is `serializable`. The proof is in docs/design/mixed.md.
//!
//! **INV-MIXED**: A mixed transaction that may write commits under a lock of the cluster (R2). It
//! takes the lock before its CSN, and PostgreSQL releases it when snapshots of heap show the
//! transaction. Under the lock it makes PostgreSQL's test before a commit, and then its own (R1):
//! no transaction that has replaced what it has read in heap has ended. Heap counts it as one
//! that has written. Its transaction id is in the shared block since before the CSN.
//!
//! **INV-CUT**: A mixed transaction that was READ ONLY at its first query (R3) has two snapshots.
//! That of heap misses no mixed commit that had taken the lock by the time at which the one of ours
//! was taken. And of two such transactions the one whose snapshot of heap is later does not have
//! the earlier one of ours.
//!
//! Temporary tables and catalogs are not heap here.

use super::{backend, order, parallel, tags, Backend, Mode, Touched};
use crate::pg::compat::{self, Standing};
use crate::pg::errors::{complain_with_detail, unsupported};
use crate::pg::faults::{self, Fault};
use crate::pg::guc::{Mixed, MIXED_SERIALIZABLE};
use crate::pg::{isolation, wal};
use crate::state::platform::{self, PG};
use crate::state::rel;
use crate::state::stop::reach;
use mixedcc_engine::csn::Csn;
use mixedcc_engine::platform::Platform;
use mixedcc_engine::Txn;
use pgrx::pg_sys;
use pgrx::prelude::*;

mod cuts;
pub mod kinds;
mod marks;
pub use cuts::Cut;
pub use marks::await_marks;

/// Bytes of shared memory.
pub fn size() -> usize {
    cuts::size() + kinds::size()
}

/// Finds the blocks, or makes them.
///
/// # Safety
/// Called by the start-up hook of shared memory, with AddinShmemInitLock.
pub unsafe fn startup() {
    // SAFETY: the contract of this function.
    unsafe {
        cuts::startup();
        kinds::startup();
    }
}

/// Does the setting want mixed transactions to be serializable?
pub fn is_wanted() -> bool {
    MIXED_SERIALIZABLE.get() == Mixed::Serializable && isolation::is_at_serializable()
}

/// The transaction has used tables of ours and of heap, or is about to.
pub fn begin() {
    refuse_foreign(&backend().mixed);
    if super::mode() == Mode::SerializableReadOnly {
        begin_read_only(backend());
    } else {
        refuse_late();
        check_standing();
        super::validate_at_commit();
        super::thaw();
    }
    backend().mixed.mixed = true;
}

/// The remote part commits while the lock of INV-MIXED is held, and might wait for a transaction of
/// another server that waits for it: no deadlock detector sees that.
pub fn refuse_foreign(t: &Touched) {
    if t.foreign {
        unsupported(
            "a SERIALIZABLE transaction that uses mixedcc tables and tables of another access method cannot use foreign tables",
            "Use the foreign tables in a transaction of their own, or set mixedcc.mixed_serializable to warning or allow.",
        );
    }
}

/// An ERROR if its snapshots are of different moments (INV-CUT).
fn begin_read_only(b: &Backend) {
    // What may have written in heap is no reader.
    let reads = compat::serializable_standing() != Standing::Writer;
    let Some(cut) = b.cut.filter(|_| reads) else {
        unsupported(
            "this SERIALIZABLE READ ONLY transaction cannot use both mixedcc tables and tables of another access method",
            "It has imported its snapshot, or was READ WRITE or had another mixedcc.mixed_serializable at its first query.",
        )
    };
    // SAFETY: the snapshot of a SERIALIZABLE transaction, which has begun its first query.
    let is_whole = cut.is_admitted() || unsafe { cut.admit(pg_sys::GetTransactionSnapshot(), b.read_csn) };
    if !is_whole && !faults::on(Fault::MixedTorn) {
        complain_with_detail(
            PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
            "could not serialize access due to concurrent transactions",
            "This READ ONLY transaction has a snapshot of the mixedcc tables and one of the others, which cannot be put in one order with other transactions over both.",
            "The transaction might succeed if retried.",
        );
    }
}

/// PostgreSQL's serializable isolation takes the transaction for one that may write.
fn check_standing() {
    match compat::serializable_standing() {
        Standing::Writer => {}
        Standing::ReadOnly | Standing::None => unsupported(
            "a SERIALIZABLE transaction whose first query was READ ONLY cannot use both mixedcc tables and tables of another access method",
            "Run the first query outside of a READ ONLY subtransaction.",
        ),
        Standing::Strange => unsupported(
            "this build of PostgreSQL keeps serializable transactions in another way than mixedcc expects",
            "Set mixedcc.mixed_serializable to error, warning or allow.",
        ),
    }
}

/// What a READ ONLY transaction, which has just taken its snapshot `csn` of ours, must know if it
/// becomes mixed. One that is DEFERRABLE is to run for long without a failure: it registers now.
///
/// # Safety
/// A valid MVCC snapshot of this backend, taken before that of ours.
pub unsafe fn cut(s: pg_sys::Snapshot, csn: Csn) -> Option<Cut> {
    // SAFETY: a variable of this process; the contract of this function.
    is_wanted().then(|| unsafe { Cut::look().early(pg_sys::XactDeferrable, s, csn) })
}

/// Is the transaction, which is about to commit or to be prepared, a mixed one that may have
/// written? An ERROR if it is READ ONLY, mixed, and no cut.
pub(super) fn is_mixed(b: &mut Backend) -> bool {
    if b.mixed.mixed {
        return super::mode() == Mode::Serializable;
    }
    if !is_wanted() || b.mixed.passed || parallel::is_worker() {
        return false;
    }
    b.mixed.ours |= b.txn.is_active() && !b.txn.is_untouched();
    let told = kinds::note_told(&mut b.mixed);
    if b.mixed.ours && PG.has_written() || b.mixed.routed {
        kinds::note_written(&mut b.mixed);
    }
    if !(b.mixed.ours && b.mixed.others) {
        return false;
    }
    if super::mode() == Mode::Serializable {
        return true;
    }
    if told || compat::serializable_standing() == Standing::Writer {
        begin_read_only(b);
    }
    false
}

/// The commit of a mixed transaction begins. It may still sleep for other locks after this.
pub(super) fn begin_commit() {
    let b = backend();
    refuse_foreign(&b.mixed);
    b.mixed.mixed = true;
    wal::full_xid();
    check_standing();
    super::thaw();
    if !faults::on(Fault::MixedReader) {
        count_as_writer(&b.txn);
    }
}

/// By a table of ours, of which no transaction has a predicate lock.
fn count_as_writer(t: &Txn) {
    let touched: Vec<_> = rel::of_partitions(t.touched_partitions()).collect();
    for oid in touched {
        // SAFETY: a transaction is running. An OID of a table that was dropped gives null. The
        // relation is open while it is used; an ERROR closes it with the transaction.
        unsafe {
            let r = pg_sys::RelationIdGetRelation(oid);
            if r.is_null() {
                continue;
            }
            compat::count_as_writer(r);
            pg_sys::RelationClose(r);
            return;
        }
    }
}

/// Takes the lock, and makes the tests (INV-MIXED). An ERROR aborts the transaction. `last` takes
/// the last lock that the commit needs, so that no holder of that one waits for its turn. Nothing
/// waits for another lock from there to the end of the commit.
pub fn enter_commit(last: impl FnOnce()) {
    if !faults::on(Fault::MixedTogether) {
        take_turn();
    }
    last();
    // Before the CSN, and before the test.
    cuts::note_commit(wal::full_xid());
    compat::check_before_commit();
    reach("mixed-tested");
    if has_missed_ended() && !faults::on(Fault::MixedMissed) {
        complain_with_detail(
            PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
            "could not serialize access due to read/write dependencies among transactions",
            "The transaction uses mixedcc tables and others, and what it has read of the others was changed by a transaction that has committed since.",
            "The transaction might succeed if retried.",
        );
    }
    reach("mixed-entered");
}

/// R1: has a transaction that has replaced what this one has read ended for snapshots?
fn has_missed_ended() -> bool {
    let (committed, prepared) = compat::missed_ones();
    committed || prepared.into_iter().any(|xid| !wal::is_running(xid))
}

fn take_turn() {
    let tag = platform::lock_tag(0, 0, 0, platform::TAG_MIXED);
    // SAFETY: in PRE_COMMIT of the top transaction, which has its owner. PostgreSQL releases the
    // lock after the transaction's end shows in snapshots, and also after an ERROR.
    unsafe {
        tags::owned_by(pg_sys::TopTransactionResourceOwner, || {
            pg_sys::LockAcquire(&tag, pg_sys::ExclusiveLock as i32, false, false);
        });
    }
}

/// A statement of another extension's callback uses tables of both kinds after the tests.
pub fn refuse_late() {
    if order::is_committing() {
        unsupported(
            "tables cannot be used while a transaction over mixedcc tables and others commits",
            "Another extension's commit callback does it.",
        );
    }
}
