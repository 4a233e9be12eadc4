//! The commit: the one place that orders its phases.
//!
//! 0. Wait for what a protocol must wait for before the commit; without writes, for what the
//!    transaction depends on.
//! 1. Lock the records that the optimistic protocols will write, in canonical order.
//! 2. Register the keys of all writes in the ranges, and inserts in their partitions.
//! 3. Link the versions, tombstones too, as pending versions.
//! 4. Word *preparing*; take the CSN; word *committing*.
//! 5. Validate reads and predicates at the CSN.
//!
//! After that the platform decides: [`Txn::publish`], which cannot fail, or [`Txn::abort`].
//!
//! A platform that logs commits makes the steps one by one: [`Txn::prepare_locks`] (0 and 1, and
//! the plan of 2), [`Txn::prepare_decide`], [`Txn::let_go_early`]; it logs; then
//! [`Txn::mark_committed`], [`Txn::settle`], [`Txn::rest`], a wait for the flush,
//! [`Txn::done`] and [`Txn::finish`]. A commit that waits so is *held* (INV-UNDONE).
//!
//! Where another authority decides (a commit log), the wait comes before [`Txn::mark_committed`].
//! [`Txn::rest_undecided`] ends the pin for it.
//!
//! **INV-UNDECIDED**: A held commit that validates no more needs no pin until it is decided. What
//! it uses after the wait stays without one:
//!
//! * Versions that it replaces: it retires them itself.
//! * Its versions of rows that it updates or deletes: it holds the lock of their records, or
//!   partitions, until it is done.
//! * Its versions of rows that it inserts, whose records it does not lock. Others replace them when
//!   the authority has decided. Such a writer finds the version unstamped, depends on the commit,
//!   and so retires the version after the commit is done, and has stamped it.
//! * Records: while it is open no floor is above its CSN, so no later delete is dead.
//! * Its registrations: neither a set of ranges nor the ranges of a dropped index are freed while a
//!   commit is under way that may have registered there. Other lists stay as long as their table,
//!   and the platform keeps that.
//! * The snapshot that it shows to importers: it hides that before it ends its pin.
//!
//! **INV-RELEASED**: A commit that waits for its flush may give up the locks of the rows that it
//! has written, and of partitions, before it is done ([`Txn::release_written`]). A transaction that
//! then locks such a row finds the newest version, and depends on the commit, whether or not it
//! writes. So it is done after the commit, and retires the commit's versions after that. Below
//! SERIALIZABLE it waits for the commit before it takes its next snapshot, so that the snapshot
//! shows all that the commit has written. Locks of rows that the commit has not written stay until
//! it is done: no version would name the commit. After [`Txn::rest`] it touches no version of its
//! own, and a record has a writer's id only under a transaction id, with which nothing is given up.
//!
//! **INV-OLD**: A commit retires what it has replaced after it is done, at a value of the clock
//! that was read then. So a snapshot that leaves it out was pinned at or before that value. Rows
//! that the commit has deleted are not dead before it is done, because no floor is above its CSN;
//! and after that it is pinned until it has finished.
//!
//! **INV-CSN**: A transaction locks, registers and links *before* it takes its CSN, and looks at
//! its reads and predicates *after* that. A writer may overwrite what the transaction read, or
//! insert into what it scanned. If the transaction does not see that when it looks, the writer has
//! a larger CSN.
//!
//! **INV-PIN**: A pin that another slot may have ended is taken anew before anything is read
//! without a snapshot. Entries of undone inserts are removed under a pin of *preparing*, of
//! *aborted*, or of a hold: other slots do not end these.

use super::touched::TouchedList;
use super::write::{growth, size_of, Delta};
use super::{Level, Stage, Txn, Write, WriteKind};
use crate::csn::{Csn, Stamp, State};
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::index::DeadChain;
use crate::partition::Partition;
use crate::platform::{Platform, StopEvent};
use crate::primitive::Ordering;
use crate::protocol::ProtocolSet;
use crate::record::Version;
use crate::retire::RetireQueue;
use std::ops::Range;

/// So many writes a commit gives up together.
const TOGETHER: usize = 64;

/// What was stamped in a partition, one write after the other, and is not counted there yet.
#[derive(Default)]
struct Tally {
    of: Option<&'static Partition>,
    writes: u32,
    delta: Delta,
}

impl Tally {
    /// Adds it to what the transaction did in the partition.
    fn count(&mut self, touched: &mut TouchedList) {
        let Tally { of: Some(partition), writes, delta } = std::mem::take(self) else { return };
        let t = touched.entry(partition);
        t.writes += writes;
        t.delta.add(delta);
    }
}

impl Txn {
    /// Steps 0 to 5. `stamp_payload` is called for each version that will be published, with its
    /// CSN, before any other transaction can see it. On an error, and on unwinding, call
    /// [`Txn::abort`].
    pub fn prepare(
        &mut self,
        p: &dyn Platform,
        stamp_payload: &(impl Fn(*mut Version, Csn) + ?Sized),
    ) -> Result<(), Error> {
        self.prepare_held(p, false, stamp_payload)
    }

    /// The same. `held`: snapshots leave the commit out until it is done, even if it depends on
    /// none that is not.
    pub fn prepare_held(
        &mut self,
        p: &dyn Platform,
        held: bool,
        stamp_payload: &(impl Fn(*mut Version, Csn) + ?Sized),
    ) -> Result<(), Error> {
        if !self.is_active() {
            return Ok(());
        }
        self.before_commit(p)?;
        if self.writes.is_empty() {
            self.await_depends(p)?;
            return self.decide_reads(p);
        }
        self.lock_and_plan(p)?;
        let held = held || self.depends_on_open();
        self.decide(p, held, stamp_payload)
    }

    /// Steps 0 and 1, and the plan of step 2. All sleeping for locks is over after it.
    pub fn prepare_locks(&mut self, p: &dyn Platform) -> Result<(), Error> {
        if !self.is_active() {
            return Ok(());
        }
        self.before_commit(p)?;
        if self.writes.is_empty() {
            return self.await_depends(p);
        }
        self.lock_and_plan(p)
    }

    #[inline(always)]
    fn lock_and_plan(&mut self, p: &dyn Platform) -> Result<(), Error> {
        self.await_guards(p)?;
        self.lock_all(p)?;
        self.plan_registrations(p)
    }

    /// Step 1, and room for what the end of the transaction retires.
    #[inline(always)]
    pub(super) fn lock_all(&mut self, p: &dyn Platform) -> Result<(), Error> {
        if !faults::on(Fault::WritersFreeze) {
            self.thaw(p)?; // each write has thawed it before
        }
        self.e.may_commit()?;
        self.writes.name_last_places();
        self.sweep_written(p);
        RetireQueue::reserve(&self.e, self.slot, self.writes.owed())?;
        p.stop_event(StopEvent::CommitLock)?;
        self.lock_writes(p)
    }

    /// Steps 2 to 5. `held`: snapshots leave the commit out until it is done. It must be so if the
    /// transaction depends on commits that are not done ([`Txn::depends_on_open`]).
    pub fn prepare_decide(
        &mut self,
        p: &dyn Platform,
        held: bool,
        stamp_payload: &(impl Fn(*mut Version, Csn) + ?Sized),
    ) -> Result<(), Error> {
        if !self.is_active() {
            return Ok(());
        }
        if self.writes.is_empty() {
            return self.decide_reads(p);
        }
        self.decide(p, held, stamp_payload)
    }

    /// Of a transaction without writes.
    #[inline(always)]
    fn decide_reads(&mut self, p: &dyn Platform) -> Result<(), Error> {
        let wrote = p.has_written();
        self.acts |= wrote;
        if !self.commits_at_valid(wrote) {
            self.thaw(p)?;
            let now = self.e.now();
            self.validate_all(p, now)?;
        }
        self.stage = Stage::Decided;
        Ok(())
    }

    #[inline(always)]
    fn decide(
        &mut self,
        p: &dyn Platform,
        held: bool,
        stamp_payload: &(impl Fn(*mut Version, Csn) + ?Sized),
    ) -> Result<(), Error> {
        self.held = held;
        self.follows = !self.depends.is_empty();
        p.stop_event(StopEvent::CommitRegister)?;
        self.stage = Stage::Committing;
        self.registrations.register(&self.owner, &self.writes);
        p.stop_event(StopEvent::CommitLink)?;
        self.writes.link();
        p.stop_event(StopEvent::CommitPrepare)?;
        if faults::on(Fault::LateCsn) {
            self.revalidate(p)?;
            self.break_validation();
            p.stop_event(StopEvent::CommitValidate)?;
        }
        self.take_csn();
        for (_, w) in self.writes.finals() {
            stamp_payload(w.version.as_ptr(), self.csn);
        }
        p.stop_event(StopEvent::CommitValidate)?;
        self.check_guards()?;
        self.validate_all(p, self.csn)?;
        self.stage = Stage::Decided;
        p.stop_event(StopEvent::CommitDecided)
    }

    /// May the transaction commit at `valid`, the CSN at which everything that it has read is the
    /// newest (INV-VALID)? It may if it has written nothing, here or elsewhere (`wrote`). Then
    /// there is nothing to validate: the commits of other transactions since then come after it.
    /// Storage that is newer than `valid` (TRUNCATE) is an exception: all transactions see it at
    /// once.
    fn commits_at_valid(&self, wrote: bool) -> bool {
        let may = self.level == Level::Serializable && !self.reads.at_commit;
        may && self.valid != 0 && !wrote && self.storage_was_there()
    }

    /// A transaction that deletes removes entries of rows that were deleted before. (Others may
    /// have no snapshot any more, and so no pin.)
    fn sweep_written(&mut self, p: &dyn Platform) {
        let Some(table) = self.writes.deletes().map(|w| w.r.table).next_back() else { return };
        if self.level == Level::Serializable {
            self.sweep(p, table, 2 * self.writes.len());
        }
    }

    /// Step 1. Canonical order: table, record. What is done with a write is the protocol's rule.
    #[inline(always)]
    fn lock_writes(&mut self, p: &dyn Platform) -> Result<(), Error> {
        if self.level != Level::Serializable {
            return Ok(());
        }
        let touched = &self.touched;
        let at_commit =
            |w: &Write| !w.superseded && w.base.is_some() && touched.followed(w.r.partition()).locks_at_commit();
        let todo = self.writes.take_order(at_commit);
        for &(_, _, i) in &todo {
            let w = self.writes.at(i);
            ProtocolSet::lock_at_commit(self, p, w)?;
        }
        self.writes.give_order(todo);
        Ok(())
    }

    /// Step 4 (INV-CSN).
    pub(super) fn take_csn(&mut self) {
        self.set_word(State::Preparing, 0);
        // INV-PIN: a pin that is renewed in this state stays until we have stamped the versions
        // that others may replace and retire once we are *committed*.
        if !faults::on(Fault::CommitsUnpinned) {
            self.e.pin(self.slot);
        }
        if self.held {
            // INV-UNDONE. Nothing waits between the two words.
            self.e.opens().begin(self.slot);
            self.open = true;
        }
        self.csn = self.e.shared.clock.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.note_group();
        if self.held {
            self.e.opens().took(self.slot, self.csn);
        }
        if faults::on(Fault::PreparingIsActive) {
            std::thread::yield_now();
        }
        self.set_word(State::Committing, self.csn);
    }

    /// Forgets what only a validation needs: for a commit whose outcome may take long.
    pub fn let_go_early(&mut self) {
        debug_assert!(!self.is_active() || self.stage == Stage::Decided);
        if self.held {
            self.locks.take_back_parts(&self.owner, None);
            self.scans.clear();
            self.reads.clear();
        }
    }

    /// The platform has logged the commit, and another authority decides it, perhaps after long:
    /// ends the pin (INV-UNDECIDED). [`Txn::mark_committed`] and what follows it, or
    /// [`Txn::abort`], take a new one. After [`Txn::let_go_early`].
    ///
    /// The pin stays if the transaction holds locks of ranges, or has touched tables that others
    /// may have dropped since.
    pub fn rest_undecided(&mut self) {
        if !self.is_active() || !self.held || self.keeps_tables {
            return;
        }
        debug_assert_eq!(self.stage, Stage::Decided);
        if self.locks.release_read_ranges(&self.owner) {
            return;
        }
        self.telemetry.forget_accessed();
        self.end_pin();
    }

    /// Ends the pin before the end of the transaction. The snapshot that the transaction shows is
    /// hidden first: an importer that finds it after taking its own pin relies on ours
    /// ([`Engine::adopt_pin`](crate::Engine::adopt_pin)).
    fn end_pin(&mut self) {
        if !faults::on(Fault::ShownWithoutPin) {
            self.e.hide(self.slot);
        }
        if std::mem::take(&mut self.holds) {
            self.e.let_go(self.slot);
        }
        self.e.unpin(self.slot);
    }

    /// Makes the commit visible, waits until it may be done, and ends the transaction. Allocates
    /// nothing and cannot fail.
    pub fn publish(&mut self, p: &dyn Platform) {
        if !self.is_active() {
            return;
        }
        if self.held {
            return self.publish_held(p);
        }
        debug_assert!(self.stage == Stage::Decided && self.depends.is_empty());
        let wrote = !self.writes.is_empty();
        if wrote {
            self.mark_committed();
            self.settle_and_give_up();
            self.registrations.finish(&self.owner, Stamp::csn(self.csn));
        }
        self.count_group(false);
        self.telemetry.count_committed(&self.owner, self.level, &self.touched);
        self.end_committed(p, wrote);
    }

    #[cold]
    fn publish_held(&mut self, p: &dyn Platform) {
        self.mark_committed();
        self.settle();
        let mut n = 0;
        while self.depends_on_open() && !faults::on(Fault::DoneTooEarly) {
            // There is no way back: the wait goes on.
            let _ = p.nap(n);
            n += 1;
        }
        self.finish(p);
    }

    /// Is the commit held: do snapshots leave it out until it is done?
    #[inline]
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// The outcome is *committed*. [`Txn::settle`] must follow.
    #[inline]
    pub fn mark_committed(&self) {
        if self.is_active() && !self.writes.is_empty() {
            debug_assert_eq!(self.stage, Stage::Decided);
            if self.held {
                self.e.pin(self.slot); // INV-UNDECIDED: it may have ended.
            }
            self.set_word(State::Committed, self.csn);
        }
    }

    /// Stamps the new versions, finishes the registrations, and counts. The pin of
    /// [`Txn::prepare_decide`] stays.
    pub fn settle(&mut self) {
        if !self.is_active() {
            return;
        }
        debug_assert_eq!(self.stage, Stage::Decided);
        if !self.writes.is_empty() {
            let mut tally = Tally::default();
            for i in 0..self.writes.len() {
                self.writes.announce(i);
                let w = self.writes.at(i);
                self.stamp(&w, &mut tally);
            }
            tally.count(&mut self.touched);
            self.registrations.finish(&self.owner, Stamp::csn(self.csn));
            self.shared_slot().commits.leave();
            if faults::on(Fault::RetiresBeforeDone) {
                self.retire_bases(0..self.writes.len());
            }
        }
        self.count_group(false);
        self.telemetry.count_committed(&self.owner, self.level, &self.touched);
        self.stage = Stage::Settled;
    }

    /// A commit that is held is about to wait, perhaps for long: ends its pin, and gives up what
    /// only the pin keeps. Locks of rows and partitions stay until it is done.
    ///
    /// The pin stays if the transaction has touched tables that others may have dropped since
    /// (INV-TABLE): it may have locked their partitions.
    pub fn rest(&mut self) {
        if !self.is_active() || !self.held {
            return;
        }
        debug_assert_eq!(self.stage, Stage::Settled);
        // All that lies in memory of ranges.
        self.locks.take_back_parts(&self.owner, None);
        self.locks.release_ranges(&self.owner);
        self.registrations.clear(&self.owner);
        self.scans.clear();
        if !self.keeps_tables {
            self.end_pin();
        }
    }

    /// After [`Txn::rest`]: gives up the locks of partitions, and of the rows that the transaction
    /// has written, if [`Txn::release_before_done`] has asked for that. Cannot fail.
    pub fn release_written(&mut self, p: &dyn Platform) {
        if !self.is_active() || !self.held || !self.locks.released {
            return;
        }
        debug_assert_eq!(self.stage, Stage::Settled);
        self.writes.release_locks(&self.owner);
        let (writes, locks) = (&self.writes, &mut self.locks);
        let written = |r| writes.last_of(r).is_some() || faults::on(Fault::ReleasesUnwritten);
        locks.release_written(&self.owner, p, written);
    }

    /// A commit that was held is done: snapshots show it.
    pub fn done(&mut self) {
        if std::mem::take(&mut self.open) {
            // INV-OLD: the floor of this pin is below our CSN.
            self.e.pin(self.slot);
            self.e.opens().end(self.slot, self.follows);
        }
    }

    /// Gives up what was replaced, releases the locks, and ends the transaction.
    pub fn finish(&mut self, p: &dyn Platform) {
        if !self.is_active() {
            return;
        }
        debug_assert_eq!(self.stage, Stage::Settled);
        self.done();
        let wrote = !self.writes.is_empty();
        if wrote {
            self.give_up_all(|_, _| {});
        }
        self.end_committed(p, wrote);
    }

    #[inline(always)]
    fn end_committed(&mut self, p: &dyn Platform, wrote: bool) {
        if self.level == Level::Serializable {
            self.retry.note_end(!self.acts);
        }
        self.retry.succeed();
        self.settle_intents();
        self.end_guards(self.csn);
        self.reset();
        if wrote {
            self.collect(p);
        }
    }

    /// All of [`Txn::settle`] and [`Txn::finish`] for the writes of a commit that is not held: it
    /// is done as soon as it is *committed* (INV-OLD).
    fn settle_and_give_up(&mut self) {
        let mut tally = Tally::default();
        self.give_up_all(|t, w| t.stamp(w, &mut tally));
        tally.count(&mut self.touched);
    }

    /// Gives up, with each write, what it has replaced, and the lock within it. `first`: what is to
    /// be done with the write before. The transaction is committed and done.
    ///
    /// Some writes go together through all that: of many, the list and the records leave the cache
    /// before a second pass would come to them.
    #[inline(always)]
    fn give_up_all(&mut self, mut first: impl FnMut(&mut Txn, &Write)) {
        let (mut left, mut dead) = (self.writes.len(), DeadChain::default());
        let (mut at, mut rewritten) = (0, false);
        while at < self.writes.len() {
            let some = at..self.writes.len().min(at + TOGETHER);
            for i in some.clone() {
                self.writes.announce(i);
                let w = self.writes.at(i);
                first(self, &w);
                self.give_up(&w, &mut left, &mut dead);
            }
            if !faults::on(Fault::RetiresBeforeDone) {
                left -= self.retire_bases(some.clone());
            }
            at = some.end;
            // The next transaction that locks such a record finds all that is done.
            rewritten |= self.writes.release_last_locks(&self.owner, some);
        }
        dead.enqueue();
        if rewritten {
            self.writes.release_locks(&self.owner);
        } else {
            self.writes.note_released();
        }
    }

    /// Stamps a new version, and adds up how much there is of them.
    #[inline(always)]
    fn stamp(&mut self, w: &Write, tally: &mut Tally) {
        if w.superseded {
            return;
        }
        // SAFETY: INV-VERSION: our own version, which is linked, and not retired before it is
        // replaced.
        unsafe { w.version.as_ref() }.set_stamp(Stamp::csn(self.csn));
        let d = match (w.base, w.kind) {
            (None, WriteKind::Delete) => Delta::default(),
            (None, _) => Delta { rows: 1, versions: 1, bytes: size_of(self.e.region, w.version) as i64 },
            (Some(base), kind) => {
                let bytes = growth(w, base);
                Delta { rows: -i64::from(kind == WriteKind::Delete), versions: 0, bytes }
            }
        };
        let partition = w.r.partition();
        if !tally.of.is_some_and(|p| std::ptr::eq(p, partition)) {
            tally.count(&mut self.touched);
            tally.of = Some(partition);
        }
        tally.writes += 1;
        tally.delta.add(d);
    }

    /// Retires a version of ours that no snapshot sees, and adds the record of a deleted row to
    /// those to be enqueued (INV-OLD). `left`: writes for whose versions there is still room in the
    /// queue.
    #[inline(always)]
    fn give_up(&mut self, w: &Write, left: &mut usize, dead: &mut DeadChain<'_>) {
        w.forget_writer();
        if w.superseded {
            // An own version that was overwritten by a later write of ours.
            self.retire_version(w.version);
            *left -= 1;
            return;
        }
        match (w.base, w.kind) {
            (None, WriteKind::Delete) => {
                // Inserted and deleted by us: no other transaction ever saw it.
                w.r.rec.writer.store(0, Ordering::SeqCst);
                self.writes.kill_insert(&self.owner, w, *left);
                // The clock is read after the unlinking (INV-RETIRE).
                RetireQueue::push(&self.e, self.slot, w.version.cast(), self.e.now());
                *left -= 1;
            }
            (Some(_), WriteKind::Delete) => {
                dead.add(w.r.table, w.r.no, w.r.rec);
            }
            _ => {}
        }
    }

    /// Since we are *committed* and done, snapshots from now on do not reach the bases of these
    /// writes. Returns how many there are.
    #[inline(always)]
    fn retire_bases(&self, of: Range<usize>) -> usize {
        let now = if faults::on(Fault::RetiresAtOwnCsn) { self.csn } else { self.e.now() };
        RetireQueue::push_all(&self.e, self.slot, self.writes.replaced(of), now)
    }

    /// Frees some retired memory.
    pub fn collect(&mut self, p: &dyn Platform) {
        self.reclamation.collect(&self.owner, |e| e.refresh_min_pin(p));
    }
}
