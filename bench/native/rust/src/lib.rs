//! YCSB as one call, in Rust: the functions of `bench/native/ycsb.c`, on the table `item` of the
//! search path, with the same keys.
//!
//! It needs neither PostgreSQL's headers nor bindings: `pg` declares the few things of PostgreSQL
//! that are used, for version 15.
//!
//! Two rules make it sound (see the crate `mixedcc-native`). An ERROR jumps over frames: those that
//! make calls own nothing that would have to be dropped. A panic must not leave the library:
//! whatever may panic runs within [`pg::pure`], which makes no calls, and becomes an ERROR.

mod pg;

use mixedcc_native::{Column, Datum, Native, Oid, Table};
use pg::{function, pure, FunctionCall};
use std::ffi::c_void;
use std::ptr::null_mut;

const INT4: Oid = 23;

/// The table, once opened, and which one it is.
static mut ITEM: (*mut Table, Oid) = (null_mut(), 0);

/// The table `item`, with its column `value`.
fn item(native: &Native) -> *mut Table {
    let key = [INT4];
    let columns = [Column { name: c"value".as_ptr(), typid: INT4 }];
    let oid = pg::table_of(c"item");
    // SAFETY: a backend has one thread; arrays of these lengths. An error leaves no table that is
    // released.
    unsafe {
        if ITEM.1 != oid {
            let (old, _) = std::mem::replace(&mut *(&raw mut ITEM), (null_mut(), 0));
            if !old.is_null() {
                (native.release)(old);
            }
            let new = (native.open)(oid, 1, key.as_ptr(), 1, columns.as_ptr());
            ITEM = (new, oid);
        }
        ITEM.0
    }
}

/// Lehmer's generator: the next state, and the key that it gives.
fn next(state: i64, rows: i32) -> (i64, Datum) {
    let state = state * 48271 % 2_147_483_647;
    let key = (1 + state % i64::from(rows)) as i32;
    (state, Datum(key as usize))
}

/// `MixedccModify`. It is called with one value, an int4 that is NOT NULL in the table.
unsafe extern "C-unwind" fn add_one(_arg: *mut c_void, values: *mut Datum, _isnull: *mut bool) -> bool {
    // SAFETY: the interface's contract.
    let value = unsafe { &mut *values };
    let old = value.0 as i32;
    value.0 = pure(|| old.checked_add(1).expect("the value of an item is as large as it can be")) as usize;
    true
}

/// Each step reads a row and, if `updates`, updates another one: the sum of the values read.
fn run(seed: i64, rows: i32, steps: i32, updates: bool) -> i64 {
    let native = pg::native();
    let item = item(native);
    let (mut state, mut total) = (seed, 0i64);
    for _ in 0..steps {
        let key;
        (state, key) = pure(|| next(state, rows));
        let (mut value, mut null) = (Datum(0), false);
        // SAFETY: a key and a column of the types that the table was opened with.
        if unsafe { (native.get)(item, &key, &mut value, &mut null) } {
            total += i64::from(value.0 as i32);
        }
        if updates {
            let key;
            (state, key) = pure(|| next(state, rows));
            // SAFETY: as above.
            unsafe { (native.modify)(item, &key, add_one, null_mut()) };
        }
    }
    total
}

function!(pg_finfo_mixedcc_rust_read20, mixedcc_rust_read20, |call| {
    Datum(run(call.word(0) as i64, call.word(1) as i32, 20, false) as usize)
});

function!(pg_finfo_mixedcc_rust_read10_update10, mixedcc_rust_read10_update10, |call| {
    Datum(run(call.word(0) as i64, call.word(1) as i32, 10, true) as usize)
});

function!(pg_finfo_mixedcc_rust_version, mixedcc_rust_version, |call| {
    let mut other = *pg::native();
    other.major = call.word(0) as u16;
    other.minor = call.word(1) as u16;
    other.size = other.size.wrapping_add(call.word(2) as u32);
    let value = if other.major == 0 { std::ptr::null() } else { &raw const other };
    // SAFETY: null, or a whole struct whatever its size says.
    pg::accepted(unsafe { Native::accept(value) });
    Datum(1)
});
