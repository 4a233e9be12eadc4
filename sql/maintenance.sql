-- Maintenance that mixedcc tables have no use for, and commands that tools call for one table after another: these go on.
CREATE TABLE mt (id int PRIMARY KEY, v int) USING mixedcc;
CREATE TABLE mt_heap (id int PRIMARY KEY, v int) USING heap;
INSERT INTO mt SELECT i, i FROM generate_series(1, 100) i;
INSERT INTO mt_heap SELECT i, i FROM generate_series(1, 100) i;
DELETE FROM mt WHERE id > 50;
CREATE TEMP TABLE mt_files (name name, oid oid, file oid);
-- Tables and indexes of these names that were written anew since the last call.
CREATE FUNCTION mt_new() RETURNS SETOF name LANGUAGE plpgsql AS $$ BEGIN
    RETURN QUERY SELECT c.relname FROM mt_files f JOIN pg_class c ON c.oid = f.oid WHERE c.relfilenode <> f.file
        UNION SELECT c.relname FROM mt_files f JOIN pg_class c ON c.relname = f.name WHERE c.oid <> f.oid ORDER BY 1;
    DELETE FROM mt_files;
    INSERT INTO mt_files SELECT relname, oid, relfilenode FROM pg_class WHERE relname ~ '^mt_?(heap|p.*|sorted)?(_pkey)?$';
END $$;
SELECT * FROM mt_new();
VACUUM FULL mt;
VACUUM (FULL, ANALYZE) mt, mt_heap;
SELECT * FROM mt_new();
SELECT relname, reltuples FROM pg_class WHERE relname IN ('mt', 'mt_heap') ORDER BY 1;
BEGIN;
VACUUM FULL mt;
ROLLBACK;
REINDEX TABLE CONCURRENTLY mt;
REINDEX INDEX CONCURRENTLY mt_pkey;
BEGIN;
REINDEX TABLE CONCURRENTLY mt;
ROLLBACK;
-- CLUSTER writes the rows in the order of an index.
CREATE TABLE mt_order (id int PRIMARY KEY, a int, gone int) USING mixedcc WITH (mixedcc.partitions = 3);
CREATE INDEX mt_order_a ON mt_order (a DESC, id);
INSERT INTO mt_order SELECT i, i * 79 % 101, i FROM generate_series(1, 1000) i;
ALTER TABLE mt_order DROP COLUMN gone, ADD COLUMN late int DEFAULT 5;
BEGIN; LOCK TABLE mt_order; SELECT mixedcc.set_protocol('mt_order', '2pl', 1); COMMIT;
CREATE FUNCTION mt_rows() RETURNS TABLE (rows bigint, sum bigint, by_a bool, by_id bool) LANGUAGE sql AS $$
    SELECT count(*), sum(id * a + late), bool_and(a <= a_before IS NOT false), bool_and(id >= id_before IS NOT false)
    FROM (SELECT *, lag(a) OVER w a_before, lag(id) OVER w id_before FROM mt_order WINDOW w AS (ORDER BY ctid)) x $$;
SELECT * FROM mt_rows();
CLUSTER mt_order USING mt_order_a;
SELECT * FROM mt_rows();
SELECT mixedcc.check_primary_index('mt_order');
SELECT protocol, pinned FROM mixedcc.partitions WHERE "table" = 'mt_order'::regclass ORDER BY partition;
SELECT indexrelid::regclass FROM pg_index WHERE indisclustered AND indrelid = 'mt_order'::regclass;
BEGIN ISOLATION LEVEL SERIALIZABLE;
UPDATE mt_order SET a = 0 WHERE id = 7; DELETE FROM mt_order WHERE id = 8; INSERT INTO mt_order VALUES (2000, 1, 5);
SAVEPOINT s;
CLUSTER mt_order USING mt_order_pkey;
SELECT * FROM mt_rows();
ROLLBACK TO s;
SELECT rows, sum, by_id FROM mt_rows();
CLUSTER mt_order;
SELECT * FROM mt_rows();
COMMIT;
SELECT * FROM mt_rows();
DROP FUNCTION mt_rows;
DROP TABLE mt_order;
SELECT * FROM mt_new();
-- Partitions.
CREATE TABLE mt_parent (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE mt_p1 PARTITION OF mt_parent FOR VALUES FROM (0) TO (10) USING mixedcc;
CREATE TABLE mt_p2 PARTITION OF mt_parent FOR VALUES FROM (10) TO (20) USING heap;
INSERT INTO mt_parent SELECT i, i FROM generate_series(0, 19) i;
SELECT * FROM mt_new();
REINDEX TABLE CONCURRENTLY mt_parent;
SELECT * FROM mt_new();
VACUUM (FULL, ANALYZE) mt_parent;
SELECT * FROM mt_new();
SELECT relname, reltuples FROM pg_class WHERE relname IN ('mt_p1', 'mt_p2') ORDER BY 1;
CLUSTER mt_parent USING mt_parent_pkey;
REINDEX INDEX CONCURRENTLY mt_parent_pkey;
-- A table that others inherit from is a table of its own.
CREATE TABLE mt_plain (id int PRIMARY KEY) USING heap;
CREATE TABLE mt_heir () INHERITS (mt_plain) USING mixedcc;
SELECT * FROM mt_new();
SET client_min_messages = error; -- from version 18 on VACUUM goes on to the heir
VACUUM FULL mt_plain;
RESET client_min_messages;
CLUSTER mt_plain USING mt_plain_pkey;
REINDEX TABLE CONCURRENTLY mt_plain;
SELECT * FROM mt_new();
-- A schema.
CREATE SCHEMA mt_s;
CREATE TABLE mt_s.ours (id int PRIMARY KEY) USING mixedcc;
CREATE TABLE mt_s.mt_pheap (id int PRIMARY KEY, v text) USING heap;
CREATE TABLE mt_s.mt_pnone (id int) USING heap;
SELECT * FROM mt_new();
REINDEX SCHEMA CONCURRENTLY mt_s;
SELECT * FROM mt_new();
-- CLUSTER of all tables that were clustered before.
CREATE TABLE mt_sorted (id int PRIMARY KEY) USING heap;
CLUSTER mt_sorted USING mt_sorted_pkey;
CLUSTER mt_heap USING mt_heap_pkey;
ALTER TABLE mt_sorted SET ACCESS METHOD mixedcc;
SELECT * FROM mt_new();
CLUSTER;
SELECT * FROM mt_new();
-- FULL beside what PostgreSQL refuses with it, and beside what it does not.
VACUUM (FULL, PARALLEL 2) mt;
VACUUM (FULL, PROCESS_TOAST false) mt;
VACUUM (FULL, DISABLE_PAGE_SKIPPING) mt;
VACUUM (FULL, PARALLEL 0, PROCESS_TOAST, DISABLE_PAGE_SKIPPING off) mt;
-- Who may not do it.
CREATE ROLE regress_mt;
GRANT CREATE, USAGE ON SCHEMA mt_s TO regress_mt;
SET ROLE regress_mt;
\set VERBOSITY sqlstate
VACUUM FULL mt;
REINDEX SCHEMA CONCURRENTLY mt_s;
REINDEX TABLE CONCURRENTLY mt;
SET client_min_messages = error; -- from version 17 on it names what it leaves out
CLUSTER;
RESET client_min_messages;
\set VERBOSITY default
RESET ROLE;
ALTER SCHEMA mt_s OWNER TO regress_mt;
SET ROLE regress_mt;
REINDEX SCHEMA CONCURRENTLY mt_s;
RESET ROLE;
DROP SCHEMA mt_s CASCADE;
DROP ROLE regress_mt;
DROP TABLE mt_sorted, mt_heir, mt_plain, mt_parent, mt_files, mt_heap, mt;
DROP FUNCTION mt_new;
