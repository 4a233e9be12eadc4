//! Reclamation: when a slot frees what it has retired.

use super::Owner;
use crate::csn::Csn;
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
}
