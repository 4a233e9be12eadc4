//! Blocks of the files of permanent tables, for processes that are prepared for an ERROR: a backend
//! in a transaction, the companion, the startup process.

use super::compat::buffers as compat;
pub use compat::{close_all, Image};
use mixedcc_engine::durable::merge::Fork;
use mixedcc_engine::durable::{Lsn, PAGE};
use pgrx::pg_sys;

/// A ring of shared buffers, so that much reading or writing does not evict what others use.
pub struct Ring(pg_sys::BufferAccessStrategy);

impl Ring {
    /// For reading.
    pub fn to_read() -> Ring {
        Ring::of(pg_sys::BufferAccessStrategyType::BAS_BULKREAD)
    }
    /// For writing.
    pub fn to_write() -> Ring {
        Ring::of(pg_sys::BufferAccessStrategyType::BAS_BULKWRITE)
    }
    fn of(kind: pg_sys::BufferAccessStrategyType::Type) -> Ring {
        // SAFETY: it allocates in the current memory context, which outlives this frame's callers.
        Ring(unsafe { pg_sys::GetAccessStrategy(kind) })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: made by `of`, and freed once. No buffer refers to it.
        unsafe { pg_sys::FreeAccessStrategy(self.0) };
    }
}

/// The most pages of one WAL record: fewer where there are few shared buffers.
pub fn pages_at_once() -> usize {
    // SAFETY: a variable of this process, which its settings have set.
    let buffers = unsafe { pg_sys::NBuffers } as usize;
    (buffers / 8).clamp(1, compat::PAGES_MAX)
}

/// Does the file of a fork exist?
pub fn exists(key: [u32; 4], fork: Fork) -> bool {
    // SAFETY: as this module says, the process is prepared for an ERROR.
    unsafe { compat::exists(key, fork) }
}

/// The blocks of a fork, which exists.
pub fn blocks(key: [u32; 4], fork: Fork) -> u32 {
    // SAFETY: as this module says, the process is prepared for an ERROR.
    unsafe { compat::blocks(key, fork) }
}

/// Adds a block of zeros to a fork, and says its number. No other process extends the fork.
pub fn extend(key: [u32; 4], fork: Fork) -> u32 {
    // SAFETY: as this module says, the process is prepared for an ERROR.
    unsafe { compat::extend(key, fork) }
}

/// Copies a block. `or_zero`: a block that cannot be read is one of zeros, else it is an ERROR.
pub fn read(key: [u32; 4], fork: Fork, block: u32, or_zero: bool, ring: Option<&Ring>, to: &mut [u8; PAGE]) {
    let strategy = ring.map_or(std::ptr::null_mut(), |r| r.0);
    // SAFETY: as this module says, the process is prepared for an ERROR. The ring lives.
    unsafe { compat::read(key, fork, block, or_zero, strategy, to) };
}

/// Copies a block as it is on disk.
pub fn read_raw(key: [u32; 4], fork: Fork, block: u32, to: &mut [u8; PAGE]) {
    // SAFETY: as this module says, the process is prepared for an ERROR.
    unsafe { compat::read_raw(key, fork, block, to) };
}

/// Cuts a fork to so many blocks, without a WAL record.
///
/// # Safety
/// No other process uses the blocks that go.
pub unsafe fn truncate(key: [u32; 4], fork: Fork, blocks: u32) {
    // SAFETY: as this module says, the process is prepared for an ERROR; the rest is this
    // function's own contract.
    unsafe { compat::truncate(key, fork, blocks) };
}

/// Writes pages of a main fork, in one WAL record of this resource manager and info, and says where
/// that ends. An ERROR leaves all as it was.
///
/// # Safety
/// The pages are at most [`pages_at_once`] blocks, each once, that no other process uses.
pub unsafe fn write(key: [u32; 4], record: (u8, u8), data: &[u8], pages: &[Image], ring: &Ring) -> Lsn {
    // SAFETY: as this module says, the process is prepared for an ERROR; the rest is this
    // function's own contract.
    unsafe { compat::write(key, record, data, pages, ring.0) }
}
