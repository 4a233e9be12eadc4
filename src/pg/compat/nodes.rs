//! Walks of trees, and names and estimates that the parser and the planner make.

use pgrx::pg_sys::{self, Node};

type Mutator = unsafe extern "C-unwind" fn(*mut Node, *mut core::ffi::c_void) -> *mut Node;
type Visitor = unsafe extern "C-unwind" fn(*mut pg_sys::PlanState, *mut core::ffi::c_void) -> bool;

mod raw {
    use super::*;
    extern "C-unwind" {
        // Without the guard of the bindings: an ERROR jumps over the caller's frame.
        #[cfg(feature = "pg15")]
        pub fn planstate_tree_walker(ps: *mut pg_sys::PlanState, f: Visitor, context: *mut core::ffi::c_void) -> bool;
        #[cfg(not(feature = "pg15"))]
        pub fn planstate_tree_walker_impl(
            ps: *mut pg_sys::PlanState,
            f: Visitor,
            context: *mut core::ffi::c_void,
        ) -> bool;
        #[cfg(not(feature = "pg18"))]
        pub fn lc_collate_is_c(collation: pg_sys::Oid) -> bool;
        #[cfg(feature = "pg18")]
        pub fn pg_newlocale_from_collation(collation: pg_sys::Oid) -> *const Locale;
    }

    /// The beginning of `pg_locale_struct` (pg_locale.h).
    #[cfg(feature = "pg18")]
    #[repr(C)]
    pub struct Locale {
        provider: core::ffi::c_char,
        deterministic: bool,
        pub collate_is_c: bool,
    }
}

/// Calls a visitor for each child of a plan's state, until one returns true. An ERROR jumps over
/// the caller's frame.
///
/// # Safety
/// A valid state; the visitor calls this function for its own children.
pub unsafe fn walk_children(ps: *mut pg_sys::PlanState, f: Visitor, context: *mut core::ffi::c_void) -> bool {
    // SAFETY: `ps` is valid, and `f` walks on by this function (contract of this function).
    #[cfg(feature = "pg15")]
    unsafe {
        raw::planstate_tree_walker(ps, f, context)
    }
    // SAFETY: `ps` is valid, and `f` walks on by this function (contract of this function).
    #[cfg(not(feature = "pg15"))]
    unsafe {
        raw::planstate_tree_walker_impl(ps, f, context)
    }
}

/// Is it a column of the row that a statement reads or writes? In RETURNING, since 18, it may be
/// one of OLD or NEW.
///
/// # Safety
/// A valid column.
pub unsafe fn is_of_row(v: *const pg_sys::Var) -> bool {
    #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
    {
        let _ = v;
        true
    }
    #[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17")))]
    // SAFETY: `v` is valid: contract of this function.
    unsafe {
        (*v).varreturningtype == pg_sys::VarReturningType::VAR_RETURNING_DEFAULT
    }
}

/// A copy of an expression whose parts `f` has made.
///
/// # Safety
/// A valid expression.
pub unsafe fn mutated(node: *mut Node, f: Mutator, context: *mut core::ffi::c_void) -> *mut Node {
    // SAFETY: `node` is a valid expression (contract of this function). PostgreSQL 15 declares the
    // function without its arguments, and calls it with these.
    #[cfg(feature = "pg15")]
    unsafe {
        let f = std::mem::transmute::<Mutator, unsafe extern "C-unwind" fn() -> *mut Node>(f);
        pg_sys::expression_tree_mutator(node, Some(f), context)
    }
    // SAFETY: `node` is a valid expression (contract of this function).
    #[cfg(not(feature = "pg15"))]
    unsafe {
        pg_sys::expression_tree_mutator_impl(node, Some(f), context)
    }
}

/// A relation's name from its text. An ERROR if it is none.
///
/// # Safety
/// A text that ends with a zero byte.
pub unsafe fn relation_name(text: *const core::ffi::c_char) -> *mut pg_sys::RangeVar {
    // SAFETY: `text` ends with a zero byte (contract of this function); the list of names is a new
    // one.
    unsafe {
        #[cfg(feature = "pg15")]
        let names = pg_sys::stringToQualifiedNameList(text);
        #[cfg(not(feature = "pg15"))]
        let names = pg_sys::stringToQualifiedNameList(text, std::ptr::null_mut());
        pg_sys::makeRangeVarFromNameList(names)
    }
}

/// How many elements the planner thinks that an array has.
///
/// # Safety
/// A valid expression of a query that is being planned.
pub unsafe fn array_length(root: *mut pg_sys::PlannerInfo, array: *mut Node) -> f64 {
    // SAFETY: `array` is an expression of a query that is being planned (contract of this
    // function).
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    unsafe {
        let _ = root;
        pg_sys::estimate_array_length(array) as f64
    }
    // SAFETY: `array` is an expression of the query that `root` plans (contract of this function).
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    unsafe {
        pg_sys::estimate_array_length(root, array)
    }
}

/// Does a collation order texts by their bytes? False for the collation of no type. An ERROR jumps
/// over the caller's frame.
///
/// # Safety
/// A collation that exists, or `InvalidOid`.
pub unsafe fn is_c_collation(collation: pg_sys::Oid) -> bool {
    // SAFETY: `collation` exists, or is `InvalidOid` (contract of this function): both are
    // answered.
    #[cfg(not(feature = "pg18"))]
    unsafe {
        raw::lc_collate_is_c(collation)
    }
    // SAFETY: `collation` exists where it is looked up (contract of this function); a locale is
    // valid to the session's end.
    #[cfg(feature = "pg18")]
    unsafe {
        collation != pg_sys::InvalidOid && (*raw::pg_newlocale_from_collation(collation)).collate_is_c
    }
}
