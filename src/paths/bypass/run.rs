//! Running a program.

use super::exec::{self, Exec};
use super::program::Program;
use super::{counts, probe, select, triggers, write, Reason};
use crate::access::deferred;
use crate::pg::{compat, expr, raw};
use pgrx::pg_sys::{self, CmdType};
use pgrx::prelude::*;

/// What became of a statement.
pub enum Run {
    /// It has run.
    Done,
    /// The bypass has not started it.
    NotOurs,
    /// Nothing of it has happened yet, and only the executor can run it.
    Refused(Reason),
}

/// `ExecutorRun` of a statement, if the bypass has started it.
///
/// # Safety
/// The contract of `ExecutorRun`.
#[inline]
pub unsafe fn run(q: *mut pg_sys::QueryDesc, direction: pg_sys::ScanDirection::Type, count: u64, once: bool) -> Run {
    // SAFETY: `q` is a valid descriptor: contract of this function. A state that `of` finds was not
    // given back yet (INV-BYPASS-EXEC).
    unsafe {
        let Some(x) = exec::of(q) else { return Run::NotOurs };
        guarded_run(q, x, direction, count, once).map_or(Run::Done, Run::Refused)
    }
}

/// A statement that was started here, and was taken off its descriptor before anything of it
/// happened.
pub struct GivenUp(*mut Exec);

/// Takes a statement that [`run`] has refused off its descriptor, for the executor to start it.
///
/// # Safety
/// `run` has refused the statement of `q` just now, and nothing else has used `q` since.
pub unsafe fn give_up(q: *mut pg_sys::QueryDesc) -> GivenUp {
    // SAFETY: `run` has refused `q` (contract of this function), so its `estate` is the first field
    // of an `Exec` of ours.
    unsafe {
        let x = (*q).estate.cast::<Exec>();
        triggers::give_up(x);
        (*q).estate = std::ptr::null_mut();
        (*q).planstate = std::ptr::null_mut();
        (*q).tupDesc = std::ptr::null_mut();
        GivenUp(x)
    }
}

impl GivenUp {
    /// The flags with which it was started.
    pub fn eflags(&self) -> i32 {
        // SAFETY: the state is in use until `replaced_by` takes `self` (INV-BYPASS-EXEC).
        unsafe { (*self.0).estate.es_top_eflags }
    }

    /// The executor has started the statement.
    ///
    /// # Safety
    /// `estate` is the state that the executor has made for this statement.
    pub unsafe fn replaced_by(self, estate: *mut pg_sys::EState) {
        // SAFETY: `estate` is the executor's state of the statement (contract); ours was taken off
        // by `give_up`.
        unsafe { exec::replace(self.0, estate) }
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
    // SAFETY: `q` and `x` are those of `run`. The plan of `q` holds the program
    // (INV-BYPASS-PROGRAM), and `running` is null before it is set (INV-BYPASS-ONCE). The receiver
    // is that of `q` (contract of `ExecutorRun`).
    unsafe {
        let p = (*x).program;
        let moves = direction != pg_sys::ScanDirection::NoMovementScanDirection;
        let first = moves && !(*x).done;
        if first && (!(*p).running.is_null() || (*p).broken) {
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
        // A statement that its row may refuse starts its receiver when it has found the row.
        (*x).waits = sends && first && (*p).own_rows;
        if sends && !(*x).waits {
            start(p, dest);
        }
        let mut why = None;
        if first {
            (*p).running = x;
            // An ERROR ends this run with the subtransaction in which it is, and not the state that
            // an outer one has begun: its portal has failed.
            let began = exec::enter(x);
            why = step(p, x, dest, count);
            exec::leave(x, began);
            (*p).running = std::ptr::null_mut();
            if why.is_none() {
                compat::add_processed(&mut (*x).estate);
                (*x).done = true;
                counts::taken((*p).op);
            }
        }
        if sends && why.is_none() {
            start_late(p, x, dest);
        }
        if sends && !(*x).waits {
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
    // SAFETY: `guarded_run` has made `x` the only execution of `p` (INV-BYPASS-ONCE). `pin` keeps
    // the table's entry in place until `unpin` (INV-BYPASS-RELATION).
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
        expr::clear((*p).row);
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
    // SAFETY: `x` is the only execution of `p` (INV-BYPASS-ONCE), and `step` has pinned `rel`
    // (INV-BYPASS-RELATION).
    unsafe {
        if !(*p).range.is_null() {
            write::range(p, x, rel, dest, count);
            return None;
        }
        if deferred::is_wanted() && !(*p).added.is_null() && write::defer(p, x, rel, dest) {
            return None;
        }
        if !probe::find(p, x, rel, true) {
            return None;
        }
        let c = (*p).econtext;
        (*c).ecxt_scantuple = (*p).row;
        if !expr::passes((*p).rest, c) {
            return None;
        }
        if (*p).op == CmdType::CMD_DELETE {
            write::delete(p, x, rel, dest);
        } else if (*p).own_rows && write::wrote(p, rel) {
            return Some(Reason::Row); // the receiver has not been started
        } else {
            write::update(p, x, rel, dest);
        }
        None
    }
}

/// Starts the receiver.
unsafe fn start(p: *mut Program, dest: *mut pg_sys::DestReceiver) {
    // SAFETY: `p` runs, and `dest` is its receiver, which has not started: so the callers say.
    unsafe {
        if let Some(f) = (*dest).rStartup {
            f(dest, (*p).op as i32, (*p).out_desc);
        }
    }
}

/// Starts the receiver if it waits for that: from now on the statement is not refused.
///
/// # Safety
/// `p` runs with the state `x`, and `dest` is the statement's receiver.
#[inline]
pub unsafe fn start_late(p: *mut Program, x: *mut Exec, dest: *mut pg_sys::DestReceiver) {
    // SAFETY: the contract of this function.
    unsafe {
        if std::mem::take(&mut (*x).waits) {
            start(p, dest);
        }
    }
}

/// Gives what the statement returns of a row to the receiver. False: the receiver wants no more.
///
/// # Safety
/// `p` runs, its expression context has the row, and `dest` is the statement's receiver.
pub unsafe fn send(p: *mut Program, dest: *mut pg_sys::DestReceiver) -> bool {
    // SAFETY: `p`'s context has the row and `dest` is a valid receiver: contract of this function.
    unsafe {
        if (*p).out.is_null() {
            return true;
        }
        let slot = expr::project((*p).out);
        let more = (*dest).receiveSlot.is_none_or(|f| f(slot, dest));
        expr::clear(slot);
        more
    }
}
