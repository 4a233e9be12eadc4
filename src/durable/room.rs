//! The memory that a table needs: is there room for it?

use super::absorb::each_page_of;
use super::files::Files;
use super::journal;
use crate::access::primary;
use crate::pg::buffers::{self, Ring};
use crate::pg::stored;
use crate::state::above::TooLarge;
use crate::state::shmem::{self, Absence};
use mixedcc_engine::durable::merge::{Fork, Merge, Merged};
use mixedcc_engine::durable::{Entry, Kind, Page, PAGE};
use mixedcc_engine::memory::memory_of;
use mixedcc_engine::record::{Record, INDEXES, VERSION_HEADER};
use pgrx::pg_sys;

/// The bytes of a row's entry in an index in memory, about.
pub const KEY: u64 = 48;
/// A table with short rows and one index in memory needs so many times the bytes of its files, at
/// most about. One with several needs less than that for each. Where so much is free, its rows are
/// not counted.
const SURE: u64 = 4;

/// The bytes of memory that are not in use.
pub fn free_bytes() -> u64 {
    shmem::engine().region.usage().free_page_bytes as u64
}

/// Are so many bytes free? Frees what no process needs, if need be.
pub fn has_room(need: u64) -> bool {
    if free_bytes() < need {
        shmem::engine().reclaim(shmem::my_slot()); // dropped tables
    }
    free_bytes() >= need
}

/// How many indexes in memory a table will have, for what it needs; 1 if it has none.
///
/// # Safety
/// An open relation of ours.
pub unsafe fn indexes_of(rel: pg_sys::Relation) -> u64 {
    // SAFETY: the contract of this function.
    unsafe { primary::specs(rel) }.len().max(1) as u64
}

/// The bytes of memory that a row takes, by what a file has of it. Of a row in pieces the first one
/// counts for all.
pub fn row_bytes(entry: &Entry) -> u64 {
    match entry.fragment {
        Some(piece) if piece.index() > 0 => 0,
        piece => {
            let packed = piece.map_or(entry.payload.len(), |piece| piece.total as usize);
            memory_of(VERSION_HEADER + stored::payload_len(packed)) as u64
        }
    }
}

/// The bytes of memory that a table needs, about: one with so many numbers and so many indexes,
/// whose rows take so many bytes. `more`: what it needs beside them.
pub fn need_for(merged: &Merged, (numbers, indexes): (u64, u64), bytes: u64, more: u64) -> u64 {
    let rows = merged.records().filter(|(_, winner)| !winner.tomb).count() as u64;
    let fixed = numbers * (size_of::<Record>() as u64 + 5) + (1 << 16) + more;
    (fixed + rows * KEY * indexes) / 8 * 9 + bytes
}

/// A number that changes when the primary writes into a storage, when its companion makes images of
/// it, and with the number of indexes. It is read before the files are.
fn state_of(files: &Files, indexes: u64) -> u64 {
    let written = shmem::engine().shared.standby.appended_to(files.key.into()) + files.meta().horizon;
    written.wrapping_mul(INDEXES as u64 + 1) + indexes
}

/// On a standby, before a load: is there room for the table, which will have so many indexes? An
/// error costs others no memory. It is remembered until the table's files or indexes change.
pub fn make_room(files: &Files, indexes: u64) -> Result<(), TooLarge> {
    let state = state_of(files, indexes);
    if let Some((Absence::Standby, need)) = shmem::absent(files.key) {
        if shmem::absent_since(files.key) == Some(state) && !has_room(need) {
            return Err(TooLarge { need });
        }
        shmem::unregister(files.key);
    }
    let blocks = buffers::blocks(files.key, Fork::Main) + journal::blocks(files.key);
    if free_bytes() >= SURE * indexes * u64::from(blocks) * PAGE as u64 {
        return Ok(());
    }
    let need = count(files, indexes);
    if has_room(need) {
        return Ok(());
    }
    note_absent(files, need, state);
    Err(TooLarge { need })
}

/// A load on a standby has found no memory, and has freed what it had taken. What is free now is
/// not enough: other processes may have taken the rest meanwhile.
pub fn too_large(files: &Files, indexes: u64) -> TooLarge {
    let free = free_bytes();
    let need = count(files, indexes).max(free + 1);
    note_absent(files, need, state_of(files, indexes));
    TooLarge { need }
}

fn note_absent(files: &Files, need: u64, state: u64) {
    shmem::register_absent_since(files.key, Absence::Standby, need, state);
}

/// The bytes of memory that a load on a standby needs, about. Replay changes the files meanwhile.
/// The load reads images first, and then what the journal says of their rows: it needs what images
/// have, or what there is in the end.
fn count(files: &Files, indexes: u64) -> u64 {
    let meta = files.meta();
    let [mut imaged, mut all] = [(); 2].map(|()| Counted { merge: Merge::new(&meta), rows: 0, bytes: 0 });
    let (mut buffer, ring) = (Box::new([0; PAGE]), Ring::to_read());
    for block in 1..buffers::blocks(files.key, Fork::Main) {
        pgrx::check_for_interrupts!();
        buffers::read(files.key, Fork::Main, block, false, Some(&ring), &mut buffer);
        if let Some(page) = files.page(Fork::Main, block, &buffer) {
            imaged.add(files, &page);
            all.add(files, &page);
        }
    }
    each_page_of(files, 0..journal::blocks(files.key), meta.horizon, |page| {
        pgrx::check_for_interrupts!();
        all.add(files, page);
    });
    imaged.need(indexes).max(all.need(indexes))
}

/// Pages of a table.
struct Counted {
    merge: Merge,
    /// Rows, also those that newer entries have replaced, and what they would take.
    rows: u64,
    bytes: u64,
}

impl Counted {
    fn add(&mut self, files: &Files, page: &Page) {
        for entry in page.entries().map(|(_, entry)| entry).filter(|entry| entry.kind == Kind::Row) {
            self.bytes += row_bytes(&entry);
            self.rows += u64::from(entry.fragment.is_none_or(|piece| piece.index() == 0));
        }
        self.merge.add(page, &mut |xid| files.outcome(xid)).unwrap_or_else(|_| files.refuse_memory());
    }

    fn need(self, indexes: u64) -> u64 {
        let (merged, rows) = (self.merge.finish(), self.rows.max(1));
        let there = merged.records().filter(|(_, winner)| !winner.tomb).count() as u64;
        let bytes = u128::from(self.bytes) * u128::from(there.min(rows)) / u128::from(rows);
        let numbers = merged.records().map(|(record, _)| record + 1).max().unwrap_or(0).max(merged.high);
        need_for(&merged, (numbers.into(), indexes), bytes as u64, 0)
    }
}
