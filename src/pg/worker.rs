//! Background workers that have no database.

use super::compat;
use pgrx::pg_sys;
use std::ffi::CStr;

/// Signal handlers must be the C functions themselves.
mod raw {
    extern "C-unwind" {
        pub fn SignalHandlerForConfigReload(signal: core::ffi::c_int);
        pub fn SignalHandlerForShutdownRequest(signal: core::ffi::c_int);
    }
}

/// After an end that was not a shutdown, seconds.
const RESTART_S: i32 = 1;

fn fill<const N: usize>(to: &mut [core::ffi::c_char; N], text: &CStr) {
    for (to, from) in to.iter_mut().zip(text.to_bytes()).take(N - 1) {
        *to = *from as core::ffi::c_char;
    }
}

/// Registers a worker, which begins when recovery is over. `name` is what pg_stat_activity shows.
/// Called while the postmaster preloads the library.
pub fn register(name: &CStr, function: &CStr) {
    // SAFETY: a variable of this process, which its one thread writes when it starts.
    if unsafe { pg_sys::IsBinaryUpgrade } {
        return; // nothing may write but pg_upgrade
    }
    let mut w = pg_sys::BackgroundWorker {
        bgw_flags: (pg_sys::BGWORKER_SHMEM_ACCESS | pg_sys::BGWORKER_BACKEND_DATABASE_CONNECTION) as i32,
        bgw_start_time: pg_sys::BgWorkerStartTime::BgWorkerStart_RecoveryFinished,
        bgw_restart_time: RESTART_S,
        ..Default::default()
    };
    fill(&mut w.bgw_name, name);
    fill(&mut w.bgw_type, name);
    fill(&mut w.bgw_library_name, c"mixedcc");
    fill(&mut w.bgw_function_name, function);
    // SAFETY: `_PG_init` runs alone, as RegisterBackgroundWorker wants. It copies `w`, which is of
    // this frame.
    unsafe { pg_sys::RegisterBackgroundWorker(&mut w) };
}

/// `pg_cancel_backend` has no statement to cancel here. An ERROR would end the worker, and the
/// companion ends as a crash.
unsafe extern "C-unwind" fn ignore(_signal: core::ffi::c_int) {}

/// The worker begins: signals, and a connection to no database.
pub fn begin() {
    // SAFETY: as bgworker.h wants it, once and in this order: handlers, then signals, then the
    // connection, to no database.
    unsafe {
        compat::handle_signal(pg_sys::SIGHUP, raw::SignalHandlerForConfigReload);
        compat::handle_signal(pg_sys::SIGTERM, raw::SignalHandlerForShutdownRequest);
        compat::handle_signal(pg_sys::SIGINT, ignore);
        pg_sys::BackgroundWorkerUnblockSignals();
        pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0);
    }
}

/// Reads the settings again, if the postmaster has said so. True: they may have changed.
pub fn reload() -> bool {
    // SAFETY: variables of this process, which its one thread and its signal handlers write. No
    // transaction is running; an ERROR ends the process.
    unsafe {
        let pending = pg_sys::ConfigReloadPending != 0;
        if pending {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
        pending
    }
}

/// Is the worker to end?
pub fn is_to_end() -> bool {
    // SAFETY: a variable of this process, which its signal handlers write.
    unsafe { pg_sys::ShutdownRequestPending != 0 }
}
