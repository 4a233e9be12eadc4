//! Warnings that the region becomes full.
//!
//! One process at a time looks at the use of the region and notes when it passes a threshold. All
//! processes may read the notes. Sessions that allocate memory have no part in it.

use crate::primitive::{AtomicU64, Ordering};

/// The thresholds in percent of the region's pages.
pub const THRESHOLDS: [u64; 2] = [80, 95];
/// Use that goes up and down around a threshold passes it once: the threshold is left when the use
/// is so far below it, in percent.
const SLACK: u64 = 5;
/// The number of warnings that are remembered.
pub const REMEMBERED: usize = 100;
/// One more: that of the next warning, which may be half written.
const CELLS: usize = REMEMBERED + 1;

/// The use of the region has passed a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The number of the warning since the start, from 0.
    pub number: u64,
    /// The threshold.
    pub percent: u64,
    /// The bytes of pages in use at that moment.
    pub used_bytes: u64,
    /// The bytes of all pages.
    pub total_bytes: u64,
    /// The platform's time of that moment.
    pub passed_at: u64,
    /// The time when the use had fallen again. 0: it has not.
    pub left_at: u64,
}

#[repr(C)]
struct Cell {
    percent: AtomicU64,
    used_bytes: AtomicU64,
    total_bytes: AtomicU64,
    passed_at: AtomicU64,
    left_at: AtomicU64,
}

/// The warnings. All-zero: there was none.
#[repr(C)]
pub struct Pressure {
    next: AtomicU64,
    /// For each threshold that the use is above of: the number of its warning + 1. Else 0.
    open: [AtomicU64; THRESHOLDS.len()],
    cells: [Cell; CELLS],
}

impl Pressure {
    /// Compares the use with the thresholds. Returns the warning of the highest one that was passed
    /// since the last look. One process at a time calls this.
    pub fn look(&self, used_bytes: u64, total_bytes: u64, now: u64) -> Option<Warning> {
        let mut new = None;
        for (percent, open) in THRESHOLDS.into_iter().zip(&self.open) {
            let is_above = |percent| used_bytes * 100 >= total_bytes * percent;
            match open.load(Ordering::SeqCst) {
                0 if is_above(percent) => {
                    let number = self.next.load(Ordering::SeqCst);
                    let w = Warning { number, percent, used_bytes, total_bytes, passed_at: now, left_at: 0 };
                    self.push(w);
                    open.store(number + 1, Ordering::SeqCst);
                    new = Some(w);
                }
                0 => (),
                n if !is_above(percent - SLACK) => {
                    if n + REMEMBERED as u64 > self.next.load(Ordering::SeqCst) {
                        self.cell(n - 1).left_at.store(now, Ordering::SeqCst);
                    }
                    open.store(0, Ordering::SeqCst);
                }
                _ => (),
            }
        }
        new
    }

    fn cell(&self, number: u64) -> &Cell {
        &self.cells[number as usize % CELLS]
    }

    fn push(&self, w: Warning) {
        let c = self.cell(w.number);
        c.percent.store(w.percent, Ordering::SeqCst);
        c.used_bytes.store(w.used_bytes, Ordering::SeqCst);
        c.total_bytes.store(w.total_bytes, Ordering::SeqCst);
        c.passed_at.store(w.passed_at, Ordering::SeqCst);
        c.left_at.store(0, Ordering::SeqCst);
        self.next.store(w.number + 1, Ordering::SeqCst);
    }

    /// The warnings that are remembered, oldest first.
    pub fn entries(&self) -> Vec<Warning> {
        let end = self.next.load(Ordering::SeqCst);
        (end.saturating_sub(REMEMBERED as u64)..end).filter_map(|n| self.entry(n)).collect()
    }

    fn entry(&self, number: u64) -> Option<Warning> {
        let c = self.cell(number);
        let w = Warning {
            number,
            percent: c.percent.load(Ordering::SeqCst),
            used_bytes: c.used_bytes.load(Ordering::SeqCst),
            total_bytes: c.total_bytes.load(Ordering::SeqCst),
            passed_at: c.passed_at.load(Ordering::SeqCst),
            left_at: c.left_at.load(Ordering::SeqCst),
        };
        // Its cell is written again only when `next` has come to its number + CELLS.
        (self.next.load(Ordering::SeqCst) < number + CELLS as u64).then_some(w)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pressure() -> Box<Pressure> {
        // SAFETY: all-zero memory is a valid `Pressure`.
        unsafe { Box::new(std::mem::zeroed()) }
    }

    #[test]
    fn each_threshold_warns_once_until_the_use_has_fallen_well_below_it() {
        let p = pressure();
        let percent = |used, now| p.look(used, 1000, now).map(|w| w.percent);
        assert_eq!(percent(799, 1), None);
        assert_eq!(percent(800, 2), Some(80));
        assert_eq!([percent(900, 3), percent(790, 4), percent(760, 5), percent(810, 6)], [None; 4]);
        assert_eq!(percent(950, 7), Some(95));
        assert_eq!([percent(910, 8), percent(1000, 9), percent(899, 10)], [None; 3]);
        assert_eq!(percent(950, 11), Some(95), "it was left at 10");
        assert_eq!([percent(749, 12), percent(749, 13)], [None; 2]);
        let seen: Vec<_> = p.entries().iter().map(|w| (w.number, w.percent, w.passed_at, w.left_at)).collect();
        assert_eq!(seen, [(0, 80, 2, 12), (1, 95, 7, 10), (2, 95, 11, 12)]);
    }

    #[test]
    fn a_jump_over_both_warns_of_the_higher_one() {
        let p = pressure();
        let wanted = Warning { number: 1, percent: 95, used_bytes: 99, total_bytes: 100, passed_at: 5, left_at: 0 };
        assert_eq!(p.look(99, 100, 5), Some(wanted));
        assert_eq!(p.entries()[1], wanted);
        assert_eq!(p.entries()[0], Warning { number: 0, percent: 80, ..wanted });
    }

    #[test]
    fn the_last_ones_are_remembered_and_read_whole() {
        let p = pressure();
        std::thread::scope(|s| {
            s.spawn(|| {
                for n in 1..5000 {
                    p.look(96, 100, n);
                    p.look(80, 100, n);
                }
            });
            for _ in 0..2000 {
                for w in p.entries() {
                    assert!(w.percent == 80 || w.percent == 95 && w.used_bytes == 96);
                    assert!(w.number == 0 || w.passed_at == w.number, "{w:?}");
                }
            }
        });
        let all = p.entries();
        assert_eq!((all.len(), all[0].number), (REMEMBERED, 4900));
        p.look(0, 100, 7000);
        assert!(p.entries().iter().all(|w| w.left_at != 7000), "that of 80 % is forgotten");
    }
}
