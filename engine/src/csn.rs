//! Commit sequence numbers and the two words that decide visibility.
//!
//! **INV-WORD**: Serial, state and CSN of a transaction are one atomic word ([`SlotWord`]). The
//! commit status of a version or registration follows from this word alone, or from the stamp that
//! replaced the owner's tag.
//!
//! **INV-STAMP**: While a version or a registration carries a tag, the word of its owner's slot
//! still belongs to that transaction. The serial advances (`Txn::reset`) only after all stamps are
//! set. So a reader that loads the tag, then the word, then the same tag again has read the owner's
//! word (`Engine::fate`).
//!
//! **INV-CLOCK**: No CSN is larger than [`CSN_MAX`]: slots and pins have 48 bits for one, stamps
//! and the words of dormant ranges 62. From [`CSN_LIMIT`] on, transactions that write are refused
//! before they register anything (`Engine::may_commit`). Each slot may have one commit under way
//! then, which adds one. Ticks (of aborts, drops and rebuilds) stop at [`CSN_STOP`], but for one of
//! each process that looked before.

/// A commit sequence number. The order of CSNs is the serialization order. 0 is before all commits.
pub type Csn = u64;

/// The largest CSN: 48 bits last 89 years at 100,000 commits a second.
pub const CSN_MAX: Csn = (1 << 48) - 1;

/// From here on the clock does not move without a commit (INV-CLOCK).
pub const CSN_STOP: Csn = CSN_MAX - (1 << 32);

/// From here on transactions that write are refused. The remaining 2^44 ticks let them give back
/// their memory; they last 5 years at 100,000 a second.
pub const CSN_LIMIT: Csn = CSN_MAX - (1 << 44);

/// Index of a transaction slot.
pub type SlotId = u16;

/// What a transaction in a slot is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// No transaction.
    Idle = 0,
    /// Running. It will take a CSN larger than any CSN taken so far.
    Active = 1,
    /// About to take its CSN.
    Preparing = 2,
    /// It has its CSN, and its outcome is open.
    Committing = 3,
    /// Committed at its CSN. Its versions are being stamped.
    Committed = 4,
    /// Aborted. Its versions are being unlinked.
    Aborted = 5,
}

/// `[serial:13][csn:48][state:3]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotWord(pub u64);

const SERIAL_BITS: u32 = 13;
/// The number of serials: they wrap at this value.
pub const SERIALS: u16 = 1 << SERIAL_BITS;

impl SlotWord {
    /// Packs the three parts.
    pub fn new(serial: u16, csn: Csn, state: State) -> Self {
        debug_assert!(csn <= CSN_MAX && serial < SERIALS);
        SlotWord(((serial as u64) << 51) | (csn << 3) | state as u64)
    }
    /// The serial number of the transaction in its slot.
    pub fn serial(self) -> u16 {
        (self.0 >> 51) as u16
    }
    /// The CSN. It is meaningful only in [`State::Committing`] and [`State::Committed`].
    pub fn csn(self) -> Csn {
        (self.0 >> 3) & CSN_MAX
    }
    /// The state.
    pub fn state(self) -> State {
        match self.0 & 7 {
            0 => State::Idle,
            1 => State::Active,
            2 => State::Preparing,
            3 => State::Committing,
            4 => State::Committed,
            _ => State::Aborted,
        }
    }
}

/// The writer of a version or registration: the tag of its owner, the CSN of its commit, or
/// [`Stamp::ABORTED`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp(pub u64);

const TAG: u64 = 1 << 63;

impl Stamp {
    /// The stamp of a version whose transaction aborted: no transaction sees it.
    pub const ABORTED: Stamp = Stamp(u64::MAX >> 1);

    /// The tag of a running transaction.
    pub fn tag(slot: SlotId, serial: u16) -> Self {
        Stamp(TAG | ((serial as u64) << 16) | slot as u64)
    }
    /// The stamp of a finished commit.
    pub fn csn(csn: Csn) -> Self {
        debug_assert!(csn <= CSN_MAX);
        Stamp(csn)
    }
    /// Does it name an owner, rather than a CSN?
    pub fn is_tag(self) -> bool {
        self.0 & TAG != 0
    }
    /// Is it the CSN of a finished commit?
    pub fn is_commit(self) -> bool {
        !self.is_tag() && self != Stamp::ABORTED
    }
    /// The slot of the owner that a tag names.
    pub fn slot(self) -> SlotId {
        self.0 as u16
    }
    /// The serial of the owner that a tag names.
    pub fn serial(self) -> u16 {
        (self.0 >> 16) as u16 & (SERIALS - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        for state in [State::Idle, State::Active, State::Preparing, State::Committing, State::Committed, State::Aborted]
        {
            let w = SlotWord::new(SERIALS - 1, CSN_MAX, state);
            assert_eq!((w.serial(), w.csn(), w.state()), (SERIALS - 1, CSN_MAX, state));
        }
        let t = Stamp::tag(u16::MAX, SERIALS - 1);
        assert!(t.is_tag() && t.slot() == u16::MAX && t.serial() == SERIALS - 1);
        assert!(!Stamp::ABORTED.is_tag() && !Stamp::csn(CSN_MAX).is_tag());
        assert!(Stamp::ABORTED.0 > CSN_MAX);
    }
}
