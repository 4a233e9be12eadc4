//! The ordered index: a B+tree in the shared region with optimistic latch coupling.
//!
//! Readers take no latch; writers find their place as readers do and latch, without waiting, the
//! few nodes that they change. The reasons are in `README.md`; the invariants are INV-OLC
//! (`word.rs`), INV-BLOB (`key.rs`), INV-COVER (`descend.rs`), INV-UNIQUE (`unique.rs`), INV-GUESS,
//! INV-LINES (`hints.rs`), INV-DEAD (`dead_entries.rs`) and INV-HINT (`prefetch.rs`).

mod cursor;
mod dead_entries;
#[cfg(all(test, not(loom)))]
mod dead_entries_tests;
mod descend;
mod fill;
mod hints;
mod insert;
mod key;
mod node;
mod point;
#[cfg(all(test, not(loom)))]
mod point_tests;
mod prefetch;
mod primary;
#[cfg(all(test, not(loom)))]
mod primary_tests;
mod records;
mod remove;
mod sample;
#[cfg(all(test, not(loom)))]
mod several_tests;
#[cfg(all(test, not(loom)))]
mod tests;
mod unique;
mod word;

pub use cursor::{Cursor, Mark};
pub(crate) use dead_entries::{DeadChain, DeadEntries};
pub use descend::Direction;
pub use fill::Filler;
pub(crate) use insert::Inserted;
pub use key::Key;
pub use point::FEW;
pub(crate) use prefetch::prefetch_records;
pub use primary::{Primary, Reuse, PRIMARY_SPEC_MAX};
pub use records::Records;
pub(crate) use unique::Judge;
pub use unique::{KeyLeaves, Unique};
pub use word::VersionWord;

use crate::csn::SlotId;
use crate::memory::OutOfMemory;
use crate::partition::STRIPES;
use crate::platform::Platform;
use crate::primitive::{AtomicPtr, AtomicU64, Ordering};
use crate::shared::{Engine, LINE};
use node::{Node, NodeRef};
use std::ops::Bound;
use std::ptr::NonNull;

/// An ordered set of (key, record number). Keys are byte strings; several records may have one key.
///
/// Callers are pinned ([`Engine::pin`]), and stay so as long as they use a [`Cursor`] or [`Key`].
/// Removed memory is freed when no pin keeps it (INV-RETIRE).
#[repr(C)]
pub struct Index {
    root: AtomicPtr<Node>,
    order: u32,
    _pad: u32,
    // Each insert writes one; look-ups read the words before them.
    counters: [Counters; STRIPES],
}
const _: () = assert!(cfg!(loom) || size_of::<Index>() == (1 + STRIPES) * LINE && size_of::<Counters>() == LINE);

/// What the processes of some slots have added to an index, less what they have removed.
#[derive(Default)]
#[repr(C, align(64))]
struct Counters {
    /// Entries.
    len: AtomicU64,
    /// Bytes of the nodes and of the keys outside nodes.
    bytes: AtomicU64,
}

impl Index {
    /// The room in the queue of retired memory that one [`Index::remove`] may need.
    pub const ROOM: u64 = 4 * descend::MAX_HEIGHT as u64;

    /// Creates an empty index. With `order` 0 keys compare as bytes, else the platform compares
    /// them ([`Platform::compare_keys`]).
    pub fn create(e: &Engine, slot: SlotId, order: u32) -> Result<&'static Index, OutOfMemory> {
        let p = e.region.alloc(slot as usize, size_of::<Index>())?.cast::<Index>();
        // SAFETY: INV-M1: fresh memory of that size. It lives until `destroy`.
        unsafe {
            match Self::init(p.as_ptr(), e, slot, order) {
                Ok(()) => Ok(p.as_ref()),
                Err(err) => {
                    e.region.free(slot as usize, p.cast());
                    Err(err)
                }
            }
        }
    }

    /// Makes the memory at `this` an empty index.
    ///
    /// # Safety
    /// `this` is aligned, writable and not in use.
    pub(crate) unsafe fn init(this: *mut Index, e: &Engine, slot: SlotId, order: u32) -> Result<(), OutOfMemory> {
        let root = NodeRef::new(e.region, slot as usize, 0)?;
        let counters: [Counters; STRIPES] = Default::default();
        counters[0].bytes.store(NodeRef::bytes(0) as u64, Ordering::Relaxed);
        // SAFETY: INV-M1: by this function's contract the memory is writable and not in use.
        unsafe { this.write(Index { root: AtomicPtr::new(root.as_ptr()), order, _pad: 0, counters }) };
        Ok(())
    }

    /// The order of keys.
    #[inline]
    pub fn order(&self) -> u32 {
        self.order
    }
    /// The number of entries. Exact while no other process changes the index.
    pub fn len(&self) -> u64 {
        self.sum(|c| &c.len)
    }
    /// Are there no entries?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The size of the index, in the bytes that were requested from the region.
    pub fn bytes(&self) -> u64 {
        self.sum(|c| &c.bytes)
    }
    #[inline]
    fn counters(&self, slot: SlotId) -> &Counters {
        &self.counters[slot as usize % STRIPES]
    }
    /// The sum of a counter. What one process has added another may remove, so that the sum may be
    /// below zero for an instant.
    fn sum(&self, counter: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        let sum = self.counters.iter().fold(0u64, |n, c| n.wrapping_add(counter(c).load(Ordering::Relaxed)));
        (sum as i64).max(0) as u64
    }

    #[inline]
    fn root(&self) -> NodeRef {
        // Sequentially consistent, to be ordered after the caller's pin.
        NodeRef::from_ptr(self.root.load(Ordering::SeqCst)).expect("an index has a root")
    }

    /// Adds to `found` the records with this key, in ascending order.
    pub fn get(&'static self, p: &dyn Platform, key: &[u8], found: &mut Vec<u64>) {
        let mut few = [0; FEW];
        if let Some(n) = self.few(key, &mut few) {
            return found.extend(&few[..n]);
        }
        let mut all = self.scan(Bound::Included(key), Bound::Included(key), Direction::Forward);
        while let Some((_, record)) = all.next(p) {
            found.push(record);
        }
    }

    /// Frees all memory. With `whole`, that includes the index itself, which is from
    /// [`Index::create`].
    ///
    /// # Safety
    /// No other process can reach the index or anything in it (INV-RETIRE).
    pub unsafe fn destroy(&'static self, e: &Engine, slot: SlotId, whole: bool) {
        // SAFETY: INV-RETIRE: the contract of `destroy_some` is this function's own.
        unsafe { self.destroy_some(e, slot, &mut { usize::MAX }) };
        if whole {
            // SAFETY: INV-M1: by this function's contract the index is from `create` and
            // unreachable.
            unsafe { e.region.free(slot as usize, NonNull::from(self).cast()) };
        }
    }

    /// Removes all entries at once.
    ///
    /// # Safety
    /// No other process uses the index.
    pub(crate) unsafe fn clear(&self, e: &Engine, slot: SlotId) {
        // SAFETY: INV-OLC: by this function's contract there are no readers and no other writers.
        unsafe { self.clear_some(e, slot, &mut { usize::MAX }) };
        for (i, c) in self.counters.iter().enumerate() {
            c.len.store(0, Ordering::Relaxed);
            c.bytes.store(if i == 0 { NodeRef::bytes(0) as u64 } else { 0 }, Ordering::Relaxed);
        }
    }

    /// Frees memory of the index but not the index itself: about `pieces` pieces, which are counted
    /// down. Returns true when all are freed.
    ///
    /// # Safety
    /// As for [`Index::destroy`]. After the first call the index is used for nothing else.
    pub(crate) unsafe fn destroy_some(&self, e: &Engine, slot: SlotId, pieces: &mut usize) -> bool {
        // SAFETY: INV-RETIRE: by this function's contract no other process can reach the nodes.
        unsafe {
            if !self.clear_some(e, slot, pieces) {
                return false;
            }
            e.region.free(slot as usize, self.root().memory());
        }
        true
    }

    /// Removes nodes from the end on, about `pieces` pieces of memory. Returns true when only an
    /// empty leaf is left.
    ///
    /// # Safety
    /// No other process uses the index.
    unsafe fn clear_some(&self, e: &Engine, slot: SlotId, pieces: &mut usize) -> bool {
        loop {
            let root = self.root();
            if *pieces == 0 {
                return false;
            }
            // SAFETY: INV-BLOB, INV-RETIRE: by this function's contract there are no other users. A
            // node has one parent, and is unlinked before it is freed.
            unsafe {
                if root.level() == 0 {
                    *pieces = pieces.saturating_sub(free_blobs(e, slot, root));
                    root.empty();
                    return true;
                }
                if root.count() == 1 {
                    self.root.store(root.child(0).expect("a child").as_ptr(), Ordering::SeqCst);
                    *pieces = pieces.saturating_sub(free_node(e, slot, root));
                    continue;
                }
                let (mut parent, mut last) = (root, root);
                while last.level() > 0 && last.count() > 0 {
                    (parent, last) = (last, last.child(last.count() - 1).expect("a child"));
                }
                if let Some(blob) = parent.remove_at(parent.count() - 1).memory() {
                    e.region.free(slot as usize, blob);
                }
                *pieces = pieces.saturating_sub(free_node(e, slot, last));
            }
        }
    }
}

/// Frees the memory of a node's keys outside the node. Returns the number of pieces.
///
/// # Safety
/// No other process can reach the node.
unsafe fn free_blobs(e: &Engine, slot: SlotId, node: NodeRef) -> usize {
    let blobs = (0..node.count()).filter_map(|i| node.words(i).memory());
    // SAFETY: INV-BLOB: each entry owns its blob, and the node is unreachable by contract.
    blobs.map(|blob| unsafe { e.region.free(slot as usize, blob) }).count()
}

/// Frees a node and its keys outside the node. Returns the number of pieces.
///
/// # Safety
/// No other process can reach the node.
unsafe fn free_node(e: &Engine, slot: SlotId, node: NodeRef) -> usize {
    // SAFETY: INV-RETIRE, INV-BLOB: by this function's contract the node is unreachable.
    unsafe {
        let blobs = free_blobs(e, slot, node);
        e.region.free(slot as usize, node.memory());
        blobs + 1
    }
}

/// A place where tests switch threads, to let others run in between.
#[cfg(not(all(test, not(loom))))]
#[inline(always)]
fn race() {}
#[cfg(all(test, not(loom)))]
use tests::race;
