//! Two-phase commit: a transaction is prepared, and finished later, which cannot fail.
//!
//! A prepared transaction is *active* for all others. It holds its locks, and its versions are
//! linked. What it has read at SERIALIZABLE is guarded (INV-AHEAD), so it validates nothing at its
//! end. It takes its CSN there; no snapshot needs to leave it out.
//!
//! Another process may finish it (`kept.rs`).
//!
//! It refers to its own versions and to those that they replace, to locked records, and to
//! partitions of tables that the platform keeps. So it has no pin, unless it holds locks of ranges.

use super::kept::KeptChange;
use super::{Level, Stage, Txn, WriteKind};
use crate::csn::Csn;
use crate::durable::standby::{End, REDEFINES};
use crate::error::{AbortReason, Error};
use crate::faults::{self, Fault};
use crate::lock::{LockWord, Mode};
use crate::open::TAKING;
use crate::partition::{Partition, Tally};
use crate::platform::{Platform, StopEvent};
use crate::primitive::Ordering;
use crate::shared::Engine;
use crate::table::Table;

/// Naps in which a transaction that is being prepared waits for another prepared one: about a
/// second. The other one may wait for it on another server.
const NAPS: u32 = 200;

/// What a prepared transaction protects: each partition once.
#[derive(Default)]
pub(super) struct Guards {
    pub read: Vec<&'static Partition>,
    pub written: Vec<&'static Partition>,
    /// Are the words raised?
    raised: bool,
}

fn tidy(partitions: &mut Vec<&'static Partition>) {
    partitions.sort_unstable_by_key(|p| std::ptr::from_ref(*p));
    partitions.dedup_by_key(|p| std::ptr::from_ref(*p));
}

/// The first partition with a count.
fn first(of: &[&'static Partition], tally: impl Fn(&Partition) -> &Tally) -> Option<&'static Partition> {
    of.iter().copied().find(|p| tally(p).count() > 0)
}

impl Guards {
    /// Those of a transaction that was prepared by another process.
    pub fn raised(read: &[&'static Partition], written: &[&'static Partition]) -> Guards {
        Guards { read: read.to_vec(), written: written.to_vec(), raised: true }
    }

    /// The transaction has written in these partitions, too, before the start of the engine.
    pub fn recover(&mut self, e: &Engine, written: &[&'static Partition]) {
        if self.raised {
            written.iter().for_each(|p| p.kept_writers.enter());
            self.written.extend_from_slice(written);
        } else {
            self.written = written.to_vec();
            self.raise(e);
        }
    }

    fn raise(&mut self, e: &Engine) {
        e.shared.guards.0.enter();
        self.read.iter().for_each(|p| p.guards.enter());
        self.written.iter().for_each(|p| p.kept_writers.enter());
        self.raised = true;
    }

    fn lower(&mut self, e: &Engine, csn: Csn) {
        if !std::mem::take(&mut self.raised) {
            return;
        }
        let csn = if faults::on(Fault::GuardForgotten) { 0 } else { csn };
        self.read.drain(..).for_each(|p| p.guards.leave(csn));
        self.written.drain(..).for_each(|p| p.kept_writers.leave(csn));
        e.shared.guards.0.leave(csn);
    }

    /// A partition in which another prepared transaction has read what this one writes, or the
    /// other way round. Its own words are not raised.
    fn in_the_way(&self) -> Option<&'static Partition> {
        if faults::on(Fault::GuardsOverlap) {
            return None;
        }
        first(&self.written, |p| &p.guards).or_else(|| first(&self.read, |p| &p.kept_writers))
    }

    /// The same, with its own words raised.
    fn is_overlapping(&self) -> Option<&'static Partition> {
        if faults::on(Fault::GuardsOverlap) {
            return None;
        }
        let is_among = |all: &[&Partition], p: &Partition| all.iter().any(|q| std::ptr::eq(*q, p));
        let guarded = |p: &&&'static Partition| p.guards.count() > u64::from(is_among(&self.read, p));
        let written = |p: &&&'static Partition| p.kept_writers.count() > u64::from(is_among(&self.written, p));
        self.written.iter().find(guarded).or_else(|| self.read.iter().find(written)).copied()
    }
}

/// What a prepared transaction protects in a table, beside the rows that it has written there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protects {
    /// It has locked rows whose key it has not changed as if it had.
    pub stronger: bool,
    /// It has locked the keys of other rows ([`Mode::KeyShare`]).
    pub keys: bool,
    /// It has locked other rows in another mode, or partitions, or has read.
    pub any_rows: bool,
}

impl Txn {
    /// Prepares the transaction. After that it reads and writes nothing; [`Txn::decide_prepared`]
    /// or [`Txn::abort`] follows. On an error, call [`Txn::abort`].
    ///
    /// Returns a CSN for its log. It is above those of all versions that it replaces, and below
    /// those of all later commits in their records.
    ///
    /// A platform that logs makes the two parts one by one: [`Txn::prepare_ahead_locks`] and
    /// [`Txn::prepare_ahead_decide`].
    pub fn prepare_ahead(&mut self, p: &dyn Platform) -> Result<Csn, Error> {
        self.prepare_ahead_locks(p)?;
        self.prepare_ahead_decide(p)
    }

    /// The first part: all sleeping for locks, and for other prepared transactions, is over after
    /// it.
    pub fn prepare_ahead_locks(&mut self, p: &dyn Platform) -> Result<(), Error> {
        if !self.is_active() {
            return Ok(());
        }
        self.before_commit(p)?;
        self.await_depends(p)?;
        self.depends.clear();
        self.thaw(p)?;
        self.collect_guards();
        let mut n = 0;
        while let Some(at) = self.guards.in_the_way() {
            if n >= NAPS {
                return Err(self.fail_guarded(at));
            }
            p.nap(n)?;
            n += 1;
        }
        if !self.writes.is_empty() {
            self.lock_all(p)?;
        }
        // Its block has all locks in one list. Without memory for that it fails, and not the
        // process.
        self.locks.reserve(self.writes.iter().filter(|w| w.locks).count())?;
        for (r, kind) in self.writes.take_locks() {
            self.locks.put_back(r, kind);
        }
        Ok(())
    }

    /// The second part: guards, links, validates.
    pub fn prepare_ahead_decide(&mut self, p: &dyn Platform) -> Result<Csn, Error> {
        if !self.is_active() {
            return Ok(0);
        }
        p.stop_event(StopEvent::CommitRegister)?;
        if !faults::on(Fault::GuardLate) {
            self.raise_guards()?;
        }
        p.stop_event(StopEvent::CommitLink)?;
        let now = self.link_and_tick();
        p.stop_event(StopEvent::CommitValidate)?;
        self.validate_all(p, now)?;
        if faults::on(Fault::GuardLate) {
            self.raise_guards()?;
        }
        self.let_go_prepared(p);
        self.make_block()?;
        self.stage = Stage::Prepared;
        Ok(now)
    }

    /// After [`Txn::prepare_ahead_locks`]: must something that it has read in this table stay as it
    /// is until it is finished?
    pub fn guards_reads(&self, table: &Table) -> bool {
        let is_guarded = |p: &Partition| self.guards.read.iter().any(|q| std::ptr::eq(*q, p));
        table.map().partitions().iter().any(is_guarded)
    }

    /// Links, and takes the number at which the reads are validated and the writes are logged. The
    /// order is that of a commit (INV-CSN), so that a round that does not see the writes has an
    /// older value of the clock (INV-LOOK).
    fn link_and_tick(&mut self) -> Csn {
        self.writes.link();
        let what = if self.changes.is_empty() { 0 } else { REDEFINES };
        self.shared_slot().logged_as.store(what, Ordering::SeqCst);
        let at = &self.shared_slot().logged_at;
        at.store(TAKING, Ordering::SeqCst);
        let now = self.e.tick();
        at.store(now, Ordering::SeqCst);
        now
    }

    fn raise_guards(&mut self) -> Result<(), Error> {
        let e = self.e;
        self.guards.raise(&e);
        self.guards.is_overlapping().map_or(Ok(()), |at| Err(self.fail_guarded(at)))
    }

    fn collect_guards(&mut self) {
        let Guards { read, written, .. } = &mut self.guards;
        read.clear();
        written.clear();
        written.extend(self.writes.finals().map(|(_, w)| w.r.partition()));
        if self.level == Level::Serializable {
            read.extend(self.touched.iter().map(|t| t.partition));
        }
        if !faults::on(Fault::GuardTooNarrow) {
            // A range of an index has rows of all partitions.
            read.extend(self.scans.ranged.views().flat_map(|q| q.ranges.table().map().partitions()));
        }
        read.extend(self.scans.partitions().map(|at| at.partition()));
        tidy(read);
        tidy(written);
    }

    /// After [`Txn::prepare_ahead_locks`]: what it protects in a table, beside the rows that it has
    /// written there.
    pub fn protects(&self, table: &Table) -> Protects {
        let mut found = Protects::default();
        found.any_rows = self.locks_partition_of(table) || self.guards_reads(table);
        let locks = self.locks.all.iter().filter_map(|l| Some((l, l.rec?)));
        for (l, r) in locks.filter(|(_, r)| std::ptr::eq(r.table, table)) {
            match self.writes.last_of(r).map(|n| self.writes.at(n as usize).kind) {
                Some(kind) => found.stronger |= kind == WriteKind::Update && l.mode == Mode::Update,
                None if l.mode == Mode::KeyShare => found.keys = true,
                None => found.any_rows = true,
            }
        }
        found
    }

    /// Does it hold the lock of a partition of this table? It stands for those of any rows there.
    fn locks_partition_of(&self, table: &Table) -> bool {
        let is_of_table =
            |word: &LockWord| table.map().partitions().iter().any(|p| std::ptr::eq(&raw const p.lock, word));
        self.locks.all.iter().any(|l| l.partition && is_of_table(l.word))
    }

    /// Guards stand for what it has read.
    ///
    /// INV-TABLE: its platform keeps the tables that it has used, but not those that only rolled
    /// back subtransactions have used. These are forgotten here, or the pin stays for the locks of
    /// their partitions.
    fn let_go_prepared(&mut self, p: &dyn Platform) {
        self.keep_scanned(p, 0);
        self.locks.take_back_parts(&self.owner, None);
        let locks_ranges = self.locks.release_read_ranges(&self.owner);
        self.locks.untag(&self.owner, p);
        self.registrations.clear(&self.owner);
        self.scans.clear();
        self.reads.clear();
        self.telemetry.forget_accessed();
        super::telemetry::note_activity(&self.touched);
        let locks_dropped = self.keeps_tables && self.locks.has_partitions();
        if self.keeps_tables {
            self.forget_touched();
        }
        if locks_ranges || locks_dropped {
            // Its session has no snapshot any more, and soon no process has the slot (INV-HOLD).
            self.hold();
        } else {
            if std::mem::take(&mut self.holds) {
                self.e.let_go(self.slot);
            }
            self.e.unpin(self.slot);
        }
    }

    /// The transaction has changed these definitions, in this order. Before it is prepared:
    /// [`Txn::kept_changes`] tells the process that finishes it.
    pub fn keep_changes(&mut self, changes: Vec<KeptChange>) {
        self.changes = changes;
    }

    /// What [`Txn::keep_changes`] was told, until the transaction ends.
    pub fn kept_changes(&self) -> &[KeptChange] {
        &self.changes
    }

    /// Is the transaction prepared?
    pub fn is_prepared(&self) -> bool {
        self.stage == Stage::Prepared
    }

    /// A prepared transaction commits: registers its writes, and takes its CSN. What follows is as
    /// in other commits: [`Txn::publish`], or its parts. Cannot fail.
    pub fn decide_prepared(&mut self) {
        debug_assert!(!self.is_active() || self.stage == Stage::Prepared);
        if !self.is_active() {
            return;
        }
        // Before it looks at ranges.
        self.e.pin(self.slot);
        if faults::on(Fault::GuardEndsEarly) {
            self.end_guards(0);
            std::thread::yield_now();
        }
        if !self.writes.is_empty() {
            self.stage = Stage::Committing;
            self.registrations.plan_without_keys(&self.owner, &self.writes);
            self.registrations.register(&self.owner, &self.writes);
            self.take_csn();
            // INV-STABLE: in this order, and while the word is *committing*.
            self.note_end_of_prepared(self.e.word(self.slot).csn());
            if !faults::on(Fault::LoggedForgottenLate) {
                self.shared_slot().logged_at.store(0, Ordering::SeqCst);
            }
        } else if self.redefines() {
            // It has no CSN. A standby that is told of an earlier one has the old definition.
            self.note_end_of_prepared(self.e.now());
        }
        self.stage = Stage::Decided;
    }

    /// Are standbys told that it has changed definitions?
    fn redefines(&self) -> bool {
        let s = self.shared_slot();
        s.logged_as.load(Ordering::SeqCst) == REDEFINES && s.logged_at.load(Ordering::SeqCst) != 0
    }

    fn note_end_of_prepared(&self, ended: Csn) {
        let s = self.shared_slot();
        self.e.shared.standby.note_end(End {
            xid: s.xid.load(Ordering::SeqCst),
            logged: s.logged_at.load(Ordering::SeqCst),
            ended,
            what: s.logged_as.load(Ordering::SeqCst),
        });
    }

    /// The transaction has ended: with this CSN, or with none.
    #[inline(always)]
    pub(super) fn end_guards(&mut self, csn: Csn) {
        if self.guards.raised {
            let e = self.e;
            self.guards.lower(&e, csn);
        }
    }

    /// Waits until what it writes is guarded no more. A prepared transaction waits for nothing
    /// here, so this cannot be part of a cycle.
    #[inline(always)]
    pub(super) fn await_guards(&mut self, p: &dyn Platform) -> Result<(), Error> {
        if self.e.shared.guards.0.count() > 0 && !faults::on(Fault::GuardIgnored) {
            return self.await_guards_of_writes(p);
        }
        Ok(())
    }

    #[cold]
    fn await_guards_of_writes(&mut self, p: &dyn Platform) -> Result<(), Error> {
        let mut n = 0;
        while self.writes.finals().any(|(_, w)| w.r.partition().guards.count() > 0) {
            p.nap_for_lock(n)?;
            n += 1;
        }
        Ok(())
    }

    /// Fails if a prepared transaction guards what this commit, which has its CSN, writes
    /// (INV-AHEAD).
    #[inline(always)]
    pub(super) fn check_guards(&mut self) -> Result<(), Error> {
        if self.e.shared.guards.0.admits(self.csn) || faults::on(Fault::GuardIgnored) {
            return Ok(());
        }
        self.check_guards_of_writes()
    }

    #[cold]
    fn check_guards_of_writes(&mut self) -> Result<(), Error> {
        let guarded = self.writes.finals().map(|(_, w)| w.r).find(|r| !r.partition().admits(self.csn));
        guarded.map_or(Ok(()), |r| Err(self.fail(AbortReason::Prepared, r.touch())))
    }

    /// A conflict with another prepared transaction. Where it has read, its table is not known.
    fn fail_guarded(&mut self, at: &'static Partition) -> Error {
        let writes = self.writes.finals().map(|(_, w)| w.r.touch());
        let known = writes.chain(self.scans.partitions()).find(|t| std::ptr::eq(t.partition(), at));
        if let Some(at) = known {
            return self.fail(AbortReason::Prepared, at);
        }
        self.failed = Some((AbortReason::Prepared, at));
        Error::Abort { reason: AbortReason::Prepared, table: 0, partition: 0 }
    }
}
