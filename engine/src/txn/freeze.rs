//! Readers that need not be declared: a serializable transaction that has only read so far goes on
//! as a snapshot at `valid`, where it would fail otherwise, or from its beginning.
//!
//! **INV-FROZEN**: A frozen transaction reads the snapshot at `valid`, which stays as it is. All
//! that it read before is the state at that CSN (INV-VALID). It has written nothing, here or
//! elsewhere, holds no lock and follows no protocol. Its pin is not later than `valid`, and it
//! holds on to it. It reads no partition that began after `valid`, and depends on the commits that
//! it reads (INV-DEPENDS). Before it does more than read it thaws: a transaction that was frozen at
//! its beginning remembers what it reads, with positions that look at every commit after `valid`,
//! and validates that; one that a conflict has frozen fails.

use super::versions::{is_tombstone, settled, Committed};
use super::{Level, RecordRef, ScanId, Stage, Txn};
use crate::csn::Csn;
use crate::error::{AbortReason, Error};
use crate::faults::{self, Fault};
use crate::open::Seen;
use crate::partition::Partition;
use crate::platform::Platform;
use crate::primitive::Ordering;
use crate::protocol::Touch;
use crate::range::Columns;
use crate::record::Version;
use crate::switch::Epochs;
use std::ptr::NonNull;

/// How often a reader looks again at a record that others are changing.
const TRIES: u32 = 4;

/// Is a transaction frozen (INV-FROZEN)?
#[derive(Clone, Copy, Default)]
pub(super) enum Freeze {
    /// It is not.
    #[default]
    No,
    /// Since its beginning. It remembers what it reads, and can thaw.
    Thaws,
    /// Since a conflict.
    Fails(Conflict),
}

/// What has frozen a transaction. It ends with this error where it would have to thaw.
#[derive(Clone, Copy)]
pub(super) struct Conflict {
    error: Error,
    failed: Option<(AbortReason, &'static Partition)>,
    /// There may have been no conflict (`Txn::revalidate_read`).
    in_doubt: bool,
}

impl Txn {
    /// Is the transaction a snapshot at the CSN at which its reads were valid (INV-FROZEN)?
    #[inline]
    pub fn is_frozen(&self) -> bool {
        !matches!(self.freeze, Freeze::No)
    }

    /// The snapshot that a frozen transaction reads: it depends on the commits that it reads
    /// (INV-DEPENDS).
    #[inline]
    pub fn frozen_at(&self) -> Option<Seen<'static>> {
        self.is_frozen().then(|| Seen::prefix(self.valid))
    }

    /// Does the slot expect that its next transaction only reads? Those before it did.
    pub fn expects_to_read(&self) -> bool {
        self.retry.expects_to_read()
    }

    /// The transaction, which has just begun, will probably only read: it reads the snapshot of
    /// this moment, and locks nothing. It remembers what it reads, and may write after all.
    pub fn freeze_from_start(&mut self) {
        debug_assert!(self.is_untouched() && !self.is_frozen());
        if self.level != Level::Serializable || self.following || self.acts {
            return;
        }
        self.hold();
        // After the pin, which may have been taken anew.
        self.valid = self.depends.look(&self.owner.e);
        self.freeze = Freeze::Thaws;
    }

    /// The transaction is about to do more than read, in the engine or elsewhere. If it is frozen,
    /// it validates what it has read, and follows protocols from now on; or it fails.
    #[inline]
    pub fn thaw(&mut self, p: &dyn Platform) -> Result<(), Error> {
        if self.is_frozen() {
            return self.thaw_frozen(p);
        }
        Ok(())
    }

    #[cold]
    fn thaw_frozen(&mut self, p: &dyn Platform) -> Result<(), Error> {
        match self.freeze {
            Freeze::No => Ok(()),
            Freeze::Thaws => self.validate_to_thaw(p),
            Freeze::Fails(c) => {
                self.failed = c.failed;
                self.note_failed_thaw(c.in_doubt);
                Err(c.error)
            }
        }
    }

    fn validate_to_thaw(&mut self, p: &dyn Platform) -> Result<(), Error> {
        if faults::on(Fault::ThawForgets) {
            self.break_validation();
        }
        // Before the validation: protocols that come into use later find a transaction that
        // follows them.
        self.enter_protocols(p)?;
        self.freeze = Freeze::No;
        let valid = self.revalidate(p);
        if let Err(error @ Error::Abort { .. }) = valid {
            self.note_failed_thaw(false);
            self.freeze = Freeze::Fails(Conflict { error, failed: self.failed, in_doubt: false });
            self.stop_remembering();
            self.leave_protocols();
        }
        valid
    }

    fn note_failed_thaw(&mut self, in_doubt: bool) {
        self.retry.note_failed_thaw(in_doubt);
        if let Some((_, partition)) = self.failed {
            partition.stats.failed_thaws.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a transaction that ends frozen, where it has read.
    pub(super) fn count_frozen(&self) {
        for t in self.touched.iter().filter(|t| t.reads != 0) {
            t.partition.stats.frozen.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Was the storage of all touched partitions there at `valid`? All transactions see newer
    /// storage (TRUNCATE) at once.
    pub(super) fn storage_was_there(&self) -> bool {
        self.touched.iter().all(|t| t.partition.since() <= self.valid)
    }

    /// May the transaction go on as a snapshot at `valid`? It may if it has only read, here and
    /// elsewhere, if its pin keeps that snapshot, and if no storage that it has read is newer.
    pub(super) fn may_freeze(&self, p: &dyn Platform) -> bool {
        let wrote = (self.acts || p.has_written()) && !faults::on(Fault::WritersFreeze);
        self.level == Level::Serializable
            && self.stage == Stage::Execute
            && self.valid != 0
            && !wrote
            && !self.reads.at_commit
            && p.freezes_readers()
            && self.e.pinned_at(self.slot) <= self.valid
            && self.storage_was_there()
    }

    /// A read fails with this error. A transaction that has only read goes on as a snapshot at
    /// `valid`, and gives up its locks: others may change what it has read, for they come later.
    /// A transaction that sleeps for it already may sleep until it ends.
    pub(super) fn freeze(&mut self, p: &dyn Platform, e: Error) -> Result<(), Error> {
        self.freeze_by(p, e, false)
    }

    #[cold]
    fn freeze_by(&mut self, p: &dyn Platform, e: Error, in_doubt: bool) -> Result<(), Error> {
        let conflict = matches!(e, Error::Abort { .. } | Error::Deadlock);
        if !conflict || self.is_frozen() || !self.may_freeze(p) {
            return Err(e);
        }
        self.hold();
        if self.e.pinned_at(self.slot) > self.valid {
            return Err(e); // the pin was taken anew
        }
        self.freeze = Freeze::Fails(Conflict { error: e, failed: self.failed.take(), in_doubt });
        if faults::on(Fault::FreezesNow) {
            self.valid = self.e.now();
        }
        self.stop_remembering();
        self.give_up_locks(p);
        self.leave_protocols();
        Ok(())
    }

    /// Nothing that was read will be validated again.
    fn stop_remembering(&mut self) {
        self.reads.clear();
        self.scans.clear();
    }

    fn give_up_locks(&mut self, p: &dyn Platform) {
        self.locks.take_back_parts(&self.owner, None);
        self.locks.release_all(&self.owner);
        // After the locks: a waiter that is woken finds them free (INV-EARLY).
        self.keep_scanned(p, 0);
        self.locks.clear();
        self.touched.forget_locks();
    }

    fn leave_protocols(&mut self) {
        if std::mem::take(&mut self.following) {
            Epochs::leave(&self.shared_slot().following);
        }
    }

    /// Validates all reads for one that has met something newer than `valid`, in the partition
    /// `at`. False: the transaction is frozen at `valid`, and reads that snapshot.
    ///
    /// A write that an open scan may not have come to yet leaves doubt. If the transaction went on
    /// it might fail later, without a CSN at which all of its reads were valid. So it freezes, too;
    /// but not in a slot where one that was frozen so has come to a write of late.
    pub(super) fn revalidate_read(&mut self, p: &dyn Platform, at: Touch) -> Result<bool, Error> {
        let before = self.valid;
        match self.revalidate(p) {
            Ok(()) if self.valid != 0 || before == 0 || self.retry.doubts_pass() => return Ok(true),
            Ok(()) => {
                self.valid = before;
                if !self.may_freeze(p) {
                    self.valid = 0;
                    return Ok(true);
                }
                let e = self.fail(AbortReason::Phantom, at);
                self.freeze_by(p, e, true)?;
            }
            Err(e) => self.freeze(p, e)?,
        }
        Ok(false)
    }

    /// The newest committed version of a record. A transaction that has only read waits for the
    /// owner of a pending version that may be as old as `valid`. So `valid` stays (INV-VALID).
    pub(super) fn newest_settled(&mut self, p: &dyn Platform, r: RecordRef) -> Result<Option<Committed>, Error> {
        let mut found = self.newest(p, r.rec)?;
        for _ in 0..TRIES {
            let (seen, csn) = found.map_or((std::ptr::null_mut(), 0), |(v, csn)| (v.as_ptr(), csn));
            if r.rec.head() == seen || csn > self.valid || !self.may_freeze(p) {
                break;
            }
            if self.is_unchanged(p, r, seen, self.valid)? {
                break;
            }
            found = self.newest(p, r.rec)?;
        }
        Ok(found)
    }

    /// Is the version that was read of a record (null: no row) the one that it has at `valid`,
    /// although there is a pending version? Asked only for a transaction that has only read.
    #[cold]
    pub(super) fn is_as_of_valid(&self, p: &dyn Platform, r: RecordRef, seen: *mut Version) -> Result<bool, Error> {
        Ok(self.may_freeze(p) && !faults::on(Fault::PassesOver) && self.is_unchanged(p, r, seen, self.valid)?)
    }

    /// Does a read in this partition come from the frozen transaction's snapshot? If the partition
    /// began after that, the transaction thaws.
    pub(super) fn reads_frozen(&mut self, p: &dyn Platform, partition: &'static Partition) -> Result<bool, Error> {
        if !self.is_frozen() {
            return Ok(false);
        }
        if partition.since() > self.valid && !faults::on(Fault::FrozenSeesNewStorage) {
            self.thaw(p)?;
        }
        Ok(self.is_frozen())
    }

    /// Is what a frozen transaction reads remembered?
    fn remembers(&self) -> bool {
        matches!(self.freeze, Freeze::Thaws) && !faults::on(Fault::FrozenForgets)
    }

    /// What a frozen transaction reads of a record that no predicate protects.
    #[inline(never)]
    pub(super) fn read_frozen(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        looked: Columns,
    ) -> Result<Option<NonNull<Version>>, Error> {
        debug_assert!(self.is_frozen());
        self.touch(r.partition()).reads += 1;
        self.sample_access(r, false);
        let found = self.at_snapshot(p, r.rec, Seen::prefix(self.valid))?;
        if let Some((_, csn)) = found {
            self.depends.note(csn);
        }
        let found = found.map(|(v, _)| v);
        let live = found.filter(|v| !is_tombstone(*v));
        if self.remembers() {
            match (found, live) {
                (_, Some(v)) => self.reads.add_new(r, v, looked),
                (Some(_), None) => {} // a deleted row stays deleted
                (None, _) if r.rec.head().is_null() => {}
                (None, _) => self.reads.add_absent(r),
            }
        }
        Ok(live)
    }

    /// What a frozen transaction reads of a row that a scan found. `None`: it is not frozen (any
    /// more).
    #[inline(never)]
    pub(super) fn read_frozen_scanned(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        for_write: bool,
        scan: ScanId,
    ) -> Result<Option<Option<NonNull<Version>>>, Error> {
        if for_write || !self.is_frozen() {
            return Ok(None);
        }
        if r.rec.head().is_null() {
            return Ok(Some(None)); // a free or dead record
        }
        if !self.reads_frozen(p, r.partition())? {
            return Ok(None);
        }
        if scan.number() == 0 {
            return self.read_frozen(p, r, Columns::ALL).map(Some);
        }
        self.read_snapshot(p, r, Seen::prefix(self.valid)).map(Some)
    }

    /// What a frozen transaction reads of a row, if a look at the newest version is enough to know
    /// it. `alone`: no predicate protects the row, and these columns are looked at.
    #[inline(never)]
    pub(super) fn peek_frozen(&mut self, r: RecordRef, alone: Option<Columns>) -> Option<Option<NonNull<Version>>> {
        if !self.is_frozen() {
            return None;
        }
        // Its commit was done at the last look (INV-DEPENDS).
        let seen = settled(r.rec.head(), self.plain())?;
        // After the look at the head: a record's partition is set before its first version.
        let partition = r.partition();
        if partition.since() > self.valid {
            return None;
        }
        self.touch(partition).reads += 1;
        self.sample_access(r, false);
        if let (Some(v), Some(looked)) = (seen, alone.filter(|_| self.remembers())) {
            self.reads.add_new(r, v, looked);
        }
        Some(seen)
    }

    /// A frozen transaction scans a partition.
    pub(super) fn scan_frozen(&mut self, at: Touch) {
        if self.remembers() {
            let start = at.partition().ring.list().position_at(self.valid);
            self.scans.add_partition(at, start, 0);
        }
    }

    /// Are there no predicates to be made, because the transaction is frozen and remembers nothing?
    pub(super) fn needs_no_predicates(&self) -> bool {
        self.is_frozen() && !self.remembers()
    }

    /// A look-up has found nothing, and its predicate was made. Must it be made again?
    ///
    /// INV-VALID: another transaction may have inserted the key, unseen by the look-up, at or
    /// before `valid`. Where that is so, the transaction fails at its commit if it writes. If it
    /// has only read it freezes, and the look-up is to be made again in its snapshot.
    #[inline]
    pub fn looks_again(&mut self, p: &dyn Platform) -> Result<bool, Error> {
        match std::mem::take(&mut self.doubted) {
            0 => Ok(false),
            before => self.looks_again_at(p, before),
        }
    }

    #[cold]
    fn looks_again_at(&mut self, p: &dyn Platform, before: Csn) -> Result<bool, Error> {
        if self.valid != 0 {
            return Ok(false);
        }
        self.valid = before;
        if self.may_freeze(p) {
            match self.validate_all(p, before) {
                Ok(()) => return Ok(false),
                Err(e) if self.freeze(p, e).is_ok() => return Ok(true),
                Err(Error::Abort { .. } | Error::Deadlock) => {}
                Err(e) => return Err(e),
            }
        }
        self.valid = 0;
        Ok(false)
    }

    /// INV-VALID: a look-up that found nothing may have missed a row that is as old as `valid`.
    pub(super) fn doubt_absence(&mut self) {
        if self.valid != 0 {
            (self.doubted, self.valid) = (self.valid, 0);
        }
    }
}
