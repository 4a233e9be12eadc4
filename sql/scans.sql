-- Sequential scans: their rows are found ahead, in runs, taken apart ahead, and some filters are
-- decided by their bytes. What statements see is what they would see row by row.
SET enable_indexscan = off;
SET enable_bitmapscan = off;
SET enable_indexonlyscan = off;
SET max_parallel_workers_per_gather = 0;
CREATE TABLE sc_t (id int PRIMARY KEY, small int2, big int8, day date, at timestamp, yes bool, note text, r float8)
    USING mixedcc;
INSERT INTO sc_t SELECT i, i % 50, i * 10000000000, date '2020-01-01' + i, timestamp '2020-01-01' + i * interval '1 hour',
    i % 2 = 0, 'note ' || i, i / 4.0 FROM generate_series(1, 1000) i;
ANALYZE sc_t;
-- Filters of each type and comparison, with the constant on either side.
SELECT count(*), sum(id) FROM sc_t WHERE id = 500;
SELECT count(*), sum(id) FROM sc_t WHERE id <> 500;
SELECT count(*), sum(id) FROM sc_t WHERE id < 65;
SELECT count(*), sum(id) FROM sc_t WHERE id <= 65;
SELECT count(*), sum(id) FROM sc_t WHERE 64 < id;
SELECT count(*), sum(id) FROM sc_t WHERE 64 >= id;
SELECT count(*), sum(id) FROM sc_t WHERE small = 7;
SELECT count(*), sum(id) FROM sc_t WHERE small > 7::int8 AND small < 9;
SELECT count(*), sum(id) FROM sc_t WHERE small = 7::int2;
SELECT count(*), sum(id) FROM sc_t WHERE big = 70000000000;
SELECT count(*), sum(id) FROM sc_t WHERE big > 70000000000 AND 90 > id AND small <> 3 AND day < '2020-02-20' AND at > '2020-01-02';
SELECT count(*), sum(id) FROM sc_t WHERE big < 5;
SELECT count(*), sum(id) FROM sc_t WHERE id > 2147483648;
SELECT count(*), sum(id) FROM sc_t WHERE id < (-9223372036854775808)::int8;
SELECT count(*), sum(id) FROM sc_t WHERE day = '2021-01-01';
SELECT count(*), sum(id) FROM sc_t WHERE at BETWEEN '2020-01-03' AND '2020-01-04';
SELECT count(*), sum(id) FROM sc_t WHERE id = NULL::int;
SELECT count(*), sum(id) FROM sc_t WHERE small <> NULL::int2;
SELECT count(*), sum(id) FROM sc_t WHERE id < 100 AND note LIKE '%7';
SELECT count(*), sum(id) FROM sc_t WHERE yes AND id > 900;
SELECT count(*), sum(id) FROM sc_t WHERE id = small;
SELECT count(*), sum(id) FROM sc_t WHERE id < 10 OR id > 990;
SELECT * FROM sc_t WHERE big = 6410000000000;
SELECT yes, r, note FROM sc_t WHERE small = 11 AND id < 200 ORDER BY id;
SELECT run_plan($$SELECT * FROM sc_t WHERE id > 990$$);
SELECT run_plan($$SELECT * FROM sc_t WHERE id > 990 AND note <> 'note 995'$$);
-- Parameters, in a plan for all values.
SET plan_cache_mode = force_generic_plan;
PREPARE by_id(int, text) AS SELECT count(*), sum(id) FROM sc_t WHERE id > $1 AND note <> $2;
EXECUTE by_id(900, 'note 950');
EXECUTE by_id(990, 'note 950');
EXECUTE by_id(NULL, 'note 950');
DEALLOCATE by_id;
RESET plan_cache_mode;
-- Rows with NULLs, deleted rows, columns that are dropped or added later.
UPDATE sc_t SET small = NULL WHERE id % 3 = 0;
UPDATE sc_t SET note = NULL, big = NULL WHERE id % 100 = 1;
DELETE FROM sc_t WHERE id BETWEEN 120 AND 330;
SELECT count(*), count(small), count(big), sum(id), sum(small), sum(big), max(note) FROM sc_t;
SELECT count(*), sum(id) FROM sc_t WHERE small < 10;
SELECT count(*), sum(id) FROM sc_t WHERE big <> 0;
ALTER TABLE sc_t DROP COLUMN small;
SELECT count(*), sum(id) FROM sc_t WHERE big > 5000000000000;
ALTER TABLE sc_t ADD COLUMN extra int NOT NULL DEFAULT 5, ADD COLUMN more int;
UPDATE sc_t SET extra = 6, more = 1 WHERE id > 950;
SELECT count(*), sum(extra), sum(more) FROM sc_t WHERE extra = 5;
SELECT count(*), sum(extra), sum(more) FROM sc_t WHERE extra > 5;
SELECT * FROM sc_t WHERE id IN (1, 2, 1000) ORDER BY id;
VACUUM sc_t;
INSERT INTO sc_t (id, big, note) SELECT i, i, 'again' FROM generate_series(200, 300) i;
SELECT count(*), sum(id), sum(extra) FROM sc_t;
SELECT count(*), sum(id), sum(extra) FROM sc_t WHERE big < 1000;
DROP TABLE sc_t;
-- A cursor goes forward and backward over the borders of runs, and its transaction changes what it
-- has not come to.
CREATE TABLE sc_c (id int PRIMARY KEY, v int) USING mixedcc;
INSERT INTO sc_c SELECT i, 0 FROM generate_series(1, 300) i;
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT id, v FROM sc_c;
FETCH 2 FROM c;
UPDATE sc_c SET v = 1 WHERE id IN (3, 4, 66, 300);
DELETE FROM sc_c WHERE id IN (5, 67);
INSERT INTO sc_c VALUES (301, 1);
FETCH 4 FROM c;
FETCH BACKWARD 2 FROM c;
FETCH FORWARD 2 FROM c;
MOVE FORWARD 58 IN c;
FETCH 4 FROM c;
FETCH BACKWARD 5 FROM c;
MOVE FORWARD 3 IN c;
SAVEPOINT a;
UPDATE sc_c SET v = 2;
FETCH 2 FROM c;
ROLLBACK TO a;
FETCH 2 FROM c;
FETCH LAST FROM c;
FETCH BACKWARD 2 FROM c;
MOVE FORWARD ALL IN c;
FETCH BACKWARD 1 FROM c;
MOVE BACKWARD ALL IN c;
FETCH 1 FROM c;
DECLARE later CURSOR FOR SELECT count(*), sum(v), max(id) FROM sc_c;
FETCH later;
COMMIT;
SELECT count(*), sum(v), max(id) FROM sc_c;
-- With a filter that is decided by bytes.
BEGIN;
DECLARE f SCROLL CURSOR FOR SELECT id FROM sc_c WHERE v = 0 AND id > 60;
FETCH 5 FROM f;
DELETE FROM sc_c WHERE id BETWEEN 61 AND 100;
FETCH BACKWARD 2 FROM f;
FETCH 3 FROM f;
MOVE 60 IN f;
FETCH BACKWARD 1 FROM f;
FETCH 2 FROM f;
ROLLBACK;
-- What a command has written itself it does not see; functions that it calls do.
CREATE FUNCTION sc_write(i int) RETURNS int LANGUAGE plpgsql AS
    'BEGIN UPDATE sc_c SET v = v + 1 WHERE id = i + 1; RETURN (SELECT v FROM sc_c WHERE id = i + 1); END';
BEGIN;
SELECT sum(v), sum(sc_write(id)) FROM sc_c WHERE id BETWEEN 10 AND 200;
SELECT sum(v), count(*) FROM sc_c WHERE v > 0;
UPDATE sc_c SET v = v + 1;
SELECT sum(v), count(*) FROM sc_c;
ROLLBACK;
DROP FUNCTION sc_write;
-- Scans that begin again, and that end early.
SELECT count(*), sum(a.id) FROM sc_c a JOIN sc_c b ON a.id + 200 < b.id WHERE b.v = 0;
SELECT (SELECT count(*) FROM sc_c x WHERE x.id < y.id) FROM sc_c y WHERE id IN (2, 70, 299) ORDER BY 1;
SELECT count(*) FROM sc_c y WHERE EXISTS (SELECT FROM sc_c x WHERE x.id = y.id + 100);
SELECT count(*) FROM (SELECT * FROM sc_c LIMIT 70) t;
SELECT count(*) FROM (SELECT id FROM sc_c OFFSET 63 LIMIT 100) t;
-- A parameter that has another type than when the statement was planned.
DO $$
DECLARE r record; n int;
BEGIN
    FOR i IN 1..2 LOOP
        IF i = 1 THEN SELECT 1 AS f INTO r; ELSE SELECT 4294967297 AS f INTO r; END IF;
        SELECT count(*) INTO n FROM sc_c WHERE id = r.f;
        RAISE NOTICE '%', n;
    END LOOP;
END $$;
-- Each level sees the same.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*), sum(id) FROM sc_c WHERE v = 0;
UPDATE sc_c SET v = 5 WHERE id < 100;
SELECT count(*), sum(id) FROM sc_c WHERE v = 0;
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY;
SELECT count(*), sum(id) FROM sc_c WHERE v = 0;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*), sum(id) FROM sc_c WHERE v = 0;
UPDATE sc_c SET v = 5 WHERE id < 100;
SELECT count(*), sum(id) FROM sc_c WHERE v = 0;
DELETE FROM sc_c WHERE v = 5;
SELECT count(*), sum(id) FROM sc_c WHERE v < 5;
ROLLBACK;
-- The statistics count the rows that a scan looked at.
SELECT pg_stat_force_next_flush();
BEGIN;
SELECT count(*) FROM sc_c WHERE v = 12345;
SELECT seq_scan, seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'sc_c';
ROLLBACK;
-- A sample that takes no row can be canceled.
CREATE TABLE sc_sample (v int) USING mixedcc;
INSERT INTO sc_sample SELECT generate_series(1, 1000000);
SELECT v FROM sc_sample TABLESAMPLE BERNOULLI (0);
BEGIN;
SET LOCAL statement_timeout = 2;
SELECT v FROM sc_sample TABLESAMPLE BERNOULLI (0);
ROLLBACK;
DROP TABLE sc_sample;
DROP TABLE sc_c;
