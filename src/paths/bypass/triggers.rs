//! Triggers: which tables with triggers the bypass may write, and the queue of those that check
//! foreign keys.
//!
//! **INV-BYPASS-QUEUE**: A statement that queues triggers has a query level of its own from its
//! start to its finish, as in the executor. The exception are callers whose level takes the
//! triggers (EXEC_FLAG_SKIP_TRIGGERS). An ERROR takes the level away with its (sub)transaction.

use super::exec::Exec;
use super::plan::Shape;
use super::program::Program;
use super::Reason;
use crate::pg::raw;
use pgrx::pg_sys::{self, CmdType};
use pgrx::PgList;

/// What a table's triggers mean for a statement: it queues those that check its foreign keys
/// (true), there are none for it (false), or only the executor knows them.
///
/// # Safety
/// An open table.
pub unsafe fn queues(table: pg_sys::Relation, shape: &Shape) -> Result<bool, Reason> {
    // SAFETY: `table` is open: contract of this function. Its entry of the cache has the triggers,
    // or null.
    unsafe {
        if (*table).trigdesc.is_null() {
            return Ok(false);
        }
        let t = &*(*table).trigdesc;
        let any = match shape.op {
            CmdType::CMD_INSERT => {
                t.trig_insert_before_row
                    || t.trig_insert_instead_row
                    || t.trig_insert_before_statement
                    || t.trig_insert_after_statement
                    || t.trig_insert_after_row && !of_foreign_keys(t, INSERT)
            }
            CmdType::CMD_DELETE => {
                t.trig_delete_before_row
                    || t.trig_delete_after_row
                    || t.trig_delete_instead_row
                    || t.trig_delete_before_statement
                    || t.trig_delete_after_statement
            }
            _ => {
                t.trig_update_before_row
                    || t.trig_update_instead_row
                    || t.trig_update_before_statement
                    || t.trig_update_after_statement
                    || t.trig_update_after_row && !only_foreign_keys(table, t, shape)
            }
        };
        if any {
            return Err(Reason::Triggers);
        }
        Ok(shape.op == CmdType::CMD_INSERT && t.trig_insert_after_row)
    }
}

const ROW: i16 = pg_sys::TRIGGER_TYPE_ROW as i16;
const INSERT: i16 = pg_sys::TRIGGER_TYPE_INSERT as i16;
const UPDATE: i16 = pg_sys::TRIGGER_TYPE_UPDATE as i16;

/// Are all row triggers for an event those of foreign keys, without conditions?
unsafe fn of_foreign_keys(t: &pg_sys::TriggerDesc, event: i16) -> bool {
    // SAFETY: the caller has `t` of an open relation, which has `numtriggers` of them.
    // `RI_FKey_trigger_type` answers any OID.
    unsafe {
        let all = std::slice::from_raw_parts(t.triggers, t.numtriggers as usize);
        let mut these = all.iter().filter(|t| t.tgtype & ROW != 0 && t.tgtype & event != 0);
        these.all(|t| t.tgqual.is_null() && pg_sys::RI_FKey_trigger_type(t.tgfoid) != pg_sys::RI_TRIGGER_NONE as i32)
    }
}

/// Are all row triggers for UPDATE those of foreign keys whose columns the statement does not set?
/// They are not queued then (AfterTriggerSaveEvent), but for rows that this transaction wrote
/// before.
unsafe fn only_foreign_keys(table: pg_sys::Relation, t: &pg_sys::TriggerDesc, shape: &Shape) -> bool {
    // SAFETY: `queues` has an open relation, and `t` is its `trigdesc`. A foreign key has `nkeys`
    // columns.
    unsafe {
        if !of_foreign_keys(t, UPDATE) {
            return false;
        }
        let sets: Vec<i32> = PgList::<i32>::from_pg(shape.columns).iter_int().collect();
        let keys = PgList::<pg_sys::ForeignKeyCacheInfo>::from_pg(pg_sys::RelationGetFKeyList(table));
        let free = keys.iter_ptr().all(|k| {
            let k = &*k;
            k.conkey[..k.nkeys as usize].iter().all(|c| !sets.contains(&(*c as i32)))
        });
        free
    }
}

/// Begins the query level of a statement (INV-BYPASS-QUEUE).
///
/// # Safety
/// A statement of this program that starts.
#[inline]
pub unsafe fn begin(p: *mut Program, x: *mut Exec, eflags: i32) {
    // SAFETY: `x` is the state of a statement of `p` that starts: contract of this function.
    unsafe {
        (*x).queues = (*p).queues && eflags & pg_sys::EXEC_FLAG_SKIP_TRIGGERS as i32 == 0;
        if (*x).queues {
            raw::AfterTriggerBeginQuery();
        }
    }
}

/// Queues the triggers of a row that was inserted.
///
/// # Safety
/// A statement that runs, its table with its triggers, and the row with its TID. An ERROR jumps
/// over this frame.
pub unsafe fn inserted(x: *mut Exec, info: *mut pg_sys::ResultRelInfo, row: *mut pg_sys::TupleTableSlot) {
    // SAFETY: `x` runs, `info` has the table with its triggers, and `row` has its TID: contract of
    // this function. Its query level is open (INV-BYPASS-QUEUE), or the caller's takes the
    // triggers.
    unsafe {
        let (no_list, no_capture) = (std::ptr::null_mut(), std::ptr::null_mut());
        raw::ExecARInsertTriggers(&raw mut (*x).estate, info, row, no_list, no_capture);
    }
}

/// Fires what was queued, but for what is deferred, and ends the query level.
///
/// # Safety
/// A statement that finishes. An ERROR jumps over this frame.
pub unsafe fn finish(q: *mut pg_sys::QueryDesc, x: *mut Exec) {
    // SAFETY: `x` is the state of `q`, which finishes: contract of this function. If it queues, it
    // has a query level (INV-BYPASS-QUEUE), which ends here.
    unsafe {
        if !(*x).queues {
            return;
        }
        let old = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = (*x).estate.es_query_cxt;
        if !(*q).totaltime.is_null() {
            raw::InstrStartNode((*q).totaltime);
        }
        (*x).queues = false;
        // Of its own: triggers open tables by it, and ours is no whole one.
        let estate = raw::CreateExecutorState();
        raw::AfterTriggerEndQuery(estate);
        raw::ExecCloseResultRelations(estate);
        raw::ExecResetTupleTable((*estate).es_tupleTable, false);
        raw::FreeExecutorState(estate);
        if !(*q).totaltime.is_null() {
            raw::InstrStopNode((*q).totaltime, 0.0);
        }
        pg_sys::CurrentMemoryContext = old;
    }
}

/// The executor takes the statement over, before anything was queued, and makes its own level.
///
/// # Safety
/// A statement that has started, and not run.
pub unsafe fn give_up(x: *mut Exec) {
    // SAFETY: `x` was started and has not run: contract of this function. So its level has no
    // triggers, and nothing is fired with our state (INV-BYPASS-QUEUE).
    unsafe {
        if std::mem::take(&mut (*x).queues) {
            raw::AfterTriggerEndQuery(&raw mut (*x).estate);
        }
    }
}
