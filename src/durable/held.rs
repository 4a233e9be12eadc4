//! Rows that transactions have written which were prepared before the start of the server, and are
//! not finished: what a load of their table makes of the pending entries (INV-AWAKE).
//!
//! **INV-GROUP-HOME**: A pending entry that counts stands in the home of its record, with the
//! decided entry below it: a block without live entries is used again. So a load writes the two
//! together to fresh blocks. It does so before the table has users, and before any round of it.

use super::files::Files;
use super::images::Batch;
use super::load::partition_of;
use crate::access::primary::{self, OwnKeys};
use crate::keys::partkey::PartKey;
use crate::pg::buffers;
use crate::pg::faults::{self, Fault};
use crate::pg::stored;
use crate::state::making::Making;
use crate::state::platform::PG;
use crate::state::shmem;
use crate::state::xact::recovered::Held;
use mixedcc_engine::csn::Csn;
use mixedcc_engine::durable::entry::NO_RECORD;
use mixedcc_engine::durable::merge::{Fork, Merged};
use mixedcc_engine::durable::wal::ImageKind;
use mixedcc_engine::durable::{Durable, Entry, Kind};
use mixedcc_engine::index::Filler;
use mixedcc_engine::memory::OutOfMemory;
use mixedcc_engine::record::{Keys, Successor, Version, INDEXES};
use mixedcc_engine::txn::Recovered;
use mixedcc_engine::{Engine, Error, Table};
use pgrx::pg_sys;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ptr::NonNull;

/// A stored row, which may come in pieces.
#[derive(Default)]
struct Stored {
    bytes: Vec<u8>,
    /// Which pieces are there.
    pieces: Vec<bool>,
}

/// A record with a pending entry.
struct Row {
    xid: u64,
    csn: Csn,
    /// `None`: no entry was seen yet.
    kind: Option<Kind>,
    row: Stored,
    /// The decided entry below it: the row, or nothing of a tombstone.
    below: Option<(Csn, Option<Vec<u8>>)>,
    /// The version, and whether it is linked: that of an insert.
    version: Option<(NonNull<Version>, bool)>,
}

/// All of a table.
#[derive(Default)]
pub(super) struct HeldRows(BTreeMap<u32, Row>);

impl HeldRows {
    /// What the merge has found.
    pub fn of(files: &Files, merged: &Merged) -> HeldRows {
        let mut all = BTreeMap::new();
        for open in merged.open.iter().filter(|open| open.record != NO_RECORD) {
            let new =
                || Row { xid: open.xid, csn: open.csn, kind: None, row: Stored::default(), below: None, version: None };
            let row = all.entry(open.record).or_insert_with(new);
            if (row.xid, row.csn) != (open.xid, open.csn) {
                files.refuse(&format!("row {} was written by two transactions that have not ended", open.record));
            }
        }
        HeldRows(all)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Was the row of the record inserted by one of the transactions?
    pub fn is_insert(&self, record: u64) -> bool {
        u32::try_from(record).is_ok_and(|n| self.0.get(&n).is_some_and(|row| matches!(row.version, Some((_, true)))))
    }

    /// An entry of a page: takes it, if it is one of theirs.
    pub fn look(&mut self, entry: &Entry) {
        let Some(row) = self.0.get_mut(&entry.record).filter(|_| entry.pending.is_some()) else { return };
        if entry.pending != Some(row.xid) || entry.csn != row.csn {
            return;
        }
        row.kind = Some(entry.kind);
        match entry.fragment {
            None => {
                row.row.bytes.clear();
                row.row.bytes.extend_from_slice(entry.payload);
            }
            Some(piece) => {
                row.row.bytes.resize(piece.total as usize, 0);
                row.row.pieces.resize(piece.pieces() as usize, false);
                row.row.bytes[piece.at as usize..][..entry.payload.len()].copy_from_slice(entry.payload);
                row.row.pieces[piece.index() as usize] = true;
            }
        }
    }

    /// The decided entry of a record, which is below a pending one.
    pub fn note_below(&mut self, record: u32, csn: Csn, stored: Option<&[u8]>) {
        if let Some(row) = self.0.get_mut(&record) {
            row.below = Some((csn, stored.map(<[u8]>::to_vec)));
        }
    }

    /// All entries were seen, and the decided rows are in memory: makes the versions. Those of
    /// inserts are put into their records.
    pub fn make(
        &mut self,
        files: &Files,
        of: (pg_sys::Relation, &PartKey, &Making<&'static Table>),
    ) -> Result<(), OutOfMemory> {
        let (rel, partkey, table) = of;
        let (e, slot) = (shmem::engine(), shmem::my_slot());
        for (record, row) in &mut self.0 {
            let whole = row.row.pieces.iter().all(|there| *there);
            if !whole || row.kind.is_none() {
                files.refuse(&format!("a part of row {record} is missing"));
            }
            if row.kind == Some(Kind::Tomb) {
                continue; // by `make_tombstones`
            }
            let mut words = unpacked(files, *record, &row.row.bytes);
            let len = stored::unpacked_len(&row.row.bytes).unwrap_or_default();
            // SAFETY: `words` has `len` bytes at least, and is used by this name alone.
            let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), len) };
            let part = partition_of(rel, partkey, bytes);
            let version = table.load_pending(&e, slot, part, len as u32, 0)?;
            table.note_version((*record).into(), version);
            // SAFETY: INV-VERSION: `len` bytes follow the header, which no other process sees.
            unsafe { Version::payload(version.as_ptr()).copy_from_nonoverlapping(bytes.as_ptr(), len) };
            let is_insert = !row.has_row_below();
            row.version = Some((version, is_insert));
            if is_insert {
                table.load_insert((*record).into(), part, version)?;
            }
        }
        Ok(())
    }

    /// The indexes in memory have the decided rows: adds the rows that were inserted, and makes the
    /// tombstones, which have the keys of their rows.
    ///
    /// # Safety
    /// An open relation of ours, and its table, which no other process can reach. The caller is
    /// pinned.
    pub unsafe fn enter(&mut self, rel: pg_sys::Relation, table: &Making<&'static Table>) -> Result<(), Error> {
        let e = shmem::engine();
        let codecs = primary::codecs_of(table);
        // SAFETY: `rel` is open, and each version is of it, with a row (contract of this function).
        let keys_of = |version: *const Version| unsafe { primary::keys_of(rel, &codecs, version) };
        let first = primary::first_number(table).unwrap_or(0);
        let inserted = |row: &Row| row.version.filter(|(_, is_insert)| *is_insert).map(|(version, _)| version);
        let inserts: BTreeMap<u32, OwnKeys> =
            self.0.iter().filter_map(|(record, row)| Some((*record, keys_of(inserted(row)?.as_ptr())))).collect();
        add_entries(**table, &inserts)?;
        let by = |record: &u32| self.0[record].xid;
        let inserters: HashSet<u64> = inserts.keys().map(by).collect();
        let came = inserts.iter().filter_map(|(record, keys)| Some(((by(record), keys.get(first)?), record)));
        let came: HashMap<(u64, &[u8]), &u32> = came.collect();
        for (record, row) in self.0.iter_mut().filter(|(_, row)| row.kind == Some(Kind::Tomb)) {
            let Some(head) = table.record((*record).into()).map(|r| r.head()).filter(|v| !v.is_null()) else {
                continue; // of no row
            };
            let keys = keys_of(head);
            // A delete, or an update of a key, whose new row has the same primary key or one that
            // the files do not tell.
            let to = match keys.get(first).and_then(|key| came.get(&(row.xid, key))) {
                Some(to) => u64::from(**to) + 1,
                None if inserters.contains(&row.xid) => u64::MAX,
                None => 0,
            };
            let version = tombstone(&e, table, to, &keys.keys())?;
            table.note_version((*record).into(), version);
            row.version = Some((version, false));
        }
        Ok(())
    }

    /// Writes the entries of each record together (INV-GROUP-HOME).
    pub fn write(&self, files: &Files, durable: &Durable) {
        let mut batch = Batch::new(files.key, ImageKind::Resolve);
        for (record, row) in &self.0 {
            let entry =
                |csn, kind, pending, payload| Entry { csn, kind, record: *record, pending, fragment: None, payload };
            let pending = entry(row.csn, row.kind.unwrap_or(Kind::Tomb), Some(row.xid), &row.row.bytes[..]);
            let below = match &row.below {
                Some((csn, Some(stored))) => entry(*csn, Kind::Row, None, &stored[..]),
                Some((csn, None)) => entry(*csn, Kind::Tomb, None, &[]),
                None => entry(row.csn - 1, Kind::Tomb, None, &[]),
            };
            let mut fresh = || buffers::extend(files.key, Fork::Main);
            let place = loop {
                match batch.add(&[pending, below], &mut fresh) {
                    Ok(place) => break place,
                    Err(_) => write(&mut batch),
                }
            };
            if !faults::on(Fault::PendingHomeless) {
                durable.set_home((*record).into(), Some(place));
            }
        }
        write(&mut batch);
    }

    /// What the engine gets of them, by their transactions.
    pub fn held(&self) -> Vec<Held> {
        let mut by_xid: BTreeMap<u64, Held> = BTreeMap::new();
        for (record, row) in &self.0 {
            let Some((version, _)) = row.version else { continue };
            let new = || Held { xid: row.xid, csn: row.csn, writes: Vec::new() };
            by_xid.entry(row.xid).or_insert_with(new).writes.push(Recovered { no: (*record).into(), version });
        }
        by_xid.into_values().collect()
    }
}

impl Row {
    fn has_row_below(&self) -> bool {
        matches!(self.below, Some((_, Some(_))))
    }
}

fn write(batch: &mut Batch) {
    batch.write();
    batch.take_filled();
}

/// The payload of a stored row, aligned to 8 bytes.
fn unpacked(files: &Files, record: u32, row: &[u8]) -> Vec<u64> {
    let Some(len) = stored::unpacked_len(row) else { files.refuse(&format!("row {record} is no row")) };
    let mut words = vec![0u64; len.div_ceil(8)];
    // SAFETY: `words` has `len` bytes at least, and is used by this name alone.
    stored::unpack(row, unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), len) });
    words
}

/// Adds the entries of rows that were inserted. Their transactions have checked them.
fn add_entries(table: &'static Table, inserts: &BTreeMap<u32, OwnKeys>) -> Result<(), Error> {
    let (e, slot) = (shmem::engine(), shmem::my_slot());
    for (nth, index) in table.uniques().take(if faults::on(Fault::OneKeyHeld) { 1 } else { INDEXES }) {
        let mut filler = Filler::new(index);
        for (record, key) in inserts.iter().filter_map(|(record, keys)| Some((*record, keys.get(nth)?))) {
            filler.add(&e, slot, &PG, record.into(), key, false)?;
        }
        filler.finish(&e, slot, &PG)?;
    }
    Ok(())
}

fn tombstone(e: &Engine, table: &Table, to: u64, keys: &Keys<'_>) -> Result<NonNull<Version>, OutOfMemory> {
    let (flags, len) = keys.tombstone();
    let len = u32::try_from(len).map_err(|_| OutOfMemory)?;
    let version = table.load_pending(e, shmem::my_slot(), 0, len, flags)?;
    // SAFETY: INV-VERSION: the payload is that large, and the version is not reachable yet.
    unsafe { keys.write(Successor { record: to }, Version::payload(version.as_ptr())) };
    Ok(version)
}
