//! Look-ups that lock a row because it is hot, and what makes rows hot (`partition/heat.rs`).
//!
//! Nothing here is needed for the order of commits (INV-HEAT): a lock that is not got is left out.

use super::retry::Why;
use super::{How, RecordRef, Txn};
use crate::csn::SlotId;
use crate::error::{AbortReason, Error};
use crate::faults::{self, Fault};
use crate::lock::Mode;
use crate::partition::Partition;
use crate::platform::Platform;
use crate::protocol::{Policy, Reading};

/// The record that has failed the transaction last.
#[derive(Clone, Copy)]
struct Culprit {
    partition: &'static Partition,
    no: u64,
    /// Address of its lock, which is only compared, as in [`super::Retry`].
    word: usize,
    table: u64,
    /// The mode in which the transaction should have locked it.
    mode: Mode,
}

/// What a transaction learns of hot records.
pub(super) struct Hot {
    culprit: Option<Culprit>,
    random: u32,
}

impl Hot {
    pub fn new(slot: SlotId) -> Hot {
        Hot { culprit: None, random: (slot as u32).wrapping_mul(2_654_435_761) | 1 }
    }

    /// A transaction begins.
    pub fn begin(&mut self) {
        self.culprit = None;
    }

    fn roll(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }
}

impl Txn {
    /// Is the row to be locked before a look-up reads it? Because many have failed for it, or
    /// because the last transaction of the slot has.
    #[inline]
    pub(super) fn is_hot(&self, r: RecordRef) -> bool {
        r.partition().heat.is_hot(r.no) || self.retry.lists(&r.rec.lock, r.table.id)
    }

    /// Would a look-up take a lock of the row that may not be held yet? (One for writing is enough
    /// for all look-ups.)
    #[inline]
    pub(super) fn wants_hot(&self, r: RecordRef) -> bool {
        let held = || r.rec.lock.held_by(self.slot).is_some_and(|h| h.mode >= Mode::NoKeyUpdate);
        self.is_hot(r) && !held()
    }

    /// Locks a row that is hot before it is read: for writing, if it will or probably will be
    /// written. Scans lock nothing.
    pub(crate) fn lock_hot(&mut self, p: &dyn Platform, r: RecordRef, why: Reading) -> Result<(), Error> {
        if !matches!(why, Reading::Row | Reading::ToWrite) || !self.is_hot(r) {
            return Ok(());
        }
        let heat = &r.partition().heat;
        let read = why == Reading::Row;
        let mode = if read { self.mode_to_read(r) } else { Mode::NoKeyUpdate };
        match self.lock_record(p, r, mode, How::Try, read) {
            Ok(()) => heat.lower(r.no, self.hot.roll()),
            Err(Error::WouldBlock) => {
                heat.raise(r.no, self.hot.roll());
                // A read of a row whose key this transaction has locked does not wait. The row's
                // writer may want the key, and then both would wait for each other.
                let locks_key = read && r.rec.lock.held_by(self.slot).is_some_and(|h| h.mode == Mode::KeyShare);
                if r.partition().policy() == Policy::Wait && !locks_key && !self.tries_once(r) {
                    return self.wait_hot(p, r, mode, read);
                }
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Is a lock that comes out of the canonical order not waited for? In benchmarks only.
    #[cfg(feature = "thresholds")]
    fn tries_once(&self, r: RecordRef) -> bool {
        let place = |r: RecordRef| (r.table.id, r.no);
        crate::partition::is_ordered() && self.locks.all.iter().filter_map(|l| l.rec).any(|l| place(l) > place(r))
    }

    #[cfg(not(feature = "thresholds"))]
    const fn tries_once(&self, _: RecordRef) -> bool {
        false
    }

    /// Waits for the lock of a hot row. If that closes a circle, or if the statement must not
    /// sleep, a read goes on without the lock. A write does not: its commit would close the same
    /// circle. (A circle of two holders of this lock comes as an upgrade that conflicts: this
    /// transaction has locked the row's key, for which the row's writer waits.)
    #[cold]
    pub(super) fn wait_hot(&mut self, p: &dyn Platform, r: RecordRef, mode: Mode, read: bool) -> Result<(), Error> {
        let before = (self.failed, self.retry.winner);
        match self.lock_record(p, r, mode, How::Wait, read) {
            Err(Error::Deadlock | Error::Abort { reason: AbortReason::UpgradeConflict, .. }) if read => {
                (self.failed, self.retry.winner) = before;
                Ok(())
            }
            Err(Error::WouldBlock) if read => Ok(()),
            got => got,
        }
    }

    /// Is the read of the row left out of what is validated? Only under a fault (INV-HEAT).
    #[inline]
    pub(super) fn trusts_heat(&self, r: RecordRef) -> bool {
        faults::on(Fault::TrustsHeat) && self.is_hot(r)
    }

    /// A record that was read has another version now.
    pub(super) fn read_conflict(&mut self, r: RecordRef) -> Error {
        self.blame_row(r, Mode::Share);
        let set = self.followed(r.partition());
        if set.only_locks_reads() || set.locks_hot() && self.reads.looked_at_lately(r).is_some() {
            self.retry.locks_rows = true;
            self.note_followed(r);
        }
        self.fail(AbortReason::ReadChanged, r.touch())
    }

    /// The transaction fails because of a row that it should have locked in this mode. (A
    /// transaction that has only read may go on as a snapshot.)
    pub(super) fn blame_row(&mut self, r: RecordRef, mode: Mode) {
        let partition = r.partition();
        if self.followed(partition).locks_hot() {
            let word = std::ptr::from_ref(&r.rec.lock) as usize;
            self.hot.culprit = Some(Culprit { partition, no: r.no, word, table: r.table.id, mode });
        }
    }

    /// The transaction is about to be undone. If a row has failed it, all learn of that.
    #[inline]
    pub(super) fn learn_heat(&mut self) {
        if let Some(culprit) = self.hot.culprit.take().filter(|_| self.failed.is_some()) {
            self.learn_from(culprit);
        }
    }

    #[cold]
    fn learn_from(&mut self, c: Culprit) {
        c.partition.heat.raise(c.no, self.hot.roll());
        if c.mode > Mode::Share {
            c.partition.intents.lost(c.no);
        }
        self.retry.list(c.word, c.table, Some(c.no), c.mode, Why::Changed);
    }
}
