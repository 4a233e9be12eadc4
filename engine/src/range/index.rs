//! The ranges of an index: activation, rebuild by mediation, and removal.

use super::dormancy::{Dormancy, Look};
use super::ring::{Position, Ring};
use super::set::RangeSet;
use crate::clock::Clock;
use crate::csn::{Csn, SlotId};
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::memory::Latch;
use crate::platform::{Platform, Queue};
use crate::primitive::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::shared::Engine;
use crate::table::Table;
use std::ptr::NonNull;

/// The number of registrations in a set before a writer checks whether they are skewed.
const LOOK_AT: u64 = 4096;

/// The ranges of one index of a table.
///
/// Commits register in all sets of `sets` (INV-RANGES, `under_way.rs`). A set stays there as long
/// as there may be a predicate on it.
#[repr(C)]
pub struct IndexRanges {
    /// The platform's identifier of the index.
    pub index: u64,
    table: AtomicPtr<Table>,
    /// The order of keys: 0 as bytes, else that of [`Platform::compare_keys`].
    pub order: u32,
    active: AtomicU32,
    /// The index in `sets` of the set that scans use.
    current: AtomicU32,
    /// A try-latch for changes of the sets. Its holder may sleep.
    busy: AtomicU32,
    /// Whether writers must register.
    dormancy: Dormancy,
    /// Writers register in both. The set that is not current is being introduced, or was current
    /// before.
    sets: [AtomicPtr<RangeSet>; 2],
    /// The clock's value when scans began to use the current set.
    switched_at: AtomicU64,
    /// Sets that can no longer be found, and wait for their grace period.
    dead: AtomicPtr<RangeSet>,
    next: AtomicPtr<IndexRanges>,
    next_dropped: AtomicPtr<IndexRanges>,
    dropped_at: AtomicU64,
    /// The number of times that the boundaries were rebuilt.
    pub rebuilds: AtomicU64,
    /// The number of registrations in the current set at the last check for skew.
    looked_at: AtomicU64,
    /// The number of transactions aborted because of a write whose key is not known.
    pub unknown_aborts: AtomicU64,
    /// The writes whose key in this index is not known.
    unknown: Ring,
}

/// The ranges of all indexes of a table.
#[repr(C)]
pub struct TableRanges {
    first: AtomicPtr<IndexRanges>,
    /// Ranges of dropped indexes that wait for their grace period.
    dropped: AtomicPtr<IndexRanges>,
    /// Counts the changes of the result of [`Table::ranges`].
    generation: AtomicU64,
    /// The latch of the two lists.
    latch: Latch,
}

/// The try-latch, held.
struct Busy(&'static IndexRanges);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.store(0, Ordering::SeqCst);
    }
}

/// A rebuild that the slot notes, for the end of its transaction: a process that is told to end
/// while it sleeps does not unwind.
struct Rebuilding<'a>(&'a Engine, SlotId);

impl Drop for Rebuilding<'_> {
    fn drop(&mut self) {
        self.0.slots[self.1 as usize].rebuilding.store(std::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// A new set that is not in use yet. Dropping it withdraws the set, if the platform fails or
/// unwinds.
struct Upcoming<'a>(&'a Engine, &'static IndexRanges, usize);

impl Drop for Upcoming<'_> {
    fn drop(&mut self) {
        self.1.retire_set(self.0, self.2);
    }
}

/// An iterator over all ranges of a table's list, which those of dropped indexes have left.
pub struct Iter(*const IndexRanges);

impl Iterator for Iter {
    type Item = &'static IndexRanges;
    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: INV-RANGES, INV-RETIRE: the caller is pinned, and dropped ranges are freed only
        // when every pin is larger than their drop.
        let r: &'static IndexRanges = unsafe { self.0.as_ref()? };
        self.0 = r.next.load(Ordering::SeqCst);
        Some(r)
    }
}

impl IndexRanges {
    /// The table of the index.
    pub fn table(&self) -> &'static Table {
        // SAFETY: INV-TABLE: the ranges are freed with their table or before.
        unsafe { &*self.table.load(Ordering::Relaxed) }
    }
    /// May predicates rely on the ranges?
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst) != 0
    }
    /// The set that scans use. The caller is pinned, and keeps the pin as long as it uses the set.
    pub fn current(&self) -> &'static RangeSet {
        let i = self.current.load(Ordering::SeqCst) as usize;
        // SAFETY: INV-SET: the current set is not null, and it stays until every pin is larger than
        // the clock's value when it was taken out of `sets`.
        unsafe { &*self.sets[i & 1].load(Ordering::SeqCst) }
    }
    /// The sets in which writers register. The caller is pinned, and keeps the pin while it uses
    /// them.
    pub(crate) fn sets(&self) -> [Option<&'static RangeSet>; 2] {
        if faults::on(Fault::NoMediation) {
            return [Some(self.current()), None];
        }
        // SAFETY: INV-SET: a set in `sets` stays as long as the caller's pin.
        std::array::from_fn(|i| unsafe { self.sets[i].load(Ordering::SeqCst).as_ref() })
    }
    /// The queue of the lock of a range. Range `no` of the set before the current one has another
    /// lock, for which others may still wait. So the number of the range has the place of its set
    /// in the highest bit; a set has fewer ranges. The set keeps its place as long as the caller's
    /// pin (INV-SET).
    pub(crate) fn queue(&self, set: &RangeSet, no: u32) -> Queue {
        let second = std::ptr::eq(self.sets[1].load(Ordering::SeqCst), set);
        Queue::Range(self.table().id, self.index, no | (second as u32) << 31)
    }
    /// Are the ranges dormant, so that writers need not register?
    pub fn is_dormant(&self) -> bool {
        self.dormancy.is_dormant()
    }
    /// The number of times that they became dormant.
    pub fn times_dormant(&self) -> u64 {
        self.dormancy.times_dormant()
    }
    /// Wakes up dormant ranges. When it returns, all writers register, as long as the caller holds
    /// its present pin. Sleeps for commits under way that may write the table.
    pub(crate) fn wake(&self, e: &Engine, slot: SlotId, p: &dyn Platform) -> Result<(), Error> {
        self.dormancy.wake(|| e.now(), || e.await_commits(p, slot, self.table().id))
    }
    /// A writer checks whether scans still need the ranges.
    pub(crate) fn check_use(&self, e: &Engine, me: SlotId, p: &dyn Platform) {
        let after_ns = e.shared.dormant_after_ns.load(Ordering::Relaxed);
        let look = Look { at_ns: Clock::of_process().ns_since(0), after_ns, me };
        self.dormancy.check_use(look, || e.now(), || e.refresh_min_pin(p));
    }
    /// The position of a scan that reads the snapshot at `csn`. `list` computes it in a list that
    /// has all commits after `csn`.
    pub(crate) fn position_at(&self, csn: Csn, list: impl FnOnce() -> Position) -> Position {
        if csn < self.dormancy.complete_since() && !faults::on(Fault::ForgetsWhatWasBefore) {
            return Position::LOST;
        }
        list()
    }
    /// The list of writes whose key is not known.
    pub(crate) fn unknown(&self) -> &Ring {
        &self.unknown
    }
    /// The number of registrations of writes whose key was not known.
    pub fn unknown_version(&self) -> u64 {
        self.unknown.head().version()
    }
    /// Is a rebuild under way, or the set before the current one still needed?
    pub fn is_mediated(&self) -> bool {
        self.sets.iter().all(|s| !s.load(Ordering::SeqCst).is_null())
    }
    /// The size in the region in bytes, without long keys.
    pub fn bytes(&self) -> u64 {
        let sets: u64 = self.sets().iter().flatten().map(|s| s.bytes()).sum();
        sets + std::mem::size_of::<IndexRanges>() as u64
    }

    /// Is it time to check for skew, with this number of registrations? True for one caller only.
    pub(super) fn may_look_at(&self, registrations: u64) -> bool {
        let last = self.looked_at.load(Ordering::Relaxed);
        let least = LOOK_AT << self.rebuilds.load(Ordering::Relaxed).min(10);
        registrations >= least.max(2 * last)
            && self.looked_at.compare_exchange(last, registrations, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn try_busy(&'static self) -> Option<Busy> {
        let free = self.busy.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        free.then(|| Busy(self))
    }

    /// Puts other boundaries in use while transactions run. Writers register in both sets. Scans
    /// use the new set after every commit that might not know it has ended. The old set stays as
    /// long as there are predicates on it.
    ///
    /// Returns false if another rebuild is under way, or the set before the current one is still
    /// needed. Then the caller tries again after other transactions have ended. Sleeps for commits
    /// under way, and may unwind.
    pub fn rebuild(
        &'static self,
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        boundaries: &[&[u8]],
        list_size: u32,
    ) -> Result<bool, Error> {
        let Some(busy) = self.try_busy() else { return Ok(false) };
        e.slots[slot as usize].rebuilding.store(std::ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
        let _rebuilding = Rebuilding(e, slot);
        let min = e.refresh_min_pin(p);
        self.reap_sets(&busy, e, slot, min);
        let other = 1 - (self.current.load(Ordering::SeqCst) & 1) as usize;
        if !self.is_active() || !self.sets[other].load(Ordering::SeqCst).is_null() {
            return Ok(false);
        }
        let new = RangeSet::create(e, slot, p, self.order, boundaries, list_size)?;
        self.sets[other].store((new as *const RangeSet).cast_mut(), Ordering::SeqCst);
        let upcoming = Upcoming(e, self, other);
        if faults::on(Fault::BeginsBeforeItWaits) {
            self.dormancy.begin(e.now());
        }
        if !faults::on(Fault::NoMediation) {
            e.await_commits(p, slot, self.table().id)?;
        }
        std::mem::forget(upcoming);
        if !faults::on(Fault::BeginsBeforeItWaits) {
            self.dormancy.begin(e.now());
        }
        self.current.store(other as u32, Ordering::SeqCst);
        self.switched_at.store(e.now(), Ordering::SeqCst);
        e.tick(); // Pins from now on are larger.
        self.looked_at.store(0, Ordering::Relaxed);
        self.rebuilds.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Called at the end of the slot's transaction, which still holds its table. Ends a rebuild in
    /// the middle of which the process stopped. The process was asleep then, so the set that is not
    /// current is the new one, and there is no predicate on it yet.
    #[cold]
    pub(crate) fn abandon_rebuild(e: &Engine, slot: SlotId) {
        let r = e.slots[slot as usize].rebuilding.swap(std::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: INV-RANGES: an index is not dropped while a transaction uses its table.
        if let Some(r) = unsafe { r.as_ref() } {
            r.retire_set(e, 1 - (r.current.load(Ordering::SeqCst) & 1) as usize);
            r.busy.store(0, Ordering::SeqCst);
        }
    }

    /// The number of sets that are out of use, and not freed.
    #[cfg(feature = "faults")]
    pub fn dead_sets(&'static self) -> usize {
        let _busy = self.try_busy();
        let first = self.dead.load(Ordering::SeqCst);
        // SAFETY: INV-SET: the list is used under the try-latch, and its sets are not freed yet.
        let next = |set: &*mut RangeSet| unsafe { set.as_ref() }.map(|set| set.next_dead.load(Ordering::SeqCst));
        std::iter::successors(Some(first), next).filter(|set| !set.is_null()).count()
    }

    /// Takes a set out of use. There is no predicate on it, and the caller holds the try-latch.
    fn retire_set(&self, e: &Engine, i: usize) {
        let Some(set) = NonNull::new(self.sets[i].swap(std::ptr::null_mut(), Ordering::SeqCst)) else { return };
        // SAFETY: INV-SET: only `reap_sets` frees it, after this call.
        let set = unsafe { set.as_ref() };
        set.dead_at.store(e.now(), Ordering::SeqCst);
        e.tick();
        set.next_dead.store(self.dead.load(Ordering::SeqCst), Ordering::SeqCst);
        self.dead.store((set as *const RangeSet).cast_mut(), Ordering::SeqCst);
    }

    /// Takes the previous set out of use if there is no predicate on it. Frees the sets that no
    /// process can reach.
    fn reap_sets(&self, _: &Busy, e: &Engine, slot: SlotId, min_pin: Csn) {
        if self.switched_at.load(Ordering::SeqCst) < min_pin {
            self.retire_set(e, 1 - (self.current.load(Ordering::SeqCst) & 1) as usize);
        }
        // INV-UNDECIDED: a commit that has registered in a set may have no pin. Asked after the
        // pins were looked at: a commit that registers later does not find a dead set.
        let is_free = || has_no_commit(e, self.table());
        let mut at = &self.dead;
        // SAFETY: INV-SET: the list is used under the try-latch only, and its sets are not freed
        // yet.
        while let Some(set) = unsafe { at.load(Ordering::SeqCst).as_ref() } {
            if set.dead_at.load(Ordering::SeqCst) < min_pin && is_free() {
                at.store(set.next_dead.load(Ordering::SeqCst), Ordering::SeqCst);
                // SAFETY: INV-SET: every pin is larger than `dead_at`, no commit without a pin uses
                // the set, and it has left the list.
                unsafe { set.destroy(e, slot) };
            } else {
                at = &set.next_dead;
            }
        }
    }

    /// Frees the ranges with all their sets.
    ///
    /// # Safety
    /// No other process can reach them (INV-RANGES).
    unsafe fn destroy(&self, e: &Engine, slot: SlotId) {
        for s in &self.sets {
            // SAFETY: INV-SET: a set in `sets` has not been freed.
            if let Some(set) = unsafe { s.load(Ordering::SeqCst).as_ref() } {
                // SAFETY: INV-SET: by this function's contract no other process can reach the set.
                unsafe { set.destroy(e, slot) };
            }
        }
        let mut dead = self.dead.load(Ordering::SeqCst);
        // SAFETY: INV-SET: a set in the list `dead` has not been freed.
        while let Some(set) = unsafe { dead.as_ref() } {
            dead = set.next_dead.load(Ordering::SeqCst);
            // SAFETY: INV-SET: by this function's contract no other process can reach the set.
            unsafe { set.destroy(e, slot) };
        }
        // SAFETY: INV-RANGES: by this function's contract no other process can reach the ranges.
        unsafe { e.region.free(slot as usize, NonNull::from(self).cast()) };
    }
}

/// Is no commit under way that may have registered in ranges of a table (INV-UNDECIDED)?
fn has_no_commit(e: &Engine, table: &Table) -> bool {
    faults::on(Fault::SetsFreedEarly) || e.slots.iter().all(|s| s.commits.of_table(table.id).is_none())
}

impl TableRanges {
    /// Has no index of the table ranges?
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.load(Ordering::SeqCst).is_null()
    }
    /// All ranges, including those that are being activated. The caller is pinned.
    pub(crate) fn iter(&self) -> Iter {
        Iter(self.first.load(Ordering::SeqCst))
    }
    fn find(&self, index: u64) -> Option<&'static IndexRanges> {
        self.iter().find(|r| r.index == index)
    }

    /// Adds ranges unless the index has some by now. Returns those that are in the list.
    fn publish(&self, new: &'static IndexRanges) -> &'static IndexRanges {
        self.latch.with(|| {
            if let Some(there) = self.find(new.index) {
                return there;
            }
            new.next.store(self.first.load(Ordering::SeqCst), Ordering::SeqCst);
            self.first.store((new as *const IndexRanges).cast_mut(), Ordering::SeqCst);
            new
        })
    }

    /// Takes ranges out of the list. An iterator that stands on them goes on to the next.
    fn unlink(&self, e: &Engine, index: u64) {
        self.latch.with(|| {
            let mut at = &self.first;
            // SAFETY: INV-RANGES: ranges in the list are not freed, and the latch is held.
            while let Some(r) = unsafe { at.load(Ordering::SeqCst).as_ref() } {
                if r.index == index {
                    at.store(r.next.load(Ordering::SeqCst), Ordering::SeqCst);
                    r.dropped_at.store(e.now(), Ordering::SeqCst);
                    r.next_dropped.store(self.dropped.load(Ordering::SeqCst), Ordering::SeqCst);
                    self.dropped.store((r as *const IndexRanges).cast_mut(), Ordering::SeqCst);
                    return;
                }
                at = &r.next;
            }
        });
        e.tick(); // Pins from now on are larger.
    }

    /// Takes from the list of dropped ranges one whose drop all pins are larger than.
    fn ripe(&self, min_pin: Csn) -> Option<&'static IndexRanges> {
        self.latch.with(|| {
            let mut at = &self.dropped;
            loop {
                // SAFETY: INV-RANGES: dropped ranges are freed after they have left this list, and
                // the latch is held.
                let r: &'static IndexRanges = unsafe { at.load(Ordering::SeqCst).as_ref()? };
                if r.dropped_at.load(Ordering::SeqCst) < min_pin {
                    at.store(r.next_dropped.load(Ordering::SeqCst), Ordering::SeqCst);
                    return Some(r);
                }
                at = &r.next_dropped;
            }
        })
    }

    /// Frees ranges of indexes, about `pieces` pieces of memory, exceeding that by those of one
    /// index at most. Returns true if all are freed.
    ///
    /// # Safety
    /// No other process can reach the table, and no other process frees it (INV-TABLE).
    pub(crate) unsafe fn destroy_some(&self, e: &Engine, slot: SlotId, pieces: &mut usize) -> bool {
        loop {
            // SAFETY: INV-TABLE: by this function's contract the list is ours alone, and ranges in
            // it are not freed.
            let first: Option<&'static IndexRanges> = unsafe { self.first.load(Ordering::SeqCst).as_ref() };
            let Some(r) = first.or_else(|| self.dropped_one()) else { return true };
            if *pieces == 0 {
                return false;
            }
            if first.is_some() {
                self.first.store(r.next.load(Ordering::SeqCst), Ordering::SeqCst);
            } else {
                self.ripe(Csn::MAX);
            }
            // Each entry may have a key block of its own.
            *pieces =
                pieces.saturating_sub((r.bytes() / std::mem::size_of::<super::keyed::KeyEntry>() as u64) as usize);
            // SAFETY: INV-TABLE: by this function's contract no other process can reach the ranges.
            unsafe { r.destroy(e, slot) };
        }
    }

    /// Dropped ranges that wait, if there are any.
    fn dropped_one(&self) -> Option<&'static IndexRanges> {
        // SAFETY: INV-RANGES: dropped ranges are freed after they have left this list.
        unsafe { self.dropped.load(Ordering::SeqCst).as_ref() }
    }
}

impl Table {
    /// The ranges of an index, if they are active.
    pub fn ranges(&self, index: u64) -> Option<&'static IndexRanges> {
        self.ranged.find(index).filter(|r| r.is_active())
    }
    /// The active ranges of all indexes. The caller is pinned.
    pub fn all_ranges(&self) -> impl Iterator<Item = &'static IndexRanges> {
        self.ranged.iter().filter(|r| r.is_active())
    }
    /// The number of dropped indexes whose ranges are not freed.
    #[cfg(feature = "faults")]
    pub fn dropped_ranges(&self) -> usize {
        self.ranged.latch.with(|| {
            let first = self.ranged.dropped.load(Ordering::SeqCst);
            // SAFETY: INV-RANGES: dropped ranges are freed after they have left this list, and the
            // latch is held.
            let next = |r: &*mut IndexRanges| unsafe { r.as_ref() }.map(|r| r.next_dropped.load(Ordering::SeqCst));
            std::iter::successors(Some(first), next).filter(|r| !r.is_null()).count()
        })
    }
    /// Changes whenever [`Table::ranges`] may return another result than before.
    pub fn ranges_generation(&self) -> u64 {
        self.ranged.generation.load(Ordering::SeqCst)
    }

    /// Gives an index ranges while transactions run. Ranges that it already has stay as they are.
    ///
    /// `order` is 0 if keys compare as bytes, else the platform's identifier of their order.
    /// `boundaries` are the `n - 1` ascending boundaries of `n` ranges; those that do not ascend
    /// are left out. `list_size` is the number of registrations that each range remembers, rounded
    /// up to a power of two. Sleeps for commits under way. May unwind, and can then be called
    /// again.
    #[allow(clippy::too_many_arguments)]
    pub fn activate_ranges(
        &'static self,
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        index: u64,
        order: u32,
        boundaries: &[&[u8]],
        list_size: u32,
    ) -> Result<&'static IndexRanges, Error> {
        let r = match self.ranged.find(index) {
            Some(r) => r,
            None => self.publish_ranges(e, slot, p, index, order, boundaries, list_size)?,
        };
        if !r.is_active() {
            r.wake(e, slot, p)?;
            r.active.store(1, Ordering::SeqCst);
            self.ranged.generation.fetch_add(1, Ordering::SeqCst);
        }
        Ok(r)
    }

    #[allow(clippy::too_many_arguments)]
    fn publish_ranges(
        &'static self,
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        index: u64,
        order: u32,
        boundaries: &[&[u8]],
        list_size: u32,
    ) -> Result<&'static IndexRanges, Error> {
        let set = RangeSet::create(e, slot, p, order, boundaries, list_size)?;
        let mem = match e.region.alloc(slot as usize, std::mem::size_of::<IndexRanges>()) {
            Ok(m) => m.cast::<IndexRanges>(),
            Err(full) => {
                // SAFETY: INV-SET: the set was never published.
                unsafe { set.destroy(e, slot) };
                return Err(full.into());
            }
        };
        // SAFETY: INV-M1: fresh memory of that size, in which all-zero fields are valid.
        let new: &'static IndexRanges = unsafe {
            mem.as_ptr().write_bytes(0, 1);
            ((*mem.as_ptr()).index, (*mem.as_ptr()).order) = (index, order);
            &*mem.as_ptr()
        };
        new.table.store((self as *const Table).cast_mut(), Ordering::Relaxed);
        new.sets[0].store((set as *const RangeSet).cast_mut(), Ordering::SeqCst);
        let there = self.ranged.publish(new);
        if !std::ptr::eq(there, new) {
            // SAFETY: INV-RANGES: these ranges were never published.
            unsafe { new.destroy(e, slot) };
        }
        Ok(there)
    }

    /// Ends the ranges of a dropped index. No running transaction has a predicate or a noted key in
    /// it, and no process is rebuilding it.
    pub fn drop_ranges(&self, e: &Engine, slot: SlotId, index: u64) {
        self.ranged.unlink(e, index);
        self.ranged.generation.fetch_add(1, Ordering::SeqCst);
        self.reap_ranges(e, slot, e.min_pin_of(|_| false));
    }

    /// Frees the sets of old boundaries and the ranges of dropped indexes that no pin keeps.
    pub fn reap_ranges(&self, e: &Engine, slot: SlotId, min_pin: Csn) {
        // INV-UNDECIDED, as for sets: asked after the pins were looked at. A commit that registers
        // later does not find dropped ranges.
        while has_no_commit(e, self) {
            let Some(r) = self.ranged.ripe(min_pin) else { break };
            // SAFETY: INV-RANGES: every pin is larger than the clock's value at their drop, and no
            // commit without a pin uses them.
            unsafe { r.destroy(e, slot) };
        }
        for r in self.ranged.iter() {
            if let Some(busy) = r.try_busy() {
                r.reap_sets(&busy, e, slot, min_pin);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::platform::WaitFor;
    use crate::threads::Block;
    use crate::txn::{Level, Txn};
    use crate::{Policy, Protocol, ProtocolSet};
    use std::sync::mpsc::{channel, Sender};

    /// The platform of a process that is told to end in its first short wait: nothing unwinds.
    struct Ends(Sender<()>);

    impl Platform for Ends {
        fn wait_for(&self, _: WaitFor) -> Result<(), Error> {
            unreachable!("nothing is locked")
        }
        fn enter_queue(&self, _: Queue) -> Result<(), Error> {
            unreachable!("nothing is locked")
        }
        fn leave_queue(&self, _: Queue) {}
        fn pause(&self, _: u32) -> Result<(), Error> {
            self.0.send(()).expect("the receiver waits");
            loop {
                std::thread::park();
            }
        }
        fn lock_tag(&self) -> u32 {
            0
        }
        fn quiescent(&self, _: SlotId) -> bool {
            false
        }
    }

    #[test]
    fn a_process_that_ends_in_a_rebuild_leaves_nothing_behind() {
        // A thread that stays parked has references into the block.
        let block = std::mem::ManuallyDrop::new(Block::new(16 << 20, 3).expect("memory"));
        let e = block.engine;
        let map = Table::new_map(&e, 0, 1, 0, &[], ProtocolSet::of(Protocol::Occ), Policy::Wait).expect("memory");
        let table = Table::create(&e, 0, [1; 4], map).expect("memory");
        let p = Ends(channel().0);
        let r = table.activate_ranges(&e, 0, &p, 7, 0, &[b"5"], 8).expect("memory");
        let mut t = Txn::new(e, 1);
        t.begin(Level::Serializable, 11);
        // The commit of another slot does not end.
        e.slots[2].commits.enter([table.id].into_iter());
        let (waits, waiting) = channel();
        std::thread::spawn(move || r.rebuild(&e, 1, &Ends(waits), &[b"3", b"6"], 8));
        waiting.recv().expect("it waits");
        assert!(r.is_mediated());
        assert_eq!(r.rebuild(&e, 0, &p, &[b"4"], 8), Ok(false), "it is under way");
        t.abort();
        e.slots[2].commits.leave();
        assert!(!r.is_mediated(), "writers do not register in a set that will not be used");
        assert_eq!(r.rebuild(&e, 0, &p, &[b"3", b"6"], 8), Ok(true));
        assert_eq!(r.current().len(), 3);
        assert!(e.slots[1].rebuilding.load(Ordering::SeqCst).is_null());
    }
}
