//! Scans of whole partitions for the rows of a condition: which inserts are conflicts.

use super::scan_set::PartitionPredicate;
use super::{Owner, RecordRef, Txn};
use crate::csn::Csn;
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::open::Seen;
use crate::platform::Platform;
use crate::protocol::Touch;
use crate::record::Version;
use crate::shared::Fate;
use std::ptr::NonNull;

/// If a transaction has more of these scans, its next ones protect their partitions as a whole.
pub const MAX_CONDITIONS: usize = 64;
/// Inserts into records that are further apart are conflicts, whatever the rows are.
const MANY: u64 = 1024;

/// Inserts into a partition from a position on are conflicts if their rows meet a condition.
pub(super) struct Conditional {
    pub predicate: PartitionPredicate,
    /// The platform's name of it.
    pub condition: u32,
}

impl Txn {
    /// As [`Txn::scan`], for a scan that wants only the rows which meet a condition (see
    /// [`Platform::meets`]). The caller reads the rows that the scan returns with [`Txn::read`].
    ///
    /// A row may begin or cease to meet the condition only by an insert, a move or a delete; or by
    /// an update if the scan has read the row, or the row was inserted after the scan began.
    pub fn scan_where(&mut self, p: &dyn Platform, at: Touch, condition: u32) -> Result<(), Error> {
        if self.scans.conditional.len() >= MAX_CONDITIONS {
            return self.scan(p, at);
        }
        self.before_scan(p, at)?;
        if self.is_frozen() {
            self.scan_frozen(at);
            return Ok(());
        }
        let now = self.e.now();
        let start = at.partition().ring.list().position();
        let predicate = PartitionPredicate::new(at, start, if start.is_quiet() { now } else { 0 });
        self.scans.conditional.push(Conditional { predicate, condition });
        self.doubt_open(p, at, &start);
        Ok(())
    }
}

impl Conditional {
    /// A transaction registered an insert at `pos` and committed at `by`. Does one of its rows meet
    /// the condition, as of `csn`?
    ///
    /// INV-CONDITION: a registration names records that hold all rows that its transaction has
    /// inserted in the partition.
    pub fn is_met(&self, owner: &Owner, p: &dyn Platform, (pos, by): (u64, Csn), csn: Csn) -> Result<bool, Error> {
        let at = self.predicate.at;
        let Some((first, last)) = at.partition().ring.list().records(pos) else { return Ok(true) };
        if last - first >= MANY {
            return Ok(true);
        }
        for no in first..=last {
            let Some(r) = RecordRef::find(at.table, no).filter(|r| !r.rec.head().is_null()) else { continue };
            if r.touch().no != at.no {
                continue;
            }
            let Some((v, _)) = owner.at_snapshot(p, r.rec, Seen::prefix(csn))? else { continue };
            let v = if faults::on(Fault::JudgesTheFirst) { first_of(v) } else { v };
            let there = !super::versions::is_tombstone(v);
            if there && was_inserted_by(owner, p, v, by)? && p.meets(self.condition, v) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The version of an insert, of a row that was inserted after our pin: what a deliberate fault
/// looks at.
fn first_of(mut v: NonNull<Version>) -> NonNull<Version> {
    // SAFETY: INV-RETIRE: as in `was_inserted_by`.
    while let Some(older) = NonNull::new(unsafe { v.as_ref() }.older()) {
        v = older;
    }
    v
}

/// Was the row of a committed version inserted by the transaction that committed at `by`? When we
/// pinned, the registration of that transaction was not finished, or not made.
///
/// A version that has replaced that insert's version did so after we had pinned, with a CSN larger
/// than our pin. So the versions below one that is not later than our pin, whose memory may be
/// free, are none of these.
fn was_inserted_by(owner: &Owner, p: &dyn Platform, mut v: NonNull<Version>, by: Csn) -> Result<bool, Error> {
    let pin = owner.e.pinned_at(owner.slot);
    loop {
        // SAFETY: INV-RETIRE: what a commit later than our pin has replaced is not freed.
        let ver = unsafe { v.as_ref() };
        match owner.e.settle(p, || ver.stamp())?.1 {
            Fate::Committed(c) | Fate::Committing(c) if c == by => return Ok(true),
            Fate::Committed(c) | Fate::Committing(c) if c > by && c > pin => {}
            Fate::Committed(_) | Fate::Committing(_) => return Ok(false),
            _ => return Ok(true), // cannot be: below a committed version all are committed
        }
        let Some(older) = NonNull::new(ver.older()) else { return Ok(false) };
        v = older;
    }
}
