//! The coordinator: a background worker that makes the steps of the switches of partitions from
//! protocol to protocol, for all databases.
//!
//! It works on shared memory alone, and so has no database; but it initializes a connection to
//! none, as the logical replication launcher does, so that it shows in pg_stat_activity and takes
//! part in signal barriers. All of its state is in shared memory: one that ends by SIGTERM or an
//! ERROR is started again by the postmaster, and goes on with every switch where it stands. If it
//! is killed outright, PostgreSQL ends all processes and shared memory starts afresh.
//!
//! It also chooses protocols (see [`choose`]), and frees dropped tables in slices, so that no
//! session's commit has to free a large one. It warns when the region becomes full (see
//! [`memory`]), and keeps the history of the load (see [`super::history`]).

use super::history::Recorder;
use crate::pg::compat::Wait;
use crate::pg::{compat, guc, worker};
use crate::state::worker::{doze, free_slice, nudge};
use crate::state::{rel, shmem, slots, stop, xact};
use choose::Choice;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::switch::Passes;
use mixedcc_engine::{Engine, Table};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::CStr;

mod choose;
mod columns;
mod memory;
mod old;
pub use choose::settings;

/// Name and type of the worker, as pg_stat_activity shows them.
const NAME: &CStr = c"mixedcc coordinator";
/// With nothing to do, the coordinator shows at this interval that it lives, ms.
const HEARTBEAT_MS: i64 = 1000;
/// Looks at the slots while a step waits: often at first, then rarely. (passes without a step, ms)
const POLLS: [(u32, i64); 3] = [(50, 1), (200, 5), (u32::MAX, 50)];

/// Registers the worker. Called while the postmaster preloads the library.
pub fn init() {
    worker::register(NAME, c"mixedcc_coordinator_main");
}

/// Now, in microseconds as PostgreSQL counts them.
pub fn now() -> u64 {
    compat::now()
}

/// Tells the coordinator that a switch was asked for.
pub fn wake() {
    let e = shmem::engine();
    // SAFETY: a variable of this process, which its one thread writes when it starts.
    if !unsafe { pg_sys::IsPostmasterEnvironment } {
        // A single-user server has no workers.
        let progress = |made: Passes| made.steps + made.done > 0;
        while progress(pass(&e)) {}
        return;
    }
    nudge();
}

/// All tables of all databases, for as long as `f` runs.
fn with_tables<R>(f: impl FnOnce(&[&'static Table]) -> R) -> R {
    // INV-MAP: the pin keeps maps, too. A single-user server is pinned by its transaction, or
    // alone.
    shmem::pinned(|| f(&shmem::all(None)))
}

/// One pass over all tables.
fn pass(e: &Engine) -> Passes {
    let stop_all = guc::SWITCH_METHOD.get() == guc::SwitchMethod::StopAll;
    with_tables(|tables| e.advance_switches_by(tables, now(), stop_all, &stop::at_step))
}

/// Logs the switches from this number on. The answer is the number to begin with next time.
fn log_switches(e: &Engine, from: u64) -> u64 {
    if e.shared.switches.len() == from {
        return from;
    }
    let (new, next) = e.shared.switches.since(from);
    let Some(level) = guc::LOG_SWITCHES.get().level() else { return next };
    for s in new {
        let (d, name) = (s.done, rel::called_by(s.name, s.key));
        let ms = |a: u64, b: u64| b.saturating_sub(a) as f64 / 1000.0;
        ereport!(
            level,
            PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION,
            format!(
                "mixedcc switched partition {} of {name} from {} to {} ({})",
                s.partition,
                d.from.name(),
                d.to.name(),
                d.why.name()
            ),
            format!(
                "It took {:.3} ms, {:.3} ms of it to upgrade.",
                ms(d.times[1], d.times[3]),
                ms(d.times[1], d.times[2])
            )
        );
    }
    next
}

/// What pg_stat_activity shows.
fn report(under_way: u64) {
    let (state, text) = match under_way {
        0 => (pg_sys::BackendState::STATE_IDLE, String::new()),
        1 => (pg_sys::BackendState::STATE_RUNNING, "switching 1 partition".into()),
        n => (pg_sys::BackendState::STATE_RUNNING, format!("switching {n} partitions")),
    };
    let text = std::ffi::CString::new(text).unwrap_or_default();
    // SAFETY: `text` is a C string, which pgstat_report_activity copies.
    unsafe { pg_sys::pgstat_report_activity(state, text.as_ptr()) };
}

#[pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: i32, _arg: pg_sys::Datum) {
    let e = shmem::engine();
    // The postmaster saves no table with a write of a transaction that is not ended.
    xact::prepared::finish_decided();
    let c = &e.shared.coordinator;
    c.slot.store(0, Ordering::SeqCst);
    c.ident.store(0, Ordering::SeqCst);
    e.unpin(shmem::my_slot());
    // A switch by the stop-all method waits for the next coordinator; no other process does.
    e.shared.epochs.go_on();
}

fn start(e: &Engine) {
    let c = &e.shared.coordinator;
    c.started_at.store(now(), Ordering::SeqCst);
    if c.starts.fetch_add(1, Ordering::SeqCst) == 0 {
        crate::durable::loader::launch();
    }
    // SAFETY: a variable of this process is read; the callback is a function of this library, which
    // is never unloaded.
    unsafe {
        pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::from(0));
        c.ident.store(pg_sys::MyProcPid as u32, Ordering::SeqCst);
    }
    e.unpin(shmem::my_slot());
    c.slot.store(shmem::my_slot() as u32 + 1, Ordering::SeqCst);
}

/// Sleeps as `doze`; handles what signals ask for. True: settings may have changed.
fn sleep(ms: i64) -> bool {
    doze(ms, Wait::CoordinatorMain.event());
    worker::reload()
}

/// The worker.
#[pg_guard]
#[no_mangle]
pub extern "C-unwind" fn mixedcc_coordinator_main(_arg: pg_sys::Datum) {
    worker::begin();
    // The server has opened for business.
    crate::state::save::forget_loaded();
    let e = shmem::engine();
    start(&e);
    report(0);
    let (mut open, mut idle_passes) = (0, 0u32);
    let mut choice = Choice::start(&e, now());
    let mut ages = old::Ages::default();
    let mut periods = columns::Periods::start(now());
    let mut logged = e.shared.switches.len();
    let mut history = with_tables(|tables| Recorder::start(&e, tables, now()));
    loop {
        xact::prepared::finish_decided();
        let made = pass(&e);
        let mut progress = made.steps + made.done > 0;
        progress |= free_slice(&e);
        logged = log_switches(&e, logged);
        memory::watch(&e);
        ages.watch(&e);
        periods.watch(now(), |end| with_tables(|tables| end(tables)));
        if made.under_way != open || progress {
            open = made.under_way;
            report(open);
        }
        if choice.is_due(now()) {
            progress |= with_tables(|tables| choice.interval(&e, tables, now())) > 0;
        }
        if history.is_due(now()) {
            let interval = with_tables(|tables| history.interval(&e, tables, now()));
            history.write(&interval);
        }
        idle_passes = if progress { 0 } else { idle_passes.saturating_add(1) };
        let poll = match open {
            0 => HEARTBEAT_MS,
            _ => POLLS.iter().find(|p| idle_passes < p.0).map_or(HEARTBEAT_MS, |p| p.1),
        };
        let poll = poll.min(choice.due_in_ms(now())).min(ages.due_in_ms().unwrap_or(poll));
        let poll = poll.min(periods.due_in_ms(now()));
        if sleep(if progress { 0 } else { poll }) {
            choice.reload();
        }
    }
}

/// The slots that hold a step up: process ids.
pub fn holders(epoch: u64) -> Vec<i32> {
    let e = shmem::engine();
    let older = |s: &mixedcc_engine::shared::Slot| {
        let f = s.following.load(Ordering::SeqCst);
        f != 0 && f < epoch
    };
    let all = e.slots.iter().enumerate().filter(|(_, s)| older(s)).map(|(i, _)| i as u16);
    all.filter_map(slots::pid_of).collect()
}

/// Does the transaction of this backend hold a step up?
pub fn i_hold(epoch: u64) -> bool {
    let f = shmem::engine().slots[shmem::my_slot() as usize].following.load(Ordering::SeqCst);
    f != 0 && f < epoch
}

/// Waits an instant, for interrupts too.
pub fn pause() {
    // SAFETY: pg_usleep sleeps, and raises nothing.
    unsafe { pg_sys::pg_usleep(1000) };
    pgrx::check_for_interrupts!();
}
