//! The keys that the indexes in memory serve, and when they can be used.

use super::wanted::{has_index, of_unique, wanted_of, Wanted};
use crate::keys::codec;
use crate::pg::compat;
use crate::state::platform::PG;
use crate::state::rel::{Kept, PrimaryKey, RelInfo};
use crate::state::shmem;
use mixedcc_engine::csn::Csn;
use mixedcc_engine::index::Primary;
use pgrx::pg_sys::{self, Oid};
use std::cell::Cell;

/// The key that an index in memory serves, if it has the same keys.
///
/// # Safety
/// An open relation of ours, its info, and one of its indexes.
#[inline]
pub unsafe fn key_by<'a>(rel: pg_sys::Relation, info: &RelInfo, kept: &'a Kept) -> Option<&'a PrimaryKey> {
    // SAFETY: `rel` is open and of ours, and `info` is its info (contract of this function).
    kept.key.get_or_init(|| unsafe { find_key(rel, info, kept) }).as_ref()
}

/// The PRIMARY KEY of a relation, or the hollow unique index that has its place, if the primary
/// index has the same keys.
///
/// # Safety
/// An open relation of ours, and its info.
#[inline]
unsafe fn key(rel: pg_sys::Relation, info: &RelInfo) -> Option<&PrimaryKey> {
    // SAFETY: the contract of this function.
    unsafe { key_by(rel, info, info.uniques.primary()?) }
}

/// The key of one of the relation's indexes, if that has one in memory.
///
/// # Safety
/// An open relation of ours, and its info.
#[inline]
pub unsafe fn key_of_index(rel: pg_sys::Relation, info: &RelInfo, index: Oid) -> Option<&PrimaryKey> {
    let may_be = |k: &&Kept| k.oid == index || k.oid == pg_sys::InvalidOid;
    // SAFETY: the contract of this function.
    let mut keys = info.uniques.all().iter().filter(may_be).filter_map(|k| unsafe { key_by(rel, info, k) });
    keys.find(|k| k.index == index)
}

/// The same, if that is hollow.
///
/// # Safety
/// An open relation of ours, and its info.
#[inline]
pub unsafe fn hollow_key(rel: pg_sys::Relation, info: &RelInfo, index: Oid) -> Option<&PrimaryKey> {
    // SAFETY: the contract of this function.
    unsafe { key_of_index(rel, info, index) }.filter(|k| k.hollow)
}

/// The same of an index that can be used now, by whatever snapshot.
///
/// # Safety
/// An open relation of ours, and its info.
#[inline]
pub unsafe fn usable_by(rel: pg_sys::Relation, info: &RelInfo, index: Oid) -> Option<&PrimaryKey> {
    // SAFETY: the contract of this function.
    unsafe { key_of_index(rel, info, index) }.filter(|k| is_usable(k))
}

/// Can a key be used now, by whatever snapshot?
#[inline]
pub fn is_usable(key: &PrimaryKey) -> bool {
    let from = key.primary.complete_from();
    from == 0 || is_complete(key.primary, from)
}

/// The key by which the primary index of a relation can be used now, by whatever snapshot.
///
/// # Safety
/// An open relation of ours, and its info.
#[inline]
pub unsafe fn usable(rel: pg_sys::Relation, info: &RelInfo) -> Option<&PrimaryKey> {
    // SAFETY: `rel` is open and of ours, and `info` is its info (contract of this function).
    unsafe { key(rel, info) }.filter(|key| is_usable(key))
}

/// The same, if that is known already. Does not fail.
#[inline]
fn known(info: &RelInfo) -> Option<&PrimaryKey> {
    let key = info.uniques.primary()?.known_key()?;
    (key.primary.complete_from() == 0).then_some(key)
}

/// The PRIMARY KEY by which the primary index can be used now; that of a unique index is none.
///
/// # Safety
/// An open relation of ours, and its info.
#[inline]
pub unsafe fn usable_declared(rel: pg_sys::Relation, info: &RelInfo) -> Option<&PrimaryKey> {
    // SAFETY: `rel` is open and of ours, and `info` is its info (contract of this function).
    unsafe { usable(rel, info) }.filter(|key| key.declared)
}

/// The same, if that is known already. Does not fail.
#[inline]
pub fn known_declared(info: &RelInfo) -> Option<&PrimaryKey> {
    known(info).filter(|key| key.declared)
}

/// Does no snapshot need rows from before `from` any more?
#[cold]
fn is_complete(index: &Primary, from: Csn) -> bool {
    let e = shmem::engine();
    if from == Csn::MAX || e.known_min_floor() < from && e.refresh_min_floor(&PG) < from {
        return false;
    }
    index.set_complete_from(0); // floors only grow
    true
}

unsafe fn find_key(rel: pg_sys::Relation, info: &RelInfo, kept: &Kept) -> Option<PrimaryKey> {
    kept.codec.as_ref()?;
    // SAFETY: `rel` is open and of ours: contract of `key`. The index exists while its table is
    // locked; `at` is one of its key columns.
    unsafe {
        let w = of_spec(rel, kept.index.spec())?;
        let r = pg_sys::index_open(w.index, pg_sys::AccessShareLock as i32);
        let hollow = w.whole && compat::is_hollow(r);
        if hollow {
            compat::poison(r);
        }
        let place = |c: i16| {
            let at = w.codec.attnums.iter().position(|a| *a == c)?;
            info.partkey.agrees_with(r, at, c).then_some(at)
        };
        let partition: Option<Vec<usize>> = info.partkey.columns().map(place).collect();
        pg_sys::index_close(r, pg_sys::NoLock as i32);
        let partition = partition.filter(|p| !p.is_empty());
        let served = Cell::new(0);
        let (index, codec, declared) = (w.index, w.codec, w.declared);
        let (primary, nth) = (kept.index, kept.nth);
        Some(PrimaryKey { index, codec, primary, nth, declared, partition, hollow, served })
    }
}

/// The index in memory of this spec, if the relation asks for it.
unsafe fn of_spec(rel: pg_sys::Relation, spec: &[u8]) -> Option<Wanted> {
    // SAFETY: `rel` is open and of ours: contract of `find_key`, the only caller. An index in its
    // list exists while the table is locked.
    unsafe {
        let named = codec::index_of_spec(spec);
        let oid = named.unwrap_or_else(|| compat::primary_key_index(rel));
        if oid == pg_sys::InvalidOid || named.is_some_and(|oid| !has_index(rel, oid)) {
            return None;
        }
        // The index is used from now on: with a lock that stays.
        let index = pg_sys::index_open(oid, pg_sys::AccessShareLock as i32);
        let wanted = match named {
            Some(_) => of_unique(rel, index, true).filter(|_| compat::is_hollow(index)),
            None => wanted_of(index),
        };
        pg_sys::index_close(index, pg_sys::NoLock as i32);
        wanted.filter(|w| w.spec == spec)
    }
}
