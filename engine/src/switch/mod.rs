//! Mediated switching: a partition gets another protocol while transactions run.
//!
//! A switch from protocol A to B goes through three sets (CormCC, section 4.3): {A}, {A, B}, {B}. A
//! step is complete when every slot has passed a transaction boundary since the set was stored.
//!
//! So two transactions that run at one time began under the same set or under neighbouring sets.
//! Both follow all protocols with which they began, so they have a protocol in common for all that
//! they did (see the engine's README).
//!
//! Two protocols that rely on the same thing (`occ` and `mocc`) need no set in between: a
//! transaction that follows one of them does all that the other one relies on.
//!
//! **INV-FOLLOW**: A transaction publishes the switch epoch in its slot (`Epochs::enter`) before it
//! loads the set of any partition. It takes the epoch back after all its stamps are set and its
//! locks are released. Protocols that it has followed in a partition it follows to its end;
//! protocols that it meets there later are added.
//!
//! **INV-STEP**: A partition's set is replaced only when all transactions from before it was stored
//! are over, or by one that has, or relies alike with, a protocol that they follow. The first of
//! these two is the old protocol, while the upgrade is not complete. The second is one of two
//! protocols that rely on the same, in the switch between them.

#[cfg(all(test, not(loom)))]
mod ends_tests;
mod history;
mod passes;
mod state;

pub use history::{Entry, History, HISTORY};
pub use passes::{Coordinator, Passes};
pub use state::{Asked, AtStep, Done, Event, Step, StepEvent, Switch, SwitchView, Why};

use crate::faults::{self, Fault};
use crate::primitive::{model_fence, AtomicU64, Ordering};

/// Set in the epoch while no transaction may begin to follow protocols (the stop-all method).
const STOP: u64 = 1 << 63;

/// The switch epoch. It advances after a set was stored.
#[repr(C, align(128))]
pub struct Epochs {
    now: AtomicU64,
}

/// The result of a look at all slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The epoch before the look.
    asof: u64,
    /// The oldest epoch that a transaction has published. `u64::MAX`: there is none.
    oldest: u64,
    /// Were transactions kept from beginning to follow before the look?
    stopped: bool,
}

impl Passed {
    /// Has every slot passed a boundary since the epoch was announced?
    pub fn has(self, epoch: u64) -> bool {
        epoch != 0 && epoch <= self.asof && epoch <= self.oldest
    }
    /// Does no transaction follow protocols, and can none begin to?
    pub fn is_quiet(self) -> bool {
        self.stopped && self.oldest == u64::MAX
    }
}

impl Epochs {
    /// Initialises the epoch in a block that is being formatted.
    pub(crate) fn init(&self) {
        self.now.store(1, Ordering::SeqCst);
    }

    /// An epoch made of the model checker's atomics.
    #[cfg(loom)]
    pub fn model() -> Epochs {
        Epochs { now: AtomicU64::new(1) }
    }

    /// Publishes the epoch of a transaction that begins to follow protocols. Returns false if it
    /// has to wait because of the stop-all method.
    #[inline]
    pub fn enter(&self, mine: &AtomicU64) -> bool {
        let mut epoch = self.now.load(Ordering::SeqCst);
        loop {
            if epoch & STOP != 0 {
                mine.store(0, Ordering::SeqCst);
                return false;
            }
            mine.store(epoch, Ordering::SeqCst);
            model_fence();
            // Read again: a step that began meanwhile need not wait for this transaction, and a
            // stop must not miss it.
            let again = self.now.load(Ordering::SeqCst);
            if again == epoch {
                return true;
            }
            epoch = again;
        }
    }

    /// Withdraws the epoch of a transaction that is over.
    #[inline]
    pub fn leave(mine: &AtomicU64) {
        mine.store(0, Ordering::SeqCst);
    }

    /// Announces that a set was stored, and returns the epoch of that step.
    pub fn announce(&self) -> u64 {
        (self.now.fetch_add(1, Ordering::SeqCst) + 1) & !STOP
    }

    /// Looks at all slots.
    pub fn look<'a>(&self, slots: impl Iterator<Item = &'a AtomicU64>) -> Passed {
        let mut now = self.now.load(Ordering::SeqCst);
        model_fence();
        let published = slots.map(|s| s.load(Ordering::SeqCst)).filter(|&e| e != 0);
        let oldest = published.min().unwrap_or(u64::MAX);
        if faults::on(Fault::ReadsEpochLast) {
            now = self.now.load(Ordering::SeqCst);
        }
        Passed { asof: now & !STOP, oldest, stopped: now & STOP != 0 }
    }

    /// Keeps transactions from beginning to follow from now on (benchmarks of the stop-all method).
    pub fn stop(&self) {
        self.now.fetch_or(STOP, Ordering::SeqCst);
    }
    /// Lets transactions begin again.
    pub fn go_on(&self) {
        self.now.fetch_and(!STOP, Ordering::SeqCst);
    }
    /// Do transactions have to wait before they begin to follow?
    pub fn is_stopped(&self) -> bool {
        self.now.load(Ordering::SeqCst) & STOP != 0
    }
}
