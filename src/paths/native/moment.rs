//! The moment of a call.

use crate::access::deferred;
use crate::pg;
use crate::pg::errors::complain;
use crate::state::{platform, xact};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// Begins a command. The snapshot of a call is the active one at the newest command id. So it sees
/// the transaction's writes before the call, as a statement of a volatile function does. `room`:
/// for a copy, if one is needed. It is of the same moment, and the active snapshot, which stays,
/// keeps what it needs.
///
/// # Safety
/// Within a transaction; an ERROR jumps over this frame. The room lives as long as the snapshot is
/// used.
#[inline]
pub unsafe fn begin(room: *mut pg_sys::SnapshotData) -> pg_sys::Snapshot {
    platform::outside();
    // SAFETY: within a transaction, with room for a snapshot: contract of this function. The active
    // snapshot was found to be set, and stays while the call runs.
    unsafe {
        if !pg::raw::ActiveSnapshotSet() {
            complain(PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "there is no snapshot", "");
        }
        deferred::make_all();
        pg::raw::CommandCounterIncrement();
        let active = pg::raw::GetActiveSnapshot();
        let cid = pg::raw::GetCurrentCommandId(false);
        if (*active).curcid == cid {
            return active;
        }
        if xact::mode() != xact::Mode::Serializable {
            xact::snapshot_seen(active); // both have the read CSN
        }
        room.copy_from_nonoverlapping(active, 1);
        (*room).curcid = cid;
        room
    }
}

/// Begins a command if nothing has to be done for it, or looked at; the active snapshot, whose
/// command id is of an earlier one. `None`: `begin` tells.
///
/// # Safety
/// Within a transaction; an ERROR jumps over this frame.
#[inline]
pub unsafe fn begin_quickly() -> Option<pg_sys::Snapshot> {
    // SAFETY: within a transaction: contract of this function. The active snapshot was found to be
    // set. An ERROR jumps over this frame, which owns nothing.
    unsafe {
        if deferred::any() || pg_sys::InterruptPending != 0 || !platform::is_outside() || !pg::raw::ActiveSnapshotSet()
        {
            return None;
        }
        pg::raw::CommandCounterIncrement();
        Some(pg::raw::GetActiveSnapshot())
    }
}

/// Room for a snapshot.
pub type Room = std::mem::MaybeUninit<pg_sys::SnapshotData>;
