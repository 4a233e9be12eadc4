//! Paths: index paths of the keys in memory, with the costs of their indexes there.

use super::{list, nodes, PATH};
use crate::access::primary;
use crate::pg::previous::PREVIOUS;
use crate::pg::{compat, guc, relations};
use crate::state::rel;
use pgrx::pg_sys::{self, NodeTag};
use pgrx::prelude::*;

/// A descent from the root to a leaf, and what is done once a scan, in operators.
const DESCENT: f64 = 20.0;
/// A row by its record, against a row of the next page slot: two places in memory instead of one.
const ROW: f64 = 1.5;

/// At least so many of the rows that a filter sees are taken for ones that it removes.
const REMOVED: f64 = 0.1;

/// Installs the hook.
pub fn init() {
    // SAFETY: `_PG_init` runs alone, so nothing else uses `PREVIOUS` or the hook meanwhile.
    unsafe {
        PREVIOUS.get_mut().paths = pg_sys::set_rel_pathlist_hook;
        pg_sys::set_rel_pathlist_hook = Some(set_rel_pathlist);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn set_rel_pathlist(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    rti: pg_sys::Index,
    rte: *mut pg_sys::RangeTblEntry,
) {
    // SAFETY: the planner gives a valid relation of its own and its entry (set_rel_pathlist_hook of
    // paths.h).
    unsafe {
        if let Some(prev) = PREVIOUS.get().paths {
            prev(root, rel, rti, rte);
        }
        if is_candidate(rel, rte) {
            add_paths(root, rel, rte);
        }
        if !(*rel).partial_pathlist.is_null() && (*rte).rtekind == pg_sys::RTEKind::RTE_RELATION {
            keep_known(rel, (*rte).relid);
        }
    }
}

/// The scans whose copies of the statement's snapshot we mark in each process (INV-WORKER).
const MARKED: [NodeTag; 4] =
    [NodeTag::T_SeqScan, NodeTag::T_IndexScan, NodeTag::T_IndexOnlyScan, NodeTag::T_BitmapHeapScan];

/// Of the partial paths of a table of ours only those of these scans stay.
unsafe fn keep_known(rel: *mut pg_sys::RelOptInfo, oid: pg_sys::Oid) {
    // SAFETY: `set_rel_pathlist` has a valid relation of the planner, which has locked the table.
    unsafe {
        let table = relations::entry(oid);
        if rel::is_ours(table) {
            let all = nodes::<pg_sys::Path>((*rel).partial_pathlist).into_iter();
            let kept: Vec<_> = all.filter(|p| MARKED.contains(&(**p).pathtype)).map(|p| p.cast()).collect();
            (*rel).partial_pathlist = if kept.is_empty() { std::ptr::null_mut() } else { list(&kept) };
        }
        pg_sys::RelationClose(table);
    }
}

unsafe fn is_candidate(rel: *mut pg_sys::RelOptInfo, rte: *mut pg_sys::RangeTblEntry) -> bool {
    // SAFETY: `set_rel_pathlist` has a valid relation of the planner and its entry. The settings
    // are plain reads.
    unsafe {
        (*rte).rtekind == pg_sys::RTEKind::RTE_RELATION
            && (*rte).relkind as u8 == pg_sys::RELKIND_RELATION
            && !(*rte).inh
            && (*rte).tablesample.is_null()
            && !(*rel).indexlist.is_null()
            && !(*rel).pathlist.is_null()
            // CURRENT OF works with TID scans only, and says so by its cost.
            && (*rel).baserestrictcost.startup < pg_sys::disable_cost
            && guc::ENABLE_PRIMARY_SCAN.get()
            && pg_sys::enable_indexscan
            && crate::state::shmem::is_up()
    }
}

unsafe fn add_paths(root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo, rte: *mut pg_sys::RangeTblEntry) {
    // SAFETY: `is_candidate` has found a plain table. The planner has locked it, and the reference
    // is held until `RelationClose`.
    unsafe {
        let heap = relations::entry((*rte).relid);
        let mut indexes = nodes::<pg_sys::IndexOptInfo>((*rel).indexlist);
        let usable = |i: &*mut pg_sys::IndexOptInfo| primary::usable_by(heap, rel::info(heap), (**i).indexoid);
        indexes.retain(|i| rel::is_ours(heap) && usable(i).is_some());
        pg_sys::RelationClose(heap);
        let mut outdone = false;
        for index in &indexes {
            for p in index_paths(root, rel, *index) {
                if !(*p).indexclauses.is_null() || !(*p).path.pathkeys.is_null() {
                    let path = custom(root, rel, p);
                    outdone |= outdo(rel, *index, &(*path).path);
                    pg_sys::add_path(rel, path.cast());
                }
            }
        }
        if outdone {
            other_paths(root, rel, &indexes);
        }
    }
}

/// PostgreSQL's plain paths of an index. Those that were found too expensive are made again.
unsafe fn index_paths(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    index: *mut pg_sys::IndexOptInfo,
) -> Vec<*mut pg_sys::IndexPath> {
    // SAFETY: `add_paths` has a valid relation of the planner and an index of its list. An ERROR
    // ends the planning, and with it all that is changed here for a moment.
    unsafe {
        let of_index = move |l| {
            let all = nodes::<pg_sys::Path>(l).into_iter().filter(|p| (**p).type_ == NodeTag::T_IndexPath);
            let plain = all.map(|p| p.cast::<pg_sys::IndexPath>()).filter(|p| (**p).indexinfo == index);
            plain.filter(|p| (**p).indexorderbys.is_null()).collect::<Vec<_>>()
        };
        let there = of_index((*rel).pathlist);
        // One row by the whole key: nothing is better.
        let is_whole = |p: &*mut pg_sys::IndexPath| {
            (**p).path.param_info.is_null() && (**p).path.rows <= 1.0 && (**p).path.pathkeys.is_null()
        };
        if there.iter().any(is_whole) && (*rel).joininfo.is_null() && !(*rel).has_eclass_joins {
            return there;
        }
        let saved = ((*rel).indexlist, (*rel).pathlist, (*rel).partial_pathlist);
        let able = ((*index).amhasgetbitmap, (*index).amcanparallel);
        ((*rel).indexlist, (*rel).pathlist, (*rel).partial_pathlist) =
            (list(&[index.cast()]), std::ptr::null_mut(), std::ptr::null_mut());
        ((*index).amhasgetbitmap, (*index).amcanparallel) = (false, false);
        pg_sys::create_index_paths(root, rel);
        let made = of_index((*rel).pathlist);
        ((*rel).indexlist, (*rel).pathlist, (*rel).partial_pathlist) = saved;
        ((*index).amhasgetbitmap, (*index).amcanparallel) = able;
        made
    }
}

/// Our path in place of an index path.
unsafe fn custom(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    p: *mut pg_sys::IndexPath,
) -> *mut pg_sys::CustomPath {
    // SAFETY: `index_paths` has made `p` for this relation. The memory is zeroed and of the size of
    // a `CustomPath`.
    unsafe {
        let c = pg_sys::palloc0(std::mem::size_of::<pg_sys::CustomPath>()).cast::<pg_sys::CustomPath>();
        (*c).path = (*p).path;
        (*c).path.type_ = NodeTag::T_CustomPath;
        (*c).path.pathtype = NodeTag::T_CustomScan;
        (*c).path.parallel_safe = false;
        (*c).path.parallel_aware = false;
        (*c).path.parallel_workers = 0;
        (*c).flags = pg_sys::CUSTOMPATH_SUPPORT_BACKWARD_SCAN | pg_sys::CUSTOMPATH_SUPPORT_PROJECTION;
        (*c).custom_private = list(&[p.cast()]);
        (*c).methods = &PATH.0;
        let (startup, total) = cost(root, rel, p);
        ((*c).path.startup_cost, (*c).path.total_cost) = (startup, total);
        c
    }
}

/// PostgreSQL's paths of the index come to their first row no sooner than ours, which would be the
/// better one. Were there any?
unsafe fn outdo(rel: *mut pg_sys::RelOptInfo, index: *mut pg_sys::IndexOptInfo, ours: &pg_sys::Path) -> bool {
    // SAFETY: `add_paths` has a valid relation of the planner. `add_path` keeps the list in the
    // order of total costs, which do not change.
    unsafe {
        let mut any = false;
        for p in nodes::<pg_sys::Path>((*rel).pathlist) {
            let same = (*p).type_ == NodeTag::T_IndexPath && (*p.cast::<pg_sys::IndexPath>()).indexinfo == index;
            if same && (*p).startup_cost < ours.startup_cost && (*p).param_info == ours.param_info {
                (*p).startup_cost = ours.startup_cost.min((*p).total_cost);
                any = true;
            }
        }
        any
    }
}

/// Makes the paths of the other indexes again: PostgreSQL's of these, as they were, may have been
/// better than one of them.
unsafe fn other_paths(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    these: &[*mut pg_sys::IndexOptInfo],
) {
    // SAFETY: as in `index_paths`.
    unsafe {
        let saved = ((*rel).indexlist, (*rel).partial_pathlist);
        let others = nodes::<pg_sys::IndexOptInfo>((*rel).indexlist).into_iter().filter(|i| !these.contains(i));
        let others: Vec<_> = others.map(|i| i.cast()).collect();
        if others.is_empty() {
            return;
        }
        ((*rel).indexlist, (*rel).partial_pathlist) = (list(&others), std::ptr::null_mut());
        pg_sys::create_index_paths(root, rel);
        ((*rel).indexlist, (*rel).partial_pathlist) = saved;
    }
}

/// Conditions that the index does not check.
///
/// # Safety
/// `p` is an index path of the planner, and `clauses` are of its relation, or null.
pub unsafe fn left_over(clauses: *mut pg_sys::List, p: *mut pg_sys::IndexPath) -> Vec<*mut pg_sys::RestrictInfo> {
    // SAFETY: `clauses` are of the relation of `p`: contract of this function.
    unsafe {
        let mut all = nodes::<pg_sys::RestrictInfo>(clauses);
        all.retain(|r| !(**r).pseudoconstant && !pg_sys::is_redundant_with_indexclauses(*r, (*p).indexclauses));
        all
    }
}

/// Startup and total cost. There are no pages to read.
///
/// A path that gives its first rows cheaply is chosen for LIMIT. PostgreSQL takes the rows that a
/// filter passes for evenly spread. In a queue they are not: all finished jobs have the smallest
/// keys, and a scan reads them all before the first one that is ready. So the first row costs as if
/// the rows that pass stood together, at any place. An index that has the column is chosen then.
unsafe fn cost(root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo, p: *mut pg_sys::IndexPath) -> (f64, f64) {
    // SAFETY: `custom` has an index path of this relation. An array comparison has two arguments;
    // the settings are plain reads.
    unsafe {
        let (operator, tuple) = (pg_sys::cpu_operator_cost, pg_sys::cpu_tuple_cost);
        let rows = ((*p).indexselectivity * (*rel).tuples).round().max(1.0);
        let descent = (DESCENT + (*rel).tuples.max(2.0).log2()) * operator;
        let mut descents = 1.0;
        for c in nodes::<pg_sys::IndexClause>((*p).indexclauses) {
            for r in nodes::<pg_sys::RestrictInfo>((*c).indexquals) {
                let clause = (*r).clause.cast::<pg_sys::Node>();
                if (*clause).type_ == NodeTag::T_ScalarArrayOpExpr {
                    let array = pg_sys::list_nth((*clause.cast::<pg_sys::ScalarArrayOpExpr>()).args, 1);
                    descents *= compat::array_length(root, array.cast()).max(1.0);
                }
            }
        }
        let descents = descents.min(rows.max(1.0));
        let mut rest = left_over((*rel).baserestrictinfo, p);
        if !(*p).path.param_info.is_null() {
            rest.extend(left_over((*(*p).path.param_info).ppi_clauses, p));
        }
        let mut qual = pg_sys::QualCost::default();
        let rest = rest.into_iter().fold(std::ptr::null_mut(), |l, r| pg_sys::lappend(l, r.cast()));
        pg_sys::cost_qual_eval(&mut qual, rest, root);
        let removed = if rest.is_null() { 0.0 } else { (1.0 - selectivity(root, rel, rest)).max(REMOVED) };
        let target = (*(*p).path.pathtarget).cost;
        let startup = qual.startup + target.startup + descent;
        let per_entry = pg_sys::cpu_index_tuple_cost + operator;
        let per_row = ROW * tuple + qual.per_tuple;
        let entries = entries(root, rel, p).max(rows);
        let run = entries * per_entry + rows * per_row;
        let total = startup + (descents - 1.0) * descent + run;
        (startup + removed * run / 2.0, total + (*p).path.rows * target.per_tuple)
    }
}

/// Entries of the index that a scan reads: those within the bounds, which equalities of the first
/// columns and the conditions on the next one make.
unsafe fn entries(root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo, p: *mut pg_sys::IndexPath) -> f64 {
    // SAFETY: `cost` has an index path of this relation. The column of each of its clauses is one
    // of its index.
    unsafe {
        let (mut bounds, mut column, mut fixed) = (std::ptr::null_mut(), 0, false);
        for c in nodes::<pg_sys::IndexClause>((*p).indexclauses) {
            let at = (*c).indexcol as i32;
            if at != column {
                if !fixed || at != column + 1 {
                    break;
                }
                (column, fixed) = (at, false);
            }
            for r in nodes::<pg_sys::RestrictInfo>((*c).indexquals) {
                fixed |= is_equality((*p).indexinfo, at as usize, (*r).clause.cast());
                bounds = pg_sys::lappend(bounds, r.cast());
            }
        }
        (selectivity(root, rel, bounds) * (*rel).tuples).round().max(1.0)
    }
}

unsafe fn selectivity(root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo, clauses: *mut pg_sys::List) -> f64 {
    // SAFETY: `cost` and `entries` have conditions of a valid relation of the planner.
    unsafe {
        let (relid, join) = ((*rel).relid as i32, pg_sys::JoinType::JOIN_INNER);
        pg_sys::clauselist_selectivity(root, clauses, relid, join, std::ptr::null_mut())
    }
}

unsafe fn is_equality(index: *mut pg_sys::IndexOptInfo, column: usize, clause: *mut pg_sys::Node) -> bool {
    // SAFETY: `entries` has a condition on a key column of the index, which has an operator family
    // for each. The node is what its tag says.
    unsafe {
        let op = match (*clause).type_ {
            NodeTag::T_OpExpr => (*clause.cast::<pg_sys::OpExpr>()).opno,
            NodeTag::T_ScalarArrayOpExpr => (*clause.cast::<pg_sys::ScalarArrayOpExpr>()).opno,
            _ => return false,
        };
        pg_sys::get_op_opfamily_strategy(op, *(*index).opfamily.add(column)) as u32 == pg_sys::BTEqualStrategyNumber
    }
}

/// The path for a child of a partitioned table, whose parameters come from another child.
///
/// # Safety
/// ReparameterizeCustomPathByChild of extensible.h: `private` is the list of a path of ours.
#[pg_guard]
pub unsafe extern "C-unwind" fn reparameterize(
    root: *mut pg_sys::PlannerInfo,
    private: *mut pg_sys::List,
    child: *mut pg_sys::RelOptInfo,
) -> *mut pg_sys::List {
    // SAFETY: `custom` has made the list `private`, of one index path, and the planner gives a
    // valid child.
    unsafe {
        let p = pg_sys::list_nth(private, 0).cast::<pg_sys::Path>();
        list(&[pg_sys::reparameterize_path_by_child(root, p, child).cast()])
    }
}
