//! The handshake of switches: the switch and the epochs are the engine's own; transactions, the
//! coordinator's passes and a session that excludes all others are modelled.

use crate::model_within;
use loom::sync::atomic::{AtomicU64, Ordering::SeqCst};
use loom::sync::Arc;
use loom::thread;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::protocol::{Protocol, ProtocolSet};
use mixedcc_engine::switch::{Epochs, Event, Step, Switch, Why};
use Protocol::{Mocc, Occ, PartCc, TwoPhase};

/// How a switch is broken, beside the engine's faults.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    No,
    /// A transaction loads the set before it publishes the epoch.
    SetFirst,
    /// The epoch is announced before the set is stored.
    AnnouncedFirst,
    /// The coordinator does not look at the slots.
    NoLook,
    /// A transaction takes its epoch back before all of it is over.
    LeavesEarly,
}

/// What happens in a model.
#[derive(Clone, Copy)]
struct Plan {
    /// Requests that come as soon as the switch has come so far, one after another.
    requests: &'static [(Step, Protocol)],
    /// The first transaction asks for a protocol too, whenever it comes to its middle.
    asks: Option<Protocol>,
    /// The first slot's transaction aborts, and the slot runs another one.
    aborts: bool,
    stop_all: bool,
    broken: Broken,
}

/// A switch from `occ` to `2pl`.
const PLAIN: Plan =
    Plan { requests: &[(Step::Settled, TwoPhase)], asks: None, aborts: false, stop_all: false, broken: Broken::No };
/// A third protocol is asked for in the middle: the sets are {occ}, {occ, 2pl}, {2pl}, {2pl,
/// partcc}, {partcc}.
const QUEUED: Plan = Plan { requests: &[(Step::Settled, TwoPhase), (Step::Upgrading, PartCc)], ..PLAIN };
/// The old one is asked for again, when the new one runs alone already.
const LATE: Plan = Plan { requests: &[(Step::Settled, TwoPhase), (Step::Degrading, Occ)], ..PLAIN };

/// A switch between two that rely on the same, which is taken back before it is complete.
const ALIKE: Plan = Plan { requests: &[(Step::Settled, Mocc), (Step::Degrading, Occ)], ..PLAIN };
/// The same, with a third protocol in place of that.
const ALIKE_THEN: Plan = Plan { requests: &[(Step::Settled, Mocc), (Step::Degrading, TwoPhase)], ..PLAIN };
/// Taken back, and then a third one.
const ALIKE_BACK_THEN: Plan =
    Plan { requests: &[(Step::Settled, Mocc), (Step::Degrading, Occ), (Step::Degrading, TwoPhase)], ..PLAIN };

/// The switch, the slots' epochs, and what runs: each slot shows the set that it follows.
struct Switching {
    epochs: Epochs,
    switch: Switch,
    slots: [AtomicU64; 2],
    running: [AtomicU64; 2],
}

impl Switching {
    fn new() -> Arc<Switching> {
        let zero = || [AtomicU64::new(0), AtomicU64::new(0)];
        let (epochs, switch) = (Epochs::model(), Switch::model(Occ));
        Arc::new(Switching { epochs, switch, slots: zero(), running: zero() })
    }
}

fn number(s: ProtocolSet) -> u64 {
    s.iter().map(|p| p as u64).sum()
}

/// Have these two a protocol in common, or do both follow one that relies on the other one's thing?
fn in_common(one: u64, other: u64) -> bool {
    let alike = Occ as u64 | Mocc as u64;
    one & other != 0 || one & alike != 0 && other & alike != 0
}

/// A transaction that touches the partition once or more, and demands that each transaction beside
/// it follows one of its protocols, or one that relies on the same.
fn follower(s: &Switching, me: usize, touches: usize, plan: Plan) {
    let early = (plan.broken == Broken::SetFirst).then(|| s.switch.set());
    if !s.epochs.enter(&s.slots[me]) {
        assert!(plan.stop_all);
        return; // the engine's transactions try again
    }
    let mut set = early.unwrap_or_else(|| s.switch.set());
    for touch in 0..touches {
        if touch > 0 {
            if let Some(p) = plan.asks.filter(|_| me == 0) {
                s.switch.ask(p, false, Why::Asked, 0, 0);
            }
            set = set.union(s.switch.set());
        }
        s.running[me].store(number(set), SeqCst);
        let other = s.running[1 - me].load(SeqCst);
        assert!(other == 0 || in_common(other, number(set)), "{other} runs beside {}", set.name());
    }
    if plan.broken == Broken::LeavesEarly {
        Epochs::leave(&s.slots[me]);
    }
    s.running[me].store(0, SeqCst);
    Epochs::leave(&s.slots[me]);
}

/// The coordinator's passes, as in `Engine::advance_switches`, until nothing is left to do.
fn coordinate(s: &Switching, plan: Plan) {
    let mut requests = plan.requests.iter().peekable();
    loop {
        if requests.peek().is_some() {
            if let Some((_, p)) = requests.next_if(|r| r.0 == s.switch.view().step) {
                s.switch.ask(*p, false, Why::Asked, 0, 0);
            }
        }
        let slots = if plan.broken == Broken::NoLook { &[][..] } else { &s.slots[..] };
        let passed = s.epochs.look(slots.iter());
        let event = match plan.broken {
            Broken::AnnouncedFirst => s.switch.advance_announced(&s.epochs, passed),
            _ => s.switch.advance(&s.epochs, passed, 0, plan.stop_all),
        };
        if plan.stop_all && s.switch.view().step != Step::Stopping {
            s.epochs.go_on();
        }
        match event {
            Event::Settled => return,
            Event::Waits => thread::yield_now(),
            _ => {}
        }
    }
}

/// Two slots' transactions in the middle of it.
fn switching(plan: Plan) {
    let s = Switching::new();
    let threads = [0, 1].map(|me| {
        let s = s.clone();
        thread::spawn(move || {
            if me == 0 && plan.aborts {
                follower(&s, me, 1, plan);
            }
            follower(&s, me, 2, plan);
        })
    });
    coordinate(&s, plan);
    threads.into_iter().for_each(|t| t.join().unwrap());
    coordinate(&s, Plan { requests: &[], ..plan });
    let v = s.switch.view();
    assert!(v.set == v.wanted && !v.is_open());
    assert!(plan.asks.is_some() || Some(v.set) == plan.requests.last().map(|r| ProtocolSet::of(r.1)));
}

/// A session that excludes all others puts `partcc` in use at any moment of a switch from `occ` to
/// `2pl`. It runs on beside another transaction when it excludes none any more.
fn put_in_the_middle(plan: Plan) {
    let s = Switching::new();
    let holder = {
        let s = s.clone();
        thread::spawn(move || {
            s.switch.put(ProtocolSet::of(PartCc), None);
            let other = {
                let s = s.clone();
                thread::spawn(move || follower(&s, 1, 2, plan))
            };
            follower(&s, 0, 2, plan);
            other.join().unwrap();
        })
    };
    coordinate(&s, plan);
    holder.join().unwrap();
}

/// All interleavings of a correct model, or of one whose fault does no harm, with up to 2
/// preemptions: so many suffice to find what is broken, but for one thing, and three take minutes.
fn holds(fault: Option<Fault>, f: impl Fn() + Sync + Send + 'static) {
    faults::set(fault);
    model_within(2, f);
    faults::set(None);
}

/// Does the model checker find a failure in a broken model, or with an engine's fault?
fn breaks(fault: Option<Fault>, f: impl Fn() + Sync + Send + 'static) -> bool {
    breaks_within(2, fault, f)
}
fn breaks_within(preemptions: usize, fault: Option<Fault>, f: impl Fn() + Sync + Send + 'static) -> bool {
    faults::set(fault);
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model_within(preemptions, f))).is_err();
    faults::set(None);
    found
}

#[test]
fn those_that_run_together_have_a_protocol_in_common() {
    holds(None, || switching(PLAIN));
}
#[test]
fn they_do_not_if_the_set_is_loaded_before_the_epoch_is_published() {
    assert!(breaks(None, || switching(Plan { broken: Broken::SetFirst, ..PLAIN })));
}
#[test]
fn they_do_not_if_the_epoch_is_announced_before_the_set() {
    assert!(breaks(None, || switching(Plan { broken: Broken::AnnouncedFirst, ..PLAIN })));
}
#[test]
fn they_do_not_if_nobody_looks_at_the_slots() {
    assert!(breaks(None, || switching(Plan { broken: Broken::NoLook, ..PLAIN })));
}

#[test]
fn a_third_protocol_waits_its_turn() {
    holds(None, || switching(QUEUED));
}
#[test]
fn steps_that_were_not_announced_are_announced_again() {
    holds(Some(Fault::CoordinatorDies), || switching(QUEUED));
}
#[test]
fn found_with_the_epoch_of_the_step_before_they_wait_for_nobody() {
    assert!(breaks(Some(Fault::EpochNotReset), || switching(QUEUED)));
}

#[test]
fn a_switch_is_taken_back_while_both_run() {
    holds(None, || switching(Plan { asks: Some(Occ), ..PLAIN }));
}
#[test]
fn a_switch_whose_target_runs_alone_is_completed_first() {
    holds(None, || switching(LATE));
}
#[test]
fn it_cannot_be_taken_back_at_once() {
    assert!(breaks(Some(Fault::TakesBackLate), || switching(LATE)));
}

#[test]
fn one_step_between_two_that_rely_on_the_same() {
    holds(None, || switching(ALIKE));
    holds(None, || switching(ALIKE_THEN));
    holds(None, || switching(ALIKE_BACK_THEN));
}
#[test]
fn the_next_switch_waits_for_those_of_before_one_that_was_taken_back() {
    assert!(breaks(Some(Fault::StepsDoNotWait), || switching(ALIKE_BACK_THEN)));
}
#[test]
fn one_step_between_others_is_too_few() {
    assert!(breaks(Some(Fault::AllRelyAlike), || switching(ALIKE_THEN)));
}

#[test]
fn a_slot_is_used_again_after_an_abort() {
    holds(None, || switching(Plan { aborts: true, ..PLAIN }));
}
#[test]
fn not_before_all_of_its_transaction_is_over() {
    assert!(breaks(None, || switching(Plan { aborts: true, broken: Broken::LeavesEarly, ..PLAIN })));
}

#[test]
fn what_who_excludes_everybody_puts_in_use_stays() {
    // As many as the broken variant needs.
    model_within(3, || put_in_the_middle(PLAIN));
}
#[test]
fn it_does_not_if_the_switch_is_completed_all_the_same() {
    assert!(breaks_within(3, Some(Fault::FinishesBlindly), || put_in_the_middle(PLAIN)));
}

#[test]
fn stop_all_lets_nobody_begin_until_nobody_runs() {
    holds(None, || switching(Plan { stop_all: true, ..PLAIN }));
}
#[test]
fn stop_all_must_look_at_the_slots() {
    assert!(breaks(None, || switching(Plan { stop_all: true, broken: Broken::NoLook, ..PLAIN })));
}
#[test]
fn stop_all_leaves_what_who_excludes_everybody_puts_in_use() {
    holds(None, || put_in_the_middle(Plan { stop_all: true, ..PLAIN }));
}
