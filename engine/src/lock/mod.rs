//! Record and partition locks: one word each, four modes (PostgreSQL's row-lock modes).
//!
//! A word is free, or names its only holder, or points to a list of all holders (`head.rs`).
//! Waiting is not here: [`crate::txn`] sleeps through the platform, and asks again.
//!
//! **INV-TURN**: A waiter that has slept for one holder in vain marks the lock word with the mode
//! that it wants. While the mark is there, a newcomer whose mode conflicts with it takes the lock
//! only after the waiter, whether or not a holder is in its way. It passes only if the waiter waits
//! for it, directly or through others (`graph.rs`); or, if it wants KEY SHARE below SERIALIZABLE,
//! when it has stood back for some time. A transaction that holds the lock already stays, and may
//! take a stronger mode. So only finitely many transactions come before the waiter: the holders at
//! the time of the mark, and those that the waits-for graph lets pass. (More do if locks of the key
//! are held for longer than newcomers stand back.) The waiter removes its mark when it takes the
//! lock or gives up, and so does the end of its transaction. A mark without a waiter is ignored.
//! The mark survives changes of the holders, also while the lock is free.

pub(crate) mod graph;
mod head;
mod word;

pub use head::Heads;
pub use word::{Acquired, Claim, Conflict, First, LockWord};

use crate::csn::SlotId;

/// Lock modes. Records use the first four, each stronger than the one before
/// (`heap/README.tuplock`). Ranges use `KeyShare`, `Share`, `Change`, `Intent`, and `Update`, which
/// is two of these together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mode {
    /// FOR KEY SHARE: the row and its key stay; all rows and their keys, for a range.
    KeyShare = 1,
    /// FOR SHARE, and the read locks of `2pl`.
    Share = 2,
    /// FOR NO KEY UPDATE: updates of columns that are in no index.
    NoKeyUpdate = 3,
    /// FOR UPDATE, deletes, moves, and partition locks.
    Update = 4,
    /// An insert, a delete or a move somewhere in a range. It is compatible with itself and
    /// `Change`.
    Intent = 5,
    /// An update in place somewhere in a range. Only readers that share more than keys exclude it.
    Change = 6,
}

impl Mode {
    fn from_bits(b: u64) -> Option<Mode> {
        use Mode::*;
        let all = [None, Some(KeyShare), Some(Share), Some(NoKeyUpdate), Some(Update), Some(Intent), Some(Change)];
        all[(b & 7).min(6) as usize]
    }
    /// Does a holder of this mode have all rights of the wanted one?
    pub fn covers(self, wanted: Mode) -> bool {
        match (self, wanted) {
            (Mode::Update, _) => true,
            (Mode::Intent, w) => matches!(w, Mode::Intent | Mode::Change),
            (Mode::Change, w) => w == Mode::Change,
            (_, Mode::Intent | Mode::Change) => false,
            (held, w) => held >= w,
        }
    }
    /// The weakest mode that covers both.
    pub fn join(self, other: Mode) -> Mode {
        match () {
            _ if self.covers(other) => self,
            _ if other.covers(self) => other,
            _ => Mode::Update,
        }
    }
    /// Do two holders with these modes exclude each other? (the table in `README.tuplock`)
    pub fn conflicts(self, other: Mode) -> bool {
        match self {
            Mode::KeyShare => matches!(other, Mode::Update | Mode::Intent),
            Mode::Share => other >= Mode::NoKeyUpdate,
            Mode::NoKeyUpdate => other >= Mode::Share,
            Mode::Update => true,
            Mode::Intent => !matches!(other, Mode::Intent | Mode::Change),
            Mode::Change => !matches!(other, Mode::KeyShare | Mode::Intent | Mode::Change),
        }
    }
}

/// A holder of a lock: its slot, the mode, and the tag of the subtransaction or scan that took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The slot of the holder's transaction.
    pub slot: SlotId,
    /// The strongest mode held.
    pub mode: Mode,
    /// 0 if the top-level transaction took it, to its end; else see
    /// [`crate::platform::WaitFor::tag`].
    pub tag: u32,
}

const LATCH: u64 = 1;
const INFLATED: u64 = 2;
/// In a word that is not inflated: the mode that the first waiter of the queue wants. 0: no mark.
const MARK: u64 = 7 << MARK_SHIFT;
const MARK_SHIFT: u32 = 5;

impl Holder {
    /// `[tag:32][slot:16][..][mark:3][mode:3][inflated:1][latch:1]`. The mark belongs to the word,
    /// not to the holder.
    pub(crate) fn encode(self) -> u64 {
        ((self.tag as u64) << 32) | ((self.slot as u64) << 16) | ((self.mode as u64) << 2)
    }
    pub(crate) fn decode(w: u64) -> Option<Holder> {
        Some(Holder { slot: (w >> 16) as u16, mode: Mode::from_bits(w >> 2)?, tag: (w >> 32) as u32 })
    }
}

#[cfg(test)]
mod tests;
