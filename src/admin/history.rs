//! The history of the load, which the coordinator keeps in files and [`super::report`] shows.
//!
//! Each `mixedcc.history_interval` the coordinator adds a line to the file of the day, in the
//! directory `mixedcc_history` of the data directory: what the partitions have done since the last
//! line, and the switches that have ended. A line is a JSON object ([`Interval`]). A reader leaves
//! out lines that it cannot parse, as a crash leaves them. Files are deleted when they are older
//! than `mixedcc.history_retention`.

use crate::pg::guc;
use mixedcc_engine::Engine;
use mixedcc_engine::Table;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

mod files;
mod load;
pub use files::read;

/// The format of the lines that are written. Lines of an earlier one are read, those of a later one
/// are left out. A field that is added with a default value makes no new format.
const FORMAT: u32 = 1;
/// Partitions of a line. Those that had the most transactions are taken.
const MOST_PARTITIONS: usize = 200;

/// What happened in an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// [`FORMAT`]. Lines without it are of the first one.
    #[serde(default = "first_format")]
    pub format: u32,
    /// Its end, in microseconds as PostgreSQL counts them.
    pub end: u64,
    /// Its length in microseconds.
    pub length: u64,
    /// Bytes of the region that are in use at its end.
    pub used: u64,
    /// Size of the region.
    pub total: u64,
    /// Partitions that had transactions.
    pub partitions: Vec<Load>,
    /// Switches that have ended.
    pub switches: Vec<Switch>,
}

fn first_format() -> u32 {
    1
}

/// What a partition has done in an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// OID of the database.
    pub database: u32,
    /// The table's name then: database.schema.table; its file's number if it is not known.
    pub table: String,
    /// Number of the partition.
    pub no: u32,
    /// Protocols in use at its end, joined by +.
    pub protocol: String,
    /// Committed rows at its end.
    pub rows: u64,
    /// Transactions that committed.
    pub commits: u64,
    /// Rows read.
    pub reads: u64,
    /// Rows written.
    pub writes: u64,
    /// Failed transactions by reason.
    #[serde(default)]
    pub aborts: BTreeMap<String, u64>,
    /// Sleeps by reason.
    #[serde(default)]
    pub waits: BTreeMap<String, u64>,
    /// Time slept in microseconds.
    pub wait_us: u64,
}

impl Load {
    /// Did anything happen?
    fn is_idle(&self) -> bool {
        self.commits + self.reads + self.writes + self.wait_us == 0 && self.aborts.is_empty() && self.waits.is_empty()
    }
}

/// A switch that has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Switch {
    /// OID of the database.
    pub database: u32,
    /// As in [`Load`].
    pub table: String,
    /// Number of the partition.
    pub no: u32,
    /// When it ended, in microseconds as PostgreSQL counts them.
    pub at: u64,
    /// Protocol before.
    pub old: String,
    /// Protocol after.
    pub new: String,
    /// Why.
    pub why: String,
    /// Its duration in microseconds.
    pub took: u64,
}

/// What the coordinator knows of the last line.
pub struct Recorder {
    last: load::Counters,
    switches: u64,
    begun: u64,
    /// Was the last failure logged? Each is logged once until a line can be written again.
    failed: bool,
}

impl Recorder {
    /// Begins an interval.
    pub fn start(e: &Engine, tables: &[&'static Table], now: u64) -> Recorder {
        Recorder { last: load::Counters::of(tables), switches: e.shared.switches.len(), begun: now, failed: false }
    }

    /// Is the interval over?
    pub fn is_due(&self, now: u64) -> bool {
        let length = guc::HISTORY_INTERVAL_S.get() as u64 * 1_000_000;
        // A clock that was set back ends the interval.
        length != 0 && (now < self.begun || now - self.begun >= length)
    }

    /// Adds the line of an interval.
    pub fn write(&mut self, interval: &Interval) {
        let done = files::append(interval, guc::HISTORY_RETENTION_S.get() as u64 * 1_000_000);
        if let Err(error) = &done {
            if !self.failed {
                pgrx::warning!("mixedcc could not write its history: {error}");
            }
        }
        self.failed = done.is_err();
    }

    /// Ends the interval, and begins the next one. It writes no file: its caller holds a pin.
    pub fn interval(&mut self, e: &Engine, tables: &[&'static Table], now: u64) -> Interval {
        let counters = load::Counters::of(tables);
        let mut partitions = counters.since(&self.last);
        partitions.retain(|p| !p.is_idle());
        partitions.sort_by_key(|p| std::cmp::Reverse((p.commits + p.aborts.values().sum::<u64>(), p.reads)));
        partitions.truncate(MOST_PARTITIONS);
        let (used, total) = e.region.pages_used();
        let (switches, next) = load::switches(e, self.switches);
        let length = now.saturating_sub(self.begun);
        (self.last, self.begun, self.switches) = (counters, now, next);
        Interval { format: FORMAT, end: now, length, used: used as u64, total: total as u64, partitions, switches }
    }
}
