//! What a transaction depends on: commits that it has read, and that were not done then.
//!
//! **INV-DEPENDS**: A transaction at SERIALIZABLE reads the newest committed versions, done or not.
//! It notes the CSN of each commit that it reads, unless that was done when it looked last. It is
//! done itself, and its session is answered, only when all of these are done. It depends only on
//! commits that took their CSNs before its own, so the waits form no circle.

use super::{Committed, Level, Txn};
use crate::csn::{Csn, SlotId};
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::open::{Kept, Seen};
use crate::platform::Platform;
use crate::record::{Record, Version};
use crate::shared::{Engine, Fate};
use std::ptr::NonNull;

/// So many commits are noted one by one.
const MANY: usize = 64;

/// The commits that a transaction depends on.
#[derive(Default)]
pub(super) struct Depends {
    /// Does what it reads count?
    on: bool,
    /// The clock at the last look.
    upto: Csn,
    /// *V* then: all commits up to it were done.
    done_upto: Csn,
    /// The others up to the clock that were not done.
    open: Vec<(Csn, SlotId)>,
    noted: Vec<Csn>,
    /// If there were too many: it depends on all commits up to this one.
    all_upto: Csn,
}

impl Depends {
    /// A transaction begins. `on`: does what it reads count? Returns the clock.
    pub fn begin(&mut self, e: &Engine, on: bool) -> Csn {
        self.on = on;
        if !on {
            return e.now();
        }
        self.look(e)
    }

    /// Looks which commits are not done, and returns the clock from before.
    #[inline]
    pub fn look(&mut self, e: &Engine) -> Csn {
        (self.upto, self.done_upto) = e.take_seen(&mut self.open);
        self.upto
    }

    /// What the transaction reads counts from now on, as of a look that has found this.
    fn begin_at(&mut self, (upto, done_upto): (Csn, Csn), open: &[(Csn, SlotId)]) {
        (self.on, self.upto, self.done_upto) = (true, upto, done_upto);
        self.open.clear();
        self.open.extend_from_slice(open);
    }

    /// Reads of commits up to here need not be noted.
    #[inline]
    pub fn done_upto(&self) -> Csn {
        self.done_upto
    }

    /// Reads of commits up to here are not noted, whether or not they count.
    #[inline]
    pub fn unnoted_upto(&self) -> Csn {
        if self.on {
            self.done_upto
        } else {
            Csn::MAX
        }
    }

    /// The transaction reads what a commit has written.
    #[inline]
    pub fn note(&mut self, csn: Csn) {
        if csn > self.done_upto && self.on {
            self.note_open(csn);
        }
    }

    /// The transaction has locked what this commit has written, which counts whether or not reads
    /// do.
    #[cold]
    fn note_locked(&mut self, e: &Engine, csn: Csn) {
        let noted = csn <= self.all_upto || self.noted.contains(&csn);
        if !noted && e.opens().is_open(csn) && !faults::on(Fault::OpenForgotten) {
            self.add(csn);
        }
    }

    #[cold]
    fn note_open(&mut self, csn: Csn) {
        let done = csn <= self.upto && !self.open.iter().any(|(x, _)| *x == csn);
        if done || csn <= self.all_upto || self.noted.contains(&csn) || faults::on(Fault::DependsForgotten) {
            return;
        }
        self.add(csn);
    }

    fn add(&mut self, csn: Csn) {
        self.noted.push(csn);
        if self.noted.len() > MANY {
            self.all_upto = self.noted.drain(..).fold(self.all_upto, Csn::max);
        }
    }

    /// Is a commit on which it depends not done? Forgets those that are.
    #[inline]
    pub fn is_open(&mut self, e: &Engine) -> bool {
        !self.is_empty() && self.is_one_open(e)
    }

    #[cold]
    fn is_one_open(&mut self, e: &Engine) -> bool {
        let words = e.opens();
        if words.is_quiet() || self.all_upto != 0 && !words.any_open(self.all_upto) {
            self.all_upto = 0;
        }
        if words.is_quiet() {
            self.noted.clear();
        }
        self.noted.retain(|csn| words.is_open(*csn));
        !self.is_empty()
    }

    /// Does it depend on none, as far as is known?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.noted.is_empty() && self.all_upto == 0
    }

    /// The transaction has ended.
    pub fn clear(&mut self) {
        self.open.clear();
        self.noted.clear();
        self.all_upto = 0;
    }
}

/// The commits that snapshots under a pin leave out, and that may have a CSN below the pin.
#[derive(Default)]
pub(super) struct LeftOut {
    pin: Csn,
    /// All above this. On a standby a snapshot may lie below the clock: what it leaves out there is
    /// applied later.
    upto: Csn,
    list: Vec<Csn>,
}

impl LeftOut {
    /// A snapshot under the pin at this CSN leaves these out, and all above `upto`.
    fn add(&mut self, pin: Csn, upto: Csn, excluded: impl Iterator<Item = Csn>) {
        if self.pin != pin {
            self.list.clear();
            self.upto = Csn::MAX;
        }
        self.pin = pin;
        self.upto = self.upto.min(upto);
        for csn in excluded.filter(|csn| *csn <= pin) {
            if !self.list.contains(&csn) {
                self.list.push(csn);
            }
        }
    }

    /// Does a snapshot under this pin leave the commit out?
    pub fn has(&self, pin: Csn, csn: Csn) -> bool {
        self.pin == pin && (csn > self.upto || self.list.contains(&csn)) && !faults::on(Fault::PastByPin)
    }
}

impl Txn {
    /// Takes a snapshot, if no commit is held: pins, and returns the clock. The snapshot is the
    /// prefix up to that.
    #[inline]
    pub fn take_quiet(&mut self) -> Option<Csn> {
        self.e.pin(self.slot);
        self.e.opens().quiet_at()
    }

    /// Takes a snapshot: pins, and looks which commits are not done. Returns the clock and *V*.
    pub fn take_seen(&mut self, list: &mut Vec<(Csn, SlotId)>) -> (Csn, Csn) {
        self.e.pin(self.slot);
        let seen = self.e.take_seen(list);
        if !list.is_empty() {
            self.left_out.add(self.e.pinned_at(self.slot), seen.0, list.iter().map(|(csn, _)| *csn));
        }
        seen
    }

    /// Under its pin the transaction has a snapshot up to this CSN, on a standby: the clock may be
    /// above it.
    pub fn note_snapshot(&mut self, upto: Csn) {
        self.left_out.add(self.e.pinned_at(self.slot), upto, std::iter::empty());
    }

    /// Takes the snapshot of a serializable transaction that only reads: it sees all commits up to
    /// the clock, and depends on those that it reads. Returns the clock.
    pub fn take_prefix(&mut self, list: &mut Vec<(Csn, SlotId)>) -> (Csn, Csn) {
        self.e.pin(self.slot);
        let seen = self.e.take_seen(list);
        self.depends.begin_at(seen, list);
        seen
    }

    /// The transaction reads by a snapshot that it has imported, and pinned
    /// ([`Engine::adopt_pin`]). `depends`: as in [`Txn::take_prefix`].
    pub fn adopt_seen(&mut self, seen: Seen<'_>, depends: bool) {
        if depends {
            // Which of them are not done any more is looked up when it waits.
            let open: Vec<_> = seen.excluded.iter().map(|csn| (*csn, 0)).collect();
            self.depends.begin_at((seen.upto, seen.floor), &open);
        }
        self.left_out.add(self.e.pinned_at(self.slot), seen.upto, seen.excluded.iter().copied());
    }

    /// The end of the last look's list as a snapshot that sees what is valid now, for optimistic
    /// scans: the reads count.
    pub(super) fn valid_seen(&self) -> Kept {
        let valid = self.valid;
        Kept { upto: valid, floor: valid.min(self.depends.done_upto()), excluded: Vec::new() }
    }

    /// All reads up to this CSN are valid, and of commits that are done.
    #[inline(always)]
    pub(super) fn plain(&self) -> Csn {
        self.valid.min(self.depends.done_upto())
    }

    /// The newest version with a row that we may see, or above one that we may see. Pending
    /// versions count, and so do versions below tombstones. For a look at columns that all
    /// versions of the record share.
    ///
    /// A commit retires the versions that it replaced when it is done, at a value of the clock that
    /// is at least its CSN. Below a tombstone that committed at our pin or before lies memory that
    /// may be freed (INV-UNLINK), and that no snapshot or read of ours sees. A tombstone that a
    /// snapshot under our pin leaves out is an exception: its commit was not done when we pinned.
    /// On a standby it was not applied.
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
                Some(Fate::Committed(c)) if c <= pin && !self.left_out.has(pin, c) => return None,
                Some(_) => v = NonNull::new(ver.older())?,
            }
        }
    }

    /// A transaction below SERIALIZABLE has locked a row, in order to write it or not, and this is
    /// its newest version, perhaps a tombstone. If that is not of a commit that is done, it depends
    /// on the commit (INV-RELEASED, INV-UNDECIDED).
    #[inline]
    pub fn note_newest(&mut self, newest: Option<Committed>) {
        debug_assert_eq!(self.level, Level::Snapshot);
        let Some((_, csn)) = newest else { return };
        if csn > self.e.floor_of(self.slot) && !self.e.opens().is_quiet() {
            self.depends.note_locked(&self.owner.e, csn);
        }
    }

    /// Has the transaction read commits that were not done when it looked last?
    pub fn has_depends(&self) -> bool {
        !self.depends.is_empty()
    }

    /// Does the transaction depend on a commit that is not done? Asked when it has read all that it
    /// reads, before it takes its CSN.
    #[inline]
    pub fn depends_on_open(&mut self) -> bool {
        let (e, depends) = (self.owner.e, &mut self.depends);
        depends.is_open(&e)
    }

    /// Waits until all commits on which it depends are done. For a transaction that has no CSN yet,
    /// or will not take one.
    pub fn await_depends(&mut self, p: &dyn Platform) -> Result<(), Error> {
        let mut n = 0;
        while self.depends_on_open() {
            p.nap(n)?;
            n += 1;
        }
        Ok(())
    }
}
