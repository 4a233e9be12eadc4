//! `partcc`: H-Store's concurrency control. One exclusive lock a partition, held to the end.
//!
//! Differences from the paper: transactions run in their client's process instead of a thread a
//! partition; partitions that were not declared are locked at first touch, before the index is
//! read. A lock that conflicts and would be taken out of order is not waited for.

use super::{Phase, Rules, Touch};
use crate::error::Error;
use crate::lock::Mode;
use crate::platform::Platform;
use crate::txn::{RecordRef, Txn};

pub(super) struct PartCc;

impl Rules for PartCc {
    const WAITS: u8 = Phase::Execute as u8;
    const VALIDATES: bool = false;
    const LOCKS_AT_COMMIT: bool = false;

    fn preprocess(t: &mut Txn, p: &dyn Platform, at: Touch) -> Result<(), Error> {
        t.lock_partition(p, at)
    }
    fn before_scan(t: &mut Txn, p: &dyn Platform, at: Touch) -> Result<(), Error> {
        t.lock_partition(p, at)
    }
    fn read(t: &mut Txn, p: &dyn Platform, r: RecordRef, _for_write: bool) -> Result<(), Error> {
        t.lock_partition(p, r.touch())
    }
    fn write(t: &mut Txn, p: &dyn Platform, r: RecordRef, _mode: Mode) -> Result<(), Error> {
        t.lock_partition(p, r.touch())
    }
}
