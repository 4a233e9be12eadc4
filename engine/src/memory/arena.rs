//! An arena: format, attach, and the entry points of the allocator.

use super::classes::{class_of, CLASSES, CLASS_COUNT, MAX_SLAB_OBJECT};
use super::magazine::SlotCache;
use super::pages::{PageDesc, PageKind, PagePool, Pages, PAGE_BYTES};
use super::slab::SlabClass;
use super::{ClassUsage, OutOfMemory, Usage};
use crate::primitive::{AtomicU64, Ordering};
use std::mem::align_of;
use std::ptr::{self, NonNull};
use std::slice;

const MAGIC: u64 = u64::from_be_bytes(*b"mixedcc\0");
/// Changes whenever a layout in this module changes.
const LAYOUT_VERSION: u32 = 1;
/// Alignment of page 0, and so of every run.
const PAGES_ALIGN: usize = 4096;
/// The least number of pages of an arena.
const MIN_PAGES: usize = 16;

/// The header, at the base of the block. It is followed by a [`SlotCache`] for each slot, a
/// [`PageDesc`] for each page, and the pages.
#[repr(C, align(64))]
pub(super) struct Arena {
    /// Written last by `create`.
    magic: AtomicU64,
    layout_version: u32,
    slot_count: u32,
    base: usize,
    total_bytes: usize,
    descs: usize,
    page_count: usize,
    pages: usize,
    _pad: u64,
    pool: PagePool,
    classes: [SlabClass; CLASS_COUNT],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Arena>() == 64 + 192 + 64 * CLASS_COUNT);

impl Arena {
    /// The least size in bytes of an arena for `nslots` slots.
    pub fn min_size(nslots: usize) -> usize {
        Self::header_bytes(nslots)
            .saturating_add(MIN_PAGES * (PAGE_BYTES + size_of::<PageDesc>()))
            .saturating_add(PAGES_ALIGN)
    }

    fn header_bytes(nslots: usize) -> usize {
        nslots.saturating_mul(size_of::<SlotCache>()).saturating_add(size_of::<Arena>())
    }

    /// Formats a block.
    ///
    /// # Safety
    /// `base` points to `len` writable bytes that stay mapped as long as the process lives, at the
    /// same address in every process. No other code uses them. `base` is 64-byte aligned.
    pub unsafe fn create(base: *mut u8, len: usize, nslots: usize) -> Result<&'static Arena, OutOfMemory> {
        let slot_count = u32::try_from(nslots).map_err(|_| OutOfMemory)?;
        if len < Self::min_size(nslots) || !(base as usize).is_multiple_of(align_of::<Arena>()) {
            return Err(OutOfMemory);
        }
        let start = base.expose_provenance();
        let descs = start + Self::header_bytes(nslots);
        let room = len - Self::header_bytes(nslots) - PAGES_ALIGN;
        let page_count = room / (PAGE_BYTES + size_of::<PageDesc>());
        if u32::try_from(page_count).is_err() {
            return Err(OutOfMemory);
        }
        let pages = (descs + page_count * size_of::<PageDesc>()).next_multiple_of(PAGES_ALIGN);
        debug_assert!(pages + page_count * PAGE_BYTES <= start + len);
        let arena = base.cast::<Arena>();
        // SAFETY: by this function's contract the block is ours, and it is long enough. Zero bytes
        // are valid for every field of header and magazines. Plain fields are set before a
        // reference exists (INV-M5).
        unsafe {
            ptr::write_bytes(base, 0, Self::header_bytes(nslots));
            (*arena).layout_version = LAYOUT_VERSION;
            (*arena).slot_count = slot_count;
            (*arena).base = start;
            (*arena).total_bytes = len;
            (*arena).descs = descs;
            (*arena).page_count = page_count;
            (*arena).pages = pages;
        }
        // SAFETY: INV-M5: initialised above; from here on only atomics are written.
        let arena: &'static Arena = unsafe { &*arena };
        for class in &arena.classes {
            class.init();
        }
        arena.pool.init(arena.pages().descs);
        // Pairs with the Acquire in `attach`.
        arena.magic.store(MAGIC, Ordering::Release);
        Ok(arena)
    }

    /// The arena that `create` formatted at `base`. `None` if there is none, if it has another
    /// layout, or if it was formatted at another address.
    ///
    /// # Safety
    /// `base` points to a mapped block of at least `size_of::<Arena>()` bytes that otherwise meets
    /// the contract of `create`.
    pub unsafe fn attach(base: *mut u8) -> Option<&'static Arena> {
        let start = base.expose_provenance();
        if base.is_null() || !start.is_multiple_of(align_of::<Arena>()) {
            return None;
        }
        // SAFETY: by this function's contract the header is mapped; it is aligned, and every bit
        // pattern is valid for its fields (INV-M5).
        let arena: &'static Arena = unsafe { &*base.cast::<Arena>() };
        let known = arena.magic.load(Ordering::Acquire) == MAGIC
            && arena.layout_version == LAYOUT_VERSION
            && arena.base == start;
        known.then_some(arena)
    }

    #[inline]
    fn pages(&self) -> Pages<'_> {
        let descs = ptr::with_exposed_provenance::<PageDesc>(self.descs);
        // SAFETY: INV-M5: `create` reserved `page_count` descriptors there, which are atomics only.
        let descs = unsafe { slice::from_raw_parts(descs, self.page_count) };
        Pages { pool: &self.pool, descs, base: self.pages }
    }

    /// The magazines of a slot. `None` for a slot that does not exist: it works without magazines.
    #[inline]
    fn cache(&self, slot: usize) -> Option<&SlotCache> {
        if slot >= self.slot_count as usize {
            return None;
        }
        let first = ptr::from_ref(self) as usize + size_of::<Arena>();
        let caches = ptr::with_exposed_provenance::<SlotCache>(first);
        // SAFETY: INV-M5: `create` reserved `slot_count` caches behind the header, which are
        // atomics only.
        Some(unsafe { &*caches.add(slot) })
    }

    /// Allocates `size` bytes. They are 8-byte aligned, or 64-byte aligned if the object's
    /// [`usable_size`](Self::usable_size) is a multiple of 64. The content is arbitrary.
    ///
    /// `slot` is the caller's slot, which one thread at a time may use in all functions of the
    /// arena. A number from `nslots` on stands for no slot; any thread may use it, but it is
    /// slower.
    #[inline]
    pub fn alloc(&self, slot: usize, size: usize) -> Result<NonNull<u8>, OutOfMemory> {
        if size > MAX_SLAB_OBJECT {
            return self.alloc_run(slot, size);
        }
        let class = class_of(size);
        if let Some(cache) = self.cache(slot) {
            let _inside = cache.enter();
            if let Some(object) = cache.magazines[class].pop() {
                return object_pointer(object);
            }
        }
        self.alloc_slow(slot, class)
    }

    #[cold]
    #[inline(never)]
    fn alloc_slow(&self, slot: usize, class: usize) -> Result<NonNull<u8>, OutOfMemory> {
        if let Some(object) = self.refill(slot, class) {
            return object_pointer(object);
        }
        self.flush_slot(slot);
        match self.refill(slot, class) {
            Some(object) => object_pointer(object),
            None => Err(OutOfMemory),
        }
    }

    /// Takes an object from the class, and a batch for the empty magazine.
    fn refill(&self, slot: usize, class: usize) -> Option<usize> {
        let cache = self.cache(slot).filter(|_| CLASSES[class].magazine_limit > 0);
        let Some(cache) = cache else {
            let chain = self.classes[class].take(self.pages(), class, 1);
            return (chain.count > 0).then_some(chain.head);
        };
        let _inside = cache.enter();
        let chain = self.classes[class].take_batch(self.pages(), class);
        let magazine = &cache.magazines[class];
        magazine.load(chain);
        magazine.pop()
    }

    #[cold]
    fn alloc_run(&self, slot: usize, size: usize) -> Result<NonNull<u8>, OutOfMemory> {
        let len = u32::try_from(size.div_ceil(PAGE_BYTES)).map_err(|_| OutOfMemory)?;
        let pages = self.pages();
        let first = pages.pool.take(pages.descs, len, true).or_else(|| {
            self.flush_slot(slot);
            pages.pool.take(pages.descs, len, true)
        });
        object_pointer(pages.address(first.ok_or(OutOfMemory)?))
    }

    /// Frees an object.
    ///
    /// # Safety
    /// `p` came from `alloc` of this arena and was not freed since, and no code uses it any more.
    /// `slot` is as in [`alloc`](Self::alloc).
    #[inline]
    pub unsafe fn free(&self, slot: usize, p: NonNull<u8>) {
        let object = p.as_ptr().expose_provenance();
        let pages = self.pages();
        let PageKind::Slab(class) = pages.desc_at(object).kind() else {
            return self.free_run(object);
        };
        let info = &CLASSES[class];
        debug_assert!((object - pages.address(pages.page_at(object))).is_multiple_of(info.object_bytes as usize));
        if cfg!(debug_assertions) {
            // SAFETY: INV-M1: the allocator owns the object's `object_bytes` bytes again. The
            // pattern makes readers of freed memory notice.
            unsafe { ptr::write_bytes(p.as_ptr(), 0xDB, info.object_bytes as usize) };
        }
        if let Some(cache) = self.cache(slot) {
            let _inside = cache.enter();
            let magazine = &cache.magazines[class];
            if magazine.count() < info.magazine_limit {
                // SAFETY: INV-M1: by this function's contract the object is free and in no list.
                // INV-M3: the page descriptor names its class.
                return unsafe { magazine.push(object) };
            }
        }
        // SAFETY: INV-M1, INV-M3: as for the magazine.
        unsafe { self.free_slow(slot, class, object) }
    }

    /// Frees an object whose magazine is full or missing.
    ///
    /// # Safety
    /// `object` is a free object of `class` that is in no list (INV-M1).
    #[cold]
    #[inline(never)]
    unsafe fn free_slow(&self, slot: usize, class: usize, object: usize) {
        let info = &CLASSES[class];
        let cache = self.cache(slot).filter(|_| info.magazine_limit > 0);
        let Some(cache) = cache else {
            // SAFETY: INV-M1: by this function's contract the object is free and in no list.
            unsafe { self.classes[class].give_one(self.pages(), class, object) };
            return;
        };
        let _inside = cache.enter();
        let magazine = &cache.magazines[class];
        let chain = magazine.unload(info.batch);
        // SAFETY: INV-M4: the chain has just left the magazine of this class.
        unsafe { self.classes[class].give_batch(self.pages(), class, chain) };
        // SAFETY: INV-M1: by this function's contract; `unload` made room.
        unsafe { magazine.push(object) };
    }

    #[cold]
    fn free_run(&self, object: usize) {
        let pages = self.pages();
        let desc = pages.desc_at(object);
        debug_assert_eq!(desc.kind(), PageKind::Run, "free of memory that is not allocated");
        debug_assert!((object - pages.base).is_multiple_of(PAGE_BYTES));
        if desc.kind() == PageKind::Run {
            pages.pool.put(pages.descs, pages.page_at(object), desc.run_pages(), true);
        }
    }

    /// The size of the object's memory: that of its class, or of its pages.
    ///
    /// # Safety
    /// `p` came from `alloc` of this arena and was not freed since.
    #[inline]
    pub unsafe fn usable_size(&self, p: NonNull<u8>) -> usize {
        let desc = self.pages().desc_at(p.as_ptr() as usize);
        match desc.kind() {
            PageKind::Slab(class) => CLASSES[class].object_bytes as usize,
            _ => desc.run_pages() as usize * PAGE_BYTES,
        }
    }

    /// Returns the objects in the slot's magazines, and those in the stashes that all slots share,
    /// to their pages. Called when the slot gets another owner or none.
    #[cold]
    pub fn flush_slot(&self, slot: usize) {
        self.empty_magazines(slot);
        for (class, state) in self.classes.iter().enumerate() {
            state.empty_stash(self.pages(), class);
        }
    }

    fn empty_magazines(&self, slot: usize) {
        let Some(cache) = self.cache(slot) else {
            return;
        };
        let _inside = cache.enter();
        for (class, magazine) in cache.magazines.iter().enumerate() {
            let chain = magazine.unload(u32::MAX);
            if chain.count > 0 {
                // SAFETY: INV-M4: the chain has just left the magazine of this class.
                unsafe { self.classes[class].give(self.pages(), class, chain) };
            }
        }
    }

    /// The number of pages in use, and of all pages.
    pub fn pages_used(&self) -> (usize, usize) {
        let free = (self.pool.free_pages() as usize).min(self.page_count);
        (self.page_count - free, self.page_count)
    }

    /// The memory that the arena holds at present.
    pub fn usage(&self) -> Usage {
        let (used_pages, all_pages) = self.pages_used();
        let classes = std::array::from_fn(|class| {
            let state = &self.classes[class];
            let caches = (0..self.slot_count as usize).filter_map(|slot| self.cache(slot));
            let in_magazines: usize = caches.map(|cache| cache.magazines[class].count() as usize).sum();
            let cached = in_magazines + state.stashed_objects(class) as usize;
            ClassUsage {
                object_bytes: CLASSES[class].object_bytes as usize,
                pages: state.pages() as usize,
                live: (state.outside() as usize).saturating_sub(cached),
                cached,
            }
        });
        Usage {
            total_bytes: self.total_bytes,
            used_page_bytes: used_pages * PAGE_BYTES,
            free_page_bytes: (all_pages - used_pages) * PAGE_BYTES,
            run_bytes: self.pool.run_pages() as usize * PAGE_BYTES,
            classes,
        }
    }
}

#[inline]
fn object_pointer(object: usize) -> Result<NonNull<u8>, OutOfMemory> {
    NonNull::new(ptr::with_exposed_provenance_mut(object)).ok_or(OutOfMemory)
}
