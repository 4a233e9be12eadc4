//! Conditions of a filter that are comparisons of an integer, a date or a time with a value that is
//! known: they are decided by a row's bytes, before the row goes into a slot.
//!
//! **INV-SIEVE**: A row that is discarded by its bytes is one for which the plan's own
//! filter is not true. Only the conditions at the begin of the filter are taken, which it would
//! evaluate first, and nothing that they do can be noticed.

use super::prefix::Prefix;
use super::seqscan;
use pgrx::pg_sys::{self, NodeTag};
use pgrx::PgList;

/// At most so many conditions are decided so.
const MOST: usize = 4;

/// Is a value in `lo..=lo + span`; or not, if `negated`?
#[derive(Clone, Copy)]
#[repr(C)]
struct Condition {
    lo: i64,
    span: u64,
    negated: bool,
    /// The column.
    column: u16,
}

/// What a filter says of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// The filter is not true.
    No,
    /// The filter must be evaluated.
    Perhaps,
    /// The filter is true.
    Yes,
}

/// See the module. All-zero: the filter was not looked at.
#[repr(C)]
pub struct Quick {
    conditions: [Condition; MOST],
    n: u8,
    /// Was the filter looked at?
    known: bool,
    /// Are these all of its conditions?
    is_all: bool,
    /// The number of columns up to the last one that they look at.
    columns: u16,
}

#[derive(Clone, Copy)]
enum Strategy {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Strategy {
    fn commuted(self) -> Strategy {
        match self {
            Strategy::Eq | Strategy::Ne => self,
            Strategy::Lt => Strategy::Gt,
            Strategy::Le => Strategy::Ge,
            Strategy::Gt => Strategy::Lt,
            Strategy::Ge => Strategy::Le,
        }
    }

    /// The condition `value STRATEGY x`.
    fn condition(self, x: i64, column: u16) -> Condition {
        let (lo, hi, negated) = match self {
            Strategy::Eq => (x, x, false),
            Strategy::Ne => (x, x, true),
            Strategy::Lt => (x, i64::MAX, true),
            Strategy::Ge => (x, i64::MAX, false),
            Strategy::Le => (i64::MIN, x, false),
            Strategy::Gt => (i64::MIN, x, true),
        };
        Condition { lo, span: hi.wrapping_sub(lo) as u64, negated, column }
    }
}

impl Condition {
    /// Of no value: it compares with NULL.
    fn never(column: u16) -> Condition {
        Condition { lo: i64::MIN, span: u64::MAX, negated: true, column }
    }

    #[inline(always)]
    fn holds(&self, value: i64) -> bool {
        (value.wrapping_sub(self.lo) as u64 <= self.span) != self.negated
    }
}

/// The comparison that a built-in function makes, with the lengths of its arguments.
fn comparison(function: u32) -> Option<(Strategy, i16, i16)> {
    use pg_sys::*;
    // In the order of `STRATEGIES`.
    const STRATEGIES: [Strategy; 6] =
        [Strategy::Eq, Strategy::Ne, Strategy::Lt, Strategy::Le, Strategy::Gt, Strategy::Ge];
    const FUNCTIONS: [(i16, i16, [u32; 6]); 12] = [
        (2, 2, [F_INT2EQ, F_INT2NE, F_INT2LT, F_INT2LE, F_INT2GT, F_INT2GE]),
        (2, 4, [F_INT24EQ, F_INT24NE, F_INT24LT, F_INT24LE, F_INT24GT, F_INT24GE]),
        (2, 8, [F_INT28EQ, F_INT28NE, F_INT28LT, F_INT28LE, F_INT28GT, F_INT28GE]),
        (4, 2, [F_INT42EQ, F_INT42NE, F_INT42LT, F_INT42LE, F_INT42GT, F_INT42GE]),
        (4, 4, [F_INT4EQ, F_INT4NE, F_INT4LT, F_INT4LE, F_INT4GT, F_INT4GE]),
        (4, 8, [F_INT48EQ, F_INT48NE, F_INT48LT, F_INT48LE, F_INT48GT, F_INT48GE]),
        (8, 2, [F_INT82EQ, F_INT82NE, F_INT82LT, F_INT82LE, F_INT82GT, F_INT82GE]),
        (8, 4, [F_INT84EQ, F_INT84NE, F_INT84LT, F_INT84LE, F_INT84GT, F_INT84GE]),
        (8, 8, [F_INT8EQ, F_INT8NE, F_INT8LT, F_INT8LE, F_INT8GT, F_INT8GE]),
        (4, 4, [F_DATE_EQ, F_DATE_NE, F_DATE_LT, F_DATE_LE, F_DATE_GT, F_DATE_GE]),
        (8, 8, [F_TIMESTAMP_EQ, F_TIMESTAMP_NE, F_TIMESTAMP_LT, F_TIMESTAMP_LE, F_TIMESTAMP_GT, F_TIMESTAMP_GE]),
        (
            8,
            8,
            [
                F_TIMESTAMPTZ_EQ,
                F_TIMESTAMPTZ_NE,
                F_TIMESTAMPTZ_LT,
                F_TIMESTAMPTZ_LE,
                F_TIMESTAMPTZ_GT,
                F_TIMESTAMPTZ_GE,
            ],
        ),
    ];
    FUNCTIONS.iter().find_map(|(left, right, of)| {
        let at = of.iter().position(|f| *f == function)?;
        Some((STRATEGIES[at], *left, *right))
    })
}

impl Quick {
    /// Was the filter looked at?
    #[inline]
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Can conditions of the filter be decided?
    #[inline]
    pub fn is_any(&self) -> bool {
        self.n > 0
    }

    /// Looks at the filter of a sequential scan (INV-SIEVE).
    ///
    /// # Safety
    /// `quals` is the filter of the plan of a scan that runs in `estate`, and `prefix` fits its
    /// rows. An ERROR unwinds.
    pub unsafe fn learn(&mut self, quals: *mut pg_sys::List, estate: *mut pg_sys::EState, prefix: &Prefix) {
        (self.n, self.columns, self.known) = (0, 0, true);
        // SAFETY: `quals` is null or a list of expressions (contract of this function).
        let all = unsafe { PgList::<pg_sys::Node>::from_pg(quals) };
        for q in all.iter_ptr() {
            // SAFETY: an expression of the filter of a scan in `estate`: the function's contract.
            let found = unsafe { condition(q, estate) }.filter(|_| (self.n as usize) < MOST);
            let Some((c, len)) = found.filter(|(c, len)| prefix.length_of(c.column as usize) == Some(*len)) else {
                break;
            };
            debug_assert!(len > 0);
            self.conditions[self.n as usize] = c;
            self.n += 1;
            self.columns = self.columns.max(c.column + 1);
        }
        self.is_all = self.n as usize == all.len();
    }

    /// Does a row pass the filter (INV-SIEVE)?
    ///
    /// # Safety
    /// The filter was looked at; `td` is a tuple of the rows' type, which `prefix` fits.
    #[inline(always)]
    pub unsafe fn passes(&self, td: *const pg_sys::HeapTupleHeaderData, prefix: &Prefix) -> Passes {
        // SAFETY: `td` is a tuple that `prefix` fits (contract of this function).
        unsafe {
            if self.n == 0 || !Prefix::has(td, self.columns) {
                return Passes::Perhaps;
            }
            for c in self.conditions.iter().take(self.n as usize) {
                if !c.holds(prefix.value(td, c.column as usize)) {
                    return Passes::No;
                }
            }
        }
        match self.is_all {
            true => Passes::Yes,
            false => Passes::Perhaps,
        }
    }
}

/// A condition that is decided by bytes, with the length of its column.
unsafe fn condition(q: *mut pg_sys::Node, estate: *mut pg_sys::EState) -> Option<(Condition, i16)> {
    // SAFETY: `q` is an expression of a filter: contract of `learn`. A node is cast only as its tag
    // says.
    unsafe {
        if (*q).type_ != NodeTag::T_OpExpr {
            return None;
        }
        let e = q.cast::<pg_sys::OpExpr>();
        let (strategy, left, right) = comparison((*e).opfuncid.to_u32())?;
        let args = PgList::<pg_sys::Node>::from_pg((*e).args);
        let (a, b) = (args.get_ptr(0)?, args.get_ptr(1)?);
        let (strategy, column, value, lengths) = match (seqscan::column(a), seqscan::column(b)) {
            (Some(column), None) => (strategy, column, b, (left, right)),
            (None, Some(column)) => (strategy.commuted(), column, a, (right, left)),
            _ => return None,
        };
        let column = u16::try_from(column).ok()?.checked_sub(1)?;
        let (x, null) = seqscan::constant(value, estate)?;
        if null {
            return Some((Condition::never(column), lengths.0));
        }
        let x = match lengths.1 {
            2 => x.value() as i16 as i64,
            4 => x.value() as i32 as i64,
            _ => x.value() as i64,
        };
        Some((strategy.condition(x, column), lengths.0))
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_condition_holds_as_its_comparison_does() {
        let values = [i64::MIN, i64::MIN + 1, -7, -1, 0, 1, 6, 7, 8, i64::MAX - 1, i64::MAX];
        for x in values {
            for v in values {
                let holds = |s: Strategy| s.condition(x, 0).holds(v);
                assert_eq!(holds(Strategy::Eq), v == x);
                assert_eq!(holds(Strategy::Ne), v != x);
                assert_eq!(holds(Strategy::Lt), v < x, "{v} < {x}");
                assert_eq!(holds(Strategy::Le), v <= x);
                assert_eq!(holds(Strategy::Gt), v > x);
                assert_eq!(holds(Strategy::Ge), v >= x);
                assert!(!Condition::never(0).holds(v));
            }
        }
    }
}
