//! Reads: from a snapshot, or the newest committed version through the partition's protocols.

use super::{Predicate, ReadEntry, RecordRef, Txn};
use crate::csn::{Csn, Stamp};
use crate::error::Error;
use crate::faults::{self, Fault, Moment};
use crate::platform::{Platform, StopEvent};
use crate::protocol::{Protocol, ProtocolSet, Touch};
use crate::range::{Position, Verdict};
use crate::record::{Record, Version};
use crate::shared::Fate;
use std::ptr::NonNull;

/// Steps of waiting for a commit in progress before an older version is taken (and validated).
const SHORT: u32 = 100;

/// A version and the CSN of its commit.
pub type Committed = (NonNull<Version>, Csn);

impl Txn {
    /// The version that a snapshot at `csn` sees; tombstones and absence are `None`.
    ///
    /// Waits only for a transaction that is committing this very row at a CSN within the snapshot.
    pub fn read_snapshot(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        csn: Csn,
    ) -> Result<Option<NonNull<Version>>, Error> {
        self.touch(r.partition()).reads += 1;
        self.sample_access(r, false);
        if let Some(seen) = Self::settled(r.rec.head(), csn) {
            return Ok(seen);
        }
        let v = self.at_snapshot(p, r.rec, csn)?;
        Ok(v.map(|(v, _)| v).filter(|v| !self.is_tombstone(*v)))
    }

    /// What [`Txn::read_snapshot`] would return, where looking at the newest version tells; else `None`. It neither fails
    /// nor unwinds, and calls nobody.
    #[inline]
    pub fn peek_snapshot(&mut self, r: RecordRef, csn: Csn) -> Option<Option<NonNull<Version>>> {
        let seen = Self::settled(r.rec.head(), csn)?;
        self.touch(r.partition()).reads += 1;
        self.sample_access(r, false);
        Some(seen)
    }

    fn is_tombstone(&self, v: NonNull<Version>) -> bool {
        // SAFETY: INV-RETIRE: reached under our pin.
        unsafe { v.as_ref() }.is_tombstone()
    }

    /// The newest version committed at or before `csn`, tombstones included.
    pub fn at_snapshot(&self, p: &dyn Platform, rec: &Record, csn: Csn) -> Result<Option<Committed>, Error> {
        let mut v = rec.head();
        let mut n = 0;
        while let Some(nn) = NonNull::new(v) {
            // SAFETY: INV-RETIRE: we are pinned at or before `csn`, and stop at the first
            // version within the snapshot.
            let ver = unsafe { nn.as_ref() };
            let (stamp, fate) = self.e.settle(p, || ver.stamp())?;
            match fate {
                _ if stamp == self.tag() => v = ver.older(),
                Fate::Committed(c) if c <= csn => return Ok(Some((nn, c))),
                Fate::Committing(c) if c <= csn => {
                    p.pause(n)?;
                    n += 1;
                }
                _ => v = ver.older(),
            }
        }
        Ok(None)
    }

    /// The newest committed version, tombstones included; waits a moment for a commit in progress.
    pub fn newest(&self, p: &dyn Platform, rec: &Record) -> Result<Option<Committed>, Error> {
        let mut head = rec.head();
        faults::reached(Moment::Looked);
        let mut v = head;
        let mut n = 0;
        while let Some(nn) = NonNull::new(v) {
            // SAFETY: INV-RETIRE: we are pinned; nothing that was newest since then is freed.
            let ver = unsafe { nn.as_ref() };
            let stamp = ver.stamp();
            if !stamp.is_tag() && stamp != Stamp::ABORTED {
                return Ok(Some((nn, stamp.0)));
            }
            let (stamp, fate) = self.e.settle(p, || ver.stamp())?;
            // INV-INSERT: when we looked it may have been an insert that its owner has changed since.
            let may_be = v == head && matches!(fate, Fate::Committed(_) | Fate::Committing(_) | Fate::Aborted);
            if may_be && rec.head() != head {
                head = rec.head();
                v = head;
                continue;
            }
            match fate {
                _ if stamp == self.tag() => v = ver.older(),
                Fate::Committed(c) => return Ok(Some((nn, c))),
                Fate::Committing(_) if n < SHORT => {
                    p.pause(n)?;
                    n += 1;
                }
                _ => v = ver.older(),
            }
        }
        Ok(None)
    }

    /// The newest committed version of a record that has had a row since `csn` or before. Less than that if our pin is behind
    /// `csn`: then only rows that were not written since.
    pub fn row_since(&self, p: &dyn Platform, rec: &Record, csn: Csn) -> Result<Option<NonNull<Version>>, Error> {
        let Some((v, at)) = self.newest(p, rec)?.filter(|(v, _)| !self.is_tombstone(*v)) else { return Ok(None) };
        let old = at <= csn || self.e.pinned_at(self.slot) <= csn && self.at_snapshot(p, rec, csn)?.is_some();
        Ok(Some(v).filter(|_| old))
    }

    /// The newest version with a row, pending ones and those below tombstones included, if we may see it or an older one:
    /// for a look at columns that all versions of the record share.
    ///
    /// What a commit has replaced is retired at a value of the clock that is at least its CSN. Below a tombstone
    /// that committed before our pin lies what may be freed, and no snapshot or read of ours sees.
    pub fn any_row(&self, rec: &Record) -> Option<NonNull<Version>> {
        let pin = self.e.pinned_at(self.slot);
        let mut v = NonNull::new(rec.head())?;
        loop {
            // SAFETY: INV-RETIRE: the head, or what was replaced at or after our pin, or not yet.
            let ver = unsafe { v.as_ref() };
            if !ver.is_tombstone() {
                return Some(v);
            }
            let stamp = ver.stamp();
            match self.e.fate(stamp, || ver.stamp() == stamp) {
                None => continue, // stamped meanwhile
                Some(Fate::Committed(c)) if c < pin => return None,
                Some(_) => v = NonNull::new(ver.older())?,
            }
        }
    }

    /// A serializable read. `for_write`: the record will be written next.
    ///
    /// What it returns is consistent with everything read before: on meeting a version newer than
    /// the CSN at which all reads were last valid, they are validated again, or the transaction
    /// ends with a serialization failure.
    pub fn read(&mut self, p: &dyn Platform, r: RecordRef, for_write: bool) -> Result<Option<NonNull<Version>>, Error> {
        p.stop_event(StopEvent::Read)?;
        if let Some(v) = self.peek_row(r) {
            return Ok(Some(v));
        }
        if r.rec.head().is_null() {
            return Ok(None); // a free or dead record: the scan's predicate answers for it
        }
        // After the look at the head: a record's partition is set before its first version.
        let partition = r.partition();
        let protocols = self.follow(p, partition)?;
        protocols.read(self, p, r, for_write)?;
        self.touch(partition).reads += 1;
        self.sample_access(r, false);
        let Some((v, csn)) = self.newest(p, r.rec)? else {
            self.remember_absent(r);
            return Ok(None);
        };
        // A deleted row stays deleted: only live versions can change before we commit. (VACUUM may
        // take the record meanwhile.)
        let live = !self.is_tombstone(v);
        if live && protocols.validates() && self.reads.last().is_none_or(|e| e.version != Some(v)) {
            self.reads.push(ReadEntry { r, version: Some(v) });
        }
        if csn > self.valid {
            self.revalidate(p)?;
        }
        if r.rec.head() != v.as_ptr() {
            self.passed_over();
        }
        Ok(Some(v).filter(|_| live))
    }

    /// A read has found no row in a record, because the insert of another transaction is pending there.
    ///
    /// INV-VALID: that insert may commit with what this transaction reads later, and may have its CSN already. So the
    /// absence is validated like any read, unless a predicate on the partition answers for it; and where the
    /// inserter may have a CSN that is not after `valid`, the next read validates.
    #[cold]
    fn remember_absent(&mut self, r: RecordRef) {
        if r.rec.head().is_null() || faults::on(Fault::PendingIsForgotten) {
            return; // the insert was undone: the number is not used again under our pin
        }
        if !self.predicates.contains_key(&(r.partition() as *const _ as usize)) {
            self.reads.push(ReadEntry { r, version: None });
        }
        if self.is_committing_head(r) {
            self.passed_over();
        }
    }

    /// INV-VALID: a read has passed over a pending version, whose commit it did not wait for, and which may be
    /// older than `valid`.
    pub(super) fn passed_over(&mut self) {
        if !faults::on(Fault::PassesOver) {
            self.valid = 0;
        }
    }

    /// As [`Txn::read`], of a row whose key the transaction has locked, so that it is not deleted and keeps its key.
    /// Where everything that was read is the state at `valid`, this row is read so too, even if a newer version has
    /// been committed since: the transaction can commit at `valid` if it never writes.
    pub fn read_locked_key(&mut self, p: &dyn Platform, r: RecordRef) -> Result<Option<NonNull<Version>>, Error> {
        let optimistic = self.follow(p, r.partition())? == ProtocolSet::of(Protocol::Occ);
        if self.valid == 0 || !self.writes.is_empty() || !optimistic {
            return self.read(p, r, false);
        }
        let seen = self.at_snapshot(p, r.rec, self.valid)?.map(|(v, _)| v).filter(|v| !self.is_tombstone(*v));
        let Some(version) = seen else { return self.read(p, r, false) };
        self.touch(r.partition()).reads += 1;
        self.reads.push(ReadEntry { r, version: Some(version) });
        Ok(seen)
    }

    /// What [`Txn::read`] would return of a row that this transaction has not written, where looking at it and remembering
    /// that is all that it would do; else `None`. It neither fails nor unwinds, and calls nobody.
    ///
    /// INV-PEEK: the partition's protocols are followed before the row is looked at, and want no lock that is not ours; the
    /// newest version is settled (INV-SETTLED), so that it is valid with all that was read before.
    #[inline]
    pub fn peek_row(&mut self, r: RecordRef) -> Option<NonNull<Version>> {
        if !self.following || r.rec.head().is_null() {
            return None;
        }
        // After the look at the head: a record's partition is set before its first version.
        let partition = r.partition();
        let valid = self.valid;
        let t = self.follow_also(partition);
        if t.locks_more() {
            return None;
        }
        // The head again, behind the locks.
        let v = Self::settled(r.rec.head(), valid)??;
        t.reads += 1;
        if t.set.validates() && self.reads.last().is_none_or(|e| e.version != Some(v)) {
            self.reads.push(ReadEntry { r, version: Some(v) });
        }
        self.sample_access(r, false);
        Some(v)
    }

    /// Remembers a read that needed no lock: a failed unique check. Never sleeps.
    pub fn note_read(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        version: NonNull<Version>,
        csn: Csn,
    ) -> Result<(), Error> {
        self.reads.push(ReadEntry { r, version: Some(version) });
        if csn > self.valid {
            self.revalidate(p)?;
        }
        Ok(())
    }

    /// A scan of a partition starts: locks after its protocols, and from now on inserts into the
    /// partition are conflicts. Call it before the index is read.
    pub fn scan(&mut self, p: &dyn Platform, at: Touch) -> Result<(), Error> {
        self.before_scan(p, at)?;
        let now = self.e.now();
        let start = at.partition().ring.list().position();
        self.predicate(at, start, if start.is_quiet() { now } else { 0 });
        Ok(())
    }

    /// A look-up in a partition starts: locks after its protocols. Returns what
    /// [`Txn::add_predicate`] wants if the look-up finds nothing.
    pub fn before_lookup(&mut self, p: &dyn Platform, at: Touch) -> Result<u64, Error> {
        self.before_scan(p, at)?;
        Ok(at.partition().ring.list().position().low())
    }

    pub(super) fn before_scan(&mut self, p: &dyn Platform, at: Touch) -> Result<(), Error> {
        self.follow(p, at.partition())?.before_scan(self, p, at)
    }

    /// Inserts into the partition from this position on are conflicts.
    pub fn add_predicate(&mut self, at: Touch, start: u64) {
        self.predicate(at, Position::from_low(start), 0);
    }

    fn predicate(&mut self, at: Touch, start: Position, since: Csn) {
        let key = at.partition() as *const _ as usize;
        let map = at.table.map();
        let pred = self.predicates.entry(key).or_insert(Predicate { at, map, start, since });
        pred.start = pred.start.both(start);
        pred.since = pred.since.min(since);
        // Who registered since `start` may have committed before `valid`, unseen by the look-up.
        if at.partition().ring.list().look(&start, start.low(), self.tag(), self.valid) != Verdict::Valid {
            self.valid = 0;
        }
    }
}
