-- INSERT, UPDATE, DELETE, MERGE, ON CONFLICT, RETURNING, and what a statement sees of itself.
CREATE TABLE dm_t (id int PRIMARY KEY, g int, v text) USING mixedcc;
INSERT INTO dm_t VALUES (1, 10, 'one');
INSERT INTO dm_t VALUES (2, 20, 'two'), (3, 30, 'three'), (4, 40, 'four') RETURNING id, v || '!' AS bang;
INSERT INTO dm_t SELECT i, i * 10, 'n' || i FROM generate_series(5, 8) i;
SELECT * FROM dm_t ORDER BY id;
-- Updates of a plain column, of the key, of both, without a change.
UPDATE dm_t SET v = 'ONE' WHERE id = 1 RETURNING *;
UPDATE dm_t SET id = 12 WHERE id = 2 RETURNING *;
WITH u AS (UPDATE dm_t SET id = id + 100, v = v || '+' WHERE id IN (3, 4) RETURNING *) SELECT * FROM u ORDER BY id;
UPDATE dm_t SET id = id WHERE id = 5 RETURNING *;
UPDATE dm_t SET (g, v) = (SELECT 0, 'sub') WHERE id = 6;
UPDATE dm_t SET v = NULL WHERE id = 999 RETURNING *;
DELETE FROM dm_t WHERE id = 7 RETURNING id, v;
DELETE FROM dm_t WHERE id = 7;
SELECT * FROM dm_t ORDER BY id;
INSERT INTO dm_t VALUES (7, 70, 'again');
INSERT INTO dm_t VALUES (2, 21, 'new two');
INSERT INTO dm_t VALUES (1, 0, 'duplicate');
INSERT INTO dm_t VALUES (50, 0, 'a'), (50, 0, 'b');
UPDATE dm_t SET id = 1 WHERE id = 2;
SELECT * FROM dm_t ORDER BY id;
-- Key to a key that the same transaction gave up, and back.
BEGIN;
DELETE FROM dm_t WHERE id = 1;
INSERT INTO dm_t VALUES (1, 11, 'reborn');
UPDATE dm_t SET id = 1000 WHERE id = 1;
UPDATE dm_t SET id = 1 WHERE id = 1000;
UPDATE dm_t SET v = v || '.' WHERE id = 1;
SELECT * FROM dm_t WHERE id IN (1, 1000);
ROLLBACK;
SELECT * FROM dm_t WHERE id IN (1, 1000);
-- A permutation of keys meets the immediate unique check.
UPDATE dm_t SET id = id + 1 WHERE id IN (1, 2);
UPDATE dm_t SET id = -id;
SELECT array_agg(id ORDER BY id) FROM dm_t;
TRUNCATE dm_t;

-- Halloween: an update along the index that it changes; inserting a table into itself.
INSERT INTO dm_t SELECT i, i, 'h' FROM generate_series(1, 100) i;
CREATE INDEX dm_g ON dm_t (g);
SET enable_seqscan = off;
UPDATE dm_t SET g = g + 1000 WHERE g > 0;
SELECT min(g), max(g), count(*), count(DISTINCT g) FROM dm_t;
RESET enable_seqscan;
INSERT INTO dm_t SELECT id + 100, g, v FROM dm_t;
SELECT count(*), max(id) FROM dm_t;
UPDATE dm_t SET id = id + 1000 WHERE id > 0;
SELECT count(*), min(id), max(id) FROM dm_t;
DELETE FROM dm_t WHERE id IN (SELECT id FROM dm_t WHERE id % 3 = 0);
SELECT count(*) FROM dm_t;
TRUNCATE dm_t;
-- One row met twice by a join: the first wins, the second is ignored.
INSERT INTO dm_t VALUES (1, 0, 'a'), (2, 0, 'b');
UPDATE dm_t SET g = g + x FROM (VALUES (1, 5), (1, 5), (2, 7)) s (k, x) WHERE id = k;
SELECT * FROM dm_t ORDER BY id;
DELETE FROM dm_t USING (VALUES (1), (1)) s (k) WHERE id = k;
SELECT * FROM dm_t ORDER BY id;
-- Data-modifying WITH: all parts see the same snapshot.
WITH del AS (DELETE FROM dm_t WHERE id = 2 RETURNING *), ins AS (INSERT INTO dm_t SELECT id + 1, g, v FROM del RETURNING *)
    SELECT (SELECT count(*) FROM dm_t) AS seen, del.id AS deleted, ins.id AS inserted FROM del, ins;
WITH a AS (UPDATE dm_t SET v = 'first' RETURNING *), b AS (UPDATE dm_t SET v = 'second' RETURNING *)
    SELECT count(*) FROM dm_t WHERE v IN ('first', 'second');
SELECT id, g, v IN ('first', 'second') AS once FROM dm_t;
-- Functions called in a statement: a volatile one sees the statement's own changes, a stable one does not.
CREATE FUNCTION dm_count_volatile() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT count(*) FROM dm_t';
CREATE FUNCTION dm_count_volatile2() RETURNS bigint LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN (SELECT count(*) FROM dm_t); END';
CREATE FUNCTION dm_count_stable() RETURNS bigint LANGUAGE plpgsql STABLE AS 'BEGIN RETURN (SELECT count(*) FROM dm_t); END';
TRUNCATE dm_t;
INSERT INTO dm_t SELECT i, dm_count_volatile2(), dm_count_stable()::text FROM generate_series(1, 4) i;
SELECT * FROM dm_t ORDER BY id;

-- ON CONFLICT.
TRUNCATE dm_t;
INSERT INTO dm_t VALUES (1, 1, 'a') ON CONFLICT DO NOTHING RETURNING *;
INSERT INTO dm_t VALUES (1, 2, 'b'), (2, 2, 'b') ON CONFLICT DO NOTHING RETURNING *;
INSERT INTO dm_t VALUES (1, 3, 'c'), (3, 3, 'c') ON CONFLICT (id) DO NOTHING RETURNING *;
INSERT INTO dm_t VALUES (1, 4, 'd'), (4, 4, 'd') ON CONFLICT (id) DO UPDATE SET v = dm_t.v || excluded.v, g = excluded.g RETURNING *;
INSERT INTO dm_t VALUES (1, 5, 'e') ON CONFLICT (id) DO UPDATE SET v = 'never' WHERE dm_t.g = 99 RETURNING *;
INSERT INTO dm_t VALUES (1, 6, 'f') ON CONFLICT ON CONSTRAINT dm_t_pkey DO UPDATE SET id = excluded.id + 100 RETURNING *;
INSERT INTO dm_t VALUES (9, 6, 'f'), (9, 7, 'g') ON CONFLICT (id) DO UPDATE SET v = excluded.v;
INSERT INTO dm_t VALUES (9, 6, 'f'), (9, 7, 'g') ON CONFLICT (id) DO NOTHING;
INSERT INTO dm_t SELECT i, i, 'bulk' FROM generate_series(1, 200) i ON CONFLICT (id) DO UPDATE SET v = 'merged';
SELECT v, count(*), min(id), max(id) FROM dm_t GROUP BY v ORDER BY v;
BEGIN;
DELETE FROM dm_t WHERE id = 1;
INSERT INTO dm_t VALUES (1, 1, 'after delete') ON CONFLICT (id) DO UPDATE SET v = 'wrong' RETURNING *;
INSERT INTO dm_t VALUES (1, 1, 'x') ON CONFLICT (id) DO UPDATE SET v = 'right' RETURNING *;
COMMIT;
SELECT * FROM dm_t WHERE id = 1;

-- MERGE.
CREATE TABLE dm_target (id int PRIMARY KEY, balance int, note text) USING mixedcc;
CREATE TABLE dm_source (id int, delta int) USING mixedcc;
INSERT INTO dm_target VALUES (1, 10), (2, 20), (3, 30);
INSERT INTO dm_source VALUES (2, 5), (3, -30), (4, 40), (5, 0);
MERGE INTO dm_target t USING dm_source s ON t.id = s.id
    WHEN MATCHED AND balance + delta = 0 THEN DELETE
    WHEN MATCHED THEN UPDATE SET balance = balance + delta, note = 'moved'
    WHEN NOT MATCHED AND delta = 0 THEN DO NOTHING
    WHEN NOT MATCHED THEN INSERT VALUES (s.id, delta, 'new');
SELECT * FROM dm_target ORDER BY id;
MERGE INTO dm_target t USING (SELECT id + 1000 AS new_id, id FROM dm_target) s ON t.id = s.id
    WHEN MATCHED THEN UPDATE SET id = s.new_id;
SELECT * FROM dm_target ORDER BY id;
INSERT INTO dm_source VALUES (1001, 1), (1001, 2);
MERGE INTO dm_target t USING dm_source s ON t.id = s.id WHEN MATCHED THEN UPDATE SET balance = 0;
SELECT * FROM dm_target ORDER BY id;

-- RETURNING of what was deleted, of large values, with joins and system columns.
DELETE FROM dm_target t USING dm_source s WHERE t.id = s.id AND s.delta = 1 RETURNING t.*, s.delta, t.tableoid::regclass;
UPDATE dm_target SET note = repeat('n', 10000) WHERE id = 1002 RETURNING length(note), id;
WITH d AS (DELETE FROM dm_target RETURNING id, length(note), ctid IS NOT NULL AS has_ctid) SELECT * FROM d ORDER BY id;
-- Many changes of one row in one transaction, and many rows.
INSERT INTO dm_target VALUES (1, 0, '');
DO $$ BEGIN FOR i IN 1..1000 LOOP UPDATE dm_target SET balance = balance + 1 WHERE id = 1; END LOOP; END $$;
SELECT * FROM dm_target;
DO $$ BEGIN FOR i IN 1..200 LOOP UPDATE dm_target SET id = id + 1; END LOOP; END $$;
SELECT * FROM dm_target;
DO $$ BEGIN FOR i IN 1..200 LOOP DELETE FROM dm_target; INSERT INTO dm_target VALUES (i, i, 'x'); END LOOP; END $$;
SELECT * FROM dm_target;
INSERT INTO dm_target SELECT i, i FROM generate_series(1001, 21000) i;
UPDATE dm_target SET balance = balance + 1 WHERE id > 1000;
DELETE FROM dm_target WHERE id % 2 = 0 AND id > 1000;
SELECT count(*), sum(balance) FROM dm_target;
DROP FUNCTION dm_count_volatile, dm_count_volatile2, dm_count_stable;
DROP TABLE dm_target, dm_source, dm_t;
