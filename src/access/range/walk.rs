//! The way of a scan through its intervals: from row to row of the index, in both directions.

use super::*;

/// Computes the intervals, and protects them.
unsafe fn start(s: &mut RangeScan) {
    // SAFETY: `s` was begun and not ended: contract of `step`. So `desc`, the fetch, the table and
    // the index are there, and the keys fit them.
    unsafe {
        platform::outside();
        if s.n_runtime > 0 {
            pg_sys::ReScanExprContext(s.runtime_context);
            raw::ExecIndexEvalRuntimeKeys(s.runtime_context, s.runtime, s.n_runtime);
        }
        let key = key_of(s.rel, s.index);
        let f = s.fetch();
        (*f).info = rel::info((*f).base.rel);
        compat::count_scan(s.index);
        let is_hull;
        (s.intervals, is_hull) = bounds::of_keys(key.codec, keys(s.desc), MANY);
        s.intervals.sort_by(|a, b| a.lo.cmp(&b.lo));
        s.filters = is_hull || s.exact == Exact::Never;
        if matches!(xact::mode(), Mode::Serializable | Mode::SerializableReadOnly) {
            (*f).skips = s.skips;
            protect::index_scan(s.desc);
        } else {
            (*f).snapshot = s.snapshot;
            // Takes the snapshot's CSN and the pin, if it must, before the index is read.
            xact::snapshot_seen((*f).snapshot);
        }
        s.source = Some((key.primary, (*(*f).info).table));
        s.look = look(f, s.filters);
        s.started = true;
    }
}

/// How its rows can be had by a look.
unsafe fn look(f: *mut Fetch, filters: bool) -> Option<Look<'static>> {
    // SAFETY: `f` is the fetch of a scan that `start` begins: its snapshot is set, and valid as
    // long as the statement.
    unsafe {
        let is_mvcc = (*(*f).snapshot).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC;
        match xact::mode() {
            _ if !is_mvcc || filters || (*f).for_write => None,
            Mode::Serializable if (*f).scan == ScanId::NONE => None,
            Mode::Serializable => Some(Look::Scan((*f).scan)),
            _ => Some(Look::Snapshot(xact::snapshot_seen((*f).snapshot))),
        }
    }
}

/// The next row in the order of the index, or in the opposite one.
///
/// # Safety
/// The scan was begun and not ended. An ERROR jumps over this frame.
pub(super) unsafe fn step(s: &mut RangeScan, up: bool) -> Option<Row> {
    // SAFETY: `s` was begun and not ended (contract of this function): its descriptor and fetch are
    // alive.
    unsafe {
        if !s.started {
            start(s);
        }
        let f = s.fetch();
        if s.at == if up { At::End } else { At::Start } {
            return None;
        }
        let found = loop {
            let found = next_row(s, f, up);
            (*f).seen.step(if up { 1 } else { -1 }, found.is_some());
            if found.is_some() || !(*f).look || !index_lookup::found_nothing(s.desc, f) {
                break found;
            }
            // A row of the key may have come meanwhile: once more, from the beginning.
            s.at = if up { At::Start } else { At::End };
        };
        match found {
            Some((_, v)) => {
                (*f).look = false; // found: the row itself is protected
                (*f).last = v.as_ptr();
                s.at = At::Row;
            }
            None => s.at = if up { At::End } else { At::Start },
        }
        found
    }
}

/// The next row that the scan returns.
unsafe fn next_row(s: &mut RangeScan, f: *mut Fetch, up: bool) -> Option<Row> {
    // SAFETY: `s` was begun and not ended, and `f` is its fetch: contract of `step`.
    unsafe {
        let last = s.intervals.len().checked_sub(1)?;
        let source = s.source?;
        if s.at == At::Row {
            turn(s, source, up);
        } else {
            s.interval = if up { 0 } else { last };
            s.open(source, up, None);
        }
        loop {
            if let Some(found) = next_in_interval(s, f) {
                return Some(found);
            }
            if s.interval == if up { last } else { 0 } {
                return None;
            }
            s.interval = if up { s.interval + 1 } else { s.interval - 1 };
            s.open(source, up, None);
        }
    }
}

/// Has the cursor look in the direction that is wanted.
fn turn(s: &mut RangeScan, source: Source, up: bool) {
    let way = if up { Direction::Forward } else { Direction::Backward };
    if let Some((cursor, _)) = s.cursor.as_deref().filter(|c| c.1 != way) {
        // From the row that was returned last.
        let key = cursor.last().map(|k| k.bytes().to_vec());
        s.open(source, up, key);
    }
}

impl RangeScan {
    /// Opens a cursor on the interval, or on what is behind a key of it.
    fn open(&mut self, (primary, table): Source, up: bool, from: Option<Vec<u8>>) {
        let i = &self.intervals[self.interval];
        let (mut lo, mut hi) = (Bound::Included(&i.lo[..]), Bound::Excluded(&i.hi[..]));
        match &from {
            Some(key) if up => lo = Bound::Excluded(key),
            Some(key) => hi = Bound::Excluded(key),
            None => {}
        }
        let way = if up { Direction::Forward } else { Direction::Backward };
        self.cursor = Some(Box::new((Records::new(primary.index.scan(lo, hi, way), table), way)));
    }
}

/// The next row that the scan returns, of the interval that the cursor reads.
unsafe fn next_in_interval(s: &mut RangeScan, f: *mut Fetch) -> Option<Row> {
    // SAFETY: `s` was begun and not ended, and `f` is its fetch: contract of `step`. `info` stays
    // until the transaction ends, and records that the cursor gives are of its table.
    unsafe {
        let info = &*(*f).info;
        let t = xact::txn();
        let test = s.filters.then_some((s.conditions, s.context, s.slot));
        let (cursor, _) = s.cursor.as_deref_mut()?;
        while let Some(r) = cursor.next(&PG) {
            if pg_sys::InterruptPending != 0 {
                pg_sys::ProcessInterrupts();
            }
            if test.is_some_and(|test| !meets(test, info, t, r)) {
                continue;
            }
            let seen = match (*f).offers {
                true => visible::offer(t, r, (*f).snapshot),
                false => visible::by_scan(t, r, (*f).snapshot, (*f).why()),
            };
            if let Some(v) = seen {
                return Some((r.no, v));
            }
        }
        None
    }
}

/// The conditions that an entry must meet, their context, and the slot in which they are tested.
type Test = (*mut pg_sys::ExprState, *mut pg_sys::ExprContext, *mut pg_sys::TupleTableSlot);

/// Do the columns of the record's key, which all its versions share, meet the conditions?
unsafe fn meets((conditions, context, slot): Test, info: &RelInfo, t: &Txn, r: RecordRef) -> bool {
    // Without a row there is nothing to test, and nothing to see.
    let Some(v) = t.any_row(r.rec) else { return true };
    let _busy = Busy::new();
    // SAFETY: `conditions` is null or prepared for `context`, and `slot` is of the table's row
    // type: contract of `prepare`. `v` is a version with a row, reached under our pin (INV-RETIRE).
    unsafe {
        tuple::store(slot, info.oid, Tid::Record(r.no), v.as_ptr());
        (*context).ecxt_scantuple = slot;
        let passes = expr::passes(conditions, context);
        // What the conditions have allocated would stay until the next row that meets them.
        let memory = (*context).ecxt_per_tuple_memory;
        if !passes && !(*memory).isReset {
            pg_sys::MemoryContextReset(memory);
        }
        passes
    }
}
