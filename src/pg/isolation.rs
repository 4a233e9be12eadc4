//! The isolation level of the running transaction, and `mixedcc.serializable_at`.

use super::compat::my_lxid;
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
