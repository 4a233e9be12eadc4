//! Indexes in memory are made and filled: of the rows of a table under its lock, and of those of a
//! table that is being loaded.

use super::wanted::Wanted;
use crate::access::ranges::rows::{self, Row};
use crate::access::visible;
use crate::keys::codec::{self, Codec};
use crate::pg::faults::{self, Fault};
use crate::state::errors::ok;
use crate::state::making::Making;
use crate::state::platform::PG;
use crate::state::{shmem, stop, xact};
use mixedcc_engine::csn::Csn;
use mixedcc_engine::index::{Filler, Primary, Reuse};
use mixedcc_engine::record::INDEXES;
use mixedcc_engine::{Engine, Error, RecordRef, Table};
use pgrx::pg_sys::{self, Oid};
use std::fmt;

/// What the making of an index has met.
#[derive(Clone, Copy, Default)]
pub struct Built {
    /// Two records with one key.
    pub duplicate: Option<(u64, u64)>,
    /// May older snapshots see other rows, or other keys?
    pub has_past: bool,
}

/// Two rows that have one key.
pub struct Twice {
    /// Their records.
    pub records: (u64, u64),
    /// The unique index; `None`: the PRIMARY KEY.
    pub index: Option<Oid>,
}

impl fmt::Display for Twice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (a, b) = self.records;
        match self.index {
            None => write!(f, "rows {a} and {b} have one primary key"),
            Some(index) => write!(f, "rows {a} and {b} have one key of unique index {}", index.to_u32()),
        }
    }
}

/// Fills the indexes of a table that is being loaded with its committed rows: all but those that
/// `left_out` says. `unique`: returns two rows with one key, if there are any, of which one has no
/// entry then. Else each row has its entries.
///
/// # Safety
/// An open relation of ours, and its table, which no other process can reach. The caller is pinned.
pub unsafe fn fill(
    rel: pg_sys::Relation,
    table: &'static Table,
    unique: bool,
    left_out: impl Fn(u64) -> bool,
) -> Result<Option<Twice>, Error> {
    for (_, index) in table.uniques().take(if faults::on(Fault::OneIndexLoaded) { 1 } else { INDEXES }) {
        let Some(codec) = Codec::from_spec(index.spec()) else { continue };
        // SAFETY: the contract of this function.
        if let Some(records) = unsafe { fill_one(rel, table, (index, &codec), unique, &left_out) }? {
            return Ok(Some(Twice { records, index: codec::index_of_spec(index.spec()) }));
        }
    }
    Ok(None)
}

unsafe fn fill_one(
    rel: pg_sys::Relation,
    table: &'static Table,
    (index, codec): (&'static Primary, &Codec),
    unique: bool,
    left_out: &impl Fn(u64) -> bool,
) -> Result<Option<(u64, u64)>, Error> {
    let (e, slot) = (shmem::engine(), shmem::my_slot());
    let (mut key, mut filler) = (Vec::new(), Filler::new(index));
    for (no, r) in (0..table.len()).filter_map(|no| Some((no, table.record(no)?))) {
        if no % 1024 == 0 {
            stop::reach("fill-row");
            pgrx::check_for_interrupts!();
        }
        let head = r.head();
        key.clear();
        // SAFETY: `rel` is open, and a head is a row of it that no other process frees: contract of
        // `fill`.
        let has_row = !head.is_null() && unsafe { !(*head).is_tombstone() };
        // SAFETY: as above.
        if has_row && !left_out(no) && unsafe { rows::plain(rel, codec, Row::Version(head), &mut key) }.is_some() {
            filler.add(&e, slot, &PG, no, &key, unique)?;
        }
    }
    filler.finish(&e, slot, &PG)?;
    Ok(filler.duplicate())
}

/// Makes an index of all rows. The caller holds the table exclusively: no other session has open
/// writes in it.
pub(super) unsafe fn build(
    rel: pg_sys::Relation,
    table: &'static Table,
    w: &Wanted,
    e: &Engine,
) -> (Making<&'static Primary>, Built) {
    let slot = shmem::my_slot();
    let index = Making::index(ok(Primary::create(e, slot, 0, Reuse::Vacuum, &w.spec).map_err(Into::into)));
    let t = xact::txn();
    xact::renew_pin();
    t.rest_no_more();
    let oldest = t.e.pin_oldest(t.slot);
    let (mut key, mut built, mut filler) = (Vec::new(), Built::default(), Filler::new(*index));
    for no in 0..table.len() {
        if no % 1024 == 0 {
            stop::reach("primary-row");
            pgrx::check_for_interrupts!();
        }
        let Some(r) = RecordRef::find(table, no) else { continue };
        // SAFETY: versions are reached under our pin (INV-RETIRE).
        let Some(entry) = (unsafe { visible::to_index(t, r, Some(oldest)) }) else { continue };
        built.has_past |= entry.has_past;
        // A row that is deleted by now has no entry: a snapshot from before will not find it.
        let Some(version) = entry.version.filter(|_| entry.alive) else {
            built.has_past = true;
            continue;
        };
        key.clear();
        // SAFETY: `rel` is open: contract of `line::replace`. `entry` is a version of it with a
        // row, reached under our pin (INV-RETIRE).
        if unsafe { rows::plain(rel, w.codec, Row::Version(version.as_ptr()), &mut key) }.is_some() {
            // The command that builds the index may make its columns NOT NULL as well. It looks for
            // NULLs later, and fails then.
            // SAFETY: as above.
            let unique = w.alike || !unsafe { rows::has_null(rel, w.codec, version.as_ptr()) };
            ok(filler.add(e, slot, &PG, no, &key, unique));
        }
    }
    ok(filler.finish(e, slot, &PG));
    built.duplicate = filler.duplicate();
    if built.has_past {
        // Until the commit, and until all snapshots of now are gone (state/xact/pending.rs).
        index.set_complete_from(Csn::MAX);
    }
    (index, built)
}
