//! Looks at the versions of a record: which one a snapshot sees, and which one is the newest.
//!
//! **INV-SETTLED**: A newest version whose stamp is a CSN at or below a value of the clock that was
//! read before the look is the newest version as of that value. A writer that replaces it later
//! links first, and then takes a larger CSN (INV-CSN). So a reader that has nothing to lock may
//! read it by that look alone.
//!
//! **INV-INSERT**: The version of an own insert is in its record at once, as a pending version.
//! What its transaction makes of the row later replaces it there before the transaction is
//! *preparing*. A reader that finds the owner of a newest version *committing* or *committed*, or
//! the version *aborted*, therefore checks that it is still the newest one. Otherwise it may hold
//! an intermediate version. A snapshot is older than such a check, so it does not see that owner.

use super::{Owner, RecordRef};
use crate::csn::{Csn, Stamp, State};
use crate::error::Error;
use crate::faults::{self, Moment};
use crate::platform::Platform;
use crate::record::{Record, Version};
use crate::shared::Fate;
use std::ptr::NonNull;

/// Steps of waiting for a commit in progress before an older version is taken (and validated).
const SHORT: u32 = 100;

/// A version and the CSN of its commit.
pub type Committed = (NonNull<Version>, Csn);

/// What we see of a record whose newest version is settled at `csn`; `None`: it is not settled.
///
/// INV-SETTLED: the clock had come to `csn` before the caller read `head`.
#[inline]
pub(super) fn settled(head: *mut Version, csn: Csn) -> Option<Option<NonNull<Version>>> {
    let v = NonNull::new(head)?;
    // SAFETY: INV-RETIRE: the caller is pinned, and reached the version under that pin.
    let version = unsafe { v.as_ref() };
    // Neither a tag nor "aborted" is as small as a CSN.
    (version.stamp().0 <= csn).then(|| (!version.is_tombstone()).then_some(v))
}

/// Is a version, which was reached under our pin, a tombstone?
pub(super) fn is_tombstone(v: NonNull<Version>) -> bool {
    // SAFETY: INV-RETIRE: the caller is pinned, and reached the version under that pin.
    unsafe { v.as_ref() }.is_tombstone()
}

impl Owner {
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

    /// The newest committed version, tombstones included. Waits a moment for a commit in progress.
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
            // INV-INSERT: it may have been an insert that its owner has changed since our look.
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

    /// The newest committed version of a record that has had a row since `csn` or before. If our
    /// pin is later than `csn`, only rows that no transaction has written since are returned.
    pub fn row_since(&self, p: &dyn Platform, rec: &Record, csn: Csn) -> Result<Option<NonNull<Version>>, Error> {
        let Some((v, at)) = self.newest(p, rec)?.filter(|(v, _)| !is_tombstone(*v)) else {
            return Ok(None);
        };
        let old = at <= csn || self.e.pinned_at(self.slot) <= csn && self.at_snapshot(p, rec, csn)?.is_some();
        Ok(Some(v).filter(|_| old))
    }

    /// The newest version with a row that we may see, or above one that we may see. Pending
    /// versions count, and so do versions below tombstones. For a look at columns that all
    /// versions of the record share.
    ///
    /// A commit retires the versions that it replaced at a value of the clock that is at least its
    /// CSN. Below a tombstone that committed before our pin lies memory that may be freed, and
    /// that no snapshot or read of ours sees.
    pub fn any_row(&self, rec: &Record) -> Option<NonNull<Version>> {
        let pin = self.e.pinned_at(self.slot);
        let mut v = NonNull::new(rec.head())?;
        loop {
            // SAFETY: INV-RETIRE, INV-HONEST: the head, or a version that was replaced at or after
            // our pin, or not yet.
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

    /// May the owner of the newest version have committed?
    pub(super) fn is_committing_head(&self, r: RecordRef) -> bool {
        let Some(v) = NonNull::new(r.rec.head()) else { return true };
        // SAFETY: INV-RETIRE: we are pinned; nothing that was newest since then is freed.
        let v = unsafe { v.as_ref() };
        let stamp = v.stamp();
        if !stamp.is_tag() || stamp == self.tag() {
            return !stamp.is_tag();
        }
        let state = self.e.word(stamp.slot()).state();
        // A slot that has gone on has stamped the version before.
        !matches!(state, State::Active | State::Idle) || v.stamp() != stamp
    }
}
