//! Transactions that were prepared before the start of the server, and are not finished: a load of
//! a table that they have written brings their rows with it.
//!
//! **INV-AWAKE**: What a prepared transaction has done in a table is told by the rows of the
//! table's files alone, if it runs below SERIALIZABLE, and has locked no other rows. (The keys of
//! others are kept apart: INV-DOZING.) Then PREPARE says so by its lock for the table (INV-ASLEEP),
//! and whether a row is locked in a stronger mode than for its write. A load does not wait. The
//! load finds the pending entries, and gives them to the engine before it registers the table
//! (INV-RECOVERED), under the lock of those that end transactions. In that moment each of the
//! transactions is either open, or has ended at a CSN with other tables in memory: its rows get
//! that. Or it was decided without any: then the load begins anew, and finds it in the commit log.
//!
//! The locks of ranges are not in the files. So a SERIALIZABLE transaction waits for the prepared
//! ones when it begins to use such a table under a protocol that locks what it reads.
//!
//! **INV-DOZING**: A prepared transaction may have locked other rows of a table than it has
//! written, or partitions, or have read at SERIALIZABLE. Rows of the files do not tell that. Then
//! its lock says what others may do after the start of the server. It may have locked keys of rows
//! only (`FOR KEY SHARE`, as foreign keys do). Then a transaction that deletes a row, changes a key
//! or locks a row as if it did waits for its end. Else the table *dozes*: a statement that writes
//! waits before it looks at the table, and one that locks rows before it locks the first one. Which
//! rows are locked is not known, so it may be any: NOWAIT fails, and SKIP LOCKED skips all of them.
//! Readers wait for neither. The process that loads the table notes both before it registers it. A
//! process that finds no such transaction any more ends the decided ones before it goes on. So the
//! CSN of a reader that was prepared is below those of all writers of what it has read.

use super::prepared::{await_end, finish_decided, finish_locked, tag_of};
use super::{mode, Mode};
use crate::pg::compat;
use crate::pg::faults::{self, Fault};
use crate::pg::wal;
use crate::state::platform::{PG, TAG_KEYS, TAG_ONLY_READ, TAG_WRITTEN, TAG_WRITTEN_STRONGER};
use crate::state::rel::RelInfo;
use crate::state::{shmem, slots, stop};
use mixedcc_engine::csn::{Csn, SlotId};
use mixedcc_engine::lock::Mode as LockMode;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::txn::{Before, Recovered, RecoveredWrites};
use mixedcc_engine::{Engine, Error, Table, Txn};
use pgrx::pg_sys;

/// What one of them has written in a table that is being loaded.
pub struct Held {
    /// Its full id.
    pub xid: u64,
    /// The CSN of its entries.
    pub csn: Csn,
    /// The rows.
    pub writes: Vec<Recovered>,
}

/// What came of a load.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// The table is registered.
    In,
    /// The load is to begin anew.
    Again,
    /// There is no memory.
    NoMemory,
}

/// One of them, with the table. Dropped before the table is registered, as by an ERROR, it is as it
/// was before.
struct Entered(Option<(Txn, Before)>);

impl Entered {
    fn park(mut self) {
        if let Some((t, before)) = self.0.take() {
            t.park(before);
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some((t, before)) = self.0.take() {
            take_back(t, before);
        }
    }
}

/// The table has its rows: adds those of the transactions, and registers it. If it does not come
/// in, the caller frees each version that is no record's newest one, and the table.
/// `register` raises nothing once other processes can find the table: what was entered would be
/// taken back out of rows in use.
pub fn enter(oid: pg_sys::Oid, table: &'static Table, all: &[Held], register: impl Fn() -> bool) -> Came {
    let mut came = Came::Again;
    // Before the lock: it may raise. One that ends meanwhile needs no lock.
    let stronger = holders(oid, &[TAG_WRITTEN_STRONGER, TAG_ONLY_READ]);
    shmem::finishing(|| {
        let e = shmem::engine();
        finish_locked(e);
        // Before a look whether they are open: a process that finds one of them decided later waits
        // for this section, and finds what it leaves (`Files::outcome`).
        let _finishing = slots::Finishing::begin();
        let is_lost = |h: &Held| !is_open(h.xid) && slots::end_of(h.xid).is_none();
        if !all.iter().any(is_lost) {
            came = enter_locked(e, table, (all, &stronger), register);
        }
    });
    came
}

fn is_open(xid: u64) -> bool {
    wal::is_running(xid as u32)
}

/// The transactions of before the start that keep a table in one of these ways.
fn holders(oid: pg_sys::Oid, kinds: &[u16]) -> Vec<u32> {
    // SAFETY: an ERROR unwinds.
    let of = |kind: &u16| unsafe { compat::recovered_holders(&tag_of(oid, *kind), pg_sys::ExclusiveLock as i32) };
    kinds.iter().flat_map(of).collect()
}

fn enter_locked(e: Engine, table: &'static Table, of: (&[Held], &[u32]), register: impl Fn() -> bool) -> Came {
    let (all, stronger) = of;
    let mut entered = Vec::with_capacity(all.len());
    let mut came = Came::In;
    for h in all {
        match enter_one(e, table, h, stronger.contains(&(h.xid as u32))) {
            Ok(one) => entered.extend(one),
            Err(Error::OutOfMemory) => came = Came::NoMemory,
            Err(_) => came = Came::Again,
        }
        if came != Came::In {
            break;
        }
    }
    if came == Came::In && !register() {
        came = Came::NoMemory;
    }
    if came == Came::In {
        entered.into_iter().for_each(Entered::park);
    }
    came
}

fn take_back(t: Txn, before: Before) {
    let slot = t.slot;
    if t.take_back(before) {
        slots::make_spare(slot);
    }
}

/// `None`: it had ended.
fn enter_one(e: Engine, table: &'static Table, h: &Held, stronger: bool) -> Result<Option<Entered>, Error> {
    let xid = h.xid as u32;
    let end = slots::end_of(h.xid);
    let mut slot = e.kept_slots().find(|slot| end.is_none() && slots::prepared_xid(*slot) == xid);
    let mut t = match slot.take().and_then(|slot| Txn::take_over(e, slot)) {
        Some(t) => t,
        None => {
            let ident = compat::ident_of_recovered(xid);
            match end {
                None => begin(e, ident, h)?,
                Some(_) => Txn::begin_ended(e, slots::ender(xid), ident, h.xid),
            }
        }
    };
    let (before, done) = t.recover(table, &RecoveredWrites { all: &h.writes, xid, stronger });
    match (done, end) {
        (Ok(()), None) => Ok(Some(Entered(Some((t, before))))),
        (Ok(()), Some(csn)) => {
            t.commit_recovered(&PG, csn);
            if let Some(durable) = table.durable() {
                // The next round puts rows in place of the pending entries.
                h.writes.iter().for_each(|w| durable.set_dirty(w.no));
            }
            Ok(None)
        }
        (Err(x), None) => {
            take_back(t, before);
            Err(x)
        }
        (Err(x), Some(_)) => {
            t.take_back(before);
            Err(x)
        }
    }
}

/// A transaction that is open gets a slot. If it has ended meanwhile, the load begins anew.
fn begin(e: Engine, ident: u64, h: &Held) -> Result<Txn, Error> {
    let spare = Spare(slots::take_for(h.xid as u32).ok_or(Error::WouldBlock)?);
    stop::reach("recovered-begins");
    let begun = Txn::begin_recovered(e, spare.0, ident, (h.xid, h.csn), || is_open(h.xid));
    let t = begun.ok_or(Error::WouldBlock)?;
    std::mem::forget(spare);
    Ok(t)
}

/// A spare slot that was taken. Dropped, it is spare again.
struct Spare(SlotId);

impl Drop for Spare {
    fn drop(&mut self) {
        slots::make_spare(self.0);
    }
}

/// What `Table::recovered` says: such transactions have rows in the table,
const ROWS: u32 = 1;
/// others may only read it,
const ONLY_READ: u32 = 2;
/// or they keep keys of it.
const KEYS: u32 = 4;

/// A table is about to be registered: notes what such transactions keep of it (INV-DOZING). `rows`:
/// they have written some.
pub fn note(oid: pg_sys::Oid, table: &Table, rows: bool) {
    let keep = |kind, bit| if holders(oid, &[kind]).is_empty() { 0 } else { bit };
    let kept = keep(TAG_ONLY_READ, ONLY_READ) | keep(TAG_KEYS, KEYS);
    // One that has let go of it meanwhile ends before any process writes here.
    finish_decided();
    table.recovered.store(kept | if rows { ROWS } else { 0 }, Ordering::SeqCst);
}

/// Does the quick way to a row need no wait? It changes no key, and locks none.
#[inline]
pub fn lets_all_rows_go(table: &Table) -> bool {
    table.recovered.load(Ordering::SeqCst) & !KEYS == 0
}

/// The process begins to use a table of which such transactions kept something when it was loaded
/// (INV-AWAKE, INV-DOZING).
#[cold]
pub fn await_recovered(info: &RelInfo) {
    let kept = info.table.recovered.load(Ordering::SeqCst);
    let (oid, table, is_first) = (info.oid, info.table, !info.is_used());
    if kept & ONLY_READ != 0 {
        let waits = may_write(oid) && !faults::on(Fault::DozingForgotten);
        if waits || is_first {
            await_holders(oid, table, (&[TAG_ONLY_READ], ONLY_READ), waits);
        }
    }
    if kept & KEYS != 0 && is_first {
        await_holders(oid, table, (&[TAG_KEYS], KEYS), false);
    }
    if kept & ROWS != 0 {
        let locks = |table: &Table| table.map().partitions().iter().any(|p| p.protocols().locks_reads());
        let waits = mode() == Mode::Serializable && locks(table) && !faults::on(Fault::RangesForgotten);
        if waits || is_first {
            await_holders(oid, table, (&[TAG_WRITTEN, TAG_WRITTEN_STRONGER, TAG_ONLY_READ], ROWS), waits);
        }
    }
}

/// May the running statement write rows of the table? It has PostgreSQL's lock for that.
fn may_write(oid: pg_sys::Oid) -> bool {
    compat::holds_relation(oid, pg_sys::RowExclusiveLock as i32)
}

/// A row of the table is about to be locked. False: the caller does not wait, and has to.
#[inline]
pub fn await_rows(oid: pg_sys::Oid, table: &Table, mode: LockMode, waits: bool) -> bool {
    let kept = table.recovered.load(Ordering::SeqCst);
    let dozes = kept & ONLY_READ != 0 && !faults::on(Fault::DozingForgotten);
    (!dozes || await_holders(oid, table, (&[TAG_ONLY_READ], ONLY_READ), waits))
        && (mode != LockMode::Update || await_keys(oid, table, waits))
}

/// A row of the table is about to be deleted, to get another key, or to be locked as if it did.
/// False: the caller does not wait, and has to.
#[inline]
pub fn await_keys(oid: pg_sys::Oid, table: &Table, waits: bool) -> bool {
    let are_kept = table.recovered.load(Ordering::SeqCst) & KEYS != 0;
    !are_kept || faults::on(Fault::KeysForgotten) || await_holders(oid, table, (&[TAG_KEYS], KEYS), waits)
}

/// Forgets that such transactions keep the table in these ways, if none does: none will any more.
/// `waits`: until none does. Is it so?
#[cold]
fn await_holders(oid: pg_sys::Oid, table: &Table, (kinds, bit): (&[u16], u32), waits: bool) -> bool {
    while let Some(xid) = holders(oid, kinds).last() {
        if !waits {
            return false;
        }
        await_end(*xid);
    }
    finish_decided();
    table.recovered.fetch_and(!bit, Ordering::SeqCst);
    true
}
