//! Workers that load permanent tables after the server has started. A session that needs a table
//! earlier loads it itself.
//!
//! The coordinator starts the launcher, once in the life of shared memory. It starts up to
//! `mixedcc.load_workers` loaders at a time, database after database. Each loader takes the largest
//! table that no process loads.

use crate::pg::compat::Wait;
use crate::pg::{compat, guc, worker};
use crate::state::above::TooLarge;
use crate::state::worker::doze;
use crate::state::{loads, rel};
use mixedcc_engine::primitive::Ordering;
use pgrx::pg_sys::panic::{CaughtError, ErrorReport};
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::panic::AssertUnwindSafe;

const LAUNCHER: &CStr = c"mixedcc load launcher";
const LOADER: &CStr = c"mixedcc loader";
/// Between two looks at the loaders, ms.
const LOOK_MS: i64 = 20;
/// So many looks the launcher waits for a free worker process.
const PATIENCE: u32 = 3000;
/// Permanent tables of this database, the largest first, by the first segment of their files.
const TABLES: &str = "SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_am a ON a.oid = c.relam \
    WHERE a.amname = 'mixedcc' AND c.relpersistence = 'p' AND c.relkind IN ('r', 'm') \
    ORDER BY (pg_catalog.pg_stat_file(pg_catalog.pg_relation_filepath(c.oid), true)).size DESC NULLS LAST, c.relpages DESC";

/// Starts the launcher.
pub fn launch() {
    if guc::LOAD_WORKERS.get() > 0 && worker::launch(LAUNCHER, c"mixedcc_launcher_main", 0).is_none() {
        warn_of_no_worker();
    }
}

fn warn_of_no_worker() {
    ereport!(
        PgLogLevel::LOG,
        PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
        "mixedcc could not start a worker that loads tables",
        "Tables are loaded at their first use. Increase max_worker_processes."
    );
}

/// The launcher.
#[pg_guard]
#[no_mangle]
pub extern "C-unwind" fn mixedcc_launcher_main(_arg: pg_sys::Datum) {
    worker::begin_in(None);
    let at_a_time = guc::LOAD_WORKERS.get().max(1) as usize;
    let databases = in_transaction(databases);
    let mut queue: VecDeque<u32> = databases.iter().flat_map(|db| std::iter::repeat_n(*db, at_a_time)).collect();
    let (mut running, mut looks) = (Vec::<worker::Started>::new(), 0);
    while !(queue.is_empty() && running.is_empty()) {
        running.retain(|w| !w.has_ended());
        while running.len() < at_a_time {
            let Some(db) = queue.front() else { break };
            let Some(started) = worker::launch(LOADER, c"mixedcc_loader_main", *db) else { break };
            running.push(started);
            queue.pop_front();
            looks = 0;
        }
        looks += u32::from(running.is_empty());
        if looks > PATIENCE {
            warn_of_no_worker();
            return;
        }
        doze(LOOK_MS, Wait::LoaderMain.event());
    }
}

/// Runs `f` in a transaction of its own.
fn in_transaction<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: the process is connected, and runs no transaction. An ERROR ends the process, or is
    // caught by `guarded`, which aborts the transaction.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let r = f();
        pg_sys::PopActiveSnapshot();
        pg_sys::CommitTransactionCommand();
        r
    }
}

/// The databases to which a worker can connect.
fn databases() -> Vec<u32> {
    let mut found = Vec::new();
    // SAFETY: in a transaction. The rows of pg_database have the type that they are cast to.
    unsafe {
        let rel = pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as i32);
        let none = std::ptr::null_mut();
        let scan = pg_sys::systable_beginscan(rel, pg_sys::InvalidOid, false, none, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let form = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_database>();
            if (*form).datallowconn {
                found.push((*form).oid.to_u32());
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
    }
    found
}

#[pg_guard]
unsafe extern "C-unwind" fn leave(_code: i32, _arg: pg_sys::Datum) {
    loads::mine().loader_in.store(0, Ordering::SeqCst);
}

/// A loader of the database `arg`.
#[pg_guard]
#[no_mangle]
pub extern "C-unwind" fn mixedcc_loader_main(arg: pg_sys::Datum) {
    let database = arg.value() as u32;
    // SAFETY: the callback is a function of this library, which is never unloaded.
    unsafe { pg_sys::before_shmem_exit(Some(leave), pg_sys::Datum::from(0)) };
    // Before it connects: a command that wants the database alone has to end it from then on.
    loads::mine().loader_in.store(database, Ordering::SeqCst);
    worker::begin_in(Some(Oid::from(database)));
    for table in in_transaction(tables) {
        guarded(table);
    }
}

fn tables() -> Vec<Oid> {
    let rows = Spi::connect(|client| {
        let rows = client.select(TABLES, None, &[])?;
        rows.map(|row| row.get::<Oid>(1)).collect::<Result<Vec<_>, _>>()
    });
    rows.unwrap_or_default().into_iter().flatten().collect()
}

/// Loads a table. An error is logged, and the loader goes on with the next one.
fn guarded(table: Oid) {
    PgTryBuilder::new(AssertUnwindSafe(|| in_transaction(|| load(table))))
        .catch_others(|error| match error {
            CaughtError::RustPanic { .. } => error.rethrow(),
            CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) => {
                ereport!(
                    PgLogLevel::LOG,
                    report.sql_error_code(),
                    format!("mixedcc could not load a table: {}", report.message()),
                    "Its next use will try again."
                );
                // SAFETY: the transaction of `in_transaction` has failed.
                unsafe { pg_sys::AbortCurrentTransaction() };
            }
        })
        .execute()
}

/// Loads a table, if its lock is free.
fn load(table: Oid) {
    // SAFETY: any OID may be locked; the lock ends with the transaction. An ERROR ends that.
    unsafe {
        if !pg_sys::ConditionalLockRelationOid(table, pg_sys::AccessShareLock as i32) {
            return;
        }
        let r = pg_sys::try_relation_open(table, pg_sys::NoLock as i32);
        if r.is_null() {
            return;
        }
        if rel::is_ours(r) && compat::is_permanent(r) {
            if let Err(x) = rel::load_if_free(r) {
                say_too_large(r, x);
            }
        }
        pg_sys::relation_close(r, pg_sys::NoLock as i32);
    }
}

/// # Safety
/// An open relation.
unsafe fn say_too_large(r: pg_sys::Relation, x: TooLarge) {
    // SAFETY: `r` is open (contract of this function); its name is a C string.
    let name = unsafe { crate::pg::text::read((*(*r).rd_rel).relname.data.as_ptr()) };
    let need = x.need.div_ceil(1 << 20);
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
        format!("mixedcc table \"{name}\" was not loaded: it needs about {need} MB of memory"),
        "mixedcc",
    )
    .set_hint("Its rows are safe in its files. Increase mixedcc.memory and restart the server.")
    .report(PgLogLevel::LOG);
}
