//! The concurrency-control engine of mixedcc: pure Rust, no PostgreSQL.
//!
//! Tables of records live in one shared region; transactions go through four phases under the
//! protocols of the partitions that they touch, and commit at a CSN whose order is the
//! serialization order. The invariants (`INV-...`), the lock order and the proof are in `README.md`.
#![warn(missing_docs)]

pub mod checker;
pub mod choice;
pub mod clock;
#[doc(hidden)]
pub mod counts;
pub mod csn;
pub mod error;
#[doc(hidden)]
pub mod faults;
pub mod index;
pub mod key;
pub mod lock;
pub mod memory;
pub mod name;
pub mod partition;
pub mod platform;
pub mod primitive;
pub mod protocol;
pub mod range;
pub mod record;
pub mod retire;
pub mod save;
pub mod shared;
pub mod switch;
pub mod table;
pub mod threads;
pub mod txn;

pub use error::{AbortReason, Error};
pub use protocol::{Policy, Protocol, ProtocolSet};
pub use shared::Engine;
pub use table::Table;
pub use txn::{Level, RecordRef, Txn};
