//! Functions about the protocols of partitions: requests for switches, their state, their history.

use super::{complain, given, must_control, open, open_briefly, visible_tables, Open};
use crate::admin::coordinator;
use crate::pg::{compat, relations, text};
use crate::state::errors::ok;
use crate::state::{rel, shmem, xact};
use mixedcc_engine::partition::Partition;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::switch::{Done, Step, Why};
use mixedcc_engine::{Protocol, ProtocolSet, Table};
use pgrx::iter::TableIterator;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;
use std::time::{Duration, Instant};

/// Seconds from 1970 to 2000, where PostgreSQL's clock starts.
const POSTGRES_EPOCH: f64 = 946_684_800.0;

/// A time of the coordinator's as seconds since 1970; `None`: never.
pub(super) fn seconds(us: u64) -> Option<f64> {
    (us != 0).then_some(us as f64 / 1e6 + POSTGRES_EPOCH)
}

fn parse_protocol(name: Option<&str>) -> Protocol {
    let all = || Protocol::ALL.map(Protocol::name).join(", ");
    let Some(name) = name else {
        complain(
            PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
            "the protocol must not be null",
            &format!("Available protocols: {}.", all()),
        )
    };
    let Some(p) = Protocol::parse(name) else {
        complain(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            &format!("unknown protocol \"{name}\""),
            &format!("Available protocols: {}.", all()),
        )
    };
    p
}

/// Opens a table that the user controls, against changes of its partitions.
fn control(table: Oid) -> Open {
    must_control(table);
    open(table, pg_sys::AccessShareLock)
}

/// A partition, or all of a table, with their numbers.
pub(super) fn chosen(rel: &Open, table: Oid, partition: Option<i32>) -> (&'static Table, &'static [Partition], u32) {
    let t = rel.info().table;
    let map = t.map();
    match partition {
        None => (t, map.partitions(), 0),
        Some(n) if n >= 0 && (n as u32) < map.n => (t, &map.partitions()[n as usize..=n as usize], n as u32),
        Some(n) => complain(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            &format!("table \"{}\" has no partition {n}", relations::name(table)),
            &format!("Its partitions are 0 to {}.", map.n - 1),
        ),
    }
}

/// A standby has the protocols of its primary.
fn must_not_recover(function: &str) {
    if compat::in_recovery() {
        complain(
            PgSqlErrorCode::ERRCODE_READ_ONLY_SQL_TRANSACTION,
            &format!("cannot execute mixedcc.{function}() during recovery"),
            "Call it on the primary.",
        );
    }
}

/// A session that holds the table's ACCESS EXCLUSIVE lock to the end of the transaction is alone
/// with it: the protocol changes at once.
fn put_alone(t: &Table, no: u32, part: &Partition, p: Protocol, by: u32) {
    let to = ProtocolSet::of(p);
    let old = ok(part.replace(&shmem::engine(), to, Some(true)));
    // A switch under way ends here: it is complete now, goes elsewhere or was taken back.
    let runs = old.step != Step::Settled;
    let from = if runs { old.from } else { old.set };
    if runs || from != to {
        let done = Done { from, to, by, why: Why::AtOnce, times: [coordinator::now(); 4] };
        shmem::engine().shared.switches.push(t.id, t.key, t.name.get().as_deref(), no, done);
    }
}

#[pg_extern(sql = false)]
fn set_protocol(table: Option<Oid>, protocol: Option<&str>, partition: Option<i32>) {
    must_not_recover("set_protocol");
    let table = given(table, "table");
    let p = parse_protocol(protocol);
    let rel = control(table);
    let (t, parts, first) = chosen(&rel, table, partition);
    // SAFETY: `rel` is open, and both look at variables of this process. A lock that a savepoint
    // has taken may be given up before our transaction ends.
    let (alone, by) = unsafe {
        let locked = pg_sys::CheckRelationOidLockedByMe(table, pg_sys::AccessExclusiveLock as i32, true);
        let alone = locked && xact::depth() == 1;
        (alone, pg_sys::GetUserId().to_u32())
    };
    for (i, part) in parts.iter().enumerate() {
        if alone {
            put_alone(t, first + i as u32, part, p, by);
        } else {
            ok(part.ask(&shmem::engine(), p, true, Why::Asked, by, coordinator::now()));
        }
    }
    rel::keep_rules(t);
    if !alone {
        coordinator::wake();
    }
}

#[pg_extern(sql = false)]
fn unpin(table: Option<Oid>, partition: Option<i32>) {
    must_not_recover("unpin");
    let table = given(table, "table");
    let rel = control(table);
    let (t, parts, _) = chosen(&rel, table, partition);
    for part in parts {
        part.switch.unpin();
    }
    rel::keep_rules(t);
}

/// Waits until no switch is under way in a table, or in all of this database, and those that are
/// complete are in the history. False: the time is over.
#[pg_extern(sql = false)]
fn await_switches(table: Option<Oid>, timeout_ms: Option<f64>) -> bool {
    let timeout_ms = given(timeout_ms, "timeout");
    if !(0.0..=86_400_000.0).contains(&timeout_ms) {
        complain(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            "the timeout must be between 0 and 1 day",
            "Example: interval '10 s'.",
        );
    }
    drop(table.map(open_briefly));
    let end = Instant::now() + Duration::from_secs_f64(timeout_ms / 1000.0);
    loop {
        let tables = visible_tables().into_iter().filter(|(oid, _)| table.is_none_or(|t| t == *oid));
        let mut open = false;
        for part in tables.flat_map(|(_, t)| t.map().partitions()) {
            let v = part.switch.view();
            // A user who has waited finds the switch in mixedcc.switch_history.
            open |= v.is_open() || v.is_unrecorded();
            if part.switch.waits_for().is_some_and(coordinator::i_hold) {
                complain(
                    PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                    "the switch waits for the end of this transaction",
                    "Wait for it in another transaction.",
                );
            }
        }
        if !open || Instant::now() >= end {
            return !open;
        }
        coordinator::pause();
    }
}

type SwitchRow =
    (Oid, i32, String, String, String, String, String, Oid, Option<f64>, Option<f64>, Option<f64>, Vec<i32>);

/// Switches that are under way or asked for.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn switch_rows() -> TableIterator<
    'static,
    (
        name!(table, Oid),
        name!(partition, i32),
        name!(protocol, String),
        name!(old, String),
        name!(new, String),
        name!(step, String),
        name!(why, String),
        name!(asked_by, Oid),
        name!(asked_at, Option<f64>),
        name!(began_at, Option<f64>),
        name!(step_at, Option<f64>),
        name!(waits_for, Vec<i32>),
    ),
> {
    let mut out: Vec<SwitchRow> = Vec::new();
    for (oid, t) in visible_tables() {
        for (no, part) in t.map().partitions().iter().enumerate() {
            let v = part.switch.view();
            if !v.is_open() {
                continue;
            }
            let [asked, began, step] = part.switch.times();
            let runs = v.step != Step::Settled;
            let (old, asked, by, why) = if runs {
                let (by, why) = part.switch.started();
                (v.from, asked, by, why)
            } else {
                (v.set, part.switch.asked_at(), v.by, v.why)
            };
            let since = |us| if runs { seconds(us) } else { None };
            out.push((
                oid,
                no as i32,
                v.set.name(),
                old.name(),
                v.wanted.name(),
                if runs { v.step.name() } else { "asked" }.to_owned(),
                why.name().to_owned(),
                Oid::from(by),
                seconds(asked),
                since(began),
                since(step),
                part.switch.waits_for().map(coordinator::holders).unwrap_or_default(),
            ));
        }
    }
    TableIterator::new(out)
}

type HistoryRow = (i64, Option<Oid>, i32, String, String, String, Oid, Option<f64>, Option<f64>, Option<f64>, f64, f64);

/// The last switches in this database.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn switch_history_rows() -> TableIterator<
    'static,
    (
        name!(number, i64),
        name!(table, Option<Oid>),
        name!(partition, i32),
        name!(old, String),
        name!(new, String),
        name!(why, String),
        name!(asked_by, Oid),
        name!(asked_at, Option<f64>),
        name!(began_at, Option<f64>),
        name!(ended_at, Option<f64>),
        name!(upgrade_ms, f64),
        name!(degrade_ms, f64),
    ),
> {
    // SAFETY: a variable of this process, which its one thread writes when it connects to a
    // database.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    let entries = shmem::engine().shared.switches.entries();
    let mut out: Vec<HistoryRow> = Vec::new();
    for s in entries.into_iter().filter(|s| s.key[1] == database) {
        let d = s.done;
        // SAFETY: within a transaction that can look at catalogs: that of the SQL function.
        let oid = Some(unsafe { compat::relation_of(s.key) }).filter(|o| *o != pg_sys::InvalidOid);
        let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1000.0;
        let [asked, began, step, ended] = d.times;
        out.push((
            s.number as i64,
            oid,
            s.partition as i32,
            d.from.name(),
            d.to.name(),
            d.why.name().to_owned(),
            Oid::from(d.by),
            seconds(asked),
            seconds(began),
            seconds(ended),
            ms(began, step),
            ms(step, ended),
        ));
    }
    TableIterator::new(out)
}

/// The names that tables had when they got into the history of this database.
#[pg_extern(sql = false)]
fn switch_names() -> TableIterator<'static, (name!(number, i64), name!(name, Option<Vec<u8>>))> {
    // SAFETY: a variable of this process, which its one thread writes when it connects to a
    // database.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    let entries = shmem::engine().shared.switches.entries().into_iter().filter(|s| s.key[1] == database);
    // A text has the layout of a bytea: these are bytes in the database's encoding.
    let rows = entries.map(|s| (s.number as i64, s.name.map(|n| text::bytes(&n))));
    TableIterator::new(rows.collect::<Vec<_>>())
}

/// The coordinator.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn coordinator_row() -> TableIterator<
    'static,
    (
        name!(pid, Option<i32>),
        name!(started_at, Option<f64>),
        name!(last_pass_at, Option<f64>),
        name!(passes, i64),
        name!(starts, i64),
        name!(under_way, i64),
    ),
> {
    let c = &shmem::engine().shared.coordinator;
    let pid = c.ident.load(Ordering::SeqCst);
    let count = |n: &mixedcc_engine::primitive::AtomicU64| n.load(Ordering::Relaxed);
    TableIterator::once((
        (pid != 0).then_some(pid as i32),
        seconds(count(&c.started_at)),
        seconds(count(&c.last_pass_at)),
        count(&c.passes) as i64,
        count(&c.starts) as i64,
        count(&c.under_way) as i64,
    ))
}
