//! The circular list of registrations of a range.

use crate::csn::{Csn, Stamp};
use crate::faults::{self, Fault};
use crate::primitive::{relax, AtomicU64, Ordering};

/// Registrations that a ring remembers.
pub const RING_SIZE: usize = if cfg!(loom) { 2 } else { 64 };
const N: u64 = RING_SIZE as u64;
/// Tries to count the open registrations at one moment.
const SETTLE: u32 = 50;
/// An entry is being written.
const BUSY: u64 = 1 << 63;

#[repr(C)]
struct Entry {
    /// Position + 1 of the registration that it holds, `BUSY` while it changes.
    seq: AtomicU64,
    /// The writer's tag, then its CSN or `ABORTED`.
    stamp: AtomicU64,
}

/// The registrations of a range.
///
/// INV-RING: a writer registers after it holds its locks and before it is *preparing*; it
/// finishes its registration after its outcome is decided and before its serial advances. So a
/// validator that has its CSN and finds a position unwritten knows that this writer's CSN is
/// larger than its own.
#[repr(C)]
pub struct Ring {
    tail: AtomicU64,
    finished: AtomicU64,
    entries: [Entry; RING_SIZE],
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

impl Ring {
    /// An empty ring, of the model checker's atomics.
    #[cfg(loom)]
    pub fn model() -> Ring {
        let entry = |_| Entry { seq: AtomicU64::new(0), stamp: AtomicU64::new(0) };
        Ring { tail: AtomicU64::new(0), finished: AtomicU64::new(0), entries: std::array::from_fn(entry) }
    }

    /// Adds a registration; returns its position. Never blocks for longer than a store of another.
    pub fn register(&self, tag: Stamp) -> u64 {
        let pos = self.tail.fetch_add(1, Ordering::SeqCst);
        let e = &self.entries[(pos % N) as usize];
        let mut n = 0;
        loop {
            let s = e.seq.load(Ordering::SeqCst);
            if s & BUSY != 0 {
                relax(n);
                n += 1;
                continue;
            }
            if s > pos + 1 {
                return pos; // lapped: whoever needs this registration sees that the ring wrapped
            }
            if e.seq.compare_exchange(s, s | BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                e.stamp.store(tag.0, Ordering::SeqCst);
                e.seq.store(pos + 1, Ordering::SeqCst);
                return pos;
            }
        }
    }

    /// Ends a registration with the writer's CSN or `ABORTED`. Call it once for each `register`.
    pub fn finish(&self, pos: u64, tag: Stamp, outcome: Stamp) {
        let e = &self.entries[(pos % N) as usize];
        let _lapped = e.stamp.compare_exchange(tag.0, outcome.0, Ordering::SeqCst, Ordering::SeqCst);
        self.finished.fetch_add(1, Ordering::SeqCst);
    }

    /// The position from which a scan that starts now must look: the oldest registration that is
    /// not finished, or the end.
    pub fn position(&self) -> u64 {
        if faults::on(Fault::PositionIsTail) {
            return self.tail.load(Ordering::SeqCst);
        }
        let mut n = 0;
        loop {
            let finished = self.finished.load(Ordering::SeqCst);
            let tail = self.tail.load(Ordering::SeqCst);
            if finished == tail {
                return tail;
            }
            let (low, open) = self.open_among_last(tail);
            if tail <= N || open >= tail - finished {
                return low;
            }
            if n == SETTLE {
                return tail - N - 1; // an open one may be older than the ring: the predicate will fail
            }
            // Some finished while we counted.
            relax(n);
            n += 1;
        }
    }

    /// The oldest registration among the last `N` before `tail` that is not known to be finished,
    /// and how many such there are.
    fn open_among_last(&self, tail: u64) -> (u64, u64) {
        let (mut low, mut open) = (tail, 0);
        for pos in (tail.saturating_sub(N)..tail).rev() {
            let e = &self.entries[(pos % N) as usize];
            let written = e.seq.load(Ordering::SeqCst) == pos + 1;
            if !written || Stamp(e.stamp.load(Ordering::SeqCst)).is_tag() {
                low = pos;
                open += 1;
            }
        }
        (low, open)
    }

    /// Looks at the registrations from `from` on, of others than `me`, that are not known to be
    /// aborted or later than `csn`. Call it with a CSN taken before.
    pub fn look(&self, start: u64, from: u64, me: Stamp, csn: Csn) -> Verdict {
        let tail = self.tail.load(Ordering::SeqCst);
        let mut pos = from;
        while pos < tail {
            if tail - start > N {
                return Verdict::Wrapped;
            }
            let e = &self.entries[(pos % N) as usize];
            let stamp = loop {
                let s = e.seq.load(Ordering::SeqCst);
                if s & BUSY != 0 {
                    relax(0);
                    continue;
                }
                if s > pos + 1 {
                    return Verdict::Wrapped;
                }
                let stamp = Stamp(e.stamp.load(Ordering::SeqCst));
                if e.seq.load(Ordering::SeqCst) == s {
                    break (s == pos + 1).then_some(stamp);
                }
            };
            pos += 1;
            match stamp {
                None => {}
                Some(s) if s == me || s == Stamp::ABORTED => {}
                Some(s) if !s.is_tag() && s.0 > csn => {}
                Some(s) => return Verdict::Look(s, pos),
            }
        }
        if self.tail.load(Ordering::SeqCst) - start > N && tail != start {
            return Verdict::Wrapped;
        }
        Verdict::Valid
    }

    /// Is the registration at `pos` still the one with this stamp (so that its owner's word, read
    /// in between, was its owner's)?
    pub fn still(&self, pos: u64, stamp: Stamp) -> bool {
        let e = &self.entries[(pos % N) as usize];
        e.seq.load(Ordering::SeqCst) == pos + 1 && e.stamp.load(Ordering::SeqCst) == stamp.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Box<Ring> {
        // SAFETY: INV: all-zero is an empty ring.
        unsafe { Box::new(std::mem::zeroed()) }
    }

    #[test]
    fn own_aborted_and_later_are_ignored() {
        let r = ring();
        let me = Stamp::tag(1, 1);
        let start = r.position();
        let p = r.register(me);
        assert_eq!(r.look(start, start, me, 5), Verdict::Valid);
        let other = Stamp::tag(2, 1);
        let q = r.register(other);
        assert_eq!(r.look(start, start, me, 5), Verdict::Look(other, q + 1));
        r.finish(q, other, Stamp::csn(9));
        assert_eq!(r.look(start, start, me, 5), Verdict::Valid);
        assert_eq!(r.look(start, start, me, 9), Verdict::Look(Stamp::csn(9), q + 1));
        let a = r.register(other);
        r.finish(a, other, Stamp::ABORTED);
        assert_eq!(r.look(start, q + 1, me, 20), Verdict::Valid);
        r.finish(p, me, Stamp::csn(20));
        assert_eq!(r.position(), 3);
    }

    #[test]
    fn a_scan_starts_at_the_oldest_open_registration() {
        let r = ring();
        let slow = Stamp::tag(7, 3);
        let p = r.register(slow);
        for i in 0..3 {
            let t = Stamp::tag(8, i);
            let q = r.register(t);
            r.finish(q, t, Stamp::csn(i as u64 + 1));
        }
        assert_eq!(r.position(), p, "a registration before the scan that is open must be looked at");
        r.finish(p, slow, Stamp::csn(10));
        assert_eq!(r.position(), 4);
    }

    #[test]
    fn a_wrapped_ring_fails_the_predicate_and_never_the_writer() {
        let r = ring();
        let start = r.position();
        for i in 0..RING_SIZE as u64 + 1 {
            let t = Stamp::tag(3, (i % 100) as u16);
            let q = r.register(t);
            r.finish(q, t, Stamp::ABORTED);
        }
        assert_eq!(r.look(start, start, Stamp::tag(1, 1), 5), Verdict::Wrapped);
        assert_eq!(r.look(r.position(), r.position(), Stamp::tag(1, 1), 5), Verdict::Valid);
    }
}
