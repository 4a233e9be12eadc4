//! WAL: records of our resource manager, positions, and what a commit waits for.

use super::compat;
use mixedcc_engine::durable::wal::Op;
use mixedcc_engine::durable::Lsn;
use pgrx::pg_sys;

/// The number of our resource manager: the one for experiments, until the wiki has one for us.
pub const MANAGER: u8 = pg_sys::RM_EXPERIMENTAL_ID as u8;
/// The record has the origin of the session, so that it is not sent back there.
pub const WITH_ORIGIN: u8 = pg_sys::XLOG_INCLUDE_ORIGIN as u8;
/// The record alone is no reason for a checkpoint.
pub const UNIMPORTANT: u8 = pg_sys::XLOG_MARK_UNIMPORTANT as u8;

/// Runs `f` in a critical section: an ERROR or a panic in it is a PANIC, and no interrupt is
/// processed. `f` must not allocate memory of PostgreSQL's.
pub fn critical<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: a variable of this process, which only its one thread writes.
    unsafe { pg_sys::CritSectionCount += 1 };
    // If it unwinds, the section goes on: what catches the panic makes a PANIC of it.
    let result = f();
    // SAFETY: as above.
    unsafe { pg_sys::CritSectionCount -= 1 };
    result
}

/// Inserts a record without buffers, made of these parts of main data. Returns where it ends.
/// Allocates nothing.
///
/// # Safety
/// In a critical section, at most 20 parts, and no other record is begun.
pub unsafe fn insert(op: Op, flags: u8, parts: &[&[u8]]) -> Lsn {
    // SAFETY: the contract of this function; the parts outlive the insertion.
    unsafe {
        compat::begin_record();
        parts.iter().for_each(|part| compat::register_data(part));
        compat::insert_record(MANAGER, op as u8, flags)
    }
}

/// Inserts a record that stands for itself, outside of a critical section, under the id of the
/// running subtransaction, which gets one if it has none. An ERROR unwinds.
pub fn log_alone(op: Op, parts: &[&[u8]]) {
    // SAFETY: a transaction is running. The closure owns nothing; the parts outlive the insertion.
    // An ERROR's clean-up forgets the record that was begun.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            super::raw::GetCurrentTransactionId();
            compat::begin_record();
            parts.iter().for_each(|part| compat::register_data(part));
            compat::insert_record(MANAGER, op as u8, WITH_ORIGIN);
        });
    }
}

/// The info byte and the main data of a record that is replayed or described.
///
/// # Safety
/// A reader that has read a record, which it keeps as long as the result is used.
pub unsafe fn record_data<'a>(reader: *mut pg_sys::XLogReaderState) -> (u8, &'a [u8]) {
    // SAFETY: the reader has a record, with so many bytes of main data (contract of this function).
    unsafe {
        let record = (*reader).record;
        let (data, len) = ((*record).main_data, (*record).main_data_len as usize);
        let data: &[u8] = if len == 0 { &[] } else { std::slice::from_raw_parts(data.cast::<u8>(), len) };
        ((*record).header.xl_info, data)
    }
}

/// Waits until WAL is on disk up to here.
pub fn flush(lsn: Lsn) {
    // SAFETY: a backend may flush at any time; an ERROR unwinds.
    unsafe { pg_sys::XLogFlush(lsn) };
}

/// The WAL writer flushes up to here, where a record ends, before long. It may be woken up.
pub fn flush_soon(end: Lsn) {
    // SAFETY: writes a word in shared memory, and sets a latch.
    unsafe { pg_sys::XLogSetAsyncXactLSN(end) };
}

/// Waits until the synchronous standbys have WAL up to here, as `synchronous_commit` says. A cancel
/// gives a WARNING.
pub fn await_standbys(lsn: Lsn) {
    // SAFETY: in the end of a transaction, where interrupts are held, as PostgreSQL's own commit.
    unsafe { pg_sys::SyncRepWaitForLSN(lsn, true) };
}

/// The redo pointer of the last checkpoint that was begun.
pub fn redo_pointer() -> Lsn {
    // SAFETY: reads a word in shared memory under a spinlock.
    unsafe { pg_sys::GetRedoRecPtr() }
}

/// Where the next record will begin.
pub fn inserted() -> Lsn {
    // SAFETY: reads a word in shared memory under a spinlock.
    unsafe { pg_sys::GetXLogInsertRecPtr() }
}

/// WAL is on disk up to here.
pub fn flushed() -> Lsn {
    // SAFETY: reads a word in shared memory under a spinlock. The time line is not asked for.
    unsafe { pg_sys::GetFlushRecPtr(std::ptr::null_mut()) }
}

/// Does COMMIT wait for the flush, as `synchronous_commit` says?
pub fn is_synchronous() -> bool {
    // SAFETY: a variable of this process, which only its one thread writes.
    unsafe { pg_sys::synchronous_commit > pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_OFF as i32 }
}

/// Has the transaction inserted records?
pub fn has_logged() -> bool {
    // SAFETY: a variable of this process, which only its one thread writes.
    unsafe { pg_sys::XactLastRecEnd != 0 }
}

/// Does COMMIT wait until standbys have replayed its record?
pub fn awaits_apply() -> bool {
    // SAFETY: a variable of this process, which only its one thread writes.
    unsafe { pg_sys::synchronous_commit >= pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_REMOTE_APPLY as i32 }
}

/// The same, and is there a standby that is waited for?
pub fn awaits_appliers() -> bool {
    // SAFETY: the value of a setting: null, or a C string.
    awaits_apply() && unsafe { pg_sys::SyncRepStandbyNames.as_ref() }.is_some_and(|first| *first != 0)
}

/// Have the standbys that are waited for applied all up to here? No, also if the wait for that was
/// cancelled.
pub fn is_applied(lsn: Lsn) -> bool {
    let mode = pg_sys::SYNC_REP_WAIT_APPLY as usize;
    // SAFETY: shared memory of PostgreSQL. A word that WAL senders write under a lock, and that
    // only grows: an old value is a no.
    unsafe { std::ptr::read_volatile(&raw const (*pg_sys::WalSndCtl).lsn[mode]) >= lsn }
}

/// Where the last commit of this session ends in WAL.
pub fn last_commit() -> Lsn {
    // SAFETY: a variable of this process, which only its one thread writes.
    unsafe { pg_sys::XactLastCommitEnd }
}

/// Is WAL written for archives and standbys, and not for crash recovery alone?
pub fn is_archived() -> bool {
    // SAFETY: a variable of this process, which the start of the server has set.
    unsafe { pg_sys::wal_level >= pg_sys::WalLevel::WAL_LEVEL_REPLICA as i32 }
}

/// Is WAL written for logical decoding?
pub fn is_logical() -> bool {
    // SAFETY: a variable of this process, which the start of the server has set.
    unsafe { pg_sys::wal_level >= pg_sys::WalLevel::WAL_LEVEL_LOGICAL as i32 }
}

/// Does the session replay the changes of a replication origin?
pub fn has_origin() -> bool {
    // SAFETY: a variable of this process, which only its one thread writes.
    unsafe { pg_sys::replorigin_session_origin != 0 }
}

/// A transaction that has no commit record of PostgreSQL's has committed with a record that ends
/// here.
pub fn set_last_commit(end: Lsn) {
    // SAFETY: variables of this process, which only its one thread writes.
    unsafe {
        pg_sys::XactLastCommitEnd = end;
        pg_sys::XactLastRecEnd = 0;
    }
}

/// The full id of the top transaction, if it has one.
pub fn full_xid_if_any() -> Option<u64> {
    // SAFETY: reads a variable of this process and raises nothing.
    let xid = unsafe { super::raw::GetTopFullTransactionIdIfAny() }.value;
    (xid as u32 != 0).then_some(xid)
}

/// The full id that the next transaction gets.
pub fn next_full_xid() -> u64 {
    // SAFETY: looks at shared memory under a lock, and raises nothing.
    unsafe { pg_sys::ReadNextFullTransactionId() }.value
}

/// The full id of a transaction that is not older than half of all ids.
pub fn full_xid_of(xid: u32) -> u64 {
    let next = next_full_xid();
    next - u64::from((next as u32).wrapping_sub(xid))
}

/// Is the transaction in the list of running ones? Also in a process that takes no snapshots:
/// PostgreSQL takes ids before `RecentXmin` for ended, which is of the last snapshot. Ids that are
/// 2^31 later seem to be before it. And it asks pg_subtrans, which a checkpoint may have truncated,
/// for the parents of those from `TransactionXmin` on. `xid` has none: it is of a top transaction.
pub fn is_running(xid: u32) -> bool {
    // All ids in use are later.
    let next = next_full_xid() as u32;
    let oldest = next.wrapping_sub(0x7ff0_0000).max(3);
    // SAFETY: variables of this process, which has one thread; the call reads them, and raises
    // nothing. No lock of the list is held.
    unsafe {
        let known = (pg_sys::RecentXmin, pg_sys::TransactionXmin);
        pg_sys::RecentXmin = pg_sys::TransactionId::from(oldest);
        pg_sys::TransactionXmin = pg_sys::TransactionId::from(next);
        let is_running = pg_sys::TransactionIdIsInProgress(pg_sys::TransactionId::from(xid));
        (pg_sys::RecentXmin, pg_sys::TransactionXmin) = known;
        is_running
    }
}

/// The full id of the top transaction, which gets one if it has none. An ERROR unwinds.
pub fn full_xid() -> u64 {
    // SAFETY: a transaction is in progress, or in PRE_COMMIT.
    unsafe { pg_sys::GetTopFullTransactionId() }.value
}

/// The WAL that this process has made: full images, and bytes.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Images of pages.
    pub images: u64,
    /// All bytes.
    pub bytes: u64,
}

/// The WAL that this process has made.
pub fn usage() -> Usage {
    // SAFETY: a variable of this process, which only its one thread writes.
    let usage = unsafe { pg_sys::pgWalUsage };
    Usage { images: usage.wal_fpi as u64, bytes: usage.wal_bytes }
}
