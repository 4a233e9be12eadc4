//! The ranges of an index: activation, rebuild by mediation, end.

use super::rest::{Look, Rest};
use super::ring::{Position, Ring};
use super::set::RangeSet;
use crate::clock::Clock;
use crate::csn::{Csn, SlotId};
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::memory::Latch;
use crate::platform::Platform;
use crate::primitive::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::shared::Engine;
use crate::table::Table;
use std::ptr::NonNull;

/// Registrations in a set before somebody looks whether they are skewed.
const LOOK_AT: u64 = 4096;

/// The ranges of one index of a table.
///
/// INV-RANGES: a commit says that it is under way, and which tables it writes (`Slot::commits`), before it looks which
/// ranges these have, and registers in all of them. Predicates rely on a set only after everybody who was in
/// the middle of a commit into the table when the set could first be found has ended it. A set is one of `sets` as long
/// as there may be a predicate on it.
#[repr(C)]
pub struct IndexRanges {
    /// The platform's name of the index.
    pub index: u64,
    table: AtomicPtr<Table>,
    /// How keys compare: 0 as bytes, else [`Platform::compare_keys`].
    pub order: u32,
    active: AtomicU32,
    /// Which of `sets` scans use.
    current: AtomicU32,
    /// Try-latch of changes of the sets. Its holder may sleep.
    busy: AtomicU32,
    /// Do writers register?
    rest: Rest,
    /// Writers register in both. The one that is not current is being introduced, or was current before.
    sets: [AtomicPtr<RangeSet>; 2],
    /// The clock when scans began to use the current set.
    switched_at: AtomicU64,
    /// Sets that nobody can find any more.
    dead: AtomicPtr<RangeSet>,
    next: AtomicPtr<IndexRanges>,
    next_dropped: AtomicPtr<IndexRanges>,
    dropped_at: AtomicU64,
    /// Times that the boundaries were rebuilt.
    pub rebuilds: AtomicU64,
    /// Registrations in the current set when somebody looked last whether they are skewed.
    looked_at: AtomicU64,
    /// Transactions aborted because of a write whose key is not known.
    pub unknown_aborts: AtomicU64,
    /// Writes whose key in this index is not known.
    unknown: Ring,
}

/// The ranges of all indexes of a table.
#[repr(C)]
pub struct TableRanges {
    first: AtomicPtr<IndexRanges>,
    /// Ranges of dropped indexes that wait until nobody can reach them.
    dropped: AtomicPtr<IndexRanges>,
    /// Counts changes of what [`Table::ranges`] returns.
    generation: AtomicU64,
    /// Latch of the two lists.
    latch: Latch,
}

/// The try-latch of changes, held.
struct Busy(&'static IndexRanges);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.store(0, Ordering::SeqCst);
    }
}

/// A rebuild of the slot, known to who ends its transaction: a process that is told to end while it sleeps does not unwind.
struct Rebuilding<'a>(&'a Engine, SlotId);

impl Drop for Rebuilding<'_> {
    fn drop(&mut self) {
        self.0.slots[self.1 as usize].rebuilding.store(std::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// A new set that is not in use yet: taken back if the platform fails or unwinds.
struct Upcoming<'a>(&'a Engine, &'static IndexRanges, usize);

impl Drop for Upcoming<'_> {
    fn drop(&mut self) {
        self.1.bury(self.0, self.2);
    }
}

/// All ranges from one on, that of dropped indexes excepted.
pub struct Iter(*const IndexRanges);

impl Iterator for Iter {
    type Item = &'static IndexRanges;
    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: INV-RANGES: the user is pinned, and ranges are freed after all pins of their drop.
        let r: &'static IndexRanges = unsafe { self.0.as_ref()? };
        self.0 = r.next.load(Ordering::SeqCst);
        Some(r)
    }
}

impl IndexRanges {
    /// The table.
    pub fn table(&self) -> &'static Table {
        // SAFETY: INV-TABLE: ranges end with their table.
        unsafe { &*self.table.load(Ordering::Relaxed) }
    }
    /// May predicates rely on it?
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst) != 0
    }
    /// The set that scans use. The caller is pinned, and keeps the pin as long as it uses the set.
    pub fn current(&self) -> &'static RangeSet {
        let i = self.current.load(Ordering::SeqCst) as usize;
        // SAFETY: INV-RANGES: the current set is there; it stays until all pins of its end are gone.
        unsafe { &*self.sets[i & 1].load(Ordering::SeqCst) }
    }
    /// The sets that writers register in. The caller is pinned, and keeps the pin as long as it uses them.
    pub(crate) fn sets(&self) -> [Option<&'static RangeSet>; 2] {
        if faults::on(Fault::NoMediation) {
            return [Some(self.current()), None];
        }
        // SAFETY: as in `current`.
        std::array::from_fn(|i| unsafe { self.sets[i].load(Ordering::SeqCst).as_ref() })
    }
    /// Are the ranges at rest, so that writers need not register?
    pub fn is_asleep(&self) -> bool {
        self.rest.is_asleep()
    }
    /// Times that they fell asleep.
    pub fn sleeps(&self) -> u64 {
        self.rest.sleeps()
    }
    /// All writers register when this returns, for as long as the caller's pin stays, which it holds. Sleeps for commits
    /// in progress that may write the table.
    pub(crate) fn wake(&self, e: &Engine, slot: SlotId, p: &dyn Platform) -> Result<(), Error> {
        self.rest.wake(|| e.now(), || e.await_commits(p, slot, self.table().id))
    }
    /// A writer looks whether the ranges are needed.
    pub(crate) fn tire(&self, e: &Engine, me: SlotId, p: &dyn Platform) {
        let after_ns = e.shared.sleep_after_ns.load(Ordering::Relaxed);
        let look = Look { at_ns: Clock::of_process().ns_since(0), after_ns, me };
        self.rest.tire(look, || e.now(), || e.refresh_min_pin(p));
    }
    /// The position of a scan of the snapshot at `csn`: `list` gives it for a list that has all commits after it.
    pub(crate) fn position_at(&self, csn: Csn, list: impl FnOnce() -> Position) -> Position {
        if csn < self.rest.complete_since() && !faults::on(Fault::ForgetsWhatWasBefore) {
            return Position::LOST;
        }
        list()
    }
    /// Writes whose key is not known.
    pub(crate) fn unknown(&self) -> &Ring {
        &self.unknown
    }
    /// Registrations of writes whose key was not known.
    pub fn unknown_version(&self) -> u64 {
        self.unknown.head().version()
    }
    /// Is a rebuild under way, or the set before the last one still needed?
    pub fn is_mediated(&self) -> bool {
        self.sets.iter().all(|s| !s.load(Ordering::SeqCst).is_null())
    }
    /// Bytes in the region, without long keys.
    pub fn bytes(&self) -> u64 {
        let sets: u64 = self.sets().iter().flatten().map(|s| s.bytes()).sum();
        sets + std::mem::size_of::<IndexRanges>() as u64
    }

    /// With so many registrations, is it time to look whether they are skewed? Yes for one caller.
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

    /// Puts other boundaries in use, while transactions run: writers register in both sets; scans use the new one
    /// when every commit that might not know it has ended; the old one stays as long as there are predicates on it.
    ///
    /// False if another rebuild is under way, or the set before the present one is still needed: try again
    /// after other transactions have ended. Sleeps for commits in progress; may unwind.
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
            self.rest.begin(e.now());
        }
        if !faults::on(Fault::NoMediation) {
            e.await_commits(p, slot, self.table().id)?;
        }
        std::mem::forget(upcoming);
        if !faults::on(Fault::BeginsBeforeItWaits) {
            self.rest.begin(e.now());
        }
        self.current.store(other as u32, Ordering::SeqCst);
        self.switched_at.store(e.now(), Ordering::SeqCst);
        e.tick(); // pins from now on are larger
        self.looked_at.store(0, Ordering::Relaxed);
        self.rebuilds.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// The slot's transaction ends, which holds its table: ends a rebuild in the middle of which its process stopped. It
    /// slept then, so the set that is not current is the new one, on which there is no predicate yet.
    #[cold]
    pub(crate) fn abandon_rebuild(e: &Engine, slot: SlotId) {
        let r = e.slots[slot as usize].rebuilding.swap(std::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: INV-RANGES: an index is not dropped while a transaction uses its table.
        if let Some(r) = unsafe { r.as_ref() } {
            r.bury(e, 1 - (r.current.load(Ordering::SeqCst) & 1) as usize);
            r.busy.store(0, Ordering::SeqCst);
        }
    }

    /// Takes a set out of use: no predicate is on it. We hold the try-latch.
    fn bury(&self, e: &Engine, i: usize) {
        let Some(set) = NonNull::new(self.sets[i].swap(std::ptr::null_mut(), Ordering::SeqCst)) else { return };
        // SAFETY: INV-SET: freed by `reap_sets` only.
        let set = unsafe { set.as_ref() };
        set.dead_at.store(e.now(), Ordering::SeqCst);
        e.tick();
        set.next_dead.store(self.dead.load(Ordering::SeqCst), Ordering::SeqCst);
        self.dead.store((set as *const RangeSet).cast_mut(), Ordering::SeqCst);
    }

    /// Ends the set before the present one if no predicate is on it, and frees sets that nobody can reach.
    fn reap_sets(&self, _: &Busy, e: &Engine, slot: SlotId, min_pin: Csn) {
        if self.switched_at.load(Ordering::SeqCst) < min_pin {
            self.bury(e, 1 - (self.current.load(Ordering::SeqCst) & 1) as usize);
        }
        let mut at = &self.dead;
        // SAFETY: INV-SET: the list is ours under the try-latch; what is older than all pins nobody can reach.
        while let Some(set) = unsafe { at.load(Ordering::SeqCst).as_ref() } {
            if set.dead_at.load(Ordering::SeqCst) < min_pin {
                at.store(set.next_dead.load(Ordering::SeqCst), Ordering::SeqCst);
                // SAFETY: as above, and out of the list.
                unsafe { set.destroy(e, slot) };
            } else {
                at = &set.next_dead;
            }
        }
    }

    /// Frees everything.
    ///
    /// # Safety
    /// Nobody else can reach it.
    unsafe fn destroy(&self, e: &Engine, slot: SlotId) {
        for s in &self.sets {
            // SAFETY: the caller's promise.
            if let Some(set) = unsafe { s.load(Ordering::SeqCst).as_ref() } {
                // SAFETY: as above.
                unsafe { set.destroy(e, slot) };
            }
        }
        let mut dead = self.dead.load(Ordering::SeqCst);
        // SAFETY: the caller's promise.
        while let Some(set) = unsafe { dead.as_ref() } {
            dead = set.next_dead.load(Ordering::SeqCst);
            // SAFETY: as above.
            unsafe { set.destroy(e, slot) };
        }
        // SAFETY: as above.
        unsafe { e.region.free(slot as usize, NonNull::from(self).cast()) };
    }
}

impl TableRanges {
    /// Does no index have ranges?
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.load(Ordering::SeqCst).is_null()
    }
    /// All, also those that are being activated. The caller is pinned.
    pub(crate) fn iter(&self) -> Iter {
        Iter(self.first.load(Ordering::SeqCst))
    }
    fn find(&self, index: u64) -> Option<&'static IndexRanges> {
        self.iter().find(|r| r.index == index)
    }

    /// Adds ranges unless somebody was faster; whichever is in the list.
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

    /// Takes ranges out of the list. Who is walking over them goes on to the next.
    fn unlink(&self, e: &Engine, index: u64) {
        self.latch.with(|| {
            let mut at = &self.first;
            // SAFETY: INV-RANGES: what is in the list is not freed; the latch is held.
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
        e.tick(); // pins from now on are larger
    }

    /// Takes a dropped one that every pin is larger than out of its list.
    fn ripe(&self, min_pin: Csn) -> Option<&'static IndexRanges> {
        self.latch.with(|| {
            let mut at = &self.dropped;
            loop {
                // SAFETY: INV-RANGES: dropped ones are freed after they left this list; the latch is held.
                let r: &'static IndexRanges = unsafe { at.load(Ordering::SeqCst).as_ref()? };
                if r.dropped_at.load(Ordering::SeqCst) < min_pin {
                    at.store(r.next_dropped.load(Ordering::SeqCst), Ordering::SeqCst);
                    return Some(r);
                }
                at = &r.next_dropped;
            }
        })
    }

    /// Frees ranges of indexes, about so many pieces of memory, and those of one index more at most. True: all.
    ///
    /// # Safety
    /// Nobody else can reach the table, and nobody uses it for anything else any more.
    pub(crate) unsafe fn destroy_some(&self, e: &Engine, slot: SlotId, pieces: &mut usize) -> bool {
        loop {
            // SAFETY: the caller's promise.
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
            // Each entry may have a key of its own.
            *pieces =
                pieces.saturating_sub((r.bytes() / std::mem::size_of::<super::keyed::KeyEntry>() as u64) as usize);
            // SAFETY: the caller's promise.
            unsafe { r.destroy(e, slot) };
        }
    }

    /// The ranges of a dropped index that wait.
    fn dropped_one(&self) -> Option<&'static IndexRanges> {
        // SAFETY: INV-RANGES: dropped ones are freed after they left this list.
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
    /// Changes whenever [`Table::ranges`] may return something else than before.
    pub fn ranges_generation(&self) -> u64 {
        self.ranged.generation.load(Ordering::SeqCst)
    }

    /// Gives an index ranges, while transactions run; those that it has already stay as they are.
    ///
    /// `order`: 0 if keys compare as bytes, else the platform's name of their order. `boundaries` ascend (`n - 1` for
    /// `n` ranges; what does not ascend is left out). `list_size`: registrations that each range remembers,
    /// rounded up to a power of two. Sleeps for commits in progress; may unwind, and can then be called again.
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
                // SAFETY: never published.
                unsafe { set.destroy(e, slot) };
                return Err(full.into());
            }
        };
        // SAFETY: fresh memory of that size; all-zero is valid for the rest.
        let new: &'static IndexRanges = unsafe {
            mem.as_ptr().write_bytes(0, 1);
            ((*mem.as_ptr()).index, (*mem.as_ptr()).order) = (index, order);
            &*mem.as_ptr()
        };
        new.table.store((self as *const Table).cast_mut(), Ordering::Relaxed);
        new.sets[0].store((set as *const RangeSet).cast_mut(), Ordering::SeqCst);
        let there = self.ranged.publish(new);
        if !std::ptr::eq(there, new) {
            // SAFETY: never published.
            unsafe { new.destroy(e, slot) };
        }
        Ok(there)
    }

    /// The index is gone: its ranges end. No running transaction has a predicate or a noted key in it, and
    /// nobody rebuilds it.
    pub fn drop_ranges(&self, e: &Engine, slot: SlotId, index: u64) {
        self.ranged.unlink(e, index);
        self.ranged.generation.fetch_add(1, Ordering::SeqCst);
        self.reap_ranges(e, slot, e.min_pin_of(|_| false));
    }

    /// Frees what is left of old boundaries and of dropped indexes, if no pin is older.
    pub fn reap_ranges(&self, e: &Engine, slot: SlotId, min_pin: Csn) {
        while let Some(r) = self.ranged.ripe(min_pin) {
            // SAFETY: INV-RANGES: every pin is larger than its drop.
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
    use crate::platform::{Queue, WaitFor};
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
            self.0.send(()).expect("somebody listens");
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
        // A thread that stays parked has references into it.
        let block = std::mem::ManuallyDrop::new(Block::new(16 << 20, 3).expect("memory"));
        let e = block.engine;
        let map = Table::new_map(&e, 0, 1, 0, &[], ProtocolSet::of(Protocol::Occ), Policy::Wait).expect("memory");
        let table = Table::create(&e, 0, [1; 4], map).expect("memory");
        let p = Ends(channel().0);
        let r = table.activate_ranges(&e, 0, &p, 7, 0, &[b"5"], 8).expect("memory");
        let mut t = Txn::new(e, 1);
        t.begin(Level::Serializable, 11);
        // Somebody's commit does not end.
        e.slots[2].commits.enter([table.id].into_iter());
        let (waits, waiting) = channel();
        std::thread::spawn(move || r.rebuild(&e, 1, &Ends(waits), &[b"3", b"6"], 8));
        waiting.recv().expect("it waits");
        assert!(r.is_mediated());
        assert_eq!(r.rebuild(&e, 0, &p, &[b"4"], 8), Ok(false), "it is under way");
        t.abort();
        e.slots[2].commits.leave();
        assert!(!r.is_mediated(), "writers do not register in what nobody will use");
        assert_eq!(r.rebuild(&e, 0, &p, &[b"3", b"6"], 8), Ok(true));
        assert_eq!(r.current().len(), 3);
        assert!(e.slots[1].rebuilding.load(Ordering::SeqCst).is_null());
    }
}
