//! Which kinds of tables a SERIALIZABLE transaction has used. The hooks see the tables that a
//! statement names, and the partitions to which it has routed rows. PostgreSQL's counters of writes
//! tell of the tables that COPY, TRUNCATE, subscriptions and C code have changed. What functions in
//! parallel workers have used they tell their leader.

use super::super::Touched;
use crate::pg::compat;
use crate::pg::local::Local;
use crate::state::platform::PG;
use crate::state::{rel, slots};
use mixedcc_engine::platform::Platform;
use mixedcc_engine::primitive::{AtomicU8, Ordering};
use pgrx::pg_sys;

const OURS: u8 = 1;
const OTHERS: u8 = 2;
const FOREIGN: u8 = 4;

/// What workers have told, by the PGPROC of their leader. Of the process: written by the start-up
/// hook of shared memory.
static TOLD: Local<*const AtomicU8> = Local::new(std::ptr::null());

/// Bytes of shared memory.
pub fn size() -> usize {
    slots::procs()
}

/// Finds the block, or makes it.
///
/// # Safety
/// Called by the start-up hook of shared memory, with AddinShmemInitLock.
pub unsafe fn startup() {
    let mut found = false;
    // SAFETY: the contract of this function. The new block has `size()` bytes.
    unsafe {
        let p = pg_sys::ShmemInitStruct(c"mixedcc kinds".as_ptr(), size(), &mut found);
        if !found {
            p.cast::<u8>().write_bytes(0, size());
        }
        TOLD.set(p.cast_const().cast());
    }
}

fn told(leader: compat::ProcNo) -> &'static AtomicU8 {
    // SAFETY: the start-up hook wrote `TOLD` before a process comes here, with a byte for each
    // PGPROC of a process that may have tables of ours.
    unsafe { &*TOLD.get().add(leader as usize) }
}

/// A table of another access method that takes part in transactions: no catalog, not temporary.
///
/// # Safety
/// The relation is null or open.
pub unsafe fn is_other(r: pg_sys::Relation) -> bool {
    // SAFETY: `r` is null or open (contract of this function).
    unsafe {
        if r.is_null() || rel::is_ours(r) || (*r).rd_tableam.is_null() {
            return false;
        }
        let form = (*r).rd_rel;
        let kind = (*form).relkind as u8;
        (kind == pg_sys::RELKIND_RELATION || kind == pg_sys::RELKIND_MATVIEW)
            && (*form).relpersistence as u8 != pg_sys::RELPERSISTENCE_TEMP
            && (*r).rd_id.to_u32() >= pg_sys::FirstNormalObjectId
    }
}

/// # Safety
/// The relation is null or open.
pub unsafe fn is_foreign(r: pg_sys::Relation) -> bool {
    // SAFETY: `r` is null or open (contract of this function).
    unsafe { !r.is_null() && (*(*r).rd_rel).relkind as u8 == pg_sys::RELKIND_FOREIGN_TABLE }
}

/// Notes a relation that is used.
///
/// # Safety
/// The relation is null or open.
pub unsafe fn note(t: &mut Touched, r: pg_sys::Relation) {
    // SAFETY: the contract of this function.
    unsafe {
        t.ours |= rel::is_ours(r);
        t.others |= is_other(r);
        t.foreign |= is_foreign(r);
    }
}

/// Notes the tables in which the running transaction has written. If PostgreSQL has not
/// counted them, one that has a transaction id may have written in heap.
pub fn note_written(t: &mut Touched) {
    let Some(written) = compat::written_relations() else {
        t.others |= PG.has_written();
        return;
    };
    for oid in written.into_iter().filter(|oid| oid.to_u32() >= pg_sys::FirstNormalObjectId) {
        // SAFETY: a transaction is running. An OID of a table that was dropped gives null. The
        // relation is open while it is looked at; an ERROR closes it with the transaction.
        unsafe {
            let r = pg_sys::RelationIdGetRelation(oid);
            if !r.is_null() {
                note(t, r);
                pg_sys::RelationClose(r);
            }
        }
    }
}

/// This parallel worker tells its leader what its statements use.
pub fn tell_leader(t: &Touched) {
    let kinds = if t.ours { OURS } else { 0 } | if t.others { OTHERS } else { 0 } | if t.foreign { FOREIGN } else { 0 };
    told(compat::leader_proc()).fetch_or(kinds, Ordering::SeqCst);
}

/// Notes what the workers of this transaction have used. False: nothing.
pub fn note_told(t: &mut Touched) -> bool {
    // Workers have ended when the leader asks.
    let kinds = told(compat::my_proc()).load(Ordering::SeqCst);
    t.ours |= kinds & OURS != 0;
    t.others |= kinds & OTHERS != 0;
    t.foreign |= kinds & FOREIGN != 0;
    kinds != 0
}

/// The transaction has ended.
pub fn forget_told() {
    let told = told(compat::my_proc());
    if told.load(Ordering::SeqCst) != 0 {
        told.store(0, Ordering::SeqCst);
    }
}
