//! Durable tables as transactions see them: the gate, and what a commit logs.
//!
//! The shared words lie in the engine's block (`Slot::logging`, `Slot::xid`, `Shared::gate`, and
//! what a permanent table has beside its records), so that they need no memory of their own.

pub mod commit;
mod marks;
mod reserve;

pub use reserve::reserve;

use crate::pg::compat::Wait;
use crate::pg::errors::complain;
use crate::state::{rounds, shmem, stop};
use mixedcc_engine::durable::window::Window;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::time::{Duration, Instant};

/// So long a transaction waits at the gate. The companion opens it after its first round, and
/// closes it when the server stops or when the companion is started anew.
const AT_GATE: Duration = Duration::from_secs(30);
/// The naps of this wait, in milliseconds.
const NAP_MS: i64 = 10;
/// After so many of them without a companion the postmaster is to look.
const NAPS: u32 = 50;

/// The window of this process.
fn my_window() -> &'static Window {
    &slot().logging
}

fn slot() -> &'static mixedcc_engine::shared::Slot {
    let slot = shmem::my_slot() as usize;
    // The array of slots lies in shared memory for good.
    &shmem::engine().slots[slot]
}

/// Enters the window of this process, if the gate is open. Waits for that, interruptibly; an ERROR
/// unwinds. The caller leaves the window.
fn enter_window() {
    let (window, gate) = (my_window(), &shmem::engine().shared.gate);
    if window.enter(gate).is_err() {
        let (began, mut absent) = (Instant::now(), 0);
        while window.enter(gate).is_err() {
            rounds::look_for_companion(&mut absent, NAPS);
            nap_at_gate(began);
        }
    }
    stop::reach("gate-entered");
}

#[cold]
fn nap_at_gate(began: Instant) {
    // SAFETY: variables of this process, and its own latch. The process holds nothing that an ERROR
    // of an interrupt would leave behind: its window is out.
    unsafe {
        if !pg_sys::IsUnderPostmaster || began.elapsed() > AT_GATE {
            refuse_at_gate();
        }
        let events = (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as i32;
        pg_sys::WaitLatch(pg_sys::MyLatch, events, NAP_MS, Wait::CommitGate.event());
        pg_sys::ResetLatch(pg_sys::MyLatch);
        pgrx::check_for_interrupts!();
    }
}

#[cold]
fn refuse_at_gate() -> ! {
    complain(
        PgSqlErrorCode::ERRCODE_CANNOT_CONNECT_NOW,
        "permanent mixedcc tables cannot be changed now",
        "The process that images them for checkpoints is not running. It runs soon after the server has started, \
         if max_worker_processes has room for it, and never in single-user mode.",
    )
}
