//! Transactions that were prepared before the start of the server, and are not finished: a load of
//! a table that they have written brings their rows with it.
//!
//! **INV-AWAKE**: What a prepared transaction has done in a table is told by the rows of the
//! table's files alone, if it runs below SERIALIZABLE, and has locked no other rows. Then PREPARE
//! says so by its lock for the table (INV-ASLEEP), and whether a row is locked in a stronger mode
//! than for its write. A load does not wait. The load finds the pending entries, and gives them to
//! the engine before it registers the table (INV-RECOVERED), under the lock of those that end
//! transactions. In that moment each of the transactions is either open, or has ended at a CSN with
//! other tables in memory: its rows get that. Or it was decided without any: then the load begins
//! anew, and finds it in the commit log.
//!
//! The locks of ranges are not in the files. So a SERIALIZABLE transaction waits for the prepared
//! ones when it begins to use such a table under a protocol that locks what it reads.

use super::prepared::{await_end, finish_locked, written_tag};
use super::{mode, Mode};
use crate::pg::compat;
use crate::pg::faults::{self, Fault};
use crate::pg::wal;
use crate::state::platform::PG;
use crate::state::rel::RelInfo;
use crate::state::{shmem, slots};
use mixedcc_engine::csn::Csn;
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

/// One of them, with the table.
struct Entered {
    t: Txn,
    before: Before,
}

/// The table has its rows: adds those of the transactions, and registers it. If it does not come
/// in, the caller frees each version that is no record's newest one, and the table.
pub fn enter(oid: pg_sys::Oid, table: &'static Table, all: &[Held], register: impl Fn() -> bool) -> Came {
    let mut came = Came::Again;
    // Before the lock: it may raise. One that ends meanwhile needs no lock.
    let stronger = holders(oid, true);
    shmem::finishing(|| {
        let e = shmem::engine();
        finish_locked(e);
        // Before a look whether they are open: a process that finds one of them decided later waits
        // for this section, and finds what it leaves (`Files::outcome`).
        slots::set_finishing(true);
        let is_lost = |h: &Held| !is_open(h.xid) && slots::end_of(h.xid).is_none();
        if !all.iter().any(is_lost) {
            came = enter_locked(e, table, (all, &stronger), register);
        }
        slots::set_finishing(false);
    });
    came
}

fn is_open(xid: u64) -> bool {
    wal::is_running(xid as u32)
}

/// The transactions of before the start that keep a table so (INV-AWAKE).
fn holders(oid: pg_sys::Oid, stronger: bool) -> Vec<u32> {
    // SAFETY: an ERROR unwinds.
    unsafe { compat::recovered_holders(&written_tag(oid, stronger), pg_sys::ExclusiveLock as i32) }
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
    for Entered { t, before } in entered {
        if came == Came::In {
            t.park(before);
        } else {
            take_back(t, before);
        }
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
            let slot = match end {
                None => slots::take_for(xid).ok_or(Error::WouldBlock)?,
                Some(_) => slots::ender(xid),
            };
            Txn::begin_recovered(e, slot, compat::ident_of_recovered(xid), (h.xid, h.csn))
        }
    };
    let (before, done) = t.recover(table, &RecoveredWrites { all: &h.writes, xid, stronger });
    match (done, end) {
        (Ok(()), None) => Ok(Some(Entered { t, before })),
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

/// The process begins to use a table in which such transactions had written when it was loaded
/// (INV-AWAKE).
#[cold]
pub fn await_recovered(info: &RelInfo) {
    if !shmem::engine().has_prepared() {
        info.table.recovered.store(0, Ordering::SeqCst);
        return;
    }
    let locks = |table: &Table| table.map().partitions().iter().any(|p| p.protocols().locks_reads());
    while mode() == Mode::Serializable && locks(info.table) && !faults::on(Fault::RangesForgotten) {
        let open = holders(info.oid, false).into_iter().chain(holders(info.oid, true));
        let Some(xid) = open.last() else { return };
        await_end(xid);
    }
}
