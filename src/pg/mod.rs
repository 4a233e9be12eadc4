//! Small pieces of PostgreSQL that the bindings lack, and item TIDs.

pub mod attempt;
pub mod buffers;
pub mod changes;
pub mod citus;
pub mod compat;
pub mod errors;
pub mod expr;
pub mod faults;
pub mod guc;
pub mod isolation;
mod libraries;
pub mod local;
pub mod machine;
pub mod numa;
pub mod others;
pub mod owner;
pub mod previous;
pub mod relations;
#[cfg(test)]
pub mod stand_ins;
pub mod stored;
pub mod text;
pub mod values;
pub mod wal;
pub mod worker;

pub use isolation::{is_serializable, uses_xact_snapshot};
use pgrx::pg_sys;

/// Rows in a block: a record's number is `block * ROWS + offset - 1`.
pub const ROWS: u64 = 256;
/// Largest block number + 1 that is reported: ANALYZE prefetches these numbers from a nearly empty
/// file, and beyond a segment of a file that is an ERROR. Bitmap scans meet more blocks.
pub const MAX_BLOCKS: u64 = 131_072;
/// First block of pseudo TIDs, which name buffered writes of this transaction.
pub const PSEUDO: u32 = 0x8000_0000;
/// First block of TIDs that name rows which `tuple_lock` has handed out.
const LOCKED: u32 = 0xC000_0000;

/// What a TID names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tid {
    /// A record by its number.
    Record(u64),
    /// What a buffered write of this transaction replaced.
    Old(u32),
    /// What a buffered write of this transaction made.
    New(u32),
    /// A row that `tuple_lock` has handed out in this transaction (INV-BASED).
    Locked(u32),
    /// Nothing.
    Invalid,
}

fn parts(t: &pg_sys::ItemPointerData) -> (u32, u16) {
    (((t.ip_blkid.bi_hi as u32) << 16) | t.ip_blkid.bi_lo as u32, t.ip_posid)
}

#[inline]
fn make(block: u32, offset: u16) -> pg_sys::ItemPointerData {
    pg_sys::ItemPointerData {
        ip_blkid: pg_sys::BlockIdData { bi_hi: (block >> 16) as u16, bi_lo: block as u16 },
        ip_posid: offset,
    }
}

impl Tid {
    /// Reads an item pointer.
    pub fn read(t: &pg_sys::ItemPointerData) -> Tid {
        let (block, offset) = parts(t);
        if offset == 0 || offset as u64 > ROWS {
            return Tid::Invalid;
        }
        if block < PSEUDO {
            return Tid::Record(block as u64 * ROWS + offset as u64 - 1);
        }
        // A user may write any TID: larger numbers name nothing.
        if block >= LOCKED {
            let n = u64::from(block - LOCKED) * ROWS + u64::from(offset) - 1;
            return u32::try_from(n).map_or(Tid::Invalid, Tid::Locked);
        }
        match u32::try_from(u64::from(block - PSEUDO) * 128 + (u64::from(offset) - 1) / 2) {
            Ok(n) if (offset - 1) % 2 == 1 => Tid::New(n),
            Ok(n) => Tid::Old(n),
            Err(_) => Tid::Invalid,
        }
    }
    /// The item pointer.
    #[inline]
    pub fn item(self) -> pg_sys::ItemPointerData {
        let pseudo = |n: u32, new: u16| make(PSEUDO + n / 128, (n % 128) as u16 * 2 + new + 1);
        match self {
            Tid::Record(n) => make((n / ROWS) as u32, (n % ROWS) as u16 + 1),
            Tid::Old(n) => pseudo(n, 0),
            Tid::New(n) => pseudo(n, 1),
            Tid::Locked(n) => make(LOCKED + n / ROWS as u32, (n % ROWS as u32) as u16 + 1),
            Tid::Invalid => make(u32::MAX, 0),
        }
    }
}

/// Block and offset as a record number bound; offsets beyond a block's rows are cut.
pub fn tid_bound(t: &pg_sys::ItemPointerData) -> (u64, u64) {
    let (block, offset) = parts(t);
    (block as u64, (offset as u64).min(ROWS + 1))
}

/// Takes the tuple in a slot apart, so that its first `n` columns are in the slot's arrays.
///
/// # Safety
/// A valid slot with so many columns.
#[inline]
pub unsafe fn have_columns(slot: *mut pg_sys::TupleTableSlot, n: i32) {
    // SAFETY: `slot` is valid and has `n` columns (contract of this function).
    unsafe {
        if ((*slot).tts_nvalid as i32) < n {
            raw::slot_getsomeattrs_int(slot, n);
        }
    }
}

/// Functions without the bindings' guard: an ERROR jumps over the caller's frame, which must own
/// nothing.
pub mod raw {
    use pgrx::pg_sys;
    extern "C-unwind" {
        // Raises nothing.
        pub fn GetCurrentStatementStartTimestamp() -> pgrx::pg_sys::TimestampTz;
        // Raises nothing.
        pub fn ResetPlanCache();
        pub fn standard_planner(
            query: *mut pg_sys::Query,
            text: *const core::ffi::c_char,
            options: core::ffi::c_int,
            params: pg_sys::ParamListInfo,
        ) -> *mut pg_sys::PlannedStmt;
        pub fn standard_ExecutorStart(q: *mut pg_sys::QueryDesc, eflags: core::ffi::c_int);
        pub fn standard_ExecutorFinish(q: *mut pg_sys::QueryDesc);
        pub fn standard_ExecutorEnd(q: *mut pg_sys::QueryDesc);
        pub fn IsInParallelMode() -> bool;
        pub fn GetUserId() -> pg_sys::Oid;
        pub fn GetCurrentTransactionId() -> pg_sys::TransactionId;
        pub fn GetCurrentTransactionNestLevel() -> core::ffi::c_int;
        pub fn CommandCounterIncrement();
        pub fn palloc(size: pg_sys::Size) -> *mut core::ffi::c_void;
        pub fn heap_copy_tuple_as_datum(tuple: pg_sys::HeapTuple, desc: pg_sys::TupleDesc) -> pg_sys::Datum;
        pub fn heap_deform_tuple(
            tuple: pg_sys::HeapTuple,
            desc: pg_sys::TupleDesc,
            values: *mut pg_sys::Datum,
            isnull: *mut bool,
        );
        pub fn nocachegetattr(
            tuple: pg_sys::HeapTuple,
            attnum: core::ffi::c_int,
            desc: pg_sys::TupleDesc,
        ) -> pg_sys::Datum;
        pub fn FunctionCall2Coll(
            f: *mut pg_sys::FmgrInfo,
            collation: pg_sys::Oid,
            a: pg_sys::Datum,
            b: pg_sys::Datum,
        ) -> pg_sys::Datum;
        pub fn FunctionCall3Coll(
            f: *mut pg_sys::FmgrInfo,
            collation: pg_sys::Oid,
            a: pg_sys::Datum,
            b: pg_sys::Datum,
            c: pg_sys::Datum,
        ) -> pg_sys::Datum;
        pub fn GetCurrentCommandId(used: bool) -> pg_sys::CommandId;
        pub fn MemoryContextReset(context: pg_sys::MemoryContext);
        pub fn RelationIdGetRelation(oid: pg_sys::Oid) -> pg_sys::Relation;
        pub fn RelationClose(rel: pg_sys::Relation);
        pub fn LockRelationOid(oid: pg_sys::Oid, lock: pg_sys::LOCKMODE);
        pub fn FormIndexDatum(
            info: *mut pg_sys::IndexInfo,
            slot: *mut pg_sys::TupleTableSlot,
            estate: *mut pg_sys::EState,
            values: *mut pg_sys::Datum,
            isnull: *mut bool,
        );
        #[allow(clippy::too_many_arguments)]
        pub fn index_insert(
            index: pg_sys::Relation,
            values: *mut pg_sys::Datum,
            isnull: *mut bool,
            tid: pg_sys::ItemPointer,
            heap: pg_sys::Relation,
            check: pg_sys::IndexUniqueCheck::Type,
            unchanged: bool,
            info: *mut pg_sys::IndexInfo,
        ) -> bool;
        pub fn ProcessInterrupts();
        pub fn InstrStartNode(instr: *mut pg_sys::Instrumentation);
        pub fn InstrStopNode(instr: *mut pg_sys::Instrumentation, n: f64);
        pub fn index_open(oid: pg_sys::Oid, lock: core::ffi::c_int) -> pg_sys::Relation;
        pub fn index_close(index: pg_sys::Relation, lock: core::ffi::c_int);
        pub fn index_rescan(
            scan: pg_sys::IndexScanDesc,
            keys: pg_sys::ScanKey,
            nkeys: core::ffi::c_int,
            orderbys: pg_sys::ScanKey,
            norderbys: core::ffi::c_int,
        );
        pub fn index_getnext_slot(
            scan: pg_sys::IndexScanDesc,
            direction: pg_sys::ScanDirection::Type,
            slot: *mut pg_sys::TupleTableSlot,
        ) -> bool;
        pub fn index_endscan(scan: pg_sys::IndexScanDesc);
        pub fn InitResultRelInfo(
            info: *mut pg_sys::ResultRelInfo,
            rel: pg_sys::Relation,
            rti: pg_sys::Index,
            root: *mut pg_sys::ResultRelInfo,
            instrument: core::ffi::c_int,
        );
        pub fn ExecOpenIndices(info: *mut pg_sys::ResultRelInfo, speculative: bool);
        pub fn ExecCloseIndices(info: *mut pg_sys::ResultRelInfo);
        pub fn ExecARInsertTriggers(
            estate: *mut pg_sys::EState,
            info: *mut pg_sys::ResultRelInfo,
            slot: *mut pg_sys::TupleTableSlot,
            recheck: *mut pg_sys::List,
            capture: *mut pg_sys::TransitionCaptureState,
        );
        pub fn AfterTriggerBeginQuery();
        pub fn AfterTriggerEndQuery(estate: *mut pg_sys::EState);
        pub fn CreateExecutorState() -> *mut pg_sys::EState;
        pub fn FreeExecutorState(estate: *mut pg_sys::EState);
        pub fn ExecResetTupleTable(table: *mut pg_sys::List, free: bool);
        pub fn ExecCloseResultRelations(estate: *mut pg_sys::EState);
        pub fn ExecConstraints(
            info: *mut pg_sys::ResultRelInfo,
            slot: *mut pg_sys::TupleTableSlot,
            estate: *mut pg_sys::EState,
        );
        pub fn palloc0(size: pg_sys::Size) -> *mut core::ffi::c_void;
        pub fn pfree(p: *mut core::ffi::c_void);
        // These raise nothing in the ways we call them.
        pub fn slot_getsomeattrs_int(slot: *mut pg_sys::TupleTableSlot, attnum: core::ffi::c_int);
        pub fn heap_compute_data_size(
            desc: pg_sys::TupleDesc,
            values: *mut pg_sys::Datum,
            isnull: *mut bool,
        ) -> pg_sys::Size;
        pub fn heap_fill_tuple(
            desc: pg_sys::TupleDesc,
            values: *mut pg_sys::Datum,
            isnull: *mut bool,
            data: *mut core::ffi::c_char,
            data_size: pg_sys::Size,
            infomask: *mut u16,
            bit: *mut pg_sys::bits8,
        );
        pub fn GetCurrentTransactionIdIfAny() -> pg_sys::TransactionId;
        pub fn GetTopTransactionIdIfAny() -> pg_sys::TransactionId;
        pub fn GetTopFullTransactionIdIfAny() -> pg_sys::FullTransactionId;
        // Raises nothing.
        pub fn pgstat_count_heap_insert(rel: pg_sys::Relation, n: pg_sys::PgStat_Counter);
        pub fn pgstat_count_heap_delete(rel: pg_sys::Relation);
        pub fn ActiveSnapshotSet() -> bool;
        pub fn GetActiveSnapshot() -> pg_sys::Snapshot;
        #[allow(clippy::too_many_arguments)]
        pub fn standard_ProcessUtility(
            pstmt: *mut pg_sys::PlannedStmt,
            query: *const core::ffi::c_char,
            read_only: bool,
            context: pg_sys::ProcessUtilityContext::Type,
            params: pg_sys::ParamListInfo,
            env: *mut pg_sys::QueryEnvironment,
            dest: *mut pg_sys::DestReceiver,
            completion: *mut pg_sys::QueryCompletion,
        );
        pub fn datumCopy(d: pg_sys::Datum, byval: bool, len: core::ffi::c_int) -> pg_sys::Datum;
        pub fn datumIsEqual(a: pg_sys::Datum, b: pg_sys::Datum, byval: bool, len: core::ffi::c_int) -> bool;
        pub fn datum_image_eq(a: pg_sys::Datum, b: pg_sys::Datum, byval: bool, len: i32) -> bool;
    }
}

/// Calls what may run SQL, as functions of users do, with an active snapshot: at the end of a
/// statement and at COMMIT there is none.
pub fn with_snapshot<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: each caller is within a transaction, so there is a snapshot to take; an ERROR's
    // clean-up pops it.
    unsafe {
        if raw::ActiveSnapshotSet() {
            return f();
        }
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let r = f();
        pg_sys::PopActiveSnapshot();
        r
    }
}

/// Are two values the same bytes (datum.h)? Then they are equal. Of equal values that are not, one
/// is compressed, or has a longer header: a caller must be right, too, if it takes such a value for
/// another one (INV-PACKED). Raises nothing for values that are in memory.
///
/// # Safety
/// Values of a type that is passed by value or not, and has this length; not NULL, and in memory.
pub unsafe fn same(a: pg_sys::Datum, b: pg_sys::Datum, byval: bool, len: i32) -> bool {
    // SAFETY: `a` and `b` are values of a type with `byval` and `len` (contract of this function).
    unsafe { raw::datumIsEqual(a, b, byval, len) }
}

/// As [`same`], but a value that is compressed counts by what it is (`datum_image_eq`). An ERROR
/// unwinds.
///
/// # Safety
/// As for [`same`].
pub unsafe fn same_unpacked(a: pg_sys::Datum, b: pg_sys::Datum, byval: bool, len: i32) -> bool {
    // SAFETY: `a` and `b` are values of a type with `byval` and `len` (contract of this function):
    // varlenas if that is -1. The closure owns nothing.
    unsafe {
        let packed = |d: pg_sys::Datum| pgrx::varatt_is_4b_c(d.cast_mut_ptr());
        same(a, b, byval, len)
            || !byval
                && len == -1
                && (packed(a) || packed(b))
                && pg_sys::ffi::pg_guard_ffi_boundary(|| raw::datum_image_eq(a, b, byval, len))
    }
}

/// Copies a value into the current memory context (datum.h). An ERROR unwinds.
///
/// # Safety
/// A value of a type that is passed by value or not, and has this length; not NULL.
pub unsafe fn copy(d: pg_sys::Datum, byval: bool, len: i32) -> pg_sys::Datum {
    // SAFETY: `d` is a value of a type with `byval` and `len` (contract of this function). The
    // closure owns nothing.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| raw::datumCopy(d, byval, len)) }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn tids_round_trip() {
        for t in [
            Tid::Record(0),
            Tid::Record(255),
            Tid::Record(256),
            Tid::Record(1 << 31),
            Tid::Old(0),
            Tid::New(127),
            Tid::Old(128),
            Tid::New(1 << 27),
            Tid::Locked(0),
            Tid::Locked(255),
            Tid::Locked(256),
            Tid::Locked(u32::MAX),
        ] {
            assert_eq!(Tid::read(&t.item()), t);
        }
        assert_eq!(Tid::read(&Tid::Invalid.item()), Tid::Invalid);
        assert_eq!(Tid::read(&make(PSEUDO + (1 << 25), 2)), Tid::Invalid);
        assert_eq!(Tid::read(&make(LOCKED + (1 << 24), 1)), Tid::Invalid);
        assert_eq!(Tid::read(&make(u32::MAX, 256)), Tid::Invalid);
    }
}
