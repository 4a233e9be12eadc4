//! The last prepared transactions that have committed: which of them were open at a CSN that is
//! told after their end.
//!
//! **INV-ENDS**: A COMMIT PREPARED is noted here after it has its CSN, and before its slot forgets
//! under which CSN it was logged. (One that has changed definitions only has no CSN. The clock's
//! value stands for it.) The ring has the last ends; the largest CSN of those that it has not any
//! more is *forgotten*. Both change under one latch. So a look that begins after a slot was found
//! to have forgotten has the end of its transaction, or *forgotten* is at or above its CSN.

use super::REDEFINES;
use crate::csn::Csn;
use crate::memory::Latch;
use crate::primitive::{AtomicU64, Ordering};

/// A transaction that was prepared, as standbys are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Its full id. 0: it has logged nothing.
    pub xid: u64,
    /// The CSN under which it is logged. 0: it was prepared before this life.
    pub logged: Csn,
    /// The CSN at which it has committed. The largest number: it has not.
    pub ended: Csn,
    /// 0, or what it is ([`super::REDEFINES`], [`super::RECOVERED`]).
    pub what: u32,
}

impl End {
    /// Is it listed while it is open, or does it hold back what is told? It is of this life.
    pub(super) fn is_counted(&self) -> bool {
        self.what == REDEFINES || self.what == 0 && self.xid != 0
    }
    /// Was it prepared at this CSN, and had not committed?
    pub fn is_open_at(&self, csn: Csn) -> bool {
        self.logged <= csn && csn < self.ended
    }
}

/// The last `N` ends. All-zero: none.
#[derive(Debug)]
#[repr(C)]
pub struct Ends<const N: usize> {
    latch: Latch,
    /// How many there were.
    n: AtomicU64,
    forgotten: AtomicU64,
    all: [[AtomicU64; 4]; N],
}

impl<const N: usize> Default for Ends<N> {
    fn default() -> Self {
        let all = std::array::from_fn(|_| Default::default());
        Ends { latch: Latch::default(), n: AtomicU64::new(0), forgotten: AtomicU64::new(0), all }
    }
}

impl<const N: usize> Ends<N> {
    /// The slot of the transaction has it still, and its word is *committing* (INV-ENDS).
    pub fn note(&self, end: End) {
        self.latch.with(|| {
            let n = self.n.load(Ordering::SeqCst);
            let [xid, logged, ended, what] = &self.all[n as usize % N];
            // 0: there was none.
            self.forgotten.fetch_max(ended.load(Ordering::SeqCst), Ordering::SeqCst);
            xid.store(end.xid, Ordering::SeqCst);
            logged.store(end.logged, Ordering::SeqCst);
            ended.store(end.ended, Ordering::SeqCst);
            what.store(end.what.into(), Ordering::SeqCst);
            self.n.store(n + 1, Ordering::SeqCst);
        });
    }
    /// Remembers only that there was an end at this CSN.
    pub fn forget(&self, ended: Csn) {
        self.latch.with(|| self.forgotten.fetch_max(ended, Ordering::SeqCst));
    }
    /// Adds the ends to a list. Returns the largest CSN of those that it has not any more.
    pub fn look(&self, to: &mut Vec<End>) -> Csn {
        to.reserve(N); // Nothing is allocated under the latch.
        self.latch.with(|| {
            let n = self.n.load(Ordering::SeqCst).min(N as u64) as usize;
            to.extend(self.all[..n].iter().map(|words| {
                let [xid, logged, ended, what] = [0, 1, 2, 3].map(|i| words[i].load(Ordering::SeqCst));
                End { xid, logged, ended, what: what as u32 }
            }));
            self.forgotten.load(Ordering::SeqCst)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_ends_are_known_and_others_are_counted() {
        let ends: Ends<2> = Ends::default();
        let look = || {
            let mut all = Vec::new();
            let forgotten = ends.look(&mut all);
            (all.iter().map(|end| end.xid).collect::<Vec<_>>(), forgotten)
        };
        assert_eq!(look(), (vec![], 0));
        let note = |xid: u64, ended| ends.note(End { xid, logged: 5, ended, what: 0 });
        note(1, 20);
        note(2, 10);
        assert_eq!(look(), (vec![1, 2], 0));
        note(3, 30);
        assert_eq!(look(), (vec![3, 2], 20));
        note(4, 40);
        assert_eq!(look(), (vec![3, 4], 20), "the largest one");
        ends.forget(35);
        assert_eq!(look(), (vec![3, 4], 35));
    }

    #[test]
    fn one_is_open_from_its_log_to_its_end() {
        let end = End { xid: 1, logged: 5, ended: 8, what: 0 };
        assert_eq!([4, 5, 7, 8].map(|csn| end.is_open_at(csn)), [false, true, true, false]);
    }
}
