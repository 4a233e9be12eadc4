//! Stop events: named points at which tests stop or fail a backend.

use crate::guc;
use mixedcc_engine::platform::StopEvent;
use mixedcc_engine::Error;
use pgrx::prelude::*;
use std::cell::Cell;

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

/// Names of all events.
pub fn names() -> impl Iterator<Item = &'static str> {
    EVENTS.iter().map(|e| e.0)
}

/// Arms an event in this session. False: there is no such event.
pub fn set(name: &str, action: Action) -> bool {
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
            // SAFETY: plain calls of the lock manager; no latch is held at a stop event.
            unsafe {
                let tag = pg_sys::LOCKTAG {
                    locktag_field1: pg_sys::MyDatabaseId.to_u32(),
                    locktag_field2: (key >> 32) as u32,
                    locktag_field3: key as u32,
                    locktag_field4: 1,
                    locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
                    locktag_lockmethodid: 2,
                };
                pg_sys::LockAcquire(&tag, pg_sys::ShareLock as i32, true, false);
                pg_sys::LockRelease(&tag, pg_sys::ShareLock as i32, true);
            }
            Ok(())
        }
    }
}
