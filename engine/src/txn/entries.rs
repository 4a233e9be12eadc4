//! The entries of own inserts in primary indexes: added with the row, removed if the insert is
//! undone.

use super::write_set::WriteSet;
use super::{Owner, RecordRef, Txn, Write};
use crate::csn::SlotId;
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::index::Index;
use crate::memory::OutOfMemory;
use crate::platform::{Platform, Queue, WaitFor};
use crate::retire::RetireQueue;
use crate::table::Table;

/// Bytes of a length in front of a key.
const LEN: usize = size_of::<u32>();
/// [`Write::entry`] of a write whose key did not fit.
const UNKNOWN: u32 = u32::MAX;

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
        if at + LEN + key.len() >= UNKNOWN as usize {
            return UNKNOWN;
        }
        self.bytes.extend_from_slice(&(key.len() as u32).to_ne_bytes());
        self.bytes.extend_from_slice(key);
        at as u32 + 1
    }

    /// The key of a write, and where it ends.
    fn get(&self, entry: u32) -> Option<(&[u8], usize)> {
        if entry == 0 || entry == UNKNOWN {
            return None;
        }
        let at = entry as usize - 1;
        let len = u32::from_ne_bytes(self.bytes[at..at + LEN].try_into().expect("a length")) as usize;
        let end = at + LEN + len;
        Some((&self.bytes[at + LEN..end], end))
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

impl Txn {
    /// Adds the entry of a row that we have just inserted to the primary index. On an error, and
    /// when a comparison unwinds, the insert must be undone. Entries of dead records are removed on
    /// the way. True: the entry was put behind all others.
    pub fn add_entry(&mut self, p: &dyn Platform, r: RecordRef, key: &[u8]) -> Result<bool, Error> {
        let Some(primary) = r.table.primary() else { return Ok(false) };
        let n = self.last_write(r).expect("an insert of ours");
        self.sweep(p, r.table, 2);
        // INV-DEAD: the key is known before there is an entry.
        self.writes.entries.count(key);
        RetireQueue::reserve(&self.e, self.slot, self.writes.owed())?;
        let entry = self.writes.entries.add(key);
        let last = match primary.add(&self.e, self.slot, p, r.no, key) {
            Err(Error::OutOfMemory) => {
                self.reclaim();
                primary.add(&self.e, self.slot, p, r.no, key)?
            }
            done => done?,
        };
        self.writes.set_entry(n, entry);
        Ok(last)
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
