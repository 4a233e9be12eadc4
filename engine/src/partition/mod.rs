//! Partitions of a table and the map from rows to partitions.
//!
//! **INV-MAP**: A partition map has `size(n)` bytes, and lives until its table is freed, or until a
//! process that excludes all users of the table has replaced it (`Table::replace_map`).
//!
//! **INV-ACTIVITY**: Each transaction that has touched a partition notes that there, at its end,
//! after it has counted itself. So a partition without a note has the counters that the coordinator
//! has read after it took the note before. Only the choice of protocols relies on that: of a
//! transaction that ends at the same instant it may read the counters when the next one has ended.

mod guard;
mod heat;
mod intents;
mod stats;
mod together;
mod tuning;
mod waits;

pub use guard::Tally;
#[cfg(feature = "thresholds")]
pub(crate) use heat::is_ordered;
pub use heat::Heat;
#[cfg(feature = "thresholds")]
pub use heat::{set_ordered, set_threshold};
pub use intents::Intents;
pub use stats::{PartitionStats, Sample, SampleEvery, Sampled, Sampler, Stripe, MARKS, PARTNERS, STRIPES};
pub use together::{Common, Together, COLUMNS};
pub use tuning::{Tuning, TUNING_WORDS};
pub use waits::{Sleep, WaitReason, Waits};

use crate::csn::Csn;
use crate::error::Error;
use crate::lock::LockWord;
use crate::primitive::{AtomicU32, AtomicU64, Ordering};
use crate::protocol::{Policy, Protocol, ProtocolSet};
use crate::range::Inserts;
use crate::shared::Engine;
use crate::switch::{Asked, Switch, SwitchView, Why};

/// A partition: the unit that has a protocol.
#[repr(C, align(128))]
pub struct Partition {
    /// The protocols in use: one, or the old and the new one during a switch (the mediated
    /// protocol).
    pub switch: Switch,
    /// The waiting policy of `2pl`.
    policy: AtomicU32,
    /// Not 0: a transaction has ended here since the coordinator has looked (INV-ACTIVITY). It lies
    /// in a line that all transactions read, and is written at most twice between two looks.
    activity: AtomicU32,
    /// The partition lock of `partcc`.
    pub lock: LockWord,
    /// The value of [`Partition::since`].
    since: AtomicU64,
    /// The prepared transactions that have read it at SERIALIZABLE.
    pub(crate) guards: Tally,
    /// The prepared transactions that write it.
    pub(crate) kept_writers: Tally,
    /// Rows that transactions read in order to write them. Protocols that lock reads ask it.
    pub(crate) intents: Intents,
    /// Registrations of inserts, for scans without an index.
    pub ring: Inserts,
    /// Counters.
    pub stats: PartitionStats,
    /// The coordinator's last decision.
    pub decided: crate::choice::Published,
    /// Records that fail transactions. Protocols that lock hot records ask it.
    pub(crate) heat: Heat,
}

#[cfg(not(loom))]
const _: () = assert!(std::mem::offset_of!(Partition, lock) == 64 && std::mem::offset_of!(Partition, ring) == 128);

impl Partition {
    /// The protocols in use. Transactions call [`crate::Txn::follow`] instead.
    #[inline]
    pub fn protocols(&self) -> ProtocolSet {
        self.switch.set()
    }
    /// The protocols in use, and the one that is wanted.
    pub fn protocols_and_wanted(&self) -> ProtocolSet {
        let v = self.switch.view();
        v.set.union(v.wanted)
    }
    /// The clock's value after the transaction that made the table's storage or its map had ended.
    /// From then on the partition's content is not that of the table before. 0: the storage has
    /// always existed.
    pub fn since(&self) -> Csn {
        self.since.load(Ordering::SeqCst)
    }
    /// May a commit with this CSN write here (INV-AHEAD)?
    pub fn admits(&self, csn: Csn) -> bool {
        self.guards.admits(csn)
    }
    /// Initialises a partition of a map that is being made. The rule on waiting phases has accepted
    /// its protocols.
    pub(crate) fn init(&self, set: ProtocolSet, policy: Policy) {
        self.policy.store(policy as u32, Ordering::Release);
        self.switch.put(set, None);
        self.note_activity();
    }
    /// Notes that the counters have changed, or will be other ones than before (INV-ACTIVITY).
    #[inline]
    pub fn note_activity(&self) {
        if self.activity.load(Ordering::Relaxed) == 0 {
            self.activity.store(1, Ordering::Relaxed);
        }
    }
    /// Takes the note that the counters have changed. Only the coordinator calls this, before it
    /// reads them.
    pub fn take_activity(&self) -> bool {
        self.activity.load(Ordering::Relaxed) != 0 && self.activity.swap(0, Ordering::SeqCst) != 0
    }
    /// Resets the counts of transactions.
    pub fn reset_counts(&self) {
        self.stats.reset();
        self.note_activity();
    }
    /// Puts a set of protocols in use at once (see [`Switch::put`]), if the rule on waiting phases
    /// accepts it.
    pub fn put(&self, e: &Engine, set: ProtocolSet, pinned: Option<bool>) -> Result<(), Error> {
        self.replace(e, set, pinned).map(|_| ())
    }
    /// As `put`; returns the former state.
    pub fn replace(&self, e: &Engine, set: ProtocolSet, pinned: Option<bool>) -> Result<SwitchView, Error> {
        e.shared.protocols.add(set, self.policy())?;
        Ok(self.switch.put(set, pinned))
    }
    /// Requests a protocol (see [`Switch::ask`]), if the rule on waiting phases accepts it.
    pub fn ask(&self, e: &Engine, p: Protocol, pin: bool, why: Why, by: u32, now: u64) -> Result<Asked, Error> {
        e.shared.protocols.add(ProtocolSet::of(p), self.policy())?;
        Ok(self.switch.ask(p, pin, why, by, now))
    }
    /// Requests a protocol for the coordinator (see [`Switch::choose`]), unless the rule on waiting
    /// phases refuses it.
    pub fn choose(&self, e: &Engine, p: Protocol, why: Why, now: u64) -> bool {
        e.shared.protocols.add(ProtocolSet::of(p), self.policy()).is_ok() && self.switch.choose(p, why, now)
    }
    /// The waiting policy of `2pl` in this partition.
    pub fn policy(&self) -> Policy {
        Policy::from_bits(self.policy.load(Ordering::Acquire))
    }
    /// Sets the waiting policy, if the rule on waiting phases accepts it. No other process changes
    /// the partition's protocols or policy meanwhile.
    pub fn set_policy(&self, e: &Engine, p: Policy) -> Result<(), Error> {
        e.shared.protocols.add(self.protocols_and_wanted(), p)?;
        self.policy.store(p as u32, Ordering::Release);
        Ok(())
    }
}

/// Sizes of many partitions, as they were counted a moment ago: see [`PartitionMap::sizes`].
#[repr(C, align(128))]
struct Counted {
    /// When, in microseconds.
    at: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
}

/// So many partitions are counted at each question. A sum over 4,096 takes 0.4 ms.
const COUNTED_AT_ONCE: u32 = 64;
/// Of more partitions a sum is used for so many microseconds.
const COUNTED_FOR: u64 = 10_000;

/// The longest description of the map from rows to partitions that the engine keeps, in bytes.
pub const SPEC_MAX: usize = 960;

/// The map from rows to partitions, fixed for the life of the map.
///
/// The platform defines the key and the method: the engine keeps its description (`spec`) and, in
/// each record, the result. A record has room for two results, and `field` says which one belongs
/// to this map. So repartitioning can be undone by returning to the previous map.
#[repr(C, align(128))]
pub struct PartitionMap {
    /// The number of partitions, at least 1.
    pub n: u32,
    /// Index into [`crate::record::Record::part`].
    pub field: u32,
    /// The number of bytes of `spec` in use.
    pub spec_len: u32,
    /// The protocols that the table's options name.
    declared: u32,
    /// The platform's description of key and method.
    pub spec: [u8; SPEC_MAX],
    /// See [`Tuning`]. It is fixed, as the rest of the map is.
    tuning: [u64; TUNING_WORDS],
    counted: Counted,
    // In memory `n` partitions follow.
}
const _: () = assert!(std::mem::size_of::<PartitionMap>().is_multiple_of(128));

impl PartitionMap {
    /// Called after the end of the transaction that made the table's storage or this map, before
    /// any other transaction uses it.
    pub fn begins(&self, now: Csn) {
        self.partitions().iter().for_each(|p| p.since.store(now, Ordering::SeqCst));
    }
    /// No partition is locked as a whole at first: prepared transactions of before the start have
    /// rows of it locked (INV-RECOVERED). A protocol that does so is asked for again. No other
    /// process has the map. `now`: as for [`Partition::ask`].
    pub fn lock_rows(&self, e: &Engine, now: u64) {
        let Some(rows) = Protocol::ALL.into_iter().find(|p| !ProtocolSet::of(*p).locks_partitions()) else { return };
        for p in self.partitions() {
            let wanted = Some(p.protocols()).filter(|set| set.locks_partitions()).and_then(|set| set.iter().next());
            if let Some(wanted) = wanted.filter(|_| p.put(e, ProtocolSet::of(rows), None).is_ok()) {
                let _ = p.ask(e, wanted, false, Why::Asked, 0, now);
            }
        }
    }
    /// The size in bytes of a map with `n` partitions.
    pub fn size(n: u32) -> usize {
        std::mem::size_of::<PartitionMap>() + n as usize * std::mem::size_of::<Partition>()
    }
    /// All partitions.
    #[inline]
    pub fn partitions(&self) -> &[Partition] {
        let p = (self as *const PartitionMap).wrapping_add(1).cast::<Partition>();
        // SAFETY: INV-MAP: a map is allocated with `size(n)` zeroed bytes, which are valid
        // partitions.
        unsafe { std::slice::from_raw_parts(p, self.n as usize) }
    }
    /// How long an answer of [`PartitionMap::sizes`] holds, µs. To count a partition takes 0.1 to
    /// 0.3 µs, so planners spend about a hundredth of the time with it.
    fn counted_for(&self) -> u64 {
        COUNTED_FOR.max(u64::from(self.n) * 25)
    }
    /// Rows, and bytes of their newest versions, approximately. `now` is in microseconds, by a
    /// clock that all processes have in common. Of many partitions the answer may be 10 ms old, and
    /// of thousands up to 25 µs for each.
    pub fn sizes(&self, now: u64) -> (u64, u64) {
        let c = &self.counted;
        if self.n > COUNTED_AT_ONCE && now.wrapping_sub(c.at.load(Ordering::Relaxed)) < self.counted_for() {
            return (c.rows.load(Ordering::Relaxed), c.bytes.load(Ordering::Relaxed));
        }
        let (mut rows, mut bytes) = (0, 0);
        for p in self.partitions() {
            rows += p.stats.sum(|s| &s.rows);
            bytes += p.stats.sum(|s| &s.bytes);
        }
        if self.n > COUNTED_AT_ONCE {
            c.rows.store(rows, Ordering::Relaxed);
            c.bytes.store(bytes, Ordering::Relaxed);
            c.at.store(now, Ordering::Relaxed);
        }
        (rows, bytes)
    }
    /// The description.
    pub fn spec(&self) -> &[u8] {
        &self.spec[..self.spec_len as usize]
    }
    /// The table's own settings for the choice of protocols.
    pub fn tuning(&self) -> Tuning {
        Tuning::unpack(&self.tuning)
    }
    /// The protocols that the table's options name. The partitions may have others.
    pub fn declared(&self) -> ProtocolSet {
        ProtocolSet::from_bits(self.declared)
    }
    /// Sets them, before the map is put in use.
    pub fn set_declared(&mut self, set: ProtocolSet) {
        self.declared = set.bits();
    }
    /// Sets them, before the map is put in use.
    pub fn set_tuning(&mut self, t: &Tuning) {
        self.tuning = t.pack();
    }
}
