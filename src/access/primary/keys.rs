//! The keys of rows where no session's knowledge of the relation is at hand: in loads, and on
//! standbys.

use crate::access::ranges::rows::{self, Row};
use crate::keys::codec::{self, Codec};
use mixedcc_engine::record::{Keys, Version, INDEXES};
use mixedcc_engine::Table;
use pgrx::pg_sys::{self, Oid};

/// What makes the keys of a table's indexes in memory, with their numbers. Those of a version that
/// this one does not know are left out.
pub fn codecs_of(table: &Table) -> Vec<(usize, Codec)> {
    table.uniques().filter_map(|(nth, index)| Some((nth, Codec::from_spec(index.spec())?))).collect()
}

/// The number of a table's primary index: that of the PRIMARY KEY, or of the unique index with the
/// smallest OID.
pub fn first_number(table: &Table) -> Option<usize> {
    let oid = |spec: &[u8]| codec::index_of_spec(spec).map(Oid::to_u32);
    table.uniques().min_by_key(|(_, index)| oid(index.spec())).map(|(nth, _)| nth)
}

/// The keys of a row, by the numbers of their indexes.
#[derive(Default, PartialEq, Eq)]
pub struct OwnKeys([Option<Vec<u8>>; INDEXES]);

impl OwnKeys {
    /// Copies of these.
    pub fn of(keys: &Keys<'_>) -> OwnKeys {
        OwnKeys(keys.0.map(|key| key.map(<[u8]>::to_vec)))
    }

    /// The same, as the engine takes them.
    pub fn keys(&self) -> Keys<'_> {
        Keys(self.0.each_ref().map(Option::as_deref))
    }

    /// That of an index.
    pub fn get(&self, nth: usize) -> Option<&[u8]> {
        self.0.get(nth)?.as_deref()
    }
}

/// Appends the key of a version in an index in memory. False: it has none there.
///
/// # Safety
/// An open relation of ours, what makes the keys of one of its indexes, and a version of it with a
/// row.
pub unsafe fn key_of(rel: pg_sys::Relation, codec: &Codec, version: *const Version, to: &mut Vec<u8>) -> bool {
    // SAFETY: the contract of this function.
    unsafe { rows::plain(rel, codec, Row::Version(version), to) }.is_some()
}

/// The keys of a version in these indexes.
///
/// # Safety
/// As for [`key_of`].
pub unsafe fn keys_of(rel: pg_sys::Relation, codecs: &[(usize, Codec)], version: *const Version) -> OwnKeys {
    let mut keys = OwnKeys::default();
    for (nth, codec) in codecs {
        let mut key = Vec::new();
        // SAFETY: the contract of this function.
        keys.0[*nth] = unsafe { key_of(rel, codec, version, &mut key) }.then_some(key);
    }
    keys
}
