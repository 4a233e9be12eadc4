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
const ROOM: usize = 4096;

/// The shared block.
#[repr(C)]
struct Shared {
    /// Full transaction id of the mixed transaction that has taken the lock last; 0: none.
    last: AtomicU64,
    /// Under the lock of `shmem::cutting`.
    cuts: Cuts,
}

/// The pairs, a ring, sorted by their moments. None crosses another, so they are in the order of
/// their CSNs, too.
#[repr(C)]
struct Cuts {
    first: usize,
    len: usize,
    ring: [Pair; ROOM],
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
    /// Adds a pair of snapshots, if it is in the same order by both (INV-CUT). Most are among the
    /// latest, so this looks from the end.
    fn admit(&mut self, moment: u64, csn: Csn) -> bool {
        if moment < self.lost.0 || csn < self.lost.1 {
            return false;
        }
        let after = (0..self.len).rev().take_while(|&i| self.at(i).moment > moment).count();
        let place = self.len - after;
        let is_known = place > 0 && self.at(place - 1).moment == moment;
        let before = place - usize::from(is_known);
        if before > 0 && self.at(before - 1).last > csn || after > 0 && self.at(place).first < csn {
            return false;
        }
        if is_known {
            let p = self.at_mut(before);
            (p.first, p.last) = (p.first.min(csn), p.last.max(csn));
        } else {
            self.remember(place, Pair { moment, first: csn, last: csn });
        }
        true
    }

    fn at(&self, i: usize) -> &Pair {
        &self.ring[(self.first + i) % ROOM]
    }

    fn at_mut(&mut self, i: usize) -> &mut Pair {
        &mut self.ring[(self.first + i) % ROOM]
    }

    /// Adds the pair behind `place` others. The earliest is forgotten where there is no room.
    fn remember(&mut self, mut place: usize, pair: Pair) {
        if self.len == ROOM {
            let p = if place == 0 { pair } else { *self.at(0) };
            self.lost = (self.lost.0.max(p.moment), self.lost.1.max(p.last));
            if place == 0 {
                return;
            }
            (self.first, self.len, place) = ((self.first + 1) % ROOM, self.len - 1, place - 1);
        }
        self.len += 1;
        for i in (place + 1..self.len).rev() {
            *self.at_mut(i) = *self.at(i - 1);
        }
        *self.at_mut(place) = pair;
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

/// Of a READ ONLY transaction: the full id of the mixed transaction that had taken the lock last,
/// when its snapshot of ours was there; 0: none.
#[derive(Clone, Copy)]
pub struct Cut {
    last: u64,
    /// It has been admitted already.
    admitted: bool,
}

impl Cut {
    /// The transaction has taken its snapshot of ours.
    pub fn look() -> Cut {
        Cut { last: last().load(Ordering::SeqCst), admitted: false }
    }

    /// Admits the cut now, if `early`.
    ///
    /// # Safety
    /// As for [`Cut::admit`].
    pub unsafe fn early(self, early: bool, s: pg_sys::Snapshot, csn: Csn) -> Cut {
        // SAFETY: the contract of this function.
        Cut { admitted: early && unsafe { self.admit(s, csn) }, ..self }
    }

    pub fn is_admitted(self) -> bool {
        self.admitted
    }

    /// Is a snapshot of heap with the snapshot `csn` of ours a cut (INV-CUT)? If so it is
    /// remembered.
    ///
    /// # Safety
    /// A valid MVCC snapshot of this backend, taken before that of ours.
    pub unsafe fn admit(self, s: pg_sys::Snapshot, csn: Csn) -> bool {
        // SAFETY: `s` is valid (contract of this function).
        let (seen, moment) = unsafe { (sees(s, self.last), moment(s)) };
        seen && shmem::cutting(|| {
            // SAFETY: as in `last`. The lock is held, so no other reference to the pairs is in use.
            let in_order = unsafe { &mut (*SHARED.get()).cuts }.admit(moment, csn);
            in_order || faults::on(Fault::MixedCrossed)
        })
    }
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
/// count as ended as soon as an id is that is above theirs. One that is being prepared is in the
/// snapshot twice for a time.)
///
/// # Safety
/// A valid MVCC snapshot of this backend.
unsafe fn moment(s: pg_sys::Snapshot) -> u64 {
    let next = wal::next_full_xid();
    let widen = |xid: u32| next - u64::from((next as u32).wrapping_sub(xid));
    // SAFETY: `s` is valid (contract of this function).
    let (end, mut running) = unsafe {
        let ids = std::slice::from_raw_parts((*s).xip, (*s).xcnt as usize);
        (widen(u32::from((*s).xmax)), ids.iter().map(|&id| u32::from(id)).collect::<Vec<_>>())
    };
    running.sort_unstable();
    running.dedup();
    // A snapshot leaves the id of its own transaction out of those that run.
    let own = wal::full_xid_if_any().is_some_and(|own| own < end);
    end - running.len() as u64 - u64::from(own)
}

#[cfg(test)]
mod unit {
    use super::{Cuts, Pair, ROOM};

    fn none() -> Cuts {
        Cuts { first: 0, len: 0, ring: [Pair { moment: 0, first: 0, last: 0 }; ROOM], lost: (0, 0) }
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
        assert!(cuts.admit(10, 105), "it has no room, and is forgotten at once");
        assert!(!cuts.admit(11, 104) && cuts.admit(10, 105));
    }

    /// The same answers as a list of all pairs gives, as far as nothing is forgotten.
    #[test]
    fn answers_are_those_of_a_list() {
        let (mut cuts, mut list, mut state) = (none(), Vec::<(u64, u64)>::new(), 7_u64);
        let mut admitted = 0;
        for step in 0..3 * ROOM as u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (moment, csn) = (step / 8 + (state >> 33) % 8, step / 8 + (state >> 45) % 8);
            let crosses = list.iter().any(|&(m, c)| m > moment && c < csn || m < moment && c > csn);
            assert_eq!(cuts.admit(moment, csn), !crosses, "{step}: {moment}, {csn}");
            if !crosses {
                list.push((moment, csn));
                admitted += 1;
            }
        }
        assert!(admitted > ROOM as u64 / 2, "{admitted}");
    }
}
