//! The ends of transactions and subtransactions: PostgreSQL's two callbacks, and all that happens
//! in them, in its order.
//!
//! *Before a commit*, or PREPARE TRANSACTION, the rows of permanent storages that the transaction
//! has made are written, and the transaction is validated: an ERROR can still abort it. The meta
//! pages of these storages come after that (INV-BIRTH). Our callback comes before those of
//! extensions that commit elsewhere (INV-FRONT, `state/xact/order.rs`).
//!
//! *At a commit or abort* (1) the engine's transaction is published or undone, while the process
//! has all that it refers to; then pending changes of storages and maps are done or undone, and the
//! state of the transaction in `state/` is cleared. (2) The layers above forget what belonged to
//! it, from the top down to the scans that the statements above made. (3) Tables that were dropped
//! are freed, when nothing of this process refers to them. (4) An abort gives back what calls held
//! that did not return.
//!
//! *When a subtransaction aborts* calls that did not return come first, then the engine and the
//! locks, then the scans that ended with it. When it commits, all of them go to its parent.
//!
//! *When a resource owner releases what it holds* the statements end that have had no end of their
//! own, and their scans: those of the subtransaction, and those of a cursor that has failed in it.

use crate::access::{altered, deferred, hollow, protect, ranges, statements, together, visible};
use crate::admin::annotate;
use crate::durable::bulk::{self, Written};
use crate::hooks::utility;
use crate::paths::{bypass, native};
use crate::pg::{changes, isolation};
use crate::state::{worker, xact};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// Registers the callbacks.
pub fn init() {
    xact::init(Some(on_xact));
    // SAFETY: `_PG_init` runs alone, so the callbacks have no caller yet.
    unsafe {
        pg_sys::RegisterSubXactCallback(Some(on_subxact), std::ptr::null_mut());
        pg_sys::RegisterResourceReleaseCallback(Some(on_release), std::ptr::null_mut());
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_xact(event: pg_sys::XactEvent::Type, arg: *mut core::ffi::c_void) {
    use pg_sys::XactEvent::*;
    if !xact::comes_first(arg) {
        return;
    }
    if matches!(event, XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE) {
        isolation::end_transaction();
        utility::end_transaction();
    }
    match event {
        XACT_EVENT_PRE_COMMIT => {
            make_deferred();
            xact::begin_commit();
            if let Some(t) = xact::sampled() {
                together::note(t);
            }
            let made = write_made();
            xact::prepare();
            bulk::finish(&made);
        }
        XACT_EVENT_COMMIT => {
            end(xact::publish());
            bulk::end_transaction(true);
            xact::mixed::await_marks();
            changes::note_end();
        }
        XACT_EVENT_ABORT => {
            end(xact::undo());
            bulk::end_transaction(false);
            native::abort_transaction();
            annotate::abort_transaction();
            changes::after_error();
        }
        XACT_EVENT_PRE_PREPARE => {
            make_deferred();
            xact::begin_commit();
            let made = write_made();
            xact::prepared::before();
            bulk::finish(&made);
        }
        XACT_EVENT_PREPARE => {
            bulk::end_transaction(false);
            if xact::prepared() {
                forget();
            }
            changes::note_end();
        }
        XACT_EVENT_PARALLEL_PRE_COMMIT => xact::prepare(),
        XACT_EVENT_PARALLEL_COMMIT => end(xact::publish()),
        XACT_EVENT_PARALLEL_ABORT => end(xact::undo()),
        _ => xact::forget(),
    }
}

/// Makes the additions that have waited for the end of the transaction (INV-DEFERRED).
fn make_deferred() {
    // SAFETY: a transaction is about to commit. An ERROR aborts it, and jumps over no frame that
    // owns something.
    unsafe { deferred::make_all() };
}

/// Writes the files of the storages that the transaction has made, but for their meta pages.
fn write_made() -> Vec<Written> {
    let made = xact::made();
    let written = if made.is_empty() { Vec::new() } else { bulk::write(made) };
    hollow::poison_built();
    written
}

/// The engine's transaction has ended. `drops`: it may have dropped tables; `None`: this process
/// has used none of ours.
fn end(drops: Option<bool>) {
    if let Some(drops) = drops {
        forget();
        worker::see_to_dropped(drops);
    }
}

/// The layers above `state` forget what belonged to the transaction.
fn forget() {
    bypass::end_transaction();
    deferred::end_transaction();
    statements::end_transaction();
    visible::forget_conflict();
    protect::end_transaction();
    hollow::scan::end_transaction();
    hollow::forget_built();
    hollow::forget_made();
    altered::abort_subtransactions(0);
    ranges::conditions::end_transaction();
}

#[pg_guard]
unsafe extern "C-unwind" fn on_subxact(
    event: pg_sys::SubXactEvent::Type,
    _sub: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut core::ffi::c_void,
) {
    use pg_sys::SubXactEvent::*;
    let level = xact::depth();
    hollow::forget_made();
    match event {
        SUBXACT_EVENT_START_SUB => xact::start_sub(level),
        SUBXACT_EVENT_COMMIT_SUB => {
            annotate::commit_subtransaction(level);
            if xact::commit_sub(level) {
                bypass::commit_subtransaction(level);
                deferred::commit_subtransaction(level);
            }
        }
        SUBXACT_EVENT_ABORT_SUB => {
            isolation::end_show();
            native::abort_subtransaction(level);
            annotate::abort_subtransaction(level);
            if xact::abort_sub(level) {
                bypass::abort_subtransactions(level);
                deferred::abort_subtransactions(level);
                protect::abort_subtransactions(level);
                visible::forget_conflict();
                altered::abort_subtransactions(level);
            }
            changes::after_error();
        }
        _ => {}
    }
}

/// PostgreSQL calls it for each resource owner, in three phases: snapshots are there up to the last
/// one. It cannot fail.
unsafe extern "C-unwind" fn on_release(
    phase: pg_sys::ResourceReleasePhase::Type,
    _commit: bool,
    _top: bool,
    _arg: *mut core::ffi::c_void,
) {
    if phase == pg_sys::ResourceReleasePhase::RESOURCE_RELEASE_BEFORE_LOCKS {
        // SAFETY: a variable of this process: the owner that is released (resowner.c).
        let owner = unsafe { pg_sys::CurrentResourceOwner };
        statements::released(owner);
        protect::released(owner);
    }
}
