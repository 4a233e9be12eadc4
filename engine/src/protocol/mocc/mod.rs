//! `mocc`: as `occ`, but look-ups of hot rows lock them before they read.
//!
//! What it does and how it differs from the paper is in `README.md`.
//!
//! **INV-HEAT**: No rule relies on a lock that was taken because a row is hot. A read under such a
//! lock is remembered and compared like any other, and a write compares its base. A lock that was
//! not got, or a row that was not known as hot, costs a failure and nothing else.

use super::occ::lock_and_compare;
use crate::protocol::rules::{AtLock, AtRead};
use crate::protocol::{Phase, Policy, Rules};
use crate::txn::How;

pub(super) struct Mocc;

impl Rules for Mocc {
    const LOCKS_HOT: bool = true;
    const VALIDATES_READS: bool = true;

    /// Look-ups wait for locks of hot rows, and commits may wait for these in turn. Under the other
    /// policies neither does.
    fn waits(policy: Policy, _: bool) -> u8 {
        match policy {
            Policy::Wait => Phase::Execute as u8 | Phase::Validate as u8,
            Policy::NoWait | Policy::WaitDie => 0,
        }
    }

    const READ: AtRead = Some(|t, p, r, why| t.lock_hot(p, r, why));
    const LOCK_AT_COMMIT: AtLock = Some(|t, p, w| {
        let how = match w.r.partition().policy() {
            Policy::Wait => How::Wait,
            Policy::NoWait | Policy::WaitDie => How::Policy(Policy::NoWait),
        };
        lock_and_compare(t, p, w, how)
    });
}
