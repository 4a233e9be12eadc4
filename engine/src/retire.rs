//! Retired memory, which waits until no reader can reach it.
//!
//! **INV-RETIRE**: Memory is retired with a value of the clock that was read after the memory
//! became unreachable for readers that pin from then on. It is freed when every pin is larger than
//! that value (`Engine::min_pin_of`).
//!
//! **INV-QUEUE**: Only the holder of a queue's latch uses the queue's pointers and segments and
//! writes its counters. Only the slot's owner adds entries and changes the room. Other processes
//! read counters without the latch, and decide by them only when to look.
//!
//! A queue has three lists of segments. New entries go to the *young* ones, in the order of time.
//! Beside a point (INV-POINT) they are judged later: what it may need goes to the *old* ones, and
//! what is unlinked to the *loose* ones (`retire/prune.rs`).

use crate::csn::{Csn, SlotId};
use crate::faults::{self, Fault};
use crate::memory::OutOfMemory;
use crate::primitive::{relax, AtomicPtr, AtomicU64, Ordering};
use crate::record::{Record, Version};
use crate::shared::Engine;
use std::ptr::NonNull;

mod prune;

const SEGMENT: usize = 41;

/// A piece of memory that waits.
#[derive(Clone, Copy)]
struct Entry {
    p: *mut u8,
    /// The value of the clock at which it was retired, or unlinked.
    at: Csn,
    /// The record of a version that another one has replaced; null: another piece; or [`LOOSE`].
    of: *const Record,
}
const _: () = assert!(cfg!(loom) || std::mem::size_of::<Entry>() == 24);

/// The entry is reachable no more, and no snapshot needs it: it waits for full pins only
/// (INV-LOOSE).
const LOOSE: *const Record = std::ptr::without_provenance(1);

#[repr(C)]
struct Segment {
    next: *mut Segment,
    n: u32,
    done: u32,
    items: [Entry; SEGMENT],
}

/// A slot's queue of retired memory. Its owner fills it; any process that needs memory may drain
/// it.
#[repr(C)]
pub struct RetireQueue {
    first: AtomicPtr<Segment>,
    last: AtomicPtr<Segment>,
    /// The last segment with room, reserved ahead of `last`.
    end: AtomicPtr<Segment>,
    /// Entries that fit without an allocation.
    room: AtomicU64,
    /// Entries that wait.
    len: AtomicU64,
    /// When a large piece was retired last, if that piece may still wait; else 0.
    large_at: AtomicU64,
    latch: AtomicU64,
    /// The old segments, how many there are, and a CSN at or below those of all their entries.
    old: AtomicPtr<Segment>,
    old_last: AtomicPtr<Segment>,
    old_segments: AtomicU64,
    old_least: AtomicU64,
    /// The segments of loose entries (INV-LOOSE), and how many there are.
    loose: AtomicPtr<Segment>,
    loose_last: AtomicPtr<Segment>,
    loose_segments: AtomicU64,
}

/// The latch of a queue, held by the caller.
struct Latched(&'static RetireQueue);

impl Drop for Latched {
    fn drop(&mut self) {
        self.0.latch.store(0, Ordering::Release);
    }
}

impl Latched {
    fn first(&self) -> *mut Segment {
        self.0.first.load(Ordering::Relaxed)
    }
    fn last(&self) -> *mut Segment {
        self.0.last.load(Ordering::Relaxed)
    }
    fn room(&self) -> u64 {
        self.0.room.load(Ordering::Relaxed)
    }
    fn set_room(&self, n: u64) {
        self.0.room.store(n, Ordering::Relaxed);
    }
    fn len(&self) -> u64 {
        self.0.len.load(Ordering::Relaxed)
    }
    fn set_len(&self, n: u64) {
        self.0.len.store(n, Ordering::Relaxed);
    }
    fn large_at(&self) -> Csn {
        self.0.large_at.load(Ordering::Relaxed)
    }
    fn set_large_at(&self, at: Csn) {
        self.0.large_at.store(at, Ordering::Relaxed);
    }

    /// Are there entries that are not young?
    #[inline]
    fn has_more(&self) -> bool {
        self.0.old_segments.load(Ordering::Relaxed) + self.0.loose_segments.load(Ordering::Relaxed) != 0
    }

    /// Frees the memory of an entry, which the caller takes out.
    ///
    /// # Safety
    /// No reader can reach it (INV-RETIRE, INV-LOOSE).
    #[inline(always)]
    unsafe fn free(&self, e: &Engine, me: SlotId, entry: Entry) {
        self.set_len(self.len() - 1);
        if entry.at >= self.large_at() {
            self.set_large_at(0);
        }
        // SAFETY: INV-M1: retired memory is a piece of the region, and freed once.
        unsafe { e.region.free(me as usize, NonNull::new_unchecked(entry.p)) };
    }
}

impl RetireQueue {
    fn of(e: &Engine, slot: SlotId) -> &'static RetireQueue {
        &e.slots[slot as usize].retired
    }

    fn lock(e: &Engine, slot: SlotId) -> Latched {
        let q = Self::of(e, slot);
        let mut n = 0;
        // Under the latch, the allocator is the only code outside this file that is called.
        while q.latch.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            relax(n);
            n += 1;
        }
        Latched(q)
    }

    /// Makes room, so that `push` cannot fail for `n` more entries.
    #[inline]
    pub fn reserve(e: &Engine, slot: SlotId, n: u64) -> Result<(), OutOfMemory> {
        if Self::room(e, slot) >= n {
            return Ok(());
        }
        Self::make_room(e, slot, n)
    }

    #[cold]
    fn make_room(e: &Engine, slot: SlotId, n: u64) -> Result<(), OutOfMemory> {
        let q = Self::lock(e, slot);
        while q.room() < n {
            let s = e.region.alloc(slot as usize, std::mem::size_of::<Segment>())?.cast::<Segment>().as_ptr();
            // SAFETY: INV-M1: fresh memory of that size. INV-QUEUE: the latch is held, and `end` is
            // set whenever `first` is.
            unsafe {
                ((*s).next, (*s).n, (*s).done) = (std::ptr::null_mut(), 0, 0);
                if q.first().is_null() {
                    q.0.first.store(s, Ordering::Relaxed);
                    q.0.last.store(s, Ordering::Relaxed);
                } else {
                    (*q.0.end.load(Ordering::Relaxed)).next = s;
                }
            }
            q.0.end.store(s, Ordering::Relaxed);
            q.set_room(q.room() + SEGMENT as u64);
        }
        Ok(())
    }

    /// Entries that fit without an allocation. Exact for the owner of the slot.
    pub fn room(e: &Engine, slot: SlotId) -> u64 {
        Self::of(e, slot).room.load(Ordering::Relaxed)
    }

    /// Gives back reserved room that is no longer needed, if it is more than a few entries. Room
    /// for `keep` entries stays.
    pub fn trim(e: &Engine, slot: SlotId, keep: u64) {
        if Self::room(e, slot) <= (4 * SEGMENT as u64).max(keep) {
            return;
        }
        let q = Self::lock(e, slot);
        // SAFETY: INV-QUEUE: the latch is held, and segments behind `last` are empty.
        unsafe {
            // One segment stays in reserve, and as many as `keep` needs.
            let mut spare = (*q.last()).next;
            let mut kept = 2 * SEGMENT as u64 - (*q.last()).n as u64;
            while kept < keep {
                spare = (*spare).next;
                kept += SEGMENT as u64;
            }
            let mut s = (*spare).next;
            (*spare).next = std::ptr::null_mut();
            q.0.end.store(spare, Ordering::Relaxed);
            while let Some(unused) = NonNull::new(s) {
                s = unused.as_ref().next;
                q.set_room(q.room() - SEGMENT as u64);
                e.region.free(slot as usize, unused.cast());
            }
        }
    }

    /// Retires memory at the clock's present value. Never fails, as room was reserved.
    pub fn push(e: &Engine, slot: SlotId, p: NonNull<u8>, now: Csn) {
        Self::push_entries(e, slot, std::iter::once((p, std::ptr::null())), now);
    }

    /// The same of memory that no snapshot needs: INV-LOOSE.
    pub fn push_loose(e: &Engine, slot: SlotId, p: NonNull<u8>, now: Csn) {
        Self::push_entries(e, slot, std::iter::once((p, LOOSE)), now);
    }

    /// Retires a large piece. After every transaction the owner checks whether it can be freed
    /// ([`RetireQueue::large_at`]).
    pub fn push_large(e: &Engine, slot: SlotId, p: NonNull<u8>, now: Csn) {
        // If another process drains the queue up to the same value in between, it clears this
        // field. Then the piece waits like any other.
        Self::lock(e, slot).set_large_at(now);
        Self::push(e, slot, p, now);
    }

    /// When a large piece that may still wait was retired. Exact for the owner of the slot.
    pub fn large_at(e: &Engine, slot: SlotId) -> Option<Csn> {
        let at = Self::of(e, slot).large_at.load(Ordering::Relaxed);
        (at != 0 && Self::len(e, slot) > 0).then_some(at)
    }

    /// Retires versions that others have replaced in these records; returns how many. `all` only
    /// looks at memory that is private to the slot's thread.
    pub fn push_all(
        e: &Engine,
        slot: SlotId,
        all: impl Iterator<Item = (NonNull<Version>, &'static Record)>,
        now: Csn,
    ) -> usize {
        Self::push_entries(e, slot, all.map(|(v, record)| (v.cast(), std::ptr::from_ref(record))), now)
    }

    fn push_entries(
        e: &Engine,
        slot: SlotId,
        all: impl Iterator<Item = (NonNull<u8>, *const Record)>,
        now: Csn,
    ) -> usize {
        let q = Self::lock(e, slot);
        let (mut s, mut n) = (q.last(), 0);
        for (p, of) in all {
            // SAFETY: INV-QUEUE: the latch is held, and `reserve` made room.
            unsafe {
                if (*s).n as usize == SEGMENT {
                    s = (*s).next;
                }
                (&mut (*s).items)[(*s).n as usize] = Entry { p: p.as_ptr(), at: now, of };
                (*s).n += 1;
            }
            n += 1;
        }
        q.0.last.store(s, Ordering::Relaxed);
        q.set_room(q.room() - n);
        q.set_len(q.len() + n);
        n as usize
    }

    /// Frees at most `budget` entries that were retired before `min_pin`.
    pub fn drain(e: &Engine, slot: SlotId, min_pin: Csn, budget: usize) {
        Self::drain_for(e, slot, slot, min_pin, budget);
    }

    /// As `drain`, for any slot's queue. The memory goes to the magazines of `me`.
    pub fn drain_for(e: &Engine, slot: SlotId, me: SlotId, min_pin: Csn, mut budget: usize) {
        if Self::len(e, slot) == 0 {
            return;
        }
        let q = Self::lock(e, slot);
        if q.has_more() {
            q.free_old(e, me, min_pin);
        }
        while budget > 0 && !q.first().is_null() {
            let s = q.first();
            // SAFETY: INV-QUEUE: the latch is held. INV-RETIRE: no pin keeps the entries freed
            // here.
            unsafe {
                if (*s).done == (*s).n {
                    if s == q.last() {
                        return;
                    }
                    q.0.first.store((*s).next, Ordering::Relaxed);
                    e.region.free(me as usize, NonNull::new_unchecked(s.cast()));
                    continue;
                }
                let entry = (&(*s).items)[(*s).done as usize];
                let csn = entry.at;
                let early = faults::on(Fault::NoGracePeriod) || csn == min_pin && faults::on(Fault::FreesAtPin);
                if csn >= min_pin && !early {
                    return;
                }
                (*s).done += 1;
                budget -= 1;
                q.free(e, me, entry);
            }
        }
    }

    /// Gives back all memory of an empty queue, so that tests can look for leaks.
    #[cfg(test)]
    pub(crate) fn free_all(e: &Engine, slot: SlotId) {
        assert_eq!(Self::len(e, slot), 0);
        let q = Self::lock(e, slot);
        while let Some(s) = NonNull::new(q.first()) {
            // SAFETY: INV-QUEUE: the latch is held.
            unsafe {
                q.0.first.store(s.as_ref().next, Ordering::Relaxed);
                e.region.free(slot as usize, s.cast());
            }
        }
        q.0.last.store(std::ptr::null_mut(), Ordering::Relaxed);
        q.0.end.store(std::ptr::null_mut(), Ordering::Relaxed);
        q.set_room(0);
    }

    /// The number of entries that wait, at the moment.
    pub fn len(e: &Engine, slot: SlotId) -> u64 {
        Self::of(e, slot).len.load(Ordering::Relaxed)
    }
}
