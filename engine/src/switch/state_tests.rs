//! The steps of a switch in sequence, and processes that come between them.

use super::*;
use Protocol::{Mocc, Occ, PartCc, TwoPhase};

fn world() -> (Epochs, Switch, AtomicU64) {
    // SAFETY: all-zero memory is a valid switch and valid epochs.
    let (e, s): (Epochs, Switch) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    e.init();
    s.put(ProtocolSet::of(Occ), Some(false));
    (e, s, AtomicU64::new(0))
}

#[test]
fn views_round_trip() {
    let v = SwitchView {
        set: ProtocolSet::mediated(Occ, TwoPhase),
        from: ProtocolSet::of(Occ),
        target: ProtocolSet::of(TwoPhase),
        wanted: ProtocolSet::of(PartCc),
        step: Step::Stopping,
        pinned: true,
        why: Why::Probe,
        by: u32::MAX,
    };
    assert_eq!(SwitchView::unpack(v.pack()), v);
    // Each field has its own bits, for all that a set can have.
    let all = ProtocolSet::ALL;
    let full = [(all, all), (all, ProtocolSet::EMPTY), (ProtocolSet::EMPTY, all)];
    for ((set, from), (target, wanted)) in full.iter().flat_map(|a| full.iter().map(|b| (*a, *b))) {
        let v = SwitchView { set, from, target, wanted, ..v };
        assert_eq!(SwitchView::unpack(v.pack()), v);
    }
}

#[test]
fn the_coordinator_does_not_overrule_who_asked() {
    let (e, s, slot) = world();
    assert!(s.choose(TwoPhase, Why::Chosen, 1));
    assert_eq!((s.view().by, s.view().why), (0, Why::Chosen));
    assert!(!s.choose(PartCc, Why::Chosen, 2), "one at a time");
    for now in 3..6 {
        s.advance(&e, e.look([&slot].into_iter()), now, false);
    }
    assert_eq!((s.set(), s.view().is_open()), (ProtocolSet::of(TwoPhase), false));
    s.ask(TwoPhase, true, Why::Asked, 10, 6);
    assert!(!s.choose(Occ, Why::TakenBack, 7), "pinned");
    s.unpin();
    s.ask(PartCc, false, Why::Asked, 10, 8);
    assert!(!s.choose(Occ, Why::TakenBack, 9), "asked for");
}

#[test]
fn the_coordinator_takes_back_its_own_switch_alone() {
    let occ = ProtocolSet::of(Occ);
    let (e, s, slot) = world();
    let look = |e: &Epochs| e.look([&slot].into_iter());
    assert!(!s.take_back(1), "there is none");
    // In an upgrade, at once: the slot has begun under the old protocol.
    e.enter(&slot);
    assert!(s.choose(TwoPhase, Why::Probe, 1));
    assert!(!s.take_back(2), "it has not begun");
    s.advance(&e, look(&e), 2, false);
    assert!(s.take_back(3) && !s.take_back(4), "once");
    assert_eq!(s.advance(&e, look(&e), 5, false), Event::Stepped);
    assert_eq!((s.set(), s.view().why, s.view().is_open()), (occ, Why::TakenBack, true));
    Epochs::leave(&slot);
    let Event::Done(d) = s.advance(&e, look(&e), 6, false) else { panic!("not done") };
    assert_eq!((d.from, d.to, d.why), (occ, occ, Why::Probe));
    assert!(!s.view().is_open());
    // Later, when the switch is complete.
    assert!(s.choose(TwoPhase, Why::Probe, 7));
    s.advance(&e, look(&e), 8, false);
    e.enter(&slot);
    s.advance(&e, look(&e), 9, false);
    s.advance(&e, look(&e), 10, false);
    assert_eq!((s.set(), s.view().step), (ProtocolSet::of(TwoPhase), Step::Degrading));
    assert!(s.take_back(11));
    Epochs::leave(&slot);
    for now in 12..17 {
        s.advance(&e, look(&e), now, false);
    }
    assert_eq!((s.set(), s.view().is_open()), (occ, false));
    // Not that of a user, nor what somebody has asked for since, nor what is pinned.
    for (by, later, pin) in [(10, false, false), (0, true, false), (0, false, true)] {
        let (e, s, slot) = world();
        s.ask(TwoPhase, pin, Why::Asked, by, 1);
        e.enter(&slot);
        s.advance(&e, e.look([&slot].into_iter()), 2, false);
        if later {
            s.ask(PartCc, false, Why::Asked, 0, 3);
        }
        assert!(!s.take_back(4), "{by} {later} {pin}");
    }
}

#[test]
fn each_step_waits_for_those_that_began_before() {
    let (e, s, slot) = world();
    let look = |e: &Epochs| e.look([&slot].into_iter());
    assert!(e.enter(&slot));
    assert_eq!(s.ask(TwoPhase, true, Why::Asked, 10, 1), Asked::Started);
    assert_eq!(s.advance(&e, look(&e), 2, false), Event::Stepped);
    assert_eq!(s.set(), ProtocolSet::mediated(Occ, TwoPhase));
    assert_eq!(s.advance(&e, look(&e), 3, false), Event::Waits, "the slot began under the old set");
    Epochs::leave(&slot);
    assert!(e.enter(&slot));
    assert_eq!(s.advance(&e, look(&e), 4, false), Event::Stepped);
    assert_eq!(s.set(), ProtocolSet::of(TwoPhase));
    assert_eq!(s.advance(&e, look(&e), 5, false), Event::Waits);
    Epochs::leave(&slot);
    let Event::Done(d) = s.advance(&e, look(&e), 6, false) else { panic!("not done") };
    assert_eq!((d.from, d.to, d.by), (ProtocolSet::of(Occ), ProtocolSet::of(TwoPhase), 10));
    assert_eq!(d.times, [1, 2, 4, 6]);
    assert_eq!(s.advance(&e, look(&e), 7, false), Event::Settled);
    assert!(s.view().pinned && s.unpin() && !s.view().pinned);
}

#[test]
fn protocols_that_rely_on_the_same_replace_each_other_in_one_step() {
    let of = ProtocolSet::of;
    let (e, s, slot) = world();
    let look = |e: &Epochs| e.look([&slot].into_iter());
    assert!(e.enter(&slot));
    assert!(s.choose(Mocc, Why::Probe, 1));
    assert_eq!(s.advance(&e, look(&e), 2, false), Event::Stepped);
    assert_eq!((s.set(), s.view().step), (of(Mocc), Step::Degrading), "no set in between");
    assert_eq!(s.advance(&e, look(&e), 3, false), Event::Waits, "the slot began under the old protocol");
    // Back at once, although the slot may follow either. Then the next switch waits for it.
    assert!(s.take_back(4));
    assert_eq!(s.advance(&e, look(&e), 5, false), Event::Stepped);
    assert_eq!(s.set(), of(Occ));
    assert_eq!(s.ask(TwoPhase, false, Why::Asked, 0, 6), Asked::Queued);
    assert_eq!(s.advance(&e, look(&e), 7, false), Event::Waits, "it may follow the other one");
    Epochs::leave(&slot);
    assert!(matches!(s.advance(&e, look(&e), 8, false), Event::Done(d) if (d.from, d.to) == (of(Occ), of(Occ))));
    assert_eq!(s.advance(&e, look(&e), 9, false), Event::Stepped);
    assert_eq!(s.set(), ProtocolSet::mediated(Occ, TwoPhase), "these two do not");
    // No other pair relies on the same.
    for (a, b) in Protocol::ALL.into_iter().flat_map(|a| Protocol::ALL.map(|b| (a, b))) {
        let alike = [Occ, Mocc].contains(&a) && [Occ, Mocc].contains(&b);
        assert_eq!(of(a).relies_alike(of(b)), alike, "{a:?} {b:?}");
        assert!(!of(a).relies_alike(ProtocolSet::EMPTY) && !ProtocolSet::EMPTY.relies_alike(of(a)));
    }
    assert!(!ProtocolSet::mediated(Occ, TwoPhase).relies_alike(of(Occ)));
}

#[test]
fn a_look_from_before_a_step_does_not_complete_it() {
    let (e, s, slot) = world();
    let before = e.look([&slot].into_iter());
    s.ask(TwoPhase, false, Why::Asked, 0, 1);
    s.advance(&e, before, 2, false);
    assert_eq!(s.advance(&e, before, 3, false), Event::Waits);
}

#[test]
fn requests_in_the_middle() {
    let (e, s, slot) = world();
    let look = |e: &Epochs| e.look([&slot].into_iter());
    e.enter(&slot);
    s.ask(TwoPhase, false, Why::Asked, 0, 1);
    s.advance(&e, look(&e), 2, false);
    // Back to the old one while the upgrade waits: at once.
    assert_eq!(s.ask(Occ, false, Why::Asked, 0, 3), Asked::Queued);
    assert_eq!(s.advance(&e, look(&e), 4, false), Event::Stepped);
    assert_eq!(s.set(), ProtocolSet::of(Occ));
    assert_eq!(s.advance(&e, look(&e), 5, false), Event::Waits, "it may follow both");
    Epochs::leave(&slot);
    assert!(matches!(s.advance(&e, look(&e), 6, false), Event::Done(d) if d.from == d.to));
    // A third one waits for its turn.
    s.ask(TwoPhase, false, Why::Asked, 0, 7);
    s.advance(&e, look(&e), 8, false);
    assert_eq!(s.ask(PartCc, false, Why::Asked, 0, 9), Asked::Queued);
    let mut sets = Vec::new();
    for now in 10..20 {
        sets.push(s.set());
        if s.advance(&e, look(&e), now, false) == Event::Settled {
            break;
        }
    }
    sets.dedup();
    let of = ProtocolSet::of;
    let both = ProtocolSet::mediated;
    assert_eq!(sets, [both(Occ, TwoPhase), of(TwoPhase), both(TwoPhase, PartCc), of(PartCc)]);
}

#[test]
fn another_coordinator_goes_on_from_any_state() {
    for dies_at in 0..3 {
        let (e, s, slot) = world();
        let look = |e: &Epochs| e.look([&slot].into_iter());
        s.ask(TwoPhase, false, Why::Asked, 0, 1);
        for now in 0..20 {
            faults::set((now == dies_at).then_some(Fault::CoordinatorDies));
            // The switch must wait for a transaction that begins after each step.
            Epochs::leave(&slot);
            s.advance(&e, look(&e), now, false);
            faults::set(None);
            if s.epoch.load(Ordering::SeqCst) == 0 && s.view().step != Step::Settled {
                assert!(!e.look([&slot].into_iter()).has(0), "a step that was not announced is complete");
            }
            e.enter(&slot);
        }
        assert_eq!((s.set(), s.view().step), (ProtocolSet::of(TwoPhase), Step::Settled));
    }
}

#[test]
fn stop_all_waits_for_everybody() {
    let (e, s, slot) = world();
    let look = |e: &Epochs| e.look([&slot].into_iter());
    e.enter(&slot);
    s.ask(PartCc, false, Why::Asked, 0, 1);
    s.advance(&e, look(&e), 2, true);
    let late = AtomicU64::new(0);
    assert!(!e.enter(&late), "no transaction begins");
    assert_eq!(s.advance(&e, look(&e), 3, true), Event::Waits);
    Epochs::leave(&slot);
    assert!(matches!(s.advance(&e, look(&e), 4, true), Event::Done(_)));
    assert_eq!(s.set(), ProtocolSet::of(PartCc));
    e.go_on();
    assert!(e.enter(&late));
}

#[test]
fn who_excludes_everybody_ends_a_switch() {
    let (e, s, slot) = world();
    s.ask(PartCc, true, Why::Asked, 0, 1);
    s.advance(&e, e.look([&slot].into_iter()), 2, false);
    s.put(ProtocolSet::of(TwoPhase), Some(false));
    assert!(!s.view().is_open() && !s.view().pinned);
    assert_eq!(s.advance(&e, e.look([&slot].into_iter()), 3, false), Event::Settled);
}

/// A switch from `occ` to `2pl` that is about to be completed, by the given method, and its state
/// as the coordinator has found it.
fn about_to_finish(stop_all: bool) -> (Epochs, Switch, SwitchView) {
    let (e, s, slot) = world();
    let look = |e: &Epochs| e.look([&slot].into_iter());
    s.ask(TwoPhase, false, Why::Asked, 0, 1);
    let last = if stop_all { Step::Stopping } else { Step::Degrading };
    for now in 2..5 {
        if s.view().step != last {
            assert_eq!(s.advance(&e, look(&e), now, stop_all), Event::Stepped);
        }
    }
    let v = s.view();
    assert_eq!(v.step, last);
    (e, s, v)
}

/// The set in use after a process that excluded all others has put `partcc` in use behind the
/// coordinator's back.
fn finished_behind_a_put(stop_all: bool, fault: Option<Fault>) -> (ProtocolSet, Event) {
    let (_, s, found) = about_to_finish(stop_all);
    s.put(ProtocolSet::of(PartCc), Some(true));
    faults::set(fault);
    let event = s.finish(found, 9);
    faults::set(None);
    assert!(s.view().pinned);
    (s.set(), event)
}

#[test]
fn a_switch_that_was_ended_meanwhile_is_not_completed() {
    for stop_all in [false, true] {
        assert_eq!(finished_behind_a_put(stop_all, None), (ProtocolSet::of(PartCc), Event::Waits));
        let (set, _) = finished_behind_a_put(stop_all, Some(Fault::FinishesBlindly));
        assert_eq!(set, ProtocolSet::of(TwoPhase), "the test finds nothing");
    }
}

#[test]
fn a_switch_is_completed_whatever_was_asked_for_meanwhile() {
    for stop_all in [false, true] {
        let (_, s, found) = about_to_finish(stop_all);
        s.ask(PartCc, true, Why::Asked, 10, 8);
        assert!(matches!(s.finish(found, 9), Event::Done(d) if d.to == ProtocolSet::of(TwoPhase)));
        let v = s.view();
        assert_eq!((v.set, v.wanted, v.step), (ProtocolSet::of(TwoPhase), ProtocolSet::of(PartCc), Step::Settled));
        assert!(v.pinned && v.by == 10);
    }
}

#[test]
fn a_switch_keeps_the_time_at_which_it_was_asked_for() {
    let (e, s, slot) = world();
    let look = |e: &Epochs| e.look([&slot].into_iter());
    s.ask(TwoPhase, false, Why::Asked, 10, 1);
    s.ask(TwoPhase, false, Why::Asked, 10, 2);
    assert_eq!(s.asked_at(), 1, "it was asked for already");
    s.advance(&e, look(&e), 3, false);
    s.ask(Occ, false, Why::Asked, 11, 4);
    s.ask(PartCc, false, Why::Asked, 11, 5);
    assert_eq!(s.times(), [1, 3, 3]);
    s.advance(&e, look(&e), 6, false);
    let Event::Done(first) = s.advance(&e, look(&e), 7, false) else { panic!("not done") };
    assert_eq!((first.to, first.by, first.times), (ProtocolSet::of(TwoPhase), 10, [1, 3, 6, 7]));
    for now in 8..10 {
        assert_eq!(s.advance(&e, look(&e), now, false), Event::Stepped);
    }
    let Event::Done(second) = s.advance(&e, look(&e), 10, false) else { panic!("not done") };
    assert_eq!((second.to, second.by, second.times), (ProtocolSet::of(PartCc), 11, [5, 8, 9, 10]));
    assert!(s.choose(Occ, Why::Chosen, 11) && s.asked_at() == 11);
    assert!(!s.choose(Occ, Why::Chosen, 12) && s.asked_at() == 11);
}

#[test]
fn who_puts_a_set_in_use_learns_what_was_under_way() {
    let (e, s, slot) = world();
    s.ask(TwoPhase, false, Why::Asked, 10, 1);
    s.advance(&e, e.look([&slot].into_iter()), 2, false);
    let old = s.put(ProtocolSet::of(TwoPhase), None);
    assert_eq!((old.step, old.from, old.target), (Step::Upgrading, ProtocolSet::of(Occ), ProtocolSet::of(TwoPhase)));
    assert_eq!(s.waits_for(), None);
    assert_eq!(s.put(ProtocolSet::of(Occ), None).set, ProtocolSet::of(TwoPhase));
}
