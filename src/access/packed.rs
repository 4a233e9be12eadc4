//! Large rows: their values are compressed when a version is made of them, by PostgreSQL's own
//! functions and by heap's rules (`heap_toast_insert_or_update`). But for one: nothing is moved out
//! of the row.
//!
//! **INV-PACKED**: Each value of a version lies in it, and may be compressed there. Equal bytes are
//! equal values, but equal values need not be equal bytes: one row has a value compressed that
//! another has not. So code that needs a value's bytes asks PostgreSQL for them (`detoast`). A
//! comparison of bytes ([`crate::pg::same`]) may find a difference where there is none, and its
//! callers must be right then.

use crate::access::tuple;
use crate::pg::compat::attribute;
use crate::pg::errors::complain;
use crate::pg::{self, Tid};
use mixedcc_engine::durable::entry::ROW_MAX;
use mixedcc_engine::record::Version;
use pgrx::pg_sys::{self, Datum};
use pgrx::prelude::*;
use std::mem::{offset_of, size_of};
use std::ptr::NonNull;

/// Rows with a longer payload are looked at: as heap, a quarter of a page's room for tuples.
pub const THRESHOLD: usize = {
    let head = offset_of!(pg_sys::PageHeaderData, pd_linp) + 4 * size_of::<pg_sys::ItemIdData>();
    ((pg_sys::BLCKSZ as usize - head.next_multiple_of(8)) / 4) & !7
};
/// Values of at most so many bytes are left as they are: as heap, which would put a pointer into
/// their place.
const LEAST: usize = 24;
/// The longest payload. PostgreSQL can copy such a row into a tuple of its own.
const MOST: usize = ROW_MAX - size_of::<pg_sys::HeapTupleData>();

/// A row that is about to be formed.
pub struct Row<'a> {
    /// Its type, without what the table says of its columns.
    pub desc: pg_sys::TupleDesc,
    /// Its columns. None lies elsewhere.
    pub values: &'a mut [Datum],
    /// Which are NULL.
    pub nulls: &'a [bool],
    /// The same columns as the caller has got them: a value that is another one in `values` is a
    /// copy, and is freed when a smaller one takes its place.
    pub given: &'a [Datum],
}

/// The descriptor that says how a table's columns are stored. That of a slot may come from a query
/// (CREATE TABLE AS), which does not know it.
///
/// # Safety
/// An open relation, and the valid descriptor of rows for it.
pub unsafe fn storage_of(rel: pg_sys::Relation, rows: pg_sys::TupleDesc) -> pg_sys::TupleDesc {
    // SAFETY: `rel` is open, and `rows` valid (contract of this function).
    unsafe {
        let own = (*rel).rd_att;
        if (*own).natts == (*rows).natts {
            own
        } else {
            rows
        }
    }
}

/// The bytes of a row's data. PostgreSQL may refuse to count more than it can copy: that ERROR
/// unwinds.
///
/// # Safety
/// The arrays have an entry for each column of the row type `desc`.
pub unsafe fn data_size(desc: pg_sys::TupleDesc, values: &mut [Datum], nulls: &[bool]) -> usize {
    let (values, nulls) = (values.as_mut_ptr(), nulls.as_ptr().cast_mut());
    // SAFETY: the arrays have an entry for each column (contract of this function), and are only
    // read. The closure owns nothing.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| pg::raw::heap_compute_data_size(desc, values, nulls)) }
}

/// Compresses values of a row of more than [`THRESHOLD`] bytes until it has no more than the table
/// wants (`toast_tuple_target`), or nothing is left to compress. `head`: bytes of its header.
/// `old`: the version that it will replace. Returns the bytes of its data. Too many are an ERROR,
/// which unwinds.
///
/// # Safety
/// An open relation of ours. The row is of its type, with an entry of each array for each column,
/// and `old` as for [`tuple::as_tuple`].
#[cold]
#[inline(never)]
pub unsafe fn pack(rel: pg_sys::Relation, row: Row, head: usize, old: Option<NonNull<Version>>) -> usize {
    // SAFETY: the row is of the type of `rel`, which is open (contract of this function): values of
    // length -1 that are not NULL are varlenas, and none of them lies elsewhere.
    unsafe {
        let columns = storage_of(rel, row.desc);
        let target = target(rel).saturating_sub(head);
        let mut row = row;
        let mut size = Size::of(&mut row);
        // A row of this size has only values that could not be compressed: they need no second try.
        let old = old.filter(|v| v.as_ref().len as usize > THRESHOLD.max(target + head));
        let old = old.map(|v| Old::of(rel, v));
        for of in [pg_sys::TYPSTORAGE_EXTENDED, pg_sys::TYPSTORAGE_MAIN] {
            if size.fits(&mut row, target) {
                break;
            }
            for i in by_size(columns, &row, of) {
                pgrx::check_for_interrupts!(); // one value alone may take seconds
                if old.as_ref().is_some_and(|old| old.has(i, row.values[i])) {
                    continue;
                }
                let Some(small) = compressed(row.values[i], attribute(columns, i)) else { continue };
                let large = std::mem::replace(&mut row.values[i], small);
                size.shrink(large, small);
                if large.value() != row.given[i].value() {
                    pg::raw::pfree(large.cast_mut_ptr());
                }
                if size.fits(&mut row, target) {
                    break;
                }
            }
        }
        let size = size.exact(&mut row);
        if head + size > MOST {
            complain(
                PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
                &format!("row is too big: size {}, maximum size {MOST}", head + size),
                "A row has 1 GB at most, together with its large values.",
            );
        }
        size
    }
}

/// The payload that a table wants at most.
unsafe fn target(rel: pg_sys::Relation) -> usize {
    // SAFETY: `rel` is an open table: contract of `pack`. Its options are null or as rel.h says.
    let options = unsafe { (*rel).rd_options.cast::<pg_sys::StdRdOptions>().as_ref() };
    options.map_or(THRESHOLD, |o| usize::try_from(o.toast_tuple_target).unwrap_or(THRESHOLD))
}

/// The bytes of a row's data. To count them takes a look at each column, so that is done only where
/// it decides: a table may have 1,600 columns.
struct Size {
    /// As it was counted.
    counted: usize,
    /// Does this count no more?
    is_old: bool,
    /// So many bytes the values have at least, without what lies between them.
    least: usize,
}

impl Size {
    /// # Safety
    /// A row as in [`pack`].
    unsafe fn of(row: &mut Row) -> Size {
        // SAFETY: the row is of its type (contract of this function).
        unsafe {
            let counted = data_size(row.desc, row.values, row.nulls);
            let is_one = |i: &usize| !row.nulls[*i] && attribute(row.desc, *i).attlen == -1;
            let least = (0..row.values.len()).filter(is_one).map(|i| least_of(row.values[i])).sum();
            Size { counted, is_old: false, least }
        }
    }

    /// A smaller value has taken the place of one.
    ///
    /// # Safety
    /// Both are varlenas, and `large` is one of the row's that were counted.
    unsafe fn shrink(&mut self, large: Datum, small: Datum) {
        // SAFETY: the contract of this function.
        self.least = unsafe { self.least - least_of(large) + least_of(small) };
        self.is_old = true;
    }

    /// # Safety
    /// The row, as it is now.
    unsafe fn fits(&mut self, row: &mut Row, target: usize) -> bool {
        // SAFETY: the contract of this function.
        self.least <= target && unsafe { self.exact(row) } <= target
    }

    /// # Safety
    /// The row, as it is now.
    unsafe fn exact(&mut self, row: &mut Row) -> usize {
        if std::mem::take(&mut self.is_old) {
            // SAFETY: the contract of this function.
            self.counted = unsafe { data_size(row.desc, row.values, row.nulls) };
        }
        self.counted
    }
}

/// The bytes of a varlena, if its header becomes a short one.
unsafe fn least_of(value: Datum) -> usize {
    // SAFETY: `value` is a varlena: contract of the callers.
    unsafe { pgrx::varsize_any(value.cast_mut_ptr()) }.saturating_sub(3)
}

/// The values that can be compressed, of columns with this storage, the largest first.
unsafe fn by_size(columns: pg_sys::TupleDesc, row: &Row, storage: u8) -> Vec<usize> {
    // SAFETY: the row is of this type: contract of `pack`. So a value of length -1 that is not NULL
    // is a varlena.
    unsafe {
        let is_one = |i: &usize| {
            let a = attribute(columns, *i);
            !row.nulls[*i]
                && a.attlen == -1
                && a.attstorage as u8 == storage
                && !pgrx::varatt_is_4b_c(row.values[*i].cast_mut_ptr())
        };
        let sizes = (0..row.values.len()).filter(is_one).map(|i| (pgrx::varsize_any(row.values[i].cast_mut_ptr()), i));
        let mut all: Vec<(usize, usize)> = sizes.filter(|(size, _)| *size > LEAST).collect();
        all.sort_by_key(|(size, i)| (std::cmp::Reverse(*size), *i));
        all.into_iter().map(|(_, i)| i).collect()
    }
}

/// The columns of a version that a row will replace.
struct Old {
    values: Vec<Datum>,
    nulls: Vec<bool>,
}

impl Old {
    /// # Safety
    /// As for [`pack`]. The version stays as long as the result.
    unsafe fn of(rel: pg_sys::Relation, version: NonNull<Version>) -> Old {
        // SAFETY: `rel` is open, and `version` reachable and of its type (contract of this
        // function). The arrays have an entry for each column.
        unsafe {
            let natts = (*(*rel).rd_att).natts as usize;
            let (mut values, mut nulls) = (vec![Datum::from(0); natts], vec![true; natts]);
            tuple::deform(rel, version.as_ptr(), values.as_mut_ptr(), nulls.as_mut_ptr());
            // Columns that were added later: their defaults were never tried.
            let row = tuple::as_tuple(version.as_ptr(), Tid::Invalid, pg_sys::InvalidOid);
            nulls.truncate(tuple::columns(&row) as usize);
            Old { values, nulls }
        }
    }

    /// Is this value stored in a column (from 0), byte for byte?
    ///
    /// # Safety
    /// A varlena that is not NULL, of that column.
    unsafe fn has(&self, at: usize, value: Datum) -> bool {
        if self.nulls.get(at).is_none_or(|null| *null) {
            return false;
        }
        let own = self.values[at];
        // SAFETY: the version has the value, and `value` is one of its type (contract of this
        // function).
        own.value() == value.value() || unsafe { pg::same(own, value, false, -1) }
    }
}

/// A smaller copy of a value, in the current memory context. `None`: there is none.
unsafe fn compressed(value: Datum, column: &pg_sys::FormData_pg_attribute) -> Option<Datum> {
    // SAFETY: `value` is a varlena that is neither compressed nor elsewhere: `by_size` has looked.
    // The closure owns nothing.
    let small =
        unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| raw::toast_compress_datum(value, column.attcompression)) };
    Some(small).filter(|d| d.value() != 0)
}

mod raw {
    use pgrx::pg_sys::Datum;
    extern "C-unwind" {
        // The bindings lack it. A null pointer: it is not worth it.
        pub fn toast_compress_datum(value: Datum, method: core::ffi::c_char) -> Datum;
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn the_threshold_is_that_of_heap() {
        assert!(pg_sys::BLCKSZ != 8192 || THRESHOLD == 2032);
    }
}
