//! Entries of dead records, and how they vanish.
//!
//! **INV-GRAVE**: An entry of the primary index whose record died is removed before the record's
//! number can be given to another insert. Until then the record's `next_free` is not 0, and a
//! process that frees dead records leaves it alone ([`Table::is_indexed`]). For a live record
//! nothing is kept but the entry.
//!
//! When a record dies, the key of its entry is known from
//!
//! * its tombstone, if the row was deleted ([`crate::record::VER_KEYED`]): the record is *buried* in
//!   a list in the order of the deletes. A *sweep* removes its entry when every pin is larger;
//! * the private memory of the transaction, if its insert is undone: the entry goes at once, because
//!   no other transaction ever saw the row;
//! * nowhere, in other cases: no room to retire memory, keys that the platform compares, an index
//!   that is being replaced. Such a record is *marked*. A *mend* looks through the whole index for
//!   entries of marked records.
//!
//! A record is buried or marked at most once in each of its lives, by the transaction that ends the
//! row and before that transaction ends.

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

/// `next_free` of the last record in the list, and of one that a sweep has taken from it.
const LAST: u32 = u32::MAX;
/// `next_free` of a record whose entry is somewhere.
const MARKED: u32 = u32::MAX - 1;
const _: () = assert!(crate::table::MAX_RECORDS < MARKED as u64);

/// A sweep looks at all pins only so often.
const SWEEPS_A_LOOK: u32 = 16;
/// Where numbers are used again at once, a sweep mends if more records are marked than these and a sixteenth of the
/// entries.
const MARKS_MEND: u64 = 64;

/// The dead records of a table whose entries wait to be removed. All zero: none.
#[repr(C)]
pub(crate) struct Graves {
    /// Latch of the list.
    latch: Latch,
    /// First and last in the list (number + 1), oldest delete first.
    first: AtomicU32,
    last: AtomicU32,
    sweeps: AtomicU32,
    /// Length of the list.
    len: AtomicU64,
    /// Marked records.
    marked: AtomicU64,
    /// Is somebody mending?
    mending: AtomicU32,
    _pad: u32,
}

/// A record that was taken out of the list; put back if removing its entry unwinds.
struct Grave {
    table: &'static Table,
    no: u64,
    rec: &'static Record,
    done: bool,
}

impl Drop for Grave {
    fn drop(&mut self) {
        if !self.done {
            self.table.bury_at_end(self.no, self.rec);
        }
    }
}

/// The right to mend.
struct Mending<'a>(&'a Graves);

impl<'a> Mending<'a> {
    fn begin(g: &'a Graves) -> Option<Mending<'a>> {
        let free = g.mending.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        free.then(|| Mending(g)) // (made only then: its end frees the others)
    }
}

impl Drop for Mending<'_> {
    fn drop(&mut self) {
        self.0.mending.store(0, Ordering::SeqCst);
    }
}

impl Graves {
    /// Dead records whose entries wait.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed) + self.marked.load(Ordering::Relaxed)
    }

    /// Forgets all. Nobody else uses the table.
    pub fn clear(&self) {
        self.first.store(0, Ordering::Relaxed);
        self.len.store(0, Ordering::Relaxed);
        self.marked.store(0, Ordering::Relaxed);
    }
}

impl Table {
    /// Dead records whose entries wait to be removed from the primary index.
    pub fn graves(&self) -> u64 {
        self.graves.len()
    }

    /// Must VACUUM leave this dead record alone, because the primary index may have an entry of it, or gives the number
    /// back itself?
    pub fn is_indexed(&self, no: u64) -> bool {
        let waits = |r: &Record| r.next_free.load(Ordering::SeqCst) != 0;
        self.primary().is_some_and(|i| i.reuse() == Reuse::AtOnce) || self.record(no).is_some_and(waits)
    }

    /// A record is dead: its row was deleted, or, in front of these, its insert was undone and its entry removed. Once
    /// for each life. Neither allocates nor fails.
    pub(crate) fn bury(&self, no: u64, r: &Record) {
        // SAFETY: a dead record's head is a tombstone, or none; it stays while the record is not buried.
        let deleted = unsafe { r.head().as_ref() };
        match self.primary() {
            Some(i) if i.reuse() == Reuse::AtOnce => {}
            _ if deleted.is_some_and(Version::is_keyed) => {}
            _ => return,
        }
        if deleted.is_some() {
            return self.bury_at_end(no, r);
        }
        let g = &self.graves;
        g.len.fetch_add(1, Ordering::Relaxed);
        g.latch.with(|| {
            let first = g.first.swap(no as u32 + 1, Ordering::Relaxed);
            if first == 0 {
                g.last.store(no as u32 + 1, Ordering::Relaxed);
            }
            r.next_free.store(if first == 0 { LAST } else { first }, Ordering::SeqCst);
        });
    }

    fn bury_at_end(&self, no: u64, r: &Record) {
        let g = &self.graves;
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

    /// Takes the first of the list if no pin holds it. It stays marked as one of the list.
    fn exhume(&'static self, min_pin: Csn) -> Option<Grave> {
        let g = &self.graves;
        let (no, rec) = g.latch.with(|| {
            let no = (g.first.load(Ordering::Relaxed) as u64).checked_sub(1)?;
            let r = self.record(no)?;
            // SAFETY: as in `bury`.
            let csn = unsafe { r.head().as_ref() }.map_or(Some(0), Version::csn)?;
            if csn >= min_pin {
                return None;
            }
            let next = r.next_free.swap(LAST, Ordering::SeqCst);
            g.first.store(if next == LAST { 0 } else { next }, Ordering::Relaxed);
            Some((no, r))
        })?;
        g.len.fetch_sub(1, Ordering::Relaxed);
        Some(Grave { table: self, no, rec, done: false })
    }

    /// The insert of this record will never be, and nobody knows its entry.
    pub(crate) fn mark(&self, r: &Record) {
        if !faults::on(Fault::EntryForgotten) {
            r.next_free.store(MARKED, Ordering::SeqCst);
            self.graves.marked.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes entries of dead records, `budget` at most, and with [`Reuse::AtOnce`] the records.
    /// Comparisons may unwind, then nothing is lost. The caller is pinned, and has room in its queue of
    /// retired memory, of which it owes a part: what is beyond, and [`Table::SWEEP_ROOM`], may be used.
    pub(crate) fn sweep(&'static self, e: &Engine, slot: SlotId, p: &dyn Platform, owed: u64, budget: usize) -> usize {
        if self.is_changing() {
            return 0; // an index that comes back has entries that this one may not have
        }
        let mut min_pin = e.shared.min_pin.0.load(Ordering::SeqCst);
        if self.graves.sweeps.fetch_add(1, Ordering::Relaxed).is_multiple_of(SWEEPS_A_LOOK) {
            min_pin = e.refresh_min_pin(p);
        }
        let at_once = self.primary().is_some_and(|i| i.reuse() == Reuse::AtOnce);
        if at_once {
            self.mend_often(e, slot, p, owed);
        }
        let mut removed = 0;
        for _ in 0..budget {
            if RetireQueue::room(e, slot) < owed + Self::SWEEP_ROOM {
                break;
            }
            let Some(mut grave) = self.exhume(min_pin) else { break };
            if !(grave.rec.lock.is_free() && self.is_dead(grave.rec, min_pin)) {
                continue; // somebody who found it by its entry has it locked: to the end of the list
            }
            self.remove_entry(e, slot, p, grave.no, grave.rec);
            grave.done = true;
            removed += 1;
            if at_once {
                self.free_record(e, slot, grave.no, grave.rec);
            } else {
                grave.rec.next_free.store(0, Ordering::SeqCst);
            }
        }
        removed
    }

    /// Room in the queue of retired memory that a sweep needs.
    pub(crate) const SWEEP_ROOM: u64 = Index::ROOM + 2;

    /// Removes the entry of a deleted row. (It is not there if the index was made after the delete.)
    fn remove_entry(&'static self, e: &Engine, slot: SlotId, p: &dyn Platform, no: u64, r: &Record) {
        let Some(v) = NonNull::new(r.head()) else { return };
        // SAFETY: a tombstone that stays until we give it up; its key is part of its payload.
        let Some(key) = (unsafe { Version::key(v.as_ptr()) }) else { return };
        if let Some(primary) = self.primary().filter(|_| !faults::on(Fault::EntryForgotten)) {
            primary.remove(e, slot, p, key, no);
        }
    }

    /// Gives back the number of a dead record that no index points to, and its tombstone.
    fn free_record(&self, e: &Engine, slot: SlotId, no: u64, r: &Record) {
        let tombstone = NonNull::new(r.head());
        let stats = self.partition(r).stats.stripe(slot);
        self.give_back(no, e.now());
        if let Some(v) = tombstone {
            // SAFETY: a version, allocated in the region.
            let size = unsafe { e.region.usable_size(v.cast()) } as u64;
            stats.bytes.fetch_sub(size, Ordering::Relaxed);
            stats.versions.fetch_sub(1, Ordering::Relaxed);
            RetireQueue::push(e, slot, v.cast(), e.now());
        }
        self.dead.fetch_sub(1, Ordering::Relaxed);
    }

    /// Mends if many records are marked.
    fn mend_often(&'static self, e: &Engine, slot: SlotId, p: &dyn Platform, owed: u64) {
        let marked = self.graves.marked.load(Ordering::Relaxed);
        let entries = self.primary().map_or(0, |i| i.index.len());
        if marked > MARKS_MEND.max(entries / 16) {
            // Without memory they stay for now.
            let _ = self.mend(e, slot, p, owed);
        }
    }

    /// Removes the entries of all records that are marked by now, by looking through the whole index. Comparisons may
    /// unwind; then, and without memory, the records stay marked. The caller is pinned and owes a part of its room in
    /// the queue of retired memory. Returns how many entries it has removed.
    pub(crate) fn mend(
        &'static self,
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        owed: u64,
    ) -> Result<usize, OutOfMemory> {
        if self.graves.marked.load(Ordering::Relaxed) == 0 || self.is_changing() {
            return Ok(0);
        }
        let Some(_mending) = Mending::begin(&self.graves) else { return Ok(0) };
        let is_marked = |no: u64| {
            let r = self.record(no).filter(|r| r.next_free.load(Ordering::SeqCst) == MARKED);
            r.filter(|r| r.state.load(Ordering::SeqCst) == REC_DEAD)
        };
        // Those that are marked later keep their marks: their entries may be behind us.
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
            self.graves.marked.fetch_sub(1, Ordering::Relaxed);
            r.1.next_free.store(0, Ordering::SeqCst);
            if at_once {
                self.bury(r.0, r.1);
            }
        }
        Ok(removed)
    }
}
