//! Slots of the engine, and the processes that have them.
//!
//! **INV-SLOT**: Each PGPROC of a process has one slot, and no two have the same. A slot has a
//! PGPROC, or is spare, or is taken: then a process is about to leave its own slot to a prepared
//! transaction for it, or a prepared transaction has it. A PGPROC gets another slot only by its own
//! process, between two transactions. It keeps its slot when the process ends. So the next process
//! of that PGPROC finds in the slot what a process before it has left there: retired memory and
//! counters, as if slots were PGPROCs. The spare slots come after these. The last ones are taken
//! for good: one for transactions that have ended, and with `wal_level` logical those of anchors.
//!
//! Two arrays say so: the slot of each PGPROC, and what each slot has. A third one has the ids of
//! prepared transactions. A word says whether a process ends some of these. The last words have the
//! ends of those that were prepared before the start (`xact/recovered.rs`).
//!
//! A process that looks up the PGPROC of another slot may see the one before. Then it wakes a
//! process without cause, or shows the number of the wrong one. A slot that has no process is never
//! quiescent: what it pins stays.

use crate::pg::compat::{self, ProcNo};
use crate::pg::local::Local;
use crate::pg::wal;
use crate::state::platform;
use mixedcc_engine::csn::{Csn, SlotId};
use mixedcc_engine::primitive::{AtomicU32, Ordering};
use pgrx::pg_sys;

/// In the array of slots: no process has it, and none is about to.
const SPARE: u32 = u32::MAX;
/// The same, but a process is about to leave its slot for it, or a prepared transaction has it.
const TAKEN: u32 = u32::MAX - 1;
/// The engine's slots have numbers of 16 bits.
const MOST: usize = u16::MAX as usize - 1;

/// Of the transaction: the spare slot that this process will have.
static NEXT: Local<Option<SlotId>> = Local::new(None);

/// Of the process: written by the start-up hook of shared memory.
static MAP: Local<*const AtomicU32> = Local::new(std::ptr::null());

/// PGPROCs of processes that may use shared memory.
pub fn procs() -> usize {
    // SAFETY: a variable of this process, set before the hooks run. Auxiliary processes come after
    // the backends.
    (unsafe { pg_sys::MaxBackends }) as usize + 16
}

/// Slots that no process ever has: they keep old versions for what needs a moment of the past
/// (`xact/anchors.rs`).
fn anchors() -> usize {
    2 * usize::from(wal::is_logical())
}

/// One slot that no process ever has, if transactions may be prepared: see [`ender`].
fn enders() -> usize {
    usize::from(compat::max_prepared_transactions() > 0)
}

/// All slots.
pub fn count() -> usize {
    let spare = compat::max_prepared_transactions().min(MOST.saturating_sub(procs() + anchors() + enders()));
    procs() + spare + enders() + anchors()
}

/// The slot for transactions that have ended, while rows of theirs are put into a table that is
/// loaded. PostgreSQL has given their places to others, so there may be no spare slot for them. The
/// caller has the lock of finishing.
pub fn ender(xid: u32) -> SlotId {
    let slot = (count() - anchors() - enders()) as SlotId;
    xid_of(slot).store(xid, Ordering::SeqCst);
    slot
}

/// One of the slots that no process has.
pub fn anchor(n: usize) -> SlotId {
    assert!(n < anchors());
    (count() - anchors() + n) as SlotId
}

/// Is it one of these?
pub fn is_anchor(slot: SlotId) -> bool {
    slot as usize >= count() - anchors()
}

/// Words for the end of a recovered transaction: its id and its CSN, in halves.
const END: usize = 4;

/// Words for the ends of recovered transactions: their number, and each of them.
fn ends() -> usize {
    1 + END * compat::max_prepared_transactions()
}

/// Bytes of shared memory.
pub fn size() -> usize {
    (procs() + 2 * count() + 1 + ends()) * size_of::<AtomicU32>()
}

/// Finds the map, or makes it. Called with AddinShmemInitLock.
///
/// # Safety
/// Called by the start-up hook of shared memory.
pub unsafe fn startup() {
    let mut found = false;
    // SAFETY: the start-up hook of shared memory calls this, with AddinShmemInitLock (contract of
    // this function). The block has `size()` bytes.
    unsafe {
        let p = pg_sys::ShmemInitStruct(c"mixedcc slots".as_ptr(), size(), &mut found);
        MAP.set(p.cast());
    }
    if !found {
        (0..procs()).for_each(|n| slot_of(n as ProcNo).store(n as u32, Ordering::SeqCst));
        let has = |slot: usize| match slot {
            _ if slot < procs() => slot as u32,
            _ if slot < count() - anchors() - enders() => SPARE,
            _ => TAKEN,
        };
        (0..count()).for_each(|slot| proc_of(slot as SlotId).store(has(slot), Ordering::SeqCst));
        set_finishing(false);
        end_word(0).store(0, Ordering::SeqCst);
    }
}

fn word(n: usize) -> &'static AtomicU32 {
    // SAFETY: the start-up hook wrote `MAP` before a process comes here. The callers check that the
    // block has this word, and it is atomic.
    unsafe { &*MAP.get().add(n) }
}

/// The slot of a PGPROC.
fn slot_of(proc: ProcNo) -> &'static AtomicU32 {
    assert!((proc as usize) < procs());
    word(proc as usize)
}

/// What a slot has.
fn proc_of(slot: SlotId) -> &'static AtomicU32 {
    assert!((slot as usize) < count());
    word(procs() + slot as usize)
}

/// The id of the prepared transaction of a slot.
fn xid_of(slot: SlotId) -> &'static AtomicU32 {
    assert!((slot as usize) < count());
    word(procs() + count() + slot as usize)
}

/// Does a process end prepared transactions? It has perhaps taken some out of their slots, and not
/// published them yet (INV-DECIDED).
#[inline]
pub fn is_finishing() -> bool {
    word(procs() + 2 * count()).load(Ordering::SeqCst) != 0
}

/// This process has the lock, and ends prepared transactions, or may (see [`is_finishing`]). That
/// ends also by an ERROR, before the lock is given up.
pub struct Finishing(());

impl Finishing {
    /// It begins.
    pub fn begin() -> Self {
        set_finishing(true);
        Finishing(())
    }
}

impl Drop for Finishing {
    fn drop(&mut self) {
        set_finishing(false);
    }
}

fn set_finishing(yes: bool) {
    word(procs() + 2 * count()).store(yes.into(), Ordering::SeqCst);
}

/// A word of the ends of recovered transactions.
fn end_word(n: usize) -> &'static AtomicU32 {
    assert!(n < ends());
    word(procs() + 2 * count() + 1 + n)
}

/// A transaction that was prepared before the start, with this full id, has committed at this CSN,
/// with rows in memory. There are at most as many as PostgreSQL has brought back. The caller has
/// the lock of finishing.
pub fn note_end(xid: u64, csn: Csn) {
    let n = end_word(0).load(Ordering::SeqCst);
    let at = 1 + END * n as usize;
    for (i, part) in [xid, xid >> 32, csn, csn >> 32].into_iter().enumerate() {
        end_word(at + i).store(part as u32, Ordering::SeqCst);
    }
    end_word(0).store(n + 1, Ordering::SeqCst);
}

/// The CSN at which such a transaction has committed, if it has. Words that are counted do not
/// change.
pub fn end_of(xid: u64) -> Option<Csn> {
    let part = |n: usize| u64::from(end_word(n).load(Ordering::SeqCst));
    let number = |at: usize| part(at) | part(at + 1) << 32;
    let mut all = (0..part(0) as usize).map(|i| 1 + END * i);
    all.find(|at| number(*at) == xid).map(|at| number(at + 2))
}

/// (INV-SLOT)
fn slot(proc: ProcNo) -> SlotId {
    slot_of(proc).load(Ordering::SeqCst) as SlotId
}

fn proc(slot: SlotId) -> Option<ProcNo> {
    Some(proc_of(slot).load(Ordering::SeqCst)).filter(|&n| n < TAKEN)
}

/// The slot of this process, to use the engine with: its transaction does not rest any more
/// (INV-RESTS).
#[inline]
pub fn my_slot() -> SlotId {
    platform::wake();
    my_number()
}

/// The slot of this process, for what needs no version.
#[inline]
pub fn my_number() -> SlotId {
    slot(compat::my_proc())
}

/// The slot of the leader of this process, which is a parallel worker.
pub fn leader_slot() -> SlotId {
    slot(compat::leader_proc())
}

/// The slot of a PGPROC that a process may have.
pub fn of_proc(proc: ProcNo) -> Option<SlotId> {
    ((proc as usize) < procs()).then(|| slot(proc))
}

/// Slot and name of the transaction that exported a snapshot.
pub fn exporter(snapshot_id: &str) -> Option<(SlotId, u64)> {
    let (proc, ident) = compat::exporter(snapshot_id)?;
    Some((of_proc(proc)?, ident))
}

/// Sets the latch of a slot's process; if it ended, of the process that has the slot by now.
pub fn wake(slot: SlotId) {
    if let Some(proc) = proc(slot) {
        compat::wake(proc);
    }
}

/// The process id of a slot, if it has a process.
pub fn pid_of(slot: SlotId) -> Option<i32> {
    proc(slot).and_then(compat::pid_of)
}

/// Cancels the transaction of a slot's process because of replay.
pub fn cancel_reader(slot: SlotId) {
    if let Some(proc) = proc(slot) {
        compat::cancel_reader(proc);
    }
}

/// Has the slot a PGPROC without any snapshot? A racy look.
#[inline]
pub fn has_no_snapshot(slot: SlotId) -> bool {
    proc(slot).is_some_and(compat::has_no_snapshot)
}

/// Takes a spare slot for this process. False: there is none.
pub fn take_spare() -> bool {
    debug_assert!(NEXT.get().is_none());
    NEXT.set(take());
    NEXT.get().is_some()
}

/// Takes a spare slot for a transaction that was prepared before the start, and has this id.
pub fn take_for(xid: u32) -> Option<SlotId> {
    let slot = take()?;
    xid_of(slot).store(xid, Ordering::SeqCst);
    Some(slot)
}

fn take() -> Option<SlotId> {
    let all = procs()..count();
    let mut free = all.map(|n| n as SlotId).chain(0..procs() as SlotId);
    free.find(|slot| proc_of(*slot).compare_exchange(SPARE, TAKEN, Ordering::SeqCst, Ordering::SeqCst).is_ok())
}

/// The transaction was not prepared: the slot is spare again.
pub fn give_spare_back() {
    if let Some(slot) = NEXT.take() {
        make_spare(slot);
    }
}

/// The process leaves its slot to its transaction, which has this id, for the one that it has taken
/// (INV-SLOT). Returns that. `None`: it has taken none.
pub fn move_to_spare(xid: u32) -> Option<SlotId> {
    let (me, to) = (compat::my_proc(), NEXT.take()?);
    let from = slot(me);
    xid_of(from).store(xid, Ordering::SeqCst);
    proc_of(from).store(TAKEN, Ordering::SeqCst);
    proc_of(to).store(me, Ordering::SeqCst);
    slot_of(me).store(to.into(), Ordering::SeqCst);
    Some(to)
}

/// The id of the prepared transaction that has this slot.
pub fn prepared_xid(slot: SlotId) -> u32 {
    xid_of(slot).load(Ordering::SeqCst)
}

/// A prepared transaction has ended: its slot is spare.
pub fn make_spare(slot: SlotId) {
    proc_of(slot).store(SPARE, Ordering::SeqCst);
}
