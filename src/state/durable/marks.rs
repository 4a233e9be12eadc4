//! Time marks for recovery to a point in time (INV-MARK): which commits take a transaction id for
//! the time in PostgreSQL's commit record.

use crate::pg::{guc, wal};
use crate::state::shmem;

/// The setting in microseconds. `None`: no commit is a mark, or WAL is not kept for a recovery.
fn every() -> Option<u64> {
    let ms = u64::try_from(guc::TIME_MARKS_MS.get()).ok()?;
    wal::is_archived().then_some(ms * 1000)
}

/// Now, as records of commits have it.
pub fn now() -> u64 {
    // SAFETY: reads the clock and raises nothing.
    unsafe { pgrx::pg_sys::GetCurrentTimestamp() as u64 }
}

/// Is a commit that asks now to be a mark?
pub fn is_due() -> bool {
    every().is_some_and(|every| shmem::engine().shared.marks.is_due(now(), every))
}

/// PostgreSQL's commit record of a transaction of ours is inserted. Its time is at or after this
/// one.
pub fn set(time: u64) {
    if let Some(every) = every() {
        shmem::engine().shared.marks.set(time, every);
    }
}
