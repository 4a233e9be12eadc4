//! Tests of the region and the directory on a block of process memory.

use super::*;
use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

/// A block, which outlives the region in it.
pub(super) struct Block {
    pub base: *mut u8,
    pub layout: Layout,
}

impl Block {
    pub fn new(bytes: usize) -> Block {
        let layout = Layout::from_size_align(bytes, 4096).unwrap();
        // SAFETY: the size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        assert!(!base.is_null());
        Block { base, layout }
    }

    fn region(&self, slots: usize) -> &Region {
        self.region_on(slots, 1)
    }
    pub fn region_on(&self, slots: usize, nodes: usize) -> &Region {
        // SAFETY: the block belongs to the test and lives as long as the returned reference.
        unsafe { Region::create(self.base, self.layout.size(), slots, nodes) }.unwrap()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base, self.layout) };
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    /// Mostly a small size, sometimes that of any slab object, seldom that of a run.
    fn size(&mut self) -> usize {
        (match self.below(100) {
            0..70 => self.below(200),
            70..98 => self.below(MAX_SLAB_OBJECT as u64 + 1),
            _ => self.below(10 * PAGE_BYTES as u64),
        }) as usize
    }
}

/// An allocated object whose first `size` bytes are filled with `tag`.
pub(super) struct Object {
    address: NonNull<u8>,
    size: usize,
    tag: u8,
}

// SAFETY: INV-M1: the test's objects have one owner at a time.
unsafe impl Send for Object {}

impl Object {
    fn new(region: &Region, slot: usize, size: usize, tag: u8) -> Option<Object> {
        let address = region.alloc(slot, size).ok()?;
        // SAFETY: INV-M1: allocated by this region.
        let usable = unsafe { region.usable_size(address) };
        assert!(usable >= size);
        let align = if usable.is_multiple_of(64) { 64 } else { 8 };
        assert!((address.as_ptr() as usize).is_multiple_of(align), "{usable} bytes at {address:?}");
        // SAFETY: INV-M1: `size` bytes belong to the object.
        unsafe { address.write_bytes(tag, size) };
        Some(Object { address, size, tag })
    }

    pub fn free(self, region: &Region, slot: usize) {
        // SAFETY: INV-M1: `size` bytes belong to the object and were written by `new`.
        let bytes = unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.size) };
        assert!(bytes.iter().all(|byte| *byte == self.tag), "another owner wrote to an object of {} bytes", self.size);
        // SAFETY: INV-M1: the only owner frees it.
        unsafe { region.free(slot, self.address) };
    }
}

fn assert_empty(region: &Region) {
    let usage = region.usage();
    assert_eq!((usage.used_page_bytes, usage.run_bytes), (0, 0));
    for class in usage.classes {
        assert_eq!((class.pages, class.live, class.cached), (0, 0, 0), "class {}", class.object_bytes);
    }
    // A free run of all pages shows that everything was joined again.
    let run = region.alloc(usize::MAX, usage.free_page_bytes).unwrap();
    assert_eq!(region.usage().free_page_bytes, 0);
    // SAFETY: INV-M1: just allocated.
    unsafe { region.free(usize::MAX, run) };
}

#[test]
fn create_refuses_small_blocks_and_attach_strange_ones() {
    let slots = 3;
    let bytes = Region::min_size(slots);
    let block = Block::new(bytes.next_multiple_of(4096));
    // SAFETY: the block belongs to this test.
    unsafe {
        assert!(Region::create(block.base, bytes - 1, slots, 1).is_err());
        assert!(Region::create(block.base.add(8), bytes, slots, 1).is_err());
        assert!(Region::attach(block.base).is_none());
        let region = Region::create(block.base, bytes, slots, 1).unwrap();
        assert!(std::ptr::eq(Region::attach(block.base).unwrap(), region));
        assert_empty(region);
    }
    let copy = Block::new(bytes.next_multiple_of(4096));
    // SAFETY: both blocks belong to this test and have this length.
    unsafe {
        std::ptr::copy_nonoverlapping(block.base, copy.base, bytes);
        assert!(Region::attach(copy.base).is_none(), "formatted at another address");
    }
}

#[test]
fn pages_do_not_leave_the_block() {
    for extra in [0, 1, 4095, 65_535, 65_536, 1_000_000] {
        let block = Block::new(Region::min_size(7) + extra);
        let region = block.region(7);
        let pages = region.usage().free_page_bytes;
        let run = Object::new(region, 0, pages, 7).unwrap();
        let end = run.address.as_ptr() as usize + pages;
        assert!(end <= block.base as usize + block.layout.size());
        assert!(pages + (2 * PAGE_BYTES) > block.layout.size() - Region::min_size(7) + 16 * PAGE_BYTES);
        run.free(region, 0);
        assert_empty(region);
    }
}

#[test]
fn every_class_fills_its_page_without_overlap() {
    let block = Block::new(4 << 20);
    let region = block.region(1);
    for class in region.usage().classes {
        let bytes = class.object_bytes;
        let count = 2 * (PAGE_BYTES / bytes);
        let objects: Vec<_> = (0..count).map(|i| Object::new(region, 0, bytes, i as u8).unwrap()).collect();
        let usage = region.usage();
        assert_eq!(usage.classes.iter().map(|c| c.live).sum::<usize>(), count);
        assert!(usage.used_page_bytes <= 3 * PAGE_BYTES);
        objects.into_iter().for_each(|object| object.free(region, 0));
        region.flush_slot(0);
        assert_empty(region);
    }
}

#[test]
fn a_magazine_serves_the_object_freed_last() {
    let block = Block::new(4 << 20);
    let region = block.region(2);
    let first = region.alloc(0, 100).unwrap();
    // SAFETY: INV-M1: allocated above, and freed once.
    unsafe { region.free(0, first) };
    assert_eq!(region.alloc(0, 97), Ok(first));
    assert_ne!(region.alloc(1, 97), Ok(first));
}

#[test]
fn out_of_memory_is_reported_and_space_moves_to_another_class() {
    let block = Block::new(4 << 20);
    let region = block.region(2);
    let total = region.usage().free_page_bytes;
    let sizes = [48, 4096, 20_000, 40, 3 * PAGE_BYTES, 1000, MAX_SLAB_OBJECT];
    for (round, size) in sizes.into_iter().enumerate() {
        let mut objects = Vec::new();
        while let Some(object) = Object::new(region, 0, size, round as u8) {
            objects.push(object);
        }
        let held = objects.iter().map(|object| object.size).sum::<usize>();
        assert!(held * 10 > total * 8, "only {held} of {total} bytes were usable for {size}");
        assert_eq!(region.alloc(0, size), Err(OutOfMemory));
        assert_eq!(region.alloc(0, total + 1), Err(OutOfMemory));
        assert_eq!(region.alloc(0, usize::MAX), Err(OutOfMemory));
        // The other slot has no memory either. After one free it is served again.
        assert_eq!(region.alloc(1, size), Err(OutOfMemory));
        objects.pop().unwrap().free(region, 1);
        objects.push(Object::new(region, 1, size, round as u8).unwrap());
        objects.into_iter().for_each(|object| object.free(region, 0));
    }
    // The slot's own magazines are emptied before an allocation fails.
    Object::new(region, 0, 64, 1).unwrap().free(region, 0);
    assert!(region.usage().used_page_bytes > 0);
    Object::new(region, 0, total, 2).unwrap().free(region, 0);
    assert_empty(region);
}

#[test]
fn runs_are_joined_whatever_the_order_of_frees() {
    let block = Block::new(8 << 20);
    let region = block.region(1);
    let mut random = Random(11);
    for _ in 0..200 {
        let mut runs: Vec<Object> = Vec::new();
        for tag in 0..20 {
            let pages = 1 + random.below(9) as usize;
            runs.extend(Object::new(region, 0, pages * PAGE_BYTES, tag));
            if random.below(3) == 0 && !runs.is_empty() {
                let victim = random.below(runs.len() as u64) as usize;
                runs.swap_remove(victim).free(region, 0);
            }
        }
        let held: usize = runs.iter().map(|run| run.size).sum();
        assert_eq!(region.usage().run_bytes, held);
        while !runs.is_empty() {
            let victim = random.below(runs.len() as u64) as usize;
            runs.swap_remove(victim).free(region, 0);
        }
        assert_empty(region);
    }
}

/// One thread of the stress test. It allocates, checks and frees objects, and hands half of them to
/// other threads.
pub(super) fn churn(region: &Region, slot: usize, exchange: &Mutex<Vec<Object>>, rounds: u32, failures: &AtomicU64) {
    let mut random = Random(0x9E37_79B9 + slot as u64);
    let mut mine: Vec<Object> = Vec::new();
    for round in 0..rounds {
        if random.below(100) < 55 {
            match Object::new(region, slot, random.size(), (round as u8) ^ (slot as u8) << 5) {
                Some(object) => mine.push(object),
                None => {
                    failures.fetch_add(1, Ordering::Relaxed);
                    mine.drain(..).for_each(|object| object.free(region, slot));
                }
            }
        } else if !mine.is_empty() {
            let victim = random.below(mine.len() as u64) as usize;
            let object = mine.swap_remove(victim);
            if random.below(2) == 0 {
                object.free(region, slot);
            } else {
                let taken = {
                    let mut exchange = exchange.lock().unwrap();
                    let count = exchange.len() as u64;
                    exchange.push(object);
                    let index = random.below(count + 1) as usize;
                    (count > 100).then(|| exchange.swap_remove(index))
                };
                if let Some(object) = taken {
                    object.free(region, slot);
                }
            }
        }
        if random.below(5000) == 0 {
            region.flush_slot(slot);
        }
    }
    mine.into_iter().for_each(|object| object.free(region, slot));
}

fn stress(bytes: usize, rounds: u32) -> u64 {
    let threads = 4;
    let block = Block::new(bytes);
    // The last thread has no slot of its own.
    let region = block.region(threads - 1);
    let (exchange, failures) = (Mutex::new(Vec::new()), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for slot in 0..threads {
            let (exchange, failures) = (&exchange, &failures);
            scope.spawn(move || churn(region, slot, exchange, rounds, failures));
        }
    });
    exchange.into_inner().unwrap().into_iter().for_each(|object| object.free(region, 0));
    (0..threads).for_each(|slot| region.flush_slot(slot));
    assert_empty(region);
    failures.into_inner()
}

#[test]
fn threads_never_share_an_object_and_everything_returns() {
    let failures = stress(256 << 20, 40_000);
    assert_eq!(failures, 0, "this region is large enough");
}

#[test]
fn threads_survive_a_region_that_is_too_small() {
    let failures = stress(3 << 20, 40_000);
    assert!(failures > 0, "the test shall run out of memory");
}

#[cfg(debug_assertions)]
#[test]
fn freed_memory_is_overwritten_in_debug_builds() {
    let block = Block::new(4 << 20);
    let region = block.region(1);
    let object = Object::new(region, 0, 64, 1).unwrap();
    let last = object.address.as_ptr().wrapping_add(63);
    object.free(region, 0);
    // SAFETY: the page is still mapped, and no other thread runs.
    assert_eq!(unsafe { last.read() }, 0xDB);
}

/// A directory in the region, as its users embed it.
fn directory(region: &Region, item_size: u32) -> &TidDirectory {
    let memory = region.alloc(0, size_of::<TidDirectory>()).unwrap().cast::<TidDirectory>();
    // SAFETY: INV-M1: just allocated, 8-byte aligned and of that size.
    unsafe {
        TidDirectory::init(memory.as_ptr(), item_size);
        memory.as_ref()
    }
}

fn drop_directory(region: &Region, directory: &TidDirectory) {
    // SAFETY: INV-D1: the test is the only user, and does not use it again.
    unsafe {
        directory.clear(region, 0);
        region.free(0, NonNull::from(directory).cast());
    }
    region.flush_slot(0);
    assert_empty(region);
}

#[test]
fn items_are_zero_distinct_and_stay_where_they_are() {
    let block = Block::new(64 << 20);
    let region = block.region(1);
    let directory = directory(region, 24);
    let count = 100_000u64;
    let mut addresses = Vec::new();
    for n in 0..count {
        assert_eq!(directory.get(n).is_some(), !n.is_multiple_of(u64::from(TidDirectory::CHUNK)));
        let item = directory.ensure(region, 0, n).unwrap().cast::<[u64; 3]>();
        // SAFETY: INV-D1: an item is 24 zeroed bytes, 8-byte aligned.
        unsafe {
            assert_eq!(item.read(), [0; 3]);
            item.write([n, !n, n]);
        }
        addresses.push(item);
    }
    for (n, address) in addresses.into_iter().enumerate() {
        assert_eq!(directory.get(n as u64), Some(address.cast()));
        // SAFETY: INV-D1: written above, at a stable address.
        assert_eq!(unsafe { address.read() }, [n as u64, !(n as u64), n as u64]);
    }
    assert_eq!(u64::from(directory.chunks()), count.div_ceil(u64::from(TidDirectory::CHUNK)));
    drop_directory(region, directory);
}

#[test]
fn holes_and_the_far_end_of_a_directory() {
    let block = Block::new(64 << 20);
    let region = block.region(1);
    let directory = directory(region, 64);
    assert_eq!((directory.chunks(), directory.get(0)), (0, None));
    let far = 1_000_000;
    let item = directory.ensure(region, 0, far).unwrap();
    assert!((item.as_ptr() as usize).is_multiple_of(64));
    assert_eq!(directory.get(far), Some(item));
    assert_eq!(directory.chunks(), far as u32 / TidDirectory::CHUNK + 1);
    assert_eq!(directory.get(far - 1000), None);
    assert_eq!(directory.get(0), None);
    for n in [u64::MAX, 1 << 40, ((1 << 32) - 16) << 8, (((1 << 32) - 16) << 8) - 1] {
        assert_eq!(directory.get(n), None);
        assert_eq!(directory.ensure(region, 0, n), Err(OutOfMemory), "item {n}");
    }
    assert_eq!(directory.get(far), Some(item));
    // SAFETY: INV-D1: the test is the only user.
    unsafe { directory.clear(region, 0) };
    assert_eq!((directory.chunks(), directory.get(far)), (0, None));
    assert!(directory.ensure(region, 0, 5).is_ok());
    drop_directory(region, directory);
}

#[test]
fn a_directory_that_runs_out_of_memory_keeps_what_it_has() {
    let block = Block::new(3 << 20);
    let region = block.region(1);
    let directory = directory(region, 40);
    let failed = (0..u64::MAX).step_by(256).find(|n| directory.ensure(region, 0, *n).is_err()).unwrap();
    assert_eq!(directory.get(failed), None);
    assert_eq!(u64::from(directory.chunks()) * 256, failed);
    assert!((0..failed).all(|n| directory.get(n).is_some()));
    drop_directory(region, directory);
}

#[test]
fn threads_that_grow_one_directory_agree() {
    let (threads, items) = (4, 30_000u64);
    for _ in 0..5 {
        let block = Block::new(32 << 20);
        let region = block.region(threads);
        let directory = directory(region, 8);
        std::thread::scope(|scope| {
            for slot in 0..threads {
                scope.spawn(move || {
                    for n in 0..items {
                        let item = directory.ensure(region, slot, n).unwrap().cast::<AtomicU64>();
                        assert_eq!(directory.get(n), Some(item.cast()));
                        assert!(u64::from(directory.chunks()) > n / 256);
                        // SAFETY: INV-D1: an item is a zeroed, aligned word of the directory.
                        unsafe { item.as_ref() }.fetch_add(n + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        for n in 0..items {
            let item = directory.get(n).unwrap().cast::<AtomicU64>();
            // SAFETY: INV-D1: as above.
            let sum = unsafe { item.as_ref() }.load(Ordering::Relaxed);
            assert_eq!(sum, threads as u64 * (n + 1));
        }
        (0..threads).for_each(|slot| region.flush_slot(slot));
        drop_directory(region, directory);
    }
}

/// The loser of the race for a chunk must free its copy. Large items make zeroing slow and so the
/// race likely.
#[test]
fn threads_that_make_one_chunk_at_once_leave_nothing_behind() {
    let block = Block::new(64 << 20);
    let region = block.region(2);
    let directory = directory(region, 4096);
    let arrived = AtomicU64::new(0);
    let made: Vec<Vec<_>> = std::thread::scope(|scope| {
        let run = |slot| {
            let arrived = &arrived;
            move || {
                let make = |chunk: u64| {
                    arrived.fetch_add(1, Ordering::AcqRel);
                    while arrived.load(Ordering::Acquire) < 2 * (chunk + 1) {
                        std::thread::yield_now();
                    }
                    let item = directory.ensure(region, slot, chunk * 256).unwrap();
                    item.as_ptr() as usize
                };
                (0..40).map(make).collect()
            }
        };
        let threads = [scope.spawn(run(0)), scope.spawn(run(1))];
        threads.map(|thread| thread.join().unwrap()).into()
    });
    assert_eq!(made[0], made[1]);
    region.flush_slot(1);
    drop_directory(region, directory);
}
