-- How much memory a heap table will need: the estimate against the table that it becomes.
SET client_min_messages = warning;
CREATE SCHEMA es;
CREATE TABLE es.estimates (name text, rows bigint, version_bytes numeric, primary_index_bytes numeric, total_bytes numeric) USING heap;
CREATE PROCEDURE es.convert(names text[]) LANGUAGE plpgsql AS $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY names LOOP
        INSERT INTO es.estimates SELECT name, e.rows, e.version_bytes, e.primary_index_bytes, e.total_bytes FROM mixedcc.estimate(name::regclass) e;
        IF name NOT LIKE '%permanent%' THEN
            EXECUTE format('ALTER TABLE %s SET UNLOGGED', name);
        END IF;
        EXECUTE format('ALTER TABLE %s SET ACCESS METHOD mixedcc', name);
    END LOOP;
END $$;
-- In percent of what it is about.
CREATE FUNCTION es.fits(estimate numeric, found numeric, lowest int, highest int) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN found IS NULL AND estimate = 0 THEN 'none' WHEN 100 * estimate / found BETWEEN lowest AND highest THEN 'fits'
        ELSE format('%s for %s', estimate, found) END $$;
CREATE TABLE es.integers (id int PRIMARY KEY, v int);
INSERT INTO es.integers SELECT i, i FROM generate_series(1, 20000) i;
CREATE TABLE es.scattered (id bigint PRIMARY KEY, v numeric, w timestamptz);
INSERT INTO es.scattered SELECT (i::bigint * 7919) % 20011, i, now() FROM generate_series(1, 20000) i;
CREATE TABLE es.texts (a text, b text, v text, PRIMARY KEY (a, b));
INSERT INTO es.texts SELECT 'group ' || i % 100, 'number ' || i, repeat('x', i % 300) FROM generate_series(1, 20000) i;
CREATE TABLE es.two (a smallint, b int, c text, d int, PRIMARY KEY (a, b));
INSERT INTO es.two (a, b, c) SELECT i % 10, i, CASE WHEN i % 2 = 0 THEN 'x' END FROM generate_series(1, 20000) i;
CREATE TABLE es.keys (id int PRIMARY KEY, k text COLLATE "C" NOT NULL UNIQUE, n bigint NOT NULL UNIQUE, v int);
INSERT INTO es.keys SELECT i, 'a key that is long ' || i, -i, i FROM generate_series(1, 20000) i;
CREATE TABLE es.none (v text);
INSERT INTO es.none SELECT repeat('y', 100) FROM generate_series(1, 20000);
-- Values that heap stores elsewhere, compressed or not, are in the row.
CREATE TABLE es.large (id int PRIMARY KEY, "v ""quoted""" text, gone int, w text);
ALTER TABLE es.large DROP COLUMN gone;
ALTER TABLE es.large ALTER COLUMN w SET STORAGE EXTERNAL;
INSERT INTO es.large SELECT i, repeat(md5(i::text), 300), repeat('z', CASE WHEN i % 10 = 0 THEN 20000 ELSE 10 END) FROM generate_series(1, 1000) i;
-- Permanent ones have dirty bits and homes, too.
CREATE TABLE es.permanent (id int PRIMARY KEY, v text);
INSERT INTO es.permanent SELECT i, repeat('p', 100) FROM generate_series(1, 40000) i;
CREATE TABLE es.small_permanent (v int);
INSERT INTO es.small_permanent SELECT generate_series(1, 40000);
CALL es.convert(ARRAY['es.permanent', 'es.small_permanent', 'es.integers', 'es.scattered', 'es.texts', 'es.two', 'es.keys', 'es.none', 'es.large']);
SELECT name, rows, es.fits(version_bytes, (SELECT sum(bytes) FROM mixedcc.partitions WHERE "table" = name::regclass), 97, 110) AS versions,
    es.fits(primary_index_bytes, (SELECT sum(bytes) FROM mixedcc.primary_index(name::regclass)), 90, 170) AS index,
    es.fits(total_bytes, mixedcc.table_size(name::regclass), 90, 115) AS total FROM es.estimates;
-- A large table is sampled.
CREATE TABLE es.sampled (id int PRIMARY KEY, v text);
INSERT INTO es.sampled SELECT i, repeat('s', 500) FROM generate_series(1, 60000) i;
SELECT pg_relation_size('es.sampled') / 8192 > 3000 AS large, rows BETWEEN 55000 AND 65000 AS rows, total_bytes BETWEEN 33000000 AND 43000000 AS bytes
    FROM mixedcc.estimate('es.sampled');
SELECT e.durable_bytes > 4 * e.rows AS durable, e.free_bytes = m.free_bytes AS free, e.total_bytes = e.record_bytes + e.version_bytes
    + e.primary_index_bytes + e.durable_bytes AS total FROM mixedcc.estimate('es.sampled') e, mixedcc.memory m;
-- An empty table, a materialized view, a partitioned table.
CREATE TABLE es.empty (id int PRIMARY KEY);
SELECT rows, record_bytes, version_bytes, primary_index_bytes, durable_bytes < 1000 AS durable, total_bytes = durable_bytes AS total
    FROM mixedcc.estimate('es.empty');
CREATE MATERIALIZED VIEW es.mat USING heap AS SELECT 1 AS id;
SELECT rows, primary_index_bytes FROM mixedcc.estimate('es.mat');
CREATE TABLE es.parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE es.part1 PARTITION OF es.parted FOR VALUES FROM (0) TO (100);
CREATE TABLE es.part2 PARTITION OF es.parted FOR VALUES FROM (100) TO (200);
INSERT INTO es.parted SELECT generate_series(50, 149);
SELECT sum(e.rows) FROM pg_partition_tree('es.parted') p, mixedcc.estimate(p.relid) e WHERE p.isleaf;
-- Errors and rights.
SELECT mixedcc.estimate('es.parted');
SELECT mixedcc.estimate('es.integers');
SELECT mixedcc.estimate('es.sampled_pkey');
SELECT mixedcc.estimate(0);
SELECT mixedcc.estimate(NULL);
CREATE ROLE es_user;
GRANT USAGE ON SCHEMA es TO es_user;
SET ROLE es_user;
SELECT mixedcc.estimate('es.sampled');
RESET ROLE;
GRANT SELECT ON es.empty TO es_user;
SET ROLE es_user;
SELECT rows FROM mixedcc.estimate('es.empty');
RESET ROLE;
-- A user's objects of the same names are not taken for PostgreSQL's.
CREATE FUNCTION es.pg_column_size(anyelement) RETURNS int LANGUAGE sql AS 'SELECT 1 / 0';
SET search_path = es, pg_catalog;
SELECT rows FROM mixedcc.estimate('es.part1');
RESET search_path;
DROP SCHEMA es CASCADE;
DROP ROLE es_user;
