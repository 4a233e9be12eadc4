//! What a VACUUM costs: buffers, WAL, time.

use pgrx::pg_sys;
use std::ffi::CStr;

/// PGRUsage: struct timeval and struct rusage, or less than this.
#[repr(C, align(8))]
struct Rusage([u8; 512]);

mod raw {
    use super::Rusage;
    use core::ffi::c_char;
    extern "C-unwind" {
        // Neither raises anything.
        pub fn pg_rusage_init(start: *mut Rusage);
        pub fn pg_rusage_show(start: *const Rusage) -> *const c_char;
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        pub fn IsAutoVacuumWorkerProcess() -> bool;
    }
}

/// The counters at the start of a VACUUM that says what it did.
pub struct Usage {
    started: pg_sys::TimestampTz,
    rusage: Rusage,
    pages: [i64; 3],
    wal: pg_sys::WalUsage,
}

fn pages() -> [i64; 3] {
    // SAFETY: counters of this process, which only its one thread writes.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    unsafe {
        [pg_sys::VacuumPageHit, pg_sys::VacuumPageMiss, pg_sys::VacuumPageDirty]
    }
    // SAFETY: counters of this process, which only its one thread writes.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    unsafe {
        let u = pg_sys::pgBufferUsage;
        [
            u.shared_blks_hit + u.local_blks_hit,
            u.shared_blks_read + u.local_blks_read,
            u.shared_blks_dirtied + u.local_blks_dirtied,
        ]
    }
}

/// Is this process a worker of autovacuum?
pub fn is_autovacuum() -> bool {
    // SAFETY: `IsAutoVacuumWorkerProcess` reads a variable of this process and raises nothing.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    unsafe {
        raw::IsAutoVacuumWorkerProcess()
    }
    // SAFETY: a variable of this process, which its one thread writes when it starts.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    unsafe {
        pg_sys::MyBackendType == pg_sys::BackendType::B_AUTOVAC_WORKER
    }
}

impl Usage {
    /// The counters of now, if the VACUUM is verbose, or an autovacuum that may be logged.
    ///
    /// # Safety
    /// VACUUM's parameters.
    pub unsafe fn start(params: *const pg_sys::VacuumParams) -> Option<Usage> {
        // SAFETY: `params` are VACUUM's (contract of this function). `Rusage` is at least as large
        // as PGRUsage, and the counters are of this process.
        unsafe {
            let logged = is_autovacuum() && (*params).log_min_duration >= 0;
            if !logged && !super::is_verbose(params) {
                return None;
            }
            let mut rusage = Rusage([0; 512]);
            raw::pg_rusage_init(&mut rusage);
            let started = pg_sys::GetCurrentTimestamp();
            Some(Usage { started, rusage, pages: pages(), wal: pg_sys::pgWalUsage })
        }
    }

    /// Is this worth a line in the log?
    ///
    /// # Safety
    /// VACUUM's parameters.
    pub unsafe fn is_due(&self, params: *const pg_sys::VacuumParams) -> bool {
        // SAFETY: `params` are VACUUM's (contract of this function).
        unsafe {
            let (limit, now) = ((*params).log_min_duration, pg_sys::GetCurrentTimestamp());
            super::is_verbose(params) || limit == 0 || pg_sys::TimestampDifferenceExceeds(self.started, now, limit)
        }
    }

    /// The last lines of the report, as heap has them.
    pub fn lines(&self) -> String {
        let now = pages();
        let [hits, misses, dirtied] = std::array::from_fn(|i| now[i] - self.pages[i]);
        // SAFETY: `rusage` was filled by pg_rusage_init in `start`. pg_rusage_show returns a C
        // string in a static buffer, which is read before the next call.
        unsafe {
            let seconds = (pg_sys::GetCurrentTimestamp() - self.started) as f64 / 1e6;
            let rate =
                |n: i64| if seconds > 0.0 { n as f64 * pg_sys::BLCKSZ as f64 / 1_048_576.0 / seconds } else { 0.0 };
            let wal = pg_sys::pgWalUsage;
            let images = wal.wal_fpi - self.wal.wal_fpi;
            format!(
                "avg read rate: {:.3} MB/s, avg write rate: {:.3} MB/s\n\
                 buffer usage: {hits} hits, {misses} misses, {dirtied} dirtied\n\
                 WAL usage: {} records, {images} full page images, {} bytes\n\
                 system usage: {}",
                rate(misses),
                rate(dirtied),
                wal.wal_records - self.wal.wal_records,
                wal.wal_bytes - self.wal.wal_bytes,
                CStr::from_ptr(raw::pg_rusage_show(&self.rusage)).to_string_lossy()
            )
        }
    }
}
