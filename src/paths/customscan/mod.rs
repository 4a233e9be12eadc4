//! `MixedccScan`: a custom scan of an index in memory, in place of an index scan of the key's
//! nbtree.
//!
//! Its paths are made of PostgreSQL's own index paths for that key (`path.rs`), so that clauses,
//! order, parameters and what may be evaluated early are decided by the planner; the node
//! (`exec.rs`) reads the engine's index.

mod exec;
mod explain;
mod path;
mod plan;

use crate::access::range::plan::NAME;
pub use exec::skips;
use pgrx::pg_sys;

/// A table of callbacks that never changes.
struct Methods<T>(T);
// SAFETY: all tables are statics of function pointers and a static name, and nothing writes to
// them.
unsafe impl<T> Sync for Methods<T> {}

static PATH: Methods<pg_sys::CustomPathMethods> = Methods(pg_sys::CustomPathMethods {
    CustomName: NAME.as_ptr().cast(),
    PlanCustomPath: Some(plan::make),
    ReparameterizeCustomPathByChild: Some(path::reparameterize),
});

static SCAN: Methods<pg_sys::CustomScanMethods> =
    Methods(pg_sys::CustomScanMethods { CustomName: NAME.as_ptr().cast(), CreateCustomScanState: Some(exec::create) });

static EXEC: Methods<pg_sys::CustomExecMethods> = Methods(pg_sys::CustomExecMethods {
    CustomName: NAME.as_ptr().cast(),
    BeginCustomScan: Some(exec::begin),
    ExecCustomScan: Some(exec::run),
    EndCustomScan: Some(exec::end),
    ReScanCustomScan: Some(exec::rescan),
    MarkPosCustomScan: None,
    RestrPosCustomScan: None,
    EstimateDSMCustomScan: None,
    InitializeDSMCustomScan: None,
    ReInitializeDSMCustomScan: None,
    InitializeWorkerCustomScan: None,
    ShutdownCustomScan: None,
    ExplainCustomScan: Some(explain::explain),
});

/// Installs the hook and registers the node.
pub fn init() {
    path::init();
    // SAFETY: `_PG_init` runs alone; PostgreSQL keeps the pointer, and `SCAN` is static.
    unsafe { pg_sys::RegisterCustomScanMethods(&SCAN.0) };
}

/// A list of nodes.
unsafe fn list(nodes: &[*mut pg_sys::List]) -> *mut pg_sys::List {
    // SAFETY: the caller has valid nodes or null; `lappend` makes a new list in the current
    // context.
    nodes.iter().fold(std::ptr::null_mut(), |l, n| unsafe { pg_sys::lappend(l, n.cast()) })
}

/// The nodes of a list.
unsafe fn nodes<T>(l: *mut pg_sys::List) -> Vec<*mut T> {
    // SAFETY: the caller has null or a list of valid nodes of the type `T`.
    unsafe { pgrx::PgList::<T>::from_pg(l) }.iter_ptr().collect()
}
