//! A table: records by number, the partition map, free records.
//!
//! **INV-TABLE**: A dropped table is freed when every pin is larger than the clock's value at its
//! drop. It is freed in slices: a process that frees a slice has taken the table off the list of
//! dropped tables, and puts it back if something is left (`Table::free_dropped_slice`). A
//! transaction that touches a table holds a pin, or the platform's lock of the table. The abort of
//! a subtransaction gives up that lock; from then on the transaction holds on to its pin, or has
//! forgotten what it touched (`Txn::abort_sub`).

pub mod apply;
mod changing;
mod load;
mod numbers;

use crate::csn::{Csn, SlotId};
use crate::durable::Durable;
use crate::error::Error;
use crate::index::{DeadEntries, Primary, Reuse};
use crate::memory::{Latch, OutOfMemory, TidDirectory};
use crate::name::Name;
use crate::partition::{Partition, PartitionMap, Together, SPEC_MAX};
use crate::primitive::{relax, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::protocol::{Policy, ProtocolSet};
use crate::range::TableRanges;
use crate::record::{Record, INDEXES, REC_DEAD, REC_USED, REC_VACUUM};
#[cfg(not(loom))]
use crate::shared::LINE;
use crate::shared::{Engine, NextLine};
#[cfg(not(loom))]
use std::mem::offset_of;
use std::ptr::NonNull;

pub use changing::Changing;
pub use numbers::Run;

/// A table in the shared region. Words that inserts and VACUUM write share no cache line with words
/// that each access reads.
#[repr(C)]
pub struct Table {
    /// Unique in this incarnation of the shared block.
    pub id: u64,
    /// The platform's identifier of the storage. For PostgreSQL: tablespace, database, relation
    /// file.
    pub key: [u32; 4],
    map: AtomicPtr<PartitionMap>,
    /// The primary index, if there is one.
    primary: AtomicPtr<Primary>,
    /// The other indexes whose entries come with records, from number 1 on.
    others: [AtomicPtr<Primary>; INDEXES - 1],
    /// How many times one of them was given, replaced or taken away.
    given_indexes: AtomicU64,
    /// What a permanent table has beside its records.
    durable: AtomicPtr<Durable>,
    /// Do transactions look at some columns of its rows alone?
    looked_at: AtomicU32,
    /// A word for the platform. In PostgreSQL: is a warning due that the table starts empty?
    pub note: AtomicU32,
    /// The logical ranges of its indexes.
    pub(crate) ranged: TableRanges,
    /// The columns that updates in place change.
    pub changing: Changing,
    records: TidDirectory,
    /// Changes of indexes that can still be undone.
    changes: AtomicU32,
    /// A word for the platform. In PostgreSQL: does a prepared transaction keep a change of the
    /// table?
    pub kept: AtomicU32,
    /// A word for the platform. In PostgreSQL: what prepared transactions of before the start kept
    /// of the table when it was loaded.
    pub recovered: AtomicU32,
    /// The next dropped table.
    pub(crate) next_dropped: AtomicPtr<Table>,
    pub(crate) dropped_at: AtomicU64,
    /// A name for messages, if the platform has given one.
    pub name: Name,

    _written_by_inserts: NextLine,
    /// Record numbers below it exist: all that were ever used, and those in runs (INV-RUN).
    next: AtomicU64,
    /// The latch of the lists of free records.
    latch: Latch,
    /// The first free record (number + 1).
    free: AtomicU32,
    /// The first record that waits for the grace period of `limbo_csn`. No index entries point to
    /// these records.
    limbo: AtomicU32,
    /// The first record that was freed since. These become the next `limbo`.
    given: AtomicU32,
    limbo_csn: AtomicU64,
    given_csn: AtomicU64,
    /// The approximate number of records that VACUUM has not freed yet: their insert was aborted or
    /// their row is deleted.
    pub dead: AtomicU64,

    _written_by_deletes: NextLine,
    /// Dead records whose entries wait to be removed from the indexes.
    pub(crate) dead_entries: DeadEntries,

    _written_by_samples: NextLine,
    /// What the rows of one transaction have in common.
    pub together: Together,
}
#[cfg(not(loom))]
const _: () = assert!(
    offset_of!(Table, next).is_multiple_of(LINE)
        && offset_of!(Table, dead) < offset_of!(Table, next) + LINE
        && offset_of!(Table, dead_entries).is_multiple_of(LINE)
        && offset_of!(Table, together).is_multiple_of(LINE)
);

/// Counts down the pieces of memory that this slice may still free. Returns false if there are
/// none.
pub(crate) fn take_piece(pieces: &mut usize) -> bool {
    let any = *pieces > 0;
    *pieces -= usize::from(any);
    any
}

/// The largest number of records of a table.
pub const MAX_RECORDS: u64 = (u32::MAX - 2) as u64;

impl Table {
    /// Creates a table with one map.
    pub fn create(
        e: &Engine,
        slot: SlotId,
        key: [u32; 4],
        map: NonNull<PartitionMap>,
    ) -> Result<&'static Table, OutOfMemory> {
        let p = e.region.alloc(slot as usize, std::mem::size_of::<Table>())?.cast::<Table>();
        let id = e.shared.last_table.fetch_add(1, Ordering::SeqCst) + 1;
        // SAFETY: INV-M1: fresh memory of that size, in which all-zero fields are valid.
        unsafe {
            p.as_ptr().write_bytes(0, 1);
            (*p.as_ptr()).id = id;
            (*p.as_ptr()).key = key;
            TidDirectory::init(&raw mut (*p.as_ptr()).records, std::mem::size_of::<Record>() as u32);
            (*p.as_ptr()).map.store(map.as_ptr(), Ordering::SeqCst);
            Ok(&*p.as_ptr())
        }
    }

    /// A transaction looks at some columns of rows alone.
    #[inline]
    pub fn note_looked(&self) {
        if self.looked_at.load(Ordering::Relaxed) == 0 {
            self.looked_at.store(1, Ordering::Relaxed);
        }
    }
    /// Is it worth some work to tell which columns an update changes (INV-CHANGED)? A hint.
    pub fn is_read_by_column(&self) -> bool {
        self.looked_at.load(Ordering::Relaxed) != 0
    }

    /// Allocates a map. `spec` describes the key. Every partition gets the protocols and the
    /// policy.
    pub fn new_map(
        e: &Engine,
        slot: SlotId,
        n: u32,
        field: u32,
        spec: &[u8],
        protocols: ProtocolSet,
        policy: Policy,
    ) -> Result<NonNull<PartitionMap>, Error> {
        e.shared.protocols.add(protocols, policy)?;
        assert!(spec.len() <= SPEC_MAX && n >= 1 && n <= u16::MAX as u32 && field < 2);
        let size = PartitionMap::size(n);
        let p = e.region.alloc(slot as usize, size)?;
        // SAFETY: INV-MAP: fresh memory of `size(n)` bytes, and all-zero memory is a valid map.
        unsafe {
            p.as_ptr().write_bytes(0, size);
            let m = p.cast::<PartitionMap>().as_mut();
            m.n = n;
            m.field = field;
            m.set_declared(protocols);
            m.spec_len = spec.len() as u32;
            m.spec[..spec.len()].copy_from_slice(spec);
            for part in m.partitions() {
                part.init(protocols, policy);
            }
        }
        Ok(p.cast())
    }

    /// The map in use.
    #[inline]
    pub fn map(&self) -> &'static PartitionMap {
        // SAFETY: INV-MAP: the map lives until the table is freed, or until a caller of
        // `replace_map` that excludes all users of the table frees it.
        unsafe { &*self.map.load(Ordering::Acquire) }
    }
    /// Puts another map in use and returns the old one. Statistics start again. The caller excludes
    /// all other users of the table.
    pub fn replace_map(&self, map: NonNull<PartitionMap>) -> NonNull<PartitionMap> {
        self.together.clear();
        NonNull::new(self.map.swap(map.as_ptr(), Ordering::SeqCst)).expect("a table has a map")
    }
    /// Gives the table a primary index without entries. With [`Reuse::AtOnce`] the numbers of dead
    /// records are freed soon. The caller excludes all other users, and the table has no primary
    /// index.
    pub fn create_primary(
        &self,
        e: &Engine,
        slot: SlotId,
        order: u32,
        reuse: Reuse,
    ) -> Result<&'static Primary, OutOfMemory> {
        let primary = Primary::create(e, slot, order, reuse, &[])?;
        self.set_primary(primary);
        for (n, r) in (0..self.len()).filter_map(|n| Some((n, self.record(n)?))) {
            // SAFETY: INV-RETIRE: the caller excludes all others, so the head is not freed
            // meanwhile.
            let deleted = unsafe { r.head().as_ref() }.is_some_and(|v| v.is_tombstone() && v.csn().is_some());
            let dead = deleted || r.state.load(Ordering::Acquire) == REC_DEAD;
            if dead && r.next_free.load(Ordering::Relaxed) == 0 {
                self.enqueue_dead(n, r);
            }
        }
        Ok(primary)
    }

    /// Gives this primary index to a table that has none, for good. The caller excludes all other
    /// users.
    pub fn set_primary(&self, new: &'static Primary) {
        self.set_unique(0, new);
    }

    /// Gives this index to a table that has none of this number, for good. The caller excludes all
    /// other users.
    pub fn set_unique(&self, nth: usize, new: &'static Primary) {
        assert!(self.unique(nth).is_none(), "a number has one index");
        self.put(nth, Some(new));
    }

    /// Gives the table another index of this number, or none, and returns the old one. The old
    /// index stays unchanged until [`Table::keep_unique`] or [`Table::restore_unique`] ends the
    /// change. Rows that are inserted meanwhile belong to the caller. If the change is undone, they
    /// die, and rows that were deleted meanwhile live again. Changes may be nested. Until the end
    /// of the change the caller excludes all other users.
    pub fn replace_unique(&self, nth: usize, new: Option<&'static Primary>) -> Option<&'static Primary> {
        let old = self.unique(nth);
        self.together.clear(); // It counts by positions in the key.
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.put(nth, new);
        old
    }

    fn put(&self, nth: usize, index: Option<&'static Primary>) {
        let new = index.map_or(std::ptr::null_mut(), |i| std::ptr::from_ref(i).cast_mut());
        self.place(nth).store(new, Ordering::SeqCst);
        self.given_indexes.fetch_add(1, Ordering::SeqCst);
    }

    /// Makes a change of an index final. The queue of retired memory has room for an entry.
    ///
    /// # Safety
    /// `old` is the result of [`Table::replace_unique`]. No other process is in the middle of using
    /// the table.
    pub unsafe fn keep_unique(&self, e: &Engine, slot: SlotId, old: Option<&'static Primary>) {
        self.changes.fetch_sub(1, Ordering::SeqCst);
        if let Some(old) = old {
            // SAFETY: INV-RETIRE: by this function's contract the old index has no users but views.
            unsafe { old.retire(e, slot) };
        }
    }

    /// Undoes the last change of an index. Rows inserted since are dead.
    ///
    /// # Safety
    /// As for [`Table::keep_unique`]. The index is that of this number.
    pub unsafe fn restore_unique(&self, e: &Engine, slot: SlotId, nth: usize, old: Option<&'static Primary>) {
        let new = self.unique(nth);
        self.together.clear(); // As in `replace_unique`.
        self.put(nth, old);
        self.changes.fetch_sub(1, Ordering::SeqCst);
        if let Some(new) = new {
            // SAFETY: INV-RETIRE: by this function's contract the new index has no users but views.
            unsafe { new.retire(e, slot) };
        }
    }

    /// Is a transaction that excludes all others in the middle of changing an index?
    pub(crate) fn is_changing(&self) -> bool {
        self.changes.load(Ordering::SeqCst) > 0
    }

    /// Frees an index. Another one may be created afterwards.
    ///
    /// # Safety
    /// No other process uses the table.
    pub unsafe fn drop_unique(&self, e: &Engine, slot: SlotId, nth: usize) {
        let index = self.unique(nth);
        self.put(nth, None);
        if let Some(index) = index {
            // SAFETY: INV-TABLE: by this function's contract no other process uses the index.
            unsafe { index.destroy(e, slot) };
        }
    }

    /// The primary index.
    #[inline]
    pub fn primary(&self) -> Option<&'static Primary> {
        self.unique(0)
    }

    /// The index of this number whose entries come with records. That of number 0 is the primary
    /// index.
    #[inline]
    pub fn unique(&self, nth: usize) -> Option<&'static Primary> {
        // SAFETY: INV-TABLE: the index is freed with its table, or by a caller that excludes
        // others.
        unsafe { self.place(nth).load(Ordering::Acquire).as_ref() }
    }

    #[inline]
    fn place(&self, nth: usize) -> &AtomicPtr<Primary> {
        match nth.checked_sub(1) {
            None => &self.primary,
            Some(n) => &self.others[n],
        }
    }

    /// Another number after each change of what [`Table::uniques`] returns.
    #[inline]
    pub fn index_generation(&self) -> u64 {
        self.given_indexes.load(Ordering::Acquire)
    }

    /// All indexes whose entries come with records, with their numbers.
    pub fn uniques(&self) -> impl Iterator<Item = (usize, &'static Primary)> + use<'_> {
        (0..INDEXES).filter_map(move |nth| Some((nth, self.unique(nth)?)))
    }

    /// Makes the table a permanent one, and says what it has beside its records. `is_new`: its
    /// storage was made by a transaction that has not committed. The caller excludes all others.
    pub fn make_durable(&self, e: &Engine, slot: SlotId, is_new: bool) -> Result<&'static Durable, OutOfMemory> {
        assert!(self.durable().is_none(), "a table becomes permanent once");
        let new = Durable::create(e, slot, self.len(), is_new)?;
        self.durable.store(std::ptr::from_ref(new).cast_mut(), Ordering::SeqCst);
        Ok(new)
    }

    /// What a permanent table has beside its records. `None`: the table is unlogged.
    #[inline]
    pub fn durable(&self) -> Option<&'static Durable> {
        // SAFETY: INV-TABLE: it is freed with its table.
        unsafe { self.durable.load(Ordering::Acquire).as_ref() }
    }

    /// The number of a record's partition.
    #[inline]
    pub fn partition_no(&self, r: &Record) -> u32 {
        r.part[self.map().field as usize].load(Ordering::Relaxed) as u32
    }
    /// The partition of a record.
    #[inline]
    pub fn partition(&self, r: &Record) -> &'static Partition {
        let m = self.map();
        &m.partitions()[r.part[m.field as usize].load(Ordering::Relaxed) as usize]
    }

    /// The number of records that exist. Falls if a transaction gives numbers back (INV-RUN).
    #[inline]
    pub fn len(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }
    /// Are there no records?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Record `n`, if it exists.
    #[inline]
    pub fn record(&self, n: u64) -> Option<&'static Record> {
        if n >= self.len() {
            return None;
        }
        // SAFETY: INV-DIR: chunks have stable addresses, and zeroed memory is a free record.
        self.records.get(n).map(|p| unsafe { &*p.cast::<Record>().as_ptr() })
    }

    /// Records that lie side by side, from number `n` on: at most up to `end`. None, if there are
    /// no such records.
    #[inline]
    pub fn records_from(&self, n: u64, end: u64) -> &'static [Record] {
        let left = end.min(self.len()).saturating_sub(n).min(TidDirectory::left_in_chunk(n));
        match self.records.get(n) {
            // SAFETY: INV-DIR: the items of a chunk lie side by side, chunks have stable addresses,
            // and zeroed memory is a free record. The table's records begin at number 0.
            Some(p) if left > 0 => unsafe { std::slice::from_raw_parts(p.cast::<Record>().as_ptr(), left as usize) },
            _ => &[],
        }
    }

    /// Is the record dead for every reader: aborted, or deleted before every floor?
    pub fn is_dead(&self, r: &Record, floor: Csn) -> bool {
        match r.state.load(Ordering::Acquire) {
            REC_DEAD | REC_VACUUM => true,
            REC_USED => {
                let v = r.head();
                if v.is_null() {
                    return false; // An insert is under way.
                }
                // SAFETY: INV-RETIRE: the caller is pinned or excludes all others, so the head of a
                // used record is not freed meanwhile.
                let v = unsafe { &*v };
                v.is_tombstone() && v.csn().is_some_and(|c| c < floor) && r.lock.is_free()
            }
            _ => false,
        }
    }

    /// Drops the table: no process can find it from now on. It is freed when the grace period is
    /// over.
    pub fn retire(&'static self, e: &Engine) {
        self.dropped_at.store(e.now(), Ordering::SeqCst);
        // Pins from now on are larger, even without a commit.
        e.tick();
        e.with_dropped(|| self.put_dropped(e));
    }

    /// Takes a table whose grace period is over off the list of dropped tables. The caller frees it
    /// or puts it back.
    fn take_dropped(e: &Engine, min_pin: Csn) -> Option<&'static Table> {
        if e.shared.dropped.load(Ordering::SeqCst).is_null() {
            return None;
        }
        e.with_dropped(|| {
            let mut at: &AtomicPtr<Table> = &e.shared.dropped;
            loop {
                // SAFETY: INV-TABLE: tables in the list are not freed, and the list's latch is
                // held.
                let table: &'static Table = unsafe { at.load(Ordering::SeqCst).as_ref()? };
                if table.dropped_at.load(Ordering::SeqCst) < min_pin {
                    at.store(table.next_dropped.load(Ordering::SeqCst), Ordering::SeqCst);
                    e.shared.freeing.fetch_add(1, Ordering::SeqCst);
                    return Some(table);
                }
                at = &table.next_dropped;
            }
        })
    }

    /// Puts a table on the list of dropped ones.
    fn put_dropped(&'static self, e: &Engine) {
        self.next_dropped.store(e.shared.dropped.load(Ordering::SeqCst), Ordering::SeqCst);
        e.shared.dropped.store(std::ptr::from_ref(self).cast_mut(), Ordering::SeqCst);
    }

    /// Frees some of the tables whose grace period is over: about `pieces` pieces of memory,
    /// exceeding that by one index's ranges at most. Returns true if there may be more to free
    /// (INV-TABLE).
    pub fn free_dropped_slice(e: &Engine, slot: SlotId, min_pin: Csn, mut pieces: usize) -> bool {
        while let Some(table) = Table::take_dropped(e, min_pin) {
            // SAFETY: INV-TABLE: this process took it off the list, and no other can reach it.
            let all = unsafe { table.destroy_some(e, slot, &mut pieces) };
            e.with_dropped(|| {
                if !all {
                    table.put_dropped(e);
                }
                e.shared.freeing.fetch_sub(1, Ordering::SeqCst);
            });
            if pieces == 0 {
                return !e.shared.dropped.load(Ordering::SeqCst).is_null();
            }
        }
        false
    }

    /// Frees all tables whose grace period is over, because memory is needed. Waits a moment for
    /// slices that other processes free.
    pub fn free_dropped(e: &Engine, slot: SlotId, min_pin: Csn) {
        const TRIES: u32 = 1000;
        for n in 0..TRIES {
            Table::free_dropped_slice(e, slot, min_pin, usize::MAX);
            if e.shared.freeing.load(Ordering::SeqCst) == 0 {
                return;
            }
            relax(n);
        }
    }

    /// Frees all memory of the table.
    ///
    /// # Safety
    /// No other process can reach the table (INV-TABLE).
    pub unsafe fn destroy(&'static self, e: &Engine, slot: SlotId) {
        // SAFETY: INV-TABLE: the contract of `destroy_some` is this function's own.
        let all = unsafe { self.destroy_some(e, slot, &mut { usize::MAX }) };
        debug_assert!(all);
    }

    /// Frees at most `pieces` pieces of the table's memory, which are counted down. Returns true if
    /// the table is gone.
    ///
    /// # Safety
    /// As for [`Table::destroy`]. After the first call the table is used for nothing else.
    unsafe fn destroy_some(&'static self, e: &Engine, slot: SlotId, pieces: &mut usize) -> bool {
        // SAFETY: INV-TABLE: by this function's contract no other process can reach the table. Only
        // newest versions are linked in it; older ones are in the queue of some slot (INV-RETIRE).
        // Sizes and roots are reduced, so that no memory is freed twice.
        unsafe {
            while let Some(n) = self.len().checked_sub(1) {
                if !take_piece(pieces) {
                    return false;
                }
                if let Some(v) = self.record(n).and_then(|r| NonNull::new(r.head())) {
                    e.region.free(slot as usize, v.cast());
                }
                self.next.store(n, Ordering::SeqCst);
            }
            for (nth, index) in self.uniques() {
                if !index.destroy_some(e, slot, pieces) {
                    return false;
                }
                self.put(nth, None);
            }
            if !self.ranged.destroy_some(e, slot, pieces) {
                return false;
            }
            while self.records.chunks() > 0 {
                if !take_piece(pieces) {
                    return false;
                }
                self.records.free_last(e.region, slot as usize);
            }
            self.records.clear(e.region, slot as usize);
            if let Some(durable) = self.durable() {
                self.durable.store(std::ptr::null_mut(), Ordering::SeqCst);
                durable.destroy(e, slot);
            }
            let map = NonNull::from(self.map());
            e.region.free(slot as usize, map.cast());
            e.region.free(slot as usize, NonNull::from(self).cast());
        }
        true
    }

    /// Removes all rows at once.
    ///
    /// # Safety
    /// No other process can reach the rows, and no transaction has a run of its numbers.
    pub unsafe fn clear(&self, e: &Engine, slot: SlotId) {
        for n in 0..self.len() {
            let Some(r) = self.record(n) else { continue };
            if let Some(v) = NonNull::new(r.head()) {
                // SAFETY: INV-VERSION: a head is a piece of the region. By this function's contract
                // no other process can reach it.
                unsafe { e.region.free(slot as usize, v.cast()) };
            }
        }
        for (_, index) in self.uniques() {
            // SAFETY: INV-OLC: by this function's contract there are no users of the indexes.
            unsafe { index.clear(e, slot) };
        }
        self.dead_entries.clear();
        self.changing.forget();
        for p in self.map().partitions() {
            p.stats.clear_sizes();
        }
        self.next.store(0, Ordering::SeqCst);
        self.free.store(0, Ordering::SeqCst);
        self.limbo.store(0, Ordering::SeqCst);
        self.given.store(0, Ordering::SeqCst);
        self.dead.store(0, Ordering::SeqCst);
        // SAFETY: INV-DIR: by this function's contract no other process can reach the records.
        unsafe {
            self.records.clear(e.region, slot as usize);
            if let Some(durable) = self.durable() {
                durable.clear(e, slot);
            }
        }
    }

    /// The size of the table in bytes: records, newest versions, map and indexes. The size of
    /// ranges is [`crate::range::IndexRanges::bytes`].
    pub fn bytes(&self) -> u64 {
        let records = self.records.chunks() as u64 * TidDirectory::CHUNK as u64 * std::mem::size_of::<Record>() as u64;
        let versions: u64 = self.map().partitions().iter().map(|p| p.stats.sum(|s| &s.bytes)).sum();
        let indexes: u64 = self.uniques().map(|(_, index)| index.bytes()).sum();
        let durable = self.durable().map_or(0, Durable::bytes);
        records + versions + PartitionMap::size(self.map().n) as u64 + indexes + durable
    }
    /// The number of rows, approximately.
    pub fn rows(&self) -> u64 {
        self.map().partitions().iter().map(|p| p.stats.sum(|s| &s.rows)).sum()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "table_tests.rs"]
mod tests;
