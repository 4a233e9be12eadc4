//! Commits of heap that PostgreSQL marks in another order than snapshots show them (R4 of
//! docs/design/mixed.md).
//!
//! **INV-MARKED**: PostgreSQL marks a SERIALIZABLE transaction T that writes as committed
//! (predicate.c) after each one that has replaced what T has read, if snapshots show that before
//! they show T. PostgreSQL marks a transaction an instant after snapshots show it, and
//! does not see to the order of two. A transaction that reads what T has replaced, and is marked as
//! safe by T's end, may then be part of a cycle.

use crate::pg::compat;
use crate::pg::faults::{self, Fault};
use crate::state::stop::reach;
use pgrx::pg_sys;

/// Between two looks.
const LOOK_US: core::ffi::c_long = 50;

/// The transaction has committed, snapshots show it, and PostgreSQL will mark it. Waits for the
/// marks of those that it has missed. They wait for no lock any more. Nor is there a circle: the
/// structures have none in which all have prepared.
pub fn await_marks() {
    reach("commit-shown");
    if faults::on(Fault::MixedUnmarked) {
        return;
    }
    while compat::unmarked_missed().into_iter().any(is_shown) {
        compat::nap(LOOK_US);
    }
}

/// Do snapshots show the transaction, which has prepared? Those that will show it later show this
/// one, too.
fn is_shown(xid: pg_sys::TransactionId) -> bool {
    // SAFETY: looks at the transactions that run.
    unsafe { !pg_sys::TransactionIdIsInProgress(xid) }
}
