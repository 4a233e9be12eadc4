//! Blocks of the forks of permanent storages: through shared buffers, and as they are on disk.

use super::storage::{open_storage, storage, Storage};
use super::wal::{begin_record, insert_record, register_data};
use crate::pg::faults::{self, Fault};
use mixedcc_engine::durable::merge::Fork;
use mixedcc_engine::durable::{Lsn, PAGE};
use pgrx::pg_sys::ForkNumber::{FSM_FORKNUM, MAIN_FORKNUM};
use pgrx::pg_sys::{self, Oid};

/// The most pages of one record.
pub const PAGES_MAX: usize = 32;

/// Functions without the bindings' guard. An ERROR in a critical section ends the process.
mod raw {
    extern "C-unwind" {
        pub fn XLogRegisterBuffer(number: u8, buffer: i32, flags: u8);
        pub fn MarkBufferDirty(buffer: i32);
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        pub fn smgrdestroyall();
    }
}

fn named(key: [u32; 4]) -> Storage {
    storage(Oid::from(key[0]), Oid::from(key[1]), Oid::from(key[2]))
}

fn number(fork: Fork) -> pg_sys::ForkNumber::Type {
    match fork {
        Fork::Main => MAIN_FORKNUM,
        Fork::Journal => FSM_FORKNUM,
    }
}

/// Does the file of a fork exist?
///
/// # Safety
/// A process that may read files: it has a resource owner, and catches an ERROR.
pub unsafe fn exists(key: [u32; 4], fork: Fork) -> bool {
    // SAFETY: any storage is answered; a missing file is an answer too.
    unsafe { pg_sys::smgrexists(open_storage(&named(key)), number(fork)) }
}

/// The blocks of a fork, which exists.
///
/// # Safety
/// As of [`exists`].
pub unsafe fn blocks(key: [u32; 4], fork: Fork) -> u32 {
    // SAFETY: any storage is answered; a missing file is an ERROR.
    unsafe { pg_sys::smgrnblocks(open_storage(&named(key)), number(fork)) }
}

/// Adds a block of zeros to a fork, and says its number. No other process extends the fork.
///
/// # Safety
/// As of [`exists`].
pub unsafe fn extend(key: [u32; 4], fork: Fork) -> u32 {
    // SAFETY: the buffer is pinned and locked until UnlockReleaseBuffer. (From 16 on
    // ReadBufferWithoutRelcache cannot extend.)
    unsafe {
        #[cfg(feature = "pg15")]
        let buffer = {
            const P_NEW: u32 = u32::MAX;
            read_buffer(key, fork, P_NEW, pg_sys::ReadBufferMode::RBM_ZERO_AND_LOCK, std::ptr::null_mut())
        };
        #[cfg(not(feature = "pg15"))]
        let buffer = {
            use pg_sys::ExtendBufferedFlags::{EB_LOCK_FIRST, EB_SKIP_EXTENSION_LOCK};
            let of = pg_sys::BufferManagerRelation {
                rel: std::ptr::null_mut(),
                smgr: open_storage(&named(key)),
                relpersistence: pg_sys::RELPERSISTENCE_PERMANENT as core::ffi::c_char,
            };
            pg_sys::ExtendBufferedRel(of, number(fork), std::ptr::null_mut(), EB_LOCK_FIRST | EB_SKIP_EXTENSION_LOCK)
        };
        let block = pg_sys::BufferGetBlockNumber(buffer);
        pg_sys::UnlockReleaseBuffer(buffer);
        block
    }
}

/// # Safety
/// As of [`exists`].
unsafe fn read_buffer(
    key: [u32; 4],
    fork: Fork,
    block: u32,
    mode: pg_sys::ReadBufferMode::Type,
    strategy: pg_sys::BufferAccessStrategy,
) -> pg_sys::Buffer {
    // SAFETY: the storage is a permanent one; an ERROR is caught by the caller (contract of this
    // function).
    unsafe { pg_sys::ReadBufferWithoutRelcache(named(key), number(fork), block, mode, strategy, true) }
}

/// While it lives, a damaged block is an ERROR also where `zero_damaged_pages` is on. A load would
/// take a block of zeros for a new one, and an older entry of a row for its newest.
struct Refused(bool);

impl Refused {
    fn begin() -> Refused {
        // SAFETY: a variable of this process, which has one thread.
        Refused(unsafe { std::ptr::replace(&raw mut pg_sys::zero_damaged_pages, false) })
    }
}

impl Drop for Refused {
    fn drop(&mut self) {
        // SAFETY: as in `begin`. An ERROR unwinds to here.
        unsafe { pg_sys::zero_damaged_pages = self.0 };
    }
}

/// Copies a block out of the shared buffers. `or_zero`: a block that cannot be read is one of
/// zeros, else it is an ERROR. Where the buffer is of zeros, the disk has the say: a session with
/// `zero_damaged_pages` may have read the block before, as pg_prewarm does.
///
/// # Safety
/// As of [`exists`]. `strategy` is null or an access strategy.
pub unsafe fn read(
    key: [u32; 4],
    fork: Fork,
    block: u32,
    or_zero: bool,
    strategy: pg_sys::BufferAccessStrategy,
    to: &mut [u8; PAGE],
) {
    use pg_sys::ReadBufferMode::{RBM_NORMAL, RBM_ZERO_ON_ERROR};
    let _refused = Refused::begin();
    // SAFETY: the buffer is pinned and locked while it is copied; a page has PAGE bytes.
    unsafe {
        let buffer = read_buffer(key, fork, block, if or_zero { RBM_ZERO_ON_ERROR } else { RBM_NORMAL }, strategy);
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
        to.as_mut_ptr().copy_from_nonoverlapping(pg_sys::BufferGetPage(buffer).cast(), PAGE);
        pg_sys::UnlockReleaseBuffer(buffer);
        if !or_zero && to.iter().all(|byte| *byte == 0) {
            read_raw(key, fork, block, to);
        }
    }
}

/// Copies a block as it is on disk.
///
/// # Safety
/// As of [`exists`].
pub unsafe fn read_raw(key: [u32; 4], fork: Fork, block: u32, to: &mut [u8; PAGE]) {
    // SAFETY: `to` has the size of a block.
    unsafe { pg_sys::smgrread(open_storage(&named(key)), number(fork), block, to.as_mut_ptr().cast()) };
}

/// Cuts a fork to so many blocks, without a WAL record. Dirty buffers behind them are dropped.
///
/// # Safety
/// As of [`exists`]; no other process uses the blocks that go.
pub unsafe fn truncate(key: [u32; 4], fork: Fork, blocks: u32) {
    // SAFETY: arrays of one element for one fork (smgr.h).
    unsafe {
        let smgr = open_storage(&named(key));
        let (mut forks, mut to) = ([number(fork)], [blocks]);
        #[cfg(not(feature = "pg18"))]
        pg_sys::smgrtruncate(smgr, forks.as_mut_ptr(), 1, to.as_mut_ptr());
        #[cfg(feature = "pg18")]
        {
            let mut from = [pg_sys::smgrnblocks(smgr, forks[0])];
            pg_sys::smgrtruncate(smgr, forks.as_mut_ptr(), 1, from.as_mut_ptr(), to.as_mut_ptr());
        }
    }
}

/// Closes the files of all storages that the process has open. Within a transaction its end does
/// so.
pub fn close_all() {
    // SAFETY: no caller keeps a pointer to an open storage. (From 17 on the entries are freed
    // besides.)
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        pg_sys::smgrcloseall();
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        raw::smgrdestroyall();
    }
}

/// A page that is written, with its full image in WAL.
#[derive(Clone, Copy)]
pub struct Image<'a> {
    /// The block of the main fork. It exists.
    pub block: u32,
    /// The page replaces one that still counts. (Else the old content is not read.)
    pub live: bool,
    /// The page.
    pub page: &'a [u8; PAGE],
}

/// Writes pages of a main fork, in one WAL record of this resource manager and info. Says where the
/// record ends. An ERROR leaves all as it was.
///
/// # Safety
/// As of [`exists`]. The pages are at most [`PAGES_MAX`] blocks, each once, that no other process
/// uses. `strategy` is null or an access strategy.
pub unsafe fn write(
    key: [u32; 4],
    (manager, info): (u8, u8),
    data: &[u8],
    pages: &[Image],
    strategy: pg_sys::BufferAccessStrategy,
) -> Lsn {
    use pg_sys::ReadBufferMode::{RBM_ZERO_AND_LOCK, RBM_ZERO_ON_ERROR};
    assert!(pages.len() <= PAGES_MAX, "they fit into a record");
    let mut buffers = [0; PAGES_MAX];
    let flags = (pg_sys::REGBUF_FORCE_IMAGE | pg_sys::REGBUF_STANDARD) as u8;
    // SAFETY: the buffers are pinned and locked from the first loop to the last one. Before the
    // critical section nothing of a live page is changed, and an ERROR's clean-up unlocks. In it
    // nothing unwinds, and the record has room for the pages (XLogEnsureRecordSpace).
    unsafe {
        pg_sys::XLogEnsureRecordSpace(PAGES_MAX as i32, 0);
        for (buffer, image) in buffers.iter_mut().zip(pages) {
            let mode = if image.live { RBM_ZERO_ON_ERROR } else { RBM_ZERO_AND_LOCK };
            *buffer = read_buffer(key, Fork::Main, image.block, mode, strategy);
            if image.live {
                pg_sys::LockBuffer(*buffer, pg_sys::BUFFER_LOCK_EXCLUSIVE as i32);
            }
        }
        pg_sys::CritSectionCount += 1;
        begin_record();
        for (i, image) in pages.iter().enumerate() {
            let page = pg_sys::BufferGetPage(buffers[i]);
            page.cast::<u8>().copy_from_nonoverlapping(image.page.as_ptr(), PAGE);
            if !faults::on(Fault::ImagesNotDirty) {
                raw::MarkBufferDirty(buffers[i]);
            }
            raw::XLogRegisterBuffer(i as u8, buffers[i], flags);
        }
        register_data(data);
        let lsn = insert_record(manager, info, 0);
        for buffer in &buffers[..pages.len()] {
            let page = pg_sys::BufferGetPage(*buffer).cast::<pg_sys::PageHeaderData>();
            (*page).pd_lsn = pg_sys::PageXLogRecPtr { xlogid: (lsn >> 32) as u32, xrecoff: lsn as u32 };
        }
        pg_sys::CritSectionCount -= 1;
        for buffer in &buffers[..pages.len()] {
            pg_sys::UnlockReleaseBuffer(*buffer);
        }
        lsn
    }
}
