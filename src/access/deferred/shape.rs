//! Which new values are additions: `x + c`, `x - c`, `c + x` and `x || c` of one column, by
//! functions of PostgreSQL's own, with casts around.

use pgrx::pg_sys::{self, Node, NodeTag};
use pgrx::PgList;

/// Of smallint, integer, bigint, real, double precision, numeric and money: column + c
/// (pg_proc.dat).
const PLUS: [u32; 15] = [176, 177, 178, 179, 463, 1274, 1278, 837, 841, 1724, 204, 218, 281, 285, 894];
/// The same: column - c; and array_append, array_cat, textcat.
const MINUS: [u32; 18] = [180, 181, 182, 183, 464, 1279, 1275, 838, 842, 1725, 205, 219, 282, 286, 895, 378, 383, 1258];

/// Are all new values of an UPDATE additions to their own columns? The lists are those of its
/// plan: the values, and the numbers of the columns.
///
/// # Safety
/// Valid lists of a plan that the bypass accepts: its functions are built in and not volatile.
pub unsafe fn is_addition(list: *mut pg_sys::List, columns: *mut pg_sys::List) -> bool {
    // SAFETY: the lists are valid (contract of this function). Values come in the order of the
    // columns; what else the list has is junk.
    unsafe {
        let values: Vec<_> =
            PgList::<pg_sys::TargetEntry>::from_pg(list).iter_ptr().filter(|e| !(**e).resjunk).collect();
        let columns: Vec<i32> = PgList::<i32>::from_pg(columns).iter_int().collect();
        let free: Free = |n| !pg_sys::contain_var_clause(n);
        !columns.is_empty()
            && values.len() == columns.len()
            && values.iter().zip(&columns).all(|(e, column)| {
                let value = (**e).expr.cast();
                has_operator(value) && adds(value, *column, free)
            })
    }
}

/// Is there an operator below the casts?
unsafe fn has_operator(n: *mut Node) -> bool {
    // SAFETY: `n` is an expression of the plan, which is what its tag says.
    unsafe {
        match (*n).type_ {
            NodeTag::T_OpExpr => true,
            NodeTag::T_RelabelType => has_operator((*n.cast::<pg_sys::RelabelType>()).arg.cast()),
            NodeTag::T_FuncExpr => {
                let args = PgList::<Node>::from_pg((*n.cast::<pg_sys::FuncExpr>()).args);
                args.get_ptr(0).is_some_and(|a| has_operator(a))
            }
            _ => false,
        }
    }
}

/// Tells whether an operand has nothing to do with the row.
type Free = unsafe fn(*mut Node) -> bool;

/// Is it a sum of this column and others?
unsafe fn adds(n: *mut Node, column: i32, free: Free) -> bool {
    // SAFETY: `n` is an expression of the plan, which is what its tag says.
    unsafe {
        match (*n).type_ {
            NodeTag::T_Var => (*n.cast::<pg_sys::Var>()).varattno as i32 == column,
            NodeTag::T_RelabelType => adds((*n.cast::<pg_sys::RelabelType>()).arg.cast(), column, free),
            NodeTag::T_FuncExpr => {
                let f = &*n.cast::<pg_sys::FuncExpr>();
                let casts = f.funcformat == pg_sys::CoercionForm::COERCE_IMPLICIT_CAST
                    || f.funcformat == pg_sys::CoercionForm::COERCE_EXPLICIT_CAST;
                let args = PgList::<Node>::from_pg(f.args);
                let mut rest = args.iter_ptr().skip(1);
                // A stable one may give another value at the end: settings may have changed.
                let casts = casts && pg_sys::func_volatile(f.funcid) as u8 == pg_sys::PROVOLATILE_IMMUTABLE;
                casts && args.get_ptr(0).is_some_and(|a| adds(a, column, free)) && rest.all(|a| free(a))
            }
            NodeTag::T_OpExpr => {
                let op = &*n.cast::<pg_sys::OpExpr>();
                let args = PgList::<Node>::from_pg(op.args);
                let (Some(a), Some(b)) = (args.get_ptr(0), args.get_ptr(1)) else { return false };
                let function = op.opfuncid.to_u32();
                let plus = PLUS.contains(&function);
                (plus || MINUS.contains(&function)) && adds(a, column, free) && free(b)
                    || plus && free(a) && adds(b, column, free)
            }
            _ => false,
        }
    }
}

/// A copy of the values in which all but the column is a constant that is not NULL. `None`: it
/// cannot be made.
///
/// # Safety
/// A list of [`is_addition`]; null or valid parameters. An ERROR unwinds.
pub unsafe fn with_values(list: *mut pg_sys::List, params: pg_sys::ParamListInfo) -> Option<*mut pg_sys::List> {
    // SAFETY: the list is valid (contract of this function). A planner's state of zeros with these
    // fields is all that the folding of constants reads.
    unsafe {
        let glob = pg_sys::palloc0(std::mem::size_of::<pg_sys::PlannerGlobal>()).cast::<pg_sys::PlannerGlobal>();
        (*glob).type_ = NodeTag::T_PlannerGlobal;
        (*glob).boundParams = params;
        let root = pg_sys::palloc0(std::mem::size_of::<pg_sys::PlannerInfo>()).cast::<pg_sys::PlannerInfo>();
        (*root).type_ = NodeTag::T_PlannerInfo;
        (*root).glob = glob;
        let copy = pg_sys::copyObjectImpl(list.cast()).cast::<pg_sys::List>();
        for e in PgList::<pg_sys::TargetEntry>::from_pg(copy).iter_ptr().filter(|e| !(**e).resjunk) {
            let mut found = std::ptr::null_mut();
            pg_sys::pull_varattnos((*e).expr.cast(), varno((*e).expr.cast())?, &mut found);
            let column = pg_sys::bms_next_member(found, -1) + pg_sys::FirstLowInvalidHeapAttributeNumber;
            (*e).expr = pg_sys::estimate_expression_value(root, (*e).expr.cast()).cast();
            let known: Free = |n| (*n).type_ == NodeTag::T_Const && !(*n.cast::<pg_sys::Const>()).constisnull;
            if !adds((*e).expr.cast(), column, known) {
                return None;
            }
        }
        Some(copy)
    }
}

/// The number of the table in the range table: of the first column in the expression.
unsafe fn varno(n: *mut Node) -> Option<u32> {
    // SAFETY: `n` is a valid expression; `pull_var_clause` lists its columns.
    unsafe {
        let all = pg_sys::pull_var_clause(n, 0);
        PgList::<pg_sys::Var>::from_pg(all).get_ptr(0).map(|v| (*v).varno as u32)
    }
}
