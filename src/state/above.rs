//! What this layer asks of the layers above it: functions that they give it when the library is
//! loaded. These are all calls against the order of the layers.

use mixedcc_engine::csn::Csn;
use mixedcc_engine::partition::PartitionMap;
use mixedcc_engine::record::Version;
use mixedcc_engine::Table;
use pgrx::pg_sys;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// Functions of the layers above.
pub struct Above {
    /// The access method's table of callbacks (tableam.h): a relation of ours is known by it.
    pub routine: &'static pg_sys::TableAmRoutine,
    /// Does a row meet a condition of this transaction? The row stays reachable.
    pub meets: unsafe fn(condition: u32, row: *const Version) -> bool,
    /// The last key that a scan of this transaction has read, and whether it reads upwards.
    pub reached: fn(scan: u32) -> Option<(Vec<u8>, bool)>,
    /// May the statement that runs sleep for locks of this table?
    pub may_sleep: fn(table: u64) -> bool,
    /// The map that the options of a relation of ours ask for.
    pub initial_map: unsafe fn(pg_sys::Relation) -> NonNull<PartitionMap>,
    /// The specs of the indexes in memory that a relation of ours asks for.
    pub index_specs: unsafe fn(pg_sys::Relation) -> Vec<Vec<u8>>,
    /// The same, if these are its hollow indexes.
    pub committed_specs: unsafe fn(pg_sys::Relation, &[pg_sys::Oid]) -> Vec<Vec<u8>>,
    /// Loads the rows of a permanent relation of ours, and registers its table. `indexed`: it has
    /// indexes, or had some when this transaction began. Raises an error if its files are damaged.
    pub load: unsafe fn(pg_sys::Relation, indexed: bool) -> Result<&'static Table, TooLarge>,
    /// Brings the table of a relation of a standby to what is stable, which is at or above a CSN,
    /// under the lock of INV-ATTACH.
    pub catch_up: unsafe fn(pg_sys::Relation, &'static Table, Csn),
}

/// A table does not fit into memory now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// The bytes that it needs, about.
    pub need: u64,
}

// SAFETY: functions, and a table of callbacks that never changes.
unsafe impl Sync for Above {}
// SAFETY: functions, and a table of callbacks that never changes.
unsafe impl Send for Above {}

static ABOVE: OnceLock<Above> = OnceLock::new();

/// Called once, when the library is loaded.
pub fn init(functions: Above) {
    let _ = ABOVE.set(functions);
}

/// The functions.
#[inline]
pub fn above() -> &'static Above {
    ABOVE.get().expect("the library was loaded")
}
