//! The engine's primary index of a table: how it is made and kept up, and when it may be used.
//!
//! A table has one if its PRIMARY KEY is checked at once and all the key's columns have exact bytes
//! (`keys/codec.rs`, order 0). Its keys are those of the key's index in the catalogs, as `keys`
//! makes them. That index is *hollow* (`access/hollow/`): nbtree stores nothing of it, and the
//! primary index does the unique checks. Keys with INCLUDE columns and some old ones have entries
//! in nbtree as well, which does the checks then.
//!
//! The logical ranges of the catalogs' index, under its OID, are the ranges of this index too:
//! writers register in one set.
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
use crate::state::platform::PG;
use crate::state::rel::{self, Kept, PrimaryKey, RelInfo};
use crate::state::{shmem, xact};
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
    codec: &'static Codec,
}

/// Of the process: room for a key. Taken while it is used.
static KEY: Local<Vec<u8>> = Local::new(Vec::new());

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
        let wanted = wanted_of(r);
        pg_sys::index_close(r, pg_sys::NoLock as i32);
        wanted
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
        Some(Wanted { spec: codec.spec()?, whole, index: (*index).rd_id, codec })
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
        let w = wanted(rel).filter(|w| w.spec == kept.index.spec())?;
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
        Some(PrimaryKey { index: w.index, codec: w.codec, primary: kept.index, partition, hollow, served })
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
/// where a command has not, there is nothing to do. A command that has built the key's index has
/// made the primary index then ([`build_key`]).
///
/// # Safety
/// An open relation of ours.
pub unsafe fn sync(rel: pg_sys::Relation) {
    // SAFETY: `rel` is open and of ours (contract of this function).
    unsafe {
        let table = rel::info(rel).table;
        let wanted = wanted(rel);
        if is_made(table, wanted.as_ref()) || !pg_sys::CheckRelationLockedByMe(rel, pg_sys::ShareLock as i32, true) {
            return;
        }
        replace(rel, table, wanted.as_ref());
    }
}

fn is_made(table: &Table, wanted: Option<&Wanted>) -> bool {
    table.primary().map(Primary::spec) == wanted.map(|w| &w.spec[..])
}

/// The hollow index of a PRIMARY KEY is being built: makes the primary index, if the table has not
/// got it, as after REINDEX and TRUNCATE. Returns two rows that have one key, if there are any.
///
/// # Safety
/// An open relation of ours that is locked against writers, and an open index that can be hollow.
pub unsafe fn build_key(rel: pg_sys::Relation, index: pg_sys::Relation) -> Built {
    // SAFETY: `rel` and `index` are open (contract of this function).
    unsafe {
        let table = rel::info(rel).table;
        let wanted = wanted_of(index);
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
    let Some(index) = table.primary() else { return Ok(None) };
    // SAFETY: `rel` is open and of ours (contract of this function).
    let Some(w) = unsafe { wanted(rel) }.filter(|w| w.spec == index.spec()) else { return Ok(None) };
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
        if has_row && !left_out(no) && unsafe { rows::plain(rel, w.codec, Row::Version(head), &mut key) }.is_some() {
            filler.add(&e, slot, &PG, no, &key, true)?;
        }
    }
    filler.finish(&e, slot, &PG)?;
    Ok(filler.duplicate())
}

/// Appends the key of a version in a primary index. False: it has none there.
///
/// # Safety
/// An open relation of ours, what it wants, and a version of it with a row.
pub unsafe fn key_of(rel: pg_sys::Relation, of: &Wanted, version: *const Version, to: &mut Vec<u8>) -> bool {
    // SAFETY: the contract of this function.
    unsafe { rows::plain(rel, of.codec, Row::Version(version), to) }.is_some()
}

/// Gives the table the primary index that is wanted. With the table's ACCESS EXCLUSIVE lock no
/// other session uses the one that is replaced.
unsafe fn replace(rel: pg_sys::Relation, table: &'static Table, wanted: Option<&Wanted>) -> Built {
    // SAFETY: `rel` is open: contract of `sync` and `build_key`.
    unsafe {
        pg_sys::LockRelationOid((*rel).rd_id, pg_sys::AccessExclusiveLock as i32);
        let mut building = Building { e: shmem::engine(), index: None };
        let mut built = Built::default();
        if let Some(w) = wanted {
            let (index, of) = build(rel, table, w, &building.e);
            (building.index, built) = (Some(index), of);
            if built.duplicate.is_some() {
                return built;
            }
        }
        xact::replace_primary(table, building.index);
        building.index = None;
        pg_sys::CacheInvalidateRelcacheByRelid((*rel).rd_id);
        built
    }
}

/// Makes an index of all rows. The caller holds the table exclusively: no other session has open
/// writes in it.
unsafe fn build(rel: pg_sys::Relation, table: &'static Table, w: &Wanted, e: &Engine) -> (&'static Primary, Built) {
    let slot = shmem::my_slot();
    let index = ok(Primary::create(e, slot, 0, Reuse::Vacuum, &w.spec).map_err(Into::into));
    let mut building = Building { e: *e, index: Some(index) };
    let t = xact::txn();
    xact::renew_pin();
    t.rest_no_more();
    let oldest = t.e.pin_oldest(t.slot);
    let (mut key, mut built, mut filler) = (Vec::new(), Built::default(), Filler::new(index));
    for no in 0..table.len() {
        if no % 1024 == 0 {
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
            ok(filler.add(e, slot, &PG, no, &key, true));
        }
    }
    ok(filler.finish(e, slot, &PG));
    built.duplicate = filler.duplicate();
    if built.has_past {
        // Until the commit, and until all snapshots of now are gone (state/xact/pending.rs).
        index.set_complete_from(Csn::MAX);
    }
    building.index = None;
    (index, built)
}
