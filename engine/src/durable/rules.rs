//! The protocols of a table's partitions, as its meta page keeps them: what users have pinned and
//! what the coordinator has chosen outlives a restart.

use super::{require, Malformed};
use crate::partition::PartitionMap;
use crate::protocol::ProtocolSet;
use crate::shared::Engine;

/// Set beside the protocols of a partition that is pinned.
const PINNED: u8 = 1 << 7;
/// The protocols of so many partitions have room in a meta page.
pub const MOST: usize = 4096;
const _: () = assert!(ProtocolSet::MASK < PINNED as u32);

/// A byte for the protocols that the table's options name, and a byte for each partition. Empty:
/// all partitions are as the options say, or are more than [`MOST`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<u8>);

impl Rules {
    /// Those of a table. While a partition is switched, the protocol that it will have.
    pub fn of(map: &PartitionMap) -> Rules {
        let declared = map.declared().bits() as u8;
        let of_partition = |p: &crate::partition::Partition| {
            let v = p.switch.view();
            v.wanted.bits() as u8 | if v.pinned { PINNED } else { 0 }
        };
        let mut all = vec![declared];
        all.extend(map.partitions().iter().take(MOST + 1).map(of_partition));
        if all.len() > MOST + 1 || all.iter().all(|rule| *rule == declared) {
            all.clear();
        }
        Rules(all)
    }
    /// Gives the partitions of a map that is not in use yet these protocols; but not if the table
    /// has another number of partitions, or its options name other protocols now.
    pub fn apply(&self, e: &Engine, map: &PartitionMap) {
        let Some((&declared, rules)) = self.0.split_first() else { return };
        if u32::from(declared) != map.declared().bits() || rules.len() != map.n as usize {
            return;
        }
        for (p, rule) in map.partitions().iter().zip(rules) {
            let set = ProtocolSet::from_bits(u32::from(rule & !PINNED));
            // A protocol that this build does not have, or that the rule on waiting phases refuses
            // beside those of other tables: as the options say.
            if set != ProtocolSet::EMPTY && set.minus(ProtocolSet::ALL) == ProtocolSet::EMPTY {
                let _ = p.put(e, set, Some(rule & PINNED != 0));
            }
        }
    }
    /// As in the meta page.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
    pub(super) fn read(bytes: &[u8]) -> Result<Rules, Malformed> {
        require(bytes.len() <= MOST + 1 && bytes.len() != 1, "an impossible number of partitions in the meta page")?;
        Ok(Rules(bytes.to_vec()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::protocol::{Policy, Protocol};
    use crate::table::Table;
    use crate::threads::Block;
    use std::ptr::NonNull;

    fn map(e: &Engine, n: u32, protocol: Protocol) -> &'static PartitionMap {
        let map: NonNull<PartitionMap> =
            Table::new_map(e, 0, n, 0, b"key", ProtocolSet::of(protocol), Policy::Wait).expect("room");
        // SAFETY: INV-MAP: the map is in no table, and is not freed.
        unsafe { map.as_ref() }
    }

    #[test]
    fn partitions_with_rows_of_prepared_transactions_lock_rows_first() {
        let block = Block::new(64 << 20, 4).unwrap();
        let e = block.engine;
        let one = map(&e, 2, Protocol::PartCc);
        let [first, second] = one.partitions() else { panic!("two partitions") };
        second.put(&e, ProtocolSet::of(Protocol::TwoPhase), Some(true)).unwrap();
        one.lock_rows(&e, 1);
        let view = first.switch.view();
        assert!(!view.set.locks_partitions() && view.wanted == ProtocolSet::of(Protocol::PartCc) && !view.pinned);
        let view = second.switch.view();
        assert_eq!((view.set, view.wanted), (ProtocolSet::of(Protocol::TwoPhase), ProtocolSet::of(Protocol::TwoPhase)));
    }

    #[test]
    fn rules_outlive_a_restart_unless_the_options_have_changed() {
        let block = Block::new(64 << 20, 4).unwrap();
        let e = block.engine;
        let one = map(&e, 3, Protocol::Occ);
        assert_eq!(Rules::of(one), Rules::default(), "as the options say");
        one.partitions()[1].put(&e, ProtocolSet::of(Protocol::TwoPhase), Some(true)).unwrap();
        one.partitions()[2].put(&e, ProtocolSet::of(Protocol::PartCc), None).unwrap();
        let rules = Rules::read(Rules::of(one).bytes()).unwrap();
        let next = map(&e, 3, Protocol::Occ);
        rules.apply(&e, next);
        assert_eq!(Rules::of(next), rules);
        assert!(next.partitions()[1].switch.view().pinned && !next.partitions()[2].switch.view().pinned);
        for (n, protocol) in [(4, Protocol::Occ), (3, Protocol::TwoPhase)] {
            let other = map(&e, n, protocol);
            rules.apply(&e, other);
            assert_eq!(Rules::of(other), Rules::default());
        }
        assert_eq!(Rules::of(map(&e, MOST as u32 + 1, Protocol::Occ)), Rules::default());
        assert!(Rules::read(&[1]).is_err() && Rules::read(&[1; MOST + 2]).is_err());
        let unknown = Rules::read(&[rules.bytes()[0], 0, 1 << 6, rules.bytes()[2]]).unwrap();
        let last = map(&e, 3, Protocol::Occ);
        unknown.apply(&e, last);
        assert_eq!(last.partitions()[0].protocols(), ProtocolSet::of(Protocol::Occ));
        assert!(last.partitions()[2].switch.view().pinned);
    }
}
