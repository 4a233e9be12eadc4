//! Waits for commits that the transaction has read, and that are not done (INV-DEPENDS).

use crate::pg::compat::Wait;
use crate::state::platform::PG;
use mixedcc_engine::{Error, Txn};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// Before the commit, of a transaction that takes an xid or has not written in our tables. A cancel
/// is an ERROR.
pub fn await_before(t: &mut Txn) -> Result<(), Error> {
    t.await_depends(&PG)
}

/// After the commit, which can neither fail nor be undone. A cancel ends the wait with a WARNING,
/// as that of a wait for a standby.
pub fn await_after(t: &mut Txn) {
    let mut n = 0;
    while t.depends_on_open() {
        if gives_up(
            "the transaction has committed, but others that it has read may not be safe yet: \
             canceled the wait for their flush or replication",
        ) {
            return;
        }
        // SAFETY: `MyLatch` is this process's own latch.
        unsafe {
            if n < 64 {
                pg_sys::pg_usleep(20);
            } else {
                // An exit would undo a transaction that has committed: the process ends later.
                let events = (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_POSTMASTER_DEATH) as i32;
                let seen = pg_sys::WaitLatch(pg_sys::MyLatch, events, 10, Wait::CommitDependency.event());
                if seen as u32 & pg_sys::WL_POSTMASTER_DEATH != 0 {
                    pg_sys::ProcDiePending = 1;
                }
                pg_sys::ResetLatch(pg_sys::MyLatch);
            }
        }
        n += 1;
    }
}

/// In a wait after the commit: has somebody canceled it, or ended the session? Says in a WARNING
/// what that leaves undone.
pub fn gives_up(warning: &str) -> bool {
    // SAFETY: variables of this process, which its one thread and its signal handlers write.
    unsafe {
        if pg_sys::ProcDiePending == 0 && pg_sys::QueryCancelPending == 0 {
            return false;
        }
        pg_sys::QueryCancelPending = 0;
        if pg_sys::ProcDiePending != 0 {
            // The client is not told that all is as it should be.
            pg_sys::whereToSendOutput = pg_sys::CommandDest::DestNone;
        }
    }
    warning!("{warning}");
    true
}
