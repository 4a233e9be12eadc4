-- Tables with two and with five unique keys of NOT NULL columns. mixedcc keeps the entries of four in
-- memory. `uk_ways` finds rows by each key in each way, and finds the same.
CREATE FUNCTION uk_ways("table" regclass, condition text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE w text; n text;
BEGIN
    FOREACH w IN ARRAY ARRAY['seq', 'custom', 'index', 'indexonly', 'bitmap'] LOOP
        PERFORM set_config('enable_seqscan', (w = 'seq')::text, true);
        PERFORM set_config('enable_indexscan', (w IN ('index', 'indexonly', 'custom'))::text, true);
        PERFORM set_config('enable_indexonlyscan', (w = 'indexonly')::text, true);
        PERFORM set_config('enable_bitmapscan', (w = 'bitmap')::text, true);
        EXECUTE format('SELECT count(*) || '' '' || coalesce(sum(a), 0) FROM %s WHERE %s', "table", condition) INTO n;
        RETURN NEXT n;
    END LOOP;
    PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_indexscan', 'on', true), set_config('enable_indexonlyscan', 'on', true),
        set_config('enable_bitmapscan', 'on', true);
END $$;
-- By every key of the table with five, and all of them together.
CREATE FUNCTION uk_keys("table" regclass) RETURNS SETOF text LANGUAGE sql AS $$
    SELECT DISTINCT c || ': ' || r FROM unnest(ARRAY['a = 17', 'b = ''b17''', 'c = -17', 'd BETWEEN 1700 AND 1790 AND e > 0', 'e IN (18, 17, 1000000)',
        'a > 0', 'b > ''b''', 'c < 0', 'd > 0', 'e > 0']) c, uk_ways("table", c) r ORDER BY 1 $$;
CREATE TABLE uk_t (a int PRIMARY KEY, b text COLLATE "C" NOT NULL UNIQUE, v int) USING mixedcc;
INSERT INTO uk_t SELECT i, 'b' || i, 0 FROM generate_series(1, 500) i;
SELECT DISTINCT uk_ways('uk_t', 'a = 17'), uk_ways('uk_t', 'b = ''b17''');
-- Duplicates of one key, of the other one, and of both.
INSERT INTO uk_t VALUES (17, 'new', 0);
INSERT INTO uk_t VALUES (1000, 'b17', 0);
INSERT INTO uk_t VALUES (18, 'b17', 0);
INSERT INTO uk_t VALUES (1000, 'x', 0), (1001, 'x', 0);
INSERT INTO uk_t VALUES (1000, 'x', 0), (1000, 'y', 0);
INSERT INTO uk_t VALUES (1000, NULL, 0);
SELECT DISTINCT uk_ways('uk_t', 'a >= 500 OR b >= ''b500''');
-- What failed has left nothing.
INSERT INTO uk_t VALUES (1000, 'x', 0), (1001, 'y', 0);
DELETE FROM uk_t WHERE a >= 1000;
-- ON CONFLICT with each arbiter, and with none.
INSERT INTO uk_t VALUES (17, 'n1', 1) ON CONFLICT DO NOTHING RETURNING a;
INSERT INTO uk_t VALUES (1001, 'b17', 1) ON CONFLICT DO NOTHING RETURNING a;
INSERT INTO uk_t VALUES (1001, 'n1', 1), (1001, 'n2', 1), (1002, 'n1', 1) ON CONFLICT DO NOTHING RETURNING a;
INSERT INTO uk_t VALUES (17, 'n3', 5) ON CONFLICT (a) DO UPDATE SET v = excluded.v RETURNING *;
INSERT INTO uk_t VALUES (1003, 'b17', 6) ON CONFLICT (b) DO UPDATE SET v = excluded.v RETURNING *;
INSERT INTO uk_t VALUES (1003, 'b17', 7) ON CONFLICT (a) DO UPDATE SET v = excluded.v;
INSERT INTO uk_t VALUES (17, 'n3', 7) ON CONFLICT (b) DO UPDATE SET v = excluded.v;
INSERT INTO uk_t VALUES (17, 'n3', 7) ON CONFLICT ON CONSTRAINT uk_t_b_key DO NOTHING;
-- It moves the row by its key, or by the other one.
INSERT INTO uk_t VALUES (17, 'n3', 8) ON CONFLICT (a) DO UPDATE SET b = excluded.b RETURNING *;
INSERT INTO uk_t VALUES (1004, 'n3', 9) ON CONFLICT (b) DO UPDATE SET a = excluded.a RETURNING *;
INSERT INTO uk_t VALUES (1004, 'n4', 9) ON CONFLICT (a) DO UPDATE SET b = 'b18' RETURNING *;
INSERT INTO uk_t VALUES (1005, 'n5', 1), (1005, 'n5', 2) ON CONFLICT (a) DO UPDATE SET v = excluded.v;
INSERT INTO uk_t VALUES (17, 'b17', 0);
SELECT DISTINCT uk_ways('uk_t', 'a IN (17, 1004)'), uk_ways('uk_t', 'b IN (''b17'', ''n3'')');
DELETE FROM uk_t WHERE a > 500;
-- Updates of one key, of both, of many rows, and to a key that is free later.
UPDATE uk_t SET b = 'b18' WHERE a = 17;
UPDATE uk_t SET a = 18 WHERE b = 'b17';
UPDATE uk_t SET a = a + 1000 WHERE a > 490;
UPDATE uk_t SET a = a - 1000, b = b || 'x' WHERE a > 1000;
UPDATE uk_t SET b = left(b, -1) WHERE b LIKE '%x';
UPDATE uk_t SET a = a + 1 WHERE a > 498;
UPDATE uk_t SET b = 'b' || (a + 1) WHERE a > 498;
SELECT DISTINCT uk_ways('uk_t', 'a > 490'), uk_ways('uk_t', 'b >= ''b49''');
BEGIN;
UPDATE uk_t SET a = 2000 WHERE a = 1;
INSERT INTO uk_t VALUES (1, 'free', 1);
UPDATE uk_t SET b = 'b1x' WHERE a = 2000;
INSERT INTO uk_t VALUES (2001, 'b1', 1);
SAVEPOINT s;
INSERT INTO uk_t VALUES (2002, 'b1x', 1);
ROLLBACK TO s;
DELETE FROM uk_t WHERE b IN ('free', 'b1');
UPDATE uk_t SET a = 1, b = 'b1' WHERE a = 2000;
SAVEPOINT s;
INSERT INTO uk_t VALUES (2000, 'b1', 1);
ROLLBACK TO s;
INSERT INTO uk_t VALUES (2000, 'b1x', 1);
SAVEPOINT s;
DELETE FROM uk_t WHERE a = 2000;
INSERT INTO uk_t VALUES (2000, 'b1x', 2);
ROLLBACK TO s;
SAVEPOINT s;
INSERT INTO uk_t VALUES (2000, 'other', 2);
ROLLBACK TO s;
SAVEPOINT s;
INSERT INTO uk_t VALUES (2003, 'b1x', 2);
ROLLBACK TO s;
COMMIT;
SELECT DISTINCT uk_ways('uk_t', 'a IN (1, 2000)'), uk_ways('uk_t', 'b IN (''b1'', ''b1x'')');
MERGE INTO uk_t USING (VALUES (1, 'b1'), (3000, 'm')) s (a, b) ON uk_t.b = s.b
    WHEN MATCHED THEN UPDATE SET a = 5000 WHEN NOT MATCHED THEN INSERT VALUES (s.a, s.b, 0);
SELECT DISTINCT uk_ways('uk_t', 'a IN (1, 3000, 5000)'), uk_ways('uk_t', 'b IN (''b1'', ''m'')');
UPDATE uk_t SET a = 1 WHERE a = 5000;
DELETE FROM uk_t WHERE a > 500;
-- Five keys. The last ones are a constraint's, and one of two columns.
CREATE TABLE uk_f (a int NOT NULL, b text COLLATE "C" NOT NULL, c bigint NOT NULL, d int NOT NULL, e int NOT NULL, v int) USING mixedcc;
INSERT INTO uk_f SELECT i, 'b' || i, -i, 100 * i, i, 0 FROM generate_series(1, 300) i;
CREATE UNIQUE INDEX uk_f_b ON uk_f (b);
ALTER TABLE uk_f ADD PRIMARY KEY (a);
CREATE UNIQUE INDEX uk_f_c ON uk_f (c);
ALTER TABLE uk_f ADD CONSTRAINT uk_f_d UNIQUE (d, e), ADD CONSTRAINT uk_f_e UNIQUE (e);
INSERT INTO uk_f SELECT i, 'b' || i, -i, 100 * i, i, 0 FROM generate_series(301, 400) i;
SELECT * FROM uk_keys('uk_f');
INSERT INTO uk_f VALUES (17, 'n', 1, 1, 1001, 0);
INSERT INTO uk_f VALUES (1001, 'b17', 1, 1, 1001, 0);
INSERT INTO uk_f VALUES (1001, 'n', -17, 1, 1001, 0);
INSERT INTO uk_f VALUES (1001, 'n', 1, 1700, 17, 0);
INSERT INTO uk_f VALUES (1001, 'n', 1, 1, 17, 0);
INSERT INTO uk_f VALUES (1001, 'n', 1, 1700, 1001, 0);
INSERT INTO uk_f VALUES (1002, 'n', 2, 2, 1002, 0), (1003, 'm', 1, 2, 1003, 0);
INSERT INTO uk_f VALUES (1002, 'm', 2, 2, 1002, 0), (1003, 'm2', 3, 2, 1003, 0);
INSERT INTO uk_f VALUES (1, 'x', 9, 9, 9, 1), (5000, 'b2', 9, 9, 9999, 1), (5000, 'x', -3, 9, 9999, 1), (5000, 'x', 9, 9, 4, 1), (5000, 'x', 9, 9, 9999, 1)
    ON CONFLICT DO NOTHING RETURNING a;
INSERT INTO uk_f VALUES (5001, 'x', 10, 9, 9998, 5) ON CONFLICT (b) DO UPDATE SET v = excluded.v, e = excluded.e RETURNING a, e, v;
INSERT INTO uk_f VALUES (5001, 'y', 9, 9, 9997, 6) ON CONFLICT (c) DO UPDATE SET v = excluded.v, a = excluded.a RETURNING a, e, v;
INSERT INTO uk_f VALUES (5002, 'y', 10, 9, 9998, 7) ON CONFLICT (d, e) DO UPDATE SET v = excluded.v, b = excluded.b RETURNING a, e, v;
INSERT INTO uk_f VALUES (5002, 'z', 10, 10, 9998, 8) ON CONFLICT (e) DO UPDATE SET v = excluded.v, c = excluded.c RETURNING a, e, v;
INSERT INTO uk_f VALUES (5001, 'z', 11, 11, 9996, 9) ON CONFLICT (a) DO UPDATE SET v = excluded.v, d = excluded.d RETURNING a, e, v;
INSERT INTO uk_f VALUES (5001, 'b3', 11, 11, 9996, 9) ON CONFLICT (a) DO UPDATE SET b = excluded.b;
DELETE FROM uk_f WHERE a > 1000;
SELECT * FROM uk_keys('uk_f');
UPDATE uk_f SET a = a + 10000, b = b || 'y', c = c - 10000, d = d + 1, e = e + 10000;
UPDATE uk_f SET a = a - 10000, b = left(b, -1), c = c + 10000, d = d - 1, e = e - 10000;
UPDATE uk_f SET v = v + 1;
DELETE FROM uk_f;
INSERT INTO uk_f SELECT i, 'b' || i, -i, 100 * i, i, 0 FROM generate_series(1, 400) i;
SELECT * FROM uk_keys('uk_f');
-- COPY: a duplicate of the last key undoes all.
COPY uk_f FROM STDIN;
2001	c1	1	1	2001	0
2002	c2	2	2	2002	0
2003	c3	3	3	2001	0
\.
COPY uk_f FROM STDIN;
2001	c1	1	1	2001	0
2002	c2	2	2	2002	0
\.
SELECT count(*) FROM uk_f;
DELETE FROM uk_f WHERE a > 2000;
-- Foreign keys to each.
CREATE TABLE uk_r (a int REFERENCES uk_f, b text COLLATE "C" REFERENCES uk_f (b) ON UPDATE CASCADE, e int REFERENCES uk_f (e) ON DELETE CASCADE) USING mixedcc;
INSERT INTO uk_r VALUES (1, 'b2', 3);
INSERT INTO uk_r VALUES (1, 'none', 3);
INSERT INTO uk_r VALUES (1, 'b2', 99999);
UPDATE uk_f SET b = 'bb2' WHERE a = 2;
SELECT * FROM uk_r;
DELETE FROM uk_f WHERE a = 1;
DELETE FROM uk_f WHERE a = 3;
SELECT count(*) FROM uk_r;
UPDATE uk_f SET b = 'b2' WHERE a = 2;
INSERT INTO uk_f VALUES (3, 'b3', -3, 300, 3, 0);
DROP TABLE uk_r;
-- A key that goes lets its duplicates in; one that comes finds them.
BEGIN;
DROP INDEX uk_f_c;
INSERT INTO uk_f VALUES (1001, 'd1', -17, 1, 1001, 0);
SAVEPOINT s;
INSERT INTO uk_f VALUES (1002, 'b17', -17, 1, 1002, 0);
ROLLBACK TO s;
CREATE UNIQUE INDEX uk_f_c ON uk_f (c);
ROLLBACK;
INSERT INTO uk_f VALUES (1001, 'd1', -17, 1, 1001, 0);
SELECT * FROM uk_keys('uk_f');
BEGIN;
ALTER TABLE uk_f DROP CONSTRAINT uk_f_pkey;
INSERT INTO uk_f VALUES (17, 'd1', 1, 1, 1001, 0);
DELETE FROM uk_f WHERE b = 'd1';
ALTER TABLE uk_f ADD PRIMARY KEY (a);
SAVEPOINT s;
INSERT INTO uk_f VALUES (17, 'd1', 1, 1, 1001, 0);
ROLLBACK TO s;
INSERT INTO uk_f VALUES (1001, 'd1', 1, 1, 1001, 0);
COMMIT;
DELETE FROM uk_f WHERE a > 1000;
BEGIN;
ALTER TABLE uk_f ALTER c DROP NOT NULL, ALTER e DROP NOT NULL;
INSERT INTO uk_f VALUES (1001, 'd1', NULL, 1, NULL, 0), (1002, 'd2', NULL, 1, NULL, 0);
SAVEPOINT s;
INSERT INTO uk_f VALUES (1003, 'd3', -17, 1, 1003, 0);
ROLLBACK TO s;
SAVEPOINT s;
INSERT INTO uk_f VALUES (1003, 'd3', 1, 1, 17, 0);
ROLLBACK TO s;
SELECT DISTINCT uk_ways('uk_f', 'c IS NULL'), uk_ways('uk_f', 'e IS NULL');
ROLLBACK;
SELECT * FROM uk_keys('uk_f');
BEGIN;
TRUNCATE uk_f;
INSERT INTO uk_f VALUES (1, 'b1', 1, 1, 1, 0), (17, 'b17', -17, 1700, 17, 0);
SAVEPOINT s;
INSERT INTO uk_f VALUES (2, 'b2', 1, 2, 2, 0);
ROLLBACK TO s;
SELECT * FROM uk_keys('uk_f');
ROLLBACK;
INSERT INTO uk_f VALUES (1001, 'd1', -17, 1, 1001, 0);
-- Rewrites, other access methods.
ALTER TABLE uk_f ALTER c TYPE int;
INSERT INTO uk_f VALUES (1001, 'd1', -17, 1, 1001, 0);
SELECT * FROM uk_keys('uk_f');
ALTER TABLE uk_f SET ACCESS METHOD heap;
INSERT INTO uk_f VALUES (1001, 'd1', -17, 1, 1001, 0);
ALTER TABLE uk_f SET ACCESS METHOD mixedcc;
INSERT INTO uk_f VALUES (1001, 'd1', 1, 1, 17, 0);
SELECT * FROM uk_keys('uk_f');
CLUSTER uk_f USING uk_f_b;
REINDEX TABLE uk_f;
INSERT INTO uk_f VALUES (1001, 'b17', 1, 1, 1001, 0);
SELECT * FROM uk_keys('uk_f');
ALTER TABLE uk_f SET UNLOGGED;
INSERT INTO uk_f VALUES (1001, 'd1', -17, 1, 1001, 0);
SELECT * FROM uk_keys('uk_f');
ALTER TABLE uk_f SET LOGGED;
INSERT INTO uk_f VALUES (1001, 'd1', -17, 1, 1001, 0);
SELECT * FROM uk_keys('uk_f');
-- Partitions with keys of their parent, and of their own.
CREATE TABLE uk_p (a int, b int NOT NULL, c int NOT NULL, PRIMARY KEY (a), UNIQUE (a, b)) PARTITION BY RANGE (a);
CREATE TABLE uk_p1 PARTITION OF uk_p FOR VALUES FROM (1) TO (1000) USING mixedcc;
CREATE TABLE uk_p2 (a int NOT NULL, b int NOT NULL, c int NOT NULL) USING mixedcc;
CREATE UNIQUE INDEX uk_p2_c ON uk_p2 (c);
INSERT INTO uk_p2 SELECT i, i, i FROM generate_series(1001, 1100) i;
INSERT INTO uk_p SELECT i, i, i FROM generate_series(1, 100) i;
ALTER TABLE uk_p ATTACH PARTITION uk_p2 FOR VALUES FROM (1000) TO (2000);
INSERT INTO uk_p VALUES (1001, 1, 1);
INSERT INTO uk_p VALUES (1101, 1, 1001);
INSERT INTO uk_p VALUES (17, 1, 1001);
UPDATE uk_p SET a = 1200 WHERE a = 17;
UPDATE uk_p SET a = 1001 WHERE a = 18;
ALTER TABLE uk_p DETACH PARTITION uk_p2;
INSERT INTO uk_p2 VALUES (1001, 1, 1);
INSERT INTO uk_p2 VALUES (1102, 1, 1001);
SELECT DISTINCT uk_ways('uk_p2', 'a > 1050'), uk_ways('uk_p2', 'c BETWEEN 17 AND 1010');
DROP TABLE uk_t, uk_f, uk_p, uk_p2;
DROP FUNCTION uk_ways, uk_keys;
