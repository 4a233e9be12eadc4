//! Look-ups of one full key of a unique index: a read of the row that is found, and a predicate on the key only if there
//! is none.

use super::protect::{entry_of, keys_of, open_of, settle, Open};
use crate::callbacks::fetch::{Fetch, FEW};
use crate::errors::ok;
use crate::keys::{self, bounds};
use crate::platform::PG;
use crate::rel::RelInfo;
use crate::xact;
use mixedcc_engine::protocol::Touch;
use pgrx::pg_sys;

/// The value that a key of the scan fixes for a column of the index, and its type.
unsafe fn equal_to(scan: pg_sys::IndexScanDesc, column: usize) -> Option<(pg_sys::Datum, pg_sys::Oid)> {
    // SAFETY: the caller's.
    unsafe {
        let k = keys_of(scan).iter().find(|k| k.sk_attno as usize == column + 1 && bounds::equality(k).is_some())?;
        let index = (*scan).indexRelation;
        let t = if k.sk_subtype == pg_sys::InvalidOid { *(*index).rd_opcintype.add(column) } else { k.sk_subtype };
        Some((k.sk_argument, t))
    }
}

/// Does the scan look up one key of a unique index? In which partition are all its rows?
///
/// # Safety
/// A scan of an index of ours whose keys are set.
pub unsafe fn examine(scan: pg_sys::IndexScanDesc, info: &RelInfo) -> (bool, Option<u16>) {
    // SAFETY: an open index.
    unsafe {
        let index = (*scan).indexRelation;
        let form = (*index).rd_index;
        let one_partition = info.table.map().n == 1;
        if (*(*index).rd_rel).relam.to_u32() != pg_sys::BTREE_AM_OID.to_u32() {
            return (false, one_partition.then_some(0));
        }
        let n = (*form).indnkeyatts as usize;
        let one_row = (*form).indisunique && (*form).indimmediate && (0..n).all(|c| equal_to(scan, c).is_some());
        let partition = if one_partition { Some(0) } else { partition_of(scan, info, n) };
        (one_row, partition)
    }
}

unsafe fn partition_of(scan: pg_sys::IndexScanDesc, info: &RelInfo, n: usize) -> Option<u16> {
    // SAFETY: `indkey` has an entry for each column of the index.
    unsafe {
        let index = (*scan).indexRelation;
        let form = (*index).rd_index;
        let attnums = (*form).indkey.values.as_slice((*form).indnatts as usize);
        let mut key = Vec::new();
        for c in info.partkey.columns() {
            let at = attnums[..n].iter().position(|a| *a == c)?;
            if !info.partkey.agrees_with(index, at, c) {
                return None;
            }
            let (v, t) = equal_to(scan, at)?;
            key.push((v, false, t));
        }
        if key.is_empty() {
            return None;
        }
        info.partkey.partition_of_key(&key)
    }
}

/// A look-up of one key: notes from where on it would have to stay absent.
///
/// # Safety
/// As for [`examine`]; `f` is the scan's fetch.
pub unsafe fn look_up(scan: pg_sys::IndexScanDesc, f: *mut Fetch, info: &RelInfo, partition: Option<u16>) {
    // SAFETY: the caller's.
    unsafe {
        let t = xact::txn();
        let n = info.table.map().n;
        let (first, count) = partition.map_or((0, n), |p| (p as u32, 1));
        if count as usize <= FEW && info.table.ranges_generation() == 0 {
            for i in 0..count {
                let touch = Touch { table: info.table, no: first + i };
                (*f).few[i as usize] = ok(t.before_lookup(&PG, touch));
            }
            // Last: what fails before leaves nothing to settle.
            ((*f).look, (*f).n_few, (*f).first_partition) = (true, count, first);
            return;
        }
        let ranged = keys::ranged(info, (*scan).indexRelation);
        let o = open_of(f);
        for no in first..first + count {
            let touch = Touch { table: info.table, no };
            let position = ok(t.before_lookup(&PG, touch));
            o.partitions.push((touch, position));
        }
        find_key(scan, o);
        if let Some(r) = ranged.filter(|_| o.has_key) {
            let at = Touch { table: info.table, no: first };
            o.position = Some(t.look_position(&PG, at, r.ranges, &o.key));
            o.partitions.clear();
        }
        (*f).look = true;
    }
}

/// The key that a look-up looks up.
unsafe fn find_key(scan: pg_sys::IndexScanDesc, o: &mut Open) {
    // SAFETY: the caller's.
    unsafe {
        o.index = (*(*scan).indexRelation).rd_id;
        let Some(codec) = keys::codec::of((*scan).indexRelation) else { return };
        let mut key = std::mem::take(&mut o.key);
        // A value of a type whose order against the column's is not known here is no key.
        o.has_key = (0..codec.columns.len()).all(|c| {
            let k = keys_of(scan).iter().find(|k| k.sk_attno as usize == c + 1 && bounds::equality(k).is_some());
            k.is_some_and(|k| codec.put_foreign(c, k.sk_argument, k.sk_subtype, &mut key))
        });
        o.key = key;
    }
}

/// The partitions and positions of a look-up without an entry.
///
/// # Safety
/// A fetch of ours.
pub unsafe fn few_of(f: *mut Fetch) -> Vec<(Touch, u64)> {
    // SAFETY: a fetch of ours.
    unsafe {
        let n = std::mem::take(&mut (*f).n_few);
        let table = (*(*f).info).table;
        let touch = |i: u32| Touch { table, no: (*f).first_partition + i };
        (0..n).map(|i| (touch(i), (*f).few[i as usize])).collect()
    }
}

/// A look-up has found nothing.
///
/// # Safety
/// A scan of ours and its fetch.
pub unsafe fn found_nothing(scan: pg_sys::IndexScanDesc, f: *mut Fetch) {
    // SAFETY: the caller's.
    unsafe {
        if (*f).n_few > 0 {
            let partitions = few_of(f);
            let o = open_of(f);
            o.partitions = partitions;
            find_key(scan, o);
        }
        settle(f);
    }
}

/// A look-up with an entry has found nothing: its key is a predicate.
///
/// # Safety
/// A fetch of ours whose look-up has an entry.
pub unsafe fn missed(f: *mut Fetch) {
    // SAFETY: one thread; the fetch's look-up has an entry.
    unsafe {
        let o = entry_of(f);
        let t = xact::txn();
        if let Some(position) = o.position.take() {
            t.add_point_predicate(&PG, &position, &o.key);
            return;
        }
        let (key, partitions) = (std::mem::take(&mut o.key), std::mem::take(&mut o.partitions));
        let (rel, info) = ((*f).base.rel, &*(*f).info);
        if !(o.has_key && missed_first(rel, info, o.index, &key, &partitions)) {
            for &(touch, position) in &partitions {
                t.add_predicate(touch, position);
            }
        }
        let o = entry_of(f);
        (o.key, o.partitions) = (key, partitions);
        o.partitions.clear();
    }
}

/// The first look-up in an index that finds nothing gives it ranges. If no insert into its partitions
/// was registered between the look-up and the moment from which all writes register in the ranges,
/// a predicate on the key that starts then protects what the look-up saw.
///
/// # Safety
/// An open relation of ours, its info and an index of it.
pub unsafe fn missed_first(
    rel: pg_sys::Relation,
    info: &RelInfo,
    index: pg_sys::Oid,
    key: &[u8],
    partitions: &[(Touch, u64)],
) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let r = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
        let ranged = keys::of_index(rel, info, r);
        pg_sys::index_close(r, pg_sys::NoLock as i32);
        let Some(ranged) = ranged else { return false };
        let t = xact::txn();
        let Some(&(at, _)) = partitions.first() else { return false };
        let position = t.look_position(&PG, at, ranged.ranges, key);
        let quiet = |(at, start): &(Touch, u64)| at.partition().ring.head().version() == *start;
        if partitions.iter().all(quiet) {
            t.add_point_predicate(&PG, &position, key);
            return true;
        }
        false
    }
}
