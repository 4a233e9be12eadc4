//! Bounds of keys: their order, and the ranges between them.

use super::Bounds;
use crate::faults::{self, Fault};
use crate::platform::Platform;
use crate::range::{compare, RangeSet};
use std::cmp::Ordering;
use std::ops::Bound;

/// The ranges between two bounds.
#[derive(Clone, Copy)]
pub(in crate::txn) struct Extent {
    pub first: u32,
    pub last: u32,
    pub(super) whole_low: bool,
    pub(super) whole_high: bool,
}

impl Extent {
    /// `None` if nothing is between the bounds. Comparisons may unwind.
    pub fn of(p: &dyn Platform, order: u32, set: &RangeSet, (lo, hi): Bounds) -> Option<Extent> {
        use Bound::{Excluded, Included};
        if let (Included(a) | Excluded(a), Included(b) | Excluded(b)) = (lo, hi) {
            let both = matches!((lo, hi), (Included(_), Included(_)));
            match compare(p, order, a, b) {
                Ordering::Greater => return None,
                Ordering::Equal if !both => return None,
                _ => {}
            }
        }
        let (first, whole_low) = set.first_of(p, order, lo);
        let (last, whole_high) = set.last_of(p, order, hi);
        debug_assert!(first <= last);
        Some(Extent { first, last, whole_low, whole_high })
    }
    /// Of bounds within one range.
    pub fn part_of(range: u32) -> Extent {
        Extent { first: range, last: range, whole_low: false, whole_high: false }
    }
    /// Is all of a range between the bounds?
    pub fn covers(self, range: u32) -> bool {
        (range > self.first || self.whole_low) && (range < self.last || self.whole_high)
    }
    /// Number of ranges that it covers.
    pub fn covered(self) -> u32 {
        match self.last - self.first {
            0 => (self.whole_low && self.whole_high) as u32,
            n => n - 1 + self.whole_low as u32 + self.whole_high as u32,
        }
    }
}

pub(super) fn above(p: &dyn Platform, order: u32, key: &[u8], lo: Bound<&[u8]>) -> bool {
    match lo {
        Bound::Unbounded => true,
        Bound::Included(b) => compare(p, order, key, b).is_ge(),
        Bound::Excluded(b) => compare(p, order, key, b).is_gt(),
    }
}

pub(super) fn below(p: &dyn Platform, order: u32, key: &[u8], hi: Bound<&[u8]>) -> bool {
    match hi {
        Bound::Unbounded => true,
        Bound::Included(b) if faults::on(Fault::BoundOffByOne) => compare(p, order, key, b).is_lt(),
        Bound::Included(b) => compare(p, order, key, b).is_le(),
        Bound::Excluded(b) => compare(p, order, key, b).is_lt(),
    }
}

/// The higher of two lower bounds.
pub(super) fn higher<'a>(p: &dyn Platform, order: u32, a: Bound<&'a [u8]>, b: Bound<&'a [u8]>) -> Bound<&'a [u8]> {
    use Bound::*;
    match (a, b) {
        (Unbounded, x) | (x, Unbounded) => x,
        (Included(x) | Excluded(x), Included(y) | Excluded(y)) => match compare(p, order, x, y) {
            Ordering::Less => b,
            Ordering::Greater => a,
            Ordering::Equal if matches!(a, Excluded(_)) => a,
            Ordering::Equal => b,
        },
    }
}

/// The lower of two upper bounds.
pub(super) fn lower<'a>(p: &dyn Platform, order: u32, a: Bound<&'a [u8]>, b: Bound<&'a [u8]>) -> Bound<&'a [u8]> {
    use Bound::*;
    match (a, b) {
        (Unbounded, x) | (x, Unbounded) => x,
        (Included(x) | Excluded(x), Included(y) | Excluded(y)) => match compare(p, order, x, y) {
            Ordering::Less => a,
            Ordering::Greater => b,
            Ordering::Equal if matches!(a, Excluded(_)) => a,
            Ordering::Equal => b,
        },
    }
}

/// Does a lower bound come before another one?
pub(super) fn starts_before(p: &dyn Platform, order: u32, a: Bound<&[u8]>, b: Bound<&[u8]>) -> Ordering {
    use Bound::*;
    match (a, b) {
        (Unbounded, Unbounded) => Ordering::Equal,
        (Unbounded, _) => Ordering::Less,
        (_, Unbounded) => Ordering::Greater,
        (Included(x) | Excluded(x), Included(y) | Excluded(y)) => {
            let rank = |b: Bound<&[u8]>| matches!(b, Excluded(_)) as u8;
            compare(p, order, x, y).then(rank(a).cmp(&rank(b)))
        }
    }
}

/// The lower bound that is lower, or the upper bound that is higher: what a hull has.
pub(super) fn looser<'a>(
    p: &dyn Platform,
    order: u32,
    a: Bound<&'a [u8]>,
    b: Bound<&'a [u8]>,
    upper: bool,
) -> Bound<&'a [u8]> {
    use Bound::*;
    match (a, b) {
        (Unbounded, _) | (_, Unbounded) => Unbounded,
        (Included(x) | Excluded(x), Included(y) | Excluded(y)) => {
            let c = compare(p, order, x, y);
            match if upper { c.reverse() } else { c } {
                Ordering::Less => a,
                Ordering::Greater => b,
                Ordering::Equal if matches!(a, Included(_)) => a,
                Ordering::Equal => b,
            }
        }
    }
}
