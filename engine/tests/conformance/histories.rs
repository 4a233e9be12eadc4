//! Histories of every protocol, every pair of protocols, and of switches between them.

use crate::load::{assert_serializable, policies, run, Load};
use mixedcc_engine::{Policy, Protocol, ProtocolSet};

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

/// All protocols that come after this one in the list.
fn after(a: Protocol) -> impl Iterator<Item = Protocol> {
    Protocol::ALL.into_iter().skip(a.index() + 1)
}

#[test]
fn each_protocol_alone() {
    for p in Protocol::ALL {
        for &policy in policies(ProtocolSet::of(p)) {
            alone(p, policy, 10 + 40 * p.index() as u64 + 10 * policy as u64);
        }
    }
}

#[test]
fn each_pair_side_by_side() {
    for a in Protocol::ALL {
        for b in after(a) {
            for &policy in policies(ProtocolSet::mediated(a, b)) {
                let seed = 200 + 100 * a.index() as u64 + 20 * b.index() as u64 + policy as u64 * 4;
                halves(a, b, policy, seed);
                halves(b, a, policy, seed + 2);
            }
        }
    }
}

#[test]
fn all_protocols_side_by_side() {
    let sets = Protocol::ALL.map(ProtocolSet::of);
    for (i, policy) in Policy::ALL.into_iter().enumerate() {
        judge(Load::new(&sets, policy, 900 + i as u64));
    }
}

#[test]
fn each_pair_mediated() {
    for a in Protocol::ALL {
        for b in after(a) {
            for &policy in policies(ProtocolSet::mediated(a, b)) {
                let seed = 1000 + 100 * a.index() as u64 + 20 * b.index() as u64 + policy as u64 * 4;
                mediated(a, b, policy, seed);
            }
        }
    }
}
