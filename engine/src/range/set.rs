//! A division of the key space of an index into ranges, each with the list of its writers.
//!
//! **INV-SET**: The boundaries of a set ascend and never change after publication. Writers register
//! in a set as long as some pin is not larger than the clock's value at which scans ceased to use
//! it. The set is freed when every pin is larger than the clock's value at which writers ceased to
//! find it.
//!
//! **INV-ROOM**: The entries of a range's list are made by its first writer, all-zero, and
//! published before that writer takes its position. They stay as long as the set. So a process that
//! has read a number of registrations above 0 finds them. Until then the list is empty.

use super::keyed::KeyEntry;
use super::ring::{List, ListHead};
use crate::csn::SlotId;
use crate::error::Error;
use crate::lock::LockWord;
use crate::platform::Platform;
use crate::primitive::{AtomicPtr, AtomicU64, Ordering};
use crate::shared::Engine;
use std::cmp;
use std::ops::Bound;
use std::ptr::NonNull;

/// Where the entries of a list are, once there are any (INV-ROOM). All-zero: there are none yet.
#[repr(C)]
pub struct Room<E> {
    first: AtomicPtr<E>,
    /// Their number; it is stored before `first`, and all writers store the same.
    size: AtomicU64,
}

impl<E> Room<E> {
    /// An empty one made of the model checker's atomics.
    #[cfg(loom)]
    pub fn model() -> Room<E> {
        Room { first: AtomicPtr::new(std::ptr::null_mut()), size: AtomicU64::new(0) }
    }
    /// The entries. Empty: there are none yet.
    #[inline]
    pub fn entries(&self) -> &[E] {
        let first = self.first.load(Ordering::SeqCst);
        if first.is_null() {
            return &[];
        }
        let size = self.size.load(Ordering::Relaxed) as usize;
        // SAFETY: INV-ROOM: the contract of `put`.
        unsafe { std::slice::from_raw_parts(first, size) }
    }
    /// Puts entries here, unless another writer has done so.
    ///
    /// # Safety
    /// There are `size` valid entries, which live as long as the room. All callers name that size.
    pub unsafe fn put(&self, entries: *mut E, size: u64) -> bool {
        self.size.store(size, Ordering::Relaxed);
        self.first.compare_exchange(std::ptr::null_mut(), entries, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// Compares two keys of an index, as bytes if `order` is 0. Any other order may unwind.
#[inline]
pub fn compare(p: &dyn Platform, order: u32, a: &[u8], b: &[u8]) -> cmp::Ordering {
    if order == 0 {
        a.cmp(b)
    } else {
        p.compare_keys(order, a, b)
    }
}

/// The first bytes of a key. If the prefixes of two keys differ, they order the keys as bytes.
fn prefix(key: &[u8]) -> u64 {
    match key.first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => key.iter().rev().fold(0, |p, b| p >> 8 | (*b as u64) << 56),
    }
}

/// One range.
#[repr(C)]
pub struct Range {
    list: ListHead,
    entries: Room<KeyEntry>,
    _pad: [u64; 2],
    /// Under `2pl`, scans that cover the range hold [`crate::lock::Mode::Share`] or `KeyShare`, and
    /// writers hold `Intent`, or `Change` for an update in place.
    pub lock: LockWord,
    /// The number of scans that have read in it.
    pub scans: AtomicU64,
    /// The number of transactions aborted because of a write in it.
    pub aborts: AtomicU64,
    /// The number of transactions aborted because its list wrapped.
    pub wraps: AtomicU64,
    /// The number of its parts that scans under `2pl` publish at the moment.
    pub parts: AtomicU64,
    _pad2: [u64; 3],
}
#[cfg(not(loom))]
const _: () = assert!(std::mem::size_of::<Range>() == 128);

impl Range {
    /// The number of registrations ever made, which is the range's version.
    pub fn version(&self) -> u64 {
        self.list.version()
    }
}

/// The least and largest number of registrations that a range remembers.
pub const LIST_SIZES: std::ops::RangeInclusive<u32> = 8..=65536;

/// A division into `n` ranges. Range `i` holds the keys from boundary `i - 1` (inclusive) to
/// boundary `i` (exclusive). The first and last range are open towards the outside.
#[repr(C)]
pub struct RangeSet {
    n: u32,
    list_size: u32,
    bytes: u64,
    pub(super) next_dead: AtomicPtr<RangeSet>,
    pub(super) dead_at: AtomicU64,
    /// The number of lists that have entries.
    rooms: AtomicU64,
    _pad: [u64; 3],
    // In memory follow: n ranges; n prefixes of boundaries; n offsets (u32) of the boundaries'
    // ends, the first for the beginning; and the boundaries' bytes.
}
#[cfg(not(loom))]
const _: () = assert!(std::mem::size_of::<RangeSet>() == 64);

impl RangeSet {
    /// The size in bytes of a set of `n` ranges whose boundaries have `blob` bytes together,
    /// without the entries of lists.
    pub fn size(n: u32, blob: usize) -> usize {
        let n = n as usize;
        std::mem::size_of::<RangeSet>() + n * std::mem::size_of::<Range>() + n * (8 + 4) + blob
    }
    /// The size in bytes of the entries of a list.
    pub fn size_of_list(list_size: u32) -> usize {
        list_size as usize * std::mem::size_of::<KeyEntry>()
    }

    /// Makes a set. Leaves out boundaries that do not ascend. Comparisons may unwind.
    pub(crate) fn create(
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        order: u32,
        boundaries: &[&[u8]],
        list_size: u32,
    ) -> Result<&'static RangeSet, Error> {
        let mut kept: Vec<&[u8]> = Vec::with_capacity(boundaries.len());
        for &b in boundaries {
            if kept.last().is_none_or(|last| compare(p, order, last, b).is_lt()) {
                kept.push(b);
            }
        }
        let list_size = list_size.clamp(*LIST_SIZES.start(), *LIST_SIZES.end()).next_power_of_two();
        let (n, blob) = (kept.len() as u32 + 1, kept.iter().map(|b| b.len()).sum::<usize>());
        let bytes = RangeSet::size(n, blob);
        if u32::try_from(blob).is_err() {
            return Err(Error::OutOfMemory);
        }
        let mem = e.region.alloc(slot as usize, bytes)?;
        // SAFETY: INV-M1: fresh memory of that size. INV-SET: all-zero ranges are valid, and the
        // rest is written here before the set is published.
        unsafe {
            mem.as_ptr().write_bytes(0, bytes);
            let set = mem.cast::<RangeSet>().as_ptr();
            ((*set).n, (*set).list_size, (*set).bytes) = (n, list_size, bytes as u64);
            let offsets = (*set).offsets().cast_mut();
            let first = offsets.wrapping_add(n as usize).cast::<u8>();
            let mut at = 0;
            for (i, b) in kept.iter().enumerate() {
                first.add(at).copy_from_nonoverlapping(b.as_ptr(), b.len());
                at += b.len();
                offsets.add(i + 1).write(at as u32);
                (*set).prefixes().cast_mut().add(i).write(prefix(b));
            }
            Ok(&*set)
        }
    }

    /// The number of ranges, at least 1.
    pub fn len(&self) -> u32 {
        self.n
    }
    /// Always false, as a set has at least one range.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }
    /// The number of registrations that each range remembers.
    pub fn list_size(&self) -> u32 {
        self.list_size
    }
    /// The set's size in the region, in bytes: with the entries of those lists that have some, and
    /// without long keys.
    pub fn bytes(&self) -> u64 {
        let rooms = self.rooms.load(Ordering::Relaxed);
        self.bytes + rooms * RangeSet::size_of_list(self.list_size) as u64
    }

    fn ranges(&self) -> *const Range {
        (self as *const RangeSet).wrapping_add(1).cast()
    }
    fn prefixes(&self) -> *const u64 {
        self.ranges().wrapping_add(self.n as usize).cast()
    }
    fn offsets(&self) -> *const u32 {
        self.prefixes().wrapping_add(self.n as usize).cast()
    }

    /// Range `i`.
    pub fn range(&self, i: u32) -> &Range {
        assert!(i < self.n);
        // SAFETY: INV-SET: `n` ranges follow the header.
        unsafe { &*self.ranges().add(i as usize) }
    }
    /// The list of range `i`.
    pub fn list(&self, i: u32) -> List<'_, KeyEntry> {
        let range = self.range(i);
        List::in_room(&range.list, &range.entries, self.list_size as u64)
    }

    /// Gives the list of range `i` its entries, unless it has them (INV-ROOM). A writer calls this
    /// before it registers there. False: there is no memory for them.
    #[inline]
    pub fn give_entries(&self, e: &Engine, slot: SlotId, i: u32) -> bool {
        self.has_entries(i) || self.make_entries(e, slot, i)
    }

    /// Has the list of range `i` its entries?
    #[inline]
    pub fn has_entries(&self, i: u32) -> bool {
        !self.range(i).entries.entries().is_empty()
    }

    #[cold]
    fn make_entries(&self, e: &Engine, slot: SlotId, i: u32) -> bool {
        #[cfg(all(test, not(loom)))]
        TRIES.set(TRIES.get() + 1);
        let bytes = RangeSet::size_of_list(self.list_size);
        let Ok(mem) = e.region.alloc(slot as usize, bytes) else { return false };
        // SAFETY: INV-M1: fresh memory of that size. INV-ROOM: all-zero entries are valid, and they
        // stay as long as the set.
        let first = unsafe {
            mem.as_ptr().write_bytes(0, bytes);
            self.range(i).entries.put(mem.as_ptr().cast(), self.list_size as u64)
        };
        if first {
            self.rooms.fetch_add(1, Ordering::Relaxed);
        } else {
            // SAFETY: INV-M1: another writer was first, so no other process has seen this memory.
            unsafe { e.region.free(slot as usize, mem) };
        }
        true
    }
    /// Boundary `i`, between ranges `i` and `i + 1`.
    pub fn boundary(&self, i: u32) -> &[u8] {
        assert!(i + 1 < self.n);
        let at = self.offsets();
        // SAFETY: INV-SET: `n` offsets and the boundaries follow the prefixes.
        unsafe {
            let (from, to) = (*at.add(i as usize) as usize, *at.add(i as usize + 1) as usize);
            let first = at.add(self.n as usize).cast::<u8>();
            std::slice::from_raw_parts(first.add(from), to - from)
        }
    }

    /// The number of the range that holds a key. Comparisons may unwind.
    pub fn locate(&self, p: &dyn Platform, order: u32, key: &[u8]) -> u32 {
        let (mut low, mut high) = (0, self.n - 1);
        // SAFETY: INV-SET: `n` prefixes follow the ranges.
        let prefixes = unsafe { std::slice::from_raw_parts(self.prefixes(), self.n as usize) };
        let first = prefix(key);
        // Keys often ascend, so the last range is tried first.
        if order == 0 && high > 0 && prefixes[high as usize - 1] < first {
            return high;
        }
        while low < high {
            let mid = (low + high) / 2;
            let is_at_or_below = match prefixes[mid as usize].cmp(&first) {
                _ if order != 0 => compare(p, order, self.boundary(mid), key).is_le(),
                cmp::Ordering::Equal => self.boundary(mid) <= key,
                c => c.is_lt(),
            };
            if is_at_or_below {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        low
    }

    /// The first range that a scan from `lo` on reads, and whether it reads that range from its
    /// start.
    pub(crate) fn first_of(&self, p: &dyn Platform, order: u32, lo: Bound<&[u8]>) -> (u32, bool) {
        match lo {
            Bound::Unbounded => (0, true),
            Bound::Included(k) => {
                let i = self.locate(p, order, k);
                let whole = match i {
                    0 => order == 0 && k.is_empty(),
                    _ => compare(p, order, self.boundary(i - 1), k).is_eq(),
                };
                (i, whole)
            }
            Bound::Excluded(k) => (self.locate(p, order, k), false),
        }
    }

    /// The last range that a scan up to `hi` reads, and whether it reads that range to its end.
    pub(crate) fn last_of(&self, p: &dyn Platform, order: u32, hi: Bound<&[u8]>) -> (u32, bool) {
        match hi {
            Bound::Unbounded => (self.n - 1, true),
            Bound::Included(k) => (self.locate(p, order, k), false),
            Bound::Excluded(k) => {
                let i = self.locate(p, order, k);
                if i > 0 && compare(p, order, self.boundary(i - 1), k).is_eq() {
                    (i - 1, true)
                } else {
                    (i, false)
                }
            }
        }
    }

    /// Frees the set, its lists, and the long keys in them.
    ///
    /// # Safety
    /// No other process can reach the set (INV-SET).
    pub(super) unsafe fn destroy(&self, e: &Engine, slot: SlotId) {
        for i in 0..self.n {
            let entries = self.range(i).entries.entries();
            for b in entries.iter().filter_map(|entry| NonNull::new(entry.block())) {
                // SAFETY: INV-KEY: the block is reachable from this entry only.
                unsafe { e.region.free(slot as usize, b) };
            }
            if let Some(first) = entries.first() {
                // SAFETY: INV-SET: by this function's contract the list is ours alone. INV-M1: the
                // region gets it back once.
                unsafe { e.region.free(slot as usize, NonNull::from(first).cast()) };
            }
        }
        // SAFETY: INV-SET: by this function's contract the set is ours alone. INV-M1: the region
        // gets it back once.
        unsafe { e.region.free(slot as usize, NonNull::from(self).cast()) };
    }

    /// Versions, scans, aborts and wraps, summed over all ranges.
    pub fn totals(&self) -> [u64; 4] {
        let mut sum = [0; 4];
        for i in 0..self.n {
            let r = self.range(i);
            let of = |c: &AtomicU64| c.load(Ordering::Relaxed);
            for (s, n) in sum.iter_mut().zip([r.version(), of(&r.scans), of(&r.aborts), of(&r.wraps)]) {
                *s += n;
            }
        }
        sum
    }
}

#[cfg(all(test, not(loom)))]
thread_local! {
    /// How often this thread has asked for the memory of a list's entries.
    pub(crate) static TRIES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::csn::Stamp;
    use crate::range::{Effect, Subject, Verdict};
    use crate::threads::{Block, Threads};

    #[test]
    fn every_key_is_in_the_range_between_its_boundaries() {
        let b = Block::new(16 << 20, 2).expect("a block");
        let p = Threads::new(b.engine, 0, Default::default());
        let mut cuts: Vec<&[u8]> = vec![b"", b"a", b"a\0", b"abcdefgh", b"abcdefgh\0", b"abcdefgi", b"abcdefgia", b"b"];
        cuts.extend([&[0xff; 8][..], &[0xff; 9], &[0xff; 300]]);
        let more: [&[u8]; 7] = [b"\0", b"a\0\0", b"abcdefg", b"abcdefgha", b"c", &[0xff; 7], &[0xff; 10]];
        for skip in 0..cuts.len() {
            let chosen: Vec<&[u8]> =
                cuts.iter().enumerate().filter(|(i, _)| i % (skip + 1) == 0).map(|c| *c.1).collect();
            // Boundaries that do not ascend are left out.
            let mut given = chosen.clone();
            given.insert(chosen.len() / 2 + 1, b"");
            let set = RangeSet::create(&b.engine, 0, &p, 0, &given, 9).expect("room");
            assert_eq!((set.len() as usize, set.list_size()), (chosen.len() + 1, 16));
            for (i, c) in chosen.iter().enumerate() {
                assert_eq!(set.boundary(i as u32), *c);
            }
            for key in cuts.iter().chain(&more) {
                let want = chosen.iter().filter(|c| *c <= key).count() as u32;
                assert_eq!(set.locate(&p, 0, key), want, "{key:?} in {chosen:?}");
            }
            // SAFETY: INV-SET: the set was never published.
            unsafe { set.destroy(&b.engine, 0) };
        }
    }

    #[test]
    fn a_set_has_lists_only_where_something_was_written() {
        let b = Block::new(64 << 20, 2).expect("a block");
        let (e, p) = (b.engine, Threads::new(b.engine, 0, Default::default()));
        let keys: Vec<[u8; 8]> = (1..4096u64).map(u64::to_be_bytes).collect();
        let cuts: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
        let used = || {
            e.region.flush_slot(0);
            e.region.usage().classes.iter().map(|c| c.live * c.object_bytes).sum::<usize>() + e.region.usage().run_bytes
        };
        let before = used();
        let set = RangeSet::create(&e, 0, &p, 0, &cuts, 256).expect("room");
        assert_eq!((set.len(), set.list_size()), (4096, 256));
        // docs/durability.md, "Sizes": 64, and 148 for each range with a bound of 8 bytes.
        assert_eq!(set.bytes(), 64 + 4096 * 148 - 8);
        assert!(used() - before < 700_000, "a scan that makes ranges takes little: {}", used() - before);
        assert!((0..4096).all(|no| set.list(no).position().is_quiet() && set.list(no).is_finished()));
        let (seen, start) = (set.list(7), set.list(7).position());
        let tag = Stamp::tag(0, 1);
        for twice in 0..2 {
            assert!(set.give_entries(&e, 0, 7));
            assert_eq!(set.bytes(), 64 + 4096 * 148 - 8 + 256 * 64, "once and no more: {twice}");
        }
        let (pos, _) = set.list(7).register(tag, |entry| entry.fill(Subject::Short(b"k"), Effect::New));
        // A scan that has looked before finds the first registration of the list.
        assert!(!seen.is_unchanged(&start));
        assert_eq!(seen.look(&start, 0, Stamp::tag(1, 1), 9), Verdict::Look(tag, 1));
        assert_eq!(seen.key(pos).and_then(|k| k.bytes().map(<[u8]>::to_vec)), Some(b"k".to_vec()));
        seen.finish(pos, tag, Stamp::ABORTED);
        assert!(seen.is_finished() && set.list(6).is_unchanged(&start));
        // SAFETY: INV-SET: the set was never published.
        unsafe { set.destroy(&e, 0) };
        assert_eq!(used(), before, "all is given back");
    }

    #[test]
    fn a_list_without_memory_gets_no_entries() {
        let b = Block::new(16 << 20, 2).expect("a block");
        let (e, p) = (b.engine, Threads::new(b.engine, 0, Default::default()));
        let set = RangeSet::create(&e, 0, &p, 0, &[b"k"], 65536).expect("room");
        let mut taken = Vec::new();
        while let Ok(mem) = e.region.alloc(1, 1 << 20) {
            taken.push(mem);
        }
        assert!(!set.give_entries(&e, 0, 1));
        assert!(set.list(1).position().is_quiet());
        for mem in taken {
            // SAFETY: INV-M1: allocated above, and given back once.
            unsafe { e.region.free(1, mem) };
        }
        assert!(set.give_entries(&e, 0, 1));
    }
}
