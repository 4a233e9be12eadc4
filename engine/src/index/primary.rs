//! A table's primary index: a tree whose entries come with records and vanish with them (`graves.rs`).

use super::hints::{Hash, Hints};
use super::insert::Added;
use super::key::{prefix_of, INLINE};
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

/// Who gives a dead record's number back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reuse {
    /// No other index points to records: the number goes with the entry.
    AtOnce = 0,
    /// Other indexes do: VACUUM, which finds the record dead once its entry is gone.
    Vacuum = 1,
}

/// The primary index of a table.
#[repr(C)]
pub struct Primary {
    /// The entries.
    pub index: Index,
    /// Of the records that short keys have, if the index has a description: who makes keys of columns can prove a guess.
    hints: Hints,
    /// Snapshots below see versions that it may not have.
    complete_from: AtomicU64,
    reuse: Reuse,
    spec_len: u32,
    spec: [u8; PRIMARY_SPEC_MAX],
}

/// Longest description of a primary index.
pub const PRIMARY_SPEC_MAX: usize = 128;

impl Primary {
    /// An empty index that belongs to no table yet. `order`: see [`Index::create`]. `spec`: the platform's description
    /// of the keys. [`crate::Table::set_primary`] and [`crate::Table::replace_primary`] give it to a table.
    pub fn create(
        e: &Engine,
        slot: SlotId,
        order: u32,
        reuse: Reuse,
        spec: &[u8],
    ) -> Result<&'static Primary, OutOfMemory> {
        assert!(spec.len() <= PRIMARY_SPEC_MAX);
        let p = e.region.alloc(slot as usize, size_of::<Primary>())?.cast::<Primary>();
        // SAFETY: fresh memory of that size; all-zero is valid for what is not set here.
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
    /// Snapshots at this CSN or later find by their keys all rows that they see; 0: all do.
    pub fn complete_from(&self) -> Csn {
        self.complete_from.load(Ordering::SeqCst)
    }
    /// See [`Primary::complete_from`].
    pub fn set_complete_from(&self, csn: Csn) {
        self.complete_from.store(csn, Ordering::SeqCst);
    }
    /// Who gives numbers back.
    pub fn reuse(&self) -> Reuse {
        self.reuse
    }
    /// Bytes, about.
    pub fn bytes(&self) -> u64 {
        self.index.bytes() + self.hints.bytes() + size_of::<Primary>() as u64
    }
    /// Has a record this entry? The caller is pinned.
    pub fn has(&'static self, p: &dyn Platform, key: &[u8], no: u64) -> bool {
        let mut found = Vec::new();
        self.index.get(p, key, &mut found);
        found.contains(&no)
    }

    /// Adds the entry of a record. Once for each life of a record. If it fails or unwinds, the entry is not there.
    /// True: it was put behind all others.
    pub fn add(&self, e: &Engine, slot: SlotId, p: &dyn Platform, no: u64, key: &[u8]) -> Result<bool, Error> {
        let hash = self.has_hint(key).then(|| Hash::of(prefix_of(key), key.len()));
        if let Some(hash) = hash {
            self.hints.announce(hash);
        }
        let added = self.index.insert_key(e, slot, p, key, no)?;
        debug_assert!(added != Added::Not, "a record has one entry");
        if let Some(hash) = hash {
            self.hints.make_room(e, slot, Hints::need(self.index.len(), no));
            self.hints.put(hash, no, true);
        }
        Ok(added == Added::Last)
    }

    /// [`Primary::add`] while tables are loaded: no guess is made, whose memory might then be missing for the rows of tables
    /// that come later; see [`Primary::offer_guesses`].
    pub(crate) fn load(&self, e: &Engine, slot: SlotId, p: &dyn Platform, no: u64, key: &[u8]) -> Result<(), Error> {
        let added = self.index.insert_key(e, slot, p, key, no)?;
        debug_assert!(added != Added::Not, "a record has one entry");
        if self.has_hint(key) {
            self.hints.note_loaded(no);
        }
        Ok(())
    }

    /// All tables are loaded: makes room for guesses of this one's keys, which look-ups fill. Where memory is short there
    /// are none before the next insert.
    pub fn offer_guesses(&self, e: &Engine, slot: SlotId) {
        self.hints.offer(e, slot, self.index.len());
    }

    /// Removes the entry of a record, as [`Index::remove`].
    pub(crate) fn remove(&self, e: &Engine, slot: SlotId, p: &dyn Platform, key: &[u8], no: u64) -> bool {
        if self.has_hint(key) {
            self.hints.forget(Hash::of(prefix_of(key), key.len()), no);
        }
        self.index.remove(e, slot, p, key, no)
    }

    #[inline]
    fn has_hint(&self, key: &[u8]) -> bool {
        self.spec_len > 0 && key.len() <= INLINE && self.index.order() == 0
    }

    /// The first that `proven` makes of one of the records that the key may have, without a search. INV-GUESS: they may be
    /// any numbers. `proven` sees to it that the record has a row that is visible, and the key in the row's columns. `None`
    /// tells nothing. The caller is pinned.
    #[inline]
    pub fn guess<T>(&self, key: Short, proven: impl FnMut(u64) -> Option<T>) -> Option<T> {
        self.hints.find(key, proven)
    }

    /// The tree has told that a key that [`Primary::guess`] did not find has this record. Takes nobody's place. The caller
    /// is pinned.
    #[inline]
    pub fn note_guess(&self, key: Short, no: u64) {
        self.hints.put(Hash::of_key(key), no, false);
    }

    /// Removes all entries, at once.
    ///
    /// # Safety
    /// Nobody else uses the index.
    pub(crate) unsafe fn clear(&self, e: &Engine, slot: SlotId) {
        // SAFETY: the caller's promise.
        unsafe {
            self.hints.free(e, slot);
            self.index.clear(e, slot);
        }
    }

    /// Frees all memory.
    ///
    /// # Safety
    /// Nobody else can reach it.
    pub unsafe fn destroy(&'static self, e: &Engine, slot: SlotId) {
        // SAFETY: the caller's promise.
        unsafe { self.destroy_some(e, slot, &mut { usize::MAX }) };
    }

    /// Frees about so many pieces of its memory, which are counted down; true if it is gone.
    ///
    /// # Safety
    /// As for [`Primary::destroy`]; nobody uses it for anything else any more.
    pub(crate) unsafe fn destroy_some(&'static self, e: &Engine, slot: SlotId, pieces: &mut usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            self.hints.free(e, slot);
            if !self.index.destroy_some(e, slot, pieces) {
                return false;
            }
            e.region.free(slot as usize, NonNull::from(self).cast());
        }
        true
    }

    /// As `destroy`, but views may look at its sizes until the grace period is over. The queue of retired memory has
    /// room.
    ///
    /// # Safety
    /// It is no table's any more, and nobody else was in the middle of using it.
    pub(crate) unsafe fn retire(&'static self, e: &Engine, slot: SlotId) {
        // SAFETY: the caller's promise.
        unsafe {
            self.hints.free(e, slot);
            self.index.destroy(e, slot, false);
        }
        RetireQueue::push(e, slot, NonNull::from(self).cast(), e.now());
    }
}
