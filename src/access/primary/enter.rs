//! The entries of rows: added with them, and named by their tombstones.

use super::serves::key_by;
use crate::access::ranges::rows::{self, Row};
use crate::access::{hollow, ranges, tuple};
use crate::keys::codec::Codec;
use crate::pg;
use crate::pg::faults::{self, Fault};
use crate::pg::local::Local;
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::rel::{Kept, RelInfo};
use crate::state::xact;
use mixedcc_engine::index::Unique;
use mixedcc_engine::record::{Keys, Successor, Version, INDEXES};
use mixedcc_engine::txn::Entered;
use mixedcc_engine::{RecordRef, Txn};
use pgrx::pg_sys;
use std::ptr::NonNull;

/// Of the process: room for keys. Taken while it is used.
static KEY: Local<Vec<u8>> = Local::new(Vec::new());

/// The bytes of a row's key, and how many they are, if they are few.
pub type ShortKey = Option<([u8; 8], usize)>;

/// Prefetches what [`enter`] will change for the row in a slot, which will be inserted. Returns the
/// row's key, if it is short and the only one.
///
/// # Safety
/// A valid slot of the relation's row type. An ERROR jumps over this frame.
#[inline]
pub unsafe fn announce(info: &RelInfo, slot: *mut pg_sys::TupleTableSlot) -> ShortKey {
    match info.uniques.all() {
        // SAFETY: the contract of this function.
        [one] => unsafe { announce_in(one, slot) },
        all => {
            // SAFETY: the contract of this function.
            all.iter().for_each(|kept| _ = unsafe { announce_in(kept, slot) });
            None
        }
    }
}

#[inline]
unsafe fn announce_in(kept: &Kept, slot: *mut pg_sys::TupleTableSlot) -> ShortKey {
    // SAFETY: `slot` is valid and of the row type: contract of `announce`.
    let short = unsafe { short_key(kept.codec()?, slot) };
    if let Some((key, len)) = &short {
        kept.index.announce(&key[..*len]);
    }
    short
}

/// The row that is entered.
#[derive(Clone, Copy)]
struct New<'a> {
    rel: pg_sys::Relation,
    info: &'a RelInfo,
    r: RecordRef,
    /// The number of its insert among the transaction's writes.
    n: u32,
    slot: *mut pg_sys::TupleTableSlot,
}

/// Adds the entries of a row that was inserted just now, and tells the ranges its keys. Where an
/// index is hollow, this is its unique check: the entry is not added if another row has the key or
/// may come to have it, nor those of the hollow indexes behind it. `aminsert` sees to these
/// (`access/hollow/insert.rs`).
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
    let new = New { rel, info, r, n, slot };
    // SAFETY: `rel` is open and of ours, and `slot` has the row of `r` (contract of this function).
    unsafe {
        let kept = match info.uniques.all() {
            [one] => one,
            [] => return ranges::note_new(rel, info, n, Row::Slot(slot), None),
            all => return enter_in_all(new, t, all),
        };
        let Some(codec) = kept.codec() else {
            return ranges::note_new(rel, info, n, Row::Slot(slot), None);
        };
        xact::renew_pin();
        match short {
            Some((bytes, len)) => enter_in_one(new, t, kept, &bytes[..len]),
            None => {
                let mut key = KEY.take();
                key.clear();
                put_key(new, codec, &mut key);
                enter_in_one(new, t, kept, &key);
                KEY.set(key);
            }
        };
    }
}

unsafe fn put_key(new: New<'_>, codec: &Codec, to: &mut Vec<u8>) {
    // SAFETY: `rel` is open, with a slot of its row type: contract of `enter`. The codec's columns
    // are columns of it.
    let there = unsafe { rows::plain(new.rel, codec, Row::Slot(new.slot), to) }.is_some();
    debug_assert!(there, "an index in memory has all rows");
}

/// What [`enter`] does with the row's key in a table with one index in memory.
#[inline(always)]
unsafe fn enter_in_one(new: New<'_>, t: &mut Txn, kept: &Kept, key: &[u8]) {
    let New { rel, info, r, n, slot } = new;
    // SAFETY: `rel` is open, `slot` of its row type, and `n` the write of the row: contract of
    // `enter`.
    unsafe {
        let known = key_by(rel, info, kept);
        let unique = if known.is_some_and(|k| k.hollow) { Unique::Check } else { Unique::Unchecked };
        let entered = ok(t.enter_in(&PG, r, kept.nth, key, unique));
        if let Some(k) = known.filter(|k| k.hollow) {
            let indexes = [k.index.to_u32(), 0, 0, 0];
            hollow::note(info, indexes, r.no, matches!(entered, Entered::Free));
        }
        ranges::note_new(rel, info, n, Row::Slot(slot), known.map(|k| (k.index, key)));
    }
}

/// The same in a table with several. All sessions come to the hollow ones in the order of their
/// OIDs, and to none behind a rival: so two that insert one row each do not wait for each other.
/// An index that nbtree checks has its entry in any case, because `aminsert` would not add it.
#[inline(never)]
unsafe fn enter_in_all(new: New<'_>, t: &mut Txn, all: &[Kept]) {
    let New { rel, info, r, n, slot } = new;
    xact::renew_pin();
    let (mut indexes, mut hollow, mut is_free) = ([0; INDEXES], 0, true);
    let mut key = KEY.take();
    for kept in all {
        let Some(codec) = kept.codec() else { continue };
        // SAFETY: `rel` is open and of ours, and `slot` has the row of `r`: contract of `enter`.
        unsafe {
            let is_hollow = match key_by(rel, info, kept).filter(|k| k.hollow) {
                Some(k) => {
                    indexes[hollow] = k.index.to_u32();
                    hollow += 1;
                    true
                }
                None => false,
            };
            if is_hollow && !is_free && !faults::on(Fault::EntersBehind) {
                continue;
            }
            key.clear();
            match short_key(codec, slot) {
                Some((bytes, len)) => key.extend_from_slice(&bytes[..len]),
                None => put_key(new, codec, &mut key),
            }
            let unique = if is_hollow { Unique::Check } else { Unique::Unchecked };
            is_free &= matches!(ok(t.enter_in(&PG, r, kept.nth, &key, unique)), Entered::Free);
        }
    }
    KEY.set(key);
    if hollow > 0 {
        hollow::note(info, indexes, r.no, is_free);
    }
    // SAFETY: as above.
    unsafe { ranges::note_new(rel, info, n, Row::Slot(slot), None) };
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
/// is not short, or is not that of the index of number 0 alone.
///
/// # Safety
/// As for [`tombstone`].
#[inline]
pub unsafe fn short_key_of_entry(rel: pg_sys::Relation, info: &RelInfo, v: NonNull<Version>) -> Option<ShortKey> {
    let kept = match info.uniques.all() {
        [one] if one.nth == 0 => one,
        [] => return Some(None),
        _ => return None,
    };
    match kept.codec() {
        // SAFETY: the contract of this function.
        Some(codec) => unsafe { short_key_of(rel, codec, v) }.map(Some),
        None => Some(None),
    }
}

/// The tombstone of a row that is deleted or moved: with the keys of its entries, so that these can
/// vanish (INV-DEAD of the engine). `old`: a version of the row; `None`: it is our own insert,
/// whose keys the engine knows.
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
    let all = info.uniques.all();
    let Some(old) = old.filter(|_| !all.is_empty()) else { return ok(t.new_tombstone(to, None)) };
    if let [Kept { nth: 0, codec: Some(codec), .. }] = all {
        // SAFETY: `rel` is open and of ours, and `old` is reachable and of its row type (contract
        // of this function).
        if let Some((key, len)) = unsafe { short_key_of(rel, codec, old) } {
            return ok(t.new_tombstone(to, Some(&key[..len])));
        }
    }
    // SAFETY: as above.
    unsafe { tombstone_of_all(rel, all, t, to, old) }
}

/// The same of whatever keys.
unsafe fn tombstone_of_all(
    rel: pg_sys::Relation,
    all: &[Kept],
    t: &mut Txn,
    to: Successor,
    old: NonNull<Version>,
) -> NonNull<Version> {
    let mut bytes = KEY.take();
    bytes.clear();
    let mut places = [None; INDEXES];
    for kept in all.iter().take(if faults::on(Fault::OneTombKey) { 1 } else { INDEXES }) {
        let Some(codec) = kept.codec() else { continue };
        let from = bytes.len();
        // SAFETY: `rel` is open and of ours, and `old` is reachable and of its row type: contract
        // of `tombstone`.
        let has_entry = unsafe {
            match short_key_of(rel, codec, old) {
                Some((key, len)) => {
                    bytes.extend_from_slice(&key[..len]);
                    true
                }
                None => rows::plain(rel, codec, Row::Version(old.as_ptr()), &mut bytes).is_some(),
            }
        };
        places[kept.nth] = has_entry.then_some((from, bytes.len()));
    }
    let keys = Keys(places.map(|place| place.map(|(from, to)| &bytes[from..to])));
    let tombstone = ok(t.new_tombstone_of(to, &keys));
    KEY.set(bytes);
    tombstone
}
