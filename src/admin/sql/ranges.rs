//! Views of logical ranges and of the predicates of the transaction.

use super::visible_tables;
use crate::keys::codec::{self, Codec};
use crate::keys::describe;
use crate::pg::compat;
use crate::state::xact;
use mixedcc_engine::key::AFTER;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::range::IndexRanges;
use mixedcc_engine::txn::PredicateView;
use pgrx::iter::TableIterator;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;
use std::ops::Bound;

/// The codec of an index that exists; it is opened if this backend does not know it.
fn codec_of(index: u64) -> Option<&'static Codec> {
    // SAFETY: any OID is answered, by null if there is no such relation. It is open while its
    // fields are read, and closed again.
    unsafe {
        let r = pg_sys::try_relation_open(Oid::from(index as u32), pg_sys::AccessShareLock as i32);
        if r.is_null() {
            return None;
        }
        let is_index = (*(*r).rd_rel).relkind as u8 == pg_sys::RELKIND_INDEX;
        let codec = if is_index { codec::of(r) } else { None };
        pg_sys::relation_close(r, pg_sys::AccessShareLock as i32);
        codec
    }
}

/// May the user see keys of the table? Not of one that was dropped meanwhile.
fn may_see(table: Oid) -> bool {
    // SAFETY: catalog look-ups: any OID is answered; after the first one the table is known.
    unsafe {
        pg_sys::get_rel_relkind(table) != 0
            && compat::relation_rights(table, pg_sys::GetUserId(), pg_sys::ACL_SELECT)
            && pg_sys::check_enable_rls(table, pg_sys::InvalidOid, true)
                != pg_sys::CheckEnableRlsResult::RLS_ENABLED as i32
    }
}

fn lower_text(b: &Bound<Vec<u8>>, codec: &Codec) -> String {
    match b {
        Bound::Included(k) => describe::text(codec, k),
        Bound::Excluded(k) => describe::text(codec, &[&k[..], &[AFTER]].concat()),
        Bound::Unbounded => "-infinity".into(),
    }
}

fn upper_text(b: &Bound<Vec<u8>>, codec: &Codec) -> String {
    match b {
        Bound::Included(k) => describe::text(codec, &[&k[..], &[AFTER]].concat()),
        Bound::Excluded(k) => describe::text(codec, k),
        Bound::Unbounded => "infinity".into(),
    }
}

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn range_rows() -> TableIterator<
    'static,
    (
        name!(table, Oid),
        name!(index, Oid),
        name!(range, i32),
        name!(lower, Option<Vec<u8>>),
        name!(upper, Option<Vec<u8>>),
        name!(version, i64),
        name!(scans, i64),
        name!(aborts, i64),
        name!(wraps, i64),
        name!(list_size, i32),
        name!(asleep, bool),
    ),
> {
    let mut rows = Vec::new();
    for (table, t) in visible_tables() {
        let see = may_see(table);
        for r in t.all_ranges().filter(|r| r.is_active()) {
            if let Some(codec) = codec_of(r.index) {
                rows.extend(rows_of(table, r, codec, see));
            }
        }
    }
    TableIterator::new(rows)
}

/// Texts as their bytes in the database's encoding (see `label_items`).
type RangeRow = (Oid, Oid, i32, Option<Vec<u8>>, Option<Vec<u8>>, i64, i64, i64, i64, i32, bool);

fn rows_of(table: Oid, r: &'static IndexRanges, codec: &Codec, see: bool) -> Vec<RangeRow> {
    let set = r.current();
    let n = set.len();
    let bound = |i: u32| see.then(|| crate::pg::text::bytes(&describe::text(codec, set.boundary(i))));
    let count = |c: &mixedcc_engine::primitive::AtomicU64| c.load(Ordering::Relaxed) as i64;
    (0..n)
        .map(|i| {
            let range = set.range(i);
            let lower = if i == 0 { see.then(|| b"-infinity".to_vec()) } else { bound(i - 1) };
            let upper = if i + 1 == n { see.then(|| b"infinity".to_vec()) } else { bound(i) };
            let version = range.version() as i64;
            let (scans, aborts, wraps) = (count(&range.scans), count(&range.aborts), count(&range.wraps));
            let index = Oid::from(r.index as u32);
            let list_size = set.list_size() as i32;
            (table, index, i as i32, lower, upper, version, scans, aborts, wraps, list_size, r.is_dormant())
        })
        .collect()
}

/// A predicate of this transaction in words: index, bounds, number of ranges, number of those that
/// it covers.
pub struct Described {
    pub index: Oid,
    pub table: Oid,
    pub lower: String,
    pub upper: String,
    pub ranges: u32,
    pub covered: u32,
}

/// The predicates on ranges of this transaction from the `skip`th on.
pub fn described(skip: usize) -> Vec<Described> {
    // Copied first: text is made by PostgreSQL's functions, which may come back here.
    let views: Vec<_> = xact::txn().range_predicates().skip(skip).map(copy).collect();
    let text = |v: Copied| {
        let codec = codec_of(v.index)?;
        // SAFETY: within a transaction that can look at catalogs: that of the SQL function.
        let table = unsafe { compat::relation_of(v.table) };
        let (mut lower, mut upper) = (String::from("hidden"), String::from("hidden"));
        if may_see(table) {
            lower = lower_text(&v.lo, codec);
            upper = upper_text(&v.hi, codec);
        }
        let (ranges, covered) = (v.touched, v.covered);
        Some(Described { index: codec.index, table, lower, upper, ranges, covered })
    };
    views.into_iter().filter_map(text).collect()
}

struct Copied {
    index: u64,
    table: [u32; 4],
    lo: Bound<Vec<u8>>,
    hi: Bound<Vec<u8>>,
    touched: u32,
    covered: u32,
}

fn copy(v: PredicateView<'_>) -> Copied {
    Copied {
        index: v.ranges.index,
        table: v.ranges.table().key,
        lo: v.bounds.0.map(<[u8]>::to_vec),
        hi: v.bounds.1.map(<[u8]>::to_vec),
        touched: v.touched,
        covered: v.covered,
    }
}

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn predicate_rows() -> TableIterator<
    'static,
    (
        name!(table, Option<Oid>),
        name!(index, Option<Oid>),
        name!(partition, Option<i32>),
        name!(lower, Option<Vec<u8>>),
        name!(upper, Option<Vec<u8>>),
        name!(ranges, i32),
        name!(covered, i32),
    ),
> {
    let mut rows = Vec::new();
    for d in described(0) {
        let (lower, upper) = (Some(crate::pg::text::bytes(&d.lower)), Some(crate::pg::text::bytes(&d.upper)));
        rows.push((Some(d.table), Some(d.index), None, lower, upper, d.ranges as i32, d.covered as i32));
    }
    let partitions: Vec<_> = xact::txn().partition_predicates().map(|at| (at.table.key, at.no)).collect();
    for (key, no) in partitions {
        // SAFETY: within a transaction that can look at catalogs: that of the SQL function.
        let table = unsafe { compat::relation_of(key) };
        let table = (table != pg_sys::InvalidOid).then_some(table);
        rows.push((table, None, Some(no as i32), None, None, 0, 0));
    }
    TableIterator::new(rows)
}
