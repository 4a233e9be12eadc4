//! What the next transaction of a slot keeps from one that lost a conflict, so that a retry wins.
//!
//! **INV-LOSER**: If a transaction has lost an upgrade of a read lock, it takes this lock for
//! reading in the mode that was lost. So do the transactions that follow it in its slot until one
//! commits. They do not overtake the winner, and none of them loses twice for one lock. (Of the
//! last 64 that were lost or listed.)

use super::{Owner, RecordRef};
use crate::csn::State;
use crate::faults::{self, Fault};
use crate::lock::{LockWord, Mode};
use crate::platform::WaitFor;
use crate::primitive::Ordering;

/// Locks that are remembered.
const LOSSES: usize = 64;

/// Why a lock is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Why {
    /// The failed transaction held it.
    Held,
    /// It waited for it, and failed.
    Wanted,
    /// Its row had changed, which has failed the transaction.
    Changed,
    /// An upgrade of it was lost.
    Upgrade,
}

/// A lock whose upgrade was lost, or which the transactions that follow had better take early.
struct Lost {
    /// Address of the lock, which is only compared: it may have another use by now. Then a lock is
    /// stronger than needed.
    word: usize,
    /// Id of its table, which is never used again.
    table: u64,
    /// Number of its record, if it is the lock of one.
    no: Option<u64>,
    mode: Mode,
    why: Why,
    /// Does the next transaction take it first, if it comes to the list (INV-FIRST)?
    first: bool,
}

/// The conflicts that the transactions of a slot have lost since one of them committed.
pub(super) struct Retry {
    /// Lost upgrades (INV-LOSER), and what was listed.
    lost: Vec<Lost>,
    /// Id of the table whose next scanned row takes the place of a lost one; 0: none.
    heir: u64,
    /// The transaction that won the last deadlock, until the next transaction begins or this one
    /// commits.
    pub winner: Option<WaitFor>,
    /// Age in the order of `wait_die`; 0: none. A transaction that follows one which ended with a
    /// serialization failure has its age, so that a retry gets older until it wins.
    age: u64,
    /// Serializable transactions in a row that committed and had only read.
    only_read: u32,
    /// A look that had locked the key of its row alone has failed a transaction: those that follow
    /// it in its slot lock rows, until one commits.
    pub locks_rows: bool,
    /// For so many more transactions doubt is no reason to freeze: one that was frozen by doubt
    /// alone has failed to thaw (INV-FROZEN).
    passes: u32,
}

/// After so many serializable transactions in a row that only read, the next one is expected to do
/// so, too.
const READERS: u32 = 100;

/// For so many serializable transactions doubt is no reason to freeze.
const PASSES: u32 = 100;

impl Retry {
    /// Nothing was lost. It has room for what it may remember: to undo a transaction takes none.
    pub fn new() -> Retry {
        Retry {
            lost: Vec::with_capacity(LOSSES),
            heir: 0,
            winner: None,
            age: 0,
            only_read: 0,
            locks_rows: false,
            passes: 0,
        }
    }

    /// A transaction begins.
    pub fn begin(&mut self) {
        self.heir = 0;
        self.winner = None;
    }

    /// A serializable transaction has committed: had it only read?
    pub fn note_end(&mut self, only_read: bool) {
        self.only_read = if only_read { self.only_read.saturating_add(1) } else { 0 };
        self.passes = self.passes.saturating_sub(1);
    }

    /// A transaction that was frozen was to do more than read, and failed. `in_doubt`: it was
    /// frozen by doubt alone, and might have gone on.
    pub fn note_failed_thaw(&mut self, in_doubt: bool) {
        self.only_read = 0;
        if in_doubt {
            self.passes = PASSES;
        }
    }

    /// Does a transaction go on in doubt?
    pub fn doubts_pass(&self) -> bool {
        self.passes != 0
    }

    /// Is the next transaction expected to read only?
    pub fn expects_to_read(&self) -> bool {
        self.only_read >= READERS
    }

    /// A transaction has committed.
    pub fn succeed(&mut self) {
        self.age = 0;
        self.lost.clear();
        self.locks_rows = false;
        self.winner = None;
    }

    /// The transaction fails for another reason than a lost conflict: the next one is no retry.
    pub fn forget_age(&mut self) {
        self.age = 0;
    }

    /// Takes part in the order of `wait_die`, at the first lock under this policy. Ages are unique:
    /// a slot has one transaction at a time, and its next one has either that age or a new one.
    pub fn publish_age(&mut self, owner: &Owner) {
        let age = &owner.shared_slot().age;
        if age.load(Ordering::Relaxed) == 0 {
            if self.age == 0 {
                self.age = owner.e.shared.last_age.fetch_add(1, Ordering::SeqCst) + 1;
            }
            age.store(self.age, Ordering::SeqCst);
        }
    }

    /// A lock that the failed transaction would rather have taken in this mode when it read, with
    /// the number of its row. False: there is no room for it.
    pub fn list(&mut self, word: usize, table: u64, no: Option<u64>, mode: Mode, why: Why) -> bool {
        if let Some(l) = self.lost.iter_mut().find(|l| l.word == word && l.table == table) {
            (l.mode, l.why, l.first) = (l.mode.join(mode), l.why.max(why), true);
            return true;
        }
        if self.lost.len() == LOSSES {
            match self.lost.iter().position(|l| l.why == Why::Held) {
                _ if why == Why::Held => return false,
                Some(held) => self.lost.remove(held),
                None => self.lost.remove(0),
            };
        }
        self.lost.push(Lost { word, table, no, mode, why, first: true });
        true
    }

    /// The locks that a failed transaction has held are listed anew, or not at all.
    pub fn forget_held(&mut self) {
        self.lost.retain(|l| l.why != Why::Held);
    }

    /// The next transaction takes no lock first: it repeats none that has failed.
    pub fn forget_first(&mut self) {
        self.lost.iter_mut().for_each(|l| l.first = false);
    }

    /// Is any lock remembered, or are looks of keys to lock rows?
    #[inline]
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty() || self.locks_rows
    }

    /// Is the row one of those that are taken first?
    #[inline]
    pub fn is_next(&self, r: RecordRef) -> bool {
        !self.lost.is_empty() && self.lost.iter().any(|l| l.first && l.table == r.table.id && l.no == Some(r.no))
    }

    /// The rows of a table that are taken first, with the modes of their locks, in canonical order.
    /// This is done once.
    pub fn take_first(&mut self, table: u64) -> Vec<(u64, Mode)> {
        let listed = self.lost.iter_mut().filter(|l| l.table == table && l.first);
        let mut rows: Vec<_> = listed
            .filter_map(|l| {
                l.first = false;
                Some((l.no?, l.mode))
            })
            .collect();
        rows.sort_unstable_by_key(|&(no, _)| no);
        rows
    }

    /// Is the lock among those that were lost, or listed?
    pub fn lists(&self, word: &LockWord, table: u64) -> bool {
        let word = std::ptr::from_ref(word) as usize;
        !self.lost.is_empty() && self.lost.iter().any(|l| l.word == word && l.table == table)
    }

    /// The mode in which to take a lock for reading (INV-LOSER). After a lost upgrade this makes
    /// the transaction wait for the winner, which it would overtake by reading again.
    pub fn mode_of_read(&self, word: &LockWord, table: u64, mode: Mode) -> Mode {
        if self.lost.is_empty() || faults::on(Fault::ForgetsLosses) {
            return mode;
        }
        let same = |l: &&Lost| l.word == std::ptr::from_ref(word) as usize && l.table == table;
        self.lost.iter().filter(same).fold(mode, |m, l| m.join(l.mode))
    }

    /// A scan has read a row. If it is a deleted row whose upgrade was lost, the scan's next row
    /// takes its place (INV-LOSER): the winner has had that row, and the loser wants the next one.
    pub fn note_scanned(&mut self, r: RecordRef, live: bool) {
        if self.lost.is_empty() {
            return;
        }
        if live {
            self.heir = 0;
        } else if self.was_lost(&r.rec.lock, r.table.id) {
            self.heir = r.table.id;
        }
    }

    /// Has it failed a transaction that it had been read, and not locked as it should have been?
    fn was_lost(&self, word: &LockWord, table: u64) -> bool {
        let word = std::ptr::from_ref(word) as usize;
        let is_lost = |l: &Lost| l.why >= Why::Changed && l.mode > Mode::KeyShare;
        !faults::on(Fault::ForgetsLosses) && self.lost.iter().any(|l| l.word == word && l.table == table && is_lost(l))
    }

    /// Does the row take the place of a lost one? See [`Retry::note_scanned`].
    pub fn is_heir(&self, r: RecordRef) -> bool {
        self.heir != 0 && self.heir == r.table.id
    }

    /// The transaction that won the last deadlock, if it still runs.
    pub fn running_winner(&self, owner: &Owner) -> Option<WaitFor> {
        let winner = WaitFor { tag: 0, ..self.winner? };
        let s = &owner.e.slots[winner.slot as usize];
        let runs = s.ident.load(Ordering::SeqCst) == winner.ident && owner.e.word(winner.slot).state() != State::Idle;
        runs.then_some(winner)
    }
}
