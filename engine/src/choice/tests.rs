//! Decisions in a simulated world: loads whose true costs are known, with noise.

use super::blame::{roles, Suspect};
use super::decide::State;
use super::decision::{Decision, Status};
use super::features::Reading;
use super::learned::Learned;
use super::model::Model;
use super::settings::{Role, Settings};
use crate::partition::Sample;
use crate::protocol::{Protocol, ProtocolSet};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000;

/// A load: the features that the simulation varies, and the true cost under each protocol in us (of
/// the first three in the order of `ALL`, and of `mocc`).
#[derive(Clone, Copy, Debug)]
struct Truth {
    reads: f64,
    conflicts: f64,
    multi: f64,
    weak: f64,
    lost: f64,
    /// The share of failures because of the partition itself, and its records in a transaction.
    fault: f64,
    records: f64,
    cost_us: [f64; 3],
    heated_us: f64,
    /// How many times as long a transaction takes under each protocol, for the same processor time,
    /// and its sleeps for locks.
    longer: [f64; 4],
    sleeps: f64,
}

impl Truth {
    fn cost_us(&self, p: Protocol) -> f64 {
        if p == Protocol::Mocc {
            self.heated_us
        } else {
            self.cost_us[at(p)]
        }
    }
}

const CALM: Truth = Truth {
    reads: 0.8,
    conflicts: 0.01,
    multi: 0.0,
    weak: 0.0,
    lost: 0.0,
    fault: 1.0,
    records: 10.0,
    cost_us: [130.0, 100.0, 125.0],
    heated_us: 100.0,
    longer: [1.0; 4],
    sleeps: 0.0,
};
const HOT: Truth = Truth { reads: 0.5, conflicts: 0.5, cost_us: [200.0, 300.0, 150.0], ..CALM };

struct World {
    state: State,
    learned: Learned,
    model: Model,
    settings: Settings,
    protocol: Protocol,
    reading: Reading,
    noise: f64,
    random: u64,
    asked: Vec<(u64, Protocol, Status)>,
}

fn at(p: Protocol) -> usize {
    p.index()
}

/// A tree with one split on a feature.
pub(super) fn split(feature: &str, value: f64, below: f64, above: f64) -> String {
    format!(
        r#"[{{"feature": "{feature}", "at": {value}, "below": 1, "above": 2}}, {{"log_cost": {below}}}, {{"log_cost": {above}}}]"#
    )
}

pub(super) fn model(partcc: &str, occ: &str, two: &str) -> Model {
    Model::parse(&format!(r#"{{"format": 1, "trees": {{"partcc": {partcc}, "occ": {occ}, "2pl": {two}}}}}"#)).unwrap()
}

/// The same, where `mocc` has the costs of `occ`.
fn model_with_mocc(partcc: &str, occ: &str, two: &str) -> Model {
    let trees = format!(r#"{{"partcc": {partcc}, "occ": {occ}, "2pl": {two}}}"#);
    Model::parse(&format!(r#"{{"format": 1, "like": {{"mocc": "occ"}}, "trees": {trees}}}"#)).unwrap()
}

/// It calls `occ` the best by far.
fn for_occ() -> Model {
    let s = |c| split("records", 1.0, 0.0, c);
    model_with_mocc(&s(0.9), &s(-0.3), &s(0.1))
}

/// A load that loses under `occ` what `lost` says, and nothing where rows are locked.
fn losing(w: &World, t: Truth, lost_under_mocc: f64) -> Truth {
    let lost = match w.protocol {
        Protocol::Occ => t.lost,
        Protocol::Mocc => lost_under_mocc,
        _ => 0.0,
    };
    Truth { lost, ..t }
}

/// A model that is right about `CALM` and `HOT`.
fn right() -> Model {
    let s = |below, above| split("conflict_rate", 0.2, below, above);
    model(&s(0.1, 0.0), &s(-0.16, 0.4), &s(0.06, -0.3))
}

impl World {
    fn new(model: Model, noise: f64) -> World {
        World {
            state: State::default(),
            learned: Learned::default(),
            model,
            settings: Settings::default(),
            protocol: Protocol::Occ,
            reading: Reading { at_us: 1, ..Reading::default() },
            noise,
            random: 12345,
            asked: Vec::new(),
        }
    }

    /// Approximately log-normal noise.
    fn noisy(&mut self, x: f64) -> f64 {
        let mut sum = 0.0;
        for _ in 0..6 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            sum += (self.random >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        }
        x * (sum * 2f64.sqrt() * self.noise).exp()
    }

    /// An interval under a load. The switch that it requests is complete at its end.
    fn interval(&mut self, t: &Truth) -> Decision {
        self.pass(t);
        let d =
            self.state.observe(1, (self.protocol, &[]), self.reading, (&self.model, &mut self.learned, &self.settings));
        self.follow(&d);
        d
    }

    fn follow(&mut self, d: &Decision) {
        if let Some(p) = d.ask {
            self.asked.push((self.reading.at_us / SECOND, p, d.status));
            self.protocol = p;
        }
    }

    /// Counts an interval.
    fn pass(&mut self, t: &Truth) {
        let cost_us = self.noisy(t.cost_us(self.protocol));
        // 8 clients, always busy. Processor and elapsed time have the same noise.
        let each_us = cost_us * 2.0 * t.longer[at(self.protocol)];
        let commits = (8.0 * SECOND as f64 / each_us).max(1.0);
        let txns = (commits / 16.0) as u64;
        let n = txns as f64;
        let reads = self.noisy(t.records * t.reads);
        let conflicts = self.noisy(t.conflicts).min(1.0);
        let failures = t.lost / (1.0 - t.lost);
        let s = &mut self.reading.sample;
        *s = Sample {
            txns: s.txns + txns,
            reads: s.reads + (n * reads) as u64,
            writes: s.writes + (n * t.records * (1.0 - t.reads)) as u64,
            multi: s.multi + (n * t.multi) as u64,
            partitions: s.partitions + txns,
            weak_writers: s.weak_writers + (n * t.weak) as u64,
            lost: s.lost + (n * failures) as u64,
            duration_ns: s.duration_ns + (n * each_us * 1000.0 * (1.0 - t.lost)) as u64,
            lost_ns: s.lost_ns + (n * each_us * 1000.0 * t.lost) as u64,
            cpu_ns: s.cpu_ns + (n * cost_us / 2.0 * 1000.0) as u64,
            looks: s.looks + txns * 10,
            conflicts: s.conflicts + (n * 10.0 * conflicts) as u64,
            ordered: s.ordered + txns,
            ..*s
        };
        self.reading.aborts += (commits * failures * t.fault) as u64;
        self.reading.waits += (commits * t.sleeps) as u64;
        self.reading.commits += commits as u64;
        self.reading.busy_ns += (commits * each_us * 1000.0) as u64;
        self.reading.at_us += SECOND;
    }

    fn run(&mut self, t: &Truth, intervals: u32) -> u32 {
        (0..intervals).filter(|_| self.interval(t).ask.is_some()).count() as u32
    }
}

#[test]
fn a_change_of_the_load_is_followed_within_three_intervals() {
    for noise in [0.0, 0.05, 0.1] {
        let mut w = World::new(right(), noise);
        w.run(&CALM, 30);
        assert_eq!(w.protocol, Protocol::Occ, "it fits: {:?}", w.asked);
        for (load, best) in [(HOT, Protocol::TwoPhase), (CALM, Protocol::Occ), (HOT, Protocol::TwoPhase)] {
            w.run(&load, 3);
            assert_eq!(w.protocol, best, "noise {noise}: {:?}", w.asked);
            w.run(&load, 17);
            assert_eq!(w.protocol, best, "noise {noise}: {:?}", w.asked);
        }
        assert_eq!(w.asked.len(), 3, "noise {noise}: {:?}", w.asked);
    }
}

#[test]
fn noise_alone_does_not_make_it_flap() {
    // The load lies on the edge of the model's leaves, and the protocols are alike.
    let edge = Truth { conflicts: 0.2, cost_us: [140.0, 100.0, 103.0], ..CALM };
    // Sessions sleep, and 2pl may be plainly slower.
    for (sleeps, longer) in [(0.0, 1.0), (1.0, 1.0), (1.0, 4.0)] {
        for (noise, most) in [(0.05, 4), (0.1, 6), (0.2, 12), (0.4, 24)] {
            let mut w = World::new(right(), noise);
            w.run(&Truth { sleeps, longer: [1.0, 1.0, longer, 1.0], ..edge }, 1000);
            let n = w.asked.len();
            assert!(n <= most, "noise {noise}, {sleeps} sleeps: {n} switches in 1000 intervals: {:?}", w.asked);
        }
    }
}

#[test]
fn a_model_made_wrong_on_purpose_is_overruled() {
    let s = |below, above| split("conflict_rate", 0.2, below, above);
    // The model calls the worst protocol the best one.
    let wrong = model(&s(-0.6, 0.0), &s(0.5, -0.5), &s(0.4, 0.5));
    for (load, best, noise) in
        [(CALM, Protocol::Occ, 0.05), (CALM, Protocol::Occ, 0.15), (HOT, Protocol::TwoPhase, 0.05)]
    {
        let mut w = World::new(wrong.clone(), noise);
        w.protocol = best;
        let mut good = 0;
        for _ in 0..1800 {
            w.interval(&load);
            good += (w.protocol == best) as u32;
        }
        assert!(!w.asked.is_empty(), "the model was not asked");
        assert!(good > 1700, "{good} of 1800 intervals under the best protocol, noise {noise}: {:?}", w.asked);
        // Lessons last.
        let tries = |from: u64, to: u64| {
            w.asked.iter().filter(|a| (from..to).contains(&a.0) && a.2 == Status::Switches).count()
        };
        assert!(tries(600, 1800) <= 8, "{:?}", w.asked);
    }
}

#[test]
fn what_verification_takes_back_is_taken_back_soon() {
    let wrong =
        model(&split("records", 1.0, 0.0, -0.8), &split("records", 1.0, 0.0, 0.8), &split("records", 1.0, 0.0, 0.8));
    let mut w = World::new(wrong, 0.05);
    w.run(&CALM, 3);
    assert_eq!(w.protocol, Protocol::PartCc);
    w.run(&CALM, 5);
    assert_eq!(w.protocol, Protocol::Occ, "{:?}", w.asked);
    assert_eq!(w.asked.last().unwrap().2, Status::TakesBack);
    assert_eq!(w.run(&CALM, 60), 0, "not again at once: {:?}", w.asked);
}

#[test]
fn a_switch_that_never_came_teaches_nothing() {
    let mut w = World::new(right(), 0.02);
    w.run(&CALM, 10);
    let mut refused = 0;
    for _ in 0..20 {
        w.pass(&HOT);
        let d = w.state.observe(1, (w.protocol, &[]), w.reading, (&w.model, &mut w.learned, &w.settings));
        assert!(!matches!(d.status, Status::Verifies | Status::Accepts | Status::TakesBack), "{:?}", d.status);
        refused += d.ask.is_some() as u32;
    }
    assert!(refused > 1, "it was asked for {refused} times");
    assert!(w.learned.all().is_empty(), "{:?}", w.learned.all());
    // When it is allowed, it is switched to and verified, and it is no reversal.
    w.run(&HOT, 3);
    assert_eq!(w.protocol, Protocol::TwoPhase, "{:?}", w.asked);
    w.run(&HOT, 17);
    assert_eq!(w.learned.all().len(), 1, "{:?}", w.learned.all());
    w.run(&CALM, 3);
    assert_eq!(w.protocol, Protocol::Occ, "{:?}", w.asked);
}

#[test]
fn longer_transactions_are_not_held_against_a_switch() {
    // It is a good one. While it is verified, transactions become longer and dearer than before.
    let hot = Truth { cost_us: [400.0, 180.0, 150.0], ..HOT };
    let long = Truth { records: 17.0, cost_us: hot.cost_us.map(|c| 1.7 * c), ..hot };
    let mut w = World::new(right(), 0.05);
    w.run(&CALM, 20);
    w.run(&hot, 3);
    assert_eq!(w.protocol, Protocol::TwoPhase);
    w.run(&long, 20);
    assert_eq!((w.protocol, w.asked.len()), (Protocol::TwoPhase, 1), "{:?}", w.asked);
    // Shorter transactions do not hide that it is a bad one.
    let short = Truth { records: 6.0, cost_us: [90.0, 90.0, 130.0], ..HOT };
    let mut w = World::new(right(), 0.05);
    w.run(&CALM, 20);
    w.run(&hot, 3);
    w.run(&short, 7);
    assert_eq!(w.asked.last().map(|a| a.2), Some(Status::TakesBack), "{:?}", w.asked);
}

#[test]
fn a_partition_that_comes_to_a_halt_is_rescued() {
    let wrong =
        model(&split("records", 1.0, 0.0, 0.5), &split("records", 1.0, 0.0, 0.3), &split("records", 1.0, 0.0, -0.8));
    // Transactions wait for each other: a few commits a second, or a fifth of those before, and
    // sleeps.
    for (share, wanted) in [(0, 1), (5, 3)] {
        let mut w = World::new(wrong.clone(), 0.05);
        let mut before = 0;
        while w.protocol != Protocol::TwoPhase {
            assert!(w.asked.is_empty());
            let start = w.reading.commits;
            w.run(&CALM, 1);
            before = before.max(w.reading.commits - start);
        }
        let rescued = (1..=6).find_map(|n| {
            let commits = if share == 0 { 3 } else { before / share };
            w.reading.at_us += SECOND;
            w.reading.commits += commits;
            w.reading.waits += 40 * commits;
            let d = w.state.observe(1, (w.protocol, &[]), w.reading, (&w.model, &mut w.learned, &w.settings));
            d.ask.map(|p| (n, p, d.status))
        });
        // The first interval is the one in which the switch came.
        assert_eq!(rescued, Some((wanted, Protocol::Occ, Status::TakesBack)), "a {share}th");
        w.protocol = Protocol::Occ;
        assert_eq!(w.run(&CALM, 60), 0);
    }
}

#[test]
fn rules_keep_weak_writers_out_of_partcc() {
    let m =
        model(&split("records", 1.0, 0.0, -0.8), &split("records", 1.0, 0.0, 0.2), &split("records", 1.0, 0.0, 0.2));
    let truth = Truth { cost_us: [50.0, 100.0, 90.0], ..CALM };
    let weak = Truth { weak: 0.3, ..truth };
    let mut w = World::new(m, 0.05);
    w.run(&weak, 30);
    assert_eq!((w.protocol, w.asked.len()), (Protocol::Occ, 0));
    w.run(&truth, 10);
    assert_eq!(w.protocol, Protocol::PartCc, "{:?}", w.asked);
    w.run(&weak, 3);
    assert_ne!(w.protocol, Protocol::PartCc, "they came later: {:?}", w.asked);
    w.settings.candidates = ProtocolSet::of(Protocol::PartCc);
    let before = w.asked.len();
    w.run(&weak, 10);
    assert_eq!(w.asked.len(), before, "nothing is allowed: nothing changes");
}

#[test]
fn a_protocol_that_the_model_does_not_know_is_left_and_never_chosen() {
    let leaf = |cost: f64| format!(r#"[{{"log_cost": {cost}}}]"#);
    let text = format!(r#"{{"format": 1, "trees": {{"partcc": {}, "occ": {}}}}}"#, leaf(0.8), leaf(0.0));
    let m = Model::parse(&text).unwrap();
    // It would be the best one by far, and much is lost under the others.
    let lossy = Truth { lost: 0.6, cost_us: [300.0, 200.0, 100.0], ..HOT };
    let mut w = World::new(m, 0.05);
    w.run(&lossy, 100);
    assert!(w.asked.iter().all(|a| a.1 != Protocol::TwoPhase), "{:?}", w.asked);
    // A partition that has it, and is not pinned, gets one that the model knows. No lesson comes of
    // it.
    let mut w = World::new(w.model, 0.05);
    w.protocol = Protocol::TwoPhase;
    w.run(&CALM, 30);
    assert_eq!((w.protocol, w.asked.len()), (Protocol::Occ, 1), "{:?}", w.asked);
    assert!(w.learned.all().is_empty());
    // If it is pinned, it is only watched.
    w.protocol = Protocol::TwoPhase;
    for _ in 0..3 {
        w.pass(&CALM);
        let d = w.state.watch(1, (w.protocol, &[]), w.reading, (&w.model, &w.learned, &w.settings));
        assert_eq!(d.ask, None);
        assert!(!d.known.has(Protocol::TwoPhase) && !d.allowed.has(Protocol::TwoPhase));
    }
}

#[test]
fn work_that_is_lost_makes_it_try_what_the_model_does_not_want() {
    // The model calls occ the best. In truth half of the work is lost, and 2pl is twice as good.
    let s = |c| split("records", 1.0, 0.0, c);
    let m = model(&s(0.4), &s(-0.3), &s(0.1));
    let lossy = Truth { lost: 0.6, cost_us: [300.0, 200.0, 100.0], ..HOT };
    let mut w = World::new(m, 0.05);
    for _ in 0..300 {
        let lost = if w.protocol == Protocol::Occ { 0.6 } else { 0.0 };
        w.interval(&Truth { lost, ..lossy });
    }
    assert_eq!(w.protocol, Protocol::TwoPhase, "{:?}", w.asked);
    assert_eq!(w.asked[0].2, Status::Probes);
    assert_eq!(w.asked.len(), 1, "it stays: {:?}", w.asked);
}

#[test]
fn it_is_told_when_something_will_be_tried_and_when_not() {
    let s = |c| split("records", 1.0, 0.0, c);
    let mut w = World::new(model(&s(0.4), &s(-0.3), &s(0.1)), 0.0);
    let lossy = Truth { lost: 0.4, cost_us: [300.0, 200.0, 100.0], ..HOT };
    w.interval(&lossy);
    let before: Vec<_> =
        (0..2).map(|_| w.interval(&lossy)).map(|d| (d.status, d.lossy, d.no_probe_before_us)).collect();
    assert_eq!(before, [(Status::Keeps, (1, 3), 0), (Status::Keeps, (2, 3), 0)]);
    let d = w.interval(&lossy);
    let again_at = w.reading.at_us + w.settings.forget_us / 20;
    assert_eq!((d.status, d.lossy, d.no_probe_before_us), (Status::Probes, (3, 3), again_at));
    let calm = Truth { lost: 0.0, ..lossy };
    w.interval(&calm);
    let d = w.interval(&calm);
    assert_eq!((d.status, d.no_probe_before_us), (Status::Verifies, again_at), "also while it is tried");
    assert_eq!(w.run(&calm, 40), 0);
    assert_eq!(w.interval(&calm).no_probe_before_us, 0, "the time is over");
    // Where most is lost, one interval less suffices.
    let mut w = World::new(model(&s(0.4), &s(-0.3), &s(0.1)), 0.0);
    let most = Truth { lost: 0.6, ..lossy };
    w.interval(&most);
    let told: Vec<_> = (0..2).map(|_| w.interval(&most)).map(|d| (d.status, d.lossy)).collect();
    assert_eq!(told, [(Status::Keeps, (1, 2)), (Status::Probes, (2, 2))]);
}

#[test]
fn a_model_that_wavers_does_not_put_off_a_trial() {
    // In turns, the model calls 2pl and occ the better one.
    let s = |below, above| split("read_share", 0.7, below, above);
    let lossy = Truth { lost: 0.4, heated_us: 110.0, cost_us: [300.0, 200.0, 150.0], ..HOT };
    for first in [0, 1] {
        let mut w = World::new(model_with_mocc(&s(0.9, 0.9), &s(0.3, -0.3), &s(-0.3, 0.1)), 0.02);
        for n in first..20 {
            let t = losing(&w, Truth { reads: if n % 2 == 0 { 0.5 } else { 0.95 }, ..lossy }, 0.02);
            w.interval(&t);
        }
        assert_eq!(w.asked.first(), Some(&(4, Protocol::Mocc, Status::Probes)), "{:?}", w.asked);
    }
}

/// Much is lost under `occ`. Where rows are locked, transactions take four times as long.
const SLOW: Truth = Truth {
    lost: 0.8,
    cost_us: [300.0, 200.0, 200.0],
    heated_us: 200.0,
    longer: [1.0, 1.0, 4.0, 4.0],
    sleeps: 3.0,
    ..HOT
};

/// What was asked for within so many intervals, where attempts fail under `mocc` too.
fn asked_if_slow(t: Truth, noise: f64, lost_under_mocc: f64, intervals: u32) -> Vec<(u64, Protocol, Status)> {
    let mut w = World::new(for_occ(), noise);
    for _ in 0..intervals {
        let t = losing(&w, t, lost_under_mocc);
        w.interval(&t);
    }
    w.asked
}

#[test]
fn what_is_plainly_slower_is_taken_back_at_once() {
    for noise in [0.0, 0.05, 0.1, 0.2] {
        let asked = asked_if_slow(SLOW, noise, 0.3, 25);
        // Protocols that lock more are not tried then.
        let wanted = [(3, Protocol::Mocc, Status::Probes), (5, Protocol::Occ, Status::TakesBack)];
        assert_eq!(asked, wanted, "noise {noise}");
    }
    let later = asked_if_slow(SLOW, 0.05, 0.3, 60);
    assert!(later.len() > 2 && later[2].0 > 30 && later[2].1 == Protocol::TwoPhase, "they are later: {later:?}");
    // If transactions would be faster but for their failures, locks are not to blame.
    let fails = asked_if_slow(SLOW, 0.05, 0.8, 25);
    assert_eq!(fails.iter().map(|a| a.1).collect::<Vec<_>>()[..3], [Protocol::Mocc, Protocol::Occ, Protocol::TwoPhase]);
    assert!(fails[1].0 == 5 && fails[2].0 == 7, "at once, too: {fails:?}");
}

/// What was asked for where `mocc` takes a third of the processor time and three times as long, and
/// this share of the processors is idle under it.
fn asked_beside_idle(idle: f64) -> Vec<Protocol> {
    let mut w = World::new(for_occ(), 0.02);
    for _ in 0..25 {
        let t = losing(&w, Truth { heated_us: 70.0, longer: [1.0, 1.0, 8.0, 8.0], ..SLOW }, 0.02);
        w.pass(&t);
        let busy = if w.protocol == Protocol::Mocc { 100.0 * (1.0 - idle) } else { 100.0 };
        w.reading.ticks = (w.reading.ticks.0 + busy as u64, w.reading.ticks.1 + 100);
        let d = w.state.observe(1, (w.protocol, &[]), w.reading, (&w.model, &mut w.learned, &w.settings));
        w.follow(&d);
    }
    w.asked.iter().map(|a| a.1).collect()
}

#[test]
fn processors_that_a_slow_trial_leaves_idle_do_not_speak_for_it() {
    assert_eq!(asked_beside_idle(0.5), [Protocol::Mocc, Protocol::Occ]);
    assert_eq!(asked_beside_idle(0.1), [Protocol::Mocc], "they are scarce");
}

#[test]
fn where_most_have_slept_more_locks_are_not_tried() {
    for (asleep, third) in [(0.7, None), (0.2, Some(Protocol::TwoPhase))] {
        let mut w = World::new(for_occ(), 0.05);
        for _ in 0..25 {
            // Attempts fail under mocc, too, so their number tells nothing.
            let t = losing(&w, SLOW, 0.8);
            w.pass(&t);
            if w.protocol == Protocol::Mocc {
                w.reading.wait_us += (8.0 * asleep * SECOND as f64) as u64;
            }
            let d = w.state.observe(1, (w.protocol, &[]), w.reading, (&w.model, &mut w.learned, &w.settings));
            w.follow(&d);
        }
        assert_eq!(w.asked.get(2).map(|a| a.1), third, "{asleep} of the sessions: {:?}", w.asked);
    }
}

#[test]
fn where_transactions_have_waited_the_model_may_not_choose_more_locks() {
    // Where little conflicts, the model calls 2pl the better one.
    let s = |below, above| split("conflict_rate", 0.2, below, above);
    for (longer, at) in [([1.0, 1.0, 4.0, 4.0], 30..45), ([1.0, 1.0, 4.0, 1.0], 0..15)] {
        let mut w = World::new(model_with_mocc(&s(0.9, 0.9), &s(0.4, -0.3), &s(-0.1, 0.1)), 0.02);
        let slow = Truth { longer, cost_us: [300.0, 200.0, 400.0], heated_us: 300.0, ..SLOW };
        for _ in 0..60 {
            let back = w.asked.len() > 1;
            let t = if back { Truth { conflicts: 0.02, lost: 0.04, ..slow } } else { losing(&w, slow, 0.3) };
            w.interval(&t);
        }
        let two = w.asked.iter().find(|a| a.1 == Protocol::TwoPhase).expect("it is chosen");
        assert!(two.2 == Status::Switches && at.contains(&two.0), "{:?}", w.asked);
    }
    // Another load tells nothing about it.
    let mut w = World::new(model_with_mocc(&s(0.9, 0.9), &s(0.4, -0.3), &s(-0.1, 0.1)), 0.02);
    for _ in 0..12 {
        let back = w.asked.len() > 1;
        let t = if back { Truth { conflicts: 0.02, reads: 0.0, ..CALM } } else { losing(&w, SLOW, 0.3) };
        w.interval(&t);
    }
    assert_eq!(w.asked.get(2).map(|a| a.1), Some(Protocol::TwoPhase), "{:?}", w.asked);
}

#[test]
fn whoever_has_announced_a_trial_makes_it_with_those_who_join() {
    // The first one loses most in one interval, and less in the next one. The second one conflicts.
    let mut t = Table::new(2, &for_occ(), 0.0);
    t.worlds[0].noise = 0.001;
    for n in 0..3 {
        let lossy = Truth { lost: [0.0, 0.6, 0.4][n], ..HOT };
        t.interval(|w| if w.noise == 0.001 { lossy } else { HOT });
    }
    let asked: Vec<_> = t.worlds.iter().map(|w| w.asked.clone()).collect();
    assert!(asked.iter().all(|a| a.len() == 1 && a[0].1 == Protocol::Mocc), "{asked:?}");
}

#[test]
fn what_only_seems_to_be_slower_is_measured_first() {
    // Half of the sessions may have gone: none sleeps.
    let asked = asked_if_slow(Truth { sleeps: 0.0, ..SLOW }, 0.0, 0.0, 25);
    assert!(asked[1].2 == Status::TakesBack && asked[1].0 > 5, "{asked:?}");
    // A rate that is lower by less may be noise.
    let asked = asked_if_slow(Truth { longer: [1.0, 1.0, 1.9, 1.9], ..SLOW }, 0.0, 0.3, 25);
    assert!(asked[1].2 == Status::TakesBack && asked[1].0 > 5, "{asked:?}");
    // The load comes back after a pause, with sessions that begin slowly.
    let mut w = World::new(for_occ(), 0.0);
    for n in 0..7 {
        if n == 4 {
            w.reading.at_us += SECOND;
            w.state.observe(1, (w.protocol, &[]), w.reading, (&w.model, &mut w.learned, &w.settings));
        }
        let longer = if (5..7).contains(&n) { 4.0 } else { 1.0 };
        let t = losing(&w, Truth { longer: [longer; 4], ..SLOW }, 0.0);
        w.interval(&t);
    }
    assert_eq!(w.asked.len(), 1, "{:?}", w.asked);
    // Sessions make pauses: those that commit take no longer.
    let mut w = World::new(for_occ(), 0.0);
    for n in 0..12 {
        w.reading.at_us += if n < 3 { 0 } else { 3 * SECOND / 2 };
        let t = losing(&w, Truth { longer: [1.0; 4], ..SLOW }, 0.0);
        w.interval(&t);
    }
    assert_eq!(w.asked.len(), 1, "{:?}", w.asked);
    // It takes less of the processors, which are scarce.
    assert_eq!(asked_beside_idle(0.0), [Protocol::Mocc]);
    // What a user allows is no loss.
    let mut w = World::new(for_occ(), 0.0);
    w.settings.max_loss = 4.0;
    for _ in 0..25 {
        let t = losing(&w, SLOW, 0.02);
        w.interval(&t);
    }
    assert!(w.asked.iter().all(|a| a.2 != Status::TakesBack), "{:?}", w.asked);
}

#[test]
fn what_is_slower_while_it_is_switched_counts() {
    let mut w = World::new(for_occ(), 0.02);
    while w.asked.is_empty() {
        w.run(&SLOW, 1);
    }
    // It is taken back before the switch is complete.
    for wanted in [Status::Switching, Status::TakesBack] {
        w.pass(&SLOW);
        let d = w.state.switching(1, w.reading, &mut w.learned, &w.settings);
        assert_eq!(d.status, wanted);
        w.follow(&d);
    }
    let asked: Vec<_> = w.asked.iter().map(|a| (a.1, a.2)).collect();
    assert_eq!(asked, [(Protocol::Mocc, Status::Probes), (Protocol::Occ, Status::TakesBack)], "{:?}", w.asked);
    assert_eq!(w.learned.all().len(), 1);
    // The old protocol has never been away, but what has run since is no load of it.
    w.pass(&SLOW);
    assert_eq!(w.state.switching(1, w.reading, &mut w.learned, &w.settings).status, Status::Switching);
    let found = [w.interval(&SLOW), w.interval(&SLOW)].map(|d| (d.status, d.lossy.0));
    assert_eq!(found, [(Status::New, 0), (Status::Probes, 2)]);
}

#[test]
fn what_was_known_before_a_trial_counts_after_it() {
    // mocc fails. 2pl is tried after one interval, which is a bad one. It is worse than the others.
    let mut w = World::new(for_occ(), 0.0);
    for n in 1..30 {
        let occ_us = if n == 7 { 400.0 } else { 200.0 };
        let t = Truth { cost_us: [300.0, occ_us, 280.0], longer: [1.0, 1.0, 1.0, 4.0], ..SLOW };
        let t = losing(&w, t, 0.8);
        w.interval(&t);
    }
    let asked: Vec<_> = w.asked.iter().map(|a| (a.0, a.1)).collect();
    assert_eq!(asked[..3], [(3, Protocol::Mocc), (5, Protocol::Occ), (7, Protocol::TwoPhase)]);
    assert_eq!(asked.get(3).map(|a| a.1), Some(Protocol::Occ), "{:?}", w.asked);
}

#[test]
fn where_attempts_fail_the_protocol_that_is_like_the_one_in_use_is_tried_first() {
    let lossy = Truth { lost: 0.5, cost_us: [300.0, 200.0, 150.0], heated_us: 110.0, ..HOT };
    // Also where transactions have one record, for which 2pl is tried otherwise.
    for (noise, records) in [(0.0, 10.0), (0.05, 10.0), (0.1, 10.0), (0.05, 1.0)] {
        let lossy = Truth { records, ..lossy };
        let mut w = World::new(for_occ(), noise);
        for _ in 0..300 {
            let t = losing(&w, lossy, 0.02);
            w.interval(&t);
        }
        let asked: Vec<_> = w.asked.iter().map(|a| (a.1, a.2)).collect();
        assert_eq!(asked, [(Protocol::Mocc, Status::Probes)], "it stays: {:?}", w.asked);
        assert!(w.asked[0].0 <= 5, "soon: {:?}", w.asked);
        assert_eq!(w.learned.all().len(), 1);
        // If somebody else has put the old one there, what was learned is enough.
        w.protocol = Protocol::Occ;
        w.asked.clear();
        for _ in 0..20 {
            let t = losing(&w, lossy, 0.02);
            w.interval(&t);
        }
        let asked: Vec<_> = w.asked.iter().map(|a| (a.1, a.2)).collect();
        assert_eq!(asked, [(Protocol::Mocc, Status::Switches)], "noise {noise}: {:?}", w.asked);
    }
}

#[test]
fn if_it_is_no_better_the_next_one_is_tried_at_once_and_neither_again_soon() {
    let lossy = Truth { lost: 0.5, cost_us: [300.0, 200.0, 120.0], heated_us: 260.0, ..HOT };
    let mut w = World::new(for_occ(), 0.05);
    let mut first_two = 0;
    for n in 0..300 {
        let t = losing(&w, lossy, 0.4);
        w.interval(&t);
        first_two = if w.protocol == Protocol::TwoPhase && first_two == 0 { n } else { first_two };
    }
    assert_eq!(w.asked[2].0 - w.asked[1].0, 2, "what was lost before counts: {:?}", w.asked);
    let asked: Vec<_> = w.asked.iter().map(|a| (a.1, a.2)).collect();
    let (probes, back) = (Status::Probes, Status::TakesBack);
    assert_eq!(asked, [(Protocol::Mocc, probes), (Protocol::Occ, back), (Protocol::TwoPhase, probes)]);
    assert!(first_two <= 15, "{:?}", w.asked);
    // Where all lose, it tries each, and then stays where it was.
    let all_bad = Truth { cost_us: [300.0, 200.0, 280.0], ..lossy };
    let mut w = World::new(for_occ(), 0.1);
    for _ in 0..1000 {
        let t = losing(&w, all_bad, 0.4);
        w.interval(&t);
    }
    assert_eq!(w.protocol, Protocol::Occ, "{:?}", w.asked);
    assert!(w.asked.len() <= 8, "{:?}", w.asked);
}

#[test]
fn the_model_alone_never_chooses_between_two_that_it_cannot_tell_apart() {
    // Where nothing fails, mocc is not tried, and stays where it is.
    for (noise, protocol) in
        [(0.05, Protocol::Occ), (0.3, Protocol::Occ), (0.05, Protocol::Mocc), (0.3, Protocol::Mocc)]
    {
        let mut w = World::new(for_occ(), noise);
        w.protocol = protocol;
        for _ in 0..500 {
            let d = w.interval(&CALM);
            assert!(d.load.txns == 0 || Protocol::ALL[d.best] == protocol && d.gain == 0.0, "{d:?}");
        }
        assert_eq!(w.asked, []);
    }
    // It is left like the other one if the model prefers a third.
    let mut w = World::new(
        model_with_mocc(
            &split("records", 1.0, 0.0, 0.9),
            &split("records", 1.0, 0.0, 0.4),
            &split("records", 1.0, 0.0, 0.0),
        ),
        0.05,
    );
    w.protocol = Protocol::Mocc;
    w.run(&Truth { heated_us: 300.0, ..HOT }, 20);
    assert_eq!((w.protocol, w.asked.len()), (Protocol::TwoPhase, 1), "{:?}", w.asked);
    // What a switch between two others has taught is no reason to choose it.
    let from_two = Truth { cost_us: [300.0, 100.0, 150.0], ..HOT };
    let mut w = World::new(
        model_with_mocc(
            &split("records", 1.0, 0.0, 0.9),
            &split("records", 1.0, 0.0, 0.4),
            &split("records", 1.0, 0.0, 0.0),
        ),
        0.05,
    );
    w.run(&from_two, 300);
    assert!(w.asked.iter().all(|a| a.1 != Protocol::Mocc), "{:?}", w.asked);
    // No candidate, no trial.
    let mut w = World::new(for_occ(), 0.05);
    w.settings.candidates = ProtocolSet::of(Protocol::Occ);
    w.run(&Truth { lost: 0.5, ..HOT }, 50);
    assert_eq!(w.asked, []);
}

#[test]
fn what_others_have_taught_is_no_reason_to_choose_it() {
    // The model calls 2pl much worse than occ. It is a little better, which a trial shows.
    let s = |c| split("records", 1.0, 0.0, c);
    let mut w = World::new(model_with_mocc(&s(0.9), &s(0.0), &s(0.4)), 0.02);
    let lossy = Truth { lost: 0.5, cost_us: [300.0, 220.0, 200.0], heated_us: 300.0, ..HOT };
    w.settings.candidates = ProtocolSet::of(Protocol::Occ).union(ProtocolSet::of(Protocol::TwoPhase));
    for n in 0..100 {
        if n == 30 {
            assert_eq!(w.protocol, Protocol::TwoPhase, "{:?}", w.asked);
            w.settings.candidates = ProtocolSet::ALL;
        }
        let t = losing(&w, lossy, 0.5);
        w.interval(&t);
    }
    assert_eq!((w.protocol, w.asked.len()), (Protocol::TwoPhase, 1), "{:?}", w.asked);
}

#[test]
fn a_trial_that_taught_nothing_is_not_made_again_at_once() {
    // Each switch is refused: there is nothing to learn.
    let mut w = World::new(for_occ(), 0.02);
    w.settings.candidates = ProtocolSet::of(Protocol::Occ).union(ProtocolSet::of(Protocol::Mocc));
    let mut refused = 0;
    for _ in 0..100 {
        w.pass(&Truth { lost: 0.5, ..HOT });
        let d = w.state.observe(1, (w.protocol, &[]), w.reading, (&w.model, &mut w.learned, &w.settings));
        refused += d.ask.is_some() as u32;
        assert!(d.ask.is_none() || d.no_probe_before_us > w.reading.at_us);
    }
    assert!((2..=4).contains(&refused), "once in 30 s: {refused}");
}

#[test]
fn what_loses_together_tries_it_together() {
    let lossy = Truth { lost: 0.5, cost_us: [300.0, 200.0, 150.0], heated_us: 110.0, ..HOT };
    let mut t = Table::new(4, &for_occ(), 0.05);
    for _ in 0..40 {
        t.interval(|w| losing(w, lossy, 0.02));
    }
    let asked: Vec<_> = t.worlds.iter().map(|w| w.asked.clone()).collect();
    assert!(t.worlds.iter().all(|w| w.protocol == Protocol::Mocc && w.asked.len() == 1), "{asked:?}");
    assert!(asked.iter().all(|a| a[0].0 == asked[0][0].0), "in one interval: {asked:?}");
}

/// Two partitions that are used together: the first one loses work under `occ`, and for the second
/// one the model may call `2pl` better. When each asked for its first protocol, and for which.
fn one_loses_beside(other: Truth) -> [(u64, Protocol); 2] {
    let s = |below, above| split("records", 1.0, below, above);
    let m = model_with_mocc(&s(0.9, 0.9), &s(0.3, -0.3), &s(-0.3, 0.1));
    let lossy = Truth { lost: 0.5, cost_us: [300.0, 200.0, 150.0], heated_us: 110.0, ..HOT };
    let mut t = Table::new(2, &m, 0.05);
    t.worlds[0].noise = 0.001;
    for _ in 0..30 {
        t.interval(|w| if w.noise == 0.001 { losing(w, lossy, 0.02) } else { other });
    }
    [0, 1].map(|i| t.worlds[i].asked.first().map(|a| (a.0, a.1)).expect("it asked"))
}

#[test]
fn choices_wait_while_another_partition_is_tried() {
    let [tried, chosen] = one_loses_beside(Truth { records: 0.5, ..CALM });
    assert!(tried.1 == Protocol::Mocc && tried.0 <= 5, "at once: {tried:?}");
    assert!(chosen.1 == Protocol::TwoPhase && chosen.0 >= tried.0 + 3, "{chosen:?} after {tried:?}");
}

#[test]
fn no_choice_waits_for_ever() {
    // In turns, one of the first two loses for an interval, which is too short for a trial.
    let s = |below, above| split("records", 1.0, below, above);
    let m = model_with_mocc(&s(0.9, 0.9), &s(0.3, -0.3), &s(-0.3, 0.1));
    let mut t = Table::new(3, &m, 0.02);
    for n in 0..30 {
        for (i, w) in t.worlds.iter_mut().enumerate() {
            let lost = if (n + i) % 2 == 0 { 0.5 } else { 0.0 };
            w.pass(&if i == 2 { Truth { records: 0.5, ..CALM } } else { Truth { lost, ..HOT } });
        }
        t.judge();
    }
    assert!(t.worlds[..2].iter().all(|w| w.asked.is_empty()), "no trial: {:?}", t.worlds[0].asked);
    let asked = &t.worlds[2].asked;
    assert!(asked.first().is_some_and(|a| a.1 == Protocol::TwoPhase && a.0 > 4 && a.0 < 20), "{asked:?}");
}

#[test]
fn who_conflicts_joins_before_anything_is_lost_there() {
    let [tried, joined] = one_loses_beside(Truth { conflicts: 0.5, ..CALM });
    assert_eq!((tried, tried.1), (joined, Protocol::Mocc));
    let [tried, chosen] = one_loses_beside(Truth { records: 0.5, conflicts: 0.5, ..CALM });
    assert_eq!((tried, tried.1), (chosen, Protocol::Mocc), "although the model would choose another one");
}

#[test]
fn what_was_left_of_late_is_not_tried_again() {
    // Loads differ enough under the two that the lesson does not count.
    let lossy = Truth { lost: 0.5, cost_us: [300.0, 200.0, 250.0], heated_us: 110.0, conflicts: 0.9, ..HOT };
    let mut w = World::new(for_occ(), 0.02);
    for _ in 0..25 {
        let conflicts = if w.protocol == Protocol::Occ { 0.9 } else { 0.02 };
        let t = losing(&w, Truth { conflicts, ..lossy }, 0.3);
        w.interval(&t);
    }
    let asked: Vec<_> = w.asked.iter().map(|a| a.1).collect();
    assert!(asked[0] == Protocol::Mocc && !asked.contains(&Protocol::Occ), "{:?}", w.asked);
}

#[test]
fn who_is_to_blame_is_tried_and_nobody_else() {
    // The model has never seen such a load, and forbids both others.
    let s = |c| split("records", 1.0, c, c);
    let m = model(&s(1.0), &s(0.0), &s(1.0));
    let one = Truth { lost: 0.2, records: 1.0, cost_us: [300.0, 130.0, 100.0], ..HOT };
    let run = |t: Truth| {
        let mut w = World::new(m.clone(), 0.05);
        for _ in 0..100 {
            let lost = if w.protocol == Protocol::Occ { t.lost } else { 0.0 };
            w.interval(&Truth { lost, ..t });
        }
        w
    };
    let w = run(one);
    assert_eq!((w.protocol, w.asked.len(), w.asked[0].2), (Protocol::TwoPhase, 1, Status::Probes), "{:?}", w.asked);
    assert!(w.asked[0].0 <= 5, "soon: {:?}", w.asked);
    assert_eq!(run(Truth { fault: 0.1, ..one }).asked, [], "others made them fail");
    assert_eq!(run(Truth { lost: 0.5, fault: 0.1, ..one }).asked, [], "however many failed");
    assert_eq!(run(Truth { records: 5.0, ..one }).asked, [], "they could wait for each other");
    let bad = run(Truth { cost_us: [300.0, 130.0, 200.0], ..one });
    let tries: Vec<_> = bad.asked.iter().map(|a| a.2).collect();
    assert_eq!(tries, [Status::Probes, Status::TakesBack], "it was worse, and is not tried again: {:?}", bad.asked);
}

#[test]
fn a_probe_is_judged_by_what_it_costs_and_not_by_the_model_that_was_against_it() {
    // The model forbids 2pl, and even more once it runs: waiting sessions meet each other's marks.
    let s = |c| split("records", 1.0, c, c);
    let m = model(&s(1.0), &s(0.0), &split("conflict_rate", 0.5, 0.6, 0.75));
    let load = Truth { records: 1.0, cost_us: [300.0, 130.0, 100.0], ..HOT };
    for random in 1..20 {
        let mut w = World { random: 12345 * random, ..World::new(m.clone(), 0.05) };
        for _ in 0..100 {
            let (lost, conflicts) = if w.protocol == Protocol::Occ { (0.2, 0.44) } else { (0.0, 0.56) };
            w.interval(&Truth { lost, conflicts, ..load });
        }
        assert_eq!((w.protocol, w.asked.len()), (Protocol::TwoPhase, 1), "{:?}", w.asked);
    }
}

/// The partitions of a table, each with its own noise.
struct Table {
    worlds: Vec<World>,
    learned: Learned,
    suspects: Vec<Suspect>,
}

/// A partition that is used together with others of its table.
fn suspect(no: u32) -> Suspect {
    Suspect {
        at: (1, no),
        address: no as u64 + 1,
        partners: vec![1 + (no as u64 + 1) % 2],
        fault: 0.0,
        seeks: false,
        leads: false,
        uses: None,
        clashes: false,
        busy: false,
    }
}

impl Table {
    fn new(n: u64, model: &Model, noise: f64) -> Table {
        let world = |i| World { random: 77 + 1000 * i, ..World::new(model.clone(), noise) };
        Table {
            worlds: (0..n).map(world).collect(),
            learned: Learned::default(),
            suspects: (0..n as u32).map(suspect).collect(),
        }
    }

    /// An interval, with the data that the chooser passes between the partitions.
    fn interval(&mut self, load: impl Fn(&World) -> Truth) -> Vec<Decision> {
        for w in &mut self.worlds {
            let t = load(w);
            w.pass(&t);
        }
        self.judge()
    }

    /// The decisions about the counts.
    fn judge(&mut self) -> Vec<Decision> {
        let peer = |(no, w): (usize, &World)| w.state.peer(no as u32, w.protocol, &w.reading, &w.settings);
        let peers: Vec<_> = self.worlds.iter().enumerate().filter_map(peer).collect();
        let roles = roles(&self.suspects);
        let mut all = Vec::new();
        for (no, w) in self.worlds.iter_mut().enumerate() {
            let others: Vec<_> = peers.iter().filter(|p| p.no != no as u32).copied().collect();
            let role = roles.get(&(1, no as u32)).copied().unwrap_or(Role::Chooses);
            let s = Settings { role, ..w.settings.clone() };
            let d = w.state.observe(1, (w.protocol, &others), w.reading, (&w.model, &mut self.learned, &s));
            w.follow(&d);
            all.push(d);
        }
        for (no, (s, w)) in self.suspects.iter_mut().zip(&self.worlds).enumerate() {
            *s = Suspect {
                fault: w.state.fault(),
                seeks: w.state.seeks(),
                leads: w.state.leads(),
                uses: w.state.uses(),
                clashes: w.state.clashes(),
                busy: w.state.is_being_verified(),
                ..suspect(no as u32)
            };
        }
        all
    }
}

#[test]
fn where_the_load_has_gone_nobody_is_to_blame() {
    // The model has never seen such loads, and forbids both others. Partition 0 is worse off than
    // partition 1.
    let s = |c| split("records", 1.0, c, c);
    let m = model(&s(1.0), &s(0.0), &s(1.0));
    let calm = Truth { records: 1.0, ..CALM };
    let bad = Truth { lost: 0.2, cost_us: [300.0, 130.0, 100.0], ..calm };
    let worse = Truth { lost: 0.4, ..bad };
    // Its load goes while it is suspected, and while its trial goes on.
    for (before, tried) in [(3, 0), (4, 1)] {
        let mut t = Table::new(2, &m, 0.0);
        t.worlds[0].noise = 0.001;
        for _ in 0..before {
            t.interval(|w| if w.noise == 0.001 { worse } else { calm });
        }
        assert_eq!(t.worlds[0].asked.len(), tried, "{:?}", t.worlds[0].asked);
        assert!(t.suspects[0].fault > 0.0 || t.suspects[0].busy);
        for _ in 0..20 {
            t.worlds[0].reading.at_us += SECOND;
            t.worlds[1].pass(&bad);
            t.judge();
        }
        assert_eq!(t.worlds[1].asked.len(), 1, "the other one is tried now: {:?}", t.worlds[1].asked);
    }
}

#[test]
fn partitions_that_are_alike_switch_together() {
    // Near the edge of a leaf: alone, each would decide at another time.
    let mut t = Table::new(8, &right(), 0.3);
    for _ in 0..60 {
        t.interval(|_| Truth { conflicts: 0.3, ..HOT });
    }
    let first: Vec<u64> = t.worlds.iter().map(|w| w.asked.first().expect("it switched").0).collect();
    assert!(first.iter().max().unwrap() - first.iter().min().unwrap() <= 1, "{first:?}");
    assert!(t.worlds.iter().all(|w| w.protocol == Protocol::TwoPhase && w.asked.len() == 1));
    let lessons = t.learned.all().len();
    assert!((1..=3).contains(&lessons), "partitions that were verified together teach once: {lessons}");
}

#[test]
fn partitions_that_are_alike_are_judged_and_verified_by_their_mean() {
    // The first one differs a little; `noise` marks it. Alone it would be beyond the edge, but the
    // mean is not.
    let first = |w: &World| w.noise == 0.001;
    let mut t = Table::new(8, &right(), 0.0);
    t.worlds[0].noise = 0.001;
    for _ in 0..30 {
        t.interval(|w| Truth { conflicts: if first(w) { 0.22 } else { 0.15 }, ..CALM });
    }
    assert!(t.worlds.iter().all(|w| w.asked.is_empty()), "{:?}", t.worlds[0].asked);
    // They switch together. The first one is unlucky, and the others gain more than it loses.
    for _ in 0..30 {
        t.interval(|w| if first(w) { Truth { cost_us: [200.0, 300.0, 360.0], ..HOT } } else { HOT });
    }
    assert!(t.worlds.iter().all(|w| w.protocol == Protocol::TwoPhase && w.asked.len() == 1), "{:?}", t.worlds[0].asked);
}

#[test]
fn who_is_left_behind_follows() {
    // Better by less than the margin: not worth a switch, except for one that is alone with its
    // protocol.
    let s = |c| split("records", 1.0, 0.0, c);
    let m = model(&s(0.5), &s(0.05), &s(0.0));
    for (others, wanted) in [(Protocol::TwoPhase, Protocol::TwoPhase), (Protocol::PartCc, Protocol::Occ)] {
        let mut t = Table::new(5, &m, 0.02);
        for w in &mut t.worlds[1..] {
            w.protocol = others;
            w.settings.candidates = ProtocolSet::of(others);
        }
        for _ in 0..5 {
            t.interval(|_| CALM);
        }
        assert_eq!(t.worlds[0].protocol, wanted, "{:?}", t.worlds[0].asked);
    }
}

#[test]
fn one_partition_of_a_table_probes_for_all() {
    let s = |c| split("records", 1.0, 0.0, c);
    let m = model(&s(0.4), &s(-0.3), &s(0.1));
    let mut t = Table::new(6, &m, 0.05);
    for _ in 0..100 {
        let all = t.interval(|w| {
            let lost = if w.protocol == Protocol::Occ { 0.6 } else { 0.0 };
            Truth { lost, cost_us: [300.0, 200.0, 100.0], ..HOT }
        });
        let probes = all.iter().filter(|d| d.status == Status::Probes).count();
        let tried = t.worlds.iter().flat_map(|w| &w.asked).filter(|a| a.2 == Status::Probes).count();
        assert!(probes <= 1 && tried <= 1, "{all:?}");
    }
    assert!(t.worlds.iter().all(|w| w.protocol == Protocol::TwoPhase), "what one has learned is all the others'");
}

#[test]
fn few_samples_decide_nothing_until_there_are_enough() {
    let mut w = World::new(right(), 0.0);
    w.protocol = Protocol::PartCc;
    // 67 commits, 4 samples a second.
    let rare = Truth { cost_us: [60_000.0, 60_000.0, 60_000.0], ..HOT };
    let statuses: Vec<_> = (0..8).map(|_| w.interval(&rare).status).collect();
    assert_eq!(
        statuses[..5],
        [Status::New, Status::FewSamples, Status::FewSamples, Status::FewSamples, Status::FewSamples]
    );
    assert!(statuses[5..].contains(&Status::Confirms), "{statuses:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// For any model, load and noise: only candidates are requested, no switch is requested while
    /// one is verified, and a load that stays the same settles.
    #[test]
    fn any_model_and_load_settle(
        below in prop::array::uniform3(-1.0f64..1.0),
        above in prop::array::uniform3(-1.0f64..1.0),
        edge in 0.05f64..0.6,
        conflicts in 0.05f64..0.6,
        costs in prop::array::uniform3(50.0f64..500.0),
        noise in 0.0f64..0.3,
        without in 0usize..4,
        random in 1u64..u64::MAX,
    ) {
        let tree = |i: usize| split("conflict_rate", edge, below[i], above[i]);
        let mut w = World::new(model(&tree(0), &tree(1), &tree(2)), noise);
        w.random = random;
        if without < 3 && Protocol::ALL[without] != Protocol::Occ {
            let some = Protocol::ALL.into_iter().filter(|p| *p != Protocol::ALL[without]);
            w.settings.candidates = some.fold(ProtocolSet::EMPTY, |s, p| s.union(ProtocolSet::of(p)));
        }
        let t = Truth { conflicts, cost_us: costs, ..CALM };
        let (mut verifying, mut total) = (false, 0);
        for _ in 0..600 {
            let d = w.interval(&t);
            if let Some(p) = d.ask {
                prop_assert!(w.settings.candidates.has(p));
                prop_assert!(!(verifying && d.status != Status::TakesBack && d.before_us > 0.0));
                total += 1;
            }
            verifying = d.status == Status::Verifies;
        }
        prop_assert!(total <= 24, "{} switches in 600 intervals: {:?}", total, w.asked);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The same where much is lost, and a protocol has the costs of another one.
    #[test]
    fn any_load_that_loses_settles(
        costs in prop::array::uniform3(50.0f64..500.0),
        heated_us in 50.0f64..500.0,
        predicted in prop::array::uniform3(-0.5f64..0.5),
        lost in 0.06f64..0.7,
        lost_under_mocc in 0.0f64..0.7,
        records in 1.0f64..12.0,
        longer in prop::array::uniform4(0.3f64..5.0),
        sleeps in 0.0f64..2.0,
        noise in 0.0f64..0.3,
        random in 1u64..u64::MAX,
    ) {
        let tree = |i: usize| split("records", 0.5, predicted[i], predicted[i]);
        let mut w = World::new(model_with_mocc(&tree(0), &tree(1), &tree(2)), noise);
        w.random = random;
        let t = Truth { lost, records, cost_us: costs, heated_us, longer, sleeps, ..HOT };
        for _ in 0..600 {
            let t = losing(&w, t, lost_under_mocc);
            w.interval(&t);
        }
        prop_assert!(w.asked.len() <= 24, "{} switches in 600 intervals: {:?}", w.asked.len(), w.asked);
    }
}

#[test]
fn rules_are_about_shares_of_the_load() {
    let s = Settings::default();
    let may = |weak_writers, idle, p| {
        let load = super::features::Load { weak_writers, idle, ..Default::default() };
        super::decide::allowed(&s, &load).has(p)
    };
    assert!(may(s.max_weak_writers, s.max_idle, Protocol::PartCc));
    assert!(!may(s.max_weak_writers + 0.01, 0.0, Protocol::PartCc), "transactions write below SERIALIZABLE");
    assert!(!may(0.0, s.max_idle + 0.01, Protocol::PartCc), "transactions wait for their client");
    assert!(may(1.0, 1.0, Protocol::Occ) && may(1.0, 1.0, Protocol::TwoPhase));
}

#[test]
fn a_rule_ends_a_trial_and_forbids_to_take_it_back() {
    let leaf = |cost: f64| format!(r#"[{{"log_cost": {cost}}}]"#);
    // The model is wrong about partcc. Before that can be measured, a rule forbids it.
    let mut w = World::new(model(&leaf(0.0), &leaf(0.9), &leaf(0.9)), 0.0);
    while w.protocol != Protocol::PartCc {
        w.interval(&CALM);
    }
    let weak = Truth { weak: 0.5, ..CALM };
    w.run(&weak, 6);
    assert_ne!(w.protocol, Protocol::PartCc);
    assert!(w.learned.all().is_empty(), "what a rule has ended teaches nothing: {:?}", w.learned.all());
    // The model is wrong about occ. When that is measured, a rule forbids the better protocol.
    let mut w = World::new(model(&leaf(0.9), &leaf(0.0), &leaf(1.4)), 0.0);
    w.protocol = Protocol::PartCc;
    let dear = Truth { cost_us: [50.0, 100.0, 300.0], ..CALM };
    while w.protocol == Protocol::PartCc {
        w.interval(&dear);
    }
    let asked = w.asked.len();
    w.run(&Truth { weak: 0.5, ..dear }, 6);
    assert_eq!(w.protocol, Protocol::Occ);
    assert!(w.asked[asked..].iter().all(|a| a.1 != Protocol::PartCc), "{:?}", w.asked);
    assert_eq!(w.learned.all().len(), 1, "but it was measured");
    // The same if it is plainly slower.
    let mut w = World::new(model(&leaf(0.9), &leaf(0.0), &leaf(1.4)), 0.0);
    w.protocol = Protocol::PartCc;
    while w.protocol == Protocol::PartCc {
        w.interval(&dear);
    }
    let asked = w.asked.len();
    w.run(&Truth { weak: 0.5, longer: [1.0, 4.0, 1.0, 1.0], sleeps: 3.0, ..dear }, 6);
    assert!(w.asked[asked..].iter().all(|a| a.1 != Protocol::PartCc), "{:?}", w.asked);
}

#[test]
fn what_is_not_worth_a_trial_is_not_tried() {
    // Much is lost, and partcc is the only other candidate. It is not tried if most transactions
    // use several partitions.
    let leaf = |cost: f64| format!(r#"[{{"log_cost": {cost}}}]"#);
    let tried = |multi| {
        let mut w = World::new(model(&leaf(0.3), &leaf(0.0), &leaf(0.9)), 0.0);
        w.settings.candidates = ProtocolSet::of(Protocol::Occ).union(ProtocolSet::of(Protocol::PartCc));
        w.run(&Truth { lost: 0.5, multi, ..CALM }, 10);
        w.asked.iter().any(|a| a.2 == Status::Probes)
    };
    assert!(tried(0.2) && !tried(0.8));
    // A fifth of the time is slept for its locks. That is no loss while all processors are busy.
    let tried = |busy| {
        let mut w = World::new(model(&leaf(0.5), &leaf(0.0), &leaf(0.1)), 0.0);
        for _ in 0..10 {
            w.pass(&CALM);
            w.reading.wait_us += 8 * SECOND / 5;
            w.reading.ticks = (w.reading.ticks.0 + busy, w.reading.ticks.1 + 100);
            let d = w.state.observe(1, (w.protocol, &[]), w.reading, (&w.model, &mut w.learned, &w.settings));
            w.follow(&d);
        }
        w.asked.iter().any(|a| a.2 == Status::Probes)
    };
    assert!(tried(20) && !tried(100));
    // Where hot rows are locked, sleeps are no reason to lock all. Failures are one.
    let tried = |protocol, lost| {
        let leaf = |cost: f64| format!(r#"[{{"log_cost": {cost}}}]"#);
        let mut w = World::new(model_with_mocc(&leaf(0.9), &leaf(0.0), &leaf(0.1)), 0.0);
        w.protocol = protocol;
        w.settings.candidates = ProtocolSet::mediated(protocol, Protocol::TwoPhase);
        for _ in 0..10 {
            w.pass(&Truth { lost, ..CALM });
            w.reading.wait_us += 8 * SECOND / 5;
            let d = w.state.observe(1, (w.protocol, &[]), w.reading, (&w.model, &mut w.learned, &w.settings));
            w.follow(&d);
        }
        w.asked.iter().any(|a| a.2 == Status::Probes)
    };
    assert!(tried(Protocol::Occ, 0.0) && !tried(Protocol::Mocc, 0.0) && tried(Protocol::Mocc, 0.3));
}
