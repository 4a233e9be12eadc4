//! The programs of this backend's plans.
//!
//! A cached plan lies in a memory context of its own. An entry is made for it in that context, with
//! a callback that forgets the entry when the context goes: so an address never names a plan that
//! is gone. Plans that are run once (simple protocol) have no entry: their program lives as long as
//! the execution.

use super::program::{self, Program};
use super::{exec, indexes, Reason};
use crate::pg;
use crate::pg::changes;
use crate::pg::local::Local;
use crate::state::rel;
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::*;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Addresses are hashed by a multiplication.
#[derive(Default)]
struct Address(u64);
impl Hasher for Address {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("addresses are usize")
    }
    fn write_usize(&mut self, n: usize) {
        self.0 = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Plans = HashMap<usize, *mut Entry, BuildHasherDefault<Address>>;
/// Of the process: plans that live, each with its program or the reason why it has none.
static PLANS: Local<Option<Plans>> = Local::new(None);
/// Of the transaction: programs that were dropped in it while they were in use.
static DROPPED: Local<Vec<*mut Program>> = Local::new(Vec::new());
/// How often the process was told of a change.
static CHANGES: Local<u64> = Local::new(0);

/// The knowledge of a plan.
#[derive(Clone, Copy)]
enum Known {
    /// Nothing (yet, or any more).
    Nothing,
    Program(*mut Program),
    Refused(Reason),
}

/// In the memory of the plan.
#[repr(C)]
struct Entry {
    callback: pg_sys::MemoryContextCallback,
    plan: usize,
    known: Known,
}

fn plans() -> &'static mut Plans {
    // SAFETY: one thread, and no caller keeps the reference over a call that may come back here.
    unsafe { PLANS.get_mut().get_or_insert_with(Plans::default) }
}

/// Asks to be told of changes.
pub fn init() {
    changes::listen(relation_changed);
    // SAFETY: `_PG_init` runs alone; the callbacks are functions of ours, and backends inherit the
    // registrations.
    unsafe {
        use pg_sys::SysCacheIdentifier::*;
        // Rights (the database's owner is a member of pg_database_owner), functions, operators and
        // types of expressions.
        for cache in [AUTHOID, AUTHMEMROLEMEM, DATABASEOID, PROCOID, OPEROID, AMOPOPID, TYPEOID] {
            pg_sys::CacheRegisterSyscacheCallback(cache as i32, Some(catalog_changed), Datum::from(0));
        }
    }
}

/// The program of a statement's plan.
///
/// # Safety
/// A statement that is about to be run.
#[inline]
pub unsafe fn find(q: *mut pg_sys::QueryDesc) -> Result<*mut Program, Reason> {
    // SAFETY: `q` has a valid plan: contract of this function. `plan_gone` takes an entry out of
    // the hash before its memory goes. A program that an entry names lives (INV-BYPASS-PROGRAM).
    unsafe {
        if let Some(e) = plans().get(&((*q).plannedstmt as usize)) {
            match (**e).known {
                Known::Program(p)
                    if !(*p).broken
                        && (*p).user == pg::raw::GetUserId()
                        && program::knows((*p).params, (*q).params) =>
                {
                    return Ok(p)
                }
                Known::Refused(why) => return Err(why),
                _ => {}
            }
        }
        match make(q) {
            Made::Program(p) => Ok(p),
            Made::Refused(why) => Err(why),
        }
    }
}

enum Made {
    Program(*mut Program),
    Refused(Reason),
}

#[pg_guard]
#[cold]
#[allow(improper_ctypes_definitions)] // called from here only
unsafe extern "C-unwind" fn make(q: *mut pg_sys::QueryDesc) -> Made {
    // SAFETY: `q` is that of `find`: it has a valid plan, whose tables are locked.
    unsafe {
        let stmt = (*q).plannedstmt;
        // Nothing but the plan is looked at if its table is not ours.
        let rti = super::plan::table_of(stmt);
        if rti == 0 {
            return Made::Refused(Reason::Plan);
        }
        let before = CHANGES.get();
        let mut known = if is_ours(stmt, rti) { compile(q) } else { Known::Refused(Reason::Plan) };
        // What the process was told of meanwhile would have dropped it, had it been there.
        let cached = is_cached(stmt) && CHANGES.get() == before;
        if let (Known::Program(p), false) = (&mut known, cached) {
            (**p).once = true;
        }
        if cached && !matches!(known, Known::Refused(Reason::Rights)) {
            remember(stmt, known);
        }
        match known {
            Known::Program(p) => Made::Program(p),
            Known::Refused(why) => Made::Refused(why),
            Known::Nothing => unreachable!("compiled or refused"),
        }
    }
}

unsafe fn is_ours(stmt: *mut pg_sys::PlannedStmt, rti: u32) -> bool {
    // SAFETY: `find` has a valid plan, whose tables are locked. The reference to `r` is held until
    // `RelationClose`.
    unsafe {
        let Some(e) = super::plan::range_entry(stmt, rti) else { return false };
        if (*e).rtekind != pg_sys::RTEKind::RTE_RELATION {
            return false;
        }
        let r = pg_sys::RelationIdGetRelation((*e).relid);
        if r.is_null() {
            return false;
        }
        let ours = rel::is_ours(r);
        pg_sys::RelationClose(r);
        ours
    }
}

/// Is it a plan of the plan cache, in a context of its own?
unsafe fn is_cached(stmt: *mut pg_sys::PlannedStmt) -> bool {
    // SAFETY: a plan was allocated by `palloc`, so it has a context. Names of contexts are C
    // strings.
    unsafe {
        let context = pg_sys::GetMemoryChunkContext(stmt.cast());
        std::ffi::CStr::from_ptr((*context).name) == c"CachedPlan"
    }
}

unsafe fn compile(q: *mut pg_sys::QueryDesc) -> Known {
    // SAFETY: `q` has a valid plan, whose tables are locked (contract of `find`). Until the program
    // is complete its context goes with the current one, also on an error.
    unsafe {
        let context = pg_sys::AllocSetContextCreateInternal(
            pg_sys::CurrentMemoryContext,
            c"mixedcc program".as_ptr(),
            pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
            pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
        );
        let old = pg_sys::MemoryContextSwitchTo(context);
        let made = program::compile(q, context);
        pg_sys::MemoryContextSwitchTo(old);
        match made {
            Ok(p) => {
                pg_sys::MemoryContextSetParent(context, pg_sys::CacheMemoryContext);
                Known::Program(p)
            }
            Err(why) => {
                pg_sys::MemoryContextDelete(context);
                Known::Refused(why)
            }
        }
    }
}

/// Keeps the knowledge of a plan as long as the plan lives.
unsafe fn remember(stmt: *mut pg_sys::PlannedStmt, known: Known) {
    // SAFETY: `make` has a valid plan in a context of its own (`is_cached`). Entries in the hash
    // are valid, as `plan_gone` takes them out before they go. `drop_program` keeps a program that
    // runs (INV-BYPASS-PROGRAM).
    unsafe {
        let at = stmt as usize;
        let entry = match plans().get(&at) {
            Some(e) => *e,
            None => {
                let context = pg_sys::GetMemoryChunkContext(stmt.cast());
                let e = pg_sys::MemoryContextAllocZero(context, std::mem::size_of::<Entry>()).cast::<Entry>();
                (*e).callback.func = Some(plan_gone);
                (*e).callback.arg = e.cast();
                (*e).plan = at;
                (*e).known = Known::Nothing;
                plans().insert(at, e);
                pg_sys::MemoryContextRegisterResetCallback(context, &mut (*e).callback);
                e
            }
        };
        drop_program(entry);
        (*entry).known = known;
    }
}

/// A program that was not run, as it was found: those that live for one execution go.
///
/// # Safety
/// A program of `find`, which no statement runs.
pub unsafe fn not_used(p: *mut Program) {
    // SAFETY: `find` has given `p`, and no statement runs it: contract of this function.
    unsafe {
        if (*p).once {
            free(p);
        }
    }
}

/// Frees a program, whose plan no statement runs.
///
/// # Safety
/// No statement runs the program, and none will (INV-BYPASS-PROGRAM).
pub unsafe fn free(p: *mut Program) {
    // SAFETY: no statement runs `p`: contract of this function. `forget` removes states of it
    // before their memory goes.
    unsafe {
        exec::forget(p);
        pg_sys::MemoryContextDelete((*p).context);
    }
}

/// The plan's memory goes: no statement runs it (INV-BYPASS-PROGRAM).
#[pg_guard]
unsafe extern "C-unwind" fn plan_gone(arg: *mut core::ffi::c_void) {
    // SAFETY: `remember` has registered `arg`, an entry in the memory of its plan, which goes only
    // after this. No statement runs the plan (INV-BYPASS-PROGRAM).
    unsafe {
        let e = arg.cast::<Entry>();
        plans().remove(&(*e).plan);
        if let Known::Program(p) = (*e).known {
            free(p);
        }
    }
}

/// Takes the program off its plan, which may be running.
unsafe fn drop_program(e: *mut Entry) {
    // SAFETY: the caller has the entry from the hash, so it is valid. Its program lives; one that
    // is in use is kept until the transaction ends (INV-BYPASS-PROGRAM).
    unsafe {
        let was = std::mem::replace(&mut (*e).known, Known::Nothing);
        if let Known::Program(p) = was {
            forget_entries(p);
        }
        match was {
            Known::Program(p) if exec::is_used(p) => DROPPED.get_mut().push(p),
            Known::Program(p) => free(p),
            _ => {}
        }
    }
}

/// Entries of the relation cache, which a program has found, are not to be relied on any more
/// (INV-BYPASS-RELATION, INV-BYPASS-INDEXES).
unsafe fn forget_entries(p: *mut Program) {
    // SAFETY: the caller has `p` from an entry, or from a state that is in use, so it lives
    // (INV-BYPASS-PROGRAM).
    unsafe {
        (*p).open_in = 0;
        indexes::forget((*p).indexes);
    }
}

fn relation_changed(oid: Oid) {
    CHANGES.set(CHANGES.get() + 1);
    // SAFETY: entries are valid while they are in the hash: `plan_gone` takes them out. Their
    // programs live, and so do those of states in use (INV-BYPASS-PROGRAM).
    unsafe {
        for e in plans().values() {
            let hit = match (**e).known {
                Known::Program(p) => oid == pg_sys::InvalidOid || program::uses(p, oid),
                // The plan itself goes if a table of it has changed.
                Known::Refused(_) => true,
                Known::Nothing => false,
            };
            if hit {
                drop_program(*e);
            }
        }
        // Those that no entry names: of one execution, or dropped.
        for p in exec::used_programs().filter(|p| oid == pg_sys::InvalidOid || program::uses(*p, oid)) {
            forget_entries(p);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn catalog_changed(_arg: Datum, _cache: i32, _hash: u32) {
    CHANGES.set(CHANGES.get() + 1);
    // SAFETY: entries are valid while they are in the hash: `plan_gone` takes them out.
    plans().values().for_each(|e| unsafe { drop_program(*e) });
}

/// Nothing runs any more: programs that were dropped go.
pub fn end_transaction() {
    // SAFETY: one thread, and `free` does not use `DROPPED`. The transaction has ended, so no
    // statement runs these programs (INV-BYPASS-PROGRAM).
    unsafe {
        while let Some(p) = DROPPED.get_mut().pop() {
            free(p);
        }
    }
}
