//! Expressions, projections and slots of the executor, without its nodes and without the bindings'
//! guard: an ERROR jumps over the caller's frame, which must own nothing.

use pgrx::pg_sys::{self, Datum, Oid};

/// Language of built-in functions (pg_language).
const INTERNAL: u32 = 12;

/// Evaluates an expression in the context's memory per tuple: its value, and whether it is NULL.
///
/// # Safety
/// A prepared expression, whose variables the context has. An ERROR jumps over this frame.
#[inline]
pub unsafe fn evaluate(e: *mut pg_sys::ExprState, c: *mut pg_sys::ExprContext) -> (Datum, bool) {
    // SAFETY: `e` is prepared, and `c` has its variables (contract of this function). The
    // evaluation may raise: nothing that needs a drop is alive in this frame.
    unsafe {
        let old = pg_sys::MemoryContextSwitchTo((*c).ecxt_per_tuple_memory);
        let mut null = false;
        let value = match (*e).evalfunc {
            Some(f) => f(e, c, &mut null),
            None => Datum::from(0),
        };
        pg_sys::MemoryContextSwitchTo(old);
        (value, null)
    }
}

/// Does a row pass a qualification (ExecQual)? Without one every row does.
///
/// # Safety
/// Null, or as for [`evaluate`].
#[inline]
pub unsafe fn passes(qual: *mut pg_sys::ExprState, c: *mut pg_sys::ExprContext) -> bool {
    if qual.is_null() {
        return true;
    }
    // SAFETY: `qual` is prepared, and `c` has its variables (contract of this function).
    let (value, null) = unsafe { evaluate(qual, c) };
    !null && value.value() != 0
}

/// Does a row fulfil a CHECK constraint (ExecCheck)? It does if the condition is NULL.
///
/// # Safety
/// As for [`evaluate`].
#[inline]
pub unsafe fn fulfils(check: *mut pg_sys::ExprState, c: *mut pg_sys::ExprContext) -> bool {
    // SAFETY: `check` is prepared, and `c` has its variables (contract of this function).
    let (value, null) = unsafe { evaluate(check, c) };
    null || value.value() != 0
}

/// Empties a slot (ExecClearTuple).
///
/// # Safety
/// A valid slot.
#[inline]
pub unsafe fn clear(slot: *mut pg_sys::TupleTableSlot) {
    // SAFETY: `slot` is valid (contract of this function), so its operations are.
    unsafe {
        if let Some(f) = (*(*slot).tts_ops).clear {
            f(slot);
        }
    }
}

/// The columns of an empty virtual slot have been filled in (ExecStoreVirtualTuple).
///
/// # Safety
/// A virtual slot whose arrays have all columns.
#[inline]
pub unsafe fn store_virtual(slot: *mut pg_sys::TupleTableSlot) {
    // SAFETY: `slot` is virtual, and its arrays have all columns (contract of this function).
    unsafe {
        (*slot).tts_flags &= !(pg_sys::TTS_FLAG_EMPTY as u16);
        (*slot).tts_nvalid = (*(*slot).tts_tupleDescriptor).natts as i16;
    }
}

/// Makes the row of a projection from the rows in its context (ExecProject).
///
/// # Safety
/// A projection that was prepared for a virtual slot, and as for [`evaluate`].
#[inline]
pub unsafe fn project(p: *mut pg_sys::ProjectionInfo) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: `p` was prepared for a virtual slot, and its context has the variables (contract of
    // this function). The evaluation fills the arrays of `slot` before it is stored.
    unsafe {
        let state = &raw mut (*p).pi_state;
        let slot = (*state).resultslot;
        clear(slot);
        evaluate(state, (*p).pi_exprContext);
        store_virtual(slot);
        slot
    }
}

/// `table_to_xml` and its like (pg_proc.dat): stable functions that run queries of views.
const RUN_QUERIES: std::ops::RangeInclusive<u32> = 2923..=2938;
/// `pg_input_is_valid` and `pg_input_error_info`, from version 16 on: they test a domain's CHECK.
const READ_DOMAINS: std::ops::RangeInclusive<u32> = 6210..=6211;

/// Is it a function that may do anything: one of a user's, or a volatile one? As
/// `check_functions_in_node` asks.
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn is_foreign(function: Oid, _context: *mut core::ffi::c_void) -> bool {
    // SAFETY: catalog look-up: any OID is answered, by a row or null. The row is released after its
    // last use.
    unsafe {
        let number = function.to_u32();
        let is_known = number < pg_sys::FirstUnpinnedObjectId;
        if !is_known || RUN_QUERIES.contains(&number) || READ_DOMAINS.contains(&number) {
            return true;
        }
        let row = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::PROCOID as i32, function.into());
        if row.is_null() {
            return true;
        }
        let f = &*pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_proc>();
        let foreign =
            f.prolang.to_u32() != INTERNAL || f.provolatile as u8 == pg_sys::PROVOLATILE_VOLATILE || f.proretset;
        pg_sys::ReleaseSysCache(row);
        foreign
    }
}
