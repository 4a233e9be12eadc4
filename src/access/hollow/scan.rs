//! Scans of a hollow index: index scans, index-only scans and bitmaps, by the one in memory.
//!
//! An entry is returned as the TID of its record, in the order of the keys. What of the record is
//! visible, the caller asks the table access method, as with any index. Entries of rows that are
//! gone are returned too, until they are removed. Keys that the intervals do not express are tested
//! (`filter.rs`): not every caller of an index scan would do it.
//!
//! A snapshot that the index in memory is too new for (`complete_from`) is served from the rows:
//! all are looked at, and those that meet the keys are sorted. The planner does not choose the
//! index for such a snapshot (`indcheckxmin`), but the bypass and native access may come with one.

use super::filter;
use crate::access::fetch::Fetch;
use crate::access::indexscan::{fetch_of, is_ours};
use crate::access::protect::keys_of;
use crate::access::range::MANY;
use crate::access::ranges::rows::{self, Row};
use crate::access::{primary, tuple, visible};
use crate::keys::bounds::{self, Exact, Interval};
use crate::pg::errors::complain;
use crate::pg::local::Local;
use crate::pg::{compat, raw, Tid};
use crate::state::platform::{self, PG};
use crate::state::rel::{self, Kept, PrimaryKey, RelInfo};
use crate::state::xact::{self, Mode};
use mixedcc_engine::csn::Csn;
use mixedcc_engine::index::{Direction, Mark, Records};
use mixedcc_engine::record::Version;
use mixedcc_engine::RecordRef;
use pgrx::pg_sys::{self, Datum};
use pgrx::prelude::*;
use std::ops::Bound;
use std::ptr::NonNull;

/// Where a walk stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// Nowhere yet: it begins at the end that the direction says.
    Start,
    /// On an entry.
    Entry,
    /// Behind the last entry in a direction.
    End(Direction),
}

/// A scan under way.
struct Walk {
    heap: pg_sys::Relation,
    info: &'static RelInfo,
    key: &'static PrimaryKey,
    /// Those of the scan's keys, in ascending order; `None`: not known yet.
    intervals: Option<Vec<Interval>>,
    /// Does each entry need the test of the keys?
    filters: bool,
    at: At,
    /// The interval that `records` reads, or the place in `past`.
    interval: usize,
    /// The rows that an old snapshot sees, in the order of their keys.
    past: Option<Vec<(u64, NonNull<Version>)>>,
    records: Option<Box<Records>>,
    mark: Option<(At, usize, Option<(Direction, Mark)>)>,
    /// The entry that was returned last, for an index-only scan.
    tuple: pg_sys::IndexTuple,
    /// The same of an entry that is too long for one.
    long: pg_sys::HeapTuple,
}

/// Of the transaction: the walks of its index scans.
struct Walks {
    /// `Fetch::walk` is a number in here, plus 1.
    places: Vec<Place>,
    /// Numbers of places without a walk.
    free: Vec<u32>,
}

struct Place {
    walk: Option<Box<Walk>>,
    /// What tells that the memory of the last scan goes away; null: it went.
    gone: *mut Gone,
}

static WALKS: Local<Walks> = Local::new(Walks { places: Vec::new(), free: Vec::new() });

/// Forgets what belonged to the transaction.
pub fn end_transaction() {
    WALKS.set(Walks { places: Vec::new(), free: Vec::new() });
}

/// What tells that a scan's memory goes away, in whatever way.
#[repr(C)]
struct Gone {
    callback: pg_sys::MemoryContextCallback,
    /// That of the scan, and of this.
    context: pg_sys::MemoryContext,
    /// The number of its place. The place knows it, until the transaction ends.
    place: u32,
}

unsafe extern "C-unwind" fn gone(arg: *mut core::ffi::c_void) {
    let g = arg.cast::<Gone>();
    // SAFETY: `arg` is the `Gone` of `put`, in the memory that goes away only after this call.
    // One thread uses `WALKS`, and no walk of a scan whose memory goes away. Nothing here can fail
    // but for want of memory.
    unsafe {
        let walks = WALKS.get_mut();
        let Some(place) = walks.places.get_mut((*g).place as usize).filter(|p| p.gone == g) else { return };
        place.gone = std::ptr::null_mut();
        if place.walk.take().is_some() {
            walks.free.push((*g).place);
        }
    }
}

/// How many places are looked at first for one that is known in a context. Scans of a statement and
/// of the triggers of its rows alternate.
const LOOKS: usize = 8;
/// How many at most, before the context gets another place: else one row after the other might get
/// one, where more contexts than that alternate.
const ALL_LOOKS: usize = 1024;

impl Walks {
    /// Where in `free` there is a place whose scans had the same memory, or one without any.
    fn find(&mut self, context: pg_sys::MemoryContext) -> usize {
        let n = self.free.len();
        let gone = |i: &usize| self.places[self.free[*i] as usize].gone;
        // SAFETY: a `Gone` that a place knows is there: `gone` takes it away.
        let is_known = |i: &usize| unsafe { gone(i).as_ref() }.is_some_and(|g| g.context == context);
        let looks = |many: usize| (n.saturating_sub(many)..n).rev();
        let free = looks(LOOKS).find(is_known).or_else(|| looks(LOOKS).find(|i| gone(i).is_null()));
        let found = free.or_else(|| looks(ALL_LOOKS).find(is_known));
        found.unwrap_or_else(|| {
            self.free.push(self.places.len() as u32);
            self.places.push(Place { walk: None, gone: std::ptr::null_mut() });
            n
        })
    }
}

/// Gives the walk of a scan a place. It lives no longer than the scan's memory. (An aborted
/// subtransaction leaves scans without an end. Those of older cursors go on.) Scans of one context
/// that follow each other have one `Gone`, which stays as long as the context.
unsafe fn put(f: *mut Fetch, walk: Box<Walk>) {
    // SAFETY: `f` is a chunk of its own in a memory context: `Fetch::new` has made it. `Gone` and
    // the callback in it live in the same context. No reference to `WALKS` is in use when
    // PostgreSQL runs.
    unsafe {
        let context = pg_sys::GetMemoryChunkContext(f.cast());
        let at = WALKS.get_mut().find(context);
        let n = WALKS.get_mut().free[at];
        if WALKS.get_mut().places[n as usize].gone.is_null() {
            let g = pg_sys::MemoryContextAllocZero(context, std::mem::size_of::<Gone>()).cast::<Gone>();
            ((*g).context, (*g).place) = (context, n);
            (*g).callback.func = Some(gone);
            (*g).callback.arg = g.cast();
            pg_sys::MemoryContextRegisterResetCallback(context, &mut (*g).callback);
            WALKS.get_mut().places[n as usize].gone = g;
        }
        let walks = WALKS.get_mut();
        walks.places[n as usize].walk = Some(walk);
        walks.free.swap_remove(at);
        (*f).walk = n + 1;
    }
}

unsafe fn walk_of(f: *mut Fetch) -> *mut Walk {
    // SAFETY: a process has one thread, and the reference to `WALKS` is over when this returns. A
    // box keeps its address. `f` has a walk: contract of all callers.
    unsafe {
        match WALKS.get_mut().places.get_mut((*f).walk as usize - 1).and_then(|p| p.walk.as_mut()) {
            Some(w) => &raw mut **w,
            None => std::ptr::null_mut(),
        }
    }
}

/// The key of a table's index, if it is hollow.
unsafe fn key_of(heap: pg_sys::Relation, index: pg_sys::Relation) -> Option<(&'static RelInfo, &'static PrimaryKey)> {
    // SAFETY: `heap` is an open relation of ours, and `index` an open index of it: the callers have
    // them of a scan's descriptor.
    unsafe {
        let info = rel::info(heap);
        let key = primary::hollow_key(heap, info, (*index).rd_id)?;
        Some((info, key))
    }
}

/// A scan gets its keys. True: it is one of a hollow index. Called for every index scan: what most
/// of them need is a look.
///
/// # Safety
/// A scan of an index of ours and its fetch.
pub unsafe fn begin(scan: pg_sys::IndexScanDesc, f: *mut Fetch) -> bool {
    // SAFETY: `scan` is of an index of ours, and `f` its fetch (contract of this function).
    unsafe {
        if (*f).walk == 0 {
            let index = (*(*scan).indexRelation).rd_id;
            let is_other = |k: &Kept| k.known_key().is_some_and(|k| !k.hollow || k.index != index);
            if rel::known((*f).base.rel).is_some_and(|i| i.uniques.all().iter().all(is_other)) {
                return false;
            }
        }
        guarded_begin(scan, f)
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn guarded_begin(scan: pg_sys::IndexScanDesc, f: *mut Fetch) -> bool {
    // SAFETY: `scan` is of an index of ours, and `f` its fetch: contract of `begin`. No reference
    // to `WALKS` is in use when it is taken.
    unsafe {
        if (*f).walk != 0 {
            (*walk_of(f)).rewind(None);
            (*walk_of(f)).mark = None;
            return true;
        }
        let heap = (*f).base.rel;
        let Some((info, key)) = key_of(heap, (*scan).indexRelation) else { return false };
        put(f, Box::new(Walk::new(heap, info, key)));
        true
    }
}

/// A scan with the same keys starts over.
///
/// # Safety
/// A fetch of ours.
pub unsafe fn restart(f: *mut Fetch) {
    // SAFETY: `f` is a fetch of ours (contract of this function), with a walk.
    unsafe {
        if (*f).walk != 0 {
            let intervals = (*walk_of(f)).intervals.take();
            (*walk_of(f)).rewind(intervals);
        }
    }
}

/// The scan is over.
///
/// # Safety
/// A fetch of ours.
pub unsafe fn end(f: *mut Fetch) {
    // SAFETY: `f` is a fetch of ours (contract of this function). No other reference to `WALKS` is
    // in use.
    unsafe {
        if let Some(n) = (*f).walk.checked_sub(1) {
            let walks = WALKS.get_mut();
            if walks.places.get_mut(n as usize).is_some_and(|p| p.walk.take().is_some()) {
                walks.free.push(n);
            }
            (*f).walk = 0;
        }
    }
}

impl Walk {
    fn new(heap: pg_sys::Relation, info: &'static RelInfo, key: &'static PrimaryKey) -> Walk {
        Walk {
            heap,
            info,
            key,
            intervals: None,
            filters: false,
            at: At::Start,
            interval: 0,
            past: None,
            records: None,
            mark: None,
            tuple: std::ptr::null_mut(),
            long: std::ptr::null_mut(),
        }
    }

    fn rewind(&mut self, intervals: Option<Vec<Interval>>) {
        (self.intervals, self.at, self.interval, self.records, self.past) = (intervals, At::Start, 0, None, None);
    }

    /// Computes the intervals, and takes what the reading of the index needs.
    unsafe fn start(&mut self, scan: pg_sys::IndexScanDesc) {
        // SAFETY: `scan` has its keys, and is of this walk's index: contract of `gettuple` and
        // `bitmap`. Its snapshot is valid as long as it.
        unsafe {
            platform::outside();
            if let Some(old) = pin(scan, self) {
                self.past = Some(self.rows_of(scan, old));
            }
            compat::count_index_scan(scan);
            let keys = keys_of(scan);
            let (mut intervals, is_hull) = bounds::of_keys(self.key.codec, keys, MANY);
            intervals.sort_by(|a, b| a.lo.cmp(&b.lo));
            self.filters = is_hull || bounds::is_exact(self.key.codec, keys) == Exact::Never;
            self.intervals = Some(intervals);
        }
    }

    /// The rows that an old snapshot sees and that meet the scan's keys, in their order.
    unsafe fn rows_of(&self, scan: pg_sys::IndexScanDesc, snapshot: pg_sys::Snapshot) -> Vec<(u64, NonNull<Version>)> {
        let t = xact::txn();
        let mut found = Vec::new();
        for no in 0..self.info.table.len() {
            pgrx::check_for_interrupts!();
            let Some(r) = RecordRef::find(self.info.table, no) else { continue };
            // SAFETY: `snapshot` is the valid MVCC snapshot of `scan`, which has its keys, and is
            // of this walk's index. `v` is a version with a row, reached under our pin
            // (INV-RETIRE).
            unsafe {
                let Some(v) = visible::by_snapshot(t, r, snapshot, false) else { continue };
                let mut key = Vec::new();
                let row = rows::plain(self.heap, self.key.codec, Row::Version(v.as_ptr()), &mut key);
                if row.is_some() && filter::meets(keys_of(scan), |column| self.column(v, column)) {
                    found.push((key, (no, v)));
                }
            }
        }
        found.sort();
        found.into_iter().map(|(_, row)| row).collect()
    }

    /// The next of the rows of an old snapshot.
    fn next_of_past(&mut self, rows: usize, way: Direction) -> Option<()> {
        let up = way == Direction::Forward;
        let next = match self.at {
            At::End(end) if end == way => None,
            At::Entry if up => Some(self.interval + 1).filter(|n| *n < rows),
            At::Entry => self.interval.checked_sub(1),
            _ if up => Some(0).filter(|_| rows > 0),
            _ => rows.checked_sub(1),
        };
        self.interval = next.unwrap_or(self.interval);
        self.at = if next.is_some() { At::Entry } else { At::End(way) };
        next.map(|_| ())
    }

    fn open(&mut self, interval: usize, way: Direction) {
        let Some(i) = self.intervals.as_ref().and_then(|all| all.get(interval)) else { return };
        let cursor = self.key.primary.index.scan(Bound::Included(&i.lo), Bound::Excluded(&i.hi), way);
        self.interval = interval;
        self.records = Some(Box::new(Records::new(cursor, self.info.table)));
    }

    /// The next entry in a direction that meets the keys.
    unsafe fn next(&mut self, scan: pg_sys::IndexScanDesc, way: Direction) -> Option<RecordRef> {
        // SAFETY: `scan` is of this walk's index: contract of `gettuple` and `bitmap`. An ERROR
        // unwinds, and leaves the walk to the transaction.
        unsafe {
            crate::state::platform::outside();
            if self.intervals.is_none() {
                self.start(scan);
            }
            if let Some(rows) = self.past.as_ref().map(Vec::len) {
                self.next_of_past(rows, way)?;
                let (no, _) = self.past.as_ref()?[self.interval];
                return RecordRef::find(self.info.table, no);
            }
            let last = self.intervals.as_ref().map_or(0, Vec::len).checked_sub(1)?;
            let up = way == Direction::Forward;
            match self.at {
                At::End(end) if end == way => return None,
                At::Entry => self.records.iter_mut().filter(|r| r.way() != way).for_each(|r| r.turn()),
                _ => self.open(if up { 0 } else { last }, way),
            }
            loop {
                while let Some(r) = self.records.as_mut().and_then(|r| r.next(&PG)) {
                    pgrx::check_for_interrupts!();
                    if !self.filters || self.meets(scan, r) {
                        self.at = At::Entry;
                        return Some(r);
                    }
                }
                if self.interval == if up { last } else { 0 } {
                    self.at = At::End(way);
                    return None;
                }
                self.open(if up { self.interval + 1 } else { self.interval - 1 }, way);
            }
        }
    }

    /// Does an entry meet the scan's keys? All versions of its record share the columns.
    unsafe fn meets(&self, scan: pg_sys::IndexScanDesc, r: RecordRef) -> bool {
        // Without a row there is nothing to see.
        let Some(v) = xact::txn().any_row(r.rec) else { return false };
        // SAFETY: `scan` has its keys, and is of this walk's index. `v` is a version with a row,
        // reached under our pin (INV-RETIRE).
        unsafe { filter::meets(keys_of(scan), |column| self.column(v, column)) }
    }

    /// The value of a column of the index, counted from 0, in a row.
    unsafe fn column(&self, v: NonNull<Version>, column: usize) -> Option<Datum> {
        // SAFETY: `v` is a version with a row: contract of `meets`. The codec's columns are columns
        // of the relation, which is open.
        unsafe {
            let mut t = tuple::as_tuple(v.as_ptr(), Tid::Record(0), (*self.heap).rd_id);
            let mut null = false;
            let attnum = self.key.codec.attnums[column] as i32;
            let value = pg_sys::heap_getattr(&mut t, attnum, (*self.heap).rd_att, &mut null);
            (!null).then_some(value)
        }
    }

    /// Makes the entry of a record an index tuple, which stays until the next one. One that is too
    /// long is made a heap tuple, as an access method may do. The planner, which looks for the
    /// extreme keys, takes no such tuple: it gets the next entry. False: there is none.
    unsafe fn form(&mut self, scan: pg_sys::IndexScanDesc, r: RecordRef) -> bool {
        let old = self.past.as_ref().map(|rows| rows[self.interval].1);
        let Some(v) = old.or_else(|| xact::txn().any_row(r.rec)) else { return false };
        // SAFETY: `scan` is an index-only scan of this walk's index, whose descriptor has a column
        // for each of the codec. The tuple lies in the context of the scan's fetch, which lives as
        // long as the scan.
        unsafe {
            let n = self.key.codec.attnums.len();
            let columns = (0..n).map(|i| self.column(v, i));
            let (mut values, mut nulls): (Vec<_>, Vec<_>) =
                columns.map(|d| (d.unwrap_or(Datum::from(0)), d.is_none())).unzip();
            if !self.tuple.is_null() {
                raw::pfree(std::mem::replace(&mut self.tuple, std::ptr::null_mut()).cast());
            }
            if !self.long.is_null() {
                raw::pfree(std::mem::replace(&mut self.long, std::ptr::null_mut()).cast());
            }
            ((*scan).xs_itup, (*scan).xs_hitup) = (std::ptr::null_mut(), std::ptr::null_mut());
            let context = pg_sys::GetMemoryChunkContext((*scan).xs_heapfetch.cast());
            let desc = (*scan).xs_itupdesc;
            if is_long(desc, &values, &nulls) {
                let f = fetch_of(scan);
                let s = if is_ours((*scan).xs_snapshot) && !f.is_null() { (*f).snapshot } else { (*scan).xs_snapshot };
                if (*s).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_NON_VACUUMABLE {
                    return false;
                }
                let before = std::mem::replace(&mut *(&raw mut pg_sys::CurrentMemoryContext), context);
                self.long = pg_sys::heap_form_tuple(desc, values.as_mut_ptr(), nulls.as_mut_ptr());
                pg_sys::CurrentMemoryContext = before;
                ((*scan).xs_hitup, (*scan).xs_hitupdesc) = (self.long, desc);
                return true;
            }
            self.tuple = pg_sys::index_form_tuple_context(desc, values.as_mut_ptr(), nulls.as_mut_ptr(), context);
            (*scan).xs_itup = self.tuple;
            true
        }
    }

    fn mark(&mut self) {
        let place = self.records.as_ref().map(|r| (r.way(), r.mark()));
        self.mark = Some((self.at, self.interval, place));
    }

    fn restore(&mut self) {
        let Some((at, interval, place)) = self.mark else { return };
        (self.at, self.interval, self.records) = (at, interval, None);
        if let Some((way, mark)) = place {
            self.open(interval, way);
            self.records.iter_mut().for_each(|r| r.restore(&mark));
        }
    }
}

/// The bytes of values that fit into an index tuple in any case: 8,191 less the rest of it.
const FITS: usize = 7000;

/// May the values be too long for an index tuple? Not if one is a C string, as nbtree keeps a name:
/// the executor would not take it from a heap tuple.
///
/// # Safety
/// The descriptor has a column for each value.
unsafe fn is_long(desc: pg_sys::TupleDesc, values: &[Datum], nulls: &[bool]) -> bool {
    let mut bytes = 0;
    for (i, d) in values.iter().enumerate().filter(|(i, _)| !nulls[*i]) {
        // SAFETY: the descriptor has the column, and `d` is a value of it (contract of this
        // function).
        unsafe {
            match compat::attribute(desc, i).attlen {
                -1 => bytes += pgrx::varsize_any(d.cast_mut_ptr()),
                -2 => return false,
                _ => {}
            }
        }
    }
    bytes > FITS
}

/// The index is about to be read: pins what the scan may meet. Returns the scan's snapshot if the
/// index is too new for it.
unsafe fn pin(scan: pg_sys::IndexScanDesc, w: &Walk) -> Option<pg_sys::Snapshot> {
    // SAFETY: `scan` has a valid snapshot, and a fetch of ours or none (a bitmap): contract of
    // `start`. `heap` is open.
    unsafe {
        xact::txn();
        xact::renew_pin();
        let f = fetch_of(scan);
        let given = (*scan).xs_snapshot;
        let s = if is_ours(given) && !f.is_null() { (*f).snapshot } else { given };
        let is_mvcc = (*s).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC;
        if xact::mode() == Mode::Serializable || !is_mvcc && !is_ours(s) {
            return None; // sees the newest rows
        }
        let floor = if is_mvcc { xact::snapshot_seen(s).floor } else { 0 };
        let from = w.key.primary.complete_from();
        if from == 0 || from != Csn::MAX && floor >= from || primary::is_usable(w.key) {
            return None;
        }
        if is_mvcc {
            return Some(s);
        }
        // A bitmap in a SERIALIZABLE READ ONLY transaction, whose snapshot is not at hand.
        complain(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            &format!("a key of table \"{}\" is newer than the snapshot", w.info.name),
            "Try again in a new transaction.",
        );
    }
}

/// `amgettuple` of a scan that [`begin`] has taken.
///
/// # Safety
/// amapi.h's contract of `amgettuple`; the scan's fetch has a walk.
#[pg_guard]
pub unsafe extern "C-unwind" fn gettuple(scan: pg_sys::IndexScanDesc, direction: pg_sys::ScanDirection::Type) -> bool {
    // SAFETY: `scan` has its keys, and its fetch a walk (contract of this function).
    unsafe {
        let w = &mut *walk_of(fetch_of(scan));
        let way = if direction >= 0 { Direction::Forward } else { Direction::Backward };
        (*scan).xs_recheck = false;
        while let Some(r) = w.next(scan, way) {
            if (*scan).xs_want_itup && !w.form(scan, r) {
                continue;
            }
            (*scan).xs_heaptid = Tid::Record(r.no).item();
            return true;
        }
        false
    }
}

/// `ammarkpos`; false: the scan is nbtree's.
///
/// # Safety
/// A fetch of ours.
pub unsafe fn mark(f: *mut Fetch) -> bool {
    // SAFETY: `f` is a fetch of ours (contract of this function). Nothing here fails but for want
    // of memory.
    unsafe {
        if (*f).walk != 0 {
            (*walk_of(f)).mark();
        }
        (*f).walk != 0
    }
}

/// `amrestrpos`; false: the scan is nbtree's.
///
/// # Safety
/// A fetch of ours.
pub unsafe fn restore(f: *mut Fetch) -> bool {
    // SAFETY: as in `mark`.
    unsafe {
        if (*f).walk != 0 {
            (*walk_of(f)).restore();
        }
        (*f).walk != 0
    }
}

/// `amgetbitmap`: adds the entries to the bitmap and counts them; a negative number: the index is
/// not hollow.
///
/// # Safety
/// amapi.h's contract of `amgetbitmap`, for an index that is open, of whatever table.
#[pg_guard]
pub unsafe extern "C-unwind" fn bitmap(scan: pg_sys::IndexScanDesc, bitmap: *mut pg_sys::TIDBitmap) -> i64 {
    // SAFETY: `scan` has its keys, and `bitmap` is valid (amapi.h: amgetbitmap). The transaction
    // holds a lock on the table, so the look-up by OID finds it; an ERROR's clean-up closes it.
    unsafe {
        let heap = pg_sys::RelationIdGetRelation((*(*(*scan).indexRelation).rd_index).indrelid);
        let mut n = -1;
        let found = if rel::is_ours(heap) { key_of(heap, (*scan).indexRelation) } else { None };
        if let Some((info, key)) = found {
            n = 0;
            let mut w = Walk::new(heap, info, key);
            while let Some(r) = w.next(scan, Direction::Forward) {
                compat::add_to_bitmap(bitmap, Tid::Record(r.no).item());
                n += 1;
            }
        }
        pg_sys::RelationClose(heap);
        n
    }
}
