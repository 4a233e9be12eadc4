//! Absorption: the journal of a storage, which redo has written, becomes image pages.
//!
//! The table is in no process's memory, and the caller holds the lock of INV-ATTACH. The image
//! pages are written at the end of the main fork, then the meta page with the new horizon. A crash
//! before the meta page leaves the journal as it was, one after it leaves journal pages below the
//! horizon.

use super::files::Files;
use super::images::{Batch, Full};
use super::journal;
use crate::pg::local::Local;
use crate::pg::{buffers, wal};
use crate::state::{shmem, stop};
use mixedcc_engine::csn::Csn;
use mixedcc_engine::durable::merge::{Fork, Merge, Merged};
use mixedcc_engine::durable::page::{journal_is_harmless, Page};
use mixedcc_engine::durable::resolve::decided;
use mixedcc_engine::durable::wal::ImageKind;
use mixedcc_engine::durable::{Entry, Lsn, Malformed, Meta, PageKind, PAGE};
use pgrx::prelude::*;
use std::collections::HashSet;

/// What an absorption leaves behind for the load.
pub struct Absorbed {
    /// The meta page.
    pub meta: Meta,
    /// At or above all CSNs of the journal.
    pub clock: Csn,
    /// At or above all its tokens.
    pub token: u64,
    /// Was there a journal? It comes from a recovery, after which there are no statistics.
    pub replayed: bool,
}

/// Absorbs the journal, if there is one.
pub fn absorb(files: &Files) -> Absorbed {
    let meta = files.meta();
    let blocks = journal::blocks(files.key);
    if blocks == 0 {
        return Absorbed { clock: meta.clock, token: meta.token, replayed: false, meta };
    }
    let mut merge = Merge::new(&meta);
    let mut end = 0;
    each_page(files, blocks, meta.horizon, |page| {
        pgrx::check_for_interrupts!();
        end = end.max(page.special.b);
        merge.add(page, &mut |xid| files.outcome(xid)).unwrap_or_else(|_| files.refuse_memory());
    });
    let merged = merge.finish();
    if let Some((record, _)) = merged.damaged.first() {
        files.refuse(&format!("its journal lacks a part of row {record}"));
    }
    let (clock, token) = (merged.clock, merged.token);
    // Before the first page is written (INV-LOADED).
    shmem::engine().advance_clock(clock);
    let meta = if end >= meta.horizon && end > 0 { copy(files, meta, &merged, blocks, end) } else { meta };
    // SAFETY: the caller holds the lock of INV-ATTACH, and after recovery no process writes here.
    unsafe { buffers::truncate(files.key, Fork::Journal, 0) };
    stop::reach("absorb-truncated");
    Absorbed { meta, clock, token, replayed: true }
}

/// Calls `f` with each page of the journal that counts.
fn each_page(files: &Files, blocks: u32, horizon: Lsn, f: impl FnMut(&Page)) {
    each_page_of(files, 0..blocks, horizon, f);
}

/// The same of some pages.
pub fn each_page_of(files: &Files, blocks: std::ops::Range<u32>, horizon: Lsn, mut f: impl FnMut(&Page)) {
    let mut bytes = Box::new([0; PAGE]);
    for block in blocks {
        journal::look(files.key, Fork::Journal, block, &mut bytes);
        match Page::read(&bytes, block) {
            Ok(None) => {}
            Ok(Some(page)) if page.special.kind != PageKind::Journal => {
                files.refuse_block(Fork::Journal, block, Malformed("a page of another kind"))
            }
            Ok(Some(page)) if page.special.b < horizon => {}
            Ok(Some(page)) => f(&page),
            Err(_) if journal_is_harmless(&bytes, block, None, horizon) => {}
            Err(why) => files.refuse_block(Fork::Journal, block, why),
        }
    }
}

/// A journal: its storage, its horizon, and the largest end of a record in it.
type Journal = ([u32; 4], Lsn, Lsn);

/// Of the process: a journal whose absorption an ERROR has ended, as on a full disk, and the block
/// in which its images begin.
static TRIED: Local<Option<(Journal, u32)>> = Local::new(None);

/// Copies the newest entries of the journal into images. `end`: the largest end of a record in it.
/// No cancel ends it: a further try by another process would write the same images again, behind
/// those. One by this process writes them into the same blocks: no other process has absorbed the
/// journal meanwhile, so none of them counts.
fn copy(files: &Files, meta: Meta, merged: &Merged, blocks: u32, end: Lsn) -> Meta {
    let key = files.key;
    if buffers::blocks(key, Fork::Main) == 0 {
        buffers::extend(key, Fork::Main); // the meta page's
    }
    let mut batch = Batch::new(key, ImageKind::Absorb);
    let (journal, there) = ((key, meta.horizon, end), buffers::blocks(key, Fork::Main));
    let mut next = TRIED.get().filter(|(tried, _)| *tried == journal).map_or(there, |(_, first)| first);
    TRIED.set(Some((journal, next)));
    let mut fresh = || {
        let block = if next < there { next } else { buffers::extend(key, Fork::Main) };
        next = block + 1;
        block
    };
    let mut row = Vec::new();
    let open: HashSet<(u32, u16)> = merged.open.iter().map(|open| (open.place.block, open.place.offset)).collect();
    each_page(files, blocks, meta.horizon, |page| {
        // Of transactions that are prepared: each piece as it is.
        let held = page.entries().filter(|(offset, _)| open.contains(&(page.special.block, *offset)));
        held.for_each(|(_, entry)| add(&mut batch, entry, &mut fresh));
        for winning in merged.winners(page) {
            let Some(entry) = decided(&winning.entry, &mut |xid| files.outcome(xid)) else { continue };
            match entry.fragment {
                Some(fragment) if fragment.index() > 0 => continue,
                Some(_) => {
                    let places = merged.blocks(entry.record).map(|place| place.block);
                    whole_row(files, Fork::Journal, &entry, places, &mut row);
                    add(&mut batch, Entry { fragment: None, payload: &row, ..entry }, &mut fresh);
                }
                None => add(&mut batch, entry, &mut fresh),
            }
        }
    });
    write(&mut batch);
    let meta = Meta {
        horizon: end + 1,
        clock: meta.clock.max(merged.clock),
        token: meta.token.max(merged.token),
        high: meta.high.max(merged.high),
        blocks: buffers::blocks(key, Fork::Main),
        ..meta
    };
    stop::reach("absorb-meta");
    if batch.put_meta(&meta).is_err() {
        error!("mixedcc: a batch without pages is full");
    }
    wal::flush(batch.write());
    TRIED.set(None);
    meta
}

fn add(batch: &mut Batch, entry: Entry, fresh: &mut dyn FnMut() -> u32) {
    while let Err(Full) = batch.add(&[entry], fresh) {
        write(batch);
    }
}

fn write(batch: &mut Batch) {
    stop::reach("absorb-page");
    batch.write();
    batch.take_filled();
}

/// Puts a row in pieces together. `entry` is one of its pieces; the pieces are in these blocks, in
/// the order of their numbers.
pub fn whole_row(files: &Files, fork: Fork, entry: &Entry, blocks: impl Iterator<Item = u32>, to: &mut Vec<u8>) {
    begin_row(files, entry, to);
    for block in blocks {
        if add_piece(files, fork, block, entry, to).is_none() {
            files.refuse_block(fork, block, Malformed("a piece of a row has gone"));
        }
    }
    if !is_whole(entry, to) {
        files.refuse(&format!("row {} is not whole", entry.record));
    }
}

/// The same from the chain of blocks that begins with `block`. False: not all pieces are in it.
pub fn chained_row(files: &Files, entry: &Entry, block: u32, to: &mut Vec<u8>) -> bool {
    begin_row(files, entry, to);
    let mut block = Some(block);
    while let Some(at) = block {
        block = add_piece(files, Fork::Main, at, entry, to);
        if is_whole(entry, to) {
            return true;
        }
        block = block.filter(|next| *next != 0);
    }
    false
}

fn begin_row(files: &Files, entry: &Entry, to: &mut Vec<u8>) {
    let total = entry.fragment.map_or(0, |f| f.total);
    to.clear();
    if to.try_reserve(total as usize).is_err() {
        files.refuse_memory();
    }
}

fn is_whole(entry: &Entry, row: &[u8]) -> bool {
    entry.fragment.is_some_and(|f| f.total as usize == row.len())
}

/// Appends the next piece of a row, if it is in this block, and says which block the page names.
fn add_piece(files: &Files, fork: Fork, block: u32, entry: &Entry, to: &mut Vec<u8>) -> Option<u32> {
    let mut bytes = Box::new([0; PAGE]);
    if block >= buffers::blocks(files.key, fork) {
        return None;
    }
    journal::look(files.key, fork, block, &mut bytes);
    let page = files.page(fork, block, &bytes)?;
    let (at, total) = (to.len() as u32, entry.fragment?.total);
    let (_, piece) = page.entries().find(|(_, e)| {
        let here = e.fragment.is_some_and(|f| f.at == at && f.total == total);
        here && e.record == entry.record && e.csn == entry.csn
    })?;
    to.extend_from_slice(piece.payload);
    Some(page.special.b as u32)
}
