//! The lock set: the locks that the transaction holds, and those that it may give up early.
//!
//! **INV-WITHIN**: A lock that the transaction holds is in its lock set or within one of its
//! writes. Within a write is only the lock of its record, if it was the last new one before the
//! write, or was taken together with it. It has the mode of such a write. It and the write belong
//! to the top transaction: both stay to its end, whatever savepoints are rolled back. Nothing that
//! counts locks had begun in between. Entries of its upgrades may be in the set: they release
//! nothing.

use super::parts::Published;
use super::range_locks::Early;
use super::{Owner, RecordRef, WriteKind};
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::lock::{Acquired, Holder, LockWord, Mode};
use crate::platform::{Platform, AT_COMMIT};

/// A lock that is held.
pub(super) struct LockEntry {
    pub word: &'static LockWord,
    /// The record, if the lock is one of a record.
    pub rec: Option<RecordRef>,
    /// Is it one of a partition?
    pub partition: bool,
    /// What to go back to if the subtransaction aborts.
    pub previous: Option<Holder>,
    pub mode: Mode,
    /// Nesting depth of the subtransaction that took it; 0: it stays until the top transaction
    /// ends.
    pub depth: u32,
}

/// The mode of a lock within a write.
pub(super) fn mode_of(kind: WriteKind) -> Mode {
    if kind == WriteKind::Delete {
        Mode::Update
    } else {
        Mode::NoKeyUpdate
    }
}

/// The locks of a transaction.
#[derive(Default)]
pub(super) struct LockSet {
    /// In the order in which they were taken.
    pub all: Vec<LockEntry>,
    /// Scans under way that may give up locks of ranges.
    pub early: Vec<Early>,
    /// Parts of ranges that the transaction has published.
    pub published: Vec<Published>,
    /// By depth of a subtransaction: the number of locks when it started.
    pub marks: Vec<usize>,
    /// Of the partition locks that are held, the last one in their order.
    last_partition: (u64, u32),
    /// Does the commit give up locks before it is done?
    pub released: bool,
    /// The tag of the locks that it may give up then; 0: there is none yet.
    tag: u32,
    /// The lock of a record that was taken last, until a write of the record is buffered.
    fresh: Option<&'static LockWord>,
}

impl LockSet {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Remembers a lock that was acquired, unless it was held already.
    #[inline]
    pub fn add(&mut self, word: &'static LockWord, rec: Option<RecordRef>, mode: Mode, depth: u32, got: Acquired) {
        let previous = match got {
            Acquired::Held => return,
            Acquired::New => None,
            Acquired::Upgraded(h) => Some(h),
        };
        if previous.is_none() && rec.is_some() {
            self.fresh = Some(word);
        }
        self.all.push(LockEntry { word, rec, partition: false, previous, mode, depth });
    }

    /// A write of a record is about to be buffered. Is its lock new since before that, so that the
    /// write is the first one under it?
    #[inline]
    pub fn is_fresh(&mut self, word: &'static LockWord) -> bool {
        let is = self.fresh.is_some_and(|f| std::ptr::eq(f, word));
        if is {
            self.fresh = None;
        }
        is
    }

    /// Takes out the lock that was taken last, if it may lie within a write of its record that is
    /// about to be buffered (INV-WITHIN).
    #[inline]
    pub fn take_for_write(&mut self, word: &'static LockWord, kind: WriteKind) -> bool {
        let left = self.all.len().wrapping_sub(1);
        let may = self.all.last().is_some_and(|l| {
            let is_new = l.previous.is_none() && l.depth == 0;
            std::ptr::eq(l.word, word) && l.rec.is_some() && is_new && l.mode == mode_of(kind)
        });
        if !may || self.marks.iter().any(|&n| n > left) || self.early.iter().any(|e| e.from > left) {
            return false;
        }
        self.all.truncate(left);
        true
    }

    /// Makes room for so many more locks.
    pub fn reserve(&mut self, n: usize) -> Result<(), Error> {
        self.all.try_reserve(n).map_err(|_| Error::OutOfMemory)
    }

    /// Puts back a lock of a record that was within a write of this kind. Room was reserved.
    pub fn put_back(&mut self, r: RecordRef, kind: WriteKind) {
        self.add(&r.rec.lock, Some(r), mode_of(kind), 0, Acquired::New);
    }

    /// The locks of a transaction that was prepared by another process. They are only to be
    /// released.
    pub fn restore(&mut self, words: &[&'static LockWord]) {
        let entry =
            |word| LockEntry { word, rec: None, partition: false, previous: None, mode: Mode::Update, depth: 0 };
        self.all.extend(words.iter().copied().map(entry));
    }

    /// Does a partition come before one that is locked, so that no wait for it is allowed?
    pub fn is_against_order(&self, partition: (u64, u32)) -> bool {
        partition < self.last_partition
    }

    /// The tag of a lock of a row that is taken outside of subtransactions, if none has to be drawn
    /// for it.
    #[inline]
    pub fn tag_at_hand(&self) -> Option<u32> {
        (!self.released || self.tag != 0).then_some(self.tag)
    }

    /// A lock was taken, and its write buffered, without the set (INV-WITHIN).
    #[inline]
    pub fn note_within(&mut self) {
        self.fresh = None;
    }

    /// Is the lock of a partition held?
    pub fn has_partitions(&self) -> bool {
        self.all.iter().any(|l| l.partition)
    }

    /// Remembers the lock of a partition, at this place in their order.
    pub fn add_partition(&mut self, word: &'static LockWord, place: (u64, u32), got: Acquired) {
        if got == Acquired::New {
            self.last_partition = self.last_partition.max(place);
            self.add(word, None, Mode::Update, 0, got);
            self.all.iter_mut().next_back().into_iter().for_each(|l| l.partition = true);
        }
    }

    /// A subtransaction starts at this depth.
    pub fn begin_sub(&mut self, depth: u32) {
        self.marks.resize(depth as usize + 1, self.all.len());
    }

    /// Index of the first lock that the subtransaction at `depth` may have taken.
    fn mark(&self, depth: u32) -> usize {
        self.marks.get(depth as usize).map_or(0, |&n| n.min(self.all.len()))
    }

    /// The subtransaction at `depth` committed: its locks and its scans are its parent's.
    pub fn merge(&mut self, depth: u32) {
        self.early.iter_mut().filter(|e| e.depth >= depth).for_each(|e| e.depth = depth - 1);
        let parent = if depth <= 2 { 0 } else { depth - 1 };
        let first = self.mark(depth);
        for l in self.all[first..].iter_mut().filter(|l| l.depth >= depth) {
            l.depth = parent;
        }
        self.marks.truncate(depth as usize);
    }

    /// Releases all locks.
    #[inline]
    pub fn release_all(&mut self, owner: &Owner) {
        while let Some(l) = self.all.pop() {
            if l.previous.is_none() {
                l.word.release(owner.e.region, owner.slot, None);
            }
        }
    }

    /// The tag of a lock of a row or partition that is taken outside of subtransactions.
    #[inline]
    pub fn tag_at_commit(&mut self, p: &dyn Platform) -> Result<u32, Error> {
        if self.released && self.tag == 0 {
            self.tag = p.take_tag(AT_COMMIT)?;
        }
        Ok(self.tag)
    }

    /// Releases the locks of partitions, and of the rows that are `written`, and wakes up their
    /// waiters (INV-RELEASED). The transaction has committed.
    pub fn release_written(&mut self, owner: &Owner, p: &dyn Platform, written: impl Fn(RecordRef) -> bool) {
        let tag = std::mem::take(&mut self.tag);
        self.all.retain_mut(|l| {
            let goes = l.partition || l.rec.is_some_and(&written);
            match (goes, l.previous) {
                (true, None) => l.word.release(owner.e.region, owner.slot, None),
                (false, _) if tag != 0 => l.retag(owner, tag, 0),
                _ => {}
            }
            !goes
        });
        // After the locks: a waiter that finds one held has read the count before (INV-CYCLE).
        owner.e.note_early_release(owner.slot);
        if tag != 0 {
            p.give_up(tag);
        }
    }

    /// Releases the locks of ranges, which lie in memory that only the pin keeps. The transaction
    /// has committed.
    pub fn release_ranges(&mut self, owner: &Owner) {
        let before = self.all.len();
        self.all.retain(|l| {
            let range = l.rec.is_none() && !l.partition;
            if range && l.previous.is_none() {
                l.word.release(owner.e.region, owner.slot, None);
            }
            !range
        });
        if self.all.len() < before {
            // After the locks: a waiter that finds one held has read the count before (INV-CYCLE).
            owner.e.note_early_release(owner.slot);
        }
    }

    /// Releases the locks of ranges that were taken only to read. Are there others of ranges?
    pub fn release_read_ranges(&mut self, owner: &Owner) -> bool {
        let (before, mut writes) = (self.all.len(), false);
        self.all.retain(|l| {
            let is_range = l.rec.is_none() && !l.partition;
            let held = l.word.held_by(owner.slot);
            let only_reads = held.is_none_or(|h| h.mode <= Mode::Share);
            if is_range && only_reads && held.is_some() {
                l.word.release(owner.e.region, owner.slot, None);
            }
            writes |= is_range && !only_reads;
            !(is_range && only_reads)
        });
        if self.all.len() < before {
            // After the locks: a waiter that finds one held has read the count before (INV-CYCLE).
            owner.e.note_early_release(owner.slot);
        }
        writes
    }

    /// Releases the write locks of subtransactions at `depth` and deeper. Read locks stay. Where
    /// `reads`, the transaction may have read the record under its write lock: then the record
    /// stays locked for reading. A lock of the key stays one: others may hold modes beside it that
    /// no reader's lock of the row goes with. A read may have made it stronger since: then its
    /// entry comes later, and stays.
    pub fn release_from(&mut self, owner: &Owner, depth: u32, reads: impl Fn(RecordRef) -> bool) {
        for i in (self.mark(depth)..self.all.len()).rev() {
            let stays = self.made_stronger(owner, i);
            let l = &mut self.all[i];
            if l.depth < depth {
                continue;
            }
            let weaker = l.previous.is_none_or(|h| h.mode < Mode::Share);
            if weaker && l.rec.is_some_and(&reads) {
                let mode = if faults::on(Fault::KeyIsShared) { Mode::Share } else { l.mode.min(Mode::Share) };
                let mode = stays.map_or(mode, |m| mode.max(m));
                l.word.release(owner.e.region, owner.slot, Some(Holder { slot: owner.slot, mode, tag: 0 }));
                (l.mode, l.depth) = (mode, 0);
            } else if stays.is_some() {
                // The lock is as the last entry behind this one has made it.
                let l = self.all.remove(i);
                let mut behind = self.all[i..].iter_mut();
                if let Some(next) = behind.find(|k| std::ptr::eq(k.word, l.word)) {
                    next.previous = l.previous;
                }
            } else {
                l.word.release(owner.e.region, owner.slot, l.previous);
                self.all.remove(i);
            }
        }
        self.marks.truncate(depth as usize);
    }

    /// The strongest mode of the entries behind this one for the same lock, if there are some.
    fn made_stronger(&self, owner: &Owner, i: usize) -> Option<Mode> {
        let l = &self.all[i];
        let held = l.word.held_by(owner.slot)?;
        if held.mode == l.mode || faults::on(Fault::LoweredTooFar) {
            return None;
        }
        let same = |k: &&LockEntry| std::ptr::eq(k.word, l.word);
        self.all[i + 1..].iter().filter(same).map(|k| k.mode).max()
    }

    /// Locks that the subtransaction at `depth` took under the tag `from` have the tag `to` now.
    pub fn retag(&mut self, owner: &Owner, depth: u32, from: u32, to: u32) {
        let first = self.mark(depth);
        self.all[first..].iter_mut().for_each(|l| l.retag(owner, from, to));
    }

    /// All locks are of the top transaction from now on, and are held to its end: their tags end
    /// with the session.
    pub fn untag(&mut self, owner: &Owner, p: &dyn Platform) {
        for l in &mut self.all {
            let tag = l.word.held_by(owner.slot).map_or(0, |h| h.tag);
            if tag != 0 {
                l.retag(owner, tag, 0);
            }
        }
        // After the locks: a waiter that finds one held has read the count before (INV-CYCLE).
        owner.e.note_early_release(owner.slot);
        let early = self.early.drain(..).map(|e| e.tag);
        early.chain([std::mem::take(&mut self.tag)]).filter(|tag| *tag != 0).for_each(|tag| p.give_up(tag));
        self.released = false;
    }

    /// The transaction has ended, and all locks are released.
    pub fn clear(&mut self) {
        debug_assert!(self.all.is_empty());
        self.marks.clear();
        self.early.clear();
        self.last_partition = (0, 0);
        (self.released, self.tag, self.fresh) = (false, 0, None);
    }
}

impl LockEntry {
    /// Gives the lock the tag `to` if it has the tag `from`, now or after the subtransaction
    /// aborts.
    pub fn retag(&mut self, owner: &Owner, from: u32, to: u32) {
        if let Some(h) = self.previous.as_mut().filter(|h| h.tag == from) {
            h.tag = to;
        }
        if let Some(h) = self.word.held_by(owner.slot).filter(|h| h.tag == from) {
            self.word.release(owner.e.region, owner.slot, Some(Holder { tag: to, ..h }));
        }
    }
}
