//! The last commits, with their transaction ids: by them a snapshot of another kind, which names
//! transactions by ids, becomes one of CSNs.
//!
//! **INV-RECENT**: Entries have numbers in the order in which they were begun, and entry *n* has
//! the place *n* modulo the number of places. Its writer waits until the entry before it at this
//! place is complete. Then it marks the place as busy, writes, and stores the entry's number + 1 at
//! last. So one process at a time writes a place. A reader that finds this number before and after
//! it has read has read entry *n*.

use crate::csn::Csn;
use crate::primitive::{model_fence, AtomicU64, Ordering};

/// A place. All-zero: none of its entries was begun.
#[derive(Default)]
#[repr(C)]
pub struct Place {
    /// The number of its entry + 1; [`BUSY`]: the next one is being written.
    mark: AtomicU64,
    csn: AtomicU64,
    xid: AtomicU64,
}

const BUSY: u64 = u64::MAX;

/// A commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its CSN.
    pub csn: Csn,
    /// Its full transaction id.
    pub xid: u64,
}

/// What a reader has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The entry.
    Entry(Entry),
    /// It is not complete yet.
    NotYet,
    /// A later one has its place.
    Lost,
}

/// A handle to the list.
#[derive(Clone, Copy)]
pub struct Recent<'a> {
    /// The number of entries that were begun.
    pub begun: &'a AtomicU64,
    /// The places.
    pub places: &'a [Place],
}

impl Recent<'_> {
    /// The number of the next entry.
    pub fn next(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Adds a commit. `pause`: how to wait a moment.
    pub fn add(&self, entry: Entry, mut pause: impl FnMut()) {
        let n = self.begun.fetch_add(1, Ordering::SeqCst);
        let place = self.place(n);
        let before = (n + 1).saturating_sub(self.places.len() as u64);
        while place.mark.load(Ordering::SeqCst) != before {
            pause();
        }
        place.mark.store(BUSY, Ordering::SeqCst);
        model_fence();
        place.csn.store(entry.csn, Ordering::SeqCst);
        place.xid.store(entry.xid, Ordering::SeqCst);
        model_fence();
        place.mark.store(n + 1, Ordering::SeqCst);
    }

    /// The entry with a number below [`Recent::next`].
    pub fn read(&self, n: u64) -> Found {
        let place = self.place(n);
        let mark = place.mark.load(Ordering::SeqCst);
        if mark == BUSY || mark < n + 1 {
            return if self.next() > n + self.places.len() as u64 { Found::Lost } else { Found::NotYet };
        }
        model_fence();
        let entry = Entry { csn: place.csn.load(Ordering::SeqCst), xid: place.xid.load(Ordering::SeqCst) };
        model_fence();
        let same = mark == n + 1 && place.mark.load(Ordering::SeqCst) == mark;
        if same {
            Found::Entry(entry)
        } else {
            Found::Lost
        }
    }

    fn place(&self, n: u64) -> &Place {
        &self.places[(n % self.places.len() as u64) as usize]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn with(places: usize, f: impl FnOnce(Recent)) {
        let places: Vec<Place> = (0..places).map(|_| Place::default()).collect();
        f(Recent { begun: &AtomicU64::new(0), places: &places });
    }

    fn entry(n: u64) -> Entry {
        Entry { csn: n * 3 + 1, xid: n * 7 + 5 }
    }

    #[test]
    fn entries_are_found_until_later_ones_have_their_places() {
        with(4, |recent| {
            for n in 0..11 {
                assert_eq!((recent.next(), recent.read(n)), (n, Found::NotYet));
                recent.add(entry(n), || panic!("nobody is in its way"));
                for m in 0..=n {
                    let wanted = if m + 4 > n { Found::Entry(entry(m)) } else { Found::Lost };
                    assert_eq!(recent.read(m), wanted, "{m} of {n}");
                }
            }
        });
    }

    #[test]
    fn an_entry_that_is_being_written_is_not_there_yet() {
        with(2, |recent| {
            recent.begun.store(1, Ordering::SeqCst);
            assert_eq!(recent.read(0), Found::NotYet);
            recent.places[0].mark.store(BUSY, Ordering::SeqCst);
            assert_eq!(recent.read(0), Found::NotYet);
            recent.begun.store(3, Ordering::SeqCst);
            assert_eq!(recent.read(0), Found::Lost, "the third one is under way at its place, or waits for it");
        });
    }

    #[test]
    fn many_writers_lose_no_entry_and_mix_none() {
        with(64, |recent| {
            std::thread::scope(|s| {
                for writer in 0..3 {
                    s.spawn(move || {
                        for n in 0..20_000 {
                            let csn = writer * 100_000 + n;
                            recent.add(Entry { csn, xid: csn + 7 }, std::thread::yield_now);
                        }
                    });
                }
                s.spawn(move || {
                    while recent.next() < 60_000 {
                        for n in recent.next().saturating_sub(32)..recent.next() {
                            if let Found::Entry(e) = recent.read(n) {
                                assert_eq!(e.xid, e.csn + 7);
                            }
                        }
                    }
                });
            });
            let left: Vec<_> = (60_000 - 64..60_000).map(|n| recent.read(n)).collect();
            assert!(left.iter().all(|e| matches!(e, Found::Entry(_))));
        });
    }
}
