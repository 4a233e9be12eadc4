//! All that the engine needs from outside: one trait.

use crate::csn::SlotId;
use crate::error::Error;

/// What a sleeping transaction waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitFor {
    /// The platform's name of the holding transaction (for PostgreSQL its virtual transaction id).
    pub ident: u64,
    /// The holder's slot.
    pub slot: SlotId,
    /// Tag of the subtransaction that took the lock, or one of [`Platform::take_tag`]; 0: the lock is held to the end of the
    /// top transaction.
    pub tag: u32,
    /// The lock that is wanted, if it is one lock: for messages.
    pub lock: Option<Queue>,
}

/// Tags with this bit are those of [`Platform::take_tag`].
pub const EARLY: u32 = 1 << 31;

/// The queue of the waiters of one lock: first come, first served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// A record of a table: table id, record number.
    Record(u64, u64),
    /// A partition of a table: table id, partition number.
    Partition(u64, u32),
    /// A range of an index: table id, index, number of the range.
    Range(u64, u64, u32),
}

/// Named points at which tests can stop or fail a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StopEvent {
    /// Commit, before the optimistic protocols lock what they wrote.
    CommitLock = 0,
    /// Commit, before writes are registered for predicates.
    CommitRegister = 1,
    /// Commit, before the versions are linked.
    CommitLink = 2,
    /// Commit, before the CSN is taken.
    CommitPrepare = 3,
    /// Commit, CSN taken, before validation.
    CommitValidate = 4,
    /// Commit, validated: the outcome is open until the platform decides.
    CommitDecided = 5,
    /// A record lock is about to be waited for.
    LockWait = 6,
    /// A serializable read is about to be made.
    Read = 7,
    /// A write is about to be buffered.
    Write = 8,
}

/// The outside of the engine.
///
/// An implementation may unwind out of `wait_for`, `enter_queue`, `stand_back`, `pause`, `compare_keys` and `stop_event`
/// (an ERROR of PostgreSQL does): the engine holds no latch at these calls and its transaction can be
/// aborted after them. A platform that unwinds out of `wait_for` takes the caller out of its queue
/// itself, at the latest when its (sub)transaction is aborted, as PostgreSQL's lock manager does; after an
/// error that is returned the engine leaves the queue.
pub trait Platform {
    /// Sleeps until the holder may have released its lock. Returns at once if it ended.
    fn wait_for(&self, who: WaitFor) -> Result<(), Error>;
    /// Becomes the first waiter of a lock; sleeps while there is another.
    fn enter_queue(&self, queue: Queue) -> Result<(), Error>;
    /// Leaves the queue entered last. Must not fail.
    fn leave_queue(&self, queue: Queue);
    /// A nap of a newcomer that stays behind a waiter whose turn comes first, to the next [`Platform::nudge`] at the
    /// latest; `n` counts the naps of one such wait. True: it has lasted for some time, and somebody waits for this
    /// transaction where only the platform sees it, so that it must not stay behind.
    fn stand_back(&self, _queue: Queue, n: u32) -> Result<bool, Error> {
        self.pause(n).map(|()| false)
    }
    /// Ends a nap of the transaction in this slot, if it takes one. Must not fail.
    fn nudge(&self, _slot: SlotId) {}
    /// A short wait for another transaction's commit to end; `n` counts its steps.
    fn pause(&self, n: u32) -> Result<(), Error>;
    /// After so many pauses a validation takes another's commit, which has its number, for one that succeeds.
    /// Such a commit may wait for ours where no detector sees it: its caller commits elsewhere meanwhile.
    fn patience(&self) -> u32 {
        u32::MAX
    }
    /// Tag of the current subtransaction for the locks that it takes; 0 in the top transaction.
    fn lock_tag(&self) -> u32;
    /// A tag of this transaction, with the bit [`EARLY`], for locks that it may give up before it ends: who waits for one sleeps
    /// until [`Platform::give_up`], or to the end of the transaction. 0: the platform has none, and waiters sleep to the end.
    fn take_tag(&self) -> Result<u32, Error> {
        Ok(0)
    }
    /// No lock has this tag any more: wakes up who waits for one. Must not fail.
    fn give_up(&self, _tag: u32) {}
    /// Does the process of this slot hold no snapshot, so that its pin is stale?
    fn quiescent(&self, slot: SlotId) -> bool;
    /// The order of two keys of an index whose order has this name, which is not 0. The order is total and does not
    /// change as long as the index exists. May unwind, as `wait_for` may.
    fn compare_keys(&self, _order: u32, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        a.cmp(b)
    }
    /// How far a scan of this transaction with an open end has come, if the platform knows: the last key that it
    /// read, and whether it reads upwards. `scan`: its number ([`crate::txn::ScanId::number`]). May unwind.
    fn reached(&self, _scan: u32) -> Option<(Vec<u8>, bool)> {
        None
    }
    /// Does a row meet a condition of a scan of this transaction (see [`crate::Txn::scan_where`])? Depends on the row's columns
    /// alone. May unwind.
    fn meets(&self, _condition: u32, _row: std::ptr::NonNull<crate::record::Version>) -> bool {
        true
    }
    /// Has the transaction written anything that the engine does not know of? Then it cannot be serialized
    /// before its commit.
    fn has_written(&self) -> bool {
        false
    }
    /// A point where a test may stop or fail the transaction.
    fn stop_event(&self, _event: StopEvent) -> Result<(), Error> {
        Ok(())
    }
}
