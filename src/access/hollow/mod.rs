//! Hollow indexes: the index of a PRIMARY KEY, and unique indexes. Each is an ordinary btree index
//! in the catalogs, and an index in memory answers it. nbtree stores no entry of it. A table has up
//! to four.
//!
//! Which indexes are hollow is a property of their files (INV-HOLLOW, `pg/compat/nbtree.rs`). A key
//! can be hollow if it has an index in memory and no INCLUDE columns ([`primary::Wanted::whole`]).
//! A key that was an ordinary unique index before (USING INDEX), or that comes from a file of an
//! older version, keeps nbtree's entries until REINDEX.
//!
//! PostgreSQL reaches an index by the functions in `rd_indam`, of which every relation cache entry
//! has a copy of its own. [`serve`] puts functions of ours there:
//!
//! * `aminsert` asks the engine for the unique check (`insert.rs`).
//! * `amrescan`, `amgettuple`, `amgetbitmap`, `ammarkpos` and `amrestrpos` are those of all indexes
//!   of our tables (`access/indexscan.rs`); of a hollow index they scan the one in memory
//!   (`scan.rs`).
//! * `ambuildempty` writes the init fork of a hollow index while it is built. (A permanent index
//!   has none: it is marked at the beginning of its build.)
//!
//! **INV-SERVED**: The functions are in place before PostgreSQL reads or writes the index, because
//! it calls the table access method first: `index_fetch_begin` for index scans, `scan_begin` for
//! bitmap scans, `tuple_insert` and its relatives for inserts, `index_build_range_scan` for builds.
//! An entry that is open keeps its `rd_indam`; one that is not may be rebuilt after an
//! invalidation. So each of these callbacks serves anew if an invalidation was processed since.
//! Where a function of nbtree comes all the same, the poisoned file makes it fail.

use crate::access::{indexscan, primary};
use crate::pg::changes;
use crate::pg::local::Local;
use crate::pg::{compat, raw};
use crate::state::rel::RelInfo;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;
use std::cell::RefCell;

mod filter;
mod insert;
pub mod scan;

pub use insert::{forget as forget_made, note};

/// Invalidations of relations that this process has processed, plus 1. Of the process.
static CHANGES: Local<u64> = Local::new(1);

/// The file that is being built as that of a hollow index: the index and the file's number.
static BUILDING: Local<Option<(Oid, u32)>> = Local::new(None);

thread_local! {
    /// Permanent hollow indexes that this transaction has built.
    static BUILT: RefCell<Vec<Oid>> = const { RefCell::new(Vec::new()) };
}

/// Asks to be told of changes.
pub fn init() {
    changes::listen(|_| CHANGES.set(CHANGES.get() + 1));
}

/// Puts our functions into the relation cache entries of the table's hollow indexes (INV-SERVED).
///
/// # Safety
/// An open relation of ours, and its info. An ERROR jumps over the caller's frame, or unwinds.
#[inline]
pub unsafe fn serve(rel: pg_sys::Relation, info: &RelInfo) {
    // SAFETY: `rel` is open and of ours, and `info` is its info (contract of this function).
    unsafe {
        for kept in info.uniques.all() {
            let Some(key) = primary::key_by(rel, info, kept).filter(|k| k.hollow) else { continue };
            if key.served.get() != CHANGES.get() {
                serve_anew(rel, key.index);
                key.served.set(CHANGES.get());
            }
        }
    }
}

#[cold]
unsafe fn serve_anew(rel: pg_sys::Relation, index: Oid) {
    // SAFETY: `rel` is open: contract of `serve`. The index exists while its table is locked; null
    // means that this transaction has dropped it. Its `rd_indam` is a private copy (relcache.c).
    unsafe {
        let index = pg_sys::RelationIdGetRelation(index);
        if index.is_null() {
            return;
        }
        indexscan::wrap(rel, index);
        (*(*index).rd_indam).aminsert = Some(insert::insert);
        raw::RelationClose(index);
    }
}

/// An index that is to be hollow is being built ([`primary::begins_hollow`]). The build must
/// deliver no row to nbtree. The files are marked and poisoned when nbtree has written them.
///
/// # Safety
/// An open relation of ours, and an index of it that is being built.
pub unsafe fn begin_build(rel: pg_sys::Relation, index: pg_sys::Relation) {
    // SAFETY: `rel` and `index` are open, and the index is locked exclusively (contract of this
    // function). Its `rd_indam` is a private copy (relcache.c).
    unsafe {
        indexscan::wrap(rel, index);
        if compat::is_permanent(index) {
            compat::write_hollow_mark(index);
            BUILT.with_borrow_mut(|built| built.push((*index).rd_id));
            return;
        }
        BUILDING.set(Some(((*index).rd_id, compat::storage_number(index))));
        (*(*index).rd_indam).ambuildempty = Some(build_empty);
    }
}

/// Before a commit: poisons the permanent hollow indexes that the transaction has built. nbtree has
/// written their metapages by now. An ERROR unwinds.
pub fn poison_built() {
    for index in BUILT.take() {
        // SAFETY: the transaction has locked the index exclusively, or has dropped it: then there
        // is no entry of it. It holds no page.
        unsafe {
            let index = pg_sys::RelationIdGetRelation(index);
            if index.is_null() {
                continue;
            }
            if compat::is_hollow(index) {
                compat::poison(index);
            }
            raw::RelationClose(index);
        }
    }
}

/// The transaction has ended.
pub fn forget_built() {
    BUILT.take();
}

/// `ambuildempty` of an index in which [`begin_build`] has put it. index_build calls it after the
/// build, if the file has no init fork yet. After an ERROR it may be called for another file.
#[pg_guard]
unsafe extern "C-unwind" fn build_empty(index: pg_sys::Relation) {
    // SAFETY: PostgreSQL calls this as ambuildempty of an index that is being built (amapi.h). An
    // ERROR of nbtree jumps over this frame, which owns nothing.
    unsafe {
        let stock = indexscan::stock(index).ambuildempty;
        (*(*index).rd_indam).ambuildempty = stock;
        if BUILDING.take() == Some(((*index).rd_id, compat::storage_number(index))) {
            compat::write_hollow_init(index);
            compat::poison(index);
        } else if let Some(f) = stock {
            f(index);
        }
    }
}
