-- The index of a PRIMARY KEY: what PostgreSQL does with it that is no plain statement, in all states
-- of a transaction. Changes of the catalogs make invalidations in between.
CREATE TABLE ki (a int, b text COLLATE "C", v int, PRIMARY KEY (a, b)) USING mixedcc;
CREATE INDEX ki_v ON ki (v);
CREATE TABLE ki_other (x int);
CREATE FUNCTION ki_invalidate() RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'ALTER TABLE ki_other ALTER x SET STATISTICS ' || (random() * 100)::int;
    UPDATE pg_class SET relpages = relpages WHERE relname IN ('ki', 'ki_pkey', 'ki_one', 'ki_one_pkey');
    RETURN 0;
END $$;
INSERT INTO ki SELECT i / 10, 'b' || i % 10, i FROM generate_series(1, 2000) i;
ANALYZE ki;
-- Every way to scan it, with every kind of condition.
CREATE FUNCTION ki_scans() RETURNS TABLE (way text, condition text, n bigint, s text) LANGUAGE plpgsql AS $$
DECLARE c text; w text;
BEGIN
    FOREACH w IN ARRAY ARRAY['seq', 'index', 'indexonly', 'bitmap'] LOOP
        PERFORM set_config('enable_seqscan', (w = 'seq')::text, true);
        PERFORM set_config('enable_indexscan', (w IN ('index', 'indexonly'))::text, true);
        PERFORM set_config('enable_indexonlyscan', (w = 'indexonly')::text, true);
        PERFORM set_config('enable_bitmapscan', (w = 'bitmap')::text, true);
        FOREACH c IN ARRAY ARRAY[
            'a = 17', 'a = 17 AND b = ''b3''', 'a = 17::bigint', 'a > 195', 'a >= 195 AND a < 197', 'a < 2 AND b > ''b5''',
            'a IN (3, 5, 5, NULL, 9000)', 'a IN (3, 5) AND b IN (''b1'', ''b0'')', 'a < 5 AND b IN (''b1'', ''b7'')',
            '(a, b) > (198, ''b7'')', '(a, b) <= (1, ''b1'')', '(a, b) < (2, NULL)', 'b = ''b4'' AND a > 190', 'a IS NULL', 'a IS NOT NULL AND a < 1',
            'a = ANY (ARRAY[]::int[])', 'a > ANY (ARRAY[196, 199])', 'a BETWEEN 10 AND 9', 'b = ''b4''::name AND a = 7']
        LOOP
            way := w; condition := c;
            EXECUTE 'SELECT count(*), string_agg(a || b, '' '' ORDER BY a, b COLLATE "C") FROM (SELECT a, b FROM ki WHERE ' || c || ' ORDER BY a LIMIT 30) q'
                INTO n, s;
            RETURN NEXT;
        END LOOP;
    END LOOP;
END $$;
SELECT condition, count(*), count(DISTINCT (n, s)) AS answers, min(n) AS n, left(min(s), 60) FROM ki_scans() GROUP BY 1 ORDER BY 1;
-- Order, both directions, cursors that turn, merge joins that go back to a mark.
BEGIN;
SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off;
SELECT a, b FROM ki ORDER BY a DESC, b DESC LIMIT 3;
DECLARE c SCROLL CURSOR FOR SELECT a, b FROM ki WHERE a IN (1, 3, 199) ORDER BY a, b;
FETCH 3 FROM c;
FETCH BACKWARD 2 FROM c;
FETCH 12 FROM c;
FETCH BACKWARD 4 FROM c;
MOVE FORWARD ALL IN c;
FETCH BACKWARD 2 FROM c;
SELECT ki_invalidate();
FETCH FIRST FROM c;
FETCH BACKWARD FROM c;
FETCH NEXT FROM c;
SET LOCAL enable_hashjoin = off; SET LOCAL enable_nestloop = off; SET LOCAL enable_material = off;
SELECT count(*), sum(x.v), sum(y.v) FROM ki x JOIN ki y USING (a);
SELECT count(*) FROM ki x LEFT JOIN ki y ON x.a = y.a AND x.b = y.b WHERE x.a < 50;
COMMIT;
SELECT min(a), max(a) FROM ki;
-- Duplicates: messages and what they name; the row after an error is not there.
INSERT INTO ki VALUES (1, 'b1', 0);
INSERT INTO ki VALUES (900, 'x', 1), (901, 'x', 1), (900, 'x', 2);
INSERT INTO ki SELECT 900, 'x', i FROM generate_series(1, 3) i;
UPDATE ki SET a = 2 WHERE a = 1 AND b = 'b1';
UPDATE ki SET a = a WHERE a = 1;
UPDATE ki SET v = v + 1 WHERE a = 1;
UPDATE ki SET b = b || 'y', v = -v WHERE a = 1;
UPDATE ki SET b = left(b, 2), v = -v WHERE a = 1;
SELECT count(*), sum(v) FROM ki WHERE a = 1;
COPY ki FROM stdin;
900	x	1
900	y	1
900	x	2
\.
SELECT count(*) FROM ki WHERE a >= 900;
DO $$
DECLARE c text; t text; d text;
BEGIN
    INSERT INTO ki VALUES (1, 'b1', 0);
EXCEPTION WHEN unique_violation THEN
    GET STACKED DIAGNOSTICS c = CONSTRAINT_NAME, t = TABLE_NAME, d = PG_EXCEPTION_DETAIL;
    RAISE NOTICE '% % %', c, t, d;
END $$;
-- A command that moves all keys by one meets its own rows, as nbtree does.
CREATE TABLE ki_one (id int PRIMARY KEY, v int) USING mixedcc;
INSERT INTO ki_one SELECT i, i FROM generate_series(1, 20) i;
UPDATE ki_one SET id = id - 1;
UPDATE ki_one SET id = id + 1;
DELETE FROM ki_one WHERE id = 5; INSERT INTO ki_one VALUES (5, 50);
BEGIN; DELETE FROM ki_one WHERE id = 6; INSERT INTO ki_one VALUES (6, 60); INSERT INTO ki_one VALUES (6, 61); ROLLBACK;
BEGIN; INSERT INTO ki_one VALUES (100, 1); DELETE FROM ki_one WHERE id = 100; INSERT INTO ki_one VALUES (100, 2);
SAVEPOINT s; DELETE FROM ki_one WHERE id = 100; INSERT INTO ki_one VALUES (100, 3); ROLLBACK TO s;
INSERT INTO ki_one VALUES (100, 4); ROLLBACK TO s; SELECT v FROM ki_one WHERE id = 100; COMMIT;
INSERT INTO ki_one VALUES (100, 5);
-- ON CONFLICT.
INSERT INTO ki_one VALUES (1, 1), (200, 1), (200, 2) ON CONFLICT DO NOTHING;
INSERT INTO ki_one VALUES (1, 11), (201, 1) ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING *;
INSERT INTO ki_one VALUES (202, 1), (202, 2) ON CONFLICT (id) DO UPDATE SET v = excluded.v;
INSERT INTO ki_one VALUES (1, 12), (300, 3) ON CONFLICT ON CONSTRAINT ki_one_pkey DO UPDATE SET id = ki_one.id + 1000 RETURNING *;
INSERT INTO ki_one SELECT i % 7 + 400, ki_invalidate() FROM generate_series(1, 50) i ON CONFLICT DO NOTHING;
SELECT count(*), sum(id), sum(v) FROM ki_one;
-- Foreign keys both ways.
CREATE TABLE ki_ref (id int PRIMARY KEY, r int REFERENCES ki_one ON UPDATE CASCADE ON DELETE SET NULL) USING mixedcc;
INSERT INTO ki_ref SELECT i, i FROM generate_series(2, 10) i;
INSERT INTO ki_ref VALUES (99, 9999);
UPDATE ki_one SET id = 5000 WHERE id = 2;
DELETE FROM ki_one WHERE id = 3;
SELECT * FROM ki_ref WHERE id < 5 ORDER BY id;
-- Invalidations between every two rows.
INSERT INTO ki_one SELECT i, ki_invalidate() FROM generate_series(2001, 2020) i;
INSERT INTO ki_one SELECT i, ki_invalidate() FROM generate_series(2015, 2040) i;
UPDATE ki_one SET v = ki_invalidate() + id WHERE id > 2000;
SELECT count(*), sum(v) FROM ki_one WHERE id > 2000;
-- Made and filled in one transaction, truncated, rolled back.
BEGIN;
CREATE TABLE ki_new (id int PRIMARY KEY, v int) USING mixedcc;
INSERT INTO ki_new SELECT i, i FROM generate_series(1, 100) i;
SAVEPOINT s;
INSERT INTO ki_new VALUES (50, 0);
ROLLBACK TO s;
TRUNCATE ki_new;
INSERT INTO ki_new SELECT i, i FROM generate_series(1, 10) i;
SAVEPOINT s;
INSERT INTO ki_new VALUES (5, 0);
ROLLBACK TO s;
REINDEX TABLE ki_new;
INSERT INTO ki_new VALUES (11, 11);
COMMIT;
INSERT INTO ki_new VALUES (11, 0);
BEGIN; TRUNCATE ki_new; INSERT INTO ki_new VALUES (1, 100); REINDEX INDEX ki_new_pkey; SELECT * FROM ki_new WHERE id = 1; ROLLBACK;
SELECT count(*), sum(v) FROM ki_new WHERE id BETWEEN 1 AND 1000;
BEGIN; REINDEX TABLE ki_new; INSERT INTO ki_new VALUES (12, 12); ROLLBACK;
INSERT INTO ki_new VALUES (12, 12), (1, 0) ON CONFLICT DO NOTHING;
SELECT count(*) FROM ki_new;
-- The key comes and goes.
BEGIN; ALTER TABLE ki_new DROP CONSTRAINT ki_new_pkey; INSERT INTO ki_new VALUES (1, 1000); ROLLBACK;
SELECT * FROM ki_new WHERE id = 1;
INSERT INTO ki_new VALUES (1, 0);
ALTER TABLE ki_new DROP CONSTRAINT ki_new_pkey;
INSERT INTO ki_new VALUES (1, 1000);
ALTER TABLE ki_new ADD PRIMARY KEY (id);
DELETE FROM ki_new WHERE v = 1000;
ALTER TABLE ki_new ADD PRIMARY KEY (id);
INSERT INTO ki_new VALUES (1, 0);
ALTER TABLE ki_new DROP CONSTRAINT ki_new_pkey, ADD PRIMARY KEY (id);
INSERT INTO ki_new VALUES (2, 0);
BEGIN; ALTER TABLE ki_new DROP CONSTRAINT ki_new_pkey, ADD PRIMARY KEY (id, v); INSERT INTO ki_new VALUES (3, 0); ROLLBACK;
INSERT INTO ki_new VALUES (3, 0);
-- NULLs are no duplicates while the key is made. The command finds them later, as NULLs.
CREATE TABLE ki_null (id int, b int) USING mixedcc;
INSERT INTO ki_null VALUES (NULL, 1), (NULL, 2), (1, 3);
ALTER TABLE ki_null ADD PRIMARY KEY (id);
ALTER TABLE ki_null ADD PRIMARY KEY (b, id);
INSERT INTO ki_null VALUES (1, 4);
ALTER TABLE ki_null ADD PRIMARY KEY (id);
DELETE FROM ki_null WHERE id IS NULL OR b = 4;
ALTER TABLE ki_null ADD PRIMARY KEY (id);
INSERT INTO ki_null VALUES (NULL, 5);
INSERT INTO ki_null VALUES (1, 5), (NULL, 5);
INSERT INTO ki_null VALUES (NULL, 5) ON CONFLICT DO NOTHING;
INSERT INTO ki_null VALUES (NULL, 5) ON CONFLICT (id) DO UPDATE SET b = 6;
INSERT INTO ki_null VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET id = NULL;
UPDATE ki_null SET id = NULL;
COPY ki_null FROM stdin;
\N	5
\.
CREATE DOMAIN ki_never AS int NOT NULL;
CREATE TABLE ki_domain (id ki_never PRIMARY KEY) USING mixedcc;
INSERT INTO ki_domain VALUES (1), (2);
INSERT INTO ki_domain VALUES (NULL);
UPDATE ki_domain SET id = NULL;
SELECT count(*) FROM ki_null WHERE id = 1;
DROP TABLE ki_null, ki_domain;
DROP DOMAIN ki_never;
-- A key of an index that was there before: nbtree's, until REINDEX.
CREATE UNIQUE INDEX ki_new_u ON ki_new (id);
BEGIN; ALTER TABLE ki_new DROP CONSTRAINT ki_new_pkey, ADD PRIMARY KEY USING INDEX ki_new_u; INSERT INTO ki_new VALUES (20, 0); ROLLBACK;
INSERT INTO ki_new VALUES (4, 0);
INSERT INTO ki_new VALUES (20, 20);
ALTER TABLE ki_new DROP CONSTRAINT ki_new_pkey, ADD PRIMARY KEY USING INDEX ki_new_u;
INSERT INTO ki_new VALUES (20, 0);
INSERT INTO ki_new VALUES (21, 21);
BEGIN; REINDEX INDEX ki_new_u; INSERT INTO ki_new VALUES (22, 22); INSERT INTO ki_new VALUES (21, 0); ROLLBACK;
INSERT INTO ki_new VALUES (22, 22);
INSERT INTO ki_new VALUES (22, 0);
REINDEX TABLE ki_new;
INSERT INTO ki_new VALUES (22, 0);
INSERT INTO ki_new VALUES (23, 23);
SELECT count(*), sum(v) FROM ki_new WHERE id > 0;
-- INCLUDE columns and deferrable keys are nbtree's.
CREATE TABLE ki_inc (id int, v int, PRIMARY KEY (id) INCLUDE (v)) USING mixedcc;
INSERT INTO ki_inc SELECT i, i FROM generate_series(1, 100) i;
INSERT INTO ki_inc VALUES (7, 0);
CREATE TABLE ki_def (id int PRIMARY KEY DEFERRABLE, v int) USING mixedcc;
INSERT INTO ki_def SELECT i, i FROM generate_series(1, 100) i;
UPDATE ki_def SET id = id + 1;
INSERT INTO ki_def VALUES (7, 0);
BEGIN; SET LOCAL enable_seqscan = off; SELECT id, v FROM ki_inc WHERE id = 7; SELECT * FROM ki_def WHERE id = 7; COMMIT;
-- Types and rewrites.
ALTER TABLE ki_one ALTER id TYPE bigint;
INSERT INTO ki_one VALUES (5000, 0);
ALTER TABLE ki ALTER b TYPE varchar(20) COLLATE "C";
ALTER TABLE ki ALTER b TYPE varchar(30) COLLATE "C";
INSERT INTO ki VALUES (1, 'b1', 0);
INSERT INTO ki VALUES (1, 'new', 0);
SELECT count(*) FROM ki WHERE a = 1;
ALTER TABLE ki ALTER a TYPE numeric;
INSERT INTO ki VALUES (1.0, 'new', 0);
ALTER TABLE ki ALTER a TYPE int;
INSERT INTO ki VALUES (1, 'new', 0);
-- To heap and back, within a transaction and without.
BEGIN;
SELECT count(*) FROM ki_new WHERE id = 1;
ALTER TABLE ki_new SET ACCESS METHOD heap;
SET LOCAL enable_seqscan = off;
SELECT count(*) FROM ki_new WHERE id > 0;
INSERT INTO ki_new VALUES (30, 30);
SAVEPOINT s; INSERT INTO ki_new VALUES (30, 0); ROLLBACK TO s;
SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off;
SELECT count(*) FROM ki_new WHERE id > 0;
ALTER TABLE ki_new SET ACCESS METHOD mixedcc;
SELECT count(*) FROM ki_new WHERE id > 0;
SAVEPOINT s; INSERT INTO ki_new VALUES (30, 0); ROLLBACK TO s;
COMMIT;
SELECT count(*) FROM ki_new WHERE id > 0;
-- Partitions.
CREATE TABLE ki_p (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE ki_p1 PARTITION OF ki_p FOR VALUES FROM (0) TO (100) USING mixedcc;
CREATE TABLE ki_p2 (id int NOT NULL, v int) USING mixedcc;
INSERT INTO ki_p2 SELECT i, i FROM generate_series(100, 199) i;
INSERT INTO ki_p2 VALUES (150, 0);
ALTER TABLE ki_p ATTACH PARTITION ki_p2 FOR VALUES FROM (100) TO (200);
DELETE FROM ki_p2 WHERE v = 0;
ALTER TABLE ki_p ATTACH PARTITION ki_p2 FOR VALUES FROM (100) TO (200);
INSERT INTO ki_p SELECT i, i FROM generate_series(1, 99) i;
INSERT INTO ki_p VALUES (150, 0);
UPDATE ki_p SET id = id + 100 WHERE id = 50;
DELETE FROM ki_p WHERE id = 150;
UPDATE ki_p SET id = id + 100 WHERE id = 50;
SELECT count(*), sum(id) FROM ki_p;
ALTER TABLE ki_p DETACH PARTITION ki_p2;
INSERT INTO ki_p2 VALUES (150, 0);
-- VACUUM, ANALYZE, and what was deleted.
DELETE FROM ki_one WHERE id % 3 = 0;
VACUUM ki_one;
INSERT INTO ki_one SELECT i, 0 FROM generate_series(3, 18, 3) i;
VACUUM ANALYZE ki_one;
INSERT INTO ki_one VALUES (3, 0);
SELECT count(*), sum(id) FROM ki_one;
-- Rows in bulk: some have no entry yet when PostgreSQL comes with them (INV-MADE).
CREATE TABLE ki_bulk (id int PRIMARY KEY, v int) USING mixedcc;
CREATE INDEX ON ki_bulk (v);
INSERT INTO ki_bulk SELECT i, 0 FROM generate_series(1, 5) i;
INSERT INTO ki_bulk SELECT i, 1 FROM generate_series(8, 3, -1) i;
COPY ki_bulk FROM stdin;
6	2
7	2
5	2
8	2
\.
INSERT INTO ki_bulk SELECT i, 3 FROM generate_series(4, 9) i ON CONFLICT (id) DO NOTHING;
INSERT INTO ki_bulk SELECT i, 4 FROM generate_series(8, 10) i ON CONFLICT (id) DO UPDATE SET v = 4;
UPDATE ki_bulk SET id = id + 1;
UPDATE ki_bulk SET id = id + 10;
SELECT id, v FROM ki_bulk ORDER BY id;
BEGIN;
INSERT INTO ki_bulk SELECT i, 5 FROM generate_series(1, 3) i;
SAVEPOINT s;
INSERT INTO ki_bulk SELECT i, 6 FROM generate_series(4, 6) i;
ROLLBACK TO s;
INSERT INTO ki_bulk SELECT i, 7 FROM generate_series(4, 6) i;
INSERT INTO ki_bulk SELECT i, 8 FROM generate_series(7, 5, -1) i;
ROLLBACK TO s;
TRUNCATE ki_bulk;
INSERT INTO ki_bulk SELECT i, 9 FROM generate_series(1, 3) i;
SAVEPOINT s2;
INSERT INTO ki_bulk VALUES (4, 9), (5, 9), (4, 10);
ROLLBACK TO s2;
INSERT INTO ki_bulk SELECT i, 9 FROM generate_series(4, 6) i;
COMMIT;
INSERT INTO ki_bulk VALUES (7, 10), (6, 10);
SELECT id, v FROM ki_bulk ORDER BY id;
DROP TABLE ki, ki_other, ki_ref, ki_one, ki_new, ki_inc, ki_def, ki_p, ki_p2, ki_bulk;
DROP FUNCTION ki_invalidate, ki_scans;
