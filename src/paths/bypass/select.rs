//! SELECT: the rows of a key or of a range of keys, limited, locked, aggregated.

use super::exec::Exec;
use super::program::Program;
use super::{agg, probe};
use crate::access::statements::{self, Statement};
use crate::access::{lock, range};
use crate::pg::{self, expr, raw};
use crate::state::rel;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, TM_Result};
use pgrx::prelude::*;

/// Runs a SELECT. At most `count` rows are wanted; 0: all.
///
/// # Safety
/// A statement that runs; the table is open. An ERROR jumps over this frame.
pub unsafe fn run(p: *mut Program, x: *mut Exec, rel: pg_sys::Relation, dest: *mut pg_sys::DestReceiver, count: u64) {
    // SAFETY: `p` runs with the state `x`, and `rel` is its open table: contract of this function.
    // Nothing else uses the program meanwhile (INV-BYPASS-ONCE).
    unsafe {
        let c = (*p).econtext;
        if (*p).one_row {
            if probe::find(p, x, rel, false) {
                (*c).ecxt_scantuple = (*p).row;
                if expr::passes((*p).rest, c) {
                    give(x, expr::project((*p).out), dest);
                }
            }
        } else if (*p).aggregates.is_null() {
            rows(p, x, rel, dest, if count == 0 { u64::MAX } else { count });
        } else {
            agg::start((*p).aggregates);
            if reads_columns(p) {
                columns(p, x, rel);
            } else {
                rows(p, x, rel, dest, u64::MAX);
            }
            raw::MemoryContextReset((*c).ecxt_per_tuple_memory);
            agg::results((*p).aggregates, c);
            give(x, expr::project((*p).out), dest);
            agg::end((*p).aggregates);
        }
    }
}

/// A row of the result. False: the receiver wants no more.
unsafe fn give(x: *mut Exec, slot: *mut pg_sys::TupleTableSlot, dest: *mut pg_sys::DestReceiver) -> bool {
    // SAFETY: the caller has the statement's state and receiver from `run`, and a valid slot of the
    // program.
    unsafe {
        let more = (*dest).receiveSlot.is_none_or(|f| f(slot, dest));
        if more {
            (*x).estate.es_processed += 1;
        }
        expr::clear(slot);
        more
    }
}

/// The value of LIMIT or OFFSET (nodeLimit.c). `None`: it has none.
unsafe fn number(p: *mut Program, e: *mut pg_sys::ExprState, code: PgSqlErrorCode, what: &str) -> Option<u64> {
    // SAFETY: `p` runs (contract of `run`), and `e` is null or an expression of it of type bigint.
    unsafe {
        if e.is_null() {
            return None;
        }
        let (n, null) = expr::evaluate(e, (*p).econtext);
        if null {
            return None;
        }
        let n = n.value() as i64;
        if n < 0 {
            ErrorReport::new(code, format!("{what} must not be negative"), "mixedcc").report(PgLogLevel::ERROR);
        }
        Some(n as u64)
    }
}

/// Gives the rows to the receiver or to the aggregates, at most `most` of them.
unsafe fn rows(p: *mut Program, x: *mut Exec, rel: pg_sys::Relation, dest: *mut pg_sys::DestReceiver, most: u64) {
    use PgSqlErrorCode::{
        ERRCODE_INVALID_ROW_COUNT_IN_LIMIT_CLAUSE as LIMIT, ERRCODE_INVALID_ROW_COUNT_IN_RESULT_OFFSET_CLAUSE as OFFSET,
    };
    // SAFETY: `p` runs with the state `x`, and `rel` is its open table (contract of `run`). The
    // scan that `start` opens ends with `stop`, or with the transaction.
    unsafe {
        let mut skip = number(p, (*p).offset, OFFSET, "OFFSET").unwrap_or(0);
        let limit = number(p, (*p).limit, LIMIT, "LIMIT").unwrap_or(u64::MAX);
        let mut left = most.min(limit);
        if left == 0 {
            return; // nothing is read
        }
        start(p, x, rel);
        let mut n = 0;
        while left > 0 && next(p, x, rel, &mut n) {
            let c = (*p).econtext;
            (*c).ecxt_scantuple = (*p).row;
            if !expr::passes((*p).rest, c) {
                continue;
            }
            let mut slot = compute(p);
            if (*p).locks {
                match lock_row(p, x, rel) {
                    Locked::No => continue,
                    Locked::Yes => {}
                    Locked::Newer => slot = compute(p),
                }
            }
            if skip > 0 {
                skip -= 1;
                continue;
            }
            left -= 1;
            if slot.is_null() {
                agg::add((*p).aggregates, c);
            } else if !give(x, slot, dest) {
                break;
            }
        }
        stop(p, x);
    }
}

/// Does it nothing but compute aggregates of columns, of all rows of a range?
unsafe fn reads_columns(p: *mut Program) -> bool {
    // SAFETY: `run` has found that `p` has aggregates; its fields are plain reads.
    unsafe {
        let all = (*p).limit.is_null() && (*p).offset.is_null() && (*p).rest.is_null();
        all && !(*p).locks && !(*p).range.is_null() && agg::of_columns((*p).aggregates)
    }
}

/// The aggregates of columns, which need no slot.
unsafe fn columns(p: *mut Program, x: *mut Exec, rel: pg_sys::Relation) {
    // SAFETY: `p` runs with the state `x`, and `rel` is its open table (contract of `run`).
    // `reads_columns` has found a range and aggregates of columns. `each` gives versions that our
    // pin keeps (INV-RETIRE), and its closure does not touch the scan.
    unsafe {
        start(p, x, rel);
        let (scan, c, aggregates) = ((*p).range, (*p).econtext, (*p).aggregates);
        let (memory, desc) = ((*c).ecxt_per_tuple_memory, (*(*p).row).tts_tupleDescriptor);
        range::each(scan, |v| {
            agg::add_version(aggregates, c, v.as_ptr(), desc);
            if !(*memory).isReset || !(*memory).firstchild.is_null() {
                raw::MemoryContextReset(memory);
            }
        });
        stop(p, x);
    }
}

/// What is returned of the row; null: it is for the aggregates.
unsafe fn compute(p: *mut Program) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: `p` runs (contract of `run`), and without aggregates a SELECT has a projection.
    unsafe {
        if (*p).aggregates.is_null() {
            expr::project((*p).out)
        } else {
            std::ptr::null_mut()
        }
    }
}

fn of(x: *mut Exec) -> usize {
    x as usize
}

/// Says what the statement does with the rows that it locks, and opens the scan of the range, if
/// there is one.
///
/// # Safety
/// `p` runs with the state `x`, and `table` is its open table. An ERROR jumps over this frame.
pub(super) unsafe fn start(p: *mut Program, x: *mut Exec, table: pg_sys::Relation) {
    // SAFETY: `p` runs with the state `x`, and `table` is open: contract of this function.
    // `range` is null or a scan that does not run, as the program runs once (INV-BYPASS-ONCE).
    unsafe {
        let e = &raw mut (*x).estate;
        let range = (*p).range;
        if pg::is_serializable() {
            let of = Statement { snapshot: (*e).es_snapshot as usize, owner: of(x) };
            if hurries(p) {
                statements::hurries(of, rel::info(table));
            }
            if (*p).for_write && !range.is_null() {
                statements::writes(of, (*p).table);
            }
            if skips(p) {
                statements::skips(of, (*p).table, std::ptr::null());
            }
        }
        if !range.is_null() {
            (*range).skips = skips(p) && pg::is_serializable();
            range::open(range, table, (*p).index, e);
        }
    }
}

/// Does it lock its rows with NOWAIT?
unsafe fn hurries(p: *mut Program) -> bool {
    // SAFETY: `p` is a program (contract of the callers); its fields are plain reads.
    unsafe { (*p).locks && (*p).lock_policy == pg_sys::LockWaitPolicy::LockWaitError }
}

/// Does it skip locked rows (INV-SKIP)?
///
/// # Safety
/// A program.
pub(super) unsafe fn skips(p: *mut Program) -> bool {
    // SAFETY: `p` is a program (contract of this function); its fields are plain reads.
    unsafe { (*p).locks && (*p).for_write && (*p).lock_policy == pg_sys::LockWaitPolicy::LockWaitSkip }
}

/// Finds the next row. `n`: how often it was called.
///
/// # Safety
/// As for `start`, which has begun the scan.
pub(super) unsafe fn next(p: *mut Program, x: *mut Exec, rel: pg_sys::Relation, n: &mut u64) -> bool {
    // SAFETY: `start` has opened the range of `p`, if it has one: contract of this function.
    unsafe {
        *n += 1;
        if !(*p).range.is_null() {
            raw::MemoryContextReset((*(*p).econtext).ecxt_per_tuple_memory);
            return range::next((*p).range);
        }
        *n == 1 && probe::find(p, x, rel, (*p).for_write && pg::is_serializable())
    }
}

/// Closes the scan of the range, if there is one. The statement has run.
///
/// # Safety
/// As for `start`, which has begun the scan.
pub(super) unsafe fn stop(p: *mut Program, x: *mut Exec) {
    // SAFETY: `start` has opened the range of `p`, if it has one: contract of this function.
    unsafe {
        if !(*p).range.is_null() {
            range::close((*p).range);
        }
        statements::end_statement(of(x));
    }
}

/// What became of a row that was to be locked.
enum Locked {
    /// It is passed over.
    No,
    /// It is locked.
    Yes,
    /// A newer version, which is in the scan's slot and fulfils all conditions.
    Newer,
}

/// Locks the row in the program's slot, as nodeLockRows.c does it.
unsafe fn lock_row(p: *mut Program, x: *mut Exec, rel: pg_sys::Relation) -> Locked {
    // SAFETY: `p` runs with the state `x`, and `rel` is its open table (contract of `run`). `p.row`
    // has the row, and `reads::select` has made the slot `locked` for locking.
    unsafe {
        let e = &raw mut (*x).estate;
        let mut tid = (*(*p).row).tts_tid;
        let mut flags = pg_sys::TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS;
        if !pg::uses_xact_snapshot() {
            flags |= pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION;
        }
        let mut failed = pg_sys::TM_FailureData::default();
        let (cid, snapshot, slot) = ((*e).es_output_cid, (*e).es_snapshot, (*p).locked);
        let (mode, policy) = ((*p).lock_mode, (*p).lock_policy);
        let alone = (*p).key_alone;
        match lock::lock(rel, &mut tid, snapshot, slot, cid, (mode, alone), policy, flags as u8, &mut failed) {
            TM_Result::TM_Ok if !failed.traversed => Locked::Yes,
            TM_Result::TM_Ok => {
                let c = (*p).econtext;
                (*c).ecxt_scantuple = slot;
                if expr::passes((*p).all, c) {
                    Locked::Newer
                } else {
                    Locked::No
                }
            }
            TM_Result::TM_WouldBlock | TM_Result::TM_SelfModified => Locked::No,
            TM_Result::TM_Updated | TM_Result::TM_Deleted if pg::uses_xact_snapshot() => {
                let code = PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE;
                ErrorReport::new(code, "could not serialize access due to concurrent update", "mixedcc")
                    .report(PgLogLevel::ERROR);
                Locked::No
            }
            TM_Result::TM_Deleted => Locked::No,
            TM_Result::TM_Invisible => error!("attempted to lock invisible tuple"),
            other => error!("unexpected status of a row lock: {other}"),
        }
    }
}
