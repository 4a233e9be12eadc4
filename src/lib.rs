//! mixedcc: a table access method whose partitions are each run by the concurrency-control
//! protocol that fits its load. This crate is the thin side towards PostgreSQL; the engine is
//! the crate `mixedcc-engine`.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

mod access;
mod admin;
mod durable;
mod hooks;
mod keys;
mod paths;
mod pg;
mod state;

::pgrx::pg_module_magic!();

// The SQL objects, for `cargo pgrx install`; `make install` and the scripts join the same files.
extension_sql_file!("admin/sql/bootstrap.sql", name = "bootstrap", bootstrap);
extension_sql_file!("admin/sql/objects.sql", name = "objects", finalize);

/// Called when the library is loaded: by the postmaster, as a preloaded library, or not at all.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    // SAFETY: a plain read.
    if !unsafe { pg_sys::process_shared_preload_libraries_in_progress } {
        ErrorReport::new(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "mixedcc must be loaded via shared_preload_libraries",
            "_PG_init",
        )
        .set_hint("Add mixedcc to shared_preload_libraries in postgresql.conf and restart the server.")
        .report(PgLogLevel::ERROR);
    }
    pg::guc::init();
    pg::isolation::init();
    #[cfg(feature = "faults")]
    pg::faults::init();
    state::shmem::init();
    durable::init();
    admin::options::init();
    hooks::init();
    admin::coordinator::init();
    paths::native::init();
}
