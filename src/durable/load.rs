//! A table's rows come from its files into memory, at its first use.
//!
//! The caller holds the lock of INV-ATTACH: no other process uses the table, or writes its files.
//! The journal is absorbed first. Then the main fork is read twice: the first pass finds the newest
//! entry of each record, the second one puts the rows into memory.
//!
//! **INV-LOADED**: The clock moves beyond all CSNs of the files before the table has users. So each
//! later writer has a larger CSN than every entry of the record on disk (D-MAX). It moves beyond
//! those of a page before the load writes the page, also if the load fails later: standbys compare
//! the CSNs of pages that were written in this life with those of its commits.

use super::absorb::{absorb, chained_row, whole_row, Absorbed};
use super::files::Files;
use super::held::HeldRows;
use super::images::Batch;
use super::room::{self, free_bytes, has_room, KEY};
use crate::access::primary;
use crate::keys::partkey::PartKey;
use crate::pg::buffers::{self, Ring};
use crate::pg::compat;
use crate::pg::faults::{self, Fault};
use crate::pg::{stored, wal};
use crate::state::above::TooLarge;
use crate::state::errors::ok;
use crate::state::making::{self, Making};
use crate::state::shmem::{self, Absence};
use crate::state::xact::recovered::{self, Came};
use crate::state::{loads, rel, stop, xact};
use mixedcc_engine::csn::SlotId;
use mixedcc_engine::durable::merge::{Fork, Merge, Merged, Winning};
use mixedcc_engine::durable::progress::Phase;
use mixedcc_engine::durable::resolve::{is_as_before, is_due, resolve};
use mixedcc_engine::durable::table::Counts;
use mixedcc_engine::durable::wal::ImageKind;
use mixedcc_engine::durable::window::Place;
use mixedcc_engine::durable::{Durable, Entry, Kind, Malformed, Page, PageKind, PAGE};
use mixedcc_engine::memory::OutOfMemory;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::record::VERSION_HEADER;
use mixedcc_engine::{Engine, Error, Table};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::collections::HashMap;

/// Loads the rows of a permanent relation, and registers its table. `indexed`: index entries may
/// name numbers without a row. Raises an error if its files are damaged.
///
/// # Safety
/// An open permanent relation of ours, whose table is not known. The lock of INV-ATTACH is held.
pub unsafe fn load(rel: pg_sys::Relation, indexed: bool) -> Result<&'static Table, TooLarge> {
    if compat::in_recovery() {
        // SAFETY: the contract of this function.
        return unsafe { super::live::load(rel) };
    }
    // SAFETY: `rel` is open (contract of this function).
    let files = unsafe { Files::of(rel) };
    match shmem::absent(files.key) {
        // Its journal was absorbed when that was found.
        Some((Absence::TooLarge, need)) if !has_room(need) => return Err(TooLarge { need }),
        // Of a standby's nothing was absorbed.
        Some((Absence::TooLarge | Absence::Standby, _)) => {
            shmem::unregister(files.key);
        }
        _ => {}
    }
    let mut nap_us = AGAIN_US.0;
    loop {
        // SAFETY: `rel` is open (contract of this function); a variable of this process.
        unsafe { loads::mine().begin(pg_sys::MyDatabaseId.to_u32(), (*rel).rd_id.to_u32(), compat::now()) };
        // SAFETY: `rel` is open (contract of this function).
        let mut load = Load::begin(rel, unsafe { Files::of(rel) });
        match load.run(indexed) {
            Ok(table) => return Ok(table),
            Err(Failed::TooLarge(too_large)) => {
                // With rows of transactions that have not ended, it may need less after that.
                if load.held.is_empty() {
                    shmem::register_absent(files.key, Absence::TooLarge, too_large.need);
                }
                return Err(too_large);
            }
            Err(Failed::Again) => {
                drop(load);
                pgrx::check_for_interrupts!();
                compat::nap(nap_us);
                nap_us = (2 * nap_us).min(AGAIN_US.1);
            }
        }
    }
}

/// A row takes so many times the bytes that it has in the file, at most about: above 32 kB it has
/// whole 64 kB.
const WIDE: u64 = 2;

/// Before a load begins anew: the first time, and at most, microseconds.
const AGAIN_US: (core::ffi::c_long, core::ffi::c_long) = (1000, 1_000_000);

/// Why a load has not come to its end.
enum Failed {
    /// There is no memory.
    TooLarge(TooLarge),
    /// A prepared transaction has ended meanwhile.
    Again,
}

/// A load under way.
struct Load {
    rel: pg_sys::Relation,
    files: Files,
    e: Engine,
    slot: SlotId,
    absorbed: Absorbed,
    table: Option<Making<&'static Table>>,
    held: HeldRows,
    /// The bytes of their rows in the files, at most.
    pending_bytes: u64,
    /// See [`room::indexes_of`].
    indexes: u64,
}

impl Drop for Load {
    fn drop(&mut self) {
        loads::mine().end();
    }
}

impl Load {
    fn begin(rel: pg_sys::Relation, files: Files) -> Load {
        xact::txn();
        making::see_to_exit();
        let absorbed = absorb(&files);
        let held = HeldRows::default();
        let (e, slot) = (shmem::engine(), shmem::my_slot());
        // SAFETY: the relation is open: contract of `load`.
        let indexes = unsafe { room::indexes_of(rel) };
        Load { rel, files, e, slot, absorbed, table: None, held, pending_bytes: 0, indexes }
    }

    fn run(&mut self, indexed: bool) -> Result<&'static Table, Failed> {
        loads::mine().enter(Phase::Newest, self.blocks());
        let merged = self.merge();
        self.held = HeldRows::of(&self.files, &merged);
        self.move_clock(&merged);
        loads::mine().enter(Phase::Memory, self.blocks());
        self.make_room(&merged).map_err(Failed::TooLarge)?;
        self.e.pin(self.slot);
        loads::mine().enter(Phase::Rows, self.blocks());
        let filled = self.fill(&merged, indexed);
        let made = filled.ok().and(self.table.as_ref());
        let came = made.map_or(Came::NoMemory, |table| self.register(**table));
        let table = match (came, self.table.take()) {
            (Came::In, Some(table)) => table.done(),
            (Came::Again, _) => return Err(Failed::Again),
            (_, table) => {
                // Its memory is freed first. What is free then was not enough: other processes may
                // have taken the rest meanwhile.
                drop(table);
                let free = free_bytes();
                return Err(Failed::TooLarge(TooLarge { need: self.need(&merged).max(free + 1) }));
            }
        };
        if self.absorbed.replayed {
            // So autovacuum comes for the entries that indexes may have of dead numbers.
            // SAFETY: the relation is open: contract of `load`.
            unsafe { compat::count_dead(self.rel, table.dead.load(Ordering::Relaxed)) };
        }
        stop::reach("load-registered");
        Ok(table)
    }

    /// INV-LOADED. The load has looked which transactions have ended, and has room or not.
    fn move_clock(&self, merged: &Merged) {
        self.e.advance_clock(merged.clock.max(self.absorbed.clock));
        if !faults::on(Fault::LoadKeepsClock) {
            // INV-BEFORE-LIFE: standbys count what has ended without a CSN at the next one.
            self.e.tick();
        }
        self.e.advance_tokens(merged.token.max(self.absorbed.token));
    }

    /// The table is complete: others find it from now on.
    fn register(&self, table: &'static Table) -> Came {
        let register = || shmem::register(table) == Some(true);
        // SAFETY: the relation is open: contract of `load`.
        let oid = unsafe { (*self.rel).rd_id };
        recovered::note(oid, table, !self.held.is_empty());
        if self.held.is_empty() {
            return if register() { Came::In } else { Came::NoMemory };
        }
        stop::reach("load-held");
        recovered::enter(oid, table, &self.held.held(), register)
    }

    fn blocks(&self) -> u64 {
        buffers::blocks(self.files.key, Fork::Main).into()
    }

    /// Calls `f` with each page of the main fork but the first. `again`: not for the first time.
    fn each_page(&self, again: bool, mut f: impl FnMut(u32, &Page)) {
        let ring = Ring::to_read();
        let mut bytes = Box::new([0; PAGE]);
        for block in 1..buffers::blocks(self.files.key, Fork::Main) {
            pgrx::check_for_interrupts!();
            stop::reach("load-block");
            if block % 64 == 0 {
                loads::mine().step(block.into());
            }
            buffers::read(self.files.key, Fork::Main, block, false, Some(&ring), &mut bytes);
            let page = if again { Page::read_again(&bytes, block) } else { Page::read(&bytes, block) };
            let page = page.unwrap_or_else(|why| self.files.refuse_block(Fork::Main, block, why));
            let Some(page) = page else { continue };
            if page.special.kind != PageKind::Image {
                self.files.refuse_block(Fork::Main, block, Malformed("a page of another kind"));
            }
            f(block, &page);
        }
    }

    /// The first pass: the newest entry of each record. Pages with pending entries are written
    /// again without them.
    fn merge(&mut self) -> Merged {
        let mut merge = Merge::new(&self.absorbed.meta);
        let (mut clock, mut resolved, mut pending_bytes) = (self.absorbed.clock, 0, 0);
        let mut batch = Batch::new(self.files.key, ImageKind::Resolve);
        let mut again = Box::new([0; PAGE]);
        // One that ends meanwhile stays open: all of its entries are taken alike.
        let mut known = HashMap::new();
        self.each_page(false, |block, page| {
            let mut log = |xid| *known.entry(xid).or_insert_with(|| self.files.outcome(xid));
            if is_due(page) {
                let open = page.entries().filter(|(_, entry)| entry.pending.is_some());
                pending_bytes += open.map(|(_, entry)| entry.payload.len() as u64).sum::<u64>();
            }
            let added = if is_due(page) && !is_as_before(page, &mut log) {
                clock = clock.max(page.special.csn_max);
                self.e.advance_clock(clock);
                resolved += 1;
                resolve(page, &mut again, wal::inserted(), &mut log);
                self.replace(&mut batch, block, &again);
                self.files.page(Fork::Main, block, &again).map_or(Ok(()), |page| merge.add(&page, &mut log))
            } else {
                merge.add(page, &mut log)
            };
            added.unwrap_or_else(|_| self.files.refuse_memory());
        });
        if resolved > 0 {
            // Before VACUUM gives the commit log up (D-XID).
            wal::flush(batch.write());
            batch.take_filled();
        }
        self.absorbed.clock = clock;
        self.pending_bytes = pending_bytes;
        let merged = merge.finish();
        if let Some((record, _)) = merged.damaged.first() {
            self.files.refuse(&format!("a part of row {record} is missing"));
        }
        merged
    }

    /// Puts a page into the batch in place of the one in that block.
    fn replace(&self, batch: &mut Batch, block: u32, page: &[u8; PAGE]) {
        if batch.replace(block, page).is_err() {
            batch.write();
            batch.take_filled();
            if batch.replace(block, page).is_err() {
                error!("mixedcc: a batch without pages is full");
            }
        }
    }

    /// The bytes of memory that the table needs, about. An error if they are not free. The pass
    /// that counts them is left out where there is room for all that the file could have.
    fn make_room(&self, merged: &Merged) -> Result<(), TooLarge> {
        if free_bytes() >= self.need_for(merged, WIDE * self.blocks() * PAGE as u64) {
            return Ok(());
        }
        let need = self.need(merged);
        has_room(need).then_some(()).ok_or(TooLarge { need })
    }

    /// The bytes of memory that the table needs, about.
    fn need(&self, merged: &Merged) -> u64 {
        let mut bytes = 0;
        self.each_page(true, |_, page| {
            let rows = merged.winners(page).filter(|w| w.entry.kind == Kind::Row);
            bytes += rows.map(|w| room::row_bytes(&w.entry)).sum::<u64>();
        });
        self.need_for(merged, bytes)
    }

    /// The same for rows that take so many bytes.
    fn need_for(&self, merged: &Merged, bytes: u64) -> u64 {
        let held = self.held.len() * (HELD + KEY * self.indexes) + self.pending_bytes;
        room::need_for(merged, (self.len(merged), self.indexes), bytes, held)
    }

    /// The numbers that records have, or may have in indexes.
    fn len(&self, merged: &Merged) -> u64 {
        u64::from(merged.high.max(self.absorbed.meta.high))
    }

    /// Makes the table, and the second pass.
    fn fill(&mut self, merged: &Merged, indexed: bool) -> Result<(), OutOfMemory> {
        // SAFETY: the relation is open: contract of `load`.
        let table = Making::table(unsafe { rel::make_anew(self.rel, self.files.key) }?);
        let table = **self.table.insert(table);
        self.absorbed.meta.rules.apply(&self.e, table.map());
        if !self.held.is_empty() {
            table.map().lock_rows(&self.e, compat::now());
        }
        let len = self.len(merged);
        table.begin_load(&self.e, self.slot, len)?;
        let durable = table.make_durable(&self.e, self.slot, false)?;
        // SAFETY: the relation is open: contract of `load`.
        let partkey = unsafe { PartKey::parse(self.rel, table.map()) };
        let held = std::mem::take(&mut self.held);
        let mut second =
            Second { load: self, table, durable, partkey, counts: Counts::default(), row: Vec::new(), held };
        let mut done = Ok(());
        self.each_page(true, |block, page| {
            if !second.held.is_empty() {
                page.entries().for_each(|(_, entry)| second.held.look(&entry));
            }
            for winning in merged.winners(page) {
                if done.is_ok() {
                    done = second.take(merged, block, &winning);
                }
            }
        });
        let Second { partkey, counts, held, .. } = second;
        self.held = held;
        done?;
        let made = self.table.as_ref().expect("it was made above");
        self.held.make(&self.files, (self.rel, &partkey, made))?;
        let counts = Counts { blocks: buffers::blocks(self.files.key, Fork::Main).into(), ..counts };
        durable.set_counts(counts);
        durable.raise_horizon(self.absorbed.meta.horizon);
        durable.set_birth(self.absorbed.meta.birth);
        durable.raise_high(len as u32);
        durable.take_flag(); // The files have it.
        durable.set_unloaded(self.e.shared.standby.unloaded());
        table.end_load(indexed);
        self.fill_indexes(table)?;
        let made = self.table.as_ref().expect("it was made above");
        // SAFETY: the relation is open: contract of `load`. No other process has the table.
        match unsafe { self.held.enter(self.rel, made) } {
            Err(Error::OutOfMemory) => return Err(OutOfMemory),
            x => ok(x),
        }
        self.held.write(&self.files, durable);
        Ok(())
    }

    fn fill_indexes(&self, table: &'static Table) -> Result<(), OutOfMemory> {
        loads::mine().enter(Phase::Primary, 0);
        stop::reach("load-primary");
        // SAFETY: the relation is open: contract of `load`. No other process has the table.
        match unsafe { primary::fill(self.rel, table, true, |no| self.held.is_insert(no)) } {
            Ok(None) => Ok(()),
            Ok(Some(twice)) => self.files.refuse(&twice.to_string()),
            Err(Error::OutOfMemory) => Err(OutOfMemory),
            Err(x) => ok(Err(x)),
        }
    }
}

/// Writes a row in pieces again. The same row was imaged twice, and no chain of blocks has all of
/// its pieces: the home of a record must be such a chain (INV-SPACE).
fn write_chain(files: &Files, entry: &Entry, row: &[u8]) -> Place {
    let mut batch = Batch::new(files.key, ImageKind::Resolve);
    let whole = Entry { fragment: None, pending: None, payload: row, ..*entry };
    let Ok(place) = batch.add(&[whole], &mut || buffers::extend(files.key, Fork::Main)) else {
        error!("mixedcc: a batch without pages is full");
    };
    batch.write();
    batch.take_filled();
    place
}

/// The bytes that a row of a prepared transaction needs beside its own and its keys: version, lock,
/// and what remembers the write, about.
const HELD: u64 = VERSION_HEADER as u64 + 14 + 256;

/// The second pass.
struct Second<'a> {
    load: &'a Load,
    table: &'static Table,
    durable: &'static Durable,
    partkey: PartKey,
    counts: Counts,
    /// A stored row in pieces.
    row: Vec<u8>,
    held: HeldRows,
}

impl Second<'_> {
    /// The newest entry of a record, or a piece of it, stands in this block.
    fn take(&mut self, merged: &Merged, block: u32, winning: &Winning) -> Result<(), OutOfMemory> {
        let entry = &winning.entry;
        self.counts.live_bytes += entry.size() as u64;
        match (entry.kind, entry.fragment) {
            (Kind::Row, None) => {
                self.held.note_below(entry.record, entry.csn, Some(entry.payload));
                self.put(entry.record, entry.payload)?;
                self.settle(entry, Place { block, long: false });
            }
            (Kind::Row, Some(fragment)) if fragment.index() == 0 => {
                let mut row = std::mem::take(&mut self.row);
                let files = &self.load.files;
                let mut home = Place { block, long: true };
                if !chained_row(files, entry, block, &mut row) {
                    let blocks = merged.blocks(entry.record).map(|place| place.block);
                    whole_row(files, Fork::Main, entry, blocks, &mut row);
                    if !faults::on(Fault::ChainForgotten) {
                        home = write_chain(files, entry, &row);
                    }
                }
                self.held.note_below(entry.record, entry.csn, Some(&row));
                let put = self.put(entry.record, &row);
                self.row = row;
                put?;
                self.settle(entry, home);
            }
            (Kind::Tomb, _) => {
                self.held.note_below(entry.record, entry.csn, None);
                self.settle(entry, Place { block, long: false });
            }
            _ => {}
        }
        Ok(())
    }

    /// The image of a record is there.
    fn settle(&mut self, entry: &Entry, home: Place) {
        self.durable.set_home(entry.record.into(), Some(home));
        self.counts.rows += 1;
    }

    /// Puts a stored row into memory.
    fn put(&self, record: u32, stored: &[u8]) -> Result<(), OutOfMemory> {
        let Some(len) = stored::unpacked_len(stored) else {
            self.load.files.refuse(&format!("row {record} is no row"));
        };
        let mut payload = vec![0u64; len.div_ceil(8)];
        let base = payload.as_mut_ptr().cast::<u8>();
        // SAFETY: `payload` has `len` bytes at least, and is used by this name alone.
        let bytes = unsafe { std::slice::from_raw_parts_mut(base, len) };
        stored::unpack(stored, bytes);
        let part = partition_of(self.load.rel, &self.partkey, bytes);
        let to = self.table.load_row_at(&self.load.e, self.load.slot, record.into(), part, len as u32)?;
        // SAFETY: `load_row_at` has allocated `len` bytes there, which no other process sees.
        unsafe { to.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), len) };
        Ok(())
    }
}

/// The partition of a row of an open relation. An ERROR of a function of the key's type unwinds.
pub(super) fn partition_of(rel: pg_sys::Relation, partkey: &PartKey, payload: &mut [u8]) -> u16 {
    if matches!(partkey, PartKey::Single | PartKey::Broken) {
        return 0;
    }
    // SAFETY: the relation is open: contract of `load`. The payload is a tuple of it, aligned to 8
    // bytes, and the arrays have an element for each column.
    unsafe {
        let desc = (*rel).rd_att;
        let natts = (*desc).natts as usize;
        let (mut values, mut nulls) = (vec![pg_sys::Datum::null(); natts], vec![true; natts]);
        let mut tuple = pg_sys::HeapTupleData {
            t_len: payload.len() as u32,
            t_data: payload.as_mut_ptr().cast(),
            ..Default::default()
        };
        pg_sys::heap_deform_tuple(&mut tuple, desc, values.as_mut_ptr(), nulls.as_mut_ptr());
        partkey.partition(values.as_ptr(), nulls.as_ptr())
    }
}
