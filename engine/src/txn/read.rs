//! Reads: from a snapshot, or the newest committed version through the partition's protocols.
//!
//! **INV-VALID**: All that a serializable transaction has looked at is the state at its CSN
//! `valid`, or `valid` is 0. Of a row it has looked at the columns that it has named (INV-LOOKED),
//! and that the row is there. A read that passes over a pending version sets `valid` to 0 if the
//! version's owner may have a CSN at or below it. A read that finds no row below a pending insert
//! remembers that, unless a predicate answers for it.
//!
//! **INV-EXISTS**: A look at a row's key alone ([`Txn::read_key`]) tells that the row is there, and
//! no more. A record keeps its key, so only a tombstone makes the answer wrong. The look is
//! remembered as one at no column, past which a validation lets all versions but tombstones. Under
//! a protocol that locks rows to read them it locks the key to the end of the transaction, which
//! spares it failures. Both outlive a savepoint that is rolled back. The row is there at `valid`:
//! one of its versions has a CSN at or below that, and no tombstone came before the look.
//!
//! **INV-PEEK**: A read by a look follows the partition's protocols before it looks, and needs no
//! lock that the transaction does not hold, or that is not free at once. It sees a settled version
//! (INV-SETTLED), and remembers it like any read.
//!
//! **INV-LOCKED-LOOK**: A look that takes a lock looks again under it, and tells what it has seen
//! only if that is the newest version still. From then on the lock keeps it so, as after a read
//! that has waited for it. What the caller has found out about that version holds for the row. If
//! its key was compared, then the row with that key is there, and no other transaction deletes or
//! moves it before this one ends. A key has one row at most (INV-UNIQUE), so no other row with it
//! can appear to the transaction, and neither a range nor a gap needs protection. If another
//! version is there, or none, the look tells nothing. The lock stays: a read of the row takes the
//! same one, and a lock more than needed is always right. Absence is proved and protected by the
//! search that follows.

use super::versions::{is_tombstone, settled, settled_in};
use super::{RecordRef, Txn};
use crate::csn::Csn;
use crate::error::Error;
use crate::faults::{self, Fault, Moment};
use crate::open::Seen;
use crate::platform::{Platform, StopEvent};
use crate::protocol::{ProtocolSet, Reading, Touch};
use crate::range::{Columns, Position};
use crate::record::Version;
use std::ptr::NonNull;

/// A transaction that remembers so many reads locks rows for its next looks.
const MOST_KEYS: usize = 1000;

/// What a row is looked at for, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// These columns of it (INV-LOOKED).
    Columns(Columns),
    /// Its key alone (INV-EXISTS).
    Key,
    /// It will be written next.
    Write,
}

impl Peek {
    #[inline]
    fn reading(self) -> (Reading, Columns) {
        match self {
            Peek::Columns(looked) => (Reading::Row, looked),
            Peek::Key => (Reading::Key, Columns::NONE),
            Peek::Write => (Reading::ToWrite, Columns::ALL),
        }
    }
}

impl Txn {
    /// The version that a snapshot sees; tombstones and absence are `None`.
    ///
    /// Waits only for a transaction that is committing this very row at a CSN within the snapshot.
    pub fn read_snapshot(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        seen: Seen<'_>,
    ) -> Result<Option<NonNull<Version>>, Error> {
        self.touch(r.partition()).reads += 1;
        self.sample_access(r, false);
        let found = match settled_in(r.rec.head(), &seen) {
            Some((v, csn)) => (v, csn),
            None => match self.at_snapshot(p, r.rec, seen)? {
                Some((v, csn)) => (Some(v).filter(|v| !is_tombstone(*v)), csn),
                None => return Ok(None),
            },
        };
        self.depends.note(found.1);
        Ok(found.0)
    }

    /// What [`Txn::read_snapshot`] would return, if a look at the newest version is enough to know
    /// it; else `None`. It neither fails nor unwinds, and does not call the platform.
    #[inline]
    pub fn peek_snapshot(&mut self, r: RecordRef, seen: Seen<'_>) -> Option<Option<NonNull<Version>>> {
        self.peek_seen(r, &seen, self.plain_in(&seen))
    }

    /// The snapshot sees all commits up to this CSN, and reads of them need not be noted.
    #[inline]
    pub(super) fn plain_in(&self, seen: &Seen<'_>) -> Csn {
        seen.floor.min(self.depends.unnoted_upto())
    }

    /// [`Txn::peek_snapshot`]. `plain`: what [`Txn::plain_in`] has returned for the snapshot.
    #[inline(always)]
    pub(super) fn peek_seen(&mut self, r: RecordRef, seen: &Seen<'_>, plain: Csn) -> Option<Option<NonNull<Version>>> {
        let found = match settled(r.rec.head(), plain) {
            Some(found) => found,
            None => self.peek_newer(r, seen)?,
        };
        self.touch(r.partition()).reads += 1;
        self.sample_access(r, false);
        Some(found)
    }

    /// The same of a version that is newer.
    #[cold]
    pub(super) fn peek_newer(&mut self, r: RecordRef, seen: &Seen<'_>) -> Option<Option<NonNull<Version>>> {
        let (found, csn) = settled_in(r.rec.head(), seen)?;
        self.depends.note(csn);
        Some(found)
    }

    /// A serializable read of a whole row. `for_write`: the record will be written next.
    ///
    /// What it returns is consistent with everything read before. If it meets a version newer than
    /// `valid`, it validates all reads again, or the transaction ends with a serialization failure.
    pub fn read(&mut self, p: &dyn Platform, r: RecordRef, for_write: bool) -> Result<Option<NonNull<Version>>, Error> {
        self.read_as(p, r, for_write, Columns::ALL)
    }

    /// The same of a row of which the transaction looks at these columns, and on which it bases no
    /// write or lock of the row (INV-LOOKED).
    pub fn read_columns(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        looked: Columns,
    ) -> Result<Option<NonNull<Version>>, Error> {
        self.read_as(p, r, false, looked)
    }

    /// A serializable look that tells whether a row is there, with the key that its record has. Of
    /// the version that is returned nothing but the key may be used (INV-EXISTS).
    pub fn read_key(&mut self, p: &dyn Platform, r: RecordRef) -> Result<Option<NonNull<Version>>, Error> {
        self.read_how(p, r, Reading::Key, Columns::NONE)
    }

    #[inline]
    fn read_as(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        for_write: bool,
        looked: Columns,
    ) -> Result<Option<NonNull<Version>>, Error> {
        self.read_how(p, r, Reading::of(for_write), looked)
    }

    #[inline]
    fn read_how(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        why: Reading,
        looked: Columns,
    ) -> Result<Option<NonNull<Version>>, Error> {
        p.stop_event(StopEvent::Read)?;
        if let Some(v) = self.peek_as(p, r, why, looked) {
            return Ok(Some(v));
        }
        if r.rec.head().is_null() {
            return Ok(None); // a free or dead record: the scan's predicate answers for it
        }
        if why == Reading::ToWrite {
            self.acts = true;
            return self.read_newest(p, r, why, looked);
        }
        // After the look at the head: a record's partition is set before its first version.
        if self.is_frozen() && self.reads_frozen(p, r.partition())? {
            return self.read_frozen(p, r, looked);
        }
        self.read_newest(p, r, why, looked).or_else(|e| {
            self.freeze(p, e)?;
            self.read_frozen(p, r, looked)
        })
    }

    /// Reads the newest version through the partition's protocols. `Reading::Key`: nothing but the
    /// key is looked at.
    fn read_newest(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        why: Reading,
        looked: Columns,
    ) -> Result<Option<NonNull<Version>>, Error> {
        let partition = r.partition();
        let protocols = self.follow(p, partition)?;
        self.lock_listed(p, r, protocols)?;
        let locks = self.reading_as(p, r, (why, looked), protocols);
        let key = locks == Reading::Key;
        let alone = why == Reading::Key && key;
        protocols.read(self, p, r, locks)?;
        self.touch(partition).reads += 1;
        self.sample_access(r, false);
        let Some((v, csn)) = self.newest_settled(p, r)? else {
            self.remember_absent(p, r)?;
            return Ok(None);
        };
        // A deleted row stays deleted: only live versions can change before we commit. (VACUUM may
        // take the record meanwhile.)
        let live = !is_tombstone(v);
        let remembers = protocols.validates_reads() || key && !faults::on(Fault::KeyLookForgotten);
        if live && remembers && !self.trusts_heat(r) {
            self.reads.add_new(r, v, looked);
        }
        let was_there = alone && csn > self.valid && self.row_since(p, r.rec, self.valid)?.is_some();
        if csn > self.valid && !was_there && !self.revalidate_read(p, r.touch())? {
            return self.read_frozen(p, r, looked);
        }
        self.depends.note(csn);
        // VACUUM may have taken a deleted row.
        let passed = live && r.rec.head() != v.as_ptr() && !(alone && self.leaves_row(r, v));
        if passed && !self.is_as_of_valid(p, r, v.as_ptr())? {
            self.passed_over();
        }
        Ok(Some(v).filter(|_| live))
    }

    /// As what a look-up reads a row: one of columns that updates hardly change is one of the key
    /// where only locks protect it, and where it locks only what is hot. Such a look is remembered.
    #[inline]
    fn reading_as(
        &self,
        p: &dyn Platform,
        r: RecordRef,
        (why, looked): (Reading, Columns),
        protocols: ProtocolSet,
    ) -> Reading {
        match why {
            Reading::Row if protocols.only_locks_hot() && self.passes_heat(p, r, looked) => Reading::Key,
            _ if !protocols.only_locks_reads() => why,
            Reading::Key if self.reads.len() >= MOST_KEYS => Reading::Row,
            Reading::Row if self.looks_at_key(p, r, looked) => Reading::Key,
            why => why,
        }
    }

    /// Does a look-up of these columns lock the key of the row alone? It may always do so
    /// (INV-LOOKED). It had better not where updates change them, where the transaction will
    /// probably write the row, or where a change would fail it although it only reads. Nor after
    /// many reads: each such look is remembered, and validated again and again.
    #[inline]
    fn looks_at_key(&self, p: &dyn Platform, r: RecordRef, looked: Columns) -> bool {
        !r.table.changing.meets(looked)
            && !r.partition().intents.expects_write(r.no)
            && !(self.retry.locks_rows && !faults::on(Fault::RetriesLookAgain))
            && self.reads.len() < MOST_KEYS
            && !self.reads.at_commit
            && p.freezes_readers()
    }

    /// Does a look-up of these columns leave a hot row unlocked? Those that make the row hot change
    /// other columns, and so do not fail it (INV-LOOKED). But it keeps them waiting, and they it.
    #[inline]
    fn passes_heat(&self, p: &dyn Platform, r: RecordRef, looked: Columns) -> bool {
        looked != Columns::ALL && self.is_hot(r) && self.looks_at_key(p, r, looked)
    }

    /// A read has found no row in a record, because the insert of another transaction is pending
    /// there.
    ///
    /// INV-VALID: that insert may commit together with what this transaction reads later, and may
    /// have its CSN already. So the absence is validated like any read, unless a predicate on the
    /// partition answers for it. If the CSN of the inserter may be at or below `valid`, the next
    /// read validates.
    #[cold]
    fn remember_absent(&mut self, p: &dyn Platform, r: RecordRef) -> Result<(), Error> {
        if r.rec.head().is_null() || faults::on(Fault::PendingIsForgotten) {
            return Ok(()); // the insert was undone: the number is not used again under our pin
        }
        if !self.scans.covers(r.partition()) {
            self.reads.add_absent(r);
        }
        if self.is_committing_head(r) && !self.is_as_of_valid(p, r, std::ptr::null_mut())? {
            self.passed_over();
        }
        Ok(())
    }

    /// INV-VALID: a read has passed over a pending version, and has not waited for its commit. The
    /// version may be older than `valid`.
    pub(super) fn passed_over(&mut self) {
        if !faults::on(Fault::PassesOver) {
            self.valid = 0;
        }
    }

    /// As [`Txn::read`], of a row whose key the transaction has locked: the row is not deleted and
    /// keeps its key. If everything that was read is the state at `valid`, this row is read at
    /// `valid` too, even if a newer version has been committed since. The transaction can commit at
    /// `valid` if it never writes. `alone`: as [`Txn::read_key`], nothing but the key is looked at.
    pub fn read_locked_key(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        alone: bool,
    ) -> Result<Option<NonNull<Version>>, Error> {
        if alone {
            return self.read_key(p, r);
        }
        let optimistic = self.follow(p, r.partition())?.only_validates_reads();
        if self.valid == 0 || !self.writes.is_empty() || !optimistic {
            return self.read(p, r, false);
        }
        let seen = self.at_snapshot(p, r.rec, Seen::prefix(self.valid))?.filter(|(v, _)| !is_tombstone(*v));
        let Some((version, csn)) = seen else { return self.read(p, r, false) };
        self.depends.note(csn);
        self.touch(r.partition()).reads += 1;
        self.reads.add(r, version, Columns::ALL);
        Ok(Some(version))
    }

    /// What [`Txn::read`], [`Txn::read_columns`] or [`Txn::read_key`] would return, of a row that
    /// this transaction has not written. `None` if a look at it is not enough to know that, with a
    /// lock that is free. It neither fails nor unwinds, and asks the platform for nothing but
    /// [`Platform::freezes_readers`].
    ///
    /// INV-PEEK: the transaction follows the partition's protocols before it looks at the row, and
    /// holds the lock that they want, or takes it. The newest version is settled (INV-SETTLED), so
    /// that it is valid together with all that was read before. Its commit was done at the last
    /// look (INV-DEPENDS).
    #[inline]
    pub fn peek_row(&mut self, p: &dyn Platform, r: RecordRef, to: Peek) -> Option<NonNull<Version>> {
        let (why, looked) = to.reading();
        self.peek_as(p, r, why, looked)
    }

    #[inline]
    fn peek_as(&mut self, p: &dyn Platform, r: RecordRef, why: Reading, looked: Columns) -> Option<NonNull<Version>> {
        if !self.following {
            return self.peek_frozen(r, Some(looked))?;
        }
        if r.rec.head().is_null() {
            return None;
        }
        // After the look at the head: a record's partition is set before its first version.
        let partition = r.partition();
        let plain = self.plain();
        let t = self.follow_also(partition);
        if t.may_lock_to_read() {
            return self.peek_or_lock(p, r, plain, (why, looked));
        }
        self.peek_settled(r, plain, looked)
    }

    /// [`Txn::peek_row`] where rows may be locked before they are read.
    #[inline(never)]
    fn peek_or_lock(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        plain: Csn,
        (why, looked): (Reading, Columns),
    ) -> Option<NonNull<Version>> {
        let t = self.touch(r.partition());
        let (set, locks) = (t.set, t.locks_to_read());
        if set.only_locks_reads() {
            return self.peek_locking(p, r, plain, (why, looked), set);
        }
        if locks || self.wants_hot(r) && !(why == Reading::Row && self.passes_heat(p, r, looked)) {
            return None;
        }
        self.peek_settled(r, plain, looked)
    }

    /// [`Txn::peek_row`] where a lock protects the read: takes it if it is free (INV-LOCKED-LOOK).
    /// One that has lost conflicts of late takes other locks, which may have to be waited for.
    fn peek_locking(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        plain: Csn,
        (why, looked): (Reading, Columns),
        set: ProtocolSet,
    ) -> Option<NonNull<Version>> {
        let v = settled(r.rec.head(), plain)??;
        if self.retry.has_lost() || faults::on(Fault::EarlyRelease) {
            return None;
        }
        let why = self.reading_as(p, r, (why, looked), set);
        let mode = set.mode_to_read(self, r, why)?;
        faults::reached(Moment::Locking);
        if !self.lock_at_hand(r, mode, why != Reading::ToWrite) {
            return None;
        }
        if r.rec.head() != v.as_ptr() && !faults::on(Fault::LocksUnlooked) {
            return None;
        }
        self.touch(r.partition()).reads += 1;
        if why == Reading::Key && !faults::on(Fault::KeyLookForgotten) {
            self.reads.add_new(r, v, looked);
        }
        self.sample_access(r, false);
        Some(v)
    }

    #[inline(always)]
    fn peek_settled(&mut self, r: RecordRef, plain: Csn, looked: Columns) -> Option<NonNull<Version>> {
        // The head again, after the check of the locks.
        let v = settled(r.rec.head(), plain)??;
        let t = self.touch(r.partition());
        t.reads += 1;
        if t.set.validates_reads() {
            self.reads.add_new(r, v, looked);
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
        self.thaw(p)?;
        self.reads.add(r, version, Columns::ALL);
        if csn > self.valid {
            self.revalidate(p)?;
        }
        self.depends.note(csn);
        Ok(())
    }

    /// A scan of a partition starts. Locks as the partition's protocols want. From now on inserts
    /// into the partition are conflicts. Call it before the index is read.
    pub fn scan(&mut self, p: &dyn Platform, at: Touch) -> Result<(), Error> {
        self.before_scan(p, at)?;
        if self.is_frozen() {
            self.scan_frozen(at);
            return Ok(());
        }
        // `since` matters only where a ring has wrapped: an insert whose CSN is not larger is no
        // conflict. The clock may be read before the position or after it. The insert has linked
        // its version before it took its CSN, so before the scan begins to read. Either the scan
        // reads the row, or it passes over a pending version, remembers that, and validates that
        // read.
        let now = self.e.now();
        let start = at.partition().ring.list().position();
        self.scans.add_partition(at, start, if start.is_quiet() { now } else { 0 });
        self.doubt_open(p, at, &start);
        Ok(())
    }

    /// INV-VALID: a scan begins while registrations are open in its partition, whose writers may
    /// have committed at or before `valid`. A transaction that has only read waits for them where
    /// it reads their rows ([`Txn::newest_settled`]). Another one validates at its next read.
    pub(super) fn doubt_open(&mut self, p: &dyn Platform, at: Touch, start: &Position) {
        if !self.is_quiet_since(at, start, self.valid) && !self.may_freeze(p) {
            self.valid = 0;
        }
    }

    /// A look-up in a partition starts. Locks as the partition's protocols want. Returns the
    /// argument of [`Txn::add_predicate`], for a look-up that finds nothing.
    pub fn before_lookup(&mut self, p: &dyn Platform, at: Touch) -> Result<u64, Error> {
        self.before_scan(p, at)?;
        let list = at.partition().ring.list();
        let start = self.frozen_at().map_or_else(|| list.position(), |seen| list.position_at(seen.upto));
        Ok(start.low())
    }

    pub(super) fn before_scan(&mut self, p: &dyn Platform, at: Touch) -> Result<(), Error> {
        self.doubted = 0;
        if self.is_frozen() && self.reads_frozen(p, at.partition())? {
            self.touch(at.partition());
            return Ok(());
        }
        let locked = self.follow(p, at.partition()).and_then(|all| all.before_scan(self, p, at));
        locked.or_else(|e| self.freeze(p, e))
    }

    /// Inserts into the partition from this position on are conflicts. The look-up that began there
    /// has found nothing; afterwards ask [`Txn::looks_again`].
    pub fn add_predicate(&mut self, at: Touch, start: u64) {
        if self.needs_no_predicates() {
            return;
        }
        let start = Position::from_low(start);
        self.scans.add_partition(at, start, 0);
        // INV-VALID: a writer that registered since `start` may have committed before `valid`,
        // unseen by the look-up. What is frozen has looked at the snapshot of `valid`.
        if !self.is_frozen() && !self.is_quiet_since(at, &start, self.valid) {
            self.doubt_absence();
        }
    }
}
