//! What a round finds of a dirty record: the entries that its image must have.
//!
//! **INV-LOOK**: A look begins at the newest version, under a pin, at a value of the clock that was
//! read under that pin. It gives the newest decided version, and above it one pending entry for
//! each version about which the commit log has not decided. Where the chain of versions ends
//! without a decided one, it gives a tombstone, if an image of the record exists or a pending entry
//! is given. The tombstone's CSN is at or above that of each older entry of the record, and below
//! that of each later one: an owner that is *active* at the look takes a CSN above the clock's
//! value (INV-CSN). One that is *preparing* is awaited, and one that is *committing* has its own
//! CSN, which the look has seen. A prepared transaction is *active*, and is logged at a CSN that it
//! took after it had linked its versions: it counts as one that is *committing* at that CSN.

use super::Durable;
use crate::csn::{Csn, SlotId};
use crate::durable::entry::Kind;
use crate::faults::{self, Fault};
use crate::open::TAKING;
use crate::primitive::{relax, Ordering};
use crate::record::Version;
use crate::shared::{Engine, Fate};
use crate::table::Table;
use std::ptr::NonNull;

/// A loaded version has at most this stamp. It is the clock's first value, which no commit has.
const LOADED: Csn = 1;

/// What WAL and the commit log say of an owner that is *committing*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logged {
    /// It logs without a transaction id, or has not logged yet.
    No,
    /// It logs under this full transaction id, which the commit log has not decided.
    Open(u64),
    /// The commit log says that it has committed.
    Committed,
    /// The commit log says that it has aborted.
    Aborted,
}

/// What one entry of a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The CSN.
    pub csn: Csn,
    /// [`Kind::Row`] or [`Kind::Tomb`].
    pub kind: Kind,
    /// The full transaction id that decides.
    pub pending: Option<u64>,
    /// The version, of a row.
    pub version: Option<NonNull<Version>>,
}

/// Looks at the records of a table, under one pin.
pub struct Look<'a> {
    /// The engine.
    pub e: &'a Engine,
    /// The table.
    pub table: &'a Table,
    /// What it has beside its records.
    pub durable: &'a Durable,
    /// A value of the clock that was read under the pin.
    pub clock: Csn,
}

impl Look<'_> {
    /// The entries of record `n`, the newest one first, are put into `to`. None: the record has no
    /// state that could be lost. `logged` is asked about owners that are *committing*.
    pub fn entries_of(&self, n: u64, mut logged: impl FnMut(SlotId, Csn) -> Logged, to: &mut Vec<Found>) {
        to.clear();
        let Some(record) = self.table.record(n) else { return };
        let mut head = record.head();
        let mut v = head;
        let mut upto = self.clock;
        while let Some(at) = NonNull::new(v) {
            // SAFETY: INV-RETIRE: the caller is pinned. The look goes on to an older version only
            // from one that was not committed when its owner was looked at.
            let version = unsafe { at.as_ref() };
            let stamp = version.stamp();
            let Some(fate) = self.e.fate(stamp, || version.stamp() == stamp) else { continue };
            // INV-INSERT: it may have been an insert that its owner has changed since.
            let at_csn = self.under_way(fate, stamp.slot());
            let may_be = v == head && (at_csn != 0 || matches!(fate, Fate::Committed(_) | Fate::Aborted));
            if may_be && record.head() != head {
                head = record.head();
                v = head;
                continue;
            }
            match fate {
                Fate::Committed(csn) => {
                    to.push(row_or_tomb(at, if csn <= LOADED { upto } else { csn }, None));
                    return;
                }
                // It may have taken a CSN at or below the clock's value, which its word has at
                // once, or its slot.
                Fate::Preparing => relax(0),
                Fate::Active if at_csn == TAKING => relax(0),
                Fate::Active | Fate::Committing(_) => {
                    let answer = if at_csn == 0 { Logged::No } else { logged(stamp.slot(), at_csn) };
                    let answer = if fate == Fate::Active { self.not_finished(stamp.slot(), answer) } else { answer };
                    match answer {
                        // Meanwhile the slot may have gone on to another state or transaction.
                        _ if version.stamp() != stamp || self.e.fate(stamp, || true) != Some(fate) => continue,
                        Logged::Committed => {
                            to.push(row_or_tomb(at, at_csn, None));
                            return;
                        }
                        Logged::Open(xid) if !faults::on(Fault::PendingLeftOut) => {
                            to.push(row_or_tomb(at, at_csn, Some(xid)));
                            upto = upto.min(at_csn - 1);
                        }
                        Logged::Open(_) | Logged::No if at_csn != 0 => upto = upto.min(at_csn - 1),
                        _ => {}
                    }
                    v = version.older();
                }
                Fate::Aborted => v = version.older(),
            }
        }
        let has_image = self.durable.home(n).is_some_and(|home| home.get().is_some());
        if (has_image || !to.is_empty()) && !faults::on(Fault::FreedForgotten) {
            to.push(Found { csn: upto, kind: Kind::Tomb, pending: None, version: None });
        }
    }

    /// A prepared transaction that has committed is pending until it is finished: its CSN is
    /// another one, which it does not have yet (INV-STABLE).
    fn not_finished(&self, slot: SlotId, answer: Logged) -> Logged {
        match answer {
            Logged::Committed if !faults::on(Fault::DecidedEarly) => {
                Logged::Open(self.e.slots[slot as usize].xid.load(Ordering::SeqCst))
            }
            _ => answer,
        }
    }

    /// The CSN at which a transaction under way counts; 0: at none.
    fn under_way(&self, fate: Fate, slot: SlotId) -> Csn {
        match fate {
            Fate::Committing(csn) => csn,
            Fate::Active if !faults::on(Fault::PreparedPassed) => {
                self.e.slots[slot as usize].logged_at.load(Ordering::SeqCst)
            }
            _ => 0,
        }
    }
}

fn row_or_tomb(at: NonNull<Version>, csn: Csn, pending: Option<u64>) -> Found {
    // SAFETY: INV-RETIRE: the caller has reached the version under its pin.
    let is_tombstone = unsafe { at.as_ref() }.is_tombstone();
    let (kind, version) = if is_tombstone { (Kind::Tomb, None) } else { (Kind::Row, Some(at)) };
    Found { csn, kind, pending, version }
}

impl Found {
    /// The bytes of the row. Nothing of a tombstone.
    ///
    /// # Safety
    /// The pin of the look lasts as long as the bytes are used.
    pub unsafe fn payload<'a>(&self) -> &'a [u8] {
        let Some(v) = self.version else { return &[] };
        // SAFETY: INV-RETIRE, INV-VERSION: by this function's contract the version stays, and has
        // `len` bytes that do not change.
        unsafe { std::slice::from_raw_parts(Version::payload(v.as_ptr()), v.as_ref().len as usize) }
    }
}
