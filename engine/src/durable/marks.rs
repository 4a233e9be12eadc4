//! Time marks: recovery to a point in time ends at commits without a transaction id, too.
//!
//! PostgreSQL's recovery looks for times in the records of its transaction manager alone. A commit
//! that logs one record of ours, without a transaction id, has none. So it asks how long ago the
//! last mark was. A *mark* is a commit of ours with a transaction id: its commit record has the
//! time. If it was too long ago, the commit takes a transaction id, and is the next mark.
//!
//! **INV-MARK**: A commit without a transaction id that asks at time p has a mark before its record
//! in WAL. The time of the mark is at most `every` before p. So a recovery to the time T, which
//! ends before the first mark after T, replays no such commit that asks after T + `every`. The
//! commits that are answered before T are there: a mark after T is inserted after T.
//!
//! In half of that time no commit becomes a mark; then the first to ask does. The others go on
//! until the whole time is over, so that they do not all take ids at once. An idle server logs
//! nothing: the first commit after it is a mark.

use crate::primitive::{AtomicU64, Ordering};

/// The last mark. All-zero: none is known.
#[derive(Default)]
#[repr(C)]
pub struct TimeMarks {
    /// The time of the last mark, or an earlier one. Stored after its commit record is inserted.
    last: AtomicU64,
    /// The mark after which a commit has begun to become the next one.
    claimed: AtomicU64,
}

impl TimeMarks {
    /// Is a commit that asks now to be a mark? Times count microseconds. A clock that was set back
    /// counts as one that has gone on.
    #[inline]
    pub fn is_due(&self, now: u64, every: u64) -> bool {
        let last = self.last.load(Ordering::SeqCst);
        let age = now.abs_diff(last);
        age >= every / 2 && (age >= every || self.claim(last))
    }
    #[cold]
    fn claim(&self, last: u64) -> bool {
        let claimed = self.claimed.load(Ordering::SeqCst);
        let exchange = |from| self.claimed.compare_exchange(from, last, Ordering::SeqCst, Ordering::SeqCst);
        claimed != last && exchange(claimed).is_ok()
    }
    /// The commit record of a mark is inserted; its time is at or after this one.
    pub fn set(&self, time: u64, every: u64) {
        if self.last.load(Ordering::SeqCst).abs_diff(time) >= every / 2 {
            self.last.store(time, Ordering::SeqCst);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::TimeMarks;

    const EVERY: u64 = 1000;

    #[test]
    fn the_first_commit_is_a_mark_and_so_is_each_one_after_the_whole_time() {
        let marks = TimeMarks::default();
        assert!(marks.is_due(1_000_000, EVERY) && marks.is_due(1_000_000, EVERY));
        marks.set(1_000_000, EVERY);
        assert!(!marks.is_due(1_000_499, EVERY));
        assert!(marks.is_due(1_001_000, EVERY) && marks.is_due(1_001_000, EVERY));
    }

    #[test]
    fn one_commit_alone_is_a_mark_after_half_of_the_time() {
        let marks = TimeMarks::default();
        marks.set(1_000_000, EVERY);
        assert!(marks.is_due(1_000_500, EVERY));
        assert!(!marks.is_due(1_000_501, EVERY) && !marks.is_due(1_000_999, EVERY));
        // It has failed: the whole time counts.
        assert!(marks.is_due(1_001_000, EVERY));
        marks.set(1_001_000, EVERY);
        assert!(!marks.is_due(1_001_499, EVERY));
        assert!(marks.is_due(1_001_500, EVERY) && !marks.is_due(1_001_500, EVERY));
    }

    #[test]
    fn a_clock_that_is_set_back_makes_marks() {
        let marks = TimeMarks::default();
        marks.set(9_000_000, EVERY);
        assert!(marks.is_due(5_000_000, EVERY));
        marks.set(5_000_000, EVERY);
        assert!(!marks.is_due(5_000_100, EVERY));
        // The commit record of an older mark waits for a standby that long.
        marks.set(4_000_000, EVERY);
        assert!(marks.is_due(5_000_200, EVERY));
    }

    #[test]
    fn without_an_interval_each_commit_is_a_mark() {
        let marks = TimeMarks::default();
        marks.set(7, 0);
        assert!(marks.is_due(7, 0) && marks.is_due(8, 0));
    }
}
