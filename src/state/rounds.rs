//! Rounds of the checkpointer's companion, as other processes ask for them. The companion itself is
//! `durable/companion.rs`.

use crate::pg::compat;
use crate::state::{shmem, slots};
use mixedcc_engine::durable::Durable;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

/// Between two looks whether the round is complete, microseconds.
const NAP_US: i64 = 2000;
/// Looks without a companion, until the wait is given up.
const PATIENCE: u32 = 5000;
/// Looks without a companion, until the postmaster is to look.
const LOOKS: u32 = 250;

/// Wakes the companion up, if one runs.
pub fn wake() {
    if let Some(slot) = shmem::engine().shared.rounds.slot() {
        slots::wake(slot);
    }
}

/// Asks the companion for a round of all tables and waits for it: all that was logged before the
/// call is in images then. Interruptible. An ERROR if there is no companion. The round does not
/// rest.
pub fn round_now() {
    wait_for(shmem::engine().shared.rounds.ask(true, true));
}

/// Asks for a round of one table and waits for it: all of it that was dirty before the call is in
/// images then. Interruptible, with the same ERROR. `urgent`: the round does not rest.
pub fn round_of(table: &Durable, urgent: bool) {
    table.want_round();
    wait_for(shmem::engine().shared.rounds.ask(urgent, false));
}

/// A look of a process that waits for the companion. If none has run in so many looks, the
/// postmaster is to look whether one is to be started.
pub fn look_for_companion(absent: &mut u32, looks: u32) {
    *absent = if shmem::engine().shared.rounds.slot().is_some() { 0 } else { *absent + 1 };
    if *absent % looks == looks - 1 {
        compat::wake_postmaster();
    }
}

fn wait_for(ticket: u64) {
    let rounds = &shmem::engine().shared.rounds;
    let mut absent = 0;
    while !rounds.is_answered(ticket) {
        look_for_companion(&mut absent, LOOKS);
        // SAFETY: a variable of this process, which its one thread writes when it starts.
        let never = !unsafe { pg_sys::IsPostmasterEnvironment };
        if never || absent > PATIENCE {
            ErrorReport::new(
                PgSqlErrorCode::ERRCODE_CANNOT_CONNECT_NOW,
                "the mixedcc companion of the checkpointer does not run",
                "mixedcc",
            )
            .report(PgLogLevel::ERROR);
        }
        wake();
        compat::nap(NAP_US);
        pgrx::check_for_interrupts!();
    }
}
