//! The sources of the views `mixedcc.groups` and `mixedcc.group_conflicts`.

use super::visible_tables;
use crate::pg::text;
use crate::state::shmem;
use mixedcc_engine::groups::{Group, Groups, Kind, GROUPS};
use pgrx::iter::TableIterator;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;
use std::collections::HashMap;

fn groups() -> &'static Groups {
    &shmem::engine().shared.groups
}

/// May the user see names of applications? pg_stat_activity asks the same.
fn may_see() -> bool {
    // SAFETY: both look at roles of this process and of the catalog.
    unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), Oid::from(pg_sys::ROLE_PG_READ_ALL_STATS)) }
}

/// The bytes of a group's name; `None`: it has none, or is not known.
fn name(group: Group) -> Option<Vec<u8>> {
    groups().name(group).map(|n| text::bytes(&n))
}

#[pg_extern(sql = false)]
fn group_rows() -> TableIterator<'static, (name!(name, Vec<u8>), name!(commits, i64), name!(failures, i64))> {
    let row = |group: Group| {
        let (commits, failures) = groups().ends(group);
        Some((name(group)?, commits as i64, failures as i64))
    };
    TableIterator::new((1..=GROUPS as Group).filter(|_| may_see()).filter_map(row).collect::<Vec<_>>())
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::ReadWrite => "rw",
        Kind::WriteWrite => "ww",
        Kind::Partition => "partition",
    }
}

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn group_conflict_rows() -> TableIterator<
    'static,
    (
        name!(name, Option<Vec<u8>>),
        name!(other, Option<Vec<u8>>),
        name!(table, Oid),
        name!(kind, &'static str),
        name!(failures, i64),
        name!(waits, i64),
        name!(wait_ms, f64),
    ),
> {
    let tables: HashMap<u64, Oid> = visible_tables().into_iter().map(|(oid, t)| (t.id, oid)).collect();
    let rows = groups().conflicts().filter(|_| may_see()).filter_map(|c| {
        let table = *tables.get(&c.met.table)?;
        let counts = (c.failures as i64, c.waits as i64, c.wait_us as f64 / 1000.0);
        Some((name(c.group), name(c.met.other), table, kind(c.met.kind), counts.0, counts.1, counts.2))
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}

#[pg_extern(sql = false)]
fn reset_groups() {
    groups().reset();
}
