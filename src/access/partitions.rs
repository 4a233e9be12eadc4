//! The partitions that a look-up or scan can touch.

use crate::keys::bounds;
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::rel::RelInfo;
use crate::state::xact;
use mixedcc_engine::protocol::Touch;
use pgrx::pg_sys::{self, Datum, Oid, ScanKeyData};

/// The partition, or all if it is not known.
#[inline]
pub fn touches(info: &RelInfo, partition: Option<u16>) -> impl ExactSizeIterator<Item = Touch> {
    let table = info.table;
    let (first, n) = partition.map_or((0, table.map().n), |p| (p as u32, 1));
    (first..first + n).map(move |no| Touch { table, no })
}

/// Before a look-up reads an index: where a predicate on a partition would start if the look-up
/// finds nothing.
#[inline]
pub fn before_lookup(at: Touch) -> (Touch, u64) {
    (at, ok(xact::txn().before_lookup(&PG, at)))
}

/// Makes whole partitions predicates, at once.
pub fn protect(info: &RelInfo, partition: Option<u16>) {
    touches(info, partition).for_each(|at| ok(xact::txn().scan(&PG, at)));
}

/// An insert of a subtransaction is checked against the rows of all partitions
/// ([`mixedcc_engine::Txn::note_absent_rows`]).
pub fn note_absent(info: &RelInfo) {
    xact::txn().note_absent_rows(touches(info, None));
}

/// The value that the keys of a scan fix for a column of the index (from 0), and its type.
///
/// # Safety
/// An open index and keys of a scan of it.
pub unsafe fn equal_to(index: pg_sys::Relation, keys: &[ScanKeyData], column: usize) -> Option<(Datum, Oid)> {
    let k = keys.iter().find(|k| k.sk_attno as usize == column + 1 && bounds::equality(k).is_some())?;
    let own = k.sk_subtype == pg_sys::InvalidOid;
    // SAFETY: `index` is open, and `column` is that of a key of a scan of it (contract of this
    // function): `rd_opcintype` has an entry for it.
    Some((k.sk_argument, if own { unsafe { *(*index).rd_opcintype.add(column) } } else { k.sk_subtype }))
}

/// The only partition whose rows the keys of a scan let through; `None`: there may be several.
/// `attnums`: the table's columns that are the index's key columns.
///
/// # Safety
/// As for [`equal_to`].
pub unsafe fn fixed_by(info: &RelInfo, index: pg_sys::Relation, attnums: &[i16], keys: &[ScanKeyData]) -> Option<u16> {
    if info.table.map().n == 1 {
        return Some(0);
    }
    let mut key = Vec::new();
    for c in info.partkey.columns() {
        let at = attnums.iter().position(|a| *a == c)?;
        // SAFETY: `index` is open, and `at` is the number of a key column (contract of this
        // function).
        if !unsafe { info.partkey.agrees_with(index, at, c) } {
            return None;
        }
        // SAFETY: `index` is open, and `keys` are those of a scan of it (contract of this
        // function).
        let (value, typid) = unsafe { equal_to(index, keys, at) }?;
        key.push((value, false, typid));
    }
    if key.is_empty() {
        return None;
    }
    // SAFETY: `key` has a value with its type for each column of the partition key. `agrees_with`
    // has seen to equality and collation. An ERROR unwinds.
    unsafe { info.partkey.partition_of_key(&key) }
}
