//! Validation: is everything that was read still so at a CSN?

use super::{RecordRef, Txn};
use crate::csn::Csn;
use crate::error::{AbortReason, Error};
use crate::faults::{self, Fault};
use crate::platform::Platform;
use crate::primitive::Ordering;
use crate::range::Verdict;
use crate::record::Version;
use crate::shared::Fate;
use crate::table::Table;
use std::ptr::NonNull;

/// What stands in the way of a validation.
enum Outcome {
    Valid,
    Invalid(AbortReason),
}

impl Txn {
    /// Validates all reads and predicates at `csn`, which was taken before. It fails for writers
    /// that committed at or before it, waits for such as are about to, and ignores all others.
    pub(super) fn validate(&mut self, p: &dyn Platform, csn: Csn) -> Result<(), Error> {
        if faults::on(Fault::NoValidation) {
            return Ok(());
        }
        for i in 0..self.reads.len() {
            let (r, v) = (self.reads[i].r, self.reads[i].version);
            if let Outcome::Invalid(reason) = self.check_read(p, r, v, csn)? {
                return Err(self.fail(reason, r.touch()));
            }
        }
        let broken = {
            let mut broken = None;
            for pred in self.predicates.values() {
                if let Outcome::Invalid(reason) = self.check_predicate(p, &pred.at.partition().ring, pred.start, csn)? {
                    broken = Some((reason, pred.at));
                    break;
                }
            }
            broken
        };
        match broken {
            Some((reason, at)) => Err(self.fail(reason, at)),
            None => Ok(()),
        }
    }

    /// Validates at the present moment and remembers it.
    pub fn revalidate(&mut self, p: &dyn Platform) -> Result<(), Error> {
        let now = self.e.now();
        self.validate(p, now)?;
        self.valid = now;
        Ok(())
    }

    fn check_read(&self, p: &dyn Platform, r: RecordRef, seen: NonNull<Version>, csn: Csn) -> Result<Outcome, Error> {
        let mut v = r.rec.head();
        let mut n = 0;
        loop {
            if v == seen.as_ptr() {
                return Ok(Outcome::Valid);
            }
            let Some(nn) = NonNull::new(v) else { return Ok(Outcome::Invalid(AbortReason::ReadChanged)) };
            // SAFETY: INV-RETIRE: `seen` was newest under our pin, so nothing newer is freed.
            let ver = unsafe { nn.as_ref() };
            let (stamp, fate) = self.e.settle(p, || ver.stamp())?;
            match fate {
                _ if stamp == self.tag() => v = ver.older(),
                Fate::Committed(c) if c <= csn => return Ok(Outcome::Invalid(AbortReason::ReadChanged)),
                Fate::Committing(c) if c <= csn => {
                    p.pause(n)?;
                    n += 1;
                }
                _ => v = ver.older(),
            }
        }
    }

    fn check_predicate(
        &self,
        p: &dyn Platform,
        ring: &crate::range::Ring,
        start: u64,
        csn: Csn,
    ) -> Result<Outcome, Error> {
        let mut from = start;
        let mut n = 0;
        loop {
            let (stamp, next) = match ring.look(start, from, self.tag(), csn) {
                Verdict::Valid => return Ok(Outcome::Valid),
                Verdict::Wrapped => return Ok(Outcome::Invalid(AbortReason::PredicateWrapped)),
                Verdict::Look(stamp, next) => (stamp, next),
            };
            from = next - 1;
            match self.e.fate(stamp, || ring.still(next - 1, stamp)) {
                None => {} // finished meanwhile: look again
                Some(Fate::Committed(c)) if c <= csn => return Ok(Outcome::Invalid(AbortReason::Phantom)),
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
        self.revalidate(p)?;
        for i in 0..self.writes.len() {
            let w = self.writes[i];
            if w.superseded || w.base.is_none() || !std::ptr::eq(w.r.table, table) {
                continue;
            }
            if self.newest(p, w.r.rec)?.map(|(v, _)| v) != w.base {
                return Err(self.fail(AbortReason::WriteConflict, w.r.touch()));
            }
        }
        self.predicates.retain(|_, pred| !std::ptr::eq(pred.at.table, table));
        Ok(())
    }

    /// Forgets reads and predicates of nothing: tests break validation with it.
    #[doc(hidden)]
    pub fn break_validation(&mut self) {
        self.reads.clear();
        self.predicates.clear();
    }

    /// For unique checks: the id of the transaction that inserts or deletes this record, 0 if none.
    pub fn writer(&self, r: RecordRef) -> u32 {
        r.rec.writer.load(Ordering::SeqCst)
    }
}
