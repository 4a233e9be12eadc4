//! Loads of tables, as other processes see them.

use crate::pg::compat;
use crate::state::{shmem, slots};
use mixedcc_engine::durable::progress::{Progress, Shown};
use mixedcc_engine::primitive::Ordering;
use pgrx::pg_sys;

/// The progress of this process.
pub fn mine() -> &'static Progress {
    &shmem::engine().slots[shmem::my_slot() as usize].load
}

/// The loads under way, with their processes.
pub fn under_way() -> Vec<(i32, Shown)> {
    let all = shmem::engine().slots.iter().enumerate();
    all.filter_map(|(i, s)| Some((slots::pid_of(i as u16)?, s.load.shown()?))).collect()
}

/// Ends the loaders of a database, for a command that must have it alone and has locked it: no
/// other loader connects meanwhile. The command itself waits until they have left.
pub fn leave(database: u32) {
    let all = shmem::engine().slots.iter().enumerate();
    let all = all.filter_map(|(i, s)| Some((slots::pid_of(i as u16)?, s)));
    // After the process: a slot that another process has taken since says that it is no loader.
    for (pid, _) in all.filter(|(_, s)| s.load.loader_in.load(Ordering::SeqCst) == database) {
        compat::send(pid, pg_sys::SIGTERM);
    }
}
