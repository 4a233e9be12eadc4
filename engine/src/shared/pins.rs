//! Pins: what memory readers can reach, and floors: which commits all their snapshots see.
//!
//! **INV-HOLD**: A slot that holds on to ranges (predicates, range locks, a commit's plan) sets
//! `holds` before it renews its pin, and takes the ranges' addresses after that. A reclaimer that
//! reads this pin or a later one sees `holds` and leaves the pin alone. A reclaimer that read an
//! earlier pin fails to end it, because the pin has changed.
//!
//! **INV-HONEST**: A pin at a CSN keeps all memory that is retired at that CSN or later. Before its
//! owner read this CSN from the clock it had stored a pin at 0, which keeps all memory and which no
//! other process ends. So the oldest pin never goes back. A transaction that looks below a
//! tombstone, or that builds an index, relies on this (`Engine::pin`, `adopt_pin`, `pin_oldest`).

use super::{Engine, Needs, PinWords, UNPINNED};
use crate::csn::{Csn, SlotId, State};
use crate::faults::{self, Fault, Moment};
use crate::memory::OutOfMemory;
use crate::open::{Kept, Seen, Shown, Words};
use crate::platform::Platform;
use crate::primitive::{model_fence, relax, AtomicU64, Ordering};
use crate::retire::RetireQueue;

/// Bits of a pin's tag. The tag must not wrap while a reclaimer is stopped: if the owner pins 2^15
/// times at one CSN meanwhile, the reclaimer could end a live pin.
const PIN_SHIFT: u32 = 16;
const PIN_TAG: u64 = LOWERING - 1;
/// The pin's owner is looking for the oldest pin of all. Meanwhile its pin keeps everything, as a
/// pin at 0 does. The CSN is that of the pin that it had before.
const LOWERING: u64 = 1 << (PIN_SHIFT - 1);

/// Steps of waiting for a pin that is being taken. After them it is treated as a pin at 0.
pub(super) const SHORT: u32 = if cfg!(loom) { 1 } else { 100 };

/// The CSN from which on a pin (not [`UNPINNED`]) keeps retired memory.
pub(super) fn kept_from(pin: u64) -> Csn {
    if pin & LOWERING != 0 {
        0
    } else {
        pin >> PIN_SHIFT
    }
}

/// Reads a pin, waiting up to `steps` steps for its CSN to be known. A pin is at 0 only for the few
/// instructions in which its owner takes it.
pub(super) fn settled(pin: &AtomicU64, steps: u32) -> u64 {
    for n in 0..steps {
        let p = pin.load(Ordering::SeqCst);
        if p >> PIN_SHIFT != 0 {
            return p;
        }
        relax(n);
    }
    pin.load(Ordering::SeqCst)
}

/// Takes a pin that the slot does not have, with its floor (INV-HONEST, INV-FLOOR). From the first
/// store on only the owner changes the word: no reclaimer ends a pin at 0.
pub fn take_pin(pin: &AtomicU64, floor: &AtomicU64, words: Words<'_>, tag: u64) {
    pin.store(tag & PIN_TAG, Ordering::SeqCst);
    model_fence();
    let (now, done) = words.done_upto();
    faults::reached(Moment::Looked);
    floor.store(done, Ordering::Relaxed);
    pin.store(now << PIN_SHIFT | tag & PIN_TAG, Ordering::Release);
}

/// Which transactions adopt a snapshot that another one shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopter {
    /// One that imports the snapshot of a transaction that has one for all of its statements.
    Importer,
    /// A parallel worker of the transaction.
    Worker,
}

/// The oldest pin and the smallest floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oldest {
    /// Memory that was retired at this CSN or later stays.
    pub pin: Csn,
    /// Every snapshot sees all commits up to this CSN, and may leave out later ones.
    pub floor: Csn,
}

impl Oldest {
    /// Looks at the pins and floors of all slots. `ends`: ends a pin that no snapshot needs, or
    /// returns false.
    pub fn look<'a>(
        words: Words<'_>,
        slots: impl Iterator<Item = (&'a AtomicU64, &'a AtomicU64)>,
        ends: impl Fn(SlotId, u64) -> bool,
    ) -> Oldest {
        let late = faults::on(Fault::LooksAtClockLast);
        let (now, done) = words.done_upto();
        model_fence();
        let mut min = Oldest { pin: if late { Csn::MAX } else { now }, floor: done };
        if faults::on(Fault::LooksAtDoneLast) {
            min.floor = Csn::MAX;
        }
        for (slot, (pin, floor)) in slots.enumerate() {
            let pin = settled(pin, SHORT);
            if pin == UNPINNED {
                continue;
            }
            // The floor is that of this pin, or of a later one. That is not below `done`.
            let floor = if kept_from(pin) == 0 { 0 } else { floor.load(Ordering::SeqCst) };
            if kept_from(pin) == 0 || !ends(slot as SlotId, pin) {
                min = Oldest { pin: min.pin.min(kept_from(pin)), floor: min.floor.min(floor) };
            }
        }
        if late {
            min.pin = min.pin.min(words.done_upto().0);
        }
        if faults::on(Fault::LooksAtDoneLast) {
            min.floor = min.floor.min(words.done_upto().1);
        }
        min
    }
}

impl Engine {
    /// The words of commits that are not done.
    #[inline]
    pub(crate) fn opens(&self) -> Words<'static> {
        Words { all: &self.shared.opens.0, slots: self.open, clock: &self.shared.clock.0 }
    }
    /// The oldest commit that is not done, and its slot.
    pub fn oldest_commit(&self) -> Option<(Csn, SlotId)> {
        self.opens().oldest()
    }

    /// The clock, and *V*: all commits up to *V* are done.
    #[inline]
    pub fn done_upto(&self) -> (Csn, Csn) {
        self.opens().done_upto()
    }

    /// Takes a snapshot: returns the clock and *V*, and puts the commits between them that are not
    /// done into the list, with their slots. The caller is pinned ([`crate::Txn::take_seen`]).
    #[inline]
    pub fn take_seen(&self, list: &mut Vec<(Csn, SlotId)>) -> (Csn, Csn) {
        self.opens().look(list)
    }

    /// The number of the slot's commit if that is not done; 0: none, or it is done.
    pub fn open_commit(&self, slot: SlotId) -> Csn {
        match self.open[slot as usize].load(Ordering::SeqCst) {
            crate::open::TAKING => 0,
            csn => csn,
        }
    }

    /// Shows a snapshot to the transactions that `to` names. Without memory, or room for its list,
    /// it cannot be adopted.
    pub fn show(&self, slot: SlotId, seen: Seen<'_>, to: Adopter) {
        let s = &self.slots[slot as usize];
        if seen.excluded.len() > self.slots.len() {
            return self.hide(slot);
        }
        if !seen.excluded.is_empty() || !s.shown.load(Ordering::Relaxed).is_null() {
            let Ok(shown) = self.shown(slot) else { return };
            // SAFETY: `shown` has made it for this number of slots.
            unsafe { Shown::put(shown, self.slots.len(), seen.excluded) };
        }
        s.read_csn.store(seen.upto << 1 | u64::from(to == Adopter::Worker), Ordering::SeqCst);
    }

    /// Shows no snapshot any more: no other transaction will adopt it.
    #[inline]
    pub fn hide(&self, slot: SlotId) {
        let shown = &self.slots[slot as usize].read_csn;
        // The owner alone writes it, and most transactions show none.
        if shown.load(Ordering::Relaxed) != 0 {
            shown.store(0, Ordering::SeqCst);
        }
    }

    fn shown(&self, slot: SlotId) -> Result<*const Shown, OutOfMemory> {
        let at = &self.slots[slot as usize].shown;
        let there = at.load(Ordering::Relaxed);
        if !there.is_null() {
            return Ok(there);
        }
        let size = Shown::size(self.slots.len());
        let new = self.region.alloc(slot as usize, size)?;
        // SAFETY: INV-M1: fresh memory of that size.
        unsafe { new.as_ptr().write_bytes(0, size) };
        at.store(new.cast().as_ptr(), Ordering::SeqCst);
        Ok(new.cast().as_ptr())
    }

    /// Pins what a reader in `slot` can reach from now on. The reader calls it before it takes its
    /// read CSN.
    pub fn pin(&self, slot: SlotId) {
        let s = &self.slots[slot as usize];
        // The tag changes with every call, also between transactions at one value of the clock. So
        // a reclaimer that found this process quiescent before fails to end the pin now.
        let count = s.pin_count.load(Ordering::Relaxed).wrapping_add(1);
        s.pin_count.store(count, Ordering::Relaxed);
        let tag = count as u64 & PIN_TAG;
        let mut old = s.pin.load(Ordering::SeqCst);
        while old != UNPINNED {
            let new = old & !PIN_TAG | tag;
            match s.pin.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
        if s.upto.load(Ordering::Relaxed) != 0 {
            s.pin.store(tag, Ordering::SeqCst); // INV-POINT: under a pin at 0
            self.pin_words(slot).make_full();
        }
        take_pin(&s.pin, &s.floor, self.opens(), tag);
    }

    /// The words that say what a slot needs.
    pub(crate) fn pin_words(&self, slot: SlotId) -> PinWords<'static> {
        let s = &self.slots[slot as usize];
        PinWords { pin: &s.pin, floor: &s.floor, upto: &s.upto, works: &s.works }
    }

    /// Has any slot a point, as far as a glance shows?
    pub(crate) fn may_have_points(&self) -> bool {
        self.slots.iter().any(|s| s.upto.load(Ordering::Relaxed) != 0 && s.pin.load(Ordering::Relaxed) != UNPINNED)
    }

    /// What the slot needs beyond a point: its owner sees what was replaced after this CSN. Only
    /// the owner calls it.
    pub(crate) fn full_since(&self, slot: SlotId) -> Csn {
        let s = &self.slots[slot as usize];
        match s.upto.load(Ordering::Relaxed) {
            0 => self.pinned_at(slot),
            _ => s.works.load(Ordering::Relaxed),
        }
    }

    /// Looks at what all readers need, and keeps everything meanwhile and until
    /// [`Engine::end_keeping`], which gets the pin that is returned. What the oldest pin keeps
    /// stays till then. A reclaimer that has looked before has found no larger oldest pin
    /// (INV-HONEST). One that looks now sees the pin that keeps everything, or that `adoptions` has
    /// changed.
    pub(crate) fn keep_all(&self, slot: SlotId) -> (u64, Needs) {
        let s = &self.slots[slot as usize];
        let tag = s.pin_count.fetch_add(1, Ordering::Relaxed).wrapping_add(1) as u64 & PIN_TAG;
        let own = s.pin.swap(tag, Ordering::SeqCst);
        let mut at = own >> PIN_SHIFT;
        if own == UNPINNED {
            let (now, done) = self.done_upto();
            s.floor.store(done, Ordering::SeqCst);
            at = now;
        }
        s.pin.store(at << PIN_SHIFT | LOWERING | tag, Ordering::SeqCst);
        self.shared.adoptions.fetch_add(1, Ordering::SeqCst);
        loop {
            let adoptions = self.shared.adoptions.load(Ordering::SeqCst);
            let slots = (0..self.slots.len()).map(|slot| self.pin_words(slot as SlotId));
            let needs = Needs::look(self.opens(), slots, slot as usize, own);
            if self.shared.adoptions.load(Ordering::SeqCst) == adoptions {
                return (own, needs);
            }
        }
    }

    /// The slot has the pin again that it had before [`Engine::keep_all`].
    pub(crate) fn end_keeping(&self, slot: SlotId, own: u64) {
        let s = &self.slots[slot as usize];
        let tag = s.pin_count.fetch_add(1, Ordering::Relaxed).wrapping_add(1) as u64 & PIN_TAG;
        // With another tag: a reclaimer that has read the pin before does not end it.
        let pin = if own == UNPINNED { UNPINNED } else { own & !PIN_TAG | tag };
        s.pin.store(pin, Ordering::SeqCst);
    }

    /// Pins `slot`, which has no pin, for the snapshot that the transaction `ident` in slot `of`
    /// shows, and returns that snapshot. `None` if that transaction has ended, or shows none to
    /// `who`: a worker adopts each one that its leader shows, a transaction that imports only those
    /// that last as long as their transactions.
    pub fn adopt_pin(&self, slot: SlotId, of: SlotId, ident: u64, who: Adopter) -> Option<Kept> {
        let from = self.slots.get(of as usize)?;
        let shown = from.read_csn.load(Ordering::SeqCst);
        let csn = shown >> 1;
        let own = &self.slots[slot as usize];
        if csn == 0 || shown & 1 == 1 && who == Adopter::Importer || own.pin.load(Ordering::SeqCst) != UNPINNED {
            return None;
        }
        own.pin.store(0, Ordering::SeqCst); // Keeps everything (INV-HONEST).
        self.pin_words(slot).make_full();
        self.shared.adoptions.fetch_add(1, Ordering::SeqCst);
        let floor = from.floor.load(Ordering::SeqCst);
        // SAFETY: `shown` is null, or was made for this number of slots.
        let list = unsafe { from.shown.load(Ordering::SeqCst).as_ref().map(|s| Shown::copy(s, self.slots.len())) };
        // If `of` still has its read CSN, it is still pinned. A reclaimer that looks at all pins
        // from now on sees one of the two pins, or that `adoptions` has changed.
        let same = from.ident.load(Ordering::SeqCst) == ident && from.read_csn.load(Ordering::SeqCst) == shown;
        if !same {
            self.unpin(slot);
            return None;
        }
        own.floor.store(floor, Ordering::SeqCst);
        own.pin.store(csn << PIN_SHIFT, Ordering::SeqCst);
        self.pin(slot); // With a tag of our own.
        Some(Kept { upto: csn, floor, excluded: list.unwrap_or_default() })
    }

    /// Lowers the pin of `slot` to the oldest of all pins, and its floor to the smallest, and
    /// returns them: everything that any present reader can reach stays reachable for `slot`. An
    /// index build needs this, as it must index the versions that others see. Waits for processes
    /// that are in the middle of taking their pins, and holds no latch meanwhile.
    ///
    /// Several slots may do so at a time without waiting for each other, as each keeps showing the
    /// CSN of the pin that it had before. That CSN covers all that its own transaction can reach.
    /// Suppose that another slot has lowered its pin to that of a reader. Then that reader's pin is
    /// seen in its own slot, or the reader has ended. In the latter case only the other slot still
    /// needs the pin, and it does not read by this slot's index.
    pub fn pin_oldest(&self, slot: SlotId) -> Oldest {
        let s = &self.slots[slot as usize];
        let tag = s.pin_count.fetch_add(1, Ordering::Relaxed).wrapping_add(1) as u64 & PIN_TAG;
        // First keep everything. Reclaimers that look at the pins from now on free nothing. A
        // reclaimer that looked before has found no larger oldest pin than this call will find,
        // because the oldest pin never goes back (INV-HONEST).
        let own = s.pin.swap(tag, Ordering::SeqCst);
        self.pin_words(slot).make_full();
        self.shared.adoptions.fetch_add(1, Ordering::SeqCst);
        // A process that pins after this call has looked at its slot has a larger CSN.
        let (now, done) = self.done_upto();
        let none = own == UNPINNED;
        let mut oldest = if none { now } else { own >> PIN_SHIFT };
        let mut floor = if none { done } else { s.floor.load(Ordering::SeqCst).min(done) };
        s.pin.store(oldest << PIN_SHIFT | LOWERING | tag, Ordering::SeqCst);
        for (_, other) in self.slots.iter().enumerate().filter(|(i, _)| *i != slot as usize) {
            let pin = settled(&other.pin, u32::MAX);
            if pin != UNPINNED {
                oldest = oldest.min(pin >> PIN_SHIFT);
                floor = floor.min(other.floor.load(Ordering::SeqCst));
            }
        }
        s.floor.store(floor, Ordering::SeqCst);
        s.pin.store(oldest.min(now) << PIN_SHIFT | tag, Ordering::SeqCst);
        Oldest { pin: oldest.min(now), floor }
    }

    /// Ends the pin of a slot whose process no longer holds pointers into versions, unless it holds
    /// on to the pin (`hold`).
    pub fn unpin(&self, slot: SlotId) {
        let s = &self.slots[slot as usize];
        if s.holds.load(Ordering::SeqCst) == 0 {
            s.pin.store(UNPINNED, Ordering::SeqCst);
        }
    }

    /// Pins the slot and keeps the pin until `let_go`, also when its process has no snapshot.
    pub(crate) fn hold(&self, slot: SlotId) {
        let late = faults::on(Fault::HoldsLate);
        if late {
            self.pin(slot);
        } else {
            self.slots[slot as usize].holds.store(1, Ordering::SeqCst);
        }
        faults::reached(Moment::Holding);
        if late {
            self.slots[slot as usize].holds.store(1, Ordering::SeqCst);
        } else {
            self.pin(slot);
        }
    }
    /// Ends the hold that `hold` began, but not the pin.
    pub(crate) fn let_go(&self, slot: SlotId) {
        self.slots[slot as usize].holds.store(0, Ordering::SeqCst);
    }

    /// Does the slot have a pin?
    pub fn is_pinned(&self, slot: SlotId) -> bool {
        self.slots[slot as usize].pin.load(Ordering::Relaxed) != UNPINNED
    }

    /// The CSN of the slot's pin: memory retired at this CSN or later stays. Only the owner calls
    /// it.
    pub(crate) fn pinned_at(&self, slot: SlotId) -> Csn {
        self.slots[slot as usize].pin.load(Ordering::SeqCst) >> PIN_SHIFT
    }

    /// All commits up to here are done: the floor of the slot's pin, or of the one before
    /// (INV-FLOOR). Only the owner calls it.
    #[inline]
    pub(crate) fn floor_of(&self, slot: SlotId) -> Csn {
        self.slots[slot as usize].floor.load(Ordering::Relaxed)
    }

    /// Recomputes the CSN below which no transaction reads: memory retired before it can be freed.
    /// Ends the pins of processes that have no snapshot.
    pub fn refresh_min_pin(&self, p: &dyn Platform) -> Csn {
        self.min_pin_of(|slot| p.quiescent(slot))
    }

    /// Recomputes the CSN up to which every snapshot sees all commits: rows that were deleted
    /// before it are dead. As [`Engine::refresh_min_pin`].
    pub fn refresh_min_floor(&self, p: &dyn Platform) -> Csn {
        self.oldest(|slot| p.quiescent(slot)).floor
    }

    /// A lower bound of what [`Engine::refresh_min_floor`] would return.
    pub fn known_min_floor(&self) -> Csn {
        self.shared.min_floor.load(Ordering::SeqCst)
    }

    pub(crate) fn min_pin_of(&self, quiescent: impl Fn(SlotId) -> bool) -> Csn {
        self.oldest(quiescent).pin
    }

    fn oldest(&self, quiescent: impl Fn(SlotId) -> bool) -> Oldest {
        loop {
            let adoptions = self.shared.adoptions.load(Ordering::SeqCst);
            let mut min = self.look_at_pins(&quiescent);
            if self.shared.adoptions.load(Ordering::SeqCst) == adoptions {
                if faults::on(Fault::DeadByPins) {
                    min.floor = min.pin;
                }
                self.shared.min_pin.0.store(min.pin, Ordering::SeqCst);
                self.shared.min_floor.store(min.floor, Ordering::SeqCst);
                return min;
            }
        }
    }

    fn look_at_pins(&self, quiescent: &impl Fn(SlotId) -> bool) -> Oldest {
        let pins = self.slots.iter().map(|s| (&s.pin, &s.floor));
        Oldest::look(self.opens(), pins, |slot, pin| {
            let s = &self.slots[slot as usize];
            // INV-PIN: no reclaimer ends a pin from *preparing* on. INV-HOLD: the pin is read
            // before `holds`.
            matches!(self.word(slot).state(), State::Idle | State::Active)
                && s.holds.load(Ordering::SeqCst) == 0
                && quiescent(slot)
                && s.pin.compare_exchange(pin, UNPINNED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        })
    }

    /// The slots that have pins, and the CSNs of these.
    pub fn pins(&self) -> impl Iterator<Item = (SlotId, Csn)> + '_ {
        let pins = self.slots.iter().enumerate().map(|(i, s)| (i as SlotId, settled(&s.pin, SHORT)));
        // A pin at 0 is just being taken.
        let known = pins.filter(|&(_, pin)| pin != UNPINNED && pin >> PIN_SHIFT != 0);
        known.map(|(slot, pin)| (slot, pin >> PIN_SHIFT))
    }

    /// The slot whose pin is the oldest, and the CSN of that pin. `None`: no slot has one.
    pub fn oldest_pin(&self) -> Option<(SlotId, Csn)> {
        self.pins().min_by_key(|&(_, csn)| csn)
    }

    /// Pieces of memory that wait in the retire queues of all slots, about.
    pub fn retired(&self) -> u64 {
        (0..self.slots.len()).map(|slot| RetireQueue::len(self, slot as SlotId)).sum()
    }
}
