//! What a transaction did in each partition that it has touched.
//!
//! **INV-TOUCHED**: Each of the first `NEAR` entries of a `TouchedList` is at one of the places
//! from its hash on, and none of the places between is free. The other entries are in `far`.

use super::write::Delta;
use crate::csn::SlotId;
use crate::faults::{self, Fault};
use crate::partition::Partition;
use crate::primitive::Ordering;
use crate::protocol::ProtocolSet;
use hashbrown::HashMap;

/// Places of a small hash table by the partitions' addresses.
const PLACES: usize = 64;
/// So many partitions have places. The table stays half empty, so that a search ends soon.
const NEAR: usize = PLACES / 2;

/// What a transaction did in a partition.
pub struct Touched {
    /// The partition.
    pub partition: &'static Partition,
    /// The protocols that are followed in it; empty: only snapshots were read.
    pub set: ProtocolSet,
    /// Reads, for its counters.
    pub reads: u32,
    /// Writes that were committed, for its counters.
    pub writes: u32,
    /// What they change in the partition, for its counters.
    pub delta: Delta,
    /// Do we hold the partition's lock? Then to the transaction's end.
    pub locked: bool,
}

impl Touched {
    fn new(partition: &'static Partition) -> Touched {
        let (set, delta) = (ProtocolSet::EMPTY, Delta::default());
        Touched { partition, set, reads: 0, writes: 0, delta, locked: false }
    }

    /// Would a serializable read of any row take a lock that we do not hold?
    #[inline]
    pub fn locks_to_read(&self) -> bool {
        self.set.locks_reads() || self.set.locks_partitions() && !self.locked
    }
    /// Might one of a hot row?
    #[inline]
    pub fn may_lock_to_read(&self) -> bool {
        self.set.may_lock_reads() || self.set.locks_partitions() && !self.locked
    }
    /// Would a serializable write of a row take one before the commit?
    #[inline]
    pub fn locks_to_write(&self) -> bool {
        self.set.locks_writes() || self.set.locks_partitions() && !self.locked
    }
}

/// A place of the hash table.
#[derive(Clone, Copy)]
struct Place {
    /// The place is taken if this is the round of the list.
    round: u32,
    /// Index of an entry of `all`.
    at: u32,
}

/// The partitions that a transaction has touched: each once (INV-TOUCHED).
pub struct TouchedList {
    all: Vec<Touched>,
    places: [Place; PLACES],
    /// Never 0. A new round forgets all places.
    round: u32,
    far: HashMap<usize, u32>,
}

impl Default for TouchedList {
    fn default() -> TouchedList {
        TouchedList { all: Vec::new(), places: [Place { round: 0, at: 0 }; PLACES], round: 1, far: HashMap::new() }
    }
}

#[inline]
fn key(p: &Partition) -> usize {
    p as *const Partition as usize
}

impl TouchedList {
    /// The entry of a partition among those with places; else the place where it would be.
    #[inline(always)]
    fn near(&self, partition: &Partition) -> Result<usize, usize> {
        // Partitions lie side by side in their map.
        let mut place = (key(partition) >> std::mem::size_of::<Partition>().trailing_zeros()) % PLACES;
        loop {
            let p = self.places[place];
            if p.round != self.round {
                return Err(place);
            }
            if std::ptr::eq(self.all[p.at as usize].partition, partition) {
                return Ok(p.at as usize);
            }
            place = (place + 1) % PLACES;
        }
    }

    /// The entry of a partition, if it was touched.
    #[inline]
    pub fn get(&self, partition: &Partition) -> Option<&Touched> {
        let at = self.near(partition).ok().or_else(|| self.far.get(&key(partition)).map(|&i| i as usize))?;
        Some(&self.all[at])
    }

    /// The entry of a partition; allocates at its first touch only.
    #[inline(always)]
    pub fn entry(&mut self, partition: &'static Partition) -> &mut Touched {
        match self.near(partition) {
            Ok(at) => &mut self.all[at],
            Err(place) => self.find_or_add(partition, place),
        }
    }

    #[inline(never)]
    fn find_or_add(&mut self, partition: &'static Partition, place: usize) -> &mut Touched {
        let at = self.all.len();
        if at >= NEAR {
            return self.find_or_add_far(partition);
        }
        self.places[place] = Place { round: self.round, at: at as u32 };
        self.all.push(Touched::new(partition));
        &mut self.all[at]
    }

    #[cold]
    fn find_or_add_far(&mut self, partition: &'static Partition) -> &mut Touched {
        let at = self.all.len();
        let known = *self.far.entry(key(partition)).or_insert(at as u32) as usize;
        if known == at {
            self.all.push(Touched::new(partition));
        }
        &mut self.all[known]
    }

    /// The protocols that the transaction has followed in a partition so far.
    pub fn followed(&self, partition: &Partition) -> ProtocolSet {
        if faults::on(Fault::ForgetsProtocols) {
            return partition.protocols();
        }
        self.get(partition).map_or(ProtocolSet::EMPTY, |t| t.set)
    }

    /// The protocols under which the transaction may have read in a partition.
    pub fn may_follow(&self, partition: &Partition) -> ProtocolSet {
        self.followed(partition).union(partition.protocols())
    }

    /// The locks of partitions are looked at again.
    pub fn forget_locks(&mut self) {
        self.all.iter_mut().for_each(|t| t.locked = false);
    }

    /// Counts the reads in all partitions.
    pub fn count_reads(&self, slot: SlotId) {
        for t in self.all.iter().filter(|t| t.reads != 0) {
            t.partition.stats.stripe(slot).reads.fetch_add(t.reads as u64, Ordering::Relaxed);
        }
    }

    /// All entries, in the order of their first touch.
    pub fn iter(&self) -> std::slice::Iter<'_, Touched> {
        self.all.iter()
    }

    /// Was anything read in one of these partitions?
    pub fn has_read_in(&self, partitions: &[Partition]) -> bool {
        let of_these = |p: &Partition| partitions.as_ptr_range().contains(&std::ptr::from_ref(p));
        self.all.iter().any(|t| t.reads > 0 && of_these(t.partition))
    }

    /// Was none touched?
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        super::clear_vec(&mut self.all);
        super::clear_map(&mut self.far);
        self.round = match self.round.checked_add(1) {
            Some(round) => round,
            None => {
                self.places.fill(Place { round: 0, at: 0 });
                1
            }
        };
    }
}

#[cfg(all(test, not(loom)))]
mod unit {
    use super::*;
    use crate::protocol::{Policy, Protocol};
    use crate::table::Table;
    use crate::threads::Block;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Against a list that is searched from its beginning, over several transactions and
        /// the end of the rounds.
        #[test]
        fn a_partition_has_one_entry(
            transactions in prop::collection::vec(prop::collection::vec(0..200usize, 0..150), 1..5),
            maps in 1..4usize,
            rounds_left in 0..3u32,
        ) {
            let block = Block::new(16 << 20, 1).expect("a block");
            let e = block.engine;
            let set = ProtocolSet::of(Protocol::Occ);
            let map = |n| Table::new_map(&e, 0, n, 0, b"", set, Policy::Wait).expect("a map");
            // SAFETY: INV-MAP: maps live as long as the block.
            let all: Vec<&'static Partition> = (0..maps)
                .flat_map(|i| unsafe { &*map([200, 7, 64][i]).as_ptr() }.partitions())
                .collect();
            let mut list = TouchedList { round: u32::MAX - rounds_left, ..TouchedList::default() };
            for touches in transactions {
                let mut wanted: Vec<(&Partition, u32)> = Vec::new();
                for at in touches {
                    let partition = all[at * all.len() / 200];
                    match wanted.iter_mut().find(|w| std::ptr::eq(w.0, partition)) {
                        Some(w) => w.1 += 1,
                        None => {
                            prop_assert!(list.get(partition).is_none());
                            wanted.push((partition, 1));
                        }
                    }
                    list.entry(partition).reads += 1;
                }
                let found: Vec<_> = list.iter().map(|t| (key(t.partition), t.reads)).collect();
                let wanted: Vec<_> = wanted.iter().map(|w| (key(w.0), w.1)).collect();
                prop_assert_eq!(&found, &wanted);
                for p in &all {
                    let reads = wanted.iter().find(|w| w.0 == key(p)).map(|w| w.1);
                    prop_assert_eq!(list.get(p).map(|t| t.reads), reads);
                }
                list.clear();
                prop_assert!(list.is_empty() && all.iter().all(|p| list.get(p).is_none()));
            }
        }
    }
}
