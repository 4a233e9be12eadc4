//! Deliberate faults. Tests use them to show that they would find an error of that kind.
//!
//! Without the feature `faults` they cannot be switched on, and cost nothing.

/// A fault of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Reads and predicates are not validated.
    NoValidation,
    /// A loser of a lock upgrade reads again without waiting for the winner, nor for its turn.
    ForgetsLosses,
    /// A transaction that repeats takes its locks as it comes to them.
    ListUnused,
    /// ROLLBACK TO lowers a lock below what a read has made of it.
    LoweredTooFar,
    /// A transaction keeps the record numbers that it has not used.
    KeepsRuns,
    /// A statement sleeps for a lock although it must not.
    SleepsAnyhow,
    /// A read does not expect a write, whatever was seen before.
    IntentForgotten,
    /// A transaction that is about to sleep does not search for a deadlock.
    OverlooksCycles,
    /// A read that finds a pending insert does not remember that it found no row.
    PendingIsForgotten,
    /// Commits do not check whether there are CSNs left.
    ClockRunsOver,
    /// Read locks of `2pl` are released at once.
    EarlyRelease,
    /// The CSN is taken after validation.
    LateCsn,
    /// A scan checks registrations only from the ring's end on.
    PositionIsTail,
    /// A stamp is not read again after its owner's word, although the slot may have a new owner.
    SlotReused,
    /// A writer that is taking its CSN counts as active.
    PreparingIsActive,
    /// A step of a switch does not wait for transactions that began before it.
    StepsDoNotWait,
    /// The next step of a switch may be seen with the epoch of the step before it.
    EpochNotReset,
    /// The coordinator ends between the two stores of a step.
    CoordinatorDies,
    /// A switch is completed even if its state has changed since the coordinator looked.
    FinishesBlindly,
    /// A switch is taken back when transactions may follow the new protocol alone.
    TakesBackLate,
    /// Each protocol replaces each other one in a single step.
    AllRelyAlike,
    /// A transaction follows only the partition's present set, and forgets the sets before it.
    ForgetsProtocols,
    /// The next collection frees all retired memory, even if readers can reach it.
    NoGracePeriod,
    /// An entry of a list of registrations is reused while a predicate needs it, without notice.
    EntryReused,
    /// Commits whose entries in a ring were overwritten count as aborted.
    EvictedForgotten,
    /// A commit of an earlier lap counts as aborted while its entry waits to be overwritten.
    LappedForgotten,
    /// The stamp in a place of a list counts as that of the place's former registration.
    PlaceReadOnce,
    /// A transaction's own registrations count in its validation.
    OwnCounts,
    /// Registrations of aborted writers count in validation.
    AbortedCounts,
    /// Registrations of writers with a larger CSN count in validation.
    LaterCounts,
    /// The end of a predicate is left out of it.
    BoundOffByOne,
    /// Writes are not registered in indexes with even numbers.
    IndexForgotten,
    /// A scan that ends early protects one key too few.
    LimitTooLittle,
    /// New boundaries are used at once, and writers use only them.
    NoMediation,
    /// A commit looks for ranges before it says that it is under way.
    LookBeforeCommitting,
    /// Ranges become dormant while there are predicates on them.
    SleepsAtOnce,
    /// Ranges are used as soon as they are woken up.
    WakesAtOnce,
    /// A commit does not say which tables it writes.
    TablesUntold,
    /// A look-up without a result is not repeated, although a row was inserted before its predicate
    /// began.
    LooksOnce,
    /// Lists also answer for commits from before they began.
    ForgetsWhatWasBefore,
    /// Writers do not check the parts of ranges that scans have read.
    PartsIgnored,
    /// A waiter for the owner of such a part goes on to wait for the next transaction in its slot.
    AwaitsTheNext,
    /// A scan that should lock ranges instead of rows locks neither, and relies on both.
    EscalatesTooFar,
    /// A registration of inserts names only the first record.
    NamesOneRecord,
    /// A scan with a condition judges inserted rows by their first version.
    JudgesTheFirst,
    /// A read that passes over a pending version still counts all reads as valid.
    PassesOver,
    /// A transaction that has written goes on as a snapshot, where it should fail.
    WritersFreeze,
    /// A transaction that freezes reads the snapshot of that moment.
    FreezesNow,
    /// A transaction that is frozen from its beginning does not remember what it reads.
    FrozenForgets,
    /// A transaction forgets what it has read when it thaws.
    ThawForgets,
    /// A frozen transaction reads storage that is newer than its snapshot.
    FrozenSeesNewStorage,
    /// The entry of a dead record stays in the primary index, and the record is not marked.
    EntryForgotten,
    /// A sweep removes the entry of the primary index alone.
    SweepsOneIndex,
    /// A transaction that undoes an insert removes its entry of the primary index alone.
    UndoesOneEntry,
    /// A lock word is overwritten even if it has changed since it was read.
    StoresLockWord,
    /// A reclaimer reads the clock after it has looked at the pins.
    LooksAtClockLast,
    /// Memory retired at the CSN of the oldest pin is freed.
    FreesAtPin,
    /// A transaction that wakes does not say so.
    WakesLate,
    /// A transaction that rests keeps no version for its snapshot.
    RestsForgetfully,
    /// A pruner compares points by their clocks, and not by their floors.
    PrunesByClock,
    /// A pruner does not tell what a version that it unlinks has changed.
    UnlinkedForgotten,
    /// Versions that a pruner has unlinked are freed at the next look, also if a reader has them.
    FreesUnlinked,
    /// A commit retires replaced versions at its own CSN.
    RetiresAtOwnCsn,
    /// A commit does not renew its pin.
    CommitsUnpinned,
    /// A slot says that it holds its pin only after it has renewed it.
    HoldsLate,
    /// Lists also answer for commits from the time when they began.
    BeginsBeforeItWaits,
    /// Ranges become idle at a value of the clock from before the change.
    LooksAtClockBeforeDrowsy,
    /// The old registration of a ring's entry is noted in `evicted` only after the entry is
    /// written.
    NotesEvictedLate,
    /// A scan reads the tail of a list before it reads how many registrations have finished.
    ReadsTailFirst,
    /// The coordinator reads the epoch of switches after it has looked at the transactions.
    ReadsEpochLast,
    /// A commit does not look for sets of ranges that appeared after it planned its registrations.
    NewSetIgnored,
    /// Newcomers take a lock although a waiter has marked it.
    MarkIgnored,
    /// The release of a lock removes a waiter's mark.
    ReleaseForgetsMark,
    /// A waiter that gives up leaves its mark behind.
    MarkLeftBehind,
    /// An update in place says that it has changed no column: its registration, and its version.
    ChangesForgotten,
    /// An update in place says only what its last statement has changed.
    LastChangeOnly,
    /// A delete by a look does not look again when it has locked the row.
    DeletesUnlooked,
    /// A look that has locked its row does not look again.
    LocksUnlooked,
    /// A validation passes over tombstones, whatever was looked at.
    TombstonePassed,
    /// A validation moves a read up to the newest version, whatever that has changed.
    MovesTooFar,
    /// A read names only the columns at which its transaction has looked last in that version.
    LastLookOnly,
    /// A lost upgrade of a read lock counts as a write that the row usually gets, whatever the
    /// transaction wanted.
    LostReadIsWrite,
    /// A transaction that waits for the lock of a row of which it has locked the key alone does not
    /// tell the others.
    LearnsNothing,
    /// The retry of a transaction that a look of a key has failed locks keys again.
    RetriesLookAgain,
    /// ROLLBACK TO makes the lock of a row's key one of the row.
    KeyIsShared,
    /// A registration of many keys of a range says only what the first of its writes does.
    FirstOfRangeOnly,
    /// A scan passes over all updates in place, whatever it has looked at.
    LooksAtNothing,
    /// A scan that has locked its rows' keys alone relies on these locks for updates in place.
    KeysAreRows,
    /// A delete under the lock of an earlier update relies on that to keep readers of the key away.
    KeyIsForgotten,
    /// A tombstone names where its write has put the row, though the transaction has moved it on.
    MovesInSteps,
    /// A newcomer that stands back does not check whether the waiter waits for it.
    StandsBackForEver,
    /// The judgement of the records with a key counts even if the leaf has changed since.
    VerdictStays,
    /// An insert latches only the leaf of its own entry, not all that can have entries of the key.
    OneLeafCounts,
    /// A commit inserts its record before it opens its window.
    WindowOpensLate,
    /// A commit closes its window before it sets the dirty bits.
    WindowClosesEarly,
    /// A commit sets the dirty bits before it marks its transaction as committed.
    BitsBeforeMark,
    /// Neither a round nor the closing of the gate waits for windows.
    WindowsNotAwaited,
    /// A round clears dirty bits after it has looked at the records.
    BitClearedAfterLook,
    /// A round clears the flag of a table after it has taken the bits.
    FlagClearedLast,
    /// The gate is tested before the window says so.
    GateLookedFirst,
    /// A checkpoint is released for another redo pointer than the round's.
    ReleasesBlindly,
    /// A checkpoint is released only at the end of its round.
    ReleasesOnce,
    /// A round writes no pending entries.
    PendingLeftOut,
    /// A round writes no tombstone for a record that has an image and no version.
    FreedForgotten,
    /// A batch looks whether its table is dropped before it says that it is busy.
    LooksBeforeBusy,
    /// A snapshot looks for commits that are not done before it reads the clock, or whether there
    /// are any.
    LooksAtSlotsFirst,
    /// Neither is a commit told that was done after others on which it depends, nor looked for.
    FollowersForgotten,
    /// A transaction does not remember that it has read a commit that is not done.
    DependsForgotten,
    /// A commit is done before those on which it depends.
    DoneTooEarly,
    /// A commit retires what it has replaced before it is done.
    RetiresBeforeDone,
    /// A round passes over what prepared transactions have logged.
    PreparedPassed,
    /// A transaction below SERIALIZABLE does not depend on the commit, not done, whose version it
    /// has locked.
    OpenForgotten,
    /// A commit gives up locks of rows that it has not written before it is done.
    ReleasesUnwritten,
    /// Sets of ranges are freed under commits that have registered in them, and have no pin.
    SetsFreedEarly,
    /// A commit that has ended its pin goes on to show its snapshot.
    ShownWithoutPin,
    /// Commits ignore the guards of prepared transactions.
    GuardIgnored,
    /// The guards of a prepared transaction end before its commit takes a CSN.
    GuardEndsEarly,
    /// A guard does not say with which CSN its transaction has committed.
    GuardForgotten,
    /// A scan of a range guards only the partitions in which it has found rows.
    GuardTooNarrow,
    /// Prepared transactions ignore each other's guards.
    GuardsOverlap,
    /// A transaction is prepared before its guards are up.
    GuardLate,
    /// Deleted rows are dead once they are below every pin.
    DeadByPins,
    /// What lies below a tombstone is passed over if that committed before the pin.
    PastByPin,
    /// A reclaimer looks for commits that are not done after it has looked at the floors.
    LooksAtDoneLast,
    /// What standbys may show is told without a look at commits under way.
    StableTooLarge,
    /// The same without a look at prepared transactions.
    StableAtPrepared,
    /// A round takes a prepared transaction that has committed as one that is finished.
    DecidedEarly,
    /// A prepared transaction that commits forgets its CSN of before when it has ended.
    LoggedForgottenLate,
    /// What it was to standbys until its end is not remembered.
    EndsForgotten,
    /// One that was prepared before the start, and has ended, gets a slot all the same.
    EndedListed,
    /// Redo puts nothing into the journal.
    JournalForgotten,
    /// Redo goes on with a journal page of another redo interval.
    IntervalsMixed,
    /// A look-up that has locked the key of its row alone does not remember what it has read.
    KeyLookForgotten,
    /// A look-up of a hot row does not remember what it has read, whether or not it got the lock.
    TrustsHeat,
    /// A look ahead takes the newest committed versions, whatever the snapshot sees.
    AheadOfSnapshot,
    /// A look ahead takes no notice of what the transaction has written.
    AheadOfOwnWrites,
}

/// A moment at which a test runs code of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A record's newest version was read, or the clock for a pin. Next the owner is looked up, or
    /// the pin stored.
    Looked,
    /// The slot is in the middle of beginning to hold its pin.
    Holding,
    /// The next place in a list of registrations is taken, and its entry is not written yet.
    PlaceTaken,
    /// An entry of a list of registrations was written.
    EntryWritten,
    /// A scan is about to count the open registrations of a list.
    Counting,
    /// A look has seen a row, and is about to take the row's lock.
    Locking,
    /// An insert has judged the records with its key, and its entry is not added yet.
    Judged,
    /// The lock within a write was released.
    Released,
}

#[cfg(feature = "faults")]
mod switch {
    use super::{Fault, Moment};
    use std::cell::Cell;

    thread_local! {
        static ON: Cell<Option<Fault>> = const { Cell::new(None) };
    }
    /// Switches on a fault for this thread, or all faults off.
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
    /// Sets the code to run when this thread comes to such a moment next.
    pub fn at(moment: Moment, f: impl FnOnce() + 'static) {
        MEANWHILE.set(Some((moment, Box::new(f))));
    }
    /// Sets the code to run right behind the next [`Moment::Looked`] of this thread.
    pub fn meanwhile(f: impl FnOnce() + 'static) {
        at(Moment::Looked, f);
    }
    /// Called when this thread comes to a moment.
    pub(crate) fn reached(moment: Moment) {
        match MEANWHILE.take() {
            Some((at, f)) if at == moment => f(),
            other => MEANWHILE.set(other),
        }
    }
}
#[cfg(feature = "faults")]
pub(crate) use switch::reached;
#[cfg(feature = "faults")]
pub use switch::{at, meanwhile, on, set};

/// Does nothing without the feature `faults`.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) fn reached(_: Moment) {}
/// Is the fault on? Never, without the feature `faults`.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) const fn on(_: Fault) -> bool {
    false
}
