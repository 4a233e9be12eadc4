//! The commit: the one place that orders its phases.
//!
//! 0. wait for whatever a protocol must wait for before the commit;
//! 1. lock what the optimistic protocols will write, in canonical order;
//! 2. register the keys of all writes in the ranges, and inserts in their partitions;
//! 3. link the versions, tombstones too, as pending;
//! 4. *preparing*, take the CSN, *committing*;
//! 5. validate reads and predicates at the CSN.
//!
//! After that the platform decides: [`Txn::publish`] (which cannot fail), or [`Txn::abort`].

use super::write::{growth, size_of, Delta, Write, WriteKind};
use super::{How, Level, Stage, Txn};
use crate::csn::{Csn, Stamp, State};
use crate::error::{AbortReason, Error};
use crate::faults::{self, Fault};
use crate::lock::Mode;
use crate::platform::{Platform, StopEvent};
use crate::primitive::Ordering;
use crate::record::Version;
use crate::retire::RetireQueue;
use crate::shared::Engine;
use std::ptr::NonNull;

/// With fewer retired versions a commit does not free any.
const DRAIN: u64 = 64;
/// So many more retired versions than last time are a reason to look at all pins.
const MANY: u64 = 4096;

impl Txn {
    /// Steps 0 to 5. `stamp_payload` is called for each version that will be published, with its
    /// CSN, before anybody can see it. On an error, and on unwinding, call [`Txn::abort`].
    pub fn prepare(&mut self, p: &dyn Platform, stamp_payload: &dyn Fn(*mut Version, Csn)) -> Result<(), Error> {
        if !self.is_active() {
            return Ok(());
        }
        self.before_commit(p)?;
        if self.writes.is_empty() {
            if !self.commits_at_valid(p) {
                let now = self.e.now();
                self.validate_all(p, now)?;
            }
            self.stage = Stage::Decided;
            return Ok(());
        }
        self.e.may_commit()?;
        self.sweep_written(p);
        RetireQueue::reserve(&self.e, self.slot, self.owed())?;
        p.stop_event(StopEvent::CommitLock)?;
        self.lock_writes(p)?;
        self.plan_registrations(p)?;
        p.stop_event(StopEvent::CommitRegister)?;
        self.stage = Stage::Committing;
        self.register();
        p.stop_event(StopEvent::CommitLink)?;
        self.link();
        p.stop_event(StopEvent::CommitPrepare)?;
        if faults::on(Fault::LateCsn) {
            self.revalidate(p)?;
            self.break_validation();
            p.stop_event(StopEvent::CommitValidate)?;
        }
        self.take_csn();
        for i in 0..self.writes.len() {
            if self.is_latest(i) {
                stamp_payload(self.writes[i].version.as_ptr(), self.csn);
            }
        }
        p.stop_event(StopEvent::CommitValidate)?;
        self.validate_all(p, self.csn)?;
        self.stage = Stage::Decided;
        p.stop_event(StopEvent::CommitDecided)
    }

    /// A transaction that has written nothing, here or elsewhere, is serialized at `valid`, the CSN at which
    /// everything it has read is the newest (INV-VALID). Then there is nothing to validate: what
    /// others have committed since comes after it. Storage that is newer than that (TRUNCATE) is another matter:
    /// it shows itself to everybody.
    fn commits_at_valid(&self, p: &dyn Platform) -> bool {
        let was_there = || self.touched.iter().all(|t| t.partition.since() <= self.valid);
        let may = self.level == Level::Serializable && !self.reads.at_commit;
        may && self.valid != 0 && !p.has_written() && was_there()
    }

    /// Who deletes removes entries of what was deleted before. (Others may have no snapshot any more,
    /// and so no pin.)
    fn sweep_written(&mut self, p: &dyn Platform) {
        let deletes = self.writes.iter().filter(|w| w.kind == WriteKind::Delete);
        let Some(table) = deletes.map(|w| w.r.table).next_back() else { return };
        if self.level == Level::Serializable {
            self.sweep(p, table, 2 * self.writes.len());
        }
    }

    /// Is this write the last one of its record?
    pub(super) fn is_latest(&self, i: usize) -> bool {
        !self.writes[i].superseded
    }

    /// Step 1. Canonical order: table, record.
    fn lock_writes(&mut self, p: &dyn Platform) -> Result<(), Error> {
        if self.level != Level::Serializable {
            return Ok(());
        }
        // An error leaves an empty one behind.
        let mut todo = std::mem::take(&mut self.to_lock);
        let at_commit =
            |w: &Write| !w.superseded && w.base.is_some() && self.followed(w.r.partition()).locks_at_commit();
        let writes = self.writes.iter().enumerate().filter(|(_, w)| at_commit(w));
        todo.extend(writes.map(|(i, w)| (w.r.table.id, w.r.no, i)));
        todo.sort_unstable();
        for &(_, _, i) in &todo {
            let w = self.writes[i];
            let mode = if w.kind == WriteKind::Delete { Mode::Update } else { Mode::NoKeyUpdate };
            self.lock_record(p, w.r, mode, How::Wait, false)?;
            if w.base.is_some_and(|base| w.r.rec.head() == base.as_ptr()) {
                continue; // committed since it was read, and nothing is newer
            }
            let newest = self.newest(p, w.r.rec)?.map(|(v, _)| v);
            if newest != w.base {
                return Err(self.fail(AbortReason::WriteConflict, w.r.touch()));
            }
        }
        super::clear_vec(&mut todo);
        self.to_lock = todo;
        Ok(())
    }

    /// Step 3. We hold the write lock of every record, or its partition's, or have inserted it.
    fn link(&mut self) {
        for i in 0..self.writes.len() {
            if self.is_latest(i) {
                let w = self.writes[i];
                debug_assert!(w.base.is_none() || w.base.map(|b| b.as_ptr()) == Some(w.r.rec.head()));
                let older = w.base.map_or(std::ptr::null_mut(), |b| b.as_ptr());
                // SAFETY: our own version, not linked yet (or our own insert's).
                unsafe { w.version.as_ref() }.set_older(older);
                w.r.rec.set_head(w.version.as_ptr());
            }
            self.linked = i + 1;
        }
    }

    /// Step 4. INV-CSN: locked, registered and linked before; looked after. Hence whoever
    /// overwrites what we read, or inserts into what we scanned, without our seeing it when we
    /// look, has a larger CSN.
    fn take_csn(&mut self) {
        self.set_word(State::Preparing, 0);
        // INV-PIN: a pin that is renewed in this state stays until we have stamped what others may
        // replace and retire from *committed* on.
        if !faults::on(Fault::CommitsUnpinned) {
            self.e.pin(self.slot);
        }
        self.csn = self.e.shared.clock.0.fetch_add(1, Ordering::SeqCst) + 1;
        if faults::on(Fault::PreparingIsActive) {
            std::thread::yield_now();
        }
        self.set_word(State::Committing, self.csn);
    }

    /// Makes the commit visible and ends the transaction. Allocates nothing and cannot fail.
    pub fn publish(&mut self, p: &dyn Platform) {
        if !self.is_active() {
            return;
        }
        debug_assert_eq!(self.stage, Stage::Decided);
        let wrote = !self.writes.is_empty();
        if wrote {
            self.set_word(State::Committed, self.csn);
            self.settle_writes();
            let tag = self.tag();
            for r in self.registered.drain(..) {
                r.finish(tag, Stamp::csn(self.csn));
            }
        }
        self.count_committed();
        self.age = 0;
        self.lost.clear();
        self.winner = None;
        self.reset();
        if wrote {
            self.collect(p);
        }
    }

    /// Stamps what is published, and retires what it replaced.
    fn settle_writes(&mut self) {
        // Bases are unreachable since we are *committed*, for readers at this CSN or later.
        let now = if faults::on(Fault::RetiresAtOwnCsn) { self.csn } else { self.e.now() };
        // Writes for whose versions there is still room in the queue.
        let mut left = self.writes.len();
        for i in 0..self.writes.len() {
            let w = self.writes[i];
            if w.xid != 0 {
                // Not if the next transaction that deletes the row has put its id there already.
                let _ = w.r.rec.writer.compare_exchange(w.xid, 0, Ordering::SeqCst, Ordering::SeqCst);
            }
            if !self.is_latest(i) {
                // An own version that was overwritten by a later write of ours.
                self.retire_version(w.version);
                left -= 1;
                continue;
            }
            // SAFETY: our own version.
            unsafe { w.version.as_ref() }.set_stamp(Stamp::csn(self.csn));
            let d = match (w.base, w.kind) {
                (None, WriteKind::Delete) => {
                    // Inserted and deleted by us: nobody ever saw it.
                    w.r.rec.writer.store(0, Ordering::SeqCst);
                    self.kill_insert(&w, left);
                    // The clock is read after the unlinking (INV-RETIRE).
                    RetireQueue::push(&self.e, self.slot, w.version.cast(), self.e.now());
                    left -= 1;
                    Delta::default()
                }
                (None, _) => Delta { rows: 1, versions: 1, bytes: size_of(self.e.region, w.version) as i64 },
                (Some(base), kind) => {
                    let bytes = growth(self.e.region, base, w.version);
                    let deletes = kind == WriteKind::Delete;
                    if deletes {
                        w.r.table.dead.fetch_add(1, Ordering::Relaxed);
                        w.r.table.bury(w.r.no, w.r.rec);
                    }
                    Delta { rows: -i64::from(deletes), versions: 0, bytes }
                }
            };
            let t = self.touch(w.r.partition());
            t.writes += 1;
            t.delta.add(d);
        }
        let bases = self.writes.iter().filter(|w| !w.superseded).filter_map(|w| w.base);
        RetireQueue::push_all(&self.e, self.slot, bases.map(NonNull::cast), now);
    }

    /// Frees some of what is retired.
    pub fn collect(&mut self, p: &dyn Platform) {
        self.collect_by(|e| e.refresh_min_pin(p));
    }

    pub(super) fn collect_by(&mut self, refresh: impl FnOnce(&Engine) -> Csn) {
        let waiting = |t: &Txn| RetireQueue::len(&t.e, t.slot);
        let large = RetireQueue::large_at(&self.e, self.slot);
        if waiting(self) < DRAIN && large.is_none() {
            return;
        }
        // In proportion to what waits, so that large transactions do not outrun us.
        let drain = |t: &Txn, min| RetireQueue::drain(&t.e, t.slot, min, (2 * DRAIN + waiting(t) / 2) as usize);
        drain(self, self.e.shared.min_pin.0.load(Ordering::SeqCst));
        self.commits_since_refresh += 1;
        let large = RetireQueue::large_at(&self.e, self.slot);
        let many =
            waiting(self) > self.waiting_at_refresh + MANY || large.is_some_and(|at| at != self.large_at_refresh);
        if (waiting(self) >= DRAIN || large.is_some()) && (self.commits_since_refresh >= 16 || many) {
            self.commits_since_refresh = 0;
            self.large_at_refresh = large.unwrap_or(0);
            let min = refresh(&self.e);
            drain(self, min);
            self.waiting_at_refresh = waiting(self);
        }
    }
}
