//! The executor bypass: statements by key that run from a small program, without an executor's
//! state.
//!
//! `ExecutorStart` looks the plan up (`cache`). If it is one of the few shapes of `plan`, a program
//! was compiled for it (`program`): expressions as PostgreSQL's own expression states, slots, keys.
//! `ExecutorRun` runs it (`run`, `write`) and does for the caller what the executor does: results
//! to the receiver, `es_processed`, instrumentation. Everything else goes to the executor, and is
//! counted with the reason (`counts`).
//!
//! **INV-BYPASS-PROGRAM**: A program lives as long as its plan. If it is dropped before (a relation
//! or the catalog changed), it lives until the transaction ends. The session that runs a plan holds
//! the plan, so no running program goes away.
//!
//! **INV-BYPASS-EXEC**: A state that was handed out is given back when the statement ends, or by
//! the end of the (sub)transaction that began it.
//!
//! **INV-BYPASS-RELATION**: A program's pointer to its table's cache entry is right while `open_in`
//! is the number of the present transaction. The plan's lock on the table is held since before the
//! statement starts. So the entry moves or goes only with an invalidation of the table, which drops
//! the program and sets `open_in` to 0, or at the end of a transaction. While a statement runs the
//! entry is pinned (`Exec::pinned`), so that an invalidation leaves it in place. A statement of a
//! portal is pinned from its start on. So ALTER TABLE of the same session finds the table in use.
//!
//! **INV-BYPASS-BROKEN**: A program whose run an ERROR has ended runs no more. PostgreSQL prepares
//! expressions for each execution, so a function may leave what it keeps between its calls half
//! made (`fn_extra`).
//!
//! **INV-BYPASS-PLACE**: An UPDATE of columns in no index writes in place to its end. Another
//! session may add an index of such a column meanwhile (CREATE INDEX CONCURRENTLY). It waits for
//! all transactions that had the table locked before it reads a row, and for all older snapshots
//! before a plan uses it. The partition key does not change while a writer has the table locked.
//!
//! **INV-BYPASS-ONCE**: A program runs once at a time, because all its executions share its slots
//! and contexts.

use crate::pg::local::Local;
use crate::pg::{self, citus, guc};
use pgrx::pg_sys::{self, CmdType};
use pgrx::prelude::*;

mod agg;
mod cache;
mod column;
pub mod counts;
mod exec;
pub mod generic;
mod indexes;
mod plan;
mod probe;
mod program;
mod run;
mod select;
mod triggers;
mod write;

pub use exec::{abort_subtransactions, commit_subtransaction};
pub use run::{give_up, run, Run};

/// Why a statement goes to the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// `mixedcc.enable_bypass` is off.
    Setting,
    /// Another library would not see it: its executor hooks were installed before ours, or it
    /// checks permissions.
    Hooks,
    /// It is instrumented (EXPLAIN ANALYZE, auto_explain with log_analyze).
    Instrumented,
    /// It belongs to a named cursor, or the caller wants more than to run it forward once.
    Cursor,
    /// It writes or locks rows in a read-only transaction or in parallel mode.
    ReadOnly,
    /// Its plan is another: joins, subqueries, sorting, groups, writes of several rows.
    Plan,
    /// It does not ask for one key of the primary key, nor for a range by the scan of the primary
    /// index.
    Key,
    /// An expression with a function of a user, a volatile function, or of a kind that is not known
    /// here.
    Expression,
    /// INSERT with ON CONFLICT.
    OnConflict,
    /// A declarative partition or a table with partitions.
    Partitioned,
    /// Row-level security, or a view with a security barrier.
    RowSecurity,
    /// The table has triggers for it, those of foreign keys too.
    Triggers,
    /// The table has generated columns, or a CHECK with an expression as above.
    Constraints,
    /// It changes a column of an index or of the partition key.
    Moves,
    /// The user has not all rights.
    Rights,
    /// The same plan is running.
    Busy,
    /// What it has to lock or queue is known only when it runs: a row written before by this
    /// transaction.
    Row,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 17] = [
        Reason::Setting,
        Reason::Hooks,
        Reason::Instrumented,
        Reason::Cursor,
        Reason::ReadOnly,
        Reason::Plan,
        Reason::Key,
        Reason::Expression,
        Reason::OnConflict,
        Reason::Partitioned,
        Reason::RowSecurity,
        Reason::Triggers,
        Reason::Constraints,
        Reason::Moves,
        Reason::Rights,
        Reason::Busy,
        Reason::Row,
    ];

    /// Its name in `mixedcc.bypass`.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Setting => "setting",
            Reason::Hooks => "hooks",
            Reason::Instrumented => "instrumented",
            Reason::Cursor => "cursor",
            Reason::ReadOnly => "read only",
            Reason::Plan => "plan",
            Reason::Key => "key",
            Reason::Expression => "expression",
            Reason::OnConflict => "on conflict",
            Reason::Partitioned => "partitioned",
            Reason::RowSecurity => "row security",
            Reason::Triggers => "triggers",
            Reason::Constraints => "constraints",
            Reason::Moves => "moves",
            Reason::Rights => "rights",
            Reason::Busy => "busy",
            Reason::Row => "row",
        }
    }
}

/// Whose executor hooks were installed before ours?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    Nobody,
    /// See `pg/citus.rs`.
    Citus,
    Unknown,
}

/// Of the process, written when the library is loaded.
static OTHERS: Local<Others> = Local::new(Others::Nobody);

/// Asks to be told of changes. `others`: the executor hooks that were installed before ours.
pub fn init(others: &[*const core::ffi::c_void]) {
    OTHERS.set(match others {
        [] => Others::Nobody,
        _ if citus::has_all(others) => Others::Citus,
        _ => Others::Unknown,
    });
    cache::init();
}

/// Would another library's hooks see the statement?
#[inline]
unsafe fn is_seen(q: *mut pg_sys::QueryDesc) -> bool {
    // SAFETY: `q` is the descriptor of `start`, with the statement's text.
    unsafe {
        match OTHERS.get() {
            Others::Nobody => false,
            Others::Citus => citus::counts((*q).sourceText),
            Others::Unknown => true,
        }
    }
}

/// Starts a statement, if the bypass runs it; else says why not.
///
/// # Safety
/// The contract of `ExecutorStart`; the snapshot has its CSN.
#[inline]
pub unsafe fn start(q: *mut pg_sys::QueryDesc, eflags: i32) -> Option<Reason> {
    // SAFETY: `q` is a valid descriptor with a CSN for its snapshot: contract of this function.
    unsafe {
        if !guc::ENABLE_BYPASS.get() {
            return Some(Reason::Setting);
        }
        // First: to look whether a plan can be taken checks its rights, and such a hook (pgaudit's)
        // would see that.
        if is_seen(q) || (*(&raw const pg_sys::ExecutorCheckPerms_hook)).is_some() {
            return Some(Reason::Hooks);
        }
        match cache::find(q) {
            Ok(p) => guarded_start(q, eflags, p),
            Err(why) => Some(why),
        }
    }
}

#[pg_guard]
#[allow(improper_ctypes_definitions)] // called from here only
unsafe extern "C-unwind" fn guarded_start(
    q: *mut pg_sys::QueryDesc,
    eflags: i32,
    p: *mut program::Program,
) -> Option<Reason> {
    // SAFETY: `q` is the descriptor of `start`, and `cache::find` has just given `p` for its plan.
    // The session holds the plan, and with it the program (INV-BYPASS-PROGRAM).
    unsafe {
        if let Some(why) = refuses(q, eflags, p) {
            cache::not_used(p);
            return Some(why);
        }
        // First: then whatever fails, the end of the transaction finds it.
        let x = exec::begin(q, eflags, p);
        triggers::begin(p, x, eflags);
        if is_started_by_portal() {
            // Others may run before it does: ALTER TABLE must find the table in use.
            exec::pin(p, x);
        }
        None
    }
}

/// What keeps a statement whose plan has a program from running it this time.
unsafe fn refuses(q: *mut pg_sys::QueryDesc, eflags: i32, p: *mut program::Program) -> Option<Reason> {
    // SAFETY: `q` is the descriptor of `start`; its plan holds the program `p`
    // (INV-BYPASS-PROGRAM). The settings are plain reads.
    unsafe {
        if (*q).instrument_options != 0 {
            return Some(Reason::Instrumented);
        }
        if eflags & !(pg_sys::EXEC_FLAG_SKIP_TRIGGERS as i32) != 0 {
            return Some(Reason::Cursor);
        }
        if (*p).op == CmdType::CMD_SELECT && is_cursor() {
            return Some(Reason::Cursor);
        }
        if ((*p).op != CmdType::CMD_SELECT || (*p).locks) && (pg_sys::XactReadOnly || pg::raw::IsInParallelMode()) {
            return Some(Reason::ReadOnly);
        }
        None
    }
}

/// Does a portal start its query now? It is run later, by another message of the client.
unsafe fn is_started_by_portal() -> bool {
    // SAFETY: null or a valid portal. A portal is being started only while nothing else runs.
    unsafe {
        let p = pg_sys::ActivePortal;
        !p.is_null() && (*p).status == pg_sys::PortalStatus::PORTAL_DEFINED
    }
}

/// Is it a portal with a name? Others may refer to it (WHERE CURRENT OF). Those of EXECUTE have
/// names that no user sees.
unsafe fn is_cursor() -> bool {
    // SAFETY: the portal is there, and valid, if one starts its query.
    unsafe { is_started_by_portal() && (*pg_sys::ActivePortal).visible && *(*pg_sys::ActivePortal).name != 0 }
}

/// Finishes a statement, if the bypass has started it: nothing is left to do but triggers.
///
/// # Safety
/// The contract of `ExecutorFinish`. An ERROR jumps over this frame.
#[inline]
pub unsafe fn finish(q: *mut pg_sys::QueryDesc) -> bool {
    // SAFETY: `q` is a valid descriptor: contract of this function. A state that `of` finds was not
    // given back yet (INV-BYPASS-EXEC).
    unsafe {
        let Some(x) = exec::of(q) else { return false };
        triggers::finish(q, x);
        (*(*q).estate).es_finished = true;
        true
    }
}

/// Ends a statement, if the bypass has started it.
///
/// # Safety
/// The contract of `ExecutorEnd`.
#[inline]
pub unsafe fn end(q: *mut pg_sys::QueryDesc) -> bool {
    // SAFETY: `q` is a valid descriptor: contract of this function. A state that `of` finds was not
    // given back yet (INV-BYPASS-EXEC).
    unsafe {
        let Some(x) = exec::of(q) else { return false };
        exec::end(q, x);
        true
    }
}

/// Forgets what belonged to the transaction.
pub fn end_transaction() {
    exec::abort_subtransactions(0);
    cache::end_transaction();
}
