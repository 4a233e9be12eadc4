//! Reclamation: when a slot frees what it has retired.

use super::{Owner, Txn};
use crate::csn::{Csn, SlotId};
use crate::platform::Platform;
use crate::primitive::Ordering;
use crate::retire::RetireQueue;
use crate::shared::Engine;

/// With fewer retired versions a commit does not free any.
const DRAIN: u64 = 64;
/// So many more retired versions than last time are a reason to look at all pins.
const MANY: u64 = 4096;
/// So many commits are one, too, if anything waits.
const COMMITS: u32 = 16;

/// The reclamation of a slot, from transaction to transaction.
#[derive(Default)]
pub(super) struct Reclamation {
    /// Since the last look at all pins.
    commits: u32,
    /// At the last look: how many pieces waited, and the CSN of the oldest large one.
    waiting: u64,
    large: Csn,
}

impl Reclamation {
    /// Frees some retired memory. `refresh` looks at all pins for the oldest one.
    pub fn collect(&mut self, owner: &Owner, refresh: impl FnOnce(&Engine) -> Csn) {
        let (e, slot) = (&owner.e, owner.slot);
        let waiting = || RetireQueue::len(e, slot);
        let large = || RetireQueue::large_at(e, slot);
        if waiting() < DRAIN && large().is_none() {
            return;
        }
        // In proportion to what waits, so that large transactions do not outrun us.
        let drain = |min| RetireQueue::drain(e, slot, min, (2 * DRAIN + waiting() / 2) as usize);
        drain(e.shared.min_pin.0.load(Ordering::SeqCst));
        self.commits += 1;
        let large = large();
        let many = waiting() > self.waiting + MANY || large.is_some_and(|at| at != self.large);
        if (waiting() >= DRAIN || large.is_some()) && (self.commits >= COMMITS || many) {
            self.commits = 0;
            self.large = large.unwrap_or(0);
            drain(refresh(e));
            if waiting() >= DRAIN {
                e.prune(slot, slot, (2 * DRAIN + waiting() / 2) as usize);
            }
            self.waiting = waiting();
        }
    }

    /// Frees what this slot has retired, if that is much: all that no pin keeps. It is for a
    /// transaction that commits nothing, and has applied what others have committed. Versions that
    /// sessions have retired at the present clock wait until it moves with the stable prefix.
    fn collect_applied(&mut self, owner: &Owner, p: &dyn Platform) {
        let (e, slot) = (&owner.e, owner.slot);
        let waiting = || RetireQueue::len(e, slot);
        if waiting() < DRAIN {
            return;
        }
        self.commits += 1;
        if self.commits < COMMITS && waiting() <= self.waiting + MANY {
            return;
        }
        self.commits = 0;
        RetireQueue::drain(e, slot, e.refresh_min_pin(p), usize::MAX);
        if waiting() >= DRAIN {
            e.prune(slot, slot, (2 * DRAIN + waiting() / 2) as usize);
        }
        self.waiting = waiting();
    }
}

impl Txn {
    /// A transaction has ended that commits nothing, and has perhaps applied what others have
    /// committed ([`crate::Table::apply`]): frees what that has replaced.
    pub fn collect_applied(&mut self, p: &dyn Platform) {
        self.reclamation.collect_applied(&self.owner, p);
    }
}

impl Engine {
    /// Frees retired memory of all slots, of each in proportion to what waits there: sessions that
    /// are idle, or have ended, do not free theirs. `me` is the caller's slot.
    pub fn collect_all(&self, p: &dyn Platform, me: SlotId) {
        if self.retired() < DRAIN {
            return;
        }
        let min = self.refresh_min_pin(p);
        for slot in 0..self.slots.len() as SlotId {
            let waiting = RetireQueue::len(self, slot);
            if waiting == 0 {
                continue;
            }
            let budget = (2 * DRAIN + waiting / 2) as usize;
            RetireQueue::drain_for(self, slot, me, min, budget);
            if RetireQueue::len(self, slot) >= DRAIN {
                self.prune(me, slot, budget);
            }
        }
    }
}
