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
use crate::open::Seen;
use crate::platform::{Outcome, Platform};
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

/// The same for a snapshot, with the CSN of the version.
#[inline]
pub(super) fn settled_in(head: *mut Version, seen: &Seen<'_>) -> Option<(Option<NonNull<Version>>, Csn)> {
    let v = NonNull::new(head)?;
    // SAFETY: INV-RETIRE: the caller is pinned, and reached the version under that pin.
    let version = unsafe { v.as_ref() };
    let csn = version.stamp().0;
    // As above.
    seen.sees(csn).then(|| ((!version.is_tombstone()).then_some(v), csn))
}

/// Is a version, which was reached under our pin, a tombstone?
pub(super) fn is_tombstone(v: NonNull<Version>) -> bool {
    // SAFETY: INV-RETIRE: the caller is pinned, and reached the version under that pin.
    unsafe { v.as_ref() }.is_tombstone()
}

impl Owner {
    /// Has the commit of this stamp's owner, which was found *committing* at `csn`, succeeded?
    pub(super) fn has_succeeded(&self, p: &dyn Platform, stamp: Stamp, csn: Csn) -> bool {
        p.outcome(stamp.slot(), csn) == Outcome::Committed
    }

    /// The newest version that a snapshot sees, tombstones included.
    #[inline]
    pub fn at_snapshot(&self, p: &dyn Platform, rec: &Record, seen: Seen<'_>) -> Result<Option<Committed>, Error> {
        let head = rec.head();
        match NonNull::new(head).zip(settled_in(head, &seen)) {
            Some((v, (_, csn))) => Ok(Some((v, csn))),
            None => self.search_snapshot(p, rec, seen),
        }
    }

    /// The same of a record whose newest version it may not see.
    fn search_snapshot(&self, p: &dyn Platform, rec: &Record, seen: Seen<'_>) -> Result<Option<Committed>, Error> {
        let mut v = rec.head();
        let mut n = 0;
        while let Some(nn) = NonNull::new(v) {
            // SAFETY: INV-RETIRE: we are pinned at or before the snapshot's clock, and stop at the
            // first version that it sees. A commit that it leaves out retires what it has replaced
            // when it is done, at or after our pin.
            let ver = unsafe { nn.as_ref() };
            let (stamp, fate) = self.e.settle(p, || ver.stamp())?;
            match fate {
                _ if stamp == self.tag() => v = ver.older(),
                Fate::Committed(c) if seen.sees(c) => return Ok(Some((nn, c))),
                Fate::Committing(c) if seen.sees(c) => {
                    if self.has_succeeded(p, stamp, c) {
                        return Ok(Some((nn, c)));
                    }
                    p.pause(n)?;
                    n += 1;
                }
                _ => v = ver.older(),
            }
        }
        Ok(None)
    }

    /// The newest committed version, tombstones included. Waits a moment for a commit in progress.
    #[inline]
    pub fn newest(&self, p: &dyn Platform, rec: &Record) -> Result<Option<Committed>, Error> {
        let head = rec.head();
        faults::reached(Moment::Looked);
        if let Some(v) = NonNull::new(head) {
            // SAFETY: INV-RETIRE: we are pinned; nothing that was newest since then is freed.
            let stamp = unsafe { v.as_ref() }.stamp();
            if !stamp.is_tag() && stamp != Stamp::ABORTED {
                return Ok(Some((v, stamp.0)));
            }
        }
        self.search_newest(p, rec, head)
    }

    /// The same from this version on, which was the newest one and is not known to be committed.
    fn search_newest(&self, p: &dyn Platform, rec: &Record, head: *mut Version) -> Result<Option<Committed>, Error> {
        let mut head = head;
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
                Fate::Committing(c) if self.has_succeeded(p, stamp, c) => return Ok(Some((nn, c))),
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
        let old =
            at <= csn || self.e.full_since(self.slot) <= csn && self.at_snapshot(p, rec, Seen::prefix(csn))?.is_some();
        Ok(Some(v).filter(|_| old))
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
