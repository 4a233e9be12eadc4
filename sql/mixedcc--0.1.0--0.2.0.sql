-- Changes the SQL objects of version 0.1.0 into those of 0.2.0.
-- Each commit that changes an SQL object changes it here too; a test compares the result with a
-- fresh installation.
\echo Use "ALTER EXTENSION mixedcc UPDATE TO '0.2.0'" to load this file. \quit
SET LOCAL search_path = pg_catalog, pg_temp;

COMMENT ON COLUMN mixedcc.ranges.asleep IS 'no scan has used the index for about 10 seconds, and writers register again only after the next scan has begun';

-- The history of switches keeps the names of tables.

CREATE FUNCTION mixedcc.switch_names(OUT number bigint, OUT name text) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'switch_names_wrapper' LANGUAGE C VOLATILE ROWS 100;
COMMENT ON FUNCTION mixedcc.switch_names() IS 'for the view mixedcc.switch_history: names that tables had then';

CREATE OR REPLACE VIEW mixedcc.switch_history AS
    SELECT number, "table", partition, old, new, why,
        CASE WHEN asked_by IS NULL THEN 'coordinator' ELSE pg_catalog.pg_get_userbyid(asked_by)::text END AS asked_by,
        to_timestamp(asked_at) AS asked_at, to_timestamp(began_at) AS began_at, to_timestamp(ended_at) AS ended_at, upgrade_ms, degrade_ms, n.name
    FROM mixedcc.switch_history_rows() LEFT JOIN mixedcc.switch_names() n USING (number);
COMMENT ON COLUMN mixedcc.switch_history.name IS 'name that the table had then: database.schema.table';

-- Warnings that memory becomes full.

CREATE FUNCTION mixedcc.memory_warning_rows(OUT number bigint, OUT percent int, OUT used_bytes bigint, OUT total_bytes bigint,
        OUT passed_at float8, OUT left_at float8) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'memory_warning_rows_wrapper' LANGUAGE C VOLATILE ROWS 10;
COMMENT ON FUNCTION mixedcc.memory_warning_rows() IS 'source of the view mixedcc.memory_warnings';

CREATE VIEW mixedcc.memory_warnings AS
    SELECT number, percent, used_bytes, total_bytes, to_timestamp(passed_at) AS passed_at, to_timestamp(left_at) AS left_at
    FROM mixedcc.memory_warning_rows();
COMMENT ON VIEW mixedcc.memory_warnings IS 'when the use of mixedcc.memory passed 80 and 95 %: the last 100 times; each is a WARNING in the server''s log too, but for one that another follows at once';
COMMENT ON COLUMN mixedcc.memory_warnings.number IS 'number of the warning since the start of the server';
COMMENT ON COLUMN mixedcc.memory_warnings.percent IS 'threshold that was passed';
COMMENT ON COLUMN mixedcc.memory_warnings.used_bytes IS 'pages in use at that moment';
COMMENT ON COLUMN mixedcc.memory_warnings.total_bytes IS 'all pages';
COMMENT ON COLUMN mixedcc.memory_warnings.passed_at IS 'when';
COMMENT ON COLUMN mixedcc.memory_warnings.left_at IS 'when the use had fallen by another 5 % below it; null: it has not';
GRANT SELECT ON mixedcc.memory_warnings TO PUBLIC;

-- Permanent tables.

CREATE FUNCTION mixedcc.durability_row(OUT pid int, OUT activity text, OUT since float8, OUT shut text, OUT held_since float8, OUT released_at float8,
        OUT round_kind text, OUT round_redo text, OUT round_started_at float8, OUT round_ended_at float8, OUT round_rows bigint, OUT round_pages bigint,
        OUT round_wal_bytes bigint, OUT dirty_tables bigint, OUT dirty_rows bigint, OUT oldest_commit int, OUT rounds bigint, OUT rows bigint,
        OUT pages bigint, OUT wal_bytes bigint, OUT errors bigint, OUT reset_at float8) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'durability_row_wrapper' LANGUAGE C VOLATILE ROWS 1;
COMMENT ON FUNCTION mixedcc.durability_row() IS 'source of the view mixedcc.durability';

CREATE FUNCTION mixedcc.load("table" regclass) RETURNS boolean AS 'MODULE_PATHNAME', 'load_wrapper' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION mixedcc.load(regclass) IS 'loads the rows of a permanent table into memory now; false: they were there, or the table is not permanent';

CREATE FUNCTION mixedcc.load_rows(OUT pid int, OUT database oid, OUT relation oid, OUT phase text, OUT done bigint, OUT total bigint, OUT since float8)
    RETURNS SETOF record AS 'MODULE_PATHNAME', 'load_rows_wrapper' LANGUAGE C VOLATILE ROWS 2;
COMMENT ON FUNCTION mixedcc.load_rows() IS 'source of the view mixedcc.loads';

CREATE VIEW mixedcc.loads AS
    SELECT l.pid, d.datname AS database, l.relation AS relid, c.oid::regclass AS "table", l.phase, l.done AS blocks_done, l.total AS blocks_total,
        to_timestamp(l.since) AS since
    FROM mixedcc.load_rows() l JOIN pg_catalog.pg_database d ON d.oid = l.database
        LEFT JOIN pg_catalog.pg_class c ON c.oid = l.relation AND d.datname = current_database();
COMMENT ON VIEW mixedcc.loads IS 'the loads of permanent tables that are under way, of all databases';
COMMENT ON COLUMN mixedcc.loads.pid IS 'the process that loads: a session that uses the table, or a worker';
COMMENT ON COLUMN mixedcc.loads.database IS 'the database';
COMMENT ON COLUMN mixedcc.loads.relid IS 'the table''s OID';
COMMENT ON COLUMN mixedcc.loads."table" IS 'the table; null: it is of another database';
COMMENT ON COLUMN mixedcc.loads.phase IS 'absorbing the journal, finding newest rows, counting memory, loading rows, building primary index';
COMMENT ON COLUMN mixedcc.loads.blocks_done IS 'blocks of the file that this phase has read';
COMMENT ON COLUMN mixedcc.loads.blocks_total IS 'blocks of the file; 0 in phases that read none';
COMMENT ON COLUMN mixedcc.loads.since IS 'when the load began';
GRANT SELECT ON mixedcc.loads TO PUBLIC;

CREATE FUNCTION mixedcc.reset_durability() RETURNS void AS 'MODULE_PATHNAME', 'reset_durability_wrapper' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.reset_durability() IS 'sets the counters of mixedcc.durability to zero';
REVOKE ALL ON FUNCTION mixedcc.reset_durability() FROM PUBLIC;

CREATE VIEW mixedcc.durability AS
    SELECT d.pid, d.activity, to_timestamp(d.since) AS since, d.shut, to_timestamp(d.held_since) AS held_since, to_timestamp(d.released_at) AS released_at,
        d.round_kind, d.round_redo::pg_lsn AS round_redo, to_timestamp(d.round_started_at) AS round_started_at, to_timestamp(d.round_ended_at) AS round_ended_at,
        d.round_rows, d.round_pages, d.round_wal_bytes, d.dirty_tables, d.dirty_rows, d.oldest_commit AS commit_pid, a.query_start AS commit_since,
        a.wait_event AS commit_waits_for, d.rounds, d.rows, d.pages, d.wal_bytes, d.errors, to_timestamp(d.reset_at) AS stats_reset
    FROM mixedcc.durability_row() d LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = d.oldest_commit;
COMMENT ON VIEW mixedcc.durability IS 'the background worker that brings the rows of permanent tables into images, and what it and commits wait for; of all databases';
COMMENT ON COLUMN mixedcc.durability.pid IS 'the companion''s process; null: none runs';
COMMENT ON COLUMN mixedcc.durability.activity IS 'none, starting, idle, waiting (for commits that insert their records), imaging, pacing (a rest in a round), cleaning, closing, failed (a round, which will be made again)';
COMMENT ON COLUMN mixedcc.durability.since IS 'since when';
COMMENT ON COLUMN mixedcc.durability.shut IS 'why commits into permanent tables wait; null: they do not';
COMMENT ON COLUMN mixedcc.durability.held_since IS 'since when a checkpoint waits for images; null: none does';
COMMENT ON COLUMN mixedcc.durability.released_at IS 'when a checkpoint last went on, which had waited';
COMMENT ON COLUMN mixedcc.durability.round_kind IS 'the last complete round: checkpoint, start, closing, asked (by a command)';
COMMENT ON COLUMN mixedcc.durability.round_redo IS 'redo pointer that it served';
COMMENT ON COLUMN mixedcc.durability.round_started_at IS 'when it began';
COMMENT ON COLUMN mixedcc.durability.round_ended_at IS 'when it was complete';
COMMENT ON COLUMN mixedcc.durability.round_rows IS 'rows that it imaged';
COMMENT ON COLUMN mixedcc.durability.round_pages IS 'pages that it wrote';
COMMENT ON COLUMN mixedcc.durability.round_wal_bytes IS 'WAL that it wrote';
COMMENT ON COLUMN mixedcc.durability.dirty_tables IS 'tables with rows that are in WAL, and in no image';
COMMENT ON COLUMN mixedcc.durability.dirty_rows IS 'these rows';
COMMENT ON COLUMN mixedcc.durability.commit_pid IS 'process with the oldest commit that is not done: it waits for a flush or a standby; null: there is none';
COMMENT ON COLUMN mixedcc.durability.commit_since IS 'when the statement began that commits; null where pg_stat_activity hides it';
COMMENT ON COLUMN mixedcc.durability.commit_waits_for IS 'its wait event, as in pg_stat_activity; SyncRep: a synchronous standby';
COMMENT ON COLUMN mixedcc.durability.rounds IS 'complete rounds since the start of the server or the last reset';
COMMENT ON COLUMN mixedcc.durability.rows IS 'rows that they imaged';
COMMENT ON COLUMN mixedcc.durability.pages IS 'pages that they wrote';
COMMENT ON COLUMN mixedcc.durability.wal_bytes IS 'WAL that they wrote';
COMMENT ON COLUMN mixedcc.durability.errors IS 'rounds that failed, and were made again';
COMMENT ON COLUMN mixedcc.durability.stats_reset IS 'when mixedcc.reset_durability was called last; null: not since the start';
GRANT SELECT ON mixedcc.durability TO PUBLIC;

CREATE FUNCTION mixedcc.standby_row(OUT csn bigint, OUT lsn text, OUT replayed_at float8, OUT tables int, OUT conflicts bigint) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'standby_row_wrapper' LANGUAGE C VOLATILE ROWS 1;
COMMENT ON FUNCTION mixedcc.standby_row() IS 'source of the view mixedcc.standby';

CREATE VIEW mixedcc.standby AS
    SELECT s.csn, s.lsn::pg_lsn AS lsn, to_timestamp(s.replayed_at) AS replayed_at,
        pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_last_wal_replay_lsn(), s.lsn::pg_lsn)::bigint AS bytes_behind, s.tables, s.conflicts
    FROM mixedcc.standby_row() s;
COMMENT ON VIEW mixedcc.standby IS 'what snapshots of permanent mixedcc tables show on this standby; no row on a primary';
COMMENT ON COLUMN mixedcc.standby.csn IS 'number of the last commit of the primary that they show, with all before it; null: not known yet';
COMMENT ON COLUMN mixedcc.standby.lsn IS 'where the primary has told it in WAL';
COMMENT ON COLUMN mixedcc.standby.replayed_at IS 'when this server has replayed that';
COMMENT ON COLUMN mixedcc.standby.bytes_behind IS 'WAL that was replayed since: the commits in it are not shown yet';
COMMENT ON COLUMN mixedcc.standby.tables IS 'permanent tables in memory, of all databases';
COMMENT ON COLUMN mixedcc.standby.conflicts IS 'times that sessions were cancelled since the start, because replay or another session needed what their snapshots kept';
GRANT SELECT ON mixedcc.standby TO PUBLIC;

-- Metrics for exporters.

CREATE FUNCTION mixedcc.table_rows(OUT "table" regclass, OUT partitions int, OUT bytes bigint, OUT missing_bytes bigint) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'table_rows_wrapper' LANGUAGE C VOLATILE ROWS 100;
COMMENT ON FUNCTION mixedcc.table_rows() IS
    'for the views mixedcc.metrics and mixedcc.table_options: partitions and bytes of the tables of this database in shared memory, or the bytes that a table needs which the last start could not load; takes no lock';

CREATE FUNCTION mixedcc.cluster_row(OUT commits bigint, OUT switches bigint, OUT holder int, OUT held_commits bigint, OUT waiting bigint) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'cluster_row_wrapper' LANGUAGE C VOLATILE ROWS 1;
COMMENT ON FUNCTION mixedcc.cluster_row() IS 'source of the view mixedcc.horizon, and for mixedcc.metrics: commits that wrote, complete switches, and the process with the oldest snapshot';

CREATE VIEW mixedcc.horizon AS SELECT holder AS pid, held_commits AS commits, waiting AS versions FROM mixedcc.cluster_row();
COMMENT ON VIEW mixedcc.horizon IS 'the process whose snapshot is the oldest: old versions that it could read stay in memory';
COMMENT ON COLUMN mixedcc.horizon.pid IS 'the process; null: there is none';
COMMENT ON COLUMN mixedcc.horizon.commits IS 'commits that wrote since then, of all databases, about';
COMMENT ON COLUMN mixedcc.horizon.versions IS 'old versions and other pieces of memory that wait until no snapshot needs them, about; commits free them by and by when the process has ended its snapshot';

CREATE FUNCTION mixedcc.snapshot_rows(OUT pid int, OUT commits bigint) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'snapshot_rows_wrapper' LANGUAGE C VOLATILE ROWS 20;
COMMENT ON FUNCTION mixedcc.snapshot_rows() IS 'source of the view mixedcc.snapshots';

CREATE VIEW mixedcc.snapshots AS SELECT * FROM mixedcc.snapshot_rows();
COMMENT ON VIEW mixedcc.snapshots IS 'all processes whose snapshots, or look-ups, keep old versions in memory; mixedcc.horizon has the oldest one';
COMMENT ON COLUMN mixedcc.snapshots.pid IS 'the process';
COMMENT ON COLUMN mixedcc.snapshots.commits IS 'commits that wrote since then, of all databases, about: it keeps the versions that they replaced';
GRANT SELECT ON mixedcc.snapshots TO PUBLIC;

CREATE FUNCTION mixedcc.group_rows(OUT name text, OUT commits bigint, OUT failures bigint) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'group_rows_wrapper' LANGUAGE C VOLATILE ROWS 20;
COMMENT ON FUNCTION mixedcc.group_rows() IS 'source of the view mixedcc.groups';

CREATE VIEW mixedcc.groups AS SELECT * FROM mixedcc.group_rows();
COMMENT ON VIEW mixedcc.groups IS 'groups of transactions (mixedcc.transaction_group, labels of functions, mixedcc.group_by), of all databases, since the last mixedcc.reset_groups()';
COMMENT ON COLUMN mixedcc.groups.name IS 'name of the group';
COMMENT ON COLUMN mixedcc.groups.commits IS 'transactions of the group that committed, and used a mixedcc table';
COMMENT ON COLUMN mixedcc.groups.failures IS 'transactions of the group that failed because of others';

CREATE FUNCTION mixedcc.group_conflict_rows(OUT name text, OUT other text, OUT "table" regclass, OUT kind text, OUT failures bigint,
        OUT waits bigint, OUT wait_ms float8) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'group_conflict_rows_wrapper' LANGUAGE C VOLATILE ROWS 50;
COMMENT ON FUNCTION mixedcc.group_conflict_rows() IS 'source of the view mixedcc.group_conflicts';

CREATE VIEW mixedcc.group_conflicts AS SELECT * FROM mixedcc.group_conflict_rows();
COMMENT ON VIEW mixedcc.group_conflicts IS 'which group of transactions fails or waits for which, in tables of this database, since the last mixedcc.reset_groups()';
COMMENT ON COLUMN mixedcc.group_conflicts.name IS 'group of the transactions that failed or waited; null: they had none';
COMMENT ON COLUMN mixedcc.group_conflicts.other IS 'group of the transactions that were in their way; null: they had none, or it is not known any more';
COMMENT ON COLUMN mixedcc.group_conflicts."table" IS 'the table';
COMMENT ON COLUMN mixedcc.group_conflicts.kind IS 'rw: one had read what the other has written; ww: both wrote it; partition: the lock of a partition';
COMMENT ON COLUMN mixedcc.group_conflicts.failures IS 'transactions that failed';
COMMENT ON COLUMN mixedcc.group_conflicts.waits IS 'sleeps for locks that have ended';
COMMENT ON COLUMN mixedcc.group_conflicts.wait_ms IS 'their time in milliseconds';

CREATE FUNCTION mixedcc.reset_groups() RETURNS void
    AS 'MODULE_PATHNAME', 'reset_groups_wrapper' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.reset_groups() IS 'forgets all groups of transactions, and what was counted of them, in all databases';

REVOKE ALL ON FUNCTION mixedcc.reset_groups() FROM PUBLIC;
-- Names of applications are for those to whom pg_stat_activity shows them. To others the functions show no row.
GRANT SELECT ON mixedcc.groups, mixedcc.group_conflicts TO pg_read_all_stats;

CREATE OR REPLACE VIEW mixedcc.advice AS
WITH load AS (
    SELECT "table", count(*) AS partitions, sum(sampled) AS sampled, sum(sampled * multi_share) / sum(sampled) AS multi,
        sum(sampled * partitions) / sum(sampled) AS used, sum(sampled * declared_share) / sum(sampled) AS declared,
        sum(sampled * weak_writer_share) / sum(sampled) AS weak, sum(sampled * idle_share) / sum(sampled) AS idle,
        sum(sampled * serializable_share) / sum(sampled) AS serializable,
        sum(sampled * least(records * conflict_rate, 1)) / sum(sampled) AS clash,
        coalesce(sum(sampled * lost_share) / sum(sampled), 0) AS lost,
        coalesce(sum(wait_ms) / nullif((SELECT sum(p.commits) FROM mixedcc.partitions p WHERE p."table" = s."table")
            * sum(sampled * duration_ms / (1 - least(lost_share, 0.99))) / sum(sampled), 0), 0) AS slept,
        (SELECT sum((q->>'transactions')::numeric) / nullif(sum(s2.sampled), 0) FROM mixedcc.partition_stats s2
            LEFT JOIN LATERAL jsonb_array_elements(s2.partners) q ON q->>'table' = s."table"::text AND (q->>'partition')::int <> s2.partition
            WHERE s2."table" = s."table") AS with_own,
        (SELECT string_agg(DISTINCT q->>'table', ', ') FROM mixedcc.partition_stats s2, jsonb_array_elements(s2.partners) q
            WHERE s2."table" = s."table" AND q->>'table' <> s."table"::text) AS others
    FROM mixedcc.partition_stats s
    GROUP BY "table" HAVING sum(sampled) > 0
), shared AS (
    SELECT "table", max(sampled) AS several, max(spread_share) AS spread, array_agg("column"::text ORDER BY place) AS columns,
        array_agg("column"::text ORDER BY place) FILTER (WHERE common_share >= 0.95 AND varied_share >= 0.3) AS common,
        string_agg(format('%I in %s %%', "column", round(100 * common_share::numeric)), ', ' ORDER BY place) AS shares
    FROM mixedcc.key_stats GROUP BY "table"
), model AS (
    SELECT "table", count(gain) AS looked, count(*) FILTER (WHERE gain > 1.1) AS better, avg(1 - 1 / gain) FILTER (WHERE gain > 1.1) AS saved,
        string_agg(DISTINCT obstacle, '; ') FILTER (WHERE gain > 1.1) AS obstacles, string_agg(DISTINCT obstacle, '; ') AS all_obstacles
    FROM mixedcc.partcc_rows() GROUP BY "table"
), key AS (
    SELECT l.*, s.several, s.columns, s.common, s.shares, m.looked, m.better, m.saved, m.obstacles, m.all_obstacles,
        coalesce(s.several >= 20, false) AS known, coalesce(s.several >= 20 AND s.spread >= 0.2, false) AS spread, s.spread AS spread_share,
        (SELECT string_agg(format('%I', c), ', ') FROM unnest(s.common) c) AS common_text,
        (SELECT value FROM mixedcc.options o WHERE o."table" = l."table" AND option = 'partition_by') AS partition_by
    FROM load l LEFT JOIN shared s USING ("table") LEFT JOIN model m USING ("table") WHERE l.sampled >= 20
)
SELECT "table", 'partcc' AS topic,
    format('The model expects a transaction to cost %s %% less under partcc than under the protocol in use, in %s of the %s partitions that it has looked at. Why not there: %s.',
        round(100 * saved::numeric), better, looked, obstacles) AS advice
FROM key WHERE partitions > 1 AND 2 * better >= looked AND better > 0 AND weak <= 0.05 AND idle <= 0.05 AND serializable > 0.5
UNION ALL
SELECT "table", 'partcc',
    format('Transactions stay in one partition (%s %% do not) and meet each other''s rows (%s %% of them): partcc may pay. The model has not looked at it; %s.',
        round(100 * multi::numeric), round(100 * clash::numeric), all_obstacles)
FROM key WHERE partitions > 1 AND looked = 0 AND all_obstacles <> 'it is in use' AND multi < 0.05 AND clash > 0.3 AND weak <= 0.05 AND idle <= 0.05 AND serializable > 0.5
UNION ALL
SELECT "table", 'annotate',
    format('%s %% of the transactions use several partitions (%s on average), and %s %% declare them. If a function''s arguments tell which, mixedcc.annotate it: partcc then locks them in order, without 40001. %s',
        round(100 * multi::numeric), round(used::numeric, 1), round(100 * declared::numeric),
        coalesce('Functions that name the table: ' || mixedcc.annotation_hints("table", CASE WHEN spread AND common IS NOT NULL THEN common
            ELSE coalesce((SELECT array_agg(CASE WHEN n LIKE '"%"' THEN replace(btrim(n, '"'), '""', '"') ELSE n END) FROM unnest(string_to_array(partition_by, '+')) n), columns) END),
            'No function in SQL or plpgsql that is not annotated names the table.'))
FROM key WHERE multi >= 0.05 AND declared < 0.5 AND serializable > 0.5
UNION ALL
SELECT "table", 'partition_by',
    format('Of the transactions that use several rows of this table, %s %% use several partitions of it. All rows of one have the same value of %s. Partition by what they have in common: ALTER TABLE %s SET (mixedcc.partition_by = %L).',
        round(100 * spread_share::numeric), shares, "table", common_text)
FROM key WHERE partitions > 1 AND spread AND common IS NOT NULL
UNION ALL
SELECT "table", 'partition_by',
    format('Of the transactions that use several rows of this table, %s %% use several partitions of it, and no column of its key divides the transactions: all rows of one have the same value of %s, or of one that has a single value. Rows that are used together need a common column in the key%s.',
        round(100 * spread_share::numeric), shares,
        CASE WHEN cardinality(columns) = 1 THEN ', or bounds that keep them together (mixedcc.partition_method = ''range'')' ELSE '' END)
FROM key WHERE partitions > 1 AND spread AND common IS NULL
UNION ALL
SELECT "table", 'partition_by',
    format('Transactions use several partitions of this table (%s others on average). Which columns their rows have in common is not known: that is sampled of SERIALIZABLE transactions that use several rows, of twenty at least, in tables with a primary index (mixedcc.primary_index).',
        round(with_own, 1))
FROM key WHERE partitions > 1 AND NOT known AND with_own >= 0.2
UNION ALL
SELECT "table", 'partitions',
    format('The table has one partition, and transactions meet each other''s rows (%s %% of them). With several (ALTER TABLE %s SET (mixedcc.partitions = 16%s)) each gets its own protocol%s. That saves at most %s %% of their time: %s %% went into attempts that failed, and they slept for its locks in %s %%.',
        round(100 * clash::numeric), "table", CASE WHEN known AND common IS NOT NULL THEN format(', mixedcc.partition_by = %L', common_text) ELSE '' END,
        CASE WHEN columns IS NULL THEN ', but it needs a primary key first' ELSE '' END,
        round(100 * least(lost + slept, 1)::numeric), round(100 * lost::numeric), round(100 * least(slept, 1)::numeric))
FROM key WHERE partitions = 1 AND clash > 0.1
UNION ALL
SELECT "table", 'align',
    format('Transactions use it together with %s. If these tables are partitioned by the same column and number, a transaction needs one partition of each, in the same order.', others)
FROM key WHERE others IS NOT NULL AND multi >= 0.05
UNION ALL
SELECT "table", 'transactions',
    format('%s %% of the transactions wait for their client between statements, %s %% write below SERIALIZABLE: partcc is not chosen here. One function or one round trip a transaction would allow it.',
        round(100 * idle::numeric), round(100 * weak::numeric))
FROM key WHERE (idle > 0.05 OR weak > 0.05) AND clash > 0.1
UNION ALL
SELECT "table", 'groups',
    format('Transactions of %s have failed %s times and waited %s s for those of %s, which %s. %s', coalesce('group ' || name, 'no group'), failures,
        round(wait_ms::numeric / 1000, 1), coalesce('group ' || other, 'no group'),
        CASE kind WHEN 'rw' THEN 'read or write what they use' WHEN 'ww' THEN 'write the same rows' ELSE 'lock the same partition' END,
        CASE kind WHEN 'rw' THEN 'A SELECT ... FOR UPDATE of rows that are written afterwards waits where a plain one fails.'
            WHEN 'ww' THEN 'The later in its transaction such a row is written, the shorter it is locked.'
            ELSE 'Rows that only one of them uses could have partitions of their own.' END)
FROM (SELECT *, row_number() OVER (PARTITION BY "table" ORDER BY failures + waits DESC) AS place FROM mixedcc.group_conflict_rows()) c
WHERE place = 1 AND failures + waits >= 20;
COMMENT ON VIEW mixedcc.advice IS 'what would make tables run better, from the load that was sampled: partition keys, annotations, partcc';
COMMENT ON COLUMN mixedcc.advice."table" IS 'the table';
COMMENT ON COLUMN mixedcc.advice.topic IS 'partcc, annotate, partition_by, partitions, align, transactions or groups';

CREATE VIEW mixedcc.metrics AS
WITH parts AS MATERIALIZED (
    SELECT p."table", n.nspname::text AS schemaname, c.relname::text AS relname, p.protocol, p.pinned, p.rows, p.versions, p.reads, p.writes,
        p.commits, p.aborts AS aborts_by, p.waits AS waits_by, s.aborts, s.waits, s.wait_ms, s.sampled, s.retry_share
    FROM mixedcc.partitions p JOIN mixedcc.partition_stats s USING ("table", partition)
        JOIN pg_catalog.pg_class c ON c.oid = p."table" JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
), sizes AS MATERIALIZED (
    SELECT "table", bytes, missing_bytes FROM mixedcc.table_rows()
), tables AS (
    SELECT "table", schemaname, relname, count(*) AS partitions, count(*) FILTER (WHERE pinned) AS pinned, sum(rows) AS rows, sum(versions) AS versions,
        sum(reads) AS reads, sum(writes) AS writes, sum(commits) AS commits, sum(aborts) AS aborts, sum(waits) AS waits, sum(wait_ms) AS wait_ms,
        sum(sampled) AS sampled, sum(round(sampled * coalesce(retry_share, 0))) AS retries
    FROM parts GROUP BY "table", schemaname, relname
)
SELECT m.name, m.type, m.help, pg_catalog.current_database()::text AS datname, t.schemaname, t.relname, NULL::text AS protocol, NULL::text AS reason,
    NULL::text AS statement, m.value
FROM tables t JOIN sizes z USING ("table") CROSS JOIN LATERAL (VALUES
    ('mixedcc_table_partitions', 'gauge', 'Partitions of the table', t.partitions::float8),
    ('mixedcc_table_pinned_partitions', 'gauge', 'Partitions whose protocol was set by mixedcc.set_protocol', t.pinned::float8),
    ('mixedcc_table_rows', 'gauge', 'Committed rows', t.rows::float8),
    ('mixedcc_table_versions', 'gauge', 'Newest versions, with those of deleted rows that were not vacuumed yet', t.versions::float8),
    ('mixedcc_table_bytes', 'gauge', 'Bytes in shared memory: records, newest versions, primary index', z.bytes::float8),
    ('mixedcc_table_reads_total', 'counter', 'Rows read', t.reads::float8),
    ('mixedcc_table_writes_total', 'counter', 'Rows written by committed transactions', t.writes::float8),
    ('mixedcc_table_commits_total', 'counter', 'Transactions that used a partition and committed, once for each partition', t.commits::float8),
    ('mixedcc_table_aborts_total', 'counter', 'Transactions that failed because of the table', t.aborts::float8),
    ('mixedcc_table_waits_total', 'counter', 'Sleeps for locks of the table', t.waits::float8),
    ('mixedcc_table_wait_seconds_total', 'counter', 'Time slept so', t.wait_ms / 1000),
    ('mixedcc_table_sampled_total', 'counter', 'Sampled transactions that used a partition and committed, once for each partition', t.sampled::float8),
    ('mixedcc_table_sampled_retries_total', 'counter', 'Those of them that followed a failure in their session because of other transactions', t.retries)
) m(name, type, help, value)
UNION ALL
SELECT 'mixedcc_aborts_total', 'counter', 'Transactions that failed because of the table, by reason; a reason without failures has no row',
    pg_catalog.current_database()::text, p.schemaname, p.relname, NULL, a.key, NULL, sum(a.value::float8)
FROM parts p CROSS JOIN LATERAL pg_catalog.jsonb_each_text(p.aborts_by) a GROUP BY p.schemaname, p.relname, a.key
UNION ALL
SELECT 'mixedcc_waits_total', 'counter', 'Sleeps for locks of the table, by the kind of lock; a kind without sleeps has no row',
    pg_catalog.current_database()::text, p.schemaname, p.relname, NULL, w.key, NULL, sum(w.value::float8)
FROM parts p CROSS JOIN LATERAL pg_catalog.jsonb_each_text(p.waits_by) w GROUP BY p.schemaname, p.relname, w.key
UNION ALL
SELECT 'mixedcc_protocol_partitions', 'gauge', 'Partitions by the protocol in use; two protocols joined by + are in the middle of a switch',
    pg_catalog.current_database()::text, p.schemaname, p.relname, p.protocol, NULL, NULL, count(*)::float8
FROM parts p GROUP BY p.schemaname, p.relname, p.protocol
UNION ALL
SELECT m.name, m.type, m.help, pg_catalog.current_database()::text, NULL, NULL, NULL, NULL, NULL, m.value
FROM (SELECT count(bytes) AS loaded, count(missing_bytes) AS missing FROM sizes) z
    CROSS JOIN (SELECT count(*) AS open, coalesce(max(extract(epoch FROM pg_catalog.clock_timestamp() - asked_at)), 0) AS oldest FROM mixedcc.switches) s
    CROSS JOIN LATERAL (VALUES
    ('mixedcc_database_tables', 'gauge', 'Tables in memory', z.loaded::float8),
    ('mixedcc_database_missing_tables', 'gauge', 'Tables whose rows the last start could not load', z.missing::float8),
    ('mixedcc_database_switches', 'gauge', 'Switches of protocols that are asked for or under way', s.open::float8),
    ('mixedcc_database_oldest_switch_seconds', 'gauge', 'Age of the oldest of these switches', greatest(s.oldest, 0)::float8)
) m(name, type, help, value)
UNION ALL
SELECT m.name, m.type, m.help, NULL, NULL, NULL, NULL, NULL, NULL, m.value
FROM mixedcc.memory g CROSS JOIN LATERAL (VALUES
    ('mixedcc_memory_size_bytes', 'gauge', 'Size of the shared memory for all mixedcc tables', g.total_bytes::float8),
    ('mixedcc_memory_used_bytes', 'gauge', 'Pages that hold rows and other objects', g.used_bytes::float8),
    ('mixedcc_memory_free_bytes', 'gauge', 'Pages that are free', g.free_bytes::float8),
    ('mixedcc_memory_live_bytes', 'gauge', 'Objects in the pages that are used', g.live_bytes::float8),
    ('mixedcc_memory_warnings_total', 'counter', 'How often the use passed 80 or 95 %', (SELECT coalesce(max(number) + 1, 0) FROM mixedcc.memory_warnings)::float8)
) m(name, type, help, value)
UNION ALL
SELECT m.name, m.type, m.help, NULL, NULL, NULL, NULL, NULL, NULL, m.value
FROM mixedcc.coordinator c CROSS JOIN LATERAL (VALUES
    ('mixedcc_coordinator_up', 'gauge', 'Does the coordinator run (1), or not (0)?', (c.pid IS NOT NULL)::int::float8),
    ('mixedcc_coordinator_heartbeat_age_seconds', 'gauge', 'Time since its last pass, at most about a second',
        coalesce(greatest(extract(epoch FROM pg_catalog.clock_timestamp() - c.last_pass_at), 0), 0)::float8),
    ('mixedcc_coordinator_starts_total', 'counter', 'Its starts', c.starts::float8),
    ('mixedcc_coordinator_passes_total', 'counter', 'Its passes over all partitions', c.passes::float8),
    ('mixedcc_coordinator_switches', 'gauge', 'Switches under way in all databases', c.under_way::float8)
) m(name, type, help, value)
UNION ALL
SELECT m.name, m.type, m.help, NULL, NULL, NULL, NULL, NULL, NULL, m.value
FROM mixedcc.durability d CROSS JOIN LATERAL (VALUES
    ('mixedcc_durability_up', 'gauge', 'Does the companion run (1), or not (0)?', (d.pid IS NOT NULL)::int::float8),
    ('mixedcc_durability_gate_open', 'gauge', 'May commits into permanent tables go on (1), or do they wait (0)?', (d.shut IS NULL)::int::float8),
    ('mixedcc_durability_held_seconds', 'gauge', 'How long a checkpoint has waited for images',
        coalesce(greatest(extract(epoch FROM pg_catalog.clock_timestamp() - d.held_since), 0), 0)::float8),
    ('mixedcc_durability_round_seconds', 'gauge', 'Duration of the last complete round',
        coalesce(greatest(extract(epoch FROM d.round_ended_at - d.round_started_at), 0), 0)::float8),
    ('mixedcc_durability_dirty_tables', 'gauge', 'Tables with rows that are in WAL and in no image', d.dirty_tables::float8),
    ('mixedcc_durability_dirty_rows', 'gauge', 'Rows that are in WAL and in no image', d.dirty_rows::float8),
    ('mixedcc_durability_oldest_commit_seconds', 'gauge', 'Age of the oldest commit that waits for a flush or a standby; 0 where there is none, or it is not shown to this user',
        coalesce(greatest(extract(epoch FROM pg_catalog.clock_timestamp() - d.commit_since), 0), 0)::float8),
    ('mixedcc_durability_rounds_total', 'counter', 'Complete rounds of the companion', d.rounds::float8),
    ('mixedcc_durability_rows_total', 'counter', 'Rows that they imaged', d.rows::float8),
    ('mixedcc_durability_pages_total', 'counter', 'Pages that they wrote', d.pages::float8),
    ('mixedcc_durability_wal_bytes_total', 'counter', 'WAL that they wrote', d.wal_bytes::float8),
    ('mixedcc_durability_errors_total', 'counter', 'Rounds that failed', d.errors::float8)
) m(name, type, help, value)
UNION ALL
SELECT m.name, m.type, m.help, NULL, NULL, NULL, NULL, NULL, NULL, m.value
FROM mixedcc.cluster_row() c LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = c.holder CROSS JOIN LATERAL (VALUES
    ('mixedcc_cluster_commits_total', 'counter', 'Commits of transactions that wrote mixedcc tables, about', c.commits::float8),
    ('mixedcc_cluster_switches_total', 'counter', 'Complete switches of protocols since the start of the server', c.switches::float8),
    ('mixedcc_cluster_horizon_commits', 'gauge', 'Commits since the oldest snapshot: the versions that they replaced stay in memory', c.held_commits::float8),
    ('mixedcc_cluster_horizon_age_seconds', 'gauge', 'Age of the transaction with the oldest snapshot; 0 where it has ended, or is not shown to this user',
        coalesce(greatest(extract(epoch FROM pg_catalog.clock_timestamp() - a.xact_start), 0), 0)::float8)
) m(name, type, help, value)
UNION ALL
SELECT 'mixedcc_statements_total', 'counter', 'Statements on mixedcc tables of all databases: by kind those that took the executor bypass, by reason those that did not',
    NULL, NULL, NULL, NULL, b.reason, b.statement, b.statements::float8
FROM mixedcc.bypass b;
COMMENT ON VIEW mixedcc.metrics IS 'all that exporters need, as metrics: a name that stays, a type, labels, a value';
COMMENT ON COLUMN mixedcc.metrics.name IS 'name of the metric, as Prometheus has it; stays the same in later versions';
COMMENT ON COLUMN mixedcc.metrics.type IS 'counter: it grows, and begins at 0 again after a reset or a restart; gauge: it may fall';
COMMENT ON COLUMN mixedcc.metrics.help IS 'what it is';
COMMENT ON COLUMN mixedcc.metrics.datname IS 'label: the database; null: a metric of the cluster, the same in each database';
COMMENT ON COLUMN mixedcc.metrics.schemaname IS 'label: schema of the table, where the metric is that of one';
COMMENT ON COLUMN mixedcc.metrics.relname IS 'label: name of the table, where the metric is that of one';
COMMENT ON COLUMN mixedcc.metrics.protocol IS 'label: the protocol, where the metric is that of one';
COMMENT ON COLUMN mixedcc.metrics.reason IS 'label: of an abort, a wait, or a statement that did not take the bypass';
COMMENT ON COLUMN mixedcc.metrics.statement IS 'label: kind of a statement that took the bypass';
COMMENT ON COLUMN mixedcc.metrics.value IS 'the value; seconds and bytes, without multiples';
GRANT SELECT ON mixedcc.horizon, mixedcc.metrics TO PUBLIC;

-- Options as they are.

CREATE FUNCTION mixedcc.can_hash(type oid) RETURNS boolean
    AS 'MODULE_PATHNAME', 'can_hash_wrapper' LANGUAGE C STABLE STRICT;
COMMENT ON FUNCTION mixedcc.can_hash(oid) IS 'for the view mixedcc.table_options: can a column of this type be in a hashed partition key?';

CREATE VIEW mixedcc.table_options AS
WITH given AS (
    SELECT c.oid, o.option, o.value FROM pg_catalog.pg_class c JOIN pg_catalog.pg_am a ON a.oid = c.relam AND a.amname = 'mixedcc'
        LEFT JOIN mixedcc.options o ON o."table" = c.oid
    WHERE c.relkind = 'r'
), tables AS (
    SELECT oid, max(value) FILTER (WHERE option = 'bounds') AS bounds, max(value) FILTER (WHERE option = 'partition_method') AS method,
        max(value) FILTER (WHERE option = 'protocol') AS protocol
    FROM given GROUP BY oid
)
SELECT t.oid::regclass AS "table", o.option, coalesce(g.value, CASE
        WHEN o.setting IS NOT NULL AND NOT (o.option = 'adaptive' AND t.protocol IS NOT NULL) THEN nullif(s.setting, '')
        WHEN o.option = 'adaptive' THEN 'off'
        WHEN o.option = 'partitions' THEN r.partitions::text
        WHEN o.option = 'partition_method' AND t.bounds IS NOT NULL THEN 'range'
        WHEN o.option = 'partition_by' THEN (
            SELECT string_agg(quote_ident(a.attname), '+' ORDER BY k.n) FROM pg_catalog.pg_index i, pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, n),
                pg_catalog.pg_attribute a
            WHERE i.indrelid = t.oid AND i.indisprimary AND i.indisvalid AND k.n <= i.indnkeyatts AND a.attrelid = t.oid AND a.attnum = k.attnum
                AND (coalesce(t.method, CASE WHEN t.bounds IS NOT NULL THEN 'range' END, 'hash') = 'range' OR mixedcc.can_hash(a.atttypid)))
        ELSE o.built_in END) AS value,
    CASE WHEN g.value IS NOT NULL THEN 'option' WHEN o.setting IS NOT NULL AND NOT (o.option = 'adaptive' AND t.protocol IS NOT NULL) THEN 'setting' ELSE 'default' END AS source,
    o.unit, o.setting
FROM tables t CROSS JOIN (VALUES
    ('partitions', NULL, NULL, NULL), ('partition_by', NULL, NULL, NULL), ('partition_method', 'hash', NULL, NULL), ('bounds', NULL, NULL, NULL),
    ('protocol', 'occ', NULL, NULL), ('waiting_policy', 'wait', NULL, NULL), ('adaptive', NULL, 'mixedcc.adaptive', NULL),
    ('candidates', NULL, 'mixedcc.adaptive_candidates', NULL), ('adaptive_interval', NULL, 'mixedcc.adaptive_interval', 'ms'),
    ('adaptive_min_gain', NULL, 'mixedcc.adaptive_min_gain', '%'), ('adaptive_max_loss', NULL, 'mixedcc.adaptive_max_loss', '%'),
    ('adaptive_confirm', NULL, 'mixedcc.adaptive_confirm', NULL), ('adaptive_min_samples', NULL, 'mixedcc.adaptive_min_samples', NULL),
    ('adaptive_forget', NULL, 'mixedcc.adaptive_forget', 's'), ('partcc_max_share', NULL, 'mixedcc.partcc_max_share', '%')
) o(option, built_in, setting, unit) LEFT JOIN given g ON g.oid = t.oid AND g.option = o.option
    LEFT JOIN mixedcc.table_rows() r ON r."table" = t.oid LEFT JOIN pg_catalog.pg_settings s ON s.name = o.setting;
COMMENT ON VIEW mixedcc.table_options IS 'every option of each mixedcc table: its value, and where that comes from';
COMMENT ON COLUMN mixedcc.table_options."table" IS 'the table';
COMMENT ON COLUMN mixedcc.table_options.option IS 'name of the option';
COMMENT ON COLUMN mixedcc.table_options.value IS 'its value; partitions and partition_by as they are, where the options do not say; null: none (candidates: all)';
COMMENT ON COLUMN mixedcc.table_options.source IS 'option: given by WITH or ALTER TABLE; setting: of the cluster, of the column setting; default: built in, or from the primary key';
COMMENT ON COLUMN mixedcc.table_options.unit IS 'unit of the value';
COMMENT ON COLUMN mixedcc.table_options.setting IS 'the setting that counts where the table has no option';
GRANT SELECT ON mixedcc.table_options TO PUBLIC;

COMMENT ON ACCESS METHOD mixedcc IS 'in-memory tables with mixed concurrency control, serializable; the view mixedcc.table_options has the options of tables';

-- Capacity.

CREATE FUNCTION mixedcc.version_bytes(tuple_bytes int) RETURNS int
    AS 'MODULE_PATHNAME', 'version_bytes_wrapper' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION mixedcc.version_bytes(int) IS 'for mixedcc.estimate: shared memory of a version of a row whose tuple has so many bytes';

CREATE FUNCTION mixedcc.estimate("table" regclass, OUT rows bigint, OUT record_bytes bigint, OUT version_bytes bigint, OUT primary_index_bytes bigint,
        OUT durable_bytes bigint, OUT total_bytes bigint, OUT free_bytes bigint) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'estimate_wrapper' LANGUAGE C VOLATILE STRICT ROWS 1 SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION mixedcc.estimate(regclass) IS
    'how much of mixedcc.memory a heap table will need as a mixedcc table: rows, and bytes by what they are for, from a sample of about 2,000 pages; and how much is free';

-- The view has two columns more. It stays, with the views of users that depend on it.
ALTER FUNCTION mixedcc.partition_rows() RENAME TO partition_rows_of_0_1_0;
CREATE FUNCTION mixedcc.partition_rows(OUT "table" regclass, OUT partition int, OUT protocol text, OUT waiting_policy text,
        OUT rows bigint, OUT versions bigint, OUT bytes bigint, OUT reads bigint, OUT writes bigint, OUT commits bigint,
        OUT waits text, OUT aborts text, OUT pinned bool, OUT frozen bigint, OUT failed_thaws bigint) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'partition_rows_wrapper' LANGUAGE C VOLATILE ROWS 100;
COMMENT ON FUNCTION mixedcc.partition_rows() IS 'source of the view mixedcc.partitions';
CREATE OR REPLACE VIEW mixedcc.partitions AS
    SELECT "table", partition, protocol, waiting_policy, rows, versions, bytes, reads, writes, commits, aborts::jsonb AS aborts,
        waits::jsonb AS waits, pinned, frozen, failed_thaws
    FROM mixedcc.partition_rows();
DROP FUNCTION mixedcc.partition_rows_of_0_1_0();
COMMENT ON COLUMN mixedcc.partitions.frozen IS 'SERIALIZABLE transactions that read here and went on, or began, as snapshots';
COMMENT ON COLUMN mixedcc.partitions.failed_thaws IS 'writes and row locks of such transactions that failed for a conflict here';

-- The report.

CREATE FUNCTION mixedcc.report(since timestamptz DEFAULT now() - interval '1 day', until timestamptz DEFAULT now()) RETURNS text
    AS 'MODULE_PATHNAME', 'report_wrapper' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION mixedcc.report(timestamptz, timestamptz) IS
    'one HTML page on the load of the mixedcc tables of this database in this time: protocols, throughput, failures, waits, switches, memory, advice; from the history that the coordinator keeps (mixedcc.history_interval)';
REVOKE ALL ON FUNCTION mixedcc.report(timestamptz, timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mixedcc.report(timestamptz, timestamptz) TO pg_monitor;

-- The protocol mocc.

COMMENT ON FUNCTION mixedcc.set_protocol(regclass, text, int) IS
    'asks the coordinator to switch a partition, or all of a table, to a protocol (partcc, occ, 2pl, mocc) and pins it; waits for no transaction but one that holds the table''s ACCESS EXCLUSIVE lock, and is not undone by ROLLBACK; who holds that lock itself switches at once';
COMMENT ON COLUMN mixedcc.partitions.protocol IS 'protocol in use: partcc, occ, 2pl or mocc; two joined by + in the middle of a switch';

-- Functions in SQL find no operators by the search_path of their caller.

ALTER FUNCTION mixedcc.await_switches(regclass, interval) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION mixedcc.annotation_hints(regclass, text[]) SET search_path = pg_catalog, pg_temp;

-- A switch between occ and mocc has one step.
COMMENT ON COLUMN mixedcc.switches.step IS 'asked, upgrade (both protocols are in use, transactions of the old one may run), degrade (the new one is, transactions of before may run), or stop all';
COMMENT ON COLUMN mixedcc.switches.step_at IS 'when its step began';
COMMENT ON COLUMN mixedcc.switch_history.new IS 'protocol after; the same if the switch was taken back in its first step';
COMMENT ON COLUMN mixedcc.switch_history.upgrade_ms IS 'duration of its first step, milliseconds; near 0 between occ and mocc, which have one step';
