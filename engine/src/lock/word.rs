//! The lock word.

use super::head::LockHead;
use super::{Holder, Mode, INFLATED, LATCH};
use crate::csn::SlotId;
use crate::memory::{OutOfMemory, Region};
use crate::primitive::{relax, AtomicU64, Ordering};
use std::ptr::NonNull;

/// What an acquisition changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The mode or a stronger one was held already.
    Held,
    /// Newly taken.
    New,
    /// Upgraded from this entry.
    Upgraded(Holder),
}

/// Why a lock was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// Somebody holds it in a conflicting mode.
    With(Holder),
    /// We and another holder both want a stronger mode: waiting cannot end.
    Upgrade,
    /// No memory for the list of holders.
    OutOfMemory,
}

impl From<OutOfMemory> for Conflict {
    fn from(_: OutOfMemory) -> Self {
        Conflict::OutOfMemory
    }
}

/// A lock: 0 is free.
///
/// INV-LOCK: no two holders in conflicting modes. Every change is one compare-exchange of an
/// inline word, or made under the latch bit of an inflated one.
#[repr(transparent)]
pub struct LockWord(AtomicU64);

/// An inflated word whose latch we hold.
struct Latched<'a> {
    word: &'a LockWord,
    head: NonNull<LockHead>,
}

impl Latched<'_> {
    fn head(&mut self) -> &mut LockHead {
        // SAFETY: INV-HEAD: we hold the latch.
        unsafe { self.head.as_mut() }
    }
    /// Publishes `w` as the word, which releases the latch.
    fn unlatch_with(self, w: u64) {
        self.word.0.store(w, Ordering::SeqCst);
    }
    fn unlatch(self) {
        let w = self.head.as_ptr() as u64 | INFLATED;
        self.unlatch_with(w);
    }
}

impl LockWord {
    /// A free lock.
    pub fn new() -> Self {
        LockWord(AtomicU64::new(0))
    }

    /// Waits for the latch. The word is inflated (and then latched by us) or inline.
    fn latch(&self, mut w: u64) -> Result<Latched<'_>, u64> {
        let mut n = 0;
        loop {
            if w & INFLATED == 0 {
                return Err(w);
            }
            if w & LATCH == 0 {
                match self.0.compare_exchange_weak(w, w | LATCH, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(_) => {
                        let p = (w & !3) as *mut LockHead;
                        // SAFETY: an inflated word always points to a head.
                        return Ok(Latched { word: self, head: unsafe { NonNull::new_unchecked(p) } });
                    }
                    Err(now) => w = now,
                }
            } else {
                relax(n);
                n += 1;
                w = self.0.load(Ordering::SeqCst);
            }
        }
    }

    fn cas(&self, old: u64, new: u64) -> bool {
        self.0.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Takes the lock for `me` unless it conflicts. Never waits for other transactions. Whom a conflict keeps from a
    /// stronger mode is noted as waiting for it, until [`LockWord::end_upgrade`].
    pub fn try_acquire(&self, region: &Region, me: Holder) -> Result<Acquired, Conflict> {
        self.acquire(region, me, true)
    }

    /// The same for one that will not wait: nobody's wait is hopeless because of it, and it is never told that its own
    /// would be.
    pub fn try_acquire_now(&self, region: &Region, me: Holder) -> Result<Acquired, Conflict> {
        self.acquire(region, me, false)
    }

    fn acquire(&self, region: &Region, me: Holder, waits: bool) -> Result<Acquired, Conflict> {
        loop {
            let w = self.0.load(Ordering::SeqCst);
            if w == 0 {
                if self.cas(0, me.encode()) {
                    return Ok(Acquired::New);
                }
                continue;
            }
            let got = if w & INFLATED == 0 {
                self.acquire_inline(region, w, me)?
            } else {
                self.acquire_inflated(region, w, me, waits)?
            };
            if let Some(a) = got {
                return Ok(a);
            }
        }
    }

    /// One try on an inline word; `None`: the word changed.
    fn acquire_inline(&self, region: &Region, w: u64, me: Holder) -> Result<Option<Acquired>, Conflict> {
        let h = Holder::decode(w).expect("an inline lock word names a holder");
        if h.slot == me.slot {
            if h.mode.covers(me.mode) {
                return Ok(Some(Acquired::Held));
            }
            let both = Holder { mode: h.mode.join(me.mode), ..me };
            return Ok(self.cas(w, both.encode()).then_some(Acquired::Upgraded(h)));
        }
        if h.mode.conflicts(me.mode) {
            return Err(Conflict::With(h));
        }
        let mut head = LockHead::allocate(region, me.slot, 6)?;
        // SAFETY: the new head is ours alone until the exchange.
        let full = unsafe { !(head.as_mut().push(h) && head.as_mut().push(me)) };
        debug_assert!(!full);
        if self.cas(w, head.as_ptr() as u64 | INFLATED) {
            return Ok(Some(Acquired::New));
        }
        // SAFETY: never published.
        unsafe { region.free(me.slot as usize, head.cast()) };
        Ok(None)
    }

    /// One try on an inflated word; `None`: the word changed.
    fn acquire_inflated(
        &self,
        region: &Region,
        w: u64,
        mut me: Holder,
        waits: bool,
    ) -> Result<Option<Acquired>, Conflict> {
        let Ok(mut l) = self.latch(w) else { return Ok(None) };
        let head = l.head();
        let mine = head.find(me.slot);
        if let Some(h) = mine.and_then(|i| Holder::decode(head.holders()[i])) {
            if h.mode.covers(me.mode) {
                l.unlatch();
                return Ok(Some(Acquired::Held));
            }
            me.mode = h.mode.join(me.mode);
        }
        let other = head
            .holders()
            .iter()
            .filter_map(|&e| Holder::decode(e))
            .find(|h| h.slot != me.slot && h.mode.conflicts(me.mode));
        if let Some(h) = other {
            let hopeless = waits && mine.is_some_and(|i| head.ask_upgrade(i, me));
            l.unlatch();
            return Err(if hopeless { Conflict::Upgrade } else { Conflict::With(h) });
        }
        // Nothing may panic here: the latch is held.
        if let Some((i, old)) = mine.and_then(|i| Holder::decode(head.holders()[i]).map(|old| (i, old))) {
            head.holders_mut()[i] = me.encode();
            if head.upgrader == me.slot as u32 + 1 {
                head.upgrader = 0;
            }
            l.unlatch();
            return Ok(Some(Acquired::Upgraded(old)));
        }
        if head.push(me) {
            l.unlatch();
            return Ok(Some(Acquired::New));
        }
        let cap = head.cap();
        l.unlatch();
        self.grow(region, me.slot, cap)?;
        Ok(None)
    }

    /// Makes room for more holders than `cap`, unless somebody did.
    fn grow(&self, region: &Region, slot: SlotId, cap: u32) -> Result<(), OutOfMemory> {
        let mut bigger = LockHead::allocate(region, slot, cap * 2)?;
        let mut unused = bigger;
        if let Ok(mut l) = self.latch(self.0.load(Ordering::SeqCst)) {
            if l.head().cap() < cap * 2 {
                // SAFETY: `bigger` is ours alone until the word names it.
                unsafe { bigger.as_mut().take_from(l.head()) };
                unused = l.head;
                l.unlatch_with(bigger.as_ptr() as u64 | INFLATED);
            } else {
                l.unlatch();
            }
        }
        // SAFETY: INV-HEAD: no word points to it any more.
        unsafe { region.free(slot as usize, unused.cast()) };
        Ok(())
    }

    /// Releases what `slot` holds, or takes it back to an earlier entry. Never fails.
    pub fn release(&self, region: &Region, slot: SlotId, restore: Option<Holder>) {
        let mut w = self.0.load(Ordering::SeqCst);
        loop {
            match self.latch(w) {
                Err(inline) => {
                    debug_assert!(Holder::decode(inline).is_some_and(|h| h.slot == slot), "released what is not held");
                    if self.cas(inline, restore.map_or(0, Holder::encode)) {
                        return;
                    }
                    w = self.0.load(Ordering::SeqCst);
                }
                Ok(l) => return Self::release_inflated(l, region, slot, restore),
            }
        }
    }

    fn release_inflated(mut l: Latched<'_>, region: &Region, slot: SlotId, restore: Option<Holder>) {
        let head = l.head();
        let i = head.find(slot);
        debug_assert!(i.is_some(), "released what is not held");
        if head.upgrader == slot as u32 + 1 {
            head.upgrader = 0;
        }
        match (i, restore) {
            (Some(i), Some(h)) => head.holders_mut()[i] = h.encode(),
            (Some(i), None) => head.remove(i),
            (None, _) => {}
        }
        if head.len() > 1 {
            return l.unlatch();
        }
        let last = head.holders().first().copied().unwrap_or(0);
        let old = l.head;
        l.unlatch_with(last);
        // SAFETY: INV-HEAD: no word points to it any more.
        unsafe { region.free(slot as usize, old.cast()) };
    }

    /// Forgets that `slot` waits for a stronger mode.
    pub fn end_upgrade(&self, slot: SlotId) {
        if let Ok(mut l) = self.latch(self.0.load(Ordering::SeqCst)) {
            if l.head().upgrader == slot as u32 + 1 {
                l.head().upgrader = 0;
            }
            l.unlatch();
        }
    }

    /// What `slot` holds.
    pub fn held_by(&self, slot: SlotId) -> Option<Holder> {
        match self.latch(self.0.load(Ordering::SeqCst)) {
            Err(w) => Holder::decode(w).filter(|h| h.slot == slot),
            Ok(mut l) => {
                let head = l.head();
                let h = head.find(slot).and_then(|i| Holder::decode(head.holders()[i]));
                l.unlatch();
                h
            }
        }
    }

    /// A holder other than `slot` whose mode conflicts with `mode`.
    pub fn conflicting(&self, slot: SlotId, mode: Mode) -> Option<Holder> {
        let clash = |h: &Holder| h.slot != slot && h.mode.conflicts(mode);
        match self.latch(self.0.load(Ordering::SeqCst)) {
            Err(w) => Holder::decode(w).filter(clash),
            Ok(mut l) => {
                let h = l.head().holders().iter().filter_map(|&e| Holder::decode(e)).find(clash);
                l.unlatch();
                h
            }
        }
    }

    /// Is nobody holding it?
    pub fn is_free(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

impl Default for LockWord {
    fn default() -> Self {
        Self::new()
    }
}
