//! Keys of rows in an index.

use crate::access::tuple;
use crate::keys::codec::Codec;
use crate::pg::{expr, Tid};
use mixedcc_engine::record::Version;
use pgrx::pg_sys::{self, Datum};

/// A row of the table.
#[derive(Clone, Copy)]
pub enum Row {
    /// In a slot of the table's row type.
    Slot(*mut pg_sys::TupleTableSlot),
    /// A version that is reachable.
    Version(*const Version),
}

/// Computes keys in one index, for one row after another.
pub struct Rows {
    rel: pg_sys::Relation,
    codec: &'static Codec,
    special: Option<Special>,
}

/// What expressions and predicates need. An ERROR leaves it to the memory context and the resource
/// owner.
struct Special {
    /// All that it allocates: it may be made for each row that a statement writes.
    context: pg_sys::MemoryContext,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    estate: *mut pg_sys::EState,
    slot: *mut pg_sys::TupleTableSlot,
    predicate: *mut pg_sys::ExprState,
}

impl Rows {
    /// # Safety
    /// An open relation of ours, and an index of it.
    pub unsafe fn new(rel: pg_sys::Relation, codec: &'static Codec) -> Rows {
        // SAFETY: `rel` is open and of ours, and `codec` is that of an index of it (contract of
        // this function).
        let special = codec.special.then(|| unsafe { Special::new(rel, codec) });
        Rows { rel, codec, special }
    }

    /// Appends the key of a row; `None` if the row is not in the index.
    ///
    /// # Safety
    /// The row is of the relation.
    pub unsafe fn key(&mut self, row: Row, out: &mut Vec<u8>) -> Option<()> {
        // SAFETY: `row` is of the relation (contract of this function), which is open, as `new`
        // wants it. Without expressions all columns of the codec are columns of the relation.
        unsafe {
            match &mut self.special {
                Some(s) => crate::pg::with_snapshot(|| s.key(self.rel, self.codec, row, out)),
                None => plain(self.rel, self.codec, row, out),
            }
        }
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        if let Some(s) = self.special.take().filter(|_| !std::thread::panicking()) {
            // SAFETY: `s` was made by `Special::new`, and is taken out, so it ends once.
            unsafe { s.end() };
        }
    }
}

/// Appends the key of a row, of columns alone.
///
/// # Safety
/// The row is of the relation, and the codec's columns are columns of it.
pub unsafe fn plain(rel: pg_sys::Relation, codec: &Codec, row: Row, out: &mut Vec<u8>) -> Option<()> {
    // SAFETY: `row` is of `rel`, and the codec's columns are columns of it (contract of this
    // function). slot_getsomeattrs_int fills the slot's arrays up to a column. A version's tuple
    // has the relation's layout (INV-LAYOUT).
    unsafe {
        match row {
            Row::Slot(slot) => codec.key(out, |i| {
                let a = codec.attnums[i];
                if ((*slot).tts_nvalid as i16) < a {
                    crate::pg::raw::slot_getsomeattrs_int(slot, a as i32);
                }
                let at = a as usize - 1;
                (!*(*slot).tts_isnull.add(at)).then(|| *(*slot).tts_values.add(at))
            }),
            Row::Version(v) => {
                let mut t = tuple::as_tuple(v, Tid::Record(0), (*rel).rd_id);
                codec.key(out, |i| {
                    let mut null = false;
                    let d = pg_sys::heap_getattr(&mut t, codec.attnums[i] as i32, (*rel).rd_att, &mut null);
                    (!null).then_some(d)
                })
            }
        }
    }
}

/// Has a version's row NULL in a column of a key?
///
/// # Safety
/// As for [`plain`].
pub unsafe fn has_null(rel: pg_sys::Relation, codec: &Codec, v: *const Version) -> bool {
    // SAFETY: `v` is of `rel`, and the codec's columns are columns of it (contract of this
    // function).
    unsafe {
        let row = tuple::as_tuple(v, Tid::Record(0), (*rel).rd_id);
        codec.attnums.iter().any(|a| tuple::is_null(&row, (*rel).rd_att, *a as usize - 1))
    }
}

impl Special {
    unsafe fn new(rel: pg_sys::Relation, codec: &Codec) -> Special {
        // SAFETY: `rel` is open: contract of `Rows::new`. The index exists while its table is
        // locked. All that is made here lives in `context` or with the resource owner.
        unsafe {
            let context = pg_sys::AllocSetContextCreateInternal(
                pg_sys::CurrentMemoryContext,
                c"mixedcc index expressions".as_ptr(),
                pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
                pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            );
            let old = pg_sys::MemoryContextSwitchTo(context);
            let index = pg_sys::index_open(codec.index, pg_sys::AccessShareLock as i32);
            let info = pg_sys::BuildIndexInfo(index);
            let estate = pg_sys::CreateExecutorState();
            let predicate = pg_sys::ExecPrepareQual((*info).ii_Predicate, estate);
            let slot = pg_sys::table_slot_create(rel, std::ptr::null_mut());
            pg_sys::MemoryContextSwitchTo(old);
            Special { context, index, info, estate, slot, predicate }
        }
    }

    unsafe fn key(&mut self, rel: pg_sys::Relation, codec: &Codec, row: Row, out: &mut Vec<u8>) -> Option<()> {
        // SAFETY: `self` was made by `new`, and `row` is of `rel`: contract of `Rows::key`. The
        // version or slot outlives the evaluation. The arrays have INDEX_MAX_KEYS entries, as
        // FormIndexDatum wants.
        unsafe {
            let slot = match row {
                Row::Slot(s) => s,
                Row::Version(v) => {
                    tuple::store(self.slot, (*rel).rd_id, Tid::Record(0), v);
                    self.slot
                }
            };
            let econtext = if (*self.estate).es_per_tuple_exprcontext.is_null() {
                pg_sys::MakePerTupleExprContext(self.estate)
            } else {
                (*self.estate).es_per_tuple_exprcontext
            };
            pg_sys::MemoryContextReset((*econtext).ecxt_per_tuple_memory);
            (*econtext).ecxt_scantuple = slot;
            // Guarded: an ERROR of a user's function must not jump over the engine, which may be in
            // the middle of a call.
            let holds = || pg_sys::ffi::pg_guard_ffi_boundary(|| expr::passes(self.predicate, econtext));
            if !self.predicate.is_null() && !holds() {
                return None;
            }
            let mut values = [Datum::from(0); pg_sys::INDEX_MAX_KEYS as usize];
            let mut nulls = [false; pg_sys::INDEX_MAX_KEYS as usize];
            pg_sys::FormIndexDatum(self.info, slot, self.estate, values.as_mut_ptr(), nulls.as_mut_ptr());
            codec.key(out, |i| (!nulls[i]).then_some(values[i]))
        }
    }

    unsafe fn end(self) {
        // SAFETY: `self` was made by `new`, and is consumed, so each part is given back once.
        unsafe {
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::FreeExecutorState(self.estate);
            pg_sys::index_close(self.index, pg_sys::NoLock as i32);
            pg_sys::MemoryContextDelete(self.context);
        }
    }
}
