//! Locks of records and partitions, and the sleep for them.

use super::retry::Why;
use super::{Level, Owner, RecordRef, Txn};
use crate::csn::{SlotId, State};
use crate::error::{AbortReason, Error};
use crate::faults::{self, Fault};
use crate::lock::graph::{self, Edge};
use crate::lock::{Acquired, Claim, Conflict, First, Holder, LockWord, Mode};
use crate::partition::{Sleep, WaitReason};
use crate::platform::{Napped, Platform, Queue, StopEvent, WaitFor, AT_COMMIT, EARLY, SPINS};
use crate::primitive::Ordering;
use crate::protocol::{Policy, Touch};
use crate::shared::Engine;
use std::cell::Cell;

/// What to do when a lock conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Sleep until it is free.
    Wait,
    /// Return [`Error::WouldBlock`].
    Try,
    /// As the waiting policy of the partition says.
    Policy(Policy),
    /// End with this reason.
    Abort(AbortReason),
}

/// A lock that the transaction waits for. Dropping it, also when the platform unwinds, forgets that
/// we wait for a stronger mode, and wakes up the newcomers that stand back behind us.
struct Wanted<'p> {
    e: Engine,
    p: &'p dyn Platform,
    word: &'static LockWord,
    me: Holder,
    how: How,
    queue: Queue,
    at: Touch,
    /// Have newcomers been told to stay behind us?
    marked: Cell<bool>,
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.word.end_upgrade(self.me.slot);
        if self.marked.get() {
            self.e.behind(self.me.slot, graph::name(self.queue)).for_each(|slot| self.p.nudge(slot));
        }
    }
}

/// Steps of waiting for a holder that is in the act of committing before we sleep. A transaction
/// that must not sleep for the lock takes only those that do not sleep.
const SHORT: u32 = 200;

impl Txn {
    /// Would this transaction have to wait for the row's lock now? A hint: the next moment may
    /// tell another answer.
    pub fn is_locked_by_others(&self, r: RecordRef, mode: Mode) -> bool {
        r.rec.lock.conflicting(self.slot, mode).is_some()
    }

    /// Locks a record. `read`: the lock protects a read, so it outlives its subtransaction.
    pub fn lock_record(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        mode: Mode,
        how: How,
        read: bool,
    ) -> Result<(), Error> {
        let depth = if read || self.depth <= 1 { 0 } else { self.depth };
        let mode = if read { self.mode_of_read(r, mode) } else { mode };
        let tag = if depth == 0 { self.locks.tag_at_commit(p)? } else { p.lock_tag() };
        let me = Holder { slot: self.slot, mode, tag };
        if how == How::Policy(Policy::WaitDie) {
            self.retry.publish_age(&self.owner);
        }
        let word: &'static LockWord = &r.rec.lock;
        let got = match self.try_acquire(word, me, how) {
            Ok(a) => a,
            Err(c) => self.contend(p, word, me, how, Queue::Record(r.table.id, r.no), r.touch(), c)?,
        };
        if got == Acquired::New && read && faults::on(Fault::EarlyRelease) {
            word.release(self.e.region, self.slot, None);
            return Ok(());
        }
        if !read {
            self.note_write_lock(r, mode, got);
        }
        self.locks.add(word, Some(r), mode, depth, got);
        Ok(())
    }

    /// What [`Txn::lock_record`] does for a read, or for a write outside of savepoints, if the lock
    /// is to be had at once. It neither fails nor unwinds, and does not call the platform. For a
    /// transaction that has lost no conflict of late (INV-LOSER).
    #[inline]
    pub(super) fn lock_at_hand(&mut self, r: RecordRef, mode: Mode, read: bool) -> bool {
        if !read && self.depth > 1 {
            return false; // the lock may end with the savepoint
        }
        let Some(tag) = self.locks.tag_at_hand() else { return false };
        if r.partition().policy() == Policy::WaitDie {
            self.retry.publish_age(&self.owner);
        }
        let word: &'static LockWord = &r.rec.lock;
        let me = Holder { slot: self.slot, mode, tag };
        let Ok(got) = word.try_acquire(self.e.region, me, Claim::Now) else { return false };
        if !read {
            self.acts = true;
            self.note_write_lock(r, mode, got);
        }
        self.locks.add(word, Some(r), mode, 0, got);
        true
    }

    /// The mode of a read's lock: stronger where a former transaction has lost the row. A lock for
    /// writing that is held is enough.
    #[inline]
    fn mode_of_read(&self, r: RecordRef, mode: Mode) -> Mode {
        let stronger = self.retry.mode_of_read(&r.rec.lock, r.table.id, mode);
        let writes = || r.rec.lock.held_by(self.slot).is_some_and(|h| h.mode >= Mode::NoKeyUpdate);
        if stronger != mode && writes() {
            return mode;
        }
        stronger
    }

    /// Locks a partition for its protocols. Serializable transactions keep the order of partitions:
    /// where they would have to wait against it, they end with 40001. Other transactions wait.
    pub(crate) fn lock_partition(&mut self, p: &dyn Platform, at: Touch) -> Result<(), Error> {
        self.lock_partition_how(p, at, None)
    }

    pub(super) fn lock_partition_how(&mut self, p: &dyn Platform, at: Touch, how: Option<How>) -> Result<(), Error> {
        let partition = at.partition();
        if self.touch(partition).locked {
            return Ok(());
        }
        let word: &'static LockWord = &partition.lock;
        let me = Holder { slot: self.slot, mode: Mode::Update, tag: self.locks.tag_at_commit(p)? };
        let place = (at.table.id, at.no);
        let against = self.level == Level::Serializable && self.locks.is_against_order(place);
        let how = how.unwrap_or(if against { How::Abort(AbortReason::PartitionOrder) } else { How::Wait });
        let got = match self.try_acquire(word, me, how) {
            Ok(a) => a,
            Err(c) => self.contend(p, word, me, how, Queue::Partition(at.table.id, at.no), at, c)?,
        };
        self.locks.add_partition(word, place, got);
        self.touch(partition).locked = true;
        Ok(())
    }

    /// Decides what to do about a conflict: sleeps and gets the lock, or fails.
    #[cold]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn contend(
        &mut self,
        p: &dyn Platform,
        word: &'static LockWord,
        me: Holder,
        how: How,
        queue: Queue,
        at: Touch,
        first: Conflict,
    ) -> Result<Acquired, Error> {
        self.note_conflict(first, queue, me.mode, at.table.id);
        let w = Wanted { e: self.e, p, word, me, how, queue, at, marked: Cell::new(false) };
        let mut conflict = first;
        for n in 0..SHORT {
            let Conflict::With(h) = conflict else { break };
            if !matches!(self.e.word(h.slot).state(), State::Preparing | State::Committing | State::Committed) {
                break;
            }
            // A commit in memory is over by now; one that waits for a standby may last for hours.
            if n == SPINS && (how == How::Try || !p.may_sleep(queue)) {
                break;
            }
            p.pause(n)?;
            match self.try_acquire(word, me, how) {
                Ok(a) => return Ok(a),
                Err(c) => conflict = c,
            }
        }
        self.note_late(&w);
        if faults::on(Fault::ForgetsLosses) && matches!(conflict, Conflict::Behind(_)) {
            if let Ok(a) = word.try_acquire(self.e.region, me, Claim::Pass) {
                return Ok(a);
            }
        }
        self.may_wait(&w, conflict)?;
        p.stop_event(StopEvent::LockWait)?;
        let got = self.counted(at, queue.into(), |t| {
            if let Conflict::Behind(first) = conflict {
                let yields = t.level == Level::Serializable || me.mode > Mode::KeyShare;
                match t.stand_back(&w, first, yields)? {
                    Ok(a) => return Ok(a),
                    Err(c) => t.may_wait(&w, c)?,
                }
            }
            t.sleep_in_queue(&w)
        });
        if got == Err(Error::Deadlock) && matches!(queue, Queue::Record(..)) && self.level == Level::Serializable {
            self.list(&w, Why::Wanted);
        }
        got
    }

    /// Fails where the conflict, or how the lock is asked for, does not allow to wait.
    fn may_wait(&mut self, w: &Wanted, conflict: Conflict) -> Result<(), Error> {
        match conflict {
            Conflict::OutOfMemory => return Err(Error::OutOfMemory),
            Conflict::Upgrade => return Err(self.upgrade_conflict(w)),
            Conflict::With(_) | Conflict::Behind(_) => {}
        }
        if !w.p.may_sleep(w.queue) && !faults::on(Fault::SleepsAnyhow) {
            return Err(Error::WouldBlock);
        }
        match w.how {
            How::Try => Err(Error::WouldBlock),
            How::Abort(reason) => Err(self.fail(reason, w.at)),
            How::Policy(Policy::NoWait) => Err(self.fail(AbortReason::LockConflict, w.at)),
            // Before the queue: its waits do not follow the ages. A newcomer that stands back
            // behind a waiter needs no age: it completes no cycle.
            How::Policy(Policy::WaitDie) if matches!(conflict, Conflict::With(h) if self.is_older(h.slot)) => {
                Err(self.fail(AbortReason::WaitDie, w.at))
            }
            How::Wait | How::Policy(_) => Ok(()),
        }
    }

    fn upgrade_conflict(&mut self, w: &Wanted) -> Error {
        self.lose(w);
        if self.level == Level::Serializable {
            self.fail(AbortReason::UpgradeConflict, w.at)
        } else {
            self.deadlock(w.at)
        }
    }

    fn lose(&mut self, w: &Wanted) {
        if self.level == Level::Serializable {
            self.list(w, Why::Upgrade);
            if let Queue::Record(_, no) = w.queue {
                // One that wanted to read would not have written.
                if w.me.mode >= Mode::NoKeyUpdate || faults::on(Fault::LostReadIsWrite) {
                    w.at.partition().intents.lost(no);
                }
            }
        }
    }

    /// The transactions that follow in the slot had better take this lock early.
    fn list(&mut self, w: &Wanted, why: Why) {
        let no = if let Queue::Record(_, no) = w.queue { Some(no) } else { None };
        self.retry.list(std::ptr::from_ref(w.word) as usize, w.at.table.id, no, w.me.mode, why);
    }

    /// The lock is not to be had at once. If the transaction has locked the row's key alone to look
    /// at it, others had better lock the row at such a look: they would wait there, and hold less
    /// than this one does now, for which somebody may wait.
    fn note_late(&self, w: &Wanted) {
        let Queue::Record(_, no) = w.queue else { return };
        let has_key = || w.word.held_by(self.slot).is_some_and(|h| h.mode == Mode::KeyShare);
        if !self.reads.is_empty() && !faults::on(Fault::LearnsNothing) && has_key() {
            if let Some(r) = RecordRef::find(w.at.table, no) {
                self.note_followed(r);
            }
        }
    }

    /// Counts a sleep for a lock of a partition. Remembers how it failed, also when the platform
    /// unwinds.
    fn counted<T>(
        &mut self,
        at: Touch,
        why: WaitReason,
        sleep: impl FnOnce(&mut Txn) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let slept = Sleep::start(at.partition(), why);
        let before = self.failed.replace((AbortReason::WaitGivenUp, at.partition()));
        let got = sleep(self);
        self.telemetry.slept_ns += slept.ns();
        self.note_slept(slept.ns(), got.is_ok());
        match &got {
            Ok(_) => self.failed = before,
            Err(Error::Deadlock) => self.note_deadlock(),
            Err(_) => {} // `fail` has said why, or the wait was given up
        }
        got
    }

    /// Sleeps until the lock is ours. First come, first served; but a transaction that holds the
    /// lock in a weaker mode does not queue: the first of the queue may be waiting for it.
    fn sleep_in_queue(&mut self, w: &Wanted) -> Result<Acquired, Error> {
        let queued = w.word.held_by(self.slot).is_none();
        let first = if queued {
            let name = graph::name(w.queue);
            let Some(asleep) = self.e.publish_wait(self.slot, Edge::Queue(name), |slot| w.p.nudge(slot)) else {
                self.retry.winner = self.e.first_in(name);
                return Err(Error::Deadlock);
            };
            w.p.enter_queue(w.queue)?;
            drop(asleep);
            Some(graph::First::enter(self.e, self.slot, name))
        } else {
            None
        };
        let got = self.sleep_for_holders(w, first.as_ref());
        drop(first);
        if queued {
            w.p.leave_queue(w.queue);
        }
        got
    }

    /// Sleeps for one holder after the other. From the second holder on, newcomers stay behind us
    /// (INV-TURN). Before that they would wait as long as the transaction of the first one, and we
    /// would gain nothing by it.
    fn sleep_for_holders(&mut self, w: &Wanted, first: Option<&graph::First>) -> Result<Acquired, Error> {
        let (word, me) = (w.word, w.me);
        let claim = if first.is_some() { Claim::Turn } else { Claim::Waits };
        let mut slept = false;
        loop {
            match word.try_acquire(self.e.region, me, claim) {
                Ok(a) => return Ok(a),
                Err(Conflict::OutOfMemory) => return Err(Error::OutOfMemory),
                Err(Conflict::Upgrade) => return Err(self.upgrade_conflict(w)),
                Err(Conflict::Behind(_)) => unreachable!("a holder or the first of the queue stays behind no waiter"),
                Err(c @ Conflict::With(h)) => {
                    self.note_conflict(c, w.queue, me.mode, w.at.table.id);
                    if w.how == How::Policy(Policy::WaitDie) && self.is_older(h.slot) {
                        return Err(self.fail(AbortReason::WaitDie, w.at));
                    }
                    let ident = self.e.slots[h.slot as usize].ident.load(Ordering::SeqCst);
                    let gave = self.e.early_releases(h.slot);
                    if word.held_by(h.slot) != Some(h) {
                        continue; // the holder changed while we read its name
                    }
                    if slept {
                        w.marked.set(true);
                        match first {
                            Some(first) => first.mark(word, me.mode),
                            None => word.mark_upgrade(self.slot),
                        }
                    }
                    slept = true;
                    let holder = WaitFor { ident, slot: h.slot, tag: h.tag, lock: Some(w.queue) };
                    if let Err(e) = self.wait_for(w.p, holder, gave) {
                        if e == Error::Deadlock {
                            self.retry.winner = Some(holder);
                            if first.is_none() {
                                self.lose(w);
                            }
                        }
                        return Err(e);
                    }
                }
            }
        }
    }

    /// Sleeps until a transaction has ended, or until `there` says that it does not matter any
    /// more; fails if it waits for us. Nothing is locked, and there is no queue: all waiters go on
    /// together.
    pub(super) fn sleep_while(
        &mut self,
        p: &dyn Platform,
        holder: WaitFor,
        at: Touch,
        there: impl Fn(&Txn) -> bool,
    ) -> Result<(), Error> {
        p.stop_event(StopEvent::LockWait)?;
        self.counted(at, WaitReason::Reader, |t| {
            while there(t) {
                t.wait_for(p, holder, 0)?;
            }
            Ok(())
        })
    }

    /// Between a transaction that lost a deadlock and its retry: sleeps until the transaction that
    /// won has ended, even if only a subtransaction of it held the lock. Without this sleep the
    /// retry would take its first locks again before the winner wakes up, and both would meet
    /// again.
    ///
    /// No lock is held meanwhile, and our slot is idle: no transaction waits for us, so that no
    /// cycle can go through here. Returns at once if nothing was lost, or if the transaction
    /// committed in spite of it. The platform's names of a slot's transactions must differ from one
    /// to the next.
    pub fn await_winner(&mut self, p: &dyn Platform) -> Result<(), Error> {
        debug_assert!(!self.is_active());
        while let Some(winner) = self.running_winner() {
            p.wait_for(winner)?;
        }
        self.retry.winner = None;
        Ok(())
    }

    /// The transaction to which our last one lost a deadlock, if it still runs. For platforms that
    /// do not wait for it as long as it takes.
    pub fn running_winner(&self) -> Option<WaitFor> {
        self.retry.running_winner(&self.owner)
    }

    /// Releases the write locks of subtransactions at `depth` and deeper. Read locks stay: a
    /// serializable transaction keeps what it may have read under a write lock locked for reading.
    pub(super) fn release_from(&mut self, depth: u32) {
        let (touched, serializable) = (&self.touched, self.level == Level::Serializable);
        let reads = |r: RecordRef| serializable && touched.may_follow(r.partition()).locks_reads();
        self.locks.release_from(&self.owner, depth, reads);
    }

    /// Locks that the subtransaction at `depth` took under the tag `from` have the tag `to` from
    /// now on. Call it before [`Txn::commit_sub`].
    pub fn retag(&mut self, depth: u32, from: u32, to: u32) {
        self.locks.retag(&self.owner, depth, from, to);
    }
}

impl Owner {
    /// Takes a lock unless it conflicts. NOWAIT and SKIP LOCKED never wait, and so are in no cycle.
    #[inline]
    fn try_acquire(&self, word: &LockWord, me: Holder, how: How) -> Result<Acquired, Conflict> {
        match how {
            How::Try => word.try_acquire(self.e.region, me, Claim::Now),
            _ => word.try_acquire(self.e.region, me, Claim::Waits),
        }
    }

    /// A newcomer stays behind a waiter that has marked the word (INV-TURN). It naps until the
    /// waiter has had its turn or has given up. If the waiter comes to wait for it, it passes: no
    /// conflict demands that wait. Unless it `yields` as long as it takes, it passes after some
    /// time: checks of foreign keys do not stop for the time of a transaction that does nothing.
    fn stand_back(&self, w: &Wanted, first: First, yields: bool) -> Result<Result<Acquired, Conflict>, Error> {
        let mut first = first;
        for n in 0.. {
            let edge = match first {
                First::OfQueue => Edge::Queue(graph::name(w.queue)),
                First::Upgrader(slot) => Edge::Holder(slot, self.e.slots[slot as usize].ident.load(Ordering::SeqCst)),
            };
            let passes = match self.e.publish_soft_wait(self.slot, edge) {
                Some(_asleep) => match w.p.stand_back(w.queue, n)? {
                    Napped::Awaited => true,
                    Napped::Long => !yields,
                    Napped::Short => false,
                },
                None => true,
            };
            let claim = if passes { Claim::Pass } else { Claim::Waits };
            match w.word.try_acquire(self.e.region, w.me, claim) {
                Err(Conflict::Behind(next)) => first = next,
                got => return Ok(got),
            }
        }
        unreachable!("the loop has no end")
    }

    /// Sleeps until a holder may have released its lock; fails if it waits for us. `gave`: how
    /// often the holder had given up locks before it was seen to hold this one.
    fn wait_for(&self, p: &dyn Platform, holder: WaitFor, gave: u64) -> Result<(), Error> {
        let edge = match holder.tag {
            0 => Some(Edge::Holder(holder.slot, holder.ident)),
            // A commit that has given up locks sleeps for no lock any more.
            tag if tag & AT_COMMIT != 0 => Some(Edge::Holder(holder.slot, holder.ident)),
            tag if tag & EARLY != 0 => Some(Edge::Early(holder.slot, holder.ident, gave)),
            _ => None, // a subtransaction's, which may end before its transaction, and does not count it
        };
        let asleep = |e| self.e.publish_wait(self.slot, e, |slot| p.nudge(slot)).ok_or(Error::Deadlock);
        let _asleep = edge.map(asleep).transpose()?;
        p.wait_for(holder)
    }

    /// Is the transaction of a slot older than ours, in the order of `wait_die`?
    pub(super) fn is_older(&self, slot: SlotId) -> bool {
        let age = |s: SlotId| self.e.slots[s as usize].age.load(Ordering::SeqCst);
        let (theirs, ours) = (age(slot), age(self.slot));
        theirs != 0 && ours != 0 && theirs < ours
    }
}
