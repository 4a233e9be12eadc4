//! Common values of the rows that one transaction accesses. They show by which columns of its key a
//! table can be partitioned so that transactions stay in one partition.
//!
//! The engine knows no columns. The platform looks at the rows of sampled transactions
//! ([`crate::Txn::sampled_records`]) and notes its findings here for each table.

use crate::primitive::{AtomicU64, Ordering};

/// The number of columns of a key that are counted.
pub const COLUMNS: usize = 8;

/// Counters of the sampled transactions that accessed several rows of a table. All-zero: none.
#[repr(C)]
pub struct Together {
    txns: AtomicU64,
    spread: AtomicU64,
    columns: [Column; COLUMNS],
}

#[repr(C)]
struct Column {
    common: AtomicU64,
    varied: AtomicU64,
    /// The hash of the last common value. 0: there was none.
    last: AtomicU64,
}

/// The counters of [`Together`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Common {
    /// Transactions that accessed several rows.
    pub txns: u64,
    /// Those whose rows were in several partitions.
    pub spread: u64,
    /// Two counts for each column. First, the transactions whose rows all had the same value.
    /// Second, those among them with another value than the transaction before. The second is 0 if
    /// the column has only one value.
    pub columns: [(u64, u64); COLUMNS],
}

impl Together {
    /// Notes a transaction: whether its rows were in several partitions, and for each column the
    /// hash of the value that all rows have in it.
    pub fn note(&self, spread: bool, common: &[Option<u64>]) {
        self.txns.fetch_add(1, Ordering::Relaxed);
        self.spread.fetch_add(spread as u64, Ordering::Relaxed);
        for (c, value) in self.columns.iter().zip(common) {
            let Some(value) = value.map(|v| v.max(1)) else { continue };
            c.common.fetch_add(1, Ordering::Relaxed);
            let last = c.last.load(Ordering::Relaxed);
            if last != value {
                c.last.store(value, Ordering::Relaxed);
                c.varied.fetch_add((last != 0) as u64, Ordering::Relaxed);
            }
        }
    }

    /// The counters.
    pub fn get(&self) -> Common {
        let n = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let columns = std::array::from_fn(|i| (n(&self.columns[i].common), n(&self.columns[i].varied)));
        Common { txns: n(&self.txns), spread: n(&self.spread), columns }
    }

    /// Resets the counters.
    pub fn clear(&self) {
        let all = self.columns.iter().flat_map(|c| [&c.common, &c.varied, &c.last]);
        for n in all.chain([&self.txns, &self.spread]) {
            n.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_rows_have_in_common_is_counted_by_column() {
        // SAFETY: all-zero counters are valid.
        let t: Box<Together> = unsafe { Box::new(std::mem::zeroed()) };
        // The first column is common to all, alternating between 7 and 9. The second is common to
        // half of them, always 0. The third never is.
        for i in 0..10 {
            t.note(i < 4, &[Some(7 + i % 2 * 2), (i < 5).then_some(0), None]);
        }
        let mut columns = [(0, 0); COLUMNS];
        (columns[0], columns[1]) = ((10, 9), (5, 0));
        assert_eq!(t.get(), Common { txns: 10, spread: 4, columns });
        t.clear();
        assert_eq!(t.get(), Common::default());
        t.note(false, &[Some(9)]);
        assert_eq!(t.get().columns[0], (1, 0), "nothing was before the first");
        t.note(false, &[Some(1); COLUMNS + 3]);
        assert_eq!(t.get().columns[COLUMNS - 1], (1, 0), "more columns are not counted");
    }
}
