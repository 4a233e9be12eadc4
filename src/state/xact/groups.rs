//! The group of a transaction, for the statistics of the engine's `groups.rs`.
//!
//! It is decided at the first use of a mixedcc table, by the first of these that says something:
//! the setting `mixedcc.transaction_group`, the label of a function that a statement of the
//! transaction calls, and what `mixedcc.group_by` names.

use crate::pg::compat::my_lxid;
use crate::pg::guc::{self, GroupBy, GROUP_BY, TRANSACTION_GROUP};
use crate::pg::local::Local;
use crate::pg::text;
use crate::state::shmem;
use mixedcc_engine::groups::{Group, GROUPS};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::ffi::CStr;

/// Of the process: the last name that was looked up, with its number and the resets before that.
static LAST: Local<(Vec<u8>, Group, u32)> = Local::new((Vec::new(), 0, 0));

/// Of the transaction: its number at this process, the label of a function that it has called, and
/// its first statement's identifier. Another transaction's do not count.
static NOTED: Local<Noted> = Local::new(Noted { transaction: 0, label: None, statement: 0 });

struct Noted {
    transaction: u32,
    label: Option<String>,
    statement: u64,
}

/// Of the process: was it told that there are too many groups?
static WARNED: Local<bool> = Local::new(false);

/// What was noted of this transaction.
fn noted() -> &'static mut Noted {
    // SAFETY: a process has one thread. Callers keep the reference for a few lines that call
    // nothing of PostgreSQL's.
    let noted = unsafe { NOTED.get_mut() };
    let now = my_lxid();
    if noted.transaction != now {
        *noted = Noted { transaction: now, label: None, statement: 0 };
    }
    noted
}

/// A statement begins. `id`: its query identifier; 0: it has none.
#[inline]
pub fn note_statement(id: u64) {
    if id != 0 && guc::names_groups() && GROUP_BY.get() == GroupBy::Statement {
        let noted = noted();
        if noted.statement == 0 {
            noted.statement = id;
        }
    }
}

/// The transaction calls a function whose label names this group.
pub fn note_label(group: &str) {
    let noted = noted();
    if noted.label.is_none() {
        noted.label = Some(group.to_owned());
    }
}

/// The group of the transaction that begins. 0: none.
#[inline]
pub fn of_transaction() -> Group {
    // SAFETY: a process has one thread, and no other reference is in use.
    let noted = unsafe { NOTED.get_mut() }.label.is_some();
    if noted || guc::names_groups() {
        find()
    } else {
        0
    }
}

#[cold]
fn find() -> Group {
    if let Some(group) = guc::with_bytes(&TRANSACTION_GROUP, number) {
        return group;
    }
    // SAFETY: a process has one thread, and this reference is over at once.
    if unsafe { NOTED.get_mut() }.transaction == my_lxid() {
        if let Some(label) = noted().label.clone() {
            return number(&text::bytes(&label));
        }
    }
    match GROUP_BY.get() {
        GroupBy::None => 0,
        // SAFETY: a variable of this process: null or a C string.
        GroupBy::Application => match unsafe { pg_sys::application_name } {
            p if p.is_null() => 0,
            // SAFETY: not null. It stays while no command changes settings.
            p => number(unsafe { CStr::from_ptr(p) }.to_bytes()),
        },
        GroupBy::Statement => match noted().statement {
            0 => 0,
            id => number((id as i64).to_string().as_bytes()),
        },
    }
}

/// The number of the group with this name; 0 for an empty one.
fn number(name: &[u8]) -> Group {
    let groups = &shmem::engine().shared.groups;
    let resets = groups.resets();
    // SAFETY: a process has one thread, and nothing below uses `LAST` but by this reference.
    let last = unsafe { LAST.get_mut() };
    if last.0 != name || last.2 != resets {
        let group = if name.is_empty() { Some(0) } else { groups.number(&text::of_bytes(name)) };
        *last = (name.to_vec(), group.unwrap_or(0), resets);
        if group.is_none() && !WARNED.replace(true) {
            let message = format!("mixedcc counts no more than {GROUPS} groups of transactions");
            ErrorReport::new(PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED, message, "mixedcc")
                .set_hint("mixedcc.reset_groups() forgets those that there are.")
                .report(PgLogLevel::WARNING);
        }
    }
    // SAFETY: as above.
    unsafe { LAST.get_mut() }.1
}
