//! The version word of a node: optimistic reads, and the latch of writers.
//!
//! **INV-OLC**: The words of a node change only under the latch of its version, and each change
//! gives the node a version that it never had. So a reader that finds the same version before and
//! after it read some words has read them as they were together. Words are loaded with *acquire*
//! and stored with *release*: a reader of a new word finds at least the latched version when it
//! looks again. Versions are sequentially consistent, because INV-RETIRE orders them with pins and
//! the clock.

use crate::primitive::{relax, AtomicU64, Ordering};

const LATCHED: u64 = 1;
const STEP: u64 = 2;

/// Version and latch of a node (INV-OLC). All zero: never changed, free.
#[repr(transparent)]
pub struct VersionWord(AtomicU64);

impl Default for VersionWord {
    fn default() -> Self {
        VersionWord(AtomicU64::new(0))
    }
}

impl VersionWord {
    /// The version, once no writer holds the latch.
    #[inline]
    pub fn read(&self) -> u64 {
        let mut n = 0;
        loop {
            let v = self.0.load(Ordering::SeqCst);
            if v & LATCHED == 0 {
                return v;
            }
            relax(n);
            n += 1;
        }
    }

    /// Is it still this version, and not latched?
    #[inline]
    pub fn is(&self, version: u64) -> bool {
        self.0.load(Ordering::SeqCst) == version
    }

    /// Takes the latch if the version is unchanged. Never waits.
    #[must_use]
    pub fn latch(&self, version: u64) -> bool {
        self.0.compare_exchange(version, version | LATCHED, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Releases the latch taken at `version`, after the node has changed or left the tree.
    pub fn release(&self, version: u64) {
        self.0.store(version + STEP, Ordering::SeqCst);
    }

    /// Releases the latch taken at `version`, if the node has not changed.
    pub fn release_unchanged(&self, version: u64) {
        self.0.store(version, Ordering::SeqCst);
    }
}
