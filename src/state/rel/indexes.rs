//! What a backend knows of the indexes of a relation: those with ranges, and those in memory.
//! `access/ranges` and `access/primary` fill it in and use it.

use super::RelInfo;
use crate::keys::codec::{self, Codec};
use mixedcc_engine::index::Primary;
use mixedcc_engine::range::IndexRanges;
use mixedcc_engine::Table;
use pgrx::pg_sys::{Datum, InvalidOid, Oid};
use std::cell::{Cell, OnceCell, RefCell};

/// Scans of a relation between two looks at the size of the ranges.
const LOOK: u32 = 64;

/// The indexes of a relation that have ranges, as this backend knows them.
#[derive(Default)]
pub struct Active {
    /// The table's generation when the list was made; 0: never.
    pub generation: Cell<u64>,
    pub list: RefCell<Vec<(&'static IndexRanges, &'static Codec)>>,
    /// Scans since the ranges' size was looked at.
    pub scans: Cell<u32>,
    /// Number of ranges that was wanted when the size was looked at last.
    pub tried: Cell<u64>,
    /// Codecs of its indexes that `usable` returns.
    pub usable: RefCell<Option<Vec<&'static Codec>>>,
}

impl Active {
    /// Should the ranges' size be looked at? Now and then.
    pub fn is_time_to_look(&self) -> bool {
        self.scans.set(self.scans.get().wrapping_add(1));
        self.scans.get() % LOOK == 1
    }
}

/// An index of a table whose entries come with records, as a backend knows it.
pub struct Kept {
    /// The index.
    pub index: &'static Primary,
    /// Its number in the table.
    pub nth: usize,
    /// The index in the catalogs that it is for. 0: that of a PRIMARY KEY, which is the only one in
    /// memory or is gone.
    pub oid: Oid,
    /// Makes its keys; `None`: of a version that this one does not know, and not used.
    pub codec: Option<Codec>,
    /// The key that it serves.
    pub key: OnceCell<Option<PrimaryKey>>,
}

/// The indexes of a table whose entries come with records, as a backend knows them.
pub struct Uniques {
    /// In the order of the OIDs, which all sessions have (INV-NAMED).
    list: Box<[Kept]>,
    /// Which of them is the primary index: that of the PRIMARY KEY, or the first one.
    primary: usize,
    /// That of the table when this was made ([`Table::index_generation`]).
    pub generation: u64,
}

/// A unique key of a table whose index in memory has the same keys.
pub struct PrimaryKey {
    /// Its index in the catalogs: the name of its ranges.
    pub index: Oid,
    /// Is it that of a PRIMARY KEY, and not of a unique index?
    pub declared: bool,
    /// Makes its keys and bounds.
    pub codec: &'static Codec,
    /// The index.
    pub primary: &'static Primary,
    /// Its number in the table.
    pub nth: usize,
    /// Where the columns of the partition key are in the key, if all are and mean the same there.
    pub partition: Option<Vec<usize>>,
    /// Is the catalogs' index hollow, so that this one answers for it (access/hollow)?
    pub hollow: bool,
    /// When our functions were put into the relation cache entry of that index (INV-SERVED).
    pub served: Cell<u64>,
}

impl Uniques {
    /// Those of a table. `declared`: the index of the PRIMARY KEY, asked for if there are several.
    pub fn of(table: &Table, declared: impl FnOnce() -> Oid) -> Uniques {
        let generation = table.index_generation();
        let mut list: Vec<Kept> = table.uniques().map(|(nth, index)| Kept::new(nth, index)).collect();
        if list.len() > 1 {
            let declared = declared();
            for kept in list.iter_mut().filter(|k| k.is_declared()) {
                kept.oid = declared;
            }
            list.sort_by_key(|k| k.oid.to_u32());
        }
        let primary = list.iter().position(Kept::is_declared).unwrap_or(0);
        Uniques { list: list.into(), primary, generation }
    }

    /// All, in the order in which a row is entered.
    #[inline]
    pub fn all(&self) -> &[Kept] {
        &self.list
    }

    /// The primary index.
    #[inline]
    pub fn primary(&self) -> Option<&Kept> {
        self.list.get(self.primary)
    }
}

impl Kept {
    /// An index, before it was used.
    fn new(nth: usize, index: &'static Primary) -> Kept {
        let oid = codec::index_of_spec(index.spec()).unwrap_or(InvalidOid);
        Kept { index, nth, oid, codec: Codec::from_spec(index.spec()), key: OnceCell::new() }
    }

    /// Is it that of a PRIMARY KEY?
    fn is_declared(&self) -> bool {
        codec::index_of_spec(self.index.spec()).is_none()
    }

    /// The key that it serves, if that is known already.
    #[inline]
    pub fn known_key(&self) -> Option<&PrimaryKey> {
        self.key.get()?.as_ref()
    }

    /// What makes its keys, if it is known.
    #[inline]
    pub fn codec(&self) -> Option<&Codec> {
        self.codec.as_ref()
    }

    /// Numbers of its columns.
    pub fn columns(&self) -> impl Iterator<Item = i16> + '_ {
        self.codec.iter().flat_map(|c| c.attnums.iter().copied())
    }
}

impl PrimaryKey {
    /// The partition of the row with a key. `values`: of the key's columns, none of them NULL, with
    /// their types, each one that compares exactly ([`Codec::is_exact`]). `None`: any.
    ///
    /// # Safety
    /// As it says.
    #[inline]
    pub unsafe fn partition(&self, info: &RelInfo, values: &[Datum], types: &[Oid]) -> Option<u16> {
        if info.table.map().n == 1 {
            return Some(0);
        }
        let places = self.partition.as_ref()?;
        // SAFETY: `values` are of the key's columns, with their types, and not NULL (contract of
        // this function); `find_key` has seen to the equality.
        unsafe {
            if let [at] = places[..] {
                return info.partkey.partition_of_key(&[(values[at], false, types[at])]);
            }
            let key: Vec<_> = places.iter().map(|&at| (values[at], false, types[at])).collect();
            info.partkey.partition_of_key(&key)
        }
    }
}
