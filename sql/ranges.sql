-- Logical ranges, predicates, range_scan and what EXPLAIN shows of them.
SET client_min_messages = warning;
SET mixedcc.range_rows = 10;
CREATE TABLE rg_t (id int PRIMARY KEY, a int, b text, v int) USING mixedcc;
INSERT INTO rg_t SELECT i * 10, i % 4, 'k' || i % 3, i FROM generate_series(1, 30) i;
CREATE INDEX rg_ab ON rg_t (a, b DESC);
ANALYZE rg_t;
SET enable_seqscan = off;
SET enable_bitmapscan = off;

-- no scan at SERIALIZABLE yet: no ranges
SELECT count(*) FROM mixedcc.ranges WHERE "table" = 'rg_t'::regclass;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM rg_t WHERE id BETWEEN 100 AND 150;
SELECT count(*) FROM mixedcc.predicates;
COMMIT;

-- predicates of a transaction
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM rg_t WHERE id BETWEEN 100 AND 150;
SELECT id FROM rg_t WHERE id > 50 ORDER BY id LIMIT 2;
SELECT id FROM rg_t WHERE id < 250 ORDER BY id DESC LIMIT 2;
SELECT v FROM rg_t WHERE id = 10;
SELECT v FROM rg_t WHERE id = 11;
SELECT sum(v) FROM rg_t WHERE a = 2;
SELECT sum(v) FROM rg_t WHERE a = 2 AND b >= 'k1';
SELECT sum(v) FROM rg_t WHERE (a, b) > (3, 'k1');
SELECT sum(v) FROM rg_t WHERE id = ANY ('{20, 22, NULL}');
SELECT sum(v) FROM rg_t WHERE a IS NULL;
SELECT sum(v) FROM rg_t WHERE id > 20 AND id < 10;
SELECT index, lower, upper, ranges, covered FROM mixedcc.predicates WHERE "table" = 'rg_t'::regclass;
COMMIT;

-- sequential scans
SET enable_seqscan = on;
SET mixedcc.enable_bypass = off; -- which would look the key up
SET enable_indexscan = off;
SET enable_indexonlyscan = off;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT sum(v) FROM rg_t WHERE id = 10;
SELECT sum(v) FROM rg_t WHERE id BETWEEN 10 AND 30 AND v > 0;
SELECT sum(v) FROM rg_t WHERE 20 > id;
SELECT index, lower, upper, ranges, covered FROM mixedcc.predicates;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT sum(v) FROM rg_t;
SELECT index, lower, upper, ranges, covered FROM mixedcc.predicates;
COMMIT;
RESET enable_seqscan;
RESET enable_bitmapscan;
RESET mixedcc.enable_bypass;
RESET enable_indexscan;
RESET enable_indexonlyscan;

-- the view
SELECT index, range, lower, upper, version, list_size FROM mixedcc.ranges WHERE "table" = 'rg_t'::regclass ORDER BY 1, 2;
UPDATE rg_t SET v = v + 1 WHERE id = 100;
INSERT INTO rg_t VALUES (1000, 9, 'z', 0);
DELETE FROM rg_t WHERE id = 1000;
SELECT index, range, version FROM mixedcc.ranges WHERE "table" = 'rg_t'::regclass AND version > 0 ORDER BY 1, 2;
-- not the keys for those who may not read them
CREATE ROLE rg_other;
SET ROLE rg_other;
SELECT range, lower, upper FROM mixedcc.ranges WHERE "table" = 'rg_t'::regclass AND range = 0;
SELECT count(*) FROM mixedcc.range_scan(NULL::rg_t, 1, 100);
-- nor lists for those who may not fill the memory
SET mixedcc.range_rows = 1;
SET mixedcc.range_list_size = 65536;
RESET ROLE;
GRANT SET ON PARAMETER mixedcc.range_rows TO rg_other;
SET ROLE rg_other;
SET mixedcc.range_rows = 10;
RESET ROLE;
REVOKE SET ON PARAMETER mixedcc.range_rows FROM rg_other;

-- VACUUM ends the ranges of dropped indexes
DROP INDEX rg_ab;
SELECT DISTINCT index FROM mixedcc.ranges WHERE "table" = 'rg_t'::regclass;
VACUUM rg_t;
INSERT INTO rg_t VALUES (1010, 9, 'z', 0);
DELETE FROM rg_t WHERE id = 1010;
DROP ROLE rg_other;

-- more rows: more ranges, at a later scan
INSERT INTO rg_t SELECT i * 10 + 1, 0, '', 0 FROM generate_series(1, 270) i;
SET enable_seqscan = off;
DO $$ BEGIN FOR i IN 1..70 LOOP PERFORM sum(v) FROM rg_t WHERE id BETWEEN 100 AND 120; END LOOP; END $$;
SELECT count(*) FROM mixedcc.ranges WHERE "table" = 'rg_t'::regclass;
BEGIN ISOLATION LEVEL SERIALIZABLE;
DO $$ BEGIN FOR i IN 1..70 LOOP PERFORM sum(v) FROM rg_t WHERE id BETWEEN 100 AND 120; END LOOP; END $$;
COMMIT;
SELECT count(*) FROM mixedcc.ranges WHERE "table" = 'rg_t'::regclass;
DELETE FROM rg_t WHERE id % 10 = 1;
RESET enable_seqscan;

-- range_scan
SELECT id, v FROM mixedcc.range_scan(NULL::rg_t, 100, 130);
SELECT id FROM mixedcc.range_scan(NULL::rg_t, 100, 130, false, false);
SELECT id FROM mixedcc.range_scan(NULL::rg_t, 100, 130, descending => true, max_rows => 2);
SELECT id FROM mixedcc.range_scan(NULL::rg_t, NULL, 30);
SELECT id FROM mixedcc.range_scan(NULL::rg_t, '290', NULL);
SELECT id FROM mixedcc.range_scan(NULL::rg_t, 15::smallint, 25::smallint);
SELECT count(*), min(id), max(id) FROM mixedcc.range_scan(NULL::rg_t);
SELECT count(*) FROM mixedcc.range_scan(NULL::rg_t, max_rows => 0);
SELECT id FROM mixedcc.range_scan(NULL::rg_t, 101, 109);
CREATE TABLE rg_later (id int PRIMARY KEY, gone int) USING mixedcc;
INSERT INTO rg_later VALUES (1, 1), (2, 2);
ALTER TABLE rg_later ADD COLUMN a int NOT NULL DEFAULT 7, ADD COLUMN b text DEFAULT 'later', DROP COLUMN gone;
INSERT INTO rg_later VALUES (3, 3, 'own'), (4, 4, NULL);
SELECT * FROM mixedcc.range_scan(NULL::rg_later);
SELECT mixedcc.range_scan(NULL::rg_later, 2, 3);
DROP TABLE rg_later;
CREATE TABLE rg_p (w int, d date, n text, v int) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.partition_by = 'w');
CREATE UNIQUE INDEX rg_p_key ON rg_p (w, d DESC, n);
INSERT INTO rg_p SELECT i % 3, date '2026-01-01' + i % 5, 'n' || i, i FROM generate_series(1, 30) i;
SELECT w, d, n FROM mixedcc.range_scan(NULL::rg_p, 1, 1, max_rows => 3);
SELECT w, d, n FROM mixedcc.range_scan(NULL::rg_p, ROW(1, date '2026-01-04'), ROW(1, date '2026-01-03'));
SELECT w, d, n FROM mixedcc.range_scan(NULL::rg_p, ROW(1, '2026-01-04'::date, 'n2'::text), ROW(2, '2026-01-04'::date), upper_inclusive => false);
SELECT w, d, n FROM mixedcc.range_scan(NULL::rg_p, 1, 1, descending => true, max_rows => 2);
BEGIN;
SELECT count(*) FROM mixedcc.range_scan(NULL::rg_p, 2, 2, max_rows => 2);
SELECT index, lower, upper FROM mixedcc.predicates;
COMMIT;
-- bounds of several columns; a NULL is in the order of keys
CREATE TABLE rg_r (a int NOT NULL, b int NOT NULL, c int, UNIQUE (a, b, c)) USING mixedcc;
INSERT INTO rg_r SELECT a, b, c FROM generate_series(1, 2) a, generate_series(1, 3) b, unnest(ARRAY[1, NULL]) c;
SELECT * FROM mixedcc.range_scan(NULL::rg_r, ROW(1, 2), ROW(2, 1));
SELECT * FROM mixedcc.range_scan(NULL::rg_r, ROW(1, 2), ROW(2, 1), false, false);
SELECT * FROM mixedcc.range_scan(NULL::rg_r, ROW(1, 3, 1), ROW(2, 1, 1), false, false);
SELECT * FROM mixedcc.range_scan(NULL::rg_r, ROW(1, 2), ROW(2, 1), descending => true, max_rows => 3);
ALTER TABLE rg_r DROP CONSTRAINT rg_r_a_b_c_key;
CREATE UNIQUE INDEX ON rg_r (a DESC, b DESC, c);
SELECT * FROM mixedcc.range_scan(NULL::rg_r, ROW(2, 1), ROW(1, 2));
SELECT * FROM mixedcc.range_scan(NULL::rg_r, ROW(2, 1), ROW(1, 2), false, false);
CREATE TYPE rg_bound AS (a int, gone int, b int);
ALTER TYPE rg_bound DROP ATTRIBUTE gone;
SELECT * FROM mixedcc.range_scan(NULL::rg_r, ROW(2, 1)::rg_bound, ROW(1, 2)::rg_bound);
DROP TYPE rg_bound;
DROP TABLE rg_r;
-- row-level security is not passed by
ALTER TABLE rg_p ENABLE ROW LEVEL SECURITY;
ALTER TABLE rg_p FORCE ROW LEVEL SECURITY;
CREATE ROLE rg_owner;
ALTER TABLE rg_p OWNER TO rg_owner;
SET ROLE rg_owner;
SELECT count(*) FROM mixedcc.range_scan(NULL::rg_p, 1, 1);
RESET ROLE;
-- errors
SELECT * FROM mixedcc.range_scan(NULL::rg_t, 200, 100);
SELECT * FROM mixedcc.range_scan(NULL::rg_t, now(), NULL);
SELECT * FROM mixedcc.range_scan(NULL::rg_t, 'x', NULL);
SELECT * FROM mixedcc.range_scan(NULL::rg_t, ROW(1, 2), NULL);
SELECT * FROM mixedcc.range_scan(NULL::rg_t, ROW(NULL), NULL);
SELECT * FROM mixedcc.range_scan(NULL::rg_t, max_rows => -1);
SELECT * FROM mixedcc.range_scan(1, 1, 2);
CREATE TABLE rg_heap (id int PRIMARY KEY) USING heap;
SELECT * FROM mixedcc.range_scan(NULL::rg_heap, 1, 2);
CREATE TABLE rg_none (id int) USING mixedcc;
SELECT * FROM mixedcc.range_scan(NULL::rg_none, 1, 2);

-- EXPLAIN
BEGIN ISOLATION LEVEL SERIALIZABLE;
EXPLAIN (COSTS OFF) SELECT * FROM rg_t WHERE id BETWEEN 100 AND 130;
EXPLAIN (COSTS OFF, VERBOSE) SELECT * FROM rg_p WHERE w = 1;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
SELECT * FROM run_plan('SELECT * FROM rg_t WHERE id BETWEEN 100 AND 130 ORDER BY id LIMIT 2');
DO $$ DECLARE plan jsonb; BEGIN  -- what is protected is a list
    EXECUTE 'EXPLAIN (COSTS OFF, ANALYZE, FORMAT JSON) SELECT * FROM rg_t WHERE id IN (100, 200) ORDER BY id' INTO plan;
    RAISE INFO '%', plan -> 0 -> 'mixedcc Protected Keys';
END $$;
COMMIT;
-- A cursor fails behind a savepoint, in a run or in a step back to its start: what it wanted of the
-- table is nothing that others want.
CREATE TABLE rg_cursor (a int, b int) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.partition_by = 'a');
CREATE INDEX ON rg_cursor (a);
INSERT INTO rg_cursor SELECT i, i FROM generate_series(1, 12) i;
CREATE TABLE rg_back (id int PRIMARY KEY) USING mixedcc;
INSERT INTO rg_back SELECT generate_series(1, 2000);
ANALYZE rg_cursor, rg_back;
SET enable_seqscan = on;
SET rg.n = 1;
BEGIN ISOLATION LEVEL SERIALIZABLE;
DECLARE c CURSOR FOR SELECT 1 / (b - 5) FROM rg_cursor WHERE a = 5;
SAVEPOINT s;
FETCH c;
ROLLBACK TO s;
COPY rg_cursor TO STDOUT;
SELECT index, lower, upper FROM mixedcc.predicates WHERE "table" = 'rg_cursor'::regclass ORDER BY 1, 2;
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SET LOCAL mixedcc.enable_primary_scan = off;
EXPLAIN (COSTS OFF) SELECT 1 / (b - 5) FROM rg_cursor WHERE a = 5 UNION ALL SELECT id FROM rg_back WHERE id = 1 / current_setting('rg.n')::int;
DECLARE c SCROLL CURSOR FOR SELECT b FROM rg_cursor WHERE a = 5 UNION ALL SELECT id FROM rg_back WHERE id = 1 / current_setting('rg.n')::int;
FETCH 2 FROM c;
SAVEPOINT s;
SET LOCAL rg.n = 0;
MOVE ABSOLUTE 0 FROM c;
ROLLBACK TO s;
FETCH c;
ROLLBACK TO s;
COPY rg_cursor TO STDOUT;
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT format('DECLARE c%s CURSOR FOR SELECT 1 / (b - 5) FROM rg_cursor WHERE a = 5', i) FROM generate_series(1, 9) i \gexec
SAVEPOINT s;
SELECT format('FETCH c%s', i), 'ROLLBACK TO s' FROM generate_series(1, 9) i \gexec
ALTER TABLE rg_cursor ADD r float DEFAULT random();
COMMIT;
SELECT count(*), count(r) FROM rg_cursor;
DROP TABLE rg_cursor, rg_back;
DROP TABLE rg_t, rg_p, rg_heap, rg_none;
DROP ROLE rg_owner;
RESET mixedcc.range_rows;
