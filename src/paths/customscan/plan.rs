//! The plan node.
//!
//! `crate::access::range::plan` describes its fields. Where the conditions are the whole key, the
//! expressions are its values. Else they are the conditions with the index's columns for the
//! table's, as index scans have them.

use super::{list, nodes, path, SCAN};
use crate::keys::codec;
use pgrx::pg_sys::{self, NodeTag, Oid};
use pgrx::prelude::*;

/// `PlanCustomPath`.
///
/// # Safety
/// PlanCustomPath of extensible.h: `best` is a path of ours for `rel`, and the lists are its.
#[pg_guard]
pub unsafe extern "C-unwind" fn make(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    best: *mut pg_sys::CustomPath,
    tlist: *mut pg_sys::List,
    clauses: *mut pg_sys::List,
    _plans: *mut pg_sys::List,
) -> *mut pg_sys::Plan {
    let _ = root;
    // SAFETY: `path::custom` has made `best`, so its list has one index path (extensible.h). The
    // memory is zeroed and of the size of a `CustomScan`.
    unsafe {
        let p = pg_sys::list_nth((*best).custom_private, 0).cast::<pg_sys::IndexPath>();
        let index = (*p).indexinfo;
        let conditions = conditions(p);
        let original = conditions.iter().fold(std::ptr::null_mut(), |l, c| pg_sys::lappend(l, c.1.cast()));
        let (exprs, types) = match whole_key(index, &conditions) {
            Some(values) => (
                values.iter().fold(std::ptr::null_mut(), |l, v| pg_sys::lappend(l, v.0.cast())),
                values.iter().fold(std::ptr::null_mut(), |l, v| pg_sys::lappend_oid(l, v.1)),
            ),
            None => {
                let fixed = conditions.iter().map(|(c, clause)| on_index(index, c.as_slice(), *clause));
                (fixed.fold(std::ptr::null_mut(), |l, f| pg_sys::lappend(l, f.cast())), std::ptr::null_mut())
            }
        };
        let c = pg_sys::palloc0(std::mem::size_of::<pg_sys::CustomScan>()).cast::<pg_sys::CustomScan>();
        (*c).scan.plan.type_ = NodeTag::T_CustomScan;
        (*c).scan.plan.targetlist = tlist;
        (*c).scan.plan.qual = filter(clauses, p, original);
        (*c).scan.scanrelid = (*rel).relid;
        (*c).flags = (*best).flags;
        (*c).custom_exprs = list(&[exprs, original]);
        (*c).custom_private = list(&[
            pg_sys::lappend_oid(std::ptr::null_mut(), (*index).indexoid),
            pg_sys::lappend_int(std::ptr::null_mut(), (*p).indexscandir),
            types,
        ]);
        (*c).methods = &SCAN.0;
        c.cast()
    }
}

/// The index conditions: columns of the index (from 0), and the clause.
unsafe fn conditions(p: *mut pg_sys::IndexPath) -> Vec<(Vec<usize>, *mut pg_sys::Node)> {
    let mut all = Vec::new();
    // SAFETY: `make` has a valid index path; `nodes` needs lists of these types, which an index
    // path has.
    unsafe {
        for c in nodes::<pg_sys::IndexClause>((*p).indexclauses) {
            let columns = match (*c).indexcols.is_null() {
                true => vec![(*c).indexcol as usize],
                false => {
                    (0..(*(*c).indexcols).length).map(|i| pg_sys::list_nth_int((*c).indexcols, i) as usize).collect()
                }
            };
            for r in nodes::<pg_sys::RestrictInfo>((*c).indexquals) {
                all.push((columns.clone(), (*r).clause.cast()));
            }
        }
    }
    all
}

/// The conditions that rows must be tested for: all but those that the scan checks itself.
unsafe fn filter(
    clauses: *mut pg_sys::List,
    p: *mut pg_sys::IndexPath,
    original: *mut pg_sys::List,
) -> *mut pg_sys::List {
    // SAFETY: `make` has clauses of the path's relation, in the order in which they shall be
    // tested.
    unsafe {
        let implied = |r: &*mut pg_sys::RestrictInfo| {
            let clause = (**r).clause.cast::<pg_sys::Node>();
            !pg_sys::contain_mutable_functions(clause)
                && pg_sys::predicate_implied_by(list(&[clause.cast()]), original, false)
        };
        let rest = path::left_over(clauses, p).into_iter().filter(|r| !implied(r));
        let rest = rest.fold(std::ptr::null_mut(), |l, r| pg_sys::lappend(l, r.cast()));
        pg_sys::extract_actual_clauses(rest, false)
    }
}

/// The values, with their types, that the conditions give each column of the key, if they are one
/// equality each, of types whose values are exact as bytes.
unsafe fn whole_key(
    index: *mut pg_sys::IndexOptInfo,
    conditions: &[(Vec<usize>, *mut pg_sys::Node)],
) -> Option<Vec<(*mut pg_sys::Node, Oid)>> {
    // SAFETY: `make` has conditions of this index, and `column` is below `nkeycolumns`. A B-tree
    // equality has two arguments.
    unsafe {
        let n = (*index).nkeycolumns as usize;
        if conditions.len() != n {
            return None;
        }
        let codec = codec::by_oid((*index).indexoid)??;
        let mut values = Vec::with_capacity(n);
        for column in 0..n {
            let (_, clause) = conditions.iter().find(|(c, _)| c.as_slice() == [column])?;
            if (**clause).type_ != NodeTag::T_OpExpr {
                return None;
            }
            let op = clause.cast::<pg_sys::OpExpr>();
            let family = *(*index).opfamily.add(column);
            let (mut left, mut right) = (Oid::INVALID, Oid::INVALID);
            pg_sys::op_input_types((*op).opno, &mut left, &mut right);
            let equal = pg_sys::get_op_opfamily_strategy((*op).opno, family) as u32 == pg_sys::BTEqualStrategyNumber;
            if !equal || !codec.is_exact(column, right) {
                return None;
            }
            values.push((pg_sys::list_nth((*op).args, 1).cast(), right));
        }
        Some(values)
    }
}

/// A condition with columns of the index in place of the table's.
unsafe fn on_index(
    index: *mut pg_sys::IndexOptInfo,
    columns: &[usize],
    clause: *mut pg_sys::Node,
) -> *mut pg_sys::Node {
    // SAFETY: `make` has an index condition (indxpath.c): its key is on the left. The loop stays
    // within the operands, which it has counted.
    unsafe {
        let clause = pg_sys::copyObjectImpl(clause.cast()).cast::<pg_sys::Node>();
        let operands = match (*clause).type_ {
            NodeTag::T_OpExpr => (*clause.cast::<pg_sys::OpExpr>()).args,
            NodeTag::T_ScalarArrayOpExpr => (*clause.cast::<pg_sys::ScalarArrayOpExpr>()).args,
            NodeTag::T_RowCompareExpr => (*clause.cast::<pg_sys::RowCompareExpr>()).largs,
            NodeTag::T_NullTest => {
                let t = clause.cast::<pg_sys::NullTest>();
                (*t).arg = column(index, columns[0], (*t).arg.cast()).cast();
                return clause;
            }
            _ => error!("unexpected index condition"),
        };
        if columns.len() > pg_sys::list_length(operands) as usize {
            error!("an index condition has fewer operands than columns");
        }
        for (i, c) in columns.iter().enumerate() {
            let cell = &mut *(*operands).elements.add(i);
            cell.ptr_value = column(index, *c, cell.ptr_value.cast()).cast();
        }
        clause
    }
}

/// A column of the index for one of the table.
unsafe fn column(index: *mut pg_sys::IndexOptInfo, at: usize, mut node: *mut pg_sys::Node) -> *mut pg_sys::Node {
    // SAFETY: `on_index` has an operand of a copied index condition; each node is what its tag
    // says. `at` is compared with `nkeycolumns` before the keys are read.
    unsafe {
        if (*node).type_ == NodeTag::T_RelabelType {
            node = (*node.cast::<pg_sys::RelabelType>()).arg.cast();
        }
        let var = node.cast::<pg_sys::Var>();
        let known = at < (*index).nkeycolumns as usize && (*node).type_ == NodeTag::T_Var;
        if !known || (*var).varattno as i32 != *(*index).indexkeys.add(at) {
            error!("an index condition is not on a column of the key");
        }
        let var = pg_sys::copyObjectImpl(var.cast()).cast::<pg_sys::Var>();
        (*var).varno = pg_sys::INDEX_VAR as _;
        (*var).varattno = at as i16 + 1;
        var.cast()
    }
}
