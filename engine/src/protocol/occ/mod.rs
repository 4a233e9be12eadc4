//! `occ`: Silo. Reads remember the version, writes are locked at commit, reads are compared then.
//!
//! What it does and how it differs from the paper is in `README.md`.

use crate::error::Error;
use crate::lock::Mode;
use crate::platform::Platform;
use crate::protocol::rules::AtLock;
use crate::protocol::{Phase, Policy, Rules};
use crate::txn::{How, Txn, Write, WriteKind};

pub(super) struct Occ;

impl Rules for Occ {
    const VALIDATES_READS: bool = true;

    /// Locks are taken at the commit only, and always waited for.
    fn waits(_: Policy, _: bool) -> u8 {
        Phase::Validate as u8
    }

    const LOCK_AT_COMMIT: AtLock = Some(|t, p, w| lock_and_compare(t, p, w, How::Wait));
}

/// Locks a row that was written. It must have the version still that the write replaces: no other
/// transaction has replaced it since, and none can from now on.
#[inline]
pub(super) fn lock_and_compare(t: &mut Txn, p: &dyn Platform, w: Write, how: How) -> Result<(), Error> {
    let mode = if w.kind == WriteKind::Delete { Mode::Update } else { Mode::NoKeyUpdate };
    t.lock_record(p, w.r, mode, how, false)?;
    if w.base.is_some_and(|base| w.r.rec.head() == base.as_ptr()) {
        return Ok(()); // it is committed, and nothing is newer
    }
    let newest = t.newest(p, w.r.rec)?;
    if newest.map(|(v, _)| v) != w.base {
        return Err(t.write_conflict(w.r, newest));
    }
    Ok(())
}
