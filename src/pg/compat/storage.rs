//! Storages of relations: tablespace, database and number of a file.

use pgrx::pg_sys::ForkNumber::{FSM_FORKNUM, INIT_FORKNUM, MAIN_FORKNUM};
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

/// Identity of a storage.
#[cfg(feature = "pg15")]
pub type Storage = pg_sys::RelFileNode;
/// Identity of a storage.
#[cfg(not(feature = "pg15"))]
pub type Storage = pg_sys::RelFileLocator;

/// The backend that a relation which is not temporary belongs to: none.
const NO_BACKEND: i32 = -1;

mod raw {
    use super::*;
    extern "C-unwind" {
        pub fn log_smgrcreate(storage: *const Storage, fork: pg_sys::ForkNumber::Type);
        #[cfg(feature = "pg15")]
        pub fn RelidByRelfilenode(tablespace: Oid, number: Oid) -> Oid;
        #[cfg(not(feature = "pg15"))]
        pub fn RelidByRelfilenumber(tablespace: Oid, number: Oid) -> Oid;
    }
}

/// The storage with this name.
pub fn storage(tablespace: Oid, database: Oid, number: Oid) -> Storage {
    #[cfg(feature = "pg15")]
    return Storage { spcNode: tablespace, dbNode: database, relNode: number };
    #[cfg(not(feature = "pg15"))]
    return Storage { spcOid: tablespace, dbOid: database, relNumber: number };
}

/// The storage of a relation.
///
/// # Safety
/// An open relation.
#[inline]
pub unsafe fn storage_of(rel: pg_sys::Relation) -> Storage {
    // SAFETY: `rel` is open (contract of this function).
    #[cfg(feature = "pg15")]
    unsafe {
        (*rel).rd_node
    }
    // SAFETY: `rel` is open (contract of this function).
    #[cfg(not(feature = "pg15"))]
    unsafe {
        (*rel).rd_locator
    }
}

/// Its number alone.
///
/// # Safety
/// An open relation.
#[inline]
pub unsafe fn storage_number(rel: pg_sys::Relation) -> u32 {
    // SAFETY: `rel` is open (contract of this function).
    #[cfg(feature = "pg15")]
    unsafe {
        (*rel).rd_node.relNode.to_u32()
    }
    // SAFETY: `rel` is open (contract of this function).
    #[cfg(not(feature = "pg15"))]
    unsafe {
        (*rel).rd_locator.relNumber.to_u32()
    }
}

/// A storage as the engine's tables name it.
#[inline]
pub fn storage_key(s: &Storage) -> [u32; 4] {
    #[cfg(feature = "pg15")]
    let ids = [s.spcNode, s.dbNode, s.relNode];
    #[cfg(not(feature = "pg15"))]
    let ids = [s.spcOid, s.dbOid, s.relNumber];
    let [space, database, number] = ids.map(Oid::to_u32);
    [space, database, number, 0]
}

/// The relation of a storage of this database (relfilenumbermap.h), or `InvalidOid`.
///
/// # Safety
/// Within a transaction that can look at catalogs.
pub unsafe fn relation_of(key: [u32; 4]) -> Oid {
    // SAFETY: catalogs can be looked at (contract of this function): any storage is answered. An
    // ERROR is caught at the boundary.
    unsafe {
        let tablespace = if key[0] == pg_sys::MyDatabaseTableSpace.to_u32() { 0 } else { key[0] };
        let (tablespace, number) = (Oid::from(tablespace), Oid::from(key[2]));
        #[cfg(feature = "pg15")]
        return pg_sys::ffi::pg_guard_ffi_boundary(|| raw::RelidByRelfilenode(tablespace, number));
        #[cfg(not(feature = "pg15"))]
        return pg_sys::ffi::pg_guard_ffi_boundary(|| raw::RelidByRelfilenumber(tablespace, number));
    }
}

/// The file of a storage's main fork, in the data directory.
///
/// # Safety
/// In any process, with a current memory context.
pub unsafe fn main_file(key: [u32; 4]) -> String {
    let [space, database, number, _] = key.map(Oid::from);
    // SAFETY: the result is a C string: of ours to free up to 17, a field of `p` from 18 on. `p`
    // lives to the end of the block.
    unsafe {
        let p = pg_sys::GetRelationPath(database, space, number, NO_BACKEND, MAIN_FORKNUM);
        #[cfg(not(feature = "pg18"))]
        let text = p;
        #[cfg(feature = "pg18")]
        let text = p.str_.as_ptr();
        let path = std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned();
        #[cfg(not(feature = "pg18"))]
        pg_sys::pfree(p.cast());
        path
    }
}

/// A first page of a relation that holds these bytes behind its header, 512 at most, with a
/// checksum where the cluster has them.
///
/// # Safety
/// As of [`main_file`].
pub unsafe fn page_with(bytes: &[u8]) -> Vec<u8> {
    let mut page = Page::with(bytes);
    // SAFETY: `page` is a page, and nothing else refers to it.
    unsafe { pg_sys::PageSetChecksumInplace(page.page(), 0) };
    page.0.to_vec()
}

/// Where the bytes of [`page_with`] begin.
pub const PAGE_HEADER: usize = std::mem::offset_of!(pg_sys::PageHeaderData, pd_linp);

/// Is a relation permanent, so that its content survives a crash?
///
/// # Safety
/// An open relation.
#[inline]
pub unsafe fn is_permanent(rel: pg_sys::Relation) -> bool {
    // SAFETY: `rel` is open (contract of this function).
    unsafe { (*(*rel).rd_rel).relpersistence as u8 == pg_sys::RELPERSISTENCE_PERMANENT }
}

/// Makes the storage of a table: an empty main fork and, as for every unlogged relation, an init
/// fork. A permanent one has none, and PostgreSQL logs that it was made.
///
/// # Safety
/// Within a transaction; the storage is new.
pub unsafe fn create_storage(s: &Storage, persistence: core::ffi::c_char) {
    // SAFETY: a transaction is running, and the storage is new (contract of this function). `smgr`
    // is open from RelationCreateStorage to smgrclose (smgr.h).
    unsafe {
        let smgr = pg_sys::RelationCreateStorage(*s, persistence, true);
        if persistence as u8 == pg_sys::RELPERSISTENCE_UNLOGGED {
            pg_sys::smgrcreate(smgr, INIT_FORKNUM, false);
            pg_sys::ffi::pg_guard_ffi_boundary(|| raw::log_smgrcreate(s, INIT_FORKNUM));
            pg_sys::smgrimmedsync(smgr, INIT_FORKNUM);
        }
        pg_sys::smgrclose(smgr);
    }
}

/// A page of this process, aligned as files want it.
#[repr(C, align(4096))]
pub(super) struct Page([u8; pg_sys::BLCKSZ as usize]);

impl Page {
    /// A page of zeros.
    pub(super) fn zero() -> Page {
        Page([0; pg_sys::BLCKSZ as usize])
    }
    /// A page without a special space that holds these bytes behind its header, 512 at most.
    pub(super) fn with(bytes: &[u8]) -> Page {
        assert!(bytes.len() <= 512, "they fit behind the header");
        let mut page = Page::zero();
        // SAFETY: `page` is of this frame, as large as a block and aligned to 4096 bytes. Nothing
        // else refers to it.
        unsafe {
            pg_sys::PageInit(page.page(), pg_sys::BLCKSZ as usize, 0);
            (*page.page().cast::<pg_sys::PageHeaderData>()).pd_lower += bytes.len() as u16;
        }
        page.0[PAGE_HEADER..PAGE_HEADER + bytes.len()].copy_from_slice(bytes);
        page
    }
    /// The page, as PostgreSQL takes it.
    pub(super) fn page(&mut self) -> pg_sys::Page {
        self.0.as_mut_ptr().cast()
    }
}

/// Opens the files of a storage that is not temporary.
///
/// # Safety
/// Within a transaction, whose end closes them.
pub(super) unsafe fn open_storage(s: &Storage) -> pg_sys::SMgrRelation {
    // SAFETY: any storage is answered (smgr.h); nothing is read.
    unsafe { pg_sys::smgropen(*s, NO_BACKEND) }
}

/// Has an index an init fork? Every unlogged one has, from its build on.
///
/// # Safety
/// Within a transaction.
pub unsafe fn has_init_fork(s: Storage) -> bool {
    // SAFETY: any storage is answered (contract of `open_storage`).
    unsafe { pg_sys::smgrexists(open_storage(&s), INIT_FORKNUM) }
}

/// Makes an index empty, as crash recovery does it: its init fork becomes its main fork.
///
/// # Safety
/// No session uses the index (INV-ATTACH). It is unlogged, so that nothing of this needs WAL.
pub unsafe fn empty_index(s: Storage) {
    // SAFETY: no session uses the index, which is unlogged (INV-ATTACH; contract of this function).
    // `smgr` is what smgropen returned, and a buffer is pinned while it is copied. An ERROR in the
    // middle leaves its table unknown.
    unsafe {
        let smgr = open_storage(&s);
        if !has_init_fork(s) {
            error!("mixedcc: index file {} has no init fork", storage_key(&s)[2]);
        }
        let mut forks = [MAIN_FORKNUM, FSM_FORKNUM];
        let n = 1 + pg_sys::smgrexists(smgr, FSM_FORKNUM) as i32;
        #[cfg(not(feature = "pg18"))]
        pg_sys::smgrtruncate(smgr, forks.as_mut_ptr(), n, [0, 0].as_mut_ptr());
        #[cfg(feature = "pg18")]
        {
            let mut old = [0; 2];
            for i in 0..n as usize {
                old[i] = pg_sys::smgrnblocks(smgr, forks[i]);
            }
            pg_sys::smgrtruncate(smgr, forks.as_mut_ptr(), n, old.as_mut_ptr(), [0, 0].as_mut_ptr());
        }
        (*smgr).smgr_targblock = pg_sys::InvalidBlockNumber;
        let mut page = Page::zero();
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
            let p = page.0.as_mut_ptr();
            pg_sys::PageSetChecksumInplace(p.cast(), block);
            pg_sys::smgrextend(smgr, MAIN_FORKNUM, block, p.cast(), false);
        }
    }
}

/// Notes the relation of a parallel scan (relscan.h).
///
/// # Safety
/// Memory for a descriptor, and an open relation.
pub unsafe fn name_parallel_scan(pscan: pg_sys::ParallelTableScanDesc, rel: pg_sys::Relation) {
    // SAFETY: the contract of this function.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        {
            (*pscan).phs_relid = (*rel).rd_id;
        }
        #[cfg(feature = "pg18")]
        {
            (*pscan).phs_locator = (*rel).rd_locator;
        }
        (*pscan).phs_syncscan = false;
    }
}
