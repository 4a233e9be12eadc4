//! The history of a time, in slices of equal length.

use crate::admin::history::{Interval, Load, Switch};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Slices of the time.
const SLICES: usize = 160;

/// Amounts by reason, and slice by slice.
pub type ByReason = BTreeMap<String, Vec<f64>>;

/// What a partition has done in the whole time.
#[derive(Default)]
pub struct Part {
    /// Transactions that committed.
    pub commits: f64,
    /// Failed transactions by reason.
    pub aborts: BTreeMap<String, f64>,
    /// Rows read.
    pub reads: f64,
    /// Rows written.
    pub writes: f64,
    /// Rows at the end.
    pub rows: f64,
    /// Seconds slept.
    pub slept: f64,
    /// The protocol in each slice; `None`: there was no transaction.
    pub protocols: Vec<Option<String>>,
}

impl Part {
    /// The last protocol that is known.
    pub fn last_protocol(&self) -> String {
        self.protocols.iter().rev().flatten().next().cloned().unwrap_or_default()
    }

    /// The reason of most failures.
    pub fn worst_reason(&self) -> String {
        let most = self.aborts.iter().max_by(|a, b| a.1.total_cmp(b.1));
        most.map_or(String::new(), |(r, _)| r.replace('_', " "))
    }

    fn attempts(&self) -> f64 {
        self.commits + self.aborts.values().sum::<f64>()
    }
}

/// What happened in a time.
pub struct Data {
    /// Its beginning, in microseconds as PostgreSQL counts them.
    pub since: u64,
    /// Its end.
    pub until: u64,
    /// Failures, slice by slice.
    pub aborts: ByReason,
    /// Sleeps.
    pub waits: ByReason,
    /// Switches, in the order in which they ended.
    pub switches: Vec<Switch>,
    commits: Vec<f64>,
    /// Seconds of each slice of which there is a history.
    seconds: Vec<f64>,
    used: Vec<Option<f64>>,
    total: f64,
    parts: BTreeMap<(String, u32), Part>,
}

/// A name without what it begins with.
fn shorter(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_owned()
}

impl Data {
    /// What these intervals say of a database. Its name, before those of its tables, is left out.
    pub fn of(intervals: &[Interval], (database, name): (u32, &str), since: u64, until: u64) -> Data {
        let mut data = Data {
            since,
            until,
            aborts: ByReason::new(),
            waits: ByReason::new(),
            switches: Vec::new(),
            commits: vec![0.0; SLICES],
            seconds: vec![0.0; SLICES],
            used: vec![None; SLICES],
            total: 0.0,
            parts: BTreeMap::new(),
        };
        for i in intervals {
            data.add(i, (database, &format!("{name}.")));
        }
        data
    }

    fn add(&mut self, i: &Interval, (database, prefix): (u32, &str)) {
        let shares = self.shares(i.end - i.length.min(i.end), i.end);
        for (slice, share) in &shares {
            self.seconds[*slice] += share * i.length as f64 / 1e6;
            self.used[*slice] = Some(i.used as f64);
        }
        self.total = i.total as f64;
        for p in i.partitions.iter().filter(|p| p.database == database) {
            self.add_load(p, shorter(&p.table, prefix), &shares);
        }
        let during = |s: &&Switch| s.database == database && (self.since..=self.until).contains(&s.at);
        let named = |s: &Switch| Switch { table: shorter(&s.table, prefix), ..s.clone() };
        let switches: Vec<_> = i.switches.iter().filter(during).map(named).collect();
        self.switches.extend(switches);
    }

    fn add_load(&mut self, p: &Load, table: String, shares: &[(usize, f64)]) {
        let part = self.parts.entry((table, p.no)).or_default();
        part.protocols.resize(SLICES, None);
        part.rows = p.rows as f64;
        for (slice, share) in shares {
            let of = |n: u64| n as f64 * share;
            self.commits[*slice] += of(p.commits);
            part.commits += of(p.commits);
            part.reads += of(p.reads);
            part.writes += of(p.writes);
            part.slept += of(p.wait_us) / 1e6;
            part.protocols[*slice] = Some(p.protocol.clone());
            for (reason, n) in &p.aborts {
                *part.aborts.entry(reason.clone()).or_default() += of(*n);
                self.aborts.entry(reason.clone()).or_insert_with(|| vec![0.0; SLICES])[*slice] += of(*n);
            }
            for (reason, n) in &p.waits {
                self.waits.entry(reason.clone()).or_insert_with(|| vec![0.0; SLICES])[*slice] += of(*n);
            }
        }
    }

    /// The slices that an interval touches, and the share of it that lies in each.
    fn shares(&self, from: u64, to: u64) -> Vec<(usize, f64)> {
        let step = self.step();
        let length = (to - from).max(1) as f64;
        let begin = |slice: usize| self.since as f64 + slice as f64 * step;
        let share = |slice: usize| {
            let overlap = (to as f64).min(begin(slice + 1)) - (from as f64).max(begin(slice));
            (slice, overlap / length)
        };
        (0..SLICES).map(share).filter(|(_, share)| *share > 0.0).collect()
    }

    /// The length of a slice in microseconds.
    fn step(&self) -> f64 {
        (self.until - self.since) as f64 / SLICES as f64
    }

    /// The number of slices.
    pub fn slices(&self) -> usize {
        SLICES
    }

    /// The share of the time of which there is a history.
    pub fn covered(&self) -> f64 {
        self.seconds.iter().sum::<f64>() / ((self.until - self.since) as f64 / 1e6)
    }

    /// All commits.
    pub fn commits(&self) -> f64 {
        self.commits.iter().sum()
    }

    /// All failures.
    pub fn aborts(&self) -> f64 {
        self.aborts.values().flatten().sum()
    }

    /// Seconds slept.
    pub fn slept(&self) -> f64 {
        self.parts.values().map(|p| p.slept).sum()
    }

    /// An amount of each slice by the seconds that are known of it.
    fn rate(&self, amounts: &[f64]) -> Vec<Option<f64>> {
        let rate = |(n, seconds): (&f64, &f64)| (*seconds > 0.0).then(|| n / seconds);
        amounts.iter().zip(&self.seconds).map(rate).collect()
    }

    /// Commits a second; `None`: there is no history.
    pub fn commits_per_second(&self) -> Vec<Option<f64>> {
        self.rate(&self.commits)
    }

    /// Rates by reason, the most frequent reason first.
    pub fn per_second(&self, amounts: &ByReason) -> Vec<(String, Vec<Option<f64>>)> {
        let mut all: Vec<_> = amounts.iter().collect();
        all.sort_by(|a, b| b.1.iter().sum::<f64>().total_cmp(&a.1.iter().sum()));
        all.into_iter().map(|(r, n)| (r.replace('_', " "), self.rate(n))).collect()
    }

    /// Memory in use, MB.
    pub fn used_mb(&self) -> Vec<Option<f64>> {
        self.used.iter().map(|n| n.map(|n| n / 1048576.0)).collect()
    }

    /// The size of the memory, MB.
    pub fn total_mb(&self) -> f64 {
        self.total / 1048576.0
    }

    /// The partitions with the most attempts, the hottest first.
    pub fn hottest(&self, n: usize) -> impl Iterator<Item = (&String, u32, &Part)> {
        let mut all: Vec<_> = self.parts.iter().map(|((name, no), p)| (name, *no, p)).collect();
        all.sort_by_key(|p| Reverse(p.2.attempts() as u64));
        all.into_iter().take(n)
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    fn interval(end: u64, length: u64, commits: u64, protocol: &str) -> Interval {
        let load = |database| Load {
            database,
            table: "d.s.t".to_owned(),
            protocol: protocol.to_owned(),
            commits,
            aborts: [("read_changed".to_owned(), 10)].into(),
            ..Load::default()
        };
        Interval { end, length, partitions: vec![load(1), load(2)], ..Interval::default() }
    }

    #[test]
    fn intervals_are_spread_over_slices() {
        let until = 160_000_000;
        let second = |n: u64| n * 1_000_000;
        let data = Data::of(
            &[interval(second(40), second(40), 400, "occ"), interval(second(80), second(20), 600, "2pl")],
            (1, "d"),
            0,
            until,
        );
        assert!((data.commits() - 1000.0).abs() < 1e-6);
        assert!((data.aborts() - 20.0).abs() < 1e-6);
        assert!((data.covered() - 60.0 / 160.0).abs() < 1e-6);
        let rates = data.commits_per_second();
        assert!((rates[10].unwrap() - 10.0).abs() < 1e-6 && (rates[70].unwrap() - 30.0).abs() < 1e-6);
        assert_eq!(rates[50], None);
        let (name, _, part) = data.hottest(1).next().unwrap();
        assert_eq!(name, "s.t");
        assert_eq!((part.protocols[20].as_deref(), part.protocols[50].as_deref()), (Some("occ"), None));
        assert_eq!(part.last_protocol(), "2pl");
    }

    #[test]
    fn what_lies_outside_of_the_time_does_not_count() {
        let data = Data::of(&[interval(200, 200, 100, "occ")], (1, "d"), 100, 300);
        assert!((data.commits() - 50.0).abs() < 1e-6);
    }
}
