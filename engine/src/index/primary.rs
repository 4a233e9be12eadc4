//! The primary index of a table: a tree whose entries are added with records and removed with them
//! (`dead_entries.rs`). A table may have others of the same kind beside it, by number
//! ([`crate::Table::unique`]).

use super::hints::{Hash, Hints};
use super::insert::Inserted;
use super::key::{prefix_of, INLINE};
use super::unique::Judge;
use super::Index;
use crate::csn::{Csn, SlotId};
use crate::error::Error;
use crate::key::Short;
use crate::memory::OutOfMemory;
use crate::platform::Platform;
use crate::primitive::{AtomicU64, Ordering};
use crate::retire::RetireQueue;
use crate::shared::Engine;
use std::ptr::NonNull;

/// Which code reuses the number of a dead record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reuse {
    /// No other index points to records: the sweep that removes the entry frees the number too.
    AtOnce = 0,
    /// Other indexes point to records: VACUUM frees the number, once the entry is removed.
    Vacuum = 1,
}

/// The primary index of a table, or another index whose entries come with records.
#[repr(C)]
pub struct Primary {
    /// The entries.
    pub index: Index,
    /// Hints of records for short keys, if the index has a description. Only a caller that makes
    /// keys of columns can verify a hint.
    hints: Hints,
    /// Snapshots below this CSN see versions that the index may not have.
    complete_from: AtomicU64,
    reuse: Reuse,
    spec_len: u32,
    spec: [u8; PRIMARY_SPEC_MAX],
}

/// After so many inserts by the processes of some slots it is seen whether there is room for hints.
const COUNTED_EVERY: u64 = 16;

/// The longest description of a primary index.
pub const PRIMARY_SPEC_MAX: usize = 128;

impl Primary {
    /// Creates an empty index that belongs to no table yet. `order`: see [`Index::create`]. `spec`:
    /// the platform's description of the keys. [`crate::Table::set_unique`] and
    /// [`crate::Table::replace_unique`] give the index to a table.
    pub fn create(
        e: &Engine,
        slot: SlotId,
        order: u32,
        reuse: Reuse,
        spec: &[u8],
    ) -> Result<&'static Primary, OutOfMemory> {
        assert!(spec.len() <= PRIMARY_SPEC_MAX);
        let p = e.region.alloc(slot as usize, size_of::<Primary>())?.cast::<Primary>();
        // SAFETY: INV-M1: fresh memory of that size, in which all-zero fields are valid.
        unsafe {
            p.as_ptr().write_bytes(0, 1);
            if let Err(err) = Index::init(&raw mut (*p.as_ptr()).index, e, slot, order) {
                e.region.free(slot as usize, p.cast());
                return Err(err);
            }
            (*p.as_ptr()).reuse = reuse;
            (*p.as_ptr()).spec_len = spec.len() as u32;
            (&mut (*p.as_ptr()).spec)[..spec.len()].copy_from_slice(spec);
            Ok(p.as_ref())
        }
    }

    /// The platform's description of the keys.
    pub fn spec(&self) -> &[u8] {
        &self.spec[..self.spec_len as usize]
    }
    /// Snapshots at this CSN or later find all rows that they see by their keys. 0: all snapshots
    /// do.
    pub fn complete_from(&self) -> Csn {
        self.complete_from.load(Ordering::SeqCst)
    }
    /// Sets the value of [`Primary::complete_from`].
    pub fn set_complete_from(&self, csn: Csn) {
        self.complete_from.store(csn, Ordering::SeqCst);
    }
    /// Which code reuses the numbers of dead records.
    pub fn reuse(&self) -> Reuse {
        self.reuse
    }
    /// The size in bytes, approximately.
    pub fn bytes(&self) -> u64 {
        self.index.bytes() + self.hints.bytes() + size_of::<Primary>() as u64
    }
    /// Does a record have this entry? The caller is pinned.
    pub fn has(&'static self, p: &dyn Platform, key: &[u8], no: u64) -> bool {
        let mut found = Vec::new();
        self.index.get(p, key, &mut found);
        found.contains(&no)
    }

    /// Adds the entry of a record, once in each life of the record. With a judge the result also
    /// says whether a record with the key is in the way; then the entry is added only if the judge
    /// wants that. If it fails or unwinds, the entry is not added.
    #[inline]
    pub(crate) fn enter(
        &self,
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        no: u64,
        key: &[u8],
        judge: Option<&mut Judge<'_>>,
    ) -> Result<Inserted, Error> {
        let hash = self.has_hint(key).then(|| Hash::of(prefix_of(key), key.len()));
        if let Some(hash) = hash {
            self.hints.announce(hash);
        }
        let done = self.index.insert_key(e, slot, p, key, no, judge)?;
        debug_assert!(done.added || done.taken, "a record has one entry");
        if let Some(hash) = hash.filter(|_| done.added) {
            // The count is in lines that other inserts write: it is looked at once in a while.
            let entries = if done.before.is_multiple_of(COUNTED_EVERY) { self.index.len() } else { 0 };
            self.hints.make_room(e, slot, Hints::need(entries, no));
            self.hints.put(hash, no, true);
        }
        Ok(done)
    }

    /// Prefetches what [`Primary::enter`] or the removal of this key will change. Decides nothing
    /// (INV-HINT).
    #[inline]
    pub fn announce(&self, key: &[u8]) {
        if self.has_hint(key) {
            self.hints.announce(Hash::of(prefix_of(key), key.len()));
        }
    }

    /// As [`Primary::enter`], while tables are loaded. Makes no hint, as the memory might then be
    /// missing for the rows of later tables; see [`Primary::offer_hints`].
    pub(crate) fn load(&self, e: &Engine, slot: SlotId, p: &dyn Platform, no: u64, key: &[u8]) -> Result<(), Error> {
        let added = self.index.insert(e, slot, p, key, no)?;
        debug_assert!(added, "a record has one entry");
        if self.has_hint(key) {
            self.hints.note_loaded(no);
        }
        Ok(())
    }

    /// Called when all tables are loaded: makes room for hints, which look-ups then fill. If memory
    /// is short there are none before the next insert.
    pub fn offer_hints(&self, e: &Engine, slot: SlotId) {
        self.hints.offer(e, slot, self.index.len());
    }

    /// Removes the entry of a record, as [`Index::remove`] does.
    pub(crate) fn remove(&self, e: &Engine, slot: SlotId, p: &dyn Platform, key: &[u8], no: u64) -> bool {
        if self.has_hint(key) {
            self.hints.forget(Hash::of(prefix_of(key), key.len()), no);
        }
        self.index.remove(e, slot, p, key, no)
    }

    /// Removes the entries of the first of these records, as [`Index::remove_some`] does.
    pub(crate) fn remove_some(&self, e: &Engine, slot: SlotId, p: &dyn Platform, all: &[(&[u8], u64)]) -> usize {
        let removed = self.index.remove_some(e, slot, p, all);
        for &(key, no) in &all[..removed] {
            if self.has_hint(key) {
                self.hints.forget(Hash::of(prefix_of(key), key.len()), no);
            }
        }
        removed
    }

    #[inline]
    fn has_hint(&self, key: &[u8]) -> bool {
        self.spec_len > 0 && key.len() <= INLINE && self.index.order() == 0
    }

    /// Returns the first result of `verify` for the records in the key's hints, without a search of
    /// the tree. A hint may be any number (INV-GUESS). `verify` checks that the record has a
    /// visible row with the key in its columns. `None` says nothing about the key. The caller is
    /// pinned.
    #[inline]
    pub fn find_by_hint<T>(&self, key: Short, verify: impl FnMut(u64) -> Option<T>) -> Option<T> {
        self.hints.find(key, verify)
    }

    /// Notes as a hint the record that the tree has found for a key. Replaces no other hint. The
    /// caller is pinned.
    #[inline]
    pub fn note_hint(&self, key: Short, no: u64) {
        self.hints.put(Hash::of_key(key), no, false);
    }

    /// Removes all entries at once.
    ///
    /// # Safety
    /// No other process uses the index.
    pub(crate) unsafe fn clear(&self, e: &Engine, slot: SlotId) {
        // SAFETY: INV-LINES, INV-OLC: by this function's contract there are no other users.
        unsafe {
            self.hints.free(e, slot);
            self.index.clear(e, slot);
        }
    }

    /// Frees all memory.
    ///
    /// # Safety
    /// No other process can reach the index (INV-RETIRE).
    pub unsafe fn destroy(&'static self, e: &Engine, slot: SlotId) {
        // SAFETY: INV-RETIRE: the contract of `destroy_some` is this function's own.
        unsafe { self.destroy_some(e, slot, &mut { usize::MAX }) };
    }

    /// Frees about `pieces` pieces of the index's memory, which are counted down. Returns true when
    /// all are freed.
    ///
    /// # Safety
    /// As for [`Primary::destroy`]. After the first call the index is used for nothing else.
    pub(crate) unsafe fn destroy_some(&'static self, e: &Engine, slot: SlotId, pieces: &mut usize) -> bool {
        // SAFETY: INV-RETIRE, INV-LINES: by this function's contract the index is unreachable.
        unsafe {
            self.hints.free(e, slot);
            if !self.index.destroy_some(e, slot, pieces) {
                return false;
            }
            e.region.free(slot as usize, NonNull::from(self).cast());
        }
        true
    }

    /// As `destroy`, but views may read its sizes until the grace period is over. The queue of
    /// retired memory has room.
    ///
    /// # Safety
    /// The index belongs to no table any more, and no other process is in the middle of using it.
    pub(crate) unsafe fn retire(&'static self, e: &Engine, slot: SlotId) {
        // SAFETY: INV-LINES, INV-RETIRE: by this function's contract there are no users of the
        // entries and hints. The struct itself is retired below.
        unsafe {
            self.hints.free(e, slot);
            self.index.destroy(e, slot, false);
        }
        RetireQueue::push(e, slot, NonNull::from(self).cast(), e.now());
    }
}
