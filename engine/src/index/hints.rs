//! Hints of the record that has a short key: a hash table beside the tree, for callers that can
//! verify them.
//!
//! **INV-GUESS**: A hint may be any number at all: of a record that has the key, has lost it,
//! never had it or does not exist. A reader relies on a hint only if it leads to a row that is
//! visible to the reader and has the key in its own columns. Where a key has one visible row at
//! most, this is the row. A key for which no hint leads to a row is looked for in the tree:
//! only the tree proves and protects absence.
//!
//! So places are plain words that are read and written without any order. A lost store, an old hint
//! that comes back when the table grows, or two inserts that take the same place cost a search of
//! the tree and no more.
//!
//! **INV-LINES**: A published table of hints is retired when a larger one takes its place
//! (INV-RETIRE), so a pinned reader never meets freed memory. Only a process that excludes all
//! others frees one at once.

use crate::csn::SlotId;
use crate::key::Short;
use crate::primitive::{prefetch, AtomicU32, AtomicU64, Ordering};
use crate::retire::RetireQueue;
use crate::shared::Engine;
use std::ptr::{self, NonNull};

/// The number of places in a line. A key may be at any place of its line.
const WAYS: usize = 16;
/// One cache line. A place is 0 (free), or has a tag in its high bits and the record's number + 1
/// in the others.
#[repr(C, align(64))]
struct Line([AtomicU32; WAYS]);
#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == 64);

/// Binary logarithms of the least and the largest number of lines.
const MIN_LOG: u32 = 2;
const MAX_LOG: u32 = 24;
/// The bits of a hash that belong neither to the line nor to the tag. The tag has all other bits
/// that the line's number does not have, so a larger table can be made from a smaller one without
/// the keys.
const UNUSED: u32 = 5;

/// The hash of a key.
#[derive(Clone, Copy)]
pub(super) struct Hash(u64);

impl Hash {
    /// The hash of a key of at most 8 bytes, given as [`Short::word`] and its length.
    #[inline]
    pub fn of(word: u64, len: usize) -> Hash {
        // As a number: consecutive integers stay consecutive, and the golden ratio spreads them.
        let n = word >> (u64::BITS as usize - 8 * len) % u64::BITS as usize;
        Hash((n ^ n >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
    #[inline]
    pub fn of_key(key: Short) -> Hash {
        Self::of(key.word(), key.len())
    }
    /// The place at which the search in a line begins.
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
    /// The table for the word that names it. The word's low bits are the size.
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
    /// The limit of the numbers that a place can name: twice the number of places.
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
        // SAFETY: INV-LINES: the table is not freed. `split` returns numbers below that of the
        // lines.
        unsafe { &*self.first.as_ptr().add(at) }
    }

    /// An empty table.
    fn new(e: &Engine, slot: SlotId, log: u32) -> Option<Lines> {
        let bytes = size_of::<Line>() << log;
        let p = e.region.alloc(slot as usize, bytes).ok()?;
        debug_assert!(p.cast::<Line>().is_aligned());
        // SAFETY: INV-M1: fresh memory of that size, and all-zero memory is a table of free places.
        unsafe { p.as_ptr().write_bytes(0, bytes) };
        Some(Lines { first: p.cast(), log })
    }

    /// Copies all hints into an empty table that is not smaller. Hints that others store meanwhile
    /// may be lost.
    fn copy_to(self, larger: Lines) {
        let number = self.limit();
        for at in 0..1 << self.log {
            for (way, place) in self.line(at).0.iter().enumerate() {
                let s = place.load(Ordering::Relaxed);
                if s & number != 0 {
                    let top = ((at as u64) << u32::BITS | (s & !number) as u64) >> self.log;
                    // The places of one line come from one line, so each receives one hint at most.
                    let (to, tag) = larger.split(top as u32);
                    larger.line(to).0[way].store(tag | s & number, Ordering::Relaxed);
                }
            }
        }
    }
}

/// The hints of an index. All zero: none yet.
#[repr(C)]
pub(super) struct Hints {
    /// The table's address, with the logarithm of its number of lines in the low bits. 0: none.
    lines: AtomicU64,
    /// The table grows when more places are needed than this. It is the largest number while one
    /// process makes the table grow, or if it may not grow.
    enough_for: AtomicU64,
    /// The largest number of a loaded record with a short key, plus 1 ([`Hints::note_loaded`]).
    loaded: AtomicU64,
}

impl Hints {
    /// The size in bytes. Reads no memory that may be freed.
    pub fn bytes(&self) -> u64 {
        Lines::of(self.lines.load(Ordering::Relaxed)).map_or(0, |l| l.bytes() as u64)
    }

    /// Returns the first result of `verify` for the records in the key's hints. The caller is
    /// pinned.
    #[inline]
    pub fn find<T>(&self, key: Short, mut verify: impl FnMut(u64) -> Option<T>) -> Option<T> {
        // Sequentially consistent, to be ordered after the caller's pin.
        let lines = Lines::of(self.lines.load(Ordering::SeqCst))?;
        let hash = Hash::of_key(key);
        let (at, tag) = lines.split(hash.top());
        let line = lines.line(at);
        for way in 0..WAYS {
            let s = line.0[(hash.first() + way) % WAYS].load(Ordering::Relaxed);
            // A free place has no number, and a different tag gives a number that is too large.
            let no = (s ^ tag).wrapping_sub(1);
            if no < lines.limit() {
                let found = verify(no as u64);
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// Prefetches the line of a key whose hint is about to be stored, as it is rarely cached.
    /// Decides nothing (INV-HINT).
    #[inline]
    pub fn announce(&self, hash: Hash) {
        if let Some(lines) = Lines::of(self.lines.load(Ordering::Relaxed)) {
            prefetch(lines.first.as_ptr().wrapping_add(lines.split(hash.top()).0));
        }
    }

    /// Stores the hint that a key has this record. With `evict` it may replace another hint. The
    /// caller is pinned, or excludes all other users.
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

    /// Removes the hint that a key has this record. The caller is pinned, or excludes all other
    /// users.
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

    /// The number of places for `entries` entries, one with record number `no`. A fifth stays free,
    /// and as many record numbers again may be out of use at present.
    #[inline]
    pub fn need(entries: u64, no: u64) -> u64 {
        (entries + entries / 4).max(no / 2 + 1)
    }

    /// Makes room for `need` places. If memory is short, it stays as it is until twice as many are
    /// needed. Neither fails nor unwinds, and uses none of the room reserved in the queue of
    /// retired memory.
    #[inline]
    pub fn make_room(&self, e: &Engine, slot: SlotId, need: u64) {
        if need > self.enough_for.load(Ordering::Relaxed) {
            self.grow(e, slot, need);
        }
    }

    /// Notes that a record with a short key was loaded for which no hint was stored.
    pub fn note_loaded(&self, no: u64) {
        self.loaded.fetch_max(no + 1, Ordering::Relaxed);
    }

    /// Makes room for `entries` loaded entries, if that takes at most half of the memory that is
    /// left.
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
        // A process that dies in here takes the shared memory with it; otherwise the hints could
        // not grow any more.
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
            // INV-RETIRE: the clock is read after the table became unreachable.
            RetireQueue::push_large(e, slot, old.first.cast(), e.now());
        }
        Some(new.places())
    }

    /// Frees all memory. There are no hints afterwards.
    ///
    /// # Safety
    /// No other process is in the middle of using the hints (INV-LINES).
    pub unsafe fn free(&self, e: &Engine, slot: SlotId) {
        let old = Lines::of(self.lines.swap(0, Ordering::SeqCst));
        self.enough_for.store(0, Ordering::SeqCst);
        self.loaded.store(0, Ordering::Relaxed);
        if let Some(old) = old {
            // SAFETY: INV-LINES: `new` allocated it, and by this function's contract it is not
            // used.
            unsafe { e.region.free(slot as usize, old.first.cast()) };
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "hints_tests.rs"]
mod tests;
