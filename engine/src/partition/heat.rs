//! Hot records: those that make transactions fail again and again.
//!
//! Each place has a level. A transaction that a record has failed, or has made wait, raises the
//! level of its place with the probability 2^-level. So a level tells the order of magnitude of
//! their number, and places that are hot are seldom written to. A lock that was taken because of
//! the heat, and was free, lowers the level likewise, an eighth as often: a record stays hot if one
//! lock in nine is of use.
//!
//! It is a guess, which no proof relies on (INV-HEAT). Records share places, and changes may be
//! lost.

use crate::primitive::{AtomicU8, Ordering};

/// Places of a partition. A power of two.
const PLACES: usize = 256;
/// From this level on a record is hot: after some seven failures.
const HOT: u8 = 3;
/// Levels end here, or at the threshold if that is higher.
const MOST: u8 = 8;
/// The highest threshold. A dice has 24 bits, and [`COOLS`] more than this are needed.
#[cfg(feature = "thresholds")]
const HIGHEST: u8 = 20;
/// Locks that were free count 2^-3.
const COOLS: u8 = 3;

/// The threshold of this process, which benchmarks set.
#[cfg(feature = "thresholds")]
static THRESHOLD: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(HOT);

/// Sets the level from which on records are hot, in all partitions, for this process: 0 makes all
/// records hot.
#[cfg(feature = "thresholds")]
pub fn set_threshold(level: u8) {
    THRESHOLD.store(level.min(HIGHEST), std::sync::atomic::Ordering::Relaxed);
}

#[cfg(feature = "thresholds")]
#[inline]
fn threshold() -> u8 {
    THRESHOLD.load(std::sync::atomic::Ordering::Relaxed)
}

#[cfg(not(feature = "thresholds"))]
#[inline]
const fn threshold() -> u8 {
    HOT
}

/// Does this process try a lock once that comes out of the canonical order, as the MOCC paper does?
/// Benchmarks set it.
#[cfg(feature = "thresholds")]
static ORDERED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Sets whether look-ups of this process wait for hot rows in canonical order only, and try a lock
/// once that comes out of it.
#[cfg(feature = "thresholds")]
pub fn set_ordered(ordered: bool) {
    ORDERED.store(ordered, std::sync::atomic::Ordering::Relaxed);
}

#[cfg(feature = "thresholds")]
pub(crate) fn is_ordered() -> bool {
    ORDERED.load(std::sync::atomic::Ordering::Relaxed)
}

/// Of each place, the level. All-zero: nothing is hot.
#[repr(transparent)]
pub struct Heat([AtomicU8; PLACES]);

impl Heat {
    fn place(&self, record: u64) -> &AtomicU8 {
        // Neighbours have places of their own.
        &self.0[record as usize % PLACES]
    }

    /// Is the record hot?
    #[inline]
    pub fn is_hot(&self, record: u64) -> bool {
        self.place(record).load(Ordering::Relaxed) >= threshold()
    }

    /// The record has failed a transaction, or made it wait. `dice`: a random number.
    pub fn raise(&self, record: u64, dice: u32) {
        let place = self.place(record);
        let level = place.load(Ordering::Relaxed);
        if level < MOST.max(threshold()) && falls(dice, level) {
            place.store(level + 1, Ordering::Relaxed);
        }
    }

    /// A lock of the hot record was free.
    pub fn lower(&self, record: u64, dice: u32) {
        let place = self.place(record);
        let level = place.load(Ordering::Relaxed);
        if level > 0 && falls(dice, level + COOLS) {
            place.store(level - 1, Ordering::Relaxed);
        }
    }
}

/// True with the probability 2^-level.
fn falls(dice: u32, level: u8) -> bool {
    dice >> 8 & ((1 << level) - 1) == 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn new() -> Heat {
        Heat(std::array::from_fn(|_| AtomicU8::new(0)))
    }

    /// Numbers that are random enough.
    fn dice() -> impl FnMut() -> u32 {
        let mut x = 88_172_645_463_325_252u64;
        move || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u32
        }
    }

    #[test]
    fn failures_make_a_record_hot_and_idle_locks_cool_it() {
        let (h, mut roll) = (new(), dice());
        let mut failures = 0;
        while !h.is_hot(5) {
            assert!(!h.is_hot(6), "another record");
            h.raise(5, roll());
            failures += 1;
        }
        assert!((3..200).contains(&failures), "{failures}");
        (0..100_000).for_each(|_| h.raise(5, roll()));
        assert_eq!(h.place(5).load(Ordering::Relaxed), MOST);
        let mut idle = 0;
        while h.is_hot(5) {
            h.lower(5, roll());
            idle += 1;
        }
        assert!(idle > failures, "{idle}");
        (0..100_000).for_each(|_| h.lower(5, roll())); // not below zero
        assert_eq!(h.place(5).load(Ordering::Relaxed), 0);
    }

    /// All tests of a process share the threshold. So this one is alone:
    /// `cargo test --features thresholds --lib a_threshold_decides`.
    #[cfg(feature = "thresholds")]
    #[test]
    fn a_threshold_decides_from_which_level_on_a_record_is_hot() {
        let (h, mut roll) = (new(), dice());
        set_threshold(0);
        assert!(h.is_hot(5), "all are hot");
        set_threshold(200);
        assert_eq!(threshold(), HIGHEST);
        set_threshold(10);
        (0..100_000).for_each(|_| h.raise(5, roll()));
        assert_eq!(h.place(5).load(Ordering::Relaxed), 10, "levels go as far as the threshold");
        assert!(h.is_hot(5) && !h.is_hot(6));
        set_threshold(HOT);
    }

    /// The share of the time in which a record is hot, if one in `every` locks meets somebody.
    fn hot_share(every: u64) -> f64 {
        let (h, mut roll) = (new(), dice());
        let mut hot = 0u64;
        const N: u64 = 1_000_000;
        for n in 0..N {
            hot += u64::from(h.is_hot(1));
            if n % every == 0 {
                h.raise(1, roll());
            } else {
                h.lower(1, roll());
            }
        }
        hot as f64 / N as f64
    }

    #[test]
    fn a_record_stays_hot_while_its_locks_are_of_use() {
        assert!(hot_share(2) > 0.95, "{}", hot_share(2));
        assert!(hot_share(100) < 0.1, "{}", hot_share(100));
    }
}
