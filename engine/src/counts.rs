//! The work of registration and validation, counted for benchmarks, for each thread.
//!
//! Without the feature `counts` nothing is counted, and it costs nothing.

/// Counts of the work done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Records that were read again.
    pub records: u64,
    /// Registrations of other transactions that were checked.
    pub entries: u64,
    /// Lists of ranges of which at least the end was checked.
    pub lists: u64,
    /// Registrations that were made.
    pub registered: u64,
}

#[cfg(feature = "counts")]
mod on {
    use super::Work;
    use std::cell::Cell;

    thread_local! {
        static DONE: Cell<Work> = const { Cell::new(Work { records: 0, entries: 0, lists: 0, registered: 0 }) };
    }
    /// Adds to the counts.
    pub fn add(f: impl FnOnce(&mut Work)) {
        let mut w = DONE.get();
        f(&mut w);
        DONE.set(w);
    }
    /// Returns this thread's counts since the last call.
    pub fn take() -> Work {
        DONE.take()
    }
}
#[cfg(feature = "counts")]
pub use on::{add, take};

/// Counts nothing without the feature `counts`.
#[cfg(not(feature = "counts"))]
#[inline(always)]
pub fn add(_: impl FnOnce(&mut Work)) {}
/// Returns zero counts without the feature `counts`.
#[cfg(not(feature = "counts"))]
pub fn take() -> Work {
    Work::default()
}
