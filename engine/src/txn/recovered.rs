//! A transaction that was prepared before the start of the engine, and is not finished: it gets a
//! slot again, with its writes in the tables that are loaded.
//!
//! **INV-RECOVERED**: What such a transaction has written in a table is linked, with its locks,
//! before any process can reach the table. The process that loads the table has the right to end
//! the transaction meanwhile (INV-HANDOVER). So a process that meets the rows finds what it would
//! find of a transaction that was prepared since the start, but for locks of ranges. A protocol
//! that relies on these has no readers in the table (the platform sees to that). The protocols of
//! the table do not change before the transaction ends, because it follows them. None of them locks
//! partitions at first ([`PartitionMap::lock_rows`]): the transaction has rows locked, and it would
//! exclude others that have rows of the same partition.
//!
//! If it is finished before another of its tables is loaded, its rows there get the CSN of its end.
//! So no snapshot shows half of it.

use super::locking::How;
use super::write_set::UNKNOWN_ENTRY;
use super::{Kept, Level, RecordRef, Stage, Txn, Write, WriteKind};
use crate::csn::{Csn, SlotId, State};
use crate::durable::standby::RECOVERED;
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::lock::Mode;
use crate::open::TAKING;
use crate::partition::Partition;
use crate::platform::{Platform, Queue, WaitFor};
use crate::primitive::Ordering;
use crate::protocol::Touch;
use crate::record::Version;
use crate::retire::RetireQueue;
use crate::shared::{Engine, Slot};
use crate::table::Table;
use std::ptr::NonNull;

/// What such a transaction has written in a table.
pub struct RecoveredWrites<'a> {
    /// The rows.
    pub all: &'a [Recovered],
    /// Its id, by which unique checks wait for it.
    pub xid: u32,
    /// Are the rows locked as if their keys had changed?
    pub stronger: bool,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Recovered {
    /// The number of the record. Its newest version is the one before the transaction's. Of an
    /// insert: it is the transaction's.
    pub no: u64,
    /// The transaction's version.
    pub version: NonNull<Version>,
}

/// A platform that never waits: no other process can reach the table.
struct AtOnce;

impl Platform for AtOnce {
    fn wait_for(&self, _: WaitFor) -> Result<(), Error> {
        Err(Error::WouldBlock)
    }
    fn enter_queue(&self, _: Queue) -> Result<(), Error> {
        Err(Error::WouldBlock)
    }
    fn leave_queue(&self, _: Queue) {}
    fn pause(&self, _: u32) -> Result<(), Error> {
        Err(Error::WouldBlock)
    }
    fn lock_tag(&self) -> u32 {
        0
    }
    fn quiescent(&self, _: SlotId) -> bool {
        false
    }
}

/// The slot says that it is about to tell under which CSN its transaction is logged. Others wait
/// for that. So if this is dropped, as by an error of the platform, the slot has no transaction.
struct Taking<'a>(&'a Slot);

impl<'a> Taking<'a> {
    fn begin(slot: &'a Slot, xid: u64) -> Self {
        slot.xid.store(xid, Ordering::SeqCst);
        slot.logged_as.store(RECOVERED, Ordering::SeqCst);
        slot.logged_at.store(TAKING, Ordering::SeqCst);
        Taking(slot)
    }
    fn end(self, logged: Csn) {
        self.0.logged_at.store(logged, Ordering::SeqCst);
        std::mem::forget(self);
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.logged_at.store(0, Ordering::SeqCst);
        self.0.xid.store(0, Ordering::SeqCst);
    }
}

/// How to go back to what there was before a table came.
pub struct Before {
    /// The block of the tables before it. `None`: the transaction had no slot.
    block: Option<NonNull<Kept>>,
    writes: usize,
}

impl Txn {
    /// The slot, which is idle, gets a transaction that was prepared before the start. `ident` is
    /// the platform's name of it, `xid` its full id. It was logged at `logged`, which is at or
    /// below the clock. [`Txn::recover`] follows. `None`: `runs` says that the transaction has
    /// ended meanwhile, and the slot is idle still (INV-BEFORE-LIFE).
    pub fn begin_recovered(
        e: Engine,
        slot: SlotId,
        ident: u64,
        (xid, logged): (u64, Csn),
        runs: impl FnOnce() -> bool,
    ) -> Option<Txn> {
        let taking = Taking::begin(&e.slots[slot as usize], xid);
        if !runs() && !faults::on(Fault::EndedListed) {
            return None;
        }
        let mut t = Txn::begun(e, slot, ident);
        taking.end(logged);
        t.stage = Stage::Prepared;
        Some(t)
    }

    /// The same for a transaction that has ended: it is not told to standbys.
    pub fn begin_ended(e: Engine, slot: SlotId, ident: u64, xid: u64) -> Txn {
        let mut t = Txn::begun(e, slot, ident);
        t.shared_slot().xid.store(xid, Ordering::SeqCst);
        t.stage = Stage::Prepared;
        t
    }

    fn begun(e: Engine, slot: SlotId, ident: u64) -> Txn {
        let mut t = Txn::new(e, slot);
        t.begin(Level::Snapshot, ident);
        t.e.unpin(slot);
        t
    }

    /// Adds what the transaction has written in a table that no other process can reach: locks and
    /// links the rows. Then [`Txn::park`], [`Txn::commit_recovered`] or [`Txn::take_back`] follows,
    /// also after an error.
    pub fn recover(&mut self, table: &'static Table, of: &RecoveredWrites) -> (Before, Result<(), Error>) {
        debug_assert_eq!(self.stage, Stage::Prepared);
        let before = Before { block: self.kept.take(), writes: self.writes.len() };
        let done = self.try_recover(&AtOnce, table, of);
        (before, done)
    }

    fn try_recover(&mut self, p: &dyn Platform, table: &'static Table, of: &RecoveredWrites) -> Result<(), Error> {
        RetireQueue::reserve(&self.e, self.slot, self.writes.owed() + of.all.len() as u64)?;
        let partitions = table.map().partitions();
        let mut is_written = vec![false; partitions.len()];
        for no in 0..table.map().n {
            self.follow(p, Touch { table, no }.partition())?;
        }
        for w in of.all {
            let r = RecordRef::find(table, w.no).ok_or(Error::OutOfMemory)?;
            self.recover_write(p, r, w.version, of)?;
            is_written[r.touch().no as usize] = true;
        }
        let written: Vec<&'static Partition> =
            partitions.iter().zip(is_written).filter(|(_, is)| *is).map(|(p, _)| p).collect();
        let e = self.e;
        self.guards.recover(&e, &written);
        self.make_block()
    }

    fn recover_write(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        v: NonNull<Version>,
        of: &RecoveredWrites,
    ) -> Result<(), Error> {
        debug_assert!(!self.followed(r.partition()).locks_partitions());
        // SAFETY: INV-VERSION: a version of the caller's, which no other process can reach.
        let version = unsafe { v.as_ref() };
        let base = NonNull::new(r.rec.head()).filter(|head| *head != v);
        let kind = match base {
            None => WriteKind::Insert,
            Some(_) if version.is_tombstone() => WriteKind::Delete,
            Some(_) => WriteKind::Update,
        };
        if base.is_some() {
            let strong = kind == WriteKind::Delete || of.stronger;
            let mode = if strong { Mode::Update } else { Mode::NoKeyUpdate };
            self.lock_record(p, r, mode, How::Try, false)?;
        }
        let xid = if kind == WriteKind::Update { 0 } else { of.xid };
        if xid != 0 {
            r.rec.writer.store(xid, Ordering::SeqCst);
        }
        let mut w = Write::new(r, kind, v, base, (0, 1), xid);
        let may_have_entries = kind == WriteKind::Insert && r.table.uniques().next().is_some();
        w.entry = if may_have_entries { UNKNOWN_ENTRY } else { 0 };
        version.set_stamp(self.tag());
        version.set_older(base.map_or(std::ptr::null_mut(), |b| b.as_ptr()));
        r.rec.set_head(v.as_ptr());
        self.writes.add_linked(w);
        Ok(())
    }

    /// The table can be reached from now on, and the transaction is of no process (INV-HANDOVER).
    pub fn park(mut self, before: Before) {
        let (e, slot) = (self.e, self.slot as usize);
        self.free_old(before);
        let block = self.kept.take().map_or(std::ptr::null_mut(), NonNull::as_ptr);
        e.region.flush_slot(slot);
        e.slots[slot].kept.store(block, Ordering::SeqCst);
    }

    /// The transaction, which has this table only, has committed at `csn` before the table was
    /// loaded. The table can be reached after this.
    pub fn commit_recovered(mut self, p: &dyn Platform, csn: Csn) {
        self.e.pin(self.slot);
        self.csn = csn;
        self.set_word(State::Committing, csn);
        self.stage = Stage::Decided;
        self.publish(p);
        self.e.slots[self.slot as usize].xid.store(0, Ordering::SeqCst);
        self.e.region.flush_slot(self.slot as usize);
    }

    /// The table will not be reached. The transaction is as before; without a table before it, the
    /// slot is idle, which is the answer. The caller frees the versions of records with a base,
    /// and the table.
    pub fn take_back(mut self, before: Before) -> bool {
        for w in self.writes.some(before.writes..self.writes.len()) {
            if let Some(base) = w.base {
                w.r.rec.set_head(base.as_ptr());
            }
        }
        self.writes.forget_linked(before.writes);
        let (e, slot) = (self.e, self.slot as usize);
        if let Some(block) = before.block {
            self.free_block();
            e.region.flush_slot(slot);
            e.slots[slot].kept.store(block.as_ptr(), Ordering::SeqCst);
            return false;
        }
        self.abort();
        e.slots[slot].xid.store(0, Ordering::SeqCst);
        e.region.flush_slot(slot);
        true
    }

    fn free_old(&self, before: Before) {
        if let Some(block) = before.block {
            // SAFETY: INV-HANDOVER: the block was replaced, and is ours alone.
            unsafe { self.e.region.free(self.slot as usize, block.cast()) };
        }
    }
}
