//! Look-ups of one full key of a unique index: a read of the row that is found, and a predicate on
//! the key only if there is none.

use super::partitions::{self, before_lookup};
use super::protect::{entry_of, keys_of, open_of, settle};
use crate::access::fetch::{Fetch, FEW};
use crate::access::ranges;
use crate::keys::{bounds, codec};
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::rel::RelInfo;
use crate::state::xact;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::txn::LookPosition;
use pgrx::pg_sys;

/// Does the scan look up one key of a unique index? In which partition are all its rows?
///
/// # Safety
/// A scan of an index of ours whose keys are set.
pub unsafe fn examine(scan: pg_sys::IndexScanDesc, info: &RelInfo) -> (bool, Option<u16>) {
    // SAFETY: `scan` is of an index of ours whose keys are set (contract of this function). Its
    // index is open, and `c` and `attnums[..n]` are key columns.
    unsafe {
        let index = (*scan).indexRelation;
        let form = (*index).rd_index;
        if (*(*index).rd_rel).relam.to_u32() != pg_sys::BTREE_AM_OID.to_u32() {
            return (false, (info.table.map().n == 1).then_some(0));
        }
        let (n, keys) = ((*form).indnkeyatts as usize, keys_of(scan));
        let is_equal = |c| partitions::equal_to(index, keys, c).is_some();
        let one_row = (*form).indisunique && (*form).indimmediate && (0..n).all(is_equal);
        let attnums = (*form).indkey.values.as_slice((*form).indnatts as usize);
        (one_row, partitions::fixed_by(info, index, &attnums[..n], keys))
    }
}

/// A look-up of one key: notes from where on inserts into its partitions would matter. What a
/// predicate on the key needs is looked for when nothing was found.
///
/// # Safety
/// As for [`examine`]; `f` is the scan's fetch.
pub unsafe fn look_up(scan: pg_sys::IndexScanDesc, f: *mut Fetch, info: &RelInfo, partition: Option<u16>) {
    // SAFETY: `scan` has its keys set, and `f` is its fetch (contract of this function). No
    // reference to the entry is in use while the engine runs, which asks how far scans have come
    // (INV-SCANS).
    unsafe {
        let touches = partitions::touches(info, partition);
        let count = touches.len();
        if count <= FEW {
            for (i, at) in touches.enumerate() {
                (*f).few[i] = before_lookup(at).1;
            }
            // Last: what fails before leaves nothing to settle.
            let first = partition.map_or(0, u32::from);
            ((*f).look, (*f).n_few, (*f).first_partition) = (true, count as u32, first);
            return;
        }
        let mut partitions = std::mem::take(&mut open_of(f).partitions);
        partitions.extend(touches.map(before_lookup));
        entry_of(f).partitions = partitions;
        find_key(scan, f);
        (*f).look = true;
    }
}

/// The key that a look-up looks up goes into its entry.
unsafe fn find_key(scan: pg_sys::IndexScanDesc, f: *mut Fetch) {
    // SAFETY: `scan` has its keys set, and `f` has an entry: contract of `look_up` and
    // `found_nothing`. The codec is of its index, so column `c` has the type of the key's value, or
    // the type that the key says. No reference to the entry is in use while that makes the key
    // (INV-SCANS).
    unsafe {
        let Some(codec) = codec::of((*scan).indexRelation) else { return };
        let mut key = std::mem::take(&mut entry_of(f).key);
        // A value of a type whose order against the column's is not known here is no key.
        let has_key = (0..codec.columns.len()).all(|c| {
            let k = keys_of(scan).iter().find(|k| k.sk_attno as usize == c + 1 && bounds::equality(k).is_some());
            k.is_some_and(|k| codec.put_foreign(c, k.sk_argument, k.sk_subtype, &mut key))
        });
        let o = entry_of(f);
        (o.key, o.has_key) = (key, has_key);
    }
}

/// The partitions and positions of a look-up without an entry.
///
/// # Safety
/// A fetch of ours.
pub unsafe fn few_of(f: *mut Fetch) -> Vec<(Touch, u64)> {
    // SAFETY: `f` is a fetch of ours (contract of this function): `info` stays until the
    // transaction ends.
    unsafe {
        let n = std::mem::take(&mut (*f).n_few);
        let table = (*(*f).info).table;
        let touch = |i: u32| Touch { table, no: (*f).first_partition + i };
        (0..n).map(|i| (touch(i), (*f).few[i as usize])).collect()
    }
}

/// A look-up has found nothing. Must it look again? Else its predicate is made.
///
/// The position from which on writes of the key are conflicts is taken now, after the look-up. What
/// was inserted in between has registered in its partition: if nothing has, the look-up is as good
/// as one after the position.
///
/// # Safety
/// A scan of ours and its fetch.
pub unsafe fn found_nothing(scan: pg_sys::IndexScanDesc, f: *mut Fetch) -> bool {
    // SAFETY: `scan` is of an index of ours, and `f` its fetch (contract of this function). A
    // look-up with `n_few` 0 has an entry. No reference to the entry is used after
    // `position_after`.
    unsafe {
        if (*f).n_few > 0 {
            let partitions = few_of(f);
            open_of(f).partitions = partitions;
            find_key(scan, f);
        }
        let o = entry_of(f);
        if o.position.is_none() && o.has_key {
            let (key, partitions) = (std::mem::take(&mut o.key), std::mem::take(&mut o.partitions));
            let after = position_after((*f).base.rel, &*(*f).info, (*scan).indexRelation, &key, &partitions);
            let o = entry_of(f);
            (o.key, o.partitions) = (key, partitions);
            o.position = after.map(|(position, _)| position);
            if after.is_some_and(|(_, again)| again) {
                return true;
            }
        }
        settle(f);
        ok(xact::txn().looks_again(&PG))
    }
}

/// The position of a key that a look-up has not found, in the ranges of its index, which get made
/// if it has none. The flag says that a row with the key may have been inserted between the
/// look-up, which began at the positions in `partitions`, and this one: then it must be made again.
/// `None`: there are no ranges.
///
/// # Safety
/// An open relation of ours, its info and an open index of it.
pub unsafe fn position_after(
    rel: pg_sys::Relation,
    info: &RelInfo,
    index: pg_sys::Relation,
    key: &[u8],
    partitions: &[(Touch, u64)],
) -> Option<(LookPosition, bool)> {
    // SAFETY: `rel` is open and of ours, and `index` is open and of it (contract of this function).
    let ranged = unsafe { ranges::of_index(rel, info, index) }?;
    let position = ok(xact::txn().look_position(&PG, partitions.first()?.0, ranged.ranges, key));
    let quiet = |(at, start): &(Touch, u64)| at.partition().ring.list().is_quiet_since(*start);
    Some((position, !partitions.iter().all(quiet)))
}

/// A look-up with an entry has found nothing, or it is not known what: its key is a predicate, or
/// the partitions that it can be in.
///
/// # Safety
/// A fetch of ours whose look-up has an entry.
pub unsafe fn missed(f: *mut Fetch) {
    // SAFETY: `f` is a fetch of ours whose look-up has an entry (contract of this function). What
    // the engine needs is taken out of the entry: the engine may compare keys, and ask how far
    // scans have come (INV-SCANS).
    unsafe {
        let o = entry_of(f);
        let (position, key) = (o.position.take(), std::mem::take(&mut o.key));
        let mut partitions = std::mem::take(&mut o.partitions);
        let t = xact::txn();
        match position {
            Some(position) => t.add_point_predicate(&PG, &position, &key),
            None => partitions.iter().for_each(|&(touch, start)| t.add_predicate(touch, start)),
        }
        partitions.clear();
        let o = entry_of(f);
        (o.key, o.partitions) = (key, partitions);
    }
}
