-- Protocols and partitions.

CREATE FUNCTION mixedcc.set_protocol("table" regclass, protocol text, partition int DEFAULT NULL) RETURNS void
    AS 'MODULE_PATHNAME', 'set_protocol_wrapper' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.set_protocol(regclass, text, int) IS
    'puts a partition, or all of a table, under a protocol (partcc, occ, 2pl); waits for transactions that use the table; takes effect at once and is not undone by ROLLBACK';

CREATE FUNCTION mixedcc.declare_partition("table" regclass, VARIADIC key "any") RETURNS void
    AS 'MODULE_PATHNAME', 'declare_partition_wrapper' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.declare_partition(regclass, "any") IS
    'declares that this SERIALIZABLE transaction will use the partition of this key, which partcc then locks now; declare at the start of the transaction, and in the same order in all transactions';

CREATE FUNCTION mixedcc.partition_rows(OUT "table" regclass, OUT partition int, OUT protocol text, OUT waiting_policy text,
        OUT rows bigint, OUT versions bigint, OUT bytes bigint, OUT reads bigint, OUT writes bigint, OUT commits bigint,
        OUT waits bigint, OUT aborts text) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'partition_rows_wrapper' LANGUAGE C VOLATILE ROWS 100;
COMMENT ON FUNCTION mixedcc.partition_rows() IS 'source of the view mixedcc.partitions';

CREATE VIEW mixedcc.partitions AS
    SELECT "table", partition, protocol, waiting_policy, rows, versions, bytes, reads, writes, commits, aborts::jsonb AS aborts, waits
    FROM mixedcc.partition_rows();
COMMENT ON VIEW mixedcc.partitions IS 'partitions of the mixedcc tables of this database, their protocols and counters';
COMMENT ON COLUMN mixedcc.partitions."table" IS 'the table';
COMMENT ON COLUMN mixedcc.partitions.partition IS 'number of the partition, from 0';
COMMENT ON COLUMN mixedcc.partitions.protocol IS 'protocol in use: partcc, occ or 2pl';
COMMENT ON COLUMN mixedcc.partitions.waiting_policy IS 'what 2pl does when a row lock conflicts: wait, no_wait or wait_die';
COMMENT ON COLUMN mixedcc.partitions.rows IS 'committed rows';
COMMENT ON COLUMN mixedcc.partitions.versions IS 'newest versions, with those of deleted rows that were not vacuumed yet';
COMMENT ON COLUMN mixedcc.partitions.bytes IS 'memory of these versions';
COMMENT ON COLUMN mixedcc.partitions.reads IS 'rows read by committed transactions';
COMMENT ON COLUMN mixedcc.partitions.writes IS 'rows written by committed transactions';
COMMENT ON COLUMN mixedcc.partitions.commits IS 'transactions that used the partition and committed';
COMMENT ON COLUMN mixedcc.partitions.aborts IS 'transactions that failed because of this partition, by reason';
COMMENT ON COLUMN mixedcc.partitions.waits IS 'sleeps for a lock of the partition or of one of its rows';

CREATE FUNCTION mixedcc.reset_stats("table" regclass DEFAULT NULL) RETURNS void
    AS 'MODULE_PATHNAME', 'reset_stats_wrapper' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION mixedcc.reset_stats(regclass) IS
    'sets reads, writes, commits, aborts and waits of a table''s partitions to zero; without a table, of all tables of the user in this database';

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

-- For tests.

CREATE FUNCTION mixedcc.set_stop_event(name text, action text) RETURNS void
    AS 'MODULE_PATHNAME', 'set_stop_event_wrapper' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION mixedcc.set_stop_event(text, text) IS
    'for tests: what this session does at a named point: off, error, panic, or wait KEY (until the advisory lock is free)';
REVOKE ALL ON FUNCTION mixedcc.set_stop_event(text, text) FROM PUBLIC;

GRANT SELECT ON ALL TABLES IN SCHEMA mixedcc TO PUBLIC;
