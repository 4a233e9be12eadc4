//! The block of a prepared transaction: all that another process needs to finish it.
//!
//! **INV-HANDOVER**: A prepared transaction is of the process that has its slot, until that stores
//! the transaction's block in the slot. Then it is of no process: no one uses the slot's queue of
//! retired memory as its owner, nor its caches of memory. The process that takes the block out of
//! the slot owns the transaction and the slot, and ends the transaction. Whatever names the slot,
//! such as tags of versions and holders of locks, stays as it is meanwhile.

use super::prepared::Guards;
use super::write_set::{WriteKind, UNKNOWN_ENTRY};
use super::{Level, RecordRef, Stage, Txn, Write};
use crate::csn::SlotId;
use crate::error::Error;
use crate::index::Primary;
use crate::lock::LockWord;
use crate::partition::{Partition, PartitionMap};
use crate::primitive::Ordering;
use crate::record::{Record, Version};
use crate::shared::Engine;
use crate::table::Table;
use std::ptr::NonNull;

/// A change of definitions that a prepared transaction keeps, for the platform. The engine does
/// nothing with it.
#[derive(Clone, Copy)]
pub enum KeptChange {
    /// The transaction has made the table, which no other one knows.
    Made(&'static Table),
    /// It drops the table, if it commits.
    Dropped(&'static Table),
    /// The table goes, whatever becomes of the transaction.
    Gone(&'static Table),
    /// It has given the table another index of this number, or none, in place of this one.
    Unique(&'static Table, usize, Option<&'static Primary>),
    /// It has given the table another map, the second one, in place of the first one.
    Map(&'static Table, NonNull<PartitionMap>, NonNull<PartitionMap>),
    /// The map is in no table any more.
    OldMap(NonNull<PartitionMap>),
}

/// The beginning of a block. The lists follow, in this order.
#[repr(C)]
pub(crate) struct Kept {
    serializable: u64,
    writes: usize,
    locks: usize,
    read: usize,
    written: usize,
    changes: usize,
}

/// A [`Write`].
#[derive(Clone, Copy)]
struct KeptWrite {
    table: &'static Table,
    rec: &'static Record,
    no: u64,
    version: NonNull<Version>,
    base: Option<NonNull<Version>>,
    follows: u32,
    xid: u32,
    kind: WriteKind,
    superseded: bool,
    has_entry: bool,
}

const _: () = assert!(align_of::<KeptWrite>() <= 8 && size_of::<KeptWrite>().is_multiple_of(8));
const _: () = assert!(align_of::<KeptChange>() <= 8);

impl KeptWrite {
    fn of(w: Write) -> KeptWrite {
        let RecordRef { table, no, rec } = w.r;
        let Write { version, base, follows, xid, kind, superseded, .. } = w;
        KeptWrite { table, rec, no, version, base, follows, xid, kind, superseded, has_entry: w.entry != 0 }
    }

    /// Without what only a running transaction needs. If it is undone, the entries of an insert are
    /// found without their keys.
    fn restored(&self) -> Write {
        let r = RecordRef { table: self.table, no: self.no, rec: self.rec };
        let mut w = Write::new(r, self.kind, self.version, self.base, (0, 1), self.xid);
        (w.follows, w.superseded) = (self.follows, self.superseded);
        w.entry = if self.has_entry { UNKNOWN_ENTRY } else { 0 };
        w
    }
}

/// The lists of a block.
struct Lists {
    writes: *mut KeptWrite,
    locks: *mut &'static LockWord,
    read: *mut &'static Partition,
    written: *mut &'static Partition,
    changes: *mut KeptChange,
}

impl Kept {
    fn size(&self) -> usize {
        let refs = self.locks + self.read + self.written;
        let changes = self.changes * size_of::<KeptChange>();
        size_of::<Kept>() + self.writes * size_of::<KeptWrite>() + refs * size_of::<usize>() + changes
    }

    /// Where the lists are in the block that begins with this head.
    fn lists(head: *mut Kept, k: &Kept) -> Lists {
        let writes = head.wrapping_add(1).cast::<KeptWrite>();
        let locks = writes.wrapping_add(k.writes).cast::<&'static LockWord>();
        let read = locks.wrapping_add(k.locks).cast::<&'static Partition>();
        let written = read.wrapping_add(k.read);
        Lists { writes, locks, read, written, changes: written.wrapping_add(k.written).cast() }
    }
}

/// Puts the elements into a list that has room for them.
///
/// # Safety
/// `to` has room for all of them, which no other reference names.
unsafe fn fill<T>(to: *mut T, from: impl Iterator<Item = T>) {
    for (i, x) in from.enumerate() {
        // SAFETY: contract of this function.
        unsafe { to.add(i).write(x) };
    }
}

impl Txn {
    /// Allocates the block of a transaction that is being prepared, and writes it. What it holds
    /// does not change from now on, but for locks of ranges that it gives up.
    pub(super) fn make_block(&mut self) -> Result<(), Error> {
        let held = |w: &&super::lock_set::LockEntry| w.previous.is_none();
        let k = Kept {
            serializable: u64::from(self.level == Level::Serializable),
            writes: self.writes.len(),
            locks: self.locks.all.iter().filter(held).count(),
            read: self.guards.read.len(),
            written: self.guards.written.len(),
            changes: self.changes.len(),
        };
        let block = self.e.region.alloc(self.slot as usize, k.size())?.cast::<Kept>();
        let to = Kept::lists(block.as_ptr(), &k);
        // SAFETY: INV-M1: fresh memory of that size, aligned to 8 bytes, with room for these lists.
        unsafe {
            fill(to.writes, self.writes.iter().map(KeptWrite::of));
            fill(to.locks, self.locks.all.iter().filter(held).map(|l| l.word));
            fill(to.read, self.guards.read.iter().copied());
            fill(to.written, self.guards.written.iter().copied());
            fill(to.changes, self.changes.iter().copied());
            block.write(k);
        }
        self.kept = Some(block);
        Ok(())
    }

    /// The transaction has ended, or could not be prepared.
    pub(super) fn free_block(&mut self) {
        if let Some(block) = self.kept.take() {
            // SAFETY: INV-HANDOVER: the block is ours alone, and no reference to it is in use.
            unsafe { self.e.region.free(self.slot as usize, block.cast()) };
        }
    }

    /// The prepared transaction is of no process any more, and keeps its slot (INV-HANDOVER). This
    /// process has the slot `to` from now on, which is idle. Cannot fail.
    pub fn hand_over(&mut self, to: SlotId) {
        debug_assert_eq!(self.stage, Stage::Prepared);
        self.run.give_back();
        let (e, slot) = (self.e, self.slot as usize);
        let block = self.kept.map_or(std::ptr::null_mut(), NonNull::as_ptr);
        e.region.flush_slot(slot);
        *self = Txn::new(e, to);
        e.slots[slot].kept.store(block, Ordering::SeqCst);
    }

    /// What [`Txn::make_room`] is asked for by a platform with so many changes of definitions. Each
    /// retires at most two pieces of memory when the transaction has ended, however that ends, and
    /// whichever process ends it.
    pub fn room_of_changes(changes: usize) -> u64 {
        2 * changes as u64 + 2
    }

    /// The prepared transaction of this slot, to be ended by this process; `None`: there is none,
    /// or another process ends it.
    pub fn take_over(e: Engine, slot: SlotId) -> Option<Txn> {
        let s = &e.slots[slot as usize];
        let block = NonNull::new(s.kept.swap(std::ptr::null_mut(), Ordering::SeqCst))?;
        let mut t = Txn::new(e, slot);
        // SAFETY: INV-HANDOVER: `make_block` has written the block, which is ours from now on. Its
        // lists have so many elements.
        unsafe {
            let k = block.as_ref();
            let lists = Kept::lists(block.as_ptr(), k);
            t.level = if k.serializable != 0 { Level::Serializable } else { Level::Snapshot };
            t.writes.restore(std::slice::from_raw_parts(lists.writes, k.writes).iter().map(KeptWrite::restored));
            t.locks.restore(std::slice::from_raw_parts(lists.locks, k.locks));
            let read = std::slice::from_raw_parts(lists.read, k.read);
            t.guards = Guards::raised(read, std::slice::from_raw_parts(lists.written, k.written));
            t.changes = std::slice::from_raw_parts(lists.changes, k.changes).to_vec();
        }
        t.writes.promise_again(Self::room_of_changes(t.changes.len()));
        t.kept = Some(block);
        t.stage = Stage::Prepared;
        t.following = s.following.load(Ordering::SeqCst) != 0;
        t.holds = s.holds();
        t.telemetry.resume();
        Some(t)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::txn::lock_set::LockEntry;

    #[test]
    fn sizes_are_as_documented() {
        let sizes = [size_of::<Kept>(), size_of::<KeptWrite>(), size_of::<usize>()];
        crate::sizes::assert_documented("a prepared transaction", &sizes);
        crate::sizes::assert_documented("a write of a running transaction", &[size_of::<Write>()]);
        crate::sizes::assert_documented("another lock of a running", &[size_of::<LockEntry>()]);
    }
}
