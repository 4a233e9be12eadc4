//! The rule on waiting phases is asked whenever protocols are put in use.

use mixedcc_engine::error::Error;
use mixedcc_engine::protocol::{Policy, Protocol, ProtocolSet};
use mixedcc_engine::switch::Why;
use mixedcc_engine::table::Table;
use mixedcc_engine::threads::Block;

fn of(p: Protocol) -> ProtocolSet {
    ProtocolSet::of(p)
}

#[test]
fn without_a_detector_sets_that_wait_in_one_phase_are_refused() {
    let block = Block::new(8 << 20, 1).expect("memory");
    let e = block.engine;
    e.shared.protocols.without_detector(false);
    let map = |p, policy| Table::new_map(&e, 0, 2, 0, b"", of(p), policy);
    let m = map(Protocol::PartCc, Policy::Wait).expect("alone it is accepted");
    assert_eq!(map(Protocol::TwoPhase, Policy::Wait).unwrap_err(), Error::WaitingPhases);
    assert_eq!(map(Protocol::TwoPhase, Policy::WaitDie).unwrap_err(), Error::WaitingPhases);
    let t = Table::create(&e, 0, [1; 4], m).expect("a table");
    let [a, b] = t.map().partitions() else { panic!("two partitions") };

    // A switch, a set at once, a policy: nothing changes if it is refused.
    let ask = |p| a.ask(&e, p, true, Why::Asked, 0, 1);
    assert_eq!(ask(Protocol::TwoPhase).unwrap_err(), Error::WaitingPhases);
    assert_eq!(a.put(&e, ProtocolSet::mediated(Protocol::PartCc, Protocol::TwoPhase), None), Err(Error::WaitingPhases));
    assert_eq!(a.switch.view().wanted, of(Protocol::PartCc));
    ask(Protocol::Occ).expect("occ waits for nobody while it executes");
    a.set_policy(&e, Policy::NoWait).expect("no locks are waited for under it");
    ask(Protocol::TwoPhase).expect("2pl that never waits");
    assert_eq!(a.set_policy(&e, Policy::Wait), Err(Error::WaitingPhases));
    assert_eq!((a.policy(), b.policy()), (Policy::NoWait, Policy::Wait));
}

#[test]
fn declared_partitions_wait_in_a_phase_of_their_own() {
    let block = Block::new(8 << 20, 1).expect("memory");
    let e = block.engine;
    e.shared.protocols.without_detector(true);
    for p in [Protocol::PartCc, Protocol::Occ, Protocol::TwoPhase] {
        Table::new_map(&e, 0, 1, 0, b"", of(p), Policy::Wait).expect("all three together");
    }
    // It waits in two phases, but for policies that wait in one.
    let hot = |policy| Table::new_map(&e, 0, 1, 0, b"", of(Protocol::Mocc), policy).map(|_| ());
    assert_eq!(hot(Policy::Wait), Err(Error::WaitingPhases));
}

#[test]
fn a_detector_allows_all() {
    let block = Block::new(8 << 20, 1).expect("memory");
    for (p, policy) in Protocol::ALL.into_iter().flat_map(|p| Policy::ALL.map(|policy| (p, policy))) {
        Table::new_map(&block.engine, 0, 1, 0, b"", of(p), policy).expect("a detector sees the waits");
    }
}
