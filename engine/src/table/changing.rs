//! Which columns of a table the updates in place change.
//!
//! Two periods are kept, the one that runs and the one before it. The coordinator ends a period
//! from time to time. A table about which little is known counts as one in which every column
//! changes: a whole period must be over, and updates must have named columns in it.
//!
//! It is a guess, which no proof relies on: a look that trusts it is validated (INV-LOOKED).

use crate::primitive::{AtomicU64, Ordering};
use crate::range::Columns;

/// What stands for the existence of rows: looks at no column, and updates that may have changed
/// everything. The columns have the bits below it.
const ROWS: u32 = 1 << Columns::BITS;
/// Updates have named columns in the period.
const NAMED: u32 = ROWS << 1;
/// The period has begun with the end of another one.
const WHOLE: u32 = ROWS << 2;

/// Columns that updates in place have changed lately. All-zero: nothing is known.
///
/// One word: `[the period before: 32][this period: 32]`.
#[repr(transparent)]
pub struct Changing(AtomicU64);

/// The bits of a set that was looked at.
#[inline]
fn bits_of(looked: Columns) -> u32 {
    match looked.bits() as u32 {
        0 => ROWS,
        columns => columns,
    }
}

impl Changing {
    #[inline]
    fn add(&self, bits: u32) {
        if self.0.load(Ordering::Relaxed) as u32 & bits != bits {
            self.0.fetch_or(u64::from(bits), Ordering::Relaxed);
        }
    }

    /// An update in place changes these columns.
    #[inline]
    pub fn note(&self, changed: Columns) {
        let all = changed == Columns::ALL;
        self.add(changed.bits() as u32 | if all { ROWS } else { NAMED });
    }

    /// A transaction has looked at these columns of a row, and then locks the row to write it. Its
    /// next looks had better keep other writers away.
    #[cold]
    pub fn note_followed(&self, looked: Columns) {
        self.add(bits_of(looked));
    }

    /// Has a reader of these columns to expect that an update in place changes one of them?
    #[inline]
    pub fn meets(&self, looked: Columns) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        let (now, before) = (word as u32, (word >> 32) as u32);
        let is_known = before & (NAMED | WHOLE) == NAMED | WHOLE;
        looked == Columns::ALL || !is_known || (now | before) & bits_of(looked) != 0
    }

    /// A period ends, and another one begins.
    pub fn end_period(&self) {
        let next = |word: u64| Some(word << 32 | u64::from(WHOLE));
        _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Nothing is known any more.
    pub fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// For tests: takes it as known that no column changes.
    #[doc(hidden)]
    pub fn guess_none(&self) {
        self.0.store(u64::from(NAMED | WHOLE) << 32 | u64::from(WHOLE), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const A: Columns = Columns::of(1);
    const B: Columns = Columns::of(2);

    fn new() -> Changing {
        Changing(AtomicU64::new(0))
    }

    #[test]
    fn what_is_not_known_changes() {
        let c = new();
        for _ in 0..2 {
            assert!(c.meets(A) && c.meets(B) && c.meets(Columns::NONE) && c.meets(Columns::ALL));
            c.note(B);
            c.end_period(); // the first one was no whole period
        }
        assert!(!c.meets(A) && c.meets(B) && !c.meets(Columns::NONE) && c.meets(Columns::ALL));
        c.end_period();
        assert!(c.meets(A), "no update has named columns in the last period");
        c.note(B);
        c.end_period();
        c.forget();
        assert!(c.meets(A));
    }

    #[test]
    fn what_has_changed_in_two_periods_counts() {
        let c = new();
        let end = || {
            c.note(Columns::of(3));
            c.end_period();
        };
        end();
        end();
        assert!(!c.meets(A));
        c.note(A);
        assert!(c.meets(A) && !c.meets(B));
        end();
        assert!(c.meets(A));
        end();
        assert!(!c.meets(A));
        c.note_followed(B);
        assert!(c.meets(B) && !c.meets(Columns::NONE));
        c.note_followed(Columns::NONE);
        assert!(c.meets(Columns::NONE) && !c.meets(A));
        c.note(Columns::ALL);
        assert!(c.meets(A));
    }
}
