//! Scans of a range of the primary key for the interface: an index scan as the executor's,
//! protections included.

use super::access::{Access, Running};
use super::interface::Visit;
use super::statement;
use crate::access::{indexscan, mixture};
use crate::pg::errors::complain;
use crate::pg::raw;
use pgrx::pg_sys::{self, Datum, ScanKeyData};
use pgrx::prelude::*;
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Most conditions: each column equals a value, or all but the last, which has two bounds.
const MAX: usize = pg_sys::INDEX_MAX_KEYS as usize + 1;

/// `MixedccRange`: rows whose key's first columns equal values, and whose next one is within
/// bounds.
#[repr(C)]
pub struct Range {
    n_equal: i32,
    equal: *const Datum,
    /// Null: none.
    lower: *const Datum,
    upper: *const Datum,
    lower_excluded: bool,
    upper_excluded: bool,
    descending: bool,
    /// 0: none.
    limit: u64,
}

/// A condition: the key's column (from 0), nbtree's strategy, the value.
pub type Condition = (usize, u32, Datum);

impl Range {
    /// The conditions, one by one.
    ///
    /// # Safety
    /// The header's contract.
    pub unsafe fn conditions(&self) -> impl Iterator<Item = Condition> + '_ {
        let n = self.n_equal as usize;
        // SAFETY: the range has `n_equal` values, and its bounds are null or readable (mixedcc.h:
        // scan); contract of this function.
        let value = |p: *const Datum| unsafe { *p };
        let equal = (0..n).map(move |i| (i, pg_sys::BTEqualStrategyNumber, value(self.equal.wrapping_add(i))));
        let lower = (!self.lower.is_null()).then(|| match self.lower_excluded {
            true => (n, pg_sys::BTGreaterStrategyNumber, value(self.lower)),
            false => (n, pg_sys::BTGreaterEqualStrategyNumber, value(self.lower)),
        });
        let upper = (!self.upper.is_null()).then(|| match self.upper_excluded {
            true => (n, pg_sys::BTLessStrategyNumber, value(self.upper)),
            false => (n, pg_sys::BTLessEqualStrategyNumber, value(self.upper)),
        });
        equal.chain(lower).chain(upper)
    }
    /// In the order of the key, or the opposite one?
    pub fn is_descending(&self) -> bool {
        self.descending
    }
    /// Is this the last row?
    pub fn ends_at(&self, n: u64) -> bool {
        n == self.limit
    }
    /// Most rows; 0: all.
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

/// Raises an error for a range that the key cannot have.
pub fn check(a: &Access, range: &Range) {
    let bounded = !range.lower.is_null() || !range.upper.is_null();
    if range.n_equal < 0 || range.n_equal as usize + usize::from(bounded) > a.key_len() {
        complain(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            &format!("values of the range: {}; columns of the primary key: {}", range.n_equal, a.key_len()),
            "A range has values for the first columns of the key, and bounds for the next one.",
        );
    }
}

/// Visits the rows of a range in the order of the key; how many there were.
///
/// # Safety
/// The header's contract; a call in progress, whose table a statement would do nothing but read. An
/// ERROR jumps over this frame, which leaves the scan to the resource owner and the memory context,
/// as the executor does.
pub unsafe fn scan(a: &Access, r: &Running, range: &Range, f: Visit, arg: *mut c_void) -> u64 {
    // SAFETY: `r` is a call in progress: contract of this function. `interface::scan` has checked
    // the range. `keys` has room for all conditions that `check` lets pass. INV-ENTRY: the relation
    // is pinned while `f` runs. INV-TYPED: values have the columns' types.
    unsafe {
        let rel = r.open.rel;
        mixture::check();
        statement::key(rel); // raises an error if there is none
        let index = raw::index_open(crate::pg::compat::primary_key_index(rel), pg_sys::AccessShareLock as i32);
        indexscan::wrap(rel, index);
        let mut keys = MaybeUninit::<[ScanKeyData; MAX]>::uninit();
        let first = keys.as_mut_ptr().cast::<ScanKeyData>();
        let mut n_keys = 0;
        for c in range.conditions() {
            scan_key(index, c, first.add(n_keys));
            n_keys += 1;
        }
        let n = a.columns.len();
        let values = raw::palloc((n * (size_of::<Datum>() + 1)).max(1)).cast::<Datum>();
        let nulls = values.add(n).cast::<bool>();
        let slot = pg_sys::table_slot_create(rel, std::ptr::null_mut());
        let scan = crate::pg::compat::begin_index_scan(rel, index, r.snapshot, n_keys as i32);
        raw::index_rescan(scan, first, n_keys as i32, std::ptr::null_mut(), 0);
        let direction = if range.descending {
            pg_sys::ScanDirection::BackwardScanDirection
        } else {
            pg_sys::ScanDirection::ForwardScanDirection
        };
        let mut rows = 0;
        while raw::index_getnext_slot(scan, direction, slot) {
            if pg_sys::InterruptPending != 0 {
                raw::ProcessInterrupts();
            }
            raw::slot_getsomeattrs_int(slot, (*(*rel).rd_att).natts);
            a.pick((*slot).tts_values, (*slot).tts_isnull, values, nulls);
            rows += 1;
            if !f(arg, values, nulls) || range.ends_at(rows) {
                break;
            }
        }
        raw::index_endscan(scan);
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        raw::index_close(index, pg_sys::NoLock as i32);
        raw::pfree(values.cast());
        rows
    }
}

unsafe fn scan_key(index: pg_sys::Relation, (column, strategy, value): Condition, out: *mut ScanKeyData) {
    // SAFETY: an open index, which has the column; the types of the key were compared with the
    // caller's (INV-TYPED).
    unsafe {
        let typid = *(*index).rd_opcintype.add(column);
        let op = pg_sys::get_opfamily_member(*(*index).rd_opfamily.add(column), typid, typid, strategy as i16);
        out.write(ScanKeyData::default());
        pg_sys::ScanKeyEntryInitialize(
            out,
            0,
            column as i16 + 1,
            strategy as u16,
            pg_sys::InvalidOid,
            *(*index).rd_indcollation.add(column),
            pg_sys::get_opcode(op),
            value,
        );
    }
}
