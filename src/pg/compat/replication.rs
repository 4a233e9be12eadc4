//! Replication slots that are being made, and WAL senders whose snapshots others may import.

use super::process::{lxid_of, number_of, proc_of_export, ProcNo};
use pgrx::pg_sys;
use std::sync::atomic::{fence, Ordering};

/// Is a logical replication slot being made, or has its maker not taken the slot's snapshot for its
/// own yet? From the time on when PostgreSQL enters the slot until its creation has ended.
pub fn makes_slot() -> bool {
    // SAFETY: lock 37 of the main array is ReplicationSlotControlLock (lwlocknames.txt,
    // lwlocklist.h); it is released below, and nothing between raises. Under it no slot comes or
    // goes. The array has `max_replication_slots` elements, and lives as long as shared memory. The
    // other words may change meanwhile, so they are read volatile.
    unsafe {
        if pg_sys::ReplicationSlotCtl.is_null() {
            return false;
        }
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(37)).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_SHARED);
        let first = (&raw const (*pg_sys::ReplicationSlotCtl).replication_slots).cast::<pg_sys::ReplicationSlot>();
        let mut slots = (0..pg_sys::max_replication_slots as usize).map(|n| first.add(n));
        let found = slots.any(|slot| {
            let is_logical = (*slot).in_use && (*slot).data.database != pg_sys::InvalidOid;
            // Others export no snapshot. The maker's id is there as soon as the slot is in use.
            let maker = std::ptr::read_volatile(&raw const (*slot).active_pid);
            let begins = std::ptr::read_volatile(&raw const (*slot).data.confirmed_flush) == 0;
            let holds = std::ptr::read_volatile(&raw const (*slot).effective_xmin) != pg_sys::InvalidTransactionId;
            is_logical && (begins || holds) && senders().any(|pid| pid == maker)
        });
        pg_sys::LWLockRelease(lock);
        found
    }
}

/// The WAL senders that are connected to a database and have snapshots.
pub fn senders_with_snapshots() -> impl Iterator<Item = ProcNo> {
    // What a slot's maker has done before it let the slot go is seen from here on.
    fence(Ordering::SeqCst);
    // SAFETY: `senders` returns process ids, and each is answered: by null, or an element of the
    // array of processes, which lives as long as shared memory.
    senders().filter_map(|pid| unsafe {
        let proc = pg_sys::BackendPidGetProc(pid);
        let has = !proc.is_null() && (*proc).databaseId != pg_sys::InvalidOid && has_snapshot(proc);
        has.then(|| number_of(proc))
    })
}

/// Does a WAL sender still have the snapshot of this name, which it has exported?
pub fn sender_exports(snapshot_id: &str) -> bool {
    let Some((proc, lxid)) = proc_of_export(snapshot_id) else { return false };
    // SAFETY: an element of the array of processes, which lives as long as shared memory. Its words
    // are read volatile, as another process may write them.
    unsafe {
        let pid = std::ptr::read_volatile(&raw const (*proc).pid);
        lxid_of(proc) == lxid && has_snapshot(proc) && senders().any(|sender| sender == pid)
    }
}

/// # Safety
/// An element of the array of processes.
unsafe fn has_snapshot(proc: *const pg_sys::PGPROC) -> bool {
    // SAFETY: as this function's contract says; read volatile, as another process may write it.
    unsafe { std::ptr::read_volatile(&raw const (*proc).xmin) != pg_sys::InvalidTransactionId }
}

/// The process ids of all WAL senders.
fn senders() -> impl Iterator<Item = i32> {
    // SAFETY: null, or an array of `max_wal_senders` elements behind the head, which lives as long
    // as shared memory. Each word is read volatile, as another process may write it.
    let (first, count) = unsafe {
        let head = pg_sys::WalSndCtl;
        let first = if head.is_null() { std::ptr::null() } else { (*head).walsnds.as_ptr() };
        (first, if head.is_null() { 0 } else { pg_sys::max_wal_senders as usize })
    };
    // SAFETY: as above.
    (0..count).map(move |n| unsafe { std::ptr::read_volatile(&raw const (*first.add(n)).pid) }).filter(|pid| *pid != 0)
}
