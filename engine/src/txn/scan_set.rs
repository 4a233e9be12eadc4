//! The scan set: the predicates of the transaction, which later inserts and writes may violate.

use super::conditions::Conditional;
use super::predicate::{Extent, New, OpenEnd, Predicates};
use super::scan::LookPosition;
use super::Owner;
use crate::csn::Csn;
use crate::partition::{Partition, PartitionMap};
use crate::protocol::Touch;
use crate::range::{Columns, Position, Verdict};
use crate::table::Table;
use hashbrown::HashMap;
use std::ops::Bound;

/// Inserts into a partition from a position on are conflicts.
pub(super) struct PartitionPredicate {
    pub at: Touch,
    /// The table's map when the predicate was made.
    map: &'static PartitionMap,
    pub start: Position,
    /// The clock before its position was taken, if no registration was unfinished then. Writers
    /// that have registered since have a larger CSN. 0: not known.
    pub since: Csn,
}

impl PartitionPredicate {
    pub fn new(at: Touch, start: Position, since: Csn) -> PartitionPredicate {
        PartitionPredicate { at, map: at.table.map(), start, since }
    }
    /// Does the table still have the map that it had when the predicate was made?
    pub fn has_its_map(&self) -> bool {
        std::ptr::eq(self.map, self.at.table.map())
    }
    fn is_of(&self, table: &Table) -> bool {
        std::ptr::eq(self.at.table, table)
    }
}

/// A key that an insert of a subtransaction has found absent.
struct Absent {
    look: LookPosition,
    key: Box<[u8]>,
    depth: u32,
}

/// A partition in which an insert of a subtransaction has found no row that excludes its own.
struct AbsentRows {
    predicate: PartitionPredicate,
    depth: u32,
}

/// What the transaction has scanned.
#[derive(Default)]
pub(super) struct ScanSet {
    /// Partitions that were scanned as a whole, by their addresses.
    pub partitions: HashMap<usize, PartitionPredicate>,
    /// Partitions that were scanned for rows of a condition.
    pub conditional: Vec<Conditional>,
    /// Intervals of keys, in the ranges of indexes.
    pub ranged: Predicates,
    /// Ids of tables whose predicates are over: the transaction has changed their partitions.
    settled: Vec<u64>,
    /// Keys that inserts of subtransactions have found absent, by depth.
    absent: Vec<Absent>,
    /// The same of checks without keys: a partition is there once for each depth.
    absent_rows: Vec<AbsentRows>,
}

fn key(p: &Partition) -> usize {
    std::ptr::from_ref(p) as usize
}

impl ScanSet {
    /// Number of predicates.
    pub fn len(&self) -> usize {
        self.partitions.len() + self.conditional.len() + self.ranged.len()
    }

    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty() && self.conditional.is_empty() && self.ranged.is_empty()
    }

    /// Does a predicate cover the whole partition?
    pub fn covers(&self, partition: &Partition) -> bool {
        self.partitions.contains_key(&key(partition))
    }

    /// Inserts into the partition from this position on are conflicts. `since`: see
    /// [`PartitionPredicate::since`].
    pub fn add_partition(&mut self, at: Touch, start: Position, since: Csn) {
        let new = || PartitionPredicate::new(at, start, since);
        let pred = self.partitions.entry(key(at.partition())).or_insert_with(new);
        pred.start = pred.start.both(start);
        pred.since = pred.since.min(since);
    }

    /// The partitions that predicates protect as a whole.
    pub fn partitions(&self) -> impl Iterator<Item = Touch> + '_ {
        let conditional = self.conditional.iter().map(|q| q.predicate.at);
        self.partitions.values().map(|q| q.at).chain(conditional)
    }

    /// Forgets the predicates of a table. Were there any?
    pub fn forget_table(&mut self, table: &Table) -> bool {
        let before = self.len();
        self.partitions.retain(|_, pred| !pred.is_of(table));
        self.conditional.retain(|q| !q.predicate.is_of(table));
        self.ranged.retain(|q| !std::ptr::eq(q.ranges.table(), table));
        self.len() < before
    }

    /// The predicates of a table are over, because the transaction changes its partitions.
    pub fn settle_table(&mut self, table: &Table) {
        if self.forget_table(table) {
            self.settled.push(table.id);
        }
    }

    /// Has the transaction scanned the table, so far as is known?
    pub fn may_have_scanned(&self, table: &Table) -> bool {
        self.settled.contains(&table.id)
            || self.partitions.values().any(|pred| pred.is_of(table))
            || self.conditional.iter().any(|q| q.predicate.is_of(table))
            || self.ranged.views().any(|q| std::ptr::eq(q.ranges.table(), table))
            || !self.absent.is_empty()
            || !self.absent_rows.is_empty()
    }

    /// An insert at this depth has found the key absent since `look`.
    pub fn add_absent(&mut self, look: LookPosition, key: &[u8], depth: u32) {
        self.absent.push(Absent { look, key: key.into(), depth });
    }

    /// Has an insert at this depth looked for rows of the partition?
    pub fn has_absent_rows(&self, at: Touch, depth: u32) -> bool {
        let is_its = |a: &AbsentRows| a.depth == depth && key(a.predicate.at.partition()) == key(at.partition());
        self.absent_rows.iter().any(is_its)
    }

    /// An insert at this depth has found no row that excludes its own. As
    /// [`ScanSet::add_partition`] if it is undone.
    pub fn add_absent_rows(&mut self, at: Touch, start: Position, since: Csn, depth: u32) {
        self.absent_rows.push(AbsentRows { predicate: PartitionPredicate::new(at, start, since), depth });
    }

    /// The subtransactions at `depth` and deeper are undone: what their inserts found absent is a
    /// predicate now. Was there any? Compares no keys, and cannot fail.
    pub fn keep_absent(&mut self, depth: u32) -> bool {
        let mut any = false;
        while let Some(a) = self.absent.pop_if(|a| a.depth >= depth) {
            let bounds = (Bound::Included(&a.key[..]), Bound::Included(&a.key[..]));
            let LookPosition { ranges, set, at, no, start, unknown } = a.look;
            let extent = Extent::part_of(no);
            let looked = Columns::ALL;
            let new = New { ranges, set, at, bounds, extent, open: OpenEnd::No, looked };
            self.ranged.add(new, unknown, |_| start);
            any = true;
        }
        while let Some(a) = self.absent_rows.pop_if(|a| a.depth >= depth) {
            self.add_partition(a.predicate.at, a.predicate.start, a.predicate.since);
            any = true;
        }
        any
    }

    /// The subtransaction at `depth` becomes part of its parent. At the top an undo takes all.
    pub fn merge_absent(&mut self, depth: u32) {
        if depth <= 2 {
            self.absent.clear();
            self.absent_rows.clear();
        } else {
            let merged = self.absent.iter_mut().filter(|a| a.depth >= depth);
            merged.for_each(|a| a.depth = depth - 1);
            let merged = self.absent_rows.iter_mut().filter(|a| a.depth >= depth);
            merged.for_each(|a| a.depth = depth - 1);
        }
    }

    /// Forgets the predicates: tests break validation with it.
    pub fn forget_predicates(&mut self) {
        self.partitions.clear();
        self.conditional.clear();
        self.ranged.clear();
    }

    /// The transaction has ended.
    pub fn clear(&mut self) {
        self.ranged.clear();
        super::clear_vec(&mut self.absent);
        super::clear_vec(&mut self.absent_rows);
        super::clear_map(&mut self.partitions);
        super::clear_vec(&mut self.conditional);
        super::clear_vec(&mut self.settled);
    }
}

impl Owner {
    /// Has no other transaction registered in the partition since `start` that may have committed
    /// at or before `valid`?
    pub(super) fn is_quiet_since(&self, at: Touch, start: &Position, valid: Csn) -> bool {
        let list = at.partition().ring.list();
        list.look(start, start.low(), self.tag(), valid) == Verdict::Valid
    }
}
