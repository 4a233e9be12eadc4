//! INSERT, UPDATE and DELETE, as nodeModifyTable.c does it.

use super::exec::Exec;
use super::indexes;
use super::program::Program;
use super::run::{send, start_late};
use super::{probe, select, triggers};
use crate::access::{deferred, lock, tuple, visible, write};
use crate::pg::{self, compat, expr, raw, Tid};
use crate::state::{rel, xact};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, CmdType, LockTupleMode, TM_Result};
use pgrx::prelude::*;

/// Inserts the program's rows. As the executor, it stops where `count` rows were returned; 0: all
/// are wanted.
///
/// # Safety
/// A statement that runs; the table is open. An ERROR jumps over this frame.
pub unsafe fn insert(
    p: *mut Program,
    x: *mut Exec,
    rel: pg_sys::Relation,
    dest: *mut pg_sys::DestReceiver,
    count: u64,
) {
    // SAFETY: `p` runs with the state `x`, and `rel` is its open table: contract of this function.
    // `info` is zeroed, which is a valid value, and is read only where it has been filled.
    unsafe {
        let most = most_rows(p, count);
        // The executor must see to them?
        let indexed = (*p).indexes.is_null() && (*(*rel).rd_rel).relhasindex;
        let mut info = std::mem::MaybeUninit::<pg_sys::ResultRelInfo>::zeroed();
        let info = info.as_mut_ptr();
        if indexed || (*p).queues {
            raw::InitResultRelInfo(info, rel, (*p).rti, std::ptr::null_mut(), 0);
        }
        if indexed {
            raw::ExecOpenIndices(info, false);
        }
        for row in 0..(*p).n_values.max(1) {
            if row > 0 {
                between_rows(p, x);
            }
            if !(*p).values.is_null() {
                (*(*p).econtext).ecxt_scantuple = expr::project(*(*p).values.add(row));
            }
            if !insert_one(p, x, rel, info, dest) || row as u64 + 1 == most {
                break;
            }
        }
        if indexed {
            raw::ExecCloseIndices(info);
        }
    }
}

/// After how many rows a statement of which `count` are wanted stops: what returns nothing is not
/// counted.
unsafe fn most_rows(p: *mut Program, count: u64) -> u64 {
    // SAFETY: `p` runs (contract of `insert` and `range`); a plain read.
    if count == 0 || unsafe { (*p).out.is_null() } {
        u64::MAX
    } else {
        count
    }
}

/// Inserts the row that the program makes now. False: no more are wanted.
unsafe fn insert_one(
    p: *mut Program,
    x: *mut Exec,
    rel: pg_sys::Relation,
    info: *mut pg_sys::ResultRelInfo,
    dest: *mut pg_sys::DestReceiver,
) -> bool {
    // SAFETY: `p` runs with the state `x`, and `rel` is its open table (contract of `insert`).
    // `project` has filled the slot, of the table's row type (`writes::fits`). `info` is zeroed or
    // filled by `insert`.
    unsafe {
        let e = &raw mut (*x).estate;
        let slot = expr::project((*p).new);
        check(p, rel, slot);
        write::insert(rel, &[slot], (*e).es_output_cid);
        if !(*p).indexes.is_null() {
            indexes::insert((*p).indexes, rel, slot);
        } else if (*info).ri_NumIndices > 0 {
            compat::insert_index_entries(info, slot, e);
        }
        if (*p).queues {
            triggers::inserted(x, info, slot);
        }
        done(p, x, slot, dest)
    }
}

/// What a row has allocated goes before the next one.
unsafe fn between_rows(p: *mut Program, x: *mut Exec) {
    // SAFETY: `p` runs with the state `x` (contract of `insert`). The context of index expressions
    // is null if there are none.
    unsafe {
        if pg_sys::InterruptPending != 0 {
            raw::ProcessInterrupts();
        }
        raw::MemoryContextReset((*(*p).econtext).ecxt_per_tuple_memory);
        let of_indexes = (*x).estate.es_per_tuple_exprcontext;
        if !of_indexes.is_null() {
            raw::MemoryContextReset((*of_indexes).ecxt_per_tuple_memory);
        }
    }
}

/// UPDATE and DELETE of the rows of a range. `count`: as in [`insert`].
///
/// # Safety
/// As for [`insert`].
pub unsafe fn range(p: *mut Program, x: *mut Exec, rel: pg_sys::Relation, dest: *mut pg_sys::DestReceiver, count: u64) {
    // SAFETY: `p` runs with the state `x`, and `rel` is its open table: contract of this function.
    // The scan that `start` opens ends with `stop`, or with the transaction.
    unsafe {
        select::start(p, x, rel);
        let (mut n, mut left) = (0, most_rows(p, count));
        while left > 0 && select::next(p, x, rel, &mut n) {
            let c = (*p).econtext;
            (*c).ecxt_scantuple = (*p).row;
            if !expr::passes((*p).rest, c) {
                continue;
            }
            let written =
                if (*p).op == CmdType::CMD_UPDATE { update(p, x, rel, dest) } else { delete(p, x, rel, dest) };
            match written {
                Written::Nothing => {}
                Written::Row => left -= 1,
                Written::Last => break,
            }
        }
        select::stop(p, x);
    }
}

/// What became of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It was passed over.
    Nothing,
    /// It was written.
    Row,
    /// It was written, and the receiver wants no more.
    Last,
}

impl Written {
    fn of(more: bool) -> Written {
        if more {
            Written::Row
        } else {
            Written::Last
        }
    }
}

/// A row has been written: counts it, and returns what is to be returned. False: no more are
/// wanted.
unsafe fn done(
    p: *mut Program,
    x: *mut Exec,
    row: *mut pg_sys::TupleTableSlot,
    dest: *mut pg_sys::DestReceiver,
) -> bool {
    // SAFETY: `p` runs with the state `x`, and `dest` is its receiver (contract of `insert`). `row`
    // is a slot of the program.
    unsafe {
        if (*p).sets_tag {
            (*x).estate.es_processed += 1;
        }
        (*(*p).econtext).ecxt_scantuple = row;
        start_late(p, x, dest);
        send(p, dest)
    }
}

/// NOT NULL and CHECK constraints of the new row.
unsafe fn check(p: *mut Program, rel: pg_sys::Relation, slot: *mut pg_sys::TupleTableSlot) {
    // SAFETY: `p` runs and `rel` is its open table (contract of `insert`). `new_row` has made the
    // lists of so many columns and checks. The slot has all columns of the table.
    unsafe {
        let columns = std::slice::from_raw_parts((*p).not_null, (*p).n_not_null);
        let mut good = columns.iter().all(|c| !*(*slot).tts_isnull.add(*c as usize - 1));
        if good && (*p).n_checks > 0 {
            let c = (*p).econtext;
            let before = std::mem::replace(&mut (*c).ecxt_scantuple, slot);
            for i in 0..(*p).n_checks {
                good = good && expr::fulfils(*(*p).checks.add(i), c);
            }
            (*c).ecxt_scantuple = before;
        }
        if !good {
            (*slot).tts_tableOid = (*p).table;
            compat::check_constraints(rel, (*p).rti, (*p).tables, slot);
        }
    }
}

/// Updates the row in the program's slot, in place (INV-BYPASS-PLACE).
///
/// # Safety
/// As for [`insert`]; the row is in the program's slot, with its TID.
pub unsafe fn update(p: *mut Program, x: *mut Exec, rel: pg_sys::Relation, dest: *mut pg_sys::DestReceiver) -> Written {
    // SAFETY: `p` runs with the state `x`, `rel` is its open table and the slot has the row:
    // contract of this function. The new row is of the table's row type, as `p.new` makes it.
    unsafe {
        let e = &raw mut (*x).estate;
        let row = (*p).row;
        let mut tid = (*row).tts_tid;
        loop {
            let slot = expr::project((*p).new);
            check(p, rel, slot);
            let mut failed = pg_sys::TM_FailureData::default();
            let (cid, snapshot, cross) = ((*e).es_output_cid, (*e).es_snapshot, (*e).es_crosscheck_snapshot);
            let info = rel::info(rel); // after the expressions: they may have accepted invalidations
            let (tid_read, sets) = (Tid::read(&tid), Some((*p).sets_of));
            let result = write::update_in_place(rel, info, tid_read, slot, cid, snapshot, cross, &mut failed, sets);
            if result == TM_Result::TM_Ok {
                return Written::of(done(p, x, slot, dest));
            }
            let mode = LockTupleMode::LockTupleNoKeyExclusive;
            if !again(p, x, rel, result, &mut tid, mode, &mut failed, "updated") {
                return Written::Nothing;
            }
        }
    }
}

/// Notes the UPDATE of an addition, to be made later; false: it must be run now.
///
/// # Safety
/// As for [`insert`].
pub unsafe fn defer(p: *mut Program, x: *mut Exec, rel: pg_sys::Relation, dest: *mut pg_sys::DestReceiver) -> bool {
    // SAFETY: `p` runs with the state `x`, and `rel` is its open table: contract of this function.
    // `new` makes a row of the table's row type.
    unsafe {
        let Some((found, key)) = probe::find_anyhow(p, rel) else { return false };
        if deferred::meets((*p).table, Some(key.bytes()), (*p).returned) {
            return false; // what it returns is what waits (INV-DEFERRED)
        }
        tuple::store((*p).row, (*p).table, Tid::Record(found.r.no), found.version.as_ptr());
        let e = &raw mut (*x).estate;
        let (list, columns, sets, returned) = ((*p).added, (*p).added_to, (*p).sets_of, (*p).returned);
        let mut slot = std::ptr::null_mut();
        let noted = deferred::note(deferred::Statement {
            rel,
            found,
            key,
            list,
            columns,
            sets,
            returned,
            params: (*e).es_param_list_info,
            cid: (*e).es_output_cid,
            tries: &mut || {
                (*(*p).econtext).ecxt_scantuple = (*p).row;
                slot = expr::project((*p).new);
                check(p, rel, slot);
            },
        });
        if noted {
            done(p, x, slot, dest);
        }
        noted
    }
}

/// Deletes the row in the program's slot.
///
/// # Safety
/// As for [`insert`]; the row is in the program's slot, with its TID.
pub unsafe fn delete(p: *mut Program, x: *mut Exec, rel: pg_sys::Relation, dest: *mut pg_sys::DestReceiver) -> Written {
    // SAFETY: `p` runs with the state `x`, `rel` is its open table and the slot has the row:
    // contract of this function.
    unsafe {
        let e = &raw mut (*x).estate;
        let mut tid = (*(*p).row).tts_tid;
        loop {
            let mut failed = pg_sys::TM_FailureData::default();
            let (cid, snapshot, cross) = ((*e).es_output_cid, (*e).es_snapshot, (*e).es_crosscheck_snapshot);
            let result = write::delete(rel, Tid::read(&tid), cid, snapshot, cross, &mut failed, false);
            if result == TM_Result::TM_Ok {
                return Written::of(done(p, x, (*p).row, dest));
            }
            let mode = LockTupleMode::LockTupleExclusive;
            if !again(p, x, rel, result, &mut tid, mode, &mut failed, "deleted") {
                return Written::Nothing;
            }
        }
    }
}

/// Has this transaction written the row in the program's slot?
///
/// # Safety
/// As for [`update`].
pub unsafe fn wrote(p: *mut Program, rel: pg_sys::Relation) -> bool {
    // SAFETY: `rel` is the open table of `p`, whose slot has a row of it with its TID: contract of
    // this function.
    let r = unsafe { visible::record(rel::info(rel).table, Tid::read(&(*(*p).row).tts_tid)) };
    r.is_none_or(|r| xact::txn().last_write(r).is_some())
}

/// A row could not be written. True: the newest version is in the program's slot, fulfils the
/// conditions (EvalPlanQual), and is to be written; false: there is nothing to do.
#[cold]
#[allow(clippy::too_many_arguments)]
unsafe fn again(
    p: *mut Program,
    x: *mut Exec,
    rel: pg_sys::Relation,
    result: TM_Result::Type,
    tid: &mut pg_sys::ItemPointerData,
    mode: LockTupleMode::Type,
    failed: &mut pg_sys::TM_FailureData,
    what: &str,
) -> bool {
    // SAFETY: `p` runs with the state `x`, and `rel` is its open table (contract of `insert`).
    // `tid` and `failed` are what the write has left there (tableam.h).
    unsafe {
        let cid = (*x).estate.es_output_cid;
        match result {
            TM_Result::TM_SelfModified => return already(failed, cid, what),
            TM_Result::TM_Updated | TM_Result::TM_Deleted if pg::uses_xact_snapshot() => {
                let what = if result == TM_Result::TM_Updated { "update" } else { "delete" };
                ErrorReport::new(
                    PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
                    format!("could not serialize access due to concurrent {what}"),
                    "mixedcc",
                )
                .report(PgLogLevel::ERROR);
            }
            TM_Result::TM_Deleted => return false,
            TM_Result::TM_Updated => {}
            _ => error!("unexpected status of a write: {result}"),
        }
        let follow = pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION as u8;
        let wait = pg_sys::LockWaitPolicy::LockWaitBlock;
        let (row, snapshot) = ((*p).row, (*x).estate.es_snapshot);
        match lock::lock(rel, tid, snapshot, row, cid, (mode, false), wait, follow, failed) {
            TM_Result::TM_Ok => {
                (*(*p).econtext).ecxt_scantuple = row;
                expr::passes((*p).all, (*p).econtext)
            }
            TM_Result::TM_SelfModified => already(failed, cid, what),
            TM_Result::TM_Deleted => false,
            other => error!("unexpected status of a row lock: {other}"),
        }
    }
}

/// A row that this command has written before is passed over; one that a function within it has
/// written is an error.
fn already(failed: &pg_sys::TM_FailureData, cid: pg_sys::CommandId, what: &str) -> bool {
    if failed.cmax != cid {
        ErrorReport::new(
            PgSqlErrorCode::ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION,
            format!("tuple to be {what} was already modified by an operation triggered by the current command"),
            "mixedcc",
        )
        .set_hint("Consider using an AFTER trigger instead of a BEFORE trigger to propagate changes to other rows.")
        .report(PgLogLevel::ERROR);
    }
    false
}
