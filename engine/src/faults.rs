//! Deliberate faults, with which tests show that they would find an error of that kind.
//!
//! Without the feature `faults` they cannot be switched on and cost nothing.

/// A fault of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Reads and predicates are not validated.
    NoValidation,
    /// Read locks of `2pl` are released at once.
    EarlyRelease,
    /// The CSN is taken after validation.
    LateCsn,
    /// A scan looks at registrations from the ring's end on.
    PositionIsTail,
    /// A stamp is not read again after its owner's word: the slot may have a new owner.
    SlotReused,
    /// A writer that takes its CSN at this moment counts as one that runs.
    PreparingIsActive,
    /// A step of a switch does not wait for those that began before.
    StepsDoNotWait,
    /// The next step of a switch is found with the epoch of the one before it.
    EpochNotReset,
    /// The coordinator ends between the two stores of a step.
    CoordinatorDies,
    /// A transaction follows what the partition's set is at the moment, and forgets what it was.
    ForgetsProtocols,
    /// What is retired is freed by the next collection, whoever may reach it.
    NoGracePeriod,
}

#[cfg(feature = "faults")]
mod switch {
    use super::Fault;
    use std::cell::Cell;

    thread_local! {
        static ON: Cell<Option<Fault>> = const { Cell::new(None) };
    }
    /// Switches a fault of this thread on, or all off.
    pub fn set(f: Option<Fault>) {
        ON.set(f);
    }
    /// Is the fault on?
    pub fn on(f: Fault) -> bool {
        ON.get() == Some(f)
    }
}
#[cfg(feature = "faults")]
pub use switch::{on, set};

/// Is the fault on?
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) const fn on(_: Fault) -> bool {
    false
}
