//! Tables in the middle of an ALTER TABLE, whose definition names other types than their stored
//! rows have.
//!
//! ALTER COLUMN TYPE changes the catalog first. From its next command on the relation's descriptor
//! is the new one. Only then the stored rows, which have the old layout, are read and written anew
//! into another storage. PostgreSQL reads them by a descriptor that it has kept. Any other reader
//! that used the relation's descriptor would read text in place of an integer, or an integer in
//! place of text.
//!
//! **INV-LAYOUT**: A stored row is read by the relation's descriptor only if each column has the
//! type with which it was stored, or a binary coercible one. So for a table that is found here no
//! key of a row and no range of keys is made. Partitions protect its scans at SERIALIZABLE; no
//! other session uses them meanwhile, because the ALTER TABLE holds the table's ACCESS EXCLUSIVE
//! lock. Statements of functions that the ALTER TABLE calls are refused.

use crate::pg::compat;
use crate::pg::errors::complain;
use crate::pg::local::Local;
use crate::state::{rel, xact};
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;
use std::cell::RefCell;

/// A table as it was before its first ALTER COLUMN TYPE of the running ALTER TABLE.
struct Table {
    oid: Oid,
    /// The storage of the rows, which a rewritten table leaves.
    storage: u32,
    /// Types of the columns; invalid: dropped.
    types: Vec<Oid>,
}

/// An ALTER TABLE that runs.
#[derive(Clone, Copy)]
pub struct Running {
    transaction: u32,
    /// Nesting depth of the subtransaction in which it began.
    level: u32,
    /// Tables that were known when it began.
    before: usize,
}

/// Is there one in `TABLES`? As these: of the transaction. Each row of a scan asks.
static ANY: Local<bool> = Local::new(false);

thread_local! {
    static RUNNING: RefCell<Vec<Running>> = const { RefCell::new(Vec::new()) };
    static TABLES: RefCell<Vec<Table>> = const { RefCell::new(Vec::new()) };
}

/// An ALTER TABLE begins. If it fails, that is the end of a (sub)transaction.
pub fn begin() {
    let (transaction, level) = (compat::my_lxid(), xact::depth());
    RUNNING.with_borrow_mut(|all| {
        all.retain(|r| r.transaction == transaction);
        all.push(Running { transaction, level, before: TABLES.with_borrow(Vec::len) });
    });
}

/// The one that has begun last ends.
pub fn end() {
    forget(RUNNING.with_borrow_mut(Vec::pop));
}

/// The subtransactions at `level` and deeper are aborted, and what they ran.
pub fn abort_subtransactions(level: u32) {
    RUNNING.with_borrow_mut(|all| {
        while let Some(last) = all.pop_if(|r| r.level >= level) {
            forget(Some(last));
        }
    });
}

fn forget(ended: Option<Running>) {
    TABLES.with_borrow_mut(|all| {
        all.truncate(ended.map_or(0, |r| r.before));
        ANY.set(!all.is_empty());
    });
}

/// Types of a descriptor's columns; invalid: dropped.
unsafe fn types(desc: pg_sys::TupleDesc) -> Vec<Oid> {
    // SAFETY: `desc` is the descriptor of a relation that `note` has open, and `i` stays below
    // `natts`.
    unsafe { (0..(*desc).natts as usize).map(|i| type_of(desc, i)).collect() }
}

unsafe fn type_of(desc: pg_sys::TupleDesc, i: usize) -> Oid {
    // SAFETY: `desc` is a valid descriptor, and its users here have checked that it has column `i`.
    let a = unsafe { compat::attribute(desc, i) };
    if a.attisdropped {
        pg_sys::InvalidOid
    } else {
        a.atttypid
    }
}

/// The running ALTER TABLE changes a column of a relation in the catalog. The relation's descriptor
/// is still the old one.
///
/// # Safety
/// Within a transaction; the relation is locked.
pub unsafe fn note(oid: Oid) {
    if RUNNING.with_borrow(Vec::is_empty) {
        return;
    }
    // So that the end of the transaction is heard of.
    xact::txn();
    // SAFETY: the transaction has the relation locked (contract of this function). It is closed
    // again, by an ERROR's clean-up if it comes to that.
    unsafe {
        let r = pg_sys::RelationIdGetRelation(oid);
        if r.is_null() {
            return;
        }
        if rel::is_ours(r) && find(r, |_| ()).is_none() {
            let table = Table { oid, storage: compat::storage_number(r), types: types((*r).rd_att) };
            TABLES.with_borrow_mut(|all| all.push(table));
            ANY.set(true);
        }
        pg_sys::RelationClose(r);
    }
}

/// Is any table being altered so?
#[inline]
pub fn any() -> bool {
    ANY.get()
}

/// The knowledge of a relation's stored rows, if they may be of another row type.
unsafe fn find<R>(r: pg_sys::Relation, f: impl FnOnce(&Table) -> R) -> Option<R> {
    // SAFETY: `r` is open: contract of `differs`, of `must_fit`, and of `note`, which has opened
    // it.
    let (oid, storage) = unsafe { ((*r).rd_id, compat::storage_number(r)) };
    TABLES.with_borrow(|all| all.iter().find(|t| t.oid == oid && t.storage == storage).map(f))
}

/// Have a relation's stored rows other types than its descriptor says? Then no keys are made of
/// them.
///
/// # Safety
/// An open relation.
#[inline]
pub unsafe fn differs(r: pg_sys::Relation) -> bool {
    // SAFETY: `r` is open (contract of this function), and so is its descriptor valid.
    any() && unsafe { find(r, |t| t.types.iter().enumerate().any(|(i, &s)| is_other((*r).rd_att, i, s))) == Some(true) }
}

/// Is a column of a descriptor, which is not dropped, of another type than it is stored with? One
/// that was dropped before its table was noted may still be in the descriptor that PostgreSQL has
/// kept.
unsafe fn is_other(desc: pg_sys::TupleDesc, i: usize, stored: Oid) -> bool {
    // SAFETY: `desc` is a valid descriptor: contract of `must_fit`, or that of an open relation.
    // Columns are never taken out of one, and `i` is checked.
    let now = unsafe {
        if i < (*desc).natts as usize {
            type_of(desc, i)
        } else {
            stored
        }
    };
    now != stored && now != pg_sys::InvalidOid && stored != pg_sys::InvalidOid
}

/// Can a stored value be read as one of another type? As ATColumnChangeRequiresRewrite has it.
fn is_readable(stored: Oid, to: Oid) -> bool {
    const TIMES: [Oid; 2] = [pg_sys::TIMESTAMPOID, pg_sys::TIMESTAMPTZOID];
    // SAFETY: catalog look-ups: getBaseType answers the OID of any type of a column.
    let (stored, to) = unsafe { (pg_sys::getBaseType(stored), pg_sys::getBaseType(to)) };
    // SAFETY: a catalog look-up: any pair of OIDs is answered.
    stored == to || TIMES.contains(&stored) && TIMES.contains(&to) || unsafe { pg_sys::IsBinaryCoercible(stored, to) }
}

/// Raises an error if stored rows of a relation cannot be read by a descriptor (INV-LAYOUT).
///
/// # Safety
/// An open relation and a valid descriptor.
#[inline]
pub unsafe fn must_fit(r: pg_sys::Relation, desc: pg_sys::TupleDesc) {
    if any() {
        // SAFETY: `r` is open, and `desc` valid (contract of this function).
        unsafe { compare(r, desc) }
    }
}

#[cold]
unsafe fn compare(r: pg_sys::Relation, desc: pg_sys::TupleDesc) {
    // SAFETY: `r` is open, and `desc` valid: contract of `must_fit`. `is_other` is true only of a
    // column that `desc` has.
    unsafe {
        let stored = find(r, |t| t.types.clone()).unwrap_or_default();
        let wrong = |(i, &s): (usize, &Oid)| is_other(desc, i, s) && !is_readable(s, type_of(desc, i));
        if stored.iter().enumerate().any(wrong) {
            let name = crate::pg::text::shown(&crate::pg::text::read((*(*r).rd_rel).relname.data.as_ptr()));
            complain(
                PgSqlErrorCode::ERRCODE_OBJECT_IN_USE,
                &format!("table \"{name}\" is being rewritten by ALTER TABLE"),
                "Functions that ALTER TABLE calls cannot use the table itself.",
            );
        }
    }
}

/// Raises an error if a statement that is about to start would read such rows.
///
/// # Safety
/// A valid plan, whose tables are locked.
#[cold]
pub unsafe fn check_statement(stmt: *mut pg_sys::PlannedStmt) {
    // SAFETY: `stmt` is a valid plan, whose tables are locked (contract of this function).
    // Relations are closed again, by an ERROR's clean-up if it comes to that.
    unsafe {
        for e in pgrx::PgList::<pg_sys::RangeTblEntry>::from_pg((*stmt).rtable).iter_ptr() {
            if (*e).rtekind != pg_sys::RTEKind::RTE_RELATION {
                continue;
            }
            let r = pg_sys::RelationIdGetRelation((*e).relid);
            if !r.is_null() {
                if rel::is_ours(r) {
                    must_fit(r, (*r).rd_att);
                }
                pg_sys::RelationClose(r);
            }
        }
    }
}
