//! Do the arguments that an annotation names fit the partition key of its table, as it is now?

use super::Annotation;
use crate::admin::options::{self, Method};
use crate::pg::values;
use crate::pg::values::Conversion;
use pgrx::pg_sys::{self, Oid};

fn type_name(t: Oid) -> String {
    // SAFETY: catalog look-up: any OID is answered, by a C string.
    unsafe { crate::pg::text::read(pg_sys::format_type_be(t)) }
}

fn is_integer(t: Oid) -> bool {
    matches!(t, pg_sys::INT2OID | pg_sys::INT4OID | pg_sys::INT8OID)
}

/// Can values of a type say the partition of a key of another type (see `sql::locate_for`)? A
/// polymorphic argument may, depending on the call. Casts of users do not: the caller of the
/// function would run them.
fn can_be_key(argument: Oid, column: Oid, method: Method) -> bool {
    // SAFETY: catalog look-ups.
    unsafe {
        let (argument, column) = (pg_sys::getBaseType(argument), pg_sys::getBaseType(column));
        if argument == column
            || pg_sys::get_typtype(argument) == pg_sys::TYPTYPE_PSEUDO as core::ffi::c_char
            || is_integer(argument) && is_integer(column)
        {
            return true;
        }
        match values::conversion(argument, column) {
            Conversion::BuiltIn => return true,
            Conversion::Foreign => return false,
            Conversion::None => {}
        }
        let flags = pg_sys::TYPECACHE_HASH_OPFAMILY | pg_sys::TYPECACHE_BTREE_OPFAMILY;
        let cache = |t| &*pg_sys::lookup_type_cache(t, flags as i32);
        let (a, c) = (cache(argument), cache(column));
        let (a, c) = if method == Method::Hash { (a.hash_opf, c.hash_opf) } else { (a.btree_opf, c.btree_opf) };
        a != pg_sys::InvalidOid && a == c
    }
}

/// Why an annotation cannot say the partition: a message. `types`: of its arguments. A table
/// without a key yet takes any.
pub fn misfit(a: &Annotation, types: &[Oid], table: Oid) -> Option<String> {
    let key = options::partition_key(table)?;
    if key.columns.len() != types.len() {
        let columns: Vec<_> = key.columns.iter().map(|c| c.name.as_str()).collect();
        return Some(format!(
            "the partition key of {} has columns: {} ({}); arguments named: {}",
            a.table,
            columns.len(),
            columns.join(", "),
            types.len()
        ));
    }
    let wrong =
        a.arguments.iter().zip(types).zip(&key.columns).find(|((_, &t), c)| !can_be_key(t, c.typid, key.method));
    wrong.map(|((argument, &t), c)| {
        format!(
            "argument {argument} of type {} cannot be the partition key of {}: column \"{}\" has type {}",
            type_name(t),
            a.table,
            c.name,
            type_name(c.typid)
        )
    })
}
