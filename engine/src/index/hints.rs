//! Guesses of the record that a short key has: a hash table beside the tree, for callers that can
//! prove a guess.
//!
//! **INV-GUESS**: A guess may be any number at all: of a record that has the key, has lost it,
//! never had it or does not exist. A reader relies on a guess only if it leads to a row that is
//! visible to the reader and has the key in its own columns. Where a key has one visible row at
//! most, this is the row. A key for which no guess leads to a row is looked for in the tree:
//! absence, and its protection, are the tree's affair alone.
//!
//! So places are plain words that are read and written without any order. A lost store, an old guess
//! that comes back when the table grows, or two inserts that take the same place cost a search of the
//! tree and no more.
//!
//! **INV-LINES**: A published table of guesses is retired when a larger one takes its place
//! (INV-RETIRE), so a pinned reader never meets freed memory. Only a process that excludes all
//! others frees one at once.

use crate::csn::SlotId;
use crate::key::Short;
use crate::primitive::{prefetch, AtomicU32, AtomicU64, Ordering};
use crate::retire::RetireQueue;
use crate::shared::Engine;
use std::ptr::{self, NonNull};

/// Places of a line: a key may be at any of its line's.
const WAYS: usize = 16;
/// One line of the processor's cache. A place is 0 (free), or the high bits a tag, the others the record's number + 1.
#[repr(C, align(64))]
struct Line([AtomicU32; WAYS]);
#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == 64);

/// Binary logarithms of the least and the largest number of lines.
const MIN_LOG: u32 = 2;
const MAX_LOG: u32 = 24;
/// Bits of a hash that neither the line nor the tag has: a tag has all bits that the line's number has not of the
/// others, so that a larger table can be made of a smaller one without the keys.
const UNUSED: u32 = 5;

/// The hash of a key.
#[derive(Clone, Copy)]
pub(super) struct Hash(u64);

impl Hash {
    /// Of a key of at most 8 bytes: its bytes as [`Short::word`] gives them, and how many they are.
    #[inline]
    pub fn of(word: u64, len: usize) -> Hash {
        // As a number: consecutive integers are consecutive here, and so spread evenly by the golden ratio.
        let n = word >> (u64::BITS as usize - 8 * len) % u64::BITS as usize;
        Hash((n ^ n >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
    #[inline]
    pub fn of_key(key: Short) -> Hash {
        Self::of(key.word(), key.len())
    }
    /// Where the search in a line begins.
    #[inline]
    fn first(self) -> usize {
        (self.0 >> 32) as usize % WAYS
    }
    /// The bits of line and tag.
    #[inline]
    fn top(self) -> u32 {
        (self.0 >> 32) as u32 >> UNUSED << UNUSED
    }
}

/// A table of lines.
#[derive(Clone, Copy)]
struct Lines {
    first: NonNull<Line>,
    log: u32,
}

impl Lines {
    /// Of the word that names it, whose low bits tell the size.
    #[inline]
    fn of(word: u64) -> Option<Lines> {
        let address = word & !(align_of::<Line>() as u64 - 1);
        let first = NonNull::new(ptr::with_exposed_provenance_mut(address as usize))?;
        Some(Lines { first, log: word as u32 % align_of::<Line>() as u32 })
    }
    fn word(self) -> u64 {
        self.first.as_ptr().expose_provenance() as u64 | self.log as u64
    }
    fn bytes(self) -> usize {
        size_of::<Line>() << self.log
    }
    fn places(self) -> u64 {
        (WAYS as u64) << self.log
    }
    /// Numbers that a place can name are below: twice as many as there are places.
    #[inline]
    fn limit(self) -> u32 {
        (1 << (UNUSED + self.log)) - 1
    }
    /// The number of the line for these bits of a hash, and the tag.
    #[inline]
    fn split(self, top: u32) -> (usize, u32) {
        let both = (top as u64) << self.log;
        ((both >> u32::BITS) as usize, both as u32)
    }
    #[inline]
    fn line(self, at: usize) -> &'static Line {
        debug_assert!(at < 1 << self.log);
        // SAFETY: INV-LINES; `split` gives numbers below that of the lines.
        unsafe { &*self.first.as_ptr().add(at) }
    }

    /// An empty table.
    fn new(e: &Engine, slot: SlotId, log: u32) -> Option<Lines> {
        let bytes = size_of::<Line>() << log;
        let p = e.region.alloc(slot as usize, bytes).ok()?;
        debug_assert!(p.cast::<Line>().is_aligned());
        // SAFETY: fresh memory of that size; all-zero is a table of free places.
        unsafe { p.as_ptr().write_bytes(0, bytes) };
        Some(Lines { first: p.cast(), log })
    }

    /// Copies all guesses into an empty table that is not smaller. What others write meanwhile may be lost.
    fn copy_to(self, larger: Lines) {
        let number = self.limit();
        for at in 0..1 << self.log {
            for (way, place) in self.line(at).0.iter().enumerate() {
                let s = place.load(Ordering::Relaxed);
                if s & number != 0 {
                    let top = ((at as u64) << u32::BITS | (s & !number) as u64) >> self.log;
                    // The places of a line come from one line, so that each has one guess at most.
                    let (to, tag) = larger.split(top as u32);
                    larger.line(to).0[way].store(tag | s & number, Ordering::Relaxed);
                }
            }
        }
    }
}

/// The guesses of an index. All zero: none yet.
#[repr(C)]
pub(super) struct Hints {
    /// A table's address, and in the low bits the logarithm of its lines; 0: none.
    lines: AtomicU64,
    /// It grows when more places are needed; the largest number while somebody makes it grow, or if it may not.
    enough_for: AtomicU64,
    /// Behind the largest number of a record with a short key that was loaded ([`Hints::note_loaded`]).
    loaded: AtomicU64,
}

impl Hints {
    /// Bytes. Looks at nothing that may be freed.
    pub fn bytes(&self) -> u64 {
        Lines::of(self.lines.load(Ordering::Relaxed)).map_or(0, |l| l.bytes() as u64)
    }

    /// The first that `proven` makes of one of the records that the key may have. The caller is pinned.
    #[inline]
    pub fn find<T>(&self, key: Short, mut proven: impl FnMut(u64) -> Option<T>) -> Option<T> {
        // Sequentially consistent: after the pin of the caller.
        let lines = Lines::of(self.lines.load(Ordering::SeqCst))?;
        let hash = Hash::of_key(key);
        let (at, tag) = lines.split(hash.top());
        let line = lines.line(at);
        for way in 0..WAYS {
            let s = line.0[(hash.first() + way) % WAYS].load(Ordering::Relaxed);
            // A free place has no number; another tag makes a number that is too large.
            let no = (s ^ tag).wrapping_sub(1);
            if no < lines.limit() {
                let found = proven(no as u64);
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// A guess of this key is about to be made: its line, which is hardly ever near, comes meanwhile. Decides nothing (INV-HINT).
    #[inline]
    pub fn announce(&self, hash: Hash) {
        if let Some(lines) = Lines::of(self.lines.load(Ordering::Relaxed)) {
            prefetch(lines.first.as_ptr().wrapping_add(lines.split(hash.top()).0));
        }
    }

    /// A key has this record. `evict`: even if another guess has to go. The caller is pinned, or excludes all others.
    #[inline]
    pub fn put(&self, hash: Hash, no: u64, evict: bool) {
        let Some(lines) = Lines::of(self.lines.load(Ordering::SeqCst)) else { return };
        if no >= lines.limit() as u64 {
            return;
        }
        let (at, tag) = lines.split(hash.top());
        let (line, new) = (lines.line(at), tag | (no as u32 + 1));
        for way in 0..WAYS {
            let place = &line.0[(hash.first() + way) % WAYS];
            let there = place.load(Ordering::Relaxed);
            if there == new {
                return;
            }
            if there == 0 {
                return place.store(new, Ordering::Relaxed);
            }
        }
        if evict {
            line.0[hash.first()].store(new, Ordering::Relaxed);
        }
    }

    /// The key does not have this record any more. The caller is pinned, or excludes all others.
    pub fn forget(&self, hash: Hash, no: u64) {
        let Some(lines) = Lines::of(self.lines.load(Ordering::SeqCst)) else { return };
        if no >= lines.limit() as u64 {
            return;
        }
        let (at, tag) = lines.split(hash.top());
        for place in &lines.line(at).0 {
            if place.load(Ordering::Relaxed) == tag | (no as u32 + 1) {
                place.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Places that so many entries need, one of a record with this number: a fifth stays free, and numbers of records that
    /// are not used now may be as many again.
    #[inline]
    pub fn need(entries: u64, no: u64) -> u64 {
        (entries + entries / 4).max(no / 2 + 1)
    }

    /// Room for so many. Without memory all stays as it is until twice as many are needed. Neither fails nor unwinds; takes
    /// nothing of the room in the queue of retired memory that is there already.
    #[inline]
    pub fn make_room(&self, e: &Engine, slot: SlotId, need: u64) {
        if need > self.enough_for.load(Ordering::Relaxed) {
            self.grow(e, slot, need);
        }
    }

    /// A record with a short key was loaded, and no guess made of it.
    pub fn note_loaded(&self, no: u64) {
        self.loaded.fetch_max(no + 1, Ordering::Relaxed);
    }

    /// Room for so many entries that were loaded, if that is at most half of the memory that is left.
    pub fn offer(&self, e: &Engine, slot: SlotId, entries: u64) {
        let Some(no) = self.loaded.load(Ordering::Relaxed).checked_sub(1) else { return };
        let need = Self::need(entries, no);
        let bytes = need.div_ceil(WAYS as u64).next_power_of_two() * size_of::<Line>() as u64;
        if bytes <= e.region.usage().free_page_bytes as u64 / 2 {
            self.make_room(e, slot, need);
        }
    }

    #[cold]
    fn grow(&self, e: &Engine, slot: SlotId, need: u64) {
        let enough = self.enough_for.load(Ordering::SeqCst);
        let mine = |to| self.enough_for.compare_exchange(enough, to, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        // (Who ends in the middle of it takes the shared memory along; else they would only grow no more.)
        if need > enough && mine(u64::MAX) {
            let enough = self.try_grow(e, slot, need).unwrap_or(need.saturating_mul(2));
            self.enough_for.store(enough, Ordering::SeqCst);
        }
    }

    fn try_grow(&self, e: &Engine, slot: SlotId, need: u64) -> Option<u64> {
        let old = Lines::of(self.lines.load(Ordering::SeqCst));
        let log = need.div_ceil(WAYS as u64).next_power_of_two().ilog2().max(MIN_LOG);
        if log > MAX_LOG {
            return Some(u64::MAX);
        }
        RetireQueue::reserve(e, slot, RetireQueue::room(e, slot) + 1).ok()?;
        let new = Lines::new(e, slot, log)?;
        if let Some(old) = old {
            old.copy_to(new);
        }
        self.lines.store(new.word(), Ordering::SeqCst);
        if let Some(old) = old {
            // INV-RETIRE: the clock is read after it became unreachable.
            RetireQueue::push_large(e, slot, old.first.cast(), e.now());
        }
        Some(new.places())
    }

    /// Frees all memory: there are none any more.
    ///
    /// # Safety
    /// Nobody else is in the middle of using them.
    pub unsafe fn free(&self, e: &Engine, slot: SlotId) {
        let old = Lines::of(self.lines.swap(0, Ordering::SeqCst));
        self.enough_for.store(0, Ordering::SeqCst);
        self.loaded.store(0, Ordering::Relaxed);
        if let Some(old) = old {
            // SAFETY: the caller's promise; it was allocated by `new`.
            unsafe { e.region.free(slot as usize, old.first.cast()) };
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "hints_tests.rs"]
mod tests;
