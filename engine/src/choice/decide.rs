//! The decision for one partition, interval by interval.
//!
//! **INV-CHOICE**: The coordinator asks a partition to switch only after the other protocol was
//! better by the margin in `confirm` successive intervals, or by a rule, or as a probe. It does not
//! ask again until that switch was verified or plainly slower, or the load has changed. Requests of
//! users go before: `Switch::choose` changes nothing that is pinned, asked for or under way.

use super::decision::{Decision, Status};
use super::features::{Cost, Load, Reading, FEATURES};
use super::learned::{Learned, Lesson};
use super::model::Model;
use super::settings::{Role, Settings};
use super::trial::{Past, Trial};
use crate::protocol::{Protocol, ProtocolSet};
use std::collections::VecDeque;

/// An interval in another partition of the same table.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The number of the partition.
    pub no: u32,
    protocol: usize,
    features: [f64; FEATURES],
    /// The switch that is being verified: old protocol, new protocol, and additional cost of the
    /// interval.
    trial: Option<(usize, usize, f64)>,
}

/// The coordinator's knowledge about a partition.
#[derive(Clone, Debug, Default)]
pub struct State {
    last: Option<Reading>,
    protocol: Option<usize>,
    /// The load, cost, and commits per second of the last intervals under the current protocol.
    history: VecDeque<Past>,
    /// The old protocol of a trial that was taken back, its history, and the successive intervals
    /// in which much was lost.
    resumes: Option<(usize, VecDeque<Past>, u32)>,
    /// The load and the time of the last trial that was plainly slower because transactions waited.
    waited: Option<([f64; FEATURES], u64)>,
    /// The variance of the logarithm of the cost from interval to interval. 0: not known.
    variance: f64,
    challenger: Option<(usize, u32)>,
    trial: Option<Trial>,
    /// Successive intervals in which much is lost, and the number of them after which another
    /// protocol is tried.
    lossy: u32,
    needed: u32,
    fault: f64,
    /// Successive intervals with too few transactions to tell anything.
    quiet: u32,
    /// The time of the last probe of a protocol that has costs of its own, and of one that has
    /// another one's.
    probed_at: [u64; 2],
    /// Is the probe that is to come one that may be made in several partitions together?
    jointly: bool,
    /// The last switches: load, old protocol, new protocol, time.
    switches: VecDeque<([f64; FEATURES], usize, usize, u64)>,
}

/// What an examination without a load depends on, besides the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// The protocol in use. No switch is asked for or under way.
    pub protocol: Protocol,
    /// May the coordinator choose?
    pub chooses: bool,
    /// Has a user set the protocol?
    pub pinned: bool,
    /// See [`Settings::min_samples`].
    pub min_samples: u64,
}

/// The number of intervals of a load that are compared with those after a switch.
const HISTORY: usize = 8;
/// The first interval after a switch has transactions from before it.
const SKIP: u32 = 1;
/// The least and the largest number of measured intervals after a switch.
const AFTER: (usize, usize) = (2, 5);
/// A partition has come to a halt if its transactions commit at a rate this many times lower.
const DEAD: f64 = 8.0;
/// The least noise assumed, and the noise assumed if it is not known, of a logarithm of a cost.
const NOISE: (f64, f64) = (0.03, 0.08);
/// Loads are the same load up to this distance of their shapes.
const SAME: f64 = 1.0;
/// The distance, with room for noise, up to which a switch and its reversal are about the same
/// load.
const LIKE: f64 = 1.5;
/// A partition is probed if it has at least half of the mean partition's part in the lost time and
/// one of two things holds. This share of the time is lost; or that share is slept while processors
/// are idle ...
const LOSSY: (f64, f64) = (0.25, 0.5);
/// ... or if this share of the time is lost or slept because of it alone. That must hold in
/// `confirm` and this number of further successive intervals.
const OWN: (f64, f64, u32) = (0.05, 0.1, 1);
/// If this share is lost because of it alone, `confirm` intervals suffice.
const MOST: f64 = 0.5;
const IDLE: f64 = 0.9;
/// Up to this number of a partition's records in a transaction, there are no chains of waits there.
const FEW: f64 = 1.5;
/// Sessions conflict in a partition if they do at this share of their accesses. Where the feature
/// is:
const CLASHES: f64 = 0.1;
const CONFLICT_RATE: usize = 4;
/// After this many intervals with few transactions the load has gone. A partition is then not the
/// worst one.
const QUIET: u32 = 5;
/// The number of switches remembered, and how often the time to confirm doubles at most.
const SWITCHES: usize = 32;
const DOUBLED: u32 = 5;
/// A choice waits for what is tried elsewhere for this number of intervals at most: as long as a
/// trial takes, with the intervals in which it is confirmed.
const LONGEST: u32 = 10;
/// Between two probes of a partition passes this part of the time in which lessons fade. The other
/// constant has the predictions that forbid a probe, for work that is lost and for time that is
/// slept.
const PROBE_EVERY: u64 = 20;
const PROBE_WORST: (f64, f64) = (0.45, 0.15);
/// Lessons with this weight or more judge a protocol: it need not be tried.
const TOLD: f64 = 0.3;

/// The distance of loads by features that do not depend on the protocol in use.
fn shape_distance(a: &[f64; FEATURES], b: &[f64; FEATURES]) -> f64 {
    let (p, q) = (super::features::place(a), super::features::place(b));
    [0, 1, 2, 5].iter().map(|&i| (p[i] - q[i]) * (p[i] - q[i])).sum::<f64>().sqrt()
}

pub(super) fn mean(v: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = v.len().max(1) as f64;
    v.sum::<f64>() / n
}

/// The table's other partitions that are like a load: those with another protocol, and those with
/// the same one.
fn like(peers: &[Peer], now: usize, load: &Load) -> (Vec<Peer>, Vec<Peer>) {
    let apart = |p: &Peer| super::features::distance(&p.features, &load.features);
    let (same, others): (Vec<Peer>, Vec<Peer>) = peers.iter().copied().partition(|p| p.protocol == now);
    let within = |v: Vec<Peer>, most: f64| v.into_iter().filter(|p| apart(p) < most).collect();
    (within(others, LIKE), within(same, SAME))
}

/// The protocols that candidates and rules allow.
pub fn allowed(s: &Settings, l: &Load) -> ProtocolSet {
    let weak = l.weak_writers > s.max_weak_writers || l.idle > s.max_idle;
    s.candidates.iter().filter(|p| !(weak && ProtocolSet::of(*p).locks_partitions())).collect()
}

impl State {
    /// Forgets all that depends on the current protocol or load. Continues from `reading`.
    pub fn restart(&mut self, reading: Reading, protocol: Option<Protocol>) {
        self.last = Some(reading);
        self.protocol = protocol.map(Protocol::index);
        self.history.clear();
        self.challenger = None;
        (self.lossy, self.fault, self.jointly) = (0, 0.0, false);
        if let Some((_, history, lossy)) = self.resumes.take_if(|r| Some(r.0) == self.protocol) {
            (self.history, self.lossy) = (history, lossy);
        }
        if protocol.is_none() || self.trial.as_ref().is_some_and(|t| Some(t.to) != self.protocol) {
            self.trial = None;
        }
        // The wait for the switch was not the trial's own quiet time.
        if self.trial.is_some() {
            self.quiet = 0;
        }
    }

    /// Notes that a switch is under way: its transactions do not count. If it is plainly slower, it
    /// is to be taken back.
    pub fn switching(&mut self, table: u64, reading: Reading, learned: &mut Learned, s: &Settings) -> Decision {
        let last = self.last.unwrap_or(reading);
        if let Some(t) = &mut self.trial {
            t.look(&last, &reading, s);
        }
        let slower = self.slower((&last, &reading), s);
        let back = slower.and_then(|measured| self.take_back(table, measured, reading.at_us, learned, s));
        let passes = self.pass(reading);
        back.unwrap_or(passes)
    }

    /// Notes that a switch is under way, which goes on.
    pub fn pass(&mut self, reading: Reading) -> Decision {
        self.last = Some(reading);
        self.history.clear();
        self.challenger = None;
        // A switch may take as long as a transaction does: others need not wait for that.
        self.quiet = self.quiet.saturating_add(1);
        Decision { status: Status::Switching, ..Decision::default() }
    }

    /// The time lost because of this partition, in sessions, if another protocol is to be tried. 0
    /// if the load has gone.
    pub fn fault(&self) -> f64 {
        if self.is_quiet() {
            0.0
        } else {
            self.fault
        }
    }
    /// Will it try, in the next interval in which much is lost, a protocol that others join; see
    /// [`super::blame`]?
    pub fn leads(&self) -> bool {
        self.jointly && self.is_due()
    }
    /// Will it try a protocol in the next interval in which much is lost?
    fn is_due(&self) -> bool {
        self.lossy > 0 && self.lossy + 1 >= self.needed
    }
    /// The protocol in use.
    pub fn uses(&self) -> Option<Protocol> {
        self.protocol.map(|p| Protocol::ALL[p])
    }
    /// Did sessions conflict in its rows in the last interval?
    pub fn clashes(&self) -> bool {
        self.history.back().is_some_and(|(f, ..)| f[CONFLICT_RATE] >= CLASHES)
    }
    /// Is a switch being verified that others must not disturb? Not if the load has gone.
    pub fn is_being_verified(&self) -> bool {
        self.is_tried() && !self.is_quiet()
    }
    /// Is a protocol being tried because work was lost, or is work lost so that one is to be tried?
    pub fn seeks(&self) -> bool {
        self.fault() > 0.0 || self.is_being_verified() && self.trial.as_ref().is_some_and(|t| t.probes)
    }
    fn is_quiet(&self) -> bool {
        self.quiet > QUIET
    }
    /// Is a switch being verified?
    pub fn is_tried(&self) -> bool {
        self.trial.is_some()
    }

    /// Has an examination found no load, and is there nothing to be done? If all that it depends on
    /// stays the same, the next one finds nothing either.
    pub fn rests(&self, found: &Decision) -> bool {
        let nothing = found.load.txns == 0 && found.ask.is_none() && found.status != Status::New;
        nothing && !self.is_tried() && self.fault() <= 0.0
    }

    /// The data of this interval for the table's other partitions. Called before
    /// [`State::observe`].
    pub fn peer(&self, no: u32, protocol: Protocol, reading: &Reading, s: &Settings) -> Option<Peer> {
        let protocol = protocol.index();
        let last = self.last.filter(|_| self.protocol == Some(protocol))?;
        let load = Load::between(&last, reading).filter(|l| l.txns >= s.min_samples)?;
        let trial = self.trial.as_ref().map(|t| (t.from, t.to, t.more(&load)));
        Some(Peer { no, protocol, features: load.features, trial })
    }

    /// Handles the end of an interval. No switch is requested or under way ([`State::switching`]).
    /// `table` selects lessons. `peers` are the table's other partitions.
    pub fn observe(
        &mut self,
        table: u64,
        (protocol, peers): (Protocol, &[Peer]),
        reading: Reading,
        (model, learned, s): (&Model, &mut Learned, &Settings),
    ) -> Decision {
        let now = protocol.index();
        // The switch of a trial may be taken back before it is complete.
        if self.protocol != Some(now) || self.resumes.as_ref().is_some_and(|r| r.0 == now) {
            // All progress may have stopped since the switch, which came in this interval.
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
        (self.quiet, self.fault, self.jointly) = (0, 0.0, false);
        self.resumes = None;
        let (others, peers) = like(peers, now, &load);
        let mut d = self.judge(table, now, (&load, &peers), reading.at_us, (model, learned, s));
        d.alone = others.iter().filter(|p| p.protocol == d.best).count() > 1 + peers.len();
        self.note(&load);
        if !self.verify(table, (&load, &peers), reading.at_us, learned, s, &mut d) {
            self.decide(now, reading.at_us, (model, s), &mut d);
        }
        if let Some(to) = d.ask.map(Protocol::index) {
            if d.status != Status::TakesBack {
                self.begin_trial(now, to, &load, &d);
            }
            self.remember((d.load.features, now, to, reading.at_us));
            self.challenger = None;
            self.lossy = 0;
        }
        d.no_probe_before_us = self.no_probe_before(now, reading.at_us, s, &d);
        d
    }

    /// As [`State::observe`], for a partition whose protocol the coordinator may not choose. It
    /// returns the coordinator's opinion on the load, and requests, tries and learns nothing.
    pub fn watch(
        &mut self,
        table: u64,
        (protocol, peers): (Protocol, &[Peer]),
        reading: Reading,
        (model, learned, s): (&Model, &Learned, &Settings),
    ) -> Decision {
        let now = protocol.index();
        (self.trial, self.challenger, self.resumes) = (None, None, None);
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

    /// The load since the last reading, if there are enough samples. If counters were reset, the
    /// reading starts a new interval.
    fn load_since(&mut self, last: &Reading, reading: &Reading, s: &Settings) -> Option<Load> {
        let load = Load::between(last, reading).filter(|l| l.txns >= s.min_samples);
        if load.is_none() && (reading.sample.txns < last.sample.txns || reading.commits < last.commits) {
            self.last = Some(*reading);
        }
        load
    }

    /// Forgets a trial whose switch never took place. The caller has found no switch requested. So
    /// if the trial's protocol is not in force, its switch was refused or taken back before it was
    /// complete.
    fn forget_what_never_came(&mut self, now: usize) {
        let Some(t) = self.trial.take_if(|t| t.to != now) else { return };
        let is_its = |w: &([f64; FEATURES], usize, usize, u64)| (w.1, w.2) == (t.from, t.to);
        if self.switches.back().is_some_and(is_its) {
            self.switches.pop_back();
        }
    }

    fn remember(&mut self, switch: ([f64; FEATURES], usize, usize, u64)) {
        if self.switches.len() == SWITCHES {
            self.switches.pop_front();
        }
        self.switches.push_back(switch);
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
        let borrowed = model.borrows();
        let c = learned.correction((table, now), &load.features, at_us, s.forget_us, borrowed);
        let scores = std::array::from_fn(|i| predicted[i] + c.add[i]);
        let known = model.knows();
        let allowed: ProtocolSet = allowed(s, load).iter().filter(|p| known.has(*p)).collect();
        // The model cannot tell a protocol that borrows its costs from their owner: a trial can.
        let is_told = |p: Protocol| p.index() == now || !borrowed.has(p) || c.weight[p.index()] >= TOLD;
        let may_stay = allowed.has(Protocol::ALL[now]);
        let waits = |p: Protocol| may_stay && p.index() != now && self.would_wait(p, &load.features, at_us, s);
        let best = cheapest(&scores, |p| allowed.has(p) && is_told(p) && !waits(p)).unwrap_or(now);
        let stays = allowed.has(Protocol::ALL[now]) && scores[now] <= scores[best];
        let best = if stays { now } else { best };
        Decision {
            load: *load,
            predicted,
            learned: c,
            scores,
            known,
            borrowed,
            allowed,
            best,
            used: now,
            gain: scores[now] - scores[best],
            margin: (1.0 + s.min_gain).ln(),
            ..Decision::default()
        }
    }

    /// The load with mean features, over recent intervals and partitions that are like it. That
    /// reduces noise, and adds no delay when the load changes.
    fn smooth(&self, load: &Load, peers: &[Peer]) -> Load {
        let near = self.history.iter().map(|h| &h.0).filter(|f| super::features::distance(f, &load.features) < SAME);
        let near: Vec<_> = near.chain(peers.iter().map(|p| &p.features)).collect();
        let n = near.len() as f64 + 1.0;
        let sum = |i: usize| near.iter().map(|f| f[i]).sum::<f64>() + load.features[i];
        Load { features: std::array::from_fn(|i| sum(i) / n), ..*load }
    }

    /// The number of intervals in which a switch must be better. It grows with the number of
    /// switches of similar loads that were reversed.
    fn confirm(&self, to: usize, f: &[f64; FEATURES], at_us: u64, s: &Settings) -> u32 {
        let reversed = |w: &&([f64; FEATURES], usize, usize, u64)| {
            w.1 == to && at_us.saturating_sub(w.3) < s.forget_us && super::features::distance(&w.0, f) < LIKE
        };
        s.confirm << (self.switches.iter().filter(reversed).count() as u32).min(DOUBLED)
    }

    /// Remembers the cost and its variance.
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
            seen: None,
            paused: false,
            slow: Vec::new(),
            probes: d.status == Status::Probes,
            history: self.history.clone(),
            lossy: self.lossy.min(self.needed).saturating_sub(1),
        });
    }

    /// Has the partition come to a halt during a trial, so that too few transactions commit to tell
    /// anything? If next to nothing commits, one interval suffices. Or is it plainly slower in two
    /// successive intervals, and that is more than noise? `since`: the protocol to which the
    /// partition was switched in this interval.
    fn halts(
        &mut self,
        table: u64,
        (last, now): (&Reading, &Reading),
        since: Option<usize>,
        learned: &mut Learned,
        s: &Settings,
    ) -> Option<Decision> {
        let t = self.trial.as_mut().filter(|t| since.is_none_or(|to| t.to == to))?;
        t.look(last, now, s);
        let commits = now.commits.saturating_sub(last.commits);
        let rate = commits as f64 / now.seconds_since(last);
        let troubles = now.troubles_since(last);
        let few = now.sample.txns.saturating_sub(last.sample.txns) < s.min_samples;
        let stalled = few && rate < t.rate_before / 4.0 && troubles * 2 > commits;
        if since.is_none() {
            t.intervals += 1;
            t.stalled = if stalled { t.stalled + 1 } else { 0 };
        }
        let dead = stalled && rate < t.rate_before / DEAD && troubles > commits;
        let measured = if dead || t.stalled >= AFTER.0 as u32 {
            (t.rate_before / rate.max(1e-9)).ln().min(3.0)
        } else {
            self.slower((last, now), s)?
        };
        self.take_back(table, measured, now.at_us, learned, s)
    }

    /// Ends a trial that was worse by `measured` before it could be verified.
    fn take_back(
        &mut self,
        table: u64,
        measured: f64,
        at_us: u64,
        learned: &mut Learned,
        s: &Settings,
    ) -> Option<Decision> {
        let t = self.trial.take()?;
        learn(table, &t, measured, at_us, learned, s);
        self.remember((t.features, t.to, t.from, at_us));
        self.challenger = None;
        let d = Decision {
            status: Status::TakesBack,
            before_us: t.before.weighed(0.5).exp(),
            best: t.from,
            ask: Some(Protocol::ALL[t.from]),
            ..Decision::default()
        };
        self.note_waits(&t, at_us);
        self.resume(t);
        Some(d)
    }

    /// The additional cost of a trial that is plainly slower than what was before it, beyond noise,
    /// if no rule forbids the old protocol now.
    fn slower(&self, (last, now): (&Reading, &Reading), s: &Settings) -> Option<f64> {
        let t = self.trial.as_ref()?;
        let (more, n) = t.slower()?;
        let noise = self.deviation(t.n_before, n);
        let may = |l: Load| allowed(s, &l).has(Protocol::ALL[t.from]);
        Load::between(last, now).is_none_or(may).then_some(())?;
        (n >= AFTER.0 && more > (1.0 + s.max_loss).ln() && more > 2.0 * noise).then_some(more)
    }

    /// Notes whether a trial was plainly slower because transactions waited.
    fn note_waits(&mut self, t: &Trial, at_us: u64) {
        if t.slower().is_some_and(|s| s.1 >= AFTER.0) && t.waited() {
            self.waited = Some((t.features, at_us));
        }
    }

    /// The old protocol comes back: its history counts again.
    fn resume(&mut self, t: Trial) {
        self.resumes = Some((t.from, t.history, if t.probes { t.lossy } else { 0 }));
    }

    /// Verifies the last switch. Returns false if there is none to verify, so that the caller
    /// decides.
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
            // A rule forbids it, or the load is another one: the costs cannot be compared.
            self.trial = None;
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
        // A probe, and a switch by lessons, went against the model. That the model is still against
        // it says nothing.
        let moved = t.predicted.filter(|p| *p < 0.0).map(|p| predicted - p);
        let noise = self.deviation(n_before, n_after);
        let loss = (1.0 + s.max_loss).ln();
        let worse = measured > loss && (measured > 2.0 * noise || n_after >= AFTER.1);
        if !worse && moved.is_some_and(|m| m > (1.0 + s.min_gain).ln()) {
            // The model sees another load too, although the shape is the same.
            self.trial = None;
            return false;
        }
        if !worse && measured > 0.0 && n_after < AFTER.1 {
            return true;
        }
        let Some(t) = self.trial.take() else { return true };
        learn(table, &t, measured, at_us, learned, s);
        // A switch back is not made if a rule forbids the old protocol.
        let back = worse && d.allowed.has(Protocol::ALL[t.from]);
        d.status = if back { Status::TakesBack } else { Status::Accepts };
        d.ask = back.then_some(Protocol::ALL[t.from]);
        if back {
            self.resume(t);
        }
        true
    }

    /// Requests another protocol if it is better for long enough.
    fn decide(&mut self, now: usize, at_us: u64, (model, s): (&Model, &Settings), d: &mut Decision) {
        let banned = !d.allowed.has(Protocol::ALL[now]);
        if s.role == Role::Joins && !banned && self.join(now, at_us, (model, s), d) {
            return;
        }
        let waits = matches!(s.role, Role::Joins | Role::Waits) && !banned;
        let tried = self.loses(now, at_us, (model, s), d).filter(|_| !banned);
        // That trial costs least. It does not wait for a model that wavers.
        if let Some(to) = tried.filter(|_| self.jointly) {
            return self.try_out(to, at_us, d);
        }
        // A partition whose similar partitions have the better protocol follows them: transactions
        // over several partitions gain by one protocol.
        if d.alone {
            d.margin = 0.0;
        }
        if d.best != now && (banned || d.gain > d.margin) {
            let n = self.challenger.filter(|c| c.0 == d.best).map_or(0, |c| c.1) + 1;
            self.challenger = Some((d.best, n));
            d.status = Status::Confirms;
            let confirm = if banned { s.confirm } else { self.confirm(d.best, &d.load.features, at_us, s) };
            d.intervals = (n, confirm);
            if n >= confirm + if waits { LONGEST } else { 0 } {
                d.status = Status::Switches;
                d.ask = Some(Protocol::ALL[d.best]);
            }
            return;
        }
        self.challenger = None;
        d.status = Status::Keeps;
        if let Some(to) = tried {
            self.try_out(to, at_us, d);
        }
    }

    /// The time before which a protocol is not tried here, because one of its kind was tried. 0: no
    /// limit.
    fn not_before(&self, p: Protocol, at_us: u64, s: &Settings, d: &Decision) -> u64 {
        let last = self.probed_at[usize::from(d.borrowed.has(p))];
        let again_at = last + s.forget_us / PROBE_EVERY;
        if last != 0 && at_us < again_at {
            again_at
        } else {
            0
        }
    }

    /// The time before which no protocol is tried here. 0: no limit.
    fn no_probe_before(&self, now: usize, at_us: u64, s: &Settings, d: &Decision) -> u64 {
        let kinds = [d.known.minus(d.borrowed), d.borrowed];
        let of_kind = |kind: &ProtocolSet| {
            let p = kind.iter().find(|p| p.index() != now && d.allowed.has(*p))?;
            Some(self.not_before(p, at_us, s, d))
        };
        kinds.iter().filter_map(of_kind).min().unwrap_or(0)
    }

    /// Counts the intervals in which much is lost, whatever the model says meanwhile. Returns the
    /// protocol to try, if there were enough of them.
    fn loses(&mut self, now: usize, at_us: u64, (model, s): (&Model, &Settings), d: &mut Decision) -> Option<Protocol> {
        let l = &d.load;
        let own = |own: f64, all: f64| own * l.features[2] > all / 2.0;
        let lossy = l.own_lost > OWN.0 || l.lost > LOSSY.0 && own(l.own_lost, l.lost);
        let sleepy = l.busy < IDLE && (l.own_slept > OWN.1 || l.slept > LOSSY.1 && own(l.own_slept, l.slept));
        // As it was announced (`State::leads`): others that join have gone by that.
        let due = self.is_due();
        self.lossy = if lossy || sleepy { self.lossy + 1 } else { 0 };
        self.needed = (s.confirm + if l.own_lost > MOST { 0 } else { OWN.2 }).max(2);
        d.lossy = (self.lossy, self.needed);
        if self.lossy == 0 {
            return None;
        }
        let can = |p: Protocol| self.may_try(p, now, at_us, s, d);
        let to = instead(Protocol::ALL[now], lossy, (model, d), can)?;
        self.fault = (d.load.own_lost + d.load.own_slept) * d.load.features[5];
        self.jointly = model.is_like(to, Protocol::ALL[now]);
        (s.role == Role::Tries && due).then_some(to)
    }

    fn try_out(&mut self, to: Protocol, at_us: u64, d: &mut Decision) {
        self.probed_at[usize::from(d.borrowed.has(to))] = at_us;
        d.status = Status::Probes;
        d.ask = Some(to);
    }

    /// Another partition tries a protocol that is like the one in use here, too.
    fn join(&mut self, now: usize, at_us: u64, (model, s): (&Model, &Settings), d: &mut Decision) -> bool {
        let can = |p: Protocol| self.may_try(p, now, at_us, s, d) && model.is_like(p, Protocol::ALL[now]);
        let Some(to) = cheapest(&d.scores, can).map(|i| Protocol::ALL[i]) else { return false };
        self.try_out(to, at_us, d);
        true
    }

    /// Would transactions wait too long under a protocol? They would if it locks all that it
    /// touches, and they have waited of late under one that locks less, under a load of this shape.
    fn would_wait(&self, p: Protocol, f: &[f64; FEATURES], at_us: u64, s: &Settings) -> bool {
        let lately = |t: u64| at_us.saturating_sub(t) < s.forget_us / PROBE_EVERY;
        locks_all(p) && self.waited.is_some_and(|(of, at)| lately(at) && shape_distance(&of, f) < LIKE)
    }

    /// May a protocol be tried? Not if lessons judge it, nor soon after another trial. Nor if the
    /// partition has left it of late for the one in use, under a load of this shape: that one has
    /// been found better, whatever a noisy interval makes of the lessons. Nor if transactions would
    /// wait under it.
    fn may_try(&self, p: Protocol, now: usize, at_us: u64, s: &Settings, d: &Decision) -> bool {
        let i = p.index();
        let lately = |t: u64| at_us.saturating_sub(t) < s.forget_us / PROBE_EVERY;
        let was_left = |w: &([f64; FEATURES], usize, usize, u64)| {
            (w.1, w.2) == (i, now) && lately(w.3) && shape_distance(&w.0, &d.load.features) < LIKE
        };
        let waits = self.would_wait(p, &d.load.features, at_us, s);
        let open = i != now && d.allowed.has(p) && d.learned.weight[i] < TOLD && !waits;
        open && self.not_before(p, at_us, s, d) == 0 && !self.switches.iter().any(was_left)
    }
}

/// The protocol to try instead of the one in use, among those that can be tried: lessons do not
/// judge them.
///
/// Where attempts fail, it is first the one that the model takes for the one in use (`mocc` for
/// `occ`). It differs only where attempts have failed, so the trial costs least. If a transaction
/// has one record of the partition, waiting for that record is worth a trial whatever the model
/// says. The model knows only loads whose records are all in similar partitions. Otherwise it is
/// the one that the model calls second best, if that is not far behind.
fn instead(
    now: Protocol,
    lossy: bool,
    (model, d): (&Model, &Decision),
    can: impl Fn(Protocol) -> bool,
) -> Option<Protocol> {
    let f = &d.load.features;
    let few = f[1] * f[0].max(1.0 - f[0]) < FEW;
    let waits = |p: Protocol| ProtocolSet::of(p).locks_reads();
    let of = |i: usize| Protocol::ALL[i];
    if lossy {
        let alike = cheapest(&d.scores, |p| can(p) && model.is_like(p, now));
        let waiting = || cheapest(&d.scores, |p| can(p) && waits(p)).filter(|_| few && !waits(now));
        if let Some(found) = alike.or_else(waiting) {
            return Some(of(found));
        }
    }
    let worst = if lossy { PROBE_WORST.0 } else { PROBE_WORST.1 };
    // If transactions use several partitions, locks of whole partitions are not worth a trial.
    let fits = |p: Protocol| f[3] < 0.5 || !ProtocolSet::of(p).locks_partitions();
    let near = |p: Protocol| d.scores[p.index()] - d.scores[now.index()] < worst;
    // If sleeps are all that is lost where hot rows are locked, more locks are not worth one.
    let more = |p: Protocol| !lossy && ProtocolSet::of(now).locks_hot() && locks_all(p);
    cheapest(&d.scores, |p| can(p) && fits(p) && near(p) && !more(p)).map(of)
}

/// Does a transaction under the protocol lock all that it touches?
fn locks_all(p: Protocol) -> bool {
    ProtocolSet::of(p).locks_reads() || ProtocolSet::of(p).locks_partitions()
}

/// The place of the protocol with the lowest score among those for which `can` holds.
fn cheapest(scores: &[f64; Protocol::COUNT], can: impl Fn(Protocol) -> bool) -> Option<usize> {
    let found = Protocol::ALL.into_iter().filter(|p| can(*p)).map(Protocol::index);
    found.min_by(|a, b| scores[*a].total_cmp(&scores[*b]))
}

/// Adds the lesson of a trial, if there is a prediction that it could correct.
fn learn(table: u64, t: &Trial, measured: f64, at_us: u64, learned: &mut Learned, s: &Settings) {
    let Some(predicted) = t.predicted else { return };
    let residual = measured - predicted;
    let l = Lesson { table, from: t.from, to: t.to, features: t.features, measured, residual, repeats: 0, at_us };
    learned.add(l, s.forget_us);
}
