//! What PostgreSQL's serializable isolation knows of the running transaction (predicate.c). The
//! layouts are those of predicate_internals.h of 15 to 18.

use pgrx::pg_sys;

/// SHM_QUEUE (15), dlist_node and dlist_head (16): one layout, and a circle in each.
#[repr(C)]
struct Link {
    prev: *mut Link,
    next: *mut Link,
}

/// SERIALIZABLEXACT, up to the last field that is looked at.
#[repr(C)]
struct Xact {
    vxid: [u32; 2],
    prepare_no: u64,
    commit_no: u64,
    other_no: u64,
    out_conflicts: Link,
    in_conflicts: Link,
    locks: Link,
    finished: Link,
    #[cfg(not(feature = "pg15"))]
    all: Link,
    list_lock: pg_sys::LWLock,
    unsafe_conflicts: Link,
    top_xid: u32,
    finished_before: u32,
    xmin: u32,
    flags: u32,
    pid: i32,
}

/// RWConflictData: `reader` has not seen what `writer` wrote. The first link is that of the
/// reader's list.
#[repr(C)]
struct Conflict {
    out_link: Link,
    in_link: Link,
    reader: *mut Xact,
    writer: *mut Xact,
}

/// SXACT_FLAG_COMMITTED: its end is marked, which comes after snapshots show it.
const COMMITTED: u32 = 0x1;
/// SXACT_FLAG_PREPARED: it has passed PostgreSQL's test before its commit, or has committed.
const PREPARED: u32 = 0x2;
/// SXACT_FLAG_READ_ONLY
const READ_ONLY: u32 = 0x20;
/// SXACT_FLAG_SUMMARY_CONFLICT_OUT: it has not seen what some transaction wrote that has committed
/// and is forgotten.
const FORGOTTEN_WRITER: u32 = 0x400;

mod raw {
    use pgrx::pg_sys;
    extern "C-unwind" {
        pub fn ShareSerializableXact() -> *mut core::ffi::c_void;
        pub fn PreCommit_CheckForSerializationFailure();
        pub fn CheckForSerializableConflictIn(
            rel: pg_sys::Relation,
            row: *mut pg_sys::ItemPointerData,
            block: pg_sys::BlockNumber,
        );
    }
}

/// What the running transaction is to PostgreSQL's serializable isolation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing: it has no snapshot yet, or one that is safe.
    None,
    /// A transaction that was READ ONLY at its first query.
    ReadOnly,
    /// Another one.
    Writer,
    /// Its entry does not look as this code expects it.
    Strange,
}

/// The entry of the running transaction.
fn own() -> Option<&'static Xact> {
    // SAFETY: the entry of a running transaction lives in shared memory until its end, and the
    // callers keep the reference no longer.
    unsafe { raw::ShareSerializableXact().cast::<Xact>().as_ref() }
}

/// Runs `f` with the entry of the running transaction, under SerializableXactHashLock. `f` must not
/// unwind.
fn with_own<R>(f: impl FnOnce(&Xact) -> R) -> Option<R> {
    let own = own()?;
    // SAFETY: lock 28 of the main array is SerializableXactHashLock (lwlocknames.txt,
    // lwlocklist.h): entries and their lists change under it in exclusive mode only. It is released
    // below, as `f` does not unwind.
    unsafe {
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(28)).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_SHARED);
        let result = f(own);
        pg_sys::LWLockRelease(lock);
        Some(result)
    }
}

/// What the running transaction, of a process that is no parallel worker, is to PostgreSQL's
/// serializable isolation.
pub fn serializable_standing() -> Standing {
    // SAFETY: variables of this process, which only its one thread writes.
    let (pid, xid) = unsafe { (pg_sys::MyProcPid, crate::pg::raw::GetTopTransactionIdIfAny()) };
    let standing = with_own(|own| match own.flags & READ_ONLY {
        _ if own.pid != pid || own.top_xid != u32::from(xid) => Standing::Strange,
        0 => Standing::Writer,
        _ => Standing::ReadOnly,
    });
    standing.unwrap_or(Standing::None)
}

/// Has the running transaction read something that another serializable transaction has replaced
/// which has committed? And the ids of those that have prepared, and are not marked as committed.
pub fn missed_ones() -> (bool, Vec<u32>) {
    let look = |own: &Xact| {
        let committed = own.flags & FORGOTTEN_WRITER != 0 || missed(own).any(|x| x.flags & COMMITTED != 0);
        let prepared = missed(own).filter(|x| x.flags & (PREPARED | COMMITTED) == PREPARED);
        (committed, prepared.map(|x| x.top_xid).collect())
    };
    with_own(look).unwrap_or_default()
}

/// Those that have replaced what the transaction has read. Under SerializableXactHashLock.
fn missed(own: &Xact) -> impl Iterator<Item = &Xact> {
    let head = &raw const own.out_conflicts;
    let mut at = own.out_conflicts.next.cast_const();
    std::iter::from_fn(move || {
        // SAFETY: under the lock the list is a circle of conflicts, linked by their first fields;
        // each names two entries that live as long as it.
        (at != head).then(|| unsafe {
            let writer = &*(*at.cast::<Conflict>()).writer;
            at = (*at).next;
            writer
        })
    })
}

/// A transaction that has prepared. `pid`: its process, 0 after PREPARE TRANSACTION.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    pub pid: i32,
    pub xid: u32,
}

/// Do snapshots show the transaction of a process which has prepared, or has it been undone? Raises
/// nothing.
pub fn is_shown(x: Running) -> bool {
    // SAFETY: looks at the processes. The entry of one stays in shared memory when it ends, and its
    // `xid` is read whole.
    unsafe {
        let process = pg_sys::BackendPidGetProc(x.pid);
        !process.is_null() && u32::from((&raw const (*process).xid).read_volatile()) != x.xid
    }
}

/// Of a transaction that has written, and that snapshots show: those that have replaced what it has
/// read, have prepared, and are not marked as committed. Snapshots may show them.
pub fn unmarked_missed() -> Vec<Running> {
    // SAFETY: variables of this process, which only its one thread writes.
    let (pid, xid) = unsafe { (pg_sys::MyProcPid, u32::from(crate::pg::raw::GetTopTransactionIdIfAny())) };
    // An entry of another layout, and one without such conflicts, are left without the lock. A
    // conflict with a transaction that snapshots show by now was there before they showed it.
    let is_free = |own: &Xact| own.pid != pid || own.top_xid != xid || missed_none(own);
    if xid == 0 || own().is_none_or(is_free) {
        return Vec::new();
    }
    let is_unmarked = |x: &&Xact| x.flags & (PREPARED | COMMITTED) == PREPARED && x.top_xid != 0;
    let running = |x: &Xact| Running { pid: x.pid, xid: x.top_xid };
    with_own(|own| missed(own).filter(is_unmarked).map(running).collect()).unwrap_or_default()
}

fn missed_none(own: &Xact) -> bool {
    let head = &raw const own.out_conflicts;
    // SAFETY: the field is in the entry. Others write it under the lock, and a stale value is fine.
    unsafe { (&raw const own.out_conflicts.next).read_volatile().cast_const() == head }
}

/// PostgreSQL's test before a commit, which marks the transaction as prepared. PostgreSQL makes it
/// once more later. An ERROR unwinds.
pub fn check_before_commit() {
    // SAFETY: in PRE_COMMIT of a transaction of this process; the test may be made several times.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| raw::PreCommit_CheckForSerializationFailure()) }
}

/// Has the running transaction count as one that writes. An ERROR unwinds.
///
/// # Safety
/// An open relation, of which no transaction has a predicate lock.
pub unsafe fn count_as_writer(rel: pg_sys::Relation) {
    // SAFETY: `rel` is open (contract of this function).
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            raw::CheckForSerializableConflictIn(rel, std::ptr::null_mut(), pg_sys::InvalidBlockNumber)
        })
    }
}
