//! Numbers of free records: how inserts take them, and how they come back.
//!
//! **INV-RUN**: A number that no row has is in one place: at or above `next`, in a list of free
//! records, or in the [`Run`] of one transaction, which alone uses it. The transaction gives the
//! rest of its run back before it gives up the table: at its end, when a savepoint is rolled back,
//! and when it inserts into another table.
//!
//! An insert of one row takes one number. Each run is twice as large as the one before, so that
//! inserts of many rows rarely write what all inserts share. A transaction that inserts alone gives
//! back the numbers that it took last, so that rows lie in the order of their inserts.

use super::{Table, MAX_RECORDS};
use crate::csn::{Csn, SlotId};
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::memory::TidDirectory;
use crate::primitive::{AtomicU32, AtomicU64, Ordering};
use crate::record::{Record, REC_FREE, REC_USED};
use crate::shared::Engine;

/// The most new numbers that a run takes at a time.
const MOST_NEW: u64 = 64;
/// The most numbers that it takes off the list of free ones. It touches their records under the
/// latch.
const MOST_LISTED: u64 = 16;

/// The numbers that a transaction has taken in one table, and not used yet (INV-RUN).
#[derive(Default)]
pub struct Run {
    table: Option<&'static Table>,
    /// New numbers.
    next: u64,
    end: u64,
    /// The first of the numbers that were in the list of free ones, plus 1, and how many there
    /// are. The records are linked as in that list.
    listed: u32,
    left: u32,
    /// How many numbers it took last.
    size: u64,
}

impl Run {
    /// Gives back all numbers.
    #[inline]
    pub fn give_back(&mut self) {
        if let Some(table) = self.table.take() {
            if !faults::on(Fault::KeepsRuns) {
                table.take_back(self);
            }
            *self = Run::default();
        }
    }
}

impl Table {
    /// Takes a free record for an insert, and returns its number and address. It has the
    /// partitions `part` and the writer `xid` before its state is `REC_USED`; a process that sees
    /// that state may ask for its partition. It has no version.
    #[inline]
    pub fn take_record(
        &'static self,
        e: &Engine,
        slot: SlotId,
        run: &mut Run,
        (part, xid): ([u16; 2], u32),
    ) -> Result<(u64, &'static Record), Error> {
        if !run.table.is_some_and(|t| std::ptr::eq(t, self)) {
            run.give_back();
            run.table = Some(self);
        }
        if run.next == run.end && run.left == 0 {
            self.fill(e, slot, run)?;
        }
        let (n, r) = self.take_from(e, slot, run)?;
        debug_assert!(r.head().is_null() && r.lock.is_free() && r.state.load(Ordering::Relaxed) == REC_FREE);
        r.part.iter().zip(part).for_each(|(to, no)| to.store(no, Ordering::Relaxed));
        r.writer.store(xid, Ordering::SeqCst);
        r.state.store(REC_USED, Ordering::Release);
        Ok((n, r))
    }

    /// The next number of a run. If it fails, the number stays there.
    #[inline]
    fn take_from(&self, e: &Engine, slot: SlotId, run: &mut Run) -> Result<(u64, &'static Record), Error> {
        let n = if run.left > 0 { u64::from(run.listed) - 1 } else { run.next };
        if let Some(durable) = self.durable() {
            durable.ensure(e, slot, n)?;
        }
        let r = self.record(n).ok_or(Error::OutOfMemory)?;
        if run.left > 0 {
            run.listed = r.next_free.swap(0, Ordering::Relaxed);
            run.left -= 1;
        } else {
            run.next += 1;
        }
        Ok((n, r))
    }

    /// Takes numbers for a run that has none: from the list of free ones, else new ones.
    fn fill(&self, e: &Engine, slot: SlotId, run: &mut Run) -> Result<(), Error> {
        let wanted = (run.size * 2).clamp(1, MOST_NEW);
        // Records that other processes free meanwhile are for the next insert.
        let has_used = [&self.free, &self.limbo, &self.given].iter().any(|list| list.load(Ordering::Relaxed) != 0);
        if has_used {
            (run.listed, run.left) = self.latch.with(|| self.unlink(e, wanted.min(MOST_LISTED)));
        }
        if run.left > 0 {
            run.size = wanted;
            return Ok(());
        }
        loop {
            // The chunk is allocated before the numbers are taken: a failure uses up no number.
            let n = self.next.load(Ordering::Relaxed);
            if n >= MAX_RECORDS {
                return Err(Error::OutOfMemory);
            }
            let end = n + wanted.min(TidDirectory::left_in_chunk(n)).min(MAX_RECORDS - n);
            self.records.ensure(e.region, slot as usize, n)?;
            if self.next.compare_exchange(n, end, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                (run.next, run.end, run.size) = (n, end, wanted);
                return Ok(());
            }
        }
    }

    /// Takes up to `wanted` records off the list of free ones: the first number, plus 1, and how
    /// many there are. The caller holds the latch.
    fn unlink(&self, e: &Engine, wanted: u64) -> (u32, u32) {
        if self.free.load(Ordering::Relaxed) == 0 {
            self.end_grace(e.shared.min_pin.0.load(Ordering::SeqCst));
        }
        let first = self.free.load(Ordering::Relaxed);
        let (mut at, mut count) = (first, 0);
        while let Some(r) = self.listed(at) {
            count += 1;
            at = r.next_free.load(Ordering::Relaxed);
            if u64::from(count) == wanted {
                break;
            }
        }
        self.free.store(at, Ordering::Relaxed);
        (first, count)
    }

    /// The numbers that are left in a run come back.
    fn take_back(&self, run: &mut Run) {
        if run.next < run.end
            && self.next.compare_exchange(run.end, run.next, Ordering::SeqCst, Ordering::SeqCst).is_err()
        {
            for (n, r) in (run.next..run.end - 1).filter_map(|n| Some((n, self.record(n)?))) {
                r.next_free.store(n as u32 + 2, Ordering::Relaxed);
            }
            self.put_chain(run.next as u32 + 1, run.end as u32);
        }
        if run.left > 0 {
            let mut last = run.listed;
            for _ in 1..run.left {
                last = self.listed(last).map_or(0, |r| r.next_free.load(Ordering::Relaxed));
            }
            self.put_chain(run.listed, last);
        }
    }

    /// Puts linked records on the list of free ones: the first and the last number, plus 1.
    fn put_chain(&self, first: u32, last: u32) {
        if let Some(last) = self.listed(last) {
            self.latch.with(|| {
                last.next_free.store(self.free.load(Ordering::Relaxed), Ordering::Relaxed);
                self.free.store(first, Ordering::Relaxed);
            });
        }
    }

    /// The record of a link in a list of records: its number plus 1, or 0 at the end.
    fn listed(&self, link: u32) -> Option<&'static Record> {
        self.record(u64::from(link).checked_sub(1)?)
    }

    /// Puts a number on the list of free ones.
    pub(super) fn put_free(&self, n: u64) {
        self.put_chain(n as u32 + 1, n as u32 + 1);
    }

    /// Moves the lists of records on as far as the pins allow. The free list is empty, and the
    /// caller holds the latch.
    fn end_grace(&self, min_pin: Csn) {
        if self.limbo.load(Ordering::Relaxed) == 0 {
            self.limbo.store(self.given.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            self.limbo_csn.store(self.given_csn.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if self.limbo_csn.load(Ordering::Relaxed) < min_pin {
            self.free.store(self.limbo.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Frees all numbers whose grace period is over, and sorts the free numbers in ascending order.
    /// So a scan finds rows in the order of their inserts. Concurrent inserts take new numbers
    /// meanwhile.
    pub fn order_free(&self, min_pin: Csn) {
        let ripe = |list: &AtomicU32, csn: &AtomicU64| {
            if csn.load(Ordering::Relaxed) < min_pin {
                list.swap(0, Ordering::Relaxed)
            } else {
                0
            }
        };
        // The process that has emptied a list's head uses the list's records alone.
        let lists = self.latch.with(|| {
            let free = self.free.swap(0, Ordering::Relaxed);
            [free, ripe(&self.limbo, &self.limbo_csn), ripe(&self.given, &self.given_csn)]
        });
        let next = |n: &u32| self.record(*n as u64 - 1).map(|r| r.next_free.load(Ordering::Relaxed));
        let all =
            lists.map(|first| std::iter::successors(Some(first).filter(|n| *n != 0), |n| next(n).filter(|n| *n != 0)));
        let mut numbers: Vec<u32> = all.into_iter().flatten().collect();
        numbers.sort_unstable();
        let Some((first, last)) = numbers.first().zip(numbers.last()) else { return };
        let link = |n: u32, to: u32| {
            if let Some(r) = self.record(n as u64 - 1) {
                r.next_free.store(to, Ordering::Relaxed);
            }
        };
        numbers.windows(2).for_each(|pair| link(pair[0], pair[1]));
        self.latch.with(|| {
            link(*last, self.free.load(Ordering::Relaxed));
            self.free.store(*first, Ordering::Relaxed);
        });
    }

    /// How many numbers are in the lists of free records. For tests, while no process uses the
    /// table.
    #[doc(hidden)]
    pub fn free_numbers(&self) -> usize {
        let lists = [&self.free, &self.limbo, &self.given].map(|list| list.load(Ordering::Relaxed));
        let next = |n: &u32| self.listed(*n).map(|r| r.next_free.load(Ordering::Relaxed));
        lists.into_iter().flat_map(|first| std::iter::successors(Some(first), next).filter(|n| *n != 0)).count()
    }

    /// Frees a record whose last index entry is gone. Inserts may take it after the grace period
    /// (INV-RETIRE).
    pub fn give_back(&self, n: u64, now: Csn) {
        let Some(r) = self.record(n) else { return };
        r.set_head(std::ptr::null_mut());
        r.state.store(REC_FREE, Ordering::Release);
        self.latch.with(|| {
            r.next_free.store(self.given.load(Ordering::Relaxed), Ordering::Relaxed);
            self.given.store(n as u32 + 1, Ordering::Relaxed);
            self.given_csn.fetch_max(now, Ordering::Relaxed);
        });
    }
}
