//! The counters of a partition.
//!
//! **INV-STATS**: No transaction changes a counter's cache line that all other transactions change
//! too. Counters of every transaction are striped by slot, and each transaction adds to them once,
//! at its end. Sleeps, aborts and samples (one transaction in `every`, see [`Sampler`]) add to the
//! other counters.

use super::Waits;
use crate::csn::SlotId;
use crate::error::{AbortReason, ABORT_REASONS};
use crate::primitive::{AtomicU32, AtomicU64, Ordering};

/// The number of stripes of the counters.
pub const STRIPES: usize = 8;
/// The number of records that are marked at a time (see [`Sampled::mark`]).
pub const MARKS: usize = 64;
/// The number of partitions remembered as touched together with a partition.
pub const PARTNERS: usize = 8;

/// The counters of the transactions of some slots.
#[repr(C, align(64))]
pub struct Stripe {
    /// Rows that are committed and not deleted.
    pub rows: AtomicU64,
    /// Linked versions.
    pub versions: AtomicU64,
    /// Bytes of versions.
    pub bytes: AtomicU64,
    /// Records read.
    pub reads: AtomicU64,
    /// Records written by committed transactions.
    pub writes: AtomicU64,
    /// Transactions that touched the partition and committed.
    pub commits: AtomicU64,
    /// Nanoseconds from begin to end of the transactions that touched it. Transactions that the
    /// client rolled back do not count.
    pub busy_ns: AtomicU64,
}
const _: () = assert!(std::mem::size_of::<Stripe>() == 64);

macro_rules! sampled {
    ($($name:ident: $doc:literal,)*) => {
        /// Counters of sampled transactions that touched the partition and committed, and the marks
        /// by which conflicts are estimated.
        #[repr(C)]
        pub struct Sampled {
            $(#[doc = $doc] pub $name: AtomicU64,)*
            /// The slot of the last sampled transaction, plus one. 0: there was none.
            last: AtomicU64,
            marks: [AtomicU64; MARKS],
            partners: [Partner; PARTNERS],
        }

        /// The counters of [`Sampled`] at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub struct Sample { $(pub $name: u64,)* }

        impl Sampled {
            /// The counters.
            pub fn get(&self) -> Sample {
                Sample { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
            fn clear_counters(&self) {
                $(self.$name.store(0, Ordering::Relaxed);)*
            }
            /// Adds the counts of a transaction.
            pub fn add(&self, s: &Sample) {
                $(if s.$name != 0 { self.$name.fetch_add(s.$name, Ordering::Relaxed); })*
            }
        }
        impl Sample {
            /// The counts since `before`. Zero if the counters were reset meanwhile.
            pub fn since(&self, before: &Sample) -> Sample {
                Sample { $($name: self.$name.saturating_sub(before.$name),)* }
            }
        }
    };
}

sampled! {
    txns: "The number of transactions.",
    reads: "Records that they read here.",
    writes: "Records that they wrote here.",
    serializable: "Transactions at SERIALIZABLE.",
    weak_writers: "Transactions of other levels that wrote here.",
    multi: "Transactions that touched other partitions too.",
    partitions: "Partitions that they touched, including this one.",
    duration_ns: "Nanoseconds from their first touch of any partition to their end.",
    lost: "Attempts here that others made fail: serialization failures, deadlocks, waits given up.",
    lost_ns: "Nanoseconds of those attempts.",
    cpu_ns: "Processor time of their threads in both, in nanoseconds.",
    lost_cpu_ns: "Processor time of the attempts that failed, in nanoseconds.",
    slept_ns: "Nanoseconds that they slept for locks, in both.",
    stretch: "Overlap with others: log2 of time without sleeps over processor time, in thousandths.",
    declared: "Transactions that had declared partitions.",
    ordered: "Transactions whose first accesses were in the order of record numbers, so free of deadlocks.",
    round_trips: "Approximate number of the client's statements in that time.",
    idle: "Transactions with more than one statement of the client.",
    retries: "Transactions that followed a failed attempt in their slot.",
    turns: "Transactions whose sampled predecessor was of another slot.",
    looks: "Accesses that were compared with marks.",
    conflicts: "Accesses that met a mark of another slot, one of the two a write.",
}

/// A partition that is touched together with this one.
#[repr(C)]
struct Partner {
    /// The partition's address, which is never followed. 0: free.
    who: AtomicU64,
    count: AtomicU64,
}

/// The counters of a partition. All-zero: nothing was counted.
#[repr(C)]
pub struct PartitionStats {
    stripes: [Stripe; STRIPES],
    /// Transactions aborted because of this partition, by reason.
    pub aborts: [AtomicU64; ABORT_REASONS],
    /// Serializable transactions that read here and ended as snapshots, because of a conflict or
    /// because they were expected to only read.
    pub frozen: AtomicU64,
    /// Those that were to write or lock after all, and failed for a conflict here.
    pub failed_thaws: AtomicU64,
    /// Sleeps for its locks.
    pub waits: Waits,
    /// See [`Sampled`].
    pub sampled: Sampled,
}

impl PartitionStats {
    /// The stripe for the transactions of a slot.
    #[inline]
    pub fn stripe(&self, slot: SlotId) -> &Stripe {
        &self.stripes[slot as usize % STRIPES]
    }
    /// The sum of a counter over all stripes. A counter that shrinks may be read below zero for an
    /// instant; then the sum is 0.
    pub fn sum(&self, counter: impl Fn(&Stripe) -> &AtomicU64) -> u64 {
        let n = self.stripes.iter().fold(0u64, |n, s| n.wrapping_add(counter(s).load(Ordering::Relaxed)));
        if (n as i64) < 0 {
            0
        } else {
            n
        }
    }
    /// The number of transactions aborted because of the partition.
    pub fn all_aborts(&self) -> u64 {
        self.aborts.iter().map(|a| a.load(Ordering::Relaxed)).sum()
    }
    /// Counts an abort.
    pub fn count_abort(&self, r: AbortReason) {
        self.aborts[r as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the sizes to zero, as the rows are gone. No other process counts meanwhile.
    pub fn clear_sizes(&self) {
        for s in &self.stripes {
            for c in [&s.rows, &s.versions, &s.bytes] {
                c.store(0, Ordering::Relaxed);
            }
        }
    }
    /// Resets the counts of transactions. Sizes stay.
    pub fn reset(&self) {
        for s in &self.stripes {
            for c in [&s.reads, &s.writes, &s.commits, &s.busy_ns] {
                c.store(0, Ordering::Relaxed);
            }
        }
        let readers = [&self.frozen, &self.failed_thaws];
        self.aborts.iter().chain(readers).for_each(|n| n.store(0, Ordering::Relaxed));
        self.waits.reset();
        self.sampled.clear();
    }
    /// Takes over the counts of another partition. No other process counts here meanwhile.
    pub fn copy_from(&self, o: &PartitionStats) {
        let mine = &self.stripes[0];
        type Get = fn(&Stripe) -> &AtomicU64;
        let all: [Get; 7] =
            [|s| &s.rows, |s| &s.versions, |s| &s.bytes, |s| &s.reads, |s| &s.writes, |s| &s.commits, |s| &s.busy_ns];
        for get in all {
            get(mine).store(o.sum(get), Ordering::Relaxed);
        }
        let readers = [(&self.frozen, &o.frozen), (&self.failed_thaws, &o.failed_thaws)];
        for (n, o) in self.aborts.iter().zip(&o.aborts).chain(readers) {
            n.store(o.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.waits.copy_from(&o.waits);
        self.sampled.add(&o.sampled.get());
    }
}

impl Sampled {
    /// Handles the access of a sampled transaction of `slot` to a record. It compares the record
    /// with the marks of this period, and marks the record itself (ACC, section 4: mark and
    /// detect). Returns true if another slot has marked the record and one of the two accesses
    /// writes. Marks outlive their transactions, so that the estimate does not depend on the
    /// protocol: it says how likely accesses of different sessions meet.
    pub fn mark(&self, slot: SlotId, record: u64, writes: bool) -> bool {
        // A mark: [hash:46][slot:16][written:1][set:1].
        let hash = record.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let m = &self.marks[(hash >> 58) as usize % MARKS];
        let mine = (hash & ((1 << 46) - 1)) << 18 | (slot as u64) << 2 | (writes as u64) << 1 | 1;
        let old = m.load(Ordering::Relaxed);
        if old == 0 {
            m.store(mine, Ordering::Relaxed);
            return false;
        }
        let same = old >> 18 == mine >> 18;
        let other = (old >> 2) as u16 != slot;
        if same && !other && writes && old & 2 == 0 {
            m.store(mine, Ordering::Relaxed);
        }
        same && other && (writes || old & 2 != 0)
    }

    /// Notes a sampled transaction of `slot`. Returns true if the one before it was of another
    /// slot. That never happens if a partition belongs to one session. If n sessions share it
    /// evenly, it happens for all but one in n.
    pub fn turn(&self, slot: SlotId) -> bool {
        let me = slot as u64 + 1;
        let last = self.last.load(Ordering::Relaxed);
        if last != me {
            self.last.store(me, Ordering::Relaxed);
        }
        last != 0 && last != me
    }

    /// Begins a new period, without marks.
    pub fn clear_marks(&self) {
        for m in &self.marks {
            if m.load(Ordering::Relaxed) != 0 {
                m.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Notes that a sampled transaction touched this partition and another one. The most frequent
    /// ones stay (Space-Saving: a new one takes the place and the count of the rarest).
    pub fn meet(&self, who: u64) {
        let mut rarest = &self.partners[0];
        for p in &self.partners {
            let at = p.who.load(Ordering::Relaxed);
            if at == who || at == 0 {
                p.who.store(who, Ordering::Relaxed);
                p.count.fetch_add(1, Ordering::Relaxed);
                return;
            }
            if p.count.load(Ordering::Relaxed) < rarest.count.load(Ordering::Relaxed) {
                rarest = p;
            }
        }
        rarest.who.store(who, Ordering::Relaxed);
        rarest.count.fetch_add(1, Ordering::Relaxed);
    }

    /// The addresses and counts of partitions touched together with this one, most frequent first.
    /// The address of a partition whose map was replaced matches no partition.
    pub fn partners(&self) -> Vec<(u64, u64)> {
        let all = self.partners.iter().map(|p| (p.who.load(Ordering::Relaxed), p.count.load(Ordering::Relaxed)));
        let mut out: Vec<_> = all.filter(|p| p.0 != 0).collect();
        out.sort_by_key(|p| std::cmp::Reverse(p.1));
        out
    }

    fn clear(&self) {
        self.clear_counters();
        self.clear_marks();
        self.last.store(0, Ordering::Relaxed);
        for p in &self.partners {
            p.who.store(0, Ordering::Relaxed);
            p.count.store(0, Ordering::Relaxed);
        }
    }
}

/// Selects the transactions of a slot that are sampled: one in `every`, at random distances, so
/// that no rhythm of the load coincides with that of the samples.
pub struct Sampler {
    /// The number of transactions to the next that is considered. 1: the next one.
    left: u32,
    random: u32,
}

impl Sampler {
    /// The sampler of a slot.
    pub fn new(slot: SlotId) -> Sampler {
        Sampler { left: 1 + slot as u32 % 7, random: (slot as u32).wrapping_mul(2_654_435_761) | 1 }
    }
    /// Is the next transaction sampled? None is if `every` is 0.
    #[inline]
    pub fn next(&mut self, every: u32) -> bool {
        if self.left > 1 {
            self.left -= 1;
            return false;
        }
        self.restart(every)
    }
    #[cold]
    fn restart(&mut self, every: u32) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        // Uniform in 1..2 * every - 1, and so `every` on average.
        self.left = 1 + self.random % (2 * every.max(1) - 1);
        every != 0
    }
}

/// The setting of the whole cluster: one transaction in this number is sampled.
#[repr(C)]
pub struct SampleEvery(AtomicU32);

impl SampleEvery {
    /// The default.
    pub const DEFAULT: u32 = 16;
    /// The setting. 0: no transaction is sampled.
    #[inline]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
    /// Changes the setting.
    pub fn set(&self, every: u32) {
        self.0.store(every, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn stats() -> Box<PartitionStats> {
        // SAFETY: INV-STATS: all-zero counters are valid.
        unsafe { Box::new(std::mem::zeroed()) }
    }

    #[test]
    fn stripes_add_up_and_never_show_less_than_nothing() {
        let s = stats();
        for slot in 0..20 {
            s.stripe(slot).rows.fetch_add(slot as u64, Ordering::Relaxed);
        }
        assert_eq!(s.sum(|s| &s.rows), 190);
        s.stripe(3).rows.fetch_sub(200, Ordering::Relaxed);
        assert_eq!(s.sum(|s| &s.rows), 0);
        s.stripe(4).rows.fetch_add(11, Ordering::Relaxed);
        let t = stats();
        t.copy_from(&s);
        assert_eq!(t.sum(|s| &s.rows), 1);
        t.clear_sizes();
        assert_eq!(t.sum(|s| &s.rows), 0);
    }

    #[test]
    fn one_in_so_many_is_sampled() {
        for every in [1, 2, 16, 100] {
            let mut s = Sampler::new(5);
            let n = (0..100_000).filter(|_| s.next(every)).count() as f64;
            let wanted = 100_000.0 / every as f64;
            assert!((n - wanted).abs() < 0.1 * wanted, "{n} of {wanted}");
        }
        let mut s = Sampler::new(5);
        assert_eq!((0..1000).filter(|_| s.next(0)).count(), 0);
    }

    /// The share of conflicting accesses of two sessions that access records at random.
    fn conflicts(records: u64, writes: u64) -> f64 {
        let s = stats();
        let (mut met, mut random) = (0, 7u64);
        for i in 0..10_000u64 {
            if i % 500 == 0 {
                s.sampled.clear_marks();
            }
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let write = (random >> 20) % 100 < writes;
            met += s.sampled.mark((i % 2) as u16, 4096 + 32 * ((random >> 33) % records), write) as u32;
        }
        met as f64 / 10_000.0
    }

    #[test]
    fn marks_tell_hot_records_from_cold_ones_and_writes_from_reads() {
        assert!(conflicts(10, 50) > 0.2, "{}", conflicts(10, 50));
        assert!(conflicts(1_000_000, 50) < 0.01);
        assert!(conflicts(1000, 50) < conflicts(100, 50));
        assert_eq!(conflicts(10, 0), 0.0, "readers do not conflict");
    }

    #[test]
    fn turns_tell_one_session_from_several() {
        let turns = |slots: u64| {
            let (s, mut random) = (stats(), 7u64);
            let mut next = || {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                s.sampled.turn(((random >> 33) % slots) as u16)
            };
            (0..10_000).filter(|_| next()).count() as f64 / 10_000.0
        };
        assert_eq!(turns(1), 0.0);
        assert!((turns(2) - 0.5).abs() < 0.05 && (turns(8) - 0.875).abs() < 0.05, "{} {}", turns(2), turns(8));
        let s = stats();
        assert!(!s.sampled.turn(0), "there was none before the first");
        assert!(s.sampled.turn(1));
        s.reset();
        assert!(!s.sampled.turn(0), "nor after a reset");
    }

    #[test]
    fn frequent_partners_stay() {
        let s = stats();
        for i in 0..1000u32 {
            s.sampled.meet(7);
            s.sampled.meet(100 + i as u64 % 50);
        }
        assert_eq!(s.sampled.partners()[0], (7, 1000));
        s.reset();
        assert!(s.sampled.partners().is_empty());
    }
}
