//! Which records a transaction may have inserted, told by their numbers (INV-UNWRITTEN).

/// So many tables have spans of their own. All later ones share one.
const TABLES: usize = 4;

/// Numbers of records. All-zero is the empty span.
#[derive(Clone, Copy, Default)]
struct Span {
    /// The complement of the least number; 0: there is none.
    least: u64,
    /// The number after the greatest one.
    end: u64,
}

impl Span {
    #[inline]
    fn add(&mut self, no: u64) {
        self.least = self.least.max(!no);
        self.end = self.end.max(no + 1);
    }

    #[inline]
    fn has(self, no: u64) -> bool {
        no < self.end && no >= !self.least
    }
}

/// The numbers of at least all records that a transaction has inserted. What it has undone may be
/// among them. A table is named by its address. One that gets the address of another has the
/// numbers of both.
#[derive(Default)]
pub(super) struct Inserted {
    /// Of all tables: the complement of the least number, as in a span. It is asked first.
    least: u64,
    /// By table, in the order of their first inserts.
    tables: [(usize, Span); TABLES],
    /// Of the tables that are not there.
    others: Span,
}

impl Inserted {
    #[inline]
    pub fn add(&mut self, table: usize, no: u64) {
        self.least = self.least.max(!no);
        if self.tables[0].0 == table {
            self.tables[0].1.add(no);
        } else {
            self.add_by_table(table, no);
        }
    }

    fn add_by_table(&mut self, table: usize, no: u64) {
        match self.tables.iter_mut().find(|t| t.0 == table || t.0 == 0) {
            Some(t) => {
                t.0 = table;
                t.1.add(no);
            }
            None => self.others.add(no),
        }
    }

    #[inline]
    pub fn clear(&mut self) {
        if self.least != 0 {
            *self = Inserted::default();
        }
    }

    /// May the record of this number have been inserted?
    #[inline]
    pub fn may_have(&self, table: usize, no: u64) -> bool {
        no >= !self.least && self.may_have_by_table(table, no)
    }

    fn may_have_by_table(&self, table: usize, no: u64) -> bool {
        let found = self.tables.iter().find(|t| t.0 == table);
        found.map_or(self.others, |t| t.1).has(no)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Of each table what was inserted is known to be, and nothing outside of its numbers. Tables
    /// that come late are known together.
    #[test]
    fn numbers_are_told_by_table() {
        let mut inserted = Inserted::default();
        let tables = 1..=TABLES + 2;
        assert!(tables.clone().all(|t| !inserted.may_have(t, 0) && !inserted.may_have(t, u64::MAX)));
        for (t, no) in tables.clone().flat_map(|t| [(t, 100 * t as u64), (t, 100 * t as u64 + 9)]) {
            inserted.add(t, no);
            assert!(inserted.may_have(t, no) && !inserted.may_have(t, no + 1), "{t} {no}");
        }
        for t in tables {
            let first = 100 * t as u64;
            assert!((first..first + 10).all(|no| inserted.may_have(t, no)), "{t}");
            let is_late = t > TABLES;
            for (other, of) in
                [(99, false), (first + 10, is_late && t == TABLES + 1), (first - 1, is_late && t > TABLES + 1)]
            {
                assert_eq!(inserted.may_have(t, other), of, "{t} {other}");
            }
        }
        inserted.add(1, 0);
        assert!(inserted.may_have(1, 0) && inserted.may_have(1, 50) && !inserted.may_have(2, 50));
    }
}
