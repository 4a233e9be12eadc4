//! The engine's interface to its environment: one trait.

use crate::csn::{Csn, SlotId};
use crate::error::Error;

/// The event that a sleeping transaction waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitFor {
    /// The platform's identifier of the holding transaction. For PostgreSQL: its virtual
    /// transaction id.
    pub ident: u64,
    /// The holder's slot.
    pub slot: SlotId,
    /// The tag of the subtransaction that took the lock, or one of [`Platform::take_tag`]. 0: the
    /// lock is held to the end of the top-level transaction.
    pub tag: u32,
    /// The wanted lock, if it is one lock. Used in messages.
    pub lock: Option<Queue>,
}

/// So many first steps of a short wait take no time to speak of: the platform does not sleep in
/// them ([`Platform::pause`]).
pub const SPINS: u32 = 50;

/// Set in the tags of locks that a scan may give up ([`Platform::take_tag`]).
pub const EARLY: u32 = 1 << 31;
/// Set in the tags of locks that a commit may give up before it is done.
pub const AT_COMMIT: u32 = 1 << 30;

/// The queue of the waiters of one lock, served in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// A record of a table: table id, record number.
    Record(u64, u64),
    /// A partition of a table: table id, partition number.
    Partition(u64, u32),
    /// A range of an index: table id, index, number of the range. Its highest bit says in which of
    /// two sets of boundaries.
    Range(u64, u64, u32),
}

/// What the platform says after a nap of a newcomer that stays behind a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Napped {
    /// It has napped for a short time so far.
    Short,
    /// For some time. The platform says so again after each further one.
    Long,
    /// The same, and a transaction waits for the newcomer where only the platform sees that.
    Awaited,
}

/// The state of a commit whose word is *committing*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has committed.
    Committed,
    /// It is open, or the commit has ended meanwhile.
    Open,
}

/// Named points at which tests can stop or fail a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StopEvent {
    /// At commit, before the optimistic protocols lock the records that they write.
    CommitLock = 0,
    /// At commit, before writes are registered for predicates.
    CommitRegister = 1,
    /// At commit, before the versions are linked.
    CommitLink = 2,
    /// At commit, before the CSN is taken.
    CommitPrepare = 3,
    /// At commit, with the CSN taken, before validation.
    CommitValidate = 4,
    /// At commit, after validation. The outcome is open until the platform decides.
    CommitDecided = 5,
    /// Before a wait for a record lock.
    LockWait = 6,
    /// Before a serializable read.
    Read = 7,
    /// Before a write is buffered.
    Write = 8,
}

/// The engine's environment.
///
/// An implementation may unwind out of `wait_for`, `enter_queue`, `stand_back`, `pause`, `nap`,
/// `nap_for_lock`, `compare_keys` and `stop_event`, as an ERROR of PostgreSQL does. The engine
/// holds no latch at these calls, and its transaction can be aborted after them. A platform that
/// unwinds out of `wait_for` removes the caller from its queue itself, at the latest when its
/// (sub)transaction is aborted, as PostgreSQL's lock manager does. After an error that is returned,
/// the engine leaves the queue.
pub trait Platform {
    /// Sleeps until the holder may have released its lock. Returns at once if the holder has ended.
    fn wait_for(&self, who: WaitFor) -> Result<(), Error>;
    /// Becomes the first waiter of a lock. Sleeps while there is another one.
    fn enter_queue(&self, queue: Queue) -> Result<(), Error>;
    /// May the statement that runs sleep for this lock? If not, it gets [`Error::WouldBlock`], and
    /// goes on if it can do without the lock.
    fn may_sleep(&self, _queue: Queue) -> bool {
        true
    }
    /// Leaves the queue that was entered last. Must not fail.
    fn leave_queue(&self, queue: Queue);
    /// A nap of a newcomer that stays behind a waiter. It lasts until the next [`Platform::nudge`]
    /// at most; `n` counts the naps of one such wait.
    fn stand_back(&self, _queue: Queue, n: u32) -> Result<Napped, Error> {
        self.pause(n).map(|()| Napped::Short)
    }
    /// Ends the nap of the transaction in this slot, if it takes one. Must not fail.
    fn nudge(&self, _slot: SlotId) {}
    /// A short wait for the end of another transaction's commit. `n` counts the steps of this wait,
    /// and the first [`SPINS`] do not sleep.
    fn pause(&self, n: u32) -> Result<(), Error>;
    /// A wait for a commit that is not done: it may last as long as a standby needs. `n` counts the
    /// steps of this wait. May unwind.
    fn nap(&self, n: u32) -> Result<(), Error> {
        self.pause(n)
    }
    /// The same in a wait for a lock of a transaction that may stay for days: the platform's limit
    /// for such waits counts.
    fn nap_for_lock(&self, n: u32) -> Result<(), Error> {
        self.nap(n)
    }
    /// The outcome of the commit of this slot at this CSN, which was found *committing*, if another
    /// authority decides it.
    fn outcome(&self, _slot: SlotId, _csn: Csn) -> Outcome {
        Outcome::Open
    }
    /// The number of pauses after which a validation gives up waiting for a commit with a smaller
    /// CSN, and takes it for one that succeeds. Such a commit may wait for ours where no detector
    /// sees it, while its caller commits elsewhere.
    fn patience(&self) -> u32 {
        u32::MAX
    }
    /// The tag of the current subtransaction, for locks that it takes. 0 in the top-level
    /// transaction.
    fn lock_tag(&self) -> u32;
    /// Returns a new tag of this transaction with this bit, [`EARLY`] or [`AT_COMMIT`], for locks
    /// that it may give up before it ends. A waiter for such a lock sleeps until
    /// [`Platform::give_up`] or the end of the transaction. 0: the platform has none, and waiters
    /// sleep to the end.
    fn take_tag(&self, _bit: u32) -> Result<u32, Error> {
        Ok(0)
    }
    /// Wakes up the waiters for locks with this tag, as no lock has it any more. Must not fail.
    fn give_up(&self, _tag: u32) {}
    /// Does the process of this slot hold no snapshot, so that its pin is stale?
    fn quiescent(&self, slot: SlotId) -> bool;
    /// Compares two keys of an index with this order, which is not 0. The order is total, and does
    /// not change as long as the index exists. May unwind, as `wait_for` may.
    fn compare_keys(&self, _order: u32, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        a.cmp(b)
    }
    /// The progress of a scan with an open end, if the platform knows it: the last key that the
    /// scan read, and whether it reads upwards. `scan` is its number
    /// ([`crate::txn::ScanId::number`]). May unwind.
    fn reached(&self, _scan: u32) -> Option<(Vec<u8>, bool)> {
        None
    }
    /// Does a row meet the condition of a scan of this transaction (see
    /// [`crate::Txn::scan_where`])? Depends on the row's columns alone. May unwind.
    fn meets(&self, _condition: u32, _row: std::ptr::NonNull<crate::record::Version>) -> bool {
        true
    }
    /// Has the transaction written outside the engine? Then it cannot be serialized before its
    /// commit.
    fn has_written(&self) -> bool {
        false
    }
    /// May a transaction that has only read go on as a snapshot where it would fail otherwise?
    fn freezes_readers(&self) -> bool {
        true
    }
    /// A point at which a test may stop or fail the transaction.
    fn stop_event(&self, _event: StopEvent) -> Result<(), Error> {
        Ok(())
    }
}
