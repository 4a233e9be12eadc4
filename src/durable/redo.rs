//! Replay of records, in the startup process.
//!
//! Images go into the main fork. Rows of commits, and reserved numbers, go into the journal. Both
//! are pages in shared buffers, so that each checkpoint and restartpoint of PostgreSQL has all that
//! was replayed. Nothing is put into the engine's region.
//!
//! **D-FILE**: Redo changes nothing of a storage whose main fork does not exist. PostgreSQL's own
//! record has made the file before any record of ours, so a later record, or an earlier one, drops
//! it.

use super::journal::{self, InRecovery};
use crate::pg::faults::{self, Fault};
use crate::pg::wal::record_data;
use crate::pg::{buffers, compat};
use crate::state::{shmem, standby, stop};
use mixedcc_engine::durable::journal::{Journal, Position};
use mixedcc_engine::durable::merge::Fork;
use mixedcc_engine::durable::wal::{Commit, Op, Record, RoundKind};
use mixedcc_engine::durable::{Entry, Malformed, Meta, Page, Storage, PAGE};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

/// What the startup process knows of the storages that it has met.
#[derive(Default)]
struct Replay {
    journals: HashMap<Storage, Journal>,
    /// So many of them were left when dropped ones were looked for.
    kept: usize,
    /// Storages without a file, which were noted in the server's log.
    skipped: HashSet<Storage>,
}

thread_local! {
    static REPLAY: RefCell<Replay> = RefCell::default();
}

/// Replays a record (`rm_redo`).
#[pg_guard]
pub unsafe extern "C-unwind" fn redo(reader: *mut pg_sys::XLogReaderState) {
    // SAFETY: the startup process calls it with a reader that has a record of ours (contract of
    // rm_redo).
    let (info, data) = unsafe { record_data(reader) };
    let record = match Op::of_info(info).and_then(|op| Record::parse(op, data)) {
        Ok(record) => record,
        Err(why) => refuse(reader, why),
    };
    // SAFETY: as above.
    let at = unsafe { Position { from: (*reader).ReadRecPtr, to: (*reader).EndRecPtr } };
    stop::reach("redo-record");
    REPLAY.with_borrow_mut(|replay| match record {
        // SAFETY: as above.
        Record::Image { .. } => unsafe { replay.images(reader) },
        Record::Commit(commit) => replay.commit(&commit, at),
        Record::Reserve { storage, upto } => replay.append(storage, [Entry::high(upto)], at, 0),
        // The primary may have a new life, whose CSNs are not those of before.
        Record::Round(round) if round.kind == RoundKind::Start => shmem::engine().shared.standby.forget(),
        Record::Round(_) | Record::Change(_) => {}
        Record::Stable(stable) => standby::replayed(stable, at.to),
    });
}

/// Replay begins (`rm_startup`).
#[pg_guard]
pub unsafe extern "C-unwind" fn startup() {
    #[cfg(feature = "faults")]
    faults::begin();
    REPLAY.set(Replay::default());
    shmem::engine().shared.standby.turn(true);
}

/// Replay ends (`rm_cleanup`).
#[pg_guard]
pub unsafe extern "C-unwind" fn cleanup() {
    REPLAY.set(Replay::default());
    standby::end_readers();
    shmem::engine().shared.standby.turn(false);
}

/// Ends recovery: a record cannot be read, so rows would be lost.
fn refuse(reader: *mut pg_sys::XLogReaderState, why: Malformed) -> ! {
    // SAFETY: `redo` has this reader from PostgreSQL.
    let at = unsafe { (*reader).ReadRecPtr };
    let message = format!("mixedcc cannot replay the record at {:X}/{:X}: {why}", at >> 32, at as u32);
    ErrorReport::new(PgSqlErrorCode::ERRCODE_DATA_CORRUPTED, message, "mixedcc")
        .set_hint("If a newer version of mixedcc has written it, install that version and start the server again.")
        .report(PgLogLevel::FATAL);
    unreachable!("FATAL ends the process")
}

/// Storages without a file that are remembered, at most.
const SKIPPED_MAX: usize = 1000;

impl Replay {
    /// Is there a file of the storage (D-FILE)? Says so once, if there is none.
    fn has_file(&mut self, storage: Storage) -> bool {
        let there = buffers::exists(storage.into(), Fork::Main) || faults::on(Fault::RedoMakesFiles);
        if !there {
            self.journals.remove(&storage);
            if self.skipped.len() >= SKIPPED_MAX {
                self.skipped.clear();
            }
            if self.skipped.insert(storage) {
                log!("mixedcc replays nothing of the table in file {storage}, which is dropped");
            }
        }
        there
    }

    /// Restores the pages of a record.
    ///
    /// # Safety
    /// A reader with a record of images, in the startup process.
    unsafe fn images(&mut self, reader: *mut pg_sys::XLogReaderState) {
        // SAFETY: the reader has a record (contract of this function). Each block is one of it.
        unsafe {
            for at in compat::blocks_of(reader) {
                let storage = Storage::from(at.key);
                if !at.is_main {
                    refuse(reader, Malformed("an image of another fork"));
                }
                if !self.has_file(storage) {
                    continue;
                }
                let mut horizon = None;
                let restored = compat::restore(reader, at.id, |page| {
                    if at.block == 0 {
                        horizon = Some(horizon_of(page));
                    }
                });
                if !restored {
                    refuse(reader, Malformed("a block without an image"));
                }
                shmem::engine().shared.standby.restored(storage, at.block);
                if let (Some(horizon), Some(journal)) = (horizon, self.journals.get_mut(&storage)) {
                    journal.set_horizon(horizon);
                }
                stop::reach("redo-page");
            }
        }
    }

    /// Puts the rows of a commit into the journals of their storages.
    fn commit(&mut self, commit: &Commit, at: Position) {
        for (table, storage) in commit.tables().enumerate() {
            let items = commit.items().filter(|item| item.table as usize == table);
            self.append(storage, items.map(|item| item.entry), at, commit.head.token);
        }
        if commit.head.reply {
            // SAFETY: in the startup process; it sets a word for the WAL receiver, and wakes it up.
            unsafe { pg_sys::XLogRequestWalReceiverReply() };
        }
    }

    fn append<'e>(&mut self, storage: Storage, entries: impl IntoIterator<Item = Entry<'e>>, at: Position, token: u64) {
        if !self.has_file(storage) {
            return;
        }
        self.forget_dropped();
        let mut file = InRecovery(storage);
        let journal = self.journals.entry(storage).or_insert_with(|| {
            let horizon = journal::meta_page(storage.into()).map_or(0, |page| horizon_of(&page));
            Journal::new(&mut file, horizon, at.from)
        });
        journal.append(&mut file, entries, at, token);
        shmem::engine().shared.standby.appended(storage, at.to);
    }

    /// Forgets storages that were dropped, whenever it knows twice as many as it has kept.
    fn forget_dropped(&mut self) {
        if self.journals.len() > 2 * self.kept.max(SKIPPED_MAX) {
            self.journals.retain(|storage, _| buffers::exists((*storage).into(), Fork::Main));
            self.kept = self.journals.len();
        }
    }
}

/// The journal horizon in a meta page. 0 if it cannot be read: a torn page comes again, as an
/// image.
fn horizon_of(page: &[u8; PAGE]) -> u64 {
    let page = Page::read(page, 0).ok().flatten();
    page.and_then(|page| Meta::read(&page).ok()).map_or(0, |meta| meta.horizon)
}
