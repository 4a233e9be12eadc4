//! Which plans the bypass can run, and what they do.
//!
//! A plan is accepted only if everything in it is known here: an unknown node, expression or flag
//! is left to the executor.

use super::program::Open;
use super::Reason;
use crate::access::range;
use crate::pg::compat;
use crate::pg::expr::is_foreign;
use crate::pg::relations;
use pgrx::pg_sys::{self, CmdType, List, Node, NodeTag, Plan};
use pgrx::PgList;

/// What a statement does to its only table.
pub struct Shape {
    /// SELECT, INSERT, UPDATE or DELETE.
    pub op: CmdType::Type,
    /// The table's number in the range table.
    pub rti: u32,
    /// What SELECT returns, or the values that INSERT and UPDATE put in.
    pub list: *mut List,
    /// UPDATE: the columns that the values are for.
    pub columns: *mut List,
    /// RETURNING, or null.
    pub returning: *mut List,
    /// Conditions that a row must fulfil, in the order in which they are evaluated.
    pub quals: Vec<*mut Node>,
    /// How many of them the index decides.
    pub n_index_quals: usize,
    /// The scan, which is the plan's own; null for INSERT.
    pub node: *mut Plan,
    /// SELECT: the number of rows and those before them, or null.
    pub limit: [*mut Node; 2],
    /// SELECT: the lock that is taken on its rows, or null.
    pub lock: *mut pg_sys::PlanRowMark,
    /// SELECT: the list is one row of aggregates, whose arguments are columns of the table.
    pub aggregates: Vec<*mut pg_sys::Aggref>,
    /// INSERT: the rows of VALUES, if there are several; `list` has their columns.
    pub rows: Vec<*mut List>,
}

impl Shape {
    fn new(op: CmdType::Type, rti: u32) -> Shape {
        let null = std::ptr::null_mut();
        Shape {
            op,
            rti,
            list: null,
            columns: null,
            returning: null,
            quals: Vec::new(),
            n_index_quals: 0,
            node: null.cast(),
            limit: [null.cast(); 2],
            lock: null.cast(),
            aggregates: Vec::new(),
            rows: Vec::new(),
        }
    }
}

/// nextval, currval, lastval, random, clock_timestamp, timeofday, gen_random_uuid (pg_proc.dat).
const VARYING: [u32; 7] = [1574, 1575, 2559, 1598, 2649, 274, 3432];

/// More rows of one INSERT than this are the executor's: a program is made for each of them.
const MOST_ROWS: i32 = 100;

type Found<T> = Result<T, Reason>;

mod select;

/// Reads a plan. Its expressions are copied into the current memory context.
///
/// # Safety
/// A valid plan.
pub unsafe fn read(stmt: *mut pg_sys::PlannedStmt) -> Found<Shape> {
    // SAFETY: `stmt` is a valid plan: contract of this function. Each node is what its tag says.
    unsafe {
        let s = &*stmt;
        let others = !s.subplans.is_null() || s.hasModifyingCTE || !s.utilityStmt.is_null();
        if others || s.commandType != CmdType::CMD_SELECT && !s.rowMarks.is_null() {
            return Err(Reason::Plan);
        }
        match s.commandType {
            CmdType::CMD_SELECT => select::read(s.planTree, s.rowMarks),
            CmdType::CMD_INSERT | CmdType::CMD_UPDATE | CmdType::CMD_DELETE => modify(s.planTree),
            _ => Err(Reason::Plan),
        }
    }
}

/// The only table that a plan may be about, before anything else is looked at; 0 if there is none.
///
/// # Safety
/// A valid plan.
pub unsafe fn table_of(stmt: *mut pg_sys::PlannedStmt) -> u32 {
    // SAFETY: `stmt` is a valid plan: contract of this function. Each node is what its tag says,
    // and a node of these kinds has a child.
    unsafe {
        let mut p = (*stmt).planTree;
        if p.is_null() {
            return 0;
        }
        if (*p).type_ == NodeTag::T_ModifyTable {
            let relations = (*p.cast::<pg_sys::ModifyTable>()).resultRelations;
            return if pg_sys::list_length(relations) == 1 { pg_sys::list_nth_int(relations, 0) as u32 } else { 0 };
        }
        loop {
            p = match (*p).type_ {
                NodeTag::T_Limit | NodeTag::T_LockRows | NodeTag::T_Agg => (*p).lefttree,
                NodeTag::T_SubqueryScan => (*p.cast::<pg_sys::SubqueryScan>()).subplan,
                _ => break,
            }
        }
        match (*p).type_ {
            NodeTag::T_IndexScan | NodeTag::T_IndexOnlyScan | NodeTag::T_SeqScan | NodeTag::T_BitmapHeapScan => {
                (*p.cast::<pg_sys::Scan>()).scanrelid
            }
            NodeTag::T_CustomScan if range::plan::is_ours(p) => (*p.cast::<pg_sys::Scan>()).scanrelid,
            _ => 0,
        }
    }
}

/// The entry of the range table that a number of a plan names; `None`: there is none.
///
/// # Safety
/// A valid plan.
pub unsafe fn range_entry(stmt: *mut pg_sys::PlannedStmt, rti: u32) -> Option<*mut pg_sys::RangeTblEntry> {
    // SAFETY: `stmt` is a valid plan: contract of this function. Its range table is a list of such
    // entries.
    unsafe { PgList::<pg_sys::RangeTblEntry>::from_pg((*stmt).rtable).get_ptr((rti as usize).checked_sub(1)?) }
}

unsafe fn plain(p: *mut Plan) -> Found<()> {
    // SAFETY: the caller has a valid node of a plan.
    unsafe {
        if !(*p).initPlan.is_null() || !(*p).righttree.is_null() || (*p).parallel_aware {
            return Err(Reason::Plan);
        }
        Ok(())
    }
}

/// The scan of a table: what it asks of a row.
unsafe fn scan(p: *mut Plan, op: CmdType::Type) -> Found<Shape> {
    // SAFETY: the caller has a valid node of a plan, which is what its tag says. `scanrelid` is
    // read only of scans.
    unsafe {
        plain(p)?;
        let mut index = pg_sys::InvalidOid;
        let lists = match (*p).type_ {
            NodeTag::T_SeqScan => [std::ptr::null_mut(), (*p).qual],
            NodeTag::T_IndexScan => {
                let s = &*p.cast::<pg_sys::IndexScan>();
                if !s.indexorderby.is_null() {
                    return Err(Reason::Plan);
                }
                index = s.indexid;
                [s.indexqualorig, (*p).qual]
            }
            NodeTag::T_IndexOnlyScan => {
                let s = &*p.cast::<pg_sys::IndexOnlyScan>();
                if !s.indexorderby.is_null() {
                    return Err(Reason::Plan);
                }
                index = s.indexid;
                [s.indexqual, (*p).qual]
            }
            NodeTag::T_BitmapHeapScan => [(*p.cast::<pg_sys::BitmapHeapScan>()).bitmapqualorig, (*p).qual],
            NodeTag::T_CustomScan if range::plan::is_ours(p) => [range::plan::conditions(p.cast()), (*p).qual],
            _ => return Err(Reason::Plan),
        };
        let rti = (*p.cast::<pg_sys::Scan>()).scanrelid;
        let mut shape = Shape { node: p, ..Shape::new(op, rti) };
        for l in lists {
            let l: *mut List = pg_sys::copyObjectImpl(l.cast()).cast();
            fix_list(p, l)?;
            shape.n_index_quals = shape.quals.len();
            shape.quals.extend(PgList::<Node>::from_pg(l).iter_ptr());
        }
        if index != pg_sys::InvalidOid {
            // Before the filter, whose conditions may be errors of rows that the index has not.
            let (l, at) = (predicate(index, rti)?, shape.n_index_quals);
            shape.quals.splice(at..at, PgList::<Node>::from_pg(l).iter_ptr());
        }
        Ok(shape)
    }
}

/// The predicate of an index, with the table's number in the range table. The planner leaves
/// conditions out of a plan that the index's predicate implies, and the row may be looked up by
/// the primary key instead.
unsafe fn predicate(index: pg_sys::Oid, rti: u32) -> Found<*mut List> {
    // SAFETY: the plan's index exists while its table is locked. The list is a copy, or null.
    unsafe {
        let open = Open(relations::entry(index));
        let list = pg_sys::RelationGetIndexPredicate(open.0);
        pg_sys::ChangeVarNodes(list.cast(), 1, rti as i32, 0);
        walk(list.cast(), Walk { may_vary: false, rti, index_list: std::ptr::null_mut() })?;
        Ok(list)
    }
}

unsafe fn modify(p: *mut Plan) -> Found<Shape> {
    // SAFETY: `read` has a valid plan of a write. Each node is what its tag says; a `ModifyTable`
    // has a list for each result relation.
    unsafe {
        if (*p).type_ != NodeTag::T_ModifyTable {
            return Err(Reason::Plan);
        }
        plain(p)?;
        let m = &*p.cast::<pg_sys::ModifyTable>();
        if m.rootRelation != 0 || pg_sys::list_length(m.resultRelations) != 1 {
            return Err(Reason::Partitioned);
        }
        if m.onConflictAction != pg_sys::OnConflictAction::ONCONFLICT_NONE {
            return Err(Reason::OnConflict);
        }
        if !m.withCheckOptionLists.is_null() || !m.rowMarks.is_null() || !m.mergeActionLists.is_null() {
            return Err(Reason::Plan);
        }
        let rti = pg_sys::list_nth_int(m.resultRelations, 0) as u32;
        let below = (*p).lefttree;
        let mut shape =
            if m.operation == CmdType::CMD_INSERT { values(below, rti)? } else { scan(below, m.operation)? };
        if shape.rti != rti {
            return Err(Reason::Plan);
        }
        if m.operation != CmdType::CMD_DELETE {
            shape.list = without_junk((*below).targetlist);
            fix_new(below, shape.list)?;
        }
        if m.operation == CmdType::CMD_UPDATE {
            shape.columns = pg_sys::copyObjectImpl(pg_sys::list_nth(m.updateColnosLists, 0)).cast();
        }
        if !m.returningLists.is_null() {
            shape.returning = pg_sys::copyObjectImpl(pg_sys::list_nth(m.returningLists, 0)).cast();
            check(shape.returning.cast(), rti, std::ptr::null_mut())?;
        }
        Ok(shape)
    }
}

/// INSERT of one row of expressions, or of several.
unsafe fn values(p: *mut Plan, rti: u32) -> Found<Shape> {
    // SAFETY: `modify` has a valid node below a `ModifyTable`, which is what its tag says.
    unsafe {
        plain(p)?;
        if !(*p).qual.is_null() {
            return Err(Reason::Plan);
        }
        let mut shape = Shape::new(CmdType::CMD_INSERT, rti);
        match (*p).type_ {
            NodeTag::T_Result => {
                if !(*p).lefttree.is_null() || !(*p.cast::<pg_sys::Result>()).resconstantqual.is_null() {
                    return Err(Reason::Plan);
                }
            }
            NodeTag::T_ValuesScan => {
                let lists = (*p.cast::<pg_sys::ValuesScan>()).values_lists;
                if pg_sys::list_length(lists) > MOST_ROWS {
                    return Err(Reason::Plan);
                }
                let lists: *mut List = pg_sys::copyObjectImpl(lists.cast()).cast();
                walk(lists.cast(), Walk { may_vary: true, rti: 0, index_list: std::ptr::null_mut() })?;
                shape.rows = PgList::<List>::from_pg(lists).iter_ptr().collect();
            }
            _ => return Err(Reason::Plan),
        }
        Ok(shape)
    }
}

/// A copy of a target list without the columns that only the executor needs (ctid).
unsafe fn without_junk(list: *mut List) -> *mut List {
    // SAFETY: the caller has a target list of a valid plan, or null.
    unsafe {
        let mut kept = std::ptr::null_mut();
        for tle in PgList::<pg_sys::TargetEntry>::from_pg(list).iter_ptr() {
            if !(*tle).resjunk {
                kept = pg_sys::lappend(kept, pg_sys::copyObjectImpl(tle.cast()));
            }
        }
        kept
    }
}

/// Checks the expressions of a node of the plan; those of an index-only scan are put in terms of
/// the table.
unsafe fn fix_list(p: *mut Plan, list: *mut List) -> Found<()> {
    // SAFETY: the caller has a valid node and a copy of a list of its expressions (as `fix` needs).
    unsafe { fix(p, list, false) }
}

/// The same for the values of a new row, each of which is computed once.
unsafe fn fix_new(p: *mut Plan, list: *mut List) -> Found<()> {
    // SAFETY: the caller has a valid node and a copy of a list of its expressions (as `fix` needs).
    unsafe { fix(p, list, true) }
}

unsafe fn fix(p: *mut Plan, list: *mut List, may_vary: bool) -> Found<()> {
    // SAFETY: the caller has a valid node and a copy of a list of its expressions. Nodes other than
    // `Result` are scans here.
    unsafe {
        let (rti, index_list) = match (*p).type_ {
            NodeTag::T_IndexOnlyScan => {
                let s = &*p.cast::<pg_sys::IndexOnlyScan>();
                (s.scan.scanrelid, s.indextlist)
            }
            NodeTag::T_Result => (0, std::ptr::null_mut()),
            _ => ((*p.cast::<pg_sys::Scan>()).scanrelid, std::ptr::null_mut()),
        };
        walk(list.cast(), Walk { may_vary, rti, index_list })
    }
}

struct Walk {
    /// May functions occur that give another value each time, but do nothing else that matters?
    may_vary: bool,
    /// The table whose columns may occur, or 0.
    rti: u32,
    /// What columns of the index stand for, or null.
    index_list: *mut List,
}

/// May the bypass evaluate an expression, whose columns are those of the table `rti`?
///
/// # Safety
/// An expression, or a list of some, that may be changed.
pub unsafe fn check(node: *mut Node, rti: u32, index_list: *mut List) -> Found<()> {
    // SAFETY: `node` is null or a valid expression that may be changed: contract of this function.
    unsafe { walk(node, Walk { may_vary: false, rti, index_list }) }
}

unsafe fn walk(node: *mut Node, mut walk: Walk) -> Found<()> {
    // SAFETY: the caller has a valid expression that may be changed, and `walk` lives longer than
    // the call.
    if unsafe { refused(node, (&raw mut walk).cast()) } {
        return Err(Reason::Expression);
    }
    Ok(())
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn refused(node: *mut Node, context: *mut core::ffi::c_void) -> bool {
    // SAFETY: `expression_tree_walker` gives a valid node or null (nodeFuncs.h), and the context is
    // the `Walk` of `walk`.
    unsafe {
        if node.is_null() {
            return false;
        }
        match (*node).type_ {
            NodeTag::T_Var => return !is_column(node.cast(), &*context.cast::<Walk>()),
            NodeTag::T_Param => return (*node.cast::<pg_sys::Param>()).paramkind != pg_sys::ParamKind::PARAM_EXTERN,
            NodeTag::T_Const | NodeTag::T_SQLValueFunction | NodeTag::T_CaseTestExpr => return false,
            NodeTag::T_NextValueExpr => return !(*context.cast::<Walk>()).may_vary,
            NodeTag::T_FuncExpr if (*node.cast::<pg_sys::FuncExpr>()).funcretset => return true,
            NodeTag::T_FuncExpr if (*context.cast::<Walk>()).may_vary && varies(node.cast()) => {
                return pg_sys::expression_tree_walker(node, Some(refused), context)
            }
            NodeTag::T_OpExpr if (*node.cast::<pg_sys::OpExpr>()).opretset => return true,
            NodeTag::T_SubscriptingRef if !is_plain_element(node.cast()) => return true,
            NodeTag::T_List
            | NodeTag::T_TargetEntry
            | NodeTag::T_FuncExpr
            | NodeTag::T_OpExpr
            | NodeTag::T_DistinctExpr
            | NodeTag::T_NullIfExpr
            | NodeTag::T_ScalarArrayOpExpr
            | NodeTag::T_BoolExpr
            | NodeTag::T_RelabelType
            | NodeTag::T_CoerceViaIO
            | NodeTag::T_CaseExpr
            | NodeTag::T_CaseWhen
            | NodeTag::T_CoalesceExpr
            | NodeTag::T_MinMaxExpr
            | NodeTag::T_NullTest
            | NodeTag::T_BooleanTest
            | NodeTag::T_ArrayExpr
            | NodeTag::T_SubscriptingRef => {}
            _ => return true,
        }
        if may_call_anything(node) {
            return true;
        }
        pg_sys::check_functions_in_node(node, Some(is_foreign), std::ptr::null_mut())
            || pg_sys::expression_tree_walker(node, Some(refused), context)
    }
}

/// Does an expression, which the planner has not changed yet, call a function that may do anything,
/// or test a domain?
///
/// # Safety
/// An expression.
pub unsafe fn calls_foreign(node: *mut Node) -> bool {
    // SAFETY: the contract of this function.
    unsafe { is_foreign_call(node, std::ptr::null_mut()) }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn is_foreign_call(node: *mut Node, context: *mut core::ffi::c_void) -> bool {
    // SAFETY: `expression_tree_walker` gives a valid node or null (nodeFuncs.h).
    unsafe {
        !node.is_null()
            && ((*node).type_ == NodeTag::T_CoerceToDomain
                || pg_sys::check_functions_in_node(node, Some(is_foreign), std::ptr::null_mut())
                || pg_sys::expression_tree_walker(node, Some(is_foreign_call), context))
    }
}

/// Does it call a function for values of types of users, or of row types? What such a function
/// calls in turn depends on the type: casts to JSON, operator classes, CHECK constraints of domains
/// may run any function. Those of row types keep between calls what they know of the type, and
/// ALTER TYPE does not tell of it.
unsafe fn may_call_anything(node: *mut Node) -> bool {
    // SAFETY: `refused` has a valid node, which is what its tag says.
    let (args, enums) = unsafe {
        match (*node).type_ {
            NodeTag::T_FuncExpr => ((*node.cast::<pg_sys::FuncExpr>()).args, Enums::Refused),
            NodeTag::T_OpExpr | NodeTag::T_DistinctExpr | NodeTag::T_NullIfExpr => {
                ((*node.cast::<pg_sys::OpExpr>()).args, Enums::Alone)
            }
            // The operator is that of the elements.
            NodeTag::T_ScalarArrayOpExpr => ((*node.cast::<pg_sys::ScalarArrayOpExpr>()).args, Enums::Taken),
            NodeTag::T_MinMaxExpr => ((*node.cast::<pg_sys::MinMaxExpr>()).args, Enums::Refused),
            NodeTag::T_CoerceViaIO => {
                let arg = (*node.cast::<pg_sys::CoerceViaIO>()).arg;
                return is_of_users(node_type(arg.cast()), Enums::Taken) || is_of_users(node_type(node), Enums::Taken);
            }
            _ => return false,
        }
    };
    // SAFETY: as above: the arguments are a list of valid expressions, or null.
    unsafe {
        is_of_users(node_type(node), enums)
            || PgList::<Node>::from_pg(args).iter_ptr().any(|a| is_of_users(node_type(a), enums))
    }
}

unsafe fn node_type(node: *mut Node) -> pg_sys::Oid {
    // SAFETY: the caller has a valid expression.
    unsafe { pg_sys::exprType(node) }
}

/// Where enums are like built-in types: their operators and functions are built in. A user may
/// have given them casts and operator classes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Enums {
    Refused,
    /// Not as elements of arrays, which are compared by the class of the elements.
    Alone,
    Taken,
}

/// A row type, a type of users, an array of these, or an array of domains? A domain alone is what
/// its base type is: an expression of a domain's constraints is none that is known here.
fn is_of_users(of: pg_sys::Oid, enums: Enums) -> bool {
    // SAFETY: catalog look-ups: any OID is answered.
    unsafe {
        let base = pg_sys::getBaseType(of);
        let element = pg_sys::get_element_type(base);
        let is_array = element != pg_sys::InvalidOid;
        let plain = if is_array { element } else { base };
        let may_be_enum = enums == Enums::Taken || enums == Enums::Alone && !is_array;
        let is_enum = || pg_sys::get_typtype(plain) as u8 == pg_sys::TYPTYPE_ENUM;
        pg_sys::type_is_rowtype(plain) || plain.to_u32() >= pg_sys::FirstUnpinnedObjectId && !(may_be_enum && is_enum())
    }
}

/// Is it a volatile built-in function that reads the clock, or draws a number or a value of a
/// sequence?
unsafe fn varies(f: *mut pg_sys::FuncExpr) -> bool {
    // SAFETY: `refused` has a valid node with the tag of a `FuncExpr`.
    VARYING.contains(unsafe { &(*f).funcid.to_u32() })
}

/// An element or a slice of a value of a built-in type: read, not assigned.
unsafe fn is_plain_element(r: *mut pg_sys::SubscriptingRef) -> bool {
    // SAFETY: `refused` has a valid node with the tag of a `SubscriptingRef`. The catalog look-up
    // answers any type.
    unsafe {
        let mut element = pg_sys::InvalidOid;
        let handler = pg_sys::get_typsubscript((*r).refcontainertype, &mut element);
        (*r).refassgnexpr.is_null() && handler.to_u32() < pg_sys::FirstUnpinnedObjectId
    }
}

/// The column that an entry of a target list is. `None`: it is another expression, or there is no
/// such entry, because the number stands for the whole row (0) or a system column (below 0) of what
/// the list describes.
unsafe fn column_of(list: *mut List, number: pg_sys::AttrNumber) -> Option<*mut pg_sys::Var> {
    // SAFETY: `list` is a target list of the plan or null, and a node is what its tag says.
    unsafe {
        let at = usize::try_from(i32::from(number) - 1).ok()?;
        let entry = PgList::<pg_sys::TargetEntry>::from_pg(list).get_ptr(at)?;
        let column = (*entry).expr.cast::<pg_sys::Var>();
        (!column.is_null() && (*column).xpr.type_ == NodeTag::T_Var).then_some(column)
    }
}

/// A column of the table, which is not a system column or the whole row, nor of OLD or NEW.
unsafe fn is_column(v: *mut pg_sys::Var, walk: &Walk) -> bool {
    // SAFETY: `refused` has a valid node with the tag of a `Var`, which belongs to a copy and may
    // be changed.
    unsafe {
        if (*v).varno == pg_sys::INDEX_VAR && !walk.index_list.is_null() {
            let Some(column) = column_of(walk.index_list, (*v).varattno) else { return false };
            (*v).varno = (*column).varno;
            (*v).varattno = (*column).varattno;
        }
        (*v).varlevelsup == 0 && (*v).varno == walk.rti as i32 && (*v).varattno > 0 && compat::is_of_row(v)
    }
}
