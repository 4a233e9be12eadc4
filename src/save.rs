//! Rows survive a clean shutdown: they are saved by the last process that ends, the postmaster, and
//! loaded by the first that starts, before any other exists.
//!
//! The file is used once, and only by the start that follows the very shutdown that wrote it: it
//! names the system and its shutdown checkpoint. Tables that it does not bring back are not
//! registered, and so start empty, with empty indexes (see `rel/attach.rs`).

use crate::platform::PG;
use crate::{pg, rel, shmem};
use mixedcc_engine::save::{self, LoadError, Reader, Skipped, Writer};
use mixedcc_engine::{Engine, Table};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;

/// In the data directory, which is the working directory of every process.
const FILE: &str = "mixedcc.rows";
const TEMPORARY: &str = "mixedcc.rows.tmp";
/// Their presence makes PostgreSQL recover at the start, which empties the indexes of unlogged tables.
const RECOVERY_SIGNALS: [&str; 3] = ["backup_label", "recovery.signal", "standby.signal"];

/// Called when shared memory is new, by the postmaster or a single-user server.
pub fn at_start(e: &Engine) {
    // SAFETY: plain reads and calls of the only process; the callback lives as long as the library.
    unsafe {
        if pg_sys::IsUnderPostmaster {
            return;
        }
        pg_sys::on_shmem_exit(Some(at_exit), pg_sys::Datum::from(0));
    }
    let file = match File::open(FILE) {
        Ok(f) => f,
        Err(x) if x.kind() == io::ErrorKind::NotFound => return,
        Err(x) => return warning!("mixedcc could not open \"{FILE}\", its tables start empty: {x}"),
    };
    // Used once: from now on rows change and the file does not.
    if let Err(x) = fs::remove_file(FILE) {
        return warning!("mixedcc could not remove \"{FILE}\", its tables start empty: {x}");
    }
    let Some(identity) = identity().filter(|_| !RECOVERY_SIGNALS.iter().any(|s| Path::new(s).exists())) else {
        return warning!(
            "mixedcc ignored \"{FILE}\", its tables start empty: the server does not continue after a clean shutdown"
        );
    };
    if let Err(x) = load(e, file, &identity) {
        warning!("mixedcc could not load all tables from \"{FILE}\", the others start empty: {x}");
    }
}

fn load(e: &Engine, file: File, identity: &[u8]) -> Result<(), LoadError> {
    let mut r = Reader::new(BufReader::with_capacity(1 << 20, file));
    if !save::read_head(&mut r, e, identity)? {
        warning!("mixedcc ignored \"{FILE}\", its tables start empty: the file was not written by the last shutdown");
        return Ok(());
    }
    // No process has a slot yet.
    let slot = 0;
    e.pin(slot);
    let (mut tables, mut rows) = (Vec::new(), 0);
    let end = loop {
        match save::read_table(&mut r, e, slot, &PG) {
            Ok(None) => break Ok(()),
            Err(x) => break Err(x),
            Ok(Some(Err((key, why)))) => left_out(key, why),
            Ok(Some(Ok(t))) => {
                if shmem::register(t) == Some(true) {
                    tables.push(t);
                    rows += t.rows();
                } else {
                    // SAFETY: nobody else knows the table.
                    unsafe { t.destroy(e, slot) };
                    left_out(t.key, Skipped::OutOfMemory);
                }
            }
        }
    };
    for primary in tables.iter().filter_map(|t| t.primary()) {
        primary.offer_guesses(e, slot);
    }
    e.unpin(slot);
    e.region.flush_slot(slot as usize);
    log!("mixedcc loaded {rows} rows of {} tables", tables.len());
    end
}

fn left_out(key: [u32; 4], why: Skipped) {
    let why = match why {
        Skipped::OutOfMemory => "mixedcc.memory is too small",
        Skipped::Unsettled => "it was in the middle of a change",
        Skipped::WaitingPhases => "its protocols cannot be in use together without a deadlock detector",
    };
    warning!("mixedcc could not load the table in file {} of database {}, which starts empty: {why}", key[2], key[1]);
}

/// Runs in the postmaster when all its children are gone, and not in them.
#[pg_guard]
unsafe extern "C-unwind" fn at_exit(code: i32, _arg: pg_sys::Datum) {
    // SAFETY: a plain read.
    if code != 0 || unsafe { pg_sys::IsUnderPostmaster } {
        return;
    }
    // Not after an immediate shutdown: then there is no checkpoint.
    let Some(identity) = identity() else { return };
    let tables = shmem::all_unlocked();
    if tables.is_empty() {
        return;
    }
    match write(&tables, &identity) {
        // SAFETY: a plain call with constant names; it says in the log what fails.
        Ok(()) => unsafe {
            pg_sys::durable_rename(c"mixedcc.rows.tmp".as_ptr(), c"mixedcc.rows".as_ptr(), pg_sys::LOG as i32);
        },
        Err(x) => {
            warning!("mixedcc could not save the rows of its tables, which will start empty: {x}");
            if let Err(x) = fs::remove_file(TEMPORARY) {
                log!("mixedcc could not remove \"{TEMPORARY}\": {x}");
            }
        }
    }
}

fn write(tables: &[&'static Table], identity: &[u8]) -> io::Result<()> {
    // The server's umask gives the file the rights of the data directory.
    let mut w = Writer::new(File::create(TEMPORARY)?);
    save::write_head(&mut w, &shmem::engine(), identity)?;
    let mut rows = 0;
    // Nobody has a slot any more.
    let (e, slot) = (shmem::engine(), 0);
    e.pin(slot);
    let learned = e.shared.learned.read();
    for t in tables {
        if save::write_table(&mut w, t, &PG, &learned)? {
            rows += t.rows();
        } else {
            warning!("mixedcc could not save {}: it is in the middle of a change", rel::called(Some(*t), t.key));
        }
    }
    save::write_end(w)?;
    e.unpin(slot);
    log!("mixedcc saved {rows} rows of {} tables", tables.len());
    Ok(())
}

/// What names a clean shutdown: the system, its last checkpoint, and how rows are laid out.
/// `None` if the server is not shut down cleanly.
fn identity() -> Option<Vec<u8>> {
    let mut crc_ok = false;
    // SAFETY: a plain call; what it returns is ours to free.
    unsafe {
        let c = pg_sys::get_controlfile(pg_sys::DataDir, &mut crc_ok);
        let clean = crc_ok && (*c).state == pg_sys::DBState::DB_SHUTDOWNED;
        let parts = [
            (*c).system_identifier,
            (*c).checkPoint,
            (*c).checkPointCopy.time as u64,
            (*c).catalog_version_no as u64,
            pg::ROWS,
        ];
        pg_sys::pfree(c.cast());
        clean.then(|| parts.iter().flat_map(|p| p.to_le_bytes()).collect())
    }
}
