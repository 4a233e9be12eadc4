//! The backend's transaction: when it starts, what isolation it has, and PostgreSQL's callbacks.

use crate::pg;
use crate::pg::errors::{complain, unsupported};
use crate::pg::faults::{self, Fault};
use crate::pg::guc::{EARLY_RELEASE, FREEZE_READERS};
use crate::pg::local::Local;
use crate::state::durable::commit::Commit;
use crate::state::errors::{ok, raise};
use crate::state::platform::{self, PG};
use crate::state::{rel, shmem, slots};
use mixedcc_engine::csn::Csn;
use mixedcc_engine::platform::Platform;
use mixedcc_engine::{Level, Txn};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::collections::HashMap;

pub mod anchors;
pub mod copies;
pub mod depends;
pub mod groups;
mod held;
mod import;
mod kept;
mod lists;
pub mod mixed;
mod order;
pub mod parallel;
mod parts;
mod pending;
pub mod prepared;
pub mod recovered;
pub mod rests;
mod rows;
mod snapshots;
mod tags;
pub use import::{import_snapshot, is_unknown as is_snapshot_unknown};
pub use kept::is_kept;
pub use order::{comes_first, init, let_go, may_others_follow, note_end_of_statement};
use parts::Parts;
use pending::Pending;
pub use pending::{before_change, begin_map, created, dropped, made, orphaned, replace_unique, take_out};
use rests::Awake;
use rows::Locked;
pub use rows::{hand_out, handed_out, is_locked, last_locked, note_locked, HandedOut};
pub use snapshots::{adopt_snapshot, known_seen, moment, note_moment, snapshot_seen};
pub use tags::{early_lock_tag, give_up, subxact_lock_tag};

/// Isolation of the PostgreSQL transaction, decided at its first use of our tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// READ COMMITTED: a snapshot a statement.
    ReadCommitted,
    /// REPEATABLE READ: one snapshot.
    RepeatableRead,
    /// SERIALIZABLE: through the protocols.
    Serializable,
    /// SERIALIZABLE READ ONLY: one snapshot, which is a serial prefix.
    SerializableReadOnly,
}

struct Backend {
    txn: Awake,
    /// What its commit logs.
    commit: Commit,
    /// Decided for this transaction.
    mode: Option<Mode>,
    /// The read CSN of the transaction snapshot, 0 until it is fixed.
    read_csn: Csn,
    /// All commits up to here were done then.
    read_floor: Csn,
    /// When a statement without tables of ours has started, 0 before the first one.
    moment: Csn,
    pending: Vec<(u32, Pending)>,
    locked: HashMap<(u64, u64), Locked>,
    handed_out: Vec<HandedOut>,
    last_locked: Option<(u64, u64)>,
    /// So many of the partitions that it has touched are of tables whose locks the top transaction
    /// holds (INV-HELD).
    held: usize,
    mixed: Touched,
    /// Of a READ ONLY transaction: what it must know if it becomes mixed.
    cut: Option<mixed::Cut>,
    /// Of a transaction that is sampled: statements of the client that used tables of ours, and
    /// when the last one came.
    round_trips: u32,
    statement_at: pg_sys::TimestampTz,
}

/// Kinds of tables that a serializable transaction has touched.
#[derive(Default)]
pub struct Touched {
    /// Ours.
    pub ours: bool,
    /// Those of another access method.
    pub others: bool,
    /// Foreign ones, in which it may have written without a transaction id.
    pub foreign: bool,
    /// It may use tables whose partitions no range table lists: foreign ones, too.
    pub routed: bool,
    /// Ours and those of another access method, in a transaction that stays serializable.
    pub mixed: bool,
    /// Ours and those of another access method, which the setting has let pass.
    pub passed: bool,
}

impl Touched {
    /// Must what the transaction has read be unchanged at its commit, whether or not it writes?
    fn must_validate(&self) -> bool {
        self.foreign || self.routed || self.mixed
    }
}

/// Is the statement that is about to start probably all of its transaction, and only reads?
static REPORT: Local<bool> = Local::new(false);

/// Of the process, from its first use of a table of ours on; most of it is of the transaction and
/// cleared at its end.
static BACKEND: Local<Option<Backend>> = Local::new(None);

#[inline]
fn backend() -> &'static mut Backend {
    // SAFETY: a backend has one thread. Callers keep no reference across a call that may come back
    // here (the engine calls the platform only, which uses `tags`).
    unsafe {
        match BACKEND.get_mut() {
            Some(b) => b,
            None => new_backend(),
        }
    }
}

#[cold]
fn new_backend() -> &'static mut Backend {
    // SAFETY: a backend has one thread, and no other reference to `BACKEND` is in use (see
    // `backend`). The callback lives as long as the library.
    unsafe {
        pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::from(0));
        mixed::kinds::forget_told(); // of a process before
        BACKEND.get_mut().insert(Backend {
            txn: Awake::new(Txn::new(shmem::engine(), shmem::my_slot())),
            commit: Commit::default(),
            mode: None,
            read_csn: 0,
            read_floor: 0,
            moment: 0,
            pending: Vec::new(),
            locked: HashMap::new(),
            handed_out: Vec::new(),
            last_locked: None,
            held: 0,
            mixed: Touched::default(),
            cut: None,
            round_trips: 0,
            statement_at: 0,
        })
    }
}

/// Was the top transaction READ ONLY when its present savepoint was set?
static TOP_READ_ONLY: Local<bool> = Local::new(false);

fn top_is_read_only() -> bool {
    TOP_READ_ONLY.get()
}

/// From now on the process has a transaction, or room for one, which it gives up when it exits.
pub fn be_there() {
    backend();
}

fn has_backend() -> bool {
    // SAFETY: a backend has one thread, and no other reference to `BACKEND` is in use (see
    // `backend`).
    unsafe { BACKEND.get_mut().is_some() }
}

#[pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: i32, _arg: pg_sys::Datum) {
    if has_backend() {
        let b = backend();
        b.commit.abort(&mut b.txn);
        b.txn.e.region.flush_slot(b.txn.slot as usize);
    }
}

/// The running transaction; starts it if need be. An ERROR in the middle of a call of the engine
/// (INV-OUTSIDE).
#[inline]
pub fn txn() -> &'static mut Txn {
    platform::outside();
    if order::has_let_go() {
        refuse_after_end();
    }
    let b = backend();
    if !b.txn.is_active() {
        start(b);
    }
    &mut b.txn
}

#[cold]
fn refuse_after_end() -> ! {
    if order::is_preparing() {
        unsupported(
            "mixedcc tables cannot be used while the transaction is being prepared",
            "Another extension's callback does it.",
        );
    }
    unsupported(
        "mixedcc tables cannot be used after the transaction's changes of permanent tables were logged",
        "Another extension's commit callback does it.",
    )
}

/// The running transaction, if there is one, and the engine is not in the middle of a call
/// (INV-OUTSIDE). Does not fail.
#[inline]
pub fn running() -> Option<&'static mut Txn> {
    if !platform::is_outside() || order::has_let_go() {
        return None;
    }
    // SAFETY: a backend has one thread, and no other reference to `BACKEND` is in use (see
    // `backend`).
    unsafe { BACKEND.get_mut().as_mut().map(|b| &mut *b.txn).filter(|t| t.is_active()) }
}

/// The running transaction, if it is SERIALIZABLE and may be written with: [`writing`] without its
/// errors and its start.
#[inline]
pub fn running_to_write() -> Option<&'static mut Txn> {
    if !platform::is_outside() {
        return None;
    }
    // SAFETY: a backend has one thread, and no other reference to `BACKEND` is in use (see
    // `backend`).
    let b = unsafe { BACKEND.get_mut().as_mut() }?;
    let may = b.mode == Some(Mode::Serializable) && b.txn.is_active() && !order::is_committing();
    (may && !b.txn.is_frozen()).then_some(&mut b.txn)
}

/// The running transaction, to write with it: not after its commit has begun.
#[inline]
pub fn writing() -> &'static mut Txn {
    let t = txn();
    if parallel::is_worker() {
        complain(
            PgSqlErrorCode::ERRCODE_INVALID_TRANSACTION_STATE,
            "mixedcc tables cannot be changed, nor their rows locked, by a parallel worker",
            "A function that does so is not PARALLEL SAFE.",
        );
    }
    if order::is_committing() {
        unsupported(
            "mixedcc tables cannot be changed while the transaction commits",
            "Another extension's commit callback does it.",
        );
    }
    if mode() == Mode::SerializableReadOnly {
        unsupported(
            "mixedcc tables cannot be changed by a SERIALIZABLE transaction that was READ ONLY at its first query",
            "Start the transaction READ WRITE.",
        );
    }
    t.rest_no_more();
    ok(t.thaw(&PG));
    t
}

/// Is a transaction running that is frozen (INV-FROZEN of the engine)?
#[inline]
pub fn is_frozen() -> bool {
    running().is_some_and(|t| t.is_frozen())
}

/// The transaction is about to do more than read, here or elsewhere. An ERROR if it may not.
pub fn thaw() {
    if let Some(t) = running() {
        ok(t.thaw(&PG));
    }
}

/// A SERIALIZABLE transaction begins with a long statement that only reads, and will probably do
/// nothing else. It reads a snapshot of this moment, and locks nothing. If it has begun already,
/// it has read nothing.
pub fn expect_report() {
    match running() {
        Some(t) if !t.is_untouched() || t.is_frozen() => {}
        Some(t) => t.freeze_from_start(),
        None => REPORT.set(true),
    }
}

/// What the transaction has read must be unchanged at its commit, from now on or from its start.
pub fn validate_at_commit() {
    if let Some(t) = running() {
        t.validate_at_commit();
    }
}

#[cold]
fn start(b: &mut Backend) {
    // SAFETY: variables of this process, which only its one thread writes; the other calls look at
    // them, too.
    unsafe {
        if parallel::is_worker() && !parallel::has_joined() {
            unsupported(
                "this parallel worker cannot access mixedcc tables",
                "The statement uses them in a function only, at SERIALIZABLE or after a change of them. Mark the function PARALLEL RESTRICTED, or set max_parallel_workers_per_gather to 0.",
            );
        }
        import::check();
        order::go_in_front();
        prepared::finish_decided();
        let level = if mode() == Mode::Serializable { Level::Serializable } else { Level::Snapshot };
        if level == Level::Serializable && b.txn.running_winner().is_some() {
            platform::let_pass(|| b.txn.running_winner().is_none());
        }
        b.txn.begin(level, platform::my_ident());
        let group = groups::of_transaction();
        if group != 0 {
            b.txn.set_group(group);
        }
        if EARLY_RELEASE.get() {
            b.txn.release_before_done();
        }
        b.txn.set_depth(pg_sys::GetCurrentTransactionNestLevel() as u32);
        if b.mixed.must_validate() {
            b.txn.validate_at_commit();
        }
        if level == Level::Serializable {
            let reads = b.txn.expects_to_read() && FREEZE_READERS.get() || REPORT.take();
            if reads && !b.mixed.must_validate() && !PG.has_written() {
                b.txn.freeze_from_start();
            }
        }
    }
}

/// The isolation of this transaction, if it was decided.
pub fn known_mode() -> Option<Mode> {
    // SAFETY: a backend has one thread, and no other reference to `BACKEND` is in use (see
    // `backend`).
    unsafe { BACKEND.get_mut().as_ref().and_then(|b| b.mode) }
}

/// The isolation of this transaction.
#[inline]
pub fn mode() -> Mode {
    let b = backend();
    match b.mode {
        Some(m) => m,
        None => {
            #[cfg(feature = "faults")]
            crate::pg::faults::begin();
            // SAFETY: a variable of this process, which only its one thread writes.
            let read_only = if depth() == 1 { unsafe { pg_sys::XactReadOnly } } else { top_is_read_only() };
            super::standby::check_as_asked();
            let m = if pg::is_serializable() {
                if read_only {
                    Mode::SerializableReadOnly
                } else {
                    Mode::Serializable
                }
            } else if pg::uses_xact_snapshot() {
                Mode::RepeatableRead
            } else {
                Mode::ReadCommitted
            };
            b.mode = Some(m);
            m
        }
    }
}

/// Takes the pin again, which may have been ended while the session held no snapshot (see
/// `Platform::quiescent`). For what looks at versions without a snapshot's CSN; the session holds a
/// snapshot now.
pub fn renew_pin() {
    platform::wake();
    // SAFETY: a backend has one thread, and no other reference to `BACKEND` is in use (see
    // `backend`).
    if let Some(b) = unsafe { BACKEND.get_mut().as_ref() }.filter(|b| b.txn.is_active()) {
        b.txn.e.pin(b.txn.slot);
    }
}

/// The executor starts on tables of ours: is it for another statement of the client?
pub fn note_statement() {
    platform::outside();
    let b = backend();
    if b.txn.is_active() && !b.txn.is_sampled() && !Txn::has_steps() {
        return; // neither the statistics nor a protocol asks
    }
    // SAFETY: `GetCurrentStatementStartTimestamp` reads a variable of this process and raises
    // nothing.
    let at = unsafe { pg::raw::GetCurrentStatementStartTimestamp() };
    if at != b.statement_at {
        b.statement_at = at;
        b.round_trips += 1;
        b.txn.next_step();
    }
}

/// What a serializable transaction has touched.
pub fn touched() -> &'static mut Touched {
    &mut backend().mixed
}

/// Nesting depth of the current subtransaction; 1 is the top transaction.
#[inline]
pub fn depth() -> u32 {
    // SAFETY: `GetCurrentTransactionNestLevel` reads a variable of this process and raises nothing.
    unsafe { pg::raw::GetCurrentTransactionNestLevel() as u32 }
}

fn note_deadlock(b: &mut Backend) {
    if platform::take_deadlock() {
        b.txn.note_deadlock();
    }
}

fn end_transaction(b: &mut Backend) {
    b.mode = None;
    (b.round_trips, b.statement_at) = (0, 0);
    (b.read_csn, b.read_floor, b.moment) = (0, 0, 0);
    b.held = 0;
    if b.locked.capacity() > 1024 {
        b.locked = HashMap::new();
    } else if !b.locked.is_empty() {
        b.locked.clear();
    }
    if b.handed_out.capacity() > 1024 {
        b.handed_out = Vec::new();
    } else {
        b.handed_out.clear();
    }
    b.last_locked = None;
    (b.mixed, b.cut) = (Touched::default(), None);
    mixed::kinds::forget_told();
    tags::end_transaction();
    import::end_transaction();
    lists::end_transaction();
    parallel::end_transaction();
    rel::end_transaction();
}

/// The commit begins. From now on other extensions' callbacks may not write.
pub fn begin_commit() {
    order::begin_commit();
}

/// The transaction, if it is sampled and has noted rows.
pub fn sampled() -> Option<&'static Txn> {
    has_backend().then(|| &*backend().txn).filter(|t| !t.sampled_records().is_empty())
}

/// Validates the transaction; an ERROR aborts it.
pub fn prepare() {
    platform::wake();
    if !has_backend() {
        return;
    }
    let b = backend();
    let mixed = mixed::is_mixed(b);
    if mixed {
        txn(); // it may have truncated tables of ours, and have read in heap alone
        mixed::begin_commit();
    }
    if !b.txn.is_active() {
        return;
    }
    b.txn.set_round_trips(b.round_trips);
    if b.mixed.must_validate() {
        b.txn.validate_at_commit();
    }
    if let Err(e) = b.commit.before_commit(&mut b.txn, mixed) {
        raise(e);
    }
}

/// The transaction has committed: publishes it. Returns whether it may have dropped tables; `None`:
/// this process has used none.
pub fn publish() -> Option<bool> {
    platform::wake();
    forget();
    rests::end_transaction(false);
    let b = has_backend().then(backend)?;
    b.commit.commit(&mut b.txn);
    Some(end(b, true))
}

/// The transaction aborts: undoes it. Returns as [`publish`] does.
pub fn undo() -> Option<bool> {
    platform::wake();
    forget();
    rests::end_transaction(true);
    let b = has_backend().then(backend)?;
    pending::flush_abort(1);
    note_deadlock(b);
    b.commit.abort(&mut b.txn);
    slots::give_spare_back();
    Some(end(b, false))
}

fn end(b: &mut Backend, commit: bool) -> bool {
    let drops = !b.pending.is_empty();
    pending::end(commit);
    end_transaction(b);
    if super::standby::is_reader() && !faults::on(Fault::AppliedPilesUp) {
        b.txn.collect_applied(&PG);
    }
    drops
}

/// The transaction is prepared, and no transaction of this process any more. Returns whether this
/// process has used our tables.
pub fn prepared() -> bool {
    platform::wake();
    forget();
    rests::end_transaction(false);
    if !has_backend() {
        return false;
    }
    prepared::hand_over();
    end_transaction(backend());
    true
}

/// Does each statement have a snapshot of its own?
pub fn is_statement_wise() -> bool {
    matches!(mode(), Mode::ReadCommitted)
}

/// The CSN of the transaction's snapshot. 0: it has none, or none for all statements.
pub fn fixed_snapshot() -> Csn {
    backend().read_csn
}

/// The transaction has ended in some way.
pub fn forget() {
    copies::end_transaction();
    order::end_transaction();
    rel::forget_use();
    super::standby::end_transaction();
    REPORT.set(false);
}

/// A subtransaction starts at this level.
pub fn start_sub(level: u32) {
    rests::start_sub(level);
    if level == 2 {
        // SAFETY: a variable of this process, which only its one thread writes. A subtransaction
        // starts as its parent is.
        TOP_READ_ONLY.set(unsafe { pg_sys::XactReadOnly });
    }
    // One that starts in the middle of a call of the engine ends there, and does nothing to its
    // state (INV-OUTSIDE).
    if platform::is_outside() && has_backend() && backend().txn.is_active() {
        backend().txn.set_depth(level);
    }
}

/// The subtransaction at this level commits: its parent has its locks and changes from now on.
/// False: this process has used none of our tables.
pub fn commit_sub(level: u32) -> bool {
    if !has_backend() {
        return false;
    }
    let b = backend();
    if platform::is_outside() {
        tags::hand_to_parent(&mut b.txn, level);
        b.txn.commit_sub(level);
    }
    for p in b.pending.iter_mut().filter(|p| p.0 >= level) {
        p.0 = level - 1;
    }
    for l in b.locked.values_mut().filter(|l| l.depth >= level) {
        l.depth = level - 1;
    }
    for l in b.handed_out.iter_mut().rev().take_while(|l| l.depth >= level) {
        l.depth = level - 1;
    }
    true
}

/// The subtransaction at this level aborts. Returns as [`commit_sub`] does.
pub fn abort_sub(level: u32) -> bool {
    rests::abort_sub(level);
    if !has_backend() {
        return false;
    }
    let b = backend();
    let outside = platform::is_outside();
    // First: after an ERROR (no memory) PostgreSQL aborts the subtransaction again.
    if outside && b.txn.is_active() {
        held::keep_tables(&b.txn, b.mode, &mut b.held);
        held::keep_changed_tables(b, level);
    }
    pending::flush_abort(level);
    if outside {
        note_deadlock(b);
        b.txn.keep_scanned(&PG, level);
        b.txn.abort_sub(level);
    }
    pending::undo(level);
    parallel::end_sharing();
    b.locked.retain(|_, l| l.depth < level);
    while b.handed_out.pop_if(|l| l.depth >= level).is_some() {}
    tags::drop_from(level);
    true
}

/// Table, partition and protocol of an error, as words. Takes no lock and looks at no catalog: the
/// caller may hold the page of an index (a unique check that fails is a read, and may find the
/// transaction doomed).
pub fn describe_partition(table: u64, partition: u32) -> String {
    let Some(info) = rel::by_table_id(table) else { return format!("Partition {partition}") };
    // The transaction has used the table: its pin keeps it (INV-TABLE).
    let protocol = info.table.map().partitions().get(partition as usize).map(|p| p.protocols().name());
    format!("Table \"{}\", partition {partition}, protocol {}", info.name, protocol.unwrap_or_default())
}
