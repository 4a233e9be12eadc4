//! Guards: what prepared transactions have read stays as it is until they are finished.
//!
//! **INV-AHEAD**: A prepared transaction validates its reads at a number. Before it takes that, it
//! raises the shared guard, and then that of each partition that it has read at SERIALIZABLE. If it
//! commits, it puts its CSN into the guards when it lowers them, the shared one last. A commit has
//! its CSN and then looks at the shared guard, and at those of the partitions that it writes. It
//! fails if there is a count, or a CSN above its own. A prepared transaction raises a word of the
//! partitions that it writes, too. With its words raised it looks at those of others, since it does
//! not look at its end.
//!
//! Let W be prepared, with reads that were valid at n, and committed at c. No other transaction
//! with a CSN from n + 1 to c has changed what W has read. For such a transaction takes its CSN
//! after n, so after the guard was raised. It looks after that. If W has not lowered its guard, the
//! transaction finds the count; else it finds c, which is above its CSN.

use crate::csn::{Csn, CSN_MAX};
use crate::primitive::{model_fence, AtomicU64, Ordering};

/// Prepared transactions: how many there are, and the largest CSN of those that have committed.
/// `[count:16][csn:48]`. All-zero: there was none.
#[derive(Default)]
#[repr(transparent)]
pub struct Tally(AtomicU64);

const ONE: u64 = 1 << 48;

impl Tally {
    /// One more is prepared.
    pub fn enter(&self) {
        self.0.fetch_add(ONE, Ordering::SeqCst);
        model_fence();
    }

    /// One was committed at this CSN, or was undone (0).
    pub fn leave(&self, csn: Csn) {
        let mut old = self.0.load(Ordering::SeqCst);
        loop {
            debug_assert!(old >= ONE);
            let new = (old - ONE) & !CSN_MAX | (old & CSN_MAX).max(csn);
            match self.0.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// How many there are.
    #[inline]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst) >> 48
    }

    /// Is none prepared, and has none committed after this CSN?
    #[inline]
    pub fn admits(&self, csn: Csn) -> bool {
        // A count makes the word larger than any CSN.
        self.0.load(Ordering::SeqCst) < csn
    }
}
