//! The engine's primary index of a table, beside the nbtree of its PRIMARY KEY: how it is made and
//! kept up, and when it may be used.
//!
//! A table has one if the key is checked at once and all its columns have exact bytes
//! (`keys/codec.rs`, order 0). Its keys are those of the key's nbtree index as `keys` makes them.
//! So the logical ranges of the nbtree index, under its OID, are the ranges of this index too:
//! writers register in one set for both.
//!
//! **INV-PRIMARY**: Every version of a record with an entry has the entry's key, because an update
//! of the key's columns moves the row to a new record (`RelInfo::moving`). Every row that a
//! snapshot at `complete_from` or later sees has an entry. Its insert adds the entry before it
//! commits, and the index is built while the table is locked exclusively. The index is used only if
//! no older snapshot is left.

use crate::access::ranges::rows::{self, Row};
use crate::access::ranges::{self};
use crate::keys::codec::{self, Codec};
use crate::pg;
use crate::pg::{compat, raw};
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::rel::{self, Kept, PrimaryKey, RelInfo};
use crate::state::{shmem, xact};
use mixedcc_engine::csn::Csn;
use mixedcc_engine::index::{Primary, Reuse};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::record::{Successor, Version};
use mixedcc_engine::{Engine, RecordRef, Table, Txn};
use pgrx::pg_sys::{self, Oid};
use std::cell::Cell;
use std::ptr::NonNull;

/// What the primary index of a relation should be.
pub struct Wanted {
    /// See [`Primary::spec`].
    pub spec: Vec<u8>,
    index: Oid,
    codec: &'static Codec,
}

thread_local! {
    /// Room for a key.
    static KEY: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The primary index that the PRIMARY KEY of a relation asks for.
///
/// # Safety
/// An open relation of ours.
pub unsafe fn wanted(rel: pg_sys::Relation) -> Option<Wanted> {
    // SAFETY: `rel` is open and of ours (contract of this function). The key's index exists while
    // its table is locked, and is open while its fields are read.
    unsafe {
        let index = crate::pg::compat::primary_key_index(rel);
        if index == pg_sys::InvalidOid {
            return None;
        }
        let r = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
        let form = (*r).rd_index;
        let fits = (*form).indisvalid && (*form).indisunique && (*form).indimmediate;
        let codec = if fits { codec::of(r) } else { None };
        pg_sys::index_close(r, pg_sys::NoLock as i32);
        Some(Wanted { spec: codec?.spec()?, index, codec: codec? })
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

/// The PRIMARY KEY of a relation, if its primary index has the same keys.
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

/// Does no snapshot need rows from before `from` any more?
#[cold]
fn is_complete(index: &Primary, from: Csn) -> bool {
    let e = shmem::engine();
    if from == Csn::MAX || e.shared.min_pin.0.load(Ordering::SeqCst) < from && e.refresh_min_pin(&PG) < from {
        return false;
    }
    index.set_complete_from(0); // pins only grow
    true
}

unsafe fn find_key(rel: pg_sys::Relation, info: &RelInfo, kept: &Kept) -> Option<PrimaryKey> {
    kept.codec.as_ref()?;
    // SAFETY: `rel` is open and of ours: contract of `key`. The index exists while its table is
    // locked; `at` is one of its key columns.
    unsafe {
        let w = wanted(rel).filter(|w| w.spec == kept.index.spec())?;
        let r = pg_sys::index_open(w.index, pg_sys::AccessShareLock as i32);
        let place = |c: i16| {
            let at = w.codec.attnums.iter().position(|a| *a == c)?;
            info.partkey.agrees_with(r, at, c).then_some(at)
        };
        let partition: Option<Vec<usize>> = info.partkey.columns().map(place).collect();
        pg_sys::index_close(r, pg_sys::NoLock as i32);
        let partition = partition.filter(|p| !p.is_empty());
        Some(PrimaryKey { index: w.index, codec: w.codec, primary: kept.index, partition })
    }
}

/// Adds the entry of a row that was inserted just now, and tells the ranges its keys.
///
/// # Safety
/// A relation of ours and a slot of its row type, with the row of the record, which is the
/// transaction's newest write.
#[inline]
pub unsafe fn enter(
    rel: pg_sys::Relation,
    info: &RelInfo,
    t: &mut Txn,
    r: RecordRef,
    slot: *mut pg_sys::TupleTableSlot,
) {
    let Some(n) = t.newest_write() else { return };
    // SAFETY: `rel` is open and of ours, and `slot` has the row of `r` (contract of this function).
    // The codec's columns are columns of the row type.
    unsafe {
        let Some((kept, codec)) = info.primary.as_ref().and_then(|k| Some((k, k.codec.as_ref()?))) else {
            return ranges::note_new(rel, info, n, Row::Slot(slot), None);
        };
        xact::renew_pin();
        let last = match short_key(codec, slot) {
            Some((bytes, len)) => enter_key(rel, info, t, r, n, slot, kept, &bytes[..len]),
            None => {
                let mut key = KEY.take();
                key.clear();
                let there = rows::plain(rel, codec, Row::Slot(slot), &mut key).is_some();
                debug_assert!(there, "the primary index has all rows");
                let last = enter_key(rel, info, t, r, n, slot, kept, &key);
                KEY.set(key);
                last
            }
        };
        if kept.note_place(last) {
            remember_last_leaf(rel, info);
        }
    }
}

/// What [`enter`] does with the row's key. Was the entry put behind all others?
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn enter_key(
    rel: pg_sys::Relation,
    info: &RelInfo,
    t: &mut Txn,
    r: RecordRef,
    n: u32,
    slot: *mut pg_sys::TupleTableSlot,
    kept: &Kept,
    key: &[u8],
) -> bool {
    let last = ok(t.add_entry(&PG, r, key));
    let made = kept.known_key().map(|k| (k.index, key));
    // SAFETY: `rel` is open, `slot` of its row type, and `n` the write of the row: contract of
    // `enter`.
    unsafe { ranges::note_new(rel, info, n, Row::Slot(slot), made) };
    last
}

/// The bytes of the key of the row in a slot, and how many they are, if they are few, of integers
/// without a NULL: those that [`rows::plain`] makes.
#[inline]
unsafe fn short_key(codec: &Codec, slot: *mut pg_sys::TupleTableSlot) -> Option<([u8; 8], usize)> {
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

/// Tells nbtree which page is the last leaf of the PRIMARY KEY's index, if it does not know.
#[cold]
unsafe fn remember_last_leaf(rel: pg_sys::Relation, info: &RelInfo) {
    // SAFETY: `rel` is open and of ours: contract of `enter`. The index exists and is nbtree's
    // while its table is locked for writing. An ERROR jumps over this frame, and the resource owner
    // closes the index.
    unsafe {
        let Some(key) = key(rel, info) else { return };
        let index = raw::RelationIdGetRelation(key.index);
        if !index.is_null() {
            compat::remember_last_leaf(index);
            raw::RelationClose(index);
        }
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
    let mut key = KEY.take();
    key.clear();
    // SAFETY: `rel` is open and of ours, and `old` is reachable and of its row type (contract of
    // this function).
    let has_entry = unsafe { rows::plain(rel, codec, Row::Version(old.as_ptr()), &mut key) }.is_some();
    let tombstone = ok(t.new_tombstone(to, has_entry.then_some(&key)));
    KEY.set(key);
    tombstone
}

/// An index that is being built; freed if an error unwinds.
struct Building {
    e: Engine,
    index: Option<&'static Primary>,
}

impl Drop for Building {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            // SAFETY: `index` was made by `build` and not handed over, so that no other process or
            // transaction has it.
            unsafe { index.destroy(&self.e, shmem::my_slot()) };
        }
    }
}

/// Brings the primary index in line with the PRIMARY KEY, after commands that may have changed it.
/// They have locked the table against writers at least (a partition, when its parent gets a key);
/// where a command has not, there is nothing to do.
///
/// # Safety
/// An open relation of ours.
pub unsafe fn sync(rel: pg_sys::Relation) {
    // SAFETY: `rel` is open and of ours (contract of this function). With its ACCESS EXCLUSIVE lock
    // no other session uses the index that is replaced.
    unsafe {
        let table = rel::info(rel).table;
        let wanted = wanted(rel);
        if table.primary().map(Primary::spec) == wanted.as_ref().map(|w| &w.spec[..])
            || !pg_sys::CheckRelationLockedByMe(rel, pg_sys::ShareLock as i32, true)
        {
            return;
        }
        pg_sys::LockRelationOid((*rel).rd_id, pg_sys::AccessExclusiveLock as i32);
        let mut building = Building { e: shmem::engine(), index: None };
        if let Some(w) = &wanted {
            building.index = Some(build(rel, table, w, &building.e));
        }
        xact::replace_primary(table, building.index);
        building.index = None;
        pg_sys::CacheInvalidateRelcacheByRelid((*rel).rd_id);
    }
}

/// Makes an index of all rows. The caller holds the table exclusively: no other session has open
/// writes in it.
unsafe fn build(rel: pg_sys::Relation, table: &'static Table, w: &Wanted, e: &Engine) -> &'static Primary {
    let index = ok(Primary::create(e, shmem::my_slot(), 0, Reuse::Vacuum, &w.spec).map_err(Into::into));
    let mut building = Building { e: *e, index: Some(index) };
    let t = xact::txn();
    xact::renew_pin();
    let mut key = Vec::new();
    let mut has_past = false;
    for no in 0..table.len() {
        if no % 1024 == 0 {
            pgrx::check_for_interrupts!();
        }
        let Some(r) = RecordRef::find(table, no) else { continue };
        // Also of a row that is deleted by now: a snapshot from before the delete will not find it.
        has_past |= !is_own_insert(t, r) && !r.rec.head().is_null();
        let Some(v) = row(t, r) else { continue };
        key.clear();
        // SAFETY: `rel` is open: contract of `sync`. `v` is a version of it with a row, reached
        // under our pin (INV-RETIRE).
        if unsafe { rows::plain(rel, w.codec, Row::Version(v.as_ptr()), &mut key) }.is_some() {
            ok(index.add(e, shmem::my_slot(), &PG, no, &key));
        }
    }
    if has_past {
        // Until the commit, and until all snapshots of now are gone (state/xact/pending.rs).
        index.set_complete_from(Csn::MAX);
    }
    building.index = None;
    index
}

fn is_own_insert(t: &Txn, r: RecordRef) -> bool {
    t.last_write(r).and_then(|n| t.write(n)).is_some_and(|w| w.base.is_none())
}

/// The row of a record: our newest, or the newest committed one.
fn row(t: &mut Txn, r: RecordRef) -> Option<NonNull<Version>> {
    if let Some(n) = t.last_write(r) {
        return crate::access::visible::own_version(t, n);
    }
    let (v, _) = ok(t.newest(&PG, r.rec))?;
    // SAFETY: `v` is the newest version of a record, reached under our pin (INV-RETIRE).
    unsafe { crate::access::visible::live(Some(v)) }
}
