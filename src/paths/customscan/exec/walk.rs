//! The way of a scan through its intervals: from row to row of the index, in both directions.

use super::*;
use mixedcc_engine::Txn;

/// Computes the intervals, and protects them.
unsafe fn start(s: *mut State, inner: &mut Inner) {
    // SAFETY: as in `access`.
    unsafe {
        crate::state::platform::outside();
        if (*s).n_runtime > 0 {
            pg_sys::ReScanExprContext((*s).context);
            raw::ExecIndexEvalRuntimeKeys((*s).context, (*s).runtime, (*s).n_runtime);
        }
        let key = key_of(s);
        let f = (*s).fetch();
        (*f).info = rel::info((*f).base.rel);
        compat::count_scan((*s).index);
        let is_hull;
        (inner.intervals, is_hull) = bounds::of_keys(key.codec, keys((*s).scan), MANY);
        inner.intervals.sort_by(|a, b| a.lo.cmp(&b.lo));
        inner.filters = is_hull || !inner.exact;
        if matches!(xact::mode(), Mode::Serializable | Mode::SerializableReadOnly) {
            protect::index_scan((*s).scan);
        } else {
            (*f).snapshot = (*s).snapshot();
            // Takes the snapshot's CSN and the pin, if it must, before the index is read.
            xact::snapshot_csn((*f).snapshot);
        }
        inner.source = Some((key.primary, (*(*f).info).table));
        inner.look = look(f, inner);
        inner.started = true;
    }
}

/// How its rows can be had by a look.
unsafe fn look(f: *mut Fetch, inner: &Inner) -> Option<Look> {
    // SAFETY: as in `access`; the snapshot is valid.
    unsafe {
        let is_mvcc = (*(*f).snapshot).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC;
        match xact::mode() {
            _ if !is_mvcc || inner.filters || (*f).for_write => None,
            Mode::Serializable if (*f).scan == ScanId::NONE => None,
            Mode::Serializable => Some(Look::Scan((*f).scan)),
            _ => Some(Look::Snapshot(xact::snapshot_csn((*f).snapshot))),
        }
    }
}

/// The next row in the order of the index, or in the opposite one.
pub(super) unsafe fn step(s: *mut State, up: bool) -> Option<(u64, NonNull<Version>)> {
    // SAFETY: as in `access`.
    unsafe {
        let inner = &mut *(*s).inner;
        if !inner.started {
            start(s, inner);
        }
        let f = (*s).fetch();
        if inner.at == if up { At::End } else { At::Start } {
            return None;
        }
        let found = loop {
            let found = next_row(s, inner, f, up);
            (*f).seen.step(if up { 1 } else { -1 }, found.is_some());
            if found.is_some() || !(*f).look || !index_lookup::found_nothing((*s).scan, f) {
                break found;
            }
            // A row of the key may have come meanwhile: once more, from the beginning.
            inner.at = if up { At::Start } else { At::End };
        };
        match found {
            Some((_, v)) => {
                (*f).look = false; // found: the row itself is protected
                (*f).last = v.as_ptr();
                inner.at = At::Row;
            }
            None => inner.at = if up { At::End } else { At::Start },
        }
        found
    }
}

/// The next row that the scan returns.
unsafe fn next_row(s: *mut State, inner: &mut Inner, f: *mut Fetch, up: bool) -> Option<(u64, NonNull<Version>)> {
    // SAFETY: as in `access`.
    unsafe {
        let last = inner.intervals.len().checked_sub(1)?;
        let source = inner.source?;
        if inner.at == At::Row {
            turn(inner, source, up);
        } else {
            inner.interval = if up { 0 } else { last };
            inner.open(source, up, None);
        }
        loop {
            if let Some(found) = next_in_interval(s, inner, f) {
                return Some(found);
            }
            if inner.interval == if up { last } else { 0 } {
                return None;
            }
            inner.interval = if up { inner.interval + 1 } else { inner.interval - 1 };
            inner.open(source, up, None);
        }
    }
}

/// Has the cursor look in the direction that is wanted.
fn turn(inner: &mut Inner, source: Source, up: bool) {
    let way = if up { Direction::Forward } else { Direction::Backward };
    if let Some((cursor, _)) = inner.cursor.as_deref().filter(|c| c.1 != way) {
        // From the row that was returned last.
        let key = cursor.last().map(|k| k.bytes().to_vec());
        inner.open(source, up, key);
    }
}

impl Inner {
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
unsafe fn next_in_interval(s: *mut State, inner: &mut Inner, f: *mut Fetch) -> Option<(u64, NonNull<Version>)> {
    // SAFETY: as in `access`.
    unsafe {
        let info = &*(*f).info;
        let t = xact::txn();
        let (cursor, _) = inner.cursor.as_deref_mut()?;
        while let Some(r) = cursor.next(&PG) {
            if pg_sys::InterruptPending != 0 {
                pg_sys::ProcessInterrupts();
            }
            if inner.filters && !meets_conditions(s, info, t, r) {
                continue;
            }
            if let Some(v) = visible::by_scan(t, r, (*f).snapshot, (*f).for_write, (*f).scan) {
                return Some((r.no, v));
            }
        }
        None
    }
}

/// Do the columns of the record's key, which all its versions share, meet the conditions?
unsafe fn meets_conditions(s: *mut State, info: &RelInfo, t: &Txn, r: RecordRef) -> bool {
    let Some(v) = t.any_row(r.rec) else { return true }; // nothing to test, and nothing to see
                                                         // SAFETY: a version with a row, reached
                                                         // under our pin.
    unsafe {
        let slot = (*s).slot();
        tuple::store(slot, info.oid, Tid::Record(r.no), v.as_ptr());
        passes(s, slot)
    }
}
