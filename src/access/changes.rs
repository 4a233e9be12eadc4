//! Changes of rows for logical decoding, one WAL record for each, at the moment of the write. The
//! record of a commit would not do: it has the last version of each row alone.
//!
//! **INV-CHANGES**: Each insert, update and delete of a row of a permanent table inserts one record
//! into WAL, if `wal_level` is logical. It does so before the session's next write, under the id of
//! its subtransaction. The record has what heap's would have of the old row (replica identity). So
//! the changes of a committed transaction are decoded as those of the same statements on heap.

use crate::access::tuple;
use crate::pg::errors::complain;
use crate::pg::faults::{self, Fault};
use crate::pg::{self, compat, stored, wal, Tid};
use mixedcc_engine::durable::wal::{Action, Change, Old, Op};
use mixedcc_engine::durable::Storage;
use mixedcc_engine::record::Version;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ptr::NonNull;

/// The most bytes of one record: PostgreSQL reads none of 1 GB.
const MOST: usize = 1000 << 20;

/// Are changes of this table logged for decoding?
///
/// # Safety
/// An open relation.
#[inline]
pub unsafe fn are_logged(rel: pg_sys::Relation) -> bool {
    // SAFETY: the contract of this function.
    wal::is_logical() && unsafe { compat::is_permanent(rel) }
}

/// A row was inserted.
///
/// # Safety
/// An open relation of ours, and a version of it that is ours or that our pin keeps.
#[inline]
pub unsafe fn inserted(rel: pg_sys::Relation, new: NonNull<Version>) {
    // SAFETY: the contract of this function.
    unsafe {
        if are_logged(rel) {
            log(rel, Action::Insert, Some(new), None);
        }
    }
}

/// A row was replaced.
///
/// # Safety
/// As for [`inserted`].
#[inline]
pub unsafe fn updated(rel: pg_sys::Relation, old: NonNull<Version>, new: NonNull<Version>) {
    // SAFETY: the contract of this function.
    unsafe {
        if are_logged(rel) {
            log(rel, Action::Update, Some(new), Some(old));
        }
    }
}

/// A row was deleted.
///
/// # Safety
/// As for [`inserted`].
#[inline]
pub unsafe fn deleted(rel: pg_sys::Relation, old: NonNull<Version>) {
    // SAFETY: the contract of this function.
    unsafe {
        if are_logged(rel) {
            log(rel, Action::Delete, None, Some(old));
        }
    }
}

/// The columns of a version.
unsafe fn columns<'a>(v: NonNull<Version>) -> &'a [u8] {
    // SAFETY: `v` is ours, or our pin keeps it: contract of `inserted` and the others.
    unsafe {
        let payload = std::slice::from_raw_parts(tuple::header(v.as_ptr()).cast::<u8>(), v.as_ref().len as usize);
        stored::columns(payload)
    }
}

#[cold]
unsafe fn log(rel: pg_sys::Relation, action: Action, new: Option<NonNull<Version>>, old: Option<NonNull<Version>>) {
    // SAFETY: `rel` is open, and the versions are as for `inserted`. The key is a tuple of the
    // current memory context.
    unsafe {
        let key = old.map(|old| identity(rel, old, new));
        let old = match key {
            None | Some(Identity::Nothing) => Old::Nothing,
            Some(Identity::Key(tuple)) => {
                let bytes = std::slice::from_raw_parts((*tuple).t_data.cast::<u8>(), (*tuple).t_len as usize);
                Old::Key(stored::columns(bytes))
            }
            Some(Identity::Whole(v)) => Old::Whole(columns(v)),
        };
        let old = if faults::on(Fault::OldKeyLeftOut) { Old::Nothing } else { old };
        let storage = Storage::from(compat::storage_key(&compat::storage_of(rel)));
        let change = Change { storage, action, new: new.map(|v| columns(v)), old };
        let (head, [new, old]) = (change.head(), change.rows());
        if head.len() + new.len() + old.len() > MOST {
            complain(
                PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
                "a row is too large for logical decoding",
                "Give the table another replica identity than FULL, or set wal_level to replica.",
            );
        }
        wal::log_alone(Op::Change, &[&head, new, old]);
        if let Some(Identity::Key(tuple)) = key {
            pg_sys::heap_freetuple(tuple);
        }
    }
}

/// What tells a subscriber which row it was.
#[derive(Clone, Copy)]
enum Identity {
    Nothing,
    /// A tuple with the columns of the key, and NULL for the others.
    Key(pg_sys::HeapTuple),
    Whole(NonNull<Version>),
}

/// The old row as the replica identity of the table wants it, as heap logs it. The key is left out
/// where an update keeps it: the new row has it.
unsafe fn identity(rel: pg_sys::Relation, old: NonNull<Version>, new: Option<NonNull<Version>>) -> Identity {
    // SAFETY: `rel` is open, and the versions are as for `inserted`. The arrays have an entry for
    // each column, and are freed here; what `heap_form_tuple` returns is a copy.
    unsafe {
        match (*(*rel).rd_rel).relreplident as u8 {
            pg_sys::REPLICA_IDENTITY_NOTHING => return Identity::Nothing,
            pg_sys::REPLICA_IDENTITY_FULL => return Identity::Whole(old),
            _ => {}
        }
        let desc = (*rel).rd_att;
        let natts = (*desc).natts as usize;
        let key = compat::identity_columns(rel);
        let has = |at: usize| pg_sys::bms_is_member(at as i32 + 1 - pg_sys::FirstLowInvalidHeapAttributeNumber, key);
        let same = new.is_some_and(|new| (0..natts).filter(|at| has(*at)).all(|at| is_same(desc, at, old, new)));
        if pg_sys::bms_next_member(key, -1) < 0 || same {
            pg_sys::bms_free(key);
            return Identity::Nothing;
        }
        let values = pg_sys::palloc(natts * size_of::<pg_sys::Datum>()).cast::<pg_sys::Datum>();
        let nulls = pg_sys::palloc(natts).cast::<bool>();
        tuple::deform(rel, old.as_ptr(), values, nulls);
        (0..natts).filter(|at| !has(*at)).for_each(|at| *nulls.add(at) = true);
        let formed = pg_sys::heap_form_tuple(desc, values, nulls);
        pg_sys::pfree(values.cast());
        pg_sys::pfree(nulls.cast());
        pg_sys::bms_free(key);
        Identity::Key(formed)
    }
}

/// Has a column (from 0) the same bytes in both versions? If not, the old key is logged, which is
/// right, too, where it is the same value, compressed in one of them only (INV-PACKED).
unsafe fn is_same(desc: pg_sys::TupleDesc, at: usize, old: NonNull<Version>, new: NonNull<Version>) -> bool {
    // SAFETY: versions of rows with this descriptor, as for `inserted`.
    unsafe {
        let value = |v: NonNull<Version>| {
            tuple::column(&mut tuple::as_tuple(v.as_ptr(), Tid::Record(0), pg_sys::InvalidOid), desc, at)
        };
        let ((a, a_null), (b, b_null)) = (value(old), value(new));
        let att = compat::attribute(desc, at);
        a_null == b_null && (a_null || pg::same(a, b, att.attbyval, att.attlen.into()))
    }
}
