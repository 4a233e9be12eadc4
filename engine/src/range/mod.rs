//! Logical ranges (ROCC): what protects scans.
//!
//! The key space of an index is divided into ranges, disjoint and without gaps. Every writer, of every protocol and
//! level, registers the keys that it writes in the lists of their ranges; a scan remembers a position in the
//! list of each range that it reads, and the exact bounds. Nothing that it returns is kept.
//!
//! * [`List`] has the rules of registration and validation, for entries with ([`KeyEntry`]) and without a key.
//! * [`RangeSet`] is one division into ranges; [`IndexRanges`] has the one in use, and the one before or after it.
//! * [`Ring`] is a list without keys: each partition has one, in which inserts register, for scans that no index
//!   bounds; each index one for writes whose key nobody told us.

mod balance;
mod index;
mod inserted;
mod keyed;
mod parts;
mod rest;
mod ring;
mod set;
mod under_way;

pub use index::{IndexRanges, Iter, TableRanges};
pub use inserted::{InsertEntry, Inserts};
pub use keyed::{EntryKey, KeyEntry, Subject, INLINE_KEY};
pub use parts::{Part, PartCopy, Parts, PARTS};
pub use rest::{Look, Rest, SLEEP_AFTER_NS};
pub use ring::{Entry, EntryHead, List, ListHead, Position, Registered, Ring, Verdict, RING_SIZE};
pub use set::{compare, Range, RangeSet, LIST_SIZES};
pub use under_way::UnderWay;
