//! The spin latch, held for a few instructions. Its holder neither sleeps nor calls the platform.
//! In this module it does not panic or allocate from the process heap either. If code under the
//! latch unwinds all the same, the latch is released.

use crate::primitive::{relax, AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;

/// A latch. All zero bytes are a free one.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Latch {
    word: AtomicU32,
}

/// Releases the latch when dropped.
pub(crate) struct LatchGuard<'a> {
    latch: &'a Latch,
}

impl Latch {
    #[inline]
    pub fn lock(&self) -> LatchGuard<'_> {
        let mut waits = 0;
        while !self.try_lock() {
            relax(waits);
            waits = waits.saturating_add(1);
        }
        LatchGuard { latch: self }
    }

    /// Runs `f` under the latch.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        let _held = self.lock();
        f()
    }

    #[cfg(all(test, not(loom)))]
    pub fn is_held(&self) -> bool {
        self.word.load(Ordering::Relaxed) == HELD
    }

    #[inline]
    fn try_lock(&self) -> bool {
        // Acquire pairs with the Release of the former holder's guard.
        self.word.load(Ordering::Relaxed) == FREE
            && self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

impl Drop for LatchGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.latch.word.store(FREE, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::panic::{catch_unwind, AssertUnwindSafe};

    #[test]
    fn unwinding_releases_it() {
        let latch = Latch { word: AtomicU32::new(FREE) };
        let unwound = catch_unwind(AssertUnwindSafe(|| latch.with(|| panic!("under the latch"))));
        assert!(unwound.is_err());
        assert!(latch.try_lock(), "the latch is still held");
        assert!(!latch.try_lock(), "two hold the latch");
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    struct Counter {
        latch: Latch,
        value: UnsafeCell<u32>,
    }

    // SAFETY: `value` is touched only under `latch`, which is what the model checks.
    unsafe impl Sync for Counter {}
    // SAFETY: a u32 and a latch belong to no particular thread.
    unsafe impl Send for Counter {}

    #[test]
    fn holders_exclude_each_other() {
        loom::model(|| {
            let latch = Latch { word: AtomicU32::new(FREE) };
            let counter = Arc::new(Counter { latch, value: UnsafeCell::new(0) });
            let add = |counter: &Counter| {
                let _held = counter.latch.lock();
                // SAFETY: the latch is held.
                counter.value.with_mut(|value| unsafe { *value += 1 });
            };
            let other = Arc::clone(&counter);
            let thread = loom::thread::spawn(move || add(&other));
            add(&counter);
            thread.join().unwrap();
            // SAFETY: the other thread has ended.
            assert_eq!(counter.value.with(|value| unsafe { *value }), 2);
        });
    }
}
