//! Partitions of a table and the map from rows to partitions.
//!
//! **INV-MAP**: A partition map has `size(n)` bytes. It lives until its table is freed, or until a
//! process that excludes all users of the table has replaced it (`Table::replace_map`).

mod stats;
mod together;
mod tuning;
mod waits;

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
    /// The protocols in use: one, or two while a switch is under way (the mediated protocol).
    pub switch: Switch,
    /// Waiting policy of `2pl`.
    policy: AtomicU32,
    _pad: u32,
    /// `partcc`'s lock.
    pub lock: LockWord,
    /// See [`Partition::since`].
    since: AtomicU64,
    _pad2: [u64; 6],
    /// Registrations of inserts, for scans that no index bounds.
    pub ring: Inserts,
    /// Counters.
    pub stats: PartitionStats,
    /// What the coordinator has decided last.
    pub decided: crate::choice::Published,
}

#[cfg(not(loom))]
const _: () = assert!(std::mem::offset_of!(Partition, lock) == 64 && std::mem::offset_of!(Partition, ring) == 128);

impl Partition {
    /// The protocols in use. Transactions ask [`crate::Txn::follow`].
    #[inline]
    pub fn protocols(&self) -> ProtocolSet {
        self.switch.set()
    }
    /// The protocols in use, and the one that is asked for.
    pub fn protocols_and_wanted(&self) -> ProtocolSet {
        let v = self.switch.view();
        v.set.union(v.wanted)
    }
    /// The clock when the transaction was over that made the table's storage or its map: what it holds now is not what
    /// was to be seen of the table before. 0: it has always been there.
    pub fn since(&self) -> Csn {
        self.since.load(Ordering::SeqCst)
    }
    /// Of a map that is being made; the rule on waiting phases has accepted them.
    pub(crate) fn init(&self, set: ProtocolSet, policy: Policy) {
        self.policy.store(policy as u32, Ordering::Release);
        self.switch.put(set, None);
    }
    /// Puts a set of protocols in use at once, see [`Switch::put`], if the rule on waiting phases accepts it.
    pub fn put(&self, e: &Engine, set: ProtocolSet, pinned: Option<bool>) -> Result<(), Error> {
        self.replace(e, set, pinned).map(|_| ())
    }
    /// The same; what it was before.
    pub fn replace(&self, e: &Engine, set: ProtocolSet, pinned: Option<bool>) -> Result<SwitchView, Error> {
        e.shared.protocols.add(set, self.policy())?;
        Ok(self.switch.put(set, pinned))
    }
    /// Asks for a protocol, see [`Switch::ask`], if the rule on waiting phases accepts it.
    pub fn ask(&self, e: &Engine, p: Protocol, pin: bool, why: Why, by: u32, now: u64) -> Result<Asked, Error> {
        e.shared.protocols.add(ProtocolSet::of(p), self.policy())?;
        Ok(self.switch.ask(p, pin, why, by, now))
    }
    /// The coordinator wants a protocol, see [`Switch::choose`]; not if the rule on waiting phases refuses it.
    pub fn choose(&self, e: &Engine, p: Protocol, why: Why, now: u64) -> bool {
        e.shared.protocols.add(ProtocolSet::of(p), self.policy()).is_ok() && self.switch.choose(p, why, now)
    }
    /// Waiting policy of `2pl` in this partition.
    pub fn policy(&self) -> Policy {
        Policy::from_bits(self.policy.load(Ordering::Acquire))
    }
    /// Sets the waiting policy, if the rule on waiting phases accepts it. Nobody else changes the partition's
    /// protocols or policy meanwhile.
    pub fn set_policy(&self, e: &Engine, p: Policy) -> Result<(), Error> {
        e.shared.protocols.add(self.protocols_and_wanted(), p)?;
        self.policy.store(p as u32, Ordering::Release);
        Ok(())
    }
}

/// Longest description of how rows map to partitions that the engine keeps (bytes).
pub const SPEC_MAX: usize = 960;

/// Which partition a row is in: fixed for the life of the map.
///
/// What the key is and how it is hashed is the platform's affair: the engine keeps its description
/// (`spec`) and, in each record, the result. A record has room for two results; `field` says
/// which one belongs to this map, so that a repartitioning can be undone by going back to the
/// previous map.
#[repr(C, align(128))]
pub struct PartitionMap {
    /// Number of partitions, at least 1.
    pub n: u32,
    /// Index into [`crate::record::Record::part`].
    pub field: u32,
    /// Bytes of `spec` in use.
    pub spec_len: u32,
    _pad: u32,
    /// The platform's description of key and method.
    pub spec: [u8; SPEC_MAX],
    /// See [`Tuning`]; fixed as the rest is.
    tuning: [u64; TUNING_WORDS],
    // `n` partitions follow
}
const _: () = assert!(std::mem::size_of::<PartitionMap>().is_multiple_of(128));

impl PartitionMap {
    /// The transaction that made the table's storage or this map is over, and nobody else has used it yet.
    pub fn begins(&self, now: Csn) {
        self.partitions().iter().for_each(|p| p.since.store(now, Ordering::SeqCst));
    }
    /// Bytes of a map with `n` partitions.
    pub fn size(n: u32) -> usize {
        std::mem::size_of::<PartitionMap>() + n as usize * std::mem::size_of::<Partition>()
    }
    /// All partitions.
    #[inline]
    pub fn partitions(&self) -> &[Partition] {
        let p = (self as *const PartitionMap).wrapping_add(1).cast::<Partition>();
        // SAFETY: INV-MAP: a map is allocated with `size(n)` bytes, zeroed: valid partitions.
        unsafe { std::slice::from_raw_parts(p, self.n as usize) }
    }
    /// The description.
    pub fn spec(&self) -> &[u8] {
        &self.spec[..self.spec_len as usize]
    }
    /// How the protocols of its partitions are chosen.
    pub fn tuning(&self) -> Tuning {
        Tuning::unpack(&self.tuning)
    }
    /// Sets it, before the map is put in use.
    pub fn set_tuning(&mut self, t: &Tuning) {
        self.tuning = t.pack();
    }
}
