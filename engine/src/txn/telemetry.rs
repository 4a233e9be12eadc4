//! Telemetry: how long the transaction takes and what it waits for, for the statistics.
//!
//! At its end a transaction adds to the counters of the partitions that it has touched (INV-STATS).
//! A few transactions are sampled: these measure more.

use super::touched::TouchedList;
use super::{Level, Owner, RecordRef};
use crate::clock::{thread_cpu_ns, Clock};
use crate::csn::SlotId;
use crate::error::AbortReason;
use crate::partition::{Partition, Sample, Sampler};
use crate::primitive::Ordering;

/// Accesses of a sampled transaction that are compared with marks, at most.
const ACCESSES: u32 = 16;
/// Partitions of a sampled transaction that are noted as touched together, at most.
const TOGETHER: usize = 4;

/// A transaction that is sampled.
struct SampledTxn {
    cpu_ns: u64,
    accesses: u32,
    last: (u64, u64),
    disordered: bool,
}

/// Measurements of the transactions of a slot.
pub(super) struct Telemetry {
    clock: Clock,
    /// When the transaction began, by that clock.
    began: u64,
    /// How long it slept for locks, nanoseconds.
    pub slept_ns: u64,
    /// Has it declared a partition?
    pub declared: bool,
    /// Statements of the client, about.
    pub round_trips: u32,
    /// Did the transaction before this one fail because of other transactions?
    retries: bool,
    /// Which transactions are sampled.
    sampler: Sampler,
    /// The measurements of this transaction, if it is sampled.
    sample: Option<SampledTxn>,
    /// The records that it has accessed first, if it is sampled and serializable.
    accessed: Vec<RecordRef>,
}

/// How many times longer a time is than the processor's time in it, in thousandths of a doubling:
/// see [`Sample::stretch`]. At most 16 doublings.
fn stretch(net_ns: u64, cpu_ns: u64) -> u64 {
    if cpu_ns == 0 {
        return 0; // the system does not tell
    }
    let doublings = (net_ns as f64 / cpu_ns as f64).max(1.0).log2();
    (doublings.min(16.0) * 1000.0) as u64
}

impl Telemetry {
    pub fn new(slot: SlotId) -> Telemetry {
        Telemetry {
            clock: Clock::of_process(),
            began: 0,
            slept_ns: 0,
            declared: false,
            round_trips: 0,
            retries: false,
            sampler: Sampler::new(slot),
            sample: None,
            accessed: Vec::new(),
        }
    }

    /// A transaction goes on that was prepared elsewhere. It is not sampled.
    pub fn resume(&mut self) {
        self.began = self.clock.now();
    }

    /// A transaction begins.
    pub fn begin(&mut self, owner: &Owner) {
        self.round_trips = 0;
        (self.declared, self.slept_ns) = (false, 0);
        self.began = self.clock.now();
        if self.sampler.next(owner.e.shared.sample_every.get()) {
            self.begin_sample();
        }
    }

    /// The transaction, which begins, is sampled.
    #[cold]
    fn begin_sample(&mut self) {
        self.accessed.reserve(ACCESSES as usize);
        self.sample = Some(SampledTxn { cpu_ns: thread_cpu_ns(), accesses: 0, last: (0, 0), disordered: false });
    }

    #[inline]
    pub fn is_sampled(&self) -> bool {
        self.sample.is_some()
    }

    /// See [`super::Txn::sampled_records`].
    pub fn accessed(&self) -> &[RecordRef] {
        &self.accessed
    }

    /// A savepoint is rolled back to, or the transaction has ended: the records may go.
    pub fn forget_accessed(&mut self) {
        self.accessed.clear();
    }

    /// A record is read, or locked to be written.
    #[inline]
    pub fn access(&mut self, owner: &Owner, level: Level, r: RecordRef, writes: bool) {
        if self.sample.is_some() {
            self.mark_access(owner, level, r, writes);
        }
    }

    #[cold]
    fn mark_access(&mut self, owner: &Owner, level: Level, r: RecordRef, writes: bool) {
        let Some(s) = self.sample.as_mut().filter(|s| s.accesses < ACCESSES) else { return };
        s.accesses += 1;
        let at = (r.table.id, r.no);
        s.disordered |= at < s.last;
        s.last = at;
        if level == Level::Serializable {
            self.accessed.push(r); // there is room
        }
        let sampled = &r.partition().stats.sampled;
        sampled.looks.fetch_add(1, Ordering::Relaxed);
        if sampled.mark(owner.slot, r.key() as u64, writes) {
            sampled.conflicts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts the transaction, which has committed. Allocates nothing and cannot fail.
    pub fn count_committed(&mut self, owner: &Owner, level: Level, touched: &TouchedList) {
        let busy_ns = self.clock.ns_since(self.began);
        for t in touched.iter() {
            let s = t.partition.stats.stripe(owner.slot);
            s.busy_ns.fetch_add(busy_ns, Ordering::Relaxed);
            if t.reads != 0 {
                s.reads.fetch_add(t.reads as u64, Ordering::Relaxed);
            }
            if t.writes != 0 {
                s.writes.fetch_add(t.writes as u64, Ordering::Relaxed);
                t.delta.apply(s);
            }
            if t.reads | t.writes != 0 {
                s.commits.fetch_add(1, Ordering::Relaxed); // else all that it did there was undone
            }
        }
        if self.sample.is_some() {
            self.count_sample(owner, level, touched, busy_ns);
        }
        note_activity(touched);
        self.retries = false;
    }

    /// Counts the transaction, which was aborted: because of other transactions if `failed`.
    /// Allocates nothing and cannot fail.
    pub fn count_aborted(&mut self, owner: &Owner, touched: &TouchedList, failed: Option<(AbortReason, &Partition)>) {
        let lost = failed.is_some();
        let lost_ns = if lost { self.clock.ns_since(self.began) } else { 0 };
        touched.count_reads(owner.slot);
        if let Some((reason, partition)) = failed {
            for t in touched.iter() {
                t.partition.stats.stripe(owner.slot).busy_ns.fetch_add(lost_ns, Ordering::Relaxed);
            }
            partition.stats.count_abort(reason);
            self.count_lost(touched, lost_ns);
        }
        note_activity(touched);
        self.sample = None;
        self.retries = lost;
    }

    /// An attempt that ended because of other transactions costs the time that it took.
    fn count_lost(&self, touched: &TouchedList, lost_ns: u64) {
        let Some(s) = &self.sample else { return };
        let cpu_ns = thread_cpu_ns().saturating_sub(s.cpu_ns);
        let slept_ns = self.slept_ns;
        let lost = Sample { lost: 1, lost_ns, cpu_ns, lost_cpu_ns: cpu_ns, slept_ns, ..Sample::default() };
        for t in touched.iter() {
            t.partition.stats.sampled.add(&lost);
        }
    }

    #[cold]
    fn count_sample(&mut self, owner: &Owner, level: Level, touched: &TouchedList, duration_ns: u64) {
        let Some(s) = self.sample.take() else { return };
        let cpu_ns = thread_cpu_ns().saturating_sub(s.cpu_ns);
        let n = touched.iter().len() as u64;
        let serializable = level == Level::Serializable;
        let mut sample = Sample {
            txns: 1,
            serializable: serializable as u64,
            multi: (n > 1) as u64,
            partitions: n,
            duration_ns,
            cpu_ns,
            slept_ns: self.slept_ns,
            stretch: stretch(duration_ns.saturating_sub(self.slept_ns), cpu_ns),
            declared: self.declared as u64,
            ordered: !s.disordered as u64,
            round_trips: self.round_trips as u64,
            idle: (self.round_trips > 1) as u64,
            retries: self.retries as u64,
            ..Sample::default()
        };
        for t in touched.iter() {
            let sampled = &t.partition.stats.sampled;
            sample.reads = t.reads as u64;
            sample.writes = t.writes as u64;
            sample.weak_writers = (!serializable && t.writes != 0) as u64;
            sample.turns = sampled.turn(owner.slot) as u64;
            sampled.add(&sample);
        }
        for a in touched.iter().take(TOGETHER) {
            for b in touched.iter().take(TOGETHER).filter(|b| !std::ptr::eq(a.partition, b.partition)) {
                a.partition.stats.sampled.meet(std::ptr::from_ref(b.partition) as u64);
            }
        }
    }
}

/// INV-ACTIVITY: called when the transaction is counted.
#[inline]
pub(super) fn note_activity(touched: &TouchedList) {
    touched.iter().for_each(|t| t.partition.note_activity());
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::stretch;

    #[test]
    fn a_time_is_stretched_by_so_many_doublings() {
        assert_eq!((stretch(1000, 1000), stretch(2000, 1000), stretch(8000, 1000)), (0, 1000, 3000));
        assert_eq!(stretch(500, 1000), 0, "no time is shorter than the processor's in it");
        assert_eq!(stretch(u64::MAX, 1), 16_000);
        assert_eq!(stretch(1000, 0), 0, "a system that does not tell");
    }
}
