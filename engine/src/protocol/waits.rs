//! The rule on waiting phases (CormCC, section 4.2), and what it is asked about: the protocols that
//! a shared block has in use.

use super::{Policy, Protocol, ProtocolSet};
use crate::error::Error;
use crate::primitive::{AtomicU32, AtomicU64, Ordering};

/// Phases in which a protocol makes transactions wait under a policy, as bits of
/// [`Phase`](super::Phase).
///
/// `declared`: do transactions declare their partitions before their first statement?
pub fn waits_in(p: Protocol, policy: Policy, declared: bool) -> u8 {
    p.waits(policy, declared)
}

/// May these protocols be in use together? (CormCC, section 4.2)
///
/// Yes if the platform's deadlock detector sees all waits; else if each protocol waits in one phase
/// at most and no two protocols wait in the same phase. (Policies of one protocol share its waits.)
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

/// The protocols that a shared block has, or has had, in use. All-zero: none, and a detector sees
/// all waits.
#[repr(C)]
pub struct InUse {
    /// A bit for each pair of protocol and policy. Only kept without a detector.
    pairs: AtomicU32,
    no_detector: AtomicU32,
    undeclared: AtomicU32,
    /// How often a partition was given a set that wants declarations; that number when a look at
    /// all partitions found no such set, and when two looks in a row did.
    wanting_given: AtomicU64,
    wanting_missed: AtomicU64,
    wanting_gone: AtomicU64,
}

/// [`InUse`] has a bit for each pair.
const _: () = assert!(Protocol::COUNT * Policy::ALL.len() <= u32::BITS as usize);

impl InUse {
    fn all() -> impl Iterator<Item = (u32, Protocol, Policy)> {
        let policies = |p| Policy::ALL.into_iter().map(move |policy| (p, policy));
        Protocol::ALL.into_iter().flat_map(policies).enumerate().map(|(i, (p, policy))| (1 << i, p, policy))
    }

    /// The platform has no detector that sees its waits, from now on; `declared`: transactions
    /// declare all partitions that want it before their first statement. Call it before any
    /// protocol is in use.
    pub fn without_detector(&self, declared: bool) {
        self.undeclared.store(u32::from(!declared), Ordering::SeqCst);
        self.no_detector.store(1, Ordering::SeqCst);
    }

    /// Does the protocol of any partition want declarations, or is one about to? Where none does, a
    /// platform need not find out which partitions a transaction will touch. A hint: it may be
    /// wrong from the second look that misses a change made long after its [`add`](Self::add) to
    /// the look that finds it.
    pub fn wants_declarations(&self) -> bool {
        self.wanting_given.load(Ordering::Relaxed) != self.wanting_gone.load(Ordering::Relaxed)
    }

    /// Looks through the sets of all partitions, those of now and the wanted ones. One process does
    /// so, now and then.
    pub fn look_who_wants_declarations(&self, mut sets: impl Iterator<Item = ProtocolSet>) {
        let given = self.wanting_given.load(Ordering::SeqCst);
        let found = sets.any(ProtocolSet::wants_declarations);
        if found && !self.wants_declarations() {
            self.wanting_given.fetch_add(1, Ordering::SeqCst);
        } else if !found && self.wanting_missed.swap(given, Ordering::SeqCst) == given {
            self.wanting_gone.store(given, Ordering::SeqCst);
        }
    }

    /// Puts a set of protocols in use under a policy, or refuses it: [`Error::WaitingPhases`]. What
    /// was accepted once stays in use, also when its tables are gone.
    pub fn add(&self, set: ProtocolSet, policy: Policy) -> Result<(), Error> {
        if set.wants_declarations() {
            self.wanting_given.fetch_add(1, Ordering::SeqCst);
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
    use crate::protocol::Phase;

    #[test]
    fn each_protocol_says_where_it_waits() {
        for policy in Policy::ALL {
            let two_phase = if policy == Policy::NoWait { 0 } else { Phase::Execute as u8 };
            for (declared, partcc) in [(true, Phase::Preprocess), (false, Phase::Execute)] {
                assert_eq!(waits_in(Protocol::PartCc, policy, declared), partcc as u8);
                assert_eq!(waits_in(Protocol::Occ, policy, declared), Phase::Validate as u8);
                assert_eq!(waits_in(Protocol::TwoPhase, policy, declared), two_phase);
                let mocc = if policy == Policy::Wait { Phase::Execute as u8 | Phase::Validate as u8 } else { 0 };
                assert_eq!(waits_in(Protocol::Mocc, policy, declared), mocc);
            }
        }
    }

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
    fn declarations_are_wanted_from_the_choice_until_no_partition_wants_them() {
        // SAFETY: all-zero is its empty state.
        let used: InUse = unsafe { std::mem::zeroed() };
        let (occ, part) = (ProtocolSet::of(Protocol::Occ), ProtocolSet::of(Protocol::PartCc));
        assert!(!used.wants_declarations());
        used.add(occ, Policy::Wait).unwrap();
        assert!(!used.wants_declarations());
        used.add(part, Policy::Wait).unwrap();
        assert!(used.wants_declarations());
        used.look_who_wants_declarations([occ, part].into_iter());
        assert!(used.wants_declarations());
        used.look_who_wants_declarations([occ, occ].into_iter());
        assert!(used.wants_declarations(), "a change may be on its way");
        used.look_who_wants_declarations([occ, occ].into_iter());
        assert!(!used.wants_declarations());
        // A partition whose change came long after its `add`.
        used.look_who_wants_declarations([occ.union(part)].into_iter());
        assert!(used.wants_declarations());
    }
}
