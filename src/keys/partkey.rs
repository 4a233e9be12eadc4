//! The partition key: which partition a row belongs to.
//!
//! The engine keeps the description ("spec") of a map as bytes; they are written and read here.
//! A key of one integer column is taken modulo the number of partitions, as H-Store does; other
//! keys are hashed by their types' default hash functions.

use mixedcc_engine::partition::PartitionMap;
use pgrx::pg_sys::{self, Datum, Oid};

mod encode;
use encode::read_bounds;

/// How rows of a table map to its partitions.
pub enum PartKey {
    /// All rows are in one partition.
    Single,
    /// By the hash of some columns.
    Hash(HashKey),
    /// By the sorted bounds of one column.
    Range(RangeKey),
    /// A column of the key is gone, or of another type, and the table is about to be repartitioned.
    /// Or its type cannot be hashed or ordered any more. New rows go to the first partition, and
    /// the partition of a key is not known.
    Broken,
}

/// Columns that are hashed.
pub struct HashKey {
    n: u16,
    columns: Vec<Column>,
}

/// One column and its bounds.
pub struct RangeKey {
    column: Column,
    bounds: Vec<Datum>,
    /// The bounds of an integer column.
    ints: Vec<i64>,
    /// What bounds by reference refer to.
    _store: Vec<Box<[u64]>>,
}

/// A column of the key.
struct Column {
    attnum: i16,
    int: Option<Int>,
    /// Base type.
    typid: Oid,
    collation: Oid,
    /// Type cache entries are never freed.
    cache: *mut pg_sys::TypeCacheEntry,
}

/// Integer types, which need no function call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Int {
    Two,
    Four,
    Eight,
}

/// What a NULL hashes to.
const NULL_HASH: u64 = 0x9e37_79b9_7f4a_7c15;
const TAG_HASH: u8 = b'H';
const TAG_RANGE: u8 = b'R';
/// Support function 1 of a B-tree operator family: comparison.
const BTORDER_PROC: i16 = 1;

/// What becomes of an ERROR of a type's function, which may be a user's.
#[derive(Clone, Copy)]
enum Error {
    /// It jumps over the callers' frames, up to PostgreSQL's. They own nothing.
    Jumps,
    /// It unwinds.
    Unwinds,
}

impl Error {
    /// Calls a support function of a type.
    ///
    /// # Safety
    /// `f` is a function of two arguments, and these are values for it.
    #[inline]
    unsafe fn call(self, f: *mut pg_sys::FmgrInfo, collation: Oid, a: Datum, b: Datum) -> Datum {
        // SAFETY: `f` takes `a` and `b` (contract of this function). An ERROR jumps only where the
        // callers' frames own nothing, as `Error::Jumps` says.
        unsafe {
            match self {
                Error::Jumps => crate::pg::raw::FunctionCall2Coll(f, collation, a, b),
                Error::Unwinds => pg_sys::FunctionCall2Coll(f, collation, a, b),
            }
        }
    }
}

impl Int {
    fn of(typid: Oid) -> Option<Int> {
        match typid {
            pg_sys::INT2OID => Some(Int::Two),
            pg_sys::INT4OID => Some(Int::Four),
            pg_sys::INT8OID => Some(Int::Eight),
            _ => None,
        }
    }
    #[inline]
    fn value(self, d: Datum) -> i64 {
        match self {
            Int::Two => d.value() as i16 as i64,
            Int::Four => d.value() as i32 as i64,
            Int::Eight => d.value() as i64,
        }
    }
}

#[inline]
fn mix(v: u64) -> u64 {
    let v = (v ^ (v >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let v = (v ^ (v >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    v ^ (v >> 31)
}

#[inline]
fn combine(a: u64, b: u64) -> u64 {
    a ^ b.wrapping_add(0x49a0_f4dd_15e5_a8e3).wrapping_add(a << 54).wrapping_add(a >> 7)
}

/// Spreads a hash over `n` partitions.
#[inline]
fn spread(hash: u64, n: u16) -> u16 {
    ((hash as u128 * n as u128) >> 64) as u16
}

#[inline]
fn modulo(v: i64, n: u16) -> u16 {
    v.rem_euclid(n as i64) as u16
}

/// Is the type a placeholder for many (anyarray, record, ...)?
fn is_polymorphic(t: Oid) -> bool {
    // SAFETY: a catalog look-up: any OID is answered.
    unsafe { pg_sys::get_typtype(t) == pg_sys::TYPTYPE_PSEUDO as core::ffi::c_char }
}

/// Is the type made of no composite type? The attributes of such a type may change while it is that
/// of a column. Then its values have other hashes and another order, or none, and sessions learn
/// that at different times.
pub fn is_fixed(typid: Oid) -> bool {
    // SAFETY: catalog look-ups: any OID is answered.
    unsafe {
        let typid = pg_sys::getBaseType(typid);
        let element = pg_sys::get_element_type(typid);
        if element != pg_sys::InvalidOid {
            return is_fixed(element);
        }
        match pg_sys::get_typtype(typid) as u8 {
            pg_sys::TYPTYPE_COMPOSITE | pg_sys::TYPTYPE_PSEUDO => false,
            pg_sys::TYPTYPE_RANGE => is_fixed(pg_sys::get_range_subtype(typid)),
            pg_sys::TYPTYPE_MULTIRANGE => is_fixed(pg_sys::get_multirange_range(typid)),
            _ => true,
        }
    }
}

impl Column {
    /// A column by its number. `None` if it was dropped, or its type has no function of the flags.
    ///
    /// # Safety
    /// The descriptor of an open relation.
    unsafe fn new(desc: pg_sys::TupleDesc, attnum: i16, flags: u32) -> Option<Column> {
        // SAFETY: the contract of this function.
        unsafe { Column::of_any_type(desc, attnum, flags) }.filter(|c| c.int.is_some() || c.has_function(flags))
    }

    /// The same, also of a type without the function.
    ///
    /// # Safety
    /// As for [`Column::new`].
    unsafe fn of_any_type(desc: pg_sys::TupleDesc, attnum: i16, flags: u32) -> Option<Column> {
        // SAFETY: `desc` is the descriptor of an open relation (contract of this function), and
        // `attnum` is checked. Entries of the type cache are never freed.
        unsafe {
            if attnum < 1 || attnum as i32 > (*desc).natts {
                return None;
            }
            let att = crate::pg::compat::attribute(desc, attnum as usize - 1);
            if att.attisdropped {
                return None;
            }
            let typid = pg_sys::getBaseType(att.atttypid);
            let cache = pg_sys::lookup_type_cache(typid, flags as i32);
            Some(Column { attnum, int: Int::of(typid), typid, collation: att.attcollation, cache })
        }
    }

    /// Has the type the function of these flags, which `lookup_type_cache` was called with, and is
    /// it one that keeps it?
    fn has_function(&self, flags: u32) -> bool {
        // SAFETY: entries of the type cache are never freed.
        let cache = unsafe { &*self.cache };
        let function = if flags == CMP_FLAGS { &cache.cmp_proc_finfo } else { &cache.hash_extended_proc_finfo };
        function.fn_oid != pg_sys::InvalidOid && is_fixed(self.typid)
    }

    #[inline]
    unsafe fn hash(&self, d: Datum, null: bool, error: Error) -> u64 {
        if null {
            return NULL_HASH;
        }
        if let Some(i) = self.int {
            return mix(i.value(d) as u64);
        }
        // SAFETY: `d` is a value of the column, not NULL: contract of `partition` and
        // `partition_of_key`. The type has the function: `new` has seen that, and it keeps it.
        unsafe {
            let f = &raw mut (*self.cache).hash_extended_proc_finfo;
            error.call(f, self.collation, d, Datum::from(0usize)).value() as u64
        }
    }

    /// Hash of a value of a type that compares with ours. `None`: not known to be the same.
    unsafe fn hash_other(&self, d: Datum, null: bool, typid: Oid) -> Option<u64> {
        // SAFETY: `d` is a value of `typid`: contract of `partition_of_key`. Entries of the type
        // cache are never freed; the function belongs to the value's type.
        unsafe {
            if null || self.is_same_type(typid) {
                return Some(self.hash(d, null, Error::Unwinds));
            }
            if self.int.is_some() {
                return Int::of(typid).map(|i| mix(i.value(d) as u64));
            }
            let other = pg_sys::lookup_type_cache(typid, HASH_FLAGS as i32);
            let fine = (*other).hash_opf == (*self.cache).hash_opf
                && (*other).hash_extended_proc_finfo.fn_oid != pg_sys::InvalidOid
                && !is_polymorphic((*other).hash_opintype);
            fine.then(|| {
                pg_sys::FunctionCall2Coll(
                    &mut (*other).hash_extended_proc_finfo,
                    self.collation,
                    d,
                    Datum::from(0usize),
                )
                .value() as u64
            })
        }
    }

    fn is_same_type(&self, typid: Oid) -> bool {
        // SAFETY: entries of the type cache are never freed.
        let (hash, btree) = unsafe { ((*self.cache).hash_opintype, (*self.cache).btree_opintype) };
        typid == self.typid
            || typid == pg_sys::InvalidOid
            || (typid != pg_sys::InvalidOid && (typid == hash || typid == btree) && self.int.is_none())
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.attnum.to_le_bytes());
        out.extend(self.typid.to_u32().to_le_bytes());
        out.extend(self.collation.to_u32().to_le_bytes());
    }
    /// Bytes of a column in a spec.
    const SIZE: usize = 10;
}

const HASH_FLAGS: u32 = pg_sys::TYPECACHE_HASH_OPFAMILY
    | pg_sys::TYPECACHE_HASH_EXTENDED_PROC
    | pg_sys::TYPECACHE_HASH_EXTENDED_PROC_FINFO
    | pg_sys::TYPECACHE_BTREE_OPFAMILY;
const CMP_FLAGS: u32 = pg_sys::TYPECACHE_BTREE_OPFAMILY | pg_sys::TYPECACHE_CMP_PROC | pg_sys::TYPECACHE_CMP_PROC_FINFO;

impl RangeKey {
    /// Number of bounds at or below the value.
    #[inline]
    unsafe fn place(&self, d: Datum, null: bool, error: Error) -> u16 {
        if null {
            return self.bounds.len() as u16;
        }
        if let Some(i) = self.column.int {
            let v = i.value(d);
            return self.ints.partition_point(|&b| b <= v) as u16;
        }
        self.bounds.partition_point(|&b| {
            // SAFETY: `d` is a value of the column, not NULL: contract of `partition` and
            // `partition_of_key`. The type has the function, as in `hash`.
            let c = unsafe { error.call(&raw mut (*self.column.cache).cmp_proc_finfo, self.column.collation, b, d) };
            c.value() as i32 <= 0
        }) as u16
    }

    /// As `place`, for a value of another type of the operator family.
    unsafe fn place_other(&self, d: Datum, null: bool, typid: Oid) -> Option<u16> {
        let c = &self.column;
        // SAFETY: `d` is a value of `typid`: contract of `partition_of_key`. Entries of the type
        // cache are never freed; `proc` compares the column's type with it.
        unsafe {
            if null || c.is_same_type(typid) {
                return Some(self.place(d, null, Error::Unwinds));
            }
            if c.int.is_some() {
                let v = Int::of(typid)?.value(d);
                return Some(self.ints.partition_point(|&b| b <= v) as u16);
            }
            let cache = &*c.cache;
            let mut proc = pg_sys::get_opfamily_proc(cache.btree_opf, cache.btree_opintype, typid, BTORDER_PROC);
            if proc == pg_sys::InvalidOid {
                let other = &*pg_sys::lookup_type_cache(typid, CMP_FLAGS as i32);
                if other.btree_opf == cache.btree_opf && !is_polymorphic(other.btree_opintype) {
                    proc = pg_sys::get_opfamily_proc(
                        cache.btree_opf,
                        cache.btree_opintype,
                        other.btree_opintype,
                        BTORDER_PROC,
                    );
                }
            }
            if proc == pg_sys::InvalidOid {
                return None;
            }
            Some(
                self.bounds
                    .partition_point(|&b| pg_sys::OidFunctionCall2Coll(proc, c.collation, b, d).value() as i32 <= 0)
                    as u16,
            )
        }
    }
}

impl PartKey {
    /// Reads the description of a map of this relation.
    ///
    /// # Safety
    /// An open relation.
    pub unsafe fn parse(rel: pg_sys::Relation, map: &PartitionMap) -> PartKey {
        let spec = map.spec();
        if map.n <= 1 {
            return PartKey::Single;
        }
        let n = map.n as u16;
        // The column at a place of the spec, if it is still of the type that it has there: ALTER
        // TABLE of a type reads the old rows with the new descriptor.
        let column = |at: usize, flags| {
            let (attnum, rest) = spec[at..].split_first_chunk().expect("a column");
            let typid = u32::from_le_bytes(*rest.first_chunk().expect("a column"));
            // SAFETY: `rel` is open (contract of this function), and keeps its descriptor.
            let c = unsafe { Column::new((*rel).rd_att, i16::from_le_bytes(*attnum), flags) };
            c.filter(|c| c.typid.to_u32() == typid)
        };
        match spec.first() {
            Some(&TAG_HASH) => {
                let columns: Option<Vec<Column>> =
                    (0..spec[1] as usize).map(|i| column(2 + i * Column::SIZE, HASH_FLAGS)).collect();
                columns.map_or(PartKey::Broken, |columns| PartKey::Hash(HashKey { n, columns }))
            }
            Some(&TAG_RANGE) => column(2, CMP_FLAGS)
                .map_or(PartKey::Broken, |c| PartKey::Range(read_bounds(c, &spec[2 + Column::SIZE..], n))),
            _ => PartKey::Broken,
        }
    }

    /// Numbers of the key's columns.
    pub fn columns(&self) -> impl Iterator<Item = i16> + '_ {
        self.all().iter().map(|c| c.attnum)
    }

    fn all(&self) -> &[Column] {
        match self {
            PartKey::Hash(h) => &h.columns,
            PartKey::Range(r) => std::slice::from_ref(&r.column),
            PartKey::Single | PartKey::Broken => &[],
        }
    }

    /// The partition of a row.
    ///
    /// # Safety
    /// `values` and `nulls` hold the row's columns, by number - 1. An ERROR (of a function of the
    /// key's type) unwinds.
    pub unsafe fn partition(&self, values: *const Datum, nulls: *const bool) -> u16 {
        // SAFETY: `values` and `nulls` hold the row's columns (contract of this function).
        unsafe { self.partition_of_row(values, nulls, Error::Unwinds) }
    }

    #[inline]
    unsafe fn partition_of_row(&self, values: *const Datum, nulls: *const bool, error: Error) -> u16 {
        // SAFETY: `values` and `nulls` hold the row's columns: contract of `partition`. The key's
        // columns exist.
        let get = |c: &Column| unsafe { (*values.add(c.attnum as usize - 1), *nulls.add(c.attnum as usize - 1)) };
        match self {
            PartKey::Single | PartKey::Broken => 0,
            PartKey::Hash(HashKey { n, columns }) => {
                if let [c] = columns.as_slice() {
                    let (d, null) = get(c);
                    return match c.int {
                        Some(_) if null => 0,
                        Some(i) => modulo(i.value(d), *n),
                        // SAFETY: `get` gives the row's value of column `c` (contract of
                        // `partition`).
                        None => spread(unsafe { c.hash(d, null, error) }, *n),
                    };
                }
                let hash = columns.iter().fold(0, |h, c| {
                    let (d, null) = get(c);
                    // SAFETY: `get` gives the row's value of column `c` (contract of this
                    // function).
                    combine(h, unsafe { c.hash(d, null, error) })
                });
                spread(hash, *n)
            }
            PartKey::Range(r) => {
                let (d, null) = get(&r.column);
                // SAFETY: `get` gives the row's value of the key's column (contract of this
                // function).
                unsafe { r.place(d, null, error) }
            }
        }
    }

    /// The partition of the row in a slot.
    ///
    /// # Safety
    /// A valid slot of the table's row type. An ERROR (of a function of the key's type) jumps over
    /// the callers' frames, which own nothing: on the path of every insert.
    #[inline]
    pub unsafe fn partition_of_slot(&self, slot: *mut pg_sys::TupleTableSlot) -> u16 {
        // SAFETY: `slot` is valid and of the table's row type (contract of this function).
        // `have_columns` fills its arrays up to the key's last column.
        unsafe {
            let last = match self.all() {
                [] => return 0,
                [c] => c.attnum,
                more => more.iter().map(|c| c.attnum).max().unwrap_or(0),
            };
            crate::pg::have_columns(slot, last as i32);
            self.partition_of_row((*slot).tts_values, (*slot).tts_isnull, Error::Jumps)
        }
    }

    /// The partition of all rows whose key columns (in the order of `columns`) equal these values,
    /// which may be of other types of the same operator family. `None`: not known.
    ///
    /// # Safety
    /// Each value is of its type. Equality is that of the columns' default operator class, under
    /// a collation that `agrees_with` allows. An ERROR unwinds.
    pub unsafe fn partition_of_key(&self, key: &[(Datum, bool, Oid)]) -> Option<u16> {
        match self {
            PartKey::Single => Some(0),
            PartKey::Broken => None,
            _ if key.len() != self.all().len() => None,
            PartKey::Hash(HashKey { n, columns }) => {
                if let ([c], [(d, null, t)]) = (columns.as_slice(), key) {
                    if let Some(own) = c.int {
                        let i = if c.is_same_type(*t) { own } else { Int::of(*t)? };
                        return Some(if *null { 0 } else { modulo(i.value(*d), *n) });
                    }
                    // SAFETY: `d` is a value of type `t`, and the equality is the key's (contract
                    // of this function).
                    return unsafe { c.hash_other(*d, *null, *t) }.map(|h| spread(h, *n));
                }
                let mut hash = 0;
                for (c, (d, null, t)) in columns.iter().zip(key) {
                    // SAFETY: `d` is a value of type `t`, and the equality is the key's (contract
                    // of this function).
                    hash = combine(hash, unsafe { c.hash_other(*d, *null, *t) }?);
                }
                Some(spread(hash, *n))
            }
            // SAFETY: `key[0]` is a value with its type, and the equality is the key's (contract of
            // this function).
            PartKey::Range(r) => unsafe { r.place_other(key[0].0, key[0].1, key[0].2) },
        }
    }

    /// Does equality on column `i` (from 0) of an index mean the same partition for key column
    /// `attnum`? Not if its operator class or collation is coarser than the key's.
    ///
    /// # Safety
    /// An open index, which has this key column.
    pub unsafe fn agrees_with(&self, index: pg_sys::Relation, i: usize, attnum: i16) -> bool {
        let Some(c) = self.all().iter().find(|c| c.attnum == attnum) else {
            return false;
        };
        // SAFETY: `index` is open, and `i` one of its key columns (contract of this function).
        // Entries of the type cache are never freed.
        unsafe {
            let family = *(*index).rd_opfamily.add(i);
            let collation = *(*index).rd_indcollation.add(i);
            let same = family == (*c.cache).btree_opf || family == (*c.cache).hash_opf;
            let range = matches!(self, PartKey::Range(_));
            same && (collation == c.collation
                || (!range && (collation == pg_sys::InvalidOid || pg_sys::get_collation_isdeterministic(collation))))
        }
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn integers_are_spread_modulo() {
        assert_eq!(modulo(5, 4), 1);
        assert_eq!(modulo(-1, 4), 3);
        assert_eq!(modulo(i64::MIN, 7), (i64::MIN.rem_euclid(7)) as u16);
    }

    #[test]
    fn hashes_reach_every_partition() {
        let mut seen = [0u32; 16];
        for w in 0..64u64 {
            for d in 0..10u64 {
                seen[spread(combine(combine(0, mix(w)), mix(d)), 16) as usize] += 1;
            }
        }
        assert!(seen.iter().all(|&n| n > 15), "{seen:?}");
    }
}
