//! Conditions of scans of indexes that have no ranges (GiST, GIN, SP-GiST, BRIN): a row that is
//! inserted is a conflict only if it meets them.
//!
//! A condition is judged when the transaction validates, in the middle of whatever it does or at
//! its commit. So it is made of PostgreSQL's own functions alone, which are immutable, and of
//! copies.

use crate::access::tuple;
use crate::pg::expr::is_foreign;
use crate::pg::local::Local;
use crate::pg::Tid;
use mixedcc_engine::record::Version;
use pgrx::pg_sys::{self, Datum, ScanKeyData};

/// A column that is compared with a value.
struct Comparison {
    attnum: i16,
    collation: pg_sys::Oid,
    function: pg_sys::FmgrInfo,
    argument: Datum,
}

enum Term {
    Compares(Comparison),
    IsNull(i16),
    IsNotNull(i16),
    /// An operator with NULL: no row meets it.
    Never,
}

/// The terms of a scan: a row meets all of them.
struct Condition {
    table: pg_sys::Oid,
    desc: pg_sys::TupleDesc,
    terms: Vec<Term>,
}

/// Of the transaction: its conditions, by number, and memory for what they allocate while they are
/// judged.
static CONDITIONS: Local<Vec<Condition>> = Local::new(Vec::new());
static ROOM: Local<pg_sys::MemoryContext> = Local::new(std::ptr::null_mut());

fn all() -> &'static mut Vec<Condition> {
    // SAFETY: a process has one thread, and no caller keeps the reference over a call that comes
    // back here. Functions of conditions are PostgreSQL's own and immutable.
    unsafe { CONDITIONS.get_mut() }
}

/// Forgets what belonged to the transaction.
pub fn end_transaction() {
    all().clear();
    ROOM.set(std::ptr::null_mut()); // it goes with the memory of the top transaction
}

/// The number of the condition that a scan of an index with these keys has; `None`: it is not known
/// what it wants.
///
/// # Safety
/// An open table of ours, an open index of it, and keys of a scan of that index.
pub unsafe fn of_scan(rel: pg_sys::Relation, index: pg_sys::Relation, keys: &[ScanKeyData]) -> Option<u32> {
    if keys.is_empty() || all().len() >= mixedcc_engine::txn::MAX_CONDITIONS {
        return None;
    }
    // SAFETY: `rel` and `index` are open, and `keys` are those of a scan of the index (contract of
    // this function).
    unsafe {
        let terms: Option<Vec<Term>> = keys.iter().map(|k| term(index, k)).collect();
        let (terms, desc) = (terms?, desc_of(rel));
        all().push(Condition { table: (*rel).rd_id, desc, terms });
    }
    Some(all().len() as u32 - 1)
}

/// The columns of a table, in memory of the transaction.
unsafe fn desc_of(rel: pg_sys::Relation) -> pg_sys::TupleDesc {
    // SAFETY: `rel` is open: contract of `of_scan`. A known descriptor is a copy in the
    // transaction's memory, and goes with its condition.
    unsafe {
        let natts = (*(*rel).rd_att).natts;
        let known = all().iter().find(|c| c.table == (*rel).rd_id && (*c.desc).natts == natts);
        known.map_or_else(|| in_transaction(|| pg_sys::CreateTupleDescCopyConstr((*rel).rd_att)), |c| c.desc)
    }
}

/// Runs `f` in the memory of the top transaction.
unsafe fn in_transaction<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: TopTransactionContext exists: a scan runs in a transaction. An ERROR sets the current
    // context itself.
    unsafe {
        let old = pg_sys::MemoryContextSwitchTo(pg_sys::TopTransactionContext);
        let r = f();
        pg_sys::MemoryContextSwitchTo(old);
        r
    }
}

/// Is it a function of PostgreSQL itself that is immutable?
unsafe fn is_immutable(function: pg_sys::Oid) -> bool {
    // SAFETY: catalog look-ups: `function` is the function of an operator, which exists.
    unsafe {
        !is_foreign(function, std::ptr::null_mut())
            && pg_sys::func_volatile(function) as u8 == pg_sys::PROVOLATILE_IMMUTABLE
    }
}

unsafe fn term(index: pg_sys::Relation, k: &ScanKeyData) -> Option<Term> {
    // SAFETY: `index` is open, and `k` is a key of a scan of it: contract of `of_scan`. So its
    // number is that of a key column, for which the arrays have an entry.
    unsafe {
        let form = (*index).rd_index;
        let i = (k.sk_attno as usize).checked_sub(1)?;
        let attnum = *(*form).indkey.values.as_slice((*form).indnatts as usize).get(i)?;
        if attnum == 0 {
            return None; // an expression
        }
        match k.sk_flags as u32 & 0xffff {
            0 => {}
            f if f == pg_sys::SK_SEARCHNULL | pg_sys::SK_ISNULL => return Some(Term::IsNull(attnum)),
            f if f == pg_sys::SK_SEARCHNOTNULL | pg_sys::SK_ISNULL => return Some(Term::IsNotNull(attnum)),
            pg_sys::SK_ISNULL => return Some(Term::Never),
            _ => return None,
        }
        let left = *(*index).rd_opcintype.add(i);
        let right = if k.sk_subtype == pg_sys::InvalidOid { left } else { k.sk_subtype };
        let family = *(*index).rd_opfamily.add(i);
        let operator = pg_sys::get_opfamily_member(family, left, right, k.sk_strategy as i16);
        let function = if operator == pg_sys::InvalidOid { operator } else { pg_sys::get_opcode(operator) };
        if function == pg_sys::InvalidOid || !pg_sys::func_strict(function) || !is_immutable(function) {
            return None;
        }
        let (mut len, mut by_value) = (0, false);
        pg_sys::get_typlenbyval(right, &mut len, &mut by_value);
        let mut info = pg_sys::FmgrInfo::default();
        pg_sys::fmgr_info_cxt(function, &mut info, pg_sys::TopTransactionContext);
        let argument = in_transaction(|| crate::pg::copy(k.sk_argument, by_value, len as i32));
        Some(Term::Compares(Comparison { attnum, collation: k.sk_collation, function: info, argument }))
    }
}

/// Does a row meet a condition?
///
/// # Safety
/// A number of this transaction, and a version of its table with a row, which stays reachable.
pub unsafe fn meets(number: u32, row: *const Version) -> bool {
    let Some(c) = all().get_mut(number as usize) else { return true };
    // SAFETY: `row` is a version of the condition's table with a row, which stays reachable
    // (contract of this function). Descriptor, functions and arguments are copies that live as long
    // as the transaction.
    unsafe {
        let mut row = tuple::as_tuple(row, Tid::Record(0), c.table);
        let old = pg_sys::MemoryContextSwitchTo(room());
        let desc = c.desc;
        let met = c.terms.iter_mut().all(|t| {
            let mut column = |attnum: i16| {
                let mut null = false;
                let d = pg_sys::heap_getattr(&mut row, attnum as i32, desc, &mut null);
                (!null).then_some(d)
            };
            match t {
                Term::Never => false,
                Term::IsNull(attnum) => column(*attnum).is_none(),
                Term::IsNotNull(attnum) => column(*attnum).is_some(),
                Term::Compares(k) => column(k.attnum).is_some_and(|d| {
                    pg_sys::FunctionCall2Coll(&mut k.function, k.collation, d, k.argument) != Datum::from(0)
                }),
            }
        });
        pg_sys::MemoryContextSwitchTo(old);
        pg_sys::MemoryContextReset(room());
        met
    }
}

unsafe fn room() -> pg_sys::MemoryContext {
    // SAFETY: a process has one thread. The context is a child of the top transaction's;
    // `end_transaction` forgets it before that goes.
    unsafe {
        if ROOM.get().is_null() {
            ROOM.set(pg_sys::AllocSetContextCreateInternal(
                pg_sys::TopTransactionContext,
                c"mixedcc conditions".as_ptr(),
                pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
                pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            ));
        }
        ROOM.get()
    }
}
