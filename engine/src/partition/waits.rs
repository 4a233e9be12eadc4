//! Sleeps for locks, counted at the partition of the lock.

use super::Partition;
use crate::platform::Queue;
use crate::primitive::{AtomicU64, Ordering};
use std::time::Instant;

/// Declares the reasons for sleeps: one list produces the enum and the counters.
macro_rules! wait_reasons {
    ($($name:ident, $doc:literal;)*) => {
        /// The reason for which a transaction sleeps.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum WaitReason { $(#[doc = $doc] $name),* }
        impl WaitReason {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [WaitReason] = &[$(WaitReason::$name),*];
        }
    };
}

wait_reasons! {
    Row, "The lock of a row.";
    Range, "The lock of a range of an index.";
    Reader, "The end of a transaction that has read a part of a range in which we write.";
    Partition, "The lock of a partition.";
}

impl From<Queue> for WaitReason {
    fn from(q: Queue) -> WaitReason {
        match q {
            Queue::Record(..) => WaitReason::Row,
            Queue::Partition(..) => WaitReason::Partition,
            Queue::Range(..) => WaitReason::Range,
        }
    }
}

/// Sleeps for the locks of a partition. All-zero: there were none.
#[repr(C)]
pub struct Waits {
    counts: [AtomicU64; WaitReason::ALL.len()],
    us: AtomicU64,
}

impl Waits {
    /// The number of sleeps for this reason.
    pub fn of(&self, why: WaitReason) -> u64 {
        self.counts[why as usize].load(Ordering::Relaxed)
    }
    /// The number of all sleeps, including those under way.
    pub fn all(&self) -> u64 {
        self.counts.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }
    /// The time slept in microseconds, without sleeps under way.
    pub fn us(&self) -> u64 {
        self.us.load(Ordering::Relaxed)
    }

    fn counters(&self) -> impl Iterator<Item = &AtomicU64> {
        self.counts.iter().chain([&self.us])
    }
    /// Resets the counters.
    pub fn reset(&self) {
        self.counters().for_each(|n| n.store(0, Ordering::Relaxed));
    }
    /// Takes over the counts of another partition. No other process counts here meanwhile.
    pub fn copy_from(&self, o: &Waits) {
        self.counters().zip(o.counters()).for_each(|(n, o)| n.store(o.load(Ordering::Relaxed), Ordering::Relaxed));
    }
}

/// A sleep under way. Its end is counted when it is dropped, also when the platform unwinds.
pub struct Sleep(&'static Waits, Instant);

impl Sleep {
    /// Counts a sleep that begins.
    pub fn start(p: &'static Partition, why: WaitReason) -> Sleep {
        p.stats.waits.counts[why as usize].fetch_add(1, Ordering::Relaxed);
        Sleep(&p.stats.waits, Instant::now())
    }
    /// The time that it has lasted, in nanoseconds.
    pub fn ns(&self) -> u64 {
        self.1.elapsed().as_nanos() as u64
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.0.us.fetch_add(self.ns() / 1000, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sleeps_add_up_by_reason_and_start_again() {
        // SAFETY: all-zero counters are valid.
        let (a, b): (Waits, Waits) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        for (n, why) in (1..).zip(WaitReason::ALL) {
            a.counts[*why as usize].fetch_add(n, Ordering::Relaxed);
        }
        a.us.store(77, Ordering::Relaxed);
        b.copy_from(&a);
        let of = |w: &Waits| WaitReason::ALL.iter().map(|why| w.of(*why)).collect::<Vec<_>>();
        assert_eq!((of(&b), b.all(), b.us()), (vec![1, 2, 3, 4], 10, 77));
        b.reset();
        assert_eq!((of(&b), b.all(), b.us()), (vec![0; 4], 0, 0));
    }

    #[test]
    fn each_queue_has_its_reason() {
        let queues = [Queue::Record(1, 2), Queue::Partition(1, 2), Queue::Range(1, 2, 3)];
        let reasons = queues.map(WaitReason::from);
        assert_eq!(reasons, [WaitReason::Row, WaitReason::Partition, WaitReason::Range]);
    }
}
