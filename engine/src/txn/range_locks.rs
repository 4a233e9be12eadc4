//! Locks of the ranges that a scan covers, for protocols that lock ranges.
//!
//! A scan locks them before it reads the index. A scan that may stop early takes them with a tag of
//! its own. When it ends it gives up the ranges that it has not read, and waiters for these go on.
//! The ranges that it has read stay locked to the end of the transaction.
//!
//! **INV-EARLY**: A lock of a range that a scan may give up early has a tag of the platform.
//! Waiters for the lock sleep for this tag until no lock has it any more. Then the platform wakes
//! them up. A lock that stays held has the tag 0 from then on, or the tag of another such scan.

use super::lock_set::LockSet;
use super::predicate::{Extent, Place};
use super::{How, Level, Owner, RecordRef, ScanId, Txn};
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::lock::{Claim, Holder, LockWord, Mode};
use crate::platform::{Platform, EARLY};
use crate::protocol::{Policy, Touch};
use crate::range::{Effect, IndexRanges, RangeSet};

/// Rows that a scan locks before it locks its ranges instead. Few in tests, whose
/// tables are small.
pub(super) const ESCALATE: u32 = if cfg!(feature = "faults") { 3 } else { 64 };

/// Scans under way that may give up what they have locked. Scans that begin while there are so many
/// keep their locks to the end of the transaction: a tag costs the platform a lock, and one
/// statement may scan hundreds of intervals.
const MANY: usize = 8;

/// A scan under way that has locked ranges which it may give up at its end.
///
/// INV-EARLY: a transaction that waits for such a range has seen the scan's tag on it, and is woken
/// up by this tag. So a range is given up only while it has the tag of the scan that ends. One that
/// has got another tag meanwhile ([`LockSet::keep_early`]) is held until that tag is given up, or
/// to the end of the transaction.
pub(super) struct Early {
    /// Number of the scan; 0: it is about to begin.
    scan: u32,
    /// The tag of the locks.
    pub tag: u32,
    /// Of the subtransaction in which it began.
    pub depth: u32,
    /// The first lock of the transaction that may have the tag.
    pub(super) from: usize,
}

impl LockSet {
    /// A tag for a scan that is about to begin, and may give up what it locks; 0: it keeps all.
    fn begin_early(&mut self, p: &dyn Platform, depth: u32) -> Result<u32, Error> {
        if self.early.len() >= MANY {
            return Ok(0);
        }
        let tag = p.take_tag(EARLY)?;
        if tag != 0 {
            self.early.push(Early { scan: 0, tag, depth, from: self.all.len() });
        }
        Ok(tag)
    }

    /// The scan that has locked ranges just now has this number.
    pub fn name_early(&mut self, scan: ScanId) {
        if let Some(e) = self.early.last_mut().filter(|e| e.scan == 0) {
            e.scan = scan.number();
        }
    }

    /// The tag of a scan's locks, if it may give up some of them.
    fn early_tag(&self, scan: ScanId) -> Option<u32> {
        self.early.iter().find(|e| e.scan == scan.number()).map(|e| e.tag)
    }

    /// Gives up a read lock of a range with this tag. A lock that was upgraded stays.
    fn unlock_range(&mut self, owner: &Owner, word: &'static LockWord, tag: u32) {
        if word.held_by(owner.slot).is_none_or(|h| h.tag != tag) {
            return;
        }
        let Some(at) = self.all.iter().rposition(|l| std::ptr::eq(l.word, word)) else { return };
        if self.all[at].mode <= Mode::Share && self.all[at].previous.is_none() {
            word.release(owner.e.region, owner.slot, None);
            self.all.remove(at);
            let starts = self.early.iter_mut().map(|e| &mut e.from);
            for mark in self.marks.iter_mut().chain(starts).filter(|m| **m > at) {
                *mark -= 1;
            }
        }
    }

    /// A scan that may give up locks has ended, and has given up those that it will. It keeps the
    /// others to the end of the transaction. If another such scan is under way, it may have read
    /// there too: then they are kept until that scan ends. No transaction waits for the old tag
    /// after this.
    fn keep_early(&mut self, owner: &Owner, p: &dyn Platform, at: usize) {
        let old = self.early.swap_remove(at);
        debug_assert!(old.tag & EARLY != 0);
        let other = self.early.last_mut().map_or(0, |e| {
            e.from = e.from.min(old.from);
            e.tag
        });
        let from = old.from.min(self.all.len());
        for l in self.all[from..].iter_mut().filter(|l| l.rec.is_none()) {
            l.retag(owner, old.tag, other);
        }
        // After the locks: a waiter that finds one held has read the count before (INV-CYCLE).
        owner.e.note_early_release(owner.slot);
        p.give_up(old.tag);
    }

    /// A scan that could not begin keeps what it had locked.
    fn keep_unbegun(&mut self, owner: &Owner, p: &dyn Platform) {
        if self.early.last().is_some_and(|e| e.scan == 0) {
            self.keep_early(owner, p, self.early.len() - 1);
        }
    }

    /// Locks a range for reading if that takes no waiting. Is it locked?
    fn lock_at_once(&mut self, owner: &Owner, word: &'static LockWord, mode: Mode) -> bool {
        let me = Holder { slot: owner.slot, mode, tag: 0 };
        let got = word.try_acquire(owner.e.region, me, Claim::Now);
        got.map(|got| self.add(word, None, mode, 0, got)).is_ok()
    }
}

impl Txn {
    /// Locks the covered ranges for reading if the protocols of one of the partitions want it; were
    /// there any? `may_stop`: the scan may turn out not to have read all of them. `mode`: SHARE, or
    /// KEY SHARE for a scan that need not keep updates in place out.
    pub(super) fn lock_covered(
        &mut self,
        p: &dyn Platform,
        (ranges, set): (&'static IndexRanges, &'static RangeSet),
        extent: Extent,
        at: &[Touch],
        (mode, may_stop): (Mode, bool),
    ) -> Result<bool, Error> {
        let locks_ranges = |t: &&Touch| self.followed(t.partition()).locks_ranges();
        let Some(&at) = at.iter().find(locks_ranges).filter(|_| self.level == Level::Serializable) else {
            return Ok(false);
        };
        if extent.covered() == 0 {
            return Ok(false);
        }
        self.locks.keep_unbegun(&self.owner, p);
        let tag = if may_stop { self.locks.begin_early(p, self.depth)? } else { 0 };
        for no in (extent.first..=extent.last).filter(|&no| extent.covers(no)) {
            self.lock_range(p, (ranges, set, no), (mode, tag), at)?;
        }
        Ok(true)
    }

    /// Locks the range of a key that is written. An update in place excludes only scans that do not
    /// lock their rows, and look at columns that updates in place change. A transaction that has
    /// locked the keys of the range itself does without: together they would exclude all writers.
    pub(super) fn lock_to_write(
        &mut self,
        p: &dyn Platform,
        (ranges, set, no): (&'static IndexRanges, &'static RangeSet, u32),
        effect: Effect,
        r: RecordRef,
    ) -> Result<(), Error> {
        let mode = if effect.is_in_place() { Mode::Change } else { Mode::Intent };
        let has_keys = || set.range(no).lock.held_by(self.slot).is_some_and(|h| h.mode == Mode::KeyShare);
        if mode == Mode::Change && has_keys() {
            return Ok(());
        }
        self.lock_range(p, (ranges, set, no), (mode, 0), r.touch())
    }

    /// Locks a range, to the end of the transaction or, with a tag, until it is given up.
    pub(super) fn lock_range(
        &mut self,
        p: &dyn Platform,
        (ranges, set, no): (&'static IndexRanges, &'static RangeSet, u32),
        (mode, tag): (Mode, u32),
        at: Touch,
    ) -> Result<(), Error> {
        let policy = self.policy_at(at);
        let word: &'static LockWord = &set.range(no).lock;
        let mode = self.retry.mode_of_read(word, ranges.table().id, mode);
        let me = Holder { slot: self.slot, mode, tag };
        let got = match word.try_acquire(self.e.region, me, Claim::Waits) {
            Ok(a) => a,
            Err(c) => self.contend(p, word, me, How::Policy(policy), ranges.queue(set, no), at, c)?,
        };
        self.locks.add(word, None, mode, 0, got);
        Ok(())
    }

    /// What this transaction does in a partition when another one is in its way.
    pub(super) fn policy_at(&mut self, at: Touch) -> Policy {
        let serializable = self.level == Level::Serializable;
        let policy = if serializable { at.partition().policy() } else { Policy::Wait };
        if policy == Policy::WaitDie {
            self.retry.publish_age(&self.owner);
        }
        policy
    }

    /// A scan that has locked what it might read has ended. Its locks of what it has not read are
    /// given up, and waiters for them go on. The others stay to the end of the transaction.
    pub(super) fn unlock_unread(&mut self, p: &dyn Platform, before: Option<Place>, scan: ScanId) {
        let Some(tag) = self.locks.early_tag(scan) else { return };
        if let Some(Place { set, first, last }) = before.filter(|_| scan.is_locked()) {
            let after = self.scans.ranged.place(scan);
            for no in first..=last {
                let read = after.as_ref().is_some_and(|a| (a.first..=a.last).contains(&no));
                if !read && !self.scans.ranged.touches(set, no) {
                    self.locks.unlock_range(&self.owner, &set.range(no).lock, tag);
                }
            }
        }
        if let Some(at) = self.locks.early.iter().position(|e| e.scan == scan.number()) {
            self.locks.keep_early(&self.owner, p, at);
        }
    }

    /// The subtransaction at `depth` is about to be undone, with those in it. Its scans may go
    /// without an end. Their locks are held to the end of the transaction. Call it before
    /// [`Txn::abort_sub`]. It cannot fail.
    pub fn keep_scanned(&mut self, p: &dyn Platform, depth: u32) {
        while let Some(at) = self.locks.early.iter().position(|e| e.depth >= depth) {
            self.locks.keep_early(&self.owner, p, at);
        }
    }

    /// The scan has locked many rows: locks its ranges instead of the rows to come, if that takes
    /// no waiting. Under another policy than waiting this would fail writers in the rest of the
    /// ranges.
    pub(super) fn escalate(&mut self, scan: ScanId, at: Touch) {
        if at.partition().policy() != Policy::Wait {
            return;
        }
        let Some(place) = self.scans.ranged.place(scan) else { return };
        let mut ranges = place.first..=place.last;
        let mode = self.scans.ranged.mode(scan);
        let lock = |no| self.locks.lock_at_once(&self.owner, &place.set.range(no).lock, mode);
        if faults::on(Fault::EscalatesTooFar) || ranges.all(lock) {
            self.scans.ranged.escalate(scan);
        }
    }
}
