//! Records and rows of a table that is being loaded, before any transaction uses it.

use super::{Table, MAX_RECORDS};
use crate::csn::{SlotId, Stamp};
use crate::memory::{OutOfMemory, TidDirectory};
use crate::primitive::Ordering;
use crate::record::{Record, Version, REC_DEAD, REC_USED, VERSION_HEADER};
use crate::shared::Engine;
use std::ptr::NonNull;

impl Table {
    /// Adds the next record of a table that is being loaded. The caller has exclusive access.
    fn add_record(&self, e: &Engine, slot: SlotId) -> Result<(u64, &'static Record), OutOfMemory> {
        let n = self.len();
        if n >= MAX_RECORDS {
            return Err(OutOfMemory);
        }
        self.ensure(e, slot, n)?;
        self.next.store(n + 1, Ordering::SeqCst);
        Ok((n, self.record(n).ok_or(OutOfMemory)?))
    }

    /// Adds a record without a row: free, or dead with index entries that may remain. The caller
    /// has exclusive access.
    pub(crate) fn load_rowless(&self, e: &Engine, slot: SlotId, dead: bool) -> Result<(), OutOfMemory> {
        let (n, r) = self.add_record(e, slot)?;
        if dead {
            r.state.store(REC_DEAD, Ordering::Release);
            self.dead.fetch_add(1, Ordering::Relaxed);
        } else {
            self.put_free(n);
        }
        Ok(())
    }

    /// Adds a row, committed before all others. The caller fills `len` bytes at the returned
    /// address. It has exclusive access.
    pub(crate) fn load_row(&self, e: &Engine, slot: SlotId, part: [u16; 2], len: u32) -> Result<*mut u8, OutOfMemory> {
        let (_, r) = self.add_record(e, slot)?;
        self.fill_record(e, slot, r, part, len)
    }

    /// Puts a row, committed before all others, into a record without one.
    fn fill_record(
        &self,
        e: &Engine,
        slot: SlotId,
        r: &'static Record,
        part: [u16; 2],
        len: u32,
    ) -> Result<*mut u8, OutOfMemory> {
        let node = e.region.node_of_partition(part[self.map().field as usize] as u32);
        let p = e.region.alloc_on(node, slot as usize, VERSION_HEADER + len as usize)?;
        let v = p.cast::<Version>().as_ptr();
        // SAFETY: INV-VERSION: fresh memory with room for header and payload.
        unsafe { Version::init(v, Stamp::csn(1), len, 0) };
        for (to, from) in r.part.iter().zip(part) {
            to.store(from, Ordering::Relaxed);
        }
        r.set_head(v);
        r.state.store(REC_USED, Ordering::Release);
        let s = self.partition(r).stats.stripe(slot);
        s.rows.fetch_add(1, Ordering::Relaxed);
        s.versions.fetch_add(1, Ordering::Relaxed);
        // SAFETY: INV-M1: allocated just now.
        let size = unsafe { e.region.usable_size(p) };
        s.bytes.fetch_add(size as u64, Ordering::Relaxed);
        Ok(Version::payload(v))
    }

    /// Makes the first `len` records of a table without records that is being loaded. They get rows
    /// in any order ([`Table::load_row_at`]), and then [`Table::end_load`] is called. The caller
    /// has exclusive access.
    pub fn begin_load(&self, e: &Engine, slot: SlotId, len: u64) -> Result<(), OutOfMemory> {
        if len > MAX_RECORDS {
            return Err(OutOfMemory);
        }
        let chunk = TidDirectory::CHUNK as u64;
        for n in (0..len.div_ceil(chunk)).map(|i| i * chunk) {
            self.ensure(e, slot, n)?;
        }
        self.next.store(len, Ordering::SeqCst);
        Ok(())
    }

    /// Puts a row of partition `part`, committed before all others, into record `n`. Says where its
    /// `len` bytes are, which the caller fills.
    pub fn load_row_at(
        &self,
        e: &Engine,
        slot: SlotId,
        n: u64,
        part: u16,
        len: u32,
    ) -> Result<NonNull<u8>, OutOfMemory> {
        let r = self.record(n).filter(|r| r.head().is_null()).ok_or(OutOfMemory)?;
        let payload = self.fill_record(e, slot, r, [part; 2], len)?;
        NonNull::new(payload).ok_or(OutOfMemory)
    }

    /// A version for a row of partition `part`, or a tombstone, that a prepared transaction has
    /// written in this table (INV-RECOVERED). The caller fills its `len` bytes.
    pub fn load_pending(
        &self,
        e: &Engine,
        slot: SlotId,
        part: u16,
        len: u32,
        flags: u32,
    ) -> Result<NonNull<Version>, OutOfMemory> {
        let node = e.region.node_of_partition(part.into());
        let v = e.region.alloc_on(node, slot as usize, VERSION_HEADER + len as usize)?.cast::<Version>();
        // SAFETY: INV-VERSION: fresh memory with room for header and payload.
        unsafe { Version::init(v.as_ptr(), Stamp::ABORTED, len, flags) };
        Ok(v)
    }

    /// Puts the version of such a transaction's insert, of partition `part`, into record `n`. It is
    /// called before [`Table::end_load`]. The caller has exclusive access.
    pub fn load_insert(&self, n: u64, part: u16, version: NonNull<Version>) -> Result<(), OutOfMemory> {
        let r = self.record(n).filter(|r| r.head().is_null()).ok_or(OutOfMemory)?;
        r.part.iter().for_each(|to| to.store(part, Ordering::Relaxed));
        r.set_head(version.as_ptr());
        r.state.store(REC_USED, Ordering::Release);
        Ok(())
    }

    /// All rows are loaded. The other numbers are free; or dead, if index entries may have them
    /// (INV-SAVE).
    pub fn end_load(&self, may_be_indexed: bool) {
        let rowless = (0..self.len()).rev().filter_map(|n| Some((n, self.record(n)?)));
        for (n, r) in rowless.filter(|(_, r)| r.head().is_null()) {
            if may_be_indexed {
                r.state.store(REC_DEAD, Ordering::Release);
                self.dead.fetch_add(1, Ordering::Relaxed);
            } else {
                self.put_free(n);
            }
        }
    }

    /// Allocates memory for record `n`.
    fn ensure(&self, e: &Engine, slot: SlotId, n: u64) -> Result<(), OutOfMemory> {
        self.durable().map_or(Ok(()), |durable| durable.ensure(e, slot, n))?;
        self.records.ensure(e.region, slot as usize, n).map(drop)
    }
}
