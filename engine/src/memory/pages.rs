//! Pages, their descriptors, and the pool of free runs.
//!
//! A free run is described by its first and its last descriptor (boundary tags). The descriptors
//! between them hold leftovers that are never read. Free runs are listed by the logarithm of their
//! length.
//!
//! **INV-M7**: The first and the last descriptor of every run, free or not, say whether it is free,
//! and of a free run its length. Descriptors between them are never read. No two free runs are
//! adjacent. All of this holds whenever the pool's latch is free.

use super::latch::Latch;
use crate::primitive::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The unit in which memory moves between size classes and runs.
pub const PAGE_BYTES: usize = 1 << PAGE_SHIFT;
const PAGE_SHIFT: u32 = 16;

const KIND_FREE: u32 = 0;
const KIND_RUN: u32 = 1;
const KIND_SLAB: u32 = 2;

const NIL: u32 = u32::MAX;
const BINS: usize = 32;
/// The number of runs of the request's own bin that are tried before a larger run is split. It
/// bounds the time under the latch.
const OWN_BIN_PROBES: u32 = 64;

/// The use of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageKind {
    Free,
    Run,
    Slab(usize),
}

/// The descriptor of a page. The holder of the pool latch may write `kind` and `pages` of free
/// runs. The holder of a class latch may write all fields of the class's pages. `kind` and `pages`
/// of an allocated run do not change until it is freed.
#[repr(C)]
pub(super) struct PageDesc {
    kind: AtomicU32,
    /// The length of the run. It is valid at both ends of a free run, and at the first page of an
    /// allocated one.
    pages: AtomicU32,
    prev: AtomicU32,
    next: AtomicU32,
    /// In a slab: the address of the first free object, or 0.
    pub free_head: AtomicU64,
    /// In a slab: the number of objects outside the page, in magazines or held by callers.
    pub used: AtomicU32,
    /// In a slab: objects from this number on were never handed out, and are in no list.
    pub carved: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<PageDesc>() == 32);

impl PageDesc {
    #[inline]
    pub fn kind(&self) -> PageKind {
        match self.kind.load(Relaxed) {
            KIND_FREE => PageKind::Free,
            KIND_RUN => PageKind::Run,
            slab => PageKind::Slab((slab - KIND_SLAB) as usize),
        }
    }

    pub fn run_pages(&self) -> u32 {
        self.pages.load(Relaxed)
    }

    /// Makes a page that was just taken from the pool a slab.
    pub fn become_slab(&self, class: usize) {
        self.free_head.store(0, Relaxed);
        self.used.store(0, Relaxed);
        self.carved.store(0, Relaxed);
        self.kind.store(KIND_SLAB + class as u32, Relaxed);
    }
}

/// A doubly linked list of pages through `prev` and `next`. A page is in at most one list: a bin of
/// the pool, or the partial list of its class.
#[repr(C)]
pub(super) struct PageList {
    head: AtomicU32,
}

impl PageList {
    pub fn init(&self) {
        self.head.store(NIL, Relaxed);
    }

    #[inline]
    pub fn first(&self) -> Option<u32> {
        let head = self.head.load(Relaxed);
        (head != NIL).then_some(head)
    }

    pub fn push(&self, descs: &[PageDesc], page: u32) {
        let head = self.head.load(Relaxed);
        let desc = &descs[page as usize];
        desc.prev.store(NIL, Relaxed);
        desc.next.store(head, Relaxed);
        if head != NIL {
            descs[head as usize].prev.store(page, Relaxed);
        }
        self.head.store(page, Relaxed);
    }

    pub fn remove(&self, descs: &[PageDesc], page: u32) {
        let desc = &descs[page as usize];
        let (prev, next) = (desc.prev.load(Relaxed), desc.next.load(Relaxed));
        if prev == NIL {
            self.head.store(next, Relaxed);
        } else {
            descs[prev as usize].next.store(next, Relaxed);
        }
        if next != NIL {
            descs[next as usize].prev.store(prev, Relaxed);
        }
    }
}

/// The free runs.
#[repr(C, align(64))]
pub(super) struct PagePool {
    latch: Latch,
    free_pages: AtomicU32,
    run_pages: AtomicU32,
    /// Bit b is set if bin b is not empty.
    occupied: AtomicU32,
    /// Bin b lists the runs of 2^b to 2^(b+1)-1 pages.
    bins: [PageList; BINS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<PagePool>() == 192);

impl PagePool {
    /// Takes all pages as one free run. `descs` must not be empty.
    pub fn init(&self, descs: &[PageDesc]) {
        for bin in &self.bins {
            bin.init();
        }
        self.insert(descs, 0, descs.len() as u32);
        self.free_pages.store(descs.len() as u32, Relaxed);
    }

    pub fn free_pages(&self) -> u32 {
        self.free_pages.load(Relaxed)
    }

    pub fn run_pages(&self) -> u32 {
        self.run_pages.load(Relaxed)
    }

    fn insert(&self, descs: &[PageDesc], first: u32, len: u32) {
        for end in [first, first + len - 1] {
            let desc = &descs[end as usize];
            desc.pages.store(len, Relaxed);
            desc.kind.store(KIND_FREE, Relaxed);
        }
        let bin = len.ilog2();
        self.bins[bin as usize].push(descs, first);
        self.occupied.store(self.occupied.load(Relaxed) | 1 << bin, Relaxed);
    }

    /// Removes the free run that starts at `first` from its list and returns its length.
    fn remove(&self, descs: &[PageDesc], first: u32) -> u32 {
        let len = descs[first as usize].pages.load(Relaxed);
        let bin = len.ilog2();
        let list = &self.bins[bin as usize];
        list.remove(descs, first);
        if list.first().is_none() {
            self.occupied.store(self.occupied.load(Relaxed) & !(1 << bin), Relaxed);
        }
        len
    }

    fn probe_bin(&self, descs: &[PageDesc], bin: u32, len: u32, probes: u32) -> Option<u32> {
        let mut run = self.bins[bin as usize].first()?;
        for _ in 0..probes {
            let desc = &descs[run as usize];
            if desc.pages.load(Relaxed) >= len {
                return Some(run);
            }
            run = desc.next.load(Relaxed);
            if run == NIL {
                break;
            }
        }
        None
    }

    fn find(&self, descs: &[PageDesc], len: u32) -> Option<u32> {
        let own = len.ilog2();
        if let Some(run) = self.probe_bin(descs, own, len, OWN_BIN_PROBES) {
            return Some(run);
        }
        // Every run of a larger bin is long enough. Bin 31 has no larger one.
        let larger = self.occupied.load(Relaxed) & u32::MAX.checked_shl(own + 1).unwrap_or(0);
        if larger != 0 {
            return self.bins[larger.trailing_zeros() as usize].first();
        }
        self.probe_bin(descs, own, len, u32::MAX)
    }

    /// Takes `len` (at least 1) adjacent pages. They become an allocated run.
    pub fn take(&self, descs: &[PageDesc], len: u32, counted_as_run: bool) -> Option<u32> {
        let _held = self.latch.lock();
        let run = self.find(descs, len)?;
        let found = self.remove(descs, run);
        let rest = found - len;
        // Single pages come from the low end and runs from the high end, so that slabs do not
        // fragment the space for runs.
        let (first, rest_first) = if len == 1 { (run, run + 1) } else { (run + rest, run) };
        if rest > 0 {
            self.insert(descs, rest_first, rest);
        }
        for end in [first, first + len - 1] {
            descs[end as usize].kind.store(KIND_RUN, Relaxed);
        }
        descs[first as usize].pages.store(len, Relaxed);
        self.free_pages.store(self.free_pages.load(Relaxed) - len, Relaxed);
        if counted_as_run {
            self.run_pages.store(self.run_pages.load(Relaxed) + len, Relaxed);
        }
        Some(first)
    }

    /// Frees a run of `len` pages and joins it with its free neighbours.
    pub fn put(&self, descs: &[PageDesc], first: u32, len: u32, counted_as_run: bool) {
        let _held = self.latch.lock();
        let (mut start, mut joined) = (first, len);
        let after = first + len;
        if let Some(desc) = descs.get(after as usize) {
            if desc.kind.load(Relaxed) == KIND_FREE {
                joined += self.remove(descs, after);
            }
        }
        if first > 0 {
            let desc = &descs[first as usize - 1];
            if desc.kind.load(Relaxed) == KIND_FREE {
                start = first - desc.pages.load(Relaxed);
                joined += self.remove(descs, start);
            }
        }
        self.insert(descs, start, joined);
        self.free_pages.store(self.free_pages.load(Relaxed) + len, Relaxed);
        if counted_as_run {
            self.run_pages.store(self.run_pages.load(Relaxed) - len, Relaxed);
        }
    }
}

/// The pages of a region: the pool, the descriptors, and the address of page 0.
#[derive(Clone, Copy)]
pub(super) struct Pages<'a> {
    pub pool: &'a PagePool,
    pub descs: &'a [PageDesc],
    pub base: usize,
}

impl<'a> Pages<'a> {
    #[inline]
    pub fn address(&self, page: u32) -> usize {
        self.base + ((page as usize) << PAGE_SHIFT)
    }

    #[inline]
    pub fn page_at(&self, address: usize) -> u32 {
        (address.wrapping_sub(self.base) >> PAGE_SHIFT) as u32
    }

    #[inline]
    pub fn desc_at(&self, address: usize) -> &'a PageDesc {
        &self.descs[address.wrapping_sub(self.base) >> PAGE_SHIFT]
    }
}
