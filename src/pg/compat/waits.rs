//! What a sleeping process shows in `pg_stat_activity.wait_event`. From version 17 on each kind of
//! wait has a name of its own there (WaitEventExtensionNew, wait_event.c); before it, all are shown
//! as `Extension`.

use pgrx::pg_sys;

/// Why a process of mixedcc, or a session in one of its calls, sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Wait {
    /// The coordinator, until its next interval.
    CoordinatorMain,
    /// The checkpointer's companion, until it is needed.
    CompanionMain,
    /// The process that starts loaders, until one has ended.
    LoaderMain,
    /// The companion, between the rows of a round, or until a window is closed.
    ImageRound,
    /// A commit, until the companion lets commits of permanent tables in.
    CommitGate,
    /// A commit, until others that it has read are safe.
    CommitDependency,
    /// A validation or a reader, until another commit has ended.
    CommitEnd,
    /// A session that lost a deadlock, until the winner has gone on.
    DeadlockWinner,
}

impl Wait {
    /// What WaitLatch takes.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    pub fn event(self) -> u32 {
        pg_sys::PG_WAIT_EXTENSION
    }

    /// What WaitLatch takes. A process that does not come from the postmaster's memory shows
    /// `Extension`.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    pub fn event(self) -> u32 {
        match named::EVENTS.get()[self as usize] {
            0 => pg_sys::PG_WAIT_EXTENSION,
            event => event,
        }
    }
}

/// At the start of the server: gives the kinds of waits their names. Later ones would have to be
/// made in the middle of a commit, where an ERROR (there are 128 names) must not come.
///
/// # Safety
/// In the shmem_startup hook; the processes that are forked later have the numbers.
pub unsafe fn name_waits() {
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    // SAFETY: as the caller promises, after the table of names was made.
    unsafe {
        named::make();
    }
}

#[cfg(not(any(feature = "pg15", feature = "pg16")))]
mod named {
    use super::{pg_sys, Wait};
    use crate::pg::local::Local;
    use std::ffi::CStr;

    const NAMES: [(Wait, &CStr); 8] = [
        (Wait::CoordinatorMain, c"MixedccCoordinatorMain"),
        (Wait::CompanionMain, c"MixedccCompanionMain"),
        (Wait::LoaderMain, c"MixedccLoaderMain"),
        (Wait::ImageRound, c"MixedccImageRound"),
        (Wait::CommitGate, c"MixedccCommitGate"),
        (Wait::CommitDependency, c"MixedccCommitDependency"),
        (Wait::CommitEnd, c"MixedccCommitEnd"),
        (Wait::DeadlockWinner, c"MixedccDeadlockWinner"),
    ];

    pub static EVENTS: Local<[u32; NAMES.len()]> = Local::new([0; NAMES.len()]);

    /// # Safety
    /// As `name_waits`.
    pub unsafe fn make() {
        let mut events = EVENTS.get();
        for (wait, name) in NAMES {
            // SAFETY: as the caller promises; the name is static, and is copied.
            events[wait as usize] = unsafe { pg_sys::WaitEventExtensionNew(name.as_ptr()) };
        }
        EVENTS.set(events);
    }
}
