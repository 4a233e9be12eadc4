//! Tables of a standby: their rows come from main fork and journal into memory, and follow replay.
//!
//! Nothing is written: the startup process owns the files. The caller holds the lock of INV-ATTACH,
//! so one process at a time puts rows into a table; others read it meanwhile.
//!
//! **INV-LIVE**: Of a table all entries of records that end at or below its cursor are in memory,
//! but for those that are not stable yet: the cursor stays before the first record of a page that
//! has one. A page that redo takes again is looked for: its entries are in images then, and the
//! horizon of the meta page is above the cursor. Then all files are read again.
//!
//! **INV-PIECES**: If a look at the files finds some pieces of a row and not all, the cursor stays
//! before the pages of those in the journal. So the next look finds all together. A commit of more
//! than one record may be replayed in part while files are read, and a row in pieces may be in two
//! of its records. Nothing may be missing of a commit that was stable before.
//!
//! An entry counts if it is stable, because then it is decided, or its transaction is prepared, and
//! open (INV-STILL-OPEN). A load takes the newest entry of each record, and is complete from the
//! largest CSN that it has met on. That is not below the CSN of the storage's birth: an older
//! snapshot would see one part of the commit that has made the storage (INV-BIRTH).
//!
//! If no page with rows was begun in this life of the primary, and the storage is older than that,
//! no commit of this life is in it: then it is complete from the begin. The pages themselves say
//! so. Their LSNs do not, as CREATE DATABASE may log all pages of a template as they are.
//!
//! An entry of an open transaction is passed over. If the journal has it, the cursor stays before
//! its page. If an image has it, the image has the older row, too, and the table remembers the
//! transaction: when that is open no more, all files are read again.
//!
//! **INV-WHOLE**: A snapshot shows all of a prepared transaction, or none of it, whichever tables
//! are in memory. Let *S'* be the last CSN that is shown of which it was open. A table passes it
//! over up to *S'*, or is not loaded. A table that is loaded after that serves no snapshot up to
//! *S'*. So it is with a table whose CSNs are of another life, which cannot be compared: it is
//! loaded when all transactions that have rows in it have ended. So is one with rows of a
//! transaction that is asleep (INV-BEFORE-LIFE).

use super::absorb::each_page_of;
use super::files::Files;
use super::journal;
use super::load::partition_of;
use super::room::{self, free_bytes};
use crate::access::primary::{self, OwnKeys};
use crate::keys::codec::Codec;
use crate::keys::partkey::PartKey;
use crate::pg::buffers::{self, Ring};
use crate::pg::compat;
use crate::pg::errors::complain_with_detail;
use crate::pg::faults::{self, Fault};
use crate::pg::owner::as_owner;
use crate::pg::stored;
use crate::state::above::TooLarge;
use crate::state::errors::ok;
use crate::state::making::{self, Making};
use crate::state::platform::PG;
use crate::state::{loads, rel, shmem, standby, stop, xact};
use mixedcc_engine::csn::{Csn, SlotId, Stamp};
use mixedcc_engine::durable::merge::{Fork, Outcome};
use mixedcc_engine::durable::progress::Phase;
use mixedcc_engine::durable::standby::{was_open, Live, Told};
use mixedcc_engine::durable::{Birth, Entry, Kind, Lsn, Malformed, Page, PageKind, Storage, PAGE};
use mixedcc_engine::memory::OutOfMemory;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::record::{Version, INDEXES, VERSION_HEADER};
use mixedcc_engine::table::apply::{Put, Replayed};
use mixedcc_engine::{Engine, Error, Table};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::collections::HashMap;

/// Loads the rows of a permanent relation of a standby, and registers its table.
///
/// # Safety
/// As for [`super::load::load`], in recovery.
pub unsafe fn load(rel: pg_sys::Relation) -> Result<&'static Table, TooLarge> {
    // The pin of the transaction would keep what goes.
    shmem::pinned(sweep);
    xact::txn();
    making::see_to_exit();
    // So there is an era.
    standby::shown();
    // SAFETY: `rel` is open (contract of this function); a variable of this process.
    unsafe { loads::mine().begin(pg_sys::MyDatabaseId.to_u32(), (*rel).rd_id.to_u32(), compat::now()) };
    let _ends = Ends;
    // SAFETY: `rel` is open (contract of this function).
    let (files, indexes) = unsafe { (Files::of(rel), room::indexes_of(rel)) };
    if !faults::on(Fault::LoadFillsMemory) {
        loads::mine().enter(Phase::Memory, buffers::blocks(files.key, Fork::Main).into());
        room::make_room(&files, indexes)?;
    }
    let free = free_bytes();
    // SAFETY: the contract of this function.
    let read = || unsafe { read(rel) };
    let again = |x| if room::has_room(free + 1) { read() } else { Err(x) };
    read().or_else(again).map_err(|_| room::too_large(&files, indexes))
}

/// Reads the files, and registers the table.
///
/// # Safety
/// As for [`load`].
unsafe fn read(rel: pg_sys::Relation) -> Result<&'static Table, OutOfMemory> {
    let era = shmem::engine().shared.standby.era();
    // SAFETY: the contract of this function.
    let mut source = unsafe { Source::new(rel, true) }?;
    let found = source.all()?;
    let low = source.settle(found, true)?;
    source.begin(low, era)?;
    if shmem::register(source.table) != Some(true) {
        return Err(OutOfMemory);
    }
    source.making.map(Making::done);
    Ok(source.table)
}

struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        loads::mine().end();
    }
}

/// Gives up the tables whose files are gone. Of another database each file is looked for only if
/// the first one is gone, as after DROP DATABASE.
fn sweep() {
    // SAFETY: a variable of this process.
    let own = unsafe { pg_sys::MyDatabaseId }.to_u32();
    let mut others = HashMap::new();
    for table in shmem::all(None) {
        let is_live = table.durable().is_some_and(|d| d.live.era.load(Ordering::SeqCst) != 0);
        let is_there = || buffers::exists(table.key, Fork::Main);
        let database = table.key[1];
        if !is_live || database != own && *others.entry(database).or_insert_with(is_there) || is_there() {
            continue;
        }
        if let Some(table) = shmem::unregister(table.key) {
            table.retire(&shmem::engine());
        }
    }
    for key in shmem::absent_on_standby().into_iter().filter(|key| !buffers::exists(*key, Fork::Main)) {
        shmem::unregister(key);
    }
}

/// Brings a table of a standby to `csn`, which is stable.
///
/// # Safety
/// An open relation, and its table. The lock of INV-ATTACH is held.
pub unsafe fn catch_up(rel: pg_sys::Relation, table: &'static Table, csn: Csn) {
    let Some(live) = table.durable().map(|d| &d.live) else { return };
    if live.upto.load(Ordering::SeqCst) >= csn {
        return;
    }
    #[cfg(feature = "faults")]
    faults::begin();
    // SAFETY: `rel` is open (contract of this function).
    if compat::storage_key(&unsafe { compat::storage_of(rel) }) != table.key {
        standby::refuse_old(); // It has another storage by now.
    }
    let e = shmem::engine();
    let (cursor, replayed) = (live.cursor.load(Ordering::SeqCst), compat::replayed());
    // All that is stable was replayed, and told here, before it became stable.
    let told = standby::shown_with();
    // Transactions of all sessions have replaced it: no VACUUM comes, and no coordinator.
    if !faults::on(Fault::AppliedPilesUp) {
        e.collect_all(&PG, shmem::my_slot());
    }
    if live.is_passed(&told) || e.shared.standby.appended_to(table.key.into()) > cursor {
        // The second look passes over the entries that are in memory already.
        let follow = || {
            // SAFETY: `rel` is open (contract of this function).
            let source = unsafe { Source::new(rel, false) };
            source.and_then(|mut source| source.follow(told.clone(), true))
        };
        // SAFETY: as above. INV-OWNER.
        let followed = unsafe { as_owner(rel, || rel::with_memory(follow)) };
        if followed.is_err() {
            refuse_memory();
        }
    } else {
        live.cursor.store(cursor.max(replayed), Ordering::SeqCst);
    }
    if !standby::is_known() {
        // What was applied may be of the next life of the primary.
        live.era.store(Live::GONE, Ordering::SeqCst);
        e.shared.standby.note_given_up();
        standby::refuse_old();
    }
    live.upto.store(told.csn.max(csn), Ordering::SeqCst);
}

fn refuse_memory() -> ! {
    ok(Err(Error::OutOfMemory))
}

/// So long a load waits for the end of a transaction, µs.
const AWAIT_US: u64 = 1_000_000;

/// What the table has is not stable, and stays so for a while.
#[cold]
fn refuse_yet() -> ! {
    complain_with_detail(
        PgSqlErrorCode::ERRCODE_OBJECT_IN_USE,
        "the rows of a mixedcc table cannot be loaded yet",
        "They are newer than what this standby may show. A transaction that is prepared on the primary, or a commit that waits for its standbys, holds that back.",
        "Finish the transactions of pg_prepared_xacts on the primary, and try again.",
    )
}

/// A row or a tombstone, as it was found.
struct Found {
    record: u32,
    csn: Csn,
    /// The commit log decides about it, and has no abort.
    xid: Option<u64>,
    /// The stored row. `None`: it is deleted.
    row: Option<Vec<u8>>,
    /// Where the first record of its page begins, if that is of the journal.
    at: Option<Lsn>,
}

/// Pieces of a row, by their numbers.
struct Pieces {
    xid: Option<u64>,
    /// Where the first record of the first of their pages in the journal begins.
    at: Option<Lsn>,
    /// Is one of them in an image?
    imaged: bool,
    there: Vec<Option<Vec<u8>>>,
}

/// A table, its files, and what this process has read of them.
struct Source {
    rel: pg_sys::Relation,
    files: Files,
    storage: Storage,
    e: Engine,
    slot: SlotId,
    table: &'static Table,
    /// The table, if it is being loaded.
    making: Option<Making<&'static Table>>,
    /// No other process can reach the table.
    alone: bool,
    partkey: PartKey,
    /// Of the indexes in memory, with their numbers.
    codecs: Vec<(usize, Codec)>,
    pieces: HashMap<(u32, Csn, u32), Pieces>,
    /// The largest CSN of all entries, and the largest position that pages with entries name.
    csn: Csn,
    lsn: Lsn,
    /// That of the storage.
    birth: Birth,
    /// Where the next look at the journal begins.
    cursor: Lsn,
    /// What was stable before the files were read.
    stable: Csn,
    /// Entries up to this CSN are in memory.
    from: Csn,
    /// What is stable.
    told: Told,
    /// The table is not complete below this CSN.
    low: Csn,
    /// Entries of the journal up to here are in images.
    horizon: Lsn,
    /// The last answer about the CSN at which a transaction counts. It may be another one when
    /// `told` is.
    counted: Option<(u64, Result<Csn, Csn>)>,
    /// Was there a later entry that the commit log may not have any more? An image has its decided
    /// copy.
    older: bool,
}

impl Source {
    /// # Safety
    /// An open permanent relation of ours, which stays open. If it is to be loaded, no process has
    /// its table.
    unsafe fn new(rel: pg_sys::Relation, loads: bool) -> Result<Source, OutOfMemory> {
        let (e, slot) = (shmem::engine(), shmem::my_slot());
        // SAFETY: `rel` is open (contract of this function).
        unsafe {
            let files = Files::of(rel);
            let (table, making) = match shmem::find(files.key).filter(|_| !loads) {
                Some(table) => (table, None),
                None => {
                    let making = Making::table(rel::make_anew(rel, files.key)?);
                    making.make_durable(&e, slot, false)?;
                    (*making, Some(making))
                }
            };
            let partkey = PartKey::parse(rel, table.map());
            let codecs = primary::codecs_of(table);
            let storage = files.key.into();
            e.pin(slot);
            let pieces = HashMap::new();
            let told = standby::shown_with();
            let from = if loads { 0 } else { table.durable().map_or(0, |d| d.live.upto.load(Ordering::SeqCst)) };
            Ok(Source {
                rel,
                files,
                storage,
                e,
                slot,
                table,
                making,
                alone: loads,
                partkey,
                codecs,
                pieces,
                csn: 0,
                lsn: 0,
                birth: Birth::default(),
                cursor: 0,
                stable: 0,
                from,
                told,
                low: 0,
                horizon: 0,
                counted: None,
                older: false,
            })
        }
    }

    fn live(&self) -> &'static Live {
        // `new` has made it, or the caller has found it there.
        &self.table.durable().expect("a permanent table").live
    }

    /// Takes the entries of a page. `f` gets those that are whole, or have become so.
    fn take(
        &mut self,
        page: &Page,
        f: &mut dyn FnMut(&mut Source, Found) -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        for (_, entry) in page.entries() {
            if !matches!(entry.kind, Kind::Row | Kind::Tomb) {
                continue;
            }
            let outcome = entry.pending.map_or(Outcome::Committed, |xid| self.files.outcome(xid));
            if matches!(outcome, Outcome::Aborted | Outcome::Older) {
                self.older = self.older || outcome == Outcome::Older && self.is_due(entry.csn, entry.pending);
                continue;
            }
            self.csn = self.csn.max(entry.csn);
            let at = Some(page.special.a).filter(|_| page.special.kind == PageKind::Journal);
            if let Some(found) = self.whole(&entry, at) {
                f(self, found)?;
            }
        }
        Ok(())
    }

    /// The row of an entry, if that or its other pieces give all of it.
    fn whole(&mut self, entry: &Entry, at: Option<Lsn>) -> Option<Found> {
        let (record, csn, xid) = (entry.record, entry.csn, entry.pending);
        let Some(piece) = entry.fragment else {
            let row = (entry.kind == Kind::Row).then(|| entry.payload.to_vec());
            return Some(Found { record, csn, xid, row, at });
        };
        let key = (record, csn, piece.total);
        let none = || Pieces { xid, at, imaged: false, there: vec![None; piece.pieces() as usize] };
        let pieces = self.pieces.entry(key).or_insert_with(none);
        if xid.is_none() {
            pieces.xid = None;
        }
        pieces.at = pieces.at.into_iter().chain(at).min();
        pieces.imaged |= at.is_none();
        pieces.there[piece.index() as usize] = Some(entry.payload.to_vec());
        if pieces.there.iter().any(Option::is_none) {
            return None;
        }
        let pieces = self.pieces.remove(&key)?;
        let row = pieces.there.into_iter().flatten().flatten().collect();
        Some(Found { record, csn, xid: pieces.xid, row: Some(row), at: pieces.at.filter(|_| !pieces.imaged) })
    }

    /// Reads a block of the main fork, and takes its entries.
    fn take_image(
        &mut self,
        block: u32,
        ring: &Ring,
        f: &mut dyn FnMut(&mut Source, Found) -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        let mut bytes = Box::new([0; PAGE]);
        if block >= buffers::blocks(self.files.key, Fork::Main) {
            return Ok(()); // The note is of another file.
        }
        buffers::read(self.files.key, Fork::Main, block, false, Some(ring), &mut bytes);
        if faults::on(Fault::CopiedIsNew) {
            self.lsn = self.lsn.max(lsn_of(&bytes));
        }
        let page = Page::read(&bytes, block).unwrap_or_else(|why| self.files.refuse_block(Fork::Main, block, why));
        match page {
            Some(page) if page.special.kind == PageKind::Image => {
                self.lsn = self.lsn.max(page.special.a);
                self.take(&page, f)
            }
            Some(page) if page.special.kind == PageKind::Meta && block == 0 => {
                self.birth = Birth::of(&page);
                Ok(())
            }
            Some(_) => self.files.refuse_block(Fork::Main, block, Malformed("a page of another kind")),
            None => Ok(()),
        }
    }

    /// Does an entry count? `None`: not yet. Else the CSN at which it does, if it is committed.
    fn counts(&mut self, found: &Found) -> Option<Option<Csn>> {
        let Some(xid) = found.xid else { return Some(Some(found.csn)) };
        let is_open = self.told.is_open(xid) && !faults::on(Fault::OpenCounts);
        if found.csn > self.told.csn || is_open {
            return None;
        }
        Some(self.is_committed(found).then(|| self.stamp(xid, found.csn)))
    }

    /// The CSN at which an entry of a transaction that is not open, and has committed, counts.
    fn stamp(&mut self, xid: u64, csn: Csn) -> Csn {
        let at = self.counted(xid);
        if faults::on(Fault::CountsAtPrepare) {
            return csn;
        }
        // Was it open, long ago? Then it counts at any CSN up to `lost`, and above `from`.
        let lost = at.err().filter(|lost| self.alone || *lost > self.from && csn <= *lost);
        let since = at.ok().filter(|_| self.alone);
        self.low = self.low.max(lost.or(since).unwrap_or(0));
        // Not below `csn`: entries of before it may come later. The CSN of one of an earlier life
        // may be above that from which it counts.
        at.unwrap_or(0).max(csn).max(self.from + 1)
    }

    /// Reads both forks. A load puts what is decided into memory. A table that has users gets what
    /// is stable, too: no snapshot that uses it is above `upto`, which grows at the end. What is
    /// returned is to be put in later, in the order of CSNs.
    fn all(&mut self) -> Result<Vec<Found>, OutOfMemory> {
        let mut later = Vec::new();
        let mut keep = |s: &mut Source, found: Found| {
            if s.is_known(&found) {
                return Ok(());
            }
            let is_due = s.alone || found.csn <= s.told.csn;
            match is_due.then(|| s.counts(&found)).flatten() {
                // One that was open counts at a later CSN, above others that may come after it.
                Some(Some(csn)) if s.alone || csn == found.csn => s.put_beyond(found, csn)?,
                Some(None) => {}
                _ => later.push(found),
            }
            Ok(())
        };
        let shared = &self.e.shared.standby;
        let (mut moved, ring) = (shared.moved(), Ring::to_read());
        let mut again = Vec::new();
        self.stable = self.told.csn;
        loads::mine().enter(Phase::Rows, buffers::blocks(self.files.key, Fork::Main).into());
        let mut block = 0;
        // A table without a meta page has no images.
        while block < buffers::blocks(self.files.key, Fork::Main) {
            pgrx::check_for_interrupts!();
            stop::reach("load-block");
            self.take_image(block, &ring, &mut keep)?;
            if block % 64 == 0 {
                loads::mine().step(block.into());
                self.note(&mut moved, &mut again);
            }
            block += 1;
        }
        self.cursor = compat::replayed();
        self.horizon = self.journal(0, &mut |s, page| s.take(page, &mut keep))?;
        stop::reach("load-journal");
        // INV-MOVED
        loop {
            self.note(&mut moved, &mut again);
            if again.is_empty() || faults::on(Fault::MovedForgotten) {
                return Ok(later);
            }
            again.sort_unstable();
            again.dedup();
            for block in std::mem::take(&mut again) {
                pgrx::check_for_interrupts!();
                self.take_image(block, &ring, &mut keep)?;
            }
        }
    }

    fn note(&self, moved: &mut mixedcc_engine::durable::standby::Moved, to: &mut Vec<u32>) {
        if !moved.look(&self.e.shared.standby, self.storage, to) {
            // Some are not known: all blocks are read again.
            to.extend(0..buffers::blocks(self.files.key, Fork::Main));
        }
    }

    /// Calls `f` with the pages of the journal that have entries behind `cursor`, in the order of
    /// WAL. Returns the horizon of the meta page of before.
    fn journal(
        &mut self,
        cursor: Lsn,
        f: &mut dyn FnMut(&mut Source, &Page) -> Result<(), OutOfMemory>,
    ) -> Result<Lsn, OutOfMemory> {
        let horizon = self.files.meta().horizon;
        let blocks = journal::blocks(self.files.key);
        let mut due = Vec::new();
        each_page_of(&self.files, 0..blocks, horizon, |page| {
            pgrx::check_for_interrupts!();
            if page.special.b > cursor {
                due.push((page.special.a, page.special.b, page.special.block));
            }
        });
        due.sort_unstable();
        if faults::on(Fault::PageSkipped) {
            due.pop();
        }
        for (_, end, block) in due {
            self.lsn = self.lsn.max(end);
            let mut bytes = Box::new([0; PAGE]);
            journal::look(self.files.key, Fork::Journal, block, &mut bytes);
            // A page that was taken again meanwhile has newer entries, or none.
            let page = self.files.page(Fork::Journal, block, &bytes);
            if let Some(page) = page.filter(|page| page.special.kind == PageKind::Journal) {
                self.lsn = self.lsn.max(page.special.b);
                f(self, &page)?;
            }
        }
        Ok(horizon)
    }

    /// Entries of the files that are not in memory come when they are stable and decided.
    /// Returns the CSN from which the table is complete.
    fn settle(&mut self, later: Vec<Found>, loads: bool) -> Result<Csn, OutOfMemory> {
        let life = self.e.shared.standby.shown_at().life;
        // INV-BIRTH
        let born = self.birth.floor(life);
        self.csn = self.csn.max(born);
        let is_old = loads && self.lsn <= life && born == 0;
        if !is_old && !standby::await_shown(self.csn, || false) {
            refuse_yet();
        }
        if !is_old {
            self.renew_told();
        }
        if loads && !faults::on(Fault::OldCounts) {
            self.await_ends(&later, is_old);
        }
        let mut passed = Vec::new();
        for found in later {
            self.settle_one(found, is_old, &mut passed)?;
        }
        if faults::on(Fault::PassedForgotten) {
            passed.clear();
        }
        self.live().pass(&self.told, &passed);
        self.settle_pieces(is_old);
        if is_old && self.csn > standby::shown() {
            self.make_old();
            return Ok(self.low);
        }
        Ok(self.csn.max(self.low))
    }

    fn renew_told(&mut self) {
        self.told = standby::shown_with();
        self.counted = None;
    }

    /// A load waits for the ends of transactions whose rows it cannot pass over (INV-WHOLE): not
    /// long.
    fn await_ends(&mut self, later: &[Found], is_old: bool) {
        let begun = compat::now();
        let mut all: Vec<u64> = later.iter().filter_map(|found| found.xid).collect();
        all.sort_unstable();
        all.dedup();
        while all.iter().any(|xid| if is_old { self.told.is_open(*xid) } else { self.told.is_asleep(*xid) }) {
            if compat::now() - begun > AWAIT_US {
                refuse_yet();
            }
            pgrx::check_for_interrupts!();
            compat::nap(1000);
            self.renew_told();
        }
    }

    /// `is_old`: each entry of the table counts, if it is committed. `passed` gets the transaction
    /// of one that does not count yet, and that an image has.
    fn settle_one(&mut self, found: Found, is_old: bool, passed: &mut Vec<u64>) -> Result<(), OutOfMemory> {
        if self.is_known(&found) {
            return Ok(());
        }
        let counts = match is_old {
            true => Some(self.counts_as_old(&found)),
            false => self.counts(&found),
        };
        match (counts, found.xid, found.at) {
            (Some(Some(csn)), ..) => self.put_beyond(found, csn)?,
            (Some(None), ..) => {}
            (None, _, Some(at)) => self.cursor = self.cursor.min(at.max(self.horizon)),
            (None, Some(xid), None) if !passed.contains(&xid) => passed.push(xid),
            (None, ..) => {}
        }
        Ok(())
    }

    /// The CSN of an entry of an earlier life, if it is committed. Its transaction is not open.
    fn counts_as_old(&mut self, found: &Found) -> Option<Csn> {
        if !self.is_committed(found) {
            return None;
        }
        Some(match found.xid.filter(|_| !faults::on(Fault::OldCounts)) {
            Some(xid) => self.stamp(xid, found.csn),
            None => found.csn,
        })
    }

    /// Must all pieces of a row be there?
    fn is_whole_by_now(&self, pieces: &Pieces) -> bool {
        let is_decided = |xid| !self.told.is_open(xid) && self.files.outcome(xid) == Outcome::Committed;
        pieces.xid.is_none_or(is_decided)
    }

    /// Rows of which pieces are missing (INV-PIECES). `is_old`: no record has come that has them.
    fn settle_pieces(&mut self, is_old: bool) {
        for ((record, csn, _), pieces) in std::mem::take(&mut self.pieces) {
            if self.newest(record).is_some_and(|(there, _)| there >= csn) {
                continue;
            }
            // Images get the piece 0 last: without it the others are what a crash has left.
            let is_written = pieces.there[0].is_some() && self.is_whole_by_now(&pieces);
            let was_there = is_old || csn <= self.stable;
            match pieces.at.filter(|_| !is_old) {
                Some(_) if faults::on(Fault::PiecesForgotten) => {}
                Some(at) if !(was_there && is_written) => self.cursor = self.cursor.min(at.max(self.horizon)),
                _ if is_written => self.refuse_cut(record),
                _ => {}
            }
        }
    }

    /// The record of a row of which pieces are missing, although they must be in the journal.
    fn cut(&mut self) -> Option<u32> {
        let pieces = std::mem::take(&mut self.pieces);
        let mut all = pieces.iter().filter(|_| !faults::on(Fault::PiecesForgotten));
        let cut = all.find(|((record, csn, _), pieces)| {
            let is_newest = self.newest(*record).is_none_or(|(there, _)| there < *csn);
            let is_stable = *csn <= self.told.csn && self.is_whole_by_now(pieces);
            is_newest && is_stable && self.is_due(*csn, pieces.xid)
        });
        cut.map(|((record, _, _), _)| *record)
    }

    fn refuse_cut(&self, record: u32) -> ! {
        self.files.refuse(&format!("a part of row {record} is missing"))
    }

    /// Is the transaction of an entry, which is stable, committed? Waits until it is decided.
    fn is_committed(&self, found: &Found) -> bool {
        let Some(xid) = found.xid else { return true };
        let begun = compat::now();
        loop {
            match self.files.outcome(xid) {
                Outcome::Open if compat::now() - begun < AWAIT_US => {
                    pgrx::check_for_interrupts!();
                    compat::nap(1000);
                }
                Outcome::Open => refuse_yet(),
                outcome => return outcome == Outcome::Committed,
            }
        }
    }

    /// All rows are older than this life of the primary: each snapshot sees them.
    fn make_old(&self) {
        for n in 0..self.table.len() {
            let head = self.table.record(n).map(|r| r.head());
            // SAFETY: INV-TABLE: no other process can reach the table.
            if let Some(head) = head.and_then(|head| unsafe { head.as_ref() }) {
                head.set_stamp(Stamp::csn(1));
            }
        }
    }

    /// The table is loaded. Two rows may have one key yet, of which one is deleted: an image of the
    /// other one was read, and what was replayed of the deletion was not. All of it comes before a
    /// snapshot uses the table. Both have their entries, as rows that move have them later on.
    fn begin(&mut self, low: Csn, era: u64) -> Result<(), OutOfMemory> {
        loads::mine().enter(Phase::Primary, 0);
        // SAFETY: the relation is open: contract of `new`. No other process has the table.
        match unsafe { primary::fill(self.rel, self.table, false, |_| false) } {
            Ok(_) => {}
            Err(Error::OutOfMemory) => return Err(OutOfMemory),
            Err(x) => ok(Err(x)),
        }
        let live = self.live();
        live.low.store(low, Ordering::SeqCst);
        live.cursor.store(self.cursor, Ordering::SeqCst);
        live.era.store(era, Ordering::SeqCst);
        Ok(())
    }

    /// Applies what the journal has got since the last look, up to what is stable (INV-LIVE).
    /// `may_reread`: the images were not read just before.
    fn follow(&mut self, told: Told, may_reread: bool) -> Result<(), OutOfMemory> {
        let live = self.live();
        let (cursor, from) = (live.cursor.load(Ordering::SeqCst), live.upto.load(Ordering::SeqCst));
        let mut next = compat::replayed();
        if self.files.meta().horizon > cursor || may_reread && live.is_passed(&told) {
            return self.reread();
        }
        (self.older, self.from, self.told, self.low) = (false, from, told.clone(), 0);
        self.counted = None;
        self.journal(cursor, &mut |s, page| {
            s.take(page, &mut |s, found| s.follow_one(found))?;
            if page.entries().any(|(_, entry)| s.is_later(&entry)) {
                next = next.min(page.special.a);
            }
            Ok(())
        })?;
        // A page may have been taken again before it was read.
        if self.files.meta().horizon > cursor || self.older && may_reread {
            return self.reread();
        }
        match self.cut() {
            Some(_) if may_reread => return self.reread(),
            Some(record) => self.refuse_cut(record),
            None => {}
        }
        live.low.fetch_max(self.low, Ordering::SeqCst);
        live.cursor.store(next.max(cursor), Ordering::SeqCst);
        Ok(())
    }

    fn follow_one(&mut self, found: Found) -> Result<(), OutOfMemory> {
        if found.csn > self.told.csn || self.is_known(&found) || !self.is_due(found.csn, found.xid) {
            return Ok(());
        }
        match self.counts(&found) {
            Some(Some(csn)) => {
                // As in `put_beyond`.
                self.live().low.fetch_max(self.low, Ordering::SeqCst);
                self.put(&Found { csn, ..found })
            }
            _ => Ok(()),
        }
    }

    /// Was an entry left out by the last look, although it may count by now? It had not come, or
    /// its transaction was open. VACUUM on the primary may have given the id up since: an image has
    /// the decided copy then, but the horizon of the journal may still be below the entry.
    fn is_due(&mut self, csn: Csn, xid: Option<u64>) -> bool {
        let from = self.from;
        let mut was_open = |xid| was_open(self.counted(xid), csn, from);
        csn > from || !faults::on(Fault::OpenGivenUp) && xid.is_some_and(&mut was_open)
    }

    /// What `Standby::counts_at` says, by its last answer if that is of this transaction. Redo
    /// tells it before the CSN at which a transaction is open no more: it is as new as `told`.
    fn counted(&mut self, xid: u64) -> Result<Csn, Csn> {
        let known = self.counted.filter(|(of, _)| *of == xid).map(|(_, at)| at);
        let at = known.unwrap_or_else(|| self.e.shared.standby.counts_at(xid));
        self.counted = Some((xid, at));
        at
    }

    /// Does an entry count later, or never?
    fn is_later(&self, entry: &Entry) -> bool {
        entry.csn > self.told.csn || entry.pending.is_some_and(|xid| self.told.is_open(xid))
    }

    /// Reads all files again: entries that are in no journal any more are in images. Snapshots
    /// between those that the table has served and now cannot use it.
    fn reread(&mut self) -> Result<(), OutOfMemory> {
        self.pieces.clear();
        let mut found = self.all()?;
        found.sort_by_key(|f| (f.record, f.csn));
        let low = self.settle(found, false)?;
        let live = self.live();
        live.low.fetch_max(low, Ordering::SeqCst);
        live.cursor.store(self.cursor, Ordering::SeqCst);
        // What has come meanwhile.
        self.follow(self.told.clone(), false)
    }

    /// The newest version of a record: its CSN, and where it is.
    fn newest(&self, record: u32) -> Option<(Csn, *const Version)> {
        let head = self.table.record(record.into())?.head().cast_const();
        // SAFETY: INV-RETIRE: the process is pinned, and it alone replaces heads.
        let csn = unsafe { head.as_ref() }?.csn()?;
        Some((csn, head))
    }

    fn is_known(&self, found: &Found) -> bool {
        self.newest(found.record).is_some_and(|(csn, _)| csn >= found.csn)
    }

    /// The keys of a version in the indexes in memory.
    fn keys(&self, version: *const Version) -> OwnKeys {
        // SAFETY: the relation is open: contract of `new`. The version is of it, and reachable.
        unsafe { primary::keys_of(self.rel, &self.codecs, version) }
    }

    /// Puts a decided row or tombstone above what is there of its record (INV-APPLY).
    fn put(&mut self, found: &Found) -> Result<(), OutOfMemory> {
        let (e, slot, n) = (&self.e, self.slot, u64::from(found.record));
        let old = self.table.applied(e, slot, n)?.map(|v| v.as_ptr().cast_const());
        let (was_row, old_keys) = match old {
            None => (false, OwnKeys::default()),
            Some(v) => {
                // SAFETY: INV-RETIRE: the process is pinned, and it alone replaces heads.
                let (is_tomb, keys) = unsafe { ((*v).is_tombstone(), Version::keys(v)) };
                match is_tomb {
                    true => (false, OwnKeys::of(&keys)),
                    false => (true, if self.alone { OwnKeys::default() } else { self.keys(v) }),
                }
            }
        };
        let above = if self.alone { Put::Alone } else { Put::Above };
        let Some(stored) = &found.row else {
            // Above another tombstone: the entries of the old keys are there still.
            let what = Replayed::Tomb(old_keys.keys());
            return self.table.apply(e, slot, (n, found.csn), what, above);
        };
        let mut version = self.version(found.record, stored);
        let (head, payload) = version.split();
        let part = partition_of(self.rel, &self.partkey, payload);
        if self.alone {
            return self.table.apply(e, slot, (n, found.csn), Replayed::Row(payload, part), above);
        }
        let keys = self.keys(head);
        let is_reused = old.is_some() && (!was_row || keys != old_keys);
        if is_reused {
            // SAFETY: as above.
            let deleted = old.and_then(|v| unsafe { (*v).csn() }).unwrap_or(found.csn);
            standby::await_others(if was_row { found.csn } else { deleted });
            for old_key in old_keys.keys().iter() {
                self.table.apply_key_removal(e, slot, &PG, n, old_key)?;
            }
        }
        if is_reused || old.is_none() {
            self.add_entries(n, &keys)?;
        }
        let (_, payload) = version.split();
        let put = if is_reused { Put::Anew } else { Put::Above };
        self.table.apply(e, slot, (n, found.csn), Replayed::Row(payload, part), put)
    }

    /// Puts a row or tombstone in that counts at `csn`. Versions of before it may be in no file any
    /// more: no snapshot below it can use the table, also if the look at the files fails later.
    fn put_beyond(&mut self, found: Found, csn: Csn) -> Result<(), OutOfMemory> {
        // Also what a stamp says by now: if the look fails later, the next one passes over the row.
        self.live().low.fetch_max(found.csn.max(self.low), Ordering::SeqCst);
        self.put(&Found { csn, ..found })
    }

    /// The entries of a record come.
    fn add_entries(&self, n: u64, keys: &OwnKeys) -> Result<(), OutOfMemory> {
        for key in keys.keys().iter().take(if faults::on(Fault::OneKeyFollowed) { 1 } else { INDEXES }) {
            match self.table.apply_key(&self.e, self.slot, &PG, n, key) {
                Ok(()) => {}
                Err(Error::OutOfMemory) => return Err(OutOfMemory),
                Err(x) => ok(Err(x)),
            }
        }
        Ok(())
    }

    /// A row as a version of this process.
    fn version(&self, record: u32, stored: &[u8]) -> Private {
        let Some(len) = stored::unpacked_len(stored) else {
            self.files.refuse(&format!("row {record} is no row"));
        };
        let mut private = Private { words: vec![0u64; (VERSION_HEADER + len).div_ceil(8)], len };
        let head = private.words.as_mut_ptr().cast::<Version>();
        // SAFETY: INV-VERSION: `words` has room for header and payload.
        unsafe { Version::init(head, Stamp::csn(1), len as u32, 0) };
        stored::unpack(stored, private.split().1);
        private
    }
}

/// A version in memory of this process.
struct Private {
    words: Vec<u64>,
    len: usize,
}

impl Private {
    /// The version, and the bytes of its row.
    fn split(&mut self) -> (*const Version, &mut [u8]) {
        let head = self.words.as_mut_ptr().cast::<u8>();
        // SAFETY: `words` has `len` bytes behind the header, which are used by this name alone.
        let payload = unsafe { std::slice::from_raw_parts_mut(head.add(VERSION_HEADER), self.len) };
        (head.cast_const().cast(), payload)
    }
}

/// Where the last record that has changed a page ends.
fn lsn_of(page: &[u8; PAGE]) -> Lsn {
    let half = |at: usize| Lsn::from(u32::from_ne_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]));
    half(0) << 32 | half(4)
}
