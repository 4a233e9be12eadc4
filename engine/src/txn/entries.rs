//! The entries of own inserts in the indexes of their tables: added with the row, removed if the
//! insert is undone.

use super::write_set::{WriteSet, UNKNOWN_ENTRIES};
use super::{Level, Owner, Present, RecordRef, Txn, Write, WriteKind};
use crate::csn::{Csn, SlotId};
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::index::{Index, Inserted, Judge, Primary, Unique};
use crate::memory::OutOfMemory;
use crate::platform::{Platform, Queue, WaitFor};
use crate::record::{Version, INDEXES};
use crate::retire::RetireQueue;
use crate::table::Table;
use std::ptr::NonNull;

/// Bytes of a word in front of a key.
const WORD: usize = size_of::<u32>();

/// The keys of the own inserts that have an entry, in the order in which they were kept. Each is a
/// word and the key. The word is the length of the key, the number of the index, and whether the
/// row has an entry in another index, kept before. Then the place of that key is between them.
#[derive(Default)]
pub(super) struct Entries {
    bytes: Vec<u8>,
    /// Number of keys that the index keeps in memory of their own, and of all keys.
    long: u64,
    all: u64,
}

/// In the word in front of a key: the bits above its length.
const NUMBER: u32 = 29;
const HAS_PREVIOUS: u32 = 1 << 31;
const _: () = assert!(INDEXES == 1 << (31 - NUMBER));

/// A kept key.
struct Kept<'a> {
    nth: usize,
    key: &'a [u8],
    /// Where it begins, and ends.
    at: usize,
    end: usize,
    /// The row's key that was kept before it; 0: there is none.
    previous: u32,
}

impl Entries {
    /// Makes room for a key that is about to be kept.
    fn count(&mut self, key: &[u8]) {
        self.all += 1;
        self.long += u64::from(Index::has_memory(key));
    }

    /// Keeps a key in the index of a number, of a row whose other entries are `previous`; returns
    /// where.
    fn add(&mut self, nth: usize, key: &[u8], previous: u32) -> u32 {
        let at = self.bytes.len();
        let is_known = previous < UNKNOWN_ENTRIES;
        if !is_known || key.len() >= 1 << NUMBER || at + 2 * WORD + key.len() >= UNKNOWN_ENTRIES as usize {
            return UNKNOWN_ENTRIES | self.indexes(previous) | 1 << nth; // it does not fit
        }
        let word = key.len() as u32 | (nth as u32) << NUMBER;
        if previous == 0 {
            self.bytes.extend_from_slice(&word.to_ne_bytes());
        } else {
            self.bytes.extend_from_slice(&(word | HAS_PREVIOUS).to_ne_bytes());
            self.bytes.extend_from_slice(&previous.to_ne_bytes());
        }
        self.bytes.extend_from_slice(key);
        at as u32 + 1
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.bytes[at..at + WORD].try_into().expect("a word"))
    }

    /// The key of a write that was kept last.
    fn get(&self, entry: u32) -> Option<Kept<'_>> {
        if entry == 0 || entry >= UNKNOWN_ENTRIES {
            return None;
        }
        let at = entry as usize - 1;
        let word = self.word(at);
        let (has, nth) = (word & HAS_PREVIOUS != 0, (word & !HAS_PREVIOUS) >> NUMBER);
        let from = at + WORD + if has { WORD } else { 0 };
        let end = from + (word & ((1 << NUMBER) - 1)) as usize;
        let previous = if has { self.word(at + WORD) } else { 0 };
        Some(Kept { nth: nth as usize, key: &self.bytes[from..end], at, end, previous })
    }

    /// All keys of a write.
    fn all(&self, entry: u32) -> impl Iterator<Item = Kept<'_>> {
        std::iter::successors(self.get(entry), move |k| self.get(k.previous))
    }

    /// The indexes in which a write has an entry: a bit for each.
    fn indexes(&self, entry: u32) -> u32 {
        match entry.checked_sub(UNKNOWN_ENTRIES) {
            Some(known) => known,
            None => self.all(entry).fold(0, |bits, k| bits | 1 << k.nth),
        }
    }

    /// The entry of the key that was kept last was not added.
    fn take_back(&mut self, entry: u32, key: &[u8]) {
        self.all -= 1;
        self.long -= u64::from(Index::has_memory(key));
        self.forget_last(entry);
    }

    /// Returns the row's key that was kept before, if this one was the last of all.
    fn forget_last(&mut self, entry: u32) -> Option<u32> {
        let (at, previous) = self.get(entry).filter(|k| k.end == self.bytes.len()).map(|k| (k.at, k.previous))?;
        self.bytes.truncate(at);
        Some(previous)
    }

    /// An insert was undone: its keys are not needed any more.
    pub fn forget(&mut self, entry: u32) {
        let mut last = Some(entry);
        while let Some(entry) = last {
            last = self.forget_last(entry);
        }
    }

    /// Room in the queue of retired memory for the removal of all entries: for their keys, and for
    /// leaves that become empty.
    pub fn room(&self) -> u64 {
        if self.all == 0 {
            return 0;
        }
        self.long + self.all / 16 + Index::ROOM
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(1 << 16);
        (self.long, self.all) = (0, 0);
    }
}

/// Stands in for a platform where keys compare as bytes, so that the platform is not asked.
struct Bytes;

impl Platform for Bytes {
    fn wait_for(&self, _: WaitFor) -> Result<(), Error> {
        unreachable!("a removal waits for nobody")
    }
    fn enter_queue(&self, _: Queue) -> Result<(), Error> {
        unreachable!("a removal waits for nobody")
    }
    fn leave_queue(&self, _: Queue) {}
    fn pause(&self, _: u32) -> Result<(), Error> {
        unreachable!("a removal waits for nobody")
    }
    fn lock_tag(&self) -> u32 {
        0
    }
    fn quiescent(&self, _: SlotId) -> bool {
        false
    }
}

impl WriteSet {
    /// Removes the entries of an own insert that will never be. False: the record is marked
    /// instead. `left`: writes that have not retired their versions yet. Neither allocates nor
    /// fails.
    pub fn remove_entries(&self, owner: &Owner, w: &Write, left: usize) -> bool {
        // An index that the transaction has made since may have an entry of the row.
        let changing = w.r.table.is_changing();
        if w.entry == 0 && !changing || faults::on(Fault::EntryForgotten) {
            return true;
        }
        if cfg!(feature = "faults") {
            assert!(owner.e.is_pinned(owner.slot), "INV-PIN: an index is read by a process that is pinned");
        }
        let is_known = w.entry < UNKNOWN_ENTRIES && !changing;
        if is_known && self.entries.all(w.entry).all(|kept| self.remove_kept(owner, w, left, &kept)) {
            return true;
        }
        w.r.table.mark(w.r.rec);
        false
    }

    fn remove_kept(&self, owner: &Owner, w: &Write, left: usize, kept: &Kept<'_>) -> bool {
        if kept.nth > 0 && faults::on(Fault::UndoesOneEntry) {
            return true;
        }
        let index = w.r.table.unique(kept.nth).filter(|i| i.index.order() == 0);
        let room = RetireQueue::room(&owner.e, owner.slot) >= self.needed(left) + Index::ROOM;
        index.filter(|_| room).is_some_and(|i| i.remove(&owner.e, owner.slot, &Bytes, kept.key, w.r.no))
    }
}

/// Another row that has the key of a row which a transaction inserts, or may come to have it.
#[derive(Clone, Copy, Debug)]
pub enum Rival {
    /// A row that the transaction has written itself, and not deleted.
    Own(RecordRef),
    /// A committed row that no transaction deletes or moves. A serializable transaction has read
    /// it.
    Row(RecordRef, NonNull<Version>),
    /// A committed row that the transaction with this id deletes or moves. The key is free if that
    /// commits.
    Leaving(RecordRef, NonNull<Version>, u32),
    /// A row that the transaction with this id inserts. The key is free if that is undone.
    Coming(RecordRef, NonNull<Version>, u32),
}

/// Whether the key of an inserted row is free.
#[derive(Clone, Copy, Debug)]
pub enum Entered {
    /// The entry is added. If it was checked, no other row has the key.
    Free,
    /// Another row has the key, or may come to have it. The entry is added with
    /// [`Unique::Partial`] only.
    Taken(Rival),
}

impl Txn {
    /// Adds the entry of a row that we have inserted to the primary index, and checks whether
    /// another row has its key (INV-UNIQUE). It does not wait for the transaction of a rival: the
    /// caller does, and calls it again. A row without an entry must not be committed. On an error,
    /// and when a comparison unwinds, the insert must be undone. Entries of dead records are
    /// removed on the way.
    ///
    /// A row whose key is checked was inserted with a transaction id, so that others can wait for
    /// us.
    pub fn enter(&mut self, p: &dyn Platform, r: RecordRef, key: &[u8], unique: Unique) -> Result<Entered, Error> {
        self.enter_in(p, r, 0, key, unique)
    }

    /// The same in the table's index of a number. All sessions enter the rows of a table in one
    /// order of its indexes, and in no other one after a rival: so two that insert one row each do
    /// not wait for each other.
    pub fn enter_in(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        nth: usize,
        key: &[u8],
        unique: Unique,
    ) -> Result<Entered, Error> {
        debug_assert!(unique == Unique::Unchecked || self.writer(r) != 0, "others cannot wait for the insert");
        let Some((rival, csn)) = self.put_entry(p, r, nth, key, unique)? else { return Ok(Entered::Free) };
        if let (Rival::Row(r, v), Level::Serializable) = (rival, self.level) {
            self.note_read(p, r, v, csn)?;
        }
        Ok(Entered::Taken(rival))
    }

    /// Is the entry of a row that we have inserted there, in the index of this number?
    #[inline]
    pub fn has_entry(&self, r: RecordRef, nth: usize) -> bool {
        let entry = self.writes.last_of(r).map_or(0, |n| self.writes.at(n as usize).entry);
        entry != 0 && self.writes.entries.indexes(entry) & 1 << nth != 0
    }

    /// Returns the rival, with the CSN of its row.
    fn put_entry(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        nth: usize,
        key: &[u8],
        unique: Unique,
    ) -> Result<Option<(Rival, Csn)>, Error> {
        let Some(index) = r.table.unique(nth) else { return Ok(None) };
        let n = self.writes.last_of(r).expect("an insert of ours");
        let others = self.writes.at(n as usize).entry;
        if others == 0 {
            self.sweep(p, r.table, 2);
        }
        // INV-DEAD: the key is known before there is an entry.
        self.writes.entries.count(key);
        RetireQueue::reserve(&self.e, self.slot, self.writes.owed())?;
        let entry = self.writes.entries.add(nth, key, others);
        let done = match self.try_enter(p, index, r, key, unique) {
            Err(Error::OutOfMemory) => {
                self.reclaim();
                self.try_enter(p, index, r, key, unique)
            }
            done => done,
        };
        match &done {
            Ok((Inserted { added: true, .. }, _)) => self.writes.set_entry(n, entry),
            _ => self.writes.entries.take_back(entry, key),
        }
        let (done, rival) = done?;
        Ok(rival.filter(|_| done.taken))
    }

    /// Also returns the last record that did not pass, if there was one.
    fn try_enter(
        &self,
        p: &dyn Platform,
        index: &Primary,
        r: RecordRef,
        key: &[u8],
        unique: Unique,
    ) -> Result<(Inserted, Option<(Rival, Csn)>), Error> {
        let mut rival = None;
        let mut passes = |no: u64| -> Result<bool, Error> {
            let there = RecordRef::find(r.table, no);
            rival = there.map(|r| self.rival(p, r)).transpose()?.flatten();
            Ok(rival.is_none())
        };
        let mut judge = Judge { beside: unique == Unique::Partial, passes: &mut passes };
        let judge = (unique != Unique::Unchecked).then_some(&mut judge);
        Ok((index.enter(&self.e, self.slot, p, r.no, key, judge)?, rival))
    }

    /// The row of a record, if it has one now or may come to have one as long as its entry is
    /// there.
    fn rival(&self, p: &dyn Platform, r: RecordRef) -> Result<Option<(Rival, Csn)>, Error> {
        if let Some(n) = self.last_write(r) {
            let deletes = self.writes.at(n as usize).kind == WriteKind::Delete;
            return Ok((!deletes).then_some((Rival::Own(r), 0)));
        }
        Ok(self.present(p, r)?.map(|there| match there {
            Present::Row(v, csn, 0) => (Rival::Row(r, v), csn),
            Present::Row(v, csn, id) => (Rival::Leaving(r, v, id), csn),
            Present::Insert(v, id) => (Rival::Coming(r, v, id), 0),
        }))
    }

    /// Removes the entries of at most `budget` dead records from the indexes of a table; returns of
    /// how many. The process has a snapshot, so that its pin stays. May unwind where a comparison
    /// does.
    pub fn sweep(&mut self, p: &dyn Platform, table: &'static Table, budget: usize) -> usize {
        if table.dead_entries() == 0 {
            return 0;
        }
        // Without memory there is less room, and the entries stay for now.
        let owed = self.writes.owed();
        let _ = RetireQueue::reserve(&self.e, self.slot, owed + table.sweep_room() + 2 * budget as u64);
        table.sweep(&self.e, self.slot, p, owed, budget)
    }

    /// Removes the entries of dead records whose keys are not known, if there are any, by looking
    /// through all of the table's indexes. Returns how many. As [`Txn::sweep`].
    pub fn purge_marked(&mut self, p: &dyn Platform, table: &'static Table) -> Result<usize, OutOfMemory> {
        table.purge_marked(&self.e, self.slot, p, self.writes.owed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(e: &Entries, entry: u32) -> Vec<(usize, Vec<u8>)> {
        e.all(entry).map(|k| (k.nth, k.key.to_vec())).collect()
    }

    /// Rows whose entries are added in turns, as those of several rows of a statement.
    #[test]
    fn the_keys_of_a_row_are_found_and_forgotten() {
        let mut e = Entries::default();
        let key = |row: usize, nth: usize| vec![row as u8; 10 * nth + row];
        let mut rows = [0; 3];
        for nth in [2, 0, 3] {
            for (row, entry) in rows.iter_mut().enumerate() {
                assert_eq!(e.indexes(*entry) & 1 << nth, 0);
                e.count(&key(row, nth));
                *entry = e.add(nth, &key(row, nth), *entry);
            }
        }
        for (row, &entry) in rows.iter().enumerate() {
            assert_eq!(keys(&e, entry), [3, 0, 2].map(|nth| (nth, key(row, nth))));
            assert_eq!(e.indexes(entry), 0b1101);
        }
        let before = e.bytes.len();
        e.count(b"taken");
        let taken = e.add(1, b"taken", rows[2]);
        e.take_back(taken, b"taken");
        assert_eq!((e.bytes.len(), e.all), (before, 9), "the row's other keys stay");
        e.forget(rows[0]);
        assert_eq!(e.bytes.len(), before, "another row's key lies behind it");
        let last = e.add(1, b"alone", 0);
        let last = e.add(0, b"with it", last);
        e.forget(last);
        assert_eq!(e.bytes.len(), before, "both are forgotten");
    }

    /// Where a key does not fit, the indexes are known.
    #[test]
    fn unknown_keys_have_known_indexes() {
        let mut e = Entries::default();
        let first = e.add(3, b"known", 0);
        let long = vec![0; 1 << NUMBER];
        let both = e.add(1, &long, first);
        assert_eq!((both, e.indexes(both), keys(&e, both).len()), (UNKNOWN_ENTRIES | 0b1010, 0b1010, 0));
        let all = e.add(0, b"short", both);
        assert_eq!((e.indexes(all), keys(&e, all).len()), (0b1011, 0));
        assert_eq!(e.indexes(super::super::write_set::UNKNOWN_ENTRY), 0b1111);
        e.forget(all);
        assert_eq!(keys(&e, first).len(), 1);
    }
}
