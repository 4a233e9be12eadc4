//! Records and rows of a table that is being loaded, before any transaction uses it.

use super::{Table, MAX_RECORDS};
use crate::csn::{SlotId, Stamp};
use crate::memory::OutOfMemory;
use crate::primitive::Ordering;
use crate::record::{Record, Version, REC_DEAD, REC_USED, VERSION_HEADER};
use crate::shared::Engine;

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

    /// Allocates memory for record `n`.
    fn ensure(&self, e: &Engine, slot: SlotId, n: u64) -> Result<(), OutOfMemory> {
        self.durable().map_or(Ok(()), |durable| durable.ensure(e, slot, n))?;
        self.records.ensure(e.region, slot as usize, n).map(drop)
    }

    /// Puts a number on the list of free ones.
    fn put_free(&self, n: u64) {
        if let Some(r) = self.record(n) {
            self.latch.with(|| {
                r.next_free.store(self.free.load(Ordering::Relaxed), Ordering::Relaxed);
                self.free.store(n as u32 + 1, Ordering::Relaxed);
            });
        }
    }
}
