//! `partcc`: H-Store's concurrency control. One exclusive lock a partition, held to the end.
//!
//! What it does and how it differs from the paper is in `README.md`.

use crate::protocol::rules::{AtPartition, AtRead, AtWrite};
use crate::protocol::{Phase, Policy, Rules};
use crate::txn::Txn;

pub(super) struct PartCc;

impl Rules for PartCc {
    const LOCKS_PARTITIONS: bool = true;

    /// Declared partitions are all locked in order before the first statement; others at their
    /// first touch.
    fn waits(_: Policy, declared: bool) -> u8 {
        if declared {
            Phase::Preprocess as u8
        } else {
            Phase::Execute as u8
        }
    }

    const PREPROCESS: AtPartition = Some(Txn::lock_partition);
    const BEFORE_SCAN: AtPartition = Some(Txn::lock_partition);
    const READ: AtRead = Some(|t, p, r, _| t.lock_partition(p, r.touch()));
    const WRITE: AtWrite = Some(|t, p, r, _| t.lock_partition(p, r.touch()));
}
