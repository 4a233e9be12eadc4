//! Locks of the ranges that a scan covers, for protocols that lock ranges.
//!
//! A scan locks them before it reads the index. One that may stop early takes them with a tag of its own, so that who waits for
//! what it turns out not to have read goes on when it ends; what it has read then is locked to the end of the transaction.

use super::predicate::{Extent, Place};
use super::{How, Level, LockEntry, ScanId, Txn};
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::lock::{Acquired, Claim, Holder, LockWord, Mode};
use crate::platform::{Platform, Queue, EARLY};
use crate::protocol::{Policy, Touch};
use crate::range::{IndexRanges, RangeSet};

/// Rows that a scan locks before it locks its ranges instead: few in tests, whose tables are small.
pub(super) const ESCALATE: u32 = if cfg!(feature = "faults") { 3 } else { 64 };

/// Scans under way that may give up what they have locked. Those that begin while there are so many keep it to the end of the
/// transaction: a tag costs the platform a lock, and one statement may scan hundreds of intervals.
const MANY: usize = 8;

/// A scan under way that has locked ranges which it may give up at its end.
///
/// INV-EARLY: who waits for a range that a scan gives up has seen the scan's tag on it, and is woken up by it. So a range is given up only
/// while it has the tag of the scan that ends; what got another one meanwhile (`Txn::keep_ranges`) is held until that is
/// given up, or to the end of the transaction.
pub(super) struct Early {
    /// Number of the scan; 0: it is about to begin.
    scan: u32,
    /// The tag of the locks.
    tag: u32,
    /// Of the subtransaction in which it began.
    depth: u32,
    /// Locks with the tag are not before this one of the transaction's.
    from: usize,
}

impl Txn {
    /// Locks the covered ranges for reading if the protocols of one of the partitions want it; were there any? `may_stop`: the scan may turn
    /// out not to have read all of them.
    pub(super) fn lock_covered(
        &mut self,
        p: &dyn Platform,
        (ranges, set): (&'static IndexRanges, &'static RangeSet),
        extent: Extent,
        at: &[Touch],
        may_stop: bool,
    ) -> Result<bool, Error> {
        let locks_ranges = |t: &&Touch| self.followed(t.partition()).locks_ranges();
        let Some(&at) = at.iter().find(locks_ranges).filter(|_| self.level == Level::Serializable) else {
            return Ok(false);
        };
        if extent.covered() == 0 {
            return Ok(false);
        }
        self.forget_unbegun(p);
        let tag = if may_stop && self.early.len() < MANY { p.take_tag()? } else { 0 };
        if tag != 0 {
            self.early.push(Early { scan: 0, tag, depth: self.depth, from: self.locks.len() });
        }
        for no in (extent.first..=extent.last).filter(|&no| extent.covers(no)) {
            self.lock_range(p, (ranges, set, no), (Mode::Share, tag), at)?;
        }
        Ok(true)
    }

    /// Locks a range, to the end of the transaction or, with a tag, until it is given up.
    pub(super) fn lock_range(
        &mut self,
        p: &dyn Platform,
        (ranges, set, no): (&'static IndexRanges, &'static RangeSet, u32),
        (mode, tag): (Mode, u32),
        at: Touch,
    ) -> Result<(), Error> {
        let serializable = self.level == Level::Serializable;
        let policy = if serializable { at.partition().policy() } else { Policy::Wait };
        if policy == Policy::WaitDie {
            self.set_age();
        }
        let word: &'static LockWord = &set.range(no).lock;
        let mode = self.mode_of_read(word, ranges.table().id, mode);
        let me = Holder { slot: self.slot, mode, tag };
        let queue = Queue::Range(ranges.table().id, ranges.index, no);
        let got = match word.try_acquire(self.e.region, me, Claim::Waits) {
            Ok(a) => a,
            Err(c) => self.contend(p, word, me, How::Policy(policy), queue, at, c)?,
        };
        let previous = match got {
            Acquired::Held => return Ok(()),
            Acquired::New => None,
            Acquired::Upgraded(h) => Some(h),
        };
        self.locks.push(LockEntry { word, rec: None, previous, mode, depth: 0 });
        Ok(())
    }

    /// The scan has locked what it might read; what it has not read is unlocked, and who waits for that goes on. What it
    /// has read stays locked to the end of the transaction.
    pub(super) fn unlock_unread(&mut self, p: &dyn Platform, before: Option<Place>, scan: ScanId) {
        if let Some(at) = self.early.iter().position(|e| e.scan == scan.number()) {
            self.unlock_ranges(before, scan, self.early[at].tag);
            let e = self.early.swap_remove(at);
            self.keep_ranges(p, &e);
        }
    }

    fn unlock_ranges(&mut self, before: Option<Place>, scan: ScanId, tag: u32) {
        let Some(before) = before.filter(|_| scan.is_locked()) else { return };
        let after = self.scans.ranged.place(scan);
        for no in before.first..=before.last {
            let read = after.as_ref().is_some_and(|a| (a.first..=a.last).contains(&no));
            if !read && !self.scans.ranged.touches(before.set, no) {
                self.unlock_range(&before.set.range(no).lock, tag);
            }
        }
    }

    /// Gives up a read lock of a range with this tag; one that was upgraded stays.
    fn unlock_range(&mut self, word: &'static LockWord, tag: u32) {
        if word.held_by(self.slot).is_none_or(|h| h.tag != tag) {
            return;
        }
        let Some(at) = self.locks.iter().rposition(|l| std::ptr::eq(l.word, word)) else { return };
        if self.locks[at].mode == Mode::Share && self.locks[at].previous.is_none() {
            word.release(self.e.region, self.slot, None);
            self.locks.remove(at);
            let starts = self.early.iter_mut().map(|e| &mut e.from);
            for mark in self.marks.iter_mut().chain(starts).filter(|m| **m > at) {
                *mark -= 1;
            }
        }
    }

    /// Locks of ranges that still have this tag are held to the end of the transaction from now on, or, if another such scan
    /// is under way, which may be the one that reads there too, until that ends. Nobody waits for the tag any more.
    fn keep_ranges(&mut self, p: &dyn Platform, old: &Early) {
        debug_assert!(old.tag & EARLY != 0);
        let other = self.early.last_mut().map_or(0, |e| {
            e.from = e.from.min(old.from);
            e.tag
        });
        let from = old.from.min(self.locks.len());
        for l in self.locks[from..].iter_mut().filter(|l| l.rec.is_none()) {
            if let Some(h) = l.previous.as_mut().filter(|h| h.tag == old.tag) {
                h.tag = other;
            }
            if let Some(h) = l.word.held_by(self.owner.slot).filter(|h| h.tag == old.tag) {
                l.word.release(self.owner.e.region, self.owner.slot, Some(Holder { tag: other, ..h }));
            }
        }
        // After the locks: who finds one held has read what is counted here before (INV-CYCLE).
        self.e.gives_up(self.slot);
        p.give_up(old.tag);
    }

    /// A scan that could not begin keeps what it had locked.
    fn forget_unbegun(&mut self, p: &dyn Platform) {
        if let Some(e) = self.early.pop_if(|e| e.scan == 0) {
            self.keep_ranges(p, &e);
        }
    }

    /// The subtransaction at `depth` is about to be undone, with those in it. Its scans may be gone without an end: their
    /// locks are held to the end of the transaction. Call it before [`Txn::abort_sub`]; cannot fail.
    pub fn keep_scanned(&mut self, p: &dyn Platform, depth: u32) {
        while let Some(at) = self.early.iter().position(|e| e.depth >= depth) {
            let e = self.early.swap_remove(at);
            self.keep_ranges(p, &e);
        }
    }

    /// The subtransaction at `depth` is its parent's.
    pub(super) fn merge_early(&mut self, depth: u32) {
        self.early.iter_mut().filter(|e| e.depth >= depth).for_each(|e| e.depth = depth - 1);
    }

    /// The scan has locked many rows: locks its ranges instead of the rows to come, if that takes no waiting. Other
    /// policies than waiting would fail writers of the rest of the ranges.
    pub(super) fn escalate(&mut self, scan: ScanId, at: Touch) {
        let Some(place) = self.scans.ranged.place(scan).filter(|_| at.partition().policy() == Policy::Wait) else {
            return;
        };
        let me = Holder { slot: self.slot, mode: Mode::Share, tag: 0 };
        for no in (place.first..=place.last).filter(|_| !faults::on(Fault::EscalatesTooFar)) {
            let word: &'static LockWord = &place.set.range(no).lock;
            let previous = match word.try_acquire(self.e.region, me, Claim::Now) {
                Ok(Acquired::Held) => continue,
                Ok(Acquired::New) => None,
                Ok(Acquired::Upgraded(h)) => Some(h),
                Err(_) => return,
            };
            self.locks.push(LockEntry { word, rec: None, previous, mode: Mode::Share, depth: 0 });
        }
        self.scans.ranged.escalate(scan);
    }

    /// The scan that has locked ranges just now has this number.
    pub(super) fn name_early(&mut self, scan: ScanId) {
        if let Some(e) = self.early.last_mut().filter(|e| e.scan == 0) {
            e.scan = scan.number();
        }
    }
}
