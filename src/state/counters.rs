//! Counters of statements in shared memory, by backend: see `paths/bypass/counts.rs`.

use crate::pg::local::Local;
use crate::state::{shmem, slots};
use mixedcc_engine::primitive::{AtomicU64, Ordering};
use pgrx::pg_sys;

/// Counters of a backend.
pub const WIDTH: usize = 32;

/// Of the process: written by the start-up hook of shared memory.
static COUNTERS: Local<*mut AtomicU64> = Local::new(std::ptr::null_mut());

/// A row of counters for each slot, and one that `reset` takes off.
fn rows() -> usize {
    shmem::slots() + 1
}

/// Bytes of shared memory.
pub fn size() -> usize {
    rows() * WIDTH * 8
}

/// Finds the counters, or makes them. Called with AddinShmemInitLock.
///
/// # Safety
/// Called by the start-up hook of shared memory.
pub unsafe fn startup() {
    let mut found = false;
    // SAFETY: the start-up hook of shared memory calls this, with AddinShmemInitLock (contract of
    // this function). The new block has `size()` bytes.
    unsafe {
        let p = pg_sys::ShmemInitStruct(c"mixedcc bypass".as_ptr(), size(), &mut found);
        if !found {
            p.cast::<u8>().write_bytes(0, size());
        }
        COUNTERS.set(p.cast());
    }
}

/// A counter. Only its backend writes it; the row of `reset` is written under the lock of the hash
/// of tables.
fn counter(row: usize, n: usize) -> &'static AtomicU64 {
    debug_assert!(row < rows() && n < WIDTH);
    // SAFETY: the start-up hook wrote `COUNTERS` before a process comes here. Rows and width are
    // those of `size`, and the words are atomic.
    unsafe { &*COUNTERS.get().add(row * WIDTH + n) }
}

/// Counts an event of this backend.
pub fn add(n: usize) {
    let c = counter(slots::my_number() as usize, n);
    c.store(c.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

fn sum(n: usize) -> u64 {
    (0..rows() - 1).map(|row| counter(row, n).load(Ordering::Relaxed)).sum()
}

/// The events of all backends since the last reset.
pub fn total(n: usize) -> u64 {
    // Another session may reset it between the two looks.
    sum(n).saturating_sub(counter(rows() - 1, n).load(Ordering::Relaxed))
}

/// Counts from zero again.
pub fn reset() {
    shmem::exclusively(|| {
        for n in 0..WIDTH {
            counter(rows() - 1, n).store(sum(n), Ordering::Relaxed);
        }
    });
}
