//! Look-ups of one key: the way of a scan (`descend.rs`) without what only a scan needs.

use super::key::{prefix_of, Entry, INLINE};
use super::node::{NodeRef, Restart};
use super::{race, Index};
use crate::key::Short;
use crate::primitive::relax;
use std::cmp::Ordering;

/// Records that a look-up finds without a scan.
pub const FEW: usize = 4;

/// The key that is looked for.
struct Wanted<'a> {
    prefix: u64,
    key: &'a [u8],
}

impl Wanted<'_> {
    /// The order of an entry's key and the key. A blob is looked at only after the version was compared (INV-BLOB).
    #[inline]
    fn compare(&self, node: NodeRef, version: u64, e: &Entry) -> Result<Ordering, Restart> {
        match e.prefix.cmp(&self.prefix) {
            Ordering::Equal if e.is_inline() && self.key.len() <= INLINE => Ok(e.blob.cmp(&(self.key.len() as u64))),
            Ordering::Equal => {
                node.check(version)?;
                Ok(e.key().bytes().cmp(self.key))
            }
            o => Ok(o),
        }
    }

    /// How many entries from `from` on, with those before, are in front of the key. `or_at`: or are the first that the
    /// key can have (record 0).
    #[inline]
    fn below(&self, node: NodeRef, version: u64, from: usize, or_at: bool) -> Result<usize, Restart> {
        let high = node.count().max(from);
        let low = node.below_leading(self.prefix, from, high);
        // Few entries have the same first bytes. (One that changes meanwhile changes the version.)
        if low == high || node.leading(low) != self.prefix {
            return Ok(low);
        }
        self.below_equal(node, version, (low, high), or_at)
    }

    /// The same among these entries, the first of which has the key's first bytes.
    fn below_equal(
        &self,
        node: NodeRef,
        version: u64,
        (mut low, mut high): (usize, usize),
        or_at: bool,
    ) -> Result<usize, Restart> {
        // Often it is the first of them.
        if !self.is_below(node, version, low, or_at)? {
            return Ok(low);
        }
        while low < high {
            let mid = (low + high) / 2;
            if self.is_below(node, version, mid, or_at)? {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        Ok(low)
    }

    #[inline]
    fn is_below(&self, node: NodeRef, version: u64, i: usize, or_at: bool) -> Result<bool, Restart> {
        let e = node.words(i);
        let order = self.compare(node, version, &e)?;
        Ok(order.is_lt() || or_at && order.is_eq() && e.record == 0)
    }
}

impl Index {
    /// Records with this key, in ascending order: how many there are. `None`: perhaps more than these, or in two leaves;
    /// a scan tells.
    #[inline]
    pub fn few(&'static self, key: &[u8], found: &mut [u64; FEW]) -> Option<usize> {
        if self.order() != 0 {
            return None;
        }
        self.few_of(&Wanted { prefix: prefix_of(key), key }, found)
    }

    /// The same for a key in a word.
    #[inline]
    pub fn few_short(&'static self, key: Short, found: &mut [u64; FEW]) -> Option<usize> {
        if self.order() != 0 {
            return None;
        }
        let (bytes, len) = key.bytes();
        self.few_of(&Wanted { prefix: key.word(), key: &bytes[..len] }, found)
    }

    #[inline]
    fn few_of(&'static self, wanted: &Wanted<'_>, found: &mut [u64; FEW]) -> Option<usize> {
        let mut n = 0;
        loop {
            match self.try_few(wanted, found) {
                Ok(r) => return r,
                Err(Restart) => relax(n),
            }
            n += 1;
        }
    }

    fn try_few(&self, wanted: &Wanted<'_>, found: &mut [u64; FEW]) -> Result<Option<usize>, Restart> {
        let mut node = self.root();
        race();
        let mut version = node.node().version.read();
        // A root that was split since is half of the tree.
        if self.root() != node {
            return Err(Restart);
        }
        // The first bytes of where ends what the node covers, as far as is known.
        let mut upper = None;
        while node.level() > 0 {
            let at = wanted.below(node, version, 1, true)? - 1;
            let child = node.child(at);
            let edge = (at + 1 < node.count()).then(|| node.leading(at + 1));
            node.check(version)?;
            let child = child.ok_or(Restart)?;
            upper = edge.or(upper);
            race();
            let next = child.node().version.read();
            // The child's version is of a time when the child was there, for this part of the keys.
            race();
            node.check(version)?;
            (node, version) = (child, next);
        }
        let mut at = wanted.below(node, version, 0, false)?;
        let (count, mut n) = (node.count(), 0);
        while at < count {
            let e = node.words(at);
            if wanted.compare(node, version, &e)?.is_ne() {
                break;
            }
            if n == FEW {
                return Ok(None);
            }
            found[n] = e.record as u64;
            (n, at) = (n + 1, at + 1);
        }
        node.check(version)?;
        // Behind the leaf's last entry the next leaf may go on.
        let ends = at < count || upper.is_none_or(|e| e > wanted.prefix);
        Ok(ends.then_some(n))
    }
}
