//! The hybrid by hand with which choices are compared. Hot rows are locked, the others validated.
//!
//! It is a fixed comparison, so this file names protocols. With others it would not be the same
//! measurement.

use mixedcc_engine::Protocol;

/// Of partitions with hot rows.
pub const HOT: Protocol = Protocol::TwoPhase;
/// Of the others.
pub const COLD: Protocol = Protocol::Occ;
