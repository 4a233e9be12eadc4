//! Which indexes a relation should have in memory: by its definition, and by the files of its
//! indexes.

use crate::keys::codec::{self, Codec};
use crate::pg::compat;
use crate::state::rel;
use mixedcc_engine::record::INDEXES;
use pgrx::pg_sys::{self, Oid};

/// An index in memory that a relation should have.
pub struct Wanted {
    /// See [`Primary::spec`].
    pub spec: Vec<u8>,
    /// Are the key's columns all that its index has, so that it can be hollow?
    pub whole: bool,
    /// The key's index.
    pub index: Oid,
    /// Is it that of a PRIMARY KEY?
    pub declared: bool,
    /// Is a NULL in its key like another one (NULLS NOT DISTINCT)?
    pub(super) alike: bool,
    pub(super) codec: &'static Codec,
}

/// The indexes in memory that a relation asks for: those of its hollow unique indexes, and of its
/// PRIMARY KEY if a number is left for it.
///
/// # Safety
/// An open relation of ours.
pub unsafe fn wanted(rel: pg_sys::Relation) -> Vec<Wanted> {
    // SAFETY: `rel` is open and of ours (contract of this function).
    unsafe { with_hollow(rel, &hollow_uniques(rel)) }
}

/// The same, if these unique indexes are hollow. Some may not fit any more.
unsafe fn with_hollow(rel: pg_sys::Relation, hollow: &[Oid]) -> Vec<Wanted> {
    // SAFETY: `rel` is open and of ours: contract of the callers. The indexes are its own, or
    // gone.
    unsafe {
        let unique = |oid: &Oid| with_index(*oid, |index| of_unique(rel, index, true))?;
        let mut all: Vec<Wanted> = hollow.iter().filter_map(unique).take(INDEXES).collect();
        if all.len() < INDEXES {
            all.extend(of_primary_key(rel));
        }
        all
    }
}

/// The specs of the indexes in memory that a relation asks for.
///
/// # Safety
/// As for [`wanted`].
pub unsafe fn specs(rel: pg_sys::Relation) -> Vec<Vec<u8>> {
    // SAFETY: `rel` is open and of ours (contract of this function).
    unsafe { wanted(rel) }.into_iter().map(|w| w.spec).collect()
}

/// The same, where the relation's files are not as they were committed. `hollow`: the unique
/// indexes that were hollow then. It takes no lock of them: another session that builds one may
/// wait for the caller.
///
/// # Safety
/// As for [`wanted`].
pub unsafe fn specs_of_committed(rel: pg_sys::Relation, hollow: &[Oid]) -> Vec<Vec<u8>> {
    // SAFETY: `rel` is open and of ours (contract of this function). An index in its list exists
    // while the table is locked.
    unsafe {
        let there: Vec<Oid> = hollow.iter().copied().filter(|oid| has_index(rel, *oid)).collect();
        with_hollow(rel, &there).into_iter().map(|w| w.spec).collect()
    }
}

/// The index in memory that the PRIMARY KEY of a relation asks for.
unsafe fn of_primary_key(rel: pg_sys::Relation) -> Option<Wanted> {
    // SAFETY: `rel` is open and of ours: contract of the callers. The key's index exists while its
    // table is locked.
    unsafe {
        let index = compat::primary_key_index(rel);
        (index != pg_sys::InvalidOid).then(|| with_index(index, |index| wanted_of(index)))??
    }
}

/// Runs `f` with an index of a locked table, for a look at its definition and its file. It does not
/// wait for the index's lock, and keeps none: a session that builds the index may wait for the
/// caller. The file of before stays until that session has committed. `None`: the index is gone.
pub(super) unsafe fn with_index<R>(oid: Oid, f: impl FnOnce(pg_sys::Relation) -> R) -> Option<R> {
    // SAFETY: any OID can be locked, and is answered, by an index or null. The index is open while
    // `f` runs. An ERROR gives back both.
    unsafe {
        let mode = pg_sys::AccessShareLock as i32;
        let is_locked = pg_sys::ConditionalLockRelationOid(oid, mode);
        if !is_locked {
            pg_sys::AcceptInvalidationMessages(); // as a lock does
        }
        let index = pg_sys::RelationIdGetRelation(oid);
        let result = (!index.is_null()).then(|| {
            let result = f(index);
            pg_sys::RelationClose(index);
            result
        });
        if is_locked {
            pg_sys::UnlockRelationOid(oid, mode);
        }
        result
    }
}

/// The index in memory that an index asks for, if it is that of a PRIMARY KEY.
///
/// # Safety
/// An open index of a relation of ours.
pub unsafe fn wanted_of(index: pg_sys::Relation) -> Option<Wanted> {
    // SAFETY: `index` is open while its fields are read (contract of this function).
    unsafe {
        let form = (*index).rd_index;
        let fits = (*form).indisprimary && (*form).indisvalid && (*form).indisunique && (*form).indimmediate;
        let codec = if fits { codec::of(index) } else { None }?;
        let whole = (*form).indnatts == (*form).indnkeyatts;
        Some(Wanted { spec: codec.spec()?, whole, index: (*index).rd_id, declared: true, alike: false, codec })
    }
}

/// The index in memory that a unique index may have which is no PRIMARY KEY. It need not be valid:
/// while DROP INDEX CONCURRENTLY waits, writers keep it up. `has`: it has one already, and keeps it
/// if its columns' types have got other operator classes by default.
pub(super) unsafe fn of_unique(rel: pg_sys::Relation, index: pg_sys::Relation, has: bool) -> Option<Wanted> {
    // SAFETY: `rel` and `index` are open, and `index` is of `rel`: contract of the callers. Each
    // key column that is no expression is a column of `rel`.
    unsafe {
        let form = &*(*index).rd_index;
        let is_checked = form.indisunique && form.indimmediate && form.indisready && form.indislive;
        let whole = form.indnatts == form.indnkeyatts;
        if !is_checked || form.indisprimary || form.indisexclusion || !whole {
            return None;
        }
        let codec = codec::of(index)?;
        let spec = codec.spec_of_index()?;
        let plain = |i: usize| {
            is_plain(rel, index, i, codec.attnums[i], has) && !codec.attnums[..i].contains(&codec.attnums[i])
        };
        (0..codec.attnums.len()).all(plain).then_some(Wanted {
            spec,
            whole,
            index: codec.index,
            declared: false,
            alike: form.indnullsnotdistinct,
            codec,
        })
    }
}

/// Is a key column of an index one that a PRIMARY KEY may have: a column that is never NULL, in the
/// order and with the operators and the collation of its type? `has`: the operators were those of
/// its type once. The keys are of the index's own.
unsafe fn is_plain(rel: pg_sys::Relation, index: pg_sys::Relation, i: usize, attnum: i16, has: bool) -> bool {
    // SAFETY: `rel` and `index` are open, and `i` is one of the index's key columns: contract of
    // `of_unique`. Catalog look-ups of types and operator classes that exist.
    unsafe {
        if attnum <= 0 || *(*index).rd_indoption.add(i) != 0 {
            return false;
        }
        let att = compat::attribute((*rel).rd_att, attnum as usize - 1);
        let is_default = || {
            let class = pg_sys::GetDefaultOpClass(att.atttypid, pg_sys::Oid::from(pg_sys::BTREE_AM_OID));
            class != pg_sys::InvalidOid && *(*index).rd_opfamily.add(i) == pg_sys::get_opclass_family(class)
        };
        compat::is_never_null((*rel).rd_att, attnum as usize - 1)
            && *(*index).rd_indcollation.add(i) == att.attcollation
            && (has || is_default())
    }
}

/// The index in memory that an index asks for.
pub(super) unsafe fn wanted_by(rel: pg_sys::Relation, index: pg_sys::Relation) -> Option<Wanted> {
    // SAFETY: `rel` and `index` are open: contract of the callers.
    unsafe { wanted_of(index).or_else(|| of_unique(rel, index, true)) }
}

/// The hollow indexes of a relation but that of a PRIMARY KEY. They may have become ones that
/// cannot be in memory, as by USING INDEX ... DEFERRABLE.
///
/// # Safety
/// An open relation of ours.
pub unsafe fn hollow_uniques(rel: pg_sys::Relation) -> Vec<Oid> {
    let is_one = |index: pg_sys::Relation| {
        // SAFETY: `index` is open while its fields are read.
        unsafe {
            let may_be = (*(*index).rd_index).indisunique && !wanted_of(index).is_some_and(|w| w.whole);
            let is_btree = (*(*index).rd_rel).relam == Oid::from(pg_sys::BTREE_AM_OID);
            may_be && is_btree && compat::is_hollow(index)
        }
    };
    // SAFETY: `rel` is open (contract of this function).
    unsafe { indexes_that(rel, is_one) }
}

/// The same, and those that have an index in memory: one that a canceled DROP INDEX CONCURRENTLY
/// has left is in no list of indexes.
///
/// # Safety
/// An open relation of ours.
pub unsafe fn uniques_in_memory(rel: pg_sys::Relation) -> Vec<Oid> {
    // SAFETY: `rel` is open and of ours (contract of this function).
    unsafe {
        let mut all = hollow_uniques(rel);
        // A table that is not loaded has none left.
        let table = rel::known_table_of(rel).into_iter();
        all.extend(table.flat_map(|t| t.uniques()).filter_map(|(_, i)| codec::index_of_spec(i.spec())));
        all
    }
}

/// The relation's indexes of which `f` says so, in the order of their OIDs.
pub(super) unsafe fn indexes_that(rel: pg_sys::Relation, f: impl Fn(pg_sys::Relation) -> bool) -> Vec<Oid> {
    // SAFETY: `rel` is open: contract of the callers. The list is a copy, freed once. Its indexes
    // exist while the table is locked.
    unsafe {
        let list = pg_sys::RelationGetIndexList(rel);
        let all = pgrx::PgList::<Oid>::from_pg(list);
        let found = all.iter_oid().filter(|oid| with_index(*oid, &f) == Some(true)).collect();
        pg_sys::list_free(list);
        found
    }
}

/// Is it one of the relation's indexes that are not being dropped?
pub(super) unsafe fn has_index(rel: pg_sys::Relation, oid: Oid) -> bool {
    // SAFETY: `rel` is open: contract of the callers. The list is a copy, freed once.
    unsafe {
        let list = pg_sys::RelationGetIndexList(rel);
        let found = pg_sys::list_member_oid(list, oid);
        pg_sys::list_free(list);
        found
    }
}
