//! Logical decoding: what `rm_decode` gets, and how a change is handed to PostgreSQL's reorder
//! buffer.

use super::storage::storage;
use crate::pg::stored;
use pgrx::pg_sys::{self, Oid};

mod raw {
    use super::*;
    extern "C-unwind" {
        pub fn SnapBuildProcessChange(
            builder: *mut pg_sys::SnapBuild,
            xid: pg_sys::TransactionId,
            lsn: pg_sys::XLogRecPtr,
        ) -> bool;
    }
}

/// `XLogRecordBuffer` (decode.h), which the bindings have without its fields.
#[repr(C)]
struct RecordBuffer {
    begin: pg_sys::XLogRecPtr,
    end: pg_sys::XLogRecPtr,
    reader: *mut pg_sys::XLogReaderState,
}

#[cfg(any(feature = "pg15", feature = "pg16"))]
type Tuple = *mut pg_sys::ReorderBufferTupleBuf;
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
type Tuple = pg_sys::HeapTuple;

/// A record that is being decoded.
#[derive(Clone, Copy)]
pub struct Decoding {
    context: *mut pg_sys::LogicalDecodingContext,
    begin: pg_sys::XLogRecPtr,
    reader: *mut pg_sys::XLogReaderState,
}

impl Decoding {
    /// The record.
    ///
    /// # Safety
    /// What PostgreSQL has called `rm_decode` with; used during that call only.
    pub unsafe fn new(context: *mut pg_sys::LogicalDecodingContext, record: *mut pg_sys::XLogRecordBuffer) -> Decoding {
        // SAFETY: `record` is valid (contract of this function), and laid out as in decode.h.
        let record = unsafe { &*record.cast::<RecordBuffer>() };
        Decoding { context, begin: record.begin, reader: record.reader }
    }

    /// The reader that has the record.
    pub fn reader(&self) -> *mut pg_sys::XLogReaderState {
        self.reader
    }

    fn xid(&self) -> pg_sys::TransactionId {
        // SAFETY: the reader has a record (contract of `new`).
        unsafe { (*(*self.reader).record).header.xl_xid }
    }

    fn origin(&self) -> pg_sys::RepOriginId {
        // SAFETY: the reader has a record (contract of `new`).
        unsafe { (*(*self.reader).record).record_origin }
    }

    /// Notes that the record's transaction is there. To be done for each record.
    pub fn note_transaction(&self) {
        // SAFETY: the context is that of the running decoding (contract of `new`).
        unsafe { pg_sys::ReorderBufferProcessXid((*self.context).reorder, self.xid(), self.begin) }
    }

    /// Is the change one that may be wanted: is the snapshot ready that its catalogs are read with?
    pub fn is_wanted(&self) -> bool {
        // SAFETY: as in `note_transaction`. The closure owns nothing.
        unsafe {
            let context = &*self.context;
            // Also where nothing is decoded: the builder's snapshot holds the slot's catalog_xmin.
            let is_ready = pg_sys::ffi::pg_guard_ffi_boundary(|| {
                raw::SnapBuildProcessChange(context.snapshot_builder, self.xid(), self.begin)
            });
            is_ready && !context.fast_forward
        }
    }

    /// The database whose changes are decoded.
    pub fn database(&self) -> u32 {
        // SAFETY: the context has its slot (contract of `new`).
        unsafe { (*(*self.context).slot).data.database }.to_u32()
    }

    /// Does the output plugin not want changes of the record's origin?
    pub fn is_filtered(&self) -> bool {
        // SAFETY: as in `note_transaction`; the wrapper is called if there is a callback.
        unsafe {
            (*self.context).callbacks.filter_by_origin_cb.is_some()
                && pg_sys::filter_by_origin_cb_wrapper(self.context, self.origin())
        }
    }

    /// Hands over a change: INSERT without an old row, or with one UPDATE; DELETE without a new
    /// one. Rows are their columns ([`stored::columns`]).
    pub fn queue(&self, key: [u32; 3], kind: Kind, new: Option<&[u8]>, old: Option<&[u8]>) {
        use pg_sys::ReorderBufferChangeType::*;
        // SAFETY: as in `note_transaction`. The change is zeroed memory of the reorder buffer,
        // which has it from `ReorderBufferQueueChange` on. An ERROR before that ends the decoding,
        // and frees the reorder buffer with all its memory.
        unsafe {
            let reorder = (*self.context).reorder;
            #[cfg(not(feature = "pg18"))]
            let change = pg_sys::ReorderBufferGetChange(reorder);
            #[cfg(feature = "pg18")]
            let change = pg_sys::ReorderBufferAllocChange(reorder);
            (*change).action = match kind {
                Kind::Insert => REORDER_BUFFER_CHANGE_INSERT,
                Kind::Update => REORDER_BUFFER_CHANGE_UPDATE,
                Kind::Delete => REORDER_BUFFER_CHANGE_DELETE,
            };
            (*change).origin_id = self.origin();
            let to = &raw mut (*change).data.tp;
            let at = storage(Oid::from(key[0]), Oid::from(key[1]), Oid::from(key[2]));
            #[cfg(feature = "pg15")]
            {
                (*to).relnode = at;
            }
            #[cfg(not(feature = "pg15"))]
            {
                (*to).rlocator = at;
            }
            (*to).newtuple = new.map_or(std::ptr::null_mut(), |row| tuple(reorder, row));
            (*to).oldtuple = old.map_or(std::ptr::null_mut(), |row| tuple(reorder, row));
            (*to).clear_toast_afterwards = true;
            pg_sys::ReorderBufferQueueChange(reorder, self.xid(), self.begin, change, false);
        }
    }
}

/// What a change does.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A new row.
    Insert,
    /// A row is replaced.
    Update,
    /// A row goes.
    Delete,
}

/// A tuple of the reorder buffer's with these columns.
unsafe fn tuple(reorder: *mut pg_sys::ReorderBuffer, columns: &[u8]) -> Tuple {
    let len = stored::tuple_len(columns);
    // SAFETY: the reorder buffer is that of the running decoding (contract of `Decoding::new`). The
    // tuple has room for `len` bytes and for a header.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        let tuple = pg_sys::ReorderBufferGetTupleBuf(reorder, len);
        #[cfg(feature = "pg18")]
        let tuple = pg_sys::ReorderBufferAllocTupleBuf(reorder, len);
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        let data = &mut (*tuple).tuple;
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        let data = &mut *tuple;
        data.t_len = len as u32;
        data.t_self = crate::pg::Tid::Invalid.item();
        data.t_tableOid = pg_sys::InvalidOid;
        let bytes = std::slice::from_raw_parts_mut(data.t_data.cast::<u8>(), len);
        stored::put_columns(columns, bytes);
        tuple
    }
}
