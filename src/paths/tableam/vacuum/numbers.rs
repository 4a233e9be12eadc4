//! A set of records, as bits.
//!
//! Indexes ask of each of their entries whether its record is one of the set, in the order of their
//! keys: each record would be a cache line of its own, where the bits of many lie in one.

/// Record numbers below a limit.
pub struct Numbers {
    words: Vec<u64>,
    len: u64,
}

impl Numbers {
    /// An empty set, of numbers below `limit`.
    pub fn below(limit: u64) -> Numbers {
        Numbers { words: vec![0; limit.div_ceil(64) as usize], len: 0 }
    }

    /// Adds a number below the limit, once.
    pub fn add(&mut self, n: u64) {
        self.words[(n / 64) as usize] |= 1 << (n % 64);
        self.len += 1;
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Is this one of them? It may be at the limit or above, too. Neither fails nor unwinds.
    #[inline]
    pub fn has(&self, n: u64) -> bool {
        self.words.get((n / 64) as usize).is_some_and(|word| word >> (n % 64) & 1 != 0)
    }

    /// All of them, the largest first.
    pub fn from_last(&self) -> impl Iterator<Item = u64> + '_ {
        let bits = |word: u64| (0..64).rev().filter(move |bit| word >> bit & 1 != 0);
        let words = self.words.iter().enumerate().rev().filter(|(_, word)| **word != 0);
        words.flat_map(move |(i, word)| bits(*word).map(move |bit| i as u64 * 64 + bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_the_numbers_that_were_added_and_no_others() {
        for limit in [0, 1, 63, 64, 65, 200] {
            let mut set = Numbers::below(limit);
            let wanted: Vec<u64> = (0..limit).filter(|n| n % 7 == 0 || n % 64 == 63 || n % 64 == 1).collect();
            wanted.iter().for_each(|n| set.add(*n));
            assert_eq!((0..limit + 130).filter(|n| set.has(*n)).collect::<Vec<_>>(), wanted);
            assert!(!set.has(u64::MAX));
            assert!(set.from_last().eq(wanted.iter().rev().copied()), "below {limit}");
            assert_eq!(set.len(), wanted.len() as u64);
        }
    }
}
