//! `toy`: locks a row before it writes it, and compares what it has read at the commit.
//!
//! A protocol for a test: `docs/adding-a-protocol.md` walks through it.

use crate::protocol::rules::AtWrite;
use crate::protocol::{Phase, Policy, Rules};
use crate::txn::How;

pub(super) struct Toy;

impl Rules for Toy {
    const LOCKS_WRITES: bool = true;
    const VALIDATES_READS: bool = true;

    fn waits(policy: Policy, _: bool) -> u8 {
        match policy {
            Policy::NoWait => 0,
            Policy::Wait | Policy::WaitDie => Phase::Execute as u8,
        }
    }

    const WRITE: AtWrite = Some(|t, p, r, mode| {
        let policy = r.partition().policy();
        t.lock_record(p, r, mode, How::Policy(policy), false)
    });
}
