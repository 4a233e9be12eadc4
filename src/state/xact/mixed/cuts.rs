//! The last mixed commit, and the snapshots that mixed READ ONLY transactions may have, in shared
//! memory (INV-MIXED, INV-CUT).

use crate::pg::faults::{self, Fault};
use crate::pg::local::Local;
use crate::pg::wal;
use crate::state::shmem;
use mixedcc_engine::csn::Csn;
use mixedcc_engine::primitive::{AtomicU64, Ordering};
use pgrx::pg_sys;

/// Pairs of snapshots that are remembered.
const ROOM: usize = 128;

/// The shared block.
#[repr(C)]
struct Shared {
    /// Full transaction id of the mixed transaction that has taken the lock last; 0: none.
    last: AtomicU64,
    /// Under the lock of `shmem::cutting`.
    cuts: Cuts,
}

/// The pairs, in no order.
#[repr(C)]
struct Cuts {
    len: usize,
    at: [Pair; ROOM],
    /// The largest moment, and CSN, of a pair that was forgotten.
    lost: (u64, Csn),
}

/// Transactions that have one snapshot of heap: its moment, and the CSNs of their snapshots of
/// ours.
#[derive(Clone, Copy)]
#[repr(C)]
struct Pair {
    moment: u64,
    first: Csn,
    last: Csn,
}

impl Cuts {
    /// Adds a pair of snapshots, if it is in the same order by both (INV-CUT).
    fn admit(&mut self, moment: u64, csn: Csn) -> bool {
        let known = &mut self.at[..self.len];
        let crossed = |p: &Pair| p.moment > moment && p.first < csn || p.moment < moment && p.last > csn;
        if moment < self.lost.0 || csn < self.lost.1 || known.iter().any(crossed) {
            return false;
        }
        if let Some(p) = known.iter_mut().find(|p| p.moment == moment) {
            (p.first, p.last) = (p.first.min(csn), p.last.max(csn));
            return true;
        }
        if self.len == ROOM {
            self.forget_first();
        }
        self.at[self.len] = Pair { moment, first: csn, last: csn };
        self.len += 1;
        true
    }

    fn forget_first(&mut self) {
        let Some(first) = (0..self.len).min_by_key(|&i| self.at[i].moment) else { return };
        let p = self.at[first];
        self.lost = (self.lost.0.max(p.moment), self.lost.1.max(p.last));
        self.len -= 1;
        self.at[first] = self.at[self.len];
    }
}

/// Of the process: written by the start-up hook of shared memory.
static SHARED: Local<*mut Shared> = Local::new(std::ptr::null_mut());

/// Bytes of shared memory.
pub fn size() -> usize {
    std::mem::size_of::<Shared>()
}

/// Finds the block, or makes it.
///
/// # Safety
/// Called by the start-up hook of shared memory, with AddinShmemInitLock.
pub unsafe fn startup() {
    let mut found = false;
    // SAFETY: the contract of this function. The new block has `size()` bytes, and zeros are a
    // block without commits and pairs.
    unsafe {
        let p = pg_sys::ShmemInitStruct(c"mixedcc mixed".as_ptr(), size(), &mut found);
        if !found {
            p.cast::<u8>().write_bytes(0, size());
        }
        SHARED.set(p.cast());
    }
}

fn last() -> &'static AtomicU64 {
    // SAFETY: the start-up hook wrote `SHARED` before a process comes here; the word is atomic.
    unsafe { &(*SHARED.get()).last }
}

/// A mixed transaction with this full id has taken the lock, and has no CSN yet.
pub fn note_commit(xid: u64) {
    last().store(xid, Ordering::SeqCst);
}

/// Is a snapshot of heap with the snapshot `csn` of ours a cut (INV-CUT)? If so it is remembered.
///
/// # Safety
/// A valid MVCC snapshot of this backend, taken before that of ours.
pub unsafe fn admit(s: pg_sys::Snapshot, csn: Csn) -> bool {
    // SAFETY: `s` is valid (contract of this function).
    let (seen, moment) = unsafe { (sees(s, last().load(Ordering::SeqCst)), moment(s)) };
    let in_order = shmem::cutting(|| {
        // SAFETY: as in `last`. The lock is held, so no other reference to the pairs is in use.
        unsafe { &mut (*SHARED.get()).cuts }.admit(moment, csn)
    });
    seen && (in_order || faults::on(Fault::MixedCrossed))
}

/// Had the transaction with this full id ended for the snapshot? Those before it in the order of
/// the lock had then, too.
///
/// # Safety
/// A valid MVCC snapshot of this backend.
unsafe fn sees(s: pg_sys::Snapshot, xid: u64) -> bool {
    // An id from so long ago may look like a later one; no snapshot is as old.
    let is_old = wal::next_full_xid().wrapping_sub(xid) > 1 << 30;
    // SAFETY: `s` is valid (contract of this function).
    xid == 0 || is_old || !unsafe { pg_sys::XidInMVCCSnapshot(pg_sys::TransactionId::from(xid as u32), s) }
}

/// How many transactions had ended for the snapshot: each end of a transaction with an id makes it
/// larger by one at least, so it tells the order of snapshots. (Those that are not top-level ones
/// count as ended as soon as an id is that is above theirs.)
///
/// # Safety
/// A valid MVCC snapshot of this backend.
unsafe fn moment(s: pg_sys::Snapshot) -> u64 {
    let next = wal::next_full_xid();
    let widen = |xid: u32| next - u64::from((next as u32).wrapping_sub(xid));
    // SAFETY: `s` is valid (contract of this function).
    let (end, running) = unsafe { (widen(u32::from((*s).xmax)), u64::from((*s).xcnt)) };
    // A snapshot leaves the id of its own transaction out of those that run.
    let own = wal::full_xid_if_any().is_some_and(|own| own < end);
    end - running - u64::from(own)
}

#[cfg(test)]
mod unit {
    use super::{Cuts, Pair, ROOM};

    fn none() -> Cuts {
        Cuts { len: 0, at: [Pair { moment: 0, first: 0, last: 0 }; ROOM], lost: (0, 0) }
    }

    #[test]
    fn what_crosses_is_refused() {
        let mut cuts = none();
        assert!(cuts.admit(10, 100));
        assert!(!cuts.admit(9, 101), "earlier in heap, later in ours");
        assert!(!cuts.admit(11, 99), "later in heap, earlier in ours");
        assert!(cuts.admit(9, 100) && cuts.admit(11, 100), "equal ones do not cross");
        assert!(cuts.admit(10, 100) && cuts.admit(20, 300));
        assert!(cuts.admit(15, 200) && cuts.admit(15, 250), "one snapshot of heap, two of ours");
        assert!(!cuts.admit(14, 201) && !cuts.admit(16, 249));
    }

    #[test]
    fn what_is_forgotten_is_refused() {
        let mut cuts = none();
        for n in 1..=ROOM as u64 + 10 {
            assert!(cuts.admit(n, n * 10));
        }
        assert_eq!(cuts.len, ROOM);
        assert!(!cuts.admit(9, 90), "10 is forgotten");
        assert!(cuts.admit(10, 100) && cuts.admit(11, 110));
    }
}
