//! At execution: the partitions that annotations name are declared.

use super::{plan, table, with_known, Function, Known};
use crate::admin::sql;
use crate::pg;
use crate::pg::compat::{self, my_lxid};
use crate::pg::local::Local;
use crate::pg::values::{self, Value};
use crate::state::errors::ok;
use crate::state::platform::PG;
use crate::state::xact::{self, Mode};
use mixedcc_engine::protocol::Touch;
use pgrx::pg_sys::{self, NodeTag, Oid};
use pgrx::prelude::*;

/// An argument of a call that is being evaluated.
struct Argument {
    transaction: u32,
    /// Nesting level of the subtransaction in which it was evaluated.
    level: i32,
    function: Oid,
    position: usize,
    /// A value that is not passed by value is copied into the transaction's memory: the other
    /// arguments of the call may be evaluated in another statement's memory.
    value: Value,
    copied: bool,
}

impl Argument {
    fn new(function: Oid, position: usize, (d, null, typid): Value) -> Argument {
        let (mut len, mut byval) = (0, true);
        let mut value = (d, null, typid);
        // SAFETY: `d` is a value of `typid`, or NULL. An ERROR unwinds before anything has changed.
        unsafe {
            if !null {
                pg_sys::get_typlenbyval(typid, &mut len, &mut byval);
            }
            if !byval {
                let old = pg_sys::MemoryContextSwitchTo(pg_sys::TopTransactionContext);
                value.0 = pg::copy(d, false, len as i32);
                pg_sys::MemoryContextSwitchTo(old);
            }
        }
        Argument { transaction: my_lxid(), level: level(), function, position, value, copied: !byval }
    }

    /// The call is complete, or failed.
    fn forget(self) {
        if self.copied {
            // SAFETY: `copied`: `new` has made this copy, in memory of a transaction that still
            // runs (`forget_from`, `at_argument`), and it is freed once.
            unsafe { pg_sys::pfree(self.value.0.cast_mut_ptr()) };
        }
    }
}

/// The knowledge of the calls of a session. Its entries name their transaction: a procedure may
/// commit.
#[derive(Default)]
struct Calls {
    /// Arguments of calls that are being evaluated, and of such that failed in this subtransaction.
    pending: Vec<Argument>,
    /// Arguments of calls whose partitions were all declared when the statement started:
    /// transaction, function, position, value. Integers that are a key by themselves only. To
    /// declare them again when they are evaluated would cost as much again, and do nothing: a
    /// partition's lock is kept until the transaction ends, also over ROLLBACK TO.
    declared: Vec<(u32, Oid, usize, usize)>,
    /// Partitions of the procedures that run: declared again after a COMMIT inside of them.
    frames: Vec<Frame>,
}

static CALLS: Local<Calls> = Local::new(Calls { pending: Vec::new(), declared: Vec::new(), frames: Vec::new() });

struct Frame {
    /// The transaction in which they were declared.
    transaction: u32,
    /// Nesting level of the subtransaction in which the procedure was called.
    level: i32,
    partitions: Vec<(Oid, u64, u32)>,
    /// The group of its transactions.
    group: Option<String>,
}

fn level() -> i32 {
    xact::depth() as i32
}

fn frames() -> &'static mut Vec<Frame> {
    // SAFETY: a process has one thread. Callers keep no reference while PostgreSQL or a user's
    // function runs, and each uses one of the three fields.
    unsafe { &mut CALLS.get_mut().frames }
}

fn pending() -> &'static mut Vec<Argument> {
    // SAFETY: a process has one thread. Callers keep no reference while PostgreSQL or a user's
    // function runs, and each uses one of the three fields.
    unsafe { &mut CALLS.get_mut().pending }
}

fn declared() -> &'static mut Vec<(u32, Oid, usize, usize)> {
    // SAFETY: a process has one thread. Callers keep no reference while PostgreSQL or a user's
    // function runs, and each uses one of the three fields.
    unsafe { &mut CALLS.get_mut().declared }
}

/// An integer, by its bits: such values are compared without knowing their type's functions.
fn integer(v: &Value) -> Option<usize> {
    let is = !v.1 && [pg_sys::INT2OID, pg_sys::INT4OID, pg_sys::INT8OID].contains(&v.2);
    is.then(|| v.0.value())
}

/// Notes the arguments of a call whose partitions are declared.
fn note_declared(function: Oid, values: &[(usize, Option<Value>)]) {
    let (now, all) = (my_lxid(), declared());
    all.retain(|d| d.0 == now && d.1 != function);
    let bits = values.iter().filter_map(|(p, v)| Some((now, function, *p, integer(v.as_ref()?)?)));
    all.extend(bits);
}

fn is_declared(function: Oid, position: usize, value: &Value) -> bool {
    let same = |d: &(u32, Oid, usize, usize)| (d.0, d.1, d.2) == (my_lxid(), function, position);
    declared().iter().any(|d| same(d) && integer(value) == Some(d.3))
}

fn is_wanted() -> bool {
    pg::is_serializable() && xact::mode() == Mode::Serializable
}

/// Is there nothing to lock, because `partcc` runs no partition? Then the transaction is counted as
/// one that declares its partitions, for the choice of protocols, and they are not located: that
/// costs a tenth of a short transaction.
fn is_idle() -> bool {
    let idle = !crate::state::shmem::engine().shared.protocols.wants_declarations();
    if idle {
        xact::txn().note_declared();
    }
    idle
}

/// Declares partitions in the order that all transactions use.
fn declare(mut all: Vec<Touch>) {
    all.sort_by_key(|t| (t.table.id, t.no));
    all.dedup_by_key(|t| (t.table.id, t.no));
    // After an ERROR, which a savepoint may catch, nothing counts as declared.
    let noted = std::mem::take(declared());
    for at in all {
        ok(xact::txn().declare(&PG, at));
    }
    *declared() = noted;
}

/// Where an annotation's table keeps a key. A user without a right on the function locks nothing by
/// it: not all rights of a statement's functions have been checked when it starts.
fn place(f: &Function, name: &str, key: &[Value]) -> Option<(Oid, Touch)> {
    // SAFETY: `GetUserId` reads a variable of this process.
    if !compat::may_call(f.oid, unsafe { pg_sys::GetUserId() }) {
        return None;
    }
    let oid = table(name)?;
    sql::locate_for(oid, key, f.owner).map(|t| (oid, t))
}

/// Notes the group of the outermost procedure that has one: it may have committed since its CALL.
pub(super) fn note_procedure() {
    if let Some(group) = frames().iter().find_map(|f| f.group.as_deref()) {
        xact::groups::note_label(group);
    }
}

/// A statement begins: notes the group that a function which it calls names for the transaction.
///
/// # Safety
/// A planned statement.
#[inline]
pub unsafe fn note_group(stmt: *const pg_sys::PlannedStmt) {
    // SAFETY: `stmt` is valid (contract of this function).
    let items = unsafe { (*stmt).invalItems };
    // Without items it calls no function but built-in ones.
    if !items.is_null() || !frames().is_empty() {
        // SAFETY: null, or a list of items (plannodes.h).
        unsafe { note_calls(items) };
    }
}

/// Callers have no guard, and the annotations may have to be read.
///
/// # Safety
/// Null, or a valid list of PlanInvalItems.
#[pg_guard]
#[cold]
unsafe extern "C-unwind" fn note_calls(items: *mut pg_sys::List) {
    note_procedure();
    if items.is_null() {
        return;
    }
    // SAFETY: this list has items of this type (contract of this function).
    let items = unsafe { pgrx::PgList::<pg_sys::PlanInvalItem>::from_pg(items) };
    let function = pg_sys::SysCacheIdentifier::PROCOID as i32;
    with_known(|k| {
        let named = |f: &&Function| {
            // SAFETY: an item of the list.
            let is = |i: *mut pg_sys::PlanInvalItem| unsafe { ((*i).cacheId, (*i).hashValue) == (function, f.hash) };
            f.group.is_some() && items.iter_ptr().any(is)
        };
        if let Some(group) = k.functions.iter().find(named).and_then(|f| f.group.as_ref()) {
            xact::groups::note_label(group);
        }
    });
}

/// The statement's calls of annotated functions: declares the partitions of arguments that are
/// known already. Called for SERIALIZABLE transactions.
///
/// # Safety
/// The executor has started `q`.
pub unsafe fn at_statement(q: *mut pg_sys::QueryDesc) {
    // SAFETY: `q` was started by the executor (contract of this function), so its plan, state and
    // their lists are valid. `walk` outlives the visit.
    unsafe {
        redeclare();
        let stmt = (*q).plannedstmt;
        if (*stmt).invalItems.is_null() {
            return; // no function but built-in ones
        }
        let items = pgrx::PgList::<pg_sys::PlanInvalItem>::from_pg((*stmt).invalItems);
        let mut found = Vec::new();
        with_known(|k| {
            let calls = |i: *mut pg_sys::PlanInvalItem| {
                (*i).cacheId == pg_sys::SysCacheIdentifier::PROCOID as i32
                    && k.functions.iter().any(|f| f.hash == (*i).hashValue && !f.partitions.is_empty())
            };
            if items.iter_ptr().any(calls) && !is_idle() {
                let params = (*(*q).estate).es_param_list_info;
                let mut walk = Walk { known: k, params, found: &mut found };
                visit_state((*q).planstate, (&raw mut walk).cast());
            }
        });
        declare(found.into_iter().map(|f: (Oid, Touch)| f.1).collect());
    }
}

struct Walk<'a> {
    known: &'a Known,
    params: pg_sys::ParamListInfo,
    found: &'a mut Vec<(Oid, Touch)>,
}

#[pg_guard]
unsafe extern "C-unwind" fn visit_state(ps: *mut pg_sys::PlanState, context: *mut core::ffi::c_void) -> bool {
    // SAFETY: `ps` is null or a node of a plan's state, which is cast as its tag says. `context` is
    // the `Walk` of `at_statement`, which is not used elsewhere meanwhile.
    unsafe {
        if ps.is_null() {
            return false;
        }
        let p = (*ps).plan;
        for list in [(*p).targetlist, (*p).qual] {
            visit(list.cast(), context);
        }
        match (*p).type_ {
            NodeTag::T_FunctionScan => {
                visit((*p.cast::<pg_sys::FunctionScan>()).functions.cast(), context);
            }
            NodeTag::T_Result => {
                visit((*p.cast::<pg_sys::Result>()).resconstantqual, context);
            }
            NodeTag::T_ValuesScan => {
                visit((*p.cast::<pg_sys::ValuesScan>()).values_lists.cast(), context);
            }
            NodeTag::T_NestLoop | NodeTag::T_MergeJoin | NodeTag::T_HashJoin => {
                visit((*p.cast::<pg_sys::Join>()).joinqual.cast(), context);
            }
            _ => {}
        }
        crate::pg::compat::walk_children(ps, visit_state, context)
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn visit(node: *mut pg_sys::Node, context: *mut core::ffi::c_void) -> bool {
    // SAFETY: `node` is null or a node of an expression, which is cast as its tag says. `context`
    // is the `Walk` of `at_statement` or `around_call`.
    unsafe {
        if node.is_null() {
            return false;
        }
        match (*node).type_ {
            NodeTag::T_FuncExpr => {
                let w = &mut *context.cast::<Walk>();
                let call = node.cast::<pg_sys::FuncExpr>();
                if let Some(f) = w.known.functions.iter().find(|f| f.oid == (*call).funcid) {
                    collect(w, f, call);
                }
            }
            // Expressions of a function scan.
            NodeTag::T_RangeTblFunction => return visit((*node.cast::<pg_sys::RangeTblFunction>()).funcexpr, context),
            _ => {}
        }
        pg_sys::expression_tree_walker(node, Some(visit), context)
    }
}

/// Collects the partitions of one call as far as its arguments are known. An argument that names
/// partitions of several tables is evaluated once.
unsafe fn collect(w: &mut Walk, f: &Function, call: *mut pg_sys::FuncExpr) {
    let mut values: Vec<(usize, Option<Value>)> = Vec::new();
    let mut places = 0;
    for (name, positions) in &f.partitions {
        let value = |&p: &usize| {
            if let Some(v) = values.iter().find(|v| v.0 == p) {
                return v.1;
            }
            // SAFETY: `call` is a node of an expression, as `visit` has found it. A fixed argument
            // has no variables, and its parameters are those of the statement.
            let v = unsafe {
                plan::argument(w.known.wrapper, call, p).filter(|&a| is_fixed(a)).map(|a| values::evaluate(a, w.params))
            };
            values.push((p, v));
            v
        };
        let key: Option<Vec<Value>> = positions.iter().map(value).collect();
        if let Some(at) = key.and_then(|k| place(f, name, &k)) {
            w.found.push(at);
            places += 1;
        }
    }
    let single = f.partitions.iter().all(|p| p.1.len() == 1);
    if single && places == f.partitions.len() && values.iter().all(|v| v.1.as_ref().and_then(integer).is_some()) {
        note_declared(f.oid, &values);
    }
}

/// Is it a constant or a parameter of the statement, perhaps converted by a function of
/// PostgreSQL's where nobody asked for it? (Other casts may fail, and the statement may never come
/// to them.)
unsafe fn is_fixed(node: *mut pg_sys::Node) -> bool {
    // SAFETY: `node` is an expression, as each caller has it from an argument list; it is cast as
    // its tag says.
    unsafe {
        match (*node).type_ {
            NodeTag::T_Const => true,
            NodeTag::T_Param => (*node.cast::<pg_sys::Param>()).paramkind == pg_sys::ParamKind::PARAM_EXTERN,
            NodeTag::T_RelabelType => is_fixed((*node.cast::<pg_sys::RelabelType>()).arg.cast()),
            NodeTag::T_FuncExpr => {
                let f = node.cast::<pg_sys::FuncExpr>();
                let cast = (*f).funcformat == pg_sys::CoercionForm::COERCE_IMPLICIT_CAST
                    && (*f).funcid.to_u32() < pg_sys::FirstNormalObjectId;
                let args = pgrx::PgList::<pg_sys::Node>::from_pg((*f).args);
                let fixed = args.iter_ptr().all(|a| is_fixed(a));
                cast && fixed
            }
            _ => false,
        }
    }
}

/// Runs a CALL: its partitions are declared before, and again after each COMMIT inside of it.
/// `stmt` may be changed if any function is annotated.
///
/// # Safety
/// An analysed CALL statement, which may be changed, and its parameters.
pub unsafe fn around_call(stmt: *mut pg_sys::CallStmt, params: pg_sys::ParamListInfo, run: impl FnOnce()) {
    let (mut found, mut group) = (Vec::new(), None);
    with_known(|k| {
        // SAFETY: `stmt` is an analysed CALL (contract of this function): `funcexpr` is null or a
        // call.
        let call = unsafe { (*stmt).funcexpr };
        if k.functions.is_empty() || call.is_null() {
            return;
        }
        // SAFETY: not null.
        let callee = unsafe { (*call).funcid };
        group = k.functions.iter().find(|f| f.oid == callee).and_then(|f| f.group.clone());
        if is_wanted() {
            let mut walk = Walk { known: k, params, found: &mut found };
            // SAFETY: `call` is the call of the statement, which is not null. `walk` outlives the
            // visit.
            unsafe { visit(call.cast(), (&raw mut walk).cast()) };
        }
        // SAFETY: the call may be changed (contract of this function).
        unsafe { plan::wrap_call(k, call) };
    });
    if found.is_empty() && group.is_none() {
        drop((found, group));
        return run();
    }
    if let Some(group) = &group {
        xact::groups::note_label(group);
    }
    let partitions = found.iter().map(|(oid, t)| (*oid, t.table.id, t.no)).collect();
    declare(found.into_iter().map(|f| f.1).collect());
    let depth = frames().len();
    // After an ERROR the callbacks take the frame off.
    frames().push(Frame { transaction: my_lxid(), level: level(), partitions, group });
    run();
    frames().truncate(depth);
}

/// An aborted transaction: procedures that it called have ended. (One that rolls back and goes on
/// locks its partitions when it touches them.)
pub fn abort_transaction() {
    frames().clear();
}

/// An aborted subtransaction: procedures that were called in it have ended, and calls whose
/// arguments it has evaluated failed.
pub fn abort_subtransaction(level: u32) {
    frames().retain(|f| f.level < level as i32);
    forget_from(level as i32);
}

/// A subtransaction that commits leaves its arguments to its parent, whose end they may meet.
pub fn commit_subtransaction(level: u32) {
    let level = level as i32;
    pending().iter_mut().filter(|a| a.level >= level).for_each(|a| a.level = level - 1);
}

/// Frees the arguments that were evaluated at a nesting level or deeper. The memory of those of
/// earlier transactions is gone.
fn forget_from(level: i32) {
    let now = my_lxid();
    let failed = |a: &mut Argument| a.transaction != now || a.level >= level;
    pending().extract_if(.., failed).filter(|a| a.transaction == now).for_each(Argument::forget);
}

/// A new transaction within procedures: what their arguments named is declared again.
pub fn redeclare() {
    let frames = frames();
    let now = my_lxid();
    if frames.iter().all(|f| f.transaction == now) {
        return;
    }
    let mut all = Vec::new();
    for f in frames.iter_mut().filter(|f| f.transaction != now) {
        f.transaction = now;
        all.extend(f.partitions.iter().filter_map(|&(oid, id, no)| sql::locate_again(oid, id, no)));
    }
    declare(all);
}

/// So many calls of a function may be under way whose arguments are not complete: calls within
/// arguments of calls. Those of others never get complete: a later argument is left to its DEFAULT,
/// or not used by a function that the planner has taken in. (Such a call locks its partitions when
/// it touches them.)
const INCOMPLETE: usize = 100;

/// `mixedcc.declaring`: an argument of an annotated function has been evaluated.
pub fn at_argument(function: Oid, position: usize, value: Value) {
    if !is_wanted() || is_declared(function, position, &value) || is_idle() {
        return;
    }
    let mut found = Vec::new();
    with_known(|k| {
        let Some(f) = k.functions.iter().find(|f| f.oid == function) else {
            return;
        };
        super::must_call(function); // plans have seen to it; anybody may call the wrapper
        if !f.partitions.iter().any(|p| p.1.contains(&position)) {
            return; // no partition's: it would be neither asked for nor forgotten
        }
        let argument = Argument::new(function, position, value);
        pending().retain(|a| a.transaction == argument.transaction);
        pending().push(argument);
        let is = |a: &Argument, p| a.function == function && a.position == p;
        if pending().iter().filter(|a| is(a, position)).count() > INCOMPLETE {
            let oldest = pending().iter().position(|a| is(a, position));
            oldest.map(|i| pending().remove(i)).into_iter().for_each(Argument::forget);
        }
        for (name, positions) in &f.partitions {
            if positions.iter().max() != Some(&position) {
                continue;
            }
            let get = |p: &usize| pending().iter().rev().find(|a| is(a, *p)).map(|a| a.value);
            let key: Option<Vec<Value>> = positions.iter().map(get).collect();
            // May run functions of users, whose calls have arguments, too.
            found.extend(key.and_then(|k| place(f, name, &k)));
        }
        let last = f.partitions.iter().flat_map(|p| &p.1).max();
        if last == Some(&position) {
            // The call's arguments are complete.
            let mine: std::collections::HashSet<usize> =
                f.partitions.iter().flat_map(|p| p.1.iter().copied()).collect();
            for p in mine {
                let at = pending().iter().rposition(|a| is(a, p));
                let done = at.map(|i| pending().remove(i));
                done.into_iter().for_each(Argument::forget);
            }
        }
    });
    declare(found.into_iter().map(|f| f.1).collect());
}
