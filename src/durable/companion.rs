//! The companion of the checkpointer: a background worker that holds each checkpoint after its redo
//! pointer is fixed, writes the rows that have changed into image pages, and lets it go on.
//!
//! It runs no transaction. Whatever ends it, other than a clean end, makes PostgreSQL restart after
//! a crash (see [`hold`]), so that no checkpoint completes without its images.

mod clean;
mod closing;
mod hold;
mod pace;
mod round;

use crate::durable::companion::hold::Server;
use crate::pg::buffers;
use crate::pg::compat::Wait;
use crate::pg::{compat, wal, worker};
use crate::state::xact::anchors;
use crate::state::{shmem, standby, stop};
use mixedcc_engine::durable::flushed::Flushed;
use mixedcc_engine::durable::report::Activity;
use mixedcc_engine::durable::wal::RoundKind;
use mixedcc_engine::durable::window::Companion;
use mixedcc_engine::durable::Lsn;
use mixedcc_engine::Engine;
use pace::Pace;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::*;
use round::Spaces;
use std::convert::Infallible;
use std::ffi::CStr;
use std::panic::AssertUnwindSafe;

/// Name and type of the worker, as pg_stat_activity shows them.
const NAME: &CStr = c"mixedcc companion";
/// Between two looks whether a checkpoint has begun, ms.
const LOOK_MS: i64 = 50;
/// After an error in a round, ms.
const AGAIN_MS: i64 = 1000;

/// Registers the worker. Called while the postmaster preloads the library.
pub fn init() {
    worker::register(NAME, c"mixedcc_companion_main");
}

/// The companion of this process.
struct Worker {
    e: Engine,
    rounds: Companion,
    spaces: Spaces,
    flushed: Flushed,
    /// Why the next round is made, if no checkpoint has begun.
    kind: RoundKind,
    /// So many rounds that processes wanted soon are begun.
    served: u64,
    /// So many rounds of all tables were asked for before the last complete one began. `None`: a
    /// round has failed since, and the next one is of all tables.
    whole: Option<u64>,
}

/// An error ended a round, and was logged. The round is to be made again.
struct Failed;

impl Worker {
    /// One pass: a round, if a checkpoint has begun or a process has asked, and a release. False:
    /// another checkpoint has begun meanwhile.
    fn pass(&mut self) -> Result<bool, Failed> {
        #[cfg(feature = "faults")]
        crate::pg::faults::begin();
        let result = PgTryBuilder::new(AssertUnwindSafe(|| Ok(self.try_pass())))
            .catch_others(|error| match error {
                // A fault of this program: the server restarts.
                CaughtError::RustPanic { .. } => error.rethrow(),
                CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) => {
                    ereport!(
                        PgLogLevel::LOG,
                        report.sql_error_code(),
                        format!("mixedcc could not write images of its tables: {}", report.message()),
                        "The checkpoint under way waits. The companion will try again."
                    );
                    Err(Failed)
                }
            })
            .execute();
        if result.is_err() {
            self.e.shared.rounds.report.failed();
            self.clean_up();
        }
        self.tell(&result);
        result
    }

    /// What follows this pass, for views.
    fn tell(&self, result: &Result<bool, Failed>) {
        let (report, now) = (&self.e.shared.rounds.report, compat::now());
        match result {
            Ok(released) => {
                if *released {
                    report.release(now);
                }
                if self.e.shared.gate.is_open() {
                    report.begin(Activity::Idle, now);
                }
            }
            Err(Failed) => report.begin(Activity::Failed, now),
        }
    }

    fn try_pass(&mut self) -> bool {
        let (e, spaces, flushed) = (&self.e, &mut self.spaces, &mut self.flushed);
        let report = &e.shared.rounds.report;
        // A process that asks after this look ends the round's rests.
        let (urgent, served) = (e.shared.rounds.urgent(), self.served);
        let ticket = e.shared.rounds.open_ticket();
        // After the ticket: if that is of a round of all tables, this number counts it.
        let whole = e.shared.rounds.whole();
        let mut covered = self.whole.take();
        if ticket.is_some() || self.kind != RoundKind::Checkpoint {
            self.rounds.begin_anew();
        }
        let kind = if self.kind == RoundKind::Checkpoint && ticket.is_some() { RoundKind::Asked } else { self.kind };
        let image = |redo: Lsn| {
            if redo != report.last().redo && kind != RoundKind::Start {
                report.hold(compat::now());
            }
            let mut pace = Pace::begin(e, flushed, (kind, served));
            // All tables are in the images of that redo pointer already.
            let of_some = covered == Some(whole) && kind == RoundKind::Asked && redo == report.last().redo;
            report.made(&round::make(e, spaces, (redo, kind, of_some), &mut pace));
            covered = Some(whole);
            e.shared.rounds.complete(redo, ticket);
            Ok::<(), Infallible>(())
        };
        let windows = e.slots.iter().map(|slot| &slot.logging);
        let pause = |n| {
            report.begin(Activity::Waiting, compat::now());
            hold::nap(n);
        };
        let Ok(released) = self.rounds.pass(&Server, windows, pause, image);
        self.kind = RoundKind::Checkpoint;
        self.served = urgent;
        self.whole = covered;
        stop::reach("round-released");
        released
    }

    /// After an error: it holds no resources, and looks at the files anew.
    fn clean_up(&mut self) {
        compat::clean_up_after_error();
        self.e.unpin(shmem::my_slot());
        self.spaces.forget();
        self.rounds.begin_anew();
        buffers::close_all();
    }

    /// One pass of the loop, and a rest.
    fn step(&mut self) {
        let result = self.pass();
        self.flushed.advance(&self.e, wal::inserted, wal::flushed);
        standby::tell_in_time();
        anchors::renew();
        match result {
            Ok(true) => hold::rest(standby::rest_ms(LOOK_MS), Wait::CompanionMain),
            Ok(false) => hold::rest(0, Wait::CompanionMain),
            Err(Failed) => rest_after_failure(),
        }
        worker::reload();
    }
}

/// A process that waits for a round sets our latch again and again: what failed must not be tried
/// as often.
fn rest_after_failure() {
    let until = compat::now() + AGAIN_MS as u64 * 1000;
    while !worker::is_to_end() && compat::now() < until {
        hold::rest((until - compat::now().min(until)) as i64 / 1000 + 1, Wait::CompanionMain);
    }
}

/// The worker.
#[pg_guard]
#[no_mangle]
pub extern "C-unwind" fn mixedcc_companion_main(_arg: pg_sys::Datum) {
    worker::begin();
    // SAFETY: once, in a process without one. Buffers are pinned in its name.
    unsafe { pg_sys::CreateAuxProcessResourceOwner() };
    let e = shmem::engine();
    e.unpin(shmem::my_slot());
    #[cfg(feature = "faults")]
    crate::pg::faults::begin();
    hold::begin();
    e.shared.rounds.set_slot(Some(shmem::my_slot()));
    standby::begin_life();
    e.shared.rounds.report.begin(Activity::Starting, compat::now());
    let mut w = Worker {
        e,
        rounds: Companion::default(),
        spaces: Spaces::default(),
        flushed: Flushed::default(),
        kind: RoundKind::Start,
        served: 0,
        whole: None,
    };
    while w.pass().is_err() {
        w.kind = RoundKind::Start;
        rest_after_failure();
        if worker::is_to_end() {
            break;
        }
    }
    if !worker::is_to_end() {
        e.shared.gate.open();
        e.shared.rounds.report.begin(Activity::Idle, compat::now());
    }
    while !worker::is_to_end() {
        w.step();
    }
    closing::close(&mut w)
}
