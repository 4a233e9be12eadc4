//! What VACUUM says: VERBOSE, and log_autovacuum_min_duration, in the words of heap's
//! (heap_vacuum_rel), which tools read.

use super::blocks;
use crate::pg::compat::{self, Usage};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::Table;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::fmt::Write;

/// What a VACUUM has done so far, for its report.
pub struct Report {
    usage: Option<Usage>,
    /// A line for each index that was vacuumed.
    indexes: String,
}

/// # Safety
/// Null, or a C string.
unsafe fn text(p: *const core::ffi::c_char) -> String {
    if p.is_null() {
        return String::new();
    }
    // SAFETY: null was excluded, so it is a C string (contract of this function).
    crate::pg::text::shown(&unsafe { crate::pg::text::read(p) })
}

/// # Safety
/// An open relation.
unsafe fn name(rel: pg_sys::Relation) -> String {
    // SAFETY: `rel` is open (contract of this function), and its name is a C string.
    unsafe { text((*(*rel).rd_rel).relname.data.as_ptr()) }
}

/// Database, schema and name.
///
/// # Safety
/// An open relation, within a transaction.
unsafe fn full_name(rel: pg_sys::Relation) -> String {
    // SAFETY: `rel` is open, within a transaction (contract of this function). Catalog look-ups: a
    // name may be null, which `text` takes.
    unsafe {
        let schema = pg_sys::get_namespace_name((*(*rel).rd_rel).relnamespace);
        format!("{}.{}.{}", text(pg_sys::get_database_name(pg_sys::MyDatabaseId)), text(schema), name(rel))
    }
}

impl Report {
    /// VACUUM starts.
    ///
    /// # Safety
    /// An open relation and VACUUM's parameters.
    pub unsafe fn start(rel: pg_sys::Relation, params: *mut pg_sys::VacuumParams) -> Report {
        // SAFETY: `rel` is open and `params` VACUUM's: contract of this function.
        unsafe {
            if compat::is_verbose(params) {
                info!("vacuuming \"{}\"", full_name(rel));
            }
            Report { usage: Usage::start(params), indexes: String::new() }
        }
    }

    /// An index was vacuumed.
    ///
    /// # Safety
    /// An open index and what it returned.
    pub unsafe fn index(&mut self, index: pg_sys::Relation, stats: *const pg_sys::IndexBulkDeleteResult) {
        if self.usage.is_none() {
            return;
        }
        // SAFETY: `index` is open, and `stats` is what its access method returned: contract of this
        // function.
        let (s, name) = unsafe { (&*stats, name(index)) };
        let (total, newly, deleted, free) = (s.num_pages, s.pages_newly_deleted, s.pages_deleted, s.pages_free);
        // (Writing to a string does not fail.)
        let _ = writeln!(
            self.indexes,
            "index \"{name}\": pages: {total} in total, {newly} newly deleted, {deleted} currently deleted, {free} reusable"
        );
    }

    /// VACUUM is over. Pages are blocks of TIDs.
    ///
    /// # Safety
    /// As for [`Report::start`].
    pub unsafe fn end(self, rel: pg_sys::Relation, params: *mut pg_sys::VacuumParams, table: &Table, removed: usize) {
        let Some(usage) = self.usage else { return };
        // SAFETY: `rel` is open and `params` VACUUM's: contract of this function.
        unsafe {
            if !usage.is_due(params) {
                return;
            }
            let scans = u32::from(removed > 0 && !self.indexes.is_empty());
            let verbose = compat::is_verbose(params);
            let what = if verbose { "finished vacuuming" } else { "automatic vacuum of table" };
            let (pages, rows) = (blocks(table), table.rows());
            let scanned = if pages > 0 { 100.0 } else { 0.0 };
            let message = format!(
                "{what} \"{}\": index scans: {scans}\n\
                 pages: 0 removed, {pages} remain, {pages} scanned ({scanned:.2}% of total)\n\
                 tuples: {removed} removed, {rows} remain, {} are dead but not yet removable\n\
                 {}{}",
                full_name(rel),
                table.dead.load(Ordering::Relaxed),
                self.indexes,
                usage.lines()
            );
            if verbose {
                info!("{message}");
            } else {
                log!("{message}");
            }
        }
    }
}
