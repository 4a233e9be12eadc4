//! Transactions: the private state of a running transaction, and its four phases.
//!
//! A [`Txn`] is made of parts. Each part has a file of its own, with the methods that touch this
//! part alone:
//!
//! * [`Owner`]: the slot and its tag; `versions.rs` and `present.rs` look at records with it;
//! * `TouchedList`: the partitions that were touched, and the protocols that are followed there;
//! * `ReadSet`: the versions that a validation must find unchanged;
//! * `ScanSet`: the predicates; `predicate.rs` has those in ranges of indexes;
//! * `WriteSet`: the buffered writes;
//! * `LockSet`: the locks; `range_locks.rs` and `parts.rs` add locks and parts of ranges;
//! * `Registrations`: the keys of the writes, and what the commit registers of them;
//! * `Guards`: what a prepared transaction protects;
//! * `Depends`: the commits that it has read and that are not done;
//! * `Telemetry`: measurements for the statistics;
//! * `Retry`: what the next transaction of the slot keeps from one that lost a conflict;
//! * `IntentSet` and `Hot`: what is learned of rows that others lock at their reads;
//! * `Reclamation`: when retired memory is freed.
//!
//! The operations of a transaction combine them: `read.rs`, `scan.rs`, `ahead.rs`,
//! `conditions.rs`, `write.rs`, `locking.rs` and `keyed.rs`. Validation is in `validate.rs`,
//! and `freeze.rs` has what becomes of readers that it fails. `commit.rs` is the one place that
//! orders the phases of a commit, `prepared.rs` stops one in the middle, and `abort.rs` is its
//! opposite. `points.rs` has what becomes of a pin while a reader does nothing.

mod abort;
mod ahead;
mod commit;
mod conditions;
mod depends;
mod entries;
mod freeze;
mod grouped;
mod hot;
mod inserted;
mod intent;
mod kept;
mod keyed;
mod lock_set;
mod locking;
mod logged;
mod owner;
mod parts;
mod phases;
mod points;
mod predicate;
mod prepared;
mod present;
mod range_locks;
mod read;
mod read_set;
mod reclaim;
mod recovered;
mod register;
mod relock;
mod retry;
mod scan;
mod scan_set;
mod telemetry;
mod touched;
mod validate;
mod versions;
mod write;
mod write_list;
mod write_set;

pub use ahead::{Found, Looked};
pub use conditions::MAX_CONDITIONS;
pub use entries::{Entered, Rival};
pub(crate) use kept::Kept;
pub use kept::KeptChange;
pub use keyed::{Row, RowScan, PRIMARY};
pub use locking::How;
pub use logged::LoggedWrite;
pub use owner::Owner;
pub use predicate::{Bounds, OpenEnd, PredicateView, ScanId, MAX_PREDICATES};
pub use present::Present;
pub use read::Peek;
pub use recovered::{Before, Recovered, RecoveredWrites};
pub use scan::{Look, LookPosition, Scan};
pub use versions::Committed;
pub use write_set::{Own, Write, WriteKind};

use crate::csn::{Csn, SlotId, State};
use crate::error::{AbortReason, Error};
use crate::faults::{self, Fault};
use crate::partition::Partition;
use crate::platform::Platform;
use crate::primitive::Ordering;
use crate::protocol::{ProtocolSet, Touch};
use crate::record::Record;
use crate::shared::Engine;
use crate::switch::Epochs;
use crate::table::{Run, Table};
use depends::{Depends, LeftOut};
use freeze::Freeze;
use grouped::Grouped;
use hashbrown::HashMap;
use hot::Hot;
use intent::IntentSet;
use lock_set::LockSet;
use points::Rests;
use prepared::Guards;
pub use prepared::Protects;
use read_set::ReadSet;
use reclaim::Reclamation;
use register::Registrations;
use retry::Retry;
use scan_set::ScanSet;
use std::cell::Cell;
use std::ptr::NonNull;
use telemetry::Telemetry;
use touched::{Touched, TouchedList};
use write_set::WriteSet;

/// Isolation of a transaction, as far as the engine distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Reads come from snapshots; writers wait for each other. (READ COMMITTED, REPEATABLE READ)
    Snapshot,
    /// Reads and writes go through the partition's protocol.
    Serializable,
}

/// A record of a table.
#[derive(Clone, Copy)]
pub struct RecordRef {
    /// The table.
    pub table: &'static Table,
    /// Number of the record in its table.
    pub no: u64,
    /// The record.
    pub rec: &'static Record,
}

impl std::fmt::Debug for RecordRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "record {} of table {}", self.no, self.table.id)
    }
}

impl RecordRef {
    /// The record of a number, if it exists.
    #[inline]
    pub fn find(table: &'static Table, no: u64) -> Option<RecordRef> {
        table.record(no).map(|rec| RecordRef { table, no, rec })
    }
    /// Its partition.
    #[inline]
    pub fn partition(self) -> &'static Partition {
        self.table.partition(self.rec)
    }
    /// Its partition, as something to touch.
    #[inline]
    pub fn touch(self) -> Touch {
        Touch { table: self.table, no: self.table.partition_no(self.rec) }
    }
    fn key(self) -> usize {
        self.rec as *const Record as usize
    }
    /// One of 64 bits, by a hash.
    #[inline]
    fn mark(self) -> u64 {
        1 << ((self.key() as u64 / std::mem::size_of::<Record>() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
    }
}

/// Why an operation on a part of a transaction fails.
enum Failure {
    /// Because of another transaction, in this partition.
    Conflict(AbortReason, Touch),
    /// Because another transaction has changed a record that was read.
    Changed(RecordRef),
    /// For another reason.
    Error(Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::Error(e)
    }
}

/// How far a transaction has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    Execute,
    /// Prepared, and to be finished later (`prepared.rs`).
    Prepared,
    /// Registered from here on: `commit.rs` remembers how far it came.
    Committing,
    Decided,
    /// Committed, with all versions stamped. Perhaps it is not done.
    Settled,
}

/// The transaction of one slot. Reused from transaction to transaction.
pub struct Txn {
    owner: Owner,
    stage: Stage,
    level: Level,
    /// Nesting depth of the current subtransaction; 1 is the top transaction.
    depth: u32,
    /// Has the slot published the switch epoch?
    following: bool,
    /// Do we keep our pin to the end?
    holds: bool,
    /// May its pin become a point?
    rests: Cell<Rests>,
    /// A subtransaction was undone that had touched tables, which others may have dropped since.
    keeps_tables: bool,
    /// All reads so far are valid at this CSN; 0: the next read must find out.
    valid: Csn,
    /// What `valid` was before the last look-up that found nothing, if that set it to 0.
    doubted: Csn,
    /// Does it read the snapshot at `valid` (INV-FROZEN)?
    freeze: Freeze,
    /// Has it done more than read: written or locked a row, in a subtransaction that was rolled
    /// back too?
    acts: bool,
    csn: Csn,
    /// Is the commit held until it is done?
    held: bool,
    /// Did it depend on commits that were not done when it took its CSN?
    follows: bool,
    /// Does the slot's word say that it is not done?
    open: bool,
    /// Why and where the transaction fails because of others, if it does. It is the last of these
    /// failures, and may be one that the rollback of a savepoint has caught. While the transaction
    /// sleeps, this says that it gives up.
    failed: Option<(AbortReason, &'static Partition)>,
    touched: TouchedList,
    reads: ReadSet,
    scans: ScanSet,
    writes: WriteSet,
    /// Numbers for its next inserts.
    run: Run,
    locks: LockSet,
    registrations: Registrations,
    guards: Guards,
    /// The block of a prepared transaction.
    kept: Option<NonNull<Kept>>,
    /// What a prepared transaction has changed in definitions.
    changes: Vec<KeptChange>,
    depends: Depends,
    left_out: LeftOut,
    telemetry: Telemetry,
    grouped: Grouped,
    retry: Retry,
    intents: IntentSet,
    hot: Hot,
    reclamation: Reclamation,
}

impl Txn {
    /// The transaction state of a slot. One at a time for each slot.
    pub fn new(e: Engine, slot: SlotId) -> Txn {
        Txn {
            owner: Owner::new(e, slot),
            stage: Stage::Idle,
            level: Level::Snapshot,
            depth: 1,
            following: false,
            holds: false,
            rests: Cell::default(),
            keeps_tables: false,
            valid: 0,
            doubted: 0,
            freeze: Freeze::No,
            acts: false,
            csn: 0,
            held: false,
            follows: false,
            open: false,
            failed: None,
            touched: TouchedList::default(),
            reads: ReadSet::default(),
            scans: ScanSet::default(),
            writes: WriteSet::default(),
            run: Run::default(),
            locks: LockSet::default(),
            registrations: Registrations::default(),
            guards: Guards::default(),
            kept: None,
            changes: Vec::new(),
            depends: Depends::default(),
            left_out: LeftOut::default(),
            telemetry: Telemetry::new(slot),
            grouped: Grouped::default(),
            retry: Retry::new(),
            intents: IntentSet::default(),
            hot: Hot::new(slot),
            reclamation: Reclamation::default(),
        }
    }

    /// Starts a transaction. `ident` is the platform's name of it (see
    /// [`crate::platform::WaitFor`]). It must differ from the name of the slot's last transaction:
    /// a waiter for that one would go on waiting.
    pub fn begin(&mut self, level: Level, ident: u64) {
        debug_assert_eq!(self.stage, Stage::Idle);
        let s = self.shared_slot();
        s.ident.store(ident, Ordering::SeqCst);
        // The owner alone writes these; most transactions leave them as they were.
        if s.age.load(Ordering::Relaxed) != 0 {
            s.age.store(0, Ordering::SeqCst);
        }
        if s.last_tag.load(Ordering::Relaxed) != 0 {
            s.last_tag.store(0, Ordering::SeqCst);
        }
        self.set_word(State::Active, 0);
        self.e.pin(self.slot);
        self.rests.set(Rests::May);
        self.stage = Stage::Execute;
        self.level = level;
        self.depth = 1;
        self.csn = 0;
        self.held = false;
        self.valid = self.depends.begin(&self.owner.e, level == Level::Serializable);
        self.retry.begin();
        self.intents.clear();
        self.hot.begin();
        self.begin_ungrouped();
        self.telemetry.begin(&self.owner);
    }

    /// If its commit is held, it gives up locks before it is done ([`Txn::release_written`]). To be
    /// asked for before the first lock.
    pub fn release_before_done(&mut self) {
        self.locks.released = true;
    }

    /// What it reads must be unchanged at its commit, even if it writes nothing.
    pub fn validate_at_commit(&mut self) {
        self.reads.at_commit = true;
    }
    /// Is a transaction running?
    #[inline]
    pub fn is_active(&self) -> bool {
        self.stage != Stage::Idle
    }
    /// Has the commit begun?
    pub fn is_committing(&self) -> bool {
        matches!(self.stage, Stage::Prepared | Stage::Committing | Stage::Decided | Stage::Settled)
    }
    /// The level it runs at.
    pub fn level(&self) -> Level {
        self.level
    }
    /// A number, never 0, that marks what the transaction writes now. No other transaction gets it,
    /// of this incarnation of the shared block or of an earlier one whose rows were loaded. After
    /// the rollback of a subtransaction there is a new one.
    #[inline]
    pub fn token(&mut self) -> u64 {
        self.writes.token(&self.owner)
    }
    /// A subtransaction starts, or the transaction itself within one: its nesting depth (1: top).
    pub fn set_depth(&mut self, depth: u32) {
        self.depth = depth;
        self.locks.begin_sub(depth);
    }
    /// Has it only looked at the clock?
    pub fn is_untouched(&self) -> bool {
        self.writes.is_empty() && self.locks.is_empty() && self.touched.is_empty() && self.scans.is_empty()
    }

    #[inline(always)]
    fn touch(&mut self, partition: &'static Partition) -> &mut Touched {
        self.touched.entry(partition)
    }

    /// The protocols that the transaction follows in a partition from now on: those in use, and
    /// those that it has followed there before (INV-FOLLOW).
    #[inline]
    pub fn follow(&mut self, p: &dyn Platform, partition: &'static Partition) -> Result<ProtocolSet, Error> {
        self.begin_following(p)?;
        Ok(self.follow_also(partition).set)
    }

    /// The same for a transaction that follows protocols already, with what it did in the
    /// partition.
    #[inline]
    fn follow_also(&mut self, partition: &'static Partition) -> &mut Touched {
        debug_assert!(self.following);
        let now = partition.protocols();
        self.start_in(partition, now);
        let t = self.touch(partition);
        t.set = if faults::on(Fault::ForgetsProtocols) { now } else { t.set.union(now) };
        t
    }

    /// Does the transaction follow protocols? Before that [`Txn::peek_row`] tells nothing.
    #[inline]
    pub fn is_following(&self) -> bool {
        self.following
    }

    /// The transaction follows protocols from now on, so that [`Txn::peek_row`] tells of rows.
    #[inline]
    pub fn begin_following(&mut self, p: &dyn Platform) -> Result<(), Error> {
        if self.following {
            return Ok(());
        }
        self.start_following(p)
    }

    #[cold]
    fn start_following(&mut self, p: &dyn Platform) -> Result<(), Error> {
        if self.is_frozen() {
            return self.thaw(p);
        }
        self.enter_protocols(p)
    }

    fn enter_protocols(&mut self, p: &dyn Platform) -> Result<(), Error> {
        let mut n = 0;
        while !self.e.shared.epochs.enter(&self.e.slots[self.slot as usize].following) {
            p.pause(n)?; // only under the stop-all method
            n += 1;
        }
        self.following = true;
        Ok(())
    }

    /// The protocols that the transaction has followed in a partition so far.
    pub fn followed(&self, partition: &Partition) -> ProtocolSet {
        self.touched.followed(partition)
    }

    /// A serialization failure, remembered for the partition's counters.
    pub fn fail(&mut self, reason: AbortReason, at: Touch) -> Error {
        let at = self.blame(reason, at);
        Error::Abort { reason, table: at.table.id, partition: at.no }
    }

    /// The failure of a part, remembered likewise.
    fn fail_by(&mut self, f: Failure) -> Error {
        match f {
            Failure::Conflict(reason, at) => self.fail(reason, at),
            Failure::Changed(r) => self.read_conflict(r),
            Failure::Error(e) => e,
        }
    }

    /// A deadlock, remembered likewise.
    fn deadlock(&mut self, at: Touch) -> Error {
        self.blame(AbortReason::Deadlock, at);
        Error::Deadlock
    }

    fn blame(&mut self, reason: AbortReason, at: Touch) -> Touch {
        // Below SERIALIZABLE the rollback of a savepoint gives up the table's lock, and another
        // transaction may have changed its partitions.
        let at = Touch { no: at.no.min(at.table.map().n - 1), ..at };
        self.failed = Some((reason, at.partition()));
        self.note_failure(reason, at.table.id);
        at
    }

    /// The platform has unwound out of a sleep because its own detector found a deadlock.
    pub fn note_deadlock(&mut self) {
        if let Some((why @ AbortReason::WaitGivenUp, _)) = &mut self.failed {
            *why = AbortReason::Deadlock;
        }
    }

    /// Declares a partition: its protocols may lock it before the first statement.
    pub fn declare(&mut self, p: &dyn Platform, at: Touch) -> Result<(), Error> {
        if self.level != Level::Serializable {
            return Ok(());
        }
        self.telemetry.declared = true;
        if self.is_frozen() {
            return Ok(()); // it locks nothing
        }
        let locked = self.follow(p, at.partition()).and_then(|all| all.preprocess(self, p, at));
        locked.or_else(|e| self.freeze(p, e))
    }

    /// The transaction would have declared partitions if a protocol in use wanted that. For the
    /// statistics.
    pub fn note_declared(&mut self) {
        self.telemetry.declared = true;
    }

    /// Does what every end of a transaction does: releases the locks, and empties the private
    /// state.
    fn reset(&mut self) {
        if self.is_frozen() {
            self.count_frozen();
            self.freeze = Freeze::No;
        }
        (self.acts, self.doubted) = (false, 0);
        self.writes.end_token();
        self.run.give_back(); // INV-RUN: while the table's lock and our pin are held
        self.locks.take_back_parts(&self.owner, None);
        self.locks.release_all(&self.owner);
        self.writes.release_locks(&self.owner);
        self.ended();
        self.owner.advance();
        self.e.hide(self.slot);
        let s = self.shared_slot();
        self.set_word(State::Idle, 0);
        if s.logged_at.load(Ordering::Relaxed) != 0 {
            s.logged_at.store(0, Ordering::SeqCst);
        }
        s.commits.leave();
        s.waiting.clear();
        if !s.rebuilding.load(Ordering::Relaxed).is_null() {
            crate::range::IndexRanges::abandon_rebuild(&self.e, self.slot);
        }
        self.registrations.clear(&self.owner);
        self.scans.clear();
        self.keeps_tables = false;
        if std::mem::take(&mut self.holds) {
            self.e.let_go(self.slot);
        }
        self.e.unpin(self.slot);
        if self.following {
            // INV-FOLLOW: all stamps are set and all locks are released.
            Epochs::leave(&s.following);
            self.following = false;
        }
        self.stage = Stage::Idle;
        self.free_block();
        self.changes.clear();
        self.writes.end_room(&self.owner);
        self.reads.clear();
        self.depends.clear();
        self.writes.clear();
        self.touched.clear();
        self.failed = None;
        self.telemetry.forget_accessed();
        self.locks.clear();
    }

    /// How many statements the client has sent in this transaction, about. Used only if it is
    /// sampled.
    #[inline]
    pub fn set_round_trips(&mut self, n: u32) {
        self.telemetry.round_trips = n;
    }

    /// The records that a sampled serializable transaction has accessed first, some perhaps twice.
    /// Its pin keeps them and their versions until it ends. Records that it inserted are not among
    /// them, and none from before the rollback of a savepoint.
    pub fn sampled_records(&self) -> &[RecordRef] {
        self.telemetry.accessed()
    }

    /// Is the transaction sampled?
    #[inline]
    pub fn is_sampled(&self) -> bool {
        self.telemetry.is_sampled()
    }

    /// A record is read, or locked to be written.
    #[inline]
    fn sample_access(&mut self, r: RecordRef, writes: bool) {
        self.telemetry.access(&self.owner, self.level, r, writes);
    }

    /// Counts the reads so far, and forgets which partitions were touched.
    fn forget_touched(&mut self) {
        self.touched.count_reads(self.slot);
        telemetry::note_activity(&self.touched);
        self.ended();
        self.touched.clear();
        self.failed = None;
    }

    /// The partitions that the transaction has touched since it began, in the order of their first
    /// touch. Partitions remain even if the rollback of a savepoint has undone what was done there.
    pub fn touched_partitions(&self) -> impl Iterator<Item = &'static Partition> + Clone + '_ {
        self.touched.iter().map(|t| t.partition)
    }

    /// Number of reads that are remembered for validation: tests compare it.
    #[doc(hidden)]
    pub fn remembered_reads(&self) -> usize {
        self.reads.len()
    }
}

impl std::ops::Deref for Txn {
    type Target = Owner;
    #[inline(always)]
    fn deref(&self) -> &Owner {
        &self.owner
    }
}

/// Room that a transaction leaves to the next one. One large transaction must not slow down all
/// that follow: clearing a hash table takes time in proportion to its room.
const KEEP: usize = 1024;

fn clear_vec<T>(v: &mut Vec<T>) {
    v.clear();
    if v.capacity() > KEEP {
        v.shrink_to(KEEP);
    }
}

fn clear_map<T>(m: &mut HashMap<usize, T>) {
    if m.capacity() > KEEP {
        *m = HashMap::new();
    } else if !m.is_empty() {
        m.clear();
    }
}
