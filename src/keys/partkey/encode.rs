//! The description of a key as bytes.

use super::{Column, PartKey, RangeKey, CMP_FLAGS, HASH_FLAGS, TAG_HASH, TAG_RANGE};
use crate::pg::errors::complain;
use crate::pg::owner::set_on_level;
use mixedcc_engine::partition::SPEC_MAX;
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::*;

impl PartKey {
    /// The spec of a hash key. Raises an error if a column cannot be hashed.
    ///
    /// # Safety
    /// The descriptor of an open relation.
    pub unsafe fn encode_hash(desc: pg_sys::TupleDesc, attnums: &[i16]) -> Vec<u8> {
        let mut out = vec![TAG_HASH, attnums.len() as u8];
        for &a in attnums {
            // SAFETY: `desc` is the descriptor of an open relation (contract of this function).
            let Some(c) = (unsafe { Column::of_any_type(desc, a, HASH_FLAGS) }) else {
                error!("partition key column {a} does not exist")
            };
            if c.int.is_none() && !c.has_function(HASH_FLAGS) {
                unfit(
                    c.typid,
                    "hashed",
                    "Choose another column with mixedcc.partition_by, or use mixedcc.partition_method = 'range'.",
                );
            }
            c.write(&mut out);
        }
        out
    }

    /// The spec of a range key, from bounds as text. Raises an error if the column cannot be
    /// ordered or the bounds are not increasing.
    ///
    /// # Safety
    /// The descriptor of an open relation.
    pub unsafe fn encode_range(desc: pg_sys::TupleDesc, attnum: i16, bounds: &[String]) -> Vec<u8> {
        // SAFETY: `desc` is the descriptor of an open relation (contract of this function).
        let Some(c) = (unsafe { Column::of_any_type(desc, attnum, CMP_FLAGS) }) else {
            error!("partition key column {attnum} does not exist")
        };
        if !c.has_function(CMP_FLAGS) {
            unfit(
                c.typid,
                "ordered",
                "Choose another column with mixedcc.partition_by, or use mixedcc.partition_method = 'hash'.",
            );
        }
        let mut out = vec![TAG_RANGE, 1];
        c.write(&mut out);
        out.extend((bounds.len() as u16).to_le_bytes());
        let values: Vec<Datum> = input(c.typid, bounds);
        for pair in values.windows(2) {
            // SAFETY: `pair` holds values of the column's type, made by its input function. The
            // type has the function: checked above.
            let order =
                unsafe { pg_sys::FunctionCall2Coll(&mut (*c.cache).cmp_proc_finfo, c.collation, pair[0], pair[1]) };
            if order.value() as i32 >= 0 {
                complain(
                    PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                    "mixedcc.bounds must be in increasing order",
                    "Each bound starts a partition: rows below the first bound are in partition 0.",
                );
            }
        }
        for v in values {
            // SAFETY: `v` is a value of the column's type, made by its input function.
            unsafe { write_value(&c, v, &mut out) };
        }
        if out.len() > SPEC_MAX {
            complain(
                PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
                &format!("mixedcc.bounds take {} bytes, more than {SPEC_MAX}", out.len()),
                "Use fewer or shorter bounds.",
            );
        }
        out
    }
}

fn unfit(typid: Oid, what: &str, hint: &str) -> ! {
    // SAFETY: a catalog look-up: any OID is answered, by a C string.
    let name = unsafe { crate::pg::text::read(pg_sys::format_type_be(typid)) };
    if !super::is_fixed(typid) {
        complain(
            PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
            &format!("a partition key of type {name} is not supported"),
            "The attributes of a composite type may change. Choose another column with mixedcc.partition_by.",
        )
    }
    complain(
        PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
        &format!("a partition key of type {name} cannot be {what}"),
        hint,
    )
}

/// Values of a type from text, read the same way in every session. This may run code of the table's
/// owner: see `pg/owner.rs`.
fn input(typid: Oid, texts: &[String]) -> Vec<Datum> {
    // SAFETY: names, values and texts are C strings. The settings go back at the end, or in an
    // abort if an ERROR unwinds.
    unsafe {
        let nest = pg_sys::NewGUCNestLevel();
        for (name, value) in [
            (c"datestyle", c"ISO, MDY"),
            (c"intervalstyle", c"postgres"),
            (c"timezone", c"UTC"),
            (c"array_nulls", c"on"),
        ] {
            set_on_level(name, value);
        }
        let (mut function, mut param) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
        pg_sys::getTypeInputInfo(typid, &mut function, &mut param);
        let mut out = Vec::with_capacity(texts.len());
        for t in texts {
            let text = pg_sys::pstrdup(crate::pg::text::write(t).as_ptr());
            out.push(pg_sys::OidInputFunctionCall(function, text, param, -1));
        }
        pg_sys::AtEOXact_GUC(true, nest);
        out
    }
}

/// Appends a value.
///
/// # Safety
/// A value of the column's type.
unsafe fn write_value(c: &Column, d: Datum, out: &mut Vec<u8>) {
    // SAFETY: `d` is a value of the column's type (contract of this function). Its length is as the
    // type says; entries of the type cache are never freed.
    unsafe {
        let (len, byval) = ((*c.cache).typlen, (*c.cache).typbyval);
        if byval {
            out.extend(&d.value().to_le_bytes()[..len as usize]);
            return;
        }
        let (p, size) = match len {
            -1 => {
                let v = pg_sys::pg_detoast_datum(d.cast_mut_ptr());
                (v.cast::<u8>().cast_const(), pgrx::varsize_any(v))
            }
            -2 => (
                d.cast_mut_ptr::<u8>().cast_const(),
                std::ffi::CStr::from_ptr(d.cast_mut_ptr()).to_bytes_with_nul().len(),
            ),
            n => (d.cast_mut_ptr::<u8>().cast_const(), n as usize),
        };
        out.extend((size.min(u16::MAX as usize) as u16).to_le_bytes());
        out.extend(std::slice::from_raw_parts(p, size));
    }
}

/// Reads what `write_value` wrote.
pub(super) fn read_bounds(column: Column, spec: &[u8], n: u16) -> RangeKey {
    // SAFETY: entries of the type cache are never freed.
    let (len, byval) = unsafe { ((*column.cache).typlen, (*column.cache).typbyval) };
    let mut store = Vec::new();
    let mut bounds = Vec::with_capacity(n as usize - 1);
    let mut at = 2;
    for _ in 1..n {
        if byval {
            let len = len as usize;
            let mut word = [0u8; 8];
            word[..len].copy_from_slice(&spec[at..at + len]);
            let v = i64::from_le_bytes(word);
            let shift = 64 - 8 * len as u32;
            bounds.push(Datum::from(((v << shift) >> shift) as usize));
            at += len;
            continue;
        }
        let size = u16::from_le_bytes([spec[at], spec[at + 1]]) as usize;
        let mut words = vec![0u64; size.div_ceil(8)].into_boxed_slice();
        // SAFETY: `words` has room for `size` bytes, and any bytes are valid words.
        unsafe { std::ptr::copy_nonoverlapping(spec[at + 2..at + 2 + size].as_ptr(), words.as_mut_ptr().cast(), size) };
        bounds.push(Datum::from(words.as_ptr()));
        store.push(words);
        at += 2 + size;
    }
    let ints = column.int.map_or(Vec::new(), |i| bounds.iter().map(|&b| i.value(b)).collect());
    RangeKey { column, bounds, ints, _store: store }
}
