//! The read set: the versions that a validation must find unchanged, in the columns that were
//! looked at.
//!
//! **INV-LOOKED**: A read names all columns of the version on which its transaction's results and
//! writes depend, or more. A row that its statement may write or lock is looked at as a whole, for
//! the new version is made of all of it. What is compared with `valid`, or locked, or protected by
//! a predicate, does not depend on it. A validation passes over a version above the one that was
//! read if that names columns, and none that was looked at (INV-CHANGED): committed or not, it has
//! them as they were. A look that has locked the key of its row alone is remembered, for that lock
//! keeps no update of the row away. After a validation at a CSN the read is one of the newest
//! version that it has met and that was committed at or before that CSN. What was looked at is the
//! same there, and the next validation has a short way.

use super::{Failure, Owner, RecordRef};
use crate::counts;
use crate::csn::Csn;
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::platform::Platform;
use crate::range::Columns;
use crate::record::Version;
use crate::shared::Fate;
use std::ptr::NonNull;

struct ReadEntry {
    r: RecordRef,
    /// `None`: no row, because the insert of another transaction was pending there.
    version: Option<NonNull<Version>>,
    looked: Columns,
}

/// So many reads are looked through for that of a row.
const LATELY: usize = 64;

/// What the transaction has read, as far as neither locks nor predicates protect it.
#[derive(Default)]
pub(super) struct ReadSet {
    all: Vec<ReadEntry>,
    /// Must it be unchanged at the commit even if the transaction writes nothing?
    pub at_commit: bool,
}

impl ReadSet {
    /// Remembers a read.
    pub fn add(&mut self, r: RecordRef, version: NonNull<Version>, looked: Columns) {
        self.all.push(ReadEntry { r, version: Some(version), looked });
    }

    /// Remembers a read; of the same version read twice in a row, one.
    #[inline]
    pub fn add_new(&mut self, r: RecordRef, version: NonNull<Version>, looked: Columns) {
        match self.all.last_mut() {
            Some(e) if e.version == Some(version) => {
                e.looked = if faults::on(Fault::LastLookOnly) { looked } else { e.looked.and(looked) };
            }
            _ => self.add(r, version, looked),
        }
    }

    /// Remembers that a record had no row.
    pub fn add_absent(&mut self, r: RecordRef) {
        self.all.push(ReadEntry { r, version: None, looked: Columns::ALL });
    }

    /// The columns that the transaction has looked at in a row, where it has not looked at all of
    /// them, if that is one of its last reads.
    pub fn looked_at_lately(&self, r: RecordRef) -> Option<Columns> {
        let last = self.all.iter().rev().take(LATELY);
        let looks = last.filter(|e| std::ptr::eq(e.r.rec, r.rec) && e.looked != Columns::ALL).map(|e| e.looked);
        looks.reduce(Columns::and)
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// The transaction has ended.
    pub fn clear(&mut self) {
        super::clear_vec(&mut self.all);
        self.at_commit = false;
    }

    /// Forgets the reads.
    pub fn forget(&mut self) {
        self.all.clear();
    }

    /// Validates all reads at `csn`, which was taken before. It fails for writers that committed at
    /// or before `csn`, waits for those that are about to, and ignores all others.
    pub fn validate(&mut self, owner: &Owner, p: &dyn Platform, csn: Csn) -> Result<(), Failure> {
        for entry in &mut self.all {
            let seen = entry.version.map_or(std::ptr::null_mut(), NonNull::as_ptr);
            counts::add(|w| w.records += 1);
            // Most of them are the newest version still.
            if owner.is_newest(entry.r, seen) {
                continue;
            }
            let Some(now) = owner.same_at(p, entry.r, (seen, entry.looked), csn)? else {
                return Err(Failure::Changed(entry.r));
            };
            entry.version = NonNull::new(now);
        }
        Ok(())
    }
}

impl Owner {
    /// Is the row there in all versions above this one, which was reached as the newest committed
    /// one?
    pub(super) fn leaves_row(&self, r: RecordRef, seen: NonNull<Version>) -> bool {
        let mut v = r.rec.head();
        while v != seen.as_ptr() {
            let Some(above) = NonNull::new(v) else { return false };
            // SAFETY: INV-RETIRE: `seen` was the newest committed version under our pin, so nothing
            // newer is freed.
            let above = unsafe { above.as_ref() };
            let older = above.older();
            if !leaves(above, Columns::NONE) {
                return false;
            }
            v = older;
        }
        true
    }

    /// Is the version that we read of a record its newest version still, or the one below a write
    /// of ours that is linked? Then it is at any CSN: later commits have larger ones. `seen`: null
    /// for no row.
    #[inline]
    fn is_newest(&self, r: RecordRef, seen: *mut Version) -> bool {
        let head = r.rec.head();
        let ours = |v: NonNull<Version>| {
            // SAFETY: INV-RETIRE: we are pinned; nothing that was newest since then is freed.
            let v = unsafe { v.as_ref() };
            v.stamp() == self.tag() && v.older() == seen
        };
        head == seen || NonNull::new(head).is_some_and(ours)
    }

    /// Is the version that we read of a record (null: no row) what it has at `csn`, in all that is
    /// looked at?
    pub(super) fn is_unchanged(
        &self,
        p: &dyn Platform,
        r: RecordRef,
        seen: *mut Version,
        csn: Csn,
    ) -> Result<bool, Error> {
        Ok(self.same_at(p, r, (seen, Columns::ALL), csn)?.is_some())
    }

    /// Is the version `seen` that we read of a record (null: no row) what it has at `csn`, in the
    /// columns `looked`? Then this is the newest version that is known to be so.
    fn same_at(
        &self,
        p: &dyn Platform,
        r: RecordRef,
        (seen, looked): (*mut Version, Columns),
        csn: Csn,
    ) -> Result<Option<*mut Version>, Error> {
        let mut v = r.rec.head();
        let mut now = if faults::on(Fault::MovesTooFar) && !seen.is_null() { v } else { std::ptr::null_mut() };
        let mut n = 0;
        loop {
            if v == seen {
                return Ok(Some(if now.is_null() { seen } else { now }));
            }
            let Some(nn) = NonNull::new(v) else { return Ok(None) };
            // SAFETY: INV-RETIRE: `seen` was the newest version under our pin, or no version was
            // committed then; so nothing newer is freed.
            let ver = unsafe { nn.as_ref() };
            let older = ver.older(); // before what it names (INV-CHANGED)
            if leaves(ver, looked) {
                let stamp = ver.stamp();
                if now.is_null() && !stamp.is_tag() && stamp.0 <= csn {
                    now = v;
                }
                v = older;
                continue;
            }
            let (stamp, fate) = self.e.settle(p, || ver.stamp())?;
            match fate {
                _ if stamp == self.tag() => v = older,
                Fate::Committed(c) if c <= csn => {
                    self.meets(stamp);
                    return Ok(None);
                }
                Fate::Committing(c) if c <= csn && (n >= p.patience() || self.has_succeeded(p, stamp, c)) => {
                    self.meets(stamp);
                    return Ok(None);
                }
                Fate::Committing(c) if c <= csn => {
                    p.pause(n)?;
                    n += 1;
                }
                _ => v = older,
            }
        }
    }
}

/// Does the version leave these columns as they were? It does if there are none, and the row stays:
/// a version above another one of its record is an update in place (INV-EXISTS).
#[inline]
fn leaves(v: &Version, looked: Columns) -> bool {
    if v.is_tombstone() {
        return faults::on(Fault::TombstonePassed);
    }
    looked == Columns::NONE || v.named().is_some_and(|changed| !looked.meet(changed))
}
