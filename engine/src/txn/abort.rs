//! The abort: undoes all that the transaction did, from any point of its life.
//!
//! **INV-UNDO**: A version that was linked is unlinked before its memory is retired.

use super::{Stage, Txn};
use crate::csn::{Stamp, State};
use crate::record::Version;

impl Txn {
    /// Ends the transaction as if it had never been. Allocates nothing and cannot fail.
    pub fn abort(&mut self) {
        if !self.is_active() {
            return;
        }
        self.wake();
        let wrote = !self.writes.is_empty();
        self.learn_heat();
        self.leave_list();
        self.discard_unplaced();
        self.set_word(State::Aborted, 0);
        if wrote {
            // INV-PIN: another slot may have ended our pin, if we had no snapshot; entries are
            // removed from indexes now.
            self.e.pin(self.slot);
        }
        // INV-UNDO: all is unlinked before `undo_all` retires it.
        self.writes.unlink();
        self.undo_all();
        self.registrations.finish(&self.owner, Stamp::ABORTED);
        self.count_group(self.failed.is_some());
        self.telemetry.count_aborted(&self.owner, &self.touched, self.failed);
        if !self.failed.is_some_and(|(why, _)| why.is_serialization_failure()) {
            self.retry.forget_age(); // the next transaction is no retry of a lost one
        }
        self.stage = Stage::Execute;
        self.end_guards(0);
        self.done();
        self.reset();
        if wrote {
            // Without commits the clock stands still, and no retired memory could be freed.
            self.e.tick();
        }
        self.reclamation.collect(&self.owner, |e| e.min_pin_of(|_| false));
    }

    /// The base of an own write: what the row was before the transaction.
    pub fn base_of(&self, n: u32) -> Option<std::ptr::NonNull<Version>> {
        self.write(n).and_then(|w| w.base)
    }
}
