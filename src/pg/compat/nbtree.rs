//! The files of hollow indexes: nbtree indexes without entries, which the engine answers.
//!
//! **INV-HOLLOW**: Block 1 of a hollow index holds a mark that no page of nbtree has. It is written
//! when the file is built, and that build delivers no row to nbtree. So the file tells, in every
//! state of a transaction and after every crash, whether nbtree has the entries or the engine does.
//!
//! An unlogged index has an init fork as well. That of a hollow one has two blocks, that of any
//! other one has one. It tells where the main fork has no block 1 yet, because nbtree has no
//! entries: a hollow index gets its main fork when it has its init fork. Both forks agree, except
//! after pg_upgrade. That takes the main fork along with the rows. The init fork is one of the new
//! server, which may have made other indexes of the table hollow. A crash, and the first use of a
//! table that starts empty, make the main fork anew by the init fork: then both agree again, and
//! the table has no rows.
//!
//! Both forks are *poisoned*. The metapage names block 1, an empty leaf, as the root. It names the
//! same block as the *fast root*, and claims another level for that. Scans and inserts of nbtree
//! begin at the fast root. If they come to the file by mistake, they raise an ERROR. amcheck begins
//! at the root, and finds a sound tree without entries. VACUUM reads all pages, and deletes no
//! root. The build of a permanent index writes its metapage after block 1. So the main fork of such
//! an index is poisoned before the commit of the transaction that builds it.
//!
//! In unlogged files of the first builds of 0.2.0 block 1 is a zero page, and amcheck fails too.
//! There the init fork tells. [`poison`] rewrites the main fork of such an index when a session
//! uses it. The init fork stays. In those of later builds block 1 has no mark. There the metapage
//! tells: only a hollow index has a poisoned one.

use super::storage::{is_permanent, open_storage, storage_of, Page, Storage};
use pgrx::pg_sys::ForkNumber::{INIT_FORKNUM, MAIN_FORKNUM};
use pgrx::pg_sys::{self, Relation};

/// The metapage, and the root that it names.
const META: u32 = 0;
const ROOT: u32 = 1;
const BLOCKS: u32 = 2;
/// The level of the root, and the one that the metapage claims for the fast root. A fast root on a
/// level above 0 is an inner page, so nbtree must read it.
const LEVEL: u32 = 0;
const FAST_LEVEL: u32 = 2;
/// `btpo_flags` in nbtree's data at the end of a page (`BTPageOpaqueData`): where they begin there,
/// and `BTP_LEAF | BTP_ROOT`. The other data of a root without neighbours are zeros.
const FLAGS_AT: usize = 12;
const LEAF_AND_ROOT: u16 = 1 | 2;
/// Stands behind the flags, where nbtree has the number of the VACUUM that split the page. Such
/// numbers end at `MAX_BT_CYCLE_ID` (0xFF7F). So it tells a hollow index from others.
const MARK: u16 = 0xFFCC;

mod raw {
    use super::*;
    extern "C-unwind" {
        pub fn _bt_initmetapage(page: pg_sys::Page, root: u32, level: u32, allequalimage: bool);
        // Without the guard of the bindings: it raises no ERROR in a critical section.
        pub fn log_newpage_buffer(buffer: pg_sys::Buffer, standard: bool) -> pg_sys::XLogRecPtr;
        pub fn _bt_pageinit(page: pg_sys::Page, size: pg_sys::Size);
    }
}

/// The first fields of nbtree's metapage (`BTMetaPageData`), behind the page's header.
#[repr(C)]
struct Meta {
    magic: u32,
    version: u32,
    root: u32,
    level: u32,
    fast_root: u32,
    fast_level: u32,
}

/// Writes a poisoned page.
///
/// # Safety
/// A page that no other session reads or writes meanwhile.
unsafe fn fill(page: pg_sys::Page, block: u32) {
    // SAFETY: `page` is writable (contract of this function). The fields of the metapage lie within
    // it, and `_bt_pageinit` leaves room for nbtree's data at its end.
    unsafe {
        let bytes = page.cast::<u8>();
        if block == META {
            // The last argument may always be false: it only allows nbtree to merge entries.
            raw::_bt_initmetapage(page, ROOT, LEVEL, false);
            (*bytes.add(super::PAGE_HEADER).cast::<Meta>()).fast_level = FAST_LEVEL;
        } else {
            raw::_bt_pageinit(page, pg_sys::BLCKSZ as usize);
            let end = (*page.cast::<pg_sys::PageHeaderData>()).pd_special as usize;
            bytes.add(end + FLAGS_AT).cast::<[u16; 2]>().write([LEAF_AND_ROOT, MARK]);
        }
    }
}

/// Does the engine keep the entries of an index?
///
/// # Safety
/// An open nbtree index of a table of ours.
pub unsafe fn is_hollow(index: Relation) -> bool {
    // SAFETY: `index` is open (contract of this function), so its storage can be opened.
    unsafe {
        if is_permanent(index) {
            return is_marked(index);
        }
        is_hollow_storage(storage_of(index), false)
    }
}

/// The same by the index's storage, which is there. `permanent`: the index survives a crash.
///
/// # Safety
/// The storage of an nbtree index of a table of ours.
pub unsafe fn is_hollow_storage(storage: Storage, permanent: bool) -> bool {
    // SAFETY: the storage is there (contract of this function).
    unsafe {
        let smgr = open_storage(&storage);
        // Another session may build the file. It does so outside of buffers, and none may get a
        // block of it before that. An unlogged one has its init fork afterwards.
        if !permanent && !pg_sys::smgrexists(smgr, INIT_FORKNUM) {
            return false;
        }
        let (mode, strategy) = (pg_sys::ReadBufferMode::RBM_NORMAL, std::ptr::null_mut());
        let read = |block| pg_sys::ReadBufferWithoutRelcache(storage, MAIN_FORKNUM, block, mode, strategy, permanent);
        let has_root = pg_sys::smgrexists(smgr, MAIN_FORKNUM) && pg_sys::smgrnblocks(smgr, MAIN_FORKNUM) >= BLOCKS;
        match if has_root { mark(read(ROOT)) } else { None } {
            Some(true) => true,
            _ if permanent => false,
            Some(false) => is_poisoned(read(META)),
            None => pg_sys::smgrnblocks(smgr, INIT_FORKNUM) == BLOCKS,
        }
    }
}

/// Has a permanent index the mark of a hollow one?
unsafe fn is_marked(index: Relation) -> bool {
    // SAFETY: `index` is open (contract of `is_hollow`).
    unsafe { blocks(index) >= BLOCKS && mark(read(index, ROOT, pg_sys::ReadBufferMode::RBM_NORMAL)) == Some(true) }
}

/// Has the page in a buffer that mark? `None`: it is a zero page. The buffer, which is pinned, is
/// given back.
unsafe fn mark(buffer: pg_sys::Buffer) -> Option<bool> {
    // SAFETY: `buffer` is pinned (callers), and locked while it is read. The mark lies within the
    // page.
    unsafe {
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
        let page = pg_sys::BufferGetPage(buffer);
        let head = page.cast::<pg_sys::PageHeaderData>();
        let (end, is_new) = ((*head).pd_special as usize, (*head).pd_upper == 0);
        let has_data = end + FLAGS_AT + size_of::<[u16; 2]>() == pg_sys::BLCKSZ as usize;
        let is_marked = has_data && page.cast::<u8>().add(end + FLAGS_AT).cast::<[u16; 2]>().read()[1] == MARK;
        pg_sys::UnlockReleaseBuffer(buffer);
        (!is_new).then_some(is_marked)
    }
}

/// May the file that is being built be a hollow one? Not if it has the init fork of another.
///
/// # Safety
/// As for [`is_hollow`].
pub unsafe fn may_be_hollow(index: Relation) -> bool {
    // SAFETY: `index` is open (contract of this function), so its storage can be opened.
    unsafe { !pg_sys::smgrexists(open_storage(&storage_of(index)), INIT_FORKNUM) || is_hollow(index) }
}

/// Writes the init fork of a hollow index, which exists and is empty (`ambuildempty`).
///
/// # Safety
/// An nbtree index that is being built, locked exclusively.
pub unsafe fn write_hollow_init(index: Relation) {
    // SAFETY: the index is being built, so no other session reads its init fork (contract of this
    // function). Both pages are of this frame.
    unsafe {
        let mut storage = storage_of(index);
        let smgr = open_storage(&storage);
        let (mut meta, mut root) = (Page::zero(), Page::zero());
        for (block, page) in [(META, &mut meta), (ROOT, &mut root)] {
            fill(page.page(), block);
            // Logged first: that puts the record's place into the page.
            pg_sys::log_newpage(&mut storage, INIT_FORKNUM, block, page.page(), true);
            pg_sys::PageSetChecksumInplace(page.page(), block);
            pg_sys::smgrextend(smgr, INIT_FORKNUM, block, page.page().cast(), false);
        }
        pg_sys::smgrimmedsync(smgr, INIT_FORKNUM);
    }
}

/// Marks a permanent index that is being built as a hollow one. nbtree has written no page yet, and
/// will write its metapage only.
///
/// # Safety
/// An nbtree index that is being built, locked exclusively; its main fork is empty.
pub unsafe fn write_hollow_mark(index: Relation) {
    // SAFETY: the index is being built, so no other session reads it, and no buffer has its blocks
    // (contract of this function). The page is of this frame.
    unsafe {
        let mut storage = storage_of(index);
        let smgr = open_storage(&storage);
        let mut mark = Page::zero();
        fill(mark.page(), ROOT);
        let replay_from = pg_sys::GetRedoRecPtr();
        // Logged first: that puts the record's place into the page.
        pg_sys::log_newpage(&mut storage, MAIN_FORKNUM, ROOT, mark.page(), true);
        pg_sys::PageSetChecksumInplace(mark.page(), ROOT);
        pg_sys::smgrextend(smgr, MAIN_FORKNUM, ROOT, mark.page().cast(), false);
        // A checkpoint that has begun meanwhile may have missed the page, and replay begins behind
        // its record. One that begins later syncs it. (nbtree syncs the file too. From version 17
        // on it does so only if a checkpoint has begun since nbtree's own first page.)
        if pg_sys::GetRedoRecPtr() != replay_from {
            pg_sys::smgrimmedsync(smgr, MAIN_FORKNUM);
        }
    }
}

/// Poisons the main fork of a hollow index, if it is not. Sessions may do so at the same time.
///
/// # Safety
/// An open hollow index (INV-HOLLOW). The caller holds no page of it.
pub unsafe fn poison(index: Relation) {
    // SAFETY: `index` is open and hollow (contract of this function), so no session needs what is
    // on its pages. A buffer is locked while its page is written.
    unsafe {
        if blocks(index) >= BLOCKS && is_poisoned(read(index, META, pg_sys::ReadBufferMode::RBM_NORMAL)) {
            return;
        }
        if is_permanent(index) {
            return poison_permanent(index);
        }
        pg_sys::LockRelationForExtension(index, pg_sys::ExclusiveLock as i32);
        while blocks(index) < BLOCKS {
            let buffer = read(index, pg_sys::InvalidBlockNumber, pg_sys::ReadBufferMode::RBM_ZERO_AND_LOCK);
            pg_sys::MarkBufferDirty(buffer);
            pg_sys::UnlockReleaseBuffer(buffer);
        }
        pg_sys::UnlockRelationForExtension(index, pg_sys::ExclusiveLock as i32);
        for block in [ROOT, META] {
            let buffer = read(index, block, pg_sys::ReadBufferMode::RBM_ZERO_AND_LOCK);
            fill(pg_sys::BufferGetPage(buffer), block);
            pg_sys::MarkBufferDirty(buffer);
            pg_sys::UnlockReleaseBuffer(buffer);
        }
    }
}

/// Poisons the metapage of a permanent index, and logs that. In recovery no process does so: the
/// primary's record comes.
unsafe fn poison_permanent(index: Relation) {
    // SAFETY: `index` is open, hollow and permanent: contract of `poison`, its only caller. The
    // buffer is locked while its page is written, and nothing in the critical section raises an
    // ERROR.
    unsafe {
        if pg_sys::RecoveryInProgress() {
            return;
        }
        let buffer = read(index, META, pg_sys::ReadBufferMode::RBM_ZERO_AND_LOCK);
        let page = pg_sys::BufferGetPage(buffer);
        pg_sys::CritSectionCount += 1;
        fill(page, META);
        pg_sys::MarkBufferDirty(buffer);
        raw::log_newpage_buffer(buffer, true);
        pg_sys::CritSectionCount -= 1;
        pg_sys::UnlockReleaseBuffer(buffer);
    }
}

unsafe fn blocks(index: Relation) -> u32 {
    // SAFETY: `index` is open: contract of `poison`.
    unsafe { pg_sys::RelationGetNumberOfBlocksInFork(index, MAIN_FORKNUM) }
}

unsafe fn read(index: Relation, block: u32, mode: pg_sys::ReadBufferMode::Type) -> pg_sys::Buffer {
    // SAFETY: `index` is open, and has the block, or is extended by it under the lock for that:
    // contract of `poison`.
    unsafe { pg_sys::ReadBufferExtended(index, MAIN_FORKNUM, block, mode, std::ptr::null_mut()) }
}

/// Is the metapage in a buffer the poisoned one? The root is written before it. The buffer, which
/// is pinned, is given back.
unsafe fn is_poisoned(buffer: pg_sys::Buffer) -> bool {
    // SAFETY: `buffer` is pinned (callers), and locked while it is read. The fields lie within the
    // page.
    unsafe {
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
        let meta = pg_sys::BufferGetPage(buffer).cast::<u8>().add(super::PAGE_HEADER).cast::<Meta>();
        let names = [(*meta).root, (*meta).level, (*meta).fast_root, (*meta).fast_level];
        let is_poisoned = (*meta).magic != 0 && (*meta).version != 0 && names == [ROOT, LEVEL, ROOT, FAST_LEVEL];
        pg_sys::UnlockReleaseBuffer(buffer);
        is_poisoned
    }
}
