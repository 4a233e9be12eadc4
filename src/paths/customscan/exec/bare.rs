//! A scan without the executor's node: the bypass keeps its state from one execution to the next.
//! It is the same scan: keys, protection, and rows are those of the functions above.

use super::*;

/// Prepares a scan of a plan. What is kept is allocated in the current memory context.
///
/// # Safety
/// A plan of ours that is no look-up of one key, its table, which is open, and the slot and context
/// of the rows.
pub unsafe fn prepare(
    plan: *mut pg_sys::CustomScan,
    rel: pg_sys::Relation,
    context: *mut pg_sys::ExprContext,
    slot: *mut pg_sys::TupleTableSlot,
) -> *mut State {
    // SAFETY: the caller's; a state of the executor is needed only to be pointed to, and for its
    // context.
    unsafe {
        let estate = pg_sys::palloc0(std::mem::size_of::<pg_sys::EState>()).cast::<pg_sys::EState>();
        (*estate).type_ = NodeTag::T_EState;
        (*estate).es_query_cxt = pg_sys::CurrentMemoryContext;
        let s = create(plan).cast::<State>();
        let ss = &raw mut (*s).css.ss;
        (*ss).ps.state = estate;
        (*ss).ps.ps_ExprContext = context;
        (*ss).ss_currentRelation = rel;
        (*ss).ss_ScanTupleSlot = slot;
        (*s).backward = State::is_backward(plan);
        (*s).inner = make_inner();
        (*s).index = pg_sys::RelationIdGetRelation(State::index_of(plan));
        let exact = begin_scan(s, estate, expressions(plan, 0));
        pg_sys::RelationClose((*s).index);
        (*s).index = std::ptr::null_mut();
        if exact != Exact::Always {
            (*s).recheck = pg_sys::ExecInitQual(expressions(plan, 1), std::ptr::null_mut());
        }
        (*(*s).inner).exact = exact != Exact::Never;
        s
    }
}

/// Is a plan's scan one that [`prepare`] knows?
///
/// # Safety
/// A plan of ours.
pub unsafe fn is_range(plan: *mut pg_sys::CustomScan) -> bool {
    // SAFETY: made by plan.rs.
    unsafe { private(plan, 2).is_null() }
}

/// Begins an execution. What belongs to it is allocated in the current context: its end, in
/// whatever way, ends the scan.
///
/// # Safety
/// A prepared scan that is not running, its table, which is open, the index, and the state of the
/// execution. An ERROR jumps over this frame.
pub unsafe fn open(s: *mut State, rel: pg_sys::Relation, index: Oid, estate: *mut pg_sys::EState) {
    // SAFETY: the caller's.
    unsafe {
        let ss = &raw mut (*s).css.ss;
        ((*ss).ss_currentRelation, (*ss).ps.state) = (rel, estate);
        (*s).index = crate::pg::raw::RelationIdGetRelation(index);
        if !(*s).context.is_null() {
            (*(*s).context).ecxt_param_list_info = (*estate).es_param_list_info;
        }
        let f = Fetch::new(rel);
        let d = (*s).scan;
        (*d).heapRelation = rel;
        (*d).indexRelation = (*s).index;
        (*d).xs_snapshot = (*estate).es_snapshot;
        (*d).xs_heapfetch = f.cast();
        let inner = &mut *(*s).inner;
        inner.started = false;
        inner.at = if (*s).backward { At::End } else { At::Start };
        (inner.interval, inner.cursor, inner.uncounted) = (0, None, 0);
    }
}

/// Puts the next row, in the direction of the plan, into the slot.
///
/// # Safety
/// A scan that is open. An ERROR jumps over this frame.
pub unsafe fn next(s: *mut State) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let found = match at_hand(s) {
            None => step(s, !(*s).backward),
            at_hand => at_hand,
        };
        let Some((no, v)) = found else { return false };
        let rel = (*s).css.ss.ss_currentRelation;
        tuple::store((*s).slot(), (*rel).rd_id, Tid::Record(no), v.as_ptr());
        (*(*s).inner).uncounted += 1;
        true
    }
}

/// Rows that [`each`] asks for at once.
const RUN: usize = 32;

/// Gives all rows to `take`, in the order of the plan, for those who need no slot. They stay as
/// long as rows in the slot would.
///
/// # Safety
/// A scan that is open, from its first row on. `take` does not touch the scan, nor tables of ours.
/// An ERROR jumps over this frame.
pub unsafe fn each(s: *mut State, mut take: impl FnMut(NonNull<Version>)) {
    // SAFETY: the caller's.
    unsafe {
        let mut run = [NonNull::dangling(); RUN];
        loop {
            let n = all_at_hand(s, &mut run);
            run[..n].iter().for_each(|v| take(*v));
            (*(*s).inner).uncounted += n as u32;
            if n == RUN {
                continue;
            }
            let Some((_, v)) = step(s, !(*s).backward) else { return };
            (*(*s).inner).uncounted += 1;
            take(v);
        }
    }
}

/// Ends an execution: what the scan protects is known now.
///
/// # Safety
/// A scan that is open.
pub unsafe fn close(s: *mut State) {
    // SAFETY: the caller's.
    unsafe {
        protect::close((*s).fetch());
        count_rows(s);
        (*(*s).inner).cursor = None;
        pg_sys::RelationClose((*s).index);
        (*s).index = std::ptr::null_mut();
    }
}
