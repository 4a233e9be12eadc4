//! `2pl`: strong strict two-phase locking with VLL's co-located lock words.
//!
//! What it does and how it differs from the paper is in `README.md`.

use crate::error::Error;
use crate::lock::Mode;
use crate::platform::Platform;
use crate::protocol::rules::{AtRead, AtWrite, ModeToRead};
use crate::protocol::{Phase, Policy, Reading, Rules};
use crate::txn::{How, RecordRef, Txn};

pub(super) struct TwoPhase;

impl Rules for TwoPhase {
    const LOCKS_READS: bool = true;
    const LOCKS_WRITES: bool = true;
    const LOCKS_RANGES: bool = true;

    fn waits(policy: Policy, _: bool) -> u8 {
        match policy {
            Policy::NoWait => 0,
            Policy::Wait | Policy::WaitDie => Phase::Execute as u8,
        }
    }

    const READ: AtRead = Some(lock_to_read);
    const MODE_TO_READ: ModeToRead = Some(mode_to_read);
    const WRITE: AtWrite = Some(|t, p, r, mode| lock(t, p, r, mode, false));
}

/// A row that will be written next is locked for that at once. So is a row that is usually written
/// after it was read. This avoids most deadlocks of upgrades. A row whose range is locked needs no
/// lock of its own. A scan that looks at keys keeps deletes and moves out, and lets updates in
/// place go on.
fn lock_to_read(t: &mut Txn, p: &dyn Platform, r: RecordRef, why: Reading) -> Result<(), Error> {
    match mode_to_read(t, r, why) {
        Some(mode) => lock(t, p, r, mode, why != Reading::ToWrite),
        None => Ok(()),
    }
}

fn mode_to_read(t: &mut Txn, r: RecordRef, why: Reading) -> Option<Mode> {
    match why {
        Reading::Row => Some(t.mode_to_read(r)),
        Reading::ScannedRow => Some(Mode::Share),
        Reading::Key => Some(Mode::KeyShare),
        Reading::RowInLockedRange => None,
        Reading::ToWrite => Some(Mode::NoKeyUpdate),
    }
}

/// `read`: the lock protects a read, so it outlives the savepoint in which it is taken.
fn lock(t: &mut Txn, p: &dyn Platform, r: RecordRef, mode: Mode, read: bool) -> Result<(), Error> {
    let policy = r.partition().policy();
    t.lock_record(p, r, mode, How::Policy(policy), read)
}
