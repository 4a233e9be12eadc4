//! A growable array of items with stable addresses, read without latches.
//!
//! Chunks hold 256 items. Segments hold pointers to chunks and double in size, so that neither is
//! ever moved or copied.
//!
//! **INV-D1**: A published pointer of a [`TidDirectory`] never changes until `clear`. It points to
//! a segment or chunk of full size that was zeroed before.
//!
//! **INV-DIR**: Chunks of records have stable addresses, and zeroed memory is a free record.

use super::region::Region;
use super::OutOfMemory;
use crate::primitive::{AtomicPtr, AtomicU32, Ordering};
use std::ptr::{self, NonNull};

const CHUNK_SHIFT: u32 = 8;
const SEGMENTS: usize = 28;
/// Segment s has 16 << s chunks.
const FIRST_SEGMENT_LOG2: u32 = 4;
const FIRST_SEGMENT: u64 = 1 << FIRST_SEGMENT_LOG2;
const MAX_CHUNKS: u64 = FIRST_SEGMENT * ((1 << SEGMENTS) - 1);

type ChunkPtr = AtomicPtr<u8>;

/// The root of the array, embedded in a structure of the region.
#[repr(C)]
pub struct TidDirectory {
    segments: [AtomicPtr<ChunkPtr>; SEGMENTS],
    item_size: u32,
    /// The number of the highest chunk that exists, plus one.
    chunks: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<TidDirectory>() == 8 * SEGMENTS + 8);
const _: () = assert!(MAX_CHUNKS <= u32::MAX as u64);

/// The place of a chunk's pointer.
#[derive(Clone, Copy)]
struct Place {
    segment: usize,
    index: usize,
}

#[inline]
fn place_of(chunk: u64) -> Option<Place> {
    if chunk >= MAX_CHUNKS {
        return None;
    }
    let shifted = chunk + FIRST_SEGMENT;
    let log2 = 63 - shifted.leading_zeros();
    let segment = (log2 - FIRST_SEGMENT_LOG2) as usize;
    Some(Place { segment, index: (shifted - (1 << log2)) as usize })
}

fn segment_chunks(segment: usize) -> usize {
    (FIRST_SEGMENT as usize) << segment
}

impl TidDirectory {
    /// The number of items in a chunk.
    pub const CHUNK: u32 = 1 << CHUNK_SHIFT;

    /// How many items there are from item `n` to the end of its chunk.
    #[inline]
    pub fn left_in_chunk(n: u64) -> u64 {
        u64::from(Self::CHUNK) - n % u64::from(Self::CHUNK)
    }

    /// Makes the memory at `this` an empty directory. Chunks are 64-byte aligned, so an item has
    /// the alignment of `item_size`, up to 64.
    ///
    /// # Safety
    /// `this` is aligned, writable and not in use.
    pub unsafe fn init(this: *mut TidDirectory, item_size: u32) {
        debug_assert!(item_size > 0);
        // SAFETY: INV-D1: by this function's contract the memory is ours; zero bytes are null
        // pointers and zero counters.
        unsafe {
            ptr::write_bytes(this, 0, 1);
            (*this).item_size = item_size;
        }
    }

    /// The number of the highest existing chunk, plus one. Chunks below it may be missing.
    pub fn chunks(&self) -> u32 {
        // Acquire pairs with the AcqRel in `ensure`: the chunk itself is visible.
        self.chunks.load(Ordering::Acquire)
    }

    /// Item `n`. `None` if its chunk does not exist.
    #[inline]
    pub fn get(&self, n: u64) -> Option<NonNull<u8>> {
        let place = place_of(n >> CHUNK_SHIFT)?;
        // Acquire pairs with the publication in `ensure_segment`.
        let segment = NonNull::new(self.segments[place.segment].load(Ordering::Acquire))?;
        // SAFETY: INV-D1: a published segment has `segment_chunks` pointers.
        let slot = unsafe { segment.add(place.index).as_ref() };
        // Acquire pairs with the publication in `ensure`.
        let chunk = NonNull::new(slot.load(Ordering::Acquire))?;
        Some(self.item_in(chunk, n))
    }

    #[inline]
    fn item_in(&self, chunk: NonNull<u8>, n: u64) -> NonNull<u8> {
        let index = (n as u32 & (Self::CHUNK - 1)) as usize;
        // SAFETY: INV-D1: a published chunk has CHUNK items of `item_size`.
        unsafe { chunk.add(index * self.item_size as usize) }
    }

    /// Item `n`. Makes its chunk, with all items zero, if it does not exist.
    pub fn ensure(&self, region: &Region, slot: usize, n: u64) -> Result<NonNull<u8>, OutOfMemory> {
        let chunk_number = n >> CHUNK_SHIFT;
        if u64::from(self.chunks.load(Ordering::Relaxed)) > chunk_number {
            if let Some(item) = self.get(n) {
                return Ok(item);
            }
        }
        let place = place_of(chunk_number).ok_or(OutOfMemory)?;
        let segment = self.ensure_segment(region, slot, place.segment)?;
        // SAFETY: INV-D1: a published segment has `segment_chunks` pointers.
        let pointer = unsafe { segment.add(place.index).as_ref() };
        let bytes = Self::CHUNK as usize * self.item_size as usize;
        let chunk = publish(pointer, region, slot, bytes)?;
        // AcqRel pairs with `chunks`.
        self.chunks.fetch_max(chunk_number as u32 + 1, Ordering::AcqRel);
        Ok(self.item_in(chunk, n))
    }

    fn ensure_segment(&self, region: &Region, slot: usize, segment: usize) -> Result<NonNull<ChunkPtr>, OutOfMemory> {
        let bytes = segment_chunks(segment) * size_of::<ChunkPtr>();
        publish(&self.segments[segment], region, slot, bytes)
    }

    /// Frees the last chunk, and its segment if it was the segment's first. Afterwards
    /// [`TidDirectory::clear`] frees the rest.
    ///
    /// # Safety
    /// No other code uses the directory or an item of it. `region` is the one given to `ensure`.
    pub unsafe fn free_last(&self, region: &Region, slot: usize) {
        let Some(last) = self.chunks().checked_sub(1) else { return };
        self.chunks.store(last, Ordering::Relaxed);
        let Some(place) = place_of(u64::from(last)) else { return };
        let Some(segment) = NonNull::new(self.segments[place.segment].load(Ordering::Acquire)) else { return };
        // SAFETY: INV-D1: a published segment has `segment_chunks` pointers.
        let pointer = unsafe { segment.add(place.index).as_ref() };
        if let Some(chunk) = NonNull::new(pointer.swap(ptr::null_mut(), Ordering::Relaxed)) {
            // SAFETY: INV-D1: the chunk is from `alloc` of this region, and by this function's
            // contract there are no other users.
            unsafe { region.free(slot, chunk) };
        }
        if place.index == 0 {
            self.segments[place.segment].store(ptr::null_mut(), Ordering::Release);
            // SAFETY: INV-D1: as for the chunk. The segment's later chunks were freed before.
            unsafe { region.free(slot, segment.cast()) };
        }
    }

    /// Frees everything. Afterwards the directory is empty and usable.
    ///
    /// # Safety
    /// No other code uses the directory or an item of it, now or later, through an address that it
    /// has. `region` is the one given to `ensure`.
    pub unsafe fn clear(&self, region: &Region, slot: usize) {
        self.chunks.store(0, Ordering::Relaxed);
        for (number, root) in self.segments.iter().enumerate() {
            let Some(segment) = NonNull::new(root.load(Ordering::Acquire)) else {
                continue;
            };
            for index in 0..segment_chunks(number) {
                // SAFETY: INV-D1: a published segment has `segment_chunks` pointers.
                let pointer = unsafe { segment.add(index).as_ref() };
                if let Some(chunk) = NonNull::new(pointer.load(Ordering::Acquire)) {
                    // SAFETY: INV-D1: the chunk is from `alloc` of this region, and by this
                    // function's contract there are no other users.
                    unsafe { region.free(slot, chunk) };
                }
            }
            root.store(ptr::null_mut(), Ordering::Release);
            // SAFETY: INV-D1: as for the chunks.
            unsafe { region.free(slot, segment.cast()) };
        }
    }
}

/// The memory that `pointer` points to. If it is null, allocates `bytes` zeroed bytes and publishes
/// them there, unless another process is faster.
fn publish<T>(pointer: &AtomicPtr<T>, region: &Region, slot: usize, bytes: usize) -> Result<NonNull<T>, OutOfMemory> {
    if let Some(present) = NonNull::new(pointer.load(Ordering::Acquire)) {
        return Ok(present);
    }
    let made = region.alloc(slot, bytes)?;
    // SAFETY: INV-M1: just allocated with this size, and not published.
    unsafe { ptr::write_bytes(made.as_ptr(), 0, bytes) };
    let made_ptr = made.as_ptr().cast::<T>();
    // Release publishes the zeroes. Acquire on failure makes those of the winner visible.
    match pointer.compare_exchange(ptr::null_mut(), made_ptr, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(made.cast()),
        Err(winner) => {
            // SAFETY: INV-M1: `made` was not published.
            unsafe { region.free(slot, made) };
            NonNull::new(winner).ok_or(OutOfMemory)
        }
    }
}
