//! The companion's words in shared memory, by which other processes ask it for a round.

use super::report::Report;
use crate::csn::{Csn, SlotId};
use crate::primitive::{AtomicU32, AtomicU64, Ordering};

/// What the companion has in shared memory. All-zero: none has run.
#[derive(Default)]
#[repr(C)]
pub struct Rounds {
    /// Its slot + 1; 0: none runs.
    slot: AtomicU32,
    _pad: u32,
    /// The number of rounds that were asked for.
    asked: AtomicU64,
    /// So many of them were asked for by processes that want them soon.
    urgent: AtomicU64,
    /// So many of them are of all tables.
    whole: AtomicU64,
    /// So many of all are answered.
    answered: AtomicU64,
    /// The number of complete rounds.
    complete: AtomicU64,
    /// The redo pointer of the last one.
    redo: AtomicU64,
    /// All commits at or below this CSN are in WAL that is on disk.
    flushed_csn: AtomicU64,
    /// What the companion tells of itself.
    pub report: Report,
}

impl Rounds {
    /// The slot of the companion that runs.
    pub fn slot(&self) -> Option<SlotId> {
        self.slot.load(Ordering::SeqCst).checked_sub(1).map(|slot| slot as SlotId)
    }
    /// A companion begins (`Some`), or ends.
    pub fn set_slot(&self, slot: Option<SlotId>) {
        self.slot.store(slot.map_or(0, |s| s as u32 + 1), Ordering::SeqCst);
    }
    /// Asks for a round, which begins after this call. The answer is its ticket. `whole`: a round
    /// of all tables. Else it is of those that are marked with [`super::Durable::want_round`]
    /// before this call.
    pub fn ask(&self, urgent: bool, whole: bool) -> u64 {
        // Before the ticket: a look that finds the ticket finds this number, too.
        if whole {
            self.whole.fetch_add(1, Ordering::SeqCst);
        }
        let ticket = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        // After it: a look that finds this number finds the ticket, too.
        if urgent {
            self.urgent.fetch_add(1, Ordering::SeqCst);
        }
        ticket
    }
    /// The number of rounds that processes wanted soon.
    pub fn urgent(&self) -> u64 {
        self.urgent.load(Ordering::SeqCst)
    }
    /// The number of rounds of all tables that were asked for.
    pub fn whole(&self) -> u64 {
        self.whole.load(Ordering::SeqCst)
    }
    /// Is the round with this ticket complete?
    pub fn is_answered(&self, ticket: u64) -> bool {
        self.answered.load(Ordering::SeqCst) >= ticket
    }
    /// The last ticket, which a round that begins now answers. `None`: all are answered.
    pub fn open_ticket(&self) -> Option<u64> {
        let asked = self.asked.load(Ordering::SeqCst);
        (!self.is_answered(asked)).then_some(asked)
    }
    /// A round for this redo pointer is complete. It began after this ticket was given.
    pub fn complete(&self, redo: u64, ticket: Option<u64>) {
        self.redo.store(redo, Ordering::SeqCst);
        self.complete.fetch_add(1, Ordering::SeqCst);
        if let Some(ticket) = ticket {
            self.answered.fetch_max(ticket, Ordering::SeqCst);
        }
    }
    /// The number of complete rounds, and the redo pointer of the last one.
    pub fn last(&self) -> (u64, u64) {
        (self.complete.load(Ordering::SeqCst), self.redo.load(Ordering::SeqCst))
    }
    /// All commits at or below this CSN are in WAL that is on disk (D-HINT).
    pub fn flushed_csn(&self) -> Csn {
        self.flushed_csn.load(Ordering::SeqCst)
    }
    /// The companion has seen so.
    pub fn set_flushed_csn(&self, csn: Csn) {
        self.flushed_csn.fetch_max(csn, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Rounds;

    #[test]
    fn a_round_answers_all_that_asked_before_it_began() {
        let rounds = Rounds::default();
        assert_eq!((rounds.slot(), rounds.open_ticket()), (None, None));
        rounds.set_slot(Some(0));
        let (first, second) = (rounds.ask(true, true), rounds.ask(false, false));
        let open = rounds.open_ticket();
        let third = rounds.ask(true, false);
        assert_eq!((rounds.urgent(), rounds.whole()), (2, 1));
        rounds.complete(77, open);
        assert_eq!([first, second, third].map(|t| rounds.is_answered(t)), [true, true, false]);
        assert_eq!((rounds.slot(), rounds.last(), rounds.open_ticket()), (Some(0), (1, 77), Some(third)));
        rounds.complete(78, None);
        assert!(!rounds.is_answered(third));
    }
}
