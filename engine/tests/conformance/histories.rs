//! Histories of every protocol, every pair of protocols, and of switches between them.

use crate::load::{assert_serializable, run, Load};
use mixedcc_engine::{Policy, Protocol, ProtocolSet};
use Protocol::{Occ, PartCc, TwoPhase};

fn judge(l: Load) {
    let (h, counts) = run(&l);
    assert_serializable(&h, &counts, l.seed);
}

fn alone(p: Protocol, policy: Policy, seed: u64) {
    judge(Load::new(&[ProtocolSet::of(p)], policy, seed));
    judge(Load::new(&[ProtocolSet::of(p)], policy, seed + 1).serializable_only());
    // Long transactions with few conflicts of writes: here reads matter.
    let mut l = Load::new(&[ProtocolSet::of(p)], policy, seed + 2);
    (l.statements, l.churn, l.commits) = (12, 10, 1200);
    judge(l);
}

/// Half of the partitions under each protocol.
fn halves(a: Protocol, b: Protocol, policy: Policy, seed: u64) {
    judge(Load::new(&[ProtocolSet::of(a), ProtocolSet::of(b)], policy, seed));
    judge(Load::new(&[ProtocolSet::of(a), ProtocolSet::of(b)], policy, seed + 1).serializable_only());
}

/// Two partitions mediated from `a` to `b`, one under each.
fn mediated(a: Protocol, b: Protocol, policy: Policy, seed: u64) {
    let both = ProtocolSet::mediated(a, b);
    judge(Load::new(&[both], policy, seed));
    judge(Load::new(&[both, ProtocolSet::of(a), both, ProtocolSet::of(b)], policy, seed + 1));
}

#[test]
fn occ_alone() {
    alone(Occ, Policy::Wait, 10);
}
#[test]
fn partcc_alone() {
    alone(PartCc, Policy::Wait, 20);
}
#[test]
fn two_phase_wait() {
    alone(TwoPhase, Policy::Wait, 30);
}
#[test]
fn two_phase_no_wait() {
    alone(TwoPhase, Policy::NoWait, 40);
}
#[test]
fn two_phase_wait_die() {
    alone(TwoPhase, Policy::WaitDie, 50);
}

#[test]
fn occ_and_two_phase() {
    for (i, policy) in Policy::ALL.into_iter().enumerate() {
        halves(Occ, TwoPhase, policy, 100 + 10 * i as u64);
        halves(TwoPhase, Occ, policy, 105 + 10 * i as u64);
    }
}
#[test]
fn partcc_and_two_phase() {
    for (i, policy) in Policy::ALL.into_iter().enumerate() {
        halves(PartCc, TwoPhase, policy, 200 + 10 * i as u64);
        halves(TwoPhase, PartCc, policy, 205 + 10 * i as u64);
    }
}
#[test]
fn partcc_and_occ() {
    halves(PartCc, Occ, Policy::Wait, 300);
    halves(Occ, PartCc, Policy::Wait, 310);
}
#[test]
fn all_three() {
    let sets = [PartCc, Occ, TwoPhase].map(ProtocolSet::of);
    for (i, policy) in Policy::ALL.into_iter().enumerate() {
        judge(Load::new(&sets, policy, 400 + i as u64));
    }
}

#[test]
fn mediated_occ_two_phase() {
    for (i, policy) in Policy::ALL.into_iter().enumerate() {
        mediated(Occ, TwoPhase, policy, 500 + 10 * i as u64);
    }
}
#[test]
fn mediated_partcc_two_phase() {
    for (i, policy) in Policy::ALL.into_iter().enumerate() {
        mediated(PartCc, TwoPhase, policy, 600 + 10 * i as u64);
    }
}
#[test]
fn mediated_partcc_occ() {
    mediated(PartCc, Occ, Policy::Wait, 700);
}
