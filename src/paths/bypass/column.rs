//! Columns of rows, read straight from the version, without a slot that would take the row apart.

use crate::access::tuple;
use crate::pg::compat::attribute;
use crate::pg::Tid;
use mixedcc_engine::record::Version;
use pgrx::pg_sys::{self, Datum, Node, NodeTag};

/// A column of a table.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Column {
    /// Its number, from 0.
    at: i32,
    /// Where it is in the data of each row that has no NULL; -1: that differs from row to row.
    offset: i32,
    len: i16,
    by_value: bool,
}

impl Column {
    /// The column that an expression is, if it is one of the table's own and nothing else.
    ///
    /// # Safety
    /// A valid expression over rows of this type.
    pub unsafe fn of(e: *mut Node, desc: pg_sys::TupleDesc) -> Option<Column> {
        // SAFETY: `e` is a valid node and `desc` the type of its rows: contract of this function.
        // The tag says that it is a `Var` before more of it is read.
        unsafe {
            let v = e.cast::<pg_sys::Var>();
            if (*v).xpr.type_ != NodeTag::T_Var || (*v).varattno < 1 || (*v).varattno as i32 > (*desc).natts {
                return None;
            }
            let at = (*v).varattno as usize - 1;
            let a = attribute(desc, at);
            Some(Column { at: at as i32, offset: offset(desc, at), len: a.attlen, by_value: a.attbyval })
        }
    }

    /// Its value in a row. A value that is not passed by value stays in the version.
    ///
    /// # Safety
    /// A version that is reachable, with a row of the table; `desc` describes it.
    #[inline]
    pub unsafe fn read(&self, v: *const Version, desc: pg_sys::TupleDesc, to: &mut pg_sys::NullableDatum) {
        // SAFETY: `v` is reachable and `desc` describes its row: contract of this function. Its
        // payload is complete (INV-VERSION) and has the columns' types (INV-LAYOUT). Without NULLs
        // the columns in front have their usual lengths.
        unsafe {
            let row = &*tuple::header(v);
            let has = (row.t_infomask2 & pg_sys::HEAP_NATTS_MASK as u16) as i32 > self.at;
            if self.offset < 0 || !has || row.t_infomask & pg_sys::HEAP_HASNULL as u16 != 0 {
                return self.find(v, desc, to);
            }
            let at = std::ptr::from_ref(row).cast::<u8>().add(row.t_hoff as usize + self.offset as usize);
            to.isnull = false;
            to.value = match (self.by_value, self.len) {
                (false, _) => Datum::from(at as usize),
                (true, 1) => Datum::from(*at.cast::<i8>()),
                (true, 2) => Datum::from(*at.cast::<i16>()),
                (true, 4) => Datum::from(*at.cast::<i32>()),
                (true, _) => Datum::from(*at.cast::<i64>()),
            };
        }
    }

    /// The same, wherever it is.
    #[cold]
    #[inline(never)]
    unsafe fn find(&self, v: *const Version, desc: pg_sys::TupleDesc, to: &mut pg_sys::NullableDatum) {
        // SAFETY: `v` is a reachable version of the table and `desc` describes it (contract of
        // `read`, INV-LAYOUT). `of` has found the column in the descriptor.
        unsafe {
            let mut t = tuple::as_tuple(v, Tid::Record(0), pg_sys::InvalidOid);
            (to.value, to.isnull) = tuple::column(&mut t, desc, self.at as usize);
        }
    }
}

/// Where a column is in the data of a row without NULLs, if all in front of it have a fixed length;
/// else -1. (What has no fixed length itself may begin in front of its alignment.)
unsafe fn offset(desc: pg_sys::TupleDesc, at: usize) -> i32 {
    let mut offset = 0;
    for i in 0..=at {
        // SAFETY: `of` has compared the column's number with `natts`, and `i` is at most that
        // column.
        let a = unsafe { attribute(desc, i) };
        if a.attlen <= 0 {
            return -1;
        }
        let to = match a.attalign as u8 {
            pg_sys::TYPALIGN_CHAR => 1,
            pg_sys::TYPALIGN_SHORT => 2,
            pg_sys::TYPALIGN_INT => 4,
            _ => 8,
        };
        offset = (offset + to - 1) & !(to - 1);
        if i < at {
            offset += a.attlen as i32;
        }
    }
    offset
}
