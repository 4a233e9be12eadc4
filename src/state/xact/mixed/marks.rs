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
use crate::pg::wal;
use crate::state::stop::reach;
use crate::state::xact::depends;

/// Looks for the mark of one that COMMIT PREPARED ends: it may never come, if that fails.
const MOST: u32 = 20_000;

/// Between two looks.
const LOOK_US: core::ffi::c_long = 50;

/// The transaction has committed, snapshots show it, and PostgreSQL will mark it. Waits for the
/// marks of those that it has missed. They wait for no lock any more, but one may wait for a
/// standby that is to apply it. A cancel ends the wait. There is no circle of such waits: the
/// structures have none in which all have prepared.
pub fn await_marks() {
    reach("commit-shown");
    if faults::on(Fault::MixedUnmarked) {
        return;
    }
    let mut looks = 0;
    while compat::unmarked_missed().into_iter().any(|x| match x.pid {
        0 => looks < MOST && !wal::is_running(x.xid),
        _ => compat::is_shown(x),
    }) {
        looks += 1;
        if depends::gives_up(
            "the transaction has committed, but another one that it has missed is not marked as committed: \
             transactions that are concurrent with both may not be serializable",
        ) {
            return;
        }
        compat::nap(LOOK_US);
    }
}
