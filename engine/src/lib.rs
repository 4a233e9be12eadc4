//! The concurrency-control engine of mixedcc: pure Rust, without PostgreSQL.
//!
//! Tables of records live in one shared region. Transactions go through four phases under the
//! protocols of the partitions that they touch. They commit at a CSN, and the order of CSNs is the
//! serialization order. `README.md` has the lock order and the proof. Each invariant (`INV-...`)
//! stands in the module documentation of the file that keeps it.
#![warn(missing_docs)]

pub mod checker;
pub mod choice;
pub mod clock;
#[doc(hidden)]
pub mod counts;
pub mod csn;
pub mod durable;
pub mod error;
#[doc(hidden)]
pub mod faults;
pub mod groups;
pub mod index;
pub mod key;
pub mod lock;
pub mod memory;
pub mod name;
pub mod open;
pub mod partition;
pub mod platform;
pub mod primitive;
pub mod protocol;
pub mod range;
pub mod recent;
pub mod record;
pub mod retire;
pub mod save;
pub mod shared;
#[cfg(all(test, not(loom)))]
mod sizes;
pub mod switch;
pub mod table;
pub mod threads;
pub mod txn;

pub use error::{AbortReason, Error};
pub use protocol::{Policy, Protocol, ProtocolSet};
pub use shared::Engine;
pub use table::Table;
pub use txn::{Level, RecordRef, Txn};
