//! The isolation level of the running transaction, and `mixedcc.serializable_at`.
//!
//! **INV-AS-ASKED**: PostgreSQL has no SERIALIZABLE in recovery. A snapshot of ours there is a
//! prefix of the serial order, so REPEATABLE READ over mixedcc tables alone is what SERIALIZABLE
//! READ ONLY would be. A transaction that is asked for as SERIALIZABLE runs at REPEATABLE READ, and
//! is remembered: a statement of it that reads another table is refused, and so is its first
//! statement after a promotion. A default of SERIALIZABLE would fail before a command of ours runs.
//! So the setting has a variable of ours, and transactions begin with PostgreSQL's: that has the
//! same value, or REPEATABLE READ in its place, in recovery.

use super::compat::{self, in_recovery, my_lxid};
use super::guc::{SerializableAt, SERIALIZABLE_AT};
use super::local::Local;
use pgrx::pg_sys;
use std::ptr::null_mut;

const REPEATABLE_READ: i32 = pg_sys::XACT_REPEATABLE_READ as i32;
const SERIALIZABLE: i32 = pg_sys::XACT_SERIALIZABLE as i32;

/// What the setting was when a REPEATABLE READ transaction first looked at it. Of the transaction:
/// its number is compared.
#[derive(Clone, Copy)]
struct Seen {
    transaction: u32,
    serializable: bool,
}

static SEEN: Local<Seen> = Local::new(Seen { transaction: 0, serializable: false });

#[inline]
fn level() -> i32 {
    // SAFETY: a variable of this process, which only its one thread writes.
    unsafe { pg_sys::XactIsoLevel }
}

/// Is the transaction serializable on tables of ours? It is at SERIALIZABLE, and at REPEATABLE READ
/// if `mixedcc.serializable_at` says so.
#[inline]
pub fn is_serializable() -> bool {
    let level = level();
    level >= REPEATABLE_READ && (level == SERIALIZABLE || is_at_repeatable_read())
}

/// Is the isolation level of PostgreSQL SERIALIZABLE?
#[inline]
pub fn is_at_serializable() -> bool {
    level() == SERIALIZABLE
}

/// Is the transaction serializable on tables of ours, and REPEATABLE READ to PostgreSQL?
#[inline]
pub fn is_ours_alone() -> bool {
    level() == REPEATABLE_READ && is_at_repeatable_read()
}

/// The setting as the transaction, of REPEATABLE READ, saw it first: a change counts from the next
/// transaction on, also one by ROLLBACK TO SAVEPOINT.
#[inline]
fn is_at_repeatable_read() -> bool {
    let seen = SEEN.get();
    let transaction = my_lxid();
    if seen.transaction == transaction {
        return seen.serializable;
    }
    // A WAL sender's one snapshot is PostgreSQL's (INV-COPY).
    // SAFETY: a variable of this process, which its start has set.
    let is_sender = unsafe { pg_sys::am_walsender };
    let serializable = !is_sender && SERIALIZABLE_AT.get() == SerializableAt::RepeatableRead;
    SEEN.set(Seen { transaction, serializable });
    serializable
}

/// Is one snapshot used for the whole transaction (REPEATABLE READ, SERIALIZABLE)?
#[inline]
pub fn uses_xact_snapshot() -> bool {
    level() >= REPEATABLE_READ
}

// --- on a standby ----------------------------------------------------------------

/// Has a command, or a default of before, made the transaction SERIALIZABLE, on a standby? `None`:
/// it has the default. Of the transaction, or of the chain of transactions.
static ASKED: Local<Option<bool>> = Local::new(None);
/// The value of the setting default_transaction_isolation. Of the process.
static DEFAULT: Local<i32> = Local::new(pg_sys::XACT_READ_COMMITTED as i32);
/// Do transactions begin at REPEATABLE READ in place of that? Of the process.
static IN_PLACE: Local<bool> = Local::new(false);
/// Does the next transaction have the level of this one? Of the transaction.
static CHAINS: Local<bool> = Local::new(false);
/// What runs when the memory of the transaction goes, and is it registered? Of the transaction.
static ENDING: Local<pg_sys::MemoryContextCallback> =
    Local::new(pg_sys::MemoryContextCallback { func: Some(ended), arg: null_mut(), next: null_mut() });
static ENDS: Local<bool> = Local::new(false);
/// Is the level shown, so that PostgreSQL's variable is what was asked for? Of a command.
static SHOWS: Local<bool> = Local::new(false);

/// Has the transaction been asked for as SERIALIZABLE, on a standby (INV-AS-ASKED)?
#[inline]
pub fn is_asked() -> bool {
    level() == REPEATABLE_READ && ASKED.get().unwrap_or_else(|| IN_PLACE.get())
}

/// A command has set the level of the transaction.
pub fn ask(serializable: bool) {
    ASKED.set(Some(serializable));
}

/// Can the level of the transaction be another one still?
pub fn may_change() -> bool {
    // SAFETY: variables of this process, which only its one thread writes.
    unsafe { !pg_sys::FirstSnapshotSet && pg_sys::GetCurrentTransactionNestLevel() == 1 }
}

/// COMMIT AND CHAIN, or ROLLBACK AND CHAIN.
pub fn chain() {
    ASKED.set(Some(is_asked()));
    CHAINS.set(true);
}

/// Runs `show`, which takes no snapshot, with the level that was asked for.
pub fn with_asked(show: impl FnOnce()) {
    if !is_asked() {
        return show();
    }
    SHOWS.set(true);
    // SAFETY: a variable of this process, which only its one thread writes.
    unsafe { pg_sys::XactIsoLevel = SERIALIZABLE };
    show();
    end_show();
}

/// The level is shown, or an ERROR has ended that, and a subtransaction, too.
pub fn end_show() {
    if SHOWS.replace(false) {
        // SAFETY: a variable of this process, which only its one thread writes.
        unsafe { pg_sys::XactIsoLevel = REPEATABLE_READ };
    }
}

/// The setting gets its variable. When the library is loaded.
pub fn init() {
    // SAFETY: `_PG_init` runs alone. The setting is one of PostgreSQL, and lasts as long.
    unsafe {
        let Some(setting) = compat::enum_setting(c"default_transaction_isolation") else { return };
        DEFAULT.set(*(*setting).variable);
        (*setting).variable = DEFAULT.as_ptr();
        (*setting).assign_hook = Some(assign);
    }
}

/// The setting is about to be set: by a command, a file, or the end of what had set it for a while.
unsafe extern "C-unwind" fn assign(to: i32, _: *mut core::ffi::c_void) {
    // A transaction that has begun keeps its level.
    // SAFETY: variables of this process.
    if ASKED.get().is_none() && unsafe { pg_sys::GetCurrentTransactionNestLevel() } > 0 {
        ASKED.set(Some(is_asked()));
    }
    begin_with(to);
}

/// Transactions begin at this level from now on. The postmaster's children find out for themselves.
fn begin_with(default: i32) {
    // SAFETY: variables of this process, which only its one thread writes.
    unsafe {
        let is_session = pg_sys::MyDatabaseId != pg_sys::InvalidOid;
        IN_PLACE.set(default == SERIALIZABLE && is_session && in_recovery());
        pg_sys::DefaultXactIsoLevel = if IN_PLACE.get() { REPEATABLE_READ } else { default };
    }
}

/// The transaction ends, or has failed. ROLLBACK AND CHAIN may follow: what it was goes with its
/// memory. By then settings have their values of before, too.
pub fn end_transaction() {
    SHOWS.set(false);
    let knows = ASKED.get().is_some() || DEFAULT.get() == SERIALIZABLE;
    if knows && !ENDS.replace(true) {
        // SAFETY: the memory of the transaction is there still. Registered once for each.
        unsafe { pg_sys::MemoryContextRegisterResetCallback(pg_sys::TopTransactionContext, ENDING.as_ptr()) };
    }
}

/// The transaction has ended. The next one has the default, or the level of this one.
unsafe extern "C-unwind" fn ended(_: *mut core::ffi::c_void) {
    ENDS.set(false);
    if !CHAINS.replace(false) {
        ASKED.set(None);
    }
    begin_with(DEFAULT.get()); // Recovery may have ended.
}
