//! Holding checkpoints, and the guard: the companion leaves the processes only by a clean end.
//!
//! **INV-GUARD**: A process that ends by `_exit(2)` makes the postmaster end all others and
//! recover. It does not leave the array of processes before that, and so a checkpoint that it holds
//! goes on at no time. Each end of the companion but the clean one is of this kind.

use crate::pg::compat::Wait;
use crate::pg::faults::{self, Fault};
use crate::pg::local::Local;
use crate::pg::{compat, wal};
use crate::state::shmem;
use mixedcc_engine::durable::lazy::Lazy;
use mixedcc_engine::durable::report::Activity;
use mixedcc_engine::durable::window::Checkpoints;
use mixedcc_engine::durable::Lsn;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::time::Duration;

mod raw {
    extern "C" {
        pub fn _exit(status: core::ffi::c_int) -> !;
    }
}

/// A checkpointer that has not ended so many naps after the postmaster is held.
const HELD_AFTER: u32 = 100;
const NAP: Duration = Duration::from_millis(10);

/// As a crash, for the postmaster.
const CRASHED: i32 = 2;

/// Of the process: has it made its last round?
static CLEAN: Local<bool> = Local::new(false);

/// Of the process: of which asynchronous commits the WAL writer knows.
static LAZY: Local<Lazy> = Local::new(Lazy::new());

/// The checkpoints of this server.
pub struct Server;

impl Checkpoints for Server {
    fn redo(&self) -> Lsn {
        wal::redo_pointer()
    }
    fn excluding_looks<T>(&self, f: impl FnOnce() -> T) -> T {
        compat::with_processes_locked(f)
    }
    fn renew_hold(&self) {
        if faults::on(Fault::NoHold) {
            return;
        }
        // No code of this process should have ended it.
        if !compat::delays_checkpoints() {
            die();
        }
        compat::renew_delay_of_checkpoints();
    }
}

/// Ends the process as a crash (INV-GUARD).
pub fn die() -> ! {
    // SAFETY: ends the process, without the callbacks of its end.
    unsafe { raw::_exit(CRASHED) }
}

/// Ends the process cleanly. Nothing is dirty, and nothing can become so.
pub fn leave() -> ! {
    CLEAN.set(true);
    let rounds = &shmem::engine().shared.rounds;
    rounds.set_slot(None);
    rounds.report.begin(Activity::None, compat::now());
    // Not 0: the postmaster starts it again, unless it shuts down.
    compat::end_process(1)
}

#[pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: i32, _arg: pg_sys::Datum) {
    if !CLEAN.get() {
        die();
    }
}

/// Holds each checkpoint from now on.
pub fn begin() {
    // SAFETY: the callback is a function of this library, which is never unloaded.
    unsafe { pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::from(0)) };
    if !faults::on(Fault::NoHold) {
        compat::with_processes_locked(compat::renew_delay_of_checkpoints);
    }
}

/// A short nap while a backend inserts a record, with the number of naps before. Takes part in
/// signal barriers.
pub fn nap(n: u32) {
    // SAFETY: pg_usleep sleeps, and raises nothing.
    unsafe { pg_sys::pg_usleep(if n < 100 { 10 } else { 1000 }) };
    if n % 1000 == 999 && !compat::is_postmaster_alive() {
        die_alone();
    }
    pgrx::check_for_interrupts!();
}

/// The postmaster is gone. A checkpointer that is held looks for no postmaster, and would keep
/// shared memory, so that the next start fails. One that is not held ends by itself, soon: told to
/// end at once it would keep a lock that it has in this moment, and others would wait for ever.
fn die_alone() -> ! {
    let mut naps = 0;
    while let Some(pid) = compat::checkpointer() {
        if naps == HELD_AFTER {
            compat::send(pid, pg_sys::SIGQUIT);
            break;
        }
        naps += 1;
        std::thread::sleep(NAP);
    }
    die()
}

/// Asynchronous commits get to the disk before long (INV-LAZY). Called before each rest, after each
/// batch of a round, and before the last round.
pub fn tell_wal_writer() {
    if faults::on(Fault::LazyForgotten) {
        return;
    }
    let mut lazy = LAZY.get();
    lazy.look(&shmem::engine(), wal::flush_soon);
    LAZY.set(lazy);
}

/// Sleeps until the latch is set or the time is over. Takes part in signal barriers.
pub fn rest(ms: i64, wait: Wait) {
    tell_wal_writer();
    // SAFETY: `MyLatch` is this process's own latch; an ERROR ends the process.
    let happened = unsafe {
        let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_POSTMASTER_DEATH;
        let happened = pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, ms, wait.event());
        pg_sys::ResetLatch(pg_sys::MyLatch);
        happened
    };
    if happened & pg_sys::WL_POSTMASTER_DEATH as i32 != 0 {
        die_alone();
    }
    pgrx::check_for_interrupts!();
}
