//! Memory that waits until nobody can reach it.
//!
//! INV-RETIRE: memory is retired, with the clock's value, after it became unreachable for
//! readers that pin from then on; it is freed when every pin is larger than that value.

use crate::csn::{Csn, SlotId};
use crate::faults::{self, Fault};
use crate::memory::OutOfMemory;
use crate::primitive::{relax, AtomicU64, Ordering};
use crate::shared::Engine;
use std::ptr::NonNull;

const SEGMENT: usize = 62;

#[repr(C)]
struct Segment {
    next: *mut Segment,
    n: u32,
    done: u32,
    items: [(*mut u8, Csn); SEGMENT],
}

/// A slot's queue of retired memory. Its owner fills it; whoever needs memory may drain it, under
/// the latch.
#[repr(C)]
pub struct RetireQueue {
    first: *mut Segment,
    last: *mut Segment,
    /// The last segment with room, reserved ahead of `last`.
    end: *mut Segment,
    /// Entries that fit without an allocation.
    room: u64,
    len: u64,
    /// When something large was retired last, if that may wait still; else 0.
    large_at: Csn,
    latch: AtomicU64,
}

/// The latch of a queue, held.
struct Latched(*mut RetireQueue);

impl Drop for Latched {
    fn drop(&mut self) {
        // SAFETY: queues live as long as the shared block.
        unsafe { (*self.0).latch.store(0, Ordering::Release) };
    }
}

impl RetireQueue {
    fn me(e: &Engine, slot: SlotId) -> *mut RetireQueue {
        (&raw const e.slots[slot as usize].retired).cast_mut()
    }

    fn lock(e: &Engine, slot: SlotId) -> Latched {
        let q = Self::me(e, slot);
        let mut n = 0;
        // SAFETY: as in `Latched::drop`. No call out of this file but to the allocator is made
        // under the latch.
        while unsafe { (*q).latch.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() } {
            relax(n);
            n += 1;
        }
        Latched(q)
    }

    /// Makes room, so that `push` cannot fail for `n` more entries.
    pub fn reserve(e: &Engine, slot: SlotId, n: u64) -> Result<(), OutOfMemory> {
        // SAFETY: only the owner changes the room.
        if unsafe { (*Self::me(e, slot)).room } >= n {
            return Ok(());
        }
        let held = Self::lock(e, slot);
        let q = held.0;
        // SAFETY: INV: the queue belongs to this slot's only thread; segments are its own, under the latch.
        unsafe {
            while (*q).room < n {
                let s = e.region.alloc(slot as usize, std::mem::size_of::<Segment>())?.cast::<Segment>().as_ptr();
                (*s).next = std::ptr::null_mut();
                (*s).n = 0;
                (*s).done = 0;
                if (*q).first.is_null() {
                    (*q).first = s;
                    (*q).last = s;
                } else {
                    (*(*q).end).next = s;
                }
                (*q).end = s;
                (*q).room += SEGMENT as u64;
            }
        }
        Ok(())
    }

    /// Entries that fit without an allocation, for the owner of the slot.
    pub fn room(e: &Engine, slot: SlotId) -> u64 {
        // SAFETY: only the owner changes the room.
        unsafe { (*Self::me(e, slot)).room }
    }

    /// Gives back room that was reserved for more than a few entries and is not needed any more. Room for `keep` stays.
    pub fn trim(e: &Engine, slot: SlotId, keep: u64) {
        // SAFETY: only the owner changes the room.
        if unsafe { (*Self::me(e, slot)).room } <= (4 * SEGMENT as u64).max(keep) {
            return;
        }
        let held = Self::lock(e, slot);
        let q = held.0;
        // SAFETY: as in `reserve`; segments behind `last` hold nothing.
        unsafe {
            // One segment stays in reserve, and as many as are to be kept.
            let mut spare = (*(*q).last).next;
            let mut kept = 2 * SEGMENT as u64 - (*(*q).last).n as u64;
            while kept < keep {
                spare = (*spare).next;
                kept += SEGMENT as u64;
            }
            let mut s = (*spare).next;
            (*spare).next = std::ptr::null_mut();
            (*q).end = spare;
            while let Some(unused) = NonNull::new(s) {
                s = unused.as_ref().next;
                (*q).room -= SEGMENT as u64;
                e.region.free(slot as usize, unused.cast());
            }
        }
    }

    /// Retires memory at the clock's present value. Room was reserved. Never fails.
    pub fn push(e: &Engine, slot: SlotId, p: NonNull<u8>, now: Csn) {
        Self::push_all(e, slot, std::iter::once(p), now);
    }

    /// The same for a large piece: its owner looks after every transaction whether it can be freed ([`RetireQueue::large_at`]).
    pub fn push_large(e: &Engine, slot: SlotId, p: NonNull<u8>, now: Csn) {
        let held = Self::lock(e, slot);
        // SAFETY: under the latch. Who frees what was retired at the same value in between forgets it, and it waits as others do.
        unsafe { (*held.0).large_at = now };
        drop(held);
        Self::push(e, slot, p, now);
    }

    /// When something large was retired that may wait still, for the owner of the slot.
    pub fn large_at(e: &Engine, slot: SlotId) -> Option<Csn> {
        // SAFETY: a racy read; it decides when to look, and nothing else.
        let at = unsafe { (*Self::me(e, slot)).large_at };
        (at != 0 && Self::len(e, slot) > 0).then_some(at)
    }

    /// The same for much of it. `all` only looks at what is private to the slot's thread.
    pub fn push_all(e: &Engine, slot: SlotId, all: impl Iterator<Item = NonNull<u8>>, now: Csn) {
        let held = Self::lock(e, slot);
        let q = held.0;
        for p in all {
            // SAFETY: as in `reserve`, which made room.
            unsafe {
                if (*(*q).last).n as usize == SEGMENT {
                    (*q).last = (*(*q).last).next;
                }
                let s = (*q).last;
                (&mut (*s).items)[(*s).n as usize] = (p.as_ptr(), now);
                (*s).n += 1;
                (*q).room -= 1;
                (*q).len += 1;
            }
        }
    }

    /// Frees what was retired before `min_pin`; at most `budget` entries.
    pub fn drain(e: &Engine, slot: SlotId, min_pin: Csn, budget: usize) {
        Self::drain_for(e, slot, slot, min_pin, budget);
    }

    /// As `drain`, of any slot's queue; the memory goes to the magazines of `me`.
    pub fn drain_for(e: &Engine, slot: SlotId, me: SlotId, min_pin: Csn, mut budget: usize) {
        if Self::len(e, slot) == 0 {
            return;
        }
        let held = Self::lock(e, slot);
        let q = held.0;
        // SAFETY: as in `reserve`; INV-RETIRE makes the entries ours.
        unsafe {
            while budget > 0 && (*q).len > 0 {
                let s = (*q).first;
                if (*s).done == (*s).n {
                    debug_assert!(!(*s).next.is_null());
                    (*q).first = (*s).next;
                    e.region.free(me as usize, NonNull::new_unchecked(s.cast()));
                    continue;
                }
                let (p, csn) = (&(*s).items)[(*s).done as usize];
                let early = faults::on(Fault::NoGracePeriod) || csn == min_pin && faults::on(Fault::FreesAtPin);
                if csn >= min_pin && !early {
                    return;
                }
                (*s).done += 1;
                (*q).len -= 1;
                if (*q).large_at != 0 && csn >= (*q).large_at {
                    (*q).large_at = 0;
                }
                budget -= 1;
                e.region.free(me as usize, NonNull::new_unchecked(p));
            }
        }
    }

    /// Gives back all memory of a queue in which nothing waits: tests look for what is left.
    #[cfg(test)]
    pub(crate) fn free_all(e: &Engine, slot: SlotId) {
        assert_eq!(Self::len(e, slot), 0);
        let q = Self::lock(e, slot).0;
        // SAFETY: as in `reserve`; the test is alone.
        unsafe {
            while let Some(s) = NonNull::new((*q).first) {
                (*q).first = s.as_ref().next;
                e.region.free(slot as usize, s.cast());
            }
            ((*q).last, (*q).end, (*q).room) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        }
    }

    /// Entries that wait.
    pub fn len(e: &Engine, slot: SlotId) -> u64 {
        // SAFETY: a racy read of a counter when it is not the owner's; for the owner exact.
        unsafe { (*Self::me(e, slot)).len }
    }
}
