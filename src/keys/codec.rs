//! Keys of an index as bytes that the engine can compare (see `mixedcc_engine::key`).
//!
//! Which types have an exact byte order is known by the comparison function of the operator class.
//! A key with a column of another type keeps that column's value as it is, and compares by the
//! operator class's function and the index's collation: its `order` is the OID of the index.

use crate::pg::compat;
use mixedcc_engine::index::PRIMARY_SPEC_MAX;
use mixedcc_engine::key::{self, Column, Short, NULL_FIRST, NULL_LAST, VALUE};
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::HashMap;

/// Support function 1: comparison of B-trees, hash function of hash indexes.
const FIRST_PROC: u16 = 1;

/// How values of a column become bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bool,
    Char,
    Int2,
    Int4,
    Int8,
    Oid,
    Float4,
    Float8,
    /// Text whose collation is C.
    Text,
    /// The same, trailing blanks do not count.
    Bpchar,
    Name,
    Uuid,
    /// The hash value, of a hash index.
    Hash,
    /// No byte order: the value itself.
    Raw,
}

impl Kind {
    /// By the comparison function of the operator class.
    fn of(function: u32, collation: Oid) -> Kind {
        // SAFETY: `collation` is that of an index's column, which exists, or invalid.
        let is_c = || unsafe { collation == pg_sys::InvalidOid || compat::is_c_collation(collation) };
        match function {
            pg_sys::F_BTBOOLCMP => Kind::Bool,
            pg_sys::F_BTCHARCMP => Kind::Char,
            pg_sys::F_BTINT2CMP => Kind::Int2,
            pg_sys::F_BTINT4CMP | pg_sys::F_DATE_CMP => Kind::Int4,
            pg_sys::F_BTINT8CMP | pg_sys::F_TIMESTAMP_CMP | pg_sys::F_TIMESTAMPTZ_CMP | pg_sys::F_TIME_CMP => {
                Kind::Int8
            }
            pg_sys::F_BTOIDCMP => Kind::Oid,
            pg_sys::F_BTFLOAT4CMP => Kind::Float4,
            pg_sys::F_BTFLOAT8CMP => Kind::Float8,
            pg_sys::F_BTTEXTCMP if is_c() => Kind::Text,
            pg_sys::F_BTTEXT_PATTERN_CMP | pg_sys::F_BYTEACMP => Kind::Text,
            pg_sys::F_BPCHARCMP if is_c() => Kind::Bpchar,
            pg_sys::F_BTBPCHAR_PATTERN_CMP => Kind::Bpchar,
            pg_sys::F_BTNAMECMP if is_c() => Kind::Name,
            pg_sys::F_UUID_CMP => Kind::Uuid,
            _ => Kind::Raw,
        }
    }
}

/// A key column of an index.
pub struct KeyColumn {
    pub(super) kind: Kind,
    /// In descending order?
    pub desc: bool,
    nulls_first: bool,
    /// Type of the operator class.
    typid: Oid,
    /// Type of the index's column.
    pub(super) atttypid: Oid,
    collation: Oid,
    typlen: i16,
    byval: bool,
    /// May its comparison run functions of users?
    may_run_sql: bool,
    /// Comparison or hash function, if it is called.
    function: Option<RefCell<Box<pg_sys::FmgrInfo>>>,
}

/// The knowledge of the keys of an index. An index never changes: kept for the life of the backend.
pub struct Codec {
    /// The index.
    pub index: Oid,
    /// 0: keys compare as bytes; else the OID of the index.
    pub order: u32,
    /// The key columns.
    pub columns: Vec<KeyColumn>,
    /// Numbers of the table's columns, 0 for expressions.
    pub attnums: Vec<i16>,
    /// Has it expressions or a predicate?
    pub special: bool,
    /// A hash index: equality only.
    pub hash: bool,
}

thread_local! {
    static CODECS: RefCell<HashMap<u32, Option<&'static Codec>>> = RefCell::new(HashMap::new());
}

/// The codec of an open index; `None` if its keys have no order and no hash.
///
/// # Safety
/// `index` is an open index.
pub unsafe fn of(index: pg_sys::Relation) -> Option<&'static Codec> {
    // SAFETY: `index` is open (contract of this function).
    let oid = unsafe { (*index).rd_id };
    if let Some(c) = by_oid(oid) {
        return c;
    }
    // SAFETY: `index` is open (contract of this function). No borrow of `CODECS` is held while
    // `build` calls PostgreSQL.
    let codec = unsafe { build(index) }.map(|c| &*Box::leak(Box::new(c)));
    CODECS.with(|all| all.borrow_mut().insert(oid.to_u32(), codec));
    codec
}

/// The codec of an index that [`of`] was asked for in this backend.
pub fn by_oid(index: Oid) -> Option<Option<&'static Codec>> {
    CODECS.with(|all| all.borrow().get(&index.to_u32()).copied())
}

/// The index whose spec this is, if it is that of one index only.
pub fn index_of_spec(spec: &[u8]) -> Option<Oid> {
    let oid = spec.strip_prefix(&[SPEC_OF_INDEX])?.first_chunk::<4>()?;
    Some(Oid::from(u32::from_le_bytes(*oid)))
}

/// Compares two keys of an order that is not that of their bytes. May raise an ERROR.
pub fn compare(order: u32, a: &[u8], b: &[u8]) -> Ordering {
    match by_oid(Oid::from(order)) {
        Some(Some(c)) => c.compare(a, b),
        _ => pgrx::error!("mixedcc does not know the order of index {order}"),
    }
}

unsafe fn build(index: pg_sys::Relation) -> Option<Codec> {
    // SAFETY: `index` is open: contract of `of`. `indkey` and the other arrays have an entry for
    // each key column; `rd_indextuple` is its pg_index row.
    unsafe {
        let am = (*(*index).rd_rel).relam;
        let hash = am == Oid::from(pg_sys::HASH_AM_OID);
        if !hash && am != Oid::from(pg_sys::BTREE_AM_OID) {
            return None;
        }
        let form = (*index).rd_index;
        let n = (*form).indnkeyatts as usize;
        let attnums = (*form).indkey.values.as_slice(n).to_vec();
        let columns: Vec<_> = (0..n).map(|i| column(index, i, hash)).collect();
        let raw = columns.iter().any(|c| c.kind == Kind::Raw);
        let has = |a| !pg_sys::heap_attisnull((*index).rd_indextuple, a as i32, std::ptr::null_mut());
        Some(Codec {
            index: (*index).rd_id,
            order: if raw { (*index).rd_id.to_u32() } else { 0 },
            special: has(pg_sys::Anum_pg_index_indexprs) || has(pg_sys::Anum_pg_index_indpred),
            columns,
            attnums,
            hash,
        })
    }
}

unsafe fn column(index: pg_sys::Relation, i: usize, hash: bool) -> KeyColumn {
    // SAFETY: `index` is open, and `i` is one of its key columns: `build` counts them. The arrays
    // have an entry for each.
    unsafe {
        let typid = *(*index).rd_opcintype.add(i);
        let collation = *(*index).rd_indcollation.add(i);
        let option = *(*index).rd_indoption.add(i) as u32;
        let proc = pg_sys::index_getprocid(index, i as i16 + 1, FIRST_PROC);
        let kind = if hash { Kind::Hash } else { Kind::of(proc.to_u32(), collation) };
        let att = crate::pg::compat::attribute((*index).rd_att, i);
        KeyColumn {
            kind,
            desc: option & pg_sys::INDOPTION_DESC != 0,
            nulls_first: option & pg_sys::INDOPTION_NULLS_FIRST != 0,
            typid,
            atttypid: att.atttypid,
            collation,
            typlen: att.attlen,
            byval: att.attbyval,
            may_run_sql: proc.to_u32() >= pg_sys::FirstNormalObjectId
                || matches!(
                    proc.to_u32(),
                    pg_sys::F_BTRECORDCMP
                        | pg_sys::F_BTRECORDIMAGECMP
                        | pg_sys::F_BTARRAYCMP
                        | pg_sys::F_RANGE_CMP
                        | pg_sys::F_MULTIRANGE_CMP
                ),
            function: matches!(kind, Kind::Raw | Kind::Hash).then(|| RefCell::new(function(proc))),
        }
    }
}

/// Does the default btree index of a column of this type have keys that compare as bytes?
///
/// # Safety
/// The transaction is running: catalogs are read.
pub unsafe fn is_exact_by_default(typid: Oid, collation: Oid) -> bool {
    // SAFETY: catalog look-ups: any OID is answered.
    unsafe {
        let class = pg_sys::GetDefaultOpClass(typid, Oid::from(pg_sys::BTREE_AM_OID));
        if class == pg_sys::InvalidOid {
            return false;
        }
        let (family, input) = (pg_sys::get_opclass_family(class), pg_sys::get_opclass_input_type(class));
        let proc = pg_sys::get_opfamily_proc(family, input, input, FIRST_PROC as i16);
        Kind::of(proc.to_u32(), collation) != Kind::Raw
    }
}

fn function(proc: Oid) -> Box<pg_sys::FmgrInfo> {
    let mut f = Box::new(pg_sys::FmgrInfo::default());
    // SAFETY: `f` is a valid place for the result. What the function caches is in TopMemoryContext,
    // and lives as long as the codec.
    unsafe { pg_sys::fmgr_info_cxt(proc, &mut *f, pg_sys::TopMemoryContext) };
    f
}

/// Appends the bytes of a varlena value, as `part` takes them. One that is compressed in its row
/// gives the same key as one that is not (INV-PACKED).
unsafe fn put_text(d: Datum, out: &mut Vec<u8>, part: impl FnOnce(&[u8]) -> &[u8]) {
    // SAFETY: `d` is a varlena value: `payload` and `foreign` have looked at its type. It is
    // detoasted into the current memory context if need be; the copy is freed once, after its last
    // use.
    unsafe {
        let v = pg_sys::pg_detoast_datum_packed(d.cast_mut_ptr());
        let bytes = std::slice::from_raw_parts(pgrx::vardata_any(v).cast(), pgrx::varsize_any_exhdr(v));
        key::put_bytes(out, part(bytes));
        if v != d.cast_mut_ptr() {
            pg_sys::pfree(v.cast()); // one for each row that a statement writes
        }
    }
}

unsafe fn name_bytes<'a>(d: Datum) -> &'a [u8] {
    // SAFETY: `d` is a name or a cstring, as its type says: a C string that outlives the use of the
    // result.
    unsafe { std::ffi::CStr::from_ptr(d.cast_mut_ptr()) }.to_bytes()
}

fn without_blanks(v: &[u8]) -> &[u8] {
    let n = v.iter().rposition(|b| *b != b' ').map_or(0, |i| i + 1);
    &v[..n]
}

/// An integer of one of the integer types.
fn integer(typid: Oid, d: Datum) -> Option<i64> {
    match typid {
        pg_sys::INT2OID => Some(d.value() as i16 as i64),
        pg_sys::INT4OID => Some(d.value() as i32 as i64),
        pg_sys::INT8OID => Some(d.value() as i64),
        _ => None,
    }
}

impl KeyColumn {
    /// Is it a column of integers?
    #[inline]
    pub(super) fn is_int(&self) -> bool {
        matches!(self.kind, Kind::Int2 | Kind::Int4 | Kind::Int8 | Kind::Oid)
    }

    /// The integer of a value of such a column.
    #[inline]
    fn int(&self, d: Datum) -> i64 {
        match self.kind {
            Kind::Int2 => d.value() as i16 as i64,
            Kind::Int4 => d.value() as i32 as i64,
            Kind::Oid => d.value() as u32 as i64,
            _ => d.value() as i64,
        }
    }

    /// The integer of a constant of another type, where it compares like a value of the column's
    /// type.
    fn foreign_int(&self, d: Datum, typid: Oid) -> Option<i64> {
        let fits = self.kind != Kind::Oid && integer(self.typid, Datum::from(0)).is_some();
        integer(typid, d).filter(|_| fits)
    }

    /// The integer of a value of a type, if it compares like one of the column's; invalid: of the
    /// column's own.
    #[inline]
    fn int_of(&self, d: Datum, typid: Oid) -> Option<i64> {
        if typid == self.typid || typid == pg_sys::InvalidOid {
            Some(self.int(d))
        } else {
            self.foreign_int(d, typid)
        }
    }

    unsafe fn payload(&self, d: Datum, out: &mut Vec<u8>) {
        // SAFETY: `d` is a value of the column's type, which `kind` stands for: contract of `put`.
        // A uuid has 16 bytes.
        unsafe {
            match self.kind {
                Kind::Bool => out.push((d.value() as u8 != 0) as u8),
                Kind::Char => out.push(d.value() as u8),
                Kind::Int2 | Kind::Int4 | Kind::Int8 | Kind::Oid => key::put_wide_int(out, self.int(d)),
                Kind::Float4 => key::put_float(out, f32::from_bits(d.value() as u32) as f64),
                Kind::Float8 => key::put_float(out, f64::from_bits(d.value() as u64)),
                Kind::Text => put_text(d, out, |b| b),
                Kind::Bpchar => put_text(d, out, without_blanks),
                Kind::Name => key::put_bytes(out, name_bytes(d)),
                Kind::Uuid => out.extend(std::slice::from_raw_parts(d.cast_mut_ptr::<u8>(), 16)),
                Kind::Hash => out.extend(self.hash(d).to_be_bytes()),
                Kind::Raw => self.raw(d, out),
            }
        }
    }

    /// A constant of another type, where it compares like a value of the column's type.
    unsafe fn foreign(&self, d: Datum, typid: Oid, out: &mut Vec<u8>) -> bool {
        // SAFETY: `d` is a value of `typid`: contract of `put_foreign`. Each arm reads it as that
        // type.
        unsafe {
            match self.kind {
                Kind::Int2 | Kind::Int4 | Kind::Int8 => match self.foreign_int(d, typid) {
                    Some(v) => key::put_wide_int(out, v),
                    None => return false,
                },
                Kind::Float4 | Kind::Float8 if typid == pg_sys::FLOAT8OID => {
                    key::put_float(out, f64::from_bits(d.value() as u64));
                }
                Kind::Float4 | Kind::Float8 if typid == pg_sys::FLOAT4OID => {
                    key::put_float(out, f32::from_bits(d.value() as u32) as f64);
                }
                Kind::Text if typid == pg_sys::NAMEOID => key::put_bytes(out, name_bytes(d)),
                Kind::Name if typid == pg_sys::TEXTOID => put_text(d, out, |b| b),
                _ => return false,
            }
            true
        }
    }

    unsafe fn hash(&self, d: Datum) -> u32 {
        let f = self.function.as_ref().expect("a hash column has its function");
        let at = f.as_ptr();
        // SAFETY: `f` is the operator class's hash function, and `d` a value of its type: contract
        // of `put`. No borrow of `f` is held while the function runs.
        unsafe { pg_sys::FunctionCall1Coll(&mut **at, self.collation, d).value() as u32 }
    }

    /// The value as it is stored, with a plain header and not compressed if it is a varlena
    /// (INV-PACKED).
    unsafe fn raw(&self, d: Datum, out: &mut Vec<u8>) {
        // SAFETY: `d` is a value of the column's type: contract of `put`. `typlen` says how many
        // bytes it has; a detoasted copy is freed once, after its last use.
        unsafe {
            if self.byval {
                out.extend(d.value().to_ne_bytes());
                return;
            }
            let (p, n) = match self.typlen {
                -1 => {
                    let v = pg_sys::pg_detoast_datum(d.cast_mut_ptr());
                    out.extend(std::slice::from_raw_parts(v.cast::<u8>(), pgrx::varsize_any(v)));
                    if v != d.cast_mut_ptr() {
                        pg_sys::pfree(v.cast()); // one for each row that a statement writes
                    }
                    return;
                }
                -2 => (d.cast_mut_ptr::<u8>(), name_bytes(d).len() + 1),
                n => (d.cast_mut_ptr::<u8>(), n as usize),
            };
            out.extend(std::slice::from_raw_parts(p, n));
        }
    }

    /// A copy of a value's bytes that is aligned as PostgreSQL expects it.
    pub(super) fn aligned(&self, v: &[u8], room: &mut Vec<u64>) -> Datum {
        room.clear();
        room.resize(v.len().div_ceil(8).max(1), 0);
        // SAFETY: `room` was resized to at least `v.len()` bytes, and any bytes are valid words.
        unsafe { std::ptr::copy_nonoverlapping(v.as_ptr(), room.as_mut_ptr().cast(), v.len()) };
        Datum::from(room.as_ptr())
    }

    /// The value of a raw payload; `room` keeps it.
    pub(super) fn unraw(&self, v: &[u8], room: &mut Vec<u64>) -> Datum {
        let d = self.aligned(v, room);
        if self.byval {
            Datum::from(room[0] as usize)
        } else {
            d
        }
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        if self.kind != Kind::Raw {
            return a.cmp(b);
        }
        let (mut x, mut y) = (Vec::new(), Vec::new());
        let (x, y) = (self.unraw(a, &mut x), self.unraw(b, &mut y));
        let f = self.function.as_ref().expect("a raw column has its function").as_ptr();
        // SAFETY: `f` is the operator class's comparison function. `a` and `b` are payloads of this
        // column, which `raw` has made of values of its type. No borrow of `f` is held while the
        // function runs.
        let call = || unsafe { pg_sys::FunctionCall2Coll(&mut **f, self.collation, x, y).value() as i32 };
        let r = if self.may_run_sql { crate::pg::with_snapshot(call) } else { call() };
        if self.desc {
            0.cmp(&r)
        } else {
            r.cmp(&0)
        }
    }

    /// Marker of its NULLs.
    pub fn null(&self) -> u8 {
        if self.nulls_first {
            NULL_FIRST
        } else {
            NULL_LAST
        }
    }
}

/// First byte of a spec: changes with the meaning of the others and of the keys.
const SPEC: u8 = 2;
/// The most columns of a unique index that has a spec.
pub const MOST_OF_UNIQUE: usize = (PRIMARY_SPEC_MAX - 5) / 4;
/// The same, of a spec that is of one index only: the index's OID follows.
const SPEC_OF_INDEX: u8 = 3;
const DESC: u8 = 1;
const NULLS_FIRST: u8 = 2;
/// Kinds whose bytes need no function of the type, with their numbers in specs, which must not
/// change.
const EXACT: [(Kind, u8); 12] = [
    (Kind::Bool, 1),
    (Kind::Char, 2),
    (Kind::Int2, 3),
    (Kind::Int4, 4),
    (Kind::Int8, 5),
    (Kind::Oid, 6),
    (Kind::Float4, 7),
    (Kind::Float8, 8),
    (Kind::Text, 9),
    (Kind::Bpchar, 10),
    (Kind::Name, 11),
    (Kind::Uuid, 12),
];

impl KeyColumn {
    /// A column of which only kind and order are known: enough to make keys.
    fn bare(kind: Kind, flags: u8) -> KeyColumn {
        KeyColumn {
            kind,
            desc: flags & DESC != 0,
            nulls_first: flags & NULLS_FIRST != 0,
            typid: pg_sys::InvalidOid,
            atttypid: pg_sys::InvalidOid,
            collation: pg_sys::InvalidOid,
            typlen: 0,
            byval: false,
            may_run_sql: false,
            function: None,
        }
    }
}

impl Codec {
    /// How the keys are made of the table's columns, in bytes that mean the same in every process
    /// and after a restart. `None` if a key needs more than the columns' bytes, or has more columns
    /// than a spec has room for: 31 of a PRIMARY KEY, 30 of a unique index.
    pub fn spec(&self) -> Option<Vec<u8>> {
        self.spec_from(vec![SPEC])
    }

    /// The same, of this index only: no other one has this spec.
    pub fn spec_of_index(&self) -> Option<Vec<u8>> {
        let mut spec = vec![SPEC_OF_INDEX];
        spec.extend(self.index.to_u32().to_le_bytes());
        self.spec_from(spec)
    }

    fn spec_from(&self, mut spec: Vec<u8>) -> Option<Vec<u8>> {
        if self.order != 0 || self.special || self.hash {
            return None;
        }
        for (c, attnum) in self.columns.iter().zip(&self.attnums) {
            let (_, kind) = EXACT.iter().find(|(k, _)| *k == c.kind)?;
            spec.extend([*kind, if c.desc { DESC } else { 0 } | if c.nulls_first { NULLS_FIRST } else { 0 }]);
            spec.extend(attnum.to_le_bytes());
        }
        (spec.len() <= PRIMARY_SPEC_MAX).then_some(spec)
    }

    /// Makes keys as a spec says; there is no index to ask. `None`: the spec is not known.
    pub fn from_spec(spec: &[u8]) -> Option<Codec> {
        let columns = match spec.split_first()? {
            (&SPEC, columns) => columns,
            (&SPEC_OF_INDEX, _) => spec.get(5..)?,
            _ => return None,
        };
        let kind = |c: &[u8]| EXACT.iter().find(|(_, n)| *n == c[0]).map(|(k, _)| KeyColumn::bare(*k, c[1]));
        Some(Codec {
            index: pg_sys::InvalidOid,
            order: 0,
            columns: columns.chunks_exact(4).map(kind).collect::<Option<_>>()?,
            attnums: columns.chunks_exact(4).map(|c| i16::from_le_bytes([c[2], c[3]])).collect(),
            special: false,
            hash: false,
        })
    }

    /// Appends a NULL of a column.
    pub fn put_null(&self, column: usize, out: &mut Vec<u8>) {
        out.push(self.columns[column].null());
    }

    /// Do values of a type compare with a column's as their bytes do?
    pub fn is_exact(&self, column: usize, typid: Oid) -> bool {
        let c = &self.columns[column];
        let own = typid == pg_sys::InvalidOid || typid == c.typid;
        match c.kind {
            Kind::Raw | Kind::Hash => false,
            _ if own => true,
            Kind::Int2 | Kind::Int4 | Kind::Int8 => {
                integer(typid, Datum::from(0)).is_some() && integer(c.typid, Datum::from(0)).is_some()
            }
            Kind::Float4 | Kind::Float8 => typid == pg_sys::FLOAT8OID || typid == pg_sys::FLOAT4OID,
            Kind::Text => typid == pg_sys::NAMEOID,
            Kind::Name => typid == pg_sys::TEXTOID,
            _ => false,
        }
    }

    /// Appends a value of a column's type.
    ///
    /// # Safety
    /// `d` is a value of the type of the key's column `column`, not NULL.
    #[inline]
    pub unsafe fn put(&self, column: usize, d: Datum, out: &mut Vec<u8>) {
        let c = &self.columns[column];
        if self.order == 0 && c.is_int() {
            let v = c.int(d);
            return key::put_int(out, if c.desc { !v } else { v });
        }
        // SAFETY: `d` is a value of the column's type, not NULL (contract of this function).
        unsafe { self.put_with(column, out, |c, out| c.payload(d, out)) };
    }

    /// Appends a value of any type; false, and nothing is appended, if it does not compare exactly.
    ///
    /// # Safety
    /// `d` is a value of `typid`, or of the column's type if that is invalid; not NULL.
    #[must_use]
    pub unsafe fn put_foreign(&self, column: usize, d: Datum, typid: Oid, out: &mut Vec<u8>) -> bool {
        let c = &self.columns[column];
        if typid == pg_sys::InvalidOid || typid == c.typid {
            // SAFETY: `d` is a value of the column's type, as `typid` says, not NULL (contract of
            // this function).
            unsafe { self.put(column, d, out) };
            return true;
        }
        if self.order == 0 && c.is_int() {
            let v = c.foreign_int(d, typid);
            v.inspect(|v| key::put_int(out, if c.desc { !v } else { *v }));
            return v.is_some();
        }
        let start = out.len();
        let mut fits = false;
        // SAFETY: `d` is a value of `typid`, not NULL (contract of this function).
        unsafe { self.put_with(column, out, |c, out| fits = c.foreign(d, typid, out)) };
        if !fits {
            out.truncate(start);
        }
        fits
    }

    /// The bytes of a whole key of integers, if they are few. `value`: of a column, not NULL, with
    /// its type (invalid: its own).
    #[inline]
    pub fn short(&self, n: usize, value: impl Fn(usize) -> (Datum, Oid)) -> Option<Short> {
        let mut key = Short::EMPTY;
        if self.order != 0 || n != self.columns.len() {
            return None;
        }
        if let [KeyColumn { kind: Kind::Int4, desc: false, typid: own, .. }] = self.columns[..] {
            // Most keys.
            let (d, typid) = value(0);
            if typid == own || typid == pg_sys::InvalidOid {
                return key.put_int(d.value() as i32 as i64).then_some(key);
            }
        }
        for (i, c) in self.columns.iter().enumerate() {
            let (d, typid) = value(i);
            if !c.is_int() {
                return None;
            }
            let v = c.int_of(d, typid)?;
            if !key.put_int(if c.desc { !v } else { v }) {
                return None;
            }
        }
        Some(key)
    }

    /// Has a row the integers of which [`Codec::short`] has made a key? `column`: of the row (from
    /// 0); `None` if it is not known.
    #[inline(always)]
    pub fn has_ints(&self, value: impl Fn(usize) -> (Datum, Oid), column: impl Fn(usize) -> Option<Datum>) -> bool {
        if let ([KeyColumn { kind: Kind::Int4, typid: own, .. }], &[no]) = (&self.columns[..], &self.attnums[..]) {
            // Most keys.
            let (d, typid) = value(0);
            if typid == *own || typid == pg_sys::InvalidOid {
                return no > 0 && column(no as usize - 1).is_some_and(|of| of.value() as i32 == d.value() as i32);
            }
        }
        self.columns.iter().zip(&self.attnums).enumerate().all(|(i, (c, &no))| {
            let (d, typid) = value(i);
            let wanted = c.int_of(d, typid);
            wanted.is_some() && no > 0 && wanted == column(no as usize - 1).map(|d| c.int(d))
        })
    }

    unsafe fn put_with(&self, column: usize, out: &mut Vec<u8>, payload: impl FnOnce(&KeyColumn, &mut Vec<u8>)) {
        let c = &self.columns[column];
        out.push(VALUE);
        let start = if self.order == 0 { out.len() } else { key::start_value(out) };
        payload(c, out);
        if c.desc && c.kind != Kind::Raw {
            key::reverse(out, start);
        }
        if self.order != 0 {
            key::end_value(out, start);
        }
    }

    /// Compares two keys or bounds of this index. May raise an ERROR.
    pub fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        self.compare_from(0, a, b)
    }

    /// Compares two parts of keys or bounds that begin with the values of this column. May raise an
    /// ERROR.
    pub fn compare_from(&self, column: usize, a: &[u8], b: &[u8]) -> Ordering {
        if self.order == 0 {
            return a.cmp(b);
        }
        let (mut x, mut y) = (key::columns(a), key::columns(b));
        for c in self.columns[column..].iter().map(Some).chain(std::iter::repeat(None)) {
            let order = match (x.next(), y.next(), c) {
                (None, None, _) => return Ordering::Equal,
                (None, _, _) => return Ordering::Less,
                (_, None, _) => return Ordering::Greater,
                (Some(Column::Value(a)), Some(Column::Value(b)), Some(c)) => c.compare(a, b),
                (Some(a), Some(b), _) => a.mark().cmp(&b.mark()),
            };
            if order != Ordering::Equal {
                return order;
            }
        }
        Ordering::Equal
    }

    /// The key of a row: its values in the index's key columns. `None`: no key (a NULL in a hash
    /// index).
    ///
    /// # Safety
    /// `value` gives values of the types of the key's columns, which live until the next call.
    pub unsafe fn key(&self, out: &mut Vec<u8>, mut value: impl FnMut(usize) -> Option<Datum>) -> Option<()> {
        for i in 0..self.columns.len() {
            match value(i) {
                // SAFETY: `value` gives a value of the type of column `i` (contract of this
                // function).
                Some(d) => unsafe { self.put(i, d, out) },
                None if self.hash => return None,
                None => self.put_null(i, out),
            }
        }
        Some(())
    }
}
