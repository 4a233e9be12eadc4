//! The rule on waiting phases (CormCC, section 4.2), and what it is asked about: the protocols that a
//! shared block has in use.

use super::{occ, partcc, two_phase, Phase, Policy, Protocol, ProtocolSet, Rules};
use crate::error::Error;
use crate::primitive::{AtomicU32, AtomicU64, Ordering};

/// Phases in which a protocol makes transactions wait under a policy.
///
/// `declared`: are all partitions of `partcc` declared beforehand?
pub fn waits_in(p: Protocol, policy: Policy, declared: bool) -> u8 {
    match p {
        Protocol::PartCc if declared => Phase::Preprocess as u8,
        Protocol::PartCc => partcc::PartCc::WAITS,
        Protocol::Occ => occ::Occ::WAITS,
        Protocol::TwoPhase if policy == Policy::NoWait => 0,
        Protocol::TwoPhase => two_phase::TwoPhase::WAITS,
    }
}

/// May these protocols be in use together? (CormCC, section 4.2)
///
/// Yes if the platform's deadlock detector sees all waits; else if each protocol waits in one phase at most
/// and no two protocols wait in the same phase. (Policies of one protocol share its waits.)
pub fn accepts(set: &[(Protocol, Policy, bool)], detector: bool) -> bool {
    let phases = |p: Protocol| {
        set.iter().filter(|s| s.0 == p).fold(0, |w, &(p, policy, declared)| w | waits_in(p, policy, declared))
    };
    let mut seen = 0u8;
    detector
        || Protocol::ALL.into_iter().map(phases).all(|w| {
            let fine = w.count_ones() <= 1 && seen & w == 0;
            seen |= w;
            fine
        })
}

/// The protocols that a shared block has, or has had, in use. All-zero: none, and a detector sees all waits.
#[repr(C)]
pub struct InUse {
    /// A bit for each pair of protocol and policy. Only kept without a detector.
    pairs: AtomicU32,
    no_detector: AtomicU32,
    undeclared: AtomicU32,
    /// How often `partcc` was given to a partition; that number when a look at all partitions found it in none, and
    /// when two in a row did.
    partcc_given: AtomicU64,
    partcc_missed: AtomicU64,
    partcc_gone: AtomicU64,
}

impl InUse {
    fn all() -> impl Iterator<Item = (u32, Protocol, Policy)> {
        let policies = |p| Policy::ALL.into_iter().map(move |policy| (p, policy));
        Protocol::ALL.into_iter().flat_map(policies).enumerate().map(|(i, (p, policy))| (1 << i, p, policy))
    }

    /// The platform has no detector that sees its waits, from now on; `declared`: transactions declare all
    /// partitions of `partcc` before their first statement. Before any protocol is in use.
    pub fn without_detector(&self, declared: bool) {
        self.undeclared.store(u32::from(!declared), Ordering::SeqCst);
        self.no_detector.store(1, Ordering::SeqCst);
    }

    /// Does `partcc` run a partition, or is it about to? Where it runs none, nobody needs to know a transaction's
    /// partitions beforehand. A hint: it may be wrong from the second look that misses a change made long after its
    /// [`add`](Self::add) to the look that finds it.
    pub fn has_partcc(&self) -> bool {
        self.partcc_given.load(Ordering::Relaxed) != self.partcc_gone.load(Ordering::Relaxed)
    }

    /// Looks through all partitions' sets, of now and wanted. One process does so, now and then.
    pub fn look_for_partcc(&self, mut sets: impl Iterator<Item = ProtocolSet>) {
        let given = self.partcc_given.load(Ordering::SeqCst);
        let found = sets.any(|s| s.has(Protocol::PartCc));
        if found && !self.has_partcc() {
            self.partcc_given.fetch_add(1, Ordering::SeqCst);
        } else if !found && self.partcc_missed.swap(given, Ordering::SeqCst) == given {
            self.partcc_gone.store(given, Ordering::SeqCst);
        }
    }

    /// Puts a set of protocols in use under a policy, or refuses it: [`Error::WaitingPhases`]. What was
    /// accepted once stays in use, also when its tables are gone.
    pub fn add(&self, set: ProtocolSet, policy: Policy) -> Result<(), Error> {
        if set.has(Protocol::PartCc) {
            self.partcc_given.fetch_add(1, Ordering::SeqCst);
        }
        if self.no_detector.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let declared = self.undeclared.load(Ordering::SeqCst) == 0;
        let mine = Self::all().filter(|&(_, p, q)| set.has(p) && q == policy).fold(0, |bits, (b, ..)| bits | b);
        let mut old = self.pairs.load(Ordering::SeqCst);
        loop {
            let new = old | mine;
            let rules: Vec<_> = Self::all().filter(|a| new & a.0 != 0).map(|(_, p, q)| (p, q, declared)).collect();
            if !accepts(&rules, false) {
                return Err(Error::WaitingPhases);
            }
            match self.pairs.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Ok(()),
                Err(now) => old = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_on_waiting_phases() {
        let occ = (Protocol::Occ, Policy::Wait, false);
        let two = (Protocol::TwoPhase, Policy::Wait, false);
        let die = (Protocol::TwoPhase, Policy::WaitDie, false);
        let part = (Protocol::PartCc, Policy::Wait, true);
        let undeclared = (Protocol::PartCc, Policy::Wait, false);
        assert!(accepts(&[occ, two, part], false));
        assert!(accepts(&[two, die], false), "one protocol, whatever its policies");
        assert!(!accepts(&[undeclared, two], false), "undeclared partcc and 2pl wait in one phase");
        assert!(accepts(&[undeclared, two], true), "a detector that sees the waits allows it");
        assert!(accepts(&[undeclared, (Protocol::TwoPhase, Policy::NoWait, false)], false));
    }

    #[test]
    fn partcc_is_in_use_from_its_choice_until_no_partition_has_it() {
        // SAFETY: all-zero is its empty state.
        let used: InUse = unsafe { std::mem::zeroed() };
        let (occ, part) = (ProtocolSet::of(Protocol::Occ), ProtocolSet::of(Protocol::PartCc));
        assert!(!used.has_partcc());
        used.add(occ, Policy::Wait).unwrap();
        assert!(!used.has_partcc());
        used.add(part, Policy::Wait).unwrap();
        assert!(used.has_partcc());
        used.look_for_partcc([occ, part].into_iter());
        assert!(used.has_partcc());
        used.look_for_partcc([occ, occ].into_iter());
        assert!(used.has_partcc(), "a change may be on its way");
        used.look_for_partcc([occ, occ].into_iter());
        assert!(!used.has_partcc());
        // A partition whose change came long after its `add`.
        used.look_for_partcc([occ.union(part)].into_iter());
        assert!(used.has_partcc());
    }
}
