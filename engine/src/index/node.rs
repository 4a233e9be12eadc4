//! Nodes: their layout, optimistic reads, and moves of words under the latch.

use super::key::{Entry, Position, Quick};
use super::word::VersionWord;
use super::{race, Index};
use crate::memory::{OutOfMemory, Region};
use crate::platform::Platform;
use crate::primitive::{prefetch, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::ptr::{self, NonNull};

/// The number of entries in a node. It is small in unit tests, so that nodes split.
pub(super) const CAPACITY: usize = if cfg!(test) { 6 } else { 76 };
const _: () = assert!(CAPACITY <= u8::MAX as usize);

/// A node: a leaf, or the first part of an inner node, which its children follow.
///
/// Entries are sorted. Entry `i` of an inner node is the lower bound of child `i`, which goes up to
/// entry `i + 1`; entry 0 counts as lower than everything. Each entry owns its blob.
#[repr(C, align(64))]
pub(super) struct Node {
    pub version: VersionWord,
    count: AtomicU32,
    /// 0: a leaf. Never changes.
    level: u32,
    prefix: [AtomicU64; CAPACITY],
    blob: [AtomicU64; CAPACITY],
    record: [AtomicU32; CAPACITY],
}

#[repr(C)]
struct Inner {
    node: Node,
    child: [AtomicPtr<Node>; CAPACITY],
}

#[cfg(not(any(loom, test)))]
const _: () = assert!(size_of::<Node>() == 1536 && size_of::<Inner>() == 2176);

/// A reference to a node of an index. Its holder has been pinned since before it read the node from
/// the tree, has just made the node, or excludes all other users (INV-RETIRE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeRef(NonNull<Node>);

/// The node has changed since the reader's version, or is latched: the reader must start again.
pub(super) struct Restart;

impl NodeRef {
    /// The size of a node of this level, in bytes.
    pub fn bytes(level: u32) -> usize {
        if level == 0 {
            size_of::<Node>()
        } else {
            size_of::<Inner>()
        }
    }

    /// An empty node.
    pub fn new(region: &Region, slot: usize, level: u32) -> Result<NodeRef, OutOfMemory> {
        let size = Self::bytes(level);
        let p = region.alloc(slot, size)?.cast::<Node>();
        // SAFETY: INV-M1, INV-M3: fresh memory of that size, 64-byte aligned because the size is a
        // multiple of 64. All-zero memory is a valid node.
        unsafe {
            p.cast::<u8>().write_bytes(0, size);
            (*p.as_ptr()).level = level;
        }
        p.as_ptr().expose_provenance();
        Ok(NodeRef(p))
    }

    pub fn from_ptr(p: *mut Node) -> Option<NodeRef> {
        NonNull::new(p).map(NodeRef)
    }
    pub fn as_ptr(self) -> *mut Node {
        self.0.as_ptr()
    }
    pub fn memory(self) -> NonNull<u8> {
        self.0.cast()
    }

    /// The node.
    #[inline]
    pub fn node(self) -> &'static Node {
        // SAFETY: INV-RETIRE: the node stays while a `NodeRef` exists. All its fields are atomic
        // except the level, which never changes.
        unsafe { &*self.0.as_ptr() }
    }

    #[inline]
    fn child_word(self, i: usize) -> &'static AtomicPtr<Node> {
        debug_assert!(self.node().level > 0 && i < CAPACITY);
        // SAFETY: INV-RETIRE: as in `node`. A node with a level above 0 is an `Inner`.
        unsafe { &(&(*self.0.as_ptr().cast::<Inner>()).child)[i] }
    }

    #[inline]
    pub fn level(self) -> u32 {
        self.node().level
    }
    /// The number of entries. While the node changes, any number up to the capacity.
    #[inline]
    pub fn count(self) -> usize {
        (self.node().count.load(Ordering::Acquire) as usize).min(CAPACITY)
    }
    /// Child `i`. The caller follows it only after it has compared the version.
    #[inline]
    pub fn child(self, i: usize) -> Option<NodeRef> {
        Self::from_ptr(self.child_word(i).load(Ordering::Acquire))
    }

    /// The words of entry `i`, read one by one. They belong together only if the version is
    /// unchanged afterwards (INV-OLC).
    #[inline]
    pub fn words(self, i: usize) -> Entry {
        let n = self.node();
        let prefix = n.prefix[i].load(Ordering::Acquire);
        race();
        Entry { prefix, blob: n.blob[i].load(Ordering::Acquire), record: n.record[i].load(Ordering::Acquire) }
    }

    /// Entry `i` as it is at `version`.
    #[inline]
    pub fn entry(self, i: usize, version: u64) -> Result<Entry, Restart> {
        let e = self.words(i);
        self.check(version)?;
        Ok(e)
    }

    /// Fails unless the node still has `version`: then all words read since belong to that version.
    #[inline]
    pub fn check(self, version: u64) -> Result<(), Restart> {
        if self.node().version.is(version) {
            Ok(())
        } else {
            Err(Restart)
        }
    }

    /// The end of the entries below the position, or with `or_at` at it. The search begins at
    /// `from`; the count includes the entries before. Takes no latch, and looks at a blob only
    /// after it has compared the version.
    #[inline]
    pub fn below(
        self,
        index: &Index,
        p: &dyn Platform,
        version: u64,
        from: usize,
        t: &Position,
        or_at: bool,
    ) -> Result<usize, Restart> {
        let (mut low, mut high) = (from, self.count().max(from));
        if let Some(leading) = t.leading(index) {
            low = self.below_leading(leading, low, high);
            // Few entries, or none, have the same first bytes. Often it is the first of them, if
            // any.
            if low == high || !self.is_below(index, p, version, t, low, or_at)? {
                return Ok(low);
            }
        }
        while low < high {
            let mid = (low + high) / 2;
            if self.is_below(index, p, version, t, mid, or_at)? {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        Ok(low)
    }

    /// Is entry `i` below the position, or with `or_at` at it?
    #[inline]
    fn is_below(
        self,
        index: &Index,
        p: &dyn Platform,
        version: u64,
        t: &Position,
        i: usize,
        or_at: bool,
    ) -> Result<bool, Restart> {
        let e = self.words(i);
        let order = match t.quick(index, &e) {
            Quick::Decided(o) => o,
            Quick::Open => {
                self.check(version)?;
                t.compare(index, p, &e)
            }
        };
        Ok(order.is_lt() || (or_at && order.is_eq()))
    }

    /// The first bytes of entry `i`'s key.
    #[inline]
    pub fn leading(self, i: usize) -> u64 {
        self.node().prefix[i].load(Ordering::Acquire)
    }

    /// The first of the entries `low..high` whose first bytes are not below these.
    #[inline]
    pub fn below_leading(self, leading: u64, mut low: usize, high: usize) -> usize {
        let prefix = &self.node().prefix[..high];
        let Some(mut left) = high.checked_sub(low).filter(|n| *n > 0) else { return low };
        while left > 1 {
            let half = left / 2;
            // SAFETY: INV-OLC (any words will do): low + left <= high holds
            // at first and after each iteration, so the index is in the slice.
            let at = unsafe { prefix.get_unchecked(low + half - 1) };
            low = if at.load(Ordering::Acquire) < leading { low + half } else { low };
            left -= half;
        }
        low + usize::from(prefix[low].load(Ordering::Acquire) < leading)
    }

    /// As `below_leading`, starting at a guessed place.
    #[inline]
    pub fn below_leading_near(self, leading: u64, low: usize, high: usize, guess: usize) -> usize {
        if low >= high {
            return low;
        }
        let prefix = &self.node().prefix;
        let below = |i: usize| prefix[i].load(Ordering::Acquire) < leading;
        let at = guess.clamp(low, high - 1);
        if below(at) {
            if at + 1 == high || !below(at + 1) {
                return at + 1;
            }
            return self.below_leading(leading, at + 2, high);
        }
        if at == low || below(at - 1) {
            return at;
        }
        self.below_leading(leading, low, at - 1)
    }

    /// Prefetches the lines of a leaf that a search reads if it finds its entry at `at`. The
    /// address was read from a parent at its version.
    #[inline]
    pub fn fetch(self, at: usize) {
        let n = self.0.as_ptr();
        let at = at.min(CAPACITY - 1);
        // SAFETY: INV-RETIRE: the addresses lie in the node, and its memory is not read.
        let (prefix, blob, record) =
            unsafe { (&raw const (*n).prefix[at], &raw const (*n).blob[at], &raw const (*n).record[at]) };
        prefetch(n);
        prefetch(prefix);
        prefetch(blob);
        prefetch(record);
    }

    // The following functions are for the holder of the latch, or for a node that is not published.

    fn set(self, i: usize, e: Entry, child: *mut Node) {
        let n = self.node();
        n.prefix[i].store(e.prefix, Ordering::Release);
        race();
        n.blob[i].store(e.blob, Ordering::Release);
        n.record[i].store(e.record, Ordering::Release);
        if n.level > 0 {
            self.child_word(i).store(child, Ordering::Release);
        }
    }

    fn child_ptr(self, i: usize) -> *mut Node {
        if self.level() == 0 {
            ptr::null_mut()
        } else {
            self.child_word(i).load(Ordering::Acquire)
        }
    }

    fn set_count(self, n: usize) {
        self.node().count.store(n as u32, Ordering::Release);
    }

    /// Removes all entries.
    pub fn empty(self) {
        self.set_count(0);
    }

    /// Inserts an entry in front of entry `at`. The node has room.
    pub fn insert_at(self, at: usize, e: Entry, child: *mut Node) {
        let n = self.count();
        debug_assert!(at <= n && n < CAPACITY);
        for i in (at..n).rev() {
            self.set(i + 1, self.words(i), self.child_ptr(i));
        }
        self.set(at, e, child);
        self.set_count(n + 1);
    }

    /// Removes entry `at`.
    pub fn remove_at(self, at: usize) -> Entry {
        let n = self.count();
        debug_assert!(at < n);
        let e = self.words(at);
        for i in at + 1..n {
            self.set(i - 1, self.words(i), self.child_ptr(i));
        }
        self.set_count(n - 1);
        e
    }

    /// Removes the entries at these places, which ascend.
    pub fn remove_all_at(self, places: &[u8]) {
        let (n, mut gone) = (self.count(), places.iter().map(|at| *at as usize).peekable());
        let Some(first) = gone.peek().copied() else { return };
        let mut to = first;
        for i in first..n {
            if gone.next_if_eq(&i).is_none() {
                self.set(to, self.words(i), self.child_ptr(i));
                to += 1;
            }
        }
        self.set_count(to);
    }

    /// Moves the entries from `mid` on to `right`, an empty node of the same level.
    pub fn split_to(self, mid: usize, right: NodeRef) {
        let n = self.count();
        for i in mid..n {
            right.set(i - mid, self.words(i), self.child_ptr(i));
        }
        right.set_count(n - mid);
        self.set_count(mid);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #[test]
    fn sizes_are_as_documented() {
        // Those of tests are smaller; see the assertion above.
        crate::sizes::assert_documented("a node of the primary index", &[1536, 2176]);
    }
}
