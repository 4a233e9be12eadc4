//! Reads on a standby (docs/design/standby.md): what a primary tells, snapshots, conflicts.
//!
//! **INV-READY**: Each table that a transaction uses on a standby has all entries up to each
//! snapshot of the transaction in memory: when it is used first, and when a snapshot is taken. And
//! each snapshot that may be in use is at or above the CSN from which the table is complete.

use crate::pg::compat;
use crate::pg::errors::{complain, complain_with_detail};
use crate::pg::faults::{self, Fault};
use crate::pg::guc::STANDBY_INTERVAL_MS;
use crate::pg::isolation;
use crate::pg::local::Local;
use crate::pg::wal;
use crate::state::{rel, shmem, slots, stop, xact};
use mixedcc_engine::csn::{Csn, SlotId};
use mixedcc_engine::durable::standby::{Shown, Told, ASLEEP, BEFORE_MAX, TAKING};
use mixedcc_engine::durable::wal::{Op, Stable};
use mixedcc_engine::durable::{Durable, Lsn};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::Table;
use pgrx::pg_sys;
use pgrx::prelude::*;

/// Between two looks at what is replayed, µs.
const LOOK_US: core::ffi::c_long = 2000;
/// Looks of a commit that standbys shall show at once, and the time between two, µs.
const TRIES: u32 = 100;
const TRY_US: core::ffi::c_long = 200;
/// So long a session waits until it is known what may be shown, µs.
const PATIENCE_US: u64 = 10_000_000;

/// Below this interval the companion flushes what it has told, ms.
const EAGER_MS: i32 = 50;
/// Has the companion noted what was prepared before this life? Of the process.
static IS_NOTED: Local<bool> = Local::new(false);
/// What the companion has told last. Of the process.
static LAST: Local<Option<Told>> = Local::new(None);
/// Has a round ended of which replay has nothing yet that says what it may show? Of the process.
static OWES: Local<bool> = Local::new(false);
/// When the companion has told last what is stable, in microseconds. Of the process.
static TOLD_AT: Local<u64> = Local::new(0);

/// On a primary: the name of this life of shared memory, before the first commit of it.
pub fn begin_life() {
    shmem::engine().shared.standby.life(wal::inserted());
}

/// What may be told (INV-STABLE). Transactions that were prepared before this life are open while
/// they run: also if no table of theirs is in memory, and so no slot tells of them. One that runs
/// after the look has no CSN in it. One that has ended meanwhile may have one: nothing is told.
fn stable() -> Option<Told> {
    let e = shmem::engine();
    let standby = &e.shared.standby;
    let before = standby.recovered(is_running)?;
    let told = e.stable_upto(&before)?;
    (before.is_empty() || standby.recovered(is_running)? == before).then_some(told)
}

fn is_running(xid: u64) -> bool {
    wal::is_running(xid as u32)
}

/// The companion notes which transactions were prepared before this life, as soon as it is one of a
/// primary.
fn note_recovered() {
    if compat::in_recovery() || IS_NOTED.get() {
        return;
    }
    let found = compat::recovered_xids();
    let mut all: Vec<u64> = found.into_iter().filter(|xid| wal::is_running(*xid)).map(wal::full_xid_of).collect();
    if all.len() <= BEFORE_MAX && !all.is_empty() && !faults::on(Fault::DefinersTold) {
        let defining = compat::recovered_definers();
        all.iter_mut().filter(|xid| defining.contains(&(**xid as u32))).for_each(|xid| *xid |= ASLEEP);
    }
    IS_NOTED.set(!shmem::engine().shared.standby.set_recovered(&all));
}

/// In the companion: other transactions are open than at the last look, or than another process has
/// told since. Then what is stable gets another CSN, as standbys take one list for each: one that
/// was prepared before this life may end without a CSN.
fn renew() {
    let Some(told) = stable() else { return };
    let e = shmem::engine();
    if e.shared.standby.find(&told.open) && !faults::on(Fault::ListKept) {
        e.tick();
    }
}

/// On a primary: tells standbys what is stable, if that is new. Returns it.
pub fn tell() -> Csn {
    match news() {
        Ok(told) => {
            log(&told, 0);
            told.csn
        }
        Err(last) => last,
    }
}

/// What is to be told. `Err`: nothing; what was told last.
fn news() -> Result<Told, Csn> {
    let e = shmem::engine();
    let (last, _) = e.shared.standby.told();
    stable().filter(|told| told.csn > last && wal::is_archived()).ok_or(last)
}

/// The same in the companion, in the pace that the setting says. A short interval does not wait for
/// the WAL writer.
pub fn tell_in_time() {
    let (last, now, interval) = (TOLD_AT.get(), compat::now(), STANDBY_INTERVAL_MS.get());
    // The clock may have been set back.
    if now < last || now - last >= interval as u64 * 1000 {
        note_recovered();
        if wal::is_archived() {
            renew();
        }
        if OWES.get() {
            tell_again();
        }
        if let Ok(told) = news() {
            let end = log(&told, 0);
            LAST.set(Some(told));
            if interval < EAGER_MS {
                wal::flush(end);
            }
        }
        TOLD_AT.set(now);
    }
}

/// The companion rests for this time at most, ms.
pub fn rest_ms(at_most: i64) -> i64 {
    let interval = STANDBY_INTERVAL_MS.get().into();
    if wal::is_archived() {
        at_most.min(interval)
    } else {
        at_most
    }
}

/// On a primary, after each round: tells it once more. Replay that begins at the round's
/// checkpoint, as when a standby starts, comes to this record, also if no commit follows.
///
/// If nothing new can be told, which may take long, it is what was told last: that stays true. With
/// the horizon, as index entries may have gone above that.
pub fn tell_again() {
    note_recovered();
    if wal::is_archived() {
        let told = stable().filter(|told| told.csn > 0).or_else(|| LAST.replace(None));
        let (_, horizon) = shmem::engine().shared.standby.told();
        OWES.set(told.is_none());
        told.iter().for_each(|told| {
            log(told, horizon);
        });
        LAST.set(told);
    }
}

/// On a primary: a commit waits until standbys have applied it, and their next snapshots shall show
/// it. Tells that it is stable, as soon as all before it are decided. Returns where the record
/// ends. `None`: that takes too long; the companion tells it then.
pub fn tell_commit(csn: Csn) -> Option<Lsn> {
    let e = shmem::engine();
    if e.is_held_back(csn) {
        return None;
    }
    for _ in 0..TRIES {
        if let Some(told) = stable().filter(|told| told.csn >= csn) {
            let end = insert(&told, 0);
            wal::flush(end);
            return Some(end);
        }
        compat::nap(TRY_US);
    }
    None
}

/// On a primary: a commit has made storages of this birth. Tells that they may be shown, if that
/// does not take long: else the companion tells it.
pub fn tell_birth(csn: Csn) {
    // A single-user server has no companion, and so nothing that is stable.
    // SAFETY: a variable of this process.
    let is_told = unsafe { pg_sys::IsUnderPostmaster } && wal::is_archived();
    if !is_told || shmem::engine().is_held_back(csn) {
        return;
    }
    for _ in 0..TRIES {
        if let Some(told) = stable().filter(|told| told.csn >= csn) {
            log(&told, 0);
            return;
        }
        compat::nap(TRY_US);
    }
}

fn log(told: &Told, horizon: Csn) -> Lsn {
    let end = insert(told, horizon);
    // With this fault, a test finds commits that no other process flushes.
    if told.csn > 0 && !faults::on(Fault::LazyForgotten) {
        wal::flush_soon(end); // Only what is on disk is sent. Perhaps no commit follows.
    }
    end
}

fn insert(told: &Told, horizon: Csn) -> Lsn {
    let standby = &shmem::engine().shared.standby;
    let open: Vec<u8> = told.open.iter().flat_map(|xid| xid.to_le_bytes()).collect();
    let data = Stable { life: standby.life(wal::inserted()), csn: told.csn, horizon, open: &[] }.encode();
    // SAFETY: in a critical section, in which no other record is begun.
    let end = wal::critical(|| unsafe { wal::insert(Op::Stable, wal::UNIMPORTANT, &[&data, &open]) });
    standby.tell(told, horizon);
    end
}

/// On a primary: rows that were deleted below the result may lose their index entries. At most
/// `floor`.
pub fn floor_of(table: &Table, floor: Csn) -> Csn {
    let tells = table.durable().is_some() && wal::is_archived() && !compat::in_recovery();
    let e = shmem::engine();
    // Some prepared transactions hold back what is stable, for long perhaps. Memory comes first.
    if tells && floor > e.shared.standby.told().0 + 1 && !e.is_held_back(floor) {
        floor.min(tell() + 1)
    } else {
        floor
    }
}

/// On a primary: may the index entries go of rows that were deleted before their table was loaded
/// again? As with [`floor_of`], only if standbys know that all of that is stable (INV-UNLOADED).
pub fn unloaded_may_go(table: &Table) -> bool {
    let csn = table.durable().map_or(0, Durable::unloaded);
    csn == 0 || floor_of(table, csn + 1) > csn
}

/// On a primary: the part of what lies up to `csn` that standbys know as stable. All of it, while
/// prepared transactions hold that back: no standby shows anything below a horizon that is told.
pub fn told(csn: Csn) -> Csn {
    if wal::is_archived() && !shmem::engine().is_held_back(csn) {
        csn.min(shmem::engine().shared.standby.told().0)
    } else {
        csn
    }
}

/// On a primary: index entries go of rows of which the last was deleted at `csn`, below a floor of
/// [`floor_of`]. Their WAL records come later.
pub fn tell_horizon(table: &Table, csn: Csn) {
    let (_, horizon) = shmem::engine().shared.standby.told();
    let tells = table.durable().is_some() && wal::is_archived();
    if tells && csn > horizon && !faults::on(Fault::HorizonLeftOut) {
        log(&Told::new(0, Vec::new()), csn);
    }
}

/// In the startup process: what a primary has told was replayed; the record ends at `at`.
pub fn replayed(stable: Stable, at: u64) {
    let standby = &shmem::engine().shared.standby;
    if !standby.is_life(stable.life) {
        // CSNs are compared within one life only.
        standby.forget();
        await_readers(Csn::MAX);
        standby.turn(true);
        standby.begin(stable.life);
    }
    standby.require(stable.horizon);
    if stable.csn > 0 {
        standby.show(Shown { csn: stable.csn, life: stable.life, at, time: compat::now() }, stable.open());
        // Pins of later snapshots are at or above it (INV-APPLY).
        shmem::engine().advance_clock(stable.csn);
    }
    if stable.horizon > 0 {
        await_readers(stable.horizon);
    }
}

/// The sessions that use a snapshot below a CSN, but for `me`.
fn readers(below: Csn, me: Option<SlotId>) -> Vec<SlotId> {
    let e = shmem::engine();
    let all = e.showing_below(below);
    all.filter(|slot| Some(*slot) != me && !is_idle(*slot)).collect()
}

/// Has the session of a slot no snapshot? It is about to take one, if its word says so.
fn is_idle(slot: SlotId) -> bool {
    let e = shmem::engine();
    e.slots[slot as usize].shows.load(Ordering::SeqCst) != TAKING && slots::has_no_snapshot(slot)
}

/// In the startup process: waits for snapshots below a CSN as long as the settings allow, and then
/// cancels them (INV-CONFLICT).
fn await_readers(below: Csn) {
    let begun = compat::now();
    let patience = compat::standby_delay();
    let mut cancelled = Vec::new();
    loop {
        // The startup process has no slot, and its number may be above all of them.
        let slots = readers(below, None);
        if slots.is_empty() {
            return;
        }
        if patience.is_some_and(|us| compat::now() - begun >= us) {
            cancel(&slots, &mut cancelled);
        }
        compat::startup_interrupts();
        compat::nap(LOOK_US * 2);
    }
}

/// In the startup process, at the end of replay: ends what uses snapshots of before. What VACUUM
/// lets go from now on, and numbers of rows that are used again, no replay has to wait for: a scan
/// by an index, or a cursor, would miss rows of its snapshot.
pub fn end_readers() {
    shmem::engine().shared.standby.forget();
    let begun = compat::now();
    let mut cancelled = Vec::new();
    loop {
        let slots = readers(Csn::MAX, None);
        if slots.is_empty() || faults::on(Fault::ReadersStay) {
            return;
        }
        if compat::now() - begun > PATIENCE_US {
            warning!("mixedcc: {} sessions do not end their snapshots of before the promotion", slots.len());
            return;
        }
        cancel(&slots, &mut cancelled);
        compat::startup_interrupts();
        compat::nap(LOOK_US * 2);
    }
}

/// `known`: those that were cancelled before in this wait.
fn cancel(of: &[SlotId], known: &mut Vec<SlotId>) {
    for slot in of {
        if !known.contains(slot) {
            known.push(*slot);
            shmem::engine().shared.standby.conflicts.fetch_add(1, Ordering::Relaxed);
        }
        slots::cancel_reader(*slot);
    }
}

/// A session is about to let a number of a row be used again that was deleted at `below`: waits for
/// snapshots below that, and then cancels them.
pub fn await_others(below: Csn) {
    let begun = compat::now();
    let e = shmem::engine();
    let mine = e.slots[shmem::my_slot() as usize].shows.load(Ordering::SeqCst);
    if mine != 0 && mine < below {
        refuse_old();
    }
    let mut cancelled = Vec::new();
    loop {
        let slots = readers(below, Some(shmem::my_slot()));
        if slots.is_empty() {
            return;
        }
        match compat::standby_patience() {
            // It may itself wait for what this session holds: no wait without an end.
            None if compat::now() - begun > PATIENCE_US / 10 => complain(
                PgSqlErrorCode::ERRCODE_OBJECT_IN_USE,
                "a snapshot of another session still needs rows of a mixedcc table which this one is about to replace",
                "Try again when that session has ended its transaction, or set max_standby_streaming_delay to a time.",
            ),
            Some(us) if compat::now() - begun >= us => cancel(&slots, &mut cancelled),
            _ => {}
        }
        pgrx::check_for_interrupts!();
        compat::nap(LOOK_US);
    }
}

/// What may be shown now; waits a while until it is known.
pub fn shown() -> Csn {
    let begun = compat::now();
    loop {
        match shmem::engine().shared.standby.shown() {
            Some(csn) => return csn,
            None if compat::now() - begun > PATIENCE_US || !compat::in_recovery() => refuse_unknown(),
            None => refuse_if_waited_for(begun, Csn::MAX),
        }
        pgrx::check_for_interrupts!();
        compat::nap(LOOK_US);
    }
}

/// What may be shown now, with the transactions that are open at it.
pub fn shown_with() -> Told {
    shown();
    shmem::engine().shared.standby.shown_with().unwrap_or_else(|| refuse_old())
}

/// Is it known what may be shown?
pub fn is_known() -> bool {
    shmem::engine().shared.standby.shown().is_some()
}

/// Waits a while until all up to `csn` may be shown, or until `done`.
pub fn await_shown(csn: Csn, done: impl Fn() -> bool) -> bool {
    let begun = compat::now();
    while shown() < csn && !done() {
        if compat::now() - begun > PATIENCE_US {
            return false;
        }
        refuse_if_waited_for(begun, csn);
        pgrx::check_for_interrupts!();
        compat::nap(LOOK_US);
    }
    true
}

/// This session waits until more may be shown, and replay may wait for the session's snapshot from
/// before that: then neither would go on.
fn refuse_if_waited_for(begun: u64, csn: Csn) {
    let mine = shmem::engine().slots[shmem::my_slot() as usize].shows.load(Ordering::SeqCst);
    if mine > TAKING && mine < csn && compat::now() - begun > PATIENCE_US / 10 {
        refuse_old();
    }
}

fn refuse_unknown() -> ! {
    complain_with_detail(
        PgSqlErrorCode::ERRCODE_CANNOT_CONNECT_NOW,
        "mixedcc tables cannot be read yet",
        "It is not known which commits this standby may show: its primary has not told it since this server, or the primary, has started.",
        "Try again. The primary tells it when it has started, and with each checkpoint.",
    )
}

/// A snapshot cannot be used any more.
#[cold]
pub fn refuse_old() -> ! {
    complain_with_detail(
        PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
        "could not serialize access due to replay",
        "A mixedcc table was loaded, or its rows were replaced, after this transaction's snapshot.",
        "The transaction might succeed if retried.",
    )
}

/// A transaction that was asked for as SERIALIZABLE on a standby uses a table: it was begun as
/// REPEATABLE READ, and is no more than that if this server is no standby by now (INV-AS-ASKED).
pub fn check_as_asked() {
    if isolation::is_asked() && !compat::in_recovery() && !faults::on(Fault::AskedForgotten) {
        complain_with_detail(
            PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
            "could not serialize access due to the promotion of this server",
            "The transaction was begun as SERIALIZABLE on a standby, whose transactions only read.",
            "The transaction might succeed if retried.",
        );
    }
}

/// The snapshot of a transaction on a standby, for tables of ours, with this one of PostgreSQL's.
///
/// # Safety
/// A valid MVCC snapshot of this backend, a copy.
pub unsafe fn take(s: pg_sys::Snapshot) -> Csn {
    let (e, slot) = (shmem::engine(), shmem::my_slot());
    // SAFETY: the contract of this function.
    let is_first = unsafe { compat::is_only_snapshot(s) };
    let begun = compat::now();
    loop {
        if let Some(csn) = e.take_stable(slot, is_first) {
            catch_up_used(csn);
            return csn;
        }
        if compat::now() - begun > PATIENCE_US || !compat::in_recovery() {
            refuse_unknown();
        }
        pgrx::check_for_interrupts!();
        compat::nap(LOOK_US);
    }
}

/// INV-READY, for the tables that the transaction has used. One that it has given its lock of up
/// again, by ROLLBACK TO, may be gone, or have another storage. It is made ready when it is used.
fn catch_up_used(csn: Csn) {
    for used in rel::used_live() {
        let is_of_now = used.era == shmem::engine().shared.standby.era();
        let table = shmem::find(used.key).filter(|there| is_of_now && std::ptr::eq(*there, used.table));
        let Some(table) = table else { continue };
        if table.durable().is_some_and(|d| d.live.upto.load(Ordering::SeqCst) < csn) {
            // SAFETY: an ERROR unwinds, closes the relation and gives the lock up.
            unsafe { compat::with_relation(used.oid, |r| catch_up(r, table, csn)) };
        }
    }
}

/// Was the table loaded by a standby, in another era than this? It is of no use any more.
pub fn is_gone(table: &Table) -> bool {
    let era = table.durable().map_or(0, |d| d.live.era.load(Ordering::SeqCst));
    era != 0 && era != shmem::engine().shared.standby.era()
}

/// # Safety
/// An open relation, and its table.
unsafe fn catch_up(r: pg_sys::Relation, table: &'static Table, csn: Csn) {
    // A worker's leader has seen to the snapshot: so that is gone. And what redo puts into the
    // journal while it is not known what may be shown may be of another life.
    if xact::parallel::is_worker() || !is_known() {
        refuse_old();
    }
    // SAFETY: the contract of this function.
    unsafe { rel::catch_up(r, table, csn) };
}

/// INV-READY, for a table that is about to be used. May sleep: the pin keeps the table, which
/// others may give up meanwhile (INV-TABLE).
///
/// # Safety
/// An open relation of ours, and its table, which was found under the transaction's pin.
pub unsafe fn make_ready(r: pg_sys::Relation, table: &'static Table) {
    let Some(live) = table.durable().map(|d| &d.live) else { return };
    let (e, slot) = (shmem::engine(), shmem::my_slot());
    let word = &e.slots[slot as usize].shows;
    if live.era.load(Ordering::SeqCst) == 0 || !compat::in_recovery() {
        // Its snapshot is of the time before the end of the recovery. Or the table is: it was
        // loaded meanwhile, and no process follows to what was replayed in the end.
        if word.load(Ordering::SeqCst) != 0 || is_gone(table) {
            refuse_old();
        }
        return;
    }
    if word.load(Ordering::SeqCst) != 0 && xact::is_statement_wise() && compat::has_no_portal() {
        word.store(0, Ordering::SeqCst); // Its snapshots are gone.
    }
    let fixed = if xact::parallel::is_worker() { word.load(Ordering::SeqCst) } else { xact::fixed_snapshot() };
    let csn = if fixed != 0 { fixed } else { shown() };
    stop::reach("standby-shown");
    if live.upto.load(Ordering::SeqCst) < csn {
        // SAFETY: `r` is open, and `table` its table (contract of this function).
        unsafe { catch_up(r, table, csn) };
    }
    if is_gone(table) {
        refuse_old();
    }
    let oldest = word.load(Ordering::SeqCst);
    if oldest != 0 && oldest < live.low.load(Ordering::SeqCst) && !faults::on(Fault::LowForgotten) {
        refuse_old();
    }
}

/// Does this process read on a standby? A transaction that has done so, and goes on after the end
/// of the recovery, has no other snapshots.
#[inline]
pub fn is_reader() -> bool {
    compat::in_recovery()
}

/// A snapshot is about to be taken.
#[inline]
pub fn check_reader() {
    let (e, slot) = (shmem::engine(), shmem::my_slot());
    if e.slots[slot as usize].shows.load(Ordering::Relaxed) != 0 && !compat::in_recovery() {
        refuse_old();
    }
}

/// The transaction reads by a snapshot of another one, which has it still.
pub fn adopt(csn: Csn) {
    shmem::engine().slots[shmem::my_slot() as usize].shows.store(csn, Ordering::SeqCst);
}

/// A statement begins that uses no table of ours, and the snapshots of those before are gone.
pub fn forget_older() {
    shmem::engine().slots[shmem::my_slot() as usize].shows.store(0, Ordering::SeqCst);
}

/// The transaction has ended: it has no snapshot any more.
pub fn end_transaction() {
    if shmem::is_up() {
        let word = &shmem::engine().slots[shmem::my_slot() as usize].shows;
        if word.load(Ordering::Relaxed) != 0 {
            word.store(0, Ordering::SeqCst);
        }
    }
}
