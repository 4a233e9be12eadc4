//! Which columns of a table the updates in place change.
//!
//! Two periods are kept, the one that runs and the one before it. A table about which little is
//! known counts as one in which every column changes: a whole period must be over, and updates must
//! have named columns in it.
//!
//! The coordinator's clock ticks. A first period lasts a tick, so that a table soon knows. A whole
//! period that knows of updates is followed by one that lasts twice as long, up to a limit; any
//! other, by one that lasts half as long. So what changes now and then is not forgotten again and
//! again, which would fail readers each time. And a table that was idle soon knows, too.
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
#[repr(C)]
pub struct Changing {
    /// `[the period before: 32][this period: 32]`.
    word: AtomicU64,
    /// Bits of columns that no update in place changes, as the platform says: those of indexes. A
    /// look has the key's columns, too, and they tell nothing of it.
    fixed: AtomicU64,
    /// `[ticks of this period that are over: 32][ticks that it lasts, less one: 32]`.
    ticks: AtomicU64,
}

impl Changing {
    /// The bits of a set that was looked at.
    #[inline]
    fn bits_of(&self, looked: Columns) -> u32 {
        match (looked.bits() & !self.fixed.load(Ordering::Relaxed)) as u32 {
            0 => ROWS,
            columns => columns,
        }
    }

    /// Updates in place change none of the columns `fixed`. They may change the `others`, which may
    /// have a bit with one of those.
    pub fn set_fixed(&self, fixed: Columns, others: Columns) {
        let bits = fixed.bits() & !others.bits();
        if self.fixed.load(Ordering::Relaxed) != bits {
            self.fixed.store(bits, Ordering::Relaxed);
        }
    }

    #[inline]
    fn add(&self, bits: u32) {
        if self.word.load(Ordering::Relaxed) as u32 & bits != bits {
            self.word.fetch_or(u64::from(bits), Ordering::Relaxed);
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
        self.add(self.bits_of(looked));
    }

    /// Has a reader of these columns to expect that an update in place changes one of them?
    #[inline]
    pub fn meets(&self, looked: Columns) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        let (now, before) = (word as u32, (word >> 32) as u32);
        let is_known = before & (NAMED | WHOLE) == NAMED | WHOLE;
        looked == Columns::ALL || !is_known || (now | before) & self.bits_of(looked) != 0
    }

    /// The clock ticks: the period may end. A period lasts `most` ticks at most.
    pub fn tick(&self, most: u32) {
        let most = most.max(1);
        let before = self.ticks.load(Ordering::Relaxed);
        let (over, lasts) = ((before >> 32) as u32 + 1, (before as u32 + 1).min(most));
        let now = if over < lasts {
            u64::from(over) << 32 | u64::from(lasts - 1)
        } else {
            let knows = self.word.load(Ordering::Relaxed) as u32 & (NAMED | WHOLE) == NAMED | WHOLE;
            self.end_period();
            let next = if knows { lasts.saturating_mul(2).min(most) } else { (lasts / 2).max(1) };
            u64::from(next - 1)
        };
        // Most tables are idle, and their lines are left alone.
        if now != before {
            self.ticks.store(now, Ordering::Relaxed);
        }
    }

    /// A period ends, and another one begins.
    pub fn end_period(&self) {
        let next = |word: u64| Some(word << 32 | u64::from(WHOLE)).filter(|next| *next != word);
        _ = self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Nothing is known any more.
    pub fn forget(&self) {
        // The coordinator calls this for all tables once a second: it leaves those alone that know
        // nothing.
        for word in [&self.word, &self.ticks] {
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// For tests: takes it as known that no column changes.
    #[doc(hidden)]
    pub fn guess_none(&self) {
        self.word.store(u64::from(NAMED | WHOLE) << 32 | u64::from(WHOLE), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const A: Columns = Columns::of(1);
    const B: Columns = Columns::of(2);

    fn new() -> Changing {
        Changing { word: AtomicU64::new(0), fixed: AtomicU64::new(0), ticks: AtomicU64::new(0) }
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
    fn the_key_of_a_look_tells_nothing() {
        let (c, key) = (new(), Columns::of(0));
        c.set_fixed(key, A.and(B));
        for _ in 0..2 {
            c.note(Columns::of(3));
            c.end_period();
        }
        c.note_followed(key.and(A));
        assert!(c.meets(key.and(A)) && !c.meets(key.and(B)) && !c.meets(key));
        c.note_followed(key);
        assert!(c.meets(key) && !c.meets(key.and(B)));
        // Column 28 has the key's bit, and changes.
        c.set_fixed(key, A.and(B).and(Columns::of(Columns::BITS)));
        c.note(Columns::of(Columns::BITS));
        assert!(c.meets(key.and(B)));
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

    /// The lengths in ticks of the next periods, of a table in which updates name a column in each
    /// tick, or in none.
    fn lengths(c: &Changing, n: usize, most: u32, named: bool) -> Vec<u32> {
        let length = |_| {
            // A mark that only the end of a period takes away.
            c.add(1);
            let mut ticks = 0;
            while c.word.load(Ordering::Relaxed) as u32 & 1 != 0 {
                if named {
                    c.note(Columns::of(3));
                }
                c.tick(most);
                ticks += 1;
            }
            ticks
        };
        (0..n).map(length).collect()
    }

    #[test]
    fn periods_get_longer_while_updates_name_columns() {
        let c = new();
        assert_eq!(lengths(&c, 3, 60, false), [1, 1, 1], "nothing is known");
        c.forget();
        // The first one was no whole period.
        assert_eq!(lengths(&c, 2, 60, true), [1, 1]);
        assert!(!c.meets(A), "two ticks are enough");
        assert_eq!(lengths(&c, 7, 60, true), [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(lengths(&c, 3, 5, true), [5, 5, 5], "a shorter limit counts at once");
        assert_eq!(lengths(&c, 5, 60, true), [5, 10, 20, 40, 60]);
        assert_eq!(lengths(&c, 8, 60, false), [60, 30, 15, 7, 3, 1, 1, 1], "an idle table");
        assert!(c.meets(A));
        assert_eq!(lengths(&c, 4, 60, true), [1, 2, 4, 8]);
        assert_eq!(lengths(&c, 2, 1, true), [1, 1]);
        c.forget();
        assert_eq!(lengths(&c, 4, 3, true), [1, 1, 2, 3]);
    }

    #[test]
    fn what_has_changed_is_kept_as_long_as_periods_last() {
        let c = new();
        lengths(&c, 4, 8, true);
        c.note(A);
        let mut ticks = 0;
        while c.meets(A) {
            c.note(Columns::of(3));
            c.tick(8);
            ticks += 1;
        }
        assert_eq!(ticks, 8 + 8, "to the end of the period after this one");
    }
}
