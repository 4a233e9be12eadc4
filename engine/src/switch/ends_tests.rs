//! Coordinators that end in the middle of a switch.

use super::state::StepEvent::{self, *};
use super::{Epochs, Event, Switch, Why};
use crate::primitive::AtomicU64;
use crate::protocol::Protocol::{Occ, TwoPhase};
use crate::protocol::ProtocolSet;

/// Epochs, a partition with `occ`, and the epoch that a slot publishes.
fn world() -> (Epochs, Switch, AtomicU64) {
    // SAFETY: all-zero memory is a valid switch and valid epochs.
    let (e, s): (Epochs, Switch) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    e.init();
    s.put(ProtocolSet::of(Occ), Some(false));
    (e, s, AtomicU64::new(0))
}

/// Makes steps until the switch is complete, while the slot's transaction restarts after each. The
/// coordinator ends when it reaches the event for the `n`th time. Returns whether it did, and how
/// often the switch was complete.
fn ends_at(event: StepEvent, n: usize) -> (bool, usize) {
    let (e, s, slot) = world();
    let (seen, ended) = (std::cell::Cell::new(0), std::cell::Cell::new(false));
    let at = |found: StepEvent| {
        seen.set(seen.get() + (found == event) as usize);
        if found == event && seen.get() == n && !ended.replace(true) {
            std::panic::panic_any("ends");
        }
    };
    s.ask(TwoPhase, false, Why::Asked, 0, 1);
    let mut complete = 0;
    for now in 2..12 {
        let look = e.look([&slot].into_iter());
        let pass = || s.unrecorded(now).is_some() || matches!(s.advance_by(&e, look, now, false, &at), Event::Done(_));
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(pass)).unwrap_or(false) {
            s.recorded();
            complete += 1;
        }
        Epochs::leave(&slot);
        assert!(e.enter(&slot));
    }
    assert_eq!((s.set(), s.view().is_open(), s.unrecorded(0)), (ProtocolSet::of(TwoPhase), false, None));
    (ended.get(), complete)
}

#[test]
fn a_coordinator_may_end_at_each_event() {
    for event in [Begin, Epoch, Stored, Announced] {
        assert_eq!([1, 2, 3].map(|n| ends_at(event, n)), [(true, 1), (true, 1), (false, 1)], "{event:?}");
    }
    assert_eq!([1, 2].map(|n| ends_at(Finish, n)), [(true, 1), (false, 1)]);
}

#[test]
fn a_complete_switch_that_nobody_recorded_is_found_once() {
    let (e, s, slot) = world();
    s.ask(TwoPhase, false, Why::Asked, 10, 1);
    let done = (2..9).find_map(|now| match s.advance(&e, e.look([&slot].into_iter()), now, false) {
        Event::Done(d) => Some(d),
        _ => None,
    });
    // That coordinator has ended, and the next one comes later.
    let found = s.unrecorded(100).expect("not recorded");
    assert_eq!(done.map(|d| (d.from, d.to, d.by)), Some((found.from, found.to, found.by)));
    assert_eq!((s.view().is_open(), s.set()), (false, ProtocolSet::of(TwoPhase)));
    s.recorded();
    assert_eq!(s.unrecorded(101), None);
    s.recorded();
    assert!(!s.view().is_open());
}
