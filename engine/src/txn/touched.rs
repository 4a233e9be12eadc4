//! What a transaction did in each partition that it has touched.

use crate::partition::Partition;
use crate::protocol::ProtocolSet;
use hashbrown::HashMap;

/// Of so many partitions that were touched last the entries are found by looking at each.
const NEAR: usize = 16;
/// Places of entries that were found before, by a hash of the partition's address.
const PLACES: usize = 64;

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
    /// Is the partition's lock ours? It stays so to the transaction's end.
    pub locked: bool,
}

/// The partitions that a transaction has touched: each once.
pub struct TouchedList {
    all: Vec<Touched>,
    /// Where they are in `all`, by address: all of them once there are more than `NEAR`.
    at: HashMap<usize, u32>,
    /// Where one may be in `all`: only a guess, so that nothing must be forgotten.
    places: [u16; PLACES],
}

impl Default for TouchedList {
    fn default() -> TouchedList {
        TouchedList { all: Vec::new(), at: HashMap::new(), places: [0; PLACES] }
    }
}

/// Partitions lie side by side in their map.
#[inline]
fn place(p: &Partition) -> usize {
    (key(p) / std::mem::size_of::<Partition>()) % PLACES
}

#[inline]
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
    #[inline(always)]
    pub fn entry(&mut self, partition: &'static Partition) -> &mut Touched {
        let place = place(partition);
        let guess = self.places[place] as usize;
        let at = match self.all.get(guess) {
            Some(t) if std::ptr::eq(t.partition, partition) => guess,
            _ => self.search(partition, place),
        };
        &mut self.all[at]
    }

    #[inline(never)]
    fn search(&mut self, partition: &'static Partition, place: usize) -> usize {
        let at = match self.find(partition) {
            Some(i) => i,
            None => self.add(partition),
        };
        self.places[place] = at as u16; // of what does not fit another guess, which will be found wrong
        at
    }

    #[cold]
    fn add(&mut self, partition: &'static Partition) -> usize {
        self.all.push(Touched { partition, set: ProtocolSet::EMPTY, reads: 0, writes: 0, locked: false });
        if self.all.len() > NEAR {
            // The first time: all.
            for i in self.at.len()..self.all.len() {
                self.at.insert(key(self.all[i].partition), i as u32);
            }
        }
        self.all.len() - 1
    }

    /// The locks of partitions are looked at again.
    pub fn forget_locks(&mut self) {
        self.all.iter_mut().for_each(|t| t.locked = false);
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
