//! Features of a partition's load, from two readings of its counters.

use crate::partition::{Partition, Sample};

/// Number of features.
pub const FEATURES: usize = 17;

/// Names of the features, in the order of [`Load::features`]; models and views use them.
///
/// Measured: share of reads among the accesses to records; records and partitions that a transaction accesses; share of
/// transactions that use other partitions too; share of accesses that meet another session's mark; transactions at a
/// time; share of those that declared partitions, and that access records in order; processor time of a record and of
/// a transaction, microseconds, without attempts that failed. Made of them, because a small tree cannot multiply: records written; `pressure`,
/// accesses of a transaction that meet another session's, times the other transactions at a time; `clash`, the same
/// with less weight of many others; `deadlock`, clashes out of order; `disorder`, share of transactions that come to
/// several partitions neither declared nor in order. `stretch`: how many times a transaction's time is that of its
/// processor, but for sleeps for locks, as a binary logarithm: 0 runs through, 3 is among others for most of its time.
/// `turns`: share of transactions that follow one of another session, 0 where a partition belongs to one.
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
    /// When, microseconds.
    pub at_us: u64,
    /// Transactions that touched it and committed, all of them.
    pub commits: u64,
    /// Time that they took, failed attempts included; nanoseconds, all of them.
    pub busy_ns: u64,
    /// Failed attempts, and sleeps for locks of the partition, all of them.
    pub aborts: u64,
    /// See `aborts`.
    pub waits: u64,
    /// Time of those sleeps, microseconds.
    pub wait_us: u64,
    /// What was sampled.
    pub sample: Sample,
    /// Ticks of the machine's processors: busy, and all; see [`crate::primitive::processor_ticks`].
    pub ticks: (u64, u64),
}

impl Reading {
    /// Failures and sleeps since an earlier one.
    pub fn troubles_since(&self, before: &Reading) -> u64 {
        self.aborts.saturating_sub(before.aborts) + self.waits.saturating_sub(before.waits)
    }
    /// Of a partition, now.
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
    /// What models look at; see [`NAMES`].
    pub features: [f64; FEATURES],
    /// Processor's time of a committed transaction, microseconds, failed attempts included.
    pub cpu_us: f64,
    /// Elapsed time of a committed transaction, microseconds, failed attempts and sleeps included.
    pub elapsed_us: f64,
    /// Cost of a committed transaction, microseconds: the geometric mean of both. The processor's time alone would not
    /// see that a protocol makes everybody sleep; elapsed time alone sees whatever else runs on the machine.
    pub cost_us: f64,
    /// Share of the time of the machine's processors in which they were busy; 0: not known.
    pub busy: f64,
    /// Sampled transactions that committed.
    pub txns: u64,
    /// Transactions per second that committed (all).
    pub rate: f64,
    /// Share of the transactions that wrote at a level below SERIALIZABLE.
    pub weak_writers: f64,
    /// Share of the transactions that were idle between statements of their client.
    pub idle: f64,
    /// Share of the elapsed time that went into attempts that failed.
    pub lost: f64,
    /// Share of the elapsed time that was slept for locks.
    pub slept: f64,
    /// The parts of both that are this partition's own fault: attempts that failed because of it, sleeps for its locks.
    /// A transaction over many partitions is slow in all of them, for the sake of a few.
    pub own_lost: f64,
    /// See `own_lost`.
    pub own_slept: f64,
}

/// What a transaction cost in some interval: logarithms, and how busy the processors were.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Of the processor's time, microseconds.
    pub cpu: f64,
    /// Of the elapsed time, microseconds.
    pub elapsed: f64,
    /// See [`Load::busy`].
    pub busy: f64,
}

impl Cost {
    /// The logarithm of the cost, with this weight of the processor's time: their geometric mean.
    pub fn weighed(&self, weight: f64) -> f64 {
        weight * self.cpu + (1.0 - weight) * self.elapsed
    }
    /// The mean of some.
    pub fn mean(all: &[Cost]) -> Cost {
        let n = all.len().max(1) as f64;
        let mean = |f: fn(&Cost) -> f64| all.iter().map(f).sum::<f64>() / n;
        Cost { cpu: mean(|c| c.cpu), elapsed: mean(|c| c.elapsed), busy: mean(|c| c.busy) }
    }
    /// How much more `self` costs than `before`, a logarithm. What is scarce counts: if processors were idle in either
    /// time, both the processor's and the elapsed time; if all were busy, the elapsed time is mostly a queue for
    /// them, in which whoever uses them longest stands in the way of everybody, those of other partitions too.
    pub fn over(&self, before: &Cost) -> f64 {
        let weight = processor_weight(self.busy.min(before.busy));
        self.weighed(weight) - before.weighed(weight)
    }
}

/// How much the processor's time counts beside the elapsed time, by how busy the processors are.
fn processor_weight(busy: f64) -> f64 {
    const IDLE: f64 = 0.7;
    const FULL: f64 = 0.95;
    0.5 + 0.4 * ((busy - IDLE) / (FULL - IDLE)).clamp(0.0, 1.0)
}

impl Load {
    /// What a transaction cost.
    pub fn cost(&self) -> Cost {
        Cost { cpu: self.cpu_us.max(1e-3).ln(), elapsed: self.elapsed_us.max(1e-3).ln(), busy: self.busy }
    }
    /// Between two readings; `None` if nothing was sampled between them, or the counters started again.
    pub fn between(before: &Reading, after: &Reading) -> Option<Load> {
        let seconds = after.at_us.checked_sub(before.at_us).filter(|us| *us > 0)? as f64 / 1e6;
        let commits = after.commits.checked_sub(before.commits).filter(|n| *n > 0)? as f64;
        let busy_ns = after.busy_ns.checked_sub(before.busy_ns)? as f64;
        if after.sample.txns < before.sample.txns {
            return None;
        }
        let ticks = |f: fn(&(u64, u64)) -> u64| f(&after.ticks).saturating_sub(f(&before.ticks)) as f64;
        let busy = ticks(|t| t.0) / ticks(|t| t.1).max(1.0);
        let sample = after.sample.since(&before.sample);
        let mut load = Load::of(&sample, commits, busy_ns, seconds, busy)?;
        // All failures here, and how many there were in all partitions of those that came here, by the sample.
        let here = after.aborts.saturating_sub(before.aborts) as f64;
        let all = sample.lost as f64 / sample.txns as f64 * commits;
        load.own_lost = load.lost * (here / all.max(1.0)).min(1.0);
        load.own_slept = (after.wait_us.saturating_sub(before.wait_us) as f64 * 1000.0 / busy_ns.max(1.0)).min(1.0);
        Some(load)
    }

    /// Of what was counted in so many seconds.
    pub fn of(s: &Sample, commits: f64, busy_ns: f64, seconds: f64, busy: f64) -> Option<Load> {
        if s.txns == 0 {
            return None;
        }
        let n = s.txns as f64;
        let accesses = s.reads + s.writes;
        let records = accesses as f64 / n;
        // How many transactions are in the partition at a time.
        let concurrency = busy_ns / 1e9 / seconds;
        let conflict_rate = s.conflicts as f64 / s.looks.max(1) as f64;
        let each_ns = busy_ns / commits;
        let cpu_ns = if s.cpu_ns == 0 { each_ns } else { s.cpu_ns as f64 / n };
        // What the attempts that committed took: the others' part is the protocol's doing, not the load's.
        let clean_ns = if s.cpu_ns == 0 { each_ns } else { s.cpu_ns.saturating_sub(s.lost_cpu_ns) as f64 / n };
        // How many others a transaction meets: where there are fewer than two at a time, they come and go.
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

/// Where a load lies among others: features on scales on which a difference of 1 is a considerable one.
pub fn place(f: &[f64; FEATURES]) -> [f64; 6] {
    let log = |x: f64, least: f64| x.max(least).ln() / 0.7;
    [f[0] / 0.25, log(f[1], 1.0), f[3] / 0.25, log(f[4] + 0.003, 0.003), log(f[5], 0.5), f[6] / 0.5]
}

/// How different two loads are; 1: considerably.
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
        // 2000 commits in 2 s, 4 ms each with what failed: 4 at a time.
        let wanted = [0.8, 10.0, 1.5, 0.25, 0.1, 4.0, 0.5, 0.4, 60.0, 600.0, 2.0, 0.75, 3.0, 0.45, 0.075, 1.5, 0.75];
        for ((got, wanted), name) in l.features.iter().zip(wanted).zip(NAMES) {
            assert!((got - wanted).abs() < 1e-9, "{name}: {got}, not {wanted}");
        }
        assert!((l.cpu_us - 1000.0).abs() < 1e-9 && (l.elapsed_us - 4000.0).abs() < 1e-9);
        assert_eq!(l.busy, 0.95);
        assert!((l.cost_us - 2000.0).abs() < 1e-9, "the mean of 1 ms and 4 ms: {}", l.cost_us);
        assert_eq!((l.txns, l.rate, l.lost), (100, 1000.0, 0.5));
        // 1000 attempts failed, 250 of them because of this partition; 0.4 of 8 s were slept for its locks.
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
