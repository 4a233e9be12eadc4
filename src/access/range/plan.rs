//! What a plan of the custom scan says. `paths/customscan` makes such plans.
//!
//! `custom_exprs`: the expressions that the keys are made of, and the index conditions as they
//! were. `custom_private`: the OID of the PRIMARY KEY's index, the direction, and, if the
//! conditions are the whole key, the types of its values.

use pgrx::pg_sys::{self, CustomScan, List, Oid, Plan};

/// The name of the scan. Its address tells plans of ours from others.
pub static NAME: [u8; 12] = *b"MixedccScan\0";

/// An element of a list (list_nth_cell, without the bindings' guard).
///
/// # Safety
/// The list has it.
pub unsafe fn cell(list: *mut List, n: usize) -> *mut pg_sys::ListCell {
    // SAFETY: the list has element `n` (contract of this function).
    unsafe { (*list).elements.add(n) }
}

/// One of the lists of `custom_private`.
unsafe fn private(plan: *mut CustomScan, n: usize) -> *mut List {
    // SAFETY: `plan` is one of ours: `custom_private` has three lists, and `n` is below 3.
    unsafe { (*cell((*plan).custom_private, n)).ptr_value.cast() }
}

/// Is it a scan of ours?
///
/// # Safety
/// A custom scan.
pub unsafe fn is_ours(plan: *mut Plan) -> bool {
    // SAFETY: `plan` is a custom scan (contract of this function), which has methods
    // (extensible.h).
    unsafe { (*(*plan.cast::<CustomScan>()).methods).CustomName.cast::<u8>() == NAME.as_ptr() }
}

/// The index of the PRIMARY KEY that a plan scans.
///
/// # Safety
/// A plan of ours.
pub unsafe fn index_of(plan: *mut CustomScan) -> Oid {
    // SAFETY: `plan` is one of ours (contract of this function): the first list has the OID.
    unsafe { (*cell(private(plan, 0), 0)).oid_value }
}

/// Does a plan scan it backward?
///
/// # Safety
/// A plan of ours.
pub unsafe fn is_backward(plan: *mut CustomScan) -> bool {
    // SAFETY: `plan` is one of ours (contract of this function): the second list has the direction.
    unsafe { (*cell(private(plan, 1), 0)).int_value < 0 }
}

/// The types of the whole key's values; null: the plan scans a range.
///
/// # Safety
/// A plan of ours.
pub unsafe fn key_types(plan: *mut CustomScan) -> *mut List {
    // SAFETY: `plan` is one of ours (contract of this function): the third list is there, or null.
    unsafe { private(plan, 2) }
}

/// The expressions that the keys are made of.
///
/// # Safety
/// A plan of ours.
pub unsafe fn expressions(plan: *mut CustomScan) -> *mut List {
    // SAFETY: `plan` is one of ours (contract of this function): `custom_exprs` has two lists.
    unsafe { (*cell((*plan).custom_exprs, 0)).ptr_value.cast() }
}

/// The conditions on the key, on columns of the table.
///
/// # Safety
/// A plan of ours.
pub unsafe fn conditions(plan: *mut CustomScan) -> *mut List {
    // SAFETY: `plan` is one of ours (contract of this function): `custom_exprs` has two lists.
    unsafe { (*cell((*plan).custom_exprs, 1)).ptr_value.cast() }
}
