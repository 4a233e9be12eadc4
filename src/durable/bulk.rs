//! The content of storages that a transaction has made, as images before it commits (D-NEW).
//!
//! Its rows are writes of the transaction; or they have moved there from another tablespace.
//!
//! The storage's fate is that of its content: a transaction that does not commit leaves no file.
//! So the entries need no transaction id, and their CSN is a tick of the clock before the commit's.
//! The meta page comes last, when the commit has its CSN (INV-BIRTH).

use crate::durable::images::{Batch, Full};
use crate::pg::faults::{self, Fault};
use crate::pg::local::Local;
use crate::pg::{buffers, stored, wal};
use crate::state::{shmem, standby, stop, xact};
use mixedcc_engine::csn::Csn;
use mixedcc_engine::durable::merge::Fork;
use mixedcc_engine::durable::rules::Rules;
use mixedcc_engine::durable::wal::ImageKind;
use mixedcc_engine::durable::window::Place;
use mixedcc_engine::durable::{Birth, Durable, Entry, Kind, Meta};
use mixedcc_engine::txn::{RecordRef, WriteKind};
use mixedcc_engine::Table;
use pgrx::prelude::*;
use std::ptr::NonNull;

/// The CSN of the births that the transaction tells. 0: it has made no storage. Of the process.
static BORN: Local<Csn> = Local::new(0);

/// A storage whose rows are written, and whose meta page is not.
pub struct Written {
    table: &'static Table,
    durable: &'static Durable,
    live_bytes: u64,
    rows: u64,
    /// Before the commit has its CSN.
    early: Birth,
}

/// Writes the rows of tables whose storages the transaction has made. [`finish`] follows.
pub fn write(tables: impl IntoIterator<Item = &'static Table>) -> Vec<Written> {
    let new = |table: &'static Table| Some((table, table.durable().filter(|durable| durable.is_new())?));
    tables.into_iter().filter_map(new).map(|(table, durable)| write_table(table, durable)).collect()
}

/// The transaction has its CSN, or commits without one, or is prepared (INV-BIRTH). What follows
/// can still fail. Writes the meta pages.
pub fn finish(all: &[Written]) {
    if all.is_empty() {
        return;
    }
    let birth = Birth { csn: shmem::engine().tick(), at: wal::inserted() };
    for written in all {
        written.durable.set_birth(match () {
            () if faults::on(Fault::BirthForgotten) => Birth::default(),
            () if faults::on(Fault::BirthEarly) => written.early,
            () => birth,
        });
        written.write_meta();
    }
    BORN.set(birth.csn);
}

/// The transaction has ended, and still has its locks. If it has committed, standbys are told at
/// once that they may show its storages: a session there that waits for that may have the lock for
/// which the replay of the next change of the table waits.
pub fn end_transaction(commit: bool) {
    let born = BORN.replace(0);
    if born != 0 && commit {
        standby::tell_birth(born);
    }
}

impl Written {
    fn write_meta(&self) {
        let Written { table, durable, live_bytes, rows, .. } = *self;
        let e = shmem::engine();
        let (high, blocks) = (durable.high(), buffers::blocks(table.key, Fork::Main));
        let (clock, token, rules, birth) = (e.now(), e.last_token(), Rules::of(table.map()), durable.birth());
        let meta = Meta { horizon: 0, round: 0, clock, token, live_bytes, rows, high, blocks, rules, birth };
        let mut batch = Batch::new(table.key, ImageKind::Bulk);
        if batch.put_meta(&meta).is_err() {
            error!("mixedcc: a batch without pages is full");
        }
        write_batch(&mut batch);
    }
}

fn write_table(table: &'static Table, durable: &'static Durable) -> Written {
    let csn = shmem::engine().tick();
    let known = buffers::blocks(table.key, Fork::Main);
    if known == 0 {
        buffers::extend(table.key, Fork::Main); // the meta page's
    }
    let mut last = 0;
    let mut fresh = || {
        last += 1;
        if last < known {
            last
        } else {
            buffers::extend(table.key, Fork::Main)
        }
    };
    let mut batch = Batch::new(table.key, ImageKind::Bulk);
    let mut places: Vec<(u64, Place)> = Vec::new();
    let (mut live_bytes, mut rows) = (0, 0);
    let mut row = Vec::new();
    for n in 0..table.len() {
        if !row_of(table, n, &mut row) {
            continue;
        }
        let entry = Entry { csn, kind: Kind::Row, record: n as u32, pending: None, fragment: None, payload: &row };
        let place = loop {
            match batch.add(&[entry], &mut fresh) {
                Ok(place) => break place,
                Err(Full) => write_batch(&mut batch),
            }
        };
        places.push((n, place));
        live_bytes += entry.size() as u64;
        rows += 1;
    }
    write_batch(&mut batch);
    for (n, place) in places {
        durable.set_home(n, Some(place));
    }
    durable.raise_high(table.len() as u32);
    Written { table, durable, live_bytes, rows, early: Birth { csn, at: wal::inserted() } }
}

fn write_batch(batch: &mut Batch) {
    if !batch.is_empty() {
        stop::reach("bulk-page");
        batch.write();
        batch.take_filled();
        pgrx::check_for_interrupts!();
    }
}

/// The stored form of the row that record `n` has when the transaction commits, which has made the
/// table. False: it has none.
fn row_of(table: &'static Table, n: u64, to: &mut Vec<u8>) -> bool {
    let t = xact::txn();
    let Some(r) = RecordRef::find(table, n) else { return false };
    let version = match t.last_write(r).and_then(|w| t.write(w)) {
        Some(write) => Some(write.version).filter(|_| write.kind != WriteKind::Delete),
        // SAFETY: INV-VERSION: only this transaction uses the table. So a committed version has
        // moved here, and nothing frees it before the transaction ends.
        None => NonNull::new(r.rec.head()).filter(|v| unsafe { v.as_ref() }.csn().is_some()),
    };
    let Some(version) = version else { return false };
    to.clear();
    // SAFETY: INV-VERSION: an own version, complete since it was handed to the engine, or one that
    // has moved here. Nothing frees it before the transaction ends.
    unsafe {
        let len = version.as_ref().len as usize;
        let payload = mixedcc_engine::record::Version::payload(version.as_ptr());
        stored::pack(std::slice::from_raw_parts(payload, len), to);
    }
    true
}
