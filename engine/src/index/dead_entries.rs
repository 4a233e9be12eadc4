//! Removal of the index entries of dead records.
//!
//! **INV-DEAD**: The entries of a record that died are removed from all indexes of its table before
//! the record's number can be given to another insert. Until then the record's `next_free` is not
//! 0, and a process that frees dead records leaves it alone ([`Table::is_indexed`]). For a live
//! record nothing is kept but the entries.
//!
//! When a record dies, the keys of its entries are known from
//!
//! * its tombstone, if the row was deleted (INV-KEYS): the record is *enqueued* in a list in the
//!   order of the deletes. A *sweep* removes its entries when every floor is larger;
//! * the private memory of the transaction, if its insert is undone: the entries go at once,
//!   because no other transaction ever saw the row;
//! * nowhere, in other cases: no room to retire memory, keys that the platform compares, an index
//!   that is being replaced. Such a record is *marked*. A *purging* process searches all of the
//!   table's indexes for entries of marked records.
//!
//! A record is enqueued or marked at most once in each of its lives, by the transaction that ends
//! the row and before that transaction ends.

use super::{Direction, Index, Reuse};
use crate::csn::{Csn, SlotId};
use crate::faults::{self, Fault};
use crate::memory::{Latch, OutOfMemory};
use crate::platform::Platform;
use crate::primitive::{AtomicU32, AtomicU64, Ordering};
use crate::record::{Keys, Record, Version, REC_DEAD};
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

/// So many entries a sweep removes together, at most.
const SWEPT: usize = 32;
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

/// A record taken out of the list. It is put back if the removal of its entries unwinds.
struct DeadEntry {
    table: &'static Table,
    no: u64,
    rec: &'static Record,
    done: bool,
}

impl DeadEntry {
    /// The keys of a deleted row's entries. There may be no such entry: an index made after the
    /// delete has none.
    fn keys(&self) -> Keys<'static> {
        match NonNull::new(self.rec.head()) {
            // SAFETY: INV-VERSION: the head is a tombstone, whose keys are part of its payload. It
            // stays until this process gives it up (INV-DEAD), and then as long as the caller's
            // pin.
            Some(v) => unsafe { Version::keys(v.as_ptr()) },
            None => Keys::default(),
        }
    }
}

/// The keys of these records in the index of a number, with the records.
fn keys_in(nth: usize, entries: &[DeadEntry]) -> Vec<(&'static [u8], u64)> {
    entries.iter().filter_map(|d| Some((d.keys().0[nth]?, d.no))).collect()
}

impl Drop for DeadEntry {
    fn drop(&mut self) {
        if !self.done {
            self.table.enqueue_dead_last(self.no, self.rec);
        }
    }
}

/// Dead records of one table, linked as in the list, that go to its end together. Those of a
/// transaction that deletes many rows need the latch once. Until then they are in no list, as the
/// records that a sweep has taken.
#[derive(Default)]
pub(crate) struct DeadChain<'a> {
    table: Option<&'a Table>,
    /// The number of deleted rows of the table, which it does not count yet.
    deleted: u64,
    /// The number of the first record, + 1.
    first: u32,
    /// The last record, and its number + 1.
    last: Option<(u32, &'a Record)>,
    len: u64,
}

impl<'a> DeadChain<'a> {
    /// Counts a deleted row, and adds its record, once in each of its lives, if that is to be
    /// enqueued. Call [`DeadChain::enqueue`] before the transaction ends.
    #[inline]
    pub fn add(&mut self, table: &'a Table, no: u64, r: &'a Record) {
        self.be_of(table);
        self.deleted += 1;
        // SAFETY: INV-DEAD: as in `Table::enqueue_dead`.
        if table.waits_for_sweep(unsafe { r.head().as_ref() }) {
            self.link(no, r);
        }
    }

    #[inline]
    fn be_of(&mut self, table: &'a Table) {
        if !self.table.is_some_and(|t| std::ptr::eq(t, table)) {
            self.enqueue();
            self.table = Some(table);
        }
    }

    #[inline]
    fn link(&mut self, no: u64, r: &'a Record) {
        // INV-DEAD: a process that frees dead records finds it, because the transaction ends, and
        // releases the record's lock, behind it.
        r.next_free.store(LAST, Ordering::Release);
        match self.last {
            Some((_, last)) => last.next_free.store(no as u32 + 1, Ordering::Release),
            None => self.first = no as u32 + 1,
        }
        self.last = Some((no as u32 + 1, r));
        self.len += 1;
    }

    /// Counts the rows, and puts the records into the list of their table. Neither allocates nor
    /// fails.
    pub fn enqueue(&mut self) {
        let DeadChain { table: Some(table), deleted, first, last, len } = std::mem::take(self) else { return };
        if deleted > 0 {
            table.dead.fetch_add(deleted, Ordering::Relaxed);
        }
        let Some((end, _)) = last else { return };
        let g = &table.dead_entries;
        g.len.fetch_add(len, Ordering::Relaxed);
        g.latch.with(|| {
            let last = g.last.swap(end, Ordering::Relaxed);
            if g.first.load(Ordering::Relaxed) == 0 {
                g.first.store(first, Ordering::Relaxed);
            } else if let Some(last) = table.record(last as u64 - 1) {
                last.next_free.store(first, Ordering::SeqCst);
            }
        });
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
    /// The number of dead records whose entries wait to be removed from the indexes.
    pub fn dead_entries(&self) -> u64 {
        self.dead_entries.len()
    }

    /// Do sweeps free the numbers of dead records? All indexes of a table say the same.
    fn frees_at_once(&self) -> bool {
        self.uniques().next().is_some_and(|(_, i)| i.reuse() == Reuse::AtOnce)
    }

    /// Must VACUUM leave this dead record alone? That is so if one of the table's indexes may have
    /// an entry of it, or if sweeps free the number.
    pub fn is_indexed(&self, no: u64) -> bool {
        let waits = |r: &Record| r.next_free.load(Ordering::SeqCst) != 0;
        self.frees_at_once() || self.record(no).is_some_and(waits)
    }

    /// Is a dead record to be enqueued? `deleted`: its tombstone; `None`: its insert was undone.
    fn waits_for_sweep(&self, deleted: Option<&Version>) -> bool {
        self.frees_at_once() || deleted.is_some_and(Version::is_keyed)
    }

    /// Puts a dead record into the list, once in each of its lives. A record whose row was deleted
    /// goes to the end. A record whose insert was undone, and its entries removed, goes to the
    /// front. Neither allocates nor fails.
    pub(crate) fn enqueue_dead(&self, no: u64, r: &Record) {
        // SAFETY: INV-DEAD: a dead record's head is null or a tombstone, which stays until the
        // record is freed after it was enqueued.
        let deleted = unsafe { r.head().as_ref() };
        if !self.waits_for_sweep(deleted) {
            return;
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
        let mut chain = DeadChain::default();
        chain.be_of(self);
        chain.link(no, r);
        chain.enqueue();
    }

    /// The first record of the list, if every snapshot sees its delete. Without the latch it is
    /// only a guess. The caller is pinned.
    fn first_dead(&'static self, floor: Csn) -> Option<(u64, &'static Record)> {
        let no = (self.dead_entries.first.load(Ordering::Relaxed) as u64).checked_sub(1)?;
        let r = self.record(no)?;
        // SAFETY: INV-RETIRE: the head is reached under the caller's pin.
        let csn = unsafe { r.head().as_ref() }.map_or(Some(0), Version::csn)?;
        (csn < floor).then_some((no, r))
    }

    /// Takes the first records, at most `most`, from the list, as long as every snapshot sees their
    /// deletes. Their `next_free` stays not 0.
    fn dequeue_dead(&'static self, floor: Csn, most: usize) -> Vec<DeadEntry> {
        let g = &self.dead_entries;
        if most == 0 || self.first_dead(floor).is_none() {
            return Vec::new();
        }
        let mut taken = Vec::with_capacity(most); // nothing is allocated under the latch
        let first = || {
            let (no, r) = self.first_dead(floor)?;
            let next = r.next_free.swap(LAST, Ordering::SeqCst);
            g.first.store(if next == LAST { 0 } else { next }, Ordering::Relaxed);
            Some(DeadEntry { table: self, no, rec: r, done: false })
        };
        g.latch.with(|| taken.extend(std::iter::from_fn(first).take(most)));
        g.len.fetch_sub(taken.len() as u64, Ordering::Relaxed);
        taken
    }

    /// Marks the record of an undone insert of which an entry could not be removed.
    pub(crate) fn mark(&self, r: &Record) {
        if !faults::on(Fault::EntryForgotten) {
            r.next_free.store(MARKED, Ordering::SeqCst);
            self.dead_entries.marked.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes the entries of at most `budget` dead records, and with [`Reuse::AtOnce`] frees their
    /// numbers. Comparisons may unwind; then nothing is lost. The caller is pinned. `owed` of the
    /// room in its queue of retired memory is reserved for other purposes. The sweep stops if there
    /// is less than [`Table::sweep_room`] beyond that.
    pub(crate) fn sweep(&'static self, e: &Engine, slot: SlotId, p: &dyn Platform, owed: u64, budget: usize) -> usize {
        if self.is_changing() {
            return 0; // An index that comes back has entries that this one may not have.
        }
        let mut floor = e.known_min_floor();
        if self.dead_entries.sweeps.fetch_add(1, Ordering::Relaxed).is_multiple_of(SWEEPS_A_LOOK) {
            floor = e.refresh_min_floor(p);
        }
        let at_once = self.frees_at_once();
        if at_once {
            self.purge_if_many(e, slot, p, owed);
        }
        let (mut looked, mut removed) = (0, 0);
        loop {
            let room = RetireQueue::room(e, slot).saturating_sub(owed) / self.sweep_room();
            let mut entries = self.dequeue_dead(floor, SWEPT.min(budget - looked).min(room as usize));
            if entries.is_empty() {
                return removed;
            }
            looked += entries.len();
            // A transaction that found one by its entry has it locked: to the end of the list.
            entries.retain(|d| d.rec.lock.is_free() && self.is_dead(d.rec, floor));
            removed += entries.len();
            self.sweep_these(e, slot, p, at_once, &mut entries);
        }
    }

    /// Removes the entries of these records. The queue of retired memory has
    /// [`Table::sweep_room`] for each.
    fn sweep_these(
        &'static self,
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        at_once: bool,
        entries: &mut [DeadEntry],
    ) {
        entries.sort_by_key(|d| d.keys().0[0].is_none());
        for (nth, index) in self.uniques().skip_while(|(nth, _)| *nth == 0) {
            // Again, if a later removal unwinds: an entry that is not there is passed over.
            let keys = keys_in(nth, entries);
            let mut done = if faults::on(Fault::SweepsOneIndex) { keys.len() } else { 0 };
            while done < keys.len() {
                done += index.remove_some(e, slot, p, &keys[done..]);
            }
        }
        let primary = self.primary().filter(|_| !faults::on(Fault::EntryForgotten));
        let keys = keys_in(0, entries);
        if let Some(primary) = primary {
            keys.iter().for_each(|(key, _)| primary.announce(key));
        }
        let mut done = 0;
        while done < entries.len() {
            let n = match primary {
                Some(primary) if done < keys.len() => primary.remove_some(e, slot, p, &keys[done..]),
                _ => entries.len() - done,
            };
            for entry in &mut entries[done..done + n] {
                entry.done = true;
                if at_once {
                    self.free_record(e, slot, entry.no, entry.rec);
                } else {
                    entry.rec.next_free.store(0, Ordering::SeqCst);
                }
            }
            done += n;
        }
    }

    /// The room in the queue of retired memory that a sweep of one record needs.
    pub(crate) fn sweep_room(&self) -> u64 {
        Index::ROOM * self.uniques().count().max(1) as u64 + 2
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
        let entries = || self.primary().map_or(0, |i| i.index.len());
        if marked > MARKS_PURGE && marked > entries() / 16 {
            // Without memory they stay marked for now.
            let _ = self.purge_marked(e, slot, p, owed);
        }
    }

    /// Removes the entries of all records that are marked by now, by a search of whole indexes.
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
        for (_, index) in self.uniques() {
            let mut all = index.index.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
            while let Some((key, no)) = all.next(p) {
                if marked.binary_search(&no).is_ok() {
                    RetireQueue::reserve(e, slot, owed + Index::ROOM)?;
                    removed += usize::from(index.remove(e, slot, p, &key, no));
                }
            }
        }
        let at_once = self.frees_at_once();
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
