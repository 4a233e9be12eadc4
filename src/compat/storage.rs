//! Storages of relations: tablespace, database and number of a file.

use pgrx::pg_sys::ForkNumber::{FSM_FORKNUM, INIT_FORKNUM, MAIN_FORKNUM};
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

/// Identity of a storage.
pub type Storage = pg_sys::RelFileNode;

mod raw {
    use super::*;
    extern "C-unwind" {
        pub fn log_smgrcreate(storage: *const Storage, fork: pg_sys::ForkNumber::Type);
        pub fn RelidByRelfilenode(tablespace: Oid, number: Oid) -> Oid;
    }
}

/// The storage with this name.
pub fn storage(tablespace: Oid, database: Oid, number: Oid) -> Storage {
    Storage { spcNode: tablespace, dbNode: database, relNode: number }
}

/// The storage of a relation.
///
/// # Safety
/// An open relation.
#[inline]
pub unsafe fn storage_of(rel: pg_sys::Relation) -> Storage {
    // SAFETY: the caller's.
    unsafe { (*rel).rd_node }
}

/// Its number alone.
///
/// # Safety
/// An open relation.
#[inline]
pub unsafe fn storage_number(rel: pg_sys::Relation) -> u32 {
    // SAFETY: the caller's.
    unsafe { (*rel).rd_node.relNode.to_u32() }
}

/// A storage as the engine's tables name it.
#[inline]
pub fn storage_key(s: &Storage) -> [u32; 4] {
    [s.spcNode.to_u32(), s.dbNode.to_u32(), s.relNode.to_u32(), 0]
}

/// The relation of a storage of this database (relfilenumbermap.h), or `InvalidOid`.
///
/// # Safety
/// Within a transaction that can look at catalogs.
pub unsafe fn relation_of(key: [u32; 4]) -> Oid {
    // SAFETY: the caller's; an ERROR is caught at the boundary.
    unsafe {
        let tablespace = if key[0] == pg_sys::MyDatabaseTableSpace.to_u32() { 0 } else { key[0] };
        pg_sys::ffi::pg_guard_ffi_boundary(|| raw::RelidByRelfilenode(Oid::from(tablespace), Oid::from(key[2])))
    }
}

/// Makes the storage of a table: an empty main fork and, as for every unlogged relation, an init fork.
///
/// # Safety
/// Within a transaction; the storage is new.
pub unsafe fn create_storage(s: &Storage, persistence: core::ffi::c_char) {
    // SAFETY: the caller's; smgr.h's and storage_xlog.h's contracts, as heap's access method does it.
    unsafe {
        let smgr = pg_sys::RelationCreateStorage(*s, persistence, true);
        pg_sys::smgrcreate(smgr, INIT_FORKNUM, false);
        pg_sys::ffi::pg_guard_ffi_boundary(|| raw::log_smgrcreate(s, INIT_FORKNUM));
        pg_sys::smgrimmedsync(smgr, INIT_FORKNUM);
        pg_sys::smgrclose(smgr);
    }
}

#[repr(C, align(4096))]
struct Page([u8; pg_sys::BLCKSZ as usize]);

/// Makes an index empty, as crash recovery does it: its init fork, which every unlogged index has,
/// becomes its main fork.
///
/// # Safety
/// Nobody uses the index (INV-ATTACH). It is unlogged, so that nothing of this needs WAL.
pub unsafe fn empty_index(s: Storage) {
    // SAFETY: the caller's; smgr.h's contracts. An ERROR in the middle leaves its table unknown.
    unsafe {
        let smgr = pg_sys::smgropen(s, pg_sys::InvalidBackendId);
        if !pg_sys::smgrexists(smgr, INIT_FORKNUM) {
            error!("mixedcc: index file {} has no init fork", s.relNode.to_u32());
        }
        let mut forks = [MAIN_FORKNUM, FSM_FORKNUM];
        let n = 1 + pg_sys::smgrexists(smgr, FSM_FORKNUM) as i32;
        pg_sys::smgrtruncate(smgr, forks.as_mut_ptr(), n, [0, 0].as_mut_ptr());
        (*smgr).smgr_targblock = pg_sys::InvalidBlockNumber;
        let mut page = Page([0; pg_sys::BLCKSZ as usize]);
        for block in 0..pg_sys::smgrnblocks(smgr, INIT_FORKNUM) {
            let buffer = pg_sys::ReadBufferWithoutRelcache(
                s,
                INIT_FORKNUM,
                block,
                pg_sys::ReadBufferMode::RBM_NORMAL,
                std::ptr::null_mut(),
                true,
            );
            page.0.as_mut_ptr().copy_from_nonoverlapping(pg_sys::BufferGetPage(buffer).cast(), page.0.len());
            pg_sys::ReleaseBuffer(buffer);
            let p = page.0.as_mut_ptr().cast();
            pg_sys::PageSetChecksumInplace(p, block);
            pg_sys::smgrextend(smgr, MAIN_FORKNUM, block, p, false);
        }
    }
}
