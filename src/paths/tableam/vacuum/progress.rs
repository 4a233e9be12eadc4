//! What `pg_stat_progress_vacuum` shows, with heap's phases. Blocks are blocks of TIDs.
//!
//! An ERROR ends the entry: PostgreSQL does it for each transaction that aborts.

use crate::paths::tableam::relation::blocks;
use crate::pg::{compat, ROWS};
use mixedcc_engine::Table;
use pgrx::pg_sys;

/// The entry of a VACUUM that goes on.
pub struct Progress {
    blocks: u64,
}

impl Progress {
    /// VACUUM scans the table.
    ///
    /// # Safety
    /// An open relation, in a transaction.
    pub unsafe fn start(rel: pg_sys::Relation, table: &Table) -> Progress {
        // SAFETY: `rel` is open (contract of this function). The entry is this process's own.
        unsafe {
            pg_sys::pgstat_progress_start_command(pg_sys::ProgressCommandType::PROGRESS_COMMAND_VACUUM, (*rel).rd_id)
        };
        let progress = Progress { blocks: blocks(table) };
        progress.enter(pg_sys::PROGRESS_VACUUM_PHASE_SCAN_HEAP);
        progress.set(pg_sys::PROGRESS_VACUUM_TOTAL_HEAP_BLKS, progress.blocks);
        progress
    }

    /// The scan comes to a record.
    pub fn scans(&self, record: u64) {
        if record % ROWS == 0 {
            self.set(pg_sys::PROGRESS_VACUUM_HEAP_BLKS_SCANNED, record / ROWS);
        }
    }

    /// The scan has found this many dead rows; their entries are removed from this many indexes.
    pub fn cleans_indexes(&self, dead: u64, indexes: u64) {
        self.set(pg_sys::PROGRESS_VACUUM_HEAP_BLKS_SCANNED, self.blocks);
        self.set(compat::PROGRESS_OF_DEAD_ROWS, dead);
        self.enter(match dead {
            0 => pg_sys::PROGRESS_VACUUM_PHASE_INDEX_CLEANUP,
            _ => pg_sys::PROGRESS_VACUUM_PHASE_VACUUM_INDEX,
        });
        if let Some((all, _)) = compat::PROGRESS_OF_INDEXES {
            self.set(all, indexes);
        }
    }

    /// So many indexes are done.
    pub fn cleaned(&self, indexes: u64) {
        if let Some((_, done)) = compat::PROGRESS_OF_INDEXES {
            self.set(done, indexes);
        }
    }

    /// All indexes are done; the memory of the dead rows is freed.
    pub fn frees(&self, dead: u64) {
        self.set(pg_sys::PROGRESS_VACUUM_NUM_INDEX_VACUUMS, (dead > 0).into());
        self.enter(pg_sys::PROGRESS_VACUUM_PHASE_VACUUM_HEAP);
    }

    /// The records from this one on are free.
    pub fn freed_from(&self, record: u64) {
        self.set(pg_sys::PROGRESS_VACUUM_HEAP_BLKS_VACUUMED, self.blocks.saturating_sub(record / ROWS));
    }

    /// Only statistics are left.
    pub fn tidies(&self) {
        self.freed_from(0);
        self.enter(pg_sys::PROGRESS_VACUUM_PHASE_FINAL_CLEANUP);
    }

    /// VACUUM of the table is over.
    pub fn end(self) {
        // SAFETY: the entry is this process's own.
        unsafe { pg_sys::pgstat_progress_end_command() }
    }

    fn enter(&self, phase: u32) {
        self.set(pg_sys::PROGRESS_VACUUM_PHASE, phase.into());
    }

    fn set(&self, parameter: u32, value: u64) {
        // SAFETY: the entry is this process's own, and the parameter one of VACUUM's.
        unsafe { pg_sys::pgstat_progress_update_param(parameter as i32, value as i64) }
    }
}
