-- Views, CTAS, ANALYZE, VACUUM, EXPLAIN, row-level security, system columns, scan kinds.
CREATE TABLE mi_t (id int PRIMARY KEY, g int, v text) USING mixedcc;
INSERT INTO mi_t SELECT i, i % 10, 'v' || i FROM generate_series(1, 1000) i;
CREATE VIEW mi_v AS SELECT id, v FROM mi_t WHERE g = 3 WITH CHECK OPTION;
UPDATE mi_v SET v = 'via view' WHERE id = 13;
INSERT INTO mi_v VALUES (2001, 'no');
SELECT * FROM mi_v WHERE id < 20 ORDER BY id;
CREATE MATERIALIZED VIEW mi_m USING heap AS SELECT g, count(*) FROM mi_t GROUP BY g;
DELETE FROM mi_t WHERE g = 9;
REFRESH MATERIALIZED VIEW mi_m;
SELECT count(*) FROM mi_m;
DROP MATERIALIZED VIEW mi_m;
CREATE TABLE mi_c USING mixedcc AS SELECT * FROM mi_t WHERE id <= 10 WITH DATA;
CREATE TABLE mi_n USING mixedcc AS SELECT * FROM mi_t WITH NO DATA;
SELECT (SELECT count(*) FROM mi_c), (SELECT count(*) FROM mi_n);
SET default_table_access_method = mixedcc;
SELECT * INTO mi_i FROM mi_t WHERE id <= 5;
RESET default_table_access_method;
SELECT a.amname, count(*) FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE relname IN ('mi_c', 'mi_n', 'mi_i') GROUP BY 1;
DROP TABLE mi_c, mi_n, mi_i;
-- Statistics.
ANALYZE mi_t;
SELECT reltuples FROM pg_class WHERE oid = 'mi_t'::regclass;
SELECT attname, null_frac, n_distinct FROM pg_stats WHERE tablename = 'mi_t' AND attname <> 'v' ORDER BY attname;
UPDATE mi_t SET v = v || '+' WHERE id % 2 = 0;
DELETE FROM mi_t WHERE id > 900;
VACUUM (ANALYZE) mi_t;
SELECT reltuples FROM pg_class WHERE oid = 'mi_t'::regclass;
VACUUM mi_t;
VACUUM (FREEZE, INDEX_CLEANUP ON) mi_t;
BEGIN;
ANALYZE mi_t;
ROLLBACK;
SELECT count(*), min(id), max(id) FROM mi_t;
-- Plans. (Scans of the primary index: primary_scan.sql.)
SET mixedcc.enable_primary_scan = off;
CREATE INDEX mi_g ON mi_t (g);
SET enable_bitmapscan = off;
SET enable_seqscan = off;
EXPLAIN (COSTS OFF) SELECT * FROM mi_t WHERE id = 5;
EXPLAIN (COSTS OFF) UPDATE mi_t SET v = 'x' WHERE id = 5;
SELECT * FROM run_plan('SELECT v FROM mi_t WHERE id BETWEEN 11 AND 15');
-- PostgreSQL 18 shows how often an index was searched.
DO $$ DECLARE line text; BEGIN
    FOR line IN EXECUTE 'EXPLAIN (ANALYZE) SELECT v FROM mi_t WHERE id BETWEEN 11 AND 15' LOOP
        IF line ~ 'Index Searches' AND line !~ ': 1$' THEN RAISE INFO '%', line; END IF;
    END LOOP;
END $$;
SELECT count(*) FROM mi_t WHERE id BETWEEN 100 AND 199;
SELECT id FROM mi_t WHERE g = 1 ORDER BY id DESC LIMIT 3;
RESET enable_bitmapscan;
SET enable_indexscan = off;
SET enable_indexonlyscan = off;
EXPLAIN (COSTS OFF) SELECT * FROM mi_t WHERE g = 1 AND id < 500;
SELECT count(*), sum(id) FROM mi_t WHERE g = 1 AND id < 500;
SET work_mem = '64kB';
SELECT count(*), sum(id) FROM mi_t WHERE g = 1 OR id < 500;
RESET ALL;
SET enable_hashjoin = off;
SELECT count(*) FROM mi_t a JOIN mi_t b ON a.id = b.id + 1;
RESET enable_hashjoin;
SELECT g, count(*), sum(id) FROM mi_t GROUP BY g ORDER BY g;
SELECT id, row_number() OVER (PARTITION BY g ORDER BY id DESC) FROM mi_t WHERE id IN (1, 11, 2) ORDER BY id;
SELECT max(id) FROM mi_t, LATERAL (SELECT g FROM mi_t i WHERE i.id = mi_t.id) l WHERE l.g = 4;
-- A plan that would be parallel for heap is serial or right.
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET max_parallel_workers_per_gather = 2;
SELECT count(*), sum(id) FROM mi_t;
CREATE INDEX mi_parallel ON mi_t (v);
DROP INDEX mi_parallel;
RESET ALL;
-- System columns: ctid scans, xmin as a version token, tableoid.
SELECT count(DISTINCT ctid), count(DISTINCT tableoid) FROM mi_t;
SELECT ctid AS tid FROM mi_t WHERE id = 21 \gset
SELECT id FROM mi_t WHERE ctid = :'tid';
SELECT id FROM mi_t WHERE ctid = ANY (ARRAY[:'tid', '(99999,1)']::tid[]);
SELECT count(*) FROM mi_t WHERE ctid = '(99999,1)' OR ctid = '(0,0)';
SELECT count(*) = (SELECT count(*) FROM mi_t) AS whole FROM mi_t WHERE ctid >= '(0,1)' AND ctid < '(100000,0)';
SELECT count(*) FROM mi_t WHERE ctid > '(100000,1)';
UPDATE mi_t SET v = 'by ctid' WHERE ctid = :'tid' RETURNING id, v;
BEGIN;
SELECT currtid2('mi_t', :'tid') IS NOT NULL AS followed;
-- The transaction has touched the table, so it is not dropped before COMMIT.
SELECT count(*) = 1 OR (SELECT amhandler = 'heap_tableam_handler'::regproc FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE c.oid = 'mi_t'::regclass) AS kept
    FROM pg_locks WHERE relation = 'mi_t'::regclass AND pid = pg_backend_pid() AND mode = 'AccessShareLock';
COMMIT;
SELECT xmin AS token FROM mi_t WHERE id = 31 \gset
UPDATE mi_t SET v = 'optimistic' WHERE id = 31 AND xmin = :'token' RETURNING id;
UPDATE mi_t SET v = 'stale' WHERE id = 31 AND xmin = :'token' RETURNING id;
UPDATE mi_t SET v = 'elsewhere' WHERE id = 41;
SELECT xmin AS token FROM mi_t WHERE id = 31 \gset
UPDATE mi_t SET v = 'elsewhere' WHERE id = 42;
SELECT count(*) FROM mi_t WHERE id = 31 AND xmin = :'token';
-- Samples.
SELECT count(*) FROM mi_t TABLESAMPLE SYSTEM (100);
SELECT count(*) FROM mi_t TABLESAMPLE BERNOULLI (100);
SELECT count(*) FROM mi_t TABLESAMPLE BERNOULLI (0);
SELECT count(*) BETWEEN 100 AND 700 AS about_half FROM mi_t TABLESAMPLE BERNOULLI (50) REPEATABLE (1);
-- Row-level security and privileges of columns.
CREATE ROLE mi_user;
CREATE TABLE mi_rls (id int PRIMARY KEY, owner name, secret text) USING mixedcc;
INSERT INTO mi_rls VALUES (1, 'mi_user', 'mine'), (2, 'other', 'theirs');
ALTER TABLE mi_rls ENABLE ROW LEVEL SECURITY;
CREATE POLICY mi_read ON mi_rls FOR SELECT USING (owner = current_user);
CREATE POLICY mi_write ON mi_rls FOR ALL USING (owner = current_user) WITH CHECK (secret <> 'forbidden');
GRANT SELECT, INSERT, UPDATE, DELETE ON mi_rls TO mi_user;
GRANT SELECT (id), UPDATE (v) ON mi_t TO mi_user;
SET ROLE mi_user;
SELECT * FROM mi_rls;
UPDATE mi_rls SET secret = secret || '!' RETURNING *;
UPDATE mi_rls SET secret = 'forbidden';
INSERT INTO mi_rls VALUES (2, 'mi_user', 'taken');
INSERT INTO mi_rls VALUES (3, 'mi_user', 'ok') ON CONFLICT (id) DO UPDATE SET secret = 'x' RETURNING *;
INSERT INTO mi_rls VALUES (2, 'mi_user', 'ok') ON CONFLICT (id) DO UPDATE SET secret = 'x' RETURNING *;
DELETE FROM mi_rls RETURNING id;
SELECT v FROM mi_t;
UPDATE mi_t SET v = 'allowed' WHERE id = 1;
DELETE FROM mi_t;
SELECT * FROM mi_rls WHERE ctid IS NOT NULL;
RESET ROLE;
SELECT * FROM mi_rls ORDER BY id;
DROP TABLE mi_rls;
REVOKE ALL ON mi_t FROM mi_user;
DROP ROLE mi_user;
-- Locking clauses in one session; sequences.
BEGIN;
SELECT id FROM mi_t WHERE id = 1 FOR KEY SHARE;
SELECT id FROM mi_t WHERE id = 1 FOR SHARE;
SELECT id FROM mi_t WHERE id = 1 FOR NO KEY UPDATE;
SELECT id FROM mi_t WHERE id = 1 FOR UPDATE NOWAIT;
UPDATE mi_t SET v = 'locked' WHERE id = 1;
SELECT id, v FROM mi_t WHERE id IN (1, 2) ORDER BY id FOR UPDATE SKIP LOCKED;
UPDATE mi_t SET id = 6001 WHERE id = 1;
SELECT id FROM mi_t WHERE id IN (1, 6001) FOR UPDATE;
LOCK TABLE mi_t IN SHARE ROW EXCLUSIVE MODE;
ROLLBACK;
CREATE SEQUENCE mi_s OWNED BY mi_t.id;
ALTER TABLE mi_t ALTER id SET DEFAULT nextval('mi_s') + 10000;
INSERT INTO mi_t (v) VALUES ('seq'), ('seq') RETURNING id;
-- Cached plans over changing data.
PREPARE mi_p (int) AS UPDATE mi_t SET v = 'p' WHERE id = $1 RETURNING id;
EXECUTE mi_p (2);
EXECUTE mi_p (2);
EXECUTE mi_p (123456);
DO $$ BEGIN FOR i IN 1..10 LOOP EXECUTE format('UPDATE mi_t SET g = g + 1 WHERE id = %s', i); END LOOP; END $$;
SELECT array_agg(g ORDER BY id) FROM mi_t WHERE id BETWEEN 1 AND 10;
DROP VIEW mi_v;
DROP TABLE mi_t;

-- Statistics count as with heap.
CREATE TABLE mi_ours (i int PRIMARY KEY, v int) USING mixedcc WITH (autovacuum_enabled = off);
CREATE TABLE mi_heap (i int PRIMARY KEY, v int) USING heap WITH (autovacuum_enabled = off);
CREATE FUNCTION mi_use(t regclass) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    PERFORM set_config(s, 'off', true) FROM unnest('{enable_seqscan,enable_indexscan,enable_indexonlyscan}'::text[]) s;
    EXECUTE format('INSERT INTO %s SELECT i, 0 FROM generate_series(1, 100) i', t);
    EXECUTE format('UPDATE %s SET v = 1 WHERE i <= 10', t);
    EXECUTE format('DELETE FROM %s WHERE i > 95', t);
    EXECUTE format('SELECT max(v) FROM %s WHERE i BETWEEN 3 AND 8', t);
    PERFORM set_config('enable_indexscan', 'on', true), set_config('enable_bitmapscan', 'off', true);
    EXECUTE format('SELECT max(v) FROM %s WHERE i BETWEEN 3 AND 7', t);
    PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_indexscan', 'off', true);
    EXECUTE format('SELECT max(v) FROM %s', t);
END $$;
SET mixedcc.enable_primary_scan = off;
SELECT mi_use('mi_ours'), mi_use('mi_heap');
RESET mixedcc.enable_primary_scan;
SELECT pg_stat_force_next_flush();
SELECT relname, seq_tup_read, idx_scan, idx_tup_fetch, n_tup_ins, n_tup_upd, n_tup_del, n_tup_hot_upd, n_live_tup, n_dead_tup
    FROM pg_stat_user_tables WHERE relname IN ('mi_ours', 'mi_heap') ORDER BY 1;
SELECT relname, idx_scan, idx_tup_read, idx_tup_fetch FROM pg_stat_user_indexes WHERE relname IN ('mi_ours', 'mi_heap') ORDER BY 1;
DROP TABLE mi_ours, mi_heap;
DROP FUNCTION mi_use;
-- Rights that come with the database go with it.
SELECT current_database() AS db, current_user AS me \gset
CREATE ROLE mi_owner;
CREATE TABLE mi_rights (id int PRIMARY KEY, v int) USING mixedcc;
INSERT INTO mi_rights VALUES (1, 10);
GRANT SELECT ON mi_rights TO pg_database_owner;
ALTER DATABASE :"db" OWNER TO mi_owner;
SET ROLE mi_owner;
PREPARE mi_read AS SELECT v FROM mi_rights WHERE id = 1;
EXECUTE mi_read;
RESET ROLE;
ALTER DATABASE :"db" OWNER TO :"me";
SET ROLE mi_owner;
EXECUTE mi_read;
RESET ROLE;
DEALLOCATE mi_read;
DROP TABLE mi_rights;
DROP ROLE mi_owner;
-- Values that are stored elsewhere are copied into the row, and the copies are not kept for the rest of the statement.
CREATE TABLE mi_elsewhere (id int, v text) USING heap;
ALTER TABLE mi_elsewhere ALTER COLUMN v SET STORAGE EXTERNAL;
INSERT INTO mi_elsewhere SELECT i, repeat('x', 100000) FROM generate_series(1, 100) i;
CREATE TABLE mi_wide (id int, v text) USING mixedcc;
CREATE FUNCTION mi_memory() RETURNS bigint LANGUAGE sql AS
    $$ SELECT sum(used_bytes)::bigint FROM pg_backend_memory_contexts WHERE name = 'ExecutorState' $$;
WITH written AS (INSERT INTO mi_wide SELECT * FROM mi_elsewhere RETURNING mi_memory() AS used)
    SELECT count(*), max(used) - min(used) < 3000000 AS given_back FROM written;
SELECT count(*), sum(length(v)) FROM mi_wide;
-- Neither are those of compressed values in a key.
CREATE TABLE mi_packed (v text) USING heap;
INSERT INTO mi_packed SELECT repeat('x', 100000) || i FROM generate_series(1, 100) i;
CREATE TABLE mi_long (v text COLLATE "C" PRIMARY KEY) USING mixedcc;
WITH written AS (INSERT INTO mi_long SELECT * FROM mi_packed RETURNING mi_memory() AS used)
    SELECT count(*), max(used) - min(used) < 3000000 AS given_back FROM written;
SELECT count(*), sum(length(v)) FROM mi_long;
DROP TABLE mi_elsewhere, mi_wide, mi_packed, mi_long;
DROP FUNCTION mi_memory;
