//! Finding the row of a key.

use super::exec::Exec;
use super::program::{Key, Program};
use super::select;
use crate::access::lookup::{Found, Use};
use crate::access::{deferred, indexscan, lookup, primary, tuple};
use crate::pg::{expr, raw, Tid};
use crate::state::rel;
use crate::state::xact::{self, Mode};
use mixedcc_engine::range::Columns;
use pgrx::pg_sys::{self, Datum, Oid};

const MAX: usize = lookup::MOST_COLUMNS;

/// Finds the row with the program's key, as the statement's snapshot and the isolation level show
/// it, and protects what it has found. True: it is in the program's slot.
///
/// # Safety
/// A statement that runs; the table is open. An ERROR jumps over this frame.
pub unsafe fn find(p: *mut Program, x: *mut Exec, table: pg_sys::Relation, for_write: bool) -> bool {
    // SAFETY: `p` runs with the state `x`, and `table` is open: contract of this function. The
    // program has `n_keys` keys, at most `MAX` by the slice.
    unsafe {
        let mut values = [Datum::from(0); MAX];
        let values = &mut values[..(*p).n_keys];
        if !evaluate(p, values) {
            return false; // equals nothing
        }
        if deferred::any() {
            before_look(p, table, values, if for_write { Columns::ALL } else { (*p).looked });
        }
        let found = match in_memory(p, x, table, values, for_write) {
            Some(found) => found,
            None => by_index(p, x, table, values, for_write),
        };
        if !found && deferred::any() {
            // An answer has told that there is such a row.
            before_look(p, table, values, Columns::ALL);
        }
        found
    }
}

/// The values of the program's key; false: one of them is NULL.
#[inline]
unsafe fn evaluate(p: *mut Program, values: &mut [Datum]) -> bool {
    // SAFETY: `p` runs (contract of `find`), and has as many keys.
    unsafe {
        for (c, v) in values.iter_mut().enumerate() {
            let null;
            (*v, null) = expr::evaluate((*(*p).keys.add(c)).value, (*p).econtext);
            if null {
                return false;
            }
        }
        true
    }
}

/// The row with the program's key as it is now, neither protected nor remembered, at SERIALIZABLE,
/// and the bytes of the key. `None`: it must be looked up.
///
/// # Safety
/// As for [`find`].
pub unsafe fn find_anyhow(p: *mut Program, table: pg_sys::Relation) -> Option<(Found, deferred::Key)> {
    // SAFETY: as for `find`.
    unsafe {
        let mut values = [Datum::from(0); MAX];
        let values = &mut values[..(*p).n_keys];
        if xact::mode() != Mode::Serializable || !evaluate(p, values) {
            return None;
        }
        let info = rel::info(table);
        let pk = primary::usable(table, info).filter(|pk| pk.index == (*p).index)?;
        let key = Values(values, (*p).keys);
        // A partition that is locked as a whole is not worth the search. Which one it is need not
        // be known for that.
        let waits = |no: Option<u16>| {
            let at = info.table.map().partitions().get(no.unwrap_or(0) as usize);
            at.is_some_and(|at| !at.protocols().locks_partitions())
        };
        let memory = (*(*p).econtext).ecxt_per_tuple_memory;
        let copy = |bytes: &[u8], no| waits(no).then(|| deferred::Key::copy(bytes, memory));
        let of_row = lookup::with_bytes(info, pk, &key, copy)??;
        xact::writing();
        Some((deferred::find(table, info, pk, &key, of_row)?, of_row))
    }
}

/// The row of a key is about to be looked at, and these columns of it (INV-DEFERRED).
#[cold]
unsafe fn before_look(p: *mut Program, table: pg_sys::Relation, values: &[Datum], looked: Columns) {
    // SAFETY: as for `find`.
    unsafe {
        if !deferred::meets((*p).table, None, looked) {
            return;
        }
        let info = rel::info(table);
        let pk = primary::usable(table, info).filter(|pk| pk.index == (*p).index);
        let meets = |bytes: &[u8], _| deferred::meets((*p).table, Some(bytes), looked);
        if pk.and_then(|pk| lookup::with_bytes(info, pk, &Values(values, (*p).keys), meets)) != Some(false) {
            deferred::before_look((*p).table);
        }
    }
}

/// The values of a program's key.
struct Values<'a>(&'a [Datum], *const Key);

impl lookup::Key for Values<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }
    #[inline]
    fn value(&self, i: usize) -> (Datum, Oid) {
        // SAFETY: a program has a key for each value, as many as `len`; the slice checks the
        // number.
        (self.0[i], unsafe { (*self.1.add(i)).scan.sk_subtype })
    }
}

/// By the engine's index in memory; `None`: it cannot be used.
#[inline]
unsafe fn in_memory(
    p: *mut Program,
    x: *mut Exec,
    table: pg_sys::Relation,
    values: &[Datum],
    for_write: bool,
) -> Option<bool> {
    // SAFETY: `p` runs with the state `x`, and `table` is its open table (contract of `find`).
    // `usable_by` says that the key can be used now. Our pin keeps the version that is found
    // (INV-RETIRE).
    unsafe {
        let info = rel::info(table);
        let pk = primary::usable_by(table, info, (*p).index)?;
        let key = Values(values, (*p).keys);
        let to = match for_write {
            true if select::skips(p) => Use::Offer,
            true => Use::Write,
            false if (*p).key_alone => Use::Key,
            false => Use::Look((*p).looked),
        };
        let found = lookup::by_key(table, info, pk, &key, (*x).estate.es_snapshot, to)?;
        let Some(found) = found else { return Some(false) };
        tuple::store((*p).row, info.oid, Tid::Record(found.r.no), found.version.as_ptr());
        Some(true)
    }
}

/// By a scan of the key's index, as the executor does it.
#[cold]
unsafe fn by_index(p: *mut Program, x: *mut Exec, table: pg_sys::Relation, values: &[Datum], for_write: bool) -> bool {
    // SAFETY: `p` runs with the state `x`, and `table` is its open table (contract of `find`). All
    // `n` keys are written before the scan reads them. The index exists while its table is locked.
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
        let for_write = for_write && crate::pg::is_serializable();
        (*indexscan::fetch_of(scan)).skips = for_write && select::skips(p);
        raw::index_rescan(scan, first, n, std::ptr::null_mut(), 0);
        if for_write {
            (*indexscan::fetch_of(scan)).for_write = true;
        }
        let found = raw::index_getnext_slot(scan, pg_sys::ScanDirection::ForwardScanDirection, (*p).row);
        raw::index_endscan(scan);
        raw::index_close(index, pg_sys::NoLock as i32);
        found
    }
}
