//! The end of the CSNs (INV-CLOCK): commits are refused long before a CSN does not fit into its
//! words.

use crate::client::Mood;
use crate::steps::session;
use crate::world::World;
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::csn::{CSN_LIMIT, CSN_MAX, CSN_STOP};
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};

fn world() -> World {
    World::new(&[ProtocolSet::of(Protocol::Occ), ProtocolSet::of(Protocol::TwoPhase)], Policy::Wait, 4)
}

#[test]
fn transactions_that_write_are_refused_in_time_and_readers_go_on() {
    let w = world();
    let r = Recorder::new();
    let (mut a, mut b) = (session(&w, &r, 0), session(&w, &r, 1));
    w.e.advance_clock(CSN_LIMIT - 2);
    a.begin(Mood::Serializable);
    assert_eq!(a.add(0, 1, false), Ok(true));
    a.commit().expect("the last but one");
    // What is under way when the limit is reached still ends.
    a.begin(Mood::Serializable);
    assert_eq!(a.add(0, 1, false), Ok(true));
    a.t.prepare(&a.p, &|_, _| {}).expect("the last one");
    for mood in [Mood::Serializable, Mood::ReadCommitted] {
        b.begin(mood);
        assert_eq!(b.insert(1), Ok(true));
        assert_eq!(b.commit(), Err(Error::ClockExhausted), "{mood:?}");
        b.abort();
    }
    a.t.publish(&a.p);
    a.abort();
    for mood in [Mood::Serializable, Mood::RepeatableRead, Mood::ReadOnly] {
        b.begin(mood);
        assert_eq!(b.get(0).expect("a read").map(|row| row.value), Some(102), "{mood:?}");
        assert_eq!(b.get(1).expect("a read"), None, "{mood:?}");
        b.commit().expect("it has only read");
    }
}

#[test]
fn the_clock_stops_before_its_end() {
    let w = world();
    w.e.advance_clock(u64::MAX);
    let end = w.e.now();
    assert!(end <= CSN_STOP && CSN_STOP + (1 << 31) < CSN_MAX, "saved clocks may be damaged");
    let r = Recorder::new();
    let mut a = session(&w, &r, 0);
    for _ in 0..100 {
        a.begin(Mood::Serializable);
        assert_eq!(a.add(0, 1, false), Ok(true));
        assert_eq!(a.commit(), Err(Error::ClockExhausted));
        a.abort();
        w.e.tick();
    }
    assert_eq!(w.e.now(), end);
    // A commit that was under way is not refused, and still gets a CSN that fits.
    a.begin(Mood::Serializable);
    assert_eq!(a.add(0, 1, false), Ok(true));
    faults::set(Some(Fault::ClockRunsOver));
    let refused = a.commit().is_err();
    faults::set(None);
    assert!(!refused, "the fault has no effect");
    assert_eq!(w.e.now(), end + 1);
    a.begin(Mood::Serializable);
    assert_eq!(a.get(0).expect("a read").map(|row| row.value), Some(101));
    a.commit().expect("it has only read");
}
