//! Where an insert into an nbtree index begins.

use pgrx::pg_sys;

mod raw {
    use super::*;
    extern "C-unwind" {
        // On the path of inserts: without the guard of the bindings.
        pub fn _bt_get_endpoint(
            index: pg_sys::Relation,
            level: u32,
            rightmost: bool,
            #[cfg(any(feature = "pg15", feature = "pg16"))] snapshot: pg_sys::Snapshot,
        ) -> pg_sys::Buffer;
        pub fn _bt_getrootheight(index: pg_sys::Relation) -> core::ffi::c_int;
        pub fn BufferGetBlockNumber(buffer: pg_sys::Buffer) -> pg_sys::BlockNumber;
        pub fn UnlockReleaseBuffer(buffer: pg_sys::Buffer);
    }
}

/// Tells nbtree which page is the last leaf of an index, if it does not know: the next inserts look
/// there first.
///
/// nbtree itself remembers the page into which the backend has put a key behind all others
/// (`nbtinsert.c`, *fastpath*), but only in indexes of three levels and more. An insert does not
/// rely on the remembered page: it takes the page if that is still the last leaf, has room, and
/// begins below the key, else it forgets the page and goes down from the root. An index whose root
/// is its leaf has no way down to save.
///
/// # Safety
/// An nbtree index that is open and locked. An ERROR jumps over this frame.
pub unsafe fn remember_last_leaf(index: pg_sys::Relation) {
    // SAFETY: `index` is an nbtree index, open and locked (contract of this function). `rd_smgr` is
    // null or valid. The buffer that `_bt_get_endpoint` locked is released before the frame ends.
    unsafe {
        let known = |s: pg_sys::SMgrRelation| !s.is_null() && (*s).smgr_targblock != pg_sys::InvalidBlockNumber;
        if known((*index).rd_smgr) || raw::_bt_getrootheight(index) == 0 {
            return;
        }
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        let buffer = raw::_bt_get_endpoint(index, 0, true, std::ptr::null_mut());
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        let buffer = raw::_bt_get_endpoint(index, 0, true);
        if buffer == 0 {
            return; // no page yet
        }
        let block = raw::BufferGetBlockNumber(buffer);
        raw::UnlockReleaseBuffer(buffer);
        if let Some(smgr) = (*index).rd_smgr.as_mut() {
            smgr.smgr_targblock = block;
        }
    }
}
