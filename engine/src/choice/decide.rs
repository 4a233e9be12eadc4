//! The decision for one partition, interval by interval.
//!
//! **INV-CHOICE**: The coordinator asks a partition to switch only after the other protocol was
//! better by the margin in `confirm` successive intervals, or by a rule, or as a probe. It does not
//! ask again until that switch was verified, or the load has changed. Requests of users go before:
//! `Switch::choose` changes nothing that is pinned, asked for or under way.

use super::decision::{Decision, Status};
use super::features::{Cost, Load, Reading, FEATURES};
use super::learned::{Learned, Lesson};
use super::model::Model;
use super::settings::Settings;
use crate::protocol::{Protocol, ProtocolSet};
use std::collections::VecDeque;

/// A switch that is being verified (INV-CHOICE).
#[derive(Clone, Debug)]
struct Trial {
    from: usize,
    to: usize,
    features: [f64; FEATURES],
    before: Cost,
    n_before: usize,
    rate_before: f64,
    /// Records of a transaction before it.
    records: f64,
    /// How much dearer the model had called the new protocol, a logarithm; `None`: it does not know the old one.
    predicted: Option<f64>,
    /// How much more each interval since has cost, here and in the partitions that were switched alike.
    more: Vec<f64>,
    /// Intervals since the switch, whatever was sampled in them.
    intervals: u32,
    stalled: u32,
}

impl Trial {
    /// How much more an interval costs than those before the switch, a logarithm. Transactions that access so many more
    /// records now would have become dearer under the old protocol too.
    fn more(&self, load: &Load) -> f64 {
        let size = (load.features[1].max(1.0) / self.records.max(1.0)).ln();
        load.cost().over(&self.before) - if size.abs() > RESIZED { size } else { 0.0 }
    }
}

/// What an interval was like in a partition of the same table.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Number of the partition.
    pub no: u32,
    protocol: usize,
    features: [f64; FEATURES],
    /// The switch that is being verified, and how much more the interval cost than those before it.
    trial: Option<(usize, usize, f64)>,
}

/// What is known of a partition.
#[derive(Clone, Debug, Default)]
pub struct State {
    last: Option<Reading>,
    protocol: Option<usize>,
    /// Load, cost and commits per second of the last intervals under the current protocol.
    history: VecDeque<([f64; FEATURES], Cost, f64)>,
    /// Variance of the logarithm of the cost from interval to interval; 0: not known.
    variance: f64,
    challenger: Option<(usize, u32)>,
    trial: Option<Trial>,
    lossy: u32,
    fault: f64,
    /// Intervals running with too few transactions to tell anything.
    quiet: u32,
    probed_at: u64,
    /// The last switches: load, from, to, when.
    switches: VecDeque<([f64; FEATURES], usize, usize, u64)>,
}

/// Intervals of a load that are compared with what comes after a switch.
const HISTORY: usize = 8;
/// The first interval after a switch has transactions of before in it.
const SKIP: u32 = 1;
/// Measured intervals after a switch: at least, and at most.
const AFTER: (usize, usize) = (2, 5);
/// A partition whose transactions commit at so many times less than the rate of before is at a halt.
const DEAD: f64 = 8.0;
/// Noise that is assumed at least, and where nothing is known, of a logarithm of a cost.
const NOISE: (f64, f64) = (0.03, 0.08);
/// A difference of records in a transaction that is not noise, as a logarithm.
const RESIZED: f64 = 0.2;
/// Loads are the same load up to this distance of their shapes.
const SAME: f64 = 1.0;
/// So far, with room for noise, a switch and the one that reversed it are about the same load.
const LIKE: f64 = 1.5;
/// A partition is probed if this share of the time is lost, or that share slept while processors are idle, and it has at
/// least half of the mean partition's part in it ...
const LOSSY: (f64, f64) = (0.25, 0.5);
/// ... or if this share of the time is lost or slept because of it alone; in `confirm` and so many intervals running.
const OWN: (f64, f64, u32) = (0.05, 0.1, 1);
const IDLE: f64 = 0.9;
/// Up to so many records of a partition in a transaction, nobody waits there for who waits there.
const FEW: f64 = 1.5;
/// After so many intervals with few transactions the load has gone; a partition of fewer is not the worst one.
const QUIET: u32 = 5;
/// Switches that are remembered, and how often the time to confirm doubles at most.
const SWITCHES: usize = 32;
const DOUBLED: u32 = 5;
/// Between two probes of a partition: this part of the time in which lessons fade; and the predictions that forbid one,
/// for work that is lost and for time that is slept.
const PROBE_EVERY: u64 = 20;
const PROBE_WORST: (f64, f64) = (0.45, 0.15);

/// Distance of loads by what does not depend on the protocol in use.
fn shape_distance(a: &[f64; FEATURES], b: &[f64; FEATURES]) -> f64 {
    let (p, q) = (super::features::place(a), super::features::place(b));
    [0, 1, 2, 5].iter().map(|&i| (p[i] - q[i]) * (p[i] - q[i])).sum::<f64>().sqrt()
}

fn mean(v: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = v.len().max(1) as f64;
    v.sum::<f64>() / n
}

/// Those of a table's other partitions that have another protocol, and that have the same, as far as they are like a load.
fn like(peers: &[Peer], now: usize, load: &Load) -> (Vec<Peer>, Vec<Peer>) {
    let apart = |p: &Peer| super::features::distance(&p.features, &load.features);
    let (same, others): (Vec<Peer>, Vec<Peer>) = peers.iter().copied().partition(|p| p.protocol == now);
    let within = |v: Vec<Peer>, most: f64| v.into_iter().filter(|p| apart(p) < most).collect();
    (within(others, LIKE), within(same, SAME))
}

/// Protocols that candidates and rules allow.
pub fn allowed(s: &Settings, l: &Load) -> ProtocolSet {
    let weak = l.weak_writers > s.max_weak_writers || l.idle > s.max_idle;
    s.candidates.iter().filter(|p| !(weak && ProtocolSet::of(*p).locks_partitions())).collect()
}

impl State {
    /// Forgets what depends on the current protocol or load; `reading`: go on from here.
    pub fn restart(&mut self, reading: Reading, protocol: Option<Protocol>) {
        self.last = Some(reading);
        self.protocol = protocol.map(Protocol::index);
        self.history.clear();
        self.challenger = None;
        (self.lossy, self.fault) = (0, 0.0);
        if protocol.is_none() || self.trial.as_ref().is_some_and(|t| Some(t.to) != self.protocol) {
            self.trial = None;
        }
    }

    /// A switch is under way: its transactions count for nothing.
    pub fn switching(&mut self, reading: Reading) {
        self.last = Some(reading);
        self.history.clear();
        self.challenger = None;
    }

    /// Time that is lost for this partition's sake, in sessions, if another protocol is to be tried. None where the load has gone.
    pub fn fault(&self) -> f64 {
        if self.is_quiet() {
            0.0
        } else {
            self.fault
        }
    }
    /// Is a switch being verified, which others must not disturb? Where the load has gone there is nothing to disturb.
    pub fn is_being_verified(&self) -> bool {
        self.is_tried() && !self.is_quiet()
    }
    fn is_quiet(&self) -> bool {
        self.quiet > QUIET
    }
    /// Is a switch being verified?
    pub fn is_tried(&self) -> bool {
        self.trial.is_some()
    }

    /// What this interval will have been for the other partitions of the table; before [`State::observe`].
    pub fn peer(&self, no: u32, protocol: Protocol, reading: &Reading, s: &Settings) -> Option<Peer> {
        let protocol = protocol.index();
        let last = self.last.filter(|_| self.protocol == Some(protocol))?;
        let load = Load::between(&last, reading).filter(|l| l.txns >= s.min_samples)?;
        let trial = self.trial.as_ref().map(|t| (t.from, t.to, t.more(&load)));
        Some(Peer { no, protocol, features: load.features, trial })
    }

    /// An interval is over, and no switch is asked for or under way ([`State::switching`]). `table` tells whose lessons count;
    /// `peers` are the table's other partitions.
    pub fn observe(
        &mut self,
        table: u64,
        (protocol, peers): (Protocol, &[Peer]),
        reading: Reading,
        (model, learned, s): (&Model, &mut Learned, &Settings),
    ) -> Decision {
        let now = protocol.index();
        if self.protocol != Some(now) {
            // Nothing may go on since the switch, which came in this interval.
            let halted = self.last.and_then(|last| self.halts(table, (&last, &reading), Some(now), learned, s));
            self.restart(reading, Some(protocol));
            return halted.unwrap_or_default();
        }
        self.forget_what_never_came(now);
        let Some(last) = self.last else {
            self.last = Some(reading);
            return Decision::default();
        };
        if let Some(d) = self.halts(table, (&last, &reading), None, learned, s) {
            self.last = Some(reading);
            return d;
        }
        let Some(load) = self.load_since(&last, &reading, s) else {
            self.quiet = self.quiet.saturating_add(1);
            return Decision { status: Status::FewSamples, ..Decision::default() };
        };
        self.last = Some(reading);
        (self.quiet, self.fault) = (0, 0.0);
        let (others, peers) = like(peers, now, &load);
        let mut d = self.judge(table, now, (&load, &peers), reading.at_us, (model, learned, s));
        d.alone = others.iter().filter(|p| p.protocol == d.best).count() > 1 + peers.len();
        self.note(&load);
        if !self.verify(table, (&load, &peers), reading.at_us, learned, s, &mut d) {
            self.decide(now, reading.at_us, s, &mut d);
        }
        if let Some(to) = d.ask.map(Protocol::index) {
            if d.status != Status::TakesBack {
                self.begin_trial(now, to, &load, &d);
            }
            if self.switches.len() == SWITCHES {
                self.switches.pop_front();
            }
            self.switches.push_back((d.load.features, now, to, reading.at_us));
            self.challenger = None;
            self.lossy = 0;
        }
        d.no_probe_before_us = self.no_probe_before(reading.at_us, s);
        d
    }

    /// As [`State::observe`], for a partition whose protocol is not the coordinator's to choose: what it would say of the
    /// load. Nothing is asked for, tried or learned.
    pub fn watch(
        &mut self,
        table: u64,
        (protocol, peers): (Protocol, &[Peer]),
        reading: Reading,
        (model, learned, s): (&Model, &Learned, &Settings),
    ) -> Decision {
        let now = protocol.index();
        (self.trial, self.challenger) = (None, None);
        (self.lossy, self.fault, self.quiet) = (0, 0.0, 0);
        let Some(last) = self.last.filter(|_| self.protocol == Some(now)) else {
            self.restart(reading, Some(protocol));
            return Decision::default();
        };
        let Some(load) = self.load_since(&last, &reading, s) else { return Decision::default() };
        self.last = Some(reading);
        let (_, peers) = like(peers, now, &load);
        let d = self.judge(table, now, (&load, &peers), reading.at_us, (model, learned, s));
        self.note(&load);
        d
    }

    /// The load since the last reading, if enough was sampled. One whose counters started again begins anew.
    fn load_since(&mut self, last: &Reading, reading: &Reading, s: &Settings) -> Option<Load> {
        let load = Load::between(last, reading).filter(|l| l.txns >= s.min_samples);
        if load.is_none() && (reading.sample.txns < last.sample.txns || reading.commits < last.commits) {
            self.last = Some(*reading);
        }
        load
    }

    /// Whoever observes finds no switch asked for or under way: if the trial's protocol is not the one in force, its switch was
    /// refused, or taken back before it was complete. Nothing was tried.
    fn forget_what_never_came(&mut self, now: usize) {
        let Some(t) = self.trial.take_if(|t| t.to != now) else { return };
        let is_its = |w: &([f64; FEATURES], usize, usize, u64)| (w.1, w.2) == (t.from, t.to);
        if self.switches.back().is_some_and(is_its) {
            self.switches.pop_back();
        }
    }

    fn judge(
        &self,
        table: u64,
        now: usize,
        (load, peers): (&Load, &[Peer]),
        at_us: u64,
        (model, learned, s): (&Model, &Learned, &Settings),
    ) -> Decision {
        let load = &self.smooth(load, peers);
        let predicted = model.predict(&load.features);
        let c = learned.correction(table, now, &load.features, at_us, s.forget_us);
        let scores = std::array::from_fn(|i| predicted[i] + c.add[i]);
        let known = model.knows();
        let allowed: ProtocolSet = allowed(s, load).iter().filter(|p| known.has(*p)).collect();
        let best = cheapest(&scores, |p| allowed.has(p)).unwrap_or(now);
        Decision {
            load: *load,
            predicted,
            learned: c,
            scores,
            known,
            allowed,
            best,
            used: now,
            gain: scores[now] - scores[best],
            margin: (1.0 + s.min_gain).ln(),
            ..Decision::default()
        }
    }

    /// The load with the mean features of those of the last intervals that are like it, and of the partitions that are:
    /// less noise, and no delay where it changes.
    fn smooth(&self, load: &Load, peers: &[Peer]) -> Load {
        let near = self.history.iter().map(|h| &h.0).filter(|f| super::features::distance(f, &load.features) < SAME);
        let near: Vec<_> = near.chain(peers.iter().map(|p| &p.features)).collect();
        let n = near.len() as f64 + 1.0;
        let sum = |i: usize| near.iter().map(|f| f[i]).sum::<f64>() + load.features[i];
        Load { features: std::array::from_fn(|i| sum(i) / n), ..*load }
    }

    /// Intervals in which a switch must be better: more, the more often switches of loads like this one were reversed.
    fn confirm(&self, to: usize, f: &[f64; FEATURES], at_us: u64, s: &Settings) -> u32 {
        let reversed = |w: &&([f64; FEATURES], usize, usize, u64)| {
            w.1 == to && at_us.saturating_sub(w.3) < s.forget_us && super::features::distance(&w.0, f) < LIKE
        };
        s.confirm << (self.switches.iter().filter(reversed).count() as u32).min(DOUBLED)
    }

    /// Remembers the cost, and how much it varies.
    fn note(&mut self, load: &Load) {
        let cost = load.cost();
        if let Some((f, before, _)) = self.history.back() {
            if shape_distance(f, &load.features) < SAME {
                let square = cost.over(before).powi(2) / 2.0;
                self.variance = if self.variance == 0.0 { square } else { 0.8 * self.variance + 0.2 * square };
            }
        }
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back((load.features, cost, load.rate));
    }

    fn deviation(&self, n_before: usize, n_after: usize) -> f64 {
        let v = if self.variance == 0.0 { NOISE.1 * NOISE.1 } else { self.variance.max(NOISE.0 * NOISE.0) };
        (v * (1.0 / n_before.max(1) as f64 + 1.0 / n_after.max(1) as f64)).sqrt()
    }

    fn begin_trial(&mut self, from: usize, to: usize, load: &Load, d: &Decision) {
        let f = load.features;
        let same: Vec<_> = self.history.iter().filter(|h| super::features::distance(&h.0, &f) < SAME).collect();
        self.trial = Some(Trial {
            from,
            to,
            features: f,
            before: Cost::mean(&same.iter().map(|h| h.1).collect::<Vec<_>>()),
            n_before: same.len(),
            rate_before: mean(same.iter().map(|h| h.2)),
            records: mean(same.iter().map(|h| h.0[1])),
            predicted: d.known.has(Protocol::ALL[from]).then(|| d.predicted[to] - d.predicted[from]),
            more: Vec::new(),
            intervals: 0,
            stalled: 0,
        });
    }

    /// During a trial: did the partition come to a halt, so that too few transactions commit to tell anything? Where next to
    /// nothing commits one interval tells. `since`: the switch to this protocol came in the interval.
    fn halts(
        &mut self,
        table: u64,
        (last, now): (&Reading, &Reading),
        since: Option<usize>,
        learned: &mut Learned,
        s: &Settings,
    ) -> Option<Decision> {
        let t = self.trial.as_mut().filter(|t| since.is_none_or(|to| t.to == to))?;
        let us = now.at_us.saturating_sub(last.at_us).max(1);
        let commits = now.commits.saturating_sub(last.commits);
        let rate = commits as f64 * 1e6 / us as f64;
        let troubles = now.troubles_since(last);
        let few = now.sample.txns.saturating_sub(last.sample.txns) < s.min_samples;
        let stalled = few && rate < t.rate_before / 4.0 && troubles * 2 > commits;
        if since.is_none() {
            t.intervals += 1;
            t.stalled = if stalled { t.stalled + 1 } else { 0 };
        }
        let dead = stalled && rate < t.rate_before / DEAD && troubles > commits;
        if !dead && t.stalled < AFTER.0 as u32 {
            return None;
        }
        let measured = (t.rate_before / rate.max(1e-9)).ln().min(3.0);
        let t = self.trial.take()?;
        learn(table, &t, measured, now.at_us, learned, s);
        self.challenger = None;
        let ask = Some(Protocol::ALL[t.from]);
        Some(Decision {
            status: Status::TakesBack,
            before_us: t.before.weighed(0.5).exp(),
            best: t.from,
            ask,
            ..Decision::default()
        })
    }

    /// Verifies the last switch. False: there is none to verify, so decide.
    fn verify(
        &mut self,
        table: u64,
        (load, peers): (&Load, &[Peer]),
        at_us: u64,
        learned: &mut Learned,
        s: &Settings,
        d: &mut Decision,
    ) -> bool {
        let Some(t) = self.trial.as_mut() else { return false };
        let banned = !d.allowed.has(Protocol::ALL[t.to]);
        if banned || shape_distance(&t.features, &load.features) > SAME {
            self.trial = None; // a rule against it, or another load: nothing can be compared
            return false;
        }
        d.before_us = t.before.weighed(0.5).exp();
        d.status = Status::Verifies;
        if t.intervals > SKIP {
            let with = peers.iter().filter_map(|p| p.trial).filter(|p| (p.0, p.1) == (t.from, t.to)).map(|p| p.2);
            let more: Vec<f64> = with.chain([t.more(load)]).collect();
            t.more.push(mean(more.into_iter()));
        }
        d.intervals = (t.more.len() as u32, AFTER.1 as u32);
        if t.more.len() < AFTER.0 {
            return true;
        }
        let (n_before, n_after) = (t.n_before, t.more.len());
        let measured = mean(t.more.iter().copied());
        let predicted = d.predicted[t.to] - d.predicted[t.from];
        // A probe, and a switch by lessons, went against the model: that it still is against it says nothing.
        let moved = t.predicted.filter(|p| *p < 0.0).map(|p| predicted - p);
        let noise = self.deviation(n_before, n_after);
        let loss = (1.0 + s.max_loss).ln();
        let worse = measured > loss && (measured > 2.0 * noise || n_after >= AFTER.1);
        if !worse && moved.is_some_and(|m| m > (1.0 + s.min_gain).ln()) {
            self.trial = None; // so does the model say of a load of the same shape
            return false;
        }
        if !worse && measured > 0.0 && n_after < AFTER.1 {
            return true;
        }
        let Some(t) = self.trial.take() else { return true };
        learn(table, &t, measured, at_us, learned, s);
        // Not to where a rule forbids it.
        let back = worse && d.allowed.has(Protocol::ALL[t.from]);
        d.status = if back { Status::TakesBack } else { Status::Accepts };
        d.ask = back.then_some(Protocol::ALL[t.from]);
        true
    }

    /// Asks for another protocol if it is better, for long enough.
    fn decide(&mut self, now: usize, at_us: u64, s: &Settings, d: &mut Decision) {
        let banned = !d.allowed.has(Protocol::ALL[now]);
        // Who is left behind by those like it follows them: transactions over several partitions gain by one protocol.
        if d.alone {
            d.margin = 0.0;
        }
        if d.best != now && (banned || d.gain > d.margin) {
            let n = self.challenger.filter(|c| c.0 == d.best).map_or(0, |c| c.1) + 1;
            self.challenger = Some((d.best, n));
            self.lossy = 0;
            d.status = Status::Confirms;
            let confirm = if banned { s.confirm } else { self.confirm(d.best, &d.load.features, at_us, s) };
            d.intervals = (n, confirm);
            if n >= confirm {
                d.status = Status::Switches;
                d.ask = Some(Protocol::ALL[d.best]);
            }
            return;
        }
        self.challenger = None;
        d.status = Status::Keeps;
        self.probe(now, at_us, s, d);
    }

    /// Until when nothing is tried here, because something was; 0: nothing forbids it.
    fn no_probe_before(&self, at_us: u64, s: &Settings) -> u64 {
        let again_at = self.probed_at + s.forget_us / PROBE_EVERY;
        if self.probed_at != 0 && at_us < again_at {
            again_at
        } else {
            0
        }
    }

    /// The model calls the protocol the best, and yet much is lost: looks whether another one is better here.
    fn probe(&mut self, now: usize, at_us: u64, s: &Settings, d: &mut Decision) {
        let l = &d.load;
        let own = |own: f64, all: f64| own * l.features[2] > all / 2.0;
        let lossy = l.own_lost > OWN.0 || l.lost > LOSSY.0 && own(l.own_lost, l.lost);
        let sleepy = l.busy < IDLE && (l.own_slept > OWN.1 || l.slept > LOSSY.1 && own(l.own_slept, l.slept));
        self.lossy = if lossy || sleepy { self.lossy + 1 } else { 0 };
        d.lossy = (self.lossy, s.confirm + OWN.2);
        if self.no_probe_before(at_us, s) != 0 || self.lossy < s.confirm {
            return;
        }
        let Some(to) = self.instead(now, lossy, d) else { return };
        self.fault = (d.load.own_lost + d.load.own_slept) * d.load.features[5];
        if s.probes && self.lossy >= s.confirm + OWN.2 {
            self.probed_at = at_us;
            d.status = Status::Probes;
            d.ask = Some(Protocol::ALL[to]);
        }
    }

    /// What to try in place of a protocol that is not told good or bad by lessons: what the model calls the second best,
    /// if that is not far behind. Where attempts fail, and a transaction has one record of the partition, to wait for
    /// that record is worth a trial whatever the model says: it knows loads whose records are all in like partitions.
    fn instead(&self, now: usize, lossy: bool, d: &Decision) -> Option<usize> {
        let f = &d.load.features;
        let few = f[1] * f[0].max(1.0 - f[0]) < FEW;
        let can = |p: Protocol| p.index() != now && d.allowed.has(p) && d.learned.weight[p.index()] < 0.3;
        let waits = |p: Protocol| ProtocolSet::of(p).locks_reads();
        if lossy && few && !waits(Protocol::ALL[now]) {
            let found = cheapest(&d.scores, |p| can(p) && waits(p));
            if found.is_some() {
                return found;
            }
        }
        let worst = if lossy { PROBE_WORST.0 } else { PROBE_WORST.1 };
        // Where transactions have several partitions, locks of whole partitions are not worth a trial.
        let fits = |p: Protocol| f[3] < 0.5 || !ProtocolSet::of(p).locks_partitions();
        cheapest(&d.scores, |p| can(p) && fits(p) && d.scores[p.index()] - d.scores[now] < worst)
    }
}

/// The place of the protocol with the lowest score among those for which `can` holds.
fn cheapest(scores: &[f64; Protocol::COUNT], can: impl Fn(Protocol) -> bool) -> Option<usize> {
    let found = Protocol::ALL.into_iter().filter(|p| can(*p)).map(Protocol::index);
    found.min_by(|a, b| scores[*a].total_cmp(&scores[*b]))
}

/// Adds what a trial has taught. Nothing, if there is no prediction that it could correct.
fn learn(table: u64, t: &Trial, measured: f64, at_us: u64, learned: &mut Learned, s: &Settings) {
    let Some(predicted) = t.predicted else { return };
    let residual = measured - predicted;
    let l = Lesson { table, from: t.from, to: t.to, features: t.features, measured, residual, repeats: 0, at_us };
    learned.add(l, s.forget_us);
}
