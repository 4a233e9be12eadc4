//! EXPLAIN of the node.

use crate::access::range::plan;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::CStr;

/// The key and the conditions on it.
///
/// # Safety
/// ExplainCustomScan of extensible.h: `node` is a state of ours, and `es` is being written.
#[pg_guard]
pub unsafe extern "C-unwind" fn explain(
    node: *mut pg_sys::CustomScanState,
    ancestors: *mut pg_sys::List,
    es: *mut pg_sys::ExplainState,
) {
    // SAFETY: `node` is a state of ours, whose plan `plan::make` has made, and `es` is being
    // written (extensible.h).
    unsafe {
        let custom = (*node).ss.ps.plan.cast::<pg_sys::CustomScan>();
        let index = plan::index_of(custom);
        let name = pg_sys::get_rel_name(index);
        let name = if name.is_null() { index.to_u32().to_string() } else { crate::pg::text::read(name) };
        let way = if plan::is_backward(custom) { " backward" } else { "" };
        put(es, if is_declared(index) { c"Primary Key" } else { c"Unique Key" }, &format!("{name}{way}"));
        let quals = plan::conditions(custom);
        if quals.is_null() {
            return;
        }
        let condition = pg_sys::make_ands_explicit(quals);
        let context = pg_sys::set_deparse_context_plan((*es).deparse_cxt, custom.cast(), ancestors);
        let prefix = (*es).verbose || !(*es).rtable.is_null() && (*(*es).rtable).length > 1;
        let text = pg_sys::deparse_expression(condition.cast(), context, prefix, false);
        put(es, c"Index Cond", &crate::pg::text::read(text));
    }
}

/// Is an index that of a PRIMARY KEY?
unsafe fn is_declared(index: pg_sys::Oid) -> bool {
    // SAFETY: a catalog look-up: any OID is answered, by a row or null, which is released after its
    // last use.
    unsafe {
        let row = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::INDEXRELID as i32, index.into());
        if row.is_null() {
            return false;
        }
        let declared = (*pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_index>()).indisprimary;
        pg_sys::ReleaseSysCache(row);
        declared
    }
}

unsafe fn put(es: *mut pg_sys::ExplainState, label: &CStr, value: &str) {
    let value = crate::pg::text::write(value);
    // SAFETY: `explain` has an `es` that is being written; both strings are C strings that live
    // until the end.
    unsafe { pg_sys::ExplainPropertyText(label.as_ptr(), value.as_ptr(), es) };
}
