//! Prefetching for announced look-ups, in groups.
//!
//! A look-up waits for memory three times in a row: for the leaf, for the record and for its newest
//! version. Look-ups that are announced together share these waits. This is only a hint: nothing
//! that is read here is used for anything else.
//!
//! **INV-HINT**: The words that an announcement reads (`Txn::announce_rows`, `announce_records`)
//! decide only what is prefetched. The estimated position of a key (`Span::place`) decides only
//! where a search begins. So both may read a node in any state. The caller is pinned, so the memory
//! is not freed meanwhile.

use super::key::prefix_of;
use super::point::Wanted;
use super::Index;
use crate::primitive::prefetch;
use crate::record::{Record, Version};
use crate::table::Table;

/// The number of look-ups whose memory is fetched together.
const TOGETHER: usize = 16;

/// Prefetches records and their newest versions.
pub(crate) fn prefetch_records(table: &'static Table, numbers: impl Iterator<Item = u64>) {
    let mut records = [None; TOGETHER];
    let mut numbers = numbers.peekable();
    while numbers.peek().is_some() {
        let mut n = 0;
        for (to, no) in records.iter_mut().zip(&mut numbers) {
            *to = prefetch_record(table, no);
            n += 1;
        }
        records[..n].iter().flatten().for_each(|r| prefetch_version(r));
    }
}

fn prefetch_record(table: &'static Table, no: u64) -> Option<&'static Record> {
    let r = table.record(no)?;
    prefetch(std::ptr::from_ref(r));
    Some(r)
}

/// Prefetches the version's header and the next line.
fn prefetch_version(r: &Record) {
    let v: *const Version = r.head();
    prefetch(v);
    prefetch(v.cast::<u8>().wrapping_add(64));
}

impl Index {
    /// Prefetches the leaves, records and versions that look-ups of these keys read. Does nothing
    /// if the platform compares the keys. The caller is pinned.
    pub(crate) fn prefetch_keys<'a>(&self, table: &'static Table, keys: impl Iterator<Item = &'a [u8]>) {
        if self.order() != 0 {
            return;
        }
        let mut keys = keys.map(|key| Wanted { prefix: prefix_of(key), key }).peekable();
        let mut places = [const { None }; TOGETHER];
        let mut records = [None; TOGETHER];
        while keys.peek().is_some() {
            let mut n = 0;
            for (to, wanted) in places.iter_mut().zip(&mut keys) {
                *to = self.try_place(&wanted).ok().map(|place| (place, wanted));
                n += 1;
            }
            for (place, to) in places[..n].iter().zip(&mut records) {
                let no = place.as_ref().and_then(|(place, wanted)| place.record(wanted));
                *to = no.and_then(|no| prefetch_record(table, no));
            }
            records[..n].iter().flatten().for_each(|r| prefetch_version(r));
        }
    }
}
