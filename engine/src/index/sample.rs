//! Samples of keys: boundaries that divide the index into equal parts.

use super::descend::{Direction, Path};
use super::key::{Entry, Position};
use super::node::CAPACITY;
use super::Index;
use crate::platform::Platform;

/// The number of keys examined for each part. Nodes of one level have 1 to `CAPACITY` entries, 0.7
/// of it on average, so parts come out equal within a few per cent.
const PER_PART: usize = 16;

impl Index {
    /// At most `parts - 1` ascending, different keys that divide the entries into parts of about
    /// equal size. Reads a few keys for each part, from the highest level of nodes that has enough.
    pub fn sample(&self, p: &dyn Platform, parts: usize) -> Vec<Box<[u8]>> {
        if parts < 2 {
            return Vec::new();
        }
        let mut level = self.root().level();
        let mut keys = self.level_keys(p, level);
        while level > 0 && keys.len() < PER_PART * parts {
            level -= 1;
            keys = self.level_keys(p, level);
        }
        let mut cuts: Vec<Box<[u8]>> = Vec::with_capacity(parts - 1);
        for i in 1..parts {
            let Some(e) = keys.get(keys.len() * i / parts) else { break };
            // A key is the lower bound of its part, and the first part needs none.
            let last = cuts.last().map_or_else(|| keys[0].key().to_vec(), |c| c.to_vec());
            if Position::of_key(&last, true).compare(self, p, e).is_gt() {
                cuts.push(e.key().to_vec().into());
            }
        }
        cuts
    }

    /// All keys of a level. Above the leaves, the first key of the level is missing.
    fn level_keys(&self, p: &dyn Platform, level: u32) -> Vec<Entry> {
        let mut keys = Vec::new();
        let mut next = Some(Position::lowest());
        let mut path = Path::new();
        while let Some(start) = next {
            let (n, first, batch) = loop {
                self.descend(p, &start, Direction::Forward, level, &mut path);
                let s = path.last();
                let mut batch = [Entry::LOW; CAPACITY];
                (0..s.count).for_each(|i| batch[i] = s.node.words(i));
                if s.node.check(s.version).is_ok() {
                    break (s.count, usize::from(s.node.level() > 0), batch);
                }
            };
            if first > 0 {
                keys.extend(path.lower);
            }
            keys.extend(&batch[first.min(n)..n]);
            next = path.upper.map(Position::before);
        }
        keys
    }
}
