//! Logical ranges (ROCC), which protect scans against phantoms.
//!
//! The key space of an index is divided into ranges that are disjoint and leave no gaps. Every
//! writer, of every protocol and level, registers the keys that it writes in the lists of their
//! ranges. A scan remembers its exact bounds and a position in the list of each range that it
//! reads. It does not remember the rows that it returns.
//!
//! * [`List`] has the rules of registration and validation, for entries with a key ([`KeyEntry`])
//!   and without one.
//! * [`RangeSet`] is one division into ranges. [`IndexRanges`] has the set in use, and the one
//!   before or after it.
//! * [`Ring`] is a list without keys. Each index has one for writes whose key is not known. Each
//!   partition has a similar one ([`Inserts`]), in which inserts register for scans without an
//!   index.

mod balance;
mod columns;
mod dormancy;
mod index;
mod inserted;
mod keyed;
mod parts;
mod ring;
mod set;
mod under_way;

pub use columns::{Columns, Effect, Looked};
pub use dormancy::{Dormancy, Look, DORMANT_AFTER_NS};
pub use index::{IndexRanges, Iter, TableRanges};
pub use inserted::{InsertEntry, Inserts};
pub use keyed::{EntryKey, KeyEntry, Subject, INLINE_KEY};
pub use parts::{Against, Part, PartCopy, Parts, PARTS};
pub use ring::{Entry, EntryHead, List, ListHead, Position, Registered, Ring, Verdict, RING_SIZE};
#[cfg(all(test, not(loom)))]
pub(crate) use set::TRIES;
pub use set::{compare, Range, RangeSet, Room, LIST_SIZES};
pub use under_way::UnderWay;
