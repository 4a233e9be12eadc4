//! Lists of the commits that snapshots leave out, because they were not done.
//!
//! **INV-LIST**: A snapshot of PostgreSQL that leaves commits out names a list of this process by
//! its index, and by the serial number that the list had then. Copies keep both. A list is made for
//! a copy at some address; it is replaced when another copy at that address takes its CSN, since
//! the first copy is gone then. A snapshot that names a list which was replaced is found by the
//! serial number, and is an ERROR. Lists end with the transaction.

use crate::pg::errors::complain;
use crate::pg::local::Local;
use mixedcc_engine::csn::Csn;
use mixedcc_engine::open::{Kept, Seen};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// A list, with the address of the snapshot for which it was made.
struct List {
    owner: usize,
    serial: u32,
    kept: Kept,
}

/// Of the transaction.
static LISTS: Local<Vec<List>> = Local::new(Vec::new());
/// The serial number of the last list. Of the process.
static SERIAL: Local<u32> = Local::new(0);

/// The owner of a list that lasts as long as its transaction.
pub const TRANSACTION: usize = 0;

/// The bits of an index.
const INDEX_BITS: u32 = 15;
/// The bits below the CSN: the mark, and the index of the list + 1.
const SHIFT: u32 = INDEX_BITS + 1;

/// The snapshot that a list has.
///
/// INV-LIST: the list stays until another copy at its owner's address takes its CSN, or the
/// transaction ends; no scan of the owner's runs then.
fn seen(list: &List) -> Seen<'static> {
    let Kept { upto, floor, excluded } = &list.kept;
    // SAFETY: INV-LIST: the memory of the vector stays as long as the list.
    let excluded = unsafe { std::slice::from_raw_parts(excluded.as_ptr(), excluded.len()) };
    Seen { upto: *upto, floor: *floor, excluded }
}

/// Keeps the list of a snapshot; returns its index + 1, and its serial number.
fn keep(owner: usize, kept: Kept) -> (u64, u32) {
    // SAFETY: a backend has one thread, and nothing below runs other code that uses the lists.
    let lists = unsafe { LISTS.get_mut() };
    let serial = SERIAL.get().wrapping_add(1);
    SERIAL.set(serial);
    let new = List { owner, serial, kept };
    let i = lists.iter().position(|l| l.owner == owner).unwrap_or(lists.len());
    if i + 1 >= 1 << INDEX_BITS {
        complain(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            "too many snapshots that leave out commits which wait for their standbys",
            "",
        );
    }
    match lists.get_mut(i) {
        Some(l) => *l = new,
        None => lists.push(new),
    }
    (i as u64 + 1, serial)
}

/// Gives a snapshot what it sees.
///
/// # Safety
/// A valid snapshot of this backend.
pub unsafe fn put(s: pg_sys::Snapshot, owner: usize, kept: Kept) -> Seen<'static> {
    let csn = kept.upto;
    if kept.excluded.is_empty() {
        // SAFETY: the contract of this function.
        return unsafe { put_prefix(s, csn) };
    }
    let (index, serial) = keep(owner, kept);
    // SAFETY: the contract of this function; as in `keep`.
    unsafe {
        mark(s, csn, index, serial);
        seen(&LISTS.get_mut()[index as usize - 1])
    }
}

/// The same for a snapshot that sees all commits up to `csn`.
///
/// # Safety
/// As for [`put`].
#[inline]
pub unsafe fn put_prefix(s: pg_sys::Snapshot, csn: Csn) -> Seen<'static> {
    // SAFETY: the contract of this function.
    unsafe { mark(s, csn, 0, 0) };
    Seen::prefix(csn)
}

/// MVCC snapshots use neither `vistest` nor `speculativeToken`; copies keep both. A snapshot that
/// is no copy is left as it is.
///
/// # Safety
/// As for [`put`].
#[inline]
unsafe fn mark(s: pg_sys::Snapshot, csn: Csn, index: u64, serial: u32) {
    // SAFETY: `s` is valid (contract of this function). Only a copy, which is this backend's own,
    // is written.
    unsafe {
        if (*s).copied {
            (*s).vistest = (csn << SHIFT | index << 1 | 1) as *mut _;
            (*s).speculativeToken = serial;
        }
    }
}

/// What marks a snapshot: copies of it that have the same mark see the same.
#[derive(Clone, Copy)]
pub struct Mark {
    vistest: *mut pg_sys::GlobalVisState,
    serial: u32,
}

/// The mark of a snapshot.
///
/// # Safety
/// A valid MVCC snapshot of this backend.
pub unsafe fn mark_of(s: pg_sys::Snapshot) -> Mark {
    // SAFETY: `s` is valid (contract of this function). The fields are read as numbers only.
    unsafe { Mark { vistest: (*s).vistest, serial: (*s).speculativeToken } }
}

/// Gives a snapshot the mark of another one.
///
/// # Safety
/// A valid MVCC snapshot of this backend: a copy.
pub unsafe fn put_mark(s: pg_sys::Snapshot, mark: Mark) {
    // SAFETY: `s` is valid, and a copy (contract of this function).
    unsafe { ((*s).vistest, (*s).speculativeToken) = (mark.vistest, mark.serial) };
}

/// Gives a snapshot what another one sees.
///
/// # Safety
/// Valid snapshots of this backend.
pub unsafe fn share(from: pg_sys::Snapshot, to: pg_sys::Snapshot) {
    // SAFETY: both are valid (contract of this function). Only a copy, which is this backend's own,
    // is written.
    unsafe {
        if (*to).copied && to != from {
            (*to).vistest = (*from).vistest;
            (*to).speculativeToken = (*from).speculativeToken;
        }
    }
}

/// Has the snapshot a CSN?
///
/// # Safety
/// A valid MVCC snapshot of this backend.
#[inline]
pub unsafe fn has_csn(s: pg_sys::Snapshot) -> bool {
    // SAFETY: `s` is valid (contract of this function). The field is read as a number only.
    unsafe { (*s).vistest as u64 & 1 == 1 }
}

/// What a snapshot sees, if it was told, and its list is still there.
///
/// # Safety
/// A valid MVCC snapshot of this backend.
#[inline]
pub unsafe fn get(s: pg_sys::Snapshot) -> Option<Seen<'static>> {
    // SAFETY: `s` is valid (contract of this function). The fields are read as numbers only.
    let (v, serial) = unsafe { ((*s).vistest as u64, (*s).speculativeToken) };
    let csn: Csn = v >> SHIFT;
    match v & ((1 << SHIFT) - 1) {
        1 => Some(Seen::prefix(csn)),
        marked if marked & 1 == 1 => find((marked >> 1) as usize - 1, serial),
        _ => None,
    }
}

#[cold]
fn find(index: usize, serial: u32) -> Option<Seen<'static>> {
    // SAFETY: a backend has one thread, and nothing below runs other code.
    let list = unsafe { LISTS.get_mut() }.get(index)?;
    (list.serial == serial).then(|| seen(list))
}

/// A snapshot has a CSN, and its list was replaced: an ERROR.
#[cold]
pub fn is_stale() -> ! {
    complain(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        "a copy of a snapshot has outlived the statement that it was made for",
        "Try again.",
    )
}

/// The transaction has ended.
pub fn end_transaction() {
    // SAFETY: a backend has one thread, and no scan runs any more.
    let lists = unsafe { LISTS.get_mut() };
    if !lists.is_empty() {
        lists.clear();
    }
}
