//! Loading what was saved, before any other process exists.

use super::stamp::{self, Identity, Stamp};
use super::{files, identity};
use crate::state::platform::PG;
use crate::state::shmem::{self, Absence};
use mixedcc_engine::save::{self, Left, LoadError, Loaded, Reader, Skipped};
use mixedcc_engine::{Engine, Table};
use pgrx::prelude::*;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// Their presence makes PostgreSQL recover at the start, which empties the indexes of unlogged
/// tables.
const RECOVERY_SIGNALS: [&str; 3] = ["backup_label", "recovery.signal", "standby.signal"];
/// No process has a slot yet.
const SLOT: u16 = 0;

/// The knowledge of the tables of one file.
#[derive(Default)]
struct Found {
    loaded: u32,
    /// Those that were not loaded, and may be at another start.
    waiting: u32,
    /// Those whose rows here are not those of today.
    stale: u32,
    /// Those that do not exist any more.
    gone: u32,
    /// Those that cannot be right.
    damaged: u32,
}

struct Start<'a> {
    e: &'a Engine,
    /// The shutdown that this start follows, if it was a clean one.
    now: Option<Identity>,
    /// With the shutdowns at which they were saved.
    tables: Vec<(&'static Table, Identity)>,
    rows: u64,
    finished: Vec<files::Finished>,
}

/// The shutdown that this start follows, if it was a clean one.
pub fn follows_shutdown() -> Option<Identity> {
    identity().filter(|_| !RECOVERY_SIGNALS.iter().any(|s| Path::new(s).exists()))
}

/// Loads all files. Returns those that hold nothing more.
pub fn load(e: &Engine) -> Vec<files::Finished> {
    let mut start = Start { e, now: follows_shutdown(), tables: Vec::new(), rows: 0, finished: Vec::new() };
    let sources = files::sources();
    e.pin(SLOT);
    for path in &sources {
        start.file(path);
    }
    for (_, index) in start.tables.iter().flat_map(|t| t.0.uniques()) {
        index.offer_hints(e, SLOT);
    }
    e.unpin(SLOT);
    e.region.flush_slot(SLOT as usize);
    for (t, saved) in &start.tables {
        // INV-SAVED: before the server opens for business.
        let stamp = Stamp { saved: *saved, loaded: start.now };
        if let Err(x) = stamp::write(t.key, &stamp) {
            error!("mixedcc could not write to the file {} of database {}: {x}", t.key[2], t.key[1]);
        }
    }
    if !sources.is_empty() {
        log!("mixedcc loaded {} rows of {} tables", start.rows, start.tables.len());
    }
    start.finished
}

impl Start<'_> {
    fn file(&mut self, path: &str) {
        let file = match files::open(path) {
            Ok(file) => file,
            Err(why) => {
                files::set_aside(path, &why);
                return;
            }
        };
        let finished = files::Finished::of(path, &file);
        let Some(now) = self.now else {
            let why = "the server does not continue after a clean shutdown, its tables start empty";
            files::set_aside(path, why);
            return;
        };
        let mut found = Found::default();
        let end = self.tables_of(path, file, &now, &mut found);
        if found.waiting > 0 {
            let new = files::keep(path);
            log!("mixedcc keeps the rows of {} tables in \"{new}\" for the next start", found.waiting);
        }
        let why = match end {
            Err(x) => x.to_string(),
            Ok(exact) if found.stale > 0 || (found.gone > 0 && path == files::FILE && !exact) => format!(
                "of its tables {} have changed since and {} do not exist, it is not the file of the last shutdown",
                found.stale, found.gone
            ),
            Ok(_) if found.damaged > 0 => format!("{} of its tables are damaged", found.damaged),
            Ok(_) if found.waiting > 0 => return,
            Ok(_) => match finished {
                Ok(f) => return self.finished.push(f),
                Err(x) => x.to_string(),
            },
        };
        if found.waiting > 0 {
            warning!("mixedcc could not load all other tables of \"{path}\": {why}");
        } else {
            files::set_aside(path, &why);
        }
    }

    /// Reads the tables of a file. Was it written at the very shutdown that this start follows?
    fn tables_of(&mut self, path: &str, file: File, now: &Identity, found: &mut Found) -> Result<bool, LoadError> {
        let mut r = Reader::new(BufReader::with_capacity(1 << 20, file));
        let head = save::read_head(&mut r)?;
        let Ok(saved) = Identity::try_from(&head.identity[..]) else {
            return Err(LoadError::Damaged("the name of its shutdown has another length"));
        };
        if !super::same_layout(&saved, now) {
            return Err(LoadError::Damaged("its rows are numbered as in another version of mixedcc"));
        }
        self.e.advance_clock(head.clock);
        self.e.advance_tokens(head.token);
        let exact = saved == *now;
        // INV-SAVED.
        let stamped = |key| matches!(stamp::read(key), Ok(Some(s)) if s.saved == saved && s.counts(now));
        loop {
            let wanted = |key| !shmem::is_known(key) && (exact || stamped(key));
            match save::read_table(&mut r, self.e, SLOT, &PG, wanted)? {
                None => return Ok(exact),
                Some(table) => self.table(path, table, saved, found),
            }
        }
    }

    /// A table stays in its file, which may be one that was written before there were stamps, or by
    /// a server that was killed before it wrote them.
    fn stamp_absent(&self, key: [u32; 4], saved: Identity) {
        if let Err(x) = stamp::write(key, &Stamp { saved, loaded: None }) {
            warning!("mixedcc could not write to the file {} of database {}: {x}", key[2], key[1]);
        }
    }

    fn table(&mut self, path: &str, table: Loaded, saved: Identity, found: &mut Found) {
        let left = match table {
            Ok(t) => match shmem::register(t) {
                Some(true) => {
                    found.loaded += 1;
                    self.rows += t.rows();
                    return self.tables.push((t, saved));
                }
                _ => {
                    // SAFETY: `t` was not registered, and no other process exists yet: none can
                    // reach it (INV-TABLE).
                    unsafe { t.destroy(self.e, SLOT) };
                    Left { key: t.key, why: Skipped::OutOfMemory, need: 0 }
                }
            },
            Err(left) => left,
        };
        let key = left.key;
        let (absence, why) = match left.why {
            Skipped::NotWanted if shmem::is_known(key) => return,
            Skipped::NotWanted if stamp::has_storage(key) => return found.stale += 1,
            Skipped::NotWanted => return found.gone += 1,
            Skipped::Unsettled => {
                found.stale += 1;
                return warning!(
                    "mixedcc could not load the table in file {} of database {}, which starts empty: it was in the middle of a change",
                    key[2],
                    key[1]
                );
            }
            Skipped::Damaged(why) => {
                found.damaged += 1;
                self.stamp_absent(key, saved);
                return warning!(
                    "mixedcc could not load the table in file {} of database {} from \"{path}\", which is damaged: {why}",
                    key[2],
                    key[1]
                );
            }
            Skipped::OutOfMemory => (Absence::Memory, "mixedcc.memory is too small"),
            Skipped::WaitingPhases => {
                (Absence::WaitingPhases, "its protocols cannot be in use together without a deadlock detector")
            }
        };
        found.waiting += 1;
        shmem::register_absent(key, absence, left.need);
        self.stamp_absent(key, saved);
        warning!(
            "mixedcc could not load the table in file {} of database {} from \"{path}\", it cannot be used: {why}",
            key[2],
            key[1]
        );
    }
}

/// Stamps the tables of a file that the last shutdown has written, without loading them: pg_upgrade
/// starts the server, and the shutdown that follows is another one.
pub fn stamp_only() {
    let (Some(now), Ok(file)) = (identity(), files::open(files::FILE)) else { return };
    let mut r = Reader::new(BufReader::with_capacity(1 << 20, file));
    if !save::read_head(&mut r).is_ok_and(|head| head.identity == now) {
        return;
    }
    let e = shmem::engine();
    while let Ok(Some(Err(left))) = save::read_table(&mut r, &e, SLOT, &PG, |_| false) {
        if let Err(x) = stamp::write(left.key, &Stamp { saved: now, loaded: None }) {
            warning!("mixedcc could not write to the file {} of database {}: {x}", left.key[2], left.key[1]);
        }
    }
    log!("mixedcc leaves its tables in \"{}\" during pg_upgrade", files::FILE);
}
