//! `MixedccScan`: a custom scan of the primary index, in place of an index scan of the PRIMARY
//! KEY's nbtree.
//!
//! Its paths are made of PostgreSQL's own index paths for that key (`path.rs`), so that clauses,
//! order, parameters and what may be evaluated early are decided by the planner; the node
//! (`exec.rs`) reads the engine's index.

mod exec;
mod explain;
mod path;
mod plan;

use pgrx::pg_sys;
use std::ffi::CStr;

pub use exec::{bare, State};

const NAME: &CStr = c"MixedccScan";

/// A table of callbacks that never changes.
struct Methods<T>(T);
// SAFETY: function pointers and a static name.
unsafe impl<T> Sync for Methods<T> {}

static PATH: Methods<pg_sys::CustomPathMethods> = Methods(pg_sys::CustomPathMethods {
    CustomName: NAME.as_ptr(),
    PlanCustomPath: Some(plan::make),
    ReparameterizeCustomPathByChild: Some(path::reparameterize),
});

static SCAN: Methods<pg_sys::CustomScanMethods> =
    Methods(pg_sys::CustomScanMethods { CustomName: NAME.as_ptr(), CreateCustomScanState: Some(exec::create) });

static EXEC: Methods<pg_sys::CustomExecMethods> = Methods(pg_sys::CustomExecMethods {
    CustomName: NAME.as_ptr(),
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
    // SAFETY: `_PG_init` runs alone; the methods are static.
    unsafe { pg_sys::RegisterCustomScanMethods(&SCAN.0) };
}

/// A list of nodes.
unsafe fn list(nodes: &[*mut pg_sys::List]) -> *mut pg_sys::List {
    // SAFETY: nodes, or null.
    nodes.iter().fold(std::ptr::null_mut(), |l, n| unsafe { pg_sys::lappend(l, n.cast()) })
}

/// The nodes of a list.
unsafe fn nodes<T>(l: *mut pg_sys::List) -> Vec<*mut T> {
    // SAFETY: a list of such nodes, or null.
    unsafe { pgrx::PgList::<T>::from_pg(l) }.iter_ptr().collect()
}

/// The conditions on the key of a scan of ours, on columns of the table; `None`: another node.
///
/// # Safety
/// A custom scan.
pub unsafe fn conditions(plan: *mut pg_sys::Plan) -> Option<*mut pg_sys::List> {
    // SAFETY: the caller's; made by plan.rs.
    unsafe {
        let c = plan.cast::<pg_sys::CustomScan>();
        ((*c).methods == &raw const SCAN.0).then(|| pg_sys::list_nth((*c).custom_exprs, 1).cast())
    }
}

/// The callbacks of the node's state.
pub fn methods() -> *const pg_sys::CustomExecMethods {
    &EXEC.0
}
