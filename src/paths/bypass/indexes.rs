//! The indexes into which an INSERT puts its row. Where the indexes are simple, this finds out once
//! what ExecOpenIndices and ExecInsertIndexTuples find out for each statement.
//!
//! **INV-BYPASS-INDEXES**: A pointer to an index's cache entry is right while `open_in` is the
//! number of the present transaction. It was taken with the index locked to the end of the
//! transaction (not in a subtransaction, whose abort would unlock it). So the entry moves or goes
//! only with an invalidation of the index, which sets `open_in` to 0 and drops a kept program.
//! While a row is inserted the entries are pinned, so that an invalidation leaves them in place.

use crate::access::hollow;
use crate::pg::{compat, raw, relations};
use crate::state::{rel, xact};
use pgrx::pg_sys::{self, Datum, IndexUniqueCheck, Oid};
use pgrx::PgList;

#[repr(C)]
struct Index {
    oid: Oid,
    info: *mut pg_sys::IndexInfo,
    check: IndexUniqueCheck::Type,
    /// Its entry in the relation cache.
    rel: pg_sys::Relation,
}

/// The indexes of a program's table, in its memory.
#[repr(C)]
pub struct Indexes {
    all: *mut Index,
    n: usize,
    /// The transaction in which the entries were found; 0: none.
    open_in: u32,
    /// So many of them are pinned, from the first on.
    pinned: usize,
}

impl Indexes {
    unsafe fn all(&mut self) -> &mut [Index] {
        // SAFETY: `prepare` has made `all` with `n` elements, and `&mut self` is the only reference
        // to them.
        unsafe { std::slice::from_raw_parts_mut(self.all, self.n) }
    }
}

/// The knowledge of a table's indexes; null if the executor must see to one of them: it has
/// expressions, a predicate, an exclusion constraint, is checked later, or is not nbtree's.
/// Allocates in the current memory context.
///
/// # Safety
/// An open table, locked for writing.
pub unsafe fn prepare(table: pg_sys::Relation) -> *mut Indexes {
    // SAFETY: `table` is open and locked: contract of this function. So its indexes exist. An ERROR
    // leaves all to the memory context and the resource owner.
    unsafe {
        let list = PgList::<Oid>::from_pg(pg_sys::RelationGetIndexList(table));
        let all = pg_sys::palloc0((list.len() + 1) * std::mem::size_of::<Index>()).cast::<Index>();
        for (i, oid) in list.iter_oid().enumerate() {
            let index = pg_sys::index_open(oid, pg_sys::RowExclusiveLock as i32);
            let info = pg_sys::BuildIndexInfo(index);
            let form = &*(*index).rd_index;
            let simple = (*info).ii_Expressions.is_null()
                && (*info).ii_Predicate.is_null()
                && (*info).ii_ExclusionOps.is_null()
                && (*info).ii_ReadyForInserts
                && (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID
                && (form.indimmediate || !form.indisunique);
            let check =
                if form.indisunique { IndexUniqueCheck::UNIQUE_CHECK_YES } else { IndexUniqueCheck::UNIQUE_CHECK_NO };
            pg_sys::index_close(index, pg_sys::NoLock as i32); // the lock stays
            if !simple {
                return std::ptr::null_mut();
            }
            *all.add(i) = Index { oid, info, check, rel: std::ptr::null_mut() };
        }
        let x = pg_sys::palloc0(std::mem::size_of::<Indexes>()).cast::<Indexes>();
        ((*x).all, (*x).n) = (all, list.len());
        x
    }
}

/// Puts the entries of a row that was inserted into the indexes, and checks that they are unique.
///
/// # Safety
/// Prepared indexes of this table, which is open; the slot has all columns and the TID. An ERROR
/// jumps over this frame: the caller calls [`unpin`] then.
pub unsafe fn insert(x: *mut Indexes, table: pg_sys::Relation, slot: *mut pg_sys::TupleTableSlot) {
    // SAFETY: `prepare` has made `x`, and `table` and `slot` are of it: contract of this function.
    // The entries are right in the transaction `open_in`, and pinned here (INV-BYPASS-INDEXES).
    unsafe {
        let now = compat::my_lxid();
        if (*x).open_in != now || now == 0 {
            open(&mut *x);
            (*x).open_in = if xact::depth() == 1 { now } else { 0 };
        } else {
            (*x).all().iter().for_each(|i| (*i.rel).rd_refcnt += 1);
            (*x).pinned = (*x).n;
        }
        // Again: to open them may have processed an invalidation (INV-SERVED).
        hollow::serve(table, rel::info(table));
        let mut values = [Datum::from(0); pg_sys::INDEX_MAX_KEYS as usize];
        let mut nulls = [false; pg_sys::INDEX_MAX_KEYS as usize];
        for n in 0..(*x).n {
            let i = &*(*x).all.add(n);
            raw::FormIndexDatum(i.info, slot, std::ptr::null_mut(), values.as_mut_ptr(), nulls.as_mut_ptr());
            let tid = &raw mut (*slot).tts_tid;
            raw::index_insert(i.rel, values.as_mut_ptr(), nulls.as_mut_ptr(), tid, table, i.check, false, i.info);
        }
        unpin(x);
    }
}

/// Locks the indexes, and finds and pins their entries.
unsafe fn open(x: &mut Indexes) {
    // SAFETY: `insert` has an open table, so its indexes exist and have entries. Each of these
    // calls may process invalidations: the entries found before are pinned (INV-BYPASS-INDEXES).
    unsafe {
        for n in 0..x.n {
            let i = &mut *x.all.add(n);
            raw::LockRelationOid(i.oid, pg_sys::RowExclusiveLock as i32);
            i.rel = relations::entry_unguarded(i.oid);
            (*i.rel).rd_refcnt += 1;
            x.pinned += 1;
            raw::RelationClose(i.rel);
        }
    }
}

/// The pins are given back, if there are any.
///
/// # Safety
/// Null or prepared indexes.
pub unsafe fn unpin(x: *mut Indexes) {
    // SAFETY: `x` is null or was made by `prepare`: contract of this function. The first `pinned`
    // entries stay in place while they are pinned (INV-BYPASS-INDEXES).
    unsafe {
        if !x.is_null() {
            let pinned = std::mem::take(&mut (*x).pinned);
            (*x).all()[..pinned].iter().for_each(|i| (*i.rel).rd_refcnt -= 1);
        }
    }
}

/// The entries that were found are not to be relied on any more.
///
/// # Safety
/// Null or prepared indexes.
pub unsafe fn forget(x: *mut Indexes) {
    // SAFETY: `x` is null or was made by `prepare`: contract of this function.
    unsafe {
        if !x.is_null() {
            (*x).open_in = 0;
        }
    }
}

/// Is a relation one of them?
///
/// # Safety
/// Null or prepared indexes.
pub unsafe fn has(x: *mut Indexes, oid: Oid) -> bool {
    // SAFETY: `new_row` has a target list of the plan and the row type of the table. The lengths
    // are equal before a column is read.
    unsafe { !x.is_null() && (*x).all().iter().any(|i| i.oid == oid) }
}
