-- The custom scan of the primary index: the same rows as PostgreSQL's own scans, whatever the statement.
CREATE SCHEMA ps; SET search_path = ps, public;
CREATE TABLE t (a int, b int8, c text, v int DEFAULT 0, PRIMARY KEY (a, b)) USING mixedcc WITH (mixedcc.partitions = 3, mixedcc.partition_by = 'a');
INSERT INTO t SELECT i / 20, i % 20, 'r' || i FROM generate_series(0, 1999) i;
CREATE TABLE s (k text COLLATE "C", f float8, d date, PRIMARY KEY (k, f, d)) USING mixedcc;
INSERT INTO s SELECT chr(97 + i % 5) || repeat(E'\u00e4', i % 3), (i % 7) - 3.5, date '2000-01-01' + i FROM generate_series(1, 200) i;
INSERT INTO s VALUES ('', 'NaN', 'infinity'), ('a', '-Infinity', '-infinity'), ('b', '-0', '2000-01-01');
CREATE TABLE o (id int PRIMARY KEY, a int, b int) USING mixedcc;
INSERT INTO o SELECT i, i % 90, i % 25 FROM generate_series(1, 300) i;
ANALYZE t; ANALYZE s; ANALYZE o;

-- Plans.
EXPLAIN (COSTS OFF) SELECT * FROM t WHERE a = 7 AND b = 3;
EXPLAIN (COSTS OFF) SELECT * FROM t WHERE b > 3 AND a = 7 AND v = 0 ORDER BY a DESC, b DESC;
EXPLAIN (COSTS OFF) SELECT * FROM t WHERE a IN (1, 5, 7) AND b < 2;
EXPLAIN (COSTS OFF) SELECT * FROM t WHERE (a, b) > (98, 17);
EXPLAIN (COSTS OFF, VERBOSE) SELECT c FROM t WHERE a = 7 AND b BETWEEN 3 AND 5;
-- The lines that not all versions of PostgreSQL have are left out.
CREATE FUNCTION plan_of(query text, more text DEFAULT '') RETURNS TABLE ("QUERY PLAN" text) LANGUAGE plpgsql AS $$ BEGIN
    FOR "QUERY PLAN" IN EXECUTE format('EXPLAIN (COSTS OFF%s) %s', more, query) LOOP
        CONTINUE WHEN "QUERY PLAN" ~ '^ *Index Cond: \(t\.a IS NOT NULL\)$';
        "QUERY PLAN" := regexp_replace("QUERY PLAN", ' \(returns \$0\)$|\n *"Disabled": false,', '');
        RETURN NEXT;
    END LOOP;
END $$;
SELECT * FROM plan_of('SELECT max(a) FROM t');
EXPLAIN (COSTS OFF) SELECT count(*) FROM t;
SET enable_hashjoin = off; SET enable_mergejoin = off;
EXPLAIN (COSTS OFF) SELECT * FROM o JOIN t USING (a, b) WHERE o.id < 5;
RESET enable_hashjoin; RESET enable_mergejoin;
EXPLAIN (COSTS OFF) DELETE FROM t WHERE a = 7 AND b = 3;
SELECT * FROM plan_of('SELECT * FROM t WHERE a = 7 AND b = 3', ', FORMAT JSON');
DROP FUNCTION plan_of;
SET mixedcc.enable_primary_scan = off;
EXPLAIN (COSTS OFF) SELECT * FROM t WHERE a = 7 AND b = 3;
RESET mixedcc.enable_primary_scan;
SET enable_indexscan = off; SET enable_bitmapscan = off;
EXPLAIN (COSTS OFF) SELECT * FROM t WHERE a = 7 AND b = 3;
RESET enable_indexscan; RESET enable_bitmapscan;

-- The same rows with the scan and without, in order where an order is asked for; at every level; as they come.
CREATE TABLE queries (n serial, q text) USING heap;
INSERT INTO queries (q) VALUES
    ('SELECT * FROM t WHERE a = 7 AND b = 3'), ('SELECT * FROM t WHERE a = 7 AND b = 99'), ('SELECT * FROM t WHERE a = NULL::int AND b = 3'),
    ('SELECT * FROM t WHERE a = 7::int8 AND b = 3::int2'), ('SELECT * FROM t WHERE a = 7::int2'), ('SELECT * FROM t WHERE a = 3000000000 AND b = 1'),
    ('SELECT * FROM t WHERE a = 7 AND b = 3 AND a = 8'), ('SELECT * FROM t WHERE a = 7 AND b = 3 AND b = 3 AND b > 2'),
    ('SELECT * FROM t WHERE a = 7 AND b = ANY (ARRAY[1, 5, NULL, 5, 44]::int8[])'), ('SELECT * FROM t WHERE a = ANY (''{}''::int[])'),
    ('SELECT * FROM t WHERE a = ANY (NULL::int[])'), ('SELECT * FROM t WHERE a < ANY (ARRAY[2, 4]) AND b < 3'),
    ('SELECT * FROM t WHERE a IN (5, 3, 1, 5) AND b IN (2, 1, 19, 77) ORDER BY a, b'), ('SELECT * FROM t WHERE a IN (5, 3) ORDER BY a DESC, b DESC'),
    ('SELECT * FROM t WHERE a = ANY (ARRAY(SELECT x * 3 FROM generate_series(-1, 5) x)) ORDER BY a, b LIMIT 50'),
    ('SELECT * FROM t WHERE a > 97 ORDER BY a, b'), ('SELECT * FROM t WHERE a >= 97 AND a < 99 ORDER BY a DESC, b DESC OFFSET 3 LIMIT 20'),
    ('SELECT * FROM t WHERE a <= 0 AND b > 15'), ('SELECT * FROM t WHERE a BETWEEN 10 AND 5'), ('SELECT * FROM t WHERE a > 10 AND b = 5 ORDER BY a, b LIMIT 7'),
    ('SELECT * FROM t WHERE (a, b) >= (50, 18) AND (a, b) < (52, 2) ORDER BY a, b'), ('SELECT * FROM t WHERE (a, b) <= (0, 3) ORDER BY a DESC, b DESC'),
    ('SELECT * FROM t WHERE a IS NULL'), ('SELECT * FROM t WHERE a IS NOT NULL AND a < 1'), ('SELECT min(a), max(a), min(b) FROM t WHERE a > 3'),
    ('SELECT min(b), max(b) FROM t WHERE a = 9'), ('SELECT a, sum(v), count(*) FROM t WHERE a BETWEEN 3 AND 5 GROUP BY a ORDER BY a'),
    ('SELECT o.id, t.c FROM o JOIN t USING (a, b) WHERE o.id < 60 ORDER BY 1'), ('SELECT o.id, t.c FROM o LEFT JOIN t ON t.a = o.a AND t.b = o.b + 1 WHERE o.id < 60 ORDER BY 1'),
    ('SELECT o.id, l.c FROM o, LATERAL (SELECT c FROM t WHERE t.a = o.a AND t.b <= o.b ORDER BY t.b DESC LIMIT 1) l WHERE o.id < 40 ORDER BY 1'),
    ('SELECT x.a, y.b FROM t x, t y WHERE x.a = 3 AND y.a = x.a + 1 AND y.b = x.b AND x.b < 5 ORDER BY 1, 2'),
    ('SELECT id, (SELECT c FROM t WHERE t.a = o.a AND t.b = o.b) FROM o WHERE id < 30 ORDER BY id'),
    ('SELECT count(*) FROM o WHERE EXISTS (SELECT FROM t WHERE t.a = o.a AND t.b = o.b AND t.v = 0)'),
    ('SELECT * FROM t WHERE a = (SELECT min(id) FROM o) AND b = (SELECT max(id) % 20 FROM o)'),
    ('SELECT ctid, tableoid::regclass, a, b FROM t WHERE a = 7 AND b < 3 ORDER BY b'), ('SELECT t, t.c FROM t WHERE a = 7 AND b = 4'),
    ('SELECT * FROM s WHERE k = ''a'' ORDER BY k, f, d'), ('SELECT * FROM s WHERE k = ''a'' AND f > 0 AND d > ''2000-03-01'' ORDER BY k, f, d'), ('SELECT * FROM s WHERE k = ''b'' AND f = 0.0::float4'),
    ('SELECT * FROM s WHERE k > ''d'' AND k < ''da'' ORDER BY k, f, d'), ('SELECT * FROM s WHERE k >= '''' AND k < ''a'''), ('SELECT * FROM s WHERE f = ''NaN'' AND k = '''''),
    ('SELECT * FROM s WHERE k::varchar = ''ea'' LIMIT 0'), ('SELECT * FROM s WHERE k LIKE ''c%'' AND f < 0 ORDER BY k, f, d'),
    ('SELECT * FROM s ORDER BY k DESC, f DESC, d DESC LIMIT 9'), ('SELECT * FROM t WHERE a = ANY (ARRAY(SELECT generate_series(0, 700)))  AND b = 3'),
    ('SELECT * FROM s WHERE k = ''a'' AND f = -2.5 AND d = timestamp ''2000-01-16'''), ('SELECT * FROM s WHERE k = ''a''::name AND f = (-2.5)::float4 AND d = ''2000-01-16''');
CREATE FUNCTION result(q text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE r text;
BEGIN
    EXECUTE format('SELECT string_agg(x::text, E''\n'') FROM (%s) x', q) INTO r;
    RETURN r;
END $$;
CREATE FUNCTION sorted(r text) RETURNS text LANGUAGE sql AS $$ SELECT string_agg(x, E'\n' ORDER BY x COLLATE "C") FROM unnest(string_to_array(r, E'\n')) x $$;
CREATE FUNCTION compare() RETURNS text LANGUAGE plpgsql AS $$
DECLARE query text; with_it text; without text; line text; n int := 0; used int := 0;
BEGIN
    FOREACH query IN ARRAY current_setting('ps.queries')::text[] LOOP
        SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;
        FOR line IN EXECUTE 'EXPLAIN ' || query LOOP
            used := used + (line LIKE '%MixedccScan%')::int;
        END LOOP;
        with_it := result(query);
        SET LOCAL mixedcc.enable_primary_scan = off; SET LOCAL enable_seqscan = on;
        without := result(query);
        SET LOCAL mixedcc.enable_primary_scan = on;
        IF query NOT LIKE '%ORDER BY%' THEN with_it := sorted(with_it); without := sorted(without); END IF;
        IF with_it IS DISTINCT FROM without THEN
            RAISE WARNING '% gives % with the scan, % without', query, with_it, without;
        END IF;
        n := n + 1;
    END LOOP;
    RETURN format('%s statements compared, with scans: %s', n, used >= n);
END $$;
SELECT set_config('ps.queries', (SELECT array_agg(q ORDER BY n) FROM queries)::text, false) <> '' AS set;
BEGIN ISOLATION LEVEL READ COMMITTED; SELECT compare(); COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT compare(); COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT compare(); COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY; SELECT compare(); COMMIT;
ALTER TABLE t SET (mixedcc.protocol = '2pl');
BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT compare(); COMMIT;
-- More values than intervals have room for: once, because PostgreSQL's scan takes seconds.
SELECT set_config('ps.queries', array['SELECT a, count(*) FROM t WHERE a = ANY (ARRAY(SELECT x * 2 FROM generate_series(0, 70000) x)) AND b < 2 GROUP BY a ORDER BY a']::text, false) <> '' AS set;
BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT compare(); COMMIT;
-- With changes of the running transaction, which later commands see.
BEGIN ISOLATION LEVEL SERIALIZABLE;
DELETE FROM t WHERE a = 7 AND b < 2;
UPDATE t SET b = b + 100 WHERE a = 7 AND b > 17;
UPDATE t SET v = 1 WHERE a = 7 AND b = 5;
INSERT INTO t VALUES (7, 0, 'new'), (7, 55, 'new');
SELECT * FROM t WHERE a = 7 ORDER BY b;
SAVEPOINT x;
DELETE FROM t WHERE a = 7;
SELECT * FROM t WHERE a = 7 AND b = 5;
ROLLBACK TO x;
SELECT * FROM t WHERE a = 7 AND b IN (5, 55, 0, 118) ORDER BY b DESC;
COMMIT;

-- A statement does not see its own rows.
UPDATE t SET b = b + 1000 WHERE a = 8 AND b >= 0;
SELECT count(*), min(b), max(b) FROM t WHERE a = 8;
INSERT INTO t SELECT a, b + 1, c FROM t WHERE a = 8 AND b >= 1019;
WITH d AS (DELETE FROM t WHERE a = 8 AND b > 1010 RETURNING b) SELECT (SELECT count(*) FROM d), count(*) FROM t WHERE a = 8;
-- Row locks, CURRENT OF, MERGE, ON CONFLICT, RETURNING.
BEGIN;
SELECT a, b FROM t WHERE a = 9 AND b < 3 ORDER BY b FOR UPDATE;
SELECT a, b FROM t WHERE a = 9 AND b = 3 FOR SHARE NOWAIT;
DECLARE c CURSOR FOR SELECT * FROM t WHERE a = 9 ORDER BY b FOR UPDATE;
FETCH 2 FROM c;
UPDATE t SET v = 42 WHERE CURRENT OF c RETURNING a, b, v;
FETCH 1 FROM c;
DELETE FROM t WHERE CURRENT OF c RETURNING *;
COMMIT;
BEGIN;
DECLARE plain CURSOR FOR SELECT * FROM t WHERE a = 9 ORDER BY b;
FETCH 1 FROM plain;
UPDATE t SET v = 43 WHERE CURRENT OF plain RETURNING *;
COMMIT;
MERGE INTO t USING (VALUES (9, 1), (9, 99)) n (a, b) ON t.a = n.a AND t.b = n.b WHEN MATCHED THEN UPDATE SET v = 7 WHEN NOT MATCHED THEN INSERT VALUES (n.a, n.b, 'merged');
SELECT * FROM t WHERE a = 9 AND b IN (1, 99) ORDER BY b;

-- Cursors in both directions, over commits, in savepoints.
BEGIN;
DECLARE up SCROLL CURSOR WITH HOLD FOR SELECT a, b FROM t WHERE a IN (20, 22) AND b < 3 ORDER BY a, b;
DECLARE down SCROLL CURSOR FOR SELECT a, b FROM t WHERE a >= 98 ORDER BY a DESC, b DESC;
DECLARE one SCROLL CURSOR FOR SELECT a, b FROM t WHERE a = 20 AND b = 1;
FETCH 4 FROM up; FETCH BACKWARD 2 FROM up; FETCH ALL FROM up; FETCH BACKWARD 3 FROM up;
FETCH 2 FROM down; FETCH BACKWARD ALL FROM down; FETCH 1 FROM down; FETCH LAST FROM down; FETCH PRIOR FROM down; FETCH ABSOLUTE 3 FROM down;
FETCH 1 FROM one; FETCH 1 FROM one; FETCH PRIOR FROM one; FETCH PRIOR FROM one; FETCH NEXT FROM one; MOVE BACKWARD ALL IN one; FETCH ALL FROM one;
SAVEPOINT x;
FETCH 1 FROM down;
ROLLBACK TO x;
FETCH 1 FROM down;
DELETE FROM t WHERE a = 22;
FETCH BACKWARD 1 FROM down;
COMMIT;
FETCH ABSOLUTE 2 FROM up;
CLOSE up;

-- Cached plans follow the definition.
PREPARE by_key (int, int8) AS SELECT v FROM t WHERE a = $1 AND b = $2;
SET plan_cache_mode = force_generic_plan;
EXECUTE by_key (30, 1);
ALTER TABLE t DROP CONSTRAINT t_pkey;
EXECUTE by_key (30, 1);
EXPLAIN (COSTS OFF) EXECUTE by_key (30, 1);
ALTER TABLE t ADD PRIMARY KEY (b, a);
DO $$ BEGIN FOR i IN 1..500 LOOP EXIT WHEN (SELECT usable FROM mixedcc.primary_index('ps.t')); PERFORM pg_sleep(0.01); COMMIT; END LOOP; END $$;
EXECUTE by_key (30, 1);
EXPLAIN (COSTS OFF) EXECUTE by_key (30, 1);
BEGIN; TRUNCATE t; EXECUTE by_key (30, 1); INSERT INTO t VALUES (30, 1, '', 5); EXECUTE by_key (30, 1); ROLLBACK;
EXECUTE by_key (30, 1);
RESET plan_cache_mode;

-- Row-level security: conditions that could tell something wait until the row is allowed.
CREATE FUNCTION tells(int) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$ BEGIN RAISE NOTICE 'sees %', $1; RETURN true; END $$;
CREATE TABLE r (id int PRIMARY KEY, who text) USING mixedcc;
INSERT INTO r SELECT i, CASE WHEN i % 2 = 0 THEN 'ps_user' ELSE 'x' END FROM generate_series(1, 400) i;
ALTER TABLE r ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON r USING (who = current_user);
CREATE ROLE ps_user; GRANT USAGE ON SCHEMA ps TO ps_user; GRANT SELECT, UPDATE ON r TO ps_user;
SET ROLE ps_user;
EXPLAIN (COSTS OFF) SELECT * FROM r WHERE id BETWEEN 3 AND 6 AND tells(id);
SELECT * FROM r WHERE id BETWEEN 3 AND 6 AND tells(id);
SELECT * FROM r WHERE id = 5;
UPDATE r SET who = who WHERE id IN (4, 5) RETURNING *;
RESET ROLE;

-- Declarative partitions, one of them not ours.
CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100) USING mixedcc;
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200) USING mixedcc;
CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (200) TO (300) USING heap;
INSERT INTO p SELECT i, i FROM generate_series(0, 299) i;
ANALYZE p;
SET enable_seqscan = off; SET enable_bitmapscan = off;
EXPLAIN (COSTS OFF) SELECT * FROM p WHERE id BETWEEN 98 AND 101 ORDER BY id DESC;
SELECT * FROM p WHERE id BETWEEN 98 AND 101 ORDER BY id DESC;
SELECT * FROM p WHERE id IN (5, 105, 205) ORDER BY id;
SET enable_partitionwise_join = on; SET enable_hashjoin = off; SET enable_mergejoin = off;
CREATE TABLE q (id int PRIMARY KEY, w int) PARTITION BY RANGE (id);
CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (0) TO (100) USING mixedcc;
CREATE TABLE q2 PARTITION OF q FOR VALUES FROM (100) TO (200) USING mixedcc;
CREATE TABLE q3 PARTITION OF q FOR VALUES FROM (200) TO (300) USING heap;
INSERT INTO q SELECT i, -i FROM generate_series(0, 299, 3) i;
EXPLAIN (COSTS OFF) SELECT * FROM q JOIN p USING (id) WHERE w < -30 AND w > -40;
SELECT * FROM q JOIN p USING (id) WHERE w < -195 AND w > -205 ORDER BY id;
SELECT * FROM q LEFT JOIN LATERAL (SELECT p.v FROM p WHERE p.id = q.id AND p.v >= q.w OFFSET 0) l ON true WHERE q.id IN (99, 102, 201) ORDER BY id;
RESET ALL;
SET search_path = ps, public;
-- Inheritance.
CREATE TABLE parent (id int PRIMARY KEY, v text) USING mixedcc;
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent) USING mixedcc;
INSERT INTO parent SELECT i, 'p' FROM generate_series(1, 50) i; INSERT INTO child SELECT i, 'c' FROM generate_series(1, 50) i;
SELECT * FROM parent WHERE id = 7 ORDER BY v; SELECT * FROM ONLY parent WHERE id = 7;
UPDATE parent SET v = v || '!' WHERE id = 7;
SELECT * FROM parent WHERE id BETWEEN 7 AND 8 ORDER BY id, v;
-- Columns with defaults that old rows do not have, dropped columns, generated ones.
ALTER TABLE parent ADD COLUMN late int DEFAULT 5, ADD COLUMN g int GENERATED ALWAYS AS (id * 2) STORED, DROP COLUMN v;
SELECT * FROM parent WHERE id = 9 ORDER BY tableoid; SELECT late, g FROM ONLY parent WHERE id < 3 AND late = 5 ORDER BY id;
-- A sample is no scan by key.
SELECT count(*) FROM o TABLESAMPLE BERNOULLI (0) WHERE id = 7; SELECT count(*) FROM o TABLESAMPLE SYSTEM (0) WHERE id BETWEEN 7 AND 9;
-- A scan by key may read all rows that a filter removes before the first one that it passes: an index on the column is
-- better for LIMIT, however many rows pass.
CREATE TABLE jobs (id int PRIMARY KEY, status text NOT NULL) USING mixedcc; CREATE INDEX jobs_status ON jobs (status, id);
INSERT INTO jobs SELECT i, 'ready' FROM generate_series(1, 5000) i; ANALYZE jobs;
EXPLAIN (COSTS OFF) SELECT id FROM jobs WHERE status = 'ready' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED;
UPDATE jobs SET status = 'done' WHERE id <= 2500; ANALYZE jobs;
EXPLAIN (COSTS OFF) SELECT id FROM jobs WHERE status = 'ready' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED;
UPDATE jobs SET status = 'done' WHERE id <= 4900; ANALYZE jobs;
EXPLAIN (COSTS OFF) SELECT id FROM jobs WHERE status = 'ready' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED;
SELECT id FROM jobs WHERE status = 'ready' ORDER BY id LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM jobs ORDER BY id LIMIT 1;
DROP INDEX jobs_status;
EXPLAIN (COSTS OFF) SELECT id FROM jobs WHERE status = 'ready' ORDER BY id LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM jobs WHERE status = 'ready' AND id > 4000 ORDER BY id DESC LIMIT 1;
-- Statistics count scans and rows on the key's index.
CREATE TABLE counted (id int PRIMARY KEY) USING mixedcc; INSERT INTO counted SELECT generate_series(1, 500); ANALYZE counted;
SELECT pg_stat_force_next_flush();
SELECT idx_scan AS before, idx_tup_fetch AS rows_before FROM pg_stat_user_tables WHERE relid = 'ps.counted'::regclass \gset
SET mixedcc.enable_bypass = off;
SELECT id FROM counted WHERE id BETWEEN 203 AND 205; SELECT id FROM counted WHERE id = 209; SELECT count(*) FROM generate_series(201, 202) x, LATERAL (SELECT id FROM counted WHERE id > x ORDER BY id LIMIT 2) l;
RESET mixedcc.enable_bypass;
SELECT pg_stat_force_next_flush();
SELECT idx_scan - :before AS scans, idx_tup_fetch - :rows_before AS rows FROM pg_stat_user_tables WHERE relid = 'ps.counted'::regclass;
SELECT pg_stat_force_next_flush();
SELECT idx_scan > 0 AS scans, idx_tup_fetch > 0 AS rows FROM pg_stat_user_tables WHERE relid = 'ps.o'::regclass;
SET client_min_messages = warning;
DROP SCHEMA ps CASCADE;
DROP ROLE ps_user;

-- Conditions are tested on entries whose keys leave something open: they leave no memory behind.
CREATE TABLE ps_tested (a int, y int, PRIMARY KEY (a, y)) USING mixedcc;
INSERT INTO ps_tested SELECT i, 1 FROM generate_series(1, 200000) i;
ANALYZE ps_tested;
SET enable_seqscan = off;
SELECT count(*), (SELECT sum(total_bytes) < 8000000 FROM pg_backend_memory_contexts) AS little
    FROM ps_tested WHERE y = extract(year FROM now())::int;
RESET enable_seqscan;
-- Two long arrays for one column.
SET statement_timeout = '20s';
SELECT count(*) FROM ps_tested WHERE a = ANY (ARRAY(SELECT generate_series(1, 100000)))
    AND a = ANY (ARRAY(SELECT generate_series(100000, 200000))) AND y = 1;
RESET statement_timeout;
DROP TABLE ps_tested;
