//! VACUUM: frees records that no snapshot sees, and their index entries first.

use super::relation::blocks;
use crate::access::{primary, visible};
use crate::pg::{compat, Tid};
use crate::state::above::TooLarge;
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::{rel, standby, xact};
use mixedcc_engine::csn::Csn;
use mixedcc_engine::durable::Durable;
use mixedcc_engine::primitive::{prefetch, Ordering};
use mixedcc_engine::record::REC_VACUUM;
use mixedcc_engine::retire::RetireQueue;
use mixedcc_engine::{RecordRef, Table, Txn};
use numbers::Numbers;
use pgrx::pg_sys;
use pgrx::prelude::*;
use progress::Progress;
use report::Report;
use std::ptr::NonNull;

mod horizon;
mod numbers;
mod progress;
mod report;

/// # Safety
/// tableam.h's contract of `index_delete_tuples`.
#[pg_guard]
pub unsafe extern "C-unwind" fn index_delete_tuples(
    rel: pg_sys::Relation,
    state: *mut pg_sys::TM_IndexDeleteOp,
) -> pg_sys::TransactionId {
    // SAFETY: `rel` is open; `deltids` and `status` have entries for `ndeltids` TIDs (tableam.h:
    // index_delete_tuples).
    unsafe {
        if (*state).bottomup {
            (*state).ndeltids = 0;
            return pg_sys::InvalidTransactionId;
        }
        let table = rel::info(rel).table;
        let t = xact::txn();
        let floor = standby::floor_of(table, t.e.known_min_floor());
        let unloaded_may_go = standby::unloaded_may_go(table);
        let mut last = 0;
        for i in 0..(*state).ndeltids as usize {
            let d = (*state).deltids.add(i);
            let st = (*state).status.add((*d).id as usize);
            let dead = match visible::record(table, Tid::read(&(*d).tid)) {
                Some(r) => {
                    // Some kinds of indexes remove what is marked, whatever is said of it here.
                    let dead = table.is_dead(r.rec, floor) && (unloaded_may_go || !r.rec.head().is_null());
                    if dead || (*st).knowndeletable {
                        last = deleted_at(r).max(last);
                    }
                    dead
                }
                None => true,
            };
            // What was marked as dead before may be above the floor that standbys know of.
            (*st).knowndeletable = dead;
        }
        standby::tell_horizon(table, last);
        pg_sys::InvalidTransactionId
    }
}

/// When the row of a dead record was deleted, at the latest. 0: it never had one, or not in this
/// life.
fn deleted_at(r: RecordRef) -> Csn {
    // SAFETY: INV-RETIRE: the caller is pinned, or excludes VACUUM.
    match unsafe { r.rec.head().as_ref() } {
        Some(v) => v.csn().unwrap_or(0),
        None => r.table.durable().map_or(0, Durable::unloaded), // INV-UNLOADED
    }
}

/// The records whose entries VACUUM removes. So it does those of records that do not exist.
struct Dead {
    table: &'static Table,
    numbers: Numbers,
}

/// Asked for each entry of an index. It has no guard, because nothing in it can fail.
unsafe extern "C-unwind" fn is_dead_tid(tid: pg_sys::ItemPointer, state: *mut core::ffi::c_void) -> bool {
    // SAFETY: `state` is what `vacuum` passes, and lives as long as the call; `tid` is an entry's
    // (genam.h: index_bulk_delete).
    unsafe {
        let dead = &*state.cast::<Dead>();
        match Tid::read(&*tid) {
            Tid::Record(n) => dead.numbers.has(n) || dead.table.record(n).is_none(),
            _ => true,
        }
    }
}

/// Entries of dead records that are removed from the primary index at a time, and records that are
/// freed between two looks at VACUUM's progress.
const SWEEP: usize = 1024;
/// The distance, in records, between one that is looked at and one whose version is prefetched.
const AHEAD: usize = 8;

/// Pins the present moment. VACUUM looks at no version as its snapshot sees it: its pin need not
/// keep what was deleted, or given back, just before. Returns the oldest pin.
fn renew_moment(t: &Txn) -> Csn {
    t.e.unpin(t.slot);
    t.e.tick();
    t.e.pin(t.slot);
    t.e.refresh_min_pin(&PG)
}

/// Marks the records that are dead to everybody.
fn mark_dead(table: &'static Table, progress: &Progress) -> Dead {
    let t = xact::txn();
    renew_moment(t);
    while t.sweep(&PG, table, SWEEP) > 0 {
        pgrx::check_for_interrupts!();
    }
    ok(t.purge_marked(&PG, table).map_err(Into::into));
    let floor = standby::floor_of(table, t.e.refresh_min_floor(&PG));
    let unloaded_may_go = standby::unloaded_may_go(table);
    let (end, mut last, mut n) = (table.len(), 0, 0);
    let mut dead = Dead { table, numbers: Numbers::below(end) };
    while n < end {
        let records = table.records_from(n, end);
        for (i, rec) in records.iter().enumerate() {
            progress.scans(n + i as u64);
            if i % SWEEP == 0 {
                pgrx::check_for_interrupts!(); // the next VACUUM finds the marks
            }
            if let Some(soon) = records.get(i + AHEAD) {
                prefetch(soon.head());
            }
            let r = RecordRef { table, no: n + i as u64, rec };
            let may_go = unloaded_may_go || !rec.head().is_null();
            if may_go && table.is_dead(rec, floor) && t.last_write(r).is_none() && !table.is_indexed(r.no) {
                last = deleted_at(r).max(last);
                rec.state.store(REC_VACUUM, Ordering::Release);
                dead.numbers.add(r.no);
            }
        }
        n += records.len().max(1) as u64;
    }
    standby::tell_horizon(table, last);
    dead
}

/// Gives the marked records and their tombstones back.
fn free_dead(table: &'static Table, dead: &Dead, progress: &Progress) {
    let t = xact::txn();
    let mut counted = 0;
    // The last one first: lists of numbers are taken from their heads.
    for (i, n) in dead.numbers.from_last().enumerate() {
        if i % SWEEP == 0 {
            progress.freed_from(n);
            // After a cancel the next VACUUM goes on, with the right number.
            less_dead(table, i - std::mem::replace(&mut counted, i));
            pgrx::check_for_interrupts!();
        }
        let Some(r) = table.record(n) else { continue };
        let v = NonNull::new(r.head());
        if let Some(v) = v {
            if RetireQueue::reserve(&t.e, t.slot, 1).is_err() {
                return less_dead(table, i - counted); // the next VACUUM goes on
            }
            // SAFETY: a tombstone that is dead to every snapshot, and is not retired yet: `v` is an
            // object of the region.
            let size = unsafe { t.e.region.usable_size(v.cast()) } as u64;
            let stats = table.partition(r).stats.stripe(t.slot);
            stats.bytes.fetch_sub(size, Ordering::Relaxed);
            stats.versions.fetch_sub(1, Ordering::Relaxed);
            table.give_back(n, t.e.now());
            RetireQueue::push(&t.e, t.slot, v.cast(), t.e.now());
        } else {
            table.give_back(n, t.e.now());
        }
    }
    less_dead(table, dead.numbers.len() as usize - counted);
    // What deletes and updates have retired, in the queues of all backends, can go too.
    let min = renew_moment(t);
    table.order_free(min);
    for slot in 0..t.e.slots.len() {
        pgrx::check_for_interrupts!();
        RetireQueue::drain_for(&t.e, slot as u16, t.slot, min, usize::MAX);
    }
}

/// So many dead records were freed.
fn less_dead(table: &Table, freed: usize) {
    let less = |dead: u64| Some(dead.saturating_sub(freed as u64));
    let _ = table.dead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// Ends the ranges of indexes that are gone, and frees old boundaries. The table is locked so that
/// no index comes or goes.
fn tidy_ranges(table: &'static Table, indexes: &[u64]) {
    let t = xact::txn();
    for r in table.all_ranges().filter(|r| !indexes.contains(&r.index)).collect::<Vec<_>>() {
        table.drop_ranges(&t.e, t.slot, r.index);
    }
    let min = t.e.refresh_min_pin(&PG);
    table.reap_ranges(&t.e, t.slot, min);
}

/// # Safety
/// tableam.h's contract of `relation_vacuum`.
#[pg_guard]
pub unsafe extern "C-unwind" fn vacuum(
    rel: pg_sys::Relation,
    params: *mut pg_sys::VacuumParams,
    strategy: pg_sys::BufferAccessStrategy,
) {
    // SAFETY: `rel` is open, and locked against other VACUUMs; `params` is readable (tableam.h:
    // relation_vacuum). Indexes are open between vac_open_indexes and vac_close_indexes.
    unsafe {
        if crate::state::save::pass_over(rel) {
            return move_horizon(rel, pg_sys::GetOldestNonRemovableTransactionId(rel));
        }
        let (table, frozen) = horizon::of(rel);
        let table = match table {
            Ok(table) => table,
            Err(x) => {
                pass_over_large("VACUUM", rel, x);
                return move_horizon(rel, frozen);
            }
        };
        xact::prepared::finish_decided(); // INV-DECIDED
        let started = pg_sys::GetCurrentTimestamp();
        let mut report = Report::start(rel, params);
        let progress = Progress::start(rel, table);
        let dead = mark_dead(table, &progress);
        let mut nindexes = 0;
        let mut indexes: *mut pg_sys::Relation = std::ptr::null_mut();
        pg_sys::vac_open_indexes(rel, pg_sys::RowExclusiveLock as i32, &mut nindexes, &mut indexes);
        progress.cleans_indexes(dead.numbers.len(), nindexes as u64);
        for i in 0..nindexes as usize {
            progress.cleaned(i as u64);
            let index = *indexes.add(i);
            if primary::hollow_key(rel, rel::info(rel), (*index).rd_id).is_some() {
                tell_of_hollow(index, table, &dead, &mut report);
                continue;
            }
            let mut info = compat::index_vacuum_info(rel, index, table.rows() as f64, strategy);
            let mut stats: *mut pg_sys::IndexBulkDeleteResult = std::ptr::null_mut();
            if dead.numbers.len() > 0 {
                let state = (&raw const dead).cast_mut().cast();
                stats = pg_sys::index_bulk_delete(&mut info, stats, Some(is_dead_tid), state);
            }
            stats = pg_sys::index_vacuum_cleanup(&mut info, stats);
            if !stats.is_null() {
                report.index(index, stats);
                if !(*stats).estimated_count {
                    let (pages, rows) = ((*stats).num_pages, (*stats).num_index_tuples);
                    compat::update_statistics(index, compat::Size { pages, rows, has_index: false });
                }
                pg_sys::pfree(stats.cast());
            }
        }
        progress.cleaned(nindexes as u64);
        progress.frees(dead.numbers.len());
        free_dead(table, &dead, &progress);
        progress.tidies();
        let there: Vec<u64> = (0..nindexes as usize).map(|i| (**indexes.add(i)).rd_id.to_u32() as u64).collect();
        tidy_ranges(table, &there);
        pg_sys::vac_close_indexes(nindexes, indexes, pg_sys::NoLock as i32);
        count(rel, table, frozen, nindexes > 0, started);
        report.end(rel, params, table, dead.numbers.len() as usize);
        progress.end();
    }
}

/// VACUUM passes over a table. No error: nothing shall hold the horizons of the database back.
unsafe fn move_horizon(rel: pg_sys::Relation, frozen: pg_sys::TransactionId) {
    // SAFETY: `rel` is open and locked by `vacuum`, the only caller.
    unsafe {
        let c = (*rel).rd_rel;
        let (pages, rows) = ((*c).relpages as u32, (*c).reltuples as f64);
        let size = compat::Size { pages, rows, has_index: (*c).relhasindex };
        compat::update_table_statistics(rel, size, frozen);
    }
}

/// Says that a permanent table does not fit into memory.
///
/// # Safety
/// An open relation.
pub unsafe fn pass_over_large(command: &str, rel: pg_sys::Relation, x: TooLarge) {
    // SAFETY: `rel` is open (contract of this function). Its name is a C string.
    let name = unsafe { crate::pg::text::read((*(*rel).rd_rel).relname.data.as_ptr()) };
    let name = crate::pg::text::shown(&name);
    let mb = x.need.div_ceil(1 << 20);
    warning!(
        "{command} passes over mixedcc table \"{name}\": it needs about {mb} MB of mixedcc.memory, which are not free"
    );
}

/// A hollow index has no entries of dead records any more: [`mark_dead`] has removed them.
unsafe fn tell_of_hollow(index: pg_sys::Relation, table: &Table, dead: &Dead, report: &mut Report) {
    if dead.numbers.len() == 0 {
        return;
    }
    // SAFETY: `index` is open and locked by `vacuum`, the only caller.
    unsafe {
        let pages = pg_sys::RelationGetNumberOfBlocksInFork(index, pg_sys::ForkNumber::MAIN_FORKNUM);
        report.index(index, &pg_sys::IndexBulkDeleteResult { num_pages: pages, ..Default::default() });
        compat::update_statistics(index, compat::Size { pages, rows: table.rows() as f64, has_index: false });
    }
}

unsafe fn count(
    rel: pg_sys::Relation,
    table: &Table,
    frozen: pg_sys::TransactionId,
    has_index: bool,
    started: pg_sys::TimestampTz,
) {
    // SAFETY: `rel` is open and locked by `vacuum`, the only caller.
    unsafe {
        let rows = table.rows();
        let size = compat::Size { pages: blocks(table) as u32, rows: rows as f64, has_index };
        compat::update_table_statistics(rel, size, frozen);
        compat::report_vacuum(rel, rows, table.dead.load(Ordering::Relaxed), started);
    }
}
