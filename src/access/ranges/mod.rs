//! Keys of rows and scans in the engine's logical ranges (ROCC).
//!
//! An index gets ranges at its first scan in a SERIALIZABLE transaction. From then on every write
//! tells the engine its row's key in that index ([`note`]); a write that does not is taken for one
//! whose key is unknown, which is right but not precise. Scans give the intervals that they read
//! (`keys/bounds.rs`).

pub mod conditions;
mod index;
pub mod rows;

pub use index::{of_index, usable, whole, Ranged};

use crate::access::partitions;
use crate::pg::local::Local;
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::rel::RelInfo;
use crate::state::xact;
use mixedcc_engine::protocol::Touch;
use pgrx::pg_sys;
use rows::{Row, Rows};

/// Of the process: room for a key. Taken while it is used.
static KEY: Local<Vec<u8>> = Local::new(Vec::new());

/// Tells the engine the keys of a buffered write.
///
/// # Safety
/// An open relation of ours; `n` is a write of the row's table.
#[inline]
pub unsafe fn note(rel: pg_sys::Relation, info: &RelInfo, n: u32, row: Row) {
    let generation = info.table.ranges_generation();
    if generation == 0 {
        return;
    }
    // SAFETY: `rel` is open and of ours, and `n` is a write of its row (contract of this function).
    unsafe { note_keys(rel, info, n, row, generation, None) };
}

/// The same for a row that is new. `made`: its key in an index, as that index's codec makes it, if
/// the caller has it.
///
/// # Safety
/// As for [`note`].
#[inline]
pub unsafe fn note_new(rel: pg_sys::Relation, info: &RelInfo, n: u32, row: Row, made: Option<(pg_sys::Oid, &[u8])>) {
    let generation = info.table.ranges_generation();
    if generation == 0 {
        return;
    }
    // Most tables have ranges of one index, and that is the one.
    if let (Some((index, key)), true) = (made, info.active.generation.get() == generation) {
        let one = match info.active.list.borrow()[..] {
            [(ranges, codec)] if codec.index == index => Some(ranges),
            _ => None,
        };
        if let Some(ranges) = one {
            if !ranges.is_dormant() {
                ok(xact::txn().note_key(&PG, n, ranges, Some(key)));
            }
            return;
        }
    }
    // SAFETY: `rel` is open and of ours, and `n` is a write of its row (contract of this function).
    unsafe { note_keys(rel, info, n, row, generation, made) };
}

/// Has [`note`] nothing to tell of writes of a relation? Neither fails nor calls anybody. (Ranges
/// that awake behind this take the write for one of an unknown key.)
#[inline]
pub fn nothing_to_note(info: &RelInfo) -> bool {
    let generation = info.table.ranges_generation();
    let asleep = || info.active.list.borrow().iter().all(|(ranges, _)| ranges.is_dormant());
    generation == 0 || info.active.generation.get() == generation && asleep()
}

unsafe fn note_keys(
    rel: pg_sys::Relation,
    info: &RelInfo,
    n: u32,
    row: Row,
    generation: u64,
    made: Option<(pg_sys::Oid, &[u8])>,
) {
    if info.active.generation.get() != generation {
        // SAFETY: `rel` is open and of ours: contract of `note`.
        unsafe { refresh(rel, info, generation) };
    }
    let count = info.active.list.borrow().len();
    for i in 0..count {
        let (ranges, codec) = info.active.list.borrow()[i];
        if ranges.is_dormant() {
            continue;
        }
        if let Some((_, key)) = made.filter(|(index, _)| *index == codec.index) {
            ok(xact::txn().note_key(&PG, n, ranges, Some(key)));
            continue;
        }
        let mut key = KEY.take();
        key.clear();
        // SAFETY: `rel` is open and `row` is of it: contract of `note`. `codec` is that of an index
        // of it, which exists while the table is locked.
        let there = unsafe { Rows::new(rel, codec).key(row, &mut key) };
        ok(xact::txn().note_key(&PG, n, ranges, there.map(|()| &key[..])));
        KEY.set(key);
    }
}

/// A row is inserted in a subtransaction, before its unique checks; an update may have moved it. If
/// they find none like it and the insert is undone, none may come: the engine is told which keys
/// they are, and where their predicates would start. For a check without such a key, as that of an
/// exclusion constraint, the predicates would be the table's partitions. Constraints that are
/// checked at the end of the statement count, too, as the client learns of that.
///
/// # Safety
/// An open relation of ours; the row is of it, and goes to the partition `at`.
pub unsafe fn note_absent(rel: pg_sys::Relation, info: &RelInfo, at: Touch, row: Row) {
    // SAFETY: `rel` is open and of ours, and `row` is of it (contract of this function). Its
    // indexes exist while it is locked; they are closed again, by an ERROR's clean-up if it comes
    // to that.
    unsafe {
        let list = pg_sys::RelationGetIndexList(rel);
        for oid in pgrx::PgList::<pg_sys::Oid>::from_pg(list).iter_oid() {
            let index = pg_sys::index_open(oid, pg_sys::AccessShareLock as i32);
            let form = (*index).rd_index;
            match ((*form).indisunique, (*form).indisexclusion) {
                (true, _) => absent_key(rel, info, index, at, row),
                (_, true) => partitions::note_absent(info),
                _ => (),
            }
            pg_sys::index_close(index, pg_sys::NoLock as i32);
        }
        pg_sys::list_free(list);
    }
}

unsafe fn absent_key(rel: pg_sys::Relation, info: &RelInfo, index: pg_sys::Relation, at: Touch, row: Row) {
    // SAFETY: `rel` and `index` are open, and `row` is of `rel`: `note_absent` has opened the
    // index.
    unsafe {
        let Some(ranged) = of_index(rel, info, index) else {
            partitions::note_absent(info);
            return;
        };
        let mut key = Vec::new();
        if Rows::new(rel, ranged.codec).key(row, &mut key).is_some() {
            let look = ok(xact::txn().look_position(&PG, at, ranged.ranges, &key));
            xact::txn().note_absent(look, &key);
        }
    }
}

/// Makes the list of the indexes that have ranges.
#[cold]
unsafe fn refresh(rel: pg_sys::Relation, info: &RelInfo, generation: u64) {
    // SAFETY: `rel` is open: contract of `note`. Its indexes exist while it is locked; each is
    // closed again, by an ERROR's clean-up if it comes to that. The list is a copy, freed once.
    unsafe {
        let list = pg_sys::RelationGetIndexList(rel);
        let mut found = Vec::new();
        for oid in pgrx::PgList::<pg_sys::Oid>::from_pg(list).iter_oid() {
            let Some(ranges) = info.table.ranges(oid.to_u32() as u64) else { continue };
            let index = pg_sys::index_open(oid, pg_sys::AccessShareLock as i32);
            if let Some(codec) = crate::keys::codec::of(index) {
                found.push((ranges, codec));
            }
            pg_sys::index_close(index, pg_sys::NoLock as i32);
        }
        pg_sys::list_free(list);
        *info.active.list.borrow_mut() = found;
        info.active.generation.set(generation);
    }
}
