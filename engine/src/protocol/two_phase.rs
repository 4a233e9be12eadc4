//! `2pl`: strong strict two-phase locking with VLL's co-located lock words.
//!
//! Differences from the paper: a word names its holder (VLL counts), so that waiters know for whom
//! they wait and PostgreSQL's detector sees it; a record that is read in order to be written is
//! locked for writing at once, which avoids deadlocks of upgrades.

use super::{Phase, Rules, Touch};
use crate::error::Error;
use crate::lock::Mode;
use crate::platform::Platform;
use crate::txn::{How, RecordRef, Txn};

pub(super) struct TwoPhase;

impl Rules for TwoPhase {
    const WAITS: u8 = Phase::Execute as u8;
    const VALIDATES: bool = false;
    const LOCKS_AT_COMMIT: bool = false;

    fn preprocess(_: &mut Txn, _: &dyn Platform, _: Touch) -> Result<(), Error> {
        Ok(())
    }
    fn before_scan(_: &mut Txn, _: &dyn Platform, _: Touch) -> Result<(), Error> {
        Ok(())
    }
    fn read(t: &mut Txn, p: &dyn Platform, r: RecordRef, for_write: bool) -> Result<(), Error> {
        let mode = if for_write { Mode::NoKeyUpdate } else { Mode::Share };
        let policy = r.partition().policy();
        t.lock_record(p, r, mode, How::Policy(policy), !for_write)
    }
    fn write(t: &mut Txn, p: &dyn Platform, r: RecordRef, mode: Mode) -> Result<(), Error> {
        let policy = r.partition().policy();
        t.lock_record(p, r, mode, How::Policy(policy), false)
    }
}
