//! SERIALIZABLE on a standby (INV-AS-ASKED, `pg/isolation.rs`): the commands that ask for it.
//! PostgreSQL refuses it in recovery, so it gets REPEATABLE READ in its place.

use super::{copy, text, Call};
use crate::pg::{compat, isolation};
use pgrx::pg_sys::{self, NodeTag};
use pgrx::prelude::*;

const LEVEL: &str = "transaction_isolation";

/// What a command has to do with isolation levels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Concern {
    /// It may set the level of the transaction.
    Level,
    /// It shows the level of the transaction.
    Show,
    /// The next transaction has the level of this one.
    Chain,
}

/// What does a command have to do with isolation levels on a standby, or after its promotion?
///
/// # Safety
/// A utility statement.
#[inline]
pub unsafe fn concern(s: *mut pg_sys::Node) -> Option<Concern> {
    // SAFETY: a node (contract of this function), of a kind that its tag says.
    unsafe {
        let found = match (*s).type_ {
            NodeTag::T_TransactionStmt => of_transaction(&*s.cast()),
            NodeTag::T_VariableSetStmt => of_setting(&*s.cast()),
            NodeTag::T_VariableShowStmt => of_show(&*s.cast()),
            _ => None,
        };
        found.filter(|_| isolation::is_asked() || compat::in_recovery())
    }
}

fn of_transaction(s: &pg_sys::TransactionStmt) -> Option<Concern> {
    use pg_sys::TransactionStmtKind::{TRANS_STMT_BEGIN, TRANS_STMT_START};
    match s.kind {
        TRANS_STMT_BEGIN | TRANS_STMT_START => (!s.options.is_null()).then_some(Concern::Level),
        _ => s.chain.then_some(Concern::Chain),
    }
}

fn of_setting(s: &pg_sys::VariableSetStmt) -> Option<Concern> {
    let name = text(s.name)?.to_ascii_lowercase();
    (name == LEVEL || name == "transaction").then_some(Concern::Level)
}

fn of_show(s: &pg_sys::VariableShowStmt) -> Option<Concern> {
    (text(s.name)?.to_ascii_lowercase() == LEVEL).then_some(Concern::Show)
}

/// Runs a command that has to do with isolation levels.
#[pg_guard]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C-unwind" fn process(
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
    // SAFETY: `pstmt` is a utility statement (contract of ProcessUtility_hook).
    match unsafe { concern((*pstmt).utilityStmt) } {
        Some(Concern::Level) => set_level(call),
        Some(Concern::Show) => isolation::with_asked(|| run(&call)),
        Some(Concern::Chain) => {
            isolation::chain();
            run(&call);
        }
        None => run(&call),
    }
}

fn run(call: &Call) {
    // SAFETY: `pstmt` is a utility statement (contract of `process`).
    match unsafe { (*(*call.pstmt).utilityStmt).type_ } {
        NodeTag::T_VariableSetStmt => copy::variable(*call),
        _ => call.run(),
    }
}

/// A level that a command names: a string in its tree.
fn levels(call: &Call) -> Vec<*mut pg_sys::A_Const> {
    // SAFETY: `process` has looked at the tags. Options are `DefElem`s, whose values are constants
    // for a level; the arguments of SET are constants, or other nodes that are passed over.
    unsafe {
        let s = (*call.pstmt).utilityStmt;
        let (options, args) = match (*s).type_ {
            NodeTag::T_TransactionStmt => ((*s.cast::<pg_sys::TransactionStmt>()).options, std::ptr::null_mut()),
            _ => {
                let set = &*s.cast::<pg_sys::VariableSetStmt>();
                match set.kind {
                    pg_sys::VariableSetKind::VAR_SET_MULTI => (set.args, std::ptr::null_mut()),
                    _ => (std::ptr::null_mut(), set.args),
                }
            }
        };
        let named = pgrx::PgList::<pg_sys::DefElem>::from_pg(options);
        let of_options = named.iter_ptr().filter(|d| text((**d).defname).is_some_and(|name| name == LEVEL));
        let of_args = pgrx::PgList::<pg_sys::Node>::from_pg(args);
        let all = of_options.map(|d| (*d).arg).chain(of_args.iter_ptr());
        let strings = all.filter(|n| !n.is_null() && (**n).type_ == NodeTag::T_A_Const).map(|n| n.cast());
        strings.filter(|c: &*mut pg_sys::A_Const| (**c).val.node.type_ == NodeTag::T_String).collect()
    }
}

fn set_level(call: Call) {
    // SAFETY: a constant of `levels` has a string. Variables of this process.
    let is_serializable = |c: &*mut pg_sys::A_Const| unsafe {
        text((**c).val.sval.sval).is_some_and(|level| level.eq_ignore_ascii_case("serializable"))
    };
    let Some(last) = levels(&call).last().map(is_serializable) else { return run(&call) };
    let may_change = isolation::may_change();
    if !last || !compat::in_recovery() || !(may_change || isolation::is_asked()) {
        run(&call);
        if may_change {
            isolation::ask(false);
        }
        return;
    }
    let call = call.writable();
    for level in levels(&call).into_iter().filter(is_serializable) {
        // SAFETY: the tree is ours to change (`writable`). It is not freed string by string.
        unsafe { (*level).val.sval.sval = c"repeatable read".as_ptr().cast_mut() };
    }
    run(&call);
    isolation::ask(true);
}
