//! The isolation level of the running transaction, and `mixedcc.serializable_at`.
//!
//! **INV-AS-ASKED**: PostgreSQL has no SERIALIZABLE in recovery. A snapshot of ours there is a
//! prefix of the serial order, so REPEATABLE READ over mixedcc tables alone is what SERIALIZABLE
//! READ ONLY would be. A transaction that is asked for as SERIALIZABLE runs at REPEATABLE READ, and
//! is remembered: a statement of it that reads another table is refused, and so is its first
//! statement after a promotion. A default of SERIALIZABLE would fail before a command of ours runs:
//! so at the end of each transaction in recovery PostgreSQL's variable gets REPEATABLE READ in its
//! place, until the default is set again, or recovery has ended.

use super::compat::{in_recovery, my_lxid};
use super::guc::{SerializableAt, SERIALIZABLE_AT};
use super::local::Local;
use pgrx::pg_sys;

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

/// What a command has said of the level of the transaction: is it SERIALIZABLE, on a standby?
/// `None`: none has. Of the transaction, or of the chain of transactions.
static ASKED: Local<Option<bool>> = Local::new(None);
/// Does the default have REPEATABLE READ in place of SERIALIZABLE? Of the process.
static IN_PLACE: Local<bool> = Local::new(false);
/// Does the next transaction have the level of this one? Of the transaction.
static CHAINS: Local<bool> = Local::new(false);
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

/// Does the default have REPEATABLE READ in place of SERIALIZABLE?
#[inline]
pub fn is_in_place() -> bool {
    IN_PLACE.get()
}

/// COMMIT AND CHAIN, or ROLLBACK AND CHAIN.
pub fn chain() {
    CHAINS.set(true);
}

/// A command is about to set the default, or to show it: it is what was set.
pub fn put_default_back() {
    if IN_PLACE.get() {
        ASKED.set(Some(is_asked()));
        IN_PLACE.set(false);
        // SAFETY: a variable of this process, which only its one thread writes.
        unsafe { pg_sys::DefaultXactIsoLevel = SERIALIZABLE };
    }
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

/// The transaction has ended. The next one has the default, or the level of this one.
pub fn end_transaction() {
    SHOWS.set(false);
    if !CHAINS.replace(false) {
        ASKED.set(None);
    }
    // SAFETY: a variable of this process, which only its one thread writes.
    let default = unsafe { pg_sys::DefaultXactIsoLevel };
    if default != SERIALIZABLE && !IN_PLACE.get() {
        return;
    }
    let recovery = in_recovery();
    let level = match recovery {
        true if default == SERIALIZABLE => REPEATABLE_READ,
        false if default == REPEATABLE_READ => SERIALIZABLE,
        _ => default,
    };
    IN_PLACE.set(recovery && level == REPEATABLE_READ);
    // SAFETY: as above.
    unsafe { pg_sys::DefaultXactIsoLevel = level };
}
