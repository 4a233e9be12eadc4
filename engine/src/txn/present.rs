//! What is at a record now, for unique checks: not in a snapshot, and with the inserts and deletes
//! of other transactions.

use super::{Owner, RecordRef};
use crate::csn::Csn;
use crate::error::Error;
use crate::faults::{self, Moment};
use crate::platform::Platform;
use crate::record::Version;
use crate::shared::Fate;
use std::ptr::NonNull;

/// A row that is there, or may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Present {
    /// The newest committed version, the CSN of its commit, and the id of a transaction that
    /// deletes or moves it; 0: there is none.
    Row(NonNull<Version>, Csn, u32),
    /// What a transaction inserts that has not committed, and its id.
    Insert(NonNull<Version>, u32),
}

impl Owner {
    /// What is at a record that we have not written; `None`: no row, or an insert of a transaction
    /// without an id. Others cannot wait for such an insert, and need not: it is in no unique
    /// index. Waits an instant for an owner that takes its CSN, and for no other.
    pub fn present(&self, p: &dyn Platform, r: RecordRef) -> Result<Option<Present>, Error> {
        'again: loop {
            // Read before the version: a deleter that ends in between has published its tombstone.
            let writer = self.writer(r);
            let head = r.rec.head();
            faults::reached(Moment::Looked);
            let mut v = head;
            while let Some(nn) = NonNull::new(v) {
                // SAFETY: INV-RETIRE: we are pinned; nothing that was newest since then is freed.
                let ver = unsafe { nn.as_ref() };
                let (_, fate) = self.e.settle(p, || ver.stamp())?;
                if v == head && fate != Fate::Active && r.rec.head() != head {
                    continue 'again; // INV-INSERT
                }
                match fate {
                    Fate::Committed(csn) => {
                        return Ok((!ver.is_tombstone()).then_some(Present::Row(nn, csn, writer)));
                    }
                    Fate::Active | Fate::Preparing | Fate::Committing(_)
                        if ver.older().is_null() && !ver.is_tombstone() =>
                    {
                        // A reserved insert. If it has an id, the id is there before the version,
                        // and stays until the outcome can be seen.
                        let id = self.writer(r);
                        if id != 0 {
                            return Ok(Some(Present::Insert(nn, id)));
                        }
                        if self.e.settle(p, || ver.stamp())?.1 == fate {
                            return Ok(None);
                        }
                        continue 'again;
                    }
                    _ => {}
                }
                v = ver.older();
            }
            return Ok(None);
        }
    }
}
