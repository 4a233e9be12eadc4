//! The reasons for which an operation of the engine fails.

/// Declares the abort reasons: one list produces the enum, the texts and the counters.
macro_rules! abort_reasons {
    ($($name:ident = $text:literal, $doc:literal;)*) => {
        /// The reason why a transaction failed because of others. All are serialization failures,
        /// except [`AbortReason::Deadlock`] and [`AbortReason::WaitGivenUp`], which are only
        /// counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum AbortReason { $(#[doc = $doc] $name),* }
        impl AbortReason {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [AbortReason] = &[$(AbortReason::$name),*];
            /// A short text for views and error details.
            pub fn text(self) -> &'static str {
                match self { $(AbortReason::$name => $text),* }
            }
        }
    };
}

abort_reasons! {
    ReadChanged = "a row that was read has changed", "A read does not validate.";
    Phantom = "rows in what was scanned have changed", "A predicate does not validate.";
    PredicateWrapped = "too many concurrent writes into what was scanned", "The registrations that a predicate needs were overwritten.";
    LockConflict = "a lock conflicts and the waiting policy is no_wait", "A lock of a row or a range, under `no_wait`.";
    WaitDie = "a lock is held by an older transaction", "A lock of a row or a range, under `wait_die`.";
    UpgradeConflict = "two transactions want to write the row that both have read", "Two upgrades of read locks of one record.";
    PartitionOrder = "a partition was touched out of order", "Waiting would break the order of partition locks.";
    Prepared = "a prepared transaction has read or written there", "The guards of a transaction that is prepared (INV-AHEAD).";
    WriteConflict = "the row was updated concurrently", "A write found a newer version than the one read.";
    Deadlock = "it would wait in a circle", "[`Error::Deadlock`], or the platform's own.";
    WaitGivenUp = "a wait was given up", "A sleep for a lock ended without it: a timeout, a cancel, or another error.";
}

impl AbortReason {
    /// Is it a reason of [`Error::Abort`]?
    pub fn is_serialization_failure(self) -> bool {
        !matches!(self, AbortReason::Deadlock | AbortReason::WaitGivenUp)
    }
}

/// The number of abort reasons.
pub const ABORT_REASONS: usize = AbortReason::ALL.len();

/// An error of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Serialization failure: the client should retry the transaction.
    Abort {
        /// The reason.
        reason: AbortReason,
        /// The id of the table, or 0 if it is not known.
        table: u64,
        /// The number of the partition.
        partition: u32,
    },
    /// A deadlock, found by the engine or by the platform's detector.
    Deadlock,
    /// The lock is not available, and the caller did not want to wait.
    WouldBlock,
    /// The shared region is full.
    OutOfMemory,
    /// Too few CSNs are left, so transactions that write cannot commit any more.
    ClockExhausted,
    /// The platform's detector does not see all waits, and these protocols would wait in one phase
    /// with others in use (CormCC, section 4.2).
    WaitingPhases,
    /// A failure injected by a test.
    Injected,
}

impl From<crate::memory::OutOfMemory> for Error {
    fn from(_: crate::memory::OutOfMemory) -> Self {
        Error::OutOfMemory
    }
}
