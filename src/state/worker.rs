//! The coordinator as other processes see it, and how it sleeps. The worker itself is
//! `admin/coordinator.rs`.

use crate::state::platform::PG;
use crate::state::{shmem, slots};
use mixedcc_engine::csn::SlotId;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::{Engine, Table};
use pgrx::pg_sys;

/// Between two looks whether a stop event may be passed, ms.
const STOPPED_MS: i64 = 5;
/// Pieces of memory of dropped tables that are freed at a time.
const SLICE: usize = 4096;

/// Has the coordinator look at all partitions, if one runs.
pub fn nudge() {
    let slot = shmem::engine().shared.coordinator.slot.load(Ordering::SeqCst);
    if slot != 0 {
        slots::wake((slot - 1) as u16);
    }
}

/// Frees a slice of the dropped tables whose grace period is over. True: there may be more to free.
pub fn free_slice(e: &Engine) -> bool {
    if e.shared.dropped.load(Ordering::SeqCst).is_null() {
        return false;
    }
    let min_pin = e.refresh_min_pin(&PG);
    Table::free_dropped_slice(e, shmem::my_slot(), min_pin, SLICE)
}

/// A transaction has ended, which may have dropped tables (`drops`). The coordinator frees them;
/// where none runs, each transaction frees a slice.
pub fn see_to_dropped(drops: bool) {
    let e = &shmem::engine();
    if e.shared.dropped.load(Ordering::Relaxed).is_null() {
        return;
    }
    if e.shared.coordinator.slot.load(Ordering::SeqCst) == 0 {
        free_slice(e);
    } else if drops {
        nudge();
    }
}

/// Is this the slot of the coordinator, or of the checkpointer's companion?
pub fn is_slot(slot: SlotId) -> bool {
    let shared = shmem::engine().shared;
    shared.coordinator.slot.load(Ordering::SeqCst) == slot as u32 + 1 || shared.rounds.slot() == Some(slot)
}

/// Sleeps until the latch is set or the time is over; ends the process if that is asked for.
pub fn doze(ms: i64, shown_as: u32) {
    // SAFETY: `MyLatch` is this process's own latch; an ERROR ends the process.
    unsafe {
        let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
        pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, ms, shown_as);
        pg_sys::ResetLatch(pg_sys::MyLatch);
        pgrx::check_for_interrupts!();
        if pg_sys::ShutdownRequestPending != 0 {
            // Not 0: the postmaster starts the worker again, unless it shuts down.
            pg_sys::proc_exit(1);
        }
    }
}

/// Waits an instant at a stop event, where the process may end too; shown as a wait for an advisory
/// lock.
pub fn wait_at_event() {
    doze(STOPPED_MS, pg_sys::PG_WAIT_LOCK | pg_sys::LockTagType::LOCKTAG_ADVISORY);
}
