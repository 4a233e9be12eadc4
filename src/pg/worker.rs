//! Background workers: those that the postmaster starts, without a database, and those that a
//! process starts when it needs them.

use super::compat;
use pgrx::pg_sys;
use std::ffi::CStr;

/// Signal handlers must be the C functions themselves.
mod raw {
    extern "C-unwind" {
        pub fn SignalHandlerForConfigReload(signal: core::ffi::c_int);
        pub fn SignalHandlerForShutdownRequest(signal: core::ffi::c_int);
        pub fn die(signal: core::ffi::c_int);
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
    let mut w = describe(name, function, RESTART_S);
    // SAFETY: `_PG_init` runs alone, as RegisterBackgroundWorker wants. It copies `w`, which is of
    // this frame.
    unsafe { pg_sys::RegisterBackgroundWorker(&mut w) };
}

fn describe(name: &CStr, function: &CStr, restart: i32) -> pg_sys::BackgroundWorker {
    let mut w = pg_sys::BackgroundWorker {
        bgw_flags: (pg_sys::BGWORKER_SHMEM_ACCESS | pg_sys::BGWORKER_BACKEND_DATABASE_CONNECTION) as i32,
        bgw_start_time: pg_sys::BgWorkerStartTime::BgWorkerStart_RecoveryFinished,
        bgw_restart_time: restart,
        ..Default::default()
    };
    fill(&mut w.bgw_name, name);
    fill(&mut w.bgw_type, name);
    fill(&mut w.bgw_library_name, c"mixedcc");
    fill(&mut w.bgw_function_name, function);
    w
}

/// A worker that this process has started.
pub struct Started(*mut pg_sys::BackgroundWorkerHandle);

impl Started {
    /// Has it ended?
    pub fn has_ended(&self) -> bool {
        let mut pid = 0;
        // SAFETY: the handle is one of `launch`, in memory that lasts as long as the process.
        let status = unsafe { pg_sys::GetBackgroundWorkerPid(self.0, &mut pid) };
        status == pg_sys::BgwHandleStatus::BGWH_STOPPED
    }
}

/// Starts a worker, which is not started again. `arg` is for its function. `None`: all of
/// `max_worker_processes` are in use.
pub fn launch(name: &CStr, function: &CStr, arg: u32) -> Option<Started> {
    let mut w = describe(name, function, pg_sys::BGW_NEVER_RESTART);
    w.bgw_main_arg = pg_sys::Datum::from(arg);
    let mut handle = std::ptr::null_mut();
    // SAFETY: `w` is of this frame, and copied. The handle is allocated in the process's own
    // memory.
    unsafe {
        let old = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
        let registered = pg_sys::RegisterDynamicBackgroundWorker(&mut w, &mut handle);
        pg_sys::MemoryContextSwitchTo(old);
        registered.then_some(Started(handle))
    }
}

/// A worker that was launched begins: SIGTERM ends it where a session's statement would end. It
/// connects to a database, or to none.
pub fn begin_in(database: Option<pg_sys::Oid>) {
    // SAFETY: as in `begin`. The user is the one that made the cluster.
    unsafe {
        compat::handle_signal(pg_sys::SIGHUP, raw::SignalHandlerForConfigReload);
        compat::handle_signal(pg_sys::SIGTERM, raw::die);
        pg_sys::BackgroundWorkerUnblockSignals();
        match database {
            Some(oid) => pg_sys::BackgroundWorkerInitializeConnectionByOid(oid, pg_sys::InvalidOid, 0),
            None => pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0),
        }
        for (name, value) in SETTINGS {
            pg_sys::SetConfigOption(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_OVERRIDE,
            );
        }
        // The owner of the database may have set `role`, or `session_authorization`.
        pg_sys::SetUserIdAndSecContext(pg_sys::Oid::from(pg_sys::BOOTSTRAP_SUPERUSERID), 0);
    }
}

/// What the owner of a database has set must not lead a worker, which is a superuser, to functions
/// of others, or end it (autovacuum.c does the same).
const SETTINGS: &[(&CStr, &CStr)] = &[
    (c"search_path", c""),
    (c"exit_on_error", c"off"),
    (c"lock_timeout", c"0"),
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    (c"transaction_timeout", c"0"),
    (c"default_transaction_isolation", c"read committed"),
    (c"zero_damaged_pages", c"false"),
    (c"synchronous_commit", c"local"),
];

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
