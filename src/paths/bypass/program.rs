//! Programs: what a plan's execution needs, made once.

use super::indexes::{self, Indexes};
use super::plan::{self, Shape};
use super::{agg, triggers, Reason};
use crate::access::range::RangeScan;
use crate::pg::{compat, relations};
use crate::state::rel;
use mixedcc_engine::range::Columns;
use pgrx::pg_sys::{self, CmdType, List, Node, Oid};
use pgrx::PgList;

mod reads;
mod writes;

/// A column of the key and the expression that it must equal.
#[repr(C)]
pub struct Key {
    /// The value that is looked for.
    pub value: *mut pg_sys::ExprState,
    /// The scan key, but for the value.
    pub scan: pg_sys::ScanKeyData,
}

/// A compiled statement. All memory is in its own context, but for what an execution allocates.
#[repr(C)]
pub struct Program {
    /// The context of all of it.
    pub context: pg_sys::MemoryContext,
    /// What it does.
    pub op: CmdType::Type,
    /// The user that may run it: rights are checked when it is made.
    pub user: Oid,
    /// Does its end come with the end of its first execution?
    pub once: bool,
    /// Does the command's row count come from here?
    pub sets_tag: bool,
    /// The table, its number in the range table, and the index of the key.
    pub table: Oid,
    /// The table's entry in the relation cache, if `open_in` is this transaction
    /// (INV-BYPASS-RELATION).
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
    /// The statement's tables.
    pub tables: compat::Tables,
    /// The key: `n_keys` columns. None for INSERT.
    pub keys: *mut Key,
    /// See `keys`.
    pub n_keys: usize,
    /// Conditions besides the key; null if there are none.
    pub rest: *mut pg_sys::ExprState,
    /// All conditions, to look at a newer version of the row.
    pub all: *mut pg_sys::ExprState,
    /// The columns of the row of the key that the statement looks at, if it does not write the row
    /// (INV-LOOKED of the engine).
    pub looked: Columns,
    /// Does it lock the key of the row (FOR KEY SHARE), and look at nothing else of it (INV-EXISTS
    /// of the engine)?
    pub key_alone: bool,
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
    /// The same as a set.
    pub sets_of: Columns,
    /// UPDATE that may be deferred (`access/deferred.rs`): its new values, or null.
    pub added: *mut List,
    /// See `added`: their columns, and those that the statement returns.
    pub added_to: *mut List,
    /// See `added_to`.
    pub returned: Columns,
    /// Columns (from 1) that may not be NULL.
    pub not_null: *mut i16,
    /// See `not_null`.
    pub n_not_null: usize,
    /// CHECK constraints that are enforced.
    pub checks: *mut *mut pg_sys::ExprState,
    /// See `checks`.
    pub n_checks: usize,
    /// SELECT: is it of at most one row, and nothing but to be returned? Else what follows counts.
    pub one_row: bool,
    /// The scan of a range of keys, or null: of one key.
    pub range: *mut RangeScan,
    /// How many rows, and how many before them are passed over; null: all, none.
    pub limit: *mut pg_sys::ExprState,
    /// See `limit`.
    pub offset: *mut pg_sys::ExprState,
    /// INSERT of several rows of VALUES: what computes each row into `value_row`, from which `new`
    /// makes the table's row.
    pub values: *mut *mut pg_sys::ProjectionInfo,
    /// See `values`.
    pub n_values: usize,
    /// See `values`.
    pub value_row: *mut pg_sys::TupleTableSlot,
    /// Does it queue triggers (INV-BYPASS-QUEUE)?
    pub queues: bool,
    /// Does it lock its rows (FOR UPDATE ...), how, and are they to be written?
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
    /// Do triggers ask whether this transaction wrote the row before?
    pub own_rows: bool,
    /// A state that is not in use, or null.
    pub idle: *mut super::exec::Exec,
    /// The state that runs, or null.
    pub running: *mut super::exec::Exec,
    /// Has an ERROR ended a run (INV-BYPASS-BROKEN)?
    pub broken: bool,
}

/// Allocates zeroed memory in the current context.
unsafe fn zeroed<T>(n: usize) -> *mut T {
    // SAFETY: `palloc0` gives zeroed memory of that size or raises; nothing that needs a drop is
    // alive here.
    unsafe { pg_sys::palloc0(n.max(1) * std::mem::size_of::<T>()).cast() }
}

unsafe fn copied<T: Copy>(v: &[T]) -> *mut T {
    // SAFETY: `zeroed` gives memory for `v.len()` values, which is fresh and does not overlap `v`.
    unsafe {
        let p = zeroed::<T>(v.len());
        std::ptr::copy_nonoverlapping(v.as_ptr(), p, v.len());
        p
    }
}

/// An open relation, closed when this goes.
pub struct Open(pub pg_sys::Relation);

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: the maker of this value has opened the relation. When an error unwinds, the
        // resource owner closes it.
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
    // SAFETY: the caller has null or a valid list.
    unsafe {
        if params.is_null() {
            None
        } else {
            (*params).paramCompile
        }
    }
}

/// Are values of parameters found in the way for which a program was compiled? (A plan of plpgsql
/// may also run with a copy of the values, as a cursor does.)
///
/// # Safety
/// Null or a valid list.
#[inline]
pub unsafe fn knows(hook: pg_sys::ParamCompileHook, params: pg_sys::ParamListInfo) -> bool {
    // SAFETY: `params` is null or a valid list: contract of this function.
    unsafe { hook.map(|f| f as usize) == hook_of(params).map(|f| f as usize) }
}

/// Makes the program of a plan in `context`, which is current. An error leaves the context to the
/// caller.
///
/// # Safety
/// A valid plan, whose tables are locked.
pub unsafe fn compile(q: *mut pg_sys::QueryDesc, context: pg_sys::MemoryContext) -> Result<*mut Program, Reason> {
    // SAFETY: `q` has a valid plan with locked tables: contract of this function. `zeroed` is a
    // valid `Program`, and all that is kept is allocated in `context`.
    unsafe {
        let stmt = (*q).plannedstmt;
        let shape = plan::read(stmt)?;
        let tables = compat::Tables::copy_of(stmt);
        let entries = PgList::<pg_sys::RangeTblEntry>::from_pg(tables.rtable);
        if entries.iter_ptr().any(|e| (*e).security_barrier) {
            return Err(Reason::RowSecurity);
        }
        let Some(entry) = entries.get_ptr(shape.rti as usize - 1) else { return Err(Reason::Plan) };
        if (*entry).rtekind != pg_sys::RTEKind::RTE_RELATION {
            return Err(Reason::Plan);
        }
        let open = Open(relations::entry((*entry).relid));
        let table = open.0;
        may_use(table, &shape)?;
        let queues = shape.op != CmdType::CMD_SELECT && triggers::queues(table, &shape)?;
        let p = zeroed::<Program>(1);
        (*p).context = context;
        ((*p).looked, (*p).sets_of) = (Columns::ALL, Columns::ALL);
        (*p).op = shape.op;
        (*p).params = hook_of((*q).params);
        (*p).user = pg_sys::GetUserId();
        (*p).sets_tag = (*stmt).canSetTag;
        (*p).table = (*entry).relid;
        (*p).rti = shape.rti;
        (*p).queues = queues;
        (*p).lock = (*entry).rellockmode;
        (*p).tables = tables;
        (*p).econtext = pg_sys::CreateStandaloneExprContext();
        let desc = pg_sys::CreateTupleDescCopyConstr((*table).rd_att);
        (*p).row = pg_sys::MakeTupleTableSlot(desc, &raw const pg_sys::TTSOpsHeapTuple);
        match shape.op {
            CmdType::CMD_INSERT => (*p).indexes = indexes::prepare(table),
            CmdType::CMD_SELECT => reads::select(p, table, &shape, (*q).params)?,
            _ => reads::written(p, table, &shape, (*q).params)?,
        }
        if shape.op == CmdType::CMD_INSERT || shape.op == CmdType::CMD_UPDATE {
            writes::new_row(p, table, desc, &shape)?;
        }
        let above = if (*p).aggregates.is_null() { desc } else { agg::row_type((*p).aggregates) };
        output(p, above, &shape);
        if !compat::has_rights(stmt) {
            return Err(Reason::Rights);
        }
        if shape.op == CmdType::CMD_UPDATE || shape.op == CmdType::CMD_DELETE {
            // A change of publications invalidates the table, and so drops the program.
            pg_sys::CheckCmdReplicaIdentity(table, shape.op);
        }
        Ok(p)
    }
}

/// May the bypass use the table in this way?
unsafe fn may_use(table: pg_sys::Relation, shape: &Shape) -> Result<(), Reason> {
    // SAFETY: `compile` has opened `table`; `is_ours` answers null too.
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
        if compat::has_virtual_columns((*table).rd_att) {
            return Err(Reason::Constraints);
        }
        Ok(())
    }
}

unsafe fn list_of(nodes: &[*mut Node]) -> *mut List {
    // SAFETY: `shape` has copies of valid nodes in the current memory context, and `lappend` makes
    // a new list.
    nodes.iter().fold(std::ptr::null_mut(), |l, n| unsafe { pg_sys::lappend(l, n.cast()) })
}

/// What the statement returns.
unsafe fn output(p: *mut Program, desc: pg_sys::TupleDesc, shape: &Shape) {
    // SAFETY: `compile` makes `p`, with its expression context; `shape` has valid target lists or
    // null.
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
/// A program that lives (INV-BYPASS-PROGRAM).
pub unsafe fn uses(p: *const Program, oid: Oid) -> bool {
    // SAFETY: `p` lives: contract of this function. `tables` is a copy in its own memory.
    unsafe {
        (*p).table == oid
            || (*p).index == oid
            || indexes::has((*p).indexes, oid)
            || PgList::<pg_sys::RangeTblEntry>::from_pg((*p).tables.rtable).iter_ptr().any(|e| (*e).relid == oid)
    }
}
