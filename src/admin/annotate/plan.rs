//! At planning: arguments of annotated functions are wrapped, to declare partitions when they are
//! evaluated. Their groups are noted.

use super::{declare, with_known, Known};
use crate::pg;
use crate::pg::previous::PREVIOUS;
use crate::state::xact;
use pgrx::pg_sys::{self, Datum, NodeTag, Oid};
use pgrx::prelude::*;

/// The function `mixedcc.declaring(anyelement, oid, int)`. Found without rights: plans of users
/// without a right on the schema are wrapped too.
pub fn wrapper() -> Oid {
    // SAFETY: the names are constants that end with a zero byte, and `types` has three entries.
    // Each look-up may answer `InvalidOid`.
    unsafe {
        let extension = pg_sys::get_extension_oid(c"mixedcc".as_ptr(), true);
        let schema = pg_sys::get_namespace_oid(c"mixedcc".as_ptr(), true);
        if extension == pg_sys::InvalidOid || schema == pg_sys::InvalidOid {
            return pg_sys::InvalidOid;
        }
        let types = [pg_sys::ANYELEMENTOID, pg_sys::OIDOID, pg_sys::INT4OID];
        pg_sys::GetSysCacheOid(
            pg_sys::SysCacheIdentifier::PROCNAMEARGSNSP as i32,
            pg_sys::Anum_pg_proc_oid as pg_sys::AttrNumber,
            Datum::from(c"declaring".as_ptr()),
            Datum::from(pg_sys::buildoidvector(types.as_ptr(), types.len() as i32)),
            schema.into(),
            Datum::from(0usize),
        )
    }
}

/// Installs the planner's hook.
pub fn init() {
    // SAFETY: `_PG_init` runs alone, so the hook has no caller yet.
    unsafe {
        PREVIOUS.get_mut().planner_of_annotations = pg_sys::planner_hook;
        pg_sys::planner_hook = Some(planner);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn planner(
    query: *mut pg_sys::Query,
    text: *const core::ffi::c_char,
    options: core::ffi::c_int,
    params: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    // SAFETY: the arguments are those of planner_hook, and are passed on unchanged. The planner may
    // change its query, as `wrap_query` does. The calls may raise: nothing that needs a drop is
    // alive in this frame.
    unsafe {
        // Before the planner looks at tables, which may begin the transaction.
        xact::groups::note_statement((*query).queryId as u64);
        declare::note_procedure();
        wrap_query(query);
        match PREVIOUS.get().planner_of_annotations {
            Some(prev) => prev(query, text, options, params),
            None => pg::raw::standard_planner(query, text, options, params),
        }
    }
}

/// Wraps arguments in a query that is about to be planned. Costs nothing in a database without
/// annotations.
///
/// # Safety
/// A query that may be changed.
unsafe fn wrap_query(query: *mut pg_sys::Query) {
    with_known(|k| {
        if k.functions.is_empty() || k.wrapper == pg_sys::InvalidOid {
            return;
        }
        let mut walk = Walk { known: k };
        // SAFETY: `query` is the planner's to change (contract of this function). `walk` outlives
        // the walk.
        unsafe { pg_sys::query_tree_walker(query, Some(visit), (&raw mut walk).cast(), 0) };
    });
}

/// Wraps the arguments of one call.
///
/// # Safety
/// A call that may be changed.
pub(super) unsafe fn wrap_call(known: &Known, f: *mut pg_sys::FuncExpr) {
    if known.wrapper == pg_sys::InvalidOid {
        return;
    }
    let mut walk = Walk { known };
    // SAFETY: `f` is a call that may be changed (contract of this function). `walk` outlives the
    // visit.
    unsafe { visit(f.cast(), (&raw mut walk).cast()) };
}

struct Walk<'a> {
    known: &'a Known,
}

#[pg_guard]
unsafe extern "C-unwind" fn visit(node: *mut pg_sys::Node, context: *mut core::ffi::c_void) -> bool {
    // SAFETY: `node` is null or a node of a query's tree, which is cast as its tag says. `context`
    // is the `Walk` of `wrap_query` or `wrap_call`.
    unsafe {
        if node.is_null() {
            return false;
        }
        match (*node).type_ {
            NodeTag::T_Query => return pg_sys::query_tree_walker(node.cast(), Some(visit), context, 0),
            NodeTag::T_FuncExpr => {
                let known = (*context.cast::<Walk>()).known;
                let f = node.cast::<pg_sys::FuncExpr>();
                if let Some(known_function) = known.functions.iter().find(|k| k.oid == (*f).funcid) {
                    if let Some(group) = &known_function.group {
                        xact::groups::note_label(group);
                    }
                    for (_, positions) in &known_function.partitions {
                        for &p in positions {
                            wrap(known.wrapper, f, p);
                        }
                    }
                }
            }
            _ => {}
        }
        pg_sys::expression_tree_walker(node, Some(visit), context)
    }
}

/// The argument of a call at an input position, and where it stands. Arguments by name know their
/// position.
unsafe fn argument_cell(f: *mut pg_sys::FuncExpr, position: usize) -> Option<*mut *mut pg_sys::Node> {
    // SAFETY: `f` is a valid call: its arguments are null or a list of expressions, of `length`
    // elements.
    unsafe {
        let list = (*f).args;
        if list.is_null() {
            return None;
        }
        for i in 0..(*list).length as usize {
            let cell: *mut *mut pg_sys::Node = (&raw mut (*(*list).elements.add(i)).ptr_value).cast();
            if (**cell).type_ == NodeTag::T_NamedArgExpr {
                let named = (*cell).cast::<pg_sys::NamedArgExpr>();
                if (*named).argnumber as usize == position {
                    return Some((&raw mut (*named).arg).cast());
                }
            } else if i == position {
                return Some(cell);
            }
        }
        None
    }
}

unsafe fn wrap(wrapper: Oid, f: *mut pg_sys::FuncExpr, position: usize) {
    // SAFETY: `f` is a call in a tree that may be changed: `visit` has found it there. `cell` is an
    // element of its arguments.
    unsafe {
        let Some(cell) = argument_cell(f, position) else {
            return;
        };
        if unwrapped(wrapper, *cell) != *cell {
            return;
        }
        let typid = pg_sys::exprType(*cell);
        let number = |t: Oid, v: u32| {
            pg_sys::makeConst(t, -1, pg_sys::InvalidOid, 4, Datum::from(v as usize), false, true).cast()
        };
        let args = pg_sys::lappend(std::ptr::null_mut(), (*cell).cast());
        let args = pg_sys::lappend(args, number(pg_sys::OIDOID, (*f).funcid.to_u32()));
        let args = pg_sys::lappend(args, number(pg_sys::INT4OID, position as u32));
        let collation = pg_sys::exprCollation(*cell);
        let call = pg_sys::makeFuncExpr(
            wrapper,
            typid,
            args,
            collation,
            collation,
            pg_sys::CoercionForm::COERCE_EXPLICIT_CALL,
        );
        *cell = call.cast();
    }
}

/// What a wrapped argument was.
///
/// # Safety
/// A valid expression.
pub(super) unsafe fn unwrapped(wrapper: Oid, node: *mut pg_sys::Node) -> *mut pg_sys::Node {
    // SAFETY: `node` is a valid expression (contract of this function). A call of the wrapper has
    // three arguments.
    unsafe {
        if (*node).type_ == NodeTag::T_FuncExpr {
            let f = node.cast::<pg_sys::FuncExpr>();
            if (*f).funcid == wrapper {
                return (*(*(*f).args).elements).ptr_value.cast();
            }
        }
        node
    }
}

/// The argument at a position, without its wrapper.
///
/// # Safety
/// A valid call, whose arguments are a list of expressions.
pub(super) unsafe fn argument(wrapper: Oid, f: *mut pg_sys::FuncExpr, position: usize) -> Option<*mut pg_sys::Node> {
    // SAFETY: `f` is a valid call (contract of this function).
    unsafe { argument_cell(f, position).map(|c| unwrapped(wrapper, *c)) }
}
