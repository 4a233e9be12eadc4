//! A switch that is being verified, and what is measured of it.

use super::decide::mean;
use super::features::{Cost, Load, Reading, FEATURES};
use super::settings::Settings;
use std::collections::VecDeque;

/// The load, cost, and commits per second of an interval.
pub(super) type Past = ([f64; FEATURES], Cost, f64);

/// Where the feature is:
const CONCURRENCY: usize = 5;
/// The difference of the records in a transaction that is more than noise, as a logarithm.
const RESIZED: f64 = 0.2;
/// A trial is plainly slower if its transactions commit at half of the rate before, or less. As a
/// logarithm:
const SLOW: f64 = std::f64::consts::LN_2;

/// A switch that is being verified (INV-CHOICE).
#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub from: usize,
    pub to: usize,
    pub features: [f64; FEATURES],
    pub before: Cost,
    pub n_before: usize,
    pub rate_before: f64,
    /// The records of a transaction before the switch.
    pub records: f64,
    /// How much dearer the model had called the new protocol, as a logarithm. `None`: the model
    /// does not know the old one.
    pub predicted: Option<f64>,
    /// The additional cost of each interval since, here and in the partitions that were switched
    /// alike.
    pub more: Vec<f64>,
    /// The intervals since the switch, however few samples they had.
    pub intervals: u32,
    pub stalled: u32,
    /// The last reading since the switch was requested.
    pub seen: Option<Reading>,
    /// Has the load made a pause? Its sessions may be new ones since, so rates do not compare.
    pub paused: bool,
    /// The last successive intervals in which it was plainly slower.
    pub slow: Vec<Slow>,
    /// Was it made because work was lost?
    pub probes: bool,
    /// The history under the old protocol, which counts again if the switch is taken back. And the
    /// successive intervals in which much was lost, but for the last one.
    pub history: VecDeque<Past>,
    pub lossy: u32,
}

/// An interval in which a trial was plainly slower: transactions committed at half of the rate
/// before, or less, with sleeps and failures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slow {
    /// The additional cost, as a logarithm, with the rate in place of the elapsed time. That shows
    /// at once what elapsed times show late: transactions that take long have not ended yet. If
    /// processors were idle, it is the rate alone.
    more: f64,
    /// The additional elapsed time of those that have committed, as a logarithm.
    longer: f64,
    /// Commits and failed attempts per second.
    attempts: f64,
    /// The mean number of sleeps at a time.
    asleep: f64,
}

impl Trial {
    /// The additional cost of an interval compared with those before the switch, as a logarithm. If
    /// transactions access more records now, the part due to that is left out: it would have come
    /// under the old protocol too.
    pub fn more(&self, load: &Load) -> f64 {
        let size = (load.features[1].max(1.0) / self.records.max(1.0)).ln();
        load.cost().over(&self.before) - if size.abs() > RESIZED { size } else { 0.0 }
    }

    /// Looks at the rate of commits in an interval, also in one in which the switch is under way.
    pub fn look(&mut self, last: &Reading, now: &Reading, s: &Settings) {
        let last = &self.seen.replace(*now).unwrap_or(*last);
        let (commits, seconds) = (now.commits.saturating_sub(last.commits), now.seconds_since(last));
        let slower = (self.rate_before / (commits as f64 / seconds).max(1e-9)).ln().min(3.0);
        let troubles = now.troubles_since(last);
        self.paused |= commits + troubles == 0;
        if self.paused || slower < SLOW || troubles * 2 <= commits {
            self.slow.clear();
            return;
        }
        // Too few samples: the processor's time is taken for the same.
        let sampled = Load::between(last, now).filter(|l| l.txns >= s.min_samples).map(|l| l.cost().cpu);
        let after = Cost {
            cpu: sampled.unwrap_or(self.before.cpu),
            elapsed: self.before.elapsed + slower,
            busy: now.busy_since(last),
        };
        let each_us = now.busy_ns.saturating_sub(last.busy_ns) as f64 / 1000.0 / commits.max(1) as f64;
        let attempts = (commits + now.aborts.saturating_sub(last.aborts)) as f64 / seconds;
        let longer = each_us.max(1e-3).ln() - self.before.elapsed;
        // Processors that stand idle had the time for the old protocol: what it took of them does
        // not count.
        let more = if after.leaves_idle() { slower } else { after.over(&self.before) };
        let asleep = now.wait_us.saturating_sub(last.wait_us) as f64 / 1e6 / seconds;
        self.slow.push(Slow { more, longer, attempts, asleep });
    }

    /// The mean additional cost in the last successive intervals in which it was plainly slower,
    /// and their number. `None`: those that committed at last took no longer than before. So
    /// sessions have made a pause.
    pub fn slower(&self) -> Option<(f64, usize)> {
        self.slow.last().filter(|l| l.longer > SLOW / 2.0)?;
        Some((mean(self.slow.iter().map(|l| l.more)), self.slow.len()))
    }

    /// Have transactions waited for each other's locks in these intervals? Either it would have
    /// been slower if no attempt had failed, too, or most of those that were at work before slept.
    pub fn waited(&self) -> bool {
        let of = |f: fn(&Slow) -> f64| mean(self.slow.iter().map(f));
        of(|l| l.attempts) < self.rate_before || of(|l| l.asleep) > self.features[CONCURRENCY] / 2.0
    }
}
