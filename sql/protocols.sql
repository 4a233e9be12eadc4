-- The same SQL at SERIALIZABLE under each protocol and a mix of them, in one session.
CREATE FUNCTION pr_make(name text, protocol text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TABLE %I (id int PRIMARY KEY, g int, v int) USING mixedcc WITH (mixedcc.partitions = 4, mixedcc.protocol = %L)',
        name, CASE protocol WHEN 'mix' THEN 'occ' ELSE protocol END);
    IF protocol = 'mix' THEN
        PERFORM mixedcc.set_protocol(name::regclass, '2pl', 0), mixedcc.set_protocol(name::regclass, 'partcc', 1);
    END IF;
    EXECUTE format('CREATE INDEX ON %I (g)', name);
END $$;
-- The list of protocols: the values of the setting.
CREATE VIEW pr_list AS SELECT unnest(enumvals) AS p FROM pg_settings WHERE name = 'mixedcc.default_protocol';
DO $$ BEGIN PERFORM pr_make('pr_' || p, p) FROM (SELECT p FROM pr_list UNION ALL SELECT 'mix') AS l; END $$;
CREATE PROCEDURE pr_run(name text, INOUT result text) LANGUAGE plpgsql AS $$
DECLARE r record; n int := 0;
BEGIN
    EXECUTE format('INSERT INTO %I SELECT i, i %% 10, 0 FROM generate_series(1, 100) i', name);
    EXECUTE format('UPDATE %I SET v = v + 1 WHERE id BETWEEN 10 AND 60', name);
    EXECUTE format('UPDATE %I SET v = v + 1 WHERE g = 3', name);
    EXECUTE format('UPDATE %I SET id = id + 1000 WHERE id > 90', name);
    EXECUTE format('UPDATE %I SET g = 50 WHERE id IN (1, 2)', name);
    EXECUTE format('DELETE FROM %I WHERE g = 5', name);
    EXECUTE format('INSERT INTO %I VALUES (1, 1, 1), (500, 5, 5) ON CONFLICT (id) DO UPDATE SET v = 77', name);
    BEGIN
        EXECUTE format('UPDATE %I SET v = 1000000', name);
        EXECUTE format('DELETE FROM %I WHERE id < 20', name);
        EXECUTE format('INSERT INTO %I VALUES (2, 2, 2)', name);
        RAISE EXCEPTION 'undo';
    EXCEPTION WHEN OTHERS THEN n := n + 1;
    END;
    EXECUTE format('MERGE INTO %I t USING (VALUES (2), (600)) s (k) ON t.id = s.k
        WHEN MATCHED THEN UPDATE SET v = -1 WHEN NOT MATCHED THEN INSERT VALUES (k, 0, -2)', name);
    FOR r IN EXECUTE format('SELECT id FROM %I WHERE g = 7 ORDER BY id FOR UPDATE', name) LOOP
        EXECUTE format('UPDATE %I SET v = v * 2 + 1 WHERE id = %s', name, r.id);
    END LOOP;
    EXECUTE format('SELECT count(*), sum(id) AS ids, sum(g) AS gs, sum(v) AS vs FROM %I', name) INTO r;
    result := r::text;
END $$;
SET default_transaction_isolation = 'serializable';
-- Each in a transaction of its own; all must come to the same.
CREATE TEMPORARY TABLE pr_result (result text);
DO $$
DECLARE name text; result text;
BEGIN
    FOR name IN SELECT 'pr_' || p FROM pr_list LOOP
        CALL pr_run(name, result);
        INSERT INTO pr_result VALUES (result);
        COMMIT;
    END LOOP;
END $$;
SELECT DISTINCT result, count(*) = (SELECT count(*) FROM pr_list) AS all FROM pr_result GROUP BY result;
CALL pr_run('pr_mix', NULL);
DO $$ BEGIN EXECUTE (SELECT 'TRUNCATE pr_mix, ' || string_agg(quote_ident('pr_' || p), ', ') FROM pr_list); END $$;
BEGIN ISOLATION LEVEL REPEATABLE READ;
CALL pr_run('pr_mix', NULL);
ROLLBACK;
BEGIN ISOLATION LEVEL READ COMMITTED;
CALL pr_run('pr_mix', NULL);
ROLLBACK;
-- One transaction over all of them.
BEGIN;
INSERT INTO pr_partcc VALUES (1, 1, 10);
INSERT INTO pr_occ VALUES (1, 1, 20);
INSERT INTO pr_2pl VALUES (1, 1, 30);
INSERT INTO pr_mix SELECT i, 1, 40 FROM generate_series(1, 8) i;
UPDATE pr_occ SET v = v + (SELECT v FROM pr_partcc WHERE id = 1);
UPDATE pr_2pl SET v = v + (SELECT v FROM pr_occ WHERE id = 1);
UPDATE pr_mix SET v = v + (SELECT v FROM pr_2pl WHERE id = 1);
SAVEPOINT s;
DELETE FROM pr_partcc;
DELETE FROM pr_mix;
ROLLBACK TO s;
COMMIT;
SELECT (SELECT v FROM pr_partcc), (SELECT v FROM pr_occ), (SELECT v FROM pr_2pl), (SELECT sum(v) FROM pr_mix);
-- Read only, and deferrable.
BEGIN READ ONLY;
SELECT sum(v) FROM pr_mix;
UPDATE pr_mix SET v = 0;
ROLLBACK;
BEGIN READ ONLY DEFERRABLE;
SELECT sum(v) FROM pr_mix;
COMMIT;
-- Partitions declared ahead; declared twice, out of order, of another table.
BEGIN;
SELECT mixedcc.declare_partition('pr_partcc', 1);
SELECT mixedcc.declare_partition('pr_mix', 3);
UPDATE pr_partcc SET v = 11 WHERE id = 1;
UPDATE pr_mix SET v = 0 WHERE id = 3;
COMMIT;
SELECT v FROM pr_partcc;
\set VERBOSITY sqlstate
BEGIN;
SELECT mixedcc.declare_partition('pr_partcc', 1, 2);
ROLLBACK;
SELECT mixedcc.declare_partition('pg_class', 1);
\set VERBOSITY default
-- What the view counts.
SELECT partition, protocol, rows FROM mixedcc.partitions WHERE "table" = 'pr_mix'::regclass AND partition < 2 ORDER BY partition;
SELECT sum(rows) AS rows, sum(versions) >= sum(rows) AS versions, sum(bytes) > 0 AS bytes, sum(writes) > 0 AS writes, sum(commits) > 0 AS commits
    FROM mixedcc.partitions WHERE "table" = 'pr_mix'::regclass;
-- Cursors, RETURNING, triggers and foreign keys at SERIALIZABLE.
CREATE TABLE pr_child (id int PRIMARY KEY, p int REFERENCES pr_mix ON DELETE CASCADE) USING mixedcc;
INSERT INTO pr_child SELECT i, i FROM generate_series(1, 4) i;
INSERT INTO pr_child VALUES (9, 9);
DELETE FROM pr_mix WHERE id IN (1, 2);
SELECT * FROM pr_child ORDER BY id;
BEGIN;
DECLARE c CURSOR FOR SELECT id, v FROM pr_mix ORDER BY id FOR UPDATE;
FETCH 1 FROM c;
UPDATE pr_mix SET v = 1 WHERE CURRENT OF c RETURNING *;
FETCH 1 FROM c;
COMMIT;
SELECT id, v FROM pr_mix WHERE id < 5 ORDER BY id;
RESET default_transaction_isolation;
DROP TABLE pr_child, pr_mix;
DO $$ BEGIN EXECUTE (SELECT 'DROP TABLE ' || string_agg(quote_ident('pr_' || p), ', ') FROM pr_list); END $$;
DROP VIEW pr_list;
DROP PROCEDURE pr_run;
DROP FUNCTION pr_make;
