//! CREATE DATABASE, DROP DATABASE, ALTER DATABASE: databases with tables of ours.
//!
//! **INV-CLOSED**: While one of these commands copies or removes the files of a database, below the
//! buffers, no round of the companion writes to a file of it. For that, its permanent tables in
//! memory are clean, and stay so. The hook takes the lock of the database that the command takes,
//! so no session can connect to it. It waits until no session is connected, as the command does.
//! Then it waits for a round, which writes what these sessions have left. The checkpoints of the
//! command find nothing dirty there, so they do not wait for the command. The companion writes
//! nothing of its own accord. For that the permanent tables leave the memory before the command:
//! the coordinator may end a switch there, which a round would note. If the command fails, or has
//! copied or moved their database, they are loaded again. They stay if a session copies its own
//! database, of which it is the only one: it knows where they are.

use super::maintain::must_be_alone;
use super::{database, elements, flag, Call};
use crate::pg::compat;
use crate::pg::errors::refuse;
use crate::state::shmem::{self, Absence};
use crate::state::{loads, rounds, xact};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

/// CREATE DATABASE: the template is closed while it is copied.
pub fn create(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let s = unsafe { &*call.node::<pg_sys::CreatedbStmt>() };
    must_be_alone(&call, c"CREATE DATABASE");
    let named = elements(s.options).into_iter().find(|e| e.name == "template").and_then(|e| e.value);
    let template = named.unwrap_or_else(|| "template1".into());
    if compat::may_create_databases(user()) {
        // The command itself says that it does not exist, or may not be copied.
        let may_copy = |db: &u32| compat::owns_database(Oid::from(*db), user()) || compat::is_template(Oid::from(*db));
        if let Some(db) = lock(&template, Command::Create.lock()).filter(may_copy) {
            close(db, &template, Command::Create);
        }
    }
    drop(template);
    call.run();
}

/// DROP DATABASE: its tables go with it.
pub fn remove(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let s = unsafe { &*call.node::<pg_sys::DropdbStmt>() };
    let name = super::text(s.dbname).unwrap_or_default();
    // The name may mean another database as soon as it is looked up. The one that is locked is the
    // one that the command drops. (If the name means none yet, and another session gives it to one
    // before the command looks, the command drops that one. Its tables stay in memory then.)
    must_be_alone(&call, c"DROP DATABASE");
    let closed = close_own(&name, Command::Drop { force: flag(s.options, "force") });
    drop(name);
    call.run();
    let Some(db) = closed else { return };
    // The transaction's pin keeps the tables until we are done with them.
    xact::txn();
    shmem::storages(db).into_iter().for_each(forget);
}

/// ALTER DATABASE: its tablespace names the storages of its tables. The rows of permanent ones come
/// from their files afterwards.
pub fn alter(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let s = unsafe { &*call.node::<pg_sys::AlterDatabaseStmt>() };
    let moves = elements(s.options).iter().any(|d| d.name == "tablespace");
    let name = super::text(s.dbname).unwrap_or_default();
    if moves {
        must_be_alone(&call, c"ALTER DATABASE SET TABLESPACE");
        close_own(&name, Command::Move);
    }
    drop(name);
    call.run();
}

/// ALTER DATABASE ... RENAME, which waits for no loader for long: they leave before it.
pub fn rename(name: &str) {
    if database(name).is_some_and(|db| is_other(db) && compat::owns_database(Oid::from(db), user())) {
        if let Some(db) = lock(name, pg_sys::AccessExclusiveLock as i32) {
            loads::leave(db);
        }
    }
}

/// Does a statement name another database than that of this session?
fn is_other(db: u32) -> bool {
    // SAFETY: a variable of this process, which its one thread writes when it connects.
    unsafe { pg_sys::MyDatabaseId }.to_u32() != db
}

fn user() -> Oid {
    // SAFETY: `GetUserId` reads a variable of this process.
    unsafe { pg_sys::GetUserId() }
}

/// What a database is closed for.
#[derive(Clone, Copy)]
enum Command {
    Create,
    Drop { force: bool },
    Move,
}

impl Command {
    /// The lock that the command takes.
    fn lock(self) -> i32 {
        match self {
            Command::Create => pg_sys::ShareLock as i32,
            Command::Drop { .. } | Command::Move => pg_sys::AccessExclusiveLock as i32,
        }
    }
    fn busy(self, name: &str) -> String {
        let source = if matches!(self, Command::Create) { "source " } else { "" };
        format!("{source}database \"{name}\" is being accessed by other users")
    }
}

/// Closes a database of this user, and of no session of ours. Returns which one that is; `None`:
/// the command itself says why it cannot be.
fn close_own(name: &str, command: Command) -> Option<u32> {
    let is_own = |db: u32| is_other(db) && compat::owns_database(Oid::from(db), user());
    database(name).filter(|db| is_own(*db))?;
    let db = lock(name, command.lock()).filter(|db| is_own(*db))?;
    close(db, name, command);
    Some(db)
}

/// Closes a database, which is locked, to the end of the transaction (INV-CLOSED).
fn close(db: u32, name: &str, command: Command) {
    loads::leave(db);
    let (mut sessions, mut prepared) = (0, 0);
    // SAFETY: the numbers are of this frame, which owns nothing. An ERROR (a session that the user
    // may not end) unwinds.
    let busy = unsafe {
        if matches!(command, Command::Drop { force: true }) {
            pg_sys::TerminateOtherDBBackends(Oid::from(db));
        }
        pg_sys::CountOtherDBBackends(Oid::from(db), &mut sessions, &mut prepared)
    };
    if busy {
        ErrorReport::new(PgSqlErrorCode::ERRCODE_OBJECT_IN_USE, command.busy(name), "mixedcc")
            .set_detail(users(sessions, prepared))
            .report(PgLogLevel::ERROR);
    }
    // No session is left that could make one.
    if matches!(command, Command::Move) && shmem::storages(db).into_iter().any(|key| !is_permanent(key)) {
        refuse(
            "a database with unlogged mixedcc tables cannot be moved to another tablespace",
            "Make them permanent with ALTER TABLE ... SET LOGGED, or drop them first.",
        );
    }
    // A single-user server has no companion, and nothing that a round would image.
    // SAFETY: a variable of this process, which its one thread writes when it starts.
    let has_companion = unsafe { pg_sys::IsUnderPostmaster };
    if has_companion && !permanent(db).is_empty() {
        rounds::round_now();
    }
    if is_other(db) {
        permanent(db).into_iter().for_each(forget);
    }
}

/// Locks the database that a name means, also if another session renames one meanwhile.
fn lock(name: &str, mode: i32) -> Option<u32> {
    loop {
        let db = database(name)?;
        // SAFETY: any OID may be locked; the lock ends with the transaction.
        unsafe { pg_sys::LockSharedObject(pg_sys::DatabaseRelationId, Oid::from(db), 0, mode) };
        if database(name) == Some(db) {
            return Some(db);
        }
        // SAFETY: the lock was taken above.
        unsafe { pg_sys::UnlockSharedObject(pg_sys::DatabaseRelationId, Oid::from(db), 0, mode) };
    }
}

/// The permanent tables of a database that are in memory, or are known not to fit. No session is
/// connected to it.
fn permanent(db: u32) -> Vec<[u32; 4]> {
    shmem::storages(db).into_iter().filter(|key| is_permanent(*key)).collect()
}

/// Is this the storage of a permanent table?
fn is_permanent(key: [u32; 4]) -> bool {
    // The transaction's pin keeps the tables until we are done with them.
    xact::txn();
    match shmem::absent(key) {
        Some((why, _)) => matches!(why, Absence::TooLarge | Absence::Standby),
        None => shmem::find(key).is_some_and(|t| t.durable().is_some()),
    }
}

/// Takes a table out of memory.
fn forget(key: [u32; 4]) {
    if let Some(t) = xact::take_out(key) {
        t.retire(&shmem::engine());
    }
}

/// The users of a database, as PostgreSQL names them.
fn users(sessions: i32, prepared: i32) -> String {
    match (sessions, prepared) {
        (0, 1) => "There is 1 prepared transaction using the database.".into(),
        (0, n) => format!("There are {n} prepared transactions using the database."),
        (1, 0) => "There is 1 other session using the database.".into(),
        (n, 0) => format!("There are {n} other sessions using the database."),
        (n, m) => {
            format!("There are {n} other session(s) and {m} prepared transaction(s) using the database.")
        }
    }
}
