//! When a transaction rests that reads by one snapshot: its pin keeps one version of each row
//! meanwhile (INV-POINT of the engine). Only with `mixedcc.prune_versions`.
//!
//! **INV-RESTS**: A transaction rests when the executor's outermost run, or its end, is over,
//! and for a moment between two rows of a scan of the outermost run. No operation on a table of
//! ours is under way then. The process has addresses of versions only in the slots of cursors
//! and plans, and in the rows that their sequential scans have found ahead (INV-HANDED). The
//! transaction's snapshot sees these. What has other addresses for longer says so before it
//! looks for them (`stay_awake`): writes and locks, other snapshots than the transaction's own,
//! commands that build or check indexes. All code that uses the engine wakes the transaction:
//! it reaches that by [`Awake`] alone. `slots::my_slot` and `platform::outside` wake it, too.

use super::{backend, copies, has_backend, parallel, Backend, Mode};
use crate::pg::compat;
use crate::pg::guc::PRUNE_VERSIONS;
use crate::pg::local::Local;
use crate::state::platform;
use mixedcc_engine::open::Seen;
use mixedcc_engine::Txn;
use std::ops::{Deref, DerefMut};

/// How many runs of the executor are under way. After an ERROR that a savepoint has caught: as many
/// as when the savepoint was set.
static RUNS: Local<u32> = Local::new(0);

/// A function runs on a row that is not kept by the transaction's snapshot. After an ERROR: as
/// `RUNS`.
static BUSY: Local<u32> = Local::new(0);

/// Both are remembered for so many levels of savepoints. After an ERROR below them the transaction
/// rests no more.
const LEVELS: usize = 32;
static AT_LEVEL: Local<[(u32, u32); LEVELS]> = Local::new([(0, 0); LEVELS]);

/// The executor begins to run a statement.
#[inline]
pub fn begin_run() {
    RUNS.set(RUNS.get() + 1);
}

/// It has run the statement, or a part of it.
#[inline]
pub fn end_run() {
    RUNS.set(RUNS.get().saturating_sub(1));
    between_statements();
}

/// A statement of a client may be over.
#[inline]
pub fn between_statements() {
    if RUNS.get() == 0 {
        rest();
    }
}

fn rest() {
    // Two ends of one statement may come here, and nothing between them.
    if !has_backend() || backend().txn.0.is_resting() || !platform::is_outside() {
        return;
    }
    let b = backend();
    if may_rest(b) && b.txn.0.take_rest(&seen(b)) {
        platform::note_rest();
    }
}

fn may_rest(b: &Backend) -> bool {
    // On a standby the clock is above what a snapshot sees, so its floor protects too little.
    PRUNE_VERSIONS.get()
        && !compat::in_recovery()
        && matches!(b.mode, Some(Mode::RepeatableRead | Mode::SerializableReadOnly))
        && b.read_csn != 0
        && b.txn.is_active()
        && BUSY.get() == 0
        && !(parallel::is_worker() && !parallel::has_joined())
        && !copies::has_begun()
        && b.pending.is_empty()
}

/// The transaction's snapshot. What it leaves out does not matter.
fn seen(b: &Backend) -> Seen<'static> {
    Seen { upto: b.read_csn, floor: b.read_floor, excluded: &[] }
}

/// Rests for a moment, between two rows of a scan.
#[cold]
pub fn between_rows() {
    if RUNS.get() > 1 || !has_backend() || !platform::is_outside() {
        return;
    }
    let b = backend();
    if may_rest(b) {
        let seen = seen(b);
        b.txn.rest_a_moment(&seen);
    }
}

/// Wakes the transaction. Only the platform calls it, which knows whether it rests.
pub fn wake() {
    if has_backend() {
        backend().txn.0.wake();
    }
}

/// The transaction of this process. A reference to it wakes it (INV-RESTS).
pub struct Awake(Txn);

impl Awake {
    /// A transaction that has not begun.
    pub fn new(txn: Txn) -> Awake {
        Awake(txn)
    }
}

impl Deref for Awake {
    type Target = Txn;
    #[inline]
    fn deref(&self) -> &Txn {
        self.0.wake();
        &self.0
    }
}

impl DerefMut for Awake {
    #[inline]
    fn deref_mut(&mut self) -> &mut Txn {
        self.0.wake();
        &mut self.0
    }
}

/// The transaction will keep addresses, or look at other rows than those of its snapshot.
#[inline]
pub fn stay_awake() {
    platform::wake();
    if has_backend() && backend().txn.is_active() {
        backend().txn.rest_no_more();
    }
}

/// While it lives, the transaction does not rest.
pub struct Busy(());

impl Busy {
    /// See [`Busy`].
    pub fn new() -> Busy {
        BUSY.set(BUSY.get() + 1);
        Busy(())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.set(BUSY.get().saturating_sub(1));
    }
}

/// A subtransaction starts at this level.
pub fn start_sub(level: u32) {
    // SAFETY: a backend has one thread, and the reference is not kept.
    if let Some(at) = unsafe { AT_LEVEL.get_mut() }.get_mut(level as usize) {
        *at = (RUNS.get(), BUSY.get());
    }
}

/// The subtransaction at this level aborts. The runs that have begun in it are gone.
pub fn abort_sub(level: u32) {
    // SAFETY: as above.
    if let Some(at) = unsafe { AT_LEVEL.get_mut() }.get(level as usize) {
        RUNS.set(at.0);
        BUSY.set(at.1);
    }
}

/// The transaction has ended. If it was undone, the runs in it are gone.
pub fn end_transaction(undone: bool) {
    BUSY.set(0);
    if undone {
        RUNS.set(0);
    }
}
