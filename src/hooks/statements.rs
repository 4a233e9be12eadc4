//! What the running statements do with our tables, by snapshot: what a scan cannot know itself.

use crate::keys::bounds::Interval;
use crate::keys::codec::Codec;
use crate::xact;
use mixedcc_engine::txn::ScanId;
use pgrx::pg_sys::{self, Oid};

/// A condition of a sequential scan that an index's keys express.
pub struct Filter {
    /// The index.
    pub codec: &'static Codec,
    /// What the scan's rows can be.
    pub intervals: Vec<Interval>,
    /// The only partition with such rows.
    pub partition: Option<u16>,
}

/// Something about a table in the statement of a snapshot.
struct Note {
    snapshot: usize,
    table: Oid,
    /// Nesting depth of its statement.
    level: u32,
    what: What,
}

enum What {
    /// The statement reads rows of the table in order to write them.
    Writes,
    /// A scan that makes a bitmap, and the predicate that protects its rows.
    Bitmap { scan: usize, id: ScanId },
    /// A sequential scan; `None`: of all rows.
    Sequential(Option<Filter>),
}

static mut NOTES: Vec<Note> = Vec::new();

fn notes() -> &'static mut Vec<Note> {
    // SAFETY: one thread, and no caller keeps the reference.
    unsafe { &mut *(&raw mut NOTES) }
}

fn note(snapshot: usize, table: Oid, what: What) {
    notes().push(Note { snapshot, table, level: xact::depth(), what });
}

fn of(snapshot: pg_sys::Snapshot, table: Oid) -> impl Iterator<Item = &'static What> {
    let s = snapshot as usize;
    notes().iter().filter(move |n| n.snapshot == s && n.table == table).map(|n| &n.what)
}

/// Forgets what belonged to the transaction.
pub fn end_transaction() {
    notes().clear();
}

/// Statements of aborted subtransactions have not ended: their snapshots' addresses may be used again.
pub fn abort_subtransactions(level: u32) {
    notes().retain(|n| n.level < level);
}

/// A statement has ended.
pub fn end_statement(snapshot: usize) {
    if !notes().is_empty() {
        notes().retain(|n| n.snapshot != snapshot);
    }
}

/// The statement reads rows of the table in order to write them.
pub fn writes(snapshot: usize, table: Oid) {
    note(snapshot, table, What::Writes);
}

/// Does the statement of this snapshot read the table in order to write it?
pub fn will_write(s: pg_sys::Snapshot, table: Oid) -> bool {
    of(s, table).any(|w| matches!(w, What::Writes))
}

/// A scan that makes a bitmap is about to start, or to start again. `snapshot`: the executor's, or
/// ours if it is not the first time. `id`: what protects its rows, or `NONE`.
pub fn bitmap_scan(scan: pg_sys::IndexScanDesc, snapshot: pg_sys::Snapshot, table: Oid, id: ScanId) {
    let scan = scan as usize;
    let old = notes().iter_mut().find_map(|n| match &mut n.what {
        What::Bitmap { scan: s, id } if *s == scan => Some((&mut n.snapshot, &mut n.table, id)),
        _ => None,
    });
    let again = super::indexscan::is_ours(snapshot);
    match old {
        Some((_, _, old)) if again => {
            if *old != ScanId::NONE {
                *old = id;
            }
        }
        Some((s, t, old)) => (*s, *t, *old) = (snapshot as usize, table, id),
        None => note(snapshot as usize, table, What::Bitmap { scan, id }),
    }
}

/// The predicate that protects the rows that the statement reads through bitmaps, if all of them
/// are protected so.
pub fn bitmap_rows(snapshot: pg_sys::Snapshot, table: Oid) -> ScanId {
    let mut found = ScanId::NONE;
    for w in of(snapshot, table) {
        match w {
            What::Bitmap { id, .. } if *id == ScanId::NONE => return ScanId::NONE,
            What::Bitmap { id, .. } => found = *id,
            _ => {}
        }
    }
    found
}

/// The statement scans the table sequentially.
pub fn sequential(snapshot: usize, table: Oid, filter: Option<Filter>) {
    note(snapshot, table, What::Sequential(filter));
}

/// The filters of the statement's sequential scans of the table; `None`: some scan has none.
pub fn filters(snapshot: pg_sys::Snapshot, table: Oid) -> Option<Vec<&'static Filter>> {
    let mut found = Vec::new();
    for w in of(snapshot, table) {
        if let What::Sequential(f) = w {
            found.push(f.as_ref()?);
        }
    }
    (!found.is_empty()).then_some(found)
}
