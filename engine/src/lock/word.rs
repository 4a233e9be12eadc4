//! The lock word.
//!
//! **INV-LOCK**: No two holders of a lock word have conflicting modes. Every change is one
//! compare-exchange of an inline word, or is made under the latch of an inflated one.

use super::head::{Heads, LockHead};
use super::{Holder, Mode, INFLATED, LATCH, MARK, MARK_SHIFT};
use crate::csn::SlotId;
use crate::faults::{self, Fault};
use crate::memory::OutOfMemory;
use crate::primitive::{relax, AtomicU64, Ordering};
use std::ptr::NonNull;

/// What an acquisition changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The transaction held this mode or a stronger one already.
    Held,
    /// Newly taken.
    New,
    /// Upgraded from this entry.
    Upgraded(Holder),
}

/// Why a lock was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// Another transaction holds it in a conflicting mode.
    With(Holder),
    /// No holder conflicts, but a waiter comes first (INV-TURN).
    Behind(First),
    /// The caller and another holder both want a stronger mode: neither wait could end.
    Upgrade,
    /// There is no memory for the list of holders.
    OutOfMemory,
}

/// A waiter that comes before newcomers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// The first waiter in the lock's queue.
    OfQueue,
    /// The holder in this slot, which waits for a stronger mode.
    Upgrader(SlotId),
}

/// How a transaction asks for a lock. Marks count only for transactions that do not hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It will wait. If it holds the lock, it is noted as waiting for a stronger mode until
    /// [`LockWord::end_upgrade`].
    Waits,
    /// It will not wait. It is not noted as waiting, so neither its wait nor that of another holder
    /// is found to be hopeless because of it.
    Now,
    /// It is the first waiter of the queue and comes first. It removes the mark when it gets the
    /// lock.
    Turn,
    /// It must pass, because the waiter in front waits for it.
    Pass,
}

impl Claim {
    fn stays_behind(self) -> bool {
        matches!(self, Claim::Waits | Claim::Now) && !faults::on(Fault::MarkIgnored)
    }
}

impl From<OutOfMemory> for Conflict {
    fn from(_: OutOfMemory) -> Self {
        Conflict::OutOfMemory
    }
}

/// A lock. 0 means free and not marked.
#[repr(transparent)]
pub struct LockWord(AtomicU64);

/// An inflated word whose latch the caller holds.
struct Latched<'a> {
    word: &'a LockWord,
    head: NonNull<LockHead>,
}

impl Latched<'_> {
    fn head(&mut self) -> &mut LockHead {
        // SAFETY: INV-HEAD: the latch is held as long as `self` exists.
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

    /// Takes the latch of an inflated word, waiting for it if necessary. Returns the word as the
    /// error if it is inline.
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
                        // SAFETY: INV-HEAD: an inflated word points to a head, so not to null.
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

    /// Changes the word from `old` to `new`. If it is another word by now, returns that as the
    /// error.
    #[inline]
    fn cas(&self, old: u64, new: u64) -> Result<(), u64> {
        if faults::on(Fault::StoresLockWord) {
            self.0.store(new, Ordering::SeqCst);
            return Ok(());
        }
        self.0.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).map(|_| ())
    }

    /// Takes the lock for `me` if it is neither held nor marked.
    #[inline]
    pub fn take_free(&self, me: Holder) -> bool {
        self.is_free() && self.cas(0, me.encode()).is_ok()
    }

    /// Takes the lock for `me` unless that conflicts. Never waits for other transactions.
    #[inline]
    pub fn try_acquire(&self, heads: &impl Heads, me: Holder, claim: Claim) -> Result<Acquired, Conflict> {
        if self.take_free(me) {
            return Ok(Acquired::New);
        }
        self.acquire(heads, me, claim)
    }

    /// The same of a lock that may be held.
    fn acquire(&self, heads: &impl Heads, me: Holder, claim: Claim) -> Result<Acquired, Conflict> {
        let mut w = self.0.load(Ordering::SeqCst);
        for n in 0.. {
            let got = if w == 0 {
                self.cas(0, me.encode()).map(|()| Acquired::New)
            } else if w & INFLATED == 0 {
                self.acquire_inline(heads, w, me, claim)?
            } else {
                self.acquire_inflated(heads, w, me, claim)?
            };
            match got {
                Ok(a) => return Ok(a),
                Err(now) => w = now,
            }
            relax(n);
        }
        unreachable!("the loop has no end")
    }

    /// Makes one try on an inline word. The inner error is the word's present value.
    fn acquire_inline(
        &self,
        heads: &impl Heads,
        w: u64,
        me: Holder,
        claim: Claim,
    ) -> Result<Result<Acquired, u64>, Conflict> {
        let holder = Holder::decode(w);
        let mark = w & MARK;
        if let Some(h) = holder.filter(|h| h.slot == me.slot) {
            if h.mode.covers(me.mode) {
                return Ok(Ok(Acquired::Held));
            }
            let both = Holder { mode: h.mode.join(me.mode), ..me };
            return Ok(self.cas(w, both.encode() | mark).map(|()| Acquired::Upgraded(h)));
        }
        if let Some(h) = holder.filter(|h| h.mode.conflicts(me.mode)) {
            return Err(Conflict::With(h));
        }
        let first = Mode::from_bits(mark >> MARK_SHIFT);
        if claim.stays_behind() && first.is_some_and(|m| m.conflicts(me.mode)) {
            return Err(Conflict::Behind(First::OfQueue));
        }
        let mark = if claim == Claim::Turn { 0 } else { mark };
        let Some(h) = holder else {
            return Ok(self.cas(w, me.encode() | mark).map(|()| Acquired::New));
        };
        let mut head = LockHead::allocate(heads, me.slot, 6)?;
        // SAFETY: INV-HEAD: the head is not published before the exchange below.
        let new = unsafe { head.as_mut() };
        let full = !(new.push(h) && new.push(me));
        debug_assert!(!full);
        new.mark = (mark >> MARK_SHIFT) as u8;
        let published = self.cas(w, head.as_ptr() as u64 | INFLATED);
        if published.is_err() {
            // SAFETY: INV-HEAD: the head was never published.
            unsafe { heads.release(me.slot, head.cast()) };
        }
        Ok(published.map(|()| Acquired::New))
    }

    /// Makes one try on an inflated word. The inner error is the word's present value.
    fn acquire_inflated(
        &self,
        heads: &impl Heads,
        w: u64,
        mut me: Holder,
        claim: Claim,
    ) -> Result<Result<Acquired, u64>, Conflict> {
        let mut l = match self.latch(w) {
            Ok(l) => l,
            Err(now) => return Ok(Err(now)),
        };
        let head = l.head();
        let mine = head.find(me.slot);
        if let Some(h) = mine.and_then(|i| Holder::decode(head.holders()[i])) {
            if h.mode.covers(me.mode) {
                l.unlatch();
                return Ok(Ok(Acquired::Held));
            }
            me.mode = h.mode.join(me.mode);
        }
        let other = head
            .holders()
            .iter()
            .filter_map(|&e| Holder::decode(e))
            .find(|h| h.slot != me.slot && h.mode.conflicts(me.mode));
        if let Some(h) = other {
            let hopeless = claim != Claim::Now && mine.is_some_and(|i| head.ask_upgrade(i, me));
            l.unlatch();
            return Err(if hopeless { Conflict::Upgrade } else { Conflict::With(h) });
        }
        // From here on nothing may panic, as the latch is held.
        if let Some((i, old)) = mine.and_then(|i| Holder::decode(head.holders()[i]).map(|old| (i, old))) {
            head.holders_mut()[i] = me.encode();
            head.end_upgrade(me.slot);
            l.unlatch();
            return Ok(Ok(Acquired::Upgraded(old)));
        }
        if let Some(first) = head.first(me.mode).filter(|_| claim.stays_behind()) {
            l.unlatch();
            return Err(Conflict::Behind(first));
        }
        if head.push(me) {
            if claim == Claim::Turn {
                head.mark = 0;
            }
            l.unlatch();
            return Ok(Ok(Acquired::New));
        }
        let cap = head.cap();
        l.unlatch();
        self.grow(heads, me.slot, cap)?;
        Ok(Err(self.0.load(Ordering::SeqCst)))
    }

    /// Makes room for more than `cap` holders, unless another process has done so.
    fn grow(&self, heads: &impl Heads, slot: SlotId, cap: u32) -> Result<(), OutOfMemory> {
        let mut bigger = LockHead::allocate(heads, slot, cap * 2)?;
        let mut unused = bigger;
        if let Ok(mut l) = self.latch(self.0.load(Ordering::SeqCst)) {
            if l.head().cap() < cap * 2 {
                // SAFETY: INV-HEAD: `bigger` is not published until the word points to it.
                unsafe { bigger.as_mut().take_from(l.head()) };
                unused = l.head;
                l.unlatch_with(bigger.as_ptr() as u64 | INFLATED);
            } else {
                l.unlatch();
            }
        }
        // SAFETY: INV-HEAD: no word points to it any more, and it was unlinked under the latch.
        unsafe { heads.release(slot, unused.cast()) };
        Ok(())
    }

    /// Releases the lock that `slot` holds, or restores an earlier entry. Never fails.
    #[inline]
    pub fn release(&self, heads: &impl Heads, slot: SlotId, restore: Option<Holder>) {
        let mut w = self.0.load(Ordering::SeqCst);
        for n in 0.. {
            match if w & INFLATED == 0 { Err(w) } else { self.latch(w) } {
                Err(inline) => {
                    debug_assert!(
                        Holder::decode(inline).is_some_and(|h| h.slot == slot),
                        "released a lock that it does not hold"
                    );
                    let mark = if faults::on(Fault::ReleaseForgetsMark) { 0 } else { inline & MARK };
                    match self.cas(inline, restore.map_or(0, Holder::encode) | mark) {
                        Ok(()) => return,
                        Err(now) => w = now,
                    }
                }
                Ok(l) => return Self::release_inflated(l, heads, slot, restore),
            }
            relax(n);
        }
    }

    #[cold]
    fn release_inflated(mut l: Latched<'_>, heads: &impl Heads, slot: SlotId, restore: Option<Holder>) {
        let head = l.head();
        let i = head.find(slot);
        debug_assert!(i.is_some(), "released a lock that it does not hold");
        head.end_upgrade(slot);
        match (i, restore) {
            (Some(i), Some(h)) => head.holders_mut()[i] = h.encode(),
            (Some(i), None) => head.remove(i),
            (None, _) => {}
        }
        if head.len() > 1 {
            return l.unlatch();
        }
        let last = head.holders().first().copied().unwrap_or(0);
        let mark = (head.mark as u64) << MARK_SHIFT;
        let old = l.head;
        l.unlatch_with(last | mark);
        // SAFETY: INV-HEAD: no word points to it any more, and it was unlinked under the latch.
        unsafe { heads.release(slot, old.cast()) };
    }

    /// Notes that `slot` no longer waits for a stronger mode.
    pub fn end_upgrade(&self, slot: SlotId) {
        if let Ok(mut l) = self.latch(self.0.load(Ordering::SeqCst)) {
            l.head().end_upgrade(slot);
            l.unlatch();
        }
    }

    /// Marks the word with the mode that the first waiter of the queue wants, or removes the mark
    /// (INV-TURN). The caller does not hold the lock.
    pub fn mark(&self, wants: Option<Mode>) {
        let mark = wants.map_or(0, |m| m as u64);
        let mut w = self.0.load(Ordering::SeqCst);
        for n in 0.. {
            match self.latch(w) {
                Err(inline) => match self.cas(inline, inline & !MARK | mark << MARK_SHIFT) {
                    Ok(()) => return,
                    Err(now) => w = now,
                },
                Ok(mut l) => {
                    l.head().mark = mark as u8;
                    return l.unlatch();
                }
            }
            relax(n);
        }
    }

    /// Makes newcomers stay behind `slot` until [`LockWord::end_upgrade`], if it is noted as
    /// waiting for a stronger mode.
    pub fn mark_upgrade(&self, slot: SlotId) {
        if let Ok(mut l) = self.latch(self.0.load(Ordering::SeqCst)) {
            let noted = l.head().upgrader == slot as u32 + 1;
            l.head().upgrader_first |= noted;
            l.unlatch();
        }
    }

    /// The holder entry of `slot`.
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

    /// May `slot` hold it? No if it does not, and few others hold it. A slot that asks for itself
    /// gets a lasting answer.
    #[inline]
    pub fn may_be_held_by(&self, slot: SlotId) -> bool {
        let w = self.0.load(Ordering::SeqCst);
        w & INFLATED != 0 || Holder::decode(w).is_some_and(|h| h.slot == slot)
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

    /// Is the lock neither held nor marked?
    #[inline]
    pub fn is_free(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

impl Default for LockWord {
    fn default() -> Self {
        Self::new()
    }
}
