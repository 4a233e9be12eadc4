//! Reads that lock for writing, because a write of the row usually follows
//! (`partition/intents.rs`).

use super::{RecordRef, Txn};
use crate::lock::{Acquired, Mode};

/// More rows of one transaction are read as usual.
const MOST: usize = 64;

/// A row that was locked for writing when it was read.
struct Intended {
    r: RecordRef,
    written: bool,
}

/// The reads of a transaction that expect a write.
#[derive(Default)]
pub(super) struct IntentSet(Vec<Intended>);

impl IntentSet {
    /// A transaction begins.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn find(&mut self, r: RecordRef) -> Option<&mut Intended> {
        self.0.iter_mut().find(|i| std::ptr::eq(i.r.rec, r.rec))
    }
}

impl Txn {
    /// The mode in which a look-up locks a row to read it.
    #[inline]
    pub(crate) fn mode_to_read(&mut self, r: RecordRef) -> Mode {
        if r.partition().intents.expects_write(r.no) {
            self.intend(r)
        } else {
            Mode::Share
        }
    }

    #[cold]
    fn intend(&mut self, r: RecordRef) -> Mode {
        if self.intents.find(r).is_none() {
            if self.intents.0.len() == MOST {
                return Mode::Share;
            }
            self.intents.0.push(Intended { r, written: false });
        }
        Mode::NoKeyUpdate
    }

    /// A row was locked in order to write it.
    #[inline]
    pub(super) fn note_write_lock(&mut self, r: RecordRef, mode: Mode, got: Acquired) {
        if mode < Mode::NoKeyUpdate {
            return;
        }
        if matches!(got, Acquired::Upgraded(h) if h.mode == Mode::KeyShare) {
            self.note_followed(r);
        }
        if let Some(i) = self.intents.find(r) {
            i.written = true;
        } else if matches!(got, Acquired::Upgraded(h) if h.mode < Mode::NoKeyUpdate) {
            // A row that is half forgotten is read and written all the same.
            let intents = &r.partition().intents;
            if intents.is_known(r.no) {
                intents.ended(r.no, true);
            }
        }
    }

    /// The transaction has locked the key of a row alone to look at it, and wants a stronger lock.
    /// Others may have done so, too: then they wait for each other in no order. So the next ones
    /// lock the row at their look (`../table/changing.rs`).
    #[cold]
    pub(super) fn note_followed(&self, r: RecordRef) {
        if let Some(looked) = self.reads.looked_at_lately(r) {
            r.table.changing.note_followed(looked);
        }
    }

    /// The transaction has committed: what it expected to write, and has not, is expected less.
    #[inline]
    pub(super) fn settle_intents(&mut self) {
        if !self.intents.0.is_empty() {
            self.settle_each();
        }
    }

    #[cold]
    fn settle_each(&mut self) {
        for i in self.intents.0.drain(..) {
            i.r.partition().intents.ended(i.r.no, i.written);
        }
    }
}
