//! The indexes of a table that the engine has in memory: how they are made and kept up, and when
//! they may be used.
//!
//! A PRIMARY KEY has one if it is checked at once and all of its columns have exact bytes
//! (`keys/codec.rs`, order 0). The keys are those of its index in the catalogs, as `keys` makes
//! them. That index is *hollow* (`access/hollow/`): nbtree stores nothing of it, and the engine
//! does the unique checks. Keys with INCLUDE columns and some old ones have entries in nbtree as
//! well, which does the checks then.
//!
//! A *unique index* has one if it is hollow. It became hollow when it was built, because each of
//! its columns is plain and NOT NULL. The spec of its index in memory names it. So that of one
//! unique index is never taken for that of another one with the same columns, which may not have
//! been checked.
//!
//! A table has up to four of them, with the numbers 0 to 3 (`Table::unique`). An index gets a free
//! number when it is made, and keeps it. One of them is *the primary index*: that of the PRIMARY
//! KEY, or else of the unique index with the smallest OID.
//!
//! The logical ranges of the catalogs' index, under its OID, are the ranges of this index too:
//! writers register in one set.
//!
//! **INV-NAMED**: Except within a command, each hollow index of a table has an index in memory with
//! its spec. Each index in memory is that of a hollow index or of the PRIMARY KEY. All sessions
//! enter a row in the order of the OIDs of these. A build makes an index hollow only if a number is
//! free, and gives the table the index in memory at once. Commands that take away what a hollow
//! unique index needs (NOT NULL) build it anew at their end, with entries in nbtree ([`sync`]).
//! Until then, and if some command did not, the poisoned file lets no scan and no insert pass.
//!
//! **INV-PRIMARY**: Every version of a record with an entry has the entry's key, because an update
//! of the key's columns moves the row to a new record (`RelInfo::moving`). Every row that a
//! snapshot at `complete_from` or later sees has an entry in each index. Its insert adds the
//! entries before it commits, and an index is built while the table is locked exclusively. It is
//! used only if no older snapshot is left.

mod build;
pub mod check;
mod enter;
mod keys;
mod line;
mod room;
mod serves;
mod wanted;

pub use build::fill;
pub use enter::{announce, enter, short_key_of_entry, tombstone, ShortKey};
pub use keys::{codecs_of, first_number, keys_of, OwnKeys};
pub use line::{build_key, sync};
pub use room::{begins_hollow, has_fitting_unique, is_open_to_unique, is_to_be_hollow, may_be_key, settle_files};
pub use serves::{hollow_key, is_usable, key_by, key_of_index, known_declared, usable, usable_by, usable_declared};
pub use wanted::{hollow_uniques, specs, specs_of_committed, uniques_in_memory};
