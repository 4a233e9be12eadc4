//! Sets of columns: what a statement has looked at, and what an update has changed.
//!
//! **INV-COLUMNS**: A registration of an update in place names all columns in which the final
//! version differs from the version that it replaces, or more. One that stands for several writes
//! names columns only if all of them are updates in place, and then those of all. A predicate names
//! all columns of the rows on which its transaction's results and writes depend, or more. So an
//! update that changed none of these columns leaves the scan as it was. Inserts, deletes and moves
//! name no columns: they concern every scan. A scan whose rows may be written by its statement
//! looks at all columns, for the new versions are made of them.

/// Columns of a table. A set of many columns may stand for more: a column has one of
/// [`Columns::BITS`] bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns(u32);

impl Columns {
    /// The number of bits in which sets of columns are kept.
    pub const BITS: u32 = 28;
    /// No column.
    pub const NONE: Columns = Columns(0);
    /// All columns, and whatever else may change with a version, such as system columns.
    pub const ALL: Columns = Columns(u32::MAX);

    /// The set of one column, which the platform numbers.
    pub const fn of(column: u32) -> Columns {
        Columns(1 << (column % Columns::BITS))
    }
    /// The columns of either set.
    pub const fn and(self, other: Columns) -> Columns {
        Columns(self.0 | other.0)
    }
    /// Is a reader that looks at these columns concerned by an update that changed those?
    pub const fn meet(self, changed: Columns) -> bool {
        self.0 == Columns::ALL.0 || self.0 & changed.0 != 0
    }

    pub(crate) const fn from_bits(bits: u64) -> Columns {
        Columns(bits as u32 & ((1 << Columns::BITS) - 1))
    }
    pub(crate) const fn bits(self) -> u64 {
        (self.0 & ((1 << Columns::BITS) - 1)) as u64
    }
}

/// What a scan looks at in the rows that it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// The columns.
    pub columns: Columns,
    /// Does no update in place change them? Then the scan locks no more than keys. Nothing else
    /// relies on it.
    pub keys: bool,
}

impl Looked {
    /// At whole rows.
    pub const ALL: Looked = Looked::at(Columns::ALL);

    /// At columns that updates in place may change.
    pub const fn at(columns: Columns) -> Looked {
        Looked { columns, keys: false }
    }
    /// At columns that updates in place do not change.
    pub const fn at_keys(columns: Columns) -> Looked {
        Looked { columns, keys: true }
    }
}

/// What a write does to the row of its key, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The row is new. Or it goes, and no lock has kept the readers of its key away.
    New,
    /// The row was there, and is deleted or moved by a transaction that has its lock in mode
    /// UPDATE.
    Gone,
    /// The row was there, and stays where it is. These columns change.
    Changes(Columns),
}

impl Effect {
    /// What two writes of different rows do together: it concerns each scan that one of the two
    /// concerns.
    pub fn and(self, other: Effect) -> Effect {
        match (self, other) {
            (Effect::Changes(a), Effect::Changes(b)) => Effect::Changes(a.and(b)),
            (Effect::Gone, Effect::Gone) => Effect::Gone,
            // A lock of a row's key keeps some of these writes out, and not all.
            _ => Effect::New,
        }
    }
    /// Does the row keep its place in all indexes?
    pub fn is_in_place(self) -> bool {
        matches!(self, Effect::Changes(_))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_scan_is_concerned_by_changes_of_what_it_looks_at() {
        let (a, b) = (Columns::of(3), Columns::of(4));
        assert!(a.meet(a) && !a.meet(b) && a.and(b).meet(b) && a.meet(Columns::ALL));
        assert!(!a.meet(Columns::NONE) && !Columns::NONE.meet(a) && !Columns::NONE.meet(Columns::ALL));
        // A value that is in no column, such as the writer's id, changes with every version.
        assert!(Columns::ALL.meet(Columns::NONE) && Columns::ALL.and(a) == Columns::ALL);
        assert!(Columns::of(3 + Columns::BITS).meet(a), "columns share bits");
        for c in (0..40).map(Columns::of) {
            assert_eq!(Columns::from_bits(c.bits()), c);
            assert!(c.meet(Columns::from_bits(Columns::ALL.bits())));
        }
    }
}
