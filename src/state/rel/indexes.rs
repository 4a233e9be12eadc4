//! What a backend knows of the indexes of a relation: those with ranges, and the primary index.
//! `access/ranges` and `access/primary.rs` fill it in and use it.

use super::RelInfo;
use crate::keys::codec::Codec;
use mixedcc_engine::index::Primary;
use mixedcc_engine::range::IndexRanges;
use pgrx::pg_sys::{Datum, Oid};
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

/// A table's primary index, as a backend knows it.
pub struct Kept {
    /// The index.
    pub index: &'static Primary,
    /// Makes its keys; `None`: of a version that this one does not know, and not used.
    pub codec: Option<Codec>,
    /// The key that it serves.
    pub key: OnceCell<Option<PrimaryKey>>,
}

/// The PRIMARY KEY, or the unique index, of a table whose primary index has the same keys.
pub struct PrimaryKey {
    /// Its index in the catalogs: the name of its ranges.
    pub index: Oid,
    /// Is it that of a PRIMARY KEY, and not of a unique index?
    pub declared: bool,
    /// Makes its keys and bounds.
    pub codec: &'static Codec,
    /// The index.
    pub primary: &'static Primary,
    /// Where the columns of the partition key are in the key, if all are and mean the same there.
    pub partition: Option<Vec<usize>>,
    /// Is the catalogs' index hollow, so that this one answers for it (access/hollow)?
    pub hollow: bool,
    /// When our functions were put into the relation cache entry of that index (INV-SERVED).
    pub served: Cell<u64>,
}

impl Kept {
    /// A primary index, before it was used.
    pub fn new(index: &'static Primary) -> Kept {
        Kept { index, codec: Codec::from_spec(index.spec()), key: OnceCell::new() }
    }

    /// The key that it serves, if that is known already.
    #[inline]
    pub fn known_key(&self) -> Option<&PrimaryKey> {
        self.key.get()?.as_ref()
    }

    /// What makes its keys, if it is known.
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
