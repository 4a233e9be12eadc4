//! Pruning: versions that lie between the snapshots of points are unlinked and freed.
//!
//! **INV-UNLINK**: Only the holder of the latch `pruning` changes the `older` of a committed
//! version. It has looked at what all need, and keeps everything meanwhile (`Engine::keep_all`). It
//! follows `older` of a committed version only if that is above the oldest pin of the look: what
//! such a version has replaced was retired at that pin or later, and is there. It unlinks only what
//! it finds below a committed version, and what INV-PRUNE allows. So each reader still finds below
//! such a version what it looks for, or memory that is there. A version that is unlinked is marked.
//!
//! *Why it is there.* Let a reader with the pin *p* follow `older` of a version committed at *d* >
//! *p*, from which *x*, committed at *c*, was unlinked. No full pin at *p* was there at the
//! pruner's look, as *d* is at or below all of their floors. So *p* is the value of a point, or of
//! a later pin that was adopted or lowered from a point. Its clock is at or above *p*, its floor at
//! or below. It does not need *x*, so *c* > *p*. What *x* had replaced was therefore retired after
//! *p*, too. If the reader's snapshot leaves *d* out instead, *d* is above its floor, and *c* below
//! *d* and so at or below its clock: it needs *x*, which is not unlinked.
//!
//! **INV-LOOSE**: An entry is *loose* if its memory is reachable no more for readers that start at
//! a record, and no snapshot sees it: a version that was unlinked, or that its transaction has
//! replaced or taken back itself. It has a value of the clock that was read after that. A look that
//! begins after that frees it, if it finds every full pin larger. The full pin that a point has
//! while it works counts (INV-POINT).
//!
//! The queue of a slot finds what to prune. Below the version of each entry that it comes to it
//! unlinks the versions that no reader needs. The version itself is unlinked from the one above it:
//! by that one's entry, in whatever queue it is, or here if that one is the newest. So no chain is
//! walked from its newest version, however long it is.
//!
//! **INV-REPLACED**: The record of an entry is used only if the entry's version was committed above
//! the oldest pin of the look. Its table, if it was dropped, was so later, and is kept by that pin.

use super::{Entry, Latched, RetireQueue, Segment, LOOSE, SEGMENT};
use crate::csn::{Csn, SlotId};
use crate::faults::{self, Fault};
use crate::primitive::{AtomicPtr, AtomicU64, Ordering};
use crate::record::{Record, Version};
use crate::shared::{Engine, Needs};
use std::ptr::NonNull;

/// The newest version of a row is at most so many versions from the record: above it are pending
/// ones.
const PENDING: usize = 4;

impl Engine {
    /// Prunes what waits in the queue of a slot, if there are points: in some `budget` entries. The
    /// caller is the process of slot `me`. It may be in the middle of a transaction.
    pub(crate) fn prune(&self, me: SlotId, slot: SlotId, budget: usize) {
        if self.may_have_points() || RetireQueue::has_old(self, slot) {
            self.prune_all(me, slot..slot + 1, budget);
        }
    }

    /// The same for all slots.
    pub(crate) fn prune_all(&self, me: SlotId, slots: std::ops::Range<SlotId>, budget: usize) {
        // The latch is held for a short time and never while sleeping. Without it the process
        // prunes later.
        if self.shared.pruning.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return;
        }
        let (own, needs) = self.keep_all(me);
        for slot in slots {
            RetireQueue::prune(self, slot, me, &needs, budget);
        }
        self.end_keeping(me, own);
        self.shared.pruning.store(0, Ordering::SeqCst);
    }
}

impl RetireQueue {
    /// Are there entries that are not young?
    fn has_old(e: &Engine, slot: SlotId) -> bool {
        let q = Self::of(e, slot);
        q.old_segments.load(Ordering::Relaxed) + q.loose_segments.load(Ordering::Relaxed) != 0
    }

    fn prune(e: &Engine, slot: SlotId, me: SlotId, needs: &Needs, budget: usize) {
        if Self::len(e, slot) == 0 {
            return;
        }
        let q = Self::lock(e, slot);
        let unneeded = if faults::on(Fault::FreesUnlinked) { Csn::MAX } else { needs.full };
        q.free_loose(e, me, unneeded.max(needs.oldest));
        let turn = q.list(Old).len();
        let mut n = 0;
        // Without points, entries are freed in the order in which they came.
        while needs.has_points() && n * SEGMENT < budget {
            let Some(s) = q.take_young(needs.replaced) else { break };
            q.sift(e, me, s, |entry| judge(e, needs, entry));
            n += 1;
        }
        // What has stayed is looked at in turn, as much as what is new: some points have ended.
        for _ in 0..turn.min(n as u64 + 2) {
            let Some(s) = q.list(Old).pop() else { break };
            q.sift(e, me, s, |entry| judge(e, needs, entry));
        }
    }
}

/// What becomes of an entry, at a pruner's look; `None`: it is free.
fn judge(e: &Engine, needs: &Needs, mut entry: Entry) -> Option<Entry> {
    if entry.at < needs.oldest {
        return None; // INV-RETIRE
    }
    if !entry.of.is_null() && entry.of != LOOSE {
        // SAFETY: INV-QUEUE: the version is in the queue, so it is not freed. INV-UNLINK: the
        // pruner calls this.
        if unsafe { prune_at(e, needs, entry.p.cast::<Version>(), entry.of) } {
            (entry.of, entry.at) = (LOOSE, e.now());
        }
    }
    Some(entry)
}

/// Unlinks the versions that no reader needs below one that was replaced, and the version itself,
/// if the newest one is above it. Is it unlinked?
///
/// # Safety
/// The caller is the pruner (INV-UNLINK), and the version is not freed meanwhile.
unsafe fn prune_at(e: &Engine, needs: &Needs, x: *mut Version, record: *const Record) -> bool {
    // SAFETY: by the contract of this function.
    let version = unsafe { &*x };
    if version.is_unlinked() {
        return true;
    }
    let Some(c) = version.csn().filter(|c| *c > needs.oldest) else { return false };
    // SAFETY: INV-UNLINK: `version` is in its chain, and above the oldest pin.
    unsafe { prune_below(e, needs, version, c) };
    // SAFETY: INV-REPLACED.
    let mut v = unsafe { &*record }.head();
    for _ in 0..PENDING {
        // SAFETY: INV-UNLINK: the newest version, or one below a pending version or below one that
        // is above the oldest pin.
        let Some(above) = (unsafe { v.as_ref() }) else { return false };
        match above.csn() {
            Some(d) if d <= c => return false,
            Some(d) if above.older() == x => {
                // SAFETY: as above.
                unsafe { prune_below(e, needs, above, d) };
                return version.is_unlinked();
            }
            _ => v = above.older(),
        }
    }
    false
}

/// Unlinks the versions that no reader needs directly below one that was committed at `d`.
///
/// # Safety
/// As for [`prune_at`]. The version is in its chain, and `d` is above the oldest pin.
unsafe fn prune_below(e: &Engine, needs: &Needs, above: &Version, d: Csn) {
    // SAFETY: INV-UNLINK: what a version above the oldest pin has replaced is there.
    while let Some(y) = unsafe { above.older().as_ref() } {
        let Some(c) = y.csn().filter(|c| *c > needs.oldest) else { return };
        // What had replaced `y` at first, if that was unlinked, was needed by no reader, either. So
        // it is all the same by which of the two CSNs it is judged.
        if !needs.is_unneeded(c, d) {
            return;
        }
        if !faults::on(Fault::UnlinkedForgotten) {
            above.name_also(y); // INV-CHANGED
        }
        above.set_older(y.older());
        y.set_unlinked();
        e.shared.pruned.fetch_add(1, Ordering::Relaxed);
    }
}

/// A list of segments beside the young ones.
pub(super) struct List<'a> {
    first: &'a AtomicPtr<Segment>,
    last: &'a AtomicPtr<Segment>,
    len: &'a AtomicU64,
}

/// The second list and the third one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Old,
    Loose,
}
use Which::{Loose, Old};

impl List<'_> {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }
    fn last(&self) -> *mut Segment {
        self.last.load(Ordering::Relaxed)
    }
    fn first(&self) -> *mut Segment {
        self.first.load(Ordering::Relaxed)
    }

    /// Takes out the first segment.
    fn pop(&self) -> Option<NonNull<Segment>> {
        let s = NonNull::new(self.first())?;
        // SAFETY: INV-QUEUE: the latch is held.
        let next = unsafe { s.as_ref() }.next;
        self.first.store(next, Ordering::Relaxed);
        if next.is_null() {
            self.last.store(next, Ordering::Relaxed);
        }
        self.len.store(self.len() - 1, Ordering::Relaxed);
        Some(s)
    }

    /// Adds a segment that is in no list.
    fn push(&self, mut s: NonNull<Segment>) {
        // SAFETY: INV-QUEUE: the latch is held.
        unsafe {
            s.as_mut().next = std::ptr::null_mut();
            match self.last().as_mut() {
                Some(last) => last.next = s.as_ptr(),
                None => self.first.store(s.as_ptr(), Ordering::Relaxed),
            }
        }
        self.last.store(s.as_ptr(), Ordering::Relaxed);
        self.len.store(self.len() + 1, Ordering::Relaxed);
    }

    /// Adds an entry to the last segment, if there is room.
    fn add(&self, entry: Entry) -> bool {
        // SAFETY: INV-QUEUE: the latch is held.
        let last = unsafe { self.last().as_mut() };
        let Some(last) = last.filter(|s| (s.n as usize) < SEGMENT) else { return false };
        last.items[last.n as usize] = entry;
        last.n += 1;
        true
    }
}

impl Latched {
    pub(super) fn list(&self, which: Which) -> List<'_> {
        let q = self.0;
        match which {
            Old => List { first: &q.old, last: &q.old_last, len: &q.old_segments },
            Loose => List { first: &q.loose, last: &q.loose_last, len: &q.loose_segments },
        }
    }

    /// Takes out the first young segment, if it is full and nothing in it was retired after `upto`.
    fn take_young(&self, upto: Csn) -> Option<NonNull<Segment>> {
        let s = NonNull::new(self.first()).filter(|s| s.as_ptr() != self.last())?;
        // SAFETY: INV-QUEUE: the latch is held. A segment before the last one is full.
        let segment = unsafe { s.as_ref() };
        if segment.items[SEGMENT - 1].at > upto {
            return None;
        }
        self.0.first.store(segment.next, Ordering::Relaxed);
        Some(s)
    }

    /// Judges the entries of a segment that is in no list. What stays is added to the old ones or
    /// the loose ones: to the last segment there, if there is room. Else it stays in this segment,
    /// which becomes an old one.
    fn sift(&self, e: &Engine, me: SlotId, mut s: NonNull<Segment>, judge: impl Fn(Entry) -> Option<Entry>) {
        // SAFETY: INV-QUEUE: the latch is held, and the segment is in no list.
        let segment = unsafe { s.as_mut() };
        let mut n = 0;
        for i in segment.done as usize..segment.n as usize {
            let Some(entry) = judge(segment.items[i]) else {
                // SAFETY: INV-RETIRE.
                unsafe { self.free(e, me, segment.items[i]) };
                continue;
            };
            if entry.of == LOOSE && self.add_loose(e, me, entry) {
                continue;
            }
            self.note_least(entry.at);
            if !self.list(Old).add(entry) {
                segment.items[n] = entry;
                n += 1;
            }
        }
        (segment.n, segment.done) = (n as u32, 0);
        if n > 0 {
            self.list(Old).push(s);
        } else {
            // SAFETY: INV-M1: an empty segment of ours.
            unsafe { e.region.free(me as usize, s.cast()) };
        }
    }

    /// Adds a loose entry; false: there is no memory.
    fn add_loose(&self, e: &Engine, me: SlotId, entry: Entry) -> bool {
        let list = self.list(Loose);
        if list.add(entry) {
            return true;
        }
        let Ok(new) = e.region.alloc(me as usize, std::mem::size_of::<Segment>()) else { return false };
        let new = new.cast::<Segment>();
        // SAFETY: INV-M1: fresh memory of that size.
        unsafe { ((*new.as_ptr()).n, (*new.as_ptr()).done) = (0, 0) };
        list.push(new);
        list.add(entry)
    }

    /// Frees loose entries from before this CSN, in the order in which they came.
    fn free_loose(&self, e: &Engine, me: SlotId, before: Csn) {
        while let Some(segment) = segment_at(self.list(Loose).first()) {
            while segment.done < segment.n {
                let entry = segment.items[segment.done as usize];
                if entry.at >= before {
                    return;
                }
                segment.done += 1;
                // SAFETY: INV-LOOSE.
                unsafe { self.free(e, me, entry) };
            }
            if let Some(empty) = self.list(Loose).pop() {
                // SAFETY: INV-M1: an empty segment of ours.
                unsafe { e.region.free(me as usize, empty.cast()) };
            }
        }
    }

    /// Old entries have a CSN at or above `old_least`.
    fn note_least(&self, at: Csn) {
        let least = self.0.old_least.load(Ordering::Relaxed);
        self.0.old_least.store(least.min(at), Ordering::Relaxed);
    }

    /// Frees the entries that were retired before the oldest pin, but for young ones.
    pub(super) fn free_old(&self, e: &Engine, me: SlotId, min_pin: Csn) {
        self.free_loose(e, me, min_pin);
        let n = self.list(Old).len();
        if n == 0 {
            self.0.old_least.store(Csn::MAX, Ordering::Relaxed);
            return;
        }
        if min_pin <= self.0.old_least.load(Ordering::Relaxed) {
            return;
        }
        self.0.old_least.store(Csn::MAX, Ordering::Relaxed); // each entry that stays is noted again
        for _ in 0..n {
            let Some(s) = self.list(Old).pop() else { break };
            self.sift(e, me, s, |entry| (entry.at >= min_pin).then_some(entry));
        }
    }
}

/// A segment in a list, under the latch.
fn segment_at(s: *mut Segment) -> Option<&'static mut Segment> {
    // SAFETY: INV-QUEUE: the latch is held, and the reference is dropped before it.
    unsafe { s.as_mut() }
}
