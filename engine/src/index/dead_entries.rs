//! Removal of the index entries of dead records.
//!
//! **INV-DEAD**: An entry of the primary index whose record died is removed before the record's
//! number can be given to another insert. Until then the record's `next_free` is not 0, and a
//! process that frees dead records leaves it alone ([`Table::is_indexed`]). For a live record
//! nothing is kept but the entry.
//!
//! When a record dies, the key of its entry is known from
//!
//! * its tombstone, if the row was deleted ([`crate::record::VER_KEYED`]): the record is *enqueued*
//!   in a list in the order of the deletes. A *sweep* removes its entry when every floor is larger;
//! * the private memory of the transaction, if its insert is undone: the entry goes at once,
//!   because no other transaction ever saw the row;
//! * nowhere, in other cases: no room to retire memory, keys that the platform compares, an index
//!   that is being replaced. Such a record is *marked*. A *purging* process searches the whole
//!   index for entries of marked records.
//!
//! A record is enqueued or marked at most once in each of its lives, by the transaction that ends
//! the row and before that transaction ends.

use super::{Direction, Index, Reuse};
use crate::csn::{Csn, SlotId};
use crate::faults::{self, Fault};
use crate::memory::{Latch, OutOfMemory};
use crate::platform::Platform;
use crate::primitive::{AtomicU32, AtomicU64, Ordering};
use crate::record::{Record, Version, REC_DEAD};
use crate::retire::RetireQueue;
use crate::shared::Engine;
use crate::table::Table;
use std::ops::Bound;
use std::ptr::NonNull;

/// The `next_free` of the last record in the list, and of one that a sweep has taken from it.
const LAST: u32 = u32::MAX;
/// The `next_free` of a marked record, whose entry is somewhere in the index.
const MARKED: u32 = u32::MAX - 1;
const _: () = assert!(crate::table::MAX_RECORDS < MARKED as u64);

/// One in this many sweeps looks at all pins.
const SWEEPS_A_LOOK: u32 = 16;
/// With [`Reuse::AtOnce`], a sweep purges if more records are marked than this number and a
/// sixteenth of the entries.
const MARKS_PURGE: u64 = 64;

/// The dead records of a table whose entries wait to be removed. All zero: none.
#[repr(C)]
pub(crate) struct DeadEntries {
    /// The latch of the list.
    latch: Latch,
    /// The first and last record of the list (number + 1). The oldest delete comes first.
    first: AtomicU32,
    last: AtomicU32,
    sweeps: AtomicU32,
    /// The length of the list.
    len: AtomicU64,
    /// The number of marked records.
    marked: AtomicU64,
    /// 1 while a process purges the entries of marked records.
    purging: AtomicU32,
    _pad: u32,
}

/// A record taken out of the list. It is put back if the removal of its entry unwinds.
struct DeadEntry {
    table: &'static Table,
    no: u64,
    rec: &'static Record,
    done: bool,
}

impl Drop for DeadEntry {
    fn drop(&mut self) {
        if !self.done {
            self.table.enqueue_dead_last(self.no, self.rec);
        }
    }
}

/// The right to purge, which one process has at a time.
struct Purging<'a>(&'a DeadEntries);

impl<'a> Purging<'a> {
    fn begin(g: &'a DeadEntries) -> Option<Purging<'a>> {
        let free = g.purging.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        free.then(|| Purging(g)) // Made only if it was free, because its drop frees it.
    }
}

impl Drop for Purging<'_> {
    fn drop(&mut self) {
        self.0.purging.store(0, Ordering::SeqCst);
    }
}

impl DeadEntries {
    /// The number of dead records whose entries wait.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed) + self.marked.load(Ordering::Relaxed)
    }

    /// Forgets all of them. No other process uses the table.
    pub fn clear(&self) {
        self.first.store(0, Ordering::Relaxed);
        self.len.store(0, Ordering::Relaxed);
        self.marked.store(0, Ordering::Relaxed);
    }
}

impl Table {
    /// The number of dead records whose entries wait to be removed from the primary index.
    pub fn dead_entries(&self) -> u64 {
        self.dead_entries.len()
    }

    /// Must VACUUM leave this dead record alone? That is so if the primary index may have an entry
    /// of it, or if sweeps free the number.
    pub fn is_indexed(&self, no: u64) -> bool {
        let waits = |r: &Record| r.next_free.load(Ordering::SeqCst) != 0;
        self.primary().is_some_and(|i| i.reuse() == Reuse::AtOnce) || self.record(no).is_some_and(waits)
    }

    /// Puts a dead record into the list, once in each of its lives. A record whose row was deleted
    /// goes to the end. A record whose insert was undone, and its entry removed, goes to the front.
    /// Neither allocates nor fails.
    pub(crate) fn enqueue_dead(&self, no: u64, r: &Record) {
        // SAFETY: INV-DEAD: a dead record's head is null or a tombstone, which stays until the
        // record is freed after it was enqueued.
        let deleted = unsafe { r.head().as_ref() };
        match self.primary() {
            Some(i) if i.reuse() == Reuse::AtOnce => {}
            _ if deleted.is_some_and(Version::is_keyed) => {}
            _ => return,
        }
        if deleted.is_some() {
            return self.enqueue_dead_last(no, r);
        }
        let g = &self.dead_entries;
        g.len.fetch_add(1, Ordering::Relaxed);
        g.latch.with(|| {
            let first = g.first.swap(no as u32 + 1, Ordering::Relaxed);
            if first == 0 {
                g.last.store(no as u32 + 1, Ordering::Relaxed);
            }
            r.next_free.store(if first == 0 { LAST } else { first }, Ordering::SeqCst);
        });
    }

    fn enqueue_dead_last(&self, no: u64, r: &Record) {
        let g = &self.dead_entries;
        g.len.fetch_add(1, Ordering::Relaxed);
        g.latch.with(|| {
            r.next_free.store(LAST, Ordering::SeqCst);
            let last = g.last.swap(no as u32 + 1, Ordering::Relaxed);
            if g.first.load(Ordering::Relaxed) == 0 {
                g.first.store(no as u32 + 1, Ordering::Relaxed);
            } else if let Some(last) = self.record(last as u64 - 1) {
                last.next_free.store(no as u32 + 1, Ordering::SeqCst);
            }
        });
    }

    /// Takes the first record from the list if every snapshot sees its delete. Its `next_free`
    /// stays not 0.
    fn dequeue_dead(&'static self, floor: Csn) -> Option<DeadEntry> {
        let g = &self.dead_entries;
        let (no, rec) = g.latch.with(|| {
            let no = (g.first.load(Ordering::Relaxed) as u64).checked_sub(1)?;
            let r = self.record(no)?;
            // SAFETY: INV-DEAD: as in `enqueue_dead`; a record in the list is not freed.
            let csn = unsafe { r.head().as_ref() }.map_or(Some(0), Version::csn)?;
            if csn >= floor {
                return None;
            }
            let next = r.next_free.swap(LAST, Ordering::SeqCst);
            g.first.store(if next == LAST { 0 } else { next }, Ordering::Relaxed);
            Some((no, r))
        })?;
        g.len.fetch_sub(1, Ordering::Relaxed);
        Some(DeadEntry { table: self, no, rec, done: false })
    }

    /// Marks the record of an undone insert whose entry could not be removed.
    pub(crate) fn mark(&self, r: &Record) {
        if !faults::on(Fault::EntryForgotten) {
            r.next_free.store(MARKED, Ordering::SeqCst);
            self.dead_entries.marked.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes at most `budget` entries of dead records, and with [`Reuse::AtOnce`] frees their
    /// numbers. Comparisons may unwind; then nothing is lost. The caller is pinned. `owed` of the
    /// room in its queue of retired memory is reserved for other purposes. The sweep stops if there
    /// is less than [`Table::SWEEP_ROOM`] beyond that.
    pub(crate) fn sweep(&'static self, e: &Engine, slot: SlotId, p: &dyn Platform, owed: u64, budget: usize) -> usize {
        if self.is_changing() {
            return 0; // An index that comes back has entries that this one may not have.
        }
        let mut floor = e.known_min_floor();
        if self.dead_entries.sweeps.fetch_add(1, Ordering::Relaxed).is_multiple_of(SWEEPS_A_LOOK) {
            floor = e.refresh_min_floor(p);
        }
        let at_once = self.primary().is_some_and(|i| i.reuse() == Reuse::AtOnce);
        if at_once {
            self.purge_if_many(e, slot, p, owed);
        }
        let mut removed = 0;
        for _ in 0..budget {
            if RetireQueue::room(e, slot) < owed + Self::SWEEP_ROOM {
                break;
            }
            let Some(mut entry) = self.dequeue_dead(floor) else { break };
            if !(entry.rec.lock.is_free() && self.is_dead(entry.rec, floor)) {
                // A transaction that found it by its entry has it locked: to the end of the list.
                continue;
            }
            self.remove_entry(e, slot, p, entry.no, entry.rec);
            entry.done = true;
            removed += 1;
            if at_once {
                self.free_record(e, slot, entry.no, entry.rec);
            } else {
                entry.rec.next_free.store(0, Ordering::SeqCst);
            }
        }
        removed
    }

    /// The room in the queue of retired memory that a sweep needs.
    pub(crate) const SWEEP_ROOM: u64 = Index::ROOM + 2;

    /// Removes the entry of a deleted row, if there is one: an index made after the delete has
    /// none.
    fn remove_entry(&'static self, e: &Engine, slot: SlotId, p: &dyn Platform, no: u64, r: &Record) {
        let Some(v) = NonNull::new(r.head()) else { return };
        // SAFETY: INV-VERSION: the head is a tombstone, whose key is part of its payload. It stays
        // until this process gives it up (INV-DEAD).
        let Some(key) = (unsafe { Version::key(v.as_ptr()) }) else { return };
        if let Some(primary) = self.primary().filter(|_| !faults::on(Fault::EntryForgotten)) {
            primary.remove(e, slot, p, key, no);
        }
    }

    /// Frees the number of a dead record that no index points to, and retires its tombstone.
    fn free_record(&self, e: &Engine, slot: SlotId, no: u64, r: &Record) {
        let tombstone = NonNull::new(r.head());
        let stats = self.partition(r).stats.stripe(slot);
        self.give_back(no, e.now());
        if let Some(v) = tombstone {
            // SAFETY: INV-VERSION: a version is a piece of the region, and is not retired yet.
            let size = unsafe { e.region.usable_size(v.cast()) } as u64;
            stats.bytes.fetch_sub(size, Ordering::Relaxed);
            stats.versions.fetch_sub(1, Ordering::Relaxed);
            RetireQueue::push(e, slot, v.cast(), e.now());
        }
        self.dead.fetch_sub(1, Ordering::Relaxed);
    }

    /// Purges if many records are marked.
    fn purge_if_many(&'static self, e: &Engine, slot: SlotId, p: &dyn Platform, owed: u64) {
        let marked = self.dead_entries.marked.load(Ordering::Relaxed);
        let entries = self.primary().map_or(0, |i| i.index.len());
        if marked > MARKS_PURGE.max(entries / 16) {
            // Without memory they stay marked for now.
            let _ = self.purge_marked(e, slot, p, owed);
        }
    }

    /// Removes the entries of all records that are marked by now, by a search of the whole index.
    /// Comparisons may unwind; in this case, and without memory, the records stay marked. The
    /// caller is pinned, and needs `owed` of the room in its queue of retired memory. Returns the
    /// number of entries removed.
    pub(crate) fn purge_marked(
        &'static self,
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        owed: u64,
    ) -> Result<usize, OutOfMemory> {
        if self.dead_entries.marked.load(Ordering::Relaxed) == 0 || self.is_changing() {
            return Ok(0);
        }
        let Some(_purging) = Purging::begin(&self.dead_entries) else { return Ok(0) };
        let is_marked = |no: u64| {
            let r = self.record(no).filter(|r| r.next_free.load(Ordering::SeqCst) == MARKED);
            r.filter(|r| r.state.load(Ordering::SeqCst) == REC_DEAD)
        };
        // Records marked later keep their marks, because the search may have passed their entries.
        let marked: Vec<u64> = (0..self.len()).filter(|no| is_marked(*no).is_some()).collect();
        let mut removed = 0;
        if let Some(primary) = self.primary() {
            let mut all = primary.index.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
            while let Some((key, no)) = all.next(p) {
                if marked.binary_search(&no).is_ok() {
                    RetireQueue::reserve(e, slot, owed + Index::ROOM)?;
                    removed += usize::from(primary.remove(e, slot, p, &key, no));
                }
            }
        }
        let at_once = self.primary().is_some_and(|i| i.reuse() == Reuse::AtOnce);
        for r in marked.iter().map(|no| (*no, self.record(*no).expect("it is there"))) {
            self.dead_entries.marked.fetch_sub(1, Ordering::Relaxed);
            r.1.next_free.store(0, Ordering::SeqCst);
            if at_once {
                self.enqueue_dead(r.0, r.1);
            }
        }
        Ok(removed)
    }
}
