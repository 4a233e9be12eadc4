//! Features of a partition's load, computed from two readings of its counters.

use crate::partition::{Partition, Sample};

/// The number of features.
pub const FEATURES: usize = 17;

/// The names of the features, in the order of [`Load::features`]. Models and views use them.
///
/// Measured features:
/// * the share of reads among the accesses to records;
/// * the records and partitions that a transaction accesses;
/// * the share of transactions that use other partitions too;
/// * the share of accesses that meet a mark of another session;
/// * the number of transactions at a time;
/// * the shares of transactions that declared partitions, and that access records in order;
/// * the processor time of a record and of a transaction in microseconds, without failed attempts.
///
/// Products of them, because a small tree cannot multiply:
/// * records written;
/// * `pressure`: a transaction's accesses that meet another session's, times the number of other
///   transactions at a time;
/// * `clash`: the same with less weight of many others;
/// * `deadlock`: clashes out of order;
/// * `disorder`: the share of transactions that touch several partitions, neither declared nor in
///   order.
///
/// `stretch` is the ratio of a transaction's time, without sleeps for locks, to its processor time,
/// as a binary logarithm. With 0 it runs through; with 3 it waits beside others for most of its
/// time. `turns` is the share of transactions that follow one of another session. It is 0 if a
/// partition belongs to one session.
pub const NAMES: [&str; FEATURES] = [
    "read_share",
    "records",
    "partitions",
    "multi_share",
    "conflict_rate",
    "concurrency",
    "declared_share",
    "ordered_share",
    "record_us",
    "txn_us",
    "writes",
    "clash",
    "pressure",
    "deadlock",
    "disorder",
    "stretch",
    "turns",
];

/// The counters of a partition at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The time in microseconds.
    pub at_us: u64,
    /// All transactions that touched it and committed.
    pub commits: u64,
    /// The time of all of them in nanoseconds, including failed attempts.
    pub busy_ns: u64,
    /// All failed attempts.
    pub aborts: u64,
    /// All sleeps for locks of the partition.
    pub waits: u64,
    /// The time of those sleeps in microseconds.
    pub wait_us: u64,
    /// The sampled counters.
    pub sample: Sample,
    /// Ticks of the machine's processors: busy, and all; see [`crate::primitive::processor_ticks`].
    pub ticks: (u64, u64),
}

impl Reading {
    /// The number of failures and sleeps since an earlier reading.
    pub fn troubles_since(&self, before: &Reading) -> u64 {
        self.aborts.saturating_sub(before.aborts) + self.waits.saturating_sub(before.waits)
    }
    /// The time since an earlier reading, in seconds.
    pub fn seconds_since(&self, before: &Reading) -> f64 {
        self.at_us.saturating_sub(before.at_us).max(1) as f64 / 1e6
    }
    /// The share of the time since an earlier reading in which the machine's processors were busy.
    /// 0: not known.
    pub fn busy_since(&self, before: &Reading) -> f64 {
        let ticks = |f: fn(&(u64, u64)) -> u64| f(&self.ticks).saturating_sub(f(&before.ticks)) as f64;
        ticks(|t| t.0) / ticks(|t| t.1).max(1.0)
    }
    /// A reading of a partition at present.
    pub fn of(p: &Partition, at_us: u64, ticks: (u64, u64)) -> Reading {
        let (commits, busy_ns) = (p.stats.sum(|s| &s.commits), p.stats.sum(|s| &s.busy_ns));
        let aborts = p.stats.all_aborts();
        let (waits, wait_us) = (p.stats.waits.all(), p.stats.waits.us());
        Reading { at_us, commits, busy_ns, aborts, waits, wait_us, sample: p.stats.sampled.get(), ticks }
    }
}

/// The load of a partition between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// The features that models use; see [`NAMES`].
    pub features: [f64; FEATURES],
    /// The processor time of a committed transaction in microseconds, including failed attempts.
    pub cpu_us: f64,
    /// The elapsed time of a committed transaction in microseconds, including failed attempts and
    /// sleeps.
    pub elapsed_us: f64,
    /// The cost of a committed transaction in microseconds: the geometric mean of both. Processor
    /// time alone would not show that a protocol makes transactions sleep. Elapsed time alone shows
    /// also the machine's other load.
    pub cost_us: f64,
    /// The share of the time in which the machine's processors were busy. 0: not known.
    pub busy: f64,
    /// The number of sampled transactions that committed.
    pub txns: u64,
    /// The number of all transactions that committed per second.
    pub rate: f64,
    /// The share of transactions that wrote at a level below SERIALIZABLE.
    pub weak_writers: f64,
    /// The share of transactions that were idle between statements of their client.
    pub idle: f64,
    /// The share of the elapsed time that failed attempts took.
    pub lost: f64,
    /// The share of the elapsed time that was slept for locks.
    pub slept: f64,
    /// The part of `lost` in attempts that failed because of this partition. A transaction over
    /// many partitions is slow in all of them because of a few.
    pub own_lost: f64,
    /// The part of `slept` for locks of this partition.
    pub own_slept: f64,
}

/// The cost of a transaction in some interval, as logarithms, and how busy the processors were.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The logarithm of the processor time in microseconds.
    pub cpu: f64,
    /// The logarithm of the elapsed time in microseconds.
    pub elapsed: f64,
    /// See [`Load::busy`].
    pub busy: f64,
}

impl Cost {
    /// The logarithm of the cost: the geometric mean with this weight of the processor time.
    pub fn weighed(&self, weight: f64) -> f64 {
        weight * self.cpu + (1.0 - weight) * self.elapsed
    }
    /// The mean of some costs.
    pub fn mean(all: &[Cost]) -> Cost {
        let n = all.len().max(1) as f64;
        let mean = |f: fn(&Cost) -> f64| all.iter().map(f).sum::<f64>() / n;
        Cost { cpu: mean(|c| c.cpu), elapsed: mean(|c| c.elapsed), busy: mean(|c| c.busy) }
    }
    /// How much more `self` costs than `before`, as a logarithm. The scarce resource counts. If
    /// processors were idle in either time, that is both the processor and the elapsed time. If all
    /// were busy, the elapsed time is mostly a queue for processors. In it the transactions that
    /// use them longest delay all others, including those of other partitions.
    pub fn over(&self, before: &Cost) -> f64 {
        let weight = processor_weight(self.busy.min(before.busy));
        self.weighed(weight) - before.weighed(weight)
    }
    /// Did processors stand idle? Not if that is not known.
    pub fn leaves_idle(&self) -> bool {
        self.busy > 0.0 && self.busy < IDLE
    }
}

/// Processors that are busy up to this share of the time have time to spare.
const IDLE: f64 = 0.7;

/// The weight of the processor time, which grows with the load of the processors.
fn processor_weight(busy: f64) -> f64 {
    const FULL: f64 = 0.95;
    0.5 + 0.4 * ((busy - IDLE) / (FULL - IDLE)).clamp(0.0, 1.0)
}

impl Load {
    /// The cost of a transaction.
    pub fn cost(&self) -> Cost {
        Cost { cpu: self.cpu_us.max(1e-3).ln(), elapsed: self.elapsed_us.max(1e-3).ln(), busy: self.busy }
    }
    /// The load between two readings. `None` if there are no samples between them, or the counters
    /// were reset.
    pub fn between(before: &Reading, after: &Reading) -> Option<Load> {
        let seconds = after.at_us.checked_sub(before.at_us).filter(|us| *us > 0)? as f64 / 1e6;
        let commits = after.commits.checked_sub(before.commits).filter(|n| *n > 0)? as f64;
        let busy_ns = after.busy_ns.checked_sub(before.busy_ns)? as f64;
        if after.sample.txns < before.sample.txns {
            return None;
        }
        let busy = after.busy_since(before);
        let sample = after.sample.since(&before.sample);
        let mut load = Load::of(&sample, commits, busy_ns, seconds, busy)?;
        // All failures here, and by the sample the failures in all partitions of the transactions
        // that came here.
        let here = after.aborts.saturating_sub(before.aborts) as f64;
        let all = sample.lost as f64 / sample.txns as f64 * commits;
        load.own_lost = load.lost * (here / all.max(1.0)).min(1.0);
        load.own_slept = (after.wait_us.saturating_sub(before.wait_us) as f64 * 1000.0 / busy_ns.max(1.0)).min(1.0);
        Some(load)
    }

    /// The load of the counts of `seconds` seconds.
    pub fn of(s: &Sample, commits: f64, busy_ns: f64, seconds: f64, busy: f64) -> Option<Load> {
        if s.txns == 0 {
            return None;
        }
        let n = s.txns as f64;
        let accesses = s.reads + s.writes;
        let records = accesses as f64 / n;
        // The number of transactions in the partition at a time.
        let concurrency = busy_ns / 1e9 / seconds;
        let conflict_rate = s.conflicts as f64 / s.looks.max(1) as f64;
        let each_ns = busy_ns / commits;
        let cpu_ns = if s.cpu_ns == 0 { each_ns } else { s.cpu_ns as f64 / n };
        // The time of the attempts that committed. That of the others depends on the protocol, not
        // on the load.
        let clean_ns = if s.cpu_ns == 0 { each_ns } else { s.cpu_ns.saturating_sub(s.lost_cpu_ns) as f64 / n };
        // The number of others that a transaction meets. With fewer than two at a time, they come
        // and go.
        let others = (concurrency - 1.0).max(concurrency / 2.0);
        let reads = s.reads as f64 / accesses.max(1) as f64;
        let (multi, declared, ordered) = (s.multi as f64 / n, s.declared as f64 / n, s.ordered as f64 / n);
        let pressure = records * conflict_rate * others;
        let clash = pressure / (1.0 + others);
        Some(Load {
            features: [
                reads,
                records,
                s.partitions as f64 / n,
                multi,
                conflict_rate,
                concurrency,
                declared,
                ordered,
                clean_ns / 1000.0 / records.max(1.0),
                clean_ns / 1000.0,
                records * (1.0 - reads),
                clash,
                pressure,
                clash * (1.0 - ordered),
                multi * (1.0 - declared) * (1.0 - ordered),
                s.stretch as f64 / 1000.0 / n,
                s.turns as f64 / n,
            ],
            cpu_us: cpu_ns / 1000.0,
            elapsed_us: each_ns / 1000.0,
            cost_us: (cpu_ns * each_ns).sqrt() / 1000.0,
            busy,
            txns: s.txns,
            rate: commits / seconds,
            weak_writers: s.weak_writers as f64 / n,
            idle: s.idle as f64 / n,
            lost: s.lost_ns as f64 / ((s.duration_ns + s.lost_ns) as f64).max(1.0),
            slept: (s.slept_ns as f64 / ((s.duration_ns + s.lost_ns) as f64).max(1.0)).min(1.0),
            own_lost: 0.0,
            own_slept: 0.0,
        })
    }
}

/// The position of a load among others. Features are scaled so that a difference of 1 is
/// considerable.
pub fn place(f: &[f64; FEATURES]) -> [f64; 6] {
    let log = |x: f64, least: f64| x.max(least).ln() / 0.7;
    [f[0] / 0.25, log(f[1], 1.0), f[3] / 0.25, log(f[4] + 0.003, 0.003), log(f[5], 0.5), f[6] / 0.5]
}

/// The difference of two loads. 1 is considerable.
pub fn distance(a: &[f64; FEATURES], b: &[f64; FEATURES]) -> f64 {
    place(a).iter().zip(place(b)).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Sample {
        Sample {
            txns: 100,
            reads: 800,
            writes: 200,
            multi: 25,
            partitions: 150,
            duration_ns: 100 * 2_000_000,
            lost: 50,
            lost_ns: 100 * 2_000_000,
            cpu_ns: 100 * 1_000_000,
            lost_cpu_ns: 100 * 400_000,
            looks: 1000,
            conflicts: 100,
            declared: 50,
            ordered: 40,
            stretch: 150_000,
            turns: 75,
            ..Sample::default()
        }
    }

    #[test]
    fn features_are_shares_and_means() {
        let before = Reading { at_us: 1_000_000, commits: 400, busy_ns: 7, aborts: 10, ..Reading::default() };
        let after = Reading {
            at_us: 3_000_000,
            commits: 2400,
            busy_ns: 8_000_000_007,
            aborts: 260,
            waits: 3,
            wait_us: 400_000,
            sample: sample(),
            ticks: (190, 200),
        };
        let l = Load::between(&before, &after).unwrap();
        // 2000 commits in 2 s, each 4 ms with failed attempts: 4 at a time.
        let wanted = [0.8, 10.0, 1.5, 0.25, 0.1, 4.0, 0.5, 0.4, 60.0, 600.0, 2.0, 0.75, 3.0, 0.45, 0.075, 1.5, 0.75];
        for ((got, wanted), name) in l.features.iter().zip(wanted).zip(NAMES) {
            assert!((got - wanted).abs() < 1e-9, "{name}: {got}, not {wanted}");
        }
        assert!((l.cpu_us - 1000.0).abs() < 1e-9 && (l.elapsed_us - 4000.0).abs() < 1e-9);
        assert_eq!(l.busy, 0.95);
        assert!((l.cost_us - 2000.0).abs() < 1e-9, "the mean of 1 ms and 4 ms: {}", l.cost_us);
        assert_eq!((l.txns, l.rate, l.lost), (100, 1000.0, 0.5));
        // 1000 attempts failed, 250 of them because of this partition. 0.4 of 8 s were slept for
        // its locks.
        assert_eq!((l.own_lost, l.own_slept), (0.125, 0.05));
        assert_eq!(after.troubles_since(&before), 253);
    }

    #[test]
    fn what_is_scarce_counts() {
        let c = |cpu: f64, elapsed: f64, busy| Cost { cpu: cpu.ln(), elapsed: elapsed.ln(), busy };
        let (work, sleep) = (c(2.0, 8.0, 1.0), c(1.0, 12.0, 1.0));
        assert!(sleep.over(&work) < -0.5, "processors are scarce: half of their time, if half as long again");
        assert!(c(1.0, 18.0, 0.3).over(&work) > 0.0, "but not if sleeping leaves them idle");
        assert!(sleep.over(&Cost { busy: 0.0, ..work }) == work.over(&Cost { busy: 0.0, ..sleep }) * -1.0);
        assert_eq!(Cost::mean(&[c(1.0, 4.0, 0.2), c(4.0, 4.0, 0.4)]).weighed(1.0), 2f64.ln());
    }

    #[test]
    fn nothing_comes_of_nothing_or_of_counters_that_started_again() {
        let at = |at_us, commits, txns| Reading {
            at_us,
            commits,
            busy_ns: 0,
            sample: Sample { txns, ..sample() },
            ..Reading::default()
        };
        assert_eq!(Load::between(&at(1, 5, 100), &at(2, 9, 100)), None, "no sample");
        assert_eq!(Load::between(&at(1, 5, 100), &at(2, 9, 3)), None, "reset");
        assert_eq!(Load::between(&at(1, 5, 100), &at(2, 3, 200)), None, "reset");
        assert_eq!(Load::between(&at(2, 5, 100), &at(2, 9, 200)), None, "no time");
    }

    #[test]
    fn loads_are_apart_as_their_features_are() {
        let l = Load::of(&sample(), 1000.0, 4e9, 1.0, 0.0).unwrap();
        let mut more = l.features;
        more[1] *= 1.05;
        assert!(distance(&l.features, &more) < 0.2);
        more[0] = 0.2;
        assert!(distance(&l.features, &more) > 1.0);
    }
}
