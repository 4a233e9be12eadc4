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
use super::{database, elements, flag, Call, Element};
use crate::pg::compat;
use crate::pg::errors::{must_be_writable, refuse};
use crate::pg::faults::{self, Fault};
use crate::pg::text;
use crate::state::shmem::{self, Absence};
use crate::state::{loads, rounds, xact};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

/// CREATE DATABASE: the template is closed while it is copied.
pub fn create(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let s = unsafe { &*call.node::<pg_sys::CreatedbStmt>() };
    must_be_writable(c"CREATE DATABASE");
    must_be_alone(&call, c"CREATE DATABASE");
    let options = elements(s.options);
    let given = |name: &str| options.iter().find(|e| e.name == name).and_then(|e| e.value.clone());
    let template = given("template").unwrap_or_else(|| "template1".into());
    if compat::may_create_databases(user()) {
        // The command itself says that it does not exist, or may not be copied.
        let may_copy = |db: &u32| compat::owns_database(Oid::from(*db), user()) || compat::is_template(Oid::from(*db));
        if let Some(db) = lock(&template, Command::Create.lock()).filter(may_copy) {
            given("tablespace").as_deref().map(tablespace);
            refuse_name(&super::text(s.dbname).unwrap_or_default());
            close(db, &template, Command::Create);
        }
    }
    drop((options, template));
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
    must_be_writable(c"DROP DATABASE");
    must_be_alone(&call, c"DROP DATABASE");
    let command = Command::Drop { force: flag(s.options, "force") };
    let closed = lock_own(&name, command);
    if let Some(db) = closed {
        refuse_drop(db, &name);
        close(db, &name, command);
    }
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
    let options = elements(s.options);
    let name = super::text(s.dbname).unwrap_or_default();
    // Beside others the command refuses this option.
    if let [Element { name: option, value: Some(to), .. }] = &options[..] {
        if option == "tablespace" {
            must_be_writable(c"ALTER DATABASE");
            must_be_alone(&call, c"ALTER DATABASE SET TABLESPACE");
            if let Some(db) = lock_own(&name, Command::Move) {
                if compat::tablespace_of(Oid::from(db)) == Some(tablespace(to)) {
                    return; // as the command does, also of a database that is in use
                }
                close(db, &name, Command::Move);
            }
        }
    }
    drop((options, name));
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

/// An ERROR, as one of a command that this module asks first.
fn error(code: PgSqlErrorCode, message: String, detail: String) {
    let report = ErrorReport::new(code, text::shown(&message), "mixedcc");
    (if detail.is_empty() { report } else { report.set_detail(detail) }).report(PgLogLevel::ERROR)
}

/// The tablespace of a name, where this user may put a database; else an ERROR.
fn tablespace(name: &str) -> Oid {
    let name = text::write(name);
    // SAFETY: `name` is a C string. The ERROR of a name that no tablespace has, or of a lack of
    // rights, unwinds.
    unsafe {
        let oid = pg_sys::get_tablespace_oid(name.as_ptr(), false);
        let rights = compat::tablespace_rights(oid, user());
        if rights != pg_sys::AclResult::ACLCHECK_OK {
            pg_sys::aclcheck_error(rights, pg_sys::ObjectType::OBJECT_TABLESPACE, name.as_ptr());
        }
        if oid == Oid::from(pg_sys::GLOBALTABLESPACE_OID) {
            let message = "pg_global cannot be used as default tablespace".into();
            error(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, message, String::new());
        }
        oid
    }
}

/// CREATE DATABASE of a name that is taken.
fn refuse_name(name: &str) {
    if database(name).is_some() {
        let message = format!("database \"{name}\" already exists");
        error(PgSqlErrorCode::ERRCODE_DUPLICATE_DATABASE, message, String::new());
    }
}

/// DROP DATABASE of a database, which is locked, that may not be dropped, connected to or not.
fn refuse_drop(db: u32, name: &str) {
    let db = Oid::from(db);
    if compat::is_template(db) {
        let message = "cannot drop a template database".into();
        error(PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE, message, String::new());
    }
    let in_use = |of: &str, detail: String| {
        error(PgSqlErrorCode::ERRCODE_OBJECT_IN_USE, format!("database \"{name}\" is {of}"), detail);
    };
    match compat::active_slots(db) {
        0 => {}
        1 => in_use("used by an active logical replication slot", "There is 1 active slot.".into()),
        n => in_use("used by an active logical replication slot", format!("There are {n} active slots.")),
    }
    match compat::subscriptions(db) {
        0 => {}
        1 => in_use("being used by logical replication subscription", "There is 1 subscription.".into()),
        n => in_use("being used by logical replication subscription", format!("There are {n} subscriptions.")),
    }
}

/// Locks a database of this user that is not this session's; `None`: the command itself says why
/// it refuses it.
fn lock_own(name: &str, command: Command) -> Option<u32> {
    let is_own = |db: u32| is_other(db) && compat::owns_database(Oid::from(db), user());
    database(name).filter(|db| is_own(*db))?;
    lock(name, command.lock()).filter(|db| is_own(*db))
}

/// Closes a database, which is locked, to the end of the transaction (INV-CLOSED). What the command
/// refuses before it looks for sessions was refused before: here sessions end, and tables leave the
/// memory. (It is not left to the command, for which it may be right by then. It would go on, and
/// the database would not be closed.)
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
        error(PgSqlErrorCode::ERRCODE_OBJECT_IN_USE, command.busy(name), users(sessions, prepared));
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
        if !faults::on(Fault::UnloadForgotten) {
            let e = shmem::engine();
            e.shared.standby.note_unloaded(e.now());
        }
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
