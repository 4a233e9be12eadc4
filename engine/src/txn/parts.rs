//! Parts of ranges that scans have read, and writers that wait for them, where protocols lock
//! ranges.

use super::lock_set::LockSet;
use super::predicate::Extent;
use super::{Owner, RecordRef, ScanId, Txn};
use crate::csn::{SlotId, State};
use crate::error::{AbortReason, Error};
use crate::faults::{self, Fault};
use crate::groups::Kind;
use crate::platform::{Platform, WaitFor};
use crate::primitive::Ordering;
use crate::protocol::Policy;
use crate::range::{Against, Effect, IndexRanges, Part, Range, RangeSet, PARTS};
use std::ops::Bound;

/// A part that the transaction has published.
pub(super) struct Published {
    /// Number of its scan.
    scan: u32,
    /// Which of the slot's parts it is.
    no: u32,
    range: &'static Range,
}

/// A scan whose protocol locks ranges, and whose bounds are final.
pub(super) struct ReadPart<'a> {
    pub set: &'static RangeSet,
    pub order: u32,
    pub extent: Extent,
    pub lo: Bound<&'a [u8]>,
    pub hi: Bound<&'a [u8]>,
    pub against: Against,
    pub covered_locked: bool,
}

impl ReadPart<'_> {
    /// The ranges at its ends, unless they are locked.
    pub fn ends(&self) -> impl Iterator<Item = u32> {
        let (x, locked) = (self.extent, self.covered_locked);
        let last = Some(x.last).filter(|last| *last != x.first);
        [Some(x.first), last].into_iter().flatten().filter(move |no| !(locked && x.covers(*no)))
    }
}

/// A write that looks for parts in its range.
#[derive(Clone, Copy)]
pub(super) struct Written<'a> {
    pub ranges: &'static IndexRanges,
    pub range: &'static Range,
    pub key: &'a [u8],
    pub effect: Effect,
    pub r: RecordRef,
}

/// Steps of waiting for an owner that is in the act of committing, before the policy decides.
const SHORT: u32 = 200;

impl LockSet {
    /// Publishes what a scan has read of ranges that are not locked. Writers of it wait for us from
    /// now on, or abort after the policy.
    fn publish(&mut self, owner: &Owner, scan: ScanId, read: ReadPart<'_>) {
        if self.published.len() >= PARTS {
            return; // validated only
        }
        let Ok(parts) = owner.e.parts(owner.slot) else { return }; // no memory: the same
        for no in read.ends() {
            let range = read.set.range(no);
            let at = parts.publish(range, read.order, (read.lo, read.hi), read.against);
            self.published.extend(at.map(|no| Published { scan: scan.number(), no, range }));
        }
    }

    /// Rows of the scan are not locked: all writes are conflicts with its parts.
    pub fn widen_parts(&mut self, owner: &Owner, scan: ScanId) {
        let Some(parts) = owner.e.parts_if_any(owner.slot) else { return };
        let of_scan = self.published.iter().filter(|q| q.scan == scan.number());
        of_scan.for_each(|q| parts.widen(q.no));
    }

    /// Takes back the parts of a scan, or all. We still keep the ranges. Cannot fail.
    pub fn take_back_parts(&mut self, owner: &Owner, scan: Option<ScanId>) {
        if self.published.is_empty() {
            return;
        }
        let Some(parts) = owner.e.parts_if_any(owner.slot) else { return };
        self.published.retain(|q| {
            let stays = scan.is_some_and(|s| s.number() != q.scan);
            if !stays {
                parts.take_back(q.no, q.range);
            }
            stays
        });
    }
}

impl Txn {
    /// The bounds of the scan are final. Where protocols lock ranges, writers between them wait for
    /// us from now on, in the ranges at its ends that are not locked; or they abort after the
    /// policy.
    pub(super) fn publish_parts(&mut self, scan: ScanId) {
        if let Some(read) = self.scans.ranged.parts_of(scan) {
            self.locks.publish(&self.owner, scan, read);
        }
    }

    /// Waits for the transactions that have read where we write, or fails, after the policy. Looks
    /// once at the parts of each slot: later readers are validated.
    pub(super) fn await_parts(&mut self, p: &dyn Platform, w: Written<'_>) -> Result<(), Error> {
        if w.range.parts.load(Ordering::SeqCst) == 0 || faults::on(Fault::PartsIgnored) {
            return Ok(());
        }
        let (e, me) = (self.e, self.slot);
        for slot in (0..e.slots.len() as SlotId).filter(|s| *s != me) {
            let Some(theirs) = e.parts_if_any(slot) else { continue };
            for part in theirs.all() {
                if let Some(ident) = self.owner_of(p, part, slot, w) {
                    self.await_owner(p, part, WaitFor { ident, slot, tag: 0, lock: None }, w)?;
                }
            }
        }
        Ok(())
    }

    /// The transaction in `slot` that has published this part, if the write conflicts with it.
    /// INV-PARTS: it takes its parts back before it ends, so the name that the slot has while the
    /// part stays is the name of the part's owner.
    fn owner_of(&self, p: &dyn Platform, part: &Part, slot: SlotId, w: Written<'_>) -> Option<u64> {
        loop {
            let copy = part.of(w.range)?;
            let ident = self.e.slots[slot as usize].ident.load(Ordering::SeqCst);
            if part.still(&copy) {
                return copy.conflicts(p, w.ranges.order, w.key, w.effect).then_some(ident);
            }
        }
    }

    /// Waits for the owner of a part as long as the part conflicts with the write; but not for a
    /// later transaction of its slot.
    #[cold]
    fn await_owner(&mut self, p: &dyn Platform, part: &Part, owner: WaitFor, w: Written<'_>) -> Result<(), Error> {
        let at = w.r.touch();
        let same = |ident: u64| ident == owner.ident || faults::on(Fault::AwaitsTheNext);
        let there = |t: &Txn| t.owner_of(p, part, owner.slot, w).is_some_and(same);
        for n in 0..SHORT {
            let state = self.e.word(owner.slot).state();
            if !matches!(state, State::Preparing | State::Committing | State::Committed) {
                break;
            }
            p.pause(n)?;
            if !there(self) {
                return Ok(());
            }
        }
        self.note_holder(owner.slot, Kind::ReadWrite, at.table.id);
        match self.policy_at(w.r.touch()) {
            Policy::NoWait => return Err(self.fail(AbortReason::LockConflict, at)),
            Policy::WaitDie if self.is_older(owner.slot) => return Err(self.fail(AbortReason::WaitDie, at)),
            Policy::Wait | Policy::WaitDie => {}
        }
        match self.sleep_while(p, owner, at, there) {
            // If neither had waited, the predicate of one of them would fail. So a cycle of waits
            // is broken by a failure of that kind.
            Err(Error::Deadlock) if self.level == super::Level::Serializable => {
                Err(self.fail(AbortReason::UpgradeConflict, at))
            }
            end => end,
        }
    }
}
