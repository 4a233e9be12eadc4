//! A transaction that repeats one that has failed takes the locks of that one first, in canonical
//! order: MOCC's retrospective lock list (section 3.3 of the paper), also under `2pl`.
//!
//! A transaction that fails for a lock or a row leaves a list in its slot: the rows that it had
//! locked or written, and the one that has failed it ([`super::Retry`]). When the next transaction
//! looks up one of them, it takes the locks of all listed rows of that table, in the order of their
//! numbers. Transactions that repeat wait for each other there, in no circle. A transaction that
//! ends without a failure, or because a wait was given up, is no reason to take locks first.
//!
//! **INV-FIRST**: Nothing relies on a lock that was taken because it is listed. Reads and writes
//! ask for their locks as ever, and may find them held. So a list may name rows that the
//! transaction does not use. A lock is left out if it would close a circle that the engine sees.

use super::lock_set::mode_of;
use super::retry::Why;
use super::{Level, RecordRef, Txn};
use crate::error::{AbortReason, Error};
use crate::faults::{self, Fault};
use crate::partition::Partition;
use crate::platform::Platform;
use crate::protocol::{Policy, ProtocolSet};

impl Txn {
    /// The transaction is about to be undone. If it has failed for a lock or a row, it leaves the
    /// list for the next one. Else the next one is no repetition.
    #[inline]
    pub(super) fn leave_list(&mut self) {
        use AbortReason::{Deadlock, ReadChanged, UpgradeConflict, WriteConflict};
        let lists = |why| matches!(why, Deadlock | ReadChanged | UpgradeConflict | WriteConflict);
        if self.level == Level::Serializable && self.failed.is_some_and(|(why, _)| lists(why)) {
            self.list_locks();
        } else {
            self.retry.forget_first();
        }
    }

    /// Lists the rows that are locked or written. Of a transaction with more than fit none: its
    /// locks would be held for long. It allocates nothing.
    #[cold]
    fn list_locks(&mut self) {
        self.retry.forget_held();
        let written = self.writes.iter().filter(|w| w.base.is_some());
        let written = written.map(|w| (w.r, mode_of(w.kind)));
        let locked = self.locks.all.iter().filter_map(|l| Some((l.rec?, l.mode)));
        for (r, mode) in written.chain(locked) {
            let word = std::ptr::from_ref(&r.rec.lock) as usize;
            let listed = locks(self.touched.followed(r.partition()));
            if listed && !self.retry.list(word, r.table.id, Some(r.no), mode, Why::Held) {
                return self.retry.forget_held();
            }
        }
    }

    /// A row is about to be looked up under these protocols. If it is listed, the locks of all
    /// listed rows of its table come first, where the statement may sleep for them. One that must
    /// not sleep has locked its row before, or does without these locks.
    #[inline]
    pub(super) fn lock_listed(&mut self, p: &dyn Platform, r: RecordRef, set: ProtocolSet) -> Result<(), Error> {
        let unused = || faults::on(Fault::ListUnused) || faults::on(Fault::ForgetsLosses);
        let is_held = || r.rec.lock.held_by(self.slot).is_some();
        if !self.retry.is_next(r) || !locks(set) || is_held() || unused() {
            return Ok(());
        }
        self.lock_list(p, r)
    }

    #[cold]
    fn lock_list(&mut self, p: &dyn Platform, r: RecordRef) -> Result<(), Error> {
        let listed = self.retry.take_first(r.table.id);
        let there = |&(no, mode)| Some((RecordRef::find(r.table, no)?, mode));
        for (r, mode) in listed.iter().filter_map(there) {
            let is_held = r.rec.lock.held_by(self.slot).is_some();
            if !is_held && !r.rec.head().is_null() && may_wait(r.partition()) {
                self.wait_hot(p, r, mode, true)?;
            }
        }
        Ok(())
    }
}

/// Do transactions wait for locks of rows in a partition, before they read them?
fn may_wait(partition: &Partition) -> bool {
    locks(partition.protocols()) && partition.policy() == Policy::Wait
}

/// Do transactions lock rows before they read them, always or where rows are hot?
fn locks(set: ProtocolSet) -> bool {
    set.locks_reads() || set.locks_hot()
}
