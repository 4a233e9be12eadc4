//! Logical decoding: changes of rows go from WAL to PostgreSQL's reorder buffer, as heap tuples.
//! `docs/design/decoding.md` is the design.

use crate::pg::compat::{Decoding, Kind};
use crate::pg::faults::{self, Fault};
use crate::pg::wal::record_data;
use mixedcc_engine::durable::wal::{Action, Change, Op, Record};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// Decodes a record (`rm_decode`).
#[pg_guard]
pub unsafe extern "C-unwind" fn decode(
    context: *mut pg_sys::LogicalDecodingContext,
    record: *mut pg_sys::XLogRecordBuffer,
) {
    // SAFETY: PostgreSQL calls it with a context and a record of ours (contract of rm_decode).
    let (decoding, (info, data)) = unsafe {
        let decoding = Decoding::new(context, record);
        (decoding, record_data(decoding.reader()))
    };
    #[cfg(feature = "faults")]
    faults::begin();
    decoding.note_transaction();
    if Op::of_info(info) != Ok(Op::Change) || !decoding.is_wanted() {
        return;
    }
    match Record::parse(Op::Change, data) {
        Ok(Record::Change(change)) => queue(&decoding, &change),
        Ok(_) => {}
        Err(why) => error!("mixedcc cannot decode a change: {why}"),
    }
}

fn queue(decoding: &Decoding, change: &Change) {
    let other = change.storage.database != decoding.database();
    if other && !faults::on(Fault::DecodesAll) || decoding.is_filtered() {
        return;
    }
    let kind = match change.action {
        Action::Insert => Kind::Insert,
        Action::Update => Kind::Update,
        Action::Delete => Kind::Delete,
    };
    let storage = change.storage;
    let key = [storage.tablespace, storage.database, storage.number];
    decoding.queue(key, kind, change.new, change.old.row());
}
