//! `mixedcc.report`: one HTML page on a time, from the history that the coordinator keeps.
//!
//! The page needs no network and no script: its charts are SVG, and its colours follow the
//! browser's choice of light or dark. It says that it is UTF8: a client with that encoding, which
//! is the usual one, gets it so from any database.

use super::history;
use crate::pg::errors::complain;
use crate::pg::text;
use data::Data;
use page::{Page, Table};
use pgrx::pg_sys;
use pgrx::prelude::*;

mod charts;
mod data;
mod page;

/// Hottest partitions that the page names.
const HOTTEST: usize = 20;
/// Partitions whose protocols are drawn.
const DRAWN: usize = 40;
/// Switches that are listed.
const SWITCHES: usize = 100;

/// Date and time of day in the session's time zone.
fn time(us: u64) -> String {
    let mut tm = pg_sys::pg_tm::default();
    let (mut zone, mut fraction) = (0, 0);
    // SAFETY: the pointers lead to variables of this frame; the zone's name and the zone itself are
    // not asked for. A time out of range is answered by another value than 0.
    let failed = unsafe {
        let (none, session) = (std::ptr::null_mut(), std::ptr::null_mut());
        pg_sys::timestamp2tm(us as i64, &mut zone, &mut tm, &mut fraction, none, session)
    };
    if failed != 0 {
        return us.to_string();
    }
    format!("{:04}-{:02}-{:02} {:02}:{:02}:{:02}", tm.tm_year, tm.tm_mon, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec)
}

/// The rows of a query, whose columns are all text. Texts come as their bytes, because pgrx takes
/// each text for UTF-8 (see `pg/text.rs`).
fn rows(sql: &str, columns: usize) -> Vec<Vec<String>> {
    let list = |f: &dyn Fn(usize) -> String| (1..=columns).map(f).collect::<Vec<_>>().join(", ");
    let bytes = list(&|c| format!("pg_catalog.convert_to(c{c}, pg_catalog.getdatabaseencoding())"));
    let sql = format!("SELECT {bytes} FROM ({sql}) x({})", list(&|c| format!("c{c}")));
    let read = Spi::connect(|client| {
        let found = client.select(&sql, None, &[])?;
        let row = |r: pgrx::spi::SpiHeapTupleData| -> Result<Vec<String>, pgrx::spi::Error> {
            let column = |c| Ok(r.get::<Vec<u8>>(c)?.map_or(String::new(), |b| text::of_bytes(&b)));
            (1..=columns).map(column).collect()
        };
        found.map(row).collect::<Result<Vec<_>, _>>()
    });
    match read {
        Ok(rows) => rows,
        Err(error) => error!("mixedcc could not read a view for its report: {error}"),
    }
}

/// One value of text.
fn value(sql: &str) -> String {
    rows(sql, 1).pop().and_then(|mut r| r.pop()).unwrap_or_default()
}

#[pg_extern(sql = false)]
fn report(since: TimestampWithTimeZone, until: TimestampWithTimeZone) -> Vec<u8> {
    let (since, until) = (since.into_inner().max(0) as u64, until.into_inner().max(0) as u64);
    if since >= until {
        complain(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            "the report's time must not end before it begins",
            "Call mixedcc.report(since, until) with since < until.",
        );
    }
    // SAFETY: a variable of this process, which its one thread writes when it connects to a
    // database.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    let intervals = match history::read(since, until) {
        Ok(intervals) => intervals,
        Err(error) => complain(
            PgSqlErrorCode::ERRCODE_IO_ERROR,
            &format!("could not read the history of mixedcc: {error}"),
            "See the directory mixedcc_history in the data directory.",
        ),
    };
    let name = value("SELECT pg_catalog.current_database()::text");
    let data = Data::of(&intervals, (database, &name), since, until);
    let mut page = Page::new(&name);
    head(&mut page, &data, since, until);
    load(&mut page, &data);
    hottest(&mut page, &data);
    switches(&mut page, &data);
    durability(&mut page);
    now(&mut page);
    text::bytes(&page.end()) // of a text, whose layout is that of a bytea
}

fn head(page: &mut Page, data: &Data, since: u64, until: u64) {
    let server = value("SELECT pg_catalog.current_setting('server_version')");
    let version = value("SELECT extversion::text FROM pg_catalog.pg_extension WHERE extname = 'mixedcc'");
    let made = value("SELECT pg_catalog.date_trunc('second', pg_catalog.clock_timestamp())::text");
    page.text(&format!("{} to {}. mixedcc {version}, PostgreSQL {server}. Made at {made}.", time(since), time(until)));
    if data.covered() == 0.0 {
        page.text("The history has nothing of this time: mixedcc.history_interval may have been 0.");
    }
    let (commits, aborts) = (data.commits(), data.aborts());
    let share = if commits + aborts > 0.0 { 100.0 * aborts / (commits + aborts) } else { 0.0 };
    page.tiles(&[
        ("commits", page::count(commits), "of transactions in partitions"),
        ("failures", page::count(aborts), &format!("{share:.2} % of the attempts")),
        ("time slept", format!("{:.1} s", data.slept()), "for locks of rows, ranges and partitions"),
        ("switches", data.switches.len().to_string(), "of protocols"),
        ("history", format!("{:.0} %", data.covered() * 100.0), "of this time has been recorded"),
    ]);
}

fn load(page: &mut Page, data: &Data) {
    page.heading("Load", "A transaction counts once in each partition that it uses.");
    page.chart("Commits a second", &charts::area(data, &data.commits_per_second()));
    page.chart("Failures a second, by reason", &charts::stack(data, &data.per_second(&data.aborts)));
    page.chart("Sleeps a second, by lock", &charts::stack(data, &data.per_second(&data.waits)));
    page.chart("Memory in use, MB", &charts::line(data, &data.used_mb(), data.total_mb()));
    let drawn: Vec<_> = data.hottest(DRAWN).collect();
    page.heading("Protocols over time", "A row is a partition; those with the most transactions are drawn.");
    page.chart("Protocol of each partition", &charts::protocols(data, &drawn));
}

fn hottest(page: &mut Page, data: &Data) {
    page.heading("Hottest partitions", "By attempts, committed or not.");
    let mut table = Table::new(&[
        ("table", false),
        ("partition", true),
        ("protocol", false),
        ("rows", true),
        ("commits", true),
        ("failures", true),
        ("most frequent failure", false),
        ("slept, s", true),
        ("reads", true),
        ("writes", true),
    ]);
    for (name, no, p) in data.hottest(HOTTEST) {
        table.row(&[
            name.clone(),
            no.to_string(),
            p.last_protocol(),
            page::count(p.rows),
            page::count(p.commits),
            page::count(p.aborts.values().sum()),
            p.worst_reason(),
            format!("{:.2}", p.slept),
            page::count(p.reads),
            page::count(p.writes),
        ]);
    }
    page.table(&table);
    let spec = "SELECT \"table\"::text, option, value FROM mixedcc.options ORDER BY 1, 2";
    page.some(&[("table", false), ("option", false), ("value", false)], rows(spec, 3), "Options of tables");
}

fn switches(page: &mut Page, data: &Data) {
    page.heading("Switches", "The last ones come first.");
    let mut table = Table::new(&[
        ("ended", false),
        ("table", false),
        ("partition", true),
        ("from", false),
        ("to", false),
        ("why", false),
        ("took, ms", true),
    ]);
    for s in data.switches.iter().rev().take(SWITCHES) {
        table.row(&[
            time(s.at),
            s.table.clone(),
            s.no.to_string(),
            s.old.clone(),
            s.new.clone(),
            s.why.clone(),
            format!("{:.1}", s.took as f64 / 1000.0),
        ]);
    }
    page.table(&table);
}

/// What permanent tables and their commits wait for.
fn durability(page: &mut Page) {
    page.heading(
        "Durability",
        "Permanent tables while the report is made, of all databases; sums since they were reset.",
    );
    let spec = "SELECT item, value FROM mixedcc.durability d, LATERAL (VALUES \
                (1, 'companion of the checkpointer', d.activity), \
                (2, 'commits into permanent tables wait because', d.shut), \
                (3, 'a checkpoint waits for images since', pg_catalog.date_trunc('second', d.held_since)::text), \
                (4, 'oldest commit that is not done: process', d.commit_pid::text), \
                (5, 'it waits for', d.commit_waits_for), \
                (6, 'rows that are in WAL and in no image', d.dirty_rows::text), \
                (7, 'last complete round', d.round_kind), \
                (8, 'it ended', pg_catalog.date_trunc('second', d.round_ended_at)::text), \
                (9, 'it took, s', pg_catalog.round(extract(epoch FROM d.round_ended_at - d.round_started_at), 1)::text), \
                (10, 'rows that it imaged', d.round_rows::text), \
                (11, 'WAL that it wrote, MB', (d.round_wal_bytes >> 20)::text), \
                (12, 'rounds', d.rounds::text), \
                (13, 'rows that they imaged', d.rows::text), \
                (14, 'WAL that they wrote, MB', (d.wal_bytes >> 20)::text), \
                (15, 'rounds that failed', d.errors::text)) x(number, item, value) \
                WHERE value IS NOT NULL ORDER BY number";
    page.some(&[("of permanent tables", false), ("value", false)], rows(spec, 2), "Rounds and commits");
    let loads =
        "SELECT database::text, coalesce(\"table\"::text, relid::text), phase, blocks_done::text, blocks_total::text \
                 FROM mixedcc.loads ORDER BY 1, 2";
    let columns = [("database", false), ("table", false), ("phase", false), ("blocks read", true), ("of", true)];
    page.some(&columns, rows(loads, 5), "Loads under way");
}

/// What views show at this moment.
fn now(page: &mut Page) {
    page.heading("Now", "What views show while the report is made.");
    let advice = rows("SELECT coalesce(\"table\"::text, ''), topic, advice FROM mixedcc.advice", 3);
    page.some(&[("table", false), ("topic", false), ("advice", false)], advice, "Advice");
    let memory = "SELECT percent::text, (used_bytes >> 20)::text, (total_bytes >> 20)::text, passed_at::text, \
                  coalesce(left_at::text, '') FROM mixedcc.memory_warnings ORDER BY number DESC LIMIT 20";
    let columns = [("above, %", true), ("used, MB", true), ("of, MB", true), ("passed", false), ("left", false)];
    page.some(&columns, rows(memory, 5), "Warnings of memory");
    let horizon = rows("SELECT pid::text, commits::text FROM mixedcc.horizon WHERE pid IS NOT NULL", 2);
    page.some(&[("process", true), ("commits since its snapshot", true)], horizon, "Oldest snapshot");
    let settings = "SELECT name, setting, coalesce(unit, ''), source FROM pg_catalog.pg_settings \
                    WHERE name LIKE 'mixedcc.%' AND source <> 'default' ORDER BY 1";
    let columns = [("setting", false), ("value", false), ("unit", false), ("from", false)];
    page.some(&columns, rows(settings, 4), "Settings that are not the default");
}
