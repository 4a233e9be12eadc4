-- Protocols and partitions.

CREATE FUNCTION mixedcc.set_protocol("table" regclass, protocol text, partition int DEFAULT NULL) RETURNS void
    AS 'MODULE_PATHNAME', 'set_protocol_wrapper' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.set_protocol(regclass, text, int) IS
    'asks the coordinator to switch a partition, or all of a table, to a protocol (partcc, occ, 2pl, mocc) and pins it; waits for no transaction but one that holds the table''s ACCESS EXCLUSIVE lock, and is not undone by ROLLBACK; who holds that lock itself switches at once';

CREATE FUNCTION mixedcc.unpin("table" regclass, partition int DEFAULT NULL) RETURNS void
    AS 'MODULE_PATHNAME', 'unpin_wrapper' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.unpin(regclass, int) IS
    'takes back the pin of set_protocol from a partition, or all of a table; the protocol stays; not undone by ROLLBACK';

CREATE FUNCTION mixedcc.await_switches_ms("table" regclass, timeout_ms float8) RETURNS bool
    AS 'MODULE_PATHNAME', 'await_switches_wrapper' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.await_switches_ms(regclass, float8) IS 'source of mixedcc.await_switches';

CREATE FUNCTION mixedcc.await_switches("table" regclass DEFAULT NULL, timeout interval DEFAULT '10 s') RETURNS bool
    LANGUAGE SQL VOLATILE SET search_path = pg_catalog, pg_temp AS $$ SELECT mixedcc.await_switches_ms("table", extract(epoch FROM timeout)::float8 * 1000) $$;
COMMENT ON FUNCTION mixedcc.await_switches(regclass, interval) IS
    'waits until no switch is under way in a table, or in all tables of this database; false if the time is over before';

CREATE FUNCTION mixedcc.declare_partition("table" regclass, VARIADIC key "any") RETURNS void
    AS 'MODULE_PATHNAME', 'declare_partition_wrapper' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.declare_partition(regclass, "any") IS
    'declares that this SERIALIZABLE transaction will use the partition of this key, which partcc then locks now; declare at the start of the transaction, and in the same order in all transactions';

CREATE FUNCTION mixedcc.partition_rows(OUT "table" regclass, OUT partition int, OUT protocol text, OUT waiting_policy text,
        OUT rows bigint, OUT versions bigint, OUT bytes bigint, OUT reads bigint, OUT writes bigint, OUT commits bigint,
        OUT waits text, OUT aborts text, OUT pinned bool, OUT frozen bigint, OUT failed_thaws bigint) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'partition_rows_wrapper' LANGUAGE C VOLATILE ROWS 100;
COMMENT ON FUNCTION mixedcc.partition_rows() IS 'source of the view mixedcc.partitions';

CREATE VIEW mixedcc.partitions AS
    SELECT "table", partition, protocol, waiting_policy, rows, versions, bytes, reads, writes, commits, aborts::jsonb AS aborts,
        waits::jsonb AS waits, pinned, frozen, failed_thaws
    FROM mixedcc.partition_rows();
COMMENT ON VIEW mixedcc.partitions IS 'partitions of the mixedcc tables of this database, their protocols and counters';
COMMENT ON COLUMN mixedcc.partitions."table" IS 'the table';
COMMENT ON COLUMN mixedcc.partitions.partition IS 'number of the partition, from 0';
COMMENT ON COLUMN mixedcc.partitions.protocol IS 'protocol in use: partcc, occ, 2pl or mocc; two joined by + in the middle of a switch';
COMMENT ON COLUMN mixedcc.partitions.waiting_policy IS 'what 2pl does when a row lock conflicts: wait, no_wait or wait_die';
COMMENT ON COLUMN mixedcc.partitions.rows IS 'committed rows';
COMMENT ON COLUMN mixedcc.partitions.versions IS 'newest versions, with those of deleted rows that were not vacuumed yet';
COMMENT ON COLUMN mixedcc.partitions.bytes IS 'memory of these versions';
COMMENT ON COLUMN mixedcc.partitions.reads IS 'rows read';
COMMENT ON COLUMN mixedcc.partitions.writes IS 'rows written by committed transactions';
COMMENT ON COLUMN mixedcc.partitions.commits IS 'transactions that used the partition and committed';
COMMENT ON COLUMN mixedcc.partitions.aborts IS 'transactions that failed because of this partition, by reason: those of serialization failures, deadlock, wait_given_up';
COMMENT ON COLUMN mixedcc.partitions.waits IS 'sleeps for locks, by what was slept for: row, range, reader (a transaction that has read where one writes), partition';
COMMENT ON COLUMN mixedcc.partitions.pinned IS 'was the protocol set by mixedcc.set_protocol?';
COMMENT ON COLUMN mixedcc.partitions.frozen IS 'SERIALIZABLE transactions that read here and went on, or began, as snapshots';
COMMENT ON COLUMN mixedcc.partitions.failed_thaws IS 'writes and row locks of such transactions that failed for a conflict here';

CREATE FUNCTION mixedcc.reset_stats("table" regclass DEFAULT NULL) RETURNS void
    AS 'MODULE_PATHNAME', 'reset_stats_wrapper' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.reset_stats(regclass) IS
    'sets what is counted of the transactions of a table''s partitions to zero; without a table, of all tables of this database that are the user''s; a member of mixedcc.admin_role may reset all';

-- Statistics.

CREATE FUNCTION mixedcc.partition_stat_rows(OUT "table" regclass, OUT partition int, OUT sampled bigint, OUT read_share float8, OUT records float8,
        OUT multi_share float8, OUT partitions float8, OUT partners text, OUT conflict_rate float8, OUT serializable_share float8,
        OUT weak_writer_share float8, OUT duration_ms float8, OUT round_trips float8, OUT idle_share float8, OUT retry_share float8,
        OUT aborts bigint, OUT waits bigint, OUT wait_ms float8, OUT cpu_ms float8, OUT lost_share float8, OUT declared_share float8,
        OUT ordered_share float8) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'partition_stat_rows_wrapper' LANGUAGE C VOLATILE ROWS 100;
COMMENT ON FUNCTION mixedcc.partition_stat_rows() IS 'source of the view mixedcc.partition_stats';

CREATE VIEW mixedcc.partition_stats AS
    SELECT "table", partition, sampled, read_share, records, multi_share, partitions, partners::jsonb AS partners, conflict_rate,
        serializable_share, weak_writer_share, duration_ms, round_trips, idle_share, retry_share, aborts, waits, wait_ms,
        cpu_ms, lost_share, declared_share, ordered_share
    FROM mixedcc.partition_stat_rows();
COMMENT ON VIEW mixedcc.partition_stats IS 'features of the load of each partition, from a sample of the transactions that committed';
COMMENT ON COLUMN mixedcc.partition_stats."table" IS 'the table';
COMMENT ON COLUMN mixedcc.partition_stats.partition IS 'number of the partition';
COMMENT ON COLUMN mixedcc.partition_stats.sampled IS 'sampled transactions that used the partition and committed: one in mixedcc.sample_every, and more, up to all, while the cluster commits fewer than 1500 times that a second';
COMMENT ON COLUMN mixedcc.partition_stats.read_share IS 'share of reads among their accesses to its rows';
COMMENT ON COLUMN mixedcc.partition_stats.records IS 'rows that a transaction reads and writes in it, on average';
COMMENT ON COLUMN mixedcc.partition_stats.multi_share IS 'share of transactions that use other partitions too';
COMMENT ON COLUMN mixedcc.partition_stats.partitions IS 'partitions that a transaction uses, on average';
COMMENT ON COLUMN mixedcc.partition_stats.partners IS 'partitions that are used together with it, most frequent first';
COMMENT ON COLUMN mixedcc.partition_stats.conflict_rate IS 'share of accesses to rows that another session had marked in the same second, one of the two a write; does not depend on the protocol';
COMMENT ON COLUMN mixedcc.partition_stats.serializable_share IS 'share of transactions at SERIALIZABLE';
COMMENT ON COLUMN mixedcc.partition_stats.weak_writer_share IS 'share of transactions of lower levels that wrote into it';
COMMENT ON COLUMN mixedcc.partition_stats.duration_ms IS 'time from their first use of a mixedcc table to their end, on average';
COMMENT ON COLUMN mixedcc.partition_stats.round_trips IS 'statements of the client on mixedcc tables in a transaction, on average';
COMMENT ON COLUMN mixedcc.partition_stats.idle_share IS 'share of transactions with more than one such statement';
COMMENT ON COLUMN mixedcc.partition_stats.retry_share IS 'share of transactions that followed a failure in their session: of serialization, a deadlock, or a wait that was given up';
COMMENT ON COLUMN mixedcc.partition_stats.aborts IS 'transactions that failed because of the partition (all, not sampled)';
COMMENT ON COLUMN mixedcc.partition_stats.waits IS 'sleeps for its locks, those of its rows, and of ranges (all, not sampled)';
COMMENT ON COLUMN mixedcc.partition_stats.wait_ms IS 'time slept so, milliseconds';
COMMENT ON COLUMN mixedcc.partition_stats.cpu_ms IS 'processor time of a committed transaction in that time, failed attempts included, on average';
COMMENT ON COLUMN mixedcc.partition_stats.lost_share IS 'share of the time that went into attempts that failed because of others';
COMMENT ON COLUMN mixedcc.partition_stats.declared_share IS 'share of transactions that declared partitions, by call or annotation';
COMMENT ON COLUMN mixedcc.partition_stats.ordered_share IS 'share of transactions that accessed their rows in the order of the rows'' numbers, and so do not deadlock with each other';

-- Switches.

CREATE FUNCTION mixedcc.switch_rows(OUT "table" regclass, OUT partition int, OUT protocol text, OUT old text, OUT new text, OUT step text,
        OUT why text, OUT asked_by oid, OUT asked_at float8, OUT began_at float8, OUT step_at float8, OUT waits_for int[]) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'switch_rows_wrapper' LANGUAGE C VOLATILE ROWS 10;
COMMENT ON FUNCTION mixedcc.switch_rows() IS 'source of the view mixedcc.switches';

CREATE VIEW mixedcc.switches AS
    SELECT "table", partition, protocol, old, new, step, why, CASE WHEN asked_by IS NULL THEN 'coordinator' ELSE pg_catalog.pg_get_userbyid(asked_by)::text END AS asked_by,
        to_timestamp(asked_at) AS asked_at, to_timestamp(began_at) AS began_at, to_timestamp(step_at) AS step_at, waits_for
    FROM mixedcc.switch_rows();
COMMENT ON VIEW mixedcc.switches IS 'switches of partitions of this database that are under way or asked for';
COMMENT ON COLUMN mixedcc.switches."table" IS 'the table';
COMMENT ON COLUMN mixedcc.switches.partition IS 'number of the partition';
COMMENT ON COLUMN mixedcc.switches.protocol IS 'protocol in use';
COMMENT ON COLUMN mixedcc.switches.old IS 'protocol before the switch';
COMMENT ON COLUMN mixedcc.switches.new IS 'protocol that is wanted; another than the one that the step leads to, if it was asked for later';
COMMENT ON COLUMN mixedcc.switches.step IS 'asked, upgrade (both protocols are in use, transactions of the old one may run), degrade (the new one is, transactions of before may run), or stop all';
COMMENT ON COLUMN mixedcc.switches.why IS 'asked: by mixedcc.set_protocol; chosen, tried, or taken back: by the coordinator';
COMMENT ON COLUMN mixedcc.switches.asked_by IS 'role that asked for it; coordinator: nobody did';
COMMENT ON COLUMN mixedcc.switches.asked_at IS 'time of the last request for this partition';
COMMENT ON COLUMN mixedcc.switches.began_at IS 'when the switch began';
COMMENT ON COLUMN mixedcc.switches.step_at IS 'when its step began';
COMMENT ON COLUMN mixedcc.switches.waits_for IS 'processes whose transactions have to end before the step is complete';

CREATE FUNCTION mixedcc.switch_history_rows(OUT number bigint, OUT "table" regclass, OUT partition int, OUT old text, OUT new text,
        OUT why text, OUT asked_by oid, OUT asked_at float8, OUT began_at float8, OUT ended_at float8, OUT upgrade_ms float8,
        OUT degrade_ms float8) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'switch_history_rows_wrapper' LANGUAGE C VOLATILE ROWS 100;
COMMENT ON FUNCTION mixedcc.switch_history_rows() IS 'source of the view mixedcc.switch_history';

CREATE FUNCTION mixedcc.switch_names(OUT number bigint, OUT name text) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'switch_names_wrapper' LANGUAGE C VOLATILE ROWS 100;
COMMENT ON FUNCTION mixedcc.switch_names() IS 'for the view mixedcc.switch_history: names that tables had then';

CREATE VIEW mixedcc.switch_history AS
    SELECT number, "table", partition, old, new, why,
        CASE WHEN asked_by IS NULL THEN 'coordinator' ELSE pg_catalog.pg_get_userbyid(asked_by)::text END AS asked_by,
        to_timestamp(asked_at) AS asked_at, to_timestamp(began_at) AS began_at, to_timestamp(ended_at) AS ended_at, upgrade_ms, degrade_ms, n.name
    FROM mixedcc.switch_history_rows() LEFT JOIN mixedcc.switch_names() n USING (number);
COMMENT ON VIEW mixedcc.switch_history IS 'the last switches of partitions that are complete: of the last 256 of the cluster, those of this database';
COMMENT ON COLUMN mixedcc.switch_history.number IS 'number of the switch in the cluster, since the start of the server';
COMMENT ON COLUMN mixedcc.switch_history."table" IS 'the table; null if it was dropped or rewritten since';
COMMENT ON COLUMN mixedcc.switch_history.partition IS 'number of the partition';
COMMENT ON COLUMN mixedcc.switch_history.old IS 'protocol before';
COMMENT ON COLUMN mixedcc.switch_history.new IS 'protocol after; the same if the switch was taken back in its first step';
COMMENT ON COLUMN mixedcc.switch_history.why IS 'asked: by mixedcc.set_protocol; at once: by it, with the table locked; chosen, tried, or taken back: by the coordinator';
COMMENT ON COLUMN mixedcc.switch_history.asked_by IS 'role that asked for it; coordinator: nobody did';
COMMENT ON COLUMN mixedcc.switch_history.asked_at IS 'when it was asked for';
COMMENT ON COLUMN mixedcc.switch_history.began_at IS 'when it began';
COMMENT ON COLUMN mixedcc.switch_history.ended_at IS 'when it was complete';
COMMENT ON COLUMN mixedcc.switch_history.upgrade_ms IS 'duration of its first step, milliseconds; near 0 between occ and mocc, which have one step';
COMMENT ON COLUMN mixedcc.switch_history.degrade_ms IS 'duration of its second step, milliseconds';
COMMENT ON COLUMN mixedcc.switch_history.name IS 'name that the table had then: database.schema.table';

CREATE FUNCTION mixedcc.coordinator_row(OUT pid int, OUT started_at float8, OUT last_pass_at float8, OUT passes bigint, OUT starts bigint,
        OUT under_way bigint) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'coordinator_row_wrapper' LANGUAGE C VOLATILE ROWS 1;
COMMENT ON FUNCTION mixedcc.coordinator_row() IS 'source of the view mixedcc.coordinator';

CREATE VIEW mixedcc.coordinator AS
    SELECT pid, to_timestamp(started_at) AS started_at, to_timestamp(last_pass_at) AS last_pass_at, passes, starts, under_way
    FROM mixedcc.coordinator_row();
COMMENT ON VIEW mixedcc.coordinator IS 'the background worker that switches partitions, for all databases';
COMMENT ON COLUMN mixedcc.coordinator.pid IS 'its process; null: it does not run at this moment';
COMMENT ON COLUMN mixedcc.coordinator.started_at IS 'when it started last';
COMMENT ON COLUMN mixedcc.coordinator.last_pass_at IS 'its heartbeat: at least once a second';
COMMENT ON COLUMN mixedcc.coordinator.passes IS 'passes over all partitions since the start of the server';
COMMENT ON COLUMN mixedcc.coordinator.starts IS 'how often it was started';
COMMENT ON COLUMN mixedcc.coordinator.under_way IS 'switches under way after the last pass';

-- The executor bypass.

CREATE FUNCTION mixedcc.bypass_rows(OUT statement text, OUT reason text, OUT n bigint) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'bypass_rows_wrapper' LANGUAGE C VOLATILE ROWS 21;
COMMENT ON FUNCTION mixedcc.bypass_rows() IS 'source of the view mixedcc.bypass';

CREATE VIEW mixedcc.bypass AS SELECT statement, reason, n AS statements FROM mixedcc.bypass_rows();
COMMENT ON VIEW mixedcc.bypass IS 'statements on mixedcc tables that ran without the executor, and why others did not, of all databases';
COMMENT ON COLUMN mixedcc.bypass.statement IS 'kind of statement that took the bypass; null: of those that did not';
COMMENT ON COLUMN mixedcc.bypass.reason IS 'why they did not take it';
COMMENT ON COLUMN mixedcc.bypass.statements IS 'how many, since the start of the server or the last reset';

CREATE FUNCTION mixedcc.reset_bypass() RETURNS void AS 'MODULE_PATHNAME', 'reset_bypass_wrapper' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.reset_bypass() IS 'sets the counters of mixedcc.bypass to zero';

-- Sizes.

CREATE FUNCTION mixedcc.table_size("table" regclass) RETURNS bigint
    AS 'MODULE_PATHNAME', 'table_size_wrapper' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION mixedcc.table_size(regclass) IS 'bytes of a mixedcc table in shared memory, without its indexes';

CREATE FUNCTION mixedcc.memory_usage(OUT total_bytes bigint, OUT used_bytes bigint, OUT free_bytes bigint, OUT live_bytes bigint)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'memory_usage_wrapper' LANGUAGE C VOLATILE ROWS 1;
COMMENT ON FUNCTION mixedcc.memory_usage() IS 'source of the view mixedcc.memory';

CREATE VIEW mixedcc.memory AS SELECT * FROM mixedcc.memory_usage();
COMMENT ON VIEW mixedcc.memory IS 'shared memory of all mixedcc tables of the cluster';
COMMENT ON COLUMN mixedcc.memory.total_bytes IS 'size of the shared memory (mixedcc.memory)';
COMMENT ON COLUMN mixedcc.memory.used_bytes IS 'pages that hold rows and other objects';
COMMENT ON COLUMN mixedcc.memory.free_bytes IS 'pages that are free';
COMMENT ON COLUMN mixedcc.memory.live_bytes IS 'objects in the pages that are used';

-- The primary index.

CREATE FUNCTION mixedcc.primary_index("table" regclass, OUT index regclass, OUT usable boolean, OUT entries bigint,
        OUT dead bigint, OUT bytes bigint) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'primary_index_wrapper' LANGUAGE C VOLATILE STRICT ROWS 1;
COMMENT ON FUNCTION mixedcc.primary_index(regclass) IS
    'the primary index of a mixedcc table in shared memory: the PRIMARY KEY that it serves, whether it can be used now, its entries, those of dead rows, and its size';

CREATE FUNCTION mixedcc.check_primary_index("table" regclass) RETURNS bigint
    AS 'MODULE_PATHNAME', 'check_primary_index_wrapper' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION mixedcc.check_primary_index(regclass) IS
    'compares the rows of a mixedcc table with its primary index; returns the number of rows, 0 without such an index';

CREATE FUNCTION mixedcc.memory_node_rows(OUT node int, OUT system_node int, OUT total_bytes bigint, OUT used_bytes bigint, OUT free_bytes bigint)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'memory_node_rows_wrapper' LANGUAGE C VOLATILE ROWS 4;
COMMENT ON FUNCTION mixedcc.memory_node_rows() IS 'source of the view mixedcc.memory_nodes';

CREATE VIEW mixedcc.memory_nodes AS SELECT * FROM mixedcc.memory_node_rows();
COMMENT ON VIEW mixedcc.memory_nodes IS 'shared memory by memory node (mixedcc.numa); one row where it is not divided';
COMMENT ON COLUMN mixedcc.memory_nodes.node IS 'number of the node here: rows of partition n lie on node n modulo the number of nodes';
COMMENT ON COLUMN mixedcc.memory_nodes.system_node IS 'the operating system''s number of the node';
COMMENT ON COLUMN mixedcc.memory_nodes.total_bytes IS 'its part of the shared memory';
COMMENT ON COLUMN mixedcc.memory_nodes.used_bytes IS 'pages of it that hold rows and other objects';
COMMENT ON COLUMN mixedcc.memory_nodes.free_bytes IS 'pages of it that are free';

-- Logical ranges and scans.

CREATE FUNCTION mixedcc.range_rows(OUT "table" regclass, OUT index regclass, OUT range int, OUT lower text, OUT upper text,
        OUT version bigint, OUT scans bigint, OUT aborts bigint, OUT wraps bigint, OUT list_size int, OUT asleep boolean)
    RETURNS SETOF record AS 'MODULE_PATHNAME', 'range_rows_wrapper' LANGUAGE C VOLATILE ROWS 100;
COMMENT ON FUNCTION mixedcc.range_rows() IS 'source of the view mixedcc.ranges';

CREATE VIEW mixedcc.ranges AS SELECT * FROM mixedcc.range_rows();
COMMENT ON VIEW mixedcc.ranges IS 'logical ranges of the indexes that SERIALIZABLE transactions have scanned';
COMMENT ON COLUMN mixedcc.ranges."table" IS 'the table';
COMMENT ON COLUMN mixedcc.ranges.index IS 'the index whose keys are divided';
COMMENT ON COLUMN mixedcc.ranges.range IS 'number of the range, from 0';
COMMENT ON COLUMN mixedcc.ranges.lower IS 'first key of the range; null without the right to read the table';
COMMENT ON COLUMN mixedcc.ranges.upper IS 'key before which the range ends; null without the right to read the table';
COMMENT ON COLUMN mixedcc.ranges.version IS 'writes registered in the range since it was made';
COMMENT ON COLUMN mixedcc.ranges.scans IS 'scans that have read in the range';
COMMENT ON COLUMN mixedcc.ranges.aborts IS 'transactions that failed because of a write in what they had scanned here';
COMMENT ON COLUMN mixedcc.ranges.wraps IS 'transactions that failed because more writes came than the list holds';
COMMENT ON COLUMN mixedcc.ranges.list_size IS 'writes that the range remembers';
COMMENT ON COLUMN mixedcc.ranges.asleep IS 'no scan has used the index for about 10 seconds, and writers register again only after the next scan has begun';

CREATE FUNCTION mixedcc.predicate_rows(OUT "table" regclass, OUT index regclass, OUT partition int, OUT lower text, OUT upper text,
        OUT ranges int, OUT covered int) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'predicate_rows_wrapper' LANGUAGE C VOLATILE ROWS 10;
COMMENT ON FUNCTION mixedcc.predicate_rows() IS 'source of the view mixedcc.predicates';

CREATE VIEW mixedcc.predicates AS SELECT * FROM mixedcc.predicate_rows();
COMMENT ON VIEW mixedcc.predicates IS 'what this transaction has scanned and will validate when it commits';
COMMENT ON COLUMN mixedcc.predicates."table" IS 'the table';
COMMENT ON COLUMN mixedcc.predicates.index IS 'the index whose keys were scanned; null: all of a partition';
COMMENT ON COLUMN mixedcc.predicates.partition IS 'the partition, where the predicate is on one';
COMMENT ON COLUMN mixedcc.predicates.lower IS 'first key that is protected';
COMMENT ON COLUMN mixedcc.predicates.upper IS 'key before which the protection ends; (a, infinity) is after all keys that begin with a';
COMMENT ON COLUMN mixedcc.predicates.ranges IS 'logical ranges that it touches';
COMMENT ON COLUMN mixedcc.predicates.covered IS 'logical ranges that it covers, which are validated without looking at keys';

CREATE FUNCTION mixedcc.range_scan("row" anyelement, lower "any" DEFAULT NULL, upper "any" DEFAULT NULL,
        lower_inclusive boolean DEFAULT true, upper_inclusive boolean DEFAULT true,
        descending boolean DEFAULT false, max_rows bigint DEFAULT NULL) RETURNS SETOF anyelement
    AS 'MODULE_PATHNAME', 'range_scan_wrapper' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.range_scan(anyelement, "any", "any", boolean, boolean, boolean, bigint) IS
    'rows of a mixedcc table (NULL::table) by its key, between two bounds: a value, a ROW of the key''s first columns, or NULL for an open end; validated at commit at every isolation level';

-- Native access by the primary key.

CREATE FUNCTION mixedcc.get("row" anyelement, VARIADIC key "any") RETURNS anyelement
    AS 'MODULE_PATHNAME', 'mixedcc_get' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.get(anyelement, "any") IS
    'the row of a mixedcc table (NULL::table) with this primary key, or null; as SELECT reads it';

CREATE FUNCTION mixedcc.get_value("type" anyelement, "row" "any", "column" name, VARIADIC key "any") RETURNS anyelement
    AS 'MODULE_PATHNAME', 'mixedcc_get_value' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.get_value(anyelement, "any", name, "any") IS
    'a column, of the type of the first argument, of the row of a mixedcc table (NULL::table) with this primary key; as SELECT reads it';

CREATE FUNCTION mixedcc.set("row" anyelement, "column" name, value "any", VARIADIC key "any") RETURNS boolean
    AS 'MODULE_PATHNAME', 'mixedcc_set' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.set(anyelement, name, "any", "any") IS
    'gives a column of the row with this primary key a value, as UPDATE does; false: there is no such row';

CREATE FUNCTION mixedcc.add("row" anyelement, "column" name, value "any", VARIADIC key "any") RETURNS boolean
    AS 'MODULE_PATHNAME', 'mixedcc_add' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.add(anyelement, name, "any", "any") IS
    'adds a value to a column of the row with this primary key, as UPDATE does; false: there is no such row';

CREATE FUNCTION mixedcc.remove("row" anyelement, VARIADIC key "any") RETURNS boolean
    AS 'MODULE_PATHNAME', 'mixedcc_remove' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.remove(anyelement, "any") IS
    'deletes the row of a mixedcc table (NULL::table) with this primary key; false: there is none';

CREATE FUNCTION mixedcc.put("row" anyelement) RETURNS boolean
    AS 'MODULE_PATHNAME', 'mixedcc_put' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.put(anyelement) IS
    'gives the row that has the primary key of this row its values, as UPDATE does; false: there is no such row';

CREATE FUNCTION mixedcc.insert("row" anyelement) RETURNS void
    AS 'MODULE_PATHNAME', 'mixedcc_insert' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.insert(anyelement) IS 'inserts a row into the mixedcc table of its type, as INSERT does';

CREATE FUNCTION mixedcc.get_each("row" anyelement, keys "any") RETURNS SETOF anyelement
    AS 'MODULE_PATHNAME', 'mixedcc_get_each' LANGUAGE C VOLATILE ROWS 20;
COMMENT ON FUNCTION mixedcc.get_each(anyelement, "any") IS
    'the rows of a mixedcc table (NULL::table) with the primary keys in an array, in its order; keys without a row are left out';

CREATE FUNCTION mixedcc.add_each("row" anyelement, "column" name, "values" "any", keys "any") RETURNS bigint
    AS 'MODULE_PATHNAME', 'mixedcc_add_each' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.add_each(anyelement, name, "any", "any") IS
    'adds each value of an array to a column of the row with the primary key at its place in another; returns how many rows there were';

-- Options.

CREATE FUNCTION mixedcc.label_items(label text, OUT option text, OUT value text) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'label_items_wrapper' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE ROWS 3;
COMMENT ON FUNCTION mixedcc.label_items(text) IS 'options in a security label of a mixedcc table';

CREATE VIEW mixedcc.options AS
    SELECT l.objoid::regclass AS "table", i.option, i.value
    FROM pg_catalog.pg_seclabel l, mixedcc.label_items(l.label) i
    WHERE l.provider = 'mixedcc' AND l.classoid = 'pg_catalog.pg_class'::regclass AND l.objsubid = 0;
COMMENT ON VIEW mixedcc.options IS 'options of mixedcc tables that are not the built-in defaults';
COMMENT ON COLUMN mixedcc.options."table" IS 'the table';
COMMENT ON COLUMN mixedcc.options.option IS 'name of the option';
COMMENT ON COLUMN mixedcc.options.value IS 'its value';

-- Annotations of functions.

CREATE FUNCTION mixedcc.annotate(function regprocedure, "table" regclass, VARIADIC arguments text[]) RETURNS void
    AS 'MODULE_PATHNAME', 'annotate_function_wrapper' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION mixedcc.annotate(regprocedure, regclass, text[]) IS
    'says that a function or procedure uses the partition of the table whose key is in these arguments (names or numbers, one for each column of the partition key)';

CREATE FUNCTION mixedcc.unannotate(function regprocedure) RETURNS void
    AS 'MODULE_PATHNAME', 'unannotate_function_wrapper' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION mixedcc.unannotate(regprocedure) IS 'removes all annotations of a function';

CREATE FUNCTION mixedcc.annotation_items(label text, OUT "table" text, OUT arguments text) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'annotation_items_wrapper' LANGUAGE C STABLE STRICT ROWS 2;
COMMENT ON FUNCTION mixedcc.annotation_items(text) IS 'annotations in a security label of a function';

CREATE VIEW mixedcc.annotations AS
    SELECT l.objoid::regprocedure AS function, i."table", i.arguments
    FROM pg_catalog.pg_seclabel l, mixedcc.annotation_items(l.label) i
    WHERE l.provider = 'mixedcc' AND l.classoid = 'pg_catalog.pg_proc'::regclass;
COMMENT ON VIEW mixedcc.annotations IS 'which arguments of functions give the partition key of which tables';
COMMENT ON COLUMN mixedcc.annotations.function IS 'the function or procedure';
COMMENT ON COLUMN mixedcc.annotations."table" IS 'name of the table';
COMMENT ON COLUMN mixedcc.annotations.arguments IS 'arguments that give its partition key';

CREATE FUNCTION mixedcc.declaring(argument anyelement, function oid, argument_no int) RETURNS anyelement
    AS 'MODULE_PATHNAME', 'declaring_wrapper' LANGUAGE C STABLE;
COMMENT ON FUNCTION mixedcc.declaring(anyelement, oid, int) IS
    'returns its first argument; plans wrap it around arguments of annotated functions, to declare their partitions';

-- Groups of transactions.

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

-- The choice of protocols.

CREATE FUNCTION mixedcc.explain_choice("table" regclass, partition int DEFAULT 0, OUT item text, OUT name text, OUT value float8, OUT note text)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'explain_choice_wrapper' LANGUAGE C VOLATILE STRICT ROWS 40;
COMMENT ON FUNCTION mixedcc.explain_choice(regclass, int) IS
    'why a partition has its protocol: its state, how far a switch is and what it lacks, settings, the features of its load, the predicted cost of a transaction under each protocol (1: the best one the model can think of), and what was learned from switches';

CREATE FUNCTION mixedcc.key_rows(OUT "table" regclass, OUT place int, OUT sampled bigint, OUT spread_share float8, OUT common_share float8,
        OUT varied_share float8) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'key_rows_wrapper' LANGUAGE C VOLATILE ROWS 100;
COMMENT ON FUNCTION mixedcc.key_rows() IS 'source of the view mixedcc.key_stats';

CREATE VIEW mixedcc.key_stats AS
    SELECT k."table", k.place, a.attname AS "column", k.sampled, k.spread_share, k.common_share, k.varied_share
    FROM mixedcc.key_rows() k
        JOIN pg_catalog.pg_index i ON i.indrelid = k."table" AND i.indisprimary AND k.place <= i.indnkeyatts
        JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.place - 1];
COMMENT ON VIEW mixedcc.key_stats IS 'which columns of a table''s primary key the rows of one transaction have in common, from a sample of the SERIALIZABLE transactions that came to their commit';
COMMENT ON COLUMN mixedcc.key_stats."table" IS 'the table';
COMMENT ON COLUMN mixedcc.key_stats.place IS 'place of the column in the primary key, from 1; the first eight';
COMMENT ON COLUMN mixedcc.key_stats."column" IS 'the column';
COMMENT ON COLUMN mixedcc.key_stats.sampled IS 'sampled transactions that read or changed several rows of the table that were there before, by the first 16 accesses of each to any table';
COMMENT ON COLUMN mixedcc.key_stats.spread_share IS 'share of these whose rows were in several partitions';
COMMENT ON COLUMN mixedcc.key_stats.common_share IS 'share of these whose rows all had the same value in the column';
COMMENT ON COLUMN mixedcc.key_stats.varied_share IS 'share of those in which this was another value than in the one before; near 0: the column has one value, and does not divide the table';

CREATE FUNCTION mixedcc.partcc_rows(OUT "table" regclass, OUT partition int, OUT gain float8, OUT obstacle text) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'partcc_rows_wrapper' LANGUAGE C VOLATILE ROWS 100;
COMMENT ON FUNCTION mixedcc.partcc_rows() IS 'for the view mixedcc.advice: predicted cost of a transaction under the protocol in use over that under partcc, and what keeps the coordinator from it';

CREATE FUNCTION mixedcc.annotation_hints("table" regclass, key text[]) RETURNS text LANGUAGE SQL STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH functions AS (
        SELECT p.oid, (SELECT pg_catalog.array_agg(found.name ORDER BY found.n) FROM (
                SELECT c.n, (SELECT g.name FROM (
                        SELECT p.proargnames[u.n] AS name, u.type FROM pg_catalog.unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) WITH ORDINALITY u(type, n)
                        WHERE coalesce(p.proargmodes[u.n], 'i') IN ('i', 'b')) g
                    WHERE g.name <> '' AND (g.type = a.atttypid OR g.type IN (20, 21, 23) AND a.atttypid IN (20, 21, 23))
                        AND (pg_catalog.starts_with(pg_catalog.lower(g.name), pg_catalog.lower(c.name)) OR pg_catalog.starts_with(pg_catalog.lower(c.name), pg_catalog.lower(g.name)))
                    ORDER BY g.name <> c.name, pg_catalog.abs(pg_catalog.length(g.name) - pg_catalog.length(c.name)), g.name LIMIT 1) AS name
                FROM pg_catalog.unnest(key) WITH ORDINALITY c(name, n)
                    JOIN pg_catalog.pg_attribute a ON a.attrelid = "table" AND a.attname = c.name) found) AS arguments
        FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang, pg_catalog.pg_class t
        WHERE t.oid = "table" AND l.lanname IN ('sql', 'plpgsql') AND p.prokind IN ('f', 'p') AND p.pronargs > 0
            AND p.prosrc ~ ('\m' || pg_catalog.regexp_replace(t.relname, '(\W)', '\\\1', 'g') || '\M')
            AND p.pronamespace NOT IN ('mixedcc'::regnamespace, 'pg_catalog'::regnamespace)
            AND NOT EXISTS (SELECT FROM mixedcc.annotations n WHERE n.function = p.oid AND pg_catalog.to_regclass(n."table") = t.oid)
        ORDER BY p.oid LIMIT 5)
    SELECT pg_catalog.string_agg(CASE WHEN pg_catalog.array_position(arguments, NULL) IS NULL AND pg_catalog.cardinality(arguments) = pg_catalog.cardinality(key)
        THEN pg_catalog.format('SELECT mixedcc.annotate(%L, %L, %s);', oid::regprocedure, "table",
            (SELECT pg_catalog.string_agg(pg_catalog.quote_literal(n), ', ') FROM pg_catalog.unnest(arguments) n))
        ELSE pg_catalog.format('%s (no argument is called like the key)', oid::regprocedure) END, ' ' ORDER BY oid)
    FROM functions $$;
COMMENT ON FUNCTION mixedcc.annotation_hints(regclass, text[]) IS
    'for the view mixedcc.advice: functions in SQL and plpgsql whose text names the table, five at most, with arguments whose names begin like the key''s columns, or these like them';

CREATE VIEW mixedcc.advice AS
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
COMMENT ON COLUMN mixedcc.advice.advice IS 'what was seen and what could be done; nothing is done by itself';

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

-- The report.

CREATE FUNCTION mixedcc.report(since timestamptz DEFAULT now() - interval '1 day', until timestamptz DEFAULT now()) RETURNS text
    AS 'MODULE_PATHNAME', 'report_wrapper' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION mixedcc.report(timestamptz, timestamptz) IS
    'one HTML page on the load of the mixedcc tables of this database in this time: protocols, throughput, failures, waits, switches, memory, advice; from the history that the coordinator keeps (mixedcc.history_interval)';
REVOKE ALL ON FUNCTION mixedcc.report(timestamptz, timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mixedcc.report(timestamptz, timestamptz) TO pg_monitor;

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

-- Capacity.

CREATE FUNCTION mixedcc.version_bytes(tuple_bytes int) RETURNS int
    AS 'MODULE_PATHNAME', 'version_bytes_wrapper' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION mixedcc.version_bytes(int) IS 'for mixedcc.estimate: shared memory of a version of a row whose tuple has so many bytes';

CREATE FUNCTION mixedcc.estimate("table" regclass, OUT rows bigint, OUT record_bytes bigint, OUT version_bytes bigint, OUT primary_index_bytes bigint,
        OUT durable_bytes bigint, OUT total_bytes bigint, OUT free_bytes bigint) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'estimate_wrapper' LANGUAGE C VOLATILE STRICT ROWS 1 SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION mixedcc.estimate(regclass) IS
    'how much of mixedcc.memory a heap table will need as a mixedcc table: rows, and bytes by what they are for, from a sample of about 2,000 pages; and how much is free';

-- For tests.

CREATE FUNCTION mixedcc.set_stop_event(name text, action text) RETURNS void
    AS 'MODULE_PATHNAME', 'set_stop_event_wrapper' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION mixedcc.set_stop_event(text, text) IS
    'for tests: what this session, or the coordinator, does at a named point: off, error, panic, or wait KEY (until the advisory lock is free)';
REVOKE ALL ON FUNCTION mixedcc.set_stop_event(text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION mixedcc.reset_bypass() FROM PUBLIC;

GRANT SELECT ON mixedcc.partitions, mixedcc.partition_stats, mixedcc.switches, mixedcc.switch_history, mixedcc.coordinator,
    mixedcc.bypass, mixedcc.memory, mixedcc.memory_nodes, mixedcc.ranges, mixedcc.predicates, mixedcc.options, mixedcc.annotations,
    mixedcc.advice, mixedcc.key_stats TO PUBLIC;
