-- Views by rule, materialized views, temporary tables and pg_prewarm, as on heap.
-- A rule makes an empty table a view, up to version 15. An undone one leaves the table as it was.
SELECT current_setting('server_version_num')::int < 160000 AS makes_views \gset
CREATE TABLE su_permanent (id int, v text) USING mixedcc;
CREATE UNLOGGED TABLE su_unlogged (id int, v text) USING mixedcc;
INSERT INTO su_permanent VALUES (1, 'row');
CREATE FUNCTION su_fails(statement text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
    EXECUTE statement;
    RETURN false;
EXCEPTION WHEN object_not_in_prerequisite_state OR wrong_object_type THEN RETURN true;
END $$;
SELECT su_fails('CREATE RULE "_RETURN" AS ON SELECT TO su_permanent DO INSTEAD SELECT 7 AS id, ''view''::text AS v');
SELECT * FROM su_permanent;
DELETE FROM su_permanent;
BEGIN;
SAVEPOINT s;
\if :makes_views
CREATE RULE "_RETURN" AS ON SELECT TO su_permanent DO INSTEAD SELECT 7 AS id, 'view'::text AS v;
\endif
ROLLBACK TO s;
INSERT INTO su_permanent VALUES (2, 'still a table');
COMMIT;
SELECT * FROM su_permanent;
DELETE FROM su_permanent;
\if :makes_views
CREATE RULE "_RETURN" AS ON SELECT TO su_permanent DO INSTEAD SELECT 7 AS id, 'view'::text AS v;
CREATE RULE "_RETURN" AS ON SELECT TO su_unlogged DO INSTEAD SELECT * FROM su_permanent;
\else
DROP TABLE su_permanent, su_unlogged;
CREATE VIEW su_permanent AS SELECT 7 AS id, 'view'::text AS v;
CREATE VIEW su_unlogged AS SELECT * FROM su_permanent;
\endif
SELECT * FROM su_unlogged;
SELECT relname, relkind, relam FROM pg_class WHERE relname IN ('su_permanent', 'su_unlogged') ORDER BY 1;
-- A table that its own transaction has made.
BEGIN;
CREATE TABLE su_made (id int) USING mixedcc;
INSERT INTO su_made VALUES (1);
DELETE FROM su_made;
\if :makes_views
CREATE RULE "_RETURN" AS ON SELECT TO su_made DO INSTEAD SELECT 8 AS id;
\else
DROP TABLE su_made;
CREATE VIEW su_made AS SELECT 8 AS id;
\endif
COMMIT;
SELECT * FROM su_made;
DROP VIEW su_made, su_unlogged, su_permanent;
-- Materialized views and temporary tables, also where mixedcc is the default.
CREATE TABLE su_t (id int PRIMARY KEY, v int) USING mixedcc;
CREATE INDEX su_v ON su_t (v);
INSERT INTO su_t SELECT i, i % 10 FROM generate_series(1, 1000) i;
SET default_table_access_method = mixedcc;
CREATE MATERIALIZED VIEW su_mat AS SELECT v, count(*) AS n FROM su_t GROUP BY v;
CREATE UNIQUE INDEX su_mat_v ON su_mat (v);
UPDATE su_t SET v = 3 WHERE v = 2;
REFRESH MATERIALIZED VIEW CONCURRENTLY su_mat;
SELECT * FROM su_mat WHERE v IN (2, 3);
DELETE FROM su_t WHERE v = 3;
REFRESH MATERIALIZED VIEW su_mat;
SELECT count(*), sum(n) FROM su_mat;
REFRESH MATERIALIZED VIEW su_mat WITH NO DATA;
SELECT count(*) FROM su_mat;
DROP MATERIALIZED VIEW su_mat;
BEGIN;
CREATE TEMPORARY TABLE su_kept (id int PRIMARY KEY, v int);
CREATE TEMPORARY TABLE su_emptied (id int) ON COMMIT DELETE ROWS;
CREATE TEMPORARY TABLE su_gone ON COMMIT DROP AS SELECT id FROM su_t;
INSERT INTO su_kept SELECT id, v FROM su_t WHERE id <= 4;
INSERT INTO su_emptied SELECT id FROM su_gone;
UPDATE su_t SET v = 100 FROM su_kept k WHERE k.id = su_t.id;
COMMIT;
SELECT (SELECT count(*) FROM su_emptied), to_regclass('su_gone');
SELECT k.*, t.v FROM su_kept k JOIN su_t t USING (id) ORDER BY id;
TRUNCATE su_kept;
SELECT count(*) FROM su_kept;
DROP TABLE su_kept, su_emptied;
RESET default_table_access_method;
-- pg_prewarm reads the blocks that are there.
CREATE EXTENSION pg_prewarm;
CREATE UNLOGGED TABLE su_u (id int PRIMARY KEY, v int) USING mixedcc;
INSERT INTO su_u SELECT id, v FROM su_t;
SELECT t, mode, pg_prewarm(t, mode) >= 0 AS done
    FROM unnest('{su_t,su_t_pkey,su_v,su_u,su_u_pkey}'::regclass[]) t, unnest('{buffer,read}'::text[]) mode ORDER BY t::text, 2;
SELECT pg_prewarm('su_t') = pg_relation_size('su_t') / current_setting('block_size')::int AS whole;
SELECT pg_prewarm('su_t', 'buffer', 'main', 0, 0);
SELECT count(*) FROM su_t;
-- By another name it is the same function, and another function of its name is not.
ALTER FUNCTION pg_prewarm RENAME TO su_warm;
SELECT su_warm('su_t') = pg_relation_size('su_t') / current_setting('block_size')::int AS whole;
CREATE UNLOGGED TABLE su_brin (id int, v int) USING mixedcc;
INSERT INTO su_brin SELECT i, i FROM generate_series(1, 10000) i;
CREATE INDEX ON su_brin USING brin (id) WITH (pages_per_range = 1);
CREATE FUNCTION pg_prewarm() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
    RETURN (SELECT count(*) FROM su_brin WHERE id BETWEEN 5001 AND 6000);
END $$;
SET enable_seqscan = off;
SELECT pg_prewarm();
RESET enable_seqscan;
DROP FUNCTION pg_prewarm;
DROP EXTENSION pg_prewarm;
DROP TABLE su_t, su_u, su_brin;
DROP FUNCTION su_fails;
