//! A round: all that is dirty goes into images.
//!
//! Within a batch the order is: clear the bits of some records, look at the records, put their
//! entries on fresh pages, insert the images, and only then move the homes and free the old blocks.
//! An ERROR before that sets the bits and the flag again.

use super::hold;
use super::pace::Pace;
use crate::durable::images::{Batch, Full};
use crate::pg::faults::{self, Fault};
use crate::pg::{buffers, compat, stored, wal};
use crate::state::{shmem, standby, stop};
use mixedcc_engine::csn::{Csn, SlotId};
use mixedcc_engine::durable::merge::{Fork, Live};
use mixedcc_engine::durable::report::{Activity, Made, Written};
use mixedcc_engine::durable::rules::Rules;
use mixedcc_engine::durable::space::Space;
use mixedcc_engine::durable::table::{Busy, Counts, Found, Logged, Look};
use mixedcc_engine::durable::wal::{ImageKind, Op, Round, RoundKind};
use mixedcc_engine::durable::window::{Place, Taken};
use mixedcc_engine::durable::{Birth, Durable, Entry, Lsn, Meta, Page, PAGE};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::{Engine, Table};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::HashMap;
use std::ops::Range;

/// What the companion knows of the blocks of tables, by the tables' ids. Found from the homes of
/// records at its first round of a table.
#[derive(Default)]
pub struct Spaces(HashMap<u64, Space>);

impl Spaces {
    /// An error may have left them wrong.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    fn of(&mut self, table: &'static Table, durable: &'static Durable, busy: Busy) -> Result<&mut Space, Gone> {
        Ok(match self.0.entry(table.id) {
            Occupied(known) => known.into_mut(),
            Vacant(new) => new.insert(space_of(table, durable, busy)?),
        })
    }
}

/// The table is dropped: no page of it is written any more.
pub(super) struct Gone;

/// Makes a round for this redo pointer, and says what it has written. `of_some`: of the tables only
/// that processes want imaged.
pub fn make(e: &Engine, spaces: &mut Spaces, of: (Lsn, RoundKind, bool), pace: &mut Pace) -> Made {
    let (redo, kind, of_some) = of;
    stop::reach("round-begins");
    let report = &e.shared.rounds.report;
    let (begun, before, mut rows) = (compat::now(), wal::usage(), 0);
    report.begin(Activity::Imaging, begun);
    let slot = shmem::my_slot();
    // INV-TABLE: tables that are found under the pin stay.
    e.pin(slot);
    let keys: Vec<[u32; 4]> = shmem::all(None).iter().filter(|t| has_images(t)).map(|t| t.key).collect();
    let flagged = |key: &[u32; 4]| shmem::find(*key).and_then(Table::durable).filter(|d| d.is_flagged());
    pace.expect(keys.iter().filter_map(flagged).map(Durable::dirty_records).sum());
    let mut known = Vec::with_capacity(keys.len());
    for key in keys {
        // The pin of a round lasts for one table, or to a rest.
        e.unpin(slot);
        e.pin(slot);
        if let Some(table) = shmem::find(key) {
            known.push(table.id);
            let wanted = table.durable().is_some_and(Durable::take_wanted);
            if of_some && !wanted {
                continue;
            }
            rows += image_table(e, spaces, table, redo, pace);
        }
    }
    e.unpin(slot);
    spaces.0.retain(|id, _| known.contains(id));
    let token = e.last_token();
    // SAFETY: reads the clock and raises nothing.
    let time = unsafe { pg_sys::GetCurrentTimestamp() };
    let data = Round { redo, clock: e.now(), token, time, kind }.encode();
    // SAFETY: in a critical section, and no other record is begun.
    wal::critical(|| unsafe { wal::insert(Op::Round, wal::UNIMPORTANT, &[&data]) });
    stop::reach("round-logged");
    standby::tell_again();
    buffers::close_all();
    let after = wal::usage();
    let written = Written { rows, pages: after.images - before.images, bytes: after.bytes - before.bytes };
    Made { kind: kind as u64, redo, begun, ended: compat::now(), written }
}

/// Is the table one whose rows this server brings into images? Not if it was loaded as a standby
/// is: its next user loads it anew, from pages that the replay has written.
fn has_images(table: &Table) -> bool {
    table.durable().is_some_and(|d| d.live.era.load(Ordering::SeqCst) == 0)
}

/// The flag of a table, which is set again unless its round is complete.
struct Flag(Option<&'static Durable>);

impl Drop for Flag {
    fn drop(&mut self) {
        if let Some(durable) = self.0 {
            durable.set_flag();
        }
    }
}

/// The answer is the number of rows.
fn image_table(e: &Engine, spaces: &mut Spaces, table: &'static Table, redo: Lsn, pace: &mut Pace) -> u64 {
    let Some(durable) = table.durable() else { return 0 };
    // INV-NEW: the flag of a table that is new or dropped stays.
    let Some(busy) = durable.words().begin_batch().filter(|_| durable.is_flagged()) else { return 0 };
    stop::reach("round-table");
    let Ok(space) = spaces.of(table, durable, busy) else { return 0 };
    let mut flag = Flag(durable.take_flag().then_some(durable));
    let mut work = Work {
        e,
        look: Look { e, table, durable, clock: e.now() },
        durable,
        space,
        batch: Batch::new(table.key, ImageKind::Round),
        key: table.key,
        busy: None,
        taken: Vec::new(),
        homes: Vec::new(),
        left: Vec::new(),
        found: Vec::new(),
        bytes: Vec::new(),
        imaged: 0,
        pace,
    };
    if work.image_all(redo).is_ok() {
        flag.0 = None;
    }
    work.imaged
}

/// The work of a round on one table.
pub(super) struct Work<'a, 'p> {
    pub(super) e: &'a Engine,
    pub(super) look: Look<'a>,
    pub(super) durable: &'static Durable,
    pub(super) space: &'a mut Space,
    pub(super) batch: Batch,
    pub(super) key: [u32; 4],
    /// From the first entry of a batch to the end of its writing.
    busy: Option<Busy<'static>>,
    /// Words of bits all of whose records are looked at.
    taken: Vec<Taken<'static>>,
    /// The new homes of records in the batch, and the blocks that their old images leave.
    pub(super) homes: Vec<(u64, Place)>,
    pub(super) left: Vec<u32>,
    found: Vec<Found>,
    bytes: Vec<u8>,
    imaged: u64,
    pub(super) pace: &'a mut Pace<'p>,
}

impl Work<'_, '_> {
    fn image_all(&mut self, redo: Lsn) -> Result<(), Gone> {
        for chunk in self.durable.chunks() {
            chunk.dirty.take(|taken| {
                stop::reach("bit-cleared");
                self.rest()?;
                self.look.clock = self.e.now();
                for record in taken.records() {
                    self.image_record(chunk.first + record as u64)?;
                }
                self.taken.push(taken);
                Ok(())
            })?;
        }
        self.write()?;
        self.clean()?;
        self.write_meta(redo)
    }

    fn image_record(&mut self, n: u64) -> Result<(), Gone> {
        let e = self.e;
        // INV-LOOK: the round is pinned, and the clock was read after that.
        self.look.entries_of(n, |slot, csn| logged(e, slot, csn), &mut self.found);
        if self.found.is_empty() {
            return Ok(());
        }
        let place = loop {
            match self.add(n) {
                Ok(place) => break place,
                Err(Some(Full)) => self.write()?,
                Err(None) => return Err(Gone),
            }
        };
        self.leave_home_of(n);
        self.homes.push((n, place));
        self.imaged += 1;
        self.pace.count();
        Ok(())
    }

    /// Rests, if it is time: outside of a batch, so that a process that drops the table does not
    /// wait. No version is in use, so the pin need not last; from the next batch on the table stays
    /// as long as the batch lasts (INV-BUSY), and then by the new pin.
    pub(super) fn rest(&mut self) -> Result<(), Gone> {
        if !self.pace.is_due() {
            return Ok(());
        }
        self.write()?;
        self.pace.rest();
        self.be_busy()?;
        let slot = shmem::my_slot();
        self.e.unpin(slot);
        self.e.pin(slot);
        Ok(())
    }

    /// Puts the entries that the look has found into the batch. `None`: the table is dropped.
    fn add(&mut self, n: u64) -> Result<Place, Option<Full>> {
        if self.be_busy().is_err() {
            return Err(None);
        }
        self.bytes.clear();
        let mut parts: Vec<Range<usize>> = Vec::with_capacity(self.found.len());
        for found in &self.found {
            let begin = self.bytes.len();
            if found.version.is_some() {
                // SAFETY: the pin of the round lasts.
                stored::pack(unsafe { found.payload() }, &mut self.bytes);
            }
            parts.push(begin..self.bytes.len());
        }
        let entry = |(found, part): (&Found, &Range<usize>)| Entry {
            csn: found.csn,
            kind: found.kind,
            record: n as u32,
            pending: found.pending,
            fragment: None,
            payload: &self.bytes[part.clone()],
        };
        let entries: Vec<Entry> = self.found.iter().zip(&parts).map(entry).collect();
        let (space, key) = (&mut *self.space, self.key);
        self.batch.add(&entries, &mut || fresh_block(space, key)).map_err(Some)
    }

    /// Notes the blocks that a record's old image leaves when the new one is in WAL.
    fn leave_home_of(&mut self, n: u64) {
        let Some(old) = self.durable.home(n).and_then(|home| home.get()) else { return };
        if old.long {
            chain(self.key, old.block, |block| self.left.push(block));
        } else {
            self.left.push(old.block);
        }
    }

    /// A batch is under way, until it is written.
    pub(super) fn be_busy(&mut self) -> Result<(), Gone> {
        if self.busy.is_none() {
            self.busy = Some(self.durable.words().begin_batch().ok_or(Gone)?);
        }
        Ok(())
    }

    /// Writes the batch, and publishes where its records are.
    pub(super) fn write(&mut self) -> Result<(), Gone> {
        if !self.batch.is_empty() {
            stop::reach("batch-full");
            self.batch.write();
            stop::reach("batch-inserted");
        }
        // INV-IMAGED: the images are in WAL.
        for (block, live) in self.batch.take_filled() {
            self.space.fill(block, live);
        }
        for (n, place) in self.homes.drain(..) {
            self.durable.set_home(n, Some(place));
        }
        self.left.drain(..).for_each(|block| self.space.leave(block));
        self.taken.drain(..).for_each(Taken::imaged);
        self.busy = None;
        stop::reach("homes-moved");
        hold::tell_wal_writer();
        pgrx::check_for_interrupts!();
        Ok(())
    }

    /// The meta page, when all images of the table are in WAL.
    fn write_meta(&mut self, redo: Lsn) -> Result<(), Gone> {
        let _busy = self.durable.words().begin_batch().ok_or(Gone)?;
        if buffers::blocks(self.key, Fork::Main) == 0 {
            buffers::extend(self.key, Fork::Main);
        }
        let meta = Meta {
            horizon: self.durable.raise_horizon(redo),
            round: redo,
            clock: self.e.now(),
            token: self.e.last_token(),
            live_bytes: self.space.live_bytes(),
            rows: self.space.live_entries(),
            high: self.durable.high(),
            blocks: buffers::blocks(self.key, Fork::Main),
            rules: Rules::of(self.look.table.map()),
            birth: if faults::on(Fault::BirthLost) { Birth::default() } else { self.durable.birth() },
        };
        if self.batch.put_meta(&meta).is_ok() {
            self.batch.write();
        }
        stop::reach("round-meta");
        let before = self.durable.counts();
        self.durable.set_counts(Counts {
            live_bytes: meta.live_bytes,
            rows: meta.rows,
            blocks: meta.blocks as u64,
            imaged: before.imaged + self.imaged,
        });
        Ok(())
    }
}

/// A block that no image needs.
pub(super) fn fresh_block(space: &mut Space, key: [u32; 4]) -> u32 {
    if let Some(block) = space.take() {
        return block;
    }
    loop {
        let block = buffers::extend(key, Fork::Main);
        if block > 0 {
            if space.extend(block).is_err() {
                error!("mixedcc companion: out of memory");
            }
            return block;
        }
    }
}

/// Calls `f` with each block of a long row. False: one is damaged, and what follows is not known.
fn chain(key: [u32; 4], first: u32, mut f: impl FnMut(u32)) -> bool {
    let mut page = Box::new([0; PAGE]);
    let mut block = first;
    while block != 0 {
        f(block);
        buffers::read(key, Fork::Main, block, true, None, &mut page);
        block = match Page::read(&page, block) {
            Ok(Some(page)) => page.special.b as u32,
            _ => {
                warn_of_damage(key, block);
                return false;
            }
        };
    }
    true
}

/// A block is damaged on disk. No checkpoint waits for that: all rows are in memory.
pub(super) fn warn_of_damage(key: [u32; 4], block: u32) {
    warning!("mixedcc: block {block} of file {} is damaged; its rows are in memory, and are written again", key[2]);
}

/// Records whose homes are looked at in one batch, and blocks of long rows that are read. A drop of
/// the table waits for the batch.
const LOOKED_AT: usize = 4096;

/// What the homes of a table's records say of the blocks of its file. `busy`: a batch, in which it
/// begins.
fn space_of(table: &'static Table, durable: &'static Durable, busy: Busy) -> Result<Space, Gone> {
    let mut live = vec![Live::default(); buffers::blocks(table.key, Fork::Main) as usize];
    let mut add = |block: u32, bytes: usize| {
        if let Some(live) = live.get_mut(block as usize) {
            live.entries += 1;
            live.bytes = live.bytes.saturating_add(bytes as u16);
        }
    };
    let mut batch = Some(busy);
    let mut next = 0;
    while next < table.len() {
        let _busy = match batch.take() {
            Some(busy) => busy,
            None => {
                pgrx::check_for_interrupts!();
                durable.words().begin_batch().ok_or(Gone)?
            }
        };
        stop::reach("round-space");
        let mut looked = 0;
        while looked < LOOKED_AT && next < table.len() {
            let n = next;
            (next, looked) = (next + 1, looked + 1);
            let Some(place) = durable.home(n).and_then(|home| home.get()) else { continue };
            if place.long {
                let read = |block| {
                    looked += 1;
                    add(block, mixedcc_engine::durable::page::BODY);
                };
                if !chain(table.key, place.block, read) {
                    durable.set_dirty(n);
                }
            } else {
                // SAFETY: INV-RETIRE: the round is pinned.
                let row = table.record(n).and_then(|r| unsafe { r.head().as_ref() });
                let row = row.filter(|v| !v.is_tombstone()).map_or(0, |v| stored::packed_len(v.len as usize));
                let payload = row.min(mixedcc_engine::durable::entry::PIECE);
                add(place.block, mixedcc_engine::durable::entry::HEADER + payload);
            }
        }
    }
    match Space::new(live) {
        Ok(space) => Ok(space),
        Err(_) => error!("mixedcc companion: out of memory"),
    }
}

/// What the commit log says of a slot's owner that is *committing*.
fn logged(e: &Engine, slot: SlotId, _csn: Csn) -> Logged {
    let xid = e.slots[slot as usize].xid.load(Ordering::SeqCst);
    if xid == 0 {
        return Logged::No;
    }
    let short = pg_sys::TransactionId::from(xid as u32);
    // SAFETY: the commit log has the xid: its transaction has not ended, or just now.
    unsafe {
        if pg_sys::TransactionIdDidCommit(short) {
            Logged::Committed
        } else if pg_sys::TransactionIdDidAbort(short) {
            Logged::Aborted
        } else {
            Logged::Open(xid)
        }
    }
}
