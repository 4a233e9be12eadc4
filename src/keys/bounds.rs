//! What the keys of an index scan bound: intervals of the index's keys.
//!
//! The conditions of a B-tree scan on its first columns, as far as they are equalities, make a
//! prefix; the conditions on the next column make an interval below it (nbtree's own rule,
//! `_bt_first`). All intervals hold at least what the scan can return.

use super::codec::Codec;
use crate::pg::faults::{self, Fault};
use mixedcc_engine::key::{AFTER, NULL_FIRST, NULL_LAST};
use pgrx::pg_sys::{self, Datum, ScanKeyData};
use std::cmp::Ordering;

/// Keys from `lo` to before `hi`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    pub lo: Vec<u8>,
    pub hi: Vec<u8>,
}

impl Interval {
    /// All keys.
    pub fn all() -> Interval {
        Interval { lo: Vec::new(), hi: vec![AFTER] }
    }
}

/// More intervals than this become one that holds them all.
const MANY: usize = 256;

const LT: u32 = pg_sys::BTLessStrategyNumber;
const LE: u32 = pg_sys::BTLessEqualStrategyNumber;
const EQ: u32 = pg_sys::BTEqualStrategyNumber;
const GE: u32 = pg_sys::BTGreaterEqualStrategyNumber;
const GT: u32 = pg_sys::BTGreaterStrategyNumber;

/// The conditions on one column.
#[derive(Default)]
struct Conditions {
    /// The column's encoded values that are allowed: one, or those of an array.
    equal: Option<Vec<Vec<u8>>>,
    /// Encoded value that keys must be above, or equal to if the flag is set.
    lo: Option<(Vec<u8>, bool)>,
    hi: Option<(Vec<u8>, bool)>,
    is_null: bool,
    not_null: bool,
    /// They exclude each other.
    nothing: bool,
}

/// The intervals of a scan with these keys. None at all: the scan can return no row.
///
/// # Safety
/// The keys are those of a scan of the codec's index.
pub unsafe fn of_scan(codec: &Codec, keys: &[ScanKeyData]) -> Vec<Interval> {
    // SAFETY: `keys` are those of a scan of the codec's index (contract of this function).
    unsafe { of_keys(codec, keys, MANY) }.0
}

/// As [`of_scan`], with at most so many intervals for arrays; true: more would have been needed,
/// and it is one that holds them all.
///
/// # Safety
/// As there.
pub unsafe fn of_keys(codec: &Codec, keys: &[ScanKeyData], many: usize) -> (Vec<Interval>, bool) {
    let mut prefixes: Vec<Vec<u8>> = vec![Vec::new()];
    for column in 0..codec.columns.len() {
        // SAFETY: `keys` are those of a scan of the codec's index (contract of this function).
        let c = unsafe { conditions(codec, keys, column) };
        if c.nothing {
            return (Vec::new(), false);
        }
        if c.is_null {
            prefixes.iter_mut().for_each(|p| codec.put_null(column, p));
            if faults::on(Fault::NullMarker) {
                prefixes.iter_mut().flat_map(|p| p.last_mut()).for_each(|m| *m ^= NULL_FIRST ^ NULL_LAST);
            }
            continue;
        }
        match c.equal {
            Some(values) if values.len() * prefixes.len() <= many => {
                prefixes = prefixes.iter().flat_map(|p| values.iter().map(move |v| [&p[..], v].concat())).collect();
            }
            Some(values) => return (hull(codec, column, &prefixes, &values), true),
            None => return (below(codec, column, &prefixes, &c), false),
        }
    }
    (prefixes.into_iter().map(|p| Interval { hi: with(&p, &[AFTER]), lo: p }).collect(), false)
}

/// Do the intervals of a scan say exactly which keys meet its conditions?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exact {
    /// They do.
    Always,
    /// They do if they are not one for too many values of an array.
    UnlessHull,
    /// They may hold other keys too.
    Never,
}

/// See [`Exact`]. The values of the keys need not be known yet.
pub fn is_exact(codec: &Codec, keys: &[ScanKeyData]) -> Exact {
    const ARRAY: u32 = pg_sys::SK_SEARCHARRAY;
    // PostgreSQL's flags, but for a value that is NULL: such a scan finds nothing.
    let flags = |k: &ScanKeyData| k.sk_flags as u32 & 0xffff & !pg_sys::SK_ISNULL;
    let known = |k: &ScanKeyData, column| codec.is_exact(column, k.sk_subtype);
    let mut exact = Exact::Always;
    let mut open = false;
    for column in 0..codec.columns.len() {
        let here: Vec<_> = keys.iter().filter(|k| k.sk_attno as usize == column + 1).collect();
        match here.as_slice() {
            [] => open = true,
            _ if open || !here.iter().all(|k| known(k, column)) => return Exact::Never,
            [k] if k.sk_strategy as u32 == EQ && flags(k) == 0 => {}
            [k] if k.sk_strategy as u32 == EQ && flags(k) == ARRAY => exact = Exact::UnlessHull,
            _ if here.iter().all(|k| flags(k) == 0 && k.sk_strategy as u32 != EQ) => open = true,
            _ => return Exact::Never,
        }
    }
    exact
}

/// Does a B-tree scan with these keys read the index in one pass, so that the rows come in the
/// order of the keys? Arrays are gone through one value after another, the last column's fastest:
/// behind a column without an equality each value is a pass of its own.
pub fn is_one_pass(codec: &Codec, keys: &[ScanKeyData]) -> bool {
    let of = |column: usize| keys.iter().filter(move |k| k.sk_attno as usize == column + 1);
    let array = |k: &ScanKeyData| k.sk_flags as u32 & pg_sys::SK_SEARCHARRAY != 0;
    let fixes = |k: &ScanKeyData| {
        let flags = k.sk_flags as u32;
        flags & pg_sys::SK_SEARCHNULL != 0 || flags & pg_sys::SK_ROW_HEADER == 0 && k.sk_strategy as u32 == EQ
    };
    let prefix = (0..codec.columns.len()).take_while(|c| of(*c).any(fixes)).count();
    !(prefix + 1..codec.columns.len()).any(|c| of(c).any(array))
}

fn with(prefix: &[u8], tail: &[u8]) -> Vec<u8> {
    [prefix, tail].concat()
}

/// The interval around too many prefixes and values of the column behind them.
fn hull(codec: &Codec, column: usize, prefixes: &[Vec<u8>], values: &[Vec<u8>]) -> Vec<Interval> {
    let min = |from, v: &[Vec<u8>]| v.iter().min_by(|a, b| codec.compare_from(from, a, b)).cloned().unwrap_or_default();
    let max = |from, v: &[Vec<u8>]| v.iter().max_by(|a, b| codec.compare_from(from, a, b)).cloned().unwrap_or_default();
    let lo = with(&min(0, prefixes), &min(column, values));
    let mut hi = with(&max(0, prefixes), &max(column, values));
    hi.push(AFTER);
    vec![Interval { lo, hi }]
}

/// The intervals of a column without an equality, below each prefix.
fn below(codec: &Codec, column: usize, prefixes: &[Vec<u8>], c: &Conditions) -> Vec<Interval> {
    let null = codec.columns[column].null();
    let no_nulls = c.lo.is_some() || c.hi.is_some() || c.not_null || faults::on(Fault::NullsLeftOut);
    let lo = match &c.lo {
        Some((v, inclusive)) => {
            if *inclusive {
                v.clone()
            } else {
                with(v, &[AFTER])
            }
        }
        None if no_nulls && null == NULL_FIRST => vec![NULL_FIRST, AFTER],
        None => Vec::new(),
    };
    let hi = match &c.hi {
        Some((v, inclusive)) => {
            if *inclusive && !faults::on(Fault::UpperBound) {
                with(v, &[AFTER])
            } else {
                v.clone()
            }
        }
        None if no_nulls && null == NULL_LAST => vec![NULL_LAST],
        None => vec![AFTER],
    };
    prefixes
        .iter()
        .map(|p| Interval { lo: with(p, &lo), hi: with(p, &hi) })
        .filter(|i| codec.compare(&i.lo, &i.hi) == Ordering::Less)
        .collect()
}

unsafe fn conditions(codec: &Codec, keys: &[ScanKeyData], column: usize) -> Conditions {
    let mut c = Conditions::default();
    for k in keys.iter().filter(|k| k.sk_attno as usize == column + 1) {
        // SAFETY: `keys` are those of a scan of the codec's index: contract of `of_keys`.
        unsafe { c.add(codec, k, column) };
    }
    c
}

impl Conditions {
    unsafe fn add(&mut self, codec: &Codec, k: &ScanKeyData, column: usize) {
        let flags = k.sk_flags as u32;
        // SAFETY: `k` is a key of a scan of the codec's index, on this column: contract of
        // `of_keys`. Its flags say what its argument is (skey.h).
        unsafe {
            if flags & pg_sys::SK_ROW_HEADER != 0 {
                self.add_row(codec, k, column);
            } else if flags & pg_sys::SK_SEARCHNULL != 0 {
                self.is_null = true;
            } else if flags & pg_sys::SK_SEARCHNOTNULL != 0 {
                self.not_null = true;
            } else if flags & pg_sys::SK_ISNULL != 0 {
                self.nothing = true; // the operators are strict
            } else if flags & pg_sys::SK_SEARCHARRAY != 0 {
                self.add_array(codec, k, column);
            } else {
                self.not_null = true;
                let mut v = Vec::new();
                if codec.put_foreign(column, k.sk_argument, k.sk_subtype, &mut v) {
                    self.add_value(codec, column, k.sk_strategy as u32, v);
                }
            }
        }
        self.nothing |= self.is_null && (self.not_null || self.equal.is_some());
    }

    fn add_value(&mut self, codec: &Codec, column: usize, strategy: u32, v: Vec<u8>) {
        let reverses = codec.columns[column].desc && !faults::on(Fault::DescendingBounds);
        let strategy = if reverses { 6 - strategy } else { strategy };
        match strategy {
            EQ => self.keep(codec, column, vec![v]),
            GT | GE => {
                let inclusive = strategy == GE;
                if self.lo.as_ref().is_none_or(|(o, i)| above(codec, column, (&v, !inclusive), (o, !*i))) {
                    self.lo = Some((v, inclusive));
                }
            }
            LT | LE => {
                let inclusive = strategy == LE;
                if self.hi.as_ref().is_none_or(|(o, i)| above(codec, column, (o, *i), (&v, inclusive))) {
                    self.hi = Some((v, inclusive));
                }
            }
            _ => {}
        }
    }

    /// Only these values of the column, and only such as were allowed before.
    fn keep(&mut self, codec: &Codec, column: usize, mut values: Vec<Vec<u8>>) {
        let compare = |a: &[u8], b: &[u8]| codec.compare_from(column, a, b);
        values.sort_by(|a, b| compare(a, b));
        values.dedup_by(|a, b| compare(a, b) == Ordering::Equal);
        if let Some(old) = &self.equal {
            values.retain(|v| old.binary_search_by(|o| compare(o, v)).is_ok());
        }
        self.nothing |= values.is_empty();
        self.equal = Some(values);
    }

    /// `= ANY (array)`; other operators with arrays bound nothing here.
    unsafe fn add_array(&mut self, codec: &Codec, k: &ScanKeyData, column: usize) {
        self.not_null = true;
        if k.sk_strategy as u32 != EQ {
            return;
        }
        let mut values = Vec::new();
        let mut known = true;
        // SAFETY: SK_SEARCHARRAY says that the argument is an array, whose elements are of
        // `sk_subtype` or the column's type (skey.h).
        unsafe {
            each_element(k.sk_argument, |d| {
                let mut v = Vec::new();
                known &= codec.put_foreign(column, d, k.sk_subtype, &mut v);
                values.push(v);
            });
        }
        if faults::on(Fault::FirstOfArray) {
            values.truncate(1);
        }
        if known {
            self.keep(codec, column, values);
        }
    }

    /// `(a, b) < (x, y)`: the first members, as far as they are neighbours in the index and sorted
    /// in one direction, make a bound.
    unsafe fn add_row(&mut self, codec: &Codec, header: &ScanKeyData, column: usize) {
        self.not_null = true;
        let desc = codec.columns[column].desc;
        let mut strategy = header.sk_strategy as u32;
        let mut v = Vec::new();
        // SAFETY: SK_ROW_HEADER says that the argument is an array of keys, the last one marked
        // with SK_ROW_END (skey.h).
        unsafe {
            let mut member = header.sk_argument.cast_mut_ptr::<ScanKeyData>();
            for at in column.. {
                let m = &*member;
                let null = m.sk_flags as u32 & pg_sys::SK_ISNULL != 0;
                if null && at == column {
                    self.nothing = true;
                    return;
                }
                let fits = !null
                    && m.sk_attno as usize == at + 1
                    && codec.columns[at].desc == desc
                    && codec.put_foreign(at, m.sk_argument, m.sk_subtype, &mut v);
                if !fits {
                    // The rest decides among equal ones.
                    strategy = match strategy {
                        s if faults::on(Fault::RowComparison) => s,
                        LT => LE,
                        GT => GE,
                        s => s,
                    };
                    break;
                }
                if m.sk_flags as u32 & pg_sys::SK_ROW_END != 0 {
                    break;
                }
                member = member.add(1);
            }
        }
        if !v.is_empty() {
            self.add_value(codec, column, strategy, v);
        }
    }
}

/// Is the first bound above the second one, of values of this column and those behind it? Of equal
/// values the one with the flag is.
fn above(codec: &Codec, column: usize, a: (&[u8], bool), b: (&[u8], bool)) -> bool {
    codec.compare_from(column, a.0, b.0).then(a.1.cmp(&b.1)) == Ordering::Greater
}

/// The intervals of a look-up of one value in a hash index; `None`: unknown.
///
/// # Safety
/// As for [`of_scan`].
pub unsafe fn of_hash(codec: &Codec, keys: &[ScanKeyData]) -> Option<Vec<Interval>> {
    for k in keys {
        let flags = k.sk_flags as u32;
        if flags & pg_sys::SK_ISNULL != 0 && flags & pg_sys::SK_SEARCHNULL == 0 {
            return Some(Vec::new());
        }
        let mut v = Vec::new();
        // SAFETY: `keys` are those of a scan of the codec's index (contract of this function). Only
        // values of the column's own type have its hash.
        if flags == 0 && unsafe { codec.put_foreign(0, k.sk_argument, k.sk_subtype, &mut v) } {
            return Some(vec![Interval { hi: with(&v, &[AFTER]), lo: v }]);
        }
    }
    None
}

/// Calls `f` with each element of an array that is not NULL.
///
/// # Safety
/// `array` is an array.
pub unsafe fn each_element(array: Datum, mut f: impl FnMut(Datum)) {
    // SAFETY: `array` is an array (contract of this function). What is freed was made here: scans
    // start again and again within one statement.
    unsafe {
        let a = pg_sys::pg_detoast_datum(array.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
        let elem = (*a).elemtype;
        let (mut len, mut byval, mut align) = (0, false, 0);
        pg_sys::get_typlenbyvalalign(elem, &mut len, &mut byval, &mut align);
        let (mut datums, mut nulls, mut n) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        pg_sys::deconstruct_array(a, elem, len as i32, byval, align, &mut datums, &mut nulls, &mut n);
        (0..n as usize).filter(|i| !*nulls.add(*i)).for_each(|i| f(*datums.add(i)));
        pg_sys::pfree(datums.cast());
        pg_sys::pfree(nulls.cast());
        if a.cast() != array.cast_mut_ptr::<core::ffi::c_void>() {
            pg_sys::pfree(a.cast());
        }
    }
}

/// The value of a scan key that is a plain equality.
pub fn equality(k: &ScanKeyData) -> Option<Datum> {
    (k.sk_flags & 0xffff == 0 && k.sk_strategy as u32 == EQ).then_some(k.sk_argument)
}
