//! What the running statements do with our tables, by snapshot: what a scan cannot know itself.

use crate::keys::bounds::Interval;
use crate::keys::codec::Codec;
use crate::pg::local::Local;
use crate::state::xact;
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
    /// Nesting depth of its statement.
    level: u32,
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
    Bitmap { scan: usize, ids: Option<Vec<ScanId>> },
    /// A sequential scan; `None`: of all rows.
    Sequential(Option<Rc<Filter>>),
}

/// Of the statements that run.
static NOTES: Local<Vec<Note>> = Local::new(Vec::new());

fn notes() -> &'static mut Vec<Note> {
    // SAFETY: a process has one thread, and no caller keeps the reference (contract of `get_mut`).
    unsafe { NOTES.get_mut() }
}

fn note(of: Statement, table: Oid, what: What) {
    notes().push(Note { snapshot: of.snapshot, table, level: xact::depth(), owner: of.owner, what });
}

fn of(snapshot: pg_sys::Snapshot, table: Oid) -> impl Iterator<Item = &'static What> {
    let s = snapshot as usize;
    notes().iter().filter(move |n| n.snapshot == s && n.table == table).map(|n| &n.what)
}

/// Forgets what belonged to the transaction.
pub fn end_transaction() {
    notes().clear();
}

/// Statements of aborted subtransactions have not ended: their snapshots' addresses may be used
/// again.
pub fn abort_subtransactions(level: u32) {
    notes().retain(|n| n.level < level);
}

/// What the subtransaction at `level` began belongs to its parent now: its cursors go on.
pub fn commit_subtransaction(level: u32) {
    notes().iter_mut().filter(|n| n.level >= level).for_each(|n| n.level = level - 1);
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

/// The statement has a scan that makes bitmaps. It may have started with the statement.
pub fn bitmap(of: Statement, table: Oid, scan: pg_sys::IndexScanDesc) {
    let scan = scan as usize;
    let there = notes().iter_mut().find(|n| matches!(n.what, What::Bitmap { scan: s, .. } if s == scan));
    match there {
        Some(n) => n.owner = of.owner,
        None => note(of, table, What::Bitmap { scan, ids: None }),
    }
}

/// A scan that makes a bitmap is about to start, or to start again. `snapshot`: the executor's, or
/// ours if it is not the first time. `ids`: what protects its rows.
pub fn bitmap_scan(scan: pg_sys::IndexScanDesc, snapshot: pg_sys::Snapshot, table: Oid, ids: Vec<ScanId>) {
    let scan = scan as usize;
    let again = super::indexscan::is_ours(snapshot);
    let there = notes().iter().position(|n| matches!(n.what, What::Bitmap { scan: s, .. } if s == scan));
    let at = there.unwrap_or_else(|| {
        note(Statement { snapshot: snapshot as usize, owner: 0 }, table, What::Bitmap { scan, ids: None });
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
