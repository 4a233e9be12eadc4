//! CREATE and ALTER PUBLICATION: a WARNING says which tables send no changes. Where another
//! extension would lose rows by that, it is an error.

use super::maintain::name_of_oid;
use super::{ours, text, Call};
use crate::pg::errors::unsupported;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

/// CREATE PUBLICATION.
pub fn create(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let name = unsafe { (*call.node::<pg_sys::CreatePublicationStmt>()).pubname };
    call.run();
    warn(name);
}

/// ALTER PUBLICATION, which may add tables.
pub fn alter(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let s = unsafe { &*call.node::<pg_sys::AlterPublicationStmt>() };
    let adds = !s.pubobjects.is_null() && s.action != pg_sys::AlterPublicationAction::AP_DropObjects;
    let name = s.pubname;
    call.run();
    if adds {
        warn(name);
    }
}

/// Names the tables of ours in a publication that the command has made or changed.
fn warn(name: *const core::ffi::c_char) {
    // SAFETY: the command has run in this transaction; its rows are seen from the next command on.
    unsafe { pg_sys::CommandCounterIncrement() };
    let found = tables(name);
    let Some(first) = found.first() else { return };
    if moves_shards(name) {
        unsupported(
            "shards that are mixedcc tables cannot be moved or split by logical replication",
            "Set shard_transfer_mode to block_writes.",
        );
    }
    let subject = match found.len() {
        1 => format!("mixedcc table \"{}\"", name_of_oid(*first)),
        n => format!("{n} mixedcc tables, \"{}\" among them", name_of_oid(*first)),
    };
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_WARNING,
        format!("publication \"{}\" sends no changes of {subject}", text(name).unwrap_or_default()),
        "mixedcc",
    )
    .set_detail(
        "Logical decoding does not see changes of mixedcc tables. A subscriber gets their rows at its first copy only.",
    )
    .report(PgLogLevel::WARNING);
}

/// Is it one by which Citus moves or splits shards (multi_logical_replication.c)? It would take the
/// first copy for the whole shard, and lose later writes.
fn moves_shards(name: *const core::ffi::c_char) -> bool {
    // SAFETY: `name` is a C string of a parse tree.
    let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes();
    name.starts_with(b"citus_shard_move_publication_") || name.starts_with(b"citus_shard_split_publication_")
}

/// The tables of ours in a publication, their partitions too.
fn tables(name: *const core::ffi::c_char) -> Vec<Oid> {
    const LEAVES: pg_sys::PublicationPartOpt::Type = pg_sys::PublicationPartOpt::PUBLICATION_PART_LEAF;
    // SAFETY: `name` is a C string of a parse tree. Catalog look-ups: any name and OID is answered.
    // The lists are of OIDs, in the current memory context.
    unsafe {
        let publication = pg_sys::GetPublicationByName(name, true);
        if publication.is_null() {
            return Vec::new();
        }
        let oid = (*publication).oid;
        let lists = if (*publication).alltables {
            vec![pg_sys::GetAllTablesPublicationRelations(false)]
        } else {
            vec![pg_sys::GetPublicationRelations(oid, LEAVES), pg_sys::GetAllSchemaPublicationRelations(oid, LEAVES)]
        };
        let all = lists.into_iter().flat_map(|list| pgrx::PgList::<Oid>::from_pg(list).iter_oid().collect::<Vec<_>>());
        all.filter(|oid| ours(*oid).is_some()).collect()
    }
}
