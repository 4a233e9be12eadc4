//! What protects the index scans of a SERIALIZABLE transaction: predicates on the ranges of the
//! index, or, where its keys have no ranges, on partitions.
//!
//! A look-up of a full key of a unique index is a read of its row, and a predicate only if there is
//! none. Other scans are predicates from the moment before they read the index; if they end early
//! (LIMIT, min and max) the predicate shrinks to what they have read.
//!
//! **INV-SCANS**: No reference into `SCANS` is in use while the engine, PostgreSQL or a user's
//! function runs: each of them may come back here. The engine asks how far a scan has come
//! (`reached`). The end of a memory context says that a scan is gone (`gone`). A function may start
//! and end scans. What is needed longer is taken out of the entry and put back.

use super::index_lookup;
use super::indexscan::{self, fetch_of, is_ours, ours};
use super::partitions;
use super::statements;
use crate::access::fetch::Fetch;
use crate::access::ranges::rows::{Row, Rows};
use crate::access::ranges::{self, conditions, Ranged};
use crate::keys::bounds::{self, Interval};
use crate::pg::faults::{self, Fault};
use crate::pg::local::Local;
use crate::pg::relations;
use crate::state::errors::ok;
use crate::state::platform::{self, PG};
use crate::state::rel::{self, RelInfo};
use crate::state::xact::{self, Mode};
use mixedcc_engine::open::Seen;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::range::Looked;
use mixedcc_engine::txn::{LookPosition, OpenEnd, Scan, ScanId};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cmp::Ordering;
use std::ops::Bound;

/// The predicates of a scan that is under way.
pub(super) struct Open {
    /// The scan's part of our memory, null if it is over.
    fetch: *mut Fetch,
    /// Nesting depth at which it began; `u32::MAX` if that subtransaction was aborted. The scan may
    /// go on, if its cursor is older, or be gone.
    level: u32,
    /// What holds the relations of its statement; null if it has released them, as after an ERROR
    /// of a cursor in a savepoint that is younger than the scan. Its memory may be there still.
    resources: pg_sys::ResourceOwner,
    ranged: Option<Ranged>,
    /// Does it read its index in one pass, so that what it has not reached it has not read?
    one_pass: bool,
    ids: Vec<ScanId>,
    intervals: Vec<Interval>,
    /// A look-up of one key that has found nothing: where its predicate starts in the ranges. Else
    /// in partitions.
    pub(super) position: Option<LookPosition>,
    pub(super) key: Vec<u8>,
    /// Is `key` the key that is looked up?
    pub(super) has_key: bool,
    pub(super) partitions: Vec<(Touch, u64)>,
}

impl Default for Open {
    fn default() -> Open {
        Open {
            fetch: std::ptr::null_mut(),
            level: 0,
            resources: std::ptr::null_mut(),
            ranged: None,
            one_pass: false,
            ids: Vec::new(),
            intervals: Vec::new(),
            position: None,
            key: Vec::new(),
            has_key: false,
            partitions: Vec::new(),
        }
    }
}

/// Of scans: their entries go with their memory, at the latest with the transaction.
struct Scans {
    /// Those that are under way; `Fetch::open` is a number in here, plus 1.
    open: Vec<Open>,
    /// Numbers that are free.
    free: Vec<u32>,
    /// The interval of the scan that starts next, where its keys do not say all.
    given: Option<Interval>,
}

static SCANS: Local<Scans> = Local::new(Scans { open: Vec::new(), free: Vec::new(), given: None });

/// Forgets what belonged to the transaction.
pub fn end_transaction() {
    // SAFETY: a process has one thread, and no other reference to `SCANS` is in use (contract of
    // `get_mut`). No scan outlives its transaction, so no entry is in use.
    unsafe {
        let Scans { open, free, .. } = SCANS.get_mut();
        open.truncate(64);
        for o in open.iter_mut() {
            o.fetch = std::ptr::null_mut();
            o.ids.clear(); // the next transaction's scans have the same numbers
        }
        free.clear();
        free.extend(0..open.len() as u32);
    }
}

/// Scans that began in aborted subtransactions: those of older cursors go on, others are gone
/// without an end, when their memory is.
pub fn abort_subtransactions(level: u32) {
    // SAFETY: a process has one thread, and no other reference to `SCANS` is in use (contract of
    // `get_mut`).
    unsafe {
        for o in SCANS.get_mut().open.iter_mut().filter(|o| o.level >= level) {
            o.level = u32::MAX;
        }
    }
}

/// A resource owner releases what it holds, and with it the relations of scans that have not ended.
/// It cannot fail.
pub fn released(resources: pg_sys::ResourceOwner) {
    // SAFETY: a process has one thread, and no other reference to `SCANS` is in use (contract of
    // `get_mut`).
    let Scans { open, free, .. } = unsafe { SCANS.get_mut() };
    if free.len() < open.len() {
        for o in open.iter_mut().filter(|o| o.resources == resources) {
            o.resources = std::ptr::null_mut();
        }
    }
}

/// What tells that a scan's memory goes away, in whatever way.
#[repr(C)]
struct Gone {
    callback: pg_sys::MemoryContextCallback,
    fetch: *mut Fetch,
    open: u32,
}

unsafe extern "C-unwind" fn gone(arg: *mut core::ffi::c_void) {
    // SAFETY: `arg` is the `Gone` of `watch`, in the memory that goes away only after this call.
    // One thread uses `SCANS`. `fetch` is only compared; nothing here can fail but for memory.
    unsafe {
        let g = &*arg.cast::<Gone>();
        let s = SCANS.get_mut();
        if let Some(o) = s.open.get_mut(g.open as usize).filter(|o| o.fetch == g.fetch) {
            o.fetch = std::ptr::null_mut();
            s.free.push(g.open);
        }
    }
}

/// An entry lives as long as the memory of its scan. (A subtransaction's end does not tell: a
/// cursor outlives one in which it was read, and another one in which it was declared.)
unsafe fn watch(f: *mut Fetch, open: u32) {
    // SAFETY: `f` is a chunk of its own in a memory context: `Fetch::new` has made it. `Gone` and
    // the callback in it live in the same context.
    unsafe {
        let context = pg_sys::GetMemoryChunkContext(f.cast());
        let g = pg_sys::MemoryContextAllocZero(context, std::mem::size_of::<Gone>()).cast::<Gone>();
        ((*g).fetch, (*g).open) = (f, open);
        (*g).callback.func = Some(gone);
        (*g).callback.arg = g.cast();
        pg_sys::MemoryContextRegisterResetCallback(context, &mut (*g).callback);
    }
}

/// The entry of a scan, made if it has none, and emptied.
///
/// # Safety
/// `f` is a fetch of ours, alone in its chunk of memory. The reference is not used after a call
/// that may come back here (INV-SCANS).
pub(super) unsafe fn open_of(f: *mut Fetch) -> &'static mut Open {
    // SAFETY: `f` is a fetch of ours (contract of this function). A process has one thread, and
    // no reference is kept over a call that may come back here (INV-SCANS): `watch` is called
    // between two borrows. If it fails, the entry is not in use, and not free either.
    unsafe {
        if (*f).open == 0 {
            let n = new_entry();
            watch(f, n);
            (*f).open = n + 1;
            let o = entry_of(f);
            (o.fetch, o.level, o.resources) = (f, xact::depth(), pg_sys::CurrentResourceOwner);
        }
        let o = entry_of(f);
        o.level = o.level.min(xact::depth());
        (o.ranged, o.position, o.has_key) = (None, None, false);
        o.ids.clear();
        o.intervals.clear();
        o.partitions.clear();
        o.key.clear();
        o
    }
}

/// The number of an entry that is free.
fn new_entry() -> u32 {
    // SAFETY: a process has one thread, and no other reference to `SCANS` is in use (INV-SCANS).
    let Scans { open, free, .. } = unsafe { SCANS.get_mut() };
    free.pop().unwrap_or_else(|| {
        open.push(Open::default());
        open.len() as u32 - 1
    })
}

/// The entry of a scan that has one.
///
/// # Safety
/// `f` is a fetch of ours that has an entry. The reference is not used after a call that may come
/// back here (INV-SCANS).
pub(super) unsafe fn entry_of(f: *mut Fetch) -> &'static mut Open {
    // SAFETY: `f` has an entry, so `open` is its number plus 1 (contract of this function). A
    // process has one thread, and no other reference to `SCANS` is in use.
    unsafe { &mut SCANS.get_mut().open[(*f).open as usize - 1] }
}

/// The scan's part of our memory is not needed any more.
///
/// # Safety
/// A fetch of ours.
pub unsafe fn close(f: *mut Fetch) {
    // SAFETY: `f` is a fetch of ours (contract of this function). A process has one thread; a
    // reference to `SCANS` is taken when the one before is over.
    unsafe {
        settle(f);
        if (*f).open != 0 {
            entry_of(f).fetch = std::ptr::null_mut();
            SCANS.get_mut().free.push((*f).open - 1);
            (*f).open = 0;
        }
    }
}

unsafe fn is_mvcc(s: pg_sys::Snapshot) -> bool {
    // SAFETY: `s` is null or the snapshot of a scan descriptor, which is registered or active as
    // long as the scan.
    unsafe { !s.is_null() && ((*s).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC || is_ours(s)) }
}

/// # Safety
/// A scan whose keys are set; they stay as they are while the slice is used.
pub(super) unsafe fn keys_of<'a>(scan: pg_sys::IndexScanDesc) -> &'a [pg_sys::ScanKeyData] {
    // SAFETY: the scan's keys are set (contract of this function): `keyData` has `numberOfKeys`
    // entries (relscan.h).
    unsafe {
        match (*scan).numberOfKeys as usize {
            0 => &[],
            n => std::slice::from_raw_parts((*scan).keyData, n),
        }
    }
}

/// Protects an index scan of a serializable transaction, before it reads the index.
///
/// # Safety
/// A scan of an index of ours whose keys are set.
pub unsafe fn index_scan(scan: pg_sys::IndexScanDesc) {
    // SAFETY: `scan` is of an index of ours with its keys set (contract of this function).
    // `fetch_of` gives null or a `Fetch`.
    unsafe {
        let index = (*scan).indexRelation;
        let Some(info) = rel::by_oid((*(*index).rd_index).indrelid) else {
            error!("mixedcc does not know the table of an index that is scanned")
        };
        let f = fetch_of(scan);
        if !f.is_null() {
            settle(f);
            let s = (*scan).xs_snapshot;
            if !is_ours(s) {
                (*f).snapshot = s;
                (*f).for_write = statements::will_write(s, info.oid);
                (*f).skips |= statements::scan_skips(s, info.oid, scan);
                if let Some(looked) = statements::looked(s, info.oid, scan) {
                    (*f).looked = looked;
                }
                if (*f).for_write {
                    (*f).looked = Looked::ALL; // the new versions are made of them
                } else if (*f).looked != Looked::ALL {
                    info.table.note_looked();
                }
            }
        }
        if !is_mvcc((*scan).xs_snapshot) {
            return; // a unique check, or the planner: not reads of the transaction
        }
        let snapshot = (*scan).xs_snapshot;
        if indexscan::takes_any_snapshot(index) && !(*scan).xs_temp_snap {
            (*scan).xs_snapshot = ours();
        }
        if xact::mode() == Mode::SerializableReadOnly {
            return; // a snapshot is a serial prefix: nothing to protect
        }
        let (one_row, partition) = index_lookup::examine(scan, info);
        if !f.is_null() {
            (*f).offers = (*f).skips && is_mvcc(snapshot);
            if (*f).offers {
                let before = |touch| ok(xact::txn().before_lookup(&PG, touch));
                partitions::touches(info, partition).for_each(|touch| _ = before(touch));
                return;
            }
        }
        if one_row && !f.is_null() {
            index_lookup::look_up(scan, f, info, partition);
        } else if f.is_null() {
            bitmap(scan, info, partition, snapshot);
        } else {
            range_scan(scan, f, info, partition);
        }
    }
}

/// A scan of a key range, whose rows are fetched through `f`.
unsafe fn range_scan(scan: pg_sys::IndexScanDesc, f: *mut Fetch, info: &RelInfo, partition: Option<u16>) {
    // SAFETY: `scan` has its keys set: contract of `index_scan`. `f` is its fetch, not null; the
    // entry of `open_of` is filled without a call that could come back here.
    unsafe {
        let at: Vec<_> = partitions::touches(info, partition).collect();
        let heap = (*f).base.rel;
        match intervals_of(scan, heap, info) {
            Some((ranged, intervals)) => {
                let ids = begin(&at, ranged, &intervals, (true, (*f).looked));
                let id = xact::txn().share_rows(&mut ids.clone());
                let one_pass = !ranged.codec.hash && bounds::is_one_pass(ranged.codec, keys_of(scan));
                let o = open_of(f);
                (o.ranged, o.ids, o.intervals, o.one_pass) = (Some(ranged), ids, intervals, one_pass);
                (*f).scan = id;
            }
            None => coarse(scan, heap, &at),
        }
    }
}

/// A scan whose rows come through a bitmap: it is read to its end, and its rows are read later.
unsafe fn bitmap(scan: pg_sys::IndexScanDesc, info: &RelInfo, partition: Option<u16>, snapshot: pg_sys::Snapshot) {
    // SAFETY: `scan` has its keys set: contract of `index_scan`. Its transaction holds a lock on
    // the table, so the look-up by OID finds it; it is closed again.
    unsafe {
        let at: Vec<_> = partitions::touches(info, partition).collect();
        let heap = relations::entry(info.oid);
        let looked = statements::bitmap_looked(scan);
        let ids = match intervals_of(scan, heap, info) {
            Some((ranged, intervals)) => begin(&at, ranged, &intervals, (false, looked)),
            None => {
                coarse(scan, heap, &at);
                vec![ScanId::NONE]
            }
        };
        pg_sys::RelationClose(heap);
        statements::bitmap_scan(scan, snapshot, info.oid, ids);
    }
}

/// Predicates on partitions, of all rows or of those that meet the scan's keys: the rows that it
/// reads are protected by themselves.
unsafe fn coarse(scan: pg_sys::IndexScanDesc, heap: pg_sys::Relation, at: &[Touch]) {
    // SAFETY: `scan` has its keys set: contract of `index_scan`. `heap` is open: the fetch's, or
    // opened by `bitmap`.
    let condition = unsafe { conditions::of_scan(heap, (*scan).indexRelation, keys_of(scan)) };
    for touch in at {
        ok(match condition {
            Some(c) => xact::txn().scan_where(&PG, *touch, c),
            None => xact::txn().scan(&PG, *touch),
        });
    }
}

fn begin(at: &[Touch], ranged: Ranged, intervals: &[Interval], how: (bool, Looked)) -> Vec<ScanId> {
    intervals.iter().map(|i| begin_one(at, ranged, i, how)).collect()
}

/// Adds the predicate of an interval. `open`: the scan may end before it has read all of it.
/// `looked`: the columns that the statement looks at.
pub fn begin_one(at: &[Touch], ranged: Ranged, i: &Interval, (open, looked): (bool, Looked)) -> ScanId {
    let open = if open { OpenEnd::High } else { OpenEnd::No };
    let (lo, hi) = (Bound::Included(&i.lo[..]), Bound::Excluded(&i.hi[..]));
    ok(xact::txn().begin_scan(&PG, ranged.ranges, &Scan { at, lo, hi, open, snapshot: None, looked }))
}

/// Adds the predicate of an interval that is read as a snapshot shows it.
pub fn begin_at(at: &[Touch], ranged: Ranged, i: &Interval, seen: Seen<'_>) -> ScanId {
    let (lo, hi) = (Bound::Included(&i.lo[..]), Bound::Excluded(&i.hi[..]));
    let scan = Scan { at, lo, hi, open: OpenEnd::No, snapshot: Some(seen), looked: Looked::ALL };
    ok(xact::txn().begin_scan(&PG, ranged.ranges, &scan))
}

struct Forget;
impl Drop for Forget {
    fn drop(&mut self) {
        // SAFETY: a process has one thread, and `with_interval` keeps no reference to `SCANS`.
        unsafe { SCANS.get_mut().given = None };
    }
}

/// The scan that `start` starts reads this interval.
pub fn with_interval(i: &Interval, start: impl FnOnce()) {
    // SAFETY: a process has one thread, and no other reference to `SCANS` is in use (contract of
    // `get_mut`). `Forget` empties `given` also if an ERROR unwinds.
    unsafe { SCANS.get_mut().given = Some(i.clone()) };
    let _forget = Forget;
    start();
}

/// The caller has read all that it wanted of a scan, which is all between its bounds.
///
/// # Safety
/// A scan with a fetch of ours.
pub unsafe fn ran_to_its_end(scan: pg_sys::IndexScanDesc) {
    // SAFETY: `scan` has a fetch of ours (contract of this function).
    unsafe { (*fetch_of(scan)).seen.ended = true };
}

/// What a scan will read of its index, if that is known.
unsafe fn intervals_of(
    scan: pg_sys::IndexScanDesc,
    heap: pg_sys::Relation,
    info: &RelInfo,
) -> Option<(Ranged, Vec<Interval>)> {
    // SAFETY: `scan` has its keys set: contract of `index_scan`. `heap` is open, and the index is
    // one of it. The reference to `SCANS` is over before a function is called.
    unsafe {
        let ranged = ranges::of_index(heap, info, (*scan).indexRelation)?;
        if let Some(i) = SCANS.get_mut().given.take() {
            return Some((ranged, vec![i]));
        }
        let intervals = if ranged.codec.hash {
            bounds::of_hash(ranged.codec, keys_of(scan))?
        } else {
            bounds::of_scan(ranged.codec, keys_of(scan))
        };
        Some((ranged, intervals))
    }
}

/// A look-up that found nothing is a predicate: the key must stay absent. A scan that ended early
/// has read less than its bounds say.
///
/// # Safety
/// A fetch of ours.
pub unsafe fn settle(f: *mut Fetch) {
    // SAFETY: `f` is a fetch of ours (contract of this function). With `look` set and `n_few` 0 it
    // has an entry.
    unsafe {
        if (*f).look || (*f).scan != ScanId::NONE {
            platform::outside(); // before anything is changed
        }
        if (*f).look {
            (*f).look = false;
            if !((*f).seen.forward || (*f).seen.backward) {
                // It has not started.
            } else if (*f).n_few == 0 {
                index_lookup::missed(f);
            } else {
                index_lookup::few_of(f)
                    .into_iter()
                    .for_each(|(touch, position)| xact::txn().add_predicate(touch, position));
            }
        } else if (*f).scan != ScanId::NONE {
            shrink(f);
        }
        (*f).scan = ScanId::NONE;
        (*f).n_few = 0;
        (*f).seen = Default::default();
        (*f).last = std::ptr::null();
    }
}

/// The last key that a scan of this transaction has read, and whether it reads upwards.
pub fn reached(number: u32) -> Option<(Vec<u8>, bool)> {
    // SAFETY: a process has one thread. The fetch of an entry is alive, since `gone` sets it to
    // null, and its relation is open, since `released` sets `resources` to null. The transaction's
    // pin keeps the row that it returned last (INV-RETIRE). `o` is not used once the key is made.
    unsafe {
        let o = SCANS.get_mut().open.iter().find(|o| o.ids.iter().any(|id| id.number() == number))?;
        let (f, r) = (o.fetch, o.ranged?);
        if f.is_null()
            || o.level == u32::MAX
            || o.resources.is_null()
            || !o.one_pass
            || (*f).last.is_null()
            || (*f).seen.rewound
            || (*f).seen.forward == (*f).seen.backward
        {
            return None;
        }
        let mut key = Vec::new();
        Rows::new((*f).base.rel, r.codec).key(Row::Version((*f).last), &mut key)?;
        Some((key, (*f).seen.forward))
    }
}

/// The scan stopped before its end: the predicates end at the last row that it returned.
unsafe fn shrink(f: *mut Fetch) {
    // SAFETY: `f` is a fetch of ours: contract of `settle`. The pin keeps the row that it returned
    // last (INV-RETIRE). `o` is not used once expressions of the index may run.
    unsafe {
        let seen = (*f).seen;
        if (*f).open == 0 {
            return;
        }
        let o = entry_of(f);
        let (Some(r), one_pass) = (o.ranged, o.one_pass) else { return };
        // Taken out: expressions of the index run, and may scan too.
        let (ids, intervals) = (std::mem::take(&mut o.ids), std::mem::take(&mut o.intervals));
        let started = seen.forward || seen.backward;
        // Without a last row: it met rows that it could not see, and then stopped: an error.
        let all = seen.ended || seen.rewound || seen.forward && seen.backward || !one_pass;
        let mut key = Vec::new();
        let all = all
            || started
                && ((*f).last.is_null()
                    || Rows::new((*f).base.rel, r.codec).key(Row::Version((*f).last), &mut key).is_none());
        let t = xact::txn();
        for (id, i) in ids.iter().zip(&intervals) {
            if !started {
                t.cancel_scan(&PG, *id);
            } else if all {
                t.narrow_scan(&PG, *id, None, None);
            } else if seen.forward {
                let mut end = key.clone();
                if !faults::on(Fault::LimitTooLittle) {
                    end.push(mixedcc_engine::key::AFTER);
                }
                if r.codec.compare(&i.lo, &key) == Ordering::Greater {
                    t.cancel_scan(&PG, *id);
                } else {
                    t.narrow_scan(&PG, *id, None, Some(Bound::Excluded(&end)));
                }
            } else if r.codec.compare(&i.hi, &key) != Ordering::Greater {
                t.cancel_scan(&PG, *id);
            } else {
                t.narrow_scan(&PG, *id, Some(Bound::Included(&key)), None);
            }
        }
    }
}
