//! SET TABLESPACE: the rows of a table move into a storage of another tablespace.
//!
//! They keep their record numbers, so the indexes, which PostgreSQL copies or leaves, stay right.
//! The new storage has a table of its own, which only this transaction can find before it commits.
//! The commit writes the rows of a permanent table as images ([`crate::durable::bulk`]), and the
//! old storage goes away with it. An abort takes the new one away.

use crate::access::{primary, visible};
use crate::pg::compat::{self, Storage};
use crate::pg::stored;
use crate::state::errors::{ok, raise};
use crate::state::making::Making;
use crate::state::{rel, shmem, stop, xact};
use mixedcc_engine::csn::SlotId;
use mixedcc_engine::record::Version;
use mixedcc_engine::txn::RecordRef;
use mixedcc_engine::{Engine, Error, Table};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ptr::NonNull;

/// Moves the rows of a relation into a new storage.
///
/// # Safety
/// tableam.h's contract of `relation_copy_data`: `rel` is open and locked exclusively, and
/// `storage` is new.
pub unsafe fn copy_data(rel: pg_sys::Relation, storage: &Storage) {
    // SAFETY: the contract of this function. The old storage is dropped at commit.
    unsafe {
        let old = rel::table_of(rel);
        compat::create_storage(storage, (*(*rel).rd_rel).relpersistence);
        let old_key = compat::storage_key(&compat::storage_of(rel));
        let key = compat::storage_key(storage);
        Move::begin(rel, key, old).run(rel);
        xact::created(key);
        xact::dropped(old_key);
        pg_sys::RelationDropStorage(rel);
    }
}

/// A move under way.
struct Move {
    e: Engine,
    slot: SlotId,
    old: &'static Table,
    new: Making<&'static Table>,
}

impl Move {
    /// # Safety
    /// An open relation of ours, and its table.
    unsafe fn begin(rel: pg_sys::Relation, key: [u32; 4], old: &'static Table) -> Move {
        let (e, slot) = (shmem::engine(), shmem::my_slot());
        // SAFETY: the contract of this function.
        match unsafe { rel::make_like(rel, key, old) } {
            Ok(new) => Move { e, slot, old, new: Making::table(new) },
            Err(x) => raise(x.into()),
        }
    }

    /// # Safety
    /// The relation of the move, locked exclusively.
    unsafe fn run(self, rel: pg_sys::Relation) {
        let new = *self.new;
        // The transaction's pin keeps the versions that are copied.
        let t = xact::txn();
        if let Err(x) = new.begin_load(&self.e, self.slot, self.old.len()) {
            raise(x.into());
        }
        let mut row = Vec::new();
        for n in 0..self.old.len() {
            if n % 1024 == 0 {
                stop::reach("move-row");
                pgrx::check_for_interrupts!();
            }
            let Some(r) = RecordRef::find(self.old, n) else { continue };
            if let Some(version) = visible::newest(t, r) {
                self.put(new, r, version, &mut row);
            }
        }
        // Entries of dead rows may be in indexes.
        new.end_load(true);
        // SAFETY: `rel` is open and of ours (contract of this function). The transaction is pinned.
        match unsafe { primary::fill(rel, new, true, |_| false) } {
            Ok(None) => {}
            Ok(Some(twice)) => error!("mixedcc: {twice}"),
            Err(x) => raise(x),
        }
        match shmem::register(new) {
            Some(true) => {
                self.new.done();
            }
            Some(false) => error!("mixedcc: the storage of a new table is known already"),
            None => raise(Error::OutOfMemory),
        }
    }

    /// Puts a row into the same record of the new table.
    fn put(&self, new: &Table, r: RecordRef, version: NonNull<Version>, row: &mut Vec<u8>) {
        row.clear();
        let part = self.old.partition_no(r.rec) as u16;
        // SAFETY: INV-VERSION: the version is complete, and our pin keeps it. `load_row_at` has
        // allocated `len` bytes, which no other process sees.
        unsafe {
            let len = version.as_ref().len as usize;
            stored::pack(std::slice::from_raw_parts(Version::payload(version.as_ptr()), len), row);
            let to = ok(new.load_row_at(&self.e, self.slot, r.no, part, len as u32).map_err(Into::into));
            stored::unpack(row, std::slice::from_raw_parts_mut(to.as_ptr(), len));
        }
    }
}
