//! Scans of whole partitions that want the rows of a condition only: which inserts are conflicts.

use super::{Predicate, RecordRef, Txn};
use crate::csn::Csn;
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::platform::Platform;
use crate::protocol::Touch;
use crate::range::Verdict;
use crate::record::Version;
use crate::shared::Fate;
use std::ptr::NonNull;

/// With more of these scans a transaction's next ones protect their partitions as a whole.
pub const MAX_CONDITIONS: usize = 64;
/// Inserts into records that are further apart are conflicts, whatever the rows are.
const MANY: u64 = 1024;

/// Inserts into a partition from a position on are conflicts if their rows meet a condition.
pub(super) struct Conditional {
    pub predicate: Predicate,
    /// The platform's name of it.
    pub condition: u32,
}

impl Txn {
    /// As [`Txn::scan`], for a scan that wants only rows which meet a condition (see [`Platform::meets`]). What it returns is
    /// read with [`Txn::read`]. A row may come to meet it, or cease to, only by an insert, a move or a delete, or
    /// by an update if the scan has read the row or the row was inserted after the scan began.
    pub fn scan_where(&mut self, p: &dyn Platform, at: Touch, condition: u32) -> Result<(), Error> {
        if self.conditional.len() >= MAX_CONDITIONS {
            return self.scan(p, at);
        }
        self.before_scan(p, at)?;
        let now = self.e.now();
        let start = at.partition().ring.list().position();
        let since = if start.is_quiet() { now } else { 0 };
        let predicate = Predicate { at, map: at.table.map(), start, since };
        self.conditional.push(Conditional { predicate, condition });
        // INV-VALID: as in `predicate`.
        if at.partition().ring.list().look(&start, start.low(), self.tag(), self.valid) != Verdict::Valid {
            self.valid = 0;
        }
        Ok(())
    }

    /// Does a row meet the condition, as of `csn`, of those whose insert was registered at `pos` by a
    /// transaction that committed at `by`?
    ///
    /// INV-CONDITION: a registration names records that hold all rows of its transaction in the partition.
    pub(super) fn is_met(
        &self,
        p: &dyn Platform,
        q: &Conditional,
        (pos, by): (u64, Csn),
        csn: Csn,
    ) -> Result<bool, Error> {
        let at = q.predicate.at;
        let Some((first, last)) = at.partition().ring.list().records(pos) else { return Ok(true) };
        if last - first >= MANY {
            return Ok(true);
        }
        for no in first..=last {
            let Some(r) = RecordRef::find(at.table, no).filter(|r| !r.rec.head().is_null()) else { continue };
            if r.touch().no != at.no {
                continue;
            }
            let Some((v, _)) = self.at_snapshot(p, r.rec, csn)? else { continue };
            let v = if faults::on(Fault::JudgesTheFirst) { self.first_of(v) } else { v };
            // SAFETY: INV-RETIRE: reached under our pin.
            let there = !unsafe { v.as_ref() }.is_tombstone();
            if there && self.was_inserted_by(p, v, by)? && p.meets(q.condition, v) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The version of an insert, of a row that was inserted since we are pinned: the fault's.
    fn first_of(&self, mut v: NonNull<Version>) -> NonNull<Version> {
        // SAFETY: INV-RETIRE: as in `was_inserted_by`.
        while let Some(older) = NonNull::new(unsafe { v.as_ref() }.older()) {
            v = older;
        }
        v
    }

    /// Was the row of a committed version inserted by the transaction that committed at `by`, and whose registration was
    /// not finished, or not made, when we pinned?
    ///
    /// What has replaced that insert's version did so after we had pinned, with a larger CSN than our pin. So
    /// below a version that is not later than our pin, where memory may be free, is none of these.
    fn was_inserted_by(&self, p: &dyn Platform, mut v: NonNull<Version>, by: Csn) -> Result<bool, Error> {
        let pin = self.e.pinned_at(self.slot);
        loop {
            // SAFETY: INV-RETIRE: what a commit later than our pin has replaced is not freed.
            let ver = unsafe { v.as_ref() };
            match self.e.settle(p, || ver.stamp())?.1 {
                Fate::Committed(c) | Fate::Committing(c) if c == by => return Ok(true),
                Fate::Committed(c) | Fate::Committing(c) if c > by && c > pin => {}
                Fate::Committed(_) | Fate::Committing(_) => return Ok(false),
                _ => return Ok(true), // cannot be: below a committed version all are
            }
            let Some(older) = NonNull::new(ver.older()) else { return Ok(false) };
            v = older;
        }
    }
}
