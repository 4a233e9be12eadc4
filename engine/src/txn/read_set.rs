//! The read set: the versions that a validation must find unchanged.

use super::{Failure, Owner, RecordRef};
use crate::counts;
use crate::csn::Csn;
use crate::error::Error;
use crate::platform::Platform;
use crate::record::Version;
use crate::shared::Fate;
use std::ptr::NonNull;

struct ReadEntry {
    r: RecordRef,
    /// `None`: no row, because the insert of another transaction was pending there.
    version: Option<NonNull<Version>>,
}

/// What the transaction has read, as far as neither locks nor predicates protect it.
#[derive(Default)]
pub(super) struct ReadSet {
    all: Vec<ReadEntry>,
    /// Must it be unchanged at the commit even if the transaction writes nothing?
    pub at_commit: bool,
}

impl ReadSet {
    /// Remembers a read.
    pub fn add(&mut self, r: RecordRef, version: NonNull<Version>) {
        self.all.push(ReadEntry { r, version: Some(version) });
    }

    /// Remembers a read; of the same version read twice in a row, one.
    #[inline]
    pub fn add_new(&mut self, r: RecordRef, version: NonNull<Version>) {
        if self.all.last().is_none_or(|e| e.version != Some(version)) {
            self.add(r, version);
        }
    }

    /// Remembers that a record had no row.
    pub fn add_absent(&mut self, r: RecordRef) {
        self.all.push(ReadEntry { r, version: None });
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
    pub fn validate(&self, owner: &Owner, p: &dyn Platform, csn: Csn) -> Result<(), Failure> {
        for entry in &self.all {
            let seen = entry.version.map_or(std::ptr::null_mut(), NonNull::as_ptr);
            counts::add(|w| w.records += 1);
            // Most of them are the newest version still.
            if !owner.is_newest(entry.r, seen) && !owner.is_unchanged(p, entry.r, seen, csn)? {
                return Err(Failure::Changed(entry.r));
            }
        }
        Ok(())
    }
}

impl Owner {
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

    /// Is the version that we read of a record (null: no row) what it has at `csn`?
    pub(super) fn is_unchanged(
        &self,
        p: &dyn Platform,
        r: RecordRef,
        seen: *mut Version,
        csn: Csn,
    ) -> Result<bool, Error> {
        let mut v = r.rec.head();
        let mut n = 0;
        loop {
            if v == seen {
                return Ok(true);
            }
            let Some(nn) = NonNull::new(v) else { return Ok(false) };
            // SAFETY: INV-RETIRE: `seen` was the newest version under our pin, or no version was
            // committed then; so nothing newer is freed.
            let ver = unsafe { nn.as_ref() };
            let (stamp, fate) = self.e.settle(p, || ver.stamp())?;
            match fate {
                _ if stamp == self.tag() => v = ver.older(),
                Fate::Committed(c) if c <= csn => {
                    self.meets(stamp);
                    return Ok(false);
                }
                Fate::Committing(c) if c <= csn && (n >= p.patience() || self.has_succeeded(p, stamp, c)) => {
                    self.meets(stamp);
                    return Ok(false);
                }
                Fate::Committing(c) if c <= csn => {
                    p.pause(n)?;
                    n += 1;
                }
                _ => v = ver.older(),
            }
        }
    }
}
