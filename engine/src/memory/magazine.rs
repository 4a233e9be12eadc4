//! The caches of free objects of one slot. Most allocations and frees use only them, and so touch
//! no cache line that another slot writes.
//!
//! **INV-M4**: A magazine holds `count` free objects of its class, and only the one thread of its
//! slot touches it. (Debug builds check this. `usage` reads `count`.)

use super::classes::CLASS_COUNT;
use super::slab::{next_object, set_next_object, Chain};
use crate::primitive::{AtomicU32, AtomicUsize, Ordering};

/// A bounded stack of free objects of one class.
#[repr(C)]
pub(super) struct Magazine {
    head: AtomicUsize,
    count: AtomicU32,
    _pad: u32,
}

/// The magazines of a slot. Only the slot's thread writes them; `Region::usage` also reads `count`.
/// All zero bytes are an empty cache.
#[repr(C, align(64))]
pub(super) struct SlotCache {
    pub magazines: [Magazine; CLASS_COUNT],
    /// In debug builds: 1 while a thread uses the slot.
    busy: AtomicU32,
    _pad: u32,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Magazine>() == 16);
    assert!(size_of::<SlotCache>() == 1280);
};

impl Magazine {
    #[inline]
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn pop(&self) -> Option<usize> {
        let head = self.head.load(Ordering::Relaxed);
        if head == 0 {
            return None;
        }
        // SAFETY: INV-M4: the magazine's objects are free and belong to the slot alone.
        self.head.store(unsafe { next_object(head) }, Ordering::Relaxed);
        self.count.store(self.count.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
        Some(head)
    }

    /// Adds an object.
    ///
    /// # Safety
    /// `object` is a free object of this magazine's class that is in no list (INV-M1).
    #[inline]
    pub unsafe fn push(&self, object: usize) {
        // SAFETY: INV-M1: by this function's contract the object is free and in no list.
        unsafe { set_next_object(object, self.head.load(Ordering::Relaxed)) };
        self.head.store(object, Ordering::Relaxed);
        self.count.store(self.count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Fills an empty magazine.
    pub fn load(&self, chain: Chain) {
        self.head.store(chain.head, Ordering::Relaxed);
        self.count.store(chain.count, Ordering::Relaxed);
    }

    /// Removes up to `wanted` objects.
    pub fn unload(&self, wanted: u32) -> Chain {
        let count = wanted.min(self.count());
        if count == 0 {
            return Chain::EMPTY;
        }
        let head = self.head.load(Ordering::Relaxed);
        let mut last = head;
        for _ in 1..count {
            // SAFETY: INV-M4: the magazine has at least `count` objects.
            last = unsafe { next_object(last) };
        }
        // SAFETY: INV-M4: `last` is the last of those objects.
        let rest = unsafe { next_object(last) };
        // SAFETY: INV-M4: as above.
        unsafe { set_next_object(last, 0) };
        self.head.store(rest, Ordering::Relaxed);
        self.count.store(self.count() - count, Ordering::Relaxed);
        Chain { head, count }
    }
}

/// Checks in debug builds that only one thread at a time uses a slot.
pub(super) struct Inside<'a>(#[cfg_attr(not(debug_assertions), allow(dead_code))] &'a SlotCache);

impl SlotCache {
    #[inline]
    pub fn enter(&self) -> Inside<'_> {
        #[cfg(debug_assertions)]
        assert_eq!(self.busy.swap(1, Ordering::Acquire), 0, "two threads use one slot of the region");
        Inside(self)
    }
}

#[cfg(debug_assertions)]
impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.busy.store(0, Ordering::Release);
    }
}
