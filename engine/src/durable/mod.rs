//! Durable tables: the formats on disk and in WAL, and the logic that needs no server.
//!
//! The state of a record is the valid entry with the largest CSN among image pages, journal pages
//! and WAL (INV-DMAX). This module encodes and decodes them, merges entries at load, keeps the use
//! of blocks, and has the words by which commits and the rounds of a checkpoint meet (INV-WINDOW).
//! `README.md` has the formats byte by byte, and says which part of the server uses what.
//!
//! **INV-BYTES**: No reader of this module trusts its bytes. Every sequence of bytes gives an error
//! or a valid value. No reader panics, reads beyond its input, or allocates.

mod bytes;
pub mod entry;
pub mod flushed;
pub mod journal;
pub mod lazy;
pub mod marks;
pub mod merge;
pub mod meta;
pub mod page;
pub mod progress;
pub mod report;
pub mod resolve;
pub mod rounds;
pub mod rules;
pub mod space;
pub mod standby;
pub mod table;
pub mod wal;
pub mod window;

#[cfg(all(test, not(loom)))]
mod tests;

pub use entry::{Entry, Fragment, Kind};
pub use meta::{Birth, Meta};
pub use page::{Page, PageKind, PageMut, PAGE};
pub use table::Durable;

/// The reason why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

/// Ok if it holds, else an error with this reason.
pub(crate) fn require(holds: bool, why: &'static str) -> Result<(), Malformed> {
    if holds {
        Ok(())
    } else {
        Err(Malformed(why))
    }
}

/// A position in WAL. 0: none.
pub type Lsn = u64;

/// A table's storage, as the server's WAL and catalogs name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Storage {
    /// The tablespace.
    pub tablespace: u32,
    /// The database.
    pub database: u32,
    /// The number of its files.
    pub number: u32,
}

impl std::fmt::Display for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.tablespace, self.database, self.number)
    }
}
