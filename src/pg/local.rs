//! Variables of this process. There are few; each says whose they are and how long they live:
//!
//! * *of the process*: written when the library is loaded or shared memory is made, or a cache that
//!   invalidations empty;
//! * *of the transaction*: `hooks/ends.rs` has them emptied;
//! * *of a statement or scan*: they go with its memory, its resource owner, or its subtransaction.

use std::cell::UnsafeCell;

/// A variable of this process.
pub struct Local<T>(UnsafeCell<T>);

// SAFETY: backends, the postmaster and the coordinator have one thread, and a child has a copy of
// its own. Unit tests do not run code that has such state.
unsafe impl<T> Sync for Local<T> {}

impl<T> Local<T> {
    /// A variable with its first value.
    pub const fn new(value: T) -> Local<T> {
        Local(UnsafeCell::new(value))
    }

    /// Its value, to work on it in place.
    ///
    /// # Safety
    /// Until the last use of this reference there is no other one, and no call of the functions
    /// below. Whatever may run functions of users, or raise an ERROR that is caught, counts as such
    /// a call if the code above it uses the variable.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn get_mut(&self) -> &mut T {
        // SAFETY: no other reference is in use (contract of this function), and a process has one
        // thread.
        unsafe { &mut *self.0.get() }
    }

    /// Where it is.
    #[inline]
    pub const fn as_ptr(&self) -> *mut T {
        self.0.get()
    }

    /// Puts a value in; what was there.
    #[inline]
    pub fn replace(&self, value: T) -> T {
        // SAFETY: a process has one thread, and no reference is in use (contract of `get_mut`).
        unsafe { self.0.get().replace(value) }
    }

    /// Puts a value in.
    #[inline]
    pub fn set(&self, value: T) {
        drop(self.replace(value));
    }
}

impl<T: Copy> Local<T> {
    /// Its value.
    #[inline]
    pub fn get(&self) -> T {
        // SAFETY: a process has one thread, and no reference is in use (contract of `get_mut`); `T`
        // is `Copy`.
        unsafe { self.0.get().read() }
    }
}

impl<T: Default> Local<T> {
    /// Its value, which is the default one then.
    #[inline]
    pub fn take(&self) -> T {
        self.replace(T::default())
    }
}
