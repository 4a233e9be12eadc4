//! The end of the companion: the gate is shut, the last round is made.
//!
//! It waits neither for standbys nor for the commit log: an undecided commit has pending entries in
//! images, and its commit record needs nothing of ours.

use super::{hold, Failed, Worker};
use crate::pg::compat;
use crate::pg::compat::Wait;
use crate::state::stop;
use mixedcc_engine::durable::report::Activity;
use mixedcc_engine::durable::wal::RoundKind;
use std::time::{Duration, Instant};

/// The time for which commits are kept out while some are inside.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time for which they may pass after that.
const RELIEF: Duration = Duration::from_millis(100);
/// Between two tries of the last round, ms.
const AGAIN_MS: i64 = 1000;
/// Tries of the last round. After them the next start recovers from WAL.
const TRIES: u32 = 10;

/// Ends the companion.
pub fn close(w: &mut Worker) -> ! {
    while !shut(w) {
        let until = Instant::now() + RELIEF;
        while Instant::now() < until {
            w.step();
        }
    }
    stop::reach("closing-waited");
    hold::tell_wal_writer();
    for _ in 0..TRIES {
        w.kind = RoundKind::Closing;
        match w.pass() {
            Ok(true) => {
                stop::reach("closing-round");
                hold::leave();
            }
            Ok(false) => {}
            Err(Failed) => hold::rest(AGAIN_MS, Wait::ImageRound),
        }
    }
    hold::die()
}

/// Shuts the gate. False: it is open again, as a commit was inside for too long.
fn shut(w: &Worker) -> bool {
    stop::reach("closing-shut");
    w.e.shared.rounds.report.begin(Activity::Closing, compat::now());
    let until = Instant::now() + PATIENCE;
    let windows = w.e.slots.iter().map(|slot| &slot.logging);
    w.e.shared.gate.close_unless(windows, |n| {
        hold::nap(n);
        Instant::now() > until
    })
}
