//! Which columns of its rows a statement looks at, and which an update has changed (INV-COLUMNS,
//! INV-LOOKED and INV-CHANGED of the engine).
//!
//! A scan hands its rows on through its target list. So what a statement looks at is in the
//! expressions of the scan's node. A node whose rows are written or locked has the row's TID in its
//! target list, and looks at all.
//!
//! Columns that move a row are keys: no update in place changes them. An index may be dropped while
//! scans run (DROP INDEX CONCURRENTLY), and updates of its columns leave rows in place from then
//! on. So a scan names these columns too.

use crate::access::tuple;
use crate::pg::compat::attribute;
use crate::pg::faults::{self, Fault};
use crate::state::rel::RelInfo;
use mixedcc_engine::range::{Columns, Looked};
use mixedcc_engine::record::Version;
use pgrx::pg_sys::{self, Datum};
use std::mem::MaybeUninit;

/// A table with more columns is taken to change in all of them.
const MOST: usize = 64;

/// The columns of table `rti`, which is that of `info`, in these lists of expressions of its plan,
/// the first of which is the target list.
///
/// # Safety
/// Lists of a finished plan, or null.
unsafe fn in_expressions(info: &RelInfo, rti: u32, lists: &[*mut pg_sys::List]) -> Looked {
    // SAFETY: the lists are of a finished plan, or null (contract of this function). The set is
    // freed once, after its last use.
    unsafe {
        let mut found = std::ptr::null_mut();
        let from = usize::from(faults::on(Fault::ListForgotten));
        let upto = if faults::on(Fault::ConditionsForgotten) { 1 } else { lists.len() };
        for list in &lists[from..upto] {
            pg_sys::pull_varattnos(list.cast(), rti, &mut found);
        }
        let mut looked = Looked::at_keys(Columns::NONE);
        let mut a = -1;
        loop {
            a = pg_sys::bms_next_member(found, a);
            if a < 0 {
                break;
            }
            // The whole row, and system columns, change with every version.
            match u32::try_from(a + pg_sys::FirstLowInvalidHeapAttributeNumber) {
                Ok(no) if no > 0 => {
                    looked.columns = looked.columns.and(Columns::of(no));
                    looked.keys &= info.moving.get(no as usize - 1).is_some_and(|m| *m);
                }
                _ if faults::on(Fault::WholeRowForgotten) => {}
                _ => looked = Looked::ALL,
            }
        }
        pg_sys::bms_free(found);
        looked
    }
}

/// The same, where these lists are all that a statement does with the rows.
///
/// # Safety
/// Lists of a finished plan, or null.
pub unsafe fn by_lists(info: &RelInfo, rti: u32, lists: &[*mut pg_sys::List]) -> Columns {
    // SAFETY: the contract of this function.
    let columns = unsafe { returned(info, rti, lists) };
    note(info, columns);
    columns
}

/// The columns of the table in these lists, of a statement that writes the row.
///
/// # Safety
/// As for [`by_lists`].
pub unsafe fn returned(info: &RelInfo, rti: u32, lists: &[*mut pg_sys::List]) -> Columns {
    // SAFETY: the contract of this function.
    unsafe { in_expressions(info, rti, lists) }.columns
}

/// Do these lists name no columns of the table but these, and neither the whole row nor system
/// columns?
///
/// # Safety
/// Lists of a finished plan, or null.
pub unsafe fn only(rti: u32, lists: &[*mut pg_sys::List], columns: &[i16]) -> bool {
    // SAFETY: the contract of this function. The set is freed once, after its last use.
    unsafe {
        let mut found = std::ptr::null_mut();
        for list in lists {
            pg_sys::pull_varattnos(list.cast(), rti, &mut found);
        }
        let mut a = -1;
        let rest = std::iter::from_fn(|| {
            a = pg_sys::bms_next_member(found, a);
            (a >= 0).then(|| a + pg_sys::FirstLowInvalidHeapAttributeNumber)
        });
        let all = { rest }.all(|no| columns.iter().any(|c| *c as i32 == no));
        pg_sys::bms_free(found);
        all
    }
}

/// The columns at which a custom scan of ours looks in a row that it looks up.
///
/// # Safety
/// A plan's node.
pub unsafe fn by_look_up(info: &RelInfo, node: *mut pg_sys::CustomScan) -> Columns {
    // SAFETY: the contract of this function.
    let columns = unsafe { by_custom_scan(info, node) }.columns;
    note(info, columns);
    columns
}

/// Updates of the table should say which columns they change, from now on.
fn note(info: &RelInfo, columns: Columns) {
    if columns != Columns::ALL {
        info.table.note_looked();
    }
}

/// What a node of an index scan of a table looks at.
///
/// # Safety
/// A plan's node.
pub unsafe fn by_index_scan(info: &RelInfo, node: *mut pg_sys::IndexScan) -> Looked {
    // SAFETY: `node` is of a finished plan (contract of this function).
    unsafe {
        let scan = &(*node).scan;
        let lists = [scan.plan.targetlist, scan.plan.qual, (*node).indexqualorig, (*node).indexorderbyorig];
        in_expressions(info, scan.scanrelid, &lists)
    }
}

/// The same for a scan whose rows come through bitmaps.
///
/// # Safety
/// A plan's node.
pub unsafe fn by_bitmap_scan(info: &RelInfo, node: *mut pg_sys::BitmapHeapScan) -> Looked {
    // SAFETY: `node` is of a finished plan (contract of this function).
    unsafe {
        let scan = &(*node).scan;
        in_expressions(info, scan.scanrelid, &[scan.plan.targetlist, scan.plan.qual, (*node).bitmapqualorig])
    }
}

/// The same for a scan of ours.
///
/// # Safety
/// A plan's node.
pub unsafe fn by_custom_scan(info: &RelInfo, node: *mut pg_sys::CustomScan) -> Looked {
    // SAFETY: `node` is of a finished plan (contract of this function).
    unsafe {
        let scan = &(*node).scan;
        in_expressions(info, scan.scanrelid, &[scan.plan.targetlist, scan.plan.qual, (*node).custom_exprs])
    }
}

/// The columns of these numbers, from 1.
pub fn of_numbers(numbers: impl Iterator<Item = u32>) -> Columns {
    numbers.fold(Columns::NONE, |all, no| all.and(Columns::of(no)))
}

/// The columns in which a version differs from the one that it replaces, by their bytes. One may be
/// among them whose value is the same, but compressed in one version only. Then readers of it may
/// fail that need not, as if it had changed (INV-PACKED).
///
/// # Safety
/// `rel` is open; both are versions with a row of its type, which stay reachable.
pub unsafe fn changed(rel: pg_sys::Relation, old: *const Version, new: *const Version) -> Columns {
    type Row = ([Datum; MOST], [bool; MOST]);
    // SAFETY: `rel` is open, and the versions are of its row type (contract of this function). The
    // arrays have room for `n` columns, which `deform` fills.
    unsafe {
        let desc = (*rel).rd_att;
        let n = (*desc).natts as usize;
        if n > MOST {
            return Columns::ALL;
        }
        let (mut before, mut after) = (MaybeUninit::<Row>::uninit(), MaybeUninit::<Row>::uninit());
        let (before, after) = (before.as_mut_ptr(), after.as_mut_ptr());
        tuple::deform(rel, old, (&raw mut (*before).0).cast(), (&raw mut (*before).1).cast());
        tuple::deform(rel, new, (&raw mut (*after).0).cast(), (&raw mut (*after).1).cast());
        let column = |row: *mut Row, i: usize| {
            let null = *(&raw mut (*row).1).cast::<bool>().add(i);
            (!null).then(|| *(&raw mut (*row).0).cast::<Datum>().add(i))
        };
        let same = |i: usize| match (column(before, i), column(after, i)) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                let att = attribute(desc, i);
                crate::pg::same(a, b, att.attbyval, att.attlen as i32)
            }
            _ => false,
        };
        (0..n).filter(|i| !same(*i)).fold(Columns::NONE, |all, i| all.and(Columns::of(i as u32 + 1)))
    }
}
