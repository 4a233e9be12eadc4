//! Imported snapshots (SET TRANSACTION SNAPSHOT; pg_dump -j): the importer adopts what
//! the exporter's snapshot sees.

use super::{adopt_snapshot, copies, mode, txn, Mode};
use crate::pg::errors::unsupported;
use crate::state::{shmem, slots};
use mixedcc_engine::shared::Adopter;
use std::cell::Cell;

thread_local! {
    /// Does the transaction run on an imported snapshot whose CSN is not known?
    static UNKNOWN: Cell<bool> = const { Cell::new(false) };
}

/// The transaction has imported a snapshot. Must be called while nothing else has used it.
pub fn import_snapshot(id: &str) {
    UNKNOWN.with(|u| u.set(true));
    copies::note_import();
    if mode() == Mode::Serializable {
        return; // its reads come through the protocols, from no snapshot
    }
    let Some((slot, ident)) = slots::exporter(id) else { return };
    let e = shmem::engine();
    let Some(kept) = e.adopt_pin(shmem::my_slot(), slot, ident, Adopter::Importer) else {
        UNKNOWN.with(|u| u.set(mode() != Mode::RepeatableRead || !copies::import(id, slot)));
        return;
    };
    UNKNOWN.with(|u| u.set(false));
    txn().adopt_seen(kept.seen(), mode() == Mode::SerializableReadOnly);
    adopt_snapshot(kept);
}

/// Does the transaction run on a snapshot that is not ours to read?
pub fn is_unknown() -> bool {
    UNKNOWN.with(Cell::get)
}

/// Before the first use of a table of ours.
pub fn check() {
    if is_unknown() {
        unsupported(
            "an imported snapshot of this kind does not cover mixedcc tables",
            "Export it from a REPEATABLE READ transaction, and import it into REPEATABLE READ or SERIALIZABLE READ ONLY.",
        );
    }
}

/// Forgets it.
pub fn end_transaction() {
    UNKNOWN.with(|u| u.set(false));
}
