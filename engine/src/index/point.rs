//! Look-ups of one key. They take the path of a scan (`descend.rs`) without a cursor's overhead.

use super::key::{prefix_of, Entry, INLINE};
use super::node::{NodeRef, Restart, CAPACITY};
use super::{race, Index};
use crate::key::Short;
use crate::primitive::relax;
use std::cmp::Ordering;

/// The largest number of records that a look-up finds without a scan.
pub const FEW: usize = 4;

/// The key of a look-up.
pub(super) struct Wanted<'a> {
    pub prefix: u64,
    pub key: &'a [u8],
}

impl Wanted<'_> {
    /// The order of an entry's key and the key. Looks at a blob only after it has compared the
    /// version (INV-BLOB).
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

    /// The end of the entries in front of the key; with `or_at`, also of the first entry that the
    /// key can have (record 0). The search begins at `from`; the count includes the entries before.
    /// `span` is the range of prefixes that the node covers, as far as it is known.
    #[inline]
    fn below(&self, node: NodeRef, version: u64, from: usize, or_at: bool, span: Span) -> Result<usize, Restart> {
        let (low, high) = self.leading(node, from, span);
        // Few entries have the same first bytes. If one changes meanwhile, so does the version.
        if low == high || node.leading(low) != self.prefix {
            return Ok(low);
        }
        self.below_equal(node, version, (low, high), or_at)
    }

    /// The first entry from `from` on whose first bytes are not below those of the key, and the end
    /// of all entries.
    #[inline]
    fn leading(&self, node: NodeRef, from: usize, span: Span) -> (usize, usize) {
        let high = node.count().max(from);
        (node.below_leading_near(self.prefix, from, high, span.place(self.prefix, high)), high)
    }

    /// As `below`, among the entries `low..high`, the first of which has the key's first bytes.
    fn below_equal(
        &self,
        node: NodeRef,
        version: u64,
        (mut low, mut high): (usize, usize),
        or_at: bool,
    ) -> Result<usize, Restart> {
        // Often it is the first of them.
        if low == high || !self.is_below(node, version, low, or_at)? {
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

/// The prefixes that a node covers, by the bounds on its path.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub lower: u64,
    /// `None`: the node is the last of its level.
    pub upper: Option<u64>,
}

impl Span {
    const ALL: Span = Span { lower: 0, upper: None };

    /// The place of a prefix among `n` evenly spread entries (at most 256); it is at most `n`. If
    /// the upper bound is not known, or a concurrent change has mixed up the words, it is the
    /// middle.
    #[inline]
    pub fn place(self, prefix: u64, n: usize) -> usize {
        let Some(upper) = self.upper.filter(|&upper| self.lower <= prefix && prefix < upper) else { return n / 2 };
        let (part, whole) = (prefix - self.lower, upper - self.lower);
        // Leaves room to multiply by the number of a node's entries.
        let shift = (u64::BITS - whole.leading_zeros()).saturating_sub(u64::BITS - 8);
        ((part >> shift) * n as u64 / (whole >> shift)) as usize
    }
}

/// A leaf that covers a key, as it was found.
pub(super) struct Place {
    pub leaf: NodeRef,
    pub version: u64,
    pub span: Span,
}

impl Place {
    /// The record of the first entry with the key's first bytes, if the leaf is unchanged;
    /// otherwise any number. So it is only a hint (INV-HINT).
    #[inline]
    pub fn record(&self, wanted: &Wanted<'_>) -> Option<u64> {
        let at = wanted.below(self.leaf, self.version, 0, false, self.span).ok()?;
        let e = (at < self.leaf.count()).then(|| self.leaf.words(at))?;
        (e.prefix == wanted.prefix).then_some(e.record as u64)
    }
}

impl Index {
    /// Finds the records with this key, in ascending order, and returns their number. `None`: there
    /// may be more, or they are in two leaves, and a scan must find them.
    #[inline]
    pub fn few(&'static self, key: &[u8], found: &mut [u64; FEW]) -> Option<usize> {
        if self.order() != 0 {
            return None;
        }
        self.few_of(&Wanted { prefix: prefix_of(key), key }, found)
    }

    /// As `few`, for a key in a word.
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

    /// The path to the leaf that covers the key. Prefetches the lines of the leaf that will
    /// probably be read.
    #[inline]
    pub(super) fn try_place(&self, wanted: &Wanted<'_>) -> Result<Place, Restart> {
        let mut node = self.root();
        race();
        let mut version = node.node().version.read();
        // A former root that was split since is only half of the tree.
        if self.root() != node {
            return Err(Restart);
        }
        let mut span = Span::ALL;
        while node.level() > 0 {
            let at = wanted.below(node, version, 1, true, span)? - 1;
            let child = node.child(at);
            let lower = if at > 0 { Some(node.leading(at)) } else { None };
            let upper = if at + 1 < node.count() { Some(node.leading(at + 1)) } else { None };
            let to_leaf = node.level() == 1;
            node.check(version)?;
            let child = child.ok_or(Restart)?;
            span = Span { lower: lower.unwrap_or(span.lower), upper: upper.or(span.upper) };
            if to_leaf {
                child.fetch(span.place(wanted.prefix, CAPACITY));
            }
            race();
            let next = child.node().version.read();
            // The child's version was read while the child was there for this part of the keys.
            race();
            node.check(version)?;
            (node, version) = (child, next);
        }
        Ok(Place { leaf: node, version, span })
    }

    fn try_few(&self, wanted: &Wanted<'_>, found: &mut [u64; FEW]) -> Result<Option<usize>, Restart> {
        let Place { leaf: node, version, span } = self.try_place(wanted)?;
        let ((mut at, count), mut n) = (wanted.leading(node, 0, span), 0);
        while at < count {
            let e = node.words(at);
            match wanted.compare(node, version, &e)? {
                Ordering::Equal if n == FEW => return Ok(None),
                Ordering::Equal => {
                    found[n] = e.record as u64;
                    (n, at) = (n + 1, at + 1);
                }
                // The entry has the first bytes of the key, and so may many behind it.
                Ordering::Less if n == 0 => at = wanted.below_equal(node, version, (at + 1, count), false)?,
                _ => break,
            }
        }
        node.check(version)?;
        // If the leaf's last entry has the key, the next leaf may have more.
        let ends = at < count || span.upper.is_none_or(|upper| upper > wanted.prefix);
        Ok(ends.then_some(n))
    }
}
