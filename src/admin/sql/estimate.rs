//! `mixedcc.estimate`: the shared memory that a heap table would need as a mixedcc table of the
//! same persistence, by a sample of its rows.

use super::must_select;
use crate::pg::errors::complain;
use crate::pg::relations;
use crate::state::shmem;
use mixedcc_engine::durable::Durable;
use mixedcc_engine::memory::{memory_of, TidDirectory};
use mixedcc_engine::record::{Record, VERSION_HEADER};
use pgrx::iter::TableIterator;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;
use pgrx::spi::SpiError;

/// Pages of the table that are looked at, about.
const SAMPLE_PAGES: f64 = 2000.0;
/// Bytes of an entry of an index in memory: 21 after a conversion or a load, which make it of
/// sorted keys, and 36 after inserts in another order, which leave its nodes half to two thirds
/// full. In between, so that the total is right for both.
const ENTRY: f64 = 30.0;
/// Bytes of the hint of a key of up to 8 bytes, about.
const HINT: f64 = 8.0;

/// The memory of a version of a row, by the bytes of its tuple.
#[pg_extern(sql = false)]
fn version_bytes(tuple_bytes: i32) -> i32 {
    memory_of(VERSION_HEADER + tuple_bytes.max(0) as usize) as i32
}

/// What catalogs know of the table.
struct Facts {
    is_ours: bool,
    /// Its rows will be in WAL and files, too.
    is_permanent: bool,
    pages: f64,
    /// An expression for the bytes of a row `r`, as a tuple.
    tuple: String,
    /// Expressions for the bytes of its keys in the indexes that will be in memory.
    keys: Vec<String>,
    /// The table in FROM.
    name: String,
}

/// The bytes of a tuple are those of the row. Where values may be stored elsewhere, which would be
/// fetched, they are the sum over the columns. A key's integer takes as many bytes as it needs, and
/// a mark.
const FACTS: &str = "SELECT a.amname = 'mixedcc', c.relpersistence = 'p', greatest(pg_relation_size(c.oid) / current_setting('block_size')::int8, 1)::float8,
    CASE WHEN pg_relation_size(nullif(c.reltoastrelid, 0)) > 0
        THEN (SELECT (24 + count(*) / 8)::text || coalesce(string_agg(format(' + coalesce(pg_column_size(r.%I), 0)', attname), ''), '')
            FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
        ELSE 'pg_column_size(r.*)' END,
    ARRAY(SELECT (SELECT string_agg(format(CASE WHEN k.atttypid IN (20, 21, 23) THEN '2 + length(to_hex(r.%1$I::int8 # (r.%1$I::int8 >> 63))) / 2'
                ELSE 'pg_column_size(r.%1$I) + 2' END, k.attname), ' + ')
            FROM pg_attribute k WHERE k.attrelid = c.oid AND k.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
        FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate AND i.indnkeyatts <= 31 AND (i.indisprimary
            OR i.indisunique AND i.indnkeyatts <= 30 AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnatts = i.indnkeyatts
                AND NOT EXISTS (SELECT FROM pg_attribute n WHERE n.attrelid = c.oid AND n.attnum = ANY (i.indkey) AND NOT n.attnotnull))
        ORDER BY NOT i.indisprimary, i.indexrelid LIMIT 4),
    format('%I.%I', n.nspname, c.relname)
    FROM pg_class c JOIN pg_am a ON a.oid = c.relam JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ";

fn facts(table: Oid) -> Result<Option<Facts>, SpiError> {
    Spi::connect(|client| {
        let row = client.select(&format!("{FACTS}{}", table.to_u32()), Some(1), &[])?.first();
        if row.is_empty() {
            return Ok(None);
        }
        Ok(Some(Facts {
            is_ours: row.get(1)?.unwrap_or_default(),
            is_permanent: row.get(2)?.unwrap_or_default(),
            pages: row.get(3)?.unwrap_or(1.0),
            tuple: row.get(4)?.unwrap_or_default(),
            keys: row.get(5)?.unwrap_or_default(),
            name: row.get(6)?.unwrap_or_default(),
        }))
    })
}

/// What a sample of the rows comes to, as sums.
struct Sampled {
    rows: f64,
    versions: f64,
    /// Keys of at most 8 bytes, in all indexes.
    short: f64,
    /// Bytes of the other keys.
    blobs: f64,
}

fn sample(f: &Facts, percent: f64) -> Result<Sampled, SpiError> {
    let keys = f.keys.join(", ");
    let sql = format!(
        "SELECT count(*)::float8, coalesce(sum(mixedcc.version_bytes(tuple::int)), 0)::float8,
            coalesce(sum((SELECT count(*) FROM unnest(keys) key WHERE key <= 8)), 0)::float8,
            coalesce(sum((SELECT sum(mixedcc.version_bytes(greatest(key::int - 20, 0))) FROM unnest(keys) key WHERE key > 8)), 0)::float8
        FROM (SELECT {} AS tuple, ARRAY[{keys}]::int8[] AS keys FROM ONLY {} AS r TABLESAMPLE SYSTEM ({percent:.6}) REPEATABLE (0)) rows",
        f.tuple, f.name
    );
    Spi::connect(|client| {
        let row = client.select(&sql, Some(1), &[])?.first();
        let sum = |n| row.get(n).map(Option::unwrap_or_default);
        Ok(Sampled { rows: sum(1)?, versions: sum(2)?, short: sum(3)?, blobs: sum(4)? })
    })
}

/// Raises an error for everything but tables, and for users who may not read them.
fn must_be_table(table: Oid) {
    // SAFETY: a catalog look-up.
    let kind = unsafe { pg_sys::get_rel_relkind(table) } as u8;
    if kind == 0 {
        relations::no_such(table);
    }
    must_select(table);
    let name = relations::name(table);
    let wrong = |what: &str, hint: &str| {
        complain(PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE, &format!("\"{name}\" {what}"), hint);
    };
    match kind {
        pg_sys::RELKIND_RELATION | pg_sys::RELKIND_MATVIEW => (),
        pg_sys::RELKIND_PARTITIONED_TABLE => wrong(
            "is partitioned, and its rows are in its partitions",
            "SELECT sum(e.total_bytes) FROM pg_partition_tree('NAME') p, mixedcc.estimate(p.relid) e WHERE p.isleaf.",
        ),
        _ => wrong("is not a table", "Name a table or a materialized view."),
    }
}

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn estimate(
    table: Oid,
) -> Result<
    TableIterator<
        'static,
        (
            name!(rows, i64),
            name!(record_bytes, i64),
            name!(version_bytes, i64),
            name!(primary_index_bytes, i64),
            name!(durable_bytes, i64),
            name!(total_bytes, i64),
            name!(free_bytes, i64),
        ),
    >,
    SpiError,
> {
    must_be_table(table);
    let Some(f) = facts(table)? else { relations::no_such(table) };
    if f.is_ours {
        complain(
            PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
            &format!("\"{}\" is a mixedcc table already", relations::name(table)),
            "mixedcc.table_size tells its memory.",
        );
    }
    let percent = (100.0 * SAMPLE_PAGES / f.pages).min(100.0);
    let s = sample(&f, percent)?;
    let all = |n: f64| (n * 100.0 / percent).round() as i64;
    let rows = all(s.rows);
    let records = (rows as u64).next_multiple_of(TidDirectory::CHUNK as u64) as i64 * size_of::<Record>() as i64;
    let versions = all(s.versions);
    let index = all(s.rows * f.keys.len() as f64 * ENTRY + s.short * HINT + s.blobs);
    let durable = if f.is_permanent { Durable::bytes_of(rows as u64) as i64 } else { 0 };
    let total = records + versions + index + durable;
    let free = shmem::engine().region.usage().free_page_bytes as i64;
    Ok(TableIterator::once((rows, records, versions, index, durable, total, free)))
}
