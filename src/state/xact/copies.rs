//! The first copy of a table for a subscriber: a transaction of a WAL sender whose snapshot
//! PostgreSQL has made from WAL (CREATE_REPLICATION_SLOT ... USE_SNAPSHOT), or one that has
//! imported such a snapshot (EXPORT_SNAPSHOT). It shows exactly the transactions that had committed
//! at the slot's start. All later ones are sent as changes, so the copy must not have them, and
//! must have all others. `docs/design/decoding.md` has the proof.
//!
//! **INV-COPY**: From its BEGIN on a transaction of a WAL sender with one snapshot keeps what was
//! replaced since, although it has no snapshot of PostgreSQL's yet. It remembers where the list of
//! recent commits (INV-RECENT) stood, and which commits were not done. When it takes its snapshot,
//! it leaves out each commit up to the clock whose transaction PostgreSQL's snapshot does not show.
//! Each commit with a transaction id is in the list before PostgreSQL logs it. A transaction that
//! imports its snapshot does so from the anchor on (INV-ANCHOR), and not from its BEGIN.

use super::anchors::{self, Anchor, Anchors};
use super::{backend, has_backend, prepared};
use crate::pg::compat;
use crate::pg::errors::{complain, unsupported};
use crate::pg::faults::{self, Fault};
use crate::pg::local::Local;
use crate::pg::wal;
use crate::state::{shmem, slots};
use mixedcc_engine::csn::{Csn, SlotId};
use mixedcc_engine::open::Kept;
use mixedcc_engine::primitive::{AtomicU32, AtomicU64, Ordering};
use mixedcc_engine::recent::{Entry, Found, Place, Recent};
use mixedcc_engine::{Table, Txn};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::collections::HashMap;

/// The commits that the list has room for.
pub(super) const ROOM: usize = 1 << 19;
/// Looks for an entry that is being written, at most.
const LOOKS: u32 = 10_000;

/// The shared block, with `wal_level` logical only. A word for each slot and the places follow.
#[repr(C)]
pub struct Shared {
    begun: AtomicU64,
    pub(super) anchors: Anchors,
}

/// Of the process: written by the start-up hook of shared memory.
static SHARED: Local<*const Shared> = Local::new(std::ptr::null());

/// What the transaction has remembered at its BEGIN.
#[derive(Clone)]
struct Begun {
    /// The next entry of the list.
    from: u64,
    /// Commits that were not done.
    open: Vec<Entry>,
    /// Tables with larger numbers have got their rows into memory since.
    last_table: u64,
}

/// Of the transaction: it has imported a snapshot in a WAL sender.
static IMPORTED: Local<bool> = Local::new(false);

/// Of the transaction.
static BEGUN: Local<Option<Begun>> = Local::new(None);

fn words() -> usize {
    slots::count().next_multiple_of(2)
}

/// Bytes of shared memory.
pub fn size() -> usize {
    if !wal::is_logical() {
        return 0;
    }
    size_of::<Shared>() + words() * size_of::<AtomicU32>() + ROOM * size_of::<Place>()
}

/// Finds the block, or makes it. Called with AddinShmemInitLock.
///
/// # Safety
/// Called by the start-up hook of shared memory.
pub unsafe fn startup() {
    if !wal::is_logical() {
        return;
    }
    let mut found = false;
    // SAFETY: the start-up hook of shared memory calls this, with AddinShmemInitLock (contract of
    // this function). The block has `size()` bytes, aligned for all its parts.
    unsafe {
        let p = pg_sys::ShmemInitStruct(c"mixedcc recent commits".as_ptr(), size(), &mut found);
        if !found {
            p.cast::<u8>().write_bytes(0, size());
        }
        SHARED.set(p.cast());
    }
}

pub(super) fn shared() -> Option<&'static Shared> {
    // SAFETY: null, or the block, which lives as long as shared memory. All of it is atomic.
    unsafe { SHARED.get().as_ref() }
}

fn keeps_word(shared: &'static Shared, slot: SlotId) -> &'static AtomicU32 {
    assert!((slot as usize) < words());
    // SAFETY: so many words follow the head of the block.
    unsafe { &*(&raw const *shared).add(1).cast::<AtomicU32>().add(slot as usize) }
}

pub(super) fn recent(shared: &'static Shared) -> Recent<'static> {
    // SAFETY: the places follow the words of all slots. All-zero is a place without an entry.
    let places = unsafe {
        let first = (&raw const *shared).add(1).cast::<AtomicU32>().add(words()).cast::<Place>();
        std::slice::from_raw_parts(first, ROOM)
    };
    Recent { begun: &shared.begun, places }
}

/// A commit has its CSN, and PostgreSQL logs it under this transaction id later, or has done so, if
/// it was prepared. 0: it has written nothing. Raises nothing.
pub fn note_commit(csn: Csn, xid: u64) {
    if let Some(shared) = shared().filter(|_| csn != 0) {
        recent(shared).add(Entry { csn, xid }, std::thread::yield_now);
    }
}

/// The same for a transaction that is about to commit, if it has an id.
pub fn note_commit_of(t: &Txn) {
    if shared().is_some() && t.has_writes() {
        if let Some(xid) = wal::full_xid_if_any() {
            note_commit(t.csn(), xid);
        }
    }
}

/// Does the slot's process keep old versions although it has no snapshot yet?
pub fn keeps(slot: SlotId) -> bool {
    shared().is_some_and(|shared| keeps_word(shared, slot).load(Ordering::SeqCst) != 0)
}

/// Is this process a WAL sender?
fn is_sender() -> bool {
    // SAFETY: a variable of this process, which its start has set.
    unsafe { pg_sys::am_walsender }
}

/// A transaction block has begun. PostgreSQL wants no snapshot before the slot is made.
fn begin_block() {
    // SAFETY: a variable of this process. A block that has its snapshot does not begin now.
    let is_new = !has_begun() && !unsafe { pg_sys::FirstSnapshotSet };
    let may = is_new && is_sender() && crate::pg::uses_xact_snapshot() && !compat::in_recovery();
    let Some(shared) = shared().filter(|_| may) else { return };
    let (e, slot) = (shmem::engine(), shmem::my_slot());
    // In this order (INV-COPY): the pin is not ended, the list's end, what is open.
    keeps_word(shared, slot).store(1, Ordering::SeqCst);
    e.pin(slot);
    let from = recent(shared).next();
    let mut open = Vec::new();
    e.take_seen(&mut open);
    let open = open.into_iter().filter_map(|(csn, of)| {
        let xid = e.slots[of as usize].xid.load(Ordering::SeqCst);
        // Without an id yet it comes into the list from now on. If it is done, it was logged.
        (xid != 0 && e.open_commit(of) == csn).then_some(Entry { csn, xid })
    });
    let open = open.collect();
    let last_table = e.shared.last_table.load(Ordering::SeqCst);
    BEGUN.set(Some(Begun { from, open, last_table }));
}

/// The transaction has imported a snapshot. In a WAL sender: one that it exports may be older than
/// the anchor, so no other session reads by the anchor because of it.
pub fn note_import() {
    if let Some(shared) = shared().filter(|_| is_sender()) {
        IMPORTED.set(true);
        keeps_word(shared, shmem::my_slot()).store(1, Ordering::SeqCst);
    }
}

/// The transaction has imported a snapshot that a WAL sender has exported for its slot. False: it
/// is not one of these. Must be called while nothing else has used it.
pub fn import(id: &str, from: SlotId) -> bool {
    let is_of_slot = |_: &&Shared| compat::sender_exports(id) && !keeps(from) && !is_sender() && !compat::in_recovery();
    let Some(shared) = shared().filter(is_of_slot) else { return false };
    let (e, slot) = (shmem::engine(), shmem::my_slot());
    e.pin_oldest(slot);
    let anchor = anchors::current(shared);
    // While the sender has its snapshot the anchor stays (INV-ANCHOR). So it was the same, and its
    // pin was there, when this process pinned.
    let Some(Anchor { from, last_table }) = anchor.filter(|_| is_of_slot(&shared)) else {
        e.unpin(slot);
        return false;
    };
    BEGUN.set(Some(Begun { from, open: Vec::new(), last_table }));
    true
}

/// A transaction block has begun: called from a frame that catches no panic.
#[pg_guard]
pub unsafe extern "C-unwind" fn begin_after_command() {
    begin_block();
}

/// Has the transaction begun as one that may copy?
pub fn has_begun() -> bool {
    // SAFETY: a backend has one thread, and the reference is not kept.
    unsafe { BEGUN.get_mut() }.is_some()
}

/// The transaction has ended.
pub fn end_transaction() {
    if BEGUN.take().is_none() && !IMPORTED.replace(false) {
        return;
    }
    IMPORTED.set(false);
    if let Some(shared) = shared() {
        keeps_word(shared, shmem::my_slot()).store(0, Ordering::SeqCst);
    }
    if !(has_backend() && backend().txn.is_active()) {
        shmem::engine().unpin(shmem::my_slot());
    }
}

/// The snapshot of a transaction that may copy; `None`: it is another one.
///
/// # Safety
/// A valid MVCC snapshot of this backend: a copy of the transaction's.
pub unsafe fn take(s: pg_sys::Snapshot, t: &mut Txn) -> Option<Kept> {
    let shared = shared()?;
    if compat::in_recovery() {
        refuse_on_standby();
        return None;
    }
    // SAFETY: a backend has one thread, and the reference is not kept.
    let Some(begun) = unsafe { BEGUN.get_mut() }.clone() else {
        refuse_unprepared();
        return None;
    };
    if faults::on(Fault::CopiesTooMuch) {
        return None;
    }
    // SAFETY: `s` is valid (contract of this function).
    let shows = |xid: u64| !unsafe { pg_sys::XidInMVCCSnapshot(pg_sys::TransactionId::from(xid as u32), s) };
    finish_shown(&shows);
    loop {
        let mut list = Vec::new();
        // A process that ends a prepared transaction has this lock while it takes the CSN and
        // notes it.
        let (mut upto, mut floor) = (0, 0);
        shmem::finishing(|| (upto, floor) = t.take_seen(&mut list));
        let known = read(shared, begun.from);
        let open = list.iter().map(|(csn, of)| known_xid(t, &known, (*csn, *of)).map(|xid| (*csn, xid)));
        let Some(open) = open.collect::<Option<Vec<_>>>() else { continue };
        let later = known.iter().filter(|(_, k)| k.n >= begun.from).map(|(csn, k)| (*csn, k.xid));
        let before = begun.open.iter().map(|e| (e.csn, e.xid));
        let all = open
            .into_iter()
            .chain(later)
            .chain(before)
            .filter(|(csn, xid)| *csn <= upto && !(*xid != 0 && shows(*xid)));
        let mut excluded: Vec<Csn> = all.map(|(csn, _)| csn).collect();
        excluded.sort_unstable();
        excluded.dedup();
        floor = excluded.first().map_or(floor, |first| floor.min(first - 1));
        let kept = Kept { upto, floor, excluded };
        t.adopt_seen(kept.seen(), false);
        return Some(kept);
    }
}

/// An entry of the list.
struct Known {
    n: u64,
    xid: u64,
}

/// The list, by CSN. An ERROR if it has lost an entry from `from` on.
fn read(shared: &'static Shared, from: u64) -> HashMap<Csn, Known> {
    let list = recent(shared);
    let end = list.next();
    let mut known = HashMap::new();
    for n in end.saturating_sub(ROOM as u64).min(from)..end {
        let mut looks = 0;
        loop {
            match list.read(n) {
                Found::Entry(e) => {
                    known.insert(e.csn, Known { n, xid: e.xid });
                    break;
                }
                Found::Lost if n < from => break,
                Found::NotYet if looks < LOOKS => {
                    looks += 1;
                    pgrx::check_for_interrupts!();
                    std::thread::sleep(std::time::Duration::from_micros(100));
                }
                Found::Lost | Found::NotYet => too_many(),
            }
        }
    }
    known
}

/// The transaction id of a commit that was not done; 0: it has none yet. `None`: look again.
fn known_xid(t: &Txn, known: &HashMap<Csn, Known>, (csn, of): (Csn, SlotId)) -> Option<u64> {
    let xid = t.e.slots[of as usize].xid.load(Ordering::SeqCst);
    let same = t.e.open_commit(of) == csn;
    if xid != 0 && same {
        return Some(xid);
    }
    known.get(&csn).map(|k| k.xid).or(same.then_some(0))
}

/// Waits until all prepared transactions that PostgreSQL's snapshot shows as ended are finished in
/// our tables, too. Their records may be in WAL before they have left the list of running ones.
fn finish_shown(shows: &impl Fn(u64) -> bool) {
    let e = shmem::engine();
    loop {
        prepared::finish_decided();
        let waits = e.kept_slots().any(|slot| {
            let xid = slots::prepared_xid(slot);
            xid != 0 && shows(xid.into())
        });
        if !waits {
            return;
        }
        pgrx::check_for_interrupts!();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The transaction reads this table. What came into memory since its BEGIN may have the rows of
/// other transactions than its snapshot shows: a table that was loaded, made or rewritten.
pub fn check_table(table: &Table, name: impl FnOnce() -> String) {
    // SAFETY: a backend has one thread, and the reference is not kept.
    let newer = unsafe { BEGUN.get_mut() }.as_ref().is_some_and(|begun| table.id > begun.last_table);
    if newer && !faults::on(Fault::CopiesTooMuch) {
        complain(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            &format!("mixedcc table \"{}\" was loaded or rewritten after this transaction had begun", name()),
            "Begin the transaction, and make its replication slot, again. A subscription does so by itself.",
        );
    }
}

#[cold]
fn too_many() -> ! {
    complain(
        PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
        "too many transactions have committed since this transaction began",
        "Begin the transaction, and make its replication slot, again. A subscription does so by itself.",
    )
}

/// A block of a WAL sender of a standby (since 16). PostgreSQL's snapshot of a slot shows the
/// commits that were replayed up to a place in WAL. Ours can only show a prefix of the serial
/// order, which is another set. After a promotion such a block is refused, too: `begin_block` has
/// noted nothing.
fn refuse_on_standby() {
    // SAFETY: a look at the state of this process's transaction.
    if is_sender() && unsafe { pg_sys::IsTransactionBlock() } && crate::pg::uses_xact_snapshot() {
        unsupported(
            "the snapshot of a replication slot of a standby does not cover mixedcc tables",
            "Copy the tables from the primary. A subscription to a standby takes copy_data = false.",
        );
    }
}

/// A block of a WAL sender without what `begin_block` notes: its isolation was set after BEGIN.
fn refuse_unprepared() {
    // SAFETY: a look at the state of this process's transaction.
    if is_sender() && unsafe { pg_sys::IsTransactionBlock() } {
        unsupported(
            "this transaction of a WAL sender cannot use mixedcc tables",
            "Begin it with BEGIN ISOLATION LEVEL REPEATABLE READ.",
        );
    }
}
