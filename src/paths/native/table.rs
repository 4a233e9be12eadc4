//! Tables that native access has open: locked once for the transaction, found again without the
//! relation cache.
//!
//! **INV-OPEN**: Between two invalidations of a relation its cache entry stays where it is, as long
//! as the transaction holds a lock on the relation. PostgreSQL makes entries again, moves and frees
//! them only when it processes an invalidation, which calls `invalidated` at once, or when a
//! (sub)transaction ends. So an entry that was found under a lock is the right one while the
//! transaction and `EPOCH` are the same and the table is `valid`. The knowledge of rights and
//! triggers ends with every change of the table's pg_class row, which is such an invalidation, and
//! with changes of roles and their members. An entry stays between transactions too, but nothing is
//! known of it until the lock is taken, which processes invalidations first.
//!
//! **INV-ENTRY**: While a call uses a relation its entry is pinned, so that an invalidation in the
//! middle of the call leaves it in place. A pin is a reference that no resource owner knows. The
//! end of the call gives it back, or the abort of the (sub)transaction in which it was taken.

use super::Statement;
use crate::pg::changes;
use crate::pg::errors::complain;
use crate::pg::local::Local;
use crate::pg::{self, compat};
use crate::state::rel::{self, RelInfo};
use crate::state::xact;
use mixedcc_engine::RecordRef;
use pgrx::pg_sys::{self, CmdType, Datum, Oid};
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Bits of `Table::locks`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// As SELECT does.
    Read = 1,
    /// As INSERT, UPDATE and DELETE do.
    Write = 2,
}

/// A table of ours in this backend. Never freed: callers keep it. An invalidation, which may come
/// with nearly every call of PostgreSQL, marks it, so all of it is in cells.
pub struct Table {
    /// Its OID.
    pub oid: Oid,
    /// Its row type.
    rowtype: Cell<Oid>,
    /// Number of its present definition, which changes whenever it may have become another one.
    definition: Cell<u64>,
    valid: Cell<bool>,
    /// Does the entry outlive the transaction that has looked at it last, as those of tables do
    /// that it has not made?
    lasting: Cell<bool>,
    /// Where it is locked: in this transaction, since this epoch, in these ways.
    locked: Cell<Locked>,
    rel: Cell<pg_sys::Relation>,
    /// What this user may do with the whole table, as far as it was asked.
    user: Cell<Oid>,
    rights: Cell<u32>,
    /// Has a statement nothing to do but read, update, insert or delete the row?
    plain: Cell<Plain>,
    /// Columns (from 0) of foreign keys of this table: an update of them is checked, and so is any
    /// of a row that this transaction has written.
    referring: RefCell<Vec<usize>>,
}

/// Where a table is locked: in a transaction, since an epoch, in these ways.
#[derive(Clone, Copy)]
struct Locked {
    transaction: u32,
    epoch: u64,
    ways: u8,
}

/// What a statement has nothing to do besides.
#[derive(Clone, Copy)]
struct Plain {
    reads: bool,
    updates: bool,
    inserts: bool,
    deletes: bool,
}

/// A row type that calls have named.
#[derive(Clone, Copy)]
struct RowType {
    table: &'static Table,
    /// By which invalidations name it.
    hash: u32,
}

/// The written column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// Columns that no index has.
    Update,
    /// A whole row.
    Insert,
    /// The row goes.
    Delete,
}

/// Of the process: tables that were used once. Invalidations say which are to be looked at anew.
static TABLES: Local<Option<HashMap<Oid, &'static Table>>> = Local::new(None);
/// Of the process: by row type, for those that were found once.
static BY_ROWTYPE: Local<Option<HashMap<Oid, RowType>>> = Local::new(None);
/// Of the process: counts what was learned of tables.
static DEFINITIONS: Local<u64> = Local::new(0);
/// Of the process: grows with every event after which locks may be gone that the transaction had.
static EPOCH: Local<u64> = Local::new(1);
/// Of calls: pinned entries, with the nesting depth at which they were.
static PINS: Local<Vec<(pg_sys::Relation, u32)>> = Local::new(Vec::new());

/// Registers the callbacks.
pub fn init() {
    changes::listen(invalidated);
    // SAFETY: `_PG_init` runs alone; the callbacks are functions of this library, which is never
    // unloaded.
    unsafe {
        let none = Datum::from(0);
        use pg_sys::SysCacheIdentifier::{AUTHMEMROLEMEM, AUTHOID, DATABASEOID, TYPEOID};
        pg_sys::CacheRegisterSyscacheCallback(TYPEOID as i32, Some(types_changed), none);
        for cache in [AUTHOID, AUTHMEMROLEMEM, DATABASEOID] {
            pg_sys::CacheRegisterSyscacheCallback(cache as i32, Some(roles_changed), none);
        }
    }
}

fn invalidated(oid: Oid) {
    // SAFETY: one thread, and no code that holds a reference to `TABLES` calls PostgreSQL
    // meanwhile. Nothing here can fail.
    unsafe {
        let Some(all) = TABLES.get_mut() else { return };
        if oid == pg_sys::InvalidOid {
            all.values().for_each(|t| t.valid.set(false));
        } else if let Some(t) = all.get(&oid) {
            t.valid.set(false);
        }
    }
}

unsafe extern "C-unwind" fn roles_changed(_arg: Datum, _cache: i32, _hash: u32) {
    invalidated(pg_sys::InvalidOid);
}

/// A row type that calls have named was changed or dropped: plans with a value of it (`NULL::t`)
/// are made anew, from their text. PostgreSQL does that for the tables of a plan, but not for the
/// types of its constants. So a plan would name the type of a dropped table for ever, though there
/// is another table of that name.
unsafe extern "C-unwind" fn types_changed(_arg: Datum, _cache: i32, hash: u32) {
    // SAFETY: one thread, and no code that holds a reference to `BY_ROWTYPE` calls PostgreSQL
    // meanwhile. Nothing here can fail.
    unsafe {
        let Some(known) = BY_ROWTYPE.get_mut() else { return };
        let before = known.len();
        known.retain(|_, r| hash != 0 && r.hash != hash);
        if known.len() < before {
            pg::raw::ResetPlanCache();
        }
    }
}

/// The transaction aborts: its calls do not return.
pub fn abort_transaction() {
    unpin_from(0);
}

/// The subtransaction at this level aborts, with its calls. Locks that were taken in it are
/// released.
pub fn abort_subtransaction(level: u32) {
    unpin_from(level);
    EPOCH.set(EPOCH.get() + 1);
}

/// Gives back the pins that were taken at `depth` or deeper: their calls do not return.
fn unpin_from(depth: u32) {
    // SAFETY: one thread, and nothing of PostgreSQL runs while `PINS` is borrowed. INV-ENTRY: each
    // listed entry is pinned, so it is there.
    unsafe {
        let pins = PINS.get_mut();
        while let Some((rel, _)) = pins.pop_if(|p| p.1 >= depth) {
            (*rel).rd_refcnt -= 1;
        }
    }
}

/// A pinned relation of ours, locked.
pub struct Open {
    /// The relation.
    pub rel: pg_sys::Relation,
    /// The knowledge of it.
    pub info: &'static RelInfo,
    table: &'static Table,
    pin: usize,
}

impl Drop for Open {
    /// The end of the call. An ERROR that jumps over it leaves the pin to the abort.
    fn drop(&mut self) {
        unpin(self.pin);
    }
}

/// Pins an entry until [`unpin`] of what this returns, or the abort (INV-ENTRY).
///
/// # Safety
/// A relation that the transaction has locked.
#[inline]
pub unsafe fn pin(rel: pg_sys::Relation) -> usize {
    // SAFETY: `rel` is an entry that is there, as the transaction has it locked: contract of this
    // function. One thread, and `PINS` is not borrowed elsewhere.
    unsafe {
        let pins = PINS.get_mut();
        pins.push((rel, xact::depth()));
        (*rel).rd_refcnt += 1;
        pins.len() - 1
    }
}

/// Gives back a pin, and those above it, which are of calls that did not return.
#[inline]
pub fn unpin(pin: usize) {
    // SAFETY: INV-ENTRY: each listed entry is pinned, so it is there. One thread.
    unsafe {
        let pins = PINS.get_mut();
        while pins.len() > pin {
            if let Some((rel, _)) = pins.pop() {
                (*rel).rd_refcnt -= 1;
            }
        }
    }
}

/// The base type of what a call names. A type that is gone is the plan's: it was made before the
/// table was dropped.
unsafe fn base_type(typid: Oid) -> Oid {
    // SAFETY: catalog look-ups: any OID is answered.
    unsafe {
        use pg_sys::SysCacheIdentifier::TYPEOID;
        if !pg_sys::SearchSysCacheExists(TYPEOID as i32, Datum::from(typid), none(), none(), none()) {
            pg::raw::ResetPlanCache();
            complain(
                PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
                "the table of the first argument was dropped after the statement was prepared",
                "Run the statement again.",
            );
        }
        pg_sys::getBaseType(typid)
    }
}

fn none() -> Datum {
    Datum::from(0)
}

/// Notes that a plan names a row type: [`types_changed`].
unsafe fn watch(typid: Oid, table: &'static Table) {
    // SAFETY: a catalog look-up, over before `BY_ROWTYPE` is borrowed. One thread.
    unsafe {
        use pg_sys::SysCacheIdentifier::TYPEOID;
        let hash = pg_sys::GetSysCacheHashValue(TYPEOID as i32, Datum::from(typid), none(), none(), none());
        BY_ROWTYPE.get_mut().get_or_insert_default().insert(typid, RowType { table, hash });
    }
}

/// The table whose row type a call names, for calls that open it themselves.
pub fn of_rowtype(typid: Oid) -> Oid {
    Table::of_rowtype(typid).oid
}

impl Table {
    /// The table of an OID.
    pub fn of(oid: Oid) -> &'static Table {
        // SAFETY: one thread, and nothing of PostgreSQL runs while `TABLES` is borrowed.
        let all = unsafe { TABLES.get_mut() }.get_or_insert_default();
        let new = || {
            // Never freed.
            &*Box::leak(Box::new(Table {
                oid,
                rowtype: Cell::new(pg_sys::InvalidOid),
                definition: Cell::new(0),
                valid: Cell::new(false),
                lasting: Cell::new(false),
                locked: Cell::new(Locked { transaction: 0, epoch: 0, ways: 0 }),
                rel: Cell::new(std::ptr::null_mut()),
                user: Cell::new(pg_sys::InvalidOid),
                rights: Cell::new(0),
                plain: Cell::new(Plain { reads: false, updates: false, inserts: false, deletes: false }),
                referring: RefCell::default(),
            }))
        };
        all.entry(oid).or_insert_with(new)
    }

    /// Number of its present definition, which changes whenever it may have become another one.
    #[inline]
    pub fn definition(&self) -> u64 {
        self.definition.get()
    }

    /// The table whose row type this is, or a domain over it.
    pub fn of_rowtype(typid: Oid) -> &'static Table {
        // SAFETY: one thread. Catalog look-ups answer any OID; `known` is not used after the first
        // of them.
        unsafe {
            let known = BY_ROWTYPE.get_mut().get_or_insert_default();
            if let Some(r) = known.get(&typid).filter(|r| r.table.valid.get() && r.table.rowtype.get() == typid) {
                return r.table;
            }
            let oid = pg_sys::get_typ_typrelid(base_type(typid));
            if oid == pg_sys::InvalidOid || pg_sys::get_rel_relkind(oid) as u8 != pg_sys::RELKIND_RELATION {
                complain(
                    PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
                    "the first argument must be a row of a mixedcc table",
                    "Write NULL::table_name.",
                );
            }
            let table = Table::of(oid);
            watch(typid, table);
            table
        }
    }

    /// Is it known and locked (INV-OPEN)?
    #[inline]
    fn is_open(&self, access: Access) -> bool {
        let locked = self.locked.get();
        self.valid.get()
            && locked.transaction == compat::my_lxid()
            && locked.epoch == EPOCH.get()
            && locked.ways & access as u8 != 0
    }

    /// The relation, if the table is open for reading, and a statement that needs the right to do
    /// it would do nothing but read the row. Looks at nothing that may fail. It stays as it is
    /// until PostgreSQL looks for invalidations.
    #[inline]
    pub fn peek(&self) -> Option<pg_sys::Relation> {
        // SAFETY: plain reads of variables of the backend; the relation is returned, and not
        // followed.
        unsafe {
            let may = self.user.get() == pg::raw::GetUserId() && self.rights.get() & pg_sys::ACL_SELECT != 0;
            let hooked = (*(&raw const pg_sys::ExecutorCheckPerms_hook)).is_some();
            (self.is_open(Access::Read) && self.plain.get().reads && may && !hooked).then_some(self.rel.get())
        }
    }

    /// The relation, if the table is open for writing, and an UPDATE of columns that no index has
    /// would do nothing but replace the row's version. As [`Table::peek`].
    #[inline]
    pub fn peek_to_update(&self) -> Option<pg_sys::Relation> {
        const RIGHTS: u32 = pg_sys::ACL_SELECT | pg_sys::ACL_UPDATE;
        // SAFETY: INV-OPEN: `rel` is the table's entry, as `is_open` says. Else plain reads of
        // variables of the backend.
        unsafe {
            let may = self.user.get() == pg::raw::GetUserId() && self.rights.get() & RIGHTS == RIGHTS;
            let hooked = (*(&raw const pg_sys::ExecutorCheckPerms_hook)).is_some();
            let open = self.is_open(Access::Write) && self.plain.get().updates && may && !hooked;
            let writes = !pg_sys::XactReadOnly && !pg::raw::IsInParallelMode();
            // Triggers: of foreign keys, which ask for more.
            let rel = self.rel.get();
            (open && writes && (*rel).trigdesc.is_null()).then_some(rel)
        }
    }

    /// Opens the table, or raises an error if it is not one of ours.
    ///
    /// # Safety
    /// In a transaction. A command has begun (`moment::begin`): changes that this transaction made
    /// to the table are known. An ERROR jumps over this frame and the caller's, which own nothing.
    #[inline]
    pub unsafe fn open(&'static self, access: Access) -> Open {
        // SAFETY: in a transaction (contract of this function). INV-OPEN: `rel` is the locked
        // table's entry, which is pinned before `info` may look at catalogs.
        unsafe {
            if !self.is_open(access) {
                self.open_again(access);
            }
            let rel = self.rel.get();
            let pin = pin(rel);
            // May look at catalogs, and raise an error.
            Open { rel, info: rel::info(rel), table: self, pin }
        }
    }

    #[cold]
    unsafe fn open_again(&self, access: Access) {
        // SAFETY: in a transaction: contract of `open`. The entry is used until relation_close;
        // the lock stays to the end of the transaction (INV-OPEN). An ERROR of the raw functions
        // jumps over this frame, which owns nothing then.
        unsafe {
            let here = (compat::my_lxid(), EPOCH.get());
            if self.user.get() != pg::raw::GetUserId() || self.rights.get() == 0 {
                must_have_a_right(self.oid);
            }
            let lock = if access == Access::Write { pg_sys::RowExclusiveLock } else { pg_sys::AccessShareLock };
            let before = self.locked.get();
            let kept = if (before.transaction, before.epoch) == here { before.ways } else { 0 };
            // Outside of a transaction's middle it has no number: then nothing is kept.
            let ways = if here.0 == 0 { 0 } else { kept | access as u8 };
            let locked = Locked { transaction: here.0, epoch: here.1, ways };
            if self.valid.get() && (kept != 0 || self.lasting.get()) {
                // Locked in a weaker way, or known since an earlier transaction: it is there, and
                // stays so if nothing is heard of it with the lock. An ERROR jumps over this frame.
                pg::raw::LockRelationOid(self.oid, lock as i32);
                if self.valid.get() {
                    self.locked.set(locked);
                    return;
                }
            }
            let rel = pg_sys::try_relation_open(self.oid, lock as i32);
            if rel.is_null() {
                crate::pg::relations::no_such(self.oid);
            }
            crate::access::altered::must_fit(rel, (*rel).rd_att);
            if !rel::is_ours(rel) {
                complain(
                    PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
                    &format!("\"{}\" is not a mixedcc table", crate::pg::relations::name(self.oid)),
                    "Name a table that was created USING mixedcc.",
                );
            }
            self.locked.set(locked);
            self.rel.set(rel);
            if !self.valid.get() {
                // Before it is looked at: an invalidation from then on counts.
                let unwinding = InvalidUnlessKept(&self.valid);
                self.valid.set(true);
                DEFINITIONS.set(DEFINITIONS.get() + 1);
                self.definition.set(DEFINITIONS.get());
                self.look(rel);
                std::mem::forget(unwinding);
            }
            pg_sys::relation_close(rel, pg_sys::NoLock as i32);
        }
    }

    /// What the definition says.
    unsafe fn look(&self, r: pg_sys::Relation) {
        // SAFETY: `r` is open and locked: `open_again` opens it just before. What its entry points
        // to stays as long as it is open.
        unsafe {
            let form = (*r).rd_rel;
            let constr = (*(*r).rd_att).constr;
            self.lasting.set((*r).rd_createSubid == 0);
            self.user.set(pg_sys::InvalidOid);
            self.rights.set(0);
            self.rowtype.set((*form).reltype);
            let reads = !(*form).relrowsecurity && !crate::pg::compat::has_virtual_columns((*r).rd_att);
            let writes = reads
                && (*r).rd_rules.is_null()
                && !(*form).relispartition
                && (constr.is_null() || (*constr).num_check == 0 && !(*constr).has_generated_stored);
            // An update looks at the columns that it changes, for NULLs.
            let updates = writes && !crate::pg::compat::may_break_not_null((*r).rd_att);
            let t = (*r).trigdesc.as_ref();
            self.plain.set(Plain {
                reads,
                updates: updates && t.is_none_or(|t| only_foreign_keys(t)),
                inserts: writes && t.is_none_or(|t| !inserts(t)),
                deletes: writes && t.is_none_or(|t| !deletes(t)),
            });
            let mut referring = Vec::new();
            if t.is_some() {
                // What refers to this table names columns of a unique index, which no update
                // changes directly.
                for k in pgrx::PgList::<pg_sys::ForeignKeyCacheInfo>::from_pg(pg_sys::RelationGetFKeyList(r)).iter_ptr()
                {
                    let k = &*k;
                    referring.extend(k.conkey[..k.nkeys as usize].iter().map(|c| *c as usize - 1));
                }
            }
            *self.referring.borrow_mut() = referring;
        }
    }
}

/// A definition that could not be read to the end is not valid.
struct InvalidUnlessKept<'a>(&'a Cell<bool>);

impl Drop for InvalidUnlessKept<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Raises an error unless the user has some right on a table or its columns. Before it is locked,
/// and also where no row is looked for, because the key is NULL: strangers must not lock it.
unsafe fn must_have_a_right(oid: Oid) {
    const COLUMNS: u32 = pg_sys::ACL_SELECT | pg_sys::ACL_INSERT | pg_sys::ACL_UPDATE;
    // SAFETY: catalog look-ups; the name may be null, if the table was dropped meanwhile.
    unsafe {
        let (kind, user) = (pg_sys::get_rel_relkind(oid), pg_sys::GetUserId());
        if kind == 0 || compat::relation_rights(oid, user, COLUMNS | pg_sys::ACL_DELETE) {
            return; // the caller says if there is no table
        }
        if !compat::column_rights(oid, user, COLUMNS) {
            let (denied, kind) = (pg_sys::AclResult::ACLCHECK_NO_PRIV, pg_sys::get_relkind_objtype(kind));
            pg_sys::aclcheck_error(denied, kind, pg_sys::get_rel_name(oid));
        }
    }
}

/// Are all triggers for UPDATE those of foreign keys? They are queued only if the key changes, or
/// for rows that the transaction has inserted (AfterTriggerSaveEvent).
unsafe fn only_foreign_keys(t: &pg_sys::TriggerDesc) -> bool {
    const ROW: i16 = pg_sys::TRIGGER_TYPE_ROW as i16;
    const UPDATE: i16 = pg_sys::TRIGGER_TYPE_UPDATE as i16;
    // SAFETY: a relation's triggers (`look` has it open): the array has `numtriggers` entries.
    unsafe {
        let all = std::slice::from_raw_parts(t.triggers, t.numtriggers as usize);
        !(t.trig_update_before_row
            || t.trig_update_instead_row
            || t.trig_update_before_statement
            || t.trig_update_after_statement)
            && all
                .iter()
                .filter(|t| t.tgtype & ROW != 0 && t.tgtype & UPDATE != 0)
                .all(|t| pg_sys::RI_FKey_trigger_type(t.tgfoid) != pg_sys::RI_TRIGGER_NONE as i32)
    }
}

fn inserts(t: &pg_sys::TriggerDesc) -> bool {
    t.trig_insert_before_row
        || t.trig_insert_after_row
        || t.trig_insert_instead_row
        || t.trig_insert_before_statement
        || t.trig_insert_after_statement
}

fn deletes(t: &pg_sys::TriggerDesc) -> bool {
    t.trig_delete_before_row
        || t.trig_delete_after_row
        || t.trig_delete_instead_row
        || t.trig_delete_before_statement
        || t.trig_delete_after_statement
}

impl Open {
    /// The table's present definition.
    pub fn definition(&self) -> u64 {
        self.table.definition()
    }

    /// Would a statement that needs these rights (bits) do nothing but read the row?
    #[inline]
    pub fn reads_plainly(&self) -> Result<(), Statement> {
        self.plain(self.table.plain.get().reads, pg_sys::ACL_SELECT)
    }

    /// Would a statement do nothing but write the row? `rights`: bits that it needs on the whole
    /// table. An update must pass `refers` and `is_checked` too.
    #[inline]
    pub fn writes_plainly(&self, write: Write, rights: u32) -> Result<(), Statement> {
        let t = self.table.plain.get();
        let plain = match write {
            Write::Update => t.updates,
            Write::Insert => t.inserts,
            Write::Delete => t.deletes,
        };
        // SAFETY: plain reads of variables of the backend.
        let may = unsafe { !pg_sys::XactReadOnly && !pg::raw::IsInParallelMode() };
        self.plain(plain && may, rights)
    }

    /// Would an UPDATE that reads the row do nothing but write it? As [`Open::writes_plainly`].
    #[inline]
    pub fn updates_plainly(&self) -> Result<(), Statement> {
        self.writes_plainly(Write::Update, pg_sys::ACL_SELECT | pg_sys::ACL_UPDATE)
    }

    /// Is a column (from 0) part of a foreign key?
    #[inline]
    pub fn refers(&self, at: usize) -> bool {
        self.table.referring.borrow().contains(&at)
    }

    /// Would any update of this row be checked by foreign keys?
    #[inline]
    pub fn is_checked(&self, r: RecordRef) -> bool {
        !self.table.referring.borrow().is_empty() && xact::txn().last_write(r).is_some()
    }

    #[inline]
    fn plain(&self, plain: bool, rights: u32) -> Result<(), Statement> {
        // SAFETY: plain reads of variables of the backend.
        let (hooked, user) =
            unsafe { ((*(&raw const pg_sys::ExecutorCheckPerms_hook)).is_some(), pg::raw::GetUserId()) };
        let t = self.table;
        // A hook sees statements only.
        if plain && !hooked && (t.user.get() == user && t.rights.get() & rights == rights || self.has_rights(rights)) {
            Ok(())
        } else {
            Err(Statement)
        }
    }

    #[cold]
    fn has_rights(&self, rights: u32) -> bool {
        let t = self.table;
        // SAFETY: `GetUserId` reads a variable of the backend.
        let (user, definition) = (unsafe { pg::raw::GetUserId() }, t.definition());
        let mut bits = (0..u32::BITS).map(|b| 1 << b).filter(|b| rights & b != 0);
        if !bits.all(|b| compat::relation_rights(t.oid, user, b)) {
            return false;
        }
        // As the executor does: a publication may need a replica identity for the command.
        for (right, command) in [(pg_sys::ACL_UPDATE, CmdType::CMD_UPDATE), (pg_sys::ACL_DELETE, CmdType::CMD_DELETE)] {
            if rights & right != 0 {
                // SAFETY: the relation is open and locked.
                unsafe { pg_sys::CheckCmdReplicaIdentity(self.rel, command) };
            }
        }
        // An invalidation may have come in the look-ups: then nothing is kept.
        if t.valid.get() && t.definition() == definition {
            t.rights.set(rights | if t.user.get() == user { t.rights.get() } else { 0 });
            t.user.set(user);
        }
        true
    }
}
