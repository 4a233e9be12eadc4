//! The group of the transaction, and the one that was in its way: see [`crate::groups`].

use super::{Committed, Owner, RecordRef, Txn};
use crate::csn::{SlotId, Stamp};
use crate::error::{AbortReason, Error};
use crate::groups::{Group, Kind, Met, GROUPS};
use crate::lock::{Conflict, First, Mode};
use crate::platform::Queue;
use crate::primitive::Ordering;

/// The group of a transaction, and the one that was in its way last.
#[derive(Default)]
pub(super) struct Grouped {
    group: Group,
    met: Option<Met>,
}

fn kind_of_failure(reason: AbortReason) -> Kind {
    match reason {
        AbortReason::ReadChanged | AbortReason::Phantom | AbortReason::PredicateWrapped => Kind::ReadWrite,
        AbortReason::PartitionOrder | AbortReason::Prepared => Kind::Partition,
        _ => Kind::WriteWrite,
    }
}

fn kind_of_wait(queue: Queue, wanted: Mode, held: Option<Mode>) -> Kind {
    let reads = |m: Mode| matches!(m, Mode::KeyShare | Mode::Share);
    match queue {
        Queue::Partition(..) => Kind::Partition,
        // Writers of keys do not meet each other in a range.
        Queue::Range(..) => Kind::ReadWrite,
        Queue::Record(..) if reads(wanted) || held.is_some_and(reads) => Kind::ReadWrite,
        Queue::Record(..) => Kind::WriteWrite,
    }
}

impl Owner {
    /// The write with this stamp is in the way. The failure that follows tells whose it is.
    pub(super) fn meets(&self, stamp: Stamp) {
        self.met.set(stamp);
    }
}

impl Txn {
    /// The group that the transaction belongs to, which has begun just now. 0: none.
    pub fn set_group(&mut self, group: Group) {
        debug_assert!(group as usize <= GROUPS);
        self.grouped.group = group;
        self.shared_slot().group.store(group as u32, Ordering::Relaxed);
        self.e.shared.groups.uses(group);
    }

    /// The transaction begins, without a group.
    pub(super) fn begin_ungrouped(&mut self) {
        if self.grouped.group != 0 {
            self.set_group(0);
        }
        self.grouped.met = None;
    }

    /// The transaction has taken its CSN, which no other one sees yet.
    #[inline]
    pub(super) fn note_group(&self) {
        if self.grouped.group != 0 {
            self.e.shared.groups.commits(self.csn, self.grouped.group);
        }
    }

    /// The transaction fails, or would fail, because of others.
    pub(super) fn note_failure(&mut self, reason: AbortReason, table: u64) {
        let stamp = self.owner.met.replace(Stamp::default());
        if self.e.shared.groups.are_used() && stamp != Stamp::default() {
            let other = self.e.group_of(stamp);
            self.grouped.met = Some(Met { table, other, kind: kind_of_failure(reason) });
        }
    }

    /// A write fails, because the row has another newest version than the one that it replaces.
    pub fn write_conflict(&mut self, r: RecordRef, newest: Option<Committed>) -> Error {
        if let Some((_, csn)) = newest {
            self.owner.meets(Stamp::csn(csn));
        }
        self.blame_row(r, Mode::NoKeyUpdate);
        self.fail(AbortReason::WriteConflict, r.touch())
    }

    /// A lock is not free: the transaction waits for it, or fails.
    pub(super) fn note_conflict(&mut self, conflict: Conflict, queue: Queue, wanted: Mode, table: u64) {
        match conflict {
            Conflict::With(h) => self.note_holder(h.slot, kind_of_wait(queue, wanted, Some(h.mode)), table),
            Conflict::Behind(First::Upgrader(slot)) => self.note_holder(slot, kind_of_wait(queue, wanted, None), table),
            _ => {}
        }
    }

    /// The transaction in a slot is in the way.
    pub(super) fn note_holder(&mut self, slot: SlotId, kind: Kind, table: u64) {
        if self.e.shared.groups.are_used() {
            self.grouped.met = Some(Met { table, other: self.e.group_in(slot), kind });
        }
    }

    /// A sleep for a lock has ended. `got`: the transaction goes on with it.
    pub(super) fn note_slept(&mut self, ns: u64, got: bool) {
        if let Some(met) = self.grouped.met {
            self.e.shared.groups.slept(self.grouped.group, met, ns);
        }
        if got {
            self.grouped.met = None;
        }
    }

    /// The transaction has ended. Allocates nothing and cannot fail.
    #[inline]
    pub(super) fn count_group(&mut self, failed: bool) {
        if let Some(met) = self.grouped.met.take().filter(|_| failed) {
            self.e.shared.groups.failed(self.grouped.group, met);
        }
        if self.grouped.group != 0 {
            self.e.shared.groups.ended(self.slot, self.grouped.group, failed);
        }
    }
}
