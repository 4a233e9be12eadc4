//! A row by its primary key, directly.

use super::{Column, Value};
use crate::callbacks::dml;
use crate::fast::{find, primary};
use crate::hooks::executor;

use crate::pg::{self, Tid};
use crate::rel::{self, RelInfo};
use crate::{compat, tuple};
use pgrx::pg_sys::{self, Datum, LockTupleMode, TM_Result};

use std::cell::Cell;

thread_local! {
    /// Room for a key.
    static KEY: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The statement has to be run.
pub struct Statement;

/// What a change makes of a row.
pub enum Change {
    /// A column gets a value.
    Set(Column, Value),
    /// A value is added to a column.
    Add(Column, Value),
    /// The row goes.
    Remove,
}

/// Would a statement do nothing but read, or write, the row? `rights`: what it needs on the whole table.
unsafe fn is_plain(r: pg_sys::Relation, rights: &[u32], writes: bool) -> bool {
    // SAFETY: an open relation of ours.
    unsafe {
        let form = (*r).rd_rel;
        let user = pg_sys::GetUserId();
        let constr = (*(*r).rd_att).constr;
        rights.iter().all(|&right| compat::relation_rights((*r).rd_id, user, right))
            && !(*form).relrowsecurity
            && (!writes
                || (*r).trigdesc.is_null()
                    && !(*form).relispartition
                    && (constr.is_null() || (*constr).num_check == 0 && !(*constr).has_generated_stored)
                    && !pg_sys::XactReadOnly
                    && !pg_sys::IsInParallelMode())
    }
}

/// The bytes of a key, if all of its values compare exactly; and its partition, if that is known.
unsafe fn encode(info: &RelInfo, pk: &primary::PrimaryKey, values: &[Value], out: &mut Vec<u8>) -> Option<Option<u16>> {
    // SAFETY: values of their types, one for each column of the key, none NULL.
    unsafe {
        let mut datums = [Datum::from(0); pg_sys::INDEX_MAX_KEYS as usize];
        let mut types = [pg_sys::InvalidOid; pg_sys::INDEX_MAX_KEYS as usize];
        for (i, &(d, _, typid)) in values.iter().enumerate() {
            if typid == pg_sys::UNKNOWNOID || !pk.codec.put_foreign(i, d, typid, out) {
                return None;
            }
            (datums[i], types[i]) = (d, typid);
        }
        Some(pk.partition(info, &datums[..values.len()], &types[..values.len()]))
    }
}

/// Finds the row with a key as the active snapshot and the isolation level show it.
unsafe fn look(
    r: pg_sys::Relation,
    info: &RelInfo,
    values: &[Value],
    writes: bool,
) -> Result<Option<find::Found>, Statement> {
    // SAFETY: an open relation of ours, an active snapshot.
    unsafe {
        let Some(pk) = primary::usable(r, info).filter(|pk| pk.codec.attnums.len() == values.len()) else {
            return Err(Statement);
        };
        let mut key = KEY.take();
        key.clear();
        let Some(partition) = encode(info, pk, values, &mut key) else {
            KEY.set(key);
            return Err(Statement);
        };
        let found = find::by_key(r, info, pk, &key, partition, pg::raw::GetActiveSnapshot(), writes);
        KEY.set(key);
        Ok(found)
    }
}

/// The row with a key as a value of the table's row type.
///
/// # Safety
/// An open relation of ours, an active snapshot; values of their types, none NULL. `rowtype`: the table's, or a domain over it.
pub unsafe fn get(r: pg_sys::Relation, values: &[Value]) -> Result<Option<Datum>, Statement> {
    // SAFETY: the caller's.
    unsafe {
        if !is_plain(r, &[pg_sys::ACL_SELECT], false) {
            return Err(Statement);
        }
        if pg::is_serializable() {
            executor::check_mixture(true, &[]);
        }
        let info = rel::info(r);
        let Some(found) = look(r, info, values, false)? else { return Ok(None) };
        Ok(Some(as_datum(r, found)))
    }
}

unsafe fn as_datum(r: pg_sys::Relation, found: find::Found) -> Datum {
    // SAFETY: the version is pinned; the descriptor is the table's.
    unsafe {
        let desc = (*r).rd_att;
        let mut t = tuple::as_tuple(found.version.as_ptr(), Tid::Record(found.r.no), (*r).rd_id);
        let columns = ((*t.t_data).t_infomask2 & pg_sys::HEAP_NATTS_MASK as u16) as i32;
        if columns == (*desc).natts {
            return pg_sys::heap_copy_tuple_as_datum(&mut t, desc);
        }
        // Columns that were added later get their values.
        let n = (*desc).natts as usize;
        let (mut values, mut nulls) = (vec![Datum::from(0); n], vec![false; n]);
        pg_sys::heap_deform_tuple(&mut t, desc, values.as_mut_ptr(), nulls.as_mut_ptr());
        let whole = pg_sys::heap_form_tuple(desc, values.as_mut_ptr(), nulls.as_mut_ptr());
        pg_sys::heap_copy_tuple_as_datum(whole, desc)
    }
}

/// Changes the row with a key. False: there is none.
///
/// # Safety
/// As [`get`]; the relation is locked for writers, and a command has begun.
pub unsafe fn change(r: pg_sys::Relation, values: &[Value], change: &Change) -> Result<bool, Statement> {
    // SAFETY: the caller's.
    unsafe {
        let (rights, column) = match change {
            Change::Remove => ([pg_sys::ACL_SELECT, pg_sys::ACL_DELETE], None),
            Change::Set(c, _) | Change::Add(c, _) => ([pg_sys::ACL_SELECT, pg_sys::ACL_UPDATE], Some(c)),
        };
        let info = rel::info(r);
        if !is_plain(r, &rights, true) || column.is_some_and(|c| info.moving[c.at]) {
            return Err(Statement);
        }
        let operand = match change {
            Change::Remove => None,
            Change::Set(c, v) => Some(assignable(r, c, *v)?),
            Change::Add(c, v) => {
                // A sum that does not fit into the column's modifier has to be cut or refused.
                let att = compat::attribute((*r).rd_att, c.at);
                if c.plus.is_none() || v.1 || att.atttypmod >= 0 {
                    return Err(Statement);
                }
                Some(v.0)
            }
        };
        if pg::is_serializable() {
            executor::check_mixture(true, &[]);
        }
        let Some(found) = look(r, info, values, true)? else { return Ok(false) };
        let tid = Tid::Record(found.r.no).item();
        match (change, operand) {
            (Change::Set(c, _), Some(d)) => update(r, found, tid, |v| v[c.at] = d, c.at),
            (Change::Add(c, _), Some(d)) => {
                let plus = c.plus.ok_or(Statement)?;
                let collation = compat::attribute((*r).rd_att, c.at).attcollation;
                update(r, found, tid, |v| v[c.at] = pg_sys::OidFunctionCall2Coll(plus, collation, v[c.at], d), c.at)
            }
            _ => delete(r, tid),
        }
    }
}

/// The value for a column, if nothing has to be done to it: same type, no modifier.
unsafe fn assignable(r: pg_sys::Relation, c: &Column, (d, null, typid): Value) -> Result<Datum, Statement> {
    // SAFETY: an open relation.
    let att = unsafe { compat::attribute((*r).rd_att, c.at) };
    if null || typid != att.atttypid || att.atttypmod >= 0 {
        return Err(Statement);
    }
    Ok(d)
}

/// Replaces the row by one with another value in column `at`, which is not NULL and stays so.
unsafe fn update(
    r: pg_sys::Relation,
    found: find::Found,
    mut tid: pg_sys::ItemPointerData,
    change: impl FnOnce(&mut [Datum]),
    at: usize,
) -> Result<bool, Statement> {
    // SAFETY: an open relation; the slot has its descriptor and is dropped here, or with its context.
    unsafe {
        let desc = (*r).rd_att;
        let n = (*desc).natts as usize;
        let slot = pg_sys::MakeSingleTupleTableSlot(desc, &pg_sys::TTSOpsVirtual);
        tuple::deform(r, found.version.as_ptr(), (*slot).tts_values, (*slot).tts_isnull);
        if *(*slot).tts_isnull.add(at) {
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            return Err(Statement);
        }
        change(std::slice::from_raw_parts_mut((*slot).tts_values, n));
        pg_sys::ExecStoreVirtualTuple(slot);
        (*slot).tts_tableOid = (*r).rd_id;
        let mut failed = pg_sys::TM_FailureData::default();
        let (mut mode, mut moved) = (LockTupleMode::LockTupleNoKeyExclusive, false);
        let (cid, snapshot) = (pg_sys::GetCurrentCommandId(true), pg::raw::GetActiveSnapshot());
        let none = std::ptr::null_mut();
        let result = dml::update(r, &mut tid, slot, cid, snapshot, none, &mut failed, &mut mode, &mut moved);
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        written(result)
    }
}

unsafe fn delete(r: pg_sys::Relation, mut tid: pg_sys::ItemPointerData) -> Result<bool, Statement> {
    // SAFETY: an open relation.
    unsafe {
        let mut failed = pg_sys::TM_FailureData::default();
        let (cid, snapshot) = (pg_sys::GetCurrentCommandId(true), pg::raw::GetActiveSnapshot());
        written(dml::delete(r, &mut tid, cid, snapshot, std::ptr::null_mut(), true, &mut failed, false))
    }
}

/// Somebody else has changed the row: the statement waits, looks again, or fails, as the level says.
fn written(result: TM_Result::Type) -> Result<bool, Statement> {
    if result == TM_Result::TM_Ok {
        Ok(true)
    } else {
        Err(Statement)
    }
}
