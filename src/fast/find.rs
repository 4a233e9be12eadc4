//! A row by its primary key.

use super::primary::PrimaryKey;
use crate::callbacks::visible;
use crate::errors::ok;
use crate::hooks::lookup;
use crate::platform::PG;
use crate::rel::RelInfo;
use crate::stop;
use crate::xact::{self, Mode};
use mixedcc_engine::index::{Direction, FEW};
use mixedcc_engine::key::Short;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::record::Version;
use mixedcc_engine::txn::ScanId;
use mixedcc_engine::RecordRef;
use pgrx::pg_sys;
use std::ops::Bound;
use std::ptr::NonNull;

/// A row that was found.
#[derive(Clone, Copy)]
pub struct Found {
    /// Its record.
    pub r: RecordRef,
    /// The version that is seen.
    pub version: NonNull<Version>,
}

/// The row with a key, as a statement sees it at the transaction's level. At SERIALIZABLE all that the protocols ask of
/// a look-up is done: a row that is found protects itself, a key that is not becomes a predicate.
///
/// `partition`: where the row is or would be, if that is known; `snapshot`: the statement's; `for_write`: the row will be
/// written next.
///
/// # Safety
/// An open relation of ours, its info, its key that is usable now (`primary::usable`), and an MVCC snapshot.
pub unsafe fn by_key(
    rel: pg_sys::Relation,
    info: &RelInfo,
    pk: &PrimaryKey,
    key: &[u8],
    partition: Option<u16>,
    snapshot: pg_sys::Snapshot,
    for_write: bool,
) -> Option<Found> {
    let mode = xact::mode();
    if mode != Mode::Serializable {
        // Before the index is read: it may have to take the snapshot's CSN, and the pin.
        // SAFETY: the caller's.
        xact::snapshot_csn(snapshot);
        // SAFETY: the caller's.
        return unsafe { search(pk, info, mode, key, snapshot, for_write) };
    }
    let t = xact::txn();
    let n = info.table.map().n;
    let (first, count) = partition.map_or((0, n), |p| (p as u32, 1));
    let touch = |no| Touch { table: info.table, no };
    let start = ok(t.before_lookup(&PG, touch(first)));
    let mut rest = Vec::new();
    if count > 1 {
        rest.extend((first + 1..first + count).map(|no| (touch(no), ok(t.before_lookup(&PG, touch(no))))));
    }
    // SAFETY: the caller's.
    unsafe {
        if let Some(found) = search(pk, info, mode, key, snapshot, for_write) {
            return Some(found);
        }
        let mut partitions = vec![(touch(first), start)];
        partitions.extend(rest);
        let index = pg_sys::index_open(pk.index, pg_sys::AccessShareLock as i32);
        let after = lookup::position_after(rel, info, index, key, &partitions);
        pg_sys::index_close(index, pg_sys::NoLock as i32);
        let Some((position, again)) = after else {
            partitions.into_iter().for_each(|(at, start)| t.add_predicate(at, start));
            return None;
        };
        if again {
            let found = search(pk, info, mode, key, snapshot, for_write);
            if found.is_some() {
                return found;
            }
        }
        t.add_point_predicate(&PG, &position, key);
    }
    None
}

/// What [`by_key`] would find of the only record with a short key, where looking at it is all that it would do; else `None`,
/// also if there is no such row. Neither fails nor unwinds, and calls nobody. A row that is found needs no look at its
/// partition before (INV-PEEK); what is not found is looked for again, after that.
///
/// # Safety
/// As for [`by_key`]; nothing that PostgreSQL does is under way between the look at `pk` and this.
#[inline]
pub unsafe fn peek(info: &RelInfo, pk: &PrimaryKey, key: Short, snapshot: pg_sys::Snapshot) -> Option<Found> {
    let t = xact::running().filter(|_| !stop::is_on())?;
    let csn = match xact::known_mode()? {
        Mode::Serializable => None,
        // Takes the pin and the CSN if need be, which cannot fail at this level.
        Mode::ReadCommitted => Some(xact::snapshot_csn(snapshot)),
        // It was taken before, so the pin was too.
        _ => Some(xact::known_csn(snapshot)?),
    };
    let mut few = [0; FEW];
    if pk.primary.index.few_short(key, &mut few)? != 1 {
        return None;
    }
    let r = RecordRef::find(info.table, few[0])?;
    if t.last_write(r).is_some() {
        return None;
    }
    let version = match csn {
        None => t.peek_row(r)?,
        Some(csn) => t.peek_snapshot(r, csn)??,
    };
    Some(Found { r, version })
}

/// The row with a key that is seen. Several records may have the key: one row and those that it replaced.
unsafe fn search(
    pk: &PrimaryKey,
    info: &RelInfo,
    mode: Mode,
    key: &[u8],
    snapshot: pg_sys::Snapshot,
    for_write: bool,
) -> Option<Found> {
    let t = xact::txn();
    let see = |no| {
        let r = RecordRef::find(info.table, no)?;
        // SAFETY: the caller's.
        let version = unsafe { visible::mvcc(t, mode, r, snapshot, for_write, ScanId::NONE) }?;
        Some(Found { r, version })
    };
    let mut few = [0; FEW];
    if let Some(n) = pk.primary.index.few(key, &mut few) {
        return few[..n].iter().copied().find_map(see);
    }
    let mut all = pk.primary.index.scan(Bound::Included(key), Bound::Included(key), Direction::Forward);
    std::iter::from_fn(|| all.next(&PG).map(|(_, no)| no)).find_map(see)
}
