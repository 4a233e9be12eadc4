//! PostgreSQL as the engine's platform: sleeps go through the lock manager, so that its deadlock
//! detector, timeouts, cancels and pg_locks see them.
//!
//! **INV-OUTSIDE**: The engine's state of the transaction is not touched while the engine is in the
//! middle of a call. So `xact::txn` is an error then, and `xact::running` finds no transaction. A
//! statement on a table of ours is refused when it starts. A cursor that was open before is refused
//! when it goes on, or ends. A subtransaction of a user's function starts and ends within the call,
//! and the engine does not hear of it.

use crate::pg::compat;
pub use crate::pg::compat::my_ident;
use crate::pg::compat::Wait;
use crate::pg::guc::FREEZE_READERS;
use crate::pg::local::Local;
use crate::state::above::above;
use crate::state::{shmem, slots, stop, worker, xact};
use mixedcc_engine::csn::{Csn, SlotId, State};
use mixedcc_engine::platform::{Napped, Outcome, Platform, Queue, StopEvent, WaitFor, SPINS};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::record::Version;
use mixedcc_engine::Error;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::PgSqlErrorCode;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

mod waiting;

/// The platform. Stateless: the state is the backend's.
pub struct Pg;

/// The one platform.
pub static PG: Pg = Pg;

/// Fourth field of our lock tags (type `userlock`, which nothing else uses).
const TAG_SUBXACT: u16 = 7;
const TAG_RECORD: u16 = 8;
const TAG_PARTITION: u16 = 9;
const TAG_RANGE: u16 = 11;
/// The turn of a mixed commit (see `state/xact/mixed.rs`).
pub const TAG_MIXED: u16 = 12;
/// A table that is being attached (see `rel.rs`).
pub const TAG_ATTACH: u16 = 10;

/// A permanent table that prepared transactions keep from all others (`state/xact/prepared.rs`).
pub const TAG_PREPARED: u16 = 13;
/// One of which they keep more than rows of the files tell: others may read it. (Older versions
/// have the one before.)
pub const TAG_ONLY_READ: u16 = 16;
/// One of which they keep keys: others may do all that leaves these.
pub const TAG_KEYS: u16 = 17;
/// The same, if rows of the table's files tell all of it (see `state/xact/recovered.rs`).
pub const TAG_WRITTEN: u16 = 14;
/// The same, but rows are locked as if their keys had changed.
pub const TAG_WRITTEN_STRONGER: u16 = 15;
/// Both of these.
pub const TAGS_WRITTEN: [u16; 2] = [TAG_WRITTEN, TAG_WRITTEN_STRONGER];

/// A lock tag of ours.
pub fn lock_tag(a: u32, b: u32, c: u32, kind: u16) -> pg_sys::LOCKTAG {
    pg_sys::LOCKTAG {
        locktag_field1: a,
        locktag_field2: b,
        locktag_field3: c,
        locktag_field4: kind,
        locktag_type: pg_sys::LockTagType::LOCKTAG_USERLOCK as u8,
        locktag_lockmethodid: 1,
    }
}

fn queue_tag(q: Queue) -> pg_sys::LOCKTAG {
    match q {
        Queue::Record(t, n) => lock_tag(t as u32, n as u32, (n >> 32) as u32, TAG_RECORD),
        Queue::Partition(t, n) => lock_tag(t as u32, n, (t >> 32) as u32, TAG_PARTITION),
        Queue::Range(t, index, n) => lock_tag(t as u32, index as u32, n, TAG_RANGE),
    }
}

/// Lock tag of a subtransaction's locks, and of those that are given up early.
pub fn subxact_tag(slot: SlotId, ident: u64, tag: u32) -> pg_sys::LOCKTAG {
    lock_tag(slot as u32, ident as u32, tag, TAG_SUBXACT)
}

/// Longest wait of `let_pass`, in milliseconds: a session that repeats a transaction would meet the
/// winner anyway. One that begins another transaction must not wait for a session that does
/// nothing.
const LET_PASS_MS: u128 = 100;

/// Sleeps until `over`, but not for long: before a transaction that may be the repetition of one
/// that lost a deadlock.
pub fn let_pass(over: impl Fn() -> bool) {
    // SAFETY: `MyLatch` is this process's own latch. An ERROR of an interrupt unwinds, and nothing
    // is held here.
    unsafe {
        if pg_sys::InterruptHoldoffCount != 0 || pg_sys::CritSectionCount != 0 {
            return;
        }
        let events = (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as i32;
        let (began, mut ms) = (std::time::Instant::now(), 1);
        while !over() && began.elapsed().as_millis() < LET_PASS_MS {
            pg_sys::WaitLatch(pg_sys::MyLatch, events, ms, Wait::DeadlockWinner.event());
            pg_sys::ResetLatch(pg_sys::MyLatch);
            pgrx::check_for_interrupts!();
            ms = (2 * ms).min(16);
        }
    }
}

/// Is the engine in the middle of a call that runs functions of users (comparisons, expressions of
/// indexes)?
static INSIDE: Local<bool> = Local::new(false);
/// Is it, or does the transaction rest (INV-RESTS)? One look tells that neither is so.
static AWAY: Local<bool> = Local::new(false);

/// While it lives, functions of users run with the engine in the middle of a call.
struct Inside(bool);

impl Inside {
    fn enter() -> Inside {
        wake();
        AWAY.set(true);
        Inside(INSIDE.replace(true)) // taken back also if an ERROR unwinds
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.0);
        AWAY.set(self.0);
    }
}

/// The transaction has begun to rest. The next use of the engine wakes it.
pub fn note_rest() {
    AWAY.set(true);
}

/// Wakes the transaction if it rests.
#[inline]
pub fn wake() {
    if AWAY.get() && !INSIDE.get() {
        wake_up();
    }
}

#[cold]
fn wake_up() {
    AWAY.set(false);
    xact::rests::wake();
}

#[cold]
fn is_outside_after_rest() -> bool {
    wake();
    !INSIDE.get()
}

/// See [`outside`]. All code that is about to use the engine asks this before, or calls that: so it
/// wakes the transaction if that rests.
#[inline]
pub fn is_outside() -> bool {
    !AWAY.get() || is_outside_after_rest()
}

/// Raises an error if the engine is in the middle of a call (INV-OUTSIDE). Called wherever
/// PostgreSQL begins to use a table of ours.
#[inline]
pub fn outside() {
    if !is_outside() {
        crate::pg::errors::unsupported(
            "a function that an index uses must not access mixedcc tables",
            "Functions of index expressions and operator classes may depend on their arguments only.",
        );
    }
}

/// Was the last ERROR that ended a sleep a deadlock?
static DEADLOCK: Local<bool> = Local::new(false);

/// Sleeps; an ERROR unwinds, and is remembered if it is a deadlock, which the engine cannot tell
/// from a timeout. `lock`: what the sleep is for.
fn asleep(lock: Option<Queue>, sleep: impl FnOnce()) {
    let mut waiting = lock.map(waiting::Waiting::new);
    if let Some(w) = &mut waiting {
        // SAFETY: `waiting` stays in this frame, and is dropped with it (contract of `enter`). The
        // sleep enters nothing that it leaves behind.
        unsafe { w.enter() };
    }
    let Err(cause) = catch_unwind(AssertUnwindSafe(sleep)) else { return };
    let code = match cause.downcast_ref::<CaughtError>() {
        Some(CaughtError::PostgresError(e) | CaughtError::ErrorReport(e)) => Some(e.sql_error_code()),
        _ => None,
    };
    DEADLOCK.set(code == Some(PgSqlErrorCode::ERRCODE_T_R_DEADLOCK_DETECTED));
    resume_unwind(cause)
}

/// Asked once at the end of the (sub)transaction, which comes next: has PostgreSQL's detector ended
/// a sleep?
pub fn take_deadlock() -> bool {
    DEADLOCK.take()
}

/// The table for whose lock a statement would not sleep.
static REFUSED: Local<u64> = Local::new(0);

/// The table of the last lock that was not got because the statement must not sleep for it.
pub fn refused_table() -> u64 {
    REFUSED.get()
}

/// When the naps for a lock began, and when it looked last whether a process waits for a lock of
/// PostgreSQL's that it has.
static NAPS: Local<Option<(Instant, Instant)>> = Local::new(None);

/// One nap for a lock, as of a newcomer that stays behind a waiter. `n` counts the naps of one such
/// wait. After each `deadlock_timeout` it is a long one, and asks whether another process waits for
/// this one in PostgreSQL's lock manager.
///
/// Not a sleep in the lock manager: nothing there could end it but the waiter in front. A circle
/// through a nap would be a deadlock for PostgreSQL's detector, where the newcomer has only to
/// pass.
fn nap(n: u32) -> Napped {
    let now = Instant::now();
    // SAFETY: `MyLatch` is this process's own latch. An ERROR of an interrupt unwinds, and nothing
    // is held here.
    unsafe {
        let (began, looked) = if n == 0 { (now, now) } else { NAPS.get().unwrap_or((now, now)) };
        NAPS.set(Some((began, looked)));
        let limit = Some(pg_sys::LockTimeout).filter(|ms| *ms > 0).map(|ms| Duration::from_millis(ms as u64));
        let left = limit.map_or(Duration::MAX, |l| l.saturating_sub(began.elapsed()));
        if left.is_zero() {
            pgrx::ereport!(
                ERROR,
                PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE,
                "canceling statement due to lock timeout"
            );
        }
        let ms = (1 << n.min(6)).min(left.as_millis().max(1)) as i64;
        let events = (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as i32;
        let shown = pg_sys::PG_WAIT_LOCK | pg_sys::LockTagType::LOCKTAG_USERLOCK;
        pg_sys::WaitLatch(pg_sys::MyLatch, events, ms, shown);
        pg_sys::ResetLatch(pg_sys::MyLatch);
        pgrx::check_for_interrupts!();
        // A newcomer that may pass after some time does so before its own limit ends the wait.
        let some_time = Duration::from_millis(pg_sys::DeadlockTimeout as u64);
        if looked.elapsed() < limit.map_or(some_time, |l| some_time.min(l / 2)) {
            return Napped::Short;
        }
        NAPS.set(Some((began, Instant::now())));
        if compat::is_awaited() {
            Napped::Awaited
        } else {
            Napped::Long
        }
    }
}

/// Pauses in which a validation waits for another's commit: about two seconds. A foreign data
/// wrapper commits remotely after our validation, and that commit may validate against us, in a
/// session of this server or by way of others.
const PATIENCE: u32 = 10_000;

impl Platform for Pg {
    fn wait_for(&self, w: WaitFor) -> Result<(), Error> {
        asleep(w.lock, || {
            // SAFETY: a transaction is running, as `wait_for_end` and the lock manager want. An
            // ERROR unwinds, and the lock manager cleans up at abort.
            unsafe {
                if w.tag == 0 {
                    compat::wait_for_end(w.ident);
                } else {
                    let t = subxact_tag(w.slot, w.ident, w.tag);
                    pg_sys::LockAcquire(&t, pg_sys::ShareLock as i32, false, false);
                    pg_sys::LockRelease(&t, pg_sys::ShareLock as i32, false);
                }
            }
        });
        xact::prepared::finish_decided(); // INV-DECIDED
        Ok(())
    }
    fn enter_queue(&self, q: Queue) -> Result<(), Error> {
        asleep(Some(q), || {
            // SAFETY: a transaction is running, as the lock manager wants. An ERROR unwinds, and
            // the lock manager cleans up at abort.
            unsafe { pg_sys::LockAcquire(&queue_tag(q), pg_sys::ExclusiveLock as i32, false, false) };
        });
        Ok(())
    }
    fn may_sleep(&self, q: Queue) -> bool {
        let (Queue::Record(table, _) | Queue::Partition(table, _) | Queue::Range(table, ..)) = q;
        let may = (above().may_sleep)(table);
        if !may {
            REFUSED.set(table);
        }
        may
    }
    fn leave_queue(&self, q: Queue) {
        // SAFETY: `enter_queue` took this lock in this transaction; a lock that is not held is a
        // WARNING only.
        unsafe { pg_sys::LockRelease(&queue_tag(q), pg_sys::ExclusiveLock as i32, false) };
    }
    fn stand_back(&self, q: Queue, n: u32) -> Result<Napped, Error> {
        let mut napped = Napped::Short;
        asleep(Some(q), || napped = nap(n));
        Ok(napped)
    }
    fn nudge(&self, slot: SlotId) {
        slots::wake(slot);
    }
    fn meets(&self, condition: u32, row: NonNull<Version>) -> bool {
        let _inside = Inside::enter();
        // SAFETY: the engine reaches the version under our pin (INV-RETIRE), and asks for
        // conditions of this transaction.
        unsafe { (above().meets)(condition, row.as_ptr()) }
    }
    fn has_written(&self) -> bool {
        // SAFETY: `GetTopTransactionIdIfAny` reads a variable of this process and raises nothing.
        unsafe { crate::pg::raw::GetTopTransactionIdIfAny() != pg_sys::InvalidTransactionId }
    }
    fn freezes_readers(&self) -> bool {
        FREEZE_READERS.get()
    }
    fn pause(&self, n: u32) -> Result<(), Error> {
        if n < SPINS {
            std::hint::spin_loop();
        } else {
            // SAFETY: the engine holds no latch when it pauses, so an interrupt may be processed;
            // its ERROR unwinds.
            unsafe {
                pg_sys::pg_usleep(if n < 100 { 1 } else { 100.min(n as i64) });
                if pg_sys::InterruptPending != 0 && pg_sys::CritSectionCount == 0 {
                    pg_sys::ProcessInterrupts();
                }
            }
        }
        Ok(())
    }
    fn nap(&self, n: u32) -> Result<(), Error> {
        xact::prepared::finish_decided(); // INV-DECIDED
        if n < 100 {
            return self.pause(n);
        }
        // SAFETY: `MyLatch` is this process's own latch. The engine holds no latch when it naps; an
        // ERROR of an interrupt unwinds.
        unsafe {
            let events = (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as i32;
            pg_sys::WaitLatch(pg_sys::MyLatch, events, 10, Wait::CommitEnd.event());
            pg_sys::ResetLatch(pg_sys::MyLatch);
            pgrx::check_for_interrupts!();
        }
        Ok(())
    }
    fn nap_for_lock(&self, n: u32) -> Result<(), Error> {
        xact::prepared::finish_decided(); // INV-DECIDED
        if n < 100 {
            return self.pause(n);
        }
        nap((n - 100).min(3));
        Ok(())
    }
    fn outcome(&self, slot: SlotId, csn: Csn) -> Outcome {
        let e = shmem::engine();
        let xid = e.slots[slot as usize].xid.load(Ordering::SeqCst);
        if xid == 0 {
            return Outcome::Open;
        }
        // The owner stores the xid before it can be decided, and clears it when the word is
        // another.
        let w = e.word(slot);
        // SAFETY: a look at the commit log. The engine holds no latch here.
        let committed = || unsafe { pg_sys::TransactionIdDidCommit(pg_sys::TransactionId::from(xid as u32)) };
        if w.state() == State::Committing && w.csn() == csn && committed() {
            return Outcome::Committed;
        }
        Outcome::Open
    }
    fn patience(&self) -> u32 {
        PATIENCE
    }
    fn lock_tag(&self) -> u32 {
        xact::subxact_lock_tag()
    }
    fn take_tag(&self, bit: u32) -> Result<u32, Error> {
        Ok(xact::early_lock_tag(bit))
    }
    fn give_up(&self, tag: u32) {
        xact::give_up(tag);
    }
    fn quiescent(&self, slot: SlotId) -> bool {
        // The coordinator has no snapshot, but pins what it looks at. So does a WAL sender that is
        // about to copy.
        slots::has_no_snapshot(slot) && !worker::is_slot(slot) && !xact::copies::keeps(slot)
    }
    fn compare_keys(&self, order: u32, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        let _inside = Inside::enter();
        crate::keys::codec::compare(order, a, b)
    }
    fn reached(&self, scan: u32) -> Option<(Vec<u8>, bool)> {
        let _inside = Inside::enter();
        (above().reached)(scan)
    }
    fn stop_event(&self, e: StopEvent) -> Result<(), Error> {
        stop::at(e)
    }
}
