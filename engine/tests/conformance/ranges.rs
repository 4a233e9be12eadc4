//! Histories with scans of key ranges, protected by logical ranges; and seeded faults of these.

use crate::client::Mood;
use crate::load::{assert_serializable, find_anomaly_in, policies, run_in, Counts, Load};
use crate::spans::cuts;
use crate::world::{Jitter, Rng, World};
use mixedcc_engine::checker::{AnomalyKind, History};
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::{Policy, Protocol, ProtocolSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use Protocol::{Occ, TwoPhase};

/// When indexes get ranges, and others.
#[derive(Clone, Copy)]
struct Plan {
    /// Ranges from the start on?
    early: bool,
    /// Rebuilds at least, while the load runs.
    rebuilds: u64,
    list: u32,
    /// A fault of a scan that activates and rebuilds.
    fault: Option<Fault>,
}

const STILL: Plan = Plan { early: true, rebuilds: 0, list: 32, fault: None };

fn change_ranges(w: &World, l: &Load, plan: Plan, stop: &AtomicBool, enough: &dyn Fn()) {
    let p = Jitter::new(w, w.slots, 5);
    let mut rng = Rng::new(l.seed ^ 0x5eed);
    faults::set(plan.fault);
    if !plan.early {
        std::thread::sleep(Duration::from_millis(3));
        for i in [0, 1] {
            w.activate(&p, w.slots, i, &cuts(&mut rng), plan.list).expect("room for ranges");
        }
    }
    let mut rebuilds = 0;
    while rebuilds < plan.rebuilds && !stop.load(Ordering::Relaxed) {
        let i = rng.below(2) as usize;
        rebuilds += w.rebuild(&p, w.slots, i, &cuts(&mut rng), plan.list).expect("room for ranges") as u64;
        std::thread::sleep(Duration::from_micros(200));
    }
    faults::set(None);
    assert!(rebuilds >= plan.rebuilds || l.fault.is_some() || plan.fault.is_some(), "only {rebuilds} rebuilds");
    enough();
}

fn run(l: &Load, plan: Plan) -> (History, Counts, World) {
    let w = World::new(&l.sets, l.policy, l.moods.len() as u16 + 1);
    w.e.shared.dormant_after_ns.store(300_000, Ordering::Relaxed); // some ten commits
    if plan.early {
        let mut rng = Rng::new(l.seed ^ 0xc075);
        let p = Jitter::new(&w, w.slots, 5);
        for i in [0, 1] {
            w.activate(&p, w.slots, i, &cuts(&mut rng), plan.list).expect("room for ranges");
        }
    }
    let (h, counts) = run_in(&w, l, |stop, enough| change_ranges(&w, l, plan, stop, enough));
    (h, counts, w)
}

fn load(sets: &[ProtocolSet], policy: Policy, seed: u64) -> Load {
    let mut l = Load::new(sets, policy, seed);
    (l.spans, l.churn) = (45, 70);
    l
}

/// Runs a load and demands a correct history, in which ranges were used and nothing of them is
/// left.
fn judge(l: Load, plan: Plan) {
    let (h, counts, w) = run(&l, plan);
    assert_serializable(&h, &counts, l.seed);
    for i in [0, 1] {
        let r = w.index_ranges(i).expect("active ranges");
        let [writers, scans, aborts, wraps] = r.current().totals();
        eprintln!(
            "index {i}: {writers} writers {scans} scans {aborts} aborts {wraps} wraps, {} rebuilds, {} unknown",
            r.rebuilds.load(Ordering::Relaxed),
            r.unknown_version()
        );
        // The last rebuild may have come after the last scan: its set counts from nothing.
        let rebuilt = r.rebuilds.load(Ordering::Relaxed) > 0;
        assert!(rebuilt || scans > 0 && writers > 0);
        assert!(r.times_dormant() > 0 || r.unknown_version() < counts.commits / 4, "most keys are known");
        for no in 0..r.current().len() {
            assert!(r.current().range(no).lock.is_free() && r.current().list(no).is_finished(), "range {no}");
        }
    }
}

fn of(p: Protocol) -> [ProtocolSet; 1] {
    [ProtocolSet::of(p)]
}

#[test]
fn scans_under_each_protocol() {
    for p in Protocol::ALL {
        for &policy in policies(ProtocolSet::of(p)) {
            let seed = 2000 + 10 * p.index() as u64 + 2 * policy as u64;
            judge(load(&of(p), policy, seed), STILL);
            judge(load(&of(p), policy, seed + 1).serializable_only(), STILL);
        }
    }
}
#[test]
fn scans_where_lists_wrap_often() {
    judge(load(&of(Occ), Policy::Wait, 2002), Plan { list: 8, ..STILL });
}
#[test]
fn scans_under_all_pairs() {
    for (i, a) in Protocol::ALL.into_iter().enumerate() {
        for (j, b) in Protocol::ALL.into_iter().enumerate().filter(|(j, _)| *j != i) {
            let seed = 2100 + (i * Protocol::COUNT + j) as u64;
            judge(load(&[ProtocolSet::of(a), ProtocolSet::of(b)], Policy::Wait, seed), STILL);
            if i < j {
                judge(load(&[ProtocolSet::mediated(a, b)], Policy::Wait, seed + 100), STILL);
            }
        }
    }
}
#[test]
fn ranges_appear_and_change_while_transactions_run() {
    for (i, p) in Protocol::ALL.into_iter().enumerate() {
        let seed = 2070 + i as u64;
        judge(load(&of(p), Policy::Wait, seed), Plan { early: false, rebuilds: 20, ..STILL });
        judge(load(&of(p), Policy::NoWait, seed + 5), Plan { rebuilds: 20, ..STILL });
    }
}

/// Ranges are used so rarely that they fall asleep often.
fn sleepy(l: &mut Load) {
    (l.spans, l.keyed, l.statements, l.commits) = (3, false, 3, 4 * l.commits);
}

#[test]
fn ranges_sleep_while_nobody_scans() {
    let mut all = (0, 0);
    for (i, p) in Protocol::ALL.into_iter().enumerate() {
        let mut l = load(&of(p), Policy::Wait, 2090 + i as u64);
        sleepy(&mut l);
        let (h, counts, w) = run(&l, STILL);
        assert_serializable(&h, &counts, l.seed);
        let of = |i: usize| w.index_ranges(i).expect("active ranges");
        let (sleeps, scans) = (of(0).times_dormant() + of(1).times_dormant(), of(0).current().totals()[1]);
        eprintln!("{sleeps} sleeps, {scans} scans");
        all = (all.0 + sleeps, all.1 + scans);
    }
    assert!(all.0 > 4 && all.1 > 20, "{all:?}");
}

/// Runs at most, until an anomaly shows.
const RUNS: u64 = 150;

/// Demands an anomaly.
fn finds(fault: Fault, p: Protocol, plan: Plan, tune: impl Fn(&mut Load)) {
    let history = |i| {
        let mut l = load(&of(p), Policy::Wait, 3000 + i).serializable_only();
        (l.fault, l.faulty, l.commits, l.spans) = (Some(fault), true, 1000, 50);
        tune(&mut l);
        run(&l, plan).0
    };
    let v = find_anomaly_in(RUNS, history).unwrap_or_else(|| panic!("{fault:?} was not found in {RUNS} runs"));
    eprintln!("{v}");
    assert!(!v.has(AnomalyKind::Malformed), "the record of the history is at fault: {v}");
}

#[test]
fn a_bound_off_by_one() {
    finds(Fault::BoundOffByOne, Occ, STILL, |_| {});
}
#[test]
fn an_index_forgotten_at_registration() {
    finds(Fault::IndexForgotten, Occ, STILL, |l| l.churn = 50);
}
#[test]
fn a_limit_that_protects_too_little() {
    finds(Fault::LimitTooLittle, Occ, STILL, |l| l.churn = 40);
}
#[test]
fn an_entry_reused_too_early() {
    finds(Fault::EntryReused, Occ, Plan { list: 8, ..STILL }, |l| {
        (l.statements, l.moods) = (8, vec![Mood::Serializable; 8])
    });
}
#[test]
fn boundaries_without_mediation() {
    finds(Fault::NoMediation, Occ, Plan { rebuilds: 200, fault: Some(Fault::NoMediation), ..STILL }, |_| {});
}
#[test]
fn commits_that_look_for_ranges_too_early() {
    finds(Fault::LookBeforeCommitting, Occ, Plan { rebuilds: 300, ..STILL }, |_| {});
}
#[test]
fn a_look_up_that_is_not_repeated() {
    finds(Fault::LooksOnce, Occ, STILL, |l| (l.spans, l.churn, l.yields) = (0, 70, 60));
}
#[test]
fn a_writer_before_the_scan_missed() {
    finds(Fault::PositionIsTail, Occ, STILL, |l| l.yields = 60);
}
#[test]
fn a_scan_that_neither_locks_rows_nor_their_ranges() {
    finds(Fault::EscalatesTooFar, TwoPhase, STILL, |l| l.churn = 20);
}
#[test]
fn no_validation_of_ranges() {
    finds(Fault::NoValidation, TwoPhase, STILL, |_| {});
}
