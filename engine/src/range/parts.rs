//! The parts of ranges that scans under `2pl` have read without covering the range. Writers of keys
//! in such a part wait; other writers of the range do not.
//!
//! A scan locks each range that it covers as a whole ([`super::Range::lock`]). Of the ranges at its
//! ends it publishes the *part* that it has read, and writers there wait until the scan's
//! transaction has ended. Parts only make writers wait early. Predicates are validated whether or
//! not their parts were published, so a missing part makes a conflict late, but never unnoticed.
//!
//! **INV-PARTS**: A part that a slot publishes is of a range that the slot's pin keeps. It holds at
//! least the keys that the scan has read there, and its owner takes it back before its pin and its
//! transaction end. Only the owner of the slot changes it, and makes `seq` odd before a change and
//! even after it. So what a writer reads between two looks at the same even number is one part, of
//! the transaction that had the slot in between. Parts only make writers wait: predicates are
//! validated whether or not a part was published or found.

use super::columns::Effect;
use super::set::{compare, Range};
use crate::platform::Platform;
use crate::primitive::{AtomicU32, AtomicU64, Ordering};
use std::ops::Bound::{self, Excluded, Included, Unbounded};

const WORDS: usize = if cfg!(loom) { 1 } else { 5 };
/// The longest bound that a part holds, in bytes.
const ROOM: usize = WORDS * 8;
/// The number of parts that a slot publishes at a time. Reads beyond them are only validated.
pub const PARTS: usize = 64;

/// The form in which a bound is stored, with its length in the lower bits.
const UNBOUNDED: u64 = 0;
const INCLUDED: u64 = 1 << 8;
const EXCLUDED: u64 = 2 << 8;
/// All keys with this prefix are in the part.
const PREFIX: u64 = 3 << 8;
const LENGTH: u64 = 0xff;

/// A bound of a part.
struct Edge {
    form: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// A copy of a bound.
struct EdgeCopy {
    form: u64,
    bytes: [u8; ROOM],
}

/// The bound as it is stored, or a looser one: keys that are too long are cut if their order is
/// that of bytes. `None`: it cannot be stored.
fn fit(order: u32, bound: Bound<&[u8]>, upper: bool) -> Option<(u64, &[u8])> {
    let (form, key) = match bound {
        Unbounded => return Some((UNBOUNDED, &[])),
        Included(k) => (INCLUDED, k),
        Excluded(k) => (EXCLUDED, k),
    };
    match key.len() {
        n if n <= ROOM => Some((form | n as u64, key)),
        _ if order != 0 => None,
        // The cut key is below the lower bound, and an upper bound begins with it.
        _ => Some((if upper { PREFIX } else { INCLUDED } | ROOM as u64, &key[..ROOM])),
    }
}

/// The number of words that a bound of this form uses.
fn used(form: u64) -> usize {
    ((form & LENGTH) as usize).div_ceil(8).min(WORDS)
}

impl Edge {
    /// Called within `Part::change` (INV-PARTS).
    fn store(&self, (form, key): (u64, &[u8])) {
        let mut bytes = [0; ROOM];
        bytes[..key.len()].copy_from_slice(key);
        for (w, part) in self.words.iter().zip(bytes.as_chunks().0).take(used(form)) {
            w.store(u64::from_ne_bytes(*part), Ordering::Release);
        }
        self.form.store(form, Ordering::Release);
    }
    fn load(&self) -> EdgeCopy {
        let form = self.form.load(Ordering::Acquire);
        let mut bytes = [0; ROOM];
        for (w, part) in self.words.iter().zip(bytes.as_chunks_mut().0).take(used(form)) {
            *part = w.load(Ordering::Acquire).to_ne_bytes();
        }
        EdgeCopy { form, bytes }
    }
}

impl EdgeCopy {
    fn key(&self) -> &[u8] {
        &self.bytes[..((self.form & LENGTH) as usize).min(ROOM)]
    }
    /// Is a key on the inner side of this bound?
    fn admits(&self, p: &dyn Platform, order: u32, key: &[u8], upper: bool) -> bool {
        let c = match self.form & !LENGTH {
            UNBOUNDED => return true,
            PREFIX if key.starts_with(self.key()) => return true,
            _ => compare(p, order, key, self.key()),
        };
        match (c.is_eq(), upper) {
            (true, _) => self.form & !LENGTH == INCLUDED,
            (false, true) => c.is_lt(),
            (false, false) => c.is_gt(),
        }
    }
}

/// The writes that conflict with a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Against {
    /// All.
    All = 0,
    /// Inserts, because the rows are locked.
    Inserts = 1,
    /// Inserts, deletes and moves: the scan has looked at keys.
    Keys = 2,
}

impl Against {
    fn from_word(w: u64) -> Against {
        match w {
            1 => Against::Inserts,
            2 => Against::Keys,
            _ => Against::All,
        }
    }
    fn is(self, effect: Effect) -> bool {
        match self {
            Against::All => true,
            Against::Inserts => effect == Effect::New,
            Against::Keys => !effect.is_in_place(),
        }
    }
}

/// The part of a range that a scan has read. It has no lock: a writer of a key in it waits for the
/// end of the transaction that has published it.
#[repr(C)]
pub struct Part {
    seq: AtomicU64,
    /// The address of the range, used for comparison only. 0: no part is published.
    range: AtomicU64,
    /// The writes that conflict (`Against`).
    against: AtomicU64,
    lo: Edge,
    hi: Edge,
}

/// A copy of a part, made by another transaction.
pub struct PartCopy {
    seq: u64,
    against: Against,
    lo: EdgeCopy,
    hi: EdgeCopy,
}

impl PartCopy {
    /// Does a write of this key conflict with the part? Comparisons may unwind.
    pub fn conflicts(&self, p: &dyn Platform, order: u32, key: &[u8], effect: Effect) -> bool {
        self.against.is(effect) && self.lo.admits(p, order, key, false) && self.hi.admits(p, order, key, true)
    }
}

impl Part {
    /// The part that is published here, if it is one of `range`.
    pub fn of(&self, range: &Range) -> Option<PartCopy> {
        self.read(std::ptr::from_ref(range) as u64)
    }
    fn read(&self, range: u64) -> Option<PartCopy> {
        let seq = self.seq.load(Ordering::Acquire);
        if seq & 1 != 0 || self.range.load(Ordering::Acquire) != range {
            return None;
        }
        let against = Against::from_word(self.against.load(Ordering::Acquire));
        let copy = PartCopy { seq, against, lo: self.lo.load(), hi: self.hi.load() };
        self.still(&copy).then_some(copy)
    }
    /// Is the part unchanged since it was copied?
    pub fn still(&self, copy: &PartCopy) -> bool {
        self.seq.load(Ordering::Acquire) == copy.seq
    }
    fn is_free(&self) -> bool {
        self.range.load(Ordering::Relaxed) == 0
    }
    fn put(&self, range: u64, (lo, hi): ((u64, &[u8]), (u64, &[u8])), against: Against) {
        self.change(|| {
            self.lo.store(lo);
            self.hi.store(hi);
            self.against.store(against as u64, Ordering::Release);
            self.range.store(range, Ordering::Release);
        });
    }
    fn clear(&self) {
        self.change(|| self.range.store(0, Ordering::Release));
    }
    /// Changes the part (INV-PARTS). `f` does not unwind. It stores with *release*: a reader that
    /// sees one of its stores reads an odd or later number after that.
    fn change(&self, f: impl FnOnce()) {
        let seq = self.seq.load(Ordering::Relaxed);
        self.seq.store(seq.wrapping_add(1), Ordering::Relaxed);
        f();
        self.seq.store(seq.wrapping_add(2), Ordering::Release);
    }
}

/// The parts of a slot. All-zero: none. Once made they never move. Only their owner changes them.
#[repr(C)]
pub struct Parts {
    /// The number of places in use: no part from here on is published.
    used: AtomicU32,
    all: [Part; PARTS],
}

impl Parts {
    /// The places that may have a published part.
    pub fn all(&self) -> &[Part] {
        &self.all[..(self.used.load(Ordering::Acquire) as usize).min(PARTS)]
    }

    /// Publishes a part of a range, which stays as long as the caller's pin. `None`: no room is
    /// left.
    pub fn publish(
        &self,
        range: &Range,
        order: u32,
        (lo, hi): (Bound<&[u8]>, Bound<&[u8]>),
        against: Against,
    ) -> Option<u32> {
        let bounds = (fit(order, lo, false)?, fit(order, hi, true)?);
        let used = self.used.load(Ordering::Relaxed) as usize;
        let i = if used < PARTS { used } else { self.all.iter().position(Part::is_free)? };
        self.all[i].put(std::ptr::from_ref(range) as u64, bounds, against);
        self.used.store(used.max(i + 1) as u32, Ordering::Release);
        range.parts.fetch_add(1, Ordering::SeqCst);
        Some(i as u32)
    }

    /// Makes all writes in a part conflicts from now on.
    pub fn widen(&self, i: u32) {
        let part = &self.all[i as usize];
        part.change(|| part.against.store(Against::All as u64, Ordering::Release));
    }

    /// Withdraws a part. The caller still keeps the range.
    pub fn take_back(&self, i: u32, range: &Range) {
        self.all[i as usize].clear();
        range.parts.fetch_sub(1, Ordering::SeqCst);
        let used = self.all().iter().rposition(|p| !p.is_free()).map_or(0, |i| i + 1);
        self.used.store(used as u32, Ordering::Release);
    }
}

/// For the model checker: parts of one range with one key each.
#[cfg(loom)]
impl Part {
    /// An empty part.
    pub fn model() -> Part {
        let zero = || AtomicU64::new(0);
        let edge = || Edge { form: zero(), words: std::array::from_fn(|_| zero()) };
        Part { seq: zero(), range: zero(), against: zero(), lo: edge(), hi: edge() }
    }
    /// Publishes a part that holds the key alone.
    pub fn model_put(&self, key: &[u8]) {
        let bound = (INCLUDED | key.len() as u64, key);
        self.put(1, (bound, bound), Against::All);
    }
    /// Withdraws it.
    pub fn model_clear(&self) {
        self.clear();
    }
    /// The published part and its two bounds.
    pub fn model_get(&self) -> Option<(PartCopy, Vec<u8>, Vec<u8>)> {
        let copy = self.read(1)?;
        let (lo, hi) = (copy.lo.key().to_vec(), copy.hi.key().to_vec());
        Some((copy, lo, hi))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::range::Columns;
    use crate::threads::{Block, Threads};

    #[test]
    fn an_edge_admits_what_its_bound_does_and_cut_ones_a_little_more() {
        let b = Block::new(16 << 20, 2).expect("a block");
        let p = Threads::new(b.engine, 0, Default::default());
        let long: Vec<u8> = (0..60).collect();
        let mut next = long.clone();
        next[59] += 1;
        let keys: [&[u8]; 9] = [b"", b"a", b"a\0", b"b", &long[..ROOM], &long[..41], &long, &next, &[0xff; 50]];
        let edge = Edge { form: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) };
        for upper in [false, true] {
            for bound in keys.iter().flat_map(|k| [Unbounded, Included(*k), Excluded(*k)]) {
                edge.store(fit(0, bound, upper).expect("bytes are cut"));
                let stored = edge.load();
                for key in keys {
                    let exact = match (bound, upper) {
                        (Unbounded, _) => true,
                        (Included(k), true) => key <= k,
                        (Included(k), false) => key >= k,
                        (Excluded(k), true) => key < k,
                        (Excluded(k), false) => key > k,
                    };
                    let cut =
                        matches!(bound, Included(k) | Excluded(k) if k.len() > ROOM && key.starts_with(&k[..ROOM]));
                    assert_eq!(stored.admits(&p, 0, key, upper), exact || cut, "{key:?} {bound:?} {upper}");
                }
                assert_eq!(
                    fit(1, bound, upper).is_none(),
                    matches!(bound, Included(k) | Excluded(k) if k.len() > ROOM)
                );
            }
        }
    }

    #[test]
    fn parts_take_each_others_place_and_the_last_ones_are_not_looked_at() {
        // SAFETY: INV-PARTS: all-zero memory is an empty `Parts`, and an empty `Range`.
        let (parts, ranges): (Box<Parts>, [Range; 2]) = unsafe { (Box::new(std::mem::zeroed()), std::mem::zeroed()) };
        let publish = |r: usize| parts.publish(&ranges[r], 0, (Included(b"b"), Excluded(b"d")), Against::Inserts);
        let b = Block::new(16 << 20, 2).expect("a block");
        let p = Threads::new(b.engine, 0, Default::default());
        for n in 0..PARTS as u32 {
            assert_eq!(publish(n as usize % 2), Some(n));
        }
        assert_eq!(publish(0), None, "full");
        assert!(ranges.iter().all(|r| r.parts.load(Ordering::SeqCst) == PARTS as u64 / 2));
        let meets = |i: usize, r: usize, key: &[u8], effect: Effect| {
            parts.all()[i].of(&ranges[r]).is_some_and(|c| c.conflicts(&p, 0, key, effect))
        };
        let conflicts = |i: usize, r: usize, key: &[u8], insert: bool| {
            meets(i, r, key, if insert { Effect::New } else { Effect::Gone })
        };
        assert!(conflicts(3, 1, b"c", true) && !conflicts(3, 0, b"c", true), "of its range");
        assert!(!conflicts(3, 1, b"c", false), "only inserts");
        assert!(!conflicts(3, 1, b"d", true) && !conflicts(3, 1, b"a", true), "between its bounds");
        let seen = parts.all()[3].of(&ranges[1]).expect("published");
        assert!(parts.all()[3].still(&seen));
        parts.widen(3);
        assert!(conflicts(3, 1, b"c", false) && !parts.all()[3].still(&seen));
        let change = Effect::Changes(Columns::of(1));
        assert!(meets(3, 1, b"c", change));
        parts.all()[3].change(|| parts.all()[3].against.store(Against::Keys as u64, Ordering::Release));
        assert!(conflicts(3, 1, b"c", true) && conflicts(3, 1, b"c", false) && !meets(3, 1, b"c", change));
        parts.take_back(3, &ranges[1]);
        assert!(!conflicts(3, 1, b"c", true));
        assert_eq!((parts.all().len(), publish(0)), (PARTS, Some(3)), "in its place");
        assert!(!parts.all()[3].still(&seen) && conflicts(3, 0, b"c", true));
        for n in (1..PARTS).rev() {
            parts.take_back(n as u32, &ranges[if n == 3 { 0 } else { n % 2 }]);
            assert_eq!(parts.all().len(), n);
        }
        parts.take_back(0, &ranges[0]);
        assert!(parts.all().is_empty() && ranges.iter().all(|r| r.parts.load(Ordering::SeqCst) == 0));
    }
}
