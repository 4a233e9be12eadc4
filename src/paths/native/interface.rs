//! The interface for other extensions: a table of functions behind the rendezvous variable
//! `mixedcc_native`, as `mixedcc.h` declares it. The header says what callers may rely on.
//!
//! Each function is one statement of the transaction (see the module's `mod.rs`): directly, or by
//! the statement itself. Callers' functions are called without a guard where this frame owns
//! nothing: their ERROR jumps over it.

use super::access::{Access, Running};
use super::row::{self, Change, Columns};
use super::table::{Access as Lock, Table};
use super::{by_sql, moment::Room, quick, range, statement, Statement};
use crate::access::{mixture, write};
use crate::pg::{self, compat};
use crate::state::xact;
use mixedcc_native::{MAJOR, MINOR};
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::*;
use std::ffi::{c_char, c_void, CStr};
use std::mem::offset_of;

/// `MixedccColumn`.
#[repr(C)]
pub struct Column {
    name: *const c_char,
    typid: Oid,
}

/// `MixedccModify`: changes values in place; false: the row stays as it is.
pub type Modify = unsafe extern "C-unwind" fn(*mut c_void, *mut Datum, *mut bool) -> bool;
/// `MixedccVisit`: false ends the scan.
pub type Visit = unsafe extern "C-unwind" fn(*mut c_void, *const Datum, *const bool) -> bool;

/// `MixedccNative`.
#[repr(C)]
struct Native {
    major: u16,
    minor: u16,
    size: u32,
    open: unsafe extern "C-unwind" fn(Oid, i32, *const Oid, i32, *const Column) -> *mut Access,
    release: unsafe extern "C-unwind" fn(*mut Access),
    get: unsafe extern "C-unwind" fn(*mut Access, *const Datum, *mut Datum, *mut bool) -> bool,
    update: unsafe extern "C-unwind" fn(*mut Access, *const Datum, *const Datum, *const bool) -> bool,
    modify: unsafe extern "C-unwind" fn(*mut Access, *const Datum, Modify, *mut c_void) -> bool,
    insert: unsafe extern "C-unwind" fn(*mut Access, *const Datum, *const bool),
    remove: unsafe extern "C-unwind" fn(*mut Access, *const Datum) -> bool,
    scan: unsafe extern "C-unwind" fn(*mut Access, *const range::Range, Visit, *mut c_void) -> u64,
}

static NATIVE: Native = Native {
    major: MAJOR,
    minor: MINOR,
    size: size_of::<Native>() as u32,
    open,
    release,
    get,
    update,
    modify,
    insert,
    remove,
    scan,
};

/// What extensions in Rust take for the interface is laid out in the same way.
const _: () = {
    use mixedcc_native as rust;
    assert!(size_of::<Native>() == size_of::<rust::Native>() && size_of::<Datum>() == size_of::<rust::Datum>());
    assert!(offset_of!(Native, size) == offset_of!(rust::Native, size));
    assert!(offset_of!(Native, open) == offset_of!(rust::Native, open));
    assert!(offset_of!(Native, release) == offset_of!(rust::Native, release));
    assert!(offset_of!(Native, get) == offset_of!(rust::Native, get));
    assert!(offset_of!(Native, update) == offset_of!(rust::Native, update));
    assert!(offset_of!(Native, modify) == offset_of!(rust::Native, modify));
    assert!(offset_of!(Native, insert) == offset_of!(rust::Native, insert));
    assert!(offset_of!(Native, remove) == offset_of!(rust::Native, remove));
    assert!(offset_of!(Native, scan) == offset_of!(rust::Native, scan));
    assert!(size_of::<Column>() == size_of::<rust::Column>() && size_of::<Oid>() == size_of::<rust::Oid>());
    assert!(size_of::<range::Range>() == size_of::<rust::Range>());
};

/// Shows the interface.
pub fn init() {
    // SAFETY: `_PG_init` runs alone; the variable is ours, and `NATIVE` lives as long as the
    // backend.
    unsafe {
        let variable = pg_sys::find_rendezvous_variable(c"mixedcc_native".as_ptr());
        *variable = (&raw const NATIVE).cast_mut().cast();
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn open(
    table: Oid,
    n_keys: i32,
    key_types: *const Oid,
    n_columns: i32,
    columns: *const Column,
) -> *mut Access {
    // SAFETY: the arrays have these lengths, and names end with a zero byte (mixedcc.h: open).
    // Functions whose ERROR jumps over this frame come first, while it owns nothing.
    unsafe {
        let table = Table::of(table);
        let mut room = Room::uninit();
        let running = Running::begin(table, Lock::Read, &mut room);
        let key_types = (0..n_keys as usize).map(|i| *key_types.add(i)).collect();
        let name = |i| {
            let c: &Column = &*columns.add(i);
            (CStr::from_ptr(c.name).into(), c.typid)
        };
        let access = Box::new(Access::new(table, key_types, (0..n_columns as usize).map(name).collect()));
        access.compare(&running.open);
        Box::into_raw(access)
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn release(a: *mut Access) {
    // SAFETY: `a` was made by `open`, is not released yet, and not in use (mixedcc.h: release).
    drop(unsafe { Box::from_raw(a) });
}

unsafe extern "C-unwind" fn get(a: *mut Access, key: *const Datum, values: *mut Datum, nulls: *mut bool) -> bool {
    // SAFETY: `a` is of `open`, and the arrays have an entry for each column of key and access
    // (mixedcc.h: get). INV-QUICK: `quick` needs no guard.
    unsafe { quick::get(&*a, key, values, nulls).is_some() || get_guarded(a, key, values, nulls) }
}

#[pg_guard]
unsafe extern "C-unwind" fn get_guarded(
    a: *mut Access,
    key: *const Datum,
    values: *mut Datum,
    nulls: *mut bool,
) -> bool {
    // SAFETY: `a` is of `open`, and the arrays have an entry for each column of key and access
    // (mixedcc.h: get). `read` gets a version that was found now, of the open table.
    unsafe {
        let a = &*a;
        let mut room = Room::uninit();
        let Running { open, snapshot } = a.ready(Lock::Read, &mut room);
        match open.reads_plainly().and_then(|()| row::find(&open, snapshot, &a.key(key), false)) {
            Ok(Some(found)) => {
                a.read(&open, found.version, values, nulls);
                true
            }
            Ok(None) => false,
            Err(Statement) => by_sql::get(a, open.rel, key, "", values, nulls),
        }
    }
}

unsafe extern "C-unwind" fn update(
    a: *mut Access,
    key: *const Datum,
    values: *const Datum,
    nulls: *const bool,
) -> bool {
    // SAFETY: `a` is of `open`, and the arrays have an entry for each column of key and access
    // (mixedcc.h: update). INV-QUICK: `quick` needs no guard.
    unsafe { quick::update(&*a, key, values, nulls).is_some() || update_guarded(a, key, values, nulls) }
}

#[pg_guard]
unsafe extern "C-unwind" fn update_guarded(
    a: *mut Access,
    key: *const Datum,
    values: *const Datum,
    nulls: *const bool,
) -> bool {
    // SAFETY: `a` is of `open`, and the arrays have an entry for each column of key and access
    // (mixedcc.h: update).
    unsafe {
        let a = &*a;
        let mut room = Room::uninit();
        let r = a.ready(Lock::Write, &mut room);
        match update_row(a, &r, key, values, nulls) {
            Ok(done) => done,
            Err(Statement) => by_sql::update(a, r.open.rel, key, values, nulls),
        }
    }
}

unsafe fn update_row(
    a: &Access,
    r: &Running,
    key: *const Datum,
    values: *const Datum,
    nulls: *const bool,
) -> Result<bool, Statement> {
    // SAFETY: `r` is `a.ready`'s for writing; the arrays are the caller's of `update_guarded`.
    // INV-TYPED: `put` stores values of the columns' types.
    unsafe {
        a.updates_plainly(&r.open)?;
        let Some(found) = row::find(&r.open, r.snapshot, &a.key(key), true)? else { return Ok(false) };
        row::rewrite(&r.open, r.snapshot, found, |all, all_nulls| a.put(&r.open, values, nulls, all, all_nulls))
    }
}

unsafe extern "C-unwind" fn modify(a: *mut Access, key: *const Datum, f: Modify, arg: *mut c_void) -> bool {
    let mut columns = quick::Columns::new();
    // SAFETY: `a` is of `open`, `key` has a value for each column, and `f` takes `arg` (mixedcc.h:
    // modify). INV-QUICK: `quick` needs no guard. This frame owns nothing when the caller's
    // function runs.
    unsafe {
        match quick::modify(&*a, key, f, arg, &mut columns) {
            Some(quick::Modified::Done) => true,
            // The row is as the function has seen it, or its update fails: the level is
            // SERIALIZABLE.
            Some(quick::Modified::Values) => update_guarded(a, key, columns.values.as_ptr(), columns.nulls.as_ptr()),
            Some(quick::Modified::Written) => fail_guarded(),
            None => modify_guarded(a, key, f, arg),
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn fail_guarded() -> bool {
    row::written_meanwhile()
}

#[pg_guard]
unsafe extern "C-unwind" fn modify_guarded(a: *mut Access, key: *const Datum, f: Modify, arg: *mut c_void) -> bool {
    // SAFETY: `a` is of `open`, `key` has a value for each column, and `f` takes `arg` (mixedcc.h:
    // modify).
    unsafe {
        let (handle, a) = (a, &*a);
        let mut room = Room::uninit();
        let r = a.ready(Lock::Write, &mut room);
        if a.updates_plainly(&r.open).is_ok() {
            // Now the table is open for writing, and the rights are known.
            let mut columns = quick::Columns::new();
            match quick::modify(a, key, f, arg, &mut columns) {
                Some(quick::Modified::Done) => return true,
                Some(quick::Modified::Values) => {
                    return update_guarded(handle, key, columns.values.as_ptr(), columns.nulls.as_ptr())
                }
                Some(quick::Modified::Written) => row::written_meanwhile(),
                None => {}
            }
        }
        match modify_row(a, &r, key, f, arg) {
            Ok(done) => done,
            Err(Statement) => by_sql::modify(a, r.open.rel, key, f, arg),
        }
    }
}

unsafe fn modify_row(
    a: &Access,
    r: &Running,
    key: *const Datum,
    f: Modify,
    arg: *mut c_void,
) -> Result<bool, Statement> {
    // SAFETY: `r` is `a.ready`'s for writing; `key`, `f` and `arg` are the caller's of
    // `modify_guarded`. INV-TYPED: `f` gets and gives values of the columns' types. The room for
    // them is left to its memory context where an ERROR jumps.
    unsafe {
        a.updates_plainly(&r.open)?;
        let Some(found) = row::find(&r.open, r.snapshot, &a.key(key), true)? else { return Ok(false) };
        let n = a.columns.len();
        let mut few = Columns::few();
        let Columns { values, nulls, own } = Columns::of(n, &mut few);
        let mut stays = false;
        let before = xact::txn().last_write(found.r);
        let done = row::rewrite(&r.open, r.snapshot, found, |all, all_nulls| {
            a.pick(all, all_nulls, values, nulls);
            if !f(arg, values, nulls) {
                stays = true;
                return Err(Statement);
            }
            if row::is_written_since(found.r, before) {
                row::written_meanwhile();
            }
            a.put(&r.open, values, nulls, all, all_nulls)
        });
        Columns::free(own);
        if stays {
            Ok(true)
        } else {
            done
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn insert(a: *mut Access, values: *const Datum, nulls: *const bool) {
    // SAFETY: `a` is of `open`, and the arrays have an entry for each column of the access
    // (mixedcc.h: insert).
    unsafe {
        let a = &*a;
        let mut room = Room::uninit();
        let r = a.ready(Lock::Write, &mut room);
        if insert_row(a, &r, values, nulls).is_err() {
            by_sql::insert(a, r.open.rel, values, nulls);
        }
    }
}

unsafe fn insert_row(a: &Access, r: &Running, values: *const Datum, nulls: *const bool) -> Result<(), Statement> {
    // SAFETY: `r` is `a.ready`'s for writing; the arrays are the caller's of `insert`. `all` and
    // `all_nulls` have `n` entries each. INV-TYPED: `put` stores values of the columns' types. An
    // ERROR leaves what is made for the indexes to its memory context.
    unsafe {
        let t = &r.open;
        a.inserts_plainly(t)?;
        mixture::check();
        let n = (*(*t.rel).rd_att).natts as usize;
        let all = pg::raw::palloc(n * (size_of::<Datum>() + 1)).cast::<Datum>();
        let all_nulls = all.add(n).cast::<bool>();
        for i in 0..n {
            (*all.add(i), *all_nulls.add(i)) = (Datum::from(0), true);
        }
        a.put(t, values, nulls, all, all_nulls)?;
        let mut slot = row::virtual_slot(t.rel, all, all_nulls);
        write::insert(t.rel, &[&mut slot], pg::raw::GetCurrentCommandId(true));
        let estate = pg_sys::CreateExecutorState();
        (*estate).es_snapshot = r.snapshot;
        // What is made for the indexes goes with it.
        let outer = pg_sys::MemoryContextSwitchTo((*estate).es_query_cxt);
        let mut info = pg_sys::ResultRelInfo::default();
        pg_sys::InitResultRelInfo(&mut info, t.rel, 1, std::ptr::null_mut(), 0);
        pg_sys::ExecOpenIndices(&mut info, false);
        if info.ri_NumIndices > 0 {
            compat::insert_index_entries(&mut info, &mut slot, estate);
        }
        pg_sys::ExecCloseIndices(&mut info);
        pg_sys::MemoryContextSwitchTo(outer);
        pg_sys::FreeExecutorState(estate);
        pg::raw::pfree(all.cast());
        Ok(())
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn remove(a: *mut Access, key: *const Datum) -> bool {
    // SAFETY: `a` is of `open`, and `key` has a value for each column (mixedcc.h: remove).
    unsafe {
        let a = &*a;
        let mut room = Room::uninit();
        let Running { open, snapshot } = a.ready(Lock::Write, &mut room);
        match row::change(&open, snapshot, &a.key(key), &Change::Remove) {
            Ok(done) => done,
            Err(Statement) => statement::change(open.rel, &a.key_values(key, a.key_len()), &Change::Remove),
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn scan(a: *mut Access, range: *const range::Range, f: Visit, arg: *mut c_void) -> u64 {
    // SAFETY: `a` is of `open`, `range` is readable with the values that it counts, and `f` takes
    // `arg` (mixedcc.h: scan). `check` compares the numbers.
    unsafe {
        let a = &*a;
        let range = &*range;
        range::check(a, range);
        let mut room = Room::uninit();
        let r = a.ready(Lock::Read, &mut room);
        match r.open.reads_plainly() {
            Ok(()) => range::scan(a, &r, range, f, arg),
            Err(Statement) => by_sql::scan(a, r.open.rel, range, f, arg),
        }
    }
}
