//! The region: the arenas of the machine's memory nodes, behind one allocator.
//!
//! **INV-N**: Arenas are disjoint, an object lies in the arena that allocated it, and no arena
//! refers to another one.
//!
//! **INV-M5**: After `create`, the plain fields of the header (of a region or an arena) never
//! change. Everything else outside of objects is atomics, so shared references are enough.
//!
//! **INV-M6**: Addresses are kept as integers; `create` and `attach` expose the provenance of the
//! block.

use super::arena::Arena;
use super::pages::PAGE_BYTES;
use super::{OutOfMemory, Usage};
use crate::primitive::{AtomicU64, Ordering};
use std::mem::{align_of, offset_of};
use std::ops::Range;
use std::ptr::{self, NonNull};

const MAGIC: u64 = u64::from_be_bytes(*b"mixedcc\0");
/// Changes whenever a layout in this module changes.
const LAYOUT_VERSION: u32 = 2;

/// The largest number of memory nodes.
pub const MAX_NODES: usize = 64;

/// Arenas of several nodes begin at multiples of this, the size of a large page on common machines.
/// So each page belongs to one node.
pub const NODE_ALIGN: usize = 2 << 20;

/// The header, at the base of the block, directly followed by the arena of node 0. The arenas of
/// other nodes follow at equal distances.
#[repr(C, align(64))]
pub struct Region {
    /// Written last by `create`.
    magic: AtomicU64,
    layout_version: u32,
    nodes: u32,
    base: usize,
    total_bytes: usize,
    /// The address at which node 1 begins.
    second: usize,
    /// The distance from one node to the next, in bytes.
    stride: usize,
    slot_count: u64,
    _pad: u64,
    first: Arena,
}

impl Region {
    /// The least size in bytes of a region for `nslots` slots.
    pub fn min_size(nslots: usize) -> usize {
        offset_of!(Region, first).saturating_add(Arena::min_size(nslots))
    }

    /// The address of node 1, and the distance from one node to the next. Node 0 has the header
    /// too.
    fn layout(start: usize, len: usize, nodes: usize) -> (usize, usize) {
        if nodes <= 1 {
            return (start + len, len);
        }
        let stride = len.saturating_sub(NODE_ALIGN) / nodes / NODE_ALIGN * NODE_ALIGN;
        ((start + stride).next_multiple_of(NODE_ALIGN), stride)
    }

    fn range(start: usize, len: usize, nodes: usize, node: usize) -> Range<usize> {
        let (second, stride) = Self::layout(start, len, nodes);
        let from = if node == 0 { start } else { second + (node - 1) * stride };
        let to = if node + 1 >= nodes { start + len } else { second + node * stride };
        from..to
    }

    /// The addresses that each node will have in a block, so that they can be bound before
    /// [`create`](Self::create) touches them. Except for node 0 they begin at a multiple of
    /// [`NODE_ALIGN`].
    pub fn node_ranges(base: *const u8, len: usize, nodes: usize) -> impl Iterator<Item = Range<usize>> {
        (0..nodes).map(move |n| Self::range(base as usize, len, nodes, n))
    }

    /// The least size in bytes of a region with `nodes` nodes.
    pub fn min_size_on(nslots: usize, nodes: usize) -> usize {
        match nodes {
            0 | 1 => Self::min_size(nslots),
            n => (Self::min_size(nslots).next_multiple_of(NODE_ALIGN)).saturating_mul(n).saturating_add(NODE_ALIGN),
        }
    }

    /// Formats a block, with arenas of about equal size for `nodes` memory nodes.
    ///
    /// # Safety
    /// `base` points to `len` writable bytes that stay mapped as long as the process lives, at the
    /// same address in every process. No other code uses them. `base` is 64-byte aligned.
    pub unsafe fn create(
        base: *mut u8,
        len: usize,
        nslots: usize,
        nodes: usize,
    ) -> Result<&'static Region, OutOfMemory> {
        if !(1..=MAX_NODES).contains(&nodes)
            || len < Self::min_size_on(nslots, nodes)
            || !(base as usize).is_multiple_of(align_of::<Region>())
        {
            return Err(OutOfMemory);
        }
        let start = base.expose_provenance();
        let end = start + len;
        let (second, stride) = Self::layout(start, len, nodes);
        let region = base.cast::<Region>();
        // SAFETY: by this function's contract the block is ours, and it is long enough. Zero is
        // valid for every field, and plain fields are set before a reference exists (INV-M5).
        // Arenas do not overlap (INV-N): the last begins at `second + (nodes - 2) * stride`, and
        // `second` is at most `start + stride + NODE_ALIGN`.
        unsafe {
            ptr::write_bytes(base, 0, offset_of!(Region, first));
            (*region).layout_version = LAYOUT_VERSION;
            (*region).nodes = nodes as u32;
            (*region).base = start;
            (*region).total_bytes = len;
            (*region).second = second;
            (*region).stride = stride;
            (*region).slot_count = nslots as u64;
            let first = base.add(offset_of!(Region, first));
            Arena::create(first, second - first as usize, nslots)?;
            for n in 1..nodes {
                let at = second + (n - 1) * stride;
                let to = if n + 1 == nodes { end } else { at + stride };
                Arena::create(base.add(at - start), to - at, nslots)?;
            }
        }
        // SAFETY: INV-M5: initialised above; from here on only atomics are written.
        let region: &'static Region = unsafe { &*region };
        // Pairs with the Acquire in `attach`.
        region.magic.store(MAGIC, Ordering::Release);
        Ok(region)
    }

    /// The region that `create` formatted at `base`. `None` if there is none, if it has another
    /// layout, or if it was formatted at another address.
    ///
    /// # Safety
    /// `base` points to a mapped block of at least `size_of::<Region>()` bytes that otherwise meets
    /// the contract of `create`.
    pub unsafe fn attach(base: *mut u8) -> Option<&'static Region> {
        let start = base.expose_provenance();
        if base.is_null() || !start.is_multiple_of(align_of::<Region>()) {
            return None;
        }
        // SAFETY: by this function's contract the header is mapped; it is aligned, and every bit
        // pattern is valid for its fields (INV-M5).
        let region: &'static Region = unsafe { &*base.cast::<Region>() };
        let known = region.magic.load(Ordering::Acquire) == MAGIC
            && region.layout_version == LAYOUT_VERSION
            && region.base == start;
        // SAFETY: INV-M5: `create` has formatted the first arena there.
        known.then(|| unsafe { Arena::attach(base.add(offset_of!(Region, first))) })??;
        Some(region)
    }

    /// The number of memory nodes, at least 1.
    #[inline]
    pub fn nodes(&self) -> usize {
        self.nodes as usize
    }

    /// The addresses of a node's memory.
    pub fn node_range(&self, node: usize) -> Range<usize> {
        Self::range(self.base, self.total_bytes, self.nodes(), node)
    }

    /// The node of an address in the region.
    #[inline]
    pub fn node_of(&self, address: usize) -> usize {
        if self.nodes == 1 || address < self.second {
            return 0;
        }
        ((address - self.second) / self.stride + 1).min(self.nodes as usize - 1)
    }

    /// The node for the memory of a partition.
    #[inline]
    pub fn node_of_partition(&self, partition: u32) -> usize {
        if self.nodes == 1 {
            return 0;
        }
        partition as usize % self.nodes()
    }

    #[inline]
    fn arena(&self, node: usize) -> &Arena {
        if node == 0 {
            return &self.first;
        }
        let at = self.second + (node - 1) * self.stride;
        // SAFETY: INV-N, INV-M5: `create` has formatted an arena there, which lives as long as the
        // region.
        unsafe { &*ptr::with_exposed_provenance::<Arena>(at) }
    }

    fn arenas(&self) -> impl Iterator<Item = &Arena> {
        (0..self.nodes()).map(|n| self.arena(n))
    }

    /// Allocates `size` bytes. They are 8-byte aligned, or 64-byte aligned if the object's
    /// [`usable_size`](Self::usable_size) is a multiple of 64. The content is arbitrary. Memory
    /// that belongs to no partition is spread over the nodes by the slots.
    ///
    /// `slot` is the caller's slot, which one thread at a time may use in all functions of the
    /// region. A number from `nslots` on stands for no slot; any thread may use it, but it is
    /// slower.
    #[inline]
    pub fn alloc(&self, slot: usize, size: usize) -> Result<NonNull<u8>, OutOfMemory> {
        if self.nodes == 1 {
            return self.first.alloc(slot, size);
        }
        self.alloc_on(slot % self.nodes(), slot, size)
    }

    /// Allocates memory of a node. If that is full, uses the next node that has room.
    #[inline]
    pub fn alloc_on(&self, node: usize, slot: usize, size: usize) -> Result<NonNull<u8>, OutOfMemory> {
        let n = self.nodes();
        if n == 1 {
            return self.first.alloc(slot, size);
        }
        (0..n).find_map(|i| self.arena((node + i) % n).alloc(slot, size).ok()).ok_or(OutOfMemory)
    }

    /// Frees an object, to its node.
    ///
    /// # Safety
    /// `p` came from `alloc` of this region and was not freed since, and no code uses it any more.
    /// `slot` is as in [`alloc`](Self::alloc).
    #[inline]
    pub unsafe fn free(&self, slot: usize, p: NonNull<u8>) {
        // SAFETY: INV-N: the address tells the arena, for which this function's contract holds.
        unsafe { self.arena(self.node_of(p.as_ptr() as usize)).free(slot, p) }
    }

    /// The size that the memory of an object of `size` bytes has: see
    /// [`usable_size`](Self::usable_size).
    #[inline]
    pub fn size_of_object(size: usize) -> usize {
        super::classes::size_of_object(size)
    }

    /// A number that stands for the size of the memory of an object of `size` bytes; 0: none does.
    #[inline]
    pub(crate) fn code_of_object(size: usize) -> u8 {
        super::classes::code_of(size)
    }

    /// The size that such a number, which is not 0, stands for.
    #[inline]
    pub(crate) fn size_of_code(code: u8) -> usize {
        super::classes::size_of_code(code)
    }

    /// The size of the object's memory: that of its class, or of its pages.
    ///
    /// # Safety
    /// `p` came from `alloc` of this region and was not freed since.
    #[inline]
    pub unsafe fn usable_size(&self, p: NonNull<u8>) -> usize {
        // SAFETY: INV-N: the address tells the arena, for which this function's contract holds.
        unsafe { self.arena(self.node_of(p.as_ptr() as usize)).usable_size(p) }
    }

    /// Returns the objects in the slot's magazines, and those in the stashes that all slots share,
    /// to their pages. Called when the slot gets another owner or none.
    #[cold]
    pub fn flush_slot(&self, slot: usize) {
        self.arenas().for_each(|a| a.flush_slot(slot));
    }

    /// The memory that the region holds at present.
    pub fn usage(&self) -> Usage {
        let mut all = self.arenas().map(Arena::usage).reduce(Usage::plus).expect("node 0");
        all.total_bytes = self.total_bytes;
        all
    }

    /// The bytes of pages in use, and of all pages.
    pub fn pages_used(&self) -> (u64, u64) {
        let sum = |(a, b), (c, d)| (a + c, b + d);
        let (used, all) = self.arenas().map(Arena::pages_used).fold((0, 0), sum);
        ((used * PAGE_BYTES) as u64, (all * PAGE_BYTES) as u64)
    }

    /// The memory that a node's arena holds at present.
    pub fn node_usage(&self, node: usize) -> Usage {
        self.arena(node).usage()
    }
}

const _: () = assert!(NODE_ALIGN.is_multiple_of(PAGE_BYTES) && offset_of!(Region, first) == 64);
