//! The ordered index: a B+tree in the shared region, by optimistic latch coupling.
//!
//! Readers take no latch; writers find their place as readers do and latch, without waiting, the few
//! nodes that they change. The invariants INV-OLC (`word.rs`) and INV-BLOB (`key.rs`) and the reasons
//! are in `README.md`.

mod ahead;
mod cursor;
mod descend;
mod graves;
#[cfg(all(test, not(loom)))]
mod graves_tests;
mod hints;
mod insert;
mod key;
mod node;
mod point;
#[cfg(all(test, not(loom)))]
mod point_tests;
mod primary;
#[cfg(all(test, not(loom)))]
mod primary_tests;
mod records;
mod remove;
mod sample;
#[cfg(all(test, not(loom)))]
mod tests;
mod word;

pub(crate) use ahead::fetch_records;
pub use cursor::Cursor;
pub use descend::Direction;
pub(crate) use graves::Graves;
pub use key::Key;
pub use point::FEW;
pub use primary::{Primary, Reuse, PRIMARY_SPEC_MAX};
pub use records::Records;
pub use word::VersionWord;

use crate::csn::SlotId;
use crate::memory::OutOfMemory;
use crate::platform::Platform;
use crate::primitive::{AtomicPtr, AtomicU64, Ordering};
use crate::shared::Engine;
use node::{Node, NodeRef};
use std::ops::Bound;
use std::ptr::NonNull;

/// An ordered set of (key, record number). Keys are byte strings; several records may have one key.
///
/// Whoever calls a function of it is pinned ([`Engine::pin`]), and stays so until it has let go of every
/// [`Cursor`] and [`Key`]; what is removed is freed behind all pins (INV-RETIRE).
#[repr(C)]
pub struct Index {
    root: AtomicPtr<Node>,
    /// Entries, about.
    len: AtomicU64,
    /// Bytes of nodes and of keys that are not in nodes.
    bytes: AtomicU64,
    order: u32,
    _pad: u32,
}
const _: () = assert!(cfg!(loom) || size_of::<Index>() == 32);

impl Index {
    /// Room in the queue of retired memory that one [`Index::remove`] may need.
    pub const ROOM: u64 = 4 * descend::MAX_HEIGHT as u64;

    /// Creates an empty index. `order`: 0, keys compare as bytes; else the platform compares them
    /// ([`Platform::compare_keys`]).
    pub fn create(e: &Engine, slot: SlotId, order: u32) -> Result<&'static Index, OutOfMemory> {
        let p = e.region.alloc(slot as usize, size_of::<Index>())?.cast::<Index>();
        // SAFETY: fresh memory of that size; it lives until `destroy`.
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
        let bytes = AtomicU64::new(NodeRef::bytes(0) as u64);
        // SAFETY: the caller's.
        unsafe {
            this.write(Index { root: AtomicPtr::new(root.as_ptr()), len: AtomicU64::new(0), bytes, order, _pad: 0 });
        }
        Ok(())
    }

    /// How keys compare.
    #[inline]
    pub fn order(&self) -> u32 {
        self.order
    }
    /// Entries, exact when nobody changes the index.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }
    /// Are there no entries?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Bytes of the index, as they were asked of the region.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    #[inline]
    fn root(&self) -> NodeRef {
        // Sequentially consistent: after the pin of the caller.
        NodeRef::from_ptr(self.root.load(Ordering::SeqCst)).expect("an index has a root")
    }

    /// Records with this key, in ascending order, are added to `found`.
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

    /// Frees all memory, also the index itself if it comes from [`Index::create`] (`whole`).
    ///
    /// # Safety
    /// Nobody else can reach the index or anything in it.
    pub unsafe fn destroy(&'static self, e: &Engine, slot: SlotId, whole: bool) {
        // SAFETY: the caller's promise.
        unsafe { free_tree(e, slot, self.root(), None) };
        if whole {
            // SAFETY: the caller's promise.
            unsafe { e.region.free(slot as usize, NonNull::from(self).cast()) };
        }
    }

    /// Removes all entries, at once.
    ///
    /// # Safety
    /// Nobody else uses the index.
    pub(crate) unsafe fn clear(&self, e: &Engine, slot: SlotId) {
        let mut leaf = self.root();
        while leaf.level() > 0 {
            leaf = leaf.child(0).expect("a child");
        }
        let old = self.root();
        self.root.store(leaf.as_ptr(), Ordering::SeqCst);
        self.len.store(0, Ordering::Relaxed);
        self.bytes.store(NodeRef::bytes(0) as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { free_tree(e, slot, old, Some(leaf)) };
        leaf.empty();
    }
}

/// Frees a node and what is below it, but for the node `keep`.
///
/// # Safety
/// Nobody else can reach the nodes.
unsafe fn free_tree(e: &Engine, slot: SlotId, node: NodeRef, keep: Option<NodeRef>) {
    for i in 0..node.count() {
        if node.level() > 0 {
            let child = node.child(i).expect("a child");
            // SAFETY: the caller's promise; a child has one parent.
            unsafe { free_tree(e, slot, child, keep) };
        }
        if let Some(blob) = node.words(i).memory() {
            // SAFETY: INV-BLOB: each entry owns its blob.
            unsafe { e.region.free(slot as usize, blob) };
        }
    }
    if keep != Some(node) {
        // SAFETY: the caller's promise.
        unsafe { e.region.free(slot as usize, node.memory()) };
    }
}

/// A place where others may come between: tests switch threads here.
#[cfg(not(all(test, not(loom))))]
#[inline(always)]
fn race() {}
#[cfg(all(test, not(loom)))]
use tests::race;
