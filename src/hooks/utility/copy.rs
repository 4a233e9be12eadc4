//! Commands that take a snapshot without the executor: COPY, SET TRANSACTION SNAPSHOT.

use super::{text, Call};
use crate::pg::compat;
use crate::state::xact::{self, Mode};
use pgrx::pg_sys;

/// COPY of a table: its snapshot is taken before it starts, whatever the table is. On a standby it
/// is taken when it is used.
pub fn table(call: Call) {
    if xact::mode() != Mode::Serializable && !xact::is_snapshot_unknown() && !compat::in_recovery() {
        // SAFETY: `ActiveSnapshotSet` says that there is a snapshot, which is an MVCC one.
        unsafe {
            if pg_sys::ActiveSnapshotSet() {
                xact::snapshot_seen(pg_sys::GetActiveSnapshot());
            }
        }
    }
    call.run();
}

/// SET TRANSACTION SNAPSHOT: the CSN comes with the snapshot.
pub fn variable(call: Call) {
    // SAFETY: the node is of the call's statement, whose tag the dispatch has looked at.
    let s = unsafe { &*call.node::<pg_sys::VariableSetStmt>() };
    let imports =
        s.kind == pg_sys::VariableSetKind::VAR_SET_MULTI && text(s.name).is_some_and(|n| n == "TRANSACTION SNAPSHOT");
    call.run();
    if !imports {
        return;
    }
    // SAFETY: the arguments are a list of one string constant (gram.y), which PostgreSQL has just
    // read.
    let id = unsafe {
        let arg = pgrx::PgList::<pg_sys::A_Const>::from_pg(s.args).get_ptr(0);
        arg.and_then(|a| text((*a).val.sval.sval))
    };
    if let Some(id) = id {
        xact::import_snapshot(&id);
    }
}
