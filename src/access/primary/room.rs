//! Which index may become hollow when it is built (INV-NAMED).

use super::wanted::{indexes_that, of_unique, wanted, wanted_by, wanted_of, Wanted};
use crate::keys::codec;
use crate::pg::compat;
use crate::state::{rel, save};
use mixedcc_engine::record::INDEXES;
use mixedcc_engine::Table;
use pgrx::pg_sys::{self, Oid};

/// Is an index that is being built to be a hollow one? Without a lock: each process of a parallel
/// build asks.
///
/// # Safety
/// An open relation of ours that is locked against writers, and an open index of it.
pub unsafe fn is_to_be_hollow(rel: pg_sys::Relation, index: pg_sys::Relation) -> bool {
    // SAFETY: `rel` and `index` are open (contract of this function). Other indexes in the list
    // exist while the table is locked.
    unsafe {
        let is_key = wanted_of(index).is_some_and(|w| w.whole);
        if !is_key && of_unique(rel, index, true).is_none() {
            return false;
        }
        let (table, oid) = (rel::info(rel).table, (*index).rd_id);
        let has = table.uniques().any(|(_, i)| codec::index_of_spec(i.spec()) == Some(oid));
        // One that CREATE INDEX CONCURRENTLY builds is not valid. That which DROP INDEX
        // CONCURRENTLY has left is not, either, and has its entries.
        if !is_key && !has && !(*(*index).rd_index).indisvalid {
            return false;
        }
        let fits = is_key || of_unique(rel, index, has).is_some();
        fits && compat::may_be_hollow(index) && has_number(rel, table, index)
    }
}

/// The same, by the process that builds it: it takes what it needs. The table's indexes in memory
/// are changed under its ACCESS EXCLUSIVE lock. A command that builds a unique index beside readers
/// does not wait for them, because they may wait for it: then nbtree gets the entries.
///
/// # Safety
/// As for [`is_to_be_hollow`].
pub unsafe fn begins_hollow(rel: pg_sys::Relation, index: pg_sys::Relation) -> bool {
    // SAFETY: the contract of this function.
    unsafe {
        if !is_to_be_hollow(rel, index) {
            return false;
        }
        let is_made = || wanted_by(rel, index).is_some_and(|w| is_made(rel::info(rel).table, &w));
        if (*(*index).rd_index).indisprimary || is_made() {
            return true;
        }
        pg_sys::ConditionalLockRelationOid((*rel).rd_id, pg_sys::AccessExclusiveLock as i32)
            && is_to_be_hollow(rel, index)
    }
}

/// Has a table this index in memory?
pub(super) fn is_made(table: &Table, wanted: &Wanted) -> bool {
    table.uniques().any(|(_, index)| index.spec() == wanted.spec)
}

/// The indexes in memory that a relation asks for beside that of one index.
pub(super) unsafe fn others(rel: pg_sys::Relation, index: Oid) -> Vec<Wanted> {
    // SAFETY: `rel` is open and of ours: contract of the callers.
    unsafe { wanted(rel) }.into_iter().filter(|w| w.index != index).collect()
}

/// Has a table a number for an index that is to be hollow?
unsafe fn has_number(rel: pg_sys::Relation, table: &Table, index: pg_sys::Relation) -> bool {
    // SAFETY: `rel` and `index` are open: contract of `is_to_be_hollow`.
    unsafe {
        let is_made = wanted_by(rel, index).is_some_and(|w| is_made(table, &w));
        is_made || others(rel, (*index).rd_id).len() < INDEXES
    }
}

/// The number for a new index in memory, beside these others: a free one, or that of one that the
/// relation does not ask for any more.
pub(super) fn number_beside(table: &Table, others: &[Wanted]) -> Option<usize> {
    let is_free = |nth: &usize| table.unique(*nth).is_none();
    let is_left = |nth: &usize| table.unique(*nth).is_some_and(|i| others.iter().all(|w| w.spec != i.spec()));
    (0..INDEXES).find(is_free).or_else(|| (0..INDEXES).find(is_left))
}

/// Lets the first use of an unlogged table be now, before the files of its indexes are looked at.
/// If it starts empty they are emptied, beside buffers (INV-ATTACH). Not if its rows are elsewhere:
/// then each use is an error, and empties nothing.
///
/// # Safety
/// An open relation.
pub unsafe fn settle_files(rel: pg_sys::Relation) {
    // SAFETY: `rel` is open (contract of this function), and of ours where it is used.
    unsafe {
        if rel::is_ours(rel) && !compat::is_permanent(rel) && !save::is_missing(rel) {
            rel::info(rel);
        }
    }
}

/// Would a build of one of the relation's unique indexes bring it into memory? Such a build needs
/// the table's ACCESS EXCLUSIVE lock, and its command had better begin with it.
///
/// # Safety
/// An open relation of ours.
pub unsafe fn is_open_to_unique(rel: pg_sys::Relation) -> bool {
    // SAFETY: `rel` is open and of ours (contract of this function).
    unsafe { wanted(rel) }.len() < INDEXES
}

/// May a unique index of these columns be hollow: are they never NULL, of exact types in their
/// default order, and not too many? A name that is none of the relation's columns is not taken for
/// one.
///
/// # Safety
/// An open relation.
pub unsafe fn may_be_key(rel: pg_sys::Relation, names: &[String]) -> bool {
    // SAFETY: `rel` is open (contract of this function), and keeps its descriptor. A column's name
    // is a C string.
    unsafe {
        let desc = (*rel).rd_att;
        let is_named = |i: &usize, name: &str| {
            let column = compat::attribute(desc, *i);
            !column.attisdropped && crate::pg::text::read(column.attname.data.as_ptr()) == name
        };
        let find = |name: &String| (0..(*desc).natts as usize).find(|i| is_named(i, name));
        let fits = |i: usize| {
            let column = compat::attribute(desc, i);
            compat::is_never_null(desc, i) && codec::is_exact_by_default(column.atttypid, column.attcollation)
        };
        names.len() <= codec::MOST_OF_UNIQUE && names.iter().all(|name| find(name).is_some_and(fits))
    }
}

/// Has a relation a unique index that could be hollow, and is not?
///
/// # Safety
/// An open relation of ours.
pub unsafe fn has_fitting_unique(rel: pg_sys::Relation) -> bool {
    // SAFETY: `rel` is open (contract of this function), and an index while it is asked.
    unsafe {
        !indexes_that(rel, |index| of_unique(rel, index, false).is_some() && !compat::is_hollow(index)).is_empty()
    }
}
