//! What a program reads: one row by its whole key, or the rows of a range of keys.

use super::{list_of, zeroed, Open, Program};
use crate::access::{looked, primary, range};
use crate::paths::bypass::plan::Shape;
use crate::paths::bypass::{agg, Reason};
use crate::pg::relations;
use crate::state::rel;
use mixedcc_engine::range::Columns;
use pgrx::pg_sys::{self, Node, NodeTag, Oid};

/// What UPDATE and DELETE read in order to write it.
///
/// # Safety
/// `table` is open, and `compile` makes `p`, which has its row and context; `shape` is of its plan.
pub unsafe fn written(
    p: *mut Program,
    table: pg_sys::Relation,
    shape: &Shape,
    params: pg_sys::ParamListInfo,
) -> Result<(), Reason> {
    // SAFETY: `table` is open and `p` is being made: contract of this function.
    unsafe {
        (*p).for_write = true;
        if let Err(why) = key(p, table, shape, params) {
            range(p, table, shape).ok_or(why)?;
        }
        Ok(())
    }
}

/// The conditions: one equality for each column of a key, and the rest.
unsafe fn key(
    p: *mut Program,
    table: pg_sys::Relation,
    shape: &Shape,
    params: pg_sys::ParamListInfo,
) -> Result<(), Reason> {
    // SAFETY: `written` and `select` have an open table, and `p` is being made. An index exists
    // while its table is locked. `keys` has room for as many columns as the key has.
    unsafe {
        let asked = |oid| Some((oid, equalities(&Open(relations::entry(oid)), shape)?));
        let (oid, (key, rest)) = keys_of(table).into_iter().find_map(asked).ok_or(Reason::Key)?;
        (*p).index = oid;
        (*p).keys = zeroed(key.len());
        (*p).n_keys = key.len();
        for (c, e) in key.into_iter().enumerate() {
            let k = &mut *(*p).keys.add(c);
            k.value = pg_sys::ExecInitExprWithParams(e.value.cast(), params);
            let func = pg_sys::get_opcode(e.operator);
            pg_sys::ScanKeyEntryInitialize(
                &mut k.scan,
                0,
                c as i16 + 1,
                pg_sys::BTEqualStrategyNumber as u16,
                e.subtype,
                e.collation,
                func,
                pg_sys::Datum::from(0),
            );
        }
        let null = std::ptr::null_mut();
        (*p).rest = pg_sys::ExecInitQual(list_of(&rest), null);
        (*p).all = pg_sys::ExecInitQual(list_of(&shape.quals), null);
        Ok(())
    }
}

/// The equalities that a statement asks of the columns of an index, and its other conditions.
/// `None`: of some column it asks none, or no look-up is possible.
unsafe fn equalities(open: &Open, shape: &Shape) -> Option<(Vec<Equality>, Vec<*mut Node>)> {
    let index = open.0;
    // SAFETY: `index` is open, with as many key columns as its row says: `key` has opened it.
    // `shape` has copies of valid nodes.
    unsafe {
        let form = &*(*index).rd_index;
        let is_btree = (*(*index).rd_rel).relam.to_u32() == pg_sys::BTREE_AM_OID.to_u32();
        if !is_btree || !form.indisvalid || !form.indimmediate {
            return None;
        }
        let columns = form.indkey.values.as_slice(form.indnatts as usize);
        let (mut key, mut rest) = (Vec::new(), shape.quals.clone());
        for (c, column) in columns[..form.indnkeyatts as usize].iter().enumerate() {
            let of = |(i, q): (usize, &*mut Node)| Some((i, equality(*q, shape.rti, *column, index, c)?));
            let (i, e) = rest.iter().enumerate().find_map(of)?;
            rest.remove(i);
            key.push(e);
        }
        Some((key, rest))
    }
}

/// What SELECT reads, and what it does with the rows.
///
/// # Safety
/// As for [`written`].
pub unsafe fn select(
    p: *mut Program,
    table: pg_sys::Relation,
    shape: &Shape,
    params: pg_sys::ParamListInfo,
) -> Result<(), Reason> {
    // SAFETY: `table` is open and `p` is being made: contract of this function. `shape` has copies
    // of valid nodes, or null.
    unsafe {
        let null = std::ptr::null_mut();
        if let Err(why) = key(p, table, shape, params) {
            range(p, table, shape).ok_or(why)?;
        }
        [(*p).limit, (*p).offset] = shape.limit.map(|e| pg_sys::ExecInitExpr(e.cast(), null));
        if !shape.lock.is_null() {
            use pg_sys::{LockTupleMode as Mode, RowMarkType as Mark};
            let m = &*shape.lock;
            (*p).locks = true;
            (*p).lock_policy = m.waitPolicy;
            (*p).lock_mode = match m.markType {
                Mark::ROW_MARK_EXCLUSIVE => Mode::LockTupleExclusive,
                Mark::ROW_MARK_NOKEYEXCLUSIVE => Mode::LockTupleNoKeyExclusive,
                Mark::ROW_MARK_SHARE => Mode::LockTupleShare,
                _ => Mode::LockTupleKeyShare,
            };
            (*p).for_write = m.markType <= Mark::ROW_MARK_NOKEYEXCLUSIVE;
            (*p).locked =
                pg_sys::MakeTupleTableSlot((*(*p).row).tts_tupleDescriptor, &raw const pg_sys::TTSOpsHeapTuple);
        }
        if shape.lock.is_null() {
            (*p).looked = looked(table, shape);
        } else if (*p).lock_mode == pg_sys::LockTupleMode::LockTupleKeyShare && looks_at_key(p, shape) {
            // A check of a foreign key among others.
            ((*p).key_alone, (*p).looked) = (true, Columns::NONE);
        }
        if !shape.aggregates.is_empty() {
            (*p).aggregates = agg::prepare(&shape.aggregates, (*(*p).row).tts_tupleDescriptor)?;
        }
        let first = shape.limit[0].is_null() || is_positive(shape.limit[0]);
        let all = first && shape.limit[1].is_null();
        (*p).one_row = all && (*p).range.is_null() && shape.lock.is_null() && shape.aggregates.is_empty();
        Ok(())
    }
}

/// The columns of the table in what the statement returns and asks of its rows. What aggregates see
/// is in the scan's own list.
unsafe fn looked(table: pg_sys::Relation, shape: &Shape) -> Columns {
    // SAFETY: `select` has an open table of ours, and a shape of a valid plan, whose scan is its
    // node. All columns in these lists are of the table (`plan::check`, and the scan's own).
    unsafe {
        let list = if shape.aggregates.is_empty() { shape.list } else { (*shape.node).targetlist };
        looked::by_lists(rel::info(table), shape.rti, &[list, list_of(&shape.quals)])
    }
}

/// Does a SELECT of the row of a key look at columns of that key alone? They do not change while
/// the row stays in its record.
unsafe fn looks_at_key(p: *mut Program, shape: &Shape) -> bool {
    // SAFETY: `select` makes `p`, and `key` has found the index, which exists while its table is
    // locked. `shape` has valid lists.
    unsafe {
        if !(*p).range.is_null() || !shape.aggregates.is_empty() {
            return false;
        }
        let open = Open(relations::entry((*p).index));
        let form = &*(*open.0).rd_index;
        let columns = form.indkey.values.as_slice(form.indnatts as usize);
        let key = &columns[..form.indnkeyatts as usize];
        looked::only(shape.rti, &[shape.list, list_of(&shape.quals)], key)
    }
}

/// Is it a constant number of at least one row?
unsafe fn is_positive(n: *mut Node) -> bool {
    // SAFETY: `plan::read` has made a copy of a valid expression of LIMIT, which is a bigint. The
    // tag says that it is a `Const`.
    unsafe {
        let n = n.cast::<pg_sys::Const>();
        (*n).xpr.type_ == NodeTag::T_Const && !(*n).constisnull && (*n).constvalue.value() as i64 >= 1
    }
}

/// The plan's own scan of the primary index, if it is one.
unsafe fn range(p: *mut Program, table: pg_sys::Relation, shape: &Shape) -> Option<()> {
    // SAFETY: `select` and `written` have an open table, and `p` is being made. `shape.node` is the
    // valid scan of the plan; `plan::scan` accepts only custom scans of ours.
    unsafe {
        let node = shape.node.cast::<pg_sys::CustomScan>();
        if (*node).scan.plan.type_ != NodeTag::T_CustomScan || !range::plan::key_types(node).is_null() {
            return None;
        }
        let node = pg_sys::copyObjectImpl(node.cast()).cast::<pg_sys::CustomScan>();
        let null = std::ptr::null_mut();
        (*p).n_keys = 0;
        (*p).index = range::plan::index_of(node);
        (*p).range = range::prepare_alone(node, table, (*p).econtext, (*p).row);
        (*p).rest = pg_sys::ExecInitQual(list_of(&shape.quals[shape.n_index_quals..]), null);
        (*p).all = pg_sys::ExecInitQual(list_of(&shape.quals), null);
        Some(())
    }
}

/// The index of the primary key, and the unique indexes in memory.
unsafe fn keys_of(table: pg_sys::Relation) -> Vec<Oid> {
    // SAFETY: `key` has an open relation of ours. `RelationGetIndexList` fills `rd_pkindex`, and
    // its result is a copy.
    unsafe {
        let list = pg_sys::RelationGetIndexList(table);
        pg_sys::list_free(list);
        let declared = Some((*table).rd_pkindex).filter(|o| *o != pg_sys::InvalidOid);
        let info = rel::info(table);
        let others = info.uniques.all().iter().filter_map(|kept| primary::key_by(table, info, kept));
        let others = others.map(|key| key.index).filter(|oid| Some(*oid) != declared);
        declared.into_iter().chain(others).collect()
    }
}

struct Equality {
    value: *mut Node,
    operator: Oid,
    subtype: Oid,
    collation: Oid,
}

unsafe fn without_relabel(mut n: *mut Node) -> *mut Node {
    // SAFETY: `equality` has a valid operand; each node is what its tag says.
    unsafe {
        while !n.is_null() && (*n).type_ == NodeTag::T_RelabelType {
            n = (*n.cast::<pg_sys::RelabelType>()).arg.cast();
        }
        n
    }
}

/// Is the condition an equality between a column of the index and what no row has to do with?
unsafe fn equality(q: *mut Node, rti: u32, column: i16, index: pg_sys::Relation, c: usize) -> Option<Equality> {
    // SAFETY: `q` is a condition of `shape`, a valid node. `key` has opened `index`, which has the
    // column `c` of the key.
    unsafe {
        if (*q).type_ != NodeTag::T_OpExpr {
            return None;
        }
        let e = &*q.cast::<pg_sys::OpExpr>();
        if pg_sys::list_length(e.args) != 2 {
            return None;
        }
        let is_column = |n: *mut Node| {
            let v = without_relabel(n).cast::<pg_sys::Var>();
            (*v).xpr.type_ == NodeTag::T_Var && (*v).varno == rti as i32 && (*v).varattno == column
        };
        let (left, right) = (pg_sys::list_nth(e.args, 0).cast::<Node>(), pg_sys::list_nth(e.args, 1).cast::<Node>());
        let (value, operator) = if is_column(left) {
            (right, e.opno)
        } else if is_column(right) {
            (left, pg_sys::get_commutator(e.opno))
        } else {
            return None;
        };
        let family = *(*index).rd_opfamily.add(c);
        let collation = *(*index).rd_indcollation.add(c);
        if pg_sys::contain_var_clause(value)
            || operator == pg_sys::InvalidOid
            || pg_sys::get_op_opfamily_strategy(operator, family) != pg_sys::BTEqualStrategyNumber as i32
            || collation != pg_sys::InvalidOid && collation != e.inputcollid
        {
            return None;
        }
        let (mut strategy, mut l, mut subtype) = (0, pg_sys::InvalidOid, pg_sys::InvalidOid);
        pg_sys::get_op_opfamily_properties(operator, family, false, &mut strategy, &mut l, &mut subtype);
        if l != *(*index).rd_opcintype.add(c) {
            return None;
        }
        Some(Equality { value, operator, subtype, collation })
    }
}
