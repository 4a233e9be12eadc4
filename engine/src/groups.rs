//! Groups of transactions, and which of them fails or waits for which. Statistics only.
//!
//! A transaction may have a group, a number that the platform has a name for. Its slot says so
//! while it runs, and a ring says it for the last commits. So a transaction that fails, or that has
//! slept for a lock, can tell whose write or lock was in its way. A transaction without a group
//! pays a load at its begin, and nothing at its commit.
//!
//! **INV-GROUP**: Nothing here decides about a transaction. A count may go astray, when a slot or a
//! place of the ring has another user by then.

use crate::csn::{Csn, SlotId, Stamp};
use crate::memory::Latch;
use crate::name::{Name, NAME_MAX};
use crate::primitive::{AtomicU32, AtomicU64, Ordering};

/// The number of a group. 0: none.
pub type Group = u8;

/// Groups have the numbers from 1 to this one.
pub const GROUPS: usize = 62;

/// The group of a transaction that cannot be found out any more.
pub const UNKNOWN: Group = GROUPS as Group + 1;

/// Commits that are remembered with their groups.
const COMMITS: usize = 4096;
/// Pairs of groups that are counted.
const PAIRS: usize = 1024;
/// Places at which a pair may be.
const PROBES: usize = 32;
const STRIPES: usize = 8;

/// What two transactions have in each other's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// One has read what the other has written, or locked it for that.
    ReadWrite = 1,
    /// Both have written it, or locked it for that.
    WriteWrite = 2,
    /// The lock of a partition.
    Partition = 3,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 3] = [Kind::ReadWrite, Kind::WriteWrite, Kind::Partition];
}

/// Another transaction that was in the way of one, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// The id of the table.
    pub table: u64,
    /// The other transaction's group.
    pub other: Group,
    /// How.
    pub kind: Kind,
}

/// The counts of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Of the transaction that failed or waited. 0: it had none.
    pub group: Group,
    /// The other transaction, and what both used.
    pub met: Met,
    /// Transactions that failed.
    pub failures: u64,
    /// Sleeps for locks that have ended.
    pub waits: u64,
    /// Their time in microseconds.
    pub wait_us: u64,
}

/// A pair of groups. All-zero: free.
#[repr(C)]
struct Pair {
    /// `[table:48][group:6][other:6][kind:4]`, 0: free.
    key: AtomicU64,
    failures: AtomicU64,
    waits: AtomicU64,
    wait_us: AtomicU64,
}

/// The ends of transactions, by group: commits and failures.
#[repr(C, align(128))]
struct Ends([[AtomicU64; 2]; UNKNOWN as usize]);

/// The statistics of groups. All-zero: nothing was counted.
#[repr(C)]
pub struct Groups {
    /// 1 once a transaction had a group: before that nothing is looked up.
    used: AtomicU32,
    /// The number of names.
    named: AtomicU32,
    /// Counts the resets, after which names have other numbers.
    resets: AtomicU32,
    /// Held while a process adds a name, or forgets all.
    latch: Latch,
    names: [Name; GROUPS],
    /// Conflicts that were not counted, for want of a free pair.
    uncounted: AtomicU64,
    ends: [Ends; STRIPES],
    pairs: [Pair; PAIRS],
    /// `[csn:56][group:8]` of the last commits with a group.
    commits: [AtomicU64; COMMITS],
}

fn key(group: Group, met: Met) -> u64 {
    met.table << 16 | (group as u64) << 10 | (met.other as u64) << 4 | met.kind as u64
}

fn unpack(key: u64) -> Option<(Group, Met)> {
    let kind = Kind::ALL.into_iter().find(|k| *k as u64 == key & 15)?;
    let six = |shift: u32| (key >> shift & 63) as Group;
    Some((six(10), Met { table: key >> 16, other: six(4), kind }))
}

impl Groups {
    /// The number of the group with this name, which gets one if there is one left.
    pub fn number(&self, name: &str) -> Option<Group> {
        self.find(name).or_else(|| {
            let name = &name[..name.floor_char_boundary(NAME_MAX)];
            self.latch.with(|| self.find(name).or_else(|| self.add(name)))
        })
    }

    fn find(&self, name: &str) -> Option<Group> {
        let known = self.named.load(Ordering::SeqCst) as usize;
        let at = self.names[..known].iter().position(|n| n.get().as_deref() == Some(name));
        at.map(|n| n as Group + 1)
    }

    /// The caller holds the latch.
    fn add(&self, name: &str) -> Option<Group> {
        let n = self.named.load(Ordering::SeqCst);
        self.names.get(n as usize)?.set(name);
        self.named.store(n + 1, Ordering::SeqCst);
        Some(n as Group + 1)
    }

    /// The name of a group. `None`: it has none, or is not known.
    pub fn name(&self, group: Group) -> Option<String> {
        let known = self.named.load(Ordering::SeqCst) as Group;
        (1..=known).contains(&group).then(|| self.names[group as usize - 1].get()).flatten()
    }

    /// Counts the resets: a number that was got before the last one may name another group by now.
    #[inline]
    pub fn resets(&self) -> u32 {
        self.resets.load(Ordering::Relaxed)
    }

    /// A transaction of this group begins: from now on conflicts are counted.
    pub fn uses(&self, group: Group) {
        debug_assert!(group as usize <= GROUPS);
        if group != 0 && self.used.load(Ordering::Relaxed) == 0 {
            self.used.store(1, Ordering::Relaxed);
        }
    }

    /// Has any transaction had a group?
    #[inline]
    pub fn are_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) != 0
    }

    /// A transaction of this group has taken its CSN. Call it before others can see the CSN.
    pub fn commits(&self, csn: Csn, group: Group) {
        self.commits[csn as usize % COMMITS].store(csn << 8 | group as u64, Ordering::Relaxed);
    }

    /// The group of the transaction that has committed at a CSN: 0 if it had none. That is not
    /// known either when the place has a later commit.
    pub fn of_commit(&self, csn: Csn) -> Group {
        let noted = self.commits[csn as usize % COMMITS].load(Ordering::Relaxed);
        match noted >> 8 {
            n if n == csn => noted as Group,
            n if n > csn => UNKNOWN,
            _ => 0,
        }
    }

    /// A transaction of a group has ended.
    pub fn ended(&self, slot: SlotId, group: Group, failed: bool) {
        self.ends[slot as usize % STRIPES].0[group as usize][failed as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Commits, and failures because of other transactions, of a group.
    pub fn ends(&self, group: Group) -> (u64, u64) {
        let sum = |n: usize| self.ends.iter().map(|s| s.0[group as usize][n].load(Ordering::Relaxed)).sum();
        (sum(0), sum(1))
    }

    /// A transaction has failed because of another one.
    pub fn failed(&self, group: Group, met: Met) {
        if let Some(pair) = self.pair(group, met) {
            pair.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A transaction has slept for a lock of another one.
    pub fn slept(&self, group: Group, met: Met, ns: u64) {
        if let Some(pair) = self.pair(group, met) {
            pair.waits.fetch_add(1, Ordering::Relaxed);
            pair.wait_us.fetch_add(ns / 1000, Ordering::Relaxed);
        }
    }

    /// The place of a pair, one of whose transactions has a group.
    fn pair(&self, group: Group, met: Met) -> Option<&Pair> {
        if group == 0 && matches!(met.other, 0 | UNKNOWN) {
            return None;
        }
        let key = key(group, met);
        let first = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        for n in 0..PROBES {
            let pair = &self.pairs[(first + n) % PAIRS];
            let old = match pair.key.load(Ordering::Relaxed) {
                0 => pair.key.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed).unwrap_or_else(|k| k),
                old => old,
            };
            if old == 0 || old == key {
                return Some(pair);
            }
        }
        self.uncounted.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// All counts, in no order.
    pub fn conflicts(&self) -> impl Iterator<Item = Conflict> + '_ {
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        self.pairs.iter().filter_map(move |p| {
            let (group, met) = unpack(count(&p.key))?;
            Some(Conflict {
                group,
                met,
                failures: count(&p.failures),
                waits: count(&p.waits),
                wait_us: count(&p.wait_us),
            })
        })
    }

    /// Conflicts that were not counted, because there were too many different ones.
    pub fn uncounted(&self) -> u64 {
        self.uncounted.load(Ordering::Relaxed)
    }

    /// Starts all counts again, and forgets all names.
    pub fn reset(&self) {
        self.latch.with(|| {
            self.named.store(0, Ordering::SeqCst);
            self.resets.fetch_add(1, Ordering::SeqCst);
        });
        let zero = |n: &AtomicU64| n.store(0, Ordering::Relaxed);
        self.ends.iter().flat_map(|s| s.0.as_flattened()).for_each(zero);
        for p in &self.pairs {
            [&p.failures, &p.waits, &p.wait_us, &p.key].into_iter().for_each(zero);
        }
        zero(&self.uncounted);
    }
}

impl crate::shared::Engine {
    /// The group of the transaction that has made a version or a registration.
    pub(crate) fn group_of(&self, stamp: Stamp) -> Group {
        match stamp {
            s if s == Stamp::ABORTED => UNKNOWN,
            s if s.is_tag() => self.group_in(s.slot()),
            s => self.shared.groups.of_commit(s.0),
        }
    }

    /// The group of the transaction that runs in a slot.
    pub(crate) fn group_in(&self, slot: SlotId) -> Group {
        self.slots[slot as usize].group.load(Ordering::Relaxed) as Group
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn groups() -> Box<Groups> {
        // SAFETY: all-zero memory is valid `Groups`.
        unsafe { Box::new(std::mem::zeroed()) }
    }

    fn met(table: u64, other: Group) -> Met {
        Met { table, other, kind: Kind::WriteWrite }
    }

    #[test]
    fn a_key_comes_back() {
        for group in [0, 1, GROUPS as Group] {
            for kind in Kind::ALL {
                let met = Met { table: (1 << 48) - 1, other: UNKNOWN, kind };
                assert_eq!(unpack(key(group, met)), Some((group, met)));
            }
        }
        assert_eq!(unpack(0), None);
    }

    #[test]
    fn pairs_are_counted_apart_and_start_again() {
        let g = groups();
        for _ in 0..3 {
            g.failed(1, met(7, 2));
        }
        g.slept(1, met(7, 2), 5_000);
        g.slept(2, met(7, 1), 9_000);
        g.failed(0, met(7, 0));
        g.failed(0, met(7, UNKNOWN));
        let mut all: Vec<_> = g.conflicts().map(|c| (c.group, c.met, c.failures, c.waits, c.wait_us)).collect();
        all.sort_by_key(|c| c.0);
        assert_eq!(all, [(1, met(7, 2), 3, 1, 5), (2, met(7, 1), 0, 1, 9)]);
        g.reset();
        assert_eq!(g.conflicts().count(), 0);
    }

    #[test]
    fn too_many_pairs_are_said_to_be_uncounted() {
        let g = groups();
        let pairs = 4 * PAIRS as u64;
        (0..pairs).for_each(|table| g.failed(1, met(table + 1, 1)));
        let counted: u64 = g.conflicts().map(|c| c.failures).sum();
        assert!(counted > PAIRS as u64 / 2);
        assert_eq!(counted + g.uncounted(), pairs);
    }

    #[test]
    fn names_have_numbers_until_there_are_none_left() {
        let g = groups();
        for n in 1..=GROUPS as Group {
            assert_eq!(g.number(&format!("group {n}")), Some(n));
        }
        assert_eq!((g.number("group 3"), g.number("one more")), (Some(3), None));
        assert_eq!((g.name(3).as_deref(), g.name(0), g.name(UNKNOWN)), (Some("group 3"), None, None));
        g.reset();
        assert_eq!((g.name(3), g.number("one more"), g.resets()), (None, Some(1), 1));
    }

    #[test]
    fn the_ring_says_when_it_does_not_know() {
        let g = groups();
        g.commits(5, 3);
        assert_eq!((g.of_commit(5), g.of_commit(6)), (3, 0));
        g.commits(5 + COMMITS as Csn, 4);
        assert_eq!((g.of_commit(5), g.of_commit(5 + COMMITS as Csn)), (UNKNOWN, 4));
    }
}
