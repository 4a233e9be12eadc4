//! Deferred additions: an UPDATE of one row by its key that adds to its columns, and is made when
//! its transaction ends, or looks at the row (docs/design/columns.md, C3). So the row is locked,
//! or to be unchanged, for the end of the transaction alone.
//!
//! **INV-DEFERRED**: An addition that was noted is made before a statement of its transaction looks
//! at the row's table, but by the keys of other rows or at other columns; and before the
//! transaction commits or is prepared. What a rollback to a savepoint undoes is noted again. So the
//! database is as if the statement had come then. It adds to the row that has the key then, which
//! may be in another record: another transaction has moved it, or put it in the place of one that
//! it has deleted. A row that this transaction has put there later is none of the statement's. The
//! answer has told that there is such a row, and perhaps the values of other columns. These are
//! compared then. If they have changed, or no such row is there, the transaction fails. A statement
//! in a savepoint is not deferred: its rollback would leave the answer, or an error that tells of
//! the row's values, without anything that is compared.

use crate::access::lookup::{self, Found};
use crate::access::{primary, tuple, write};
use crate::pg::errors::complain_with_detail;
use crate::pg::faults::{self, Fault};
use crate::pg::local::Local;
use crate::pg::{compat, expr, guc, relations, Tid};
use crate::state::platform::PG;
use crate::state::{rel, xact};
use mixedcc_engine::lock::Mode as LockMode;
use mixedcc_engine::range::Columns;
use mixedcc_engine::record::Version;
use mixedcc_engine::RecordRef;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;
use std::ptr::NonNull;

pub mod shape;

/// When so many wait, all are made.
const MOST: usize = 64;

/// The bytes of a row's key in its table's primary index, in memory that lives as long as this is
/// used.
#[derive(Clone, Copy)]
pub struct Key {
    at: *const u8,
    len: usize,
}

impl Key {
    /// A copy of these bytes.
    ///
    /// # Safety
    /// A memory context that lives as long as the key is used. An ERROR jumps over this frame.
    pub unsafe fn copy(bytes: &[u8], memory: pg_sys::MemoryContext) -> Key {
        // SAFETY: the memory has room for the bytes, and is new.
        unsafe {
            let at = pg_sys::MemoryContextAlloc(memory, bytes.len().max(1)).cast::<u8>();
            at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            Key { at, len: bytes.len() }
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `copy` has written so many, and the memory lives (contract of `copy`).
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

/// An addition.
struct Note {
    table: Oid,
    /// The engine's table, and the record in which the row was met last.
    row: (u64, u64),
    /// The row's key, which tells whether notes are of one row.
    key: Key,
    /// The command that has noted it.
    cid: pg_sys::CommandId,
    /// The new values, without parameters, and the numbers of their columns.
    list: *mut pg_sys::List,
    columns: *mut pg_sys::List,
    /// The columns.
    sets: Columns,
    /// The row that the statement has returned columns of, and these; null if it has not.
    returned: (pg_sys::HeapTuple, Columns),
    /// Depth of the subtransaction that has made it; 0: it waits.
    made: u32,
    /// What it refers to is here. It goes with the note, or with the transaction.
    memory: pg_sys::MemoryContext,
}

/// Of the transaction: additions that wait, and those that a rollback would let wait again.
static NOTES: Local<Vec<Note>> = Local::new(Vec::new());
/// Of the transaction: how many wait.
static WAITING: Local<usize> = Local::new(0);

fn notes() -> &'static mut Vec<Note> {
    // SAFETY: one thread, and no caller keeps the reference over a call that may come back here.
    unsafe { NOTES.get_mut() }
}

/// Keeps some of the notes.
fn keep(these: impl Fn(&Note) -> bool) {
    notes().retain(|n| {
        let stays = these(n);
        if !stays {
            // SAFETY: nothing refers to the memory of a note but the note.
            unsafe { pg_sys::MemoryContextDelete(n.memory) };
        }
        stays
    });
    count();
}

fn count() {
    WAITING.set(notes().iter().filter(|n| n.made == 0).count());
}

impl Note {
    fn is_of(&self, table: Oid, key: &[u8]) -> bool {
        self.table == table && self.key.bytes() == key
    }
}

/// Does an addition wait?
#[inline]
pub fn any() -> bool {
    WAITING.get() > 0
}

/// May statements be deferred now?
#[inline]
pub fn is_wanted() -> bool {
    guc::DEFER_ADDITIONS.get() && (xact::depth() <= 1 || faults::on(Fault::DeferredWithin))
}

/// A statement that may be deferred: its row as it is now.
pub struct Statement<'a> {
    /// The table, which is open.
    pub rel: pg_sys::Relation,
    /// The row, and its key.
    pub found: Found,
    pub key: Key,
    /// Its new values and their columns.
    pub list: *mut pg_sys::List,
    pub columns: *mut pg_sys::List,
    pub sets: Columns,
    /// The columns that it returns.
    pub returned: Columns,
    pub params: pg_sys::ParamListInfo,
    pub cid: pg_sys::CommandId,
    /// Makes the new row of the row as it is now, to see that it can be made.
    pub tries: &'a mut dyn FnMut(),
}

/// Notes an addition; false: the statement has to be run now.
///
/// # Safety
/// An open table of ours and a row of it, lists of `shape::is_addition`, valid parameters or null.
/// An ERROR unwinds.
pub unsafe fn note(s: Statement) -> bool {
    let r = s.found.r;
    if r.partition().protocols().locks_partitions() {
        return false; // it has the partition to its end in any case
    }
    if notes().iter().any(|n| n.is_of(s.oid(), s.key.bytes()) && n.cid >= s.cid) {
        return false; // a statement that has begun later came first: it is not seen
    }
    if WAITING.get() >= MOST {
        // SAFETY: the contract of this function.
        unsafe { make_all() };
    }
    // SAFETY: the contract of this function. All that is kept is copied into the memory of the
    // note, which lives as long as the note.
    unsafe {
        (s.tries)();
        // Of the statement until it is noted: an ERROR before that leaves nothing.
        let memory = pg_sys::AllocSetContextCreateInternal(
            pg_sys::CurrentMemoryContext,
            c"mixedcc deferred addition".as_ptr(),
            pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
            pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
        );
        let before = pg_sys::MemoryContextSwitchTo(memory);
        let list = shape::with_values(s.list, s.params);
        let columns = pg_sys::list_copy(s.columns);
        let returned = if s.returned == Columns::NONE {
            std::ptr::null_mut()
        } else {
            pg_sys::heap_copytuple(&mut tuple::as_tuple(s.found.version.as_ptr(), Tid::Record(r.no), s.oid()))
        };
        let key = Key::copy(s.key.bytes(), memory);
        pg_sys::MemoryContextSwitchTo(before);
        let Some(list) = list else {
            pg_sys::MemoryContextDelete(memory);
            return false;
        };
        pg_sys::MemoryContextSetParent(memory, pg_sys::TopTransactionContext);
        notes().push(Note {
            table: s.oid(),
            row: (r.table.id, r.no),
            key,
            cid: s.cid,
            list,
            columns,
            sets: s.sets,
            returned: (returned, s.returned),
            made: 0,
            memory,
        });
    }
    count();
    true
}

impl Statement<'_> {
    fn oid(&self) -> Oid {
        // SAFETY: the table is open (contract of `note`).
        unsafe { (*self.rel).rd_id }
    }
}

/// Does an addition to columns at which a statement looks in a row of this table wait? `key`: of
/// the row; `None`: any.
pub fn meets(table: Oid, key: Option<&[u8]>, looked: Columns) -> bool {
    let meets = |n: &Note| n.table == table && key.is_none_or(|k| k == n.key.bytes()) && looked.meet(n.sets);
    any() && notes().iter().any(|n| n.made == 0 && meets(n))
}

/// Does an addition to the row of a record wait?
pub fn waits(row: (u64, u64)) -> bool {
    notes().iter().any(|n| n.made == 0 && n.row == row)
}

/// A statement, or somebody else, is about to look at a table (INV-DEFERRED).
///
/// # Safety
/// Within a transaction. An ERROR jumps over this frame.
#[inline]
pub unsafe fn before_look(table: Oid) {
    if any() && !faults::on(Fault::LooksBesideDeferred) {
        // SAFETY: the contract of this function.
        unsafe { make_those(&mut |n| n.table == table) }
    }
}

/// Makes all additions that wait.
///
/// # Safety
/// As for [`before_look`].
#[inline]
pub unsafe fn make_all() {
    if any() {
        // SAFETY: the contract of this function.
        unsafe { make_those(&mut |_| true) }
    }
}

/// The executor is about to start a plan: its tables are looked at, and more than these in parallel
/// workers.
///
/// # Safety
/// A valid plan; as for [`before_look`].
pub unsafe fn before_plan(stmt: *mut pg_sys::PlannedStmt) {
    if !any() {
        return;
    }
    // SAFETY: `stmt` is a valid plan, whose range table is a list of such entries.
    unsafe {
        if (*stmt).parallelModeNeeded {
            return make_all();
        }
        let n = pg_sys::list_length((*stmt).rtable);
        for i in 0..n {
            let e = pg_sys::list_nth((*stmt).rtable, i).cast::<pg_sys::RangeTblEntry>();
            before_look((*e).relid);
        }
    }
}

/// Makes those of the additions that wait.
#[pg_guard]
#[cold]
#[allow(improper_ctypes_definitions)] // called from here only
unsafe extern "C-unwind" fn make_those(these: &mut dyn FnMut(&Note) -> bool) {
    loop {
        let wanted: Vec<_> = notes().iter().enumerate().filter(|(_, n)| n.made == 0 && these(n)).collect();
        // A transaction that waits for a lock should hold as few others as can be: rows that others
        // have come first, and then all in the same order. Additions to one row keep theirs.
        let busy = wanted.iter().find(|(_, n)| is_busy(n));
        let Some(i) = busy.or(wanted.iter().min_by_key(|(_, n)| n.row)).map(|(i, _)| of_its_row(*i)) else { return };
        // An ERROR jumps over this frame.
        drop(wanted);
        // SAFETY: the table of a note is locked to the end of the subtransaction that noted it.
        unsafe { make(i) };
        notes()[i].made = xact::depth();
        keep(may_wait_again);
    }
}

/// Does it wait, or would it after a rollback?
fn may_wait_again(n: &Note) -> bool {
    n.made != 1
}

/// The first addition to the same row that waits.
fn of_its_row(i: usize) -> usize {
    let (all, of) = (notes(), &notes()[i]);
    all.iter().position(|n| n.made == 0 && n.is_of(of.table, of.key.bytes())).unwrap_or(i)
}

/// Does another transaction hold the row's lock?
fn is_busy(n: &Note) -> bool {
    let Some(r) = rel::by_table_id(n.row.0).and_then(|i| RecordRef::find(i.table, n.row.1)) else { return false };
    xact::txn().is_locked_by_others(r, LockMode::NoKeyUpdate)
}

/// Makes an addition: the row is locked as for any UPDATE, and its newest version is added to.
unsafe fn make(i: usize) {
    // SAFETY: the note's table is locked since it was noted, so its definition is the same. What is
    // allocated goes with `memory`; slots and context are given back, or go with the transaction.
    unsafe {
        let n = &notes()[i];
        let (table, (table_id, no), cid, sets, returned) = (n.table, n.row, n.cid, n.sets, n.returned);
        let (list, columns) = (n.list, n.columns);
        let rel = relations::entry(table);
        let info = rel::info(rel);
        let at = (info.table.id == table_id).then(|| RecordRef::find(info.table, no)).flatten();
        let Some(mut r) = at else { gone(rel) };
        let memory = pg_sys::AllocSetContextCreateInternal(
            pg_sys::CurrentMemoryContext,
            c"mixedcc addition".as_ptr(),
            pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
            pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
        );
        let before = pg_sys::MemoryContextSwitchTo(memory);
        let desc = pg_sys::CreateTupleDescCopyConstr((*rel).rd_att);
        let row = pg_sys::MakeSingleTupleTableSlot(desc, &raw const pg_sys::TTSOpsHeapTuple);
        let new = pg_sys::MakeSingleTupleTableSlot(desc, &raw const pg_sys::TTSOpsVirtual);
        let c = pg_sys::CreateStandaloneExprContext();
        let null = std::ptr::null_mut();
        let constr = (*(*rel).rd_att).constr;
        let checked = !constr.is_null() && (*constr).num_check > 0;
        let adds = pg_sys::ExecBuildUpdateProjection(list, true, columns, desc, c, new, null);
        while !write::update_anew(rel, info, r, cid, sets, &mut |old: NonNull<Version>| {
            tuple::store(row, table, Tid::Record(r.no), old.as_ptr());
            if !returned.0.is_null() && differ(desc, returned, row) && !faults::on(Fault::AnswersForgotten) {
                changed(rel, r);
            }
            (*c).ecxt_scantuple = row;
            let slot = expr::project(adds);
            if checked {
                (*slot).tts_tableOid = table;
                compat::check_constraints_alone(rel, slot);
            }
            slot
        }) {
            r = moved(rel, info, i, r);
        }
        pg_sys::FreeExprContext(c, true);
        pg_sys::ExecDropSingleTupleTableSlot(new);
        pg_sys::ExecDropSingleTupleTableSlot(row);
        pg_sys::MemoryContextSwitchTo(before);
        pg_sys::MemoryContextDelete(memory);
        pg_sys::RelationClose(rel);
    }
}

/// The row of an addition is not in its record any more: the record that has it now.
unsafe fn moved(rel: pg_sys::Relation, info: &rel::RelInfo, i: usize, from: RecordRef) -> RecordRef {
    // SAFETY: `rel` is open, with its `info` (`make`).
    unsafe {
        let (table, key) = (notes()[i].table, notes()[i].key);
        let follows = !faults::on(Fault::MovesNotFollowed);
        let found = primary::usable(rel, info).filter(|_| follows).and_then(|pk| of_key(info, pk, key.bytes()));
        let Some(Found { r, .. }) = found else {
            _ = xact::txn().write_conflict(from, None); // for the counters
            gone(rel)
        };
        for n in notes().iter_mut().filter(|n| n.is_of(table, key.bytes())) {
            n.row = (r.table.id, r.no);
        }
        r
    }
}

/// Has a column that was returned another value in the row as it is now? An addition may have made
/// the row so large that a value was compressed (INV-PACKED): that is the same value.
unsafe fn differ(
    desc: pg_sys::TupleDesc,
    (before, columns): (pg_sys::HeapTuple, Columns),
    row: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: the caller has a tuple and a slot of the row type `desc`.
    unsafe {
        let of = |tuple: pg_sys::HeapTuple, no: i32| {
            let mut null = false;
            let value = pg_sys::heap_getattr(tuple, no, desc, &mut null);
            (!null).then_some(value)
        };
        let now = pg_sys::ExecFetchSlotHeapTuple(row, false, std::ptr::null_mut());
        (1..=(*desc).natts).filter(|no| columns.meet(Columns::of(*no as u32))).any(|no| {
            let a = compat::attribute(desc, no as usize - 1);
            match (of(before, no), of(now, no)) {
                (None, None) => false,
                (Some(x), Some(y)) => !crate::pg::same_unpacked(x, y, a.attbyval, a.attlen as i32),
                _ => true,
            }
        })
    }
}

/// What a deferred statement has returned is true no more.
#[cold]
unsafe fn changed(rel: pg_sys::Relation, r: RecordRef) -> ! {
    // For the counters.
    _ = xact::txn().write_conflict(r, None);
    // SAFETY: `rel` is open (`make`).
    unsafe { fail(rel, "update", "a column that it has returned had been changed") }
}

/// The row of a deferred statement is not there any more.
#[cold]
unsafe fn gone(rel: pg_sys::Relation) -> ! {
    // SAFETY: `rel` is open (`make`).
    unsafe { fail(rel, "delete", "its row had been deleted, or had got another key") }
}

/// Fails because what a statement has told is true no more.
unsafe fn fail(rel: pg_sys::Relation, what: &str, why: &str) -> ! {
    // SAFETY: `rel` is open (`make`), so its pg_class row is there; the name is a C string.
    let name = unsafe { crate::pg::text::read((*(*rel).rd_rel).relname.data.as_ptr()) };
    let until = "was to be made at the end of the transaction (mixedcc.defer_additions)";
    complain_with_detail(
        PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
        &format!("could not serialize access due to concurrent {what}"),
        &format!("An UPDATE of table \"{name}\" {until}. By then {why}."),
        "The transaction might succeed if retried.",
    );
}

/// The row of a key as it is now, if the transaction has not written it. It is neither protected
/// nor remembered. `None`: there is none. `bytes`: those of the key.
///
/// # Safety
/// As for [`lookup::by_key`].
pub unsafe fn find<K: lookup::Key + ?Sized>(
    rel: pg_sys::Relation,
    info: &rel::RelInfo,
    pk: &rel::PrimaryKey,
    key: &K,
    bytes: Key,
) -> Option<Found> {
    let value = |i| key.value(i);
    let Some(short) = pk.codec.short(key.len(), value) else { return of_key(info, pk, bytes.bytes()) };
    // SAFETY: `rel` is open, and `pk` its key (contract of this function): the row type has its
    // columns. The version was reached under our pin (INV-RETIRE), and is no tombstone.
    let has_key = |v| unsafe { pk.codec.has_ints(value, |at| tuple::value_of(v, (*rel).rd_att, at)) };
    // INV-GUESS of the engine: the newest committed version of the record has the key.
    let hinted = pk.primary.find_by_hint(short, |no| match newest(info, no) {
        Some(found) => has_key(found.version).then_some(Some(found)),
        None => is_own(info, no, has_key).then_some(None),
    });
    hinted.unwrap_or_else(|| {
        let found = of_key(info, pk, bytes.bytes());
        found.iter().for_each(|f| pk.primary.note_hint(short, f.r.no));
        found
    })
}

/// Has the transaction written the row of this key in this record? Then no other row of the key is
/// one that it has not written.
fn is_own(info: &rel::RelInfo, no: u64, has_key: impl Fn(NonNull<Version>) -> bool) -> bool {
    let Some(r) = RecordRef::find(info.table, no).filter(|r| xact::txn().last_write(*r).is_some()) else {
        return false;
    };
    // SAFETY: the version is reached under our pin (INV-RETIRE).
    let head = NonNull::new(r.rec.head()).filter(|v| !unsafe { v.as_ref() }.is_tombstone());
    head.is_some_and(has_key)
}

/// The same by the index alone.
fn of_key(info: &rel::RelInfo, pk: &rel::PrimaryKey, key: &[u8]) -> Option<Found> {
    lookup::of_records(pk, key, |no| newest(info, no))
}

/// The row that a record has now, if the transaction has not written it.
fn newest(info: &rel::RelInfo, no: u64) -> Option<Found> {
    let r = RecordRef::find(info.table, no).filter(|r| xact::txn().last_write(*r).is_none())?;
    let (version, _) = crate::state::errors::ok(xact::txn().newest(&PG, r.rec))?;
    // SAFETY: the version was reached under our pin (INV-RETIRE).
    (!unsafe { version.as_ref() }.is_tombstone()).then_some(Found { r, version })
}

/// A subtransaction has committed: what was made in it is its parent's.
pub fn commit_subtransaction(level: u32) {
    for n in notes().iter_mut() {
        n.made = n.made.min(level - 1);
    }
    keep(may_wait_again);
}

/// A subtransaction was aborted: what was made in it waits again.
pub fn abort_subtransactions(level: u32) {
    for n in notes().iter_mut().filter(|n| n.made >= level) {
        n.made = 0;
    }
    count();
}

/// The transaction has ended.
pub fn end_transaction() {
    notes().clear();
    WAITING.set(0);
}
