//! Up to which CSN all commits are in WAL that is on disk (D-HINT).
//!
//! **INV-FLUSHED**: V is found so: read the clock; then look at the word of each slot. A
//! transaction that is *preparing* is awaited, and V is below the CSN of each one that is
//! *committing*. A transaction at or below V is not before its record then: it has set the word
//! *committed* after its record was inserted, or it has aborted, or it logs nothing. So once WAL is
//! on disk up to where it ended after the look, all commits up to V are.

use super::Lsn;
use crate::csn::{Csn, SlotId, State};
use crate::primitive::relax;
use crate::shared::Engine;

/// A CSN that becomes the answer when WAL is on disk up to there.
#[derive(Default)]
pub struct Flushed(Option<(Csn, Lsn)>);

impl Flushed {
    /// Looks again. `inserted` says where WAL ends, and `flushed` up to where it is on disk.
    pub fn advance(&mut self, e: &Engine, inserted: impl Fn() -> Lsn, flushed: impl Fn() -> Lsn) {
        if self.0.is_none() && e.now() > e.shared.rounds.flushed_csn() {
            let csn = logged_upto(e);
            self.0 = Some((csn, inserted()));
        }
        if let Some((csn, _)) = self.0.filter(|(_, end)| flushed() >= *end) {
            // INV-FLUSHED: the records of all commits up to it are before `end`.
            e.shared.rounds.set_flushed_csn(csn);
            self.0 = None;
        }
    }
}

/// Each commit at or below it has inserted its record.
pub(super) fn logged_upto(e: &Engine) -> Csn {
    let mut upto = e.now();
    for slot in 0..e.slots.len() {
        let mut word = e.word(slot as SlotId);
        for n in 0.. {
            if word.state() != State::Preparing {
                break;
            }
            relax(n);
            word = e.word(slot as SlotId);
        }
        if word.state() == State::Committing {
            upto = upto.min(word.csn() - 1);
        }
    }
    upto
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Flushed;
    use crate::csn::{SlotWord, State};
    use crate::primitive::Ordering;
    use crate::threads::Block;

    #[test]
    fn a_csn_is_flushed_when_wal_is_up_to_its_look() {
        let block = Block::new(8 << 20, 2).expect("a block");
        let e = block.engine;
        let now = (e.tick(), e.tick(), e.tick()).2;
        let mut flushed = Flushed::default();
        flushed.advance(&e, || 100, || 99);
        assert_eq!(e.shared.rounds.flushed_csn(), 0, "not on disk yet");
        e.tick();
        flushed.advance(&e, || 200, || 100);
        assert_eq!(e.shared.rounds.flushed_csn(), now, "what the first look has seen");
        // A commit that may not have inserted its record holds it back.
        let open = e.tick();
        e.slots[1].word.store(SlotWord::new(0, open, State::Committing).0, Ordering::SeqCst);
        e.tick();
        flushed.advance(&e, || 300, || 300);
        assert_eq!(e.shared.rounds.flushed_csn(), open - 1);
        e.slots[1].word.store(SlotWord::new(0, open, State::Committed).0, Ordering::SeqCst);
        flushed.advance(&e, || 400, || 400);
        assert_eq!(e.shared.rounds.flushed_csn(), e.now());
    }
}
