//! A table's primary index: its entries come with records and vanish with them.

use super::key::Entry;
use super::Index;
use crate::csn::{Csn, SlotId};
use crate::error::Error;
use crate::memory::{OutOfMemory, TidDirectory};
use crate::platform::Platform;
use crate::primitive::{relax, AtomicU32, AtomicU64, Ordering};
use crate::retire::RetireQueue;
use crate::shared::Engine;
use crate::table::Table;
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

const NO_KEY: u32 = 0;
/// The key's memory is this home's: the entry is not in the tree (yet).
const KEY: u32 = 1;
/// The entry is in the tree.
const LINKED: u32 = 2;

/// What the index knows of a record. All zero: nothing.
///
/// INV-HOME: only the record's inserter writes the key, only whoever has taken the record out of the
/// list of graves takes it away, and a record is in that list at most once for each of its lives.
#[repr(C)]
struct Home {
    prefix: AtomicU64,
    blob: AtomicU64,
    /// In the list of graves: the entry may go when every pin is larger.
    csn: AtomicU64,
    /// Next in the list of graves, record number + 1.
    next: AtomicU32,
    state: AtomicU32,
}
const _: () = assert!(cfg!(loom) || size_of::<Home>() == 32);

/// The primary index of a table, and the list of dead records whose entries wait to be removed.
#[repr(C)]
pub struct Primary {
    /// The entries.
    pub index: Index,
    homes: TidDirectory,
    /// Snapshots below see versions that it may not have.
    complete_from: AtomicU64,
    reuse: Reuse,
    /// Latch of the list.
    latch: AtomicU32,
    /// First and last in the list (number + 1), oldest CSN first.
    first: AtomicU32,
    last: AtomicU32,
    /// Length of the list.
    graves: AtomicU64,
    sweeps: AtomicU32,
    spec_len: u32,
    spec: [u8; PRIMARY_SPEC_MAX],
}

/// Longest description of a primary index.
pub const PRIMARY_SPEC_MAX: usize = 128;

/// A sweep looks at all pins only so often.
const SWEEPS_A_LOOK: u32 = 16;

/// A dead record that was taken out of the list; put back if removing its entry unwinds.
struct Grave<'a> {
    primary: &'a Primary,
    no: u64,
    csn: Csn,
    done: bool,
}

impl Drop for Grave<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.primary.bury(self.no, self.csn);
        }
    }
}

impl Primary {
    /// An empty index that belongs to no table yet. `spec`: the platform's description of the keys.
    pub(crate) fn create(
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
            TidDirectory::init(&raw mut (*p.as_ptr()).homes, size_of::<Home>() as u32);
            Ok(p.as_ref())
        }
    }

    /// Room for record `n`.
    pub(crate) fn ensure(&self, e: &Engine, slot: SlotId, n: u64) -> Result<(), OutOfMemory> {
        self.homes.ensure(e.region, slot as usize, n).map(drop)
    }

    fn home(&self, n: u64) -> &'static Home {
        let p = self.homes.get(n).expect("INV-HOME: made before the record");
        // SAFETY: INV-DIR: chunks have stable addresses, and zero is a valid home.
        unsafe { p.cast::<Home>().as_ref() }
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
    /// Dead records whose entries wait to be removed.
    pub fn graves(&self) -> u64 {
        self.graves.load(Ordering::Relaxed)
    }
    /// Bytes, about.
    pub fn bytes(&self) -> u64 {
        let homes = self.homes.chunks() as u64 * TidDirectory::CHUNK as u64 * size_of::<Home>() as u64;
        self.index.bytes() + homes + size_of::<Primary>() as u64
    }
    /// Has the record an entry, or may it have one?
    pub fn has_entry(&self, n: u64) -> bool {
        self.home(n).state.load(Ordering::SeqCst) != NO_KEY
    }

    /// The key of a record that has an entry; the caller is pinned, and knows that the record lives.
    pub fn key_of(&self, n: u64) -> Option<super::Key<'static>> {
        let home = self.home(n);
        (home.state.load(Ordering::Acquire) == LINKED).then(|| home.entry(n).key())
    }

    /// Adds the entry of a record: its inserter's, or of a table that is being loaded or gets the index. Once for each
    /// life of a record. If it fails or unwinds, the entry may be missing: the record or the index must die.
    pub fn add(&self, e: &Engine, slot: SlotId, p: &dyn Platform, no: u64, key: &[u8]) -> Result<(), Error> {
        let home = self.home(no);
        if home.state.load(Ordering::Relaxed) == NO_KEY {
            let entry = Entry::new(e.region, slot as usize, key, no as u32)?;
            home.prefix.store(entry.prefix, Ordering::Relaxed);
            home.blob.store(entry.blob, Ordering::Relaxed);
            home.state.store(KEY, Ordering::Release);
        }
        // Else the same key once more: memory was short.
        let added = self.index.insert_entry(e, slot, p, home.entry(no))?;
        debug_assert!(added, "a record has one entry");
        home.state.store(LINKED, Ordering::Release);
        Ok(())
    }

    fn latched<R>(&self, f: impl FnOnce() -> R) -> R {
        let mut n = 0;
        while self.latch.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            relax(n);
            n += 1;
        }
        let r = f();
        self.latch.store(0, Ordering::SeqCst);
        r
    }

    /// A record died: its entry goes when every pin is larger than `csn`; 0: at once. Neither
    /// allocates nor fails.
    pub(crate) fn bury(&self, no: u64, csn: Csn) {
        let home = self.home(no);
        if self.reuse == Reuse::Vacuum && home.state.load(Ordering::Relaxed) == NO_KEY {
            return;
        }
        let me = no as u32 + 1;
        home.csn.store(csn, Ordering::Relaxed);
        self.latched(|| {
            let first = self.first.load(Ordering::Relaxed);
            if first == 0 {
                home.next.store(0, Ordering::Relaxed);
                self.first.store(me, Ordering::Relaxed);
                self.last.store(me, Ordering::Relaxed);
            } else if csn == 0 {
                home.next.store(first, Ordering::Relaxed);
                self.first.store(me, Ordering::Relaxed);
            } else {
                home.next.store(0, Ordering::Relaxed);
                let last = self.last.swap(me, Ordering::Relaxed);
                self.home(last as u64 - 1).next.store(me, Ordering::Relaxed);
            }
        });
        self.graves.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the first of the list if no pin holds it.
    fn exhume(&self, min_pin: Csn) -> Option<Grave<'_>> {
        let found = self.latched(|| {
            let no = (self.first.load(Ordering::Relaxed) as u64).checked_sub(1)?;
            let home = self.home(no);
            let csn = home.csn.load(Ordering::Relaxed);
            if csn >= min_pin {
                return None;
            }
            self.first.store(home.next.load(Ordering::Relaxed), Ordering::Relaxed);
            Some((no, csn))
        });
        let (no, csn) = found?;
        self.graves.fetch_sub(1, Ordering::Relaxed);
        Some(Grave { primary: self, no, csn, done: false })
    }

    /// Removes entries of dead records, `budget` at most, and with [`Reuse::AtOnce`] the records.
    /// Comparisons may unwind, then nothing is lost. The caller is pinned, and has room in its queue of
    /// retired memory, of which it owes a part: what is beyond, and [`Primary::ROOM`], may be used.
    pub(crate) fn sweep(
        &self,
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        table: &Table,
        owed: u64,
        budget: usize,
    ) -> usize {
        let mut min_pin = e.shared.min_pin.0.load(Ordering::SeqCst);
        if self.sweeps.fetch_add(1, Ordering::Relaxed).is_multiple_of(SWEEPS_A_LOOK) {
            min_pin = e.refresh_min_pin(p);
        }
        let mut removed = 0;
        for _ in 0..budget {
            if RetireQueue::room(e, slot) < owed + Self::ROOM {
                break;
            }
            let Some(mut grave) = self.exhume(min_pin) else { break };
            let rec = table.record(grave.no).expect("it was used");
            if !(rec.lock.is_free() && table.is_dead(rec, min_pin)) {
                // Somebody who found it by its entry has it locked: to the end of the list.
                grave.csn = grave.csn.max(1);
                continue;
            }
            self.remove(e, slot, p, grave.no);
            grave.done = true;
            removed += 1;
            if self.reuse == Reuse::AtOnce {
                let tombstone = NonNull::new(rec.head());
                table.give_back(grave.no, e.now());
                if let Some(v) = tombstone {
                    RetireQueue::push(e, slot, v.cast(), e.now());
                }
                table.dead.fetch_sub(1, Ordering::Relaxed);
            }
        }
        removed
    }

    /// Room in the queue of retired memory that a sweep needs.
    pub const ROOM: u64 = Index::ROOM + 2;

    /// Removes the entry of a record that is in no list.
    fn remove(&self, e: &Engine, slot: SlotId, p: &dyn Platform, no: u64) {
        let home = self.home(no);
        let entry = home.entry(no);
        match home.state.load(Ordering::Acquire) {
            LINKED => {
                let removed = self.index.remove(e, slot, p, &entry.key(), no);
                debug_assert!(removed, "a linked entry is in the tree");
            }
            KEY => {
                // A comparison unwound before the entry was in the tree.
                if let Some(blob) = entry.memory() {
                    RetireQueue::push(e, slot, blob, e.now());
                }
            }
            _ => {}
        }
        home.state.store(NO_KEY, Ordering::SeqCst);
    }

    /// Frees the memory of keys that are not in the tree.
    ///
    /// # Safety
    /// Nobody else uses the table.
    unsafe fn free_homes(&self, e: &Engine, slot: SlotId, records: u64) {
        for no in (0..records).filter(|&no| self.homes.get(no).is_some()) {
            let home = self.home(no);
            if home.state.load(Ordering::Relaxed) == KEY {
                if let Some(blob) = home.entry(no).memory() {
                    // SAFETY: the caller's promise; KEY says that the tree does not own it.
                    unsafe { e.region.free(slot as usize, blob) };
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.homes.clear(e.region, slot as usize) };
    }

    /// Frees all memory.
    ///
    /// # Safety
    /// Nobody else can reach it. `records`: how many numbers the table has used.
    pub(crate) unsafe fn destroy(&'static self, e: &Engine, slot: SlotId, records: u64) {
        // SAFETY: the caller's promise.
        unsafe {
            self.free_homes(e, slot, records);
            self.index.destroy(e, slot, false);
            e.region.free(slot as usize, NonNull::from(self).cast());
        }
    }

    /// As `destroy`, but views may look at its sizes until the grace period is over. The queue of retired memory has
    /// room.
    ///
    /// # Safety
    /// It is no table's any more, and nobody else was in the middle of using it.
    pub(crate) unsafe fn retire(&'static self, e: &Engine, slot: SlotId, records: u64) {
        // SAFETY: the caller's promise.
        unsafe {
            self.free_homes(e, slot, records);
            self.index.destroy(e, slot, false);
        }
        RetireQueue::push(e, slot, NonNull::from(self).cast(), e.now());
    }

    /// Forgets all entries.
    ///
    /// # Safety
    /// As in `destroy`.
    pub(crate) unsafe fn clear(&self, e: &Engine, slot: SlotId, records: u64) {
        // SAFETY: the caller's promise.
        unsafe {
            self.free_homes(e, slot, records);
            self.index.clear(e, slot);
        }
        self.first.store(0, Ordering::Relaxed);
        self.graves.store(0, Ordering::Relaxed);
    }
}

impl Home {
    fn entry(&self, no: u64) -> Entry {
        Entry {
            prefix: self.prefix.load(Ordering::Relaxed),
            blob: self.blob.load(Ordering::Relaxed),
            record: no as u32,
        }
    }
}
