//! Our part of an index scan: what it protects, and how far it has come.

use crate::access::visible::Why;
use crate::pg::raw;
use crate::state::rel::{self, RelInfo};
use mixedcc_engine::range::Looked;
use mixedcc_engine::record::Version;
use mixedcc_engine::txn::ScanId;
use pgrx::pg_sys;

/// Partitions of a look-up that needs no memory of its own.
pub const FEW: usize = 2;

/// How far a scan has come.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Seen {
    /// It went forward.
    pub forward: bool,
    /// It went backward.
    pub backward: bool,
    /// It reached an end.
    pub ended: bool,
    /// It went back to a mark.
    pub rewound: bool,
}

impl Seen {
    /// A step, which found an entry or the end.
    #[inline]
    pub fn step(&mut self, direction: pg_sys::ScanDirection::Type, found: bool) {
        self.forward |= direction >= 0;
        self.backward |= direction < 0;
        self.ended |= !found;
    }
}

/// Our part of an index scan.
#[repr(C)]
pub struct Fetch {
    /// PostgreSQL's part.
    pub base: pg_sys::IndexFetchTableData,
    /// The relation.
    pub info: *const RelInfo,
    /// The snapshot of the executor, when the scan runs with one of ours (see access/indexscan.rs).
    pub snapshot: pg_sys::Snapshot,
    /// Will the rows be written next?
    pub for_write: bool,
    /// Are its rows locked one by one, and the locked ones skipped (INV-SKIP)?
    pub skips: bool,
    /// Do its rows go without protection for that reason?
    pub offers: bool,
    /// The columns that the statement looks at in the rows (INV-COLUMNS of the engine).
    pub looked: Looked,
    /// Is it a look-up of one key that has found nothing yet?
    pub look: bool,
    /// A look-up in few partitions: where predicates on these would start, in `n_few` partitions
    /// from `first_partition` on. 0: it has an entry in access/protect.rs.
    pub few: [u64; FEW],
    /// See `few`.
    pub n_few: u32,
    /// See `few`.
    pub first_partition: u32,
    /// How far it has come.
    pub seen: Seen,
    /// The predicate that protects the rows of the scan.
    pub scan: ScanId,
    /// Number of our memory of the scan (access/protect.rs), plus 1.
    pub open: u32,
    /// Number of its walk in a hollow index (access/hollow/scan.rs), plus 1; 0: it has none.
    pub walk: u32,
    /// The last row that it returned.
    pub last: *const Version,
    /// The index access method's own callback (see access/indexscan.rs), once the scan has its
    /// keys.
    pub gettuple: pg_sys::amgettuple_function,
}

impl Fetch {
    /// Why it reads a row.
    #[inline]
    pub fn why(&self) -> Why {
        Why { for_write: self.for_write, scan: self.scan, looked: self.looked.columns, key: false }
    }

    /// The part of a scan that has not started, a chunk of its own in the current memory context.
    ///
    /// # Safety
    /// An open relation of ours. An ERROR jumps over the caller's frame.
    pub unsafe fn new(rel: pg_sys::Relation) -> *mut Fetch {
        // SAFETY: `rel` is open and of ours (contract of this function). palloc0 gives as many
        // zeroed bytes, which are a `Fetch` that has not started and looks at nothing.
        unsafe {
            let info = rel::info(rel);
            let f = raw::palloc0(std::mem::size_of::<Fetch>()).cast::<Fetch>();
            ((*f).base.rel, (*f).info, (*f).looked) = (rel, info, Looked::ALL);
            f
        }
    }
}
