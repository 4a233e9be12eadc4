//! Deliberate faults, with which tests show that they would find an error of that kind.
//!
//! Without the feature `faults` they cannot be switched on and cost nothing.

/// A fault of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Reads and predicates are not validated.
    NoValidation,
    /// Who lost an upgrade reads again without waiting for the winner.
    ForgetsLosses,
    /// Who is about to sleep does not look whether that completes a deadlock.
    OverlooksCycles,
    /// A read that finds a pending insert does not remember that it found no row.
    PendingIsForgotten,
    /// Nobody looks whether there are CSNs left.
    ClockRunsOver,
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
    /// A switch is completed whatever has become of it since the coordinator looked.
    FinishesBlindly,
    /// A switch is taken back when transactions may follow the new protocol alone.
    TakesBackLate,
    /// A transaction follows what the partition's set is at the moment, and forgets what it was.
    ForgetsProtocols,
    /// What is retired is freed by the next collection, whoever may reach it.
    NoGracePeriod,
    /// An entry of a list of registrations is reused while a predicate needs it, unnoticed.
    EntryReused,
    /// What committed and is in no entry of a ring any more is taken for aborted.
    EvictedForgotten,
    /// What a place of a ring still holds whose next registration is not written yet is taken for aborted.
    LappedForgotten,
    /// The stamp in a place of a list is believed to be of the registration that the place had before.
    PlaceReadOnce,
    /// Own registrations count in validation.
    OwnCounts,
    /// Those of aborted writers do.
    AbortedCounts,
    /// Those of writers with a larger CSN do.
    LaterCounts,
    /// The end of a predicate is left out of it.
    BoundOffByOne,
    /// Writes are not registered in the indexes with even names.
    IndexForgotten,
    /// A scan that ends early protects one key too little.
    LimitTooLittle,
    /// New boundaries are used at once, and writers use only them.
    NoMediation,
    /// A commit looks for ranges before it says that it is under way.
    LookBeforeCommitting,
    /// Ranges fall asleep while there are predicates on them.
    SleepsAtOnce,
    /// Ranges are used as soon as they are woken up.
    WakesAtOnce,
    /// A commit does not say which tables it writes.
    TablesUntold,
    /// A look-up that found nothing is not repeated, although somebody inserted before its predicate began.
    LooksOnce,
    /// Lists answer for what committed before they began.
    ForgetsWhatWasBefore,
    /// Writers do not look for parts of ranges that scans have read.
    PartsIgnored,
    /// Who has waited for the owner of such a part waits on for the next transaction of its slot.
    AwaitsTheNext,
    /// A scan that shall lock its ranges in place of rows locks neither, and relies on both.
    EscalatesTooFar,
    /// A registration of inserts names the first record only.
    NamesOneRecord,
    /// A scan with a condition judges inserted rows as they were inserted.
    JudgesTheFirst,
    /// A read that passes over a pending version believes that everything is valid still.
    PassesOver,
    /// The entry of a dead record stays in the primary index, and nobody knows.
    EntryForgotten,
    /// A lock word is changed whatever it has become since the look at it.
    StoresLockWord,
    /// A reclaimer reads the clock after it has looked at the pins.
    LooksAtClockLast,
    /// What was retired at the CSN of the oldest pin is freed.
    FreesAtPin,
    /// A commit retires what it replaced at its own CSN.
    RetiresAtOwnCsn,
    /// A commit does not renew its pin.
    CommitsUnpinned,
    /// A slot says that it holds its pin after it has renewed it.
    HoldsLate,
    /// Lists answer for what committed while they began.
    BeginsBeforeItWaits,
    /// Ranges grow drowsy at a value of the clock from before that.
    LooksAtClockBeforeDrowsy,
    /// What an entry of a ring held is noted after the entry is written.
    NotesEvictedLate,
    /// Newcomers take a lock though a waiter has marked it.
    MarkIgnored,
    /// Who releases a lock wipes the mark of a waiter away.
    ReleaseForgetsMark,
    /// A waiter that gives up leaves its mark behind.
    MarkLeftBehind,
    /// Who stands back behind a waiter does not look whether that waits for it.
    StandsBackForEver,
}

/// A moment at which tests make something happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A record's newest version was looked at, or the clock in order to pin. A look at the owner follows, or the pin.
    Looked,
    /// The slot is in the middle of beginning to hold its pin.
    Holding,
    /// An entry of a list of registrations is written.
    EntryWritten,
}

#[cfg(feature = "faults")]
mod switch {
    use super::{Fault, Moment};
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

    thread_local! {
        static MEANWHILE: Cell<Option<(Moment, Box<dyn FnOnce()>)>> = const { Cell::new(None) };
    }
    /// What others do when this thread comes to such a moment next.
    pub fn at(moment: Moment, f: impl FnOnce() + 'static) {
        MEANWHILE.set(Some((moment, Box::new(f))));
    }
    /// What others do right behind the next look of this thread.
    pub fn meanwhile(f: impl FnOnce() + 'static) {
        at(Moment::Looked, f);
    }
    /// This thread has come to it.
    pub(crate) fn reached(moment: Moment) {
        match MEANWHILE.take() {
            Some((at, f)) if at == moment => f(),
            other => MEANWHILE.set(other),
        }
    }

    thread_local! {
        static BETWEEN: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
    }
    /// What others do when this thread has taken its next place in a list of registrations, before its entry is written.
    pub fn before_the_entry(f: impl FnOnce() + 'static) {
        BETWEEN.set(Some(Box::new(f)));
    }
    /// This thread has taken a place in a list.
    pub(crate) fn took_a_place() {
        if let Some(f) = BETWEEN.take() {
            f();
        }
    }
}
#[cfg(feature = "faults")]
pub use switch::{at, before_the_entry, meanwhile, on, set};
#[cfg(feature = "faults")]
pub(crate) use switch::{reached, took_a_place};

/// See above.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) fn reached(_: Moment) {}
/// See above.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) fn took_a_place() {}

/// Is the fault on?
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) const fn on(_: Fault) -> bool {
    false
}
