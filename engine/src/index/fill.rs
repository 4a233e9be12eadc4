//! Filling an index with the rows of a table.
//!
//! Entries in ascending order go into the tree without a search in cold memory, and fill its nodes.
//! So rows are collected in private memory and sorted, some megabytes at a time.

use super::key::prefix_of;
use super::unique::Judge;
use super::Primary;
use crate::csn::SlotId;
use crate::error::Error;
use crate::platform::Platform;
use crate::shared::Engine;

/// The size of keys and rows that are sorted together, in bytes.
const RUN: usize = if cfg!(test) { 1 << 10 } else { 16 << 20 };

/// So many rows before its own a hint is prefetched.
const AHEAD: usize = 8;

/// A row whose entry is to be added: where its key is among the collected ones, and its first
/// bytes.
#[derive(Clone, Copy)]
struct Row {
    prefix: u64,
    at: u32,
    len: u32,
    no: u32,
    unique: bool,
}

/// Fills an index that belongs to no table yet with the rows of a table, in any order of the rows,
/// and checks that no two rows have one key.
pub struct Filler {
    primary: &'static Primary,
    rows: Vec<Row>,
    keys: Vec<u8>,
    duplicate: Option<(u64, u64)>,
}

impl Filler {
    /// No row yet.
    pub fn new(primary: &'static Primary) -> Filler {
        Filler { primary, rows: Vec::new(), keys: Vec::new(), duplicate: None }
    }

    /// Adds the entry of a row that is alive. `unique`: no other row may have its key. On an error
    /// the index is to be given up. The caller is pinned.
    pub fn add(
        &mut self,
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        no: u64,
        key: &[u8],
        unique: bool,
    ) -> Result<(), Error> {
        if self.keys.len() + key.len() > u32::MAX as usize {
            self.finish(e, slot, p)?;
        }
        let (at, len) = (self.keys.len() as u32, key.len() as u32);
        self.keys.extend_from_slice(key);
        self.rows.push(Row { prefix: prefix_of(key), at, len, no: no as u32, unique });
        if self.keys.len() + self.rows.len() * size_of::<Row>() >= RUN {
            self.finish(e, slot, p)?;
        }
        Ok(())
    }

    /// Adds the entries of all rows so far. Called at the end.
    pub fn finish(&mut self, e: &Engine, slot: SlotId, p: &dyn Platform) -> Result<(), Error> {
        let keys = &self.keys;
        let key = |r: &Row| &keys[r.at as usize..][..r.len as usize];
        if self.primary.index.order() == 0 {
            // Rows that are in order already cost one comparison each.
            self.rows.sort_unstable_by(|a, b| {
                a.prefix.cmp(&b.prefix).then_with(|| key(a).cmp(key(b))).then(a.no.cmp(&b.no))
            });
        }
        for (i, r) in self.rows.iter().enumerate() {
            if let Some(later) = self.rows.get(i + AHEAD) {
                self.primary.announce(key(later));
            }
            let (no, mut other) = (r.no as u64, None);
            let mut passes = |there: u64| -> Result<bool, Error> {
                other = Some(there);
                Ok(false)
            };
            let mut judge = Judge { beside: false, passes: &mut passes };
            let judge = r.unique.then_some(&mut judge);
            let done = self.primary.enter(e, slot, p, no, key(r), judge)?;
            if done.taken && self.duplicate.is_none() {
                self.duplicate = other.map(|other| (other, no));
            }
        }
        self.rows.clear();
        self.keys.clear();
        Ok(())
    }

    /// Two rows with one key, if there are such among the rows that were added: the one that was
    /// there, and the one whose entry was not added.
    pub fn duplicate(&self) -> Option<(u64, u64)> {
        self.duplicate
    }
}

#[cfg(all(test, not(loom)))]
#[path = "fill_tests.rs"]
mod tests;
