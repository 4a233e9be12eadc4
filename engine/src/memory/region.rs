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
/// Changes with every change of a layout in this module.
const LAYOUT_VERSION: u32 = 2;

/// Most memory nodes of a region.
pub const MAX_NODES: usize = 64;

/// Arenas of several nodes begin at multiples of this address, a large page of the common machines, so that
/// each page is of one node.
pub const NODE_ALIGN: usize = 2 << 20;

/// The header, at the base of the block, with the arena of node 0 right behind it. Arenas of other nodes
/// follow at equal distances.
#[repr(C, align(64))]
pub struct Region {
    /// Written last by `create`.
    magic: AtomicU64,
    layout_version: u32,
    nodes: u32,
    base: usize,
    total_bytes: usize,
    /// Where node 1 begins.
    second: usize,
    /// From one node to the next, bytes.
    stride: usize,
    slot_count: u64,
    _pad: u64,
    first: Arena,
}

impl Region {
    /// Bytes that a region for `nslots` slots needs at least.
    pub fn min_size(nslots: usize) -> usize {
        offset_of!(Region, first).saturating_add(Arena::min_size(nslots))
    }

    /// Where node 1 begins, and how far it is from one node to the next. Node 0 has the header too.
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

    /// The addresses that each of so many nodes will have in a block, so that they can be bound before
    /// [`create`](Self::create) touches them. From a multiple of [`NODE_ALIGN`] on, but for node 0.
    pub fn node_ranges(base: *const u8, len: usize, nodes: usize) -> impl Iterator<Item = Range<usize>> {
        (0..nodes).map(move |n| Self::range(base as usize, len, nodes, n))
    }

    /// Bytes that a region of so many nodes needs at least.
    pub fn min_size_on(nslots: usize, nodes: usize) -> usize {
        match nodes {
            0 | 1 => Self::min_size(nslots),
            n => (Self::min_size(nslots).next_multiple_of(NODE_ALIGN)).saturating_mul(n).saturating_add(NODE_ALIGN),
        }
    }

    /// Formats a block, with an arena for each of so many memory nodes, of about equal size.
    ///
    /// # Safety
    /// `base` points to `len` writable bytes that stay mapped for the life of
    /// the process, at this address in every process, and that nobody else
    /// uses. `base` is 64-byte aligned.
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
        // SAFETY: the block is ours and long enough; zero is valid for every field, and the plain fields are
        // set before a reference exists. Arenas do not overlap: the last begins at `second + (nodes - 2) * stride`
        // and `second` is at most `start + stride + NODE_ALIGN`.
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
        // SAFETY: initialised above; from here on only atomics are written (INV-M5).
        let region: &'static Region = unsafe { &*region };
        // Pairs with the Acquire in `attach`.
        region.magic.store(MAGIC, Ordering::Release);
        Ok(region)
    }

    /// The region that `create` formatted at `base`; None if there is none,
    /// if it has another layout or if it was formatted at another address.
    ///
    /// # Safety
    /// `base` points to a mapped block that is `size_of::<Region>()` long at
    /// least, and as `create` demands otherwise.
    pub unsafe fn attach(base: *mut u8) -> Option<&'static Region> {
        let start = base.expose_provenance();
        if base.is_null() || !start.is_multiple_of(align_of::<Region>()) {
            return None;
        }
        // SAFETY: mapped, long enough and aligned; every bit pattern is valid
        // for the header's fields.
        let region: &'static Region = unsafe { &*base.cast::<Region>() };
        let known = region.magic.load(Ordering::Acquire) == MAGIC
            && region.layout_version == LAYOUT_VERSION
            && region.base == start;
        // SAFETY: `create` has formatted the first arena there.
        known.then(|| unsafe { Arena::attach(base.add(offset_of!(Region, first))) })??;
        Some(region)
    }

    /// Memory nodes, at least 1.
    #[inline]
    pub fn nodes(&self) -> usize {
        self.nodes as usize
    }

    /// Addresses of a node's memory.
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

    /// The node of what belongs to a partition.
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
        // SAFETY: `create` has formatted an arena there, and it lives as long as the region.
        unsafe { &*ptr::with_exposed_provenance::<Arena>(at) }
    }

    fn arenas(&self) -> impl Iterator<Item = &Arena> {
        (0..self.nodes()).map(|n| self.arena(n))
    }

    /// Allocates `size` bytes, 8-byte aligned, or 64-byte aligned if the
    /// object's [`usable_size`](Self::usable_size) is a multiple of 64. The
    /// content is arbitrary. What belongs to no partition is spread over the nodes by the slots.
    ///
    /// `slot` is the caller's: one thread at a time may use it, in any of the
    /// region's functions. A number from `nslots` on means no slot, which any
    /// thread may use, slower.
    #[inline]
    pub fn alloc(&self, slot: usize, size: usize) -> Result<NonNull<u8>, OutOfMemory> {
        if self.nodes == 1 {
            return self.first.alloc(slot, size);
        }
        self.alloc_on(slot % self.nodes(), slot, size)
    }

    /// Allocates memory of a node, or of the next ones that have some if this one is full.
    #[inline]
    pub fn alloc_on(&self, node: usize, slot: usize, size: usize) -> Result<NonNull<u8>, OutOfMemory> {
        let n = self.nodes();
        if n == 1 {
            return self.first.alloc(slot, size);
        }
        (0..n).find_map(|i| self.arena((node + i) % n).alloc(slot, size).ok()).ok_or(OutOfMemory)
    }

    /// Gives an object back, to its node.
    ///
    /// # Safety
    /// `p` came from `alloc` of this region, was not freed since, and nobody
    /// uses it any more. `slot` as in [`alloc`](Self::alloc).
    #[inline]
    pub unsafe fn free(&self, slot: usize, p: NonNull<u8>) {
        // SAFETY: the caller's; the address tells the arena.
        unsafe { self.arena(self.node_of(p.as_ptr() as usize)).free(slot, p) }
    }

    /// Bytes that the object really has: its class, or its pages.
    ///
    /// # Safety
    /// `p` came from `alloc` of this region and was not freed since.
    #[inline]
    pub unsafe fn usable_size(&self, p: NonNull<u8>) -> usize {
        // SAFETY: the caller's; the address tells the arena.
        unsafe { self.arena(self.node_of(p.as_ptr() as usize)).usable_size(p) }
    }

    /// Returns the objects in the slot's magazines, and in the stashes that
    /// all slots share, to their pages; to be called when the slot gets
    /// another owner or none.
    #[cold]
    pub fn flush_slot(&self, slot: usize) {
        self.arenas().for_each(|a| a.flush_slot(slot));
    }

    /// What the region holds now.
    pub fn usage(&self) -> Usage {
        let mut all = self.arenas().map(Arena::usage).reduce(Usage::plus).expect("node 0");
        all.total_bytes = self.total_bytes;
        all
    }

    /// What a node's arena holds now.
    pub fn node_usage(&self, node: usize) -> Usage {
        self.arena(node).usage()
    }
}

const _: () = assert!(NODE_ALIGN.is_multiple_of(PAGE_BYTES) && offset_of!(Region, first) == 64);
