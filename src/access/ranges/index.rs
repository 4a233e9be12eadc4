//! The ranges of an index: made at its first scan, and again as the table grows.

use super::rows::{Row, Rows};
use crate::access::altered;
use crate::keys::codec::{self, Codec};
use crate::pg::guc;
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::rel::RelInfo;
use crate::state::xact;
use mixedcc_engine::range::IndexRanges;
use mixedcc_engine::{Error, RecordRef};
use pgrx::pg_sys;
use std::cmp::Ordering;

/// An index with ranges.
#[derive(Clone, Copy)]
pub struct Ranged {
    /// Its ranges.
    pub ranges: &'static IndexRanges,
    /// Its keys.
    pub codec: &'static Codec,
}

/// Most ranges of an index.
const MAX_RANGES: u64 = 4096;
/// Rows of the sample for each range.
const SAMPLE: u64 = 16;

/// The ranges of an index that is about to be scanned; `None` if its keys have neither order nor
/// hash, or there is no memory for ranges: then the scan is protected by partitions.
///
/// # Safety
/// An open relation of ours and an open index of it.
pub unsafe fn of_index(rel: pg_sys::Relation, info: &RelInfo, index: pg_sys::Relation) -> Option<Ranged> {
    // SAFETY: `rel` is open and of ours, and `index` is open and of it (contract of this function).
    unsafe {
        if altered::differs(rel) {
            return None; // INV-LAYOUT
        }
        let codec = codec::of(index)?;
        let name = codec.index.to_u32() as u64;
        if let Some(ranges) = info.table.ranges(name).filter(|r| r.is_active()) {
            if info.active.is_time_to_look() {
                let skewed = ranges.is_skewed();
                if skewed || has_outgrown(info, ranges) {
                    rebuild(rel, info, ranges, codec, skewed);
                }
            }
            return Some(Ranged { ranges, codec });
        }
        let boundaries = quantiles(sample(rel, info, codec), wanted(info) as usize, codec);
        let keys: Vec<&[u8]> = boundaries.iter().map(|k| &k[..]).collect();
        let t = xact::txn();
        let list_size = guc::RANGE_LIST_SIZE.get() as u32;
        match info.table.activate_ranges(&t.e, t.slot, &PG, name, codec.order, &keys, list_size) {
            Ok(ranges) => Some(Ranged { ranges, codec }),
            Err(Error::OutOfMemory) => None,
            Err(e) => crate::state::errors::raise(e),
        }
    }
}

/// The indexes that hold every row under an ordered key made of columns: without expressions and
/// predicates. The primary key's comes first.
///
/// # Safety
/// An open relation of ours.
pub unsafe fn usable(rel: pg_sys::Relation, info: &RelInfo) -> Vec<&'static Codec> {
    // SAFETY: `rel` is open (contract of this function).
    if unsafe { altered::differs(rel) } {
        return Vec::new(); // INV-LAYOUT; not for long
    }
    if let Some(known) = info.active.usable.borrow().as_ref() {
        return known.clone();
    }
    let mut found = Vec::new();
    // SAFETY: `rel` is open (contract of this function). Its indexes exist while it is locked; each
    // is closed again, by an ERROR's clean-up if it comes to that. The list is a copy, freed once.
    unsafe {
        let list = pg_sys::RelationGetIndexList(rel);
        for oid in pgrx::PgList::<pg_sys::Oid>::from_pg(list).iter_oid() {
            let index = pg_sys::index_open(oid, pg_sys::AccessShareLock as i32);
            let first = (*(*index).rd_index).indisprimary;
            match codec::of(index) {
                Some(c) if !c.special && !c.hash && first => found.insert(0, c),
                Some(c) if !c.special && !c.hash => found.push(c),
                _ => {}
            }
            pg_sys::index_close(index, pg_sys::NoLock as i32);
        }
        pg_sys::list_free(list);
    }
    *info.active.usable.borrow_mut() = Some(found.clone());
    found
}

/// Ranges that every row of the table falls into.
///
/// # Safety
/// An open relation of ours.
pub unsafe fn whole(rel: pg_sys::Relation, info: &RelInfo) -> Option<Ranged> {
    // SAFETY: `rel` is open and of ours (contract of this function). The index exists while its
    // table is locked, and is closed again.
    unsafe {
        let all = usable(rel, info);
        let has = |c: &&&Codec| info.table.ranges(c.index.to_u32() as u64).is_some_and(|r| r.is_active());
        let codec = *all.iter().find(has).or(all.first())?;
        let index = pg_sys::index_open(codec.index, pg_sys::AccessShareLock as i32);
        let found = of_index(rel, info, index);
        pg_sys::index_close(index, pg_sys::NoLock as i32);
        found
    }
}

/// Ranges that the table should have at its present size.
fn wanted(info: &RelInfo) -> u64 {
    (info.table.rows() / guc::RANGE_ROWS.get() as u64).clamp(1, MAX_RANGES)
}

/// Are there far too few ranges for the table's rows, or too many? A rebuild is tried again only
/// when the table has grown further: few distinct keys make few ranges.
fn has_outgrown(info: &RelInfo, ranges: &IndexRanges) -> bool {
    let (want, have) = (wanted(info), ranges.current().len() as u64);
    let tried = info.active.tried.get();
    let differs = |n: u64| want > n + n / 2 || want < n / 4;
    let yes = differs(have) && (tried == 0 || differs(tried));
    if yes {
        info.active.tried.set(want);
    }
    yes
}

/// Makes the boundaries again. `skewed`: after the writes too, which the lists know.
unsafe fn rebuild(
    rel: pg_sys::Relation,
    info: &RelInfo,
    ranges: &'static IndexRanges,
    codec: &'static Codec,
    skewed: bool,
) {
    // SAFETY: `rel` is open and of ours, and `codec` is that of an index of it: contract of
    // `of_index`.
    let rows = unsafe { sample(rel, info, codec) };
    let n = wanted(info) as usize;
    let boundaries = if skewed { ranges.balanced(&PG, rows, n) } else { quantiles(rows, n, codec) };
    let keys: Vec<&[u8]> = boundaries.iter().map(|k| &k[..]).collect();
    let t = xact::txn();
    match ranges.rebuild(&t.e, t.slot, &PG, &keys, guc::RANGE_LIST_SIZE.get() as u32) {
        Ok(_) | Err(Error::OutOfMemory) => {} // the old ranges go on
        Err(e) => crate::state::errors::raise(e),
    }
}

/// Keys of a sample of the rows.
unsafe fn sample(rel: pg_sys::Relation, info: &RelInfo, codec: &'static Codec) -> Vec<Vec<u8>> {
    let n = wanted(info);
    if n == 1 {
        return Vec::new();
    }
    let len = info.table.len();
    let step = (len / (n * SAMPLE)).max(1);
    // SAFETY: `rel` is open and of ours, and `codec` is that of an index of it: contract of
    // `of_index`. Versions are reached under our pin (INV-RETIRE).
    unsafe {
        let mut keys = Vec::new();
        let mut of_row = Rows::new(rel, codec);
        let mut no = 0;
        while no < len {
            if keys.len() % 1024 == 0 && pg_sys::InterruptPending != 0 {
                pg_sys::ProcessInterrupts();
            }
            if let Some(r) = RecordRef::find(info.table, no) {
                let newest = ok(xact::txn().newest(&PG, r.rec)).map(|v| v.0);
                let mut key = Vec::new();
                if newest.is_some_and(|v| {
                    !v.as_ref().is_tombstone() && of_row.key(Row::Version(v.as_ptr()), &mut key).is_some()
                }) {
                    keys.push(key);
                }
            }
            no += step;
        }
        drop(of_row);
        keys
    }
}

/// Boundaries that put the same number of rows into each range.
fn quantiles(mut keys: Vec<Vec<u8>>, n: usize, codec: &Codec) -> Vec<Vec<u8>> {
    keys.sort_by(|a, b| codec.compare(a, b));
    keys.dedup_by(|a, b| codec.compare(a, b) == Ordering::Equal);
    let n = n.min(keys.len());
    (1..n).map(|i| keys[i * keys.len() / n].clone()).collect()
}
