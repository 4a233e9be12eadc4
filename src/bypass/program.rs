//! Programs: what a plan's execution needs, made once.

use super::indexes::{self, Indexes};
use super::plan::{self, Shape};
use super::{agg, Reason};
use crate::compat::{self, attribute};
use crate::fast::scan::{bare, State};
use crate::rel;
use pgrx::pg_sys::{self, CmdType, List, Node, NodeTag, Oid};
use pgrx::PgList;

/// A column of the key and the expression that it must equal.
#[repr(C)]
pub struct Key {
    /// The value that is looked for.
    pub value: *mut pg_sys::ExprState,
    /// The scan key, but for the value.
    pub scan: pg_sys::ScanKeyData,
    /// The type that values of the column have, as its operator class sees them.
    pub own_type: Oid,
}

/// A compiled statement. All memory is in its own context, but for what an execution allocates.
#[repr(C)]
pub struct Program {
    /// The context of all of it.
    pub context: pg_sys::MemoryContext,
    /// What it does.
    pub op: CmdType::Type,
    /// Who may run it: rights are checked when it is made.
    pub user: Oid,
    /// Does its end come with the end of its first execution?
    pub once: bool,
    /// Does the command's row count come from here?
    pub sets_tag: bool,
    /// The table, its number in the range table, and the index of the key.
    pub table: Oid,
    /// The table's entry in the relation cache, if `open_in` is this transaction (INV-BYPASS-RELATION).
    pub rel: pg_sys::Relation,
    /// See `rel`.
    pub open_in: u32,
    /// How the values of parameters are found: those of `keys` are compiled for this way.
    pub params: pg_sys::ParamCompileHook,
    /// See `table`.
    pub rti: u32,
    /// See `table`.
    pub index: Oid,
    /// The lock that statements of this kind take on an index.
    pub lock: i32,
    /// The range table.
    pub rtable: *mut List,
    /// The key: `n_keys` columns. None for INSERT.
    pub keys: *mut Key,
    /// See `keys`.
    pub n_keys: usize,
    /// Conditions besides the key; null if there are none.
    pub rest: *mut pg_sys::ExprState,
    /// All conditions, to look at a newer version of the row.
    pub all: *mut pg_sys::ExprState,
    /// What is evaluated is evaluated here. Its memory per tuple is that of a run.
    pub econtext: *mut pg_sys::ExprContext,
    /// The row that is read.
    pub row: *mut pg_sys::TupleTableSlot,
    /// Makes the new row of INSERT and UPDATE.
    pub new: *mut pg_sys::ProjectionInfo,
    /// Makes what is returned, or null.
    pub out: *mut pg_sys::ProjectionInfo,
    /// Its row type. Valid without `out` too.
    pub out_desc: pg_sys::TupleDesc,
    /// Columns (from 1) that an UPDATE sets.
    pub sets: *mut i16,
    /// See `sets`.
    pub n_sets: usize,
    /// Columns (from 1) that may not be NULL.
    pub not_null: *mut i16,
    /// See `not_null`.
    pub n_not_null: usize,
    /// CHECK constraints.
    pub checks: *mut *mut pg_sys::ExprState,
    /// See `checks`.
    pub n_checks: usize,
    /// SELECT: is it of at most one row, and nothing but to be returned? Else what follows counts.
    pub one_row: bool,
    /// The scan of a range of keys, or null: of one key.
    pub range: *mut State,
    /// How many rows, and how many before them are passed over; null: all, none.
    pub limit: *mut pg_sys::ExprState,
    /// See `limit`.
    pub offset: *mut pg_sys::ExprState,
    /// Does it lock its rows (FOR UPDATE ...), how, and is the lock one of writers?
    pub locks: bool,
    /// See `locks`.
    pub lock_mode: pg_sys::LockTupleMode::Type,
    /// See `locks`.
    pub lock_policy: pg_sys::LockWaitPolicy::Type,
    /// See `locks`.
    pub for_write: bool,
    /// The version that was locked.
    pub locked: *mut pg_sys::TupleTableSlot,
    /// What is computed of all rows, or null.
    pub aggregates: *mut agg::Aggregates,
    /// INSERT: the table's indexes; null: they are the executor's affair.
    pub indexes: *mut Indexes,
    /// Do triggers ask whether this transaction wrote the row before? Then it has no RETURNING.
    pub own_rows: bool,
    /// A state that is not in use, or null.
    pub idle: *mut super::exec::Exec,
    /// The state that runs, or null.
    pub running: *mut super::exec::Exec,
}

/// Allocates zeroed memory in the current context.
unsafe fn zeroed<T>(n: usize) -> *mut T {
    // SAFETY: plain memory of numbers and pointers.
    unsafe { pg_sys::palloc0(n.max(1) * std::mem::size_of::<T>()).cast() }
}

unsafe fn copied<T: Copy>(v: &[T]) -> *mut T {
    // SAFETY: as large as needed.
    unsafe {
        let p = zeroed::<T>(v.len());
        std::ptr::copy_nonoverlapping(v.as_ptr(), p, v.len());
        p
    }
}

/// An open relation, closed when this goes.
struct Open(pg_sys::Relation);

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: opened by the owner; when an error unwinds, the resource owner closes it.
        unsafe {
            if !std::thread::panicking() && !self.0.is_null() {
                pg_sys::RelationClose(self.0);
            }
        }
    }
}

/// How a list of parameters compiles them.
#[inline]
unsafe fn hook_of(params: pg_sys::ParamListInfo) -> pg_sys::ParamCompileHook {
    // SAFETY: null or a valid list.
    unsafe {
        if params.is_null() {
            None
        } else {
            (*params).paramCompile
        }
    }
}

/// Are values of parameters found in the way for which a program was compiled? (A plan of plpgsql may also run with a copy
/// of the values, as a cursor does.)
///
/// # Safety
/// Null or a valid list.
#[inline]
pub unsafe fn knows(hook: pg_sys::ParamCompileHook, params: pg_sys::ParamListInfo) -> bool {
    // SAFETY: the caller's.
    unsafe { hook.map(|f| f as usize) == hook_of(params).map(|f| f as usize) }
}

/// Makes the program of a plan in `context`, which is current. An error leaves the context to the caller.
///
/// # Safety
/// A valid plan, whose tables are locked.
pub unsafe fn compile(q: *mut pg_sys::QueryDesc, context: pg_sys::MemoryContext) -> Result<*mut Program, Reason> {
    // SAFETY: the caller's; all that is kept is allocated in `context`.
    unsafe {
        let stmt = (*q).plannedstmt;
        let shape = plan::read(stmt)?;
        let rtable: *mut List = pg_sys::copyObjectImpl((*stmt).rtable.cast()).cast();
        let entries = PgList::<pg_sys::RangeTblEntry>::from_pg(rtable);
        if entries.iter_ptr().any(|e| (*e).security_barrier) {
            return Err(Reason::RowSecurity);
        }
        let Some(entry) = entries.get_ptr(shape.rti as usize - 1) else { return Err(Reason::Plan) };
        if (*entry).rtekind != pg_sys::RTEKind::RTE_RELATION {
            return Err(Reason::Plan);
        }
        let open = Open(pg_sys::RelationIdGetRelation((*entry).relid));
        let table = open.0;
        may_use(table, &shape)?;
        let p = zeroed::<Program>(1);
        (*p).context = context;
        (*p).op = shape.op;
        (*p).params = hook_of((*q).params);
        (*p).user = pg_sys::GetUserId();
        (*p).sets_tag = (*stmt).canSetTag;
        (*p).table = (*entry).relid;
        (*p).rti = shape.rti;
        (*p).lock = (*entry).rellockmode;
        (*p).rtable = rtable;
        (*p).econtext = pg_sys::CreateStandaloneExprContext();
        let desc = pg_sys::CreateTupleDescCopyConstr((*table).rd_att);
        (*p).row = pg_sys::MakeTupleTableSlot(desc, &raw const pg_sys::TTSOpsHeapTuple);
        match shape.op {
            CmdType::CMD_INSERT => (*p).indexes = indexes::prepare(table),
            CmdType::CMD_SELECT => select(p, table, &shape, (*q).params)?,
            _ => key(p, table, &shape, (*q).params)?,
        }
        if shape.op == CmdType::CMD_INSERT || shape.op == CmdType::CMD_UPDATE {
            new_row(p, table, desc, &shape)?;
        }
        let above = if (*p).aggregates.is_null() { desc } else { agg::row_type((*p).aggregates) };
        output(p, above, &shape);
        if !compat::has_rights(rtable) {
            return Err(Reason::Rights);
        }
        Ok(p)
    }
}

/// May the bypass use the table in this way?
unsafe fn may_use(table: pg_sys::Relation, shape: &Shape) -> Result<(), Reason> {
    // SAFETY: an open relation or null.
    unsafe {
        if !rel::is_ours(table) {
            return Err(Reason::Plan);
        }
        let form = &*(*table).rd_rel;
        if form.relkind as u8 != pg_sys::RELKIND_RELATION {
            return Err(Reason::Plan);
        }
        if form.relrowsecurity {
            return Err(Reason::RowSecurity);
        }
        if shape.op == CmdType::CMD_SELECT {
            return Ok(());
        }
        if form.relispartition {
            return Err(Reason::Partitioned);
        }
        triggers(table, shape)
    }
}

/// The triggers of the table: none for this kind of statement, but those of foreign keys for an UPDATE of other columns.
unsafe fn triggers(table: pg_sys::Relation, shape: &Shape) -> Result<(), Reason> {
    // SAFETY: an open relation.
    unsafe {
        if (*table).trigdesc.is_null() {
            return Ok(());
        }
        let t = &*(*table).trigdesc;
        let any = match shape.op {
            CmdType::CMD_INSERT => {
                t.trig_insert_before_row
                    || t.trig_insert_after_row
                    || t.trig_insert_instead_row
                    || t.trig_insert_before_statement
                    || t.trig_insert_after_statement
            }
            CmdType::CMD_DELETE => {
                t.trig_delete_before_row
                    || t.trig_delete_after_row
                    || t.trig_delete_instead_row
                    || t.trig_delete_before_statement
                    || t.trig_delete_after_statement
            }
            _ => {
                t.trig_update_before_row
                    || t.trig_update_instead_row
                    || t.trig_update_before_statement
                    || t.trig_update_after_statement
                    || t.trig_update_after_row && !only_foreign_keys(table, t, shape)
            }
        };
        if any {
            return Err(Reason::Triggers);
        }
        Ok(())
    }
}

/// Are all row triggers for UPDATE those of foreign keys whose columns the statement does not set? They are not
/// queued then (AfterTriggerSaveEvent), but for rows that this transaction wrote before.
unsafe fn only_foreign_keys(table: pg_sys::Relation, t: &pg_sys::TriggerDesc, shape: &Shape) -> bool {
    // SAFETY: an open relation and its triggers.
    unsafe {
        const ROW: i16 = pg_sys::TRIGGER_TYPE_ROW as i16;
        const UPDATE: i16 = pg_sys::TRIGGER_TYPE_UPDATE as i16;
        let all = std::slice::from_raw_parts(t.triggers, t.numtriggers as usize);
        let for_update = |t: &&pg_sys::Trigger| t.tgtype & ROW != 0 && t.tgtype & UPDATE != 0;
        if all
            .iter()
            .filter(for_update)
            .any(|t| pg_sys::RI_FKey_trigger_type(t.tgfoid) == pg_sys::RI_TRIGGER_NONE as i32)
        {
            return false;
        }
        let sets: Vec<i32> = PgList::<i32>::from_pg(shape.columns).iter_int().collect();
        let keys = PgList::<pg_sys::ForeignKeyCacheInfo>::from_pg(pg_sys::RelationGetFKeyList(table));
        let free = keys.iter_ptr().all(|k| {
            let k = &*k;
            k.conkey[..k.nkeys as usize].iter().all(|c| !sets.contains(&(*c as i32)))
        });
        free
    }
}

unsafe fn list_of(nodes: &[*mut Node]) -> *mut List {
    // SAFETY: valid nodes.
    nodes.iter().fold(std::ptr::null_mut(), |l, n| unsafe { pg_sys::lappend(l, n.cast()) })
}

/// The conditions: one equality for each column of the primary key, and the rest.
unsafe fn key(
    p: *mut Program,
    table: pg_sys::Relation,
    shape: &Shape,
    params: pg_sys::ParamListInfo,
) -> Result<(), Reason> {
    // SAFETY: an open relation; `p` is being made.
    unsafe {
        let oid = primary(table).ok_or(Reason::Key)?;
        let open = Open(pg_sys::RelationIdGetRelation(oid));
        let index = open.0;
        let form = &*(*index).rd_index;
        if (*(*index).rd_rel).relam.to_u32() != pg_sys::BTREE_AM_OID.to_u32() || !form.indisvalid || !form.indimmediate
        {
            return Err(Reason::Key);
        }
        let n = form.indnkeyatts as usize;
        let columns = form.indkey.values.as_slice(form.indnatts as usize);
        let mut rest = shape.quals.clone();
        (*p).index = oid;
        (*p).keys = zeroed(n);
        (*p).n_keys = n;
        for (c, column) in columns[..n].iter().enumerate() {
            let found =
                rest.iter().enumerate().find_map(|(i, q)| Some((i, equality(*q, shape.rti, *column, index, c)?)));
            let (i, e) = found.ok_or(Reason::Key)?;
            rest.remove(i);
            let k = &mut *(*p).keys.add(c);
            k.value = pg_sys::ExecInitExprWithParams(e.value.cast(), params);
            k.own_type = *(*index).rd_opcintype.add(c);
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

/// What SELECT reads, and what it does with the rows.
unsafe fn select(
    p: *mut Program,
    table: pg_sys::Relation,
    shape: &Shape,
    params: pg_sys::ParamListInfo,
) -> Result<(), Reason> {
    // SAFETY: an open relation; `p` is being made.
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
        if !shape.aggregates.is_empty() {
            (*p).aggregates = agg::prepare(&shape.aggregates, (*(*p).row).tts_tupleDescriptor)?;
        }
        let first = shape.limit[0].is_null() || is_positive(shape.limit[0]);
        let all = first && shape.limit[1].is_null();
        (*p).one_row = all && (*p).range.is_null() && shape.lock.is_null() && shape.aggregates.is_empty();
        Ok(())
    }
}

/// Is it a constant number of at least one row?
unsafe fn is_positive(n: *mut Node) -> bool {
    // SAFETY: a valid expression, of a bigint.
    unsafe {
        let n = n.cast::<pg_sys::Const>();
        (*n).xpr.type_ == NodeTag::T_Const && !(*n).constisnull && (*n).constvalue.value() as i64 >= 1
    }
}

/// The plan's own scan of the primary index, if it is one.
unsafe fn range(p: *mut Program, table: pg_sys::Relation, shape: &Shape) -> Option<()> {
    // SAFETY: an open relation; `p` is being made.
    unsafe {
        let node = shape.node.cast::<pg_sys::CustomScan>();
        if (*node).scan.plan.type_ != NodeTag::T_CustomScan || !bare::is_range(node) {
            return None;
        }
        let node = pg_sys::copyObjectImpl(node.cast()).cast::<pg_sys::CustomScan>();
        let null = std::ptr::null_mut();
        (*p).n_keys = 0;
        (*p).index = State::index_of(node);
        (*p).range = bare::prepare(node, table, (*p).econtext, (*p).row);
        (*p).rest = pg_sys::ExecInitQual(list_of(&shape.quals[shape.n_index_quals..]), null);
        (*p).all = pg_sys::ExecInitQual(list_of(&shape.quals), null);
        Some(())
    }
}

/// The index of the primary key.
unsafe fn primary(table: pg_sys::Relation) -> Option<Oid> {
    // SAFETY: an open relation.
    unsafe {
        let list = pg_sys::RelationGetIndexList(table);
        pg_sys::list_free(list);
        Some((*table).rd_pkindex).filter(|o| *o != pg_sys::InvalidOid)
    }
}

struct Equality {
    value: *mut Node,
    operator: Oid,
    subtype: Oid,
    collation: Oid,
}

unsafe fn without_relabel(mut n: *mut Node) -> *mut Node {
    // SAFETY: a valid expression.
    unsafe {
        while !n.is_null() && (*n).type_ == NodeTag::T_RelabelType {
            n = (*n.cast::<pg_sys::RelabelType>()).arg.cast();
        }
        n
    }
}

/// Is the condition an equality between a column of the index and what no row has to do with?
unsafe fn equality(q: *mut Node, rti: u32, column: i16, index: pg_sys::Relation, c: usize) -> Option<Equality> {
    // SAFETY: a valid expression; the index has the column.
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

/// What INSERT and UPDATE need: the new row, and what it must fulfil.
unsafe fn new_row(
    p: *mut Program,
    table: pg_sys::Relation,
    desc: pg_sys::TupleDesc,
    shape: &Shape,
) -> Result<(), Reason> {
    // SAFETY: an open relation; `p` is being made.
    unsafe {
        let null = std::ptr::null_mut();
        let slot = pg_sys::MakeTupleTableSlot(desc, &raw const pg_sys::TTSOpsVirtual);
        if shape.op == CmdType::CMD_UPDATE {
            let sets: Vec<i16> = PgList::<i32>::from_pg(shape.columns).iter_int().map(|c| c as i16).collect();
            (*p).n_sets = sets.len();
            (*p).sets = copied(&sets);
            if moves(p, rel::info(table)) {
                return Err(Reason::Moves);
            }
            (*p).new =
                pg_sys::ExecBuildUpdateProjection(shape.list, true, shape.columns, desc, (*p).econtext, slot, null);
            let t = (*table).trigdesc;
            (*p).own_rows = !t.is_null() && ((*t).trig_update_after_row || (*t).trig_insert_after_row);
            if (*p).own_rows && !shape.returning.is_null() {
                return Err(Reason::Triggers);
            }
        } else {
            fits(shape.list, desc)?;
            (*p).new = pg_sys::ExecBuildProjectionInfo(shape.list, (*p).econtext, slot, null, null.cast());
        }
        let columns = (0..(*desc).natts as usize).filter(|i| attribute(desc, *i).attnotnull);
        let not_null: Vec<i16> = columns.map(|i| i as i16 + 1).collect();
        (*p).n_not_null = not_null.len();
        (*p).not_null = copied(&not_null);
        let constr = (*desc).constr;
        if constr.is_null() {
            return Ok(());
        }
        if (*constr).has_generated_stored {
            return Err(Reason::Constraints);
        }
        let n = (*constr).num_check as usize;
        (*p).checks = zeroed(n);
        (*p).n_checks = n;
        for i in 0..n {
            let text = (*(*constr).check.add(i)).ccbin;
            let expr = pg_sys::expression_planner(pg_sys::stringToNode(text).cast());
            plan::check(expr.cast(), 1, null.cast()).map_err(|_| Reason::Constraints)?;
            *(*p).checks.add(i) = pg_sys::ExecInitExpr(expr, null.cast());
        }
        Ok(())
    }
}

/// An INSERT's values must be a row of the table, column by column (the executor's ExecCheckPlanOutput says what is wrong).
unsafe fn fits(list: *mut List, desc: pg_sys::TupleDesc) -> Result<(), Reason> {
    // SAFETY: a target list and a row type.
    unsafe {
        let entries = PgList::<pg_sys::TargetEntry>::from_pg(list);
        let same = |(i, e): (usize, *mut pg_sys::TargetEntry)| {
            let a = attribute(desc, i);
            (*e).resno as usize == i + 1
                && if a.attisdropped {
                    (*(*e).expr).type_ == NodeTag::T_Const && (*(*e).expr.cast::<pg_sys::Const>()).constisnull
                } else {
                    pg_sys::exprType((*e).expr.cast()) == a.atttypid
                }
        };
        let all = entries.len() == (*desc).natts as usize && entries.iter_ptr().enumerate().all(same);
        all.then_some(()).ok_or(Reason::Plan)
    }
}

/// Does the UPDATE set a column that moves rows?
///
/// # Safety
/// A program of an UPDATE of this table.
pub unsafe fn moves(p: *const Program, info: &rel::RelInfo) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let sets = std::slice::from_raw_parts((*p).sets, (*p).n_sets);
        sets.iter().any(|c| info.moving.get(*c as usize - 1).is_none_or(|m| *m))
    }
}

/// What the statement returns.
unsafe fn output(p: *mut Program, desc: pg_sys::TupleDesc, shape: &Shape) {
    // SAFETY: `p` is being made.
    unsafe {
        let list = if shape.op == CmdType::CMD_SELECT { shape.list } else { shape.returning };
        (*p).out_desc = pg_sys::ExecCleanTypeFromTL(list);
        if list.is_null() && shape.op != CmdType::CMD_SELECT {
            return;
        }
        let kept = PgList::<pg_sys::TargetEntry>::from_pg(list);
        let mut clean = std::ptr::null_mut();
        for e in kept.iter_ptr().filter(|e| !(**e).resjunk) {
            clean = pg_sys::lappend(clean, e.cast());
        }
        let slot = pg_sys::MakeTupleTableSlot((*p).out_desc, &raw const pg_sys::TTSOpsVirtual);
        let null = std::ptr::null_mut();
        (*p).out = pg_sys::ExecBuildProjectionInfo(clean, (*p).econtext, slot, null, desc);
    }
}

/// Does a program depend on a relation?
///
/// # Safety
/// A program.
pub unsafe fn uses(p: *const Program, oid: Oid) -> bool {
    // SAFETY: the caller's.
    unsafe {
        (*p).table == oid
            || (*p).index == oid
            || indexes::has((*p).indexes, oid)
            || PgList::<pg_sys::RangeTblEntry>::from_pg((*p).rtable).iter_ptr().any(|e| (*e).relid == oid)
    }
}
