//! What the rows of a sampled transaction have in common, by the columns of the primary key: the
//! statistics of the view `mixedcc.key_stats`, from which `mixedcc.advice` says by what a table
//! could be partitioned.
//!
//! Of SERIALIZABLE transactions, which `partcc` is for; their pin keeps the versions that are
//! looked at here. Of tables with a primary index: all versions of a row have the same key
//! (INV-PRIMARY), so that its newest one tells.

use crate::access::tuple;
use crate::keys::codec::Codec;
use crate::pg::Tid;
use crate::state::rel::{self, Kept, RelInfo};
use crate::state::shmem;
use mixedcc_engine::partition::COLUMNS;
use mixedcc_engine::{RecordRef, Table, Txn};
use pgrx::pg_sys;
use std::cell::Cell;
use std::ptr::NonNull;

/// Where few transactions are sampled, the rows of one in so many of those are looked at.
const EVERY: u32 = 4;

thread_local! {
    static SAMPLED: Cell<u32> = const { Cell::new(0) };
}

/// A sampled transaction is about to commit. May raise an ERROR, as anything that opens a relation.
#[cold]
pub fn note(txn: &Txn) {
    let n = SAMPLED.get();
    SAMPLED.set(n.wrapping_add(1));
    if shmem::engine().shared.sample_every.get() > 1 && n % EVERY != 0 {
        return;
    }
    let all = txn.sampled_records();
    for (i, first) in all.iter().enumerate() {
        let same = |r: &&RecordRef| std::ptr::eq(r.table, first.table);
        if all[..i].iter().find(same).is_none() && all[i..].iter().filter(same).any(|r| r.no != first.no) {
            look(first.table, all[i..].iter().filter(same));
        }
    }
}

/// The index in memory of the PRIMARY KEY.
fn declared(info: &RelInfo) -> Option<&Kept> {
    info.uniques.primary().filter(|kept| kept.oid == pg_sys::InvalidOid)
}

/// At some rows of a table.
fn look<'a>(table: &'static Table, rows: impl Iterator<Item = &'a RecordRef> + Clone) {
    // `mixedcc.key_stats` shows the counts with the columns of the PRIMARY KEY.
    let Some(info) = rel::by_table_id(table.id).filter(|i| declared(i).is_some()) else { return };
    // SAFETY: the transaction has used the table and holds its lock (INV-HELD), unless it has
    // dropped it: null then. Closed again, by an ERROR's clean-up if it comes to that.
    unsafe {
        let rel = pg_sys::RelationIdGetRelation(info.oid);
        if rel.is_null() {
            return;
        }
        // Not if it has got another storage, or row type, since.
        let known = if rel::is_ours(rel) { rel::known(rel).filter(|i| std::ptr::eq(i.table, table)) } else { None };
        let codec = known.and_then(declared).and_then(|k| k.codec());
        if let Some(common) = codec.and_then(|c| common(rel, c, rows.clone())) {
            let mut parts = rows.map(|r| table.partition_no(r.rec));
            let first = parts.next();
            table.together.note(parts.any(|p| Some(p) != first), &common);
        }
        pg_sys::RelationClose(rel);
    }
}

/// For each column of the key the hash of the value that all rows have; `None` if there are not two
/// rows.
///
/// # Safety
/// Rows of the relation, which is open, under the transaction's pin; the codec is that of its
/// primary key.
unsafe fn common<'a>(
    rel: pg_sys::Relation,
    codec: &Codec,
    rows: impl Iterator<Item = &'a RecordRef>,
) -> Option<Vec<Option<u64>>> {
    let columns = &codec.attnums[..codec.attnums.len().min(COLUMNS)];
    let (mut common, mut first, mut several, mut bytes) = (Vec::new(), None, false, Vec::new());
    for r in rows {
        // SAFETY: the head of a record is reached under the transaction's pin (INV-RETIRE):
        // contract of this function.
        let version = NonNull::new(r.rec.head()).filter(|v| unsafe { !v.as_ref().is_tombstone() });
        let Some(version) = version else { continue };
        several |= *first.get_or_insert(r.no) != r.no;
        // SAFETY: `rel` is open (contract of this function), and the version is reached under the
        // transaction's pin (INV-RETIRE).
        let mut t = unsafe { tuple::as_tuple(version.as_ptr(), Tid::Record(0), (*rel).rd_id) };
        for (i, attnum) in columns.iter().enumerate() {
            bytes.clear();
            // SAFETY: the columns of a primary key exist in the row type of `rel`, which is open;
            // `codec` is that of this key (contract of this function).
            unsafe {
                let (value, null) = tuple::column(&mut t, (*rel).rd_att, *attnum as usize - 1);
                if !null {
                    codec.put(i, value, &mut bytes);
                }
            }
            let hash = hash(&bytes);
            match common.get_mut(i) {
                None => common.push(Some(hash)),
                Some(c) if *c != Some(hash) => *c = None,
                Some(_) => {}
            }
        }
    }
    several.then_some(common)
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ *b as u64).wrapping_mul(0x0100_0000_01b3))
}
