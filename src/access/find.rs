//! A row by its primary key.

use super::primary::PrimaryKey;
use crate::access::{lookup, tuple, visible};
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::rel::RelInfo;
use crate::state::stop;
use crate::state::xact::{self, Mode};
use mixedcc_engine::csn::Csn;
use mixedcc_engine::index::{Direction, FEW};
use mixedcc_engine::key::Short;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::record::Version;
use mixedcc_engine::txn::ScanId;
use mixedcc_engine::{RecordRef, Txn};
use pgrx::pg_sys::{self, Datum, Oid};
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

/// What [`by_key`] would find of a record with a key of a few bytes of integers, where looking at it is all that it would do; else
/// `None`, also if there is no such row. Neither fails nor unwinds, and calls nobody. A row that is found needs no look at its
/// partition before (INV-PEEK); what is not found is looked for again, after that.
///
/// A guess leads to the record (INV-GUESS of the engine) or the tree. A guess is right if a version that is visible has the key in
/// its own columns: a PRIMARY KEY is checked at once, so no snapshot sees two rows with one key. The only record that the tree
/// has of a key need not be asked (INV-PRIMARY).
///
/// `n` values of the key's columns, none NULL, with their types (invalid: the column's own).
///
/// # Safety
/// As for [`by_key`]; nothing that PostgreSQL does is under way between the look at `pk` and this.
#[inline]
pub unsafe fn peek(
    rel: pg_sys::Relation,
    info: &RelInfo,
    pk: &PrimaryKey,
    n: usize,
    value: impl Fn(usize) -> (Datum, Oid),
    snapshot: pg_sys::Snapshot,
) -> Option<Found> {
    let key = pk.codec.short(n, &value)?;
    let t = xact::running().filter(|_| !stop::is_on())?;
    let csn = match xact::known_mode()? {
        Mode::Serializable => None,
        // Takes the pin and the CSN if need be, which cannot fail at this level.
        Mode::ReadCommitted => Some(xact::snapshot_csn(snapshot)),
        // It was taken before, so the pin was too.
        _ => Some(xact::known_csn(snapshot)?),
    };
    // SAFETY: the caller's; versions of the relation's table, which has the key's columns.
    let has_key = |v| unsafe { pk.codec.has_ints(&value, |at| tuple::value_of(v, (*rel).rd_att, at)) };
    if let Some(found) = pk.primary.find_by_hint(key, |no| guessed(t, info, no, csn, has_key)) {
        return Some(found);
    }
    searched(t, info, pk, key, csn)
}

/// What is seen of a record that this transaction has not written, where a look at its newest version tells. `csn`: of the
/// snapshot, `None` at SERIALIZABLE.
#[inline]
fn look(t: &mut Txn, r: RecordRef, csn: Option<Csn>) -> Option<NonNull<Version>> {
    if t.last_write(r).is_some() {
        return None;
    }
    match csn {
        None => t.peek_row(r),
        Some(csn) => t.peek_snapshot(r, csn)?,
    }
}

/// The row of a record that was guessed, if it is right: whose newest version has the key, and is the one that is seen.
#[inline]
fn guessed(
    t: &mut Txn,
    info: &RelInfo,
    no: u64,
    csn: Option<Csn>,
    has_key: impl Fn(NonNull<Version>) -> bool,
) -> Option<Found> {
    let r = RecordRef::find(info.table, no)?;
    // A pending version is complete too (INV-VERSION). So for the sake of another row nothing is followed, or read.
    let newest = NonNull::new(r.rec.head())?;
    // SAFETY: reached under our pin.
    if unsafe { newest.as_ref() }.is_tombstone() || !has_key(newest) {
        return None;
    }
    let version = look(t, r, csn).filter(|v| *v == newest)?;
    Some(Found { r, version })
}

/// The row of the only record that the tree has of a key.
#[inline(never)]
fn searched(t: &mut Txn, info: &RelInfo, pk: &PrimaryKey, key: Short, csn: Option<Csn>) -> Option<Found> {
    let mut few = [0; FEW];
    if pk.primary.index.few_short(key, &mut few)? != 1 {
        return None;
    }
    let r = RecordRef::find(info.table, few[0])?;
    let version = look(t, r, csn)?;
    pk.primary.note_hint(key, few[0]);
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
