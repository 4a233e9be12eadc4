//! Sets of protocols: their capabilities, and the dispatch of phases to the rules of all of them.

use super::{Protocol, Reading, Rules, Touch};
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::lock::Mode;
use crate::partition::Partition;
use crate::platform::Platform;
use crate::txn::{RecordRef, Txn, Write};

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
    #[inline]
    pub fn meets(self, other: ProtocolSet) -> bool {
        self.0 & other.0 != 0
    }
    /// The protocol, if it is one.
    pub fn single(self) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|&p| self == ProtocolSet::of(p))
    }
    /// Those that are not in the other one.
    pub(crate) const fn minus(self, other: ProtocolSet) -> ProtocolSet {
        ProtocolSet(self.0 & !other.0)
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
}

impl FromIterator<Protocol> for ProtocolSet {
    fn from_iter<I: IntoIterator<Item = Protocol>>(all: I) -> ProtocolSet {
        all.into_iter().fold(ProtocolSet::EMPTY, |set, p| set.union(ProtocolSet::of(p)))
    }
}

/// The protocols for whose rules a condition holds, as a constant: `those!(R => R::LOCKS_READS)`.
macro_rules! those {
    ($r:ident => $has:expr) => {
        protocols!(those_of($r => $has))
    };
}
macro_rules! those_of {
    (
        ($r:ident => $has:expr)
        $($(#[$doc:meta])*
        $name:ident = $bit:literal, $text:literal, $about:literal, $module:ident::$rules:ident;)*
    ) => {
        const {
            ProtocolSet(0 $(| {
                type $r = crate::protocol::$module::$rules;
                if $has { Protocol::$name as u32 } else { 0 }
            })*)
        }
    };
}

/// Capabilities: does at least one protocol of the set have it? (See [`Rules`].)
impl ProtocolSet {
    /// Is the partition's lock taken before anything in it is touched?
    #[inline]
    pub fn locks_partitions(self) -> bool {
        self.meets(those!(R => R::LOCKS_PARTITIONS))
    }
    /// Are rows locked before they are read?
    #[inline]
    pub fn locks_reads(self) -> bool {
        self.meets(those!(R => R::LOCKS_READS))
    }
    /// Are rows locked before a write of them is buffered?
    #[inline]
    pub fn locks_writes(self) -> bool {
        self.meets(those!(R => R::LOCKS_WRITES))
    }
    /// Is a row locked before it is read, and does no other protocol have a part in its reads?
    #[inline]
    pub(crate) fn only_locks_reads(self) -> bool {
        let only = those!(R => R::LOCKS_READS);
        self.0 & !only.0 == 0 && self.meets(only)
    }
    /// Do scans lock ranges, and writers the range of their key?
    #[inline]
    pub fn locks_ranges(self) -> bool {
        self.meets(those!(R => R::LOCKS_RANGES))
    }
    /// Are rows locked before they are read, all of them or hot ones?
    #[inline]
    pub(crate) fn may_lock_reads(self) -> bool {
        self.meets(those!(R => R::LOCKS_READS || R::LOCKS_HOT))
    }
    /// May a look-up lock a row before it reads it, because the row is hot?
    #[inline]
    pub fn locks_hot(self) -> bool {
        self.meets(those!(R => R::LOCKS_HOT))
    }
    /// The same, and no other lock of it is taken to read it?
    #[inline]
    pub(crate) fn only_locks_hot(self) -> bool {
        self.locks_hot() && self.only_validates_reads()
    }
    /// Are reads remembered, and compared at the commit?
    #[inline]
    pub fn validates_reads(self) -> bool {
        self.meets(those!(R => R::VALIDATES_READS))
    }
    /// Are written rows locked at the commit?
    #[inline]
    pub fn locks_at_commit(self) -> bool {
        self.meets(those!(R => R::LOCK_AT_COMMIT.is_some()))
    }
    /// Does every protocol of the set validate reads and rely on nothing before them? Then an older
    /// version may be read than the newest: the commit finds out whether it still counts. (Locks of
    /// hot rows are left out then.)
    #[inline]
    pub(crate) fn only_validates_reads(self) -> bool {
        let only = those!(R => R::VALIDATES_READS && (R::READ.is_none() || R::LOCKS_HOT) && R::BEFORE_SCAN.is_none());
        self.0 & !only.0 == 0
    }
    /// Do those who follow this set, and those who follow the other one, rely on the same thing?
    /// That is: reads are remembered, rows are locked that were written, and both are compared at
    /// the commit. Locks of hot rows only spare failures (INV-HEAT). Then one set may replace the
    /// other one in a single step (INV-STEP).
    pub fn relies_alike(self, other: ProtocolSet) -> bool {
        let locks = those!(R => R::LOCKS_PARTITIONS || R::LOCKS_READS || R::LOCKS_WRITES || R::LOCKS_RANGES);
        let acts = those!(R => R::START.is_some() || R::PREPROCESS.is_some() || R::WRITE.is_some()
            || R::EXPOSE.is_some() || R::STEP.is_some() || R::BEFORE_COMMIT.is_some() || R::ENDED.is_some());
        let at_commit = those!(R => R::LOCK_AT_COMMIT.is_some()).minus(locks).minus(acts);
        let relies = |s: ProtocolSet| s.meets(at_commit) && s.minus(at_commit).0 == 0 && s.only_validates_reads();
        relies(self) && relies(other) || faults::on(Fault::AllRelyAlike)
    }
    /// Is it of use that transactions declare the partition?
    pub fn wants_declarations(self) -> bool {
        self.meets(those!(R => R::PREPROCESS.is_some()))
    }
}

/// Calls a phase of all protocols of a set, in the order of the list. A phase that no protocol has
/// is nothing in the compiled program.
macro_rules! each {
    ($set:expr, $f:ident in $r:ident => $phase:expr, $call:expr) => {
        protocols!(each_of($set, $f in $r => $phase, $call))
    };
}
macro_rules! each_of {
    (
        ($set:expr, $f:ident in $r:ident => $phase:expr, $call:expr)
        $($(#[$doc:meta])*
        $name:ident = $bit:literal, $text:literal, $about:literal, $module:ident::$rules:ident;)*
    ) => {{
        let set: ProtocolSet = $set;
        $({
            type $r = crate::protocol::$module::$rules;
            if let Some($f) = const { $phase } {
                if set.has(Protocol::$name) {
                    $call;
                }
            }
        })*
    }};
}

/// Phases: what the protocols of the set do there. (See [`Rules`].)
impl ProtocolSet {
    /// The protocols that have something to do when a transaction begins to follow them.
    pub(crate) const START: ProtocolSet = those!(R => R::START.is_some());
    /// Those that have when a write was buffered.
    pub(crate) const EXPOSE: ProtocolSet = those!(R => R::EXPOSE.is_some());
    /// Those that have between two statements.
    pub(crate) const STEP: ProtocolSet = those!(R => R::STEP.is_some());
    /// Those that have when the commit begins.
    pub(crate) const BEFORE_COMMIT: ProtocolSet = those!(R => R::BEFORE_COMMIT.is_some());
    /// Those that have when the transaction is over.
    pub(crate) const ENDED: ProtocolSet = those!(R => R::ENDED.is_some());

    pub(crate) fn start(self, t: &mut Txn, partition: &'static Partition) {
        each!(self, start in R => R::START, start(t, partition));
    }
    pub(crate) fn preprocess(self, t: &mut Txn, p: &dyn Platform, at: Touch) -> Result<(), Error> {
        each!(self, preprocess in R => R::PREPROCESS, preprocess(t, p, at)?);
        Ok(())
    }
    pub(crate) fn before_scan(self, t: &mut Txn, p: &dyn Platform, at: Touch) -> Result<(), Error> {
        each!(self, before_scan in R => R::BEFORE_SCAN, before_scan(t, p, at)?);
        Ok(())
    }
    pub(crate) fn read(self, t: &mut Txn, p: &dyn Platform, r: RecordRef, why: Reading) -> Result<(), Error> {
        each!(self, read in R => R::READ, read(t, p, r, why)?);
        Ok(())
    }
    /// The mode in which a set that only locks reads does so, where a look may take the lock.
    #[inline]
    pub(crate) fn mode_to_read(self, t: &mut Txn, r: RecordRef, why: Reading) -> Option<Mode> {
        let mut mode = None;
        each!(self, to_read in R => R::MODE_TO_READ, mode = mode.max(to_read(t, r, why)));
        mode.filter(|_| self.0.count_ones() == 1)
    }
    pub(crate) fn write(self, t: &mut Txn, p: &dyn Platform, r: RecordRef, mode: Mode) -> Result<(), Error> {
        each!(self, write in R => R::WRITE, write(t, p, r, mode)?);
        Ok(())
    }
    pub(crate) fn expose(self, t: &mut Txn, write: u32) {
        each!(self, expose in R => R::EXPOSE, expose(t, write));
    }
    pub(crate) fn step(self, t: &mut Txn, partition: &'static Partition) {
        each!(self, step in R => R::STEP, step(t, partition));
    }
    pub(crate) fn before_commit(
        self,
        t: &mut Txn,
        p: &dyn Platform,
        partition: &'static Partition,
    ) -> Result<(), Error> {
        each!(self, before_commit in R => R::BEFORE_COMMIT, before_commit(t, p, partition)?);
        Ok(())
    }
    /// For a write in whose partition a protocol with this phase is followed. Which one it is need
    /// not be found out where there is one only.
    #[inline]
    pub(crate) fn lock_at_commit(t: &mut Txn, p: &dyn Platform, w: Write) -> Result<(), Error> {
        let all = those!(R => R::LOCK_AT_COMMIT.is_some());
        let set = if all.0.count_ones() == 1 { all } else { t.followed(w.r.partition()) };
        each!(set, lock in R => R::LOCK_AT_COMMIT, lock(t, p, w)?);
        Ok(())
    }
    pub(crate) fn ended(self, t: &mut Txn, partition: &'static Partition) {
        each!(self, ended in R => R::ENDED, ended(t, partition));
    }
}
