//! What this process is making in the region, and what no other process can reach yet.
//!
//! **INV-MAKING**: A process that is terminated ends without unwinding: no destructor runs. So what
//! it makes is in a list of the process until others can reach it, or its transaction has it: a
//! map, an index, or a table that it loads or to which rows move. The process frees all of the list
//! when it exits. A change of what others can reach is in `xact/pending.rs` before it begins.

use crate::pg::faults::{self, Fault};
use crate::pg::local::Local;
use crate::state::{loads, shmem, xact};
use mixedcc_engine::csn::SlotId;
use mixedcc_engine::index::Primary;
use mixedcc_engine::partition::PartitionMap;
use mixedcc_engine::record::Version;
use mixedcc_engine::{Engine, Table};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ops::Deref;
use std::ptr::NonNull;

enum What {
    Map(NonNull<PartitionMap>),
    Index(&'static Primary),
    /// With versions that it has, or that it will have, by their records.
    Table(&'static Table, Vec<(u64, NonNull<Version>)>),
}

impl What {
    /// Frees it.
    fn free(self, e: &Engine, slot: SlotId) {
        // SAFETY: INV-MAKING: no other process can reach it (INV-MAP, INV-TABLE), and it has left
        // the list, so that it is freed once. INV-VERSION: a version that no record has is this
        // process's own.
        unsafe {
            match self {
                What::Map(map) => e.region.free(slot as usize, map.cast()),
                What::Index(index) => index.destroy(e, slot),
                What::Table(table, versions) => {
                    for (no, version) in versions {
                        if table.record(no).is_none_or(|r| r.head() != version.as_ptr()) {
                            e.region.free(slot as usize, version.cast());
                        }
                    }
                    table.destroy(e, slot);
                }
            }
        }
    }
}

/// Of the process, with their numbers.
struct List {
    all: Vec<(u64, What)>,
    last: u64,
    sees_to_exit: bool,
}

static LIST: Local<List> = Local::new(List { all: Vec::new(), last: 0, sees_to_exit: false });

/// Something that is being made. Dropped before it is done, as by an ERROR, it is freed.
pub struct Making<T: Copy> {
    made: T,
    number: u64,
}

impl<T: Copy> Making<T> {
    fn new(made: T, what: What) -> Making<T> {
        // SAFETY: a process has one thread, and nothing is called while the reference is in use.
        let list = unsafe { LIST.get_mut() };
        list.last += 1;
        list.all.push((list.last, what));
        Making { made, number: list.last }
    }

    /// Others can reach it from now on, or the transaction has it.
    pub fn done(self) -> T {
        take(self.number);
        self.made
    }
}

impl Making<NonNull<PartitionMap>> {
    /// A map that no table has.
    pub fn map(map: NonNull<PartitionMap>) -> Self {
        see_to_exit();
        Making::new(map, What::Map(map))
    }
}

impl Making<&'static Primary> {
    /// An index that no table has.
    pub fn index(index: &'static Primary) -> Self {
        see_to_exit();
        Making::new(index, What::Index(index))
    }
}

impl Making<&'static Table> {
    /// A table that is not registered.
    pub fn table(table: &'static Table) -> Self {
        see_to_exit();
        Making::new(table, What::Table(table, Vec::new()))
    }

    /// A version that this process has made for a record of the table. It may not be the newest one
    /// there.
    pub fn note_version(&self, no: u64, version: NonNull<Version>) {
        // SAFETY: as in `new`.
        let all = unsafe { &mut LIST.get_mut().all };
        if let Some((_, What::Table(_, versions))) = all.iter_mut().find(|(number, _)| *number == self.number) {
            versions.push((no, version));
        }
    }
}

impl<T: Copy> Deref for Making<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.made
    }
}

impl<T: Copy> Drop for Making<T> {
    fn drop(&mut self) {
        if let Some(what) = take(self.number) {
            what.free(&shmem::engine(), shmem::my_slot());
        }
    }
}

fn take(number: u64) -> Option<What> {
    // SAFETY: as in `new`.
    let all = unsafe { &mut LIST.get_mut().all };
    let at = all.iter().rposition(|(n, _)| *n == number)?;
    Some(all.swap_remove(at).1)
}

/// From now on `at_exit` runs before the process gives its memory back, and before its transaction
/// is undone.
pub fn see_to_exit() {
    xact::be_there();
    // SAFETY: a process has one thread, and the reference is not kept.
    if !std::mem::replace(unsafe { &mut LIST.get_mut().sees_to_exit }, true) {
        // SAFETY: the callback is a function of this library, which is never unloaded.
        unsafe { pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::from(0)) };
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: i32, _arg: pg_sys::Datum) {
    loads::mine().end();
    if faults::on(Fault::MadeLeft) {
        return;
    }
    // SAFETY: as in `see_to_exit`.
    for (_, what) in std::mem::take(unsafe { &mut LIST.get_mut().all }) {
        what.free(&shmem::engine(), shmem::my_slot());
    }
}
