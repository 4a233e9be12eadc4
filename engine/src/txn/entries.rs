//! The entries of own inserts in primary indexes: added with the row, removed if the insert is
//! undone.

use super::write_set::{WriteSet, UNKNOWN_ENTRY};
use super::{Level, Owner, Present, RecordRef, Txn, Write, WriteKind};
use crate::csn::{Csn, SlotId};
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::index::{Index, Inserted, Judge, Primary, Unique};
use crate::memory::OutOfMemory;
use crate::platform::{Platform, Queue, WaitFor};
use crate::record::Version;
use crate::retire::RetireQueue;
use crate::table::Table;
use std::ptr::NonNull;

/// Bytes of a length in front of a key.
const LEN: usize = size_of::<u32>();

/// The keys of the own inserts that have an entry, in the order of the inserts. Each is a length
/// and the key.
#[derive(Default)]
pub(super) struct Entries {
    bytes: Vec<u8>,
    /// Number of keys that the index keeps in memory of their own, and of all keys.
    long: u64,
    all: u64,
}

impl Entries {
    /// Makes room for a key that is about to be kept.
    fn count(&mut self, key: &[u8]) {
        self.all += 1;
        self.long += u64::from(Index::has_memory(key));
    }

    /// Keeps a key; returns where.
    fn add(&mut self, key: &[u8]) -> u32 {
        let at = self.bytes.len();
        if at + LEN + key.len() >= UNKNOWN_ENTRY as usize {
            return UNKNOWN_ENTRY; // it does not fit
        }
        self.bytes.extend_from_slice(&(key.len() as u32).to_ne_bytes());
        self.bytes.extend_from_slice(key);
        at as u32 + 1
    }

    /// The key of a write, and where it ends.
    fn get(&self, entry: u32) -> Option<(&[u8], usize)> {
        if entry == 0 || entry == UNKNOWN_ENTRY {
            return None;
        }
        let at = entry as usize - 1;
        let len = u32::from_ne_bytes(self.bytes[at..at + LEN].try_into().expect("a length")) as usize;
        let end = at + LEN + len;
        Some((&self.bytes[at + LEN..end], end))
    }

    /// The entry of the key that was kept last was not added.
    fn take_back(&mut self, entry: u32, key: &[u8]) {
        self.all -= 1;
        self.long -= u64::from(Index::has_memory(key));
        self.forget(entry);
    }

    /// An insert was undone: its key is not needed any more.
    pub fn forget(&mut self, entry: u32) {
        if self.get(entry).is_some_and(|(_, end)| end == self.bytes.len()) {
            self.bytes.truncate(entry as usize - 1);
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
    /// Removes the entry of an own insert that will never be. False: the record is marked instead.
    /// `left`: writes that have not retired their versions yet. Neither allocates nor fails.
    pub fn remove_entry(&self, owner: &Owner, w: &Write, left: usize) -> bool {
        if w.entry == 0 || faults::on(Fault::EntryForgotten) {
            return true;
        }
        let primary = w.r.table.primary().filter(|i| i.index.order() == 0 && !w.r.table.is_changing());
        let room = RetireQueue::room(&owner.e, owner.slot) >= self.needed(left) + Index::ROOM;
        if cfg!(feature = "faults") {
            assert!(owner.e.is_pinned(owner.slot), "INV-PIN: an index is read by who is pinned");
        }
        if let (Some(i), Some((key, _)), true) = (primary, self.entries.get(w.entry), room) {
            if i.remove(&owner.e, owner.slot, &Bytes, key, w.r.no) {
                return true;
            }
        }
        w.r.table.mark(w.r.rec);
        false
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
        debug_assert!(unique == Unique::Unchecked || self.writer(r) != 0, "others cannot wait for the insert");
        let Some((rival, csn)) = self.put_entry(p, r, key, unique)? else { return Ok(Entered::Free) };
        if let (Rival::Row(r, v), Level::Serializable) = (rival, self.level) {
            self.note_read(p, r, v, csn)?;
        }
        Ok(Entered::Taken(rival))
    }

    /// Is the entry of a row there that we have inserted?
    #[inline]
    pub fn has_entry(&self, r: RecordRef) -> bool {
        self.writes.last_of(r).is_some_and(|n| self.writes.at(n as usize).entry != 0)
    }

    /// Returns the rival, with the CSN of its row.
    fn put_entry(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        key: &[u8],
        unique: Unique,
    ) -> Result<Option<(Rival, Csn)>, Error> {
        let Some(primary) = r.table.primary() else { return Ok(None) };
        let n = self.writes.last_of(r).expect("an insert of ours");
        self.sweep(p, r.table, 2);
        // INV-DEAD: the key is known before there is an entry.
        self.writes.entries.count(key);
        RetireQueue::reserve(&self.e, self.slot, self.writes.owed())?;
        let entry = self.writes.entries.add(key);
        let done = match self.try_enter(p, primary, r, key, unique) {
            Err(Error::OutOfMemory) => {
                self.reclaim();
                self.try_enter(p, primary, r, key, unique)
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
        primary: &Primary,
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
        Ok((primary.enter(&self.e, self.slot, p, r.no, key, judge)?, rival))
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

    /// Removes at most `budget` entries of dead records from the primary index of a table; returns
    /// how many. The process has a snapshot, so that its pin stays. May unwind where a comparison
    /// does.
    pub fn sweep(&mut self, p: &dyn Platform, table: &'static Table, budget: usize) -> usize {
        if table.dead_entries() == 0 {
            return 0;
        }
        // Without memory there is less room, and the entries stay for now.
        let owed = self.writes.owed();
        let _ = RetireQueue::reserve(&self.e, self.slot, owed + Table::SWEEP_ROOM + 2 * budget as u64);
        table.sweep(&self.e, self.slot, p, owed, budget)
    }

    /// Removes the entries of dead records whose keys are not known, if there are any, by looking
    /// through the whole index. Returns how many. As [`Txn::sweep`].
    pub fn purge_marked(&mut self, p: &dyn Platform, table: &'static Table) -> Result<usize, OutOfMemory> {
        table.purge_marked(&self.e, self.slot, p, self.writes.owed())
    }
}
