//! Utility commands: options of tables, what mixedcc refuses, and what must follow a change of a
//! table's definition.

use super::executor;
use crate::access::{altered, deferred, mixture};
use crate::admin::annotate;
use crate::admin::options::{self, Apply, PROVIDER};
use crate::pg::local::Local;
use crate::pg::previous::PREVIOUS;
use crate::pg::{self, compat, isolation};
use crate::state::{shmem, standby, xact};
use pgrx::pg_sys::{self, NodeTag, Oid};
use pgrx::prelude::*;
use std::cell::RefCell;

mod alter;
mod copy;
mod create;
mod databases;
mod levels;
mod maintain;

extern "C-unwind" {
    fn find_all_inheritors(parent: Oid, lockmode: i32, numparents: *mut *mut pg_sys::List) -> *mut pg_sys::List;
}

/// Installs the hooks.
pub fn init() {
    annotate::init();
    // SAFETY: `_PG_init` runs alone, so the hooks have no caller yet.
    unsafe {
        PREVIOUS.get_mut().utility = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process);
        PREVIOUS.get_mut().object_access = pg_sys::object_access_hook;
        pg_sys::object_access_hook = Some(object_access);
    }
}

/// A call of the hook.
#[derive(Clone, Copy)]
struct Call {
    pstmt: *mut pg_sys::PlannedStmt,
    query: *const core::ffi::c_char,
    read_only: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    env: *mut pg_sys::QueryEnvironment,
    dest: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
}

impl Call {
    fn node<T>(&self) -> *mut T {
        // SAFETY: `pstmt` is a utility statement, and the caller has looked at the node's tag.
        unsafe { (*self.pstmt).utilityStmt.cast() }
    }

    /// A call whose tree may be changed.
    fn writable(mut self) -> Call {
        if self.read_only {
            // SAFETY: `pstmt` is a valid tree of the hook's arguments; the copy is in the
            // statement's memory.
            self.pstmt = unsafe { pg_sys::copyObjectImpl(self.pstmt.cast()) }.cast();
            self.read_only = false;
        }
        self
    }

    /// Does what would be done without us. An ERROR does not unwind: callers own nothing across it.
    fn run(&self) {
        // SAFETY: these are the hook's arguments, or a writable copy of the tree. The calls may
        // raise: callers own nothing across them.
        unsafe {
            let Call { pstmt, query, read_only, context, params, env, dest, completion } = *self;
            match PREVIOUS.get().utility {
                Some(prev) => prev(pstmt, query, read_only, context, params, env, dest, completion),
                None => {
                    pg::raw::standard_ProcessUtility(pstmt, query, read_only, context, params, env, dest, completion)
                }
            }
        }
    }
}

/// The hook. Commands that are none of our business run without a Rust frame that would catch
/// their errors: those errors keep their context lines.
#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn process(
    pstmt: *mut pg_sys::PlannedStmt,
    query: *const core::ffi::c_char,
    read_only: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    env: *mut pg_sys::QueryEnvironment,
    dest: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: `pstmt` is a utility statement (contract of ProcessUtility_hook). The calls may
    // raise: nothing that needs a drop is alive in this frame.
    unsafe {
        let (decides, begins) = (ends_prepared((*pstmt).utilityStmt), begins_block((*pstmt).utilityStmt));
        if isolation::is_asked() {
            check_as_asked((*(*pstmt).utilityStmt).type_);
        }
        if may_look((*(*pstmt).utilityStmt).type_) {
            deferred::make_all();
        }
        executor::before_command();
        let level = LEVEL.get() + 1;
        begin_command(level);
        if levels::concern((*pstmt).utilityStmt).is_some() {
            levels::process(pstmt, query, read_only, context, params, env, dest, completion);
        } else if concerns_us((*(*pstmt).utilityStmt).type_) || drops_index((*pstmt).utilityStmt) {
            process_ours(pstmt, query, read_only, context, params, env, dest, completion);
        } else {
            let call = Call { pstmt, query, read_only, context, params, env, dest, completion };
            call.run();
        }
        LEVEL.set(level);
        if DROPPED.with_borrow(|dropped| dropped.iter().any(|(of, _)| *of >= level)) {
            follow_drop();
        }
        LEVEL.set(level - 1);
        if decides {
            xact::prepared::finish_after_command();
        }
        if begins {
            xact::copies::begin_after_command();
        }
        xact::parallel::end_build();
        xact::note_end_of_statement();
        xact::rests::between_statements();
    }
}

/// May the command itself look at tables, or change them? What it runs in the executor comes there.
fn may_look(tag: NodeTag) -> bool {
    use NodeTag::*;
    !matches!(
        tag,
        T_TransactionStmt
            | T_VariableSetStmt
            | T_VariableShowStmt
            | T_PrepareStmt
            | T_ExecuteStmt
            | T_DeallocateStmt
            | T_DeclareCursorStmt
            | T_FetchStmt
            | T_ClosePortalStmt
    )
}

/// A command of a transaction that was asked for as SERIALIZABLE on a standby (INV-AS-ASKED). What
/// ends the transaction, and settings, it may have after a promotion, too.
#[pg_guard]
#[cold]
unsafe extern "C-unwind" fn check_as_asked(tag: NodeTag) {
    use NodeTag::{T_TransactionStmt, T_VariableSetStmt, T_VariableShowStmt};
    if ![T_TransactionStmt, T_VariableSetStmt, T_VariableShowStmt].contains(&tag) {
        standby::check_as_asked();
    }
}

/// Is it COMMIT PREPARED or ROLLBACK PREPARED?
///
/// # Safety
/// A utility statement.
unsafe fn ends_prepared(s: *mut pg_sys::Node) -> bool {
    use pg_sys::TransactionStmtKind::{TRANS_STMT_COMMIT_PREPARED, TRANS_STMT_ROLLBACK_PREPARED};
    // SAFETY: a node (contract of this function), of a kind that its tag says.
    unsafe {
        (*s).type_ == NodeTag::T_TransactionStmt
            && [TRANS_STMT_COMMIT_PREPARED, TRANS_STMT_ROLLBACK_PREPARED]
                .contains(&(*s.cast::<pg_sys::TransactionStmt>()).kind)
    }
}

/// Is it BEGIN?
///
/// # Safety
/// A utility statement.
unsafe fn begins_block(s: *mut pg_sys::Node) -> bool {
    use pg_sys::TransactionStmtKind::{TRANS_STMT_BEGIN, TRANS_STMT_START};
    // SAFETY: a node (contract of this function), of a kind that its tag says.
    unsafe {
        (*s).type_ == NodeTag::T_TransactionStmt
            && [TRANS_STMT_BEGIN, TRANS_STMT_START].contains(&(*s.cast::<pg_sys::TransactionStmt>()).kind)
    }
}

/// Is it DROP INDEX?
///
/// # Safety
/// A utility statement.
unsafe fn drops_index(s: *mut pg_sys::Node) -> bool {
    // SAFETY: a node (contract of this function), of a kind that its tag says.
    unsafe {
        (*s).type_ == NodeTag::T_DropStmt
            && (*s.cast::<pg_sys::DropStmt>()).removeType == pg_sys::ObjectType::OBJECT_INDEX
    }
}

/// Of the transaction: how many commands run, one within another, as in an event trigger. One that
/// an ERROR has ended counts until the command around it ends, or the transaction. One in which a
/// transaction has ended counts no more.
static LEVEL: Local<u32> = Local::new(0);

thread_local! {
    /// Of commands that run: tables of ours, indexes or columns of which they drop, and how deep
    /// the commands are. The tables may be dropped, too.
    static DROPPED: RefCell<Vec<(u32, Oid)>> = const { RefCell::new(Vec::new()) };
}

/// A command begins. What commands around it have dropped waits for the ends of these.
fn begin_command(level: u32) {
    LEVEL.set(level);
    DROPPED.with_borrow_mut(|dropped| dropped.retain(|(of, _)| *of < level));
}

/// The transaction has ended, perhaps in the middle of commands.
pub fn end_transaction() {
    LEVEL.set(0);
}

/// A command has dropped indexes: their entries in memory go, where their tables stay. Or columns:
/// they may have been of a partition key.
#[pg_guard]
#[cold]
unsafe extern "C-unwind" fn follow_drop() {
    // SAFETY: the command has changed its catalogs, and holds nothing of them.
    unsafe { pg_sys::CommandCounterIncrement() };
    let level = LEVEL.get();
    let of_it = DROPPED.with_borrow_mut(|dropped| dropped.extract_if(.., |(of, _)| *of >= level).collect::<Vec<_>>());
    // Tables that are not loaded have no primary index yet.
    let known = |oid: &Oid| ours(*oid).is_some_and(|c| shmem::find(c.storage_key()).is_some());
    of_it.into_iter().map(|(_, oid)| oid).filter(known).for_each(|oid| options::sync(oid, Apply::DROPS));
}

/// COPY of a table does not go through the executor's start: it counts as a use of its table at
/// SERIALIZABLE all the same.
fn note_copy(s: *mut pg_sys::CopyStmt) {
    // SAFETY: `s` is the node of a COPY statement: its caller has looked at the tag.
    unsafe {
        if !(pg::is_serializable() || isolation::is_asked()) || (*s).relation.is_null() {
            return;
        }
        let Some(oid) = relid((*s).relation) else { return };
        let rel = pg_sys::RelationIdGetRelation(oid);
        if !rel.is_null() {
            mixture::check_as_asked(&[rel], false);
        }
        if !rel.is_null() && pg::is_serializable() {
            mixture::check_tables(crate::state::rel::is_ours(rel), &[rel]);
            mixture::note_routing(&[rel]);
        }
        if !rel.is_null() {
            pg_sys::RelationClose(rel);
        }
        let routes = (*s).is_from && pg_sys::get_rel_relkind(oid) as u8 == pg_sys::RELKIND_PARTITIONED_TABLE;
        if routes && pg::is_serializable() {
            xact::touched().foreign |= has_foreign(oid);
        }
    }
}

fn concerns_us(tag: NodeTag) -> bool {
    use NodeTag::*;
    let ddl = [
        T_CreateStmt,
        T_CreateTableAsStmt,
        T_ExplainStmt,
        T_AlterTableStmt,
        T_RenameStmt,
        T_IndexStmt,
        T_ReindexStmt,
        T_ClusterStmt,
        T_VacuumStmt,
        T_SecLabelStmt,
        T_RuleStmt,
        T_CreatedbStmt,
        T_DropdbStmt,
        T_AlterDatabaseStmt,
    ];
    tag == T_CopyStmt
        || tag == T_TruncateStmt
        || tag == T_VariableSetStmt
        || ddl.contains(&tag)
        || (tag == T_CallStmt && calls_annotated())
}

/// Is any function annotated? `process` has no guard, and the annotations may have to be read.
#[pg_guard]
extern "C-unwind" fn calls_annotated() -> bool {
    annotate::any()
}

/// May a command of ours keep addresses of versions while functions run? Those that only run the
/// executor, or only read the rows of a table, do not.
fn may_keep_versions(tag: NodeTag) -> bool {
    use NodeTag::{T_CallStmt, T_CopyStmt, T_ExplainStmt, T_VariableSetStmt};
    ![T_CopyStmt, T_VariableSetStmt, T_ExplainStmt, T_CallStmt].contains(&tag)
}

#[pg_guard]
#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn process_ours(
    pstmt: *mut pg_sys::PlannedStmt,
    query: *const core::ffi::c_char,
    read_only: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    env: *mut pg_sys::QueryEnvironment,
    dest: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    let call = Call { pstmt, query, read_only, context, params, env, dest, completion };
    xact::renew_pin();
    // SAFETY: `pstmt` is a utility statement (contract of ProcessUtility_hook).
    if may_keep_versions(unsafe { (*(*pstmt).utilityStmt).type_ }) {
        xact::rests::stay_awake();
    }
    // SAFETY: `pstmt` is a utility statement (contract of ProcessUtility_hook).
    match unsafe { (*(*pstmt).utilityStmt).type_ } {
        NodeTag::T_CreateStmt => create::table(call),
        NodeTag::T_CreateTableAsStmt => create::table_as(call, |c| c.node()),
        NodeTag::T_ExplainStmt if create::explained(&call).is_some() => {
            create::table_as(call, |c| create::explained(c).unwrap_or(std::ptr::null_mut()))
        }
        NodeTag::T_AlterTableStmt => alter::table(call),
        NodeTag::T_RenameStmt => alter::rename(call),
        NodeTag::T_ReindexStmt => maintain::reindex(call),
        NodeTag::T_IndexStmt => maintain::create_index(call),
        NodeTag::T_DropStmt => maintain::drop_index(call),
        NodeTag::T_ClusterStmt => maintain::cluster(call),
        NodeTag::T_VacuumStmt => maintain::vacuum(call),
        NodeTag::T_SecLabelStmt => security_label(call),
        NodeTag::T_RuleStmt => maintain::rule(call),
        NodeTag::T_CreatedbStmt => databases::create(call),
        NodeTag::T_DropdbStmt => databases::remove(call),
        NodeTag::T_AlterDatabaseStmt => databases::alter(call),
        NodeTag::T_CopyStmt => {
            note_copy(call.node());
            copy::table(call)
        }
        NodeTag::T_TruncateStmt => {
            // Foreign tables are truncated without the executor, and without a transaction id.
            // Heirs and partitions may be such ones.
            if pg::is_serializable() {
                let foreign = truncates_foreign(call.node());
                let t = xact::touched();
                (t.routed, t.foreign) = (true, t.foreign || foreign);
            }
            call.run()
        }
        NodeTag::T_VariableSetStmt => copy::variable(call),
        NodeTag::T_CallStmt => {
            let call = call.writable();
            // SAFETY: the node is of an analysed CALL, by its tag, and ours to change (`writable`).
            unsafe { annotate::around_call(call.node(), call.params, || call.run()) };
        }
        _ => call.run(),
    }
}

/// Does a TRUNCATE name a foreign table?
fn truncates_foreign(s: *mut pg_sys::TruncateStmt) -> bool {
    // SAFETY: the statement's list has range variables, or is null (parsenodes.h).
    unsafe {
        let all = pgrx::PgList::<pg_sys::RangeVar>::from_pg((*s).relations);
        let found = all
            .iter_ptr()
            .any(|rv| relid(rv).is_some_and(|oid| if (*rv).inh { has_foreign(oid) } else { is_foreign(oid) }));
        found
    }
}

fn is_foreign(oid: Oid) -> bool {
    // SAFETY: catalog look-up: any OID is answered.
    (unsafe { pg_sys::get_rel_relkind(oid) }) as u8 == pg_sys::RELKIND_FOREIGN_TABLE
}

/// Is it a foreign table, or is one among its descendants?
fn has_foreign(oid: Oid) -> bool {
    family(oid).into_iter().any(is_foreign)
}

/// Keeps a value that is needed after `Call::run`: it belongs to the statement's memory.
fn hold<T>(value: T) -> &'static T {
    // SAFETY: the memory lives at least as long as the statement, and no other code knows it.
    unsafe { &*pgrx::PgMemoryContexts::CurrentMemoryContext.leak_and_drop_on_delete(value) }
}

fn text(p: *const core::ffi::c_char) -> Option<String> {
    // SAFETY: `p` is null or a C string of a parse tree; null is answered first.
    (!p.is_null()).then(|| unsafe { crate::pg::text::read(p) })
}

/// The relation of a range variable, without a lock, if it exists.
fn relid(rv: *const pg_sys::RangeVar) -> Option<Oid> {
    // SAFETY: `rv` is a range variable of a parse tree, as each caller passes it. RVR_MISSING_OK:
    // any name is answered.
    let oid = unsafe {
        pg_sys::RangeVarGetRelidExtended(
            rv,
            pg_sys::NoLock as i32,
            pg_sys::RVROption::RVR_MISSING_OK,
            None,
            std::ptr::null_mut(),
        )
    };
    (oid != pg_sys::InvalidOid).then_some(oid)
}

/// What pg_class says about a relation.
#[derive(Clone, Copy)]
struct Class {
    am: Oid,
    kind: u8,
    persistence: u8,
    tablespace: Oid,
    filenode: Oid,
    schema: Oid,
    is_shared: bool,
}

impl Class {
    /// The key of its storage.
    fn storage_key(&self) -> [u32; 4] {
        // SAFETY: variables of this process.
        let (own, database) = unsafe { (pg_sys::MyDatabaseTableSpace, pg_sys::MyDatabaseId) };
        let space = if self.tablespace == pg_sys::InvalidOid { own } else { self.tablespace };
        compat::storage_key(&compat::storage(space, database, self.filenode))
    }
}

fn class(oid: Oid) -> Option<Class> {
    // SAFETY: catalog look-up: any OID is answered, by a row or null. The row is released after its
    // last use.
    unsafe {
        let tup = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as i32, oid.into());
        if tup.is_null() {
            return None;
        }
        let f = &*pg_sys::GETSTRUCT(tup).cast::<pg_sys::FormData_pg_class>();
        let c = Class {
            am: f.relam,
            kind: f.relkind as u8,
            persistence: f.relpersistence as u8,
            tablespace: f.reltablespace,
            filenode: f.relfilenode,
            schema: f.relnamespace,
            is_shared: f.relisshared,
        };
        pg_sys::ReleaseSysCache(tup);
        Some(c)
    }
}

/// OID of our access method in this database. One of our name that has another's handler is not
/// ours.
fn our_am() -> Option<Oid> {
    // SAFETY: catalog look-up: any name is answered, as it may be missing.
    let oid = unsafe { pg_sys::get_am_oid(PROVIDER.as_ptr(), true) };
    (oid != pg_sys::InvalidOid && has_our_handler(oid)).then_some(oid)
}

fn has_our_handler(am: Oid) -> bool {
    // SAFETY: catalog look-up: any OID is answered, by a row or null. The handler of a table access
    // method returns its routine (tableam.h).
    unsafe {
        let tup = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::AMOID as i32, am.into());
        if tup.is_null() {
            return false;
        }
        let form = pg_sys::GETSTRUCT(tup).cast::<pg_sys::FormData_pg_am>();
        let (kind, handler) = ((*form).amtype as u8, (*form).amhandler);
        pg_sys::ReleaseSysCache(tup);
        kind == pg_sys::AMTYPE_TABLE && pg_sys::GetTableAmRoutine(handler) == crate::paths::tableam::handler::routine()
    }
}

/// Does a name mean our access method? Also where the extension is missing: the command will say
/// so.
fn is_our_method(name: &str) -> bool {
    if name.as_bytes() != PROVIDER.to_bytes() {
        return false;
    }
    // SAFETY: catalog look-up: any name is answered, as it may be missing.
    let oid = unsafe { pg_sys::get_am_oid(PROVIDER.as_ptr(), true) };
    oid == pg_sys::InvalidOid || has_our_handler(oid)
}

/// What pg_class says of a table of ours; `None` for others.
fn ours(oid: Oid) -> Option<Class> {
    class(oid).filter(|c| c.kind == pg_sys::RELKIND_RELATION && Some(c.am) == our_am())
}

/// Runs `f` for each row of pg_class.
fn each_class(f: impl FnMut(&pg_sys::FormData_pg_class)) {
    // SAFETY: the rows of pg_class begin with a `FormData_pg_class`.
    unsafe { each_row(pg_sys::RelationRelationId, f) }
}

/// Runs `f` for each row of pg_index.
fn each_index(f: impl FnMut(&pg_sys::FormData_pg_index)) {
    // SAFETY: the rows of pg_index begin with a `FormData_pg_index`.
    unsafe { each_row(pg_sys::IndexRelationId, f) }
}

/// Runs `f` for each row of a catalog, whose rows are of this type.
///
/// # Safety
/// The rows of `catalog` begin with a `T`.
unsafe fn each_row<T>(catalog: Oid, mut f: impl FnMut(&T)) {
    // SAFETY: the rows begin with a `T` (contract of this function), and each is valid until the
    // next one. What is opened here is closed here, or by an ERROR's clean-up.
    unsafe {
        let no_key = std::ptr::null_mut();
        let rel = pg_sys::table_open(catalog, pg_sys::AccessShareLock as i32);
        let scan = pg_sys::systable_beginscan(rel, pg_sys::InvalidOid, false, std::ptr::null_mut(), 0, no_key);
        loop {
            let tup = pg_sys::systable_getnext(scan);
            if tup.is_null() {
                break;
            }
            f(&*pg_sys::GETSTRUCT(tup).cast::<T>());
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
    }
}

/// The relations that a change of a relation's definition may change: it and its descendants; where
/// it is that of a composite type, the tables that were made of the type, and theirs.
fn members(oid: Oid) -> Vec<Oid> {
    if class(oid).is_none_or(|c| c.kind != pg_sys::RELKIND_COMPOSITE_TYPE) {
        return family(oid);
    }
    // SAFETY: catalog look-up: any OID is answered, by a type or `InvalidOid`.
    let row = unsafe { pg_sys::get_rel_type_id(oid) };
    let mut typed = Vec::new();
    each_class(|form| {
        if form.reloftype == row {
            typed.push(form.oid);
        }
    });
    typed.into_iter().flat_map(family).collect()
}

/// A relation and its descendants.
fn family(oid: Oid) -> Vec<Oid> {
    // SAFETY: catalog look-up that takes no locks: any OID is answered. An ERROR unwinds.
    unsafe {
        let none = std::ptr::null_mut();
        let list = pg_sys::ffi::pg_guard_ffi_boundary(|| find_all_inheritors(oid, pg_sys::NoLock as i32, none));
        pgrx::PgList::<core::ffi::c_void>::from_pg(list).iter_oid().collect()
    }
}

fn name_of(rv: *const pg_sys::RangeVar) -> String {
    // SAFETY: `rv` is a range variable of a parse tree, as each caller passes it.
    text(unsafe { (*rv).relname }).unwrap_or_default()
}

fn security_label(call: Call) {
    let s = call.node::<pg_sys::SecLabelStmt>();
    call.run();
    // SAFETY: the node is of the statement, whose tag the dispatch has looked at; it lives as long
    // as the statement.
    let s = unsafe { &*s };
    if s.objtype != pg_sys::ObjectType::OBJECT_TABLE
        || text(s.provider).is_some_and(|p| p.as_bytes() != PROVIDER.to_bytes())
    {
        return;
    }
    // SAFETY: the object of a table is a list of names (gram.y). The label is seen from the next
    // command on.
    unsafe {
        pg_sys::CommandCounterIncrement();
        let rv = pg_sys::makeRangeVarFromNameList(s.object.cast());
        if let Some(oid) = relid(rv) {
            options::sync(oid, Apply::ALL);
        }
    }
}

/// The database of a name.
fn database(name: &str) -> Option<u32> {
    let name = pg::text::write(name);
    // SAFETY: catalog look-up: any name is answered, as it may be missing.
    let oid = unsafe { pg_sys::get_database_oid(name.as_ptr(), true) };
    (oid != pg_sys::InvalidOid).then_some(oid.to_u32())
}

/// A `DefElem` as words.
struct Element {
    namespace: Option<String>,
    name: String,
    value: Option<String>,
}

impl Element {
    fn is_ours(&self) -> bool {
        self.namespace.as_deref().is_some_and(|n| n.as_bytes() == PROVIDER.to_bytes())
    }
}

fn elements(list: *mut pg_sys::List) -> Vec<Element> {
    // SAFETY: `list` is null or a list of `DefElem`s of a parse tree, as each caller passes it.
    unsafe {
        let list = pgrx::PgList::<pg_sys::DefElem>::from_pg(list);
        list.iter_ptr()
            .map(|d| Element {
                namespace: text((*d).defnamespace),
                name: text((*d).defname).unwrap_or_default(),
                value: if (*d).arg.is_null() { None } else { text(pg_sys::defGetString(d)) },
            })
            .collect()
    }
}

/// Is a flag of a list of options set?
fn flag(list: *mut pg_sys::List, name: &str) -> bool {
    // SAFETY: `list` is null or a list of `DefElem`s of a parse tree, as each caller passes it.
    let all = unsafe { pgrx::PgList::<pg_sys::DefElem>::from_pg(list) };
    let mut on = false;
    for (d, e) in all.iter_ptr().zip(elements(list)) {
        if e.name == name {
            // SAFETY: `d` is an element of the list, a `DefElem`; a value that is no boolean is an
            // ERROR, which unwinds.
            on = unsafe { pg_sys::defGetBoolean(d) };
        }
    }
    on
}

/// Takes our elements out of a list of options: the rest, and ours.
fn take_ours(list: *mut pg_sys::List) -> (*mut pg_sys::List, Vec<Element>) {
    let all = elements(list);
    if !all.iter().any(Element::is_ours) {
        return (list, Vec::new());
    }
    // SAFETY: `list` is null or a list of `DefElem`s of a parse tree, as each caller passes it.
    // `all` has an element for each.
    let rest = unsafe {
        let old = pgrx::PgList::<pg_sys::DefElem>::from_pg(list);
        old.iter_ptr()
            .zip(&all)
            .filter(|(_, e)| !e.is_ours())
            .fold(std::ptr::null_mut(), |l, (d, _)| pg_sys::lappend(l, d.cast()))
    };
    (rest, all.into_iter().filter(Element::is_ours).collect())
}

/// The hook. Called for each function that a statement calls, too: those need no guard.
unsafe extern "C-unwind" fn object_access(
    access: pg_sys::ObjectAccessType::Type,
    class_id: Oid,
    object: Oid,
    sub: core::ffi::c_int,
    arg: *mut core::ffi::c_void,
) {
    // SAFETY: PostgreSQL calls this with the arguments of object_access_hook; the hook before ours
    // gets them unchanged. An ERROR of it jumps over this frame, which owns nothing.
    unsafe {
        if let Some(prev) = PREVIOUS.get().object_access {
            prev(access, class_id, object, sub, arg);
        }
        if class_id == pg_sys::RelationRelationId {
            relation_access(access, object, sub);
        }
    }
}

/// An index of a table is dropped, perhaps with the table, or a column of it.
fn note_dropped(table: Oid) {
    let note = (LEVEL.get(), table);
    let is_known = || DROPPED.with_borrow(|dropped| dropped.contains(&note));
    // What no command has dropped is left to the next one that changes its table.
    if note.0 > 0 && ours(table).is_some() && !is_known() {
        DROPPED.with_borrow_mut(|dropped| dropped.push(note));
    }
}

/// A relation is dropped: our table goes with it, if the transaction commits.
#[pg_guard]
unsafe extern "C-unwind" fn relation_access(
    access: pg_sys::ObjectAccessType::Type,
    object: Oid,
    sub: core::ffi::c_int,
) {
    // SAFETY: the arguments are those of object_access_hook, for a relation.
    unsafe {
        if access == pg_sys::ObjectAccessType::OAT_POST_ALTER && sub > 0 {
            altered::note(object);
        }
        if access != pg_sys::ObjectAccessType::OAT_DROP {
            return;
        }
        match class(object) {
            Some(c) if c.kind == pg_sys::RELKIND_INDEX => {
                // SAFETY: catalog look-up: any OID is answered, as it may be missing.
                note_dropped(pg_sys::IndexGetRelation(object, true))
            }
            // It may be of the partition key.
            _ if sub != 0 => note_dropped(object),
            _ => {
                if let Some(c) = ours(object) {
                    xact::dropped(c.storage_key());
                }
            }
        }
    }
}
