//! The part of a parallel sequential scan that its processes share: which records each one takes.
//! It is a statement's, or that of an index build.

use crate::pg::compat;
use crate::pg::errors::unsupported;
use crate::state::rel;
use crate::state::xact::parallel;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// Our shared descriptor.
#[repr(C)]
struct SharedScan {
    /// PostgreSQL's part.
    base: pg_sys::ParallelTableScanDescData,
    /// Records of the table when the scan began: the snapshot sees no later ones.
    all: u64,
    /// The first record that no process has taken.
    next: AtomicU64,
    /// Is it of an index build? Its workers run no statement.
    is_build: bool,
}

/// A process takes so many records at a time, or a part of them if the table is small.
const PART: u64 = 8192;
const SMALLEST_PART: u64 = 256;
/// A table has at least so many parts, so that processes end at about the same time.
const PARTS: u64 = 64;

/// # Safety
/// tableam.h's contract of `parallelscan_estimate`.
#[pg_guard]
pub unsafe extern "C-unwind" fn estimate(_rel: pg_sys::Relation) -> pg_sys::Size {
    std::mem::size_of::<SharedScan>() as pg_sys::Size
}

/// # Safety
/// tableam.h's contract of `parallelscan_initialize`.
#[pg_guard]
pub unsafe extern "C-unwind" fn initialize(
    rel: pg_sys::Relation,
    pscan: pg_sys::ParallelTableScanDesc,
) -> pg_sys::Size {
    // SAFETY: `rel` is open and of ours, and the memory has the size that `estimate` has told,
    // aligned for every type (shm_toc_allocate).
    unsafe {
        let is_build = !parallel::is_sharing_statement();
        if is_build && !parallel::share_build() {
            unsupported(
                "mixedcc tables do not support parallel index builds at SERIALIZABLE or after a change of them",
                "Set max_parallel_maintenance_workers to 0.",
            );
        }
        compat::name_parallel_scan(pscan, rel);
        let s = pscan.cast::<SharedScan>();
        (&raw mut (*s).is_build).write(is_build);
        (&raw mut (*s).all).write(rel::info(rel).table.len());
        (&raw mut (*s).next).write(AtomicU64::new(0));
    }
    std::mem::size_of::<SharedScan>() as pg_sys::Size
}

/// # Safety
/// tableam.h's contract of `parallelscan_reinitialize`.
#[pg_guard]
pub unsafe extern "C-unwind" fn reinitialize(_rel: pg_sys::Relation, pscan: pg_sys::ParallelTableScanDesc) {
    // SAFETY: `initialize` has filled it in, and no process scans now (tableam.h).
    unsafe { (*pscan.cast::<SharedScan>()).next.store(0, Ordering::Relaxed) }
}

/// A process begins a scan. A worker of a build adopts what its leader shows.
///
/// # Safety
/// `initialize` has filled it in.
pub unsafe fn attach(pscan: pg_sys::ParallelTableScanDesc) {
    // SAFETY: the contract of this function. A worker has the snapshot active that was so in its
    // leader (ParallelWorkerMain): a copy of its own.
    unsafe {
        if (*pscan.cast::<SharedScan>()).is_build && parallel::is_worker() {
            parallel::join(pg_sys::GetActiveSnapshot());
        }
    }
}

/// Takes records for this process: `first..end`; empty when all are taken.
///
/// # Safety
/// `initialize` has filled it in.
pub unsafe fn take(pscan: pg_sys::ParallelTableScanDesc) -> (u64, u64) {
    // SAFETY: the contract of this function. The descriptor lasts as long as the scan.
    let s = unsafe { &*pscan.cast::<SharedScan>() };
    let part = (s.all / PARTS).clamp(SMALLEST_PART, PART);
    let first = s.next.fetch_add(part, Ordering::Relaxed).min(s.all);
    (first, (first + part).min(s.all))
}
