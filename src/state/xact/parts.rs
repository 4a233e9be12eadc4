//! Partitions of records by a map that is not in use, kept while an abort can put it in use again.
//!
//! **INV-TWO-MAPS**: A record has room for the partitions of two maps. A third one of the same
//! transaction overwrites those of the first, which an abort puts in use again. So the transaction
//! has them before the first one is overwritten, and puts them back with their map. A process that
//! is terminated in the middle does so, too, though no destructor runs in it.

use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::Table;

/// The partitions of a table's records in one of their two fields (see
/// `mixedcc_engine::record::Record::part`).
pub struct Parts {
    table: &'static Table,
    field: usize,
    all: Box<[u16]>,
}

impl Parts {
    /// The present values of the field. The transaction has the table's exclusive lock, to its end.
    pub fn of(table: &'static Table, field: u32) -> Parts {
        let field = field as usize;
        let part = |no| table.record(no).map_or(0, |r| r.part[field].load(Ordering::Relaxed));
        Parts { table, field, all: (0..table.len()).map(part).collect() }
    }

    /// Puts it back. Neither fails nor allocates. Records that came later are dead by then, and of
    /// any partition.
    pub fn restore(&self) {
        for no in 0..self.table.len() {
            if let Some(r) = self.table.record(no) {
                let part = self.all.get(no as usize).copied().unwrap_or(0);
                r.part[self.field].store(part, Ordering::Relaxed);
            }
        }
    }
}
