//! What a commit logs: its writes in permanent tables.
//!
//! **INV-LOGGED**: A record of a commit has the last write of each record that the transaction has
//! written in a permanent table, but for three kinds. Rows in storages that it has made itself are
//! written as a whole before (INV-NEW). A row that it has inserted and deleted was never seen by
//! another transaction. What a prepared transaction has written in a table that it drops ends with
//! it, whatever becomes of it (INV-LEAVING).

use super::{Txn, Write, WriteKind};
use crate::csn::Csn;
use crate::durable::table::Durable;
use crate::durable::Kind;
use crate::record::Version;
use crate::table::Table;
use std::ptr::NonNull;

/// A write that the commit logs.
#[derive(Clone, Copy)]
pub struct LoggedWrite {
    /// The table.
    pub table: &'static Table,
    /// What it has beside its records.
    pub durable: &'static Durable,
    /// The number of the record.
    pub no: u64,
    /// The new version or tombstone.
    pub version: NonNull<Version>,
    /// Is it surely a tombstone?
    deletes: bool,
}

impl LoggedWrite {
    #[inline]
    fn of(w: Write) -> Option<LoggedWrite> {
        let durable = w.r.table.durable()?;
        let came_and_went = w.base.is_none() && w.kind == WriteKind::Delete;
        let is_logged = !came_and_went && !durable.is_new() && !durable.is_leaving();
        let deletes = w.kind == WriteKind::Delete;
        is_logged.then_some(LoggedWrite { table: w.r.table, durable, no: w.r.no, version: w.version, deletes })
    }
    /// [`Kind::Row`] or [`Kind::Tomb`], and the row's bytes.
    ///
    /// # Safety
    /// The transaction that wrote it has not settled, and uses the bytes before it does.
    pub unsafe fn content<'a>(&self) -> (Kind, &'a [u8]) {
        if self.deletes {
            return (Kind::Tomb, &[]); // of many, no line of memory is waited for
        }
        // SAFETY: INV-VERSION: a version of a transaction that has not settled, so it is not
        // retired (contract of this function), and its `len` bytes do not change.
        unsafe {
            let version = self.version.as_ref();
            if version.is_tombstone() {
                return (Kind::Tomb, &[]);
            }
            let payload = Version::payload(self.version.as_ptr());
            (Kind::Row, std::slice::from_raw_parts(payload, version.len as usize))
        }
    }
}

impl Txn {
    /// What the commit logs (INV-LOGGED).
    pub fn durable_writes(&self) -> impl Iterator<Item = LoggedWrite> + use<'_> {
        self.writes.finals_durable().filter_map(LoggedWrite::of)
    }
    /// Does the commit log anything?
    pub fn logs(&self) -> bool {
        self.writes.permanent && self.durable_writes().next().is_some()
    }
    /// The CSN of its commit, once it has taken one.
    pub fn csn(&self) -> Csn {
        self.csn
    }
    /// Has it buffered writes?
    pub fn has_writes(&self) -> bool {
        !self.writes.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::index::Reuse;
    use crate::protocol::Touch;
    use crate::threads::{Block, Threads, Waits};
    use crate::{Level, Policy, Protocol, ProtocolSet, Table, Txn};
    use std::sync::Arc;

    /// A commit asks for what it logs only if it may have written a permanent table. It logs these
    /// writes, unless they were undone, whatever else it has written before or after.
    #[test]
    fn a_commit_logs_what_it_has_written_in_permanent_tables() {
        let block = Block::new(16 << 20, 1).expect("a block");
        let (e, p) = (block.engine, Threads::new(block.engine, 0, Arc::<Waits>::default()));
        let tables = [1, 2].map(|n| {
            let map = Table::new_map(&e, 0, 1, 0, b"", ProtocolSet::of(Protocol::Occ), Policy::Wait).expect("a map");
            let table = Table::create(&e, 0, [n; 4], map).expect("a table");
            table.create_primary(&e, 0, 0, Reuse::AtOnce).expect("an index");
            table
        });
        tables[0].make_durable(&e, 0, false).expect("memory");
        let mut t = Txn::new(e, 0);
        // Which of the tables are written, within a savepoint that is undone if negative; may the
        // commit log something, and does it?
        let cases: [(&[i32], bool, bool); 9] = [
            (&[], false, false),
            (&[2], false, false),
            (&[2, 2], false, false),
            (&[1], true, true),
            (&[1, 2], true, true),
            (&[2, 1], true, true),
            (&[2, 1, 2], true, true),
            (&[2, -1], true, false),
            (&[1, -2], true, true),
        ];
        for (n, (writes, may, logs)) in cases.into_iter().enumerate() {
            t.begin(Level::Serializable, n as u64 + 1);
            t.set_depth(1);
            for (i, w) in writes.iter().enumerate() {
                if *w < 0 {
                    t.set_depth(2);
                }
                let at = Touch { table: tables[w.unsigned_abs() as usize - 1], no: 0 };
                let v = t.new_version(0, 8, 0).expect("memory");
                t.insert_row(&p, at, &[n as u8, i as u8], v, 0).expect("a write");
                if *w < 0 {
                    t.abort_sub(2);
                }
            }
            assert_eq!((t.writes.permanent, t.logs()), (may, logs), "{writes:?}");
            t.abort();
        }
    }
}
