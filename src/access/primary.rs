//! The engine's primary index of a table: how it is made and kept up, and when it may be used.
//!
//! A table has one if its PRIMARY KEY is checked at once and all the key's columns have exact bytes
//! (`keys/codec.rs`, order 0). Its keys are those of the key's index in the catalogs, as `keys`
//! makes them. That index is *hollow* (`access/hollow/`): nbtree stores nothing of it, and the
//! primary index does the unique checks. Keys with INCLUDE columns and some old ones have entries
//! in nbtree as well, which does the checks then.
//!
//! In a table without a PRIMARY KEY a *unique index* may have it, if each of its columns is plain
//! and NOT NULL. Which one that is, its file says: that of the only hollow index. It became hollow
//! when it was built, because no other one was. The spec of its primary index names it. So the
//! primary index of one unique index is never taken for that of another one with the same columns,
//! which may not have been checked.
//!
//! The logical ranges of the catalogs' index, under its OID, are the ranges of this index too:
//! writers register in one set.
//!
//! **INV-ONE-HOLLOW**: A table has at most one hollow index, and its primary index is that of this
//! one, except within a command. For a build makes an index hollow only if no other one is, and
//! gives the table its primary index at once. Commands that take away what a hollow unique index
//! needs (NOT NULL, or that there is no PRIMARY KEY) build it anew at their end, with entries in
//! nbtree ([`sync`]). Until then, and if some command did not, the poisoned file lets no scan and
//! no insert pass.
//!
//! **INV-PRIMARY**: Every version of a record with an entry has the entry's key, because an update
//! of the key's columns moves the row to a new record (`RelInfo::moving`). Every row that a
//! snapshot at `complete_from` or later sees has an entry. Its insert adds the entry before it
//! commits, and the index is built while the table is locked exclusively. The index is used only if
//! no older snapshot is left.

use crate::access::ranges::rows::{self, Row};
use crate::access::{hollow, ranges, tuple, visible};
use crate::keys::codec::{self, Codec};
use crate::pg;
use crate::pg::compat;
use crate::pg::local::Local;
use crate::state::errors::ok;
use crate::state::making::Making;
use crate::state::platform::PG;
use crate::state::rel::{self, Kept, PrimaryKey, RelInfo};
use crate::state::{shmem, stop, xact};
use mixedcc_engine::csn::Csn;
use mixedcc_engine::index::{Filler, Primary, Reuse, Unique};
use mixedcc_engine::record::{Successor, Version};
use mixedcc_engine::txn::Entered;
use mixedcc_engine::{Engine, Error, RecordRef, Table, Txn};
use pgrx::pg_sys::{self, Oid};
use std::cell::Cell;
use std::ptr::NonNull;

/// What the primary index of a relation should be.
pub struct Wanted {
    /// See [`Primary::spec`].
    pub spec: Vec<u8>,
    /// Are the key's columns all that its index has, so that it can be hollow?
    pub whole: bool,
    /// The key's index.
    pub index: Oid,
    /// Is it that of a PRIMARY KEY?
    pub declared: bool,
    /// Is a NULL in its key like another one (NULLS NOT DISTINCT)?
    alike: bool,
    codec: &'static Codec,
}

/// Of the process: room for a key. Taken while it is used.
static KEY: Local<Vec<u8>> = Local::new(Vec::new());

/// The primary index that a relation asks for: that of its hollow unique index, or of its PRIMARY
/// KEY.
///
/// # Safety
/// An open relation of ours.
pub unsafe fn wanted(rel: pg_sys::Relation) -> Option<Wanted> {
    // SAFETY: `rel` is open and of ours (contract of this function).
    unsafe {
        let (all, _) = hollow_uniques(rel);
        let unique = kept_of(rel, &all).and_then(|oid| with_index(oid, |index| of_unique(rel, index, true))?);
        unique.or_else(|| of_primary_key(rel))
    }
}

/// The primary index that the PRIMARY KEY of a relation asks for.
unsafe fn of_primary_key(rel: pg_sys::Relation) -> Option<Wanted> {
    // SAFETY: `rel` is open and of ours: contract of the callers. The key's index exists while its
    // table is locked.
    unsafe {
        let index = compat::primary_key_index(rel);
        (index != pg_sys::InvalidOid).then(|| with_index(index, |index| wanted_of(index)))??
    }
}

/// Runs `f` with an index of a locked table, for a look at its definition and its file. It does not
/// wait for the index's lock, and keeps none: a session that builds the index may wait for the
/// caller. The file of before stays until that session has committed. `None`: the index is gone.
unsafe fn with_index<R>(oid: Oid, f: impl FnOnce(pg_sys::Relation) -> R) -> Option<R> {
    // SAFETY: any OID can be locked, and is answered, by an index or null. The index is open while
    // `f` runs. An ERROR gives back both.
    unsafe {
        let mode = pg_sys::AccessShareLock as i32;
        let is_locked = pg_sys::ConditionalLockRelationOid(oid, mode);
        if !is_locked {
            pg_sys::AcceptInvalidationMessages(); // as a lock does
        }
        let index = pg_sys::RelationIdGetRelation(oid);
        let result = (!index.is_null()).then(|| {
            let result = f(index);
            pg_sys::RelationClose(index);
            result
        });
        if is_locked {
            pg_sys::UnlockRelationOid(oid, mode);
        }
        result
    }
}

/// The primary index that an index asks for, if it is that of a PRIMARY KEY.
///
/// # Safety
/// An open index of a relation of ours.
pub unsafe fn wanted_of(index: pg_sys::Relation) -> Option<Wanted> {
    // SAFETY: `index` is open while its fields are read (contract of this function).
    unsafe {
        let form = (*index).rd_index;
        let fits = (*form).indisprimary && (*form).indisvalid && (*form).indisunique && (*form).indimmediate;
        let codec = if fits { codec::of(index) } else { None }?;
        let whole = (*form).indnatts == (*form).indnkeyatts;
        Some(Wanted { spec: codec.spec()?, whole, index: (*index).rd_id, declared: true, alike: false, codec })
    }
}

/// The primary index that a unique index may have which is no PRIMARY KEY. It need not be valid:
/// while DROP INDEX CONCURRENTLY waits, writers keep it up. `has`: it has one already, and keeps it
/// if its columns' types have got other operator classes by default.
unsafe fn of_unique(rel: pg_sys::Relation, index: pg_sys::Relation, has: bool) -> Option<Wanted> {
    // SAFETY: `rel` and `index` are open, and `index` is of `rel`: contract of the callers. Each
    // key column that is no expression is a column of `rel`.
    unsafe {
        let form = &*(*index).rd_index;
        let is_checked = form.indisunique && form.indimmediate && form.indisready && form.indislive;
        let whole = form.indnatts == form.indnkeyatts;
        if !is_checked || form.indisprimary || form.indisexclusion || !whole {
            return None;
        }
        let codec = codec::of(index)?;
        let spec = codec.spec_of_index()?;
        let plain = |i: usize| {
            is_plain(rel, index, i, codec.attnums[i], has) && !codec.attnums[..i].contains(&codec.attnums[i])
        };
        (0..codec.attnums.len()).all(plain).then_some(Wanted {
            spec,
            whole,
            index: codec.index,
            declared: false,
            alike: form.indnullsnotdistinct,
            codec,
        })
    }
}

/// Is a key column of an index one that a PRIMARY KEY may have: a column that is never NULL, in the
/// order and with the operators and the collation of its type? `has`: the operators were those of
/// its type once. The keys are of the index's own.
unsafe fn is_plain(rel: pg_sys::Relation, index: pg_sys::Relation, i: usize, attnum: i16, has: bool) -> bool {
    // SAFETY: `rel` and `index` are open, and `i` is one of the index's key columns: contract of
    // `of_unique`. Catalog look-ups of types and operator classes that exist.
    unsafe {
        if attnum <= 0 || *(*index).rd_indoption.add(i) != 0 {
            return false;
        }
        let att = compat::attribute((*rel).rd_att, attnum as usize - 1);
        let is_default = || {
            let class = pg_sys::GetDefaultOpClass(att.atttypid, pg_sys::Oid::from(pg_sys::BTREE_AM_OID));
            class != pg_sys::InvalidOid && *(*index).rd_opfamily.add(i) == pg_sys::get_opclass_family(class)
        };
        compat::is_never_null((*rel).rd_att, attnum as usize - 1)
            && *(*index).rd_indcollation.add(i) == att.attcollation
            && (has || is_default())
    }
}

/// The hollow indexes of a relation but that of a PRIMARY KEY which the primary index can serve.
/// They may have become ones that it cannot serve, as by USING INDEX ... DEFERRABLE. And whether
/// there is a PRIMARY KEY.
unsafe fn hollow_uniques(rel: pg_sys::Relation) -> (Vec<Oid>, bool) {
    // SAFETY: `rel` is open: contract of the callers. The list is a copy, freed once. Its indexes
    // exist while the table is locked.
    unsafe {
        let list = pg_sys::RelationGetIndexList(rel);
        let mut declared = false;
        let mut found = Vec::new();
        for oid in pgrx::PgList::<Oid>::from_pg(list).iter_oid() {
            with_index(oid, |index| {
                let form = &*(*index).rd_index;
                declared |= form.indisprimary;
                let may_be = form.indisunique && !wanted_of(index).is_some_and(|w| w.whole);
                let is_btree = (*(*index).rd_rel).relam == Oid::from(pg_sys::BTREE_AM_OID);
                if may_be && is_btree && compat::is_hollow(index) {
                    found.push(oid);
                }
            });
        }
        pg_sys::list_free(list);
        (found, declared)
    }
}

/// Which one of its hollow unique indexes does the primary index of a relation serve? The one that
/// it names; else the first that can have one.
unsafe fn kept_of(rel: pg_sys::Relation, all: &[Oid]) -> Option<Oid> {
    // SAFETY: `rel` is open: contract of the callers. The indexes are its own.
    let fits = |oid: &&Oid| unsafe { with_index(**oid, |index| of_unique(rel, index, true).is_some()) } == Some(true);
    if all.is_empty() {
        return None;
    }
    // SAFETY: as above.
    let table = unsafe { rel::known_table_of(rel) };
    let named = table.and_then(|t| codec::index_of_spec(t.primary()?.spec()));
    named.iter().filter(|oid| all.contains(oid)).find(fits).or_else(|| all.iter().find(fits)).copied()
}

/// The primary index of this spec, if the relation asks for it.
unsafe fn of_spec(rel: pg_sys::Relation, spec: &[u8]) -> Option<Wanted> {
    // SAFETY: `rel` is open and of ours: contract of `key`, the only caller. An index in its list
    // exists while the table is locked.
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

/// Is it one of the relation's indexes that are not being dropped?
unsafe fn has_index(rel: pg_sys::Relation, oid: Oid) -> bool {
    // SAFETY: `rel` is open: contract of the callers. The list is a copy, freed once.
    unsafe {
        let list = pg_sys::RelationGetIndexList(rel);
        let found = pg_sys::list_member_oid(list, oid);
        pg_sys::list_free(list);
        found
    }
}

/// The spec of that index.
///
/// # Safety
/// As for [`wanted`].
pub unsafe fn spec(rel: pg_sys::Relation) -> Option<Vec<u8>> {
    // SAFETY: `rel` is open and of ours (contract of this function).
    unsafe { wanted(rel) }.map(|w| w.spec)
}

/// The same, where the relation's files are not as they were committed. `hollow`: the unique index
/// that was hollow then. It takes no lock of that: another session that builds it may wait for the
/// caller.
///
/// # Safety
/// As for [`wanted`].
pub unsafe fn spec_of_committed(rel: pg_sys::Relation, hollow: Option<Oid>) -> Option<Vec<u8>> {
    // SAFETY: `rel` is open and of ours (contract of this function). An index in its list exists
    // while the table is locked.
    unsafe {
        let unique = hollow
            .filter(|oid| has_index(rel, *oid))
            .and_then(|oid| with_index(oid, |index| of_unique(rel, index, true))?.map(|w| w.spec));
        unique.or_else(|| of_primary_key(rel).map(|w| w.spec))
    }
}

/// Is an index that is being built to be a hollow one? Without a lock: each process of a parallel
/// build asks.
///
/// # Safety
/// An open relation of ours that is locked against writers, and an open index of it.
pub unsafe fn is_to_be_hollow(rel: pg_sys::Relation, index: pg_sys::Relation) -> bool {
    // SAFETY: `rel` and `index` are open (contract of this function). Another index in the list
    // exists while the table is locked.
    unsafe {
        let is_key = wanted_of(index).is_some_and(|w| w.whole);
        let valid = (*(*index).rd_index).indisvalid;
        if !is_key && !(valid && of_unique(rel, index, true).is_some() && !has_primary_key(rel)) {
            return false;
        }
        // INV-ONE-HOLLOW
        let served = rel::info(rel).table.primary().and_then(|p| codec::index_of_spec(p.spec()));
        let has = served == Some((*index).rd_id);
        if !is_key && of_unique(rel, index, has).is_none() {
            return false;
        }
        let other = served.filter(|oid| !has && has_index(rel, *oid));
        let other = other.and_then(|oid| with_index(oid, |index| compat::is_hollow(index)));
        other != Some(true) && compat::may_be_hollow(index)
    }
}

/// The same, by the process that builds it: it takes what it needs. The primary index is replaced
/// under the table's ACCESS EXCLUSIVE lock. A command that builds a unique index beside readers
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
        if (*(*index).rd_index).indisprimary || is_made(rel::info(rel).table, wanted_by(rel, index).as_ref()) {
            return true;
        }
        pg_sys::ConditionalLockRelationOid((*rel).rd_id, pg_sys::AccessExclusiveLock as i32)
            && is_to_be_hollow(rel, index)
    }
}

/// The primary index that an index asks for.
unsafe fn wanted_by(rel: pg_sys::Relation, index: pg_sys::Relation) -> Option<Wanted> {
    // SAFETY: `rel` and `index` are open: contract of the callers.
    unsafe { wanted_of(index).or_else(|| of_unique(rel, index, true)) }
}

unsafe fn has_primary_key(rel: pg_sys::Relation) -> bool {
    // SAFETY: `rel` is open: contract of the callers. The list is a copy, freed once. A row of the
    // catalog is released after its last use.
    unsafe {
        let list = pg_sys::RelationGetIndexList(rel);
        let is_declared = |oid: Oid| {
            let row = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::INDEXRELID as i32, oid.into());
            if row.is_null() {
                return false;
            }
            let declared = (*pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_index>()).indisprimary;
            pg_sys::ReleaseSysCache(row);
            declared
        };
        let found = pgrx::PgList::<Oid>::from_pg(list).iter_oid().any(is_declared);
        pg_sys::list_free(list);
        found
    }
}

/// Would a build of one of the relation's unique indexes give it its primary index? Such a build
/// needs the table's ACCESS EXCLUSIVE lock, and its command had better begin with it.
///
/// # Safety
/// An open relation of ours.
pub unsafe fn is_open_to_unique(rel: pg_sys::Relation) -> bool {
    // SAFETY: `rel` is open and of ours (contract of this function).
    unsafe { !has_primary_key(rel) && hollow_uniques(rel).0.is_empty() }
}

/// May a unique index of these columns be hollow: are they never NULL, and of exact types in their
/// default order? A name that is none of the relation's columns is not taken for one.
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
        names.iter().all(|name| find(name).is_some_and(fits))
    }
}

/// Has a relation a unique index that could be hollow?
///
/// # Safety
/// An open relation of ours.
pub unsafe fn has_fitting_unique(rel: pg_sys::Relation) -> bool {
    // SAFETY: `rel` is open (contract of this function). Its indexes exist while it is locked. The
    // list is a copy, freed once.
    unsafe {
        let list = pg_sys::RelationGetIndexList(rel);
        let fits = |oid| with_index(oid, |index| of_unique(rel, index, false).is_some()) == Some(true);
        let found = pgrx::PgList::<Oid>::from_pg(list).iter_oid().any(fits);
        pg_sys::list_free(list);
        found
    }
}

/// The hollow unique index of a table which is no PRIMARY KEY.
///
/// # Safety
/// An open relation of ours.
pub unsafe fn hollow_unique(rel: pg_sys::Relation) -> Option<Oid> {
    // SAFETY: `rel` is open and of ours (contract of this function).
    unsafe { hollow_uniques(rel).0.first().copied() }
}

/// The PRIMARY KEY of a relation, or its hollow unique index, if its primary index has the same
/// keys.
///
/// # Safety
/// An open relation of ours, and its info.
#[inline]
pub unsafe fn key(rel: pg_sys::Relation, info: &RelInfo) -> Option<&PrimaryKey> {
    let kept = info.primary.as_ref()?;
    // SAFETY: `rel` is open and of ours, and `info` is its info (contract of this function).
    kept.key.get_or_init(|| unsafe { find_key(rel, info, kept) }).as_ref()
}

/// The key by which the primary index of a relation can be used now, by whatever snapshot.
///
/// # Safety
/// As for [`key`].
#[inline]
pub unsafe fn usable(rel: pg_sys::Relation, info: &RelInfo) -> Option<&PrimaryKey> {
    // SAFETY: `rel` is open and of ours, and `info` is its info (contract of this function).
    let key = unsafe { key(rel, info) }?;
    let from = key.primary.complete_from();
    (from == 0 || is_complete(key.primary, from)).then_some(key)
}

/// The same, if that is known already. Does not fail.
#[inline]
pub fn known(info: &RelInfo) -> Option<&PrimaryKey> {
    let key = info.primary.as_ref()?.known_key()?;
    (key.primary.complete_from() == 0).then_some(key)
}

/// The PRIMARY KEY by which the primary index can be used now; that of a unique index is none.
///
/// # Safety
/// As for [`key`].
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
        Some(PrimaryKey { index, codec, primary: kept.index, declared, partition, hollow, served })
    }
}

/// The bytes of a row's key, and how many they are, if they are few.
pub type ShortKey = Option<([u8; 8], usize)>;

/// Prefetches what [`enter`] will change for the row in a slot, which will be inserted. Returns the
/// row's key, if it is short.
///
/// # Safety
/// A valid slot of the relation's row type. An ERROR jumps over this frame.
#[inline]
pub unsafe fn announce(info: &RelInfo, slot: *mut pg_sys::TupleTableSlot) -> ShortKey {
    let (kept, codec) = info.primary.as_ref().and_then(|k| Some((k, k.codec()?)))?;
    // SAFETY: `slot` is valid and of the row type (contract of this function).
    let short = unsafe { short_key(codec, slot) };
    if let Some((key, len)) = &short {
        kept.index.announce(&key[..*len]);
    }
    short
}

/// Adds the entry of a row that was inserted just now, and tells the ranges its keys. If the key is
/// hollow, this is its unique check: the entry is not added if another row has the key or may come
/// to have it, and `aminsert` sees to that (`access/hollow/insert.rs`).
///
/// # Safety
/// A relation of ours and a slot of its row type, with the row of the record, whose insert is the
/// transaction's write `n`, and whose key [`announce`] has returned. The row that it replaces, if
/// any, is deleted already.
#[inline]
pub unsafe fn enter(
    rel: pg_sys::Relation,
    info: &RelInfo,
    t: &mut Txn,
    r: RecordRef,
    n: u32,
    slot: *mut pg_sys::TupleTableSlot,
    short: ShortKey,
) {
    // SAFETY: `rel` is open and of ours, and `slot` has the row of `r` (contract of this function).
    // The codec's columns are columns of the row type.
    unsafe {
        let Some(codec) = info.primary.as_ref().and_then(Kept::codec) else {
            return ranges::note_new(rel, info, n, Row::Slot(slot), None);
        };
        xact::renew_pin();
        match short {
            Some((bytes, len)) => enter_key(rel, info, t, r, n, slot, &bytes[..len]),
            None => {
                let mut key = KEY.take();
                key.clear();
                let there = rows::plain(rel, codec, Row::Slot(slot), &mut key).is_some();
                debug_assert!(there, "the primary index has all rows");
                enter_key(rel, info, t, r, n, slot, &key);
                KEY.set(key);
            }
        };
    }
}

/// What [`enter`] does with the row's key.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn enter_key(
    rel: pg_sys::Relation,
    info: &RelInfo,
    t: &mut Txn,
    r: RecordRef,
    n: u32,
    slot: *mut pg_sys::TupleTableSlot,
    key: &[u8],
) {
    // SAFETY: `rel` is open, `slot` of its row type, and `n` the write of the row: contract of
    // `enter`.
    unsafe {
        let known = self::key(rel, info);
        let unique = if known.is_some_and(|k| k.hollow) { Unique::Check } else { Unique::Unchecked };
        let entered = ok(t.enter(&PG, r, key, unique));
        if let Some(k) = known.filter(|k| k.hollow) {
            hollow::note(info, k.index, r.no, matches!(entered, Entered::Free));
        }
        ranges::note_new(rel, info, n, Row::Slot(slot), known.map(|k| (k.index, key)));
    }
}

/// The bytes of the key of the row in a slot, and how many they are, if they are few, of integers
/// without a NULL: those that [`rows::plain`] makes.
#[inline]
unsafe fn short_key(codec: &Codec, slot: *mut pg_sys::TupleTableSlot) -> ShortKey {
    // SAFETY: `slot` is of the relation's row type: contract of `enter`. The codec's columns are
    // columns of it, and `have_columns` fills the arrays up to each.
    unsafe {
        for &a in &codec.attnums {
            pg::have_columns(slot, a as i32);
            if *(*slot).tts_isnull.add(a as usize - 1) {
                return None;
            }
        }
        let value = |i: usize| (*(*slot).tts_values.add(codec.attnums[i] as usize - 1), pg_sys::InvalidOid);
        codec.short(codec.columns.len(), value).map(|k| k.bytes())
    }
}

/// The same of a version's row, if its columns have known places.
#[inline]
unsafe fn short_key_of(rel: pg_sys::Relation, codec: &Codec, v: NonNull<Version>) -> Option<([u8; 8], usize)> {
    if let [a] = codec.attnums[..] {
        // SAFETY: `v` is reachable and of the relation's row type: contract of `tombstone`. The
        // codec's column is one of it.
        let value = unsafe { tuple::value_at_place(v, (*rel).rd_att, usize::try_from(a - 1).ok()?) }?;
        return codec.short(codec.columns.len(), |_| (value, pg_sys::InvalidOid)).map(|k| k.bytes());
    }
    let mut values = [pg_sys::Datum::from(0); 2];
    let columns = values.get_mut(..codec.attnums.len())?;
    for (to, &a) in columns.iter_mut().zip(&codec.attnums) {
        // SAFETY: `v` is reachable and of the relation's row type: contract of `tombstone`. The
        // codec's columns are columns of it.
        *to = unsafe { tuple::value_at_place(v, (*rel).rd_att, usize::try_from(a - 1).ok()?) }?;
    }
    codec.short(codec.columns.len(), |i| (values[i], pg_sys::InvalidOid)).map(|k| k.bytes())
}

/// The key of the entry of a version's row: `Some(None)` if it has no entry, and `None` if its key
/// is not short.
///
/// # Safety
/// As for [`tombstone`].
#[inline]
pub unsafe fn short_key_of_entry(rel: pg_sys::Relation, info: &RelInfo, v: NonNull<Version>) -> Option<ShortKey> {
    match info.primary.as_ref().and_then(|k| k.codec.as_ref()) {
        // SAFETY: the contract of this function.
        Some(codec) => unsafe { short_key_of(rel, codec, v) }.map(Some),
        None => Some(None),
    }
}

/// The tombstone of a row that is deleted or moved: with the key of its entry, so that this can
/// vanish (INV-DEAD of the engine). `old`: a version of the row; `None`: it is our own insert,
/// whose key the engine knows.
///
/// # Safety
/// A relation of ours, and a reachable version of its row type.
#[inline]
pub unsafe fn tombstone(
    rel: pg_sys::Relation,
    info: &RelInfo,
    t: &mut Txn,
    to: Successor,
    old: Option<NonNull<Version>>,
) -> NonNull<Version> {
    let codec = info.primary.as_ref().and_then(|k| k.codec.as_ref());
    let Some((codec, old)) = codec.zip(old) else { return ok(t.new_tombstone(to, None)) };
    // SAFETY: `rel` is open and of ours, and `old` is reachable and of its row type (contract of
    // this function).
    if let Some((key, len)) = unsafe { short_key_of(rel, codec, old) } {
        return ok(t.new_tombstone(to, Some(&key[..len])));
    }
    let mut key = KEY.take();
    key.clear();
    // SAFETY: as above.
    let has_entry = unsafe { rows::plain(rel, codec, Row::Version(old.as_ptr()), &mut key) }.is_some();
    let tombstone = ok(t.new_tombstone(to, has_entry.then_some(&key)));
    KEY.set(key);
    tombstone
}

/// Brings the primary index in line with the table's indexes, after commands that may have changed
/// it. They have locked the table against writers at least (a partition, when its parent gets a
/// key); where a command has not, there is nothing to do. A command that has built the key's index
/// has made the primary index then ([`build_key`]).
///
/// # Safety
/// An open relation of ours.
pub unsafe fn sync(rel: pg_sys::Relation) {
    // SAFETY: `rel` is open and of ours (contract of this function).
    unsafe {
        if !pg_sys::CheckRelationLockedByMe(rel, pg_sys::ShareLock as i32, true) {
            return;
        }
        let key = refill(rel);
        let table = rel::info(rel).table;
        let wanted = wanted(rel);
        if !is_made(table, wanted.as_ref()) {
            replace(rel, table, wanted.as_ref());
        }
        // In the command that has made it, this unique index was hollow, so it got entries.
        if let Some((oid, persistence)) = key {
            compat::rebuild_index(oid, persistence);
        }
    }
}

/// Builds the hollow unique indexes anew that must not be hollow any more, with entries in nbtree
/// (INV-ONE-HOLLOW). Returns the PRIMARY KEY's index, and its persistence, if this command has made
/// it with entries because of them.
unsafe fn refill(rel: pg_sys::Relation) -> Option<(Oid, core::ffi::c_char)> {
    // SAFETY: `rel` is open and of ours: contract of `sync`. The transaction holds the table's lock
    // when it builds the indexes, and none of them is open then.
    unsafe {
        let (hollow, declared) = hollow_uniques(rel);
        let kept = if declared { None } else { kept_of(rel, &hollow) };
        let others: Vec<Oid> = hollow.into_iter().filter(|oid| Some(*oid) != kept).collect();
        if others.is_empty() {
            return None;
        }
        pg_sys::LockRelationOid((*rel).rd_id, pg_sys::AccessExclusiveLock as i32);
        for oid in others {
            let persistence = with_index(oid, |index| (*(*index).rd_rel).relpersistence);
            persistence.into_iter().for_each(|persistence| compat::rebuild_index(oid, persistence));
        }
        let key = compat::primary_key_index(rel);
        let is_new = |index: pg_sys::Relation| {
            let whole = wanted_of(index).is_some_and(|w| w.whole);
            let made = (*index).rd_createSubid != 0; // InvalidSubTransactionId
            (whole && made && !compat::is_hollow(index)).then(|| (key, (*(*index).rd_rel).relpersistence))
        };
        (key != pg_sys::InvalidOid).then(|| with_index(key, is_new))??
    }
}

fn is_made(table: &Table, wanted: Option<&Wanted>) -> bool {
    table.primary().map(Primary::spec) == wanted.map(|w| &w.spec[..])
}

/// The hollow index of a table is being built: makes the primary index, if the table has not
/// got it, as after REINDEX and TRUNCATE. Returns two rows that have one key, if there are any.
///
/// # Safety
/// An open relation of ours that is locked against writers, and an open index that can be hollow.
pub unsafe fn build_key(rel: pg_sys::Relation, index: pg_sys::Relation) -> Built {
    // SAFETY: `rel` and `index` are open (contract of this function).
    unsafe {
        let table = rel::info(rel).table;
        let wanted = wanted_by(rel, index);
        if is_made(table, wanted.as_ref()) {
            Built::default()
        } else {
            replace(rel, table, wanted.as_ref())
        }
    }
}

/// What the making of an index has met.
#[derive(Clone, Copy, Default)]
pub struct Built {
    /// Two records with one key.
    pub duplicate: Option<(u64, u64)>,
    /// May older snapshots see other rows, or other keys?
    pub has_past: bool,
}

/// Fills the primary index of a table that is being loaded with its committed rows: all but those
/// that `left_out` says. Returns two records with one key, if there are any.
///
/// # Safety
/// An open relation of ours, and its table, which no other process can reach. The caller is pinned.
pub unsafe fn fill(
    rel: pg_sys::Relation,
    table: &'static Table,
    left_out: impl Fn(u64) -> bool,
) -> Result<Option<(u64, u64)>, Error> {
    let Some((index, codec)) = table.primary().zip(codec_of(table)) else { return Ok(None) };
    let (e, slot) = (shmem::engine(), shmem::my_slot());
    let (mut key, mut filler) = (Vec::new(), Filler::new(index));
    for (no, r) in (0..table.len()).filter_map(|no| Some((no, table.record(no)?))) {
        if no % 1024 == 0 {
            pgrx::check_for_interrupts!();
        }
        let head = r.head();
        key.clear();
        // SAFETY: `rel` is open, and a head is a row of it that no other process frees (contract of
        // this function).
        let has_row = !head.is_null() && unsafe { !(*head).is_tombstone() };
        // SAFETY: as above.
        if has_row && !left_out(no) && unsafe { rows::plain(rel, &codec, Row::Version(head), &mut key) }.is_some() {
            filler.add(&e, slot, &PG, no, &key, true)?;
        }
    }
    filler.finish(&e, slot, &PG)?;
    Ok(filler.duplicate())
}

/// What makes the keys of a table's primary index. `None`: it has none, or one of a version that
/// this one does not know.
pub fn codec_of(table: &Table) -> Option<Codec> {
    Codec::from_spec(table.primary()?.spec())
}

/// Appends the key of a version in a primary index. False: it has none there.
///
/// # Safety
/// An open relation of ours, what makes the keys of its primary index, and a version of it with a
/// row.
pub unsafe fn key_of(rel: pg_sys::Relation, codec: &Codec, version: *const Version, to: &mut Vec<u8>) -> bool {
    // SAFETY: the contract of this function.
    unsafe { rows::plain(rel, codec, Row::Version(version), to) }.is_some()
}

/// Gives the table the primary index that is wanted. With the table's ACCESS EXCLUSIVE lock no
/// other session uses the one that is replaced.
unsafe fn replace(rel: pg_sys::Relation, table: &'static Table, wanted: Option<&Wanted>) -> Built {
    // SAFETY: `rel` is open: contract of `sync` and `build_key`.
    unsafe {
        pg_sys::LockRelationOid((*rel).rd_id, pg_sys::AccessExclusiveLock as i32);
        let (mut index, mut built) = (None, Built::default());
        if let Some(w) = wanted {
            let (made, of) = build(rel, table, w, &shmem::engine());
            (index, built) = (Some(made), of);
            if built.duplicate.is_some() {
                return built;
            }
        }
        xact::replace_primary(table, index);
        pg_sys::CacheInvalidateRelcacheByRelid((*rel).rd_id);
        built
    }
}

/// Makes an index of all rows. The caller holds the table exclusively: no other session has open
/// writes in it.
unsafe fn build(
    rel: pg_sys::Relation,
    table: &'static Table,
    w: &Wanted,
    e: &Engine,
) -> (Making<&'static Primary>, Built) {
    let slot = shmem::my_slot();
    let index = Making::index(ok(Primary::create(e, slot, 0, Reuse::Vacuum, &w.spec).map_err(Into::into)));
    let t = xact::txn();
    xact::renew_pin();
    t.rest_no_more();
    let oldest = t.e.pin_oldest(t.slot);
    let (mut key, mut built, mut filler) = (Vec::new(), Built::default(), Filler::new(*index));
    for no in 0..table.len() {
        if no % 1024 == 0 {
            stop::reach("primary-row");
            pgrx::check_for_interrupts!();
        }
        let Some(r) = RecordRef::find(table, no) else { continue };
        // SAFETY: versions are reached under our pin (INV-RETIRE).
        let Some(entry) = (unsafe { visible::to_index(t, r, Some(oldest)) }) else { continue };
        built.has_past |= entry.has_past;
        // A row that is deleted by now has no entry: a snapshot from before will not find it.
        let Some(version) = entry.version.filter(|_| entry.alive) else {
            built.has_past = true;
            continue;
        };
        key.clear();
        // SAFETY: `rel` is open: contract of `replace`. `entry` is a version of it with a row,
        // reached under our pin (INV-RETIRE).
        if unsafe { rows::plain(rel, w.codec, Row::Version(version.as_ptr()), &mut key) }.is_some() {
            // The command that builds the index may make its columns NOT NULL as well. It looks for
            // NULLs later, and fails then.
            // SAFETY: as above.
            let unique = w.alike || !unsafe { rows::has_null(rel, w.codec, version.as_ptr()) };
            ok(filler.add(e, slot, &PG, no, &key, unique));
        }
    }
    ok(filler.finish(e, slot, &PG));
    built.duplicate = filler.duplicate();
    if built.has_past {
        // Until the commit, and until all snapshots of now are gone (state/xact/pending.rs).
        index.set_complete_from(Csn::MAX);
    }
    (index, built)
}
