//! Locks of records and partitions, and the sleep for them.

use super::{Level, LockEntry, RecordRef, Txn};
use crate::csn::{SlotId, State};
use crate::error::{AbortReason, Error};
use crate::faults::{self, Fault};
use crate::lock::graph::{self, Edge};
use crate::lock::{Acquired, Claim, Conflict, First, Holder, LockWord, Mode};
use crate::partition::{Sleep, WaitReason};
use crate::platform::{Platform, Queue, StopEvent, WaitFor, EARLY};
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

/// A lock that is waited for. Dropping it forgets, also when the platform unwinds, that we wait for a stronger mode, and
/// wakes up those who stand back behind us.
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

/// Lost upgrades that are remembered.
const LOSSES: usize = 16;

/// An upgrade that was lost.
pub(super) struct Lost {
    /// Address of the lock: only compared, because it may have another use by now. Then a lock is stronger than needed.
    word: usize,
    /// Id of its table, which is never used again.
    table: u64,
    mode: Mode,
}

/// Steps of waiting for a holder that is in the act of committing before we sleep.
const SHORT: u32 = 200;

impl Txn {
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
        let mode = if read { self.mode_of_read(&r.rec.lock, r.table.id, mode) } else { mode };
        let me = Holder { slot: self.slot, mode, tag: if depth == 0 { 0 } else { p.lock_tag() } };
        if how == How::Policy(Policy::WaitDie) {
            self.set_age();
        }
        let word: &'static LockWord = &r.rec.lock;
        let got = match self.try_acquire(word, me, how) {
            Ok(a) => a,
            Err(c) => self.contend(p, word, me, how, Queue::Record(r.table.id, r.no), r.touch(), c)?,
        };
        let previous = match got {
            Acquired::Held => return Ok(()),
            Acquired::New if read && faults::on(Fault::EarlyRelease) => {
                word.release(self.e.region, self.slot, None);
                return Ok(());
            }
            Acquired::New => None,
            Acquired::Upgraded(h) => Some(h),
        };
        self.locks.push(LockEntry { word, rec: Some(r), previous, mode, depth });
        Ok(())
    }

    /// Locks a partition for its protocols. Serializable transactions keep the order of partitions and
    /// end with 40001 where they would have to wait against it; others wait.
    pub(crate) fn lock_partition(&mut self, p: &dyn Platform, at: Touch) -> Result<(), Error> {
        self.lock_partition_how(p, at, None)
    }

    pub(super) fn lock_partition_how(&mut self, p: &dyn Platform, at: Touch, how: Option<How>) -> Result<(), Error> {
        let partition = at.partition();
        if self.touch(partition).locked {
            return Ok(());
        }
        let word: &'static LockWord = &partition.lock;
        let me = Holder { slot: self.slot, mode: Mode::Update, tag: 0 };
        let order = (at.table.id, at.no);
        let against = self.level == Level::Serializable && order < self.last_partition;
        let how = how.unwrap_or(if against { How::Abort(AbortReason::PartitionOrder) } else { How::Wait });
        let got = match self.try_acquire(word, me, how) {
            Ok(a) => a,
            Err(c) => self.contend(p, word, me, how, Queue::Partition(at.table.id, at.no), at, c)?,
        };
        if got == Acquired::New {
            self.last_partition = self.last_partition.max(order);
            self.locks.push(LockEntry { word, rec: None, previous: None, mode: Mode::Update, depth: 0 });
        }
        self.touch(partition).locked = true;
        Ok(())
    }

    /// Takes part in `wait_die`'s order, at the first lock under this policy. Ages are unique: a slot
    /// has one transaction at a time, and its next one either has its age or a new one.
    pub(super) fn set_age(&mut self) {
        let age = &self.e.slots[self.slot as usize].age;
        if age.load(Ordering::Relaxed) == 0 {
            if self.age == 0 {
                self.age = self.e.shared.last_age.fetch_add(1, Ordering::SeqCst) + 1;
            }
            age.store(self.age, Ordering::SeqCst);
        }
    }

    /// Takes a lock unless it conflicts. NOWAIT and SKIP LOCKED never wait, so that no cycle is theirs.
    fn try_acquire(&self, word: &LockWord, me: Holder, how: How) -> Result<Acquired, Conflict> {
        match how {
            How::Try => word.try_acquire(self.e.region, me, Claim::Now),
            _ => word.try_acquire(self.e.region, me, Claim::Waits),
        }
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
        let w = Wanted { e: self.e, p, word, me, how, queue, at, marked: Cell::new(false) };
        let mut conflict = first;
        for n in 0..SHORT {
            let Conflict::With(h) = conflict else { break };
            if !matches!(self.e.word(h.slot).state(), State::Preparing | State::Committing | State::Committed) {
                break;
            }
            p.pause(n)?;
            match self.try_acquire(word, me, how) {
                Ok(a) => return Ok(a),
                Err(c) => conflict = c,
            }
        }
        self.may_wait(&w, conflict)?;
        p.stop_event(StopEvent::LockWait)?;
        self.counted(at, queue.into(), |t| {
            if let Conflict::Behind(first) = conflict {
                match t.stand_back(&w, first)? {
                    Ok(a) => return Ok(a),
                    Err(c) => t.may_wait(&w, c)?,
                }
            }
            t.sleep_in_queue(&w)
        })
    }

    /// Fails where the conflict, or how the lock is asked for, does not allow to wait.
    fn may_wait(&mut self, w: &Wanted, conflict: Conflict) -> Result<(), Error> {
        match conflict {
            Conflict::OutOfMemory => return Err(Error::OutOfMemory),
            Conflict::Upgrade => return Err(self.upgrade_conflict(w.word, w.me.mode, w.at)),
            Conflict::With(_) | Conflict::Behind(_) => {}
        }
        match w.how {
            How::Try => Err(Error::WouldBlock),
            How::Abort(reason) => Err(self.fail(reason, w.at)),
            How::Policy(Policy::NoWait) => Err(self.fail(AbortReason::LockConflict, w.at)),
            // Before the queue: its waits do not follow the ages. Who stands back behind a waiter needs no age: it
            // completes no circle.
            How::Policy(Policy::WaitDie) if matches!(conflict, Conflict::With(h) if self.is_older(h.slot)) => {
                Err(self.fail(AbortReason::WaitDie, w.at))
            }
            How::Wait | How::Policy(_) => Ok(()),
        }
    }

    fn upgrade_conflict(&mut self, word: &'static LockWord, mode: Mode, at: Touch) -> Error {
        self.loses(word, mode, at);
        if self.level == Level::Serializable {
            self.fail(AbortReason::UpgradeConflict, at)
        } else {
            self.deadlock(at)
        }
    }

    fn loses(&mut self, word: &'static LockWord, mode: Mode, at: Touch) {
        if self.level == Level::Serializable {
            if self.lost.len() == LOSSES {
                self.lost.remove(0);
            }
            self.lost.push(Lost { word: std::ptr::from_ref(word) as usize, table: at.table.id, mode });
        }
    }

    /// INV-LOSER: a transaction that follows one of its slot that lost an upgrade, until one commits, takes that lock
    /// for reading in the mode that was lost. So it waits for the winner, where it would overtake it by reading again,
    /// and no transaction and its repetitions lose twice for one lock.
    pub(super) fn mode_of_read(&self, word: &LockWord, table: u64, mode: Mode) -> Mode {
        if self.lost.is_empty() || faults::on(Fault::ForgetsLosses) {
            return mode;
        }
        let same = |l: &&Lost| l.word == std::ptr::from_ref(word) as usize && l.table == table;
        self.lost.iter().filter(same).fold(mode, |m, l| m.join(l.mode))
    }

    /// INV-LOSER: where the row of a lost upgrade is gone, the scan's next row takes its place: the winner has had that
    /// row, and the loser wants the next one now.
    pub(super) fn inherit(&mut self, r: RecordRef, live: bool) {
        if self.lost.is_empty() {
            return;
        }
        if live {
            self.heir = 0;
        } else if self.mode_of_read(&r.rec.lock, r.table.id, Mode::KeyShare) != Mode::KeyShare {
            self.heir = r.table.id;
        }
    }

    /// See [`Txn::inherit`].
    pub(super) fn is_heir(&self, r: RecordRef) -> bool {
        self.heir != 0 && self.heir == r.table.id
    }

    /// Counts a sleep for a lock of a partition, and remembers how it failed, also when the platform unwinds.
    fn counted<T>(
        &mut self,
        at: Touch,
        why: WaitReason,
        sleep: impl FnOnce(&mut Txn) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let slept = Sleep::start(at.partition(), why);
        let before = self.failed.replace((AbortReason::WaitGivenUp, at.partition()));
        let got = sleep(self);
        self.slept_ns += slept.ns();
        match &got {
            Ok(_) => self.failed = before,
            Err(Error::Deadlock) => self.note_deadlock(),
            Err(_) => {} // `fail` has said why, or the wait was given up
        }
        got
    }

    /// A newcomer stays behind a waiter that has marked the word (INV-TURN), in naps, until the waiter has had its turn or
    /// has given up. If the waiter comes to wait for it, it passes: no conflict demands that wait.
    fn stand_back(&self, w: &Wanted, first: First) -> Result<Result<Acquired, Conflict>, Error> {
        let mut first = first;
        for n in 0.. {
            let edge = match first {
                First::OfQueue => Edge::Queue(graph::name(w.queue)),
                First::Upgrader(slot) => Edge::Holder(slot, self.e.slots[slot as usize].ident.load(Ordering::SeqCst)),
            };
            let passes = match self.e.stands_back(self.slot, edge) {
                Some(_asleep) => w.p.stand_back(w.queue, n)?,
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

    /// Sleeps until the lock is ours. First come, first served, but who holds the lock already in
    /// a weaker mode does not queue: the first of the queue may be waiting for it.
    fn sleep_in_queue(&mut self, w: &Wanted) -> Result<Acquired, Error> {
        let queued = w.word.held_by(self.slot).is_none();
        let first = if queued {
            let name = graph::name(w.queue);
            let Some(asleep) = self.e.falls_asleep(self.slot, Edge::Queue(name), |slot| w.p.nudge(slot)) else {
                self.winner = self.e.first_in(name);
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

    /// Sleeps for one holder after the other. From the second one on newcomers stay behind us (INV-TURN): before that
    /// they would wait as long as the first one's transaction, and give us nothing by it.
    fn sleep_for_holders(&mut self, w: &Wanted, first: Option<&graph::First>) -> Result<Acquired, Error> {
        let (word, me) = (w.word, w.me);
        let claim = if first.is_some() { Claim::Turn } else { Claim::Waits };
        let mut slept = false;
        loop {
            match word.try_acquire(self.e.region, me, claim) {
                Ok(a) => return Ok(a),
                Err(Conflict::OutOfMemory) => return Err(Error::OutOfMemory),
                Err(Conflict::Upgrade) => return Err(self.upgrade_conflict(word, me.mode, w.at)),
                Err(Conflict::Behind(_)) => unreachable!("a holder, or the first of the queue, stays behind nobody"),
                Err(Conflict::With(h)) => {
                    if w.how == How::Policy(Policy::WaitDie) && self.is_older(h.slot) {
                        return Err(self.fail(AbortReason::WaitDie, w.at));
                    }
                    let ident = self.e.slots[h.slot as usize].ident.load(Ordering::SeqCst);
                    let gave = self.e.gave(h.slot);
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
                            self.winner = Some(holder);
                            if first.is_none() {
                                self.loses(word, me.mode, w.at);
                            }
                        }
                        return Err(e);
                    }
                }
            }
        }
    }

    /// Sleeps until a holder may have released its lock; fails if it waits for us. `gave`: how often it had given up locks
    /// before it was seen to hold this one.
    fn wait_for(&self, p: &dyn Platform, who: WaitFor, gave: u64) -> Result<(), Error> {
        let edge = match who.tag {
            0 => Some(Edge::Holder(who.slot, who.ident)),
            tag if tag & EARLY != 0 => Some(Edge::Early(who.slot, who.ident, gave)),
            _ => None, // a subtransaction's, which may end before its transaction, and does not count it
        };
        let asleep = |e| self.e.falls_asleep(self.slot, e, |slot| p.nudge(slot)).ok_or(Error::Deadlock);
        let _asleep = edge.map(asleep).transpose()?;
        p.wait_for(who)
    }

    /// Sleeps until a transaction has ended, or `there` tells that it does not matter any more; fails if it waits for us.
    /// Nothing is locked, and there is no queue: all who wait go on together.
    pub(super) fn sleep_while(
        &mut self,
        p: &dyn Platform,
        who: WaitFor,
        at: Touch,
        there: impl Fn(&Txn) -> bool,
    ) -> Result<(), Error> {
        p.stop_event(StopEvent::LockWait)?;
        self.counted(at, WaitReason::Reader, |t| {
            while there(t) {
                t.wait_for(p, who, 0)?;
            }
            Ok(())
        })
    }

    /// Between a transaction that lost a deadlock and its repetition: sleeps until the transaction that it has lost to
    /// has ended, also where only a subtransaction of that had the lock. Else the repetition takes its first locks again
    /// before the winner wakes up, and both meet again. No lock is held meanwhile, and our slot is idle: nobody waits for
    /// us, so that no circle can go through here. Returns at once if nothing was lost, or the transaction committed in
    /// spite of it. The platform's names of a slot's transactions must differ from one to the next.
    pub fn await_winner(&mut self, p: &dyn Platform) -> Result<(), Error> {
        debug_assert!(!self.is_active());
        while let Some(winner) = self.running_winner() {
            p.wait_for(winner)?;
        }
        self.winner = None;
        Ok(())
    }

    /// The transaction to which our last one lost a deadlock, if it still runs: for platforms that do not wait for it as
    /// long as it takes.
    pub fn running_winner(&self) -> Option<WaitFor> {
        let winner = WaitFor { tag: 0, ..self.winner? };
        let s = &self.e.slots[winner.slot as usize];
        let runs = s.ident.load(Ordering::SeqCst) == winner.ident && self.e.word(winner.slot).state() != State::Idle;
        runs.then_some(winner)
    }

    /// Is the transaction of a slot older than we, in `wait_die`'s order?
    pub(super) fn is_older(&self, slot: SlotId) -> bool {
        let age = |s: SlotId| self.e.slots[s as usize].age.load(Ordering::SeqCst);
        let (theirs, ours) = (age(slot), age(self.slot));
        theirs != 0 && ours != 0 && theirs < ours
    }

    /// Releases a lock or takes it back to what it was.
    fn release(&self, l: &LockEntry, restore: Option<Holder>) {
        l.word.release(self.e.region, self.slot, restore);
    }

    /// Releases all locks.
    pub(super) fn release_all(&mut self) {
        while let Some(l) = self.locks.pop() {
            if l.previous.is_none() {
                l.word.release(self.e.region, self.slot, None);
            }
        }
    }

    /// Releases the write locks of subtransactions at `depth` and deeper. Read locks stay: a
    /// serializable transaction keeps what it may have read under a write lock locked for reading.
    pub(super) fn release_from(&mut self, depth: u32) {
        for i in (self.mark(depth)..self.locks.len()).rev() {
            if self.locks[i].depth < depth {
                continue;
            }
            let reads =
                self.level == Level::Serializable && self.locks[i].rec.is_some_and(|r| self.may_have_locked_to_read(r));
            let share = Holder { slot: self.slot, mode: Mode::Share, tag: 0 };
            match self.locks[i].previous {
                None if reads => {
                    self.release(&self.locks[i], Some(share));
                    let l = &mut self.locks[i];
                    (l.mode, l.depth) = (Mode::Share, 0);
                }
                Some(h) if reads && h.mode < Mode::Share => {
                    self.release(&self.locks[i], Some(share));
                    let l = &mut self.locks[i];
                    (l.mode, l.depth) = (Mode::Share, 0);
                }
                previous => {
                    self.release(&self.locks[i], previous);
                    self.locks.remove(i);
                }
            }
        }
    }

    /// May the lock of this record protect a read?
    fn may_have_locked_to_read(&self, r: RecordRef) -> bool {
        self.followed(r.partition()).union(r.partition().protocols()).locks_reads()
    }

    /// The subtransaction at `depth` committed: its locks are its parent's.
    pub(super) fn keep_locks(&mut self, depth: u32) {
        let parent = if depth <= 2 { 0 } else { depth - 1 };
        let first = self.mark(depth);
        for l in self.locks[first..].iter_mut().filter(|l| l.depth >= depth) {
            l.depth = parent;
        }
    }

    /// Index of the first lock that the subtransaction at `depth` may have taken.
    fn mark(&self, depth: u32) -> usize {
        self.marks.get(depth as usize).map_or(0, |&n| n.min(self.locks.len()))
    }

    /// Locks that the subtransaction at `depth` took under the tag `from` have the tag `to` from
    /// now on. Call it before [`Txn::commit_sub`].
    pub fn retag(&mut self, depth: u32, from: u32, to: u32) {
        for i in self.mark(depth)..self.locks.len() {
            if let Some(h) = self.locks[i].previous.as_mut().filter(|h| h.tag == from) {
                h.tag = to;
            }
            let word = self.locks[i].word;
            if let Some(h) = word.held_by(self.slot).filter(|h| h.tag == from) {
                word.release(self.e.region, self.slot, Some(Holder { tag: to, ..h }));
            }
        }
    }
}
