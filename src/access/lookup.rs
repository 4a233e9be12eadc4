//! A row by its whole primary key, in the engine's primary index: the one way there for the bypass,
//! native calls and the custom scan.
//!
//! First a look ([`peek`]), which most rows need alone. Else the key is encoded, its partition
//! computed, the index searched, and, at SERIALIZABLE, an absent key protected.

use super::partitions::{self, before_lookup};
use super::visible::Why;
use crate::access::{index_lookup, tuple, visible};
use crate::pg::faults::{self, Fault};
use crate::pg::local::Local;
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::rel::{PrimaryKey, RelInfo};
use crate::state::stop;
use crate::state::xact::{self, Mode};
use mixedcc_engine::index::{Direction, FEW};
use mixedcc_engine::key::Short;
use mixedcc_engine::open::Seen;
use mixedcc_engine::range::Columns;
use mixedcc_engine::record::Version;
use mixedcc_engine::txn::{Peek, ScanId};
use mixedcc_engine::{RecordRef, Txn};
use pgrx::pg_sys::{self, Datum, Oid};
use std::ops::Bound;
use std::ptr::NonNull;

/// Most columns of a key.
pub const MOST_COLUMNS: usize = pg_sys::INDEX_MAX_KEYS as usize;

/// Of the process: room for a key. Taken while it is used.
static KEY: Local<Vec<u8>> = Local::new(Vec::new());

/// The values of a whole key and their types, by number from 0. None of them is NULL.
pub trait Key {
    /// How many there are.
    fn len(&self) -> usize;
    /// A value and its type (invalid: the column's own).
    fn value(&self, i: usize) -> (Datum, Oid);
}

/// What a look-up is for.
#[derive(Clone, Copy)]
pub enum Use {
    /// The statement looks at these columns (INV-LOOKED of the engine).
    Look(Columns),
    /// It locks the key of the row, and looks at nothing else of it (INV-EXISTS of the engine).
    Key,
    /// The row will be written next.
    Write,
    /// The statement locks the row, or skips it if it is locked (INV-SKIP). At SERIALIZABLE only.
    Offer,
}

impl Use {
    #[inline]
    fn peek(self) -> Peek {
        match self {
            Use::Look(columns) => Peek::Columns(columns),
            Use::Key => Peek::Key,
            Use::Write | Use::Offer => Peek::Write,
        }
    }
}

/// A row that was found.
#[derive(Clone, Copy)]
pub struct Found {
    /// Its record.
    pub r: RecordRef,
    /// The version that is seen.
    pub version: NonNull<Version>,
}

/// The row with a key, as a statement sees it at the transaction's level. At SERIALIZABLE all that
/// the protocols ask of a look-up is done: a row that is found protects itself, an absent key
/// becomes a predicate.
///
/// `snapshot`: the statement's. `None` as the result: some value does not compare exactly as bytes,
/// so only PostgreSQL's operators can tell.
///
/// # Safety
/// An open relation of ours, its info, its key that is usable now (`primary::usable`), a value for
/// each column of that key, and an MVCC snapshot.
#[inline]
pub unsafe fn by_key<K: Key + ?Sized>(
    rel: pg_sys::Relation,
    info: &RelInfo,
    pk: &PrimaryKey,
    key: &K,
    snapshot: pg_sys::Snapshot,
    to: Use,
) -> Option<Option<Found>> {
    // SAFETY: `rel`, `info`, `pk`, `key` and `snapshot` belong together (contract of this
    // function).
    unsafe {
        let forgets = matches!(to, Use::Write) && faults::on(Fault::WrittenByColumn);
        let to = if forgets { Use::Look(Columns::NONE) } else { to };
        let looked = match to {
            Use::Look(columns) => columns,
            Use::Key => Columns::NONE,
            Use::Write | Use::Offer => Columns::ALL,
        };
        let (mut peeks, mut missed) = (!matches!(to, Use::Offer), None);
        while peeks {
            if let Some(found) = peek_or_miss(rel, info, pk, key, snapshot, to, &mut missed) {
                return Some(Some(found));
            }
            peeks = begins_to_look(info);
        }
        let (for_write, key_alone) = (matches!(to, Use::Write), matches!(to, Use::Key));
        let why = Why { for_write, scan: ScanId::NONE, looked, key: key_alone };
        if let Some(found) = missed.and_then(|r| by_guess(rel, pk, key, r, snapshot, why)) {
            return Some(Some(found));
        }
        let mut bytes = KEY.take();
        bytes.clear();
        let found = encode(info, pk, key, &mut bytes).map(|partition| match to {
            Use::Offer => offered(info, pk, &bytes, partition, snapshot),
            _ => by_bytes(rel, info, pk, &bytes, partition, snapshot, why),
        });
        KEY.set(bytes);
        found
    }
}

/// A look has told nothing. Was that because the transaction had not started, or did not follow
/// protocols? Then it does from now on, so that another look may tell something. Once in a
/// transaction.
#[inline(never)]
fn begins_to_look(info: &RelInfo) -> bool {
    let starts = xact::running().is_none();
    let t = xact::txn();
    if xact::mode() != Mode::Serializable || t.is_frozen() {
        return starts;
    }
    let follows = !t.is_following() && !locks_partitions(info);
    if follows {
        ok(t.begin_following(&PG));
    }
    follows
}

/// Do the table's partitions want a lock before they are touched? A hint, from the first one: then
/// the first look-up of a transaction does not begin with a look, which would tell nothing without
/// that lock.
#[inline]
fn locks_partitions(info: &RelInfo) -> bool {
    info.table.map().partitions()[0].protocols().locks_partitions()
}

/// The row of a record that has the key, by a guess, and of which a look has not told enough: by a
/// read, which may wait. It is right if what it sees has the key in its own columns (INV-GUESS of
/// the engine). It is not where partitions are locked, because they have an order, which only the
/// key tells. Without a row the tree is searched.
#[cold]
unsafe fn by_guess<K: Key + ?Sized>(
    rel: pg_sys::Relation,
    pk: &PrimaryKey,
    key: &K,
    r: RecordRef,
    snapshot: pg_sys::Snapshot,
    why: Why,
) -> Option<Found> {
    let mode = xact::mode();
    if mode != Mode::Serializable || r.partition().protocols().locks_partitions() {
        return None;
    }
    // SAFETY: `rel`, `pk`, `key` and `snapshot` belong together (contract of `by_key`). The version
    // is reached under our pin (INV-RETIRE), or our own.
    unsafe {
        let version = visible::mvcc(xact::txn(), mode, r, snapshot, why)?;
        let value = |i| key.value(i);
        let has_key = pk.codec.has_ints(value, |at| tuple::value_of(version, (*rel).rd_att, at));
        has_key.then_some(Found { r, version })
    }
}

/// The bytes of a key, if all of its values compare exactly; and its partition, if that is known.
#[inline]
unsafe fn encode<K: Key + ?Sized>(info: &RelInfo, pk: &PrimaryKey, key: &K, out: &mut Vec<u8>) -> Option<Option<u16>> {
    let n = key.len();
    // SAFETY: `key` has a value of its type for each column of `pk`, none NULL: contract of
    // `by_key`.
    unsafe {
        if n == 1 {
            let (d, typid) = key.value(0);
            return pk.codec.put_foreign(0, d, typid, out).then(|| pk.partition(info, &[d], &[typid]));
        }
        let mut datums = [Datum::from(0); MOST_COLUMNS];
        let mut types = [pg_sys::InvalidOid; MOST_COLUMNS];
        for i in 0..n {
            (datums[i], types[i]) = key.value(i);
            if !pk.codec.put_foreign(i, datums[i], types[i], out) {
                return None;
            }
        }
        Some(pk.partition(info, &datums[..n], &types[..n]))
    }
}

/// Calls `with` with the bytes of a key, and the partition of its row if that is known. `None`:
/// only PostgreSQL's operators can tell.
///
/// # Safety
/// As for [`by_key`]; `with` makes no other key. An ERROR loses room that is made again.
pub unsafe fn with_bytes<K: Key + ?Sized, T>(
    info: &RelInfo,
    pk: &PrimaryKey,
    key: &K,
    with: impl FnOnce(&[u8], Option<u16>) -> T,
) -> Option<T> {
    let mut bytes = KEY.take();
    bytes.clear();
    // SAFETY: the contract of this function.
    let found = unsafe { encode(info, pk, key, &mut bytes) }.map(|partition| with(&bytes, partition));
    KEY.set(bytes);
    found
}

/// The first result of `see` for the records that have a key, whether or not the transaction sees
/// them.
#[inline]
pub fn of_records<T>(pk: &PrimaryKey, key: &[u8], see: impl FnMut(u64) -> Option<T>) -> Option<T> {
    let mut few = [0; FEW];
    if let Some(n) = pk.primary.index.few(key, &mut few) {
        return few[..n].iter().copied().find_map(see);
    }
    let bound = Bound::Included(key);
    let mut all = pk.primary.index.scan(bound, bound, Direction::Forward);
    std::iter::from_fn(|| all.next(&PG).map(|(_, no)| no)).find_map(see)
}

/// The row with a key that is neither protected nor remembered, as it counts only once it is locked
/// (INV-SKIP). The same for its absence.
unsafe fn offered(
    info: &RelInfo,
    pk: &PrimaryKey,
    key: &[u8],
    partition: Option<u16>,
    snapshot: pg_sys::Snapshot,
) -> Option<Found> {
    partitions::touches(info, partition).for_each(|touch| _ = before_lookup(touch));
    let t = xact::txn();
    of_records(pk, key, |no| {
        let r = RecordRef::find(info.table, no)?;
        // SAFETY: `snapshot` is a valid MVCC snapshot: contract of `by_key`.
        let version = unsafe { visible::offer(t, r, snapshot) }?;
        Some(Found { r, version })
    })
}

/// What [`by_key`] does with the bytes of the key. `partition`: where the row is or would be, if
/// that is known.
unsafe fn by_bytes(
    rel: pg_sys::Relation,
    info: &RelInfo,
    pk: &PrimaryKey,
    key: &[u8],
    partition: Option<u16>,
    snapshot: pg_sys::Snapshot,
    why: Why,
) -> Option<Found> {
    let mode = xact::mode();
    if mode != Mode::Serializable {
        // SAFETY: `snapshot` is a valid MVCC snapshot: contract of `by_key`. Its CSN comes before
        // the index is read: it may have to be taken, and the pin too.
        return unsafe {
            xact::snapshot_seen(snapshot);
            search(pk, info, mode, key, snapshot, why)
        };
    }
    let mut touches = partitions::touches(info, partition);
    let first = before_lookup(touches.next().expect("a table has a partition"));
    let rest: Vec<_> = touches.map(before_lookup).collect();
    // SAFETY: `rel` is open, and `snapshot` a valid MVCC snapshot: contract of `by_key`. The key's
    // index exists while its table is locked, and is closed again.
    unsafe {
        if let Some(found) = search(pk, info, mode, key, snapshot, why) {
            return Some(found);
        }
        let partitions: Vec<_> = std::iter::once(first).chain(rest).collect();
        let index = pg_sys::index_open(pk.index, pg_sys::AccessShareLock as i32);
        let after = index_lookup::position_after(rel, info, index, key, &partitions);
        pg_sys::index_close(index, pg_sys::NoLock as i32);
        let t = xact::txn();
        let Some((position, again)) = after else {
            partitions.into_iter().for_each(|(at, start)| t.add_predicate(at, start));
            return if ok(t.looks_again(&PG)) { search(pk, info, mode, key, snapshot, why) } else { None };
        };
        if again {
            let found = search(pk, info, mode, key, snapshot, why);
            if found.is_some() {
                return found;
            }
        }
        t.add_point_predicate(&PG, &position, key);
        if ok(t.looks_again(&PG)) {
            return search(pk, info, mode, key, snapshot, why);
        }
    }
    None
}

/// What [`by_key`] would find of a record with a key of a few bytes of integers. `None` if it would
/// do more than look at it and take a lock that is free, and also if there is no such row. Neither
/// fails nor unwinds, and calls no function of users. A row that is
/// found needs no look at its partition before (INV-PEEK); otherwise the row is looked for again,
/// after that.
///
/// A guess leads to the record (INV-GUESS of the engine) or the tree. A guess is right if a version
/// that is visible has the key in its own columns: a PRIMARY KEY is checked at once, so no snapshot
/// sees two rows with one key. The only record that the tree has of a key need not be asked
/// (INV-PRIMARY). Where a row is locked to be read, it is the one that is seen that has the key,
/// and it is seen under the lock (INV-LOCKED-LOOK of the engine). A record that turns out not to be
/// the row stays locked. As a rule its row has the key all the same, and the search after this
/// meets it again.
///
/// # Safety
/// As for [`by_key`]; nothing that PostgreSQL does is under way between the look at `pk` and this.
#[inline]
pub unsafe fn peek<K: Key + ?Sized>(
    rel: pg_sys::Relation,
    info: &RelInfo,
    pk: &PrimaryKey,
    key: &K,
    snapshot: pg_sys::Snapshot,
    to: Use,
) -> Option<Found> {
    // SAFETY: the contract of this function.
    unsafe { peek_or_miss(rel, info, pk, key, snapshot, to, &mut None) }
}

/// [`peek`]. `missed`: a record whose newest version has the key, and of which the look has not
/// told enough.
#[inline]
unsafe fn peek_or_miss<K: Key + ?Sized>(
    rel: pg_sys::Relation,
    info: &RelInfo,
    pk: &PrimaryKey,
    key: &K,
    snapshot: pg_sys::Snapshot,
    to: Use,
    missed: &mut Option<RecordRef>,
) -> Option<Found> {
    *missed = None;
    let value = |i| key.value(i);
    let key = pk.codec.short(key.len(), value)?;
    let t = xact::running().filter(|_| !stop::is_on())?;
    let seen = match xact::known_mode()? {
        // Else a look tells nothing (INV-PEEK).
        Mode::Serializable if !t.is_following() && !t.is_frozen() => return None,
        Mode::Serializable => None,
        // Takes the pin and the CSN if need be, which cannot fail at this level.
        // SAFETY: `snapshot` is a valid MVCC snapshot (contract of this function).
        Mode::ReadCommitted => Some(unsafe { xact::snapshot_seen(snapshot) }),
        // It was taken before, so the pin was too.
        // SAFETY: `snapshot` is a valid MVCC snapshot (contract of this function).
        _ => Some(unsafe { xact::known_seen(snapshot) }?),
    };
    // SAFETY: `rel` is open, and `pk` its key (contract of this function): the row type has its
    // columns. `guessed` has versions of its table, under our pin (INV-RETIRE).
    let has_key = |v| unsafe { pk.codec.has_ints(value, |at| tuple::value_of(v, (*rel).rd_att, at)) };
    if let Some(found) = pk.primary.find_by_hint(key, |no| guessed(t, info, no, (seen, to), has_key, missed)) {
        return Some(found);
    }
    if missed.is_some() && seen.is_none() {
        return None; // as a rule, the tree has the same record
    }
    searched(t, info, pk, key, (seen, to))
}

/// The visible row of a record that this transaction has not written, where a look at its newest
/// version tells it. `seen`: of the snapshot, `None` at SERIALIZABLE, where the use counts.
#[inline]
fn look(t: &mut Txn, r: RecordRef, (seen, to): (Option<Seen<'_>>, Use)) -> Option<NonNull<Version>> {
    if t.last_write(r).is_some() {
        return None;
    }
    match seen {
        None => t.peek_row(&PG, r, to.peek()),
        Some(seen) => t.peek_snapshot(r, seen)?,
    }
}

/// The row of a record that was guessed, if it is right: whose newest version has the key, and is
/// the one that is seen. Otherwise `missed` is the record, if that has the key.
#[inline(always)]
fn guessed(
    t: &mut Txn,
    info: &RelInfo,
    no: u64,
    as_seen: (Option<Seen<'_>>, Use),
    has_key: impl Fn(NonNull<Version>) -> bool,
    missed: &mut Option<RecordRef>,
) -> Option<Found> {
    let r = RecordRef::find(info.table, no)?;
    // A pending version is complete too (INV-VERSION). So for the sake of another row nothing is
    // followed, or read.
    let newest = NonNull::new(r.rec.head())?;
    // SAFETY: `newest` is reached under our pin (INV-RETIRE).
    if unsafe { newest.as_ref() }.is_tombstone() || !(has_key(newest) || faults::on(Fault::GuessUnproved)) {
        return None;
    }
    let version = look(t, r, as_seen).filter(|v| *v == newest);
    if version.is_none() {
        *missed = Some(r);
    }
    version.map(|version| Found { r, version })
}

/// The row of the only record that the tree has of a key.
#[inline(never)]
fn searched(
    t: &mut Txn,
    info: &RelInfo,
    pk: &PrimaryKey,
    key: Short,
    as_seen: (Option<Seen<'_>>, Use),
) -> Option<Found> {
    let mut few = [0; FEW];
    if pk.primary.index.few_short(key, &mut few)? != 1 {
        return None;
    }
    let r = RecordRef::find(info.table, few[0])?;
    let version = look(t, r, as_seen)?;
    pk.primary.note_hint(key, few[0]);
    Some(Found { r, version })
}

/// The row with a key that is seen. Several records may have the key: one row and those that it
/// replaced.
unsafe fn search(
    pk: &PrimaryKey,
    info: &RelInfo,
    mode: Mode,
    key: &[u8],
    snapshot: pg_sys::Snapshot,
    why: Why,
) -> Option<Found> {
    let t = xact::txn();
    let see = |no| {
        let r = RecordRef::find(info.table, no)?;
        // SAFETY: `snapshot` is a valid MVCC snapshot: contract of `by_key`.
        let version = unsafe { visible::mvcc(t, mode, r, snapshot, why) }?;
        Some(Found { r, version })
    };
    of_records(pk, key, see)
}
