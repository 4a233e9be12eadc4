//! The shared region and everything that is allocated in it.
//!
//! One block of memory, mapped at the same address in every process, has an arena for each memory
//! node of the machine (one, unless more are requested). An arena is cut into pages of 64 KiB.
//! Pages become slabs of one size class, or runs for objects above [`MAX_SLAB_OBJECT`]. The
//! reasons are in `README.md`, the invariants in the files that keep them.

mod arena;
mod classes;
mod directory;
mod latch;
mod magazine;
mod pages;
mod pressure;
mod region;
mod slab;

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, not(loom)))]
mod node_tests;

pub use classes::{memory_of, CLASS_COUNT, MAX_SLAB_OBJECT};
pub use directory::TidDirectory;
pub(crate) use latch::Latch;
pub use pages::PAGE_BYTES;
pub use pressure::{Pressure, Warning};
pub use region::{Region, MAX_NODES, NODE_ALIGN};

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the shared region keeps 64-bit addresses");

/// The region has no space left for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("out of shared region memory")
    }
}

impl std::error::Error for OutOfMemory {}

/// The use of the region's memory. Each number is exact if nothing else runs. Otherwise it is
/// approximate, as the counters are not read at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The size of the whole block, with header, magazines and descriptors.
    pub total_bytes: usize,
    /// The bytes of pages that are slabs or runs.
    pub used_page_bytes: usize,
    /// The bytes of pages in the pool. With `used_page_bytes` this is every page.
    pub free_page_bytes: usize,
    /// The part of `used_page_bytes` that is runs.
    pub run_bytes: usize,
    /// The use of each size class.
    pub classes: [ClassUsage; CLASS_COUNT],
}

impl Usage {
    fn plus(mut self, other: Usage) -> Usage {
        self.total_bytes += other.total_bytes;
        self.used_page_bytes += other.used_page_bytes;
        self.free_page_bytes += other.free_page_bytes;
        self.run_bytes += other.run_bytes;
        for (a, b) in self.classes.iter_mut().zip(other.classes) {
            a.pages += b.pages;
            a.live += b.live;
            a.cached += b.cached;
        }
        self
    }
}

/// One size class of [`Usage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassUsage {
    /// The size of its objects.
    pub object_bytes: usize,
    /// The number of pages cut into them.
    pub pages: usize,
    /// The number of objects that callers hold.
    pub live: usize,
    /// The number of free objects in magazines and stashes.
    pub cached: usize,
}
