//! Transactions that read by one snapshot, and rest meanwhile: their pins are points (INV-POINT).

use super::{Level, Stage, Txn};
use crate::open::Seen;

/// May the pin of the transaction become a point?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Rests {
    /// It may.
    #[default]
    May,
    /// It rests at the moment.
    Now,
    /// It may not, to its end: it has done more than read by one snapshot.
    Never,
}

impl Txn {
    /// The transaction rests, if it may: it has no address of a version but those that this
    /// snapshot sees, and it will read by this snapshot only. Call [`Txn::wake`] before it does
    /// anything else. Returns whether it rests.
    pub fn take_rest(&mut self, seen: &Seen<'_>) -> bool {
        if !self.may_rest(seen) {
            return false;
        }
        self.e.pin_words(self.slot).rest(seen.upto);
        self.rests.set(Rests::Now);
        true
    }

    /// Of a row that was written or locked, an address may be remembered. Another snapshot than one
    /// of this pin needs more than the pin keeps.
    fn may_rest(&self, seen: &Seen<'_>) -> bool {
        let only_reads = self.writes.is_empty() && self.locks.is_empty() && self.scans.is_empty();
        let fits = || self.e.pinned_at(self.slot) <= seen.upto && self.e.floor_of(self.slot) <= seen.floor;
        self.rests.get() == Rests::May
            && self.stage == Stage::Execute
            && self.level == Level::Snapshot
            && only_reads
            && !self.following
            && !self.holds
            && self.reads.len() == 0
            && self.e.is_pinned(self.slot)
            && fits()
    }

    /// The transaction is about to do something.
    #[inline]
    pub fn wake(&self) {
        if self.rests.get() == Rests::Now {
            self.wake_up();
        }
    }

    #[cold]
    fn wake_up(&self) {
        self.rests.set(Rests::May);
        self.e.pin_words(self.slot).wake(self.e.opens());
    }

    /// Rests for an instant: what was pruned till now, and what will be replaced up to now, may be
    /// freed. As for [`Txn::take_rest`].
    pub fn rest_a_moment(&mut self, seen: &Seen<'_>) {
        if self.take_rest(seen) {
            self.wake();
        }
    }

    /// The transaction will not rest any more.
    pub fn rest_no_more(&mut self) {
        self.wake();
        self.rests.set(Rests::Never);
    }

    /// Does it rest?
    #[inline]
    pub fn is_resting(&self) -> bool {
        self.rests.get() == Rests::Now
    }
}
