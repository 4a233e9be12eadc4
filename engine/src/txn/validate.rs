//! Validation: is everything that was read still so at a CSN?

use super::predicate::{Predicate, Side};
use super::{Level, RecordRef, Txn};
use crate::counts;
use crate::csn::Csn;
use crate::error::{AbortReason, Error};
use crate::faults::{self, Fault};
use crate::partition::{Partition, PartitionMap};
use crate::platform::Platform;
use crate::primitive::Ordering;
use crate::protocol::Touch;
use crate::range::{Entry, List, Position, Verdict};
use crate::record::Version;
use crate::shared::Fate;
use crate::table::Table;
use std::ptr::NonNull;

/// What stands in the way of a validation.
enum Outcome {
    Valid,
    /// Something that an open scan may not have read yet.
    Doubtful,
    Invalid(AbortReason),
}

impl Txn {
    /// What a commit validates at its number: everything, or below [`Level::Serializable`] what was scanned in ranges.
    pub(super) fn validate_all(&mut self, p: &dyn Platform, csn: Csn) -> Result<(), Error> {
        if self.level == Level::Serializable {
            self.validate_partitions(p, csn)?;
        }
        self.validate_ranges(p, csn, false).map(|_| ())
    }

    /// Validates reads, and predicates on partitions, at `csn`, which was taken before. It fails for writers
    /// that committed at or before it, waits for such as are about to, and ignores all others.
    fn validate_partitions(&mut self, p: &dyn Platform, csn: Csn) -> Result<(), Error> {
        if faults::on(Fault::NoValidation) {
            return Ok(());
        }
        for i in 0..self.reads.len() {
            let r = self.reads[i].r;
            let v = self.reads[i].version.map_or(std::ptr::null_mut(), NonNull::as_ptr);
            if self.is_newest(r, v) {
                counts::add(|w| w.records += 1);
                continue; // most of them
            }
            if let Outcome::Invalid(reason) = self.check_read(p, r, v, csn)? {
                return Err(self.fail(reason, r.touch()));
            }
        }
        let mut broken = None;
        for pred in self.predicates.values() {
            if !std::ptr::eq(pred.map, pred.at.table.map()) {
                // A savepoint's rollback gave the table's lock up, and others have changed its partitions since.
                broken = Some((AbortReason::Phantom, Touch { no: 0, ..pred.at }));
                break;
            }
            if let Outcome::Invalid(reason) = self.check_partition(p, pred, csn, |_, _| Ok(true))? {
                broken = Some((reason, pred.at));
                break;
            }
        }
        for q in &self.conditional {
            if broken.is_some() {
                break;
            }
            let pred = &q.predicate;
            if !std::ptr::eq(pred.map, pred.at.table.map()) {
                broken = Some((AbortReason::Phantom, Touch { no: 0, ..pred.at }));
            } else if let Outcome::Invalid(reason) =
                self.check_partition(p, pred, csn, |pos, by| self.is_met(p, q, (pos, by), csn))?
            {
                broken = Some((reason, pred.at));
            }
        }
        match broken {
            Some((reason, at)) => Err(self.fail(reason, at)),
            None => Ok(()),
        }
    }

    /// Validates a predicate on a partition. Where the ring has wrapped, what is in no entry any more does not matter if it
    /// is all over, and nothing of it committed after the scan began: it was aborted, or older.
    /// `matters`: see [`Txn::check_list`].
    fn check_partition(
        &self,
        p: &dyn Platform,
        pred: &super::Predicate,
        csn: Csn,
        matters: impl Fn(u64, Csn) -> Result<bool, Error>,
    ) -> Result<Outcome, Error> {
        const TRIES: u32 = 4;
        let list = pred.at.partition().ring.list();
        let mut outcome = self.check_list(p, list, &pred.start, csn, |_| Some(Side::Read), &matters)?;
        for _ in 0..TRIES {
            if !matches!(outcome, Outcome::Invalid(AbortReason::PredicateWrapped)) || pred.since == 0 {
                break;
            }
            let older = |pos| match list.stamp_of(pos)? {
                s if !s.is_tag() && s.0 <= pred.since => Some(Side::Outside),
                _ => Some(Side::Read),
            };
            // Others may register meanwhile, and overwrite what was the oldest: then once more.
            outcome = self.check_list(p, list, &list.oldest(), csn, older, &matters)?;
            // After that: what was looked at has not been overwritten before.
            if matches!(outcome, Outcome::Valid) && !list.has_lost_nothing_since(pred.since) {
                return Ok(Outcome::Invalid(AbortReason::PredicateWrapped));
            }
        }
        Ok(outcome)
    }

    /// Validates what was scanned in ranges of indexes. `middle`: the transaction goes on; then a conflict in what
    /// an open scan may not have read yet is not a failure. Is there none of these either?
    fn validate_ranges(&mut self, p: &dyn Platform, csn: Csn, middle: bool) -> Result<bool, Error> {
        if faults::on(Fault::NoValidation) {
            return Ok(true);
        }
        let mut certain = true;
        for i in 0..self.ranged.len() {
            let mut outcome = self.check_predicate(p, self.ranged.get(i), csn, middle)?;
            if matches!(outcome, Outcome::Doubtful) && self.ranged.ask_reached(p, i) {
                outcome = self.check_predicate(p, self.ranged.get(i), csn, middle)?;
            }
            match outcome {
                Outcome::Valid => {}
                Outcome::Doubtful => certain = false,
                Outcome::Invalid(reason) => {
                    let at = self.ranged.get(i).at;
                    return Err(self.fail(reason, at));
                }
            }
        }
        Ok(certain)
    }

    /// Validates at the present moment and remembers it.
    pub fn revalidate(&mut self, p: &dyn Platform) -> Result<(), Error> {
        let now = self.e.now();
        self.validate_partitions(p, now)?;
        self.valid = if self.validate_ranges(p, now, true)? { now } else { 0 };
        Ok(())
    }

    /// Is what was read of a record still its newest version, but for a write of ours that is linked right above it? (At any
    /// CSN then: what commits later has a larger one.) `seen`: null if there was no row.
    #[inline]
    fn is_newest(&self, r: RecordRef, seen: *mut Version) -> bool {
        let head = r.rec.head();
        let ours = |v: NonNull<Version>| {
            // SAFETY: INV-RETIRE: reached under our pin.
            let v = unsafe { v.as_ref() };
            v.stamp() == self.tag() && v.older() == seen
        };
        head == seen || NonNull::new(head).is_some_and(ours)
    }

    /// Is what was read of a record (null: no row) still so at `csn`?
    fn check_read(&self, p: &dyn Platform, r: RecordRef, seen: *mut Version, csn: Csn) -> Result<Outcome, Error> {
        counts::add(|w| w.records += 1);
        let mut v = r.rec.head();
        let mut n = 0;
        loop {
            if v == seen {
                return Ok(Outcome::Valid);
            }
            let Some(nn) = NonNull::new(v) else { return Ok(Outcome::Invalid(AbortReason::ReadChanged)) };
            // SAFETY: INV-RETIRE: `seen` was newest under our pin, or no version was committed: nothing newer is freed.
            let ver = unsafe { nn.as_ref() };
            let (stamp, fate) = self.e.settle(p, || ver.stamp())?;
            match fate {
                _ if stamp == self.tag() => v = ver.older(),
                Fate::Committed(c) if c <= csn => return Ok(Outcome::Invalid(AbortReason::ReadChanged)),
                Fate::Committing(c) if c <= csn && n >= p.patience() => {
                    return Ok(Outcome::Invalid(AbortReason::ReadChanged))
                }
                Fate::Committing(c) if c <= csn => {
                    p.pause(n)?;
                    n += 1;
                }
                _ => v = ver.older(),
            }
        }
    }

    fn check_predicate(&self, p: &dyn Platform, q: &Predicate, csn: Csn, middle: bool) -> Result<Outcome, Error> {
        let mut doubtful = false;
        let unknown = q.ranges.unknown().list();
        if !unknown.is_unchanged(&q.unknown) {
            let side = if middle && q.is_open() { Side::Unread } else { Side::Read };
            match self.check_list(p, unknown, &q.unknown, csn, |_| Some(side), |_, _| Ok(true))? {
                Outcome::Valid => {}
                Outcome::Doubtful => doubtful = true,
                Outcome::Invalid(AbortReason::PredicateWrapped) if side == Side::Unread => doubtful = true,
                bad => {
                    q.ranges.unknown_aborts.fetch_add(1, Ordering::Relaxed);
                    return Ok(bad);
                }
            }
        }
        for no in q.first..=q.last {
            let (list, start) = (q.set.list(no), self.ranged.start(q, no));
            counts::add(|w| w.lists += 1);
            if list.is_unchanged(&start) {
                continue;
            }
            let side = |pos| {
                // A covered range: every key is in it, so which one it is matters only where rows are locked.
                if q.covers(no) && !(middle && q.is_open()) && !q.may_spare() {
                    return Some(Side::Read);
                }
                let key = list.key(pos)?;
                if key.is_existing() && self.ranged.spares(q, no, pos) {
                    return Some(Side::Outside);
                }
                Some(self.ranged.side(p, q, no, key.bytes(), middle))
            };
            match self.check_list(p, list, &start, csn, side, |_, _| Ok(true))? {
                Outcome::Valid => {}
                Outcome::Doubtful => doubtful = true,
                Outcome::Invalid(AbortReason::PredicateWrapped) if middle && q.is_open() => doubtful = true,
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

    /// Looks at the registrations of a list. `side`: where the one at a position lies; `None`: it is not there any more.
    /// `matters`: is what was registered at a position, and committed at a CSN, a conflict?
    fn check_list<E: Entry>(
        &self,
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
            let (stamp, next) = match list.look(start, from, self.tag(), csn) {
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
            if stamp == self.tag() || !stamp.is_tag() && stamp.0 > csn {
                return Ok(Outcome::Invalid(AbortReason::Phantom)); // a fault: neither own ones nor these count
            }
            match self.e.fate(stamp, || list.still(next - 1, stamp)) {
                None => {} // finished meanwhile: look again
                Some(Fate::Committed(c) | Fate::Committing(c)) if c <= csn && side == Side::Unread => {
                    (doubtful, from) = (true, next);
                }
                Some(Fate::Committed(c)) if c <= csn && matters(from, c)? => {
                    return Ok(Outcome::Invalid(AbortReason::Phantom));
                }
                Some(Fate::Committing(c)) if c <= csn && n >= p.patience() => {
                    return Ok(Outcome::Invalid(AbortReason::Phantom))
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

    /// The caller excludes everybody else from a table until this transaction ends, and is about to
    /// change its partitions or their protocols. Validates now what was read of it and what our
    /// writes replace; from then on nothing of it can change, and its predicates are over.
    pub fn settle_table(&mut self, p: &dyn Platform, table: &Table) -> Result<(), Error> {
        if !self.is_active() {
            return Ok(());
        }
        let now = self.e.now();
        self.validate_all(p, now)?;
        self.valid = now;
        for i in 0..self.writes.len() {
            let w = self.writes[i];
            if w.superseded || w.base.is_none() || !std::ptr::eq(w.r.table, table) {
                continue;
            }
            if self.newest(p, w.r.rec)?.map(|(v, _)| v) != w.base {
                return Err(self.fail(AbortReason::WriteConflict, w.r.touch()));
            }
        }
        self.touched.forget_locks(); // a new map may lie where one was
        if self.forget_predicates(table) {
            self.settled.push(table.id);
        }
        Ok(())
    }

    /// A subtransaction is about to be undone that has changed a table's partitions to `undone`. Is there anything of the table,
    /// read in it or before, that nothing protects but the exclusion of everybody else? Reads are protected by locks of the
    /// partitions that go, and predicates by their ranges; those from before the change are over (see [`Txn::settle_table`]).
    pub fn relies_on_exclusion(&self, table: &Table, undone: &PartitionMap) -> bool {
        if !self.is_active() {
            return false;
        }
        let of_undone = |p: &Partition| undone.partitions().as_ptr_range().contains(&std::ptr::from_ref(p));
        self.settled.contains(&table.id)
            || self.predicates.values().any(|pred| std::ptr::eq(pred.at.table, table))
            || self.conditional.iter().any(|q| std::ptr::eq(q.predicate.at.table, table))
            || self.ranged.views().any(|q| std::ptr::eq(q.ranges.table(), table))
            || !self.absent.is_empty()
            || self.level == Level::Serializable && self.touched.iter().any(|t| t.reads > 0 && of_undone(t.partition))
    }

    /// A subtransaction that has changed a table's partitions is undone. Its predicates name partitions that are gone: they are
    /// over. The caller still excludes everybody else from the table, to the transaction's end, or nothing of it was read
    /// ([`Txn::relies_on_exclusion`]).
    pub fn unsettle_table(&mut self, table: &Table) {
        self.forget_predicates(table);
    }

    /// Forgets the predicates of a table. Were there any?
    fn forget_predicates(&mut self, table: &Table) -> bool {
        let count = |t: &Txn| t.predicates.len() + t.conditional.len() + t.ranged.len();
        let before = count(self);
        self.predicates.retain(|_, pred| !std::ptr::eq(pred.at.table, table));
        self.conditional.retain(|q| !std::ptr::eq(q.predicate.at.table, table));
        self.ranged.retain(|q| !std::ptr::eq(q.ranges.table(), table));
        count(self) < before
    }

    /// Forgets reads and predicates of nothing: tests break validation with it.
    #[doc(hidden)]
    pub fn break_validation(&mut self) {
        self.reads.clear();
        self.predicates.clear();
        self.conditional.clear();
        self.ranged.clear();
    }

    /// For unique checks: the id of the transaction that inserts or deletes this record, 0 if none.
    pub fn writer(&self, r: RecordRef) -> u32 {
        r.rec.writer.load(Ordering::SeqCst)
    }
}
