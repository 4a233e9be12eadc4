//! Validation: is everything that the transaction has read the same at a CSN?

use super::predicate::{Predicate, Side};
use super::scan_set::{PartitionPredicate, ScanSet};
use super::{Failure, Level, Owner, Txn};
use crate::counts;
use crate::csn::Csn;
use crate::error::{AbortReason, Error};
use crate::faults::{self, Fault};
use crate::partition::PartitionMap;
use crate::platform::Platform;
use crate::primitive::Ordering;
use crate::protocol::Touch;
use crate::range::{Entry, List, Position, Verdict};
use crate::shared::Fate;
use crate::table::Table;

/// What stands in the way of a validation.
enum Outcome {
    Valid,
    /// A write that an open scan may not have come to yet.
    Doubtful,
    Invalid(AbortReason),
}

impl Txn {
    /// What a commit validates at its number: everything, or below [`Level::Serializable`] what was
    /// scanned in ranges.
    pub(super) fn validate_all(&mut self, p: &dyn Platform, csn: Csn) -> Result<(), Error> {
        if self.level == Level::Serializable {
            self.validate_partitions(p, csn)?;
        }
        self.validate_ranges(p, csn, false).map(|_| ())
    }

    /// Validates reads, and predicates on partitions, at `csn`, which was taken before. It fails
    /// for writers that committed at or before `csn`, waits for those that are about to, and
    /// ignores all others.
    fn validate_partitions(&mut self, p: &dyn Platform, csn: Csn) -> Result<(), Error> {
        if faults::on(Fault::NoValidation) {
            return Ok(());
        }
        let read = self.reads.validate(&self.owner, p, csn);
        let valid = read.and_then(|()| self.scans.validate_partitions(&self.owner, p, csn));
        valid.map_err(|f| self.fail_by(f))
    }

    /// Validates the scans of ranges of indexes. `middle`: the transaction goes on. Then a conflict
    /// that an open scan may not have come to yet is no failure. Is there none of these either?
    fn validate_ranges(&mut self, p: &dyn Platform, csn: Csn, middle: bool) -> Result<bool, Error> {
        if faults::on(Fault::NoValidation) {
            return Ok(true);
        }
        let valid = self.scans.validate_ranges(&self.owner, p, csn, middle);
        valid.map_err(|f| self.fail_by(f))
    }

    /// Validates at the present moment, and remembers that moment.
    pub fn revalidate(&mut self, p: &dyn Platform) -> Result<(), Error> {
        let now = self.depends.look(&self.owner.e);
        self.validate_partitions(p, now)?;
        self.valid = if self.validate_ranges(p, now, true)? { now } else { 0 };
        Ok(())
    }

    /// The caller excludes all other transactions from a table until this one ends, and is about to
    /// change the table's partitions or their protocols. Validates now what we have read of the
    /// table, and what our writes replace. Nothing of it can change from then on, and its
    /// predicates are over.
    pub fn settle_table(&mut self, p: &dyn Platform, table: &Table) -> Result<(), Error> {
        if !self.is_active() {
            return Ok(());
        }
        self.thaw(p)?;
        let now = self.e.now();
        self.validate_all(p, now)?;
        self.valid = now;
        self.compare_bases(p, table)?;
        self.touched.forget_locks(); // a new map may lie where one was
        self.scans.settle_table(table);
        Ok(())
    }

    /// Fails if a row of the table that we have written has a newer version than the one that our
    /// write replaces.
    fn compare_bases(&mut self, p: &dyn Platform, table: &Table) -> Result<(), Error> {
        for i in 0..self.writes.len() {
            let w = self.writes.at(i);
            if w.superseded || w.base.is_none() || !std::ptr::eq(w.r.table, table) {
                continue;
            }
            let newest = self.newest(p, w.r.rec)?;
            if newest.map(|(v, _)| v) != w.base {
                return Err(self.write_conflict(w.r, newest));
            }
        }
        Ok(())
    }

    /// A subtransaction that has changed a table's partitions to `undone` is about to be undone.
    /// Has the transaction read anything of the table, then or before, that only the exclusion of
    /// all others protects?
    ///
    /// Reads are protected by locks of the partitions that go, and predicates by their ranges.
    /// Those from before the change are over (see [`Txn::settle_table`]).
    pub fn relies_on_exclusion(&self, table: &Table, undone: &PartitionMap) -> bool {
        if !self.is_active() {
            return false;
        }
        self.scans.may_have_scanned(table)
            || self.level == Level::Serializable && self.touched.has_read_in(undone.partitions())
    }

    /// A subtransaction that has changed a table's partitions is undone. The table's predicates
    /// name partitions that are gone: they are over. Either the caller still excludes all others
    /// from the table, to the transaction's end, or nothing of it was read
    /// ([`Txn::relies_on_exclusion`]).
    pub fn unsettle_table(&mut self, table: &Table) {
        self.scans.forget_table(table);
    }

    /// Forgets reads and predicates: tests break validation with it.
    #[doc(hidden)]
    pub fn break_validation(&mut self) {
        self.reads.forget();
        self.scans.forget_predicates();
    }
}

impl ScanSet {
    /// Validates the predicates on partitions at `csn`.
    fn validate_partitions(&self, owner: &Owner, p: &dyn Platform, csn: Csn) -> Result<(), Failure> {
        for pred in self.partitions.values() {
            check_partition(owner, p, pred, csn, |_, _| Ok(true))?;
        }
        for q in &self.conditional {
            let is_met = |pos, by| q.is_met(owner, p, (pos, by), csn);
            check_partition(owner, p, &q.predicate, csn, is_met)?;
        }
        Ok(())
    }

    /// See [`Txn::validate_ranges`].
    fn validate_ranges(&mut self, owner: &Owner, p: &dyn Platform, csn: Csn, middle: bool) -> Result<bool, Failure> {
        let mut certain = true;
        for i in 0..self.ranged.len() {
            let mut outcome = self.check_ranges(owner, p, i, csn, middle)?;
            if matches!(outcome, Outcome::Doubtful) && self.ranged.ask_reached(p, i) {
                outcome = self.check_ranges(owner, p, i, csn, middle)?;
            }
            match outcome {
                Outcome::Valid => {}
                Outcome::Doubtful => certain = false,
                Outcome::Invalid(reason) => {
                    return Err(Failure::Conflict(reason, self.ranged.get(i).at));
                }
            }
        }
        Ok(certain)
    }

    /// Looks at the registrations in the ranges of the predicate `i`.
    fn check_ranges(
        &self,
        owner: &Owner,
        p: &dyn Platform,
        i: usize,
        csn: Csn,
        middle: bool,
    ) -> Result<Outcome, Error> {
        let q = self.ranged.get(i);
        let open = middle && q.is_open();
        let mut doubtful = false;
        match check_unknown(owner, p, q, csn, open)? {
            Outcome::Valid => {}
            Outcome::Doubtful => doubtful = true,
            bad => return Ok(bad),
        }
        for no in q.first..=q.last {
            let (list, start) = (q.set.list(no), self.ranged.start(q, no));
            counts::add(|w| w.lists += 1);
            if list.is_unchanged(&start) {
                continue;
            }
            let side = |pos| {
                // Every key is in a covered range. What the registration says matters only to scans
                // that have locked rows, or have not looked at all columns.
                if q.covers(no) && !open && q.counts_all() {
                    return Some(Side::Read);
                }
                let key = list.key(pos)?;
                if q.passes_over(&key) || self.ranged.spares(q, no, pos, &key) {
                    return Some(Side::Outside);
                }
                Some(self.ranged.side(p, q, no, key.bytes(), middle))
            };
            match check_list(owner, p, list, &start, csn, side, |_, _| Ok(true))? {
                Outcome::Valid => {}
                Outcome::Doubtful => doubtful = true,
                Outcome::Invalid(AbortReason::PredicateWrapped) if open => doubtful = true,
                Outcome::Invalid(reason) => {
                    let r = q.set.range(no);
                    let c = if reason == AbortReason::PredicateWrapped { &r.wraps } else { &r.aborts };
                    c.fetch_add(1, Ordering::Relaxed);
                    return Ok(Outcome::Invalid(reason));
                }
            }
        }
        Ok(if doubtful { Outcome::Doubtful } else { Outcome::Valid })
    }
}

/// Looks at the registrations of unknown keys. `open`: the scan is open, and goes on.
fn check_unknown(owner: &Owner, p: &dyn Platform, q: &Predicate, csn: Csn, open: bool) -> Result<Outcome, Error> {
    let unknown = q.ranges.unknown().list();
    if unknown.is_unchanged(&q.unknown) {
        return Ok(Outcome::Valid);
    }
    let side = if open { Side::Unread } else { Side::Read };
    match check_list(owner, p, unknown, &q.unknown, csn, |_| Some(side), |_, _| Ok(true))? {
        Outcome::Invalid(AbortReason::PredicateWrapped) if open => Ok(Outcome::Doubtful),
        Outcome::Invalid(reason) => {
            q.ranges.unknown_aborts.fetch_add(1, Ordering::Relaxed);
            Ok(Outcome::Invalid(reason))
        }
        outcome => Ok(outcome),
    }
}

/// Validates a predicate on a partition. `matters`: see [`check_list`].
///
/// Where the ring has wrapped, the registrations that it has lost do not matter if all of them are
/// finished and none committed after the scan began: they were aborted, or are older.
fn check_partition(
    owner: &Owner,
    p: &dyn Platform,
    pred: &PartitionPredicate,
    csn: Csn,
    matters: impl Fn(u64, Csn) -> Result<bool, Error>,
) -> Result<(), Failure> {
    const TRIES: u32 = 4;
    if !pred.has_its_map() {
        // The rollback of a savepoint gave up the table's lock, and another transaction has changed
        // the table's partitions since.
        return Err(Failure::Conflict(AbortReason::Phantom, Touch { no: 0, ..pred.at }));
    }
    let list = pred.at.partition().ring.list();
    let mut outcome = check_list(owner, p, list, &pred.start, csn, |_| Some(Side::Read), &matters)?;
    for _ in 0..TRIES {
        if !matches!(outcome, Outcome::Invalid(AbortReason::PredicateWrapped)) || pred.since == 0 {
            break;
        }
        let older = |pos| match list.stamp_of(pos)? {
            s if !s.is_tag() && s.0 <= pred.since => Some(Side::Outside),
            _ => Some(Side::Read),
        };
        // Other writers may register meanwhile, and overwrite what was the oldest. Then once more.
        outcome = check_list(owner, p, list, &list.oldest(), csn, older, &matters)?;
        // Asked after that: no entry was overwritten before it was looked at.
        if matches!(outcome, Outcome::Valid) && !list.has_lost_nothing_since(pred.since) {
            outcome = Outcome::Invalid(AbortReason::PredicateWrapped);
            break;
        }
    }
    match outcome {
        Outcome::Invalid(reason) => Err(Failure::Conflict(reason, pred.at)),
        Outcome::Valid | Outcome::Doubtful => Ok(()),
    }
}

/// Looks at the registrations of a list.
///
/// `side`: where the registration at a position lies; `None`: it is not there any more. `matters`:
/// is what was registered at a position, and committed at a CSN, a conflict?
fn check_list<E: Entry>(
    owner: &Owner,
    p: &dyn Platform,
    list: List<'_, E>,
    start: &Position,
    csn: Csn,
    side: impl Fn(u64) -> Option<Side>,
    matters: impl Fn(u64, Csn) -> Result<bool, Error>,
) -> Result<Outcome, Error> {
    let mut from = start.low();
    let mut n = 0;
    let mut doubtful = false;
    loop {
        let (stamp, next) = match list.look(start, from, owner.tag(), csn) {
            Verdict::Valid if doubtful => return Ok(Outcome::Doubtful),
            Verdict::Valid => return Ok(Outcome::Valid),
            Verdict::Wrapped => return Ok(Outcome::Invalid(AbortReason::PredicateWrapped)),
            Verdict::Look(stamp, next) => (stamp, next),
        };
        from = next - 1;
        let Some(side) = side(from) else { continue }; // the next look finds that it wrapped
        if side == Side::Outside {
            from = next;
            continue;
        }
        if stamp == owner.tag() || !stamp.is_tag() && stamp.0 > csn {
            return Ok(Outcome::Invalid(AbortReason::Phantom)); // only under a fault
        }
        match owner.e.fate(stamp, || list.still(next - 1, stamp)) {
            None => {} // finished meanwhile: look again
            Some(Fate::Committed(c) | Fate::Committing(c)) if c <= csn && side == Side::Unread => {
                (doubtful, from) = (true, next);
            }
            Some(Fate::Committed(c)) if c <= csn && matters(from, c)? => {
                owner.meets(stamp);
                return Ok(Outcome::Invalid(AbortReason::Phantom));
            }
            Some(Fate::Committing(c)) if c <= csn && (n >= p.patience() || owner.has_succeeded(p, stamp, c)) => {
                owner.meets(stamp);
                return Ok(Outcome::Invalid(AbortReason::Phantom));
            }
            Some(Fate::Committing(c)) if c <= csn => {
                p.pause(n)?;
                n += 1;
            }
            Some(Fate::Preparing) => {
                p.pause(n)?;
                n += 1;
            }
            Some(_) => from = next,
        }
    }
}
