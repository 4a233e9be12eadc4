//! Which version of a record a snapshot of PostgreSQL sees.

use crate::pg::faults::{self, Fault};
use crate::pg::local::Local;
use crate::pg::Tid;
use crate::state::errors::{ok, raise};
use crate::state::platform::PG;
use crate::state::xact::{self, HandedOut, Mode};
use crate::state::{standby, stop};
use mixedcc_engine::durable::Durable;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::range::Columns;
use mixedcc_engine::record::{Version, REC_DEAD, REC_VACUUM};
use mixedcc_engine::shared::Oldest;
use mixedcc_engine::txn::{Look, Own, Present, ScanId, Write, WriteKind};
use mixedcc_engine::{RecordRef, Txn};
use pgrx::pg_sys;
use pgrx::pg_sys::SnapshotType;
use std::cell::Cell;
use std::ptr::NonNull;

/// A version that is seen.
pub type Seen = Option<NonNull<Version>>;

/// Why a row is read, where its isolation level asks for it.
#[derive(Clone, Copy)]
pub struct Why {
    /// Will it be written next?
    pub for_write: bool,
    /// The predicate that protects it, or `NONE`.
    pub scan: ScanId,
    /// The columns that the statement looks at (INV-LOOKED of the engine). All count if the row
    /// will be written.
    pub looked: Columns,
    /// Is the row only looked up to lock its key, and nothing of it used but that (INV-EXISTS of
    /// the engine)?
    pub key: bool,
}

impl Why {
    /// A read of a whole row.
    pub const fn whole(for_write: bool, scan: ScanId) -> Why {
        Why { for_write, scan, looked: Columns::ALL, key: false }
    }
}

/// What an MVCC snapshot sees of a record.
///
/// # Safety
/// `s` is a valid MVCC snapshot of this backend.
#[inline]
pub unsafe fn mvcc(t: &mut Txn, mode: Mode, r: RecordRef, s: pg_sys::Snapshot, why: Why) -> Seen {
    // SAFETY: `s` is a valid MVCC snapshot (contract of this function).
    let cid = unsafe { (*s).curcid };
    if let Some(own) = own(t, mode, r, cid) {
        return own;
    }
    if mode == Mode::Serializable {
        return ok(match why {
            Why { scan, for_write, .. } if scan != ScanId::NONE => t.read_scanned(&PG, r, for_write, scan),
            Why { for_write: true, .. } => t.read(&PG, r, true),
            Why { key: true, .. } => t.read_key(&PG, r),
            Why { looked, .. } => t.read_columns(&PG, r, looked),
        });
    }
    // SAFETY: `s` is a valid MVCC snapshot (contract of this function).
    let seen = unsafe { xact::snapshot_seen(s) };
    ok(t.read_snapshot(&PG, r, seen))
}

/// What a command sees of a record that its transaction has written; `None`: what others have
/// written.
#[inline]
fn own(t: &Txn, mode: Mode, r: RecordRef, cid: u32) -> Option<Seen> {
    match t.own(r, Some(cid)) {
        Own::Nothing => None,
        Own::Write(n) => Some(own_version(t, n)),
        Own::Later => {
            let base = t.last_write(r).and_then(|n| t.base_of(n));
            (base.is_none() || mode == Mode::Serializable).then_some(base)
        }
    }
}

/// The last row that a scan without protection has shown: statement, record and version.
#[derive(Clone, Copy, PartialEq)]
struct Offer {
    snapshot: usize,
    curcid: u32,
    record: usize,
    version: usize,
}

impl Offer {
    unsafe fn of(s: pg_sys::Snapshot, r: RecordRef, v: NonNull<Version>) -> Offer {
        // SAFETY: `s` is a valid snapshot (contract of the callers).
        let curcid = unsafe { (*s).curcid };
        let record = std::ptr::from_ref(r.rec) as usize;
        Offer { snapshot: s as usize, curcid, record, version: v.as_ptr() as usize }
    }
}

static OFFERED: Local<Option<Offer>> = Local::new(None);

/// The newest row of a record, for a scan whose rows count only once they are locked (INV-SKIP).
/// Nothing is remembered for validation.
///
/// # Safety
/// A valid MVCC snapshot.
pub unsafe fn offer(t: &mut Txn, r: RecordRef, s: pg_sys::Snapshot) -> Seen {
    // SAFETY: `s` is a valid snapshot (contract of this function). The version is reached under our
    // pin (INV-RETIRE). A process has one thread, and the reference is not kept.
    unsafe {
        if let Some(own) = own(t, Mode::Serializable, r, (*s).curcid) {
            return own;
        }
        let v = live(ok(t.newest(&PG, r.rec)).map(|v| v.0))?;
        *OFFERED.get_mut() = Some(Offer::of(s, r, v));
        Some(v)
    }
}

/// Is it the row that the statement's scan has shown last, in this version?
///
/// # Safety
/// A valid snapshot.
pub unsafe fn is_offered(s: pg_sys::Snapshot, r: RecordRef, v: NonNull<Version>) -> bool {
    // SAFETY: `s` is valid (contract of this function). A process has one thread.
    unsafe { *OFFERED.get_mut() == Some(Offer::of(s, r, v)) }
}

/// What an MVCC snapshot sees of a record, where a look at its newest version tells; else `None`.
/// Neither fails nor unwinds. `scan`: the predicate that protects the row, or `NONE`.
///
/// # Safety
/// A valid MVCC snapshot.
#[inline]
pub unsafe fn peek(r: RecordRef, s: pg_sys::Snapshot, for_write: bool, scan: ScanId) -> Option<Seen> {
    let t = xact::running()?;
    if stop::is_on() || t.last_write(r).is_some() {
        return None;
    }
    match xact::known_mode()? {
        Mode::Serializable if for_write || scan == ScanId::NONE => None,
        Mode::Serializable => t.peek_scanned(r, scan),
        // SAFETY: `s` is a valid MVCC snapshot (contract of this function).
        _ => t.peek_snapshot(r, unsafe { xact::known_seen(s) }?),
    }
}

/// How a scan can look at rows together: what [`peek`] would tell of each. `None`: it cannot.
///
/// # Safety
/// A valid snapshot.
pub unsafe fn look(s: pg_sys::Snapshot, for_write: bool, scan: ScanId) -> Option<Look<'static>> {
    // SAFETY: `s` is valid (contract of this function).
    unsafe {
        if (*s).snapshot_type != SnapshotType::SNAPSHOT_MVCC || stop::is_on() {
            return None;
        }
        match xact::known_mode()? {
            Mode::Serializable if for_write || scan == ScanId::NONE => None,
            Mode::Serializable => Some(Look::Scan(scan)),
            _ => xact::known_seen(s).map(Look::Snapshot),
        }
    }
}

/// The version of an own write; `None` if it deletes.
pub fn own_version(t: &Txn, n: u32) -> Seen {
    t.write(n).filter(|w| w.kind != WriteKind::Delete).map(|w| w.version)
}

/// The newest version: our own, or the newest committed one.
pub fn newest(t: &mut Txn, r: RecordRef) -> Seen {
    t.rest_no_more(); // INV-RESTS
    if let Some(n) = t.last_write(r) {
        return own_version(t, n);
    }
    // SAFETY: the version is the newest of a record, reached under our pin (INV-RETIRE).
    unsafe { live(ok(t.newest(&PG, r.rec)).map(|v| v.0)) }
}

/// Without tombstones.
///
/// # Safety
/// A version that was reached under our pin (INV-RETIRE), if there is one.
pub unsafe fn live(v: Seen) -> Seen {
    // SAFETY: `v` was reached under our pin (contract of this function).
    v.filter(|v| !unsafe { v.as_ref() }.is_tombstone())
}

/// What an own write replaced: our previous write of the row, or the committed version.
pub fn before_image(t: &Txn, n: u32) -> Seen {
    let w = t.write(n)?;
    match w.previous().and_then(|p| t.write(p)) {
        Some(p) => Some(p.version),
        None => w.base,
    }
}

/// A row whose last own write `n` is an update, as the command `cid` has found it; and the first
/// write of that command or a later one, whose before-image it is. `None`: as it is now.
fn as_found(t: &Txn, n: u32, cid: Option<u32>) -> Option<(NonNull<Version>, Option<u32>)> {
    let is_later = |n: &u32| t.write(*n).is_some_and(|w| cid.is_some_and(|cid| w.cid >= cid));
    let mut first = None;
    let mut at = Some(n).filter(is_later);
    while let Some(n) = at {
        first = at;
        at = t.write(n)?.previous().filter(is_later);
    }
    let before = first.and_then(|n| before_image(t, n)).map(|v| (v, first));
    before.or_else(|| Some((t.write(n)?.version, None)))
}

/// `SnapshotAny` by a record's TID. The executor or the trigger queue asks, for the row that the
/// current command has found, and may have changed since (AfterTriggerSaveEvent of trigger.c,
/// ExecUpdate and ExecMerge fetch by TID). The second value is the write whose before-image it is.
///
/// # Safety
/// Within a transaction that has used the record's table.
pub unsafe fn any(t: &mut Txn, mode: Mode, r: RecordRef) -> Option<(NonNull<Version>, Option<u32>)> {
    // SAFETY: GetActiveSnapshot is called only where ActiveSnapshotSet says that there is one. Both
    // read the list of snapshots and raise nothing.
    let active = unsafe {
        if crate::pg::raw::ActiveSnapshotSet() {
            crate::pg::raw::GetActiveSnapshot()
        } else {
            std::ptr::null_mut()
        }
    };
    let mvcc = mode != Mode::Serializable && !active.is_null();
    // Takes the pin again if need be, also for own rows: what looks at an index next may need it.
    // SAFETY: `active` is the active snapshot, which is not null where it is asked.
    let seen = mvcc.then(|| unsafe { xact::snapshot_seen(active) });
    if let Some(n) = t.last_write(r) {
        let w = t.write(n)?;
        // SAFETY: the active snapshot, which stays active during this call.
        let cid = (!active.is_null()).then(|| unsafe { (*active).curcid });
        return match w.kind {
            WriteKind::Insert => Some((w.version, None)),
            WriteKind::Update => as_found(t, n, cid),
            WriteKind::Delete => before_image(t, n).map(|v| (v, Some(n))),
        };
    }
    if let Some(seen) = seen.or(t.frozen_at()) {
        if let Some((v, _)) = ok(t.at_snapshot(&PG, r.rec, seen)) {
            // SAFETY: `v` was reached under our pin (INV-RETIRE).
            return unsafe { live(Some(v)) }.map(|v| (v, None));
        }
    }
    // INV-RESTS
    t.rest_no_more();
    // SAFETY: the version is the newest of a record, reached under our pin (INV-RETIRE).
    let v = unsafe { live(ok(t.newest(&PG, r.rec)).map(|v| v.0)) };
    // ON CONFLICT DO NOTHING has met a row that was deleted since.
    if v.is_none() && mode != Mode::ReadCommitted {
        raise(t.fail(AbortReason::ReadChanged, r.touch()));
    }
    v.map(|v| (v, None))
}

/// What of a record belongs into a new index.
pub struct ToIndex {
    /// The row; `None`: an older snapshot may see a row that is deleted by now, and that is not
    /// known to be in memory.
    pub version: Option<NonNull<Version>>,
    /// Does it count for uniqueness?
    pub alive: bool,
    /// May an older snapshot see another version, which the index will not show?
    pub has_past: bool,
}

impl ToIndex {
    /// A row without a past.
    pub fn alive(version: NonNull<Version>) -> ToIndex {
        ToIndex { version: Some(version), alive: true, has_past: false }
    }
}

/// See [`ToIndex`]; `None`: nothing. Every snapshot sees all commits up to `oldest.floor`, and
/// what a commit above `oldest.pin` has replaced is there; `None`: only what is there now
/// counts. No other transaction has open writes in the table.
///
/// # Safety
/// Within a transaction that is pinned.
pub unsafe fn to_index(t: &mut Txn, r: RecordRef, oldest: Option<Oldest>) -> Option<ToIndex> {
    // SAFETY: versions are reached under our pin (INV-RETIRE), and those of own writes live while
    // the write is in the list.
    unsafe {
        if let Some(n) = t.last_write(r) {
            let w = t.write(n)?;
            if let Some(version) = own_version(t, n) {
                let has_past = w.base.is_some() || w.previous().is_some();
                return Some(ToIndex { version: Some(version), alive: true, has_past });
            }
            return w.base.map(|version| ToIndex { version: Some(version), alive: false, has_past: false });
        }
        let version = NonNull::new(r.rec.head())?;
        let v = version.as_ref();
        let recent = v.csn().is_none_or(|c| oldest.is_none_or(|o| c >= o.floor));
        if !v.is_tombstone() {
            let has_past = recent && !v.older().is_null();
            return Some(ToIndex { version: Some(version), alive: true, has_past });
        }
        if !recent {
            return None;
        }
        // Deleted, but an older snapshot may still see it, or a version below it. Its memory is
        // there if the delete is later than the oldest pin (INV-UNLINK of the engine).
        let older = NonNull::new(v.older())?;
        let there = v.csn().is_none_or(|c| oldest.is_none_or(|o| c > o.pin));
        let recent = |v: &Version| v.csn().is_none_or(|c| oldest.is_none_or(|o| c >= o.floor));
        let is_all = there && !(recent(older.as_ref()) && !older.as_ref().older().is_null());
        Some(ToIndex { version: Some(older).filter(|_| there), alive: false, has_past: !is_all })
    }
}

thread_local! {
    /// The last row of this transaction that a unique check has met: table, record, and its last
    /// own write plus 1.
    static OWN_CONFLICT: Cell<(u64, u64, u32)> = const { Cell::new((0, 0, 0)) };
}

fn conflict(r: RecordRef, n: u32) -> (u64, u64, u32) {
    (r.table.id, r.no, n + 1)
}

/// Is this the row that the last unique check has met, of those that this transaction has written?
/// `n`: its last own write, which must have been there then. Asked once.
pub fn take_conflict(r: RecordRef, n: u32) -> bool {
    OWN_CONFLICT.take() == conflict(r, n)
}

/// The transaction has ended, or a subtransaction of it was aborted: their numbers of writes are
/// given again.
pub fn forget_conflict() {
    OWN_CONFLICT.take();
}

/// A dirty snapshot: committed rows, and those of transactions that run, whose ids it reports in
/// the snapshot, so that unique checks can wait. Never sleeps: it is called with a page locked.
///
/// # Safety
/// `s` is a dirty snapshot that the caller owns and may write.
pub unsafe fn dirty(t: &mut Txn, mode: Mode, r: RecordRef, s: pg_sys::Snapshot) -> Seen {
    // SAFETY: `s` is a dirty snapshot that the caller owns (contract of this function).
    unsafe {
        (*s).xmin = pg_sys::InvalidTransactionId;
        (*s).xmax = pg_sys::InvalidTransactionId;
        (*s).speculativeToken = 0;
    }
    xact::prepared::finish_decided(); // INV-DECIDED
    t.rest_no_more(); // INV-RESTS
    if let Some(n) = t.last_write(r) {
        OWN_CONFLICT.set(conflict(r, n));
        return own_version(t, n);
    }
    match ok(t.present(&PG, r))? {
        Present::Row(v, csn, 0) => {
            if mode == Mode::Serializable {
                ok(t.note_read(&PG, r, v, csn));
            }
            Some(v)
        }
        Present::Row(v, _, writer) => {
            // SAFETY: `s` is a dirty snapshot that the caller owns (contract of this function).
            unsafe { (*s).xmax = pg_sys::TransactionId::from(writer) };
            Some(v)
        }
        Present::Insert(v, writer) => {
            // SAFETY: `s` is a dirty snapshot that the caller owns (contract of this function). `v`
            // is reached under our pin (INV-RETIRE).
            unsafe { report_insert(v, writer, s) };
            Some(v)
        }
    }
}

unsafe fn report_insert(v: NonNull<Version>, writer: u32, s: pg_sys::Snapshot) {
    // SAFETY: `v` is reached under our pin (INV-RETIRE), complete before it was reachable
    // (INV-VERSION). `s` is the caller's own: contract of `dirty`.
    unsafe {
        (*s).xmin = pg_sys::TransactionId::from(writer);
        if let Some(token) = crate::access::tuple::speculative_token(v.as_ptr()) {
            (*s).speculativeToken = token;
        }
    }
}

/// What any kind of snapshot sees of a record.
///
/// # Safety
/// `s` is a valid snapshot; a dirty one is the caller's to write.
pub unsafe fn by_snapshot(t: &mut Txn, r: RecordRef, s: pg_sys::Snapshot, for_write: bool) -> Seen {
    // SAFETY: `s` is valid, and the caller's to write if it is dirty (contract of this function).
    unsafe { by_scan(t, r, s, Why::whole(for_write, ScanId::NONE)) }
}

/// The same for a row that a scan has found.
///
/// # Safety
/// As for [`by_snapshot`].
#[inline]
pub unsafe fn by_scan(t: &mut Txn, r: RecordRef, s: pg_sys::Snapshot, why: Why) -> Seen {
    let mode = xact::mode();
    // SAFETY: `s` is valid, and the caller's to write if it is dirty (contract of this function).
    // The head of a record is reached under our pin, which the planner's hook renews (INV-RETIRE,
    // INV-PIN).
    unsafe {
        match (*s).snapshot_type {
            SnapshotType::SNAPSHOT_MVCC => mvcc(t, mode, r, s, why),
            SnapshotType::SNAPSHOT_DIRTY => dirty(t, mode, r, s),
            SnapshotType::SNAPSHOT_ANY => any(t, mode, r).map(|x| x.0),
            SnapshotType::SNAPSHOT_NON_VACUUMABLE => {
                // The planner asks for the extreme keys: not a read of the transaction.
                NonNull::new(r.rec.head()).filter(|v| !is_dead(t, r) && !v.as_ref().is_tombstone())
            }
            _ => newest(t, r),
        }
    }
}

/// Is the record dead to everybody, so that index entries may be marked?
pub fn is_dead(t: &Txn, r: RecordRef) -> bool {
    use mixedcc_engine::primitive::Ordering;
    let state = r.rec.state.load(Ordering::Acquire);
    if state == REC_DEAD || state == REC_VACUUM {
        return true;
    }
    r.table.is_dead(r.rec, t.e.known_min_floor())
}

/// May index entries of the record be marked as dead without WAL? Of a permanent table only if its
/// deletion is flushed: a crash would bring the row back, and not its entries (D-HINT). And only if
/// it is told to standbys, because some kinds of indexes remove all marked entries.
pub fn may_be_marked_dead(t: &Txn, r: RecordRef) -> bool {
    use mixedcc_engine::primitive::Ordering;
    let is_marked = || {
        let state = r.rec.state.load(Ordering::Acquire);
        let told = standby::told(t.e.shared.rounds.flushed_csn());
        let unloaded = r.table.durable().map_or(0, Durable::unloaded); // INV-UNLOADED
        let is_told = unloaded <= told || !r.rec.head().is_null();
        state != REC_VACUUM && is_told && r.table.is_dead(r.rec, told + 1)
    };
    let is_flushed = || is_marked() || faults::on(Fault::DeadUnflushed);
    is_dead(t, r) && (r.table.durable().is_none() || is_flushed())
}

/// The buffered write that a pseudo TID names, if it is one of this table. A user may write any TID
/// into a query: it names a write of any table then, or none.
pub fn named_write(t: &Txn, table: &mixedcc_engine::Table, tid: Tid) -> Option<Write> {
    match tid {
        Tid::Old(n) | Tid::New(n) => t.write(n).filter(|w| w.r.table.id == table.id),
        _ => None,
    }
}

/// The TID that a query asks for, of a row as its snapshot shows it. RETURNING and triggers show it
/// the pseudo TID of what a write has made: that names the row until the next write of it.
pub fn asked_for(t: &Txn, table: &mixedcc_engine::Table, tid: Tid) -> Tid {
    match tid {
        Tid::Record(_) | Tid::Invalid => tid,
        Tid::Old(_) | Tid::Locked(_) => Tid::Invalid,
        Tid::New(n) => named_write(t, table, tid)
            .filter(|w| w.kind != WriteKind::Delete && t.last_write(w.r) == Some(n))
            .map_or(Tid::Invalid, |w| Tid::Record(w.r.no)),
    }
}

/// The row that `tuple_lock` has handed out under a TID, if it is one of this table.
pub fn handed_out(table: &mixedcc_engine::Table, tid: Tid) -> Option<HandedOut> {
    match tid {
        Tid::Locked(n) => xact::handed_out(n).filter(|l| l.row.0 == table.id),
        _ => None,
    }
}

/// The record of a TID, pseudo TIDs too; `None` if there is none.
pub fn record_of(t: &Txn, table: &'static mixedcc_engine::Table, tid: Tid) -> Option<RecordRef> {
    match tid {
        Tid::Locked(_) => handed_out(table, tid).and_then(|l| RecordRef::find(table, l.row.1)),
        _ => record(table, tid).or_else(|| named_write(t, table, tid).map(|w| w.r)),
    }
}

/// The record of a TID; `None` if there is none.
#[inline]
pub fn record(table: &'static mixedcc_engine::Table, tid: Tid) -> Option<RecordRef> {
    match tid {
        Tid::Record(n) => RecordRef::find(table, n),
        _ => None,
    }
}
