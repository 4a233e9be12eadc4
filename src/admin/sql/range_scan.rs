//! `mixedcc.range_scan`: the rows of a key range, which stays as it was read until the transaction
//! commits, at every isolation level.

use super::{may_use, must_select, open, Open};
use crate::access::ranges::rows::{self, Row};
use crate::access::ranges::{self, Ranged};
use crate::access::{indexscan, mixture, protect, tuple};
use crate::keys::bounds::Interval;
use crate::keys::codec::Codec;
use crate::paths::native;
use crate::pg::errors::{complain, unsupported};
use crate::pg::relations::{self, must_expect};
use crate::pg::values::Domain;
use crate::pg::{compat, expr};
use crate::state::errors;
use crate::state::platform::PG;
use crate::state::rel::{self, RelInfo};
use crate::state::xact::{self, Mode};
use mixedcc_engine::key::AFTER;
use mixedcc_engine::protocol::Touch;
use pgrx::pg_sys::{self, Datum, Oid, ScanKeyData};
use pgrx::prelude::*;
use std::cmp::Ordering;
use std::ops::Bound;

/// Number of the ordering function in an operator family of B-trees (nbtree.h).
const BTORDER_PROC: i16 = 1;

/// The arguments after the row type.
struct Request {
    lo: Vec<Value>,
    hi: Vec<Value>,
    lo_inclusive: bool,
    hi_inclusive: bool,
    descending: bool,
    limit: Option<i64>,
}

/// A value of a bound: datum, NULL, type.
type Value = crate::pg::values::Value;

/// Where the rows go.
struct Rows {
    store: *mut pg_sys::Tuplestorestate,
    /// Their type, as the statement expects it.
    desc: pg_sys::TupleDesc,
    /// The domain over their type that was asked for.
    domain: Domain,
}

impl Rows {
    /// Adds the row of a slot of the table. The store knows no values of columns that were added
    /// after the row: it gets them with the row.
    unsafe fn put(&self, slot: *mut pg_sys::TupleTableSlot) {
        // SAFETY: `slot` is a heap tuple slot of the table with a row: `copy_rows` has made and
        // filled it. `must_expect` has compared the row types.
        unsafe {
            self.check(slot);
            let natts = (*self.desc).natts;
            if tuple::columns(&*(*slot.cast::<pg_sys::HeapTupleTableSlot>()).tuple) == natts {
                return pg_sys::tuplestore_puttupleslot(self.store, slot);
            }
            if i32::from((*slot).tts_nvalid) < natts {
                crate::pg::raw::slot_getsomeattrs_int(slot, natts);
            }
            pg_sys::tuplestore_putvalues(self.store, self.desc, (*slot).tts_values, (*slot).tts_isnull);
        }
    }
}

impl Rows {
    /// Checks the row of a slot, if it is to be of a domain.
    unsafe fn check(&self, slot: *mut pg_sys::TupleTableSlot) {
        if self.domain.is_none() {
            return;
        }
        // SAFETY: `slot` has a row of the table: contract of `put`. Columns that were added after
        // it get their values.
        unsafe {
            let desc = (*slot).tts_tupleDescriptor;
            if i32::from((*slot).tts_nvalid) < (*desc).natts {
                crate::pg::raw::slot_getsomeattrs_int(slot, (*desc).natts);
            }
            let row = pg_sys::heap_form_tuple(desc, (*slot).tts_values, (*slot).tts_isnull);
            let value = pg_sys::heap_copy_tuple_as_datum(row, desc);
            self.domain.check(Some(value));
            pg_sys::pfree(value.cast_mut_ptr());
            pg_sys::heap_freetuple(row);
        }
    }
}

/// `range_scan(anyelement, "any", "any", boolean, boolean, boolean, bigint)`.
#[pg_extern(sql = false)]
fn range_scan(fcinfo: pg_sys::FunctionCallInfo) {
    // SAFETY: `fcinfo` is a call of this function (fmgr.h), with the arguments of its SQL
    // declaration; each is read as its type if it is not NULL. InitMaterializedSRF sets
    // `resultinfo`.
    unsafe {
        let info = (*fcinfo).flinfo;
        let typid = pg_sys::get_fn_expr_argtype(info, 0);
        let table = native::of_rowtype(typid);
        let args = (*fcinfo).args.as_slice((*fcinfo).nargs as usize);
        let flag = |i: usize, default: bool| if args[i].isnull { default } else { args[i].value.value() != 0 };
        let bound = |i: usize| values(args[i].value, args[i].isnull, pg_sys::get_fn_expr_argtype(info, i as i32));
        let request = Request {
            lo: bound(1),
            hi: bound(2),
            lo_inclusive: flag(3, true),
            hi_inclusive: flag(4, true),
            descending: flag(5, false),
            limit: (!args[6].isnull).then_some(args[6].value.value() as i64),
        };
        pg_sys::InitMaterializedSRF(fcinfo, pg_sys::MAT_SRF_USE_EXPECTED_DESC);
        let result = (*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        may_use(table);
        must_select(table);
        let heap = open(table, pg_sys::AccessShareLock);
        must_expect((*result).setDesc, heap.0);
        let domain = Domain::of(typid, (*info).fn_mcxt);
        run(&heap, &request, Rows { store: (*result).setResult, desc: (*result).setDesc, domain });
        (*fcinfo).isnull = true;
    }
}

/// The values of a bound: a scalar, the columns of a row, or none.
unsafe fn values(d: Datum, null: bool, typid: Oid) -> Vec<Value> {
    // SAFETY: `d` is a value of `typid`, unless it is NULL: the arguments of `range_scan` are. A
    // composite value is a tuple with its type in its header, whose descriptor is released after
    // its last use.
    unsafe {
        if null {
            return Vec::new();
        }
        if typid != pg_sys::RECORDOID && pg_sys::get_typ_typrelid(typid) == pg_sys::InvalidOid {
            return vec![(d, false, typid)];
        }
        let row = pg_sys::pg_detoast_datum(d.cast_mut_ptr()).cast::<pg_sys::HeapTupleHeaderData>();
        let f = (*row).t_choice.t_datum;
        let desc = pg_sys::lookup_rowtype_tupdesc_copy(f.datum_typeid, f.datum_typmod);
        let n = (*desc).natts as usize;
        let mut tuple = pg_sys::HeapTupleData { t_len: pgrx::varsize_any(row.cast()) as u32, ..Default::default() };
        tuple.t_data = row;
        let (mut datums, mut nulls) = (vec![Datum::from(0); n], vec![false; n]);
        pg_sys::heap_deform_tuple(&mut tuple, desc, datums.as_mut_ptr(), nulls.as_mut_ptr());
        // A column that was dropped is NULL in the row, and none that the caller has given.
        let there = (0..n).filter(|&i| !compat::attribute(desc, i).attisdropped);
        there.map(|i| (datums[i], nulls[i], compat::attribute(desc, i).atttypid)).collect()
    }
}

/// The index that orders the table: of the primary key, or another unique one.
unsafe fn key_of(heap: &Open, info: &RelInfo) -> &'static Codec {
    // SAFETY: `heap` is open, and its indexes exist while it is locked. Each is closed again, by an
    // ERROR's clean-up if it comes to that.
    unsafe {
        let unique = |c: &&&Codec| {
            let index = pg_sys::index_open(c.index, pg_sys::AccessShareLock as i32);
            let yes = (*(*index).rd_index).indisunique;
            pg_sys::index_close(index, pg_sys::NoLock as i32);
            yes
        };
        let usable = ranges::usable(heap.0, info);
        match usable.iter().find(unique) {
            Some(c) => c,
            None => complain(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                &format!("table \"{}\" has no key for range_scan", relations::name(info.oid)),
                "Add a primary key or a unique B-tree index on columns.",
            ),
        }
    }
}

unsafe fn run(heap: &Open, q: &Request, out: Rows) {
    // SAFETY: `heap` is an open relation of ours, and its index exists while it is locked. What is
    // opened here is closed here, or by an ERROR's clean-up. The pin keeps the rows (INV-RETIRE).
    unsafe {
        let r = heap.0;
        let info = rel::info(r);
        refuse_row_security(info.oid);
        refuse_virtual_columns(r);
        mixture::check();
        let codec = key_of(heap, info);
        let lo = fit(r, codec, &q.lo);
        let hi = fit(r, codec, &q.hi);
        let interval = interval(codec, &lo, &hi, q);
        if q.limit.is_some_and(|n| n < 0) {
            complain(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, "the limit must not be negative", "");
        }
        if q.limit == Some(0) || codec.compare(&interval.lo, &interval.hi) != Ordering::Less {
            return;
        }
        let index = pg_sys::index_open(codec.index, pg_sys::AccessShareLock as i32);
        indexscan::wrap(r, index);
        let Some(ranged) = ranges::of_index(r, info, index) else { errors::raise(mixedcc_engine::Error::OutOfMemory) };
        let at: Vec<Touch> = (0..info.table.map().n).map(|no| Touch { table: info.table, no }).collect();
        let snapshot = pg_sys::GetActiveSnapshot();
        let id = match xact::mode() {
            Mode::Serializable => {
                xact::thaw();
                xact::txn().validate_at_commit();
                None
            }
            Mode::SerializableReadOnly => None,
            _ => Some(protect::begin_at(&at, ranged, &interval, xact::snapshot_seen(snapshot))),
        };
        let last = copy_rows(r, index, ranged, snapshot, &interval, &scan_keys(r, codec, &lo, &hi, q), q, &out);
        if let (Some(id), Some(key)) = (id, last) {
            let end = [&key[..], &[AFTER]].concat();
            let t = xact::txn();
            if q.descending {
                t.narrow_scan(&PG, id, Some(Bound::Included(&key)), None);
            } else {
                t.narrow_scan(&PG, id, None, Some(Bound::Excluded(&end)));
            }
        }
        pg_sys::index_close(index, pg_sys::NoLock as i32);
    }
}

/// Rows go straight to the caller, as they are stored: columns that a read computes are NULL there.
fn refuse_virtual_columns(rel: pg_sys::Relation) {
    // SAFETY: `rel` is open: the caller has opened it.
    if unsafe { compat::has_virtual_columns((*rel).rd_att) } {
        unsupported("range_scan does not compute virtual generated columns", "Use SELECT.");
    }
}

/// Rows go straight to the caller: policies would be passed by.
fn refuse_row_security(table: Oid) {
    // SAFETY: catalog look-up of a table that is open.
    let rls = unsafe { pg_sys::check_enable_rls(table, pg_sys::InvalidOid, false) };
    if rls == pg_sys::CheckEnableRlsResult::RLS_ENABLED as i32 {
        unsupported("range_scan does not apply row-level security", "Use SELECT.");
    }
}

/// Values as their columns' types, or an error.
unsafe fn fit(rel: pg_sys::Relation, codec: &Codec, values: &[Value]) -> Vec<Datum> {
    if values.len() > codec.columns.len() {
        complain(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            &format!("values of a bound: {}; columns of the key: {}", values.len(), codec.columns.len()),
            "Give values for the first columns of the key, in its order.",
        );
    }
    let mut out = Vec::new();
    for (i, v) in values.iter().enumerate() {
        if v.1 {
            complain(
                PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
                "a value of a bound must not be null",
                "Leave the bound out (NULL) to begin or end with the first or last key.",
            );
        }
        // SAFETY: `rel` is open and has the column, which is one of its index's. The value is of
        // the type that it names.
        out.push(unsafe { coerce(rel, codec.attnums[i], *v) });
    }
    out
}

unsafe fn coerce(rel: pg_sys::Relation, attnum: i16, v: Value) -> Datum {
    // SAFETY: `rel` is open and has column `attnum`, and `v` is of its type: `fit` passes its own
    // on. Catalog look-ups: any OID is answered.
    unsafe {
        let att = compat::attribute((*rel).rd_att, attnum as usize - 1);
        let (want, have) = (pg_sys::getBaseType(att.atttypid), pg_sys::getBaseType(v.2));
        if have == pg_sys::UNKNOWNOID {
            return crate::pg::values::read_literal(want, v.0);
        }
        if have == want || pg_sys::IsBinaryCoercible(have, want) {
            return v.0;
        }
        match crate::pg::values::cast(v, want) {
            Some((d, false, _)) => d,
            _ => {
                let name = |t| crate::pg::text::read(pg_sys::format_type_be(t));
                let column = crate::pg::text::read(att.attname.data.as_ptr());
                complain(
                    PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
                    &format!("a bound of type {} does not fit column \"{column}\" of type {}", name(have), name(want)),
                    "Cast the bound to the type of the key's column.",
                )
            }
        }
    }
}

/// The key range that is asked for.
unsafe fn interval(codec: &Codec, lo: &[Datum], hi: &[Datum], q: &Request) -> Interval {
    let encode = |values: &[Datum], after: bool| {
        let mut k = Vec::new();
        for (i, v) in values.iter().enumerate() {
            // SAFETY: `fit` has made values of the types of the codec's columns.
            unsafe { codec.put(i, *v, &mut k) };
        }
        if after {
            k.push(AFTER);
        }
        k
    };
    let all = Interval::all();
    let i = Interval {
        lo: if lo.is_empty() { all.lo } else { encode(lo, !q.lo_inclusive) },
        hi: if hi.is_empty() { all.hi } else { encode(hi, q.hi_inclusive) },
    };
    let plain = (encode(lo, false), encode(hi, true));
    if !lo.is_empty() && !hi.is_empty() && codec.compare(&plain.0, &plain.1) == Ordering::Greater {
        complain(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            "the lower bound of range_scan is greater than the upper bound",
            "Bounds are in the order of the key's index; use descending => true to read backwards.",
        );
    }
    i
}

/// The keys of a scan, with the members of row comparisons that some of them point to.
struct ScanKeys {
    keys: Vec<ScanKeyData>,
    _members: Vec<Box<[ScanKeyData]>>,
}

/// What nbtree is told of the range: columns whose bounds are equal, and then the rest of each
/// bound: one column, or a comparison of rows. Where the index sorts these columns in different
/// directions, or one may be NULL (which is in the order of keys, but compares to nothing), there
/// is none; then rows outside of the range that the first of them lets through are passed over by
/// their keys.
///
/// # Safety
/// An open relation, the codec of an index of it, and values of the types of its columns.
unsafe fn scan_keys(rel: pg_sys::Relation, codec: &Codec, lo: &[Datum], hi: &[Datum], q: &Request) -> ScanKeys {
    let mut found = Vec::new();
    let mut members = Vec::new();
    // SAFETY: `rel` is open (contract of this function), and `codec` is that of an index of it,
    // which exists while the table is locked. It is open while its arrays are read. `lo` and `hi`
    // have values of the types of its columns.
    unsafe {
        let index = pg_sys::index_open(codec.index, pg_sys::AccessShareLock as i32);
        let same = |i: usize| {
            let (mut a, mut b) = (Vec::new(), Vec::new());
            codec.put(i, lo[i], &mut a);
            codec.put(i, hi[i], &mut b);
            codec.compare(&a, &b) == Ordering::Equal
        };
        let equal = (0..lo.len().min(hi.len())).take_while(|i| same(*i)).count();
        for (i, v) in lo.iter().enumerate().take(equal) {
            found.push(one_column(index, pg_sys::BTEqualStrategyNumber, i, *v));
        }
        let desc = codec.columns.get(equal).is_some_and(|c| c.desc);
        // A row at an exclusive bound is not wanted: not even read, if the bound ends with this
        // column.
        let strategy =
            |upper: bool, bound: &[Datum], inclusive: bool| match (upper != desc, inclusive || bound.len() > equal + 1)
            {
                (true, true) => pg_sys::BTLessEqualStrategyNumber,
                (true, false) => pg_sys::BTLessStrategyNumber,
                (false, true) => pg_sys::BTGreaterEqualStrategyNumber,
                (false, false) => pg_sys::BTGreaterStrategyNumber,
            };
        let rows_compare = |c: usize| {
            let column = compat::attribute((*rel).rd_att, codec.attnums[c] as usize - 1);
            column.attnotnull && codec.columns[c].desc == desc
        };
        for (upper, bound, inclusive) in [(false, lo, q.lo_inclusive), (true, hi, q.hi_inclusive)] {
            let Some(v) = bound.get(equal) else { continue };
            if bound.len() > equal + 1 && (equal..bound.len()).all(rows_compare) {
                let strategy = match (upper != desc, inclusive) {
                    (true, true) => pg_sys::BTLessEqualStrategyNumber,
                    (true, false) => pg_sys::BTLessStrategyNumber,
                    (false, true) => pg_sys::BTGreaterEqualStrategyNumber,
                    (false, false) => pg_sys::BTGreaterStrategyNumber,
                };
                let mut row = row_members(index, strategy, equal, &bound[equal..]);
                let mut header = ScanKeyData::default();
                (header.sk_flags, header.sk_attno) = (pg_sys::SK_ROW_HEADER as i32, equal as i16 + 1);
                header.sk_strategy = strategy as u16;
                header.sk_argument = Datum::from(row.as_mut_ptr());
                found.push(header);
                members.push(row);
            } else {
                found.push(one_column(index, strategy(upper, bound, inclusive), equal, *v));
            }
        }
        pg_sys::index_close(index, pg_sys::NoLock as i32);
    }
    ScanKeys { keys: found, _members: members }
}

/// A condition on one column of an open index, as ScanKeyInit makes it.
unsafe fn one_column(index: pg_sys::Relation, strategy: u32, column: usize, v: Datum) -> ScanKeyData {
    let mut key = ScanKeyData::default();
    // SAFETY: `index` is open and has the column, for which its arrays have an entry. `key` is of
    // this frame.
    unsafe {
        let typid = *(*index).rd_opcintype.add(column);
        let op = pg_sys::get_opfamily_member(*(*index).rd_opfamily.add(column), typid, typid, strategy as i16);
        let collation = *(*index).rd_indcollation.add(column);
        let function = pg_sys::get_opcode(op);
        pg_sys::ScanKeyEntryInitialize(&mut key, 0, column as i16 + 1, strategy as u16, typid, collation, function, v);
    }
    key
}

/// The members of a comparison of rows, from a column on (ExecIndexBuildScanKeys).
unsafe fn row_members(index: pg_sys::Relation, strategy: u32, from: usize, values: &[Datum]) -> Box<[ScanKeyData]> {
    let mut row = vec![ScanKeyData::default(); values.len()].into_boxed_slice();
    for (i, (key, v)) in row.iter_mut().zip(values).enumerate() {
        let column = from + i;
        let last = if i + 1 == values.len() { pg_sys::SK_ROW_END } else { 0 };
        // SAFETY: `index` is open and has the columns, for which its arrays have an entry. Its
        // operator class has an ordering function, as that of each nbtree index.
        unsafe {
            let typid = *(*index).rd_opcintype.add(column);
            let family = *(*index).rd_opfamily.add(column);
            let function = pg_sys::get_opfamily_proc(family, typid, typid, BTORDER_PROC);
            pg_sys::ScanKeyEntryInitialize(
                key,
                (pg_sys::SK_ROW_MEMBER | last) as i32,
                column as i16 + 1,
                strategy as u16,
                typid,
                *(*index).rd_indcollation.add(column),
                function,
                *v,
            );
        }
    }
    row
}

/// Copies the rows of the range; returns the key of the last one if the limit ended the scan.
#[allow(clippy::too_many_arguments)]
unsafe fn copy_rows(
    heap: pg_sys::Relation,
    index: pg_sys::Relation,
    ranged: Ranged,
    snapshot: pg_sys::Snapshot,
    interval: &Interval,
    keys: &ScanKeys,
    q: &Request,
    out: &Rows,
) -> Option<Vec<u8>> {
    // SAFETY: `heap` and `index` are open, and `keys` are of the index: `run` has opened and made
    // them. What is made here is given back here, or by an ERROR's clean-up.
    unsafe {
        let slot = pg_sys::table_slot_create(heap, std::ptr::null_mut());
        let keys = &keys.keys;
        let s = crate::pg::compat::begin_guarded_index_scan(heap, index, snapshot, keys.len() as i32);
        protect::with_interval(interval, || {
            pg_sys::index_rescan(s, keys.as_ptr().cast_mut(), keys.len() as i32, std::ptr::null_mut(), 0)
        });
        let direction = if q.descending {
            pg_sys::ScanDirection::BackwardScanDirection
        } else {
            pg_sys::ScanDirection::ForwardScanDirection
        };
        let mut of_row = rows::Rows::new(heap, ranged.codec);
        let (mut key, mut n, mut full) = (Vec::new(), 0, false);
        while !full && pg_sys::index_getnext_slot(s, direction, slot) {
            if pg_sys::InterruptPending != 0 {
                pg_sys::ProcessInterrupts();
            }
            key.clear();
            let _ = of_row.key(Row::Slot(slot), &mut key);
            let below = ranged.codec.compare(&key, &interval.lo) == Ordering::Less;
            if below || ranged.codec.compare(&key, &interval.hi) != Ordering::Less {
                if below == q.descending {
                    break;
                }
                continue;
            }
            out.put(slot);
            n += 1;
            full = q.limit == Some(n);
        }
        if !full {
            protect::ran_to_its_end(s);
        }
        drop(of_row);
        expr::clear(slot);
        pg_sys::index_endscan(s);
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        full.then_some(key)
    }
}
