//! Transactions: the private state of a running one, and its four phases.
//!
//! The operations are in `read.rs`, `present.rs`, `scan.rs`, `write.rs` and `locking.rs`; validation in `validate.rs`; the
//! one place that orders the phases of a commit is `commit.rs`, and its opposite is `abort.rs`.

mod abort;
mod commit;
mod conditions;
mod count;
mod entries;
mod keyed;
mod locking;
mod owner;
mod parts;
mod phases;
mod predicate;
mod present;
mod range_locks;
mod read;
mod read_set;
mod register;
mod scan;
mod scan_set;
mod touched;
mod validate;
mod versions;
mod write;

pub use conditions::MAX_CONDITIONS;
pub use keyed::{Row, RowScan, PRIMARY};
pub use locking::How;
pub use owner::Owner;
pub use predicate::{Bounds, OpenEnd, PredicateView, ScanId, MAX_PREDICATES};
pub use present::Present;
pub use scan::{Look, LookPosition, Scan};
pub use versions::Committed;
pub use write::{Own, Write, WriteKind};

use crate::clock::Clock;
use crate::csn::{Csn, SlotId, State};
use crate::error::{AbortReason, Error};
use crate::faults::{self, Fault};
use crate::lock::{Holder, LockWord, Mode};
use crate::partition::{Partition, Sampler};
use crate::platform::{Platform, WaitFor};
use crate::primitive::Ordering;
use crate::protocol::{ProtocolSet, Touch};
use crate::range::Registered;
use crate::record::{Record, Version};
use crate::shared::Engine;
use crate::switch::Epochs;
use crate::table::Table;
use hashbrown::HashMap;
use read_set::ReadSet;
use scan_set::ScanSet;
use std::ops::Range;
use std::ptr::NonNull;
use touched::{Touched, TouchedList};

/// Isolation of a transaction, as the engine tells them apart.
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

impl RecordRef {
    /// The record of a number, if it exists.
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
    /// For another reason.
    Error(Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::Error(e)
    }
}

struct LockEntry {
    word: &'static LockWord,
    rec: Option<RecordRef>,
    /// What to go back to if the subtransaction aborts.
    previous: Option<Holder>,
    mode: Mode,
    /// Nesting depth of the subtransaction that took it; 0: stays until the top transaction ends.
    depth: u32,
}

/// So many tokens a slot takes at once, so that slots seldom change the shared number.
const TOKENS: u64 = 64;

/// How far a transaction has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    Execute,
    /// Registered from here on: `commit.rs` remembers how far it came.
    Committing,
    Decided,
}

/// The transaction of one slot. Reused from transaction to transaction.
pub struct Txn {
    owner: Owner,
    stage: Stage,
    level: Level,
    /// Nesting depth of the current subtransaction; 1 is the top transaction.
    depth: u32,
    /// All reads so far are valid at this CSN; 0: the next read must find out.
    valid: Csn,
    csn: Csn,
    reads: ReadSet,
    scans: ScanSet,
    writes: Vec<Write>,
    /// Of a commit: what it locks, in canonical order (table, record, number of the write).
    to_lock: Vec<(u64, u64, usize)>,
    latest: write::Latest,
    entries: entries::Entries,
    /// The marks of all records that were written, at least: most records are known not to be.
    written: u64,
    locks: Vec<LockEntry>,
    /// Scans under way that may give up locks of ranges.
    early: Vec<range_locks::Early>,
    /// Parts of ranges that it has published under `2pl`.
    parts: Vec<parts::Published>,
    /// By depth of a subtransaction: the number of locks when it started.
    marks: Vec<usize>,
    touched: TouchedList,
    /// Has the slot published the switch epoch?
    following: bool,
    /// Which transactions are sampled, and what is known of this one if it is.
    sampler: Sampler,
    sample: Option<count::SampledTxn>,
    /// The records that it has accessed first, if it is sampled and serializable.
    accessed: Vec<RecordRef>,
    /// Statements of the client, about.
    round_trips: u32,
    /// Did the transaction before this one fail because of others?
    retries: bool,
    clock: Clock,
    /// When it began, by that clock.
    began: u64,
    /// Has it declared a partition?
    declared: bool,
    /// How long it slept for locks, nanoseconds.
    slept_ns: u64,
    notes: Vec<register::Note>,
    /// Bytes of noted keys.
    keys: Vec<u8>,
    plan: register::Plan,
    registered: Vec<Registered>,
    /// Is our pin ours to the end?
    holds: bool,
    /// Room in the queue of retired memory that the platform was promised, until it has used it after our end.
    promised: u64,
    linked: usize,
    /// The version of an insert that sleeps for its partition.
    unplaced: Option<NonNull<Version>>,
    commits_since_refresh: u32,
    waiting_at_refresh: u64,
    large_at_refresh: Csn,
    /// The partition lock last in the order that is held.
    last_partition: (u64, u32),
    /// Why it fails because of others, if it does, and where: the last of these failures, also one that was caught in a
    /// savepoint. While it sleeps it is about to give up.
    failed: Option<(AbortReason, &'static Partition)>,
    /// Upgrades that were lost since the last commit (INV-LOSER).
    lost: Vec<locking::Lost>,
    /// Id of the table whose next scanned row takes the place of a lost one; 0: none.
    heir: u64,
    /// Whom the last deadlock was lost to, until the next transaction begins or this one commits.
    winner: Option<WaitFor>,
    /// The token of what it writes now; 0: none is drawn yet.
    token: u64,
    /// Tokens that the slot's next transactions may draw.
    tokens: Range<u64>,
    /// Age in `wait_die`'s order, 0 for none. A transaction that follows one that ended with a
    /// serialization failure has its age, so that a retry gets older until it wins.
    age: u64,
}

impl Txn {
    /// The transaction state of a slot. One at a time for each slot.
    pub fn new(e: Engine, slot: SlotId) -> Txn {
        Txn {
            owner: Owner::new(e, slot),
            stage: Stage::Idle,
            level: Level::Snapshot,
            depth: 1,
            valid: 0,
            csn: 0,
            reads: ReadSet::default(),
            scans: ScanSet::default(),
            writes: Vec::new(),
            to_lock: Vec::new(),
            latest: write::Latest::default(),
            entries: entries::Entries::default(),
            written: 0,
            locks: Vec::new(),
            early: Vec::new(),
            parts: Vec::new(),
            marks: Vec::new(),
            touched: TouchedList::default(),
            following: false,
            sampler: Sampler::new(slot),
            sample: None,
            accessed: Vec::with_capacity(count::ACCESSES as usize),
            round_trips: 0,
            retries: false,
            clock: Clock::of_process(),
            began: 0,
            declared: false,
            slept_ns: 0,
            notes: Vec::new(),
            keys: Vec::new(),
            plan: register::Plan::default(),
            registered: Vec::new(),
            holds: false,
            promised: 0,
            linked: 0,
            unplaced: None,
            commits_since_refresh: 0,
            waiting_at_refresh: 0,
            large_at_refresh: 0,
            last_partition: (0, 0),
            failed: None,
            lost: Vec::new(),
            heir: 0,
            winner: None,
            token: 0,
            tokens: 0..0,
            age: 0,
        }
    }

    /// Starts a transaction. `ident` is the platform's name of it (see [`crate::platform::WaitFor`]), another one than that
    /// of the slot's last: who waits for that one would go on waiting.
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
        self.stage = Stage::Execute;
        self.level = level;
        self.depth = 1;
        self.csn = 0;
        self.valid = self.e.now();
        self.round_trips = 0;
        self.heir = 0;
        self.winner = None;
        (self.declared, self.slept_ns) = (false, 0);
        self.began = self.clock.now();
        if self.sampler.next(self.e.shared.sample_every.get()) {
            self.begin_sample();
        }
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
        matches!(self.stage, Stage::Committing | Stage::Decided)
    }
    /// The level it runs at.
    pub fn level(&self) -> Level {
        self.level
    }
    /// A number, never 0, that marks what the transaction writes now. No other transaction gets it, of this incarnation of the
    /// shared block or of an earlier one whose rows were loaded; after the rollback of a subtransaction there is a new one.
    #[inline]
    pub fn token(&mut self) -> u64 {
        if self.token == 0 {
            self.draw_token();
        }
        self.token
    }
    fn draw_token(&mut self) {
        if self.tokens.is_empty() {
            let last = self.e.shared.last_token.fetch_add(TOKENS, Ordering::Relaxed);
            self.tokens = last + 1..last + TOKENS + 1;
        }
        self.token = self.tokens.start;
        self.tokens.start += 1;
    }
    /// A subtransaction starts, or the transaction itself within one: its nesting depth (1: top).
    pub fn set_depth(&mut self, depth: u32) {
        self.depth = depth;
        self.marks.resize(depth as usize + 1, self.locks.len());
    }
    /// Has it only looked at the clock?
    pub fn is_untouched(&self) -> bool {
        self.writes.is_empty() && self.locks.is_empty() && self.touched.is_empty() && self.scans.is_empty()
    }

    #[inline(always)]
    fn touch(&mut self, partition: &'static Partition) -> &mut Touched {
        self.touched.entry(partition)
    }

    /// The protocols that the transaction follows in a partition from now on: those in use, and those
    /// that it has followed there before (INV-FOLLOW).
    #[inline]
    pub fn follow(&mut self, p: &dyn Platform, partition: &'static Partition) -> Result<ProtocolSet, Error> {
        self.begin_following(p)?;
        Ok(self.follow_also(partition).set)
    }

    /// The same for a transaction that follows protocols already, with what it did in the partition.
    #[inline]
    fn follow_also(&mut self, partition: &'static Partition) -> &mut Touched {
        debug_assert!(self.following);
        self.start_in(partition);
        let now = partition.protocols();
        let t = self.touch(partition);
        t.set = if faults::on(Fault::ForgetsProtocols) { now } else { t.set.union(now) };
        t
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
        if faults::on(Fault::ForgetsProtocols) {
            return partition.protocols();
        }
        self.touched.get(partition).map_or(ProtocolSet::EMPTY, |t| t.set)
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
            Failure::Error(e) => e,
        }
    }

    /// A deadlock, remembered likewise.
    fn deadlock(&mut self, at: Touch) -> Error {
        self.blame(AbortReason::Deadlock, at);
        Error::Deadlock
    }

    fn blame(&mut self, reason: AbortReason, at: Touch) -> Touch {
        // Below SERIALIZABLE a savepoint's rollback gives the table's lock up, and others may have changed its partitions.
        let at = Touch { no: at.no.min(at.table.map().n - 1), ..at };
        self.failed = Some((reason, at.partition()));
        at
    }

    /// The sleep out of which the platform has unwound was a deadlock that its own detector found.
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
        self.declared = true;
        self.follow(p, at.partition())?.preprocess(self, p, at)
    }

    /// The transaction would have declared partitions, if any protocol in use wanted that: for the statistics.
    pub fn note_declared(&mut self) {
        self.declared = true;
    }

    /// Ends what every transaction ends with: locks are released, private state is empty.
    fn reset(&mut self) {
        self.token = 0;
        self.take_back_parts(None);
        self.release_all();
        self.ended();
        self.owner.advance();
        let s = self.shared_slot();
        if s.read_csn.load(Ordering::Relaxed) != 0 {
            s.read_csn.store(0, Ordering::SeqCst);
        }
        self.set_word(State::Idle, 0);
        self.leave_commit();
        s.waiting.clear();
        if !s.rebuilding.load(Ordering::Relaxed).is_null() {
            crate::range::IndexRanges::abandon_rebuild(&self.e, self.slot);
        }
        self.clear_notes();
        self.scans.clear();
        if std::mem::take(&mut self.holds) {
            self.e.let_go(self.slot);
        }
        self.e.unpin(self.slot);
        if self.following {
            // INV-FOLLOW: nothing of it is left.
            Epochs::leave(&s.following);
            self.following = false;
        }
        self.stage = Stage::Idle;
        crate::retire::RetireQueue::trim(&self.owner.e, self.owner.slot, std::mem::take(&mut self.promised));
        self.reads.clear();
        clear_vec(&mut self.writes);
        self.latest.clear();
        self.entries.clear();
        self.written = 0;
        self.marks.clear();
        self.early.clear();
        self.touched.clear();
        self.registered.clear();
        self.linked = 0;
        self.last_partition = (0, 0);
        self.failed = None;
        self.accessed.clear();
        debug_assert!(self.locks.is_empty());
    }

    /// The partitions that it has touched since it began, in the order of their first touch. What a savepoint's rollback has
    /// undone stays in.
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

/// Room that a transaction leaves to the next: one large transaction must not slow down all that
/// follow (clearing a hash table takes time in proportion to its room).
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
