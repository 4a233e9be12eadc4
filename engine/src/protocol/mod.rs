//! The protocols, and the one match that dispatches to them.
//!
//! A transaction's life has four phases: preprocess, execute, validate, commit or abort (CormCC,
//! section 4.1). A protocol says what it does at each touch of a partition in each of them, and in
//! which phases it makes transactions wait. A partition has a *set* of protocols: one, or the old
//! and the new one during a switch. The logic of all of the set is run, which is the mediated
//! protocol (section 4.3); writes are always buffered, so the sets compose.

mod occ;
mod partcc;
mod two_phase;
mod waits;

pub use waits::{accepts, waits_in, InUse};

use crate::error::Error;
use crate::lock::Mode;
use crate::platform::Platform;
use crate::txn::{RecordRef, Txn};

/// The protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Protocol {
    /// H-Store's partition locks.
    PartCc = 1,
    /// Silo's optimistic concurrency control.
    Occ = 2,
    /// VLL's two-phase locking with lock words in the records.
    TwoPhase = 4,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Protocol; 3] = [Protocol::PartCc, Protocol::Occ, Protocol::TwoPhase];
    /// How many protocols there are: the size of arrays that have an element for each.
    pub const COUNT: usize = Protocol::ALL.len();
    /// The protocol of tables where no setting and no option names another one.
    pub const DEFAULT: Protocol = Protocol::Occ;

    /// The name in settings and views.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::PartCc => "partcc",
            Protocol::Occ => "occ",
            Protocol::TwoPhase => "2pl",
        }
    }
    /// What it does, in a few words, for settings and views.
    pub fn about(self) -> &'static str {
        match self {
            Protocol::PartCc => "locks partitions",
            Protocol::Occ => "validates at commit",
            Protocol::TwoPhase => "locks rows",
        }
    }
    /// Its place in [`Protocol::ALL`], and in arrays that have an element for each protocol.
    pub fn index(self) -> usize {
        (self as u32).trailing_zeros() as usize
    }
    /// The protocol of a name.
    pub fn parse(s: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|p| p.name() == s)
    }
}

/// The phases of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Before the transaction's logic.
    Preprocess = 1,
    /// The transaction's logic.
    Execute = 2,
    /// After the logic, before the outcome.
    Validate = 4,
    /// Publication or undoing.
    Finish = 8,
}

/// What a `2pl` transaction does when a lock conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Policy {
    /// Wait; the platform's detector finds deadlocks.
    Wait = 0,
    /// Abort at once.
    NoWait = 1,
    /// Wait for younger transactions, abort for older ones.
    WaitDie = 2,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 3] = [Policy::Wait, Policy::NoWait, Policy::WaitDie];
    pub(crate) fn from_bits(b: u32) -> Policy {
        match b {
            1 => Policy::NoWait,
            2 => Policy::WaitDie,
            _ => Policy::Wait,
        }
    }
    /// The name in settings and views.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Wait => "wait",
            Policy::NoWait => "no_wait",
            Policy::WaitDie => "wait_die",
        }
    }
    /// The policy of a name.
    pub fn parse(s: &str) -> Option<Policy> {
        Policy::ALL.into_iter().find(|p| p.name() == s)
    }
}

/// A set of protocols that manage a partition together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtocolSet(u32);

const _: () = {
    assert!(Protocol::COUNT <= ProtocolSet::BITS as usize, "the sets in shared and saved words have no room");
    let mut i = 0;
    while i < Protocol::COUNT {
        assert!(Protocol::ALL[i] as u32 == 1 << i, "a protocol's bit is that of its place in the list");
        i += 1;
    }
};

impl ProtocolSet {
    /// No protocol.
    pub const EMPTY: ProtocolSet = ProtocolSet(0);
    /// All protocols.
    pub const ALL: ProtocolSet = ProtocolSet((1 << Protocol::COUNT) - 1);
    /// Bits that shared and saved words reserve for a set.
    pub const BITS: u32 = 6;
    /// The bits of a set in such a word.
    pub(crate) const MASK: u32 = (1 << ProtocolSet::BITS) - 1;
    /// One protocol.
    pub fn of(p: Protocol) -> Self {
        ProtocolSet(p as u32)
    }
    /// The mediated protocol of two.
    pub fn mediated(old: Protocol, new: Protocol) -> Self {
        ProtocolSet(old as u32 | new as u32)
    }
    /// Is the protocol in the set?
    #[inline]
    pub fn has(self, p: Protocol) -> bool {
        self.0 & p as u32 != 0
    }
    /// All that are in one or the other.
    #[inline]
    pub fn union(self, other: ProtocolSet) -> ProtocolSet {
        ProtocolSet(self.0 | other.0)
    }
    /// Is a protocol in both?
    pub fn meets(self, other: ProtocolSet) -> bool {
        self.0 & other.0 != 0
    }
    /// The protocol, if it is one.
    pub fn single(self) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|&p| self == ProtocolSet::of(p))
    }
    /// The set without a protocol.
    pub(crate) fn without(self, p: Protocol) -> Self {
        ProtocolSet(self.0 & !(p as u32))
    }
    pub(crate) const fn bits(self) -> u32 {
        self.0
    }
    pub(crate) fn from_bits(b: u32) -> Self {
        ProtocolSet(b)
    }
    /// The protocols of the set.
    pub fn iter(self) -> impl Iterator<Item = Protocol> {
        Protocol::ALL.into_iter().filter(move |&p| self.has(p))
    }
    /// Names joined by `+`.
    pub fn name(self) -> String {
        self.iter().map(Protocol::name).collect::<Vec<_>>().join("+")
    }
    /// Is a protocol among them that locks the partitions that a transaction touches?
    pub fn locks_partitions(self) -> bool {
        self.has(Protocol::PartCc)
    }
    /// Is a protocol among them that locks the rows that a transaction reads?
    pub fn locks_reads(self) -> bool {
        self.has(Protocol::TwoPhase)
    }
}

impl FromIterator<Protocol> for ProtocolSet {
    fn from_iter<I: IntoIterator<Item = Protocol>>(all: I) -> ProtocolSet {
        all.into_iter().fold(ProtocolSet::EMPTY, |set, p| set.union(ProtocolSet::of(p)))
    }
}

/// What a serializable transaction does with a partition under one protocol, phase by phase.
///
/// *Preprocess* is called for declared partitions; *before_scan*, *read*, *row_lock* and *write* in
/// the execute phase; *lock_writes* and *needs_validation* in the validate phase. Publication and release
/// are the same for all protocols (`txn/commit.rs`).
pub(crate) trait Rules {
    /// Phases in which transactions wait because of other transactions.
    const WAITS: u8;
    /// A partition was declared before the first statement.
    fn preprocess(t: &mut Txn, p: &dyn Platform, at: Touch) -> Result<(), Error>;
    /// The partition will be looked at, in an index or as a whole: before that.
    fn before_scan(t: &mut Txn, p: &dyn Platform, at: Touch) -> Result<(), Error>;
    /// A record is about to be read, to be written next if `for_write`.
    fn read(t: &mut Txn, p: &dyn Platform, r: RecordRef, for_write: bool) -> Result<(), Error>;
    /// A record is about to get a buffered write.
    fn write(t: &mut Txn, p: &dyn Platform, r: RecordRef, mode: Mode) -> Result<(), Error>;
    /// Must the version that was read be compared again at commit?
    const VALIDATES: bool;
    /// Must written records be locked before validation?
    const LOCKS_AT_COMMIT: bool;
}

/// A partition of a table, as it is touched.
#[derive(Clone, Copy)]
pub struct Touch {
    /// The table.
    pub table: &'static crate::table::Table,
    /// Number of the partition in the table's map.
    pub no: u32,
}

impl Touch {
    /// The partition itself.
    pub fn partition(self) -> &'static crate::partition::Partition {
        &self.table.map().partitions()[self.no as usize]
    }
}

macro_rules! each {
    ($set:expr, $rules:ident => $call:expr) => {{
        let set: ProtocolSet = $set;
        if set.has(Protocol::PartCc) {
            type $rules = partcc::PartCc;
            $call?;
        }
        if set.has(Protocol::TwoPhase) {
            type $rules = two_phase::TwoPhase;
            $call?;
        }
        if set.has(Protocol::Occ) {
            type $rules = occ::Occ;
            $call?;
        }
        Ok(())
    }};
}

impl ProtocolSet {
    pub(crate) fn preprocess(self, t: &mut Txn, p: &dyn Platform, at: Touch) -> Result<(), Error> {
        each!(self, R => R::preprocess(t, p, at))
    }
    pub(crate) fn before_scan(self, t: &mut Txn, p: &dyn Platform, at: Touch) -> Result<(), Error> {
        each!(self, R => R::before_scan(t, p, at))
    }
    pub(crate) fn read(self, t: &mut Txn, p: &dyn Platform, r: RecordRef, for_write: bool) -> Result<(), Error> {
        each!(self, R => R::read(t, p, r, for_write))
    }
    pub(crate) fn write(self, t: &mut Txn, p: &dyn Platform, r: RecordRef, mode: Mode) -> Result<(), Error> {
        each!(self, R => R::write(t, p, r, mode))
    }
    pub(crate) fn validates(self) -> bool {
        self.has(Protocol::Occ) && occ::Occ::VALIDATES
    }
    pub(crate) fn locks_at_commit(self) -> bool {
        self.has(Protocol::Occ) && occ::Occ::LOCKS_AT_COMMIT
    }
}
