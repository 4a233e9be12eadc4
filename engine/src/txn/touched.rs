//! What a transaction did in each partition that it has touched.

use crate::partition::Partition;
use crate::protocol::ProtocolSet;
use hashbrown::HashMap;

/// Of so many partitions that were touched last the entries are found by looking at each.
const NEAR: usize = 8;

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
}

/// The partitions that a transaction has touched: each once.
#[derive(Default)]
pub struct TouchedList {
    all: Vec<Touched>,
    /// Where the entry is that was asked for last.
    last: usize,
    /// Where they are in `all`, by address: all of them once there are more than `NEAR`.
    at: HashMap<usize, u32>,
}

fn key(p: &Partition) -> usize {
    p as *const Partition as usize
}

impl TouchedList {
    fn find(&self, partition: &Partition) -> Option<usize> {
        let near = self.all.len().saturating_sub(NEAR);
        match self.all[near..].iter().rposition(|t| std::ptr::eq(t.partition, partition)) {
            Some(i) => Some(near + i),
            None if near == 0 => None,
            None => self.at.get(&key(partition)).map(|&i| i as usize),
        }
    }

    /// The entry of a partition, if it was touched.
    pub fn get(&self, partition: &Partition) -> Option<&Touched> {
        self.find(partition).map(|i| &self.all[i])
    }

    /// The entry of a partition; allocates at its first touch only.
    #[inline]
    pub fn entry(&mut self, partition: &'static Partition) -> &mut Touched {
        // One row's operations ask for one partition again and again.
        if !self.all.get(self.last).is_some_and(|t| std::ptr::eq(t.partition, partition)) {
            self.last = match self.find(partition) {
                Some(i) => i,
                None => self.add(partition),
            };
        }
        &mut self.all[self.last]
    }

    #[cold]
    fn add(&mut self, partition: &'static Partition) -> usize {
        self.all.push(Touched { partition, set: ProtocolSet::EMPTY, reads: 0, writes: 0 });
        if self.all.len() > NEAR {
            // The first time: all.
            for i in self.at.len()..self.all.len() {
                self.at.insert(key(self.all[i].partition), i as u32);
            }
        }
        self.all.len() - 1
    }

    /// All entries, in the order of their first touch.
    pub fn iter(&self) -> std::slice::Iter<'_, Touched> {
        self.all.iter()
    }

    /// Was none touched?
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        super::clear_vec(&mut self.all);
        super::clear_map(&mut self.at);
    }
}
