//! Seeded faults: for each the checker must find what it breaks. So the other tests of this crate
//! would find an error of that kind.

use crate::client::Mood;
use crate::load::{find_anomaly, Load};
use mixedcc_engine::checker::AnomalyKind;
use mixedcc_engine::faults::Fault;
use mixedcc_engine::{Policy, Protocol, ProtocolSet};

/// Runs of a load at most, until an anomaly shows.
const RUNS: u64 = 40;

/// Demands an anomaly.
fn finds(fault: Fault, p: Protocol, tune: impl Fn(&mut Load)) {
    let load = |seed| {
        let mut l = Load::new(&[ProtocolSet::of(p)], Policy::Wait, seed).serializable_only();
        (l.fault, l.commits) = (Some(fault), 1000);
        tune(&mut l);
        l
    };
    let v = find_anomaly(load, RUNS).unwrap_or_else(|| panic!("{fault:?} was not found in {RUNS} runs"));
    eprintln!("{v}");
    assert!(!v.has(AnomalyKind::Malformed), "the record of the history is at fault: {v}");
}

#[test]
fn validation_left_out() {
    finds(Fault::NoValidation, Protocol::Occ, |_| {});
}

#[test]
fn validation_of_predicates_left_out() {
    // Rows are locked, so only phantoms can slip through.
    finds(Fault::NoValidation, Protocol::TwoPhase, |l| l.churn = 90);
}

#[test]
fn read_locks_released_early() {
    finds(Fault::EarlyRelease, Protocol::TwoPhase, |_| {});
}

#[test]
fn csn_taken_after_validation() {
    finds(Fault::LateCsn, Protocol::Occ, |_| {});
}

#[test]
fn registration_before_the_scan_missed() {
    finds(Fault::PositionIsTail, Protocol::Occ, |l| (l.churn, l.yields) = (90, 60));
}

#[test]
fn slot_reused() {
    finds(Fault::SlotReused, Protocol::Occ, |l| {
        l.moods = vec![Mood::Serializable, Mood::Serializable, Mood::ReadOnly, Mood::ReadOnly, Mood::RepeatableRead];
        l.statements = 3;
    });
}

#[test]
fn a_writer_that_takes_its_csn_overlooked() {
    finds(Fault::PreparingIsActive, Protocol::Occ, |_| {});
}
