//! A server in recovery, and sessions that stand in the way of its replay.

use super::process::ProcNo;
use crate::pg::raw;
use pgrx::pg_sys;

mod bound {
    extern "C-unwind" {
        #[cfg_attr(not(feature = "pg18"), link_name = "HandleStartupProcInterrupts")]
        #[cfg_attr(feature = "pg18", link_name = "ProcessStartupProcInterrupts")]
        pub fn startup_interrupts();
    }
}

/// Is the server in recovery?
#[inline]
pub fn in_recovery() -> bool {
    // SAFETY: reads a variable of this process, or a word of shared memory.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// All records up to here were replayed.
pub fn replayed() -> u64 {
    // SAFETY: reads a word of shared memory under a spinlock.
    unsafe { pg_sys::GetXLogReplayRecPtr(std::ptr::null_mut()) }
}

/// How long sessions may keep replay waiting from now on, in µs. `None`: for ever.
pub fn standby_delay() -> Option<u64> {
    let (mut received, mut streams) = (0, false);
    // SAFETY: variables of this process, which its settings have set; in the startup process the
    // time of the last receipt is one, too.
    unsafe {
        pg_sys::GetXLogReceiptTime(&mut received, &mut streams);
        let ms = if streams { pg_sys::max_standby_streaming_delay } else { pg_sys::max_standby_archive_delay };
        let passed = (pg_sys::GetCurrentTimestamp() - received).max(0) as u64;
        u64::try_from(ms).ok().map(|ms| (ms * 1000).saturating_sub(passed))
    }
}

/// The same for a session that is to apply what was replayed: its own wait begins now.
pub fn standby_patience() -> Option<u64> {
    // SAFETY: a variable of this process, which its settings have set.
    u64::try_from(unsafe { pg_sys::max_standby_streaming_delay }).ok().map(|ms| ms * 1000)
}

/// The startup process ends here, if it is to.
pub fn startup_interrupts() {
    // SAFETY: in the startup process, between two records of WAL.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| bound::startup_interrupts()) }
}

/// Cancels the transaction of a PGPROC because of replay, as PostgreSQL does for snapshots.
pub fn cancel_reader(proc: ProcNo) {
    // SAFETY: the index is below `allProcCount`. The array lives as long as shared memory. A
    // transaction that has ended meanwhile is not found.
    unsafe {
        if proc >= (*pg_sys::ProcGlobal).allProcCount {
            return;
        }
        let at = (*pg_sys::ProcGlobal).allProcs.add(proc as usize);
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        let vxid = pg_sys::VirtualTransactionId {
            backendId: std::ptr::read_volatile(&raw const (*at).backendId),
            localTransactionId: std::ptr::read_volatile(&raw const (*at).lxid),
        };
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        let vxid = pg_sys::VirtualTransactionId {
            procNumber: std::ptr::read_volatile(&raw const (*at).vxid.procNumber),
            localTransactionId: std::ptr::read_volatile(&raw const (*at).vxid.lxid),
        };
        if vxid.localTransactionId != 0 {
            pg_sys::CancelVirtualTransaction(vxid, pg_sys::ProcSignalReason::PROCSIG_RECOVERY_CONFLICT_SNAPSHOT);
        }
    }
}

/// Is a statement of the client about to start, while no cursor and no other statement has a
/// snapshot?
pub fn has_no_portal() -> bool {
    // SAFETY: reads variables of this process. The active snapshot is registered for a moment: then
    // it is the only one, if there was none.
    unsafe {
        if !pg_sys::ActivePortal.is_null() || !raw::ActiveSnapshotSet() {
            return false;
        }
        let mine = pg_sys::RegisterSnapshot(pg_sys::GetActiveSnapshot());
        let alone = has_one_snapshot();
        pg_sys::UnregisterSnapshot(mine);
        alone
    }
}

/// Is this the only snapshot in use? It may be active only, and not registered.
///
/// # Safety
/// A valid snapshot of this backend, a copy.
pub unsafe fn is_only_snapshot(s: pg_sys::Snapshot) -> bool {
    // SAFETY: the contract of this function. It is registered for a moment.
    unsafe {
        let mine = pg_sys::RegisterSnapshot(s);
        let alone = has_one_snapshot();
        pg_sys::UnregisterSnapshot(mine);
        alone
    }
}

/// Runs `f` with a relation, if that is there, and can be locked at once for reading.
///
/// # Safety
/// In a transaction. An ERROR of `f` unwinds.
pub unsafe fn with_relation(oid: pg_sys::Oid, f: impl FnOnce(pg_sys::Relation)) {
    let mode = pg_sys::AccessShareLock as i32;
    // SAFETY: contract of this function. Any OID can be locked; the lock is given back once.
    unsafe {
        if !pg_sys::ConditionalLockRelationOid(oid, mode) {
            return;
        }
        let r = pg_sys::try_relation_open(oid, pg_sys::NoLock as i32);
        if !r.is_null() {
            f(r);
            pg_sys::relation_close(r, pg_sys::NoLock as i32);
        }
        pg_sys::UnlockRelationOid(oid, mode);
    }
}

/// Is at most one snapshot registered?
fn has_one_snapshot() -> bool {
    // SAFETY: the snapshot of the catalogs is taken anew when it is needed.
    unsafe {
        pg_sys::InvalidateCatalogSnapshot();
        pg_sys::ThereAreNoPriorRegisteredSnapshots()
    }
}
