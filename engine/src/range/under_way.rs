//! The commits under way and the tables that they write. A process that gives an index ranges, or
//! wakes them up, waits for these commits.
//!
//! **INV-RANGES**: A commit stores in its slot which tables it writes, then that it is under way
//! ([`UnderWay`]), before it looks which ranges these tables have. It registers every key that it
//! writes in all of them: in each set of the index, or as an unknown key if it did not know the key
//! or the set when it compared keys with boundaries. Predicates rely on a set only after every
//! commit into the table has ended that was under way when the set could first be found
//! (`Table::activate_ranges`, `IndexRanges::rebuild`). An observer
//! of a slot may find no commit under way, or a later one, or one that writes other tables. Then it
//! knows that the slot's next commit into the table finds the set.

use crate::faults::{self, Fault};
use crate::primitive::{model_fence, AtomicU64, Ordering};

/// The word names several tables. Each sets one of the other bits, which it may share with others.
const SEVERAL: u64 = 1 << 63;

/// The bit of a table in a word with [`SEVERAL`].
fn bit(table: u64) -> u64 {
    1 << (table % 63)
}

/// The commit of a slot, if one is under way. Only its owner changes it.
#[repr(C)]
pub struct UnderWay {
    /// Odd while a commit is under way. That begins before the commit looks for ranges to register
    /// in, and ends when all its registrations are finished.
    count: AtomicU64,
    /// The tables that it writes: the id of one table, or [`SEVERAL`].
    tables: AtomicU64,
}

impl UnderWay {
    /// No commit, made of the model checker's atomics.
    #[cfg(loom)]
    pub fn model() -> UnderWay {
        UnderWay { count: AtomicU64::new(0), tables: AtomicU64::new(0) }
    }

    /// Begins a commit that writes the tables with these ids.
    pub fn enter(&self, mut tables: impl Iterator<Item = u64>) {
        let first = tables.next().unwrap_or(0);
        let all = tables.fold(first, |all, id| match all {
            _ if id == all => all,
            _ if all & SEVERAL == 0 => SEVERAL | bit(all) | bit(id),
            _ => all | bit(id),
        });
        // A process that sees this store sees that the last commit is over.
        self.tables.store(if faults::on(Fault::TablesUntold) { 0 } else { all }, Ordering::Release);
        self.count.store(self.count.load(Ordering::Relaxed) | 1, Ordering::SeqCst);
        model_fence();
    }

    /// Ends the commit, if there is one. All its registrations are finished.
    pub fn leave(&self) {
        let n = self.count.load(Ordering::Relaxed);
        if n & 1 == 1 {
            self.count.store(n.wrapping_add(1), Ordering::SeqCst);
        }
    }

    /// The number of the commit that is under way, if it may write this table.
    pub fn of_table(&self, table: u64) -> Option<u64> {
        model_fence();
        let n = self.count.load(Ordering::SeqCst);
        let all = self.tables.load(Ordering::Acquire);
        let writes = if all & SEVERAL == 0 { all == table } else { all & bit(table) != 0 };
        (n & 1 == 1 && writes).then_some(n)
    }

    /// Is this commit still under way?
    pub fn is(&self, commit: u64) -> bool {
        self.count.load(Ordering::SeqCst) == commit
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_found_under_the_tables_that_it_writes() {
        let c = UnderWay { count: AtomicU64::new(0), tables: AtomicU64::new(0) };
        let found = || (1..200).filter(|&t| c.of_table(t).is_some()).collect::<Vec<u64>>();
        assert!(found().is_empty());
        c.enter([100].into_iter());
        assert_eq!(found(), [100], "one table is named exactly");
        let first = c.of_table(100).expect("under way");
        assert!(c.is(first));
        c.leave();
        c.leave();
        assert!(found().is_empty() && !c.is(first));
        c.enter([5, 70, 5].into_iter());
        assert_eq!(found(), [5, 7, 68, 70, 131, 133, 194, 196], "several may be taken for others, and not be missed");
        assert!(!c.is(first));
        c.leave();
        c.enter([9, 9].into_iter());
        assert_eq!(found(), [9]);
    }
}
