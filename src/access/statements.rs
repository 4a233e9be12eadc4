//! What the running statements do with our tables, by snapshot: what a scan cannot know itself.
//!
//! **INV-NOTED**: A note is found by the address of its statement's snapshot, so it goes before the
//! snapshot does. A statement holds its snapshot from its start to its end. One that fails has no
//! end: the resource owner of its start releases the snapshot, and says so before (`released`). An
//! ERROR in a savepoint takes the owner of a failed cursor away, also if the cursor is older. It
//! does so whether the cursor failed in a run or in a step back to its start.

use crate::keys::bounds::Interval;
use crate::keys::codec::Codec;
use crate::pg::local::Local;
use crate::state::rel::RelInfo;
use crate::state::xact;
use mixedcc_engine::range::Looked;
use mixedcc_engine::txn::ScanId;
use pgrx::pg_sys::{self, Oid};
use std::rc::Rc;

/// A condition of a sequential scan that an index's keys express.
pub struct Filter {
    /// The index.
    pub codec: &'static Codec,
    /// What the scan's rows can be.
    pub intervals: Vec<Interval>,
    /// The only partition with such rows.
    pub partition: Option<u16>,
}

/// A running statement: the addresses of its snapshot and of the executor's state.
#[derive(Clone, Copy)]
pub struct Statement {
    pub snapshot: usize,
    pub owner: usize,
}

/// Something about a table in the statement of a snapshot.
struct Note {
    snapshot: usize,
    table: Oid,
    /// What holds the snapshot for the statement.
    resources: pg_sys::ResourceOwner,
    /// The executor's state of the statement. Functions that see their caller's snapshot share only
    /// that.
    owner: usize,
    what: What,
}

enum What {
    /// The statement reads rows of the table in order to write them.
    Writes,
    /// A scan that makes a bitmap, and the predicates that protect its rows, once it has started:
    /// `NONE` among them if the rows protect themselves, none at all if there can be no rows.
    /// `at`: the columns that the statement looks at in these rows.
    Bitmap { scan: usize, ids: Option<Vec<ScanId>>, at: Looked },
    /// A sequential scan; `None`: of all rows.
    Sequential(Option<Rc<Filter>>),
    /// The node of an index scan, which is there as long as its statement's memory, and the columns
    /// that it looks at.
    Looks { node: *const pg_sys::IndexScanState, at: Looked },
    /// The statement skips the locked rows of a scan, which takes no part in validation. The node
    /// of the scan if it is an index scan; it lives as that of `Looks`.
    Skips { node: *const pg_sys::IndexScanState },
    /// The statement locks rows of the table with NOWAIT: it sleeps for none of the table's locks.
    /// By the number that the engine has for the table.
    Hurries(u64),
}

/// Of the statements that run.
static NOTES: Local<Vec<Note>> = Local::new(Vec::new());

fn notes() -> &'static mut Vec<Note> {
    // SAFETY: a process has one thread, and no caller keeps the reference (contract of `get_mut`).
    unsafe { NOTES.get_mut() }
}

fn note(of: Statement, table: Oid, what: What) {
    // SAFETY: a variable of this process, which its one thread writes.
    let resources = unsafe { pg_sys::CurrentResourceOwner };
    notes().push(Note { snapshot: of.snapshot, table, resources, owner: of.owner, what });
}

fn of(snapshot: pg_sys::Snapshot, table: Oid) -> impl Iterator<Item = &'static What> {
    let s = snapshot as usize;
    notes().iter().filter(move |n| n.snapshot == s && n.table == table).map(|n| &n.what)
}

/// Forgets what belonged to the transaction.
pub fn end_transaction() {
    notes().clear();
}

/// A resource owner is about to release what it holds: the snapshots of statements that have
/// not ended, too (INV-NOTED). It cannot fail.
pub fn released(resources: pg_sys::ResourceOwner) {
    if !notes().is_empty() {
        notes().retain(|n| n.resources != resources);
    }
}

/// A statement has ended.
pub fn end_statement(owner: usize) {
    if !notes().is_empty() {
        notes().retain(|n| n.owner != owner);
    }
}

/// The statement reads rows of the table in order to write them.
pub fn writes(of: Statement, table: Oid) {
    note(of, table, What::Writes);
}

/// Does the statement of this snapshot read the table in order to write it?
pub fn will_write(s: pg_sys::Snapshot, table: Oid) -> bool {
    of(s, table).any(|w| matches!(w, What::Writes))
}

/// The statement has a scan that makes bitmaps, and looks at these columns of its rows. It may have
/// started with the statement.
pub fn bitmap(of: Statement, table: Oid, scan: pg_sys::IndexScanDesc, looked: Looked) {
    let scan = scan as usize;
    let there = notes().iter_mut().find(|n| matches!(n.what, What::Bitmap { scan: s, .. } if s == scan));
    match there {
        Some(Note { owner, what: What::Bitmap { at, .. }, .. }) => (*owner, *at) = (of.owner, looked),
        _ => note(of, table, What::Bitmap { scan, ids: None, at: looked }),
    }
}

/// The columns of the rows of a bitmap that the statement looks at.
pub fn bitmap_looked(scan: pg_sys::IndexScanDesc) -> Looked {
    let known = notes().iter().find_map(|n| match n.what {
        What::Bitmap { scan: s, at, .. } if s == scan as usize => Some(at),
        _ => None,
    });
    known.unwrap_or(Looked::ALL)
}

/// A scan that makes a bitmap is about to start, or to start again. `snapshot`: the executor's, or
/// ours if it is not the first time. `ids`: what protects its rows.
pub fn bitmap_scan(scan: pg_sys::IndexScanDesc, snapshot: pg_sys::Snapshot, table: Oid, ids: Vec<ScanId>) {
    let scan = scan as usize;
    let again = super::indexscan::is_ours(snapshot);
    let there = notes().iter().position(|n| matches!(n.what, What::Bitmap { scan: s, .. } if s == scan));
    let at = there.unwrap_or_else(|| {
        note(
            Statement { snapshot: snapshot as usize, owner: 0 },
            table,
            What::Bitmap { scan, ids: None, at: Looked::ALL },
        );
        notes().len() - 1
    });
    let n = &mut notes()[at];
    if !again {
        (n.snapshot, n.table) = (snapshot as usize, table);
    }
    if let What::Bitmap { ids: old, .. } = &mut n.what {
        // Rows of the bitmap before may be read still.
        let stays = again && old.as_ref().is_some_and(|old| old.contains(&ScanId::NONE));
        *old = Some(if stays { vec![ScanId::NONE] } else { ids });
    }
    share_rows(n.snapshot, n.table);
}

/// Which of several bitmaps a row comes from is not known when it is read: no predicate may rely on
/// locks of rows that another one would have to take.
fn share_rows(snapshot: usize, table: Oid) {
    let ids = || {
        let ours = move |n: &&mut Note| n.snapshot == snapshot && n.table == table;
        let of = |n: &'static mut Note| match &mut n.what {
            What::Bitmap { ids: Some(ids), .. } => ids.as_mut_slice(),
            _ => &mut [],
        };
        notes().iter_mut().filter(ours).flat_map(of).filter(|id| **id != ScanId::NONE)
    };
    let mut shared: Vec<ScanId> = ids().map(|id| *id).collect();
    xact::txn().share_rows(&mut shared);
    ids().zip(shared).for_each(|(id, new)| *id = new);
}

/// The predicate that protects the rows that the statement reads through bitmaps, if all of them
/// are protected so.
pub fn bitmap_rows(snapshot: pg_sys::Snapshot, table: Oid) -> ScanId {
    let mut found = ScanId::NONE;
    for w in of(snapshot, table) {
        if let What::Bitmap { ids: Some(ids), .. } = w {
            if ids.contains(&ScanId::NONE) {
                return ScanId::NONE;
            }
            found = ids.last().copied().unwrap_or(found);
        }
    }
    found
}

/// The index scan of this node looks at these columns of the table only.
///
/// # Safety
/// A node of the statement, which has been started.
pub unsafe fn looks(of: Statement, table: Oid, node: *const pg_sys::IndexScanState, at: Looked) {
    note(of, table, What::Looks { node, at });
}

/// The columns of the table that a scan of the statement looks at, if that is known.
pub fn looked(snapshot: pg_sys::Snapshot, table: Oid, scan: pg_sys::IndexScanDesc) -> Option<Looked> {
    of(snapshot, table).find_map(|w| match w {
        // SAFETY: the node is there as long as its statement. The note goes before that ends, and
        // after an ERROR before anything is scanned again (INV-NOTED). The executor stores the scan
        // in the node before it gives the scan its keys.
        What::Looks { node, at } if std::ptr::eq(unsafe { (**node).iss_ScanDesc }, scan) => Some(*at),
        _ => None,
    })
}

/// The statement locks the rows of a scan of the table, or skips them (INV-SKIP). `node`: of an
/// index scan, or null.
///
/// # Safety
/// As for [`looks`], or null.
pub unsafe fn skips(of: Statement, table: Oid, node: *const pg_sys::IndexScanState) {
    note(of, table, What::Skips { node });
}

/// The statement locks rows of the table with NOWAIT.
pub fn hurries(of: Statement, info: &RelInfo) {
    note(of, info.oid, What::Hurries(info.table.id));
}

/// May the statement that runs sleep for locks of this table? It is known by its snapshot: a
/// function that sees its caller's snapshot may not where the caller may not.
pub fn may_sleep(table: u64) -> bool {
    let hurries = |s| notes().iter().any(|n| n.snapshot == s && matches!(n.what, What::Hurries(t) if t == table));
    // SAFETY: both read variables of this process, which its one thread writes.
    let active = unsafe { pg_sys::ActiveSnapshotSet().then(|| pg_sys::GetActiveSnapshot() as usize) };
    !active.is_some_and(hurries)
}

/// How many scans of the table has the statement whose locked rows it skips?
pub fn skipping_scans(snapshot: pg_sys::Snapshot, table: Oid) -> usize {
    of(snapshot, table).filter(|w| matches!(w, What::Skips { .. })).count()
}

/// Is this index scan one whose locked rows are skipped?
pub fn scan_skips(snapshot: pg_sys::Snapshot, table: Oid, scan: pg_sys::IndexScanDesc) -> bool {
    of(snapshot, table).any(|w| match w {
        // SAFETY: as in `looked`.
        What::Skips { node } => !node.is_null() && std::ptr::eq(unsafe { (**node).iss_ScanDesc }, scan),
        _ => false,
    })
}

/// The statement scans the table sequentially.
pub fn sequential(of: Statement, table: Oid, filter: Option<Filter>) {
    note(of, table, What::Sequential(filter.map(Rc::new)));
}

/// The filters of the statement's sequential scans of the table; `None`: some scan has none. They
/// are shared: functions of users run while they are in use, and may start and end statements.
pub fn filters(snapshot: pg_sys::Snapshot, table: Oid) -> Option<Vec<Rc<Filter>>> {
    let mut found = Vec::new();
    for w in of(snapshot, table) {
        if let What::Sequential(f) = w {
            found.push(f.clone()?);
        }
    }
    (!found.is_empty()).then_some(found)
}
