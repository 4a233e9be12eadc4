//! One size class: its pages with free objects, and chains of objects that move between pages and
//! magazines in batches.
//!
//! **INV-M1**: A free object is in exactly one place: a magazine, a stash, a page's list, the part
//! of a page that was never handed out, or a chain that one thread moves. Its first word is the
//! link, and only the owner of that place touches it.
//!
//! **INV-M2**: A slab page's list, `used` and `carved` change under its class's latch. `used` plus
//! the length of the list plus the objects not carved yet are the objects of a page. A page is in
//! its class's partial list exactly if `used` is less than that. A page with `used` = 0 leaves the
//! class before the latch is released.
//!
//! **INV-M3**: Every object of a slab page begins at a multiple of the class's size from the page's
//! start. So it is 8-byte aligned, and 64-byte aligned if the size is a multiple of 64. The page's
//! descriptor names the class as long as one object is used.

use super::classes::CLASSES;
use super::latch::Latch;
use super::pages::{PageList, Pages, PAGE_BYTES};
use crate::primitive::{populate, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::ptr;

/// The number of whole batches that a class keeps unsorted. Slots exchange them without touching
/// the objects under the latch.
const STASH_CHAINS: usize = 5;

/// A list of `count` free objects, linked through their first words and ended by 0. They belong to
/// the holder of the chain.
pub(super) struct Chain {
    pub head: usize,
    pub count: u32,
}

impl Chain {
    pub const EMPTY: Chain = Chain { head: 0, count: 0 };

    /// Adds an object.
    ///
    /// # Safety
    /// `object` is a free object of the region that is in no list (INV-M1).
    #[inline]
    unsafe fn push(&mut self, object: usize) {
        // SAFETY: INV-M1: by this function's contract the object belongs to the caller alone.
        unsafe { set_next_object(object, self.head) };
        self.head = object;
        self.count += 1;
    }
}

/// The link of a free object.
///
/// # Safety
/// `object` is the address of a free object in a list that the caller owns (INV-M1).
#[inline]
pub(super) unsafe fn next_object(object: usize) -> usize {
    // SAFETY: INV-M3: objects are 8-byte aligned and at least 16 bytes long. INV-M6: create or
    // attach have exposed the region's provenance.
    unsafe { ptr::with_exposed_provenance::<usize>(object).read() }
}

/// Sets the link of a free object.
///
/// # Safety
/// `object` is the address of a free object that the caller owns (INV-M1).
#[inline]
pub(super) unsafe fn set_next_object(object: usize, next: usize) {
    // SAFETY: INV-M3, INV-M6: as in `next_object`. INV-M1: only the caller uses the object.
    unsafe { ptr::with_exposed_provenance_mut::<usize>(object).write(next) };
}

/// Lets the system map a page of the pool before it is written. A process has a fault for each 4 KB
/// that it writes first. At a read the system maps what lies around, if another process has used it
/// before. The page may lie across two such places. What no process has used is mapped by one call.
fn map_page(address: usize) {
    for at in [address, address + PAGE_BYTES - 1] {
        // SAFETY: INV-M6: the page is in the region, which is mapped, and its provenance is
        // exposed. INV-M2: it has just left the pool, so that no other process writes it.
        std::hint::black_box(unsafe { ptr::with_exposed_provenance::<u8>(at).read_volatile() });
    }
    let page = ptr::with_exposed_provenance_mut::<u8>(address);
    populate(page, page.wrapping_add(PAGE_BYTES));
}

/// The shared state of a size class, on a cache line of its own.
#[repr(C, align(64))]
pub(super) struct SlabClass {
    latch: Latch,
    /// The pages of this class that have a free object, and no others.
    partial: PageList,
    pages: AtomicU32,
    stashed: AtomicU32,
    /// The number of objects outside pages: with callers, in magazines or in the stash.
    outside: AtomicU64,
    /// The heads of the first `stashed` chains. Each has the class's batch length.
    stash: [AtomicU64; STASH_CHAINS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<SlabClass>() == 64);

impl SlabClass {
    pub fn init(&self) {
        self.partial.init();
    }

    pub fn pages(&self) -> u32 {
        self.pages.load(Relaxed)
    }

    pub fn outside(&self) -> u64 {
        self.outside.load(Relaxed)
    }

    /// The number of objects in the stash.
    pub fn stashed_objects(&self, class: usize) -> u32 {
        self.stashed.load(Relaxed) * CLASSES[class].batch
    }

    /// Takes a batch from the stash, or a part of one from pages.
    pub fn take_batch(&self, pages: Pages<'_>, class: usize) -> Chain {
        let batch = CLASSES[class].batch;
        {
            let _held = self.latch.lock();
            if let Some(head) = self.pop_stash() {
                return Chain { head, count: batch };
            }
        }
        self.take(pages, class, batch)
    }

    /// Takes a batch from the stash. The caller holds the latch.
    fn pop_stash(&self) -> Option<usize> {
        let last = self.stashed.load(Relaxed).checked_sub(1)?;
        self.stashed.store(last, Relaxed);
        Some(self.stash[last as usize].load(Relaxed) as usize)
    }

    /// Returns a batch to the stash, or to the pages if the stash is full.
    ///
    /// # Safety
    /// As for `give`. The chain ends with 0 and has the class's batch length.
    pub unsafe fn give_batch(&self, pages: Pages<'_>, class: usize, chain: Chain) {
        debug_assert_eq!(chain.count, CLASSES[class].batch);
        {
            let _held = self.latch.lock();
            let stashed = self.stashed.load(Relaxed);
            if let Some(place) = self.stash.get(stashed as usize) {
                place.store(chain.head as u64, Relaxed);
                self.stashed.store(stashed + 1, Relaxed);
                return;
            }
        }
        // SAFETY: INV-M1: the contract of `give` is part of this function's own.
        unsafe { self.give(pages, class, chain) };
    }

    /// Returns the objects in the stash to their pages.
    pub fn empty_stash(&self, pages: Pages<'_>, class: usize) {
        for _ in 0..self.stashed.load(Relaxed) {
            let head = {
                let _held = self.latch.lock();
                self.pop_stash()
            };
            let Some(head) = head else { return };
            let chain = Chain { head, count: CLASSES[class].batch };
            // SAFETY: INV-M1: the chain has just left the stash of this class.
            unsafe { self.give(pages, class, chain) };
        }
    }

    /// Takes up to `wanted` objects from pages. Takes none only if no page has one and the pool has
    /// no page, or if others are about to bring the pool's last ones.
    pub fn take(&self, pages: Pages<'_>, class: usize, wanted: u32) -> Chain {
        let there = self.latch.with(|| self.take_there(pages, class, wanted));
        if there.count > 0 {
            return there; // a batch with an object in it is not worth a new page
        }
        let page = self.new_page(pages);
        let _held = self.latch.lock();
        if let Some(page) = page {
            pages.descs[page as usize].become_slab(class);
            self.partial.push(pages.descs, page);
            self.pages.store(self.pages.load(Relaxed) + 1, Relaxed);
        }
        self.take_there(pages, class, wanted)
    }

    /// Takes up to `wanted` objects from the pages that are there. The caller holds the latch.
    fn take_there(&self, pages: Pages<'_>, class: usize, wanted: u32) -> Chain {
        let mut chain = Chain::EMPTY;
        while chain.count < wanted {
            let Some(page) = self.partial.first() else { break };
            self.take_from_page(pages, class, page, wanted, &mut chain);
        }
        self.outside.store(self.outside.load(Relaxed) + u64::from(chain.count), Relaxed);
        chain
    }

    /// Takes a page of the pool, and has it mapped. The caller does not hold the latch, because the
    /// system may take its time.
    fn new_page(&self, pages: Pages<'_>) -> Option<u32> {
        let page = pages.pool.take(pages.descs, 1, false)?;
        #[cfg(all(test, not(loom)))]
        tests::NEW.with_borrow_mut(|new| new.push(self.latch.is_held()));
        map_page(pages.address(page));
        Some(page)
    }

    /// Moves objects from a partial page to the chain until the chain has `wanted` or the page has
    /// none. In the latter case the page leaves the partial list.
    fn take_from_page(&self, pages: Pages<'_>, class: usize, page: u32, wanted: u32, chain: &mut Chain) {
        let info = &CLASSES[class];
        let desc = &pages.descs[page as usize];
        let mut free = desc.free_head.load(Relaxed) as usize;
        let mut carved = desc.carved.load(Relaxed);
        let before = chain.count;
        while chain.count < wanted {
            let object = if free != 0 {
                let object = free;
                // SAFETY: INV-M2: under the class latch the free objects in the page's list are
                // ours.
                free = unsafe { next_object(object) };
                object
            } else if carved < info.per_page {
                carved += 1;
                pages.address(page) + ((carved - 1) * info.object_bytes) as usize
            } else {
                break;
            };
            // SAFETY: INV-M2: the object has just left the page's list, or was never handed out.
            unsafe { chain.push(object) };
        }
        let used = desc.used.load(Relaxed) + (chain.count - before);
        desc.free_head.store(free as u64, Relaxed);
        desc.carved.store(carved, Relaxed);
        desc.used.store(used, Relaxed);
        if used == info.per_page {
            self.partial.remove(pages.descs, page);
        }
    }

    /// Returns the chain's objects to their pages, and pages that become entirely free to the pool.
    ///
    /// # Safety
    /// The chain holds `count` objects of this class that only the caller can reach (INV-M1).
    pub unsafe fn give(&self, pages: Pages<'_>, class: usize, chain: Chain) {
        let _held = self.latch.lock();
        let mut object = chain.head;
        for _ in 0..chain.count {
            // SAFETY: INV-M1: by this function's contract the caller owns the chain.
            let next = unsafe { next_object(object) };
            // SAFETY: INV-M1: the object has just left the chain, and the latch is held.
            unsafe { self.give_object(pages, class, object) };
            object = next;
        }
        self.outside.store(self.outside.load(Relaxed) - u64::from(chain.count), Relaxed);
    }

    /// Returns one object to its page.
    ///
    /// # Safety
    /// `object` is a free object of this class that is in no list (INV-M1).
    pub unsafe fn give_one(&self, pages: Pages<'_>, class: usize, object: usize) {
        let mut chain = Chain::EMPTY;
        // SAFETY: INV-M1: by this function's contract the object is in no list.
        unsafe { chain.push(object) };
        // SAFETY: INV-M1: the chain is that object.
        unsafe { self.give(pages, class, chain) };
    }

    /// Returns one object to its page, under the class latch.
    ///
    /// # Safety
    /// `object` is a free object of this class that is in no list (INV-M1). The class latch is
    /// held.
    unsafe fn give_object(&self, pages: Pages<'_>, class: usize, object: usize) {
        let page = pages.page_at(object);
        let desc = &pages.descs[page as usize];
        let used = desc.used.load(Relaxed);
        if used == CLASSES[class].per_page {
            self.partial.push(pages.descs, page);
        }
        desc.used.store(used - 1, Relaxed);
        if used == 1 {
            self.partial.remove(pages.descs, page);
            self.pages.store(self.pages.load(Relaxed) - 1, Relaxed);
            pages.pool.put(pages.descs, page, 1, false);
            return;
        }
        // SAFETY: INV-M1: by this function's contract the object is free. INV-M2: from here on it
        // is in the page's list.
        unsafe { set_next_object(object, desc.free_head.load(Relaxed) as usize) };
        desc.free_head.store(object as u64, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::memory::tests::Block;
    use std::cell::RefCell;

    thread_local! {
        /// Of each page that this thread has taken from the pool for a class: was the class's latch
        /// held when it was mapped?
        pub static NEW: RefCell<Vec<bool>> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn a_page_is_mapped_while_no_latch_is_held() {
        let block = Block::new(4 << 20);
        let region = block.region_on(1, 1);
        NEW.take();
        // With a magazine and without.
        for slot in [0, usize::MAX] {
            for _ in 0..200 {
                region.alloc(slot, 1000).expect("memory");
            }
        }
        let new = NEW.take();
        assert!(new.len() > 3 && !new.contains(&true), "{new:?}");
    }
}
