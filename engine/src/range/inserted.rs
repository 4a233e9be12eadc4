//! The ring of a partition: registrations of inserts, with the record numbers that they use.
//!
//! **INV-CONDITION**: A registration of inserts into a partition names a first and a last record,
//! and all records that its transaction inserts there lie between them. The two numbers change only
//! while the entry's head is marked busy.

use super::ring::{Entry, EntryHead, List, Registered, SpreadHead, RING_SIZE};
use crate::csn::Stamp;
use crate::primitive::{AtomicU64, Ordering};
use crate::shared::NextLine;

/// A registration of one transaction's inserts into a partition. All-zero memory is an empty one.
#[repr(C)]
pub struct InsertEntry {
    head: EntryHead,
    first: AtomicU64,
    last: AtomicU64,
}

impl Entry for InsertEntry {
    fn head(&self) -> &EntryHead {
        &self.head
    }
}

/// The ring of a partition. All-zero memory is an empty one.
#[repr(C)]
pub struct Inserts {
    head: SpreadHead,
    _entries: NextLine,
    entries: [InsertEntry; RING_SIZE],
}

impl Inserts {
    /// The list.
    #[inline]
    pub fn list(&self) -> List<'_, InsertEntry> {
        List::spread(&self.head, &self.entries)
    }
    /// Adds a registration of inserts into some of the records from `first` to `last`.
    pub fn register(&'static self, tag: Stamp, (first, last): (u64, u64)) -> Registered {
        let (pos, _) = self.list().register(tag, |e| {
            e.first.store(first, Ordering::Release);
            e.last.store(last, Ordering::Release);
        });
        self.list().registered(pos)
    }
}

impl List<'_, InsertEntry> {
    /// The first and last record of the registration at `pos`. `None` if it was overwritten.
    pub fn records(&self, pos: u64) -> Option<(u64, u64)> {
        let e = self.entry(pos);
        if !self.holds(pos) {
            return None;
        }
        let records = (e.first.load(Ordering::Acquire), e.last.load(Ordering::Acquire));
        self.holds(pos).then_some(records)
    }
}
