//! Histories in the middle of which partitions are switched, by a coordinator that is ended now and
//! then, between protocols and policies at random.

use crate::client::{Client, Mood};
use crate::load::{assert_serializable, find_anomaly_in, run_in, Load};
use crate::world::{Rng, World, PARTITIONS};
use mixedcc_engine::checker::{History, Recorder};
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::switch::{Asked, Step, Why};
use mixedcc_engine::{Policy, Protocol, ProtocolSet};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How the switches of a run are made.
pub struct Plan {
    pub seed: u64,
    /// Switches at least.
    pub switches: u64,
    /// Percent of passes in which the coordinator ends between two stores.
    pub deaths: u64,
    /// Percent of switches by the stop-all method.
    pub stop_all: u64,
    /// A fault of the coordinator.
    pub fault: Option<Fault>,
}

/// Switches random partitions to random protocols until the load is over; tells when it may be.
pub fn switch_at_random(w: &World, plan: &Plan, stop: &AtomicBool, enough: &dyn Fn()) {
    let mut rng = Rng::new(plan.seed);
    let mut now = 1;
    let mut stop_all = false;
    while !stop.load(Ordering::Relaxed) {
        now += 1;
        if rng.percent(30) {
            let p = &w.table.map().partitions()[rng.below(PARTITIONS as u64) as usize];
            // Mostly where nothing is under way; else it is queued, or takes the switch back.
            if !p.switch.view().is_open() || rng.percent(10) {
                let to = Protocol::ALL[rng.below(Protocol::COUNT as u64) as usize];
                let settled = p.switch.view().step == Step::Settled;
                let asked = p.switch.ask(to, rng.percent(50), Why::Asked, 7, now);
                assert!(settled || asked != Asked::Nothing);
            }
        }
        let dies = rng.percent(plan.deaths);
        faults::set(plan.fault.or(dies.then_some(Fault::CoordinatorDies)));
        let made = w.e.advance_switches(&[w.table], now, stop_all);
        faults::set(None);
        if made.under_way == 0 {
            stop_all = rng.percent(plan.stop_all);
            if w.e.shared.switches.len() >= plan.switches {
                enough();
            }
        }
        std::thread::sleep(Duration::from_micros(if rng.percent(50) { 20 } else { 200 }));
    }
    // No session may be left waiting for a coordinator that is gone.
    w.e.shared.epochs.go_on();
}

fn run(l: &Load, plan: &Plan) -> (History, crate::load::Counts, World) {
    let w = World::new(&l.sets, l.policy, l.slots());
    let (h, counts) = run_in(&w, l, |stop, enough| switch_at_random(&w, plan, stop, enough));
    (h, counts, w)
}

/// Runs a load and demands a correct history, and switches between all ordered pairs.
pub fn judge(policy: Policy, seed: u64, tune: impl Fn(&mut Load, &mut Plan)) {
    let mut l = Load::new(&[ProtocolSet::of(Protocol::Occ)], policy, seed);
    // Each ordered pair comes 12 times on the average, so that hardly any run misses one.
    let switches = 12 * (Protocol::COUNT * (Protocol::COUNT - 1)) as u64;
    let mut plan = Plan { seed, switches, deaths: 10, stop_all: 0, fault: None };
    tune(&mut l, &mut plan);
    let (h, counts, w) = run(&l, &plan);
    assert_serializable(&h, &counts, l.seed);
    let mut pairs: HashMap<(String, String), u32> = HashMap::new();
    for e in w.e.shared.switches.entries() {
        assert!(e.done.times.windows(2).all(|t| t[0] <= t[1]), "{e:?}");
        *pairs.entry((e.done.from.name(), e.done.to.name())).or_default() += 1;
    }
    eprintln!("{} switches: {pairs:?}", w.e.shared.switches.len());
    for a in Protocol::ALL {
        for b in Protocol::ALL.into_iter().filter(|&b| b != a) {
            assert!(pairs.contains_key(&(a.name().into(), b.name().into())), "no switch from {a:?} to {b:?}");
        }
    }
}

#[test]
fn switches_of_random_partitions() {
    for policy in Policy::ALL {
        judge(policy, 800 + policy as u64, |_, _| {});
        judge(policy, 810 + policy as u64, |l, _| {
            *l = std::mem::replace(l, Load::new(&[], policy, 0)).serializable_only()
        });
    }
}

#[test]
fn switches_under_long_transactions() {
    judge(Policy::Wait, 820, |l, _| (l.statements, l.churn, l.yields) = (14, 10, 50));
}

#[test]
fn switches_under_readers() {
    for policy in Policy::ALL {
        judge(policy, 840 + policy as u64, |l, _| (l.readers, l.from_start, l.statements) = (2, 30, 8));
    }
}

#[test]
fn switches_by_the_stop_all_method() {
    judge(Policy::Wait, 830, |_, plan| plan.stop_all = 50);
}

/// Demands that the checker finds a fault of the coordinator.
fn finds(fault: Fault) {
    let found = find_anomaly_in(40, |i| {
        let mut l = Load::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 2000 + i).serializable_only();
        (l.commits, l.statements, l.yields, l.churn, l.faulty) = (3000, 8, 60, 20, true);
        // Two writers of a record would destroy it: here reads go wrong.
        l.at_once = 100;
        run(&l, &Plan { seed: 2000 + i, switches: 300, deaths: 0, stop_all: 0, fault: Some(fault) }).0
    });
    let found = found.unwrap_or_else(|| panic!("{fault:?} was not found"));
    eprintln!("{found}");
}

#[test]
fn steps_that_do_not_wait_are_found() {
    finds(Fault::StepsDoNotWait);
}
#[test]
fn a_single_step_between_protocols_that_differ_is_found() {
    finds(Fault::AllRelyAlike);
}
#[test]
fn steps_with_the_epoch_of_the_step_before_are_found() {
    finds(Fault::EpochNotReset);
}

/// Two transactions write one row, the second one while its partition goes from `occ` to `to`. True
/// if it commits over the first one's version.
fn loses_an_update(to: Protocol, fault: Option<Fault>) -> bool {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 2);
    let recorder = Recorder::new();
    let [mut a, mut b] = [0, 1].map(|slot| Client::new(&w, slot, recorder.session(), slot as u64 + 1));
    let p = &w.table.map().partitions()[0];
    let mut now = 0;
    let mut advance = |set: ProtocolSet| {
        while p.switch.set() != set {
            now += 1;
            assert!(now < 10, "the step to {} waits", set.name());
            w.e.advance_switches(&[w.table], now, false);
        }
    };
    a.begin(Mood::Serializable);
    assert!(a.update(0, false).expect("an update under occ"));
    p.switch.ask(to, false, Why::Asked, 0, 0);
    advance(ProtocolSet::mediated(Protocol::Occ, to));
    b.begin(Mood::Serializable);
    faults::set(fault);
    assert!(b.update(0, false).expect("an update under both"));
    faults::set(None);
    a.commit().expect("nobody is in the way before the commit of the other");
    advance(ProtocolSet::of(to));
    faults::set(fault);
    let done = b.t.prepare(&b.p, &|_, _| {});
    faults::set(None);
    b.abort();
    done.is_ok()
}

#[test]
fn what_was_followed_is_owed_at_the_commit() {
    // Under `2pl` the second writer has locked the record: the first could not commit.
    assert!(!loses_an_update(Protocol::PartCc, None));
    assert!(loses_an_update(Protocol::PartCc, Some(Fault::ForgetsProtocols)), "the test finds nothing");
}

#[test]
fn readers_of_snapshots_hold_no_step_up() {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 3);
    let recorder = Recorder::new();
    let [mut reader, mut writer] = [0, 1].map(|slot| Client::new(&w, slot, recorder.session(), slot as u64 + 1));
    let p = &w.table.map().partitions()[0];
    reader.begin(Mood::RepeatableRead);
    assert!(reader.get(0).expect("a read").is_some());
    p.switch.ask(Protocol::PartCc, false, Why::Asked, 0, 0);
    let passes = |n: u64| {
        (0..n).for_each(|now| {
            w.e.advance_switches(&[w.table], now, false);
        })
    };
    writer.begin(Mood::ReadCommitted);
    assert!(writer.update(2 * 1000, false).expect("an update of another partition"));
    passes(5);
    assert_eq!(p.switch.view().step, Step::Upgrading, "the writer began under the old set");
    writer.commit().expect("a commit");
    passes(5);
    assert_eq!((p.protocols(), p.switch.view().step), (ProtocolSet::of(Protocol::PartCc), Step::Settled));
    assert!(reader.get(0).expect("a read").is_some());
    reader.abort();
}
