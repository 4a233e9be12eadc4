//! Processes, their virtual transactions, and PostgreSQL's own locks.

use pgrx::pg_sys;
use std::sync::atomic::{fence, Ordering};

/// What a process does at a signal: a C function.
pub type Handler = unsafe extern "C-unwind" fn(core::ffi::c_int);

mod raw {
    extern "C" {
        pub fn _exit(status: core::ffi::c_int) -> !;
    }
    extern "C-unwind" {
        #[cfg(feature = "pg18")]
        pub fn pqsignal_be(signal: core::ffi::c_int, handler: super::Handler);
        // Raises nothing.
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        pub fn BackendIdGetProc(backend: core::ffi::c_int) -> *mut pgrx::pg_sys::PGPROC;
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        pub fn ProcNumberGetProc(number: core::ffi::c_int) -> *mut pgrx::pg_sys::PGPROC;
        // Raise nothing.
        pub fn GetNextLocalTransactionId() -> u32;
        pub fn PostmasterIsAliveInternal() -> bool;
        #[cfg(feature = "pg18")]
        pub fn pgaio_error_cleanup();
        // Settings that the bindings leave out (bgwriter.h).
        pub static CheckPointTimeout: core::ffi::c_int;
        pub static CheckPointCompletionTarget: f64;
        // twophase.h
        pub static max_prepared_xacts: core::ffi::c_int;
    }
}

fn ident(backend: i32, lxid: u32) -> u64 {
    ((backend as u32 as u64) << 32) | lxid as u64
}

/// The running virtual transaction in one word; never 0.
#[inline]
pub fn my_ident() -> u64 {
    ident(my_backend(), my_lxid())
}

/// The number of this backend in virtual transaction ids. From 17 on they count from 0.
#[inline]
fn my_backend() -> i32 {
    // SAFETY: a variable of this process, which its one thread writes when the backend starts.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    unsafe {
        pg_sys::MyBackendId
    }
    // SAFETY: a variable of this process, which its one thread writes when the backend starts.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    unsafe {
        pg_sys::MyProcNumber
    }
}

/// Number of the running transaction in this backend.
#[inline]
pub fn my_lxid() -> u32 {
    // SAFETY: `MyProc` is set before a backend runs a transaction, and lies in shared memory for
    // good.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    unsafe {
        (*pg_sys::MyProc).lxid
    }
    // SAFETY: `MyProc` is set before a backend runs a transaction, and lies in shared memory for
    // good.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    unsafe {
        (*pg_sys::MyProc).vxid.lxid
    }
}

/// Waits for the end of a virtual transaction.
///
/// # Safety
/// Within a transaction; an ERROR (cancel, timeout, deadlock) unwinds.
pub unsafe fn wait_for_end(ident: u64) {
    let vxid = pg_sys::VirtualTransactionId {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        backendId: (ident >> 32) as i32,
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        procNumber: (ident >> 32) as i32,
        localTransactionId: ident as u32,
    };
    // SAFETY: a transaction is running, and the caller lets an ERROR unwind (contract of this
    // function).
    unsafe { pg_sys::VirtualXactLock(vxid, true) };
}

/// The name of a transaction that was prepared before the start, by its id.
pub fn ident_of_recovered(xid: u32) -> u64 {
    ident(-1, xid)
}

/// The ids of transactions that were prepared before the start. They may have ended.
pub fn recovered_xids() -> Vec<u32> {
    (0..max_prepared_transactions()).filter_map(recovered_xid).collect()
}

/// The id of the transaction of a PGPROC for prepared ones, if it was prepared before the start.
fn recovered_xid(n: usize) -> Option<u32> {
    // SAFETY: there are so many of them, as long as shared memory lives. Each word is read
    // volatile, as another process may write it.
    unsafe {
        let proc = pg_sys::PreparedXactProcs.add(n);
        let xid = std::ptr::read_volatile(&raw const (*proc).xid).into_inner();
        // PREPARE stores the id last.
        fence(Ordering::Acquire);
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        let of =
            (std::ptr::read_volatile(&raw const (*proc).backendId), std::ptr::read_volatile(&raw const (*proc).lxid));
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        let of = (
            std::ptr::read_volatile(&raw const (*proc).vxid.procNumber),
            std::ptr::read_volatile(&raw const (*proc).vxid.lxid),
        );
        // Others have the number of the transaction in its session.
        (xid != 0 && of == (-1, xid)).then_some(xid)
    }
}

/// The ids of the transactions that were prepared before the start of the server, and hold locks of
/// relations as commands take them that define something. Looks at all locks of the server.
pub fn recovered_definers() -> Vec<u32> {
    let defines =
        (pg_sys::ShareUpdateExclusiveLock..=pg_sys::AccessExclusiveLock).fold(0, |mask, mode| mask | 1 << mode);
    // SAFETY: `GetLockStatusData` returns a copy in the current memory context, with `nelements`
    // locks. Both parts are freed once, after the last use of `all`.
    unsafe {
        let data = pg_sys::GetLockStatusData();
        let all = std::slice::from_raw_parts((*data).locks, (*data).nelements as usize);
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        let holder = |l: &pg_sys::LockInstanceData| (l.backend, l.lxid);
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        let holder = |l: &pg_sys::LockInstanceData| (l.vxid.procNumber, l.vxid.localTransactionId);
        let is_relation = |l: &pg_sys::LockInstanceData| {
            u32::from(l.locktag.locktag_type) == pg_sys::LockTagType::LOCKTAG_RELATION as u32
        };
        let found = all.iter().filter(|l| l.pid == 0 && is_relation(l) && l.holdMask & defines != 0).map(holder);
        let xids = found.filter(|(backend, _)| *backend == -1).map(|(_, xid)| xid).collect();
        pg_sys::pfree((*data).locks.cast());
        pg_sys::pfree(data.cast());
        xids
    }
}

/// Is it such a name?
pub fn is_recovered(ident: u64) -> bool {
    (ident >> 32) as i32 == -1
}

/// The ids of transactions that were prepared before the start, and hold a lock that conflicts with
/// this mode.
///
/// # Safety
/// The caller lets an ERROR unwind.
pub unsafe fn recovered_holders(tag: &pg_sys::LOCKTAG, mode: i32) -> Vec<u32> {
    let mut n = 0;
    // SAFETY: any tag and mode is answered, by an array of `n` elements in the current memory
    // context, which is copied and then freed once. (It is empty if `n` is 0.)
    unsafe {
        let all = pg_sys::GetLockConflicts(tag, mode, &mut n);
        let found = std::slice::from_raw_parts(all, n as usize);
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        let backend = |v: &pg_sys::VirtualTransactionId| v.backendId;
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        let backend = |v: &pg_sys::VirtualTransactionId| v.procNumber;
        let xids = found.iter().filter(|v| backend(v) == -1).map(|v| v.localTransactionId).collect();
        pg_sys::pfree(all.cast());
        xids
    }
}

/// Does another process wait for a lock of PostgreSQL's that this one has? Looks at all locks of
/// the server.
pub fn is_awaited() -> bool {
    // SAFETY: `GetLockStatusData` returns a copy in the current memory context, with `nelements`
    // locks. Both parts are freed once, after the last use of `all`.
    unsafe {
        let data = pg_sys::GetLockStatusData();
        let all = std::slice::from_raw_parts((*data).locks, (*data).nelements as usize);
        let name = |l: &pg_sys::LockInstanceData| {
            let t = &l.locktag;
            let fields = (t.locktag_field1, t.locktag_field2, t.locktag_field3, t.locktag_field4);
            (fields, t.locktag_type, t.locktag_lockmethodid)
        };
        let mine = |l: &&pg_sys::LockInstanceData| l.pid == pg_sys::MyProcPid && l.holdMask != 0;
        let waits_for = |held: &pg_sys::LockInstanceData, l: &pg_sys::LockInstanceData| {
            let conflicts =
                |mode: i32| held.holdMask & (1 << mode) != 0 && pg_sys::DoLockModesConflict(mode, l.waitLockMode);
            l.waitLockMode != 0
                && l.pid != pg_sys::MyProcPid
                && name(l) == name(held)
                && (1..=pg_sys::AccessExclusiveLock as i32).any(conflicts)
        };
        let awaited = all.iter().filter(mine).any(|held| all.iter().any(|l| waits_for(held, l)));
        pg_sys::pfree((*data).locks.cast());
        pg_sys::pfree(data.cast());
        awaited
    }
}

/// Does the running transaction, or one of its subtransactions, hold a lock on a relation of this
/// database in this mode?
pub fn holds_relation(oid: pg_sys::Oid, mode: pg_sys::LOCKMODE) -> bool {
    // SAFETY: `LockHeldByMe` looks only at the backend's own table of locks; any OID is answered.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    unsafe {
        pg_sys::LockHeldByMe(&relation_tag(oid), mode)
    }
    // SAFETY: `LockHeldByMe` looks only at the backend's own table of locks, here for exactly this
    // mode; any OID is answered.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    unsafe {
        pg_sys::LockHeldByMe(&relation_tag(oid), mode, false)
    }
}

/// The name of a relation's lock (SET_LOCKTAG_RELATION). Tables of ours are not shared between
/// databases.
pub fn relation_tag(oid: pg_sys::Oid) -> pg_sys::LOCKTAG {
    pg_sys::LOCKTAG {
        // SAFETY: a variable of this process, which its one thread writes when it connects to a
        // database.
        locktag_field1: unsafe { pg_sys::MyDatabaseId }.to_u32(),
        locktag_field2: oid.to_u32(),
        locktag_field3: 0,
        locktag_field4: 0,
        locktag_type: pg_sys::LockTagType::LOCKTAG_RELATION as u8,
        locktag_lockmethodid: 1,
    }
}

/// The number of a PGPROC: an element of the array of processes.
pub type ProcNo = u32;

/// The setting `max_prepared_transactions`.
pub fn max_prepared_transactions() -> usize {
    // SAFETY: a variable of this process, set before the hooks of shared memory run.
    (unsafe { raw::max_prepared_xacts }) as usize
}

/// The PGPROC of this process.
#[inline]
pub fn my_proc() -> ProcNo {
    // SAFETY: `MyProc` is an element of the array of processes, set before a process runs
    // transactions.
    unsafe { number_of(pg_sys::MyProc) }
}

/// The PGPROC of the leader of this process, which is a parallel worker.
pub fn leader_proc() -> ProcNo {
    // SAFETY: a worker joins its leader's lock group before it runs anything, and leaves it at its
    // end (parallel.c). The leader is an element of the array of processes.
    unsafe { number_of((*pg_sys::MyProc).lockGroupLeader) }
}

/// # Safety
/// An element of the array of processes.
pub(super) unsafe fn number_of(proc: *const pg_sys::PGPROC) -> ProcNo {
    // SAFETY: `proc` is an element of the array of processes (contract of this function).
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    unsafe {
        (*proc).pgprocno as ProcNo
    }
    // SAFETY: `proc` is an element of `allProcs` (contract of this function), as for
    // GetNumberFromPGProc.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    unsafe {
        proc.offset_from((*pg_sys::ProcGlobal).allProcs) as ProcNo
    }
}

/// Has the process of a PGPROC no snapshot at all? A racy look, as ComputeXidHorizons takes it.
#[inline]
pub fn has_no_snapshot(proc: ProcNo) -> bool {
    // SAFETY: the index is below `allProcCount`. The array lives as long as shared memory, and the
    // word is read volatile, as another process may write it.
    unsafe {
        let n = (*pg_sys::ProcGlobal).allProcCount;
        proc < n
            && std::ptr::read_volatile(&raw const (*(*pg_sys::ProcGlobal).allProcs.add(proc as usize)).xmin)
                .into_inner()
                == 0
    }
}

/// Sets the latch of a PGPROC's process; if it ended, of the process that has the PGPROC by now.
pub fn wake(proc: ProcNo) {
    // SAFETY: the index is below `allProcCount`. The array lives as long as shared memory, and a
    // latch may be set without cause.
    unsafe {
        if proc < (*pg_sys::ProcGlobal).allProcCount {
            pg_sys::SetLatch(&raw mut (*(*pg_sys::ProcGlobal).allProcs.add(proc as usize)).procLatch);
        }
    }
}

/// The process id of a PGPROC, if it has a process.
pub fn pid_of(proc: ProcNo) -> Option<i32> {
    // SAFETY: the index is below `allProcCount`. The array lives as long as shared memory, and the
    // word is read volatile, as another process may write it.
    unsafe {
        let n = (*pg_sys::ProcGlobal).allProcCount;
        let proc = (proc < n).then(|| (*pg_sys::ProcGlobal).allProcs.add(proc as usize))?;
        Some(std::ptr::read_volatile(&raw const (*proc).pid)).filter(|&pid| pid != 0)
    }
}

/// PGPROC and name (see `my_ident`) of the transaction that exported a snapshot.
pub fn exporter(snapshot_id: &str) -> Option<(ProcNo, u64)> {
    let (backend, lxid) = exporting(snapshot_id)?;
    let (proc, _) = proc_of_export(snapshot_id)?;
    // SAFETY: an element of the array of processes.
    Some(unsafe { (number_of(proc), ident(backend as i32, lxid)) })
}

/// The virtual transaction that exported a snapshot, with which its id begins (snapmgr.c,
/// ExportSnapshot).
fn exporting(snapshot_id: &str) -> Option<(u32, u32)> {
    let mut parts = snapshot_id.split('-').map(|p| u32::from_str_radix(p, 16));
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// The process that exported a snapshot, or the next one in its place, and the number of its
/// transaction then. An element of the array of processes.
pub(super) fn proc_of_export(snapshot_id: &str) -> Option<(*mut pg_sys::PGPROC, u32)> {
    let (backend, lxid) = exporting(snapshot_id)?;
    // SAFETY: any number is answered: PostgreSQL's look-up returns null or an element of the array
    // of processes.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        let proc = raw::BackendIdGetProc(backend as i32);
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        let proc = raw::ProcNumberGetProc(backend as i32);
        (!proc.is_null()).then_some((proc, lxid))
    }
}

/// The number of the transaction that a process runs. A racy look.
///
/// # Safety
/// An element of the array of processes.
pub(super) unsafe fn lxid_of(proc: *const pg_sys::PGPROC) -> u32 {
    // SAFETY: the contract of this function; read volatile, as another process may write it.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    unsafe {
        std::ptr::read_volatile(&raw const (*proc).lxid)
    }
    // SAFETY: as above.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    unsafe {
        std::ptr::read_volatile(&raw const (*proc).vxid.lxid)
    }
}

/// `AddinShmemInitLock`.
///
/// # Safety
/// the main array exists once shared memory does; lock 21 is AddinShmemInitLock (lwlocknames.txt).
pub fn addin_shmem_lock() -> *mut pg_sys::LWLock {
    // SAFETY: the main array exists once shared memory does; lock 21 is AddinShmemInitLock
    // (lwlocknames.txt).
    unsafe { &raw mut (*pg_sys::MainLWLockArray.add(21)).lock }
}

/// Ends this process, with the callbacks of its end.
pub fn end_process(code: i32) -> ! {
    // SAFETY: ends the process (ipc.h). The bindings of 18 do not know that it never returns.
    #[cfg(not(feature = "pg18"))]
    unsafe {
        pg_sys::proc_exit(code)
    }
    // SAFETY: as above.
    #[cfg(feature = "pg18")]
    unsafe {
        pg_sys::proc_exit(code);
        unreachable!("proc_exit does not return")
    }
}

/// Has a function called at a signal.
///
/// # Safety
/// The function does what may be done in a signal's handler.
pub unsafe fn handle_signal(signal: u32, handler: Handler) {
    // SAFETY: `handler` may run in a signal's handler (contract of this function).
    #[cfg(not(feature = "pg18"))]
    unsafe {
        pg_sys::pqsignal(signal as i32, Some(handler));
    }
    // SAFETY: `handler` may run in a signal's handler (contract of this function).
    #[cfg(feature = "pg18")]
    unsafe {
        raw::pqsignal_be(signal as i32, handler);
    }
}

/// Runs `f`, which must not unwind, while no process looks at the virtual transactions of others
/// (ProcArrayLock).
pub fn with_processes_locked<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: lock 4 of the main array is ProcArrayLock (lwlocknames.txt, lwlocklist.h). It is
    // released below, as `f` does not unwind.
    unsafe {
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(4)).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let result = f();
        pg_sys::LWLockRelease(lock);
        result
    }
}

/// This process, which runs no transaction, has a new virtual transaction, and delays the
/// checkpoint that looks at it from now on. A checkpoint that has looked before is delayed no more.
/// Called within [`with_processes_locked`].
pub fn renew_delay_of_checkpoints() {
    // SAFETY: `MyProc` is this process's own, and lies in shared memory for good.
    unsafe {
        let lxid = raw::GetNextLocalTransactionId();
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        {
            (*pg_sys::MyProc).lxid = lxid;
        }
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        {
            (*pg_sys::MyProc).vxid.lxid = lxid;
        }
        (*pg_sys::MyProc).delayChkptFlags |= pg_sys::DELAY_CHKPT_START as i32;
    }
}

/// Does this process delay checkpoints?
pub fn delays_checkpoints() -> bool {
    // SAFETY: `MyProc` is this process's own.
    let flags = unsafe { (*pg_sys::MyProc).delayChkptFlags };
    flags & pg_sys::DELAY_CHKPT_START as i32 != 0 && my_lxid() != 0
}

/// Does the postmaster live?
pub fn is_postmaster_alive() -> bool {
    // SAFETY: looks at a pipe, and raises nothing.
    unsafe { raw::PostmasterIsAliveInternal() }
}

/// Sleeps for a moment, in a wait for another process. A process whose postmaster is gone ends,
/// without the callbacks of its end: the process that it waits for may have ended before it was
/// done. It would wait for ever, and keep shared memory, so that the next start fails.
pub fn nap(us: core::ffi::c_long) {
    // SAFETY: sleeps, and raises nothing; `_exit` ends the process.
    unsafe {
        pg_sys::pg_usleep(us);
        if pg_sys::IsUnderPostmaster && !is_postmaster_alive() {
            raw::_exit(1);
        }
    }
}

/// The process id of the checkpointer, if one runs.
pub fn checkpointer() -> Option<i32> {
    // SAFETY: a copy of the statistics of all processes, which the loop stays within.
    unsafe {
        pg_sys::pgstat_clear_backend_activity_snapshot();
        (1..=pg_sys::pgstat_fetch_stat_numbackends()).find_map(|i| {
            #[cfg(feature = "pg15")]
            let entry = pg_sys::pgstat_fetch_stat_local_beentry(i);
            #[cfg(not(feature = "pg15"))]
            let entry = pg_sys::pgstat_get_local_beentry_by_index(i);
            let status = &entry.as_ref()?.backendStatus;
            (status.st_backendType == pg_sys::BackendType::B_CHECKPOINTER).then_some(status.st_procpid)
        })
    }
}

/// Sends a signal to a process of the server. False: it has ended.
pub fn send(pid: i32, signal: u32) -> bool {
    extern "C" {
        fn kill(pid: core::ffi::c_int, signal: core::ffi::c_int) -> core::ffi::c_int;
    }
    // SAFETY: a signal; if the process has ended, nothing happens.
    unsafe { kill(pid, signal as core::ffi::c_int) == 0 }
}

/// Makes the postmaster look which workers are to be started. That of PostgreSQL 15 may sleep for a
/// minute after a worker has ended: if the signal comes just before its `select` (postmaster.c,
/// `ServerLoop`).
pub fn wake_postmaster() {
    // SAFETY: variables of this process, which its one thread writes when it starts.
    let (is_child, pid) = unsafe { (pg_sys::IsUnderPostmaster, pg_sys::PostmasterPid) };
    if is_child {
        send(pid, pg_sys::SIGUSR1);
    }
}

/// What a client's session does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// A statement.
    Statement,
    /// Nothing, in a transaction.
    IdleInTransaction,
    /// It commits, and waits for a standby. A signal would end that wait, and the client would take
    /// a commit for safe that may be lost.
    CommitWait,
    /// Something else.
    Other,
}

/// What the process does, if it serves a client. Copies the statistics of all processes.
pub fn client_doing(pid: i32) -> Option<Doing> {
    use pg_sys::BackendState::{
        STATE_FASTPATH, STATE_IDLEINTRANSACTION, STATE_IDLEINTRANSACTION_ABORTED, STATE_RUNNING,
    };
    // SAFETY: a new copy of the statistics of all processes, which the loop stays within.
    let state = unsafe {
        pg_sys::pgstat_clear_backend_activity_snapshot();
        (1..=pg_sys::pgstat_fetch_stat_numbackends()).find_map(|i| {
            #[cfg(feature = "pg15")]
            let entry = pg_sys::pgstat_fetch_stat_local_beentry(i);
            #[cfg(not(feature = "pg15"))]
            let entry = pg_sys::pgstat_get_local_beentry_by_index(i);
            let status = &entry.as_ref()?.backendStatus;
            let is_client = status.st_backendType == pg_sys::BackendType::B_BACKEND;
            (is_client && status.st_procpid == pid).then_some(status.st_state)
        })
    }?;
    Some(match state {
        STATE_RUNNING | STATE_FASTPATH if waits_for_standby(pid) => Doing::CommitWait,
        STATE_RUNNING | STATE_FASTPATH => Doing::Statement,
        STATE_IDLEINTRANSACTION | STATE_IDLEINTRANSACTION_ABORTED => Doing::IdleInTransaction,
        _ => Doing::Other,
    })
}

fn waits_for_standby(pid: i32) -> bool {
    // SAFETY: the array of processes lives as long as shared memory, and the words are read
    // volatile, as other processes may write them.
    unsafe {
        let all = &*pg_sys::ProcGlobal;
        (0..all.allProcCount as usize).map(|i| all.allProcs.add(i)).any(|proc| {
            std::ptr::read_volatile(&raw const (*proc).pid) == pid
                && std::ptr::read_volatile(&raw const (*proc).syncRepState) != 0
        })
    }
}

/// Does a process wait for a checkpoint, or for another answer of the checkpointer's? A racy look.
pub fn is_checkpointer_awaited() -> bool {
    use pg_sys::{WaitEventIPC as Ipc, WaitEventTimeout as Timeout};
    const EVENTS: [u32; 4] = [
        Ipc::WAIT_EVENT_CHECKPOINT_START as u32,
        Ipc::WAIT_EVENT_CHECKPOINT_DONE as u32,
        Ipc::WAIT_EVENT_PROC_SIGNAL_BARRIER as u32,
        Timeout::WAIT_EVENT_REGISTER_SYNC_REQUEST as u32,
    ];
    // SAFETY: the array of processes lives as long as shared memory, and the word is read volatile,
    // as another process may write it.
    unsafe {
        let all = &*pg_sys::ProcGlobal;
        (0..all.allProcCount as usize)
            .any(|i| EVENTS.contains(&std::ptr::read_volatile(&raw const (*all.allProcs.add(i)).wait_event_info)))
    }
}

/// The seconds and the bytes of WAL over which a checkpoint is spread, as
/// `checkpoint_completion_target` says. At most half of `archive_timeout`, which the checkpointer
/// looks after, too.
pub fn checkpoint_span() -> (f64, f64) {
    // SAFETY: variables of this process, which only its one thread writes.
    unsafe {
        let target = raw::CheckPointCompletionTarget;
        let bytes = f64::from(pg_sys::CheckPointSegments) * f64::from(pg_sys::wal_segment_size);
        let seconds = target * f64::from(raw::CheckPointTimeout);
        let archived = f64::from(pg_sys::XLogArchiveTimeout);
        let seconds = if archived > 0.0 { seconds.min(archived / 2.0) } else { seconds };
        (seconds, target * bytes)
    }
}

/// Now, in microseconds as PostgreSQL counts them.
pub fn now() -> u64 {
    // SAFETY: reads the clock and raises nothing.
    unsafe { pg_sys::GetCurrentTimestamp() as u64 }
}

/// A worker without transactions has caught an ERROR: gives back all that it held, as the
/// background writer does.
pub fn clean_up_after_error() {
    // SAFETY: in a process that has an auxiliary resource owner and no transaction; in the order of
    // bgwriter.c.
    unsafe {
        pg_sys::InterruptHoldoffCount += 1;
        pg_sys::LWLockReleaseAll();
        pg_sys::ConditionVariableCancelSleep();
        #[cfg(feature = "pg18")]
        raw::pgaio_error_cleanup();
        #[cfg(feature = "pg15")]
        pg_sys::AbortBufferIO();
        pg_sys::UnlockBuffers();
        pg_sys::ReleaseAuxProcessResources(false);
        pg_sys::AtEOXact_Buffers(false);
        pg_sys::AtEOXact_SMgr();
        pg_sys::AtEOXact_Files(false);
        pg_sys::AtEOXact_HashTables(false);
        pg_sys::XLogResetInsertion();
        pg_sys::InterruptHoldoffCount -= 1;
    }
}

/// A setting of PostgreSQL that is an enum, as long as the process lasts.
pub fn enum_setting(name: &core::ffi::CStr) -> Option<*mut pg_sys::config_enum> {
    // SAFETY: settings are made before a library is loaded, and have names.
    unsafe {
        #[cfg(feature = "pg15")]
        let (all, n) = (pg_sys::get_guc_variables(), pg_sys::GetNumConfigOptions());
        #[cfg(not(feature = "pg15"))]
        let (all, n) = {
            let mut n = 0;
            (pg_sys::get_guc_variables(&mut n), n)
        };
        let found = std::slice::from_raw_parts(all, n as usize).iter().find(|s| {
            core::ffi::CStr::from_ptr((***s).name) == name && (***s).vartype == pg_sys::config_type::PGC_ENUM
        });
        found.map(|s| s.cast())
    }
}
