-- Many rows by one statement: in their order and against it, next to each other's failures, in savepoints; rows of every form.
CREATE SCHEMA bulk; SET search_path = bulk, public;
CREATE EXTENSION amcheck;
CREATE FUNCTION indexes_fit(t regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    i regclass;
BEGIN
    FOR i IN SELECT indexrelid FROM pg_index WHERE indrelid = t ORDER BY 1 LOOP
        PERFORM bt_index_parent_check(i, true, true);
    END LOOP;
    RETURN 'fit';
END $$;
-- Each row is found by its key, by the index alone, and once.
CREATE FUNCTION found(t regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    n bigint; m bigint;
BEGIN
    EXECUTE format('SELECT count(*), count(DISTINCT id) FROM %s', t) INTO n, m;
    IF n <> m THEN
        RETURN format('%s rows with %s keys', n, m);
    END IF;
    SET LOCAL enable_seqscan = off;
    SET LOCAL enable_hashjoin = off;
    SET LOCAL enable_mergejoin = off;
    EXECUTE format('SELECT count(*) FROM (SELECT id FROM %1$s OFFSET 0) k JOIN %1$s t ON t.id = k.id', t) INTO m;
    RETURN format('%s of %s', m, n);
END $$;

CREATE TABLE t (id int PRIMARY KEY, a text, b int CHECK (b >= 0), n numeric(12,2) DEFAULT 1.5) USING mixedcc;
INSERT INTO t SELECT i, 'row ' || i, i FROM generate_series(1, 1000) i;
SELECT found('t');
-- Behind the last one again, from several statements; between them, downwards, and scattered.
INSERT INTO t SELECT i * 10, 'on', i FROM generate_series(1001, 2000) i;
INSERT INTO t SELECT i, 'before', 0 FROM generate_series(0, -500, -1) i;
INSERT INTO t SELECT i * 7919 % 9001 * 10 + 3, 'scattered', 1 FROM generate_series(1, 1500) i WHERE i * 7919 % 9001 * 10 + 3 > 1000;
INSERT INTO t SELECT i, 'last', 2 FROM generate_series(100001, 102000) i;
SELECT found('t'), indexes_fit('t');
SELECT a, count(*), sum(b), sum(n) FROM t WHERE a !~ 'row' GROUP BY a ORDER BY a COLLATE "C";

-- Each of these fails as a whole: a key that was there, one that comes twice, a check; and then the same keys go in.
INSERT INTO t SELECT i, 'again', 0 FROM generate_series(102500, 101999, -1) i;
INSERT INTO t SELECT 103000 + i % 150, 'twice', 0 FROM generate_series(0, 299) i;
INSERT INTO t SELECT i, 'check', 103400 - i FROM generate_series(103001, 103500) i;
COPY t (id, b) FROM PROGRAM 'seq 103001 103300 | sed "s/$/\t5/"; echo "103100	6"';
SELECT count(*) FROM t WHERE id > 102000;
INSERT INTO t SELECT i, 'now', 0 FROM generate_series(102001, 103300) i;
SELECT found('t'), indexes_fit('t');

-- Conflicts: with rows that were there, and within the statement.
INSERT INTO t SELECT 103200 + i / 2, 'nothing', 0 FROM generate_series(0, 399) i ON CONFLICT DO NOTHING;
INSERT INTO t SELECT i, 'update', 0 FROM generate_series(103350, 103500) i ON CONFLICT (id) DO UPDATE SET a = excluded.a, b = t.b + 1;
INSERT INTO t SELECT 103600 + i / 2, 'twice', 0 FROM generate_series(0, 399) i ON CONFLICT (id) DO UPDATE SET b = 1;
SELECT a, b, count(*), min(id), max(id) FROM t WHERE id > 103000 GROUP BY a, b ORDER BY a COLLATE "C", b;
SELECT found('t'), indexes_fit('t');

-- Savepoints: rows that were never there, the same keys again, own rows that are written again.
BEGIN;
INSERT INTO t SELECT i, 'kept', 0 FROM generate_series(200001, 200600) i;
SAVEPOINT s1;
INSERT INTO t SELECT i, 'gone', 0 FROM generate_series(200601, 201200) i;
UPDATE t SET b = 1 WHERE id BETWEEN 200591 AND 200610;
SAVEPOINT s2;
DELETE FROM t WHERE id BETWEEN 200001 AND 200100;
INSERT INTO t SELECT i, 'anew', 0 FROM generate_series(200100, 200001, -1) i;
UPDATE t SET id = id + 1000000 WHERE id BETWEEN 201001 AND 201100;
SELECT a, count(*), sum(b), min(id), max(id) FROM t WHERE id > 200000 GROUP BY a ORDER BY a COLLATE "C";
ROLLBACK TO s2;
SELECT a, count(*), sum(b), min(id), max(id) FROM t WHERE id > 200000 GROUP BY a ORDER BY a COLLATE "C";
INSERT INTO t SELECT i, 'fails', 0 FROM generate_series(201201, 202000) i UNION ALL SELECT 200600, 'fails', 0;
ROLLBACK TO s1;
INSERT INTO t SELECT i, 'second', 0 FROM generate_series(200601, 201200) i;
UPDATE t SET b = b + 1 WHERE id BETWEEN 200551 AND 200650;
DELETE FROM t WHERE id BETWEEN 200601 AND 200610;
INSERT INTO t SELECT i, 'third', 0 FROM generate_series(200601, 200605) i;
SELECT a, count(*), sum(b), min(id), max(id) FROM t WHERE id > 200000 GROUP BY a ORDER BY a COLLATE "C";
COMMIT;
SELECT a, count(*), sum(b), min(id), max(id) FROM t WHERE id > 200000 GROUP BY a ORDER BY a COLLATE "C";
BEGIN;
INSERT INTO t SELECT i, 'never', 0 FROM generate_series(300001, 301000) i;
ROLLBACK;
INSERT INTO t SELECT i, 'then', 0 FROM generate_series(300001, 301000) i;
SELECT found('t'), indexes_fit('t');
VACUUM t;
SELECT found('t'), indexes_fit('t');

-- Row by row, and VALUES.
DO $$ BEGIN
    FOR i IN 400001..400500 LOOP
        INSERT INTO t VALUES (i, 'one', 0);
    END LOOP;
    FOR i IN 0..99 LOOP
        INSERT INTO t VALUES (400501 + 3 * i, 'three', 0), (400503 + 3 * i, 'three', 0), (400502 + 3 * i, NULL, 0);
    END LOOP;
END $$;
SELECT found('t'), indexes_fit('t'), count(*) FILTER (WHERE a IS NULL) FROM t;

-- Rows of every form: NULLs, columns that were dropped or came later, values that are long, compressed, or stored elsewhere.
CREATE TABLE forms (id int PRIMARY KEY, gone int, x text, y bytea, z int[], f float8, c char(4), d date) USING mixedcc;
ALTER TABLE forms ALTER x SET STORAGE EXTERNAL;
INSERT INTO forms SELECT i, i, repeat('x', i * 37 % 200), decode(repeat('ab', i % 50), 'hex'), ARRAY[i, NULL, i], i / 4.0, 'c' || i % 10, '2000-01-01'::date + i FROM generate_series(1, 300) i;
INSERT INTO forms SELECT i, NULL, CASE WHEN i % 2 = 0 THEN 'x' END, CASE WHEN i % 3 = 0 THEN '\x01'::bytea END, NULL, CASE WHEN i % 5 = 0 THEN 1 END, NULL, NULL FROM generate_series(301, 400) i;
ALTER TABLE forms DROP COLUMN gone;
INSERT INTO forms SELECT i, repeat('y', 5000 * (i % 3)), decode(repeat('00', 9000 * (i % 2)), 'hex'), NULL, 2, 'z', NULL FROM generate_series(401, 450) i;
ALTER TABLE forms ADD later int DEFAULT 7, ADD made int GENERATED ALWAYS AS (id % 100) STORED;
INSERT INTO forms (id, x, later) SELECT i, 'later', i FROM generate_series(451, 500) i;
-- From one table of ours into another: the same columns, and columns that came later there.
CREATE TABLE same (LIKE forms INCLUDING ALL EXCLUDING GENERATED) USING mixedcc;
INSERT INTO same SELECT * FROM forms;
INSERT INTO same SELECT * FROM same WHERE id > 1000;
CREATE TABLE wide (id int PRIMARY KEY) USING mixedcc;
INSERT INTO wide SELECT i FROM generate_series(1, 100) i;
ALTER TABLE wide ADD w text DEFAULT 'default';
CREATE TABLE wider (LIKE wide INCLUDING ALL) USING mixedcc;
INSERT INTO wider SELECT * FROM wide;
INSERT INTO wider SELECT id + 100, w FROM wider;
SELECT w, count(*) FROM wider GROUP BY w;
-- From heap, with values in its TOAST table.
CREATE TABLE toasted (id int, x text, y text) USING heap;
ALTER TABLE toasted ALTER x SET STORAGE EXTERNAL;
INSERT INTO toasted SELECT i, repeat(md5(i::text), 200), repeat('z', 100000) FROM generate_series(1, 20) i;
CREATE TABLE untoasted (LIKE toasted, PRIMARY KEY (id)) USING mixedcc;
INSERT INTO untoasted SELECT * FROM toasted;
DROP TABLE toasted;
SELECT count(*), sum(length(x)), sum(length(y)), md5(string_agg(x, '' ORDER BY id)) FROM untoasted;
SELECT found('forms'), indexes_fit('forms'), found('same'), indexes_fit('same'), found('wider'), found('untoasted');
SELECT count(*), sum(length(x)), sum(length(y)), sum(z[1]), sum(f), count(c), max(d), sum(later), sum(made), md5(string_agg(forms::text, ',' ORDER BY id)) FROM forms;
SELECT count(*) FROM (SELECT * FROM forms EXCEPT ALL SELECT * FROM same) d;
UPDATE same SET x = x || '!' WHERE id % 2 = 0;
SELECT count(*) FROM same s JOIN forms f USING (id) WHERE s.x IS DISTINCT FROM f.x;
SELECT * FROM same WHERE id IN (1, 2, 301, 450, 451) AND length(x) < 100 ORDER BY id;
-- A trigger makes the row.
CREATE FUNCTION makes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.a := NEW.a || ' made'; NEW.n := NULL; RETURN CASE WHEN NEW.id % 3 > 0 THEN NEW END; END $$;
CREATE TRIGGER makes BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION makes();
INSERT INTO t SELECT i, 'trigger', 0 FROM generate_series(500001, 500300) i;
COPY t (id, a) FROM PROGRAM 'seq 500301 500600 | sed "s/$/\tcopy/"';
SELECT a, count(*), count(n), min(id), max(id) FROM t WHERE id > 500000 GROUP BY a ORDER BY a COLLATE "C";
SELECT found('t'), indexes_fit('t');
-- Several indexes, unique ones among them.
CREATE TABLE more (id int PRIMARY KEY, u text UNIQUE, v int) USING mixedcc;
CREATE INDEX ON more (v, id);
CREATE UNIQUE INDEX ON more ((-v)) WHERE v > 0;
INSERT INTO more SELECT i, md5(i::text), -i FROM generate_series(1, 1000) i;
INSERT INTO more SELECT i, md5(i::text), i FROM generate_series(1001, 2000) i;
INSERT INTO more SELECT i, 'u' || i % 500, 0 FROM generate_series(2001, 2600) i;
INSERT INTO more SELECT i, 'v' || i, 1500 + i % 2000 FROM generate_series(2001, 4100) i;
SELECT found('more'), indexes_fit('more');
TRUNCATE more;
INSERT INTO more SELECT i, i, i FROM generate_series(1, 900) i;
BEGIN;
TRUNCATE more;
INSERT INTO more SELECT i, i, i FROM generate_series(1, 900) i;
TRUNCATE more;
INSERT INTO more SELECT i, i, i FROM generate_series(901, 1800) i;
REINDEX TABLE more;
INSERT INTO more SELECT i, i, i FROM generate_series(1801, 2700) i;
ROLLBACK;
INSERT INTO more SELECT i, i, i FROM generate_series(901, 1900) i;
SELECT found('more'), indexes_fit('more');
SET client_min_messages = warning;
DROP EXTENSION amcheck;
DROP SCHEMA bulk CASCADE;
