//! Circular lists of registrations: the rules, for entries with and without a key.

use crate::counts;
use crate::csn::{Csn, Stamp};
use crate::faults::{self, Fault, Moment};
use crate::primitive::{relax, AtomicU64, Ordering};

/// Registrations that a ring without keys remembers.
pub const RING_SIZE: usize = if cfg!(loom) { 2 } else { 64 };
/// Tries to find the open registrations of one moment.
const SETTLE: u32 = if cfg!(loom) { 3 } else { 50 };
/// So many steps back are worth remembering where all is finished.
const LONG_WALK: u64 = 16;
/// An entry is being written.
const BUSY: u64 = 1 << 63;

/// The part that all entries have.
#[repr(C)]
pub struct EntryHead {
    /// Position + 1 of the registration that it holds, `BUSY` while it changes.
    seq: AtomicU64,
    /// The writer's tag, then its CSN or `ABORTED`.
    stamp: AtomicU64,
}

/// An entry of a list.
pub trait Entry {
    /// Its head.
    fn head(&self) -> &EntryHead;
}

impl Entry for EntryHead {
    fn head(&self) -> &EntryHead {
        self
    }
}

impl EntryHead {
    /// An empty entry, of the model checker's atomics.
    #[cfg(loom)]
    pub fn model() -> EntryHead {
        EntryHead { seq: AtomicU64::new(0), stamp: AtomicU64::new(0) }
    }
}

/// The counters of a list. All-zero is an empty one.
#[repr(C)]
pub struct ListHead {
    /// Registrations ever made.
    tail: AtomicU64,
    /// Registrations ever finished.
    finished: AtomicU64,
    /// All registrations before this position are finished (and perhaps some after it).
    done: AtomicU64,
    /// The largest CSN of a registration that is not in its entry any more.
    evicted: AtomicU64,
}

impl ListHead {
    /// An empty head, of the model checker's atomics.
    #[cfg(loom)]
    pub fn model() -> ListHead {
        let zero = || AtomicU64::new(0);
        ListHead { tail: zero(), finished: zero(), done: zero(), evicted: zero() }
    }

    /// Registrations ever made: the version of the range.
    pub fn version(&self) -> u64 {
        self.tail.load(Ordering::Relaxed)
    }

    fn note_evicted(&self, s: Stamp) {
        if s.is_commit() && s.0 > self.evicted.load(Ordering::SeqCst) {
            self.evicted.fetch_max(s.0, Ordering::SeqCst);
        }
    }
}

/// Which registrations a scan that started at one moment must look at: all later ones, and those
/// that were not finished at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The oldest that must be looked at; `u64::MAX`: not known, the predicate fails.
    low: u64,
    /// The end of the list at the start of the scan.
    tail: u64,
    /// Bit `i`: `low + i` must be looked at. All from `low + 64` on must be.
    open: u64,
}

impl Position {
    /// Looks at everything from a position on.
    pub fn from_low(low: u64) -> Position {
        Position { low, tail: low, open: 0 }
    }
    /// A predicate that fails.
    pub(super) const LOST: Position = Position { low: u64::MAX, tail: u64::MAX, open: 0 };

    /// Was everything finished when it was taken?
    pub fn is_quiet(&self) -> bool {
        self.low == self.tail && self.low != u64::MAX
    }
    /// The oldest registration that must be looked at.
    pub fn low(&self) -> u64 {
        self.low
    }
    #[inline]
    fn needs(&self, pos: u64) -> bool {
        pos >= self.tail || pos - self.low >= 64 || self.open >> (pos - self.low) & 1 != 0
    }
    /// Must a scan that started at this position look at the registration at `pos`?
    pub fn looks_at(&self, pos: u64) -> bool {
        self.low == u64::MAX || pos >= self.low && self.needs(pos)
    }
    /// A position that looks at all that either of two positions in the same list looks at.
    pub fn both(self, other: Position) -> Position {
        if self.low == u64::MAX || other.low == u64::MAX {
            return Position::LOST;
        }
        let low = self.low.min(other.low);
        // Bits that move out of the window are of registrations that are looked at anyway.
        let moved = |p: Position| u32::try_from(p.low - low).ok().and_then(|n| p.open.checked_shl(n)).unwrap_or(0);
        Position { low, tail: self.tail.min(other.tail), open: moved(self) | moved(other) }
    }
}

/// What a predicate's validation found at one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing that matters was registered.
    Valid,
    /// Entries that the predicate needs are overwritten.
    Wrapped,
    /// This stamp was registered and is not ours: the caller judges it, then asks again from the
    /// position after it.
    Look(Stamp, u64),
}

/// A circular list of the registrations of a range.
///
/// INV-RING: a writer registers after it holds its locks and before it is *preparing*; it
/// finishes its registration after its outcome is decided and before its serial advances. So a
/// validator that has its CSN and finds a position unwritten knows that this writer's CSN is
/// larger than its own.
///
/// INV-PLACE: a writer takes its position first and overwrites the entry later. Until then the entry holds
/// the registration of an earlier lap, which the list's end does not show. While the writer exchanges the
/// two, the entry is marked busy, and it stays so until `evicted` has the CSN of the old one; an old one that
/// is not finished tells its CSN to `evicted` before it counts as finished. So a stamp belongs to a
/// position only if the sequence is that of the position before and after the look at the stamp. And
/// whoever asks what the list has lost looks, in this order, whether all is finished that is in no entry
/// of the last lap, at every entry for what an earlier lap has left there, and at `evicted`.
pub struct List<'a, E> {
    head: &'a ListHead,
    /// As many as a power of two.
    entries: &'a [E],
}

impl<E> Clone for List<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for List<'_, E> {}

/// A registration that its transaction must finish.
pub struct Registered {
    head: &'static ListHead,
    stamp: &'static AtomicU64,
}

impl Registered {
    /// Ends it with the writer's CSN or `ABORTED`. Call it once.
    pub fn finish(self, tag: Stamp, outcome: Stamp) {
        finish(self.head, self.stamp, tag, outcome);
    }
}

fn finish(head: &ListHead, stamp: &AtomicU64, tag: Stamp, outcome: Stamp) {
    if stamp.compare_exchange(tag.0, outcome.0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        head.note_evicted(outcome); // lapped
    }
    head.finished.fetch_add(1, Ordering::SeqCst);
}

impl<E: Entry> List<'static, E> {
    /// What ends the registration at `pos`.
    pub fn registered(&self, pos: u64) -> Registered {
        Registered { head: self.head, stamp: &self.entry(pos).head().stamp }
    }
}

impl<'a, E: Entry> List<'a, E> {
    /// The list of these entries.
    pub fn new(head: &'a ListHead, entries: &'a [E]) -> List<'a, E> {
        debug_assert!(entries.len().is_power_of_two());
        List { head, entries }
    }
    /// Registrations that it remembers.
    pub fn size(&self) -> u64 {
        self.entries.len() as u64
    }
    /// The entry of a position.
    #[inline]
    pub fn entry(&self, pos: u64) -> &'a E {
        &self.entries[(pos & (self.size() - 1)) as usize]
    }

    /// Adds a registration; returns its position, and what `fill` returned. `fill` writes the rest of the
    /// entry; it neither waits nor fails. `None`: the list was lapped meanwhile, so whoever needs
    /// this registration sees that. Never blocks for longer than some stores of another.
    pub fn register<R>(&self, tag: Stamp, fill: impl FnOnce(&'a E) -> R) -> (u64, Option<R>) {
        counts::add(|w| w.registered += 1);
        let pos = self.head.tail.fetch_add(1, Ordering::SeqCst);
        faults::took_a_place();
        let e = self.entry(pos);
        let h = e.head();
        let mut n = 0;
        loop {
            let s = h.seq.load(Ordering::SeqCst);
            if s & BUSY != 0 {
                relax(n);
                n += 1;
                continue;
            }
            if s > pos + 1 {
                return (pos, None);
            }
            if h.seq.compare_exchange(s, s | BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                // One step with `finish` of the old one, which notes its CSN if it comes later.
                let old = Stamp(h.stamp.swap(tag.0, Ordering::SeqCst));
                let late = faults::on(Fault::NotesEvictedLate);
                if s != 0 && !late {
                    self.head.note_evicted(old);
                }
                let r = fill(e);
                h.seq.store(pos + 1, Ordering::SeqCst);
                faults::reached(Moment::EntryWritten);
                if s != 0 && late {
                    self.head.note_evicted(old);
                }
                return (pos, Some(r));
            }
        }
    }

    /// Ends a registration with the writer's CSN or `ABORTED`. Call it once for each `register`.
    pub fn finish(&self, pos: u64, tag: Stamp, outcome: Stamp) {
        finish(self.head, &self.entry(pos).head().stamp, tag, outcome);
    }

    /// The position of a scan that starts now and reads the newest committed versions.
    pub fn position(&self) -> Position {
        if faults::on(Fault::PositionIsTail) {
            return Position::from_low(self.head.tail.load(Ordering::SeqCst));
        }
        let mut n = 0;
        loop {
            let finished = self.head.finished.load(Ordering::SeqCst);
            let tail = self.head.tail.load(Ordering::SeqCst);
            if finished == tail {
                return Position::from_low(tail);
            }
            if let Some(p) = self.open_before(tail, tail - finished) {
                return p;
            }
            if n == SETTLE {
                return Position::LOST; // an open one may be older than the list
            }
            // Some finished while we counted, or the list was lapped.
            relax(n);
            n += 1;
        }
    }

    /// Where the last lap begins. An entry may still hold what was registered before that
    /// ([`List::has_lost_nothing_since`] looks there).
    pub fn oldest(&self) -> Position {
        Position::from_low(self.head.tail.load(Ordering::SeqCst).saturating_sub(self.size()))
    }
    /// The stamp of the registration at `pos`; `None`: it is in no entry any more.
    pub fn stamp_of(&self, pos: u64) -> Option<Stamp> {
        let (seq, s) = self.read(pos);
        (seq == pos + 1).then_some(s)
    }
    /// Are all registrations over that the last lap has overwritten, or is about to, without one that
    /// committed after `csn`? (INV-PLACE)
    pub fn has_lost_nothing_since(&self, csn: Csn) -> bool {
        if self.position() == Position::LOST {
            return false;
        }
        let tail = self.head.tail.load(Ordering::SeqCst);
        // What is of the last lap was looked at, or is later than that look.
        let left = |pos| Some(self.read(pos)).filter(|(seq, _)| *seq <= pos).map(|(_, stamp)| stamp);
        let mut earlier = (tail.saturating_sub(self.size())..tail).filter_map(left);
        let lost = earlier.any(|s| s.is_commit() && s.0 > csn) && !faults::on(Fault::LappedForgotten);
        !lost && (self.head.evicted.load(Ordering::SeqCst) <= csn || faults::on(Fault::EvictedForgotten))
    }

    /// The open registrations before `tail`, of which there are `open` at most; `None` if some may
    /// be in no entry any more.
    fn open_before(&self, tail: u64, open: u64) -> Option<Position> {
        let done = self.head.done.load(Ordering::SeqCst);
        let end = done.max(tail.saturating_sub(self.size()));
        let (mut low, mut found, mut mask) = (tail, 0, 0u64);
        let mut pos = tail;
        while pos > end && found < open {
            pos -= 1;
            let h = self.entry(pos).head();
            let s = h.seq.load(Ordering::SeqCst);
            if s & !BUSY > pos + 1 || s == BUSY | (pos + 1) {
                return None; // lapped, or just being so
            }
            let stamp = Stamp(h.stamp.load(Ordering::SeqCst));
            // INV-PLACE: another one's stamp would count as open, and one that is in no entry would not be missed.
            if s == pos + 1 && !self.holds(pos) && !faults::on(Fault::PlaceReadOnce) {
                return None;
            }
            if s != pos + 1 || stamp.is_tag() {
                (low, found) = (pos, found + 1);
                if tail - pos <= 64 {
                    mask |= 1 << (tail - 1 - pos);
                }
            }
        }
        if found < open && pos > done {
            return None;
        }
        if tail - pos > LONG_WALK {
            self.head.done.fetch_max(low, Ordering::SeqCst);
        }
        let open = match tail - low {
            0 => 0,
            n @ 1..=64 => mask.reverse_bits() >> (64 - n),
            _ => u64::MAX,
        };
        Some(Position { low, tail, open })
    }

    /// The position of a scan that starts now and reads the snapshot at `csn`: also what is finished with a
    /// larger CSN must be looked at.
    pub fn position_at(&self, csn: Csn) -> Position {
        let mut p = self.position();
        if p.low == u64::MAX {
            return p;
        }
        let tail = p.tail;
        for pos in (tail.saturating_sub(self.size())..tail).rev() {
            // INV-PLACE: one that is open is in `p`, one that is in no entry any more in `evicted`. The entry may still
            // have the registration of an earlier lap.
            let (seq, s) = self.read(pos);
            if seq > 0 && s.is_commit() && s.0 > csn {
                p = Position { low: p.low.min(seq - 1), tail, open: u64::MAX };
            }
        }
        if self.head.evicted.load(Ordering::SeqCst) > csn {
            return Position::LOST;
        }
        p
    }

    /// What the entry of `pos` holds: position + 1, and the stamp.
    fn read(&self, pos: u64) -> (u64, Stamp) {
        let h = self.entry(pos).head();
        let mut n = 0;
        loop {
            let seq = h.seq.load(Ordering::SeqCst);
            if seq & BUSY == 0 {
                let stamp = Stamp(h.stamp.load(Ordering::SeqCst));
                if h.seq.load(Ordering::SeqCst) == seq {
                    return (seq, stamp);
                }
            }
            relax(n);
            n += 1;
        }
    }

    /// Looks at the registrations from `from` on, of others than `me`, that are not known to be
    /// aborted or later than `csn`. Call it with a CSN taken before.
    pub fn look(&self, start: &Position, from: u64, me: Stamp, csn: Csn) -> Verdict {
        let tail = self.head.tail.load(Ordering::SeqCst);
        let (size, low) = (self.size(), start.low);
        if low == u64::MAX {
            return Verdict::Wrapped;
        }
        let reused = faults::on(Fault::EntryReused);
        let mut pos = from;
        while pos < tail {
            if tail - low > size && !reused {
                return Verdict::Wrapped;
            }
            if !start.needs(pos) {
                pos += 1;
                continue;
            }
            counts::add(|w| w.entries += 1);
            let (seq, s) = self.read(pos);
            pos += 1;
            if seq > pos && !reused {
                return Verdict::Wrapped;
            }
            let own = s == me && !faults::on(Fault::OwnCounts);
            let aborted = s == Stamp::ABORTED && !faults::on(Fault::AbortedCounts);
            let later = aborted || s.is_commit() && s.0 > csn && !faults::on(Fault::LaterCounts);
            if seq == pos && !own && !later {
                return Verdict::Look(s, pos);
            }
        }
        let end = self.head.tail.load(Ordering::SeqCst);
        if end != low && end - low > size && !reused {
            return Verdict::Wrapped;
        }
        Verdict::Valid
    }

    /// Has nothing been registered since `start`, when nothing was open?
    #[inline]
    pub fn is_unchanged(&self, start: &Position) -> bool {
        start.low == start.tail && self.head.tail.load(Ordering::SeqCst) == start.tail
    }

    /// Was everything finished at the position whose oldest registration to be looked at is `low`, and has nothing
    /// been registered since?
    pub fn is_quiet_since(&self, low: u64) -> bool {
        self.head.tail.load(Ordering::SeqCst) == low || faults::on(Fault::LooksOnce)
    }

    /// Is every registration finished?
    pub fn is_finished(&self) -> bool {
        let finished = self.head.finished.load(Ordering::SeqCst);
        finished == self.head.tail.load(Ordering::SeqCst)
    }

    /// Is the registration at `pos` still in its entry?
    pub fn holds(&self, pos: u64) -> bool {
        self.entry(pos).head().seq.load(Ordering::SeqCst) == pos + 1
    }

    /// Is the registration at `pos` still the one with this stamp (so that its owner's word, read
    /// in between, was its owner's)?
    pub fn still(&self, pos: u64, stamp: Stamp) -> bool {
        self.holds(pos) && self.entry(pos).head().stamp.load(Ordering::SeqCst) == stamp.0
    }
}

/// A list without keys: of a partition, or of writes whose key is not known.
#[repr(C)]
pub struct Ring {
    head: ListHead,
    entries: [EntryHead; RING_SIZE],
}

impl Ring {
    /// An empty ring, of the model checker's atomics.
    #[cfg(loom)]
    pub fn model() -> Ring {
        Ring { head: ListHead::model(), entries: std::array::from_fn(|_| EntryHead::model()) }
    }
    /// The list.
    #[inline]
    pub fn list(&self) -> List<'_, EntryHead> {
        List { head: &self.head, entries: &self.entries }
    }
    /// Its counters.
    pub fn head(&self) -> &ListHead {
        &self.head
    }
    /// Adds a registration.
    pub fn register(&'static self, tag: Stamp) -> Registered {
        let (pos, _) = self.list().register(tag, |_| ());
        self.list().registered(pos)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
