//! Versions of a table that a standby shows, as replay has them.
//!
//! One process at a time applies entries to a table; it holds the platform's lock (INV-ATTACH).
//! Others read meanwhile.
//!
//! **INV-APPLY**: An entry is applied only if its CSN is stable, so at or below the clock. What it
//! replaces is retired at the clock's value, or later: each later pin that is larger belongs to a
//! snapshot at or above the entry's CSN. The chain of a record has falling CSNs. A number that is
//! used again has a chain of its own: its old row was deleted below a horizon that redo has passed,
//! so that no snapshot needs it (INV-CONFLICT). The entry of the old key goes, and that of the new
//! key comes, before the new version is linked.

use super::{Table, MAX_RECORDS};
use crate::csn::{Csn, SlotId, Stamp};
use crate::error::Error;
use crate::memory::OutOfMemory;
use crate::platform::Platform;
use crate::primitive::Ordering;
use crate::record::{Keys, Record, Successor, Version, REC_USED, VERSION_HEADER};
use crate::retire::RetireQueue;
use crate::shared::Engine;
use std::ptr::NonNull;

/// What replay says of a record at a CSN.
#[derive(Clone, Copy, Debug)]
pub enum Replayed<'a> {
    /// It has this row, in this partition.
    Row(&'a [u8], u16),
    /// It is deleted. The keys of its entries.
    Tomb(Keys<'a>),
}

/// How a version is put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// No other process can reach the table.
    Alone,
    /// Above the older versions of the row.
    Above,
    /// The number is used again: without the versions of its old row.
    Anew,
}

impl Table {
    /// The newest version of record `n`, which is made if it does not exist.
    pub fn applied(&self, e: &Engine, slot: SlotId, n: u64) -> Result<Option<NonNull<Version>>, OutOfMemory> {
        if n >= MAX_RECORDS {
            return Err(OutOfMemory);
        }
        if n >= self.len() {
            self.durable().map_or(Ok(()), |durable| durable.ensure(e, slot, n))?;
            let chunk = crate::memory::TidDirectory::CHUNK as u64;
            for first in (self.len() / chunk..=n / chunk).map(|i| i * chunk) {
                self.durable().map_or(Ok(()), |durable| durable.ensure(e, slot, first))?;
                self.records.ensure(e.region, slot as usize, first)?;
            }
            self.next.store(n + 1, Ordering::SeqCst);
        }
        Ok(self.record(n).and_then(|r| NonNull::new(r.head())))
    }

    /// Puts what replay says of record `n`, which exists, above what it says of older CSNs.
    pub fn apply(
        &self,
        e: &Engine,
        slot: SlotId,
        (n, csn): (u64, Csn),
        what: Replayed,
        put: Put,
    ) -> Result<(), OutOfMemory> {
        let r = self.record(n).ok_or(OutOfMemory)?;
        RetireQueue::reserve(e, slot, 1)?;
        let new = self.make(e, slot, csn, what)?;
        let old = NonNull::new(r.head());
        if let Replayed::Row(_, part) = what {
            r.part.iter().for_each(|to| to.store(part, Ordering::Relaxed));
        }
        if put == Put::Above {
            // SAFETY: INV-VERSION: made above, and not reachable yet.
            unsafe { new.as_ref() }.set_older(r.head());
        }
        r.set_head(new.as_ptr());
        r.state.store(REC_USED, Ordering::Release);
        self.count(e, slot, r, (old, new));
        match old {
            // SAFETY: INV-M1: the version was a piece of the region, and no process can reach it.
            Some(old) if put == Put::Alone => unsafe { e.region.free(slot as usize, old.cast()) },
            // INV-APPLY
            Some(old) => RetireQueue::push(e, slot, old.cast(), e.now().max(csn)),
            None => {}
        }
        Ok(())
    }

    fn make(&self, e: &Engine, slot: SlotId, csn: Csn, what: Replayed) -> Result<NonNull<Version>, OutOfMemory> {
        let ((flags, len), part) = match &what {
            Replayed::Row(row, part) => ((0, row.len()), *part),
            Replayed::Tomb(keys) => (keys.tombstone(), 0),
        };
        let node = e.region.node_of_partition(part as u32);
        let p = e.region.alloc_on(node, slot as usize, VERSION_HEADER + len)?;
        let v = p.cast::<Version>();
        // SAFETY: INV-VERSION: fresh memory with room for header and `len` bytes of payload.
        unsafe {
            Version::init(v.as_ptr(), Stamp::csn(csn), len as u32, flags);
            let payload = Version::payload(v.as_ptr());
            match what {
                Replayed::Row(row, _) => payload.copy_from_nonoverlapping(row.as_ptr(), len),
                Replayed::Tomb(keys) => keys.write(Successor { record: 0 }, payload),
            }
        }
        Ok(v)
    }

    /// Counts rows, and newest versions with their bytes.
    fn count(&self, e: &Engine, slot: SlotId, r: &Record, (old, new): (Option<NonNull<Version>>, NonNull<Version>)) {
        let s = self.partition(r).stats.stripe(slot);
        // SAFETY: INV-VERSION: both are pieces of the region; the old one is not retired yet.
        let look = |v: NonNull<Version>| unsafe { (v.as_ref().is_tombstone(), e.region.usable_size(v.cast()) as u64) };
        let (is_tomb, bytes) = look(new);
        s.rows.fetch_add(u64::from(!is_tomb), Ordering::Relaxed);
        s.versions.fetch_add(1, Ordering::Relaxed);
        s.bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some((was_tomb, bytes)) = old.map(look) {
            s.rows.fetch_sub(u64::from(!was_tomb), Ordering::Relaxed);
            s.versions.fetch_sub(1, Ordering::Relaxed);
            s.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// The entry of record `n` in the index of a number comes, if it is not there. The caller is
    /// pinned.
    pub fn apply_key(
        &self,
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        n: u64,
        (nth, key): (usize, &[u8]),
    ) -> Result<(), Error> {
        match self.unique(nth) {
            Some(index) if !index.has(p, key, n) => index.load(e, slot, p, n, key),
            _ => Ok(()),
        }
    }

    /// The entry of record `n` goes. The caller is pinned.
    pub fn apply_key_removal(
        &self,
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        n: u64,
        (nth, key): (usize, &[u8]),
    ) -> Result<(), OutOfMemory> {
        let Some(index) = self.unique(nth) else { return Ok(()) };
        RetireQueue::reserve(e, slot, super::super::index::Index::ROOM)?;
        index.remove(e, slot, p, key, n);
        Ok(())
    }
}
