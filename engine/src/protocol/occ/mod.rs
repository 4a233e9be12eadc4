//! `occ`: Silo. Reads remember the version, writes are locked at commit, reads are compared then.
//!
//! What it does and how it differs from the paper is in `README.md`.

use crate::protocol::{Phase, Policy, Rules};

pub(super) struct Occ;

impl Rules for Occ {
    const VALIDATES_READS: bool = true;
    const LOCKS_AT_COMMIT: bool = true;

    /// Locks are taken at the commit only, and always waited for.
    fn waits(_: Policy, _: bool) -> u8 {
        Phase::Validate as u8
    }
}
