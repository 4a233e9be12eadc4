-- Index types and kinds, on empty and populated tables, with old versions around.
CREATE EXTENSION btree_gist;
CREATE TABLE ix_t (id int, h text, a int[], p point, r int4range, n int, w text) USING mixedcc;
CREATE INDEX ix_hash ON ix_t USING hash (h);
CREATE INDEX ix_gin ON ix_t USING gin (a);
CREATE INDEX ix_gist ON ix_t USING gist (p);
INSERT INTO ix_t SELECT i, 'h' || i, ARRAY[i, i % 7], point(i, i), int4range(i, i + 3), i % 10, 'word ' || i
    FROM generate_series(1, 2000) i;
CREATE INDEX ix_btree ON ix_t (id);
CREATE INDEX ix_spgist ON ix_t USING spgist (r);
CREATE INDEX ix_brin ON ix_t USING brin (id) WITH (pages_per_range = 2);
CREATE INDEX ix_partial ON ix_t (id) WHERE n = 3;
CREATE INDEX ix_expr ON ix_t (lower(w), (id * 2));
CREATE INDEX ix_include ON ix_t (n) INCLUDE (id);
CREATE INDEX ix_desc ON ix_t (n DESC NULLS LAST, id DESC);
CREATE FUNCTION ix_check() RETURNS TABLE (name text, result text) LANGUAGE plpgsql AS $$
DECLARE q text; i int := 0;
BEGIN
    SET LOCAL enable_seqscan = off;
    FOREACH q IN ARRAY ARRAY[
        'hash: SELECT count(*), min(id) FROM ix_t WHERE h = ''h77''',
        'gin: SELECT count(*), sum(id) FROM ix_t WHERE a @> ARRAY[3]',
        'gist: SELECT count(*), sum(id) FROM ix_t WHERE p <@ box ''(10,10),(20,20)''',
        'spgist: SELECT count(*), sum(id) FROM ix_t WHERE r @> 50',
        'btree: SELECT count(*), sum(id) FROM ix_t WHERE id BETWEEN 100 AND 199',
        'partial: SELECT count(*), sum(id) FROM ix_t WHERE n = 3 AND id < 500',
        'expression: SELECT count(*), sum(id) FROM ix_t WHERE lower(w) = ''word 30''',
        'include: SELECT count(*), sum(id) FROM ix_t WHERE n = 4',
        'or: SELECT count(*), sum(id) FROM ix_t WHERE id < 10 OR h = ''h1000''']
    LOOP
        name := split_part(q, ':', 1);
        EXECUTE 'SELECT t::text FROM (' || split_part(q, ': ', 2) || ') t' INTO result;
        RETURN NEXT;
    END LOOP;
END $$;
SELECT * FROM ix_check();
-- Nearest neighbours, ordered and backward scans.
SET enable_seqscan = off;
SELECT id FROM ix_t ORDER BY p <-> point(100.2, 100.2) LIMIT 3;
SELECT n, id FROM ix_t ORDER BY n DESC NULLS LAST, id DESC LIMIT 3;
SELECT n, id FROM ix_t ORDER BY n, id LIMIT 3;
SELECT max(id), min(id) FROM ix_t;
SELECT count(*) FROM ix_t WHERE id = ANY (ARRAY[1, 5, 5, 9999]);
SELECT count(*) FROM ix_t WHERE (n, id) > (8, 1000);
RESET enable_seqscan;
-- Brin alone.
BEGIN;
DROP INDEX ix_btree, ix_partial, ix_desc;
SET LOCAL enable_seqscan = off;
SELECT count(*), sum(id) FROM ix_t WHERE id BETWEEN 900 AND 910;
ROLLBACK;
-- After updates of all columns, deletes and inserts.
UPDATE ix_t SET h = 'h77' WHERE id = 5;
UPDATE ix_t SET a = a || 3, p = point(15, 15), r = int4range(49, 52), n = 3, w = 'WORD 30' WHERE id IN (7, 8);
DELETE FROM ix_t WHERE id IN (12, 103, 203, 30);
UPDATE ix_t SET id = id + 5000 WHERE id IN (110, 3);
INSERT INTO ix_t VALUES (150, 'h77', '{3}', point(11, 11), '[50,50]', 3, 'Word 30');
SELECT * FROM ix_check();
BEGIN;
UPDATE ix_t SET n = 4, h = 'h77' WHERE id < 100;
SELECT * FROM ix_check() WHERE name IN ('hash', 'include', 'partial');
ROLLBACK;
SELECT * FROM ix_check() WHERE name IN ('hash', 'include', 'partial');
REINDEX TABLE ix_t;
REINDEX INDEX ix_gin;
SELECT * FROM ix_check();
VACUUM ix_t;
SELECT * FROM ix_check();
-- An index built while the transaction, and older snapshots, know other versions.
BEGIN;
UPDATE ix_t SET w = 'mine ' || id WHERE id < 4;
DELETE FROM ix_t WHERE id = 4;
CREATE INDEX ix_w ON ix_t (w);
SET LOCAL enable_seqscan = off;
SELECT id, w FROM ix_t WHERE w LIKE 'mine%' OR w IN ('word 1', 'word 4') ORDER BY id;
SAVEPOINT s;
UPDATE ix_t SET w = 'deeper' WHERE id = 1;
REINDEX INDEX ix_w;
ROLLBACK TO s;
SELECT id, w FROM ix_t WHERE w = 'mine 1';
COMMIT;
SET enable_seqscan = off;
SELECT id, w FROM ix_t WHERE w >= 'mine' AND w < 'minf' ORDER BY id;
RESET enable_seqscan;
BEGIN;
DROP INDEX ix_w;
ROLLBACK;
DROP INDEX ix_w;

-- Unique: failing on data that is there, NULLs, NULLS NOT DISTINCT, expressions, parts.
CREATE TABLE ix_u (a int, b text, c int) USING mixedcc;
INSERT INTO ix_u VALUES (1, 'x', 1), (2, 'y', 2), (NULL, 'z', 3), (NULL, 'z', 4), (1, 'w', 5);
CREATE UNIQUE INDEX ix_u_a ON ix_u (a);
DELETE FROM ix_u WHERE c = 5;
CREATE UNIQUE INDEX ix_u_a ON ix_u (a);
INSERT INTO ix_u VALUES (NULL, 'v', 6);
CREATE UNIQUE INDEX ix_u_nulls ON ix_u (a) NULLS NOT DISTINCT;
CREATE UNIQUE INDEX ix_u_lower ON ix_u (lower(b)) WHERE c < 3;
INSERT INTO ix_u VALUES (7, 'X', 1);
INSERT INTO ix_u VALUES (7, 'X', 9);
UPDATE ix_u SET c = 0 WHERE c = 9;
UPDATE ix_u SET a = 2 WHERE a = 1;
BEGIN;
DELETE FROM ix_u WHERE a = 1;
INSERT INTO ix_u VALUES (1, 'x', 1);
INSERT INTO ix_u VALUES (1, 'q', 1);
ROLLBACK;
INSERT INTO ix_u VALUES (1, 'q', 1) ON CONFLICT (a) DO UPDATE SET b = 'conflict a' RETURNING *;
INSERT INTO ix_u VALUES (50, 'Y', 1) ON CONFLICT (lower(b)) WHERE c < 3 DO UPDATE SET b = 'conflict b' RETURNING *;
SELECT * FROM ix_u ORDER BY c, a;
-- Unique hash-like keys of several columns, text in another collation, numeric with scale.
CREATE TABLE ix_k (t text COLLATE "C", d numeric, f float8, PRIMARY KEY (t, d)) USING mixedcc;
INSERT INTO ix_k VALUES ('a', 1.0, 'NaN'), ('A', 1, '-0'), ('', 'NaN', '0'), ('a', -1.50, 'Infinity');
INSERT INTO ix_k VALUES ('a', 1.00);
SELECT * FROM ix_k ORDER BY t, d;
SELECT * FROM ix_k WHERE t = 'a' AND d = -1.5;
-- Deferrable uniqueness.
CREATE TABLE ix_d (a int UNIQUE DEFERRABLE INITIALLY IMMEDIATE, b int UNIQUE DEFERRABLE INITIALLY DEFERRED) USING mixedcc;
INSERT INTO ix_d SELECT i, i FROM generate_series(1, 5) i;
UPDATE ix_d SET a = a + 1;
UPDATE ix_d SET a = 3 WHERE b = 1;
BEGIN;
UPDATE ix_d SET b = 2 WHERE b = 1;
UPDATE ix_d SET b = 1 WHERE a = 3;
COMMIT;
BEGIN;
INSERT INTO ix_d VALUES (100, 5);
COMMIT;
BEGIN;
INSERT INTO ix_d VALUES (100, 5);
SET CONSTRAINTS ALL IMMEDIATE;
ROLLBACK;
SELECT * FROM ix_d ORDER BY a;
-- Exclusion constraints, immediate and deferred.
CREATE TABLE ix_e (room int, during int4range, EXCLUDE USING gist (room WITH =, during WITH &&)) USING mixedcc;
INSERT INTO ix_e VALUES (1, '[1,5)'), (1, '[5,8)'), (2, '[1,8)');
INSERT INTO ix_e VALUES (1, '[4,6)');
UPDATE ix_e SET room = 2 WHERE during = '[1,5)';
DELETE FROM ix_e WHERE room = 2;
UPDATE ix_e SET room = 2 WHERE during = '[1,5)';
INSERT INTO ix_e VALUES (1, '[4,6)') ON CONFLICT DO NOTHING;
ALTER TABLE ix_e ADD CONSTRAINT ix_e_late EXCLUDE USING btree (room WITH =) DEFERRABLE INITIALLY DEFERRED;
BEGIN;
INSERT INTO ix_e VALUES (1, '[100,101)');
DELETE FROM ix_e WHERE during = '[5,8)';
COMMIT;
BEGIN;
INSERT INTO ix_e VALUES (1, '[200,201)');
COMMIT;
SELECT * FROM ix_e ORDER BY room;
-- Keys added after the data, dropped, and used by name.
CREATE TABLE ix_late (id int, v int) USING mixedcc WITH (fillfactor = 70);
INSERT INTO ix_late SELECT i, i FROM generate_series(1, 100) i;
ALTER TABLE ix_late ADD PRIMARY KEY (id);
INSERT INTO ix_late VALUES (5, 5);
UPDATE ix_late SET id = id + 100;
ALTER TABLE ix_late DROP CONSTRAINT ix_late_pkey;
INSERT INTO ix_late VALUES (105, 5);
ALTER TABLE ix_late ADD PRIMARY KEY (id);
DELETE FROM ix_late WHERE ctid = (SELECT max(ctid) FROM ix_late WHERE id = 105);
CREATE UNIQUE INDEX ix_late_v ON ix_late (id);
ALTER TABLE ix_late ADD CONSTRAINT ix_late_v PRIMARY KEY USING INDEX ix_late_v;
SELECT count(*), min(id), max(id) FROM ix_late;
DROP TABLE ix_late, ix_e, ix_d, ix_k, ix_u, ix_t;
DROP FUNCTION ix_check;
DROP EXTENSION btree_gist;

-- amcheck: every row is in its indexes
CREATE EXTENSION amcheck;
CREATE TABLE checked (id int PRIMARY KEY, v text COLLATE "C" UNIQUE, n int) USING mixedcc;
CREATE INDEX ON checked (n) WHERE n > 2;
CREATE INDEX ON checked (lower(v));
INSERT INTO checked SELECT i, 'v' || i, i % 5 FROM generate_series(1, 1000) i;
UPDATE checked SET n = n + 1 WHERE id % 3 = 0;
DELETE FROM checked WHERE id % 7 = 0;
SELECT bt_index_check('checked_v_key');
SELECT bt_index_check('checked_v_key', true);
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT bt_index_check('checked_v_key', true);
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM checked;
INSERT INTO checked VALUES (1500, 'v1500', 4);
SELECT bt_index_check(c.oid, true) FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid WHERE i.indrelid = 'checked'::regclass;
ROLLBACK;
SELECT bt_index_parent_check(c.oid, true, true) FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid WHERE i.indrelid = 'checked'::regclass;
BEGIN ISOLATION LEVEL SERIALIZABLE;
LOCK TABLE checked IN SHARE MODE;
INSERT INTO checked VALUES (2000, 'v2000', 4);
SELECT bt_index_check(c.oid, true) FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid WHERE i.indrelid = 'checked'::regclass;
COMMIT;
-- and one that is missing is found
UPDATE pg_index SET indisready = false WHERE indexrelid = 'checked_v_key'::regclass;
INSERT INTO checked VALUES (3000, 'v3000', 4);
UPDATE pg_index SET indisready = true WHERE indexrelid = 'checked_v_key'::regclass;
\set VERBOSITY sqlstate
SELECT bt_index_parent_check('checked_v_key', true);
SELECT bt_index_check('checked_v_key', true);
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT bt_index_check('checked_v_key', true);
ROLLBACK;
\set VERBOSITY default
DROP TABLE checked;
DROP EXTENSION amcheck;
