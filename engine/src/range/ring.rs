//! Circular lists of registrations: the rules for entries with and without a key.
//!
//! **INV-RING**: A writer registers after it has its locks and before it is *preparing*. It
//! finishes the registration after its outcome is decided and its versions are stamped, and before
//! its serial advances. So a validator that has its CSN and finds a position unwritten knows that
//! this writer's CSN is larger than its own.
//!
//! **INV-PLACE**: A writer takes its position first and overwrites the entry later; until then the
//! entry holds a registration of an earlier lap. The entry is marked busy while the writer
//! exchanges the two, until `evicted` has the CSN of the old registration. An old registration that
//! is not finished tells `evicted` its CSN before it counts as finished. So a stamp belongs to a
//! position only if the sequence is that position's before and after the stamp is read. A reader
//! that asks what the list has lost (`open_before`, `has_lost_nothing_since`, `position_at`) checks
//! in this order:
//! 1. whether all registrations are finished that the last lap has overwritten;
//! 2. each entry, for a registration of an earlier lap;
//! 3. `evicted`.

use super::set::Room;
use crate::counts;
use crate::csn::{Csn, Stamp};
use crate::faults::{self, Fault, Moment};
use crate::primitive::{relax, AtomicU64, Ordering};
use crate::shared::NextLine;

/// The number of registrations that a ring without keys remembers.
pub const RING_SIZE: usize = if cfg!(loom) { 2 } else { 64 };
/// The number of tries to find the registrations that are open at one moment.
const SETTLE: u32 = if cfg!(loom) { 3 } else { 50 };
/// After a walk over this many finished entries, the scan stores in `done` how far they reach.
const LONG_WALK: u64 = 16;
/// The entry is being written.
const BUSY: u64 = 1 << 63;

/// The part that all kinds of entries have.
#[repr(C)]
pub struct EntryHead {
    /// Position + 1 of the registration in this entry. `BUSY` is set while the entry changes.
    seq: AtomicU64,
    /// The writer's tag, then its CSN or `ABORTED`.
    stamp: AtomicU64,
}

/// An entry of a list.
pub trait Entry {
    /// The entry's head.
    fn head(&self) -> &EntryHead;
}

impl Entry for EntryHead {
    fn head(&self) -> &EntryHead {
        self
    }
}

impl EntryHead {
    /// An empty entry made of the model checker's atomics.
    #[cfg(loom)]
    pub fn model() -> EntryHead {
        EntryHead { seq: AtomicU64::new(0), stamp: AtomicU64::new(0) }
    }
}

/// The counters of a list. All-zero memory is an empty list.
#[repr(C)]
pub struct ListHead {
    /// The number of registrations ever made.
    tail: AtomicU64,
    /// The number of registrations ever finished.
    finished: AtomicU64,
    /// All registrations before this position are finished, and perhaps some after it.
    done: AtomicU64,
    /// The largest CSN of a registration that was overwritten.
    evicted: AtomicU64,
}

impl ListHead {
    /// An empty head made of the model checker's atomics.
    #[cfg(loom)]
    pub fn model() -> ListHead {
        let zero = || AtomicU64::new(0);
        ListHead { tail: zero(), finished: zero(), done: zero(), evicted: zero() }
    }

    /// The number of registrations ever made, which is the range's version. Entries below it are
    /// there (INV-ROOM).
    pub fn version(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    #[inline]
    fn words(&self) -> Words<'_> {
        Words { tail: &self.tail, finished: &self.finished, done: &self.done, evicted: &self.evicted }
    }
}

/// The counters of a list that many transactions use at a time: each of the three that a
/// registration changes has a cache line. All-zero memory is an empty list.
#[repr(C)]
pub struct SpreadHead {
    tail: AtomicU64,
    _by_ends: NextLine,
    finished: AtomicU64,
    _by_laps: NextLine,
    evicted: AtomicU64,
    done: AtomicU64,
}

/// The counters of a list, as [`ListHead`] describes them.
#[derive(Clone, Copy)]
struct Words<'a> {
    tail: &'a AtomicU64,
    finished: &'a AtomicU64,
    done: &'a AtomicU64,
    evicted: &'a AtomicU64,
}

fn note_evicted(evicted: &AtomicU64, s: Stamp) {
    if s.is_commit() && s.0 > evicted.load(Ordering::SeqCst) {
        evicted.fetch_max(s.0, Ordering::SeqCst);
    }
}

/// The registrations that a scan must check in validation: all later than its start, and those that
/// were open at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The oldest registration to check. `u64::MAX`: not known, so the predicate fails.
    low: u64,
    /// The end of the list when the scan started.
    tail: u64,
    /// Bit `i`: registration `low + i` must be checked. All from `low + 64` on must be.
    open: u64,
}

impl Position {
    /// A position that checks every registration from `low` on.
    pub fn from_low(low: u64) -> Position {
        Position { low, tail: low, open: 0 }
    }
    /// The position of a predicate that fails.
    pub(super) const LOST: Position = Position { low: u64::MAX, tail: u64::MAX, open: 0 };

    /// Were all registrations finished when the position was taken?
    pub fn is_quiet(&self) -> bool {
        self.low == self.tail && self.low != u64::MAX
    }
    /// The oldest registration to check.
    pub fn low(&self) -> u64 {
        self.low
    }
    #[inline]
    fn needs(&self, pos: u64) -> bool {
        pos >= self.tail || pos - self.low >= 64 || self.open >> (pos - self.low) & 1 != 0
    }
    /// Must a scan that started at this position check the registration at `pos`?
    pub fn looks_at(&self, pos: u64) -> bool {
        self.low == u64::MAX || pos >= self.low && self.needs(pos)
    }
    /// A position that checks every registration that either of two positions in this list checks.
    pub fn both(self, other: Position) -> Position {
        if self.low == u64::MAX || other.low == u64::MAX {
            return Position::LOST;
        }
        let low = self.low.min(other.low);
        // Bits that are shifted out belong to registrations that are checked anyway.
        let moved = |p: Position| u32::try_from(p.low - low).ok().and_then(|n| p.open.checked_shl(n)).unwrap_or(0);
        Position { low, tail: self.tail.min(other.tail), open: moved(self) | moved(other) }
    }
}

/// The result of one step of a predicate's validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No conflicting registration was found.
    Valid,
    /// Entries that the predicate needs were overwritten.
    Wrapped,
    /// Another transaction registered this stamp. The caller judges it and continues at this
    /// position.
    Look(Stamp, u64),
}

/// A circular list of the registrations of a range (INV-RING, INV-PLACE).
pub struct List<'a, E> {
    head: Words<'a>,
    /// The number of entries, which is a power of two.
    size: u64,
    /// Empty: there were none yet when this was made.
    entries: &'a [E],
    /// Where they come to be (INV-ROOM).
    room: Option<&'a Room<E>>,
}

impl<E> Clone for List<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for List<'_, E> {}

/// A registration that its transaction must finish.
pub struct Registered {
    finished: &'static AtomicU64,
    evicted: &'static AtomicU64,
    stamp: &'static AtomicU64,
}

impl Registered {
    /// Finishes it with the writer's CSN or `ABORTED`. The writer calls it once.
    pub fn finish(self, tag: Stamp, outcome: Stamp) {
        finish(self.finished, self.evicted, self.stamp, (tag, outcome));
    }
}

fn finish(finished: &AtomicU64, evicted: &AtomicU64, stamp: &AtomicU64, (tag, outcome): (Stamp, Stamp)) {
    if stamp.compare_exchange(tag.0, outcome.0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        note_evicted(evicted, outcome); // It was overwritten.
    }
    finished.fetch_add(1, Ordering::SeqCst);
}

impl<E: Entry> List<'static, E> {
    /// The handle that finishes the registration at `pos`.
    pub fn registered(&self, pos: u64) -> Registered {
        let (head, stamp) = (self.head, &self.entry(pos).head().stamp);
        Registered { finished: head.finished, evicted: head.evicted, stamp }
    }
}

impl<'a, E: Entry> List<'a, E> {
    /// The list made of these entries.
    pub fn new(head: &'a ListHead, entries: &'a [E]) -> List<'a, E> {
        debug_assert!(entries.len().is_power_of_two());
        List { head: head.words(), size: entries.len() as u64, entries, room: None }
    }
    /// The same, of a list that many use.
    #[inline]
    pub fn spread(head: &'a SpreadHead, entries: &'a [E]) -> List<'a, E> {
        debug_assert!(entries.len().is_power_of_two());
        let SpreadHead { tail, finished, done, evicted, .. } = head;
        List { head: Words { tail, finished, done, evicted }, size: entries.len() as u64, entries, room: None }
    }
    /// The list with `size` entries, which may not be there yet.
    pub fn in_room(head: &'a ListHead, room: &'a Room<E>, size: u64) -> List<'a, E> {
        debug_assert!(size.is_power_of_two());
        List { head: head.words(), size, entries: room.entries(), room: Some(room) }
    }
    /// The number of registrations ever made.
    pub fn version(&self) -> u64 {
        self.head.tail.load(Ordering::Relaxed)
    }
    /// The number of registrations that it remembers.
    pub fn size(&self) -> u64 {
        self.size
    }
    /// The entry of a position that was taken (INV-ROOM).
    #[inline]
    pub fn entry(&self, pos: u64) -> &'a E {
        let at = (pos & (self.size - 1)) as usize;
        self.entries.get(at).unwrap_or_else(|| self.late_entry(at))
    }
    #[cold]
    fn late_entry(&self, at: usize) -> &'a E {
        let room = self.room.expect("a list without a room has entries");
        &room.entries()[at]
    }

    /// Adds a registration. Returns its position and the result of `fill`, which writes the rest of
    /// the entry and neither waits nor fails. The result is `None` if the list was lapped
    /// meanwhile; a validator that needs this registration sees that. Blocks only while another
    /// writer makes a few stores.
    pub fn register<R>(&self, tag: Stamp, fill: impl FnOnce(&'a E) -> R) -> (u64, Option<R>) {
        counts::add(|w| w.registered += 1);
        let pos = self.head.tail.fetch_add(1, Ordering::SeqCst);
        faults::reached(Moment::PlaceTaken);
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
                // One atomic step with `finish` of the old registration. If that comes later, it
                // notes its own CSN.
                let old = Stamp(h.stamp.swap(tag.0, Ordering::SeqCst));
                let late = faults::on(Fault::NotesEvictedLate);
                if s != 0 && !late {
                    note_evicted(self.head.evicted, old);
                }
                let r = fill(e);
                h.seq.store(pos + 1, Ordering::SeqCst);
                faults::reached(Moment::EntryWritten);
                if s != 0 && late {
                    note_evicted(self.head.evicted, old);
                }
                return (pos, Some(r));
            }
        }
    }

    /// Finishes a registration with the writer's CSN or `ABORTED`. Called once for each `register`.
    pub fn finish(&self, pos: u64, tag: Stamp, outcome: Stamp) {
        finish(self.head.finished, self.head.evicted, &self.entry(pos).head().stamp, (tag, outcome));
    }

    /// The position of a scan that starts now and reads the newest committed versions.
    pub fn position(&self) -> Position {
        if faults::on(Fault::PositionIsTail) {
            return Position::from_low(self.head.tail.load(Ordering::SeqCst));
        }
        let mut n = 0;
        loop {
            let early = faults::on(Fault::ReadsTailFirst).then(|| self.head.tail.load(Ordering::SeqCst));
            faults::reached(Moment::Counting);
            // In this order: a registration that comes and finishes in between does not stand for
            // an open one.
            let finished = self.head.finished.load(Ordering::SeqCst);
            let tail = early.unwrap_or_else(|| self.head.tail.load(Ordering::SeqCst));
            if finished == tail {
                return Position::from_low(tail);
            }
            if let Some(p) = self.open_before(tail, tail - finished) {
                return p;
            }
            if n == SETTLE {
                return Position::LOST; // An open registration may have been overwritten.
            }
            // Some registrations finished while this scan counted, or the list was lapped.
            relax(n);
            n += 1;
        }
    }

    /// The position at which the last lap begins. Entries may still hold earlier registrations,
    /// which [`List::has_lost_nothing_since`] checks.
    pub fn oldest(&self) -> Position {
        Position::from_low(self.head.tail.load(Ordering::SeqCst).saturating_sub(self.size()))
    }
    /// The stamp of the registration at `pos`. `None`: it was overwritten.
    pub fn stamp_of(&self, pos: u64) -> Option<Stamp> {
        let (seq, s) = self.read(pos);
        (seq == pos + 1).then_some(s)
    }
    /// Are all registrations finished that the last lap has overwritten or is about to overwrite,
    /// and did none of them commit after `csn`? (INV-PLACE)
    pub fn has_lost_nothing_since(&self, csn: Csn) -> bool {
        if self.position() == Position::LOST {
            return false;
        }
        let tail = self.head.tail.load(Ordering::SeqCst);
        // Registrations of the last lap were checked, or are later than that check.
        let left = |pos| Some(self.read(pos)).filter(|(seq, _)| *seq <= pos).map(|(_, stamp)| stamp);
        let mut earlier = (tail.saturating_sub(self.size())..tail).filter_map(left);
        let lost = earlier.any(|s| s.is_commit() && s.0 > csn) && !faults::on(Fault::LappedForgotten);
        !lost && (self.head.evicted.load(Ordering::SeqCst) <= csn || faults::on(Fault::EvictedForgotten))
    }

    /// The registrations open before `tail`, at most `open` of them. `None` if some may have been
    /// overwritten.
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
                return None; // It was lapped, or is being lapped.
            }
            let stamp = Stamp(h.stamp.load(Ordering::SeqCst));
            // INV-PLACE: without the second read, the stamp of another registration would count as
            // open, and an overwritten registration would not be missed.
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

    /// The position of a scan that starts now and reads the snapshot at `csn`. It also checks
    /// finished registrations with a larger CSN.
    pub fn position_at(&self, csn: Csn) -> Position {
        let mut p = self.position();
        if p.low == u64::MAX {
            return p;
        }
        let tail = p.tail;
        for pos in (tail.saturating_sub(self.size())..tail).rev() {
            // INV-PLACE: an open registration is in `p`, and an overwritten one in `evicted`. The
            // entry may still have the registration of an earlier lap.
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

    /// Reads position + 1 and the stamp of the registration in the entry of `pos`.
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

    /// Looks for a conflict among the registrations from `from` on. Skips those of `me`, those
    /// known to be aborted, and those later than `csn`. The caller has taken `csn` before the call.
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

    /// Was no registration open at `start`, and none added since?
    #[inline]
    pub fn is_unchanged(&self, start: &Position) -> bool {
        start.low == start.tail && self.head.tail.load(Ordering::SeqCst) == start.tail
    }

    /// Was everything finished at the position whose `low` this is, and was nothing registered
    /// since?
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

    /// Does the registration at `pos` still have this stamp? Then the owner's word, if it was read
    /// in between, belonged to that owner (INV-STAMP).
    pub fn still(&self, pos: u64, stamp: Stamp) -> bool {
        self.holds(pos) && self.entry(pos).head().stamp.load(Ordering::SeqCst) == stamp.0
    }
}

/// A list without keys, for writes whose key is not known.
#[repr(C)]
pub struct Ring {
    head: ListHead,
    entries: [EntryHead; RING_SIZE],
}

impl Ring {
    /// An empty ring made of the model checker's atomics.
    #[cfg(loom)]
    pub fn model() -> Ring {
        Ring { head: ListHead::model(), entries: std::array::from_fn(|_| EntryHead::model()) }
    }
    /// The list.
    #[inline]
    pub fn list(&self) -> List<'_, EntryHead> {
        List::new(&self.head, &self.entries)
    }
    /// The list's counters.
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
