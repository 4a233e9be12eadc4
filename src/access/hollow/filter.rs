//! Do values meet the keys of an index scan? Callers of index scans do not ask again, so the answer
//! is exact. The rules are those of nbtree (`_bt_checkkeys`).

use crate::keys::bounds;
use pgrx::pg_sys::{self, Datum, ScanKeyData};

/// Do the values of an index's columns meet all keys? `value` gives that of a column, counted from
/// 0; `None` is NULL.
///
/// # Safety
/// The keys are those of a scan of the index, and `value` gives values of its columns.
pub unsafe fn meets(keys: &[ScanKeyData], value: impl Fn(usize) -> Option<Datum>) -> bool {
    // SAFETY: `keys` and `value` belong together (contract of this function).
    keys.iter().all(|k| unsafe { meets_one(k, &value) })
}

unsafe fn meets_one(k: &ScanKeyData, value: &impl Fn(usize) -> Option<Datum>) -> bool {
    let flags = k.sk_flags as u32;
    if flags & pg_sys::SK_ROW_HEADER != 0 {
        // SAFETY: `k` is the header of a row comparison: contract of `meets`.
        return unsafe { meets_row(k, value) };
    }
    let v = value(k.sk_attno as usize - 1);
    if flags & pg_sys::SK_SEARCHNULL != 0 {
        return v.is_none();
    }
    if flags & pg_sys::SK_SEARCHNOTNULL != 0 {
        return v.is_some();
    }
    // Operators of nbtree are strict.
    let Some(v) = v.filter(|_| flags & pg_sys::SK_ISNULL == 0) else { return false };
    // SAFETY: `v` is a value of the key's column, and the argument one of the type that the key's
    // function takes, or an array of these (skey.h); contract of `meets`.
    unsafe {
        if flags & pg_sys::SK_SEARCHARRAY != 0 {
            let mut any = false;
            bounds::each_element(k.sk_argument, |e| any |= holds(k, v, e));
            return any;
        }
        holds(k, v, k.sk_argument)
    }
}

/// Does the operator of a key hold?
unsafe fn holds(k: &ScanKeyData, v: Datum, argument: Datum) -> bool {
    // SAFETY: `v` and `argument` are of the types that the key's function takes: `meets_one`.
    unsafe { call(k, v, argument).value() as u8 != 0 }
}

unsafe fn call(k: &ScanKeyData, v: Datum, argument: Datum) -> Datum {
    let f = (&raw const k.sk_func).cast_mut();
    // SAFETY: `v` and `argument` are of the types that the key's function takes: contract of
    // `holds`. PostgreSQL's own scans call it through the same pointer.
    unsafe { pg_sys::FunctionCall2Coll(f, k.sk_collation, v, argument) }
}

/// `(a, b) < (x, y)`: the first member whose values differ decides, or the last one. The functions
/// of members compare; a NULL on the way makes the result NULL.
unsafe fn meets_row(header: &ScanKeyData, value: &impl Fn(usize) -> Option<Datum>) -> bool {
    let mut member = header.sk_argument.cast_mut_ptr::<ScanKeyData>().cast_const();
    loop {
        // SAFETY: SK_ROW_HEADER says that the argument is an array of keys, the last one marked
        // with SK_ROW_END (skey.h).
        let m = unsafe { &*member };
        let known = value(m.sk_attno as usize - 1).filter(|_| m.sk_flags as u32 & pg_sys::SK_ISNULL == 0);
        let Some(v) = known else { return false };
        // SAFETY: a member's function takes a value of its column and the argument (skey.h).
        let order = unsafe { call(m, v, m.sk_argument) }.value() as i32;
        if order != 0 || m.sk_flags as u32 & pg_sys::SK_ROW_END != 0 {
            return match m.sk_strategy as u32 {
                pg_sys::BTLessStrategyNumber => order < 0,
                pg_sys::BTLessEqualStrategyNumber => order <= 0,
                pg_sys::BTGreaterEqualStrategyNumber => order >= 0,
                pg_sys::BTGreaterStrategyNumber => order > 0,
                _ => false,
            };
        }
        // SAFETY: a member without SK_ROW_END has one after it (skey.h).
        member = unsafe { member.add(1) };
    }
}
