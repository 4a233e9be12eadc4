//! Stop events: named points at which tests stop or fail a backend, or the coordinator.
//!
//! A session arms the events of its transactions for itself. Those of the coordinator, which has no
//! session, are armed in shared memory, for whichever coordinator comes there first. Those of
//! durable tables are named by the setting `mixedcc.kill_at`, which every process has.

use crate::pg::guc;
use crate::pg::local::Local;
use crate::state::errors;
use crate::state::worker;
use mixedcc_engine::platform::StopEvent;
use mixedcc_engine::primitive::{AtomicU64, Ordering};
use mixedcc_engine::switch::StepEvent;
use mixedcc_engine::Error;
use pgrx::prelude::*;
use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

/// What to do at an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Off,
    /// Raise an error.
    Error,
    /// Wait until the advisory lock of this key can be taken, then go on.
    Wait(i64),
    /// End the process as a crash would.
    Panic,
}

const EVENTS: [(&str, StopEvent); 9] = [
    ("commit_lock", StopEvent::CommitLock),
    ("commit_register", StopEvent::CommitRegister),
    ("commit_link", StopEvent::CommitLink),
    ("commit_prepare", StopEvent::CommitPrepare),
    ("commit_validate", StopEvent::CommitValidate),
    ("commit_decided", StopEvent::CommitDecided),
    ("lock_wait", StopEvent::LockWait),
    ("read", StopEvent::Read),
    ("write", StopEvent::Write),
];

thread_local! {
    static ACTIONS: Cell<[Action; 9]> = const { Cell::new([Action::Off; 9]) };
}

const STEPS: [(&str, StepEvent); 6] = [
    ("switch_begin", StepEvent::Begin),
    ("switch_epoch", StepEvent::Epoch),
    ("switch_stored", StepEvent::Stored),
    ("switch_announced", StepEvent::Announced),
    ("switch_finish", StepEvent::Finish),
    ("switch_finished", StepEvent::Finished),
];

/// What the coordinator does at an event. All-zero: nothing.
#[repr(C)]
struct Armed {
    /// `[database:32][action:32]`: one of `OFF` to `WAIT`.
    action: AtomicU64,
    /// Of `WAIT`: the key of the advisory lock. Stored before the action.
    key: AtomicU64,
}
const OFF: u64 = 0;
const ERROR: u64 = 1;
const PANIC: u64 = 2;
const WAIT: u64 = 3;

/// Of the process: written by the start-up hook of shared memory.
static ARMED: Local<*const [Armed; STEPS.len()]> = Local::new(std::ptr::null());

/// Bytes of shared memory.
pub fn size() -> usize {
    std::mem::size_of::<[Armed; STEPS.len()]>()
}

/// Finds the coordinator's events, or makes them. Called with AddinShmemInitLock.
///
/// # Safety
/// Called by the start-up hook of shared memory.
pub unsafe fn startup() {
    let mut found = false;
    // SAFETY: the start-up hook of shared memory calls this, with AddinShmemInitLock (contract of
    // this function). The new block has `size()` bytes.
    unsafe {
        let p = pg_sys::ShmemInitStruct(c"mixedcc stop events".as_ptr(), size(), &mut found);
        if !found {
            p.cast::<u8>().write_bytes(0, size());
        }
        ARMED.set(p.cast());
    }
}

fn armed(e: StepEvent) -> &'static Armed {
    // SAFETY: the start-up hook wrote `ARMED` before a process comes here. The array has an element
    // for each event, and lives as long as shared memory.
    unsafe { &(*ARMED.get())[e as usize] }
}

/// Names of all events.
pub fn names() -> impl Iterator<Item = &'static str> {
    EVENTS.iter().map(|e| e.0).chain(STEPS.iter().map(|e| e.0))
}

/// Arms an event of the coordinator.
fn set_step(e: StepEvent, action: Action) {
    let (action, key) = match action {
        Action::Off => (OFF, 0),
        Action::Error => (ERROR, 0),
        Action::Panic => (PANIC, 0),
        Action::Wait(key) => (WAIT, key),
    };
    // SAFETY: a variable of this process, which its one thread writes when it connects to a
    // database.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    armed(e).key.store(key as u64, Ordering::SeqCst);
    armed(e).action.store(action | (database as u64) << 32, Ordering::SeqCst);
}

/// Arms an event: in this session, or of the coordinator. False: there is no such event.
pub fn set(name: &str, action: Action) -> bool {
    if let Some((_, e)) = STEPS.iter().find(|e| e.0 == name) {
        set_step(*e, action);
        return true;
    }
    let Some((_, e)) = EVENTS.iter().find(|e| e.0 == name) else { return false };
    ACTIONS.with(|a| {
        let mut all = a.get();
        all[*e as usize] = action;
        a.set(all);
    });
    true
}

/// May an event be armed? Read without the binding's check of the thread.
#[inline]
pub fn is_on() -> bool {
    // SAFETY: a setting that PostgreSQL has stored; backends have one thread.
    unsafe { *guc::STOP_EVENTS.as_ptr() }
}

/// A backend is at an event.
#[inline]
pub fn at(e: StopEvent) -> Result<(), Error> {
    if is_on() {
        act(e)
    } else {
        Ok(())
    }
}

#[cold]
fn act(e: StopEvent) -> Result<(), Error> {
    match ACTIONS.with(|a| a.get())[e as usize] {
        Action::Off => Ok(()),
        Action::Error => Err(Error::Injected),
        Action::Panic => panic!("stop event panics"),
        Action::Wait(key) => {
            // SAFETY: a variable of this process, which its one thread writes when it connects to a
            // database.
            pass(unsafe { pg_sys::MyDatabaseId }.to_u32(), key, false);
            Ok(())
        }
    }
}

/// Takes an advisory lock and gives it back. `now`: not if that would have to wait; false then.
fn pass(database: u32, key: i64, now: bool) -> bool {
    let tag = pg_sys::LOCKTAG {
        locktag_field1: database,
        locktag_field2: (key >> 32) as u32,
        locktag_field3: key as u32,
        locktag_field4: 1,
        locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
        locktag_lockmethodid: 2,
    };
    // SAFETY: a transaction is running, as the lock manager wants. The engine holds no latch at a
    // stop event, so the wait may be long and may raise.
    unsafe {
        if pg_sys::LockAcquire(&tag, pg_sys::ShareLock as i32, true, now)
            == pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
        {
            return false;
        }
        pg_sys::LockRelease(&tag, pg_sys::ShareLock as i32, true);
    }
    true
}

/// The coordinator is at an event.
pub fn at_step(e: StepEvent) {
    let a = armed(e).action.load(Ordering::SeqCst);
    if a as u32 as u64 != OFF {
        act_at_step(armed(e), a);
    }
}

#[cold]
fn act_at_step(armed: &Armed, a: u64) {
    // Once: the next coordinator shall live.
    let off = || armed.action.store(OFF, Ordering::SeqCst);
    match a as u32 as u64 {
        ERROR => {
            off();
            errors::raise(Error::Injected)
        }
        PANIC => {
            off();
            panic!("stop event panics")
        }
        _ => {
            let key = armed.key.load(Ordering::SeqCst) as i64;
            while !pass((a >> 32) as u32, key, true) {
                worker::wait_at_event();
            }
        }
    }
}

/// How long the commits of this session are held; 0: not for a test.
pub fn hold_ms() -> u64 {
    if is_on() {
        guc::HOLD_COMMITS.get() as u64
    } else {
        0
    }
}

/// A commit that is held has settled: it waits as for a standby.
pub fn hold() {
    if hold_ms() > 0 {
        std::thread::sleep(Duration::from_millis(hold_ms()));
    }
}

/// Passes of the events that `mixedcc.kill_at` names, in the order of its list. Of the process;
/// only tests use it.
static PASSES: Local<[u32; 4]> = Local::new([0; 4]);

/// The process is at a point of durable tables: `mixedcc.kill_at` may end it here, let it sleep, or
/// let it stand until a test lets it go.
/// Takes no lock and allocates no memory of PostgreSQL's: it may be in a critical section, or in
/// recovery.
#[inline]
pub fn reach(event: &str) {
    if is_on() {
        reach_if_named(event);
    }
}

#[cold]
fn reach_if_named(event: &str) {
    let Some(wanted) = guc::KILL_AT.get() else { return };
    let wanted = wanted.to_string_lossy();
    let mut passes = PASSES.get();
    for (wanted, i) in wanted.split(',').zip(0..passes.len()) {
        let mut words = wanted.split(':');
        if words.next() != Some(event) {
            continue;
        }
        passes[i] = passes[i].wrapping_add(1);
        PASSES.set(passes);
        let pass = words.next().and_then(|word| word.parse::<u32>().ok()).unwrap_or(1);
        if pass != 0 && pass != passes[i] {
            return;
        }
        match words.next() {
            // SAFETY: the process ends here.
            None => unsafe {
                raw::kill(std::process::id() as i32, SIGKILL);
            },
            Some(word) => match word.parse() {
                Ok(ms) => std::thread::sleep(Duration::from_millis(ms)),
                Err(_) => stand(word),
            },
        }
        return;
    }
}

/// Makes the file `path`.stands, and sleeps until there is a file `path`.goes. A test that has
/// ended early makes none.
fn stand(path: &str) {
    let until = Instant::now() + LONGEST;
    let made = std::fs::File::create(format!("{path}.stands")).is_ok();
    while made && !Path::new(&format!("{path}.goes")).exists() && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}

/// Between two looks whether it may go, and at most in all.
const LOOK: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_secs(120);

const SIGKILL: i32 = 9;

mod raw {
    extern "C" {
        pub fn kill(pid: i32, signal: i32) -> i32;
    }
}
