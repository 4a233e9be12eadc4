//! The abort: undoes whatever the transaction did, from any point of its life.

use super::{Stage, Txn};
use crate::csn::{Stamp, State};
use crate::record::Version;

impl Txn {
    /// Ends the transaction as if it had never been. Allocates nothing and cannot fail.
    pub fn abort(&mut self) {
        if !self.is_active() {
            return;
        }
        let wrote = !self.writes.is_empty();
        self.discard_unplaced();
        self.set_word(State::Aborted, 0);
        if wrote {
            // INV-PIN: it may have been ended, without a snapshot; entries are removed from indexes now.
            self.e.pin(self.slot);
        }
        // INV-UNDO: what was linked is unlinked before its memory is retired.
        for i in (0..self.linked).rev() {
            let w = self.writes[i];
            if self.is_latest(i) {
                w.r.rec.set_head(w.base.map_or(std::ptr::null_mut(), |b| b.as_ptr()));
            }
        }
        self.linked = 0;
        while !self.writes.is_empty() {
            self.undo_last();
        }
        let tag = self.tag();
        for r in self.registered.drain(..) {
            r.finish(tag, Stamp::ABORTED);
        }
        self.count_aborted();
        if !self.failed.is_some_and(|(why, _)| why.is_serialization_failure()) {
            self.age = 0; // who fails for another reason does not retry for having lost
        }
        self.stage = Stage::Execute;
        self.reset();
        if wrote {
            // Without commits the clock stands still, and nothing that is retired could be freed.
            self.e.tick();
        }
        self.collect_by(|e| e.min_pin_of(|_| false));
    }

    /// The base of an own write: what the row was before the transaction.
    pub fn base_of(&self, n: u32) -> Option<std::ptr::NonNull<Version>> {
        self.write(n).and_then(|w| w.base)
    }
}
