//! Rows survive a clean shutdown: they are saved by the last process that ends, the postmaster, and
//! loaded by the first that starts, before any other exists.
//!
//! A table is loaded from a file if its stamp names the file ([`stamp`]), or if the file is that of
//! the very shutdown that the start follows. A table whose stamp names a file that was not loaded
//! cannot be used ([`absent`]). All others are not registered, and so start empty, with empty
//! indexes (see `state/rel/attach.rs`). What becomes of the files is in [`files`].

use crate::pg;
use crate::pg::local::Local;
use crate::state::platform::PG;
use crate::state::{rel, shmem};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::save::{self, Writer};
use mixedcc_engine::{Engine, Table};
use pgrx::pg_sys;
use pgrx::prelude::*;
use stamp::{Identity, Stamp};
use std::fs::{self, File};
use std::io;

mod absent;
mod files;
mod stamp;
mod start;
pub use absent::{is_missing, pass_over, refuse};

/// Files whose rows were all loaded, and which are deleted when no start can need them any more.
/// Written by the postmaster at its start; its children inherit it.
static FINISHED: Local<Vec<files::Finished>> = Local::new(Vec::new());
/// Does the start follow a clean shutdown? Written and inherited likewise.
static FOLLOWS_SHUTDOWN: Local<bool> = Local::new(false);

/// Called when shared memory is new, by the postmaster or a single-user server.
pub fn at_start(e: &Engine) {
    // SAFETY: the only process runs this, or returns at once; `at_exit` lives as long as the
    // library.
    unsafe {
        if pg_sys::IsUnderPostmaster {
            return;
        }
        if pg_sys::IsBinaryUpgrade {
            return start::stamp_only();
        }
        pg_sys::on_shmem_exit(Some(at_exit), pg_sys::Datum::from(0));
        // After a crash of another process: of the start before.
        forget_loaded();
        FOLLOWS_SHUTDOWN.set(start::follows_shutdown().is_some());
        FINISHED.set(start::load(e));
    }
}

/// Did the server start behind a clean shutdown? Else PostgreSQL has recovered, and has emptied all
/// indexes of unlogged tables, also those that the catalogs do not show yet.
pub fn follows_shutdown() -> bool {
    FOLLOWS_SHUTDOWN.get()
}

/// Deletes the files whose rows are in memory. Called when the control file says that the server
/// has opened for business: until then the next start would need them, if this one failed.
pub fn forget_loaded() {
    // SAFETY: a process has one thread, no other reference to `FINISHED` is in use, and a child has
    // a copy of its own.
    let finished = unsafe { FINISHED.get_mut() };
    finished.iter().for_each(files::Finished::delete);
}

/// Runs in the postmaster when all its children are gone, and not in them.
#[pg_guard]
unsafe extern "C-unwind" fn at_exit(code: i32, _arg: pg_sys::Datum) {
    // SAFETY: a variable of this process, which its one thread writes when it starts.
    if code != 0 || unsafe { pg_sys::IsUnderPostmaster } {
        return;
    }
    // Not after an immediate shutdown: then there is no checkpoint.
    let Some(identity) = identity() else { return };
    forget_loaded();
    // The files of permanent tables have their rows. A prepared transaction may drop a table after
    // the start, which no process would notice (INV-REDEFINED).
    let is_saved = |t: &&Table| t.durable().is_none() && t.kept.load(Ordering::SeqCst) == 0;
    let tables: Vec<_> = shmem::all_unlocked().into_iter().filter(is_saved).collect();
    if tables.is_empty() {
        return;
    }
    let occupied = [files::FILE, files::TEMPORARY].into_iter().filter(|f| fs::symlink_metadata(f).is_ok());
    let free = occupied.fold(true, |free, f| files::set_aside(f, "other rows are saved under this name now") && free);
    let saved = if free { write(&tables, &identity) } else { Err(io::Error::other("its file's name is taken")) };
    match saved.and_then(|saved| publish().map(|()| saved)) {
        Ok(saved) => saved.iter().for_each(|t| put_stamp(t, identity)),
        Err(x) => {
            warning!("mixedcc could not save the rows of its tables, which will start empty: {x}");
            if free {
                if let Err(x) = fs::remove_file(files::TEMPORARY) {
                    log!("mixedcc could not remove \"{}\": {x}", files::TEMPORARY);
                }
            }
        }
    }
}

/// Gives the file that was written its name.
fn publish() -> io::Result<()> {
    // SAFETY: both names are constant C strings; at the level LOG a failure is a result, not an
    // ERROR.
    let failed =
        unsafe { pg_sys::durable_rename(c"mixedcc.rows.tmp".as_ptr(), c"mixedcc.rows".as_ptr(), pg_sys::LOG as i32) };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::other("the file could not be made durable"))
    }
}

fn put_stamp(t: &Table, saved: Identity) {
    if let Err(x) = stamp::write(t.key, &Stamp { saved, loaded: None }) {
        let name = rel::called(Some(t), t.key);
        warning!("mixedcc could not note in the file of {name} where its rows are: {x}");
    }
}

/// Writes the tables; returns those that are settled.
fn write(tables: &[&'static Table], identity: &Identity) -> io::Result<Vec<&'static Table>> {
    // The server's umask gives the file the rights of the data directory.
    let mut w = Writer::new(File::create_new(files::TEMPORARY)?);
    save::write_head(&mut w, &shmem::engine(), identity)?;
    let (mut rows, mut saved) = (0, Vec::new());
    // No process has a slot any more.
    let (e, slot) = (shmem::engine(), 0);
    e.pin(slot);
    let learned = e.shared.learned.read();
    for t in tables {
        if save::write_table(&mut w, t, &PG, &learned)? {
            rows += t.rows();
            saved.push(*t);
        } else {
            warning!("mixedcc could not save {}: it is in the middle of a change", rel::called(Some(*t), t.key));
        }
    }
    save::write_end(w)?;
    e.unpin(slot);
    log!("mixedcc saved {rows} rows of {} tables", tables.len());
    Ok(saved)
}

/// Of the parts of an identity, the one that says how we lay out rows.
const LAYOUT: usize = 32;

/// What names a clean shutdown: the system, its last checkpoint, and how rows are laid out. `None`
/// if the server is not shut down cleanly.
fn identity() -> Option<Identity> {
    let mut crc_ok = false;
    // SAFETY: `get_controlfile` returns an allocated copy, which is freed once, after its last use.
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
        clean.then(|| std::array::from_fn(|i| parts[i / 8].to_le_bytes()[i % 8]))
    }
}

/// Are rows laid out in the same way after these shutdowns? The catalogs may be of another version:
/// pg_upgrade lets no table through whose columns have changed their layout since. It keeps the
/// OIDs that the saved rows and indexes have in them.
fn same_layout(a: &Identity, b: &Identity) -> bool {
    a[LAYOUT..] == b[LAYOUT..]
}
