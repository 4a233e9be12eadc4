//! Running a program.

use super::exec::{self, Exec};
use super::program::Program;
use super::{counts, probe, select, triggers, write, Reason};
use crate::hooks::executor;
use crate::pg::raw;
use pgrx::pg_sys::{self, CmdType, Datum};
use pgrx::prelude::*;

/// `ExecutorRun` of a statement that the bypass has started; false: the executor's.
///
/// # Safety
/// The contract of `ExecutorRun`.
pub unsafe fn run(q: *mut pg_sys::QueryDesc, direction: pg_sys::ScanDirection::Type, count: u64, once: bool) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let Some(x) = exec::of(q) else { return false };
        match guarded_run(q, x, direction, count, once) {
            None => true,
            Some(why) => {
                to_executor(q, x, why);
                false
            }
        }
    }
}

/// The statement is the executor's after all: nothing of it has happened yet.
unsafe fn to_executor(q: *mut pg_sys::QueryDesc, x: *mut Exec, why: Reason) {
    // SAFETY: a statement that the bypass has started, and not run.
    unsafe {
        triggers::give_up(x);
        let flags = (*x).estate.es_top_eflags;
        (*q).estate = std::ptr::null_mut();
        (*q).planstate = std::ptr::null_mut();
        (*q).tupDesc = std::ptr::null_mut();
        executor::start_executor(q, flags, why);
        exec::replace(x, (*q).estate);
    }
}

#[pg_guard]
#[allow(improper_ctypes_definitions)] // called from here only
unsafe extern "C-unwind" fn guarded_run(
    q: *mut pg_sys::QueryDesc,
    x: *mut Exec,
    direction: pg_sys::ScanDirection::Type,
    count: u64,
    once: bool,
) -> Option<Reason> {
    // SAFETY: as in `run`.
    unsafe {
        let p = (*x).program;
        let moves = direction != pg_sys::ScanDirection::NoMovementScanDirection;
        let first = moves && !(*x).done;
        if first && !(*p).running.is_null() {
            return Some(Reason::Busy);
        }
        let several = !(*p).range.is_null() || (*p).n_values > 0;
        if first && several && count != 0 && !once {
            return Some(Reason::Cursor); // the rest is wanted later
        }
        let e = &mut (*x).estate;
        let old = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = e.es_query_cxt;
        if !(*q).totaltime.is_null() {
            raw::InstrStartNode((*q).totaltime);
        }
        e.es_processed = 0;
        let sends = !(*p).out.is_null();
        let dest = (*q).dest;
        if sends {
            if let Some(f) = (*dest).rStartup {
                f(dest, (*p).op as i32, (*q).tupDesc);
            }
        }
        let mut why = None;
        if first {
            (*p).running = x;
            why = step(p, x, dest, count);
            (*p).running = std::ptr::null_mut();
            if why.is_none() {
                (*x).done = true;
                counts::taken((*p).op);
            }
        }
        if sends {
            if let Some(f) = (*dest).rShutdown {
                f(dest);
            }
        }
        if !(*q).totaltime.is_null() {
            raw::InstrStopNode((*q).totaltime, (*x).estate.es_processed as f64);
        }
        pg_sys::CurrentMemoryContext = old;
        why
    }
}

/// Runs the statement. A reason: only the executor can; then it has no output.
unsafe fn step(p: *mut Program, x: *mut Exec, dest: *mut pg_sys::DestReceiver, count: u64) -> Option<Reason> {
    // SAFETY: as in `run`.
    unsafe {
        if pg_sys::InterruptPending != 0 {
            raw::ProcessInterrupts();
        }
        let rel = exec::pin(p, x);
        let c = (*p).econtext;
        (*c).ecxt_param_list_info = (*x).estate.es_param_list_info;
        let mut why = None;
        match (*p).op {
            CmdType::CMD_SELECT => select::run(p, x, rel, dest, count),
            CmdType::CMD_INSERT => write::insert(p, x, rel, dest, count),
            _ => why = write_found(p, x, rel, dest, count),
        }
        clear((*p).row);
        exec::unpin(x);
        raw::MemoryContextReset((*c).ecxt_per_tuple_memory);
        why
    }
}

/// UPDATE and DELETE.
unsafe fn write_found(
    p: *mut Program,
    x: *mut Exec,
    rel: pg_sys::Relation,
    dest: *mut pg_sys::DestReceiver,
    count: u64,
) -> Option<Reason> {
    // SAFETY: as in `run`.
    unsafe {
        if !(*p).range.is_null() {
            return write::range(p, x, rel, dest, count);
        }
        if !probe::find(p, x, rel, true) {
            return None;
        }
        let c = (*p).econtext;
        (*c).ecxt_scantuple = (*p).row;
        if !(*p).rest.is_null() && !holds((*p).rest, c) {
            return None;
        }
        if (*p).op == CmdType::CMD_UPDATE {
            return write::update(p, x, rel, dest).err();
        }
        write::delete(p, x, rel, dest);
        None
    }
}

/// Empties a slot.
///
/// # Safety
/// A slot.
#[inline]
pub unsafe fn clear(slot: *mut pg_sys::TupleTableSlot) {
    // SAFETY: the caller's.
    unsafe {
        if let Some(f) = (*(*slot).tts_ops).clear {
            f(slot);
        }
    }
}

/// Evaluates an expression.
///
/// # Safety
/// A state of this context. An ERROR jumps over this frame.
#[inline]
pub unsafe fn evaluate(state: *mut pg_sys::ExprState, c: *mut pg_sys::ExprContext, null: &mut bool) -> Datum {
    // SAFETY: the caller's.
    unsafe {
        let old = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = (*c).ecxt_per_tuple_memory;
        let v = match (*state).evalfunc {
            Some(f) => f(state, c, null),
            None => Datum::from(0),
        };
        pg_sys::CurrentMemoryContext = old;
        v
    }
}

/// Is a condition true (not NULL)?
///
/// # Safety
/// As `evaluate`.
pub unsafe fn holds(state: *mut pg_sys::ExprState, c: *mut pg_sys::ExprContext) -> bool {
    let mut null = false;
    // SAFETY: the caller's.
    let v = unsafe { evaluate(state, c, &mut null) };
    !null && v.value() != 0
}

/// Makes the row of a projection.
///
/// # Safety
/// As `evaluate`.
#[inline]
pub unsafe fn project(proj: *mut pg_sys::ProjectionInfo) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: the caller's; the slot is a virtual one.
    unsafe {
        let slot = (*proj).pi_state.resultslot;
        clear(slot);
        let mut null = false;
        evaluate(&raw mut (*proj).pi_state, (*proj).pi_exprContext, &mut null);
        (*slot).tts_flags &= !(pg_sys::TTS_FLAG_EMPTY as u16);
        (*slot).tts_nvalid = (*(*slot).tts_tupleDescriptor).natts as i16;
        slot
    }
}

/// Gives what the statement returns of a row to the receiver. False: the receiver wants no more.
///
/// # Safety
/// As `evaluate`; the row is in the program's expression context.
pub unsafe fn send(p: *mut Program, dest: *mut pg_sys::DestReceiver) -> bool {
    // SAFETY: the caller's.
    unsafe {
        if (*p).out.is_null() {
            return true;
        }
        let slot = project((*p).out);
        let more = (*dest).receiveSlot.is_none_or(|f| f(slot, dest));
        clear(slot);
        more
    }
}
