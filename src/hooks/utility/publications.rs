//! CREATE and ALTER PUBLICATION by Citus, to move or split shards. It copies them by a snapshot
//! that a replication slot exports, which does not cover tables of ours. So the command is refused
//! at its beginning.

use super::{ours, Call};
use crate::pg::errors::unsupported;
use pgrx::pg_sys::{self, Oid};

/// CREATE PUBLICATION.
pub fn create(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let name = unsafe { (*call.node::<pg_sys::CreatePublicationStmt>()).pubname };
    call.run();
    check(name);
}

/// ALTER PUBLICATION, which may add tables.
pub fn alter(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let s = unsafe { &*call.node::<pg_sys::AlterPublicationStmt>() };
    let adds = !s.pubobjects.is_null() && s.action != pg_sys::AlterPublicationAction::AP_DropObjects;
    let name = s.pubname;
    call.run();
    if adds {
        check(name);
    }
}

/// Refuses a publication that the command has made or changed.
fn check(name: *const core::ffi::c_char) {
    if !moves_shards(name) {
        return;
    }
    // SAFETY: the command has run in this transaction; its rows are seen from the next command on.
    unsafe { pg_sys::CommandCounterIncrement() };
    if has_ours(name) {
        unsupported(
            "shards that are mixedcc tables cannot be moved or split by logical replication",
            "Set shard_transfer_mode to block_writes.",
        );
    }
}

/// Is it one by which Citus moves or splits shards (multi_logical_replication.c)?
fn moves_shards(name: *const core::ffi::c_char) -> bool {
    // SAFETY: `name` is a C string of a parse tree.
    let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes();
    name.starts_with(b"citus_shard_move_publication_") || name.starts_with(b"citus_shard_split_publication_")
}

/// Has a publication a table of ours, or a partition that is one?
fn has_ours(name: *const core::ffi::c_char) -> bool {
    const LEAVES: pg_sys::PublicationPartOpt::Type = pg_sys::PublicationPartOpt::PUBLICATION_PART_LEAF;
    // SAFETY: `name` is a C string of a parse tree. Catalog look-ups: any name and OID is answered.
    // The lists are of OIDs, in the current memory context.
    unsafe {
        let publication = pg_sys::GetPublicationByName(name, true);
        if publication.is_null() {
            return false;
        }
        let oid = (*publication).oid;
        let lists = if (*publication).alltables {
            vec![pg_sys::GetAllTablesPublicationRelations(false)]
        } else {
            vec![pg_sys::GetPublicationRelations(oid, LEAVES), pg_sys::GetAllSchemaPublicationRelations(oid, LEAVES)]
        };
        let mut all =
            lists.into_iter().flat_map(|list| pgrx::PgList::<Oid>::from_pg(list).iter_oid().collect::<Vec<_>>());
        all.any(|oid| ours(oid).is_some())
    }
}
