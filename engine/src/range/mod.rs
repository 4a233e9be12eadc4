//! What protects scans from phantoms.
//!
//! Each partition is one logical range with a [`Ring`] of the transactions that insert into it
//! (ROCC, section 3, with one range a partition). Rows that a scan returned are protected by
//! themselves: locked or in the read set.

mod ring;

pub use ring::{Ring, Verdict, RING_SIZE};
