//! The journal fork of a storage, as redo writes it and absorption reads it.
//!
//! **D-JRN**: A journal page belongs to one redo interval. The startup process appends under the
//! page's exclusive lock. It marks the buffer dirty first, then reads the redo pointer, and appends
//! only if that is the interval's. A checkpointer publishes the redo pointer before it looks for
//! dirty buffers. So it writes the page with what was appended, or the page gets nothing more.

use crate::pg::{buffers, compat, wal};
use mixedcc_engine::durable::journal::File;
use mixedcc_engine::durable::merge::Fork;
use mixedcc_engine::durable::{page, Lsn, Storage, PAGE};

/// The journal of a storage, in the startup process.
pub struct InRecovery(pub Storage);

impl File for InRecovery {
    fn blocks(&mut self) -> u32 {
        blocks(self.0.into())
    }
    fn look(&mut self, block: u32, to: &mut [u8; PAGE]) {
        look(self.0.into(), Fork::Journal, block, to);
    }
    fn redo(&self) -> Lsn {
        wal::redo_pointer()
    }
    fn change(&mut self, block: u32, fresh: bool, lsn: Lsn, f: &mut dyn FnMut(&mut [u8; PAGE], Lsn) -> bool) {
        // SAFETY: in the startup process, in the middle of a record. The redo pointer is read after
        // the buffer is marked dirty (D-JRN).
        unsafe {
            compat::change_journal(self.0.into(), block, fresh, lsn, |page| f(page, wal::redo_pointer()));
        }
    }
}

/// The blocks of a journal. No file: 0.
pub fn blocks(key: [u32; 4]) -> u32 {
    if buffers::exists(key, Fork::Journal) {
        buffers::blocks(key, Fork::Journal)
    } else {
        0
    }
}

/// Reads a block by way of shared buffers. If PostgreSQL's checksum of it is wrong, shared buffers
/// show zeros; then the block as it is on disk.
pub fn look(key: [u32; 4], fork: Fork, block: u32, to: &mut [u8; PAGE]) {
    buffers::read(key, fork, block, true, None, to);
    if page::is_new(to) {
        buffers::read_raw(key, fork, block, to);
    }
}

/// The meta page of a storage, as it is now. `None`: the main fork is empty.
pub fn meta_page(key: [u32; 4]) -> Option<Box<[u8; PAGE]>> {
    if buffers::blocks(key, Fork::Main) == 0 {
        return None;
    }
    let mut page = Box::new([0; PAGE]);
    look(key, Fork::Main, 0, &mut page);
    Some(page)
}
