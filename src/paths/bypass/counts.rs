//! How many statements took the bypass, and why others did not: counters in shared memory, by
//! backend.

use super::Reason;
use crate::state::shmem;
use mixedcc_engine::primitive::{AtomicU64, Ordering};
use pgrx::pg_sys::{self, CmdType};

/// Counters of a backend: statements that took the bypass by kind, then the others by reason.
pub const WIDTH: usize = 32;
const KINDS: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];

static mut COUNTERS: *mut AtomicU64 = std::ptr::null_mut();

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
    // SAFETY: the caller's.
    unsafe {
        let p = pg_sys::ShmemInitStruct(c"mixedcc bypass".as_ptr(), size(), &mut found);
        if !found {
            p.cast::<u8>().write_bytes(0, size());
        }
        COUNTERS = p.cast();
    }
}

/// A counter: only its backend writes it (the row of `reset`: under the lock of the hash of
/// tables).
fn counter(row: usize, n: usize) -> &'static AtomicU64 {
    debug_assert!(row < rows() && n < WIDTH);
    // SAFETY: written by the start-up hook only; rows and width are those of `size`.
    unsafe { &*COUNTERS.add(row * WIDTH + n) }
}

fn add(n: usize) {
    let c = counter(shmem::my_slot() as usize, n);
    c.store(c.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// A statement takes the bypass.
#[inline]
pub fn taken(op: CmdType::Type) {
    add(kind(op));
}

fn kind(op: CmdType::Type) -> usize {
    match op {
        CmdType::CMD_INSERT => 1,
        CmdType::CMD_UPDATE => 2,
        CmdType::CMD_DELETE => 3,
        _ => 0,
    }
}

/// A statement on a table of ours goes to the executor.
pub fn refused(why: Reason) {
    add(KINDS.len() + why as usize);
}

fn sum(n: usize) -> u64 {
    (0..rows() - 1).map(|row| counter(row, n).load(Ordering::Relaxed)).sum()
}

/// The counters since the last reset: statement or null, reason or null, number.
pub fn all() -> Vec<(Option<&'static str>, Option<&'static str>, i64)> {
    let base = rows() - 1;
    let value = |n| (sum(n) - counter(base, n).load(Ordering::Relaxed)) as i64;
    let kinds = KINDS.iter().enumerate().map(|(n, k)| (Some(*k), None, value(n)));
    let reasons = Reason::ALL.iter().map(|r| (None, Some(r.name()), value(KINDS.len() + *r as usize)));
    kinds.chain(reasons).collect()
}

/// Counts from zero again.
pub fn reset() {
    shmem::exclusively(|| {
        for n in 0..WIDTH {
            counter(rows() - 1, n).store(sum(n), Ordering::Relaxed);
        }
    });
}
