//! The owner of versions, locks and registrations: a slot, and the transaction that it runs.
//!
//! Work that needs no more of a transaction than this is a method of [`Owner`]: looking at the
//! versions of a record, tagging memory, retiring it. A part of the transaction can then be
//! borrowed at the same time.

use super::RecordRef;
use crate::csn::{Csn, SlotId, SlotWord, Stamp, State, SERIALS};
use crate::primitive::Ordering;
use crate::shared::{Engine, Slot};
use std::cell::Cell;

/// A slot and its current transaction. [`super::Txn`] derefs to it.
pub struct Owner {
    /// The shared block.
    pub e: Engine,
    /// The transaction's slot.
    pub slot: SlotId,
    serial: u16,
    /// The stamp of the write that was found in the way last (`grouped.rs`).
    pub(super) met: Cell<Stamp>,
}

impl Owner {
    pub(super) fn new(e: Engine, slot: SlotId) -> Owner {
        Owner { e, slot, serial: e.word(slot).serial(), met: Cell::default() }
    }

    /// The tag of everything that the transaction writes and registers.
    #[inline]
    pub fn tag(&self) -> Stamp {
        Stamp::tag(self.slot, self.serial)
    }

    /// The slot in the shared block.
    #[inline]
    pub(super) fn shared_slot(&self) -> &'static Slot {
        &self.e.slots[self.slot as usize]
    }

    pub(super) fn set_word(&self, state: State, csn: Csn) {
        let w = SlotWord::new(self.serial, csn, state);
        self.shared_slot().word.store(w.0, Ordering::SeqCst);
    }

    /// The transaction is over, and all its stamps are set (INV-STAMP). Its tag names nothing now.
    pub(super) fn advance(&mut self) {
        self.serial = (self.serial + 1) % SERIALS;
    }

    /// The region is full: frees memory of all slots and dropped tables that is unreachable.
    #[cold]
    pub(super) fn reclaim(&self) {
        self.e.reclaim(self.slot);
    }

    /// For unique checks: the id of the transaction that inserts or deletes this record, or 0.
    pub fn writer(&self, r: RecordRef) -> u32 {
        r.rec.writer.load(Ordering::SeqCst)
    }
}
