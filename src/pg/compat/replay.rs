//! Blocks in recovery, as the startup process changes them.

use super::storage::{storage, storage_key, Storage};
use crate::pg::faults::{self, Fault};
use mixedcc_engine::durable::PAGE;
use pgrx::pg_sys::ForkNumber::{FSM_FORKNUM, MAIN_FORKNUM};
use pgrx::pg_sys::{self, Oid, ReadBufferMode};
use pgrx::prelude::*;

/// Locks a block of the journal, and marks it as dirty; then calls `f`, which says whether it has
/// changed the page. If it has, `lsn` becomes the page's position, if it is not 0. The block
/// exists, or is the first one behind the end and `fresh`. `fresh`: what stands there does not
/// matter.
///
/// # Safety
/// In the startup process, in the middle of replaying a record.
pub unsafe fn change_journal(
    key: [u32; 4],
    block: u32,
    fresh: bool,
    lsn: pg_sys::XLogRecPtr,
    f: impl FnOnce(&mut [u8; PAGE]) -> bool,
) {
    // SAFETY: the startup process alone changes pages in recovery (contract of this function). The
    // buffer is pinned and locked while the page is used. An ERROR ends the process.
    unsafe {
        let s = storage(Oid::from(key[0]), Oid::from(key[1]), Oid::from(key[2]));
        let buffer = if fresh {
            pg_sys::XLogReadBufferExtended(s, FSM_FORKNUM, block, ReadBufferMode::RBM_ZERO_AND_LOCK, 0)
        } else {
            let zero = ReadBufferMode::RBM_ZERO_ON_ERROR;
            let buffer = pg_sys::ReadBufferWithoutRelcache(s, FSM_FORKNUM, block, zero, std::ptr::null_mut(), true);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_EXCLUSIVE as i32);
            buffer
        };
        if buffer == pg_sys::InvalidBuffer as i32 {
            error!("mixedcc could not make block {block} of a journal");
        }
        if !faults::on(Fault::JournalNotDirty) {
            pg_sys::MarkBufferDirty(buffer);
        }
        let page = pg_sys::BufferGetPage(buffer).cast::<[u8; PAGE]>();
        if f(&mut *page) && lsn != 0 {
            let header = page.cast::<pg_sys::PageHeaderData>();
            (*header).pd_lsn = pg_sys::PageXLogRecPtr { xlogid: (lsn >> 32) as u32, xrecoff: lsn as u32 };
        }
        pg_sys::UnlockReleaseBuffer(buffer);
    }
}

/// A block that a record names.
pub struct Block {
    /// Its number in the record.
    pub id: u8,
    /// The storage.
    pub key: [u32; 4],
    /// Is it one of the main fork?
    pub is_main: bool,
    /// The block.
    pub block: u32,
}

/// The blocks that a record names.
///
/// # Safety
/// A reader that has read a record.
pub unsafe fn blocks_of(reader: *mut pg_sys::XLogReaderState) -> Vec<Block> {
    let mut all = Vec::new();
    // SAFETY: the reader has a record (contract of this function); a number that is not used in it
    // gives false.
    unsafe {
        for id in 0..=(*(*reader).record).max_block_id {
            let (id, mut s, mut fork, mut block) = (id as u8, Storage::default(), MAIN_FORKNUM, 0);
            if pg_sys::XLogRecGetBlockTagExtended(reader, id, &mut s, &mut fork, &mut block, std::ptr::null_mut()) {
                all.push(Block { id, key: storage_key(&s), is_main: fork == MAIN_FORKNUM, block });
            }
        }
    }
    all
}

/// Restores a block from its image in a record, and calls `f` with the page. False: the record has
/// no image of it.
///
/// # Safety
/// As of `rm_redo`; the record names a block with this number.
pub unsafe fn restore(reader: *mut pg_sys::XLogReaderState, id: u8, f: impl FnOnce(&[u8; PAGE])) -> bool {
    let mut buffer = pg_sys::InvalidBuffer as i32;
    // SAFETY: the startup process replays the record, which has the block (contract of this
    // function). The buffer comes locked and pinned, and is released after its last use.
    unsafe {
        let action = pg_sys::XLogReadBufferForRedo(reader, id, &mut buffer);
        let restored = action == pg_sys::XLogRedoAction::BLK_RESTORED;
        if restored {
            f(&*pg_sys::BufferGetPage(buffer).cast::<[u8; PAGE]>());
        }
        if buffer != pg_sys::InvalidBuffer as i32 {
            pg_sys::UnlockReleaseBuffer(buffer);
        }
        restored
    }
}
