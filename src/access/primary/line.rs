//! The indexes in memory are brought in line with the table's indexes in the catalogs.

use super::build::{build, Built};
use super::room::{is_made, number_beside, others};
use super::wanted::{hollow_uniques, of_unique, wanted, wanted_by, wanted_of, with_index, Wanted};
use crate::pg::{compat, relations, text};
use crate::state::rel;
use crate::state::{shmem, xact};
use mixedcc_engine::index::Primary;
use mixedcc_engine::record::INDEXES;
use mixedcc_engine::Table;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

/// Brings the indexes in memory in line with the table's indexes, after commands that may have
/// changed these. They have locked the table against writers at least (a partition, when its parent
/// gets a key); where a command has not, there is nothing to do. A command that has built an index
/// has made the one in memory then ([`build_key`]). `drops`: the command has dropped an index, and
/// makes none that nbtree can answer.
///
/// # Safety
/// An open relation of ours.
pub unsafe fn sync(rel: pg_sys::Relation, drops: bool) {
    // SAFETY: `rel` is open and of ours (contract of this function).
    unsafe {
        if !pg_sys::CheckRelationLockedByMe(rel, pg_sys::ShareLock as i32, true) {
            return;
        }
        rel::info(rel); // the first use of a table empties files
        refill(rel);
        let table = rel::info(rel).table;
        let wanted = wanted(rel);
        let missing: Vec<&Wanted> = wanted
            .iter()
            .filter(|w| !is_made(table, w) && is_made_now(rel, w, !drops && table.uniques().count() < INDEXES))
            .collect();
        let is_left = |i: &Primary| wanted.iter().all(|w| w.spec != i.spec());
        if missing.is_empty() && !table.uniques().any(|(_, i)| is_left(i)) {
            return;
        }
        pg_sys::LockRelationOid((*rel).rd_id, pg_sys::AccessExclusiveLock as i32);
        for w in missing {
            if replace(rel, table, w, &wanted).duplicate.is_some() {
                let message = format!("could not create unique index \"{}\"", text::shown(&relations::name(w.index)));
                let code = PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION;
                pgrx::ereport!(PgLogLevel::ERROR, code, message, "Two rows have one key.");
            }
        }
        for (nth, _) in table.uniques().filter(|(_, i)| is_left(i)) {
            xact::replace_unique(table, nth, None);
        }
        pg_sys::CacheInvalidateRelcacheByRelid((*rel).rd_id);
    }
}

/// Builds the hollow unique indexes anew that must not be hollow any more, with entries in nbtree
/// (INV-NAMED).
unsafe fn refill(rel: pg_sys::Relation) {
    // SAFETY: `rel` is open and of ours: contract of `sync`. The transaction holds the table's lock
    // when it builds the indexes, and none of them is open then.
    unsafe {
        let fits = |oid: &Oid| with_index(*oid, |index| of_unique(rel, index, true).is_some()) == Some(true);
        let (kept, mut others): (Vec<Oid>, Vec<Oid>) = hollow_uniques(rel).into_iter().partition(fits);
        let key = compat::primary_key_index(rel);
        let is_hollow = |index| wanted_of(index).is_some_and(|w| w.whole) && compat::is_hollow(index);
        let is_key_hollow = key != pg_sys::InvalidOid && with_index(key, is_hollow) == Some(true);
        others.extend(kept.into_iter().skip(INDEXES - usize::from(is_key_hollow)));
        if others.is_empty() {
            return;
        }
        pg_sys::LockRelationOid((*rel).rd_id, pg_sys::AccessExclusiveLock as i32);
        for oid in others {
            let persistence = with_index(oid, |index| (*(*index).rd_rel).relpersistence);
            persistence.into_iter().for_each(|persistence| compat::rebuild_index(oid, persistence));
        }
    }
}

/// Is an index in memory that the table has not got made by this command? One that nbtree answers
/// as well waits for a command that excludes readers, and drops none. (Where all numbers are taken
/// the command has given one of them up.)
unsafe fn is_made_now(rel: pg_sys::Relation, w: &Wanted, may_make: bool) -> bool {
    // SAFETY: `rel` is open and of ours: contract of `sync`. Its index is looked at while it is
    // open.
    unsafe {
        let is_hollow = || w.whole && with_index(w.index, |index| compat::is_hollow(index)) == Some(true);
        may_make && pg_sys::CheckRelationLockedByMe(rel, pg_sys::AccessExclusiveLock as i32, false) || is_hollow()
    }
}

/// A hollow index of a table is being built: makes the one in memory, if the table has not got it,
/// as after REINDEX and TRUNCATE. Returns two rows that have one key, if there are any.
///
/// # Safety
/// An open relation of ours that is locked against writers, and an open index that can be hollow.
pub unsafe fn build_key(rel: pg_sys::Relation, index: pg_sys::Relation) -> Built {
    // SAFETY: `rel` and `index` are open (contract of this function).
    unsafe {
        let table = rel::info(rel).table;
        match wanted_by(rel, index).filter(|w| !is_made(table, w)) {
            Some(w) => replace(rel, table, &w, &others(rel, w.index)),
            None => Built::default(),
        }
    }
}

/// Gives the table an index that is wanted, beside these others. With the table's ACCESS EXCLUSIVE
/// lock no other session uses the one that is replaced.
unsafe fn replace(rel: pg_sys::Relation, table: &'static Table, w: &Wanted, others: &[Wanted]) -> Built {
    // SAFETY: `rel` is open: contract of `sync` and `build_key`.
    unsafe {
        pg_sys::LockRelationOid((*rel).rd_id, pg_sys::AccessExclusiveLock as i32);
        let (index, built) = build(rel, table, w, &shmem::engine());
        if built.duplicate.is_some() {
            return built;
        }
        let Some(nth) = number_beside(table, others) else {
            pgrx::error!("mixedcc has no number left for an index in memory");
        };
        xact::replace_unique(table, nth, Some(index));
        pg_sys::CacheInvalidateRelcacheByRelid((*rel).rd_id);
        built
    }
}
