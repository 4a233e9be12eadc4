//! Storage, sizes and estimates of relations.

use crate::pg::buffers;
use crate::pg::compat::{self, Storage};
use crate::pg::errors::unsupported;
use crate::pg::local::Local;
use crate::pg::{MAX_BLOCKS, ROWS};
use crate::state::{rel, shmem, standby, xact};
use mixedcc_engine::durable::merge::Fork;
use mixedcc_engine::record::{Version, VERSION_HEADER};
use mixedcc_engine::txn::WriteKind;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ptr::NonNull;

/// # Safety
/// tableam.h's contract of `slot_callbacks`.
#[pg_guard]
pub unsafe extern "C-unwind" fn slot_callbacks(_a: pg_sys::Relation) -> *const pg_sys::TupleTableSlotOps {
    &raw const pg_sys::TTSOpsHeapTuple
}

/// Gives a relation a new, empty storage.
///
/// # Safety
/// `rel` is open, and new or locked exclusively; `storage` is its new storage (tableam.h).
pub unsafe fn set_new_storage(rel: pg_sys::Relation, storage: &Storage, persistence: core::ffi::c_char) {
    // SAFETY: `rel` is open, and new or locked exclusively; `storage` is its new one: contract of
    // this function.
    unsafe {
        let kind = (*(*rel).rd_rel).relkind as u8;
        if persistence as u8 == pg_sys::RELPERSISTENCE_TEMP {
            unsupported("mixedcc does not support temporary tables", "Create the temporary table USING heap.");
        }
        let permanent = persistence as u8 == pg_sys::RELPERSISTENCE_PERMANENT;
        if kind == pg_sys::RELKIND_MATVIEW {
            unsupported("mixedcc does not support materialized views", "Create the materialized view USING heap.");
        }
        compat::create_storage(storage, persistence);

        let old_key = compat::storage_key(&compat::storage_of(rel));
        let key = compat::storage_key(storage);
        if old_key == key {
            rel::create_table(key, None, permanent);
        } else if is_elsewhere(rel) {
            // TRUNCATE gives up rows that are in a file.
            rel::create_anew(rel, key, permanent);
        } else {
            rel::create_table(key, Some(rel::table_of(rel)), permanent);
        }
        xact::created(key);
        if old_key != key {
            xact::dropped(old_key);
        }
    }
}

/// Are the rows of a relation in a file and not in memory?
unsafe fn is_elsewhere(rel: pg_sys::Relation) -> bool {
    // SAFETY: `rel` is open: contract of `set_new_storage`, the only caller.
    unsafe {
        if compat::is_permanent(rel) {
            return rel::known_table_of(rel).is_none();
        }
        crate::state::save::is_missing(rel)
    }
}

/// Throws the rows of a table away that this transaction has made.
///
/// # Safety
/// tableam.h's contract of `relation_nontransactional_truncate`.
#[pg_guard]
pub unsafe extern "C-unwind" fn nontransactional_truncate(rel: pg_sys::Relation) {
    // SAFETY: the relation is ours and locked exclusively (tableam.h:
    // relation_nontransactional_truncate). `orphaned` keeps the old table until the transaction
    // ends.
    unsafe {
        let key = compat::storage_key(&compat::storage_of(rel));
        let old = shmem::unregister(key);
        if let Some(t) = old {
            // Our own writes still point to it. It is freed at our end also if there is no memory
            // for another one.
            xact::orphaned(t);
        }
        rel::create_table(key, old, compat::is_permanent(rel));
        // The indexes are rebuilt before the invalidation is processed.
        (*rel).rd_amcache = std::ptr::null_mut();
        pg_sys::CacheInvalidateRelcache(rel);
    }
}

/// Blocks of a table, as planner, ANALYZE and TABLESAMPLE see it: 256 rows each.
pub fn blocks(table: &mixedcc_engine::Table) -> u64 {
    table.len().div_ceil(ROWS).min(MAX_BLOCKS)
}

/// Of a call of `pg_prewarm`: does [`size`] count the blocks of the file?
static COUNTS_FILE: Local<bool> = Local::new(false);

/// From now on, [`size`] counts the blocks of the file, or no longer.
pub fn count_file(yes: bool) {
    COUNTS_FILE.set(yes);
}

/// The bytes of the file of a permanent table, whose rows are loaded now; 0 for an unlogged table.
unsafe fn size_of_file(rel: pg_sys::Relation) -> u64 {
    // SAFETY: `rel` is open: contract of `size`, the only caller.
    unsafe {
        if !compat::is_permanent(rel) {
            return 0;
        }
        if may_load(rel) {
            // Of a table that does not fit, the blocks of the file are read all the same.
            let _ = rel::table_if_it_fits(rel);
        }
        let file = compat::storage_key(&compat::storage_of(rel));
        buffers::blocks(file, Fork::Main) as u64 * pg_sys::BLCKSZ as u64
    }
}

/// # Safety
/// tableam.h's contract of `relation_size`.
#[pg_guard]
pub unsafe extern "C-unwind" fn size(rel: pg_sys::Relation, fork: pg_sys::ForkNumber::Type) -> u64 {
    if fork != pg_sys::ForkNumber::MAIN_FORKNUM && fork != pg_sys::ForkNumber::InvalidForkNumber {
        return 0;
    }
    if COUNTS_FILE.get() {
        // SAFETY: `rel` is open (tableam.h: relation_size).
        return unsafe { size_of_file(rel) };
    }
    // INV-TABLE: the table of a standby may be given up without a lock of the relation.
    // SAFETY: `rel` is open (tableam.h: relation_size).
    let known = shmem::pinned(|| unsafe { rel::known_table_of(rel) }.map(blocks));
    // SAFETY: as above. To load rows changes no index, so the process may have pinned a page of
    // one, as BRIN's functions have.
    let blocks = unsafe {
        match known {
            None if may_load(rel) => match rel::table_if_it_fits(rel) {
                Ok(table) => blocks(table),
                // As it was at the last VACUUM or ANALYZE.
                Err(_) => return (*(*rel).rd_rel).relpages as u64 * pg_sys::BLCKSZ as u64,
            },
            known => known.unwrap_or(0),
        }
    };
    blocks * pg_sys::BLCKSZ as u64
}

/// May the rows of a relation be loaded now? ANALYZE asks for the size first, and would take an
/// unloaded table for an empty one. A process that holds a lock of a page has no interrupts.
///
/// # Safety
/// An open relation.
unsafe fn may_load(rel: pg_sys::Relation) -> bool {
    // SAFETY: `rel` is open (contract of this function). A variable of this process.
    let may = unsafe { compat::is_permanent(rel) && pg_sys::InterruptHoldoffCount == 0 };
    // So the rows are there before a statement of a standby has a snapshot.
    may && (!compat::in_recovery() || standby::is_known())
}

/// Of a statement: the table, and the access method that it is about to be converted to.
static CONVERSION: Local<Option<(pg_sys::Oid, pg_sys::Oid)>> = Local::new(None);

/// An ALTER TABLE begins. `conversion`: it gives this table of ours this other access method. (It
/// stays after an ERROR, until the next ALTER TABLE: nothing else asks for the TOAST table of a
/// table that is there.)
pub fn expect_conversion(conversion: Option<(pg_sys::Oid, pg_sys::Oid)>) {
    CONVERSION.set(conversion);
}

/// Rows of ours have no TOAST table. But PostgreSQL makes one for a rewritten table only if the old
/// table has one (make_new_heap). It asks for that at the end of ALTER TABLE's changes of catalogs,
/// before the rewrite. So a table that is about to get another access method needs what that one
/// needs.
///
/// # Safety
/// tableam.h's contract of `relation_needs_toast_table`.
#[pg_guard]
pub unsafe extern "C-unwind" fn needs_toast_table(rel: pg_sys::Relation) -> bool {
    // SAFETY: `rel` is open (tableam.h: relation_needs_toast_table).
    unsafe {
        match CONVERSION.get() {
            Some((oid, method)) if oid == (*rel).rd_id => needs_toast_as(rel, method),
            _ => false,
        }
    }
}

/// Would the relation need a TOAST table if this were its access method?
unsafe fn needs_toast_as(rel: pg_sys::Relation, method: pg_sys::Oid) -> bool {
    // SAFETY: `rel` is open (`needs_toast_table`'s). The tuple is used before it is released. A
    // handler of pg_am returns a routine that lives as long as the backend.
    unsafe {
        let tup = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::AMOID as i32, method.into());
        if tup.is_null() {
            return false;
        }
        let handler = (*pg_sys::GETSTRUCT(tup).cast::<pg_sys::FormData_pg_am>()).amhandler;
        pg_sys::ReleaseSysCache(tup);
        let routine = pg_sys::GetTableAmRoutine(handler);
        let ours = std::ptr::eq(routine, crate::paths::tableam::handler::routine());
        !ours && (*routine).relation_needs_toast_table.is_some_and(|needs| needs(rel))
    }
}

/// The access method of that TOAST table, which no row of ours gets into.
///
/// # Safety
/// tableam.h's contract of `relation_toast_am`.
pub unsafe extern "C-unwind" fn toast_method(_rel: pg_sys::Relation) -> pg_sys::Oid {
    pg_sys::Oid::from(pg_sys::HEAP_TABLE_AM_OID)
}

/// Pages that a table which was never analyzed is taken to have at least; what heap takes a page to
/// hold, and a row to need besides its values (tableam.c).
const SMALL: u32 = 10;
const HEAP_PAGE: u32 = pg_sys::BLCKSZ - 24;
const HEAP_ROW: u32 = 28;

/// Rows and bytes that the running transaction has added to tables, about: rolled-back savepoints
/// may leave some in. Each write is counted once.
#[derive(Default)]
struct OwnRows {
    transaction: u32,
    counted: u32,
    tables: HashMap<u64, (i64, u64)>,
}

thread_local! {
    static OWN_ROWS: RefCell<OwnRows> = RefCell::default();
}

fn bytes_of(v: NonNull<Version>) -> u64 {
    // SAFETY: an own write's version lives as long as the write is in the list.
    VERSION_HEADER as u64 + unsafe { v.as_ref() }.len as u64
}

/// What the running transaction has added to a table: the planner must not take a table for empty
/// that its own transaction has filled.
fn own_rows(table: u64) -> (i64, u64) {
    let t = xact::txn();
    if t.write(0).is_none() {
        return (0, 0);
    }
    let transaction = compat::my_lxid();
    OWN_ROWS.with_borrow_mut(|o| {
        if o.transaction != transaction {
            *o = OwnRows { transaction, ..OwnRows::default() };
        }
        while let Some(w) = t.write(o.counted) {
            let sum = o.tables.entry(w.r.table.id).or_default();
            match w.kind {
                WriteKind::Insert => *sum = (sum.0 + 1, sum.1 + bytes_of(w.version)),
                WriteKind::Delete => sum.0 -= 1,
                _ => {}
            }
            o.counted += 1;
        }
        o.tables.get(&table).copied().unwrap_or_default()
    })
}

/// Costs are those of a heap of the same bytes.
///
/// # Safety
/// tableam.h's contract of `relation_estimate_size`.
#[pg_guard]
pub unsafe extern "C-unwind" fn estimate_size(
    rel: pg_sys::Relation,
    widths: *mut i32,
    pages: *mut pg_sys::BlockNumber,
    tuples: *mut f64,
    allvisfrac: *mut f64,
) {
    // SAFETY: `rel` is open, and the pointers are the planner's out parameters (tableam.h:
    // relation_estimate_size). `widths` may be null.
    unsafe {
        let t = rel::info(rel).table;
        let own = own_rows(t.id);
        let (rows, bytes) = t.map().sizes(compat::now());
        let (rows, bytes) = (rows.saturating_add_signed(own.0), bytes + own.1);
        *pages = (bytes.div_ceil(pg_sys::BLCKSZ as u64)).min(u32::MAX as u64 - 1) as u32;
        *tuples = rows as f64;
        let form = (*rel).rd_rel;
        if (*form).reltuples < 0.0 && *pages < SMALL && !(*form).relhassubclass {
            // Never analyzed and small: expect it to grow, as heap does, so that plans use indexes.
            let width = pg_sys::get_rel_data_width(rel, widths) as u32 + HEAP_ROW;
            *pages = SMALL;
            *tuples = (*tuples).max((HEAP_PAGE / width * SMALL) as f64);
        }
        *allvisfrac = 0.0;
    }
}
