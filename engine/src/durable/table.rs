//! What a permanent table has beside its records: dirty bits, homes of images, and a few words.
//!
//! **INV-BUSY**: The companion says that it is in a batch of a table, and then looks whether the
//! table is dropped. A process that drops the table says so first, and then waits until the
//! companion is in no batch. So after the wait no page of the table is written.
//!
//! **INV-NEW**: A table is *new* until the transaction that has made its storage has committed.
//! Only that transaction uses it, its writes are in no commit's record, and rounds pass it over.
//! Its content is written as a whole before the commit.
//!
//! **INV-LEAVING**: A table is *leaving* while a prepared transaction may still drop it. All that
//! was logged of it is in images before that, and nothing is logged of it meanwhile: only that
//! transaction may use it. So rounds pass it over, and its files may be removed at any moment.

use super::standby::Live;
use super::window::{Dirty, Home, Place};
use super::{Birth, Lsn, Storage};
use crate::csn::{Csn, SlotId};
use crate::faults::{self, Fault};
use crate::memory::{OutOfMemory, TidDirectory};
use crate::primitive::{model_fence, AtomicU32, AtomicU64, Ordering};
use crate::shared::Engine;
use std::ptr::NonNull;

mod look;
#[cfg(all(test, not(loom)))]
mod tests;

pub use look::{Found, Logged, Look};

/// Records whose dirty bits lie in one chunk.
const CHUNK: u64 = TidDirectory::CHUNK as u64 * 64;

/// Dirty bits that are to be set, of one record after the other: those of a word at once. Dropped,
/// all of them are set.
#[derive(Default)]
pub struct Bits<'a> {
    word: Option<(&'a Durable, u64)>,
    bits: u64,
}

impl<'a> Bits<'a> {
    /// That of record `n` of a table.
    #[inline]
    pub fn add(&mut self, durable: &'a Durable, n: u64) {
        if !self.word.is_some_and(|(of, word)| std::ptr::eq(of, durable) && word == n / 64) {
            self.set();
            self.word = Some((durable, n / 64));
        }
        self.bits |= 1 << (n % 64);
    }
    fn set(&mut self) {
        if let Some((durable, word)) = self.word.take() {
            durable.set_dirty_word(word, std::mem::take(&mut self.bits));
        }
    }
}

impl Drop for Bits<'_> {
    fn drop(&mut self) {
        self.set();
    }
}

/// What a permanent table has beside its records.
#[repr(C)]
pub struct Durable {
    /// 64 records to a word.
    dirty: TidDirectory,
    /// One home a record.
    homes: TidDirectory,
    /// 1: some bit is set, or the meta page is to be written.
    flag: AtomicU32,
    /// Record numbers below it may be in indexes (INV-HIGH).
    high: AtomicU32,
    words: Words,
    /// The journal horizon: journal pages that end below it do not count.
    horizon: AtomicU64,
    /// What the companion has told last.
    live_bytes: AtomicU64,
    rows: AtomicU64,
    blocks: AtomicU64,
    /// The records that a round has found dirty since the table was made.
    imaged: AtomicU64,
    /// 1: a process waits for a round of this table.
    wanted: AtomicU64,
    /// On a primary: the rows of records without a version were deleted up to it (INV-UNLOADED). 0:
    /// before this life.
    unloaded: AtomicU64,
    /// The birth of the storage (INV-BIRTH).
    birth: [AtomicU64; 2],
    /// What a standby knows of its copy.
    pub live: Live,
}

/// The words by which a drop and a batch meet (INV-BUSY). All-zero: the table is in use, and the
/// companion is elsewhere.
#[derive(Default)]
#[repr(C)]
pub struct Words {
    state: AtomicU32,
    busy: AtomicU32,
}

const NORMAL: u32 = 0;
const NEW: u32 = 1;
const DROPPED: u32 = 2;
const LEAVING: u32 = 3;

/// The companion is in a batch of the table until this is dropped.
pub struct Busy<'a>(&'a Words);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.store(0, Ordering::SeqCst);
    }
}

impl Words {
    /// The companion begins a batch. `None`: the table is dropped, leaving, or new.
    pub fn begin_batch(&self) -> Option<Busy<'_>> {
        let late = !faults::on(Fault::LooksBeforeBusy) || self.state.load(Ordering::SeqCst) == NORMAL;
        self.busy.store(1, Ordering::SeqCst);
        let busy = Busy(self);
        model_fence();
        (late && (faults::on(Fault::LooksBeforeBusy) || self.state.load(Ordering::SeqCst) == NORMAL)).then_some(busy)
    }
    /// The table is dropped. Waits until the companion is in no batch of it. `pause` is called
    /// between two looks, with their number.
    pub fn mark_dropped(&self, pause: impl FnMut(u32)) {
        self.mark(DROPPED, pause);
    }
    /// The table is leaving (INV-LEAVING): [`Words::mark_dropped`] or [`Words::stays`] follows.
    pub fn mark_leaving(&self, pause: impl FnMut(u32)) {
        self.mark(LEAVING, pause);
    }
    /// A table that was leaving stays.
    pub fn stays(&self) {
        let _ = self.state.compare_exchange(LEAVING, NORMAL, Ordering::SeqCst, Ordering::SeqCst);
    }
    fn mark(&self, state: u32, mut pause: impl FnMut(u32)) {
        self.state.store(state, Ordering::SeqCst);
        model_fence();
        let mut n = 0;
        while self.busy.load(Ordering::SeqCst) != 0 {
            pause(n);
            n = n.saturating_add(1);
        }
    }
}

/// What the companion has told of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The bytes of live entries in the main fork.
    pub live_bytes: u64,
    /// The live entries.
    pub rows: u64,
    /// The blocks of the main fork.
    pub blocks: u64,
    /// The records that rounds have imaged.
    pub imaged: u64,
}

/// The dirty bits of a range of records, which begins at `first`.
#[derive(Clone, Copy)]
pub struct DirtyChunk {
    /// The number of the record that has the number 0 in `dirty`.
    pub first: u64,
    /// The bits.
    pub dirty: Dirty<'static>,
}

impl Durable {
    /// Makes one with room for the first `len` records.
    pub(crate) fn create(e: &Engine, slot: SlotId, len: u64, is_new: bool) -> Result<&'static Durable, OutOfMemory> {
        let p = e.region.alloc(slot as usize, size_of::<Durable>())?.cast::<Durable>();
        // SAFETY: INV-M1: fresh memory of that size, in which all-zero fields are valid. INV-DIR:
        // the directories are made before the first use.
        let durable: &'static Durable = unsafe {
            p.as_ptr().write_bytes(0, 1);
            TidDirectory::init(&raw mut (*p.as_ptr()).dirty, size_of::<AtomicU64>() as u32);
            TidDirectory::init(&raw mut (*p.as_ptr()).homes, size_of::<Home>() as u32);
            p.as_ref()
        };
        durable.words.state.store(if is_new { NEW } else { NORMAL }, Ordering::SeqCst);
        let chunk = TidDirectory::CHUNK as u64;
        for n in (0..len.div_ceil(chunk)).map(|i| i * chunk) {
            if durable.ensure(e, slot, n).is_err() {
                // SAFETY: INV-TABLE: nothing else refers to it yet.
                unsafe { durable.destroy(e, slot) };
                return Err(OutOfMemory);
            }
        }
        Ok(durable)
    }
    /// A process is about to ask for a round of this table.
    pub fn want_round(&self) {
        self.wanted.store(1, Ordering::SeqCst);
    }
    /// Has a process asked for a round of this table since the last call?
    pub fn take_wanted(&self) -> bool {
        self.wanted.swap(0, Ordering::SeqCst) != 0
    }
    /// Makes room for record `n`.
    pub(crate) fn ensure(&self, e: &Engine, slot: SlotId, n: u64) -> Result<(), OutOfMemory> {
        self.dirty.ensure(e.region, slot as usize, n / 64)?;
        self.homes.ensure(e.region, slot as usize, n).map(drop)
    }
    /// Forgets all records.
    ///
    /// # Safety
    /// No other process can reach the table.
    pub(crate) unsafe fn clear(&self, e: &Engine, slot: SlotId) {
        // SAFETY: INV-DIR: the contract of `clear` is this function's own.
        unsafe {
            self.dirty.clear(e.region, slot as usize);
            self.homes.clear(e.region, slot as usize);
        }
        self.flag.store(0, Ordering::SeqCst);
        self.high.store(0, Ordering::SeqCst);
    }
    /// Frees its memory.
    ///
    /// # Safety
    /// No other process can reach the table.
    pub(crate) unsafe fn destroy(&'static self, e: &Engine, slot: SlotId) {
        // SAFETY: INV-TABLE: by this function's contract it has no other users. It is a piece of
        // the region (INV-M1).
        unsafe {
            self.clear(e, slot);
            e.region.free(slot as usize, NonNull::from(self).cast());
        }
    }

    /// Was the storage made by a transaction that has not committed (INV-NEW)?
    pub fn is_new(&self) -> bool {
        self.words.state.load(Ordering::SeqCst) == NEW
    }
    /// The transaction that has made the storage commits: the table is new no more.
    pub fn begins(&self) {
        let _ = self.words.state.compare_exchange(NEW, NORMAL, Ordering::SeqCst, Ordering::SeqCst);
    }
    /// May a prepared transaction drop the storage (INV-LEAVING)?
    pub fn is_leaving(&self) -> bool {
        self.words.state.load(Ordering::SeqCst) == LEAVING
    }
    /// Is the storage dropped?
    pub fn is_dropped(&self) -> bool {
        self.words.state.load(Ordering::SeqCst) == DROPPED
    }
    /// The words by which a drop and a batch meet.
    pub fn words(&self) -> &Words {
        &self.words
    }

    /// Sets a record's dirty bit, and then the table's flag (INV-DIRTY).
    pub fn set_dirty(&self, n: u64) {
        if let Some(dirty) = self.chunk(n / CHUNK) {
            dirty.set((n % CHUNK) as u32);
        }
    }
    /// Sets dirty bits of the 64 records from number `64 * word` on, then the flag (INV-DIRTY).
    fn set_dirty_word(&self, word: u64, bits: u64) {
        if let Some(dirty) = self.chunk(word / TidDirectory::CHUNK as u64) {
            dirty.set_word((word % TidDirectory::CHUNK as u64) as usize, bits);
        }
    }
    /// Is a record's dirty bit set?
    pub fn is_dirty(&self, n: u64) -> bool {
        self.chunk(n / CHUNK).is_some_and(|dirty| dirty.is_set((n % CHUNK) as u32))
    }
    fn chunk(&self, chunk: u64) -> Option<Dirty<'_>> {
        let first = self.dirty.get(chunk * TidDirectory::CHUNK as u64)?.cast::<AtomicU64>();
        // SAFETY: INV-D1: a published chunk has CHUNK items, here words, that were zeroed before.
        let words = unsafe { std::slice::from_raw_parts(first.as_ptr(), TidDirectory::CHUNK as usize) };
        Some(Dirty::new(&self.flag, words))
    }
    /// The dirty bits of all records, by chunks. The caller is pinned, or the table is not freed
    /// meanwhile for another reason (INV-TABLE).
    pub fn chunks(&'static self) -> impl Iterator<Item = DirtyChunk> {
        let all = 0..self.dirty.chunks() as u64;
        all.filter_map(|chunk| Some(DirtyChunk { first: chunk * CHUNK, dirty: self.chunk(chunk)? }))
    }
    /// The number of dirty records. The caller keeps the table, as for [`Durable::chunks`].
    pub fn dirty_records(&'static self) -> u64 {
        self.chunks().map(|chunk| chunk.dirty.count()).sum()
    }
    /// Has the flag been set since the last round?
    pub fn is_flagged(&self) -> bool {
        self.flag.load(Ordering::SeqCst) != 0
    }
    /// A round begins with the table: clears the flag, and says whether it was set.
    pub fn take_flag(&self) -> bool {
        Dirty::new(&self.flag, &[]).take_flag()
    }
    /// The meta page is to be written, or bits were set again.
    pub fn set_flag(&self) {
        self.flag.store(1, Ordering::SeqCst);
    }

    /// The rows of records without a version were deleted up to this CSN. 0: before this life.
    pub fn unloaded(&self) -> Csn {
        self.unloaded.load(Ordering::Relaxed)
    }
    /// The same. Called before other processes know the table.
    pub fn set_unloaded(&self, csn: Csn) {
        self.unloaded.store(csn, Ordering::Relaxed);
    }

    /// Record numbers below it may be in indexes.
    pub fn high(&self) -> u32 {
        self.high.load(Ordering::SeqCst)
    }
    /// Record numbers below `upto` may be in indexes, as a record in WAL says. Then the flag: the
    /// meta page is to be written.
    pub fn raise_high(&self, upto: u32) {
        self.high.fetch_max(upto, Ordering::SeqCst);
        self.set_flag();
    }

    /// The journal horizon of the meta page is at least this, from now on. Returns the horizon.
    /// Called by loaders, and by the companion, whose rounds must not take it back.
    pub fn raise_horizon(&self, to: Lsn) -> Lsn {
        self.horizon.fetch_max(to, Ordering::SeqCst).max(to)
    }

    /// The birth of the storage, for meta pages.
    pub fn birth(&self) -> Birth {
        let [csn, at] = [0, 1].map(|n: usize| self.birth[n].load(Ordering::SeqCst));
        Birth { csn, at }
    }
    /// The storage is born, or its meta page says so. No other process writes it meanwhile.
    pub fn set_birth(&self, birth: Birth) {
        self.birth[0].store(birth.csn, Ordering::SeqCst);
        self.birth[1].store(birth.at, Ordering::SeqCst);
    }

    /// The home of a record. `None`: the record does not exist.
    pub fn home(&self, n: u64) -> Option<&Home> {
        // SAFETY: INV-DIR: chunks have stable addresses, and zeroed memory is no home.
        self.homes.get(n).map(|p| unsafe { p.cast::<Home>().as_ref() })
    }
    /// The record's image is here, from now on. Says where the old one was. Called by loaders and
    /// by the companion.
    pub fn set_home(&self, n: u64, place: Option<Place>) -> Option<Place> {
        self.home(n)?.move_to(place)
    }

    /// What the companion has told last.
    pub fn counts(&self) -> Counts {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Counts {
            live_bytes: get(&self.live_bytes),
            rows: get(&self.rows),
            blocks: get(&self.blocks),
            imaged: get(&self.imaged),
        }
    }
    /// The companion tells.
    pub fn set_counts(&self, counts: Counts) {
        self.live_bytes.store(counts.live_bytes, Ordering::Relaxed);
        self.rows.store(counts.rows, Ordering::Relaxed);
        self.blocks.store(counts.blocks, Ordering::Relaxed);
        self.imaged.store(counts.imaged, Ordering::Relaxed);
    }
    /// The bytes of its own.
    pub fn bytes(&self) -> u64 {
        let chunk = TidDirectory::CHUNK as u64;
        size_of::<Durable>() as u64 + self.dirty.chunks() as u64 * chunk * 8 + self.homes.chunks() as u64 * chunk * 4
    }
    /// The same, of a table with so many records.
    pub fn bytes_of(records: u64) -> u64 {
        let chunk = TidDirectory::CHUNK as u64;
        let whole = |n: u64| n.next_multiple_of(chunk);
        size_of::<Durable>() as u64 + whole(records.div_ceil(64)) * 8 + whole(records) * size_of::<Home>() as u64
    }
}

impl From<[u32; 4]> for Storage {
    fn from(key: [u32; 4]) -> Storage {
        Storage { tablespace: key[0], database: key[1], number: key[2] }
    }
}

impl From<Storage> for [u32; 4] {
    fn from(s: Storage) -> [u32; 4] {
        [s.tablespace, s.database, s.number, 0]
    }
}
