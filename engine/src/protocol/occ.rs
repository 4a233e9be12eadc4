//! `occ`: Silo. Reads remember the version, writes are locked at commit, reads are compared then.
//!
//! Differences from the paper: the CSN comes from one clock instead of epochs (snapshots of
//! PostgreSQL need it); a write lock that is held by a transaction that runs on (a READ COMMITTED
//! writer, FOR UPDATE) is waited for, before *preparing*; phantoms are found by ranges instead of
//! index nodes' versions.

use super::{Phase, Rules, Touch};
use crate::error::Error;
use crate::lock::Mode;
use crate::platform::Platform;
use crate::txn::{RecordRef, Txn};

pub(super) struct Occ;

impl Rules for Occ {
    const WAITS: u8 = Phase::Validate as u8;
    const VALIDATES: bool = true;
    const LOCKS_AT_COMMIT: bool = true;

    fn preprocess(_: &mut Txn, _: &dyn Platform, _: Touch) -> Result<(), Error> {
        Ok(())
    }
    fn before_scan(_: &mut Txn, _: &dyn Platform, _: Touch) -> Result<(), Error> {
        Ok(())
    }
    fn read(_: &mut Txn, _: &dyn Platform, _: RecordRef, _: bool) -> Result<(), Error> {
        Ok(())
    }
    fn write(_: &mut Txn, _: &dyn Platform, _: RecordRef, _: Mode) -> Result<(), Error> {
        Ok(())
    }
}
