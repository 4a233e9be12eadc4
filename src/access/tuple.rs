//! Rows as versions: a version's payload is a heap tuple header with its data, so that executor
//! slots point straight into shared memory.
//!
//! **INV-SIGNED**: `sign` sets all fields in the header of every version's tuple once, before
//! another process can see the version. It is the only place that does. They keep what system
//! columns show.

use crate::access::packed;
use crate::pg::compat::{attribute, key_columns};
use crate::pg::{expr, Tid};
use crate::state::errors::ok;
use crate::state::rel::RelInfo;
use crate::state::xact;
use mixedcc_engine::record::Version;
use mixedcc_engine::Txn;
use pgrx::pg_sys;
use std::ptr::NonNull;

/// A version that is not handed to the engine yet: given back if an error unwinds. While it lives
/// nothing is called without the bindings' guard that can raise an ERROR, which would jump over it.
pub struct Fresh {
    version: Option<NonNull<Version>>,
}

impl Fresh {
    /// The version.
    pub fn version(&self) -> NonNull<Version> {
        self.version.expect("not taken")
    }
    /// The engine has it now.
    pub fn taken(mut self) {
        self.version = None;
    }
    /// Guards a version.
    pub fn new(v: NonNull<Version>) -> Fresh {
        Fresh { version: Some(v) }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Some(v) = self.version {
            xact::txn().discard(v);
        }
    }
}

/// The tuple header of a version.
#[inline]
pub fn header(v: *const Version) -> *mut pg_sys::HeapTupleHeaderData {
    Version::payload(v).cast()
}

/// The token of a speculative insert that was not confirmed yet.
///
/// # Safety
/// A version that is reachable.
pub unsafe fn speculative_token(v: *const Version) -> Option<u32> {
    // SAFETY: `v` is reachable (contract of this function), and complete before it was
    // (INV-VERSION).
    let tid = unsafe { (*header(v)).t_ctid };
    let token = (tid.ip_blkid.bi_hi as u32) << 16 | tid.ip_blkid.bi_lo as u32;
    (tid.ip_posid == pg_sys::SpecTokenOffsetNumber as u16).then_some(token)
}

/// What the system columns of a version tell of its writer.
#[derive(Clone, Copy)]
pub struct Author {
    xmin: pg_sys::TransactionId,
    xmax: pg_sys::TransactionId,
    cid: pg_sys::CommandId,
}

impl Author {
    /// The running transaction, in this command. `locked`: a statement of its own has locked the
    /// row before, as ON CONFLICT DO UPDATE does; as in heap, only then the new version's xmax is
    /// not 0.
    #[inline]
    pub fn of(t: &mut Txn, cid: pg_sys::CommandId, locked: bool) -> Author {
        // Never a special transaction id.
        let xmin = pg_sys::TransactionId::from(3 + (t.token() % (u32::MAX as u64 - 3)) as u32);
        Author { xmin, xmax: if locked { xmin } else { pg_sys::InvalidTransactionId }, cid }
    }
}

/// Sets all fields in the header of a version's tuple but its length, `t_hoff` and the bits of
/// NULLs. Every version passes here once, before anything can see it, and keeps what system columns
/// show (INV-SIGNED). `bits`: of `t_infomask`, those of the data.
#[inline]
unsafe fn sign(td: *mut pg_sys::HeapTupleHeaderData, columns: u16, bits: u16, by: Author) {
    // SAFETY: `td` is the header of a version that its maker, `form` or `patch`, has not published.
    // So no other process reads it (INV-SIGNED).
    unsafe {
        let mut fields = pg_sys::HeapTupleFields { t_xmin: by.xmin, t_xmax: by.xmax, ..Default::default() };
        fields.t_field3.t_cid = by.cid;
        (*td).t_choice.t_heap = fields;
        (*td).t_ctid = pg_sys::ItemPointerData::default();
        (*td).t_infomask2 = columns;
        (*td).t_infomask = bits & (pg_sys::HEAP_HASNULL | pg_sys::HEAP_HASVARWIDTH) as u16 | HINTS;
    }
}

/// Flattens values that are stored elsewhere (TOAST, expanded objects), so that nothing can fail
/// once memory is allocated. One that is compressed there stays so, unless its column is PLAIN.
unsafe fn flatten(desc: pg_sys::TupleDesc, values: &mut [pg_sys::Datum], nulls: &[bool]) {
    // SAFETY: `form` passes an entry of `values` and `nulls` for each attribute of `desc`. An
    // attribute of length -1 that is not NULL points to a varlena.
    unsafe {
        for (i, v) in values.iter_mut().enumerate().filter(|(i, _)| !nulls[*i]) {
            let a = attribute(desc, i);
            if a.attlen == -1 && pgrx::varatt_is_1b_e(v.cast_mut_ptr()) {
                let is_plain = a.attstorage as u8 == pg_sys::TYPSTORAGE_PLAIN;
                let flat = if is_plain { pg_sys::detoast_attr } else { pg_sys::detoast_external_attr };
                *v = pg_sys::Datum::from(flat(v.cast_mut_ptr()));
            }
        }
    }
}

/// Bytes of a tuple's header.
fn header_size(natts: usize, hasnull: bool) -> usize {
    let len = if hasnull { 23 + natts.div_ceil(8) } else { 23 };
    (len + 7) & !7
}

/// What a version's tuple says about its visibility: frozen, never deleted.
const HINTS: u16 = (pg_sys::HEAP_XMIN_COMMITTED | pg_sys::HEAP_XMIN_INVALID | pg_sys::HEAP_XMAX_INVALID) as u16;

/// The partition from whose memory node a version comes: it matters if there are several nodes.
///
/// # Safety
/// A valid slot of the relation's row type. An ERROR jumps as from
/// `PartKey::partition_of_slot`.
#[inline]
pub unsafe fn place_of(nodes: usize, info: &RelInfo, slot: *mut pg_sys::TupleTableSlot) -> u32 {
    if nodes == 1 {
        return 0;
    }
    // SAFETY: `slot` is valid and of the relation's row type (contract of this function).
    unsafe { info.partkey.partition_of_slot(slot) as u32 }
}

/// The tuple in a slot, if a version of the row has the same bytes behind the header's fields: all
/// columns are in it, nothing of it is stored elsewhere, and it is too small to be compressed. COPY
/// and INSERT ... SELECT bring such ones.
///
/// # Safety
/// A valid slot. What it holds stays as it is while the reference lives.
unsafe fn whole_tuple<'a>(slot: *mut pg_sys::TupleTableSlot) -> Option<&'a pg_sys::HeapTupleData> {
    // SAFETY: `slot` is valid (contract of this function). Slots with these operations are heap
    // tuple slots (tuptable.h): `tuple` is null or the row.
    unsafe {
        if !std::ptr::eq((*slot).tts_ops, &raw const pg_sys::TTSOpsHeapTuple) {
            return None;
        }
        let tuple = (*slot.cast::<pg_sys::HeapTupleTableSlot>()).tuple.as_ref()?;
        let natts = (*(*slot).tts_tupleDescriptor).natts;
        let td = &*tuple.t_data;
        let hasnull = td.t_infomask & pg_sys::HEAP_HASNULL as u16 != 0;
        let plain = td.t_infomask & (pg_sys::HEAP_HASEXTERNAL | pg_sys::HEAP_HASOID_OLD) as u16 == 0;
        let fits = columns(tuple) == natts && td.t_hoff as usize == header_size(natts as usize, hasnull);
        (plain && fits && tuple.t_len as usize <= packed::THRESHOLD).then_some(tuple)
    }
}

/// Makes a version that is a copy of a [`whole_tuple`].
unsafe fn copy(t: &mut Txn, partition: u32, from: &pg_sys::HeapTupleData, by: Author) -> Fresh {
    // SAFETY: `from` has `t_len` bytes (htup.h), and the new version's payload as many. No other
    // process reaches the version yet (INV-SIGNED).
    unsafe {
        let f = Fresh::new(ok(t.new_version(partition, from.t_len as usize, 0)));
        let td = header(f.version().as_ptr());
        td.cast::<u8>().copy_from_nonoverlapping(from.t_data.cast(), from.t_len as usize);
        sign(td, columns(from) as u16, (*td).t_infomask, by);
        f
    }
}

/// Makes a version of a slot's row. `partition`: where it goes ([`place_of`]). `old`: the version
/// that it replaces; its large values need no second try to compress them.
///
/// # Safety
/// `rel` is an open relation of ours, and `slot` valid, with a row for it. What it holds stays as
/// it is during the call. `old` is a version of its row type, as for [`as_tuple`].
pub unsafe fn form(
    t: &mut Txn,
    partition: u32,
    rel: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    old: Option<NonNull<Version>>,
    by: Author,
) -> Fresh {
    // SAFETY: `rel` is open, and `slot` valid (contract of this function). `have_columns` fills its
    // first `natts` entries. PostgreSQL may refuse to count the bytes of a row above 1 GB: that
    // ERROR jumps over this frame, which owns nothing.
    unsafe {
        if let Some(from) = whole_tuple(slot) {
            return copy(t, partition, from, by);
        }
        let desc = (*slot).tts_tupleDescriptor;
        let natts = (*desc).natts as usize;
        crate::pg::have_columns(slot, natts as i32);
        let nulls = std::slice::from_raw_parts((*slot).tts_isnull, natts);
        let given = std::slice::from_raw_parts((*slot).tts_values, natts);
        let (mut external, mut hasnull) = (false, false);
        let atts = (0..natts).map(|i| attribute(desc, i));
        for ((att, v), null) in atts.zip(given).zip(nulls) {
            hasnull |= *null;
            external |= !*null && att.attlen == -1 && pgrx::varatt_is_1b_e(v.cast_mut_ptr());
        }
        let (values, isnull) = ((*slot).tts_values, (*slot).tts_isnull);
        let hoff = header_size(natts, hasnull);
        if !external {
            let data = crate::pg::raw::heap_compute_data_size(desc, values, isnull);
            if hoff + data <= packed::THRESHOLD {
                return fill(t, partition, desc, (values, isnull), (hoff, data, hasnull), by);
            }
        }
        form_large(t, partition, (rel, desc), (given, nulls), (hoff, hasnull), old, by)
    }
}

/// The same for a row that has values elsewhere, or is so large that some are compressed.
#[cold]
#[inline(never)]
unsafe fn form_large(
    t: &mut Txn,
    partition: u32,
    (rel, desc): (pg_sys::Relation, pg_sys::TupleDesc),
    (given, nulls): (&[pg_sys::Datum], &[bool]),
    (hoff, hasnull): (usize, bool),
    old: Option<NonNull<Version>>,
    by: Author,
) -> Fresh {
    // SAFETY: `rel` is open, and the arrays have an entry for each column of `desc`: contract of
    // `form`. The values that are freed are copies of `flatten` and `pack`.
    unsafe {
        let mut values = given.to_vec();
        flatten(packed::storage_of(rel, desc), &mut values, nulls);
        let mut data = packed::data_size(desc, &mut values, nulls);
        if hoff + data > packed::THRESHOLD {
            let row = packed::Row { desc, values: &mut values, nulls, given };
            data = packed::pack(rel, row, hoff, old);
        }
        let isnull = nulls.as_ptr().cast_mut();
        let f = fill(t, partition, desc, (values.as_mut_ptr(), isnull), (hoff, data, hasnull), by);
        // A statement may write many rows in one memory context.
        for (own, _) in values.iter().zip(given).filter(|(own, given)| own.value() != given.value()) {
            crate::pg::raw::pfree(own.cast_mut_ptr());
        }
        f
    }
}

/// Makes a version of these columns, with a header of `hoff` and `data` bytes behind it.
#[inline(always)]
unsafe fn fill(
    t: &mut Txn,
    partition: u32,
    desc: pg_sys::TupleDesc,
    (values, isnull): (*mut pg_sys::Datum, *mut bool),
    (hoff, data, hasnull): (usize, usize, bool),
    by: Author,
) -> Fresh {
    // SAFETY: the arrays have an entry for each column: contract of `form`. The payload has `hoff +
    // data` bytes, which heap_fill_tuple fills. While `f` lives nothing raises past the bindings'
    // guard.
    unsafe {
        let f = Fresh::new(ok(t.new_version(partition, hoff + data, 0)));
        let td = header(f.version().as_ptr());
        // Padding must be zero: readers tell it from short varlena headers by that.
        td.cast::<u8>().write_bytes(0, hoff + data);
        (*td).t_hoff = hoff as u8;
        crate::pg::raw::heap_fill_tuple(
            desc,
            values,
            isnull,
            td.cast::<core::ffi::c_char>().add(hoff),
            data,
            &mut (*td).t_infomask,
            if hasnull { (*td).t_bits.as_mut_ptr() } else { std::ptr::null_mut() },
        );
        sign(td, (*desc).natts as u16, (*td).t_infomask, by);
        f
    }
}

/// A heap tuple that points to a version.
///
/// # Safety
/// `v` is a version that is not a tombstone and that the caller's pin keeps, or the caller has
/// made. The tuple is used only as long as that is so.
#[inline]
pub unsafe fn as_tuple(v: *const Version, tid: Tid, oid: pg_sys::Oid) -> pg_sys::HeapTupleData {
    // SAFETY: `v` is kept by a pin, or the caller's own (contract of this function). So its length
    // can be read (INV-RETIRE).
    unsafe { pg_sys::HeapTupleData { t_len: (*v).len, t_self: tid.item(), t_tableOid: oid, t_data: header(v) } }
}

/// The xmin that a version shows: another one for each transaction that has written it.
///
/// # Safety
/// As for [`as_tuple`].
pub unsafe fn xmin(v: *const Version) -> pg_sys::TransactionId {
    // SAFETY: the header of a complete version (contract of this function).
    unsafe { (*header(v)).t_choice.t_heap.t_xmin }
}

/// The same of the row in a slot; `None`: it has none of a table.
///
/// # Safety
/// `slot` is a heap tuple slot, as `slot_callbacks` says.
pub unsafe fn shown_xmin(slot: *mut pg_sys::TupleTableSlot) -> Option<pg_sys::TransactionId> {
    // SAFETY: `slot` is a heap tuple slot, whose tuple is null or has its header.
    unsafe {
        let tuple = (*slot.cast::<pg_sys::HeapTupleTableSlot>()).tuple;
        let is_empty = (*slot).tts_flags & pg_sys::TTS_FLAG_EMPTY as u16 != 0;
        (!is_empty && !tuple.is_null()).then(|| (*(*tuple).t_data).t_choice.t_heap.t_xmin)
    }
}

/// Puts a version into a slot made by our `slot_callbacks`, without copying it.
///
/// # Safety
/// `slot` is a heap tuple slot, as `slot_callbacks` says, of the row type of the table `oid`. The
/// version is as for [`as_tuple`] for as long as the slot holds it.
#[inline]
pub unsafe fn store(slot: *mut pg_sys::TupleTableSlot, oid: pg_sys::Oid, tid: Tid, v: *const Version) {
    // SAFETY: `slot` is a heap tuple slot, and the version outlives its use there (contract of this
    // function). That is the pin's work (INV-RETIRE).
    unsafe {
        let h = slot.cast::<pg_sys::HeapTupleTableSlot>();
        if (*slot).tts_flags & pg_sys::TTS_FLAG_SHOULDFREE as u16 != 0 {
            expr::clear(slot);
        }
        (*h).tupdata = as_tuple(v, tid, oid);
        (*h).tuple = &raw mut (*h).tupdata;
        (*h).off = 0;
        (*slot).tts_nvalid = 0;
        (*slot).tts_flags &= !((pg_sys::TTS_FLAG_EMPTY | pg_sys::TTS_FLAG_SHOULDFREE) as u16);
        (*slot).tts_tid = (*h).tupdata.t_self;
        (*slot).tts_tableOid = oid;
    }
}

/// Puts a copy of a version of this transaction into a slot made by our `slot_callbacks`, with the
/// transaction's id as its xmin: PostgreSQL is about to ask by that whether the row is its own.
///
/// # Safety
/// As for [`store`]. An ERROR jumps over this frame.
#[cold]
pub unsafe fn store_as_own(slot: *mut pg_sys::TupleTableSlot, oid: pg_sys::Oid, tid: Tid, v: *const Version) {
    // SAFETY: `slot` and `v` are as for `store` (contract of this function). The copy is allocated
    // in the slot's own context, and the slot frees it.
    unsafe {
        let xid = pg_sys::GetCurrentTransactionId();
        let before = pg_sys::MemoryContextSwitchTo((*slot).tts_mcxt);
        let copy = pg_sys::heap_copytuple(&mut as_tuple(v, tid, oid));
        pg_sys::MemoryContextSwitchTo(before);
        (*(*copy).t_data).t_choice.t_heap.t_xmin = xid;
        pg_sys::ExecStoreHeapTuple(copy, slot, true);
        (*slot).tts_tableOid = oid;
    }
}

/// The row in a slot has been written as this version: the slot shows the version's system columns
/// from now on, for RETURNING.
///
/// # Safety
/// A valid slot with TID and table of the row; the version outlives the slot's row.
#[inline]
pub unsafe fn show(slot: *mut pg_sys::TupleTableSlot, v: *const Version) {
    // SAFETY: `slot` is valid, and `v` outlives the slot's row (contract of this function). Slots
    // with these operations are heap tuple slots (tuptable.h). With SHOULDFREE set the tuple is the
    // slot's own copy.
    unsafe {
        if !std::ptr::eq((*slot).tts_ops, &raw const pg_sys::TTSOpsHeapTuple) {
            return;
        }
        let h = slot.cast::<pg_sys::HeapTupleTableSlot>();
        if (*slot).tts_flags & pg_sys::TTS_FLAG_SHOULDFREE as u16 != 0 {
            (*(*(*h).tuple).t_data).t_choice.t_heap = (*header(v)).t_choice.t_heap;
            return;
        }
        // Its columns may be anywhere; where some were not taken apart yet, all are taken from the
        // version.
        if ((*slot).tts_nvalid as i32) < (*(*slot).tts_tupleDescriptor).natts {
            ((*slot).tts_nvalid, (*h).off) = (0, 0);
        }
        (*h).tupdata = as_tuple(v, Tid::read(&(*slot).tts_tid), (*slot).tts_tableOid);
        (*h).tuple = &raw mut (*h).tupdata;
    }
}

/// All attributes of a version; columns added later get their defaults.
///
/// # Safety
/// `rel` is open, and `v` is a version of its row type, as for [`as_tuple`]. The arrays have an
/// entry for each column of the relation.
pub unsafe fn deform(rel: pg_sys::Relation, v: *const Version, values: *mut pg_sys::Datum, nulls: *mut bool) {
    // SAFETY: `rel` is open, and the arrays have an entry for each column (contract of this
    // function). heap_deform_tuple raises nothing.
    unsafe {
        let mut t = as_tuple(v, Tid::Record(0), (*rel).rd_id);
        crate::pg::raw::heap_deform_tuple(&mut t, (*rel).rd_att, values, nulls);
    }
}

/// How many columns a tuple has; columns that were added later are not in it.
///
/// # Safety
/// `t_data` points to the tuple's header, as that of a tuple of `as_tuple` or PostgreSQL's does.
pub unsafe fn columns(t: &pg_sys::HeapTupleData) -> i32 {
    // SAFETY: `t_data` points to the header (contract of this function).
    unsafe { ((*t.t_data).t_infomask2 & pg_sys::HEAP_NATTS_MASK as u16) as i32 }
}

/// Is a column (from 0) of a tuple NULL?
///
/// # Safety
/// The descriptor has the column.
#[inline]
pub unsafe fn is_null(t: &pg_sys::HeapTupleData, desc: pg_sys::TupleDesc, at: usize) -> bool {
    // SAFETY: `desc` has the column (contract of this function). A tuple with NULLs has a bit for
    // each of its columns (htup_details.h).
    unsafe {
        if at as i32 >= columns(t) {
            return !attribute(desc, at).atthasmissing;
        }
        let td = &*t.t_data;
        td.t_infomask & pg_sys::HEAP_HASNULL as u16 != 0 && *td.t_bits.as_ptr().add(at / 8) & (1 << (at % 8)) == 0
    }
}

/// A column (from 0) of a tuple, and is it NULL?
///
/// # Safety
/// The descriptor has the column.
#[inline]
pub unsafe fn column(t: &mut pg_sys::HeapTupleData, desc: pg_sys::TupleDesc, at: usize) -> (pg_sys::Datum, bool) {
    // SAFETY: `desc` has the column (contract of this function). A tuple with NULLs has a bit for
    // each of its columns (htup_details.h). A cached offset lies within the tuple, as `at` is one
    // of its columns.
    unsafe {
        let mut null = false;
        if at as i32 >= columns(t) {
            let d = pg_sys::getmissingattr(desc, at as i32 + 1, &mut null);
            return (d, null);
        }
        let td = &*t.t_data;
        if is_null(t, desc, at) {
            return (pg_sys::Datum::from(0), true);
        }
        let att = attribute(desc, at);
        // As fastgetattr: where it is in every row, from the first look on.
        let always = crate::pg::compat::cached_offset(desc, at);
        if let Some(offset) = always.filter(|_| att.attbyval && td.t_infomask & pg_sys::HEAP_HASNULL as u16 == 0) {
            let value = (&raw const *td).cast::<u8>().add(td.t_hoff as usize + offset);
            return (by_value(value, att.attlen), false);
        }
        (crate::pg::raw::nocachegetattr(t, at as i32 + 1, desc), false)
    }
}

/// Where a column (from 0) is in a tuple, bytes from its header. `None` unless the tuple has it, it
/// is not NULL, its type is passed by value, and that place is known by now.
///
/// # Safety
/// A tuple of the descriptor's row type, and a column of that.
#[inline]
unsafe fn place(td: *const pg_sys::HeapTupleHeaderData, desc: pg_sys::TupleDesc, at: usize) -> Option<usize> {
    // SAFETY: `td` is a tuple of the row type, and `at` a column of `desc` (contract of this
    // function). A tuple with NULLs has a bit for each of its columns (htup_details.h).
    unsafe {
        let has = ((*td).t_infomask2 & pg_sys::HEAP_NATTS_MASK as u16) as usize > at;
        if !has || !attribute(desc, at).attbyval {
            return None;
        }
        if (*td).t_infomask & pg_sys::HEAP_HASNULL as u16 != 0 {
            // A NULL in front of it would move it.
            let bits = (&raw const (*td).t_bits).cast::<u8>();
            if !(0..=at).all(|i| *bits.add(i / 8) & (1 << (i % 8)) != 0) {
                return None;
            }
        }
        Some((*td).t_hoff as usize + crate::pg::compat::cached_offset(desc, at)?)
    }
}

/// A column (from 0) of a version that is not NULL and passed by value, if its place is known; else
/// [`column`] tells.
///
/// # Safety
/// A reachable version of a row of this type, which has the column.
#[inline]
pub unsafe fn value_at_place(v: NonNull<Version>, desc: pg_sys::TupleDesc, at: usize) -> Option<pg_sys::Datum> {
    let td = header(v.as_ptr());
    // SAFETY: `v` is reachable and of this row type (contract of this function). `place` gives an
    // offset only of a column that lies within the tuple.
    unsafe { place(td, desc, at).map(|offset| by_value(td.cast::<u8>().add(offset), attribute(desc, at).attlen)) }
}

/// A column (from 0) of a version that is passed by value, not NULL and not added later: at its
/// place, or wherever it is.
///
/// # Safety
/// As for [`value_at_place`].
#[inline]
pub unsafe fn value_of(v: NonNull<Version>, desc: pg_sys::TupleDesc, at: usize) -> Option<pg_sys::Datum> {
    // SAFETY: `v` is reachable, of this row type, and has the column (contract of this function).
    unsafe { value_at_place(v, desc, at).or_else(|| value_anywhere(v, desc, at)) }
}

#[cold]
unsafe fn value_anywhere(v: NonNull<Version>, desc: pg_sys::TupleDesc, at: usize) -> Option<pg_sys::Datum> {
    // SAFETY: `v` is reachable and of this row type: contract of `value_of`. `column` is asked only
    // for a column that the tuple has.
    unsafe {
        let mut t = as_tuple(v.as_ptr(), Tid::Invalid, pg_sys::InvalidOid);
        if at as i32 >= columns(&t) {
            return None;
        }
        let (d, null) = column(&mut t, desc, at);
        (!null && attribute(desc, at).attbyval).then_some(d)
    }
}

/// Can a version of a row with other values in these columns (from 0) be made by [`patch`]?
///
/// # Safety
/// As for [`patch`].
#[inline]
pub unsafe fn can_patch(v: NonNull<Version>, desc: pg_sys::TupleDesc, values: &[(usize, pg_sys::Datum)]) -> bool {
    // SAFETY: `v` is reachable and of this row type, and `desc` has the columns: contract of
    // `patch`, which is this function's.
    values.iter().all(|&(at, _)| unsafe { place(header(v.as_ptr()), desc, at) }.is_some())
}

/// Makes `new` a copy of `old` with other values, none of them NULL, in columns for which
/// [`can_patch`].
///
/// # Safety
/// A reachable version of a row of this type, and memory for as many bytes, of which the version's
/// own header is made.
#[inline]
pub unsafe fn patch(
    old: NonNull<Version>,
    new: NonNull<Version>,
    desc: pg_sys::TupleDesc,
    values: &[(usize, pg_sys::Datum)],
    by: Author,
) {
    // SAFETY: `old` is reachable, and `new` has room for as many bytes and is the caller's alone
    // (contract of this function). `place` gives offsets only of columns that lie within the tuple.
    unsafe {
        let (from, to) = (header(old.as_ptr()), header(new.as_ptr()));
        to.cast::<u8>().copy_from_nonoverlapping(from.cast(), old.as_ref().len as usize);
        sign(to, (*from).t_infomask2, (*from).t_infomask, by);
        for &(at, d) in values {
            if let Some(offset) = place(from, desc, at) {
                put_by_value(to.cast::<u8>().add(offset), attribute(desc, at).attlen, d);
            }
        }
    }
}

/// Stores a value of a type that is passed by value (store_att_byval).
#[inline]
unsafe fn put_by_value(at: *mut u8, len: i16, d: pg_sys::Datum) {
    // SAFETY: `at` is a column of the new tuple of `patch`. It has `len` bytes, at the alignment of
    // its type (heap_fill_tuple).
    unsafe {
        match len {
            1 => at.cast::<i8>().write(d.value() as i8),
            2 => at.cast::<i16>().write(d.value() as i16),
            4 => at.cast::<i32>().write(d.value() as i32),
            _ => at.cast::<i64>().write(d.value() as i64),
        }
    }
}

/// A value of a type that is passed by value, as it is stored (fetch_att).
#[inline]
unsafe fn by_value(at: *const u8, len: i16) -> pg_sys::Datum {
    // SAFETY: `at` is a column of a tuple, which `place` or `cached_offset` has found. It has `len`
    // bytes, at the alignment of its type (heap_fill_tuple).
    unsafe {
        match len {
            1 => pg_sys::Datum::from(*at.cast::<i8>()),
            2 => pg_sys::Datum::from(*at.cast::<i16>()),
            4 => pg_sys::Datum::from(*at.cast::<i32>()),
            _ => pg_sys::Datum::from(*at.cast::<i64>()),
        }
    }
}

/// Have two versions the same values in the columns that foreign keys may refer to? One that is
/// compressed in one version only is the same value (INV-PACKED). An ERROR unwinds.
///
/// # Safety
/// `rel` is open; both versions are of its row type, as for [`as_tuple`].
pub unsafe fn same_key(rel: pg_sys::Relation, a: *const Version, b: *const Version) -> bool {
    // SAFETY: `rel` is open, and both versions are reachable and of its row type (contract of this
    // function). The set is this call's copy, freed once.
    unsafe {
        let desc = (*rel).rd_att;
        let mut rows = [a, b].map(|v| as_tuple(v, Tid::Record(0), (*rel).rd_id));
        let keys = key_columns(rel);
        let mut m = -1;
        loop {
            m = pg_sys::bms_next_member(keys, m);
            let column = m + pg_sys::FirstLowInvalidHeapAttributeNumber;
            if m < 0 || column <= 0 {
                pg_sys::bms_free(keys);
                return m < 0;
            }
            let att = attribute(desc, column as usize - 1);
            let mut null = [false; 2];
            let x = pg_sys::heap_getattr(&mut rows[0], column, desc, &mut null[0]);
            let y = pg_sys::heap_getattr(&mut rows[1], column, desc, &mut null[1]);
            if null[0] != null[1] || !null[0] && !crate::pg::same_unpacked(x, y, att.attbyval, att.attlen as i32) {
                pg_sys::bms_free(keys);
                return false;
            }
        }
    }
}

/// Do a version and a slot differ in one of these columns? By their bytes, as heap compares them: a
/// value that is written again, and is compressed in the version, differs. Then the row moves,
/// which is right for a row that has not changed at all (INV-PACKED).
///
/// # Safety
/// `rel` is open; the version, as for [`as_tuple`], and the slot are of its row type. `columns` has
/// no more entries than the relation has columns.
pub unsafe fn differs(
    rel: pg_sys::Relation,
    v: *const Version,
    slot: *mut pg_sys::TupleTableSlot,
    columns: &[bool],
) -> bool {
    // SAFETY: `rel` is open; version and slot are of its row type (contract of this function).
    // slot_getsomeattrs_int fills the arrays up to column `i`.
    unsafe {
        let desc = (*rel).rd_att;
        let mut t = as_tuple(v, Tid::Record(0), (*rel).rd_id);
        for (i, _) in columns.iter().enumerate().filter(|c| *c.1) {
            let att = attribute(desc, i);
            let mut old_null = false;
            let old = pg_sys::heap_getattr(&mut t, i as i32 + 1, desc, &mut old_null);
            if ((*slot).tts_nvalid as usize) <= i {
                crate::pg::raw::slot_getsomeattrs_int(slot, i as i32 + 1);
            }
            let new_null = *(*slot).tts_isnull.add(i);
            if old_null != new_null {
                return true;
            }
            if !old_null {
                let new = *(*slot).tts_values.add(i);
                if !crate::pg::same(old, new, att.attbyval, att.attlen as i32) {
                    return true;
                }
            }
        }
        false
    }
}
