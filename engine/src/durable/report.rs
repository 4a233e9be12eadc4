//! What the companion tells of itself, for views. Only the companion writes it, but for the reset
//! of the counters. A reader may see values of two moments.

use crate::primitive::{AtomicU64, Ordering};

/// What the companion does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Activity {
    /// None runs.
    None,
    /// It makes its first round; commits wait.
    Starting,
    /// It waits for the next checkpoint.
    Idle,
    /// It waits until commits have inserted their records.
    Waiting,
    /// It writes images of rows.
    Imaging,
    /// It rests in a round, so that the checkpoint is no burst.
    Pacing,
    /// It copies the live entries of nearly empty blocks.
    Cleaning,
    /// The server stops, or the companion is asked to end.
    Closing,
    /// A round has failed, and will be made again.
    Failed,
}

impl Activity {
    const ALL: [Activity; 9] = [
        Activity::None,
        Activity::Starting,
        Activity::Idle,
        Activity::Waiting,
        Activity::Imaging,
        Activity::Pacing,
        Activity::Cleaning,
        Activity::Closing,
        Activity::Failed,
    ];
    /// Its name in views.
    pub fn name(self) -> &'static str {
        match self {
            Activity::None => "none",
            Activity::Starting => "starting",
            Activity::Idle => "idle",
            Activity::Waiting => "waiting",
            Activity::Imaging => "imaging",
            Activity::Pacing => "pacing",
            Activity::Cleaning => "cleaning",
            Activity::Closing => "closing",
            Activity::Failed => "failed",
        }
    }
}

/// What a round has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The rows that were imaged.
    pub rows: u64,
    /// The pages, also those that cleaning has filled.
    pub pages: u64,
    /// The bytes of WAL.
    pub bytes: u64,
}

/// A complete round. Times are in microseconds, as the platform counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Its kind, as in its record.
    pub kind: u64,
    /// The redo pointer that it served.
    pub redo: u64,
    /// When it began.
    pub begun: u64,
    /// When it was complete. 0: none was.
    pub ended: u64,
    /// What it has written.
    pub written: Written,
}

/// Counters since the start of the server, or a reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Complete rounds.
    pub rounds: u64,
    /// What they have written.
    pub written: Written,
    /// Rounds that have failed.
    pub errors: u64,
    /// When it was reset. 0: never.
    pub reset: u64,
}

/// All-zero: none has run.
#[derive(Default)]
#[repr(C)]
pub struct Report {
    activity: AtomicU64,
    since: AtomicU64,
    held_since: AtomicU64,
    released_at: AtomicU64,
    last: [AtomicU64; 7],
    totals: [AtomicU64; 6],
}

fn get(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn set(word: &AtomicU64, to: u64) {
    word.store(to, Ordering::Relaxed);
}

impl Report {
    /// The companion begins with something else.
    pub fn begin(&self, activity: Activity, now: u64) {
        if get(&self.activity) != activity as u64 {
            set(&self.since, now);
            set(&self.activity, activity as u64);
        }
    }
    /// What it does, and since when.
    pub fn activity(&self) -> (Activity, u64) {
        let n = get(&self.activity) as usize;
        (Activity::ALL.get(n).copied().unwrap_or(Activity::None), get(&self.since))
    }
    /// A checkpoint has begun, and is held.
    pub fn hold(&self, now: u64) {
        if get(&self.held_since) == 0 {
            set(&self.held_since, now);
        }
    }
    /// No checkpoint is held any more.
    pub fn release(&self, now: u64) {
        if get(&self.held_since) != 0 {
            set(&self.held_since, 0);
            set(&self.released_at, now);
        }
    }
    /// Since when a checkpoint is held, and when the last one was released. 0: none.
    pub fn holds(&self) -> (u64, u64) {
        (get(&self.held_since), get(&self.released_at))
    }
    /// A round is complete.
    pub fn made(&self, m: &Made) {
        let w = &m.written;
        let values = [m.kind, m.redo, m.begun, m.ended, w.rows, w.pages, w.bytes];
        self.last.iter().zip(values).for_each(|(word, to)| set(word, to));
        let more = [1, w.rows, w.pages, w.bytes];
        for (word, n) in self.totals.iter().zip(more) {
            word.fetch_add(n, Ordering::Relaxed);
        }
    }
    /// A round has failed.
    pub fn failed(&self) {
        self.totals[4].fetch_add(1, Ordering::Relaxed);
    }
    /// The last complete round.
    pub fn last(&self) -> Made {
        let [kind, redo, begun, ended, rows, pages, bytes] = std::array::from_fn(|i| get(&self.last[i]));
        Made { kind, redo, begun, ended, written: Written { rows, pages, bytes } }
    }
    /// The counters.
    pub fn totals(&self) -> Totals {
        let [rounds, rows, pages, bytes, errors, reset] = std::array::from_fn(|i| get(&self.totals[i]));
        Totals { rounds, written: Written { rows, pages, bytes }, errors, reset }
    }
    /// Sets the counters to zero.
    pub fn reset(&self, now: u64) {
        self.totals[..5].iter().for_each(|word| set(word, 0));
        set(&self.totals[5], now);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn activities_have_their_places() {
        for (n, activity) in Activity::ALL.into_iter().enumerate() {
            assert_eq!(activity as usize, n);
        }
    }

    #[test]
    fn a_report_says_what_it_was_told() {
        let r = Report::default();
        assert_eq!((r.activity(), r.holds()), ((Activity::None, 0), (0, 0)));
        r.begin(Activity::Imaging, 5);
        r.begin(Activity::Imaging, 6);
        r.release(6);
        r.hold(7);
        r.hold(8);
        assert_eq!((r.activity(), r.holds()), ((Activity::Imaging, 5), (7, 0)));
        r.release(9);
        r.release(10);
        assert_eq!(r.holds(), (0, 9));
        let written = Written { rows: 10, pages: 2, bytes: 300 };
        let made = Made { kind: 3, redo: 77, begun: 5, ended: 9, written };
        r.made(&made);
        r.made(&made);
        r.failed();
        let twice = Written { rows: 20, pages: 4, bytes: 600 };
        assert_eq!((r.last(), r.totals()), (made, Totals { rounds: 2, written: twice, errors: 1, reset: 0 }));
        r.reset(11);
        assert_eq!((r.last(), r.totals()), (made, Totals { reset: 11, ..Totals::default() }));
    }
}
