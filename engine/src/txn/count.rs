//! What a transaction adds to the counters of the partitions that it touched, at its end.

use super::{Level, RecordRef, Txn};
use crate::clock::thread_cpu_ns;
use crate::partition::Sample;
use crate::primitive::Ordering;

/// Accesses of a sampled transaction that are compared with marks, at most.
pub(super) const ACCESSES: u32 = 16;
/// Partitions of a sampled transaction that are noted as touched together, at most.
const TOGETHER: usize = 4;

/// A transaction that is sampled.
pub(super) struct SampledTxn {
    cpu_ns: u64,
    accesses: u32,
    last: (u64, u64),
    disordered: bool,
}

/// Of a time over the processor's time in it: see [`Sample::stretch`]. At most 16 doublings.
fn stretch(net_ns: u64, cpu_ns: u64) -> u64 {
    if cpu_ns == 0 {
        return 0; // the system does not tell
    }
    let doublings = (net_ns as f64 / cpu_ns as f64).max(1.0).log2();
    (doublings.min(16.0) * 1000.0) as u64
}

impl Txn {
    /// How many statements the client has sent in this transaction, about; used only if it is of the sample.
    #[inline]
    pub fn set_round_trips(&mut self, n: u32) {
        self.round_trips = n;
    }

    /// The records that a sampled serializable transaction has accessed first, some perhaps twice; its pin keeps them and
    /// their versions until it ends. Those that it inserted are not among them, and none from before a savepoint was rolled
    /// back to.
    pub fn sampled_records(&self) -> &[RecordRef] {
        &self.accessed
    }

    /// Is it a transaction of the sample?
    #[inline]
    pub fn is_sampled(&self) -> bool {
        self.sample.is_some()
    }

    /// The transaction, which begins, is sampled.
    #[cold]
    pub(super) fn begin_sample(&mut self) {
        self.sample = Some(SampledTxn { cpu_ns: thread_cpu_ns(), accesses: 0, last: (0, 0), disordered: false });
    }

    /// A record is read, or locked to be written.
    #[inline]
    pub(super) fn sample_access(&mut self, r: RecordRef, writes: bool) {
        if self.sample.is_some() {
            self.mark_access(r, writes);
        }
    }

    #[cold]
    fn mark_access(&mut self, r: RecordRef, writes: bool) {
        let Some(s) = self.sample.as_mut().filter(|s| s.accesses < ACCESSES) else { return };
        s.accesses += 1;
        let at = (r.table.id, r.no);
        s.disordered |= at < s.last;
        s.last = at;
        if self.level == Level::Serializable {
            self.accessed.push(r); // there is room
        }
        let sampled = &r.partition().stats.sampled;
        sampled.looks.fetch_add(1, Ordering::Relaxed);
        if sampled.mark(self.slot, r.key() as u64, writes) {
            sampled.conflicts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts the transaction, which has committed. Allocates nothing and cannot fail.
    pub(super) fn count_committed(&mut self) {
        let busy_ns = self.clock.ns_since(self.began);
        for t in self.touched.iter() {
            let s = t.partition.stats.stripe(self.slot);
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
            self.count_sample(busy_ns);
        }
        self.retries = false;
    }

    /// Counts the transaction, which was aborted. Allocates nothing and cannot fail.
    pub(super) fn count_aborted(&mut self) {
        let lost = self.failed.is_some();
        let lost_ns = if lost { self.clock.ns_since(self.began) } else { 0 };
        for t in self.touched.iter() {
            let s = t.partition.stats.stripe(self.slot);
            if t.reads != 0 {
                s.reads.fetch_add(t.reads as u64, Ordering::Relaxed);
            }
            if lost {
                s.busy_ns.fetch_add(lost_ns, Ordering::Relaxed);
            }
        }
        if let Some((reason, partition)) = self.failed {
            partition.stats.count_abort(reason);
        }
        if lost {
            self.count_lost(lost_ns);
        }
        self.sample = None;
        self.retries = lost;
    }

    /// Counts the reads so far, and forgets which partitions were touched.
    pub(super) fn forget_touched(&mut self) {
        for t in self.touched.iter().filter(|t| t.reads != 0) {
            t.partition.stats.stripe(self.slot).reads.fetch_add(t.reads as u64, Ordering::Relaxed);
        }
        self.touched.clear();
        self.failed = None;
    }

    /// An attempt that ended because of others costs what it took.
    fn count_lost(&self, lost_ns: u64) {
        let Some(s) = &self.sample else { return };
        let cpu_ns = thread_cpu_ns().saturating_sub(s.cpu_ns);
        let lost =
            Sample { lost: 1, lost_ns, cpu_ns, lost_cpu_ns: cpu_ns, slept_ns: self.slept_ns, ..Sample::default() };
        for t in self.touched.iter() {
            t.partition.stats.sampled.add(&lost);
        }
    }

    #[cold]
    fn count_sample(&mut self, duration_ns: u64) {
        let Some(s) = self.sample.take() else { return };
        let cpu_ns = thread_cpu_ns().saturating_sub(s.cpu_ns);
        let n = self.touched.iter().len() as u64;
        let serializable = self.level == Level::Serializable;
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
        for t in self.touched.iter() {
            let sampled = &t.partition.stats.sampled;
            sample.reads = t.reads as u64;
            sample.writes = t.writes as u64;
            sample.weak_writers = (!serializable && t.writes != 0) as u64;
            sample.turns = sampled.turn(self.slot) as u64;
            sampled.add(&sample);
        }
        for a in self.touched.iter().take(TOGETHER) {
            for b in self.touched.iter().take(TOGETHER).filter(|b| !std::ptr::eq(a.partition, b.partition)) {
                a.partition.stats.sampled.meet(std::ptr::from_ref(b.partition) as u64);
            }
        }
    }
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
