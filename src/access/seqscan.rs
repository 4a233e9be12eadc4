//! Sequential scans of SERIALIZABLE transactions: a scan whose filter fixes or bounds the keys of
//! an index is a predicate on these keys; another one is a predicate on all keys of an index.
//!
//! A filter is used only if none of its functions can tell something about the rows that it
//! discards (they are leakproof): then such rows have no influence on the transaction.

use super::partitions;
use super::protect::begin_one;
use super::statements::{self, Filter, Statement};
use crate::access::ranges;
use crate::access::ranges::rows::{self, Row};
use crate::keys::bounds::{self, Interval};
use crate::keys::codec::Codec;
use crate::state::rel::{self, RelInfo};
use crate::state::xact::{self, Mode};
use mixedcc_engine::range::Looked;
use mixedcc_engine::txn::ScanId;
use mixedcc_engine::RecordRef;
use pgrx::pg_sys::{self, NodeTag, ScanKeyData};
use pgrx::PgList;
use std::cmp::Ordering;
use std::rc::Rc;

/// Notes what a sequential scan of a statement that is about to run will read.
///
/// # Safety
/// A scan's state after the executor's start.
pub unsafe fn inspect(s: *mut pg_sys::SeqScanState, of: Statement) {
    // SAFETY: `s` is the state of a scan after the executor's start (contract of this function). So
    // its relation is open, and its plan and executor's state are set.
    unsafe {
        let r = (*s).ss.ss_currentRelation;
        if !rel::is_ours(r) {
            return;
        }
        let ps = &(*s).ss.ps;
        statements::sequential(of, (*r).rd_id, filter(r, (*ps.plan).qual, ps.state));
    }
}

/// It will be read to its end, and what the statement looks at is not known.
const ALL: (bool, Looked) = (false, Looked::ALL);

/// What protects a sequential scan.
pub struct Protection {
    /// The predicate that protects its rows; `NONE`: they protect themselves.
    pub id: ScanId,
    /// The only partition whose rows the scan wants.
    pub partition: Option<u16>,
    /// The rows that it wants; `None`: all.
    pub wanted: Option<Wanted>,
}

/// The keys that a scan's filters let through.
pub struct Wanted(Vec<(&'static Codec, Vec<Interval>)>);

impl Wanted {
    /// Does a filter want the record, by the columns that its versions share?
    ///
    /// # Safety
    /// An open relation of ours and a record of it.
    pub unsafe fn has(&self, rel: pg_sys::Relation, r: RecordRef) -> bool {
        let mut key = Vec::new();
        let Some(v) = xact::txn().any_row(r.rec) else { return false };
        // SAFETY: `rel` is open, and the record is of it (contract of this function). `v` is a
        // version with a row, reached under our pin (INV-RETIRE).
        unsafe {
            self.0.iter().any(|(codec, intervals)| {
                key.clear();
                if rows::plain(rel, codec, Row::Version(v.as_ptr()), &mut key).is_none() {
                    return false;
                }
                let above = |i: &Interval| codec.compare(&i.lo, &key) != Ordering::Greater;
                intervals.iter().any(|i| above(i) && codec.compare(&key, &i.hi) == Ordering::Less)
            })
        }
    }
}

/// Protects a sequential scan that is about to start.
///
/// # Safety
/// An open relation of ours and a valid snapshot.
pub unsafe fn protect(r: pg_sys::Relation, info: &RelInfo, snapshot: pg_sys::Snapshot) -> Protection {
    let none = Protection { id: ScanId::NONE, partition: None, wanted: None };
    if xact::mode() != Mode::Serializable {
        return none;
    }
    // SAFETY: `r` is open and of ours, and `snapshot` valid (contract of this function).
    unsafe {
        if let Some(filters) = statements::filters(snapshot, info.oid) {
            if let Some(p) = by_filters(r, info, &filters) {
                return p;
            }
        }
        match ranges::whole(r, info) {
            Some(ranged) => {
                let at: Vec<_> = partitions::touches(info, None).collect();
                Protection { id: begin_one(&at, ranged, &Interval::all(), ALL), ..none }
            }
            None => {
                partitions::protect(info, None);
                none
            }
        }
    }
}

unsafe fn by_filters(r: pg_sys::Relation, info: &RelInfo, filters: &[Rc<Filter>]) -> Option<Protection> {
    // SAFETY: `r` is open and of ours: contract of `protect`. A filter's index exists while its
    // table is locked; it is closed again, or by an ERROR's clean-up.
    unsafe {
        let mut ranged: Vec<ranges::Ranged> = Vec::new();
        for f in filters {
            let index = pg_sys::index_open(f.codec.index, pg_sys::AccessShareLock as i32);
            let found = ranges::of_index(r, info, index);
            pg_sys::index_close(index, pg_sys::NoLock as i32);
            ranged.push(found?);
        }
        let mut ids = Vec::new();
        for (f, ranged) in filters.iter().zip(ranged) {
            let at: Vec<_> = partitions::touches(info, f.partition).collect();
            ids.extend(f.intervals.iter().map(|i| begin_one(&at, ranged, i, ALL)));
        }
        let one = match filters {
            [f] => f.partition,
            _ => None,
        };
        // Which of several a row belongs to is not asked.
        let id = xact::txn().share_rows(&mut ids);
        let wanted = filters.iter().map(|f| (f.codec, f.intervals.clone())).collect();
        (id != ScanId::NONE).then_some(Protection { id, partition: one, wanted: Some(Wanted(wanted)) })
    }
}

/// The best index for a scan's filter.
unsafe fn filter(r: pg_sys::Relation, quals: *mut pg_sys::List, estate: *mut pg_sys::EState) -> Option<Filter> {
    // SAFETY: `r` is open, and quals and state are those of a scan's plan: contract of `inspect`. A
    // codec's index exists while its table is locked, and is closed again.
    unsafe {
        if quals.is_null()
            || pg_sys::contain_leaked_vars(quals.cast())
            || pg_sys::contain_volatile_functions(quals.cast())
        {
            return None;
        }
        let info = rel::info(r);
        let mut best: Option<(usize, Filter)> = None;
        for codec in ranges::usable(r, info) {
            let index = pg_sys::index_open(codec.index, pg_sys::AccessShareLock as i32);
            let found = scan_keys(codec, index, quals, estate);
            let intervals = bounds::of_scan(codec, &found);
            let score =
                (1..=codec.columns.len()).take_while(|c| found.iter().any(|k| k.sk_attno as usize == *c)).count();
            if score > 0 && best.as_ref().is_none_or(|b| b.0 < score) {
                let partition = partitions::fixed_by(info, index, &codec.attnums, &found);
                best = Some((score, Filter { codec, intervals, partition }));
            }
            pg_sys::index_close(index, pg_sys::NoLock as i32);
        }
        best.map(|b| b.1)
    }
}

/// The conditions of a filter on the columns of an index, as the keys of an index scan.
unsafe fn scan_keys(
    codec: &Codec,
    index: pg_sys::Relation,
    quals: *mut pg_sys::List,
    estate: *mut pg_sys::EState,
) -> Vec<ScanKeyData> {
    // SAFETY: `quals` is a plan's list of expressions, and `estate` its state: contract of
    // `inspect`. A node is cast only as its tag says.
    unsafe {
        let mut found = Vec::new();
        for q in PgList::<pg_sys::Node>::from_pg(quals).iter_ptr() {
            for (i, a) in codec.attnums.iter().enumerate() {
                let key = match (*q).type_ {
                    NodeTag::T_OpExpr => operator(q.cast(), *a, index, i, estate),
                    NodeTag::T_ScalarArrayOpExpr => any_of(q.cast(), *a, index, i, estate),
                    NodeTag::T_NullTest => null_test(q.cast(), *a),
                    _ => None,
                };
                if let Some(mut k) = key {
                    k.sk_attno = i as i16 + 1;
                    found.push(k);
                }
            }
        }
        found
    }
}

/// The column that an expression is.
///
/// # Safety
/// Null, or an expression of a plan.
pub unsafe fn column(n: *mut pg_sys::Node) -> Option<i16> {
    // SAFETY: `n` is null or a planned expression. A node is cast only as its tag says.
    unsafe {
        let mut n = n;
        while !n.is_null() && (*n).type_ == NodeTag::T_RelabelType {
            n = (*n.cast::<pg_sys::RelabelType>()).arg.cast();
        }
        (!n.is_null() && (*n).type_ == NodeTag::T_Var).then(|| (*n.cast::<pg_sys::Var>()).varattno)
    }
}

/// A value that is known before the scan; the flag says that it is NULL.
///
/// # Safety
/// Null, or an expression of the statement of `estate`. An ERROR unwinds.
pub unsafe fn constant(n: *mut pg_sys::Node, estate: *mut pg_sys::EState) -> Option<(pg_sys::Datum, bool)> {
    // SAFETY: `n` is null or an expression of the statement of `estate`. A node is cast only as its
    // tag says.
    unsafe {
        let mut n = n;
        while !n.is_null() && (*n).type_ == NodeTag::T_RelabelType {
            n = (*n.cast::<pg_sys::RelabelType>()).arg.cast();
        }
        if n.is_null() {
            return None;
        }
        match (*n).type_ {
            NodeTag::T_Const => {
                let c = n.cast::<pg_sys::Const>();
                Some(((*c).constvalue, (*c).constisnull))
            }
            NodeTag::T_Param if (*n.cast::<pg_sys::Param>()).paramkind == pg_sys::ParamKind::PARAM_EXTERN => {
                parameter((*estate).es_param_list_info, &*n.cast::<pg_sys::Param>())
            }
            _ => None,
        }
    }
}

/// The value of a parameter. `None`: it is not known, or of another type than when the statement
/// was planned, which the executor refuses.
///
/// # Safety
/// Null, or the parameters of the running statement, of whose plan `p` is.
unsafe fn parameter(list: pg_sys::ParamListInfo, of: &pg_sys::Param) -> Option<(pg_sys::Datum, bool)> {
    let id = of.paramid;
    // SAFETY: `list` is null or the statement's parameters, and `id` is checked. `room` outlives
    // what `fetch` returns (params.h, as ExecEvalParamExtern does). An ERROR of `fetch` unwinds.
    unsafe {
        if list.is_null() || id < 1 || id > (*list).numParams {
            return None;
        }
        let mut room = pg_sys::ParamExternData::default();
        let p = match (*list).paramFetch {
            // Speculative: a value that cannot be had yet is not known, and no error. The scan may
            // never ask for it.
            Some(fetch) => pg_sys::ffi::pg_guard_ffi_boundary(|| fetch(list, id, true, &mut room)),
            None => (*list).params.as_mut_ptr().add(id as usize - 1),
        };
        (!p.is_null() && (*p).ptype == of.paramtype).then(|| ((*p).value, (*p).isnull))
    }
}

fn scan_key(flags: u32, strategy: i32, subtype: pg_sys::Oid, argument: pg_sys::Datum) -> ScanKeyData {
    ScanKeyData {
        sk_flags: flags as i32,
        sk_strategy: strategy as u16,
        sk_subtype: subtype,
        sk_argument: argument,
        ..Default::default()
    }
}

/// Strategy and right type of an operator in the family of an index column, of the same collation.
unsafe fn member(
    op: pg_sys::Oid,
    collation: pg_sys::Oid,
    index: pg_sys::Relation,
    i: usize,
) -> Option<(i32, pg_sys::Oid)> {
    // SAFETY: `index` is open, and `i` is one of its key columns, for which the arrays have an
    // entry. Catalog look-ups: the operator is a member of the family.
    unsafe {
        let family = *(*index).rd_opfamily.add(i);
        let own = *(*index).rd_indcollation.add(i);
        if own != pg_sys::InvalidOid && own != collation || !pg_sys::op_in_opfamily(op, family) {
            return None;
        }
        let (mut strategy, mut left, mut right) = (0, pg_sys::InvalidOid, pg_sys::InvalidOid);
        pg_sys::get_op_opfamily_properties(op, family, false, &mut strategy, &mut left, &mut right);
        // The column must stand as what the index holds.
        (left == *(*index).rd_opcintype.add(i)).then_some((strategy, right))
    }
}

unsafe fn operator(
    e: *mut pg_sys::OpExpr,
    attnum: i16,
    index: pg_sys::Relation,
    i: usize,
    estate: *mut pg_sys::EState,
) -> Option<ScanKeyData> {
    // SAFETY: `e` has the tag of an OpExpr, and its arguments are a list of expressions. `index` is
    // open, and `i` one of its key columns.
    unsafe {
        let args = PgList::<pg_sys::Node>::from_pg((*e).args);
        let (a, b) = (args.get_ptr(0)?, args.get_ptr(1)?);
        let (op, value) = if column(a) == Some(attnum) {
            ((*e).opno, b)
        } else if column(b) == Some(attnum) {
            (pg_sys::get_commutator((*e).opno), a)
        } else {
            return None;
        };
        let (strategy, right) = member(op, (*e).inputcollid, index, i)?;
        let (v, null) = constant(value, estate)?;
        Some(scan_key(if null { pg_sys::SK_ISNULL } else { 0 }, strategy, right, v))
    }
}

unsafe fn any_of(
    e: *mut pg_sys::ScalarArrayOpExpr,
    attnum: i16,
    index: pg_sys::Relation,
    i: usize,
    estate: *mut pg_sys::EState,
) -> Option<ScanKeyData> {
    // SAFETY: `e` has the tag of a ScalarArrayOpExpr, and its arguments are a list of expressions.
    // `index` is open, and `i` one of its key columns.
    unsafe {
        let args = PgList::<pg_sys::Node>::from_pg((*e).args);
        let (a, b) = (args.get_ptr(0)?, args.get_ptr(1)?);
        if !(*e).useOr || column(a) != Some(attnum) {
            return None;
        }
        let (strategy, right) = member((*e).opno, (*e).inputcollid, index, i)?;
        let (v, null) = constant(b, estate)?;
        let flags = if null { pg_sys::SK_ISNULL } else { pg_sys::SK_SEARCHARRAY };
        Some(scan_key(flags, strategy, right, v))
    }
}

unsafe fn null_test(e: *mut pg_sys::NullTest, attnum: i16) -> Option<ScanKeyData> {
    // SAFETY: `e` has the tag of a NullTest, whose argument is an expression.
    unsafe {
        if (*e).argisrow || column((*e).arg.cast()) != Some(attnum) {
            return None;
        }
        let search = match (*e).nulltesttype {
            pg_sys::NullTestType::IS_NULL => pg_sys::SK_SEARCHNULL,
            _ => pg_sys::SK_SEARCHNOTNULL,
        };
        Some(scan_key(search | pg_sys::SK_ISNULL, 0, pg_sys::InvalidOid, pg_sys::Datum::from(0)))
    }
}
