//! `mixedcc.old_snapshot_timeout`: snapshots that keep old versions for too long.

use super::now;
use crate::pg::compat::{self, Doing};
use crate::pg::guc;
use crate::state::platform::PG;
use crate::state::slots;
use mixedcc_engine::csn::{Csn, SlotId, State};
use mixedcc_engine::Engine;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{SIGINT, SIGTERM};
use pgrx::prelude::*;

/// A session that was told to end has so many microseconds before it is told again.
const PATIENCE: u64 = 1_000_000;

/// The pins of all slots, as the coordinator has seen them.
#[derive(Default)]
pub struct Ages {
    /// Of each slot: the CSN of its pin, and since when it was there.
    seen: Vec<(Csn, u64)>,
    told_at: u64,
}

impl Ages {
    /// Milliseconds until the next look; `None`: the setting is off.
    pub fn due_in_ms(&self) -> Option<i64> {
        let timeout = i64::from(guc::OLD_SNAPSHOT_TIMEOUT.get());
        (timeout > 0).then(|| (timeout / 4).clamp(10, 1000))
    }

    /// Once a pass: ends the oldest client that is too old, if one has written since.
    pub fn watch(&mut self, e: &Engine) {
        let timeout = guc::OLD_SNAPSHOT_TIMEOUT.get() as u64 * 1000;
        if timeout == 0 {
            self.seen.clear();
            return;
        }
        // Ends the pins of processes that have no snapshot any more.
        e.refresh_min_pin(&PG);
        let at = now();
        // Without writes the next transaction of a slot pins at the same CSN. A pin before the
        // clock, which was read before the pin, is none of that kind.
        let clock = e.now();
        let mut pins = vec![(0, at); e.slots.len()];
        e.pins().for_each(|(slot, csn)| pins[slot as usize].0 = csn);
        for (new, old) in pins.iter_mut().zip(&self.seen) {
            if new.0 == old.0 && new.0 < clock {
                new.1 = old.1.min(at); // the clock may be set back
            }
        }
        self.seen = pins;
        self.told_at = self.told_at.min(at);
        if at - self.told_at < PATIENCE {
            return;
        }
        let too_old = |&(_, &(csn, since)): &(usize, &(Csn, u64))| csn != 0 && at.saturating_sub(since) >= timeout;
        let mut found: Vec<_> = self.seen.iter().enumerate().filter(too_old).map(|(slot, pin)| (pin.0, slot)).collect();
        found.sort_unstable();
        if found.into_iter().any(|(csn, slot)| end(e, slot as SlotId, csn)) {
            self.told_at = at;
        }
    }
}

/// Tells the process of a slot to give up its snapshot, if it serves a client and does not commit.
fn end(e: &Engine, slot: SlotId, csn: Csn) -> bool {
    if !matches!(e.word(slot).state(), State::Idle | State::Active) {
        return false;
    }
    let Some(pid) = slots::pid_of(slot) else { return false };
    let (signal, did) = match compat::client_doing(pid) {
        Some(Doing::Statement) => (SIGINT, "canceled the statement"),
        Some(Doing::IdleInTransaction) => (SIGTERM, "terminated the session"),
        _ => return false,
    };
    // As pg_cancel_backend: the process may have begun something else in this instant.
    let told = e.pins().any(|pin| pin == (slot, csn)) && compat::send(pid, signal);
    if told {
        ErrorReport::new(
            PgSqlErrorCode::ERRCODE_SNAPSHOT_TOO_OLD,
            format!("mixedcc {did} of process {pid}, whose snapshot is too old"),
            "mixedcc",
        )
        .set_detail("It kept old versions of mixedcc rows in memory for longer than mixedcc.old_snapshot_timeout.")
        .report(PgLogLevel::LOG);
    }
    told
}
