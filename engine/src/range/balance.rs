//! Boundaries that follow the data: each range has the same share of the rows and of the writes.

use super::index::IndexRanges;
use super::set::{compare, RangeSet};
use crate::platform::Platform;

/// A key and its weight.
type Weighted = (Vec<u8>, f64);

impl RangeSet {
    /// Keys that were written recently, and the number of registrations of its range that each
    /// stands for. Not exact under concurrency; good enough to choose boundaries.
    fn written(&self) -> Vec<Weighted> {
        let mut found = Vec::new();
        for no in 0..self.len() {
            let (list, version) = (self.list(no), self.range(no).version());
            let from = version.saturating_sub(list.size());
            let keys: Vec<Vec<u8>> =
                (from..version).filter_map(|pos| list.key(pos)?.bytes().map(<[u8]>::to_vec)).collect();
            let each = version as f64 / keys.len().max(1) as f64;
            found.extend(keys.into_iter().map(|k| (k, each)));
        }
        found
    }
}

impl IndexRanges {
    /// Do few ranges get so many of the registrations that other boundaries may pay? The answer is
    /// yes at most once for each time that the registrations double, and less often after each
    /// rebuild.
    pub fn is_skewed(&self) -> bool {
        let set = self.current();
        let n = set.len() as u64;
        let versions: Vec<u64> = (0..set.len()).map(|i| set.range(i).version()).collect();
        let total: u64 = versions.iter().sum();
        if n < 8 || !self.may_look_at(total) {
            return false;
        }
        let hottest = versions.iter().max().copied().unwrap_or(0);
        hottest * n > 8 * total
    }

    /// About `n - 1` boundaries that divide rows and writes evenly. Half of the weight is that of
    /// the rows, of which `rows` is a sample. The other half is that of the registered writes.
    /// Comparisons may unwind. The caller is pinned.
    pub fn balanced(&self, p: &dyn Platform, rows: Vec<Vec<u8>>, n: usize) -> Vec<Vec<u8>> {
        let writes = self.current().written();
        let total: f64 = writes.iter().map(|w| w.1).sum();
        let (a_row, a_write) = (1.0 / rows.len().max(1) as f64, 1.0 / total.max(1.0));
        let mut all: Vec<Weighted> = rows.into_iter().map(|k| (k, a_row)).collect();
        all.extend(writes.into_iter().map(|(k, w)| (k, w * a_write)));
        all.sort_by(|a, b| compare(p, self.order, &a.0, &b.0));
        all.dedup_by(|b, a| {
            let same = compare(p, self.order, &a.0, &b.0).is_eq();
            a.1 += if same { b.1 } else { 0.0 };
            same
        });
        let share = share(&all, n);
        let (mut cuts, mut sum): (Vec<Vec<u8>>, f64) = (Vec::new(), 0.0);
        for (key, weight) in all {
            // A hot key has a range of its own, even if that makes one more.
            let hot = weight > share || sum > share;
            if sum > 0.0 && sum + weight > share && (cuts.len() + 1 < n || hot) {
                cuts.push(key);
                sum = 0.0;
            }
            sum += weight;
        }
        cuts
    }
}

/// The weight of a range. Keys with a larger weight have a range of their own, and the other ranges
/// divide the rest.
fn share(all: &[Weighted], n: usize) -> f64 {
    let mut share = f64::INFINITY;
    loop {
        let (mut rest, mut left) = (0.0, n);
        for (_, weight) in all {
            if *weight > share {
                left = left.saturating_sub(1);
            } else {
                rest += weight;
            }
        }
        // A little more, to make up for rounding in sums.
        let next = rest / left.max(1) as f64 * (1.0 + 1e-9);
        if next >= share {
            return share;
        }
        share = next;
    }
}
