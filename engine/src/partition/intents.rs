//! Rows that are usually written by the transactions that have read them.
//!
//! Two transactions that lock a row in SHARE to read it, and then both want to write it, cannot
//! both go on. If the first one had locked it for writing at the read, the second one would have
//! waited. So losers of such upgrades make a row known, and those that lock it for writing at the
//! read tell whether they have written it at their end.
//!
//! It is a guess, which no proof relies on: a stronger lock than needed is sound. Rows share
//! places, and updates may be lost.

use crate::faults::{self, Fault};
use crate::primitive::{AtomicU8, Ordering};

/// Places of a partition. A power of two.
const PLACES: usize = 32;
/// From here on a read locks for writing.
const KNOWN: u8 = 4;
/// What one lost upgrade adds.
const LOST: u8 = 8;
const MOST: u8 = 16;

/// Of each place, how much is known of reads that are followed by a write. All-zero: nothing.
#[repr(transparent)]
pub struct Intents([AtomicU8; PLACES]);

impl Intents {
    fn place(&self, record: u64) -> &AtomicU8 {
        // Neighbours have places of their own; a table that grows by one row a transaction uses
        // all places alike.
        &self.0[record as usize % PLACES]
    }

    fn add(&self, record: u64, n: u8) {
        let place = self.place(record);
        let old = place.load(Ordering::Relaxed);
        let new = (old + n).min(MOST);
        if new != old {
            place.store(new, Ordering::Relaxed);
        }
    }

    /// Is a read of the row usually followed by a write of it?
    #[inline]
    pub fn expects_write(&self, record: u64) -> bool {
        self.place(record).load(Ordering::Relaxed) >= KNOWN && !forgotten()
    }

    /// Is anything known of the row?
    pub fn is_known(&self, record: u64) -> bool {
        self.place(record).load(Ordering::Relaxed) != 0
    }

    /// A transaction had read the row, and has lost the upgrade to write it.
    pub fn lost(&self, record: u64) {
        self.add(record, LOST);
    }

    /// A transaction that expected to write the row has committed: has it written it?
    pub fn ended(&self, record: u64, written: bool) {
        if written {
            self.add(record, 1);
        } else {
            let place = self.place(record);
            place.store(place.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        }
    }
}

fn forgotten() -> bool {
    faults::on(Fault::IntentForgotten) || faults::on(Fault::ForgetsLosses)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn new() -> Intents {
        Intents(std::array::from_fn(|_| AtomicU8::new(0)))
    }

    #[test]
    fn one_lost_upgrade_makes_a_row_known_and_reads_alone_make_it_unknown() {
        let i = new();
        assert!(!i.expects_write(5));
        i.lost(5);
        assert!(i.expects_write(5) && !i.expects_write(6));
        (0..LOST).for_each(|_| i.ended(5, false));
        assert!(!i.expects_write(5));
        i.ended(5, false); // not below zero
        assert!(!i.expects_write(5));
    }

    #[test]
    fn writes_keep_a_row_known_beside_fewer_reads() {
        let i = new();
        i.lost(7);
        (0..1000).for_each(|n| i.ended(7, n % 3 != 0));
        assert!(i.expects_write(7));
        (0..1000).for_each(|n| i.ended(7, n % 3 == 0));
        assert!(!i.expects_write(7));
        (0..1000).for_each(|_| i.lost(7)); // not above its most
        assert!(i.expects_write(7));
    }
}
