//! Finding the row of a key.

use super::exec::Exec;
use super::program::Program;
use super::run;
use crate::access::{find, indexscan, primary, tuple};
use crate::pg::{raw, Tid};
use crate::state::rel;
use pgrx::pg_sys::{self, Datum};

/// Most columns of a key.
const MAX: usize = pg_sys::INDEX_MAX_KEYS as usize;

/// Room for a key. Taken while it is used.
static mut KEY: Vec<u8> = Vec::new();

/// Finds the row with the program's key, as the statement's snapshot and the isolation level show it, and protects
/// what it has found. True: it is in the program's slot.
///
/// # Safety
/// A statement that runs; the table is open. An ERROR jumps over this frame.
pub unsafe fn find(p: *mut Program, x: *mut Exec, table: pg_sys::Relation, for_write: bool) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let mut values = [Datum::from(0); MAX];
        let values = &mut values[..(*p).n_keys];
        for (c, v) in values.iter_mut().enumerate() {
            let mut null = false;
            *v = run::evaluate((*(*p).keys.add(c)).value, (*p).econtext, &mut null);
            if null {
                return false; // equals nothing
            }
        }
        match by_primary(p, x, table, values, for_write) {
            Some(found) => found,
            None => by_nbtree(p, x, table, values, for_write),
        }
    }
}

/// By the engine's primary index; `None`: it cannot be used.
#[inline]
unsafe fn by_primary(
    p: *mut Program,
    x: *mut Exec,
    table: pg_sys::Relation,
    values: &[Datum],
    for_write: bool,
) -> Option<bool> {
    // SAFETY: as in `find`.
    unsafe {
        let info = rel::info(table);
        let pk = primary::usable(table, info).filter(|pk| pk.index == (*p).index)?;
        let snapshot = (*x).estate.es_snapshot;
        let exact = |c: usize| {
            let k = &*(*p).keys.add(c);
            if k.scan.sk_subtype == k.own_type {
                pg_sys::InvalidOid
            } else {
                k.scan.sk_subtype
            }
        };
        if let Some(found) = find::peek(table, info, pk, values.len(), |c| (values[c], exact(c)), snapshot) {
            tuple::store((*p).row, info.oid, Tid::Record(found.r.no), found.version.as_ptr());
            return Some(true);
        }
        let mut key = std::mem::take(&mut *(&raw mut KEY));
        key.clear();
        let mut types = [pg_sys::InvalidOid; MAX];
        for (c, v) in values.iter().enumerate() {
            types[c] = (*(*p).keys.add(c)).scan.sk_subtype;
            if !pk.codec.put_foreign(c, *v, exact(c), &mut key) {
                KEY = key;
                return None;
            }
        }
        let partition = pk.partition(info, values, &types[..values.len()]);
        let found = find::by_key(table, info, pk, &key, partition, snapshot, for_write);
        KEY = key;
        let Some(found) = found else { return Some(false) };
        tuple::store((*p).row, info.oid, Tid::Record(found.r.no), found.version.as_ptr());
        Some(true)
    }
}

/// By the nbtree index of the key, as the executor's index scan does it.
#[cold]
unsafe fn by_nbtree(p: *mut Program, x: *mut Exec, table: pg_sys::Relation, values: &[Datum], for_write: bool) -> bool {
    // SAFETY: as in `find`.
    unsafe {
        let mut keys = std::mem::MaybeUninit::<[pg_sys::ScanKeyData; MAX]>::uninit();
        let first = keys.as_mut_ptr().cast::<pg_sys::ScanKeyData>();
        for (c, v) in values.iter().enumerate() {
            first.add(c).write((*(*p).keys.add(c)).scan);
            (*first.add(c)).sk_argument = *v;
        }
        let index = raw::index_open((*p).index, (*p).lock);
        indexscan::wrap(table, index);
        let n = (*p).n_keys as i32;
        let scan = crate::pg::compat::begin_index_scan(table, index, (*x).estate.es_snapshot, n);
        raw::index_rescan(scan, first, n, std::ptr::null_mut(), 0);
        if for_write && crate::pg::is_serializable() {
            (*indexscan::fetch_of(scan)).for_write = true;
        }
        let found = raw::index_getnext_slot(scan, pg_sys::ScanDirection::ForwardScanDirection, (*p).row);
        raw::index_endscan(scan);
        raw::index_close(index, pg_sys::NoLock as i32);
        found
    }
}
